//! The scheduler's queue: activeQ, backoffQ, the unschedulable pods, and the events that move them.

use super::cluster::PodId;
use super::time::{S, Time};

/// How long a pod may stay unschedulable before it is retried without an event.
const MAX_UNSCHEDULABLE: Time = 300 * S;

/// An event that moves rejected pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueEvent {
    /// A bound pod terminated or was deleted: relevant to all rejected pods.
    PodDeleted,
    /// Any object was created or updated: relevant to the plugin, which registers no queueing hint.
    Object,
}

impl QueueEvent {
    /// Returns true if the event is relevant to a pod; `by_plugin`: whether the plugin rejected it on some
    /// node.
    fn is_relevant(self, by_plugin: bool) -> bool {
        self == Self::PodDeleted || by_plugin
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Active,
    Backoff,
    Unschedulable,
}

#[derive(Clone, Debug)]
struct Entry {
    pod: PodId,
    part: Part,
    /// When it was added to the queue or returned to it.
    since: Time,
    rejections: u32,
    /// Whether the plugin rejected it on some node; if not, no node had enough in total.
    by_plugin: bool,
}

/// The settings of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backoff {
    pub(crate) first: Time,
    pub(crate) longest: Time,
    /// Pods are taken out of backoffQ early while activeQ is empty: schedulers since 1.33, unless the gate
    /// `SchedulerPopFromBackoffQ` is off.
    pub(crate) early: bool,
}

/// The queue.
#[derive(Debug)]
pub(crate) struct Queue {
    backoff: Backoff,
    entries: Vec<Entry>,
    /// The pod being scheduled; `events`: those since then.
    in_flight: Option<Entry>,
    events: Vec<QueueEvent>,
}

impl Queue {
    pub(crate) fn new(backoff: Backoff) -> Self {
        Self { backoff, entries: Vec::new(), in_flight: None, events: Vec::new() }
    }

    pub(crate) fn add(&mut self, pod: PodId, now: Time) {
        let entry = Entry { pod, part: Part::Active, since: now, rejections: 0, by_plugin: false };
        self.entries.push(entry);
    }

    pub(crate) fn remove(&mut self, pod: PodId) {
        self.entries.retain(|entry| entry.pod != pod);
    }

    /// Takes the next pod to schedule, if there is one.
    pub(crate) fn pop(&mut self) -> Option<PodId> {
        let next = self.first(|entry| (entry.part == Part::Active).then_some((0, entry.since)));
        let backing_off = |queue: &Self| {
            queue.first(|entry| (entry.part == Part::Backoff).then_some((queue.until(entry), entry.since)))
        };
        let next = next.or_else(|| if self.backoff.early { backing_off(self) } else { None })?;
        let entry = self.entries.swap_remove(next);
        let pod = entry.pod;
        self.in_flight = Some(entry);
        self.events.clear();
        Some(pod)
    }

    fn first(&self, order: impl Fn(&Entry) -> Option<(Time, Time)>) -> Option<usize> {
        let ordered =
            self.entries.iter().enumerate().filter_map(|(index, entry)| Some((order(entry)?, index)));
        ordered.min().map(|(_, index)| index)
    }

    /// The pod being scheduled was placed.
    pub(crate) fn placed(&mut self) {
        self.in_flight = None;
    }

    /// The pod being scheduled was rejected.
    pub(crate) fn rejected(&mut self, by_plugin: bool, now: Time) {
        let Some(mut entry) = self.in_flight.take() else { return };
        entry.rejections += 1;
        entry.since = now;
        entry.by_plugin = by_plugin;
        entry.part = Part::Unschedulable;
        if self.events.iter().any(|event| event.is_relevant(by_plugin)) {
            entry.part = self.next_part(&entry, now);
        }
        self.entries.push(entry);
    }

    /// The pod being scheduled was deleted.
    pub(crate) fn dropped(&mut self) {
        self.in_flight = None;
    }

