//! The statements that release.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::super::super::claim::KnownJobs;
use super::super::super::queries::Claims;
use super::super::super::release::{Entry, Fate};
use super::super::super::run::{Failure, Finished, Outcome};
use super::{Cause, Change, Database, Holder, QueueLock, WorkerNumber};
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
            let claim = (id, *locked_at, finished.job.job_queue_id);
            let Some(is_standing) = self.end_claim(now, worker, claim) else {
                fates.insert(id, Fate::Blocked);
                continue;
            };
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

    /// find_unknown.sql.
    pub(in super::super) fn find_unknown(&self, worker: WorkerNumber, known: &KnownJobs) -> Claims {
        let is_own = |id: &&i64| self.rows[*id].locked.is_some_and(|(owner, _)| owner == worker);
        let own = || self.indexes.locked.iter().filter(is_own).map(|id| &self.rows[id]);
        let mut claims = Claims::default();
        for row in own().filter(|row| !known.ids.contains(&row.job.id)) {
            claims.ids.push(row.job.id);
            claims.times.push(row.locked.map(|(_, at)| at));
            claims.queues.push(row.job.job_queue_id);
        }
        let with_jobs: HashSet<i32> = own().filter_map(|row| row.job.job_queue_id).collect();
        for (queue, lock) in self.queues.iter().filter(|(_, lock)| lock.worker == worker) {
            if !known.queues.contains(queue) && !with_jobs.contains(queue) {
                claims.ids.push(-i64::from(*queue));
                claims.times.push(Some(lock.at));
                claims.queues.push(Some(*queue));
            }
        }
        claims
    }

    /// return_claimed.sql with the claims that find_unknown.sql has found.
    pub(in super::super) fn return_unknown(
        &mut self,
        now: Duration,
        worker: WorkerNumber,
        claims: &Claims,
    ) -> HashMap<i64, Fate> {
        let mut fates = HashMap::new();
        for (index, id) in claims.ids.iter().enumerate() {
            let (at, queue) = (claims.times[index], claims.queues[index]);
            let Some(is_standing) = self.end_claim(now, worker, (*id, at, queue)) else {
                fates.insert(*id, Fate::Blocked);
                continue;
            };
            if is_standing {
                self.update(now, *id, |row| {
                    row.job.attempts = (row.job.attempts - 1).max(0);
                    row.locked = None;
                });
                fates.insert(*id, Fate::Written);
            }
        }
        fates
    }

    /// Frees the queue of a claim that ends, and returns whether the claim is still valid. None: another transaction keeps
    /// the row locked.
    fn end_claim(
        &mut self,
        now: Duration,
        worker: WorkerNumber,
        (id, at, queue): (i64, Option<DateTime<Utc>>, Option<i32>),
    ) -> Option<bool> {
        let row = self.rows.get(&id);
        let is_ours = |(owner, time)| owner == worker && Some(time) == at;
        let is_standing = row.is_some_and(|row| row.locked.is_some_and(is_ours));
        if is_standing && row.is_some_and(|row| row.is_used) {
            return None;
        }
        if let Some(queue) = queue {
            let is_own = |lock: &QueueLock| lock.worker == worker && (is_standing || Some(lock.at) == at);
            if self.queues.get(&queue).is_some_and(is_own) {
                self.free_queue(now, queue);
            }
        }
        Some(is_standing)
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
