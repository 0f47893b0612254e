//! What the kubelet does, by its rules; `make admission` compares the model with real kubelets.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::machine::{CpuLocation, Id};
use crate::pod::ContainerKind::{self, App, Init, Sidecar};

const GIB: u64 = 1 << 30;

/// Two sockets of one node each, with four cores of two threads: CPUs 0 to 7 and 8 to 15. CPU 0 is reserved.
fn node(policy: TopologyPolicy, scope: Scope) -> Node {
    node_with(policy, scope, CpuOptions::default(), 2)
}

pub(crate) fn node_with(policy: TopologyPolicy, scope: Scope, options: CpuOptions, nodes: Id) -> Node {
    let location =
        |cpu: Id| CpuLocation { node: cpu / 8, socket: cpu / 8, core: cpu / 2 * 2, cache: cpu / 4 };
    let topology: CpuTopology = (0..nodes * 8).map(|cpu| (cpu, location(cpu))).collect();
    let memory = |id: Id| {
        let kinds = [
            ("memory".to_owned(), MemoryKind { allocatable: 8 * GIB, allocated: 0 }),
            ("hugepages-2Mi".to_owned(), MemoryKind { allocatable: GIB, allocated: 0 }),
        ];
        (id, MemoryNode { blocks: 0, group: NodeSet::one(id), kinds: kinds.into() })
    };
    let devices = [("a", vec![0]), ("b", vec![1]), ("c", vec![1])]
        .map(|(id, nodes)| (id.to_owned(), Device { nodes: nodes.into_iter().collect(), healthy: true }));
    let nic = Resource { devices: Arc::new(devices.into()), registered: true, ..Resource::default() };
    Node {
        settings: Settings { policy, scope, device_hints_skip_other_nodes: true, ..Settings::default() },
        nodes: (0..nodes).collect(),
        cpus: Some(Cpus::new(topology, "0".parse().unwrap(), options)),
        memory: Some(Memory::new((0..nodes).map(memory).collect())),
        devices: Devices::new([("nic".to_owned(), nic)].into()),
        ..Node::default()
    }
}

pub(crate) fn container(kind: ContainerKind, cpus: u64, gib: u64, nics: u64) -> ContainerRequest {
    ContainerRequest {
        name: format!("{kind:?}-{cpus}").to_lowercase(),
        kind,
        cpu_milli: cpus * 1000,
        memory: [("memory".to_owned(), gib * GIB)].into(),
        devices: if nics > 0 { [("nic".to_owned(), nics)].into() } else { BTreeMap::new() },
        guaranteed: true,
    }
}

pub(crate) fn pod(containers: &[ContainerRequest]) -> PodRequest {
    PodRequest { guaranteed: true, pod_level: None, containers: containers.to_vec() }
}

fn app(cpus: u64, gib: u64, nics: u64) -> PodRequest {
    pod(&[container(App, cpus, gib, nics)])
}

/// Container, CPUs and memory nodes of each placement, or the refusal's reason, container and resources.
fn told(outcome: Result<Vec<Placement>, Refusal>) -> String {
    match outcome {
        Ok(placements) => {
            let one = |placement: &Placement| {
                let memory = placement.memory.as_ref().map(|blocks| blocks.nodes.iter().collect::<IdSet>());
                let memory = memory.map(|nodes| format!(" memory {nodes}")).unwrap_or_default();
                let devices = placement
                    .devices
                    .values()
                    .flat_map(|choice| choice.chosen.clone())
                    .collect::<Vec<_>>()
                    .join(",");
                let devices = if devices.is_empty() { devices } else { format!(" nics {devices}") };
                format!("{} {}{memory}{devices}", placement.container, placement.cpus)
            };
            placements.iter().map(one).collect::<Vec<_>>().join("; ")
        }
        Err(refusal) => {
            let Refusal { reason, container, resources, .. } = refusal;
            format!("{reason} {container} {}", resources.join(","))
        }
    }
}

