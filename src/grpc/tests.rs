//! Tests of the server over real sockets, as clients see it. Time is paused where a test involves long waits.

mod pod;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::{FutureExt as _, StreamExt as _};
use h2::RecvStream;
use h2::client::{ResponseFuture, SendRequest};
use hyper::{Method, Request};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::transport::Endpoint;

use super::*;
use crate::kubelet::proto::v1;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const LIST: &str = "/v1.PodResourcesLister/List";

/// State of the test service, which has a method for each case, and its observer.
#[derive(Default)]
struct Stage {
    /// The response of `Large`.
    large: Mutex<Bytes>,
    /// Calls of `Hang` in progress.
    hanging: AtomicUsize,
    /// Messages polled from `Count`.
    counted: AtomicUsize,
    ended: Mutex<Vec<(String, Code, usize)>>,
    offences: Mutex<BTreeMap<&'static str, usize>>,
}

struct Hanging(Arc<Stage>);

impl Drop for Hanging {
    fn drop(&mut self) {
        self.0.hanging.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Play(Arc<Stage>);

impl Service for Play {
    fn call(&self, call: Call) -> BoxFuture<'static, Result<Reply, Status>> {
        let stage = Arc::clone(&self.0);
        async move {
            match call.names() {
                ("v1.PodResourcesLister", "List") => {
                    Ok(Reply::One(Bytes::from_static(b"\x0a\x03\x0a\x01p").into()))
                }
                ("t", "Echo") => Ok(Reply::One(call.message.into())),
                ("t", "Large") => Ok(Reply::One(stage.large.lock().unwrap().clone().into())),
                // A new buffer each time.
                ("t", "Fresh") => Ok(Reply::One(Bytes::from(vec![1; 1 << 20]).into())),
                ("t", "Fail") => Err(Status::not_found("no such pod: \u{fc}ber %\n")),
                ("t", "Hang") => {
                    stage.hanging.fetch_add(1, Ordering::SeqCst);
                    let _hanging = Hanging(stage);
                    std::future::pending().await
                }
                ("t", "Count") => {
                    let count = move |_: usize| {
                        stage.counted.fetch_add(1, Ordering::SeqCst);
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
}

impl Observer for Stage {
    fn finished(&self, path: &str, _: &Peer, code: Code, bytes: usize, _: Duration) {
        self.ended.lock().unwrap().push((path.to_owned(), code, bytes));
    }

    fn offence(&self, offence: Offence, peer: &Peer) {
        assert_eq!(peer.pid, i32::try_from(std::process::id()).ok(), "{peer}");
        *self.offences.lock().unwrap().entry(offence.as_str()).or_default() += 1;
    }
}

struct Fixture {
    dir: TempDir,
    stage: Arc<Stage>,
    server: Server,
}

fn start(limits: Limits) -> Fixture {
    let (dir, stage) = (TempDir::new().unwrap(), Arc::new(Stage::default()));
    let socket = Socket { path: dir.path().join("kubelet.sock"), mode: 0o755, group: None };
    let server = Server::start(socket, limits, Arc::new(Play(stage.clone())), stage.clone()).unwrap();
    Fixture { dir, stage, server }
}

/// The outcome of a call.
#[derive(Debug, PartialEq)]
struct Answer {
    http: u16,
    code: i32,
    text: String,
    messages: Vec<Vec<u8>>,
}

impl Answer {
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

    async fn call(&self, path: &str, message: &[u8]) -> Answer {
        call(&mut self.client().await, path, message).await
    }

    fn offences(&self) -> Vec<(&'static str, usize)> {
        self.stage.offences.lock().unwrap().iter().map(|(what, count)| (*what, *count)).collect()
    }

    fn ended(&self) -> Vec<(String, Code, usize)> {
        self.stage.ended.lock().unwrap().clone()
    }

    fn hanging(&self) -> usize {
        self.stage.hanging.load(Ordering::SeqCst)
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

async fn call(client: &mut SendRequest<Bytes>, path: &str, message: &[u8]) -> Answer {
    *client = client.clone().ready().await.unwrap();
    let response = send(client, request(path).body(()).unwrap(), framed(message));
    answer(response).await.unwrap()
}

async fn answer(response: ResponseFuture) -> Result<Answer, h2::Error> {
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
    Ok(Answer { http: head.status.as_u16(), code, text, messages })
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

#[tokio::test]
async fn a_client_of_the_kubelet_is_answered() {
    let server = start(Limits::default());
    let channel = Endpoint::from_shared(format!("unix://{}", server.path().display())).unwrap();
    let channel = channel.connect().await.unwrap();
    let mut client = v1::pod_resources_lister_client::PodResourcesListerClient::new(channel);
    let answer = client.list(v1::ListPodResourcesRequest {}).await.unwrap().into_inner();
    assert_eq!(answer.pod_resources[0].name, "p");
    let error = client.get_allocatable_resources(v1::AllocatableResourcesRequest {}).await.unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (Code::Unimplemented, "unknown service v1.PodResourcesLister")
    );
    let ended = server.ended();
    assert_eq!(ended[0], (LIST.into(), Code::Ok, 5));
    assert_eq!(ended[1].1, Code::Unimplemented);
}

#[tokio::test]
async fn codes_and_texts_are_those_of_the_kubelets_library() {
    let server = start(Limits::default());
    let mut client = server.client().await;
    let unimplemented = |text| Answer::status(Code::Unimplemented, text);
    assert_eq!(call(&mut client, "/t/Echo", b"x").await, Answer::ok(b"x"));
    assert_eq!(call(&mut client, "/t/Echo", b"").await, Answer::ok(b""));
    assert_eq!(call(&mut client, "/t/No", b"").await, unimplemented("unknown method No for service t"));
    assert_eq!(call(&mut client, "/a/b/C", b"").await, unimplemented("unknown service a/b"));
    assert_eq!(call(&mut client, "/List", b"").await, unimplemented("malformed method name: \"/List\""));
    let fail = Answer::status(Code::NotFound, "no such pod: \u{fc}ber %\n");
    assert_eq!(call(&mut client, "/t/Fail", b"").await, fail);
    let half = Answer { messages: vec![b"one".to_vec()], ..Answer::status(Code::DataLoss, "gone") };
    assert_eq!(call(&mut client, "/t/Half", b"").await, half);

    let long = format!("/{}", "x/".repeat(300));
    assert!(call(&mut client, &long, b"").await.text.starts_with("malformed method name"));
    // The 128th byte is inside a character.
    let long = format!("/t/{}", "\u{fc}".repeat(400));
    assert!(call(&mut client, &long, b"").await.text.len() < 200);

    let cases = [
        (
            request(LIST).method(Method::GET),
            framed(b""),
            405,
            Code::Internal,
            "Received a HEADERS frame with :method \"GET\" which should be POST",
        ),
        (
            Request::post(format!("http://localhost{LIST}")),
            framed(b""),
            415,
            Code::InvalidArgument,
            "invalid gRPC request content-type \"\"",
        ),
        (
            Request::post(format!("http://localhost{LIST}")).header("content-type", "application/grpcx"),
            framed(b""),
            415,
            Code::InvalidArgument,
            "invalid gRPC request content-type \"application/grpcx\"",
        ),
        (
            request(LIST).header("grpc-timeout", "5x"),
            framed(b""),
            400,
            Code::Internal,
            "malformed grpc-timeout: transport: timeout unit is not recognized: \"5x\"",
        ),
        (
            request(LIST).header("grpc-encoding", "gzip"),
            framed(b""),
            200,
            Code::Unimplemented,
            "grpc: Decompressor is not installed for grpc-encoding \"gzip\"",
        ),
        (
            request(LIST),
            Bytes::from_static(b"\x01\0\0\0\0"),
            200,
            Code::Internal,
            "grpc: compressed flag set with identity or empty encoding",
        ),
        (
            request(LIST),
            Bytes::from_static(b"\x07\0\0\0\0"),
            200,
            Code::Internal,
            "grpc: received unexpected payload format 7",
        ),
        (
            request(LIST),
            Bytes::from_static(b"\0\0\x40\0\x01"),
            200,
            Code::ResourceExhausted,
            "grpc: received message larger than max (4194305 vs. 4194304)",
        ),
        (
            request(LIST),
            Bytes::new(),
            200,
            Code::Internal,
            "cardinality violation: received no request message from non-client-streaming RPC",
        ),
        (request(LIST), Bytes::from_static(b"\0\0\0\0\x09abc"), 200, Code::Internal, "unexpected EOF"),
    ];
    for (request, body, http, code, text) in cases {
        let answer = answer(send(&mut client, request.body(()).unwrap(), body)).await.unwrap();
        assert_eq!(answer, Answer { http, ..Answer::status(code, text) });
    }
    // The connection still works.
    let request = request("/t/Echo").header("grpc-encoding", "identity").header("grpc-timeout", "99999999H");
    let answer = answer(send(&mut client, request.body(()).unwrap(), framed(b"y"))).await.unwrap();
    assert_eq!(answer, Answer::ok(b"y"));
}

#[test]
fn timeouts_are_read_as_the_specification_has_them() {
    use super::call::decode_timeout;
    for (text, expected) in [
        ("1H", Some(Duration::from_secs(3600))),
        ("2M", Some(Duration::from_secs(120))),
        ("00000003S", Some(Duration::from_secs(3))),
        ("4m", Some(Duration::from_millis(4))),
        ("5u", Some(Duration::from_micros(5))),
        ("99999999n", Some(Duration::from_nanos(99_999_999))),
        ("", None),
        ("S", None),
        ("123456789S", None),
        ("-1S", None),
        ("+1S", None),
        ("1\u{fc}", None),
    ] {
        assert_eq!(decode_timeout(text).ok(), expected, "{text}");
    }
}

#[tokio::test]
async fn long_messages_are_taken_but_not_many_at_once() {
    let server = start(Limits::default());
    let message = vec![5; 4 << 20];
    assert_eq!(server.call("/t/Echo", &message).await, Answer::ok(&message));
    // Three that are begun and not finished: there is room for two.
    let mut client = server.client().await;
    let mut begun = Vec::new();
    for _ in 0..3 {
        let (response, mut body) = client.send_request(request("/t/Echo").body(()).unwrap(), false).unwrap();
        body.send_data(framed(&message).slice(..10_000), false).unwrap();
        begun.push((response, body));
        // Ensures that they are received in this order.
        assert_eq!(call(&mut client, "/t/Echo", b"x").await, Answer::ok(b"x"));
    }
    let (third, _) = begun.pop().unwrap();
    let refused = Answer::status(Code::ResourceExhausted, "too many long messages at once");
    assert_eq!(answer(third).await.unwrap(), refused);
    drop(begun);
    until(|| server.ended().iter().filter(|(_, code, _)| *code == Code::Cancelled).count() == 2).await;
    assert_eq!(server.call("/t/Echo", &message).await, Answer::ok(&message));
}

#[tokio::test]
async fn what_comes_behind_the_message_is_thrown_away() {
    let server = start(Limits::default());
    let mut client = server.client().await;
    let mut trailers = hyper::HeaderMap::new();
    trailers.insert("x", "y".parse().unwrap());
    // Before the response, and while it is sent.
    for path in ["/t/Hang", "/t/Large"] {
        *server.stage.large.lock().unwrap() = vec![1; 1 << 20].into();
        client = client.ready().await.unwrap();
        let (response, mut body) = client.send_request(request(path).body(()).unwrap(), false).unwrap();
        body.send_data(framed(b""), false).unwrap();
        if path == "/t/Hang" {
            until(|| server.hanging() == 1).await;
        }
        // More than the client's window allows.
        for _ in 0..20 {
            body.reserve_capacity(10_000);
            while body.capacity() < 10_000 {
                std::future::poll_fn(|cx| body.poll_capacity(cx)).await.unwrap().unwrap();
            }
            body.send_data(vec![0; 10_000].into(), false).unwrap();
        }
        body.send_trailers(trailers.clone()).unwrap();
        if path == "/t/Hang" {
            assert_eq!(call(&mut client, "/t/Echo", b"x").await, Answer::ok(b"x"));
        } else {
            assert_eq!(answer(response).await.unwrap(), Answer::ok(&vec![1; 1 << 20]));
        }
    }
    assert_eq!(server.offences(), []);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_the_call() {
    let server = start(Limits::default());
    let mut client = server.client().await;
    let request = request("/t/Hang").header("grpc-timeout", "700m").body(()).unwrap();
    let begun = Instant::now();
    let answer = answer(send(&mut client, request, framed(b""))).await.unwrap();
    assert_eq!(answer, Answer::status(Code::DeadlineExceeded, "context deadline exceeded"));
    assert!((700..800).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
    assert_eq!(server.hanging(), 0);
}

#[tokio::test]
async fn who_leaves_takes_its_calls_along() {
    let server = start(Limits::default());
    let mut client = server.client().await;
    let body = || request("/t/Hang").body(()).unwrap();
    let (one, two) = (send(&mut client, body(), framed(b"")), send(&mut client, body(), framed(b"")));
    until(|| server.hanging() == 2).await;
    drop(one);
    until(|| server.hanging() == 1).await;
    drop((two, client));
    until(|| server.hanging() == 0).await;
    // The second one ended with its connection.
    until(|| server.ended().len() == 2).await;
    assert!(server.ended().iter().all(|ended| *ended == ("/t/Hang".into(), Code::Cancelled, 0)));
    assert_eq!(server.offences(), []);
}

/// Counts when the buffer it owns is dropped.
struct Watched(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

/// Makes a call and reads only the first bytes of the response.
async fn stall(client: &mut SendRequest<Bytes>, path: &str) -> RecvStream {
    *client = client.clone().ready().await.unwrap();
    let response = send(client, request(path).body(()).unwrap(), framed(b"")).await.unwrap();
    let mut body = response.into_body();
    assert!(body.data().await.unwrap().is_ok());
    body
}

#[tokio::test(start_paused = true)]
async fn one_buffer_goes_to_all_and_is_free_when_the_last_who_stalls_is_cut() {
    let server = start(Limits::default());
    let gone = Arc::new(AtomicUsize::new(0));
    let large: Vec<u8> = (0..5 << 20).map(|at| (at % 251) as u8).collect();
    *server.stage.large.lock().unwrap() = Bytes::from_owner(Watched(large.clone(), Arc::clone(&gone)));
    let mut stalled = Vec::new();
    for _ in 0..20 {
        let mut client = server.client().await;
        let body = stall(&mut client, "/t/Large").await;
        stalled.push((client, body));
    }
    // It is one response, and others receive it meanwhile.
    for _ in 0..3 {
        assert_eq!(server.call("/t/Large", b"").await, Answer::ok(&large));
    }
    *server.stage.large.lock().unwrap() = Bytes::new();
    assert_eq!((gone.load(Ordering::SeqCst), server.offences()), (0, vec![]));
    let begun = Instant::now();
    until(|| gone.load(Ordering::SeqCst) == 1).await;
    assert!((8..=12).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert_eq!(server.offences(), [("stalled", 20)]);
}

#[tokio::test(start_paused = true)]
async fn what_stalled_clients_hold_is_bounded() {
    // Half of it for one client: two responses of 1 MiB before a third has to wait.
    let server = start(Limits { answers: 4 << 20, ..Limits::default() });
    let mut stalled = Vec::new();
    for _ in 0..2 {
        let mut client = server.client().await;
        let body = stall(&mut client, "/t/Fresh").await;
        stalled.push((client, body));
    }
    let begun = Instant::now();
    let answer = server.call("/t/Fresh", b"").await;
    assert_eq!(answer, Answer::ok(&vec![1; 1 << 20]), "after those who stalled were cut");
    assert!((1..=4).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert_eq!(server.offences(), [("stalled", 2)]);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_its_turn_too_long_is_refused() {
    let server = start(Limits { running_each: 2, ..Limits::default() });
    let mut client = server.client().await;
    let hang = || request("/t/Hang").body(()).unwrap();
    let _hanging = [send(&mut client, hang(), framed(b"")), send(&mut client, hang(), framed(b""))];
    until(|| server.hanging() == 2).await;
    let text = "too many calls: none was free in 5s";
    assert_eq!(server.call("/t/Echo", b"").await, Answer::status(Code::ResourceExhausted, text));
    assert_eq!(server.offences(), [("calls", 1)]);
}

#[tokio::test]
async fn open_calls_are_bounded() {
    let server = start(Limits { open_each: 3, running_each: 1, ..Limits::default() });
    let mut client = server.client().await;
    let hang = || request("/t/Hang").body(()).unwrap();
    let hanging: Vec<_> = (0..3).map(|_| send(&mut client, hang(), framed(b""))).collect();
    let refused = Answer::status(Code::ResourceExhausted, "too many calls are open");
    assert_eq!(call(&mut client, "/t/Echo", b"").await, refused);
    drop(hanging);
    until(|| server.ended().len() == 4).await;
    assert_eq!(call(&mut client, "/t/Echo", b"").await, Answer::ok(b""));
}

#[tokio::test(start_paused = true)]
async fn calls_that_fail_by_the_hundred_are_slowed_down() {
    let server = start(Limits::default());
    let mut client = server.client().await;
    let begun = Instant::now();
    for _ in 0..1000 {
        assert_eq!(call(&mut client, "/t/No", b"").await.code, Code::Unimplemented as i32);
    }
    // 400 of them at once, then 200 per second.
    assert!((2900..3100).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
    assert_eq!(server.offences(), [("failures", 600)]);
}

/// Even after thousands of failed and abandoned calls.
#[tokio::test(start_paused = true)]
async fn a_call_that_fails_is_answered_within_the_patience() {
    let server = start(Limits::default());
    let mut client = server.client().await;
    for _ in 0..3000 {
        let request = request("/t/No").header("grpc-timeout", "1m").body(()).unwrap();
        client = client.ready().await.unwrap();
        answer(send(&mut client, request, framed(b""))).await.unwrap();
    }
    let begun = Instant::now();
    assert_eq!(call(&mut client, "/t/No", b"").await.code, Code::Unimplemented as i32);
    assert_eq!(begun.elapsed().as_secs(), 5, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn connections_that_come_and_go_are_taken_at_a_steady_rate() {
    let (server, begun) = (start(Limits::default()), Instant::now());
    for _ in 0..AT_ONCE as usize + 1000 {
        assert_eq!(server.call("/t/Echo", b"x").await, Answer::ok(b"x"));
    }
    assert!((900..1100).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn two_hundred_connections_of_one_process_are_served() {
    let server = start(Limits::default());
    let clients = (0..200).map(|_| async {
        let mut client = server.client().await;
        for _ in 0..20 {
            assert_eq!(call(&mut client, "/t/Echo", b"x").await, Answer::ok(b"x"));
        }
    });
    futures::future::join_all(clients).await;
    assert_eq!(server.offences(), []);
}

#[tokio::test(start_paused = true)]
async fn who_says_nothing_is_cut_and_who_has_spoken_may_be_silent() {
    let server = start(Limits::default());
    let mut spoken = server.client().await;
    let silent = server.stream().await;
    let mut half = server.stream().await;
    half.write_all(&PREFACE[..10]).await.unwrap();
    let begun = Instant::now();
    tokio::join!(closed(silent), closed(half));
    assert!((9..=11).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert_eq!(server.offences(), [("silent", 2)]);
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(call(&mut spoken, "/t/Echo", b"x").await, Answer::ok(b"x"));
}

#[tokio::test]
async fn garbage_ends_the_connection() {
    let server = start(Limits::default());
    let settings_on_a_stream = [PREFACE, b"\0\0\0\x04\0\0\0\0\x01"].concat();
    let too_long = [PREFACE, b"\x10\0\0\0\0\0\0\0\x01"].concat();
    let no_hpack = [PREFACE, b"\0\0\x03\x01\x05\0\0\0\x01\xff\xff\xff"].concat();
    let garbage =
        [&b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..], &settings_on_a_stream, &too_long, &no_hpack];
    for (count, bytes) in (1..).zip(garbage) {
        let mut stream = server.stream().await;
        stream.write_all(bytes).await.unwrap();
        closed(stream).await;
        assert_eq!(server.offences(), [("garbage", count)]);
    }
    // Connecting and disconnecting, as a probe does, is no offence.
    drop(server.stream().await);
    assert_eq!(server.call("/t/Echo", b"x").await, Answer::ok(b"x"));
    assert_eq!(server.offences(), [("garbage", garbage.len())]);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_pings_is_read_slowly() {
    let server = start(Limits::default());
    let mut stream = server.stream().await;
    stream.write_all(PREFACE).await.unwrap();
    let (mut answers, mut pings) = stream.into_split();
    let flood = tokio::spawn(async move {
        let many = b"\0\0\x08\x06\0\0\0\0\0 a ping ".repeat(1000);
        while pings.write_all(&many).await.is_ok() {}
    });
    let begun = Instant::now();
    // A burst of one second, and five seconds more.
    let mut rest = 6 * 65_536 * 17;
    let mut buffer = vec![0; 1 << 16];
    while rest > 0 {
        rest -= answers.read(&mut buffer).await.unwrap().min(rest);
    }
    assert!((4..=6).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    flood.abort();
}

#[tokio::test(start_paused = true)]
async fn who_never_reads_is_cut_though_no_answer_is_large() {
    let server = start(Limits::default());
    let mut stream = server.stream().await;
    stream.write_all(PREFACE).await.unwrap();
    let pings = b"\0\0\x08\x06\0\0\0\0\0 a ping ".repeat(1000);
    let begun = Instant::now();
    // The responses are not read.
    while stream.write_all(&pings).await.is_ok() {}
    assert!((9..=13).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert_eq!(server.offences(), [("stalled", 1)]);
}

#[tokio::test]
async fn one_client_has_so_many_connections_and_no_more() {
    let server = start(Limits { connections_each: 2, ..Limits::default() });
    let mut first = server.client().await;
    let mut second = server.client().await;
    assert_eq!(call(&mut first, "/t/Echo", b"1").await, Answer::ok(b"1"));
    let hanging = send(&mut second, request("/t/Hang").body(()).unwrap(), framed(b""));
    until(|| server.hanging() == 1).await;
    let mut third = server.client().await;
    assert_eq!(call(&mut third, "/t/Echo", b"3").await, Answer::ok(b"3"));
    assert!(first.ready().await.is_err(), "the oldest that was idle is closed");
    assert_eq!(server.offences(), [("connections", 1)]);
    assert_eq!(server.hanging(), 1);
    drop(hanging);
}

#[tokio::test]
async fn a_producer_sees_that_its_client_does_not_read() {
    let server = start(Limits::default());
    let mut client = server.client().await;
    let body = stall(&mut client, "/t/Count").await;
    // The client's window of 64 KiB, and the message that waits.
    for _ in 0..20 {
        assert_eq!(server.call("/t/Echo", b"x").await, Answer::ok(b"x"));
    }
    let asked = server.stage.counted.load(Ordering::SeqCst);
    assert!((6..=8).contains(&asked), "{asked}");
    drop(body);
    let all = server.call("/t/Count", b"").await;
    assert_eq!((all.code, all.messages.len()), (0, 1000));
    assert!(all.messages.iter().all(|message| *message == [7; 10_000]));
}

#[tokio::test]
async fn a_server_that_stops_finishes_what_it_began() {
    let server = start(Limits::default());
    let large = vec![3; 1 << 20];
    *server.stage.large.lock().unwrap() = large.clone().into();
    let mut client = server.client().await;
    let response = send(&mut client, request("/t/Large").body(()).unwrap(), framed(b""));
    let (path, dir) = (server.path(), server.dir);
    // Its headers have arrived, so it was begun.
    let response = response.await.unwrap();
    let stopping = tokio::spawn(server.server.stop());
    let mut body = response.into_body();
    let mut bytes = 0;
    while let Some(chunk) = body.data().await {
        let chunk = chunk.unwrap();
        body.flow_control().release_capacity(chunk.len()).unwrap();
        bytes += chunk.len();
    }
    assert_eq!(bytes, large.len() + 5);
    assert_eq!(body.trailers().await.unwrap().unwrap()["grpc-status"], "0");
    stopping.await.unwrap();
    let refused = UnixStream::connect(&path).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "the file stays");
    drop(dir);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stops_does_not_wait_for_ever() {
    let server = start(Limits::default());
    let mut client = server.client().await;
    let response = send(&mut client, request("/t/Hang").body(()).unwrap(), framed(b""));
    until(|| server.hanging() == 1).await;
    let begun = Instant::now();
    server.server.stop().await;
    assert!((1..=3).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert!(response.await.is_err());
    assert_eq!(server.stage.hanging.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn cancelled_by_the_thousand_leaves_nothing_behind() {
    let server = start(Limits::default());
    let mut client = server.client().await;
    for _ in 0..2000 {
        client = client.ready().await.unwrap();
        let response = send(&mut client, request("/t/Hang").body(()).unwrap(), framed(b""));
        drop(response);
    }
    // Each call was either begun or refused with ENHANCE_YOUR_CALM.
    let answer = server.call("/t/Echo", b"x").await;
    assert_eq!(answer, Answer::ok(b"x"));
    until(|| server.hanging() == 0).await;
}

#[tokio::test]
async fn the_path_comes_back_when_it_is_removed() {
    let server = start(Limits::default());
    std::fs::remove_file(server.path()).unwrap();
    until(|| server.path().exists()).await;
    assert_eq!(server.call("/t/Echo", b"x").await, Answer::ok(b"x"));
}

#[tokio::test]
async fn it_is_known_whether_the_path_leads_here() {
    let server = start(Limits::default());
    assert!(server.server.serves());
    std::fs::remove_file(server.path()).unwrap();
    let other = std::os::unix::net::UnixListener::bind(server.path()).unwrap();
    until(|| !server.server.serves()).await;
    drop(other);
    std::fs::remove_file(server.path()).unwrap();
    until(|| server.server.serves()).await;
    assert_eq!(server.call("/t/Echo", b"x").await, Answer::ok(b"x"));
}

#[tokio::test(start_paused = true)]
async fn a_call_is_not_waited_for_for_ever_its_turn_included() {
    let server = start(Limits { running_each: 1, ..Limits::default() });
    let mut client = server.client().await;
    let first = send(&mut client, request("/t/Hang").body(()).unwrap(), framed(b""));
    until(|| server.hanging() == 1).await;
    // The second call gets its turn when the first is given up.
    sleep(Duration::from_secs(4)).await;
    let begun = Instant::now();
    let second = send(&mut client, request("/t/Hang").body(()).unwrap(), framed(b""));
    for (response, seconds) in [(first, 4_u128), (second, 8)] {
        let head = response.await.unwrap();
        assert_eq!(head.headers()["grpc-status"], "14");
        assert_eq!(head.headers()["grpc-message"], "numacast:%20no%20answer%20in%208s");
        let took = begun.elapsed().as_millis().abs_diff(1000 * seconds);
        assert!(took < 500, "{:?}", begun.elapsed());
    }
    assert_eq!(server.hanging(), 0);
}

/// In addition there are h2's buffers: 24 KiB for each connection, of which an idle one uses the first pages.
#[test]
fn a_connection_and_a_call_keep_little() {
    fn connection<F, A, B, C>(_: impl Fn(A, B, C) -> F) -> usize {
        size_of::<F>()
    }
    fn call<F, A, B, C, D>(_: impl Fn(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }
    let sizes = (connection(super::connection::serve), call(super::call::serve));
    assert!(sizes.0 <= 6 << 10 && sizes.1 <= 2 << 10, "{sizes:?}");
}
