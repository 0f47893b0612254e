//! A client of the kubelet's HTTPS port with the agent's cluster credentials. The kubelet's certificate is
//! always verified, so the token is sent to no other server.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::{Request, StatusCode, Uri};
use kube::client::Body;
use rustls::CertificateError;

use super::address::Address;
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
    /// One sentence, if the address is invalid or the CA file has no certificate.
    pub fn new(cluster: &kube::Config, target: &HttpsTarget) -> Result<Self, String> {
        let url = format!("https://{}", Address { host: target.host.clone(), port: Some(target.port) });
        let unusable = |reason: String| format!("cannot send a request to the kubelet at {url}: {reason}");
        let address: Uri = url.parse().map_err(|_| unusable("the address is invalid".into()))?;
        let mut config = kube::Config::new(address);
        config.auth_info = cluster.auth_info.clone();
        config.tls_server_name.clone_from(&target.server_name);
        // The caller decides about retries.
        config.default_retry = false;
        config.connect_timeout = Some(target.timeout);
        if let Some(file) = &target.ca_file {
            let no_ca = |reason| unusable(format!("{}: {reason}; check `kubelet.caFile`", file.display()));
            check_ca(file).map_err(no_ca)?;
            // Only the file is trusted; it is read again when it changes.
            config.root_cert = Some(Vec::new());
            config.root_cert_file = Some(file.clone());
        } else {
            config.root_cert.clone_from(&cluster.root_cert);
            config.root_cert_file.clone_from(&cluster.root_cert_file);
        }
        let client = kube::Client::try_from(config).map_err(|error| unusable(chain(&error)))?;
        Ok(Self { client, url, timeout: target.timeout })
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
        use rustls::Error::InvalidCertificate;
        let url = &self.url;
        if let kube::Error::Auth(_) = error {
            return format!("cannot send a request to the kubelet at {url}: {}", chain(error));
        }
        let certificate = format!("the certificate of the kubelet at {url}");
        match tls_error(error) {
            None => format!("the kubelet at {url} cannot be reached: {}", chain(error)),
            // A bad signature: the trusted CA has the same name but another key.
            Some(InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => {
                format!(
                    "{certificate} is signed by an unknown CA: set `kubelet.caFile` to the CA of the nodes' serving \
                 certificates (for one that the kubelet made itself, its own `pki/kubelet.crt`)"
                )
            }
            Some(InvalidCertificate(
                reason
                @ (CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }),
            )) => format!(
                "{certificate} has another name ({reason}): set `kubelet.serverName` to the one that it has, usually \
                 the node's"
            ),
            Some(error) => format!("{certificate} cannot be accepted: {error}"),
        }
    }
}

/// Checks the CA file. The verifier reads it again, but an error is clearer if reported here.
fn check_ca(file: &Path) -> Result<(), String> {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let text = std::fs::read(file).map_err(|error| error.to_string())?;
    match CertificateDer::pem_slice_iter(&text).next() {
        Some(Ok(_)) => Ok(()),
        _ => Err("it contains no certificate in PEM".to_owned()),
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
