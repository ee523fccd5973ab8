//! A host: a process that has loaded the tasks of its language and runs many jobs at a time.
//!
//! It is started once and stays. We exchange messages with it over a socket that it has as its file descriptor 3
//! (`wire.rs` has the messages). Its standard output and error go to the log. When we end, in whatever way, the socket
//! closes, and the host ends by itself.
//!
//! # Owner
//!
//! One task, the supervisor, owns everything about a host: its state, its process and its runs. Others talk to it by a
//! channel of [`Request`]s; each run gets its answer by a channel of its own, and what has become of the process is
//! published by a third. There is no shared state. All decisions are made in `host/machine.rs` and `host/runs.rs`,
//! which are pure: [`Machine::handle`] takes in an event and a time, and returns commands. `host/supervisor.rs` feeds
//! it and carries out the commands, and `host/process.rs` is the input and output of one process.
//!
//! # States
//!
//! | state | meaning | jobs |
//! |---|---|---|
//! | `Starting` | a process was started and loads its tasks | none are claimed |
//! | `Ready` | it has reported that it has loaded its tasks | run, except those of tasks that could not be loaded |
//! | `Stuck` | the process can't be used any more, and is killed now or soon | none are claimed; results still count |
//! | `Dead` | there is no process; the next one is started after a pause that grows | none are claimed |
//! | `Draining` | the host was closed; the process ends by itself, or is killed | none are sent; results still count |
//!
//! ```text
//!  Open ──► Starting ── ready ──► Ready ── no sign of life, too many lost runs, socket closed ──► Stuck
//!             ▲  │                  │                                                               │
//!             │  └── process ends ──┴──► Dead ◄───────────────────── process ends ──────────────────┘
//!             └─────── pause is over ─────┘
//!  Close: Starting, Ready ──► Draining ── process ends ──► Dead, closed; Stuck is killed; Dead stays
//! ```
//!
//! While a host is not ready, its tasks are paused: the worker claims none of their jobs. A job that was claimed just
//! before is returned, which costs it no attempt.
//!
//! # Failures
//!
//! - The process ends while it runs jobs: runs that may have started fail. Runs that were not sent, or are known not to
//!   have started, are returned.
//! - The process ends before it is ready, or can't be started: this is published and logged once, and the next start
//!   follows. A task that can't be loaded stays paused.
//! - A run exceeds its time limit, which counts from its start: it is aborted. If it does not end, the host must answer
//!   a ping, or is stuck. Only then is the time limit reported.
//! - A run does not start for as long as its time limit: the host must answer a ping, or is stuck.
//! - A run is given up (time limit, abort): if it was not sent, it is discarded. If it was sent, the host is told to
//!   abort it, and drops it if it has not started. So it never starts later.
//! - The process closes its socket and goes on: it is stuck, and is killed after a while.

mod event;
mod inbox;
mod machine;
mod process;
mod report;
mod runs;
mod supervisor;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use atta::{Job, PausedTasks, TaskError, WorkerContext};
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::TasksSettings;
use super::guard::Guard;
use super::runtime::Program;
use super::wire::{Failure, WorkerMessage};
use event::{Answer, Load, NewRun, Phase, RunningJob};
pub(super) use machine::SLOW_LOAD;
use machine::{Machine, Rules};
use supervisor::{Constants, Request, Supervisor, WorkerLink};

/// The interface of a host for jobs, and for the folder that it belongs to.
pub(super) struct Host {
    name: String,
    supervision: Mutex<Supervision>,
    requests: mpsc::UnboundedSender<Request>,
    load: watch::Receiver<Load>,
    /// Makes the supervisor know the worker before the first run.
    introduction: Once,
    next_run: AtomicU64,
}

/// Whether the supervisor runs.
enum Supervision {
    NotStarted(Box<Supervisor>),
    Running(JoinHandle<()>),
    Over,
}

impl Host {
    pub(super) fn new(
        program: Program,
        tasks: Vec<(String, PathBuf)>,
        settings: &TasksSettings,
        connection: Option<Box<RawValue>>,
        guard: Arc<Guard>,
        paused: PausedTasks,
    ) -> Host {
        let name = program.name.clone();
        let machine = Machine::new(Rules {
            name: name.clone(),
            kill_after: settings.kill_after,
            logs_first_load: settings.allows_broken,
        });
        let constants = Constants {
            program,
            tasks,
            concurrency: settings.concurrency,
            connection,
            schema: settings.schema.clone(),
            guard,
            paused,
        };
        let (requests, received) = mpsc::unbounded_channel();
        let (publisher, load) = watch::channel(Load::default());
        let supervisor = Supervisor::new(constants, machine, received, publisher);
        Host {
            name,
            supervision: Mutex::new(Supervision::NotStarted(Box::new(supervisor))),
            requests,
            load,
            introduction: Once::new(),
            next_run: AtomicU64::new(0),
        }
    }

    /// Pauses the tasks, and starts the supervisor and with it the process, unless that was done before.
    pub(super) fn start(&self) {
        let mut supervision = self.supervision();
        *supervision = match std::mem::replace(&mut *supervision, Supervision::Over) {
            Supervision::NotStarted(supervisor) => {
                // Here, and not in the supervisor: a worker that starts after this call must see it.
                supervisor.pause_tasks();
                Supervision::Running(tokio::spawn(supervisor.run()))
            }
            other => other,
        };
    }

