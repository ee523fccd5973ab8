//! A host: a process that has loaded the tasks of its language and runs many jobs at a time.
//!
//! It is started once and stays. We speak with it over a socket that it finds as its file descriptor 3 (`wire.rs` has
//! the words); what it writes to its standard output and error goes to the log. When it dies, the jobs that it was
//! running fail, those that it had not been given yet wait, and it is started anew, after a pause that grows. When we
//! die, the socket closes, and it ends by itself.
//!
//! [`Host`] is the side that jobs see. The life of one process is in `host/life.rs`.

mod life;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use atta::{Job, TaskError, WorkerContext, WorkerUtils};
use serde_json::value::RawValue;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::TasksSettings;
use super::guard::Guard;
use super::runtime::Program;
use super::wire::{self, FailedItem};

/// The pause before a host is started anew grows from the one to the other.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A host that lived as long is taken for sound.
const STEADY: Duration = Duration::from_secs(10);

/// The jobs' side of a host.
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
    state: Mutex<State>,
    /// There is something to send.
    outgoing: Notify,
    /// Lines heard, so that a silent host can be told from a living one.
    heard: AtomicU64,
    /// Somebody found it stuck.
    stuck: Notify,
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

#[derive(Default)]
struct State {
    next_run: u64,
    /// Runs below this number were given to the process that lives now.
    sent_below: u64,
    /// Runs that are to be sent. They outlive a process that dies before it gets them.
    runs: Vec<u8>,
    /// Everything else that is to be sent, which means nothing to another process.
    words: Vec<u8>,
    running: HashMap<u64, Running>,
}

struct Running {
    job: i64,
    task: Arc<str>,
    answer: oneshot::Sender<Answer>,
}

/// How a run ended.
type Answer = Result<(), Refusal>;

#[derive(Debug)]
struct Refusal {
    error: String,
    /// If only these failed.
    items: Option<Vec<FailedItem>>,
}

impl Host {
    pub(super) fn new(
        program: Program,
        tasks: Vec<(String, PathBuf)>,
        settings: &TasksSettings,
        guard: Arc<Guard>,
    ) -> Host {
        let shared = Shared {
            program,
            tasks,
            concurrency: settings.concurrency,
            connection: settings.connection.clone(),
            schema: settings.schema.clone(),
            kill_after: settings.kill_after,
            guard,
            state: Mutex::default(),
            outgoing: Notify::new(),
            heard: AtomicU64::new(0),
            stuck: Notify::new(),
            closing: CancellationToken::new(),
            worker: OnceLock::new(),
        };
        Host { shared: Arc::new(shared), supervisor: Mutex::default() }
    }

    /// Starts the process, and whoever starts it again, unless that was done.
    pub(super) fn start(&self) {
        let mut supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        if supervisor.is_none() && !self.shared.closing.is_cancelled() {
            *supervisor = Some(tokio::spawn(supervise(self.shared.clone())));
        }
    }

    /// Ends the process, and waits for that.
    pub(super) async fn close(&self) {
        self.shared.closing.cancel();
        let supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(supervisor) = supervisor {
            // Panicked or not, it has gone.
            let _ = supervisor.await;
        }
    }

    /// Runs one job. When the future is dropped, the task is told to abort, and its answer no longer counts.
    pub(super) async fn run(
        self: Arc<Host>,
        ctx: WorkerContext,
        limit: Option<Duration>,
    ) -> Result<(), TaskError> {
        let shared = &self.shared;
        self.start();
        shared.get_to_know(&ctx);
        let mut run = shared.begin(ctx.job());
        let answer = match limit {
            None => run.answer().await,
            Some(limit) => match tokio::time::timeout(limit, run.answer()).await {
                Ok(answer) => answer,
                Err(_) => return Err(shared.stop_late_run(run, limit).await),
            },
        };
        answer.map_err(|refusal| refusal.into_error(ctx.job()))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // In case nobody closed it.
        self.shared.closing.cancel();
    }
}

