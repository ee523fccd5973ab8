//! The primary is lost, and its standby takes over while jobs are added and run.

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use atta::{JobSpec, JobSpecBuilder, WorkerContext, WorkerEvent, WorkerEvents, WorkerOptions, WorkerUtils};
use serde_json::json;
use testkit::{Cluster, wait_for};

use super::support::{LOCKED_JOBS, LOCKED_QUEUES, Tally};
use crate::worker::support::Running;

/// A primary, and a synchronous standby.
struct Pair {
    primary: Cluster,
    standby: Cluster,
}

impl Pair {
    fn start() -> Pair {
        let primary = Cluster::temporary_with(&testkit::binaries(), &["synchronous_commit=on"], &[]);
        let primary = primary.expect("a primary starts");
        let standby = primary.standby(&["synchronous_commit=on"]).expect("a standby starts");
        Pair { primary, standby }
    }

    /// Both servers, in the order in which they are tried.
    fn url(&self) -> String {
        format!(
            "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres?target_session_attrs=read-write",
            self.primary.port(),
            self.standby.port()
        )
    }
}

/// Waits until the standby streams. From then on, nothing is acknowledged before the standby has it.
async fn make_synchronous(utils: &WorkerUtils) {
    let client = utils.pool().get().await.unwrap();
    client.batch_execute("alter system set synchronous_standby_names = 'standby'").await.unwrap();
    client.batch_execute("select pg_reload_conf()").await.unwrap();
    let sql = "select count(*) from pg_stat_replication where sync_state = 'sync'";
    wait_for("the standby to be synchronous", || async {
        (client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 1).then_some(())
    })
    .await;
}

/// Adds jobs until it is stopped, one in four to a queue.
#[derive(Clone, Default)]
struct Producer {
    is_over: Arc<AtomicBool>,
    /// The ids of acknowledged jobs.
    added: Arc<Mutex<Vec<i64>>>,
}

impl Producer {
    async fn add_under_load(self, utils: WorkerUtils) {
        for n in 0.. {
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            let queued = JobSpecBuilder::new().queue_name("line").build();
            let spec = if n % 4 == 0 { queued } else { JobSpec::default() };
            // An add without a reply promises nothing.
            if let Ok(job) = utils.add_raw_job("load", json!({ "n": n }), spec).await {
                self.added.lock().unwrap().push(job.id());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    fn count(&self) -> usize {
        self.added.lock().unwrap().len()
    }

    fn get(&self, index: usize) -> Option<i64> {
        self.added.lock().unwrap().get(index).copied()
    }
}

/// The jobs that a worker ran, and those whose release it reported as written.
#[derive(Clone, Default)]
struct Seen {
    runs: Tally,
    completed: Arc<Mutex<HashSet<i64>>>,
    /// Jobs that ran again after their release was written.
    undone: Arc<Mutex<Vec<i64>>>,
}

impl Seen {
    fn note(&self, ctx: &WorkerContext) {
        let id = ctx.job().id();
        if self.completed.lock().unwrap().contains(&id) {
            self.undone.lock().unwrap().push(id);
        }
        self.runs.note(ctx);
    }

    async fn note_completed(self, mut events: WorkerEvents) {
        while let Some(event) = events.next().await {
            if let WorkerEvent::JobCompleted { job, .. } = event {
                self.completed.lock().unwrap().insert(job.id());
            }
        }
    }
}

/// A worker whose jobs take milliseconds, except for `long` ones, which last until `is_over`.
fn options(url: &str, seen: &Seen, is_over: &Arc<AtomicBool>) -> WorkerOptions {
    let (noted, noted_long, is_over) = (seen.clone(), seen.clone(), is_over.clone());
    WorkerOptions::default()
        .database_url(url)
        .concurrency(4)
        .max_pg_conn(6)
        .define_raw_job("load", move |ctx: WorkerContext| {
            noted.note(&ctx);
            async { tokio::time::sleep(Duration::from_millis(fastrand::u64(0..5))).await }
        })
        .define_raw_job("long", move |ctx: WorkerContext| {
            noted_long.note(&ctx);
            let is_over = is_over.clone();
            async move {
                while !is_over.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        })
}

/// Returns none while no server is reachable.
async fn count(utils: &WorkerUtils, sql: &str) -> Option<i64> {
    Some(utils.pool().get().await.ok()?.query_one(sql, &[]).await.ok()?.get(0))
}

async fn on<E: Debug + Send + 'static>(pair: &Arc<Pair>, act: fn(&Pair) -> Result<(), E>) {
    let pair = pair.clone();
    tokio::task::spawn_blocking(move || act(&pair)).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_continues_on_the_promoted_standby_and_nothing_acknowledged_is_lost() {
    let pair = Arc::new(tokio::task::spawn_blocking(Pair::start).await.unwrap());
    let utils = WorkerUtils::connect(&pair.url()).unwrap();
    utils.migrate().await.unwrap();
    make_synchronous(&utils).await;

    let (producer, seen) = (Producer::default(), Seen::default());
    let worker = options(&pair.url(), &seen, &producer.is_over).init().await.unwrap();
    let listening = tokio::spawn(seen.clone().note_completed(worker.events()));
    let worker = Running::with(worker);
    let long = utils.add_raw_job("long", json!({}), JobSpec::default()).await.unwrap();
    wait_for("the long job to be claimed", || async {
        (count(&utils, LOCKED_JOBS).await? == 1).then_some(())
    })
    .await;
    let adding = tokio::spawn(producer.clone().add_under_load(utils.clone()));
    wait_for("jobs to run on the primary", || async { (seen.runs.jobs() > 200).then_some(()) }).await;

    on(&pair, |pair| pair.primary.kill()).await;
    let (before, start) = (producer.count(), Instant::now());
    on(&pair, |pair| pair.standby.promote()).await;
    let promotion = start.elapsed();
    wait_for("a job of after the promotion to run", || async {
        // A reply may still have been on its way when the others were counted.
        let first = producer.get(before + 4)?;
        (!seen.runs.attempts_of(first).is_empty()).then_some(())
    })
    .await;
    let pause = start.elapsed().saturating_sub(promotion);
    wait_for("more jobs to run", || async { (producer.count() > before + 300).then_some(()) }).await;
    producer.is_over.store(true, Ordering::Relaxed);
    adding.await.unwrap();
    wait_for("all jobs to be done", || async { (utils.count_jobs().await.ok()?.total() == 0).then_some(()) })
        .await;

    let added = producer.added.lock().unwrap().clone();
    let lost: Vec<&i64> = added.iter().filter(|id| seen.runs.attempts_of(**id).is_empty()).collect();
    println!(
        "failover: promoted in {promotion:.1?}, work went on within {pause:.1?} of that; {} adds acknowledged, {before} \
         of them before; {} jobs ran more than once; lost: {}",
        added.len(),
        seen.runs.repeated(),
        lost.len(),
    );
    assert!(lost.is_empty(), "no acknowledged add is lost: {lost:?}");
    assert_eq!(added.iter().collect::<HashSet<_>>().len(), added.len(), "no id was given out twice");
    assert_eq!(*seen.undone.lock().unwrap(), [0; 0], "what was said to be done is done");
    assert_eq!(seen.runs.attempts_of(long.id()), [1], "what ran meanwhile goes on, and is not begun again");
    assert!(pause < Duration::from_secs(10), "work went on {pause:?} after the promotion");
    assert_eq!(count(&utils, LOCKED_QUEUES).await, Some(0));
    worker.stop().await.unwrap();
    listening.await.unwrap();
}
