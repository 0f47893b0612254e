//! Connected clients, and which connection is closed when there are too many.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerPidfd;
use rustix::fs::{fstat, fstatfs};
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Peer;
use crate::bucket::Bucket;

/// Failed calls of one client per second: beyond that, their responses are delayed. A process with 200
/// connections that all retry at once is within the burst.
const FAILURES: f64 = 200.0;
const BURST: f64 = 400.0;
/// One in this many connections may be a newcomer that has had no successful response yet.
const NEWCOMERS: usize = 4;
/// `PID_FS_MAGIC` of `linux/magic.h`.
const PID_FS_MAGIC: u64 = 0x5049_4446;
/// The frame cost of one client per second (`incoming`). A process with 200 connections that makes 5,000
/// calls per second, and measures its bandwidth with a PING for each as grpc-go may, stays within it. It is a
/// tenth of a core.
const FRAMES: f64 = 262_144.0;
/// The guaranteed frame cost of all clients per second, shared equally.
const SHARES: f64 = 262_144.0;
/// The frame cost per second shared by clients that exceed their guaranteed share. Together the two are a
/// fifth of a core; the calls that these frames make take at most another third.
const COMMON: f64 = 262_144.0;

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    id: u64,
    pub(super) peer: Arc<Peer>,
    /// Whether a call on it has succeeded.
    answered: AtomicBool,
    /// Calls on it that have not ended.
    pub(super) calls: AtomicUsize,
    order: AtomicU8,
    ordered: Notify,
    /// Since when a write has been waiting for the client to read.
    blocked: Mutex<Option<Instant>>,
}

/// A command to a connection. Later ones take precedence.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Order {
    /// Send GOAWAY and finish the calls that were begun.
    Finish = 1,
    /// Send GOAWAY and close: no call was begun.
    Leave,
    /// Close without GOAWAY: its client does not read, or it is displaced while calls run.
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

    /// Records whether a write waits for the client to read.
    pub(super) fn block(&self, blocked: bool) {
        *self.blocked() = blocked.then(Instant::now);
    }

    fn blocked(&self) -> MutexGuard<'_, Option<Instant>> {
        self.blocked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a call on it has succeeded.
    pub(super) fn answer(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
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
    /// The oldest first, without those that were ordered to leave.
    connections: BTreeMap<u64, Arc<Connection>>,
    clients: HashMap<u64, Client>,
    /// The budget for frames beyond the clients' guaranteed shares. Created when first needed.
    common: Option<Bucket>,
}

#[derive(Debug)]
struct Client {
    connections: usize,
    failures: Bucket,
    frames: Bucket,
    /// Its guaranteed share, in seconds of it: the size of a share depends on the number of clients.
    share: Bucket,
}

/// How long not to read from a connection.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Pause {
    /// For what this client has sent.
    pub(super) own: Duration,
    /// For what all clients have sent, if this client's share is spent.
    pub(super) shared: Duration,
}

/// A connection's slot; dropping it frees the slot.
#[derive(Debug)]
pub(super) struct Seat {
    clients: Arc<Clients>,
    pub(super) connection: Arc<Connection>,
}

/// The outcome of admitting a connection.
#[derive(Debug)]
pub(super) enum Admission {
    /// Admitted; with the connection that was closed for it, if any.
    In(Seat, Option<Arc<Connection>>),
    /// Refused: there is no room, and no other client has more connections.
    Full(Arc<Peer>),
}

impl Clients {
    pub(super) fn new(most: usize, most_each: usize) -> Arc<Self> {
        Arc::new(Self { most, most_each, state: Mutex::default() })
    }

    /// Admits a connection. If there are too many, another one is closed ([`State::crowded`]).
    pub(super) fn admit(self: &Arc<Self>, Caller { mut peer, process }: Caller) -> Admission {
        let state = &mut *self.state();
        let id = state.next;
        state.next += 1;
        let client = match (process, peer.pid) {
            (Some(process), _) => process | 1 << 62,
            // Process IDs are below 2^22.
            (None, Some(pid)) => u64::from(pid.unsigned_abs()),
            (None, None) => id | 1 << 63,
        };
        peer.client = client;
        let peer = Arc::new(peer);
        let own = state.clients.get(&client).map_or(0, |client| client.connections);
        let mut gone = None;
        if own >= self.most_each || state.connections.len() >= self.most {
            gone = if own >= self.most_each { state.idle(client) } else { state.crowded(own, self.most) };
            let Some(gone) = &gone else { return Admission::Full(peer) };
            gone.tell(if gone.is_idle() { Order::Leave } else { Order::Drop });
            state.remove(gone);
        }
        let connection = Arc::new(Connection {
            id,
            peer,
            answered: AtomicBool::new(false),
            calls: AtomicUsize::new(0),
            order: AtomicU8::new(0),
            ordered: Notify::new(),
            blocked: Mutex::default(),
        });
        state.connections.insert(id, Arc::clone(&connection));
        state.clients.entry(client).or_insert_with(Client::new).connections += 1;
        Admission::In(Seat { clients: Arc::clone(self), connection }, gone)
    }

