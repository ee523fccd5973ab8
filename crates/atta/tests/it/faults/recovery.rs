//! Recovery under bad conditions: locked rows, full tables, mixed thresholds, a pool without free connections.

use std::time::{Duration, Instant};

use atta::{Claims, JobSpec, JobSpecBuilder, WorkerEvent, WorkerOptions, WorkerUtils};
use serde_json::json;
use testkit::{Database, wait_for};
use tokio_postgres::Client;

use super::support::{JOBS, LOCKED_QUEUES, event};
use crate::worker::support::{Reports, Running, options};

const THRESHOLD: Duration = Duration::from_secs(1);

fn quick_to_judge(db: &Database) -> WorkerOptions {
    options(db).recovery_threshold(THRESHOLD).poll_interval(Duration::from_millis(200))
}

async fn count(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.expect("it can be counted").get(0)
}

async fn counted(client: &Client, what: &str, sql: &str, wanted: i64) {
    wait_for(what, || async { (count(client, sql).await == wanted).then_some(()) }).await;
}

/// Registers a worker that sent its last heartbeat a while ago.
async fn register_stale(client: &Client, id: &str, threshold: &str, silent: &str) {
    let sql = format!(
        "insert into graphile_worker._atta_workers
           (id, host, pid, version, heartbeat_at, task_identifiers, slots, recovery_threshold)
         values ('{id}', 'gone', 1, '0', clock_timestamp() - interval '{silent}', '{{}}', 1, interval '{threshold}')"
    );
    client.batch_execute(&sql).await.unwrap();
}

/// Adds a queued job that this worker has locked, with its queue.
async fn add_locked(client: &Client, utils: &WorkerUtils, worker: &str, queue: &str) -> i64 {
    // It is due later until it is locked, so that no worker claims it before.
    let later = chrono::Utc::now() + chrono::TimeDelta::hours(1);
    let spec = JobSpecBuilder::new().queue_name(queue).run_at(later);
    let id = utils.add_raw_job("work", json!({}), spec).await.unwrap().id();
    let sql = format!(
        "with locked as (
           update graphile_worker._private_jobs
           set locked_by = '{worker}', locked_at = now(), attempts = 1, run_at = created_at
           where id = {id}
           returning job_queue_id
         )
         update graphile_worker._private_job_queues as queue
         set locked_by = '{worker}', locked_at = now()
         from locked where queue.id = locked.job_queue_id"
    );
    client.batch_execute(&sql).await.unwrap();
    id
}

const DEAD: &str = "select count(*) from graphile_worker._atta_workers where declared_dead_at is not null";
const DEATHS: &str = "select count(*) from graphile_worker._atta_dead_workers";

/// After the clock of the server was set back, the last heartbeat of a dead worker lies in the future.
#[tokio::test]
async fn a_dead_worker_with_a_heartbeat_in_the_future_is_recovered() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    add_locked(&client, &utils, "atta-gone", "a").await;
    register_stale(&client, "atta-gone", "1 second", "-1 hour").await;
    let worker = Running::start(quick_to_judge(&db).define_raw_job("work", |_| async {})).await;
    counted(&client, "the job to be done", "select count(*) from graphile_worker.jobs", 0).await;
    assert_eq!(count(&client, DEATHS).await, 1);
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn a_row_that_another_transaction_keeps_locked_delays_only_its_own_recovery() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    let blocked_job = add_locked(&client, &utils, "atta-one", "a").await;
    add_locked(&client, &utils, "atta-one", "b").await;
    let blocked_queue = add_locked(&client, &utils, "atta-two", "c").await;
    add_locked(&client, &utils, "atta-two", "d").await;
    for worker in ["atta-one", "atta-two"] {
        register_stale(&client, worker, "1 second", "1 minute").await;
    }
    let mut other = db.client().await;
    let blocking = other.transaction().await.unwrap();
    let block = format!(
        "select id from graphile_worker._private_jobs where id = {blocked_job} for update;
         select id from graphile_worker._private_job_queues where queue_name = 'c' for update"
    );
    blocking.batch_execute(&block).await.unwrap();

    let mut reports = Reports::new();
    let task = reports.task(|_| async {});
    let worker = Running::start(quick_to_judge(&db).define_raw_job("work", task)).await;
    let mut ran = vec![reports.next().await.id(), reports.next().await.id()];
    counted(&client, "all other jobs to be done", JOBS, 2).await;
    assert!(!ran.contains(&blocked_job) && !ran.contains(&blocked_queue), "{ran:?}");
    assert_eq!(count(&client, DEAD).await, 2, "their rows stay until all is recovered");
    let queue_of_blocked = "select count(*) from graphile_worker._private_job_queues
                            where queue_name = 'a' and locked_by = 'atta-one'";
    assert_eq!(count(&client, queue_of_blocked).await, 1, "a queue is not freed before its job");

    blocking.rollback().await.unwrap();
    ran.push(reports.next().await.id());
    ran.push(reports.next().await.id());
    assert!(ran.contains(&blocked_job) && ran.contains(&blocked_queue), "{ran:?}");
    counted(&client, "the rows of the dead to be deleted", DEAD, 0).await;
    counted(&client, "the queues to be free", LOCKED_QUEUES, 0).await;
    assert_eq!(count(&client, DEATHS).await, 2, "each death is counted once");
    worker.stop().await.unwrap();
}

