//! The events of a worker, and the hooks that it calls.
//!
//! The stream of [`WorkerEvent`]s is for observing. It is bounded and never delays the worker: a slow listener loses
//! the oldest events, and the stream reports how many. [`Hooks`] are for acting: the worker calls them. A panic in a
//! hook is caught and logged.

use std::fmt;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, Stream};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::error::Elapsed;
use tokio_util::sync::ReusableBoxFuture;

use crate::Job;

/// How many events a listener may lag behind: some seconds of a busy worker.
const BEHIND: usize = 8192;

/// An event of a worker. Events about a job's outcome are sent after the outcome is written.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum WorkerEvent {
    /// The worker is set up and connected, and its pools exist. Sent at the end of
    /// [`WorkerOptions::init`](crate::WorkerOptions::init), so that only
    /// [`WorkerOptions::subscribe`](crate::WorkerOptions::subscribe) sees it.
    Initialized {
        /// The worker.
        worker_id: Arc<str>,
    },
    /// The worker starts to run jobs.
    Started {
        /// The worker.
        worker_id: Arc<str>,
    },
    /// The worker tries to connect for LISTEN.
    ListenConnecting {
        /// How many attempts have failed since LISTEN last worked.
        failures: u32,
    },
    /// LISTEN works: notifications of new jobs arrive.
    ListenStarted,
    /// LISTEN failed, or its connection was lost. The worker connects again, and polling continues meanwhile.
    ListenFailed {
        /// Why.
        error: Arc<str>,
    },
    /// The worker asks the database for jobs.
    ClaimStarted,
    /// The claim found no jobs.
    ClaimEmpty,
    /// The database did not answer the claim, or refused it. The worker tries again.
    ClaimFailed {
        /// Why.
        error: Arc<str>,
    },
    /// A job starts.
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
    /// A job failed. It is retried, or it has failed permanently.
    JobErrored {
        /// The job.
        job: Arc<Job>,
        /// Why.
        error: Arc<str>,
    },
    /// A job failed permanently. Follows `JobErrored`.
    JobFailed {
        /// The job.
        job: Arc<Job>,
        /// Why.
        error: Arc<str>,
    },
    /// A job's outcome, success or failure, is written. Follows the other events of the run.
    JobCompleted {
        /// The job.
        job: Arc<Job>,
        /// Why it failed, if it did.
        error: Option<Arc<str>>,
    },
    /// A job was returned because of a shutdown; its attempt does not count.
    JobInterrupted {
        /// The job.
        job: Arc<Job>,
    },
    /// The worker no longer had its claim on a job when it was about to write the outcome, so nothing was written.
    ClaimLost {
        /// The job.
        job: Arc<Job>,
    },
    /// Another worker was declared dead, and its jobs and queues were freed.
    WorkerRecovered {
        /// The worker that was declared dead.
        worker_id: Arc<str>,
        /// The ids of its jobs.
        job_ids: Arc<[i64]>,
    },
    /// The worker sent no heartbeat for so long that others may have declared it dead and claimed its jobs.
    Resumed,
    /// The shutdown begins.
    ShutdownStarted {
        /// What requested it: the name of a signal, or the reason that the caller gave.
        reason: Arc<str>,
    },
    /// The shutdown could not end everything in order: a hook did not return in time, or jobs could not be released.
    /// Other workers recover such jobs. `Stopped` follows.
    ShutdownFailed {
        /// What was left undone.
        error: Arc<str>,
    },
    /// An error ends the worker: its schema is too new, a part of the worker panicked, or it could not start. `Stopped`
    /// follows. Errors of the connection do not end a worker.
    FatalError {
        /// Why.
        error: Arc<str>,
    },
    /// The worker has ended.
    Stopped {
        /// The error that [`Worker::run`](crate::Worker::run) returns, if it returns one.
        error: Option<Arc<str>>,
    },
    /// Cron added jobs, or failed to.
    Cron(Arc<crate::CronEvent>),
    /// This listener was too slow: events were dropped here. The worker does not send this event; the stream inserts it
    /// where the events are missing.
    EventsLost {
        /// How many.
        count: u64,
    },
}

/// A stream of [`WorkerEvent`]s. It ends when the worker is gone.
///
/// It keeps the last 8,192 events for its reader. If the reader is slower, the oldest are dropped, and
/// [`WorkerEvent::EventsLost`] reports how many. It implements [`Stream`], so that the adapters of `StreamExt` work on
/// it.
pub struct WorkerEvents {
    /// Waits for the next event, and then returns the receiver.
    next: ReusableBoxFuture<'static, (Result<WorkerEvent, RecvError>, Receiver)>,
}

type Receiver = broadcast::Receiver<WorkerEvent>;

async fn receive(mut receiver: Receiver) -> (Result<WorkerEvent, RecvError>, Receiver) {
    (receiver.recv().await, receiver)
}

impl WorkerEvents {
    fn new(receiver: Receiver) -> WorkerEvents {
        WorkerEvents { next: ReusableBoxFuture::new(receive(receiver)) }
    }

