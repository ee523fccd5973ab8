//! What a task gets besides its payload.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use deadpool_postgres::Pool;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::worker::Shared;
use crate::{Job, Result, Schema, WorkerUtils};

/// What a task gets besides its payload: the job, the database, the application's state, and a signal when the worker
/// shuts down.
#[derive(Clone)]
pub struct WorkerContext {
    job: Arc<Job>,
    origin: Origin,
}

/// Where the values come from.
#[derive(Clone)]
enum Origin {
    Worker(Arc<Shared>),
    Builder(Arc<Given>),
}

/// The values of a context that a test built.
struct Given {
    utils: Option<WorkerUtils>,
    worker_id: String,
    extensions: Extensions,
    task_identifiers: Vec<String>,
    use_local_time: bool,
    cancel: CancellationToken,
}

impl WorkerContext {
    pub(crate) fn new(job: Arc<Job>, shared: Arc<Shared>) -> WorkerContext {
        WorkerContext { job, origin: Origin::Worker(shared) }
    }

    /// Builds a context without a worker, and without a database unless one is given: for unit tests of tasks.
    ///
    /// ```
    /// use atta::{Job, Task, TaskResult, WorkerContext};
    ///
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Greet {
    ///     name: String,
    /// }
    ///
    /// impl Task for Greet {
    ///     const IDENTIFIER: &'static str = "greet";
    ///
    ///     async fn run(self, ctx: WorkerContext) -> TaskResult {
    ///         let greeting = ctx.get_ext::<String>().ok_or("no greeting")?;
    ///         println!("{greeting}, {}, for the {}. time", self.name, ctx.job().attempts());
    ///         Ok(())
    ///     }
    /// }
    ///
    /// # async fn greet() -> TaskResult {
    /// let task = Greet { name: "Ada".into() };
    /// let job = Job::builder(Greet::IDENTIFIER).payload(&task)?.attempts(2).build();
    /// let ctx = WorkerContext::builder(job).extension("Hello".to_owned()).build();
    /// task.run(ctx).await
    /// # }
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(greet()).unwrap();
    /// ```
    pub fn builder(job: Job) -> WorkerContextBuilder {
        let given = Given {
            utils: None,
            worker_id: "atta-test".into(),
            extensions: Extensions::default(),
            task_identifiers: vec![job.task_identifier().to_owned()],
            use_local_time: false,
            cancel: CancellationToken::new(),
        };
        WorkerContextBuilder { job, given }
    }

    /// The job.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The job's payload, decoded into any type.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T> {
        self.job.payload()
    }

    /// Adds and manages jobs. Panics in a context that was built without them: see [`WorkerContextBuilder::utils`].
    pub fn utils(&self) -> &WorkerUtils {
        match &self.origin {
            Origin::Worker(shared) => &shared.utils,
            Origin::Builder(given) => given.utils.as_ref().expect(
                "this context has no database; give it one by WorkerContextBuilder::utils, or test the task through a \
                 worker",
            ),
        }
    }

    /// The worker's pool of connections. Panics as [`WorkerContext::utils`] does.
    pub fn pool(&self) -> &Pool {
        self.utils().pool()
    }

    /// The schema that contains the jobs. Panics as [`WorkerContext::utils`] does.
    pub fn schema(&self) -> &Schema {
        self.utils().schema()
    }

    /// The worker that runs the job.
    pub fn worker_id(&self) -> &str {
        match &self.origin {
            Origin::Worker(shared) => &shared.worker_id,
            Origin::Builder(given) => &given.worker_id,
        }
    }

    /// The identifiers of all tasks that the worker runs, in alphabetical order.
    pub fn task_identifiers(&self) -> &[String] {
        match &self.origin {
            Origin::Worker(shared) => &shared.task_identifiers,
            Origin::Builder(given) => &given.task_identifiers,
        }
    }

    /// Whether jobs follow the clock of this machine, or a test's clock, instead of the database's:
    /// [`WorkerOptions::use_local_time`](crate::WorkerOptions::use_local_time).
    pub fn use_local_time(&self) -> bool {
        match &self.origin {
            Origin::Worker(shared) => shared.clock.is_some(),
            Origin::Builder(given) => given.use_local_time,
        }
    }

    /// The value that the application passed to `WorkerOptions::add_extension` with this type.
    pub fn get_ext<T: Send + Sync + 'static>(&self) -> Option<&T> {
        match &self.origin {
            Origin::Worker(shared) => shared.extensions.get(),
            Origin::Builder(given) => given.extensions.get(),
        }
    }

    /// Fires when the worker is shutting down and the grace period is over. If the task then fails, its job is returned
    /// and the attempt does not count, unless the error decides when the job is retried. A task that is still running
    /// at the end of the abort period is dropped.
    pub fn cancellation_token(&self) -> &CancellationToken {
        match &self.origin {
            Origin::Worker(shared) => &shared.cancel,
            Origin::Builder(given) => &given.cancel,
        }
    }
}

impl fmt::Debug for WorkerContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerContext").field("job", &self.job).finish_non_exhaustive()
    }
}

/// Builds a [`WorkerContext`] for a unit test: see [`WorkerContext::builder`].
#[must_use]
pub struct WorkerContextBuilder {
    job: Job,
    given: Given,
}

impl WorkerContextBuilder {
    /// A value that [`WorkerContext::get_ext`] returns.
    pub fn extension<T: Send + Sync + 'static>(mut self, value: T) -> WorkerContextBuilder {
        self.given.extensions.insert(value);
        self
    }

    /// The database. Default: none; then [`WorkerContext::utils`], [`WorkerContext::pool`] and
    /// [`WorkerContext::schema`] panic.
    pub fn utils(mut self, utils: WorkerUtils) -> WorkerContextBuilder {
        self.given.utils = Some(utils);
        self
    }

    /// The id of the worker. Default: `atta-test`.
    pub fn worker_id(mut self, worker_id: impl Into<String>) -> WorkerContextBuilder {
        self.given.worker_id = worker_id.into();
        self
    }

    /// What [`WorkerContext::task_identifiers`] returns. Default: the task of the job.
    pub fn task_identifiers(mut self, identifiers: Vec<String>) -> WorkerContextBuilder {
        self.given.task_identifiers = identifiers;
        self
    }

    /// What [`WorkerContext::use_local_time`] returns. Default: false.
    pub fn use_local_time(mut self, use_local_time: bool) -> WorkerContextBuilder {
        self.given.use_local_time = use_local_time;
        self
    }

    /// The token of [`WorkerContext::cancellation_token`]. Cancel it to see how the task ends. Default: one that never
    /// fires.
    pub fn cancellation_token(mut self, token: CancellationToken) -> WorkerContextBuilder {
        self.given.cancel = token;
        self
    }

    /// Returns the context.
    pub fn build(self) -> WorkerContext {
        WorkerContext { job: Arc::new(self.job), origin: Origin::Builder(Arc::new(self.given)) }
    }
}

impl fmt::Debug for WorkerContextBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerContextBuilder").field("job", &self.job).finish_non_exhaustive()
    }
}

/// The application's state: one value of each type.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extensions {
    values: HashMap<TypeId, Arc<dyn Any + Send + Sync>>,
}

impl Extensions {
    pub(crate) fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        self.values.insert(TypeId::of::<T>(), Arc::new(value));
    }

    fn get<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.values.get(&TypeId::of::<T>())?.downcast_ref()
    }
}
