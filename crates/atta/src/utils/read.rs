//! Reading jobs.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{WorkerUtils, queries};
use crate::job::{FIRST_TIME, LAST_TIME};
use crate::{Error, Job, Result};

/// The state of a job. No column stores it: it follows from the other columns and the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum JobState {
    /// Due: the next worker with a free slot claims it.
    Ready,
    /// Due, but another job of its queue is running.
    Waiting,
    /// Not due yet.
    Scheduled,
    /// Failed, and not yet due again.
    Retrying,
    /// A worker has claimed it.
    Running,
    /// No attempts are left.
    Failed,
}

impl JobState {
    /// The name that the SQL statements return.
    pub fn as_str(self) -> &'static str {
        match self {
            JobState::Ready => "ready",
            JobState::Waiting => "waiting",
            JobState::Scheduled => "scheduled",
            JobState::Retrying => "retrying",
            JobState::Running => "running",
            JobState::Failed => "failed",
        }
    }
}

/// Which jobs to list. The default lists all of them, 100 at a time.
#[derive(Clone, Debug, Serialize)]
pub struct JobFilter {
    /// Only jobs with these ids.
    pub ids: Option<Vec<i64>>,
    /// Only jobs in one of these states.
    pub states: Option<Vec<JobState>>,
    /// Only jobs of this task.
    pub task_identifier: Option<String>,
    /// Only jobs of this queue.
    pub queue_name: Option<String>,
    /// Only the job with this key.
    pub key: Option<String>,
    /// Only jobs whose last error contains this text.
    pub error_contains: Option<String>,
    /// Only jobs that were added before this time.
    pub created_before: Option<DateTime<Utc>>,
    /// Only jobs whose last attempt failed at this time or later, and that were not reset by
    /// [`WorkerUtils::retry_jobs`] since. The time of the failure is read from `updated_at`, which workers of atta set
    /// when a job fails. Other changes of the job set it as well, and workers of graphile-worker do not set it when a
    /// job fails.
    pub failed_since: Option<DateTime<Utc>>,
    /// Only jobs that a worker claimed before this time, and still has.
    pub locked_before: Option<DateTime<Utc>>,
    /// Only jobs that this worker has claimed.
    pub locked_by: Option<String>,
    /// Only jobs that follow the one with this id in the order of the list. For paging: the last id of the page before.
    pub after_id: Option<i64>,
    /// Lists the job with the highest id first. Default: the job with the lowest id.
    pub newest_first: bool,
    /// At most this many jobs. Default: 100.
    pub limit: u32,
}

impl Default for JobFilter {
    fn default() -> JobFilter {
        JobFilter {
            ids: None,
            states: None,
            task_identifier: None,
            queue_name: None,
            key: None,
            error_contains: None,
            created_before: None,
            failed_since: None,
            locked_before: None,
            locked_by: None,
            after_id: None,
            newest_first: false,
            limit: 100,
        }
    }
}

/// How many jobs are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct JobCounts {
    /// See [`JobState::Ready`].
    pub ready: u64,
    /// See [`JobState::Waiting`].
    pub waiting: u64,
    /// See [`JobState::Scheduled`].
    pub scheduled: u64,
    /// See [`JobState::Retrying`].
    pub retrying: u64,
    /// See [`JobState::Running`].
    pub running: u64,
    /// See [`JobState::Failed`].
    pub failed: u64,
}

impl JobCounts {
    /// All jobs.
    pub fn total(&self) -> u64 {
        self.ready + self.waiting + self.scheduled + self.retrying + self.running + self.failed
    }
}

impl JobFilter {
    /// Whether only locked jobs can match. Few jobs are locked, and they have an index of their own.
    fn is_about_locks(&self) -> bool {
        let is_running = self.states.as_deref() == Some(&[JobState::Running]);
        is_running || self.locked_by.is_some() || self.locked_before.is_some()
    }
}

impl WorkerUtils {
    /// The job with this id. None if there is none, for example because it is complete.
    ///
    /// Cancel safe: it only reads.
    pub async fn get_job(&self, id: i64) -> Result<Option<Job>> {
        let filter = JobFilter { ids: Some(vec![id]), ..JobFilter::default() };
        Ok(self.list_jobs(&filter).await?.pop())
    }

