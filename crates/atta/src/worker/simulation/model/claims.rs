//! The statements that claim durably, and renew claims.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use super::super::super::claim::{Claimable, Level, Times};
use super::indexes::{FIRST_PLACE, Levels};
use super::{Change, Database, QueueLock, Row, WorkerNumber, is_forbidden};
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
            if self.cancels_claim_of(id) {
                if let Some(queue) = self.rows[&id].job.job_queue_id {
                    self.queues.insert(queue, QueueLock { worker, at, since: now });
                }
                continue;
            }
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
