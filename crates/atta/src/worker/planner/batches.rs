//! The batches that lanes hold: which of their jobs have ended, and which lane of this worker has a job.
//!
//! A batch is open while its jobs run, then settling while its lane writes their outcomes or claims them again, then
//! gone. A job that ends while its batch is settling waits: it can be released only when it is claimed durably.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::run::{Finished, Outcome};
use crate::Job;

/// Jobs that a lane holds while they run.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) lane: u64,
    pub(super) jobs: Vec<Arc<Job>>,
    /// Jobs of another batch whose connection was lost. They still run as jobs of that batch.
    pub(super) known: Vec<i64>,
    pub(super) finished: Vec<Finished>,
    pub(super) began: Instant,
}

impl Batch {
    /// The jobs that have started and not ended. `unstarted` are those that have not started.
    pub(super) fn rest(&self, unstarted: &[Arc<Job>]) -> Vec<Arc<Job>> {
        if self.finished.len() + unstarted.len() == self.jobs.len() {
            return Vec::new();
        }
        let known = self.finished.iter().map(|one| one.job.id).chain(unstarted.iter().map(|job| job.id));
        let known: HashSet<i64> = known.collect();
        self.jobs.iter().filter(|job| !known.contains(&job.id)).cloned().collect()
    }
}

#[derive(Debug)]
struct Settling {
    since: Instant,
    jobs: Vec<Arc<Job>>,
    /// Jobs that ended while the batch was settling.
    finished: Vec<Finished>,
}

/// Which batch keeps the outcome of a job that has ended.
pub(super) enum Kept {
    /// Its own batch, which is open or settling.
    InBatch,
    /// Its own batch. All other jobs of the batch had ended before.
    AsLast,
    /// None: the job is claimed durably by now.
    Durable(Finished),
}

/// All batches of a worker: at most one per lane, so a list is searched quickly.
#[derive(Debug, Default)]
pub(super) struct Batches {
    open: Vec<Batch>,
    settling: HashMap<u64, Settling>,
}

impl Batches {
    pub(super) fn open(&mut self, batch: Batch) {
        self.open.push(batch);
    }

    /// Takes an open batch out, to be settled. Jobs that did not start, or were interrupted, are free for every worker
    /// as soon as it is settled.
    pub(super) fn begin_settling(
        &mut self,
        now: Instant,
        lane: u64,
        unstarted: &[Arc<Job>],
    ) -> Option<Batch> {
        let index = self.open.iter().position(|batch| batch.lane == lane)?;
        let batch = self.open.swap_remove(index);
        let mut jobs = batch.jobs.clone();
        let is_returned = |one: &&Finished| matches!(one.outcome, Outcome::Interrupted | Outcome::NotStarted);
        let returned = batch.finished.iter().filter(is_returned).map(|one| one.job.id);
        let returned: HashSet<i64> = returned.chain(unstarted.iter().map(|job| job.id)).collect();
        if !returned.is_empty() {
            jobs.retain(|job| !returned.contains(&job.id));
        }
        self.settling.insert(lane, Settling { since: now, jobs, finished: Vec::new() });
        Some(batch)
    }

    /// Forgets a batch that is settled, and returns the jobs that ended while it was settling.
    pub(super) fn end_settling(&mut self, lane: u64) -> Vec<Finished> {
        self.settling.remove(&lane).map(|settling| settling.finished).unwrap_or_default()
    }

    /// Some jobs of a settling batch are claimed durably now. Returns those of them that have ended. The others no
    /// longer belong to the batch.
    pub(super) fn settle_some(&mut self, lane: u64, is_ours: impl Fn(i64) -> bool) -> Vec<Finished> {
        let Some(settling) = self.settling.get_mut(&lane) else { return Vec::new() };
        settling.jobs.retain(|job| !is_ours(job.id));
        settling.finished.extract_if(.., |one| is_ours(one.job.id)).collect()
    }

    /// How many jobs have ended while their batch is being settled, and so have no slot.
    pub(super) fn ended_while_settling(&self) -> usize {
        self.settling.values().map(|settling| settling.finished.len()).sum()
    }

