//! The HTTP server of the page.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Form, Path, Query, Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION,
    REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures::stream::unfold;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::access::Access;
use super::ask::{AskError, Reader};
use super::cluster_access::{ClusterAccess, MAX_TOKEN_BYTES};
use super::feed::{Shared, Viewer};
use super::page;
use super::request::Refused;
use crate::telemetry::tls::Tls;
use crate::util::sync::lock;

/// The most open connections. A page has two; a browser at most six to one host.
const CONNECTIONS: usize = 64;
/// The most of one address; several people may use one proxy.
const CONNECTIONS_PER_ADDRESS: usize = 32;
/// The most pages that are kept up to date.
const STREAMS: usize = 16;
/// How long a client may take to send a request's header.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The most bytes of a form with a token.
const MAX_LOGIN_BYTES: usize = 2 * MAX_TOKEN_BYTES;
/// The most bytes of a request's header; the least that hyper accepts.
const HEADER_BYTES: usize = 8192;
/// Changes within this time are sent together.
const TOGETHER: Duration = Duration::from_millis(40);
/// A comment is sent after this time without changes, so that a page that has gone is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The most nodes in one event: the browser draws between two.
const NODES_AT_ONCE: usize = 250;
/// How long a page is kept up to date before it has to ask again, with a token that is still valid.
const STREAM_TIME: Duration = Duration::from_secs(300);
/// How long the browser waits before it asks again, in milliseconds.
const RETRY: u32 = 1000;
/// The most time of a connection, so that a client that stops reading does not keep its place. Browsers open another.
const CONNECTION_TIME: Duration = Duration::from_secs(600);
/// Delay after a failed accept.
const PAUSE: Duration = Duration::from_millis(100);

/// Nothing is loaded from elsewhere, and no other page may show this one.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

struct Server {
    access: Access,
    shared: Arc<Shared>,
    reader: Arc<Reader>,
    streams: Arc<Semaphore>,
    /// Distinguishes the versions of this process from those of an earlier one.
    run: u64,
}

/// Serves the page until it is dropped.
pub(super) async fn serve(
    listener: TcpListener,
    tls: Option<Tls>,
    access: Access,
    shared: Arc<Shared>,
    reader: Arc<Reader>,
) {
    let streams = Arc::new(Semaphore::new(STREAMS));
    let server = Arc::new(Server { access, shared, reader, streams, run: fastrand::u64(..) });
    let (router, tls) = (router(server), tls.map(Arc::new));
    let (mut tasks, open) = (JoinSet::new(), Arc::new(Connections::default()));
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => {
                    // If too many are open, this one is closed.
                    let Some(place) = Connections::take(&open, address.ip().to_canonical()) else { continue };
                    // Without it, a change waits for the acknowledgement of the one before.
                    let _ = stream.set_nodelay(true);
                    let (router, tls) = (router.clone(), tls.clone());
                    tasks.spawn(async move {
                        let _place = place;
                        let Some(tls) = tls else { return connection(stream, router).await };
                        let Some(acceptor) = tls.acceptor() else { return };
                        if let Ok(Ok(stream)) = timeout(HEADER_TIMEOUT, acceptor.accept(stream)).await {
                            connection(stream, router).await;
                        }
                    });
                }
                Err(_) => sleep(PAUSE).await,
            },
            Some(_) = tasks.join_next() => {}
        }
    }
}

/// The number of open connections of each address.
#[derive(Default)]
struct Connections(Mutex<HashMap<IpAddr, usize>>);

/// One open connection.
struct Place(Arc<Connections>, IpAddr);

impl Connections {
    /// Returns `None` if too many are open.
    fn take(open: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let mut counts = lock(&open.0);
        let (all, own) = (counts.values().sum::<usize>(), counts.get(&address).copied().unwrap_or(0));
        if all >= CONNECTIONS || own >= CONNECTIONS_PER_ADDRESS {
            return None;
        }
        counts.insert(address, own + 1);
        Some(Place(Arc::clone(open), address))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = lock(&self.0.0);
        match counts.get_mut(&self.1) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(counts.remove(&self.1)),
        }
    }
}

async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(HEADER_BYTES);
    let served = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // The client left, does not speak HTTP, or its time is over.
    let _ = timeout(CONNECTION_TIME, served).await;
}

