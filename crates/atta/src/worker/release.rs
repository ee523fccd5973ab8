//! Releasing: the only place that gives up a lock on a job.
//!
//! Completed, failed and returned jobs are written in batches, a statement a kind. Every statement checks that the
//! job is still ours and at the same attempt, so a worker that was taken for dead changes nothing, not even of what it has
//! claimed again since. A batch that fails for a reason of its own is written job by job, so that one bad row does not keep
//! the others; what is transient is tried again for ever. Nothing is told before it is written.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use deadpool_postgres::Object;
use futures_util::future::join_all;
use tokio_postgres::types::{ToSql, Type};

use super::Shared;
use super::backoff::Backoff;
use super::run::{Finished, Outcome};
use crate::db::pool;
use crate::event::WorkerEvent;
use crate::job::{FIRST_TIME, LAST_TIME};
use crate::{Error, Result, Retry};

/// What can be written by one statement: the kind, and by what the claims are known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Batch {
    kind: Kind,
    attempt: i16,
    has_key: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Complete,
    Fail,
    /// Gives back what was begun: it may have to wait.
    Interrupt,
    /// Gives back what was not begun.
    Return,
}

impl Batch {
    fn of(finished: &Finished) -> Batch {
        let kind = match finished.outcome {
            Outcome::Completed => Kind::Complete,
            Outcome::Failed(_) => Kind::Fail,
            Outcome::Interrupted => Kind::Interrupt,
            Outcome::NotStarted => Kind::Return,
        };
        Batch { kind, attempt: finished.job.attempts, has_key: finished.job.key.is_some() }
    }
}

/// Writes the outcomes, however long that takes; then, and only then, tells of them.
///
/// Gives up only when the worker leaves without its database; then the locks stay for the recovery to find.
///
/// `in_doubt` says that these jobs may have been written already, over a connection that was lost.
pub(crate) async fn release(shared: &Arc<Shared>, finished: Vec<Finished>, in_doubt: bool) {
    let mut batches: BTreeMap<Batch, Vec<Finished>> = BTreeMap::new();
    for one in finished {
        batches.entry(Batch::of(&one)).or_default().push(one);
    }
    let written = batches.into_iter().map(|(batch, jobs)| release_batch(shared, batch, jobs, in_doubt));
    join_all(written).await;
}

async fn release_batch(shared: &Arc<Shared>, batch: Batch, mut left: Vec<Finished>, mut in_doubt: bool) {
    let mut backoff = Backoff::default();
    // After a lost connection nobody knows whether the last try was written: a job that is no longer ours then is
    // taken to be so by our own doing.
    while !left.is_empty() {
        match write(shared, batch, &left, in_doubt).await {
            Ok(owned) => return tell(shared, left, &owned, in_doubt),
            Err(error) if error.is_transient() => {
                tracing::warn!(%error, jobs = left.len(), "could not release jobs, trying again");
                in_doubt |= error.may_have_happened();
            }
            Err(error) => {
                tracing::error!(%error, jobs = left.len(), "could not release jobs, trying one by one");
                left = release_one_by_one(shared, batch, left, in_doubt).await;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next()) => {}
            () = shared.leave.cancelled() => return,
        }
    }
}

/// Gives back those that could not be written.
async fn release_one_by_one(
    shared: &Arc<Shared>,
    batch: Batch,
    finished: Vec<Finished>,
    in_doubt: bool,
) -> Vec<Finished> {
    let mut left = Vec::new();
    for one in finished {
        let one = vec![one];
        match write(shared, batch, &one, in_doubt).await {
            Ok(owned) => tell(shared, one, &owned, in_doubt),
            Err(error) => {
                tracing::error!(%error, job = one[0].job.id, "could not release a job");
                left.extend(one.into_iter().map(|one| without_what_is_refused(one, &error)));
            }
        }
    }
    left
}

/// What the database will not have for its value (a payload that is nested too deeply, a letter that its encoding does not
/// know) is left out of the next try, or the job would never be released.
fn without_what_is_refused(mut one: Finished, error: &Error) -> Finished {
    let is_about_values =
        error.db_code().is_some_and(|code| code.starts_with("22") || code.starts_with("54"));
    let Outcome::Failed(failure) = &mut one.outcome else { return one };
    if !is_about_values {
        return one;
    }
    failure.error = match failure.payload.take() {
        Some(_) => {
            format!("{}\n(its next payload was not stored: {})", failure.error, error.message()).into()
        }
        None => failure.error.replace(|c: char| !c.is_ascii(), "?").into(),
    };
    one
}

