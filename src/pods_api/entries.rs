//! The records of one list within a budget of bytes, since users who can create pods on the node must not
//! decide how much memory this process takes. Pods that do not fit are left out, the largest first, so that
//! large pods of one user displace no pod of usual size.

use std::collections::btree_map::{BTreeMap, Iter};

use prost::bytes::Bytes;

use crate::core_v1::BUDGET;

/// The budget of one list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    /// Bytes of all contents.
    pub(super) bytes: usize,
    /// Reduces the content of a pod that is left out.
    pub(super) outline: fn(&[u8]) -> Bytes,
}

/// The record of one pod.
#[derive(Debug)]
pub(super) struct Record {
    content: Content,
    /// The content of its `DELETED` event.
    pub(super) tombstone: Bytes,
    /// Another UID it can be requested by.
    pub(super) alias: Option<Box<str>>,
    /// Namespace and name, for messages.
    name: Box<str>,
    /// Whether it was reported as left out.
    told: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// It is served.
    Whole(Bytes),
    /// It is left out: the reduced content, possibly empty, and its full size in bytes.
    Outline(Bytes, usize),
}

/// A pod that is left out, and its size in bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the pod {name} is left out, for its {bytes} bytes do not fit beside the node's other pods, the largest of which are left out \
     above {} bytes: read it from the API server, or make it smaller",
    BUDGET
)]
pub(super) struct TooLarge {
    name: Box<str>,
    bytes: usize,
}

impl Content {
    fn kept(&self) -> &Bytes {
        match self {
            Self::Whole(bytes) | Self::Outline(bytes, _) => bytes,
        }
    }
}

impl Record {
    /// Creates a record. The content is shared, not copied.
    pub(super) fn new(
        content: Content,
        tombstone: Vec<u8>,
        alias: Option<&str>,
        (namespace, name): (&str, &str),
    ) -> Self {
        let name = format!("{namespace}/{name}").into();
        Self { content, tombstone: tombstone.into(), alias: alias.map(Into::into), name, told: false }
    }

    /// Returns the served content; `None` if the pod is left out.
    pub(super) fn whole(&self) -> Option<&Bytes> {
        match &self.content {
            Content::Whole(bytes) => Some(bytes),
            Content::Outline(..) => None,
        }
    }

    /// Returns name and size of a pod that is left out.
    pub(super) fn too_large(&self) -> Option<TooLarge> {
        match &self.content {
            Content::Whole(_) => None,
            Content::Outline(_, bytes) => Some(TooLarge { name: self.name.clone(), bytes: *bytes }),
        }
    }

    fn bytes(&self) -> usize {
        self.content.kept().len()
    }

    /// Reduces the content to its outline, or an outline to nothing.
    fn shrink(&mut self, outline: fn(&[u8]) -> Bytes) {
        self.content = match &self.content {
            Content::Whole(bytes) => Content::Outline(outline(bytes), bytes.len()),
            Content::Outline(_, bytes) => Content::Outline(Bytes::new(), *bytes),
        };
    }
}

/// Records by UID.
#[derive(Debug)]
pub(super) struct Records {
    all: BTreeMap<Box<str>, Record>,
    /// Bytes of all contents.
    bytes: usize,
    left_out: usize,
    limit: Limit,
}

impl Records {
    pub(super) fn new(limit: Limit) -> Self {
        Self { all: BTreeMap::new(), bytes: 0, left_out: 0, limit }
    }

    /// Returns the number of records, including pods that are left out.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns how many pods are left out.
    pub(super) fn left_out(&self) -> usize {
        self.left_out
    }

    pub(super) fn get(&self, uid: &str) -> Option<&Record> {
        self.all.get(uid)
    }

    /// Returns a pod's served content.
    pub(super) fn whole(&self, uid: &str) -> Option<&Bytes> {
        self.get(uid)?.whole()
    }

    pub(super) fn iter(&self) -> Iter<'_, Box<str>, Record> {
        self.all.iter()
    }

    /// Returns all served pods, by UID.
    pub(super) fn served(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.iter().filter_map(|(uid, record)| Some((&**uid, record.whole()?)))
    }

    /// Returns all contents by UID, including the reduced ones of pods that are left out.
    pub(super) fn kept(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let kept = self.iter().map(|(uid, record)| (&**uid, &**record.content.kept()));
        kept.filter(|(_, kept)| !kept.is_empty())
    }

    /// Returns true if one of the pods that are left out would fit.
    pub(super) fn has_room_again(&self) -> bool {
        let smallest = self.all.values().filter_map(|record| Some(record.too_large()?.bytes)).min();
        smallest.is_some_and(|bytes| self.bytes + bytes <= self.limit.bytes)
    }

    /// Returns the pods left out that were not returned before.
    pub(super) fn newly_left_out(&mut self) -> Vec<TooLarge> {
        if self.left_out == 0 {
            return Vec::new();
        }
        let untold = self.all.values_mut().filter(|record| record.whole().is_none() && !record.told);
        untold
            .filter_map(|record| {
                record.told = true;
                record.too_large()
            })
            .collect()
    }

    /// Inserts a record, even above the budget. Returns the previous one.
    pub(super) fn put(&mut self, uid: &str, mut record: Record) -> Option<Record> {
        let before = self.remove(uid);
        record.told |= before.as_ref().is_some_and(|before| before.told);
        self.bytes += record.bytes();
        self.left_out += usize::from(record.whole().is_none());
        self.all.insert(uid.into(), record);
        before
    }

    /// Takes over which pods were reported as left out.
    pub(super) fn take_told(&mut self, before: &Self) {
        for (uid, record) in &mut self.all {
            record.told |= before.get(uid).is_some_and(|before| before.told);
        }
    }

    pub(super) fn remove(&mut self, uid: &str) -> Option<Record> {
        let record = self.all.remove(uid)?;
        self.bytes -= record.bytes();
        self.left_out -= usize::from(record.whole().is_none());
        Some(record)
    }

    /// Leaves out the largest pods until the rest fit; of equally large ones, new pods first. Returns those
    /// that were served before.
    pub(super) fn fit(&mut self, is_new: impl Fn(&str) -> bool) -> Vec<Box<str>> {
        let mut left_out = Vec::new();
        while self.bytes > self.limit.bytes {
            let all = self.all.iter_mut();
            let largest = all.max_by_key(|(uid, record)| (record.bytes(), is_new(uid)));
            let Some((uid, record)) = largest else { break };
            if record.whole().is_some() {
                left_out.push(uid.clone());
            }
            self.bytes -= record.bytes();
            record.shrink(self.limit.outline);
            self.bytes += record.bytes();
        }
        self.left_out += left_out.len();
        left_out
    }
}
