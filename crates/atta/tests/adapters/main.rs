//! What the optional features add: transactions of other libraries, and the trace context of a job.
#![allow(clippy::unwrap_used, missing_docs)]

mod cancel;
mod diesel_async;
mod sea_orm;
mod sqlx;
mod trace;
mod transactions;

use atta::{AddJobs, Error, JobSpec, RawJobSpec, WorkerUtils};
use serde_json::json;
use testkit::Database;

fn utils(db: &Database) -> WorkerUtils {
    WorkerUtils::connect(&db.url()).unwrap()
}

/// Adds one job, and then two in one call.
async fn add_three(utils: &WorkerUtils, transaction: &mut impl AddJobs) {
    let job = utils.add_raw_job_in(transaction, "one", json!({ "n": 1 }), JobSpec::default()).await.unwrap();
    assert_eq!((job.task_identifier(), job.payload_json()), ("one", r#"{"n":1}"#));
    let two = ["two", "three"].map(|task| RawJobSpec::new(task, json!({}), JobSpec::default()).unwrap());
    let jobs = utils.add_raw_jobs_in(transaction, &two).await.unwrap();
    assert_eq!(jobs.len(), 2);
}

/// Adds a job that the database rejects.
async fn add_wrong(utils: &WorkerUtils, transaction: &mut impl AddJobs) -> Error {
    utils.add_raw_job_in(transaction, "x".repeat(129), json!({}), JobSpec::default()).await.unwrap_err()
}

#[track_caller]
fn assert_refused(error: &Error) {
    assert_eq!(error.db_code(), Some("GWBID"), "{error:?}");
    assert!(error.is_invalid_input() && !error.is_transient() && !error.is_config());
    assert!(error.message().contains("129 characters"), "{error}");
    assert_eq!(error.hint(), Some("At most 128 characters are allowed."));
    assert!(error.driver_error().is_some() && std::error::Error::source(error).is_none());
}

async fn count(utils: &WorkerUtils) -> u64 {
    utils.count_jobs().await.unwrap().total()
}

/// Ends all other connections to the database, and waits until they are gone.
async fn cut_connections(db: &Database) {
    let client = db.client().await;
    let others = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()";
    client.execute(&format!("select pg_terminate_backend(pid) {others}"), &[]).await.unwrap();
    testkit::wait_for("the connections to end", || async {
        client.query(&format!("select 1 {others}"), &[]).await.unwrap().is_empty().then_some(())
    })
    .await;
}
