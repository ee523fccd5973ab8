//! What happens in a worker, told to whoever listens.
//!
//! Two ways to hear of it. The stream of [`WorkerEvent`]s is for watching: it is bounded and never holds the worker
//! up, so a slow listener misses the oldest and is told how many. [`Hooks`] are for acting: the worker calls them,
//! and a hook that panics harms nothing.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::broadcast;
use tokio::time::error::Elapsed;

use crate::Job;

/// How many events a listener may be behind: some seconds of a busy worker.
const BEHIND: usize = 8192;

/// Something that happened in a worker. What is said of a job's end is said after it is written.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum WorkerEvent {
    /// The worker is about to begin.
    Started {
        /// The worker.
        worker_id: Arc<str>,
    },
    /// It tries to connect for LISTEN.
    ListenConnecting {
        /// How often it failed since it last worked.
        failures: u32,
    },
    /// It hears of new jobs by LISTEN.
    ListenStarted,
    /// LISTEN failed, or was lost; it is tried again, and polling goes on meanwhile.
    ListenFailed {
        /// Why.
        error: Arc<str>,
    },
    /// It asks the database for jobs.
    ClaimStarted,
    /// There were none.
    ClaimEmpty,
    /// The database did not answer, or said no; it is asked again.
    ClaimFailed {
        /// Why.
        error: Arc<str>,
    },
    /// A job begins.
    JobStarted {
        /// The job.
        job: Arc<Job>,
    },
    /// A job succeeded.
    JobSucceeded {
        /// The job.
        job: Arc<Job>,
        /// How long it ran.
        duration: Duration,
    },
    /// A job failed, for now or for good.
    JobErrored {
        /// The job.
        job: Arc<Job>,
        /// Why.
        error: Arc<str>,
    },
    /// A job failed for good. Follows `JobErrored`.
    JobFailed {
        /// The job.
        job: Arc<Job>,
        /// Why.
        error: Arc<str>,
    },
    /// A job's end, of whatever kind, is written. Follows the others.
    JobCompleted {
        /// The job.
        job: Arc<Job>,
        /// Why it failed, if it did.
        error: Option<Arc<str>>,
    },
    /// A job was given back because of a shutdown; its attempt does not count.
    JobInterrupted {
        /// The job.
        job: Arc<Job>,
    },
    /// A job was no longer this worker's when its end was to be written, so nothing was written.
    ClaimLost {
        /// The job.
        job: Arc<Job>,
    },
    /// Another worker was found dead, and what it held was freed.
    WorkerRecovered {
        /// The dead worker.
        worker_id: Arc<str>,
        /// The ids of its jobs.
        job_ids: Arc<[i64]>,
    },
    /// The worker was silent for so long that others may have taken it for dead, and its jobs for theirs.
    Revived,
    /// The shutdown begins.
    ShutdownStarted {
        /// Who asked for it: a signal's name, or what the caller said.
        reason: Arc<str>,
    },
    /// The worker has ended.
    Stopped,
    /// The crontab added jobs, or could not.
    Cron(Arc<crate::CronEvent>),
}

/// A stream of [`WorkerEvent`]s.
#[derive(Debug)]
pub struct WorkerEvents {
    receiver: broadcast::Receiver<WorkerEvent>,
}

