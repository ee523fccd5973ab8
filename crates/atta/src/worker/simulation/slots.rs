//! The slots of a worker: they take jobs from its list and run them. The world chooses how long a job takes and how it ends.

use std::time::Duration;

use super::super::planner::Event;
use super::super::run::{Failure, Finished, Outcome};
use super::model::{Cause, WorkerNumber};
use super::setup::TASKS;
use super::worker::Run;
use super::world::{MS, Step, World};
use crate::Retry;

impl World {
    /// Free slots take jobs from the list.
    pub(super) fn start_jobs(&mut self, number: WorkerNumber) -> Result<(), String> {
        let now = self.agenda.instant();
        while let Some(worker) = self.workers.get(&number)
            && worker.runs.len() < self.setup.slots
            && let Some(next) = worker.list.next()
        {
            if worker.is_too_late(&next, now) {
                self.note(|_| format!("worker {number} does not start {}", next.job.id));
                let (outcome, duration) = (Outcome::NotStarted, Duration::ZERO);
                let finished = Finished { job: next.job, outcome, duration, claim: next.claim };
                let event = Event::Finished(vec![finished]);
                self.plan(self.now() + MS / 10, number, Step::Deliver(event));
                continue;
            }
            self.check_start(number, &next)?;
            let (job, claim) = (next.job, next.claim);
            self.note(|_| format!("worker {number} starts {} {:?} {claim:?}", job.id, job.order()));
            self.started.push(job.order());
            self.statistics.on_started(job.id, self.now());
            let is_slow = TASKS[..self.setup.slow].contains(&job.task_identifier());
            let most = if is_slow { 120.0 } else { 2.0 };
            let mut duration = MS.mul_f64(0.1 + self.random.work.f64() * most);
            let long = self.random.work.u32(100..40_000);
            if self.random.work.f64() < self.setup.long {
                duration = MS * long;
            }
            self.last_number += 1;
            let (run, lost) = (self.last_number, self.lost.get(&(number, job.id)).copied());
            if let Some(worker) = self.workers.get_mut(&number) {
                worker.runs.insert(run, Run { job, claim, began: self.agenda.now(), lost });
            }
            self.plan(self.now() + duration, number, Step::End(run));
        }
        Ok(())
    }

    /// A slot takes its next job before the driver knows that this one has ended.
    pub(super) fn end_run(&mut self, number: WorkerNumber, run: u64) -> Result<(), String> {
        let roll = self.random.work.f64();
        let outcome = match roll < self.setup.failing {
            true => {
                // The back-off of later attempts takes longer than a run.
                let is_early = self
                    .workers
                    .get(&number)
                    .and_then(|it| it.runs.get(&run))
                    .is_some_and(|run| run.job.attempts < 4);
                let retry = match (roll * 1000.0) as u32 % 8 {
                    0 => Retry::Never,
                    1 | 2 if is_early => Retry::Backoff,
                    _ => Retry::In(MS * (roll * 10_000.0) as u32),
                };
                Outcome::Failed(Box::new(Failure { error: "né".into(), retry, payload: None }))
            }
            false => Outcome::Completed,
        };
        self.finish(number, run, outcome);
        self.start_jobs(number)
    }

    pub(super) fn interrupt(&mut self, number: WorkerNumber, run: u64) {
        self.finish(number, run, Outcome::Interrupted);
    }

    fn finish(&mut self, number: WorkerNumber, run: u64, outcome: Outcome) {
        let Some(worker) = self.workers.get_mut(&number) else { return };
        let Some(Run { job, claim, began, lost }) = worker.runs.remove(&run) else { return };
        if worker.runs.len() + 1 == self.setup.slots {
            worker.idle_since = self.agenda.now();
        }
        let duration = self.now().saturating_sub(began);
        // If the claim is gone, there is nothing to write. A job that was held may be claimed again.
        if matches!(lost, None | Some(Cause::Connection)) {
            self.ended_at.insert((number, job.id), self.now());
        }
        if matches!(outcome, Outcome::Completed) {
            self.ended.insert(job.id);
        }
        self.note(|_| format!("worker {number}: {} has ended: {outcome:?}", job.id));
        let event = Event::Finished(vec![Finished { job, outcome, duration, claim }]);
        let at = self.now() + MS.mul_f64(self.random.work.f64());
        self.plan(at, number, Step::Deliver(event));
    }
}
