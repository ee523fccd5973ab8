//! Adding jobs: one or many, and within the caller's own transaction.

use std::borrow::Cow;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::bulk::is_worthwhile;
use super::check::check_job;
use super::connection::{AddJobs, Own, Preparing};
use super::{WorkerUtils, queries};
use crate::db::pool;
use crate::{BatchTaskHandler, Error, Job, JobKeyMode, JobSpec, Result, TaskHandler};

/// How this role may access the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// It can COPY into the tables.
    Copy,
    /// It can read the tables, and add by the functions.
    Read,
    /// It can only call the functions.
    Add,
}

/// A job to be added: its task, its payload and its spec.
#[derive(Clone, Debug)]
pub struct RawJobSpec {
    pub(super) identifier: String,
    pub(super) payload: Box<RawValue>,
    pub(super) spec: JobSpec,
}

impl RawJobSpec {
    /// A job of any task, whether this program knows the task or not.
    pub fn new(
        identifier: impl Into<String>,
        payload: impl Serialize,
        spec: impl Into<JobSpec>,
    ) -> Result<RawJobSpec> {
        let identifier = identifier.into();
        let payload = to_raw_value(&payload).map_err(|error| {
            Error::invalid_input(format!(
                "the payload for task {identifier} can't be written as JSON: {error}"
            ))
        })?;
        Ok(RawJobSpec { identifier, payload, spec: spec.into() })
    }
}

/// A job in the form that the SQL functions read.
#[derive(Serialize)]
pub(super) struct Argument<'a> {
    identifier: &'a str,
    #[serde(serialize_with = "as_string")]
    payload: Cow<'a, RawValue>,
    queue_name: &'a Option<String>,
    run_at: Option<DateTime<Utc>>,
    /// In seconds.
    run_in: Option<f64>,
    max_attempts: Option<i16>,
    job_key: &'a Option<String>,
    priority: Option<i16>,
    flags: &'a Option<Vec<String>>,
    job_key_mode: Option<&'static str>,
}

/// The argument of the statement add_jobs.
#[derive(Serialize)]
pub(super) struct ManyArgument<'a> {
    jobs: Vec<Argument<'a>>,
    preserve_run_at: bool,
}

impl WorkerUtils {
    /// Adds a job of a task that this program knows. Returns the job as it is stored in the database.
    ///
    /// Cancel safe: it is done as a whole or not at all.
    pub async fn add_job<T: TaskHandler>(&self, payload: T, spec: impl Into<JobSpec>) -> Result<Job> {
        let spec = spec.into().or(payload.default_spec());
        self.add_raw_job(T::IDENTIFIER, payload, spec).await
    }

    /// Adds a job of any task by its identifier.
    ///
    /// Cancel safe: it is done as a whole or not at all.
    pub async fn add_raw_job(
        &self,
        identifier: impl Into<String>,
        payload: impl Serialize,
        spec: impl Into<JobSpec>,
    ) -> Result<Job> {
        let mut client = pool::get(self.pool(), "adding a job").await?;
        if self.prepares {
            return self.add_raw_job_in(&mut Preparing(client), identifier, payload, spec).await;
        }
        self.add_raw_job_in(&mut client, identifier, payload, spec).await
    }

    /// Adds many jobs of one task. Returns them in the same order. See [`WorkerUtils::add_raw_jobs`].
    ///
    /// Cancel safe: it is done as a whole or not at all.
    pub async fn add_jobs<T: TaskHandler>(&self, jobs: &[(T, &JobSpec)]) -> Result<Vec<Job>> {
        self.add_raw_jobs(&raw_jobs(jobs)?).await
    }

