//! The heap that the gRPC server uses for calls and connections of every kind, measured by the allocator.
//!
//! A separate program, since the whole heap is counted. The clients write raw frames and keep no allocations.

#![allow(clippy::unwrap_used)] // a failing test shows where

mod frames;

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::future::BoxFuture;
use hyper::body::Bytes;
use numacast::grpc::{Call, Limits, Reply, Server, ServerMetrics, Service, Socket};
use numacast::telemetry::registry::Registry;
use peak_alloc::PeakAlloc;
use tempfile::TempDir;
use tonic::Status;

use frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, SETTINGS, field, frame, indexed,
    request,
};

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Number of connections, and of calls on each.
const CONNECTIONS: usize = 16;
const CALLS: usize = 128;
/// How long the server may take to free memory.
const FREE_TIMEOUT: Duration = Duration::from_secs(5);
/// Upper bound for a response, also on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A service whose methods are selected by name.
struct Play {
    large: Bytes,
}

impl Service for Play {
    fn call(&self, call: Call) -> BoxFuture<'static, Result<Reply, Status>> {
        let large = self.large.clone();
        Box::pin(async move {
            match call.names().1 {
                "Hang" => std::future::pending().await,
                "Watch" => Ok(Reply::Many(Box::pin(futures::stream::pending().boxed()))),
                "Large" => Ok(Reply::One(large.into())),
                "Empty" => Ok(Reply::One(Bytes::new().into())),
                _ => Err(call.unknown_method()),
            }
        })
    }
}

/// A server on its own thread.
struct Running {
    dir: TempDir,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    fn start(limits: Limits) -> Self {
        let dir = TempDir::new().unwrap();
        let socket = Socket { path: dir.path().join("socket"), mode: 0o700, group: None };
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (ready, listening) = std::sync::mpsc::channel();
        let serve = async move {
            let play = Arc::new(Play { large: vec![7; 1 << 20].into() });
            let metrics = ServerMetrics::register(&mut Registry::default(), "proxy");
            let _server = Server::start(socket, limits, play, metrics).unwrap();
            ready.send(()).unwrap();
            let _ = stopped.await;
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let thread = std::thread::spawn(move || runtime.block_on(serve));
        listening.recv().unwrap();
        Self { dir, stop: Some(stop), thread: Some(thread) }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("socket")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

/// A client that sends raw frames.
struct Client(UnixStream);

impl Client {
    /// Connects with a stream window of this many bytes.
    fn connect(path: &Path, window: u16) -> Self {
        let mut client = Self(UnixStream::connect(path).unwrap());
        client.0.set_read_timeout(Some(TIMEOUT)).unwrap();
        let [high, low] = window.to_be_bytes();
        client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        client.send(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, high, low]));
        client.send(&frame(SETTINGS, 1, 0, &[]));
        client
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// Sends, ignoring errors: the server may have closed the connection.
    fn try_send(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes);
    }

    /// Waits until the server has read everything and the tasks woken by it have run. The server has one
    /// thread, so this also holds for what other clients sent before.
    fn settle(&mut self) {
        self.try_settle().unwrap();
    }

    /// As `settle`. Fails if the server has closed the connection.
    fn try_settle(&mut self) -> std::io::Result<()> {
        for round in 0..10 {
            let ping = [round; 8];
            self.0.write_all(&frame(frames::PING, 0, 0, &ping))?;
            self.read_until(&ping)?;
        }
        Ok(())
    }

    fn read_until(&mut self, pong: &[u8]) -> std::io::Result<()> {
        loop {
            let (mut head, mut payload) = ([0; 9], [0; 1 << 14]);
            self.0.read_exact(&mut head)?;
            let length = usize::from(head[1]) << 8 | usize::from(head[2]);
            self.0.read_exact(&mut payload[..length])?;
            if head[3] == frames::PING && payload[..length] == *pong {
                return Ok(());
            }
        }
    }
}

/// The bytes that a client sends for a call on a given stream: first, and after those have been read.
type Script = fn(u32) -> [Vec<u8>; 2];

/// One kind of call.
struct Kind {
    name: &'static str,
    script: Script,
    /// Maximum number of one client's calls that run at a time.
    running: usize,
}

impl Kind {
    const fn new(name: &'static str, script: Script) -> Self {
        Self { name, script, running: 4096 }
    }

