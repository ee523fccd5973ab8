//! Reading queues, tasks, workers, crontab items, and counts of jobs.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::WorkerUtils;
use super::read::JobCounts;
use crate::Result;

/// A queue, the worker that has locked it, and its jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QueueSummary {
    /// Its name.
    pub queue_name: String,
    /// Since when a worker has locked it. It is locked while one of its jobs runs.
    pub locked_at: Option<DateTime<Utc>>,
    /// The worker that has locked it.
    pub locked_by: Option<String>,
    /// The `run_at` of its oldest job that is due.
    pub oldest_due_at: Option<DateTime<Utc>>,
    /// Its jobs.
    #[serde(flatten)]
    pub jobs: JobCounts,
}

/// A task, how many workers know it, and its jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TaskSummary {
    /// Its identifier.
    pub task_identifier: String,
    /// How many atta workers know it. Node's workers do not record which tasks they know.
    pub workers: u64,
    /// The `run_at` of its oldest job that is due.
    pub oldest_due_at: Option<DateTime<Utc>>,
    /// Its jobs.
    #[serde(flatten)]
    pub jobs: JobCounts,
}

/// A worker of atta, or a worker of another tool, which is known only by its locks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WorkerSummary {
    /// The id under which it locks jobs.
    pub id: String,
    /// The name of its machine; none if it is not an atta worker.
    pub host: Option<String>,
    /// Its process id.
    pub pid: Option<i32>,
    /// Its version of atta.
    pub version: Option<String>,
    /// How many jobs it can run at a time.
    pub slots: Option<i32>,
    /// The tasks that it can run.
    pub task_identifiers: Option<Vec<String>>,
    /// When it was started.
    pub started_at: Option<DateTime<Utc>>,
    /// When it sent its last heartbeat.
    pub heartbeat_at: Option<DateTime<Utc>>,
    /// How long ago that was by the database's clock, in seconds.
    pub silent_seconds: Option<f64>,
    /// After how many seconds without a heartbeat other workers declare it dead.
    pub recovery_threshold_seconds: Option<f64>,
    /// When it was declared dead. Its row stays until all of its locks are recovered.
    pub declared_dead_at: Option<DateTime<Utc>>,
    /// How many jobs it has by a durable claim. Jobs of held claims are not visible to others.
    pub jobs: u64,
    /// How many queues it has locked.
    pub queues: u64,
    /// The time of the oldest of these locks.
    pub oldest_lock_at: Option<DateTime<Utc>>,
}

/// The status of a worker, as far as the database shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WorkerStatus {
    /// Its last heartbeat is recent.
    Alive,
    /// It sent no heartbeat for its recovery threshold: other workers declare it dead and recover its jobs and queues.
    Stale,
    /// It is a worker of another tool and holds a lock. Whether it is alive is unknown.
    Foreign,
}

impl WorkerSummary {
    /// The status of this worker.
    pub fn status(&self) -> WorkerStatus {
        match (self.silent_seconds, self.recovery_threshold_seconds) {
            (Some(seconds), Some(threshold)) if seconds < threshold && self.declared_dead_at.is_none() => {
                WorkerStatus::Alive
            }
            (Some(_), _) => WorkerStatus::Stale,
            (None, _) => WorkerStatus::Foreign,
        }
    }
}

/// Counts of jobs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// All jobs.
    pub jobs: JobCounts,
    /// The `run_at` of the oldest job that is due.
    pub oldest_due_at: Option<DateTime<Utc>>,
    /// The jobs of each task, the task with the most jobs first.
    pub tasks: Vec<(String, JobCounts)>,
    /// The jobs of each queue, the queue with the most jobs first. Jobs without a queue are counted under `None`.
    pub queues: Vec<(Option<String>, JobCounts)>,
}

/// How many jobs were ever added and deleted, by the server's statistics, which may lag by a second. The difference
/// between two readings gives a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct JobCounters {
    /// When the counters were read.
    pub at: DateTime<Utc>,
    /// Jobs added.
    pub added: u64,
    /// Jobs deleted; most of them were completed.
    pub deleted: u64,
}