#[test]
fn everything_is_on_one_node_with_single_numa_node() {
    let mut machine = node(TopologyPolicy::SingleNumaNode, Scope::Container);
    assert_eq!(
        told(machine.admit(&app(3, 2, 0))),
        "app-3 1-3 memory 0",
        "the rest of the reserved core first"
    );
    assert_eq!(told(machine.admit(&app(5, 2, 0))), "app-5 8-12 memory 1");
    assert_eq!(told(machine.admit(&app(5, 2, 0))), "TopologyAffinityError app-5 cpu", "4 and 3 are free");
    assert_eq!(
        told(machine.clone().admit(&app(1, 7, 0))),
        "UnexpectedAdmissionError app-1 ",
        "memory that no set of nodes has is only noticed when it is allocated"
    );
    assert_eq!(told(machine.admit(&app(1, 1, 2))), "app-1 13 memory 1 nics b,c");
    assert_eq!(told(machine.admit(&app(4, 1, 1))), "app-4 4-7 memory 0 nics a");
    assert_eq!(told(machine.admit(&app(1, 3, 1))), "TopologyAffinityError app-1 nic");
}

#[test]
fn resources_that_each_fit_on_some_node_may_not_fit_together() {
    let mut machine = node(TopologyPolicy::SingleNumaNode, Scope::Container);
    assert_eq!(told(machine.admit(&app(6, 1, 0))), "app-6 2-7 memory 0");
    assert_eq!(told(machine.admit(&app(1, 6, 0))), "app-1 1 memory 0");
    assert_eq!(told(machine.admit(&app(2, 7, 0))), "app-2 8-9 memory 1");
    // Node 0 has a device and no CPU, node 1 has CPUs and devices, and neither has 2 GiB.
    assert_eq!(told(machine.admit(&app(1, 2, 1))), "UnexpectedAdmissionError app-1 ");
    let mut machine = node(TopologyPolicy::SingleNumaNode, Scope::Container);
    assert_eq!(told(machine.admit(&app(7, 1, 0))), "app-7 1-7 memory 0");
    assert_eq!(told(machine.admit(&app(2, 6, 2))), "app-2 8-9 memory 1 nics b,c");
    assert_eq!(told(machine.admit(&app(2, 1, 1))), "TopologyAffinityError app-2 nic,cpu,memory");
    let mut machine = node(TopologyPolicy::SingleNumaNode, Scope::Container);
    let two = pod(&[container(App, 8, 1, 0), container(App, 6, 1, 0), container(App, 2, 1, 0)]);
    assert_eq!(
        told(machine.admit(&two)),
        "TopologyAffinityError app-2 cpu",
        "the containers before it have taken too much"
    );
}

#[test]
fn restricted_wants_as_few_nodes_as_each_resource_needs() {
    let mut machine = node(TopologyPolicy::Restricted, Scope::Container);
    assert_eq!(
        told(machine.admit(&app(9, 1, 0))),
        "TopologyAffinityError app-9 cpu,memory",
        "the CPUs need two nodes and the memory one"
    );
    assert_eq!(told(machine.admit(&app(9, 9, 0))), "app-9 1,8-15 memory 0-1");
}

#[test]
fn the_memory_managers_groups_take_no_other_blocks() {
    let mut machine = node(TopologyPolicy::BestEffort, Scope::Container);
    assert_eq!(told(machine.admit(&app(2, 10, 0))), "app-2 2-3 memory 0-1");
    assert_eq!(told(machine.admit(&app(1, 1, 0))), "app-1 1 memory 0-1", "as the group");
    let mut single =
        Node { settings: node(TopologyPolicy::SingleNumaNode, Scope::Container).settings, ..machine.clone() };
    assert_eq!(told(single.admit(&app(1, 1, 0))), "TopologyAffinityError app-1 memory");
    let memory = machine.memory.as_mut().unwrap();
    for bytes in [10 * GIB, GIB] {
        memory.release([0, 1].into_iter().collect(), "memory", bytes);
    }
    assert_eq!(told(machine.admit(&app(1, 1, 0))), "app-1 4 memory 0");
}

