//! The kinds of pod sources.

use std::fmt;

/// A pod source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodSourceKind {
    /// The API server.
    ApiServer,
    /// The kubelet's Pods API.
    PodsApi,
    /// The kubelet's `/pods`.
    Kubelet,
}

impl PodSourceKind {
    /// Returns its label in the metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::ApiServer => "api_server",
            Self::PodsApi => "pods_api",
            Self::Kubelet => "kubelet",
        }
    }

    /// Returns true if it reports changes at once, so that the agent need not poll for releases.
    pub(super) const fn is_prompt(self) -> bool {
        !matches!(self, Self::Kubelet)
    }
}

impl fmt::Display for PodSourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ApiServer => "the API server",
            Self::PodsApi => "the kubelet's Pods API",
            Self::Kubelet => "the kubelet's /pods",
        })
    }
}
