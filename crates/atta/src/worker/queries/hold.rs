//! Statements of held claims: the search for levels, the picks, and the outcomes.

use std::future::Future;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::super::claim::Times;
use super::super::planner::scan::{Gap, Kind, LevelKey, Request};
use super::rows::{PickedRows, bound};
use super::{Connection, Failures};
use crate::job::Place;
use crate::{Error, Result};

const CLAIMING: &str = "claiming jobs";
const COMMITTING: &str = "committing a batch of held jobs";

/// What a search for levels returned.
#[derive(Default)]
pub(crate) struct FoundLevels {
    /// The database's time.
    pub(crate) now: Option<DateTime<Utc>>,
    pub(crate) levels: Vec<LevelKey>,
}

/// Prepares the search for levels in these gaps. The future sends it, unless there are no gaps.
pub(crate) async fn find_levels<'a>(
    connection: Connection<'a>,
    gaps: &'a [Gap],
) -> Result<impl Future<Output = Result<FoundLevels>> + use<'a>> {
    const TYPES: &[Type] =
        &[Type::TEXT_ARRAY, Type::BOOL_ARRAY, Type::INT4_ARRAY, Type::INT4_ARRAY, Type::TIMESTAMPTZ];
    let text = include_str!("../../../sql/queries/find_levels.sql");
    let statement = connection.prepare(CLAIMING, text, TYPES).await?;
    Ok(async move {
        if gaps.is_empty() {
            return Ok(FoundLevels::default());
        }
        let tasks: Vec<&str> = gaps.iter().map(|gap| &*gap.task_identifier).collect();
        let are_flagged: Vec<bool> = gaps.iter().map(|gap| gap.kind == Kind::Flagged).collect();
        let after: Vec<i32> = gaps.iter().map(|gap| gap.after).collect();
        let before: Vec<i32> = gaps.iter().map(|gap| gap.before).collect();
        let now = connection.shared.local_now();
        read_found(&statement.query(&[&tasks, &are_flagged, &after, &before, &now]).await?)
    })
}

fn read_found(rows: &[Row]) -> Result<FoundLevels> {
    let failed = |error| Error::database(CLAIMING, error);
    let mut found = FoundLevels::default();
    for row in rows {
        let task: Option<&str> = row.try_get(1).map_err(failed)?;
        let Some(task) = task else {
            found.now = row.try_get(0).map_err(failed)?;
            continue;
        };
        let is_flagged: bool = row.try_get(2).map_err(failed)?;
        let kind = if is_flagged { Kind::Flagged } else { Kind::Plain };
        let priority = row.try_get(3).map_err(failed)?;
        found.levels.push(LevelKey { kind, priority, task_identifier: task.into() });
    }
    Ok(found)
}

/// Prepares a pick of the first level of a request. The future sends it.
pub(crate) async fn pick_level<'a>(
    connection: Connection<'a>,
    request: &'a Request,
) -> Result<impl Future<Output = Result<PickedRows>> + use<'a>> {
    let text = include_str!("../../../sql/queries/pick_level.sql");
    pick_one_level(connection, request, text).await
}

/// Prepares the same pick, from where the last pick of the fleet has ended. The future sends it, during the turn of this
/// worker.
pub(crate) async fn pick_level_in_turn<'a>(
    connection: Connection<'a>,
    request: &'a Request,
) -> Result<impl Future<Output = Result<PickedRows>> + use<'a>> {
    let text = include_str!("../../../sql/queries/pick_level_in_turn.sql");
    pick_one_level(connection, request, text).await
}

