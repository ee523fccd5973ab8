//! Opens the library with the user's options, for all commands that read or manage jobs.

use atta::{Schema, WorkerUtils};

use crate::args::Connection;
use crate::connect::settings;
use crate::output::Failure;

/// Opens no connection yet: the first query does.
pub(crate) async fn open(connection: &Connection) -> Result<WorkerUtils, Failure> {
    let schema = Schema::new(connection.schema.as_str())?;
    let settings = settings(connection)?;
    let pool = WorkerUtils::connect(&settings.to_string_with_password())?.pool().clone();
    Ok(WorkerUtils::new(pool, schema))
}
