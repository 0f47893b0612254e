//! HTTP server for metrics and health, with one request per connection. Any host that can reach the port can
//! connect, so connections are limited in number, per address, in time and in bytes. A new one is always
//! accepted, by closing an older one, preferably one that has sent no request. Otherwise idle connections
//! would block the kubelet's probes and cause it to restart the container. Only while an address makes too
//! many requests ([`Rates`]), its connections are closed at once.

mod rates;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
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
use tokio::task::{AbortHandle, JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::server::Acceptor;

use super::endpoint::Endpoint;
use super::health::Probes;
use super::registry::Registry;
use super::tls::Tls;
use crate::util::sync::lock;
use crate::util::task::Task;
use rates::Rates;

/// Maximum number of open connections. An idle one takes 1.2 KiB, one that has sent something 14 KiB.
const CONNECTIONS: usize = 512;
/// Maximum number of open connections per address. A kubelet or a scraper has one or two. If another client
/// shares the address, a probe's connection is closed only if this many others arrive before its request.
const CONNECTIONS_PER_ADDRESS: usize = 256;
/// The listen backlog, unless `net.core.somaxconn` is lower. If it is full, a probe retries after one second,
/// which is too late.
const BACKLOG: u32 = 4096;
/// Timeout for the TLS handshake and the request header together.
const HEADER_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout for the client to read the response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(8);
/// Maximum size of the request header in bytes; the minimum that hyper accepts.
const HEADER_BYTES: usize = 8192;
/// Delay after a failed accept, for example if descriptors have run out.
const PAUSE: Duration = Duration::from_millis(100);
/// How long encoded metrics are reused.
const REUSE: Duration = Duration::from_millis(100);

/// The content type of [`Registry::encode`].
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// The endpoints served at one address.
#[derive(Clone, Debug, Default)]
pub struct Endpoints {
    /// Served at `/metrics`.
    pub metrics: Option<Arc<Registry>>,
    /// Served at `/livez`, `/readyz` and `/startupz`.
    pub health: Option<Arc<dyn Probes>>,
}

impl Endpoints {
    const fn names(&self) -> (&'static str, &'static str, &'static str) {
        match (&self.metrics, &self.health) {
            (Some(_), Some(_)) => {
                ("metrics and health are", "metrics.address", "/metrics, /livez, /readyz and /startupz")
            }
            (None, Some(_)) => ("health is", "health.address", "/livez, /readyz and /startupz"),
            _ => ("metrics are", "metrics.address", "/metrics"),
        }
    }

    /// Returns the served paths as text.
    #[must_use]
    pub const fn paths(&self) -> &'static str {
        self.names().2
    }
}

/// A running server; dropping it closes the socket and all connections.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    _task: Task,
}

/// The server could not listen on its address.
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
    /// Listens on `address` and serves in a task of its own, with TLS if configured. Returns `None` for
    /// [`Endpoint::Nowhere`].
    ///
    /// # Errors
    /// If the address is in use or not one of this host.
    pub async fn start(
        address: Endpoint,
        endpoints: Endpoints,
        tls: Option<Tls>,
    ) -> Result<Option<Self>, ServerError> {
        let (what, key, _) = endpoints.names();
        let explain = |source| ServerError { what, key, address, source };
        let Some(listener) = listen_at(address).map_err(explain)? else { return Ok(None) };
        // The actual port if the configured one is 0.
        let address = listener.local_addr().map_err(explain)?;
        let shared = Shared { endpoints, tls, rates: Rates::new(), encoded: Mutex::default() };
        Ok(Some(Self { address, _task: Task::spawn(accept(listener, Arc::new(shared))) }))
    }

    /// Returns the address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Listens on an endpoint; `None` for [`Endpoint::Nowhere`].
///
/// # Errors
/// If the address is in use or not one of this host.
pub fn listen_at(address: Endpoint) -> io::Result<Option<TcpListener>> {
    match address {
        Endpoint::Nowhere => Ok(None),
        Endpoint::At(address) => listen(address).map(Some),
        Endpoint::Everywhere(port) => everywhere(port).map(Some),
    }
}

/// Listens on all addresses of both families, whatever the host's `bindv6only`, or of IPv4 only if the kernel
/// has no IPv6.
fn everywhere(port: u16) -> io::Result<TcpListener> {
    let old = (Ipv4Addr::UNSPECIFIED, port).into();
    let Ok(socket) = TcpSocket::new_v6() else { return listen(old) };
    rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
    match listen_on(socket, (Ipv6Addr::UNSPECIFIED, port).into()) {
        // IPv6 is compiled in but disabled.
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => listen(old),
        listener => listener,
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    listen_on(socket?, address)
}

/// Listens with [`BACKLOG`]; that of `TcpListener::bind` is smaller.
fn listen_on(socket: TcpSocket, address: SocketAddr) -> io::Result<TcpListener> {
    // Connections in TIME_WAIT must not block a restart.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

struct Shared {
    endpoints: Endpoints,
    tls: Option<Tls>,
    rates: Rates,
    /// The metrics as encoded last, and when.
    encoded: Mutex<Option<(Instant, Bytes)>>,
}

impl Shared {
    fn encode(&self, metrics: &Registry) -> Bytes {
        let mut encoded = lock(&self.encoded);
        if let Some((at, text)) = &*encoded
            && at.elapsed() < REUSE
        {
            return text.clone();
        }
        let text = Bytes::from(metrics.encode());
        *encoded = Some((Instant::now(), text.clone()));
        text
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let (mut tasks, mut connections) = (JoinSet::new(), Connections::default());
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => {
                    // On a dual-stack socket IPv4 addresses appear as IPv4-mapped IPv6.
                    let address = address.ip().to_canonical();
                    if shared.rates.allow(address) {
                        let requested = Arc::new(AtomicBool::new(false));
                        let connection = serve(stream, address, Arc::clone(&shared), Arc::clone(&requested));
                        connections.add(Connection { address, requested, task: tasks.spawn(connection) });
                    }
                    // Lets a request that is already there be read before another connection can replace this
                    // one.
                    yield_now().await;
                }
                Err(_) => sleep(PAUSE).await,
            },
            Some(_) = tasks.join_next() => {}
        }
    }
}

