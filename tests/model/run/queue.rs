//! The scheduler's queue: activeQ, backoffQ, the unschedulable pods, and the events that move them.

use super::chance::{S, Time};
use super::cluster::PodId;

/// How long a pod may stay unschedulable before it is retried without an event.
const LEFT_OVER: Time = 300 * S;

/// An event that moves rejected pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    /// A bound pod ended or was deleted: relevant to all rejected pods.
    PodGone,
    /// Any object was created or updated: relevant to the plugin, which registers no queueing hint.
    Object,
}

impl Move {
    /// Returns true if the event is relevant to a pod; `by_plugin`: whether the plugin rejected it on some
    /// node.
    fn interests(self, by_plugin: bool) -> bool {
        self == Self::PodGone || by_plugin
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Active,
    BackOff,
    Unschedulable,
}

#[derive(Clone, Debug)]
struct Entry {
    pod: PodId,
    place: Place,
    /// When it was added to the queue or returned to it.
    since: Time,
    rejections: u32,
    /// Whether the plugin rejected it on some node; if not, no node had enough in total.
    by_plugin: bool,
}

/// The settings of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BackOff {
    pub(crate) first: Time,
    pub(crate) longest: Time,
    /// Pods are taken out of backoffQ early while activeQ is empty: schedulers since 1.33, unless the gate
    /// `SchedulerPopFromBackoffQ` is off.
    pub(crate) early: bool,
}

/// The queue.
#[derive(Debug)]
pub(crate) struct Queue {
    back_off: BackOff,
    entries: Vec<Entry>,
    /// The pod being scheduled; `missed`: the events since then.
    flying: Option<Entry>,
    missed: Vec<Move>,
}

impl Queue {
    pub(crate) fn new(back_off: BackOff) -> Self {
        Self { back_off, entries: Vec::new(), flying: None, missed: Vec::new() }
    }

    pub(crate) fn add(&mut self, pod: PodId, now: Time) {
        let entry = Entry { pod, place: Place::Active, since: now, rejections: 0, by_plugin: false };
        self.entries.push(entry);
    }

    pub(crate) fn remove(&mut self, pod: PodId) {
        self.entries.retain(|entry| entry.pod != pod);
    }

    /// Takes the next pod to schedule, if there is one.
    pub(crate) fn pop(&mut self) -> Option<PodId> {
        let next = self.first(|entry| (entry.place == Place::Active).then_some((0, entry.since)));
        let early = |queue: &Self| {
            queue.first(|entry| (entry.place == Place::BackOff).then_some((queue.until(entry), entry.since)))
        };
        let next = next.or_else(|| if self.back_off.early { early(self) } else { None })?;
        let entry = self.entries.swap_remove(next);
        let pod = entry.pod;
        self.flying = Some(entry);
        self.missed.clear();
        Some(pod)
    }

    fn first(&self, order: impl Fn(&Entry) -> Option<(Time, Time)>) -> Option<usize> {
        let ordered =
            self.entries.iter().enumerate().filter_map(|(index, entry)| Some((order(entry)?, index)));
        ordered.min().map(|(_, index)| index)
    }

    /// The pod being scheduled was placed.
    pub(crate) fn placed(&mut self) {
        self.flying = None;
    }

    /// The pod being scheduled was rejected.
    pub(crate) fn rejected(&mut self, by_plugin: bool, now: Time) {
        let Some(mut entry) = self.flying.take() else { return };
        entry.rejections += 1;
        entry.since = now;
        entry.by_plugin = by_plugin;
        entry.place = Place::Unschedulable;
        if self.missed.iter().any(|moved| moved.interests(by_plugin)) {
            entry.place = self.place_to_go(&entry, now);
        }
        self.entries.push(entry);
    }

    /// The pod being scheduled is gone.
    pub(crate) fn dropped(&mut self) {
        self.flying = None;
    }

    /// Handles an event that may make pods schedulable.
    pub(crate) fn happens(&mut self, moved: Move, now: Time) {
        self.missed.push(moved);
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            if entry.place == Place::Unschedulable && moved.interests(entry.by_plugin) {
                self.entries[index].place = self.place_to_go(&self.entries[index], now);
            }
        }
    }

    /// Ends back-offs that are over. Called once a second.
    pub(crate) fn flush(&mut self, now: Time) {
        for index in 0..self.entries.len() {
            if self.entries[index].place == Place::BackOff && !self.backs_off(&self.entries[index], now) {
                self.entries[index].place = Place::Active;
            }
        }
    }

    /// Moves pods that no event has moved for minutes. Called every 30 s.
    pub(crate) fn flush_left_over(&mut self, now: Time) {
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            if entry.place == Place::Unschedulable && now - entry.since > LEFT_OVER {
                self.entries[index].place = self.place_to_go(&self.entries[index], now);
            }
        }
    }

    pub(crate) fn waiting(&self) -> impl Iterator<Item = PodId> {
        self.entries.iter().map(|entry| entry.pod).chain(self.flying.as_ref().map(|entry| entry.pod))
    }

    fn place_to_go(&self, entry: &Entry, now: Time) -> Place {
        if self.backs_off(entry, now) { Place::BackOff } else { Place::Active }
    }

    /// When the entry's back-off is over; with the gate on, in whole seconds.
    fn until(&self, entry: &Entry) -> Time {
        let doublings = entry.rejections.saturating_sub(1).min(20);
        let wait = (self.back_off.first << doublings).min(self.back_off.longest);
        self.window(entry.since + if entry.rejections == 0 { 0 } else { wait })
    }

    fn backs_off(&self, entry: &Entry, now: Time) -> bool {
        entry.rejections > 0 && self.until(entry) >= self.window(now) + Time::from(!self.back_off.early)
    }

    fn window(&self, time: Time) -> Time {
        if self.back_off.early { time - time % S } else { time }
    }
}

#[cfg(test)]
#[allow(dead_code, unused_imports)] // the long form has no test harness
mod tests {
    use super::*;

    fn queue(early: bool) -> Queue {
        let mut queue = Queue::new(BackOff { first: S, longest: 10 * S, early });
        queue.add(7, 0);
        queue
    }

    #[test]
    fn a_rejected_pod_waits_for_an_event_of_interest() {
        let mut queue = queue(true);
        assert_eq!(queue.pop(), Some(7));
        queue.rejected(false, 1);
        queue.happens(Move::Object, 2);
        assert_eq!(queue.pop(), None, "the object is of no interest to who rejected it");
        queue.happens(Move::PodGone, 3);
        assert_eq!(queue.pop(), Some(7), "early, though it backs off");
        queue.rejected(true, 4);
        assert_eq!(queue.pop(), None);
        queue.flush_left_over(LEFT_OVER + 4);
        assert_eq!(queue.pop(), None);
        queue.flush_left_over(LEFT_OVER + 5);
        assert_eq!(queue.pop(), Some(7));
        queue.happens(Move::Object, LEFT_OVER + 6);
        queue.rejected(true, LEFT_OVER + 7);
        assert_eq!(queue.pop(), Some(7), "what happens meanwhile is not missed");
    }

    #[test]
    fn without_early_pops_each_rejection_doubles_the_wait() {
        let mut queue = queue(false);
        let mut now = 0;
        for wait in [1, 2, 4, 8, 10, 10] {
            assert_eq!(queue.pop(), Some(7));
            queue.rejected(true, now);
            queue.happens(Move::Object, now);
            now += wait * S;
            queue.flush(now - 1);
            assert_eq!(queue.pop(), None, "{wait}");
            queue.flush(now);
        }
    }
}
