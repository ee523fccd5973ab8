//! Runs one job: finds the task, decodes the payload, calls the handler, catches panics, and watches for the abort.
//! Uses no database.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use serde_json::value::RawValue;
use tracing::Instrument;

use super::Shared;
use crate::error::without_values;
use crate::event::WorkerEvent;
use crate::payload;
use crate::task::{IntoBatchResult, IntoTaskHandlerResult};
use crate::{BatchTaskHandler, Job, Retry, RetryPolicy, TaskError, TaskHandler, WorkerContext};

/// The outcome of a job, before it is written.
#[derive(Debug)]
pub(crate) enum Outcome {
    Completed,
    Failed(Box<Failure>),
    /// The run was interrupted because the worker stops: the attempt does not count.
    Interrupted,
    /// The job was claimed and is returned before it has started: the attempt does not count.
    NotStarted,
}

impl Outcome {
    /// Whether the database may refuse to store what the outcome contains: a payload, which may be nested too deeply,
    /// or characters that the encoding of the database lacks.
    pub(crate) fn may_be_refused(&self, takes_any_text: bool) -> bool {
        match self {
            Outcome::Failed(failure) => {
                failure.payload.is_some() || !(takes_any_text || failure.error.is_ascii())
            }
            Outcome::Completed | Outcome::Interrupted | Outcome::NotStarted => false,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Arc<str>,
    pub(crate) retry: Retry,
    /// The items of a batch that failed, if others succeeded.
    pub(crate) payload: Option<String>,
}

impl Failure {
    /// Whether no attempt is left.
    pub(crate) fn is_permanent(&self, job: &Job) -> bool {
        self.retry == Retry::Never || job.attempts >= job.max_attempts
    }
}

/// A job and its outcome, on the way to release.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) job: Arc<Job>,
    pub(crate) outcome: Outcome,
    pub(crate) duration: Duration,
    pub(crate) claim: Claim,
}

impl Finished {
    /// Called when the database has reported that no attempt is left.
    pub(crate) fn give_up(&mut self) {
        if let Outcome::Failed(failure) = &mut self.outcome {
            failure.retry = Retry::Never;
        }
    }
}

/// How this worker has claimed a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// By the worker's id in its row.
    Durable,
    /// By the row lock of this lane's transaction, which may have been promoted to a durable claim since.
    Held(u64),
}

type TaskFuture = Pin<Box<dyn Future<Output = Result<(), Unfinished>> + Send>>;
type TaskFn = Arc<dyn Fn(WorkerContext) -> TaskFuture + Send + Sync>;

/// The failure of a task, with the part of the payload that is left.
pub(crate) struct Unfinished {
    error: TaskError,
    payload: Option<String>,
}

impl From<TaskError> for Unfinished {
    fn from(mut error: TaskError) -> Unfinished {
        let payload = error.take_payload();
        Unfinished { error, payload }
    }
}

/// The tasks that a worker knows.
#[derive(Clone, Default)]
pub(crate) struct Tasks {
    tasks: HashMap<String, Task>,
}

#[derive(Clone)]
struct Task {
    call: TaskFn,
    retry_policy: RetryPolicy,
}

impl Tasks {
    pub(crate) fn define<T: TaskHandler>(&mut self) {
        let call = |ctx: WorkerContext| -> TaskFuture {
            Box::pin(async move {
                let payload: T = decode(&ctx, T::IDENTIFIER)?;
                Ok(payload.run(ctx).await.into_task_handler_result()?)
            })
        };
        self.insert(T::IDENTIFIER, T::retry_policy(), Arc::new(call));
    }

    pub(crate) fn define_batch<T: BatchTaskHandler>(&mut self) {
        let call = |ctx: WorkerContext| -> TaskFuture {
            Box::pin(async move {
                let items: Vec<Box<RawValue>> = decode(&ctx, T::IDENTIFIER)?;
                let typed: Vec<T> = decode(&ctx, T::IDENTIFIER)?;
                let results = T::run_batch(typed, ctx).await.into_batch_result()?;
                keep_failed_items(&items, results)
            })
        };
        self.insert(T::IDENTIFIER, T::retry_policy(), Arc::new(call));
    }

    /// Defines a task whose handler takes only the context and decodes the payload itself.
    pub(crate) fn define_raw<F, R>(&mut self, identifier: &str, handler: F)
    where
        F: Fn(WorkerContext) -> R + Send + Sync + 'static,
        R: Future<Output: IntoTaskHandlerResult> + Send + 'static,
    {
        let call = move |ctx: WorkerContext| -> TaskFuture {
            let run = handler(ctx);
            Box::pin(async move { Ok(run.await.into_task_handler_result()?) })
        };
        self.insert(identifier, RetryPolicy::default(), Arc::new(call));
    }

    fn insert(&mut self, identifier: &str, retry_policy: RetryPolicy, call: TaskFn) {
        self.tasks.insert(identifier.to_owned(), Task { call, retry_policy });
    }

    pub(crate) fn identifiers(&self) -> Vec<String> {
        let mut identifiers: Vec<String> = self.tasks.keys().cloned().collect();
        identifiers.sort_unstable();
        identifiers
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.identifiers()).finish()
    }
}

