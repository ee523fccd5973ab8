//! Changing existing jobs.

use serde::Serialize;
use serde_json::json;

use super::add::in_micros;
use super::check::{check_rescheduling, check_text};
use super::{WorkerUtils, queries};
use crate::db::pool;
use crate::{Error, Job, RescheduleJobOptions, Result};

/// The parts of [`WorkerUtils::cleanup`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CleanupTask {
    /// Deletes the jobs that have no attempts left.
    DeletePermafailedJobs,
    /// Deletes the tasks that have no jobs.
    GcTaskIdentifiers,
    /// Deletes the queues that have no jobs.
    GcJobQueues,
}

impl CleanupTask {
    /// The name that Graphile Worker's command line uses.
    pub fn as_str(self) -> &'static str {
        match self {
            CleanupTask::DeletePermafailedJobs => "DELETE_PERMAFAILED_JOBS",
            CleanupTask::GcTaskIdentifiers => "GC_TASK_IDENTIFIERS",
            CleanupTask::GcJobQueues => "GC_JOB_QUEUES",
        }
    }
}

/// How many rows [`WorkerUtils::cleanup`] deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CleanupCounts {
    /// Jobs that had no attempts left.
    pub jobs: u64,
    /// Tasks that had no jobs.
    pub tasks: u64,
    /// Queues that had no jobs.
    pub queues: u64,
}

impl WorkerUtils {
    /// Removes the job with this key and returns it. A running job is not removed: it loses its key, and is not retried
    /// if it fails.
    ///
    /// Cancel safe: it is done as a whole or not at all.
    pub async fn remove_job(&self, job_key: &str) -> Result<Option<Job>> {
        let sql = include_str!("../../sql/queries/remove_job.sql");
        Ok(self.ask_jobs("removing a job", sql, &json!({ "job_key": job_key })).await?.pop())
    }

    /// Deletes jobs as if they had succeeded, and returns them. Running jobs are skipped.
    ///
    /// Cancel safe: it is done as a whole or not at all.
    pub async fn complete_jobs(&self, job_ids: &[i64]) -> Result<Vec<Job>> {
        let sql = include_str!("../../sql/queries/complete_jobs.sql");
        self.ask_jobs("completing jobs", sql, &json!({ "job_ids": job_ids })).await
    }

    /// Fails jobs permanently by using up their attempts, and returns them. Running jobs are skipped. If the encoding of
    /// the database lacks a character of the reason, question marks replace all its characters beyond ASCII.
    ///
    /// Cancel safe: it is done as a whole or not at all.
    pub async fn permanently_fail_jobs(&self, job_ids: &[i64], reason: &str) -> Result<Vec<Job>> {
        let sql = include_str!("../../sql/queries/permanently_fail_jobs.sql");
        let reason = crate::error::without_nul(reason);
        let fail = async |reason: &str| {
            self.ask_jobs("failing jobs", sql, &json!({ "job_ids": job_ids, "reason": reason })).await
        };
        match fail(&reason).await {
            // The encoding of the database lacks a character of the reason.
            Err(error) if error.db_code() == Some("22P05") => {
                fail(&reason.replace(|c: char| !c.is_ascii(), "?")).await
            }
            failed => failed,
        }
    }

    /// Changes when and how often jobs run, and returns them. Running jobs are skipped.
    ///
    /// Cancel safe: it is done as a whole or not at all.
    pub async fn reschedule_jobs(&self, job_ids: &[i64], options: RescheduleJobOptions) -> Result<Vec<Job>> {
        check_rescheduling(&options)?;
        let sql = include_str!("../../sql/queries/reschedule_jobs.sql");
        let argument = json!({
            "job_ids": job_ids,
            "run_at": options.run_at.map(in_micros),
            "priority": options.priority,
            "attempts": options.attempts,
            "max_attempts": options.max_attempts,
        });
        self.ask_jobs("rescheduling jobs", sql, &argument).await
    }

