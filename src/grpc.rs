//! A gRPC server on a unix socket. It does two things that a general-purpose server does not: one encoded
//! response is shared by all the clients it is sent to, however large it is, and no client can starve the
//! others of memory, connections or turns.
//!
//! It is built on h2 directly. A prototype on hyper 1.12, whose server also uses h2, was measured beside it.
//! A bare call takes 10 µs there and 14 here, client and server together, and 1.7 KiB while it is open, 2.3
//! here; part of that is our limits, which hyper's would need on top. With hyper too, buffers are shared, a
//! header list can be bounded, and a body's error resets its stream with a code of our own. But:
//! - With both, h2 keeps the trailers of a call whose body is not read (44 KiB for 230 short ones), so the
//!   body has to be read to its end, as `call` does.
//! - hyper does not poll a body that waits for its client to read (`PipeToSendStream`), so a watcher that has
//!   fallen behind could only lose its whole connection.
//! - hyper cannot end a connection in a way that reports what was not begun (`abrupt_shutdown`).
//! - hyper spawns calls without a bound.
//!
//! A switch would save some 100 lines of `call`, but none of the limits, so the server stays on h2.
//!
//! `socket` is the socket file, `connection` and `call` serve the requests, `incoming` makes Go clients
//! acceptable to h2, and `clients`, `turns` and `answers` enforce the limits.

mod answers;
mod call;
mod clients;
mod connection;
mod incoming;
mod message;
mod metrics;
mod notices;
mod socket;
mod turns;

use std::fmt::{self, Debug, Display};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use hyper::body::Bytes;
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tonic::{Code, Status};
use tracing::warn;

pub use incoming::made_acceptable;
pub use message::{Feed, Message};
pub(crate) use metrics::ServerMetrics;

use crate::util::token_bucket::TokenBucket;
use answers::Answers;
use clients::{Admission, Clients, Connection, Order};
use notices::Notices;
use socket::Place;
use turns::{Share, Turns};

/// Interval between checks of the socket file and of responses that make no progress.
const LOOK: Duration = Duration::from_secs(1);
/// If checks are further apart than this, the server itself was stopped and cannot tell which clients
/// stalled.
const ATTENTION: Duration = Duration::from_secs(3);
/// Rate limit and burst of accepted connections: accepting is expensive, and clients keep a connection for
/// long.
const ACCEPTED: f64 = 1000.0;
const AT_ONCE: f64 = 1024.0;
/// Pause after a failed accept, for example for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// How long running calls may continue when the server stops.
const GRACE: Duration = Duration::from_secs(2);

/// The client's process, as reported by the kernel.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The process ID when it connected; `None` if that is in a PID namespace we cannot see.
    pub pid: Option<i32>,
    /// The user ID.
    pub uid: u32,
    /// The process's name if `/proc` shows it, else `uid <n>`. Untrusted, for display only.
    pub name: Arc<str>,
    /// The same for all connections of one process, and only for these. If the kernel does not tell processes apart (before
    /// Linux 6.9, a process of another PID namespace), each connection has its own.
    pub client: u64,
}

impl Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "{:?} (process {pid})", self.name),
            None => write!(f, "a client of {}", self.name),
        }
    }
}

/// One call.
#[derive(Clone, Debug)]
pub struct Call {
    /// `/<service>/<method>`, well formed.
    pub path: String,
    /// The encoded request message.
    pub message: Bytes,
    /// The client.
    pub peer: Arc<Peer>,
    /// The client's deadline, if it set one. The call is dropped then; there is no need to check.
    pub deadline: Option<Instant>,
}

impl Call {
    /// Returns service and method.
    #[must_use]
    pub fn names(&self) -> (&str, &str) {
        names(&self.path)
    }

    /// Returns the status for a service that is not served, with grpc-go's text.
    #[must_use]
    pub fn unknown_service(&self) -> Status {
        Status::unimplemented(format!("unknown service {}", self.names().0))
    }

