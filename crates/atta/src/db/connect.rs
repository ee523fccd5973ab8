//! The one place that opens connections. It chooses the server, uses TLS or not, and checks whether the server is of
//! the requested kind.
//!
//! Servers are tried in order, and with each server all addresses of its name. If a server refuses the login, the
//! search ends, as with libpq: the next server would refuse it too, or be the wrong one.

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio_postgres::config::{Host, SslMode as DriverSslMode, SslNegotiation};
use tokio_postgres::{CancelToken, Client, Config, SimpleQueryMessage, Socket};

use super::connect_failure::{Failure, Miss};
use super::connection::{ConnectionSettings, Server, SessionKind};
use super::tls::{Connector, SslMode, Stream};
use crate::{Error, Result};

/// The driver's half of a connection, which a task must poll.
pub(crate) type Connection = tokio_postgres::Connection<Socket, Stream>;

/// Whether one attempt uses TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wire {
    Plain,
    TlsIfOffered,
    Tls,
}

/// Opens one connection. Cancel safe.
pub(crate) async fn open(settings: &ConnectionSettings) -> Result<(Client, Connection), Failure> {
    let connector = settings.tls().connector().map_err(|error| Failure::of_set_up(settings, error))?;
    let mut misses = Vec::new();
    for kind in passes(settings.session()) {
        for server in in_order(settings) {
            match open_server(settings, server, *kind, &connector).await {
                Ok(opened) => return Ok(opened),
                Err(miss) => {
                    let is_final = miss.is_refusal();
                    misses.push(miss);
                    if is_final {
                        return Err(Failure::new(settings, misses));
                    }
                }
            }
        }
    }
    Err(Failure::new(settings, misses))
}

/// Asks the server to cancel the statement of a connection, over a connection of its own. Cancel safe.
pub(crate) async fn cancel(settings: &ConnectionSettings, token: &CancelToken) -> Result<()> {
    let doing = "cancelling a statement";
    let connector = settings.tls().connector()?;
    match within(settings.connect_timeout(), token.cancel_query(connector)).await {
        Some(sent) => sent.map_err(|error| Error::database(doing, error)),
        None => Err(Error::unavailable(format!("{doing}: the server did not answer"))),
    }
}

/// The kinds of session to try in turn: all servers are tried for the first kind, then for the next.
fn passes(session: SessionKind) -> &'static [SessionKind] {
    match session {
        SessionKind::Any => &[SessionKind::Any],
        SessionKind::ReadWrite => &[SessionKind::ReadWrite],
        SessionKind::ReadOnly => &[SessionKind::ReadOnly],
        SessionKind::Primary => &[SessionKind::Primary],
        SessionKind::Standby => &[SessionKind::Standby],
        SessionKind::PreferStandby => &[SessionKind::Standby, SessionKind::Any],
    }
}

fn in_order(settings: &ConnectionSettings) -> Vec<&Server> {
    let mut servers: Vec<&Server> = settings.servers().iter().collect();
    if settings.has_random_order() {
        fastrand::shuffle(&mut servers);
    }
    servers
}

/// Tries the addresses of one server.
async fn open_server(
    settings: &ConnectionSettings,
    server: &Server,
    kind: SessionKind,
    connector: &Connector,
) -> Result<(Client, Connection), Miss> {
    let mut config = settings.config().clone();
    if !settings.has_password() {
        let found = settings.look_up_password(server);
        if let Some(warning) = found.warning {
            tracing::warn!("{warning}");
        }
        if let Some(password) = found.password {
            config.password(password);
        }
    }
    let attempt = Attempt { settings, server, kind, connector };
    let limit = settings.connect_timeout();
    let addresses = match within(limit, look_up(server)).await {
        Some(Ok(addresses)) => addresses,
        Some(Err(error)) => return Err(Miss::unknown_host(server, &error)),
        None => return Err(Miss::timeout(server, limit)),
    };
    let mut last = None;
    for address in addresses.in_order(settings.has_random_order()) {
        match within(limit, attempt.open(config.clone(), address)).await {
            Some(Ok(opened)) => return Ok(opened),
            Some(Err(miss)) if miss.is_refusal() => return Err(miss),
            Some(Err(miss)) => last = Some(miss),
            None => last = Some(Miss::timeout(server, limit)),
        }
    }
    Err(last.unwrap_or_else(|| Miss::unknown_host(server, &std::io::ErrorKind::NotFound.into())))
}

async fn within<T>(limit: Option<Duration>, work: impl Future<Output = T>) -> Option<T> {
    match limit {
        Some(limit) => tokio::time::timeout(limit, work).await.ok(),
        None => Some(work.await),
    }
}

/// A Unix socket has no addresses.
enum Addresses {
    Socket,
    Internet(Vec<IpAddr>),
}

impl Addresses {
    fn in_order(self, is_random: bool) -> Vec<Option<IpAddr>> {
        match self {
            Addresses::Socket => vec![None],
            Addresses::Internet(mut addresses) => {
                if is_random {
                    fastrand::shuffle(&mut addresses);
                }
                addresses.into_iter().map(Some).collect()
            }
        }
    }
}

