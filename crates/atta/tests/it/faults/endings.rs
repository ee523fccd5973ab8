//! Shutdowns start no new jobs, leave no locks, and never wait forever.

use std::sync::Arc;
use std::time::{Duration, Instant};

use atta::{JobSpec, LocalQueueConfig, RawJobSpec, WorkerEvent, WorkerEvents, WorkerUtils};
use serde_json::json;
use testkit::Database;
use tokio::sync::Notify;

use super::support::{LOCKED_JOBS, Ledger};
use crate::worker::support::{Reports, Running, options, wait_until_empty};

async fn add_many(utils: &WorkerUtils, count: usize) {
    let job = RawJobSpec::new("many", json!({}), JobSpec::default()).expect("the payload is JSON");
    utils.add_raw_jobs(&vec![job; count]).await.expect("jobs are added");
}

/// How many jobs started after the shutdown had begun.
fn started_late(mut events: WorkerEvents) -> usize {
    let mut is_ending = false;
    let mut late = 0;
    while let Some(event) = events.try_next() {
        match event {
            WorkerEvent::ShutdownStarted { .. } => is_ending = true,
            WorkerEvent::JobStarted { .. } if is_ending => late += 1,
            _ => {}
        }
    }
    assert!(is_ending);
    late
}

/// A slot may take a job at the very moment of the request: at most one per slot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_starts_no_new_jobs_and_leaves_no_lock() {
    const SLOTS: usize = 4;
    let db = Database::migrated().await;
    let ledger = Ledger::make(&db).await;
    add_many(&WorkerUtils::connect(&db.url()).unwrap(), 2000).await;
    for round in 0..20 {
        let mut reports = Reports::new();
        let task = reports.task(|_| tokio::time::sleep(Duration::from_millis(5)));
        let mut options = options(&db).concurrency(SLOTS).define_raw_job("many", task);
        if round % 2 == 0 {
            options = options.local_queue(LocalQueueConfig::new(20));
        }
        let events = options.subscribe();
        let worker = Running::start(options).await;
        reports.next().await;
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..10_000))).await;
        worker.stop().await.unwrap();
        let late = started_late(events);
        assert!(late <= SLOTS, "{late} jobs began after the shutdown had");
        assert_eq!(ledger.count(LOCKED_JOBS).await, 0);
    }
    let attempted = "select count(*) from graphile_worker._private_jobs where attempts <> 0";
    assert_eq!(ledger.count(attempted).await, 0, "returned jobs have their attempts restored");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_starts_no_new_jobs_and_returns_running_jobs() {
    const SLOTS: usize = 2;
    let db = Database::migrated().await;
    let ledger = Ledger::make(&db).await;
    add_many(&WorkerUtils::connect(&db.url()).unwrap(), 30).await;
    for _ in 0..10 {
        let mut reports = Reports::new();
        let task = reports.task(|_| std::future::pending::<()>());
        let options = options(&db).concurrency(SLOTS).local_queue(LocalQueueConfig::new(20));
        let options = options.define_raw_job("many", task);
        let events = options.subscribe();
        let worker = Running::start(options).await;
        for _ in 0..SLOTS {
            reports.next().await;
        }
        let start = Instant::now();
        worker.handle.abort();
        worker.join().await.unwrap();
        assert!(start.elapsed() < Duration::from_secs(5), "an abort does not wait for the grace period");
        assert_eq!(started_late(events), 0, "jobs began after the abort");
        assert_eq!(ledger.count(LOCKED_JOBS).await, 0);
    }
    let untouched = "select count(*) from graphile_worker._private_jobs where attempts = 0";
    assert_eq!(ledger.count(untouched).await, 30);
}

/// Another transaction has locked the row of a job, so the job can't be released. The worker ends and stays registered,
/// so that others recover the job.
#[tokio::test]
async fn a_shutdown_does_not_wait_forever_for_a_row_that_another_transaction_locks() {
    let db = Database::migrated().await;
    let ledger = Ledger::make(&db).await;
    let mut reports = Reports::new();
    let go_on = Arc::new(Notify::new());
    let permit = go_on.clone();
    let task = reports.task(move |_| {
        let permit = permit.clone();
        async move { permit.notified().await }
    });
    let options = || options(&db).recovery_threshold(Duration::from_secs(2));
    let worker = Running::start(options().define_raw_job("work", task)).await;
    worker.utils.add_raw_job("work", json!({}), JobSpec::default()).await.unwrap();
    reports.next().await;
    ledger.counted("the job to be locked", LOCKED_JOBS, 1).await;
    let mut other = db.client().await;
    let transaction = other.transaction().await.unwrap();
    transaction.execute("select id from graphile_worker._private_jobs for update", &[]).await.unwrap();
    go_on.notify_one();
    worker.handle.abort();
    worker.join().await.unwrap();
    let registered = "select count(*) from graphile_worker._atta_workers";
    assert_eq!((ledger.count(LOCKED_JOBS).await, ledger.count(registered).await), (1, 1));
    transaction.rollback().await.unwrap();
    let next = Running::start(options().define_raw_job("work", |_| async {})).await;
    wait_until_empty(&next.utils).await;
    next.stop().await.unwrap();
}

/// A task that blocks its thread can't be dropped; its job is returned while it is still running.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_does_not_wait_forever_for_a_task_that_never_yields() {
    let db = Database::migrated().await;
    let ledger = Ledger::make(&db).await;
    let mut reports = Reports::new();
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = std::sync::Arc::new(std::sync::Mutex::new(blocked));
    let task = reports.task(move |_| {
        let blocked = blocked.clone();
        async move {
            // Returns an error when the test drops the other end.
            let _ = blocked.lock().map(|blocked| blocked.recv());
        }
    });
    let options = options(&db).shutdown_grace_period(Duration::ZERO).shutdown_abort_period(Duration::ZERO);
    let worker = Running::start(options.define_raw_job("deaf", task)).await;
    let utils = worker.utils.clone();
    let id = utils.add_raw_job("deaf", json!({}), JobSpec::default()).await.unwrap().id();
    reports.next().await;
    let start = Instant::now();
    worker.stop().await.unwrap();
    println!("a task that never yields held the shutdown up for {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(20));
    assert_eq!(ledger.count(LOCKED_JOBS).await, 0);
    assert_eq!(utils.get_job(id).await.unwrap().unwrap().attempts(), 0);
    drop(release);
}
