//! HTTP for metrics and health, one request per connection. Whoever can reach the port can connect, so connections are
//! bounded in number, per address, in time and in bytes, and a new one is always accepted: an older one that has sent no
//! request makes room. Otherwise silent connections would keep the kubelet's probes out, and it would restart the
//! container.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt::Debug;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
use tokio::task::{AbortHandle, JoinHandle, JoinSet, yield_now};
use tokio::time::{sleep, timeout};

use super::tls::Tls;
use crate::config::Endpoint;

/// Open connections. An idle one takes some 10 KiB.
const CONNECTIONS: usize = 64;
/// Open connections of one address. A kubelet or a scraper has one or two.
const CONNECTIONS_PER_ADDRESS: usize = 16;
/// Connections that wait in the kernel to be accepted, if `net.core.somaxconn` is not lower. A probe that finds no room there
/// waits for a second until it tries again, which is too late.
const BACKLOG: u32 = 4096;
/// How long the TLS handshake and the request's header may take together.
const HEADER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the client may take to read the answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);
/// The header of a request, in bytes. It is the least that hyper can be given.
const HEADER_BYTES: usize = 8192;
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
            Endpoint::At(address) => listen(address).map_err(explain)?,
            Endpoint::Everywhere(port) => everywhere(port).map_err(explain)?,
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
fn everywhere(port: u16) -> io::Result<TcpListener> {
    let old = (Ipv4Addr::UNSPECIFIED, port).into();
    let Ok(socket) = TcpSocket::new_v6() else { return listen(old) };
    rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
    match listen_on(socket, (Ipv6Addr::UNSPECIFIED, port).into()) {
        // IPv6 is there and switched off.
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => listen(old),
        listener => listener,
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    listen_on(socket?, address)
}

/// `TcpListener::bind` would let fewer connections wait.
fn listen_on(socket: TcpSocket, address: SocketAddr) -> io::Result<TcpListener> {
    // What a connection left behind must not keep a restart from listening.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn accept(listener: TcpListener, endpoints: Endpoints, tls: Option<Arc<Tls>>) {
    let (mut tasks, mut connections) = (JoinSet::new(), Connections::default());
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => {
                    let requested = Arc::new(AtomicBool::new(false));
                    let connection = serve(stream, endpoints.clone(), tls.clone(), Arc::clone(&requested));
                    // An IPv4 address is the same one on a socket of both families.
                    let address = address.ip().to_canonical();
                    connections.add(Connection { address, requested, task: tasks.spawn(connection) });
                    // A request that came with the connection is read before the next connection can replace it.
                    yield_now().await;
                }
                Err(_) => sleep(PAUSE).await,
            },
            Some(_) = tasks.join_next() => {}
        }
    }
}

/// An open connection.
struct Connection {
    address: IpAddr,
    /// Whether its request has been read.
    requested: Arc<AtomicBool>,
    task: AbortHandle,
}

/// The open connections, the oldest first.
#[derive(Default)]
struct Connections(Vec<Connection>);

impl Connections {
    /// Adds a connection and closes an older one if there are too many: of the same address if that has too many, else
    /// of the address with the most.
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

    /// Closes the oldest connection of an address that has sent no request, or else its oldest.
    fn close_one(&mut self, address: IpAddr) {
        let silent = |open: &Connection| open.address == address && !open.requested.load(Ordering::Relaxed);
        let position = self.0.iter().position(silent);
        let Some(position) = position.or_else(|| self.0.iter().position(|open| open.address == address))
        else {
            return;
        };
        self.0.remove(position).task.abort();
    }
}

/// Serves one request, within the timeouts. Errors are the client's: it left or does not speak HTTP.
async fn serve(stream: TcpStream, endpoints: Endpoints, tls: Option<Arc<Tls>>, requested: Arc<AtomicBool>) {
    let connection = async {
        let Some(tls) = tls else { return converse(stream, endpoints, &requested).await };
        let Some(acceptor) = tls.acceptor() else { return };
        if let Ok(stream) = acceptor.accept(stream).await {
            converse(stream, endpoints, &requested).await;
        }
    };
    let mut connection = pin!(connection);
    if timeout(HEADER_TIMEOUT, &mut connection).await.is_err() && requested.load(Ordering::Relaxed) {
        let _ = timeout(ANSWER_TIMEOUT, connection).await;
    }
}

async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin, endpoints: Endpoints, requested: &AtomicBool) {
    let service = service_fn(|request: Request<Incoming>| {
        requested.store(true, Ordering::Relaxed);
        let answer = answer(&endpoints, request.method(), request.uri().path());
        async move { Ok::<_, Infallible>(answer) }
    });
    let mut http = http1::Builder::new();
    http.keep_alive(false).max_buf_size(HEADER_BYTES);
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
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
