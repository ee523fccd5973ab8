//! sqlx: its transactions and connections.
//!
//! sqlx parses a statement in one round trip and runs it in the next. Behind a pooler in transaction mode those two
//! can reach different servers, and there another client's statement of the same name, or of none, runs instead.
//! Within a transaction they can't, so here the statement never runs outside one.

use sqlx::pool::PoolConnection;
use sqlx::postgres::PgDatabaseError;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Postgres, Row, Transaction};

use crate::error::DriverError;
use crate::{AddJobs, Error, Result};

impl AddJobs for Transaction<'_, Postgres> {
    async fn query_text(&mut self, sql: &str, argument: String) -> Result<Vec<String>> {
        fetch(self, sql, argument).await.map_err(error)
    }
}

/// Outside a transaction it begins one of its own.
impl AddJobs for PgConnection {
    async fn query_text(&mut self, sql: &str, argument: String) -> Result<Vec<String>> {
        if is_in_transaction(self).await.map_err(error)? {
            return fetch(self, sql, argument).await.map_err(error);
        }
        let mut transaction = self.begin().await.map_err(error)?;
        let rows = fetch(&mut transaction, sql, argument).await.map_err(error)?;
        transaction.commit().await.map_err(error)?;
        Ok(rows)
    }
}

/// Outside a transaction it begins one of its own.
impl AddJobs for PoolConnection<Postgres> {
    async fn query_text(&mut self, sql: &str, argument: String) -> Result<Vec<String>> {
        (**self).query_text(sql, argument).await
    }
}

async fn fetch(connection: &mut PgConnection, sql: &str, argument: String) -> sqlx::Result<Vec<String>> {
    // Not persistent: a statement without a name leaves nothing behind on a server that is shared.
    sqlx::query_scalar(AssertSqlSafe(sql)).bind(argument).persistent(false).fetch_all(connection).await
}

/// sqlx counts only the transactions that it began itself; committing one that the caller began by hand would break
/// the caller's promise. Its start is older than the statement; outside a transaction the two are one time.
async fn is_in_transaction(connection: &mut PgConnection) -> sqlx::Result<bool> {
    if connection.is_in_transaction() {
        return Ok(true);
    }
    let row = sqlx::raw_sql("select now() < statement_timestamp()").fetch_one(connection).await?;
    row.try_get(0)
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
    Error::driver("adding jobs", error, known)
}
