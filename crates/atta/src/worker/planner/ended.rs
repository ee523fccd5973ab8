//! Jobs that have ended, outcomes that are written, and the end of the worker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use super::super::claim::Times;
use super::super::release::{Entry, Report};
use super::super::run::{Claim, Finished, Outcome};
use super::batches::Kept;
use super::pauses::Why;
use super::scan::NOTHING;
use super::shutdown::Step;
use super::{Command, LONGEST_WAIT, Mode, Planner};
use crate::{Error, Job, Result};

impl Planner {
    /// Hands an outcome over to be written. With `is_unknown` it may have been written already, over a connection that
    /// was lost.
    pub(super) fn release(
        &mut self,
        now: Instant,
        finished: Finished,
        locked_at: Option<DateTime<Utc>>,
        is_unknown: bool,
    ) {
        let entry = Entry::new(now, finished, locked_at, is_unknown);
        self.unreleased.add(&entry);
        self.releasing.push(entry);
    }

    pub(super) fn on_finished(&mut self, now: Instant, finished: Vec<Finished>) {
        for one in finished {
            if !matches!(one.outcome, Outcome::Interrupted | Outcome::NotStarted) {
                self.tasks.learn(one.job.task_identifier(), one.duration);
            }
            match one.claim {
                Claim::Held(lane) => match self.held.batches.keep(lane, one) {
                    Kept::InBatch => {}
                    Kept::AsLast => self.commit_batch(now, lane),
                    Kept::Durable(finished) => self.on_durable_finished(now, finished),
                },
                Claim::Durable => self.on_durable_finished(now, one),
            }
        }
    }

    /// A job that is claimed durably by now has ended.
    pub(super) fn on_durable_finished(&mut self, now: Instant, finished: Finished) {
        let id = finished.job.id;
        let is_exact = self.rules.slots == 1 && finished.job.job_queue_id.is_some();
        if is_exact {
            // The slot is free in any case, also if the claim of this job was lost.
            self.list.open_to(NOTHING);
            self.list.resume();
        }
        if !self.jobs.has(&finished.job) {
            return;
        }
        // A release that the options delay is not waited for.
        let is_delayed = match finished.outcome {
            Outcome::Completed => !self.rules.complete_job_batch_delay.is_zero(),
            Outcome::Failed(_) => !self.rules.fail_job_batch_delay.is_zero(),
            Outcome::Interrupted | Outcome::NotStarted => false,
        };
        if is_exact && !is_delayed {
            self.returning.add_exact(id, now + self.rules.patience);
        }
        if let Some((finished, locked_at)) = self.jobs.end(finished) {
            self.release(now, finished, locked_at, false);
        }
    }

    pub(super) fn on_renewed(&mut self, now: Instant, times: Times) {
        self.lanes -= 1;
        for finished in self.jobs.end_renewing(times) {
            self.on_durable_finished(now, finished);
        }
    }

    /// Outcomes are written: queues are free for their next jobs, and jobs that were not completed are due again.
    pub(super) fn on_released(&mut self, now: Instant, report: &Report) {
        self.unreleased.on_report(report);
        self.refused_release = report.refused.clone().or(self.refused_release.take());
        if self.unreleased.is_empty() {
            self.refused_release = None;
        }
        if report.frees_queue || report.returns_jobs {
            self.durable.on_freed();
        }
        if report.returns_jobs {
            self.held.scan.hint();
        }
        if report.due_unknown {
            self.due.forget();
        }
        let mut freed = Vec::new();
        for id in &report.ids {
            if let Some((order, job)) = self.returning.remove(*id) {
                self.durable.forget(order);
                self.durable.ask();
                freed.extend(job);
            }
        }
        self.held.scan.on_freed(now, freed);
    }

    /// Durable jobs that wait for more urgent ones, or for a slot, are returned after a while: other workers may have
    /// free slots.
    pub(super) fn return_what_waits_for_long(&mut self, now: Instant) {
        let longest = self.rules.local_queue_ttl().unwrap_or(LONGEST_WAIT);
        let old = now.checked_sub(longest).map(|since| self.list.take_durable(since)).unwrap_or_default();
        let old: Vec<Arc<Job>> = old.into_iter().filter(|job| self.jobs.remove(job.id).is_some()).collect();
        if !old.is_empty() && self.rules.local_queue.is_none() {
            self.durable.pauses.begin(Why::Returned, now + LONGEST_WAIT);
        }
        self.return_not_started(now, old, false);
    }

    /// Whether the run has ended. A run until no job is left asks once more after it has found jobs: the last
    /// claims may have skipped a job that a batch was about to free, or whose task has become slow meanwhile.
    pub(crate) fn is_done(&mut self, now: Instant) -> bool {
        self.give_up_refused_release();
        let is_done = self.has_nothing_left();
        let has_asked = self.rules.mode == Mode::UntilShutdown
            || self.shutdown.has_begun()
            || self.error.is_some()
            || !self.has_found;
        if is_done && !has_asked {
            self.has_found = false;
            self.durable.pauses.end_all_but_errors();
            self.wake_up(now);
            self.plan(now);
            return false;
        }
        is_done
    }

