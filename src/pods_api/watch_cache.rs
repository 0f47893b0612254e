//! The pods of one service, encoded, by UID, and its watchers. `Pods` and `PodInfo` differ in the encoding of
//! a pod; their lists, responses and events have the same wire format.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};

use futures::Stream;
use prost::bytes::Bytes;
use tokio::time::Instant;
use tonic::Status;

use super::entries::{Entries, Entry, Limit, TooLarge};
use super::watchers::{ADDED, DELETED, MODIFIED, WatcherObserver, Watchers, event};
use crate::grpc::{Message, MessageStream};
use crate::util::wire::{put_bytes, put_head};

pub(super) use crate::util::sync::lock;

/// Field number of the pod in a List or Get response.
const RESPONSE_POD: u32 = 1;

/// A list being received. New and changed pods must fit into the budget meanwhile: the largest of them are
/// omitted, even if an unchanged pod is larger.
#[derive(Debug)]
pub(super) struct IncomingList {
    /// Unchanged pods, and new or changed ones. Together they may exceed the budget.
    unchanged: BTreeSet<Box<str>>,
    changed: Entries,
}

impl IncomingList {
    pub(super) fn new(limit: Limit) -> Self {
        Self { unchanged: BTreeSet::new(), changed: Entries::new(limit) }
    }

    pub(super) fn put(&mut self, uid: &str, entry: Entry) {
        self.unchanged.remove(uid);
        self.changed.put(uid, entry);
        self.changed.enforce_limit(|other| other == uid);
    }

    pub(super) fn put_unchanged(&mut self, uid: &str) {
        self.changed.remove(uid);
        self.unchanged.insert(uid.into());
    }

