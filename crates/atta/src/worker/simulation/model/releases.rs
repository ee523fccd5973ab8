//! The statements that release.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::super::super::claim::KnownJobs;
use super::super::super::release::{Entry, Fate};
use super::super::super::run::{Failure, Finished, Outcome};
use super::{Cause, Change, Database, Holder, WorkerNumber};
use crate::Retry;

impl Database {
    /// complete_claimed.sql, complete_claimed_queued.sql, fail_claimed.sql and return_claimed.sql. Returns what became of
    /// each job whose claim was not lost, and the jobs that were completed.
    pub(in super::super) fn release(
        &mut self,
        now: Duration,
        worker: WorkerNumber,
        entries: &[Entry],
    ) -> Result<HashMap<i64, Fate>, String> {
        let mut fates = HashMap::new();
        for Entry { finished, locked_at, .. } in entries {
            let id = finished.job.id;
            let row = self.rows.get(&id);
            let is_ours = |locked: Option<(WorkerNumber, DateTime<Utc>)>| {
                locked.is_some_and(|(owner, at)| owner == worker && Some(at) == *locked_at)
            };
            let is_standing = row.is_some_and(|row| is_ours(row.locked));
            if is_standing && row.is_some_and(|row| row.is_used) {
                fates.insert(id, Fate::Blocked);
                continue;
            }
            if let Some(queue) = finished.job.job_queue_id {
                let is_own = |lock: &super::QueueLock| {
                    lock.worker == worker && (is_standing || Some(lock.at) == *locked_at)
                };
                if self.queues.get(&queue).is_some_and(is_own) {
                    self.free_queue(now, queue);
                }
            }
            if is_standing {
                let fate = self.write(now, finished)?;
                self.update(now, id, |row| row.locked = None);
                fates.insert(id, fate);
            }
        }
        Ok(fates)
    }

    /// Writes the outcome of a job whose attempt is counted already.
    fn write(&mut self, now: Duration, finished: &Finished) -> Result<Fate, String> {
        let id = finished.job.id;
        match &finished.outcome {
            Outcome::Completed => self.complete(finished)?,
            Outcome::Failed(failure) => {
                self.fail(now, self.clock(now), id, failure);
                if self.rows.get(&id).is_some_and(|row| row.job.attempts >= row.job.max_attempts) {
                    return Ok(Fate::FailedPermanently);
                }
            }
            Outcome::Interrupted | Outcome::NotStarted => {
                self.update(now, id, |row| {
                    row.job.attempts = (row.job.attempts - 1).max(0);
                    if matches!(finished.outcome, Outcome::Interrupted) {
                        row.ready_since = now;
                    }
                });
            }
        }
        Ok(Fate::Written)
    }

    fn complete(&mut self, finished: &Finished) -> Result<(), String> {
        let row = self.delete(finished.job.id);
        match row.is_some_and(|row| row.job.revision != finished.job.revision && !row.is_touched) {
            true => Err(format!("job {} is completed, and its new work was never done", finished.job.id)),
            false => Ok(()),
        }
    }

    /// The attempt is counted already. `clock` is the time at which the transaction began.
    fn fail(&mut self, now: Duration, clock: DateTime<Utc>, id: i64, failure: &Failure) {
        self.update(now, id, |row| {
            let delay = match failure.retry {
                Retry::In(delay) => delay,
                _ => Duration::from_secs_f64(f64::from(row.job.attempts.min(10)).exp()),
            };
            row.job.run_at = row.job.run_at.max(clock) + delay;
            row.ready_since = now;
            if failure.retry == Retry::Never {
                row.job.attempts = row.job.attempts.max(row.job.max_attempts);
            }
        });
    }

    /// complete_held.sql, fail_held.sql and the commit of a held batch.
    pub(in super::super) fn commit(
        &mut self,
        now: Duration,
        holder: Holder,
        finished: &[Finished],
    ) -> Result<(), String> {
        let began = self.holders.get(&holder).map_or_else(|| self.clock(now), |held| held.began);
        for one in finished {
            match &one.outcome {
                Outcome::Completed => self.complete(one)?,
                Outcome::Failed(failure) => {
                    self.update(now, one.job.id, |row| row.job.attempts += 1);
                    self.fail(now, began, one.job.id, failure);
                }
                Outcome::Interrupted | Outcome::NotStarted => {}
            }
        }
        self.end_transaction(now, holder, None);
        Ok(())
    }

    /// return_unknown.sql. Returns the jobs that were returned, and how many others keep locked.
    pub(in super::super) fn return_unknown(
        &mut self,
        now: Duration,
        worker: WorkerNumber,
        known: &KnownJobs,
    ) -> (Vec<i64>, usize) {
        let is_unknown = |id: &i64| self.rows[id].locked.is_some_and(|(owner, _)| owner == worker);
        let unknown = self.indexes.locked.iter().filter(|id| is_unknown(id) && !known.ids.contains(id));
        let unknown: Vec<i64> = unknown.copied().collect();
        let own = self.indexes.locked.iter().filter(|id| is_unknown(id));
        let with_jobs: HashSet<i32> = own.filter_map(|id| self.rows[id].job.job_queue_id).collect();
        let (mut returned, mut blocked) = (Vec::new(), 0);
        for id in unknown {
            if self.rows[&id].is_used {
                blocked += 1;
                continue;
            }
            returned.push(id);
            let queue = self.rows[&id].job.job_queue_id;
            self.update(now, id, |row| {
                row.job.attempts = (row.job.attempts - 1).max(0);
                row.locked = None;
            });
            if let Some(queue) = queue
                && self.queues.get(&queue).is_some_and(|lock| lock.worker == worker)
            {
                self.free_queue(now, queue);
            }
        }
        self.free_empty_queues(now, worker, known, &with_jobs);
        (returned, blocked)
    }

    /// Frees queues that the worker has locked, and that had no job of it when the statement began.
    fn free_empty_queues(
        &mut self,
        now: Duration,
        worker: WorkerNumber,
        known: &KnownJobs,
        with_jobs: &HashSet<i32>,
    ) {
        let is_empty = |queue: &i32| !known.queues.contains(queue) && !with_jobs.contains(queue);
        let own = self.queues.iter().filter(|(_, lock)| lock.worker == worker).map(|(queue, _)| *queue);
        let empty: Vec<i32> = own.filter(is_empty).collect();
        for queue in empty {
            self.free_queue(now, queue);
        }
    }

    /// An operator deletes a job that a worker runs.
    pub(in super::super) fn delete_by_operator(&mut self, id: i64) {
        let Some((owner, _)) = self.rows.get(&id).and_then(|row| row.locked) else { return };
        self.delete(id);
        self.changes.push((owner, id, Change::Lost(Cause::Operator)));
    }

    /// An operator unlocks a job that a worker runs, but not its queue.
    pub(in super::super) fn unlock_by_operator(&mut self, now: Duration, id: i64) {
        let owner = self.rows.get(&id).and_then(|row| row.locked);
        if let Some((owner, _)) = owner {
            self.update(now, id, |row| row.locked = None);
            self.changes.push((owner, id, Change::Lost(Cause::Operator)));
        }
    }
}
