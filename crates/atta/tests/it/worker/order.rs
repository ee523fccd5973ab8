//! Jobs start by priority, then by run_at, then by id, whatever kind of claim they need.
//!
//! With one slot and no concurrent changes, the order is exact. Otherwise, a job never starts while a more urgent one
//! that the worker could run has been visible for longer than [`TOLERANCE`], or longer on a busy machine ([`Probe`]).

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use atta::{JobSpecBuilder, LocalQueueConfig, RawJobSpec, WorkerContext, WorkerOptions, WorkerUtils};
use chrono::{DateTime, TimeDelta, Utc};
use testkit::Database;
use tokio_postgres::Client;

use super::support::{Running, claims, options, wait_until_empty};

/// The guarantee on an idle machine. On a busy one, [`Probe::tolerance`] adds to it.
const TOLERANCE: Duration = Duration::from_millis(100);

/// Jobs that leave the list one after the other may start on two threads at the same time, in any order.
const AT_ONCE: Duration = Duration::from_millis(20);

/// Sends empty queries during a test: how long they take shows how busy the machine is.
struct Probe {
    longest: Arc<Mutex<Duration>>,
    task: tokio::task::JoinHandle<()>,
}

impl Probe {
    async fn start(db: &Database) -> Probe {
        let (client, longest) = (db.client().await, Arc::new(Mutex::new(Duration::ZERO)));
        let noted = longest.clone();
        let task = tokio::spawn(async move {
            loop {
                let start = Instant::now();
                tokio::time::sleep(Duration::from_millis(5)).await;
                client.batch_execute("select 1").await.expect("the database answers");
                let mut longest = noted.lock().expect("nobody panics with it");
                *longest = longest.max(start.elapsed());
            }
        });
        Probe { longest, task }
    }