    /// A page of jobs in the order of their ids, or in reverse order. For the next page, set `after_id` to the last id of
    /// this one.
    ///
    /// Filters by key, by ids and by locks (`locked_by`, `locked_before`, the state running) use an index. Every other
    /// filter reads jobs in the order of their ids until the page is full: in the worst case, the whole table.
    ///
    /// Cancel safe: it only reads.
    pub async fn list_jobs(&self, filter: &JobFilter) -> Result<Vec<Job>> {
        let listed = self.list_jobs_with_states(filter).await?;
        Ok(listed.into_iter().map(|(job, _)| job).collect())
    }

    /// [`WorkerUtils::list_jobs`], with the state of each job.
    ///
    /// Cancel safe: it only reads.
    pub async fn list_jobs_with_states(&self, filter: &JobFilter) -> Result<Vec<(Job, JobState)>> {
        let argument = encode("listing jobs", filter)?;
        let listed = match filter {
            JobFilter { key: Some(_), .. } => queries::list_jobs_by_key(self, &argument).await,
            JobFilter { ids: Some(_), .. } => queries::list_jobs_by_ids(self, &argument).await,
            filter if filter.is_about_locks() => queries::list_locked_jobs(self, &argument).await,
            JobFilter { newest_first: true, .. } => queries::list_jobs_newest(self, &argument).await,
            _ => queries::list_jobs(self, &argument).await,
        };
        or_none(listed)
    }

    /// Only the ids of the jobs that [`WorkerUtils::list_jobs`] would return, for actions on very many jobs.
    ///
    /// Cancel safe: it only reads.
    pub async fn list_job_ids(&self, filter: &JobFilter) -> Result<Vec<i64>> {
        if filter.key.is_some() || filter.ids.is_some() || filter.is_about_locks() {
            return Ok(self.list_jobs(filter).await?.iter().map(Job::id).collect());
        }
        let argument = encode("listing jobs", filter)?;
        or_none(match filter.newest_first {
            false => queries::list_job_ids(self, &argument).await,
            true => queries::list_job_ids_newest(self, &argument).await,
        })
    }

    /// The number of jobs that match the filter, whatever its limit is. Reads the whole table.
    ///
    /// Cancel safe: it only reads.
    pub async fn count_matching_jobs(&self, filter: &JobFilter) -> Result<u64> {
        let doing = "counting jobs";
        let sql = include_str!("../../sql/queries/count_matching_jobs.sql");
        Ok(or_none(self.ask_as(doing, sql, &encode(doing, filter)?).await)?.pop().unwrap_or_default())
    }

    /// How many jobs are in each state. Reads the whole table.
    ///
    /// Cancel safe: it only reads.
    pub async fn count_jobs(&self) -> Result<JobCounts> {
        let sql = include_str!("../../sql/queries/count_jobs.sql");
        Ok(self.ask_as("counting jobs", sql, &json!({})).await?.pop().unwrap_or_default())
    }
}

/// If the encoding of the database lacks a character of the filter, no job matches. Stored text that can't be sent is not
/// an error.
fn or_none<T>(listed: Result<Vec<T>>) -> Result<Vec<T>> {
    match listed {
        Err(error) if error.db_code() == Some("22P05") => Ok(Vec::new()),
        listed => listed,
    }
}

fn encode(doing: &str, filter: &JobFilter) -> Result<Value> {
    // No time of a job is outside of this range, so the clamped filter selects the same jobs.
    let clamped = |time: Option<DateTime<Utc>>| time.map(|time| time.clamp(FIRST_TIME, LAST_TIME));
    let filter = JobFilter {
        created_before: clamped(filter.created_before),
        failed_since: clamped(filter.failed_since),
        locked_before: clamped(filter.locked_before),
        ..filter.clone()
    };
    serde_json::to_value(filter).map_err(|error| {
        Error::invalid_input(format!("{doing}: the filter can't be written as JSON: {error}"))
    })
}
