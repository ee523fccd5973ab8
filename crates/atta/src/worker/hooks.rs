//! Hooks that are called after a job is released: bounded in number, in bytes and in time.
//!
//! Hooks are the application's code and run on its runtime. Outcomes that wait for their hooks are never dropped. While
//! too many wait, the worker claims nothing more.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tracing::Instrument;

use super::Shared;
use super::run::{Finished, Outcome};
use crate::event::{HookFuture, Hooks};
use crate::{Error, Job};

/// The limits of outcomes that wait for their hooks: their number, and the bytes of their payloads. At a limit, the
/// worker claims nothing more.
const MOST_OUTCOMES: usize = 1_000;
const MOST_BYTES: usize = 16 << 20;

/// For how many outcomes hooks run at the same time.
const AT_A_TIME: usize = 64;

/// Outcomes that wait for their hooks, or whose hooks run.
pub(crate) struct HookBacklog {
    outcomes: AtomicUsize,
    bytes: AtomicUsize,
    room: Notify,
    permits: Arc<Semaphore>,
    timeout: Duration,
}

impl HookBacklog {
    pub(crate) fn new(timeout: Duration) -> HookBacklog {
        let permits = Arc::new(Semaphore::new(AT_A_TIME));
        HookBacklog {
            outcomes: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            room: Notify::new(),
            permits,
            timeout,
        }
    }

    /// Whether too many outcomes wait for their hooks. Then nothing more should be claimed.
    pub(crate) fn is_full(&self) -> bool {
        self.outcomes.load(Ordering::SeqCst) >= MOST_OUTCOMES
            || self.bytes.load(Ordering::SeqCst) >= MOST_BYTES
    }

    /// Waits until there is room again. Cancel safe.
    pub(crate) async fn has_room(&self) {
        while self.is_full() {
            self.room.notified().await;
        }
    }

    fn add(&self, bytes: usize) {
        self.outcomes.fetch_add(1, Ordering::SeqCst);
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
    }

    fn remove(&self, bytes: usize) {
        let was_full = self.is_full();
        self.outcomes.fetch_sub(1, Ordering::SeqCst);
        self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        if was_full && !self.is_full() {
            self.room.notify_one();
        }
    }
}

/// Calls the hooks of these outcomes, each in a task of its own.
pub(crate) fn call_hooks(shared: &Arc<Shared>, finished: Vec<Finished>) {
    if shared.hooks.is_empty() {
        return;
    }
    for one in finished {
        let (shared, bytes) = (shared.clone(), one.job.payload_json().len());
        shared.hook_backlog.add(bytes);
        let runtime = shared.app_runtime.clone();
        let tasks = shared.hook_tasks.clone();
        tasks.spawn_on(
            async move {
                // The semaphore is never closed, so this can't fail.
                let permit = shared.hook_backlog.permits.acquire().await;
                call(&shared, &one).await;
                drop((permit, one));
                shared.hook_backlog.remove(bytes);
            },
            &runtime,
        );
    }
}

/// Calls the hooks for the worker's start, and waits until they have ended or a shutdown begins.
pub(crate) async fn call_start(shared: &Arc<Shared>) {
    let call = each_of_worker(shared, "on_start", |hooks, worker_id| hooks.on_start(worker_id));
    tokio::select! {
        () = call => {}
        () = shared.stop.cancelled() => {}
    }
}

/// Calls the hooks for the worker's end, and waits for them.
pub(crate) async fn call_stop(shared: &Arc<Shared>, error: Option<&Error>) {
    let error: Option<Arc<str>> = error.map(|error| error.to_string().into());
    each_of_worker(shared, "on_stop", move |hooks, worker_id| {
        let error = error.clone();
        Box::pin(async move { hooks.on_stop(worker_id, error.as_deref()).await })
    })
    .await;
}

/// Calls the hooks for the start of a shutdown. The worker waits for them at the end of the shutdown.
pub(crate) fn call_shutdown(shared: &Shared, reason: &str) {
    if shared.hooks.is_empty() {
        return;
    }
    let (hooks, worker_id, reason) = (shared.hooks.clone(), shared.worker_id.clone(), reason.to_owned());
    let timeout = shared.hook_backlog.timeout;
    let call = async move {
        let called =
            hooks.call_within("on_shutdown", timeout, |it| it.on_shutdown(&worker_id, &reason)).await;
        if called.is_err() {
            report_timeout("on_shutdown", timeout);
        }
    };
    shared.hook_tasks.spawn_on(call, &shared.app_runtime);
}

/// Calls a hook about the worker itself on the application's runtime. Returns when the calls have ended.
async fn each_of_worker<F>(shared: &Arc<Shared>, hook: &'static str, call: F)
where
    F: for<'a> Fn(&'a dyn Hooks, &'a str) -> HookFuture<'a> + Send + Sync + 'static,
{
    if shared.hooks.is_empty() {
        return;
    }
    let (hooks, worker_id) = (shared.hooks.clone(), shared.worker_id.clone());
    let timeout = shared.hook_backlog.timeout;
    let calls = async move {
        if hooks.call_within(hook, timeout, |it| call(it, &worker_id)).await.is_err() {
            report_timeout(hook, timeout);
        }
    };
    // An error means that the application's runtime has ended, and its code with it.
    let _ = shared.hook_tasks.spawn_on(calls, &shared.app_runtime).await;
}

fn report_timeout(hook: &'static str, timeout: Duration) {
    tracing::error!(hook, ?timeout, "a hook did not return in time and was abandoned");
}

async fn call(shared: &Shared, Finished { job, outcome, .. }: &Finished) {
    match outcome {
        Outcome::Completed => each(shared, "on_complete", job, |it| it.on_complete(job)).await,
        Outcome::Interrupted => each(shared, "on_interruption", job, |it| it.on_interruption(job)).await,
        Outcome::NotStarted => {}
        Outcome::Failed(failure) if failure.is_permanent(job) => {
            each(shared, "on_permanent_failure", job, |it| it.on_permanent_failure(job, &failure.error))
                .await;
        }
        Outcome::Failed(failure) => each(shared, "on_fail", job, |it| it.on_fail(job, &failure.error)).await,
    }
}

async fn each<'a>(
    shared: &'a Shared,
    hook: &'static str,
    job: &Job,
    call: impl Fn(&'a dyn Hooks) -> HookFuture<'a>,
) {
    let timeout = shared.hook_backlog.timeout;
    let (worker, task, attempt) = (&*shared.worker_id, job.task_identifier(), job.attempts);
    let span = tracing::info_span!("hook", worker, job = job.id, task, attempt);
    let called = shared.hooks.call_within(hook, timeout, call).instrument(span).await;
    if called.is_err() {
        tracing::error!(
            worker,
            job = job.id,
            task,
            attempt,
            hook,
            timeout_ms = timeout.as_millis() as u64,
            "a hook did not return in time and was abandoned"
        );
    }
}
