//! Application code that blocks: handlers that block their threads, and futures of `run` that are dropped half-way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use atta::{JobSpec, JobSpecBuilder, RawJobSpec, WorkerUtils};
use serde_json::json;
use testkit::Database;
use tokio::sync::Semaphore;

use super::support::{JOBS, LOCKED_JOBS, LOCKED_QUEUES, Ledger, Setup};
use crate::worker::support::{Reports, options};

/// The loop, the claims and the heartbeats run in a separate thread. Handlers that block all threads of the runtime for
/// three times the recovery threshold keep their jobs, and no other worker runs these.
#[tokio::test]
async fn handlers_that_block_all_threads_keep_their_jobs() {
    let db = Database::migrated().await;
    let ledger = Ledger::make(&db).await;
    let utils = WorkerUtils::connect(&db.direct_url()).unwrap();
    // As many slots as the process has threads for tasks.
    let setup = Setup { slots: 2, threshold: Duration::from_secs(2), ..Setup::new(&db) };
    let _fleet = [setup.spawn(), setup.spawn()];
    ledger.counted("both workers", "select count(*) from graphile_worker._atta_workers", 2).await;
    let work = json!({ "blocks_ms": 6000 });
    let mut specs: Vec<RawJobSpec> =
        (0..3).map(|_| RawJobSpec::new("work", &work, JobSpec::default()).unwrap()).collect();
    let queued = JobSpecBuilder::new().queue_name("one by one").build();
    specs.push(RawJobSpec::new("work", &work, queued).unwrap());
    let jobs = utils.add_raw_jobs(&specs).await.unwrap();
    ledger.counted("all jobs to be done", JOBS, 0).await;
    for job in jobs {
        let runs = ledger.runs_of(job.id()).await;
        assert_eq!(runs.len(), 1, "{runs:#?}");
    }
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
