//! One HTTPS server in place of all simulated kubelets' ports, serving what an agent with the chart's mounts
//! needs: `/configz`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::support::ca::Ca;

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
        let ca = Ca::new()?;
        let acceptor = ca.acceptor()?;
        let ca_file = dir.join("kubelet-ca.pem");
        std::fs::write(&ca_file, ca.pem())?;
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

/// Sends the response to one request of any kind. Errors of a client that disconnects are ignored.
async fn respond(acceptor: TlsAcceptor, stream: TcpStream, response: String) {
    let Ok(mut stream) = acceptor.accept(stream).await else { return };
    let mut request = [0; 4096];
    if matches!(stream.read(&mut request).await, Ok(1..)) {
        let _ = stream.write_all(response.as_bytes()).await;
        let _ = stream.shutdown().await;
    }
}
