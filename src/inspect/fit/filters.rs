//! What the scheduler checks of a node before any plugin for NUMA, with its own messages (upstream: Kubernetes 1.37,
//! `pkg/scheduler/framework/plugins`: nodename, nodeunschedulable, tainttoleration, nodeaffinity).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration};

use crate::cluster::NodeDetails;

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
    let repels = |taint: &&Taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
    if node.slim.taints.iter().filter(repels).any(|taint| !is_tolerated(taint, tolerations)) {
        return Some("node(s) had untolerated taint(s)");
    }
    (!matches_affinity(pod, node)).then_some("node(s) didn't match Pod's node affinity/selector")
}

/// Returns which parts of the pod's specification matter to the scheduler and are not considered here.
pub(super) fn not_considered(pod: &PodSpec) -> Vec<&'static str> {
    let affinity = pod.affinity.as_ref();
    let to_pods = affinity.is_some_and(|of| of.pod_affinity.is_some() || of.pod_anti_affinity.is_some());
    let is_claim = |volume: &k8s_openapi::api::core::v1::Volume| {
        volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some()
    };
    let mut containers = pod.containers.iter().chain(pod.init_containers.iter().flatten());
    let has_ports = containers.any(|container| {
        container.ports.iter().flatten().any(|port| port.host_port.is_some_and(|port| port > 0))
    });
    [
        (to_pods, "affinity to other pods"),
        (pod.topology_spread_constraints.iter().flatten().next().is_some(), "topologySpreadConstraints"),
        (pod.volumes.iter().flatten().any(is_claim), "volumes"),
        (has_ports, "host ports"),
        (pod.resource_claims.iter().flatten().next().is_some(), "resourceClaims"),
        (pod.overhead.is_none() && pod.runtime_class_name.is_some(), "the overhead of the RuntimeClass"),
    ]
    .into_iter()
    .filter_map(|(is_set, name)| is_set.then_some(name))
    .collect()
}

fn is_tolerated(taint: &Taint, tolerations: &[Toleration]) -> bool {
    tolerations.iter().any(|toleration| {
        let is_set = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let effect = is_set(&toleration.effect).is_none_or(|effect| effect == taint.effect);
        let key = is_set(&toleration.key).is_none_or(|key| key == taint.key);
        let own = taint.value.as_deref().unwrap_or_default();
        let value = toleration.value.as_deref().unwrap_or_default();
        let number = |text: &str| text.parse::<i64>().ok();
        let compared = number(own).zip(number(value));
        let matches = match toleration.operator.as_deref().unwrap_or_default() {
            "Exists" => true,
            "" | "Equal" => is_set(&toleration.key).is_some() && own == value,
            "Gt" => compared.is_some_and(|(own, value)| own > value),
            "Lt" => compared.is_some_and(|(own, value)| own < value),
            _ => false,
        };
        effect && key && matches
    })
}

fn matches_affinity(pod: &PodSpec, node: &NodeDetails) -> bool {
    let labels = &node.slim.labels;
    let selected = pod.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let affinity = pod.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|of| of.required_during_scheduling_ignored_during_execution.as_ref());
    selected
        && required.is_none_or(|required| {
            required.node_selector_terms.iter().any(|term| matches_term(term, labels, &node.slim.name))
        })
}

/// A term without any requirement matches nothing.
fn matches_term(term: &NodeSelectorTerm, labels: &BTreeMap<String, String>, name: &str) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let of_label = |one: &NodeSelectorRequirement| matches(one, labels.get(&one.key).map(String::as_str));
    let of_field = |one: &NodeSelectorRequirement| one.key == "metadata.name" && matches(one, Some(name));
    (!expressions.is_empty() || !fields.is_empty())
        && expressions.iter().all(of_label)
        && fields.iter().all(of_field)
}

fn matches(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_listed = value.is_some_and(|value| values.iter().any(|one| one == value));
    let number = |text: &str| text.parse::<i64>().ok();
    let compared = value.and_then(number).zip(values.first().and_then(|bound| number(bound)));
    match requirement.operator.as_str() {
        "In" => is_listed,
        "NotIn" => !is_listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared.is_some_and(|(value, bound)| value > bound),
        "Lt" => compared.is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
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
            "affinity": {"podAntiAffinity": {}}, "runtimeClassName": "kata", "resourceClaims": [{"name": "gpu"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}, {"name": "e", "emptyDir": {}}],
        }));
        let names =
            ["affinity to other pods", "volumes", "resourceClaims", "the overhead of the RuntimeClass"];
        assert_eq!(not_considered(&pod), names);
    }
}
