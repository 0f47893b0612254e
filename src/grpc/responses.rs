//! Responses being sent. Many clients are sent slices of one buffer, and one client that does not read keeps
//! all of it alive: such memory is counted here and bounded, and clients that stall are disconnected to
//! release it.

use std::collections::{BTreeMap, HashMap};
use std::io::IoSlice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::body::{Buf, Bytes};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::clients::Connection;
use super::message::{HEAD, Message};
use crate::util::sync::lock;

/// While others wait for room, no response is sent for longer than this, whatever its progress.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// While others wait for room, how long a response may make no progress; otherwise it is
/// [`super::Limits::read_timeout`].
const SHORT_READ_TIMEOUT: Duration = Duration::from_secs(2);

/// Length and compression flag before each message, in bytes.
pub(super) const PREFIX: usize = 5;

/// A buffer's identity: its address and length, unique while it is alive.
type BufferId = (usize, usize);

#[derive(Debug)]
pub(super) struct Responses {
    /// Bytes of distinct responses above which no call begins; half of it for the responses of one client.
    limit: usize,
    /// How long a response may make no progress while there is room.
    read_timeout: Duration,
    state: Mutex<State>,
    released: Notify,
}

#[derive(Debug, Default)]
struct State {
    next_id: u64,
    all: Buffers,
    clients: HashMap<u64, Buffers>,
    sending: BTreeMap<u64, Sending>,
}

/// Distinct buffers, and how often each is being sent.
#[derive(Debug, Default)]
struct Buffers {
    bytes: usize,
    counts: HashMap<BufferId, usize>,
}

#[derive(Debug)]
struct Sending {
    connection: Arc<Connection>,
    bytes_left: Arc<AtomicUsize>,
    since: Instant,
    /// The bytes left when it last made progress, and when that was.
    progress: (usize, Instant),
}

/// Keeps a response counted until its last slice is dropped.
#[derive(Debug)]
pub(super) struct ResponseGuard {
    responses: Arc<Responses>,
    id: u64,
    client: u64,
    buffer: BufferId,
    bytes_left: Arc<AtomicUsize>,
}

impl Responses {
    pub(super) fn new(limit: usize, read_timeout: Duration) -> Arc<Self> {
        Arc::new(Self { limit, read_timeout, state: Mutex::default(), released: Notify::new() })
    }

    /// Waits until there is room for another response, in total and for this client.
    pub(super) async fn wait_for_room(&self, client: u64) {
        loop {
            let mut released = std::pin::pin!(self.released.notified());
            released.as_mut().enable();
            if self.has_room(client) {
                return;
            }
            released.await;
        }
    }

    pub(super) fn has_room(&self, client: u64) -> bool {
        !self.is_full(&lock(&self.state), client)
    }

    /// Counts a response as being sent. Each of its slices holds the returned guard.
    pub(super) fn add(
        self: &Arc<Self>,
        message: &Message,
        connection: &Arc<Connection>,
    ) -> Arc<ResponseGuard> {
        let (client, buffer) = (connection.peer.client, (message.body.as_ptr() as usize, message.body.len()));
        let (bytes, now) = (message.len() + PREFIX, Instant::now());
        let bytes_left = Arc::new(AtomicUsize::new(bytes));
        let state = &mut *lock(&self.state);
        let id = state.next_id;
        state.next_id += 1;
        state.all.add(buffer);
        state.clients.entry(client).or_default().add(buffer);
        let sending = Sending {
            connection: Arc::clone(connection),
            bytes_left: Arc::clone(&bytes_left),
            since: now,
            progress: (bytes, now),
        };
        state.sending.insert(id, sending);
        Arc::new(ResponseGuard { responses: Arc::clone(self), id, client, buffer, bytes_left })
    }

