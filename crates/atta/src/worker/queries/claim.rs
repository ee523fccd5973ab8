//! Statements of durable claims, and of the locks that a worker has.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use chrono::{DateTime, Utc};
use deadpool_postgres::Transaction;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::super::claim::{Claimable, Level, Times};
use super::rows::{ClaimedRows, JsonText, bound};
use super::{Connection, Prepared, Texts, Value};
use crate::{Error, Job, Result};

const CLAIMING: &str = "claiming jobs";
/// Begins a claim in a session that is not ours, with the time limit that the worker's own sessions have
/// (`CLAIM_LIMITS` in the options).
const BEGIN: &str = "begin isolation level read committed; set local statement_timeout = '5s'";

const PROMOTING: &str = "claiming jobs again after a lost connection";
const RENEWING: &str = "renewing locks";

/// How many jobs with flags a claim reads of each task and priority, unless it reads all of them.
const FLAGGED_AT_ONCE: i64 = 1000;

/// The types of the parameters that the statements of general claims have in common.
const CLAIM_TYPES: &[Type] = &[
    Type::TEXT,
    Type::TEXT_ARRAY,
    Type::TEXT_ARRAY,
    Type::TIMESTAMPTZ,
    Type::INT8,
    Type::TEXT_ARRAY,
    Type::INT2,
    Type::TIMESTAMPTZ,
    Type::INT8,
    Type::INT8,
    Type::BOOL,
    Type::INT8_ARRAY,
];

/// Claims due jobs: queued ones of all tasks, and of some tasks also those without a queue. Visits every queue.
pub(crate) async fn claim_by_queue(
    connection: Connection<'_>,
    wanted: &Claimable,
    forbidden_flags: &[String],
) -> Result<ClaimedRows> {
    let text = include_str!("../../../sql/queries/claim_by_queue.sql");
    let statement = connection.prepare(CLAIMING, text, CLAIM_TYPES).await?;
    claim(connection, query_wanted(connection, &statement, wanted, forbidden_flags)).await
}

/// The same with any number of queues: reads the first due jobs.
pub(crate) async fn claim_by_job(
    connection: Connection<'_>,
    wanted: &Claimable,
    forbidden_flags: &[String],
) -> Result<ClaimedRows> {
    let text = include_str!("../../../sql/queries/claim_by_job.sql");
    let statement = connection.prepare(CLAIMING, text, CLAIM_TYPES).await?;
    claim(connection, query_wanted(connection, &statement, wanted, forbidden_flags)).await
}

/// A job that a transaction has locked, to claim it.
pub(crate) struct LockedJob {
    pub(crate) id: i64,
    pub(crate) queue_id: Option<i32>,
    pub(crate) task_identifier: Arc<str>,
}

/// Locks the jobs that a claim would claim, and their queues. Returns them in their order.
pub(crate) async fn find_claimable(
    connection: Connection<'_>,
    wanted: &Claimable,
    forbidden_flags: &[String],
) -> Result<Vec<LockedJob>> {
    let text = include_str!("../../../sql/queries/find_claimable.sql");
    let statement = connection.prepare(CLAIMING, text, CLAIM_TYPES).await?;
    let rows = query_wanted(connection, &statement, wanted, forbidden_flags).await?;
    let read = |row: &Row| {
        let task_identifier: &str = row.try_get(2)?;
        Ok(LockedJob {
            id: row.try_get(0)?,
            queue_id: row.try_get(1)?,
            task_identifier: task_identifier.into(),
        })
    };
    rows.iter().map(read).collect::<Result<_, _>>().map_err(|error| Error::database(CLAIMING, error))
}

/// Claims one job that the transaction has locked. The future sends the statement.
pub(crate) async fn mark_claimed<'a>(
    connection: Connection<'a>,
    job: &'a LockedJob,
) -> Result<impl Future<Output = Result<Vec<Row>>> + use<'a>> {
    const TYPES: &[Type] = &[Type::TEXT, Type::INT8, Type::INT4, Type::TIMESTAMPTZ];
    let text = include_str!("../../../sql/queries/mark_claimed.sql");
    let statement = connection.prepare(CLAIMING, text, TYPES).await?;
    let shared = connection.shared;
    Ok(async move {
        let (worker_id, now) = (&*shared.worker_id, shared.local_now());
        statement.query(&[&worker_id, &job.id, &job.queue_id, &now]).await
    })
}

async fn query_wanted(
    connection: Connection<'_>,
    statement: &Prepared<'_>,
    wanted: &Claimable,
    forbidden_flags: &[String],
) -> Result<Vec<Row>> {
    let shared = connection.shared;
    let (worker_id, now, limit) = (&*shared.worker_id, shared.local_now(), limit(wanted.count));
    let (priority, run_at, id) = bound(wanted.before);
    let reads_all = forbidden_flags.is_empty() || wanted.reads_all_flagged;
    let flagged = if reads_all { i64::MAX } else { FLAGGED_AT_ONCE };
    let values: [Value<'_>; 12] = [
        &worker_id,
        &wanted.tasks,
        &forbidden_flags,
        &now,
        &limit,
        &wanted.unqueued,
        &priority,
        &run_at,
        &id,
        &flagged,
        &wanted.looks_ahead,
        &wanted.left_out,
    ];
    statement.query(&values).await
}

