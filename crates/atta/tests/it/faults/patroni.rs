//! Under Patroni: another node leads, in good order or because the leader is killed, while work is going on.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use atta::{JobSpec, JobSpecBuilder, WorkerContext, WorkerOptions, WorkerUtils};
use serde_json::json;
use testkit::Patroni;
use tokio::task::JoinSet;
use tokio_postgres::NoTls;

use super::support::{LOCKED_JOBS, LOCKED_QUEUES, Tally};
use crate::worker::support::Running;

const NODES: usize = 3;
const PRODUCERS: usize = 4;
/// The key of a dead leader is valid for 20 seconds, and Patroni needs some more time.
const PATIENCE: Duration = Duration::from_secs(180);

#[derive(Clone, Copy, Debug)]
enum Fault {
    Switchover,
    Kill,
}

/// What happened, and when.
#[derive(Clone, Default)]
struct Work {
    is_over: Arc<AtomicBool>,
    tally: Tally,
    runs: Arc<Mutex<Vec<Instant>>>,
    /// The ids of acknowledged jobs, and when they were acknowledged.
    added: Arc<Mutex<Vec<(i64, Instant)>>>,
}

impl Work {
    fn options(&self, url: &str) -> WorkerOptions {
        let work = self.clone();
        let task = move |ctx: WorkerContext| {
            work.tally.note(&ctx);
            work.runs.lock().unwrap().push(Instant::now());
            async { tokio::time::sleep(Duration::from_millis(fastrand::u64(0..5))).await }
        };
        WorkerOptions::default().database_url(url).concurrency(4).max_pg_conn(6).define_raw_job("load", task)
    }

