//! The jobs that this worker has claimed durably and that have not ended, and those that are on their way back.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use super::super::claim::Times;
use super::super::run::Finished;
use super::scan::{NOTHING, before};
use crate::Job;
use crate::job::Order;

/// When locks of running jobs are renewed: after this number of poll intervals, or at the latest after this time. Only
/// locks that are an hour old are renewed. Graphile frees locks that are four hours old.
const RENEW_AFTER: u32 = 30;
const RENEW_AT_LEAST: Duration = Duration::from_secs(30 * 60);

/// A job that is claimed durably, and since when. None while its promotion from a held claim is not committed.
#[derive(Debug)]
struct Running {
    job: Arc<Job>,
    locked_at: Option<DateTime<Utc>>,
}

/// Jobs that are claimed durably, in a slot or in the list of those that wait for one.
#[derive(Debug)]
pub(super) struct ClaimedJobs {
    running: HashMap<i64, Running>,
    /// Jobs that ended while locks are being renewed, so that the times of their claims are not known. None: no locks
    /// are being renewed.
    renewing: Option<Vec<Finished>>,
    renew_at: Instant,
    renew_interval: Duration,
}

impl ClaimedJobs {
    pub(super) fn new(now: Instant, poll_interval: Duration) -> ClaimedJobs {
        let renew_interval = poll_interval.saturating_mul(RENEW_AFTER).min(RENEW_AT_LEAST);
        ClaimedJobs {
            running: HashMap::new(),
            renewing: None,
            renew_at: now + renew_interval,
            renew_interval,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = i64> + '_ {
        self.running.keys().copied()
    }

    /// The queues of these jobs.
    pub(super) fn queues(&self) -> impl Iterator<Item = i32> + '_ {
        self.running.values().filter_map(|running| running.job.job_queue_id)
    }

    pub(super) fn all(&self) -> Vec<Arc<Job>> {
        self.running.values().map(|running| running.job.clone()).collect()
    }

    /// Jobs that were claimed durably.
    pub(super) fn add_claimed(&mut self, jobs: &[Arc<Job>]) {
        let running = |job: &Arc<Job>| (job.id, Running { job: job.clone(), locked_at: job.locked_at });
        self.running.extend(jobs.iter().map(running));
    }

    /// Held jobs that still run while their batch is committed.
    pub(super) fn add_promoted(&mut self, jobs: &[Arc<Job>]) {
        let running = |job: &Arc<Job>| (job.id, Running { job: job.clone(), locked_at: None });
        self.running.extend(jobs.iter().map(running));
    }

    /// When the claim of a running job was made.
    pub(super) fn locked_at(&self, id: i64) -> Option<DateTime<Utc>> {
        self.running.get(&id)?.locked_at
    }

    /// Since when claims are durable, or renewed.
    pub(super) fn note_times(&mut self, times: Times) {
        for (id, locked_at) in times {
            if let Some(running) = self.running.get_mut(&id) {
                running.locked_at = Some(locked_at);
            }
        }
    }

    /// Whether this worker may release this run of the job. It may not if it has returned the job because the task did
    /// not end, or if another worker has recovered the job, even if this worker has claimed it again since.
    pub(super) fn has(&self, job: &Arc<Job>) -> bool {
        self.running.get(&job.id).is_some_and(|running| Arc::ptr_eq(&running.job, job))
    }

    /// Takes a job out, with the time of its claim. None: it is not known.
    pub(super) fn remove(&mut self, id: i64) -> Option<Option<DateTime<Utc>>> {
        self.running.remove(&id).map(|running| running.locked_at)
    }

    /// A job has ended. Returns it with the time of its claim, unless it waits until locks are renewed.
    pub(super) fn end(&mut self, finished: Finished) -> Option<(Finished, Option<DateTime<Utc>>)> {
        if let Some(waiting) = &mut self.renewing {
            waiting.push(finished);
            return None;
        }
        let locked_at = self.remove(finished.job.id)?;
        Some((finished, locked_at))
    }

    /// The jobs whose locks are to be renewed, if it is time for that.
    pub(super) fn begin_renewing(&mut self, now: Instant) -> Option<Vec<i64>> {
        if now < self.renew_at {
            return None;
        }
        self.renew_at = now + self.renew_interval;
        if self.running.is_empty() || self.renewing.is_some() {
            return None;
        }
        self.renewing = Some(Vec::new());
        Some(self.ids().collect())
    }

    /// Locks are renewed. Returns the jobs that ended meanwhile.
    pub(super) fn end_renewing(&mut self, times: Times) -> Vec<Finished> {
        self.note_times(times);
        self.renewing.take().unwrap_or_default()
    }

