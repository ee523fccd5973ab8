//! The model of the database: rows of jobs, queues and workers, row locks, and the server's clock. Our statements are
//! functions on it, in the files below. Each takes effect at one moment. `differential.rs` compares it with PostgreSQL.

mod applications;
mod claims;
mod crontabs;
mod held;
mod indexes;
mod recovery;
mod refusals;
mod releases;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

pub(super) use applications::{AddMode, Application, Blocker, Spec};
pub(super) use crontabs::Crontab;
pub(super) use recovery::{Polled, Registered};
pub(super) use refusals::{RefusedChange, Refusing};

use indexes::{FIRST_PLACE, Indexes};

use super::setup::THRESHOLD;
use crate::Job;

/// A worker of the simulation. A new one has a new number.
pub(super) type WorkerNumber = usize;

/// A transaction that holds jobs: of which worker, and of which lane.
pub(super) type Holder = (WorkerNumber, u64);

#[derive(Clone, Debug)]
pub(super) struct Row {
    /// Its `attempts` are those that are stored.
    pub(super) job: Job,
    /// The durable claim: whose, and since when by the server's clock.
    pub(super) locked: Option<(WorkerNumber, DateTime<Utc>)>,
    /// The row lock of a held claim.
    pub(super) held: Option<Holder>,
    /// A transaction of the application keeps the row locked.
    pub(super) is_used: bool,
    /// Since when none does, in virtual time.
    pub(super) unused_since: Duration,
    pub(super) crashes: u32,
    /// An add by key has changed its revision, and not its work.
    is_touched: bool,
    /// Since when nobody has claimed it, in virtual time.
    pub(super) free_since: Duration,
    /// Since when it is there or was last run, in virtual time.
    pub(super) ready_since: Duration,
    /// Since when it is locked durably, in virtual time.
    pub(super) locked_since: Duration,
}

impl Row {
    fn is_row_locked(&self) -> bool {
        self.held.is_some() || self.is_used
    }

    /// The meaning of the column is_available.
    fn is_available(&self) -> bool {
        self.locked.is_none() && self.job.attempts < self.job.max_attempts
    }
}

/// Why a worker no longer has a job that it may be running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The connection that held the job was lost.
    Connection,
    /// The worker was declared dead.
    DeclaredDead,
    /// An operator has unlocked or deleted the job.
    Operator,
}

/// What has become of a worker's claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Claimed,
    /// A job that was held, and may be running, is a durable claim now.
    Promoted,
    Lost(Cause),
}

/// The transaction of a held claim.
struct Held {
    /// The server's time when it began, which is the time of all that it writes.
    began: DateTime<Utc>,
    ids: Vec<i64>,
}

pub(super) struct Database {
    rows: BTreeMap<i64, Row>,
    indexes: Indexes,
    holders: BTreeMap<Holder, Held>,
    applications: BTreeMap<Application, applications::Transaction>,
    pub(super) queues: BTreeMap<i32, QueueLock>,
    pub(super) workers: BTreeMap<WorkerNumber, Registered>,
    /// The heartbeats of all workers that are not declared dead.
    heartbeats: BTreeSet<(DateTime<Utc>, WorkerNumber)>,
    pub(super) deaths: BTreeMap<WorkerNumber, DateTime<Utc>>,
    pub(super) crontabs: BTreeMap<String, Crontab>,
    pub(super) started_at: DateTime<Utc>,
    /// By how much the server's clock was set.
    pub(super) offset: TimeDelta,
    /// Since when queues are free, in virtual time.
    freed_queues: BTreeMap<i32, Duration>,
    /// Who has claimed or lost a job since the world last asked.
    changes: Vec<(WorkerNumber, i64, Change)>,
    last_id: i64,
    pub(super) refusing: Option<Refusing>,
    /// Whether polls report triggers of the table of jobs.
    pub(super) has_triggers: bool,
    /// The settings of all workers.
    pub(super) threshold: Duration,
    pub(super) recovery_delay: Duration,
    pub(super) crash_limit: u32,
}

/// Who has locked a queue, and since when by the server's clock and in virtual time.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueLock {
    pub(super) worker: WorkerNumber,
    pub(super) at: DateTime<Utc>,
    pub(super) since: Duration,
}

impl Database {
    pub(super) fn new() -> Database {
        Database {
            rows: BTreeMap::new(),
            indexes: Indexes::default(),
            holders: BTreeMap::new(),
            applications: BTreeMap::new(),
            queues: BTreeMap::new(),
            workers: BTreeMap::new(),
            heartbeats: BTreeSet::new(),
            deaths: BTreeMap::new(),
            crontabs: BTreeMap::new(),
            started_at: DateTime::UNIX_EPOCH,
            offset: TimeDelta::zero(),
            freed_queues: BTreeMap::new(),
            changes: Vec::new(),
            last_id: 0,
            refusing: None,
            has_triggers: false,
            threshold: THRESHOLD,
            recovery_delay: Duration::ZERO,
            crash_limit: 3,
        }
    }

