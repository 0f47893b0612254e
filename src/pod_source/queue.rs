//! The events that a subscriber has not received yet, within limits.

use std::collections::{BTreeSet, VecDeque};

use crate::core_v1::{MAX_RAW_BYTES, reduce_to};
use crate::pod::{MAX_ANNOTATION_BYTES, Pod, PodEvent, PodName, drop_longest_annotations};

/// Queue length above which only the last event of each pod is kept.
pub(super) const MAX_EVENTS: usize = 1024;

/// An event of a source, or its error.
pub(super) type Item = Result<PodEvent, String>;

/// Name and UID: a new pod with the same name is a different pod.
pub(super) type Key = (PodName, String);

pub(super) fn key(pod: &Pod) -> Key {
    (pod.full_name(), pod.uid.clone())
}

pub(super) fn without_raw(pod: Pod) -> Pod {
    Pod { raw: None, ..pod }
}

pub(super) fn pod_of(item: &Item) -> Option<&Pod> {
    item.as_ref().ok().and_then(PodEvent::object)
}

fn pod_of_mut(item: &mut Item) -> Option<&mut Pod> {
    item.as_mut().ok().and_then(PodEvent::object_mut)
}

pub(super) fn has_raw(item: &Item) -> bool {
    pod_of(item).is_some_and(|pod| pod.raw.is_some())
}

pub(super) fn raw_bytes(item: &Item) -> usize {
    pod_of(item).map_or(0, Pod::raw_bytes)
}

fn annotation_bytes(item: &Item) -> usize {
    pod_of(item).map_or(0, Pod::annotation_bytes)
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) items: VecDeque<Item>,
    /// What must happen before the subscriber receives events.
    pub(super) waits_for: Option<WaitsFor>,
    pub(super) wants_raw: bool,
    /// Bytes of serialized pods in the queue, and of annotations.
    pub(super) raw_bytes: usize,
    pub(super) annotation_bytes: usize,
    /// The length above which superseded events are dropped.
    max_events: usize,
}

/// What a new subscriber waits for, because the cached pods are not good enough for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitsFor {
    /// The source is failing, so the cache may be stale: an event that shows that it works again.
    Recovery,
    /// It wants serialized pods, which are not cached: the next list.
    List,
}

impl Queue {
    pub(super) fn new(
        items: impl IntoIterator<Item = Item>,
        waits_for: Option<WaitsFor>,
        wants_raw: bool,
    ) -> Self {
        let items: VecDeque<Item> = items.into_iter().collect();
        let annotation_bytes = items.iter().map(annotation_bytes).sum();
        Self { items, waits_for, wants_raw, raw_bytes: 0, annotation_bytes, max_events: MAX_EVENTS }
    }

    pub(super) fn pop(&mut self) -> Option<Item> {
        let item = self.items.pop_front()?;
        self.raw_bytes -= raw_bytes(&item);
        self.annotation_bytes -= annotation_bytes(&item);
        Some(item)
    }

    pub(super) fn push(&mut self, item: Item) {
        self.raw_bytes += raw_bytes(&item);
        self.annotation_bytes += annotation_bytes(&item);
        self.items.push_back(item);
        if self.items.len() > self.max_events
            || self.raw_bytes > MAX_RAW_BYTES
            || self.annotation_bytes > MAX_ANNOTATION_BYTES
        {
            self.drop_superseded();
            self.max_events = MAX_EVENTS.max(2 * self.items.len());
            self.raw_bytes = reduce_to(MAX_RAW_BYTES, self.items.iter_mut().filter_map(pod_of_mut));
            self.annotation_bytes = drop_longest_annotations(self.items.iter_mut().filter_map(pod_of_mut));
        }
    }

    /// Drops superseded events: those before the start of the newest list, and all but the last event of each
    /// pod and the last error.
    fn drop_superseded(&mut self) {
        let start = self.items.iter().rposition(|item| matches!(item, Ok(PodEvent::Init))).unwrap_or(0);
        let (mut pods, mut has_error) = (BTreeSet::new(), false);
        let mut kept: VecDeque<Item> = VecDeque::new();
        for item in self.items.drain(..).skip(start).rev() {
            let is_last = match &item {
                Ok(PodEvent::Apply(pod) | PodEvent::Delete(pod)) => pods.insert(key(pod)),
                Err(_) => !std::mem::replace(&mut has_error, true),
                Ok(_) => true,
            };
            if is_last {
                kept.push_front(item);
            }
        }
        self.items = kept;
    }
}