    /// How the run ended, and whether nothing is left that others have to recover.
    pub(crate) fn end(mut self, now: Instant) -> (Result<()>, bool) {
        let is_clear = self.lost.knows_all(now) && !self.shutdown.has_left();
        if self.rules.mode == Mode::UntilEmpty && !self.refused.is_empty() {
            self.error = self.error.or_else(|| self.refused.take_error());
        }
        (self.error.map_or(Ok(()), Err), is_clear)
    }

    fn has_nothing_left(&self) -> bool {
        let is_clear = !self.lost.holds_up_claims() || self.error.is_some() || self.shutdown.has_left();
        let is_idle = self.jobs.is_empty() && self.unreleased.is_empty() && self.lanes == 0 && is_clear;
        is_idle
            && match self.rules.mode {
                Mode::UntilShutdown => self.shutdown.has_begun(),
                Mode::UntilEmpty => self.shutdown.has_begun() || !self.has_more() || self.error.is_some(),
            }
    }

    pub(super) fn begin_shutdown(&mut self, now: Instant) {
        self.shutdown.begin(now);
        self.lost.on_shutdown();
        self.return_unstarted(now);
        for lane in self.held.batches.lanes() {
            self.commit_batch(now, lane);
        }
    }

    pub(super) fn begin_abort(&mut self, now: Instant) {
        self.begin_shutdown(now);
        self.shutdown.abort_now(now);
    }

    /// Slots have ended with the application's runtime. When all have, their jobs are returned.
    pub(super) fn on_slots_gone(&mut self, now: Instant, are_all_gone: bool) {
        self.commands.push(Command::Stop);
        self.commands.push(Command::AbortTasks);
        if !self.shutdown.is_aborting() {
            self.begin_abort(now);
        }
        if are_all_gone {
            self.return_jobs(now, self.jobs.all(), || Outcome::Interrupted);
        }
    }

    pub(super) fn return_unstarted(&mut self, now: Instant) {
        let unstarted = self.list.take_durable(now);
        self.return_jobs(now, unstarted, || Outcome::NotStarted);
    }

    fn return_jobs(&mut self, now: Instant, jobs: Vec<Arc<Job>>, outcome: impl Fn() -> Outcome) {
        for job in jobs {
            if let Some(locked_at) = self.jobs.remove(job.id) {
                let (duration, claim) = (Duration::ZERO, Claim::Durable);
                self.release(now, Finished { job, outcome: outcome(), duration, claim }, locked_at, false);
            }
        }
    }

    pub(super) fn step_shutdown(&mut self, now: Instant) {
        match self.shutdown.step(now) {
            Step::Wait => {}
            Step::Cancel => self.commands.push(Command::CancelTasks),
            Step::Abort => {
                self.commands.push(Command::CancelTasks);
                self.commands.push(Command::AbortTasks);
            }
            Step::Abandon => {
                // These tasks do not yield. Their jobs are returned, and their later outcomes are ignored.
                let jobs = self.jobs.all();
                let worker = &*self.rules.worker;
                tracing::error!(
                    worker,
                    jobs = jobs.len(),
                    "tasks did not end when they were aborted; their jobs are returned"
                );
                self.return_jobs(now, jobs, || Outcome::Interrupted);
            }
            Step::Leave => self.leave(),
        }
    }

    /// A run until no job is left does not wait for an outcome that the database rejects, if nothing else is left.
    pub(super) fn give_up_refused_release(&mut self) {
        let is_all = self.unreleased.is_stuck() && self.only_waits_for_promotions() && !self.has_more();
        let is_running =
            self.rules.mode == Mode::UntilEmpty && !self.shutdown.has_begun() && self.error.is_none();
        if let Some(error) = self.refused_release.take_if(|_| is_running && is_all) {
            self.fail(Error::unavailable(format!("the outcome of a job can't be written: {error}")));
        }
    }

    /// Whether the worker ends, and only jobs are left that can't be released: others keep their rows locked, or the
    /// database refuses their outcomes.
    pub(super) fn is_stuck(&self) -> bool {
        let is_left = self.unreleased.is_stuck() || (self.unreleased.is_empty() && self.held.promoting() > 0);
        self.shutdown.has_begun() && is_left && self.only_waits_for_promotions()
    }

    /// Whether no job runs, and the only statements under way are promotions of lost batches that are blocked.
    pub(super) fn only_waits_for_promotions(&self) -> bool {
        let has_lanes = self.lanes > self.held.promoting();
        self.in_slots() == 0 && !has_lanes && self.held.are_promotions_blocked()
    }

    /// Ends with locks that are left to the recovery.
    pub(super) fn leave(&mut self) {
        tracing::error!(
            worker = &*self.rules.worker,
            "some jobs could not be released in time: the database does not answer, or refuses it, or another transaction \
             has locked them; other workers will recover them"
        );
        self.shutdown.leave();
        // A statement may wait for another transaction forever. Its lane ends when that does.
        self.commands.push(Command::Leave);
        self.lanes = 0;
        self.jobs.clear();
        self.unreleased.clear();
        self.releasing.clear();
        self.stuck_since = None;
    }
}
