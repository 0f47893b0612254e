//! One connection, from its first byte to its last.

use std::future::poll_fn;
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

use super::clients::{Admitted, Connection, Shutdown};
use super::input_filter::{InputFilter, InputLimits};
use super::limits::SEND_BUFFER;
use super::responses::Slice;
use super::shared::Shared;
use super::{Violation, call};

/// How long a new connection may send nothing. After that it may be idle forever: some clients keep one
/// connection.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);
const GOAWAY_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum size of a header list, as HTTP/2 counts it: some dozen fields of less than 1 KiB are usual.
/// grpc-java's limit.
const HEADER_LIST_LIMIT: u32 = 8 << 10;
/// Initial stream window: what a client may send of a message before we grant more. The connection as a whole
/// has 64 KiB, the minimum (RFC 9113, 6.9.2). Messages are a few hundred bytes.
const STREAM_WINDOW: u32 = 16 << 10;
/// Calls that a client may cancel before they are begun: h2's own limit.
const CANCELED_LIMIT: usize = 20;
/// Malformed HTTP/2 requests per connection: a correct client makes none, and h2 allows 1,024.
const MALFORMED_LIMIT: usize = 100;
/// Buffers that each connection's HPACK table may always keep (`input_filter`).
const OWN_BUFFERS: u32 = 6;

/// A client that has to be delayed by this much counts as flooding.
const FLOOD_DELAY: Duration = Duration::from_millis(500);

/// Serves a connection until either end closes it.
pub(super) async fn serve(stream: UnixStream, admitted: Admitted, shared: Arc<Shared>) {
    let connection = &admitted.connection;
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(shared.limits.concurrent_streams)
        .max_header_list_size(HEADER_LIST_LIMIT)
        .initial_window_size(STREAM_WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(CANCELED_LIMIT)
        .max_local_error_reset_streams(Some(MALFORMED_LIMIT));
    let handshake = builder.handshake::<_, Slice>(InputFilter::new(
        stream,
        Reader { connection: connection.clone(), shared: shared.clone(), reserved: None },
    ));
    let connected = tokio::select! {
        connected = timeout(PREFACE_TIMEOUT, handshake) => connected,
        // Close at once: no call was begun.
        _ = connection.wait_for_shutdown() => return,
    };
    match connected {
        Ok(Ok(h2)) => serve_calls(h2, connection, &shared).await,
        Ok(Err(error)) => report(&error, connection, &shared),
        Err(_) => shared.report(Violation::Silent, &connection.peer, || {
            format!("sent nothing for {} s after it connected", PREFACE_TIMEOUT.as_secs())
        }),
    }
}

/// The limits on what is read of a connection.
struct Reader {
    connection: Arc<Connection>,
    shared: Arc<Shared>,
    /// Of `Shared::buffers`.
    reserved: Option<OwnedSemaphorePermit>,
}

impl InputLimits for Reader {
    fn charge(&self, cost: usize) -> Duration {
        let delay = self.shared.clients.charge(&self.connection, cost);
        if delay.own >= FLOOD_DELAY {
            let text =
                || "sends more frames per second than one client may: reading from it is delayed".into();
            self.shared.report(Violation::Flood, &self.connection.peer, text);
        }
        delay.own.max(delay.shared)
    }

    fn reserve_buffers(&mut self, buffers: u32) -> bool {
        let more = buffers.saturating_sub(OWN_BUFFERS);
        if self.reserved.as_ref().map_or(0, OwnedSemaphorePermit::num_permits) == more as usize {
            return true;
        }
        // Releases the previous reservation first, so that the new one can use it.
        self.reserved = None;
        self.reserved = Arc::clone(&self.shared.buffers).try_acquire_many_owned(more).ok();
        self.reserved.is_some()
    }

    fn set_write_blocked(&self, is_blocked: bool) {
        self.connection.set_write_blocked(is_blocked);
    }
}

async fn serve_calls(
    mut h2: server::Connection<InputFilter<UnixStream, Reader>, Slice>,
    connection: &Arc<Connection>,
    shared: &Arc<Shared>,
) {
    let mut calls = FuturesUnordered::new();
    // Canceled calls are still here for a moment, but h2 no longer counts them.
    let limit = 2 * shared.limits.concurrent_streams as usize;
    loop {
        tokio::select! {
            accepted = h2.accept(), if calls.len() < limit => match accepted {
                Some(Ok((request, respond))) => {
                    connection.calls.fetch_add(1, Ordering::Relaxed);
                    calls.push(call::serve(request, respond, Arc::clone(connection), Arc::clone(shared)));
                }
                Some(Err(error)) => return report(&error, connection, shared),
                None => return,
            },
            Some(()) = calls.next() => drop(connection.calls.fetch_sub(1, Ordering::Relaxed)),
            how = connection.wait_for_shutdown() => match how {
                Shutdown::Graceful => h2.graceful_shutdown(),
                Shutdown::Idle => {
                    // A request that crosses the GOAWAY is not answered, and its client knows that it was not
                    // begun.
                    h2.abrupt_shutdown(Reason::NO_ERROR);
                    let _ = timeout(GOAWAY_TIMEOUT, poll_fn(|cx| h2.poll_closed(cx))).await;
                    return;
                }
                Shutdown::Abort => return,
            },
        }
    }
}

/// Reports protocol violations. A connection that the client just closed is not one.
fn report(error: &Error, connection: &Connection, shared: &Shared) {
    let is_ours = error.get_io().is_some_and(|error| error.kind() == io::ErrorKind::InvalidData);
    if is_ours || !error.is_io() && !error.is_remote() {
        shared.report(Violation::Protocol, &connection.peer, || format!("was disconnected: {error}"));
    }
}
