//! The statement of a poll.

use std::time::Duration;

use tokio_postgres::types::Type;

use super::Connection;
use crate::{Error, Result};

/// What a poll found.
pub(crate) struct Polled {
    /// Some may be declared dead.
    pub(crate) others_are_stale: bool,
    /// Some were declared dead, and not all of their locks are freed.
    pub(crate) others_are_dead: bool,
    pub(crate) recent_deaths: i64,
    pub(crate) functions_are_ours: bool,
    /// The table of jobs has rules, or triggers on update or delete, or is referenced by a foreign key. So the database
    /// may refuse to change some of its rows.
    pub(crate) jobs_have_triggers: bool,
    /// The same for this table or that of queues.
    pub(crate) tables_have_triggers: bool,
    /// The encoding of the database is UTF-8, or it has none. Others lack characters, and refuse texts that contain
    /// them.
    pub(crate) stores_any_text: bool,
    /// At most a hundred queues have jobs.
    pub(crate) has_few_queues: bool,
    /// Seconds from now; negative if a job is due.
    pub(crate) next_due: Vec<f64>,
}

/// Reads when the next jobs are due, and the state of the other workers. `continuous` is for how long this worker's
/// heartbeats have been continuous.
pub(crate) async fn poll(
    connection: Connection<'_>,
    tasks: &[String],
    forbidden_flags: &[String],
    continuous: Duration,
    for_jobs: bool,
) -> Result<Polled> {
    const TYPES: &[Type] = &[
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TIMESTAMPTZ,
        Type::TEXT,
        Type::FLOAT8,
        Type::FLOAT8,
        Type::BOOL,
    ];
    let shared = connection.shared;
    let text = include_str!("../../../sql/queries/poll.sql");
    let statement = connection.prepare("polling", text, TYPES).await?;
    let (now, worker_id) = (shared.local_now(), &*shared.worker_id);
    let (continuous, threshold) = (continuous.as_secs_f64(), shared.recovery_threshold.as_secs_f64());
    let rows = statement
        .query(&[&tasks, &forbidden_flags, &now, &worker_id, &continuous, &threshold, &for_jobs])
        .await?;
    let row = rows.first().ok_or_else(|| Error::unavailable("polling: the database returned no row"))?;
    Ok(Polled {
        others_are_stale: row.get("others_are_stale"),
        others_are_dead: row.get("others_are_dead"),
        recent_deaths: row.get("recent_deaths"),
        functions_are_ours: row.get("functions_are_ours"),
        jobs_have_triggers: row.get("jobs_have_triggers"),
        tables_have_triggers: row.get("tables_have_triggers"),
        stores_any_text: row.get("stores_any_text"),
        has_few_queues: row.get("has_few_queues"),
        next_due: row.get("next_due"),
    })
}
