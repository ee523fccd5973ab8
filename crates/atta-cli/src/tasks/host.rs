//! A host: a process that has loaded the tasks of its language and runs many jobs at a time.
//!
//! It is started once and stays. We exchange messages with it over a socket that it has as its file descriptor 3
//! (`wire.rs` has the messages). Its standard output and error go to the log. When we die, the socket closes, and the
//! host ends by itself.
//!
//! The host is ready when it has loaded its tasks and has reported that. Until then, and after its death, its tasks are
//! paused: the worker claims none of their jobs. A task that could not be loaded stays paused. When the process dies,
//! the jobs that it was running fail. Jobs that had not been sent to it are returned, and so are jobs that are known
//! not to have started; that costs them no attempt. The process is started again after a pause that grows.
//!
//! A run that was given up (time limit, abort, death of the host) does not start later. If it was not sent, it is
//! discarded here. If it was sent, it is aborted, and the host drops it if it has not started. Before a time limit is
//! reported, the host has acknowledged the abort or is killed.
//!
//! [`Host`] is the interface for jobs. `host/life.rs` runs one process, `host/state.rs` has its state, and
//! `host/supervise.rs` starts the next one.

mod life;
mod state;
mod supervise;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use atta::{Job, PausedTasks, TaskError, WorkerContext, WorkerUtils};
use serde_json::value::RawValue;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::TasksSettings;
use super::guard::Guard;
use super::runtime::Program;
use super::wire::{self, FailedItem};
use state::{Begun, State};
pub(super) use supervise::SLOW_LOAD;
use supervise::{Load, Phase, supervise};

/// How long to wait for a run after its time limit, if it does not end at once: it may obey the abort signal.
const TO_HEED: Duration = Duration::from_secs(1);

/// How often to check whether a ping was answered.
const CHECK: Duration = Duration::from_millis(20);

/// The largest number of runs that continue although they were given up. With more of them the host is killed, since
/// each may keep a thread busy.
const MOST_LOST: usize = 256;

/// The interface of a host for jobs.
pub(super) struct Host {
    shared: Arc<Shared>,
    supervisor: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    program: Program,
    tasks: Vec<(String, PathBuf)>,
    concurrency: usize,
    connection: String,
    schema: String,
    kill_after: Duration,
    guard: Arc<Guard>,
    /// Whether the host itself logs that its first start failed, or that tasks can't be loaded. Otherwise a caller of
    /// [`Host::loaded`] reports it.
    logs_first_load: bool,
    paused: PausedTasks,
    state: Mutex<State>,
    /// Signals that there are messages to send.
    outgoing: Notify,
    /// Signals that the process must be killed.
    condemned: Notify,
    /// The last start failed, and this one may fail in the same way: its output is not logged again.
    is_repeating: AtomicBool,
    /// A warning was logged that loading takes long.
    is_slow: AtomicBool,
    load: watch::Sender<Load>,
    closing: CancellationToken,
    /// Known from the first job on.
    worker: OnceLock<Acquaintance>,
}

/// The worker that the jobs come from.
struct Acquaintance {
    id: String,
    utils: WorkerUtils,
    cancel: CancellationToken,
}

/// How a run ended.
#[derive(Debug)]
enum Answer {
    Done,
    Failed(Refusal),
    /// The task has not started, and will not.
    NotBegun,
}

#[derive(Debug)]
struct Refusal {
    error: String,
    /// Set if only these items failed.
    items: Option<Vec<FailedItem>>,
}

impl Host {
    pub(super) fn new(
        program: Program,
        tasks: Vec<(String, PathBuf)>,
        settings: &TasksSettings,
        guard: Arc<Guard>,
        paused: PausedTasks,
    ) -> Host {
        let shared = Shared {
            program,
            tasks,
            concurrency: settings.concurrency,
            connection: settings.connection.clone(),
            schema: settings.schema.clone(),
            kill_after: settings.kill_after,
            guard,
            logs_first_load: settings.allows_broken,
            paused,
            state: Mutex::default(),
            outgoing: Notify::new(),
            condemned: Notify::new(),
            is_repeating: AtomicBool::new(false),
            is_slow: AtomicBool::new(false),
            load: watch::Sender::default(),
            closing: CancellationToken::new(),
            worker: OnceLock::new(),
        };
        Host { shared: Arc::new(shared), supervisor: Mutex::default() }
    }

