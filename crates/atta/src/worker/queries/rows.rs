//! The rows of jobs that claims and picks return. Decoding them takes a while, so the caller decides when.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};

use super::super::claim::{Claimable, Level};
use super::unexpected;
use crate::job::{Flags, LAST_TIME, Order, Place, StoredTime};
use crate::worker::planner::scan::{LevelKey, LevelRequest, Request};
use crate::{Error, Job, Result};

const READING: &str = "reading claimed jobs";

/// Decoding fewer jobs than this takes no time that the next claim could use.
pub(crate) const MANY: usize = 100;

/// The rows of a durable claim.
pub(crate) struct ClaimedRows {
    pub(super) rows: Vec<Row>,
    /// When the statement was sent.
    pub(crate) asked_at: Instant,
    pub(crate) took: Duration,
}

impl ClaimedRows {
    pub(crate) fn new(rows: Vec<Row>, asked_at: Instant) -> ClaimedRows {
        ClaimedRows { rows, asked_at, took: asked_at.elapsed() }
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The level of what a claim took, and what it saw beyond that, if it brought as much as it asked for, of one level
    /// only.
    pub(crate) fn level(&self, wanted: &Claimable) -> Result<Option<Level>> {
        read_level(&self.rows, wanted).map_err(failed)
    }

    /// The jobs, in any order, as an UPDATE returns its rows. Large payloads are missing.
    pub(crate) async fn decode(self, worker_id: &Arc<str>, wanted: &Claimable) -> Result<Vec<Job>> {
        decode(self.rows, |row| read_claimed(worker_id, row, wanted).map_err(failed)).await
    }
}

/// The rows of a pick.
#[derive(Default)]
pub(crate) struct PickedRows(pub(super) Vec<Row>);

impl PickedRows {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// How many jobs each level of a pick brought, with the last job of each, and the most urgent job of all.
    #[expect(clippy::type_complexity, reason = "used in one place")]
    pub(crate) fn levels(&self, request: &Request) -> Result<(Vec<(usize, Option<Order>)>, Option<Order>)> {
        read_levels(&self.0, request)
    }

    /// The jobs, level by level. Large payloads are missing.
    pub(crate) async fn decode(self, request: &Request) -> Result<Vec<Arc<Job>>> {
        decode(self.0, |row| read_picked(row, request).map(Arc::new)).await
    }
}

fn failed(error: tokio_postgres::Error) -> Error {
    Error::database(READING, error)
}

/// Decodes rows in small steps: between them, other lanes read their answers and send their next claims. The memory of
/// each row is freed at once.
async fn decode<T>(rows: Vec<Row>, read: impl Fn(&Row) -> Result<T>) -> Result<Vec<T>> {
    let mut decoded = Vec::with_capacity(rows.len());
    for row in rows {
        if !decoded.is_empty() && decoded.len().is_multiple_of(MANY) {
            tokio::task::yield_now().await;
        }
        decoded.push(read(&row)?);
    }
    Ok(decoded)
}

/// The parameters for "only jobs before this".
pub(super) fn bound((priority, run_at, id): Order) -> (i16, Option<DateTime<Utc>>, i64) {
    (priority, Some(run_at).filter(|time| *time < LAST_TIME), id)
}

fn read_level(rows: &[Row], wanted: &Claimable) -> Result<Option<Level>, tokio_postgres::Error> {
    for row in rows {
        let last: Option<DateTime<Utc>> = row.try_get(COLUMNS + 4)?;
        let Some(last) = last else { continue };
        let ahead: (Option<DateTime<Utc>>, Option<i64>) =
            (row.try_get(COLUMNS + 5)?, row.try_get(COLUMNS + 6)?);
        return Ok(Some(Level {
            task_identifier: read_task(row, wanted)?,
            priority: read_priority(row, wanted.priority())?,
            position: Some((last, row.try_get(0)?)),
            ahead: ahead.0.zip(ahead.1).map(|position| (position, rows.len())),
        }));
    }
    Ok(None)
}

/// Reads a held job. Its task is that of its level. A large payload is left out, to be read apart.
fn read_picked(row: &Row, request: &Request) -> Result<Job> {
    let level = level_of(row, request)?;
    let place = row.try_get(COLUMNS + 1).map_err(failed)?;
    let LevelKey { task_identifier, priority, .. } = &level.key;
    Ok(Job { place, ..read_job(row, task_identifier.clone(), Some(*priority)).map_err(failed)? })
}

#[expect(clippy::type_complexity, reason = "used in one place")]
fn read_levels(rows: &[Row], request: &Request) -> Result<(Vec<(usize, Option<Order>)>, Option<Order>)> {
    if let ([level], [first, ..]) = (&*request.levels, rows) {
        // The next pick waits for this result. With one level, the first and the last row suffice.
        let (last, priority) = (&rows[rows.len() - 1], Some(level.key.priority));
        let order = |row| read_order(row, priority);
        return Ok((vec![(rows.len(), Some(order(last)?))], Some(order(first)?)));
    }
    let (mut levels, mut most_urgent) = (vec![(0, None); request.levels.len()], None);
    // The rows of a level follow one another.
    for rows in rows.chunk_by(|one, other| level_number(one).ok() == level_number(other).ok()) {
        let level = levels.get_mut(level_number(&rows[0])?).ok_or_else(unknown_level)?;
        let (first, last) = (read_order(&rows[0], None)?, read_order(&rows[rows.len() - 1], None)?);
        *level = (rows.len(), Some(last));
        most_urgent = Some(most_urgent.map_or(first, |other: Order| other.min(first)));
    }
    Ok((levels, most_urgent))
}

fn level_of<'a>(row: &Row, request: &'a Request) -> Result<&'a LevelRequest> {
    match &*request.levels {
        [level] => Ok(level),
        levels => levels.get(level_number(row)?).ok_or_else(unknown_level),
    }
}

