//! One list as it is served: an encoded record for each pod, by UID, and who watches it. `Pods` and `PodInfo` differ in what
//! a record is; their lists, answers and events are alike on the wire.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};

use futures::Stream;
use prost::bytes::Bytes;
use tokio::time::Instant;
use tonic::Status;

use super::Tally;
use super::watchers::Watchers;
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

/// What is served of one pod.
#[derive(Debug)]
pub(super) struct Record {
    content: Bytes,
    /// What tells that it is gone.
    tombstone: Bytes,
    /// Another UID that it may be asked for by.
    alias: Option<Box<str>>,
}

impl Record {
    /// A record of this content. It is kept as it is, and shared with whoever has it.
    pub(super) fn new(content: Bytes, tombstone: Vec<u8>, alias: Option<&str>) -> Self {
        Self { content, tombstone: tombstone.into(), alias: alias.map(Into::into) }
    }
}

/// The pods of the next list, by UID. `None`: as it is already.
pub(super) type Listing = BTreeMap<Box<str>, Option<Record>>;

/// One list as it is served.
#[derive(Debug)]
pub(super) struct Board {
    records: BTreeMap<Box<str>, Record>,
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
    pub(super) fn new(tally: Arc<dyn Tally>) -> Self {
        Self {
            records: BTreeMap::new(),
            told: false,
            list: None,
            asked: false,
            initial: Weak::<[Bytes; 0]>::new(),
            watchers: Watchers::new(tally),
        }
    }

    /// Were all pods told once?
    pub(super) fn has_told(&self) -> bool {
        self.told
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Is this what is served of the pod?
    pub(super) fn is(&self, uid: &str, content: &[u8]) -> bool {
        self.records.get(uid).is_some_and(|record| record.content == content)
    }

    /// The pod is there, as this.
    pub(super) fn put(&mut self, uid: &str, record: Record, at: Instant) {
        self.put_of(self.records.len(), uid, record, at);
    }

    fn put_of(&mut self, pods: usize, uid: &str, record: Record, at: Instant) {
        let known = self.records.get_mut(uid);
        let (kind, same) = match &known {
            Some(known) => (MODIFIED, known.content == record.content),
            None => (ADDED, false),
        };
        if !same {
            self.changed();
            self.watchers.push(event(kind, record.content.clone()), at, pods);
        }
        self.records.insert(uid.into(), record);
    }

    /// The pod is gone.
    pub(super) fn remove(&mut self, uid: &str, at: Instant) {
        self.remove_of(self.records.len(), uid, at);
    }

    fn remove_of(&mut self, pods: usize, uid: &str, at: Instant) {
        let Some(record) = self.records.remove(uid) else { return };
        self.changed();
        self.watchers.push(event(DELETED, record.tombstone), at, pods);
    }

    /// These are all. Who watches hears what differs: first who is gone, since another may have the same name.
    pub(super) fn replace(&mut self, listing: Listing, at: Instant) {
        let missing = self.records.keys().filter(|uid| !listing.contains_key(*uid));
        let missing: Vec<Box<str>> = missing.cloned().collect();
        let pods = self.records.len().max(listing.len());
        missing.iter().for_each(|uid| self.remove_of(pods, uid, at));
        for (uid, record) in listing {
            if let Some(record) = record {
                self.put_of(pods, &uid, record, at);
            }
        }
        self.told = true;
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

    /// All of it, by UID.
    pub(super) fn contents(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.records.iter().map(|(uid, record)| (&**uid, &*record.content))
    }

    /// The answer that has one pod.
    pub(super) fn get(&self, uid: &str) -> Option<Message> {
        let known = || self.records.get(self.known_as(uid)?);
        let content = &self.records.get(uid).or_else(known)?.content;
        let mut head = Vec::new();
        put_head(&mut head, ANSWER, content.len());
        Some(Message::new(&head, content.clone()))
    }

    /// The answer that has all pods: made once for as long as nothing changes and somebody asks.
    pub(super) fn list(&mut self) -> Bytes {
        self.asked = true;
        let records = &self.records;
        let make = || {
            let contents = || records.values().map(|record| &record.content);
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

    fn changed(&mut self) {
        self.list = None;
        self.initial = Weak::<[Bytes; 0]>::new();
    }

    fn initial(&mut self) -> Arc<[Bytes]> {
        if let Some(initial) = self.initial.upgrade() {
            return initial;
        }
        let initial: Arc<[Bytes]> = self.records.values().map(|record| record.content.clone()).collect();
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
