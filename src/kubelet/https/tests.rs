//! Tests against a server with generated certificates. `tests/real` covers the real kubelet.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;

struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Returns a certificate for this name, and its key.
    fn sign(&self, name: &str) -> Identity {
        let key = KeyPair::generate().unwrap();
        let cert = params(name).signed_by(&key, &self.0).unwrap();
        Identity { cert: cert.der().clone(), key }
    }
}

/// A certificate and its key.
struct Identity {
    cert: CertificateDer<'static>,
    key: KeyPair,
}

impl Identity {
    /// As a kubelet that no CA has given a certificate makes it, but without a CA of its own.
    fn self_signed(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let cert = params(name).self_signed(&key).unwrap();
        Self { cert: cert.der().clone(), key }
    }

    fn fingerprint(&self) -> CertificateFingerprint {
        let digest = ring::digest::digest(&ring::digest::SHA256, &self.cert);
        let digits: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        digits.parse().unwrap()
    }

    /// Shows the certificate, after it those of `chain`, and signs with the key of `signer`.
    fn acceptor(&self, chain: &[CertificateDer<'static>], signer: &KeyPair) -> TlsAcceptor {
        let certs = [std::slice::from_ref(&self.cert), chain].concat();
        let key = PrivateKeyDer::from_pem_slice(signer.serialize_pem().as_bytes()).unwrap();
        let key = rustls::crypto::ring::sign::any_supported_type(&key).unwrap();
        let shown = SingleCertAndKey::from(CertifiedKey::new(certs, key));
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(shown));
        TlsAcceptor::from(Arc::new(config))
    }
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// Starts a server whose certificate has this name.
async fn server(ca: &Ca, name: &str) -> u16 {
    server_with(&ca.sign(name)).await
}

async fn server_with(identity: &Identity) -> u16 {
    serve(identity.acceptor(&[], &identity.key)).await
}

/// Starts a server. The path selects the response.
async fn serve(acceptor: TlsAcceptor) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut request = vec![0; 4096];
                let length = stream.read(&mut request).await.unwrap();
                let request = String::from_utf8_lossy(&request[..length]).into_owned();
                let path = request.split(' ').nth(1).unwrap_or_default();
                let token = request.lines().find(|line| line.to_lowercase().starts_with("authorization"));
                let answer = match path {
                    "/token" => answer("200 OK", token.unwrap_or_default()),
                    "/configz" => answer("403 Forbidden", "Forbidden (user=me)\n"),
                    "/pods?x" => answer("401 Unauthorized", "Unauthorized"),
                    "/moved" => "HTTP/1.1 302 Found\r\nlocation: /token\r\ncontent-length: 0\r\n\r\n".into(),
                    "/off" => answer("405 Method Not Allowed", "Debug endpoints are disabled."),
                    "/large" => answer("200 OK", &"x".repeat(1001)),
                    "/endless" => {
                        "HTTP/1.1 500 Oh\r\ncontent-length: 100000000\r\n\r\n".to_owned() + &"x".repeat(9000)
                    }
                    "/half" => "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf".into(),
                    _ => return std::future::pending().await,
                };
                stream.write_all(answer.as_bytes()).await.unwrap();
                let _ = stream.shutdown().await;
            });
        }
    });
    port
}

