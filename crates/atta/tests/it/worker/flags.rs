//! Forbidden flags: none, a list, a function, an async function.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use atta::{ForbiddenFlags, JobSpec, JobSpecBuilder, WorkerEvent};
use testkit::Database;

use super::support::{Reports, Running, options};
use crate::faults::support::event;

async fn left_after(forbidden: ForbiddenFlags) -> Vec<String> {
    let db = Database::migrated().await;
    let worker =
        options(&db).forbidden_flags(forbidden).define_raw_job("noop", |_| async {}).init().await.unwrap();
    let utils = worker.create_utils();
    utils.add_raw_job("noop", "plain", JobSpec::default()).await.unwrap();
    for flags in [vec!["red"], vec!["blue"], vec!["blue", "red"]] {
        let flags: Vec<String> = flags.into_iter().map(str::to_owned).collect();
        let spec = JobSpecBuilder::new().flags(flags.clone()).queue_name(flags.join("-"));
        utils.add_raw_job("noop", flags.join("+"), spec).await.unwrap();
    }
    worker.run_once().await.unwrap();
    let left = atta::testing::jobs_of(&utils, "noop").await.unwrap();
    left.iter().map(|job| job.payload().unwrap()).collect()
}

#[tokio::test]
async fn no_flag_is_forbidden_by_default() {
    assert!(left_after(ForbiddenFlags::default()).await.is_empty());
    assert!(left_after(ForbiddenFlags::list(Vec::<String>::new())).await.is_empty());
}

#[tokio::test]
async fn jobs_with_a_forbidden_flag_are_not_claimed() {
    assert_eq!(left_after(ForbiddenFlags::list(["red"])).await, ["red", "blue+red"]);
    assert_eq!(left_after(ForbiddenFlags::function(|| vec!["blue".into()])).await, ["blue", "blue+red"]);
    let both = ForbiddenFlags::async_function(|| async { vec!["blue".into(), "red".into()] });
    assert_eq!(left_after(both).await, ["red", "blue", "blue+red"]);
}

#[tokio::test]
async fn a_function_is_asked_before_every_claim() {
    let db = Database::migrated().await;
    let is_closed = Arc::new(AtomicBool::new(true));
    let asked = is_closed.clone();
    let forbidden = ForbiddenFlags::function(move || {
        if asked.load(Ordering::SeqCst) { vec!["held".to_owned()] } else { Vec::new() }
    });
    let worker =
        options(&db).forbidden_flags(forbidden).define_raw_job("noop", |_| async {}).init().await.unwrap();
    let utils = worker.create_utils();
    utils.add_raw_job("noop", 1, JobSpecBuilder::new().flags(vec!["held".into()])).await.unwrap();
    worker.run_once().await.unwrap();
    assert_eq!(utils.count_jobs().await.unwrap().ready, 1);
    is_closed.store(false, Ordering::SeqCst);
    worker.run_once().await.unwrap();
    assert_eq!(utils.count_jobs().await.unwrap().total(), 0);
}

/// While it is unknown which flags are forbidden, no job with flags runs, and no job is claimed durably. The worker
/// keeps running, and continues when the flags are known. Jobs without flags can't be forbidden.
#[tokio::test]
async fn a_function_for_forbidden_flags_that_panics_stops_claims_but_not_the_worker() {
    let db = Database::migrated().await;
    let is_broken = Arc::new(AtomicBool::new(true));
    let asked = is_broken.clone();
    let forbidden = ForbiddenFlags::function(move || {
        assert!(!asked.load(Ordering::SeqCst), "nobody knows");
        Vec::new()
    });
    let mut reports = Reports::new();
    let options = options(&db)
        .forbidden_flags(forbidden)
        .poll_interval(Duration::from_millis(100))
        .recovery_threshold(Duration::from_secs(2))
        .define_raw_job("noop", reports.task(|_| async {}));
    let mut events = options.subscribe();
    let worker = Running::start(options).await;
    event(&mut events, |event| matches!(event, WorkerEvent::Started { .. }).then_some(())).await;
    let flagged = JobSpecBuilder::new().flags(vec!["some".into()]);
    let job = worker.utils.add_raw_job("noop", 1, flagged).await.unwrap();
    let client = db.client().await;
    let heartbeat = "select heartbeat_at::text from graphile_worker._atta_workers";
    let first: String = client.query_one(heartbeat, &[]).await.unwrap().get(0);
    for _ in 0..3 {
        let error = event(&mut events, |event| match event {
            WorkerEvent::ClaimFailed { error } => Some(error.to_string()),
            _ => None,
        });
        assert!(error.await.contains("forbidden flags"));
    }
    testkit::wait_for("another heartbeat", || async {
        let now: String = client.query_one(heartbeat, &[]).await.unwrap().get(0);
        (now != first).then_some(())
    })
    .await;
    assert!(reports.is_empty());
    is_broken.store(false, Ordering::SeqCst);
    assert_eq!(reports.next().await.id(), job.id());
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn an_added_forbidden_flag_does_not_replace_the_function() {
    let db = Database::migrated().await;
    let function = ForbiddenFlags::function(|| vec!["blue".into()]);
    let options = options(&db).forbidden_flags(function).add_forbidden_flag("red");
    let worker = options.define_raw_job("noop", |_| async {}).init().await.unwrap();
    let utils = worker.create_utils();
    for flag in ["red", "blue", "green"] {
        utils.add_raw_job("noop", flag, JobSpecBuilder::new().flags(vec![flag.into()])).await.unwrap();
    }
    worker.run_once().await.unwrap();
    let left = atta::testing::jobs_of(&utils, "noop").await.unwrap();
    let left: Vec<String> = left.iter().map(|job| job.payload().unwrap()).collect();
    assert_eq!(left, ["red", "blue"]);
}
