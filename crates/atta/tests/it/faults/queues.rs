//! Named queues under load: their jobs run in order and never two at a time.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use atta::{JobSpecBuilder, LocalQueueConfig, RawJobSpec, WorkerContext, WorkerEvent, WorkerUtils};
use serde::{Deserialize, Serialize};
use testkit::Database;

use super::support::event;
use crate::worker::support::{Running, options, wait_until_empty};

#[derive(Serialize, Deserialize)]
struct Step {
    queue: usize,
    n: u64,
}

/// What the test knows about one queue.
#[derive(Default)]
struct Line {
    is_busy: AtomicBool,
    next: AtomicU64,
}

type LineStep = Pin<Box<dyn Future<Output = atta::Result<()>> + Send>>;

/// All queues of a test, and the violations in them.
struct Lines {
    lines: Vec<Line>,
    overlaps: AtomicUsize,
    out_of_order: AtomicUsize,
}

impl Lines {
    fn task(self: &Arc<Lines>) -> impl Fn(WorkerContext) -> LineStep + Clone + Send + Sync + 'static {
        let lines = self.clone();
        move |ctx| Box::pin(lines.clone().step(ctx))
    }

    fn assert_in_order(&self, jobs: u64) {
        assert_eq!(self.overlaps.load(Ordering::SeqCst), 0, "two jobs of a queue at a time");
        assert_eq!(self.out_of_order.load(Ordering::SeqCst), 0, "jobs out of order");
        assert!(self.lines.iter().all(|line| line.next.load(Ordering::SeqCst) == jobs), "each ran");
    }

    fn new(count: usize) -> Arc<Lines> {
        let lines = (0..count).map(|_| Line::default()).collect();
        Arc::new(Lines { lines, overlaps: AtomicUsize::new(0), out_of_order: AtomicUsize::new(0) })
    }

    async fn step(self: Arc<Lines>, ctx: WorkerContext) -> atta::Result<()> {
        let Step { queue, n } = ctx.payload()?;
        let line = &self.lines[queue];
        if line.is_busy.swap(true, Ordering::SeqCst) {
            self.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        if line.next.swap(n + 1, Ordering::SeqCst) != n {
            self.out_of_order.fetch_add(1, Ordering::SeqCst);
        }
        tokio::task::yield_now().await;
        line.is_busy.store(false, Ordering::SeqCst);
        Ok(())
    }
}

/// When jobs are added.
#[derive(PartialEq)]
enum Added {
    BeforeTheStart,
    /// While workers are already listening.
    WhileWaitedFor,
}

