//! The statements of heartbeats and recovery: one function per file in `sql/queries`, named like its file.

use chrono::{DateTime, Utc};
use deadpool_postgres::ClientWrapper;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error as DatabaseError, Row};

use super::OwnHeartbeats;
use crate::Result;
use crate::worker::Shared;
use crate::worker::queries::{Connection, Value};

const RECOVERING: &str = "recovering jobs";

/// How many jobs one statement recovers, so that it never takes long.
pub(crate) const BATCH: i64 = 1000;

/// The server's answer to a heartbeat.
pub(crate) struct ServerTimes {
    pub(crate) server_started_at: DateTime<Utc>,
    pub(crate) server_now: DateTime<Utc>,
}

fn read_times(rows: &[Row]) -> Option<ServerTimes> {
    let row = rows.first()?;
    Some(ServerTimes { server_started_at: row.get("server_started_at"), server_now: row.get("server_now") })
}

/// Records a heartbeat. None: the worker is not registered, or was declared dead.
///
/// This and the next two statements are sent unnamed: behind a pooler, each may run on another server connection.
pub(crate) async fn heartbeat(
    client: &ClientWrapper,
    shared: &Shared,
) -> Result<Option<ServerTimes>, DatabaseError> {
    let text = shared.texts.get(include_str!("../../sql/queries/heartbeat.sql"));
    let rows = client.query_typed(&text, &[(&&*shared.worker_id, Type::TEXT)]).await?;
    Ok(read_times(&rows))
}

/// The server's answer to a registration.
pub(crate) struct Registered {
    pub(crate) times: ServerTimes,
    /// Whether other workers have declared this one dead.
    pub(crate) was_declared_dead: bool,
}

/// Registers the worker, or registers it again after it was declared dead, or after its row was lost. `host` is the
/// machine's name, for people who read the table.
pub(crate) async fn register_worker(
    client: &ClientWrapper,
    shared: &Shared,
    host: &str,
) -> Result<Option<Registered>, DatabaseError> {
    let text = shared.texts.get(include_str!("../../sql/queries/register_worker.sql"));
    let slots = i32::try_from(shared.slots).unwrap_or(i32::MAX);
    let pid = i32::try_from(std::process::id()).unwrap_or_default();
    let parameters: [(&(dyn ToSql + Sync), Type); 7] = [
        (&&*shared.worker_id, Type::TEXT),
        (&host, Type::TEXT),
        (&pid, Type::INT4),
        (&env!("CARGO_PKG_VERSION"), Type::TEXT),
        (&shared.task_identifiers, Type::TEXT_ARRAY),
        (&slots, Type::INT4),
        (&shared.recovery_threshold.as_secs_f64(), Type::FLOAT8),
    ];
    let rows = client.query_typed(&text, &parameters).await?;
    let was_declared_dead = rows.first().is_some_and(|row| row.get("was_declared_dead"));
    Ok(read_times(&rows).map(|times| Registered { times, was_declared_dead }))
}

/// Deregisters a worker that has released all its jobs.
pub(crate) async fn deregister_worker(client: &ClientWrapper, shared: &Shared) -> Result<(), DatabaseError> {
    let text = shared.texts.get(include_str!("../../sql/queries/deregister_worker.sql"));
    client.query_typed(&text, &[(&&*shared.worker_id, Type::TEXT)]).await.map(drop)
}

/// Declares stale workers dead. Returns their ids.
pub(crate) async fn declare_dead(connection: Connection<'_>, own: OwnHeartbeats) -> Result<Vec<String>> {
    const TYPES: &[Type] = &[Type::TEXT, Type::FLOAT8, Type::FLOAT8, Type::TIMESTAMPTZ];
    let text = include_str!("../../sql/queries/declare_dead.sql");
    let statement = connection.prepare(RECOVERING, text, TYPES).await?;
    let (worker_id, shared) = (&*connection.shared.worker_id, connection.shared);
    let (continuous, threshold) = (own.continuous.as_secs_f64(), shared.recovery_threshold.as_secs_f64());
    let values: [Value<'_>; 4] = [&worker_id, &continuous, &threshold, &own.last];
    let rows = connection.alone(RECOVERING, statement.query(&values)).await?;
    Ok(rows.iter().map(|row| row.get("worker_id")).collect())
}

/// A job that was freed, and the dead worker that had it.
pub(crate) struct FreedJob {
    pub(crate) worker_id: String,
    pub(crate) job_id: i64,
}

/// Frees up to [`BATCH`] jobs of dead workers, and their queues. With `with_orphans`, also those of dead workers whose row
/// is gone.
pub(crate) async fn recover_workers(connection: Connection<'_>, with_orphans: bool) -> Result<Vec<FreedJob>> {
    const TYPES: &[Type] = &[Type::INT8, Type::INT8, Type::BOOL, Type::FLOAT8];
    let text = include_str!("../../sql/queries/recover_workers.sql");
    let statement = connection.prepare(RECOVERING, text, TYPES).await?;
    let crash_limit = i64::from(connection.shared.crash_limit);
    let delay = connection.shared.recovery_delay.as_secs_f64();
    let values: [Value<'_>; 4] = [&crash_limit, &BATCH, &with_orphans, &delay];
    let rows = connection.alone(RECOVERING, statement.query(&values)).await?;
    let freed = |row: &Row| FreedJob { worker_id: row.get("worker_id"), job_id: row.get("job_id") };
    Ok(rows.iter().map(freed).collect())
}

/// Deletes the rows of dead workers that have no locks left.
pub(crate) async fn forget_workers(connection: Connection<'_>) -> Result<()> {
    let text = include_str!("../../sql/queries/forget_workers.sql");
    let statement = connection.prepare(RECOVERING, text, &[]).await?;
    connection.alone(RECOVERING, statement.query(&[])).await.map(drop)
}

/// Frees jobs and queues by Graphile's rule of four hours. Returns how many jobs.
pub(crate) async fn sweep_stale_locks(connection: Connection<'_>) -> Result<i64> {
    let text = include_str!("../../sql/queries/sweep_stale_locks.sql");
    let statement = connection.prepare(RECOVERING, text, &[]).await?;
    let rows = connection.alone(RECOVERING, statement.query(&[])).await?;
    Ok(rows.first().map_or(0, |row| row.get("freed")))
}
