//! The one error of this crate. It answers questions; its kinds stay private.

use std::error::Error as StdError;
use std::fmt;

/// What went wrong: while doing what, why, and the cure where we know it.
pub struct Error {
    inner: Box<Inner>,
}

struct Inner {
    kind: Kind,
    message: String,
    hint: Option<String>,
    /// As another driver told it; that of tokio-postgres is in the source.
    code: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The caller or the set-up is wrong; trying again changes nothing.
    Config,
    /// The database said no, or did not answer.
    Database,
    /// No connection could be had in time; the next try may get one.
    Unavailable,
}

/// What another driver's error says.
#[cfg(any(feature = "diesel-async", feature = "sea-orm", feature = "sqlx"))]
pub(crate) enum DriverError {
    /// The database said no.
    Refused { message: String, code: Option<String>, hint: Option<String> },
    /// The connection was lost, or none could be had.
    NoAnswer,
    /// Anything else, which trying again does not change.
    Other,
}

impl Error {
    pub(crate) fn config(message: impl Into<String>) -> Error {
        Error::build(Kind::Config, message.into(), None)
    }

    /// `doing` is what was being done and to what: "adding a job of task send_email".
    pub(crate) fn database(doing: impl fmt::Display, source: tokio_postgres::Error) -> Error {
        let (reason, hint) = match source.as_db_error() {
            Some(error) => (
                format!("{} (SQLSTATE {})", error.message(), error.code().code()),
                error.hint().map(str::to_owned).or_else(|| cure(error.code().code()).map(str::to_owned)),
            ),
            None => (chain(&source), None),
        };
        let mut error = Error::build(Kind::Database, format!("{doing}: {reason}"), Some(Box::new(source)));
        error.inner.hint = hint;
        error
    }

    /// [`Error::database`] for other drivers than ours.
    #[cfg(any(feature = "diesel-async", feature = "sea-orm", feature = "sqlx"))]
    pub(crate) fn driver(
        doing: impl fmt::Display,
        source: impl StdError + Send + Sync + 'static,
        known: DriverError,
    ) -> Error {
        let (kind, reason, code, hint) = match known {
            DriverError::Refused { message, code: Some(code), hint } => {
                (Kind::Database, format!("{message} (SQLSTATE {code})"), Some(code), hint)
            }
            DriverError::Refused { message, code: None, hint } => (Kind::Database, message, None, hint),
            DriverError::NoAnswer => (Kind::Unavailable, chain(&source), None, None),
            DriverError::Other => (Kind::Database, chain(&source), None, None),
        };
        let mut error = Error::build(kind, format!("{doing}: {reason}"), Some(Box::new(source)));
        (error.inner.code, error.inner.hint) = (code, hint);
        error
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Error {
        Error::build(Kind::Unavailable, message.into(), None)
    }

    /// No connection was made; `source` is what the driver says of it.
    pub(crate) fn unconnected(message: String, source: Option<tokio_postgres::Error>) -> Error {
        Error::build(Kind::Unavailable, message, source.map(|source| Box::new(source) as _))
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.inner.hint = Some(hint.into());
        self
    }

    /// Says that the set-up is to blame, not the database.
    pub(crate) fn into_config(mut self) -> Error {
        self.inner.kind = Kind::Config;
        self
    }

    fn build(kind: Kind, message: String, source: Option<Box<dyn StdError + Send + Sync>>) -> Error {
        Error { inner: Box::new(Inner { kind, message, hint: None, code: None, source }) }
    }

    /// The text without the hint.
    pub fn message(&self) -> &str {
        &self.inner.message
    }

    /// What to do about it, where we know it.
    pub fn hint(&self) -> Option<&str> {
        self.inner.hint.as_deref()
    }

    /// Whether the set-up is wrong: options, connection string, privileges, a schema that is too new.
    pub fn is_config(&self) -> bool {
        self.inner.kind == Kind::Config
    }

    /// Whether the same call may succeed later: the connection was lost, the server is starting or stopping, out of
    /// connections, or chose this transaction to end a deadlock or a conflict.
    pub fn is_transient(&self) -> bool {
        if self.is_config() {
            return false;
        }
        if let Some(code) = &self.inner.code {
            return is_transient_code(code);
        }
        let Some(source) = self.postgres_error() else { return self.inner.kind == Kind::Unavailable };
        match source.code() {
            Some(code) => is_transient_code(code.code()),
            // No answer from the server at all.
            None => source.is_closed() || source.source().is_some_and(|cause| cause.is::<std::io::Error>()),
        }
    }

    /// Whether what failed may have been done all the same: it was sent, and the connection ended before the answer came.
    pub(crate) fn may_have_happened(&self) -> bool {
        let is_sent = self.inner.kind == Kind::Database;
        is_sent && self.db_code().is_none_or(|code| code.starts_with("08") || code.starts_with("57P"))
    }

    /// The SQLSTATE, when the database refused: `GWBKM`, `42501`, …
    pub fn db_code(&self) -> Option<&str> {
        self.inner.code.as_deref().or_else(|| self.postgres_error()?.code().map(|code| code.code()))
    }

    fn postgres_error(&self) -> Option<&tokio_postgres::Error> {
        self.inner.source.as_deref()?.downcast_ref()
    }
}

/// Class 08 (connection), 53 (resources), 57P (shutdown and start), and conflicts between transactions.
pub(crate) fn is_transient_code(code: &str) -> bool {
    code.starts_with("08")
        || code.starts_with("53")
        || code.starts_with("57P")
        || matches!(code, "40001" | "40P01" | "55P03" | "25006" | "25P03")
}

/// What helps against a refusal, whatever was being done.
pub(crate) fn cure(code: &str) -> Option<&'static str> {
    match code {
        "25006" => Some(
            "the server takes no changes: it is a standby, or default_transaction_read_only is on. Of several servers, \
             target_session_attrs=read-write finds the one that does",
        ),
        "53100" => Some("the server's disk is full"),
        "53300" => Some(
            "no connection is free: raise max_connections of the server, or the limit of the role or the database; or use fewer \
             connections (max_pool_size)",
        ),
        "57P03" => Some("the server is starting, stopping or recovering; try again"),
        _ => None,
    }
}

