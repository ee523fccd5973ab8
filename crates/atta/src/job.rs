//! A job, and the options with which it is added or changed.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use chrono::{DateTime, TimeDelta, Utc};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

use crate::{Error, Result};

/// The range of times that jobs are added and read with. PostgreSQL's own range goes from 4713 BC to 294276 AD, and to
/// infinity, which neither chrono nor most other programs can represent. Where SQL stored a time outside of this range,
/// reading returns the nearest time in it.
pub(crate) const FIRST_TIME: DateTime<Utc> = time_at(-62_135_596_800);
pub(crate) const LAST_TIME: DateTime<Utc> = time_at(253_402_214_400);

const fn time_at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(seconds, 0).expect("a time within the years 1 to 9999")
}

/// A time read from a column, moved into the range from [`FIRST_TIME`] to [`LAST_TIME`].
pub(crate) struct StoredTime(pub(crate) DateTime<Utc>);

impl<'a> FromSql<'a> for StoredTime {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<StoredTime, Box<dyn std::error::Error + Sync + Send>> {
        // Microseconds since the year 2000; the lowest and the highest value stand for the infinities.
        let micros = i64::from_be_bytes(raw.try_into()?).saturating_add(946_684_800_000_000);
        let micros = micros.clamp(FIRST_TIME.timestamp_micros(), LAST_TIME.timestamp_micros());
        Ok(StoredTime(DateTime::from_timestamp_micros(micros).ok_or("no time")?))
    }

    accepts!(TIMESTAMPTZ);
}

/// A job as it is stored in the database.
///
/// The payload is kept as the stored text, and decoded only on request.
#[derive(Clone, Debug, Deserialize)]
pub struct Job {
    pub(crate) id: i64,
    #[serde(deserialize_with = "null_as_empty")]
    pub(crate) task_identifier: Arc<str>,
    pub(crate) task_id: i32,
    pub(crate) job_queue_id: Option<i32>,
    pub(crate) queue_name: Option<String>,
    #[serde(deserialize_with = "as_text")]
    pub(crate) payload: Box<str>,
    pub(crate) priority: i16,
    pub(crate) run_at: DateTime<Utc>,
    pub(crate) attempts: i16,
    pub(crate) max_attempts: i16,
    pub(crate) last_error: Option<String>,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) updated_at: DateTime<Utc>,
    pub(crate) key: Option<String>,
    pub(crate) locked_at: Option<DateTime<Utc>>,
    pub(crate) locked_by: Option<String>,
    pub(crate) revision: i32,
    #[serde(deserialize_with = "object_or_none")]
    pub(crate) flags: Option<Flags>,
    /// Known while a worker holds a claim on the job.
    #[serde(skip)]
    pub(crate) place: Place,
}

/// Where a row lies in its table: the system column `ctid`. Valid for as long as the transaction that locked the row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place([u8; 6]);

impl<'a> FromSql<'a> for Place {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Place, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Place(raw.try_into()?))
    }

    accepts!(TID);
}

impl ToSql for Place {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    accepts!(TID);
    to_sql_checked!();
}

impl Job {
    /// The id that PostgreSQL assigned.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// The kind of work.
    pub fn task_identifier(&self) -> &str {
        &self.task_identifier
    }

    /// The id of its task in this schema. Use the identifier to recognize a task: the id changes if the schema is
    /// created anew, or if a clean-up deletes the task and it is added again.
    pub fn task_id(&self) -> i32 {
        self.task_id
    }

    /// The queue that the job is in, if any. Jobs of one queue run one after the other.
    pub fn queue_name(&self) -> Option<&str> {
        self.queue_name.as_deref()
    }

    /// The id of that queue. Known only while the job is claimed.
    pub fn job_queue_id(&self) -> Option<i32> {
        self.job_queue_id
    }

    /// The payload as JSON text, exactly as it is stored.
    pub fn payload_json(&self) -> &str {
        &self.payload
    }

