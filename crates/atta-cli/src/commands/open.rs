//! From what the user said to the library: one place for all commands that look and steer.

use atta::{Schema, WorkerUtils};

use crate::args::Connection;
use crate::connect::settings;
use crate::output::Failure;

/// Opens no connection yet: that is the first question's part.
pub(crate) async fn open(connection: &Connection) -> Result<WorkerUtils, Failure> {
    let schema = Schema::new(connection.schema.as_str())?;
    let settings = settings(connection)?;
    let pool = WorkerUtils::connect(&settings.to_string_with_password())?.pool().clone();
    Ok(WorkerUtils::new(pool, schema))
}
