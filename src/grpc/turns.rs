//! Who may work when: calls of one client beyond its share wait, those of others go on. Whoever waits is served in turn,
//! one call of each client after the other.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// How many calls there may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// At work, of all clients and of one.
    pub(super) running: usize,
    pub(super) running_each: usize,
    /// At work, waiting, and being sent to the client; those beyond it are refused at once.
    pub(super) open: usize,
    pub(super) open_each: usize,
}

/// The calls of all clients.
#[derive(Debug)]
pub(super) struct Turns {
    share: Share,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    open: usize,
    running: usize,
    /// The next ticket.
    next: u64,
    clients: HashMap<u64, Client>,
    /// Clients with calls that wait and could run, each once, in the order of their turns.
    ring: VecDeque<u64>,
}

#[derive(Debug, Default)]
struct Client {
    open: usize,
    running: usize,
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
    in_ring: bool,
}

/// A call's place among the open ones.
#[derive(Debug)]
pub(super) struct Place {
    turns: Arc<Turns>,
    client: u64,
}

/// A call may work while this lives.
#[derive(Debug)]
pub(super) struct Turn<'a>(&'a Place);

impl Turns {
    pub(super) fn new(share: Share) -> Arc<Self> {
        Arc::new(Self { share, state: Mutex::default() })
    }

    /// A place for a call of this client, if there is one.
    pub(super) fn enter(self: &Arc<Self>, client: u64) -> Option<Place> {
        let state = &mut *self.state();
        let calls = state.clients.get(&client).map_or(0, |client| client.open);
        if state.open >= self.share.open || calls >= self.share.open_each {
            return None;
        }
        state.open += 1;
        state.clients.entry(client).or_default().open += 1;
        Some(Place { turns: Arc::clone(self), client })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Waits for the call's turn.
    pub(super) async fn turn(&self) -> Turn<'_> {
        let (ticket, granted) = {
            let mut state = self.turns.state();
            let ticket = state.next;
            state.next += 1;
            let (grant, granted) = oneshot::channel();
            if let Some(client) = state.clients.get_mut(&self.client) {
                client.waiting.insert(ticket, grant);
            }
            state.line_up(self.client, self.turns.share);
            state.grant(self.turns.share);
            (ticket, granted)
        };
        let mut waiting = Waiting { place: self, ticket, over: false };
        // The sender goes with the grant only.
        let _ = granted.await;
        waiting.over = true;
        Turn(self)
    }
}

impl State {
    /// Puts a client with something to do at the end of the ring.
    fn line_up(&mut self, id: u64, share: Share) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if !client.in_ring && !client.waiting.is_empty() && client.running < share.running_each {
            client.in_ring = true;
            self.ring.push_back(id);
        }
    }

    /// Gives out the turns there are.
    fn grant(&mut self, share: Share) {
        while self.running < share.running {
            let Some(id) = self.ring.pop_front() else { return };
            let Some(client) = self.clients.get_mut(&id) else { continue };
            client.in_ring = false;
            if let Some((_, grant)) = client.waiting.pop_first() {
                client.running += 1;
                self.running += 1;
                // Whoever waited and has left gives the turn back (`Waiting`).
                let _ = grant.send(());
            }
            self.line_up(id, share);
        }
    }

    fn give_back(&mut self, id: u64, share: Share) {
        self.running -= 1;
        if let Some(client) = self.clients.get_mut(&id) {
            client.running -= 1;
        }
        self.line_up(id, share);
        self.grant(share);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Place { turns, client } = self.0;
        turns.state().give_back(*client, turns.share);
    }
}

/// A call that waits, and may leave meanwhile.
struct Waiting<'a> {
    place: &'a Place,
    ticket: u64,
    over: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let Place { turns, client } = self.place;
        let mut state = turns.state();
        let waited = state.clients.get_mut(client).and_then(|client| client.waiting.remove(&self.ticket));
        if waited.is_none() {
            state.give_back(*client, turns.share);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.turns.state();
        state.open -= 1;
        let Some(client) = state.clients.get_mut(&self.client) else { return };
        client.open -= 1;
        if client.open == 0 {
            state.clients.remove(&self.client);
        }
    }
}