/// Runs a job to its end, or until the worker aborts.
pub(crate) async fn run_job(shared: &Arc<Shared>, job: Arc<Job>, claim: Claim) -> Finished {
    let start = Instant::now();
    shared.events.send(|| WorkerEvent::JobStarted { job: job.clone() });
    let outcome = match shared.tasks.tasks.get(job.task_identifier()) {
        Some(task) => {
            let span = tracing::info_span!(
                "job",
                job = job.id(),
                task = job.task_identifier(),
                worker = &*shared.worker_id,
                attempt = job.attempts(),
            );
            crate::trace::link(&span, &job);
            call(shared, &job, task).instrument(span).await
        }
        None => {
            let error = format!("this worker has no task {:?}", job.task_identifier());
            Outcome::Failed(Box::new(Failure { error: error.into(), retry: Retry::Backoff, payload: None }))
        }
    };
    Finished { job, outcome, duration: start.elapsed(), claim }
}

async fn call(shared: &Arc<Shared>, job: &Arc<Job>, task: &Task) -> Outcome {
    if !shared.hooks.is_empty() {
        shared.hooks.call("before_run", |hooks| hooks.before_run(job)).await;
    }
    let ctx = WorkerContext::new(job.clone(), shared.clone());
    // The call may also panic before it returns a future.
    let run = AssertUnwindSafe(async { (task.call)(ctx).await }).catch_unwind();
    let ended = tokio::select! {
        biased;
        ended = run => ended,
        () = shared.abort.cancelled() => return Outcome::Interrupted,
    };
    let unfinished = match ended {
        Ok(Ok(())) => None,
        Ok(Err(unfinished)) => Some(unfinished),
        Err(panic) => Some(TaskError::new(format!("panic: {}", panic_text(&*panic))).into()),
    };
    if !shared.hooks.is_empty() {
        let error = unfinished.as_ref().map(|unfinished| unfinished.error.message());
        shared.hooks.call("after_run", |hooks| hooks.after_run(job, error)).await;
    }
    match unfinished {
        None => Outcome::Completed,
        // The task ended with an error after its token had fired. If it made no decision about retries and completed no
        // part of a batch, the job counts as interrupted and not as failed.
        Some(Unfinished { error, payload: None })
            if shared.cancel.is_cancelled() && error.retry().is_none() =>
        {
            Outcome::Interrupted
        }
        Some(Unfinished { error, payload }) => {
            let (retry, text) = decide(&task.retry_policy, job, &error);
            if retry == Retry::Return {
                return Outcome::NotStarted;
            }
            Outcome::Failed(Box::new(Failure {
                error: crate::error::without_nul(&text).into(),
                retry,
                payload,
            }))
        }
    }
}

/// Decides what follows a failure, and returns the text of the error. The retry policy is code of the application: if
/// it panics, the default back-off applies, and the text mentions the panic.
fn decide(policy: &RetryPolicy, job: &Job, error: &TaskError) -> (Retry, String) {
    let text = error.message();
    match std::panic::catch_unwind(AssertUnwindSafe(|| policy.decide(job, error))) {
        Ok(retry) => (retry, text.to_owned()),
        Err(panic) => {
            (Retry::Backoff, format!("{text}\n(its retry policy panicked: {})", panic_text(&*panic)))
        }
    }
}

fn decode<T: serde::de::DeserializeOwned>(ctx: &WorkerContext, identifier: &str) -> Result<T, TaskError> {
    payload::decode(ctx.job().payload_json()).map_err(|error| {
        let (wanted, why) = (std::any::type_name::<T>(), without_values(&error));
        TaskError::new(format!(
            "the payload can't be decoded as {wanted}, the type of task {identifier}: {why}"
        ))
    })
}

/// If an item failed, the job fails and keeps only the failed items, in order and with unchanged text.
fn keep_failed_items(items: &[Box<RawValue>], results: Vec<Result<(), TaskError>>) -> Result<(), Unfinished> {
    if results.is_empty() {
        return Ok(());
    }
    if results.len() != items.len() {
        let (given, wanted) = (results.len(), items.len());
        return Err(TaskError::new(format!("the task returned {given} results for {wanted} items")).into());
    }
    let failed: Vec<(&str, TaskError)> = items
        .iter()
        .zip(results)
        .filter_map(|(item, result)| result.err().map(|error| (item.get(), error)))
        .collect();
    if failed.is_empty() {
        return Ok(());
    }
    // If no item succeeded, the payload stays as it is.
    let left = || failed.iter().map(|(item, _)| *item).collect::<Vec<_>>().join(",");
    let payload = (failed.len() < items.len()).then(|| format!("[{}]", left()));
    let lines = failed.iter().map(|(_, error)| error.message()).collect::<Vec<_>>().join("\n");
    let mut error = TaskError::new(format!("Batch failures:\n{lines}"));
    // All items share one job, so it is given up only if each failed item gives up.
    if failed.iter().all(|(_, error)| error.retry() == Some(Retry::Never)) {
        error = error.give_up();
    }
    Err(Unfinished { error, payload })
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}