#[test]
fn later_containers_reuse_what_init_containers_had() {
    let of = |containers: &[ContainerRequest]| {
        told(node(TopologyPolicy::SingleNumaNode, Scope::Container).admit(&pod(containers)))
    };
    assert_eq!(
        of(&[container(Init, 4, 2, 0), container(App, 2, 1, 0)]),
        "init-4 2-5 memory 0; app-2 2-3 memory 0"
    );
    assert_eq!(
        of(&[container(Sidecar, 4, 2, 0), container(App, 2, 1, 0)]),
        "sidecar-4 2-5 memory 0; app-2 6-7 memory 0"
    );
}

#[test]
fn a_pod_is_aligned_as_a_whole_with_the_scope_pod() {
    let two = pod(&[container(App, 5, 1, 0), container(App, 4, 1, 0)]);
    let mut machine = node(TopologyPolicy::SingleNumaNode, Scope::Pod);
    assert_eq!(told(machine.admit(&two)), "TopologyAffinityError  cpu");
    let smaller = pod(&[container(Init, 8, 1, 0), container(App, 4, 1, 0), container(App, 3, 1, 0)]);
    assert_eq!(
        told(machine.admit(&smaller)),
        "init-8 8-15 memory 1; app-4 8-11 memory 1; app-3 12-14 memory 1"
    );
}

#[test]
fn whole_cores_only() {
    let options = CpuOptions { full_cores_only: true, ..CpuOptions::default() };
    let mut machine = node_with(TopologyPolicy::SingleNumaNode, Scope::Container, options, 2);
    assert_eq!(told(machine.admit(&app(3, 1, 0))), "SMTAlignmentError app-3 cpu");
    assert_eq!(told(machine.admit(&app(6, 1, 0))), "app-6 2-7 memory 0");
    assert_eq!(told(machine.admit(&app(8, 1, 0))), "app-8 8-15 memory 1");
    let mut machine = node_with(TopologyPolicy::None, Scope::Container, options, 2);
    assert_eq!(
        machine.admit(&app(16, 1, 0)).map_err(|refusal| refusal.message),
        Err("SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 14, requested CPUs = 16, CPUs \
             per core = 2"
            .to_owned())
    );
}

#[test]
fn cpus_are_spread_evenly_over_as_few_nodes_as_possible() {
    let options = CpuOptions { distribute_across_nodes: true, ..CpuOptions::default() };
    let mut machine = node_with(TopologyPolicy::None, Scope::Container, options, 3);
    let placed = machine.admit(&app(10, 1, 0)).unwrap();
    let counts = machine.cpus.as_ref().unwrap().topology().count_by_node(&placed[0].cpus);
    assert_eq!(counts, [(1, 5), (2, 5)].into(), "what is left is most equal then");
}

#[test]
fn what_an_object_does_not_tell_is_a_guess() {
    let attributes = [
        (crate::nrt::POLICY, "restricted"),
        (crate::nrt::SCOPE, "container"),
        ("cpuManagerPolicy", "static"),
        ("memoryManagerPolicy", "Static"),
    ];
    let attributes: BTreeMap<String, String> =
        attributes.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let amounts = crate::nrt::Amounts { capacity: 8, allocatable: 8, available: 8 };
    let resources = ["cpu", "memory"].map(|name| (name.to_owned(), amounts));
    let zones = [crate::topology::Zone { id: 0, resources: resources.into(), ..Default::default() }];
    let machine = node(TopologyPolicy::Restricted, Scope::Container);
    assert_eq!(
        guesses(&machine, &zones, &attributes, &app(1, 1, 1)).into_iter().collect::<Vec<_>>(),
        [Guess::MemoryGroups, Guess::Devices]
    );
    let single = node(TopologyPolicy::SingleNumaNode, Scope::Container);
    assert!(guesses(&single, &zones, &attributes, &app(1, 1, 1)).is_empty());
    assert!(guesses(&single, &zones, &BTreeMap::new(), &app(1, 1, 1)).contains(&Guess::Policies));
}

