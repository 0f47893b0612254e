//! One list as it is served: an encoded record per pod, by UID, and its watchers. `Pods` and `PodInfo` differ
//! in their records; their lists, responses and events have the same wire format.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};

use futures::Stream;
use prost::bytes::Bytes;
use tokio::time::Instant;
use tonic::Status;

use super::records::{Limit, Record, Records, TooLarge};
use super::watchers::{Tally, Watchers};
use crate::grpc::{Feed, Message};
use crate::util::wire::{put_bytes, put_head, put_number};

/// The event types.
pub(super) const ADDED: u64 = 1;
const MODIFIED: u64 = 2;
const DELETED: u64 = 3;

/// Field numbers: of an event, and of the pod in a List or Get response.
const TYPE: u32 = 1;
const POD: u32 = 2;
const ANSWER: u32 = 1;

/// A list being received. New and changed pods must fit into the budget meanwhile: the largest of them are
/// left out, even if an unchanged pod is larger.
#[derive(Debug)]
pub(super) struct Listing {
    /// Unchanged pods, and new or changed ones. Together they may exceed the budget.
    same: BTreeSet<Box<str>>,
    new: Records,
}

impl Listing {
    /// An empty list for a board with this limit.
    pub(super) fn new(limit: Limit) -> Self {
        Self { same: BTreeSet::new(), new: Records::new(limit) }
    }

    /// Adds a new or changed pod.
    pub(super) fn put(&mut self, uid: &str, record: Record) {
        self.same.remove(uid);
        self.new.put(uid, record);
        self.new.fit(|other| other == uid);
    }

    /// Adds a pod that is the same as on the board.
    pub(super) fn keep(&mut self, uid: &str) {
        self.new.remove(uid);
        self.same.insert(uid.into());
    }

    /// Removes a pod.
    pub(super) fn remove(&mut self, uid: &str) {
        self.same.remove(uid);
        self.new.remove(uid);
    }
}

/// Why a pod cannot be returned.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// There is no such pod.
    Unknown,
    /// The pod is left out.
    TooLarge(TooLarge),
}

/// One list as it is served.
#[derive(Debug)]
pub(super) struct Board {
    records: Records,
    /// Whether a list was completed.
    told: bool,
    /// The encoded List response, and whether it was requested since the last [`Board::tidy`].
    list: Option<Bytes>,
    asked: bool,
    /// The pods a new watcher gets first, shared by the watchers that have not read all of them.
    initial: Weak<[Bytes]>,
    watchers: Watchers,
}

/// A board shared by the store and its clients.
pub(super) type Shared = Arc<Mutex<Board>>;

