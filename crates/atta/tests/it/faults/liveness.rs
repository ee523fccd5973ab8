//! Liveness: if a job is due and a slot is free, the job starts; and a worker that can do nothing is idle.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use atta::{Claims, JobSpecBuilder, LocalQueueConfig, WorkerContext, WorkerUtils};
use futures_util::future::BoxFuture;
use serde_json::json;
use testkit::{Database, Proxy, wait_for};
use tokio::sync::Semaphore;
use tokio_postgres::Client;

use crate::worker::support::{Reports, Running, claims, options, wait_until_empty};

const SOON: Duration = Duration::from_secs(10);

fn spec() -> JobSpecBuilder {
    JobSpecBuilder::new()
}

/// Picks that begin at a position require a later pick from the start. If all tasks become slow meanwhile, there are no
/// levels, and that pick must not be awaited forever.
#[tokio::test]
async fn run_once_ends_after_its_only_task_became_slow() {
    for slots in [1, 2, 4] {
        let db = Database::migrated().await;
        let options = options(&db).concurrency(slots);
        let options = options.define_raw_job("slow", |_: WorkerContext| async {
            tokio::time::sleep(Duration::from_millis(60)).await;
        });
        let utils = WorkerUtils::connect(&db.url()).unwrap();
        for _ in 0..12 {
            utils.add_raw_job("slow", json!({}), spec()).await.unwrap();
        }
        let worker = options.init().await.unwrap();
        let start = Instant::now();
        let ended = tokio::time::timeout(testkit::DEADLINE, worker.run_once()).await;
        let left = utils.count_jobs().await.unwrap().total();
        println!("{slots} slots: {:?}, {left} left, ended: {}", start.elapsed(), ended.is_ok());
        assert!(ended.is_ok(), "{slots} slots: run_once does not end, {left} jobs are left");
    }
}

/// As the previous test, but the first jobs are fast, so that each pick returns as many jobs as it asked for.
#[tokio::test]
async fn run_once_ends_after_its_only_task_became_slow_later() {
    let db = Database::migrated().await;
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let options = options(&db).concurrency(2).define_raw_job("slow", move |_: WorkerContext| {
        let n = counted.fetch_add(1, Ordering::Relaxed);
        async move {
            if n > 300 {
                tokio::time::sleep(Duration::from_millis(60)).await;
            }
        }
    });
    let utils = WorkerUtils::connect(&db.url()).unwrap();
    db.client()
        .await
        .batch_execute("select graphile_worker.add_job('slow', '{}') from generate_series(1, 400)")
        .await
        .unwrap();
    let worker = options.init().await.unwrap();
    let ended = tokio::time::timeout(testkit::DEADLINE, worker.run_once()).await;
    let left = utils.count_jobs().await.unwrap().total();
    assert!(ended.is_ok(), "run_once does not end, {left} jobs are left");
}

/// With one slot, a queued job that starts closes the list until it ends. If the job was claimed again, its end must
/// still be noticed.
#[tokio::test]
async fn one_slot_continues_after_its_queued_job_was_unlocked_and_claimed_again() {
    let db = Database::migrated().await;
    let client = db.client().await;
    let (gate, mut reports) = (Arc::new(Semaphore::new(0)), Reports::new());
    let gated = reports.task(wait_for_permit(&gate));
    let options = options(&db)
        .concurrency(1)
        .local_queue(LocalQueueConfig::new(4))
        .poll_interval(Duration::from_millis(200))
        .define_raw_job("gated", gated)
        .define_raw_job("quick", reports.task(|_| async {}));
    let worker = Running::start(options).await;
    let id = worker.utils.add_raw_job("gated", json!({}), spec().queue_name("q")).await.unwrap().id();
    assert_eq!(reports.next().await.id(), id);
    let name = worker.handle.worker_id().to_owned();
    client.execute("select graphile_worker.force_unlock_workers(array[$1::text])", &[&name]).await.unwrap();
    wait_for("the job to be claimed again", || async {
        let row = client
            .query_one("select count(*) from graphile_worker._private_jobs where locked_by = $1", &[&name])
            .await
            .unwrap();
        (row.get::<_, i64>(0) == 1).then_some(())
    })
    .await;
    gate.add_permits(2);
    worker.utils.add_raw_job("quick", json!({}), spec()).await.unwrap();
    let begun = tokio::time::timeout(SOON, reports.next()).await;
    assert!(begun.is_ok(), "nothing starts any more");
    wait_until_empty(&worker.utils).await;
    worker.stop().await.unwrap();
}

