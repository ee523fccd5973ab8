//! Behind PgBouncer.

use std::time::Duration;

use atta::{JobSpec, JobSpecBuilder, WorkerEvent, WorkerOptions, WorkerUtils};
use serde_json::json;
use testkit::{Database, PgBouncer, PoolMode, wait_for};

use super::support::{JOBS, LOCKED_JOBS, LOCKED_QUEUES, Ledger};
use crate::worker::support::{Reports, Running};

/// How many connections to the database have executed LISTEN.
const LISTENERS: &str = "select count(*) from pg_stat_activity
                         where datname = current_database() and query ilike 'listen %'";

fn options(url: &str) -> WorkerOptions {
    let poll = Duration::from_millis(200);
    WorkerOptions::default().database_url(url).concurrency(8).max_pg_conn(8).poll_interval(poll)
}

/// A job of each kind, added and run through the pooler.
async fn everything_works(db: &Database, url: &str, listeners: i64) {
    let ledger = Ledger::make(db).await;
    let mut reports = Reports::new();
    let options = options(url)
        .define_raw_job("good", reports.task(|_| async {}))
        .define_raw_job("bad", |_| async { Err::<(), _>("no luck") });
    let mut events = options.subscribe();
    let worker = Running::start(options).await;
    let utils = &worker.utils;

    let plain =
        utils.add_raw_job("good", json!({ "n": 0 }), JobSpec::default()).await.expect("jobs are added");
    assert_eq!(reports.next().await.id(), plain.id());
    let mut in_line = Vec::new();
    for n in 0..20 {
        let spec = JobSpecBuilder::new().queue_name("line");
        in_line.push(utils.add_raw_job("good", json!({ "n": n }), spec).await.expect("jobs are added").id());
    }
    let mut ran = Vec::new();
    for _ in 0..20 {
        ran.push(reports.next().await.id());
    }
    assert_eq!(ran, in_line);

    let bad = utils.add_raw_job("bad", json!({}), JobSpec::default()).await.expect("jobs are added");
    let failed = wait_for("the failure to be written", || async {
        utils.get_job(bad.id()).await.expect("a job is read").filter(|job| job.last_error().is_some())
    })
    .await;
    assert_eq!((failed.attempts(), failed.last_error(), failed.locked_by()), (1, Some("no luck"), None));
    utils.permanently_fail_jobs(&[bad.id()], "enough").await.expect("a job is failed");

    let at = chrono::Utc::now() + chrono::TimeDelta::milliseconds(500);
    utils.add_raw_job("good", json!({}), JobSpecBuilder::new().run_at(at)).await.expect("jobs are added");
    reports.next().await;
    assert!(chrono::Utc::now() >= at);

    recovers_the_dead(&ledger, utils, &mut reports).await;
    assert_eq!(ledger.count(LISTENERS).await, listeners);
    worker.stop().await.expect("it ends in good order");
    assert_eq!(ledger.count(JOBS).await, 1, "only the failed one is left");
    assert_eq!(ledger.count(LOCKED_JOBS).await + ledger.count(LOCKED_QUEUES).await, 0);
    let mut received = false;
    while let Some(event) = events.try_next() {
        received |= matches!(event, WorkerEvent::ListenStarted);
        assert!(!matches!(event, WorkerEvent::ClaimFailed { .. }), "{event:?}");
    }
    assert_eq!(received, listeners > 0);
}

async fn recovers_the_dead(ledger: &Ledger, utils: &WorkerUtils, reports: &mut Reports) {
    let later = chrono::Utc::now() + chrono::TimeDelta::hours(1);
    let id = utils
        .add_raw_job("good", json!({}), JobSpecBuilder::new().run_at(later))
        .await
        .expect("jobs are added")
        .id();
    let sql = "update graphile_worker._private_jobs
               set locked_by = 'atta-dead', locked_at = now(), attempts = 1, run_at = created_at
               where id = $1";
    ledger.client.execute(sql, &[&id]).await.expect("the database is changed by hand");
    let sql = "insert into graphile_worker._atta_workers (id, host, pid, version, task_identifiers, slots,
                 heartbeat_at, recovery_threshold)
               values ('atta-dead', 'elsewhere', 1, '0', '{}', 1, now() - interval '1 minute', interval '1 second')";
    ledger.client.execute(sql, &[]).await.expect("the database is changed by hand");
    let again = reports.next().await;
    assert_eq!((again.id(), again.attempts()), (id, 1));
}

#[tokio::test]
async fn everything_but_listen_works_behind_pgbouncer_in_transaction_mode() {
    let db = Database::migrated().await;
    let pooler = PgBouncer::before(&db.direct_url(), PoolMode::Transaction, 5).await;
    everything_works(&db, &pooler.url(db.name()), 0).await;
}

#[tokio::test]
async fn everything_works_behind_pgbouncer_in_session_mode() {
    let db = Database::migrated().await;
    let pooler = PgBouncer::before(&db.direct_url(), PoolMode::Session, 30).await;
    everything_works(&db, &pooler.url(db.name()), 1).await;
}

/// The workers share few server connections, and each one detects the mode of the pooler by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_workers_start_at_once_behind_one_pooler() {
    let db = Database::migrated().await;
    let pooler = PgBouncer::before(&db.direct_url(), PoolMode::Transaction, 3).await;
    let url = pooler.url(db.name());
    let mut reports = Reports::new();
    let starts: Vec<_> = (0..6)
        .map(|_| {
            tokio::spawn(Running::start(options(&url).define_raw_job("good", reports.task(|_| async {}))))
        })
        .collect();
    let mut workers = Vec::new();
    for start in starts {
        workers.push(start.await.unwrap());
    }
    for _ in 0..200 {
        workers[0].utils.add_raw_job("good", json!({}), JobSpec::default()).await.unwrap();
    }
    for _ in 0..200 {
        assert_eq!(reports.next().await.attempts(), 1);
    }
    for worker in workers {
        worker.stop().await.unwrap();
    }
    let ledger = Ledger::make(&db).await;
    assert_eq!(ledger.count(JOBS).await + ledger.count(LISTENERS).await, 0);
}