/// Two zones with CPUs and 8 GiB of each kind of memory: what is available of them, and the zone's group.
fn zones_with(zones: [([u64; 2], Option<&str>); 2]) -> Vec<crate::topology::Zone> {
    let zone = |(id, ([memory, pages], group)): (Id, ([u64; 2], Option<&str>))| {
        let amounts = |(unit, free)| crate::nrt::Amounts {
            capacity: 8 * unit,
            allocatable: 8 * unit,
            available: free * unit,
        };
        let resources = [("cpu", (1, 8)), ("memory", (GIB, memory)), ("hugepages-2Mi", (GIB, pages))];
        crate::topology::Zone {
            id,
            resources: resources.map(|(name, free)| (name.to_owned(), amounts(free))).into(),
            attributes: group.map(|group| ("memoryGroup".to_owned(), group.to_owned())).into_iter().collect(),
            ..Default::default()
        }
    };
    (0..).zip(zones).map(zone).collect()
}

/// Returns whether pods that request these GiB of memory and huge pages are admitted, and whether that is a guess
/// because of groups.
fn by_zones(policy: &str, zones: &[crate::topology::Zone], gib: [u64; 2]) -> (bool, bool) {
    let attributes =
        [(crate::nrt::POLICY, policy), (crate::nrt::SCOPE, "container"), ("cpuManagerPolicy", "static")];
    let attributes: BTreeMap<String, String> = attributes
        .into_iter()
        .chain([("memoryManagerPolicy", "Static")])
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let mut of_pod = ContainerRequest { cpu_milli: 500, ..container(App, 1, gib[0], 0) };
    of_pod.memory.extend((gib[1] > 0).then(|| ("hugepages-2Mi".to_owned(), gib[1] * GIB)));
    let of_pod = pod(&[of_pod]);
    let mut node = ZoneReader::default().node(zones, &attributes, &NodeAmounts::new(), 36);
    let guesses = guesses(&node, zones, &attributes, &of_pod);
    (node.admit(&of_pod).is_ok(), guesses.contains(&Guess::MemoryGroups))
}

#[test]
fn groups_of_zones_decide_which_pods_fit() {
    let (yes, no) = ((true, false), (false, false));
    let wide = [([0, 8], Some("0-1")), ([4, 8], Some("0-1"))];
    let apart = [([4, 8], Some("0")), ([8, 8], Some("1"))];
    for (policy, zones, bytes, expected) in [
        ("restricted", wide, [1, 0], no),
        ("best-effort", wide, [1, 0], yes),
        ("none", wide, [1, 0], yes),
        ("restricted", wide, [4, 9], yes),
        ("restricted", wide, [5, 9], no),
        ("restricted", apart, [1, 0], yes),
        ("restricted", apart, [9, 0], no),
        ("none", apart, [9, 0], no),
    ] {
        assert_eq!(by_zones(policy, &zones_with(zones), bytes), expected, "{policy} {zones:?} {bytes:?}");
    }
    let unknown = [([4, 8], None), ([8, 8], None)];
    assert_eq!(by_zones("restricted", &zones_with(unknown), [1, 0]), (true, true));
    assert_eq!(
        by_zones("restricted", &zones_with(unknown), [9, 0]),
        (true, true),
        "all of it may be of one group"
    );
    assert_eq!(by_zones("single-numa-node", &zones_with(unknown), [1, 0]), yes, "available tells all");
    for odd in ["", "1", "0-70000", "x"] {
        let odd = [([4, 8], Some(odd)), ([8, 8], Some("1"))];
        assert_eq!(by_zones("restricted", &zones_with(odd), [1, 0]), (true, true), "{odd:?}");
    }
}

#[test]
fn a_group_ends_when_all_of_its_memory_is_released() {
    let zones = zones_with([([0, 8], Some("0-1")), ([4, 8], Some("0-1"))]);
    let attributes = [("memoryManagerPolicy".to_owned(), "Static".to_owned())].into();
    let mut node = ZoneReader::default().node(&zones, &attributes, &NodeAmounts::new(), 36);
    let memory = node.memory.as_mut().unwrap();
    let both: NodeSet = [0, 1].into_iter().collect();
    let groups = |memory: &Memory| memory.nodes().values().map(|node| node.group.len()).collect::<Vec<_>>();
    memory.release(both, "memory", 3 * GIB);
    assert_eq!(groups(memory), [2, 2]);
    memory.release(both, "memory", 9 * GIB);
    assert_eq!(groups(memory), [1, 1]);
}