    /// The jobs of batches that are settling.
    pub(super) fn settling_ids(&self) -> impl Iterator<Item = i64> + '_ {
        self.settling.values().flat_map(|settling| &settling.jobs).map(|job| job.id)
    }

    /// When the batches that are settling began to settle.
    pub(super) fn settling_since(&self) -> impl Iterator<Item = Instant> + '_ {
        self.settling.values().map(|settling| settling.since)
    }

    pub(super) fn keep(&mut self, lane: u64, finished: Finished) -> Kept {
        if let Some(batch) = self.open.iter_mut().find(|batch| batch.lane == lane) {
            batch.finished.push(finished);
            return if batch.finished.len() == batch.jobs.len() { Kept::AsLast } else { Kept::InBatch };
        }
        match self.settling.get_mut(&lane) {
            Some(settling) if settling.jobs.iter().any(|job| job.id == finished.job.id) => {
                settling.finished.push(finished);
                Kept::InBatch
            }
            _ => Kept::Durable(finished),
        }
    }

    /// The lanes of open batches.
    pub(super) fn lanes(&self) -> Vec<u64> {
        self.open.iter().map(|batch| batch.lane).collect()
    }

    /// The lanes of open batches that are at least this old.
    pub(super) fn older_than(&self, age: Duration, now: Instant) -> Vec<u64> {
        let is_old = |batch: &&Batch| batch.began + age <= now;
        self.open.iter().filter(is_old).map(|batch| batch.lane).collect()
    }

    pub(super) fn oldest(&self) -> Option<Instant> {
        self.open.iter().map(|batch| batch.began).min()
    }

    /// Those of these jobs that a batch of this worker has. Its connection was lost, or its end has not been noticed
    /// yet: the jobs are free in the database while they run here, or have just run.
    pub(super) fn known(&self, jobs: &[Arc<Job>]) -> HashMap<i64, Arc<Job>> {
        let settling = self.settling.values().map(|settling| &settling.jobs);
        let mut known = HashMap::new();
        for others in self.open.iter().map(|batch| &batch.jobs).chain(settling) {
            if overlap(jobs, others) {
                known.extend(others.iter().map(|job| (job.id, job)));
            }
        }
        if known.is_empty() {
            return HashMap::new();
        }
        let id_and_job = |job: &Arc<Job>| Some((job.id, (*known.get(&job.id)?).clone()));
        jobs.iter().filter_map(id_and_job).collect()
    }

    /// Takes out the jobs that another batch of this worker has.
    pub(super) fn take_known(&self, jobs: &mut Vec<Arc<Job>>) -> Known {
        let known = self.known(jobs);
        if known.is_empty() {
            return Known::default();
        }
        let (mut untouched, mut changed) = (Vec::new(), Vec::new());
        for job in jobs.extract_if(.., |job| known.contains_key(&job.id)) {
            let is_untouched = known
                .get(&job.id)
                .is_some_and(|other| (other.attempts, other.revision) == (job.attempts, job.revision));
            if is_untouched {
                untouched.push(job.id);
            } else {
                changed.push(job);
            }
        }
        Known { untouched, changed }
    }
}

/// Picked jobs that another batch of this worker has, and has lost.
#[derive(Default)]
pub(super) struct Known {
    /// They were neither claimed nor changed since.
    pub(super) untouched: Vec<i64>,
    /// An add by key has changed them, or another worker has run them, so the other batch can't claim them again.
    pub(super) changed: Vec<Arc<Job>>,
}