impl WorkerEvents {
    /// The next event; none once the worker is gone. Cancel safe. If this listener was too slow, the events that it
    /// missed are skipped.
    pub async fn next(&mut self) -> Option<WorkerEvent> {
        loop {
            match self.receiver.recv().await {
                Ok(event) => return Some(event),
                Err(broadcast::error::RecvError::Lagged(missed)) => {
                    tracing::warn!(missed, "a listener was too slow for the worker's events");
                }
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }

    /// The next event if there is one already.
    pub fn try_next(&mut self) -> Option<WorkerEvent> {
        loop {
            match self.receiver.try_recv() {
                Ok(event) => return Some(event),
                Err(broadcast::error::TryRecvError::Lagged(_)) => {}
                Err(_) => return None,
            }
        }
    }
}

/// Where the worker tells what happens.
#[derive(Clone, Debug)]
pub(crate) struct EventSender {
    sender: broadcast::Sender<WorkerEvent>,
    /// Asking the channel takes a lock, and the question comes up several times a job.
    has_listeners: Arc<AtomicBool>,
}

impl Default for EventSender {
    fn default() -> EventSender {
        EventSender { sender: broadcast::channel(BEHIND).0, has_listeners: Arc::default() }
    }
}

impl EventSender {
    pub(crate) fn subscribe(&self) -> WorkerEvents {
        let events = WorkerEvents { receiver: self.sender.subscribe() };
        self.has_listeners.store(true, Ordering::Release);
        events
    }

    /// Builds the event only if somebody listens.
    pub(crate) fn send(&self, event: impl FnOnce() -> WorkerEvent) {
        if self.has_listeners.load(Ordering::Acquire) {
            // The last listener may have gone, and another may come.
            let _ = self.sender.send(event());
        }
    }
}

/// What a hook gives back.
pub type HookFuture<'a> = BoxFuture<'a, ()>;

/// Code of the application's that the worker calls. Each method does nothing unless you write it.
///
/// `before_run` and `after_run` are part of the job's run: the job waits for them, as long as they take. The `on_…` hooks
/// are called after the outcome is written, on the runtime in which the worker was made, up to 64 jobs at a time and in no
/// particular order. They delay no job, within these limits:
///
/// - A call that takes longer than [`WorkerOptions::hook_timeout`](crate::WorkerOptions::hook_timeout) is abandoned: its
///   future is dropped, and an error with the hook, the job and the task is logged.
/// - While the outcomes of 1,000 jobs, or jobs with 16 MB of payloads, wait for their hooks or run them, the worker claims
///   no more jobs. No outcome is dropped.
/// - A shutdown waits for hooks for 5 s.
pub trait Hooks: Send + Sync + 'static {
    /// A job is about to run.
    fn before_run<'a>(&'a self, _job: &'a Job) -> HookFuture<'a> {
        nothing()
    }

    /// A job has run; with its error, if it failed.
    fn after_run<'a>(&'a self, _job: &'a Job, _error: Option<&'a str>) -> HookFuture<'a> {
        nothing()
    }

    /// A job succeeded.
    fn on_complete<'a>(&'a self, _job: &'a Job) -> HookFuture<'a> {
        nothing()
    }

    /// A job failed and will be tried again.
    fn on_fail<'a>(&'a self, _job: &'a Job, _error: &'a str) -> HookFuture<'a> {
        nothing()
    }

    /// A job failed for good.
    fn on_permanent_failure<'a>(&'a self, _job: &'a Job, _error: &'a str) -> HookFuture<'a> {
        nothing()
    }

    /// A job was given back because of a shutdown.
    fn on_interruption<'a>(&'a self, _job: &'a Job) -> HookFuture<'a> {
        nothing()
    }

    /// Jobs of a dead worker were freed.
    fn on_recovery<'a>(&'a self, _worker_id: &'a str, _job_ids: &'a [i64]) -> HookFuture<'a> {
        nothing()
    }
}

fn nothing<'a>() -> HookFuture<'a> {
    std::future::ready(()).boxed()
}

/// All hooks of a worker.
#[derive(Clone, Default)]
pub(crate) struct HookList {
    hooks: Vec<Arc<dyn Hooks>>,
}

impl HookList {
    pub(crate) fn push(&mut self, hooks: impl Hooks) {
        self.hooks.push(Arc::new(hooks));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.hooks.is_empty()
    }

    /// Calls one method of each, in order. A panic in one is logged, and the next is called.
    pub(crate) async fn call<'a>(
        &'a self,
        name: &'static str,
        call: impl Fn(&'a dyn Hooks) -> HookFuture<'a>,
    ) {
        for hooks in &self.hooks {
            call_one(name, || call(hooks.as_ref())).await;
        }
    }

    /// Calls one method of each, in order, and abandons calls that take longer than the timeout. Returns an error if there
    /// was one.
    pub(crate) async fn call_within<'a>(
        &'a self,
        name: &'static str,
        timeout: Duration,
        call: impl Fn(&'a dyn Hooks) -> HookFuture<'a>,
    ) -> Result<(), Elapsed> {
        let mut called = Ok(());
        for hooks in &self.hooks {
            let one = tokio::time::timeout(timeout, call_one(name, || call(hooks.as_ref()))).await;
            called = called.and(one);
        }
        called
    }
}

async fn call_one<'a>(name: &'static str, call: impl FnOnce() -> HookFuture<'a>) {
    // The call itself may panic as well, before there is a future.
    if AssertUnwindSafe(async { call().await }).catch_unwind().await.is_err() {
        tracing::error!(hook = name, "a hook panicked");
    }
}

impl fmt::Debug for HookList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} hooks", self.hooks.len())
    }
}
