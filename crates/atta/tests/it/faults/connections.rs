//! Connections are lost: ended by an administrator, by the network, or in the middle of a statement.

use std::sync::Arc;
use std::time::{Duration, Instant};

use atta::{Claims, JobSpec, RawJobSpec, WorkerEvent, WorkerEvents, WorkerOptions, WorkerUtils};
use serde_json::json;
use testkit::{Database, Proxy, wait_for};
use tokio::sync::Notify;
use tokio_postgres::Client;

use super::support::{JOBS, LOCKED_JOBS, LOCKED_QUEUES, Tally, event};
use crate::worker::support::{Reports, Running, options, wait_until_empty};

const TERMINATE: &str = "select count(pg_terminate_backend(pid)) from pg_stat_activity
                         where datname = current_database() and pid <> pg_backend_pid()";

fn listens(event: &WorkerEvent) -> Option<()> {
    matches!(event, WorkerEvent::ListenStarted).then_some(())
}

/// Before that, the worker is busy with its own start. Without LISTEN there is no event for it.
async fn has_started(events: &mut WorkerEvents) {
    if testkit::can_listen() {
        event(events, listens).await;
    }
}

/// Adds `count` jobs on a connection of the test, which no fault affects.
async fn add(client: &mut Client, utils: &WorkerUtils, count: usize) -> Vec<i64> {
    let jobs: Vec<RawJobSpec> = (0..count)
        .map(|n| {
            let queue = (n % 5 == 0).then(|| format!("queue {}", n % 4));
            let spec = queue
                .map_or_else(JobSpec::default, |name| atta::JobSpecBuilder::new().queue_name(name).build());
            RawJobSpec::new("load", json!({ "n": n }), spec).expect("the payload is JSON")
        })
        .collect();
    utils.add_raw_jobs_in(client, &jobs).await.expect("jobs are added").iter().map(atta::Job::id).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_survives_the_termination_of_all_connections_every_second() {
    let seconds = if std::env::var_os("ATTA_LONG").is_some() { 30 } else { 10 };
    let db = Database::migrated().await;
    let mut client = db.client().await;
    let tally = Tally::default();
    let noted = tally.clone();
    let task = move |ctx: atta::WorkerContext| {
        noted.note(&ctx);
        async { tokio::time::sleep(Duration::from_millis(fastrand::u64(0..5))).await }
    };
    let worker = Running::start(options(&db).define_raw_job("load", task)).await;
    let mut added = Vec::new();
    let mut terminated = 0;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(seconds) {
        let second = Instant::now();
        while second.elapsed() < Duration::from_secs(1) {
            added.extend(add(&mut client, &worker.utils, 10).await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        terminated += client.query_one(TERMINATE, &[]).await.unwrap().get::<_, i64>(0);
    }
    let direct = WorkerUtils::connect(&db.direct_url()).unwrap();
    wait_until_empty(&direct).await;
    assert!(added.iter().all(|id| !tally.attempts_of(*id).is_empty()), "every job ran");
    println!(
        "{} jobs ran, {} of them more than once, while {terminated} connections were terminated in {seconds} s",
        added.len(),
        tally.repeated()
    );
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn a_lost_listen_connection_is_restored_and_no_job_added_meanwhile_is_missed() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let mut reports = Reports::new();
    let rarely = Duration::from_secs(3600);
    let options = options(&db).poll_interval(rarely).recovery_threshold(6 * rarely);
    let options = options.define_raw_job("notified", reports.task(|_| async {}));
    let mut events = options.subscribe();
    let worker = Running::start(options).await;
    event(&mut events, listens).await;
    for _ in 0..3 {
        let sql = "select count(pg_terminate_backend(pid)) from pg_stat_activity
                   where datname = current_database() and query ilike 'listen %'";
        assert_eq!(client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0), 1);
        let sql = "select (graphile_worker.add_job('notified')).id";
        let in_the_gap: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
        assert_eq!(reports.next().await.id(), in_the_gap);
        event(&mut events, listens).await;
        let after: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
        assert_eq!(reports.next().await.id(), after);
    }
    worker.stop().await.unwrap();
}

/// The server has locked the jobs for the worker, and its reply is lost: they must not stay locked by a living worker.
#[tokio::test]
async fn jobs_of_a_claim_whose_answer_was_lost_run_all_the_same() {
    let db = Database::migrated().await;
    let (proxy, url) = Proxy::before(&db.url());
    let mut reports = Reports::new();
    let task = reports.task(|_| async {});
    let options = options(&db).database_url(url).recovery_threshold(Duration::from_secs(2));
    let options = options.poll_interval(Duration::from_millis(200)).define_raw_job("fragile", task);
    let mut events = options.subscribe();
    let worker = Running::start(options).await;
    has_started(&mut events).await;
    proxy.lose_answer_with("only the server knows");
    let direct = WorkerUtils::connect(&db.direct_url()).unwrap();
    let payload = json!({ "secret": "only the server knows" });
    let job = direct.add_raw_job("fragile", payload, JobSpec::default()).await.unwrap();
    wait_for("the answer to be lost", || async { (proxy.lost_answers() == 1).then_some(()) }).await;
    let start = Instant::now();
    assert_eq!(reports.next().await.id(), job.id());
    println!("a lost claim ran after {:?}", start.elapsed());
    wait_until_empty(&direct).await;
    worker.stop().await.unwrap();
}

/// A proxy that hangs keeps connections open and never answers. The worker closes them after a minute, and opens others.
#[tokio::test]
async fn connections_that_never_answer_are_replaced() {
    let db = Database::migrated().await;
    let (proxy, url) = Proxy::before(&db.url());
    let mut reports = Reports::new();
    let task = reports.task(|_| async {});
    let options = options(&db).database_url(url).poll_interval(Duration::from_millis(200));
    let worker = Running::start(options.define_raw_job("quick", task)).await;
    let direct = WorkerUtils::connect(&db.direct_url()).unwrap();
    let queued = || atta::JobSpecBuilder::new().queue_name("line").build();
    let specs = [JobSpec::default, queued];
    for spec in specs {
        direct.add_raw_job("quick", json!({}), spec()).await.unwrap();
        reports.next().await;
    }
    wait_until_empty(&direct).await;
    proxy.mute_all();
    for spec in specs {
        direct.add_raw_job("quick", json!({}), spec()).await.unwrap();
    }
    for _ in specs {
        tokio::time::timeout(5 * testkit::DEADLINE, reports.next_at_any_time()).await.expect("a job begins");
    }
    wait_until_empty(&direct).await;
    worker.stop().await.unwrap();
}

/// The first claim takes three seconds between locking the job and writing the claim.
const NAPS: &str = "create sequence public.naps;
    create function public.nap() returns trigger language plpgsql as $$
    begin
      if nextval('public.naps') = 1 then
        perform pg_sleep(3);
      end if;
      return new;
    end $$;
    create trigger nap before update on graphile_worker._private_jobs for each row
    when (old.locked_by is null and new.locked_by is not null) execute function public.nap()";

const NAPPING: &str =
    "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'";

/// A worker whose connections are cut while the server executes its first claim, which continues. Its job reports its
/// runs.
async fn with_a_claim_that_is_lost(
    db: &Database,
    client: &Client,
    reports: &Reports,
) -> (Running, i64, Proxy) {
    client.batch_execute(NAPS).await.unwrap();
    let (proxy, url) = Proxy::before(&db.url());
    let options = options(db).database_url(url).recovery_threshold(Duration::from_secs(6));
    let options = options.poll_interval(Duration::from_millis(200));
    let options = options.define_raw_job("late", reports.task(|_| async {}));
    let mut events = options.subscribe();
    let worker = Running::start(options).await;
    has_started(&mut events).await;
    let direct = WorkerUtils::connect(&db.direct_url()).unwrap();
    let spec = atta::JobSpecBuilder::new().queue_name("line");
    let job = direct.add_raw_job("late", json!({}), spec).await.unwrap();
    counted(client, "the claim to nap", NAPPING, 1).await;
    proxy.cut_all();
    (worker, job.id(), proxy)
}

async fn counted(client: &Client, what: &str, sql: &str, wanted: i64) {
    wait_for(what, || async {
        let count: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
        (count == wanted).then_some(())
    })
    .await;
}

/// A claim may take effect after the worker has searched for its jobs. These jobs must not stay locked either.
#[tokio::test]
async fn a_claim_that_commits_long_after_its_reply_was_lost_is_returned() {
    let db = Database::migrated().await;
    let (client, mut reports) = (db.client().await, Reports::new());
    let (worker, job_id, _proxy) = with_a_claim_that_is_lost(&db, &client, &reports).await;
    counted(&client, "the claim to be written", LOCKED_JOBS, 1).await;
    assert!(reports.is_empty(), "the worker knows nothing of it");
    assert_eq!(reports.next().await.id(), job_id);
    counted(&client, "nothing to be left", JOBS, 0).await;
    counted(&client, "the queue to be free", LOCKED_QUEUES, 0).await;
    worker.stop().await.unwrap();
}

/// The same, but the worker ends before it can search again: other workers find the job.
#[tokio::test]
async fn a_claim_that_commits_after_its_worker_has_ended_is_recovered_by_others() {
    let db = Database::migrated().await;
    let (client, mut reports) = (db.client().await, Reports::new());
    let (worker, job_id, _proxy) = with_a_claim_that_is_lost(&db, &client, &reports).await;
    worker.stop().await.unwrap();
    counted(&client, "the claim to be written", LOCKED_JOBS, 1).await;
    assert!(reports.is_empty());
    let others = options(&db).recovery_threshold(Duration::from_secs(2));
    let others = others.poll_interval(Duration::from_millis(200));
    let other = Running::start(others.define_raw_job("late", reports.task(|_| async {}))).await;
    assert_eq!(reports.next().await.id(), job_id);
    counted(&client, "nothing to be left", JOBS, 0).await;
    counted(&client, "the queue to be free", LOCKED_QUEUES, 0).await;
    other.stop().await.unwrap();
}

/// The failure is written and the reply is lost. When the worker repeats the release, it finds that the job is no
/// longer its own, which is its own doing.
#[tokio::test]
async fn a_release_whose_reply_was_lost_is_applied_once() {
    let db = Database::migrated().await;
    let (proxy, url) = Proxy::before(&db.url());
    let options = options(&db)
        .database_url(url)
        .define_raw_job("bad", |_| async { Err::<(), _>("an error that gets through") });
    let mut events = options.subscribe();
    let worker = Running::start(options).await;
    has_started(&mut events).await;
    proxy.lose_answer_to("an error that gets through");
    let direct = WorkerUtils::connect(&db.direct_url()).unwrap();
    let id = direct.add_raw_job("bad", json!({}), JobSpec::default()).await.unwrap().id();
    let is_known = event(&mut events, |event| match event {
        WorkerEvent::JobErrored { job, .. } => Some(job.id() == id),
        WorkerEvent::ClaimLost { .. } => Some(false),
        _ => None,
    })
    .await;
    assert!(is_known, "it was ours, and it failed");
    assert_eq!(proxy.lost_answers(), 1);
    worker.stop().await.unwrap();
    let job = direct.get_job(id).await.unwrap().unwrap();
    assert_eq!(
        (job.attempts(), job.last_error(), job.locked_by()),
        (1, Some("an error that gets through"), None)
    );
}

/// A held job whose connection was lost is free for a moment, and a durable claim of the same worker may take it. The
/// worker must not run it again.
#[tokio::test]
async fn a_claim_of_its_own_after_a_lost_connection_is_not_taken_for_another_workers() {
    let db = Database::migrated().await;
    let (proxy, url) = Proxy::before(&db.url());
    let (gate, mut reports) = (Arc::new(Notify::new()), Reports::new());
    let opened = gate.clone();
    let task = reports.task(move |_| {
        let opened = opened.clone();
        async move { opened.notified().await }
    });
    let options = options(&db).database_url(url).claims(Claims::Held).hold_budget(Duration::from_secs(1));
    let worker = options.define_raw_job("gated", task).init().await.unwrap();
    let (mut events, client) = (worker.events(), db.client().await);
    let worker = Running::with(worker);
    has_started(&mut events).await;
    let direct = WorkerUtils::connect(&db.direct_url()).unwrap();
    let id = direct.add_raw_job("gated", json!({}), JobSpec::default()).await.unwrap().id();
    reports.next().await;
    proxy.cut_all();
    // Waits until the server has noticed the loss. If the worker was faster, the statement changes nothing.
    let claim =
        "update graphile_worker._private_jobs set locked_by = $2, locked_at = now(), attempts = attempts + 1
                 where id = $1 and locked_by is null";
    client.execute(claim, &[&id, &worker.handle.worker_id()]).await.unwrap();
    gate.notify_one();
    let is_known = event(&mut events, |event| match event {
        WorkerEvent::JobSucceeded { job, .. } => Some(job.id() == id),
        WorkerEvent::ClaimLost { .. } => Some(false),
        _ => None,
    })
    .await;
    assert!(is_known, "it was ours, and it succeeded");
    worker.stop().await.unwrap();
    assert!(direct.get_job(id).await.unwrap().is_none());
    assert!(reports.is_empty(), "it ran once");
}

#[tokio::test]
async fn a_release_is_retried_until_the_database_is_reachable() {
    let db = Database::migrated().await;
    let (proxy, url) = Proxy::before(&db.url());
    let gate = Arc::new(Notify::new());
    let opened = gate.clone();
    let mut reports = Reports::new();
    let task = reports.task(move |_| {
        let opened = opened.clone();
        async move { opened.notified().await }
    });
    let options = options(&db).database_url(url).claims(Claims::Durable).define_raw_job("gated", task);
    let mut events = options.subscribe();
    let worker = Running::start(options).await;
    let direct = WorkerUtils::connect(&db.direct_url()).unwrap();
    let id = direct.add_raw_job("gated", json!({}), JobSpec::default()).await.unwrap().id();
    reports.next().await;
    proxy.go_away();
    gate.notify_one();
    wait_for("the worker to try in vain", || async { (proxy.refused() >= 1).then_some(()) }).await;
    assert!(direct.get_job(id).await.unwrap().is_some_and(|job| job.locked_by().is_some()));
    proxy.come_back();
    event(&mut events, |event| matches!(event, WorkerEvent::JobSucceeded { .. }).then_some(())).await;
    assert!(direct.get_job(id).await.unwrap().is_none());
    worker.stop().await.unwrap();
    assert!(reports.is_empty(), "it ran once");
}

#[tokio::test]
async fn a_worker_waits_at_its_start_for_a_database_that_is_away() {
    let db = Database::migrated().await;
    let (proxy, url) = Proxy::before(&db.url());
    proxy.go_away();
    let mut reports = Reports::new();
    let task = reports.task(|_| async {});
    let options: WorkerOptions = options(&db).database_url(url).define_raw_job("patient", task);
    let starting = tokio::spawn(Running::start(options));
    let direct = WorkerUtils::connect(&db.direct_url()).unwrap();
    direct.add_raw_job("patient", json!({}), JobSpec::default()).await.unwrap();
    wait_for("the worker to have tried", || async { (proxy.refused() >= 2).then_some(()) }).await;
    proxy.come_back();
    reports.next().await;
    starting.await.unwrap().stop().await.unwrap();
}
