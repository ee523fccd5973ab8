//! Worker processes to kill, and the ledger in which their tasks record what they did.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atta::{Claims, LocalQueueConfig, WorkerContext, WorkerEvent, WorkerEvents, WorkerOptions, WorkerUtils};
use serde::{Deserialize, Serialize};
use testkit::{Database, Process, wait_for};

use crate::worker::support::claims;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

/// The variable that contains the [`Setup`] of a worker process.
const CHILD: &str = "ATTA_CHILD";

/// The setup of a worker in these tests, in this process or in a separate one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) url: String,
    /// Task identifiers; all of them run [`work`].
    pub(crate) tasks: Vec<String>,
    pub(crate) slots: usize,
    pub(crate) local_queue: usize,
    pub(crate) threshold: Duration,
    pub(crate) grace: Duration,
    pub(crate) poll: Duration,
    pub(crate) hold_budget: Duration,
    /// Whether no jobs are held. The jobs of a killed worker are then found by their locks, and have lost their
    /// attempt.
    pub(crate) is_durable: bool,
}

impl Setup {
    pub(crate) fn new(db: &Database) -> Setup {
        Setup {
            url: db.url(),
            tasks: vec!["work".into()],
            slots: 3,
            local_queue: 0,
            threshold: Duration::from_secs(2),
            grace: Duration::from_secs(30),
            poll: Duration::from_millis(200),
            hold_budget: Duration::from_millis(50),
            is_durable: claims() == Claims::Durable,
        }
    }

    pub(crate) fn options(&self) -> WorkerOptions {
        let mut options = WorkerOptions::default()
            .database_url(&self.url)
            .concurrency(self.slots)
            .max_pg_conn(self.slots + 3)
            .poll_interval(self.poll)
            .hold_budget(self.hold_budget)
            .recovery_threshold(self.threshold)
            .shutdown_grace_period(self.grace)
            .shutdown_abort_period(Duration::ZERO)
            .listen_os_shutdown_signals(std::env::var_os(CHILD).is_some());
        if self.is_durable {
            options = options.claims(Claims::Durable);
        }
        if self.local_queue > 0 {
            options = options.local_queue(LocalQueueConfig::new(self.local_queue));
        }
        self.tasks.iter().fold(options, |options, task| options.define_raw_job(task, work))
    }

    /// Starts a worker in a separate process.
    pub(crate) fn spawn(&self) -> Process {
        let setup = serde_json::to_string(self).expect("a setup is JSON");
        Process::of_this_test("faults::support::worker_process", CHILD, &setup)
    }
}

#[test]
#[ignore = "not a test, but the worker process that tests start and kill"]
fn worker_process() {
    let Ok(setup) = std::env::var(CHILD) else { return };
    let setup: Setup = serde_json::from_str(&setup).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let worker = setup.options().init().await.unwrap();
        let told = tokio::spawn(keep_events(worker.events(), worker.create_utils()));
        worker.run().await.unwrap();
        told.abort();
    });
}

/// Records the lost claims that the worker of this process reports.
async fn keep_events(mut events: WorkerEvents, utils: WorkerUtils) {
    while let Some(event) = events.next().await {
        let WorkerEvent::ClaimLost { job } = event else { continue };
        let client = utils.pool().get().await.expect("a connection");
        let sql = "insert into public.lost_claims (pid, job_id) values ($1, $2)";
        let values: [(&(dyn ToSql + Sync), Type); 2] = [(&pid(), Type::INT4), (&job.id(), Type::INT8)];
        client.execute_typed(sql, &values).await.expect("a lost claim is written down");
    }
}

/// The payload of a job in these tests: what it does.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Work {
    /// How long it takes.
    ms: u64,
    /// How long it blocks its thread, without yielding.
    blocks_ms: u64,
    /// How many such jobs have to run in its process before it blocks.
    blocks_beside: usize,
    /// It ends only in the process with this id.
    only_in: Option<u32>,
    /// It ends its process.
    kills: bool,
    /// It does nothing and is not recorded.
    silent: bool,
}

/// The task of these tests: records its start, does what its payload says, and records its end. It uses no prepared
/// statements, which some poolers do not support.
pub(crate) async fn work(ctx: WorkerContext) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let work: Work = ctx.payload()?;
    if work.silent {
        return Ok(());
    }
    let job = ctx.job();
    let sql = "insert into public.ledger (job_id, attempt, pid, worker_id, last_error, is_held)
               values ($1, $2, $3, $4, $5, $6) returning id";
    let run: [(&(dyn ToSql + Sync), Type); 6] = [
        (&job.id(), Type::INT8),
        (&job.attempts(), Type::INT2),
        (&pid(), Type::INT4),
        (&ctx.worker_id(), Type::TEXT),
        (&job.last_error(), Type::TEXT),
        (&job.locked_by().is_none(), Type::BOOL),
    ];
    let row = ctx.pool().get().await?.query_typed_one(sql, &run).await?;
    if work.kills {
        std::process::abort();
    }
    if work.only_in.is_some_and(|only| only != std::process::id()) {
        std::future::pending::<()>().await;
    }
    if work.blocks_ms > 0 {
        wait_beside(work.blocks_beside).await;
        std::thread::sleep(Duration::from_millis(work.blocks_ms));
    }
    tokio::time::sleep(Duration::from_millis(work.ms)).await;
    let sql = "update public.ledger set ended_at = clock_timestamp() where id = $1";
    ctx.pool().get().await?.execute_typed(sql, &[(&row.get::<_, i64>(0), Type::INT8)]).await?;
    Ok(())
}

