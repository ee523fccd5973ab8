//! From what the user said to a connection.

use std::env;

use tokio_postgres::{Client, Config, NoTls};

use crate::args::Connection;
use crate::output::Failure;

/// Opens one connection.
pub(crate) async fn connect(connection: &Connection) -> Result<Client, Failure> {
    open(&config(connection)?).await
}

/// Opens one connection as set up.
pub(crate) async fn open(config: &Config) -> Result<Client, Failure> {
    let (client, driver) = config.connect(NoTls).await.map_err(|error| {
        Failure::new(format!("can't connect to {}: {}", place(config), reason(&error))).with_hint(
            "is the server running, and is the connection string right? Give it by -c or DATABASE_URL",
        )
    })?;
    // Ends with the client; what goes wrong on the way is the answer to the client's next call.
    tokio::spawn(driver);
    Ok(client)
}

/// What the user said, as the driver wants it.
pub(crate) fn config(connection: &Connection) -> Result<Config, Failure> {
    match connection.connection.as_deref() {
        Some(text) if is_name(text) => {
            let mut config = from_environment()?;
            config.dbname(text);
            Ok(config)
        }
        Some(text) => text.parse().map_err(|error: tokio_postgres::Error| {
            Failure::new(format!("invalid connection string: {}", reason(&error)))
                .with_hint("it looks like postgres://user:password@host:5432/database")
        }),
        None if env::var_os("PGDATABASE").is_some() || env::var_os("PGHOST").is_some() => from_environment(),
        None => Err(Failure::new("no database given").with_hint(
            "use -c postgres://user@host/database, or set DATABASE_URL, or PGHOST and PGDATABASE",
        )),
    }
}

/// A bare name, as in `-c my_db`.
fn is_name(text: &str) -> bool {
    !text.contains("://") && !text.contains('=')
}

fn from_environment() -> Result<Config, Failure> {
    let mut config = Config::new();
    config.host(env::var("PGHOST").unwrap_or_else(|_| default_host()));
    config.user(env::var("PGUSER").or_else(|_| env::var("USER")).unwrap_or_else(|_| "postgres".into()));
    if let Ok(port) = env::var("PGPORT") {
        let port = port.parse().map_err(|_| Failure::new(format!("PGPORT is not a port: {port:?}")))?;
        config.port(port);
    }
    if let Ok(password) = env::var("PGPASSWORD") {
        config.password(password);
    }
    if let Ok(name) = env::var("PGDATABASE") {
        config.dbname(name);
    }
    Ok(config)
}

/// Where Debian's and most other packages put the socket.
fn default_host() -> String {
    let socket = "/var/run/postgresql";
    if std::path::Path::new(socket).is_dir() { socket.into() } else { "localhost".into() }
}

/// The server and database, without the password.
fn place(config: &Config) -> String {
    use tokio_postgres::config::Host;
    let hosts: Vec<String> = config
        .get_hosts()
        .iter()
        .map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        })
        .collect();
    let port = config.get_ports().first().copied().unwrap_or(5432);
    format!("{}:{port}/{}", hosts.join(","), config.get_dbname().unwrap_or_default())
}

/// The server's message, or the cause of there being none.
pub(crate) fn reason(error: &tokio_postgres::Error) -> String {
    use std::error::Error;
    match error.as_db_error() {
        Some(error) => error.message().to_owned(),
        None => error.source().map_or_else(|| error.to_string(), ToString::to_string),
    }
}
