//! The HTTP endpoint of one process. Whoever connects gets one answer and has ten seconds for it.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::metrics::Metrics;

/// Scrapers are few. More connections wait in the kernel's queue.
const CONNECTIONS: usize = 16;
/// How long a connection may last: a peer that says nothing must not keep its place.
const PATIENCE: Duration = Duration::from_secs(10);
/// After a connection could not be accepted, say for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// The format of [`Metrics::encode`].
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// What there is to serve.
#[derive(Clone, Debug)]
pub struct Endpoints {
    /// At `/metrics`.
    pub metrics: Arc<Metrics>,
}

/// A running endpoint; dropping it closes the socket and cuts every connection.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    task: JoinHandle<()>,
}

/// The address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error(
    "metrics are not served: cannot listen on {address}: {source}; set `metrics.address` to another address, or to none"
)]
pub struct ServerError {
    address: SocketAddr,
    source: io::Error,
}

impl Server {
    /// Listens on `address` and serves from a task of its own.
    ///
    /// # Errors
    /// When the address is taken or not this host's.
    pub async fn start(address: SocketAddr, endpoints: Endpoints) -> Result<Self, ServerError> {
        let explain = |source| ServerError { address, source };
        let listener = TcpListener::bind(address).await.map_err(explain)?;
        // The port, where 0 stood for any.
        let address = listener.local_addr().map_err(explain)?;
        Ok(Self { address, task: tokio::spawn(accept(listener, endpoints)) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, endpoints: Endpoints) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS => match accepted {
                Ok((stream, _)) => drop(connections.spawn(serve(stream, endpoints.clone()))),
                Err(_) => sleep(PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream, endpoints: Endpoints) {
    let service = service_fn(|request: Request<Incoming>| {
        let answer = answer(&endpoints, request.method(), request.uri().path());
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service);
    // A peer that left or talks nonsense is its own trouble.
    let _ = timeout(PATIENCE, connection).await;
}

/// What is served, by method and path. hyper leaves out the body of an answer to HEAD.
fn answer(endpoints: &Endpoints, method: &Method, path: &str) -> Response<Full<Bytes>> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut refusal = respond(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "only GET and HEAD\n".into());
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    match path {
        "/metrics" => respond(StatusCode::OK, OPEN_METRICS, endpoints.metrics.encode()),
        _ => respond(StatusCode::NOT_FOUND, PLAIN, "there is only /metrics\n".into()),
    }
}

fn respond(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
