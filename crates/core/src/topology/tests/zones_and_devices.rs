//! Zone ids, costs, attributes and devices.

use super::*;

#[test]
fn a_device_on_several_nodes_counts_in_each_of_its_zones() {
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
fn a_remembered_resource_stays_listed_without_its_plugin() {
    let case = Case { remembered: ["example.com/nic".to_owned()].into(), ..Default::default() };
    assert_eq!(case.of("example.com/nic"), [(0, [0, 0, 0]), (1, [0, 0, 0])]);
}

#[test]
fn a_remembered_resource_keeps_its_reported_amounts() {
    let nics = vec![devices("example.com/nic", &["a", "b"], "1")];
    let case = Case {
        allocatable: Allocatable { devices: nics, ..Default::default() },
        remembered: ["example.com/nic".to_owned()].into(),
        ..Default::default()
    };
    assert_eq!(case.of("example.com/nic"), [(0, [0, 0, 0]), (1, [2, 2, 2])]);
}

#[test]
fn devices_are_counted_up_to_the_highest_zone() {
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
fn a_device_on_a_node_without_a_zone_is_a_finding() {
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
fn gaps_between_ids_are_filled_and_ids_above_63_are_left_out() {
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
fn without_distances_a_node_has_cost_10_to_itself() {
    let case = Case {
        machine: Machine { nodes: vec![NumaNode::default()], ..Machine::default() },
        ..Default::default()
    };
    assert_eq!(case.account().zones[0].costs, [(0, 10)].into());
}

#[test]
fn costs_and_amounts_are_limited_to_what_the_scheduler_plugin_can_score() {
    let mut case = Case::default();
    case.machine.nodes[0].distances = [(0, 10), (1, 256)].into();
    case.machine.nodes[1].memory = u64::MAX;
    case.machine.nodes[1].hugepages.clear();
    let zones = case.account().zones;
    assert_eq!(zones[0].costs, [(0, 10), (1, 255)].into());
    assert_eq!(zones[1].resources["memory"].capacity, LARGEST_AMOUNT);
    assert_eq!(zones[1].resources["memory"].available, LARGEST_AMOUNT);
    assert!(LARGEST_AMOUNT.checked_mul(100).is_some_and(|score| i64::try_from(score).is_ok()));
}

#[test]
fn reserved_cpus_are_those_that_are_configured_or_chosen() {
    let reserved = |configured: &str, allocatable: &str| {
        let config = KubeletConfig { reserved_system_cpus: ids(configured), ..KubeletConfig::default() };
        let mut case = Case { config: Some(config), ..Case::default() };
        case.allocatable.cpus = ids(allocatable);
        let attributes = case.account().attributes;
        attributes.into_iter().find(|(name, _)| name == "reservedCPUs").map(|(_, cpus)| cpus)
    };
    assert_eq!(reserved("", "1-3,5-7").as_deref(), Some("0,4"), "chosen by the kubelet");
    assert_eq!(reserved("4,9", "").as_deref(), Some("4"), "CPU 9 is not online");
    assert_eq!(reserved("4", "0-3").as_deref(), Some("4"), "an old kubelet lists CPUs that are free");
    assert_eq!(reserved("", ""), None, "at most their number is known");
    assert_eq!(reserved("", "0-7"), None);
}

#[test]
fn zones_have_their_sockets_and_caches() {
    let mut case = Case::default();
    let layout = |sockets: &[Id], caches: &[&str]| crate::machine::CpuLayout {
        sockets: sockets.iter().copied().collect(),
        caches: caches.iter().map(|cpus| ids(cpus)).collect(),
    };
    case.machine.layout = [(0, layout(&[1, 0], &["0-1", "2-3"])), (1, layout(&[1], &["4-7"]))].into();
    let zones = case.account().zones;
    let of = |zone: &Zone| named(zone.attributes.clone().into_iter().collect());
    assert_eq!(of(&zones[0]), ["l3Caches=0-1;2-3", "sockets=0,1"]);
    assert_eq!(of(&zones[1]), ["sockets=1"], "one cache is no news");
    case.machine.layout = [(0, layout(&[], &[]))].into();
    assert!(
        case.account().zones.iter().all(|zone| zone.attributes.is_empty()),
        "virtual machines may have neither"
    );
}

fn named(attributes: Vec<(String, String)>) -> Vec<String> {
    attributes.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

#[test]
fn attributes_have_the_documented_names_and_unknown_policies_are_left_out() {
    let options = [("max-allowable-numa-nodes", "16"), ("prefer-closest-numa-nodes", "true")];
    let config = KubeletConfig {
        topology_manager_policy: "restricted".into(),
        topology_manager_policy_options: options.map(|(name, value)| (name.into(), value.into())).into(),
        cpu_manager_policy: "static".into(),
        memory_manager_policy: String::new(),
        ..KubeletConfig::default()
    };
    let core_types = [("core", "0-3"), ("atom", "4")];
    let core_types = core_types.map(|(kind, cpus)| (kind.to_owned(), ids(cpus))).into();
    let mut case = Case { config: Some(config), ..Case::default() };
    case.machine.core_types = core_types;
    let policies = [
        "topologyManagerPolicy=restricted",
        "topologyManagerScope=container",
        "topologyManagerMaxNUMANodes=16",
        "topologyManagerOptionPreferClosestNumaNodes=true",
        "cpuManagerPolicy=static",
    ];
    let of_machine = ["cpu_atom=4", "cpu_core=0-3"];
    let attributes = case.account().attributes;
    let are_policies = attributes.iter().filter(|(name, _)| is_policy_attribute(name));
    assert_eq!(are_policies.count(), policies.len());
    assert_eq!(named(attributes), [&policies[..], &of_machine].concat());
    case.policies = Some(vec![("topologyManagerPolicy".to_owned(), "none".to_owned())]);
    let replaced = [&["topologyManagerPolicy=none"][..], &of_machine].concat();
    assert_eq!(named(case.account().attributes), replaced, "these replace the ones of the configuration");
    (case.policies, case.config) = (None, None);
    assert_eq!(named(case.account().attributes), of_machine, "unknown policies are not `none`");
}
