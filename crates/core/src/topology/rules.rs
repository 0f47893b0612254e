//! The configuration that affects the published zones.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::names::is_native_resource;
use crate::util::glob::PodPattern;

/// Configured exclusions and filler zones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneRules {
    /// Whether to publish empty zones for missing ids, so that position equals id for the scheduler.
    pub fillers: bool,
    /// What to exclude on this node.
    pub exclude: NodeExclusions,
}

/// What to exclude on one node, with the same meaning as in NFD and RTE.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NodeExclusions {
    /// Resources that no zone lists, even if they are `cpu` or `memory`.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub resources: BTreeSet<String>,
    /// Pods whose resources count as free.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<PodPattern>,
    /// If set, the resources of all pods outside this namespace count as free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outside_namespace: Option<String>,
}

impl NodeExclusions {
    /// Whether nothing is excluded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether this pod is excluded.
    #[must_use]
    pub fn pod(&self, namespace: &str, name: &str) -> bool {
        self.outside_namespace.as_ref().is_some_and(|only| only != namespace)
            || self.pods.iter().any(|pattern| pattern.matches(namespace, name))
    }

    /// Returns warnings about consequences that may be unintended.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<String> = self.resources.iter().map(|name| resource_warning(name)).collect();
        if !self.pods.is_empty() {
            let patterns: Vec<String> = self.pods.iter().map(ToString::to_string).collect();
            warnings.push(pods_warning(&format!("pods {}", patterns.join(", "))));
        }
        let outside = self.outside_namespace.iter();
        warnings.extend(outside.map(|name| pods_warning(&format!("pods outside the namespace {name}"))));
        warnings
    }
}

/// Returns the warning for an excluded resource. The scheduler plugin rejects native resources that no zone
/// lists and ignores others (NodeResourceTopologyMatch, `filter.go`).
fn resource_warning(name: &str) -> String {
    let consequence = if is_native_resource(name) {
        "under the policy single-numa-node the scheduler plugin rejects the node for every pod that requests it"
    } else {
        "the scheduler plugin does not check it, and the kubelet rejects pods that it cannot align \
         (TopologyAffinityError)"
    };
    format!("{name} is excluded: {consequence}")
}

fn pods_warning(pods: &str) -> String {
    format!(
        "{pods} are excluded: what they are allocated looks free, and the kubelet rejects pods that are sent for \
         it (TopologyAffinityError)"
    )
}
