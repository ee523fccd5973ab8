//! The statements that claim.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use super::super::super::claim::{Claimable, Level, Times};
use super::super::super::planner::scan::{Kind, LevelKey, Request, Seen};
use super::super::super::queries::Promoted as Claimed;
use super::indexes::{FIRST_PLACE, Levels};
use super::{Cause, Change, Database, Held, Holder, QueueLock, Row, WorkerNumber, is_forbidden};
use crate::Job;
use crate::job::Order;

impl Database {
    /// claim_by_job.sql or claim_by_queue.sql, or claim_level.sql if the level is known.
    pub(in super::super) fn claim(
        &mut self,
        now: Duration,
        worker: WorkerNumber,
        wanted: &Claimable,
        forbidden: &[String],
    ) -> (Vec<Job>, Option<Level>) {
        let (ids, level) = self.choose_claimable(now, wanted, forbidden);
        (self.lock(now, worker, ids), level)
    }

    /// find_claimable.sql, and mark_claimed.sql for each job. Returns the claimed jobs, and those that were refused.
    pub(in super::super) fn claim_one_by_one(
        &mut self,
        now: Duration,
        worker: WorkerNumber,
        wanted: &Claimable,
        forbidden: &[String],
    ) -> (Vec<Job>, Vec<Job>) {
        let (ids, _) = self.choose(now, wanted, forbidden);
        let (refused, ids): (Vec<i64>, Vec<i64>) = ids.into_iter().partition(|id| self.refuses_claim_of(*id));
        let refused = refused.iter().map(|id| self.rows[id].job.clone()).collect();
        (self.lock(now, worker, ids), refused)
    }

    pub(super) fn choose_claimable(
        &self,
        now: Duration,
        wanted: &Claimable,
        forbidden: &[String],
    ) -> (Vec<i64>, Option<Level>) {
        match &wanted.level {
            Some(level) => self.choose_in_level(now, wanted, level),
            None => self.choose(now, wanted, forbidden),
        }
    }

    fn lock(&mut self, now: Duration, worker: WorkerNumber, ids: Vec<i64>) -> Vec<Job> {
        let at = self.clock(now);
        let mut claimed = Vec::with_capacity(ids.len());
        for id in ids {
            self.update(now, id, |row| {
                row.locked = Some((worker, at));
                row.job.attempts += 1;
                claimed.push(Job { locked_at: Some(at), ..row.job.clone() });
            });
            self.changes.push((worker, id, Change::Claimed));
        }
        for queue in claimed.iter().filter_map(|job| job.job_queue_id) {
            self.queues.insert(queue, QueueLock { worker, at, since: now });
        }
        claimed
    }

    /// The most urgent jobs. A queue whose first job is left out, or hidden by a row lock, brings nothing.
    fn choose(&self, now: Duration, wanted: &Claimable, forbidden: &[String]) -> (Vec<i64>, Option<Level>) {
        let is_in = |tasks: &[String], job: &Job| tasks.iter().any(|task| **task == *job.task_identifier);
        let is_early = |row: &&Row| row.job.order() < wanted.before;
        let is_left_out = |row: &Row| wanted.left_out.contains(&row.job.id);
        let clock = self.clock(now);
        let mut orders: Vec<Order> = Vec::new();
        for ((_, task), level) in self.indexes.plain.iter().chain(&self.indexes.flagged) {
            if !wanted.unqueued.iter().any(|one| **one == **task) {
                continue;
            }
            let free = level.free_between(FIRST_PLACE, clock).map(|(_, id)| &self.rows[id]);
            let early = free.take_while(is_early).filter(|row| !is_forbidden(&row.job, forbidden));
            let early = early.filter(|row| !is_left_out(row));
            orders.extend(early.map(|row| row.job.order()).take(wanted.count));
        }
        let is_wanted = |job: &Job| is_in(&wanted.tasks, job) && !is_forbidden(job, forbidden);
        let heads = self.free_queues().filter_map(|queue| self.head(now, queue, is_wanted));
        let free = heads.filter(|row| is_early(row) && !row.is_row_locked() && !is_left_out(row));
        orders.extend(free.map(|row| row.job.order()));
        orders.sort_unstable();
        orders.truncate(wanted.count);
        let level = self.only_level(wanted).filter(|_| self.indexes.queued.is_empty());
        let level = level.and_then(|(priority, task)| self.level(clock, wanted, priority, task, &orders));
        (orders.iter().map(|(_, _, id)| *id).collect(), level)
    }