pub(crate) fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inner.message)?;
        match &self.inner.hint {
            Some(hint) => write!(f, " (hint: {hint})"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.inner.kind)
            .field("message", &self.inner.message)
            .field("hint", &self.inner.hint)
            .field("source", &self.inner.source)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.inner.source.as_deref().map(|source| source as _)
    }
}

/// What serde says of a misfit, without the value that it quotes: such texts go into logs, where payloads have no place.
/// Names of fields and of types stay.
pub(crate) fn without_values(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let quotes = ["invalid type: ", "invalid value: ", "unknown variant "];
    let Some((before, after)) = text.rsplit_once(", expected ") else { return text };
    match before.find(['"', '`']) {
        Some(quote) if quotes.iter().any(|start| before.starts_with(start)) => {
            format!("{}, expected {after}", before[..quote].trim_end())
        }
        _ => text,
    }
}

/// PostgreSQL can't store a NUL character in a text.
pub(crate) fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misfit_is_told_without_the_value() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(dead_code)]
        struct Wanted {
            count: u8,
            kind: Option<Kind>,
        }
        #[derive(Debug, serde::Deserialize)]
        #[allow(dead_code)]
        enum Kind {
            Small,
        }
        let told = |json: &str| {
            let told = without_values(&serde_json::from_str::<Wanted>(json).expect_err("a misfit"));
            told.split_once(" at line 1 column ").expect("it says where").0.to_owned()
        };
        assert_eq!(told(r#"{"count": "secret, expected \"x\""}"#), "invalid type: string, expected u8");
        assert_eq!(told(r#"{"count": 4711}"#), "invalid value: integer, expected u8");
        assert_eq!(told(r#"{"count": 1, "kind": "secret"}"#), "unknown variant, expected `Small`");
        assert_eq!(told("{}"), "missing field `count`");
        assert!(told(r#"{"other": 1}"#).starts_with("unknown field `other`, expected `count` or `kind`"));
    }
}
