//! The accounting rules of DESIGN section 3, one by one, and their properties.

#[cfg(feature = "sim")]
mod described;
mod edges;
mod joined;
mod properties;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::kubelet::{ContainerUsage, DeviceGroup, MemoryBlock, PodUsage};
use crate::machine::NumaNode;
use crate::pattern::{Pattern, PodPattern};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

fn ids(text: &str) -> IdSet {
    text.parse().unwrap()
}

/// Two nodes with four CPUs and 8 GiB each, of which 512 MiB are 2 MiB pages.
fn two_nodes() -> Machine {
    let node = |id: Id, cpus: &str| NumaNode {
        id,
        cpus: ids(cpus),
        memory: 8 * GIB,
        hugepages: [(2 * MIB, 256)].into(),
        hugepages_unread: false,
        distances: [(0, if id == 0 { 10 } else { 21 }), (1, if id == 1 { 10 } else { 21 })].into(),
    };
    Machine { nodes: vec![node(0, "0-3"), node(1, "4-7")], numa: true, ..Machine::default() }
}

fn block(resource: &str, bytes: u64, nodes: &str) -> MemoryBlock {
    MemoryBlock { resource: resource.into(), bytes, nodes: ids(nodes) }
}

fn devices(resource: &str, names: &[&str], nodes: &str) -> DeviceGroup {
    DeviceGroup {
        resource: resource.into(),
        ids: names.iter().map(|name| (*name).to_owned()).collect(),
        nodes: ids(nodes),
    }
}

fn pod(name: &str, container: ContainerUsage) -> PodUsage {
    PodUsage { namespace: "ns".into(), name: name.into(), containers: vec![container], ..PodUsage::default() }
}

#[derive(Clone, Debug)]
struct Case {
    machine: Machine,
    allocatable: Allocatable,
    usage: Usage,
    terminal: BTreeSet<(String, String)>,
    state: Option<ManagerState>,
    config: Option<KubeletConfig>,
    known: BTreeSet<String>,
    rules: Rules,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            machine: two_nodes(),
            allocatable: Allocatable::default(),
            usage: Usage::default(),
            terminal: BTreeSet::new(),
            state: None,
            config: None,
            known: BTreeSet::new(),
            rules: Rules { fillers: true, ..Default::default() },
        }
    }
}

impl Case {
    fn account(&self) -> Topology {
        account(&Inputs {
            machine: &self.machine,
            allocatable: &self.allocatable,
            usage: &self.usage,
            terminal: &self.terminal,
            state: self.state.as_ref(),
            config: self.config.as_ref(),
            known: &self.known,
            rules: &self.rules,
        })
    }

    /// `zone: capacity/allocatable/available` of one resource.
    fn of(&self, resource: &str) -> Vec<(Id, [u64; 3])> {
        let zones = self.account().zones;
        let amounts = |zone: &Zone| zone.resources.get(resource).copied();
        zones
            .iter()
            .filter_map(|zone| amounts(zone).map(|a| (zone.id, [a.capacity, a.allocatable, a.available])))
            .collect()
    }
}

#[test]
fn exclusive_cpus_leave_the_zone_they_are_on() {
    let usage = Usage {
        pods: vec![
            pod("a", ContainerUsage { cpus: ids("1-2"), ..Default::default() }),
            pod("b", ContainerUsage { cpus: ids("5"), ..Default::default() }),
            pod("shared", ContainerUsage::default()),
        ],
    };
    let case = Case {
        allocatable: Allocatable { cpus: ids("1-3,5-7"), ..Default::default() },
        usage,
        ..Default::default()
    };
    assert_eq!(case.of("cpu"), [(0, [4, 3, 1]), (1, [4, 3, 2])]);
}

#[test]
fn pod_level_cpus_overlap_those_of_the_containers() {
    let mut both = pod("a", ContainerUsage { cpus: ids("1"), ..Default::default() });
    both.cpus = ids("1-2");
    let case = Case {
        allocatable: Allocatable { cpus: ids("1-3,5-7"), ..Default::default() },
        usage: Usage { pods: vec![both] },
        ..Default::default()
    };
    assert_eq!(case.of("cpu"), [(0, [4, 3, 1]), (1, [4, 3, 3])]);
}

