//! TLS, with libpq's sslmodes: which checks are made of a server's certificate, and the driver's connector on rustls.

mod certificate;
mod data;
mod stream;
mod verify;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::{ClientConfig, SupportedProtocolVersion};

pub(crate) use data::TlsData;
pub(crate) use stream::{Connector, Stream};

use super::connection::{choose, passfile};
use crate::{Error, Result};
use verify::{Trust, Verifier};

/// How strictly a connection requires TLS, by libpq's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SslMode {
    Disable,
    Allow,
    Prefer,
    /// If a root certificate is configured, the server's certificate must be issued by it.
    Require,
    /// As `Require`, but accepts any certificate. Node's name for it.
    NoVerify,
    VerifyCa,
    VerifyFull,
}

const MODES: &[(&str, SslMode)] = &[
    ("prefer", SslMode::Prefer),
    ("disable", SslMode::Disable),
    ("allow", SslMode::Allow),
    ("require", SslMode::Require),
    ("no-verify", SslMode::NoVerify),
    ("verify-ca", SslMode::VerifyCa),
    ("verify-full", SslMode::VerifyFull),
];

/// The requested TLS settings. Files are read by [`TlsSettings::connector`].
#[derive(Clone, Debug)]
pub(crate) struct TlsSettings {
    mode: SslMode,
    roots: Roots,
    revoked: Option<PathBuf>,
    /// Our certificate, and its key.
    certificate: Option<(PathBuf, PathBuf)>,
    sends_server_name: bool,
    /// Starts TLS without asking the server first; supported since PostgreSQL 17.
    is_direct: bool,
    versions: Vec<&'static SupportedProtocolVersion>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Roots {
    None,
    System,
    File(PathBuf),
}

impl fmt::Display for SslMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = MODES.iter().find(|(_, mode)| mode == self).map_or("", |(word, _)| word);
        f.write_str(word)
    }
}

impl TlsSettings {
    /// Reads the options of a connection, by libpq's names.
    pub(crate) fn read<'a>(option: impl Fn(&str) -> Option<&'a str>) -> Result<TlsSettings> {
        let roots = match option("sslrootcert") {
            None => Roots::None,
            Some("system") => Roots::System,
            Some(file) => Roots::File(file.into()),
        };
        let mode = match (option("sslmode"), &roots) {
            (None, Roots::System) => SslMode::VerifyFull,
            (given, _) => choose("sslmode", given, MODES)?,
        };
        if roots == Roots::System && !matches!(mode, SslMode::VerifyFull | SslMode::Disable) {
            return Err(Error::config(format!("sslmode={mode} is too weak for sslrootcert=system"))
                .with_hint("anyone can get a certificate that the system trusts; use sslmode=verify-full"));
        }
        let is_direct =
            choose("sslnegotiation", option("sslnegotiation"), &[("postgres", false), ("direct", true)])?;
        if is_direct && matches!(mode, SslMode::Disable | SslMode::Allow | SslMode::Prefer) {
            return Err(Error::config(format!("sslmode={mode} is too weak for sslnegotiation=direct"))
                .with_hint("use sslmode=require or stronger"));
        }
        let has_certificate =
            choose("sslcertmode", option("sslcertmode"), &[("allow", true), ("disable", false)])?;
        let certificate = option("sslcert").filter(|_| has_certificate).map(|certificate| {
            // If only a certificate is given, libpq expects the key in the default place, which may not exist.
            let key =
                option("sslkey").map_or_else(|| Path::new(certificate).with_extension("key"), PathBuf::from);
            (certificate.into(), key)
        });
        Ok(TlsSettings {
            mode,
            roots,
            revoked: option("sslcrl").map(PathBuf::from),
            certificate,
            sends_server_name: choose("sslsni", option("sslsni"), &[("1", true), ("0", false)])?,
            is_direct,
            versions: versions(option("ssl_min_protocol_version"), option("ssl_max_protocol_version"))?,
        })
    }

    pub(crate) fn mode(&self) -> SslMode {
        self.mode
    }

    pub(crate) fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// What the server's certificate is checked against, as text for a hint.
    pub(crate) fn describe_roots(&self) -> String {
        match &self.roots {
            Roots::None => "nothing".into(),
            Roots::System => "the certificates that this system trusts".into(),
            Roots::File(file) => file.display().to_string(),
        }
    }

    /// Reads the files. Invalid files are errors of the configuration.
    pub(crate) fn connector(&self) -> Result<Connector> {
        if self.mode == SslMode::Disable {
            return Ok(Connector::none());
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&self.versions)
            .map_err(|error| Error::config(format!("setting up TLS: {error}")))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(self.verifier(provider)?));
        let mut config = match &self.certificate {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(certificate, "sslcert")?;
                builder.with_client_auth_cert(chain, private_key(key)?).map_err(|error| {
                    let (certificate, key) = (certificate.display(), key.display());
                    Error::config(format!("certificate {certificate} can't be used with key {key}: {error}"))
                })?
            }
        };
        config.enable_sni = self.sends_server_name;
        if self.is_direct {
            config.alpn_protocols = vec![b"postgresql".to_vec()];
        }
        Ok(Connector::new(config))
    }

    fn verifier(&self, provider: Arc<CryptoProvider>) -> Result<Verifier> {
        let roots = match (&self.roots, self.mode) {
            (_, SslMode::NoVerify) | (Roots::None, SslMode::Require | SslMode::Allow | SslMode::Prefer) => {
                return Ok(Verifier::blind(provider));
            }
            (Roots::None, mode) => {
                return Err(Error::config(format!("sslmode={mode} needs a root certificate")).with_hint(
                    "put it into ~/.postgresql/root.crt, or set sslrootcert to its file; for public certificates use sslrootcert=system",
                ));
            }
            (Roots::System, _) => system_roots()?,
            (Roots::File(file), _) => certificates(file, "sslrootcert")?,
        };
        let revoked = match &self.revoked {
            None => Vec::new(),
            Some(file) => read_pem::<CertificateRevocationListDer<'static>>(file, "sslcrl")?,
        };
        let trust = Trust { roots, revoked, checks_name: self.mode == SslMode::VerifyFull };
        Verifier::trusting(trust, provider)
            .map_err(|error| Error::config(format!("{}: {error}", self.describe_roots())))
    }
}

