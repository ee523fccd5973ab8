//! One-call functions, for programs that need nothing else.

use serde::Serialize;

use crate::{Job, JobSpec, MigrationPlan, Result, WorkerOptions, WorkerUtils};

/// Sets up a worker and runs it until a signal requests a shutdown. There is no handle by which to request one.
pub async fn run(options: WorkerOptions) -> Result<()> {
    options.listen_os_shutdown_signals(true).init().await?.run().await
}

/// Sets up a worker and runs due jobs until none are left.
pub async fn run_once(options: WorkerOptions) -> Result<()> {
    options.init().await?.run_once().await
}

/// Installs or upgrades the schema, under its default name, in the database of this connection string.
pub async fn run_migrations(database_url: &str) -> Result<MigrationPlan> {
    WorkerUtils::connect(database_url)?.migrate().await
}

/// Adds one job on a new connection, which is closed afterwards. For scripts; a program that adds more jobs should keep
/// a [`WorkerUtils`].
pub async fn quick_add_job(
    database_url: &str,
    identifier: impl Into<String>,
    payload: impl Serialize,
    spec: impl Into<JobSpec>,
) -> Result<Job> {
    let utils = WorkerUtils::connect(database_url)?;
    let added = utils.add_raw_job(identifier, payload, spec).await;
    utils.pool().close();
    added
}