#[test]
fn without_a_cpu_manager_every_online_cpu_but_the_reserved_is_offered() {
    let mut case = Case::default();
    assert_eq!(case.of("cpu"), [(0, [4, 4, 4]), (1, [4, 4, 4])]);
    case.config = Some(KubeletConfig { reserved_system_cpus: ids("0,4-5"), ..Default::default() });
    assert_eq!(case.of("cpu"), [(0, [4, 3, 3]), (1, [4, 2, 2])]);
    case.config = Some(KubeletConfig { reserved_cpu_count: 5, ..Default::default() });
    assert_eq!(case.of("cpu"), [(0, [4, 0, 0]), (1, [4, 3, 3])]);
}

#[test]
fn cpus_outside_the_zones_or_the_offer_never_underflow() {
    let case = Case {
        allocatable: Allocatable { cpus: ids("1,900"), ..Default::default() },
        usage: Usage { pods: vec![pod("a", ContainerUsage { cpus: ids("0-7,901"), ..Default::default() })] },
        ..Default::default()
    };
    assert_eq!(case.of("cpu"), [(0, [4, 1, 0]), (1, [4, 0, 0])]);
    assert_eq!(case.account().findings, [Finding::UnknownCpus("900-901".into())].into());
}

#[test]
fn memory_is_the_kubelets_block_less_what_pods_hold() {
    let case = Case {
        allocatable: Allocatable {
            memory: vec![
                block("memory", 7 * GIB, "0"),
                block("memory", 7 * GIB, "1"),
                block("hugepages-2Mi", 512 * MIB, "0"),
            ],
            ..Default::default()
        },
        usage: Usage {
            pods: vec![pod(
                "a",
                ContainerUsage {
                    memory: vec![block("memory", GIB, "1"), block("hugepages-2Mi", 64 * MIB, "0")],
                    ..Default::default()
                },
            )],
        },
        ..Default::default()
    };
    assert_eq!(case.of("memory"), [(0, [8 * GIB, 7 * GIB, 7 * GIB]), (1, [8 * GIB, 7 * GIB, 6 * GIB])]);
    // The kubelet leaves out entries that are 0: node 1 offers no huge pages although it has some.
    assert_eq!(case.of("hugepages-2Mi"), [(0, [512 * MIB, 512 * MIB, 448 * MIB]), (1, [512 * MIB, 0, 0])]);
}

#[test]
fn without_a_memory_manager_memory_is_derived() {
    let reserved = [(0, [("memory".to_owned(), GIB), ("hugepages-2Mi".to_owned(), 2 * MIB)].into())].into();
    let case = Case {
        config: Some(KubeletConfig { reserved_memory: reserved, ..Default::default() }),
        ..Default::default()
    };
    let free = 8 * GIB - 512 * MIB;
    assert_eq!(case.of("memory"), [(0, [8 * GIB, free - GIB, free - GIB]), (1, [8 * GIB, free, free])]);
    let pages = 512 * MIB;
    assert_eq!(
        case.of("hugepages-2Mi"),
        [(0, [pages, pages - 2 * MIB, pages - 2 * MIB]), (1, [pages, pages, pages])]
    );
}

#[test]
fn a_static_policy_that_offers_nothing_yet_promises_nothing() {
    let config = KubeletConfig {
        cpu_manager_policy: "static".into(),
        memory_manager_policy: "Static".into(),
        ..Default::default()
    };
    let case = Case { config: Some(config), ..Default::default() };
    assert_eq!(case.of("cpu"), [(0, [4, 0, 0]), (1, [4, 0, 0])]);
    assert_eq!(case.of("memory"), [(0, [8 * GIB, 0, 0]), (1, [8 * GIB, 0, 0])]);
    assert_eq!(case.of("hugepages-2Mi"), [(0, [512 * MIB, 0, 0]), (1, [512 * MIB, 0, 0])]);
}

#[test]
fn memory_that_huge_pages_may_have_taken_is_not_promised() {
    let mut case = Case::default();
    case.machine.nodes[1].hugepages_unread = true;
    let free = 8 * GIB - 512 * MIB;
    assert_eq!(case.of("memory"), [(0, [8 * GIB, free, free]), (1, [8 * GIB, 0, 0])]);
}