/// Levels are numbered from 1.
fn level_number(row: &Row) -> Result<usize> {
    let number: i32 = row.try_get(COLUMNS).map_err(failed)?;
    usize::try_from(number - 1).map_err(|_| unknown_level())
}

fn unknown_level() -> Error {
    unexpected(READING)
}

fn read_order(row: &Row, priority: Option<i16>) -> Result<Order> {
    let priority = read_priority(row, priority).map_err(failed)?;
    let StoredTime(run_at) = row.try_get(3).map_err(failed)?;
    Ok((priority, run_at, row.try_get(0).map_err(failed)?))
}

/// The priority of a job: the known one of all jobs, or that of the row.
fn read_priority(row: &Row, known: Option<i16>) -> Result<i16, tokio_postgres::Error> {
    known.map_or_else(|| row.try_get(2), Ok)
}

/// The task of a durably claimed job: that of the level, or the one that the row names.
fn read_task(row: &Row, wanted: &Claimable) -> Result<Arc<str>, tokio_postgres::Error> {
    let named: Option<&str> = row.try_get(COLUMNS)?;
    let of_level = wanted.level.as_ref().map(|level| &level.task_identifier);
    Ok(named.map_or_else(|| of_level.cloned().unwrap_or_default(), Arc::from))
}

fn read_claimed(worker_id: &Arc<str>, row: &Row, wanted: &Claimable) -> Result<Job, tokio_postgres::Error> {
    Ok(Job {
        job_queue_id: row.try_get(COLUMNS + 1)?,
        queue_name: row.try_get(COLUMNS + 2)?,
        locked_at: row.try_get(COLUMNS + 3)?,
        locked_by: Some(worker_id.clone()),
        ..read_job(row, read_task(row, wanted)?, wanted.priority())?
    })
}

/// The number of columns with which both durable and held claims begin. `read_job` reads them by position, since a
/// search by name doubles the cost of reading a column.
const COLUMNS: usize = 13;

fn read_job(
    row: &Row,
    task_identifier: Arc<str>,
    priority: Option<i16>,
) -> Result<Job, tokio_postgres::Error> {
    let payload: Option<JsonText> = row.try_get(1)?;
    let (StoredTime(created_at), StoredTime(updated_at)) = (row.try_get(7)?, row.try_get(8)?);
    let StoredTime(run_at) = row.try_get(3)?;
    let flags: Option<FlagsColumn> = row.try_get(11)?;
    Ok(Job {
        id: row.try_get(0)?,
        task_identifier,
        task_id: row.try_get(12)?,
        job_queue_id: None,
        queue_name: None,
        payload: payload.map(|JsonText(payload)| payload).unwrap_or_default(),
        priority: read_priority(row, priority)?,
        run_at,
        attempts: row.try_get(4)?,
        max_attempts: row.try_get(5)?,
        last_error: row.try_get(6)?,
        created_at,
        updated_at,
        key: row.try_get(9)?,
        locked_at: None,
        locked_by: None,
        revision: row.try_get(10)?,
        flags: flags.and_then(|FlagsColumn(flags)| flags),
        place: Place::default(),
    })
}

/// JSON as the server stores it. It has checked it, so we do not; the task that decodes it does.
pub(super) struct JsonText(pub(super) Box<str>);

impl<'a> FromSql<'a> for JsonText {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<JsonText, Box<dyn std::error::Error + Sync + Send>> {
        Ok(JsonText(std::str::from_utf8(raw)?.into()))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::JSON
    }
}

/// Flags, if they have the form that our functions write. Any other value counts as no flags, so that the job can still
/// be claimed.
struct FlagsColumn(Option<Flags>);

impl<'a> FromSql<'a> for FlagsColumn {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<FlagsColumn, Box<dyn std::error::Error + Sync + Send>> {
        // The first byte is the version of the format.
        Ok(FlagsColumn(raw.get(1..).and_then(|json| serde_json::from_slice(json).ok())))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::JSONB
    }
}
