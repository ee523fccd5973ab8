//! Our workers and Graphile Worker's at work on one schema at the same time.

use std::process::{Command, Stdio};
use std::time::Duration;

use atta::{JobFilter, JobSpec, JobSpecBuilder, WorkerContext, WorkerHandle, WorkerOptions, WorkerUtils};
use chrono::{DateTime, Utc};
use serde_json::json;
use testkit::{DEADLINE, Database, Process, wait_for};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use crate::node::folder;

/// One worker of each kind.
struct Pair {
    client: Client,
    utils: WorkerUtils,
    handle: WorkerHandle,
    ours: JoinHandle<atta::Result<()>>,
    _node: Process,
}

impl Pair {
    async fn start(db: &Database, version: &str) -> Pair {
        let client = db.client().await;
        let sql = "create table public.ledger (
                     id bigserial primary key,
                     by text not null,
                     job_id bigint not null,
                     attempt smallint not null,
                     started_at timestamptz not null default clock_timestamp(),
                     ended_at timestamptz
                   );
                   create table public.gate (is_open boolean)";
        client.batch_execute(sql).await.expect("the ledger is made");
        let worker = WorkerOptions::default()
            .database_url(db.url())
            .concurrency(4)
            .max_pg_conn(8)
            .recovery_threshold(Duration::from_secs(1))
            .poll_interval(Duration::from_millis(200))
            .define_raw_job("atta_step", step)
            .init()
            .await
            .expect("our worker starts");
        let mut node = Command::new(folder().join("node_modules/node/bin/node"));
        node.arg("beside.js").args([version, &db.url()]).current_dir(folder()).stderr(Stdio::null());
        Pair {
            client,
            utils: worker.create_utils(),
            handle: worker.handle(),
            ours: tokio::spawn(async move { worker.run().await }),
            _node: Process::start(&mut node),
        }
    }

    async fn add(&self, task: &str, payload: serde_json::Value, spec: impl Into<JobSpec>) -> i64 {
        self.utils.add_raw_job(task, payload, spec).await.expect("a job is added").id()
    }

    async fn count(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.expect("it can be counted").get(0)
    }

    async fn until_no_job_is_left(&self) {
        let done = wait_for("all jobs to be done", || async {
            (self.utils.count_jobs().await.expect("jobs are counted").total() == 0).then_some(())
        });
        if tokio::time::timeout(DEADLINE / 2, done).await.is_err() {
            panic!("jobs are left: {:#?}", self.utils.list_jobs(&JobFilter::default()).await);
        }
        let twice = "select count(*) from public.ledger where attempt <> 1 or ended_at is null";
        assert_eq!(self.count(twice).await, 0, "each ran once");
    }

    /// Jobs that ran, by whom.
    async fn ran(&self, by: &str) -> i64 {
        let sql = "select count(distinct job_id) from public.ledger where by = $1";
        self.client.query_one(sql, &[&by]).await.expect("the ledger can be read").get(0)
    }

    async fn end(self) {
        self.handle.request_shutdown();
        self.ours.await.expect("our worker does not panic").expect("our worker ends in good order");
    }
}

/// Our side of the ledger.
async fn step(ctx: WorkerContext) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let client = ctx.pool().get().await?;
    let sql = "insert into public.ledger (by, job_id, attempt) values ('atta', $1, $2) returning id";
    let row = client.query_one(sql, &[&ctx.job().id(), &ctx.job().attempts()]).await?;
    let payload: serde_json::Value = ctx.payload()?;
    tokio::time::sleep(Duration::from_millis(payload["ms"].as_u64().unwrap_or(0))).await;
    let sql = "update public.ledger set ended_at = clock_timestamp() where id = $1";
    client.execute(sql, &[&row.get::<_, i64>(0)]).await?;
    Ok(())
}

/// Each side adds jobs for the other, and runs those that the other has added.
async fn each_runs_the_others_jobs(version: &str) {
    let db = Database::migrated().await;
    let pair = Pair::start(&db, version).await;
    for n in 0..50 {
        pair.add("node_step", json!({ "n": n }), JobSpec::default()).await;
    }
    pair.add("node_adds", json!({ "task": "atta_step", "count": 50 }), JobSpec::default()).await;
    let added = "select count(*) from public.ledger where by = 'atta'";
    wait_for("Node's jobs to arrive", || async { (pair.count(added).await == 50).then_some(()) }).await;
    pair.until_no_job_is_left().await;
    assert_eq!((pair.ran("node").await, pair.ran("atta").await), (51, 50));
    pair.end().await;
}

#[tokio::test]
async fn graphile_worker_0_17_and_ours_run_each_others_jobs() {
    each_runs_the_others_jobs("0.17.3").await;
}

#[tokio::test]
async fn graphile_worker_0_18_and_ours_run_each_others_jobs() {
    each_runs_the_others_jobs("0.18.0").await;
}

