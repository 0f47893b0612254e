//! Who is connected, and who has to go when there are too many.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::unix::UCred;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Peer;
use crate::bucket::Bucket;

/// Calls of one client that fail, in a second: beyond it they are answered later. A process with 200 connections that all
/// try again at once is within the burst.
const FAILURES: f64 = 200.0;
const BURST: f64 = 400.0;

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    id: u64,
    /// Whose it is: a process, or where that is unknown the connection itself.
    pub(super) client: u64,
    pub(super) peer: Arc<Peer>,
    /// Calls on it that are not done.
    pub(super) calls: AtomicUsize,
    order: AtomicU8,
    ordered: Notify,
}

/// What a connection is told.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Order {
    /// Say goodbye and finish what was begun.
    Finish = 1,
    /// Say goodbye and go: nothing was begun.
    Leave,
    /// Go: its client does not read.
    Drop,
}

impl Connection {
    pub(super) fn tell(&self, order: Order) {
        self.order.fetch_max(order as u8, Ordering::Relaxed);
        self.ordered.notify_one();
    }

    /// Waits for the next order.
    pub(super) async fn ordered(&self) -> Order {
        loop {
            self.ordered.notified().await;
            match self.order.load(Ordering::Relaxed) {
                1 => return Order::Finish,
                2 => return Order::Leave,
                3 => return Order::Drop,
                _ => {}
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.calls.load(Ordering::Relaxed) == 0
    }
}

/// All connections.
#[derive(Debug)]
pub(super) struct Clients {
    most: usize,
    most_each: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// The oldest first; without those that were told to leave.
    connections: BTreeMap<u64, Arc<Connection>>,
    clients: HashMap<u64, Client>,
}

#[derive(Debug)]
struct Client {
    connections: usize,
    failures: Bucket,
}

/// A connection's place; gone with this.
#[derive(Debug)]
pub(super) struct Seat {
    clients: Arc<Clients>,
    pub(super) connection: Arc<Connection>,
}

/// What became of a newcomer.
#[derive(Debug)]
pub(super) enum Admission {
    /// It came in; the connection that had to go for it, if one had to.
    In(Seat, Option<Arc<Connection>>),
    /// There is no room for it, since nobody else has more.
    Full(Arc<Peer>),
}

impl Clients {
    pub(super) fn new(most: usize, most_each: usize) -> Arc<Self> {
        Arc::new(Self { most, most_each, state: Mutex::default() })
    }

    /// Takes a connection in. Where there are too many, the client that has the most loses one: the oldest on which
    /// nothing is being done, else the oldest.
    pub(super) fn admit(self: &Arc<Self>, credentials: Option<UCred>) -> Admission {
        let state = &mut *self.state();
        let id = state.next;
        state.next += 1;
        let peer = Arc::new(peer(credentials));
        // Processes have numbers below 2^22.
        let client = peer.pid.map_or(id | 1 << 63, |pid| u64::from(pid.unsigned_abs()));
        let own = state.clients.get(&client).map_or(0, |client| client.connections);
        let mut gone = None;
        if own >= self.most_each || state.connections.len() >= self.most {
            gone = if own >= self.most_each { state.idle(Some(client)) } else { state.crowded(own) };
            let Some(gone) = &gone else { return Admission::Full(peer) };
            gone.tell(if gone.is_idle() { Order::Leave } else { Order::Drop });
            state.remove(gone);
        }
        let (calls, order, ordered) = (AtomicUsize::new(0), AtomicU8::new(0), Notify::new());
        let connection = Arc::new(Connection { id, client, peer, calls, order, ordered });
        state.connections.insert(id, Arc::clone(&connection));
        let failures = || Bucket::new(FAILURES, BURST, Instant::now());
        let client = state.clients.entry(client);
        client.or_insert_with(|| Client { connections: 0, failures: failures() }).connections += 1;
        Admission::In(Seat { clients: Arc::clone(self), connection }, gone)
    }

    /// Tells all of them.
    pub(super) fn tell(&self, order: Order) {
        self.state().connections.values().for_each(|connection| connection.tell(order));
    }

    /// How long the answer to a call that failed has to wait.
    pub(super) fn failed(&self, client: u64) -> Duration {
        let mut state = self.state();
        let client = state.clients.get_mut(&client);
        client.map_or(Duration::ZERO, |client| client.failures.take(Instant::now()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The oldest idle connection, of this client or of any.
    fn idle(&self, client: Option<u64>) -> Option<Arc<Connection>> {
        let mut all = self.connections.values();
        let one = all.find(|one| client.is_none_or(|client| one.client == client) && one.is_idle());
        one.cloned()
    }

    /// Which connection goes for one of a client that has so many itself.
    fn crowded(&self, own: usize) -> Option<Arc<Connection>> {
        let (largest, most) = self.clients.iter().max_by_key(|(_, client)| client.connections)?;
        if most.connections <= 1 {
            return self.idle(None);
        }
        let oldest = || self.connections.values().find(|one| one.client == *largest).cloned();
        self.idle(Some(*largest)).or_else(|| (most.connections > own + 1).then(oldest).flatten())
    }

    fn remove(&mut self, connection: &Connection) {
        if self.connections.remove(&connection.id).is_none() {
            return;
        }
        let Some(client) = self.clients.get_mut(&connection.client) else { return };
        client.connections -= 1;
        if client.connections == 0 {
            self.clients.remove(&connection.client);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.clients.state().remove(&self.connection);
    }
}

/// Who is at the other end. The kernel says so, as of when it connected; a process that is not in our namespace is 0.
fn peer(credentials: Option<UCred>) -> Peer {
    let pid = credentials.and_then(|credentials| credentials.pid()).filter(|pid| *pid > 0);
    let uid = credentials.map_or(u32::MAX, |credentials| credentials.uid());
    let name = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok());
    let name = name.map(|name| name.trim_end().to_owned()).filter(|name| !name.is_empty());
    Peer { pid, uid, name: name.unwrap_or_else(|| format!("uid {uid}")).into() }
}
