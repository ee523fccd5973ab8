//! Statements about the other workers, and about jobs that were announced to several of them.

use std::time::Duration;

use tokio_postgres::types::Type;

use super::super::fleet::Group;
use super::Connection;
use crate::{Error, Result};

/// Reads which workers there are.
pub(crate) async fn read_fleet(connection: Connection<'_>) -> Result<Vec<Group>> {
    const TYPES: &[Type] = &[Type::TEXT];
    let doing = "reading the fleet";
    let text = include_str!("../../../sql/queries/read_fleet.sql");
    let statement = connection.prepare(doing, text, TYPES).await?;
    let rows = statement.query(&[&&*connection.shared.worker_id]).await?;
    let group = |row: &tokio_postgres::Row| {
        let count = |column| row.try_get(column).map(|count: i64| usize::try_from(count).unwrap_or(0));
        Ok(Group {
            task_identifiers: row.try_get("task_identifiers")?,
            workers: count("workers")?,
            before: count("before")?,
        })
    };
    rows.iter().map(group).collect::<Result<_, _>>().map_err(|error| Error::database(doing, error))
}

/// How many of some announced jobs nobody has claimed yet.
pub(crate) struct Unanswered {
    pub(crate) due: usize,
    /// Due later, but before a poll would certainly have read that.
    pub(crate) soon: usize,
}

/// Counts those of these jobs that nobody has claimed yet.
pub(crate) async fn find_unanswered(
    connection: Connection<'_>,
    ids: &[i64],
    soon: Duration,
) -> Result<Unanswered> {
    const TYPES: &[Type] = &[Type::INT8_ARRAY, Type::TIMESTAMPTZ, Type::FLOAT8];
    let doing = "checking announced jobs";
    let text = include_str!("../../../sql/queries/find_unanswered.sql");
    let statement = connection.prepare(doing, text, TYPES).await?;
    let (now, soon) = (connection.shared.local_now(), soon.as_secs_f64());
    let rows = statement.query(&[&ids, &now, &soon]).await?;
    let row = rows.first().ok_or_else(|| super::unexpected(doing))?;
    let count = |column| row.try_get(column).map(|count: i64| usize::try_from(count).unwrap_or(0));
    let failed = |error| Error::database(doing, error);
    Ok(Unanswered { due: count("due").map_err(failed)?, soon: count("soon").map_err(failed)? })
}
