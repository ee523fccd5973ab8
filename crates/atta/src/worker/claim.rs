//! Claiming: the only place that takes a lock on a job.

use std::sync::{Arc, PoisonError};

use deadpool_postgres::Object;
use serde_json::value::RawValue;
use tokio_postgres::Row;
use tokio_postgres::types::{Json, Type};

use super::Shared;
use crate::{Error, Job, Result};

/// Claims up to `limit` due jobs durably, and gives them in the order in which they are to run: queued ones of all
/// tasks, and of these tasks also those without a queue.
pub(crate) async fn claim_jobs(
    shared: &Shared,
    client: &Object,
    limit: usize,
    unqueued: &[String],
) -> Result<Vec<Job>> {
    let forbidden = shared.forbidden_flags.now().await;
    let now = shared.local_now();
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = shared
        .query(
            client,
            &shared.sql.claim_jobs,
            &[
                (&&*shared.worker_id, Type::TEXT),
                (&shared.task_identifiers, Type::TEXT_ARRAY),
                (&forbidden, Type::TEXT_ARRAY),
                (&now, Type::TIMESTAMPTZ),
                (&limit, Type::INT8),
                (&unqueued, Type::TEXT_ARRAY),
            ],
        )
        .await
        .map_err(|error| Error::database("claiming jobs", error))?;
    let jobs: Result<Vec<Job>, tokio_postgres::Error> = rows.iter().map(read_claimed).collect();
    let mut jobs = jobs.map_err(|error| Error::database("reading claimed jobs", error))?;
    // An UPDATE returns its rows in any order.
    jobs.sort_by_key(Job::order);
    Ok(jobs)
}

/// Reads held jobs, in the order in which they are to run.
pub(crate) async fn read_picked(shared: &Shared, client: &Object, rows: &[Row]) -> Result<Vec<Arc<Job>>> {
    let failed = |error| Error::database("reading claimed jobs", error);
    let mut jobs = Vec::with_capacity(rows.len());
    for row in rows {
        let task_id: i32 = row.try_get("task_id").map_err(failed)?;
        let name = match task_name(shared, task_id) {
            Some(name) => name,
            None => learn_task_name(shared, client, task_id).await.map_err(failed)?,
        };
        jobs.push(Arc::new(read_job(row, &name).map_err(failed)?));
    }
    Ok(jobs)
}

fn task_name(shared: &Shared, id: i32) -> Option<Arc<str>> {
    shared.task_names.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
}

async fn learn_task_name(
    shared: &Shared,
    client: &Object,
    id: i32,
) -> Result<Arc<str>, tokio_postgres::Error> {
    let rows = shared.query(client, &shared.sql.read_tasks, &[(&[id].as_slice(), Type::INT4_ARRAY)]).await?;
    let name: Arc<str> = rows.first().map_or("", |row| row.get("identifier")).into();
    shared.task_names.lock().unwrap_or_else(PoisonError::into_inner).insert(id, name.clone());
    Ok(name)
}

fn read_claimed(row: &Row) -> Result<Job, tokio_postgres::Error> {
    Ok(Job {
        job_queue_id: row.try_get("job_queue_id")?,
        queue_name: row.try_get("queue_name")?,
        locked_at: row.try_get("locked_at")?,
        locked_by: row.try_get("locked_by")?,
        ..read_job(row, row.try_get("task_identifier")?)?
    })
}

/// What durable and held claims have in common.
fn read_job(row: &Row, task_identifier: &str) -> Result<Job, tokio_postgres::Error> {
    let payload: String = row.try_get("payload")?;
    let flags: Option<Json<serde_json::Map<String, serde_json::Value>>> = row.try_get("flags")?;
    Ok(Job {
        id: row.try_get("id")?,
        task_identifier: task_identifier.to_owned(),
        job_queue_id: None,
        queue_name: None,
        payload: raw(payload),
        priority: row.try_get("priority")?,
        run_at: row.try_get("run_at")?,
        attempts: row.try_get("attempts")?,
        max_attempts: row.try_get("max_attempts")?,
        last_error: row.try_get("last_error")?,
        created_at: row.try_get("created_at")?,
        updated_at: row.try_get("updated_at")?,
        key: row.try_get("key")?,
        locked_at: None,
        locked_by: None,
        revision: row.try_get("revision")?,
        flags: flags.map(|Json(flags)| flags),
    })
}

/// PostgreSQL's JSON is JSON, but for nesting deeper than our parser goes: such a payload is handed on as a text that
/// says so, and the task fails to decode it.
fn raw(payload: String) -> Box<RawValue> {
    RawValue::from_string(payload).unwrap_or_else(|error| {
        let text = format!("unreadable payload: {error}");
        serde_json::value::to_raw_value(&text).expect("a text is always JSON")
    })
}
