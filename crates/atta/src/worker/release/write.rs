//! The statements that release jobs.

use std::collections::HashSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use deadpool_postgres::Object;
use tokio_postgres::types::{ToSql, Type};

use super::super::Shared;
use super::super::run::{Finished, Outcome};
use super::pending::{Entry, Kind};
use crate::db::pool;
use crate::job::{FIRST_TIME, LAST_TIME};
use crate::{Error, Result, Retry};

/// Writes outcomes of one kind, on one connection. Returns the ids of the jobs that were still ours.
pub(super) async fn write(shared: &Shared, entries: &[Entry], is_alone: bool) -> Result<HashSet<i64>> {
    let pool = if is_alone { &shared.alone_pool } else { &shared.release_pool };
    let client = pool::get(pool, "releasing jobs").await?;
    let Some(Entry { finished, .. }) = entries.first() else { return Ok(HashSet::new()) };
    let (attempt, has_key) = (finished.job.attempts, finished.job.key.is_some());
    let owned = write_claims(shared, &client, attempt, has_key, entries).await?;
    Ok(owned.into_iter().collect())
}

async fn write_claims(
    shared: &Shared,
    client: &Object,
    attempt: i16,
    has_key: bool,
    entries: &[Entry],
) -> Result<Vec<i64>> {
    let Some(first) = entries.first() else { return Ok(Vec::new()) };
    let ids: Vec<i64> = entries.iter().map(|one| one.finished.job.id).collect();
    let mut parameters: Vec<(&(dyn ToSql + Sync), Type)> =
        vec![(&attempt, Type::INT2), (&has_key, Type::BOOL)];
    match first.kind() {
        Kind::Complete => {
            let is_queued = entries.iter().any(|one| one.finished.job.job_queue_id.is_some());
            let sql =
                if is_queued { &shared.sql.complete_claimed_queued } else { &shared.sql.complete_claimed };
            query(shared, client, "completing jobs", sql, &ids, &parameters).await
        }
        Kind::Fail => {
            let failures = Failures::of(entries.iter().map(|one| &one.finished));
            parameters.extend(failures.parameters().into_iter().skip(1));
            query(shared, client, "failing jobs", &shared.sql.fail_claimed, &ids, &parameters).await
        }
        kind @ (Kind::Interrupt | Kind::Return) => {
            let is_begun = kind == Kind::Interrupt;
            let delay = if is_begun { shared.interrupted_job_retry_delay.as_secs_f64() } else { 0.0 };
            // Those that were held have no such time.
            let times: Option<Vec<_>> = entries.iter().map(|one| one.finished.job.locked_at).collect();
            let claimed_at = times.filter(|_| entries.iter().any(|one| one.is_unknown));
            parameters.push((&delay, Type::FLOAT8));
            parameters.push((&claimed_at, Type::TIMESTAMPTZ_ARRAY));
            query(shared, client, "returning jobs", &shared.sql.return_claimed, &ids, &parameters).await
        }
    }
}

/// What the database will not have for its value (a payload that is nested too deeply, a letter that its encoding does not
/// know) is left out of the next try, or the job would never be released.
pub(super) fn without_what_is_refused(mut one: Finished, error: &Error) -> Finished {
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
    pub(crate) fn of(finished: impl IntoIterator<Item = &'a Finished>) -> Failures<'a> {
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
