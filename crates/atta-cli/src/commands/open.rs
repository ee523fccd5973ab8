//! Opens the library with the user's options, for all commands that read or manage jobs.

use atta::{ConnectionSettings, Schema, WorkerUtils};

use crate::args::Connection;
use crate::connect::settings;
use crate::output::Failure;

/// Opens no connection yet: the first query does.
pub(crate) async fn open(connection: &Connection) -> Result<WorkerUtils, Failure> {
    open_with(&settings(connection)?, connection)
}

/// The same, with the settings of the connection.
pub(crate) fn open_with(
    settings: &ConnectionSettings,
    connection: &Connection,
) -> Result<WorkerUtils, Failure> {
    let schema = Schema::new(connection.schema.as_str())?;
    let pool = WorkerUtils::connect(&settings.to_string_with_password())?.pool().clone();
    Ok(WorkerUtils::new(pool, schema))
}
