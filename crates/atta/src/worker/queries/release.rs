//! Statements that release durable claims. Each has a function in two steps, since a release may need a transaction
//! with time limits.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::super::claim::KnownJobs;
use super::super::release::Fate;
use super::super::run::{Finished, Outcome};
use super::Connection;
use crate::job::{FIRST_TIME, LAST_TIME};
use crate::{Result, Retry};

const COMPLETING: &str = "completing jobs";
const FAILING: &str = "failing jobs";
const RETURNING: &str = "returning jobs";
const FINDING_UNKNOWN: &str = "searching for jobs of a lost claim";

/// The fates of jobs whose claims were not lost, by job id.
pub(crate) type Fates = HashMap<i64, Fate>;

/// Claims that end, as columns with an entry per job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claims {
    pub(crate) ids: Vec<i64>,
    /// When the jobs were claimed.
    pub(crate) times: Vec<Option<DateTime<Utc>>>,
    /// The queues of the jobs.
    pub(crate) queues: Vec<Option<i32>>,
}

/// Failures of jobs, as columns with an entry per job.
#[derive(Default)]
pub(crate) struct Failures<'a> {
    pub(crate) ids: Vec<i64>,
    pub(super) errors: Vec<&'a str>,
    pub(super) payloads: Vec<Option<&'a str>>,
    pub(super) delays: Vec<Option<f64>>,
    pub(super) times: Vec<Option<DateTime<Utc>>>,
    pub(super) given_up: Vec<bool>,
}

impl<'a> Failures<'a> {
    /// The failures among these outcomes.
    pub(crate) fn of(finished: impl IntoIterator<Item = &'a Finished>) -> Failures<'a> {
        let mut columns = Failures::default();
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

fn read_fates(rows: &[Row]) -> Fates {
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

/// Completes jobs without a queue that one claim took, and waits for locked rows.
pub(crate) async fn complete_claim(
    connection: Connection<'_>,
    ids: Vec<i64>,
    time: Option<DateTime<Utc>>,
) -> Result<impl Future<Output = Result<Fates>>> {
    const TYPES: &[Type] = &[Type::TEXT, Type::INT8_ARRAY, Type::TIMESTAMPTZ];
    let text = include_str!("../../../sql/queries/complete_claim.sql");
    let statement = connection.prepare(COMPLETING, text, TYPES).await?;
    Ok(async move {
        let rows = statement.query(&[&&*connection.shared.worker_id, &ids, &time]).await?;
        Ok(read_fates(&rows))
    })
}

/// Completes jobs without a queue.
pub(crate) async fn complete_claimed(
    connection: Connection<'_>,
    claims: &Claims,
) -> Result<impl Future<Output = Result<Fates>>> {
    const TYPES: &[Type] = &[Type::TEXT, Type::INT8_ARRAY, Type::TIMESTAMPTZ_ARRAY];
    let text = include_str!("../../../sql/queries/complete_claimed.sql");
    let statement = connection.prepare(COMPLETING, text, TYPES).await?;
    Ok(async move {
        let rows = statement.query(&[&&*connection.shared.worker_id, &claims.ids, &claims.times]).await?;
        Ok(read_fates(&rows))
    })
}

/// Completes jobs without a queue that several claims took, and waits for locked rows.
pub(crate) async fn complete_many_claimed(
    connection: Connection<'_>,
    claims: &Claims,
) -> Result<impl Future<Output = Result<Fates>>> {
    const TYPES: &[Type] = &[Type::TEXT, Type::INT8_ARRAY, Type::TIMESTAMPTZ_ARRAY];
    let text = include_str!("../../../sql/queries/complete_many_claimed.sql");
    let statement = connection.prepare(COMPLETING, text, TYPES).await?;
    Ok(async move {
        let rows = statement.query(&[&&*connection.shared.worker_id, &claims.ids, &claims.times]).await?;
        Ok(read_fates(&rows))
    })
}

/// Completes jobs of which some are in queues, and frees these queues.
pub(crate) async fn complete_claimed_queued(
    connection: Connection<'_>,
    claims: &Claims,
) -> Result<impl Future<Output = Result<Fates>>> {
    const TYPES: &[Type] = &[Type::TEXT, Type::INT8_ARRAY, Type::TIMESTAMPTZ_ARRAY, Type::INT4_ARRAY];
    let text = include_str!("../../../sql/queries/complete_claimed_queued.sql");
    let statement = connection.prepare(COMPLETING, text, TYPES).await?;
    Ok(async move {
        let Claims { ids, times, queues } = claims;
        let rows = statement.query(&[&&*connection.shared.worker_id, ids, times, queues]).await?;
        Ok(read_fates(&rows))
    })
}

/// Records failures, and frees the queues of the jobs. The failures are in the order of the claims.
pub(crate) async fn fail_claimed<'a>(
    connection: Connection<'a>,
    claims: &'a Claims,
    failures: &'a Failures<'a>,
) -> Result<impl Future<Output = Result<Fates>> + use<'a>> {
    const TYPES: &[Type] = &[
        Type::TEXT,
        Type::INT8_ARRAY,
        Type::TIMESTAMPTZ_ARRAY,
        Type::INT4_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::FLOAT8_ARRAY,
        Type::TIMESTAMPTZ_ARRAY,
        Type::BOOL_ARRAY,
    ];
    let text = include_str!("../../../sql/queries/fail_claimed.sql");
    let statement = connection.prepare(FAILING, text, TYPES).await?;
    Ok(async move {
        let (Claims { ids, times, queues }, worker_id) = (claims, &*connection.shared.worker_id);
        let Failures { errors, payloads, delays, times: due, given_up, .. } = failures;
        let rows = statement
            .query(&[&worker_id, ids, times, queues, errors, payloads, delays, due, given_up])
            .await?;
        Ok(read_fates(&rows))
    })
}

/// Returns jobs without an outcome. They become due again after this delay.
pub(crate) async fn return_claimed(
    connection: Connection<'_>,
    claims: &Claims,
    delay: Duration,
) -> Result<impl Future<Output = Result<Fates>>> {
    const TYPES: &[Type] =
        &[Type::TEXT, Type::INT8_ARRAY, Type::TIMESTAMPTZ_ARRAY, Type::INT4_ARRAY, Type::FLOAT8];
    let text = include_str!("../../../sql/queries/return_claimed.sql");
    let statement = connection.prepare(RETURNING, text, TYPES).await?;
    Ok(async move {
        let (Claims { ids, times, queues }, delay) = (claims, delay.as_secs_f64());
        let rows = statement.query(&[&&*connection.shared.worker_id, ids, times, queues, &delay]).await?;
        Ok(read_fates(&rows))
    })
}

/// Finds claims of this worker that are not among the known ones. The id of a queue that is locked without a job stands
/// for the job, with a minus.
pub(crate) async fn find_unknown(connection: Connection<'_>, known: &KnownJobs) -> Result<Claims> {
    const TYPES: &[Type] = &[Type::TEXT, Type::INT8_ARRAY, Type::INT4_ARRAY];
    let text = include_str!("../../../sql/queries/find_unknown.sql");
    let statement = connection.prepare(FINDING_UNKNOWN, text, TYPES).await?;
    let worker_id = &*connection.shared.worker_id;
    let rows =
        connection.alone(FINDING_UNKNOWN, statement.query(&[&worker_id, &known.ids, &known.queues])).await?;
    let mut claims = Claims::default();
    for row in &rows {
        claims.ids.push(row.get(0));
        claims.queues.push(row.get(1));
        claims.times.push(row.get(2));
    }
    Ok(claims)
}
