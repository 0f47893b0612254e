//! One list as it is served: an encoded record for each pod, by UID, and who watches it. `Pods` and `PodInfo` differ in what
//! a record is; their lists, answers and events are alike on the wire.

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
use crate::wire::{put_bytes, put_head, put_number};

/// The types of events.
pub(super) const ADDED: u64 = 1;
const MODIFIED: u64 = 2;
const DELETED: u64 = 3;

/// The fields of an event, and that of a pod in any answer.
const TYPE: u32 = 1;
const POD: u32 = 2;
const ANSWER: u32 = 1;

/// The pods of the next list. Those that are not as they are already have to fit while it comes in: the largest of them are left out, even
/// where a larger one stays as it is.
#[derive(Debug)]
pub(super) struct Listing {
    /// Those that are as they are already, and those that are not. Both together may be more than there may be.
    same: BTreeSet<Box<str>>,
    new: Records,
}

impl Listing {
    /// No pods yet, for a board with this limit.
    pub(super) fn new(limit: Limit) -> Self {
        Self { same: BTreeSet::new(), new: Records::new(limit) }
    }

    /// The pod is as this.
    pub(super) fn put(&mut self, uid: &str, record: Record) {
        self.same.remove(uid);
        self.new.put(uid, record);
        self.new.fit(|other| other == uid);
    }

    /// The pod is as it is on the board.
    pub(super) fn keep(&mut self, uid: &str) {
        self.new.remove(uid);
        self.same.insert(uid.into());
    }

    /// The pod is gone.
    pub(super) fn remove(&mut self, uid: &str) {
        self.same.remove(uid);
        self.new.remove(uid);
    }
}

/// A pod that cannot be given.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// There is none.
    Unknown,
    /// It is left out.
    TooLarge(TooLarge),
}

/// One list as it is served.
#[derive(Debug)]
pub(super) struct Board {
    records: Records,
    /// Were all pods told once?
    told: bool,
    /// The answer that lists all, and whether somebody has asked for it of late.
    list: Option<Bytes>,
    asked: bool,
    /// What a watcher hears first, while anybody has not heard all of it.
    initial: Weak<[Bytes]>,
    watchers: Watchers,
}

/// A board that is served and written to.
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

    /// Were all pods told once?
    pub(super) fn has_told(&self) -> bool {
        self.told
    }

    pub(super) fn records(&self) -> &Records {
        &self.records
    }

    /// Those that are left out, each once.
    pub(super) fn newly_left_out(&mut self) -> Vec<TooLarge> {
        self.records.newly_left_out()
    }

    /// Is this what is served of the pod?
    pub(super) fn is(&self, uid: &str, content: &[u8]) -> bool {
        self.records.whole(uid).is_some_and(|served| served == content)
    }

    /// The pod is there, as this.
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

    /// The pod is gone.
    pub(super) fn remove(&mut self, uid: &str, at: Instant) {
        if self.records.whole(uid).is_some() {
            self.tell_gone(uid, at);
        }
        self.records.remove(uid);
    }

    /// These are all. Who watches hears what differs: first who is gone, since another may have the same name.
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
        // All may go and others come at once.
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

    /// The UID under which a pod is kept that may be asked for by another one.
    pub(super) fn known_as(&self, alias: &str) -> Option<&str> {
        let is = |record: &Record| record.alias.as_deref() == Some(alias);
        self.records.iter().find(|(_, record)| is(record)).map(|(uid, _)| &**uid)
    }

    /// The other UID that this one may be asked for by, if it is there and has one.
    pub(super) fn alias(&self, uid: &str) -> Option<&str> {
        self.records.get(uid)?.alias.as_deref()
    }

    /// The answer that has one pod.
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

    /// The answer that has all pods: made once for as long as nothing changes and somebody asks.
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

    /// Lets go of the answer that has all pods if nobody has asked since the last call of this.
    pub(super) fn tidy(&mut self) {
        if !std::mem::take(&mut self.asked) {
            self.list = None;
        }
    }

    /// No more is told to who watches.
    pub(super) fn close(&mut self) {
        self.watchers.close();
    }

    /// Events that somebody has not heard.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.watchers.waiting()
    }

    /// Bytes of these.
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

/// One who watches: all pods as they are now, the marker, and then each change. Leaves when dropped.
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

/// What tells of a pod.
pub(super) fn event(kind: u64, content: Bytes) -> Message {
    let mut head = Vec::new();
    put_number(&mut head, TYPE, kind);
    put_head(&mut head, POD, content.len());
    Message::new(&head, content)
}
