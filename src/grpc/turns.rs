//! Who may work when: calls of one client beyond its share wait, those of others go on. Whoever waits is served in turn,
//! one call of each client after the other.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// A client with fewer calls than this is let in however many others have. At most all connections have so many.
const FEW: usize = 8;

/// How many calls there may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// At work, of all clients and of one.
    pub(super) running: usize,
    pub(super) running_each: usize,
    /// At work, waiting, and being sent to the client; those beyond it are refused at once, but for [`FEW`] of each client.
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

/// A call that is among the open ones.
#[derive(Debug)]
pub(super) struct Admitted {
    turns: Arc<Turns>,
    client: u64,
}

/// A call may work while this lives.
#[derive(Debug)]
pub(super) struct Turn<'a>(&'a Admitted);

impl Turns {
    pub(super) fn new(share: Share) -> Arc<Self> {
        Arc::new(Self { share, state: Mutex::default() })
    }

    /// Takes a call of this client in, if there is room for it. Where processes cannot be told apart one has as many
    /// shares as connections, and takes all the room there is: who has few calls is not refused for that.
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
        let Admitted { turns, client } = self.0;
        turns.state().give_back(*client, turns.share);
    }
}

/// A call that waits, and may leave meanwhile.
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

    /// A call of a client that has its turn, or waits.
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
        // One leaves while it waits, one when its turn has come and it does not know yet.
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
        // Whoever has few is let in nevertheless.
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