    /// The tolerance on a machine as busy as this one. Before a job starts, the worker waits for up to five replies of the
    /// database: to a notification or a poll, to a claim that is under way, to a release that frees a slot, to the claim
    /// that finds the job, and to the commit of a batch. Any of them may take as long as the slowest query of the probe. On
    /// an idle machine, such a query takes less than 10 ms with the pause before it.
    fn tolerance(&self) -> Duration {
        TOLERANCE + 5 * *self.longest.lock().expect("nobody panics with it")
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What determines the order of jobs: priority, run_at, id.
type Order = (i16, DateTime<Utc>, i64);

#[derive(Clone, Debug)]
struct Start {
    order: Order,
    /// Task, queue, and whether the claim was durable, for messages.
    about: String,
    at: Instant,
    ended_at: Option<Instant>,
}

/// When each job started and ended.
#[derive(Clone, Default)]
struct Starts {
    starts: Arc<Mutex<Vec<Start>>>,
}

impl Starts {
    /// A task that records its start, and takes this long.
    fn task(&self, ms: u64) -> impl Fn(WorkerContext) -> TaskFuture + Send + Sync + 'static + use<> {
        let starts = self.starts.clone();
        move |ctx: WorkerContext| {
            let (job, starts) = (ctx.job(), starts.clone());
            let order = (job.priority(), job.run_at(), job.id());
            let claim = if job.locked_by().is_some() { "durable" } else { "held" };
            let flags = job.flags().len();
            let about = format!("{} {:?} {claim} {flags} flags", job.task_identifier(), job.queue_name());
            let index = {
                let mut starts = starts.lock().unwrap();
                starts.push(Start { order, about, at: Instant::now(), ended_at: None });
                starts.len() - 1
            };
            Box::pin(async move {
                if ms > 0 {
                    tokio::time::sleep(Duration::from_millis(ms)).await;
                }
                starts.lock().unwrap()[index].ended_at = Some(Instant::now());
            })
        }
    }

    fn all(&self) -> Vec<Start> {
        self.starts.lock().unwrap().clone()
    }

    fn start_of(&self, id: i64) -> Option<Start> {
        self.all().into_iter().find(|start| start.order.2 == id)
    }
}

type TaskFuture = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// `slow` is claimed durably once it is known to be slow; `fast` and `quick` are held.
fn with_tasks(options: WorkerOptions, starts: &Starts, slow_ms: u64) -> WorkerOptions {
    options
        // On a busy machine a statement may take longer than a worker waits for it. Then the order would not be exact.
        .order_patience(Duration::from_secs(60))
        .define_raw_job("fast", starts.task(0))
        .define_raw_job("quick", starts.task(0))
        .define_raw_job("slow", starts.task(slow_ms))
}

/// A mix of priorities, times, queues and tasks. Many share a priority, some share a time.
async fn add_mix(
    client: &Client,
    utils: &WorkerUtils,
    random: &mut fastrand::Rng,
    count: usize,
) -> HashMap<i64, Option<String>> {
    // By the database's clock: this machine may have another one.
    let now: DateTime<Utc> = client.query_one("select now()", &[]).await.unwrap().get(0);
    let mut queues = HashMap::new();
    let specs: Vec<(RawJobSpec, Option<String>)> = (0..count)
        .map(|_| {
            let task = ["fast", "fast", "quick", "slow"][random.usize(0..4)];
            let queue = [None, None, Some("one"), Some("two"), Some("three")][random.usize(0..5)];
            let mut spec = JobSpecBuilder::new()
                .priority(random.i16(-2..=2))
                .run_at(now - TimeDelta::seconds(random.i64(1..8)));
            if let Some(queue) = queue {
                spec = spec.queue_name(queue);
            }
            (RawJobSpec::new(task, 0, spec.build()).unwrap(), queue.map(str::to_owned))
        })
        .collect();
    // Jobs with flags are found by a separate index.
    let (raw, names): (Vec<RawJobSpec>, Vec<Option<String>>) = specs.into_iter().unzip();
    for (job, queue) in utils.add_raw_jobs(&raw).await.unwrap().iter().zip(names) {
        queues.insert(job.id(), queue);
    }
    let sql = "update graphile_worker._private_jobs set flags = '{\"harmless\": true}' where id % 7 = 0";
    client.batch_execute(sql).await.unwrap();
    queues
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_one_slot_any_mix_of_jobs_runs_in_exact_order() {
    let db = Database::migrated().await;
    let client = db.client().await;
    for seed in 0..12 {
        let mut random = fastrand::Rng::with_seed(seed);
        let starts = Starts::default();
        let mut options = with_tasks(options(&db), &starts, 30).concurrency(1);
        if seed % 3 == 1 {
            options = options.local_queue(LocalQueueConfig::new(10));
        }
        if seed % 2 == 1 {
            options = options.add_forbidden_flag("something else");
        }
        let worker = options.init().await.unwrap();
        add_mix(&client, &worker.create_utils(), &mut random, 40).await;
        worker.run_once().await.unwrap();
        assert_eq!(starts.all().len(), 40, "seed {seed}");
        assert_exact_order(&starts.all(), seed);
    }
}

fn assert_exact_order(starts: &[Start], seed: u64) {
    let Some(first) = starts.windows(2).position(|pair| pair[0].order > pair[1].order) else { return };
    let near = &starts[first.saturating_sub(2)..(first + 4).min(starts.len())];
    let line = |start: &Start| format!("{:?} {:?} {}\n", start.at - starts[0].at, start.order, start.about);
    panic!("seed {seed}: out of order\n{}", near.iter().map(line).collect::<String>());
}

/// For a running worker, and jobs that are added with run_at in the past: these are found within the tolerance.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_slot_of_a_running_worker_keeps_the_order_of_added_jobs() {
    let db = Database::migrated().await;
    let (client, probe) = (db.client().await, Probe::start(&db).await);
    let starts = Starts::default();
    let worker = Running::start(with_tasks(options(&db), &starts, 30).concurrency(1)).await;
    for seed in 100..103 {
        let before = starts.all().len();
        let queues = add_mix_at_once(&client, seed).await;
        let visible_at = Instant::now();
        wait_until_empty(&worker.utils).await;
        let found = inversions(&starts.all()[before..], &queues, visible_at, probe.tolerance());
        assert!(
            found.is_empty(),
            "seed {seed}: {} inversions, {:#?}",
            found.len(),
            &found[..found.len().min(5)]
        );
    }
    worker.stop().await.unwrap();
}

/// In one transaction, so that no worker sees only a part of it.
async fn add_mix_at_once(client: &Client, seed: u64) -> HashMap<i64, Option<String>> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut queues = HashMap::new();
    client.batch_execute("begin").await.unwrap();
    for _ in 0..100 {
        let task = ["fast", "quick", "slow"][random.usize(0..3)];
        let queue = [None, None, Some("one"), Some("two")][random.usize(0..4)];
        let name = queue.map_or("null".to_owned(), |queue| format!("'{queue}'"));
        let sql = format!(
            "select (graphile_worker.add_job('{task}', queue_name := {name}, priority := {}, \
             run_at := now() - {} * interval '1 second')).id",
            random.i16(-2..=2),
            random.i64(1..8)
        );
        let id: i64 = client.query_one(&sql, &[]).await.unwrap().get(0);
        queues.insert(id, queue.map(str::to_owned));
    }
    client.batch_execute("commit").await.unwrap();
    queues
}

