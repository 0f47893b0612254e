//! The resources that every kubelet and scheduler counts per node (upstream: `noderesources.Fits`).

use super::{Bytes, ContainerRequest, NodeAmounts, PodRequest};

impl PodRequest {
    /// Returns what the pod requests of its node.
    #[must_use]
    pub fn of_node(&self) -> NodeAmounts {
        let mut amounts = NodeAmounts::new();
        let mut kinds: Vec<&String> =
            self.containers.iter().flat_map(|container| container.memory.keys()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        for kind in kinds {
            let of = |container: &ContainerRequest| container.memory.get(kind).copied().unwrap_or(0);
            amounts.insert(kind.clone(), self.peak(of));
        }
        amounts.insert("cpu".to_owned(), self.peak(|container| container.cpu_milli));
        amounts.extend(self.devices_peak());
        if let Some(level) = &self.pod_level {
            if level.cpu_milli > 0 {
                amounts.insert("cpu".to_owned(), level.cpu_milli);
            }
            amounts.extend(Bytes::clone(&level.memory));
        }
        amounts.retain(|_, amount| *amount > 0);
        amounts
    }

    /// Returns the resources of which the node has too little left for this pod: [`insufficient`].
    #[must_use]
    pub fn insufficient(&self, allocatable: &NodeAmounts, used: &NodeAmounts) -> Vec<String> {
        insufficient(&self.of_node(), allocatable, used)
    }
}

/// Returns the resources of which a node has too little left, in the order in which the kubelet and the scheduler name
/// them. Extended resources that the node does not have are left out, as in the kubelet.
#[must_use]
pub fn insufficient(requested: &NodeAmounts, allocatable: &NodeAmounts, used: &NodeAmounts) -> Vec<String> {
    let amount = |amounts: &NodeAmounts, name: &str| amounts.get(name).copied().unwrap_or(0);
    let lacks = |name: &&String| {
        let is_absent = name.contains('/') && !allocatable.contains_key(*name);
        let free = amount(allocatable, name).saturating_sub(amount(used, name));
        !is_absent && amount(requested, name) > free
    };
    let mut names: Vec<String> = requested.keys().filter(lacks).cloned().collect();
    names.sort_by_key(|name| match name.as_str() {
        "pods" => 0,
        "cpu" => 1,
        "memory" => 2,
        _ => 3,
    });
    names
}
