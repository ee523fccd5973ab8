//! Reports releases after they are written, by events and hooks.

use std::sync::Arc;
use std::time::Duration;

use super::super::run::{Finished, Outcome};
use super::super::{Shared, hooks};
use crate::event::WorkerEvent;

/// Reports outcomes whose jobs this worker no longer has. With `is_unknown`, a reply was lost: this worker has released
/// the jobs itself. Otherwise their claims were lost.
pub(crate) fn report_outcomes(shared: &Arc<Shared>, finished: Vec<Finished>, is_unknown: bool) {
    match is_unknown {
        true => report_all(shared, finished),
        false => report_lost(shared, finished),
    }
}

/// Reports claims that were lost: nothing was written.
pub(super) fn report_lost(shared: &Shared, finished: Vec<Finished>) {
    let worker = &*shared.worker_id;
    for Finished { job, .. } in finished {
        let (id, task, attempt) = (job.id, job.task_identifier(), job.attempts);
        tracing::warn!(
            worker,
            job = id,
            task,
            attempt,
            "the claim was lost: the job was no longer locked by this worker"
        );
        shared.events.send(|| WorkerEvent::ClaimLost { job });
    }
}

/// Sends the events and calls the hooks.
pub(crate) fn report_all(shared: &Arc<Shared>, finished: Vec<Finished>) {
    for one in &finished {
        report_event(shared, one);
    }
    hooks::call_hooks(shared, finished);
}

fn report_event(shared: &Shared, Finished { job, outcome, duration, .. }: &Finished) {
    let events = &shared.events;
    let (worker, id, task, attempt) = (&*shared.worker_id, job.id, job.task_identifier(), job.attempts);
    let duration_ms = milliseconds(*duration);
    match outcome {
        Outcome::Completed => {
            tracing::info!(worker, job = id, task, attempt, duration_ms, "job completed");
            events.send(|| WorkerEvent::JobSucceeded { job: job.clone(), duration: *duration });
            events.send(|| WorkerEvent::JobCompleted { job: job.clone(), error: None });
        }
        Outcome::Failed(failure) => {
            let (error, permanent) = (&failure.error, failure.is_permanent(job));
            let of = job.max_attempts;
            tracing::error!(worker, job = id, task, attempt, of, permanent, duration_ms, %error, "job failed");
            events.send(|| WorkerEvent::JobErrored { job: job.clone(), error: error.clone() });
            if permanent {
                events.send(|| WorkerEvent::JobFailed { job: job.clone(), error: error.clone() });
            }
            events.send(|| WorkerEvent::JobCompleted { job: job.clone(), error: Some(error.clone()) });
        }
        Outcome::Interrupted => {
            tracing::warn!(worker, job = id, task, attempt, "job interrupted by the shutdown and returned");
            events.send(|| WorkerEvent::JobInterrupted { job: job.clone() });
        }
        Outcome::NotStarted => {}
    }
}

/// Milliseconds with three decimals, for the log: logs are filtered and summed by this number.
fn milliseconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1000.0
}
