//! Random machines, pods and checkpoints.

use proptest::prelude::*;

use super::*;

fn any_nodes() -> impl Strategy<Value = IdSet> {
    proptest::collection::vec(0_u16..4, 0..3).prop_map(|ids| ids.into_iter().collect())
}

fn any_devices() -> impl Strategy<Value = Vec<DeviceGroup>> {
    let group = ("[ab]", proptest::collection::vec("[a-f]", 0..4), any_nodes())
        .prop_map(|(resource, ids, nodes)| DeviceGroup { resource, ids, nodes });
    proptest::collection::vec(group, 0..6)
}

fn any_memory() -> impl Strategy<Value = Vec<MemoryBlock>> {
    let resource = prop_oneof![Just("memory".to_owned()), Just("hugepages-2Mi".to_owned())];
    let bytes = prop_oneof![0..9 * GIB, Just(u64::MAX)];
    let block = (resource, bytes, any_nodes()).prop_map(|(resource, bytes, nodes)| MemoryBlock {
        resource,
        bytes,
        nodes,
    });
    proptest::collection::vec(block, 0..5)
}

pub(super) fn any_cpus() -> impl Strategy<Value = IdSet> {
    proptest::collection::vec(0_u16..12, 0..10).prop_map(|ids| ids.into_iter().collect())
}

prop_compose! {
    pub(super) fn any_pod()(cpus in any_cpus(), memory in any_memory(), devices in any_devices(), name in "[a-c]") -> PodUsage {
        pod(&name, ContainerUsage { cpus, memory, devices, ..Default::default() })
    }
}

fn any_config() -> impl Strategy<Value = Option<KubeletConfig>> {
    let policies =
        (prop_oneof!["none", "static"], prop_oneof!["None", "Static"], any_cpus(), 0..20_u64, 0..9 * GIB);
    let config =
        policies.prop_map(|(cpu, memory, reserved_system_cpus, reserved_cpu_count, bytes)| KubeletConfig {
            cpu_manager_policy: cpu,
            memory_manager_policy: memory,
            reserved_system_cpus,
            reserved_cpu_count,
            reserved_memory: [(1, [("memory".to_owned(), bytes)].into())].into(),
            ..Default::default()
        });
    proptest::option::of(config)
}

prop_compose! {
    pub(super) fn any_case()(
        config in any_config(),
        cpus in any_cpus(),
        memory in any_memory(),
        devices in any_devices(),
        pods in proptest::collection::vec(any_pod(), 0..5),
        remembered in proptest::collection::btree_set("[a-d]", 0..3),
        fillers: bool,
    ) -> Case {
        Case {
            allocatable: Allocatable { cpus, memory, devices },
            usage: Usage { pods },
            config,
            remembered,
            rules: ZoneRules { fillers, ..Default::default() },
            ..Default::default()
        }
    }
}

/// Nodes with and without CPUs, memory, pages and distances, at ids that the scheduler can and cannot handle.
pub(super) fn any_machine() -> impl Strategy<Value = Machine> {
    let ids = proptest::sample::subsequence(vec![0, 1, 2, 5, 62, 63, 64, 1000], 1..=5);
    let node = (any::<bool>(), 0..9_u64, 0..300_u64, 0..3_u64, any::<bool>());
    (ids, proptest::collection::vec(node, 5), any::<bool>()).prop_map(|(ids, shapes, distances)| {
        let costs =
            |from: Id| ids.iter().map(move |to| (*to, if *to == from { 10 } else { 20 + u32::from(*to) }));
        let node = |(id, (cpus, gib, small, large, unread)): (&Id, _)| NumaNode {
            id: *id,
            cpus: if cpus { (id * 4..id * 4 + 4).collect() } else { IdSet::new() },
            memory: gib * GIB,
            hugepages: if gib == 0 { BTreeMap::new() } else { [(2 * MIB, small), (GIB, large)].into() },
            hugepages_unread: unread && gib > 0,
            distances: if distances { costs(*id).collect() } else { BTreeMap::new() },
        };
        let nodes: Vec<NumaNode> = ids.iter().zip(shapes).map(node).collect();
        Machine { nodes, numa: true, ..Machine::default() }
    })
}

/// One pod, as the kubelet's managers know it.
#[derive(Clone, Debug)]
pub(super) struct Member {
    uid: String,
    pub(super) pod: PodUsage,
    /// Everything that its containers were allocated, regular init containers included, by name.
    entry: Vec<ContainerUsage>,
}

/// The state of one kubelet: no CPU and no device is allocated to two pods, and the List and the checkpoints
/// agree on the containers that both name.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) members: Vec<Member>,
    pub(super) case: Case,
}

impl World {
    /// Returns what is available if only the pods of `mask` are listed.
    pub(super) fn listed(&self, mask: u8) -> BTreeMap<(Id, String), u64> {
        let mut case = self.case.clone();
        let members = self.members.iter().enumerate().filter(|(at, _)| mask & 1 << at != 0);
        case.usage.pods = members.map(|(_, member)| member.pod.clone()).collect();
        available(&case.account())
    }
}

