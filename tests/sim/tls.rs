//! Metrics over TLS, read by a rustls client, with generated certificates.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use numacast::config::Endpoint;
use numacast::telemetry::registry::Registry;
use numacast::telemetry::server::{Endpoints, Server};
use numacast::telemetry::tls::{Tls, TlsFiles};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, advance, pause, resume};
use tokio_rustls::TlsConnector;

use crate::ca::Ca;
use crate::support::{ANY_PORT, get, with_frozen_clock};

/// Issues a certificate for `localhost`; returns it and its key as PEM.
fn issue(ca: &Ca) -> (String, String) {
    ca.issue(&["localhost"]).unwrap()
}

/// Writes a new certificate and its key into `dir`.
fn write(ca: &Ca, dir: &Path) -> TlsFiles {
    let files =
        TlsFiles { cert_file: dir.join("tls.crt"), key_file: dir.join("tls.key"), client_ca_file: None };
    let (cert, key) = issue(ca);
    std::fs::write(&files.cert_file, cert).unwrap();
    std::fs::write(&files.key_file, key).unwrap();
    files
}

/// Returns a TLS client that trusts `ca`, optionally with a client certificate.
fn client(
    ca: &Ca,
    own: Option<(String, String)>,
    version: &'static SupportedProtocolVersion,
) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(ca.der()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots);
    let config = match own {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let cert = CertificateDer::from_pem_slice(cert.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            builder.with_client_auth_cert(vec![cert], key).unwrap()
        }
    };
    TlsConnector::from(Arc::new(config))
}

/// Scrapes once; returns the response and the server's certificate.
async fn scrape(
    address: SocketAddr,
    client: &TlsConnector,
) -> std::io::Result<(String, CertificateDer<'static>)> {
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = client.connect(name, stream).await?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    let chain = stream.get_ref().1.peer_certificates().unwrap();
    Ok((response, chain[0].clone().into_owned()))
}

async fn server(files: TlsFiles) -> Server {
    let endpoints = Endpoints { metrics: Some(Arc::<Registry>::default()), health: None };
    Server::start(Endpoint::At(ANY_PORT), endpoints, Some(Tls::new(files))).await.unwrap().unwrap()
}

#[tokio::test]
async fn metrics_are_served_over_tls_only() {
    let (dir, ca) = (tempfile::tempdir().unwrap(), Ca::new().unwrap());
    let server = server(write(&ca, dir.path())).await;
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let (response, _) = scrape(server.address(), &client(&ca, None, version)).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n") && response.ends_with("# EOF\n"), "{response}");
    }
    let untrusting = client(&Ca::new().unwrap(), None, &rustls::version::TLS13);
    assert!(scrape(server.address(), &untrusting).await.is_err(), "the client checks the certificate");
    assert!(!get(server.address(), "/metrics").await.contains("numacast"), "plain HTTP gets no metrics");
}

#[tokio::test]
async fn a_new_certificate_is_used_and_an_invalid_one_is_not() {
    let (dir, ca) = (tempfile::tempdir().unwrap(), Ca::new().unwrap());
    let at = |name: &str| dir.path().join(name);
    // The kubelet's layout of a Secret volume.
    for volume in ["..1", "..2"] {
        std::fs::create_dir(at(volume)).unwrap();
        write(&ca, &at(volume));
    }
    let link = |target: &str, name: &str| std::os::unix::fs::symlink(target, at(name)).unwrap();
    link("..1", "..data");
    link("..data/tls.crt", "tls.crt");
    link("..data/tls.key", "tls.key");
    let files = TlsFiles { cert_file: at("tls.crt"), key_file: at("tls.key"), client_ca_file: None };
    let server = server(files).await;
    let client = client(&ca, None, &rustls::version::TLS13);
    let (_, first) = scrape(server.address(), &client).await.unwrap();
    link("..2", "..data_tmp");
    std::fs::rename(at("..data_tmp"), at("..data")).unwrap();
    advance_one_second().await;
    let (_, second) = scrape(server.address(), &client).await.unwrap();
    let written = CertificateDer::from_pem_file(at("..2/tls.crt")).unwrap();
    assert!(first != second && second == written, "the new certificate is used");
    std::fs::write(at("..2/tls.key"), "invalid").unwrap();
    advance_one_second().await;
    let (_, third) = scrape(server.address(), &client).await.unwrap();
    assert!(third == second, "an invalid key changes nothing");
}

async fn advance_one_second() {
    pause();
    advance(Duration::from_secs(1)).await;
    resume();
}

#[tokio::test]
async fn a_client_needs_a_certificate_of_the_configured_ca() {
    let (dir, ca, clients) = (tempfile::tempdir().unwrap(), Ca::new().unwrap(), Ca::new().unwrap());
    let authority = dir.path().join("ca.crt");
    std::fs::write(&authority, clients.pem()).unwrap();
    let server = server(TlsFiles { client_ca_file: Some(authority), ..write(&ca, dir.path()) }).await;
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let trusted = client(&ca, Some(issue(&clients)), version);
        let (response, _) = scrape(server.address(), &trusted).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
        for own in [None, Some(issue(&ca))] {
            assert!(scrape(server.address(), &client(&ca, own, version)).await.is_err());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn idle_connections_and_partial_handshakes_delay_no_scrape() {
    let (dir, ca) = (tempfile::tempdir().unwrap(), Ca::new().unwrap());
    let server = server(write(&ca, dir.path())).await;
    let client = client(&ca, None, &rustls::version::TLS13);
    let mut open = Vec::new();
    with_frozen_clock(async {
        // A partial TLS handshake record that is never completed.
        for data in [&b""[..], b"\x16\x03\x01\x02\x00\x01"].iter().cycle().take(200) {
            let mut stream = TcpStream::connect(server.address()).await.unwrap();
            stream.write_all(data).await.unwrap();
            open.push(stream);
        }
        let (response, _) = scrape(server.address(), &client).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    })
    .await;
    let start = Instant::now();
    let closed = open.pop().unwrap().read(&mut [0; 64]).await;
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    assert!(start.elapsed() < Duration::from_secs(3), "by the virtual clock: {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn handshakes_of_one_address_are_rate_limited() {
    let (dir, ca) = (tempfile::tempdir().unwrap(), Ca::new().unwrap());
    let server = server(write(&ca, dir.path())).await;
    let client = client(&ca, None, &rustls::version::TLS13);
    with_frozen_clock(async {
        let name = || ServerName::try_from("localhost").unwrap();
        let mut handshakes = 0;
        for _ in 0..150 {
            let stream = TcpStream::connect(server.address()).await.unwrap();
            handshakes += usize::from(client.connect(name(), stream).await.is_ok());
        }
        assert_eq!(handshakes, 100);
    })
    .await;
    advance(Duration::from_secs(1)).await;
    assert!(with_frozen_clock(scrape(server.address(), &client)).await.is_ok());
}
