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
/// What the frames of one client may cost in a second (`incoming`): a client that makes 10,000 calls in a second and measures
/// its bandwidth with a PING for each, as grpc-go may, is within it. At the limit, PINGs take a sixth of a core.
const FRAMES: f64 = 262_144.0;

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
    /// Since when a write waits for the client to read.
    blocked: Mutex<Option<Instant>>,
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

    /// A write waits for the client to read, or does not any more.
    pub(super) fn block(&self, blocked: bool) {
        *self.blocked() = blocked.then(Instant::now);
    }

    fn blocked(&self) -> MutexGuard<'_, Option<Instant>> {
        self.blocked.lock().unwrap_or_else(PoisonError::into_inner)
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
    frames: Bucket,
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
    pub(super) fn admit(self: &Arc<Self>, peer: Peer) -> Admission {
        let state = &mut *self.state();
        let id = state.next;
        state.next += 1;
        let peer = Arc::new(peer);
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
        let connection = Arc::new(Connection {
            id,
            client,
            peer,
            calls: AtomicUsize::new(0),
            order: AtomicU8::new(0),
            ordered: Notify::new(),
            blocked: Mutex::default(),
        });
        state.connections.insert(id, Arc::clone(&connection));
        state.clients.entry(client).or_insert_with(Client::new).connections += 1;
        Admission::In(Seat { clients: Arc::clone(self), connection }, gone)
    }

    /// Tells all of them.
    pub(super) fn tell(&self, order: Order) {
        self.state().connections.values().for_each(|connection| connection.tell(order));
    }

    /// The connections that did not read for so long, though there was something.
    pub(super) fn unread(&self, patience: Duration, attentive: bool) -> Vec<Arc<Connection>> {
        let (state, now) = (self.state(), Instant::now());
        let unread = |one: &&Arc<Connection>| match &mut *one.blocked() {
            Some(since) if !attentive => {
                *since = now;
                false
            }
            Some(since) => now - *since >= patience,
            None => false,
        };
        state.connections.values().filter(unread).cloned().collect()
    }

    /// How long to wait before more is read of a connection, of which frames came that cost so much.
    pub(super) fn pace(&self, connection: &Connection, cost: u32) -> Duration {
        let mut state = self.state();
        let client = state.clients.get_mut(&connection.client);
        client.map_or(Duration::ZERO, |client| client.frames.take_many(cost, Instant::now()))
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

impl Client {
    fn new() -> Self {
        let now = Instant::now();
        let (failures, frames) = (Bucket::new(FAILURES, BURST, now), Bucket::new(FRAMES, FRAMES, now));
        Self { connections: 0, failures, frames }
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
pub(super) fn peer(credentials: Option<UCred>) -> Peer {
    let pid = credentials.and_then(|credentials| credentials.pid()).filter(|pid| *pid > 0);
    let uid = credentials.map_or(u32::MAX, |credentials| credentials.uid());
    let name = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok());
    let name = name.map(|name| name.trim_end().to_owned()).filter(|name| !name.is_empty());
    Peer { pid, uid, name: name.unwrap_or_else(|| format!("uid {uid}")).into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(pid: i32) -> Peer {
        Peer { pid: (pid > 0).then_some(pid), uid: 0, name: "test".into() }
    }

    /// Lets one in that has to find room: the number of the connection that went for it.
    fn admit(clients: &Arc<Clients>, seats: &mut Vec<Seat>, pid: i32) -> Result<Option<u64>, ()> {
        match clients.admit(client(pid)) {
            Admission::In(seat, gone) => {
                seats.push(seat);
                Ok(gone.map(|gone| gone.id))
            }
            Admission::Full(_) => Err(()),
        }
    }

    fn busy(seats: &[Seat], ids: &[u64]) {
        for seat in seats.iter().filter(|seat| ids.contains(&seat.connection.id)) {
            seat.connection.calls.store(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_client_with_the_most_connections_makes_room() {
        let (clients, seats) = (Clients::new(6, 4), &mut Vec::new());
        for pid in [7, 8, 8, 8, 9, 9] {
            assert_eq!(admit(&clients, seats, pid), Ok(None));
        }
        busy(seats, &[1]);
        assert_eq!(admit(&clients, seats, 9), Ok(Some(2)), "8 has the most, and is at work on its oldest");
        assert_eq!(seats[2].connection.order.load(Ordering::Relaxed), Order::Leave as u8);
        // 9 has three now, which is the most: its own oldest goes.
        assert_eq!(admit(&clients, seats, 9), Ok(Some(4)));
        busy(seats, &[5, 6, 7]);
        assert_eq!(admit(&clients, seats, 9), Err(()), "all of its own are at work");
        assert_eq!(admit(&clients, seats, 10), Ok(Some(5)), "a newcomer comes in nevertheless");
        assert_eq!(seats[5].connection.order.load(Ordering::Relaxed), Order::Drop as u8);
        seats.clear();
        assert!(clients.state().connections.is_empty() && clients.state().clients.is_empty());
    }

    #[test]
    fn nobody_has_more_than_its_share() {
        let (clients, seats) = (Clients::new(100, 3), &mut Vec::new());
        for _ in 0..3 {
            assert_eq!(admit(&clients, seats, 5), Ok(None));
        }
        busy(seats, &[0]);
        assert_eq!(admit(&clients, seats, 5), Ok(Some(1)));
        busy(seats, &[2, 3]);
        assert_eq!(admit(&clients, seats, 5), Err(()));
        assert_eq!(admit(&clients, seats, 6), Ok(None));
    }

    #[test]
    fn where_processes_are_unknown_each_connection_is_a_client() {
        let (clients, seats) = (Clients::new(3, 2), &mut Vec::new());
        for _ in 0..3 {
            assert_eq!(admit(&clients, seats, 0), Ok(None));
        }
        busy(seats, &[0]);
        assert_eq!(admit(&clients, seats, 0), Ok(Some(1)), "the oldest that is idle");
        busy(seats, &[2, 3]);
        assert_eq!(admit(&clients, seats, 0), Err(()));
    }
}
