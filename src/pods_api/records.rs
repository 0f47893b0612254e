//! What is kept of the pods of one list, within a budget of bytes: whoever may create pods on the node must not decide how much
//! memory we take. What does not fit is left out, the largest pods first, so that nobody loses a pod of a usual size to
//! somebody else's large ones.

use std::collections::btree_map::{BTreeMap, Iter};

use prost::bytes::Bytes;

use crate::core_v1::BUDGET;

/// How much there may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    /// Bytes of all contents.
    pub(super) bytes: usize,
    /// What is kept of a content that is left out.
    pub(super) outline: fn(&[u8]) -> Bytes,
}

/// What is known of one pod.
#[derive(Debug)]
pub(super) struct Record {
    content: Content,
    /// What tells that it is gone.
    pub(super) tombstone: Bytes,
    /// Another UID that it may be asked for by.
    pub(super) alias: Option<Box<str>>,
    /// Namespace and name, for people.
    name: Box<str>,
    /// Somebody was told that it is left out.
    told: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// It is served.
    Whole(Bytes),
    /// It is left out: what is kept of it, which may be nothing, and how many bytes it has.
    Outline(Bytes, usize),
}

/// A pod that is left out, and how many bytes it has.
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
    /// A record of this content. It is kept as it is, and shared with whoever has it.
    pub(super) fn new(
        content: Content,
        tombstone: Vec<u8>,
        alias: Option<&str>,
        (namespace, name): (&str, &str),
    ) -> Self {
        let name = format!("{namespace}/{name}").into();
        Self { content, tombstone: tombstone.into(), alias: alias.map(Into::into), name, told: false }
    }

    /// What is served of it; `None` if it is left out.
    pub(super) fn whole(&self) -> Option<&Bytes> {
        match &self.content {
            Content::Whole(bytes) => Some(bytes),
            Content::Outline(..) => None,
        }
    }

    /// The pod, if it is left out.
    pub(super) fn too_large(&self) -> Option<TooLarge> {
        match &self.content {
            Content::Whole(_) => None,
            Content::Outline(_, bytes) => Some(TooLarge { name: self.name.clone(), bytes: *bytes }),
        }
    }

    fn bytes(&self) -> usize {
        self.content.kept().len()
    }

    /// Keeps less of it.
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
    /// Of all contents.
    bytes: usize,
    left_out: usize,
    limit: Limit,
}

impl Records {
    pub(super) fn new(limit: Limit) -> Self {
        Self { all: BTreeMap::new(), bytes: 0, left_out: 0, limit }
    }

    /// All of them, those that are left out too.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// How many are left out.
    pub(super) fn left_out(&self) -> usize {
        self.left_out
    }

    pub(super) fn get(&self, uid: &str) -> Option<&Record> {
        self.all.get(uid)
    }

    /// What is served of a pod.
    pub(super) fn whole(&self, uid: &str) -> Option<&Bytes> {
        self.get(uid)?.whole()
    }

    pub(super) fn iter(&self) -> Iter<'_, Box<str>, Record> {
        self.all.iter()
    }

    /// All that is served, by UID.
    pub(super) fn served(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.iter().filter_map(|(uid, record)| Some((&**uid, record.whole()?)))
    }

    /// All that is kept, by UID: of what is left out an outline, where there is one.
    pub(super) fn kept(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let kept = self.iter().map(|(uid, record)| (&**uid, &**record.content.kept()));
        kept.filter(|(_, kept)| !kept.is_empty())
    }

    /// Would one of those that are left out fit?
    pub(super) fn has_room_again(&self) -> bool {
        let smallest = self.all.values().filter_map(|record| Some(record.too_large()?.bytes)).min();
        smallest.is_some_and(|bytes| self.bytes + bytes <= self.limit.bytes)
    }

    /// Those that are left out, each once.
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

    /// Takes a record in, whatever room there is. Gives the one that was there.
    pub(super) fn put(&mut self, uid: &str, mut record: Record) -> Option<Record> {
        let before = self.remove(uid);
        record.told |= before.as_ref().is_some_and(|before| before.told);
        self.bytes += record.bytes();
        self.left_out += usize::from(record.whole().is_none());
        self.all.insert(uid.into(), record);
        before
    }

    /// Who was told of there need not be told of again.
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

    /// Leaves out the largest until what is kept fits; of those that are as large, newcomers first. Gives those that were
    /// served before this.
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
