//! Decides which of the kubelet's lists of pods are complete: a kubelet that has just started lists fewer
//! pods than it has, without any indication (kubernetes#112119 for `/pods`; also the Pods API of 1.36).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::pod::{Liveness, Pod, PodEvent};

/// Delay before the next list while the last one is suspected to be incomplete.
pub(super) const SOON: Duration = Duration::from_secs(2);

/// How long pods must have been missing before they count as gone, and how long the first list must have been
/// unchanged.
pub(super) const MISSING: Duration = Duration::from_secs(10);
/// The same if more than half of all pods are missing at once that were not seen to be deleted or to
/// terminate: a kubelet that cannot reach the API server knows static pods only.
const MOST_MISSING: Duration = Duration::from_secs(900);

/// The kubelet that sent a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Teller {
    /// A kubelet known to list all its pods.
    Known,
    /// A kubelet that may have just started.
    Young,
}

/// The state kept between lists.
#[derive(Debug, Default)]
pub(super) struct Belief {
    /// The existing pods, once a list was accepted.
    believed: Option<BTreeMap<Name, Trace>>,
    /// The names in the previous list.
    before: Option<BTreeSet<Name>>,
    /// When the first of the consecutive incomplete lists arrived.
    doubted: Option<Instant>,
}

/// Namespace and name.
type Name = (String, String);

/// What is remembered of a pod. Keyed by name, not UID: if a new pod has the name, the earlier one is not
/// missing.
#[derive(Debug)]
struct Trace {
    uid: String,
    /// It was deleted or has terminated, so its absence is expected.
    goes: bool,
}

impl Trace {
    fn of(pod: &Pod) -> (Name, Self) {
        let goes = pod.deleted || pod.liveness != Liveness::Live;
        (pod.full_name(), Self { uid: pod.uid.clone(), goes })
    }
}

impl Belief {
    /// Takes a list and returns the events for it: the whole list if it is accepted as complete; otherwise
    /// its pods alone, or nothing before the first accepted list.
    pub(super) fn take(&mut self, pods: Vec<Pod>, teller: Teller, now: Instant) -> Vec<PodEvent> {
        let names: BTreeSet<Name> = pods.iter().map(Pod::full_name).collect();
        let same = self.before.as_ref() == Some(&names);
        if teller == Teller::Known || self.is_enough(&names, same, now) {
            self.believed = Some(pods.iter().map(Trace::of).collect());
            (self.before, self.doubted) = (None, None);
            let listed = pods.into_iter().map(PodEvent::InitApply);
            return std::iter::once(PodEvent::Init).chain(listed).chain([PodEvent::InitDone]).collect();
        }
        self.before = Some(names);
        match &mut self.believed {
            None => Vec::new(),
            Some(believed) => {
                believed.extend(pods.iter().map(Trace::of));
                pods.into_iter().map(PodEvent::Apply).collect()
            }
        }
    }

    /// Returns true if no pod is missing, or pods have been missing for long enough.
    fn is_enough(&mut self, names: &BTreeSet<Name>, same: bool, now: Instant) -> bool {
        let enough = match &self.believed {
            None => MISSING,
            Some(believed) => {
                let missing: Vec<&Trace> = believed
                    .iter()
                    .filter(|(name, _)| !names.contains(*name))
                    .map(|(_, trace)| trace)
                    .collect();
                if missing.is_empty() {
                    return true;
                }
                let strange = missing.iter().filter(|trace| !trace.goes).count();
                if strange * 2 > believed.len() { MOST_MISSING } else { MISSING }
            }
        };
        let since = *self.doubted.get_or_insert(now);
        same && now.duration_since(since) >= enough
    }

    /// Records a pod that was added or changed.
    pub(super) fn is(&mut self, pod: &Pod) {
        if let Some(believed) = &mut self.believed {
            believed.extend([Trace::of(pod)]);
        }
    }

    /// Records a deletion.
    pub(super) fn gone(&mut self, pod: &Pod) {
        let Some(believed) = &mut self.believed else { return };
        let name = pod.full_name();
        // A new pod may already have the same name.
        if believed.get(&name).is_some_and(|trace| trace.uid == pod.uid) {
            believed.remove(&name);
        }
    }

    /// Returns true once a list was accepted.
    pub(super) fn knows_any(&self) -> bool {
        self.believed.is_some()
    }