    /// Lets one of them run while the others wait.
    const fn waiting(self) -> Self {
        Self { running: 1, ..self }
    }
}

/// Maximum memory of any call, in bytes: see `Limits::open_calls`.
const CALL: usize = 3 << 10;

/// Maximum size of a frame.
const FRAME: usize = 1 << 14;

/// Encodes the header of a call, with additional fields.
fn head(stream: u32, method: &str, more: &[u8]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &[&request(method)[..], more].concat())
}

/// Encodes an empty message.
fn empty(flags: u8, stream: u32) -> Vec<u8> {
    frame(DATA, flags, stream, &[0; 5])
}

/// Encodes a complete call to a method.
fn unary(stream: u32, method: &str) -> Vec<u8> {
    [head(stream, method, &[]), empty(END_STREAM, stream)].concat()
}

/// Encodes a complete call with additional fields.
fn with(stream: u32, more: &[u8]) -> [Vec<u8>; 2] {
    [[head(stream, "Hang", more), empty(END_STREAM, stream)].concat(), Vec::new()]
}

/// Encodes a call with as many trailers as fit.
fn trailers(stream: u32, method: &str) -> [Vec<u8>; 2] {
    let begun = [head(stream, method, &[]), empty(0, stream)].concat();
    [begun, frame(HEADERS, END_HEADERS | END_STREAM, stream, &short_fields(FIELDS))]
}

fn trailers_in_parts(stream: u32) -> [Vec<u8>; 2] {
    let fields = short_fields(FIELDS);
    let (first, rest) = fields.split_at(fields.len() / 3);
    let (second, third) = rest.split_at(fields.len() / 3);
    let parts = [
        frame(HEADERS, END_STREAM, stream, first),
        frame(CONTINUATION, 0, stream, second),
        frame(CONTINUATION, END_HEADERS, stream, third),
    ];
    [[head(stream, "Hang", &[]), empty(0, stream)].concat(), parts.concat()]
}

/// Encodes a request that is rejected because `name` has this value.
fn rejected(stream: u32, name: &[u8], value: u8) -> [Vec<u8>; 2] {
    let value = field(name, &[value; 7000]);
    let mut block = request("Hang");
    if name == b"content-type" {
        // It is the last field.
        block.truncate(block.len() - field(name, b"application/grpc").len());
    }
    [frame(HEADERS, END_HEADERS | END_STREAM, stream, &[block, value].concat()), Vec::new()]
}

/// Encodes `count` fields with distinct short names.
fn short_fields(count: usize) -> Vec<u8> {
    let letter = |at: usize| b'a' + u8::try_from(at % 26).unwrap();
    (0..count).flat_map(|at| field(&[letter(at / 26), letter(at)], b"")).collect()
}

/// As many fields as fit into 8 KiB by HTTP/2's size rules (RFC 9113, 6.5.2).
const FIELDS: usize = 230;

