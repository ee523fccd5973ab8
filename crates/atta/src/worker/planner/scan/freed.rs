//! Jobs that become free again: those that a batch has picked and not started, and those that are returned. The next
//! pick must begin before them.

use std::sync::Arc;
use std::time::Instant;

use super::level::Level;
use super::{Kind, LevelKey, Position, Scan};
use crate::Job;
use crate::job::Order;

impl Scan {
    /// A batch is about to free these jobs, which were picked and not begun. Until it has, no pick can find them.
    pub(crate) fn begin_freeing(&mut self, now: Instant, batch: u64, jobs: Vec<Arc<Job>>) {
        if !jobs.is_empty() {
            self.freeing.push((batch, now, jobs));
        }
    }

    /// The batch has ended, and the jobs that it did not start are free. Returns the most urgent of those whose tasks
    /// are no longer held.
    pub(crate) fn end_freeing(&mut self, now: Instant, batch: u64) -> Option<Order> {
        let gone = self.freeing.extract_if(.., |(of, _, _)| *of == batch);
        let jobs: Vec<Arc<Job>> = gone.flat_map(|(_, _, jobs)| jobs).collect();
        let is_foreign = |job: &&Arc<Job>| !self.tasks.contains(&job.task_identifier);
        let foreign = jobs.iter().filter(is_foreign).map(|job| job.order()).min();
        self.on_freed(now, jobs);
        foreign
    }

    /// These jobs are free now. A pick that is under way may have skipped them because they were locked.
    pub(crate) fn on_freed(&mut self, now: Instant, mut jobs: Vec<Arc<Job>>) {
        jobs.retain(|job| job.job_queue_id.is_none());
        if self.is_scanning() {
            self.freed_meanwhile.extend(jobs);
        } else {
            self.rewind(now, &jobs);
        }
    }

    /// The next pick begins before these jobs.
    pub(super) fn rewind(&mut self, now: Instant, jobs: &[Arc<Job>]) {
        for job in jobs.iter().filter(|job| self.tasks.contains(&job.task_identifier)) {
            let kind = if job.flags.is_some() { Kind::Flagged } else { Kind::Plain };
            let key = LevelKey { kind, priority: job.priority, task_identifier: job.task_identifier.clone() };
            // A search finds no level whose only job is claimed.
            let level = self.levels.entry(key).or_insert_with(|| Level::new(now));
            level.rewind(Position::before(job.order()));
        }
    }
}
