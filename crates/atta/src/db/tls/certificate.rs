//! Facts of a certificate that rustls does not expose: its common names, its key, and the hash of its signature.
//!
//! A certificate is DER: elements with a tag, a length and a content. A part that can't be read is treated as absent.

use ring::digest;

/// Facts of a certificate.
pub(super) struct Facts<'a> {
    /// The server's name in old certificates.
    pub(super) common_names: Vec<&'a str>,
    /// Whether it has subject alternative names, which contain the server's names in all other certificates.
    pub(super) has_alternative_names: bool,
    /// The public key, with its algorithm.
    pub(super) key: &'a [u8],
    signature: Option<Element<'a>>,
}

#[derive(Clone, Copy)]
struct Element<'a> {
    tag: u8,
    content: &'a [u8],
    /// Including tag and length.
    whole: &'a [u8],
}

const OBJECT_IDENTIFIER: u8 = 0x06;
/// Explicit tags 0 and 3.
const FIELD_0: u8 = 0xa0;
const FIELD_3: u8 = 0xa3;

const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const ALTERNATIVE_NAMES: &[u8] = &[0x55, 0x1d, 0x11];
/// The prefix of PKCS #1 identifiers; one more byte selects the algorithm.
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01];
const ECDSA_SHA_1: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x01];
const ECDSA_SHA_2: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03];
const SHA_2: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02];

impl<'a> Facts<'a> {
    pub(super) fn read(certificate: &'a [u8]) -> Option<Facts<'a>> {
        let mut parts = elements(elements(certificate).next()?.content);
        let (body, signature) = (parts.next()?, parts.next());
        let mut fields = elements(body.content).peekable();
        // The version, which certificates of version 1 leave out.
        fields.next_if(|field| field.tag == FIELD_0);
        // Serial number, algorithm, issuer and validity come before these two.
        let (subject, key) = (fields.nth(4)?, fields.next()?);
        let extensions = fields.find(|field| field.tag == FIELD_3);
        Some(Facts {
            common_names: common_names(subject).collect(),
            has_alternative_names: extensions.is_some_and(|list| has_alternative_names(list)),
            key: key.whole,
            signature,
        })
    }

    /// The hash for `tls-server-end-point` (RFC 5929): that of the signature, or SHA-256 instead of hashes that are too
    /// weak. None if the signature has no such hash, as with Ed25519.
    pub(super) fn binding_hash(&self) -> Option<&'static digest::Algorithm> {
        let mut parts = elements(self.signature?.content);
        let algorithm = parts.next().filter(|part| part.tag == OBJECT_IDENTIFIER)?.content;
        let (last, family) = algorithm.split_last()?;
        match (family, *last) {
            (RSA, 4 | 5 | 11) => Some(&digest::SHA256),
            (RSA, 12) => Some(&digest::SHA384),
            (RSA, 13) => Some(&digest::SHA512),
            (RSA, 10) => pss_hash(parts.next()),
            (ECDSA_SHA_2, 2) => Some(&digest::SHA256),
            (ECDSA_SHA_2, 3) => Some(&digest::SHA384),
            (ECDSA_SHA_2, 4) => Some(&digest::SHA512),
            _ if algorithm == ECDSA_SHA_1 => Some(&digest::SHA256),
            _ => None,
        }
    }
}

/// PSS names its hash in its parameters; the default is SHA-1.
fn pss_hash(parameters: Option<Element<'_>>) -> Option<&'static digest::Algorithm> {
    let Some(hash) = elements(parameters?.content).find(|field| field.tag == FIELD_0) else {
        return Some(&digest::SHA256);
    };
    let name = elements(elements(hash.content).next()?.content).next()?.content;
    match name.strip_prefix(SHA_2) {
        Some([1]) => Some(&digest::SHA256),
        Some([2]) => Some(&digest::SHA384),
        Some([3]) => Some(&digest::SHA512),
        _ => None,
    }
}

/// A name is a sequence of sets of pairs.
fn common_names(subject: Element<'_>) -> impl Iterator<Item = &str> {
    elements(subject.content).flat_map(|set| elements(set.content)).filter_map(|pair| {
        let mut parts = elements(pair.content);
        let (kind, value) = (parts.next()?, parts.next()?);
        // With a NUL in its name, a certificate for one host could pass for another's.
        let name = str::from_utf8(value.content).ok().filter(|name| !name.contains('\0'))?;
        (kind.content == COMMON_NAME).then_some(name)
    })
}

fn has_alternative_names(extensions: Element<'_>) -> bool {
    elements(extensions.content)
        .flat_map(|list| elements(list.content))
        .filter_map(|extension| elements(extension.content).next())
        .any(|kind| kind.content == ALTERNATIVE_NAMES)
}

/// The elements in order, up to the first that is invalid.
fn elements(mut bytes: &[u8]) -> impl Iterator<Item = Element<'_>> {
    std::iter::from_fn(move || {
        let element = first_element(bytes)?;
        bytes = &bytes[element.whole.len()..];
        Some(element)
    })
}

fn first_element(bytes: &[u8]) -> Option<Element<'_>> {
    let (tag, length) = (*bytes.first()?, *bytes.get(1)?);
    let (start, length) = match length {
        0..=0x7f => (2, usize::from(length)),
        _ => {
            // The length of a certificate always fits into four bytes, and is never indefinite.
            let count = usize::from(length & 0x7f);
            if !(1..=4).contains(&count) {
                return None;
            }
            let digits = bytes.get(2..2 + count)?;
            (2 + count, digits.iter().fold(0, |sum, digit| sum * 256 + usize::from(*digit)))
        }
    };
    let end = start.checked_add(length)?;
    Some(Element { tag, content: bytes.get(start..end)?, whole: bytes.get(..end)? })
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
        assert!(facts.common_names.contains(&"Grüße.example"), "{:?}", facts.common_names);
        assert!(facts.has_alternative_names);
        assert_eq!(facts.binding_hash(), Some(&digest::SHA256));
        assert_eq!(facts.key[0], 0x30, "a key is a sequence");
    }

    #[test]
    fn a_certificate_may_have_a_common_name_only() {
        let certificate = certificate(&[], "db.example");
        let facts = Facts::read(certificate.der()).unwrap();
        assert!(facts.common_names.contains(&"db.example") && !facts.has_alternative_names);
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
