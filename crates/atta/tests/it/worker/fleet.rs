//! Several workers on one schema: one of them asks for an added job, and the others only if that one does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use atta::{Claims, JobSpec, WorkerEvent, WorkerUtils};
use serde_json::json;
use testkit::{Database, wait_for};
use tokio::sync::Semaphore;

use super::support::{Reports, Running, claims, options, wait_until_empty, without_polls};

/// Registers a worker that does not exist. Its id comes before all others.
async fn register_nobody(db: &Database, tasks: &str) {
    let sql = format!(
        "insert into graphile_worker._atta_workers (id, host, pid, version, task_identifiers, slots) \
         values ('atta-', 'nowhere', 1, '0', '{{{tasks}}}', 1)"
    );
    db.client().await.batch_execute(&sql).await.unwrap();
}

async fn add(utils: &WorkerUtils, task: &str, spec: JobSpec) {
    utils.add_raw_job(task, json!({}), spec).await.unwrap();
}

/// Adds a job with an even number as id, for which `nobody` is the first of two workers.
const ADD_EVEN: &str = "
    select setval(sequence, (nextval(sequence) + 1) / 2 * 2 + 1)
      from pg_get_serial_sequence('graphile_worker._private_jobs', 'id') as sequence;
    select graphile_worker.add_job('t');";

/// The first one claims it before the transaction ends.
const CLAIM_ALL: &str = "
    update graphile_worker._private_jobs set locked_by = 'atta-', locked_at = now(), attempts = 1";