    /// Pauses the tasks, and starts the process and its supervisor, unless that was done before.
    pub(super) fn start(&self) {
        let mut supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        if supervisor.is_none() && !self.shared.closing.is_cancelled() {
            self.shared.pause_tasks();
            *supervisor = Some(tokio::spawn(supervise(self.shared.clone())));
        }
    }

    /// Waits until the process is ready, or has failed to become so. Returns what could not be loaded: the tasks, or
    /// the host itself.
    pub(super) async fn loaded(&self) -> Vec<String> {
        let (load, name) = (self.settled().await, &self.shared.program.name);
        match load.phase {
            Phase::Starting => Vec::new(),
            Phase::Ready(broken) => {
                broken.into_iter().map(|(task, error)| format!("{task}: {error}")).collect()
            }
            Phase::Failed(how) => vec![format!("the {name} host ended before it was ready: {how}")],
        }
    }

    /// Returns when the first process has failed to load all its tasks, with what could not be loaded. Never returns if
    /// it has loaded them. Cancel safe.
    pub(super) async fn broken_at_first(&self) -> Vec<String> {
        let broken = self.loaded().await;
        match self.deaths() {
            0 if !broken.is_empty() => broken,
            _ => std::future::pending().await,
        }
    }

    /// Waits until a process that died is replaced by one that is ready.
    pub(super) async fn come_back(&self) -> Result<(), String> {
        let load = self.settled().await;
        match load.phase {
            Phase::Failed(how) if load.deaths > 0 => {
                Err(format!("the {} host died and can't be started again: {how}", self.shared.program.name))
            }
            _ => Ok(()),
        }
    }

    /// How many processes were ready and died.
    pub(super) fn deaths(&self) -> u64 {
        self.shared.load.borrow().deaths
    }

    async fn settled(&self) -> Load {
        let mut load = self.shared.load.subscribe();
        let settled = load.wait_for(|load| load.phase != Phase::Starting).await;
        // The sender lives as long as this value.
        settled.map(|load| load.clone()).unwrap_or_default()
    }

    /// Ends the process, and waits for its end.
    pub(super) async fn close(&self) {
        self.shared.closing.cancel();
        let supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(supervisor) = supervisor {
            // Panicked or not, the supervisor has ended.
            let _ = supervisor.await;
        }
    }

    /// Runs one job. When the future is dropped, the task is told to abort, and its result is ignored.
    pub(super) async fn run(
        self: Arc<Host>,
        ctx: WorkerContext,
        limit: Option<Duration>,
    ) -> Result<(), TaskError> {
        if let Some(error) = too_large(ctx.job().payload_json().len()) {
            return Err(error);
        }
        let shared = &self.shared;
        shared.get_to_know(&ctx);
        // If the process is not ready, its tasks are paused, so this job was claimed just before.
        let Some(mut run) = shared.begin(ctx.job(), limit.is_some()) else { return Err(not_begun()) };
        let answer = match limit {
            None => run.answer().await,
            Some(limit) => match shared.answer_within(&mut run, limit).await {
                Some(answer) => answer,
                None => return Err(shared.stop_late_run(run, limit).await),
            },
        };
        match answer {
            Answer::Done => Ok(()),
            Answer::Failed(refusal) => Err(refusal.into_error(ctx.job())),
            Answer::NotBegun => Err(not_begun()),
        }
    }
}

/// Node can't read a line of 2²⁹ characters: it would end, and with it all jobs that it runs.
const LONGEST_PAYLOAD: usize = 500_000_000;

fn too_large(bytes: usize) -> Option<TaskError> {
    let error = || {
        TaskError::new(format!(
            "the payload is too large for a hosted task: {bytes} bytes, at most {LONGEST_PAYLOAD}"
        ))
    };
    (bytes > LONGEST_PAYLOAD).then(|| error().give_up())
}

impl Drop for Host {
    fn drop(&mut self) {
        // In case nobody called `close`.
        self.shared.closing.cancel();
    }
}

fn not_begun() -> TaskError {
    TaskError::new("the host of the task is not ready").return_job()
}

