//! What `doctor` looks for on one node: the kubelet's socket, configuration and checkpoints, the hardware and the
//! kernel. It needs no API server.
//!
//! Everything is read first ([`facts`]); the checks are pure functions of it, so that they give the same for a
//! recording, as far as a recording tells.

mod checkpoints;
mod config;
mod cpus;
mod devices;
mod facts;
mod hardware;
mod hugepages;
mod kernel;
mod memory;
mod socket;
#[cfg(test)]
mod tests;

use crate::agent::{Recording, Settings};
use crate::cluster::Cluster;
use crate::inspect::doctor::Report;
use crate::inspect::{Check, Finding};

use facts::NodeFacts;

/// Checks the node that this process runs on. If the kubelet's configuration has to be requested from the kubelet, that
/// needs the credentials of a `cluster`.
pub async fn check_node(settings: &Settings, cluster: Option<Cluster>) -> Report {
    report(&NodeFacts::read(settings, cluster).await)
}

/// Checks what a recording contains.
pub fn check_recording(recording: &Recording) -> Report {
    report(&NodeFacts::of_recording(recording))
}

/// Returns every check, in the order of the documentation.
pub fn checks() -> Vec<&'static Check> {
    [
        socket::CHECKS,
        config::CHECKS,
        memory::CHECKS,
        cpus::CHECKS,
        checkpoints::CHECKS,
        hardware::CHECKS,
        hugepages::CHECKS,
        kernel::CHECKS,
        devices::CHECKS,
    ]
    .concat()
}

fn report(facts: &NodeFacts) -> Report {
    let mut report = Report { unchecked: facts.unchecked(), ..Report::default() };
    report.add(check(facts));
    report
}

fn check(facts: &NodeFacts) -> Vec<Finding> {
    let mut findings: Vec<Finding> = [
        socket::check,
        config::check,
        memory::check,
        cpus::check,
        checkpoints::check,
        hardware::check,
        hugepages::check,
        kernel::check,
        devices::check,
    ]
    .iter()
    .flat_map(|check| check(facts))
    .collect();
    // The same cause, and mended by the same command.
    if findings.iter().any(|finding| finding.check == hardware::HARDWARE_CHANGED.name) {
        let is_other = |finding: &Finding| {
            ![
                &checkpoints::CPU_CHECKPOINT_OUTDATED,
                &checkpoints::MEMORY_CHECKPOINT_OUTDATED,
                &hugepages::HUGE_PAGES_CHANGED,
            ]
            .iter()
            .any(|check| check.name == finding.check)
        };
        findings.retain(is_other);
    }
    findings
}