#[tokio::test]
async fn a_job_that_another_worker_claims_costs_no_claim() {
    if !testkit::can_listen() {
        return;
    }
    let db = Database::migrated().await;
    register_nobody(&db, "t").await;
    let (claims, mut reports) = (Arc::new(AtomicUsize::new(0)), Reports::new());
    let options = without_polls(&db).define_raw_job("t", reports.task(|_| async {}));
    let (mut events, counted) = (options.subscribe(), claims.clone());
    let watching = tokio::spawn(async move {
        while let Some(event) = events.next().await {
            if matches!(event, WorkerEvent::ClaimStarted) {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    let worker = Running::start(options).await;
    let client = db.client().await;
    add(&worker.utils, "t", JobSpec::default()).await;
    reports.next().await;
    wait_until_empty(&worker.utils).await;
    let before = claims.load(Ordering::Relaxed);
    for _ in 0..20 {
        // Notifications that arrive together would be handled together.
        let one = format!("begin; {ADD_EVEN}; {CLAIM_ALL}; commit; select pg_sleep(0.03)");
        client.batch_execute(&one).await.unwrap();
    }
    client.batch_execute(ADD_EVEN).await.unwrap();
    let job = reports.next().await;
    let count = claims.load(Ordering::Relaxed) - before;
    println!("20 jobs of another worker and one of its own, {}, needed {count} claims", job.id());
    // Some for the free job, and for jobs whose check was late on a busy machine.
    assert!(count < 15, "{count} claims");
    worker.stop().await.unwrap();
    watching.abort();
}

/// A worker that has died is known to the others until it is declared dead.
#[tokio::test]
async fn a_job_that_a_dead_worker_should_claim_is_claimed_by_another() {
    if !testkit::can_listen() {
        return;
    }
    let db = Database::migrated().await;
    register_nobody(&db, "t").await;
    let mut reports = Reports::new();
    let worker = Running::start(without_polls(&db).define_raw_job("t", reports.task(|_| async {}))).await;
    let mut longest = Duration::ZERO;
    for _ in 0..20 {
        add(&worker.utils, "t", JobSpec::default()).await;
        let start = Instant::now();
        reports.next().await;
        longest = longest.max(start.elapsed());
    }
    println!(
        "20 single jobs, of which another worker should claim half, began within {longest:?} of being added"
    );
    // It still asks when the jobs are due that the other one should have noticed.
    for _ in 0..4 {
        add(&worker.utils, "t", JobSpec::builder().run_in(Duration::from_millis(300)).build()).await;
        reports.next().await;
    }
    for _ in 0..4 {
        add(&worker.utils, "t", JobSpec::builder().queue_name("q").build()).await;
        reports.next().await;
    }
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn a_job_that_a_busy_worker_should_claim_is_claimed_by_another() {
    if !testkit::can_listen() {
        return;
    }
    let db = Database::migrated().await;
    let (gate, mut reports) = (Arc::new(Semaphore::new(0)), Reports::new());
    let wait = gate.clone();
    let busy = without_polls(&db).concurrency(1).define_raw_job("t", move |_| {
        let wait = wait.clone();
        async move {
            // The semaphore is never closed.
            let _ = wait.acquire().await;
        }
    });
    let busy = Running::start(busy).await;
    add(&busy.utils, "t", JobSpec::default()).await;
    wait_for("the only slot to be taken", || async {
        let counts = busy.utils.count_jobs().await.unwrap();
        (counts.running == 1).then_some(())
    })
    .await;
    let idle = Running::start(without_polls(&db).define_raw_job("t", reports.task(|_| async {}))).await;
    for _ in 0..10 {
        add(&idle.utils, "t", JobSpec::default()).await;
        reports.next().await;
    }
    gate.add_permits(1);
    wait_until_empty(&idle.utils).await;
    idle.stop().await.unwrap();
    busy.stop().await.unwrap();
}

#[tokio::test]
async fn a_worker_that_lacks_a_task_does_not_keep_its_jobs_waiting() {
    if !testkit::can_listen() {
        return;
    }
    let db = Database::migrated().await;
    register_nobody(&db, "other").await;
    let mut reports = Reports::new();
    let worker = Running::start(without_polls(&db).define_raw_job("t", reports.task(|_| async {}))).await;
    for _ in 0..10 {
        add(&worker.utils, "t", JobSpec::default()).await;
        reports.next().await;
    }
    worker.stop().await.unwrap();
}

const DRAINED: usize = 12_000;

/// Adds that many jobs of the task `t`, which all have the same run_at.
async fn fill(db: &Database) {
    let sql = format!(
        "insert into graphile_worker._private_tasks (identifier) values ('t') on conflict do nothing;
         insert into graphile_worker._private_jobs (task_id, payload)
         select id, '{{}}' from graphile_worker._private_tasks, generate_series(1, {DRAINED}) where identifier = 't';
         notify \"jobs:insert\", '{{\"count\":{DRAINED},\"schema\":\"graphile_worker\"}}'"
    );
    db.client().await.batch_execute(&sql).await.unwrap();
}

/// Drains a backlog by three workers. Returns the number of the position that their picks share.
async fn drain_by_three(db: &Database) -> i64 {
    let runs = Arc::new(AtomicUsize::new(0));
    let client = db.client().await;
    fill(db).await;
    // Registered first, so that each worker knows of others from the start.
    register_nobody(db, "t").await;
    let mut workers = Vec::new();
    for _ in 0..3 {
        let runs = runs.clone();
        let options = options(db).concurrency(10).define_raw_job("t", move |_| {
            runs.fetch_add(1, Ordering::Relaxed);
            async {}
        });
        workers.push(options.init().await.unwrap());
    }
    let workers: Vec<Running> = workers.into_iter().map(Running::with).collect();
    wait_until_empty(&workers[0].utils).await;
    for worker in workers {
        worker.stop().await.unwrap();
    }
    assert_eq!(runs.load(Ordering::Relaxed), DRAINED, "each job has run once");
    let sql = "select last_value from graphile_worker._atta_scan_id";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_drain_the_same_jobs_begin_where_the_last_of_them_has_ended() {
    let db = Database::migrated().await;
    let position = drain_by_three(&db).await;
    let takes_turns = testkit::can_listen() && claims() == Claims::Held;
    assert_eq!(position > 0, takes_turns, "position {position}");
}

/// A session that is stopped, or was leaked by a pooler, has the turn for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_never_ends_and_a_position_behind_all_jobs_delay_nothing() {
    let db = Database::migrated().await;
    let other = db.client().await;
    let take = "select pg_advisory_lock(1635021921, hashtext('graphile_worker'))";
    other.batch_execute(take).await.unwrap();
    let behind =
        "insert into graphile_worker._private_tasks (id, identifier) overriding system value values (7, 't');
        select setval('graphile_worker._atta_scan_level', 7 * 65536 + 32768),
          setval('graphile_worker._atta_scan_time', (extract(epoch from now()) * 1000000)::bigint),
          setval('graphile_worker._atta_scan_id', 9223372036854775807)";
    other.batch_execute(behind).await.unwrap();
    drain_by_three(&db).await;
}

/// The role may not use the sequences, or somebody has dropped them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_shared_position_workers_drain_as_they_did_before() {
    let db = Database::migrated().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    register_nobody(&db, "t").await;
    let options = options(&db).concurrency(10).define_raw_job("t", move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        async {}
    });
    let worker = Running::start(options).await;
    let client = db.client().await;
    client.batch_execute("drop sequence graphile_worker._atta_scan_id").await.unwrap();
    fill(&db).await;
    wait_until_empty(&worker.utils).await;
    assert_eq!(runs.load(Ordering::Relaxed), DRAINED);
    worker.stop().await.unwrap();
}