/// The jobs for which a start should have waited: more urgent, visible and not blocked by their queue for longer than
/// the tolerance. All jobs were visible at `visible_at`.
fn inversions(
    starts: &[Start],
    queues: &HashMap<i64, Option<String>>,
    visible_at: Instant,
    tolerance: Duration,
) -> Vec<String> {
    let mut found = Vec::new();
    for (index, start) in starts.iter().enumerate() {
        for later in &starts[index + 1..] {
            let is_at_once = later.at.saturating_duration_since(start.at) < AT_ONCE;
            if later.order >= start.order || is_at_once {
                continue;
            }
            // It could run when the previous job of its queue had ended.
            let queue = queues.get(&later.order.2).cloned().flatten();
            let free_at = starts[..index]
                .iter()
                .filter(|other| queue.is_some() && queues.get(&other.order.2).cloned().flatten() == queue)
                .map(|other| other.ended_at.unwrap_or(other.at + Duration::from_secs(3600)))
                .max();
            let since = free_at.map_or(visible_at, |free_at| free_at.max(visible_at));
            if start.at.saturating_duration_since(since) > tolerance {
                let waited = start.at.saturating_duration_since(since);
                found.push(format!(
                    "{:?} {} began before {:?} {}, which had waited for {waited:?}",
                    start.order, start.about, later.order, later.about
                ));
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_several_slots_no_job_starts_while_a_more_urgent_one_has_waited_long() {
    let db = Database::migrated().await;
    let (client, probe) = (db.client().await, Probe::start(&db).await);
    for seed in 0..6 {
        let mut random = fastrand::Rng::with_seed(1000 + seed);
        let slots = random.usize(2..=8);
        let starts = Starts::default();
        let mut options = with_tasks(options(&db), &starts, 40).concurrency(slots);
        if seed % 2 == 1 {
            options = options.local_queue(LocalQueueConfig::new(random.usize(1..200)));
        }
        let utils = WorkerUtils::connect(&db.url()).unwrap();
        let queues = add_mix(&client, &utils, &mut random, 200).await;
        let visible_at = Instant::now();
        options.init().await.unwrap().run_once().await.unwrap();
        let all = starts.all();
        assert_eq!(all.iter().map(|start| start.order.2).collect::<HashSet<_>>().len(), 200, "seed {seed}");
        let found = inversions(&all, &queues, visible_at, probe.tolerance());
        assert!(
            found.is_empty(),
            "seed {seed}, {slots} slots: {} inversions, {:#?}",
            found.len(),
            &found[..found.len().min(5)]
        );
    }
}

async fn add_many(client: &Client, task: &str, priority: i16, count: u32) {
    let sql = format!(
        "insert into graphile_worker._private_tasks (identifier) values ('{task}') on conflict do nothing;
         insert into graphile_worker._private_jobs (task_id, priority, payload)
         select id, {priority}, '0' from graphile_worker._private_tasks, generate_series(1, {count})
         where identifier = '{task}'"
    );
    client.batch_execute(&sql).await.unwrap();
}

async fn add_one(client: &Client, task: &str, arguments: &str) -> i64 {
    let sql = format!("select (graphile_worker.add_job('{task}', '0'{arguments})).id");
    client.query_one(&sql, &[]).await.unwrap().get(0)
}

/// How long a job waited since then until it started.
async fn waited(starts: &Starts, id: i64, since: Instant) -> Duration {
    let start = testkit::wait_for("the urgent job to begin", || async { starts.start_of(id) }).await;
    start.at.saturating_duration_since(since)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_urgent_job_does_not_wait_for_a_drain() {
    if claims() == atta::Claims::Durable {
        return;
    }
    let db = Database::migrated().await;
    let (client, probe) = (db.client().await, Probe::start(&db).await);
    let starts = Starts::default();
    let urgent = starts.task(0);
    let options =
        options(&db).concurrency(24).define_raw_job("urgent", urgent).define_raw_job("noop", |_| async {});
    add_many(&client, "noop", 0, 400_000).await;
    let worker = Running::start(options).await;
    let left = "select count(*) from graphile_worker._private_jobs where priority = 0";
    testkit::wait_for("the drain to be well under way", || async {
        (client.query_one(left, &[]).await.unwrap().get::<_, i64>(0) < 300_000).then_some(())
    })
    .await;
    // With a new priority, with one that was seen before, with an older time, and in a queue.
    let arguments = [
        ", priority := -10",
        ", priority := -10",
        ", run_at := now() - interval '1 hour'",
        ", priority := -10, queue_name := 'q'",
    ];
    for arguments in arguments {
        let id = add_one(&client, "urgent", arguments).await;
        let waited = waited(&starts, id, Instant::now()).await;
        let left: i64 = client.query_one(left, &[]).await.unwrap().get(0);
        println!("{arguments}: waited {waited:?}, {left} less urgent jobs left");
        assert!(left > 0, "the drain is over: nothing was shown");
        let tolerance = probe.tolerance();
        assert!(waited < tolerance, "{arguments}: {waited:?}, with a tolerance of {tolerance:?}");
    }
    worker.handle.abort();
    worker.join().await.unwrap();
}

/// Jobs in a local queue are claimed, but not started: they must not delay more urgent jobs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held_jobs_do_not_wait_for_a_local_queue_of_less_urgent_ones() {
    const SLOW_MS: u64 = 40;
    // Without LISTEN, behind a pooler, a poll finds the urgent jobs.
    const POLL: Duration = Duration::from_millis(300);
    let db = Database::migrated().await;
    let (client, probe) = (db.client().await, Probe::start(&db).await);
    let starts = Starts::default();
    let options =
        with_tasks(options(&db), &starts, SLOW_MS).concurrency(2).local_queue(LocalQueueConfig::new(200));
    add_many(&client, "slow", 100, 100).await;
    let worker = Running::start(options.poll_interval(POLL)).await;
    testkit::wait_for("slow jobs to run", || async { (starts.all().len() > 6).then_some(()) }).await;
    let since = Instant::now();
    let ids = [
        add_one(&client, "fast", ", priority := -100").await,
        add_one(&client, "fast", ", queue_name := 'q'").await,
    ];
    for id in ids {
        let waited = waited(&starts, id, since).await;
        let begun = starts.all().iter().filter(|start| start.order.0 == 100).count();
        println!("{begun} of 100 slow jobs had begun {waited:?} after the urgent ones were added");
        assert!(begun < 100, "the slow jobs have all begun: nothing was shown");
        // A slot is free when its slow job has ended.
        let limit = POLL + Duration::from_millis(SLOW_MS) + probe.tolerance();
        assert!(waited < limit, "an urgent job waited for {waited:?}, with a limit of {limit:?}");
    }
    worker.handle.abort();
    worker.join().await.unwrap();
}

/// Slow jobs use all slots; whenever a slot is free, the more urgent fast jobs go first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fast_urgent_jobs_go_before_slow_ones_that_are_not() {
    let db = Database::migrated().await;
    let (client, probe) = (db.client().await, Probe::start(&db).await);
    let starts = Starts::default();
    let worker = Running::start(with_tasks(options(&db), &starts, 60).concurrency(4)).await;
    add_many(&client, "slow", 100, 200).await;
    testkit::wait_for("slow jobs to run", || async { (starts.all().len() > 20).then_some(()) }).await;
    add_many(&client, "fast", -100, 2000).await;
    client.batch_execute("notify \"jobs:insert\", '{\"count\":2000}'").await.unwrap();
    let announced_at = Instant::now();
    testkit::wait_for("the fast jobs to have begun", || async {
        let fast = starts.all().iter().filter(|start| start.order.0 == -100).count();
        (fast == 2000).then_some(())
    })
    .await;
    let all = starts.all();
    let last_fast = all.iter().filter(|start| start.order.0 == -100).map(|start| start.at).max().unwrap();
    let tolerance = probe.tolerance();
    let is_wrong = |start: &&Start| {
        start.order.0 == 100 && start.at > announced_at + tolerance && start.at + AT_ONCE < last_fast
    };
    let wrong: Vec<Duration> = all.iter().filter(is_wrong).map(|start| start.at - announced_at).collect();
    println!("the last of 2,000 urgent fast jobs began after {:?}", last_fast - announced_at);
    assert!(
        wrong.is_empty(),
        "slow jobs began beside urgent ones, with a tolerance of {tolerance:?}: {wrong:?}"
    );
    worker.handle.abort();
    worker.join().await.unwrap();
}