    /// Adds many jobs of any tasks. Returns them in the same order.
    ///
    /// Fewer than 50 jobs, and jobs with a job key, are added in one round trip. 50 jobs or more without keys are added
    /// by COPY in a transaction, if the role may write to the tables. This takes eight round trips for any number of
    /// jobs, and less time, since the server does less work per job. The first such call of a [`WorkerUtils`] takes one
    /// more round trip, to read the privileges of the role.
    ///
    /// Cancel safe: it is done as a whole or not at all.
    pub async fn add_raw_jobs(&self, jobs: &[RawJobSpec]) -> Result<Vec<Job>> {
        let mut client = pool::get(self.pool(), "adding jobs").await?;
        if !is_worthwhile(jobs) {
            // One statement is a transaction of its own.
            return self.add_raw_jobs_in(&mut client, jobs).await;
        }
        let mut transaction = Own::begin(&mut client).await?;
        let jobs = self.add_raw_jobs_in(&mut transaction, jobs).await?;
        transaction.commit().await?;
        Ok(jobs)
    }

    /// Adds one job for many items of a batch task. If it has a job key, the items of later calls are added to it until
    /// it runs.
    ///
    /// Cancel safe: it is done as a whole or not at all.
    pub async fn add_batch_job<T: BatchTaskHandler>(
        &self,
        items: &[T],
        spec: impl Into<JobSpec>,
    ) -> Result<Job> {
        let spec = spec.into().or(T::default_spec(items));
        self.add_raw_job(T::IDENTIFIER, items, spec).await
    }

    /// [`WorkerUtils::add_job`] within your own transaction.
    ///
    /// Cancel safe: the transaction can be used and committed afterwards.
    pub async fn add_job_in<T: TaskHandler>(
        &self,
        transaction: &mut impl AddJobs,
        payload: T,
        spec: impl Into<JobSpec>,
    ) -> Result<Job> {
        let spec = spec.into().or(payload.default_spec());
        self.add_raw_job_in(transaction, T::IDENTIFIER, payload, spec).await
    }

    /// [`WorkerUtils::add_jobs`] within your own transaction.
    ///
    /// Cancel safe: the transaction can be used and committed afterwards.
    pub async fn add_jobs_in<T: TaskHandler>(
        &self,
        transaction: &mut impl AddJobs,
        jobs: &[(T, &JobSpec)],
    ) -> Result<Vec<Job>> {
        self.add_raw_jobs_in(transaction, &raw_jobs(jobs)?).await
    }

    /// [`WorkerUtils::add_batch_job`] within your own transaction.
    ///
    /// Cancel safe: the transaction can be used and committed afterwards.
    pub async fn add_batch_job_in<T: BatchTaskHandler>(
        &self,
        transaction: &mut impl AddJobs,
        items: &[T],
        spec: impl Into<JobSpec>,
    ) -> Result<Job> {
        let spec = spec.into().or(T::default_spec(items));
        self.add_raw_job_in(transaction, T::IDENTIFIER, items, spec).await
    }

    /// [`WorkerUtils::add_raw_job`] within your own transaction.
    ///
    /// Cancel safe: the transaction can be used and committed afterwards.
    pub async fn add_raw_job_in(
        &self,
        transaction: &mut impl AddJobs,
        identifier: impl Into<String>,
        payload: impl Serialize,
        spec: impl Into<JobSpec>,
    ) -> Result<Job> {
        let job = RawJobSpec::new(identifier, payload, spec)?;
        check_job(&job)?;
        let argument = self.argument(&job);
        let is_deduped = job.spec.job_key_mode == Some(JobKeyMode::UnsafeDedupe);
        let added = if is_deduped && self.access(transaction).await? != Access::Add {
            queries::add_job_deduped(transaction, self.schema(), &argument).await
        } else {
            queries::add_job(transaction, self.schema(), &argument).await
        };
        let added = added.map_err(|error| self.explain(error))?;
        added.ok_or_else(|| not_ours(self.schema().name()))
    }