async fn look_up(server: &Server) -> std::io::Result<Addresses> {
    match (&server.host, server.address) {
        (_, Some(address)) => Ok(Addresses::Internet(vec![address])),
        (Host::Tcp(name), None) => {
            let found = tokio::net::lookup_host((name.as_str(), server.port)).await?;
            let mut addresses: Vec<IpAddr> = Vec::new();
            for address in found.map(|address: SocketAddr| address.ip()) {
                if !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
            Ok(Addresses::Internet(addresses))
        }
        #[cfg(unix)]
        (Host::Unix(_), None) => Ok(Addresses::Socket),
    }
}

/// The values that all attempts at one server share.
struct Attempt<'a> {
    settings: &'a ConnectionSettings,
    server: &'a Server,
    kind: SessionKind,
    connector: &'a Connector,
}

impl Attempt<'_> {
    /// Connects to one address; if necessary twice, with TLS and without.
    async fn open(&self, mut config: Config, address: Option<IpAddr>) -> Result<(Client, Connection), Miss> {
        match &self.server.host {
            Host::Tcp(name) => config.host(name),
            #[cfg(unix)]
            Host::Unix(folder) => config.host_path(folder),
        };
        if let Some(address) = address {
            config.hostaddr(address);
        }
        config.port(self.server.port);
        let mut first = None;
        for wire in self.wires() {
            let connector = self.connector.anew();
            match self.open_by(*wire, &config, &connector).await {
                Ok(opened) => return Ok(opened),
                Err(miss) => {
                    let miss = miss.after(first.take());
                    // With "prefer", if the attempt did not use TLS anyway, there is nothing else to try.
                    let was_plain = *wire == Wire::TlsIfOffered && !connector.was_used();
                    if was_plain || !miss.may_be_the_wire() {
                        return Err(miss);
                    }
                    first = Some(miss);
                }
            }
        }
        Err(first.unwrap_or_else(|| Miss::timeout(self.server, None)))
    }

    /// Whether to use TLS, for each attempt in order. Servers do not use TLS on Unix sockets.
    fn wires(&self) -> &'static [Wire] {
        match self.settings.tls().mode() {
            _ if self.server.is_socket() => &[Wire::Plain],
            SslMode::Disable => &[Wire::Plain],
            SslMode::Allow => &[Wire::Plain, Wire::Tls],
            SslMode::Prefer => &[Wire::TlsIfOffered, Wire::Plain],
            SslMode::Require | SslMode::NoVerify | SslMode::VerifyCa | SslMode::VerifyFull => &[Wire::Tls],
        }
    }

    async fn open_by(
        &self,
        wire: Wire,
        config: &Config,
        connector: &Connector,
    ) -> Result<(Client, Connection), Miss> {
        let mut config = config.clone();
        config.ssl_mode(match wire {
            Wire::Plain => DriverSslMode::Disable,
            Wire::TlsIfOffered => DriverSslMode::Prefer,
            Wire::Tls => DriverSslMode::Require,
        });
        if self.settings.tls().is_direct() {
            config.ssl_negotiation(SslNegotiation::Direct);
        }
        let missed = |error| Miss::driver(self.server, error, connector.was_used());
        let (client, mut connection) = config.connect(connector.clone()).await.map_err(missed)?;
        if self.kind != SessionKind::Any {
            let state = read_session_kind(&client, &mut connection).await.map_err(missed)?;
            if let Some(why) = state.why_not(self.kind) {
                return Err(Miss::wrong_kind(self.server, why));
            }
        }
        Ok((client, connection))
    }
}

/// What a server reports about its session.
struct SessionState {
    is_standby: bool,
    is_read_only: bool,
}

impl SessionState {
    fn why_not(&self, kind: SessionKind) -> Option<&'static str> {
        match kind {
            SessionKind::Any | SessionKind::PreferStandby => None,
            SessionKind::ReadWrite => self.is_read_only.then_some("the server is read-only"),
            SessionKind::ReadOnly => (!self.is_read_only).then_some("the server is not read-only"),
            SessionKind::Primary => self.is_standby.then_some("the server is a standby"),
            SessionKind::Standby => (!self.is_standby).then_some("the server is not a standby"),
        }
    }
}

/// Queries the server while no task polls the connection yet.
async fn read_session_kind(
    client: &Client,
    connection: &mut Connection,
) -> Result<SessionState, tokio_postgres::Error> {
    let asked = client.simple_query(include_str!("../../sql/queries/read_session_kind.sql"));
    tokio::pin!(asked);
    let messages = loop {
        tokio::select! {
            biased;
            answer = &mut asked => break answer?,
            // If the connection ends, the query fails as well, in the next round of the loop.
            message = poll_fn(|cx| connection.poll_message(cx)) => match message {
                Some(Err(error)) => return Err(error),
                Some(Ok(_)) => {}
                None => break asked.await?,
            },
        }
    };
    let row = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let says = |column, word| row.is_some_and(|row| row.get(column) == Some(word));
    Ok(SessionState { is_standby: says("is_standby", "t"), is_read_only: says("is_read_only", "on") })
}