async fn pick_one_level<'a>(
    connection: Connection<'a>,
    request: &'a Request,
    text: &'static str,
) -> Result<impl Future<Output = Result<PickedRows>> + use<'a>> {
    const TYPES: &[Type] = &[
        Type::TEXT,
        Type::INT2,
        Type::TIMESTAMPTZ,
        Type::INT8,
        Type::TIMESTAMPTZ,
        Type::INT8,
        Type::TIMESTAMPTZ,
        Type::INT8,
    ];
    let statement = connection.prepare(CLAIMING, text, TYPES).await?;
    Ok(async move {
        let Some(level) = request.levels.first() else { return Ok(PickedRows::default()) };
        let (priority, run_at, id) = bound(request.before);
        // The limit is an order of jobs, so it does not limit levels of another priority.
        let is_limited = level.key.priority == priority;
        let (run_at, id) = if is_limited { (run_at, id) } else { (None, i64::MAX) };
        let (task, now) = (&*level.key.task_identifier, connection.shared.local_now());
        let after = level.after;
        let count = limit(request.count);
        let rows = statement
            .query(&[&task, &level.key.priority, &after.run_at, &after.id, &now, &count, &run_at, &id])
            .await?;
        Ok(PickedRows(rows))
    })
}

/// Prepares the wait for the turn of this worker to pick. The future returns whether the turn came within this time.
pub(crate) async fn take_scan_turn(
    connection: Connection<'_>,
    most: Duration,
) -> Result<impl Future<Output = Result<bool>> + use<'_>> {
    let text = include_str!("../../../sql/queries/take_scan_turn.sql");
    let statement = connection.prepare(CLAIMING, text, &[Type::INT4]).await?;
    Ok(async move {
        let milliseconds = i32::try_from(most.as_millis()).unwrap_or(i32::MAX);
        let rows = statement.query(&[&milliseconds]).await?;
        let row = rows.first().ok_or_else(|| super::unexpected(CLAIMING))?;
        row.try_get("is_taken").map_err(|error| Error::database(CLAIMING, error))
    })
}

/// Prepares the end of the turn, if it came. The future sends it.
pub(crate) async fn end_scan_turn(
    connection: Connection<'_>,
) -> Result<impl Future<Output = Result<()>> + use<'_>> {
    let text = include_str!("../../../sql/queries/end_scan_turn.sql");
    let statement = connection.prepare(CLAIMING, text, &[]).await?;
    Ok(async move { statement.query(&[]).await.map(|_| ()) })
}

/// Prepares a pick of jobs without flags of several levels. The future sends it, unless there are no levels.
pub(crate) async fn pick_jobs<'a>(
    connection: Connection<'a>,
    request: &'a Request,
) -> Result<impl Future<Output = Result<PickedRows>> + use<'a>> {
    const TYPES: &[Type] = &[
        Type::TEXT_ARRAY,
        Type::INT2_ARRAY,
        Type::TIMESTAMPTZ_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::TIMESTAMPTZ,
        Type::INT8,
        Type::INT2,
        Type::TIMESTAMPTZ,
        Type::INT8,
    ];
    let text = include_str!("../../../sql/queries/pick_jobs.sql");
    let statement = connection.prepare(CLAIMING, text, TYPES).await?;
    Ok(async move {
        if request.levels.is_empty() {
            return Ok(PickedRows::default());
        }
        let Levels { tasks, priorities, times, ids, limits } = Levels::of(request);
        let (now, count) = (connection.shared.local_now(), limit(request.count));
        let (priority, run_at, id) = bound(request.before);
        let rows = statement
            .query(&[&tasks, &priorities, &times, &ids, &limits, &now, &count, &priority, &run_at, &id])
            .await?;
        Ok(PickedRows(rows))
    })
}