    /// Returns the status for a method that a known service does not have, with grpc-go's text.
    #[must_use]
    pub fn unknown_method(&self) -> Status {
        let (service, method) = self.names();
        Status::unimplemented(format!("unknown method {method} for service {service}"))
    }
}

/// Returns the service and method of a path; two empty strings if it is not well formed.
#[must_use]
pub fn names(path: &str) -> (&str, &str) {
    path.strip_prefix('/').and_then(|path| path.rsplit_once('/')).unwrap_or_default()
}

/// Returns a code's name as grpc-go writes it.
#[must_use]
pub const fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

/// The response to a call.
pub enum Reply {
    /// One encoded message.
    One(Message),
    /// Encoded messages, until the stream or the client ends. The stream is not polled before the previous
    /// message is on its way, so a client that does not read blocks it.
    Many(Pin<Box<dyn Feed>>),
}

impl Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(message) => write!(f, "One({} bytes)", message.len()),
            Self::Many(_) => f.write_str("Many"),
        }
    }
}

/// The service behind the server.
pub trait Service: Send + Sync + 'static {
    /// Handles a call; the future is dropped when the client cancels or the deadline expires. Use
    /// [`Call::unknown_service`] and [`Call::unknown_method`] for what is not served.
    fn call(&self, call: Call) -> BoxFuture<'static, Result<Reply, Status>>;
}

/// A client's misbehavior, which is logged and cost it a connection or a call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Offence {
    /// It connected and sent nothing.
    Silent,
    /// It violated the protocol.
    Garbage,
    /// It sends tens of thousands of frames.
    Flood,
    /// It did not read its response.
    Stalled,
    /// There are too many connections, and it has the most, or used its only one the least.
    Connections,
    /// It has too many calls open or waiting.
    Calls,
    /// Hundreds of its calls fail per second.
    Failures,
}

impl Offence {
    /// Every kind, in order.
    pub const ALL: [Self; 7] = [
        Self::Silent,
        Self::Garbage,
        Self::Flood,
        Self::Stalled,
        Self::Connections,
        Self::Calls,
        Self::Failures,
    ];

    /// Returns the value for a metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Garbage => "garbage",
            Self::Flood => "flood",
            Self::Stalled => "stalled",
            Self::Connections => "connections",
            Self::Calls => "calls",
            Self::Failures => "failures",
        }
    }

    /// Returns true if a connection is closed for it; otherwise calls are refused or slowed down.
    #[must_use]
    pub const fn cuts(self) -> bool {
        !matches!(self, Self::Flood | Self::Calls | Self::Failures)
    }
}

/// Receives the server's statistics.
pub trait Observer: Send + Sync + 'static {
    /// Called when a call ends, with the status code sent (`Cancelled` if the client left), the bytes of
    /// messages sent, and the duration. The path is empty for a request that was not a gRPC call; otherwise
    /// it is untrusted client input.
    fn finished(&self, _path: &str, _peer: &Peer, _code: Code, _bytes: usize, _took: Duration) {}

    /// Called with the new number of connections.
    fn connections(&self, _count: usize) {}

    /// Called when a client was disconnected, refused or slowed down.
    fn offence(&self, _offence: Offence, _peer: &Peer) {}
}

/// Ignores everything.
impl Observer for () {}

/// Where to listen.
#[derive(Clone, Debug)]
pub struct Socket {
    /// The socket file. Its directory is created if missing (mode 0750; missing parents 0755).
    pub path: PathBuf,
    /// The file's mode.
    pub mode: u32,
    /// The file's group, if other than the process's own.
    pub group: Option<u32>,
}

