//! The one error type of this crate. Callers ask it questions; its kinds are private.

use std::error::Error as StdError;
use std::fmt;

/// What failed, why, and a hint where there is one.
pub struct Error {
    inner: Box<Inner>,
}

struct Inner {
    kind: Kind,
    message: String,
    hint: Option<String>,
    /// The SQLSTATE, if another driver reported the error. The one from tokio-postgres is in the source.
    code: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The caller or the configuration is wrong; a retry changes nothing.
    Config,
    /// The database refused a statement, or did not answer.
    Database,
    /// No connection could be opened in time; the next attempt may succeed.
    Unavailable,
}

/// The error of another driver.
#[cfg(any(feature = "diesel-async", feature = "sea-orm", feature = "sqlx"))]
pub(crate) enum DriverError {
    /// The database refused the statement.
    Refused { message: String, code: Option<String>, hint: Option<String> },
    /// The connection was lost, or none could be opened.
    NoAnswer,
    /// Any other error; a retry does not change it.
    Other,
}

impl Error {
    pub(crate) fn config(message: impl Into<String>) -> Error {
        Error::build(Kind::Config, message.into(), None)
    }

    /// `doing` names the operation and its object: "adding a job of task send_email".
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

    /// [`Error::database`] for drivers other than tokio-postgres.
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

    /// No connection was opened; `source` is the driver's error.
    pub(crate) fn unconnected(message: String, source: Option<tokio_postgres::Error>) -> Error {
        Error::build(Kind::Unavailable, message, source.map(|source| Box::new(source) as _))
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.inner.hint = Some(hint.into());
        self
    }

    /// Marks the error as one of the configuration, not of the database.
    pub(crate) fn into_config(mut self) -> Error {
        self.inner.kind = Kind::Config;
        self
    }

    fn build(kind: Kind, message: String, source: Option<Box<dyn StdError + Send + Sync>>) -> Error {
        Error { inner: Box::new(Inner { kind, message, hint: None, code: None, source }) }
    }

    /// The message without the hint.
    pub fn message(&self) -> &str {
        &self.inner.message
    }

    /// What to do about the error, if known.
    pub fn hint(&self) -> Option<&str> {
        self.inner.hint.as_deref()
    }

    /// Whether the configuration is wrong: options, connection string, privileges, or a schema that is too new.
    pub fn is_config(&self) -> bool {
        self.inner.kind == Kind::Config
    }

    /// Whether the same call may succeed later: the connection was lost; the server is starting, stopping or out of
    /// connections; or it ended this transaction to resolve a deadlock or a conflict.
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
            // The server did not answer at all.
            None => source.is_closed() || source.source().is_some_and(|cause| cause.is::<std::io::Error>()),
        }
    }

    /// Whether the failed statement may have taken effect: it was sent, and the connection ended before the answer
    /// arrived.
    pub(crate) fn may_have_happened(&self) -> bool {
        let is_sent = self.inner.kind == Kind::Database;
        is_sent && self.db_code().is_none_or(|code| code.starts_with("08") || code.starts_with("57P"))
    }

    /// The SQLSTATE, if the database refused the statement: `GWBKM`, `42501`, …
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

/// The hint for an SQLSTATE, whatever the operation was.
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

/// serde's message about JSON that does not match its type, without the value that it quotes: such messages are logged,
/// and logs must not contain payloads. Names of fields and of types stay.
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