const KINDS: &[Kind] = &[
    Kind::new("at work", |stream| [unary(stream, "Hang"), Vec::new()]),
    Kind::new("that is queued", |stream| [unary(stream, "Hang"), Vec::new()]).waiting(),
    Kind::new("that is a watch", |stream| [unary(stream, "Watch"), Vec::new()]),
    Kind::new("whose response is not read", |stream| [unary(stream, "Large"), Vec::new()]),
    Kind::new("with a long field", |stream| with(stream, &field(b"x", &[b'y'; 7000]))),
    Kind::new("with many fields", |stream| with(stream, &short_fields(FIELDS - 20))),
    Kind::new("with trailers", |stream| trailers(stream, "Hang")),
    Kind::new("that waits, with trailers", |stream| trailers(stream, "Hang")).waiting(),
    Kind::new("that is a watch, with trailers", |stream| trailers(stream, "Watch")),
    Kind::new("whose response is not read, with trailers", |stream| trailers(stream, "Large")),
    Kind::new("with trailers in many frames", trailers_in_parts),
    Kind::new("with trailers at once", |stream| [trailers(stream, "Hang").concat(), Vec::new()]),
    Kind::new("with data behind its message", |stream| {
        [[head(stream, "Hang", &[]), empty(0, stream)].concat(), frame(DATA, 0, stream, &[1; 256])]
    }),
    Kind::new("with a frame full of data behind its message", |stream| {
        // A message of one byte; an empty one keeps no buffer.
        let mut data = [0; FRAME];
        data[4] = 1;
        let data = frame(DATA, 0, stream, &data);
        [[head(stream, "Hang", &[]), data].concat(), Vec::new()]
    }),
    Kind::new("of which the head came", |stream| [head(stream, "Hang", &[]), Vec::new()]),
    Kind::new("of which half a message came", |stream| {
        let half = frame(DATA, 0, stream, &[0, 0, 0, 1, 0, 1, 2, 3]);
        [[head(stream, "Hang", &[]), half].concat(), Vec::new()]
    }),
    Kind::new("that is rejected for its type", |stream| rejected(stream, b"content-type", 0x80)),
    Kind::new("that is rejected for its timeout", |stream| rejected(stream, b"grpc-timeout", b'9')),
    Kind::new("that is rejected for its encoding", |stream| rejected(stream, b"grpc-encoding", b'z')),
    Kind::new("that was reset", |stream| {
        [unary(stream, "Hang"), frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])]
    }),
];