    /// [`WorkerUtils::add_raw_jobs`] within your own transaction.
    ///
    /// Cancel safe: the transaction can be used and committed afterwards.
    pub async fn add_raw_jobs_in(
        &self,
        transaction: &mut impl AddJobs,
        jobs: &[RawJobSpec],
    ) -> Result<Vec<Job>> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        jobs.iter().try_for_each(check_job)?;
        if jobs.iter().any(|job| job.spec.job_key_mode == Some(JobKeyMode::UnsafeDedupe)) {
            return Err(Error::invalid_input(
                "adding jobs: the job key mode unsafe_dedupe can't be used when several jobs are added at once",
            )
            .with_hint("add those jobs one by one, or use replace or preserve_run_at"));
        }
        if let Some(added) = self.try_copy(transaction, jobs).await? {
            return Ok(added);
        }
        let preserve_run_at = jobs.iter().any(|job| job.spec.job_key_mode == Some(JobKeyMode::PreserveRunAt));
        let argument =
            ManyArgument { jobs: jobs.iter().map(|job| self.argument(job)).collect(), preserve_run_at };
        let added = queries::add_jobs(transaction, self.schema(), &argument).await;
        name_jobs(added.map_err(|error| self.explain(error))?, jobs, self.schema().name())
    }

    /// How this role may access the tables. An answer other than `Add` is kept: privileges that are granted later take
    /// effect in the next [`WorkerUtils`].
    pub(super) async fn access(&self, transaction: &mut impl AddJobs) -> Result<Access> {
        if let Some(access) = self.inner.access.get() {
            return Ok(*access);
        }
        let access = queries::read_access(transaction, self.schema()).await;
        match access.map_err(|error| self.explain(error))? {
            // Not kept: if the tables are created later, the role may get more access.
            Access::Add => Ok(Access::Add),
            access => Ok(*self.inner.access.get_or_init(|| access)),
        }
    }

    fn argument<'a>(&self, job: &'a RawJobSpec) -> Argument<'a> {
        let spec = &job.spec;
        // With a clock of its own, the worker decides the time; otherwise the database does.
        let (run_at, run_in) = match self.default_run_at() {
            Some(now) => (Some(spec.due_at(now).unwrap_or(now)), None),
            None => (spec.run_at, spec.run_in.map(|delay| delay.as_secs_f64())),
        };
        Argument {
            identifier: &job.identifier,
            payload: crate::trace::carry(&job.payload),
            queue_name: &spec.queue_name,
            run_at: run_at.map(in_micros),
            run_in,
            max_attempts: spec.max_attempts,
            job_key: &spec.job_key,
            priority: spec.priority,
            flags: &spec.flags,
            job_key_mode: spec.job_key_mode.map(JobKeyMode::as_str),
        }
    }
}

/// The jobs of one task, with its defaults.
fn raw_jobs<T: TaskHandler>(jobs: &[(T, &JobSpec)]) -> Result<Vec<RawJobSpec>> {
    let raw = |(payload, spec): &(T, &JobSpec)| {
        RawJobSpec::new(T::IDENTIFIER, payload, (*spec).clone().or(payload.default_spec()))
    };
    jobs.iter().map(raw).collect()
}

/// JSON as a string within JSON: see the SQL statement.
fn as_string<S: serde::Serializer>(json: &RawValue, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(json.get())
}

/// The time with PostgreSQL's precision: in microseconds, and a leap second as the second after it.
pub(super) fn in_micros(time: DateTime<Utc>) -> DateTime<Utc> {
    DateTime::from_timestamp_micros(time.timestamp_micros()).unwrap_or(time)
}

pub(super) fn encode(argument: &impl Serialize) -> Result<String> {
    serde_json::to_string(argument)
        .map_err(|error| Error::invalid_input(format!("adding a job: it can't be written as JSON: {error}")))
}

/// The function returns the jobs in the order of the specs, so their names are taken from the specs.
fn name_jobs(mut jobs: Vec<Job>, specs: &[RawJobSpec], schema: &str) -> Result<Vec<Job>> {
    if jobs.len() != specs.len() {
        return Err(not_ours(schema));
    }
    for (job, spec) in jobs.iter_mut().zip(specs) {
        job.task_identifier = spec.identifier.as_str().into();
        job.queue_name.clone_from(&spec.spec.queue_name);
    }
    Ok(jobs)
}

fn not_ours(schema: &str) -> Error {
    Error::config(format!(
        "adding jobs: the functions of schema {schema:?} returned fewer jobs than were added"
    ))
    .with_hint("another tool replaced these functions; to restore them, run: atta migrate")
}