#[test]
fn a_block_on_several_nodes_is_split_in_ascending_order() {
    let held = |memory| Usage { pods: vec![pod("a", ContainerUsage { memory, ..Default::default() })] };
    let mut case = Case {
        allocatable: Allocatable {
            memory: vec![block("memory", 4 * GIB, "0"), block("memory", 4 * GIB, "1")],
            ..Default::default()
        },
        usage: held(vec![block("memory", 5 * GIB, "0-1"), block("memory", GIB, "0")]),
        ..Default::default()
    };
    assert_eq!(case.of("memory"), [(0, [8 * GIB, 4 * GIB, 0]), (1, [8 * GIB, 4 * GIB, 2 * GIB])]);
    case.usage = held(vec![block("memory", 9 * GIB, "0-1")]);
    assert_eq!(case.of("memory"), [(0, [8 * GIB, 4 * GIB, 0]), (1, [8 * GIB, 4 * GIB, 0])]);
    let finding = Finding::OverusedMemory { nodes: ids("0-1"), resource: "memory".into() };
    assert_eq!(case.account().findings, [finding].into());
}

/// Two nodes that offer all CPUs and 4 GiB each, with these pods and these checkpoints.
fn with_books(pods: Vec<PodUsage>, state: ManagerState) -> Case {
    Case {
        allocatable: Allocatable {
            cpus: ids("0-7"),
            memory: vec![block("memory", 4 * GIB, "0"), block("memory", 4 * GIB, "1")],
            devices: vec![devices("example.com/nic", &["a", "b"], "0")],
        },
        usage: Usage { pods },
        state: Some(state),
        ..Default::default()
    }
}

fn container(name: &str, cpus: &str, memory: Vec<MemoryBlock>) -> ContainerUsage {
    ContainerUsage { name: name.into(), cpus: ids(cpus), memory, ..Default::default() }
}

/// The name of a pod with this UID that was listed before and no longer is.
fn gone(uid: &str) -> BTreeMap<String, (String, String)> {
    [(uid.to_owned(), ("ns".to_owned(), "gone".to_owned()))].into()
}

fn books(pods: &[(&str, &[ContainerUsage])]) -> ManagerState {
    let pods = pods.iter().map(|(uid, containers)| ((*uid).to_owned(), containers.to_vec()));
    ManagerState { pods: pods.collect(), ..Default::default() }
}

#[test]
fn the_books_decide_the_split_of_a_block_and_the_list_its_total() {
    let held = |memory| pod("a", container("main", "", memory));
    let given = |first: u64, second: u64| ManagerState {
        reserved: [(0, first), (1, second)]
            .map(|(node, bytes)| (node, [("memory".to_owned(), bytes)].into()))
            .into(),
        ..Default::default()
    };
    let of = |pods: Vec<PodUsage>, state| {
        with_books(pods, state).of("memory").into_iter().map(|(_, [.., free])| free).collect::<Vec<_>>()
    };
    let five = || vec![held(vec![block("memory", 5 * GIB, "0-1")])];
    assert_eq!(of(five(), given(2 * GIB, 3 * GIB)), [2 * GIB, GIB]);
    assert_eq!(
        of(five(), given(GIB, 3 * GIB)),
        [2 * GIB, GIB],
        "the books are older: the rest as without them"
    );
    assert_eq!(
        of(five(), given(4 * GIB, 4 * GIB)),
        [3 * GIB, 0],
        "the books are of an ended pod too, which gives back on the lowest node first"
    );
    assert_eq!(of(five(), ManagerState::default()), [0, 3 * GIB], "the books do not say");
    let beside = || vec![held(vec![block("memory", 2 * GIB, "0-1"), block("memory", GIB, "0")])];
    assert_eq!(
        of(beside(), given(2 * GIB, GIB)),
        [2 * GIB, 3 * GIB],
        "a block of one node has its part already"
    );
}

#[test]
fn what_an_init_container_has_left_over_stays_with_its_pod() {
    let listed = || pod("a", container("main", "1-2", vec![block("memory", GIB, "0")]));
    let nic = ContainerUsage {
        devices: vec![devices("example.com/nic", &["a"], "0")],
        ..container("init", "1-3", vec![block("memory", GIB, "0")])
    };
    let main = || container("main", "1-2", vec![block("memory", GIB, "0")]);
    let case = with_books(vec![listed()], books(&[("u", &[nic, main()])]));
    assert_eq!(case.of("cpu"), [(0, [4, 4, 1]), (1, [4, 4, 4])]);
    assert_eq!(case.of("memory")[0], (0, [8 * GIB, 4 * GIB, 2 * GIB]));
    assert_eq!(case.of("example.com/nic")[0], (0, [2, 2, 1]));
    // The pod's CPUs differ from this entry's, so the entry belongs to another pod, whether or not one was
    // seen before.
    let mut stale = books(&[("u", &[container("init", "4-7", vec![]), container("main", "5", vec![])])]);
    assert_eq!(with_books(vec![listed()], stale.clone()).of("cpu"), [(0, [4, 4, 2]), (1, [4, 4, 0])]);
    stale.names = gone("u");
    assert_eq!(with_books(vec![listed()], stale).of("cpu"), [(0, [4, 4, 2]), (1, [4, 4, 4])]);
}