pub(super) fn lock(board: &Mutex<Board>) -> MutexGuard<'_, Board> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Board {
    pub(super) fn new(limit: Limit, tally: Arc<dyn Tally>) -> Self {
        Self {
            records: Records::new(limit),
            told: false,
            list: None,
            asked: false,
            initial: Weak::<[Bytes; 0]>::new(),
            watchers: Watchers::new(limit.bytes / 2, tally),
        }
    }

    /// Returns true if a list was completed.
    pub(super) fn has_told(&self) -> bool {
        self.told
    }

    pub(super) fn records(&self) -> &Records {
        &self.records
    }

    /// Returns the pods left out that were not returned before.
    pub(super) fn newly_left_out(&mut self) -> Vec<TooLarge> {
        self.records.newly_left_out()
    }

    /// Returns true if the pod is served with this content.
    pub(super) fn is(&self, uid: &str, content: &[u8]) -> bool {
        self.records.whole(uid).is_some_and(|served| served == content)
    }

    /// Adds or updates a pod.
    pub(super) fn put(&mut self, uid: &str, record: Record, at: Instant) {
        let before = self.records.put(uid, record);
        let before = before.as_ref().and_then(Record::whole);
        let left_out = self.records.fit(|other| other == uid);
        for other in left_out.iter().filter(|other| &***other != uid) {
            self.tell_gone(other, at);
        }
        match (before, self.records.whole(uid).cloned()) {
            (Some(before), Some(now)) if *before == now => {}
            (Some(_), Some(now)) => self.tell(event(MODIFIED, now), at),
            (None, Some(now)) => self.tell(event(ADDED, now), at),
            (Some(_), None) => self.tell_gone(uid, at),
            (None, None) => {}
        }
    }

    /// Removes a pod.
    pub(super) fn remove(&mut self, uid: &str, at: Instant) {
        if self.records.whole(uid).is_some() {
            self.tell_gone(uid, at);
        }
        self.records.remove(uid);
    }

    /// Replaces all pods, and sends watchers the differences: deletions first, since a new pod may have the
    /// name of a deleted one.
    pub(super) fn replace(&mut self, listing: Listing, at: Instant) {
        let Listing { same, new } = listing;
        let mut before = std::mem::replace(&mut self.records, new);
        let served: BTreeMap<Box<str>, Bytes> =
            before.served().map(|(uid, content)| (uid.into(), content.clone())).collect();
        for (uid, record) in same.iter().filter_map(|uid| Some((uid, before.remove(uid)?))) {
            self.records.put(uid, record);
        }
        self.records.take_told(&before);
        self.records.fit(|uid| !served.contains_key(uid));
        // All pods may be deleted and as many added at once.
        let pods = self.records.len().max(served.len());
        let gone = served.keys().filter(|uid| self.records.whole(uid).is_none());
        let tombstones = gone.filter_map(|uid| self.records.get(uid).or(before.get(uid)));
        let mut news: Vec<_> = tombstones.map(|record| event(DELETED, record.tombstone.clone())).collect();
        news.extend(self.records.served().filter_map(|(uid, content)| match served.get(uid) {
            Some(before) if before == content => None,
            Some(_) => Some(event(MODIFIED, content.clone())),
            None => Some(event(ADDED, content.clone())),
        }));
        if !news.is_empty() {
            self.changed();
        }
        news.into_iter().for_each(|message| self.watchers.push(message, at, pods));
        self.told = true;
    }

    fn tell(&mut self, message: Message, at: Instant) {
        self.changed();
        self.watchers.push(message, at, self.records.len());
    }

    fn tell_gone(&mut self, uid: &str, at: Instant) {
        let Some(record) = self.records.get(uid) else { return };
        self.tell(event(DELETED, record.tombstone.clone()), at);
    }

    /// Returns the UID of the record that has this alias.
    pub(super) fn known_as(&self, alias: &str) -> Option<&str> {
        let is = |record: &Record| record.alias.as_deref() == Some(alias);
        self.records.iter().find(|(_, record)| is(record)).map(|(uid, _)| &**uid)
    }

    /// Returns the alias of the record with this UID.
    pub(super) fn alias(&self, uid: &str) -> Option<&str> {
        self.records.get(uid)?.alias.as_deref()
    }

    /// Returns the Get response for a UID or an alias.
    pub(super) fn get(&self, uid: &str) -> Result<Message, Missing> {
        let known = || self.records.get(self.known_as(uid)?);
        let record = self.records.get(uid).or_else(known).ok_or(Missing::Unknown)?;
        if let Some(too_large) = record.too_large() {
            return Err(Missing::TooLarge(too_large));
        }
        let content = record.whole().cloned().unwrap_or_default();
        let mut head = Vec::new();
        put_head(&mut head, ANSWER, content.len());
        Ok(Message::new(&head, content))
    }

    /// Returns the List response. It is cached until a pod changes, as long as it is requested.
    pub(super) fn list(&mut self) -> Bytes {
        self.asked = true;
        let records = &self.records;
        let make = || {
            let contents = || records.served().map(|(_, content)| content);
            let mut answer = Vec::with_capacity(contents().map(|content| content.len() + 8).sum());
            contents().for_each(|content| put_bytes(&mut answer, ANSWER, content));
            answer.into()
        };
        self.list.get_or_insert_with(make).clone()
    }

    /// Drops the cached List response if it was not requested since the last call.
    pub(super) fn tidy(&mut self) {
        if !std::mem::take(&mut self.asked) {
            self.list = None;
        }
    }

    /// Ends all watches.
    pub(super) fn close(&mut self) {
        self.watchers.close();
    }

    /// Returns how many events are buffered for watchers.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.watchers.waiting()
    }

    /// Returns the size in bytes of the buffered events.
    #[cfg(test)]
    pub(super) fn waiting_bytes(&self) -> usize {
        self.watchers.waiting_bytes()
    }

    fn changed(&mut self) {
        self.list = None;
        self.initial = Weak::<[Bytes; 0]>::new();
    }

    fn initial(&mut self) -> Arc<[Bytes]> {
        if let Some(initial) = self.initial.upgrade() {
            return initial;
        }
        let initial: Arc<[Bytes]> = self.records.served().map(|(_, content)| content.clone()).collect();
        self.initial = Arc::downgrade(&initial);
        initial
    }
}

/// A watch: all current pods, the `INITIAL_SYNC_COMPLETE` marker, then each change. Unsubscribes when
/// dropped.
#[derive(Debug)]
pub(super) struct Watch {
    board: Shared,
    id: u64,
}

impl Watch {
    pub(super) fn new(board: Shared) -> Self {
        let id = {
            let mut board = lock(&board);
            let initial = board.initial();
            board.watchers.join(initial)
        };
        Self { board, id }
    }

    #[cfg(test)]
    pub(super) fn board(&self) -> &Shared {
        &self.board
    }
}

impl Stream for Watch {
    type Item = Result<Message, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        lock(&self.board).watchers.poll(self.id, context)
    }
}

impl Feed for Watch {
    fn poll_over(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        lock(&self.board).watchers.poll_over(self.id, context)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        lock(&self.board).watchers.leave(self.id);
    }
}

/// Encodes an event.
pub(super) fn event(kind: u64, content: Bytes) -> Message {
    let mut head = Vec::new();
    put_number(&mut head, TYPE, kind);
    put_head(&mut head, POD, content.len());
    Message::new(&head, content)
}