    /// The only task and priority that has jobs without a queue, if there is only one and it has no flags. Priorities after
    /// the first two are not read, nor those after the first that is not before the wanted one.
    fn only_level(&self, wanted: &Claimable) -> Option<(i16, Arc<str>)> {
        let is_wanted = |task: &str| wanted.unqueued.iter().any(|one| one == task);
        let of = |levels: &Levels, has_flags: bool| -> Vec<(i16, Arc<str>, bool)> {
            let levels = levels.keys().filter(|(_, task)| is_wanted(task));
            levels.map(|(priority, task)| (*priority, task.clone(), has_flags)).collect()
        };
        let mut levels = of(&self.indexes.plain, false);
        levels.extend(of(&self.indexes.flagged, true));
        levels.sort_unstable();
        let mut priorities: Vec<i16> = levels.iter().map(|level| level.0).collect();
        priorities.dedup();
        let read = priorities.partition_point(|priority| *priority < wanted.before.0) + 1;
        priorities.truncate(read.min(2));
        levels.retain(|level| priorities.contains(&level.0));
        match levels.as_slice() {
            [(priority, task, false)] => Some((*priority, task.clone())),
            _ => None,
        }
    }

    /// What a claim that took all it wanted returns about its level.
    fn level(
        &self,
        clock: DateTime<Utc>,
        wanted: &Claimable,
        priority: i16,
        task: Arc<str>,
        taken: &[Order],
    ) -> Option<Level> {
        let (_, run_at, id) = taken.last().filter(|_| taken.len() == wanted.count)?;
        let last = (*run_at, *id);
        let level = self.indexes.plain.get(&(priority, task.clone()));
        let mut later = level.into_iter().flat_map(|level| level.all_between(last, clock));
        let ahead = later.nth(wanted.count - 1).filter(|_| wanted.looks_ahead);
        let ahead = ahead.map(|place| (*place, taken.len()));
        Some(Level { task_identifier: task, priority, position: Some(last), ahead })
    }

    /// The jobs of one level, if there are no others that this worker could claim durably.
    fn choose_in_level(&self, now: Duration, wanted: &Claimable, level: &Level) -> (Vec<i64>, Option<Level>) {
        let key = (level.priority, level.task_identifier.clone());
        let is_wanted = |task: &str| wanted.unqueued.iter().any(|one| one == task);
        let is_other = |other: &&(i16, Arc<str>)| **other != key && is_wanted(&other.1);
        let has_flagged = self.indexes.flagged.keys().any(|(_, task)| is_wanted(task));
        if has_flagged
            || !self.indexes.queued.is_empty()
            || self.indexes.plain.keys().any(|other| is_other(&other))
        {
            return (Vec::new(), None);
        }
        let clock = self.clock(now);
        let after = level.position.unwrap_or((DateTime::<Utc>::MIN_UTC, 0));
        let until = level.ahead.map_or((DateTime::<Utc>::MAX_UTC, i64::MAX), |(place, _)| place);
        let level = self.indexes.plain.get(&key).filter(|_| is_wanted(&key.1));
        let free = level.into_iter().flat_map(|level| level.free_between(after, clock));
        let free = free.take_while(|place| **place <= until);
        let taken: Vec<Order> = free.take(wanted.count).map(|(run_at, id)| (key.0, *run_at, *id)).collect();
        let ids = taken.iter().map(|(_, _, id)| *id).collect();
        (ids, self.level(clock, wanted, key.0, key.1, &taken))
    }

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

    /// refresh_locks.sql: locks that are an hour old are renewed.
    pub(in super::super) fn renew(&mut self, now: Duration, worker: WorkerNumber, ids: &[i64]) -> Times {
        let clock = self.clock(now);
        let mut times = Times::new();
        for id in ids {
            let Some(row) = self.rows.get(id) else { continue };
            let Some((_, at)) = row.locked.filter(|(owner, _)| *owner == worker) else { continue };
            let is_old = at < clock - TimeDelta::hours(1) && !row.is_row_locked();
            times.insert(*id, if is_old { clock } else { at });
            if !is_old {
                continue;
            }
            let queue = row.job.job_queue_id;
            self.update(now, *id, |row| row.locked = Some((worker, clock)));
            let lock = queue.and_then(|queue| self.queues.get_mut(&queue));
            if let Some(lock) = lock.filter(|lock| lock.worker == worker) {
                lock.at = clock;
            }
        }
        times
    }
}
