//! Slots: tasks of the runtime that run one job at a time each, from one list of claimed jobs (`list.rs`).

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::Shared;
use super::claim::held::LONGEST_SILENCE;
use super::list::{Next, RunList};
use super::run::{Claim, Finished, Outcome, run_job};

/// Outcomes of quick jobs are handed over together, at most this many at a time.
const CHUNK: usize = 256;

/// An outcome is handed over when the jobs since the last one have taken this long together.
const CHUNK_TIME: Duration = Duration::from_millis(1);

/// How many groups of outcomes may wait for the driver. A slot with another group waits until the driver has caught up.
pub(crate) const CHUNKS_AHEAD: usize = 64;

/// Starts the slots on the application's runtime. They end when the set is dropped or aborted, even if a job is
/// running.
pub(crate) fn start(
    shared: &Arc<Shared>,
    app: &Handle,
    list: &Arc<RunList>,
    finished: &mpsc::Sender<Vec<Finished>>,
) -> JoinSet<()> {
    let mut slots = JoinSet::new();
    for _ in 0..shared.slots {
        let slot = Slot {
            shared: shared.clone(),
            list: list.clone(),
            finished: finished.clone(),
            ended: Vec::new(),
            ended_in: Duration::ZERO,
        };
        slots.spawn_on(slot.run(), app);
    }
    slots
}

struct Slot {
    shared: Arc<Shared>,
    list: Arc<RunList>,
    finished: mpsc::Sender<Vec<Finished>>,
    /// Outcomes that are not yet handed over.
    ended: Vec<Finished>,
    /// The total duration of their jobs.
    ended_in: Duration,
}

impl Slot {
    async fn run(mut self) {
        loop {
            let next = match self.list.next() {
                Some(next) => next,
                None => {
                    self.hand_over().await;
                    self.list.pop().await
                }
            };
            let finished = self.run_one(next).await;
            self.ended_in += finished.duration;
            self.ended.push(finished);
            if self.ended.len() >= CHUNK || self.ended_in >= CHUNK_TIME {
                self.hand_over().await;
                // Jobs that never wait must not keep the other tasks of this thread from running.
                tokio::task::yield_now().await;
            }
        }
    }

    async fn run_one(&mut self, next: Next) -> Finished {
        // A job that was claimed before the shutdown began, before its task was paused, or before its claim may have
        // been lost must not start any more.
        let is_paused = self.shared.paused_tasks.contains(next.job.task_identifier());
        let is_too_late = self.shared.stop.is_cancelled() || is_paused || self.may_be_lost(&next);
        let Next { job, claim, .. } = next;
        if is_too_late {
            return Finished { job, outcome: Outcome::NotStarted, duration: Duration::ZERO, claim };
        }
        let shared = self.shared.clone();
        let run = run_job(&shared, job, claim);
        tokio::pin!(run);
        match futures_util::poll!(run.as_mut()) {
            Poll::Ready(finished) => finished,
            // The job waits for something. Earlier outcomes are handed over meanwhile.
            Poll::Pending => futures_util::future::join(self.hand_over(), run).await.1,
        }
    }

    /// Whether the claim may have been lost, because the process was stopped or could not reach the database.
    fn may_be_lost(&self, next: &Next) -> bool {
        match next.claim {
            Claim::Durable => self.shared.continuity.may_have_lost(next.claimed_at, Instant::now()),
            Claim::Held(_) => next.claimed_at.elapsed() > LONGEST_SILENCE,
        }
    }

    async fn hand_over(&mut self) {
        if self.ended.is_empty() {
            return;
        }
        self.ended_in = Duration::ZERO;
        // The receiver lives as long as the slots.
        let _ = self.finished.send(std::mem::take(&mut self.ended)).await;
    }
}
