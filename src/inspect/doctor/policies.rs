//! The admission policies of the chart.

use super::facts::{Admission, Facts};
use crate::cluster::PolicyDetails;
use crate::inspect::{Check, Finding, Mend, Severity, shell_word};

pub(super) static POLICY_MISSING: Check = Check {
    name: "PolicyMissing",
    severity: Severity::Warning,
    looks_for: "no admission policy restricts the agents",
    why: "With the token of one agent, the zones of every node can be changed.",
};
pub(super) static POLICY_NOT_BOUND: Check = Check {
    name: "PolicyNotBound",
    severity: Severity::Warning,
    looks_for: "an admission policy has no binding",
    why: "It is not enforced: with the token of one agent, the zones of every node can be changed.",
};
pub(super) static POLICY_NOT_DENIED: Check = Check {
    name: "PolicyNotDenied",
    severity: Severity::Warning,
    looks_for: "a binding does not deny what its policy forbids",
    why: "What the policy forbids is only logged.",
};
pub(super) static POLICY_FAILURE_IGNORED: Check = Check {
    name: "PolicyFailureIgnored",
    severity: Severity::Warning,
    looks_for: "the failurePolicy of an admission policy is Ignore",
    why: "A request at which an expression fails is admitted.",
};
pub(super) static POLICY_TYPE_WARNING: Check = Check {
    name: "PolicyTypeWarning",
    severity: Severity::Warning,
    looks_for: "the API server warns about an expression of an admission policy",
    why: "The expression fails at some requests, which are then rejected.",
};

pub(super) const CHECKS: &[&Check] =
    &[&POLICY_MISSING, &POLICY_NOT_BOUND, &POLICY_NOT_DENIED, &POLICY_FAILURE_IGNORED, &POLICY_TYPE_WARNING];

/// The API group of the objects.
const GROUP: &str = "topology.node.k8s.io";
/// The match conditions of the chart's policies.
const CONDITIONS: [&str; 2] = ["by-an-agent", "by-the-controller"];

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let Some(admission) = &facts.admission else { return Vec::new() };
    let mut found = Vec::new();
    for set in facts.agents.iter().filter(|set| !set.is_deleted) {
        let user = format!("'{}'", set.user);
        let restricts = |policy: &PolicyDetails| {
            let rules = &policy.spec.match_constraints.resource_rules;
            rules.iter().any(|rule| rule.api_groups.iter().any(|group| group == GROUP))
                && policy.spec.match_conditions.iter().any(|condition| condition.expression.contains(&user))
        };
        if !admission.policies.iter().any(restricts) {
            let mend = "Upgrade the release with admissionPolicy.enabled: true.".to_owned();
            let what = format!("no ValidatingAdmissionPolicy restricts {}", set.user);
            found.push(POLICY_MISSING.finding(set.place(), what, Mend::Do(mend)));
        }
    }
    for policy in admission.policies.iter().filter(|policy| is_ours(policy)) {
        check_policy(policy, admission, &mut found);
    }
    found
}

fn is_ours(policy: &PolicyDetails) -> bool {
    policy.spec.match_conditions.iter().any(|condition| CONDITIONS.contains(&condition.name.as_str()))
}

fn check_policy(policy: &PolicyDetails, admission: &Admission, found: &mut Vec<Finding>) {
    let name = policy.name();
    let place = format!("ValidatingAdmissionPolicy {name}");
    let bindings: Vec<_> = admission.bindings.iter().filter(|one| one.spec.policy_name == name).collect();
    if bindings.is_empty() {
        let what = "no ValidatingAdmissionPolicyBinding names it".to_owned();
        found.push(POLICY_NOT_BOUND.finding(&place, what, Mend::Run(bind(name))));
    }
    let denies = |actions: &[String]| actions.iter().any(|action| action == "Deny");
    if !bindings.is_empty() && !bindings.iter().any(|binding| denies(&binding.spec.validation_actions)) {
        let binding = bindings[0];
        let what =
            format!("its validationActions are {}, without Deny", binding.spec.validation_actions.join(", "));
        let command = format!(
            "kubectl patch validatingadmissionpolicybinding {} --type merge --patch '{{\"spec\":{{\"validationActions\":\
             [\"Deny\"]}}}}'",
            shell_word(binding.name())
        );
        let place = format!("ValidatingAdmissionPolicyBinding {}", binding.name());
        found.push(POLICY_NOT_DENIED.finding(place, what, Mend::Run(command)));
    }
    if policy.spec.failure_policy.as_deref() == Some("Ignore") {
        let command = format!(
            "kubectl patch validatingadmissionpolicy {} --type merge --patch '{{\"spec\":{{\"failurePolicy\":\"Fail\"}}}}'",
            shell_word(name)
        );
        found.push(POLICY_FAILURE_IGNORED.finding(&place, "its failurePolicy is Ignore", Mend::Run(command)));
    }
    if let Some(warning) = policy.status.type_checking.expression_warnings.first() {
        let what = format!("{}: {}", warning.field_ref, warning.warning);
        let mend =
            "Upgrade the release; a policy of its own version fits the CRD of its own version.".to_owned();
        found.push(POLICY_TYPE_WARNING.finding(&place, what, Mend::Do(mend)));
    }
}

/// Returns the command that binds a policy under its own name, as the chart does.
fn bind(policy: &str) -> String {
    let binding = serde_json::json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": policy},
        "spec": {"policyName": policy, "validationActions": ["Deny"]},
    });
    format!("echo {} | kubectl apply --filename -", shell_word(&binding.to_string()))
}
