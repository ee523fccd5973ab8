//! Slots: so many tasks, each running one job at a time, from one list of claimed jobs.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use super::Shared;
use super::run::{Claim, Finished, Outcome, run_job};
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
    held: VecDeque<(Arc<Job>, u64)>,
}

impl RunList {
    pub(crate) fn push_durable(&self, jobs: Vec<Arc<Job>>) {
        let (now, count) = (Instant::now(), jobs.len());
        self.lock().durable.extend(jobs.into_iter().map(|job| (job, now)));
        self.announce(count);
    }

    pub(crate) fn push_held(&self, jobs: &[Arc<Job>], lane: u64) {
        self.lock().held.extend(jobs.iter().map(|job| (job.clone(), lane)));
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
        self.lock().held.retain(|(job, its_lane)| {
            let is_ours = *its_lane == lane;
            if is_ours {
                taken.push(job.clone());
            }
            !is_ours
        });
        taken
    }

    async fn pop(&self) -> (Arc<Job>, Claim) {
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

    fn next(&self) -> Option<(Arc<Job>, Claim)> {
        let mut waiting = self.lock();
        if let Some((job, _)) = waiting.durable.pop_front() {
            return Some((job, Claim::Durable));
        }
        waiting.held.pop_front().map(|(job, lane)| (job, Claim::Held(lane)))
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

/// Starts the slots. They end when the set is dropped or aborted, between two jobs or in one.
pub(crate) fn start(
    shared: &Arc<Shared>,
    count: usize,
    list: &Arc<RunList>,
    finished: &mpsc::Sender<Finished>,
) -> JoinSet<()> {
    let mut slots = JoinSet::new();
    for _ in 0..count {
        let (shared, list, finished) = (shared.clone(), list.clone(), finished.clone());
        slots.spawn(async move {
            loop {
                let (job, claim) = list.pop().await;
                // Whatever was claimed, or left waiting, when the shutdown came: it is too late to begin it.
                let ended = if shared.stop.is_cancelled() {
                    Finished { job, outcome: Outcome::NotStarted, duration: Duration::ZERO, claim }
                } else {
                    run_job(&shared, job, claim).await
                };
                if finished.send(ended).await.is_err() {
                    return;
                }
            }
        });
    }
    slots
}
