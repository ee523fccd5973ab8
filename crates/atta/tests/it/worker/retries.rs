//! When failed jobs are retried.

use std::time::Duration;

use atta::{
    IntoTaskHandlerResult, JobSpec, RawJobSpec, Retry, RetryPolicy, TaskError, TaskHandler, WorkerContext,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use testkit::Database;

use super::support::options;

/// Fails a job that has had `attempts` already. Returns the seconds until it may run again.
async fn delay_after(attempts: i16) -> f64 {
    let db = Database::migrated().await;
    let worker = options(&db).define_raw_job("bad", |_| async { Err::<(), _>("no") }).init().await.unwrap();
    let utils = worker.create_utils();
    let id = utils.add_raw_job("bad", json!({}), JobSpec::default()).await.unwrap().id();
    let reschedule = atta::RescheduleJobOptions { attempts: Some(attempts), ..Default::default() };
    utils.reschedule_jobs(&[id], reschedule).await.unwrap();
    worker.run_once().await.unwrap();
    let client = db.client().await;
    // At most a few seconds pass between the failure and this query, and the delay counts from the failure.
    let sql =
        "select extract(epoch from run_at - created_at)::float8 from graphile_worker.jobs where id = $1";
    client.query_one(sql, &[&id]).await.unwrap().get(0)
}

#[tokio::test]
async fn failed_job_waits_longer_each_time() {
    // The table of delays in Graphile's README, in seconds.
    let table =
        ["2.718", "7.389", "20.085", "54.598", "148.413", "403.428", "1096.633", "2980.957", "8103.083"];
    let table = table.into_iter().chain(["22026.465", "22026.465"]);
    for (attempts, expected) in table.enumerate() {
        let expected: f64 = expected.parse().unwrap();
        let delay = delay_after(attempts as i16).await;
        assert!((expected..expected + 60.0).contains(&(delay + 0.001)), "after {attempts}: {delay}");
    }
}

#[derive(Serialize, Deserialize)]
struct Patient {}

impl TaskHandler for Patient {
    const IDENTIFIER: &'static str = "patient";

    async fn run(self, _ctx: WorkerContext) -> impl IntoTaskHandlerResult {
        Err::<(), _>("no")
    }

    fn retry_policy() -> RetryPolicy {
        RetryPolicy::fixed(Duration::from_secs(1000)).with_jitter(0.5)
    }
}

#[tokio::test]
async fn a_task_has_a_policy_of_its_own() {
    let db = Database::migrated().await;
    let worker = options(&db).define_job::<Patient>().init().await.unwrap();
    let utils = worker.create_utils();
    let job = utils.add_job(Patient {}, JobSpec::default()).await.unwrap();
    worker.run_once().await.unwrap();
    let again = utils.get_job(job.id()).await.unwrap().unwrap();
    let delay = (again.run_at() - job.run_at()).num_seconds();
    assert!((1000..1560).contains(&delay), "{delay}");
}

/// All jobs fail within one second; their retries must not all be due within one second.
#[tokio::test]
async fn jobs_that_fail_in_one_outage_are_retried_at_different_times() {
    let db = Database::migrated().await;
    let worker = options(&db).define_job::<Patient>().init().await.unwrap();
    let utils = worker.create_utils();
    let job = RawJobSpec::new("patient", json!({}), JobSpec::default()).unwrap();
    utils.add_raw_jobs(&vec![job; 40]).await.unwrap();
    worker.run_once().await.unwrap();
    let sql = "select count(distinct extract(epoch from run_at)::bigint / 10) from graphile_worker.jobs";
    let tens: i64 = db.client().await.query_one(sql, &[]).await.unwrap().get(0);
    assert!(tens > 10, "40 jobs come back within {tens} times ten seconds");
}

#[derive(Serialize, Deserialize)]
struct Hopeless {}

impl TaskHandler for Hopeless {
    const IDENTIFIER: &'static str = "hopeless";

    async fn run(self, _ctx: WorkerContext) -> impl IntoTaskHandlerResult {
        Err::<(), _>("no")
    }

    fn retry_policy() -> RetryPolicy {
        RetryPolicy::new(|_, _| -> Retry { panic!("at a loss") })
    }
}

#[tokio::test]
async fn a_retry_policy_that_panics_costs_neither_the_slot_nor_the_job() {
    let db = Database::migrated().await;
    let options = options(&db).concurrency(1).define_job::<Hopeless>();
    let worker = options.define_raw_job("other", |_| async {}).init().await.unwrap();
    let utils = worker.create_utils();
    let id = utils.add_job(Hopeless {}, JobSpec::default()).await.unwrap().id();
    let other = RawJobSpec::new("other", json!({}), JobSpec::default()).unwrap();
    utils.add_raw_jobs(&vec![other; 10]).await.unwrap();
    worker.run_once().await.unwrap();
    assert_eq!(utils.count_jobs().await.unwrap().total(), 1, "the others ran");
    let job = utils.get_job(id).await.unwrap().unwrap();
    assert_eq!(job.last_error(), Some("no\n(its retry policy panicked: at a loss)"));
    assert_eq!((job.attempts(), job.locked_at()), (1, None));
}

#[tokio::test]
async fn panics_and_payloads_that_can_not_be_decoded_are_failures() {
    let db = Database::migrated().await;
    let worker = options(&db)
        .define_job::<Patient>()
        .define_raw_job("panics", |_| async {
            if true {
                panic!("at the disco")
            }
        })
        .define_raw_job("panics_at_once", |_| -> std::future::Ready<()> { panic!("before it began") })
        .init()
        .await
        .unwrap();
    let utils = worker.create_utils();
    for (task, payload, expected) in [
        ("panics", json!({}), "panic: at the disco"),
        ("panics_at_once", json!({}), "panic: before it began"),
        ("patient", json!([1, 2]), "the payload can't be decoded as "),
    ] {
        let id = utils.add_raw_job(task, payload, JobSpec::default()).await.unwrap().id();
        worker.run_once().await.unwrap();
        let job = utils.get_job(id).await.unwrap().unwrap();
        assert!(job.last_error().unwrap().starts_with(expected), "{:?}", job.last_error());
        assert_eq!((job.attempts(), job.locked_at()), (1, None));
    }
}

/// An error of the application that displays its source as its own text.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Transparent(#[from] TaskError);

/// An error with its own text.
#[derive(Debug, thiserror::Error)]
enum Wrapped {
    #[error("sending failed")]
    Sending(#[from] TaskError),
    #[error("the service said no")]
    Boxed(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("deeper")]
    Deeper(#[from] anyhow::Error),
}

type Boxed = Box<dyn std::error::Error + Send + Sync>;

fn given_up() -> TaskError {
    TaskError::new("no such customer").give_up().with_payload(RawValue::from_string("[7]".into()).unwrap())
}

fn bails() -> anyhow::Result<()> {
    anyhow::bail!(given_up())
}

fn asks() -> anyhow::Result<()> {
    Err(given_up())?;
    Ok(())
}

fn with_context() -> anyhow::Result<()> {
    use anyhow::Context;
    Err(given_up()).context("first").context("second")
}

/// All known ways of wrapping an error.
fn wrapped() -> Vec<(&'static str, Result<(), TaskError>)> {
    fn of<E: Into<Boxed>>(error: E) -> Result<(), TaskError> {
        Err::<(), E>(error).into_task_handler_result()
    }
    vec![
        ("as it is", of(given_up())),
        ("a box", of(Boxed::from(given_up()))),
        ("bail!", bails().into_task_handler_result()),
        ("?", asks().into_task_handler_result()),
        ("into", of(anyhow::Error::from(given_up()))),
        ("context", with_context().into_task_handler_result()),
        ("context on an error of anyhow's", of(bails().unwrap_err().context("more"))),
        ("transparent", of(Transparent(given_up()))),
        ("transparent in anyhow", of(anyhow::Error::from(Transparent(given_up())))),
        ("from", of(Wrapped::from(given_up()))),
        ("a box as the source", of(Wrapped::Boxed(given_up().into()))),
        ("anyhow as the source", of(Wrapped::from(bails().unwrap_err()))),
        ("anyhow with context as the source", of(Wrapped::from(with_context().unwrap_err()))),
        ("an error of std's", of(std::io::Error::other(given_up()))),
        ("a reference count", of(std::sync::Arc::new(given_up()))),
    ]
}

#[tokio::test]
async fn a_retry_decision_survives_every_common_way_of_wrapping_an_error() {
    for (way, result) in wrapped() {
        let error = result.unwrap_err();
        assert_eq!(error.retry(), Some(Retry::Never), "{way}");
        assert!(error.message().ends_with("no such customer"), "{way}: {}", error.message());
    }
    let message = with_context().into_task_handler_result().unwrap_err().message().to_owned();
    assert_eq!(message, "second: first: no such customer");
}

#[tokio::test]
async fn a_wrapped_retry_decision_and_its_payload_reach_the_database() {
    let db = Database::migrated().await;
    let worker = options(&db)
        .define_raw_job("bails", |_| async { bails() })
        .define_raw_job("late", |_| async {
            Err::<(), _>(anyhow::Error::from(TaskError::new("busy").retry_in(Duration::from_secs(5000))))
        })
        .init()
        .await
        .unwrap();
    let utils = worker.create_utils();
    let bails = utils.add_raw_job("bails", json!([6, 7]), JobSpec::default()).await.unwrap();
    let late = utils.add_raw_job("late", json!({}), JobSpec::default()).await.unwrap();
    worker.run_once().await.unwrap();
    let bails = utils.get_job(bails.id()).await.unwrap().unwrap();
    assert_eq!((bails.attempts(), bails.payload_json()), (25, "[7]"));
    assert_eq!(bails.last_error(), Some("no such customer"));
    let again = utils.get_job(late.id()).await.unwrap().unwrap();
    assert!((again.run_at() - late.run_at()).num_seconds() >= 5000, "{:?}", again.run_at());
}
