//! The local queue, and batches of releases.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use atta::{JobSpec, LocalQueueConfig, RawJobSpec, RefetchDelay};
use testkit::Database;
use tokio::sync::Semaphore;

use super::support::{Running, options, wait_until_empty};

fn jobs(count: usize) -> Vec<RawJobSpec> {
    (0..count).map(|n| RawJobSpec::new("work", n, JobSpec::default()).unwrap()).collect()
}

#[tokio::test]
async fn a_backlog_is_worked_through_in_order_with_batches_and_delays() {
    let db = Database::migrated().await;
    let done = Arc::new(AtomicUsize::new(0));
    let counter = done.clone();
    let options = options(&db)
        .poll_interval(Duration::from_secs(3600))
        .local_queue(LocalQueueConfig::new(100))
        .complete_job_batch_delay(Duration::from_millis(5))
        .define_raw_job("work", move |_| {
            counter.fetch_add(1, Ordering::SeqCst);
            async {}
        });
    let worker = Running::start(options).await;
    worker.utils.add_raw_jobs(&jobs(1500)).await.unwrap();
    wait_until_empty(&worker.utils).await;
    worker.stop().await.unwrap();
    assert_eq!(done.load(Ordering::SeqCst), 1500);
}

#[tokio::test]
async fn a_job_that_waits_too_long_is_returned_with_its_attempt() {
    let db = Database::migrated().await;
    let gate = Arc::new(Semaphore::new(0));
    let task_gate = gate.clone();
    let delay = RefetchDelay::new(Duration::from_secs(1800))
        .with_threshold(100)
        // More notifications than will come, so that none ends the pause.
        .with_max_abort_threshold(1_000_000_000);
    let config = LocalQueueConfig::new(10).with_ttl(Duration::from_millis(50)).with_refetch_delay(delay);
    let options = options(&db)
        .concurrency(1)
        // The worker must not claim them again at once: the test checks that they are returned.
        .poll_interval(Duration::from_secs(3600))
        .local_queue(config)
        .define_raw_job("work", move |_| {
            let gate = task_gate.clone();
            async move { drop(gate.acquire().await) }
        });
    let db_client = db.client().await;
    atta::migrate(&mut db.client().await, &atta::Schema::default()).await.unwrap();
    db_client
        .execute("select graphile_worker.add_job('work') from generate_series(1, 5)", &[])
        .await
        .unwrap();
    let worker = Running::start(options).await;
    // In one statement: a notification at the start may make the worker claim them once more.
    let returned = "select count(*) filter (where attempts = 0 and locked_by is null) = 4
                      and count(*) filter (where attempts = 1 and locked_by is not null) = 1
                    from graphile_worker.jobs";
    testkit::wait_for("four jobs to be returned", || async {
        db_client.query_one(returned, &[]).await.unwrap().get::<_, bool>(0).then_some(())
    })
    .await;
    gate.add_permits(100);
    worker.stop().await.unwrap();
}
