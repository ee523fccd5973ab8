//! A worker process is killed, and another worker takes over.

use std::time::{Duration, Instant};

use atta::{JobSpec, JobSpecBuilder, WorkerUtils};
use serde_json::json;
use testkit::{Database, Process, wait_for};

use super::support::{JOBS, LOCKED_JOBS, LOCKED_QUEUES, Ledger, Setup};
use crate::worker::support::Running;

struct Fleet {
    ledger: Ledger,
    utils: WorkerUtils,
    doomed: Process,
    setup: Setup,
}

impl Fleet {
    async fn start(db: &Database, change: impl FnOnce(&mut Setup)) -> Fleet {
        let mut setup = Setup { is_durable: true, ..Setup::new(db) };
        change(&mut setup);
        let ledger = Ledger::make(db).await;
        let utils = WorkerUtils::connect(&setup.url).expect("a connection string");
        Fleet { ledger, utils, doomed: setup.spawn(), setup }
    }

    /// A job that never ends in the process that will be killed.
    async fn add_hanging(&self, spec: impl Into<JobSpec>) -> i64 {
        let only_here = json!({ "only_in": std::process::id() });
        self.utils.add_raw_job("work", only_here, spec).await.expect("jobs are added").id()
    }

    async fn add(&self, spec: impl Into<JobSpec>) -> i64 {
        self.utils.add_raw_job("work", json!({}), spec).await.expect("jobs are added").id()
    }
}

/// A statement of a worker that was declared dead arrives late, or the worker resumed for a moment and claimed a job.
/// The worker that declared it dead is dead as well, so no worker knows that there is something to recover.
#[tokio::test]
async fn jobs_locked_after_the_worker_was_declared_dead_are_freed_by_the_next_worker() {
    let db = Database::migrated().await;
    let (setup, ledger, id) = orphan(&db).await;
    let worker = Running::start(setup.options()).await;
    frees_the_orphan(&ledger, id).await;
    worker.stop().await.unwrap();
}

/// Other workers die all the time, and each declaration is followed by its own recovery.
#[tokio::test]
async fn jobs_locked_after_the_worker_was_declared_dead_are_freed_however_many_others_die() {
    let db = Database::migrated().await;
    let (setup, ledger, id) = orphan(&db).await;
    let client = db.client().await;
    let dying = tokio::spawn(async move {
        let sql = "insert into graphile_worker._atta_workers
                     (id, host, pid, version, heartbeat_at, task_identifiers, slots, recovery_threshold)
                   values ('atta-' || random(), 'gone', 1, '0', now() - interval '1 hour', '{}', 1,
                     interval '1 second')";
        while client.batch_execute(sql).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    });
    let worker = Running::start(setup.options()).await;
    frees_the_orphan(&ledger, id).await;
    dying.abort();
    worker.stop().await.unwrap();
}

/// A job in a queue, both locked by a worker that was declared dead.
async fn orphan(db: &Database) -> (Setup, Ledger, i64) {
    let setup = Setup { threshold: Duration::from_secs(1), ..Setup::new(db) };
    let ledger = Ledger::make(db).await;
    let utils = WorkerUtils::connect(&setup.url).unwrap();
    let in_line = JobSpecBuilder::new().queue_name("line").build();
    let id = utils.add_raw_job("work", json!({}), in_line).await.unwrap().id();
    let sql = "insert into graphile_worker._atta_dead_workers (worker_id) values ('atta-dead');
               update graphile_worker._private_job_queues
               set locked_by = 'atta-dead', locked_at = now() - interval '1 minute';
               update graphile_worker._private_jobs
               set attempts = 1, locked_by = 'atta-dead', locked_at = now() - interval '1 minute'";
    ledger.client.batch_execute(sql).await.unwrap();
    (setup, ledger, id)
}

async fn frees_the_orphan(ledger: &Ledger, id: i64) {
    let start = Instant::now();
    ledger.counted("the job to be done", JOBS, 0).await;
    assert!(start.elapsed() < Duration::from_secs(30), "that is not the sweep of every ten minutes");
    let runs = ledger.runs_of(id).await;
    assert_eq!((runs.len(), runs[0].attempt), (1, 1), "{runs:?}");
    assert!(runs[0].last_error.as_deref().unwrap().contains("worker atta-dead died"), "{runs:?}");
    assert_eq!(ledger.count(LOCKED_QUEUES).await, 0);
}

