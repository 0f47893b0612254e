//! Where the API server listens, and its clients.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use axum::http::uri::InvalidUri;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use kube::client::Body as ClientBody;
use tokio::io::{DuplexStream, duplex};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, mpsc};

use super::{Shared, http};
use crate::serve::{Listener, Serving};

/// Bytes in flight on a connection within this process.
const BUFFER: usize = 64 << 10;

/// A TCP address, or this process.
#[derive(Debug)]
pub(super) enum Endpoint {
    Tcp(SocketAddr),
    InProcess(mpsc::UnboundedSender<DuplexStream>),
}

impl Endpoint {
    /// Serves at a TCP address; port 0 takes any free one.
    pub(super) async fn tcp(address: SocketAddr, shared: &Arc<Shared>) -> io::Result<(Self, Serving)> {
        let listener = TcpListener::bind(address).await?;
        let endpoint = Self::Tcp(listener.local_addr()?);
        Ok((endpoint, serve(listener, shared)))
    }

    pub(super) fn in_process(shared: &Arc<Shared>) -> (Self, Serving) {
        let (connect, connections) = mpsc::unbounded_channel();
        (Self::InProcess(connect), serve(Mutex::new(connections), shared))
    }

    pub(super) fn url(&self) -> String {
        match self {
            Self::Tcp(address) => format!("http://{address}"),
            Self::InProcess(_) => "http://localhost".to_owned(),
        }
    }

    pub(super) fn client(&self) -> Result<kube::Client, kube::Error> {
        // If a provider is installed already, it is the same one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let Self::InProcess(connect) = self else {
            let url = self.url().parse().map_err(|error: InvalidUri| kube::Error::HttpError(error.into()))?;
            let mut config = kube::Config::new(url);
            // As in `Cluster::new`: report failures at once.
            config.default_retry = false;
            return kube::Client::try_from(config);
        };
        let connect = connect.clone();
        let send = move |request| {
            let (ours, theirs) = duplex(BUFFER);
            // If the server was dropped, the connection is closed.
            let _ = connect.send(theirs);
            async move {
                let (mut sender, connection) = handshake::<_, ClientBody>(TokioIo::new(ours)).await?;
                tokio::spawn(connection);
                sender.send_request(request).await
            }
        };
        Ok(kube::Client::new(tower::service_fn(send), "default"))
    }
}

fn serve(listener: impl Listener, shared: &Arc<Shared>) -> Serving {
    let shared = shared.clone();
    let service = tower::service_fn(move |request: Request<Body>| http::handle(shared.clone(), request));
    Serving::start(listener, service)
}
