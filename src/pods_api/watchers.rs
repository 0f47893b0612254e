//! The watchers of one list and their unread events. A watcher is a position in a shared ring buffer; one
//! that falls behind by more than the buffer is cut off, as in the kubelet.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use prost::bytes::Bytes;
use tokio::time::Instant;
use tonic::Status;

use super::board::{ADDED, event};
use crate::grpc::Message;

/// Maximum number of unread events: the kubelet's buffer per watcher (`WatchPods`: `make(chan PodWatchEvent,
/// 100)`).
pub(super) const BEHIND: usize = 100;

/// Age of the oldest unread event from which the limit applies. A burst, such as changes of all pods after a
/// new kubelet or pod source, then does not cut off a watcher that reads.
const CHANCE: Duration = Duration::from_secs(1);

/// `type: INITIAL_SYNC_COMPLETE`, without a pod.
const COMPLETE: &[u8] = &[8, 4];

/// Metrics of the watchers.
pub(super) trait Tally: fmt::Debug + Send + Sync + 'static {
    /// Changes the number of watchers.
    fn watchers(&self, more: i64);

    /// Counts watchers that were cut off because they were too slow.
    fn cut(&self, watchers: usize);

    /// Records the time from an event's arrival until the last watcher got it.
    fn heard(&self, after: Duration);
}

/// The watchers of one list.
#[derive(Debug)]
pub(super) struct Watchers {
    /// Maximum bytes of unread events: half the budget of all pods, or three times as much in a burst.
    /// Clients that do not read occupy this memory, and users who change pods decide how many events there
    /// are.
    most: usize,
    /// Bytes of the events in the ring.
    bytes: usize,
    /// Events that a watcher has not read; the first has the position `first`.
    ring: VecDeque<Event>,
    first: u64,
    next: u64,
    all: BTreeMap<u64, Watcher>,
    /// Whether the server is stopping.
    closed: bool,
    tally: Arc<dyn Tally>,
}

#[derive(Debug)]
struct Event {
    message: Message,
    /// When it arrived.
    at: Instant,
    /// How many watchers have not read it.
    left: usize,
}

#[derive(Debug)]
struct Watcher {
    /// The pods it gets first, and how many of them it has got.
    initial: Option<(Arc<[Bytes]>, usize)>,
    /// Its position in the ring.
    at: u64,
    waker: Option<Waker>,
    /// Whether to wake it for a new event. If not, it still has an unsent message and is only woken when it
    /// is ended.
    listens: bool,
    /// Why its watch ends, if it does.
    over: Option<Over>,
}

/// Why a watch ends.
#[derive(Clone, Copy, Debug)]
enum Over {
    Behind,
    Closed,
    Told,
}

impl Watchers {
    pub(super) fn new(most: usize, tally: Arc<dyn Tally>) -> Self {
        let (ring, all) = (VecDeque::new(), BTreeMap::new());
        Self { most, bytes: 0, ring, first: 0, next: 0, all, closed: false, tally }
    }

    /// Adds a watcher. It gets `initial` first, then the marker, then the events pushed from now on.
    pub(super) fn join(&mut self, initial: Arc<[Bytes]>) -> u64 {
        let id = self.next;
        self.next += 1;
        let (at, over) = (self.end(), self.closed.then_some(Over::Closed));
        self.all.insert(id, Watcher { initial: Some((initial, 0)), at, waker: None, listens: false, over });
        self.tally.watchers(1);
        id
    }

    /// Removes a watcher.
    pub(super) fn leave(&mut self, id: u64) {
        let Some(watcher) = self.all.remove(&id) else { return };
        self.tally.watchers(-1);
        if watcher.over.is_none() {
            self.release(watcher.at);
        }
    }

    /// Sends an event to all watchers; `pods` is the length of the list.
    pub(super) fn push(&mut self, message: Message, at: Instant, pods: usize) {
        let listen = |watcher: &&mut Watcher| watcher.over.is_none();
        while self.is_full(at, pods) {
            self.cut_last();
        }
        let mut left = 0;
        for watcher in self.all.values_mut().filter(listen) {
            left += 1;
            if watcher.listens {
                watcher.wake();
            }
        }
        if left > 0 {
            self.bytes += message.len();
            self.ring.push_back(Event { message, at, left });
        }
    }

