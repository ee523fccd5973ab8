//! What is between this process and the server: nothing that matters, or a pooler that uses another server connection
//! for each transaction. Behind such a pooler prepared statements fail, and LISTEN succeeds but receives nothing.

use std::time::Duration;

use tokio_postgres::Client;

use super::connection::ConnectionSettings;
use crate::{Error, Result};

/// How this process is connected to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// One server connection for each of ours.
    Direct,
    /// Server connections are shared, for example by PgBouncer in transaction mode.
    Shared,
}

/// If a pooler has only one server connection, the second of our two connections waits for the first.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often a pooler is tested. Others may use it at the same time, so one round is not enough to detect sharing.
const ROUNDS: usize = 20;

/// Finds out how this process is connected to the server.
///
/// A setting in the start-up message reaches the server's session only if nothing is in between: poolers refuse or drop
/// settings that they do not know. Even with a pooler, each of our connections may have its own server connection.
pub(crate) async fn probe(settings: &ConnectionSettings) -> Result<Link> {
    let mark = format!("{:016x}", fastrand::u64(..));
    let marked = settings.clone().with_server_options(&format!("-c atta.mark={mark}"));
    if let Ok(client) = marked.connect().await
        && read_mark(&client).await.is_ok_and(|seen| seen == mark)
    {
        return Ok(Link::Direct);
    }
    let failed = |error| Error::database("detecting a pooler", error);
    let (first, second) = (settings.connect().await?, settings.connect().await?);
    let mut is_shared = false;
    for _ in 0..ROUNDS {
        is_shared = is_shared || is_caught_sharing(&first, &second).await.map_err(failed)?;
    }
    // The next user of that server connection should not find our mark. If it stays, it does no harm.
    let _ = set_mark(&first, "").await;
    Ok(if is_shared { Link::Shared } else { Link::Direct })
}

/// The first connection sets a mark in its session. The second one opens a transaction. A pooler that shares server
/// connections gives it the one that the first has just used, with the mark; then the first gets another server
/// connection.
async fn is_caught_sharing(first: &Client, second: &Client) -> Result<bool, tokio_postgres::Error> {
    let mark = format!("{:016x}", fastrand::u64(..));
    set_mark(first, &mark).await?;
    second.batch_execute("begin").await?;
    let seen_by_second = read_mark(second).await;
    let seen_by_first = tokio::time::timeout(PATIENCE, read_mark(first)).await;
    second.batch_execute("commit").await?;
    let is_kept = seen_by_second? != mark && matches!(seen_by_first, Ok(Ok(seen)) if seen == mark);
    Ok(!is_kept)
}

async fn set_mark(client: &Client, mark: &str) -> Result<(), tokio_postgres::Error> {
    let set = "select pg_catalog.set_config('atta.mark', $1, false)";
    client.query_typed(set, &[(&mark, tokio_postgres::types::Type::TEXT)]).await.map(drop)
}

async fn read_mark(client: &Client) -> Result<String, tokio_postgres::Error> {
    let rows =
        client.query_typed("select coalesce(pg_catalog.current_setting('atta.mark', true), '')", &[]).await?;
    Ok(rows.first().map(|row| row.get(0)).unwrap_or_default())
}
