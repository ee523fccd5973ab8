//! What users write: a task's payload and the code that works on it; and what such code can answer.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::{Job, WorkerContext};

/// A task: its payload is the type, its work is [`TaskHandler::run`].
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
    /// The name that jobs carry; at most 128 characters.
    const IDENTIFIER: &'static str;

    /// Works on one job. An error, or a panic, and the job is tried again later, as often as it may be.
    ///
    /// The future is dropped when the worker must stop and the job did not end within the grace period.
    fn run(self, ctx: WorkerContext) -> impl Future<Output = impl IntoTaskHandlerResult> + Send;

    /// When a failed job is tried again, unless the error says so itself. Default: Graphile's back-off.
    fn retry_policy() -> RetryPolicy {
        RetryPolicy::default()
    }
}

/// A task whose jobs carry many items: the payload is an array, and each item can fail on its own.
pub trait BatchTaskHandler: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The name that jobs carry; at most 128 characters.
    const IDENTIFIER: &'static str;

    /// Works on all items of one job. Give back one result an item, in order, and only the failed ones are tried
    /// again; or a single result for all of them.
    fn run_batch(items: Vec<Self>, ctx: WorkerContext) -> impl Future<Output = impl IntoBatchResult> + Send;

    /// When a failed job is tried again, unless the error says so itself. Default: Graphile's back-off.
    fn retry_policy() -> RetryPolicy {
        RetryPolicy::default()
    }
}

/// What [`TaskHandler::run`] may give back: nothing, or a `Result` with any error.
pub trait IntoTaskHandlerResult {
    /// What the worker goes by.
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

/// What [`BatchTaskHandler::run_batch`] may give back: one result an item, a result for all, or nothing.
pub trait IntoBatchResult {
    /// What the worker goes by.
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

/// Why a job failed, and what is to become of it. Any error turns into one; make it yourself to choose when, or
/// whether, the job is tried again.
///
/// ```
/// use std::time::Duration;
/// use atta::TaskError;
///
/// let busy = TaskError::new("the printer is busy").retry_in(Duration::from_secs(5));
/// let wrong = TaskError::new("no such customer").give_up();
/// ```
///
/// The choice counts however the error is wrapped, as long as the wrapper passes on its sources: in `anyhow::Error`, with
/// or without a context, in a `Box`, or in an error of yours by `#[from]`, `#[source]` or `#[error(transparent)]`.
#[derive(Debug)]
pub struct TaskError {
    message: String,
    decision: Decision,
}

/// What an error says of its job.
///
/// It is an error itself, and the source of its [`TaskError`]. Wrappers such as `anyhow::Error` hide the type of what they
/// wrap and show only its sources.
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
            None | Some(Retry::Backoff) => f.write_str("the job is tried again"),
            Some(Retry::In(delay)) => write!(f, "the job is tried again in {delay:?}"),
            Some(Retry::At(time)) => write!(f, "the job is tried again at {time}"),
            Some(Retry::Never) => f.write_str("the job is not tried again"),
            Some(Retry::Return) => f.write_str("the job is returned"),
        }
    }
}

impl StdError for Decision {}

/// When a failed job is tried again.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Retry {
    /// After Graphile's back-off: e to the power of the attempt, at most of 10, in seconds.
    Backoff,
    /// After this time.
    In(Duration),
    /// At this time.
    At(DateTime<Utc>),
    /// Not at all: it is permanently failed now.
    Never,
    /// The task could not begin. The job is returned: the attempt does not count, no error is stored, and the job is due at
    /// once. Pause the task first ([`crate::PausedTasks`]), or the worker claims the job again at once.
    Return,
}

impl TaskError {
    /// An error with this text, whose job is tried again as its task says.
    pub fn new(message: impl fmt::Display) -> TaskError {
        TaskError { message: message.to_string(), decision: Decision::default() }
    }

    /// Try again after this time.
    #[must_use]
    pub fn retry_in(mut self, delay: Duration) -> TaskError {
        self.decision.retry = Some(Retry::In(delay));
        self
    }

    /// Try again at this time.
    #[must_use]
    pub fn retry_at(mut self, time: DateTime<Utc>) -> TaskError {
        self.decision.retry = Some(Retry::At(time));
        self
    }

    /// Don't try again.
    #[must_use]
    pub fn give_up(mut self) -> TaskError {
        self.decision.retry = Some(Retry::Never);
        self
    }

    /// Returns the job, since the task could not begin: see [`Retry::Return`].
    #[must_use]
    pub fn return_job(mut self) -> TaskError {
        self.decision.retry = Some(Retry::Return);
        self
    }

    /// Gives the job this payload for its next attempt: what is left to do of a batch, for one.
    #[must_use]
    pub fn with_payload(mut self, payload: Box<RawValue>) -> TaskError {
        self.decision.payload = Some(payload);
        self
    }

    /// The text that goes into `last_error`: the error's and that of all its causes.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What the error itself says about trying again.
    pub fn retry(&self) -> Option<Retry> {
        self.decision.retry
    }

    /// The payload for the next attempt, if it is another one.
    pub(crate) fn take_payload(&mut self) -> Option<String> {
        self.decision.payload.take().map(|payload| payload.get().to_owned())
    }

    /// The first decision among the causes counts.
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
            message.push_str("the task failed and gave no reason");
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

/// When the failed jobs of a task are tried again.
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
    /// A function of the job, whose attempts count this one, and of the error's text.
    pub fn new(choose: impl Fn(&Job, &str) -> Retry + Send + Sync + 'static) -> RetryPolicy {
        RetryPolicy { choose: Arc::new(choose), jitter: 0.0 }
    }

    /// Always the same time.
    pub fn fixed(delay: Duration) -> RetryPolicy {
        RetryPolicy::new(move |_, _| Retry::In(delay))
    }

    /// Never again after a failure.
    pub fn never() -> RetryPolicy {
        RetryPolicy::new(|_, _| Retry::Never)
    }

    /// Makes each delay longer by a random part of it, up to `part`: 0.25 is up to a quarter. So the failures of one
    /// outage do not all come back at the same second.
    #[must_use]
    pub fn with_jitter(mut self, part: f64) -> RetryPolicy {
        self.jitter = part.max(0.0);
        self
    }

    /// What becomes of a job after this error.
    pub(crate) fn decide(&self, job: &Job, error: &TaskError) -> Retry {
        let retry = error.retry().unwrap_or_else(|| (self.choose)(job, &error.message));
        if self.jitter == 0.0 {
            return retry;
        }
        // Much too long a delay, or too much jitter, is as long as a release makes of it: no reason to panic.
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

/// Graphile's back-off, as SQL computes it.
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
