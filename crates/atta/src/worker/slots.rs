//! Slots: so many tasks, each running one job at a time, from one list of claimed jobs.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use super::Shared;
use super::run::{Finished, Outcome, run_job};
use crate::Job;

/// Claimed jobs that wait for a slot. A job that a slot has taken from here is running.
#[derive(Default)]
pub(crate) struct RunList {
    jobs: Mutex<VecDeque<(Arc<Job>, Instant)>>,
    arrived: Notify,
}

impl RunList {
    pub(crate) fn push(&self, jobs: impl IntoIterator<Item = Arc<Job>>) {
        let now = Instant::now();
        let mut list = self.lock();
        let before = list.len();
        list.extend(jobs.into_iter().map(|job| (job, now)));
        let added = list.len() - before;
        drop(list);
        for _ in 0..added {
            self.arrived.notify_one();
        }
    }

    /// All that have not been begun, for giving them back.
    pub(crate) fn take_all(&self) -> Vec<Arc<Job>> {
        self.lock().drain(..).map(|(job, _)| job).collect()
    }

    /// Those that have waited since before `time`.
    pub(crate) fn take_older_than(&self, time: Instant) -> Vec<Arc<Job>> {
        let mut list = self.lock();
        let (old, young) = list.drain(..).partition(|(_, since)| *since < time);
        *list = young;
        let old: VecDeque<(Arc<Job>, Instant)> = old;
        old.into_iter().map(|(job, _)| job).collect()
    }

    async fn pop(&self) -> Arc<Job> {
        loop {
            let arrived = self.arrived.notified();
            tokio::pin!(arrived);
            // From here on no arrival is missed, also one between the look and the wait.
            arrived.as_mut().enable();
            if let Some((job, _)) = self.lock().pop_front() {
                return job;
            }
            arrived.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(Arc<Job>, Instant)>> {
        // Nothing panics while it is held.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
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
                let job = list.pop().await;
                // Whatever was claimed, or left waiting, when the shutdown came: it is too late to begin it.
                let ended = if shared.stop.is_cancelled() {
                    Finished { job, outcome: Outcome::NotStarted, duration: Duration::ZERO }
                } else {
                    run_job(&shared, job).await
                };
                if finished.send(ended).await.is_err() {
                    return;
                }
            }
        });
    }
    slots
}
