//! Worker processes get SIGTERM again and again, under load.

use std::collections::HashMap;
use std::time::Duration;

use atta::{JobSpec, JobSpecBuilder, RawJobSpec, WorkerUtils};
use serde_json::json;
use testkit::{Database, Signal};

use super::support::{JOBS, LOCKED_JOBS, LOCKED_QUEUES, Ledger, Run, Setup};
use crate::worker::support::Running;

const SHORT_JOBS: usize = 3000;
const SLOW_JOBS: usize = 40;

/// Starts and ends a worker this number of times, each time at a random moment soon after its first job has started.
async fn start_and_end(setup: &Setup, ledger: &Ledger, times: usize) {
    for _ in 0..times {
        let mut worker = setup.spawn();
        ledger.started_in(worker.id(), 1).await;
        // Not a synchronisation: it makes the signal arrive at a different moment each time.
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..30))).await;
        worker.signal(Signal::Terminate);
        let status = worker.ended().await;
        assert!(status.success(), "{status}");
        let sql = format!(
            "select count(*) from graphile_worker._private_jobs as job
             where job.locked_by in (select worker_id from public.ledger where pid = {})",
            worker.id()
        );
        assert_eq!(ledger.count(&sql).await, 0, "locks left behind");
    }
}

/// Jobs that end within the grace period run in one series of workers, jobs that must be interrupted in another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_shutdowns_under_load_lose_no_job_and_run_none_twice() {
    let db = Database::migrated().await;
    let ledger = Ledger::make(&db).await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    let mut jobs = Vec::new();
    for n in 0..SHORT_JOBS {
        let queued = JobSpecBuilder::new().queue_name(format!("queue {}", n % 7)).build();
        let spec = if n % 3 == 0 { queued } else { JobSpec::default() };
        jobs.push(RawJobSpec::new("work", json!({ "ms": n % 40 }), spec).unwrap());
    }
    for _ in 0..SLOW_JOBS {
        let only_here = json!({ "only_in": std::process::id() });
        jobs.push(RawJobSpec::new("slow", only_here, JobSpec::default()).unwrap());
    }
    let added: Vec<i64> = utils.add_raw_jobs(&jobs).await.unwrap().iter().map(atta::Job::id).collect();

    let patient = Setup { local_queue: 10, slots: 4, ..Setup::new(&db) };
    let hasty = Setup { tasks: vec!["slow".into()], grace: Duration::from_millis(20), ..patient.clone() };
    let other = Ledger { client: db.client().await };
    let halves =
        [(&patient, &ledger, 35), (&hasty, &ledger, 15), (&patient, &other, 35), (&hasty, &other, 15)];
    let [a, b, c, d] = halves.map(|(setup, ledger, times)| start_and_end(setup, ledger, times));
    tokio::join!(a, b, c, d);
    assert_eq!(ledger.count(LOCKED_JOBS).await + ledger.count(LOCKED_QUEUES).await, 0);
    let left = ledger.count(JOBS).await;
    assert!(left >= i64::try_from(SLOW_JOBS).unwrap(), "{left} jobs left: the slow ones can't have ended");

    let tasks = vec!["work".into(), "slow".into()];
    let last = Running::start(Setup { tasks, slots: 8, ..Setup::new(&db) }.options()).await;
    ledger.counted("the rest to be done", JOBS, 0).await;
    last.stop().await.unwrap();
    let mut runs: HashMap<i64, Vec<Run>> = HashMap::new();
    for run in ledger.runs().await {
        runs.entry(run.job_id).or_default().push(run);
    }
    println!("{left} of {} jobs were left after a hundred ends", added.len());
    let (short, slow) = added.split_at(SHORT_JOBS);
    for id in short {
        let runs = &runs[id];
        assert!(runs.len() == 1 && runs[0].has_ended && runs[0].attempt == 1, "{runs:?}");
    }
    for id in slow {
        let runs = &runs[id];
        assert_eq!(runs.iter().filter(|run| run.has_ended).count(), 1, "{runs:?}");
        assert!(runs.iter().all(|run| run.attempt == 1), "an interruption costs no attempt: {runs:?}");
    }
    let interrupted: usize = slow.iter().map(|id| runs[id].len() - 1).sum();
    println!("{interrupted} runs were interrupted");
    assert!(interrupted >= 30);
}

/// `timeout` and some supervisors signal both a process and its group.
#[tokio::test]
async fn a_signal_that_arrives_twice_drops_no_running_job() {
    let db = Database::migrated().await;
    let ledger = Ledger::make(&db).await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    utils.add_raw_job("work", json!({ "ms": 1500 }), JobSpec::default()).await.unwrap();
    let mut worker = Setup::new(&db).spawn();
    ledger.started_in(worker.id(), 1).await;
    for _ in 0..3 {
        worker.signal(Signal::Terminate);
    }
    assert!(worker.ended().await.success());
    let runs = ledger.runs().await;
    assert!(runs.len() == 1 && runs[0].has_ended, "{runs:?}");
    assert_eq!(ledger.count(JOBS).await, 0);
}
