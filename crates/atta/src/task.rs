//! What users write: a task's payload and the code that runs it, and the results that this code can return. `error` is
//! why a job failed, and `retry` decides when it is retried.

mod error;
mod retry;

use std::error::Error as StdError;
use std::future::Future;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use error::{Retry, TaskError};
pub use retry::RetryPolicy;

use crate::{JobSpec, WorkerContext};

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
/// Every `Task` is a [`TaskHandler`], and can be used wherever one is expected. Implement `TaskHandler` instead for
/// results of other types, and for code that was written for the crate graphile_worker. There are two traits because
/// `TaskHandler::run` returns `impl IntoTaskHandlerResult`: the compiler warns (`refining_impl_trait`) if an
/// implementation names a type there.
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

    /// Runs all items of one job. Return one result per item, in order: only the failed items are retried. An empty
    /// list means that all items succeeded, and an error means that all failed.
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

    /// Default values for the jobs of this task: queue, priority, attempts, job key and so on. They apply where the
    /// spec of an add sets no value, and may depend on the payload. By default there are none, and the database's
    /// defaults apply.
    ///
    /// Typed adds use them: `add_job`, `add_job_in`, `add_jobs`, `add_jobs_in`. A value in the spec of the add takes
    /// precedence. Adds by identifier, from SQL and by cron do not use these defaults.
    fn default_spec(&self) -> JobSpec {
        JobSpec::default()
    }

    /// When a failed job is retried, unless the error itself decides. Default: Graphile's back-off.
    fn retry_policy() -> RetryPolicy {
        RetryPolicy::default()
    }
}

/// A task whose jobs carry many items: the payload is an array, and each item succeeds or fails separately.
pub trait BatchTaskHandler: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The task identifier that jobs carry; at most 128 characters.
    const IDENTIFIER: &'static str;

    /// Runs all items of one job. Return one result per item, in order, so that only the failed items are retried; or
    /// return a single result for all items.
    fn run_batch(items: Vec<Self>, ctx: WorkerContext) -> impl Future<Output = impl IntoBatchResult> + Send;

    /// Default values for the jobs of this task: see [`TaskHandler::default_spec`]. Used by `add_batch_job` and
    /// `add_batch_job_in`. By default there are none.
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