/// A container's part of its pod's CPUs, memory and devices.
type Share = (u8, Vec<MemoryBlock>, u8);

fn any_share(nodes: impl Strategy<Value = IdSet> + 'static) -> impl Strategy<Value = Share> {
    let resource = prop_oneof![4 => Just("memory".to_owned()), 1 => Just("hugepages-2Mi".to_owned())];
    // Few different amounts: pods with equal memory are the hard case.
    let block = (resource, prop_oneof![Just(GIB / 4), Just(GIB / 2)], nodes);
    let block = block.prop_map(|(resource, bytes, nodes)| MemoryBlock { resource, bytes, nodes });
    (any::<u8>(), proptest::collection::vec(block, 0..3), any::<u8>())
}

pub(super) fn any_world() -> impl Strategy<Value = World> {
    world(proptest::sample::select(vec!["0", "1", "0-1"]).prop_map(ids).boxed())
}

pub(super) fn world(nodes: BoxedStrategy<IdSet>) -> impl Strategy<Value = World> {
    let owners = |count| proptest::collection::vec(0..6_usize, count);
    let container = any_share(nodes);
    let member = (any::<u16>(), proptest::collection::vec(container, 3), 0..8_u8, any::<[bool; 2]>());
    let members = proptest::collection::vec(member, 4);
    (owners(8), owners(4), members, 0..5_u64).prop_map(|(cpus, nics, members, split)| {
        let mut checkpoints = Checkpoints::default();
        let mut all = Vec::new();
        for (at, (number, shares, listed, [has_entry, is_known])) in members.into_iter().enumerate() {
            let member = member_of(at, number, &shares, listed, [&cpus, &nics]);
            if has_entry {
                let blocks = member.entry.iter().flat_map(|container| &container.memory);
                blocks.for_each(|block| reserve(&mut checkpoints.reserved, block, split));
                checkpoints.pods.insert(member.uid.clone(), member.entry.clone());
            }
            if is_known {
                // Known under its own name, or under that of a pod that is no longer listed.
                let name = if number % 2 == 0 { member.pod.name.clone() } else { format!("gone-{at}") };
                checkpoints.names.insert(member.uid.clone(), ("ns".to_owned(), name));
            }
            all.push(member);
        }
        let case = case_with(vec![], checkpoints);
        let nic = |at: usize, nodes| devices("example.com/nic", &[["a", "b", "c", "d"][at]], nodes);
        let devices = vec![nic(0, "0"), nic(1, "0"), nic(2, "1"), nic(3, "1")];
        let allocatable = Allocatable { devices, ..case.allocatable };
        World { members: all, case: Case { allocatable, ..case } }
    })
}

/// Adds a block to what its nodes have in use: `quarters` of it on the lowest node, the rest on the highest.
fn reserve(reserved: &mut BTreeMap<Id, BTreeMap<String, u64>>, block: &MemoryBlock, quarters: u64) {
    let (Some(lowest), Some(highest)) = (block.nodes.iter().next(), block.nodes.last()) else { return };
    let low = block.bytes / 4 * quarters;
    for (node, bytes) in [(lowest, low), (highest, block.bytes - low)] {
        *reserved.entry(node).or_default().entry(block.resource.clone()).or_default() += bytes;
    }
}

/// Returns pod number `at`: the CPUs and devices it owns are distributed to its containers as in `shares`;
/// the bits of `listed` select the containers that the List names.
fn member_of(at: usize, number: u16, shares: &[Share], listed: u8, owners: [&[usize]; 2]) -> Member {
    let own = |owners: &[usize], mask: u8| -> Vec<usize> {
        let mine = owners.iter().enumerate().filter(|(_, owner)| **owner == at).map(|(thing, _)| thing);
        mine.filter(|thing| mask & 1 << thing != 0).collect()
    };
    let mut containers = Vec::new();
    for (name, (cpu_mask, memory, nic_mask)) in ["init", "main", "side"].into_iter().zip(shares) {
        let nics = own(owners[1], *nic_mask).into_iter();
        containers.push(ContainerUsage {
            name: name.into(),
            cpus: own(owners[0], *cpu_mask).into_iter().map(|cpu| Id::try_from(cpu).unwrap()).collect(),
            memory: memory.clone(),
            devices: nics
                .map(|nic| {
                    let name = ["a", "b", "c", "d"][nic];
                    devices("example.com/nic", &[name], if nic < 2 { "0" } else { "1" })
                })
                .collect(),
            ..ContainerUsage::default()
        });
    }
    let named = containers.iter().enumerate().filter(|(index, _)| listed & 1 << index != 0);
    let pod = PodUsage {
        namespace: "ns".into(),
        name: format!("pod-{at}"),
        containers: named.map(|(_, container)| container.clone()).collect(),
        ..PodUsage::default()
    };
    // The checkpoints do not name containers without allocated resources.
    containers.retain(|c| !c.cpus.is_empty() || !c.memory.is_empty() || !c.devices.is_empty());
    Member { uid: format!("{number}-{at}"), pod, entry: containers }
}