#[test]
fn cpus_that_only_an_init_container_had_are_in_use_until_the_pod_is_seen_to_end() {
    let listed = || pod("a", container("main", "", vec![]));
    let mut state = books(&[("u", &[container("init", "4-5", vec![])])]);
    assert_eq!(with_books(vec![listed()], state.clone()).of("cpu"), [(0, [4, 4, 4]), (1, [4, 4, 2])]);
    state.names = gone("u");
    assert_eq!(with_books(vec![listed()], state).of("cpu"), [(0, [4, 4, 4]), (1, [4, 4, 4])]);
}

#[test]
fn what_an_excluded_pod_hides_is_not_taken_off_either() {
    let listed = pod("a", container("main", "1-2", vec![]));
    let state = books(&[("u", &[container("init", "1-3", vec![]), container("main", "1-2", vec![])])]);
    let mut case = with_books(vec![listed], state);
    let all = crate::pattern::Pattern::any;
    case.rules.exclude.pods =
        vec![crate::pattern::PodPattern { namespace: all(), name: "a".parse().unwrap() }];
    assert_eq!(case.of("cpu"), [(0, [4, 4, 4]), (1, [4, 4, 4])]);
}

#[test]
fn pods_that_hold_the_same_memory_are_told_apart_by_nothing_and_nothing_too_much_is_promised() {
    let listed = pod("a", container("main", "", vec![block("memory", GIB, "0")]));
    let main = || container("main", "", vec![block("memory", GIB, "0")]);
    let init = |bytes| container("init", "", vec![block("memory", bytes, "0")]);
    let other = container("main", "", vec![block("memory", 2 * GIB, "0")]);
    let state = books(&[
        ("1", &[init(GIB / 2), main()]),
        ("2", &[init(GIB), main()]),
        ("3", &[init(2 * GIB), other]),
    ]);
    let pods = [listed];
    let links = links(pods.iter(), &state);
    assert_eq!(links.alive.into_keys().collect::<Vec<_>>(), ["2"]);
    let case = with_books(pods.to_vec(), state);
    assert_eq!(case.of("memory")[0], (0, [8 * GIB, 4 * GIB, 2 * GIB]));
}

#[test]
fn pods_are_recognised_by_their_devices_too() {
    let nic = |name: &str, id: &str| ContainerUsage {
        devices: vec![devices("example.com/nic", &[id], "0")],
        ..container(name, "", vec![])
    };
    let listed = pod("a", nic("main", "a"));
    let case = with_books(vec![listed], books(&[("u", &[nic("init", "b"), nic("main", "a")])]));
    assert_eq!(case.of("example.com/nic")[0], (0, [2, 2, 0]));
}

#[test]
fn a_pod_that_has_ended_holds_nothing() {
    let held = container("main", "1-2", vec![block("memory", GIB, "0")]);
    let mut case = with_books(vec![pod("job", held.clone())], ManagerState::default());
    assert_eq!(case.of("cpu")[0], (0, [4, 4, 2]));
    case.terminal = [("ns".to_owned(), "other".to_owned())].into();
    assert_eq!(case.of("cpu")[0], (0, [4, 4, 2]));
    case.terminal = [("ns".to_owned(), "job".to_owned())].into();
    assert_eq!(case.of("cpu")[0], (0, [4, 4, 4]));
    assert_eq!(case.of("memory")[0], (0, [8 * GIB, 4 * GIB, 4 * GIB]));
}

#[test]
fn pod_level_memory_replaces_that_of_the_containers() {
    let mut both = pod("a", ContainerUsage { memory: vec![block("memory", GIB, "0")], ..Default::default() });
    both.memory = vec![block("memory", 2 * GIB, "0")];
    let case = Case {
        allocatable: Allocatable { memory: vec![block("memory", 4 * GIB, "0")], ..Default::default() },
        usage: Usage { pods: vec![both] },
        ..Default::default()
    };
    assert_eq!(case.of("memory")[0], (0, [8 * GIB, 4 * GIB, 2 * GIB]));
}

