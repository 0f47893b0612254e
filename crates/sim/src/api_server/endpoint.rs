//! Where the API server listens, and its clients.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::http::uri::InvalidUri;
use axum::http::{Request, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::{Body as ClientBody, ConfigExt};
use tokio::net::{TcpSocket, UnixListener, UnixStream};
use tower::Layer;

use super::{Shared, http};
use crate::serve::Serving;

/// A TCP address, or the name of an abstract Unix socket.
#[derive(Debug)]
pub(super) enum Endpoint {
    Tcp {
        address: SocketAddr,
        /// Bound to the address all the time, so that nobody else gets the port while the server is stopped.
        _port: TcpSocket,
    },
    Unix(String),
}

impl Endpoint {
    /// Takes an address; port 0 takes any free one.
    pub(super) fn tcp(address: SocketAddr) -> io::Result<Self> {
        let port = bind(address)?;
        Ok(Self::Tcp { address: port.local_addr()?, _port: port })
    }

    /// Takes a random name of an abstract socket, which begins with a null byte and is no file: unix(7).
    pub(super) fn unix() -> Self {
        Self::Unix(format!("\0numacast-{:016x}", fastrand::u64(..)))
    }

    pub(super) fn url(&self) -> String {
        match self {
            Self::Tcp { address, .. } => format!("http://{address}"),
            Self::Unix(_) => "http://localhost".to_owned(),
        }
    }

    pub(super) fn serve(&self, shared: &Arc<Shared>) -> io::Result<Serving> {
        let shared = shared.clone();
        let service = tower::service_fn(move |request: Request<Body>| http::handle(shared.clone(), request));
        match self {
            Self::Tcp { address, .. } => Ok(Serving::start(bind(*address)?.listen(1024)?, service)),
            Self::Unix(name) => Ok(Serving::start(UnixListener::bind(name)?, service)),
        }
    }

    pub(super) fn client(&self) -> Result<kube::Client, kube::Error> {
        // If a provider is installed already, it is the same one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let url = self.url().parse().map_err(|error: InvalidUri| kube::Error::HttpError(error.into()))?;
        let mut config = kube::Config::new(url);
        // As in `Cluster::new`: report failures at once.
        config.default_retry = false;
        match self {
            Self::Tcp { .. } => kube::Client::try_from(config),
            Self::Unix(name) => Ok(client_of_socket(name.clone(), &config)),
        }
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Creates a client that connects to a Unix socket, whatever the host of a request.
fn client_of_socket(name: String, config: &kube::Config) -> kube::Client {
    let connect = tower::service_fn(move |_: Uri| {
        let name = name.clone();
        Box::pin(async move { UnixStream::connect(name).await.map(TokioIo::new) })
    });
    let client = Client::builder(TokioExecutor::new()).build::<_, ClientBody>(connect);
    kube::Client::new(config.base_uri_layer().layer(client), &config.default_namespace)
}