/// Waits until the memory per item is at most `bound`, and returns it.
fn measure(before: usize, count: usize, bound: usize) -> usize {
    let begun = Instant::now();
    loop {
        let each = HEAP.current_usage().saturating_sub(before) / count;
        if each <= bound || begun.elapsed() > FREE_TIMEOUT {
            return each;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn limits(running: usize) -> Limits {
    let long = Duration::from_secs(600);
    let most = Limits::default().open_calls_per_client;
    // Unread responses are not the subject here.
    let running = running.min(most);
    Limits {
        queue_timeout: long,
        response_timeout: long,
        read_timeout: long,
        response_bytes: 1 << 30,
        running_calls: running,
        running_calls_per_client: running,
        ..Limits::default()
    }
}

fn call(kind: &Kind) -> usize {
    let server = Running::start(limits(kind.running));
    let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| Client::connect(&server.path(), 0)).collect();
    clients.iter_mut().for_each(Client::settle);
    let before = HEAP.current_usage();
    for part in 0..2 {
        for number in 0..CALLS {
            let stream = 2 * u32::try_from(number).unwrap() + 1;
            let bytes = &(kind.script)(stream)[part];
            clients.iter_mut().for_each(|client| client.send(bytes));
            if bytes.len() > FRAME {
                // The connection's window has room for three of them.
                clients.iter_mut().for_each(Client::settle);
            }
        }
        clients.iter_mut().for_each(Client::settle);
    }
    measure(before, CONNECTIONS * CALLS, CALL)
}

/// What a client makes a connection keep in memory.
struct ConnectionKind {
    name: &'static str,
    script: fn(&mut Client),
    bound: usize,
}

const CONNECTION_KINDS: &[ConnectionKind] = &[
    ConnectionKind { name: "idle", script: Client::settle, bound: 40 << 10 },
    ConnectionKind {
        name: "idle after 128 calls at once",
        script: |client| {
            for number in 0..128 {
                client.send(&unary(2 * number + 1, "Empty"));
            }
            client.settle();
        },
        bound: 192 << 10,
    },
    ConnectionKind {
        name: "with a path in the table from each of 15 reads",
        script: |client| paths(client, 15),
        bound: 320 << 10,
    },
    ConnectionKind {
        name: "with a path in the table from each of 90 reads",
        script: |client| paths(client, 90),
        bound: 320 << 10,
    },
    ConnectionKind {
        name: "half a frame of fields",
        script: |client| {
            client.settle();
            let whole = head(1, "Hang", &field(b"x", &[b'y'; 16_000]));
            client.send(&whole[..16_000]);
        },
        bound: 64 << 10,
    },
    ConnectionKind {
        name: "fields in many frames, without an end",
        script: |client| {
            client.settle();
            let block = [&request("Hang")[..], &field(b"x", &[b'y'; 120_000])].concat();
            client.send(&frame(HEADERS, 0, 1, &block[..16_000]));
            for at in 1..5 {
                client.try_send(&frame(CONTINUATION, 0, 1, &block[16_000 * at..16_000 * (at + 1)]));
            }
        },
        bound: 192 << 10,
    },
];

/// Adds this many paths to the dynamic table, far from one another.
fn paths(client: &mut Client, count: u8) {
    let filler = frame(0x77, 0, 0, &[0; 16_000]);
    for number in 0..count {
        let path = [b'/', b'0' + number / 10, b'0' + number % 10];
        let block = [&[0x83, 0x86][..], &indexed(b":path", &path)].concat();
        client.try_send(&frame(HEADERS, END_HEADERS | END_STREAM, 2 * u32::from(number) + 1, &block));
        client.try_send(&filler);
    }
}

fn connection(kind: &ConnectionKind) -> usize {
    let server = Running::start(limits(4096));
    let mut last = Client::connect(&server.path(), u16::MAX);
    last.settle();
    let before = HEAP.current_usage();
    let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| Client::connect(&server.path(), u16::MAX)).collect();
    clients.iter_mut().for_each(kind.script);
    last.settle();
    measure(before, CONNECTIONS, kind.bound)
}

/// Maximum memory of all connections together, in bytes: see `Limits::connections`.
const ALL: usize = 64 << 20;

/// Returns how many paths a connection adds to its table.
type Paths = fn(usize) -> u8;

/// The maximum per connection, and the maximum of all together.
const PATHS: [(&str, Paths); 2] = [
    ("15 paths each", |_| 15),
    ("15 paths each of 113, and 6 of the others", |at| if at < 113 { 15 } else { 6 }),
];

fn all_connections(count: Paths) -> usize {
    let most = Limits::default().connections;
    let server = Running::start(Limits { connections_per_client: most, ..limits(4096) });
    let before = HEAP.current_usage();
    let mut clients: Vec<_> = (0..most).map(|_| Client::connect(&server.path(), u16::MAX)).collect();
    clients.iter_mut().enumerate().for_each(|(at, client)| paths(client, count(at)));
    // The server may have closed some of them.
    assert!(clients.iter_mut().any(|client| client.try_settle().is_ok()));
    measure(before, 1, ALL)
}

/// A single test, since concurrent ones would be counted too.
#[test]
#[allow(clippy::print_stdout)] // with `--nocapture`: the figures
fn calls_and_connections_keep_what_the_limits_say() {
    let mut more = Vec::new();
    for kind in KINDS {
        let each = call(kind);
        println!("{each:>8} bytes for a call {} (bound {CALL})", kind.name);
        if each > CALL {
            more.push(kind.name);
        }
    }
    for kind in CONNECTION_KINDS {
        let each = connection(kind);
        println!("{each:>8} bytes for a connection {} (bound {})", kind.name, kind.bound);
        if each > kind.bound {
            more.push(kind.name);
        }
    }
    for (name, count) in PATHS {
        let all = all_connections(count);
        println!("{all:>8} bytes for all connections, {name} (bound {ALL})");
        if all > ALL {
            more.push(name);
        }
    }
    assert!(more.is_empty(), "these keep more: {more:?}");
}