/// A run that was sent to a host, or will be.
struct Run<'a> {
    number: u64,
    shared: &'a Shared,
    receiver: oneshot::Receiver<Answer>,
    begun: Begun,
    is_over: bool,
}

impl Run<'_> {
    /// Cancel safe.
    async fn answer(&mut self) -> Answer {
        let answer = (&mut self.receiver).await;
        self.is_over = true;
        answer.unwrap_or_else(|_| Answer::Failed(Refusal::new("the host of the task no longer runs")))
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if !self.is_over && self.shared.lock().give_up(self.number) {
            self.shared.outgoing.notify_one();
        }
    }
}

impl Refusal {
    fn new(error: impl Into<String>) -> Refusal {
        Refusal { error: error.into(), items: None }
    }

    /// Of a batch, only the failed items are retried, with their exact text.
    fn into_error(self, job: &Job) -> TaskError {
        let Some(failed) = self.items else { return TaskError::new(self.error) };
        let lines: Vec<&str> = failed.iter().map(|item| item.error.as_str()).collect();
        let error = TaskError::new(format!("Batch failures:\n{}", lines.join("\n")));
        let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(job.payload_json()) else { return error };
        let left: Vec<&&RawValue> = failed.iter().filter_map(|item| items.get(item.index)).collect();
        match serde_json::value::to_raw_value(&left) {
            Ok(payload) if !left.is_empty() => error.with_payload(payload),
            _ => error,
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get_to_know(&self, ctx: &WorkerContext) {
        if self.worker.get().is_some() {
            return;
        }
        let (id, utils) = (ctx.worker_id().to_owned(), ctx.utils().clone());
        let cancel = ctx.cancellation_token().clone();
        // Another job may have set it first. In both cases it is set from here on, before a run is sent.
        let _ = self.worker.set(Acquaintance { id, utils, cancel });
    }

    /// None: the process is not ready.
    fn begin(&self, job: &Job, is_limited: bool) -> Option<Run<'_>> {
        let (answer, receiver) = oneshot::channel();
        let (number, begun) = self.lock().begin(job, is_limited, answer)?;
        self.outgoing.notify_one();
        Some(Run { number, shared: self, receiver, begun, is_over: false })
    }

    /// The result, unless the time limit ends first. The limit counts from the start of the task. If a run does not
    /// start for that long, something blocks the host: if the host does not answer at all, it is killed.
    async fn answer_within(&self, run: &mut Run<'_>, limit: Duration) -> Option<Answer> {
        loop {
            let begun = run.begun.clone();
            tokio::select! {
                biased;
                answer = run.answer() => return Some(answer),
                () = begun.wait() => break,
                () = tokio::time::sleep(limit) => self.kill_if_blocked(run.number).await,
            }
        }
        tokio::time::timeout(limit, run.answer()).await.ok()
    }

    /// Aborts a run whose time limit is over. If the run does not end, the host must acknowledge the abort, or is
    /// killed.
    async fn stop_late_run(&self, mut run: Run<'_>, limit: Duration) -> TaskError {
        wire::abort(&mut self.lock().messages, run.number);
        self.outgoing.notify_one();
        if tokio::time::timeout(self.kill_after.min(TO_HEED), run.answer()).await.is_err() {
            self.kill_if_blocked(run.number).await;
            drop(run);
            if self.lock().lost() > MOST_LOST {
                self.condemn("too many runs continued after their time limits");
            }
        }
        TaskError::new(format!("the time limit of {limit:?} was exceeded"))
    }

    /// Kills the host if it does not answer a ping: other jobs wait behind the one that blocks it.
    async fn kill_if_blocked(&self, run: u64) {
        let Some(ping) = self.lock().ping(run) else { return };
        self.outgoing.notify_one();
        let asked = Instant::now();
        while self.lock().awaits(ping) {
            if asked.elapsed() > self.kill_after {
                return self.condemn("a task exceeded its time limit and blocked all others");
            }
            tokio::time::sleep(CHECK).await;
        }
    }

    fn condemn(&self, why: &'static str) {
        self.lock().condemn(why);
        self.condemned.notify_one();
    }

    fn pause_tasks(&self) {
        self.paused.pause(self.tasks.iter().map(|(identifier, _)| identifier.as_str()));
    }
}
