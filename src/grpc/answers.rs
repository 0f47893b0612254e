//! Responses being sent. Many clients are sent slices of one buffer, and one client that does not read keeps
//! all of it alive: such memory is counted here and bounded, and clients that stall are disconnected to
//! release it.

use std::collections::{BTreeMap, HashMap};
use std::io::IoSlice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::body::{Buf, Bytes};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::clients::Connection;
use super::message::{HEAD, Message};

/// While others wait for room, no response is sent for longer than this, whatever its progress.
const PATIENCE: Duration = Duration::from_secs(10);
/// While others wait for room, how long a response may make no progress; otherwise it is
/// [`super::Limits::unread`].
const SHORT_PATIENCE: Duration = Duration::from_secs(2);

/// Length and compression flag before each message, in bytes.
pub(super) const PREFIX: usize = 5;

/// A buffer's identity: its address and length, unique while it is alive.
type Key = (usize, usize);

/// All responses that are being sent.
#[derive(Debug)]
pub(super) struct Answers {
    /// Bytes of distinct responses above which no call begins; half of it for the responses of one client.
    bound: usize,
    /// How long a response may make no progress while there is room.
    unread: Duration,
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    all: Held,
    clients: HashMap<u64, Held>,
    sent: BTreeMap<u64, Sent>,
}

/// Distinct responses, and how often each is being sent.
#[derive(Debug, Default)]
struct Held {
    bytes: usize,
    answers: HashMap<Key, usize>,
}

/// One response to one client.
#[derive(Debug)]
struct Sent {
    connection: Arc<Connection>,
    left: Arc<AtomicUsize>,
    since: Instant,
    /// The bytes left when it last made progress, and when that was.
    mark: (usize, Instant),
}

/// Keeps a response counted until its last slice is dropped.
#[derive(Debug)]
pub(super) struct Pin {
    answers: Arc<Answers>,
    id: u64,
    client: u64,
    key: Key,
    left: Arc<AtomicUsize>,
}

impl Answers {
    pub(super) fn new(bound: usize, unread: Duration) -> Arc<Self> {
        Arc::new(Self { bound, unread, state: Mutex::default(), freed: Notify::new() })
    }

    /// Waits until there is room for another response, in total and for this client.
    pub(super) async fn room(&self, client: u64) {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            if self.has_room(client) {
                return;
            }
            freed.await;
        }
    }

    /// Returns true if there is room for another response to this client.
    pub(super) fn has_room(&self, client: u64) -> bool {
        !self.short(&self.state(), client)
    }

    /// Counts a response as being sent. Each of its slices holds the returned pin.
    pub(super) fn pin(self: &Arc<Self>, answer: &Message, connection: &Arc<Connection>) -> Arc<Pin> {
        let (client, key) = (connection.peer.client, (answer.body.as_ptr() as usize, answer.body.len()));
        let (left, now) = (Arc::new(AtomicUsize::new(answer.len() + PREFIX)), Instant::now());
        let state = &mut *self.state();
        let id = state.next;
        state.next += 1;
        state.all.add(key);
        state.clients.entry(client).or_default().add(key);
        let mark = (answer.len() + PREFIX, now);
        let sent = Sent { connection: Arc::clone(connection), left: Arc::clone(&left), since: now, mark };
        state.sent.insert(id, sent);
        Arc::new(Pin { answers: Arc::clone(self), id, client, key, left })
    }

    /// Returns the connections whose responses make no progress. To be called every second; a caller that was
    /// not `attentive`, perhaps because the process was stopped, restarts everyone's timeout.
    pub(super) fn stalled(&self, attentive: bool) -> Vec<Arc<Connection>> {
        let (mut state, now) = (self.state(), Instant::now());
        let mut sent = std::mem::take(&mut state.sent);
        if !attentive {
            sent.values_mut().for_each(|sent| (sent.since, sent.mark.1) = (now, now));
        }
        let stalled = |sent: &mut Sent| {
            let short = self.short(&state, sent.connection.peer.client);
            sent.stalled(short, if short { SHORT_PATIENCE } else { self.unread }, now)
        };
        let connections = sent.values_mut().filter_map(|sent| stalled(sent).then(|| sent.connection.clone()));
        let connections = connections.collect();
        state.sent = sent;
        connections
    }

    fn short(&self, state: &State, client: u64) -> bool {
        let own = state.clients.get(&client).map_or(0, |held| held.bytes);
        state.all.bytes >= self.bound || own >= self.bound / 2
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn add(&mut self, key: Key) {
        let count = self.answers.entry(key).or_insert(0);
        *count += 1;
        if *count == 1 {
            self.bytes += key.1;
        }
    }

    fn remove(&mut self, key: Key) {
        let Some(count) = self.answers.get_mut(&key) else { return };
        *count -= 1;
        if *count == 0 {
            self.answers.remove(&key);
            self.bytes -= key.1;
        }
    }
}

impl Sent {
    fn stalled(&mut self, short: bool, patience: Duration, now: Instant) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        if self.mark.0 != left {
            self.mark = (left, now);
        }
        now - self.mark.1 >= patience || short && now - self.since >= PATIENCE
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let state = &mut *self.answers.state();
        state.sent.remove(&self.id);
        state.all.remove(self.key);
        if let Some(held) = state.clients.get_mut(&self.client) {
            held.remove(self.key);
            if held.answers.is_empty() {
                state.clients.remove(&self.client);
            }
        }
        self.answers.freed.notify_waiters();
    }
}

/// A slice of a response for h2, after the message's prefix if it is the first. Pins the whole response: h2
/// drops it once the socket has taken it.
#[derive(Debug)]
pub(super) struct Slice {
    /// Before the bytes: flag, length, and the message's head.
    prefix: [u8; PREFIX + HEAD],
    /// How much of `prefix` is used, and how much of that has been consumed.
    end: usize,
    gone: usize,
    bytes: Bytes,
    pin: Arc<Pin>,
}

impl Slice {
    /// Returns the first slice of a response of `length` bytes that begins with `head`.
    pub(super) fn first(length: u32, head: &[u8], bytes: Bytes, pin: Arc<Pin>) -> Self {
        let mut prefix = [0; PREFIX + HEAD];
        prefix[1..PREFIX].copy_from_slice(&length.to_be_bytes());
        let end = PREFIX + head.len().min(HEAD);
        prefix[PREFIX..end].copy_from_slice(&head[..end - PREFIX]);
        Self { prefix, end, gone: 0, bytes, pin }
    }

    pub(super) fn next(bytes: Bytes, pin: Arc<Pin>) -> Self {
        Self { prefix: [0; PREFIX + HEAD], end: 0, gone: 0, bytes, pin }
    }
}

impl Buf for Slice {
    fn remaining(&self) -> usize {
        self.end - self.gone + self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        if self.gone < self.end { &self.prefix[self.gone..self.end] } else { &self.bytes }
    }

    fn chunks_vectored<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        let parts = [&self.prefix[self.gone..self.end], &self.bytes[..]];
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        out.iter_mut().zip(parts).map(|(out, part)| *out = IoSlice::new(part)).count()
    }

    fn advance(&mut self, count: usize) {
        self.pin.left.fetch_sub(count, Ordering::Relaxed);
        let prefix = count.min(self.end - self.gone);
        self.gone += prefix;
        self.bytes.advance(count - prefix);
    }
}
