//! The statements that release jobs.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use deadpool_postgres::Object;
use futures_util::future::join3;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use super::super::Shared;
use super::super::run::{Finished, Outcome};
use super::pending::{Entry, Fate, Kind};
use crate::db::pool;
use crate::job::{FIRST_TIME, LAST_TIME};
use crate::{Error, Result, Retry};

/// Writes outcomes of one kind by one statement. Returns what became of each job whose claim was not lost.
pub(super) async fn write(shared: &Shared, entries: &[Entry], is_apart: bool) -> Result<HashMap<i64, Fate>> {
    let Some(first) = entries.first() else { return Ok(HashMap::new()) };
    let pool = if is_apart { &shared.apart_pool } else { &shared.release_pool };
    let client = &pool::get(pool, "releasing jobs").await?;
    let worker_id = &*shared.worker_id;
    let ids: Vec<i64> = entries.iter().map(|one| one.finished.job.id).collect();
    let times: Vec<Option<DateTime<Utc>>> = entries.iter().map(|one| one.locked_at).collect();
    let queues: Vec<Option<i32>> = entries.iter().map(|one| one.finished.job.job_queue_id).collect();
    let mut parameters: Vec<(&(dyn ToSql + Sync), Type)> = vec![
        (&worker_id, Type::TEXT),
        (&ids, Type::INT8_ARRAY),
        (&times, Type::TIMESTAMPTZ_ARRAY),
        (&queues, Type::INT4_ARRAY),
    ];
    let failures = Failures::of(entries.iter().map(|one| &one.finished));
    let delay = shared.interrupted_job_retry_delay.as_secs_f64();
    if entries.len() >= MANY
        && first.kind() == Kind::Complete
        && queues.iter().all(Option::is_none)
        && let Some(fates) = complete_many(shared, client, &parameters[..3]).await?
    {
        return Ok(fates);
    }
    let (doing, sql) = match first.kind() {
        Kind::Complete if queues.iter().all(Option::is_none) => {
            parameters.pop();
            ("completing jobs", &shared.sql.complete_claimed)
        }
        Kind::Complete => ("completing jobs", &shared.sql.complete_claimed_queued),
        Kind::Fail => {
            parameters.extend(failures.parameters().into_iter().skip(1));
            ("failing jobs", &shared.sql.fail_claimed)
        }
        Kind::Interrupt => {
            parameters.push((&delay, Type::FLOAT8));
            ("returning jobs", &shared.sql.return_claimed)
        }
        Kind::Return => {
            parameters.push((&0.0_f64, Type::FLOAT8));
            ("returning jobs", &shared.sql.return_claimed)
        }
    };
    let rows = match shared.use_prepared || is_apart {
        true => shared.query_alone(client, sql, &parameters).await,
        false => query_within(shared, client, BEGIN, sql, &parameters).await,
    };
    rows.map(|rows| read_fates(&rows)).map_err(|error| Error::database(doing, error))
}

fn read_fates(rows: &[Row]) -> HashMap<i64, Fate> {
    rows.iter().map(|row| (row.get(0), fate(row))).collect()
}

/// Only failures have a third column.
fn fate(row: &Row) -> Fate {
    match row.get(1) {
        true if row.len() > 2 && row.get(2) => Fate::FailedPermanently,
        true => Fate::Written,
        false => Fate::Blocked,
    }
}

/// So many completed jobs are first tried without locking them. For fewer, the limits cost more than that saves.
const MANY: usize = 50;

/// Completes jobs without a queue by the quickest statement, which waits for locked rows. None if one of them was locked for
/// too long: then nothing is written.
async fn complete_many(
    shared: &Shared,
    client: &Object,
    parameters: &[(&(dyn ToSql + Sync), Type)],
) -> Result<Option<HashMap<i64, Fate>>> {
    match query_within(shared, client, BEGIN_BRIEFLY, &shared.sql.complete_many_claimed, parameters).await {
        Ok(rows) => Ok(Some(read_fates(&rows))),
        Err(error) => match error.code() {
            Some(&SqlState::LOCK_NOT_AVAILABLE | &SqlState::T_R_DEADLOCK_DETECTED) => Ok(None),
            _ => Err(Error::database("completing jobs", error)),
        },
    }
}

/// The time limits of a batch for a session that is not ours: see `TO_RELEASE` in the options.
const BEGIN: &str =
    "begin isolation level read committed; set local statement_timeout = '1s'; set local lock_timeout = '1s'";

/// The same for a statement that waits for locked rows, so that it does not wait for long.
const BEGIN_BRIEFLY: &str = "begin isolation level read committed; set local statement_timeout = '1s'; set local lock_timeout = '10ms'";

/// A statement within the limits that `begin` sets. All is sent before the first is answered, so it is one round trip.
async fn query_within(
    shared: &Shared,
    client: &Object,
    begin: &str,
    sql: &str,
    parameters: &[(&(dyn ToSql + Sync), Type)],
) -> Result<Vec<Row>, tokio_postgres::Error> {
    shared.prepare(client, sql, parameters).await?;
    let query = shared.query(client, sql, parameters);
    let (begun, rows, committed) =
        join3(client.batch_execute(begin), query, client.batch_execute("commit")).await;
    begun?;
    let rows = rows?;
    committed?;
    Ok(rows)
}

/// Gives back what was claimed for us by a statement whose answer was lost, and says how many jobs that were, and how
/// many others keep locked.
pub(crate) async fn return_unknown(shared: &Shared, known: &[i64]) -> Result<(usize, usize)> {
    let client = pool::get(&shared.lane_pool, "returning jobs of a lost claim").await?;
    let parameters: [(&(dyn ToSql + Sync), Type); 2] =
        [(&&*shared.worker_id, Type::TEXT), (&known, Type::INT8_ARRAY)];
    let rows = shared.query_alone(&client, &shared.sql.return_unknown, &parameters).await;
    let rows = rows.map_err(|error| Error::database("returning jobs of a lost claim", error))?;
    let (returned, blocked): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.get(1));
    if !returned.is_empty() {
        let ids: Vec<i64> = returned.iter().map(|row| row.get(0)).collect();
        tracing::warn!(jobs = ?ids, "the reply to a claim was lost; its jobs are returned");
    }
    Ok((returned.len(), blocked.len()))
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
        // A job that is returned has not failed, and does not come here.
        Retry::Backoff | Retry::Return => (None, None, false),
        Retry::In(delay) => (Some(delay.min(LONGEST).as_secs_f64()), None, false),
        Retry::At(time) => (None, Some(time.clamp(FIRST_TIME, LAST_TIME)), false),
        Retry::Never => (None, None, true),
    }
}
