//! The pods of one cache within a budget of bytes, since users who can create pods on the node must not
//! decide how much memory this process takes. Pods that do not fit are omitted, the largest first, so that
//! large pods of one user displace no pod of usual size.

use std::collections::btree_map::{BTreeMap, Iter};

use prost::bytes::Bytes;

#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    /// Bytes of all contents.
    pub(super) bytes: usize,
    /// Reduces the content of a pod that is omitted.
    pub(super) outline: fn(&[u8]) -> Bytes,
}

#[derive(Debug)]
pub(super) struct Entry {
    content: Content,
    /// The content of its `DELETED` event.
    pub(super) tombstone: Bytes,
    /// Another UID it can be requested by.
    pub(super) alias: Option<Box<str>>,
    /// Namespace and name, for messages.
    name: Box<str>,
    /// Whether it was reported as omitted.
    is_reported: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// It is served.
    Served(Bytes),
    /// It is omitted: the reduced content, possibly empty, and its full size in bytes.
    Outline(Bytes, usize),
}

/// A pod that is omitted, and its size in bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "pod {name} is omitted: its {bytes} bytes do not fit into the {limit} bytes for all pods; read it from the API server"
)]
pub(super) struct TooLarge {
    name: Box<str>,
    bytes: usize,
    /// Bytes of all pods.
    limit: usize,
}

impl Content {
    fn bytes(&self) -> &Bytes {
        match self {
            Self::Served(bytes) | Self::Outline(bytes, _) => bytes,
        }
    }
}

impl Entry {
    pub(super) fn new(
        content: Content,
        tombstone: Vec<u8>,
        alias: Option<&str>,
        (namespace, name): (&str, &str),
    ) -> Self {
        let name = format!("{namespace}/{name}").into();
        Self { content, tombstone: tombstone.into(), alias: alias.map(Into::into), name, is_reported: false }
    }

    pub(super) fn served(&self) -> Option<&Bytes> {
        match &self.content {
            Content::Served(bytes) => Some(bytes),
            Content::Outline(..) => None,
        }
    }

    pub(super) fn too_large(&self, Limit { bytes: limit, .. }: Limit) -> Option<TooLarge> {
        match &self.content {
            Content::Served(_) => None,
            Content::Outline(_, bytes) => Some(TooLarge { name: self.name.clone(), bytes: *bytes, limit }),
        }
    }

    fn len(&self) -> usize {
        self.content.bytes().len()
    }

    /// Reduces the content to its outline, or an outline to nothing.
    fn shrink(&mut self, outline: fn(&[u8]) -> Bytes) {
        self.content = match &self.content {
            Content::Served(bytes) => Content::Outline(outline(bytes), bytes.len()),
            Content::Outline(_, bytes) => Content::Outline(Bytes::new(), *bytes),
        };
    }
}

#[derive(Debug)]
pub(super) struct Entries {
    all: BTreeMap<Box<str>, Entry>,
    /// Bytes of all contents.
    bytes: usize,
    pub(super) omitted: usize,
    pub(super) limit: Limit,
}

impl Entries {
    pub(super) fn new(limit: Limit) -> Self {
        Self { all: BTreeMap::new(), bytes: 0, omitted: 0, limit }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn get(&self, uid: &str) -> Option<&Entry> {
        self.all.get(uid)
    }

    pub(super) fn served(&self, uid: &str) -> Option<&Bytes> {
        self.get(uid)?.served()
    }

    pub(super) fn iter(&self) -> Iter<'_, Box<str>, Entry> {
        self.all.iter()
    }

    pub(super) fn all_served(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.iter().filter_map(|(uid, entry)| Some((&**uid, entry.served()?)))
    }

    /// Returns all contents by UID, including the reduced ones of pods that are omitted.
    pub(super) fn contents(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let contents = self.iter().map(|(uid, entry)| (&**uid, &**entry.content.bytes()));
        contents.filter(|(_, content)| !content.is_empty())
    }

    pub(super) fn has_room(&self) -> bool {
        let smallest = self.all.values().filter_map(|entry| Some(entry.too_large(self.limit)?.bytes)).min();
        smallest.is_some_and(|bytes| self.bytes + bytes <= self.limit.bytes)
    }

    /// Returns the omitted pods that were not returned before.
    pub(super) fn take_newly_omitted(&mut self) -> Vec<TooLarge> {
        if self.omitted == 0 {
            return Vec::new();
        }
        let limit = self.limit;
        let new = self.all.values_mut().filter(|entry| entry.served().is_none() && !entry.is_reported);
        new.filter_map(|entry| {
            entry.is_reported = true;
            entry.too_large(limit)
        })
        .collect()
    }

    /// Inserts an entry, even above the budget. Returns the previous one.
    pub(super) fn put(&mut self, uid: &str, mut entry: Entry) -> Option<Entry> {
        let before = self.remove(uid);
        entry.is_reported |= before.as_ref().is_some_and(|before| before.is_reported);
        self.bytes += entry.len();
        self.omitted += usize::from(entry.served().is_none());
        self.all.insert(uid.into(), entry);
        before
    }

    pub(super) fn copy_reported(&mut self, before: &Self) {
        for (uid, entry) in &mut self.all {
            entry.is_reported |= before.get(uid).is_some_and(|before| before.is_reported);
        }
    }

    pub(super) fn remove(&mut self, uid: &str) -> Option<Entry> {
        let entry = self.all.remove(uid)?;
        self.bytes -= entry.len();
        self.omitted -= usize::from(entry.served().is_none());
        Some(entry)
    }

    /// Omits the largest pods until the rest fit; of equally large ones, new pods first. Returns those that
    /// were served before.
    pub(super) fn enforce_limit(&mut self, is_new: impl Fn(&str) -> bool) -> Vec<Box<str>> {
        let mut omitted = Vec::new();
        while self.bytes > self.limit.bytes {
            let all = self.all.iter_mut();
            let largest = all.max_by_key(|(uid, entry)| (entry.len(), is_new(uid)));
            let Some((uid, entry)) = largest else { break };
            if entry.served().is_some() {
                omitted.push(uid.clone());
            }
            self.bytes -= entry.len();
            entry.shrink(self.limit.outline);
            self.bytes += entry.len();
        }
        self.omitted += omitted.len();
        omitted
    }
}
