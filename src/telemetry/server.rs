//! HTTP for metrics and health. Whoever connects gets one answer and has ten seconds for it.

use std::convert::Infallible;
use std::fmt::Debug;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::tls::Tls;
use crate::config::Endpoint;

/// Scrapers are few. More connections wait in the kernel's queue.
const CONNECTIONS: usize = 16;
/// As the standard library has it.
const BACKLOG: u32 = 128;
/// How long a connection may last: a peer that says nothing must not keep its place.
const PATIENCE: Duration = Duration::from_secs(10);
/// After a connection could not be accepted, say for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// What is counted.
pub trait Exposition: Debug + Send + Sync {
    /// Everything, in the OpenMetrics text format.
    fn encode(&self) -> String;
}

/// Three questions, as a kubelet asks them. What is wrong is one sentence each.
pub trait Probes: Debug + Send + Sync {
    /// Would a restart help?
    ///
    /// # Errors
    /// When it may; so below, when the answer is no.
    fn live(&self) -> Result<(), Vec<String>>;

    /// Is the work done?
    ///
    /// # Errors
    /// As [`Probes::live`].
    fn ready(&self) -> Result<(), Vec<String>>;

    /// Is the start over?
    ///
    /// # Errors
    /// As [`Probes::live`].
    fn started(&self) -> Result<(), Vec<String>>;
}

/// What several count, as one.
#[derive(Debug)]
pub struct Together(pub Vec<Arc<dyn Exposition>>);

/// The last line of the format.
const END: &str = "# EOF\n";

impl Exposition for Together {
    fn encode(&self) -> String {
        let mut text = String::new();
        for part in &self.0 {
            let part = part.encode();
            text += part.strip_suffix(END).unwrap_or(&part);
        }
        text + END
    }
}

/// The questions of several, as one: all of them have to be well.
#[derive(Debug)]
pub struct All(pub Vec<Arc<dyn Probes>>);

impl All {
    fn of(&self, ask: impl Fn(&dyn Probes) -> Result<(), Vec<String>>) -> Result<(), Vec<String>> {
        let reasons: Vec<String> =
            self.0.iter().filter_map(|probes| ask(&**probes).err()).flatten().collect();
        if reasons.is_empty() { Ok(()) } else { Err(reasons) }
    }
}

impl Probes for All {
    fn live(&self) -> Result<(), Vec<String>> {
        self.of(|probes| probes.live())
    }

    fn ready(&self) -> Result<(), Vec<String>> {
        self.of(|probes| probes.ready())
    }

    fn started(&self) -> Result<(), Vec<String>> {
        self.of(|probes| probes.started())
    }
}

/// The format of [`Exposition::encode`].
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// What there is to serve at one address.
#[derive(Clone, Debug, Default)]
pub struct Endpoints {
    /// At `/metrics`.
    pub metrics: Option<Arc<dyn Exposition>>,
    /// At `/livez`, `/readyz` and `/startupz`.
    pub health: Option<Arc<dyn Probes>>,
}

impl Endpoints {
    /// What this is, and which key says where.
    const fn name(&self) -> (&'static str, &'static str) {
        match (&self.metrics, &self.health) {
            (Some(_), Some(_)) => ("metrics and health are", "metrics.address"),
            (None, Some(_)) => ("health is", "health.address"),
            _ => ("metrics are", "metrics.address"),
        }
    }

    /// The paths, for a sentence.
    #[must_use]
    pub const fn paths(&self) -> &'static str {
        match (&self.metrics, &self.health) {
            (Some(_), Some(_)) => "/metrics, /livez, /readyz and /startupz",
            (None, Some(_)) => "/livez, /readyz and /startupz",
            _ => "/metrics",
        }
    }
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
    "{what} not served: cannot listen on {address}: {source}; set `{key}` to another address, or to none"
)]
pub struct ServerError {
    what: &'static str,
    key: &'static str,
    address: Endpoint,
    source: io::Error,
}

