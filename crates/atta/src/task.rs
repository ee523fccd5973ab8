//! What users write: a task's payload and the code that runs it, and the results that this code can return.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::{Job, JobSpec, WorkerContext};

/// What a handler returns. `?` converts every error, strings included.
///
/// An error of [`TaskError`] keeps its decision about the retry: `Err(TaskError::new("no such user").give_up())?`.
pub type TaskResult<T = (), E = Box<dyn StdError + Send + Sync>> = Result<T, E>;

/// A task. The type is its payload, and [`Task::run`] is its code.
///
/// ```
/// use atta::{Task, TaskResult, WorkerContext};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct SendEmail {
///     to: String,
///     minutes: String,
/// }
///
/// impl Task for SendEmail {
///     const IDENTIFIER: &'static str = "send_email";
///
///     async fn run(self, _ctx: WorkerContext) -> TaskResult {
///         let minutes: u32 = self.minutes.parse()?;
///         println!("to {} in {minutes} minutes", self.to);
///         Ok(())
///     }
/// }
/// ```
///
/// Every `Task` is a [`TaskHandler`], and is used wherever one is expected. Implement `TaskHandler` instead for results
/// of other types, and for code that was written for the crate graphile_worker. It can't have this signature as well:
/// its `run` returns `impl IntoTaskHandlerResult`, and the compiler warns (`refining_impl_trait`) if an implementation
/// names a type there.
pub trait Task: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The task identifier that jobs carry; at most 128 characters.
    const IDENTIFIER: &'static str;

    /// See [`TaskHandler::run`].
    fn run(self, ctx: WorkerContext) -> impl Future<Output = TaskResult> + Send;

    /// See [`TaskHandler::default_spec`].
    fn default_spec(&self) -> JobSpec {
        JobSpec::default()
    }

    /// See [`TaskHandler::retry_policy`].
    fn retry_policy() -> RetryPolicy {
        RetryPolicy::default()
    }
}

impl<T: Task> TaskHandler for T {
    const IDENTIFIER: &'static str = <T as Task>::IDENTIFIER;

    async fn run(self, ctx: WorkerContext) -> impl IntoTaskHandlerResult {
        Task::run(self, ctx).await
    }

    fn default_spec(&self) -> JobSpec {
        Task::default_spec(self)
    }

    fn retry_policy() -> RetryPolicy {
        <T as Task>::retry_policy()
    }
}

/// A task whose jobs carry many items, with a result type that `?` and `Ok` infer. It is to [`BatchTaskHandler`] what
/// [`Task`] is to [`TaskHandler`].
///
/// ```
/// use atta::{BatchTask, TaskResult, WorkerContext};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Reading {
///     value: String,
/// }
///
/// impl BatchTask for Reading {
///     const IDENTIFIER: &'static str = "store_readings";
///
///     async fn run_batch(items: Vec<Reading>, _ctx: WorkerContext) -> TaskResult<Vec<TaskResult>> {
///         Ok(items.iter().map(Reading::store).collect())
///     }
/// }
///
/// impl Reading {
///     fn store(&self) -> TaskResult {
///         let _value: f64 = self.value.parse()?;
///         Ok(())
///     }
/// }
/// ```
pub trait BatchTask: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The task identifier that jobs carry; at most 128 characters.
    const IDENTIFIER: &'static str;

    /// Runs all items of one job. Return one result per item, in order, and only the failed items are retried. An empty
    /// list means that all items succeeded; an error, that all failed.
    fn run_batch(
        items: Vec<Self>,
        ctx: WorkerContext,
    ) -> impl Future<Output = TaskResult<Vec<TaskResult>>> + Send;

    /// See [`BatchTaskHandler::default_spec`].
    fn default_spec(_items: &[Self]) -> JobSpec {
        JobSpec::default()
    }

    /// See [`TaskHandler::retry_policy`].
    fn retry_policy() -> RetryPolicy {
        RetryPolicy::default()
    }
}

impl<T: BatchTask> BatchTaskHandler for T {
    const IDENTIFIER: &'static str = <T as BatchTask>::IDENTIFIER;

    async fn run_batch(items: Vec<T>, ctx: WorkerContext) -> impl IntoBatchResult {
        <T as BatchTask>::run_batch(items, ctx).await
    }

    fn default_spec(items: &[T]) -> JobSpec {
        <T as BatchTask>::default_spec(items)
    }