    /// Handles an event that may make pods schedulable.
    pub(crate) fn handle(&mut self, event: QueueEvent, now: Time) {
        self.events.push(event);
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            if entry.part == Part::Unschedulable && event.is_relevant(entry.by_plugin) {
                self.entries[index].part = self.next_part(&self.entries[index], now);
            }
        }
    }

    /// Moves pods whose backoff is over. Called once a second.
    pub(crate) fn flush(&mut self, now: Time) {
        for index in 0..self.entries.len() {
            if self.entries[index].part == Part::Backoff && !self.is_backing_off(&self.entries[index], now) {
                self.entries[index].part = Part::Active;
            }
        }
    }

    /// Moves pods that no event has moved for minutes. Called every 30 s.
    pub(crate) fn flush_unschedulable(&mut self, now: Time) {
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            if entry.part == Part::Unschedulable && now - entry.since > MAX_UNSCHEDULABLE {
                self.entries[index].part = self.next_part(&self.entries[index], now);
            }
        }
    }

    /// All pods of the queue.
    pub(crate) fn pods(&self) -> impl Iterator<Item = PodId> {
        self.entries.iter().map(|entry| entry.pod).chain(self.in_flight.as_ref().map(|entry| entry.pod))
    }

    fn next_part(&self, entry: &Entry, now: Time) -> Part {
        if self.is_backing_off(entry, now) { Part::Backoff } else { Part::Active }
    }

    /// When the entry's backoff is over; with the gate on, in whole seconds.
    fn until(&self, entry: &Entry) -> Time {
        let doublings = entry.rejections.saturating_sub(1).min(20);
        let wait = (self.backoff.first << doublings).min(self.backoff.longest);
        self.rounded(entry.since + if entry.rejections == 0 { 0 } else { wait })
    }

    fn is_backing_off(&self, entry: &Entry, now: Time) -> bool {
        entry.rejections > 0 && self.until(entry) >= self.rounded(now) + Time::from(!self.backoff.early)
    }

    fn rounded(&self, time: Time) -> Time {
        if self.backoff.early { time - time % S } else { time }
    }
}

#[cfg(test)]
#[allow(dead_code, unused_imports)] // the long form has no test harness
mod tests {
    use super::*;

    fn queue(early: bool) -> Queue {
        let mut queue = Queue::new(Backoff { first: S, longest: 10 * S, early });
        queue.add(7, 0);
        queue
    }

    #[test]
    fn a_rejected_pod_waits_for_a_relevant_event() {
        let mut queue = queue(true);
        assert_eq!(queue.pop(), Some(7));
        queue.rejected(false, 1);
        queue.handle(QueueEvent::Object, 2);
        assert_eq!(queue.pop(), None, "the plugin did not reject it");
        queue.handle(QueueEvent::PodDeleted, 3);
        assert_eq!(queue.pop(), Some(7), "before the end of its backoff");
        queue.rejected(true, 4);
        assert_eq!(queue.pop(), None);
        queue.flush_unschedulable(MAX_UNSCHEDULABLE + 4);
        assert_eq!(queue.pop(), None);
        queue.flush_unschedulable(MAX_UNSCHEDULABLE + 5);
        assert_eq!(queue.pop(), Some(7));
        queue.handle(QueueEvent::Object, MAX_UNSCHEDULABLE + 6);
        queue.rejected(true, MAX_UNSCHEDULABLE + 7);
        assert_eq!(queue.pop(), Some(7), "events during scheduling count");
    }

    #[test]
    fn without_early_pops_each_rejection_doubles_the_backoff() {
        let mut queue = queue(false);
        let mut now = 0;
        for wait in [1, 2, 4, 8, 10, 10] {
            assert_eq!(queue.pop(), Some(7));
            queue.rejected(true, now);
            queue.handle(QueueEvent::Object, now);
            now += wait * S;
            queue.flush(now - 1);
            assert_eq!(queue.pop(), None, "{wait}");
            queue.flush(now);
        }
    }
}
