//! SeaORM: its transactions and connections.

use sea_orm::sqlx::pool::PoolConnection;
use sea_orm::sqlx::postgres::PgDatabaseError;
use sea_orm::sqlx::{self, AssertSqlSafe, Connection, Postgres};
use sea_orm::{
    ConnAcquireErr, ConnectionTrait, DatabaseConnection, DatabaseConnectionType, DatabaseTransaction, DbErr,
    RuntimeErr, Statement,
};

use crate::error::DriverError;
use crate::{AddJobs, Error, Result};

impl AddJobs for DatabaseTransaction {
    async fn query_text(&mut self, sql: &str, argument: String) -> Result<Vec<String>> {
        fetch(self, sql, argument).await.map_err(error)
    }
}

/// Adds in a new transaction, on a connection of the pool. Behind a pooler in transaction mode, a statement is parsed
/// and run on the same server only within a transaction.
impl AddJobs for DatabaseConnection {
    async fn query_text(&mut self, sql: &str, argument: String) -> Result<Vec<String>> {
        let DatabaseConnectionType::SqlxPostgresPoolConnection(_) = &self.inner else {
            return Err(Error::invalid_input("adding jobs: the connection is not to PostgreSQL"));
        };
        let connection = self.get_postgres_connection_pool().acquire().await.map_err(sqlx_error)?;
        fetch_alone(connection, sql, argument).await.map_err(sqlx_error)
    }
}

async fn fetch(transaction: &DatabaseTransaction, sql: &str, argument: String) -> Result<Vec<String>, DbErr> {
    let backend = transaction.get_database_backend();
    let statement = Statement::from_sql_and_values(backend, sql, [argument.into()]);
    let rows = transaction.query_all_raw(statement).await?;
    rows.iter().map(|row| row.try_get_by_index(0)).collect()
}

async fn fetch_alone(
    connection: PoolConnection<Postgres>,
    sql: &str,
    argument: String,
) -> sqlx::Result<Vec<String>> {
    let mut unfinished = Unfinished(Some(connection));
    let Some(connection) = &mut unfinished.0 else { return Err(sqlx::Error::PoolClosed) };
    let mut transaction = connection.begin().await?;
    // Not persistent: an unnamed statement leaves nothing behind on a shared server.
    let query = sqlx::query_scalar(AssertSqlSafe(sql)).bind(argument).persistent(false);
    let rows = query.fetch_all(&mut *transaction).await;
    let ended = match &rows {
        Ok(_) => transaction.commit().await,
        Err(_) => transaction.rollback().await,
    };
    if ended.is_ok() {
        // The transaction is over, so the connection can go back to the pool.
        unfinished.0 = None;
    }
    let rows = rows?;
    ended.map(|()| rows)
}

/// A connection of the pool that may be in a transaction. Dropping this closes the connection, which certainly rolls
/// back. sqlx, in contrast, would return it to the pool with the transaction open if a future is dropped while it waits
/// for `begin`.
struct Unfinished(Option<PoolConnection<Postgres>>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        drop(self.0.take().map(PoolConnection::detach));
    }
}

fn error(error: DbErr) -> Error {
    let known = match &error {
        DbErr::Conn(cause) | DbErr::Exec(cause) | DbErr::Query(cause) => match cause {
            RuntimeErr::SqlxError(cause) => explain(cause),
            _ => DriverError::Other,
        },
        DbErr::ConnectionAcquire(ConnAcquireErr::Timeout) => DriverError::NoAnswer,
        _ => DriverError::Other,
    };
    Error::adapter("adding jobs", error, known)
}

fn sqlx_error(error: sqlx::Error) -> Error {
    let known = explain(&error);
    Error::adapter("adding jobs", error, known)
}

fn explain(cause: &sqlx::Error) -> DriverError {
    match cause {
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
    }
}