    pub(super) fn remove(&mut self, uid: &str) {
        self.unchanged.remove(uid);
        self.changed.remove(uid);
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum GetError {
    /// There is no such pod.
    NotFound,
    /// The pod is omitted.
    TooLarge(TooLarge),
}

#[derive(Debug)]
pub(super) struct WatchCache {
    pub(super) entries: Entries,
    /// Whether a list was completed.
    pub(super) is_synced: bool,
    /// The encoded List response, and whether it was requested since [`WatchCache::drop_unused_list`].
    list: Option<Bytes>,
    is_requested: bool,
    /// The pods a new watcher gets first, shared by the watchers that have not read all of them.
    initial: Weak<[Bytes]>,
    pub(super) watchers: Watchers,
}

pub(super) type SharedCache = Arc<Mutex<WatchCache>>;

impl WatchCache {
    pub(super) fn new(limit: Limit, observer: Arc<dyn WatcherObserver>) -> Self {
        Self {
            entries: Entries::new(limit),
            is_synced: false,
            list: None,
            is_requested: false,
            initial: Weak::<[Bytes; 0]>::new(),
            watchers: Watchers::new(limit.bytes / 2, observer),
        }
    }

    pub(super) fn serves(&self, uid: &str, content: &[u8]) -> bool {
        self.entries.served(uid).is_some_and(|served| served == content)
    }

    pub(super) fn put(&mut self, uid: &str, entry: Entry, at: Instant) {
        let before = self.entries.put(uid, entry);
        let before = before.as_ref().and_then(Entry::served);
        let omitted = self.entries.enforce_limit(|other| other == uid);
        for other in omitted.iter().filter(|other| &***other != uid) {
            self.send_deleted(other, at);
        }
        match (before, self.entries.served(uid).cloned()) {
            (Some(before), Some(now)) if *before == now => {}
            (Some(_), Some(now)) => self.send(event(MODIFIED, now), at),
            (None, Some(now)) => self.send(event(ADDED, now), at),
            (Some(_), None) => self.send_deleted(uid, at),
            (None, None) => {}
        }
    }

    pub(super) fn remove(&mut self, uid: &str, at: Instant) {
        if self.entries.served(uid).is_some() {
            self.send_deleted(uid, at);
        }
        self.entries.remove(uid);
    }

    /// Replaces all pods, and sends watchers the differences: deletions first, since a new pod may have the
    /// name of a deleted one.
    pub(super) fn replace(&mut self, list: IncomingList, at: Instant) {
        let IncomingList { unchanged, changed } = list;
        let mut before = std::mem::replace(&mut self.entries, changed);
        let served: BTreeMap<Box<str>, Bytes> =
            before.all_served().map(|(uid, content)| (uid.into(), content.clone())).collect();
        for (uid, entry) in unchanged.iter().filter_map(|uid| Some((uid, before.remove(uid)?))) {
            self.entries.put(uid, entry);
        }
        self.entries.copy_reported(&before);
        self.entries.enforce_limit(|uid| !served.contains_key(uid));
        // All pods may be deleted and as many added at once.
        let pods = self.entries.len().max(served.len());
        let deleted = served.keys().filter(|uid| self.entries.served(uid).is_none());
        let deleted = deleted.filter_map(|uid| self.entries.get(uid).or(before.get(uid)));
        let mut events: Vec<_> = deleted.map(|entry| event(DELETED, entry.tombstone.clone())).collect();
        events.extend(self.entries.all_served().filter_map(|(uid, content)| match served.get(uid) {
            Some(before) if before == content => None,
            Some(_) => Some(event(MODIFIED, content.clone())),
            None => Some(event(ADDED, content.clone())),
        }));
        if !events.is_empty() {
            self.invalidate();
        }
        events.into_iter().for_each(|message| self.watchers.push(message, at, pods));
        self.is_synced = true;
    }

    fn send(&mut self, message: Message, at: Instant) {
        self.invalidate();
        self.watchers.push(message, at, self.entries.len());
    }

    fn send_deleted(&mut self, uid: &str, at: Instant) {
        let Some(entry) = self.entries.get(uid) else { return };
        self.send(event(DELETED, entry.tombstone.clone()), at);
    }

    pub(super) fn uid_of(&self, alias: &str) -> Option<&str> {
        let has_alias = |entry: &Entry| entry.alias.as_deref() == Some(alias);
        self.entries.iter().find(|(_, entry)| has_alias(entry)).map(|(uid, _)| &**uid)
    }

    pub(super) fn alias(&self, uid: &str) -> Option<&str> {
        self.entries.get(uid)?.alias.as_deref()
    }

    pub(super) fn get(&self, uid: &str) -> Result<Message, GetError> {
        let by_alias = || self.entries.get(self.uid_of(uid)?);
        let entry = self.entries.get(uid).or_else(by_alias).ok_or(GetError::NotFound)?;
        if let Some(too_large) = entry.too_large(self.entries.limit) {
            return Err(GetError::TooLarge(too_large));
        }
        let content = entry.served().cloned().unwrap_or_default();
        let mut head = Vec::new();
        put_head(&mut head, RESPONSE_POD, content.len());
        Ok(Message::new(&head, content))
    }

    /// Returns the List response. It is cached until a pod changes, as long as it is requested.
    pub(super) fn list(&mut self) -> Bytes {
        self.is_requested = true;
        let entries = &self.entries;
        let encode = || {
            let contents = || entries.all_served().map(|(_, content)| content);
            let mut response = Vec::with_capacity(contents().map(|content| content.len() + 8).sum());
            contents().for_each(|content| put_bytes(&mut response, RESPONSE_POD, content));
            response.into()
        };
        self.list.get_or_insert_with(encode).clone()
    }

    /// Drops the cached List response if it was not requested since the last call.
    pub(super) fn drop_unused_list(&mut self) {
        if !std::mem::take(&mut self.is_requested) {
            self.list = None;
        }
    }

    fn invalidate(&mut self) {
        self.list = None;
        self.initial = Weak::<[Bytes; 0]>::new();
    }

    fn initial(&mut self) -> Arc<[Bytes]> {
        if let Some(initial) = self.initial.upgrade() {
            return initial;
        }
        let initial: Arc<[Bytes]> = self.entries.all_served().map(|(_, content)| content.clone()).collect();
        self.initial = Arc::downgrade(&initial);
        initial
    }
}

/// A watch: all current pods, the `INITIAL_SYNC_COMPLETE` marker, then each change. Unsubscribes when
/// dropped.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) cache: SharedCache,
    id: u64,
}

impl Watch {
    pub(super) fn new(cache: SharedCache) -> Self {
        let id = {
            let mut cache = lock(&cache);
            let initial = cache.initial();
            cache.watchers.add(initial)
        };
        Self { cache, id }
    }
}

impl Stream for Watch {
    type Item = Result<Message, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        lock(&self.cache).watchers.poll(self.id, context)
    }
}

impl MessageStream for Watch {
    fn poll_abort(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        lock(&self.cache).watchers.poll_abort(self.id, context)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        lock(&self.cache).watchers.remove(self.id);
    }
}
