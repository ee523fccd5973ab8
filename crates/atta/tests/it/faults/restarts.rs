//! The server restarts, orderly and after a crash.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use atta::{JobSpec, JobSpecBuilder, RawJobSpec, WorkerContext, WorkerOptions, WorkerUtils};
use serde_json::json;
use testkit::{Cluster, wait_for};

use super::support::Tally;
use crate::worker::support::Running;

/// Adds jobs until it is stopped, whatever happens to the server. Returns the ids of acknowledged jobs.
async fn add_under_load(utils: WorkerUtils, is_over: Arc<AtomicBool>) -> Vec<i64> {
    let mut added = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let jobs: Vec<RawJobSpec> = (0..10)
            .map(|n| {
                let spec = JobSpecBuilder::new().queue_name(format!("queue {}", n % 3)).build();
                let spec = if n % 5 == 0 { spec } else { JobSpec::default() };
                RawJobSpec::new("load", json!({ "n": n }), spec).expect("the payload is JSON")
            })
            .collect();
        // An add that failed, or whose reply was lost, promises nothing.
        if let Ok(jobs) = utils.add_raw_jobs(&jobs).await {
            added.extend(jobs.iter().map(atta::Job::id));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    added
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_survives_restarts_and_crashes_of_the_server() {
    let start = || Cluster::temporary(&testkit::binaries());
    let cluster = Arc::new(tokio::task::spawn_blocking(start).await.unwrap().unwrap());
    let url = cluster.url("postgres");
    let utils = WorkerUtils::connect(&url).unwrap();
    // Acknowledged jobs must survive the crash, which is not the default setting of a test cluster.
    let sql = "alter database postgres set synchronous_commit = on";
    utils.pool().get().await.unwrap().batch_execute(sql).await.unwrap();
    let utils = WorkerUtils::connect(&url).unwrap();

    let tally = Tally::default();
    let noted = tally.clone();
    let task = move |ctx: WorkerContext| {
        noted.note(&ctx);
        async { tokio::time::sleep(Duration::from_millis(fastrand::u64(0..5))).await }
    };
    let options = WorkerOptions::default().database_url(&url).concurrency(4).max_pg_conn(6);
    let worker = Running::start(options.define_raw_job("load", task)).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let adding = tokio::spawn(add_under_load(utils.clone(), is_over.clone()));

    let mut seen = 0;
    for round in 0..4 {
        wait_for("jobs to run after the last restart", || async {
            (tally.jobs() > seen + 100).then_some(())
        })
        .await;
        let cluster = cluster.clone();
        let restart = move || if round % 2 == 0 { cluster.restart() } else { cluster.crash_and_restart() };
        tokio::task::spawn_blocking(restart).await.unwrap().unwrap();
        seen = tally.jobs();
    }
    is_over.store(true, Ordering::Relaxed);
    let added = adding.await.unwrap();
    wait_for("all jobs to be done", || async { (utils.count_jobs().await.ok()?.total() == 0).then_some(()) })
        .await;
    assert!(added.iter().all(|id| !tally.attempts_of(*id).is_empty()), "every job ran");
    println!("{} jobs ran through four restarts, {} of them more than once", added.len(), tally.repeated());
    worker.stop().await.unwrap();
}