/// One try on one connection. Gives back the ids of the jobs that were still ours.
async fn write(shared: &Shared, batch: Batch, finished: &[Finished], in_doubt: bool) -> Result<Vec<i64>> {
    let client = &pool::get(&shared.lane_pool, "releasing jobs").await?;
    let ids: Vec<i64> = finished.iter().map(|one| one.job.id).collect();
    let mut parameters: Vec<(&(dyn ToSql + Sync), Type)> =
        vec![(&batch.attempt, Type::INT2), (&batch.has_key, Type::BOOL)];
    match batch.kind {
        Kind::Complete => {
            let is_queued = finished.iter().any(|one| one.job.job_queue_id.is_some());
            let sql =
                if is_queued { &shared.sql.complete_claimed_queued } else { &shared.sql.complete_claimed };
            query(shared, client, "completing jobs", sql, &ids, &parameters).await
        }
        Kind::Fail => {
            let failures = Failures::of(finished);
            parameters.extend(failures.parameters().into_iter().skip(1));
            query(shared, client, "failing jobs", &shared.sql.fail_claimed, &ids, &parameters).await
        }
        Kind::Interrupt | Kind::Return => {
            let is_begun = batch.kind == Kind::Interrupt;
            let delay = if is_begun { shared.interrupted_job_retry_delay.as_secs_f64() } else { 0.0 };
            // Those that were held have no such time.
            let times: Option<Vec<_>> = finished.iter().map(|one| one.job.locked_at).collect();
            let claimed_at = times.filter(|_| in_doubt);
            parameters.push((&delay, Type::FLOAT8));
            parameters.push((&claimed_at, Type::TIMESTAMPTZ_ARRAY));
            query(shared, client, "returning jobs", &shared.sql.return_claimed, &ids, &parameters).await
        }
    }
}

/// Gives back what was claimed for us by a statement whose answer was lost, and says how many jobs that were.
pub(crate) async fn return_unknown(shared: &Shared, known: &[i64]) -> Result<usize> {
    let client = pool::get(&shared.lane_pool, "returning jobs of a lost claim").await?;
    let sql = &shared.sql.return_unknown;
    let ids = query(shared, &client, "returning jobs of a lost claim", sql, known, &[]).await?;
    if !ids.is_empty() {
        tracing::warn!(jobs = ?ids, "the answer to a claim was lost; its jobs are given back");
    }
    Ok(ids.len())
}

/// Failures as columns, an entry a job.
pub(crate) struct Failures<'a> {
    pub(crate) ids: Vec<i64>,
    errors: Vec<&'a str>,
    payloads: Vec<Option<&'a str>>,
    delays: Vec<Option<f64>>,
    times: Vec<Option<DateTime<Utc>>>,
    given_up: Vec<bool>,
}

