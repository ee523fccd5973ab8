//! Settings as data for a database client in another process: nothing is left to be parsed or looked up there.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::{ConnectionSettings, Server, SessionKind};
use crate::db::tls::{SslMode, TlsData};

/// All settings of a connection, **with the password**, in a form that can only be serialized. Made by
/// [`ConnectionSettings::to_data_with_password`].
///
/// - `libpq` has all options by libpq's names, as texts, for clients that are built on libpq.
/// - `attempts` is for other clients: the servers to try, in this order, each with TLS or without it, as the sslmode
///   requires. An attempt has `host` (a name, an address, or the folder of a Unix socket), `port`, `user`, `password`,
///   `database`, `options`, `application_name`, `connect_timeout` (in seconds), `keepalives` and `tls`. What is not set
///   is null. Without TLS, `tls` is null. Otherwise it has `checks_chain`, `checks_name`, `server_name`,
///   `root_certificates` (a file; null for those of the system), `revoked`, `certificate` and `key` (files),
///   `min_version`, `max_version` and `is_direct`.
/// - `session` is libpq's `target_session_attrs`: the kind of server that is accepted.
#[derive(Clone, Serialize)]
pub struct ConnectionData {
    libpq: BTreeMap<&'static str, String>,
    attempts: Vec<Attempt>,
    session: SessionKind,
}

#[derive(Clone, Serialize)]
struct Attempt {
    host: String,
    port: u16,
    user: String,
    password: Option<String>,
    database: String,
    options: Option<String>,
    application_name: Option<String>,
    connect_timeout: Option<u64>,
    keepalives: bool,
    tls: Option<TlsData>,
}

/// Without any of its parts, since the password is one of them.
impl fmt::Debug for ConnectionData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionData").finish_non_exhaustive()
    }
}

impl ConnectionData {
    pub(super) fn of(settings: &ConnectionSettings) -> ConnectionData {
        let attempts = settings.servers().iter().flat_map(|server| attempts(settings, server));
        ConnectionData {
            libpq: settings.options_with_password().for_libpq(),
            attempts: attempts.collect(),
            session: settings.session(),
        }
    }
}

/// The attempts at one server, in libpq's order.
fn attempts(settings: &ConnectionSettings, server: &Server) -> Vec<Attempt> {
    let password = match settings.options.get("password") {
        Some(password) => Some(password.to_owned()),
        None => settings.look_up_password(server).password,
    };
    let attempt = Attempt {
        host: server.address.map_or_else(|| server.host_text(), |address| address.to_string()),
        port: server.port,
        user: settings.user().to_owned(),
        password,
        database: settings.database().to_owned(),
        options: settings.options.get("options").map(str::to_owned),
        application_name: settings.options.get("application_name").map(str::to_owned),
        connect_timeout: settings.connect_timeout().map(|timeout| timeout.as_secs().max(1)),
        keepalives: settings.config().get_keepalives(),
        tls: None,
    };
    let tls = || Some(settings.tls().data(&server.host_text()));
    let choices = match settings.tls().mode() {
        _ if server.is_socket() => vec![None],
        SslMode::Disable => vec![None],
        SslMode::Allow => vec![None, tls()],
        SslMode::Prefer => vec![tls(), None],
        SslMode::Require | SslMode::NoVerify | SslMode::VerifyCa | SslMode::VerifyFull => vec![tls()],
    };
    choices.into_iter().map(|tls| Attempt { tls, ..attempt.clone() }).collect()
}