/// Runs `jobs` jobs in each of `queues` queues by two workers. Returns the time from the start, or from the add if that
/// is later, to the end of the last job.
async fn run_in_queues(queues: usize, jobs: u64, slots: usize, added: Added) -> Duration {
    let db = Database::migrated().await;
    let lines = Lines::new(queues);
    let specs: Vec<RawJobSpec> = (0..jobs)
        .flat_map(|n| (0..queues).map(move |queue| Step { queue, n }))
        .map(|step| {
            let spec = JobSpecBuilder::new().queue_name(format!("queue {}", step.queue));
            RawJobSpec::new("step", step, spec).expect("the payload is JSON")
        })
        .collect();
    let utils = WorkerUtils::connect(&db.url()).expect("a connection string");
    let add = async || utils.add_raw_jobs(&specs).await.expect("jobs are added");
    if added == Added::BeforeTheStart {
        add().await;
    }
    let task = lines.task();
    // A job that needs a poll to start would make the test fail.
    let rarely = Duration::from_secs(3600);
    let options =
        || options(&db).concurrency(slots).poll_interval(rarely).define_raw_job("step", task.clone());
    let first = options().init().await.expect("the worker starts");
    let second = options().init().await.expect("the worker starts");
    let mut events = [first.events(), second.events()];
    let mut start = Instant::now();
    let workers = [Running::with(first), Running::with(second)];
    if added == Added::WhileWaitedFor {
        for events in &mut events {
            event(events, |event| matches!(event, WorkerEvent::ListenStarted).then_some(())).await;
        }
        // Opens the connection first, so that its time is not measured.
        utils.count_jobs().await.expect("an answer");
        start = Instant::now();
        add().await;
    }
    // Checks every millisecond: pauses that grow would distort the measured time by up to half.
    while lines.lines.iter().any(|line| line.next.load(Ordering::SeqCst) < jobs) {
        assert!(start.elapsed() < testkit::DEADLINE, "the jobs do not end");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let time = start.elapsed();
    wait_until_empty(&workers[0].utils).await;
    for worker in workers {
        worker.stop().await.expect("it ends in good order");
    }
    lines.assert_in_order(jobs);
    time
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_jobs_of_one_queue_run_in_order_one_at_a_time() {
    let time = run_in_queues(1, 10, 4, Added::BeforeTheStart).await;
    println!("10 jobs in one queue took {time:?}, the start of two workers included");
    // Without LISTEN, the workers would wait for a poll.
    if testkit::can_listen() {
        let time = run_in_queues(1, 10, 4, Added::WhileWaitedFor).await;
        println!("10 jobs in one queue took {time:?} from their add (wanted of a release build: 100 ms)");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_jobs_of_a_hundred_queues_run_in_order_one_at_a_time_each() {
    let time = run_in_queues(100, 100, 50, Added::BeforeTheStart).await;
    let rate = 10_000.0 / time.as_secs_f64();
    println!("10,000 jobs in 100 queues: {rate:.0} jobs/s (wanted of a release build: 3,000)");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_queues_than_are_looked_at_one_by_one_run_in_order() {
    run_in_queues(250, 4, 20, Added::BeforeTheStart).await;
}

/// More jobs than a claim reads from the front, all of one queue that is busy. The other queues, whose jobs come later,
/// must be found.
#[tokio::test]
async fn a_long_busy_queue_does_not_hide_other_queues() {
    let db = Database::migrated().await;
    let utils = WorkerUtils::connect(&db.url()).expect("a connection string");
    let jobs = |name: fn(usize) -> String, count| -> Vec<RawJobSpec> {
        let spec = |n| JobSpecBuilder::new().queue_name(name(n));
        let job = |n| RawJobSpec::new("wait", name(n), spec(n)).expect("the payload is JSON");
        (0..count).map(job).collect()
    };
    let (opened, gate) = tokio::sync::watch::channel(false);
    let task = move |ctx: WorkerContext| {
        let mut gate = gate.clone();
        async move {
            if ctx.payload::<String>().is_ok_and(|name| name == "long") {
                let _ = gate.wait_for(|is_open| *is_open).await;
            }
        }
    };
    utils.add_raw_jobs(&jobs(|_| "long".into(), 1100)).await.expect("jobs are added");
    utils.add_raw_jobs(&jobs(|n| format!("short {n}"), 250)).await.expect("jobs are added");
    let worker = Running::start(options(&db).concurrency(10).define_raw_job("wait", task)).await;
    let client = db.client().await;
    let sql = "select count(*) from graphile_worker.jobs";
    testkit::wait_for("all but those of the long queue to be done", || async {
        (client.query_one(sql, &[]).await.expect("a count").get::<_, i64>(0) == 1100).then_some(())
    })
    .await;
    opened.send_replace(true);
    worker.stop().await.expect("it ends in good order");
}

/// Adds jobs of many queues by SQL, all with the same time. The jobs that must run last are stored first.
async fn add_backwards(db: &Database, queues: usize, jobs: u64, flags_of_the_first: &str) {
    let sql = format!(
        "insert into graphile_worker._private_tasks (identifier) values ('step');
         insert into graphile_worker._private_job_queues (queue_name)
         select 'queue ' || queue from generate_series(0, {queues} - 1) as queue;
         insert into graphile_worker._private_jobs (id, task_id, job_queue_id, payload, flags)
         overriding system value
         select 1 + n * {queues} + row_number() over (partition by n), task.id, queue.id,
           json_build_object('queue', substr(queue_name, 7)::int, 'n', n),
           case when n = 0 then {flags_of_the_first}::jsonb end
         from graphile_worker._private_tasks as task, graphile_worker._private_job_queues as queue,
           generate_series(0, {jobs} - 1) as n
         order by n desc"
    );
    db.client().await.batch_execute(&sql).await.expect("jobs are added");
}

/// More jobs with the same time than a claim reads from the front, and the first jobs of each queue are stored last.
#[tokio::test]
async fn jobs_with_the_same_time_run_in_the_order_of_their_ids() {
    let (db, lines) = (Database::migrated().await, Lines::new(150));
    add_backwards(&db, 150, 10, "null").await;
    let worker = Running::start(options(&db).concurrency(20).define_raw_job("step", lines.task())).await;
    wait_until_empty(&worker.utils).await;
    worker.stop().await.expect("it ends in good order");
    lines.assert_in_order(10);
}

#[tokio::test]
async fn a_forbidden_job_at_the_head_of_each_of_many_queues_is_passed_by() {
    let (db, lines) = (Database::migrated().await, Lines::new(150));
    for line in &lines.lines {
        line.next.store(1, Ordering::SeqCst);
    }
    add_backwards(&db, 150, 4, r#"'{"later": true}'"#).await;
    let options = options(&db).concurrency(20).add_forbidden_flag("later");
    let worker = Running::start(options.define_raw_job("step", lines.task())).await;
    let client = db.client().await;
    testkit::wait_for("all but the forbidden ones to be done", || async {
        let sql = "select count(*) from graphile_worker.jobs";
        (client.query_one(sql, &[]).await.expect("a count").get::<_, i64>(0) == 150).then_some(())
    })
    .await;
    worker.stop().await.expect("it ends in good order");
    lines.assert_in_order(4);
}

/// Each release frees a queue. If each were followed by a claim, each claim would return only a few jobs.
#[tokio::test]
async fn a_worker_runs_jobs_claimed_ahead_before_it_claims_a_few_more() {
    let (db, lines) = (Database::migrated().await, Lines::new(150));
    add_backwards(&db, 150, 10, "null").await;
    let step = lines.task();
    // Longer than the claim of the few jobs that became free would take.
    let task = move |ctx| {
        let step = step(ctx);
        async move {
            tokio::time::sleep(Duration::from_millis(3)).await;
            step.await
        }
    };
    let options = options(&db).concurrency(5).local_queue(LocalQueueConfig::new(500));
    let worker = options.define_raw_job("step", task).init().await.expect("the worker starts");
    let mut events = worker.events();
    let counted = tokio::spawn(async move {
        let mut claims = 0;
        while let Some(event) = events.next().await {
            claims += u128::from(matches!(event, WorkerEvent::ClaimStarted));
        }
        claims
    });
    let (worker, start) = (Running::with(worker), Instant::now());
    wait_until_empty(&worker.utils).await;
    worker.stop().await.expect("it ends in good order");
    lines.assert_in_order(10);
    let claims = counted.await.expect("a count");
    // At most every 50 ms a claim asks for more urgent jobs only. How many that are depends on the speed of the machine.
    let for_urgent = start.elapsed().as_millis() / 50;
    assert!(
        claims < 100 + for_urgent,
        "{claims} claims for 1500 jobs in 150 queues, {for_urgent} may be for urgent ones"
    );
}
