//! The answers of picks, and the ends of their batches.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::super::claim::Left;
use super::super::super::claim::held::Settlement;
use super::super::super::run::{Claim, Finished, Outcome};
use super::super::batches::{Batch, Known};
use super::super::due::Found;
use super::super::held::Promotion;
use super::super::pauses::Why;
use super::super::rules::Mode;
use super::super::scan::before;
use super::super::{Command, Planner};
use crate::event::WorkerEvent;
use crate::{Error, Job, Result};

impl Planner {
    pub(in super::super) fn on_picked(
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
        self.held.scan.begin_freeing(now, lane, without_room);
        let Known { untouched, changed } = self.held.batches.take_known(&mut jobs);
        let has_changed = !changed.is_empty();
        self.held.scan.begin_freeing(now, lane, changed);
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

    /// Compares what a pick brought with what was announced. Jobs that it did not bring may be in a queue, due later,
    /// or claimed by another worker.
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
    pub(in super::super) fn commit_batch(&mut self, now: Instant, lane: u64) {
        let unstarted = self.list.take_held(lane);
        let Some(batch) = self.held.batches.begin_settling(now, lane, &unstarted) else { return };
        let running = batch.rest(&unstarted);
        self.held.scan.begin_freeing(now, lane, unstarted);
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

    pub(in super::super) fn on_batch_ended(
        &mut self,
        now: Instant,
        lane: u64,
        picked: Result<usize>,
        mut left: Left,
    ) {
        self.lanes -= 1;
        self.held.on_back();
        // Jobs of another batch that were promoted here are claimed once more by that batch, which may have happened
        // already: only the time of its claim counts.
        if left.locked_at.len() > left.running.len() + left.finished.len() {
            let own = left.running.iter().chain(left.finished.iter().map(|one| &one.job));
            let own: HashSet<i64> = own.map(|job| job.id).collect();
            left.locked_at.retain(|id, _| own.contains(id));
        }
        let is_unreadable = left.is_unreadable;
        self.on_left(now, lane, left, Promotion::UnderWay);
        self.held.scan.on_delivered(lane);
        if let Some(order) = self.held.scan.end_freeing(now, lane) {
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
                // After the first failure, another worker may have failed the job.
                if is_unreadable && self.held.tries() > 1 && self.held.on_refused(now) {
                    let worker = &*self.rules.worker;
                    tracing::error!(worker, %error, "the text of a job can't be converted to UTF-8, and the job can't be failed; using only durable claims for a while");
                }
                self.on_claim_error(error, is_first, self.held.tries());
            }
        }
    }

    pub(in super::super) fn on_promoted(&mut self, now: Instant, lane: u64, left: Left) {
        self.lanes -= 1;
        self.held.end_promoting(lane);
        self.durable.note_taken_over(now, left.locked_at.keys().copied());
        self.on_left(now, lane, left, Promotion::Blocked);
    }

    /// A batch is committed, or some of its jobs are left to be claimed again: `promotion` is then the state of that.
    /// The batch is forgotten when no job is left.
    fn on_left(&mut self, now: Instant, lane: u64, left: Left, promotion: Promotion) {
        for finished in left.finished {
            let locked_at = left.locked_at.get(&finished.job.id).copied();
            self.release(now, finished, locked_at, left.is_unknown);
        }
        // The end of the worker may have given up some of these jobs meanwhile, because they did not end. They are
        // claimed durably now, so they are returned.
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
            self.held.begin_promoting(lane, promotion);
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
}
