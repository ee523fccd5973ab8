//! Releasing: the only place that gives up a lock on a job.
//!
//! One task, the actor in [`actor`], owns every outcome of a durable claim from the moment the job has ended until the
//! outcome is written. The owner hands outcomes over and goes on; it learns by [`Report`]s what has been written. So a
//! release that takes long delays no claim, and no other release.
//!
//! [`pending`] decides what is written when, without a database. [`write`] has the statements. [`report`] sends the
//! events and calls the hooks, and only after the write.

mod actor;
mod pending;
mod refused;
mod report;
mod write;

use std::collections::HashMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::Shared;
use super::plan::Plan;
use super::run::{Finished, Outcome};
use actor::Actor;
pub(super) use actor::{APART, BATCHES};
use pending::{Delays, Entry};
pub(crate) use report::{tell, tell_all};
pub(crate) use write::{Failures, return_unknown};

/// While as many jobs wait for their release, or payloads of as many bytes, the worker claims nothing more.
const MOST_JOBS: usize = 1_000;
const MOST_BYTES: usize = 16 << 20;

/// What the actor has done with some of its outcomes: all are written, or their claims were lost.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) ids: Vec<i64>,
    bytes: usize,
    /// Outcomes that can't be written for a reason of their own: they are blocked, refused, or take long.
    stuck: usize,
    /// The next jobs of queues may be due now.
    pub(super) frees_queue: bool,
    /// Some of the jobs themselves are due again, now or later.
    pub(super) returns_jobs: bool,
    /// When they are due is decided by the database.
    pub(super) due_unknown: bool,
}

impl Report {
    fn add(&mut self, finished: &Finished) {
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

/// Outcomes of one job. Usually there is one: more if the worker was declared dead, and has claimed the job again.
#[derive(Default)]
struct Unreported {
    count: usize,
    /// When the latest of them was claimed.
    locked_at: Option<DateTime<Utc>>,
}

/// The owner's end of the actor.
pub(super) struct Releases {
    /// Handed over at the next [`Releases::flush`], so that outcomes that arrive together are written together.
    next: Vec<Entry>,
    /// Not bounded: it holds jobs that this worker has claimed, and no more are claimed while [`Releases::is_full`].
    entries: mpsc::UnboundedSender<Vec<Entry>>,
    reports: mpsc::UnboundedReceiver<Report>,
    /// The jobs with outcomes that are not reported yet.
    ids: HashMap<i64, Unreported>,
    bytes: usize,
    stuck: usize,
    actor: JoinHandle<()>,
}

impl Releases {
    /// Starts the actor.
    pub(super) fn start(shared: &Arc<Shared>, plan: &Plan) -> Releases {
        let (entries, received) = mpsc::unbounded_channel();
        let (report, reports) = mpsc::unbounded_channel();
        let delays = Delays { complete: plan.complete_job_batch_delay, fail: plan.fail_job_batch_delay };
        let actor = tokio::spawn(Actor::new(shared.clone(), delays, received, report).run());
        Releases { next: Vec::new(), entries, reports, ids: HashMap::new(), bytes: 0, stuck: 0, actor }
    }

    /// Takes over an outcome of the claim that was made at `locked_at`. With `is_unknown` it may have been written already,
    /// over a connection that was lost.
    pub(super) fn add(&mut self, finished: Finished, locked_at: Option<DateTime<Utc>>, is_unknown: bool) {
        let unreported = self.ids.entry(finished.job.id).or_default();
        unreported.count += 1;
        unreported.locked_at = unreported.locked_at.max(locked_at);
        self.bytes += size_of(&finished);
        self.next.push(Entry::new(finished, locked_at, is_unknown));
    }

    /// Hands over what was added since the last call.
    pub(super) fn flush(&mut self) {
        if !self.next.is_empty() {
            // The actor ends before its owner only when the worker leaves its locks to the recovery.
            let _ = self.entries.send(std::mem::take(&mut self.next));
        }
    }

    /// The next report. Cancel safe.
    pub(super) async fn report(&mut self) -> Option<Report> {
        let report = self.reports.recv().await?;
        self.bytes = self.bytes.saturating_sub(report.bytes);
        self.stuck = report.stuck;
        for id in &report.ids {
            let Some(unreported) = self.ids.get_mut(id) else { continue };
            unreported.count -= 1;
            if unreported.count == 0 {
                self.ids.remove(id);
            }
        }
        Some(report)
    }

    /// Whether every outcome is written and reported.
    pub(super) fn is_idle(&self) -> bool {
        self.ids.is_empty()
    }

    /// Whether nothing is left but outcomes that are stuck.
    pub(super) fn is_stuck(&self) -> bool {
        !self.ids.is_empty() && self.stuck >= self.ids.len()
    }

    /// Whether so much waits to be written that nothing more should be claimed.
    pub(super) fn is_full(&self) -> bool {
        self.ids.len() >= MOST_JOBS || self.bytes >= MOST_BYTES
    }

    /// The jobs whose outcomes are not written yet.
    pub(super) fn ids(&self) -> impl Iterator<Item = i64> + '_ {
        self.ids.keys().copied()
    }

    /// When a job whose outcome is not written yet was claimed.
    pub(super) fn locked_at(&self, id: i64) -> Option<DateTime<Utc>> {
        self.ids.get(&id)?.locked_at
    }

    /// Forgets what is not written: the worker leaves its locks to the recovery.
    pub(super) fn leave(&mut self) {
        self.next.clear();
        self.ids.clear();
        self.bytes = 0;
    }

    /// Waits for the end of the actor, which has nothing left to do, or was told to leave.
    pub(super) async fn end(self) {
        drop((self.entries, self.reports));
        if let Err(error) = self.actor.await {
            tracing::error!(%error, "the task that releases jobs panicked");
        }
    }
}