    fn retry_policy() -> RetryPolicy {
        <T as BatchTask>::retry_policy()
    }
}

/// A task with a result of any type. The type is its payload, and [`TaskHandler::run`] is its code. [`Task`] is easier
/// to write.
///
/// ```
/// use atta::{IntoTaskHandlerResult, TaskHandler, WorkerContext};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct SendEmail {
///     to: String,
/// }
///
/// impl TaskHandler for SendEmail {
///     const IDENTIFIER: &'static str = "send_email";
///
///     async fn run(self, _ctx: WorkerContext) -> impl IntoTaskHandlerResult {
///         println!("to {}", self.to);
///         Ok::<(), String>(())
///     }
/// }
/// ```
pub trait TaskHandler: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The task identifier that jobs carry; at most 128 characters.
    const IDENTIFIER: &'static str;

    /// Runs one job. If this returns an error or panics, the job is retried later, until it has no attempts left.
    ///
    /// If the worker must stop and the job does not end within the grace period, the future is dropped.
    fn run(self, ctx: WorkerContext) -> impl Future<Output = impl IntoTaskHandlerResult> + Send;

    /// The values of jobs of this task that the spec of an add leaves open: queue, priority, attempts, job key and so
    /// on. They may depend on the payload. Default: none; the database fills them in.
    ///
    /// Typed adds use them: `add_job`, `add_job_in`, `add_jobs`, `add_jobs_in`. A value that the add itself gives takes
    /// precedence. Adds by identifier, from SQL and by cron do not use them.
    fn default_spec(&self) -> JobSpec {
        JobSpec::default()
    }

    /// When a failed job is retried, unless the error itself decides. Default: Graphile's back-off.
    fn retry_policy() -> RetryPolicy {
        RetryPolicy::default()
    }
}

/// A task whose jobs carry many items: the payload is an array, and each item can fail on its own.
pub trait BatchTaskHandler: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The task identifier that jobs carry; at most 128 characters.
    const IDENTIFIER: &'static str;

    /// Runs all items of one job. Return one result per item, in order, and only the failed items are retried; or
    /// return a single result for all of them.
    fn run_batch(items: Vec<Self>, ctx: WorkerContext) -> impl Future<Output = impl IntoBatchResult> + Send;

    /// The values that the spec of an add leaves open: see [`TaskHandler::default_spec`]. Used by `add_batch_job` and
    /// `add_batch_job_in`. Default: none.
    fn default_spec(_items: &[Self]) -> JobSpec {
        JobSpec::default()
    }

    /// When a failed job is retried, unless the error itself decides. Default: Graphile's back-off.
    fn retry_policy() -> RetryPolicy {
        RetryPolicy::default()
    }
}

/// The types that [`TaskHandler::run`] may return: nothing, or a `Result` with any error.
pub trait IntoTaskHandlerResult {
    /// Converts the value into the result that the worker uses.
    fn into_task_handler_result(self) -> Result<(), TaskError>;
}

impl IntoTaskHandlerResult for () {
    fn into_task_handler_result(self) -> Result<(), TaskError> {
        Ok(())
    }
}

impl<T, E: Into<Box<dyn StdError + Send + Sync>>> IntoTaskHandlerResult for Result<T, E> {
    fn into_task_handler_result(self) -> Result<(), TaskError> {
        self.map(drop).map_err(|error| TaskError::from_boxed(error.into()))
    }
}

/// The types that [`BatchTaskHandler::run_batch`] may return: one result per item, one result for all, or nothing.
pub trait IntoBatchResult {
    /// Converts the value into the result that the worker uses.
    fn into_batch_result(self) -> Result<Vec<Result<(), TaskError>>, TaskError>;
}

impl IntoBatchResult for () {
    fn into_batch_result(self) -> Result<Vec<Result<(), TaskError>>, TaskError> {
        Ok(Vec::new())
    }
}

impl<T, E: Into<Box<dyn StdError + Send + Sync>>> IntoBatchResult for Vec<Result<T, E>> {
    fn into_batch_result(self) -> Result<Vec<Result<(), TaskError>>, TaskError> {
        Ok(self.into_iter().map(IntoTaskHandlerResult::into_task_handler_result).collect())
    }
}

