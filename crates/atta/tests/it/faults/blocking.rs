//! Application code that blocks: handlers that block their threads, and futures of `run` that are dropped half-way.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atta::{Claims, Job, JobSpec, JobSpecBuilder, RawJobSpec, WorkerUtils};
use serde_json::json;
use testkit::Database;
use tokio::sync::Semaphore;

use super::support::{JOBS, LOCKED_JOBS, LOCKED_QUEUES, Ledger, Run, Setup};
use crate::worker::support::{Reports, claims, options};

/// The loop and the heartbeats run in a separate thread. Handlers that block all threads of the runtime for six times
/// the recovery threshold keep their jobs, and no other worker runs these.
#[tokio::test]
async fn handlers_that_block_all_threads_keep_their_jobs() {
    let db = Database::migrated().await;
    let ledger = Ledger::make(&db).await;
    let threshold = Duration::from_secs(2);
    let setup = Setup { slots: THREADS, threshold, is_durable: true, ..Setup::new(&db) };
    let _blocked = setup.spawn();
    let queued = JobSpecBuilder::new().queue_name("one by one").build();
    let jobs = add_blocking(&db, 6 * threshold, [JobSpec::default(), queued]).await;
    run_once_beside_an_idle_worker(&setup, &ledger, &jobs).await;
}

/// The claims run in that thread, too. The server ends a transaction that is idle for ten seconds, so a held claim is
/// lost unless the worker promotes it while its handlers block all threads of the runtime. The recovery threshold is
/// long, so that only the end of the transaction could free the jobs.
#[tokio::test]
async fn handlers_that_block_all_threads_keep_their_held_jobs() {
    if claims() == Claims::Durable {
        return;
    }
    let db = Database::migrated().await;
    let ledger = Ledger::make(&db).await;
    let setup = Setup {
        tasks: vec!["work".into(), "quick".into()],
        slots: THREADS,
        threshold: Duration::from_secs(600),
        // The longest one: the jobs block their threads before it is over.
        hold_budget: Duration::from_secs(1),
        ..Setup::new(&db)
    };
    let _blocked = setup.spawn();
    // The first claims of a worker are durable.
    let utils = WorkerUtils::connect(&db.direct_url()).unwrap();
    testkit::wait_for("the worker to hold jobs", || async {
        let job = utils.add_raw_job("quick", json!({}), JobSpec::default()).await.unwrap();
        ledger.counted("a quick job to be done", JOBS, 0).await;
        ledger.runs_of(job.id()).await[0].is_held.then_some(())
    })
    .await;
    let jobs = add_blocking(&db, Duration::from_secs(13), [JobSpec::default(), JobSpec::default()]).await;
    let runs = run_once_beside_an_idle_worker(&setup, &ledger, &jobs).await;
    assert!(runs.iter().all(|run| run.is_held), "{runs:#?}");
}

/// The processes of workers have this number of threads for tasks.
const THREADS: usize = 2;

/// Adds jobs that block all threads of a process at the same time, for this long.
async fn add_blocking(db: &Database, length: Duration, specs: [JobSpec; THREADS]) -> Vec<Job> {
    let utils = WorkerUtils::connect(&db.direct_url()).unwrap();
    let work = json!({ "blocks_ms": u64::try_from(length.as_millis()).unwrap(), "blocks_beside": THREADS });
    let specs = specs.map(|spec| RawJobSpec::new("work", &work, spec).unwrap());
    utils.add_raw_jobs(&specs).await.unwrap()
}

/// Starts another process once the jobs run. It has nothing to do, and would run a job as soon as it is free.
async fn run_once_beside_an_idle_worker(setup: &Setup, ledger: &Ledger, jobs: &[Job]) -> Vec<Run> {
    testkit::wait_for("the jobs to run", || async {
        (runs_of(ledger, jobs).await.len() == jobs.len()).then_some(())
    })
    .await;
    let _idle = setup.spawn();
    ledger.counted("all jobs to be done", JOBS, 0).await;
    let runs = runs_of(ledger, jobs).await;
    let ran: HashSet<i64> = runs.iter().map(|run| run.job_id).collect();
    assert_eq!((runs.len(), ran.len()), (jobs.len(), jobs.len()), "each job runs once: {runs:#?}");
    runs
}

async fn runs_of(ledger: &Ledger, jobs: &[Job]) -> Vec<Run> {
    let is_one = |run: &Run| jobs.iter().any(|job| job.id() == run.job_id);
    ledger.runs().await.into_iter().filter(is_one).collect()
}

/// `tokio::select!` with a signal drops the future of `run`. No other worker exists that could recover the jobs, and
/// the threshold is an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_future_is_dropped_returns_its_jobs_and_stops_its_heartbeats() {
    let db = Database::migrated().await;
    let ledger = Ledger::make(&db).await;
    let utils = WorkerUtils::connect(&db.direct_url()).unwrap();
    let mut reports = Reports::new();
    let gate = Arc::new(Semaphore::new(0));
    let task = reports.task(move |_| {
        let gate = gate.clone();
        async move { drop(gate.acquire().await) }
    });
    let options = options(&db).recovery_threshold(Duration::from_secs(3600)).define_raw_job("hangs", task);
    let worker = options.init().await.unwrap();
    for queue in [None, Some("q")] {
        let spec = queue.map_or_else(JobSpecBuilder::new, |queue| JobSpecBuilder::new().queue_name(queue));
        utils.add_raw_job("hangs", 1, spec).await.unwrap();
    }
    tokio::select! {
        ended = worker.run() => panic!("{ended:?}"),
        () = async { drop((reports.next().await, reports.next().await)) } => {}
    }
    drop(worker);
    let dropped_at = Instant::now();
    ledger.counted("its jobs to be free", LOCKED_JOBS, 0).await;
    ledger.counted("its queues to be free", LOCKED_QUEUES, 0).await;
    ledger.counted("the worker to be gone", "select count(*) from graphile_worker._atta_workers", 0).await;
    let attempts = "select max(attempts)::bigint from graphile_worker._private_jobs";
    assert_eq!(ledger.count(attempts).await, 0, "the attempts are restored");
    println!("all was returned {:?} after the drop", dropped_at.elapsed());
}