/// The statements of a poll and of a recovery take long on such a table if they read more rows than needed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_live_worker_is_declared_dead_beside_many_dead_workers_and_jobs_of_unknown_tasks() {
    recover_beside_unknown_jobs(300_000, THRESHOLD).await;
}

/// The same with 5 million jobs and a threshold of five seconds. On a busy machine with two cores, all jobs of the dead
/// workers were done 3.7 s after the start, about 3 s of which the live workers have to wait before they may declare
/// others dead. The age of the oldest heartbeat was 0.3 s at the end. To run it:
/// `cargo test -p atta --test it five_million -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "filling the table takes a minute or more"]
async fn no_live_worker_is_declared_dead_beside_five_million_jobs_of_unknown_tasks() {
    recover_beside_unknown_jobs(5_000_000, Duration::from_secs(5)).await;
}

/// 20 dead workers with five jobs each, and four live ones. The jobs of the dead workers run, and no live worker is
/// declared dead, also not for several thresholds after that.
async fn recover_beside_unknown_jobs(unknown: u32, threshold: Duration) {
    let db = Database::migrated().await;
    let client = db.client().await;
    let fill = format!(
        "insert into graphile_worker._private_tasks (identifier) values ('unknown');
         insert into graphile_worker._private_jobs (task_id, run_at)
         select task.id, now() - n * interval '1 ms'
         from graphile_worker._private_tasks as task, generate_series(1, {unknown}) as n"
    );
    client.batch_execute(&fill).await.unwrap();
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    for number in 0..20 {
        let id = format!("atta-dead-{number}");
        for job in 0..5 {
            add_locked(&client, &utils, &id, &format!("queue {number} {job}")).await;
        }
        register_stale(&client, &id, "1 second", "1 minute").await;
    }
    let start = Instant::now();
    let mut workers = Vec::new();
    for _ in 0..4 {
        let options = quick_to_judge(&db).recovery_threshold(threshold).define_raw_job("work", |_| async {});
        workers.push(Running::start(options).await);
    }
    let left = "select count(*) from graphile_worker._private_jobs as job
                join graphile_worker._private_tasks as task on task.id = job.task_id
                where task.identifier = 'work'";
    counted(&client, "the jobs of the dead to be done", left, 0).await;
    counted(&client, "the dead to be gone", "select count(*) from graphile_worker._atta_workers", 4).await;
    println!("{unknown} unknown jobs: all was recovered {:?} after the start", start.elapsed());
    let oldest = "select max(clock_timestamp() - heartbeat_at)::text from graphile_worker._atta_workers";
    let recovered = Instant::now();
    wait_for("several thresholds to pass", || async { (recovered.elapsed() > 3 * threshold).then_some(()) })
        .await;
    println!("the oldest heartbeat: {}", client.query_one(oldest, &[]).await.unwrap().get::<_, String>(0));
    let alive: Vec<&str> = workers.iter().map(|worker| worker.handle.worker_id()).collect();
    let sql = "select count(*) from graphile_worker._atta_dead_workers where worker_id = any ($1)";
    let declared: i64 = client.query_one(sql, &[&alive]).await.unwrap().get(0);
    assert_eq!((declared, count(&client, DEATHS).await), (0, 20));
    for worker in workers {
        worker.stop().await.unwrap();
    }
}

/// Every worker judges another worker by that worker's own threshold.
#[tokio::test]
async fn a_worker_with_a_short_threshold_does_not_judge_others_by_it() {
    let db = Database::migrated().await;
    let client = db.client().await;
    register_stale(&client, "atta-patient", "1 hour", "1 minute").await;
    register_stale(&client, "atta-quick", "3 seconds", "1 minute").await;
    let options = quick_to_judge(&db).define_raw_job("work", |_| async {});
    let mut events = options.subscribe();
    let worker = Running::start(options).await;
    let recovered = event(&mut events, |event| match event {
        WorkerEvent::WorkerRecovered { worker_id, .. } => Some(worker_id.to_string()),
        _ => None,
    });
    assert_eq!(recovered.await, "atta-quick");
    let listed = worker.utils.list_workers().await.unwrap();
    let patient = listed.iter().find(|listed| listed.id == "atta-patient").unwrap();
    assert_eq!(patient.status(), atta::WorkerStatus::Alive);
    assert_eq!(patient.recovery_threshold_seconds, Some(3600.0));
    worker.stop().await.unwrap();
}

