//! From what the user said to the library: one place for all commands that look and steer.

use atta::{Schema, WorkerUtils};
use deadpool_postgres::{Manager, Pool, PoolError};
use tokio_postgres::NoTls;

use crate::args::Connection;
use crate::connect::{config, reason};
use crate::output::Failure;

/// Connects, so that a server that does not answer is told as just that, and not as a job that can't be listed.
pub(crate) async fn open(connection: &Connection) -> Result<WorkerUtils, Failure> {
    let schema = Schema::new(connection.schema.as_str())?;
    let manager = Manager::new(config(connection)?, NoTls);
    let pool = Pool::builder(manager)
        .max_size(2)
        .build()
        .map_err(|error| Failure::new(format!("invalid pool of connections: {error}")))?;
    let client = pool.get().await.map_err(|error| {
        let reason = match &error {
            PoolError::Backend(error) => reason(error),
            error => error.to_string(),
        };
        Failure::new(format!("can't connect to the database: {reason}")).with_hint(
            "is the server running, and is the connection string right? Give it by -c or DATABASE_URL",
        )
    })?;
    drop(client);
    Ok(WorkerUtils::new(pool, schema))
}
