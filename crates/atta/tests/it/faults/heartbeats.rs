//! A worker that is alive is never declared dead, however busy it is.

use std::time::Duration;

use atta::{Claims, JobSpec, WorkerContext, WorkerEvent, WorkerEvents, WorkerOptions};
use serde_json::json;
use testkit::{Database, Proxy};

use super::support::{Tally, event};
use crate::worker::support::{Reports, Running, options, wait_until_empty};

/// Four times the threshold: a worker that sends no heartbeat for this long is declared dead.
const LONG: Duration = Duration::from_secs(4);

fn quick_to_judge(db: &Database) -> WorkerOptions {
    options(db)
        .recovery_threshold(Duration::from_secs(1))
        .poll_interval(Duration::from_millis(200))
        .shutdown_grace_period(testkit::DEADLINE)
}

/// A worker with a task that takes long, and a second worker that would recover its job.
struct Pair {
    worker: Running,
    heir: Running,
    received: WorkerEvents,
    tally: Tally,
}

impl Pair {
    async fn start(db: &Database, change: impl FnOnce(WorkerOptions) -> WorkerOptions) -> Pair {
        let tally = Tally::default();
        let noted = tally.clone();
        let task = move |ctx: WorkerContext| {
            noted.note(&ctx);
            async move {
                // Uses a connection of the worker's pool, as tasks do.
                let client = ctx.pool().get().await?;
                tokio::time::sleep(LONG).await;
                client.simple_query("select 1").await?;
                Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
            }
        };
        let worker = Running::start(change(quick_to_judge(db)).define_raw_job("long", task.clone())).await;
        for _ in 0..4 {
            worker.utils.add_raw_job("long", json!({}), JobSpec::default()).await.expect("jobs are added");
        }
        testkit::wait_for("four jobs to begin", || async { (tally.jobs() == 4).then_some(()) }).await;
        let options = quick_to_judge(db).define_raw_job("long", task);
        let received = options.subscribe();
        Pair { worker, heir: Running::start(options).await, received, tally }
    }

    /// Checks that no worker was declared dead, and that no job ran twice.
    async fn end(mut self) {
        wait_until_empty(&self.heir.utils).await;
        assert_eq!(self.tally.repeated(), 0, "a job of a living worker was run again");
        while let Some(event) = self.received.try_next() {
            assert!(!matches!(event, WorkerEvent::WorkerRecovered { .. }), "{event:?}");
        }
        self.worker.stop().await.expect("it ends in good order");
        self.heir.stop().await.expect("it ends in good order");
    }
}

#[tokio::test]
async fn jobs_longer_than_the_threshold_are_left_to_their_worker() {
    let db = Database::migrated().await;
    Pair::start(&db, |options| options).await.end().await;
}

#[tokio::test]
async fn a_worker_that_drains_keeps_sending_heartbeats() {
    let db = Database::migrated().await;
    let pair = Pair::start(&db, |options| options).await;
    pair.worker.handle.request_shutdown();
    pair.end().await;
}

#[tokio::test]
async fn a_worker_whose_tasks_use_all_its_connections_keeps_sending_heartbeats() {
    let db = Database::migrated().await;
    let pair = Pair::start(&db, |options| options.max_pg_conn(4)).await;
    pair.end().await;
}

#[tokio::test]
async fn heartbeats_continue_after_some_have_failed() {
    let db = Database::migrated().await;
    let (proxy, url) = Proxy::before(&db.url());
    let tally = Tally::default();
    let noted = tally.clone();
    let task = move |ctx: WorkerContext| {
        noted.note(&ctx);
        tokio::time::sleep(LONG)
    };
    // Durable claims: a held job may be taken by the other worker when its connection is lost.
    let options = || quick_to_judge(&db).recovery_threshold(Duration::from_secs(2)).claims(Claims::Durable);
    let worker = Running::start(options().database_url(url).define_raw_job("long", task.clone())).await;
    let id = worker.utils.add_raw_job("long", json!({}), JobSpec::default()).await.unwrap().id();
    testkit::wait_for("the job to begin", || async { (tally.jobs() == 1).then_some(()) }).await;
    let heir = Running::start(options().define_raw_job("long", task)).await;
    for outage in 1..=3 {
        proxy.go_away();
        let tries = || async { (proxy.refused() >= 3 * outage).then_some(()) };
        testkit::wait_for("the worker to try in vain", tries).await;
        proxy.come_back();
        let sql = "select extract(epoch from now() - heartbeat_at)::float8
                   from graphile_worker._atta_workers where id = $1";
        let client = db.client().await;
        testkit::wait_for("the worker to send heartbeats again", || async {
            let row = client.query_opt(sql, &[&worker.handle.worker_id()]).await.unwrap();
            (row.expect("it is not taken for dead").get::<_, f64>(0) < 0.1).then_some(())
        })
        .await;
    }
    wait_until_empty(&heir.utils).await;
    assert_eq!(tally.attempts_of(id), [1]);
    worker.stop().await.unwrap();
    heir.stop().await.unwrap();
}