/// Claims due jobs of one task and priority, if there are no others that this worker could claim.
pub(crate) async fn claim_level(
    connection: Connection<'_>,
    wanted: &Claimable,
    level: &Level,
) -> Result<ClaimedRows> {
    const TYPES: &[Type] = &[
        Type::TEXT,
        Type::TEXT,
        Type::INT2,
        Type::TIMESTAMPTZ,
        Type::INT8,
        Type::TEXT_ARRAY,
        Type::TIMESTAMPTZ,
        Type::INT8,
        Type::TIMESTAMPTZ,
        Type::INT8,
        Type::BOOL,
    ];
    let text = include_str!("../../../sql/queries/claim_level.sql");
    let statement = connection.prepare(CLAIMING, text, TYPES).await?;
    let shared = connection.shared;
    let (worker_id, now, limit) = (&*shared.worker_id, shared.local_now(), limit(wanted.count));
    let (after_time, after_id) = level.position.unzip();
    let (last_time, last_id) = level.ahead.map(|(position, _)| position).unzip();
    let task = &*level.task_identifier;
    let values: [Value<'_>; 11] = [
        &worker_id,
        &task,
        &level.priority,
        &now,
        &limit,
        &wanted.unqueued,
        &after_time,
        &after_id,
        &last_time,
        &last_id,
        &wanted.looks_ahead,
    ];
    claim(connection, statement.query(&values)).await
}

fn limit(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

async fn claim(
    connection: Connection<'_>,
    sent: impl Future<Output = Result<Vec<Row>>>,
) -> Result<ClaimedRows> {
    let asked_at = Instant::now();
    let rows = connection.alone_after(BEGIN, CLAIMING, sent).await?;
    Ok(ClaimedRows::new(rows, asked_at))
}

/// Held jobs of a lost connection, after an attempt to claim them durably.
pub(crate) struct Promoted {
    /// Those that this worker has now, and when it claimed them.
    pub(crate) ours: Times,
    /// Those that another transaction keeps locked.
    pub(crate) blocked: HashSet<i64>,
}

/// Durably claims those of these jobs that were not changed since this worker held them.
pub(crate) async fn promote_untouched(connection: Connection<'_>, jobs: &[Arc<Job>]) -> Result<Promoted> {
    const TYPES: &[Type] =
        &[Type::TEXT, Type::INT8_ARRAY, Type::INT2_ARRAY, Type::INT4_ARRAY, Type::TIMESTAMPTZ_ARRAY];
    let text = include_str!("../../../sql/queries/promote_untouched.sql");
    let statement = connection.prepare(PROMOTING, text, TYPES).await?;
    let worker_id = &*connection.shared.worker_id;
    let ids: Vec<i64> = jobs.iter().map(|job| job.id).collect();
    let attempts: Vec<i16> = jobs.iter().map(|job| job.attempts - 1).collect();
    let revisions: Vec<i32> = jobs.iter().map(|job| job.revision).collect();
    let created_at: Vec<DateTime<Utc>> = jobs.iter().map(|job| job.created_at).collect();
    let values: [Value<'_>; 5] = [&worker_id, &ids, &attempts, &revisions, &created_at];
    let mut promoted = Promoted { ours: Times::new(), blocked: HashSet::new() };
    for row in connection.alone(PROMOTING, statement.query(&values)).await? {
        let (id, locked_at): (i64, Option<DateTime<Utc>>) = (row.get(0), row.get(1));
        match locked_at {
            Some(locked_at) => drop(promoted.ours.insert(id, locked_at)),
            None => drop(promoted.blocked.insert(id)),
        }
    }
    Ok(promoted)
}

/// Renews the locks of jobs that this worker has. Returns the new times.
pub(crate) async fn refresh_locks(connection: Connection<'_>, ids: &[i64]) -> Result<Times> {
    const TYPES: &[Type] = &[Type::TEXT, Type::INT8_ARRAY];
    let text = include_str!("../../../sql/queries/refresh_locks.sql");
    let statement = connection.prepare(RENEWING, text, TYPES).await?;
    let worker_id = &*connection.shared.worker_id;
    let rows = connection.alone(RENEWING, statement.query(&[&worker_id, &ids])).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Reads the payload of a job that this worker has claimed. None: the job is gone.
pub(crate) async fn read_payload(connection: Connection<'_>, id: i64) -> Result<Option<Box<str>>> {
    let doing = "reading a payload";
    let text = include_str!("../../../sql/queries/read_payload.sql");
    let statement = connection.prepare(doing, text, const { &[Type::INT8] }).await?;
    let rows = statement.query(&[&id]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let JsonText(payload) = row.try_get(0).map_err(|error| Error::database(doing, error))?;
    Ok(Some(payload))
}

/// Permanently fails due jobs of these tasks whose text the server can't send. Returns their ids as a JSON array.
///
/// The statement is a `do` block, which has neither parameters nor rows: settings of the transaction carry them.
pub(crate) async fn fail_unreadable_jobs(
    transaction: &Transaction<'_>,
    texts: &Texts,
    tasks: &[String],
    forbidden_flags: &[String],
) -> Result<String, tokio_postgres::Error> {
    const SET: &str = "select pg_catalog.set_config('atta.task_identifiers', $1::text, true), \
                       pg_catalog.set_config('atta.forbidden_flags', $2::text, true)";
    const READ: &str = "select pg_catalog.current_setting('atta.unreadable_jobs')";
    let json = |texts: &[String]| serde_json::to_string(texts).expect("text is JSON");
    let (tasks, flags) = (json(tasks), json(forbidden_flags));
    transaction.query_typed(SET, &[(&tasks, Type::TEXT), (&flags, Type::TEXT)]).await?;
    let text = texts.get(include_str!("../../../sql/queries/fail_unreadable_jobs.sql"));
    transaction.batch_execute(&text).await?;
    transaction.query_typed_one(READ, &[]).await?.try_get(0)
}