/// A crontab item that a worker, ours or Node's, has registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct KnownCrontab {
    /// Its identifier.
    pub identifier: String,
    /// When it was first registered.
    pub known_since: DateTime<Utc>,
    /// The last minute for which a job of it was added.
    pub last_execution: Option<DateTime<Utc>>,
}

/// A row of the statement read_stats.
#[derive(Deserialize)]
struct StatsRow {
    /// Which names are set: 3 none, 1 the task's, 2 the queue's.
    level: i32,
    task_identifier: Option<String>,
    queue_name: Option<String>,
    oldest_due_at: Option<DateTime<Utc>>,
    #[serde(flatten)]
    jobs: JobCounts,
}

impl WorkerUtils {
    /// At most `limit` queues in the order of their names, starting after `after_name`. Reads all jobs once.
    ///
    /// Cancel safe: it only reads.
    pub async fn list_queues(&self, after_name: Option<&str>, limit: u32) -> Result<Vec<QueueSummary>> {
        let sql = include_str!("../../sql/queries/list_queues.sql");
        self.ask_as("listing queues", sql, &json!({ "after_name": after_name, "limit": limit })).await
    }

    /// At most `limit` tasks in the order of their identifiers, starting after `after_identifier`. Includes the tasks
    /// of which jobs were added, and those that an atta worker knows. Reads all jobs once.
    ///
    /// Cancel safe: it only reads.
    pub async fn list_tasks(&self, after_identifier: Option<&str>, limit: u32) -> Result<Vec<TaskSummary>> {
        let sql = include_str!("../../sql/queries/list_tasks.sql");
        let argument = json!({ "after_identifier": after_identifier, "limit": limit });
        self.ask_as("listing tasks", sql, &argument).await
    }

    /// The atta workers, and after them all others that hold a lock. Reads all jobs once.
    ///
    /// Cancel safe: it only reads.
    pub async fn list_workers(&self) -> Result<Vec<WorkerSummary>> {
        let sql = include_str!("../../sql/queries/list_workers.sql");
        self.ask_as("listing workers", sql, &json!({})).await
    }

    /// The crontab items that workers have registered.
    ///
    /// Cancel safe: it only reads.
    pub async fn list_known_crontabs(&self) -> Result<Vec<KnownCrontab>> {
        let sql = include_str!("../../sql/queries/list_known_crontabs.sql");
        self.ask_as("listing cron items", sql, &json!({})).await
    }

    /// Counts of all jobs, and of the jobs of the `top` tasks and queues that have the most. Reads all jobs once.
    ///
    /// Cancel safe: it only reads.
    pub async fn read_stats(&self, top: u32) -> Result<Stats> {
        let sql = include_str!("../../sql/queries/read_stats.sql");
        let rows: Vec<StatsRow> = self.ask_as("reading statistics", sql, &json!({ "top": top })).await?;
        let mut stats = Stats::default();
        for row in rows {
            match (row.level, row.task_identifier) {
                (3, _) => (stats.jobs, stats.oldest_due_at) = (row.jobs, row.oldest_due_at),
                (1, Some(task)) => stats.tasks.push((task, row.jobs)),
                _ => stats.queues.push((row.queue_name, row.jobs)),
            }
        }
        Ok(stats)
    }

    /// How many jobs were ever added and deleted; none if the server does not collect these statistics.
    ///
    /// Cancel safe: it only reads.
    pub async fn read_job_counters(&self) -> Result<Option<JobCounters>> {
        let sql = include_str!("../../sql/queries/read_job_counters.sql");
        Ok(self.ask_as("reading statistics", sql, &json!({})).await?.pop())
    }

    /// Returns those of these tasks of which no job was ever added and that no atta worker knows. They may be misspelt.
    ///
    /// Cancel safe: it only reads.
    pub async fn unknown_tasks(&self, identifiers: &[&str]) -> Result<Vec<String>> {
        let sql = include_str!("../../sql/queries/unknown_tasks.sql");
        self.ask("checking task identifiers", sql, &json!({ "identifiers": identifiers })).await
    }
}
