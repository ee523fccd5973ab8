//! What lies between us and the server: nothing that matters, or a pooler that hands out another server connection
//! for each transaction. Behind the latter prepared statements fail, and LISTEN seems to work and does not.

use std::time::Duration;

use tokio_postgres::{Client, Config, NoTls};

use crate::{Error, Result};

/// How the server is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// One server connection for each of ours.
    Direct,
    /// Server connections are shared: PgBouncer in transaction mode, say.
    Shared,
}

/// A pooler with a single server connection makes the second of our two wait for the first.
const PATIENCE: Duration = Duration::from_secs(2);

/// Finds out how the server is reached, by two connections at once.
///
/// The first leaves a mark in its session. The second opens a transaction: a pooler that shares server connections
/// gives it the one that the first has just used, and the mark with it; then the first finds itself elsewhere.
pub(crate) async fn probe(config: &Config) -> Result<Link> {
    let failed = |error| Error::database("finding out whether there is a pooler", error);
    let first = connect(config).await.map_err(failed)?;
    let second = connect(config).await.map_err(failed)?;
    let mark = format!("{:016x}", fastrand::u64(..));
    let set = "select set_config('atta.mark', $1, false)";
    first.query_typed(set, &[(&mark, tokio_postgres::types::Type::TEXT)]).await.map_err(failed)?;
    second.batch_execute("begin").await.map_err(failed)?;
    let seen_by_second = read_mark(&second).await.map_err(failed)?;
    let seen_by_first = tokio::time::timeout(PATIENCE, read_mark(&first)).await;
    second.batch_execute("commit").await.map_err(failed)?;
    let is_direct = seen_by_second != mark && matches!(&seen_by_first, Ok(Ok(seen)) if *seen == mark);
    if is_direct {
        return Ok(Link::Direct);
    }
    // Whoever gets that server connection next should not find our mark; if it stays, it harms nobody.
    let _ = first.query_typed(set, &[(&"", tokio_postgres::types::Type::TEXT)]).await;
    Ok(Link::Shared)
}

async fn connect(config: &Config) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = config.connect(NoTls).await?;
    // Ends with its client.
    tokio::spawn(connection);
    Ok(client)
}

async fn read_mark(client: &Client) -> Result<String, tokio_postgres::Error> {
    let rows = client.query_typed("select coalesce(current_setting('atta.mark', true), '')", &[]).await?;
    Ok(rows.first().map(|row| row.get(0)).unwrap_or_default())
}
