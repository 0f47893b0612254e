//! The demo's workload: which pods start and stop. It depends on the seed only.

use std::collections::BTreeMap;

use fastrand::Rng;
use numacast_core::machine::Id;
use numacast_core::quantity::Quantity;
use serde_json::json;

use super::kubelet::PodSpec;
use super::machine::{Device, DeviceSpec, MachineSpec, NodeSpec};

/// CPUs per zone: four cores with two threads each.
const CPUS: Id = 8;
const GIB: u64 = 1 << 30;

/// A machine with this many NUMA zones whose kubelet aligns pods to one zone.
#[must_use]
pub fn machine(zones: Id) -> MachineSpec {
    let kubelet = json!({
        "cpuManagerPolicy": "static",
        "memoryManagerPolicy": "Static",
        "topologyManagerPolicy": "single-numa-node",
        "reservedSystemCPUs": format!("0,{}", zones * CPUS / 2),
        "systemReserved": {"memory": "924Mi"},
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}],
    });
    let device = |resource: &str, count: Id| DeviceSpec {
        resource: format!("example.com/{resource}"),
        devices: (0..zones * count)
            .map(|number| Device {
                id: format!("{resource}-{number}"),
                numa: vec![number / count],
                unhealthy: false,
            })
            .collect(),
    };
    MachineSpec {
        description: format!("{zones} zones of four cores with two threads each"),
        nodes: (0..zones).map(|id| node(id, zones)).collect(),
        threads_per_core: 2,
        devices: vec![device("gpu", 2), device("nic", 1)],
        kubelet: kubelet.as_object().cloned().unwrap_or_default(),
        ..MachineSpec::default()
    }
}

/// Linux numbers the first threads of all cores before the second threads.
fn node(id: Id, zones: Id) -> NodeSpec {
    let cores = CPUS / 2;
    let first = id * cores..(id + 1) * cores;
    let second = first.clone().map(|cpu| cpu + zones * cores);
    let distance = |other: Id| match () {
        () if other == id => 10,
        // On larger machines, two zones share a socket.
        () if zones > 2 && other / 2 == id / 2 => 12,
        () => 21,
    };
    NodeSpec {
        id,
        cpus: first.clone().chain(second).collect(),
        memory: Quantity::whole(24 * GIB),
        hugepages: [("2Mi".to_owned(), 1024), ("1Gi".to_owned(), 4)].into(),
        distances: (0..zones).map(|other| (other, distance(other))).collect(),
        package: Some(if zones > 2 { id / 2 } else { id }),
        ..NodeSpec::default()
    }
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// This pod is bound to the node.
    Start(PodSpec),
    /// The pod with this name in the namespace `default` ends.
    Stop(String),
}

/// A typical kind of pod.
struct Role {
    name: &'static str,
    cpus: (u64, u64),
    gib: (u64, u64),
    /// 2Mi pages, as a multiple of 256 MiB.
    small_pages: u64,
    /// 1Gi pages.
    large_pages: u64,
    device: Option<&'static str>,
    guaranteed: bool,
}

const ROLES: [Role; 6] = [
    role("database", (2, 4), (2, 6), 0, 1),
    Role { device: Some("example.com/gpu"), ..role("inference", (2, 4), (2, 4), 0, 0) },
    Role { device: Some("example.com/nic"), ..role("packets", (1, 3), (1, 2), 2, 0) },
    role("cache", (1, 2), (2, 5), 1, 0),
    role("trading", (2, 6), (1, 3), 0, 2),
    Role { guaranteed: false, ..role("web", (1, 1), (1, 1), 0, 0) },
];

const fn role(
    name: &'static str,
    cpus: (u64, u64),
    gib: (u64, u64),
    small_pages: u64,
    large_pages: u64,
) -> Role {
    Role { name, cpus, gib, small_pages, large_pages, device: None, guaranteed: true }
}

/// The workload of a run, one step at a time.
#[derive(Debug)]
pub struct Scenario {
    rng: Rng,
    zones: u64,
    started: u64,
    /// Name and CPUs of the pods that should be running, in start order.
    running: Vec<(String, u64)>,
    /// Whether the node is filling up or emptying.
    filling: bool,
}

