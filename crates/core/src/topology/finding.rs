//! Inconsistencies in what the kernel and the kubelet report.

use std::fmt;

use super::HIGHEST_ZONE;
use crate::claims::ClaimFinding;
use crate::machine::IdSet;

/// An inconsistency in the inputs. The published amounts are safe regardless. The same inconsistency on
/// several NUMA nodes is one finding, since a machine may have dozens of nodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// NUMA nodes whose ids exceed the scheduler's limit.
    UnpublishedNodes(IdSet),
    /// The kubelet reports CPUs that are in no zone.
    UnknownCpus(String),
    /// CPUs that both the kubelet and a claim give to somebody.
    CpusAllocatedTwice(IdSet),
    /// What claims hold could not be placed, or contradicts the hardware.
    Claims(ClaimFinding),
    /// The kubelet reports much more allocatable memory than each of these nodes has.
    ImpossibleMemory {
        /// The NUMA nodes.
        nodes: IdSet,
        /// `memory` or `hugepages-<size>`.
        resource: String,
        /// The largest amount reported for one of them, in bytes.
        bytes: u64,
    },
    /// More memory is in use than a group of nodes has, or than each of several nodes has.
    OverusedMemory {
        /// The nodes.
        nodes: IdSet,
        /// `memory` or `hugepages-<size>`.
        resource: String,
    },
    /// Devices are reported on nodes that are not online, or not published.
    DevicesOnUnknownNodes {
        /// The devices' resource.
        resource: String,
        /// The NUMA nodes.
        nodes: IdSet,
    },
}

impl Finding {
    pub(super) fn resource(&self) -> Option<&str> {
        match self {
            Self::UnpublishedNodes(_) | Self::Claims(_) => None,
            Self::UnknownCpus(_) | Self::CpusAllocatedTwice(_) => Some("cpu"),
            Self::ImpossibleMemory { resource, .. }
            | Self::OverusedMemory { resource, .. }
            | Self::DevicesOnUnknownNodes { resource, .. } => Some(resource),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnpublishedNodes(nodes) => {
                let are = if nodes.len() == 1 { "is" } else { "are" };
                write!(
                    f,
                    "{} {are} not published: the scheduler supports ids 0 to {HIGHEST_ZONE} only",
                    describe(nodes)
                )
            }
            Self::UnknownCpus(cpus) => {
                write!(f, "the kubelet reports CPUs {cpus}, which are in no zone; they are not counted")
            }
            Self::CpusAllocatedTwice(cpus) => write!(
                f,
                "the kubelet and a ResourceClaim both gave out the CPUs {cpus}: with the driver dra.cpu, \
                 set `cpuManagerPolicy: none`"
            ),
            Self::Claims(finding) => finding.fmt(f),
            Self::ImpossibleMemory { nodes, resource, bytes } if nodes.len() == 1 => write!(
                f,
                "the kubelet offers {bytes} bytes of {resource} on {}, more than it has; ignored, the amount is \
                 computed from the hardware",
                describe(nodes)
            ),
            Self::ImpossibleMemory { nodes, resource, bytes } => write!(
                f,
                "the kubelet offers up to {bytes} bytes of {resource} on each of {}, more than they have; \
                 ignored, the amount is computed from the hardware",
                describe(nodes)
            ),
            Self::OverusedMemory { nodes, resource } => {
                let they = if nodes.len() == 1 { "it" } else { "they" };
                write!(f, "more {resource} is in use on {} than {they} can have", describe(nodes))
            }
            Self::DevicesOnUnknownNodes { resource, nodes } => {
                let have = if nodes.len() == 1 { "has" } else { "have" };
                write!(
                    f,
                    "devices of {resource} are on {}, which {have} no zone; they are not counted there",
                    describe(nodes)
                )
            }
        }
    }
}

/// `NUMA node 1`, `NUMA nodes 1-3`.
fn describe(nodes: &IdSet) -> String {
    format!("NUMA node{} {nodes}", if nodes.len() == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_nodes_and_the_consequence() {
        let ids = |text: &str| -> IdSet { text.parse().unwrap() };
        let resource = || "memory".to_owned();
        for (finding, message) in [
            (
                Finding::UnpublishedNodes(ids("64")),
                "NUMA node 64 is not published: the scheduler supports ids 0 to 63 only",
            ),
            (
                Finding::UnpublishedNodes(ids("64-70")),
                "NUMA nodes 64-70 are not published: the scheduler supports ids 0 to 63 only",
            ),
            (
                Finding::UnknownCpus("8-9".into()),
                "the kubelet reports CPUs 8-9, which are in no zone; they are not counted",
            ),
            (
                Finding::ImpossibleMemory { nodes: ids("1"), resource: resource(), bytes: 7 },
                "the kubelet offers 7 bytes of memory on NUMA node 1, more than it has; ignored, the amount is \
                 computed from the hardware",
            ),
            (
                Finding::ImpossibleMemory { nodes: ids("1-2"), resource: resource(), bytes: 7 },
                "the kubelet offers up to 7 bytes of memory on each of NUMA nodes 1-2, more than they have; \
                 ignored, the amount is computed from the hardware",
            ),
            (
                Finding::OverusedMemory { nodes: ids("0"), resource: resource() },
                "more memory is in use on NUMA node 0 than it can have",
            ),
            (
                Finding::OverusedMemory { nodes: ids("0-1"), resource: resource() },
                "more memory is in use on NUMA nodes 0-1 than they can have",
            ),
            (
                Finding::DevicesOnUnknownNodes { resource: "a/b".into(), nodes: ids("3") },
                "devices of a/b are on NUMA node 3, which has no zone; they are not counted there",
            ),
            (
                Finding::DevicesOnUnknownNodes { resource: "a/b".into(), nodes: ids("3,5") },
                "devices of a/b are on NUMA nodes 3,5, which have no zone; they are not counted there",
            ),
        ] {
            assert_eq!(finding.to_string(), message);
        }
    }
}
