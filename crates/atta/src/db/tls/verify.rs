//! Whether a server's certificate is trusted, as libpq would decide it.
//!
//! rustls checks chains, dates and names. What is added: chains without names (verify-ca), names in the old place
//! (certificates with a common name only, as PostgreSQL's own manual makes them), a self-signed certificate that is its
//! own root, and no check at all (require without a root).

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{
    CryptoProvider, verify_tls12_signature, verify_tls13_signature, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::certificate::{Facts, is_name_of};

/// What to trust.
pub(super) struct Trust {
    pub(super) roots: Vec<CertificateDer<'static>>,
    pub(super) revoked: Vec<CertificateRevocationListDer<'static>>,
    pub(super) checks_name: bool,
}

#[derive(Debug)]
pub(super) struct Verifier {
    provider: Arc<CryptoProvider>,
    /// None: every certificate will do.
    chains: Option<Arc<WebPkiServerVerifier>>,
    roots: Vec<CertificateDer<'static>>,
    checks_name: bool,
}

impl Verifier {
    /// Takes every certificate. That its owner has the key is checked all the same, since the login may be bound to it.
    pub(super) fn blind(provider: Arc<CryptoProvider>) -> Verifier {
        Verifier { provider, chains: None, roots: Vec::new(), checks_name: false }
    }

    pub(super) fn trusting(trust: Trust, provider: Arc<CryptoProvider>) -> Result<Verifier, String> {
        let mut store = RootCertStore::empty();
        let (added, _) = store.add_parsable_certificates(trust.roots.iter().cloned());
        if added == 0 {
            return Err("no certificate in it can be used".into());
        }
        let mut chains = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider.clone());
        if !trust.revoked.is_empty() {
            // As with libpq, a certificate that no list speaks of is refused, too.
            chains = chains.with_crls(trust.revoked);
        }
        let chains = chains.build().map_err(|error| error.to_string())?;
        Ok(Verifier { provider, chains: Some(chains), roots: trust.roots, checks_name: trust.checks_name })
    }

    /// Whether the certificate is one of the roots itself, and nothing but that is wrong with it: rustls has looked at
    /// its dates before it came to that.
    fn is_root_itself(&self, certificate: &CertificateDer<'_>, error: &Error) -> bool {
        let is_only_that = matches!(error, Error::InvalidCertificate(CertificateError::Other(other))
            if format!("{:?}", other.0).contains("CaUsedAsEndEntity"));
        is_only_that && self.roots.iter().any(|root| root.as_ref() == certificate.as_ref())
    }

    fn check_name(&self, certificate: &CertificateDer<'_>, name: &ServerName<'_>) -> Result<(), Error> {
        if !self.checks_name {
            return Ok(());
        }
        verify_server_name(&ParsedCertificate::try_from(certificate)?, name).or_else(|error| {
            let is_old_name = Facts::read(certificate).is_some_and(|facts| {
                let host = name.to_str();
                !facts.has_alternative_names && facts.common_names.iter().any(|name| is_name_of(name, &host))
            });
            if is_old_name { Ok(()) } else { Err(error) }
        })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chains) = &self.chains else { return Ok(ServerCertVerified::assertion()) };
        match chains.verify_server_cert(certificate, intermediates, name, ocsp_response, now) {
            Ok(verified) => return Ok(verified),
            // The name is what rustls looks at last, so the chain was fine.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => {}
            Err(error) if self.is_root_itself(certificate, &error) => {}
            Err(error) => return Err(error),
        }
        self.check_name(certificate, name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        match (&self.chains, Facts::read(certificate)) {
            // Certificates of the first version, which rustls refuses to read, are fine when none is looked at.
            (None, Some(facts)) => {
                let key = SubjectPublicKeyInfoDer::from(facts.key);
                verify_tls13_signature_with_raw_key(message, &key, signature, algorithms)
            }
            _ => verify_tls13_signature(message, certificate, signature, algorithms),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
