//! Jobs that are in no database, for unit tests of tasks.

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::{Job, Place};
use crate::{Error, Result};

impl Job {
    /// Builds a job that is in no database: for unit tests of tasks, see
    /// [`WorkerContext::builder`](crate::WorkerContext::builder).
    pub fn builder(task_identifier: impl AsRef<str>) -> JobBuilder {
        let now = Utc::now();
        let job = Job {
            id: 1,
            task_identifier: task_identifier.as_ref().into(),
            task_id: 1,
            job_queue_id: None,
            queue_name: None,
            payload: "{}".into(),
            priority: 0,
            run_at: now,
            attempts: 1,
            max_attempts: 25,
            last_error: None,
            created_at: now,
            updated_at: now,
            key: None,
            locked_at: None,
            locked_by: None,
            revision: 0,
            flags: None,
            place: Place::default(),
        };
        JobBuilder { job }
    }
}

/// Builds a [`Job`] for a unit test: see [`Job::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct JobBuilder {
    job: Job,
}

impl JobBuilder {
    /// The id. Default: 1.
    pub fn id(mut self, id: i64) -> JobBuilder {
        self.job.id = id;
        self
    }

    /// The payload. Default: `{}`.
    pub fn payload(mut self, payload: impl Serialize) -> Result<JobBuilder> {
        let json = serde_json::to_string(&payload).map_err(|error| {
            let task = &self.job.task_identifier;
            Error::invalid_input(format!("the payload for task {task} can't be written as JSON: {error}"))
        })?;
        self.job.payload = json.into();
        Ok(self)
    }

    /// The number of the attempt that is running. Default: 1.
    pub fn attempts(mut self, attempts: i16) -> JobBuilder {
        self.job.attempts = attempts;
        self
    }

    /// How many attempts may be started. Default: 25.
    pub fn max_attempts(mut self, max_attempts: i16) -> JobBuilder {
        self.job.max_attempts = max_attempts;
        self
    }

    /// The queue. Default: none.
    pub fn queue_name(mut self, queue_name: impl Into<String>) -> JobBuilder {
        self.job.queue_name = Some(queue_name.into());
        self
    }

    /// The priority. Default: 0.
    pub fn priority(mut self, priority: i16) -> JobBuilder {
        self.job.priority = priority;
        self
    }

    /// When the job is due. Default: now.
    pub fn run_at(mut self, run_at: DateTime<Utc>) -> JobBuilder {
        self.job.run_at = run_at;
        self
    }

    /// The job key. Default: none.
    pub fn job_key(mut self, job_key: impl Into<String>) -> JobBuilder {
        self.job.key = Some(job_key.into());
        self
    }

    /// Why the last attempt failed. Default: none.
    pub fn last_error(mut self, error: impl Into<String>) -> JobBuilder {
        self.job.last_error = Some(error.into());
        self
    }

    /// The flags. Default: none.
    pub fn flags<F: Into<String>>(mut self, flags: impl IntoIterator<Item = F>) -> JobBuilder {
        self.job.flags = Some(flags.into_iter().map(|flag| (flag.into(), true.into())).collect());
        self
    }

    /// Returns the job.
    pub fn build(self) -> Job {
        self.job
    }
}
