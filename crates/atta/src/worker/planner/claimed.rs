//! The answers of claims: what a durable claim brought, what a pick brought, and how a batch ended.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::claim::held::Settlement;
use super::super::claim::{Claimable, Claimed, Left, Refusal};
use super::super::run::{Claim, Failure, Finished, Outcome};
use super::batches::{Batch, Known};
use super::due::Found;
use super::pauses::Why;
use super::refused::News;
use super::rules::Mode;
use super::scan::before;
use super::{Command, Planner};
use crate::event::WorkerEvent;
use crate::{Error, Job, Result, Retry};

/// In a run until no job is left, nobody waits for a database that is gone for longer than this number of tries.
const ONCE_TRIES: u32 = 8;

impl Planner {
    pub(super) fn on_durable_claim(&mut self, now: Instant, wanted: &Claimable, claimed: Result<Claimed>) {
        self.lanes -= 1;
        match claimed {
            Ok(claimed) => {
                let taken_over = claimed.jobs.iter().filter(|job| self.durable.is_taken_over(wanted, job.id));
                let taken_over = taken_over.map(|job| job.id).collect();
                self.durable.on_back(wanted);
                self.on_claimed(now, wanted, claimed, taken_over);
            }
            Err(error) => {
                self.durable.on_back(wanted);
                let is_first = !self.durable.is_failing();
                self.durable.on_error(now);
                // A refusal took nothing. If the connection ended, the claim may have been committed before that.
                if error.may_have_happened() {
                    self.lost.on_lost_reply(now, error.db_code().is_some());
                }
                self.on_claim_error(error, is_first, self.durable.tries());
            }
        }
    }

    fn on_claimed(
        &mut self,
        now: Instant,
        wanted: &Claimable,
        mut claimed: Claimed,
        taken_over: HashSet<i64>,
    ) {
        if self.durable.on_claimed(now, wanted, &claimed, &self.rules, self.durable_lanes()) {
            self.due.forget();
        }
        self.note_refused(now, wanted, std::mem::take(&mut claimed.refused), claimed.is_cut_short);
        if claimed.count() == 0 {
            if self.holds() && self.rules.mode == Mode::UntilShutdown {
                self.durable.rest(now, claimed.took);
            }
            self.commands.push(Command::Report(WorkerEvent::ClaimEmpty));
            return;
        }
        self.due.on_found();
        self.has_found = true;
        if self.held.is_outdated(wanted.sent_at) {
            // Jobs have come in, and perhaps nobody announced them: those that can be held are asked for too.
            self.held.scan.forget();
        }
        let without_room: Vec<Arc<Job>> = claimed.without_room.into_iter().map(Arc::new).collect();
        self.return_not_started(now, without_room, false);
        self.fail_unreadable(now, claimed.unreadable);
        let jobs = self.return_known(now, claimed.jobs.into_iter().map(Arc::new).collect(), taken_over);
        self.jobs.add_claimed(&jobs);
        self.list.push_durable(jobs, claimed.asked_at);
        if self.shutdown.has_begun() {
            self.return_unstarted(now);
        }
    }

    /// Leaves out jobs whose claim the database refused.
    fn note_refused(&mut self, now: Instant, wanted: &Claimable, refused: Vec<Refusal>, is_cut_short: bool) {
        for refusal in refused {
            let (job, task, error) = (refusal.id, refusal.task_identifier.clone(), refusal.error.to_string());
            match self.refused.on_refused(now, refusal) {
                News::None => {}
                News::Job => tracing::warn!(
                    worker = &*self.rules.worker,
                    job,
                    task = &*task,
                    error,
                    "the database refuses the claim of a job; other jobs continue, and this one is tried again later"
                ),
                News::LastJob => tracing::warn!(
                    worker = &*self.rules.worker,
                    job,
                    task = &*task,
                    error,
                    "the database refuses the claims of many jobs; more of them are not logged in this minute"
                ),
                News::Task(task) => tracing::warn!(
                    worker = &*self.rules.worker,
                    task = &*task,
                    error,
                    "the database refuses the claims of many jobs of a task; its jobs are tried again later"
                ),
            }
            self.commands.push(Command::Report(WorkerEvent::ClaimFailed { error: error.into() }));
        }
        if !is_cut_short {
            self.refused.on_claimed(wanted.sent_at, &wanted.left_out);
        }
        if self.refused.has_due(now) {
            self.durable.hint();
        }
    }

    fn fail_unreadable(&mut self, now: Instant, unreadable: Vec<(Job, Error)>) {
        for (job, error) in unreadable {
            let error = format!("the text of this job can't be converted to UTF-8: {error}").into();
            let outcome = Outcome::Failed(Box::new(Failure { error, retry: Retry::Never, payload: None }));
            let (locked_at, job, claim) = (job.locked_at, Arc::new(job), Claim::Durable);
            self.release(now, Finished { job, outcome, duration: Duration::ZERO, claim }, locked_at, false);
        }
    }

