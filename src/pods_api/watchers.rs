//! The watchers of one cache and their unread events. A watcher is a position in a shared ring buffer; one
//! that falls behind by more than the buffer is cut off, as in the kubelet.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use prost::bytes::Bytes;
use tokio::time::Instant;
use tonic::Status;

use crate::grpc::Message;
use crate::util::wire::{put_head, put_number};

/// The event types.
pub(super) const ADDED: u64 = 1;
pub(super) const MODIFIED: u64 = 2;
pub(super) const DELETED: u64 = 3;

/// Field numbers of an event.
const TYPE: u32 = 1;
const POD: u32 = 2;

/// Maximum number of unread events: the kubelet's buffer per watcher (`WatchPods`: `make(chan PodWatchEvent,
/// 100)`).
pub(super) const MAX_UNREAD: usize = 100;

/// Age of the oldest unread event from which the limit applies. A burst, such as changes of all pods after a
/// new kubelet or pod source, then does not cut off a watcher that reads.
const GRACE_PERIOD: Duration = Duration::from_secs(1);

/// `type: INITIAL_SYNC_COMPLETE`, without a pod.
const SYNC_COMPLETE: &[u8] = &[8, 4];

pub(super) trait WatcherObserver: fmt::Debug + Send + Sync + 'static {
    fn watchers(&self, more: i64);

    fn cut_off(&self, watchers: usize);

    /// Records the time from an event's arrival until the last watcher got it.
    fn delivered(&self, after: Duration);
}

#[derive(Debug)]
pub(super) struct Watchers {
    /// Maximum bytes of unread events: half the budget of all pods, or three times as much in a burst.
    /// Clients that do not read occupy this memory, and users who change pods decide how many events there
    /// are.
    max_bytes: usize,
    /// Bytes of the events in the ring.
    bytes: usize,
    /// Events that a watcher has not read; the first has the position `first`.
    ring: VecDeque<Event>,
    first: u64,
    next_id: u64,
    all: BTreeMap<u64, Watcher>,
    /// Whether the server is stopping.
    is_closed: bool,
    observer: Arc<dyn WatcherObserver>,
}

#[derive(Debug)]
struct Event {
    message: Message,
    /// When it arrived.
    at: Instant,
    /// How many watchers have not read it.
    unread_by: usize,
}

#[derive(Debug)]
struct Watcher {
    /// The pods it gets first, and how many of them it has got.
    initial: Option<(Arc<[Bytes]>, usize)>,
    /// Its position in the ring.
    position: u64,
    waker: Option<Waker>,
    /// Whether to wake it for a new event. If not, it still has an unsent message and is only woken when it
    /// is ended.
    awaits_event: bool,
    /// Why its watch ends, if it does.
    end: Option<End>,
}

#[derive(Clone, Copy, Debug)]
enum End {
    TooSlow,
    Closed,
    /// The status was sent.
    Sent,
}

pub(super) fn event(kind: u64, content: Bytes) -> Message {
    let mut head = Vec::new();
    put_number(&mut head, TYPE, kind);
    put_head(&mut head, POD, content.len());
    Message::new(&head, content)
}

impl Watchers {
    pub(super) fn new(max_bytes: usize, observer: Arc<dyn WatcherObserver>) -> Self {
        let (ring, all) = (VecDeque::new(), BTreeMap::new());
        Self { max_bytes, bytes: 0, ring, first: 0, next_id: 0, all, is_closed: false, observer }
    }