    /// The next event; `None` once the worker is gone. Cancel safe: if the future is dropped, no event is lost.
    pub async fn next(&mut self) -> Option<WorkerEvent> {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// The next event, if one is already there.
    pub fn try_next(&mut self) -> Option<WorkerEvent> {
        // Outside of tokio's cooperative budget: in a task that has used up its budget, an available event would not be
        // returned.
        tokio::task::unconstrained(self.next()).now_or_never().flatten()
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<WorkerEvent>> {
        let (received, receiver) = std::task::ready!(self.next.poll(cx));
        self.next.set(receive(receiver));
        Poll::Ready(match received {
            Ok(event) => Some(event),
            Err(RecvError::Lagged(count)) => Some(WorkerEvent::EventsLost { count }),
            Err(RecvError::Closed) => None,
        })
    }
}

impl Stream for WorkerEvents {
    type Item = WorkerEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<WorkerEvent>> {
        self.poll(cx)
    }
}

impl fmt::Debug for WorkerEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerEvents").finish_non_exhaustive()
    }
}

/// The worker's end of the event stream.
#[derive(Clone, Debug)]
pub(crate) struct EventSender {
    sender: broadcast::Sender<WorkerEvent>,
    /// Asking the channel for its listeners takes a lock, and the worker needs to know several times per job.
    has_listeners: Arc<AtomicBool>,
}

impl Default for EventSender {
    fn default() -> EventSender {
        EventSender { sender: broadcast::channel(BEHIND).0, has_listeners: Arc::default() }
    }
}

impl EventSender {
    pub(crate) fn subscribe(&self) -> WorkerEvents {
        let events = WorkerEvents::new(self.sender.subscribe());
        self.has_listeners.store(true, Ordering::Release);
        events
    }

    /// Builds and sends the event only if there are listeners.
    pub(crate) fn send(&self, event: impl FnOnce() -> WorkerEvent) {
        if self.has_listeners.load(Ordering::Acquire) {
            // An error means that the last listener has gone; another may subscribe later.
            let _ = self.sender.send(event());
        }
    }
}

/// The future that a hook returns.
pub type HookFuture<'a> = BoxFuture<'a, ()>;

/// Application code that the worker calls. Each method does nothing by default.
///
/// `before_run` and `after_run` are part of the job's run: the job waits for them, as long as they take. The `on_…`
/// hooks are called after the outcome is written, on the runtime on which the worker was created, for up to 64 jobs at
/// a time and in no particular order. They delay no job, within these limits:
///
/// - A call that takes longer than [`WorkerOptions::hook_timeout`](crate::WorkerOptions::hook_timeout) is abandoned: its
///   future is dropped, and an error with the hook, the job and the task is logged.
/// - While the outcomes of 1,000 jobs, or of jobs with 16 MB of payloads, wait for their hooks or run them, the worker
///   claims no more jobs. No outcome is dropped.
/// - A shutdown waits for hooks for 1 s.
///
/// `on_start` and `on_stop` are called once per run, and the worker waits for them, for at most the timeout.
pub trait Hooks: Send + Sync + 'static {
    /// The worker is about to claim its first jobs, and waits for this call.
    fn on_start<'a>(&'a self, _worker_id: &'a str) -> HookFuture<'a> {
        nothing()
    }

    /// A shutdown begins. `_reason` is the name of a signal, or the reason that the caller gave. Running jobs go on,
    /// and the shutdown does not wait for this call, except as for the other `on_…` hooks at its end.
    fn on_shutdown<'a>(&'a self, _worker_id: &'a str, _reason: &'a str) -> HookFuture<'a> {
        nothing()
    }

    /// All jobs are released, and the hooks of their outcomes were called. The worker waits for this call before `run`
    /// returns. `_error` is what `run` returns, if it returns an error. Not called if the worker could not start.
    fn on_stop<'a>(&'a self, _worker_id: &'a str, _error: Option<&'a str>) -> HookFuture<'a> {
        nothing()
    }

    /// A job is about to run.
    fn before_run<'a>(&'a self, _job: &'a Job) -> HookFuture<'a> {
        nothing()
    }

    /// A job has run. `_error` is set if it failed.
    fn after_run<'a>(&'a self, _job: &'a Job, _error: Option<&'a str>) -> HookFuture<'a> {
        nothing()
    }

    /// A job succeeded.
    fn on_complete<'a>(&'a self, _job: &'a Job) -> HookFuture<'a> {
        nothing()
    }

    /// A job failed and will be retried.
    fn on_fail<'a>(&'a self, _job: &'a Job, _error: &'a str) -> HookFuture<'a> {
        nothing()
    }

    /// A job failed permanently.
    fn on_permanent_failure<'a>(&'a self, _job: &'a Job, _error: &'a str) -> HookFuture<'a> {
        nothing()
    }

    /// A job was returned because of a shutdown.
    fn on_interruption<'a>(&'a self, _job: &'a Job) -> HookFuture<'a> {
        nothing()
    }

    /// The jobs of a worker that was declared dead were freed.
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

    /// Calls one method of each hook, in order. If one panics, the panic is logged, and the next is called.
    pub(crate) async fn call<'a>(
        &'a self,
        name: &'static str,
        call: impl Fn(&'a dyn Hooks) -> HookFuture<'a>,
    ) {
        for hooks in &self.hooks {
            call_one(name, || call(hooks.as_ref())).await;
        }
    }

    /// Calls one method of each hook, in order, and abandons calls that take longer than the timeout. Returns an error
    /// if there was one.
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
    // The call itself may also panic, before there is a future.
    if AssertUnwindSafe(async { call().await }).catch_unwind().await.is_err() {
        tracing::error!(hook = name, "a hook panicked");
    }
}

impl fmt::Debug for HookList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} hooks", self.hooks.len())
    }
}
