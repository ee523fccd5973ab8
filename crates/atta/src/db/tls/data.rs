//! TLS settings as data for a database client in another process.

use std::net::IpAddr;
use std::path::PathBuf;

use rustls::ProtocolVersion;
use serde::Serialize;

use super::{Roots, SslMode, TlsSettings};

/// What a client needs to begin TLS. Files are read by the client at each connection, so that it uses new ones.
#[derive(Clone, Serialize)]
pub(crate) struct TlsData {
    /// Whether the server's certificate must be issued by one of the root certificates.
    checks_chain: bool,
    /// Whether the server's certificate must be for the name of the server.
    checks_name: bool,
    /// None: the host is an address, or the name must not be sent.
    server_name: Option<String>,
    /// None: the certificates that the system trusts.
    root_certificates: Option<PathBuf>,
    revoked: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    min_version: &'static str,
    max_version: &'static str,
    is_direct: bool,
}

impl TlsSettings {
    pub(crate) fn data(&self, host: &str) -> TlsData {
        let is_name = host.parse::<IpAddr>().is_err();
        let (certificate, key) = self.certificate.clone().unzip();
        let name = |version: Option<&&rustls::SupportedProtocolVersion>| match version {
            Some(version) if version.version == ProtocolVersion::TLSv1_2 => "TLSv1.2",
            _ => "TLSv1.3",
        };
        TlsData {
            checks_chain: self.mode != SslMode::NoVerify && self.roots != Roots::None,
            checks_name: self.mode == SslMode::VerifyFull,
            // The name is needed for its check in any case.
            server_name: (is_name && (self.sends_server_name || self.mode == SslMode::VerifyFull))
                .then(|| host.to_owned()),
            root_certificates: match &self.roots {
                Roots::File(file) => Some(file.clone()),
                Roots::None | Roots::System => None,
            },
            revoked: self.revoked.clone(),
            certificate,
            key,
            min_version: name(self.versions.first()),
            max_version: name(self.versions.last()),
            is_direct: self.is_direct,
        }
    }
}
