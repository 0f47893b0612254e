//! How the kubelet's serving certificate is verified: by a CA, or by its own fingerprint.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme};

use crate::util::serialize_as_text;

/// The SHA-256 fingerprint of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateFingerprint([u8; 32]);

impl CertificateFingerprint {
    /// What OpenSSL and others print before the digits, in any case.
    const PREFIXES: [&str; 2] = ["sha256:", "sha256 fingerprint="];

    fn of(certificate: &CertificateDer<'_>) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(::ring::digest::digest(&::ring::digest::SHA256, certificate).as_ref());
        Self(bytes)
    }
}

impl FromStr for CertificateFingerprint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let without = |prefix: &&str| {
            let (start, rest) = text.split_at_checked(prefix.len())?;
            start.eq_ignore_ascii_case(prefix).then_some(rest)
        };
        let digits = Self::PREFIXES.iter().find_map(without).unwrap_or(text).as_bytes();
        let bytes: Option<Vec<u8>> = match digits.contains(&b':') {
            true => digits.split(|byte| *byte == b':').map(byte_of).collect(),
            false => digits.chunks(2).map(byte_of).collect(),
        };
        bytes.and_then(|bytes| bytes.try_into().ok()).map(Self).ok_or_else(|| {
            format!(
                "`{text}` is not the SHA-256 fingerprint of a certificate: 64 hexadecimal digits, with or without \
                 colons between pairs, as `openssl x509 -noout -fingerprint -sha256` prints them"
            )
        })
    }
}

/// Returns the byte that a pair of hexadecimal digits stands for.
fn byte_of(pair: &[u8]) -> Option<u8> {
    let [high, low] = pair else { return None };
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some((digit(*high)? << 4) | digit(*low)?)
}

impl fmt::Display for CertificateFingerprint {
    /// As OpenSSL prints it: `3F:A1:…`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let colon = if index == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02X}")?;
        }
        Ok(())
    }
}

serialize_as_text!(CertificateFingerprint, "the SHA-256 fingerprint of a certificate as a string");

/// The CAs that are trusted.
#[derive(Clone, Debug)]
pub(super) enum Roots {
    /// Those of a file (PEM), which is read for each connection: it may have changed.
    File(PathBuf),
    /// These (DER).
    Certificates(Vec<Vec<u8>>),
}

/// Accepts a certificate that a trusted CA has signed for the expected name, and any with one of the
/// fingerprints. In both cases the server must prove that it has the certificate's key.
#[derive(Debug)]
pub(super) struct CertificateVerifier {
    roots: Roots,
    accepted: Vec<CertificateFingerprint>,
    provider: Arc<CryptoProvider>,
}

/// A certificate that is not accepted.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub(super) struct Rejected {
    pub(super) cause: CertificateError,
    /// Whether it is self-signed, or its chain ends in a self-signed certificate, as that of a kubelet that made
    /// its certificate itself.
    pub(super) is_self_signed: bool,
    pub(super) fingerprint: CertificateFingerprint,
}

impl CertificateVerifier {
    pub(super) fn new(roots: Roots, accepted: Vec<CertificateFingerprint>) -> Self {
        Self { roots, accepted, provider: Arc::new(ring::default_provider()) }
    }

    fn trusted(&self) -> Result<RootCertStore, rustls::Error> {
        match &self.roots {
            Roots::File(file) => {
                let certificates = read_certificates(file);
                certificates.and_then(store_of).map_err(|error| {
                    rustls::Error::General(format!("cannot read the CA {}: {error}", file.display()))
                })
            }
            Roots::Certificates(certificates) => {
                let certificates = certificates.iter().map(|der| CertificateDer::from(der.clone())).collect();
                store_of(certificates).map_err(rustls::Error::General)
            }
        }
    }

