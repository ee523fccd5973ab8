//! Functions that do everything in one call, for simple programs.

use serde::Serialize;

use crate::{Error, Job, JobSpec, MigrationPlan, Result, WorkerOptions, WorkerUtils};

/// Sets up a worker and runs it until a signal requests a shutdown. To request a shutdown from code, use
/// [`WorkerOptions::init`] and [`Worker::handle`](crate::Worker::handle) instead.
///
/// If the future is dropped, the worker aborts: see [`Worker::run`](crate::Worker::run).
pub async fn run(options: WorkerOptions) -> Result<()> {
    options.listen_os_shutdown_signals(true).init().await?.run().await
}

/// Sets up a worker and runs due jobs until none are left.
///
/// If the future is dropped, the worker aborts: see [`Worker::run`](crate::Worker::run).
pub async fn run_once(options: WorkerOptions) -> Result<()> {
    options.init().await?.run_once().await
}

/// Installs or upgrades the schema.
///
/// `database` is a connection string or a pool, alone or in a tuple with a [`Schema`](crate::Schema), or a
/// [`WorkerUtils`]. Without a schema, the default schema is used.
///
/// ```no_run
/// # async fn example(pool: deadpool_postgres::Pool) -> atta::Result<()> {
/// use atta::{Schema, run_migrations};
///
/// run_migrations("postgres://localhost/app").await?;
/// run_migrations(("postgres://localhost/app", Schema::new("jobs")?)).await?;
/// run_migrations((pool, Schema::default())).await?;
/// # Ok(())
/// # }
/// ```
///
/// Cancel safe: if the future is dropped, the migration is done as a whole or not at all, except that indexes which
/// were built before may exist.
pub async fn run_migrations<D>(database: D) -> Result<MigrationPlan>
where
    D: TryInto<WorkerUtils, Error: Into<Error>>,
{
    database.try_into().map_err(Into::into)?.migrate().await
}

/// Adds one job. For scripts; a program that adds more jobs should keep a [`WorkerUtils`]. The database is given as for
/// [`run_migrations`]; connections that are opened for a connection string are closed afterwards.
///
/// Cancel safe: if the future is dropped, the job is added completely or not at all.
pub async fn quick_add_job<D>(
    database: D,
    identifier: impl Into<String>,
    payload: impl Serialize,
    spec: impl Into<JobSpec>,
) -> Result<Job>
where
    D: TryInto<WorkerUtils, Error: Into<Error>>,
{
    let utils: WorkerUtils = database.try_into().map_err(Into::into)?;
    utils.add_raw_job(identifier, payload, spec).await
}
