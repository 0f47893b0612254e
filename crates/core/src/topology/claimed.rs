//! Devices behind dynamic resource allocation: each driver is a resource, named as the driver.
//!
//! A pod cannot request such a name, which has no `/`, so that neither the scheduler plugin nor KAI-Scheduler takes it
//! for something that a pod asks for (Kubernetes, `core/validation`; scheduler-plugins, `filter.go`).

use std::collections::BTreeSet;

use super::{Amounts, Finding, InUse, ZoneBuilder};

pub(super) fn account(in_use: &InUse<'_>, builder: &mut ZoneBuilder<'_>, findings: &mut BTreeSet<Finding>) {
    let held = &in_use.claims;
    // Other resources of a zone have no dot before a slash.
    let named = held.devices.iter().filter(|(driver, _)| driver.contains('.') && !driver.contains('/'));
    for (driver, nodes) in named {
        builder.add(driver, |id| {
            let [capacity, allocatable, available] = nodes.get(&id).copied().unwrap_or_default();
            Amounts { capacity, allocatable, available }
        });
    }
    findings.extend(held.findings.iter().cloned().map(Finding::Claims));
}