/// Whether these lists may have a job in common. Compares only the ranges of their ids, which rarely overlap.
fn overlap(some: &[Arc<Job>], others: &[Arc<Job>]) -> bool {
    let range = |jobs: &[Arc<Job>]| {
        let ids = jobs.iter().map(|job| job.id);
        ids.clone().min().zip(ids.max())
    };
    match (range(some), range(others)) {
        (Some((first, last)), Some((other_first, other_last))) => first <= other_last && other_first <= last,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::super::super::run::Claim;
    use super::*;

    fn job(id: i64) -> Arc<Job> {
        Arc::new(Job::for_tests((0, DateTime::UNIX_EPOCH, id), "t"))
    }

    fn ended(job: &Arc<Job>, outcome: Outcome) -> Finished {
        Finished { job: job.clone(), outcome, duration: Duration::ZERO, claim: Claim::Held(1) }
    }

    fn completed(job: &Arc<Job>) -> Finished {
        ended(job, Outcome::Completed)
    }

    /// Lane 1 has an open batch of these jobs.
    fn open(jobs: &[Arc<Job>], now: Instant) -> Batches {
        let mut batches = Batches::default();
        let (jobs, known, finished) = (jobs.to_vec(), Vec::new(), Vec::new());
        batches.open(Batch { lane: 1, jobs, known, finished, began: now });
        batches
    }

    fn ids(jobs: &[Arc<Job>]) -> Vec<i64> {
        jobs.iter().map(|job| job.id).collect()
    }

    fn ended_ids(finished: &[Finished]) -> Vec<i64> {
        finished.iter().map(|one| one.job.id).collect()
    }

    #[test]
    fn a_job_that_ends_belongs_to_its_batch_while_that_is_open_or_settling() {
        let (now, jobs) = (Instant::now(), [job(1), job(2), job(3)]);
        let mut batches = open(&jobs, now);
        assert!(matches!(batches.keep(1, completed(&jobs[0])), Kept::InBatch));
        assert!(matches!(batches.keep(2, completed(&jobs[0])), Kept::Durable(_)), "another lane");
        let batch = batches.begin_settling(now, 1, &jobs[2..]).unwrap();
        assert_eq!((ended_ids(&batch.finished), ids(&batch.rest(&jobs[2..]))), (vec![1], vec![2]));
        assert!(batches.begin_settling(now, 1, &[]).is_none(), "it is no longer open");
        assert!(matches!(batches.keep(1, completed(&jobs[1])), Kept::InBatch));
        assert_eq!(batches.ended_while_settling(), 1);
        assert_eq!(ended_ids(&batches.end_settling(1)), [2]);
        assert!(matches!(batches.keep(1, completed(&jobs[1])), Kept::Durable(_)), "the batch is gone");
    }

    #[test]
    fn the_last_job_to_end_is_recognised() {
        let jobs = [job(1), job(2)];
        let mut batches = open(&jobs, Instant::now());
        assert!(matches!(batches.keep(1, completed(&jobs[1])), Kept::InBatch));
        assert!(matches!(batches.keep(1, completed(&jobs[0])), Kept::AsLast));
    }

    #[test]
    fn jobs_that_are_claimed_again_leave_their_batch_one_by_one() {
        let (now, jobs) = (Instant::now(), [job(1), job(2), job(3)]);
        let mut batches = open(&jobs, now);
        batches.begin_settling(now, 1, &[]);
        assert!(matches!(batches.keep(1, completed(&jobs[0])), Kept::InBatch));
        assert_eq!(ended_ids(&batches.settle_some(1, |id| id < 3)), [1], "job 2 still runs");
        assert!(matches!(batches.keep(1, completed(&jobs[1])), Kept::Durable(_)), "it can be released");
        assert!(matches!(batches.keep(1, completed(&jobs[2])), Kept::InBatch), "it is not claimed yet");
        assert_eq!(batches.settling_ids().collect::<Vec<_>>(), [3]);
        assert_eq!(ended_ids(&batches.end_settling(1)), [3]);
    }

    #[test]
    fn a_batch_is_old_after_its_budget() {
        let now = Instant::now();
        let batches = open(&[job(1)], now);
        let budget = Duration::from_millis(50);
        assert_eq!((batches.lanes(), batches.oldest()), (vec![1], Some(now)));
        assert!(batches.older_than(budget, now + budget / 2).is_empty());
        assert_eq!(batches.older_than(budget, now + budget), [1]);
    }

    #[test]
    fn jobs_of_another_batch_are_taken_out_of_a_pick() {
        let (now, jobs) = (Instant::now(), [job(1), job(2), job(3), job(9)]);
        let mut batches = open(&jobs[..3], now);
        // The end of the transaction frees job 3: another lane may pick it.
        batches.begin_settling(now, 1, &jobs[2..3]);
        let changed = Arc::new(Job { revision: 7, ..Job::clone(&jobs[1]) });
        let mut picked = vec![jobs[0].clone(), changed, jobs[2].clone(), jobs[3].clone()];
        let known = batches.take_known(&mut picked);
        assert_eq!((ids(&picked), known.untouched, ids(&known.changed)), (vec![3, 9], vec![1], vec![2]));
    }

    #[test]
    fn interrupted_jobs_are_free_as_soon_as_their_batch_is_settled() {
        let (now, jobs) = (Instant::now(), [job(1), job(2)]);
        let mut batches = open(&jobs, now);
        batches.keep(1, ended(&jobs[0], Outcome::Interrupted));
        batches.begin_settling(now, 1, &[]);
        assert_eq!(batches.settling_ids().collect::<Vec<_>>(), [2]);
    }
}
