//! Ending a worker: orderly, by an abort, and while a task does not end.

use std::time::Duration;

use atta::{BatchTaskHandler, IntoBatchResult, JobSpec, JobSpecBuilder, TaskError, WorkerContext};
use serde_json::json;
use testkit::Database;

use super::support::{Reports, Running, options};

/// A worker with one job that runs until it is dropped, or until it is cancelled if it listens for that.
async fn with_endless_job(db: &Database, listens: bool, delay: Duration) -> (Running, i64) {
    let mut reports = Reports::new();
    let task = reports.task(move |ctx: WorkerContext| async move {
        if listens {
            ctx.cancellation_token().cancelled().await;
            return Err::<(), _>("told to end");
        }
        std::future::pending().await
    });
    let options = options(db)
        .shutdown_grace_period(Duration::from_millis(20))
        .shutdown_abort_period(Duration::from_millis(if listens { 20_000 } else { 20 }))
        .interrupted_job_retry_delay(delay)
        .define_raw_job("endless", task);
    let worker = Running::start(options).await;
    let spec = JobSpecBuilder::new().queue_name("q").max_attempts(1);
    let id = worker.utils.add_raw_job("endless", json!({}), spec).await.unwrap().id();
    reports.next().await;
    (worker, id)
}

async fn assert_nothing_is_locked(db: &Database) {
    let client = db.client().await;
    let sql = "select (select count(*) from graphile_worker._private_jobs where locked_by is not null)
      + (select count(*) from graphile_worker._private_job_queues where locked_by is not null)
      + (select count(*) from graphile_worker._atta_workers)";
    assert_eq!(client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0), 0);
}

#[tokio::test]
async fn a_job_that_does_not_end_is_returned_with_its_attempt() {
    let db = Database::migrated().await;
    let (worker, id) = with_endless_job(&db, false, Duration::from_secs(1000)).await;
    let utils = worker.utils.clone();
    worker.stop().await.unwrap();
    let job = utils.get_job(id).await.unwrap().unwrap();
    assert_eq!((job.attempts(), job.last_error()), (0, None));
    assert!(job.run_at() > chrono::Utc::now() + chrono::TimeDelta::seconds(900), "it waits as it was told");
    assert_nothing_is_locked(&db).await;
}

#[tokio::test]
async fn a_job_that_ends_because_of_its_cancellation_keeps_its_attempt() {
    let db = Database::migrated().await;
    let (worker, id) = with_endless_job(&db, true, Duration::ZERO).await;
    let utils = worker.utils.clone();
    worker.stop().await.unwrap();
    let job = utils.get_job(id).await.unwrap().unwrap();
    assert_eq!((job.attempts(), job.last_error()), (0, None));
    assert_nothing_is_locked(&db).await;
}

#[tokio::test]
async fn an_abort_does_not_wait_for_the_grace_period() {
    let db = Database::migrated().await;
    let mut reports = Reports::new();
    let options = options(&db)
        .shutdown_grace_period(Duration::from_secs(3600))
        .define_raw_job("endless", reports.task(|_| std::future::pending::<()>()));
    let worker = Running::start(options).await;
    worker.utils.add_raw_job("endless", json!({}), JobSpec::default()).await.unwrap();
    reports.next().await;
    worker.handle.request_shutdown();
    worker.handle.abort();
    worker.join().await.unwrap();
    assert_nothing_is_locked(&db).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn the_job_of_a_task_that_does_not_yield_is_returned() {
    let db = Database::migrated().await;
    let mut reports = Reports::new();
    let options = options(&db)
        .shutdown_grace_period(Duration::ZERO)
        .shutdown_abort_period(Duration::ZERO)
        .define_raw_job("blocks", reports.task(|_| async { std::thread::sleep(Duration::from_secs(9)) }));
    let worker = Running::start(options).await;
    let utils = worker.utils.clone();
    let id = utils.add_raw_job("blocks", json!({}), JobSpec::default()).await.unwrap().id();
    reports.next().await;
    worker.stop().await.unwrap();
    let job = utils.get_job(id).await.unwrap().unwrap();
    assert_eq!((job.attempts(), job.locked_by()), (0, None));
    assert_nothing_is_locked(&db).await;
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Item(u8);

/// Completes the first item, and the second one only when it is cancelled.
impl BatchTaskHandler for Item {
    const IDENTIFIER: &'static str = "batch";

    async fn run_batch(_items: Vec<Item>, ctx: WorkerContext) -> impl IntoBatchResult {
        let begun = ctx.get_ext::<tokio::sync::mpsc::UnboundedSender<()>>().unwrap();
        begun.send(()).unwrap();
        ctx.cancellation_token().cancelled().await;
        vec![Ok(()), Err("no time left")]
    }
}

#[tokio::test]
async fn a_shutdown_keeps_the_completed_part_of_a_batch() {
    let db = Database::migrated().await;
    let (begin, mut begun) = tokio::sync::mpsc::unbounded_channel::<()>();
    let options = options(&db)
        .shutdown_grace_period(Duration::from_millis(20))
        .shutdown_abort_period(testkit::DEADLINE)
        .add_extension(begin)
        .define_batch_job::<Item>();
    let worker = Running::start(options).await;
    let utils = worker.utils.clone();
    let id = utils.add_batch_job(&[Item(1), Item(2)], JobSpec::default()).await.unwrap().id();
    begun.recv().await.unwrap();
    worker.stop().await.unwrap();
    let job = utils.get_job(id).await.unwrap().unwrap();
    assert_eq!((job.payload_json(), job.attempts()), ("[2]", 1));
    assert_eq!(job.last_error(), Some("Batch failures:\nno time left"));
    assert_nothing_is_locked(&db).await;
}

#[tokio::test]
async fn a_shutdown_keeps_the_retry_decision_of_a_task() {
    let db = Database::migrated().await;
    let mut reports = Reports::new();
    let task = reports.task(|ctx: WorkerContext| async move {
        ctx.cancellation_token().cancelled().await;
        Err::<(), _>(TaskError::new("no such customer").give_up())
    });
    let options = options(&db)
        .shutdown_grace_period(Duration::from_millis(20))
        .shutdown_abort_period(testkit::DEADLINE)
        .define_raw_job("gives_up", task);
    let worker = Running::start(options).await;
    let utils = worker.utils.clone();
    let id = utils.add_raw_job("gives_up", json!({}), JobSpec::default()).await.unwrap().id();
    reports.next().await;
    worker.stop().await.unwrap();
    let job = utils.get_job(id).await.unwrap().unwrap();
    assert_eq!((job.attempts(), job.last_error()), (25, Some("no such customer")));
    assert_nothing_is_locked(&db).await;
}
