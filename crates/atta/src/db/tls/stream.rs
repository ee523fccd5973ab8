//! The driver's traits for TLS, on rustls.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use ring::digest;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect};
use tokio_rustls::TlsConnector;

use super::certificate::Facts;

/// Starts TLS on a connection, for one attempt to connect.
#[derive(Clone)]
pub(crate) struct Connector {
    config: Option<Arc<ClientConfig>>,
    was_used: Arc<AtomicBool>,
}

impl Connector {
    pub(super) fn new(config: ClientConfig) -> Connector {
        Connector { config: Some(Arc::new(config)), was_used: Arc::default() }
    }

    /// For connections without TLS.
    pub(super) fn none() -> Connector {
        Connector { config: None, was_used: Arc::default() }
    }

    /// The same connector, for another attempt.
    pub(crate) fn anew(&self) -> Connector {
        Connector { config: self.config.clone(), was_used: Arc::default() }
    }

    /// Whether the server agreed to TLS.
    pub(crate) fn was_used(&self) -> bool {
        self.was_used.load(Ordering::Relaxed)
    }
}

impl MakeTlsConnect<Socket> for Connector {
    type Stream = Stream;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Handshake> {
        Ok(Handshake { connector: self.clone(), host: host.to_owned() })
    }
}

/// A handshake that is about to start.
pub(crate) struct Handshake {
    connector: Connector,
    host: String,
}

impl TlsConnect<Socket> for Handshake {
    type Stream = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let config = self.connector.config.ok_or_else(|| io::Error::other("TLS is switched off"))?;
            self.connector.was_used.store(true, Ordering::Relaxed);
            // A host name that no certificate can have is accepted unless names are checked; this placeholder then
            // matches none.
            let nowhere = || ServerName::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
            let name = ServerName::try_from(self.host).unwrap_or_else(|_| nowhere());
            Ok(Stream(TlsConnector::from(config).connect(name, socket).await?))
        })
    }
}

/// A connection with TLS.
pub(crate) struct Stream(tokio_rustls::client::TlsStream<Socket>);

impl tokio_postgres::tls::TlsStream for Stream {
    /// Binds the login to the server's certificate, so that nobody in between can relay it.
    fn channel_binding(&self) -> ChannelBinding {
        let (_, session) = self.0.get_ref();
        let certificate = session.peer_certificates().and_then(<[_]>::first);
        let hash = certificate.and_then(|certificate| {
            let algorithm = Facts::read(certificate)?.binding_hash()?;
            Some(digest::digest(algorithm, certificate).as_ref().to_vec())
        });
        hash.map_or_else(ChannelBinding::none, ChannelBinding::tls_server_end_point)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
