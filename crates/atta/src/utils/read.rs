//! Looking at jobs.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::WorkerUtils;
use crate::{Error, Job, Result};

/// Where a job stands. No column says so: it follows from the others, and from the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum JobState {
    /// Due: the next free worker takes it.
    Ready,
    /// Due, but another job of its queue is running.
    Waiting,
    /// Not due yet.
    Scheduled,
    /// Failed, and not yet due again.
    Retrying,
    /// A worker has it.
    Running,
    /// No attempt is left.
    Failed,
}

/// Which jobs to list. The default is all of them, 100 at a time.
#[derive(Clone, Debug, Serialize)]
pub struct JobFilter {
    /// Only these.
    pub ids: Option<Vec<i64>>,
    /// Only in one of these states.
    pub states: Option<Vec<JobState>>,
    /// Only of this task.
    pub task_identifier: Option<String>,
    /// Only of this queue.
    pub queue_name: Option<String>,
    /// Only the one with this key.
    pub key: Option<String>,
    /// Only with this in their last error.
    pub error_contains: Option<String>,
    /// Only those added before.
    pub created_before: Option<DateTime<Utc>>,
    /// Only those with a higher id: the last one of the page before.
    pub after_id: Option<i64>,
    /// At most so many. Default: 100.
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
            after_id: None,
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

impl WorkerUtils {
    /// The job with this id, unless it is done.
    pub async fn get_job(&self, id: i64) -> Result<Option<Job>> {
        let filter = JobFilter { ids: Some(vec![id]), ..JobFilter::default() };
        Ok(self.list_jobs(&filter).await?.pop())
    }

    /// A page of jobs in the order of their ids. For the next page, set `after_id` to the last id of this one.
    pub async fn list_jobs(&self, filter: &JobFilter) -> Result<Vec<Job>> {
        let sql = include_str!("../../sql/queries/list_jobs.sql");
        let filter = serde_json::to_value(filter)
            .map_err(|error| Error::config(format!("listing jobs: the filter is no JSON: {error}")))?;
        self.ask_jobs("listing jobs", sql, &filter).await
    }

    /// How many jobs are in each state. Reads the whole table.
    pub async fn count_jobs(&self) -> Result<JobCounts> {
        let sql = include_str!("../../sql/queries/count_jobs.sql");
        let rows = self.ask("counting jobs", sql, &json!({})).await?;
        let counts = rows.first().map(String::as_str).unwrap_or("null");
        serde_json::from_str(counts).map_err(|error| {
            Error::config(format!("counting jobs: the database gave back no counts: {error}"))
        })
    }
}
