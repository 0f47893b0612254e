//! Connected clients, and which connection is closed when there are too many.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::Peer;
use crate::util::sync::lock;
use crate::util::token_bucket::TokenBucket;

/// Failed calls of one client per second: beyond that, their responses are delayed. A process with 200
/// connections that all retry at once is within the burst.
const FAILURES_PER_SECOND: f64 = 200.0;
const FAILURE_BURST: f64 = 400.0;
/// One in this many connections may be a new one that has had no successful response yet.
const NEW_CONNECTION_SHARE: usize = 4;
/// The frame cost of one client per second (`input_filter`). A process with 200 connections that makes 5,000
/// calls per second, and measures its bandwidth with a PING for each as grpc-go may, stays within it. It is a
/// tenth of a core.
const CLIENT_COST_PER_SECOND: f64 = 262_144.0;
/// The guaranteed frame cost of all clients per second, shared equally.
const GUARANTEED_COST_PER_SECOND: f64 = 262_144.0;
/// The frame cost per second shared by clients that exceed their guaranteed share. Together the two are a
/// fifth of a core; the calls that these frames make take at most another third.
const SHARED_COST_PER_SECOND: f64 = 262_144.0;

#[derive(Debug)]
pub(super) struct Connection {
    id: u64,
    pub(super) peer: Arc<Peer>,
    has_succeeded: AtomicBool,
    /// Calls on it that have not ended.
    pub(super) calls: AtomicUsize,
    shutdown: AtomicU8,
    shutdown_changed: Notify,
    /// Since when a write has been waiting for the client to read.
    write_blocked: Mutex<Option<Instant>>,
}

/// How a connection has to close. Later ones take precedence.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Shutdown {
    /// Send GOAWAY and finish the calls that were begun.
    Graceful = 1,
    /// Send GOAWAY and close: no call is open.
    Idle,
    /// Close without GOAWAY: its client does not read, or it is displaced while calls run.
    Abort,
}

impl Connection {
    pub(super) fn shut_down(&self, how: Shutdown) {
        self.shutdown.fetch_max(how as u8, Ordering::Relaxed);
        self.shutdown_changed.notify_one();
    }

    pub(super) async fn wait_for_shutdown(&self) -> Shutdown {
        loop {
            self.shutdown_changed.notified().await;
            match self.shutdown.load(Ordering::Relaxed) {
                1 => return Shutdown::Graceful,
                2 => return Shutdown::Idle,
                3 => return Shutdown::Abort,
                _ => {}
            }
        }
    }

    pub(super) fn set_write_blocked(&self, is_blocked: bool) {
        *lock(&self.write_blocked) = is_blocked.then(Instant::now);
    }

    pub(super) fn set_succeeded(&self) {
        self.has_succeeded.store(true, Ordering::Relaxed);
    }

    fn has_succeeded(&self) -> bool {
        self.has_succeeded.load(Ordering::Relaxed)
    }

    fn is_idle(&self) -> bool {
        self.calls.load(Ordering::Relaxed) == 0
    }
}

#[derive(Debug)]
pub(super) struct Clients {
    limit: usize,
    limit_per_client: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next_id: u64,
    /// The oldest first, without those that have to close.
    connections: BTreeMap<u64, Arc<Connection>>,
    clients: HashMap<u64, Client>,
    /// The budget for frames beyond the clients' guaranteed shares. Created when first needed.
    shared_cost: Option<TokenBucket>,
}

#[derive(Debug)]
struct Client {
    connections: usize,
    failures: TokenBucket,
    cost: TokenBucket,
    /// Guaranteed share: a token is one second of an equal part of `GUARANTEED_COST_PER_SECOND`.
    guaranteed: TokenBucket,
}

/// How long not to read from a connection.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct ReadDelay {
    /// For what this client has sent.
    pub(super) own: Duration,
    /// For what all clients have sent, if this client's share is spent.
    pub(super) shared: Duration,
}

/// An admitted connection; dropping it makes room for another one.
#[derive(Debug)]
pub(super) struct Admitted {
    clients: Arc<Clients>,
    pub(super) connection: Arc<Connection>,
}

impl Clients {
    pub(super) fn new(limit: usize, limit_per_client: usize) -> Arc<Self> {
        Arc::new(Self { limit, limit_per_client, state: Mutex::default() })
    }

    /// Admits a connection. If its client has too many, the client's oldest idle connection is closed; if there
    /// are too many in total, the one that [`State::connection_to_close`] selects. Also returns the closed
    /// connection. Fails if no connection can be closed.
    pub(super) fn admit(
        self: &Arc<Self>,
        mut peer: Peer,
    ) -> Result<(Admitted, Option<Arc<Connection>>), Arc<Peer>> {
        let state = &mut *lock(&self.state);
        let id = state.next_id;
        state.next_id += 1;
        if peer.client == 0 {
            // The process is unknown.
            peer.client = id | 1 << 63;
        }
        let (client, peer) = (peer.client, Arc::new(peer));
        let own = state.clients.get(&client).map_or(0, |client| client.connections);
        let mut closed = None;
        if own >= self.limit_per_client || state.connections.len() >= self.limit {
            closed = match own >= self.limit_per_client {
                true => state.oldest_idle(client),
                false => state.connection_to_close(own, self.limit),
            };
            let Some(closed) = &closed else { return Err(peer) };
            closed.shut_down(if closed.is_idle() { Shutdown::Idle } else { Shutdown::Abort });
            state.remove(closed);
        }
        let connection = Arc::new(Connection {
            id,
            peer,
            has_succeeded: AtomicBool::default(),
            calls: AtomicUsize::default(),
            shutdown: AtomicU8::default(),
            shutdown_changed: Notify::default(),
            write_blocked: Mutex::default(),
        });
        state.connections.insert(id, Arc::clone(&connection));
        state.clients.entry(client).or_insert_with(Client::new).connections += 1;
        Ok((Admitted { clients: Arc::clone(self), connection }, closed))
    }