    /// Sends an order to all connections.
    pub(super) fn tell(&self, order: Order) {
        self.state().connections.values().for_each(|connection| connection.tell(order));
    }

    /// Returns the connections that have not read for `patience`, although there was data. If the caller was
    /// not `attentive`, all timeouts restart.
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

    /// Charges the cost of received frames and returns how long to wait before reading more from the
    /// connection.
    pub(super) fn pace(&self, connection: &Connection, cost: usize) -> Pause {
        let (state, now) = (&mut *self.state(), Instant::now());
        let part = cost as f64 * state.clients.len() as f64 / SHARES;
        let Some(client) = state.clients.get_mut(&connection.peer.client) else { return Pause::default() };
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        let own = client.frames.take_many(cost, now);
        if client.share.take_unless_in_debt(part, now) {
            return Pause { own, ..Pause::default() };
        }
        let common = state.common.get_or_insert_with(|| Bucket::new(COMMON, COMMON, now));
        Pause { own, shared: common.take_many(cost, now) }
    }

    /// Records a failed call of this client and returns how long to delay its response.
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
        Self { connections: 0, failures, frames, share: Bucket::new(1.0, 1.0, now) }
    }
}

impl State {
    /// Returns the oldest idle connection of this client.
    fn idle(&self, client: u64) -> Option<Arc<Connection>> {
        self.connections.values().find(|one| one.peer.client == client && one.is_idle()).cloned()
    }

    /// Chooses the connection to close for a new one of a client that has `own` connections. A user with more
    /// than half of all connections gives one up, and within it the client with the most; if most clients
    /// have only one, the least used one.
    fn crowded(&self, own: usize, most: usize) -> Option<Arc<Connection>> {
        let pool = self.pool();
        let count =
            |one: &Connection| self.clients.get(&one.peer.client).map_or(0, |client| client.connections);
        let single: Vec<_> = pool.iter().copied().filter(|one| count(one) == 1).collect();
        let largest = pool.iter().max_by_key(|one| count(one))?;
        let most_each = count(largest);
        if most_each == 1 || single.len() > most / 2 {
            return least(&single, most / NEWCOMERS).cloned();
        }
        let oldest = || pool.iter().find(|one| one.peer.client == largest.peer.client).copied().cloned();
        self.idle(largest.peer.client).or_else(|| (most_each > own + 1).then(oldest).flatten())
    }

    /// Returns the connections of the user that has more than half of them, else all; the oldest first.
    fn pool(&self) -> Vec<&Arc<Connection>> {
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

/// Chooses the least used of these connections, each of a different client; the oldest come first. Those
/// without a successful call are newcomers, `newcomers` of which are given time to succeed, and clients whose
/// calls all fail. Of the others the newest is chosen: a client that opens connections to displace others
/// comes late.
fn least<'a>(single: &[&'a Arc<Connection>], newcomers: usize) -> Option<&'a Arc<Connection>> {
    let (answered, strange): (Vec<_>, Vec<_>) = single.iter().copied().partition(|one| one.is_answered());
    let stranger = strange.iter().find(|one| one.is_idle());
    if strange.len() > newcomers {
        return stranger.or(strange.first()).copied();
    }
    let idle = answered.iter().rev().find(|one| one.is_idle()).or(stranger);
    idle.or(answered.last()).or(strange.first()).copied()
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.clients.state().remove(&self.connection);
    }
}

/// The peer of a connection.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) peer: Peer,
    /// The inode of its process in the kernel's pidfs: unique, and visible across PID namespaces.
    pub(super) process: Option<u64>,
}

/// Returns the peer of a connection, as recorded by the kernel at connect time; the PID of a process outside
/// our namespace is 0.
pub(super) fn caller(stream: &UnixStream) -> Caller {
    let credentials = stream.peer_cred().ok();
    let pid = credentials.and_then(|credentials| credentials.pid()).filter(|pid| *pid > 0);
    let uid = credentials.map_or(u32::MAX, |credentials| credentials.uid());
    let name = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok());
    let name = name.map(|name| name.trim_end().to_owned()).filter(|name| !name.is_empty());
    let name = name.unwrap_or_else(|| format!("uid {uid}")).into();
    let peer = Peer { pid, uid, name, client: 0 };
    Caller { peer, process: process(stream) }
}

