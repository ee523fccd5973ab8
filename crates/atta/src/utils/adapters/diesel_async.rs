//! diesel-async: its connections, which its transactions use as well.
//!
//! Behind a pooler in transaction mode, add jobs within a transaction: diesel-async prepares a statement in one round
//! trip and runs it in the next, and outside of a transaction those two can reach different servers.

use diesel::deserialize::{self, FromSql, QueryableByName};
use diesel::pg::Pg;
use diesel::result::{DatabaseErrorInformation, DatabaseErrorKind, Error as DieselError};
use diesel::row::{Field, NamedRow};
use diesel::sql_types::Text;
use diesel_async::{AsyncPgConnection, RunQueryDsl};

use crate::error::DriverError;
use crate::{AddJobs, Error, Result};

impl AddJobs for AsyncPgConnection {
    async fn query_text(&mut self, sql: &str, argument: String) -> Result<Vec<String>> {
        let rows: Vec<OneText> =
            diesel::sql_query(sql).bind::<Text, _>(argument).load(self).await.map_err(error)?;
        Ok(rows.into_iter().map(|row| row.0).collect())
    }
}

/// Reads the first column, whatever its name.
struct OneText(String);

impl QueryableByName<Pg> for OneText {
    fn build<'a>(row: &impl NamedRow<'a, Pg>) -> deserialize::Result<OneText> {
        let field = diesel::row::Row::get(row, 0).ok_or("the statement returned no column")?;
        <String as FromSql<Text, Pg>>::from_nullable_sql(field.value()).map(OneText)
    }
}

fn error(error: DieselError) -> Error {
    use DatabaseErrorKind::{ClosedConnection, UnableToSendCommand};
    let known = match &error {
        DieselError::DatabaseError(ClosedConnection | UnableToSendCommand, _) => DriverError::NoAnswer,
        DieselError::DatabaseError(kind, refused) => DriverError::Refused {
            message: refused.message().to_owned(),
            code: code(kind, &**refused).map(str::to_owned),
            hint: refused.hint().map(str::to_owned),
        },
        _ => DriverError::Other,
    };
    Error::adapter("adding jobs", error, known)
}

/// Diesel does not pass the SQLSTATE on. It has error kinds for a few codes; our own codes are recognized by the start
/// of their messages.
fn code(kind: &DatabaseErrorKind, refused: &dyn DatabaseErrorInformation) -> Option<&'static str> {
    let message = refused.message();
    match kind {
        DatabaseErrorKind::SerializationFailure => Some("40001"),
        DatabaseErrorKind::ReadOnlyTransaction => Some("25006"),
        DatabaseErrorKind::UniqueViolation => Some("23505"),
        DatabaseErrorKind::CheckViolation => Some("23514"),
        _ if message.starts_with("task identifier is ") => Some("GWBID"),
        _ if message.starts_with("queue name is ") => Some("GWBQN"),
        _ if message.starts_with("job key is ") => Some("GWBJK"),
        _ if message.starts_with("invalid max_attempts: ") => Some("GWBMA"),
        _ if message.starts_with("invalid job_key_mode: ") => Some("GWBKM"),
        _ => None,
    }
}
