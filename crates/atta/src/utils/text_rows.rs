//! Runs a statement that returns text, also if some of the text can't be sent in UTF-8.
//!
//! A database with another encoding may store bytes that are not characters. A result that includes such text fails as
//! a whole. Then the statement runs again without a conversion by the server, and the bytes that are not characters are
//! replaced here, so that one bad row does not hide the others.

use std::error::Error as StdError;

use deadpool_postgres::Object;
use tokio_postgres::Error as DatabaseError;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};

use super::queries;
use crate::payload::in_ascii;

/// The columns of a row; none is null.
pub(super) type TextRow = Vec<Option<String>>;

/// No equivalent in UTF-8; not valid in UTF-8; too long to convert.
const UNSENDABLE: [&str; 3] = ["22P05", "22021", "54000"];

/// The name of the encoding of databases that store any bytes. Most of their text is UTF-8.
const ANY_BYTES: &str = "SQL_ASCII";

/// Runs a statement with one text argument, in JSON. All its columns are text.
pub(super) async fn query(
    client: &mut Object,
    sql: &str,
    argument: &str,
) -> Result<Vec<TextRow>, DatabaseError> {
    let error = match client.query_typed(sql, &[(&argument, Type::TEXT)]).await {
        Ok(rows) => return Ok(rows.iter().map(columns).collect()),
        Err(error) => error,
    };
    if !error.code().is_some_and(|code| UNSENDABLE.contains(&code.code())) {
        return Err(error);
    }
    match query_unconverted(client, sql, argument).await {
        // The argument is the cause, for example because the encoding lacks one of its characters.
        Err(again) if again.as_db_error().is_some() => Err(error),
        answer => answer,
    }
}

/// The first attempt failed, so the server has rolled it back: a statement that changes rows can be repeated.
async fn query_unconverted(
    client: &mut Object,
    sql: &str,
    argument: &str,
) -> Result<Vec<TextRow>, DatabaseError> {
    let transaction = client.transaction().await?;
    let encoding = queries::stop_conversion(&transaction).await?;
    let argument = if encoding == ANY_BYTES { argument.to_owned() } else { in_ascii(argument) };
    let rows = transaction.query_typed(sql, &[(&argument, Type::TEXT)]).await?;
    transaction.commit().await?;
    let mut read = Vec::with_capacity(rows.len());
    for row in rows.iter().map(columns::<Bytes>) {
        let mut texts = TextRow::with_capacity(row.len());
        for column in row {
            texts.push(match column {
                Some(Bytes(bytes)) => Some(text(client, &encoding, bytes).await?),
                None => None,
            });
        }
        read.push(texts);
    }
    Ok(read)
}

/// Bytes that are not characters become U+FFFD. In an encoding that only the server can read, this applies to all bytes
/// beyond ASCII of a text that has one of them.
async fn text(client: &Object, encoding: &str, bytes: Vec<u8>) -> Result<String, DatabaseError> {
    if encoding != ANY_BYTES && !bytes.is_ascii() {
        match queries::convert_text(client, &bytes).await {
            Err(error) if error.as_db_error().is_some() => {}
            converted => return converted,
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn columns<T: for<'a> FromSql<'a>>(row: &Row) -> Vec<Option<T>> {
    (0..row.len()).map(|index| row.get(index)).collect()
}

/// Text as it was received.
struct Bytes(Vec<u8>);

impl<'a> FromSql<'a> for Bytes {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Bytes, Box<dyn StdError + Sync + Send>> {
        Ok(Bytes(raw.to_vec()))
    }

    fn accepts(ty: &Type) -> bool {
        <&str as FromSql>::accepts(ty)
    }
}
