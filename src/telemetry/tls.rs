//! The serving certificate for metrics, reloaded when its files change.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tracing::{info, warn};

use crate::util::file::{FileVersion, version};
use crate::util::sync::lock;

/// Minimum interval between checks of the files, which happen when a client connects.
const CHECK: Duration = Duration::from_secs(1);

/// The files for TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TlsFiles {
    /// The certificate and its chain.
    pub cert_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
    /// The CA of clients' certificates; if not set, clients need none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ca_file: Option<PathBuf>,
}

impl TlsFiles {
    /// Returns the files that a mounted Secret of type `kubernetes.io/tls` has, for a server of clients without certificates.
    #[must_use]
    pub fn in_directory(directory: &Path) -> Self {
        let file = |name: &str| directory.join(name);
        Self { cert_file: file("tls.crt"), key_file: file("tls.key"), client_ca_file: None }
    }
}

struct State {
    /// The files' versions when they were last read.
    versions: Vec<Option<FileVersion>>,
    checked: Instant,
    /// Made from the last valid files.
    acceptor: Option<TlsAcceptor>,
}

/// The TLS acceptor for connections.
pub struct Tls {
    files: TlsFiles,
    state: Mutex<State>,
}

impl Tls {
    /// Reads the files. If they are invalid, logs a warning and closes connections until they are valid.
    #[must_use]
    pub fn new(files: TlsFiles) -> Self {
        let mut state = State { versions: Vec::new(), checked: Instant::now(), acceptor: None };
        reload(&files, &mut state);
        Self { files, state: Mutex::new(state) }
    }

    /// Returns the acceptor for the next connection. Reads the files inline: they are small and connections
    /// are rare.
    pub(crate) fn acceptor(&self) -> Option<TlsAcceptor> {
        let mut state = lock(&self.state);
        if state.checked.elapsed() >= CHECK {
            reload(&self.files, &mut state);
        }
        state.acceptor.clone()
    }
}

/// Reloads changed files. If they are invalid, logs that once and keeps the previous acceptor.
fn reload(files: &TlsFiles, state: &mut State) {
    state.checked = Instant::now();
    // Taken before reading, so that a change in between is noticed by the next check.
    let paths = [Some(&files.cert_file), Some(&files.key_file), files.client_ca_file.as_ref()];
    let versions: Vec<_> = paths.into_iter().flatten().map(|path| version(path)).collect();
    if versions == state.versions {
        return;
    }
    let first = state.versions.is_empty();
    state.versions = versions;
    match read(files) {
        Ok(config) => {
            state.acceptor = Some(TlsAcceptor::from(Arc::new(config)));
            if !first {
                info!("the certificate for metrics was read again from {}", files.cert_file.display());
            }
        }
        Err(error) if state.acceptor.is_some() => warn!("{error}; metrics keep the certificate they had"),
        Err(error) => warn!("{error}; metrics are not served until this is fixed"),
    }
}

fn read(files: &TlsFiles) -> Result<ServerConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let chain = certificates(&files.cert_file)?;
    let key = PrivateKeyDer::from_pem_slice(&contents(&files.key_file)?)
        .map_err(|_| format!("{} contains no private key in PEM", files.key_file.display()))?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(&files.cert_file, &error))?;
    let builder = match &files.client_ca_file {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| unusable(path, &error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| unusable(path, &error))?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            let (cert, key) = (files.cert_file.display(), files.key_file.display());
            format!("the key in {key} is not that of the certificate in {cert}")
        }
        error => unusable(&files.cert_file, &error),
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // Scrapers connect every few seconds at most, so sessions are not kept between connections.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn contents(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let none = || format!("{} contains no certificate in PEM", path.display());
    let text = contents(path)?;
    let found: Vec<_> =
        CertificateDer::pem_slice_iter(&text).collect::<Result<_, _>>().map_err(|_| none())?;
    if found.is_empty() { Err(none()) } else { Ok(found) }
}

fn unusable(path: &Path, error: &impl Display) -> String {
    format!("{} cannot be used: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(dir: &Path) -> TlsFiles {
        TlsFiles { cert_file: dir.join("tls.crt"), key_file: dir.join("tls.key"), client_ca_file: None }
    }

    /// Writes a self-signed certificate and returns its paths.
    fn files(dir: &Path) -> TlsFiles {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let files = paths(dir);
        fs::write(&files.cert_file, made.cert.pem()).unwrap();
        fs::write(&files.key_file, made.signing_key.serialize_pem()).unwrap();
        files
    }

    #[test]
    fn unusable_files_have_an_error() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let good = files(dir.path());
        let another = files(other.path());
        let error = |files: &TlsFiles| {
            let place = |text: String, dir: &Path| text.replace(&format!("{}/", dir.display()), "");
            place(place(read(files).map(drop).unwrap_err(), dir.path()), other.path())
        };
        assert!(read(&good).is_ok());
        let missing = TlsFiles { cert_file: dir.path().join("nothing"), ..good.clone() };
        assert_eq!(error(&missing), "cannot read nothing: No such file or directory (os error 2)");
        let (cert_file, key_file) = (good.key_file.clone(), good.cert_file.clone());
        let swapped = TlsFiles { cert_file, key_file, client_ca_file: None };
        assert_eq!(error(&swapped), "tls.key contains no certificate in PEM");
        let keyless = TlsFiles { key_file: good.cert_file.clone(), ..good.clone() };
        assert_eq!(error(&keyless), "tls.crt contains no private key in PEM");
        let mixed = TlsFiles { key_file: another.key_file.clone(), ..good.clone() };
        assert_eq!(error(&mixed), "the key in tls.key is not that of the certificate in tls.crt");
        let ca = TlsFiles { client_ca_file: Some(good.key_file.clone()), ..good.clone() };
        assert_eq!(error(&ca), "tls.key contains no certificate in PEM");
        let garbage = dir.path().join("garbage");
        fs::write(&garbage, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        let ca = TlsFiles { client_ca_file: Some(garbage), ..good };
        assert!(error(&ca).starts_with("garbage cannot be used: "), "{}", error(&ca));
    }

    #[tokio::test(start_paused = true)]
    async fn a_broken_pair_leaves_the_old_one_and_files_are_checked_once_a_second() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        let good = fs::read(&files.cert_file).unwrap();
        let tls = Tls::new(files.clone());
        let config = || tls.acceptor().map(|acceptor| Arc::as_ptr(acceptor.config()));
        let first = config().unwrap();
        fs::write(&files.cert_file, "").unwrap();
        tokio::time::advance(CHECK).await;
        assert_eq!(config(), Some(first), "a broken one changes nothing");
        fs::write(&files.cert_file, good).unwrap();
        assert_eq!(config(), Some(first), "not checked yet");
        tokio::time::advance(CHECK).await;
        let second = config().unwrap();
        assert_ne!(second, first);
        tokio::time::advance(CHECK).await;
        assert_eq!(config(), Some(second), "nothing changed");
    }

    #[tokio::test(start_paused = true)]
    async fn files_may_appear_later() {
        let dir = tempfile::tempdir().unwrap();
        let tls = Tls::new(paths(dir.path()));
        assert!(tls.acceptor().is_none());
        files(dir.path());
        tokio::time::advance(CHECK).await;
        assert!(tls.acceptor().is_some());
    }
}
