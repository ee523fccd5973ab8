//! A worker in a separate process: this test binary, started again.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::process::parent_id;
use std::time::{Duration, Instant};

use atta::{
    BatchTaskHandler, Claims, IntoBatchResult, RetryPolicy, TaskError, WorkerContext, WorkerEvent,
    WorkerEvents, WorkerOptions,
};
use serde::{Deserialize, Serialize};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use crate::ledger::Ledger;
use crate::schedule::THRESHOLD;

/// The variable that contains the [`Setup`] of the process.
pub(crate) const SETUP: &str = "ATTA_CHAOS_WORKER";

/// One job per minute; missed minutes are backfilled.
pub(crate) const CRONTAB: &str = "* * * * * tick ?id=tick&fill=30m";

/// The tasks whose payload is a [`Work`].
pub(crate) const KINDS: [&str; 12] = [
    "plain",
    "blocking",
    "late",
    "slow",
    "retrying",
    "failing",
    "scheduled",
    "replace",
    "preserve",
    "dedupe",
    "queued",
    "tick",
];

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// The worker's name, with the number of its starts.
    pub(crate) instance: String,
    /// Through the proxy.
    pub(crate) url: String,
    /// Not through the proxy.
    pub(crate) ledger_url: String,
    pub(crate) is_durable: bool,
    /// False for the worker with the wrong clock, which would add wrong ticks.
    pub(crate) has_cron: bool,
}

/// The payload of a job: what it does.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Work {
    ms: u64,
    /// How long the task blocks its thread.
    blocks_ms: u64,
    /// How many attempts fail.
    fails: i16,
}

/// Runs a worker until SIGTERM.
pub(crate) fn run(setup: &str) {
    end_with_parent();
    let setup: Setup = serde_json::from_str(setup).expect("a setup");
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Log))
        .expect("the first subscriber");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(work_on(setup));
}

/// Ends this process when its parent has ended for any reason, because nobody else would end it.
pub(crate) fn end_with_parent() {
    let parent = parent_id();
    std::thread::spawn(move || {
        while parent_id() == parent {
            std::thread::sleep(Duration::from_millis(500));
        }
        std::process::exit(1);
    });
}

async fn work_on(setup: Setup) {
    let ledger = Ledger::connect(&setup.ledger_url);
    let mut options = WorkerOptions::default()
        .database_url(&setup.url)
        // The ledger has triggers on the table of jobs, which refuse nothing.
        .trust_triggers(true)
        .concurrency(4)
        .max_pg_conn(2)
        .poll_interval(Duration::from_millis(500))
        .recovery_threshold(THRESHOLD)
        // The test kills workers all the time, so crashes are no reason to fail a job.
        .crash_limit(1000)
        .shutdown_grace_period(Duration::from_secs(30))
        .listen_os_shutdown_signals(true)
        .add_extension(ledger.clone())
        .add_extension(setup.clone())
        .define_batch_job::<Item>();
    if setup.is_durable {
        options = options.claims(Claims::Durable);
    }
    if setup.has_cron {
        options = options.with_cron(CRONTAB).expect("the crontab is right");
    }
    let options = KINDS.iter().fold(options, |options, kind| options.define_raw_job(kind, work));
    let worker = options.init().await.expect("the worker starts");
    let told = tokio::spawn(keep_lost_claims(worker.events(), ledger, worker.id().to_owned()));
    worker.run().await.expect("the worker ends in good order");
    told.abort();
}

fn extensions(ctx: &WorkerContext) -> (Ledger, String) {
    let ledger = ctx.get_ext::<Ledger>().expect("every worker has a ledger");
    let setup = ctx.get_ext::<Setup>().expect("every worker has its setup");
    (ledger.clone(), setup.instance.clone())
}

async fn work(ctx: WorkerContext) -> Result<(), TaskError> {
    let (ledger, instance) = extensions(&ctx);
    let work: Work = ctx.payload().map_err(|error| TaskError::new(error.to_string()))?;
    let run = ledger.begin(&instance, ctx.worker_id(), ctx.job()).await;
    tokio::time::sleep(Duration::from_millis(work.ms)).await;
    block_for(Duration::from_millis(work.blocks_ms));
    let fails = ctx.job().attempts() <= work.fails;
    ledger.end(&run, !fails, &[]).await;
    if fails {
        return Err(TaskError::new("as planned").retry_in(Duration::from_millis(200)));
    }
    Ok(())
}

/// Does not yield: computes for a quarter of the time, and sleeps in its thread for the rest. A computation of seconds
/// would take CPU time from the other workers.
fn block_for(length: Duration) {
    let start = Instant::now();
    while start.elapsed() < length / 4 {
        std::hint::black_box(fastrand::u64(..));
    }
    std::thread::sleep(length.saturating_sub(start.elapsed()));
}

/// One item of a batch. Every seventh fails at first.
#[derive(Serialize, Deserialize)]
struct Item {
    n: i64,
}

impl BatchTaskHandler for Item {
    const IDENTIFIER: &'static str = "batch";

    async fn run_batch(items: Vec<Item>, ctx: WorkerContext) -> impl IntoBatchResult {
        let (ledger, instance) = extensions(&ctx);
        let run = ledger.begin(&instance, ctx.worker_id(), ctx.job()).await;
        let is_first = ctx.job().attempts() == 1;
        let results: Vec<Result<(), &str>> = items
            .iter()
            .map(|item| if is_first && item.n % 7 == 0 { Err("as planned") } else { Ok(()) })
            .collect();
        let done: Vec<i64> =
            items.iter().zip(&results).filter(|(_, result)| result.is_ok()).map(|(item, _)| item.n).collect();
        ledger.end(&run, done.len() == items.len(), &done).await;
        results
    }

    fn retry_policy() -> RetryPolicy {
        RetryPolicy::fixed(Duration::from_millis(300))
    }
}

async fn keep_lost_claims(mut events: WorkerEvents, ledger: Ledger, worker_id: String) {
    while let Some(event) = events.next().await {
        if let WorkerEvent::ClaimLost { job } = event {
            let sql = "insert into chaos.lost_claims (worker_id, job_id) values ($1, $2)";
            ledger.insist(sql, &[&worker_id, &job.id()]).await;
        }
    }
}

/// The worker's log. Errors of writing are ignored.
struct Log;

impl<S: tracing::Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if !event.metadata().target().starts_with("atta") {
            return;
        }
        let mut line = format!("{} {}", chrono::Utc::now().format("%H:%M:%S%.3f"), event.metadata().level());
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            // Writing to a string never fails.
            let _ = write!(line, " {field}={value:?}");
        });
        // A full disk must not stop the worker.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}
