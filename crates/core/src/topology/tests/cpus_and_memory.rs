//! CPUs, memory and huge pages.

use super::*;

#[test]
fn allocated_cpus_are_subtracted_from_their_zone() {
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
fn pod_level_cpus_and_container_cpus_are_united() {
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
fn without_a_cpu_manager_all_online_cpus_except_reserved_ones_are_allocatable() {
    let mut case = Case::default();
    assert_eq!(case.of("cpu"), [(0, [4, 4, 4]), (1, [4, 4, 4])]);
    case.config = Some(KubeletConfig { reserved_system_cpus: ids("0,4-5"), ..Default::default() });
    assert_eq!(case.of("cpu"), [(0, [4, 3, 3]), (1, [4, 2, 2])]);
    case.config = Some(KubeletConfig { reserved_cpu_count: 5, ..Default::default() });
    assert_eq!(case.of("cpu"), [(0, [4, 0, 0]), (1, [4, 3, 3])]);
}

#[test]
fn cpus_outside_the_zones_or_the_allocatable_set_never_underflow() {
    let case = Case {
        allocatable: Allocatable { cpus: ids("1,900"), ..Default::default() },
        usage: Usage { pods: vec![pod("a", ContainerUsage { cpus: ids("0-7,901"), ..Default::default() })] },
        ..Default::default()
    };
    assert_eq!(case.of("cpu"), [(0, [4, 1, 0]), (1, [4, 0, 0])]);
    assert_eq!(case.account().findings, [Finding::UnknownCpus("900-901".into())].into());
}

#[test]
fn a_cpu_id_that_no_machine_can_have_is_a_finding() {
    let case = Case {
        allocatable: Allocatable { cpus: ids("1,900,8192"), ..Default::default() },
        ..Default::default()
    };
    assert_eq!(case.of("cpu"), [(0, [4, 1, 1]), (1, [4, 0, 0])]);
    assert_eq!(case.account().findings, [Finding::UnknownCpus("900,8192 and above".into())].into());
}

#[test]
fn memory_is_the_kubelets_block_minus_allocations() {
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
fn without_a_memory_manager_memory_is_derived_from_the_hardware() {
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
fn a_static_policy_without_allocatable_resources_publishes_none() {
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
fn memory_is_not_allocatable_while_the_huge_pages_are_unknown() {
    let mut case = Case::default();
    case.machine.nodes[1].hugepages_unread = true;
    let free = 8 * GIB - 512 * MIB;
    assert_eq!(case.of("memory"), [(0, [8 * GIB, free, free]), (1, [8 * GIB, 0, 0])]);
}

#[test]
fn a_block_on_several_nodes_is_split_in_ascending_order() {
    let usage = |memory| Usage { pods: vec![pod("a", ContainerUsage { memory, ..Default::default() })] };
    let mut case = Case {
        allocatable: Allocatable {
            memory: vec![block("memory", 4 * GIB, "0"), block("memory", 4 * GIB, "1")],
            ..Default::default()
        },
        usage: usage(vec![block("memory", 5 * GIB, "0-1"), block("memory", GIB, "0")]),
        ..Default::default()
    };
    assert_eq!(case.of("memory"), [(0, [8 * GIB, 4 * GIB, 0]), (1, [8 * GIB, 4 * GIB, 2 * GIB])]);
    case.usage = usage(vec![block("memory", 9 * GIB, "0-1")]);
    assert_eq!(case.of("memory"), [(0, [8 * GIB, 4 * GIB, 0]), (1, [8 * GIB, 4 * GIB, 0])]);
    let finding = Finding::OverusedMemory { nodes: ids("0-1"), resource: "memory".into() };
    assert_eq!(case.account().findings, [finding].into());
}

#[test]
fn a_terminated_pod_uses_nothing() {
    let used = container("main", "1-2", vec![block("memory", GIB, "0")]);
    let mut case = case_with(vec![pod("job", used.clone())], Checkpoints::default());
    assert_eq!(case.of("cpu")[0], (0, [4, 4, 2]));
    case.terminated = [("ns".to_owned(), "other".to_owned())].into();
    assert_eq!(case.of("cpu")[0], (0, [4, 4, 2]));
    case.terminated = [("ns".to_owned(), "job".to_owned())].into();
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
fn drifted_memory_is_kept_and_an_underflow_is_clamped() {
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

fn with_memory(bytes: u64, used: Vec<MemoryBlock>) -> Case {
    Case {
        allocatable: Allocatable {
            memory: vec![block("memory", bytes, "0"), block("memory", 4 * GIB, "1")],
            ..Default::default()
        },
        usage: Usage { pods: vec![pod("a", container("main", "", used))] },
        ..Default::default()
    }
}

#[test]
fn a_block_up_to_one_part_in_32_above_the_node_is_drift() {
    let drifted = 8 * GIB + 8 * GIB / 32;
    assert_eq!(with_memory(drifted, vec![]).of("memory")[0], (0, [drifted, drifted, drifted]));
    assert_eq!(with_memory(drifted, vec![]).account().findings, BTreeSet::new());
    let found = Finding::ImpossibleMemory { nodes: ids("0"), resource: "memory".into(), bytes: drifted + 1 };
    assert_eq!(with_memory(drifted + 1, vec![]).account().findings, [found].into());
}

#[test]
fn one_byte_more_than_a_node_or_group_has_is_a_finding() {
    let used = |bytes, nodes| with_memory(4 * GIB, vec![block("memory", bytes, nodes)]);
    let findings = |bytes, nodes| used(bytes, nodes).account().findings;
    for (all, nodes) in [(4 * GIB, "0"), (8 * GIB, "0-1")] {
        assert_eq!(findings(all, nodes), BTreeSet::new());
        let found = Finding::OverusedMemory { nodes: ids(nodes), resource: "memory".into() };
        assert_eq!(findings(all + 1, nodes), [found].into());
    }
}

#[test]
fn one_finding_covers_all_its_nodes() {
    let memory = |bytes| vec![block("memory", bytes, "0"), block("memory", bytes + 1, "1")];
    let mut case = with_memory(0, memory(9 * GIB));
    case.allocatable.memory = memory(99 * GIB);
    case.machine.nodes.extend([70, 71].map(|id| NumaNode { id, ..Default::default() }));
    case.allocatable.devices = vec![devices("a.b/c", &["x"], "0,9"), devices("a.b/c", &["y"], "10,70")];
    let resource = || "memory".to_owned();
    let expected = [
        Finding::UnpublishedNodes(ids("70-71")),
        Finding::ImpossibleMemory { nodes: ids("0-1"), resource: resource(), bytes: 99 * GIB + 1 },
        Finding::OverusedMemory { nodes: ids("0-1"), resource: resource() },
        Finding::DevicesOnUnknownNodes { resource: "a.b/c".into(), nodes: ids("9-10,70") },
    ];
    assert_eq!(case.account().findings, expected.into());
}
