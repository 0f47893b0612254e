//! Decides which of the kubelet's lists of pods are complete: a kubelet that has just started lists fewer
//! pods than it has, without any indication (kubernetes#112119 for `/pods`; also the Pods API of 1.36).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::pod::{Pod, PodEvent, PodName, Termination};

/// Delay before the next list while the last one is suspected to be incomplete.
pub(super) const RECHECK_DELAY: Duration = Duration::from_secs(2);

/// How long lists must have seemed incomplete before one is accepted. It must also have the same pods as the
/// list before it.
const MISSING_AFTER: Duration = Duration::from_secs(10);
/// The same if more than half of all pods are missing at once that were not seen to be deleted or to
/// terminate: a kubelet that cannot reach the API server knows static pods only.
const MOST_MISSING_AFTER: Duration = Duration::from_secs(900);

/// Whether the kubelet that sent a list is known to list all its pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KubeletAge {
    /// A kubelet known to list all its pods.
    Established,
    /// A kubelet that may have just started.
    Restarted,
}

#[derive(Debug, Default)]
pub(super) struct ListFilter {
    /// The existing pods, once a list was accepted.
    accepted: Option<BTreeMap<PodName, KnownPod>>,
    /// The names in the previous list, if it was not accepted.
    last_names: Option<BTreeSet<PodName>>,
    /// When the first of the consecutive incomplete lists arrived.
    doubtful_since: Option<Instant>,
}

/// What is remembered of a pod. Keyed by name, not UID: if a new pod has the name, the earlier one is not
/// missing.
#[derive(Debug)]
struct KnownPod {
    uid: String,
    /// It was deleted or has terminated, so its absence is expected.
    is_ending: bool,
}

impl KnownPod {
    fn of(pod: &Pod) -> (PodName, Self) {
        let is_ending = pod.deleted || pod.termination != Termination::Live;
        (pod.full_name(), Self { uid: pod.uid.clone(), is_ending })
    }
}

impl ListFilter {
    /// Returns the events for a list: the whole list if it is accepted as complete; otherwise its pods alone,
    /// or nothing before the first accepted list.
    pub(super) fn filter_list(&mut self, pods: Vec<Pod>, age: KubeletAge, now: Instant) -> Vec<PodEvent> {
        let names: BTreeSet<PodName> = pods.iter().map(Pod::full_name).collect();
        if age == KubeletAge::Established || self.is_complete(&names, now) {
            self.accepted = Some(pods.iter().map(KnownPod::of).collect());
            (self.last_names, self.doubtful_since) = (None, None);
            return PodEvent::list(pods).collect();
        }
        self.last_names = Some(names);
        match &mut self.accepted {
            None => Vec::new(),
            Some(accepted) => {
                accepted.extend(pods.iter().map(KnownPod::of));
                pods.into_iter().map(PodEvent::Apply).collect()
            }
        }
    }

    /// Returns true if no pod is missing, or lists have seemed incomplete for long enough and the last two have
    /// the same pods.
    fn is_complete(&mut self, names: &BTreeSet<PodName>, now: Instant) -> bool {
        let required = match &self.accepted {
            None => MISSING_AFTER,
            Some(accepted) => {
                let is_missing = |(name, _): &(&PodName, &KnownPod)| !names.contains(*name);
                let missing: Vec<_> = accepted.iter().filter(is_missing).map(|(_, pod)| pod).collect();
                if missing.is_empty() {
                    return true;
                }
                let unexpected = missing.iter().filter(|pod| !pod.is_ending).count();
                if unexpected * 2 > accepted.len() { MOST_MISSING_AFTER } else { MISSING_AFTER }
            }
        };
        let since = *self.doubtful_since.get_or_insert(now);
        self.last_names.as_ref() == Some(names) && now.duration_since(since) >= required
    }

    pub(super) fn apply(&mut self, pod: &Pod) {
        if let Some(accepted) = &mut self.accepted {
            accepted.extend([KnownPod::of(pod)]);
        }
    }

    pub(super) fn delete(&mut self, pod: &Pod) {
        let Some(accepted) = &mut self.accepted else { return };
        let name = pod.full_name();
        // A new pod may already have the same name.
        if accepted.get(&name).is_some_and(|known| known.uid == pod.uid) {
            accepted.remove(&name);
        }
    }

    pub(super) fn has_accepted(&self) -> bool {
        self.accepted.is_some()
    }