#[test]
fn memory_that_drifted_is_kept_and_an_underflow_is_clamped() {
    let offer = |bytes| Case {
        allocatable: Allocatable { memory: vec![block("memory", bytes, "0")], ..Default::default() },
        ..Default::default()
    };
    let drifted = 8 * GIB + 4096;
    assert_eq!(offer(drifted).of("memory")[0], (0, [drifted, drifted, drifted]));
    let underflow = offer(u64::MAX - 5);
    let free = 8 * GIB - 512 * MIB;
    assert_eq!(underflow.of("memory")[0], (0, [8 * GIB, free, free]));
    assert_eq!(underflow.account().findings.len(), 1);
}

#[test]
fn a_device_counts_in_each_of_its_zones_and_leaves_each_when_used() {
    let case = Case {
        allocatable: Allocatable {
            devices: vec![
                devices("example.com/nic", &["a"], "0"),
                devices("example.com/nic", &["both"], "0"),
                devices("example.com/nic", &["both"], "1"),
                devices("example.com/free", &["nowhere"], ""),
            ],
            ..Default::default()
        },
        usage: Usage {
            pods: vec![pod(
                "a",
                ContainerUsage {
                    devices: vec![devices("example.com/nic", &["both"], "1")],
                    ..Default::default()
                },
            )],
        },
        ..Default::default()
    };
    assert_eq!(case.of("example.com/nic"), [(0, [2, 2, 1]), (1, [1, 1, 0])]);
    assert_eq!(case.of("example.com/free"), [], "a device without topology belongs to no zone");
}

#[test]
fn an_unhealthy_device_in_use_is_capacity_but_not_allocatable() {
    let case = Case {
        allocatable: Allocatable {
            devices: vec![devices("example.com/nic", &["a"], "0")],
            ..Default::default()
        },
        usage: Usage {
            pods: vec![pod(
                "a",
                ContainerUsage {
                    devices: vec![
                        devices("example.com/nic", &["sick"], "0"),
                        devices("example.com/nic", &["far"], "7"),
                    ],
                    ..Default::default()
                },
            )],
        },
        ..Default::default()
    };
    assert_eq!(case.of("example.com/nic"), [(0, [2, 1, 1]), (1, [0, 0, 0])]);
    let finding = Finding::DevicesOnUnknownNodes { resource: "example.com/nic".into(), nodes: ids("7") };
    assert_eq!(case.account().findings, [finding].into());
}

#[test]
fn a_known_resource_stays_listed_while_its_plugin_is_away() {
    let case = Case { known: ["example.com/nic".to_owned()].into(), ..Default::default() };
    assert_eq!(case.of("example.com/nic"), [(0, [0, 0, 0]), (1, [0, 0, 0])]);
}

#[test]
fn a_device_on_the_last_zone_is_at_home_and_one_above_is_not() {
    let node = |id| NumaNode { id, ..Default::default() };
    let case = Case {
        machine: Machine { nodes: vec![node(63), node(64)], numa: true, ..Machine::default() },
        allocatable: Allocatable {
            devices: vec![devices("example.com/nic", &["a"], "63"), devices("example.com/nic", &["b"], "64")],
            ..Default::default()
        },
        ..Default::default()
    };
    assert_eq!(case.of("example.com/nic")[63], (63, [1, 1, 1]));
    let far = Finding::DevicesOnUnknownNodes { resource: "example.com/nic".into(), nodes: ids("64") };
    assert_eq!(case.account().findings, [Finding::UnpublishedNodes(ids("64")), far].into());
}

#[test]
fn a_known_resource_that_is_offered_keeps_what_is_offered() {
    let nics = vec![devices("example.com/nic", &["a", "b"], "1")];
    let case = Case {
        allocatable: Allocatable { devices: nics, ..Default::default() },
        known: ["example.com/nic".to_owned()].into(),
        ..Default::default()
    };
    assert_eq!(case.of("example.com/nic"), [(0, [0, 0, 0]), (1, [2, 2, 2])]);
}

