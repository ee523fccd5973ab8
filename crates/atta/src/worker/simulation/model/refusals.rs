//! A trigger or a constraint that refuses changes of some jobs. A statement that would change such a job has no effect.

use std::sync::Arc;
use std::time::Duration;

use super::super::super::claim::Claimable;
use super::super::super::release::Entry;
use super::super::super::run::{Finished, Outcome};
use super::{Database, Holder, WorkerNumber};
use crate::Job;

/// Which changes are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum RefusedChange {
    /// A job is claimed durably.
    Claim,
    /// The outcome of a job is written.
    Release,
    Both,
    /// A job is claimed durably, and the trigger cancels that without an error. The job's queue is locked all the same.
    CancelClaim,
}

/// The jobs whose ids have this remainder, and what is refused of them.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Refusing {
    pub(in super::super) change: RefusedChange,
    pub(in super::super) divisor: i64,
    pub(in super::super) remainder: i64,
}

impl Refusing {
    pub(in super::super) fn concerns(&self, id: i64) -> bool {
        id % self.divisor == self.remainder
    }
}

impl Database {
    fn refuses(&self, id: i64, change: RefusedChange) -> bool {
        let is_refused = |refusing: Refusing| {
            refusing.concerns(id)
                && matches!(refusing.change, it if it == change || it == RefusedChange::Both)
        };
        self.refusing.is_some_and(is_refused)
    }

    /// Whether a trigger cancels the claim of this job.
    pub(super) fn cancels_claim_of(&self, id: i64) -> bool {
        self.refusing.is_some_and(|it| it.concerns(id) && it.change == RefusedChange::CancelClaim)
    }

    pub(super) fn refuses_claim_of(&self, id: i64) -> bool {
        self.refuses(id, RefusedChange::Claim)
    }

    /// Whether a claim would be refused.
    pub(in super::super) fn refuses_claim(
        &self,
        now: Duration,
        wanted: &Claimable,
        forbidden: &[String],
    ) -> bool {
        self.refusing.is_some()
            && self.choose_claimable(now, wanted, forbidden).0.iter().any(|id| self.refuses_claim_of(*id))
    }

    /// Whether the commit of a held batch would be refused.
    pub(in super::super) fn refuses_commit(&self, finished: &[Finished], running: &[i64]) -> bool {
        let is_written = |one: &&Finished| matches!(one.outcome, Outcome::Completed | Outcome::Failed(_));
        let mut written = finished.iter().filter(is_written);
        written.any(|one| self.refuses(one.job.id, RefusedChange::Release))
            || running.iter().any(|id| self.refuses_claim_of(*id))
    }

    /// Undoes a batch whose commit was refused.
    pub(in super::super) fn roll_back(&mut self, now: Duration, holder: Holder) {
        self.end_transaction(now, holder, Some(super::Cause::Connection));
    }

    /// Whether a release would be refused. Jobs whose claim was lost are not changed.
    pub(in super::super) fn refuses_release(&self, worker: WorkerNumber, entries: &[Entry]) -> bool {
        let is_changed = |entry: &&Entry| {
            let row = self.rows.get(&entry.finished.job.id).filter(|row| !row.is_used);
            let locked = row.and_then(|row| row.locked);
            locked.is_some_and(|(owner, at)| owner == worker && Some(at) == entry.locked_at)
        };
        let mut changed = entries.iter().filter(is_changed);
        changed.any(|entry| self.refuses(entry.finished.job.id, RefusedChange::Release))
    }

    /// Whether a promotion after a lost connection would be refused.
    pub(in super::super) fn refuses_promotion(&self, worker: WorkerNumber, jobs: &[Arc<Job>]) -> bool {
        let mut changed = jobs.iter().filter(|job| self.is_promotable(worker, job));
        changed.any(|job| self.refuses_claim_of(job.id))
    }
}