    /// Returns why no CA in `roots` has signed the certificate; `Ok` if one has.
    fn verify(
        &self,
        roots: RootCertStore,
        certificate: &Presented<'_>,
        name: &ServerName<'_>,
    ) -> Result<(), rustls::Error> {
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider));
        // Without any CA.
        let Ok(verifier) = verifier.build() else { return Err(CertificateError::UnknownIssuer.into()) };
        let Presented { own, chain, at } = certificate;
        verifier.verify_server_cert(own, chain, name, &[], *at).map(drop)
    }

    /// Returns true if the last certificate of the chain is self-signed, and would verify the first if it were
    /// trusted.
    fn is_self_signed(&self, certificate: &Presented<'_>, name: &ServerName<'_>) -> bool {
        let last = certificate.chain.last().unwrap_or(certificate.own);
        let mut roots = RootCertStore::empty();
        if roots.add(last.clone().into_owned()).is_err() {
            return false;
        }
        // A self-signed certificate names its subject as its issuer, too.
        let subject = roots.roots.first().map(|root| root.subject.to_vec()).filter(|name| !name.is_empty());
        let is_named =
            |subject: &Vec<u8>| last.windows(subject.len()).filter(|part| part == subject).count() > 1;
        let unsigned = |error| {
            use rustls::Error::InvalidCertificate;
            matches!(
                error,
                InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)
            )
        };
        subject.as_ref().is_some_and(is_named) && !self.verify(roots, certificate, name).is_err_and(unsigned)
    }
}

/// The certificates of a server, and the time.
struct Presented<'a> {
    own: &'a CertificateDer<'a>,
    chain: &'a [CertificateDer<'a>],
    at: UnixTime,
}

impl ServerCertVerifier for CertificateVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let fingerprint = CertificateFingerprint::of(end_entity);
        if self.accepted.contains(&fingerprint) {
            return Ok(ServerCertVerified::assertion());
        }
        let certificate = Presented { own: end_entity, chain: intermediates, at: now };
        match self.verify(self.trusted()?, &certificate, server_name) {
            Ok(()) => Ok(ServerCertVerified::assertion()),
            Err(rustls::Error::InvalidCertificate(cause)) => {
                let is_self_signed = self.is_self_signed(&certificate, server_name);
                let rejected = Rejected { cause, is_self_signed, fingerprint };
                Err(CertificateError::Other(OtherError(Arc::new(rejected))).into())
            }
            Err(error) => Err(error),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Reads the certificates of a file (PEM).
///
/// # Errors
/// The reason, if it cannot be read or has none.
pub(super) fn read_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = std::fs::read(file).map_err(|error| error.to_string())?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err("it contains no certificate in PEM".to_owned()),
    }
}

fn store_of(certificates: Vec<CertificateDer<'static>>) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    for certificate in certificates {
        store.add(certificate).map_err(|error| error.to_string())?;
    }
    Ok(store)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLONS: &str = "00:11:22:33:44:55:66:77:88:99:AA:BB:CC:DD:EE:FF:\
                          00:11:22:33:44:55:66:77:88:99:AA:BB:CC:DD:EE:FF";

    #[test]
    fn a_fingerprint_is_parsed_as_openssl_and_others_print_it() {
        let plain = COLONS.replace(':', "");
        for text in [
            COLONS.to_owned(),
            COLONS.to_lowercase(),
            plain.clone(),
            plain.to_lowercase(),
            format!("sha256:{plain}"),
            format!("SHA256:{COLONS}"),
            format!("sha256 Fingerprint={COLONS}"),
            format!("SHA256 Fingerprint={COLONS}"),
        ] {
            assert_eq!(text.parse::<CertificateFingerprint>().unwrap().to_string(), COLONS, "{text}");
        }
    }

    #[test]
    fn anything_else_is_an_error_that_quotes_it() {
        let plain = COLONS.replace(':', "");
        for text in [
            String::new(),
            "sha256:".to_owned(),
            plain[2..].to_owned(),
            plain[1..].to_owned(),
            format!("{plain}00"),
            format!("sha1:{plain}"),
            format!(" {plain}"),
            plain.replace('A', "G"),
            plain.replace("00", "+0"),
            COLONS.replace("00:", "0:"),
            COLONS.replacen(':', "", 1),
            format!("{COLONS}:"),
            format!("{}é", &plain[2..]),
        ] {
            let error = text.parse::<CertificateFingerprint>().unwrap_err();
            assert!(error.starts_with(&format!("`{text}` is not the SHA-256 fingerprint")), "{error}");
        }
    }
}
