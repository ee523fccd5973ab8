//! What is told of a release once it is written: events and hooks.

use std::sync::Arc;
use std::time::Duration;

use super::super::run::{Finished, Outcome};
use super::super::{Shared, hooks};
use crate::event::WorkerEvent;

/// Reports what was written, or not: with `is_unknown` a reply was lost, and jobs that are no longer ours were released by
/// us.
pub(crate) fn tell(shared: &Arc<Shared>, finished: Vec<Finished>, is_unknown: bool) {
    match is_unknown {
        true => tell_all(shared, finished),
        false => tell_lost(shared, finished),
    }
}

/// Reports claims that were lost: nothing was written.
pub(super) fn tell_lost(shared: &Shared, finished: Vec<Finished>) {
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
pub(crate) fn tell_all(shared: &Arc<Shared>, finished: Vec<Finished>) {
    for one in &finished {
        tell_event(shared, one);
    }
    hooks::call_hooks(shared, finished);
}

fn tell_event(shared: &Shared, Finished { job, outcome, duration, .. }: &Finished) {
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
            let (error, permanent) = (&failure.error, failure.is_for_good(job));
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