/// rustls supports only versions 1.2 and 1.3, so a lower limit below them changes nothing.
fn versions(min: Option<&str>, max: Option<&str>) -> Result<Vec<&'static SupportedProtocolVersion>> {
    const WORDS: &[(&str, u8)] = &[("TLSv1.2", 2), ("TLSv1", 0), ("TLSv1.1", 1), ("TLSv1.3", 3)];
    let min = choose("ssl_min_protocol_version", min, WORDS)?;
    let max = choose("ssl_max_protocol_version", max.or(Some("TLSv1.3")), WORDS)?;
    let known = [(2, &rustls::version::TLS12), (3, &rustls::version::TLS13)];
    let versions: Vec<_> = known
        .into_iter()
        .filter(|(version, _)| (min..=max).contains(version))
        .map(|(_, known)| known)
        .collect();
    if versions.is_empty() {
        return Err(Error::config("no TLS version is within the limits; TLSv1.2 and TLSv1.3 are supported"));
    }
    Ok(versions)
}

fn certificates(file: &Path, option: &str) -> Result<Vec<CertificateDer<'static>>> {
    read_pem(file, option)
}

/// Reads all items of one kind from a file.
fn read_pem<T: PemObject>(file: &Path, option: &str) -> Result<Vec<T>> {
    let wrong = |why: String| Error::config(format!("{option}: can't read {}: {why}", file.display()));
    let bytes = fs::read(file).map_err(|error| wrong(error.to_string()))?;
    let things: Vec<T> =
        T::pem_slice_iter(&bytes).collect::<Result<_, _>>().map_err(|error| wrong(error.to_string()))?;
    if things.is_empty() { Err(wrong("it contains no certificate".into())) } else { Ok(things) }
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>> {
    let wrong = |why: String| Error::config(format!("sslkey: can't use {}: {why}", file.display()));
    let metadata = fs::metadata(file).map_err(|error| wrong(error.to_string()))?;
    if passfile::is_open_to_others(&metadata) && !is_shared_by_root(&metadata) {
        return Err(
            wrong("other users may read it".into()).with_hint(format!("run: chmod 600 {}", file.display()))
        );
    }
    let bytes = fs::read(file).map_err(|error| wrong(error.to_string()))?;
    if bytes.windows(9).any(|part| part == b"ENCRYPTED") {
        return Err(wrong("encrypted keys are not supported".into())
            .with_hint("decrypt it: openssl pkey -in KEY -out NEWKEY"));
    }
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| wrong(error.to_string()))
}

/// Root's keys may be readable by a group, as in libpq: keys of the whole machine are shared this way.
#[cfg(unix)]
fn is_shared_by_root(metadata: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    metadata.uid() == 0 && metadata.mode() & 0o037 == 0
}

#[cfg(not(unix))]
fn is_shared_by_root(_: &fs::Metadata) -> bool {
    false
}

/// Read only once, because there are many.
fn system_roots() -> Result<Vec<CertificateDer<'static>>> {
    static SYSTEM: OnceLock<Vec<CertificateDer<'static>>> = OnceLock::new();
    let roots = SYSTEM.get_or_init(|| rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(Error::config("sslrootcert=system: this system has no trusted root certificates")
            .with_hint(
                "install them (Debian: apt-get install ca-certificates), or set SSL_CERT_FILE to a file",
            ));
    }
    Ok(roots.clone())
}
