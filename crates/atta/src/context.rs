//! What a task gets besides its payload.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use deadpool_postgres::Pool;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::worker::Shared;
use crate::{Job, Result, WorkerUtils};

/// What a task gets besides its payload: the job, the database, the application's state, and a signal when the worker
/// shuts down.
#[derive(Clone)]
pub struct WorkerContext {
    job: Arc<Job>,
    shared: Arc<Shared>,
}

impl WorkerContext {
    pub(crate) fn new(job: Arc<Job>, shared: Arc<Shared>) -> WorkerContext {
        WorkerContext { job, shared }
    }

    /// The job.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The job's payload, decoded into any type.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T> {
        self.job.payload()
    }

    /// Adds and manages jobs.
    pub fn utils(&self) -> &WorkerUtils {
        &self.shared.utils
    }

    /// The worker's pool of connections.
    pub fn pool(&self) -> &Pool {
        self.shared.utils.pool()
    }

    /// The worker that runs the job.
    pub fn worker_id(&self) -> &str {
        &self.shared.worker_id
    }

    /// The value that the application passed to `WorkerOptions::add_extension` with this type.
    pub fn get_ext<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.shared.extensions.get()
    }

    /// Fires when the worker is shutting down and the grace period is over. If the task then fails, its job is returned
    /// and the attempt does not count, unless the error decides when the job is retried. A task that is still running a
    /// little later is dropped.
    pub fn cancellation_token(&self) -> &CancellationToken {
        &self.shared.cancel
    }
}

impl fmt::Debug for WorkerContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerContext").field("job", &self.job).finish_non_exhaustive()
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