impl Scenario {
    /// Creates a run for a machine with this many zones.
    #[must_use]
    pub fn new(zones: Id, seed: u64) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            zones: u64::from(zones),
            started: 0,
            running: Vec::new(),
            filling: true,
        }
    }

    /// Returns the next step: the node fills up to about four fifths and empties to about a third, over and
    /// over.
    pub fn step(&mut self) -> Step {
        let capacity = self.zones * u64::from(CPUS);
        let used: u64 = self.running.iter().map(|(_, cpus)| cpus).sum();
        if used * 5 > capacity * 4 {
            self.filling = false;
        }
        if used * 3 < capacity {
            self.filling = true;
        }
        let start = self.rng.u8(0..10) < if self.filling { 8 } else { 2 };
        if start || self.running.is_empty() { self.start() } else { self.stop() }
    }

    /// Removes a pod that the kubelet rejected.
    pub fn rejected(&mut self, name: &str) {
        self.running.retain(|(running, _)| running != name);
    }

    /// Number of pods that should be running.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Stops one of the older half of the pods.
    fn stop(&mut self) -> Step {
        let oldest_half = self.running.len().div_ceil(2);
        let (name, _) = self.running.remove(self.rng.usize(0..oldest_half));
        Step::Stop(name)
    }

    fn start(&mut self) -> Step {
        let role = &ROLES[self.rng.usize(0..ROLES.len())];
        self.started += 1;
        let name = format!("{}-{}", role.name, self.started);
        let cpus = self.rng.u64(role.cpus.0..=role.cpus.1);
        let gib = self.rng.u64(role.gib.0..=role.gib.1);
        let mut pod = PodSpec::guaranteed(&name, cpus, gib * GIB);
        pod.guaranteed = role.guaranteed;
        let pages: BTreeMap<&str, u64> =
            [("hugepages-2Mi", role.small_pages * (GIB / 4)), ("hugepages-1Gi", role.large_pages * GIB)]
                .into();
        for (resource, bytes) in pages.into_iter().filter(|(_, bytes)| *bytes > 0) {
            pod = pod.hugepages(resource, bytes);
        }
        if let Some(resource) = role.device {
            pod = pod.devices(resource, 1);
        }
        let exclusive = if role.guaranteed { cpus } else { 0 };
        self.running.push((name, exclusive));
        Step::Start(pod)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::Model;

    #[test]
    fn machines_of_every_size_are_valid() {
        for zones in 2..=8 {
            let spec = machine(zones);
            let yaml = serde_json::to_string(&spec).unwrap();
            assert_eq!(MachineSpec::from_yaml(&yaml).unwrap(), spec, "{zones} zones");
            let expected = Model::new(&spec).expected();
            assert_eq!(expected.zones[&0]["cpu"].allocatable, 6, "one core is reserved");
            assert_eq!(expected.zones[&(zones - 1)]["cpu"].allocatable, 8);
            assert_eq!(expected.zones[&1]["memory"].allocatable, 18 * GIB);
        }
    }

    #[test]
    fn a_run_fills_and_empties_the_node_and_depends_on_its_seed_only() {
        let seed = crate::seed();
        println!("NUMACAST_SEED={seed}");
        let (mut one, mut other) = (Scenario::new(2, seed), Scenario::new(2, seed));
        let mut changes = 0;
        let mut filling = true;
        for _ in 0..2000 {
            assert_eq!(one.step(), other.step());
            changes += usize::from(one.filling != filling);
            filling = one.filling;
            assert!(one.running() < 40);
        }
        assert!(changes > 10, "{changes}");
    }

    #[test]
    fn names_are_unique() {
        let mut scenario = Scenario::new(2, 7);
        let mut names = std::collections::BTreeSet::new();
        for _ in 0..200 {
            if let Step::Start(pod) = scenario.step() {
                assert!(names.insert(pod.name.clone()), "{}", pod.name);
            }
        }
    }
}
