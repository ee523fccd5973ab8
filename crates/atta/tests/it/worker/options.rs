//! The options of a worker, and the errors for invalid ones.

use std::time::Duration;

use atta::{LocalQueueConfig, WorkerOptions};
use testkit::Database;

use super::support::options;

#[tokio::test]
async fn all_invalid_options_are_in_one_error() {
    let error = WorkerOptions::default()
        .database_url("postgres://127.0.0.1:1/app")
        .concurrency(0)
        .max_pg_conn(1)
        .poll_interval(Duration::ZERO)
        .recovery_threshold(Duration::from_millis(1))
        .schema("pg_mine")
        .local_queue(LocalQueueConfig::new(0))
        .init()
        .await
        .unwrap_err();
    assert!(error.is_config());
    for part in [
        "concurrency is 0",
        "max_pg_conn is 1",
        "poll_interval",
        "recovery_threshold",
        "invalid schema name \"pg_mine\"",
        "no task is defined",
        "local queue's size is 0",
    ] {
        assert!(error.message().contains(part), "{part}: {error}");
    }
}

#[tokio::test]
async fn a_failure_that_waiting_can_not_fix_is_an_error_at_the_start() {
    let db = Database::empty().await;
    let url = db.url().replace("postgres@", "nobody_we_know:secret@");
    let start = WorkerOptions::default().database_url(url).define_raw_job("noop", |_| async {}).init();
    let error = start.await.unwrap_err();
    assert_eq!(error.db_code(), Some("28000"), "{error}");
    assert!(!error.is_transient() && !error.to_string().contains("secret"), "{error}");
}

#[tokio::test]
async fn a_worker_runs_in_any_schema() {
    let db = Database::empty().await;
    let worker = options(&db)
        .schema("o'clock \"x\" $atta$")
        .define_raw_job("noop", |_| async {})
        .init()
        .await
        .unwrap();
    let utils = worker.create_utils();
    utils
        .add_raw_job("noop", serde_json::json!([1]), atta::JobSpecBuilder::new().queue_name("q"))
        .await
        .unwrap();
    worker.run_once().await.unwrap();
    assert_eq!(utils.count_jobs().await.unwrap().total(), 0);
}

#[tokio::test]
async fn a_worker_runs_on_a_given_pool() {
    let db = Database::migrated().await;
    let config: tokio_postgres::Config = db.url().parse().unwrap();
    let manager = deadpool_postgres::Manager::new(config, tokio_postgres::NoTls);
    let pool = deadpool_postgres::Pool::builder(manager).max_size(4).build().unwrap();
    let worker =
        WorkerOptions::default().pg_pool(pool).define_raw_job("noop", |_| async {}).init().await.unwrap();
    worker.create_utils().add_raw_job("noop", 1, atta::JobSpec::default()).await.unwrap();
    worker.run_once().await.unwrap();
    assert_eq!(worker.create_utils().count_jobs().await.unwrap().total(), 0);
}
