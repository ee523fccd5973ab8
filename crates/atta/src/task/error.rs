//! Why a job failed, and what its error decides about the next attempt.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::value::RawValue;

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
    /// After Graphile's back-off: e to the power of the attempt's number, in seconds. From the tenth attempt on, the
    /// exponent stays 10.
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

    /// Replaces the job's payload for its next attempt, for example with the remaining items of a batch.
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
    pub(super) fn from_boxed(error: Box<dyn StdError + Send + Sync>) -> TaskError {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::IntoTaskHandlerResult;

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
}
