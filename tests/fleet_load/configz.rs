//! One HTTPS server in place of all simulated kubelets' ports, serving what an agent with the chart's mounts
//! needs: `/configz`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// A server that stops when dropped.
pub(crate) struct Configz {
    address: String,
    ca_file: PathBuf,
    task: JoinHandle<()>,
}

impl Configz {
    /// Serves the configuration that a simulated kubelet wrote to `config`, with a certificate signed by a CA
    /// in `dir`.
    pub(crate) async fn start(config: &Path, dir: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(config).with_context(|| config.display().to_string())?;
        let config: Value = serde_saphyr::from_str(&text)?;
        let body = json!({"kubeletconfig": config}).to_string();
        let response = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let (acceptor, ca) = acceptor()?;
        let ca_file = dir.join("kubelet-ca.pem");
        std::fs::write(&ca_file, ca)?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let task = tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                tokio::spawn(respond(acceptor.clone(), stream, response.clone()));
            }
        });
        Ok(Self { address, ca_file, task })
    }

    /// Returns the server's address.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Returns the path of the CA's certificate.
    pub(crate) fn ca_file(&self) -> &Path {
        &self.ca_file
    }
}

impl Drop for Configz {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns an acceptor with a certificate for 127.0.0.1, and the certificate of its CA.
fn acceptor() -> Result<(TlsAcceptor, String)> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(["127.0.0.1".to_owned()])?.signed_by(&key, &ca)?;
    let certificate = CertificateDer::from_pem_slice(certificate.pem().as_bytes())?;
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = builder.with_no_client_auth().with_single_cert(vec![certificate], key)?;
    Ok((TlsAcceptor::from(Arc::new(config)), ca.pem()))
}

/// Sends the response to one request of any kind. Errors of a client that disconnects are ignored.
async fn respond(acceptor: TlsAcceptor, stream: TcpStream, response: String) {
    let Ok(mut stream) = acceptor.accept(stream).await else { return };
    let mut request = [0; 4096];
    if matches!(stream.read(&mut request).await, Ok(1..)) {
        let _ = stream.write_all(response.as_bytes()).await;
        let _ = stream.shutdown().await;
    }
}