    /// Makes jobs due at once, with all their attempts, and returns them. Running jobs are skipped.
    ///
    /// Cancel safe: it is done as a whole or not at all.
    pub async fn retry_jobs(&self, job_ids: &[i64]) -> Result<Vec<Job>> {
        let sql = include_str!("../../sql/queries/retry_jobs.sql");
        self.ask_jobs("retrying jobs", sql, &json!({ "job_ids": job_ids })).await
    }

    /// Unlocks jobs that workers have claimed, frees the queues locked for them, and returns these jobs. Only for
    /// workers that are known to be gone, as with [`WorkerUtils::force_unlock_workers`]. The attempt that was started
    /// still counts.
    ///
    /// Cancel safe: it is done as a whole or not at all.
    pub async fn unlock_jobs(&self, job_ids: &[i64]) -> Result<Vec<Job>> {
        let sql = include_str!("../../sql/queries/unlock_jobs.sql");
        self.ask_jobs("unlocking jobs", sql, &json!({ "job_ids": job_ids })).await
    }

    /// Frees the jobs and queues that these workers have locked. Only for workers that are known to be gone: the jobs
    /// of a living worker would run a second time, on other workers, while it still runs them.
    ///
    /// Cancel safe: it is done as a whole or not at all.
    pub async fn force_unlock_workers(&self, worker_ids: &[&str]) -> Result<()> {
        let sql = include_str!("../../sql/queries/force_unlock_workers.sql");
        self.ask("unlocking workers", sql, &json!({ "worker_ids": worker_ids })).await?;
        Ok(())
    }

    /// Deletes rows that are no longer needed, in the order of [`CleanupTask`], and returns how many. Tasks in `keep`
    /// are kept even if they have no jobs.
    ///
    /// Safe while workers run and jobs are added: each part locks its table exclusively for a moment. If it does not
    /// get the lock within two seconds, it returns a transient error. That part has then changed nothing; the parts
    /// before it are done.
    ///
    /// Cancel safe: each task is done as a whole or not at all.
    pub async fn cleanup(&self, tasks: &[CleanupTask], keep: &[&str]) -> Result<CleanupCounts> {
        keep.iter().try_for_each(|identifier| check_text("cleaning up", "keep", identifier))?;
        let mut tasks = tasks.to_vec();
        tasks.sort_unstable();
        tasks.dedup();
        let mut counts = CleanupCounts::default();
        for task in tasks {
            let deleted = self.clean_up_one(task, keep).await?;
            match task {
                CleanupTask::DeletePermafailedJobs => counts.jobs = deleted,
                CleanupTask::GcTaskIdentifiers => counts.tasks = deleted,
                CleanupTask::GcJobQueues => counts.queues = deleted,
            }
        }
        Ok(counts)
    }

    async fn clean_up_one(&self, task: CleanupTask, keep: &[&str]) -> Result<u64> {
        let doing = format!("cleaning up ({})", task.as_str());
        let failed = |error| explain_lock(self.explain(Error::database(&doing, error)));
        let mut client = pool::get(self.pool(), &doing).await?;
        let transaction = client.transaction().await.map_err(failed)?;
        let schema = self.schema();
        let deleted = match task {
            CleanupTask::DeletePermafailedJobs => {
                queries::delete_permafailed_jobs(&transaction, schema).await
            }
            CleanupTask::GcTaskIdentifiers => {
                queries::lock_tasks(&transaction, schema).await.map_err(failed)?;
                queries::delete_unused_tasks(&transaction, schema, keep).await
            }
            CleanupTask::GcJobQueues => {
                queries::lock_job_queues(&transaction, schema).await.map_err(failed)?;
                queries::delete_unused_job_queues(&transaction, schema).await
            }
        };
        let deleted = deleted.map_err(failed)?;
        transaction.commit().await.map_err(failed)?;
        Ok(deleted)
    }
}

/// Adds a hint if the table was not locked in time.
fn explain_lock(error: Error) -> Error {
    match error.db_code() {
        Some("55P03") => error.with_hint(
            "an open transaction uses the table, for example one that adds jobs; this part changed nothing, and can be \
             repeated when that transaction has ended",
        ),
        _ => error,
    }
}
