//! A client of the kubelet's HTTPS port with the agent's cluster credentials. The kubelet's certificate is
//! always verified, so the token is sent to no other server.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::{Request, StatusCode, Uri};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt};
use rustls::CertificateError;
use rustls::pki_types::ServerName;
use tower::{BoxError, ServiceBuilder};

use super::address::Address;
use super::certificates::{CertificateFingerprint, CertificateVerifier, Rejected, Roots, read_certificates};
use crate::util::error_chain::chain;

/// The kubelet's default port.
pub const HTTPS_PORT: u16 = 10250;

const ERROR_LIMIT: usize = 4096;

/// The kubelet's address and how to verify it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpsTarget {
    /// An IP address or a host name, without brackets.
    pub host: String,
    /// Usually [`HTTPS_PORT`].
    pub port: u16,
    /// The CA of the kubelet's serving certificate (PEM); the cluster's CA if not set.
    pub ca_file: Option<PathBuf>,
    /// The name expected in the certificate; `host` if not set.
    pub server_name: Option<String>,
    /// The fingerprints of certificates that are accepted whoever signed them.
    pub fingerprints: Vec<CertificateFingerprint>,
    /// The deadline of one call.
    pub timeout: Duration,
}

/// A client of one kubelet's HTTPS port.
#[derive(Clone)]
pub struct HttpsClient {
    client: kube::Client,
    /// `https://10.0.0.7:10250`
    url: String,
    timeout: Duration,
    /// Whether certificates are accepted by their fingerprints.
    has_fingerprints: bool,
}

impl fmt::Debug for HttpsClient {
    /// Leaves out the client, which contains a token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpsClient").field("url", &self.url).finish_non_exhaustive()
    }
}

impl HttpsClient {
    /// Returns a client for `target` with the credentials of `cluster`, the configuration used for the API
    /// server. Its CA is used if the target has none. Does not connect yet; needs a tokio runtime.
    ///
    /// # Errors
    /// One sentence, if the address or the name is invalid or the CA file has no certificate.
    pub fn new(cluster: &kube::Config, target: &HttpsTarget) -> Result<Self, String> {
        let url = format!("https://{}", Address { host: target.host.clone(), port: Some(target.port) });
        let unusable = |reason: String| format!("cannot send a request to the kubelet at {url}: {reason}");
        let address: Uri = url.parse().map_err(|_| unusable("the address is invalid".into()))?;
        let mut config = kube::Config::new(address);
        config.auth_info = cluster.auth_info.clone();
        config.tls_server_name.clone_from(&target.server_name);
        // Our verifier has the CAs.
        config.root_cert = Some(Vec::new());
        let roots = match (&target.ca_file, &cluster.root_cert_file) {
            (Some(file), _) => {
                let no_ca =
                    |reason| unusable(format!("{}: {reason}; check `kubelet.caFile`", file.display()));
                // Each connection reads it again, but an error is clearer if reported here.
                read_certificates(file).map_err(no_ca)?;
                Roots::File(file.clone())
            }
            (None, Some(file)) => Roots::File(file.clone()),
            (None, None) => Roots::Certificates(cluster.root_cert.clone().unwrap_or_default()),
        };
        let verifier = CertificateVerifier::new(roots, target.fingerprints.clone());
        let client = client(config, verifier).map_err(unusable)?;
        Ok(Self { client, url, timeout: target.timeout, has_fingerprints: !target.fingerprints.is_empty() })
    }

    /// Returns the body of the response to `GET path`, of at most `limit` bytes, within the deadline.
    ///
    /// # Errors
    /// One sentence about what failed and, if the operator can mend it, how.
    pub async fn get(&self, path: &str, limit: usize) -> Result<Vec<u8>, String> {
        let mut body = Vec::new();
        self.stream(path, limit, |chunk| body.extend_from_slice(chunk)).await?;
        Ok(body)
    }

    /// Like [`HttpsClient::get`], for bodies too large to buffer: `sink` is called with one chunk after the
    /// other.
    ///
    /// # Errors
    /// As for [`HttpsClient::get`]. The chunks passed before must be discarded then.
    pub async fn stream(
        &self,
        path: &str,
        limit: usize,
        sink: impl FnMut(&[u8]) + Send,
    ) -> Result<(), String> {
        let (url, after) = (&self.url, self.timeout);
        let late = |_| Err(format!("the kubelet at {url} did not respond to GET {path} within {after:?}"));
        tokio::time::timeout(after, self.read(path, limit, sink)).await.unwrap_or_else(late)
    }

