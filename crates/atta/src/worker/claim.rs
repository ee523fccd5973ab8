//! Claiming: the only place that takes a lock on a job.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use deadpool_postgres::Object;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql, Type};

use super::Shared;
use super::scan::Cursor;
use crate::job::{Flags, Place, StoredTime};
use crate::{Error, Job, Result};

/// Claims up to `limit` due jobs durably, and gives them in the order in which they are to run: queued ones of all
/// tasks, and of these tasks also those without a queue. And when that was asked, and how long it took.
pub(crate) async fn claim_jobs(
    shared: &Shared,
    client: &Object,
    limit: usize,
    unqueued: &[String],
) -> Result<(Vec<Job>, Instant, Duration)> {
    let failed = |error| Error::database("claiming jobs", error);
    let forbidden = shared.forbidden_flags.now().await?;
    let now = shared.local_now();
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let parameters: [(&(dyn ToSql + Sync), Type); 6] = [
        (&&*shared.worker_id, Type::TEXT),
        (&shared.task_identifiers, Type::TEXT_ARRAY),
        (&forbidden, Type::TEXT_ARRAY),
        (&now, Type::TIMESTAMPTZ),
        (&limit, Type::INT8),
        (&unqueued, Type::TEXT_ARRAY),
    ];
    shared.prepare(client, &shared.sql.claim_jobs, &parameters).await.map_err(failed)?;
    let asked_at = Instant::now();
    let rows = shared.query(client, &shared.sql.claim_jobs, &parameters).await.map_err(failed)?;
    let took = asked_at.elapsed();
    let jobs: Result<Vec<Job>, tokio_postgres::Error> = rows.iter().map(read_claimed).collect();
    let mut jobs = jobs.map_err(|error| Error::database("reading claimed jobs", error))?;
    // An UPDATE returns its rows in any order.
    jobs.sort_by_key(Job::order);
    Ok((jobs, asked_at, took))
}

/// Reads held jobs, in the order in which they are to run.
pub(crate) async fn read_picked(shared: &Shared, client: &Object, rows: &[Row]) -> Result<Vec<Arc<Job>>> {
    let failed = |error| Error::database("reading claimed jobs", error);
    let mut jobs = Vec::with_capacity(rows.len());
    let mut last: Option<(i32, Arc<str>)> = None;
    for row in rows {
        let task_id: i32 = row.try_get(COLUMNS).map_err(failed)?;
        let name = match &last {
            // Most often they are of one task.
            Some((id, name)) if *id == task_id => name.clone(),
            _ => task_name(shared, client, task_id).await.map_err(failed)?,
        };
        let place = row.try_get(COLUMNS + 1).map_err(failed)?;
        jobs.push(Arc::new(Job { place, ..read_job(row, name.clone()).map_err(failed)? }));
        last = Some((task_id, name));
    }
    Ok(jobs)
}

/// Where a picked job stands.
pub(crate) fn read_cursor(row: &Row) -> Result<Cursor> {
    let failed = |error| Error::database("reading claimed jobs", error);
    Ok(Cursor {
        priority: row.try_get(2).map_err(failed)?,
        run_at: Some(row.try_get(3).map_err(failed)?),
        id: row.try_get(0).map_err(failed)?,
    })
}

/// The identifier of a task, asked for once.
async fn task_name(shared: &Shared, client: &Object, id: i32) -> Result<Arc<str>, tokio_postgres::Error> {
    let known = || shared.task_names.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(name) = known().get(&id) {
        return Ok(name.clone());
    }
    let rows = shared.query(client, &shared.sql.read_tasks, &[(&[id].as_slice(), Type::INT4_ARRAY)]).await?;
    let name: Arc<str> = rows.first().map_or("", |row| row.get("identifier")).into();
    known().insert(id, name.clone());
    Ok(name)
}

fn read_claimed(row: &Row) -> Result<Job, tokio_postgres::Error> {
    let task_identifier: &str = row.try_get(COLUMNS)?;
    Ok(Job {
        job_queue_id: row.try_get(COLUMNS + 1)?,
        queue_name: row.try_get(COLUMNS + 2)?,
        locked_at: row.try_get(COLUMNS + 3)?,
        locked_by: row.try_get(COLUMNS + 4)?,
        ..read_job(row, task_identifier.into())?
    })
}

/// The columns that durable and held claims have in common, and begin with: `read_job` reads them. By their place,
/// since looking for a name costs as much as all the rest of reading a column.
const COLUMNS: usize = 12;

fn read_job(row: &Row, task_identifier: Arc<str>) -> Result<Job, tokio_postgres::Error> {
    let JsonText(payload) = row.try_get(1)?;
    let (StoredTime(created_at), StoredTime(updated_at)) = (row.try_get(7)?, row.try_get(8)?);
    let flags: Option<FlagsColumn> = row.try_get(11)?;
    Ok(Job {
        id: row.try_get(0)?,
        task_identifier,
        job_queue_id: None,
        queue_name: None,
        payload,
        priority: row.try_get(2)?,
        run_at: row.try_get(3)?,
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
struct JsonText(Box<str>);

impl<'a> FromSql<'a> for JsonText {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<JsonText, Box<dyn std::error::Error + Sync + Send>> {
        Ok(JsonText(std::str::from_utf8(raw)?.into()))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::JSON
    }
}

/// Flags, if they are what the functions write. Whatever somebody else put there keeps no job from being claimed.
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
