//! The options with which a job is added or changed.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use super::LAST_TIME;

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
    /// The existing job gets all the new values. Repeated adds with a later time debounce it.
    #[default]
    Replace,
    /// The existing job gets the new values but keeps its time, unless it has failed before. Repeated adds are
    /// throttled.
    PreserveRunAt,
    /// The existing job stays unchanged, even if it is running or permanently failed, so the new job may never run.
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
