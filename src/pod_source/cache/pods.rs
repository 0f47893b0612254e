//! The cached pods, and which were recently deleted.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::pod::{Pod, PodEvent, PodMap, PodName, Termination};
use crate::watch_event::{Reflector, WatchEvent};

/// How long the List may still show a pod that is gone before that is accepted as the truth: a kubelet that
/// cannot stop a container lists its pod indefinitely.
pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(15);

/// How long deletions are remembered: kubelets restart within minutes.
const HISTORY: Duration = Duration::from_secs(600);
/// Maximum number of remembered deletions. With more of them, a restarted kubelet is accepted a while later.
const MAX_HISTORY: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct CachedPods {
    pods: Reflector<PodMap<PodName>>,
    /// When the list that is being received was requested, and when the last complete one was.
    list_requested_at: Option<Instant>,
    pub(super) listed_at: Option<Instant>,
    /// Incremented whenever a pod changes, and when the first list is complete.
    pub(super) version: u64,
    pub(super) failing_since: Option<Instant>,
    /// The source's last error, while it is failing.
    pub(super) error: Option<String>,
    deletions: Deletions,
}

impl CachedPods {
    /// Applies an event that was received at this time.
    pub(super) fn apply(&mut self, event: PodEvent, at: Instant) {
        let event = event.map(|pod| (pod.full_name(), pod));
        match &event {
            WatchEvent::Init => self.list_requested_at = Some(at),
            WatchEvent::InitApply(_) => {
                self.list_requested_at.get_or_insert(at);
            }
            WatchEvent::InitDone => {
                self.listed_at = Some(self.list_requested_at.take().unwrap_or(at));
                self.version += u64::from(!self.pods.is_synced());
            }
            WatchEvent::Apply((name, pod)) => {
                let before = self.pods.objects().get(name);
                self.deletions.record(name, before, Some(pod), at);
                self.version += u64::from(before != Some(pod));
            }
            WatchEvent::Delete((name, pod)) => {
                let before = self.pods.objects().get(name);
                // Another pod may already have its name.
                if before.is_none_or(|before| before.uid != pod.uid) {
                    return;
                }
                self.deletions.record(name, before, None, at);
                self.version += 1;
            }
            WatchEvent::Resumed => {}
        }
        if let Some(before) = self.pods.apply(event) {
            self.compare(&before, at);
        }
    }

    /// Records what a new list changed. Pods missing from it were deleted unseen.
    fn compare(&mut self, before: &PodMap<PodName>, at: Instant) {
        let now = self.pods.objects();
        for (name, pod) in before.iter().filter(|(name, _)| !now.contains_key(*name)) {
            self.deletions.record(name, Some(pod), None, at);
            self.version += 1;
        }
        for (name, pod) in now.iter() {
            self.deletions.record(name, before.get(name), Some(pod), at);
            self.version += u64::from(before.get(name) != Some(pod));
        }
    }

    pub(super) fn is_synced(&self) -> bool {
        self.pods.is_synced()
    }

    pub(super) fn all(&self) -> &BTreeMap<PodName, Pod> {
        self.pods.objects()
    }

    /// Returns true if a pod with this name was deleted, stopped or terminated within [`HISTORY`].
    pub(super) fn was_deleted(&self, name: &PodName) -> bool {
        self.deletions.history.contains_key(name)
    }

    pub(super) fn terminated(&self) -> BTreeMap<PodName, String> {
        let terminated = self.all().iter().filter(|(_, pod)| pod.termination == Termination::Terminated);
        terminated.map(|(name, pod)| (name.clone(), pod.uid.clone())).collect()
    }

    /// Returns the pods that were deleted, stopped or terminated within [`RELEASE_TIMEOUT`], and forgets
    /// older deletions.
    pub(super) fn recently_deleted(&mut self, now: Instant) -> &BTreeMap<PodName, Instant> {
        self.deletions.history.retain(|_, at| now.duration_since(*at) < HISTORY);
        self.deletions.recent.retain(|_, at| now.duration_since(*at) < RELEASE_TIMEOUT);
        &self.deletions.recent
    }
}

/// The pods that were deleted, stopped or terminated.
#[derive(Debug, Default)]
struct Deletions {
    /// Within [`RELEASE_TIMEOUT`].
    recent: BTreeMap<PodName, Instant>,
    /// Within [`HISTORY`]: the kubelet may restart in between.
    history: BTreeMap<PodName, Instant>,
}

impl Deletions {
    /// Records a change of the pod with this name. `before` is `None` if it is new, `after` if it was deleted.
    fn record(&mut self, name: &PodName, before: Option<&Pod>, after: Option<&Pod>, at: Instant) {
        let was_live = before.is_some_and(is_live);
        let is_same = |after: &Pod| before.is_some_and(|before| before.uid == after.uid);
        match after {
            // It may be another pod with the same name.
            Some(after) if is_live(after) => {
                self.recent.remove(name);
            }
            Some(after) if was_live || !is_same(after) => self.add(name, at),
            None if was_live => self.add(name, at),
            Some(_) | None => {}
        }
    }