    pub(super) fn shut_down(&self, how: Shutdown) {
        lock(&self.state).connections.values().for_each(|connection| connection.shut_down(how));
    }

    /// Returns the connections that have not read for `read_timeout`, although there was data. If the last
    /// check was late (`was_late`), all timeouts restart.
    pub(super) fn unread(&self, read_timeout: Duration, was_late: bool) -> Vec<Arc<Connection>> {
        let (state, now) = (lock(&self.state), Instant::now());
        let is_unread = |one: &&Arc<Connection>| match &mut *lock(&one.write_blocked) {
            Some(since) if was_late => {
                *since = now;
                false
            }
            Some(since) => now - *since >= read_timeout,
            None => false,
        };
        state.connections.values().filter(is_unread).cloned().collect()
    }

    /// Charges the cost of received frames and returns how long to wait before reading more from the
    /// connection.
    pub(super) fn charge(&self, connection: &Connection, cost: usize) -> ReadDelay {
        let (state, now) = (&mut *lock(&self.state), Instant::now());
        let seconds = cost as f64 * state.clients.len() as f64 / GUARANTEED_COST_PER_SECOND;
        let Some(client) = state.clients.get_mut(&connection.peer.client) else {
            return ReadDelay::default();
        };
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        let own = client.cost.take_many(cost, now);
        if client.guaranteed.take_unless_in_debt(seconds, now) {
            return ReadDelay { own, ..ReadDelay::default() };
        }
        let shared = state
            .shared_cost
            .get_or_insert_with(|| TokenBucket::new(SHARED_COST_PER_SECOND, SHARED_COST_PER_SECOND, now));
        ReadDelay { own, shared: shared.take_many(cost, now) }
    }

    /// Records a failed call of this client and returns how long to delay its response.
    pub(super) fn failed(&self, client: u64) -> Duration {
        let mut state = lock(&self.state);
        let client = state.clients.get_mut(&client);
        client.map_or(Duration::ZERO, |client| client.failures.take(Instant::now()))
    }
}

impl Client {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            connections: 0,
            failures: TokenBucket::new(FAILURES_PER_SECOND, FAILURE_BURST, now),
            cost: TokenBucket::new(CLIENT_COST_PER_SECOND, CLIENT_COST_PER_SECOND, now),
            guaranteed: TokenBucket::new(1.0, 1.0, now),
        }
    }
}

impl State {
    fn oldest_idle(&self, client: u64) -> Option<Arc<Connection>> {
        self.connections.values().find(|one| one.peer.client == client && one.is_idle()).cloned()
    }

    /// Chooses the connection to close for a new one of a client that has `own` connections. A user with more
    /// than half of all connections gives one up, and within it the client with the most; if most clients
    /// have only one, the least used one.
    fn connection_to_close(&self, own: usize, limit: usize) -> Option<Arc<Connection>> {
        let candidates = self.candidates();
        let count =
            |one: &Connection| self.clients.get(&one.peer.client).map_or(0, |client| client.connections);
        let single: Vec<_> = candidates.iter().copied().filter(|one| count(one) == 1).collect();
        let largest = candidates.iter().max_by_key(|one| count(one))?;
        let most = count(largest);
        if most == 1 || single.len() > limit / 2 {
            return least_used(&single, limit / NEW_CONNECTION_SHARE).cloned();
        }
        let client = largest.peer.client;
        let oldest = || candidates.iter().find(|one| one.peer.client == client).copied().cloned();
        self.oldest_idle(client).or_else(|| (most > own + 1).then(oldest).flatten())
    }

    /// Returns the connections of the user that has more than half of them, else all; the oldest first.
    fn candidates(&self) -> Vec<&Arc<Connection>> {
        let mut users: HashMap<u32, usize> = HashMap::new();
        self.connections.values().for_each(|one| *users.entry(one.peer.uid).or_default() += 1);
        let large = users.into_iter().find(|(_, count)| *count > self.connections.len() / 2);
        let all = self.connections.values();
        all.filter(|one| large.is_none_or(|(user, _)| one.peer.uid == user)).collect()
    }

    fn remove(&mut self, connection: &Connection) {
        if self.connections.remove(&connection.id).is_none() {
            return;
        }
        let Some(client) = self.clients.get_mut(&connection.peer.client) else { return };
        client.connections -= 1;
        if client.connections == 0 {
            self.clients.remove(&connection.peer.client);
        }
    }
}

/// Chooses the least used of these connections, each of a different client; the oldest come first. If more than
/// `new_ones` have had no successful call, it is the oldest of these. Otherwise it is the newest of the others:
/// a client that opens connections to displace others comes last. Idle connections are preferred.
fn least_used<'a>(single: &[&'a Arc<Connection>], new_ones: usize) -> Option<&'a Arc<Connection>> {
    let (used, unused): (Vec<_>, Vec<_>) = single.iter().copied().partition(|one| one.has_succeeded());
    let unused_idle = unused.iter().find(|one| one.is_idle());
    if unused.len() > new_ones {
        return unused_idle.or(unused.first()).copied();
    }
    let idle = used.iter().rev().find(|one| one.is_idle()).or(unused_idle);
    idle.or(used.last()).or(unused.first()).copied()
}

impl Drop for Admitted {
    fn drop(&mut self) {
        lock(&self.clients.state).remove(&self.connection);
    }
}

#[cfg(test)]
mod tests;
