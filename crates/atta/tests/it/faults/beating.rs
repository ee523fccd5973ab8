//! Living workers are never taken for dead, whatever keeps them busy.

use std::time::{Duration, Instant};

use atta::{JobSpec, WorkerContext, WorkerEvent, WorkerEvents, WorkerOptions};
use serde_json::json;
use testkit::Database;

use super::support::Tally;
use crate::worker::support::{Running, options, wait_until_empty};

/// Four times the threshold: whoever does not beat meanwhile is dead.
const LONG: Duration = Duration::from_secs(4);

fn quick_to_judge(db: &Database) -> WorkerOptions {
    options(db)
        .recovery_threshold(Duration::from_secs(1))
        .poll_interval(Duration::from_millis(200))
        .shutdown_grace_period(testkit::DEADLINE)
}

/// A worker with a task that takes long, and an heir that waits for its death.
struct Pair {
    worker: Running,
    heir: Running,
    heard: WorkerEvents,
    tally: Tally,
}

impl Pair {
    async fn start(db: &Database, change: impl FnOnce(WorkerOptions) -> WorkerOptions) -> Pair {
        let tally = Tally::default();
        let noted = tally.clone();
        let task = move |ctx: WorkerContext| {
            noted.note(&ctx);
            async move {
                // With a connection of the worker's pool, as tasks do.
                let client = ctx.pool().get().await?;
                tokio::time::sleep(LONG).await;
                client.simple_query("select 1").await?;
                Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
            }
        };
        let worker = Running::start(change(quick_to_judge(db)).define_raw_job("long", task.clone())).await;
        for _ in 0..4 {
            worker.utils.add_raw_job("long", json!({}), JobSpec::default()).await.unwrap();
        }
        testkit::wait_for("four jobs to begin", || async { (tally.jobs() == 4).then_some(()) }).await;
        let options = quick_to_judge(db).define_raw_job("long", task);
        let heard = options.subscribe();
        Pair { worker, heir: Running::start(options).await, heard, tally }
    }

    /// Nobody died, and nothing ran twice.
    async fn end(mut self) {
        wait_until_empty(&self.heir.utils).await;
        assert_eq!(self.tally.repeated(), 0, "a job of a living worker was run again");
        while let Some(event) = self.heard.try_next() {
            assert!(!matches!(event, WorkerEvent::WorkerRecovered { .. }), "{event:?}");
        }
        self.worker.stop().await.unwrap();
        self.heir.stop().await.unwrap();
    }
}

#[tokio::test]
async fn jobs_longer_than_the_threshold_are_left_to_their_worker() {
    let db = Database::migrated().await;
    Pair::start(&db, |options| options).await.end().await;
}

#[tokio::test]
async fn a_worker_that_drains_goes_on_beating() {
    let db = Database::migrated().await;
    let pair = Pair::start(&db, |options| options).await;
    pair.worker.handle.request_shutdown();
    pair.end().await;
}

#[tokio::test]
async fn a_worker_whose_tasks_have_all_its_connections_goes_on_beating() {
    let db = Database::migrated().await;
    let pair = Pair::start(&db, |options| options.max_pg_conn(4)).await;
    pair.end().await;
}

#[tokio::test]
async fn failed_heartbeats_do_not_end_the_beating() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let tally = Tally::default();
    let noted = tally.clone();
    let task = move |ctx: WorkerContext| {
        noted.note(&ctx);
        tokio::time::sleep(LONG)
    };
    let two_seconds = |options: WorkerOptions| options.recovery_threshold(Duration::from_secs(2));
    let worker = Running::start(two_seconds(quick_to_judge(&db)).define_raw_job("long", task.clone())).await;
    let id = worker.utils.add_raw_job("long", json!({}), JobSpec::default()).await.unwrap().id();
    testkit::wait_for("the job to begin", || async { (tally.jobs() == 1).then_some(()) }).await;
    let heir = Running::start(two_seconds(quick_to_judge(&db)).define_raw_job("long", task)).await;
    let start = Instant::now();
    while start.elapsed() < LONG - Duration::from_millis(500) {
        let sql = "select count(pg_terminate_backend(pid)) from pg_stat_activity
                   where datname = current_database() and pid <> pg_backend_pid()";
        client.query_one(sql, &[]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    wait_until_empty(&worker.utils).await;
    assert_eq!(tally.attempts_of(id), [1]);
    worker.stop().await.unwrap();
    heir.stop().await.unwrap();
}
