//! Resources that ordinary init containers keep and the List does not show.
//!
//! The kubelet allocates CPUs, memory and devices to an ordinary init container until the pod ends.
//! Containers that start later reuse them, and the rest is not available to other pods (k/k #131764). Where
//! the kubelet's checkpoints record this, the zones account for it. Otherwise it is derived from the pod's
//! spec and subtracted from the zones like a reservation: from a single zone if that is certain, else from
//! every zone. That may report too little as available, but never too much.

use super::Reservation;
use super::accounted::{Demand, Requirements};
use super::exclusive::is_huge_pages;
use crate::kubelet::{KubeletConfig, ManagerState, PodUsage};
use crate::machine::{Id, IdSet, Machine};
use crate::pod::{ContainerKind, Pod};
use crate::topology::Zone;

/// The node's state besides the List.
#[derive(Clone, Copy, Debug)]
pub struct Unlisted<'a> {
    /// The hardware: which CPUs are on which NUMA node.
    pub machine: &'a Machine,
    /// The kubelet's configuration, if known: how it aligns containers.
    pub config: Option<&'a KubeletConfig>,
    /// The kubelet's checkpoints, as far as they can be read.
    pub state: Option<&'a ManagerState>,
    /// Whether `state` has the checkpoints of the CPU Manager and the Memory Manager.
    pub managers: bool,
}

/// Returns true if the pod has a container that keeps its resources after it has terminated.
pub(super) fn has_plain_init(pod: &Pod) -> bool {
    pod.containers.iter().any(|container| container.kind == ContainerKind::Init)
}

impl Unlisted<'_> {
    /// Returns what the pod keeps beyond what this List entry shows, and where.
    pub(super) fn surplus(
        &self,
        requirements: &Requirements,
        zones: &[Zone],
        pod: &Pod,
        row: &PodUsage,
    ) -> Vec<Reservation> {
        let mut surplus = Vec::new();
        let demands = requirements.demands(pod, Some(row));
        let init_has_cpus = demands.get("cpu").is_some_and(|cpus| cpus.init > 0);
        for (resource, demand) in demands.iter().filter(|(name, _)| !self.is_told(pod, name)) {
            let mut take = |amount: u64, zones: Option<IdSet>| {
                let amounts = [((*resource).to_owned(), amount)].into();
                (amount > 0).then(|| surplus.push(Reservation { pod: pod.full_name(), amounts, zones }));
            };
            let apart = if *resource == "cpu" { self.apart(&requirements.exclusive_cpus(pod)) } else { 0 };
            let missing = demand.missing().saturating_add(apart);
            let Some(home) = self.home(row, resource).filter(|id| fits(zones, *id, resource, demand)) else {
                take(missing, None);
                continue;
            };
            take(missing, Some([home].into_iter().collect()));
            // Only its CPUs tie an init container's memory to the node of the other containers' memory.
            let follows = !is_memory(resource)
                || self.aligns_pods()
                || init_has_cpus && self.home(row, "cpu") == Some(home);
            if !follows {
                let others: IdSet = zones.iter().map(|zone| zone.id).filter(|id| *id != home).collect();
                take(if others.is_empty() { 0 } else { demand.init }, Some(others));
            }
        }
        surplus
    }

    /// Returns how many CPUs of init containers the others may not reuse although they could. The kubelet
    /// takes CPUs in the same order for each container, so the smaller set is part of the larger one, except
    /// for single CPUs of a core: for these it prefers a partly allocated core (`takeByTopologyNUMAPacked` in
    /// its `cpu_assignment.go`). With the CPU Manager options below, the sets may be disjoint.
    fn apart(&self, containers: &[(ContainerKind, u64)]) -> u64 {
        let init = containers.iter().filter(|(kind, _)| *kind == ContainerKind::Init);
        let init: u64 = init.map(|(_, cpus)| cpus).sum();
        if init == 0 || containers.iter().all(|(_, cpus)| *cpus == containers[0].1) {
            return 0;
        }
        let options = self.config.map(|config| &config.cpu_manager_policy_options);
        let is_on = |option| options.and_then(|all| all.get(option)).is_some_and(|value| value == "true");
        if ["prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"].into_iter().any(is_on) {
            return init;
        }
        let threads = self.machine.threads_per_core.max(1);
        containers.iter().map(|(_, cpus)| cpus % threads).sum::<u64>().min(init)
    }

    /// Returns true if the kubelet's checkpoints record what this pod is allocated of the resource.
    fn is_told(&self, pod: &Pod, resource: &str) -> bool {
        if resource == "cpu" || is_memory(resource) {
            return self.managers;
        }
        self.state.is_some_and(|state| state.names.contains_key(&pod.uid))
    }

    /// Returns the only NUMA node on which the entry's containers have this resource, if an init container
    /// that fits on one node has it there as well: the Topology Manager ensures that for reused CPUs and
    /// devices.
    fn home(&self, row: &PodUsage, resource: &str) -> Option<Id> {
        let config = self.config?;
        if !matches!(&*config.topology_manager_policy, "restricted" | "single-numa-node") {
            return None;
        }
        let nodes = self.nodes(row, resource);
        let mut ids = nodes.iter();
        ids.next().filter(|_| ids.next().is_none())
    }

    /// Returns the NUMA nodes on which the entry's containers have a resource.
    fn nodes(&self, row: &PodUsage, resource: &str) -> IdSet {
        let mut nodes = IdSet::new();
        for container in &row.containers {
            let on = |node: &&crate::machine::NumaNode| node.cpus.intersects(&container.cpus);
            if resource == "cpu" {
                self.machine.nodes.iter().filter(on).for_each(|node| nodes.insert(node.id));
            }
            let blocks = container.memory.iter().filter(|block| block.resource == resource);
            blocks.for_each(|block| nodes.union_with(&block.nodes));
            let groups = container.devices.iter().filter(|group| group.resource == resource);
            groups.for_each(|group| nodes.union_with(&group.nodes));
        }
        nodes
    }

    /// Whether all containers of a pod are allocated their resources on the same NUMA nodes.
    fn aligns_pods(&self) -> bool {
        self.config.is_some_and(|config| config.topology_manager_scope == "pod")
    }
}

