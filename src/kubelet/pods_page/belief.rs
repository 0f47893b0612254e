//! Which readings of `/pods` are to be believed: a kubelet that has just started tells of fewer pods than it has, and does
//! not say so (kubelet.md 7).

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::pod::{Pod, PodEvent};

/// How long pods must have been missing before they count as gone.
const MISSING: Duration = Duration::from_secs(10);
/// The same for more than half of all pods at once: a kubelet that cannot reach the API server knows static pods only.
const MOST_MISSING: Duration = Duration::from_secs(60);

/// What was read before.
#[derive(Debug, Default)]
pub(super) struct Belief {
    /// Namespaces and names of the last list that was believed.
    believed: Option<BTreeSet<(String, String)>>,
    /// Those of the reading before.
    before: Option<BTreeSet<(String, String)>>,
    /// Since when some of the believed ones are missing.
    missing: Option<Instant>,
}

impl Belief {
    /// Takes a reading and says what it tells.
    pub(super) fn take(&mut self, pods: Vec<Pod>, now: Instant) -> Vec<PodEvent> {
        let names: BTreeSet<_> = pods.iter().map(Pod::full_name).collect();
        let same = self.before.replace(names.clone()).is_some_and(|before| before == names);
        let Some(believed) = &self.believed else {
            // The first list of all is one that came twice.
            return if same { self.believe(names, pods) } else { Vec::new() };
        };
        let missing = believed.difference(&names).count();
        if missing == 0 {
            return self.believe(names, pods);
        }
        let since = *self.missing.get_or_insert(now);
        let enough = if missing * 2 > believed.len() { MOST_MISSING } else { MISSING };
        if same && now.duration_since(since) >= enough {
            return self.believe(names, pods);
        }
        pods.into_iter().map(PodEvent::Is).collect()
    }

    /// Would another reading soon help?
    pub(super) fn wants_more(&self) -> bool {
        self.believed.is_none() || self.missing.is_some()
    }

    fn believe(&mut self, names: BTreeSet<(String, String)>, pods: Vec<Pod>) -> Vec<PodEvent> {
        self.believed = Some(names);
        self.missing = None;
        let listed = pods.into_iter().map(PodEvent::Listed);
        std::iter::once(PodEvent::Listing).chain(listed).chain([PodEvent::Complete]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(names: &str) -> Vec<Pod> {
        let pod = |name: char| Pod { namespace: "ns".into(), name: name.into(), ..Pod::default() };
        names.chars().map(pod).collect()
    }

    /// What was told, in short: `[abc]` a list, `abc` single pods.
    fn told(events: &[PodEvent]) -> String {
        let word = |event: &PodEvent| match event {
            PodEvent::Listing => "[".to_owned(),
            PodEvent::Complete => "]".to_owned(),
            PodEvent::Listed(pod) | PodEvent::Is(pod) => pod.name.clone(),
            PodEvent::Gone(pod) => format!("-{}", pod.name),
        };
        events.iter().map(word).collect()
    }

    /// Second, pods that are read, what is told of them.
    fn story(steps: &[(u64, &str, &str)]) {
        let start = Instant::now();
        let mut belief = Belief::default();
        for (second, read, expected) in steps {
            let events = belief.take(reading(read), start + Duration::from_secs(*second));
            assert_eq!(told(&events), *expected, "{read} at {second} of {steps:?}");
            assert_eq!(belief.wants_more(), !expected.starts_with('['), "{read} at {second} of {steps:?}");
        }
    }

    #[test]
    fn the_first_list_is_one_that_came_twice() {
        story(&[(0, "", ""), (1, "", "[]"), (2, "ab", "[ab]")]);
        story(&[(0, "a", ""), (1, "ab", ""), (2, "abc", ""), (3, "abc", "[abc]"), (8, "abcd", "[abcd]")]);
    }

    #[test]
    fn a_pod_is_gone_when_it_has_been_missing_for_a_while() {
        let known = [(0, "abc", ""), (1, "abc", "[abc]")];
        story(&[&known[..], &[(5, "ab", "ab"), (10, "ab", "ab"), (15, "ab", "[ab]")]].concat());
        // It returns, and the next one is missing from its own time on.
        story(
            &[&known[..], &[(5, "ab", "ab"), (14, "abc", "[abc]"), (15, "ab", "ab"), (24, "ab", "ab")]]
                .concat(),
        );
        // The kubelet is still adding pods.
        story(&[&known[..], &[(5, "b", "b"), (70, "bc", "bc"), (71, "bc", "[bc]")]].concat());
    }

    #[test]
    fn most_of_the_pods_are_gone_when_they_have_been_missing_for_long() {
        let known = [(0, "abc", ""), (1, "abc", "[abc]")];
        story(&[&known[..], &[(5, "a", "a"), (30, "a", "a"), (64, "a", "a"), (65, "a", "[a]")]].concat());
        story(&[&known[..], &[(5, "", ""), (64, "", ""), (65, "", "[]")]].concat());
        // New ones come meanwhile.
        story(&[&known[..], &[(5, "d", "d"), (65, "de", "de"), (66, "de", "[de]")]].concat());
    }
}
