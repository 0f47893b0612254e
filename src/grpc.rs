//! A gRPC server on a unix socket, made for two things that a general one does not do: one encoded answer is shared by all
//! the clients it is sent to, however large it is, and no client can take from the others what they need, be it memory,
//! connections or turns.
//!
//! It stands on h2 itself. A prototype on hyper 1.12, whose server stands on h2 as well, was measured beside it. A bare call
//! takes 10 µs there and 14 here, client and server together, and 1.7 KiB while it is open, 2.3 here; of that ours has its
//! bounds, which hyper's would have on top. Buffers are shared there too, a header list can be bounded, and a body's error
//! resets its stream with a code of our own. But h2 keeps the trailers of a call whose body is not read under hyper as well
//! (44 KiB of 230 short ones), and who reads on, as `call` does, is rid of them with either; a body that waits for its client
//! to read is not polled (`PipeToSendStream`), so that a watcher that has fallen behind could only lose its whole connection;
//! there is no end of a connection that tells what was not begun (`abrupt_shutdown`); and calls are spawned without a bound.
//! What would go are some 100 lines of `call`, not the bounds. So it stays as it is.
//!
//! `socket` is the file, `connection` and `call` are what is served, `incoming` makes Go's clients acceptable to h2, and
//! `clients`, `turns` and `answers` hold the bounds.

mod answers;
mod call;
mod clients;
mod connection;
mod incoming;
mod message;
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

use crate::bucket::Bucket;
use answers::Answers;
use clients::{Admission, Clients, Connection, Order};
use notices::Notices;
use socket::Place;
use turns::{Share, Turns};

/// Between two looks at the socket's file and at answers that do not move.
const LOOK: Duration = Duration::from_secs(1);
/// Whoever looks less often than this was stopped itself, and cannot tell who stalled meanwhile.
const ATTENTION: Duration = Duration::from_secs(3);
/// Connections in a second, and at once: to take one in is dear, and whoever needs one has it for long.
const ACCEPTED: f64 = 1000.0;
const AT_ONCE: f64 = 1024.0;
/// After a connection could not be accepted, say for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// How long calls that run when the server stops may go on.
const GRACE: Duration = Duration::from_secs(2);

/// Who calls, as the kernel tells it.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its process when it connected; none if that is in a PID namespace we cannot see.
    pub pid: Option<i32>,
    /// Its user.
    pub uid: u32,
    /// What its process calls itself, if `/proc` shows it, else `uid <n>`. Not to be trusted, for people only.
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
    /// The message of the request, encoded.
    pub message: Bytes,
    /// Who calls.
    pub peer: Arc<Peer>,
    /// When the client loses interest, if it said so. The call is dropped then; no need to look.
    pub deadline: Option<Instant>,
}

impl Call {
    /// Service and method.
    #[must_use]
    pub fn names(&self) -> (&str, &str) {
        names(&self.path)
    }

    /// The status of a call to a service that is not served, with grpc-go's text.
    #[must_use]
    pub fn unknown_service(&self) -> Status {
        Status::unimplemented(format!("unknown service {}", self.names().0))
    }

    /// The status of a call to a method that a known service does not have, with grpc-go's text.
    #[must_use]
    pub fn unknown_method(&self) -> Status {
        let (service, method) = self.names();
        Status::unimplemented(format!("unknown method {method} for service {service}"))
    }
}

/// Service and method of a path; nothing of one that is not well formed.
#[must_use]
pub fn names(path: &str) -> (&str, &str) {
    path.strip_prefix('/').and_then(|path| path.rsplit_once('/')).unwrap_or_default()
}

/// A code as grpc-go writes it.
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

/// The answer to a call.
pub enum Reply {
    /// One encoded message.
    One(Message),
    /// Encoded messages, until the stream or the client ends. The stream is not polled before the message before is on
    /// its way: a client that does not read lets it wait.
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

/// What is served.
pub trait Service: Send + Sync + 'static {
    /// Answers a call; dropped when its client gives it up or its deadline is over. [`Call::unknown_service`] and
    /// [`Call::unknown_method`] are for what is not served.
    fn call(&self, call: Call) -> BoxFuture<'static, Result<Reply, Status>>;
}

/// What a client did that it is told of in the log, and that cost it a connection or a call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Offence {
    /// It connected and said nothing.
    Silent,
    /// It broke the protocol.
    Garbage,
    /// It sends frames by the ten thousand.
    Flood,
    /// It did not read its answer.
    Stalled,
    /// It has the most of too many connections, or did least with its only one.
    Connections,
    /// It has too many calls.
    Calls,
    /// Its calls fail, by the hundred in a second.
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

    /// In one word, for a label.
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

    /// Was a connection closed for it? Else calls were refused or slowed down.
    #[must_use]
    pub const fn cuts(self) -> bool {
        !matches!(self, Self::Flood | Self::Calls | Self::Failures)
    }
}