/// Never two at a time. As between workers of Graphile's with different tasks, each takes the first that it can run,
/// so the order is kept on each side.
#[tokio::test]
async fn a_queue_with_jobs_for_both_stays_serial() {
    let db = Database::migrated().await;
    let pair = Pair::start(&db, "0.18.0").await;
    let mut added = Vec::new();
    for n in 0..60 {
        let task = if n % 3 == 0 { "node_step" } else { "atta_step" };
        for queue in ["one", "other"] {
            let spec = JobSpecBuilder::new().queue_name(queue);
            added.push((queue, pair.add(task, json!({ "ms": n % 4 }), spec).await));
        }
    }
    pair.until_no_job_is_left().await;
    let sql = "select by, job_id, started_at, ended_at from public.ledger order by id";
    let rows = pair.client.query(sql, &[]).await.expect("the ledger can be read");
    for queue in ["one", "other"] {
        let ids: Vec<i64> = added.iter().filter(|(name, _)| *name == queue).map(|(_, id)| *id).collect();
        let runs: Vec<_> = rows.iter().filter(|row| ids.contains(&row.get(1))).collect();
        for two in runs.windows(2) {
            let (end, start): (DateTime<Utc>, DateTime<Utc>) = (two[0].get(3), two[1].get(2));
            assert!(end <= start, "{end} {start}: two jobs of queue {queue} at a time");
        }
        for by in ["node", "atta"] {
            let order: Vec<i64> =
                runs.iter().filter(|row| row.get::<_, &str>(0) == by).map(|row| row.get(1)).collect();
            assert!(order.is_sorted(), "{by}, queue {queue}: {order:?}");
        }
    }
    assert_eq!((pair.ran("node").await, pair.ran("atta").await), (40, 80));
    pair.end().await;
}

#[tokio::test]
async fn keyed_adds_of_both_meet_in_one_job() {
    for version in ["0.17.3", "0.18.0"] {
        let db = Database::migrated().await;
        let pair = Pair::start(&db, version).await;
        let later = Utc::now() + chrono::TimeDelta::hours(1);
        let spec = json!({ "jobKey": "shared", "runAt": later });
        let payload = json!({ "task": "atta_step", "count": 50, "spec": spec });
        let adding = pair.add("node_adds", payload, JobSpec::default()).await;
        for n in 0..50 {
            let spec = JobSpecBuilder::new().job_key("shared").run_at(later);
            pair.add("atta_step", json!({ "n": n }), spec).await;
        }
        wait_for("Node to have added its share", || async {
            pair.utils.get_job(adding).await.expect("a job is read").is_none().then_some(())
        })
        .await;
        let sql = "select count(*) from graphile_worker._private_jobs where key = 'shared'";
        assert_eq!(pair.count(sql).await, 1, "{version}");
        assert_eq!(pair.ran("atta").await, 0, "{version}");
        let sql = "select (graphile_worker.add_job('atta_step', job_key => 'shared', run_at => now())).id";
        let id = pair.count(sql).await;
        pair.until_no_job_is_left().await;
        let sql = "select job_id from public.ledger where by = 'atta'";
        assert_eq!(pair.count(sql).await, id, "{version}");
        pair.end().await;
    }
}

/// Our workers bury one of their own meanwhile, so it is not for want of a recovery.
#[tokio::test]
async fn the_locks_of_a_node_worker_are_left_alone() {
    for version in ["0.17.3", "0.18.0"] {
        let db = Database::migrated().await;
        let pair = Pair::start(&db, version).await;
        let held = pair.add("node_holds", json!({}), JobSpecBuilder::new().queue_name("held")).await;
        wait_for("Node to take the job", || async { (pair.ran("node").await == 1).then_some(()) }).await;
        let behind = pair.add("atta_step", json!({}), JobSpecBuilder::new().queue_name("held")).await;
        for n in 0..3 {
            let sql = "insert into graphile_worker._atta_workers (id, host, pid, version, task_identifiers,
                         slots, heartbeat_at, recovery_threshold)
                       values ('atta-dead-' || $1, 'elsewhere', 1, '0', '{}', 1, now() - interval '1 hour',
                         interval '1 second')";
            pair.client.execute(sql, &[&n.to_string()]).await.expect("a dead worker");
            let dead = "select count(*) from graphile_worker._atta_workers where id like 'atta-dead-%'";
            wait_for("the dead to be buried", || async { (pair.count(dead).await == 0).then_some(()) }).await;
        }
        let job = pair.utils.get_job(held).await.expect("a job is read").expect("it is held");
        assert!(job.locked_by().is_some_and(|owner| owner.starts_with("pool-")), "{job:?}");
        assert_eq!(pair.ran("atta").await, 0, "{version}: {behind} is behind it in its queue");
        pair.client.execute("insert into public.gate values (true)", &[]).await.expect("the gate opens");
        pair.until_no_job_is_left().await;
        assert_eq!((pair.ran("node").await, pair.ran("atta").await), (1, 1), "{version}");
        pair.end().await;
    }
}
