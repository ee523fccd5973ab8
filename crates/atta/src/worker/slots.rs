//! Slots: so many tasks, each running one job at a time, from one list of claimed jobs.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use super::run::{Claim, Finished, Outcome, run_job};
use super::{Shared, hold};
use crate::Job;

/// Claimed jobs that wait for a slot. A job that a slot has taken from here is running.
#[derive(Default)]
pub(crate) struct RunList {
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

/// Durable jobs go first: their attempt counts already, and they may stand in the way of their queue.
#[derive(Default)]
struct Waiting {
    durable: VecDeque<(Arc<Job>, Instant)>,
    held: VecDeque<(Arc<Job>, u64, Instant)>,
}

/// A job for a slot.
struct Next {
    job: Arc<Job>,
    claim: Claim,
    claimed_at: Instant,
}

impl RunList {
    /// Claimed by a statement that was sent at `asked_at`: the answer may have waited for a process that stood still.
    pub(crate) fn push_durable(&self, jobs: Vec<Arc<Job>>, asked_at: Instant) {
        let count = jobs.len();
        self.lock().durable.extend(jobs.into_iter().map(|job| (job, asked_at)));
        self.announce(count);
    }

    /// The server waits for us from its answer on, however long that took.
    pub(crate) fn push_held(&self, jobs: &[Arc<Job>], lane: u64) {
        let now = Instant::now();
        self.lock().held.extend(jobs.iter().map(|job| (job.clone(), lane, now)));
        self.announce(jobs.len());
    }

    /// Durable jobs that have not been begun, and have waited since before `time`.
    pub(crate) fn take_durable(&self, before: Instant) -> Vec<Arc<Job>> {
        let mut waiting = self.lock();
        let old = waiting.durable.iter().take_while(|(_, since)| *since <= before).count();
        waiting.durable.drain(..old).map(|(job, _)| job).collect()
    }

    /// Jobs of this lane that have not been begun.
    pub(crate) fn take_held(&self, lane: u64) -> Vec<Arc<Job>> {
        let mut taken = Vec::new();
        self.lock().held.retain(|(job, its_lane, _)| {
            let is_ours = *its_lane == lane;
            if is_ours {
                taken.push(job.clone());
            }
            !is_ours
        });
        taken
    }

    async fn pop(&self) -> Next {
        loop {
            if let Some(next) = self.next() {
                return next;
            }
            let arrived = self.arrived.notified();
            tokio::pin!(arrived);
            // From here on no arrival is missed, also one between the look and the wait.
            arrived.as_mut().enable();
            if let Some(next) = self.next() {
                return next;
            }
            arrived.await;
        }
    }

    fn next(&self) -> Option<Next> {
        let mut waiting = self.lock();
        if let Some((job, claimed_at)) = waiting.durable.pop_front() {
            return Some(Next { job, claim: Claim::Durable, claimed_at });
        }
        let (job, lane, claimed_at) = waiting.held.pop_front()?;
        Some(Next { job, claim: Claim::Held(lane), claimed_at })
    }

    /// Wakes as many slots as there are jobs; slots that are busy look for themselves.
    fn announce(&self, count: usize) {
        match count {
            0 => {}
            1 => self.arrived.notify_one(),
            _ => {
                self.arrived.notify_waiters();
                // One permit is kept for a slot that has looked and not yet begun to wait.
                self.arrived.notify_one();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing panics while it is held.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Outcomes are handed over in company, if they come quickly: so many at most.
const COMPANY: usize = 64;

/// And none waits longer for it than this.
const COMPANY_TIME: Duration = Duration::from_millis(1);

/// Chunks of outcomes that wait for the loop; a slot with one more waits until it has caught up.
pub(crate) const CHUNKS_AHEAD: usize = 64;

/// Starts the slots. They end when the set is dropped or aborted, between two jobs or in one.
pub(crate) fn start(
    shared: &Arc<Shared>,
    count: usize,
    list: &Arc<RunList>,
    finished: &mpsc::Sender<Vec<Finished>>,
) -> JoinSet<()> {
    let mut slots = JoinSet::new();
    for _ in 0..count {
        let slot = Slot {
            shared: shared.clone(),
            list: list.clone(),
            finished: finished.clone(),
            ended: Vec::new(),
            ended_in: Duration::ZERO,
        };
        slots.spawn(slot.run());
    }
    slots
}

struct Slot {
    shared: Arc<Shared>,
    list: Arc<RunList>,
    finished: mpsc::Sender<Vec<Finished>>,
    /// Not yet handed over.
    ended: Vec<Finished>,
    /// How long they took together.
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
            if self.ended.len() >= COMPANY || self.ended_in >= COMPANY_TIME {
                self.hand_over().await;
                // Jobs that never wait for anything must not keep the other tasks of this thread from running.
                tokio::task::yield_now().await;
            }
        }
    }

    async fn run_one(&mut self, next: Next) -> Finished {
        // Whatever was claimed, or left waiting, when the shutdown came: it is too late to begin it.
        let is_too_late = self.shared.stop.is_cancelled() || self.may_be_lost(&next);
        let Next { job, claim, .. } = next;
        if is_too_late {
            return Finished { job, outcome: Outcome::NotStarted, duration: Duration::ZERO, claim };
        }
        let shared = self.shared.clone();
        let run = run_job(&shared, job, claim);
        tokio::pin!(run);
        match futures_util::poll!(run.as_mut()) {
            Poll::Ready(finished) => finished,
            // It waits for something, and those that have ended do not wait for it.
            Poll::Pending => futures_util::future::join(self.hand_over(), run).await.1,
        }
    }

    /// A process that stood still, or had no database, may have lost its claims meanwhile.
    fn may_be_lost(&self, next: &Next) -> bool {
        match next.claim {
            Claim::Durable => self.shared.continuity.may_have_lost(next.claimed_at, Instant::now()),
            Claim::Held(_) => next.claimed_at.elapsed() > hold::LONGEST_SILENCE,
        }
    }

    async fn hand_over(&mut self) {
        if self.ended.is_empty() {
            return;
        }
        self.ended_in = Duration::ZERO;
        // Its receiver lives as long as the slots do.
        let _ = self.finished.send(std::mem::take(&mut self.ended)).await;
    }
}
