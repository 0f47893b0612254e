//! Tests of the server over real sockets, as clients see it. Time is paused where a test involves long waits.

mod calls;
mod limits;
mod pid_namespace;
mod server;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::{FutureExt as _, StreamExt as _};
use h2::RecvStream;
use h2::client::{ResponseFuture, SendRequest};
use hyper::{Method, Request};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};
use tonic::transport::Endpoint;

use super::*;
use crate::kubelet::proto::v1;
use crate::telemetry::registry::{Registry, samples};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const LIST: &str = "/v1.PodResourcesLister/List";

/// State of the test service, which has a method for each case.
#[derive(Default)]
struct State {
    /// The response of `Large`.
    large: Mutex<Bytes>,
    /// Calls of `Hang` in progress.
    hanging: AtomicUsize,
    /// Messages polled from `Count`.
    counted: AtomicUsize,
    /// Path, code and client's process of each call that ended.
    finished: Mutex<Vec<Finished>>,
}

type Finished = (String, Code, Option<i32>);

struct Hanging(Arc<State>);

impl Drop for Hanging {
    fn drop(&mut self) {
        self.0.hanging.fetch_sub(1, Ordering::SeqCst);
    }
}

struct TestService(Arc<State>);

impl Service for TestService {
    fn call(&self, call: Call) -> BoxFuture<'static, Result<Reply, Status>> {
        let state = Arc::clone(&self.0);
        async move {
            match call.names() {
                ("v1.PodResourcesLister", "List") => {
                    Ok(Reply::One(Bytes::from_static(b"\x0a\x03\x0a\x01p").into()))
                }
                ("t", "Echo") => Ok(Reply::One(call.message.into())),
                ("t", "Large") => Ok(Reply::One(state.large.lock().unwrap().clone().into())),
                // A new buffer each time.
                ("t", "Fresh") => Ok(Reply::One(Bytes::from(vec![1; 1 << 20]).into())),
                ("t", "Fail") => Err(Status::not_found("no such pod: \u{fc}ber %\n")),
                ("t", "Hang") => {
                    state.hanging.fetch_add(1, Ordering::SeqCst);
                    let _hanging = Hanging(state);
                    std::future::pending().await
                }
                ("t", "Count") => {
                    let count = move |_: usize| {
                        state.counted.fetch_add(1, Ordering::SeqCst);
                        Ok(Bytes::from(vec![7; 10_000]).into())
                    };
                    Ok(Reply::Many(Box::pin(futures::stream::iter(0..1000).map(count).boxed())))
                }
                ("t", "Half") => {
                    let parts = [Ok(Bytes::from_static(b"one").into()), Err(Status::data_loss("gone"))];
                    Ok(Reply::Many(Box::pin(futures::stream::iter(parts).boxed())))
                }
                ("t", _) => Err(call.unknown_method()),
                _ => Err(call.unknown_service()),
            }
        }
        .boxed()
    }

    fn finished(&self, path: &str, peer: &Peer, code: Code, _: Duration) {
        self.0.finished.lock().unwrap().push((path.to_owned(), code, peer.pid));
    }
}

struct Fixture {
    dir: TempDir,
    state: Arc<State>,
    registry: Registry,
    server: Server,
}

fn start(limits: Limits) -> Fixture {
    let (dir, state) = (TempDir::new().unwrap(), Arc::new(State::default()));
    let socket = Socket { path: dir.path().join("kubelet.sock"), mode: 0o755, group: None };
    let mut registry = Registry::default();
    let metrics = ServerMetrics::register(&mut registry, "test");
    let server = Server::start(socket, limits, Arc::new(TestService(state.clone())), metrics).unwrap();
    Fixture { dir, state, registry, server }
}

/// The outcome of a call.
#[derive(Debug, PartialEq)]
struct Response {
    http: u16,
    code: i32,
    text: String,
    messages: Vec<Vec<u8>>,
}

impl Response {
    fn status(code: Code, text: &str) -> Self {
        Self { http: 200, code: code as i32, text: text.into(), messages: vec![] }
    }