    /// The payload, decoded.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T> {
        crate::payload::decode(&self.payload).map_err(|error| {
            let (type_name, why) = (std::any::type_name::<T>(), crate::error::without_values(&error));
            Error::payload(format!("the payload of job {} is not a {type_name}: {why}", self.id))
        })
    }

    /// Jobs with lower numbers run first.
    pub fn priority(&self) -> i16 {
        self.priority
    }

    /// The job does not run before this time.
    pub fn run_at(&self) -> DateTime<Utc> {
        self.run_at
    }

    /// How many attempts were started, including the one that is running.
    pub fn attempts(&self) -> i16 {
        self.attempts
    }

    /// How many attempts may be started.
    pub fn max_attempts(&self) -> i16 {
        self.max_attempts
    }

    /// Why the last attempt failed.
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// When it was first added.
    pub fn created_at(&self) -> DateTime<Utc> {
        self.created_at
    }

    /// When the job was last added, rescheduled or failed by hand. Running does not change it.
    pub fn updated_at(&self) -> DateTime<Utc> {
        self.updated_at
    }

    /// The job key.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// When the worker that has the job claimed it. None if no worker has it.
    pub fn locked_at(&self) -> Option<DateTime<Utc>> {
        self.locked_at
    }

    /// The worker that has the job, if any.
    pub fn locked_by(&self) -> Option<&str> {
        self.locked_by.as_deref()
    }

    /// How often the job was changed through its key.
    pub fn revision(&self) -> i32 {
        self.revision
    }

    /// Its flags, in alphabetical order.
    pub fn flags(&self) -> Vec<&str> {
        self.flags.iter().flatten().map(|(flag, _)| flag.as_str()).collect()
    }

    /// Whether no attempt is left and the job is not running.
    pub fn is_permanently_failed(&self) -> bool {
        self.locked_at.is_none() && self.attempts >= self.max_attempts
    }

    /// Whether the claim left the payload out because it is large. JSON text is never empty.
    pub(crate) fn lacks_payload(&self) -> bool {
        self.payload.is_empty()
    }

    /// The key by which jobs are ordered: the lowest runs first.
    pub(crate) fn order(&self) -> Order {
        (self.priority, self.run_at, self.id)
    }
}

#[cfg(test)]
impl Job {
    /// A job for tests in which only the order and the task matter.
    pub(crate) fn for_tests((priority, run_at, id): Order, task_identifier: &str) -> Job {
        let job = Job::builder(task_identifier).id(id).priority(priority).run_at(run_at).build();
        Job { created_at: run_at, updated_at: run_at, ..job }
    }
}

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

/// Decides which of two jobs starts first: priority, then run_at, then id.
pub(crate) type Order = (i16, DateTime<Utc>, i64);

/// A JSON object whose member names are the flags.
pub(crate) type Flags = serde_json::Map<String, serde_json::Value>;

/// The SQL functions write nothing but objects. Any other value that somebody stored there must not prevent the job
/// from being read.
fn object_or_none<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Flags>, D::Error> {
    let json = Option::<Box<RawValue>>::deserialize(deserializer)?;
    Ok(json.and_then(|json| serde_json::from_str(json.get()).ok()))
}

/// Some statements do not know the task identifier and return null; their caller fills it in.
fn null_as_empty<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.unwrap_or_default().into())
}

fn as_text<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Box<str>, D::Error> {
    Ok(Box::<RawValue>::deserialize(deserializer)?.into())
}

/// When, where and how often a job runs. The database fills in the fields that are `None`, unless the task has
/// [defaults of its own](crate::TaskHandler::default_spec).
///
/// Write a literal with `..JobSpec::default()`, or use [`JobSpec::builder`]: later versions may add fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobSpec {
    /// The queue: its jobs run one after the other. Default: none.
    pub queue_name: Option<String>,
    /// The job does not run before this time, which must be in the years 1 to 9999. Default: now.
    pub run_at: Option<DateTime<Utc>>,
    /// The job does not run before this time has passed since the start of the transaction that adds it, by the
    /// database's clock; with `use_local_time`, since the call, by this machine's. Must not be set together with
    /// `run_at`, and must end before the year 10000. Default: none.
    pub run_in: Option<Duration>,
    /// How many attempts may be started, at least 1. Default: 25.
    pub max_attempts: Option<i16>,
    /// Identifies the job, so that it can be changed or removed later; 1 to 512 characters. Default: none.
    pub job_key: Option<String>,
    /// What happens if a job with this key already exists. Default: [`JobKeyMode::Replace`].
    pub job_key_mode: Option<JobKeyMode>,
    /// Lower numbers run first. Default: 0.
    pub priority: Option<i16>,
    /// Labels by which workers may exclude jobs. Default: none.
    pub flags: Option<Vec<String>>,
}

impl JobSpec {
    /// A spec that leaves all values to the task's defaults and to the database.
    pub fn new() -> JobSpec {
        JobSpec::default()
    }

    /// Starts a spec.
    pub fn builder() -> JobSpecBuilder {
        JobSpecBuilder::default()
    }

    /// Takes the values that are `None` here from `defaults`. `run_at` and `run_in` count as one value.
    ///
    /// ```
    /// use atta::JobSpec;
    ///
    /// let defaults = JobSpec::builder().queue_name("mail").priority(5).build();
    /// let spec = JobSpec::builder().priority(1).build().or(defaults);
    /// assert_eq!((spec.queue_name.as_deref(), spec.priority), (Some("mail"), Some(1)));
    /// ```
    #[must_use]
    pub fn or(self, defaults: JobSpec) -> JobSpec {
        let (run_at, run_in) = match (self.run_at, self.run_in) {
            (None, None) => (defaults.run_at, defaults.run_in),
            times => times,
        };
        JobSpec {
            queue_name: self.queue_name.or(defaults.queue_name),
            run_at,
            run_in,
            max_attempts: self.max_attempts.or(defaults.max_attempts),
            job_key: self.job_key.or(defaults.job_key),
            job_key_mode: self.job_key_mode.or(defaults.job_key_mode),
            priority: self.priority.or(defaults.priority),
            flags: self.flags.or(defaults.flags),
        }
    }