    /// Returns jobs that were claimed and not begun. Until they are free again, nothing that is less urgent starts.
    pub(super) fn return_not_started(&mut self, now: Instant, jobs: Vec<Arc<Job>>, is_unknown: bool) {
        for job in jobs {
            self.returning.add(&job, now + self.rules.patience);
            let (outcome, duration, claim) = (Outcome::NotStarted, Duration::ZERO, Claim::Durable);
            let locked_at = job.locked_at;
            self.release(now, Finished { job, outcome, duration, claim }, locked_at, is_unknown);
        }
    }

    /// A held job whose connection was lost can be claimed by anybody. If this worker claims it, the job has run already, or
    /// runs, so the claim is returned. For a while no other claim is sent, so that the lane that had the job can claim it
    /// again. It may have done so already, and then this claim is the older one; the job may even be completed
    /// (`taken_over`).
    fn return_known(&mut self, now: Instant, jobs: Vec<Arc<Job>>, taken_over: HashSet<i64>) -> Vec<Arc<Job>> {
        let mut known = taken_over;
        known.extend(self.held.batches.known(&jobs).into_keys());
        let is_newer = |job: &&Arc<Job>| {
            let other = self.jobs.locked_at(job.id).max(self.unreleased.locked_at(job.id));
            other.is_some_and(|newer| Some(newer) >= job.locked_at)
        };
        known.extend(jobs.iter().filter(is_newer).map(|job| job.id));
        if known.is_empty() {
            return jobs;
        }
        let (back, jobs): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| known.contains(&job.id));
        // The lane that had it may have taken this claim over.
        self.return_not_started(now, back, true);
        self.durable.pauses.begin(Why::ClaimedTwice, now + self.rules.hold_budget);
        jobs
    }

    fn on_claim_error(&mut self, error: Error, is_first: bool, tries: u32) {
        self.commands.push(Command::Report(WorkerEvent::ClaimFailed { error: error.to_string().into() }));
        if is_first {
            tracing::warn!(%error, "could not claim jobs; retrying");
        }
        if self.rules.mode == Mode::UntilEmpty && tries >= ONCE_TRIES {
            self.error = Some(error);
        }
    }

    pub(super) fn on_picked(
        &mut self,
        now: Instant,
        lane: u64,
        mut jobs: Vec<Arc<Job>>,
        without_room: Vec<Arc<Job>>,
    ) {
        self.compare_with_announced(&jobs);
        self.held.scan.on_delivered(lane);
        if self.shutdown.has_begun() {
            // Too late to begin them: the end of the transaction frees them.
            self.commands.push(Command::CommitBatch { lane, settlement: Settlement::default() });
            return;
        }
        self.due.on_found();
        self.has_found = true;
        self.held.scan.begin_letting_go(now, lane, without_room);
        let Known { untouched, changed } = self.held.batches.take_known(&mut jobs);
        let has_changed = !changed.is_empty();
        self.held.scan.begin_letting_go(now, lane, changed);
        self.list.push_held(&jobs, lane, now);
        let (is_empty, finished) = (jobs.is_empty(), Vec::with_capacity(jobs.len()));
        let has_known = !untouched.is_empty() || has_changed;
        self.held.batches.open(Batch { lane, jobs, known: untouched, finished, began: now });
        if is_empty {
            self.commit_batch(now, lane);
        }
        if is_empty && has_known {
            // Until the other batch has claimed its jobs again, the next pick would bring the same.
            self.held.pause(Why::ClaimedTwice, now + self.rules.hold_budget);
        }
    }

    /// Compares what a pick brought with what was announced. Jobs that it did not bring may be in a queue, due later, or
    /// claimed by another worker.
    fn compare_with_announced(&mut self, jobs: &[Arc<Job>]) {
        let ids = jobs.iter().map(|job| job.id);
        let found = self.announced.on_picked(ids, self.held.scan.is_full());
        let found_all = match found {
            // The rest may be behind what was picked: the timer decides.
            Found::Full => return,
            Found::All => true,
            Found::NotAll { .. } => false,
        };
        if !found_all {
            self.due.forget();
        }
        self.durable.settle_announced(found_all);
        self.held.scan.settle_announced(found_all);
        if found == (Found::NotAll { is_missing: true }) {
            self.durable.hint();
        }
    }

    /// Ends a batch: outcomes are written, jobs that run become durable claims, and the rest is free.
    pub(super) fn commit_batch(&mut self, now: Instant, lane: u64) {
        let unstarted = self.list.take_held(lane);
        let Some(batch) = self.held.batches.begin_settling(now, lane, &unstarted) else { return };
        let running = batch.rest(&unstarted);
        self.held.scan.begin_letting_go(now, lane, unstarted);
        let budget = self.rules.hold_budget.as_secs_f64().max(0.000_001);
        let part = now.saturating_duration_since(batch.began).as_secs_f64() / budget;
        self.held.size.learn(batch.jobs.len(), batch.finished.len(), part);
        if batch.finished.iter().any(|one| !matches!(one.outcome, Outcome::Completed)) {
            self.due.forget();
        }
        self.jobs.add_promoted(&running);
        let mut finished = batch.finished;
        let takes_any_text = self.surroundings.stores_any_text;
        let apart = finished.extract_if(.., |one| one.outcome.may_be_refused(takes_any_text)).collect();
        let settlement = Settlement { finished, apart, running, known: batch.known };
        self.commands.push(Command::CommitBatch { lane, settlement });
    }

    pub(super) fn on_batch_ended(&mut self, now: Instant, lane: u64, picked: Result<usize>, mut left: Left) {
        self.lanes -= 1;
        self.held.on_back();
        // Jobs of another batch that were promoted here are claimed once more by that batch, which may have happened already:
        // only the time of its claim counts.
        if left.locked_at.len() > left.running.len() + left.finished.len() {
            let own = left.running.iter().chain(left.finished.iter().map(|one| &one.job));
            let own: HashSet<i64> = own.map(|job| job.id).collect();
            left.locked_at.retain(|id, _| own.contains(id));
        }
        self.on_left(now, lane, left, false);
        self.held.scan.on_delivered(lane);
        if let Some(order) = self.held.scan.end_letting_go(now, lane) {
            // The jobs that are free now are claimed durably from now on.
            self.durable.forget(before(order));
            self.durable.ask();
        }
        match picked {
            Ok(count) => {
                self.held.on_success();
                if count == 0 {
                    self.compare_with_announced(&[]);
                    self.commands.push(Command::Report(WorkerEvent::ClaimEmpty));
                }
            }
            Err(error) => {
                let is_first = !self.held.is_failing();
                self.held.on_error(now);
                self.on_claim_error(error, is_first, self.held.tries());
            }
        }
    }

    pub(super) fn on_promoted(&mut self, now: Instant, lane: u64, left: Left) {
        self.lanes -= 1;
        self.held.end_promoting(lane);
        self.durable.note_taken_over(now, left.locked_at.keys().copied());
        self.on_left(now, lane, left, true);
    }

    /// A batch is committed, or some of it is left to be claimed again. Until nothing is left, the batch is known. If
    /// `was_promoted`, the database did not let the rest be claimed.
    fn on_left(&mut self, now: Instant, lane: u64, left: Left, was_promoted: bool) {
        for finished in left.finished {
            let locked_at = left.locked_at.get(&finished.job.id).copied();
            self.release(now, finished, locked_at, left.is_unknown);
        }
        // Meanwhile the end of the worker may have given up jobs that did not end. They are claimed now, so they are returned.
        for job in left.running.into_iter().filter(|job| !self.jobs.has(job)).collect::<Vec<_>>() {
            if let Some(locked_at) = left.locked_at.get(&job.id).copied() {
                let (outcome, duration, claim) = (Outcome::Interrupted, Duration::ZERO, Claim::Durable);
                self.release(now, Finished { job, outcome, duration, claim }, Some(locked_at), false);
            }
        }
        if let Some(mut unsettled) = left.unsettled {
            let ended = self.held.batches.settle_some(lane, |id| left.locked_at.contains_key(&id));
            self.jobs.note_times(left.locked_at);
            ended.into_iter().for_each(|finished| self.on_durable_finished(now, finished));
            self.held.begin_promoting(lane, was_promoted);
            self.lanes += 1;
            if let Some(refusal) = unsettled.refusal.take() {
                self.on_refused(now, refusal);
            }
            self.commands.push(Command::Promote { lane, unsettled });
            return;
        }
        self.jobs.note_times(left.locked_at);
        for finished in self.held.batches.end_settling(lane) {
            self.on_durable_finished(now, finished);
        }
    }

    /// The database refused to commit a batch, or to claim its jobs again.
    fn on_refused(&mut self, now: Instant, error: Error) {
        if self.held.on_refused(now) {
            let worker = &*self.rules.worker;
            tracing::error!(worker, %error, "the database refused to change held jobs; using only durable claims for a while");
        }
        let is_all = self.only_waits_for_promotions() && self.unreleased.is_empty() && !self.has_more();
        if self.rules.mode == Mode::UntilEmpty && is_all && !self.shutdown.has_begun() {
            self.fail(error);
        }
    }

    pub(super) fn on_searched(&mut self, now: Instant, found: Result<(usize, usize)>) {
        self.lanes -= 1;
        match found {
            Ok((found, blocked)) => {
                self.lost.on_searched(now, found, blocked, self.shutdown.has_begun());
                if found > 0 {
                    self.wake_up(now);
                }
            }
            Err(error) => {
                let is_first = self.lost.tries() == 0;
                self.lost.on_error(now);
                self.on_claim_error(error, is_first, self.lost.tries());
            }
        }
    }
}
