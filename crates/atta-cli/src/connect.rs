//! Turns the user's options into a connection. The library parses the connection string and connects.

use atta::ConnectionSettings;
use tokio_postgres::Client;

use crate::args::Connection;
use crate::output::{Failure, warn};

/// Opens one connection.
pub(crate) async fn connect(connection: &Connection) -> Result<Client, Failure> {
    open(&settings(connection)?).await
}

/// Opens one connection with these settings.
pub(crate) async fn open(settings: &ConnectionSettings) -> Result<Client, Failure> {
    Ok(settings.connect().await?)
}

/// The settings from `-c`, or else from the environment.
pub(crate) fn settings(connection: &Connection) -> Result<ConnectionSettings, Failure> {
    let settings = match connection.connection.as_deref() {
        Some(text) => ConnectionSettings::new(text)?,
        None => ConnectionSettings::from_environment()?.ok_or_else(|| {
            Failure::new("no database given").with_hint(
                "use -c postgres://user@host/database, or set DATABASE_URL, or PGHOST and PGDATABASE; `atta dev` has \
                 its own database, which other commands in the same folder find while it runs",
            )
        })?,
    };
    for warning in settings.warnings() {
        warn(&warning);
    }
    Ok(settings)
}

/// The server's message, or why there is none.
pub(crate) fn reason(error: &tokio_postgres::Error) -> String {
    use std::error::Error;
    match error.as_db_error() {
        Some(error) => error.message().to_owned(),
        None => error.source().map_or_else(|| error.to_string(), ToString::to_string),
    }
}