impl Server {
    /// Listens at `address` and serves from a task of its own, with TLS if there is any; none where that is nowhere.
    ///
    /// # Errors
    /// When the address is taken or not this host's.
    pub async fn start(
        address: Endpoint,
        endpoints: Endpoints,
        tls: Option<Tls>,
    ) -> Result<Option<Self>, ServerError> {
        let (what, key) = endpoints.name();
        let explain = |source| ServerError { what, key, address, source };
        let listener = match address {
            Endpoint::Nowhere => return Ok(None),
            Endpoint::At(address) => TcpListener::bind(address).await.map_err(explain)?,
            Endpoint::Everywhere(port) => everywhere(port).await.map_err(explain)?,
        };
        // The port, where 0 stood for any.
        let address = listener.local_addr().map_err(explain)?;
        let task = tokio::spawn(accept(listener, endpoints, tls.map(Arc::new)));
        Ok(Some(Self { address, task }))
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

/// A port of every address: of both families, whatever the host's default is, or of the old one where the kernel has no
/// IPv6.
async fn everywhere(port: u16) -> io::Result<TcpListener> {
    let Ok(socket) = TcpSocket::new_v6() else {
        return TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await;
    };
    rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
    // As `bind` does: what a connection left behind must not keep a restart from listening.
    socket.set_reuseaddr(true)?;
    match socket.bind((Ipv6Addr::UNSPECIFIED, port).into()) {
        Ok(()) => socket.listen(BACKLOG),
        // IPv6 is there and switched off.
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
        }
        Err(error) => Err(error),
    }
}

async fn accept(listener: TcpListener, endpoints: Endpoints, tls: Option<Arc<Tls>>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS => match accepted {
                Ok((stream, _)) => drop(connections.spawn(serve(stream, endpoints.clone(), tls.clone()))),
                Err(_) => sleep(PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// A peer that left or talks nonsense is its own trouble.
async fn serve(stream: TcpStream, endpoints: Endpoints, tls: Option<Arc<Tls>>) {
    let connection = async {
        let Some(tls) = tls else { return converse(stream, endpoints).await };
        let Some(acceptor) = tls.acceptor() else { return };
        if let Ok(stream) = acceptor.accept(stream).await {
            converse(stream, endpoints).await;
        }
    };
    let _ = timeout(PATIENCE, connection).await;
}

async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin, endpoints: Endpoints) {
    let service = service_fn(|request: Request<Incoming>| {
        let answer = answer(&endpoints, request.method(), request.uri().path());
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service);
    let _ = connection.await;
}

/// What is served, by method and path. hyper leaves out the body of an answer to HEAD.
fn answer(endpoints: &Endpoints, method: &Method, path: &str) -> Response<Full<Bytes>> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut refusal = respond(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "only GET and HEAD\n".into());
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    let Endpoints { metrics, health } = endpoints;
    let found = match path {
        "/metrics" => metrics.as_ref().map(|metrics| respond(StatusCode::OK, OPEN_METRICS, metrics.encode())),
        "/livez" => health.as_ref().map(|health| verdict(health.live())),
        "/readyz" => health.as_ref().map(|health| verdict(health.ready())),
        "/startupz" => health.as_ref().map(|health| verdict(health.started())),
        _ => None,
    };
    found.unwrap_or_else(|| {
        respond(StatusCode::NOT_FOUND, PLAIN, format!("there is only {}\n", endpoints.paths()))
    })
}

/// `ok`, or one sentence per reason.
fn verdict(verdict: Result<(), Vec<String>>) -> Response<Full<Bytes>> {
    match verdict {
        Ok(()) => respond(StatusCode::OK, PLAIN, "ok\n".into()),
        Err(reasons) => respond(StatusCode::SERVICE_UNAVAILABLE, PLAIN, reasons.join("\n") + "\n"),
    }
}

fn respond(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
