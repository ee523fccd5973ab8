//! SeaORM: its transactions and connections.

use sea_orm::{
    ConnAcquireErr, ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbErr, RuntimeErr, Statement,
    TransactionTrait,
};

use crate::error::DriverError;
use crate::{AddJobs, Error, Result};

impl AddJobs for DatabaseTransaction {
    async fn query_text(&mut self, sql: &str, argument: String) -> Result<Vec<String>> {
        fetch(self, sql, argument).await.map_err(error)
    }
}

/// Begins a transaction of its own: behind a pooler in transaction mode, only that keeps a statement's parsing and its
/// running on one server.
impl AddJobs for DatabaseConnection {
    async fn query_text(&mut self, sql: &str, argument: String) -> Result<Vec<String>> {
        let transaction = self.begin().await.map_err(error)?;
        let rows = fetch(&transaction, sql, argument).await.map_err(error)?;
        transaction.commit().await.map_err(error)?;
        Ok(rows)
    }
}

async fn fetch(transaction: &DatabaseTransaction, sql: &str, argument: String) -> Result<Vec<String>, DbErr> {
    let backend = transaction.get_database_backend();
    let statement = Statement::from_sql_and_values(backend, sql, [argument.into()]);
    let rows = transaction.query_all_raw(statement).await?;
    rows.iter().map(|row| row.try_get_by_index(0)).collect()
}

fn error(error: DbErr) -> Error {
    let known = match &error {
        DbErr::Conn(cause) | DbErr::Exec(cause) | DbErr::Query(cause) => explain(cause),
        DbErr::ConnectionAcquire(ConnAcquireErr::Timeout) => DriverError::NoAnswer,
        _ => DriverError::Other,
    };
    Error::driver("adding jobs", error, known)
}

fn explain(cause: &RuntimeErr) -> DriverError {
    use sea_orm::sqlx::{Error, postgres::PgDatabaseError};
    let RuntimeErr::SqlxError(cause) = cause else { return DriverError::Other };
    match &**cause {
        Error::Database(refused) => DriverError::Refused {
            message: refused.message().to_owned(),
            code: refused.code().map(String::from),
            hint: refused
                .try_downcast_ref::<PgDatabaseError>()
                .and_then(|error| error.hint())
                .map(str::to_owned),
        },
        Error::Io(_) | Error::PoolTimedOut => DriverError::NoAnswer,
        _ => DriverError::Other,
    }
}