/// The server's configurable limits. The others are constants where they are used.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum connections of all clients. An idle one takes some 10 KiB, one that had 128 calls at once 100
    /// KiB; a client that tries to make it keep more reaches 300 KiB at most, and all connections together 64
    /// MiB (`tests/grpc_memory`).
    pub connections: usize,
    /// Maximum connections of one client.
    pub connections_each: usize,
    /// Maximum concurrent calls per connection, enforced by HTTP/2: a client waits before it makes more.
    pub streams: u32,
    /// Maximum running calls of all clients; more wait for their turn.
    pub running: usize,
    /// Maximum running calls of one client.
    pub running_each: usize,
    /// Maximum calls of all clients that wait, run or are being sent, including [`Reply::Many`]; more are
    /// refused, except for a few of each client. Each takes some 2 KiB, whatever its client sends
    /// (`tests/grpc_memory`).
    pub open: usize,
    /// Maximum such calls of one client.
    pub open_each: usize,
    /// How long a call waits for its turn before it is refused.
    pub patience: Duration,
    /// How long a call may take until its response begins, including the wait for its turn; the client's
    /// deadline may be shorter.
    pub answer: Duration,
    /// Bytes of distinct responses that are being sent. Above it, calls wait before they begin, and so do
    /// those of a client that is being sent half of it. Calls already running still get their response: with
    /// one response each of two RPCs under way, the maximum is this limit plus two responses.
    pub answers: usize,
    /// How long a client may read nothing of the data available for it before it is disconnected, if there is
    /// room. If there is none, it is two seconds.
    pub unread: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // A node has about a dozen clients, most with one connection, but 200 from one process have to
            // work.
            connections: 512,
            connections_each: 256,
            // RFC 9113 (6.5.2) recommends at least 100; Python clients may make more calls before they know
            // the limit.
            streams: 128,
            // Calls that arrive together are answered together, so a low limit would mean a low rate.
            running: 1024,
            running_each: 256,
            open: 4096,
            open_each: 2048,
            // Clients' own deadlines are 5 s and 10 s.
            patience: Duration::from_secs(5),
            answer: Duration::from_secs(8),
            // Three responses of 5 MiB, the largest known: one being sent, the next one, and one for a slow
            // client.
            answers: 16 << 20,
            unread: Duration::from_secs(10),
        }
    }
}

/// An error that prevents the socket from being served.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve {}: {what}", path.display())]
pub struct ServeError {
    path: PathBuf,
    what: String,
}

impl ServeError {
    fn new(path: &Path, what: String) -> Self {
        Self { path: path.to_owned(), what }
    }
}

/// A running server. Dropping it closes the socket and all connections; the file stays, since clients take a
/// missing file for "not available on this node", and a dead socket for "retry later".
#[derive(Debug)]
pub struct Server {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    in_place: Arc<AtomicBool>,
}

/// State shared by all connections.
pub(crate) struct Inner {
    limits: Limits,
    service: Arc<dyn Service>,
    observer: Arc<dyn Observer>,
    clients: Arc<Clients>,
    turns: Arc<Turns>,
    answers: Arc<Answers>,
    notices: Notices,
    /// Budget for long messages, in bytes.
    long: Semaphore,
    /// Budget for buffers that connections keep beyond those that each may always keep.
    buffers: Arc<Semaphore>,
}