#[tokio::test]
async fn all_jobs_of_a_killed_worker_run_again() {
    let db = Database::migrated().await;
    let mut fleet = Fleet::start(&db, |setup| setup.local_queue = 8).await;
    let in_line = || JobSpecBuilder::new().queue_name("line");
    let running = fleet.add_hanging(JobSpec::default()).await;
    let first_in_line = fleet.add_hanging(in_line()).await;
    let only_attempt = fleet.add_hanging(JobSpecBuilder::new().max_attempts(1)).await;
    fleet.ledger.started_in(fleet.doomed.id(), 3).await;
    let mut claimed = Vec::new();
    for _ in 0..4 {
        claimed.push(fleet.add(JobSpec::default()).await);
    }
    let second_in_line = fleet.add(in_line()).await;
    let third_in_line = fleet.add(in_line()).await;
    fleet.ledger.counted("the local queue to have them", LOCKED_JOBS, 7).await;
    let dead = fleet.ledger.runs().await[0].worker_id.clone();

    let heir = Running::start(fleet.setup.options()).await;
    fleet.doomed.kill();
    let start = Instant::now();
    fleet.ledger.counted("all to be done", JOBS, 0).await;
    println!("everything ran again {:?} after the kill, at a threshold of 2 s", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(20));

    let again: Vec<_> = fleet.ledger.runs().await.into_iter().filter(|run| run.has_ended).collect();
    assert_eq!(again.len(), 9, "{again:?}");
    let process = format!("process {}", fleet.doomed.id());
    for run in &again {
        let was_claimed =
            [running, first_in_line, only_attempt].contains(&run.job_id) || claimed.contains(&run.job_id);
        assert_eq!(run.attempt, 1, "a crash costs no attempt: {run:?}");
        let error = run.last_error.as_deref().unwrap_or_default();
        let is_named = error.contains(&dead) && error.contains(&process) && error.contains("died");
        assert_eq!(is_named, was_claimed, "{run:?}");
    }
    let in_line = [first_in_line, second_in_line, third_in_line];
    let order: Vec<i64> = again.iter().map(|run| run.job_id).filter(|id| in_line.contains(id)).collect();
    assert_eq!(order, in_line);

    heir.stop().await.unwrap();
    assert_eq!(fleet.ledger.count(LOCKED_JOBS).await + fleet.ledger.count(LOCKED_QUEUES).await, 0);
}

#[tokio::test]
async fn with_default_options_jobs_of_a_killed_worker_run_again_within_35_seconds() {
    let db = Database::migrated().await;
    let defaults = |setup: &mut Setup| {
        setup.threshold = Duration::from_secs(30);
        setup.poll = Duration::from_secs(2);
    };
    let mut fleet = Fleet::start(&db, defaults).await;
    let job = fleet.add_hanging(JobSpecBuilder::new().queue_name("line")).await;
    let next = fleet.add(JobSpecBuilder::new().queue_name("line")).await;
    fleet.ledger.started_in(fleet.doomed.id(), 1).await;
    let heir = Running::start(fleet.setup.options()).await;
    fleet.doomed.kill();
    let start = Instant::now();
    fleet.ledger.counted("both jobs to be done", JOBS, 0).await;
    println!("both jobs ran {:?} after the kill, with default options", start.elapsed());
    // The machine may be busy with other tests.
    assert!(start.elapsed() < Duration::from_secs(35 + 5));
    let ended: Vec<i64> =
        fleet.ledger.runs().await.iter().filter(|run| run.has_ended).map(|run| run.job_id).collect();
    assert_eq!(ended, [job, next]);
    heir.stop().await.unwrap();
}

/// Crashes are counted separately from attempts: the job permanently fails although it has attempts left.
#[tokio::test]
async fn a_job_that_kills_its_worker_every_time_ends_as_permanently_failed() {
    let db = Database::migrated().await;
    let mut fleet = Fleet::start(&db, |setup| setup.threshold = Duration::from_secs(1)).await;
    let killer = fleet.add_hanging(JobSpecBuilder::new().max_attempts(2)).await;
    let mut processes = Vec::new();
    for kill in 1..=3 {
        fleet.ledger.started_in(fleet.doomed.id(), 1).await;
        processes.push(fleet.doomed.id());
        fleet.doomed.kill();
        let runs = fleet.ledger.runs_of(killer).await;
        assert_eq!((runs.len(), runs[kill - 1].attempt), (kill, 1), "{runs:?}");
        fleet.doomed = fleet.setup.spawn();
    }
    let job = wait_for("the killer to be given up", || async {
        fleet
            .utils
            .get_job(killer)
            .await
            .unwrap()
            .filter(|job| job.is_permanently_failed() && job.locked_by().is_none())
    })
    .await;
    let error = job.last_error().unwrap();
    assert!(error.contains("3 workers died"), "{error}");
    assert!(processes.iter().all(|pid| error.contains(&format!("process {pid} on"))), "{error}");
    assert_eq!(fleet.ledger.runs_of(killer).await.len(), 3);
    assert_eq!(fleet.ledger.count("select count(*) from graphile_worker._atta_crashes").await, 0);
}

/// Deployments that kill workers must not fail a job that never failed itself.
#[tokio::test]
async fn killed_workers_cost_a_job_none_of_its_attempts() {
    let db = Database::migrated().await;
    let mut fleet = Fleet::start(&db, |setup| setup.threshold = Duration::from_secs(1)).await;
    let job = fleet.add_hanging(JobSpecBuilder::new().max_attempts(3)).await;
    for _ in 0..3 {
        fleet.ledger.started_in(fleet.doomed.id(), 1).await;
        fleet.doomed.kill();
        fleet.doomed = fleet.setup.spawn();
    }
    fleet.doomed.kill();
    let patient = fleet.setup.options().crash_limit(10);
    let heir = Running::start(patient).await;
    fleet.ledger.counted("the job to be done", JOBS, 0).await;
    let runs = fleet.ledger.runs_of(job).await;
    assert!(runs.iter().all(|run| run.attempt == 1), "{runs:?}");
    assert!(runs.last().unwrap().has_ended, "{runs:?}");
    heir.stop().await.unwrap();
}
