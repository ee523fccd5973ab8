//! Where the database is and how to connect to it: a connection string, files and the environment become complete
//! settings. They are read as libpq does, so that what works with `psql` works here.
//!
//! Nothing connects here: see [`super::connect`]. Passwords and certificates are read from their files at each
//! connection, so that a worker that runs for months uses new ones.

mod parse;
mod options;
mod service;
pub(crate) mod passfile;
mod data;
mod values;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use deadpool_postgres::Pool;
use serde::Serialize;
use tokio_postgres::config::Host;
use tokio_postgres::{CancelToken, Client, Config};

use super::tls::TlsSettings;
use super::{connect, pool};
use crate::Result;
pub use data::ConnectionData;
use options::Options;
pub(crate) use values::choose;
use values::{chosen, config, number, servers, session};

/// How long opening a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the database is and how to connect to it.
///
/// Everything is read as libpq does: a URL (`postgres://user@host:5432/database`), `key=value` pairs or only the name
/// of a database, completed by a service file, the `PG*` variables, the passfile and the certificates in
/// `~/.postgresql`. Displaying the settings never shows the password.
///
/// ```
/// # fn main() -> atta::Result<()> {
/// let settings = atta::ConnectionSettings::new("postgres://me:secret@db.example/app?sslmode=disable")?;
/// assert_eq!(settings.to_string(), "postgres://me@db.example:5432/app?sslmode=disable");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ConnectionSettings {
    /// The options from which the other fields were made.
    options: Options,
    /// The part that is the same for all servers.
    config: Config,
    servers: Vec<Server>,
    tls: TlsSettings,
    session: SessionKind,
    has_random_order: bool,
    connect_timeout: Option<Duration>,
    passfile: Option<PathBuf>,
}

/// A connection string as it was given. It may contain a password, so it is never displayed.
#[derive(Clone)]
pub(crate) struct ConnectionText(pub(crate) String);

impl fmt::Debug for ConnectionText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// One of the servers to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) host: Host,
    /// If set, the name of the host is not looked up.
    pub(crate) address: Option<IpAddr>,
    pub(crate) port: u16,
}

/// The kind of session that is requested of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SessionKind {
    Any,
    ReadWrite,
    ReadOnly,
    Primary,
    Standby,
    PreferStandby,
}

impl ConnectionSettings {
    /// Reads a connection string or the name of a database. Options that it does not contain come from the environment
    /// of this process. An empty text is valid: then all options do.
    pub fn new(text: &str) -> Result<ConnectionSettings> {
        ConnectionSettings::with_variables(text, |name| std::env::var(name).ok())
    }

    /// Reads the environment alone: `DATABASE_URL`, or else `PGDATABASE`, `PGHOST` and so on. None if it does not name
    /// a database.
    pub fn from_environment() -> Result<Option<ConnectionSettings>> {
        let text = in_environment(|name| std::env::var(name).ok());
        text.map(|text| ConnectionSettings::new(&text)).transpose()
    }

    /// [`ConnectionSettings::new`] with other variables than those of the environment.
    pub fn with_variables(
        text: &str,
        variables: impl Fn(&str) -> Option<String>,
    ) -> Result<ConnectionSettings> {
        let options = Options::resolve(text, &variables)?;
        let settings = ConnectionSettings {
            config: config(&options)?,
            servers: servers(&options)?,
            tls: TlsSettings::read(|key| options.get(key))?,
            session: session(&options)?,
            has_random_order: chosen(
                &options,
                "load_balance_hosts",
                &[("disable", false), ("random", true)],
            )?,
            connect_timeout: match number::<i32>(&options, "connect_timeout")? {
                None => Some(CONNECT_TIMEOUT),
                Some(seconds) => u64::try_from(seconds).ok().filter(|s| *s > 0).map(Duration::from_secs),
            },
            passfile: options.get("passfile").map(PathBuf::from),
            options,
        };
        // Reports missing or invalid files now, not at the first connection.
        settings.tls.connector()?;
        Ok(settings)
    }

    /// The same server, but another database.
    #[must_use]
    pub fn with_database(mut self, name: &str) -> ConnectionSettings {
        self.options.set("dbname", name);
        self.config.dbname(name);
        self
    }

    /// Sets the name that the server shows for the connections.
    #[must_use]
    pub fn with_application_name(mut self, name: &str) -> ConnectionSettings {
        self.options.set("application_name", name);
        self.config.application_name(name);
        self
    }

    /// Sets the name that the server shows for the connections, unless the user has set one.
    /// [`ConnectionSettings::to_string_with_password`] does not contain this name.
    #[must_use]
    pub(crate) fn with_default_application_name(mut self, name: &str) -> ConnectionSettings {
        if self.options.get("application_name").is_none() {
            self.config.application_name(name);
        }
        self
    }

    /// Adds settings for the server's session, after the existing ones.
    #[must_use]
    pub(crate) fn with_server_options(mut self, more: &str) -> ConnectionSettings {
        let options = format!("{} {more}", self.config.get_options().unwrap_or_default());
        self.options.set("options", options.as_str());
        self.config.options(options);
        self
    }

    /// The name of the database.
    pub fn database(&self) -> &str {
        self.config.get_dbname().unwrap_or_default()
    }

    /// The name of the role to log in as.
    pub fn user(&self) -> &str {
        self.config.get_user().unwrap_or_default()
    }