/// Drains once for each length of a round trip, in milliseconds.
async fn jobs_start_under_adds(claims: Claims, round_trips: [u64; 3]) {
    for ms in round_trips {
        let (ran, added, longest) = drain_under_adds(claims, Duration::from_millis(ms)).await;
        println!(
            "round trip {ms} ms: {ran} of {added} ran within 8 s, longest time without a start {longest:?}"
        );
        assert!(longest < Duration::from_secs(4), "nothing started for {longest:?} (round trip {ms} ms)");
    }
}

/// Each notification makes the result of the claim that is under way outdated.
async fn drain_under_adds(claims: Claims, rtt: Duration) -> (usize, usize, Duration) {
    let db = Database::migrated().await;
    let (proxy, url) = Proxy::before(&db.direct_url());
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let options = options(&db).database_url(url).concurrency(4).claims(claims).define_raw_job(
        "quick",
        move |_: WorkerContext| {
            counted.fetch_add(1, Ordering::Relaxed);
            async {}
        },
    );
    let worker = Running::start(options).await;
    proxy.delay(rtt / 2);
    let stop = Arc::new(AtomicUsize::new(0));
    let added = Arc::new(AtomicUsize::new(0));
    let mut producers = Vec::new();
    for _ in 0..2 {
        let (client, stop, added) = (db.client().await, stop.clone(), added.clone());
        producers.push(tokio::spawn(async move {
            let mut pace = tokio::time::interval(Duration::from_millis(4));
            while stop.load(Ordering::Relaxed) == 0 {
                pace.tick().await;
                client.batch_execute("select graphile_worker.add_job('quick', '{}')").await.unwrap();
                added.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    let (mut last, mut since, mut longest) = (0, Instant::now(), Duration::ZERO);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(8) {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let now = count.load(Ordering::Relaxed);
        if now != last {
            (last, since) = (now, Instant::now());
        }
        longest = longest.max(since.elapsed());
    }
    let (ran, added) = (count.load(Ordering::Relaxed), added.load(Ordering::Relaxed));
    stop.store(1, Ordering::Relaxed);
    for producer in producers {
        producer.await.unwrap();
    }
    worker.handle.abort();
    (ran, added, longest)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn durable_claims_continue_while_jobs_are_added_quickly() {
    jobs_start_under_adds(Claims::Durable, [0, 2, 10]).await;
}

/// More than 256 levels of jobs that are due tomorrow.
#[tokio::test]
async fn an_idle_worker_with_many_levels_is_idle() {
    let db = Database::migrated().await;
    let (proxy, url) = Proxy::before(&db.direct_url());
    db.client()
        .await
        .batch_execute(
            "select graphile_worker.add_job('quick', '{}', run_at := now() + interval '1 day', priority := n)
             from generate_series(1, 300) as n",
        )
        .await
        .unwrap();
    let mut reports = Reports::new();
    let options = options(&db).database_url(url).define_raw_job("quick", reports.task(|_| async {}));
    let worker = Running::start(options).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = proxy.round_trips();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let trips = proxy.round_trips() - before;
    println!("{trips} round trips in 5 s");
    assert!(reports.is_empty());
    worker.stop().await.unwrap();
    assert!(trips < 100, "{trips} round trips in 5 s");
}

/// There are more than 256 levels, and the worker has one slot.
#[tokio::test]
async fn the_order_is_exact_with_many_levels() {
    let db = Database::migrated().await;
    db.client()
        .await
        .batch_execute(
            "select graphile_worker.add_job('quick', '{}', priority := n) from generate_series(1, 600) as n",
        )
        .await
        .unwrap();
    let mut reports = Reports::new();
    let options = options(&db).concurrency(1).order_patience(Duration::from_secs(60));
    let options = options.define_raw_job("quick", reports.task(|_| async {}));
    let worker = options.init().await.unwrap();
    worker.run_once().await.unwrap();
    let mut priorities = Vec::new();
    while let Some(job) = reports.begun() {
        priorities.push(job.priority());
    }
    assert_eq!(priorities.len(), 600);
    let wrong: Vec<_> = priorities.windows(2).filter(|pair| pair[0] > pair[1]).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// A slow commit of a batch delays the jobs of the batch that were not started. Until they are free, no less urgent job
/// may start.
#[tokio::test]
async fn a_slow_settlement_delays_only_its_own_jobs() {
    let db = Database::migrated().await;
    let client = db.client().await;
    client
        .batch_execute(
            "create function public.slowly() returns trigger language plpgsql as $$
             begin
               if old.payload->>'is_slow' is not null then perform pg_sleep(6); end if;
               return old;
             end $$;
             create trigger slowly before delete on graphile_worker._private_jobs
             for each row execute function public.slowly()",
        )
        .await
        .unwrap();
    let mut reports = Reports::new();
    let task = reports.task(|ctx: WorkerContext| {
        let payload: serde_json::Value = ctx.payload().unwrap();
        let ms = payload["ms"].as_u64().unwrap_or(0);
        async move {
            if ms > 0 {
                tokio::time::sleep(Duration::from_millis(ms)).await;
            }
        }
    });
    let options = options(&db)
        .trust_triggers(true)
        .concurrency(4)
        .poll_interval(Duration::from_millis(500))
        .define_raw_job("mixed", task)
        .define_raw_job("other", reports.task(|_| async {}));
    let worker = Running::start(options).await;
    // Runs enough jobs that batches are large and the task counts as quick.
    for _ in 0..3 {
        client
            .batch_execute("select graphile_worker.add_job('mixed', '{}') from generate_series(1, 500)")
            .await
            .unwrap();
        wait_until_empty(&worker.utils).await;
    }
    while reports.begun().is_some() {}
    // One batch: a job whose deletion is slow, two jobs that run beyond the budget, and jobs that are not started.
    client
        .batch_execute(
            r#"do $$ begin
               perform graphile_worker.add_job('mixed', '{"is_slow": true}');
               for n in 1..3 loop perform graphile_worker.add_job('mixed', '{"ms": 90}'); end loop;
               for n in 1..40 loop perform graphile_worker.add_job('mixed', '{"ms": 8}'); end loop;
             end $$"#,
        )
        .await
        .unwrap();
    for _ in 0..3 {
        reports.next().await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    while reports.begun().is_some() {}
    let start = Instant::now();
    let other = worker.utils.add_raw_job("other", json!({}), spec()).await.unwrap().id();
    let queued = worker.utils.add_raw_job("other", json!({}), spec().queue_name("q")).await.unwrap().id();
    let mut times = Vec::new();
    while times.len() < 2 {
        let id = reports.next().await.id();
        if id == other || id == queued {
            times.push((id == queued, start.elapsed()));
        }
    }
    println!("{times:?}");
    worker.stop().await.unwrap();
    assert!(times.iter().all(|(_, time)| *time < Duration::from_secs(4)), "{times:?}");
}

/// One slot and a batch delay, with jobs of different queues.
#[tokio::test]
async fn one_slot_with_a_batch_delay_starts_jobs_of_other_queues() {
    let db = Database::migrated().await;
    db.client().await
        .batch_execute(
            "select graphile_worker.add_job('quick', '{}', queue_name := 'q' || n) from generate_series(1, 10) as n",
        )
        .await
        .unwrap();
    let mut reports = Reports::new();
    let options = options(&db)
        .concurrency(1)
        .complete_job_batch_delay(Duration::from_secs(1))
        .define_raw_job("quick", reports.task(|_| async {}));
    let worker = Running::start(options).await;
    reports.next().await;
    let start = Instant::now();
    for _ in 0..9 {
        reports.next().await;
    }
    println!("{:?}", start.elapsed());
    worker.stop().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
}

/// Waits until jobs are held, which happens only after the first poll.
async fn until_held(utils: &WorkerUtils, reports: &mut Reports) {
    loop {
        utils.add_raw_job("quick", json!({}), spec()).await.unwrap();
        if reports.next().await.locked_by().is_none() {
            return wait_until_empty(utils).await;
        }
    }
}

/// A task that waits for a permit.
fn wait_for_permit(
    gate: &Arc<Semaphore>,
) -> impl Fn(WorkerContext) -> BoxFuture<'static, ()> + Send + Sync + 'static {
    let gate = gate.clone();
    move |_| {
        let gate = gate.clone();
        Box::pin(async move { gate.acquire().await.unwrap().forget() })
    }
}

/// Waits until a job of the task `gated` is held and runs, and ends the connection that holds it.
async fn begin_and_lose(client: &Client, utils: &WorkerUtils, reports: &mut Reports) -> i64 {
    until_held(utils, reports).await;
    let id = utils.add_raw_job("gated", json!({}), spec()).await.unwrap().id();
    assert_eq!(reports.next().await.id(), id);
    let sql = "select count(pg_terminate_backend(pid)) from pg_stat_activity
               where datname = current_database() and state = 'idle in transaction'";
    assert!(client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) >= 1);
    id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held_claims_continue_while_jobs_are_added_quickly() {
    jobs_start_under_adds(Claims::Held, [2, 10, 30]).await;
}

/// A lost reply to a claim is resolved when no lane is busy. Held jobs whose connection was lost are claimed again by a
/// lane that waits for a row that another transaction has locked.
#[tokio::test]
async fn a_lost_claim_is_cleared_up_while_a_lost_job_is_blocked() {
    let db = Database::migrated().await;
    let (proxy, url) = Proxy::before(&db.direct_url());
    let (client, locker) = (db.client().await, db.client().await);
    let (gate, mut reports) = (Arc::new(Semaphore::new(0)), Reports::new());
    let gated = reports.task(wait_for_permit(&gate));
    let options = options(&db)
        .database_url(url)
        .claims(Claims::Held)
        .hold_budget(Duration::from_secs(1))
        .poll_interval(Duration::from_millis(300))
        .define_raw_job("gated", gated)
        .define_raw_job("quick", reports.task(|_| async {}));
    let worker = Running::start(options).await;
    let direct = WorkerUtils::connect(&db.direct_url()).unwrap();
    let id = begin_and_lose(&client, &direct, &mut reports).await;
    locker.batch_execute("begin").await.unwrap();
    locker
        .execute("select from graphile_worker._private_jobs where id = $1 for update", &[&id])
        .await
        .unwrap();
    gate.add_permits(1);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let control = direct.add_raw_job("quick", json!({}), spec()).await.unwrap().id();
    assert_eq!(reports.next().await.id(), control, "a blocked row alone delays nothing");
    proxy.lose_answer_with("lost-marker");
    let lost = direct
        .add_raw_job("quick", json!({"text": "lost-marker"}), spec().queue_name("q"))
        .await
        .unwrap()
        .id();
    wait_for("the answer to be lost", || async { (proxy.lost_answers() > 0).then_some(()) }).await;
    let other = direct.add_raw_job("quick", json!({}), spec()).await.unwrap().id();
    let start = Instant::now();
    let begun =
        tokio::time::timeout(SOON, async { [reports.next().await.id(), reports.next().await.id()] }).await;
    println!("{begun:?} of {lost} and {other} after {:?}", start.elapsed());
    locker.batch_execute("commit").await.unwrap();
    wait_until_empty(&direct).await;
    worker.handle.abort();
    assert!(begun.is_ok(), "nothing starts while another transaction keeps a row locked");
}

/// The same worker with one slot: a job that has ended, but can't be claimed again, must not occupy the slot.
#[tokio::test]
async fn a_lost_job_that_has_ended_has_no_slot() {
    let db = Database::migrated().await;
    let (client, locker) = (db.client().await, db.client().await);
    let (gate, mut reports) = (Arc::new(Semaphore::new(0)), Reports::new());
    let gated = reports.task(wait_for_permit(&gate));
    let options = options(&db)
        .concurrency(1)
        .claims(Claims::Held)
        .hold_budget(Duration::from_secs(1))
        .poll_interval(Duration::from_millis(300))
        .define_raw_job("gated", gated)
        .define_raw_job("quick", reports.task(|_| async {}));
    let worker = Running::start(options).await;
    let direct = WorkerUtils::connect(&db.direct_url()).unwrap();
    let id = begin_and_lose(&client, &direct, &mut reports).await;
    locker.batch_execute("begin").await.unwrap();
    locker
        .execute("select from graphile_worker._private_jobs where id = $1 for update", &[&id])
        .await
        .unwrap();
    // Its batch is committed while it runs.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    gate.add_permits(1);
    let other = direct.add_raw_job("quick", json!({}), spec()).await.unwrap().id();
    let begun = tokio::time::timeout(SOON, reports.next()).await;
    locker.batch_execute("commit").await.unwrap();
    wait_until_empty(&direct).await;
    worker.stop().await.unwrap();
    assert!(begun.is_ok(), "job {other} does not start although the only slot is free");
}

/// A held job whose connection was lost is free in the database while it runs. Every pick of the same worker finds it,
/// and must not keep it locked while the worker tries to claim it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workers_own_picks_do_not_keep_it_from_claiming_a_lost_job_again() {
    if claims() == Claims::Durable {
        return;
    }
    let db = Database::migrated().await;
    let client = db.client().await;
    let (gate, mut reports) = (Arc::new(Semaphore::new(0)), Reports::new());
    let gated = reports.task(wait_for_permit(&gate));
    let started = Arc::new(AtomicUsize::new(0));
    let counted = started.clone();
    let quick = move |_: WorkerContext| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { tokio::time::sleep(Duration::from_millis(fastrand::u64(0..5))).await }
    };
    let options = options(&db)
        .concurrency(4)
        .hold_budget(Duration::from_millis(500))
        .define_raw_job("gated", gated)
        .define_raw_job("load", quick)
        .define_raw_job("quick", reports.task(|_| async {}));
    let worker = Running::start(options).await;
    let direct = WorkerUtils::connect(&db.direct_url()).unwrap();
    let lost = begin_and_lose(&client, &direct, &mut reports).await;
    let (producer, start) = (direct.clone(), Instant::now());
    let (mut added, mut claimed_after) = (0, None);
    let sql = "select locked_by is not null from graphile_worker._private_jobs where id = $1";
    let mut longest = Duration::ZERO;
    let mut last = (start, 0);
    while start.elapsed() < Duration::from_secs(6) && (claimed_after.is_none() || added < 1000) {
        producer.add_raw_job("load", json!({}), spec()).await.unwrap();
        added += 1;
        if client.query_one(sql, &[&lost]).await.unwrap().get(0) {
            claimed_after.get_or_insert(start.elapsed());
        }
        if started.load(Ordering::Relaxed) > last.1 {
            last = (Instant::now(), started.load(Ordering::Relaxed));
        }
        longest = longest.max(last.0.elapsed());
    }
    println!("claimed anew after {claimed_after:?}; longest time without a start {longest:?}");
    gate.add_permits(1);
    wait_until_empty(&direct).await;
    worker.stop().await.unwrap();
    assert_eq!(started.load(Ordering::Relaxed), added, "each job starts once");
    assert!(claimed_after.is_some(), "the job that was lost is not claimed anew");
    assert!(longest < Duration::from_secs(3), "nothing started for {longest:?}");
}

/// After the only held task became slow, scheduled jobs must start in time, not at the next poll.
#[tokio::test]
async fn a_scheduled_job_of_a_slow_task_starts_in_time() {
    let db = Database::migrated().await;
    let mut reports = Reports::new();
    let slow = reports.task(|_: WorkerContext| async { tokio::time::sleep(Duration::from_millis(60)).await });
    let options =
        options(&db).concurrency(1).poll_interval(Duration::from_secs(20)).define_raw_job("slow", slow);
    let worker = Running::start(options).await;
    for _ in 0..6 {
        worker.utils.add_raw_job("slow", json!({}), spec()).await.unwrap();
    }
    wait_until_empty(&worker.utils).await;
    while reports.begun().is_some() {}
    let due = chrono::Utc::now() + chrono::TimeDelta::seconds(2);
    worker.utils.add_raw_job("slow", json!({}), spec().run_at(due)).await.unwrap();
    let start = Instant::now();
    reports.next().await;
    println!("{:?}", start.elapsed());
    worker.stop().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
}

/// With a local queue, two claims are under way at a time. One of them takes long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_claim_delays_only_the_jobs_that_it_returns() {
    let db = Database::migrated().await;
    let client = db.client().await;
    client
        .batch_execute(
            "create function public.slowly() returns trigger language plpgsql as $$
             begin
               if new.payload->>'is_slow' is not null and new.locked_at is not null then perform pg_sleep(8); end if;
               return new;
             end $$;
             create trigger slowly before update on graphile_worker._private_jobs
             for each row execute function public.slowly();
             select graphile_worker.add_job('steady', '{\"is_slow\": true}', priority := -1);
             select graphile_worker.add_job('steady', '{}') from generate_series(1, 400)",
        )
        .await
        .unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let options = options(&db)
        .concurrency(2)
        .claims(Claims::Durable)
        .local_queue(LocalQueueConfig::new(8))
        .define_raw_job("steady", move |_: WorkerContext| {
            counted.fetch_add(1, Ordering::Relaxed);
            async { tokio::time::sleep(Duration::from_millis(20)).await }
        });
    let worker = Running::start(options).await;
    let (mut last, mut since, mut longest) = (0, Instant::now(), Duration::ZERO);
    let (start, mut stalls) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(7) {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let now = count.load(Ordering::Relaxed);
        if now != last {
            stalls += usize::from(since.elapsed() > Duration::from_millis(500));
            (last, since) = (now, Instant::now());
        }
        longest = longest.max(since.elapsed());
    }
    println!("slow claim: {last} of 400 started in 7 s, {stalls} stalls, the longest {longest:?}");
    worker.handle.abort();
    assert!(stalls <= 2, "{stalls} stalls");
}

#[tokio::test]
async fn payloads_larger_than_the_limit_of_bytes_run() {
    for (slots, ahead) in [(1, 0), (4, 0), (4, 1), (4, 500)] {
        let db = Database::migrated().await;
        db.client().await
            .batch_execute(
                "select graphile_worker.add_job(case n % 2 when 0 then 'quick' else 'slow' end,
                   json_build_object('text', (select string_agg(md5(random()::text), '') from generate_series(1, 1500 + n))),
                   queue_name := case n % 3 when 0 then 'q' || n % 7 end, priority := n % 4)
                 from generate_series(1, 60) as n",
            )
            .await
            .unwrap();
        let mut options = options(&db)
            .concurrency(slots)
            .max_claim_bytes(1)
            .define_raw_job("quick", |_: WorkerContext| async {})
            .define_raw_job("slow", |_: WorkerContext| async {
                tokio::time::sleep(Duration::from_millis(30)).await
            });
        if ahead > 0 {
            options = options.local_queue(LocalQueueConfig::new(ahead));
        }
        let worker = options.init().await.unwrap();
        let start = Instant::now();
        let ended = tokio::time::timeout(Duration::from_secs(30), worker.run_once()).await;
        let left = worker.create_utils().count_jobs().await.unwrap().total();
        println!(
            "bytes, {slots} slots, {ahead} ahead: {:?}, {left} left, ended {}",
            start.elapsed(),
            ended.is_ok()
        );
        assert!(ended.is_ok() && left == 0);
    }
}

/// How many round trips a worker makes that can't do anything.
#[tokio::test]
async fn a_worker_that_can_do_nothing_is_idle() {
    let jobs = [
        ("locked row", "select graphile_worker.add_job('quick', '{}')"),
        (
            "forbidden",
            "select graphile_worker.add_job('quick', '{}', flags := array['no'], priority := n) from generate_series(1, 20) n",
        ),
        (
            "locked queue",
            "select graphile_worker.add_job('quick', '{}', queue_name := 'q');
          update graphile_worker._private_job_queues set locked_by = 'other', locked_at = now()",
        ),
        (
            "forbidden, many levels",
            "select graphile_worker.add_job('quick', '{}', flags := array['no'], priority := n) from generate_series(1, 300) n",
        ),
    ];
    for (what, sql) in jobs {
        let db = Database::migrated().await;
        let (proxy, url) = Proxy::before(&db.direct_url());
        let locker = db.client().await;
        locker.batch_execute(sql).await.unwrap();
        if what == "locked row" {
            locker
                .batch_execute("begin; select from graphile_worker._private_jobs for update")
                .await
                .unwrap();
        }
        let options = options(&db)
            .database_url(url)
            .add_forbidden_flag("no")
            .define_raw_job("quick", |_: WorkerContext| async {});
        let worker = Running::start(options).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let before = proxy.round_trips();
        tokio::time::sleep(Duration::from_secs(4)).await;
        println!("{what}: {} round trips in 4 s", proxy.round_trips() - before);
        worker.handle.abort();
    }
}

/// A payload that takes long to read, on the connection of a held pick.
#[tokio::test]
async fn a_slow_payload_delays_only_its_own_job() {
    // About a worker that holds jobs.
    if claims() == Claims::Durable {
        return;
    }
    let db = Database::migrated().await;
    let (proxy, url) = Proxy::before(&db.direct_url());
    let direct = WorkerUtils::connect(&db.direct_url()).unwrap();
    let mut reports = Reports::new();
    let options = options(&db)
        .database_url(url)
        .poll_interval(Duration::from_millis(500))
        .define_raw_job("quick", reports.task(|_| async {}));
    let worker = Running::start(options).await;
    until_held(&direct, &mut reports).await;
    proxy.throttle(300_000);
    let large = json!({ "text": "x".repeat(2_400_000) });
    let large = direct.add_raw_job("quick", large, spec()).await.unwrap().id();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let start = Instant::now();
    let queued = direct.add_raw_job("quick", json!({}), spec().queue_name("q")).await.unwrap().id();
    let other = direct.add_raw_job("quick", json!({}), spec()).await.unwrap().id();
    let mut times = Vec::new();
    for _ in 0..3 {
        let id = reports.next().await.id();
        let what = if id == large {
            "large"
        } else if id == queued {
            "queued"
        } else {
            "other"
        };
        times.push((what, start.elapsed()));
    }
    println!("slow payload: {times:?} {other}");
    worker.handle.abort();
    let late = times.iter().any(|(what, time)| *what != "large" && *time > Duration::from_secs(3));
    assert!(!late, "{times:?}");
}

/// Many forbidden jobs make a pick from the start slow; until it is over nobody asks when the next job is due.
#[tokio::test]
async fn a_scheduled_job_starts_in_time_beside_forbidden_ones() {
    let db = Database::migrated().await;
    let client = db.client().await;
    client
        .batch_execute(
            "select graphile_worker.add_job('quick', '{}', flags := array['no']);
             insert into graphile_worker._private_jobs (task_id, payload, flags, priority)
             select task_id, payload, flags, priority from graphile_worker._private_jobs, generate_series(1, 150000);
             analyze graphile_worker._private_jobs",
        )
        .await
        .unwrap();
    let mut reports = Reports::new();
    let options = options(&db)
        .poll_interval(Duration::from_secs(20))
        .recovery_threshold(Duration::from_secs(300))
        .add_forbidden_flag("no")
        .define_raw_job("quick", reports.task(|_| async {}));
    let worker = Running::start(options).await;
    let mut worst = Duration::ZERO;
    for _ in 0..3 {
        worker.utils.add_raw_job("quick", json!({}), spec()).await.unwrap();
        reports.next().await;
        let due = chrono::Utc::now() + chrono::TimeDelta::milliseconds(700);
        worker.utils.add_raw_job("quick", json!({}), spec().run_at(due)).await.unwrap();
        reports.next().await;
        worst = worst.max((chrono::Utc::now() - due).to_std().unwrap_or_default());
    }
    println!("forbidden: started {worst:?} too late");
    worker.handle.abort();
    assert!(worst < Duration::from_secs(5), "started {worst:?} too late");
}

/// More than 256 levels of due jobs, in a worker that goes on.
#[tokio::test]
async fn many_levels_of_due_jobs_run_without_delay() {
    let db = Database::migrated().await;
    db.client()
        .await
        .batch_execute(
            "select graphile_worker.add_job('quick', '{}', priority := n) from generate_series(1, 2000) as n",
        )
        .await
        .unwrap();
    let mut reports = Reports::new();
    let options = options(&db)
        // A job that only a poll can find would make the test fail.
        .poll_interval(Duration::from_secs(3600))
        .define_raw_job("quick", reports.task(|_| async {}));
    let worker = Running::start(options).await;
    let start = Instant::now();
    for _ in 0..2000 {
        reports.next().await;
    }
    println!("many levels: {:?}", start.elapsed());
    worker.stop().await.unwrap();
}

/// A due job behind more levels than are remembered, none of which is due.
#[tokio::test]
async fn a_due_job_behind_many_levels_starts() {
    let db = Database::migrated().await;
    db.client()
        .await
        .batch_execute(
            "select graphile_worker.add_job('quick', '{}', run_at := now() + interval '1 day', priority := n)
             from generate_series(1, 700) as n",
        )
        .await
        .unwrap();
    let mut reports = Reports::new();
    let options = options(&db).define_raw_job("quick", reports.task(|_| async {}));
    let worker = Running::start(options).await;
    for priority in [800, 350, 1] {
        let start = Instant::now();
        let job = worker.utils.add_raw_job("quick", json!({}), spec().priority(priority)).await.unwrap().id();
        assert_eq!(reports.next().await.id(), job);
        println!("behind many levels: {:?}", start.elapsed());
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    }
    worker.stop().await.unwrap();
}

/// The job of a lost claim is locked by another transaction: returning it must not hold up everything else.
#[tokio::test]
async fn a_lost_claim_whose_row_is_blocked_delays_only_itself() {
    // About a worker that holds jobs.
    if claims() == Claims::Durable {
        return;
    }
    let db = Database::migrated().await;
    let (proxy, url) = Proxy::before(&db.direct_url());
    let locker = db.client().await;
    let mut reports = Reports::new();
    let options = options(&db)
        .database_url(url)
        .poll_interval(Duration::from_millis(300))
        .define_raw_job("quick", reports.task(|_| async {}));
    let worker = Running::start(options).await;
    let direct = WorkerUtils::connect(&db.direct_url()).unwrap();
    until_held(&direct, &mut reports).await;
    locker.batch_execute("begin").await.unwrap();
    proxy.lose_answer_with("lost-marker");
    let lost = direct
        .add_raw_job("quick", json!({"text": "lost-marker"}), spec().queue_name("q"))
        .await
        .unwrap()
        .id();
    while proxy.lost_answers() == 0 {
        tokio::task::yield_now().await;
    }
    let sql = "select locked_by is not null from graphile_worker._private_jobs where id = $1 for update";
    let was_claimed: bool = locker.query_one(sql, &[&lost]).await.unwrap().get(0);
    let other = direct.add_raw_job("quick", json!({}), spec()).await.unwrap().id();
    let begun = tokio::time::timeout(SOON, reports.next()).await;
    println!("blocked row of a lost claim: {other} began: {}, still claimed: {was_claimed}", begun.is_ok());
    locker.batch_execute("commit").await.unwrap();
    wait_until_empty(&direct).await;
    worker.handle.abort();
    assert!(begun.is_ok(), "nothing starts");
}
