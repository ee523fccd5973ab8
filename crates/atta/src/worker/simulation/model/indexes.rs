//! The indexes of the model's jobs. A simulated statement reads only the jobs that it returns, also in a large table.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::Row;
use crate::Job;
use crate::job::Order;

/// The place of a job in its level: run_at and id.
pub(super) type Place = (DateTime<Utc>, i64);

/// Available jobs of one task and priority that have no queue.
#[derive(Default)]
pub(super) struct Level {
    all: BTreeSet<Place>,
    /// Those whose rows no transaction has locked.
    free: BTreeSet<Place>,
}

impl Level {
    /// All jobs in their order, whatever row locks there are.
    pub(super) fn all(&self) -> impl Iterator<Item = &Place> {
        self.all.iter()
    }

    /// All jobs behind a place that are due by then.
    pub(super) fn all_between(&self, after: Place, clock: DateTime<Utc>) -> impl Iterator<Item = &Place> {
        self.all.range(between(after, clock))
    }

    /// Jobs behind a place that are due by then, and that no row lock hides.
    pub(super) fn free_between(&self, after: Place, clock: DateTime<Utc>) -> impl Iterator<Item = &Place> {
        self.free.range(between(after, clock))
    }
}

/// The clock may have been set back since the place was read.
fn between(after: Place, clock: DateTime<Utc>) -> (Bound<Place>, Bound<Place>) {
    let present = (clock, i64::MAX);
    (Bound::Excluded(after.min(present)), Bound::Included(present))
}

/// Before all jobs of a level.
pub(super) const FIRST_PLACE: Place = (DateTime::<Utc>::MIN_UTC, i64::MIN);

/// Available jobs without a queue, by priority and task.
pub(super) type Levels = BTreeMap<(i16, Arc<str>), Level>;

#[derive(Default)]
pub(super) struct Indexes {
    pub(super) plain: Levels,
    /// Those that have flags.
    pub(super) flagged: Levels,
    /// Available jobs in queues.
    pub(super) queued: BTreeMap<i32, BTreeSet<Order>>,
    /// Durably locked jobs.
    pub(super) locked: BTreeSet<i64>,
}

impl Indexes {
    /// Whether no job is left that can run.
    pub(super) fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.flagged.is_empty() && self.queued.is_empty() && self.locked.is_empty()
    }

    pub(super) fn add(&mut self, row: &Row) {
        let job = &row.job;
        if row.locked.is_some() {
            self.locked.insert(job.id);
        }
        if !row.is_available() {
            return;
        }
        if let Some(queue) = job.job_queue_id {
            self.queued.entry(queue).or_default().insert(job.order());
            return;
        }
        let key = (job.priority, job.task_identifier.clone());
        let level = self.levels_of(job).entry(key).or_default();
        level.all.insert((job.run_at, job.id));
        if !row.is_row_locked() {
            level.free.insert((job.run_at, job.id));
        }
    }

    pub(super) fn remove(&mut self, row: &Row) {
        let job = &row.job;
        if row.locked.is_some() {
            self.locked.remove(&job.id);
        }
        if !row.is_available() {
            return;
        }
        if let Some(queue) = job.job_queue_id {
            if let Some(jobs) = self.queued.get_mut(&queue) {
                jobs.remove(&job.order());
                if jobs.is_empty() {
                    self.queued.remove(&queue);
                }
            }
            return;
        }
        let key = (job.priority, job.task_identifier.clone());
        let levels = self.levels_of(job);
        if let Some(level) = levels.get_mut(&key) {
            level.all.remove(&(job.run_at, job.id));
            if !row.is_row_locked() {
                level.free.remove(&(job.run_at, job.id));
            }
            if level.all.is_empty() {
                levels.remove(&key);
            }
        }
    }

    /// A transaction locks the row of this job, which is available and has no queue.
    pub(super) fn hide(&mut self, job: &Job) {
        let key = (job.priority, job.task_identifier.clone());
        if let Some(level) = self.levels_of(job).get_mut(&key) {
            level.free.remove(&(job.run_at, job.id));
        }
    }

    fn levels_of(&mut self, job: &Job) -> &mut Levels {
        match job.flags {
            Some(_) => &mut self.flagged,
            None => &mut self.plain,
        }
    }
}
