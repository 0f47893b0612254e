//! The controller.

use k8s_openapi::api::coordination::v1::Lease;

use super::facts::Facts;
use super::installed::ControllerSet;
use crate::inspect::{Check, Finding, Mend, Severity, shell_word};

pub(super) static CONTROLLER_MISSING: Check = Check {
    name: "ControllerMissing",
    severity: Severity::Warning,
    looks_for: "there are agents, but no controller",
    why: "Objects of deleted Nodes stay, and pods that the scheduler plugin rejected wait up to five minutes.",
};
pub(super) static CONTROLLER_NOT_READY: Check = Check {
    name: "ControllerNotReady",
    severity: Severity::Warning,
    looks_for: "no controller is Ready",
    why: "Objects of deleted Nodes stay, and pods that the scheduler plugin rejected wait up to five minutes.",
};
pub(super) static LEASE_NOT_HELD: Check = Check {
    name: "LeaseNotHeld",
    severity: Severity::Warning,
    looks_for: "no controller renews the Lease",
    why: "No controller works: each waits until it leads.",
};

pub(super) const CHECKS: &[&Check] = &[&CONTROLLER_MISSING, &CONTROLLER_NOT_READY, &LEASE_NOT_HELD];

/// After how many seconds a Lease counts as not renewed: the leader renews it every two seconds, and another replica
/// leads after 15.
const RENEWED_WITHIN: i64 = 60;

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    if facts.pods.is_none() {
        return Vec::new();
    }
    if facts.controllers.is_empty() && !facts.agents.is_empty() {
        let mend =
            "Set controller.enabled: true in the chart's values; see also the Events of the Deployment."
                .to_owned();
        return vec![CONTROLLER_MISSING.finding("the cluster", "no pod runs the controller", Mend::Do(mend))];
    }
    facts.controllers.iter().filter_map(|set| of_set(facts, set)).collect()
}

fn of_set(facts: &Facts, set: &ControllerSet) -> Option<Finding> {
    let names: Vec<String> = set.pods.iter().map(|(name, _)| shell_word(name)).collect();
    let names = names.join(" ");
    let namespace = &set.namespace;
    if !set.pods.iter().any(|(_, ready)| *ready) {
        let mend = format!("Read the log: kubectl logs --namespace {namespace} {}", set.pods[0].0);
        let what = format!("of the controllers {names} none is Ready");
        return Some(CONTROLLER_NOT_READY.finding(format!("namespace {namespace}"), what, Mend::Do(mend)));
    }
    let name = set.lease()?;
    let lease = facts.leases.get(&name)?;
    let what = not_renewed(lease.as_ref(), facts.now.as_second())?;
    let command = format!("kubectl delete pod --namespace {} {names}", shell_word(namespace));
    Some(LEASE_NOT_HELD.finding(format!("Lease {}/{}", name.0, name.1), what, Mend::Run(command)))
}

fn not_renewed(lease: Option<&Lease>, now: i64) -> Option<String> {
    let Some(lease) = lease else { return Some("it does not exist".to_owned()) };
    let spec = lease.spec.as_ref();
    let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).filter(|holder| !holder.is_empty());
    let Some(holder) = holder else { return Some("it has no holder".to_owned()) };
    let renewed = spec.and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
    let is_old = renewed.is_none_or(|at| now.saturating_sub(at.as_second()) > RENEWED_WITHIN);
    is_old.then(|| match renewed {
        Some(at) => format!("{holder} has not renewed it since {at}"),
        None => format!("{holder} has never renewed it"),
    })
}