/// Prepares a pick of jobs with flags. The future sends it, unless there are no levels.
pub(crate) async fn pick_flagged_jobs<'a>(
    connection: Connection<'a>,
    request: &'a Request,
    forbidden_flags: Vec<String>,
) -> Result<impl Future<Output = Result<PickedRows>> + use<'a>> {
    const TYPES: &[Type] = &[
        Type::TEXT_ARRAY,
        Type::INT2_ARRAY,
        Type::TIMESTAMPTZ_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::TIMESTAMPTZ,
        Type::INT8,
        Type::INT2,
        Type::TIMESTAMPTZ,
        Type::INT8,
        Type::TEXT_ARRAY,
    ];
    let text = include_str!("../../../sql/queries/pick_flagged_jobs.sql");
    let statement = connection.prepare(CLAIMING, text, TYPES).await?;
    Ok(async move {
        if request.levels.is_empty() {
            return Ok(PickedRows::default());
        }
        let Levels { tasks, priorities, times, ids, limits } = Levels::of(request);
        let (now, count) = (connection.shared.local_now(), limit(request.count));
        let (priority, run_at, id) = bound(request.before);
        let rows = statement
            .query(&[
                &tasks,
                &priorities,
                &times,
                &ids,
                &limits,
                &now,
                &count,
                &priority,
                &run_at,
                &id,
                &forbidden_flags,
            ])
            .await?;
        Ok(PickedRows(rows))
    })
}

/// The levels of a request as columns, an entry per level.
struct Levels<'a> {
    tasks: Vec<&'a str>,
    priorities: Vec<i16>,
    times: Vec<Option<DateTime<Utc>>>,
    ids: Vec<i64>,
    limits: Vec<i64>,
}

impl<'a> Levels<'a> {
    fn of(request: &'a Request) -> Levels<'a> {
        let levels = || request.levels.iter();
        Levels {
            tasks: levels().map(|level| &*level.key.task_identifier).collect(),
            priorities: levels().map(|level| level.key.priority).collect(),
            times: levels().map(|level| level.after.run_at).collect(),
            ids: levels().map(|level| level.after.id).collect(),
            limits: levels().map(|level| limit(level.limit)).collect(),
        }
    }
}

fn limit(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Prepares the deletion of held jobs that succeeded. The future sends it, and returns how many were deleted.
pub(crate) async fn complete_held<'a>(
    connection: Connection<'a>,
    places: &'a [Place],
) -> Result<impl Future<Output = Result<u64>> + use<'a>> {
    let text = include_str!("../../../sql/queries/complete_held.sql");
    let statement = connection.prepare(COMMITTING, text, const { &[Type::TID_ARRAY] }).await?;
    Ok(async move { statement.execute(&[&places]).await })
}

/// Records failures of held jobs.
pub(crate) async fn fail_held(connection: Connection<'_>, failures: &Failures<'_>) -> Result<()> {
    const TYPES: &[Type] = &[
        Type::INT8_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::FLOAT8_ARRAY,
        Type::TIMESTAMPTZ_ARRAY,
        Type::BOOL_ARRAY,
    ];
    let text = include_str!("../../../sql/queries/fail_held.sql");
    let statement = connection.prepare(COMMITTING, text, TYPES).await?;
    let Failures { ids, errors, payloads, delays, times, given_up } = failures;
    statement.query(&[ids, errors, payloads, delays, times, given_up]).await.map(drop)
}

/// Promotes held jobs to durable claims. Returns the times of these claims.
pub(crate) async fn promote_held(connection: Connection<'_>, ids: &[i64]) -> Result<Times> {
    const TYPES: &[Type] = &[Type::TEXT, Type::INT8_ARRAY];
    let text = include_str!("../../../sql/queries/promote_held.sql");
    let statement = connection.prepare(COMMITTING, text, TYPES).await?;
    let rows = statement.query(&[&&*connection.shared.worker_id, &ids]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Delays held jobs that a shutdown interrupted.
pub(crate) async fn postpone_held(connection: Connection<'_>, ids: &[i64]) -> Result<()> {
    const TYPES: &[Type] = &[Type::INT8_ARRAY, Type::FLOAT8];
    let text = include_str!("../../../sql/queries/postpone_held.sql");
    let statement = connection.prepare(COMMITTING, text, TYPES).await?;
    let delay = connection.shared.interrupted_job_retry_delay.as_secs_f64();
    statement.query(&[&ids, &delay]).await.map(drop)
}