fn router(server: Arc<Server>) -> Router {
    let mut router = Router::new()
        .route("/", get(index))
        .route("/api/events", get(events))
        .route("/api/nodes/{name}", get(node))
        .route("/api/pods/{namespace}/{name}", get(pod))
        .route("/api/fit", get(fit))
        .route("/api/pending", get(pending));
    if matches!(server.access, Access::Cluster(_)) {
        // Its address stays after a login that failed.
        let to_page = || async { (StatusCode::SEE_OTHER, [(LOCATION, "/")]) };
        let login = post(login).layer(DefaultBodyLimit::max(MAX_LOGIN_BYTES));
        router = router.route("/login", login.get(to_page));
    }
    for file in &page::FILES {
        router = router.route(file.path, get(move || async move { page_file(file) }));
    }
    router.layer(from_fn_with_state(Arc::clone(&server), check)).with_state(server)
}

#[derive(Deserialize)]
struct IndexQuery {
    token: Option<String>,
}

/// Refuses what is not allowed, and adds the headers that every response has.
async fn check(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let (path, headers) = (request.uri().path(), request.headers());
    let is_local = matches!(server.access, Access::Local(_));
    // What these answer depends on the token, which they check themselves.
    let checks_itself = match *request.method() {
        Method::GET | Method::HEAD => is_local && path == "/" && request.uri().query().is_some(),
        Method::POST if !is_local && path == "/login" => true,
        _ => {
            return secured((
                StatusCode::METHOD_NOT_ALLOWED,
                [("allow", "GET, HEAD")],
                "only GET and HEAD\n",
            ));
        }
    };
    // The page without a token has its style.
    let is_open = !is_local && ["/style.css", "/icon.svg", "/login.js", "/login"].contains(&path);
    let allowed = match checks_itself || is_open {
        true => server.access.check_names(path, headers),
        false => server.access.check(path, headers).await,
    };
    match allowed {
        Ok(()) => secured(timeout(ANSWER_TIMEOUT, next.run(request)).await.unwrap_or_else(|_| {
            (StatusCode::GATEWAY_TIMEOUT, "the cluster took too long to answer\n").into_response()
        })),
        Err(Refused::Login(_)) if path == "/" => secured(login_page(StatusCode::OK, "")),
        // Of the cookie's user: another one may log in. A proxy has logged in its user already.
        Err(refused @ Refused::Forbidden(_)) if path == "/" && !headers.contains_key(AUTHORIZATION) => {
            secured(login_page(StatusCode::FORBIDDEN, &refused.to_string()))
        }
        Err(refused) => secured(refused),
    }
}

fn secured(response: impl IntoResponse) -> Response {
    let mut response = response.into_response();
    let fixed: [(HeaderName, &'static str); 7] = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        // Without a referrer, the origin of the login form would be `null`.
        (REFERRER_POLICY, "same-origin"),
        (CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::Host | Self::Origin | Self::Token | Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::Login(_) => StatusCode::UNAUTHORIZED,
            Self::Busy => StatusCode::TOO_MANY_REQUESTS,
            Self::Cluster(_) => StatusCode::BAD_GATEWAY,
        };
        (status, format!("{self}\n")).into_response()
    }
}

impl IntoResponse for AskError {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::Invalid(_) => StatusCode::BAD_REQUEST,
            Self::Missing(_) => StatusCode::NOT_FOUND,
            Self::Cluster(_) => StatusCode::BAD_GATEWAY,
            Self::NotListed => StatusCode::SERVICE_UNAVAILABLE,
            Self::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, format!("{self}\n")).into_response()
    }
}

fn page_file(file: &page::File) -> Response {
    ([(CONTENT_TYPE, file.kind), (CONTENT_ENCODING, "gzip")], file.gzip).into_response()
}

/// Serves the page. With a token in the address, stores it as a cookie and leads to the address without it, which can be
/// shared.
async fn index(
    State(server): State<Arc<Server>>,
    Query(query): Query<IndexQuery>,
    headers: HeaderMap,
) -> Response {
    let page = || page_file(&page::INDEX);
    let Access::Local(access) = &server.access else { return page() };
    match query.token {
        Some(token) if access.is_token(&token) => see_page(&access.set_cookie()),
        Some(_) => Refused::Token.into_response(),
        None => match access.check_cookie(&headers) {
            Ok(()) => page(),
            Err(refused) => refused.into_response(),
        },
    }
}