    /// Waits until the process is ready, or has failed to become so. Returns what could not be loaded: the tasks, or
    /// the host itself.
    pub(super) async fn loaded(&self) -> Vec<String> {
        match self.settled().await.phase {
            Phase::Starting => Vec::new(),
            Phase::Ready(broken) => {
                broken.into_iter().map(|task| format!("{}: {}", task.identifier, task.error)).collect()
            }
            Phase::Failed(how) => vec![format!("the {} host ended before it was ready: {how}", self.name)],
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
                Err(format!("the {} host died and can't be started again: {how}", self.name))
            }
            _ => Ok(()),
        }
    }

    /// How many processes were ready and were lost since. It is counted before any run ends because of that.
    pub(super) fn deaths(&self) -> u64 {
        self.load.borrow().deaths
    }

    async fn settled(&self) -> Load {
        let mut load = self.load.clone();
        let settled = load.wait_for(|load| load.phase != Phase::Starting).await;
        // An error means that the host was closed before it was ready.
        settled.map(|load| load.clone()).unwrap_or_default()
    }

    /// Makes the process end.
    pub(super) fn request_close(&self) {
        let mut supervision = self.supervision();
        match *supervision {
            Supervision::NotStarted(_) => *supervision = Supervision::Over,
            // An error means that the supervisor has ended.
            Supervision::Running(_) => drop(self.requests.send(Request::Close)),
            Supervision::Over => {}
        }
    }

    /// Ends the process, and waits for its end.
    pub(super) async fn close(&self) {
        self.request_close();
        let supervision = std::mem::replace(&mut *self.supervision(), Supervision::Over);
        if let Supervision::Running(supervisor) = supervision {
            // Panicked or not, the supervisor has ended.
            let _ = supervisor.await;
        }
    }

    fn supervision(&self) -> MutexGuard<'_, Supervision> {
        // No code panics while it holds this lock.
        self.supervision.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.introduce(&ctx);
        let answer = match self.begin(ctx.job(), limit) {
            Some(run) => run.answer().await,
            None => Answer::NotStarted,
        };
        match answer {
            Answer::Done => Ok(()),
            Answer::Failed(failure) => Err(to_error(failure, ctx.job())),
            Answer::TimedOut => {
                let limit = limit.unwrap_or_default();
                Err(TaskError::new(format!("the time limit of {limit:?} was exceeded")))
            }
            Answer::NotStarted => Err(TaskError::new("the host of the task is not ready").return_job()),
        }
    }

    fn introduce(&self, ctx: &WorkerContext) {
        self.introduction.call_once(|| {
            let (id, utils) = (ctx.worker_id().to_owned(), ctx.utils().clone());
            let cancel = ctx.cancellation_token().clone();
            // An error means that the supervisor has ended; then the run is returned.
            let _ = self.requests.send(Request::Worker(WorkerLink { id, utils, cancel }));
        });
    }

    /// None: the host was closed.
    fn begin(&self, job: &Job, limit: Option<Duration>) -> Option<Run<'_>> {
        let number = self.next_run.fetch_add(1, Ordering::Relaxed);
        let line = WorkerMessage::Run { run: number, job, report_start: limit.is_some() }.encode();
        let running =
            RunningJob { id: job.id(), task: job.task_identifier().into(), attempt: job.attempts() };
        let (sender, answer) = oneshot::channel();
        let request = Request::Run(NewRun { number, job: running, line, limit }, sender);
        self.requests.send(request).ok()?;
        Some(Run { number, requests: &self.requests, answer, is_over: false })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // In case nobody called `close`.
        self.request_close();
    }
}

/// A run that somebody waits for. Dropping it gives it up.
struct Run<'a> {
    number: u64,
    requests: &'a mpsc::UnboundedSender<Request>,
    answer: oneshot::Receiver<Answer>,
    is_over: bool,
}

impl Run<'_> {
    async fn answer(mut self) -> Answer {
        let answer = (&mut self.answer).await;
        self.is_over = true;
        answer.unwrap_or_else(|_| Answer::failed("the host of the task no longer runs"))
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            // An error means that the supervisor has ended, and with it the run.
            let _ = self.requests.send(Request::GiveUp(self.number));
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

/// Of a batch, only the failed items are retried, with their exact text.
fn to_error(failure: Failure, job: &Job) -> TaskError {
    let Some(failed) = failure.items else { return TaskError::new(failure.error) };
    // A host leaves the texts of further items empty if those of the first are long.
    let lines: Vec<&str> =
        failed.iter().map(|item| item.error.as_str()).filter(|error| !error.is_empty()).collect();
    let error = TaskError::new(format!("Batch failures:\n{}", lines.join("\n")));
    let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(job.payload_json()) else { return error };
    let left: Vec<&&RawValue> = failed.iter().filter_map(|item| items.get(item.index)).collect();
    match serde_json::value::to_raw_value(&left) {
        Ok(payload) if !left.is_empty() => error.with_payload(payload),
        _ => error,
    }
}