fn answer(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// A configuration as loaded from a kubeconfig or service account.
fn cluster(roots: &Ca) -> kube::Config {
    let mut config = kube::Config::new("https://api:6443".parse().unwrap());
    config.root_cert = Some(vec![roots.0.der().to_vec()]);
    config.auth_info.token = Some("secret".to_owned().into());
    // Settings for the API server must not apply to the kubelet.
    config.accept_invalid_certs = true;
    config.tls_server_name = Some("kubernetes".into());
    config
}

fn target(port: u16) -> HttpsTarget {
    HttpsTarget {
        host: "127.0.0.1".into(),
        port,
        ca_file: None,
        server_name: None,
        fingerprints: Vec::new(),
        timeout: Duration::from_secs(20),
    }
}

fn error_of(response: Result<Vec<u8>, String>, port: u16) -> String {
    let error = response.unwrap_err();
    error.replace(&format!("https://127.0.0.1:{port}"), "URL")
}

#[tokio::test]
async fn the_token_is_sent_to_a_verified_kubelet_only() {
    let (ca, other) = (Ca::new(), Ca::new());
    let port = server(&ca, "127.0.0.1").await;
    let token = |answer: Result<Vec<u8>, String>| String::from_utf8(answer.unwrap()).unwrap();
    let https = HttpsClient::new(&cluster(&ca), &target(port)).unwrap();
    assert_eq!(token(https.get("/token", 100).await), "authorization: Bearer secret");
    assert_eq!(format!("{https:?}"), format!("HttpsClient {{ url: \"https://127.0.0.1:{port}\", .. }}"));

    let https = HttpsClient::new(&cluster(&other), &target(port)).unwrap();
    let error = error_of(https.get("/token", 100).await, port);
    assert!(
        error.starts_with("the certificate of the kubelet at URL is signed by an unknown CA: set"),
        "{error}"
    );

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ca.crt");
    std::fs::write(&file, ca.0.pem()).unwrap();
    let with_file = HttpsTarget { ca_file: Some(file.clone()), ..target(port) };
    let https = HttpsClient::new(&cluster(&other), &with_file).unwrap();
    assert_eq!(token(https.get("/token", 100).await), "authorization: Bearer secret");
    std::fs::write(&file, other.0.pem()).unwrap();
    let https = HttpsClient::new(&cluster(&ca), &with_file).unwrap();
    let error = https.get("/token", 100).await.unwrap_err();
    assert!(error.contains("signed by an unknown CA"), "only the file is trusted: {error}");
}

#[tokio::test]
async fn the_certificate_must_have_the_name() {
    let ca = Ca::new();
    let port = server(&ca, "worker-1").await;
    let https = HttpsClient::new(&cluster(&ca), &target(port)).unwrap();
    let error = error_of(https.get("/token", 100).await, port);
    assert!(error.starts_with("the certificate of the kubelet at URL has another name ("), "{error}");
    let named = HttpsTarget { server_name: Some("worker-1".into()), ..target(port) };
    let https = HttpsClient::new(&cluster(&ca), &named).unwrap();
    assert!(https.get("/token", 100).await.is_ok());
}

#[tokio::test]
async fn a_certificate_with_an_accepted_fingerprint_needs_no_ca_name_or_date() {
    let (ca, made_itself) = (Ca::new(), Identity::self_signed("worker-1"));
    let key = KeyPair::generate().unwrap();
    let mut expired = params("worker-1");
    expired.not_after = rcgen::date_time_ymd(2001, 1, 1);
    let expired = Identity { cert: expired.signed_by(&key, &ca.0).unwrap().der().clone(), key };
    for identity in [made_itself, expired] {
        let port = server_with(&identity).await;
        let fingerprints = vec![Identity::self_signed("another").fingerprint(), identity.fingerprint()];
        let pinned = HttpsTarget { fingerprints, ..target(port) };
        let https = HttpsClient::new(&cluster(&ca), &pinned).unwrap();
        assert_eq!(https.get("/token", 100).await.unwrap(), b"authorization: Bearer secret");
    }
}

#[tokio::test]
async fn a_server_must_have_the_key_of_an_accepted_certificate() {
    let (ca, kubelet) = (Ca::new(), Identity::self_signed("127.0.0.1"));
    let port = serve(kubelet.acceptor(&[], &KeyPair::generate().unwrap())).await;
    let pinned = HttpsTarget { fingerprints: vec![kubelet.fingerprint()], ..target(port) };
    let https = HttpsClient::new(&cluster(&ca), &pinned).unwrap();
    let error = error_of(https.get("/token", 100).await, port);
    assert_eq!(
        error,
        "the TLS connection to the kubelet at URL failed: invalid peer certificate: BadSignature"
    );
}

#[tokio::test]
async fn another_certificate_is_rejected_with_its_fingerprint_and_every_remedy() {
    let (ca, other) = (Ca::new(), Ca::new());
    let identity = Identity::self_signed("127.0.0.1");
    let port = server_with(&identity).await;
    let error = async |fingerprints: Vec<CertificateFingerprint>, port| {
        let pinned = HttpsTarget { fingerprints, ..target(port) };
        error_of(HttpsClient::new(&cluster(&ca), &pinned).unwrap().get("/token", 100).await, port)
    };
    let remedies = |fault: &str, identity: &Identity, others: &str| {
        let seen = identity.fingerprint();
        format!(
            "the certificate of the kubelet at URL {fault}, or add its SHA-256 fingerprint {seen} to \
             `kubelet.certificateFingerprints`{others} after comparing it with what `openssl x509 -in \
             /var/lib/kubelet/pki/kubelet.crt -noout -fingerprint -sha256` prints on the node"
        )
    };
    let self_signed = "is self-signed: set `kubelet.caFile` to the node's `pki/kubelet.crt` and `kubelet.serverName` to \
                       the node's name";
    assert_eq!(error(vec![], port).await, remedies(self_signed, &identity, ""));
    // That of another kubelet, and one that nothing has.
    let wrong = vec![Identity::self_signed("127.0.0.1").fingerprint(), "00".repeat(32).parse().unwrap()];
    let others = ", which has only others,";
    assert_eq!(error(wrong, port).await, remedies(self_signed, &identity, others));

    // A kubelet makes a CA and signs its certificate with it; the server sends both. The CA's fingerprint is not
    // that of the certificate.
    let made = other.sign("127.0.0.1");
    let of_ca = Identity { cert: other.0.der().clone(), key: KeyPair::generate().unwrap() }.fingerprint();
    let port = serve(made.acceptor(&[other.0.der().clone()], &made.key)).await;
    assert_eq!(error(vec![of_ca], port).await, remedies(self_signed, &made, others));
    // Without it in the chain, it is just a CA that is not trusted.
    let port = server_with(&made).await;
    let unknown = "is signed by an unknown CA: set `kubelet.caFile` to the CA of the nodes' serving certificates (and \
                   `kubelet.serverName`, if they do not contain the address)";
    assert_eq!(error(vec![], port).await, remedies(unknown, &made, ""));
}

#[tokio::test]
async fn every_error_status_is_one_sentence() {
    let ca = Ca::new();
    let port = server(&ca, "127.0.0.1").await;
    let https = HttpsClient::new(&cluster(&ca), &target(port)).unwrap();
    let mut sentences = Vec::new();
    for path in ["/configz", "/pods?x", "/moved", "/off", "/large"] {
        sentences.push(error_of(https.get(path, 1000).await, port));
    }
    assert_eq!(
        sentences,
        [
            "the kubelet at URL rejects GET /configz (Forbidden (user=me)): RBAC must allow `get` on nodes/configz; \
             kubelets before 1.33 require nodes/proxy for it, which numacast must not have",
            "the kubelet at URL does not accept our credentials (401): it must authenticate tokens with the API server \
             (authentication.webhook.enabled)",
            "the kubelet at URL responds to GET /moved with 302: ",
            "the kubelet at URL responds to GET /off with 405: Debug endpoints are disabled.",
            "the kubelet at URL responds to GET /large with more than 1000 bytes",
        ]
    );
    assert_eq!(https.get("/large", 1001).await.unwrap().len(), 1001);
    let error = error_of(https.get("/half", 1000).await, port);
    assert!(error.starts_with("the response of the kubelet at URL to GET /half broke off: "), "{error}");
    let error = error_of(https.get("/endless", 1000).await, port);
    assert_eq!(error, "the kubelet at URL responds to GET /endless with 500: ", "the rest is not read");
}

#[tokio::test]
async fn a_timeout_differs_from_a_refused_connection() {
    let ca = Ca::new();
    let port = server(&ca, "127.0.0.1").await;
    let short = HttpsTarget { timeout: Duration::from_millis(300), ..target(port) };
    let error = error_of(HttpsClient::new(&cluster(&ca), &short).unwrap().get("/silent", 1).await, port);
    assert_eq!(error, "the kubelet at URL did not respond to GET /silent within 300ms");
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let error = error_of(HttpsClient::new(&cluster(&ca), &target(gone)).unwrap().get("/", 1).await, gone);
    assert!(error.starts_with("the kubelet at URL cannot be reached: "), "{error}");
    assert!(error.contains("refused"), "{error}");
}

#[tokio::test]
async fn an_unusable_target_is_an_error() {
    let ca = Ca::new();
    let why = |target: &HttpsTarget| HttpsClient::new(&cluster(&ca), target).unwrap_err();
    let missing = HttpsTarget { ca_file: Some("/nowhere/ca.crt".into()), ..target(1) };
    assert_eq!(
        why(&missing),
        "cannot send a request to the kubelet at https://127.0.0.1:1: /nowhere/ca.crt: No such file or directory (os error 2); check \
         `kubelet.caFile`"
    );
    let empty = tempfile::NamedTempFile::new().unwrap();
    let error = why(&HttpsTarget { ca_file: Some(empty.path().to_owned()), ..target(1) });
    assert!(error.ends_with("it contains no certificate in PEM; check `kubelet.caFile`"), "{error}");
    let error = why(&HttpsTarget { host: "not a host".into(), ..target(1) });
    assert_eq!(error, "cannot send a request to the kubelet at https://not a host:1: the address is invalid");
    let https = |host: &str| {
        let target = HttpsTarget { host: host.into(), ..target(HTTPS_PORT) };
        HttpsClient::new(&cluster(&ca), &target).unwrap().url
    };
    assert_eq!(https("fd00::7"), "https://[fd00::7]:10250");
    assert_eq!(https("worker"), "https://worker:10250");
}