    /// Returns true if the last list was not accepted, so that another should be read soon.
    pub(super) fn is_doubtful(&self) -> bool {
        self.doubtful_since.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods(names: &str) -> Vec<Pod> {
        let pod = |letter: char| Pod {
            namespace: "ns".into(),
            name: letter.to_ascii_lowercase().into(),
            // X has terminated, q to z were deleted.
            termination: if letter.is_ascii_uppercase() {
                Termination::Terminated
            } else {
                Termination::Live
            },
            deleted: letter >= 'q',
            ..Pod::default()
        };
        names.chars().map(pod).collect()
    }

    /// Abbreviates events: `[abc]` a list, `abc` single pods.
    fn short(events: &[PodEvent]) -> String {
        let short = |event: &PodEvent| match event {
            PodEvent::Init => "[".to_owned(),
            PodEvent::InitDone => "]".to_owned(),
            PodEvent::InitApply(pod) | PodEvent::Apply(pod) => pod.name.clone(),
            PodEvent::Delete(pod) => format!("-{}", pod.name),
            PodEvent::Resumed => "+".to_owned(),
        };
        events.iter().map(short).collect()
    }

    /// Steps of second, pods listed by a kubelet that may have just started, and expected events.
    fn check(steps: &[(u64, &str, &str)]) {
        let start = Instant::now();
        let mut filter = ListFilter::default();
        for (second, listed, expected) in steps {
            let now = start + Duration::from_secs(*second);
            let events = filter.filter_list(pods(listed), KubeletAge::Restarted, now);
            assert_eq!(short(&events), *expected, "{listed} at {second} of {steps:?}");
            assert_eq!(filter.is_doubtful(), !expected.starts_with('['), "{listed} at {second} of {steps:?}");
        }
    }

    #[test]
    fn the_first_list_is_accepted_after_ten_seconds_if_it_equals_the_one_before() {
        check(&[(0, "", ""), (9, "", ""), (10, "", "[]"), (12, "ab", "[ab]")]);
        check(&[(0, "a", ""), (5, "ab", ""), (11, "abc", ""), (12, "abc", "[abc]"), (13, "abcd", "[abcd]")]);
    }

    #[test]
    fn lists_of_an_established_kubelet_are_complete() {
        let mut filter = ListFilter::default();
        let now = Instant::now();
        for list in ["abc", "", "c"] {
            let events = filter.filter_list(pods(list), KubeletAge::Established, now);
            assert_eq!(short(&events), format!("[{list}]"));
            assert!(!filter.is_doubtful());
        }
    }

    const ACCEPTED: [(u64, &str, &str); 2] = [(0, "abc", ""), (10, "abc", "[abc]")];

    fn check_accepted(steps: &[(u64, &str, &str)]) {
        check(&[&ACCEPTED[..], steps].concat());
    }

    #[test]
    fn a_pod_that_is_missing_for_a_while_is_deleted() {
        check_accepted(&[(15, "ab", "ab"), (20, "ab", "ab"), (25, "ab", "[ab]")]);
        // It returns; the next missing pod is timed from its own disappearance.
        check_accepted(&[(15, "ab", "ab"), (24, "abc", "[abc]"), (25, "ab", "ab"), (34, "ab", "ab")]);
        // The kubelet is still adding pods.
        check_accepted(&[(15, "b", "b"), (400, "bc", "bc"), (401, "bc", "[bc]")]);
    }

    #[test]
    fn most_pods_are_deleted_only_if_they_are_missing_for_long() {
        check_accepted(&[(15, "a", "a"), (30, "a", "a"), (914, "a", "a"), (915, "a", "[a]")]);
        check_accepted(&[(15, "", ""), (914, "", ""), (915, "", "[]")]);
        // New pods appear meanwhile and count as well.
        check_accepted(&[(15, "d", "d"), (920, "de", "de"), (921, "de", "[de]")]);
        check_accepted(&[(15, "ad", "ad"), (20, "a", "a"), (914, "a", "a"), (915, "a", "[a]")]);
    }

    #[test]
    fn pods_that_were_ending_are_not_unexpectedly_missing() {
        let deleted = [(0, "abcxyz", ""), (10, "abcxyz", "[abcxyz]")];
        check(&[&deleted[..], &[(15, "ab", "ab"), (16, "ab", "ab"), (25, "ab", "[ab]")]].concat());
        let terminated = [(0, "aBCDE", ""), (10, "aBCDE", "[abcde]")];
        check(&[&terminated[..], &[(15, "ab", "ab"), (25, "ab", "[ab]")]].concat());
        // If others are missing at the same time, all are waited for.
        let both = [(0, "abcDE", ""), (10, "abcDE", "[abcde]")];
        check(&[&both[..], &[(15, "", ""), (914, "", ""), (915, "", "[]")]].concat());
    }

    #[test]
    fn single_pods_are_recorded() {
        let mut filter = ListFilter::default();
        let now = Instant::now();
        filter.filter_list(pods("abc"), KubeletAge::Established, now);
        pods("de").iter().for_each(|pod| filter.apply(pod));
        pods("ab").iter().for_each(|pod| filter.delete(pod));
        let mut listed = |list| short(&filter.filter_list(pods(list), KubeletAge::Restarted, now));
        assert_eq!(listed("ce"), "ce", "d is missing");
        assert_eq!(listed("cde"), "[cde]", "none is missing");
    }

    #[test]
    fn a_deletion_does_not_affect_a_newer_pod_of_the_same_name() {
        let mut filter = ListFilter::default();
        let now = Instant::now();
        filter.filter_list(pods("ab"), KubeletAge::Established, now);
        let old = pods("a").remove(0);
        let new = Pod { uid: "another".into(), ..old.clone() };
        filter.apply(&new);
        filter.delete(&old);
        let list =
            |filter: &mut ListFilter| short(&filter.filter_list(pods("b"), KubeletAge::Restarted, now));
        assert_eq!(list(&mut filter), "b", "the new one is missing");
        filter.delete(&new);
        assert_eq!(list(&mut filter), "[b]", "none is missing");
    }
}