    /// When the job is due, if the spec decides that. `now` is the time from which `run_in` counts.
    pub(crate) fn due_at(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        self.run_at.or_else(|| self.run_in.map(|delay| after(now, delay)))
    }
}

/// No spec is the default spec.
impl From<Option<JobSpec>> for JobSpec {
    fn from(spec: Option<JobSpec>) -> JobSpec {
        spec.unwrap_or_default()
    }
}

/// The time after this delay, but no later than [`LAST_TIME`].
pub(crate) fn after(now: DateTime<Utc>, delay: Duration) -> DateTime<Utc> {
    let delay = TimeDelta::from_std(delay).unwrap_or(TimeDelta::MAX);
    now.checked_add_signed(delay).unwrap_or(LAST_TIME).min(LAST_TIME)
}

/// What happens when a job is added and a job with the same key already exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum JobKeyMode {
    /// The existing job gets all the new values. Adding it again and again with a later time debounces it.
    #[default]
    Replace,
    /// The existing job gets the new values but keeps its time, unless it has failed before. This throttles.
    PreserveRunAt,
    /// The existing job stays as it is, even if it is running or permanently failed, so the new one may never run.
    UnsafeDedupe,
}

impl JobKeyMode {
    /// The name that the SQL functions use.
    pub fn as_str(self) -> &'static str {
        match self {
            JobKeyMode::Replace => "replace",
            JobKeyMode::PreserveRunAt => "preserve_run_at",
            JobKeyMode::UnsafeDedupe => "unsafe_dedupe",
        }
    }
}

/// Builds a [`JobSpec`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct JobSpecBuilder {
    spec: JobSpec,
}

impl JobSpecBuilder {
    /// A spec that leaves all values to the database.
    pub fn new() -> JobSpecBuilder {
        JobSpecBuilder::default()
    }

    /// See [`JobSpec::queue_name`].
    pub fn queue_name(mut self, queue_name: impl Into<String>) -> JobSpecBuilder {
        self.spec.queue_name = Some(queue_name.into());
        self
    }

    /// See [`JobSpec::run_at`].
    pub fn run_at(mut self, run_at: DateTime<Utc>) -> JobSpecBuilder {
        self.spec.run_at = Some(run_at);
        self
    }

    /// See [`JobSpec::run_in`].
    pub fn run_in(mut self, delay: Duration) -> JobSpecBuilder {
        self.spec.run_in = Some(delay);
        self
    }

    /// See [`JobSpec::max_attempts`].
    pub fn max_attempts(mut self, max_attempts: i16) -> JobSpecBuilder {
        self.spec.max_attempts = Some(max_attempts);
        self
    }

    /// See [`JobSpec::job_key`].
    pub fn job_key(mut self, job_key: impl Into<String>) -> JobSpecBuilder {
        self.spec.job_key = Some(job_key.into());
        self
    }

    /// See [`JobSpec::job_key_mode`].
    pub fn job_key_mode(mut self, job_key_mode: JobKeyMode) -> JobSpecBuilder {
        self.spec.job_key_mode = Some(job_key_mode);
        self
    }

    /// See [`JobSpec::priority`].
    pub fn priority(mut self, priority: i16) -> JobSpecBuilder {
        self.spec.priority = Some(priority);
        self
    }

    /// See [`JobSpec::flags`].
    pub fn flags(mut self, flags: Vec<String>) -> JobSpecBuilder {
        self.spec.flags = Some(flags);
        self
    }

    /// Returns the spec.
    pub fn build(self) -> JobSpec {
        self.spec
    }
}

impl From<JobSpecBuilder> for JobSpec {
    fn from(builder: JobSpecBuilder) -> JobSpec {
        builder.spec
    }
}

/// The values that `reschedule_jobs` changes. Fields that are `None` stay as they are.
///
/// Write a literal with `..RescheduleJobOptions::default()`: later versions may add fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RescheduleJobOptions {
    /// The new time, in the years 1 to 9999.
    pub run_at: Option<DateTime<Utc>>,
    /// The new priority.
    pub priority: Option<i16>,
    /// The new number of attempts made.
    pub attempts: Option<i16>,
    /// The new number of attempts allowed, at least 1.
    pub max_attempts: Option<i16>,
}
