//! Why no connection was opened: for each server the reason, and a hint. Never contains a password.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Config, NoTls};

use super::connection::{ConnectionSettings, Server};
use crate::Error;
use crate::error::{chain, hint_for, is_transient_code};

/// Why one server could not be used.
#[derive(Debug)]
pub(crate) struct Miss {
    server: String,
    reason: String,
    kind: MissKind,
    source: Option<tokio_postgres::Error>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MissKind {
    /// The server did not answer, or returned an error that will soon pass.
    Unavailable,
    UnknownHost,
    /// The server refused the login.
    Refused,
    /// The server returned a permanent error.
    Invalid,
    /// TLS was not available, or the certificate was not accepted.
    Tls,
    NoPassword,
    WrongKind,
}

impl Miss {
    pub(super) fn unknown_host(server: &Server, error: &io::Error) -> Miss {
        Miss::new(server, MissKind::UnknownHost, error.to_string())
    }

    pub(super) fn timeout(server: &Server, limit: Option<Duration>) -> Miss {
        let limit = limit.unwrap_or_default().as_secs();
        Miss::new(server, MissKind::Unavailable, format!("no response within {limit} s (connect_timeout)"))
    }

    pub(super) fn wrong_kind(server: &Server, why: &str) -> Miss {
        Miss::new(server, MissKind::WrongKind, why.into())
    }

    /// Classifies an error of the driver.
    pub(super) fn driver(server: &Server, error: tokio_postgres::Error, used_tls: bool) -> Miss {
        let is_about_tls = error.to_string() == "error performing TLS handshake";
        let (kind, reason) = match (error.as_db_error(), error.source()) {
            (Some(answer), _) => {
                let code = answer.code().code();
                let kind = match code {
                    // Login errors; and a database that does not exist, which a retry does not change.
                    code if code.starts_with("28") || code == "3D000" => MissKind::Refused,
                    code if is_transient_code(code) => MissKind::Unavailable,
                    _ => MissKind::Invalid,
                };
                (kind, format!("{} (SQLSTATE {code})", answer.message()))
            }
            // The server reports that it rejects our certificate only after the handshake.
            (None, Some(cause)) if has_tls_cause(cause) || is_about_tls && !is_io(cause) => {
                (MissKind::Tls, chain(cause))
            }
            (None, Some(cause)) if cause.to_string() == "password missing" => {
                (MissKind::NoPassword, "the server requires a password, but none was given".into())
            }
            (None, Some(cause)) if error.to_string() == "authentication error" => {
                (MissKind::Refused, chain(cause))
            }
            (None, Some(cause)) => (MissKind::Unavailable, chain(cause)),
            (None, None) => (MissKind::Unavailable, error.to_string()),
        };
        // If the server breaks off a handshake without an error message, TLS is the likely cause.
        let reason = if is_about_tls && used_tls { format!("TLS: {reason}") } else { reason };
        Miss { source: Some(error), ..Miss::new(server, kind, reason) }
    }

    fn new(server: &Server, kind: MissKind, reason: String) -> Miss {
        Miss { server: server.to_string(), reason, kind, source: None }
    }

    /// Whether the other servers need not be tried.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self.kind, MissKind::Refused | MissKind::NoPassword)
    }

    /// Whether another attempt, with TLS instead of without or the other way round, may succeed.
    pub(super) fn may_be_the_wire(&self) -> bool {
        let is_unknown_database = self.code() == Some(&SqlState::INVALID_CATALOG_NAME);
        matches!(self.kind, MissKind::Refused | MissKind::Tls) && !is_unknown_database
    }

    /// Adds the reason of the first attempt, if there was one.
    pub(super) fn after(self, first: Option<Miss>) -> Miss {
        let Some(first) = first else { return self };
        // With "allow", on a server without TLS: the refusal of the first attempt is the reason, not the lack of TLS.
        if self.kind == MissKind::Tls && first.kind == MissKind::Refused {
            return first;
        }
        if self.reason == first.reason {
            return self;
        }
        let reason = format!("{}; before that: {}", self.reason, first.reason);
        Miss { reason, ..self }
    }

    /// Whether the server let this client in, and refused the role: it does not exist, or it may not log in. The server
    /// translates its message, but not the name of its function.
    fn is_about_role(&self) -> bool {
        let answer = self.source.as_ref().and_then(tokio_postgres::Error::as_db_error);
        answer.is_some_and(|answer| answer.routine() == Some("InitializeSessionUserId"))
    }

    fn code(&self) -> Option<&SqlState> {
        self.source.as_ref()?.code()
    }
}

fn has_tls_cause(error: &(dyn StdError + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if error.is::<rustls::Error>() || inner.is_some_and(|inner| inner.is::<rustls::Error>()) {
            return true;
        }
        cause = error.source();
    }
    false
}

