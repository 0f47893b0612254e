//! The kubelet's HTTPS port, read with our own credentials for the cluster. Its certificate is always verified: a
//! token is shown to nobody else.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::{Request, StatusCode, Uri};
use kube::client::Body;
use rustls::CertificateError;

use crate::causes::chain;

/// The port that kubelets have where nobody chose another.
pub const PORT: u16 = 10250;

/// The most of a refusal's text that is repeated.
const REFUSAL: usize = 4096;

/// Whom to ask, and how to know that it is he.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// An IP address or a host name, without brackets.
    pub host: String,
    /// Usually [`PORT`].
    pub port: u16,
    /// Who signs the kubelet's serving certificate (PEM); the cluster's CA if not set.
    pub ca_file: Option<PathBuf>,
    /// The name that the certificate must have; `host` if not set.
    pub server_name: Option<String>,
    /// The deadline of one call.
    pub timeout: Duration,
}

/// A client of one kubelet's HTTPS port.
#[derive(Clone)]
pub struct Https {
    client: kube::Client,
    /// `https://10.0.0.7:10250`
    url: String,
    timeout: Duration,
}

/// Why the kubelet's HTTPS port did not tell what we asked for. Every variant is one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HttpsError {
    /// No client can be made of this.
    #[error("cannot ask the kubelet at {url}: {reason}")]
    Unusable {
        /// Where.
        url: String,
        /// Why not.
        reason: String,
    },
    /// The file with the CA is missing or holds none.
    #[error("cannot ask the kubelet at {url}: {}: {reason}; check `kubelet.caFile`", file.display())]
    NoCa {
        /// Where.
        url: String,
        /// `kubelet.caFile`
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Nobody answers.
    #[error("the kubelet at {url} cannot be reached: {reason}")]
    Unreachable {
        /// Where.
        url: String,
        /// What the connection said.
        reason: String,
    },
    /// No complete answer in time.
    #[error("the kubelet at {url} did not answer GET {path} within {after:?}")]
    Deadline {
        /// Where.
        url: String,
        /// What we asked for.
        path: String,
        /// The deadline.
        after: Duration,
    },
    /// Nobody that we trust signed its certificate.
    #[error(
        "the certificate of the kubelet at {url} is signed by nobody we trust: set `kubelet.caFile` to the CA of the \
         nodes' serving certificates (for one that the kubelet made itself, its own `pki/kubelet.crt`)"
    )]
    UnknownCa {
        /// Where.
        url: String,
    },
    /// The certificate is somebody else's.
    #[error(
        "the certificate of the kubelet at {url} has another name ({reason}): set `kubelet.serverName` to the one that \
         it has, usually the node's"
    )]
    OtherName {
        /// Where.
        url: String,
        /// What the verification said.
        reason: String,
    },
    /// The certificate is no good otherwise.
    #[error("the certificate of the kubelet at {url} cannot be accepted: {reason}")]
    BadCertificate {
        /// Where.
        url: String,
        /// What the verification said.
        reason: String,
    },
    /// It does not know us.
    #[error(
        "the kubelet at {url} does not accept our credentials (401): it must authenticate tokens with the API server \
         (authentication.webhook.enabled)"
    )]
    Unauthorized {
        /// Where.
        url: String,
    },
    /// It knows us and refuses.
    #[error(
        "the kubelet at {url} refuses GET {path} ({message}): RBAC must allow `get` on {right}; kubelets before 1.33 \
         want nodes/proxy for it, which numacast is never to have"
    )]
    Forbidden {
        /// Where.
        url: String,
        /// What we asked for.
        path: String,
        /// The sub-resource that has to be allowed.
        right: String,
        /// The kubelet's words.
        message: String,
    },
    /// Another answer than the one that was asked for.
    #[error("the kubelet at {url} answers GET {path} with {code}: {message}")]
    Refused {
        /// Where.
        url: String,
        /// What we asked for.
        path: String,
        /// The HTTP code.
        code: u16,
        /// Its words.
        message: String,
    },
    /// More than we take.
    #[error("the kubelet at {url} answers GET {path} with more than {limit} bytes")]
    TooLarge {
        /// Where.
        url: String,
        /// What we asked for.
        path: String,
        /// What we take.
        limit: usize,
    },
    /// The answer ended in its middle.
    #[error("the answer of the kubelet at {url} to GET {path} broke off: {reason}")]
    BrokenOff {
        /// Where.
        url: String,
        /// What we asked for.
        path: String,
        /// What the connection said.
        reason: String,
    },
}

impl fmt::Debug for Https {
    /// Not the client: it knows a token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Https").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Https {
    /// A client for `target` with the credentials, and the CA if the target names none, of `cluster`: the
    /// configuration with which the API server is asked. Connects to nobody yet; needs the runtime.
    ///
    /// # Errors
    /// [`HttpsError::Unusable`] and [`HttpsError::NoCa`].
    pub fn new(cluster: &kube::Config, target: &Target) -> Result<Self, HttpsError> {
        let url = url(&target.host, target.port);
        let unusable = |reason: String| HttpsError::Unusable { url: url.clone(), reason };
        let address: Uri = url.parse().map_err(|_| unusable("this is no address".into()))?;
        let mut config = kube::Config::new(address);
        config.auth_info = cluster.auth_info.clone();
        config.tls_server_name.clone_from(&target.server_name);
        // Whoever asks decides about the next attempt.
        config.default_retry = false;
        config.connect_timeout = Some(target.timeout);
        match &target.ca_file {
            Some(file) => {
                check_ca(file).map_err(|reason| HttpsError::NoCa {
                    url: url.clone(),
                    file: file.clone(),
                    reason,
                })?;
                // The file alone counts, and is read again when it changes.
                config.root_cert = Some(Vec::new());
                config.root_cert_file = Some(file.clone());
            }
            None => {
                config.root_cert.clone_from(&cluster.root_cert);
                config.root_cert_file.clone_from(&cluster.root_cert_file);
            }
        }
        let client = kube::Client::try_from(config).map_err(|error| unusable(chain(&error)))?;
        Ok(Self { client, url, timeout: target.timeout })
    }