fn see_page(cookie: &str) -> Response {
    (StatusCode::SEE_OTHER, [(SET_COOKIE, cookie), (LOCATION, "/")]).into_response()
}

#[derive(Deserialize)]
struct Login {
    #[serde(default)]
    token: String,
}

/// Stores a token as a cookie, if it is accepted.
async fn login(State(server): State<Arc<Server>>, Form(login): Form<Login>) -> Response {
    let Access::Cluster(access) = &server.access else { return StatusCode::NOT_FOUND.into_response() };
    let token = login.token.trim();
    match access.check_token(token).await {
        Ok(()) => see_page(&ClusterAccess::set_cookie(token)),
        Err(refused) => login_page(StatusCode::FORBIDDEN, &refused.to_string()),
    }
}

/// The page that asks for a token. `error` is text.
fn login_page(status: StatusCode, error: &str) -> Response {
    let error = error.replace('&', "&amp;").replace('<', "&lt;");
    let text = page::LOGIN.replace("<!-- error -->", &error);
    (status, [(CONTENT_TYPE, "text/html; charset=utf-8")], text).into_response()
}

fn json(answer: Result<Value, AskError>) -> Response {
    match answer {
        Ok(answer) => ([(CONTENT_TYPE, "application/json")], answer.to_string()).into_response(),
        Err(error) => error.into_response(),
    }
}

async fn node(State(server): State<Arc<Server>>, Path(name): Path<String>) -> Response {
    json(server.reader.node(&name).await)
}

async fn pod(State(server): State<Arc<Server>>, Path((namespace, name)): Path<(String, String)>) -> Response {
    json(server.reader.pod(&namespace, &name).await)
}

#[derive(Deserialize)]
struct FitQuery {
    #[serde(default)]
    pod: String,
}

async fn fit(State(server): State<Arc<Server>>, Query(query): Query<FitQuery>) -> Response {
    json(server.reader.shape(&query.pod).await)
}

async fn pending(State(server): State<Arc<Server>>) -> Response {
    json(server.reader.pending().await)
}

/// One page that is kept up to date.
struct Stream {
    server: Arc<Server>,
    versions: tokio::sync::watch::Receiver<u64>,
    version: u64,
    /// Whether all for now was sent.
    has_all: bool,
    end: Instant,
    _permit: OwnedSemaphorePermit,
    _viewer: Viewer,
}

/// Sends the fleet, and then its changes, as server-sent events.
async fn events(State(server): State<Arc<Server>>, headers: HeaderMap) -> Response {
    let Ok(permit) = Arc::clone(&server.streams).try_acquire_owned() else {
        let text = format!("{STREAMS} pages are open already: close one\n");
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    };
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let known = last.and_then(|id| id.split_once('-')).filter(|(run, _)| *run == server.run.to_string());
    let version = known.and_then(|(_, version)| version.parse().ok()).unwrap_or(0);
    let versions = server.shared.versions();
    let (end, viewer) = (Instant::now() + STREAM_TIME, server.shared.viewer());
    let stream = Stream { server, versions, version, has_all: false, end, _permit: permit, _viewer: viewer };
    let events = unfold(stream, |mut stream| async move {
        // The browser asks again, for what changed since.
        if stream.has_all && Instant::now() >= stream.end {
            return None;
        }
        let text = stream.next().await;
        Some((Ok::<_, Infallible>(text), stream))
    });
    ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response()
}

impl Stream {
    /// Returns the next event.
    async fn next(&mut self) -> Bytes {
        if self.has_all {
            match timeout(KEEP_ALIVE, self.versions.changed()).await {
                Ok(_) => sleep(TOGETHER).await,
                Err(_) => return Bytes::from_static(b":\n\n"),
            }
        }
        self.versions.borrow_and_update();
        let fleet = self.server.shared.fleet();
        let delta = fleet.since(self.version, NODES_AT_ONCE);
        (self.version, self.has_all) = (delta.version, delta.is_last);
        let text = serde_json::to_string(&delta).unwrap_or_default();
        Bytes::from(format!("retry: {RETRY}\nid: {}-{}\ndata: {text}\n\n", self.server.run, self.version))
    }
}
