//! The name that the server shows for a connection.

use std::collections::BTreeSet;
use std::time::Duration;

use atta::{JobSpec, WorkerOptions, WorkerUtils};
use testkit::{Database, PgBouncer, PoolMode, wait_for};

use crate::worker::support::{Reports, Running};

/// The names of all connections to the database, except those of the test itself.
async fn names(db: &Database) -> (usize, BTreeSet<String>) {
    let sql = "select application_name from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'";
    let rows = db.client().await.query(sql, &[]).await.unwrap();
    (rows.len(), rows.iter().map(|row| row.get(0)).collect())
}

/// Runs a job, and returns the worker's id, and the names once this many connections are there.
async fn names_of_a_worker(db: &Database, url: &str, least: usize) -> (String, BTreeSet<String>) {
    let mut reports = Reports::new();
    let options = WorkerOptions::default()
        .database_url(url)
        .poll_interval(Duration::from_millis(50))
        .define_raw_job("noop", reports.task(|_| async {}));
    let running = Running::start(options).await;
    running.utils.add_raw_job("noop", 1, JobSpec::default()).await.unwrap();
    reports.next().await;
    let names = wait_for("the connections of the worker", || async {
        let (count, names) = names(db).await;
        (count >= least).then_some(names)
    })
    .await;
    let id = running.handle.worker_id().to_owned();
    running.stop().await.unwrap();
    (id, names)
}

#[tokio::test]
async fn all_connections_of_a_worker_have_its_id_as_their_name() {
    let db = Database::migrated().await;
    // Lanes, poll, heartbeat, LISTEN, and the pool.
    let (id, names) = names_of_a_worker(&db, &db.direct_url(), 6).await;
    assert_eq!(names, BTreeSet::from([id]));
}

#[tokio::test]
async fn a_name_that_the_user_has_set_stays() {
    let db = Database::migrated().await;
    let url = format!("{}?application_name=mine", db.direct_url());
    assert_eq!(names_of_a_worker(&db, &url, 6).await.1, BTreeSet::from(["mine".to_owned()]));
}

#[tokio::test]
async fn connections_without_a_worker_are_called_atta() {
    let db = Database::migrated().await;
    let utils = WorkerUtils::connect(&db.direct_url()).unwrap();
    utils.add_raw_job("noop", 1, JobSpec::default()).await.unwrap();
    assert_eq!(names(&db).await.1, BTreeSet::from(["atta".to_owned()]));
}

#[tokio::test]
async fn a_pooler_passes_the_name_on() {
    for mode in [PoolMode::Transaction, PoolMode::Session] {
        let db = Database::migrated().await;
        let pooler = PgBouncer::before(&db.direct_url(), mode, 30).await;
        let (id, mut names) = names_of_a_worker(&db, &pooler.url(db.name()), 1).await;
        // PgBouncer opens connections in advance, and names each when it is first used.
        names.remove("");
        assert_eq!(names, BTreeSet::from([id]), "{mode:?}");
    }
}
