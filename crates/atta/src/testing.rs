//! For the tests of applications: run due jobs immediately, assert which jobs were added, and move the clock.
//!
//! ```no_run
//! # use atta::{JobSpec, WorkerOptions, testing};
//! # async fn example(options: WorkerOptions) -> atta::Result<()> {
//! let clock = testing::Clock::system();
//! let worker = options.clock(clock.clone()).init().await?;
//! let utils = worker.create_utils();
//!
//! // … the code under test signs up a user, which adds a job …
//! let job = testing::assert_added(&utils, "send_welcome").await;
//! assert_eq!(job.payload::<serde_json::Value>()?["user"], 42);
//!
//! testing::run_due_jobs(&worker).await?;
//! clock.advance(chrono::TimeDelta::days(7));
//! testing::run_due_jobs(&worker).await?; // what was scheduled for next week
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use chrono::{DateTime, TimeDelta, Utc};

use crate::event::WorkerEvent;
use crate::job::{FIRST_TIME, LAST_TIME};
use crate::{Job, JobFilter, Result, Worker, WorkerUtils};

/// The outcomes of the jobs that [`run_due_jobs`] ran.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Ran {
    /// The jobs that succeeded.
    pub succeeded: Vec<Arc<Job>>,
    /// The jobs that failed, permanently or not, with their errors.
    pub failed: Vec<(Arc<Job>, Arc<str>)>,
    /// How many events were lost because this thread was too slow to read them. If it is not 0, jobs may be missing in
    /// the lists.
    pub lost_events: u64,
}

impl Ran {
    /// How many jobs ran.
    pub fn count(&self) -> usize {
        self.succeeded.len() + self.failed.len()
    }

    /// Panics with the errors of the failed jobs, if there are any.
    #[track_caller]
    pub fn assert_no_failures(&self) {
        let errors: Vec<String> = self
            .failed
            .iter()
            .map(|(job, error)| format!("{} {}: {error}", job.task_identifier(), job.id()))
            .collect();
        assert!(errors.is_empty(), "jobs failed: {}", errors.join("; "));
    }
}

/// Runs due jobs, including jobs that they add, until none are left. Returns the outcome of each.
///
/// If the future is dropped, the worker aborts: see [`Worker::run`].
pub async fn run_due_jobs(worker: &Worker) -> Result<Ran> {
    let mut events = worker.events();
    let mut ran = Ran::default();
    let run = worker.run_once();
    tokio::pin!(run);
    loop {
        tokio::select! {
            biased;
            Some(event) = events.next() => ran.note(event),
            done = &mut run => {
                done?;
                break;
            }
        }
    }
    while let Some(event) = events.try_next() {
        ran.note(event);
    }
    Ok(ran)
}

impl Ran {
    fn note(&mut self, event: WorkerEvent) {
        match event {
            WorkerEvent::JobSucceeded { job, .. } => self.succeeded.push(job),
            WorkerEvent::JobErrored { job, error } => self.failed.push((job, error)),
            WorkerEvent::EventsLost { count } => self.lost_events += count,
            _ => {}
        }
    }
}

/// The jobs of a task that are in the database, at most a hundred, in the order in which they were added.
///
/// Cancel safe: it only reads.
pub async fn jobs_of(utils: &WorkerUtils, task_identifier: &str) -> Result<Vec<Job>> {
    let filter = JobFilter { task_identifier: Some(task_identifier.to_owned()), ..JobFilter::default() };
    utils.list_jobs(&filter).await
}

/// The one job of a task that is in the database. Panics if there is none, or more than one.
///
/// Cancel safe: it only reads.
pub async fn assert_added(utils: &WorkerUtils, task_identifier: &str) -> Job {
    let mut jobs = jobs_of(utils, task_identifier).await.expect("the jobs can be listed");
    assert_eq!(jobs.len(), 1, "expected one job of task {task_identifier}, found {}", jobs.len());
    jobs.remove(0)
}

/// Panics if there is a job of this task in the database.
///
/// Cancel safe: it only reads.
pub async fn assert_not_added(utils: &WorkerUtils, task_identifier: &str) {
    let jobs = jobs_of(utils, task_identifier).await.expect("the jobs can be listed");
    assert!(jobs.is_empty(), "expected no job of task {task_identifier}, found {}", jobs.len());
}

/// Deletes the jobs of a queue as if they had succeeded, and returns them. Running jobs are skipped.
///
/// Cancel safe: if the future is dropped, a part of the jobs may be deleted.
pub async fn drain_queue(utils: &WorkerUtils, queue_name: &str) -> Result<Vec<Job>> {
    let mut drained = Vec::new();
    let mut filter = JobFilter { queue_name: Some(queue_name.to_owned()), ..JobFilter::default() };
    loop {
        let page = utils.list_jobs(&filter).await?;
        let Some(last) = page.last() else { return Ok(drained) };
        filter.after_id = Some(last.id());
        let ids: Vec<i64> = page.iter().map(Job::id).collect();
        drained.extend(utils.complete_jobs(&ids).await?);
    }
}

/// A clock that a test can move. Clones share the offset.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    offset_micros: Arc<AtomicI64>,
}

impl Clock {
    /// A clock that shows this machine's time until it is moved.
    pub fn system() -> Clock {
        Clock::default()
    }

    /// The time that the clock shows. Stays in the years 1 to 9999, however far it was moved.
    pub fn now(&self) -> DateTime<Utc> {
        let (now, offset) = (Utc::now(), TimeDelta::microseconds(self.offset_micros.load(Ordering::Relaxed)));
        let end = if offset < TimeDelta::zero() { FIRST_TIME } else { LAST_TIME };
        now.checked_add_signed(offset).unwrap_or(end).clamp(FIRST_TIME, LAST_TIME)
    }

    /// Moves the clock forward, or back if the duration is negative.
    pub fn advance(&self, by: TimeDelta) {
        let furthest = if by < TimeDelta::zero() { i64::MIN } else { i64::MAX };
        let by = by.num_microseconds().unwrap_or(furthest);
        let moved = |offset: i64| Some(offset.saturating_add(by));
        // The closure always returns `Some`, so the update never fails.
        let _ = self.offset_micros.fetch_update(Ordering::Relaxed, Ordering::Relaxed, moved);
    }
}
