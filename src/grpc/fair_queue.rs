//! Fair queueing of calls: calls of one client beyond its limit wait, while others proceed. Waiting clients
//! are served round-robin, one call at a time.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use super::Limits;
use crate::util::sync::lock;

/// A client with fewer open calls than this is admitted regardless of the total, which can exceed its limit
/// by this much for each connection.
const MIN_OPEN_CALLS: usize = 8;

#[derive(Debug)]
pub(super) struct FairQueue(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    limits: Limits,
    open: usize,
    running: usize,
    next_ticket: u64,
    clients: HashMap<u64, Client>,
    /// Clients with waiting calls that may run, each once, in the order in which they are served.
    ready: VecDeque<u64>,
}

#[derive(Debug, Default)]
struct Client {
    open: usize,
    running: usize,
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
    is_ready: bool,
}

/// A call that counts as open, until dropped.
#[derive(Debug)]
pub(super) struct OpenCall {
    queue: Arc<FairQueue>,
    client: u64,
}

/// A call's place in the queue and, once it was granted, its permission to run; until dropped.
#[derive(Debug)]
pub(super) struct RunPermit<'a> {
    call: &'a OpenCall,
    ticket: u64,
}

impl FairQueue {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { limits, ..State::default() })))
    }

    /// Opens a call of this client, unless there are too many. If processes cannot be distinguished, each
    /// connection counts as a client, and one process could use up the total. So a client with few calls is
    /// always admitted.
    pub(super) fn open(self: &Arc<Self>, client: u64) -> Option<OpenCall> {
        let state = &mut *lock(&self.0);
        let calls = state.clients.get(&client).map_or(0, |client| client.open);
        let Limits { open_calls, open_calls_per_client, .. } = state.limits;
        if state.open >= open_calls && calls >= MIN_OPEN_CALLS || calls >= open_calls_per_client {
            return None;
        }
        state.open += 1;
        state.clients.entry(client).or_default().open += 1;
        Some(OpenCall { queue: Arc::clone(self), client })
    }
}

impl OpenCall {
    pub(super) async fn acquire(&self) -> RunPermit<'_> {
        let (permit, granted) = {
            let mut state = lock(&self.queue.0);
            let ticket = state.next_ticket;
            state.next_ticket += 1;
            let (grant, granted) = oneshot::channel();
            if let Some(client) = state.clients.get_mut(&self.client) {
                client.waiting.insert(ticket, grant);
            }
            state.enqueue(self.client);
            state.grant();
            (RunPermit { call: self, ticket }, granted)
        };
        // The sender is dropped only with the grant.
        let _ = granted.await;
        permit
    }
}

impl State {
    fn enqueue(&mut self, id: u64) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let may_run = client.running < self.limits.running_calls_per_client;
        if !client.is_ready && !client.waiting.is_empty() && may_run {
            client.is_ready = true;
            self.ready.push_back(id);
        }
    }

    fn grant(&mut self) {
        while self.running < self.limits.running_calls {
            let Some(id) = self.ready.pop_front() else { return };
            let Some(client) = self.clients.get_mut(&id) else { continue };
            client.is_ready = false;
            if let Some((_, grant)) = client.waiting.pop_first() {
                client.running += 1;
                self.running += 1;
                // A waiter that has left releases the permit.
                let _ = grant.send(());
            }
            self.enqueue(id);
        }
    }
}

impl Drop for RunPermit<'_> {
    fn drop(&mut self) {
        let OpenCall { queue, client: id } = self.call;
        let state = &mut *lock(&queue.0);
        let Some(client) = state.clients.get_mut(id) else { return };
        // It was granted if it no longer waits.
        if client.waiting.remove(&self.ticket).is_none() {
            client.running -= 1;
            state.running -= 1;
            state.enqueue(*id);
            state.grant();
        }
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        let mut state = lock(&self.queue.0);
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
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn limits() -> Limits {
        Limits {
            running_calls: 4,
            running_calls_per_client: 2,
            open_calls: 20,
            open_calls_per_client: 12,
            ..Limits::default()
        }
    }

    fn one_at_a_time() -> Limits {
        Limits { running_calls: 1, running_calls_per_client: 1, ..limits() }
    }

    /// A client's call that runs or waits.
    type Acquire<'a> = Pin<Box<dyn Future<Output = RunPermit<'a>> + 'a>>;

    fn poll<'a>(call: &mut Acquire<'a>) -> Option<RunPermit<'a>> {
        match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_client_with_many_calls_does_not_delay_the_others() {
        let queue = FairQueue::new(limits());
        let many: Vec<_> = (0..6).map(|_| queue.open(1).unwrap()).collect();
        let other: Vec<_> = (0..2).map(|_| queue.open(2).unwrap()).collect();
        let mut many: Vec<Acquire<'_>> = many.iter().map(|call| Box::pin(call.acquire()) as _).collect();
        let mut running: Vec<_> = many.iter_mut().filter_map(poll).collect();
        assert_eq!(running.len(), 2, "its limit");
        let mut other: Vec<Acquire<'_>> = other.iter().map(|call| Box::pin(call.acquire()) as _).collect();
        assert_eq!(other.iter_mut().filter_map(poll).count(), 2, "at once");
        running.clear();
        assert_eq!(many[2..].iter_mut().filter_map(poll).collect::<Vec<_>>().len(), 2, "its next ones");
    }

    #[test]
    fn clients_are_served_round_robin() {
        let queue = FairQueue::new(one_at_a_time());
        let calls: Vec<_> = [1, 1, 1, 2, 2, 3].iter().map(|client| queue.open(*client).unwrap()).collect();
        let mut waiting: Vec<(u64, Acquire<'_>)> =
            calls.iter().map(|call| (call.client, Box::pin(call.acquire()) as _)).collect();
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
    fn a_canceled_call_releases_its_place() {
        let queue = FairQueue::new(one_at_a_time());
        let calls: Vec<_> = (0..4).map(|_| queue.open(1).unwrap()).collect();
        let mut waiting: Vec<Acquire<'_>> = calls.iter().map(|call| Box::pin(call.acquire()) as _).collect();
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
        let state = lock(&queue.0);
        assert_eq!((state.open, state.running, state.clients.len()), (0, 0, 0));
    }

    #[test]
    fn open_calls_are_bounded() {
        let queue = FairQueue::new(limits());
        let mut calls: Vec<_> = (0..12).map(|_| queue.open(1).unwrap()).collect();
        assert!(queue.open(1).is_none(), "of one client");
        calls.extend((0..8).map(|_| queue.open(2).unwrap()));
        assert!(queue.open(2).is_none(), "of all");
        // A client with few calls is admitted nevertheless.
        let few: Vec<_> = (0..MIN_OPEN_CALLS).map(|_| queue.open(3).unwrap()).collect();
        assert!(queue.open(3).is_none());
        drop(few);
        drop(calls.remove(0));
        calls.push(queue.open(1).unwrap());
        assert!(queue.open(1).is_none());
        let mut future = pin!(calls[0].acquire());
        assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }
}
