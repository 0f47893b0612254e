//! The Nodes that a DaemonSet of agents covers, computed as in the DaemonSet controller (`nodeShouldRunDaemonPod` in
//! `pkg/controller/daemon/daemon_controller.go`): node name, node selector, required affinity, and taints
//! tolerated by its pods, including the tolerations that the controller adds.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, Toleration};

use crate::cluster::{SlimDaemonSet, SlimNode, pod_labels};

/// Tolerations added to every daemon pod (`AddOrUpdateDaemonPodTolerations`).
const ADDED_TOLERATIONS: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
/// Toleration added to daemon pods in the host network.
const HOST_NETWORK: (&str, &str) = ("node.kubernetes.io/network-unavailable", "NoSchedule");

/// The scheduling constraints of a DaemonSet's pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Coverage {
    name: Option<String>,
    selector: BTreeMap<String, String>,
    affinity: Option<NodeSelector>,
    tolerations: Vec<Toleration>,
}

impl Coverage {
    /// Returns the constraints of this DaemonSet; `None` if it is being deleted.
    pub fn of(daemon_set: &SlimDaemonSet) -> Option<Self> {
        if daemon_set.is_deleted() {
            return None;
        }
        let pod = daemon_set.pod()?;
        let added =
            ADDED_TOLERATIONS.into_iter().chain(pod.host_network.unwrap_or(false).then_some(HOST_NETWORK));
        let tolerations = pod.tolerations.iter().flatten().cloned();
        Some(Self {
            name: pod.node_name.clone().filter(|name| !name.is_empty()),
            selector: pod.node_selector.clone().unwrap_or_default(),
            affinity: pod.required_nodes().cloned(),
            tolerations: tolerations.chain(added.map(tolerates_any)).collect(),
        })
    }

    /// Returns true if this Node should have a pod.
    pub fn covers(&self, node: &SlimNode) -> bool {
        self.name.as_ref().is_none_or(|name| *name == node.name)
            && node.is_selected(&self.selector, self.affinity.as_ref())
            && node.is_tolerated(&self.tolerations)
    }
}

/// Returns what the DaemonSets cover and the labels of their pods, or why agents cannot be checked.
pub(super) fn coverage_and_labels(
    namespace: &str,
    found: Vec<(String, Option<SlimDaemonSet>)>,
) -> Result<(Vec<Coverage>, String), String> {
    let (mut names, mut daemon_sets) = (Vec::new(), Vec::new());
    for (name, daemon_set) in found {
        let daemon_set = daemon_set.ok_or_else(|| format!("there is no DaemonSet {namespace}/{name}"))?;
        if daemon_set.is_deleted() {
            return Err(format!("DaemonSet {namespace}/{name} is being deleted"));
        }
        names.push(format!("{namespace}/{name}"));
        daemon_sets.push(daemon_set);
    }
    let coverage: Option<Vec<Coverage>> = daemon_sets.iter().map(Coverage::of).collect();
    coverage.zip(pod_labels(&daemon_sets)).ok_or_else(|| unusable(&names))
}

fn unusable(names: &[String]) -> String {
    match names {
        [name] => format!("the selector of DaemonSet {name} cannot be used, since it is empty or invalid"),
        _ => format!(
            "the selectors of the DaemonSets {} cannot be used, since they have nothing in common, or one is invalid",
            names.join(", ")
        ),
    }
}

/// Returns true if one of the DaemonSets should have a pod on this Node.
pub(super) fn is_covered(coverage: &[Coverage], node: &SlimNode) -> bool {
    coverage.iter().any(|one| one.covers(node))
}