/// Returns the pidfs inode of the peer's process. `SO_PEERPIDFD` exists since Linux 6.5, an inode for each
/// process since 6.9; before that, all pidfds shared one.
fn process(stream: &UnixStream) -> Option<u64> {
    let process = getsockopt(stream, PeerPidfd).ok()?;
    let known = fstatfs(&process).is_ok_and(|place| place.f_type as u64 == PID_FS_MAGIC);
    known.then(|| fstat(&process).ok()).flatten().map(|found| found.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(pid: i32) -> Caller {
        let peer = Peer { pid: (pid > 0).then_some(pid), uid: 0, name: "test".into(), client: 0 };
        Caller { peer, process: None }
    }

    /// Admits a connection and returns the ID of the connection that was closed for it.
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
        // Process 9 has three now, the most: its own oldest is closed.
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

    /// Marks a connection as having had a successful call.
    fn answered(seats: &[Seat], id: u64) {
        seats.iter().find(|seat| seat.connection.id == id).unwrap().connection.answer();
    }

    #[test]
    fn where_clients_have_one_each_the_one_that_did_least_goes() {
        let (clients, seats) = (Clients::new(8, 4), &mut Vec::new());
        for _ in 0..8 {
            assert_eq!(admit(&clients, seats, 0), Ok(None));
        }
        [0, 1, 4, 5].into_iter().for_each(|id| answered(seats, id));
        busy(seats, &[2]);
        assert_eq!(admit(&clients, seats, 0), Ok(Some(3)), "the oldest without an answer that is idle");
        [6, 7].into_iter().for_each(|id| answered(seats, id));
        // Two newcomers are still given time: the newest other idle connection is closed.
        busy(seats, &[7]);
        assert_eq!(admit(&clients, seats, 0), Ok(Some(6)));
        assert_eq!(admit(&clients, seats, 0), Ok(Some(8)), "that are three newcomers");
        [2, 9, 10].into_iter().for_each(|id| answered(seats, id));
        busy(seats, &(0..=10).collect::<Vec<_>>());
        assert_eq!(admit(&clients, seats, 0), Ok(Some(10)), "where all are at work the newest");
    }

    /// An attacker with the same user as everyone else, whose processes cannot be distinguished, or differ
    /// for each connection.
    #[test]
    fn nobody_is_locked_out_by_connections() {
        for pid in [|_| 0, |number| 1000 + number] {
            let (clients, seats) = (Clients::new(512, 256), &mut Vec::new());
            admit(&clients, seats, pid(0)).unwrap();
            answered(seats, 0);
            let gone = (1..1000).filter_map(|number| admit(&clients, seats, pid(number)).unwrap());
            let gone: Vec<u64> = gone.collect();
            assert_eq!((gone.len(), gone.contains(&0)), (488, false), "its calls fail");
            admit(&clients, seats, pid(1000)).unwrap();
            answered(seats, 1000);
            for number in 1001..2000 {
                assert!(!matches!(admit(&clients, seats, pid(number)), Ok(Some(0 | 1000))));
            }
            for number in 2000..3000 {
                let gone = admit(&clients, seats, pid(number)).unwrap().unwrap();
                assert!(gone != 0 && gone < number as u64, "its calls are answered: {gone}");
                answered(seats, number as u64);
            }
        }
    }

    #[test]
    fn the_user_with_more_than_half_makes_room() {
        let (clients, seats) = (Clients::new(9, 4), &mut Vec::new());
        for number in 0..9 {
            let mut caller = client(100 + number);
            caller.peer.uid = if number % 2 == 0 { 7 } else { 0 };
            let Admission::In(seat, None) = clients.admit(caller) else { panic!("there is room") };
            seats.push(seat);
        }
        (0..9).for_each(|id| answered(seats, id));
        assert_eq!(admit(&clients, seats, 1), Ok(Some(8)));
        // No user has more than half now: the newest of all is closed.
        answered(seats, 9);
        assert_eq!(admit(&clients, seats, 2), Ok(Some(9)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_frames_of_all_are_bounded_and_who_sends_few_does_not_wait() {
        let (clients, seats) = (Clients::new(512, 256), &mut Vec::new());
        for pid in 1..=100 {
            admit(&clients, seats, pid).unwrap();
        }
        // Each is read again after its pause; the first one makes a call with a cost of some 40 now and then.
        let (begun, mut next, mut spent) = (Instant::now(), vec![Instant::now(); 100], 0);
        while begun.elapsed() < Duration::from_secs(10) {
            let now = Instant::now();
            for (at, seat) in seats.iter().enumerate() {
                if next[at] > now {
                    continue;
                }
                let cost = if at == 0 { 40 } else { 1000 };
                let pause = clients.pace(&seat.connection, cost);
                assert!(at > 0 || pause == Pause::default(), "{pause:?} for few");
                spent += cost;
                next[at] = now + pause.own.max(pause.shared).max(Duration::from_millis(20));
            }
            tokio::time::advance(Duration::from_millis(5)).await;
        }
        // Ten seconds, and the initial burst.
        let most = 11.5 * (SHARES + COMMON);
        assert!((spent as f64) < most, "{spent} of {most}");
        assert!(spent as f64 > 0.8 * most, "{spent} of {most}");
    }
}
