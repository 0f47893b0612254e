//! Resources that regular init containers keep and the List does not show.
//!
//! The kubelet allocates CPUs, memory and devices to a regular init container until the pod ends.
//! Containers that start later reuse them, and the rest is not available to other pods (k/k #131764). Where
//! the kubelet's checkpoints record this, the zones account for it. Otherwise it is derived from the pod's
//! spec and subtracted from the zones like a reservation: from a single zone if that is certain, else from
//! every zone. That may report too little as available. It reports too much only if the kubelet's
//! configuration is unknown and has one of the options in `not_reused_cpus`.

use super::Reservation;
use super::requirements::{Demand, Requirements};
use crate::kubelet::{Checkpoints, KubeletConfig, PodUsage, is_true};
use crate::machine::{Id, IdSet, Machine};
use crate::pod::{ContainerKind, Pod};
use crate::quantity::is_memory;
use crate::topology::Zone;

/// The node's state besides the List.
#[derive(Clone, Copy, Debug)]
pub struct NodeContext<'a> {
    /// The hardware: which CPUs are on which NUMA node.
    pub machine: &'a Machine,
    /// The kubelet's configuration, if known: how it aligns containers.
    pub config: Option<&'a KubeletConfig>,
    /// The kubelet's checkpoints, as far as they can be read.
    pub checkpoints: Option<&'a Checkpoints>,
    /// Whether `checkpoints` has those of the CPU Manager and the Memory Manager.
    pub has_manager_checkpoints: bool,
}

/// Returns true if the pod has a container that keeps its resources after it has terminated.
pub(super) fn has_init(pod: &Pod) -> bool {
    pod.containers.iter().any(|container| container.kind == ContainerKind::Init)
}

impl<'a> NodeContext<'a> {
    /// Returns the context of a node of which only the hardware is known.
    #[must_use]
    pub const fn of_machine(machine: &'a Machine) -> Self {
        Self { machine, config: None, checkpoints: None, has_manager_checkpoints: false }
    }

    pub(super) fn leftover(
        &self,
        requirements: &Requirements,
        zones: &[Zone],
        pod: &Pod,
        entry: &PodUsage,
    ) -> Vec<Reservation> {
        let mut leftover = Vec::new();
        let demands = requirements.demands(pod, Some(entry));
        let init_has_cpus = demands.get("cpu").is_some_and(|cpus| cpus.init > 0);
        for (resource, demand) in demands.iter().filter(|(name, _)| !self.has_checkpoint_of(pod, name)) {
            let mut add = |amount: u64, zones: Option<IdSet>| {
                let amounts = [((*resource).to_owned(), amount)].into();
                (amount > 0).then(|| leftover.push(Reservation { pod: pod.full_name(), amounts, zones }));
            };
            let cpus = || requirements.exclusive_cpus(pod);
            let not_reused = if *resource == "cpu" { self.not_reused_cpus(&cpus()) } else { 0 };
            let missing = demand.missing().saturating_add(not_reused);
            let node = self.only_node(entry, resource).filter(|id| fits(zones, *id, resource, demand));
            let Some(node) = node else {
                add(missing, None);
                continue;
            };
            add(missing, Some([node].into_iter().collect()));
            // Only its CPUs tie an init container's memory to the node of the other containers' memory.
            let is_on_node = !is_memory(resource)
                || self.aligns_pods()
                || init_has_cpus && self.only_node(entry, "cpu") == Some(node);
            if !is_on_node {
                let others: IdSet = zones.iter().map(|zone| zone.id).filter(|id| *id != node).collect();
                add(if others.is_empty() { 0 } else { demand.init }, Some(others));
            }
        }
        leftover
    }