impl<'a> Failures<'a> {
    pub(crate) fn of(finished: &'a [Finished]) -> Failures<'a> {
        let mut columns = Failures {
            ids: vec![],
            errors: vec![],
            payloads: vec![],
            delays: vec![],
            times: vec![],
            given_up: vec![],
        };
        for Finished { job, outcome, .. } in finished {
            let Outcome::Failed(failure) = outcome else { continue };
            let (delay, time, never) = plan(failure.retry);
            columns.ids.push(job.id);
            columns.errors.push(&failure.error);
            columns.payloads.push(failure.payload.as_deref());
            columns.delays.push(delay);
            columns.times.push(time);
            columns.given_up.push(never);
        }
        columns
    }

    pub(crate) fn parameters(&self) -> [(&(dyn ToSql + Sync), Type); 6] {
        [
            (&self.ids, Type::INT8_ARRAY),
            (&self.errors, Type::TEXT_ARRAY),
            (&self.payloads, Type::TEXT_ARRAY),
            (&self.delays, Type::FLOAT8_ARRAY),
            (&self.times, Type::TIMESTAMPTZ_ARRAY),
            (&self.given_up, Type::BOOL_ARRAY),
        ]
    }
}

/// A delay in seconds, a time, and whether to give up.
fn plan(retry: Retry) -> (Option<f64>, Option<DateTime<Utc>>, bool) {
    // A hundred years are the longest: much more would overflow a timestamp.
    const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    match retry {
        Retry::Backoff => (None, None, false),
        Retry::In(delay) => (Some(delay.min(LONGEST).as_secs_f64()), None, false),
        Retry::At(time) => (None, Some(time.clamp(FIRST_TIME, LAST_TIME)), false),
        Retry::Never => (None, None, true),
    }
}

async fn query(
    shared: &Shared,
    client: &Object,
    doing: &str,
    sql: &str,
    ids: &[i64],
    more: &[(&(dyn ToSql + Sync), Type)],
) -> Result<Vec<i64>> {
    let worker_id = &*shared.worker_id;
    let mut parameters: Vec<(&(dyn ToSql + Sync), Type)> =
        vec![(&worker_id, Type::TEXT), (&ids, Type::INT8_ARRAY)];
    parameters.extend(more.iter().cloned());
    let rows = shared.query(client, sql, &parameters).await.map_err(|error| Error::database(doing, error))?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Tells of what is written, and apart from that of the jobs that were no longer ours.
pub(crate) fn tell(shared: &Arc<Shared>, mut finished: Vec<Finished>, owned: &[i64], in_doubt: bool) {
    if owned.len() < finished.len() && !in_doubt {
        let owned: HashSet<i64> = owned.iter().copied().collect();
        for lost in finished.extract_if(.., |one| !owned.contains(&one.job.id)) {
            tracing::warn!(
                job = lost.job.id,
                task = lost.job.task_identifier(),
                "the job was no longer this worker's"
            );
            shared.events.send(|| WorkerEvent::ClaimLost { job: lost.job });
        }
    }
    tell_all(shared, finished);
}

/// Events at once, hooks in a task of their own: a slow hook holds nobody up.
pub(crate) fn tell_all(shared: &Arc<Shared>, finished: Vec<Finished>) {
    for one in &finished {
        tell_event(shared, one);
    }
    if !shared.hooks.is_empty() {
        let hooks = shared.hooks.clone();
        shared.hook_tasks.spawn(async move {
            for Finished { job, outcome, .. } in &finished {
                match outcome {
                    Outcome::Completed => hooks.call("on_complete", |it| it.on_complete(job)).await,
                    Outcome::Interrupted => hooks.call("on_interruption", |it| it.on_interruption(job)).await,
                    Outcome::NotStarted => {}
                    Outcome::Failed(failure) if failure.is_for_good(job) => {
                        hooks
                            .call("on_permanent_failure", |it| it.on_permanent_failure(job, &failure.error))
                            .await;
                    }
                    Outcome::Failed(failure) => {
                        hooks.call("on_fail", |it| it.on_fail(job, &failure.error)).await
                    }
                }
            }
        });
    }
}

fn tell_event(shared: &Shared, Finished { job, outcome, duration, .. }: &Finished) {
    let events = &shared.events;
    match outcome {
        Outcome::Completed => {
            tracing::info!(job = job.id, task = job.task_identifier(), ?duration, "job completed");
            events.send(|| WorkerEvent::JobSucceeded { job: job.clone(), duration: *duration });
            events.send(|| WorkerEvent::JobCompleted { job: job.clone(), error: None });
        }
        Outcome::Failed(failure) => {
            let (error, for_good) = (&failure.error, failure.is_for_good(job));
            let (id, task, attempt, of) = (job.id, job.task_identifier(), job.attempts, job.max_attempts);
            tracing::error!(job = id, task, attempt, of, for_good, %error, "job failed");
            events.send(|| WorkerEvent::JobErrored { job: job.clone(), error: error.clone() });
            if for_good {
                events.send(|| WorkerEvent::JobFailed { job: job.clone(), error: error.clone() });
            }
            events.send(|| WorkerEvent::JobCompleted { job: job.clone(), error: Some(error.clone()) });
        }
        Outcome::Interrupted => {
            tracing::warn!(
                job = job.id,
                task = job.task_identifier(),
                "job interrupted by the shutdown, given back"
            );
            events.send(|| WorkerEvent::JobInterrupted { job: job.clone() });
        }
        Outcome::NotStarted => {}
    }
}