impl Server {
    /// Listens, and serves from a separate task.
    pub fn start(
        socket: Socket,
        limits: Limits,
        service: Arc<dyn Service>,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, ServeError> {
        let path = socket.path.clone();
        let place = Place::take(socket)?;
        let (running, running_each) = (limits.running, limits.running_each);
        let share = Share { running, running_each, open: limits.open, open_each: limits.open_each };
        let inner = Arc::new(Inner {
            limits,
            service,
            observer,
            clients: Clients::new(limits.connections, limits.connections_each),
            turns: Turns::new(share),
            answers: Answers::new(limits.answers, limits.unread),
            notices: Notices::new(path),
            long: Semaphore::new(call::LONG),
            buffers: Arc::new(Semaphore::new(connection::MORE_BUFFERS)),
        });
        let (stop, stopped) = watch::channel(false);
        let in_place = Arc::new(AtomicBool::new(true));
        let task = tokio::spawn(serve(place, inner, stopped, Arc::clone(&in_place)));
        Ok(Self { stop, task, in_place })
    }

    /// Returns true if the path leads to this server, as of a second ago at most: the file may have been
    /// removed and not restored yet, or replaced by another process.
    #[must_use]
    pub fn serves(&self) -> bool {
        self.in_place.load(Ordering::Relaxed) && !self.task.is_finished()
    }

    /// Stops accepting connections, sends clients GOAWAY, and gives running calls two seconds.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        let _ = (&mut self.task).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    mut place: Place,
    inner: Arc<Inner>,
    mut stopped: watch::Receiver<bool>,
    in_place: Arc<AtomicBool>,
) {
    let mut connections = JoinSet::new();
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Connections that were ordered to leave take a moment to close.
    let most = inner.limits.connections + inner.limits.connections / 4 + 1;
    let (mut looked, mut complained) = (Instant::now(), None);
    let mut taken = TokenBucket::new(ACCEPTED, AT_ONCE, looked);
    loop {
        tokio::select! {
            accepted = place.listener.accept(), if connections.len() < most => match accepted {
                Ok((stream, _)) => {
                    accept(stream, &inner, &mut connections);
                    let wait = taken.take(Instant::now());
                    if !wait.is_zero() {
                        sleep(wait).await;
                    }
                }
                Err(error) => pause(&error, &mut complained).await,
            },
            Some(_) = connections.join_next() => inner.observer.connections(connections.len()),
            _ = look.tick() => {
                in_place.store(place.look(), Ordering::Relaxed);
                cut_stalled(&inner, looked.elapsed() <= ATTENTION);
                looked = Instant::now();
            }
            // The server was dropped or stopped.
            _ = stopped.changed() => break,
        }
    }
    drop(place);
    inner.clients.tell(Order::Finish);
    let _ = timeout(GRACE, async { while connections.join_next().await.is_some() {} }).await;
    inner.observer.connections(0);
}

fn accept(stream: UnixStream, inner: &Arc<Inner>, connections: &mut JoinSet<()>) {
    match inner.clients.admit(clients::caller(&stream)) {
        Admission::In(seat, gone) => {
            if let Some(gone) = gone {
                let what = || "had to give up a connection for a new one: there are too many".into();
                inner.blame(Offence::Connections, &gone, what);
            }
            connections.spawn(connection::serve(stream, seat, Arc::clone(inner)));
            inner.observer.connections(connections.len());
        }
        Admission::Full(peer) => {
            let what = || "cannot connect: it has too many connections already, all of them busy".into();
            inner.accuse(Offence::Connections, &peer, what);
        }
    }
}

/// Pauses after a failed accept; most likely out of file descriptors, which other connections will release.
async fn pause(error: &io::Error, complained: &mut Option<Instant>) {
    if complained.is_none_or(|complained| complained.elapsed() >= notices::PERIOD) {
        warn!("cannot accept a connection of a gRPC client for now: {error}");
        *complained = Some(Instant::now());
    }
    sleep(PAUSE).await;
}

fn cut_stalled(inner: &Inner, attentive: bool) {
    let unread = inner.clients.unread(inner.limits.unread, attentive);
    for connection in inner.answers.stalled(attentive).into_iter().chain(unread) {
        let what = || "does not read its answer: its connection was cut".into();
        inner.blame(Offence::Stalled, &connection, what);
        connection.tell(Order::Drop);
    }
}

impl Inner {
    /// Reports a connection's client to the observer, and logs it with rate limiting.
    fn blame(&self, offence: Offence, connection: &Connection, what: impl FnOnce() -> String) {
        self.accuse(offence, &connection.peer, what);
    }

    fn accuse(&self, offence: Offence, peer: &Peer, what: impl FnOnce() -> String) {
        self.observer.offence(offence, peer);
        self.notices.tell(offence, peer, what);
    }
}

#[cfg(test)]
mod tests;