/// Waits until this number of jobs of this process is here. It keeps its thread busy: if one job blocked a thread while
/// another one waits for a reply of the database, no thread might read that reply, and the other job would not start.
async fn wait_beside(count: usize) {
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    STARTED.fetch_add(1, Ordering::SeqCst);
    while STARTED.load(Ordering::SeqCst) < count {
        std::thread::sleep(Duration::from_millis(1));
        tokio::task::yield_now().await;
    }
}

fn pid() -> i32 {
    i32::try_from(std::process::id()).expect("process ids are small")
}

/// One run of a job.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) job_id: i64,
    pub(crate) attempt: i16,
    pub(crate) pid: u32,
    pub(crate) worker_id: String,
    pub(crate) last_error: Option<String>,
    /// Whether its claim was held when it started.
    pub(crate) is_held: bool,
    pub(crate) has_ended: bool,
}

/// What all workers of a test have recorded.
pub(crate) struct Ledger {
    pub(crate) client: Client,
}

impl Ledger {
    pub(crate) async fn make(db: &Database) -> Ledger {
        let client = db.client().await;
        let sql = "create table public.ledger (
                     id bigserial primary key,
                     job_id bigint not null,
                     attempt smallint not null,
                     pid integer not null,
                     worker_id text not null,
                     last_error text,
                     is_held boolean not null,
                     started_at timestamptz not null default clock_timestamp(),
                     ended_at timestamptz
                   );
                   create table public.lost_claims (pid integer not null, job_id bigint not null)";
        client.batch_execute(sql).await.expect("the ledger is made");
        Ledger { client }
    }

    /// All runs in the order of their starts.
    pub(crate) async fn runs(&self) -> Vec<Run> {
        let sql = "select job_id, attempt, pid, worker_id, last_error, is_held, ended_at
                   from public.ledger order by id";
        let rows = self.client.query(sql, &[]).await.expect("the ledger can be read");
        rows.iter()
            .map(|row| Run {
                job_id: row.get(0),
                attempt: row.get(1),
                pid: u32::try_from(row.get::<_, i32>(2)).expect("a process id"),
                worker_id: row.get(3),
                last_error: row.get(4),
                is_held: row.get(5),
                has_ended: row.get::<_, Option<chrono::DateTime<chrono::Utc>>>(6).is_some(),
            })
            .collect()
    }

    /// The runs of one job.
    pub(crate) async fn runs_of(&self, job_id: i64) -> Vec<Run> {
        self.runs().await.into_iter().filter(|run| run.job_id == job_id).collect()
    }

    /// Waits until a process has started this number of jobs.
    pub(crate) async fn started_in(&self, pid: u32, count: usize) {
        wait_for("jobs to begin", || async {
            let begun = self.runs().await.iter().filter(|run| run.pid == pid).count();
            (begun >= count).then_some(())
        })
        .await;
    }

    pub(crate) async fn count(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.expect("it can be counted").get(0)
    }

    /// Waits until a count has this value.
    pub(crate) async fn counted(&self, what: &str, sql: &str, wanted: i64) {
        wait_for(what, || async { (self.count(sql).await == wanted).then_some(()) }).await;
    }
}

pub(crate) const LOCKED_JOBS: &str =
    "select count(*) from graphile_worker._private_jobs where locked_at is not null or locked_by is not null";
pub(crate) const LOCKED_QUEUES: &str = "select count(*) from graphile_worker._private_job_queues
                                        where locked_at is not null or locked_by is not null";
pub(crate) const JOBS: &str = "select count(*) from graphile_worker._private_jobs";

/// How often each job ran in this process, by attempt.
#[derive(Clone, Default)]
pub(crate) struct Tally {
    runs: Arc<Mutex<HashMap<i64, Vec<i16>>>>,
}

impl Tally {
    pub(crate) fn note(&self, ctx: &WorkerContext) {
        let mut runs = self.runs.lock().expect("nothing panics with it");
        runs.entry(ctx.job().id()).or_default().push(ctx.job().attempts());
    }

    pub(crate) fn attempts_of(&self, job_id: i64) -> Vec<i16> {
        self.runs.lock().expect("nothing panics with it").get(&job_id).cloned().unwrap_or_default()
    }

    /// How many jobs ran.
    pub(crate) fn jobs(&self) -> usize {
        self.runs.lock().expect("nothing panics with it").len()
    }

    /// How many jobs ran more than once.
    pub(crate) fn repeated(&self) -> usize {
        self.runs.lock().expect("nothing panics with it").values().filter(|runs| runs.len() > 1).count()
    }
}

/// The next event for which `pick` returns a value.
pub(crate) async fn event<T>(events: &mut WorkerEvents, pick: impl Fn(&WorkerEvent) -> Option<T>) -> T {
    let picked = async {
        loop {
            let event = events.next().await.expect("the worker lives");
            if let Some(picked) = pick(&event) {
                return picked;
            }
        }
    };
    tokio::time::timeout(testkit::DEADLINE, picked).await.expect("the event comes before the deadline")
}