    /// Returns true if the last list was not accepted, so that another should be read soon.
    pub(super) fn doubts(&self) -> bool {
        self.doubted.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(names: &str) -> Vec<Pod> {
        let pod = |letter: char| Pod {
            namespace: "ns".into(),
            name: letter.to_ascii_lowercase().into(),
            // X has terminated, q to z were deleted.
            liveness: if letter.is_ascii_uppercase() { Liveness::Terminated } else { Liveness::Live },
            deleted: letter >= 'q',
            ..Pod::default()
        };
        names.chars().map(pod).collect()
    }

    /// Abbreviates events: `[abc]` a list, `abc` single pods.
    fn told(events: &[PodEvent]) -> String {
        let word = |event: &PodEvent| match event {
            PodEvent::Init => "[".to_owned(),
            PodEvent::InitDone => "]".to_owned(),
            PodEvent::InitApply(pod) | PodEvent::Apply(pod) => pod.name.clone(),
            PodEvent::Delete(pod) => format!("-{}", pod.name),
            PodEvent::Resumed => "+".to_owned(),
        };
        events.iter().map(word).collect()
    }

    /// Steps of second, pods listed by a young kubelet, and expected events.
    fn story(steps: &[(u64, &str, &str)]) {
        let start = Instant::now();
        let mut belief = Belief::default();
        for (second, read, expected) in steps {
            let events = belief.take(reading(read), Teller::Young, start + Duration::from_secs(*second));
            assert_eq!(told(&events), *expected, "{read} at {second} of {steps:?}");
            assert_eq!(belief.doubts(), !expected.starts_with('['), "{read} at {second} of {steps:?}");
        }
    }

    #[test]
    fn the_first_list_is_one_that_stayed_the_same_for_a_while() {
        story(&[(0, "", ""), (9, "", ""), (10, "", "[]"), (12, "ab", "[ab]")]);
        story(&[(0, "a", ""), (5, "ab", ""), (11, "abc", ""), (12, "abc", "[abc]"), (13, "abcd", "[abcd]")]);
    }

    #[test]
    fn a_kubelet_that_is_known_is_believed_at_once() {
        let mut belief = Belief::default();
        let now = Instant::now();
        for list in ["abc", "", "c"] {
            assert_eq!(told(&belief.take(reading(list), Teller::Known, now)), format!("[{list}]"));
            assert!(!belief.doubts());
        }
    }

    const KNOWN: [(u64, &str, &str); 2] = [(0, "abc", ""), (10, "abc", "[abc]")];

    #[test]
    fn a_pod_is_gone_when_it_has_been_missing_for_a_while() {
        story(&[&KNOWN[..], &[(15, "ab", "ab"), (20, "ab", "ab"), (25, "ab", "[ab]")]].concat());
        // It returns; the next missing pod is timed from its own disappearance.
        story(
            &[&KNOWN[..], &[(15, "ab", "ab"), (24, "abc", "[abc]"), (25, "ab", "ab"), (34, "ab", "ab")]]
                .concat(),
        );
        // The kubelet is still adding pods.
        story(&[&KNOWN[..], &[(15, "b", "b"), (400, "bc", "bc"), (401, "bc", "[bc]")]].concat());
    }

    #[test]
    fn most_of_the_pods_are_gone_when_they_have_been_missing_for_long() {
        story(&[&KNOWN[..], &[(15, "a", "a"), (30, "a", "a"), (914, "a", "a"), (915, "a", "[a]")]].concat());
        story(&[&KNOWN[..], &[(15, "", ""), (914, "", ""), (915, "", "[]")]].concat());
        // New pods appear meanwhile and count as well.
        story(&[&KNOWN[..], &[(15, "d", "d"), (920, "de", "de"), (921, "de", "[de]")]].concat());
        story(
            &[&KNOWN[..], &[(15, "ad", "ad"), (20, "a", "a"), (914, "a", "a"), (915, "a", "[a]")]].concat(),
        );
    }

    #[test]
    fn pods_that_were_to_go_are_not_missed() {
        let leave = [(0, "abcxyz", ""), (10, "abcxyz", "[abcxyz]")];
        story(&[&leave[..], &[(15, "ab", "ab"), (16, "ab", "ab"), (25, "ab", "[ab]")]].concat());
        let end = [(0, "aBCDE", ""), (10, "aBCDE", "[abcde]")];
        story(&[&end[..], &[(15, "ab", "ab"), (25, "ab", "[ab]")]].concat());
        // If others are missing at the same time, all are waited for.
        let both = [(0, "abcDE", ""), (10, "abcDE", "[abcde]")];
        story(&[&both[..], &[(15, "", ""), (914, "", ""), (915, "", "[]")]].concat());
    }

    #[test]
    fn what_is_told_of_single_pods_counts() {
        let mut belief = Belief::default();
        let now = Instant::now();
        belief.take(reading("abc"), Teller::Known, now);
        reading("de").iter().for_each(|pod| belief.is(pod));
        reading("ab").iter().for_each(|pod| belief.gone(pod));
        assert_eq!(told(&belief.take(reading("ce"), Teller::Young, now)), "ce", "d is missing");
        assert_eq!(told(&belief.take(reading("cde"), Teller::Young, now)), "[cde]", "nobody is");
    }

    #[test]
    fn a_pod_that_goes_does_not_take_the_next_of_its_name_along() {
        let mut belief = Belief::default();
        let now = Instant::now();
        belief.take(reading("ab"), Teller::Known, now);
        let old = reading("a").remove(0);
        let new = Pod { uid: "another".into(), ..old.clone() };
        belief.is(&new);
        belief.gone(&old);
        assert_eq!(told(&belief.take(reading("b"), Teller::Young, now)), "b", "the new one is missing");
        belief.gone(&new);
        assert_eq!(told(&belief.take(reading("b"), Teller::Young, now)), "[b]", "nobody is");
    }
}
