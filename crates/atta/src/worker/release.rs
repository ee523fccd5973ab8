//! Releasing: the only place that removes the lock of a job.
//!
//! One task, the actor in [`actor`], owns every outcome of a durable claim from the moment the job has ended until the
//! outcome is written. The planner hands outcomes over and does not wait: [`Report`]s state what has been written. So a
//! slow release delays no claim, and no other release.
//!
//! [`pending`] decides what is written when, without a database. [`write`] sends the statements. [`report`] sends the
//! events and calls the hooks, and only after the write.

mod actor;
mod pending;
mod refused;
mod report;
mod write;

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::Shared;
use super::plan::Plan;
use super::run::{Finished, Outcome};
use actor::Actor;
pub(super) use actor::{APART, BATCHES};
use pending::Delays;
#[cfg(test)]
pub(super) use pending::Pending;
pub(super) use pending::{Entry, Fate};
pub(crate) use report::{report_all, report_outcomes};
pub(crate) use write::return_unknown;

/// What the actor has done with some of its outcomes: each was written, or its claim was lost.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) ids: Vec<i64>,
    pub(super) bytes: usize,
    /// How many outcomes can't be written because of their own job: it is locked, the database rejects them, or they
    /// take long.
    pub(super) stuck: usize,
    /// The database has rejected an outcome several times, with this error.
    pub(super) refused: Option<Arc<str>>,
    /// The next jobs of queues may be due now.
    pub(super) frees_queue: bool,
    /// Some of the jobs themselves are due again, now or later.
    pub(super) returns_jobs: bool,
    /// The database has decided when they are due, so the worker does not know it.
    pub(super) due_unknown: bool,
}

impl Report {
    pub(super) fn add(&mut self, finished: &Finished) {
        self.ids.push(finished.job.id);
        self.bytes += size_of(finished);
        self.frees_queue |= finished.job.job_queue_id.is_some();
        self.returns_jobs |= !matches!(finished.outcome, Outcome::Completed);
        self.due_unknown |= matches!(finished.outcome, Outcome::Failed(_) | Outcome::Interrupted);
    }
}

fn size_of(finished: &Finished) -> usize {
    let payload = match &finished.outcome {
        Outcome::Failed(failure) => failure.error.len() + failure.payload.as_ref().map_or(0, String::len),
        _ => 0,
    };
    finished.job.payload_json().len() + payload
}

/// The driver's end of the actor.
pub(super) struct Releases {
    /// Not bounded: it holds jobs that this worker has claimed, and the planner claims no more while too many wait.
    entries: mpsc::UnboundedSender<Vec<Entry>>,
    reports: mpsc::UnboundedReceiver<Report>,
    actor: JoinHandle<()>,
}

impl Releases {
    /// Starts the actor.
    pub(super) fn start(shared: &Arc<Shared>, plan: &Plan) -> Releases {
        let (entries, received) = mpsc::unbounded_channel();
        let (report, reports) = mpsc::unbounded_channel();
        let delays = Delays { complete: plan.complete_job_batch_delay, fail: plan.fail_job_batch_delay };
        let actor = tokio::spawn(Actor::new(shared.clone(), delays, received, report).run());
        Releases { entries, reports, actor }
    }

    /// Hands outcomes over to the actor.
    pub(super) fn send(&self, entries: Vec<Entry>) {
        // An error means that the actor has ended before the driver. This happens only when the worker leaves its locks
        // to recovery.
        let _ = self.entries.send(entries);
    }

    /// The next report. Cancel safe.
    pub(super) async fn report(&mut self) -> Option<Report> {
        self.reports.recv().await
    }

    /// Waits until the actor has ended: it has written all outcomes, or leaves the rest to recovery.
    pub(super) async fn end(self) {
        drop((self.entries, self.reports));
        if let Err(error) = self.actor.await {
            tracing::error!(%error, "the task that releases jobs panicked");
        }
    }
}