    /// Problems that should be corrected although connections work, for example a passfile that others may read.
    pub fn warnings(&self) -> Vec<String> {
        if self.has_password() {
            return Vec::new();
        }
        let warnings = self.servers.iter().filter_map(|server| self.look_up_password(server).warning);
        warnings.take(1).collect()
    }

    /// All settings as a connection string that needs no environment, **with the password in it**. For passing the
    /// connection to another process, never for displaying it.
    pub fn to_string_with_password(&self) -> String {
        self.options_with_password().to_text()
    }

    /// All settings as data that need no environment and no parser, **with the password in them**. For passing the
    /// connection to another process, whose database client may be written in any language.
    pub fn to_data_with_password(&self) -> ConnectionData {
        ConnectionData::of(self)
    }

    /// If there are several servers, the passfile may have several passwords, and its path is passed on instead.
    fn options_with_password(&self) -> Options {
        let mut options = self.options.clone();
        if let Some(password) = self.servers.first().and_then(|server| self.look_up_password(server).password)
            && !self.has_password()
            && self.servers.len() == 1
        {
            options.set("password", password);
        }
        options
    }

    /// Opens one connection. A task drives its other half, and ends with the client.
    ///
    /// The error contains the servers that were tried and a hint, and never the password. Cancel safe.
    pub async fn connect(&self) -> Result<Client> {
        let (client, connection) = connect::open(self).await.map_err(|failure| failure.into_error(None))?;
        // An error of the connection is returned by the client's next call.
        tokio::spawn(connection);
        Ok(client)
    }

    /// Asks the server to cancel the statement that runs on a connection, if one does. `token` is the connection's
    /// [`cancel_token`](Client::cancel_token). The request is sent over a connection of its own, with these settings for
    /// TLS. Only the statement's own result shows whether it was cancelled.
    ///
    /// Cancel safe: the request is sent or not.
    pub async fn cancel(&self, token: &CancelToken) -> Result<()> {
        connect::cancel(self, token).await
    }

    /// A pool of up to `size` connections, for example for [`WorkerUtils::new`](crate::WorkerUtils::new). Opens none
    /// yet.
    pub fn pool(&self, size: usize) -> Result<Pool> {
        pool::pool(self, size)
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn servers(&self) -> &[Server] {
        &self.servers
    }

    pub(crate) fn tls(&self) -> &TlsSettings {
        &self.tls
    }

    pub(crate) fn session(&self) -> SessionKind {
        self.session
    }

    pub(crate) fn has_random_order(&self) -> bool {
        self.has_random_order
    }

    /// Limits the time to connect to a server, unless a shorter limit is set already.
    pub(crate) fn with_connect_timeout(mut self, limit: Duration) -> ConnectionSettings {
        self.connect_timeout = Some(self.connect_timeout.map_or(limit, |timeout| timeout.min(limit)));
        self
    }

    pub(crate) fn connect_timeout(&self) -> Option<Duration> {
        self.connect_timeout
    }

    pub(crate) fn has_password(&self) -> bool {
        self.config.get_password().is_some()
    }

    pub(crate) fn passfile(&self) -> Option<&Path> {
        self.passfile.as_deref()
    }

    /// Looks up the password for a server in the passfile.
    pub(crate) fn look_up_password(&self, server: &Server) -> passfile::Lookup {
        let Some(file) = self.passfile() else { return passfile::Lookup::default() };
        let host = server.host_text();
        let hosts = if server.is_socket() { &[host.as_str(), "localhost"][..] } else { &[host.as_str()] };
        let login =
            passfile::Login { hosts, port: server.port, database: self.database(), user: self.user() };
        passfile::look_up(file, &login)
    }

    /// Servers and database, as they are named in errors.
    pub(crate) fn place(&self) -> String {
        let servers: Vec<String> = self.servers.iter().map(ToString::to_string).collect();
        format!("{}/{}", servers.join(","), self.database())
    }
}

/// The database that the environment names, as a connection string; none if it names none.
pub(crate) fn in_environment(variables: impl Fn(&str) -> Option<String>) -> Option<String> {
    let set = |name: &str| variables(name).filter(|value| !value.is_empty());
    let is_named = ["PGDATABASE", "PGHOST", "PGHOSTADDR", "PGSERVICE"].iter().any(|name| set(name).is_some());
    set("DATABASE_URL").or_else(|| is_named.then(String::new))
}

impl Server {
    pub(crate) fn is_socket(&self) -> bool {
        !matches!(self.host, Host::Tcp(_))
    }

    /// The name or address of the host, or the folder of the socket.
    pub(crate) fn host_text(&self) -> String {
        match &self.host {
            Host::Tcp(name) => name.clone(),
            #[cfg(unix)]
            Host::Unix(folder) => folder.display().to_string(),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.host_text();
        if host.contains(':') {
            write!(f, "[{host}]:{}", self.port)
        } else {
            write!(f, "{host}:{}", self.port)
        }
    }
}

/// Displays a URL without the password.
impl fmt::Display for ConnectionSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers: Vec<String> = self
            .servers
            .iter()
            .map(|server| {
                let text = server.to_string();
                if server.is_socket() { text.replace('/', "%2F") } else { text }
            })
            .collect();
        let (user, servers, database) = (self.user(), servers.join(","), self.database());
        write!(f, "postgres://{user}@{servers}/{database}?sslmode={}", self.tls.mode())
    }
}

impl fmt::Debug for ConnectionSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConnectionSettings").field(&self.to_string()).finish()
    }
}