/// A run that a host was given or will be.
struct Run<'a> {
    number: u64,
    shared: &'a Shared,
    receiver: oneshot::Receiver<Answer>,
    is_over: bool,
}

impl Run<'_> {
    /// Cancel safe.
    async fn answer(&mut self) -> Answer {
        let answer = (&mut self.receiver).await;
        self.is_over = true;
        answer.unwrap_or_else(|_| Err(Refusal::new("the host of the task has gone")))
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let mut state = self.shared.lock();
            if state.running.remove(&self.number).is_some() {
                wire::abort(&mut state.words, self.number);
                drop(state);
                self.shared.outgoing.notify_one();
            }
        }
    }
}

impl Refusal {
    fn new(error: impl Into<String>) -> Refusal {
        Refusal { error: error.into(), items: None }
    }

    /// Of a batch, only the items that failed are tried again, to the letter.
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
        // Nothing panics while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get_to_know(&self, ctx: &WorkerContext) {
        if self.worker.get().is_some() {
            return;
        }
        let (id, utils) = (ctx.worker_id().to_owned(), ctx.utils().clone());
        let cancel = ctx.cancellation_token().clone();
        // Another job may have been faster. Either way it is known from here on, before a run is sent.
        let _ = self.worker.set(Acquaintance { id, utils, cancel });
    }

    fn begin(&self, job: &Job) -> Run<'_> {
        let (answer, receiver) = oneshot::channel();
        let task = job.task_identifier().into();
        let mut state = self.lock();
        let number = state.next_run;
        state.next_run += 1;
        wire::run(&mut state.runs, number, job);
        state.running.insert(number, Running { job: job.id(), task, answer });
        drop(state);
        self.outgoing.notify_one();
        Run { number, shared: self, receiver, is_over: false }
    }

    /// Tells a run whose time is over to end. If it does not, and the host says nothing at all, the task blocks the
    /// host, which is then ended: other jobs wait behind it.
    async fn stop_late_run(&self, mut run: Run<'_>, limit: Duration) -> TaskError {
        wire::abort(&mut self.lock().words, run.number);
        self.outgoing.notify_one();
        if tokio::time::timeout(self.kill_after, run.answer()).await.is_err() {
            let heard = self.heard.load(Ordering::Relaxed);
            wire::ping(&mut self.lock().words);
            self.outgoing.notify_one();
            let asked = Instant::now();
            while self.heard.load(Ordering::Relaxed) == heard {
                if asked.elapsed() > self.kill_after {
                    self.stuck.notify_one();
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        TaskError::new(format!("the time limit of {limit:?} is over"))
    }

    /// Fails what the process that died was running.
    fn fail_running(&self, why: &str, all: bool) {
        let mut state = self.lock();
        let below = if all { u64::MAX } else { state.sent_below };
        let lost: Vec<u64> = state.running.keys().copied().filter(|run| *run < below).collect();
        for run in lost {
            if let Some(running) = state.running.remove(&run) {
                // Whoever waited may have gone.
                let _ = running.answer.send(Err(Refusal::new(why)));
            }
        }
        state.words.clear();
    }
}

/// Keeps a process alive until the host is closed.
async fn supervise(shared: Arc<Shared>) {
    let mut pause = FIRST_PAUSE;
    let name = shared.program.name.clone();
    loop {
        let began = Instant::now();
        let how = life::live(&shared).await;
        if shared.closing.is_cancelled() {
            break;
        }
        let error = format!("the {name} host that ran the task has died: {how}");
        shared.fail_running(&error, false);
        if began.elapsed() >= STEADY {
            pause = FIRST_PAUSE;
        }
        tracing::error!(host = name, how, "the host has died; it is started anew in {pause:?}");
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = shared.closing.cancelled() => break,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    shared.fail_running(&format!("the {name} host of the task was closed"), true);
}