    /// The body of the answer to `GET path`, of at most `limit` bytes, within the deadline.
    ///
    /// # Errors
    /// All but those of [`Https::new`].
    pub async fn get(&self, path: &str, limit: usize) -> Result<Vec<u8>, HttpsError> {
        let mut body = Vec::new();
        self.feed(path, limit, |piece| body.extend_from_slice(piece)).await?;
        Ok(body)
    }

    /// As [`Https::get`], for answers that are better not held whole: `sink` is given one piece after the other.
    ///
    /// # Errors
    /// As [`Https::get`]. Pieces that were given before are then of no worth.
    pub async fn feed(
        &self,
        path: &str,
        limit: usize,
        sink: impl FnMut(&[u8]) + Send,
    ) -> Result<(), HttpsError> {
        match tokio::time::timeout(self.timeout, self.read(path, limit, sink)).await {
            Ok(answer) => answer,
            Err(_) => {
                let (url, path) = (self.url.clone(), path.to_owned());
                Err(HttpsError::Deadline { url, path, after: self.timeout })
            }
        }
    }

    async fn read(
        &self,
        path: &str,
        limit: usize,
        mut sink: impl FnMut(&[u8]) + Send,
    ) -> Result<(), HttpsError> {
        let (url, path) = (self.url.clone(), path.to_owned());
        let unusable = |reason: String| HttpsError::Unusable { url: url.clone(), reason };
        let request = Request::get(&path).body(Body::empty()).map_err(|error| unusable(error.to_string()))?;
        let answer = self.client.send(request).await.map_err(|error| self.explain(&error))?;
        let (status, body) = (answer.status(), answer.into_body());
        if status != StatusCode::OK {
            // What it says is a help, not more.
            let text = Limited::new(body, REFUSAL).collect().await.map(|text| text.to_bytes());
            let text = String::from_utf8_lossy(&text.unwrap_or_default()).trim().to_owned();
            return Err(refusal(url, path, status, text));
        }
        let mut body = Limited::new(body, limit);
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) => frame.data_ref().map_or((), |piece| sink(piece)),
                Err(error) if error.is::<LengthLimitError>() => {
                    return Err(HttpsError::TooLarge { url, path, limit });
                }
                Err(error) => return Err(HttpsError::BrokenOff { url, path, reason: chain(&*error) }),
            }
        }
        Ok(())
    }

    /// Errors that are no answer.
    fn explain(&self, error: &kube::Error) -> HttpsError {
        let url = self.url.clone();
        if let kube::Error::Auth(_) = error {
            return HttpsError::Unusable { url, reason: chain(error) };
        }
        match tls_problem(error) {
            None => HttpsError::Unreachable { url, reason: chain(error) },
            // A bad signature: the CA that we trust has the same name and another key.
            Some(rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            )) => HttpsError::UnknownCa { url },
            Some(rustls::Error::InvalidCertificate(
                reason
                @ (CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }),
            )) => HttpsError::OtherName { url, reason: reason.to_string() },
            Some(problem) => HttpsError::BadCertificate { url, reason: problem.to_string() },
        }
    }
}

/// `https://10.0.0.7:10250`, `https://[fd00::7]:10250`
fn url(host: &str, port: u16) -> String {
    match host.parse() {
        Ok(IpAddr::V6(address)) => format!("https://[{address}]:{port}"),
        _ => format!("https://{host}:{port}"),
    }
}

/// The file is read again by whoever verifies; what is wrong with it is better told here.
fn check_ca(file: &Path) -> Result<(), String> {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let text = std::fs::read(file).map_err(|error| error.to_string())?;
    match CertificateDer::pem_slice_iter(&text).next() {
        Some(Ok(_)) => Ok(()),
        _ => Err("it holds no certificate in PEM".to_owned()),
    }
}

fn refusal(url: String, path: String, status: StatusCode, message: String) -> HttpsError {
    match status {
        StatusCode::UNAUTHORIZED => HttpsError::Unauthorized { url },
        StatusCode::FORBIDDEN => {
            // kubelet.md 6: the first part of the path is the sub-resource.
            let first = path.trim_start_matches('/').split(['/', '?']).next().unwrap_or_default();
            let right = format!("nodes/{first}");
            HttpsError::Forbidden { url, path, right, message }
        }
        status => HttpsError::Refused { url, path, code: status.as_u16(), message },
    }
}

/// What the TLS layer has against the connection. It lies in errors of other layers, which hide it from `source`.
fn tls_problem<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    if let Some(problem) = error.downcast_ref() {
        return Some(problem);
    }
    let hidden = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    match hidden {
        Some(hidden) => tls_problem(hidden),
        None => error.source().and_then(tls_problem),
    }
}

#[cfg(test)]
mod tests;