/// Whoever counts what happens here.
pub trait Observer: Send + Sync + 'static {
    /// A call is over: what the client was told (`Cancelled` if it had left), the bytes of messages it was sent, and how
    /// long it took. The path is empty for a request that was no call; else it is whatever the client wrote.
    fn finished(&self, _path: &str, _peer: &Peer, _code: Code, _bytes: usize, _took: Duration) {}

    /// So many connections there are now.
    fn connections(&self, _count: usize) {}

    /// A client was cut off, refused or slowed down.
    fn offence(&self, _offence: Offence, _peer: &Peer) {}
}

/// Nobody counts.
impl Observer for () {}

/// Where to listen.
#[derive(Clone, Debug)]
pub struct Socket {
    /// The socket's file. Its directory is made if it is missing (0750; 0755 what is above).
    pub path: PathBuf,
    /// The file's permissions.
    pub mode: u32,
    /// The file's group, if it shall not be our own.
    pub group: Option<u32>,
}

/// How much there may be of everything. What no limit is given for is bounded by a constant where it is used.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections, of all clients and of one. An idle one keeps some 10 KiB; one that had 128 calls at once 100 KiB, and whose
    /// client does what it can to make it keep more 300 KiB at most; all of them together 64 MiB (`tests/grpc_memory`).
    pub connections: usize,
    /// See above.
    pub connections_each: usize,
    /// Calls of one connection at a time, by HTTP/2's own means: a client waits before it makes more.
    pub streams: u32,
    /// Calls that are being worked on, of all clients and of one; more wait for their turn.
    pub running: usize,
    /// See above.
    pub running_each: usize,
    /// Calls that wait, run, or are being answered, those of [`Reply::Many`] among them; more are refused, but for a few
    /// of each client. Each keeps some 2 KiB, whatever its client sends (`tests/grpc_memory`).
    pub open: usize,
    /// See above.
    pub open_each: usize,
    /// How long a call waits for its turn before it is refused.
    pub patience: Duration,
    /// How long a call may take until its answer begins, its turn included; the client may have less patience.
    pub answer: Duration,
    /// Bytes of distinct answers that are being sent. Above it calls wait before they are begun, and so do those of a
    /// client that is sent half of it itself. What runs then still gets its answer: with one answer each of two RPCs
    /// under way, `bound + 2 answers` are the most.
    pub answers: usize,
    /// How long a client may take nothing of what is there for it before it is cut off, if there is room. Where there is
    /// none it is two seconds.
    pub unread: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // A node has some dozen clients, most with one connection; 200 of one process are to be served.
            connections: 512,
            connections_each: 256,
            // As many as RFC 9113 recommends (6.5.2); Python's clients may make more before they know the limit.
            streams: 128,
            // Those that ask together are answered together, so that few at a time means few in a second.
            running: 1024,
            running_each: 256,
            open: 4096,
            open_each: 2048,
            // The clients' own deadlines are 5 s and 10 s.
            patience: Duration::from_secs(5),
            answer: Duration::from_secs(8),
            // Three answers of 5 MiB, which are the largest ones known: one that goes, one that comes, one for a slow client.
            answers: 16 << 20,
            unread: Duration::from_secs(10),
        }
    }
}

/// The socket cannot be served.
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

/// A running server. Dropping it closes the socket and cuts every connection; the file stays, since clients take a missing
/// one for "there is no such thing here", and a dead one for "later".
#[derive(Debug)]
pub struct Server {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    in_place: Arc<AtomicBool>,
}

/// What all connections share.
pub(crate) struct Inner {
    limits: Limits,
    service: Arc<dyn Service>,
    observer: Arc<dyn Observer>,
    clients: Arc<Clients>,
    turns: Arc<Turns>,
    answers: Arc<Answers>,
    notices: Notices,
    /// Room for long messages, in bytes.
    long: Semaphore,
    /// Room for buffers that connections keep in addition to those that each may always keep.
    buffers: Arc<Semaphore>,
}

impl Server {
    /// Listens, and serves from a task of its own.
    ///
    /// # Errors
    /// When the socket cannot be put there.
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

    /// Does the path lead here? As of a second ago at most: the file may be gone and not have come back, or be somebody
    /// else's.
    #[must_use]
    pub fn serves(&self) -> bool {
        self.in_place.load(Ordering::Relaxed) && !self.task.is_finished()
    }

    /// Takes no more connections, tells clients to go elsewhere, and gives calls that run two seconds.
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
    // Those that were told to leave take a moment.
    let most = inner.limits.connections + inner.limits.connections / 4 + 1;
    let (mut looked, mut complained) = (Instant::now(), None);
    let mut taken = Bucket::new(ACCEPTED, AT_ONCE, looked);
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
            // Gone with its server, or told to.
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

/// Out of descriptors, most likely: others give some back.
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
    /// Counts what the client of a connection did, and writes it down unless that was done of late.
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
