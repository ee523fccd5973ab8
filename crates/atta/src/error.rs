//! The one error type of this crate. Its kinds are private; callers classify an error with its `is_…` methods.
//!
//! The text of an error contains the text of its causes, so that one line of a log is enough. Therefore
//! `source()` does not return them again; [`Error::driver_error`] does.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use tokio_postgres::error::Severity;

/// What failed, why, and a hint if there is one.
///
/// `Display` shows all of it on one line: the operation, the reason with all its causes, and the hint. `source()`
/// returns nothing, so that reporters that print the chain of sources do not print the reason twice. The error of the
/// database library is returned by [`Error::driver_error`].
///
/// At most one of these methods returns true: [`Error::is_config`], [`Error::is_invalid_input`], [`Error::is_payload`],
/// [`Error::is_internal`] and [`Error::is_transient`]. If the database refused a statement for another reason, none of
/// them does, and [`Error::db_code`] returns the SQLSTATE.
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
    /// The configuration is invalid: options, connection settings, crontabs, privileges, the state of the schema.
    Config,
    /// An argument of the call is invalid, or the call itself is.
    InvalidInput,
    /// The payload of a job can't be decoded into the type that was asked for.
    Payload,
    /// The database refused a statement, or did not answer.
    Database,
    /// No connection could be opened in time; the next attempt may succeed.
    Unavailable,
    /// A panic, an unexpected response of the database, or a refusal of the operating system.
    Internal,
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
    /// An error of the configuration, for crates that extend a worker: [`Error::is_config`] returns true. `message` names
    /// what is invalid, and why; in lower case, without a full stop.
    pub fn config(message: impl Into<String>) -> Error {
        Error::build(Kind::Config, message.into(), None)
    }

    pub(crate) fn invalid_input(message: impl Into<String>) -> Error {
        Error::build(Kind::InvalidInput, message.into(), None)
    }

    pub(crate) fn payload(message: impl Into<String>) -> Error {
        Error::build(Kind::Payload, message.into(), None)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Error {
        Error::build(Kind::Internal, message.into(), None)
    }

    /// An error of another database library, for your own implementation of [`AddJobs`](crate::AddJobs). `doing` names
    /// the operation: "adding jobs". The text contains the texts of `source` and of all its causes.
    ///
    /// Add the details that the library reports: the SQLSTATE with [`Error::with_db_code`], on which
    /// [`Error::is_transient`] and [`Error::is_invalid_input`] rely, or [`Error::with_lost_connection`] if the database
    /// did not answer.
    ///
    /// ```
    /// use atta::Error;
    ///
    /// let refused = std::io::Error::other("too many connections");
    /// let error = Error::driver("adding jobs", refused).with_db_code("53300");
    /// assert_eq!(error.message(), "adding jobs: too many connections (SQLSTATE 53300)");
    /// assert!(error.is_transient());
    /// ```
    pub fn driver(doing: impl fmt::Display, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        let source = source.into();
        let message = format!("{doing}: {}", chain(&*source));
        Error::build(Kind::Database, message, Some(source))
    }

    /// Adds the SQLSTATE with which the database refused the statement.
    #[must_use]
    pub fn with_db_code(mut self, code: impl Into<String>) -> Error {
        let code = code.into();
        self.inner.message.push_str(&format!(" (SQLSTATE {code})"));
        self.inner.hint = self.inner.hint.or_else(|| hint_for(&code).map(str::to_owned));
        self.inner.code = Some(code);
        self
    }

    /// Marks the error as a lost connection, or as one that could not be opened: [`Error::is_transient`] returns true.
    #[must_use]
    pub fn with_lost_connection(mut self) -> Error {
        self.inner.kind = Kind::Unavailable;
        self
    }

    /// Replaces the hint: what to do about the error. In lower case, without a full stop.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.inner.hint = Some(hint.into());
        self
    }

    /// `doing` names the operation and its object: "adding a job of task send_email".
    pub(crate) fn database(doing: impl fmt::Display, source: tokio_postgres::Error) -> Error {
        let (reason, hint) = match source.as_db_error() {
            Some(error) => (
                format!("{} (SQLSTATE {})", error.message(), error.code().code()),
                error.hint().map(str::to_owned).or_else(|| hint_for(error.code().code()).map(str::to_owned)),
            ),
            None => (chain(&source), None),
        };
        let mut error = Error::build(Kind::Database, format!("{doing}: {reason}"), Some(Box::new(source)));
        error.inner.hint = hint;
        error
    }

    /// [`Error::database`] for the drivers that this crate has adapters for.
    #[cfg(any(feature = "diesel-async", feature = "sea-orm", feature = "sqlx"))]
    pub(crate) fn adapter(
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

    /// A statement was sent, and the database did not answer in time.
    pub(crate) fn unanswered(doing: &str, limit: Duration) -> Error {
        let seconds = limit.as_secs();
        let message =
            format!("{doing}: no answer from the database for {seconds} seconds; the connection was closed");
        Error::build(Kind::Database, message, None)
    }

    /// A statement was sent, and its reply was lost.
    #[cfg(test)]
    pub(crate) fn lost_reply_for_tests() -> Error {
        Error::build(Kind::Database, "claiming jobs: connection closed".to_owned(), None)
    }

    /// No connection was opened; `source` is the driver's error.
    pub(crate) fn unconnected(message: String, source: Option<tokio_postgres::Error>) -> Error {
        Error::build(Kind::Unavailable, message, source.map(|source| Box::new(source) as _))
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

    /// Whether the configuration is invalid: options, connection string, crontab, privileges, or a schema that is
    /// missing or too new. The same call fails again until the configuration is changed.
    pub fn is_config(&self) -> bool {
        self.inner.kind == Kind::Config || (self.is_database() && self.db_code().is_some_and(is_config_code))
    }

    /// Whether the call is invalid: an argument that is out of range or no JSON, a job spec that the SQL functions
    /// refuse, or a second `run` of a worker that is running.
    pub fn is_invalid_input(&self) -> bool {
        self.inner.kind == Kind::InvalidInput
            || (self.is_database() && self.db_code().is_some_and(is_input_code))
    }

    /// Whether the payload of a job does not match the type that it was decoded into.
    pub fn is_payload(&self) -> bool {
        self.inner.kind == Kind::Payload
    }

    /// Whether neither the caller nor the configuration is to blame: a panic, a response of the database that this
    /// crate does not expect, or a thread or signal handler that the operating system refused.
    pub fn is_internal(&self) -> bool {
        self.inner.kind == Kind::Internal
    }

    /// Whether the same call may succeed later: the connection was lost; the server is starting, stopping or out of
    /// connections; or it ended this transaction to resolve a deadlock or a conflict.
    pub fn is_transient(&self) -> bool {
        if !self.is_database() {
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

    fn is_database(&self) -> bool {
        matches!(self.inner.kind, Kind::Database | Kind::Unavailable)
    }

    /// Whether the database did not answer in time.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.inner.kind == Kind::Database && self.inner.source.is_none() && self.inner.code.is_none()
    }

    /// Whether the failed statement may have taken effect: it was sent, and the connection ended before the answer
    /// arrived.
    pub fn may_have_happened(&self) -> bool {
        let is_sent = self.inner.kind == Kind::Database;
        let is_lost = |code: &str| code.starts_with("08") || code.starts_with("57P");
        is_sent && !self.has_failed_statement() && self.db_code().is_none_or(is_lost)
    }

    /// Whether the server has failed this statement alone, and its connection goes on.
    fn has_failed_statement(&self) -> bool {
        let error = self.postgres_error().and_then(tokio_postgres::Error::as_db_error);
        error.is_some_and(|error| error.parsed_severity() == Some(Severity::Error))
    }

    /// Whether the server refused the statement, possibly because of one of its rows: a trigger of the application can raise
    /// any SQLSTATE, also those of lost connections and conflicts. Not if the server can write nothing at all.
    pub(crate) fn is_refusal(&self) -> bool {
        let concerns_all = |code: &str| code == "25006" || code.starts_with("53");
        match self.db_code() {
            Some(code) if self.has_failed_statement() => !concerns_all(code),
            Some(_) => !self.is_transient() && !self.may_have_happened(),
            None => false,
        }
    }

    /// The SQLSTATE, if the database refused the statement: `GWBKM`, `42501`, …
    pub fn db_code(&self) -> Option<&str> {
        self.inner.code.as_deref().or_else(|| self.postgres_error()?.code().map(|code| code.code()))
    }

    /// The error of the database library, if there is one: `tokio_postgres::Error`, or what an adapter passed on. Its
    /// text is part of the text of this error.
    pub fn driver_error(&self) -> Option<&(dyn StdError + Send + Sync + 'static)> {
        self.inner.source.as_deref()
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

/// The schema is missing, or the role lacks a privilege.
fn is_config_code(code: &str) -> bool {
    matches!(code, "3F000" | "42501" | "42P01" | "42883")
}

/// The codes of the SQL functions for arguments that they refuse, and PostgreSQL's class 22 (invalid data).
fn is_input_code(code: &str) -> bool {
    code.starts_with("GWB") || code.starts_with("22")
}

/// The hint for an SQLSTATE, whatever the operation was.
pub(crate) fn hint_for(code: &str) -> Option<&'static str> {
    match code {
        "25006" => Some(
            "the server is read-only: it is a standby, or default_transaction_read_only is on. Of several servers, \
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

/// `source()` is always `None`: see [`Error`].
impl StdError for Error {}

/// Conversions that can't fail have this error.
impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Error {
        match never {}
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

    fn answers(error: &Error) -> [bool; 5] {
        [
            error.is_config(),
            error.is_invalid_input(),
            error.is_payload(),
            error.is_internal(),
            error.is_transient(),
        ]
    }

    #[test]
    fn each_kind_answers_exactly_one_question() {
        let source = || std::io::Error::other("refused");
        let kinds = [
            Error::config("x"),
            Error::invalid_input("x"),
            Error::payload("x"),
            Error::internal("x"),
            Error::unavailable("x"),
        ];
        for (n, error) in kinds.iter().enumerate() {
            let wanted: [bool; 5] = std::array::from_fn(|question| question == n);
            assert_eq!(answers(error), wanted, "{error:?}");
        }
        let by_code = |code: &str| answers(&Error::driver("adding jobs", source()).with_db_code(code));
        assert_eq!(by_code("42501"), [true, false, false, false, false]);
        assert_eq!(by_code("GWBKM"), [false, true, false, false, false]);
        assert_eq!(by_code("40001"), [false, false, false, false, true]);
        assert_eq!(by_code("23505"), [false; 5]);
        let lost = Error::driver("adding jobs", source()).with_lost_connection();
        assert_eq!(answers(&lost), [false, false, false, false, true]);
    }

    #[test]
    fn the_reason_is_displayed_once_along_the_chain_of_sources() {
        let error = Error::driver("adding jobs", std::io::Error::other("no route")).with_hint("look around");
        let reported = format!("{:#}", anyhow::Error::new(error));
        assert_eq!(reported, "adding jobs: no route (hint: look around)");
    }

    #[test]
    fn an_invalid_payload_is_reported_without_its_values() {
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
            let told = without_values(&serde_json::from_str::<Wanted>(json).expect_err("a mismatch"));
            told.split_once(" at line 1 column ").expect("it says where").0.to_owned()
        };
        assert_eq!(told(r#"{"count": "secret, expected \"x\""}"#), "invalid type: string, expected u8");
        assert_eq!(told(r#"{"count": 4711}"#), "invalid value: integer, expected u8");
        assert_eq!(told(r#"{"count": 1, "kind": "secret"}"#), "unknown variant, expected `Small`");
        assert_eq!(told("{}"), "missing field `count`");
        assert!(told(r#"{"other": 1}"#).starts_with("unknown field `other`, expected `count` or `kind`"));
    }
}