/// A worker with a longer threshold waits for the mean of both.
#[tokio::test]
async fn a_worker_with_a_long_threshold_recovers_one_with_a_short_one() {
    let db = Database::migrated().await;
    let client = db.client().await;
    register_stale(&client, "atta-quick", "1 second", "1 minute").await;
    let threshold = Duration::from_secs(6);
    let options = quick_to_judge(&db).recovery_threshold(threshold).define_raw_job("work", |_| async {});
    let mut events = options.subscribe();
    let start = Instant::now();
    let worker = Running::start(options).await;
    event(&mut events, |event| matches!(event, WorkerEvent::WorkerRecovered { .. }).then_some(())).await;
    assert!(start.elapsed() > threshold / 2, "its own heartbeats were continuous for as long");
    worker.stop().await.unwrap();
}

/// Without a connection string, all connections except that of the heartbeat come from a pool that the tasks use as
/// well.
#[tokio::test]
async fn heartbeats_continue_while_tasks_use_all_connections_of_the_only_pool() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let mut reports = Reports::new();
    let task = reports.task(|ctx| async move {
        // Takes all connections of the pool until the worker ends.
        let mut taken = Vec::new();
        while let Ok(Ok(one)) = tokio::time::timeout(3 * THRESHOLD, ctx.pool().get()).await {
            taken.push(one);
        }
        ctx.cancellation_token().cancelled().await;
        drop(taken);
    });
    let pool = WorkerUtils::connect(&db.url()).unwrap().pool().clone();
    let options = WorkerOptions::default()
        .pg_pool(pool.clone())
        .claims(Claims::Durable)
        .recovery_threshold(THRESHOLD)
        .poll_interval(Duration::from_millis(200))
        .shutdown_grace_period(Duration::ZERO);
    let worker = Running::start(options.define_raw_job("greedy", task)).await;
    let direct = WorkerUtils::connect(&db.direct_url()).unwrap();
    direct.add_raw_job("greedy", json!({}), JobSpec::default()).await.unwrap();
    reports.next().await;
    wait_for("the pool to be empty", || async { (pool.status().available == 0).then_some(()) }).await;
    let heartbeats = "select count(*) from graphile_worker._atta_workers
                      where heartbeat_at > clock_timestamp() - interval '0.5 seconds'";
    let emptied = Instant::now();
    wait_for("several thresholds to pass", || async { (emptied.elapsed() > 3 * THRESHOLD).then_some(()) })
        .await;
    counted(&client, "a fresh heartbeat", heartbeats, 1).await;
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn locks_older_than_four_hours_are_released_although_their_stale_worker_is_registered() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    add_locked(&client, &utils, "atta-never", "a").await;
    register_stale(&client, "atta-never", "100 years", "5 hours").await;
    let age = "update graphile_worker._private_jobs set locked_at = now() - interval '5 hours';
               update graphile_worker._private_job_queues set locked_at = now() - interval '5 hours'";
    client.batch_execute(age).await.unwrap();
    // A sweep happens at a random moment of a worker's first minute, so several workers make it happen soon.
    let mut workers = Vec::new();
    for _ in 0..6 {
        workers.push(Running::start(quick_to_judge(&db).define_raw_job("work", |_| async {})).await);
    }
    counted(&client, "the job to be done", JOBS, 0).await;
    for worker in workers {
        worker.stop().await.unwrap();
    }
}

#[tokio::test]
async fn recovered_jobs_wait_for_the_delay() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    let queued = add_locked(&client, &utils, "atta-one", "a").await;
    let alone = add_locked(&client, &utils, "atta-one", "b").await;
    client
        .batch_execute(&format!(
            "update graphile_worker._private_jobs set job_queue_id = null where id = {alone}"
        ))
        .await
        .unwrap();
    register_stale(&client, "atta-one", "1 second", "1 minute").await;
    let hour = Duration::from_secs(3600);
    let options = quick_to_judge(&db).recovery_delay(hour).define_raw_job("work", |_| async {});
    let mut events = options.subscribe();
    let worker = Running::start(options).await;
    event(&mut events, |event| matches!(event, WorkerEvent::WorkerRecovered { .. }).then_some(())).await;
    for id in [queued, alone] {
        let job = utils.get_job(id).await.unwrap().expect("it has not run");
        let wait = job.run_at() - utils.read_clock().await.unwrap();
        assert!(wait.num_minutes() >= 55 && job.attempts() == 0, "{job:?}");
    }
    worker.stop().await.unwrap();
}