fn is_io(error: &(dyn StdError + 'static)) -> bool {
    error.is::<io::Error>()
}

/// Why no connection was opened.
#[derive(Debug)]
pub(crate) struct Failure {
    place: String,
    message: String,
    hint: Option<String>,
    is_config: bool,
    /// The driver's error, of the server whose reason counts most.
    source: Option<tokio_postgres::Error>,
}

impl Failure {
    /// None of the servers could be used. The reason of the last one counts most.
    pub(super) fn new(settings: &ConnectionSettings, mut misses: Vec<Miss>) -> Failure {
        let place = settings.place();
        let reasons: Vec<String> =
            misses.iter().map(|miss| format!("{}: {}", miss.server, miss.reason)).collect();
        let last = misses.pop();
        let message = match &last {
            Some(last) if reasons.len() == 1 => last.reason.clone(),
            _ => reasons.join("; "),
        };
        let is_lasting =
            |miss: &Miss| miss.is_refusal() || matches!(miss.kind, MissKind::Tls | MissKind::Invalid);
        let is_config = last
            .as_ref()
            .is_some_and(|last| last.is_refusal() || (is_lasting(last) && misses.iter().all(is_lasting)));
        let hint = last.as_ref().map(|last| hint(settings, last));
        Failure { place, message, hint, is_config, source: last.and_then(|last| last.source) }
    }

    /// For an error before any server was tried.
    pub(super) fn of_set_up(settings: &ConnectionSettings, error: Error) -> Failure {
        let (message, hint) = (error.message().to_owned(), error.hint().map(str::to_owned));
        Failure { place: settings.place(), message, hint, is_config: true, source: None }
    }

    /// Converts into an [`Error`] that names the operation, such as "adding a job".
    pub(crate) fn into_error(self, doing: Option<&str>) -> Error {
        let message = match doing {
            Some(doing) => format!("{doing}: {self}"),
            None => self.to_string(),
        };
        let error = Error::unconnected(message, self.source);
        let error = if self.is_config { error.into_config() } else { error };
        match self.hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }

    /// Converts into an error of the driver, for a pool, which accepts only those. Only the driver can create them, so
    /// it gets a broken connection that fails with this failure.
    pub(crate) async fn into_driver_error(self) -> tokio_postgres::Error {
        let wire = BrokenWire(Some(self));
        match Config::new().user("nobody").connect_raw(wire, NoTls).await {
            Err(error) => error,
            Ok(_) => unreachable!("a broken connection never returns data"),
        }
    }

    /// The reverse of [`Failure::into_driver_error`].
    pub(crate) fn from_driver_error(error: tokio_postgres::Error) -> Result<Failure, tokio_postgres::Error> {
        let is_ours = error
            .source()
            .and_then(|cause| cause.downcast_ref::<io::Error>()?.get_ref())
            .is_some_and(|inner| inner.is::<Failure>());
        if !is_ours {
            return Err(error);
        }
        let failure = error
            .into_source()
            .and_then(|cause| cause.downcast::<io::Error>().ok()?.into_inner()?.downcast::<Failure>().ok());
        Ok(*failure.expect("the type was checked above"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "can't connect to {}: {}", self.place, self.message)
    }
}

impl StdError for Failure {}

/// The hint for a failure.
fn hint(settings: &ConnectionSettings, miss: &Miss) -> String {
    let (user, database, mode) = (settings.user(), settings.database(), settings.tls().mode());
    let code = miss.code().map(SqlState::code).unwrap_or_default();
    match (miss.kind, code) {
        (MissKind::Refused, "28P01") => match (settings.has_password(), settings.passfile()) {
            (false, Some(file)) => format!("check the password of {user} in {}", file.display()),
            _ => format!("check the password of {user}"),
        },
        (MissKind::Refused, "3D000") => format!("create it: createdb {database}; or name another one"),
        (MissKind::Refused, "28000") if miss.is_about_role() => format!(
            "check that role {user} exists and may log in; to use another role: -c postgres://USER@HOST/DATABASE, or \
             PGUSER"
        ),
        (MissKind::Refused, _) => format!(
            "may {user} log in to {database} from here? With sslmode={mode} it was tried; the server's pg_hba.conf decides"
        ),
        (MissKind::NoPassword, _) => {
            "give it in the connection string, by PGPASSWORD, or in the passfile ~/.pgpass".into()
        }
        (MissKind::Tls, _) if miss.reason.contains("does not support TLS") => {
            format!("sslmode is {mode}: enable TLS on the server (ssl = on), or use sslmode=prefer")
        }
        (MissKind::Tls, _) => format!(
            "sslmode is {mode}, and the server's certificate is checked against {}",
            settings.tls().describe_roots()
        ),
        (MissKind::Invalid, _) => "check the connection options".into(),
        (MissKind::WrongKind, _) => "target_session_attrs requires another kind of server".into(),
        (MissKind::UnknownHost, _) => "check the host name".into(),
        (MissKind::Unavailable, code) if hint_for(code).is_some() => {
            hint_for(code).unwrap_or_default().into()
        }
        (MissKind::Unavailable, _) => {
            "check that the server is running, and that host and port are correct".into()
        }
    }
}

/// A connection that fails at the first byte.
struct BrokenWire(Option<Failure>);

impl BrokenWire {
    fn fail<T>(&mut self) -> Poll<io::Result<T>> {
        let error = self.0.take().map_or_else(|| io::ErrorKind::BrokenPipe.into(), io::Error::other);
        Poll::Ready(Err(error))
    }
}

impl AsyncRead for BrokenWire {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.fail()
    }
}

impl AsyncWrite for BrokenWire {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        self.fail()
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.fail()
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