#[test]
fn sparse_ids_are_filled_and_ids_beyond_the_scheduler_left_out() {
    let node = |id| NumaNode { id, memory: GIB, distances: [(id, 10), (0, 40)].into(), ..Default::default() };
    let mut case = Case {
        machine: Machine { nodes: vec![node(0), node(2), node(64)], numa: true, ..Machine::default() },
        ..Default::default()
    };
    let topology = case.account();
    assert_eq!(topology.zones.iter().map(|zone| zone.id).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(topology.findings, [Finding::UnpublishedNodes(ids("64"))].into());
    let filler = &topology.zones[1];
    assert_eq!(filler.costs, [(0, 255), (1, 255), (2, 255)].into());
    assert!(filler.resources.values().all(|amounts| *amounts == Amounts::default()));
    assert_eq!(filler.resources.keys().collect::<Vec<_>>(), ["cpu", "memory"]);
    assert_eq!(topology.zones[2].costs, [(0, 40), (1, 255), (2, 10)].into());
    case.rules.fillers = false;
    assert_eq!(case.account().zones.iter().map(|zone| zone.id).collect::<Vec<_>>(), [0, 2]);
}

#[test]
fn a_device_on_a_node_without_a_zone_of_its_own_is_told() {
    let node = |id| NumaNode { id, memory: GIB, ..Default::default() };
    let case = Case {
        machine: Machine { nodes: vec![node(0), node(2), node(64)], numa: true, ..Machine::default() },
        allocatable: Allocatable {
            devices: vec![
                devices("example.com/nic", &["a"], "0"),
                devices("example.com/nic", &["filler"], "0-1"),
                devices("example.com/nic", &["far"], "2,64"),
                devices("example.com/gpu", &["b"], "64"),
            ],
            ..Default::default()
        },
        ..Default::default()
    };
    assert_eq!(case.of("example.com/nic"), [(0, [2, 2, 2]), (1, [0, 0, 0]), (2, [1, 1, 1])]);
    assert_eq!(case.of("example.com/gpu"), [], "no zone could offer one");
    let finding = |resource: &str, nodes| Finding::DevicesOnUnknownNodes {
        resource: resource.into(),
        nodes: ids(nodes),
    };
    let expected = [
        Finding::UnpublishedNodes(ids("64")),
        finding("example.com/gpu", "64"),
        finding("example.com/nic", "1,64"),
    ];
    assert_eq!(case.account().findings, expected.into());
}

#[test]
fn a_cpu_that_no_machine_can_have_is_told() {
    let case = Case {
        allocatable: Allocatable { cpus: ids("1,900,8192"), ..Default::default() },
        ..Default::default()
    };
    assert_eq!(case.of("cpu"), [(0, [4, 1, 1]), (1, [4, 0, 0])]);
    assert_eq!(case.account().findings, [Finding::UnknownCpus("900,8192 and above".into())].into());
}

#[test]
fn a_machine_without_distances_costs_ten_to_itself() {
    let case = Case {
        machine: Machine { nodes: vec![NumaNode::default()], ..Machine::default() },
        ..Default::default()
    };
    assert_eq!(case.account().zones[0].costs, [(0, 10)].into());
}

#[test]
fn attributes_have_the_documented_spelling_and_order() {
    let config = KubeletConfig {
        topology_manager_policy: "single-numa-node".into(),
        topology_manager_scope: "pod".into(),
        topology_manager_policy_options: [
            ("max-allowable-numa-nodes".to_owned(), "16".to_owned()),
            ("prefer-closest-numa-nodes".to_owned(), "true".to_owned()),
        ]
        .into(),
        cpu_manager_policy: "static".into(),
        ..Default::default()
    };
    let topology = Case { config: Some(config), ..Default::default() }.account();
    let expected = [
        ("topologyManagerPolicy", "single-numa-node"),
        ("topologyManagerScope", "pod"),
        ("topologyManagerMaxNUMANodes", "16"),
        ("topologyManagerOptionPreferClosestNumaNodes", "true"),
        ("cpuManagerPolicy", "static"),
        ("memoryManagerPolicy", "None"),
    ];
    assert_eq!(topology.attributes, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    assert_eq!(Case::default().account().attributes, [], "unknown is not the same as none");
}

/// A pod in each of two namespaces, each with a CPU, 1 GiB and a device of node 0.
fn two_tenants() -> Case {
    let holds = |name: &str, cpu: &str, device: &str| {
        let container = ContainerUsage {
            cpus: ids(cpu),
            memory: vec![block("memory", GIB, "0")],
            devices: vec![devices("example.com/nic", &[device], "0")],
            ..Default::default()
        };
        PodUsage { namespace: format!("team-{name}"), ..pod(name, container) }
    };
    Case {
        allocatable: Allocatable {
            cpus: ids("1-3,5-7"),
            memory: vec![block("memory", 7 * GIB, "0"), block("memory", 7 * GIB, "1")],
            devices: vec![devices("example.com/nic", &["x", "y", "z"], "0")],
        },
        usage: Usage { pods: vec![holds("a", "1", "x"), holds("b", "2", "y")] },
        ..Default::default()
    }
}

/// What is available on node 0: CPUs, GiB and devices.
fn free(case: &Case) -> [u64; 3] {
    let free = |resource| case.of(resource)[0].1[2];
    [free("cpu"), free("memory") / GIB, free("example.com/nic")]
}

#[test]
fn what_an_excluded_pod_holds_looks_free() {
    let mut case = two_tenants();
    assert_eq!(free(&case), [1, 5, 1]);
    let mut exclude = |namespace: &str, name: &str| {
        let (namespace, name) = (namespace.parse().unwrap(), name.parse().unwrap());
        case.rules.exclude.pods = vec![PodPattern { namespace, name }];
        free(&case)
    };
    assert_eq!(exclude("team-?", "a"), [2, 6, 2]);
    assert_eq!(exclude("team-a", "b"), [1, 5, 1], "both halves have to match");
    assert_eq!(exclude("*", "[ab]"), [3, 7, 3]);
    assert_eq!(exclude("nobody", "*"), [1, 5, 1]);
}

#[test]
fn what_pods_outside_the_namespace_hold_looks_free() {
    let mut case = two_tenants();
    case.rules.exclude.outside_namespace = Some("team-b".into());
    assert_eq!(free(&case), [2, 6, 2]);
    case.rules.exclude.pods = vec![PodPattern { namespace: Pattern::any(), name: "b".parse().unwrap() }];
    assert_eq!(free(&case), [3, 7, 3]);
}

#[test]
fn an_excluded_resource_is_in_no_zone_even_while_it_is_in_use_or_known() {
    let mut case = two_tenants();
    case.known = ["example.com/nic".to_owned(), "example.com/gone".to_owned()].into();
    case.usage.pods[0].containers[0].cpus.union_with(&ids("900"));
    case.allocatable.devices.push(devices("example.com/nic", &["far"], "9"));
    assert_eq!(case.account().findings.len(), 2);
    case.rules.exclude.resources =
        ["cpu", "memory", "hugepages-2Mi", "example.com/nic", "example.com/never"].map(str::to_owned).into();
    let topology = case.account();
    for zone in &topology.zones {
        assert_eq!(zone.resources.keys().collect::<Vec<_>>(), ["example.com/gone"]);
    }
    assert_eq!(topology.findings, BTreeSet::new(), "nobody is told of what nobody wants to know");
}

#[test]
fn every_exclusion_has_its_warning() {
    let mut exclude = Exclude::default();
    assert!(exclude.is_empty());
    assert_eq!(exclude.warnings(), Vec::<String>::new());
    exclude.resources = ["hugepages-2Mi", "example.com/nic"].map(str::to_owned).into();
    let infra = PodPattern { namespace: "infra".parse().unwrap(), name: Pattern::any() };
    exclude.pods = vec![infra, PodPattern { namespace: Pattern::any(), name: "dns".parse().unwrap() }];
    exclude.outside_namespace = Some("team".into());
    assert!(!exclude.is_empty());
    let warnings = exclude.warnings();
    let starts = [
        "example.com/nic is excluded: the scheduler plugin does not check it",
        "hugepages-2Mi is excluded: under the policy single-numa-node the scheduler plugin rejects the node",
        "pods infra/*, */dns are excluded: what they hold looks free",
        "pods outside the namespace team are excluded: what they hold looks free",
    ];
    assert_eq!(warnings.len(), starts.len());
    for (warning, start) in warnings.iter().zip(starts) {
        assert!(warning.starts_with(start), "{warning}");
    }
}

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

fn any_cpus() -> impl Strategy<Value = IdSet> {
    proptest::collection::vec(0_u16..12, 0..10).prop_map(|ids| ids.into_iter().collect())
}

prop_compose! {
    fn any_pod()(cpus in any_cpus(), memory in any_memory(), devices in any_devices(), name in "[a-c]") -> PodUsage {
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
    fn any_case()(
        config in any_config(),
        cpus in any_cpus(),
        memory in any_memory(),
        devices in any_devices(),
        pods in proptest::collection::vec(any_pod(), 0..5),
        known in proptest::collection::btree_set("[a-d]", 0..3),
        fillers: bool,
    ) -> Case {
        Case {
            allocatable: Allocatable { cpus, memory, devices },
            usage: Usage { pods },
            config,
            known,
            rules: Rules { fillers, ..Default::default() },
            ..Default::default()
        }
    }
}

fn available(topology: &Topology) -> BTreeMap<(Id, String), u64> {
    let zones = topology.zones.iter();
    zones
        .flat_map(|zone| zone.resources.iter().map(|(name, a)| ((zone.id, name.clone()), a.available)))
        .collect()
}

proptest! {
    #![proptest_config(crate::randomised::cases())]

    #[test]
    fn available_is_at_most_allocatable_is_at_most_capacity(case in any_case()) {
        for zone in case.account().zones {
            for (name, amounts) in zone.resources {
                prop_assert!(amounts.available <= amounts.allocatable, "{name} {amounts:?}");
                prop_assert!(amounts.allocatable <= amounts.capacity, "{name} {amounts:?}");
            }
        }
    }

    #[test]
    fn every_zone_lists_the_same_resources(case in any_case()) {
        let topology = case.account();
        let first: Vec<_> = topology.zones[0].resources.keys().collect();
        prop_assert!(first.iter().any(|name| *name == "cpu") && first.iter().any(|name| *name == "memory"));
        for zone in &topology.zones {
            prop_assert_eq!(zone.resources.keys().collect::<Vec<_>>(), first.clone());
        }
    }

    #[test]
    fn order_does_not_matter(mut case in any_case()) {
        let before = case.account();
        case.usage.pods.reverse();
        for container in case.usage.pods.iter_mut().flat_map(|pod| &mut pod.containers) {
            container.devices.reverse();
            container.memory.reverse();
        }
        case.allocatable.devices.reverse();
        case.allocatable.memory.reverse();
        prop_assert_eq!(case.account(), before);
    }

    #[test]
    fn what_a_pod_takes_from_one_zone_is_what_it_holds(cpus in any_cpus(), bytes in 0..4 * GIB) {
        let mut case = Case {
            allocatable: Allocatable {
                cpus: ids("0-7"),
                memory: vec![block("memory", 7 * GIB, "0"), block("memory", 7 * GIB, "1")],
                ..Default::default()
            },
            ..Default::default()
        };
        let total = |case: &Case, resource| case.of(resource).iter().map(|(_, amounts)| amounts[2]).sum::<u64>();
        let (free_cpus, free_memory) = (total(&case, "cpu"), total(&case, "memory"));
        let held = cpus.intersection(&ids("0-7")).len();
        let memory = vec![block("memory", bytes, "1")];
        case.usage.pods.push(pod("a", ContainerUsage { cpus, memory, ..Default::default() }));
        prop_assert_eq!(total(&case, "cpu"), free_cpus - held);
        prop_assert_eq!(total(&case, "memory"), free_memory - bytes);
        prop_assert_eq!(case.account(), case.account());
    }

    #[test]
    fn excluding_pods_never_lowers_what_is_available(mut case in any_case(), name in "[a-c]") {
        let before = available(&case.account());
        case.rules.exclude.pods = vec![PodPattern { namespace: Pattern::any(), name: name.parse().unwrap() }];
        let account = case.account();
        let after = available(&account);
        for (place, before) in &before {
            // A resource that only pods name has nothing available, and disappears with its pods.
            prop_assert!(after.get(place).copied().unwrap_or(0) >= *before, "{place:?}");
        }
        // The result is the same as without the pods.
        case.usage.pods.retain(|pod| pod.name != name);
        prop_assert_eq!(case.account(), account);
    }

    #[test]
    fn excluding_a_resource_removes_exactly_it(
        mut case in any_case(),
        name in prop_oneof![Just("cpu"), Just("memory"), Just("hugepages-2Mi"), Just("a"), Just("d")],
    ) {
        let mut expected = case.account();
        for zone in &mut expected.zones {
            zone.resources.remove(name);
        }
        case.rules.exclude.resources.insert(name.to_owned());
        let account = case.account();
        prop_assert_eq!(account.zones, expected.zones);
        prop_assert_eq!(account.attributes, expected.attributes);
        prop_assert!(account.findings.is_subset(&expected.findings));
    }

    #[test]
    fn one_more_pod_never_raises_what_is_available(mut case in any_case(), pod in any_pod()) {
        let before = available(&case.account());
        case.usage.pods.push(pod);
        for (place, after) in available(&case.account()) {
            // A resource that only the new pod names was not listed before, and has nothing available.
            prop_assert!(after <= before.get(&place).copied().unwrap_or(0), "{place:?}");
        }
    }
}