    fn ok(message: &[u8]) -> Self {
        Self { messages: vec![message.to_vec()], ..Self::status(Code::Ok, "") }
    }
}

impl Fixture {
    fn path(&self) -> PathBuf {
        self.dir.path().join("kubelet.sock")
    }

    async fn stream(&self) -> UnixStream {
        UnixStream::connect(self.path()).await.unwrap()
    }

    /// Connects with the window sizes that most clients use.
    async fn client(&self) -> SendRequest<Bytes> {
        let (client, connection) = h2::client::handshake(self.stream().await).await.unwrap();
        tokio::spawn(connection.map(drop));
        client.ready().await.unwrap()
    }

    async fn call(&self, path: &str, message: &[u8]) -> Response {
        call(&mut self.client().await, path, message).await
    }

    fn violations(&self) -> Vec<(&'static str, usize)> {
        let reasons = ["calls", "connections", "failures", "flood", "protocol", "silent", "stalled"];
        let counted = reasons.into_iter().filter_map(|reason| {
            let of = format!(r#"numacast_grpc_limits_exceeded_total{{component="test",reason="{reason}"}} "#);
            Some((reason, samples(&self.registry, &of).first()?.parse().unwrap()))
        });
        counted.collect()
    }

    fn finished(&self) -> Vec<Finished> {
        self.state.finished.lock().unwrap().clone()
    }

    fn hanging(&self) -> usize {
        self.state.hanging.load(Ordering::SeqCst)
    }
}

fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &length[..], message].concat().into()
}

fn request(path: &str) -> hyper::http::request::Builder {
    Request::post(format!("http://localhost{path}")).header("content-type", "application/grpc")
}

fn send(client: &mut SendRequest<Bytes>, request: Request<()>, body: Bytes) -> ResponseFuture {
    let (response, mut stream) = client.send_request(request, false).unwrap();
    stream.send_data(body, true).unwrap();
    response
}

async fn call(client: &mut SendRequest<Bytes>, path: &str, message: &[u8]) -> Response {
    *client = client.clone().ready().await.unwrap();
    let response = send(client, request(path).body(()).unwrap(), framed(message));
    answer(response).await.unwrap()
}

async fn answer(response: ResponseFuture) -> Result<Response, h2::Error> {
    let (head, mut body) = response.await?.into_parts();
    assert_eq!(head.headers["content-type"], "application/grpc");
    let mut bytes = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        body.flow_control().release_capacity(chunk.len())?;
        bytes.extend_from_slice(&chunk);
    }
    let trailers = body.trailers().await?.unwrap_or_else(|| head.headers.clone());
    let status = Status::from_header_map(&trailers).unwrap();
    let mut messages = Vec::new();
    while let [0, a, b, c, d, ..] = bytes[..] {
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        messages.push(bytes.drain(..5 + length).skip(5).collect());
    }
    assert!(bytes.is_empty(), "{bytes:?}");
    let (code, text) = (status.code() as i32, status.message().to_owned());
    Ok(Response { http: head.status.as_u16(), code, text, messages })
}

fn own_pid() -> Option<i32> {
    i32::try_from(std::process::id()).ok()
}

/// Waits until the condition holds, without a timeout.
async fn until(what: impl Fn() -> bool) {
    while !what() {
        tokio::task::yield_now().await;
        sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until the other end closes the connection, whatever it sends before.
async fn closed(mut stream: UnixStream) {
    let mut rest = Vec::new();
    // The connection is reset if what we sent was not read.
    let _ = stream.read_to_end(&mut rest).await;
}

/// Makes a call and reads only the first bytes of the response.
async fn stall(client: &mut SendRequest<Bytes>, path: &str) -> RecvStream {
    *client = client.clone().ready().await.unwrap();
    let response = send(client, request(path).body(()).unwrap(), framed(b"")).await.unwrap();
    let mut body = response.into_body();
    assert!(body.data().await.unwrap().is_ok());
    body
}
