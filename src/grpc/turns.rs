//! Fair scheduling of calls: calls of one client beyond its share wait, while others proceed. Waiting clients
//! are served round-robin, one call at a time.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// A client with fewer open calls than this is admitted regardless of the total, which can exceed its limit
/// by this much for each connection.
const FEW: usize = 8;

/// Limits on the number of calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// Running calls of all clients, and of one.
    pub(super) running: usize,
    pub(super) running_each: usize,
    /// Running and waiting calls, and those being sent to the client; more are refused at once, except for
    /// [`FEW`] of each client.
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
    /// Clients with waiting calls that may run, each once, in the order of their turns.
    ring: VecDeque<u64>,
}

#[derive(Debug, Default)]
struct Client {
    open: usize,
    running: usize,
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
    in_ring: bool,
}

/// A call that counts as open.
#[derive(Debug)]
pub(super) struct Admitted {
    turns: Arc<Turns>,
    client: u64,
}

/// Permission to run a call, until dropped.
#[derive(Debug)]
pub(super) struct Turn<'a>(&'a Admitted);

impl Turns {
    pub(super) fn new(share: Share) -> Arc<Self> {
        Arc::new(Self { share, state: Mutex::default() })
    }

    /// Admits a call of this client if there is room. If processes cannot be distinguished, a client has as
    /// many shares as connections and can take all the room, so clients with few calls are admitted
    /// regardless.
    pub(super) fn enter(self: &Arc<Self>, client: u64) -> Option<Admitted> {
        let state = &mut *self.state();
        let calls = state.clients.get(&client).map_or(0, |client| client.open);
        if state.open >= self.share.open && calls >= FEW || calls >= self.share.open_each {
            return None;
        }
        state.open += 1;
        state.clients.entry(client).or_default().open += 1;
        Some(Admitted { turns: Arc::clone(self), client })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Admitted {
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
        let mut waiting = Waiting { call: self, ticket, over: false };
        // The sender is dropped only with the grant.
        let _ = granted.await;
        waiting.over = true;
        Turn(self)
    }
}

impl State {
    /// Puts a client with calls that may run at the end of the ring.
    fn line_up(&mut self, id: u64, share: Share) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if !client.in_ring && !client.waiting.is_empty() && client.running < share.running_each {
            client.in_ring = true;
            self.ring.push_back(id);
        }
    }

    /// Grants the available turns.
    fn grant(&mut self, share: Share) {
        while self.running < share.running {
            let Some(id) = self.ring.pop_front() else { return };
            let Some(client) = self.clients.get_mut(&id) else { continue };
            client.in_ring = false;
            if let Some((_, grant)) = client.waiting.pop_first() {
                client.running += 1;
                self.running += 1;
                // A waiter that has left returns the turn (`Waiting`).
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
        let Admitted { turns, client } = self.0;
        turns.state().give_back(*client, turns.share);
    }
}

/// A waiting call, which may be canceled meanwhile.
struct Waiting<'a> {
    call: &'a Admitted,
    ticket: u64,
    over: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let Admitted { turns, client } = self.call;
        let mut state = turns.state();
        let waited = state.clients.get_mut(client).and_then(|client| client.waiting.remove(&self.ticket));
        if waited.is_none() {
            state.give_back(*client, turns.share);
        }
    }
}

impl Drop for Admitted {
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

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    const SHARE: Share = Share { running: 4, running_each: 2, open: 20, open_each: 12 };

    /// A client's call that runs or waits.
    type Call<'a> = std::pin::Pin<Box<dyn Future<Output = Turn<'a>> + 'a>>;

    fn poll<'a>(call: &mut Call<'a>) -> Option<Turn<'a>> {
        match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            std::task::Poll::Ready(turn) => Some(turn),
            std::task::Poll::Pending => None,
        }
    }

    #[test]
    fn one_that_floods_does_not_delay_the_others() {
        let turns = Turns::new(SHARE);
        let flood: Vec<_> = (0..6).map(|_| turns.enter(1).unwrap()).collect();
        let other: Vec<_> = (0..2).map(|_| turns.enter(2).unwrap()).collect();
        let mut flood: Vec<Call<'_>> = flood.iter().map(|call| Box::pin(call.turn()) as _).collect();
        let mut running: Vec<_> = flood.iter_mut().filter_map(poll).collect();
        assert_eq!(running.len(), 2, "its share");
        let mut other: Vec<Call<'_>> = other.iter().map(|call| Box::pin(call.turn()) as _).collect();
        assert_eq!(other.iter_mut().filter_map(poll).count(), 2, "at once");
        running.clear();
        assert_eq!(flood[2..].iter_mut().filter_map(poll).collect::<Vec<_>>().len(), 2, "its next ones");
    }

    #[test]
    fn clients_take_turns() {
        let turns = Turns::new(Share { running: 1, running_each: 1, ..SHARE });
        let calls: Vec<_> = [1, 1, 1, 2, 2, 3].iter().map(|client| turns.enter(*client).unwrap()).collect();
        let mut waiting: Vec<(u64, Call<'_>)> =
            calls.iter().map(|call| (call.client, Box::pin(call.turn()) as _)).collect();
        let mut order = Vec::new();
        while !waiting.is_empty() {
            let polled = waiting.iter_mut().enumerate().filter_map(|(at, (_, call))| Some((at, poll(call)?)));
            let ready: Vec<_> = polled.collect();
            let [(at, _)] = ready[..] else { panic!("{ready:?}") };
            order.push(waiting[at].0);
            drop(waiting.remove(at));
        }
        assert_eq!(order, [1, 2, 3, 1, 2, 1]);
    }

    #[test]
    fn who_leaves_is_not_waited_for() {
        let turns = Turns::new(Share { running: 1, running_each: 1, ..SHARE });
        let calls: Vec<_> = (0..4).map(|_| turns.enter(1).unwrap()).collect();
        let mut waiting: Vec<Call<'_>> = calls.iter().map(|call| Box::pin(call.turn()) as _).collect();
        let first = poll(&mut waiting[0]);
        assert!(first.is_some());
        assert!(waiting.iter_mut().skip(1).all(|call| poll(call).is_none()));
        // One is canceled while it waits, one after its grant but before it learns of it.
        drop(waiting.remove(1));
        drop(first);
        drop(waiting.remove(1));
        assert!(poll(&mut waiting[1]).is_some());
        drop(waiting);
        drop(calls);
        let state = turns.state();
        assert_eq!((state.open, state.running, state.clients.len()), (0, 0, 0));
    }

    #[test]
    fn open_calls_are_bounded() {
        let turns = Turns::new(SHARE);
        let mut calls: Vec<_> = (0..12).map(|_| turns.enter(1).unwrap()).collect();
        assert!(turns.enter(1).is_none(), "of one client");
        calls.extend((0..8).map(|_| turns.enter(2).unwrap()));
        assert!(turns.enter(2).is_none(), "of all");
        // A client with few calls is admitted nevertheless.
        let few: Vec<_> = (0..FEW).map(|_| turns.enter(3).unwrap()).collect();
        assert!(turns.enter(3).is_none());
        drop(few);
        drop(calls.remove(0));
        calls.push(turns.enter(1).unwrap());
        assert!(turns.enter(1).is_none());
        let mut future = pin!(calls[0].turn());
        assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }
}