fn is_memory(resource: &str) -> bool {
    resource == "memory" || is_huge_pages(resource)
}

/// Returns true if the zone's allocatable covers the peak demand.
fn fits(zones: &[Zone], id: Id, resource: &str, demand: &Demand) -> bool {
    let zone = zones.iter().find(|zone| zone.id == id);
    zone.and_then(|zone| zone.resources.get(resource)).is_some_and(|has| demand.most <= has.allocatable)
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
    fn row(cpus: &str, gib: u64, node: Id) -> PodUsage {
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

    fn surplus(config: Option<&KubeletConfig>, managers: bool, pod: &Pod, row: &PodUsage) -> Vec<String> {
        let machine = machine();
        let unlisted = Unlisted { machine: &machine, config, state: None, managers };
        let requirements = Requirements { cpus: true, memory: true, ..Requirements::default() };
        let surplus = unlisted.surplus(&requirements, &zones(), pod, row);
        surplus.iter().map(|one| one.to_string().replace("ns/a: ", "")).collect()
    }

    #[test]
    fn what_is_left_over_is_on_the_node_of_the_others_where_they_are_aligned() {
        let (pod, row) = (pod((8000, 4), (2000, 1)), row("8-9", 1, 1));
        for aligned in [config("single-numa-node", "container"), config("restricted", "pod")] {
            let left = surplus(Some(&aligned), false, &pod, &row);
            assert_eq!(left, ["cpu 6 in zone 1", "memory 3221225472 in zone 1"]);
            assert!(surplus(Some(&aligned), true, &pod, &row).is_empty(), "the account has it");
        }
    }

    #[test]
    fn it_is_taken_from_every_zone_where_nothing_says_which() {
        let pod = pod((8000, 4), (2000, 1));
        let everywhere = ["cpu 6 in every zone", "memory 3221225472 in every zone"];
        assert_eq!(surplus(None, false, &pod, &row("8-9", 1, 1)), everywhere);
        let loose = config("best-effort", "container");
        assert_eq!(surplus(Some(&loose), false, &pod, &row("8-9", 1, 1)), everywhere);
        let strict = config("single-numa-node", "container");
        let spread = surplus(Some(&strict), false, &pod, &row("7-8", 1, 1));
        assert_eq!(spread, [everywhere[0], "memory 3221225472 in zone 1", "memory 4294967296 in zone 0"]);
    }

    #[test]
    fn an_init_container_that_no_zone_holds_is_on_several() {
        let strict = config("restricted", "container");
        let left = surplus(Some(&strict), false, &pod((9000, 1), (2000, 1)), &row("8-9", 1, 1));
        assert_eq!(left, ["cpu 7 in every zone"]);
    }

    #[test]
    fn memory_alone_does_not_keep_containers_together() {
        // The init container has a fractional CPU: its memory may be on either node.
        let (pod, row) = (pod((500, 2), (2000, 2)), row("8-9", 2, 1));
        let aligned = |scope| surplus(Some(&config("single-numa-node", scope)), false, &pod, &row);
        assert_eq!(aligned("container"), ["memory 2147483648 in zone 0"]);
        assert!(aligned("pod").is_empty());
    }

    #[test]
    fn a_node_with_one_zone_has_no_other_zone_to_reserve_in() {
        let (pod, row) = (pod((500, 2), (2000, 2)), row("0-1", 2, 0));
        let machine = machine();
        let config = config("single-numa-node", "container");
        let unlisted = Unlisted { machine: &machine, config: Some(&config), state: None, managers: false };
        let requirements = Requirements { cpus: true, memory: true, ..Requirements::default() };
        assert_eq!(unlisted.surplus(&requirements, &zones()[..1], &pod, &row), []);
        assert_eq!(unlisted.surplus(&requirements, &zones(), &pod, &row).len(), 1);
    }

    #[test]
    fn devices_of_init_containers_are_where_the_others_are() {
        let nic = || "example.com/nic".to_owned();
        let mut pod = pod((1000, 1), (1000, 1));
        pod.containers[0].others = [("example.com/nic".into(), 3)].into();
        pod.containers[1].others = [("example.com/nic".into(), 1)].into();
        let group = |resource: String, node: Id| DeviceGroup {
            resource,
            nodes: [node].into_iter().collect(),
            ..DeviceGroup::default()
        };
        let mut row = row("8", 1, 1);
        row.containers[0].devices = vec![group("example.com/gpu".to_owned(), 0), group(nic(), 1)];
        row.containers[0].devices[1].ids = vec!["nic-0".to_owned()];
        let mut zones = zones();
        for (zone, nics) in zones.iter_mut().zip([2, 4]) {
            zone.resources.insert(nic(), Amounts { capacity: nics, allocatable: nics, available: nics });
        }
        let requirements = Requirements { devices: [nic()].into(), ..Requirements::default() };
        let (machine, strict) = (machine(), config("single-numa-node", "container"));
        let of = |config, state| {
            // The managers' checkpoints do not cover devices.
            let unlisted = Unlisted { machine: &machine, config, state, managers: true };
            let left = unlisted.surplus(&requirements, &zones, &pod, &row);
            left.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(of(Some(&strict), None), ["ns/a: example.com/nic 2 in zone 1"]);
        assert_eq!(of(None, None), ["ns/a: example.com/nic 2 in every zone"]);
        let (unknown, mut known) = (ManagerState::default(), ManagerState::default());
        known.names.insert("1".to_owned(), Default::default());
        assert_eq!(of(None, Some(&unknown)).len(), 1, "the files do not have the pod");
        assert!(of(None, Some(&known)).is_empty(), "the account has it");
    }

    #[test]
    fn single_cpus_of_cores_may_not_be_used_again() {
        use ContainerKind::{App, Init};
        let with = |options: &str| KubeletConfig {
            cpu_manager_policy_options: [(options.to_owned(), "true".to_owned())].into(),
            ..KubeletConfig::default()
        };
        let machine = Machine { threads_per_core: 2, ..machine() };
        let apart = |config: Option<&KubeletConfig>, containers: &[(ContainerKind, u64)]| {
            Unlisted { machine: &machine, config, state: None, managers: false }.apart(containers)
        };
        assert_eq!(apart(None, &[(Init, 3), (App, 1)]), 2, "one of each");
        assert_eq!(apart(None, &[(Init, 1), (App, 3), (App, 5)]), 1, "no more than it has");
        assert_eq!(apart(None, &[(Init, 4), (App, 2)]), 0, "whole cores");
        assert_eq!(apart(None, &[(Init, 3), (App, 3)]), 0, "the same CPUs");
        assert_eq!(apart(None, &[(App, 3), (App, 1)]), 0, "nothing ends");
        for option in ["prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"] {
            assert_eq!(apart(Some(&with(option)), &[(Init, 4), (App, 2)]), 4, "{option}");
        }
        assert_eq!(apart(Some(&with("full-pcpus-only")), &[(Init, 4), (App, 2)]), 0);
        let mut off = with("distribute-cpus-across-cores");
        off.cpu_manager_policy_options.values_mut().for_each(|value| *value = "false".to_owned());
        assert_eq!(apart(Some(&off), &[(Init, 4), (App, 2)]), 0);

        let unlisted = Unlisted { machine: &machine, config: None, state: None, managers: false };
        let requirements = Requirements { cpus: true, memory: true, ..Requirements::default() };
        let left = unlisted.surplus(&requirements, &zones(), &pod((3000, 2), (1000, 1)), &row("8", 1, 1));
        let left: Vec<String> = left.iter().map(ToString::to_string).collect();
        assert_eq!(left, ["ns/a: cpu 4 in every zone", "ns/a: memory 1073741824 in every zone"]);
    }

    #[test]
    fn what_the_others_use_again_is_not_left_over() {
        let strict = config("single-numa-node", "container");
        let left = surplus(Some(&strict), false, &pod((2000, 1), (3000, 1)), &row("8-10", 1, 1));
        assert!(left.is_empty(), "{left:?}");
    }
}