    /// Returns how many CPUs of init containers the others may not reuse although they could. The kubelet
    /// takes CPUs in the same order for each container, so the smaller set is part of the larger one, except
    /// for single CPUs of a core: for these it prefers a partly allocated core (`takeByTopologyNUMAPacked` in
    /// its `cpu_assignment.go`). With the CPU Manager options below, the sets may be disjoint.
    fn not_reused_cpus(&self, containers: &[(ContainerKind, u64)]) -> u64 {
        let init = containers.iter().filter(|(kind, _)| *kind == ContainerKind::Init);
        let init = init.fold(0_u64, |sum, (_, cpus)| sum.saturating_add(*cpus));
        if init == 0 || containers.iter().all(|(_, cpus)| *cpus == containers[0].1) {
            return 0;
        }
        let options = self.config.map(|config| &config.cpu_manager_policy_options);
        let is_on = |option| options.and_then(|all| all.get(option)).is_some_and(|value| is_true(value));
        if ["prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"].into_iter().any(is_on) {
            return init;
        }
        let threads = self.machine.threads_per_core.max(1);
        containers.iter().map(|(_, cpus)| cpus % threads).sum::<u64>().min(init)
    }

    fn has_checkpoint_of(&self, pod: &Pod, resource: &str) -> bool {
        if resource == "cpu" || is_memory(resource) {
            return self.has_manager_checkpoints;
        }
        self.checkpoints.is_some_and(|checkpoints| checkpoints.names.contains_key(&pod.uid))
    }

    /// Returns the only NUMA node on which the entry's containers have this resource, if an init container
    /// that fits on one node has it there as well: the Topology Manager ensures that for reused CPUs and
    /// devices.
    fn only_node(&self, entry: &PodUsage, resource: &str) -> Option<Id> {
        let config = self.config?;
        if !matches!(&*config.topology_manager_policy, "restricted" | "single-numa-node") {
            return None;
        }
        let mut nodes = IdSet::new();
        for container in &entry.containers {
            if resource == "cpu" {
                nodes.union_with(&self.machine.nodes_of(&container.cpus));
            }
            let blocks = container.memory.iter().filter(|block| block.resource == resource);
            blocks.for_each(|block| nodes.union_with(&block.nodes));
            let groups = container.devices.iter().filter(|group| group.resource == resource);
            groups.for_each(|group| nodes.union_with(&group.nodes));
        }
        nodes.iter().next().filter(|_| nodes.len() == 1)
    }

    fn aligns_pods(&self) -> bool {
        self.config.is_some_and(|config| config.topology_manager_scope == "pod")
    }
}

