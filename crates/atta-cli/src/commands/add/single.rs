//! Adds one job. A signal cancels the statement on the server, and the command reports whether the job was added.

use std::pin::pin;
use std::time::Duration;

use atta::{ConnectionSettings, Error, Job, JobSpec, WorkerUtils};
use serde_json::value::RawValue;

use crate::commands::interrupt::Interrupts;
use crate::output::Failure;

/// How long the command waits for the result of the statement after a signal.
const LIMIT: Duration = Duration::from_secs(5);

/// After how long the request to cancel is sent again. A request that arrives before the statement has no effect.
const PAUSE: Duration = Duration::from_millis(500);

const HINT: &str = "check with atta jobs --newest whether it is there, before you add it again";

pub(super) struct NewJob {
    pub(super) task: String,
    pub(super) payload: Box<RawValue>,
    pub(super) spec: JobSpec,
}

/// If a signal arrived too late to cancel the add, the result is the job, and `interrupts` has the signal.
pub(super) async fn add(
    utils: &WorkerUtils,
    settings: &ConnectionSettings,
    job: NewJob,
    interrupts: &mut Interrupts,
) -> Result<Job, Failure> {
    let NewJob { task, payload, spec } = job;
    let client = tokio::select! {
        biased;
        name = interrupts.requested() => return Err(Failure::interrupted(name, "no job was added")),
        client = utils.pool().get() => client,
    };
    let Ok(mut client) = client else {
        // The library reports the reason.
        return Ok(utils.add_raw_job(task, payload, spec).await?);
    };
    let token = client.cancel_token();
    let mut adding = pin!(utils.add_raw_job_in(&mut client, task, payload, spec));
    let name = tokio::select! {
        biased;
        added = &mut adding => return added.map_err(lost_or_refused),
        name = interrupts.requested() => name,
    };
    let cancel = async {
        loop {
            // Whether it was sent shows in the result of the statement.
            let _ = settings.cancel(&token).await;
            tokio::time::sleep(PAUSE).await;
        }
    };
    let added = tokio::select! {
        biased;
        added = &mut adding => Some(added),
        () = cancel => None,
        () = interrupts.repeated() => None,
        () = tokio::time::sleep(LIMIT) => None,
    };
    match added {
        Some(Ok(job)) => Ok(job),
        Some(Err(error)) => Err(not_added(name, &error)),
        None => Err(Failure::interrupted(
            name,
            "the job may have been added, or will be: the server did not confirm that the statement was cancelled",
        )
        .with_hint(HINT)),
    }
}

/// The add failed.
fn lost_or_refused(error: Error) -> Failure {
    match error.may_have_happened() {
        true => Failure::from(error).and("the job may have been added: the reply was lost").with_hint(HINT),
        false => Failure::from(error),
    }
}

/// The add failed after a signal.
fn not_added(name: &str, error: &Error) -> Failure {
    match (error.may_have_happened(), error.db_code()) {
        (true, _) => {
            Failure::interrupted(name, "the job may have been added: the reply was lost").with_hint(HINT)
        }
        // The statement was cancelled.
        (false, Some("57014")) => Failure::interrupted(name, "no job was added"),
        (false, _) => Failure::interrupted(name, "no job was added").and(error.message()),
    }
}
