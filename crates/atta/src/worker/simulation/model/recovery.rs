//! The table of workers, and the statements of polls and recovery.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use super::{Cause, Change, Database, WorkerNumber, is_forbidden};
use crate::recovery::OwnHeartbeats;

/// A row of the table of workers.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Registered {
    pub(in super::super) heartbeat_at: DateTime<Utc>,
    pub(in super::super) declared_dead_at: Option<DateTime<Utc>>,
    /// The last heartbeat in virtual time.
    pub(in super::super) recorded_at: Duration,
}

/// What a poll returns.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Polled {
    pub(in super::super) others_are_stale: bool,
    pub(in super::super) others_are_dead: bool,
    pub(in super::super) recent_deaths: usize,
    /// Triggers may refuse changes of jobs, so nothing is held.
    pub(in super::super) has_triggers: bool,
    /// How long until the next jobs are due.
    pub(in super::super) next_due: Vec<Duration>,
}

fn seconds(delta: TimeDelta) -> f64 {
    delta.num_microseconds().unwrap_or(i64::MAX) as f64 / 1e6
}

impl Database {
    /// heartbeat.sql, and register_worker.sql if the worker is not registered. Returns whether it was.
    pub(in super::super) fn heartbeat(&mut self, now: Duration, worker: WorkerNumber) -> bool {
        let heartbeat_at = self.clock(now);
        let row = Registered { heartbeat_at, declared_dead_at: None, recorded_at: now };
        let was_registered = match self.workers.insert(worker, row) {
            Some(before) => self.heartbeats.remove(&(before.heartbeat_at, worker)),
            None => false,
        };
        self.heartbeats.insert((heartbeat_at, worker));
        was_registered
    }

    /// deregister_worker.sql
    pub(in super::super) fn deregister(&mut self, worker: WorkerNumber) {
        if let Some(row) = self.workers.get(&worker).filter(|row| row.declared_dead_at.is_none()) {
            self.heartbeats.remove(&(row.heartbeat_at, worker));
            self.workers.remove(&worker);
        }
    }

    /// Whether no worker is stale or declared dead. Nearly all polls of a large fleet need to know no more.
    fn are_all_alive(&self, clock: DateTime<Utc>) -> bool {
        let is_recent = |heartbeat: Option<&(DateTime<Utc>, WorkerNumber)>| {
            heartbeat.is_none_or(|(at, _)| seconds(clock - *at).abs() <= self.threshold.as_secs_f64())
        };
        self.heartbeats.len() == self.workers.len()
            && is_recent(self.heartbeats.first())
            && is_recent(self.heartbeats.last())
    }

    /// The workers that `worker` may declare dead: see declare_dead.sql.
    fn stale(&self, now: Duration, worker: WorkerNumber, continuous: Duration) -> Vec<WorkerNumber> {
        let (clock, threshold) = (self.clock(now), self.threshold.as_secs_f64());
        let age = |row: &Registered| seconds(clock - row.heartbeat_at).abs();
        let is_own_recent = self.workers.get(&worker).is_some_and(|own| age(own) <= threshold / 2.0);
        let since_start = seconds(clock - self.started_at);
        let is_stale = |(number, row): &(&WorkerNumber, &Registered)| {
            **number != worker
                && row.declared_dead_at.is_none()
                && age(row).min(continuous.as_secs_f64()).min(since_start) > threshold
        };
        let stale = self.workers.iter().filter(|_| is_own_recent).filter(is_stale);
        stale.map(|(number, _)| *number).collect()
    }

    /// poll.sql
    pub(in super::super) fn poll(
        &self,
        now: Duration,
        worker: WorkerNumber,
        continuous: Duration,
        for_jobs: bool,
        forbidden: &[String],
    ) -> Polled {
        let clock = self.clock(now);
        let recent = self.deaths.values().filter(|at| **at > clock - TimeDelta::minutes(5)).count();
        let next_due = if for_jobs { self.next_due(clock, forbidden) } else { Vec::new() };
        if self.are_all_alive(clock) {
            let has_triggers = self.has_triggers;
            return Polled { recent_deaths: recent, has_triggers, next_due, ..Polled::default() };
        }
        let threshold = self.threshold.as_secs_f64();
        let age = |row: &Registered| seconds(clock - row.heartbeat_at).abs();
        let own = self.workers.get(&worker).is_some_and(|own| age(own) <= threshold / 2.0);
        let others = self.workers.iter().filter(|(number, row)| {
            own && **number != worker && row.declared_dead_at.is_none() && age(row) > threshold
        });
        Polled {
            others_are_stale: !self.stale(now, worker, continuous).is_empty(),
            others_are_dead: self.workers.values().any(|row| row.declared_dead_at.is_some()),
            recent_deaths: recent + others.count(),
            has_triggers: self.has_triggers,
            next_due,
        }
    }

