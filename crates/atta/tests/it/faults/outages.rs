//! Outages of the server and of the network: shorter and longer than the threshold, of everybody, of one worker, and of
//! the majority. Nobody who is alive and reachable is declared dead.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atta::{Claims, JobSpecBuilder, WorkerContext, WorkerOptions, WorkerUtils};
use serde_json::json;
use testkit::{Cluster, Database, Proxy, SetClock, wait_for};

use crate::worker::support::Running;

const THRESHOLD: Duration = Duration::from_secs(2);

/// Outages in thresholds: each kind of outage is tried with each of these lengths.
const LENGTHS: [f64; 3] = [0.5, 1.5, 5.0];

/// Which jobs and queues run in this process, and which of them ran twice at once.
#[derive(Clone, Default)]
struct Log {
    state: Arc<Mutex<LogState>>,
}

#[derive(Default)]
struct LogState {
    running: HashMap<String, usize>,
    overlaps: Vec<String>,
    begun: usize,
}

/// A run that lasts until this is dropped.
struct Entered {
    log: Log,
    names: Vec<String>,
}

impl Log {
    fn enter(&self, names: Vec<String>) -> Entered {
        let mut state = self.state.lock().unwrap();
        state.begun += 1;
        for name in &names {
            let count = state.running.entry(name.clone()).or_default();
            *count += 1;
            if *count > 1 {
                state.overlaps.push(name.clone());
            }
        }
        Entered { log: self.clone(), names }
    }

    fn begun(&self) -> usize {
        self.state.lock().unwrap().begun
    }

    fn overlaps(&self) -> Vec<String> {
        self.state.lock().unwrap().overlaps.clone()
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut state = self.log.state.lock().unwrap();
        for name in &self.names {
            *state.running.get_mut(name).unwrap() -= 1;
        }
    }
}

/// Four workers, each with a network of its own. Each runs a job of a serial queue and one without a queue, and both jobs
/// outlast the outage.
struct Fleet {
    workers: Vec<(Running, Proxy)>,
    log: Log,
    direct: WorkerUtils,
}

const WORKERS: usize = 4;

impl Fleet {
    async fn start(url: &str, outage: Duration) -> Fleet {
        let log = Log::default();
        let direct = WorkerUtils::connect(url).unwrap();
        direct.migrate().await.unwrap();
        let mut workers = Vec::new();
        for number in 0..WORKERS {
            let (proxy, url) = Proxy::before(url);
            workers.push((Running::start(options(&url, &log)).await, proxy));
            // Each worker sends its heartbeats at other times than the rest.
            tokio::time::sleep(THRESHOLD.mul_f64(0.07)).await;
            let ms = (outage + 2 * THRESHOLD).as_millis();
            for queue in [None, Some(format!("line {number}"))] {
                let spec = queue.map(|name| JobSpecBuilder::new().queue_name(name)).unwrap_or_default();
                direct.add_raw_job("long", json!({ "ms": ms }), spec).await.unwrap();
            }
        }
        wait_for("all jobs to begin", || async { (log.begun() == 2 * WORKERS).then_some(()) }).await;
        // The next job of each queue waits for its turn.
        for number in 0..WORKERS {
            let spec = JobSpecBuilder::new().queue_name(format!("line {number}"));
            direct.add_raw_job("long", json!({ "ms": 100 }), spec).await.unwrap();
        }
        Fleet { workers, log, direct }
    }

    fn cut(&self, which: &[usize]) {
        which.iter().for_each(|number| self.workers[*number].1.go_away());
    }

    fn heal(&self, which: &[usize]) {
        which.iter().for_each(|number| self.workers[*number].1.come_back());
    }

    /// Waits until all jobs are done and gives the numbers of the workers that were declared dead.
    async fn end(self) -> (HashSet<usize>, Vec<String>) {
        wait_for("all jobs to be done", || async {
            (self.direct.count_jobs().await.ok()?.total() == 0).then_some(())
        })
        .await;
        let client = self.direct.pool().get().await.unwrap();
        let rows =
            client.query("select worker_id from graphile_worker._atta_dead_workers", &[]).await.unwrap();
        let dead: HashSet<String> = rows.iter().map(|row| row.get(0)).collect();
        let numbers = (0..WORKERS).filter(|n| dead.contains(self.workers[*n].0.handle.worker_id())).collect();
        for (worker, _) in self.workers {
            worker.stop().await.unwrap();
        }
        (numbers, self.log.overlaps())
    }
}