fn fits(zones: &[Zone], id: Id, resource: &str, demand: &Demand) -> bool {
    let zone = zones.iter().find(|zone| zone.id == id);
    zone.and_then(|zone| zone.resources.get(resource)).is_some_and(|has| demand.peak <= has.allocatable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::{ContainerUsage, DeviceGroup, MemoryBlock};
    use crate::machine::NumaNode;
    use crate::pod::Container;
    use crate::topology::Amounts;

    const GIB: u64 = 1 << 30;

    fn machine() -> Machine {
        let node = |id: Id| NumaNode { id, cpus: (id * 8..id * 8 + 8).collect(), ..NumaNode::default() };
        Machine { nodes: vec![node(0), node(1)], ..Machine::default() }
    }

    fn zones() -> [Zone; 2] {
        let amounts = |capacity| Amounts { capacity, allocatable: capacity, available: capacity };
        let resources = [("cpu".to_owned(), amounts(8)), ("memory".to_owned(), amounts(8 * GIB))];
        [0, 1].map(|id| Zone { id, resources: resources.clone().into(), ..Zone::default() })
    }

    fn config(policy: &str, scope: &str) -> KubeletConfig {
        KubeletConfig {
            topology_manager_policy: policy.into(),
            topology_manager_scope: scope.into(),
            ..KubeletConfig::default()
        }
    }

    /// Returns a Guaranteed pod: milli-CPUs and GiB of the init container and of the app container.
    fn pod(init: (u64, u64), app: (u64, u64)) -> Pod {
        let container = |name: &str, kind, (cpu_milli, gib)| Container {
            name: name.into(),
            kind,
            cpu_milli,
            memory: gib * GIB,
            ..Container::default()
        };
        let containers =
            [container("init", ContainerKind::Init, init), container("app", ContainerKind::App, app)];
        let (namespace, name, uid) = ("ns".into(), "a".into(), "1".into());
        Pod { namespace, name, uid, guaranteed: true, containers: containers.into(), ..Pod::default() }
    }

    /// Returns the List entry of the app container.
    fn entry(cpus: &str, gib: u64, node: Id) -> PodUsage {
        let memory =
            MemoryBlock { resource: "memory".into(), bytes: gib * GIB, nodes: [node].into_iter().collect() };
        let app = ContainerUsage {
            name: "app".into(),
            cpus: cpus.parse().unwrap(),
            memory: vec![memory],
            ..ContainerUsage::default()
        };
        PodUsage { containers: vec![app], ..PodUsage::default() }
    }

    fn context<'a>(machine: &'a Machine, config: Option<&'a KubeletConfig>) -> NodeContext<'a> {
        NodeContext { config, ..NodeContext::of_machine(machine) }
    }

    fn requirements() -> Requirements {
        Requirements { cpus: true, memory: true, ..Requirements::default() }
    }

    fn leftover(
        config: Option<&KubeletConfig>,
        has_manager_checkpoints: bool,
        pod: &Pod,
        entry: &PodUsage,
    ) -> Vec<String> {
        let machine = machine();
        let node = NodeContext { has_manager_checkpoints, ..context(&machine, config) };
        let leftover = node.leftover(&requirements(), &zones(), pod, entry);
        leftover.iter().map(|one| one.to_string().replace("ns/a: ", "")).collect()
    }

    #[test]
    fn with_aligned_containers_the_leftover_is_on_their_node() {
        let (pod, entry) = (pod((8000, 4), (2000, 1)), entry("8-9", 1, 1));
        for aligned in [config("single-numa-node", "container"), config("restricted", "pod")] {
            let left = leftover(Some(&aligned), false, &pod, &entry);
            assert_eq!(left, ["cpu 6 in zone 1", "memory 3221225472 in zone 1"]);
            assert!(leftover(Some(&aligned), true, &pod, &entry).is_empty(), "the topology has it");
        }
    }

    #[test]
    fn an_unknown_node_takes_the_leftover_from_every_zone() {
        let pod = pod((8000, 4), (2000, 1));
        let everywhere = ["cpu 6 in every zone", "memory 3221225472 in every zone"];
        assert_eq!(leftover(None, false, &pod, &entry("8-9", 1, 1)), everywhere);
        let loose = config("best-effort", "container");
        assert_eq!(leftover(Some(&loose), false, &pod, &entry("8-9", 1, 1)), everywhere);
        let strict = config("single-numa-node", "container");
        let spread = leftover(Some(&strict), false, &pod, &entry("7-8", 1, 1));
        assert_eq!(spread, [everywhere[0], "memory 3221225472 in zone 1", "memory 4294967296 in zone 0"]);
    }

    #[test]
    fn an_init_container_larger_than_a_zone_is_on_several() {
        let strict = config("restricted", "container");
        let left = leftover(Some(&strict), false, &pod((9000, 1), (2000, 1)), &entry("8-9", 1, 1));
        assert_eq!(left, ["cpu 7 in every zone"]);
    }

    #[test]
    fn memory_alone_does_not_keep_containers_together() {
        // The init container has a fractional CPU: its memory may be on either node.
        let (pod, entry) = (pod((500, 2), (2000, 2)), entry("8-9", 2, 1));
        let aligned = |scope| leftover(Some(&config("single-numa-node", scope)), false, &pod, &entry);
        assert_eq!(aligned("container"), ["memory 2147483648 in zone 0"]);
        assert!(aligned("pod").is_empty());
    }

    #[test]
    fn with_one_zone_there_is_no_other_zone_to_reserve_in() {
        let (pod, entry) = (pod((500, 2), (2000, 2)), entry("0-1", 2, 0));
        let (machine, config) = (machine(), config("single-numa-node", "container"));
        let node = context(&machine, Some(&config));
        assert_eq!(node.leftover(&requirements(), &zones()[..1], &pod, &entry), []);
        assert_eq!(node.leftover(&requirements(), &zones(), &pod, &entry).len(), 1);
    }

    #[test]
    fn devices_of_init_containers_are_on_the_node_of_the_others() {
        let nic = || "example.com/nic".to_owned();
        let mut pod = pod((1000, 1), (1000, 1));
        pod.containers[0].others = [("example.com/nic".into(), 3)].into();
        pod.containers[1].others = [("example.com/nic".into(), 1)].into();
        let group = |resource: String, node: Id| DeviceGroup {
            resource,
            nodes: [node].into_iter().collect(),
            ..DeviceGroup::default()
        };
        let mut entry = entry("8", 1, 1);
        entry.containers[0].devices = vec![group("example.com/gpu".to_owned(), 0), group(nic(), 1)];
        entry.containers[0].devices[1].ids = vec!["nic-0".to_owned()];
        let mut zones = zones();
        for (zone, nics) in zones.iter_mut().zip([2, 4]) {
            zone.resources.insert(nic(), Amounts { capacity: nics, allocatable: nics, available: nics });
        }
        let requirements = Requirements { devices: [nic()].into(), ..Requirements::default() };
        let (machine, strict) = (machine(), config("single-numa-node", "container"));
        let of = |config, checkpoints| {
            // The managers' checkpoints do not cover devices.
            let node = NodeContext { machine: &machine, config, checkpoints, has_manager_checkpoints: true };
            let left = node.leftover(&requirements, &zones, &pod, &entry);
            left.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(of(Some(&strict), None), ["ns/a: example.com/nic 2 in zone 1"]);
        assert_eq!(of(None, None), ["ns/a: example.com/nic 2 in every zone"]);
        let (unknown, mut known) = (Checkpoints::default(), Checkpoints::default());
        known.names.insert("1".to_owned(), Default::default());
        assert_eq!(of(None, Some(&unknown)).len(), 1, "the checkpoint does not have the pod");
        assert!(of(None, Some(&known)).is_empty(), "the topology has it");
    }

    #[test]
    fn single_cpus_of_cores_may_not_be_reused() {
        use ContainerKind::{App, Init};
        let with = |options: &str| KubeletConfig {
            cpu_manager_policy_options: [(options.to_owned(), "true".to_owned())].into(),
            ..KubeletConfig::default()
        };
        let machine = Machine { threads_per_core: 2, ..machine() };
        let not_reused = |config: Option<&KubeletConfig>, containers: &[(ContainerKind, u64)]| {
            context(&machine, config).not_reused_cpus(containers)
        };
        assert_eq!(not_reused(None, &[(Init, 3), (App, 1)]), 2, "one of each container");
        assert_eq!(not_reused(None, &[(Init, 1), (App, 3), (App, 5)]), 1, "no more than it has");
        assert_eq!(not_reused(None, &[(Init, 4), (App, 2)]), 0, "whole cores");
        assert_eq!(not_reused(None, &[(Init, 3), (App, 3)]), 0, "the same CPUs");
        assert_eq!(not_reused(None, &[(App, 3), (App, 1)]), 0, "no init container");
        assert_eq!(not_reused(None, &[(Init, u64::MAX), (Init, 2)]), 1, "the sum is limited");
        for option in ["prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"] {
            assert_eq!(not_reused(Some(&with(option)), &[(Init, 4), (App, 2)]), 4, "{option}");
        }
        assert_eq!(not_reused(Some(&with("full-pcpus-only")), &[(Init, 4), (App, 2)]), 0);
        let mut config = with("distribute-cpus-across-cores");
        for (value, expected) in [("false", 0), ("0", 0), ("yes", 0), ("1", 4), ("t", 4), ("TRUE", 4)] {
            config.cpu_manager_policy_options.values_mut().for_each(|option| *option = value.to_owned());
            assert_eq!(not_reused(Some(&config), &[(Init, 4), (App, 2)]), expected, "{value}");
        }

        let node = context(&machine, None);
        let left = node.leftover(&requirements(), &zones(), &pod((3000, 2), (1000, 1)), &entry("8", 1, 1));
        let left: Vec<String> = left.iter().map(ToString::to_string).collect();
        assert_eq!(left, ["ns/a: cpu 4 in every zone", "ns/a: memory 1073741824 in every zone"]);
    }

    #[test]
    fn reused_resources_are_not_left_over() {
        let strict = config("single-numa-node", "container");
        let left = leftover(Some(&strict), false, &pod((2000, 1), (3000, 1)), &entry("8-10", 1, 1));
        assert!(left.is_empty(), "{left:?}");
    }
}