impl<T: IntoBatchResult, E: Into<Box<dyn StdError + Send + Sync>>> IntoBatchResult for Result<T, E> {
    fn into_batch_result(self) -> Result<Vec<Result<(), TaskError>>, TaskError> {
        match self {
            Ok(results) => results.into_batch_result(),
            Err(error) => Err(TaskError::from_boxed(error.into())),
        }
    }
}

/// Why a job failed, and what happens to it next. Any error converts into a `TaskError`. Create one yourself to decide
/// when, or whether, the job is retried.
///
/// ```
/// use std::time::Duration;
/// use atta::TaskError;
///
/// let busy = TaskError::new("the printer is busy").retry_in(Duration::from_secs(5));
/// let wrong = TaskError::new("no such customer").give_up();
/// ```
///
/// The decision takes effect even if the error is wrapped, as long as the wrapper exposes its sources: in
/// `anyhow::Error`, with or without a context, in a `Box`, or in an error of yours by `#[from]`, `#[source]` or
/// `#[error(transparent)]`.
#[derive(Debug)]
pub struct TaskError {
    message: String,
    decision: Decision,
}

/// What an error decides about its job.
///
/// It is an error itself, and the source of its [`TaskError`], because wrappers such as `anyhow::Error` hide the type
/// of the error that they wrap and expose only its sources.
#[derive(Clone, Debug, Default)]
struct Decision {
    retry: Option<Retry>,
    payload: Option<Box<RawValue>>,
}

impl Decision {
    fn is_none(&self) -> bool {
        self.retry.is_none() && self.payload.is_none()
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.retry {
            None if self.payload.is_some() => f.write_str("the job gets another payload"),
            None | Some(Retry::Backoff) => f.write_str("the job is retried"),
            Some(Retry::In(delay)) => write!(f, "the job is retried in {delay:?}"),
            Some(Retry::At(time)) => write!(f, "the job is retried at {time}"),
            Some(Retry::Never) => f.write_str("the job is not retried"),
            Some(Retry::Return) => f.write_str("the job is returned"),
        }
    }
}

impl StdError for Decision {}

/// When a failed job is retried.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Retry {
    /// After Graphile's back-off, in seconds: e to the power of the attempt's number, or of 10 if that is lower.
    Backoff,
    /// After this time.
    In(Duration),
    /// At this time.
    At(DateTime<Utc>),
    /// Never: the job is permanently failed now.
    Never,
    /// The task could not start. The job is returned: the attempt does not count, no error is stored, and the job is
    /// due at once. Pause the task first ([`crate::PausedTasks`]); otherwise the worker claims the job again at once.
    Return,
}

impl TaskError {
    /// An error with this text. The task's retry policy decides when the job is retried.
    pub fn new(message: impl fmt::Display) -> TaskError {
        TaskError { message: message.to_string(), decision: Decision::default() }
    }

    /// Retries the job after this time.
    #[must_use]
    pub fn retry_in(mut self, delay: Duration) -> TaskError {
        self.decision.retry = Some(Retry::In(delay));
        self
    }

    /// Retries the job at this time.
    #[must_use]
    pub fn retry_at(mut self, time: DateTime<Utc>) -> TaskError {
        self.decision.retry = Some(Retry::At(time));
        self
    }

    /// Does not retry the job: it is permanently failed.
    #[must_use]
    pub fn give_up(mut self) -> TaskError {
        self.decision.retry = Some(Retry::Never);
        self
    }

    /// Returns the job, because the task could not start: see [`Retry::Return`].
    #[must_use]
    pub fn return_job(mut self) -> TaskError {
        self.decision.retry = Some(Retry::Return);
        self
    }

    /// Replaces the job's payload for its next attempt, for example by the items of a batch that are left.
    #[must_use]
    pub fn with_payload(mut self, payload: Box<RawValue>) -> TaskError {
        self.decision.payload = Some(payload);
        self
    }

    /// The text that is stored in `last_error`: the error's own text and that of all its causes.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The decision about a retry that the error itself carries, if any.
    pub fn retry(&self) -> Option<Retry> {
        self.decision.retry
    }

    /// The payload for the next attempt, if the error replaces it.
    pub(crate) fn take_payload(&mut self) -> Option<String> {
        self.decision.payload.take().map(|payload| payload.get().to_owned())
    }