struct Connection {
    address: IpAddr,
    /// Whether its request has been received.
    requested: Arc<AtomicBool>,
    task: AbortHandle,
}

#[derive(Default)]
struct Connections(Vec<Connection>);

impl Connections {
    /// Adds a connection. If there are too many, closes an older one: of the same address if that is over its
    /// limit, otherwise of the address with the most.
    fn add(&mut self, connection: Connection) {
        self.0.retain(|open| !open.task.is_finished());
        let of_address = self.0.iter().filter(|open| open.address == connection.address).count();
        if of_address >= CONNECTIONS_PER_ADDRESS {
            self.close_one(connection.address);
        } else if self.0.len() >= CONNECTIONS
            && let Some(address) = self.most_frequent_address()
        {
            self.close_one(address);
        }
        self.0.push(connection);
    }

    fn most_frequent_address(&self) -> Option<IpAddr> {
        let mut counts = HashMap::new();
        for open in &self.0 {
            *counts.entry(open.address).or_insert(0) += 1;
        }
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(address, _)| address)
    }

    /// Closes the address's oldest connection without a request, or if all have sent one, its oldest.
    fn close_one(&mut self, address: IpAddr) {
        let of_address = self.0.iter().enumerate().filter(|(_, open)| open.address == address);
        let first = of_address.min_by_key(|(_, open)| open.requested.load(Ordering::Relaxed));
        if let Some((position, _)) = first {
            self.0.remove(position).task.abort();
        }
    }
}

/// Serves one request within the timeouts. Errors are ignored: the client left or does not speak HTTP.
async fn serve(stream: TcpStream, address: IpAddr, shared: Arc<Shared>, requested: Arc<AtomicBool>) {
    let mut connection = pin!(connection(stream, address, &shared, &requested));
    if timeout(HEADER_TIMEOUT, &mut connection).await.is_err() && requested.load(Ordering::Relaxed) {
        let _ = timeout(RESPONSE_TIMEOUT, connection).await;
    }
}

/// Serves one request once the client has sent something: an idle connection has no buffers.
async fn connection(stream: TcpStream, address: IpAddr, shared: &Shared, requested: &AtomicBool) {
    // Not `readable`, which may complete although nothing has arrived.
    if stream.peek(&mut [0]).await.is_ok() {
        Box::pin(exchange(stream, address, shared, requested)).await;
    }
}

/// Serves one request, which is counted once it is there, but before the TLS handshake if there is one.
async fn exchange(stream: TcpStream, address: IpAddr, shared: &Shared, requested: &AtomicBool) {
    let take = || shared.rates.take(address);
    let Some(tls) = &shared.tls else { return serve_http(stream, shared, requested, take).await };
    let Some(acceptor) = tls.acceptor() else { return };
    let Ok(hello) = LazyConfigAcceptor::new(Acceptor::default(), stream).await else { return };
    if take()
        && let Ok(stream) = hello.into_stream(Arc::clone(acceptor.config())).await
    {
        serve_http(stream, shared, requested, || true).await;
    }
}

async fn serve_http(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    shared: &Shared,
    requested: &AtomicBool,
    allowed: impl Fn() -> bool,
) {
    let service = service_fn(|request: Request<Incoming>| {
        requested.store(true, Ordering::Relaxed);
        let response = allowed().then(|| response(shared, request.method(), request.uri().path()));
        async move { response.ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionAborted)) }
    });
    let mut http = http1::Builder::new();
    http.keep_alive(false).max_buf_size(HEADER_BYTES);
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

/// Returns the response for a method and path. hyper omits the body of responses to HEAD.
fn response(shared: &Shared, method: &Method, path: &str) -> Response<Full<Bytes>> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut rejected = respond(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "only GET and HEAD\n".into());
        rejected.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return rejected;
    }
    let Endpoints { metrics, health } = &shared.endpoints;
    let found = match path {
        "/metrics" => {
            metrics.as_ref().map(|metrics| respond(StatusCode::OK, OPEN_METRICS, shared.encode(metrics)))
        }
        "/livez" => health.as_ref().map(|health| probe(health.live())),
        "/readyz" => health.as_ref().map(|health| probe(health.ready())),
        "/startupz" => health.as_ref().map(|health| probe(health.started())),
        _ => None,
    };
    found.unwrap_or_else(|| {
        let text = format!("there is only {}\n", shared.endpoints.paths());
        respond(StatusCode::NOT_FOUND, PLAIN, text.into())
    })
}

fn probe(reasons: Vec<String>) -> Response<Full<Bytes>> {
    match reasons.is_empty() {
        true => respond(StatusCode::OK, PLAIN, "ok\n".into()),
        false => respond(StatusCode::SERVICE_UNAVAILABLE, PLAIN, (reasons.join("\n") + "\n").into()),
    }
}

fn respond(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
