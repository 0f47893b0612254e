//! Names of terminated pods that new pods have taken.
//!
//! Kubelets before 1.34 list terminated pods, whose resources are released. The pod source reports which
//! names these are, and may not have reported yet that a new pod has such a name. Its allocations must not
//! count as released.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use crate::kubelet::{PodUsage, Usage};
use crate::pod::{PodName, TerminatedPodNames};

/// The terminated pods of the pod source, with their UIDs.
pub(super) type TerminatedPodUids = BTreeMap<PodName, String>;

#[derive(Debug, Default)]
pub(super) struct ReusedNames {
    /// By name, the UID of the terminated pod, and when the List showed the new one.
    reused: BTreeMap<PodName, (String, Instant)>,
    /// The last accepted List, and the terminated pods at that time.
    usage: Arc<Usage>,
    terminated: Arc<TerminatedPodUids>,
}

impl ReusedNames {
    /// Forgets names that the pod source no longer reports as terminated, and those that a list requested
    /// after the finding (`is_listed_since`) still reports: that pod has not been replaced.
    pub(super) fn update(
        &mut self,
        terminated: &TerminatedPodUids,
        is_listed_since: impl Fn(Instant) -> bool,
    ) {
        self.reused.retain(|name, (uid, at)| terminated.get(name) == Some(uid) && !is_listed_since(*at));
    }

    /// Returns the terminated pods without the names that new pods have taken.
    pub(super) fn exclude_from(&self, terminated: &TerminatedPodUids) -> TerminatedPodNames {
        let names = terminated.keys().filter(|name| !self.reused.contains_key(*name));
        Arc::new(names.cloned().collect())
    }

    /// Finds new pods in the List that have the names of terminated ones. Returns the terminated pods without
    /// these names, if it finds any. `assumed`: the names that still count as terminated. `is_up_to_date`: the pod
    /// source reports changes at once.
    ///
    /// A terminated pod only releases resources: if it had terminated before the last accepted List and its
    /// name is allocated more now, that is by another pod. Lists of a kubelet that is still starting are not
    /// accepted: they may be incomplete.
    pub(super) fn find(
        &mut self,
        usage: &Usage,
        assumed: &TerminatedPodNames,
        terminated: &TerminatedPodUids,
        is_up_to_date: bool,
        now: Instant,
    ) -> Option<TerminatedPodNames> {
        if assumed.is_empty() {
            return None;
        }
        let known = self.reused.len();
        for pod in &usage.pods {
            let name = pod.full_name();
            let Some(uid) = terminated.get(&name).filter(|_| assumed.contains(&name)) else { continue };
            let is_same_name = |old: &&PodUsage| old.name == pod.name && old.namespace == pod.namespace;
            let is_reused = match self.usage.pods.iter().find(is_same_name) {
                Some(old) => pod.has_gained_since(old) && self.terminated.get(&name) == Some(uid),
                // It was not listed before. A live pod source knows which pods have terminated.
                None => !is_up_to_date && pod.has_allocations(),
            };
            if is_reused {
                self.reused.insert(name, (uid.clone(), now));
            }
        }
        (self.reused.len() > known).then(|| self.exclude_from(terminated))
    }

    pub(super) fn accept(&mut self, usage: &Arc<Usage>, terminated: &Arc<TerminatedPodUids>) {
        self.usage = Arc::clone(usage);
        self.terminated = Arc::clone(terminated);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::kubelet::ContainerUsage;

    fn name(pod: &str) -> PodName {
        ("ns".to_owned(), pod.to_owned())
    }

    fn list(pods: &[(&str, &str)]) -> Arc<Usage> {
        let pod = |(name, cpus): &(&str, &str)| PodUsage {
            namespace: "ns".into(),
            name: (*name).into(),
            containers: vec![ContainerUsage { cpus: cpus.parse().unwrap(), ..ContainerUsage::default() }],
            ..PodUsage::default()
        };
        Arc::new(Usage { pods: pods.iter().map(pod).collect() })
    }

    fn terminated(pods: &[(&str, &str)]) -> Arc<TerminatedPodUids> {
        Arc::new(pods.iter().map(|(pod, uid)| (name(pod), (*uid).to_owned())).collect())
    }

    /// Returns the names in the terminated pods that are left after this List.
    fn find(
        names: &mut ReusedNames,
        usage: &Usage,
        terminated: &TerminatedPodUids,
        is_up_to_date: bool,
    ) -> Option<Vec<String>> {
        let assumed = names.exclude_from(terminated);
        let left = names.find(usage, &assumed, terminated, is_up_to_date, Instant::now())?;
        Some(left.iter().map(|(_, name)| name.clone()).collect())
    }

    #[test]
    fn a_terminated_pod_that_gains_resources_is_another_one() {
        let mut names = ReusedNames::default();
        let ended = terminated(&[("a", "1"), ("b", "2")]);
        names.accept(&list(&[("a", "0-1"), ("b", "2")]), &ended);
        assert_eq!(find(&mut names, &list(&[("a", "0"), ("b", "2")]), &ended, true), None, "less is no gain");
        let gained = list(&[("a", "0-1,4"), ("b", "2")]);
        assert_eq!(find(&mut names, &gained, &ended, true), Some(vec!["b".into()]));
        assert_eq!(*names.exclude_from(&ended), [name("b")].into());
        assert_eq!(find(&mut names, &gained, &ended, true), None, "it is known");
    }

    #[test]
    fn a_pod_that_terminated_after_the_last_list_may_have_gained_before() {
        let mut names = ReusedNames::default();
        names.accept(&list(&[("a", "0")]), &terminated(&[]));
        assert_eq!(find(&mut names, &list(&[("a", "0-1")]), &terminated(&[("a", "1")]), true), None);
        names.accept(&list(&[("a", "0")]), &terminated(&[("a", "1")]));
        let of_another_uid = terminated(&[("a", "2")]);
        assert_eq!(find(&mut names, &list(&[("a", "0-1")]), &of_another_uid, true), None);
    }

    #[test]
    fn a_pod_that_was_not_listed_before_is_trusted_to_a_live_source() {
        let ended = terminated(&[("a", "1")]);
        let usage = list(&[("a", "0")]);
        assert_eq!(find(&mut ReusedNames::default(), &usage, &ended, true), None);
        assert_eq!(find(&mut ReusedNames::default(), &usage, &ended, false), Some(vec![]));
        assert_eq!(find(&mut ReusedNames::default(), &list(&[("a", "")]), &ended, false), None);
    }

    #[test]
    fn a_reused_name_is_forgotten_when_the_source_reports_another_pod_or_a_newer_list() {
        let ended = terminated(&[("a", "1")]);
        let found = || {
            let mut names = ReusedNames::default();
            find(&mut names, &list(&[("a", "0")]), &ended, false).unwrap();
            names
        };
        let is_empty = |names: &ReusedNames, ended: &TerminatedPodUids| names.exclude_from(ended).is_empty();
        let (past, future) = (Instant::now(), Instant::now() + Duration::from_secs(60));
        let mut names = found();
        names.update(&ended, |at| past > at);
        assert!(is_empty(&names, &ended), "the list is older");
        names.update(&ended, |at| future > at);
        assert!(!is_empty(&names, &ended), "a newer list still has the terminated pod");
        let mut names = found();
        names.update(&terminated(&[("a", "2")]), |_| false);
        assert!(!is_empty(&names, &ended), "another pod has terminated");
    }
}
