//! Which pods a Node suits, as the scheduler and the DaemonSet controller decide it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration,
};

use super::SlimNode;

impl SlimNode {
    /// Returns true if every taint is tolerated that keeps pods away.
    pub fn is_tolerated(&self, tolerations: &[Toleration]) -> bool {
        let is_strict = |taint: &&Taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
        self.taints.iter().filter(is_strict).all(|taint| is_tolerated(taint, tolerations))
    }

    /// Returns true if the Node has these labels, and what a required node affinity demands.
    pub fn is_selected(&self, selector: &BTreeMap<String, String>, affinity: Option<&NodeSelector>) -> bool {
        selector.iter().all(|(key, value)| self.labels.get(key) == Some(value))
            && affinity.is_none_or(|of| of.node_selector_terms.iter().any(|term| matches(term, self)))
    }
}

/// Returns true if one of the tolerations tolerates the taint.
pub fn is_tolerated(taint: &Taint, tolerations: &[Toleration]) -> bool {
    tolerations.iter().any(|toleration| tolerates(toleration, taint))
}

/// Matches a taint as `Toleration.ToleratesTaint` does.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let non_empty = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    if non_empty(&toleration.effect).is_some_and(|effect| effect != taint.effect)
        || non_empty(&toleration.key).is_some_and(|key| key != taint.key)
    {
        return false;
    }
    let (wanted, has) = (toleration.value.as_deref().unwrap_or(""), taint.value.as_deref().unwrap_or(""));
    match toleration.operator.as_deref().unwrap_or("") {
        "" | "Equal" => wanted == has,
        "Exists" => true,
        operator => compare(operator, has, wanted),
    }
}

/// Returns true if all requirements are met. An empty term matches nothing.
fn matches(term: &NodeSelectorTerm, node: &SlimNode) -> bool {
    let labels = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let field = |requirement: &NodeSelectorRequirement| {
        // The only supported field.
        requirement.key == "metadata.name" && meets(requirement, Some(&node.name))
    };
    !(labels.is_empty() && fields.is_empty())
        && labels.iter().all(|requirement| meets(requirement, node.labels.get(&requirement.key)))
        && fields.iter().all(field)
}

fn meets(requirement: &NodeSelectorRequirement, value: Option<&String>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    match (requirement.operator.as_str(), value) {
        ("In", Some(value)) => values.contains(value),
        ("NotIn", value) => value.is_none_or(|value| !values.contains(value)),
        ("Exists", value) => value.is_some(),
        ("DoesNotExist", value) => value.is_none(),
        (operator, Some(value)) => values.first().is_some_and(|than| compare(operator, value, than)),
        _ => false,
    }
}

/// Compares integers by `Gt` or `Lt`.
fn compare(operator: &str, value: &str, than: &str) -> bool {
    let (Ok(value), Ok(than)) = (value.parse::<i64>(), than.parse::<i64>()) else { return false };
    match operator {
        "Gt" => value > than,
        "Lt" => value < than,
        _ => false,
    }
}
