//! What the scheduler checks of a node before any plugin for NUMA, with its own messages (upstream: Kubernetes 1.37,
//! `pkg/scheduler/framework/plugins`: nodename, nodeunschedulable, tainttoleration, nodeaffinity).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;

use super::pod_spec::{PodSpec, Volume};
use crate::cluster::{NodeDetails, is_tolerated};

const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Returns the scheduler's message if it excludes the node for this pod.
pub(super) fn excluded(pod: &PodSpec, node: &NodeDetails) -> Option<&'static str> {
    if pod.node_name.as_ref().is_some_and(|name| !name.is_empty() && *name != node.slim.name) {
        return Some("node(s) didn't match the requested node name");
    }
    let tolerations = pod.tolerations.as_deref().unwrap_or_default();
    let cordon = Taint { key: UNSCHEDULABLE.to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
    if node.unschedulable && !is_tolerated(&cordon, tolerations) {
        return Some("node(s) were unschedulable");
    }
    if !node.slim.is_tolerated(tolerations) {
        return Some("node(s) had untolerated taint(s)");
    }
    let affinity = pod.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|of| of.required.as_ref());
    let none = BTreeMap::new();
    let is_selected = node.slim.is_selected(pod.node_selector.as_ref().unwrap_or(&none), required);
    (!is_selected).then_some("node(s) didn't match Pod's node affinity/selector")
}

/// Returns which parts of the pod's specification matter to the scheduler and are not considered here.
pub(super) fn not_considered(pod: &PodSpec) -> Vec<&'static str> {
    let affinity = pod.affinity.as_ref();
    let to_pods = affinity.is_some_and(|of| of.pod_affinity.is_some() || of.pod_anti_affinity.is_some());
    let is_claim = |volume: &Volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some();
    let mut containers = pod.containers.iter().chain(pod.init_containers.iter().flatten());
    let has_ports = containers.any(|container| {
        container.ports.iter().flatten().any(|port| port.host_port.is_some_and(|port| port > 0))
    });
    [
        (to_pods, "affinity to other pods"),
        (pod.topology_spread_constraints.iter().flatten().next().is_some(), "topologySpreadConstraints"),
        (pod.volumes.iter().flatten().any(is_claim), "volumes"),
        (has_ports, "host ports"),
        (pod.overhead.is_none() && pod.runtime_class_name.is_some(), "the overhead of the RuntimeClass"),
    ]
    .into_iter()
    .filter_map(|(is_set, name)| is_set.then_some(name))
    .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node() -> NodeDetails {
        serde_json::from_value(json!({
            "metadata": {"name": "w", "labels": {"pool": "gpu", "cores": "64"}},
            "spec": {"taints": [{"key": "dedicated", "value": "hpc", "effect": "NoSchedule"},
                                {"key": "soft", "effect": "PreferNoSchedule"}]},
        }))
        .unwrap()
    }

    fn spec(mut fields: Value) -> PodSpec {
        fields["containers"] = json!([{"name": "c"}]);
        serde_json::from_value(fields).unwrap()
    }

    const TAINT: &str = "node(s) had untolerated taint(s)";

    #[test]
    fn taints_need_a_toleration() {
        let with = |toleration: Value| excluded(&spec(json!({"tolerations": [toleration]})), &node());
        assert_eq!(excluded(&spec(json!({})), &node()), Some(TAINT));
        assert_eq!(with(json!({"operator": "Exists"})), None);
        assert_eq!(with(json!({"key": "dedicated", "value": "hpc", "effect": "NoSchedule"})), None);
        assert_eq!(with(json!({"key": "dedicated", "operator": "Exists"})), None);
        assert_eq!(with(json!({"key": "dedicated", "value": "other"})), Some(TAINT));
        assert_eq!(with(json!({"key": "other", "operator": "Exists"})), Some(TAINT));
        assert_eq!(
            with(json!({"key": "dedicated", "operator": "Exists", "effect": "NoExecute"})),
            Some(TAINT)
        );
        let cordoned = NodeDetails { unschedulable: true, ..node() };
        let pod = spec(json!({"tolerations": [{"key": "dedicated", "operator": "Exists"}]}));
        assert_eq!(excluded(&pod, &cordoned), Some("node(s) were unschedulable"));
    }

    #[test]
    fn selectors_and_affinity_are_required() {
        let of = |mut fields: Value| {
            fields["tolerations"] = json!([{"operator": "Exists"}]);
            excluded(&spec(fields), &node()).is_none()
        };
        assert!(
            of(json!({"nodeSelector": {"pool": "gpu"}})) && !of(json!({"nodeSelector": {"pool": "cpu"}}))
        );
        assert!(of(json!({"nodeName": "w"})) && !of(json!({"nodeName": "v"})));
        let term = |key: &str, operator: &str, values: &[&str]| {
            let expression = json!({"key": key, "operator": operator, "values": values});
            let terms = json!([{"matchExpressions": [expression]}]);
            of(json!({"affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}))
        };
        assert!(term("pool", "In", &["a", "gpu"]) && !term("pool", "In", &["a"]) && !term("x", "In", &["a"]));
        assert!(
            term("pool", "NotIn", &["a"]) && !term("pool", "NotIn", &["gpu"]) && term("x", "NotIn", &["a"])
        );
        assert!(
            term("pool", "Exists", &[])
                && !term("pool", "DoesNotExist", &[])
                && term("x", "DoesNotExist", &[])
        );
        assert!(
            term("cores", "Gt", &["63"]) && !term("cores", "Gt", &["64"]) && term("cores", "Lt", &["65"])
        );
        assert!(!term("pool", "Gt", &["1"]) && !term("pool", "Unknown", &["gpu"]));
        let empty = json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}}});
        assert!(!of(empty));
    }

    #[test]
    fn what_is_not_considered_is_said() {
        assert!(not_considered(&spec(json!({}))).is_empty());
        let pod = spec(json!({
            "affinity": {"podAntiAffinity": {}}, "runtimeClassName": "kata",
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}, {"name": "e", "emptyDir": {}}],
        }));
        let names = ["affinity to other pods", "volumes", "the overhead of the RuntimeClass"];
        assert_eq!(not_considered(&pod), names);
    }
}