    async fn read(&self, path: &str, limit: usize, mut sink: impl FnMut(&[u8]) + Send) -> Result<(), String> {
        let url = &self.url;
        let request = Request::get(path).body(Body::empty());
        let request =
            request.map_err(|error| format!("cannot send a request to the kubelet at {url}: {error}"))?;
        let response = self.client.send(request).await.map_err(|error| self.explain(&error))?;
        let (status, body) = (response.status(), response.into_body());
        if status != StatusCode::OK {
            // The error's text is optional: failing to read it is no failure.
            let text = Limited::new(body, ERROR_LIMIT).collect().await.map(|text| text.to_bytes());
            let text = String::from_utf8_lossy(&text.unwrap_or_default()).trim().to_owned();
            return Err(status_error(url, path, status, &text));
        }
        let mut body = Limited::new(body, limit);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| match error.is::<LengthLimitError>() {
                true => format!("the kubelet at {url} responds to GET {path} with more than {limit} bytes"),
                false => {
                    format!(
                        "the response of the kubelet at {url} to GET {path} broke off: {}",
                        chain(&*error)
                    )
                }
            })?;
            if let Some(chunk) = frame.data_ref() {
                sink(chunk);
            }
        }
        Ok(())
    }

    fn explain(&self, error: &kube::Error) -> String {
        let url = &self.url;
        if let kube::Error::Auth(_) = error {
            return format!("cannot send a request to the kubelet at {url}: {}", chain(error));
        }
        match tls_error(error) {
            None => format!("the kubelet at {url} cannot be reached: {}", chain(error)),
            Some(error) => match rejected(error) {
                Some(rejected) => self.explain_rejected(rejected),
                None => format!("the TLS connection to the kubelet at {url} failed: {error}"),
            },
        }
    }

    /// Says why the certificate is not accepted, and everything that has to be set in each case.
    fn explain_rejected(&self, rejected: &Rejected) -> String {
        use CertificateError::{BadSignature, NotValidForName, NotValidForNameContext, UnknownIssuer};
        let Rejected { cause, is_self_signed, fingerprint } = rejected;
        let (fault, remedy) = match cause {
            // A bad signature: the trusted CA has the same name but another key.
            UnknownIssuer | BadSignature if *is_self_signed => (
                "is self-signed".to_owned(),
                "set `kubelet.caFile` to the node's `pki/kubelet.crt` and `kubelet.serverName` to the node's name",
            ),
            UnknownIssuer | BadSignature => (
                "is signed by an unknown CA".to_owned(),
                "set `kubelet.caFile` to the CA of the nodes' serving certificates (and `kubelet.serverName`, if they \
                 do not contain the address)",
            ),
            NotValidForName | NotValidForNameContext { .. } => (
                format!("has another name ({cause})"),
                "set `kubelet.serverName` to the one that it has, usually the node's",
            ),
            cause => (format!("is not valid ({cause})"), "renew it"),
        };
        let others = if self.has_fingerprints { ", which has only others," } else { "" };
        format!(
            "the certificate of the kubelet at {} {fault}: {remedy}, or add its SHA-256 fingerprint {fingerprint} to \
             `kubelet.certificateFingerprints`{others} after comparing it with what `openssl x509 -in \
             /var/lib/kubelet/pki/kubelet.crt -noout -fingerprint -sha256` prints on the node",
            self.url
        )
    }
}

/// Returns a client with the credentials and the address of `config`, and this verifier of certificates. The
/// caller decides about retries and deadlines.
fn client(config: kube::Config, verifier: CertificateVerifier) -> Result<kube::Client, String> {
    let mut tls = config.rustls_client_config().map_err(|error| chain(&error))?;
    tls.dangerous().set_certificate_verifier(Arc::new(verifier));
    let mut connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_only();
    if let Some(name) = config.tls_server_name.clone() {
        let invalid = |_| format!("`kubelet.serverName: {name}` is not a valid name");
        let name = ServerName::try_from(name.clone()).map_err(invalid)?;
        connector = connector.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    let connector = connector.enable_http1().wrap_connector(tcp);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(|error| chain(&error))?)
        .map_err(BoxError::from)
        .service(Client::builder(TokioExecutor::new()).build::<_, Body>(connector));
    Ok(kube::Client::new(service, config.default_namespace))
}

/// Returns the certificate that our verifier rejected, if that is the error.
fn rejected(error: &rustls::Error) -> Option<&Rejected> {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::Other(error)) => error.0.downcast_ref(),
        _ => None,
    }
}

fn status_error(url: &str, path: &str, status: StatusCode, message: &str) -> String {
    match status {
        StatusCode::UNAUTHORIZED => format!(
            "the kubelet at {url} does not accept our credentials (401): it must authenticate tokens with the API \
             server (authentication.webhook.enabled)"
        ),
        StatusCode::FORBIDDEN => {
            // The kubelet authorizes by subresource, the first segment of the path (upstream:
            // `server/auth.go`).
            let subresource = path.trim_start_matches('/').split(['/', '?']).next().unwrap_or_default();
            format!(
                "the kubelet at {url} rejects GET {path} ({message}): RBAC must allow `get` on nodes/{subresource}; \
                 kubelets before 1.33 require nodes/proxy for it, which numacast must not have"
            )
        }
        status => format!("the kubelet at {url} responds to GET {path} with {}: {message}", status.as_u16()),
    }
}

/// Returns the TLS error in an error chain. `source` does not reach it through `io::Error`.
fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    if let Some(error) = error.downcast_ref() {
        return Some(error);
    }
    let hidden = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    match hidden {
        Some(hidden) => tls_error(hidden),
        None => error.source().and_then(tls_error),
    }
}

#[cfg(test)]
mod tests;
