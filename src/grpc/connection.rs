//! One connection, from its first byte to its last.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use h2::server::{self, Builder};
use h2::{Error, Reason};
use tokio::net::UnixStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::answers::Slice;
use super::clients::{Connection, Order, Seat};
use super::incoming::{Incoming, Pace};
use super::{Inner, Offence, call};

/// How long a new connection may send nothing. After that it may be idle forever: some clients keep one
/// connection.
const PREFACE: Duration = Duration::from_secs(10);
/// How long sending GOAWAY may take.
const GOODBYE: Duration = Duration::from_millis(200);
/// Maximum size of a header list, as HTTP/2 counts it: some dozen fields of less than 1 KiB are usual.
/// grpc-java's limit.
const FIELDS: u32 = 8 << 10;
/// Initial stream window: what a client may send of a message before we grant more. The connection as a whole
/// has 64 KiB, the minimum (RFC 9113, 6.9.2). Messages are a few hundred bytes.
const WINDOW: u32 = 16 << 10;
/// How much of each response h2 buffers beyond what its connection takes. It is a slice of a shared buffer
/// and costs nothing itself.
pub(super) const SEND_BUFFER: usize = 64 << 10;
/// Calls that a client may cancel before they are begun: h2's own limit.
const CANCELLED: usize = 20;
/// Malformed HTTP/2 requests per connection: a correct client makes none, and h2 allows 1,024.
const MALFORMED: usize = 100;
/// Buffers that each connection's HPACK table may always keep (`incoming`).
const OWN_BUFFERS: u32 = 6;
/// Buffers that the tables of all connections together may keep in addition. A client that calls three
/// methods with deadlines keeps about eight.
pub(super) const MORE_BUFFERS: usize = 1024;

/// A client that has to be delayed by this much counts as flooding.
const FLOOD: Duration = Duration::from_millis(500);

/// Serves a connection until either end closes it.
pub(super) async fn serve(stream: UnixStream, seat: Seat, inner: Arc<Inner>) {
    let connection = &seat.connection;
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(inner.limits.streams)
        .max_header_list_size(FIELDS)
        .initial_window_size(WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(CANCELLED)
        .max_local_error_reset_streams(Some(MALFORMED));
    let handshake = builder.handshake::<_, Slice>(Incoming::new(
        stream,
        Reader { connection: connection.clone(), inner: inner.clone(), kept: None },
    ));
    let greeted = tokio::select! {
        greeted = timeout(PREFACE, handshake) => greeted,
        // Any order means close here: no call was begun.
        _ = connection.ordered() => return,
    };
    match greeted {
        Ok(Ok(h2)) => converse(h2, connection, &inner).await,
        Ok(Err(error)) => accuse(&error, connection, &inner),
        Err(_) => {
            let seconds = PREFACE.as_secs();
            inner.blame(Offence::Silent, connection, || {
                format!("said nothing for {seconds} s after it connected")
            });
        }
    }
}

/// The rate limit and memory budget of a connection's reads.
struct Reader {
    connection: Arc<Connection>,
    inner: Arc<Inner>,
    /// Its share of [`MORE_BUFFERS`].
    kept: Option<OwnedSemaphorePermit>,
}

impl Pace for Reader {
    fn pace(&self, cost: usize) -> Duration {
        let pause = self.inner.clients.pace(&self.connection, cost);
        if pause.own >= FLOOD {
            let what = || "sends more frames than are read of one client: they are read later".into();
            self.inner.blame(Offence::Flood, &self.connection, what);
        }
        pause.own.max(pause.shared)
    }

    fn keep(&mut self, buffers: u32) -> bool {
        let more = buffers.saturating_sub(OWN_BUFFERS);
        if self.kept.as_ref().map_or(0, OwnedSemaphorePermit::num_permits) == more as usize {
            return true;
        }
        // Releases the previous reservation first, so that the new one can use it.
        self.kept = None;
        self.kept = Arc::clone(&self.inner.buffers).try_acquire_many_owned(more).ok();
        self.kept.is_some()
    }

    fn blocked(&self, blocked: bool) {
        self.connection.block(blocked);
    }
}

async fn converse(
    mut h2: server::Connection<Incoming<UnixStream, Reader>, Slice>,
    connection: &Arc<Connection>,
    inner: &Arc<Inner>,
) {
    let mut calls = FuturesUnordered::new();
    // Canceled calls are still here for a moment, but h2 no longer counts them.
    let most = 2 * inner.limits.streams as usize;
    loop {
        tokio::select! {
            accepted = h2.accept(), if calls.len() < most => match accepted {
                Some(Ok((request, respond))) => {
                    connection.calls.fetch_add(1, Ordering::Relaxed);
                    calls.push(call::serve(request, respond, Arc::clone(connection), Arc::clone(inner)));
                }
                Some(Err(error)) => return accuse(&error, connection, inner),
                None => return,
            },
            Some(()) = calls.next() => drop(connection.calls.fetch_sub(1, Ordering::Relaxed)),
            order = connection.ordered() => match order {
                Order::Finish => h2.graceful_shutdown(),
                Order::Leave => {
                    // A request that crosses the GOAWAY is not answered, and its client knows that it was not
                    // begun.
                    h2.abrupt_shutdown(Reason::NO_ERROR);
                    let _ = timeout(GOODBYE, std::future::poll_fn(|cx| h2.poll_closed(cx))).await;
                    return;
                }
                Order::Drop => return,
            },
        }
    }
}

/// Reports protocol violations; a client that just vanished is not an offence.
fn accuse(error: &Error, connection: &Connection, inner: &Inner) {
    let ours = error.get_io().is_some_and(|error| error.kind() == io::ErrorKind::InvalidData);
    if ours || !error.is_io() && !error.is_remote() {
        inner.blame(Offence::Garbage, connection, || format!("was cut off: {error}"));
    }
}
