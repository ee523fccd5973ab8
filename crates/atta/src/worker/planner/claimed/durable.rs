//! The answers of durable claims.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::super::claim::{Claimable, Claimed, Refusal};
use super::super::super::run::{Claim, Failure, Finished, Outcome};
use super::super::pauses::Why;
use super::super::refused::RefusalLog;
use super::super::rules::Mode;
use super::super::{Command, Planner};
use crate::event::WorkerEvent;
use crate::{Error, Job, Result, Retry};

impl Planner {
    pub(in super::super) fn on_durable_claim(
        &mut self,
        now: Instant,
        wanted: &Claimable,
        claimed: Result<Claimed>,
    ) {
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
            // Jobs were added, perhaps without a notification. A pick asks for those that can be held.
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
                RefusalLog::None => {}
                RefusalLog::Job => tracing::warn!(
                    worker = &*self.rules.worker,
                    job,
                    task = &*task,
                    error,
                    "the database refuses the claim of a job; other jobs continue, and this one is tried again later"
                ),
                RefusalLog::LastJob => tracing::warn!(
                    worker = &*self.rules.worker,
                    job,
                    task = &*task,
                    error,
                    "the database refuses the claims of many jobs; more of them are not logged in this minute"
                ),
                RefusalLog::Task(task) => tracing::warn!(
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
    pub(in super::super) fn return_not_started(
        &mut self,
        now: Instant,
        jobs: Vec<Arc<Job>>,
        is_unknown: bool,
    ) {
        for job in jobs {
            self.returning.add(&job, now + self.rules.patience);
            let (outcome, duration, claim) = (Outcome::NotStarted, Duration::ZERO, Claim::Durable);
            let locked_at = job.locked_at;
            self.release(now, Finished { job, outcome, duration, claim }, locked_at, is_unknown);
        }
    }

    /// A held job whose connection was lost can be claimed by any worker. If this worker claims it, the job has run
    /// already, or runs, so the claim is returned. For a while no other claim is sent, so that the lane that had the
    /// job can claim it again. It may have done so already, and then this claim is the older one; the job may even be
    /// completed (`taken_over`).
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
}