    /// If several causes carry a decision, the first one counts.
    fn from_boxed(error: Box<dyn StdError + Send + Sync>) -> TaskError {
        let error = match error.downcast::<TaskError>() {
            Ok(task_error) => return *task_error,
            Err(error) => error,
        };
        let mut message = error.to_string();
        let mut decision = None;
        let mut cause = error.source();
        while let Some(error) = cause {
            cause = error.source();
            if let Some(found) = error.downcast_ref::<Decision>() {
                decision = decision.or(Some(found));
                continue;
            }
            let more = error.to_string();
            // Many errors repeat their cause in their own text.
            if !message.ends_with(&more) {
                message.push_str(": ");
                message.push_str(&more);
            }
        }
        if message.is_empty() {
            message.push_str("the task failed without an error message");
        }
        let decision = decision.cloned().unwrap_or_default();
        TaskError { message, decision }
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for TaskError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        (!self.decision.is_none()).then_some(&self.decision)
    }
}

type Choose = Arc<dyn Fn(&Job, &str) -> Retry + Send + Sync>;

/// When the failed jobs of a task are retried.
#[derive(Clone)]
pub struct RetryPolicy {
    choose: Choose,
    jitter: f64,
}

impl Default for RetryPolicy {
    /// Graphile's back-off, without jitter.
    fn default() -> RetryPolicy {
        RetryPolicy::new(|_, _| Retry::Backoff)
    }
}

impl RetryPolicy {
    /// Decides by a function of the job and the error's text. The job's attempts include the one that failed.
    pub fn new(choose: impl Fn(&Job, &str) -> Retry + Send + Sync + 'static) -> RetryPolicy {
        RetryPolicy { choose: Arc::new(choose), jitter: 0.0 }
    }

    /// Always retries after the same time.
    pub fn fixed(delay: Duration) -> RetryPolicy {
        RetryPolicy::new(move |_, _| Retry::In(delay))
    }

    /// Never retries after a failure.
    pub fn never() -> RetryPolicy {
        RetryPolicy::new(|_, _| Retry::Never)
    }

    /// Makes each delay longer by a random part of it, up to `part`: 0.25 adds up to a quarter. With jitter, the jobs
    /// that failed in one outage are not all retried in the same second.
    #[must_use]
    pub fn with_jitter(mut self, part: f64) -> RetryPolicy {
        self.jitter = part.max(0.0);
        self
    }

    /// When the job is retried after this error.
    pub(crate) fn decide(&self, job: &Job, error: &TaskError) -> Retry {
        let retry = error.retry().unwrap_or_else(|| (self.choose)(job, &error.message));
        if self.jitter == 0.0 {
            return retry;
        }
        // A delay that is far too long, or has too much jitter, must not panic here: the release limits it.
        let stretched = |delay: Duration| {
            let seconds = delay.as_secs_f64() * (1.0 + self.jitter * fastrand::f64());
            Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
        };
        match retry {
            Retry::Backoff => Retry::In(stretched(backoff(job.attempts))),
            Retry::In(delay) => Retry::In(stretched(delay)),
            chosen => chosen,
        }
    }
}

impl fmt::Debug for RetryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryPolicy").field("jitter", &self.jitter).finish_non_exhaustive()
    }
}

/// Graphile's back-off, as the SQL computes it.
pub(crate) fn backoff(attempts: i16) -> Duration {
    Duration::from_secs_f64(f64::from(attempts.clamp(0, 10)).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Outer(std::io::Error);

    impl fmt::Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("sending failed")
        }
    }

    impl StdError for Outer {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn the_whole_chain_of_causes_is_kept() {
        let error =
            Err::<(), _>(Outer(std::io::Error::other("no route"))).into_task_handler_result().unwrap_err();
        assert_eq!(error.message(), "sending failed: no route");
    }

    #[test]
    fn strings_and_our_own_errors_are_errors_too() {
        assert_eq!(Err::<(), _>("no").into_task_handler_result().unwrap_err().message(), "no");
        let chosen = Err::<(), _>(TaskError::new("no").give_up()).into_task_handler_result().unwrap_err();
        assert_eq!(chosen.retry(), Some(Retry::Never));
    }

    #[test]
    fn the_back_off_is_graphiles() {
        let seconds: Vec<u64> = (1..=12).map(|attempt| backoff(attempt).as_secs()).collect();
        assert_eq!(seconds, [2, 7, 20, 54, 148, 403, 1096, 2980, 8103, 22026, 22026, 22026]);
    }
}
