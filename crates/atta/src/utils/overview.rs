//! Looking at what is there besides jobs: queues, tasks, workers, cron items; and at the jobs as numbers.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::WorkerUtils;
use super::read::JobCounts;
use crate::Result;

/// A queue, who has it, and the jobs in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QueueSummary {
    /// Its name.
    pub queue_name: String,
    /// Since when a worker has it: one of its jobs runs.
    pub locked_at: Option<DateTime<Utc>>,
    /// The worker that has it.
    pub locked_by: Option<String>,
    /// The time of its oldest job that is due.
    pub oldest_due_at: Option<DateTime<Utc>>,
    /// Its jobs.
    #[serde(flatten)]
    pub jobs: JobCounts,
}

/// A task, who knows it, and the jobs of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TaskSummary {
    /// Its identifier.
    pub task_identifier: String,
    /// How many of our workers know it. Node's workers tell nobody what they know.
    pub workers: u64,
    /// The time of its oldest job that is due.
    pub oldest_due_at: Option<DateTime<Utc>>,
    /// Its jobs.
    #[serde(flatten)]
    pub jobs: JobCounts,
}

/// A worker of ours, or another tool's that is known only by its locks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WorkerSummary {
    /// By what it locks jobs.
    pub id: String,
    /// Its machine; none if it is not one of ours.
    pub host: Option<String>,
    /// Its process.
    pub pid: Option<i32>,
    /// Its version of atta.
    pub version: Option<String>,
    /// How many jobs it can run at a time.
    pub slots: Option<i32>,
    /// The tasks that it knows.
    pub task_identifiers: Option<Vec<String>>,
    /// When it was started.
    pub started_at: Option<DateTime<Utc>>,
    /// When it was last heard of.
    pub heartbeat_at: Option<DateTime<Utc>>,
    /// How long ago that is by the database's clock, in seconds.
    pub silent_seconds: Option<f64>,
    /// After how many seconds without a heartbeat others declare it dead.
    pub recovery_threshold_seconds: Option<f64>,
    /// When it was declared dead. Its row stays until all that it had locked is recovered.
    pub declared_dead_at: Option<DateTime<Utc>>,
    /// How many jobs it has by a durable claim. Those that it holds for a moment only don't show.
    pub jobs: u64,
    /// How many queues it has.
    pub queues: u64,
    /// The oldest of these locks.
    pub oldest_lock_at: Option<DateTime<Utc>>,
}

/// What can be said of a worker from afar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WorkerStatus {
    /// It sent a heartbeat lately.
    Alive,
    /// It sent no heartbeat for its recovery threshold: other workers declare it dead and recover what it has.
    Silent,
    /// It is not one of ours, and holds a lock; whether it is alive nobody can say.
    Foreign,
}

impl WorkerSummary {
    /// What can be said of it.
    pub fn status(&self) -> WorkerStatus {
        match (self.silent_seconds, self.recovery_threshold_seconds) {
            (Some(seconds), Some(threshold)) if seconds < threshold && self.declared_dead_at.is_none() => {
                WorkerStatus::Alive
            }
            (Some(_), _) => WorkerStatus::Silent,
            (None, _) => WorkerStatus::Foreign,
        }
    }
}

/// The jobs as numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// All jobs.
    pub jobs: JobCounts,
    /// The time of the oldest job that is due.
    pub oldest_due_at: Option<DateTime<Utc>>,
    /// The jobs of each task, the most first.
    pub tasks: Vec<(String, JobCounts)>,
    /// The jobs of each queue, the most first; those without a queue under none.
    pub queues: Vec<(Option<String>, JobCounts)>,
}

/// How many jobs were ever added and deleted, by the server's statistics, which may be a second behind. The difference
/// of two such answers is a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct JobCounters {
    /// When it was asked.
    pub at: DateTime<Utc>,
    /// Jobs added.
    pub added: u64,
    /// Jobs deleted: completed, most of them.
    pub deleted: u64,
}

/// A cron item that a worker has made known, ours or Node's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct KnownCrontab {
    /// Its identifier.
    pub identifier: String,
    /// Since when it is known.
    pub known_since: DateTime<Utc>,
    /// The last minute for which a job of it was added.
    pub last_execution: Option<DateTime<Utc>>,
}

/// A row of the statement read_stats.
#[derive(Deserialize)]
struct StatsRow {
    /// Which names count: 3 none, 1 the task's, 2 the queue's.
    level: i32,
    task_identifier: Option<String>,
    queue_name: Option<String>,
    oldest_due_at: Option<DateTime<Utc>>,
    #[serde(flatten)]
    jobs: JobCounts,
}

impl WorkerUtils {
    /// At most `limit` queues in the order of their names, from the one after `after_name` on. Reads all jobs once.
    pub async fn list_queues(&self, after_name: Option<&str>, limit: u32) -> Result<Vec<QueueSummary>> {
        let sql = include_str!("../../sql/queries/list_queues.sql");
        self.ask_as("listing queues", sql, &json!({ "after_name": after_name, "limit": limit })).await
    }

    /// At most `limit` tasks in the order of their identifiers, from the one after `after_identifier` on: those that
    /// jobs were of, and those that a worker of ours knows. Reads all jobs once.
    pub async fn list_tasks(&self, after_identifier: Option<&str>, limit: u32) -> Result<Vec<TaskSummary>> {
        let sql = include_str!("../../sql/queries/list_tasks.sql");
        let argument = json!({ "after_identifier": after_identifier, "limit": limit });
        self.ask_as("listing tasks", sql, &argument).await
    }

    /// Our workers, and after them all others that hold a lock. Reads all jobs once.
    pub async fn list_workers(&self) -> Result<Vec<WorkerSummary>> {
        let sql = include_str!("../../sql/queries/list_workers.sql");
        self.ask_as("listing workers", sql, &json!({})).await
    }

    /// The cron items that workers have made known.
    pub async fn list_known_crontabs(&self) -> Result<Vec<KnownCrontab>> {
        let sql = include_str!("../../sql/queries/list_known_crontabs.sql");
        self.ask_as("listing cron items", sql, &json!({})).await
    }

    /// The jobs as numbers: of all, and of the `top` tasks and queues with the most. Reads all jobs once.
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

    /// How many jobs were ever added and deleted; none if the server does not count.
    pub async fn read_job_counters(&self) -> Result<Option<JobCounters>> {
        let sql = include_str!("../../sql/queries/read_job_counters.sql");
        Ok(self.ask_as("reading statistics", sql, &json!({})).await?.pop())
    }

    /// Those of these tasks that no job has been of and that no worker of ours knows: misspelt, perhaps.
    pub async fn unknown_tasks(&self, identifiers: &[&str]) -> Result<Vec<String>> {
        let sql = include_str!("../../sql/queries/unknown_tasks.sql");
        self.ask("looking for tasks", sql, &json!({ "identifiers": identifiers })).await
    }
}