    /// Adds jobs, some of them to a queue, until the round is over.
    async fn add(self, utils: WorkerUtils) {
        for n in 0.. {
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            let queued = JobSpecBuilder::new().queue_name(format!("queue {}", n % 3)).build();
            let spec = if n % 5 == 0 { queued } else { JobSpec::default() };
            // An add without a reply promises nothing.
            if let Ok(job) = utils.add_raw_job("load", json!({ "n": n }), spec).await {
                self.added.lock().unwrap().push((job.id(), Instant::now()));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The longest time since `start` in which no job started.
    fn longest_rest(&self, start: Instant) -> Duration {
        longest_gap(start, self.runs.lock().unwrap().iter().copied())
    }

    /// The longest time since `start` in which no add was acknowledged.
    fn longest_silence(&self, start: Instant) -> Duration {
        longest_gap(start, self.added.lock().unwrap().iter().map(|(_, time)| *time))
    }

    /// How many jobs have started since.
    fn begun_since(&self, time: Instant) -> usize {
        self.runs.lock().unwrap().iter().filter(|begun| **begun > time).count()
    }
}

fn longest_gap(start: Instant, times: impl Iterator<Item = Instant>) -> Duration {
    let mut times: Vec<Instant> = times.filter(|time| *time > start).collect();
    times.sort_unstable();
    times.insert(0, start);
    times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
}

/// The result of one round, as a row of a table.
struct Found {
    fault: Fault,
    promoted: Duration,
    went_on: Duration,
    rest: Duration,
    silence: Duration,
    added: usize,
    lost: usize,
    twice: usize,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Found { fault, promoted, went_on, rest, silence, added, lost, twice } = self;
        let seconds = |time: &Duration| format!("{:.1} s", time.as_secs_f64());
        let (promoted, went_on) = (seconds(promoted), seconds(went_on));
        let (rest, silence) = (seconds(rest), seconds(silence));
        write!(f, "| {fault:?} | {promoted} | {went_on} | {rest} | {silence} | {added} | {lost} | {twice} |")
    }
}

const HEAD: &str = "\
| fault | promoted after | work went on, after that | no job began for | no add succeeded for | adds acknowledged | lost | run twice |
|---|---|---|---|---|---|---|---|";

async fn until(what: &str, mut ask: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !ask().await {
        assert!(start.elapsed() < PATIENCE, "gave up waiting for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn leads(url: &str) -> Option<bool> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.ok()?;
    // The connection task ends with its client.
    tokio::spawn(connection);
    client.query_one("select not pg_is_in_recovery()", &[]).await.ok()?.try_get(0).ok()
}

/// Waits until one of these nodes is the leader.
async fn promotion_of_one(nodes: &[String]) -> Instant {
    until("another node to lead", async || {
        for url in nodes {
            if leads(url).await == Some(true) {
                return true;
            }
        }
        false
    })
    .await;
    Instant::now()
}

/// Causes a fault while two workers run jobs and producers add them.
async fn round(mut patroni: Patroni, fault: Fault) -> (Patroni, Found) {
    let (url, work) = (patroni.url(), Work::default());
    let utils = WorkerUtils::connect(&url).unwrap();
    let workers = [Running::start(work.options(&url)).await, Running::start(work.options(&url)).await];
    let mut producers = JoinSet::new();
    for _ in 0..PRODUCERS {
        producers.spawn(work.clone().add(utils.clone()));
    }
    until("jobs to run", async || work.tally.jobs() > 500).await;

    let leader = patroni.leader().expect("one leads");
    let others = (0..patroni.count()).filter(|node| *node != leader);
    let others: Vec<String> = others.map(|node| patroni.node_url(node)).collect();
    let start = Instant::now();
    let acted = tokio::task::spawn_blocking(move || {
        match fault {
            Fault::Switchover => patroni.switch_over(),
            Fault::Kill => patroni.kill(leader),
        }
        patroni
    });
    let promoted = promotion_of_one(&others).await;
    until("a job to begin after the promotion", async || work.begun_since(promoted) > 0).await;
    let went_on = promoted.elapsed();
    until("work to go on as before", async || work.begun_since(promoted) > 500).await;
    work.is_over.store(true, Ordering::Relaxed);
    while let Some(ended) = producers.join_next().await {
        ended.unwrap();
    }
    until("all jobs to be done", async || utils.count_jobs().await.is_ok_and(|jobs| jobs.total() == 0)).await;

    let mut patroni = acted.await.unwrap();
    let client = utils.pool().get().await.unwrap();
    for locks in [LOCKED_JOBS, LOCKED_QUEUES] {
        assert_eq!(client.query_one(locks, &[]).await.unwrap().get::<_, i64>(0), 0, "{locks}");
    }
    drop(client);
    for worker in workers {
        worker.stop().await.unwrap();
    }
    if let Fault::Kill = fault {
        patroni.start_node(leader);
    }
    patroni.wait_until_whole().await;
    let added = work.added.lock().unwrap().clone();
    let found = Found {
        fault,
        promoted: promoted - start,
        went_on,
        rest: work.longest_rest(start),
        silence: work.longest_silence(start),
        added: added.len(),
        lost: added.iter().filter(|(id, _)| work.tally.attempts_of(*id).is_empty()).count(),
        twice: work.tally.repeated(),
    };
    (patroni, found)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Patroni and etcd: cargo xtask patroni"]
async fn work_continues_under_patroni_and_nothing_acknowledged_is_lost() {
    let rounds = std::env::var("ATTA_PATRONI_ROUNDS").map_or(3, |rounds| rounds.parse().unwrap());
    let mut patroni = Patroni::start(&testkit::binaries(), NODES).await;
    WorkerUtils::connect(&patroni.url()).unwrap().migrate().await.unwrap();
    println!("{HEAD}");
    for fault in [Fault::Switchover, Fault::Kill] {
        for _ in 0..rounds {
            let found;
            (patroni, found) = round(patroni, fault).await;
            println!("{found}");
            assert_eq!(found.lost, 0, "no acknowledged add is lost");
            assert!(found.went_on < Duration::from_secs(10), "work goes on within seconds of the promotion");
        }
    }
}
