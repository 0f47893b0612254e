//! The parameters of one kubelet.

use std::fmt;

use anyhow::Result;
use fastrand::Rng;
use serde_json::{Map, Value, json};

use crate::support::RealNode;
use crate::support::node::{NodeSetup, machine};

/// Machines with at most eight nodes: the Topology Manager does not start with more.
const MACHINES: [&str; 14] = [
    "two-by-eight",
    "eight-by-sixty-four",
    "snc-two-sockets",
    "split-caches",
    "smt-off",
    "spanning",
    "arm64-pages",
    "cxl",
    "fake-numa",
    "hbm",
    "hybrid",
    "memory-less",
    "power9",
    "wide-devices",
];
const VERSIONS: [&str; 4] = ["1.34", "1.35", "1.36", "1.37"];
const POLICIES: [&str; 4] = ["none", "best-effort", "restricted", "single-numa-node"];
/// Sets of options of the CPU Manager that it accepts together.
const CPU_OPTIONS: [&[&str]; 10] = [
    &[],
    &["full-pcpus-only"],
    &["distribute-cpus-across-numa"],
    &["align-by-socket"],
    &["distribute-cpus-across-cores"],
    &["strict-cpu-reservation"],
    &["prefer-align-cpus-by-uncorecache"],
    &["full-pcpus-only", "distribute-cpus-across-numa"],
    &["align-by-socket", "distribute-cpus-across-numa"],
    &["full-pcpus-only", "prefer-align-cpus-by-uncorecache", "strict-cpu-reservation"],
];
/// Machines whose nodes have gaps between their ids.
const SPARSE: [&str; 1] = ["power9"];
/// Machines with more sockets than nodes, on which the kubelet does not start with `align-by-socket`.
const MORE_SOCKETS: [&str; 1] = ["spanning"];

/// A kubelet's machine, version and policies.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) machine: &'static str,
    pub(crate) version: &'static str,
    policy: &'static str,
    scope: &'static str,
    options: &'static [&'static str],
    memory: bool,
    closest: bool,
    /// CPUs are reserved by number instead of id.
    numeric: bool,
    /// Pods with pod-level resources get exclusive ones.
    pub(crate) pod_level: bool,
}

/// Returns this many cells: each machine, version, policy and set of options in turn, the rest at random.
pub(crate) fn all(count: usize, random: &mut Rng) -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut number = 0;
    while cells.len() < count {
        let cell = Cell {
            machine: MACHINES[number % MACHINES.len()],
            version: VERSIONS[(number + number / MACHINES.len()) % VERSIONS.len()],
            policy: POLICIES[random.usize(..POLICIES.len())],
            scope: if random.bool() { "container" } else { "pod" },
            options: CPU_OPTIONS[(number + number / CPU_OPTIONS.len()) % CPU_OPTIONS.len()],
            memory: random.u8(..4) > 0,
            closest: random.u8(..3) == 0,
            numeric: random.u8(..4) == 0,
            pod_level: random.u8(..3) == 0,
        };
        number += 1;
        if cell.is_valid() {
            cells.push(cell);
        }
    }
    cells
}

impl Cell {
    fn is_valid(&self) -> bool {
        // The kubelet merges every combination of hints: with 255 sets of nodes, a pod of three resources takes it
        // minutes.
        if self.machine == "eight-by-sixty-four"
            && self.memory
            && ["best-effort", "restricted"].contains(&self.policy)
        {
            return false;
        }
        // It takes the ids of nodes for positions in the list of distances, and panics if there are gaps.
        if self.closest && SPARSE.contains(&self.machine) {
            return false;
        }
        let by_socket = self.options.contains(&"align-by-socket");
        !by_socket || (self.policy != "single-numa-node" && !MORE_SOCKETS.contains(&self.machine))
    }

    /// Returns the node to start.
    pub(crate) fn setup(&self, name: &str) -> Result<NodeSetup> {
        let on = |names: &[&str]| -> Map<String, Value> {
            names.iter().map(|name| ((*name).to_owned(), json!("true"))).collect()
        };
        let topology_options =
            on(if self.closest && self.policy != "none" { &["prefer-closest-numa-nodes"] } else { &[] });
        let mut setup = RealNode::on(self.machine)?
            .named(name)
            .version(self.version)
            .gate("CPUManagerPolicyAlphaOptions")
            .kubelet("cpuManagerPolicy", "static".into())
            .kubelet("cpuManagerPolicyOptions", on(self.options).into())
            .kubelet("topologyManagerPolicy", self.policy.into())
            .kubelet("topologyManagerScope", self.scope.into())
            .kubelet("topologyManagerPolicyOptions", topology_options.into());
        if !self.memory {
            setup =
                setup.kubelet("memoryManagerPolicy", "None".into()).kubelet("reservedMemory", Value::Null);
        }
        if self.numeric {
            let mut reserved = machine(self.machine)?.kubelet["systemReserved"].clone();
            reserved["cpu"] = json!("1500m");
            setup = setup.kubelet("reservedSystemCPUs", Value::Null).kubelet("systemReserved", reserved);
        }
        if self.pod_level {
            setup = setup.gate("PodLevelResourceManagers");
        }
        Ok(setup)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { machine, version, policy, scope, options, .. } = self;
        write!(f, "{machine} {version} {policy} {scope}")?;
        options.iter().try_for_each(|option| write!(f, " {option}"))?;
        let flags = [
            (self.memory, "memory"),
            (self.closest, "closest"),
            (self.numeric, "numeric"),
            (self.pod_level, "pod-level"),
        ];
        flags.into_iter().filter(|(set, _)| *set).try_for_each(|(_, name)| write!(f, " {name}"))
    }
}