    /// Returns the connections whose responses make no progress. To be called every second; if the last call
    /// was late (`was_late`), perhaps because the process was stopped, all timeouts restart.
    pub(super) fn stalled(&self, was_late: bool) -> Vec<Arc<Connection>> {
        let (mut state, now) = (lock(&self.state), Instant::now());
        let mut sending = std::mem::take(&mut state.sending);
        if was_late {
            sending.values_mut().for_each(|one| (one.since, one.progress.1) = (now, now));
        }
        let is_stalled = |one: &mut Sending| {
            let is_full = self.is_full(&state, one.connection.peer.client);
            let read_timeout = if is_full { SHORT_READ_TIMEOUT } else { self.read_timeout };
            let left = one.bytes_left.load(Ordering::Relaxed);
            if one.progress.0 != left {
                one.progress = (left, now);
            }
            now - one.progress.1 >= read_timeout || is_full && now - one.since >= SEND_TIMEOUT
        };
        let stalled = sending.values_mut().filter_map(|one| is_stalled(one).then(|| one.connection.clone()));
        let stalled = stalled.collect();
        state.sending = sending;
        stalled
    }

    fn is_full(&self, state: &State, client: u64) -> bool {
        let own = state.clients.get(&client).map_or(0, |buffers| buffers.bytes);
        state.all.bytes >= self.limit || own >= self.limit / 2
    }
}

impl Buffers {
    fn add(&mut self, buffer: BufferId) {
        let count = self.counts.entry(buffer).or_insert(0);
        *count += 1;
        if *count == 1 {
            self.bytes += buffer.1;
        }
    }

    fn remove(&mut self, buffer: BufferId) {
        let Some(count) = self.counts.get_mut(&buffer) else { return };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&buffer);
            self.bytes -= buffer.1;
        }
    }
}

impl Drop for ResponseGuard {
    fn drop(&mut self) {
        let state = &mut *lock(&self.responses.state);
        state.sending.remove(&self.id);
        state.all.remove(self.buffer);
        if let Some(buffers) = state.clients.get_mut(&self.client) {
            buffers.remove(self.buffer);
            if buffers.counts.is_empty() {
                state.clients.remove(&self.client);
            }
        }
        self.responses.released.notify_waiters();
    }
}

/// A slice of a response for h2, after the message's prefix if it is the first. It guards the whole response:
/// h2 drops it once the socket has taken it.
#[derive(Debug)]
pub(super) struct Slice {
    /// Before the bytes: flag, length, and the message's head.
    prefix: [u8; PREFIX + HEAD],
    /// How much of `prefix` is used, and how much of that has been consumed.
    prefix_end: usize,
    prefix_sent: usize,
    bytes: Bytes,
    guard: Arc<ResponseGuard>,
}

impl Slice {
    /// Returns the first slice of a response of `length` bytes that begins with `head`.
    pub(super) fn first(length: u32, head: &[u8], bytes: Bytes, guard: Arc<ResponseGuard>) -> Self {
        let mut prefix = [0; PREFIX + HEAD];
        prefix[1..PREFIX].copy_from_slice(&length.to_be_bytes());
        let prefix_end = PREFIX + head.len().min(HEAD);
        prefix[PREFIX..prefix_end].copy_from_slice(&head[..prefix_end - PREFIX]);
        Self { prefix, prefix_end, prefix_sent: 0, bytes, guard }
    }

    pub(super) fn next(bytes: Bytes, guard: Arc<ResponseGuard>) -> Self {
        Self { prefix: [0; PREFIX + HEAD], prefix_end: 0, prefix_sent: 0, bytes, guard }
    }

    fn prefix(&self) -> &[u8] {
        &self.prefix[self.prefix_sent..self.prefix_end]
    }
}

impl Buf for Slice {
    fn remaining(&self) -> usize {
        self.prefix().len() + self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        if self.prefix().is_empty() { &self.bytes } else { self.prefix() }
    }

    fn chunks_vectored<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        let parts = [self.prefix(), &self.bytes[..]];
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        out.iter_mut().zip(parts).map(|(out, part)| *out = IoSlice::new(part)).count()
    }

    fn advance(&mut self, count: usize) {
        self.guard.bytes_left.fetch_sub(count, Ordering::Relaxed);
        let prefix = count.min(self.prefix().len());
        self.prefix_sent += prefix;
        self.bytes.advance(count - prefix);
    }
}
