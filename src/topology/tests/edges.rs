//! Limits where one byte makes the difference.

use super::*;

fn offer(bytes: u64, held: Vec<MemoryBlock>) -> Case {
    Case {
        allocatable: Allocatable {
            memory: vec![block("memory", bytes, "0"), block("memory", 4 * GIB, "1")],
            ..Default::default()
        },
        usage: Usage { pods: vec![pod("a", container("main", "", held))] },
        ..Default::default()
    }
}

#[test]
fn a_block_one_part_in_32_above_the_node_is_drift_and_a_byte_more_is_not() {
    let drifted = 8 * GIB + 8 * GIB / 32;
    assert_eq!(offer(drifted, vec![]).of("memory")[0], (0, [drifted, drifted, drifted]));
    assert_eq!(offer(drifted, vec![]).account().findings, BTreeSet::new());
    let found = Finding::ImpossibleMemory { nodes: ids("0"), resource: "memory".into(), bytes: drifted + 1 };
    assert_eq!(offer(drifted + 1, vec![]).account().findings, [found].into());
}

#[test]
fn all_of_a_node_or_group_may_be_in_use_and_a_byte_more_is_told() {
    let findings = |bytes, nodes| offer(4 * GIB, vec![block("memory", bytes, nodes)]).account().findings;
    for (all, nodes) in [(4 * GIB, "0"), (8 * GIB, "0-1")] {
        assert_eq!(findings(all, nodes), BTreeSet::new());
        let found = Finding::OverusedMemory { nodes: ids(nodes), resource: "memory".into() };
        assert_eq!(findings(all + 1, nodes), [found].into());
    }
}

#[test]
fn what_is_the_same_on_several_nodes_is_told_once() {
    let memory = |bytes| vec![block("memory", bytes, "0"), block("memory", bytes + 1, "1")];
    let mut case = offer(0, memory(9 * GIB));
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

#[test]
fn what_one_block_explains_of_the_books_no_other_does() {
    let mut case = offer(4 * GIB, vec![block("memory", 2 * GIB, "0-1"), block("memory", GIB, "0-1,5")]);
    let given = [(0, GIB), (1, 2 * GIB)].map(|(node, bytes)| (node, [("memory".to_owned(), bytes)].into()));
    case.state = Some(ManagerState { reserved: given.into(), ..Default::default() });
    assert_eq!(case.of("memory")[0], (0, [8 * GIB, 4 * GIB, 3 * GIB]));
    assert_eq!(case.of("memory")[1], (1, [8 * GIB, 4 * GIB, 2 * GIB]));
}

#[test]
fn costs_and_amounts_are_no_larger_than_the_scheduler_plugin_can_score() {
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