    /// The server's time at this moment.
    pub(super) fn clock(&self, now: Duration) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::days(20_000) + now + self.offset
    }

    pub(super) fn rows(&self) -> &BTreeMap<i64, Row> {
        &self.rows
    }

    /// The ids of durably locked jobs.
    pub(super) fn locked(&self) -> impl Iterator<Item = i64> + '_ {
        self.indexes.locked.iter().copied()
    }

    /// Whether no job is left that can run.
    pub(super) fn is_empty(&self) -> bool {
        self.indexes.is_empty()
    }

    /// Adds a job without a key.
    pub(super) fn add(&mut self, now: Duration, spec: Spec) -> i64 {
        let id = self.last_id + 1;
        self.insert(now, id, spec);
        id
    }

    fn insert(&mut self, now: Duration, id: i64, spec: Spec) {
        self.last_id = self.last_id.max(id);
        let job = Job::for_tests((spec.priority, spec.run_at, id), &spec.task);
        let job = Job {
            job_queue_id: spec.queue,
            attempts: 0,
            max_attempts: spec.max_attempts,
            key: spec.key,
            flags: spec.flags,
            ..job
        };
        let row = Row {
            job,
            locked: None,
            held: None,
            is_used: false,
            unused_since: now,
            crashes: 0,
            is_touched: false,
            free_since: now,
            ready_since: now,
            locked_since: now,
        };
        self.indexes.add(&row);
        self.rows.insert(id, row);
    }

    /// Changes a row, if it exists, and the indexes with it.
    pub(super) fn update(&mut self, now: Duration, id: i64, change: impl FnOnce(&mut Row)) {
        let Some(row) = self.rows.get_mut(&id) else { return };
        self.indexes.remove(row);
        let (had, was_available) = ((row.locked, row.held, row.is_used), row.is_available());
        change(row);
        let is_free = |(locked, held, is_used): (Option<_>, Option<Holder>, bool)| {
            locked.is_none() && held.is_none() && !is_used
        };
        let could_be_claimed = is_free(had) && was_available;
        if is_free((row.locked, row.held, row.is_used)) && row.is_available() && !could_be_claimed {
            row.free_since = now;
        }
        if row.locked.is_some() && row.locked != had.0 {
            row.locked_since = now;
        }
        self.indexes.add(row);
    }

    pub(super) fn delete(&mut self, id: i64) -> Option<Row> {
        let row = self.rows.remove(&id)?;
        self.indexes.remove(&row);
        Some(row)
    }

    /// Due jobs without a queue that nobody has, and that no row lock hides. Level by level: those without flags first.
    fn due_unqueued(&self, now: Duration) -> impl Iterator<Item = &Row> {
        let clock = self.clock(now);
        let levels = self.indexes.plain.values().chain(self.indexes.flagged.values());
        let due = levels.flat_map(move |level| level.free_between(FIRST_PLACE, clock));
        due.map(|(_, id)| &self.rows[id])
    }

    /// The first due job of a queue that is wanted, whatever row locks there are.
    fn head(&self, now: Duration, queue: i32, is_wanted: impl Fn(&Job) -> bool) -> Option<&Row> {
        let clock = self.clock(now);
        let due = self.indexes.queued.get(&queue)?.iter().filter(|(_, run_at, _)| *run_at <= clock);
        due.map(|(_, _, id)| &self.rows[id]).find(|row| is_wanted(&row.job))
    }

    /// Since when a job can be claimed that can be claimed now, in virtual time.
    pub(super) fn visible_since(&self, now: Duration, row: &Row) -> Duration {
        let due_for = (self.clock(now) - row.job.run_at).to_std().unwrap_or_default();
        let queue = row.job.job_queue_id.and_then(|queue| self.freed_queues.get(&queue));
        now.saturating_sub(due_for).max(row.free_since).max(queue.copied().unwrap_or_default())
    }

    /// Who has claimed or lost a job since the last call.
    pub(super) fn take_changes(&mut self) -> Vec<(WorkerNumber, i64, Change)> {
        std::mem::take(&mut self.changes)
    }

    fn free_queue(&mut self, now: Duration, queue: i32) {
        self.queues.remove(&queue);
        self.freed_queues.insert(queue, now);
    }

    /// Jobs with these flags can be claimed from now on, and so can the jobs behind them in their queues.
    pub(super) fn free_flagged(&mut self, now: Duration, flags: &[String]) {
        for row in self.rows.values_mut().filter(|row| is_forbidden(&row.job, flags)) {
            (row.free_since, row.ready_since) = (now, now);
        }
    }

    fn free_queues(&self) -> impl Iterator<Item = i32> {
        self.indexes.queued.keys().filter(|queue| !self.queues.contains_key(queue)).copied()
    }

    /// All jobs that a worker with these forbidden flags could claim now.
    pub(super) fn claimable(&self, now: Duration, forbidden: &[String]) -> impl Iterator<Item = &Row> {
        let is_wanted = |job: &Job| !is_forbidden(job, forbidden);
        let heads = self.free_queues().filter_map(move |queue| self.head(now, queue, is_wanted));
        let heads = heads.filter(|row| !row.is_row_locked());
        self.due_unqueued(now).filter(move |row| is_wanted(&row.job)).chain(heads)
    }
}

fn is_forbidden(job: &Job, forbidden: &[String]) -> bool {
    job.flags.as_ref().is_some_and(|flags| forbidden.iter().any(|flag| flags.contains_key(flag)))
}