fn options(url: &str, log: &Log) -> WorkerOptions {
    let log = log.clone();
    let task = move |ctx: WorkerContext| {
        let job = ctx.job();
        let names = job.queue_name().map(|name| format!("queue {name}"));
        let names = names.into_iter().chain([format!("job {}", job.id())]).collect();
        let ms = ctx.payload::<serde_json::Value>().unwrap()["ms"].as_u64().unwrap();
        let entered = log.enter(names);
        async move {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            drop(entered);
        }
    };
    WorkerOptions::default()
        .database_url(url)
        .concurrency(2)
        .max_pg_conn(3)
        .claims(Claims::Durable)
        .poll_interval(Duration::from_millis(100))
        .recovery_threshold(THRESHOLD)
        .define_raw_job("long", task)
}

/// Cuts these workers off for each of the lengths, and tells who was declared dead and what overlapped each time.
async fn network_outages(which: &[usize]) -> Vec<(f64, HashSet<usize>, Vec<String>)> {
    let outages = LENGTHS.map(async |length| {
        let db = Database::migrated().await;
        let outage = THRESHOLD.mul_f64(length);
        let fleet = Fleet::start(&db.direct_url(), outage).await;
        fleet.cut(which);
        tokio::time::sleep(outage).await;
        fleet.heal(which);
        let (dead, overlaps) = fleet.end().await;
        (length, dead, overlaps)
    });
    futures_util::future::join_all(outages).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_network_outage_of_all_workers_none_is_declared_dead() {
    for (length, dead, overlaps) in network_outages(&[0, 1, 2, 3]).await {
        assert!(dead.is_empty() && overlaps.is_empty(), "{length} thresholds: {dead:?} {overlaps:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_worker_that_was_cut_off_is_declared_dead() {
    for (length, dead, overlaps) in network_outages(&[2]).await {
        let expected = if length > 1.0 { HashSet::from([2]) } else { HashSet::new() };
        assert_eq!(dead, expected, "{length} thresholds");
        // A worker that is cut off for longer than the threshold runs its jobs on while others run them again.
        assert!(overlaps.is_empty() || length > 1.0, "{length} thresholds: {overlaps:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_majority_that_was_cut_off_is_declared_dead() {
    for (length, dead, _) in network_outages(&[0, 1, 3]).await {
        let expected = if length > 1.0 { HashSet::from([0, 1, 3]) } else { HashSet::new() };
        assert_eq!(dead, expected, "{length} thresholds");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_server_outage_no_worker_is_declared_dead() {
    let outages = LENGTHS.map(async |length| {
        let start = || Cluster::temporary(&testkit::binaries());
        let cluster = Arc::new(tokio::task::spawn_blocking(start).await.unwrap().unwrap());
        let outage = THRESHOLD.mul_f64(length);
        // Claims must survive the crash, which is not how a cluster for tests is set.
        let admin = WorkerUtils::connect(&cluster.url("postgres")).unwrap();
        let sql = "alter database postgres set synchronous_commit = on";
        admin.pool().get().await.unwrap().batch_execute(sql).await.unwrap();
        let fleet = Fleet::start(&cluster.url("postgres"), outage).await;
        let away = cluster.clone();
        tokio::task::spawn_blocking(move || away.kill()).await.unwrap().unwrap();
        tokio::time::sleep(outage).await;
        let back = cluster.clone();
        tokio::task::spawn_blocking(move || back.start_again()).await.unwrap().unwrap();
        let (dead, overlaps) = fleet.end().await;
        assert!(dead.is_empty() && overlaps.is_empty(), "{length} thresholds: {dead:?} {overlaps:?}");
    });
    futures_util::future::join_all(outages).await;
}

/// By how many seconds the clock of the server is set.
const STEPS: [i64; 2] = [60, -60];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_step_of_the_servers_clock_no_worker_is_declared_dead() {
    let steps = STEPS.map(async |seconds| {
        let file = std::env::temp_dir().join(format!("atta-clock-{}{seconds}", std::process::id()));
        let clock = SetClock::new(file);
        let binaries = clock.server_binaries(&testkit::binaries());
        let start = move || Cluster::temporary(&binaries);
        let cluster = tokio::task::spawn_blocking(start).await.unwrap().unwrap();
        let fleet = Fleet::start(&cluster.url("postgres"), 2 * THRESHOLD).await;
        // Only a worker whose heartbeats were continuous for a threshold may declare others dead.
        tokio::time::sleep(THRESHOLD.mul_f64(1.5)).await;
        clock.set(seconds);
        let (dead, overlaps) = fleet.end().await;
        assert!(dead.is_empty() && overlaps.is_empty(), "{seconds} seconds: {dead:?} {overlaps:?}");
    });
    futures_util::future::join_all(steps).await;
}
