//! Devices behind dynamic resource allocation: each driver is a resource, named as the driver.
//!
//! A pod cannot request such a name, which has no `/`, so that neither the scheduler plugin nor KAI-Scheduler takes it
//! for something that a pod asks for (Kubernetes, `core/validation`; scheduler-plugins, `filter.go`).

use std::collections::BTreeSet;

use super::{Amounts, Finding, InUse, ZoneBuilder};
use crate::claims::is_shown;

pub(super) fn account(in_use: &InUse<'_>, builder: &mut ZoneBuilder<'_>, findings: &mut BTreeSet<Finding>) {
    let held = &in_use.claims;
    for (driver, nodes) in held.devices.iter().filter(|(driver, _)| is_shown(driver)) {
        builder.add(driver, |id| {
            let [capacity, allocatable, available] = nodes.get(&id).copied().unwrap_or_default();
            Amounts { capacity, allocatable, available }
        });
    }
    findings.extend(held.findings.iter().cloned().map(Finding::Claims));
}
