//! Outcomes that the planner has handed to the release actor, and that are not known to be written. They are only
//! counted here: the actor owns them.

use std::collections::HashMap;

use chrono::{DateTime, Utc};

use super::super::release::{Entry, Report};

/// While as many jobs wait for their release, or payloads of as many bytes, the worker claims nothing more.
const MOST_JOBS: usize = 1_000;
const MOST_BYTES: usize = 16 << 20;

/// Outcomes of one job. Usually there is one. There are more if the worker was declared dead, and has claimed the job
/// again.
#[derive(Debug, Default)]
struct Outcomes {
    count: usize,
    /// When the latest of them was claimed.
    locked_at: Option<DateTime<Utc>>,
    queue: Option<i32>,
}

#[derive(Debug, Default)]
pub(super) struct Unreleased {
    jobs: HashMap<i64, Outcomes>,
    bytes: usize,
    /// How many can't be written for a reason of their own.
    stuck: usize,
}

impl Unreleased {
    pub(super) fn add(&mut self, entry: &Entry) {
        let outcomes = self.jobs.entry(entry.finished.job.id).or_default();
        outcomes.count += 1;
        outcomes.locked_at = outcomes.locked_at.max(entry.locked_at);
        outcomes.queue = entry.finished.job.job_queue_id;
        self.bytes += entry.size();
    }

    pub(super) fn on_report(&mut self, report: &Report) {
        self.bytes = self.bytes.saturating_sub(report.bytes);
        self.stuck = report.stuck;
        for id in &report.ids {
            let Some(outcomes) = self.jobs.get_mut(id) else { continue };
            outcomes.count -= 1;
            if outcomes.count == 0 {
                self.jobs.remove(id);
            }
        }
    }

    /// Whether every outcome is written and reported.
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Whether nothing is left but outcomes that are stuck.
    pub(super) fn is_stuck(&self) -> bool {
        !self.jobs.is_empty() && self.stuck >= self.jobs.len()
    }

    /// Whether so much waits to be written that nothing more should be claimed.
    pub(super) fn is_full(&self) -> bool {
        self.jobs.len() >= MOST_JOBS || self.bytes >= MOST_BYTES
    }

    /// The queues of jobs that wait for their release.
    pub(super) fn queues(&self) -> impl Iterator<Item = i32> + '_ {
        self.jobs.values().filter_map(|outcomes| outcomes.queue)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = i64> + '_ {
        self.jobs.keys().copied()
    }

    /// When the job was claimed, if its outcome is not written yet.
    pub(super) fn locked_at(&self, id: i64) -> Option<DateTime<Utc>> {
        self.jobs.get(&id)?.locked_at
    }

    /// Forgets everything: the worker leaves its locks to the recovery.
    pub(super) fn clear(&mut self) {
        *self = Unreleased::default();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::super::super::run::{Claim, Finished, Outcome};
    use super::*;
    use crate::Job;

    fn entry(id: i64) -> Entry {
        let job = Arc::new(Job::for_tests((0, DateTime::UNIX_EPOCH, id), "t"));
        let (outcome, duration, claim) = (Outcome::Completed, Duration::ZERO, Claim::Durable);
        Entry::new(Instant::now(), Finished { job, outcome, duration, claim }, None, false)
    }

    #[test]
    fn nothing_is_claimed_while_too_many_wait() {
        let mut unreleased = Unreleased::default();
        for id in 0..1000 {
            assert!(!unreleased.is_full());
            unreleased.add(&entry(id));
        }
        assert!(unreleased.is_full() && !unreleased.is_stuck());
        unreleased.on_report(&Report { ids: vec![1], ..Report::default() });
        assert!(!unreleased.is_full());
    }

    #[test]
    fn a_job_is_known_until_its_last_outcome_is_written() {
        let mut unreleased = Unreleased::default();
        unreleased.add(&entry(1));
        unreleased.add(&entry(1));
        unreleased.on_report(&Report { ids: vec![1], ..Report::default() });
        assert_eq!(unreleased.ids().collect::<Vec<_>>(), [1]);
        unreleased.on_report(&Report { stuck: 1, ..Report::default() });
        assert!(unreleased.is_stuck());
        unreleased.on_report(&Report { ids: vec![1], ..Report::default() });
        assert!(unreleased.is_empty() && !unreleased.is_stuck());
    }
}
