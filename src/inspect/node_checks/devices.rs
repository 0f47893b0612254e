//! Devices and their NUMA nodes.

use std::collections::BTreeSet;

use super::facts::NodeFacts;
use crate::inspect::{Check, Finding, Mend, Severity};
use crate::topology;

static DEVICES_ON_UNKNOWN_NODES: Check = Check {
    name: "DevicesOnUnknownNodes",
    severity: Severity::Warning,
    looks_for: "a device plugin reports devices on NUMA nodes that have no zones",
    why: "Zones do not count these devices, so schedulers place no pod for them.",
};
static PLUGIN_WITHOUT_DEVICES: Check = Check {
    name: "PluginWithoutDevices",
    severity: Severity::Warning,
    looks_for: "a device plugin registered, but has no healthy device",
    why: "No pod that requests the resource is admitted.",
};
static PCI_WITHOUT_NODE: Check = Check {
    name: "PciDevicesWithoutNode",
    severity: Severity::Warning,
    looks_for: "on a machine with several NUMA nodes, PCI devices report none",
    why: "Device plugins report no topology for these devices, so nothing is aligned with them.",
};

pub(super) const CHECKS: &[&Check] = &[&DEVICES_ON_UNKNOWN_NODES, &PLUGIN_WITHOUT_DEVICES, &PCI_WITHOUT_NODE];

/// Maximum number of PCI devices in a finding.
const MAX_NAMES: usize = 8;

pub(super) fn check(facts: &NodeFacts) -> Vec<Finding> {
    let mut findings = unknown_nodes(facts);
    findings.extend(without_devices(facts));
    findings.extend(pci(facts));
    findings
}

fn unknown_nodes(facts: &NodeFacts) -> Vec<Finding> {
    let found = |finding: &topology::Finding| match finding {
        topology::Finding::DevicesOnUnknownNodes { resource, nodes } => {
            let what = format!("devices of {resource} are on NUMA node {nodes}, which has no zone");
            let mend = format!("Correct the topology that the device plugin of {resource} reports.");
            Some(facts.finding(&DEVICES_ON_UNKNOWN_NODES, what, Mend::Do(mend)))
        }
        _ => None,
    };
    facts.topology.iter().filter_map(found).collect()
}

fn without_devices(facts: &NodeFacts) -> Vec<Finding> {
    let (Some(checkpoints), Ok(allocatable)) = (&facts.checkpoints, &facts.allocatable) else {
        return Vec::new();
    };
    let groups = allocatable.devices.iter().filter(|group| !group.ids.is_empty());
    let offered: BTreeSet<&String> = groups.map(|group| &group.resource).collect();
    let missing = checkpoints.registered.iter().filter(|resource| !offered.contains(resource));
    missing
        .map(|resource| {
            let what = format!("the device plugin of {resource} has no healthy device, or does not run");
            let mend = format!("See the log of the device plugin's pod on {}, and restart it.", facts.node());
            facts.finding(&PLUGIN_WITHOUT_DEVICES, what, Mend::Do(mend))
        })
        .collect()
}

fn pci(facts: &NodeFacts) -> Option<Finding> {
    let devices = &facts.details.pci_without_node;
    if devices.is_empty() || facts.machine.as_ref().is_ok_and(|machine| machine.nodes.len() < 2) {
        return None;
    }
    let mut names = devices.iter().take(MAX_NAMES).cloned().collect::<Vec<_>>().join(", ");
    if devices.len() > MAX_NAMES {
        names.push_str(&format!(" and {} more", devices.len() - MAX_NAMES));
    }
    let mend = "Let the firmware or the hypervisor report the node (`numa_node` in /sys/bus/pci/devices), and restart \
                the device plugins.";
    let what = format!("the NUMA node of the PCI devices {names} is unknown");
    Some(facts.finding(&PCI_WITHOUT_NODE, what, Mend::Do(mend.to_owned())))
}