    fn next_due(&self, clock: DateTime<Utc>, forbidden: &[String]) -> Vec<Duration> {
        let plain =
            self.indexes.plain.values().flat_map(|level| level.all().take(32)).map(|(run_at, _)| *run_at);
        let is_allowed = |id: &i64| !is_forbidden(&self.rows[id].job, forbidden);
        let flagged = self
            .indexes
            .flagged
            .values()
            .flat_map(|level| level.all().filter(|(_, id)| is_allowed(id)).take(32));
        let flagged = flagged.map(|(run_at, _)| *run_at);
        let free = self.indexes.queued.iter().filter(|(queue, _)| !self.queues.contains_key(queue));
        let queued = free.flat_map(|(_, jobs)| jobs).filter(|(_, _, id)| is_allowed(id));
        let queued = queued.map(|(_, run_at, _)| *run_at);
        let mut times: Vec<DateTime<Utc>> = plain.chain(flagged).chain(queued).collect();
        times.sort_unstable();
        times.truncate(32);
        times.into_iter().map(|time| (time - clock).to_std().unwrap_or_default()).collect()
    }

    /// declare_dead.sql. Returns who was declared dead, and the last heartbeat of each in virtual time.
    pub(in super::super) fn declare_dead(
        &mut self,
        now: Duration,
        worker: WorkerNumber,
        own: OwnHeartbeats,
    ) -> Vec<(WorkerNumber, Duration)> {
        let clock = self.clock(now);
        let is_answered = self.workers.get(&worker).is_some_and(|row| Some(row.heartbeat_at) == own.last);
        let stale = if is_answered { self.stale(now, worker, own.continuous) } else { Vec::new() };
        for number in &stale {
            self.deaths.insert(*number, clock);
        }
        let declare = |number: WorkerNumber| {
            let row = self.workers.get_mut(&number)?;
            row.declared_dead_at = Some(clock);
            self.heartbeats.remove(&(row.heartbeat_at, number));
            Some((number, row.recorded_at))
        };
        stale.into_iter().filter_map(declare).collect()
    }

    /// recover_workers.sql. `random` spreads the jobs of a worker over the next second. Returns the jobs that were freed, and
    /// whose they were.
    pub(in super::super) fn recover(
        &mut self,
        now: Duration,
        with_orphans: bool,
        random: f64,
    ) -> Vec<(WorkerNumber, i64)> {
        let clock = self.clock(now);
        let threshold = TimeDelta::from_std(self.threshold).unwrap_or_default();
        // The locks of a dead worker that are older than this are freed.
        let locked_before = |worker: WorkerNumber| match self.workers.get(&worker) {
            Some(row) => row.declared_dead_at.map(|_| DateTime::<Utc>::MAX_UTC),
            None => (with_orphans && self.deaths.contains_key(&worker)).then(|| clock - threshold),
        };
        let of_dead: Vec<(WorkerNumber, i64, bool)> = self
            .indexes
            .locked
            .iter()
            .filter_map(|id| {
                let row = &self.rows[id];
                let (worker, at) = row.locked?;
                Some((worker, *id, at < locked_before(worker)? && !row.is_used))
            })
            .collect();
        let freed: Vec<(WorkerNumber, i64)> = of_dead
            .iter()
            .filter(|(_, _, is_freed)| *is_freed)
            .map(|(worker, id, _)| (*worker, *id))
            .collect();
        let still_locked: Vec<(i32, WorkerNumber)> = of_dead
            .iter()
            .filter(|(_, _, is_freed)| !is_freed)
            .filter_map(|(worker, id, _)| Some((self.rows[id].job.job_queue_id?, *worker)))
            .collect();
        let is_free = |(queue, lock): &(&i32, &super::QueueLock)| {
            locked_before(lock.worker).is_some_and(|time| lock.at < time)
                && !still_locked.contains(&(**queue, lock.worker))
        };
        let queues: Vec<i32> = self.queues.iter().filter(is_free).map(|(queue, _)| *queue).collect();
        for (index, (owner, id)) in freed.iter().enumerate() {
            let is_alone = freed.iter().filter(|(other, _)| other == owner).count() == 1;
            let (limit, delay) = (self.crash_limit, self.recovery_delay);
            self.update(now, *id, |row| {
                let crashes = row.crashes + 1;
                let is_last = crashes >= limit;
                row.locked = None;
                row.crashes = if is_last { 0 } else { crashes };
                row.job.attempts = if is_last { row.job.max_attempts } else { (row.job.attempts - 1).max(0) };
                row.ready_since = now;
                let is_spread = row.job.job_queue_id.is_none() && !is_alone;
                let part =
                    if is_spread { (random + index as f64 * 0.37).fract() * f64::from(crashes) } else { 0.0 };
                if is_spread || !delay.is_zero() {
                    row.job.run_at = row.job.run_at.max(clock + delay + Duration::from_secs_f64(part));
                }
            });
            self.changes.push((*owner, *id, Change::Lost(Cause::DeclaredDead)));
        }
        for queue in queues {
            self.free_queue(now, queue);
        }
        freed
    }

    /// forget_workers.sql
    pub(in super::super) fn forget_workers(&mut self) {
        let owners =
            self.indexes.locked.iter().filter_map(|id| self.rows[id].locked).map(|(worker, _)| worker);
        let owners: Vec<WorkerNumber> = owners.chain(self.queues.values().map(|lock| lock.worker)).collect();
        self.workers.retain(|number, row| row.declared_dead_at.is_none() || owners.contains(number));
    }
}
