//! Whether a server's certificate is trusted, as libpq would decide it.
//!
//! rustls checks chains, dates and names. This module adds: chains without names (verify-ca), names in the old place
//! (certificates with only a common name, as in PostgreSQL's own manual), a self-signed certificate that is its own
//! root, and no check at all (require without a root).

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

/// The roots to trust, and the certificates that are revoked.
pub(super) struct Trust {
    pub(super) roots: Vec<CertificateDer<'static>>,
    pub(super) revoked: Vec<CertificateRevocationListDer<'static>>,
    pub(super) checks_name: bool,
}

#[derive(Debug)]
pub(super) struct Verifier {
    provider: Arc<CryptoProvider>,
    /// None: every certificate is accepted.
    chains: Option<Arc<WebPkiServerVerifier>>,
    roots: Vec<CertificateDer<'static>>,
    checks_name: bool,
}

impl Verifier {
    /// Accepts every certificate. It still checks that the server has the certificate's key, since the login may be
    /// bound to it.
    pub(super) fn blind(provider: Arc<CryptoProvider>) -> Verifier {
        Verifier { provider, chains: None, roots: Vec::new(), checks_name: false }
    }

    pub(super) fn trusting(trust: Trust, provider: Arc<CryptoProvider>) -> Result<Verifier, String> {
        let mut store = RootCertStore::empty();
        let (added, _) = store.add_parsable_certificates(trust.roots.iter().cloned());
        if added == 0 {
            return Err("it contains no usable certificate".into());
        }
        let mut chains = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider.clone());
        if !trust.revoked.is_empty() {
            // As with libpq, a certificate that no revocation list covers is rejected, too.
            chains = chains.with_crls(trust.revoked);
        }
        let chains = chains.build().map_err(|error| error.to_string())?;
        Ok(Verifier { provider, chains: Some(chains), roots: trust.roots, checks_name: trust.checks_name })
    }

    /// Whether the certificate is itself one of the roots, and nothing else is wrong with it: rustls has checked its
    /// dates before it reports this error.
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
            // rustls checks the name last, so the chain is valid.
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
            // rustls can't read certificates of version 1. They are accepted when no certificate is checked.
            (None, Some(facts)) => {
                let key = SubjectPublicKeyInfoDer::from(facts.key.as_slice());
                verify_tls13_signature_with_raw_key(message, &key, signature, algorithms)
            }
            _ => verify_tls13_signature(message, certificate, signature, algorithms),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};

    struct Authority(CertifiedIssuer<'static, KeyPair>);

    impl Authority {
        fn new() -> Authority {
            let mut params = params(&[], "our authority");
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
        }

        fn sign(&self, params: &CertificateParams) -> CertificateDer<'static> {
            params.signed_by(&KeyPair::generate().unwrap(), &self.0).unwrap().der().clone()
        }
    }

    fn params(names: &[&str], common_name: &str) -> CertificateParams {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params
    }

    fn is_trusted(
        certificate: &CertificateDer<'static>,
        host: &str,
        root: &CertificateDer<'static>,
        checks_name: bool,
    ) -> bool {
        let trust = Trust { roots: vec![root.clone()], revoked: Vec::new(), checks_name };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = Verifier::trusting(trust, provider).unwrap();
        let name = ServerName::try_from(host.to_owned()).unwrap();
        verifier.verify_server_cert(certificate, &[], &name, &[], UnixTime::now()).is_ok()
    }

    #[test]
    fn names_are_checked_if_asked_for_and_chains_always() {
        let (ours, theirs) = (Authority::new(), Authority::new());
        let certificate = ours.sign(&params(&["db.example", "10.0.0.1"], "other.example"));
        for (host, with_names, without) in [
            ("db.example", true, true),
            ("10.0.0.1", true, true),
            ("10.0.0.2", false, true),
            // If there are names in the right place, the old place does not count.
            ("other.example", false, true),
        ] {
            assert_eq!(is_trusted(&certificate, host, ours.0.der(), true), with_names, "{host}");
            assert_eq!(is_trusted(&certificate, host, ours.0.der(), false), without, "{host}");
            assert!(!is_trusted(&certificate, host, theirs.0.der(), false), "{host}");
        }
    }

    #[test]
    fn a_certificate_may_have_its_name_in_the_old_place() {
        let ours = Authority::new();
        let certificate = ours.sign(&params(&[], "db.example"));
        assert!(is_trusted(&certificate, "db.example", ours.0.der(), true));
        assert!(!is_trusted(&certificate, "db.example.org", ours.0.der(), true));
    }

    #[test]
    fn a_server_s_own_certificate_can_be_the_root() {
        let mut params = params(&["db.example"], "x");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let own = params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone();
        assert!(is_trusted(&own, "db.example", &own, true));
        assert!(!is_trusted(&own, "other.example", &own, true));
        assert!(!is_trusted(&own, "db.example", Authority::new().0.der(), false));
        params.not_after = date_time_ymd(2020, 1, 1);
        let expired = params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone();
        assert!(!is_trusted(&expired, "db.example", &expired, false));
    }

    #[test]
    fn an_expired_certificate_is_refused() {
        let ours = Authority::new();
        let mut params = params(&["db.example"], "x");
        params.not_after = date_time_ymd(2020, 1, 1);
        assert!(!is_trusted(&ours.sign(&params), "db.example", ours.0.der(), false));
    }
}
