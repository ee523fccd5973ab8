//! The statements of held claims: picks, the promotion of jobs that still run, and the end of the transaction.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::super::super::claim::Times;
use super::super::super::planner::scan::{Kind, LevelKey, Request, Seen};
use super::super::super::queries::Promoted as Claimed;
use super::indexes::Levels;
use super::{Cause, Change, Database, Held, Holder, Row, WorkerNumber, is_forbidden};
use crate::Job;

impl Database {
    /// find_levels.sql, and pick_jobs.sql, pick_level.sql or pick_flagged_jobs.sql
    pub(in super::super) fn pick(
        &mut self,
        now: Duration,
        holder: Holder,
        request: &Request,
        forbidden: &[String],
    ) -> (Vec<Arc<Job>>, Seen) {
        let found = self.find_levels(request);
        let (mut jobs, mut levels) = (Vec::new(), Vec::new());
        let clock = self.clock(now);
        for level in request.levels.iter() {
            let room = level.limit.min(request.count - jobs.len());
            let key = (level.key.priority, level.key.task_identifier.clone());
            let after = (level.after.run_at.unwrap_or(DateTime::<Utc>::MIN_UTC), level.after.id);
            let free = self.levels(request.kind).get(&key).into_iter();
            let free = free.flat_map(|level| level.free_between(after, clock));
            let early = free.take_while(|(run_at, id)| (key.0, *run_at, *id) < request.before);
            let ids = early.map(|(_, id)| *id).filter(|id| !is_forbidden(&self.rows[id].job, forbidden));
            let ids: Vec<i64> = ids.take(room).collect();
            let mut last = None;
            for id in &ids {
                let Some(row) = self.rows.get_mut(id) else { continue };
                row.held = Some(holder);
                self.indexes.hide(&row.job);
                last = Some(row.job.order());
                jobs.push(Arc::new(Job { attempts: row.job.attempts + 1, ..row.job.clone() }));
                self.changes.push((holder.0, *id, Change::Claimed));
            }
            levels.push((ids.len(), last));
        }
        jobs.sort_by_key(|job: &Arc<Job>| job.order());
        if !jobs.is_empty() {
            let ids = jobs.iter().map(|job| job.id).collect();
            self.holders.insert(holder, Held { began: clock, ids });
        }
        let first = jobs.first().map(|job| job.order());
        let at = (!request.gaps.is_empty()).then_some(clock);
        (jobs, Seen { levels, first, found, now: at, took: Duration::from_millis(1) })
    }

    fn levels(&self, kind: Kind) -> &Levels {
        match kind {
            Kind::Plain => &self.indexes.plain,
            Kind::Flagged => &self.indexes.flagged,
        }
    }

    fn find_levels(&self, request: &Request) -> Vec<LevelKey> {
        let mut found = Vec::new();
        for gap in &request.gaps {
            let levels = self.levels(gap.kind).keys().filter(|(priority, task)| {
                let priority = i32::from(*priority);
                *task == gap.task_identifier && gap.after < priority && priority < gap.before
            });
            let key = |(priority, task): &(i16, Arc<str>)| LevelKey {
                kind: gap.kind,
                priority: *priority,
                task_identifier: task.clone(),
            };
            found.extend(levels.take(16).map(key));
        }
        found
    }

    /// Whether the transaction of this lane is open.
    pub(in super::super) fn is_held(&self, holder: Holder) -> bool {
        self.holders.contains_key(&holder)
    }

    /// promote_held.sql: jobs become durable claims of the worker that holds them.
    pub(in super::super) fn promote_held(&mut self, now: Duration, holder: Holder, ids: &[i64]) -> Times {
        let at = self.holders.get(&holder).map_or_else(|| self.clock(now), |held| held.began);
        for id in ids {
            self.update(now, *id, |row| {
                row.job.attempts += 1;
                row.locked = Some((holder.0, at));
            });
            self.changes.push((holder.0, *id, Change::Promoted));
        }
        ids.iter().map(|id| (*id, at)).collect()
    }

    /// Row locks end with their transaction. `cause` if its work is undone.
    pub(in super::super) fn end_transaction(&mut self, now: Duration, holder: Holder, cause: Option<Cause>) {
        let held = self.holders.remove(&holder);
        for id in held.map(|held| held.ids).unwrap_or_default() {
            self.update(now, id, |row| row.held = None);
            if let Some(cause) = cause {
                self.changes.push((holder.0, id, Change::Lost(cause)));
            }
        }
    }

    /// All transactions of a worker that are open.
    pub(in super::super) fn transactions(&self, worker: Option<WorkerNumber>) -> Vec<Holder> {
        let holders = self.holders.keys();
        holders.filter(|(owner, _)| worker.is_none_or(|worker| *owner == worker)).copied().collect()
    }

    /// promote_untouched.sql
    pub(in super::super) fn promote_untouched(
        &mut self,
        now: Duration,
        worker: WorkerNumber,
        jobs: &[Arc<Job>],
    ) -> Claimed {
        let mut claimed = Claimed { ours: Times::new(), blocked: HashSet::new() };
        let at = self.clock(now);
        for job in jobs {
            if !self.is_promotable(worker, job) {
                if self.is_untouched(worker, job) {
                    claimed.blocked.insert(job.id);
                }
                continue;
            }
            self.update(now, job.id, |row| {
                if row.locked.is_none() {
                    row.job.attempts += 1;
                }
                row.locked = Some((worker, at));
            });
            self.changes.push((worker, job.id, Change::Promoted));
            claimed.ours.insert(job.id, at);
        }
        claimed
    }

    /// Whether nobody has changed the job since this worker picked it.
    fn is_untouched(&self, worker: WorkerNumber, job: &Job) -> bool {
        let is_same = |row: &Row| match row.locked {
            None => row.job.attempts == job.attempts - 1,
            Some((owner, _)) => owner == worker && row.job.attempts == job.attempts,
        };
        self.rows.get(&job.id).is_some_and(|row| row.job.revision == job.revision && is_same(row))
    }

    /// The same, and no other transaction has locked the row.
    pub(super) fn is_promotable(&self, worker: WorkerNumber, job: &Job) -> bool {
        self.is_untouched(worker, job) && self.rows.get(&job.id).is_some_and(|row| !row.is_row_locked())
    }
}
