//! Facts of a certificate that rustls does not expose: its common names, its key, and the hash of its signature.

use ring::digest;
use x509_cert::AlgorithmIdentifier;
use x509_cert::certificate::{CertificateInner, Raw};
use x509_cert::der::asn1::{Any, ObjectIdentifier};
use x509_cert::der::{Decode, Encode, Tag, TagNumber, Tagged};
use x509_cert::name::Name;

/// Facts of a certificate.
pub(super) struct Facts {
    /// The server's name in old certificates.
    pub(super) common_names: Vec<String>,
    /// Whether it has subject alternative names, which contain the server's names in all other certificates.
    pub(super) has_alternative_names: bool,
    /// The public key, with its algorithm, in DER.
    pub(super) key: Vec<u8>,
    signature_algorithm: AlgorithmIdentifier,
}

const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
const ALTERNATIVE_NAMES: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.17");

const MD5_WITH_RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.4");
const SHA_1_WITH_RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.5");
const RSA_PSS: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.10");
const SHA_256_WITH_RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.11");
const SHA_384_WITH_RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.12");
const SHA_512_WITH_RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.13");
const ECDSA_WITH_SHA_1: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.4.1");
const ECDSA_WITH_SHA_256: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.2");
const ECDSA_WITH_SHA_384: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.3");
const ECDSA_WITH_SHA_512: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.4");
const SHA_256: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.1");
const SHA_384: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.2");
const SHA_512: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.3");

impl Facts {
    /// None if it is not a certificate. `Raw` also reads serial numbers that are longer than the standard allows; such
    /// certificates are in use.
    pub(super) fn read(certificate: &[u8]) -> Option<Facts> {
        let certificate = CertificateInner::<Raw>::from_der(certificate).ok()?;
        let body = certificate.tbs_certificate();
        let mut extensions = body.extensions().into_iter().flatten();
        Some(Facts {
            common_names: common_names(body.subject()),
            has_alternative_names: extensions.any(|extension| extension.extn_id == ALTERNATIVE_NAMES),
            key: body.subject_public_key_info().to_der().ok()?,
            signature_algorithm: certificate.signature_algorithm().clone(),
        })
    }

    /// The hash for `tls-server-end-point` (RFC 5929): that of the signature, or SHA-256 instead of hashes that are too
    /// weak. None if the signature has no such hash, as with Ed25519.
    pub(super) fn binding_hash(&self) -> Option<&'static digest::Algorithm> {
        match self.signature_algorithm.oid {
            MD5_WITH_RSA | SHA_1_WITH_RSA | ECDSA_WITH_SHA_1 => Some(&digest::SHA256),
            SHA_256_WITH_RSA | ECDSA_WITH_SHA_256 => Some(&digest::SHA256),
            SHA_384_WITH_RSA | ECDSA_WITH_SHA_384 => Some(&digest::SHA384),
            SHA_512_WITH_RSA | ECDSA_WITH_SHA_512 => Some(&digest::SHA512),
            RSA_PSS => pss_hash(self.signature_algorithm.parameters.as_ref()?),
            _ => None,
        }
    }
}

/// PSS names its hash in the first of its parameters; the default is SHA-1.
fn pss_hash(parameters: &Any) -> Option<&'static digest::Algorithm> {
    const HASH: Tag = Tag::ContextSpecific { constructed: true, number: TagNumber(0) };
    let fields: Vec<Any> = parameters.decode_as().ok()?;
    let Some(hash) = fields.iter().find(|field| field.tag() == HASH) else {
        return Some(&digest::SHA256);
    };
    match AlgorithmIdentifier::from_der(hash.value()).ok()?.oid {
        SHA_256 => Some(&digest::SHA256),
        SHA_384 => Some(&digest::SHA384),
        SHA_512 => Some(&digest::SHA512),
        _ => None,
    }
}

fn common_names(subject: &Name) -> Vec<String> {
    let names = subject.iter().filter(|attribute| attribute.oid == COMMON_NAME).filter_map(|attribute| {
        // With a NUL in its name, a certificate for one host could pass for another's.
        str::from_utf8(attribute.value.value()).ok().filter(|name| !name.contains('\0'))
    });
    names.map(str::to_owned).collect()
}

/// Whether a common name matches a host: equal except for case, or `*.` followed by the host without its first label.
pub(super) fn is_name_of(common_name: &str, host: &str) -> bool {
    if common_name.eq_ignore_ascii_case(host) {
        return true;
    }
    let is_address = host.parse::<std::net::IpAddr>().is_ok();
    match (common_name.strip_prefix("*."), host.split_once('.')) {
        (Some(domain), Some((label, rest))) if !is_address => {
            !label.is_empty() && domain.contains('.') && domain.eq_ignore_ascii_case(rest)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DnType, KeyPair};
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    fn certificate(names: &[&str], common_name: &str) -> rcgen::Certificate {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap()
    }

    #[test]
    fn facts_are_read_from_a_real_certificate() {
        let certificate = certificate(&["db.example"], "Grüße.example");
        let facts = Facts::read(certificate.der()).unwrap();
        assert!(facts.common_names.iter().any(|name| name == "Grüße.example"), "{:?}", facts.common_names);
        assert!(facts.has_alternative_names);
        assert_eq!(facts.binding_hash(), Some(&digest::SHA256));
        assert_eq!(facts.key[0], 0x30, "a key is a sequence");
    }

    #[test]
    fn a_certificate_may_have_a_common_name_only() {
        let certificate = certificate(&[], "db.example");
        let facts = Facts::read(certificate.der()).unwrap();
        assert!(facts.common_names.iter().any(|name| name == "db.example") && !facts.has_alternative_names);
    }

    /// Made by `openssl x509 -req -signkey … -sha384 -sigopt rsa_padding_mode:pss`, without extensions.
    #[test]
    fn a_certificate_of_version_1_with_a_pss_signature_is_read() {
        let certificate = CertificateDer::from_pem_slice(include_bytes!("version_1.pem")).unwrap();
        let facts = Facts::read(&certificate).unwrap();
        assert_eq!(facts.common_names, ["old.example"]);
        assert!(!facts.has_alternative_names);
        assert_eq!(facts.binding_hash(), Some(&digest::SHA384));
        let is_part = certificate.windows(facts.key.len()).any(|part| part == facts.key);
        assert!(is_part, "the key is as the certificate has it");
    }

    #[test]
    fn names_fit_but_for_case_and_one_wildcard() {
        for (name, host) in [("DB.example.org", "db.Example.ORG"), ("*.example.org", "db.example.org")] {
            assert!(is_name_of(name, host), "{name} {host}");
        }
        for (name, host) in [
            ("*.example.org", "example.org"),
            ("*.example.org", "a.b.example.org"),
            ("*.org", "example.org"),
            ("*", "example"),
            ("*.0.0.1", "127.0.0.1"),
            ("db.example.org", "db.example.org.evil"),
            ("*.example.org", ".example.org"),
        ] {
            assert!(!is_name_of(name, host), "{name} {host}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(facts) = Facts::read(&bytes) {
                facts.binding_hash();
            }
        }

        #[test]
        fn a_damaged_certificate_can_be_read_without_a_panic(at in 0usize..400, byte: u8) {
            let mut bytes = certificate(&[], "db.example").der().to_vec();
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Some(facts) = Facts::read(&bytes) {
                facts.binding_hash();
            }
        }
    }
}
