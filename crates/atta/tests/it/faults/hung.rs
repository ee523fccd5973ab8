//! Application code that hangs, in functions for forbidden flags and in hooks. The worker continues.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use atta::{Claims, ForbiddenFlags, HookFuture, Hooks, Job, JobSpecBuilder, RawJobSpec, WorkerEvent};
use serde_json::json;
use testkit::{Database, wait_for};
use tokio::sync::Semaphore;

use super::support::{JOBS, Ledger, event};
use crate::worker::support::{Reports, Running, options};

/// A function that forbids the flag "red", and hangs while the test wants it to.
#[derive(Clone, Default)]
struct Flags {
    hangs: Arc<AtomicBool>,
    hanging: Arc<AtomicUsize>,
}

impl Flags {
    fn function(&self) -> ForbiddenFlags {
        let flags = self.clone();
        ForbiddenFlags::async_function(move || {
            let flags = flags.clone();
            async move {
                if flags.hangs.load(Ordering::SeqCst) {
                    flags.hanging.fetch_add(1, Ordering::SeqCst);
                    let is_over = || async { (!flags.hangs.load(Ordering::SeqCst)).then_some(()) };
                    wait_for("the end of the hang", is_over).await;
                }
                vec!["red".to_owned()]
            }
        })
    }
}

fn red() -> JobSpecBuilder {
    JobSpecBuilder::new().flags(vec!["red".into()])
}

#[tokio::test]
async fn while_the_flags_function_hangs_claims_use_its_last_result() {
    let (db, flags, mut reports) = (Database::migrated().await, Flags::default(), Reports::new());
    let gate = Arc::new(Semaphore::new(0));
    let opened = gate.clone();
    let gated = reports.task(move |_| {
        let opened = opened.clone();
        async move { opened.acquire().await.expect("the gate stays").forget() }
    });
    let options = options(&db).forbidden_flags(flags.function()).poll_interval(Duration::from_millis(200));
    let options = options.define_raw_job("gated", gated).define_raw_job("quick", reports.task(|_| async {}));
    let worker = Running::start(options).await;
    let ledger = Ledger::make(&db).await;
    let queued = || JobSpecBuilder::new().queue_name("line");
    let running = worker.utils.add_raw_job("gated", json!({}), queued()).await.unwrap().id();
    assert_eq!(reports.next().await.id(), running);
    flags.hangs.store(true, Ordering::SeqCst);
    worker.utils.add_raw_job("quick", json!({}), red()).await.unwrap();
    worker.utils.add_raw_job("quick", json!({}), JobSpecBuilder::new()).await.unwrap();
    worker.utils.add_raw_job("quick", json!({}), queued()).await.unwrap();
    gate.add_permits(1);
    ledger.counted("all but the forbidden job to be done", JOBS, 1).await;
    assert_eq!(flags.hanging.load(Ordering::SeqCst), 1, "one call at a time");
    flags.hangs.store(false, Ordering::SeqCst);
    worker.stop().await.unwrap();
    let left = "select count(*) from graphile_worker.jobs where flags ? 'red'";
    assert_eq!(ledger.count(left).await, 1);
}

#[tokio::test]
async fn nothing_is_claimed_before_the_flags_function_has_returned_once() {
    let (db, flags, mut reports) = (Database::migrated().await, Flags::default(), Reports::new());
    flags.hangs.store(true, Ordering::SeqCst);
    let options = options(&db).forbidden_flags(flags.function()).poll_interval(Duration::from_millis(200));
    let options = options.define_raw_job("quick", reports.task(|_| async {}));
    let mut events = options.subscribe();
    let worker = Running::start(options).await;
    let plain = JobSpecBuilder::new();
    let id = worker.utils.add_raw_job("quick", json!({}), plain).await.unwrap().id();
    event(&mut events, |event| matches!(event, WorkerEvent::ClaimFailed { .. }).then_some(())).await;
    assert!(reports.is_empty());
    flags.hangs.store(false, Ordering::SeqCst);
    assert_eq!(reports.next().await.id(), id);
    worker.stop().await.unwrap();
}

/// Counts jobs. Hangs for jobs whose payload requires it, or for all jobs until the gate opens.
#[derive(Clone)]
struct Slow {
    called: Arc<AtomicUsize>,
    gate: Option<Arc<Semaphore>>,
}

impl Hooks for Slow {
    fn on_complete<'a>(&'a self, job: &'a Job) -> HookFuture<'a> {
        Box::pin(async move {
            if job.payload_json().contains("hang") {
                std::future::pending::<()>().await;
            }
            if let Some(gate) = &self.gate {
                gate.acquire().await.expect("the gate stays").forget();
            }
            self.called.fetch_add(1, Ordering::SeqCst);
        })
    }
}

/// More hooks hang than may run at a time.
#[tokio::test]
async fn hooks_that_hang_are_abandoned_and_delay_no_job() {
    let db = Database::migrated().await;
    let hooks = Slow { called: Arc::default(), gate: None };
    let options = options(&db).add_hooks(hooks.clone()).hook_timeout(Duration::from_millis(200));
    let worker = Running::start(options.define_raw_job("noop", |_| async {})).await;
    let job =
        |payload: &str| RawJobSpec::new("noop", payload, JobSpecBuilder::new()).expect("the payload is JSON");
    let jobs: Vec<RawJobSpec> = (0..100).flat_map(|_| [job("hang"), job("end")]).collect();
    worker.utils.add_raw_jobs(&jobs).await.unwrap();
    let ledger = Ledger::make(&db).await;
    ledger.counted("all jobs to be done", JOBS, 0).await;
    let called = || async { (hooks.called.load(Ordering::SeqCst) == 100).then_some(()) };
    wait_for("the other hooks to be called", called).await;
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn while_too_many_outcomes_wait_for_hooks_nothing_is_claimed() {
    let (db, gate) = (Database::migrated().await, Arc::new(Semaphore::new(0)));
    let hooks = Slow { called: Arc::default(), gate: Some(gate.clone()) };
    let options = options(&db).claims(Claims::Durable).add_hooks(hooks.clone());
    let worker = Running::start(options.define_raw_job("noop", |_| async {})).await;
    let job = |n: i32| RawJobSpec::new("noop", n, JobSpecBuilder::new()).expect("the payload is JSON");
    worker.utils.add_raw_jobs(&(0..1500).map(job).collect::<Vec<_>>()).await.unwrap();
    let ledger = Ledger::make(&db).await;
    let at_the_bound = || async { (ledger.count(JOBS).await <= 500).then_some(()) };
    wait_for("the bound to be reached", at_the_bound).await;
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(500) {
        let left = ledger.count(JOBS).await;
        assert!(left > 400, "those that ran come on top, and no more: {left}");
    }
    gate.add_permits(1500);
    ledger.counted("all jobs to be done", JOBS, 0).await;
    let called = || async { (hooks.called.load(Ordering::SeqCst) == 1500).then_some(()) };
    wait_for("all hooks to be called", called).await;
    worker.stop().await.unwrap();
}