    fn add(&mut self, name: &PodName, at: Instant) {
        if self.history.len() >= MAX_HISTORY {
            let half = at.checked_sub(HISTORY / 2).unwrap_or(at);
            self.history.retain(|_, deleted_at| *deleted_at > half);
        }
        if self.history.len() < MAX_HISTORY {
            self.history.insert(name.clone(), at);
        }
        self.recent.insert(name.clone(), at);
    }
}

fn is_live(pod: &Pod) -> bool {
    pod.termination == Termination::Live
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::{Annotation, MAX_ANNOTATION_BYTES};
    use crate::pod_source::samples::annotated;

    fn pod(name: &str, uid: &str, termination: Termination) -> Pod {
        Pod { namespace: "ns".into(), name: name.into(), uid: uid.into(), termination, ..Pod::default() }
    }

    fn names<'a>(names: impl IntoIterator<Item = &'a PodName>) -> String {
        names.into_iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(",")
    }

    #[test]
    fn a_pod_is_recently_deleted_until_its_name_is_taken_again() {
        let mut pods = CachedPods::default();
        let start = Instant::now();
        let mut deleted = |event, seconds| {
            let now = start + Duration::from_secs(seconds);
            pods.apply(event, now);
            names(pods.recently_deleted(now).keys())
        };
        for name in ["a", "b", "c"] {
            assert_eq!(deleted(PodEvent::Apply(pod(name, "1", Termination::Live)), 0), "");
        }
        assert_eq!(deleted(PodEvent::Apply(pod("a", "1", Termination::Stopped)), 1), "a");
        assert_eq!(deleted(PodEvent::Apply(pod("b", "1", Termination::Terminated)), 2), "a,b");
        assert_eq!(deleted(PodEvent::Delete(pod("c", "1", Termination::Live)), 3), "a,b,c");
        // Later events of a pod that was stopped already change nothing.
        assert_eq!(deleted(PodEvent::Apply(pod("a", "1", Termination::Terminated)), 15), "a,b,c");
        assert_eq!(
            deleted(PodEvent::Delete(pod("a", "1", Termination::Terminated)), 16),
            "b,c",
            "long enough"
        );
        assert_eq!(deleted(PodEvent::Apply(pod("b", "2", Termination::Live)), 16), "c", "another pod");
        assert_eq!(deleted(PodEvent::Apply(pod("d", "1", Termination::Terminated)), 18), "d", "rejected");
        assert_eq!(names(pods.deletions.history.keys()), "a,b,c,d");
        pods.recently_deleted(start + HISTORY + Duration::from_secs(10));
        assert_eq!(names(pods.deletions.history.keys()), "d");
        let many = (0..3 * MAX_HISTORY).map(|number| pod(&number.to_string(), "1", Termination::Terminated));
        many.for_each(|pod| pods.apply(PodEvent::Apply(pod), start));
        assert_eq!(pods.deletions.history.len(), MAX_HISTORY);
    }

    #[test]
    fn a_new_list_replaces_the_old_one_once_it_is_complete() {
        let mut pods = CachedPods::default();
        let now = Instant::now();
        for event in [
            PodEvent::Apply(pod("a", "1", Termination::Live)),
            PodEvent::Apply(pod("b", "1", Termination::Terminated)),
            PodEvent::Apply(pod("c", "1", Termination::Live)),
            PodEvent::Init,
            PodEvent::InitApply(pod("b", "1", Termination::Terminated)),
            PodEvent::InitApply(pod("c", "1", Termination::Terminated)),
        ] {
            pods.apply(event, now);
        }
        let state = |pods: &mut CachedPods| {
            (names(pods.terminated().keys()), names(pods.recently_deleted(now).keys()), pods.is_synced())
        };
        assert_eq!(state(&mut pods), ("b".into(), "b".into(), false));
        let version = pods.version;
        pods.apply(PodEvent::InitDone, now);
        assert_eq!(state(&mut pods), ("b,c".into(), "a,b,c".into(), true));
        assert!(pods.version > version);
    }

    fn annotation_bytes(pods: &BTreeMap<PodName, Pod>) -> usize {
        pods.values().map(Pod::annotation_bytes).sum()
    }

    #[test]
    fn annotations_of_the_list_and_of_events_are_bounded_together() {
        let (mut pods, now) = (CachedPods::default(), Instant::now());
        let bounds = MAX_ANNOTATION_BYTES / 2..=MAX_ANNOTATION_BYTES;
        let many = || (0..1000).map(|number| annotated(&number.to_string(), Annotation::MAX_BYTES));
        pods.apply(PodEvent::Init, now);
        many().for_each(|pod| pods.apply(PodEvent::InitApply(pod), now));
        assert!(bounds.contains(&annotation_bytes(pods.pods.incoming().unwrap())));
        pods.apply(PodEvent::InitDone, now);
        assert!(bounds.contains(&annotation_bytes(pods.all())));
        pods.apply(PodEvent::Apply(annotated("small", 1000)), now);
        let version = pods.version;
        many().for_each(|pod| pods.apply(PodEvent::Apply(pod), now));
        assert!(bounds.contains(&annotation_bytes(pods.all())));
        let small = &pods.all()[&("ns".into(), "small".into())];
        assert_eq!(small.annotation_bytes(), 1000, "the longest are dropped");
        assert!(pods.version > version);
        many().for_each(|pod| pods.apply(PodEvent::Delete(pod), now));
        assert_eq!(annotation_bytes(pods.all()), 1000);
    }
}
