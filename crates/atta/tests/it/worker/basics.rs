//! Jobs run, fail, and run again.

use std::time::{Duration, Instant};

use atta::{JobSpec, JobSpecBuilder, TaskError};
use serde_json::json;
use testkit::Database;

use super::support::{Reports, Running, options, wait_until_empty};

#[tokio::test]
async fn a_job_runs_and_is_gone() {
    let db = Database::migrated().await;
    let mut reports = Reports::new();
    let worker = Running::start(options(&db).define_raw_job("hello", reports.task(|_| async {}))).await;
    let added =
        worker.utils.add_raw_job("hello", json!({ "name": "Bobby" }), JobSpec::default()).await.unwrap();
    let job = reports.next().await;
    assert_eq!(job.id(), added.id());
    assert_eq!(job.payload_json(), r#"{"name":"Bobby"}"#);
    assert_eq!((job.attempts(), job.task_identifier()), (1, "hello"));
    wait_until_empty(&worker.utils).await;
    worker.stop().await.unwrap();
    assert!(reports.is_empty());
}

#[tokio::test]
async fn a_failed_job_waits_and_keeps_its_error() {
    let db = Database::migrated().await;
    let worker =
        options(&db).define_raw_job("bad", |_| async { Err::<(), _>("no\0 luck") }).init().await.unwrap();
    let utils = worker.create_utils();
    let added = utils.add_raw_job("bad", json!({}), JobSpec::default()).await.unwrap();
    worker.run_once().await.unwrap();
    let job = utils.get_job(added.id()).await.unwrap().unwrap();
    assert_eq!((job.attempts(), job.last_error(), job.locked_by()), (1, Some("no\u{fffd} luck"), None));
    let delay = (job.run_at() - added.run_at()).as_seconds_f64();
    assert!((2.7..60.0).contains(&delay), "{delay}");
}

#[tokio::test]
async fn a_scheduled_job_starts_at_its_time_and_not_at_the_next_poll() {
    let db = Database::migrated().await;
    let mut reports = Reports::new();
    let options = options(&db).poll_interval(Duration::from_secs(3600));
    let worker = Running::start(options.define_raw_job("later", reports.task(|_| async {}))).await;
    let at = chrono::Utc::now() + chrono::TimeDelta::milliseconds(700);
    worker.utils.add_raw_job("later", json!({}), JobSpecBuilder::new().run_at(at)).await.unwrap();
    reports.next().await;
    let late = chrono::Utc::now() - at;
    assert!(late >= chrono::TimeDelta::zero(), "{late}");
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn ten_jobs_of_a_queue_run_one_after_the_other_without_a_pause() {
    let db = Database::migrated().await;
    let mut reports = Reports::new();
    let options = options(&db).poll_interval(Duration::from_secs(3600));
    let worker = Running::start(options.define_raw_job("step", reports.task(|_| async {}))).await;
    let start = Instant::now();
    for n in 0..10 {
        let spec = JobSpecBuilder::new().queue_name("line");
        worker.utils.add_raw_job("step", json!({ "n": n }), spec).await.unwrap();
    }
    for n in 0..10 {
        assert_eq!(reports.next().await.payload_json(), json!({ "n": n }).to_string());
    }
    wait_until_empty(&worker.utils).await;
    println!("ten queued jobs took {:?}", start.elapsed());
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn a_handler_chooses_when_its_job_is_tried_again() {
    let db = Database::migrated().await;
    let mut reports = Reports::new();
    let task = reports.task(|ctx| async move {
        match ctx.job().attempts() {
            1 => Err(TaskError::new("once more").retry_in(Duration::ZERO)),
            2 => Err(TaskError::new("never").give_up()),
            _ => Ok(()),
        }
    });
    let worker = Running::start(options(&db).define_raw_job("choosy", task)).await;
    let id = worker.utils.add_raw_job("choosy", json!({}), JobSpec::default()).await.unwrap().id();
    assert_eq!(reports.next().await.attempts(), 1);
    assert_eq!(reports.next().await.attempts(), 2);
    let utils = worker.utils.clone();
    worker.stop().await.unwrap();
    let job = utils.get_job(id).await.unwrap().unwrap();
    assert!(job.is_permanently_failed());
    assert_eq!((job.last_error(), job.attempts()), (Some("never"), 25));
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Unit;

impl atta::TaskHandler for Unit {
    const IDENTIFIER: &'static str = "unit";

    async fn run(self, _ctx: atta::WorkerContext) -> impl atta::IntoTaskHandlerResult {}
}

#[tokio::test]
async fn a_unit_struct_is_a_task_that_takes_any_object() {
    let db = Database::migrated().await;
    let worker = options(&db).define_job::<Unit>().init().await.unwrap();
    let utils = worker.create_utils();
    utils.add_job(Unit, JobSpec::default()).await.unwrap();
    for payload in [json!({}), json!({ "_cron": { "ts": "2026-01-01T00:00:00Z", "backfilled": false } })] {
        utils.add_raw_job("unit", payload, JobSpec::default()).await.unwrap();
    }
    worker.run_once().await.unwrap();
    let left = atta::testing::jobs_of(&utils, "unit").await.unwrap();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_worker_that_runs_can_not_be_run_again_at_the_same_time() {
    let db = Database::migrated().await;
    let mut reports = Reports::new();
    let options = options(&db).define_raw_job("endless", reports.task(|_| std::future::pending::<()>()));
    let worker = std::sync::Arc::new(options.init().await.unwrap());
    let utils = worker.create_utils();
    let id = utils.add_raw_job("endless", json!({}), JobSpec::default()).await.unwrap().id();
    let first = tokio::spawn({
        let worker = worker.clone();
        async move { worker.run().await }
    });
    reports.next().await;
    let second = async { [worker.run().await.unwrap_err(), worker.run_once().await.unwrap_err()] };
    for error in tokio::time::timeout(testkit::DEADLINE, second).await.expect("a second run is refused") {
        assert!(error.is_invalid_input() && error.message().contains("already running"), "{error:?}");
    }
    let client = db.client().await;
    let sql = "select locked_by from graphile_worker.jobs where id = $1";
    testkit::wait_for("the first run to keep its job", || async {
        let locked_by: Option<String> = client.query_one(sql, &[&id]).await.unwrap().get(0);
        (locked_by.as_deref() == Some(worker.id())).then_some(())
    })
    .await;
    worker.handle().abort();
    first.await.unwrap().unwrap();
    worker.run().await.unwrap();
}
