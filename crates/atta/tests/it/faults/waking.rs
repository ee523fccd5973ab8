//! Wake-ups: none is lost, none is needed between jobs, and unusual ones do no harm.

use std::time::{Duration, Instant};

use atta::{JobSpec, RawJobSpec, WorkerUtils};
use serde_json::json;
use testkit::Database;

use crate::worker::support::{Reports, Running, options, wait_until_empty, without_polls};

/// The second of two jobs is announced while the worker handles the first, at a different point each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_wake_up_is_lost_between_finding_nothing_and_going_to_sleep() {
    let db = Database::migrated().await;
    let mut reports = Reports::new();
    let worker =
        Running::start(without_polls(&db).define_raw_job("single", reports.task(|_| async {}))).await;
    let utils = &worker.utils;
    let add = |pause: u64| async move {
        tokio::time::sleep(Duration::from_micros(pause)).await;
        utils.add_raw_job("single", json!({}), JobSpec::default()).await.unwrap();
        Instant::now()
    };
    let mut longest = Duration::ZERO;
    for _ in 0..250 {
        let (_, added) = tokio::join!(add(0), add(fastrand::u64(0..4000)));
        for _ in 0..2 {
            reports.next().await;
        }
        longest = longest.max(added.elapsed());
    }
    println!("500 single jobs began within {longest:?} of being added");
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_drains_without_waiting_for_polls() {
    let db = Database::migrated().await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    let job = RawJobSpec::new("backlog", json!({}), JobSpec::default()).unwrap();
    utils.add_raw_jobs(&vec![job; 1000]).await.unwrap();
    let options = without_polls(&db).concurrency(2);
    let worker = Running::start(options.define_raw_job("backlog", |_| async {})).await;
    let start = Instant::now();
    wait_until_empty(&utils).await;
    println!("a backlog of 1,000 jobs took two slots {:?}", start.elapsed());
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn notifications_of_other_schemas_and_invalid_ones_are_harmless() {
    let db = Database::migrated().await;
    let mut client = db.client().await;
    let other = atta::Schema::new("other \"schema\"").unwrap();
    atta::migrate(&mut client, &other).await.unwrap();
    let mut reports = Reports::new();
    let worker = Running::start(without_polls(&db).define_raw_job("mine", reports.task(|_| async {}))).await;
    worker.utils.add_raw_job("mine", json!({}), JobSpec::default()).await.unwrap();
    reports.next().await;
    let long = "x".repeat(7000);
    for payload in ["", "null", "[]", "{", "\u{1}", r#"{"count":"many"}"#, r#"{"count":1e300}"#, &long] {
        for channel in ["jobs:insert", "worker:migrate"] {
            client.execute("select pg_notify($1, $2)", &[&channel, &payload]).await.unwrap();
        }
    }
    let known = r#"{"migrationNumber":19,"breaking":true}"#;
    client.execute("select pg_notify('worker:migrate', $1)", &[&known]).await.unwrap();
    client.execute(r#"select "other ""schema""".add_job('mine')"#, &[]).await.unwrap();
    let job = worker.utils.add_raw_job("mine", json!({}), JobSpec::default()).await.unwrap();
    assert_eq!(reports.next().await.id(), job.id());
    wait_until_empty(&worker.utils).await;
    worker.stop().await.unwrap();
    assert!(reports.is_empty(), "the other schema's job is not ours");
}

/// A poll reads a few hundred jobs of each kind. It must find the jobs behind them as well.
#[tokio::test]
async fn a_job_behind_many_that_the_worker_can_not_run_is_found_by_polling() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let mut reports = Reports::new();
    let options = options(&db).poll_interval(Duration::from_millis(200)).add_forbidden_flag("no");
    let options = options.define_raw_job("mine", reports.task(|_| async {}));
    let worker = Running::start(options).await;
    worker.utils.add_raw_job("mine", json!({}), JobSpec::default()).await.unwrap();
    reports.next().await;
    // No notification is sent for these jobs.
    let sql = "insert into graphile_worker._private_job_queues (queue_name, locked_at, locked_by)
                 values ('busy', now(), 'somebody'), ('free', null, null);
               insert into graphile_worker._private_jobs (task_id, run_at, flags, job_queue_id)
                 select task.id, now() - interval '1 hour', case when queue.id is null then '{\"no\": true}'::jsonb end, queue.id
                 from graphile_worker._private_tasks as task, generate_series(1, 300) as n,
                   (select id from graphile_worker._private_job_queues where queue_name = 'busy'
                    union all select null::integer) as queue
                 where task.identifier = 'mine';
               insert into graphile_worker._private_jobs (task_id, run_at, flags, job_queue_id)
                 select task.id, now(), '{\"yes\": true}', queue.id
                 from graphile_worker._private_tasks as task,
                   (select id from graphile_worker._private_job_queues where queue_name = 'free'
                    union all select null::integer) as queue
                 where task.identifier = 'mine'";
    client.batch_execute(sql).await.unwrap();
    let queues = [reports.next().await.queue_name().is_some(), reports.next().await.queue_name().is_some()];
    assert!(queues.contains(&true) && queues.contains(&false), "{queues:?}");
    worker.stop().await.unwrap();
    assert!(reports.is_empty());
}