    /// Adds a watcher. It gets `initial` first, then the marker, then the events pushed from now on.
    pub(super) fn add(&mut self, initial: Arc<[Bytes]>) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let watcher = Watcher {
            initial: Some((initial, 0)),
            position: self.end(),
            waker: None,
            awaits_event: false,
            end: self.is_closed.then_some(End::Closed),
        };
        self.all.insert(id, watcher);
        self.observer.watchers(1);
        id
    }

    pub(super) fn remove(&mut self, id: u64) {
        let Some(watcher) = self.all.remove(&id) else { return };
        self.observer.watchers(-1);
        if watcher.end.is_none() {
            self.release(watcher.position);
        }
    }

    pub(super) fn push(&mut self, message: Message, at: Instant, pods: usize) {
        while self.is_full(at, pods) {
            self.cut_off_slowest();
        }
        let mut unread_by = 0;
        for watcher in self.all.values_mut().filter(|watcher| watcher.end.is_none()) {
            unread_by += 1;
            if watcher.awaits_event {
                watcher.wake();
            }
        }
        if unread_by > 0 {
            self.bytes += message.len();
            self.ring.push_back(Event { message, at, unread_by });
        }
    }

    fn is_full(&self, at: Instant, pods: usize) -> bool {
        let age = self.ring.front().map_or(Duration::ZERO, |event| at.saturating_duration_since(event.at));
        let (events, bytes) = match age >= GRACE_PERIOD {
            true => (MAX_UNREAD, self.max_bytes),
            // All pods may be deleted and as many added at once.
            false => (MAX_UNREAD + 2 * pods, 3 * self.max_bytes),
        };
        self.ring.len() >= events || self.bytes >= bytes
    }

    fn cut_off_slowest(&mut self) {
        let (first, mut count) = (self.first, 0);
        let is_slowest = |watcher: &&mut Watcher| watcher.end.is_none() && watcher.position == first;
        for watcher in self.all.values_mut().filter(is_slowest) {
            watcher.finish(End::TooSlow);
            count += 1;
        }
        self.observer.cut_off(count);
        self.ring.iter_mut().for_each(|event| event.unread_by -= count);
        self.trim();
    }

    pub(super) fn close(&mut self) {
        self.is_closed = true;
        for watcher in self.all.values_mut().filter(|watcher| watcher.end.is_none()) {
            watcher.finish(End::Closed);
        }
        self.first = self.end();
        self.ring.clear();
        self.bytes = 0;
    }

    pub(super) fn poll(&mut self, id: u64, context: &Context<'_>) -> Poll<Option<Result<Message, Status>>> {
        let end = self.end();
        let Some(watcher) = self.all.get_mut(&id) else { return Poll::Ready(None) };
        if let Some(end) = &mut watcher.end {
            return Poll::Ready(std::mem::replace(end, End::Sent).status().map(Err));
        }
        if let Some((initial, sent)) = &mut watcher.initial {
            let next = initial.get(*sent).map(|content| event(ADDED, content.clone()));
            *sent += 1;
            if next.is_none() {
                watcher.initial = None;
            }
            let complete = || Message::new(SYNC_COMPLETE, Bytes::new());
            return Poll::Ready(Some(Ok(next.unwrap_or_else(complete))));
        }
        if watcher.position == end {
            watcher.wait(context, true);
            return Poll::Pending;
        }
        let index = usize::try_from(watcher.position - self.first).unwrap_or(usize::MAX);
        watcher.position += 1;
        let Some(event) = self.ring.get_mut(index) else { return Poll::Ready(None) };
        event.unread_by -= 1;
        let message = event.message.clone();
        if event.unread_by == 0 {
            self.observer.delivered(event.at.elapsed());
            self.trim();
        }
        Poll::Ready(Some(Ok(message)))
    }

    /// Ready when a watcher that has not taken its current message is cut off because it is too slow.
    pub(super) fn poll_abort(&mut self, id: u64, context: &Context<'_>) -> Poll<()> {
        match self.all.get_mut(&id) {
            Some(watcher) if watcher.end.is_none() => {
                watcher.wait(context, false);
                Poll::Pending
            }
            // It was not too slow: the server gives it time to read the status.
            Some(Watcher { end: Some(End::Closed), .. }) => Poll::Pending,
            _ => Poll::Ready(()),
        }
    }

    #[cfg(test)]
    pub(super) fn buffered(&self) -> (usize, usize) {
        let bytes = self.ring.iter().map(|event| event.message.len()).sum();
        assert_eq!(self.bytes, bytes);
        (self.ring.len(), bytes)
    }

    fn end(&self) -> u64 {
        self.first + self.ring.len() as u64
    }

    fn release(&mut self, position: u64) {
        let read = usize::try_from(position - self.first).unwrap_or(usize::MAX);
        self.ring.iter_mut().skip(read).for_each(|event| event.unread_by -= 1);
        self.trim();
    }

    fn trim(&mut self) {
        while let Some(event) = self.ring.front().filter(|event| event.unread_by == 0) {
            self.bytes -= event.message.len();
            self.ring.pop_front();
            self.first += 1;
        }
    }
}

impl Watcher {
    fn finish(&mut self, end: End) {
        (self.end, self.initial) = (Some(end), None);
        self.wake();
    }

    fn wait(&mut self, context: &Context<'_>, awaits_event: bool) {
        self.awaits_event = awaits_event;
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

impl End {
    fn status(self) -> Option<Status> {
        match self {
            Self::TooSlow => Some(Status::resource_exhausted("watch client channel closed")),
            Self::Closed => Some(Status::unavailable("numacast stops serving pods: connect again")),
            Self::Sent => None,
        }
    }
}