fn tolerates_any((key, effect): (&str, &str)) -> Toleration {
    Toleration {
        key: Some(key.to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some(effect.to_owned()),
        ..Toleration::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn coverage(pod: Value) -> Coverage {
        let spec = json!({"selector": {}, "template": {"spec": pod}});
        Coverage::of(&serde_json::from_value(json!({"spec": spec})).unwrap()).unwrap()
    }

    fn with_taints(taints: Value) -> SlimNode {
        let mut node = SlimNode::new("a", &[]);
        node.taints = serde_json::from_value(taints).unwrap();
        node
    }

    #[test]
    fn without_constraints_all_nodes_without_taints_are_covered() {
        let plain = coverage(json!({"containers": []}));
        assert!(plain.covers(&SlimNode::new("a", &[])));
        assert!(!plain.covers(&with_taints(json!([{"key": "k", "value": "v", "effect": "NoSchedule"}]))));
        assert!(!plain.covers(&with_taints(json!([{"key": "k", "effect": "NoExecute"}]))));
        assert!(plain.covers(&with_taints(json!([{"key": "k", "effect": "PreferNoSchedule"}]))));
    }

    #[test]
    fn tolerations_of_the_daemon_set_controller_are_added() {
        let plain = coverage(json!({"containers": []}));
        for (key, effect) in ADDED_TOLERATIONS {
            assert!(plain.covers(&with_taints(json!([{"key": key, "effect": effect}]))), "{key}");
        }
        let no_network = with_taints(json!([{"key": HOST_NETWORK.0, "effect": "NoSchedule"}]));
        assert!(!plain.covers(&no_network));
        assert!(coverage(json!({"containers": [], "hostNetwork": true})).covers(&no_network));
        // The same taint with another effect is not one of Kubernetes' own.
        let own = with_taints(json!([{"key": "node.kubernetes.io/unschedulable", "effect": "NoExecute"}]));
        assert!(!plain.covers(&own));
    }

    #[test]
    fn tolerations_match_as_in_kubernetes() {
        let taint = json!([{"key": "k", "value": "5", "effect": "NoSchedule"}]);
        for (toleration, tolerated) in [
            (json!({"operator": "Exists"}), true),
            (json!({"key": "k", "operator": "Exists"}), true),
            (json!({"key": "k", "operator": "Exists", "effect": "NoExecute"}), false),
            (json!({"key": "k", "value": "5"}), true),
            (json!({"key": "k", "value": "5", "effect": "NoSchedule"}), true),
            (json!({"key": "k", "value": "6"}), false),
            (json!({"key": "other", "operator": "Exists"}), false),
            (json!({"key": "k"}), false),
            (json!({"key": "k", "operator": "Gt", "value": "4"}), true),
            (json!({"key": "k", "operator": "Lt", "value": "4"}), false),
        ] {
            let coverage = coverage(json!({"containers": [], "tolerations": [toleration]}));
            assert_eq!(coverage.covers(&with_taints(taint.clone())), tolerated, "{toleration}");
        }
        let two = json!([{"key": "k", "effect": "NoSchedule"}, {"key": "l", "effect": "NoSchedule"}]);
        let one = coverage(json!({"containers": [], "tolerations": [{"key": "k", "operator": "Exists"}]}));
        assert!(!one.covers(&with_taints(two)), "every taint must be tolerated");
    }

    #[test]
    fn node_selector_and_node_name_must_match() {
        let of = |pod: Value| coverage(pod);
        let selector = of(json!({"containers": [], "nodeSelector": {"a": "1", "b": "2"}}));
        assert!(selector.covers(&SlimNode::new("n", &[("a", "1"), ("b", "2"), ("c", "3")])));
        assert!(!selector.covers(&SlimNode::new("n", &[("a", "1")])));
        let name = of(json!({"containers": [], "nodeName": "n"}));
        assert!(name.covers(&SlimNode::new("n", &[])) && !name.covers(&SlimNode::new("m", &[])));
    }

    #[test]
    fn required_affinity_matches_if_any_term_does() {
        let covers = |terms: Value, node: &SlimNode| {
            let required =
                json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
            coverage(json!({"containers": [], "affinity": {"nodeAffinity": required}})).covers(node)
        };
        let node = SlimNode::new("n", &[("zone", "a"), ("cpus", "64")]);
        let label = |key: &str, operator: &str, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
        for (requirement, met) in [
            (label("zone", "In", &["a", "b"]), true),
            (label("zone", "In", &["b"]), false),
            (label("none", "In", &["b"]), false),
            (label("zone", "NotIn", &["a"]), false),
            (label("none", "NotIn", &["a"]), true),
            (label("zone", "Exists", &[]), true),
            (label("none", "Exists", &[]), false),
            (label("zone", "DoesNotExist", &[]), false),
            (label("none", "DoesNotExist", &[]), true),
            (label("cpus", "Gt", &["63"]), true),
            (label("cpus", "Gt", &["64"]), false),
            (label("cpus", "Lt", &["65"]), true),
            (label("zone", "Lt", &["65"]), false),
        ] {
            assert_eq!(covers(json!([{"matchExpressions": [requirement]}]), &node), met, "{requirement}");
        }
        let (yes, no) = (label("zone", "In", &["a"]), label("zone", "In", &["b"]));
        assert!(!covers(json!([{"matchExpressions": [yes, no]}]), &node), "all of a term");
        assert!(covers(json!([{"matchExpressions": [no]}, {"matchExpressions": [yes]}]), &node), "any term");
        let named = |name: &str| json!({"matchFields": [label("metadata.name", "In", &[name])]});
        assert!(covers(json!([named("n")]), &node) && !covers(json!([named("m")]), &node));
        assert!(!covers(json!([{}]), &node) && !covers(json!([]), &node), "an empty term matches nothing");
    }

    #[test]
    fn a_daemon_set_that_is_being_deleted_covers_nothing() {
        let gone = json!({"metadata": {"deletionTimestamp": "2026-11-21T20:00:00Z"},
                          "spec": {"selector": {}, "template": {"spec": {"containers": []}}}});
        assert_eq!(Coverage::of(&serde_json::from_value(gone).unwrap()), None);
    }
}