    /// Returns true if too much is buffered for a new event.
    fn is_full(&self, at: Instant, pods: usize) -> bool {
        let waited = self.ring.front().map_or(Duration::ZERO, |event| at.saturating_duration_since(event.at));
        let (events, bytes) = match waited >= CHANCE {
            true => (BEHIND, self.most),
            // All pods may be deleted and as many added at once.
            false => (BEHIND + 2 * pods, 3 * self.most),
        };
        self.ring.len() >= events || self.bytes >= bytes
    }

    /// Cuts off the watchers that are furthest behind.
    fn cut_last(&mut self) {
        let (first, mut gone) = (self.first, 0);
        let last = |watcher: &&mut Watcher| watcher.over.is_none() && watcher.at == first;
        for watcher in self.all.values_mut().filter(last) {
            watcher.end(Over::Behind);
            gone += 1;
        }
        self.tally.cut(gone);
        self.ring.iter_mut().for_each(|event| event.left -= gone);
        self.trim();
    }

    /// Ends all watches.
    pub(super) fn close(&mut self) {
        self.closed = true;
        for watcher in self.all.values_mut().filter(|watcher| watcher.over.is_none()) {
            watcher.end(Over::Closed);
        }
        self.first = self.end();
        self.ring.clear();
        self.bytes = 0;
    }

    /// Polls a watcher's next event.
    pub(super) fn poll(&mut self, id: u64, context: &Context<'_>) -> Poll<Option<Result<Message, Status>>> {
        let end = self.end();
        let Some(watcher) = self.all.get_mut(&id) else { return Poll::Ready(None) };
        if let Some(over) = &mut watcher.over {
            return Poll::Ready(std::mem::replace(over, Over::Told).status().map(Err));
        }
        if let Some((initial, heard)) = &mut watcher.initial {
            let next = initial.get(*heard).map(|content| event(ADDED, content.clone()));
            *heard += 1;
            if next.is_none() {
                watcher.initial = None;
            }
            return Poll::Ready(Some(Ok(next.unwrap_or_else(|| Message::new(COMPLETE, Bytes::new())))));
        }
        if watcher.at == end {
            watcher.wait(context, true);
            return Poll::Pending;
        }
        let index = usize::try_from(watcher.at - self.first).unwrap_or(usize::MAX);
        watcher.at += 1;
        let Some(event) = self.ring.get_mut(index) else { return Poll::Ready(None) };
        event.left -= 1;
        let message = event.message.clone();
        if event.left == 0 {
            self.tally.heard(event.at.elapsed());
            self.trim();
        }
        Poll::Ready(Some(Ok(message)))
    }

    /// Ready when a watcher that has not taken its current message is cut off because it is too slow.
    pub(super) fn poll_over(&mut self, id: u64, context: &Context<'_>) -> Poll<()> {
        match self.all.get_mut(&id) {
            Some(watcher) if watcher.over.is_none() => {
                watcher.wait(context, false);
                Poll::Pending
            }
            // It was not too slow: the server gives it time to read the status.
            Some(Watcher { over: Some(Over::Closed), .. }) => Poll::Pending,
            _ => Poll::Ready(()),
        }
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.ring.len()
    }

    #[cfg(test)]
    pub(super) fn waiting_bytes(&self) -> usize {
        let bytes = self.ring.iter().map(|event| event.message.len()).sum();
        assert_eq!(self.bytes, bytes);
        bytes
    }

    /// Returns the position of the next event.
    fn end(&self) -> u64 {
        self.first + self.ring.len() as u64
    }

    /// Marks the events from this position on as read by one more watcher.
    fn release(&mut self, at: u64) {
        let unheard = usize::try_from(at - self.first).unwrap_or(usize::MAX);
        self.ring.iter_mut().skip(unheard).for_each(|event| event.left -= 1);
        self.trim();
    }

    /// Drops the events that all watchers have read.
    fn trim(&mut self) {
        while let Some(event) = self.ring.front().filter(|event| event.left == 0) {
            self.bytes -= event.message.len();
            self.ring.pop_front();
            self.first += 1;
        }
    }
}

impl Watcher {
    fn end(&mut self, over: Over) {
        (self.over, self.initial) = (Some(over), None);
        self.wake();
    }

    fn wait(&mut self, context: &Context<'_>, listens: bool) {
        self.listens = listens;
        // It is usually the same waker: `clone_from` then avoids a clone.
        match &mut self.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Over {
    fn status(self) -> Option<Status> {
        match self {
            Self::Behind => Some(Status::resource_exhausted("watch client channel closed")),
            Self::Closed => Some(Status::unavailable("numacast stops serving pods: connect again")),
            Self::Told => None,
        }
    }
}