    pub(super) fn clear(&mut self) {
        self.running.clear();
    }

    pub(super) fn next_timer(&self) -> Instant {
        self.renew_at
    }
}

/// Jobs whose release makes other jobs due, or the jobs themselves: until it is written, less urgent jobs do not start.
#[derive(Debug, Default)]
pub(super) struct Returning {
    jobs: HashMap<i64, Wait>,
}

/// Nothing behind this point starts, until this time at the latest.
#[derive(Debug)]
struct Wait {
    order: Order,
    until: Instant,
    /// The job that becomes free. None if only its queue becomes free.
    job: Option<Arc<Job>>,
}

impl Returning {
    /// The job is returned. Nothing that is less urgent starts.
    pub(super) fn add(&mut self, job: &Arc<Job>, until: Instant) {
        let wait = Wait { order: before(job.order()), until, job: Some(job.clone()) };
        self.jobs.insert(job.id, wait);
    }

    /// Nothing at all starts: the next job of its queue may be the most urgent one.
    pub(super) fn add_exact(&mut self, id: i64, until: Instant) {
        self.jobs.insert(id, Wait { order: NOTHING, until, job: None });
    }

    /// The release is written. Returns up to where the list was closed for it, and the job that is free now.
    pub(super) fn remove(&mut self, id: i64) -> Option<(Order, Option<Arc<Job>>)> {
        self.jobs.remove(&id).map(|wait| (wait.order, wait.job))
    }

    pub(super) fn is_waiting(&self, now: Instant) -> bool {
        self.jobs.values().any(|wait| wait.until > now)
    }

    /// Up to where jobs may start.
    pub(super) fn open_to(&self, now: Instant, most: Order) -> Order {
        let waiting = self.jobs.values().filter(|wait| wait.until > now);
        waiting.map(|wait| wait.order).fold(most, Order::min)
    }

    pub(super) fn next_timer(&self, now: Instant) -> Option<Instant> {
        self.jobs.values().map(|wait| wait.until).filter(|time| *time > now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::run::{Claim, Outcome};
    use super::super::scan::EVERYTHING;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn job(id: i64) -> Arc<Job> {
        Arc::new(Job::for_tests((0, DateTime::UNIX_EPOCH, id), "t"))
    }

    fn finished(job: &Arc<Job>) -> Finished {
        let (outcome, duration, claim) = (Outcome::Completed, SECOND, Claim::Durable);
        Finished { job: job.clone(), outcome, duration, claim }
    }

    #[test]
    fn a_run_that_was_replaced_by_a_later_claim_is_not_known() {
        let mut jobs = ClaimedJobs::new(Instant::now(), SECOND);
        let (first, second) = (job(1), job(1));
        jobs.add_claimed(std::slice::from_ref(&first));
        assert!(jobs.has(&first));
        jobs.add_claimed(std::slice::from_ref(&second));
        assert!(!jobs.has(&first) && jobs.has(&second) && jobs.len() == 1);
    }

    #[test]
    fn jobs_that_end_while_locks_are_renewed_wait_for_the_new_times() {
        let start = Instant::now();
        let mut jobs = ClaimedJobs::new(start, SECOND);
        let one = job(1);
        jobs.add_claimed(std::slice::from_ref(&one));
        assert_eq!(jobs.begin_renewing(start), None);
        assert_eq!(jobs.begin_renewing(jobs.next_timer()), Some(vec![1]));
        assert!(jobs.end(finished(&one)).is_none());
        let time = DateTime::UNIX_EPOCH;
        let waiting = jobs.end_renewing(Times::from([(1, time)]));
        assert_eq!(waiting.len(), 1);
        let (_, locked_at) = jobs.end(finished(&one)).unwrap();
        assert_eq!(locked_at, Some(time));
        assert!(jobs.is_empty());
    }

    #[test]
    fn the_list_is_closed_for_jobs_on_their_way_back_but_not_for_ever() {
        let now = Instant::now();
        let mut returning = Returning::default();
        let one = job(7);
        let order = before(one.order());
        returning.add(&one, now + SECOND);
        assert_eq!(returning.open_to(now, EVERYTHING), order);
        assert_eq!(returning.open_to(now + SECOND, EVERYTHING), EVERYTHING);
        returning.add_exact(8, now + SECOND);
        assert_eq!(returning.open_to(now, EVERYTHING), NOTHING);
        assert!(matches!(returning.remove(8), Some((order, None)) if order == NOTHING));
        assert!(matches!(returning.remove(7), Some((_, Some(job))) if job.id == 7));
        assert!(!returning.is_waiting(now));
    }
}
