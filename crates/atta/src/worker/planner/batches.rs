//! The batches that lanes hold: which of their jobs have ended, and which of our lanes has a job.
//!
//! A batch is open while its jobs run, then settling while its lane writes what became of them, then gone. A job that
//! ends while its batch is settling waits: only when the settlement is committed is it durably ours, and can be released.

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
    /// Jobs of another batch, which has lost them. They run there.
    pub(super) known: Vec<i64>,
    pub(super) finished: Vec<Finished>,
    pub(super) began: Instant,
}

impl Batch {
    /// Those that are neither among the finished nor among these.
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
    /// What ended meanwhile.
    finished: Vec<Finished>,
}

/// Where a job that ended belongs.
pub(super) enum Kept {
    /// To its batch, which goes on, or whose settlement is being written.
    InBatch,
    /// To its batch, and it was the last.
    AsLast,
    /// To none: its batch is gone.
    Nowhere(Finished),
}

/// All batches of a worker. There is one a holding lane at the most, so they are found by looking.
#[derive(Debug, Default)]
pub(super) struct Batches {
    open: Vec<Batch>,
    settling: HashMap<u64, Settling>,
}

impl Batches {
    pub(super) fn open(&mut self, batch: Batch) {
        self.open.push(batch);
    }

    /// Takes an open batch out, to be settled. Those that were not begun, or were interrupted, are anybody's as soon as it is
    /// settled.
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

    /// Forgets a batch that is settled, and returns what ended meanwhile.
    pub(super) fn end_settling(&mut self, lane: u64) -> Vec<Finished> {
        self.settling.remove(&lane).map(|settling| settling.finished).unwrap_or_default()
    }

    /// How many jobs have ended while their batch is being settled, and so have no slot.
    pub(super) fn ended_while_settling(&self) -> usize {
        self.settling.values().map(|settling| settling.finished.len()).sum()
    }

    /// The jobs of batches that are being settled, or claimed anew.
    pub(super) fn settling_ids(&self) -> impl Iterator<Item = i64> + '_ {
        self.settling.values().flat_map(|settling| &settling.jobs).map(|job| job.id)
    }

    /// When the settlements began that are being written.
    pub(super) fn settling_since(&self) -> impl Iterator<Item = Instant> + '_ {
        self.settling.values().map(|settling| settling.since)
    }

    pub(super) fn keep(&mut self, lane: u64, finished: Finished) -> Kept {
        if let Some(batch) = self.open.iter_mut().find(|batch| batch.lane == lane) {
            batch.finished.push(finished);
            return if batch.finished.len() == batch.jobs.len() { Kept::AsLast } else { Kept::InBatch };
        }
        match self.settling.get_mut(&lane) {
            Some(settling) => {
                settling.finished.push(finished);
                Kept::InBatch
            }
            None => Kept::Nowhere(finished),
        }
    }

    /// The lanes of open batches.
    pub(super) fn lanes(&self) -> Vec<u64> {
        self.open.iter().map(|batch| batch.lane).collect()
    }

    /// The lanes of open batches that began so long ago.
    pub(super) fn older_than(&self, age: Duration, now: Instant) -> Vec<u64> {
        let is_old = |batch: &&Batch| batch.began + age <= now;
        self.open.iter().filter(is_old).map(|batch| batch.lane).collect()
    }

    pub(super) fn oldest(&self) -> Option<Instant> {
        self.open.iter().map(|batch| batch.began).min()
    }

    /// Those of these jobs that a lane of ours has already. Its connection was lost, or its end has not been noticed yet:
    /// the jobs are free in the database while they run here, or have just run.
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

    /// Takes out what another lane of ours has.
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
    /// Nobody has had them since.
    pub(super) untouched: Vec<i64>,
    /// They were given other work by their key, or others have run them. The other batch will notice, and they are free.
    pub(super) changed: Vec<Arc<Job>>,
}

/// Whether they may have a job in common: quickly told, as ids mostly come in order.
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
