//! sqlx: its transactions and connections.
//!
//! sqlx parses a statement in one round trip and runs it in the next. Behind a pooler in transaction mode those two can
//! reach different servers. There, another client's statement with the same name, or without a name, would run instead.
//! Within a transaction this can't happen. Outside of one, the argument is written into the statement, which is then a
//! single message. Beginning a transaction here would not be safe: see [`super`].

use sqlx::pool::PoolConnection;
use sqlx::postgres::PgDatabaseError;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Postgres, Row, Transaction};

use super::literal::with_literal;
use crate::error::DriverError;
use crate::{AddJobs, Error, Result};

impl AddJobs for Transaction<'_, Postgres> {
    async fn query_text(&mut self, sql: &str, argument: String) -> Result<Vec<String>> {
        fetch(self, sql, argument).await.map_err(error)
    }
}

/// Adds within the transaction that the caller began, by sqlx or by hand. If there is none, the jobs are committed when
/// this returns. In that case they are part of the statement's text, in base64: sqlx logs the text of slow statements,
/// and the server logs the text of statements that fail.
impl AddJobs for PgConnection {
    async fn query_text(&mut self, sql: &str, argument: String) -> Result<Vec<String>> {
        let rows = match self.is_in_transaction() {
            true => fetch(self, sql, argument).await,
            false => fetch_at_once(self, sql, &argument).await,
        };
        rows.map_err(error)
    }
}

/// As for a [`PgConnection`].
impl AddJobs for PoolConnection<Postgres> {
    async fn query_text(&mut self, sql: &str, argument: String) -> Result<Vec<String>> {
        (**self).query_text(sql, argument).await
    }
}

async fn fetch(connection: &mut PgConnection, sql: &str, argument: String) -> sqlx::Result<Vec<String>> {
    // Not persistent: an unnamed statement leaves nothing behind on a shared server.
    sqlx::query_scalar(AssertSqlSafe(sql)).bind(argument).persistent(false).fetch_all(connection).await
}

/// Sends one message, which the server runs in a transaction of its own if the caller began none.
async fn fetch_at_once(
    connection: &mut PgConnection,
    sql: &str,
    argument: &str,
) -> sqlx::Result<Vec<String>> {
    let rows = sqlx::raw_sql(AssertSqlSafe(with_literal(sql, argument))).fetch_all(connection).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

fn error(error: sqlx::Error) -> Error {
    let known = match &error {
        sqlx::Error::Database(refused) => DriverError::Refused {
            message: refused.message().to_owned(),
            code: refused.code().map(String::from),
            hint: refused
                .try_downcast_ref::<PgDatabaseError>()
                .and_then(|error| error.hint())
                .map(str::to_owned),
        },
        sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut => DriverError::NoAnswer,
        _ => DriverError::Other,
    };
    Error::adapter("adding jobs", error, known)
}