/// Fails every heartbeat, and nothing else.
const NO_HEARTBEATS: &str = "create function public.no_heartbeat() returns trigger language plpgsql as
      'begin raise exception ''no heartbeats''; end';
    create trigger no_heartbeat before update of heartbeat_at on graphile_worker._atta_workers
      for each row execute function public.no_heartbeat()";

/// Others may declare the worker dead at any time, and recover even a job that it has just claimed.
#[tokio::test]
async fn a_worker_without_heartbeats_begins_no_durable_job() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let mut reports = Reports::new();
    let options =
        quick_to_judge(&db).claims(Claims::Durable).define_raw_job("task", reports.task(|_| async {}));
    let mut received = options.subscribe();
    let worker = Running::start(options).await;
    worker.utils.add_raw_job("task", json!({}), JobSpec::default()).await.unwrap();
    reports.next().await;
    client.batch_execute(NO_HEARTBEATS).await.unwrap();
    testkit::wait_for("the heartbeat to be overdue", || async {
        let sql = "select now() - heartbeat_at > interval '1.2 seconds' from graphile_worker._atta_workers";
        client.query_one(sql, &[]).await.unwrap().get::<_, bool>(0).then_some(())
    })
    .await;
    while received.try_next().is_some() {}
    let id = worker.utils.add_raw_job("task", json!({}), JobSpec::default()).await.unwrap().id();
    event(&mut received, |event| {
        assert!(!matches!(event, WorkerEvent::JobStarted { .. }), "a job began, which others may recover");
        matches!(event, WorkerEvent::ClaimFailed { .. }).then_some(())
    })
    .await;
    assert!(reports.begun().is_none());
    client.batch_execute("drop function public.no_heartbeat() cascade").await.unwrap();
    assert_eq!(reports.next().await.id(), id, "the worker goes on with its next heartbeat");
    worker.stop().await.unwrap();
}

/// Graphile's rule ignores locks that are four hours old, whoever has them.
#[tokio::test]
async fn locks_of_a_job_that_runs_for_hours_are_renewed() {
    let db = Database::migrated().await;
    let reports = Reports::new();
    let task = reports.task(|_| std::future::pending::<()>());
    let options = options(&db).poll_interval(Duration::from_millis(20)).define_raw_job("endless", task);
    let worker = Running::start(options.shutdown_grace_period(Duration::ZERO)).await;
    let spec = JobSpec { queue_name: Some("slow".into()), ..JobSpec::default() };
    worker.utils.add_raw_job("endless", json!({}), spec).await.unwrap();
    let client = db.client().await;
    let count = async |sql: &str| client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0);
    let locked = "select count(*)
                  from graphile_worker._private_jobs as job
                  join graphile_worker._private_job_queues as queue on queue.id = job.job_queue_id
                  where job.locked_at > now() - interval '1 minute'
                    and queue.locked_at > now() - interval '1 minute'";
    testkit::wait_for("the job to run", || async { (count(locked).await == 1).then_some(()) }).await;
    let sql = "update graphile_worker._private_jobs set locked_at = now() - interval '3 hours';
               update graphile_worker._private_job_queues set locked_at = now() - interval '3 hours'";
    client.batch_execute(sql).await.unwrap();
    testkit::wait_for("its locks to be renewed", || async { (count(locked).await == 1).then_some(()) }).await;
    worker.stop().await.unwrap();
}
