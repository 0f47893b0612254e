//! In what those who serve pods differ, and why that is right. A row that nobody needs any more fails the test.

use super::world::Difference;

/// Where the pods come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// The kubelet 1.36 serves them itself.
    Kubelet,
    /// Ours, behind the kubelet's Pods API.
    PodsApi,
    /// Ours, on a watch of the API server.
    ApiServer,
    /// Ours, of the kubelet's `/pods`: PodInfo alone.
    Page,
}

impl Source {
    /// As `podsApi.source` has it; none for the kubelet itself.
    pub(super) fn setting(self) -> Option<&'static str> {
        match self {
            Self::Kubelet => None,
            Self::PodsApi => Some("podsApi"),
            Self::ApiServer => Some("apiServer"),
            Self::Page => Some("kubelet"),
        }
    }

    /// Whether it has `v1alpha1.Pods`.
    pub(super) fn serves_pods(self) -> bool {
        self != Self::Page
    }

    /// Whether static pods are there as the kubelet has them, not as the API server's mirrors.
    pub(super) fn knows_static_pods(self) -> bool {
        matches!(self, Self::Kubelet | Self::PodsApi)
    }
}

/// A row: where and when something is not as the API server has it.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) sources: &'static [Source],
    /// The scenarios; none: whatever is done.
    pub(super) scenarios: &'static [&'static str],
    /// Of which pods.
    pub(super) pods: Pods,
    /// The aspect, or what it begins with, before a `*`.
    pub(super) aspect: &'static str,
    pub(super) why: &'static str,
}

/// Which pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pods {
    Any,
    /// Those of files on the node.
    Static,
}

impl Row {
    pub(super) fn excuses(&self, scenario: &str, source: Source, difference: &Difference) -> bool {
        let fits = match self.aspect.strip_suffix('*') {
            Some(start) => difference.aspect.starts_with(start),
            None => difference.aspect == self.aspect,
        };
        let pod = self.pods == Pods::Any || difference.pod.starts_with("default/static");
        let when = self.scenarios.is_empty() || self.scenarios.contains(&scenario);
        fits && pod && when && self.sources.contains(&source)
    }
}

/// The table.
pub(super) const DIFFERENCES: &[Row] = &[
];
