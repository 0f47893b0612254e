//! The Memory Manager's groups of nodes.

use super::*;
use crate::kubelet::MemoryGroup;

/// Returns what each zone has available of `memory` and `hugepages-2Mi`, in GiB, and its group.
fn zones(case: &Case) -> Vec<(u64, u64, Option<String>)> {
    let of = |zone: &Zone, name: &str| zone.resources[name].available / GIB;
    let zone = |zone: &Zone| {
        (of(zone, "memory"), of(zone, "hugepages-2Mi"), zone.attributes.get(MEMORY_GROUP).cloned())
    };
    case.account().zones.iter().map(zone).collect()
}

fn case(policy: &str, blocks: Vec<MemoryBlock>, cells: Option<[&str; 2]>) -> Case {
    let config = KubeletConfig {
        topology_manager_policy: policy.to_owned(),
        memory_manager_policy: "Static".to_owned(),
        ..KubeletConfig::default()
    };
    let main = container("main", "", blocks);
    let of_cells = |(node, nodes): (Id, &str)| {
        (node, MemoryGroup { blocks: 1, nodes: ids(nodes), ..MemoryGroup::default() })
    };
    let checkpoints = cells.map(|cells| {
        let mut checkpoints =
            Checkpoints { pods: [("u".to_owned(), vec![main.clone()])].into(), ..Checkpoints::default() };
        checkpoints.memory.groups = (0..).zip(cells).map(of_cells).collect();
        checkpoints
    });
    let mut case =
        Case { config: Some(config), checkpoints, ..case_with(vec![pod("a", main)], Checkpoints::default()) };
    case.checkpoints = case.checkpoints.filter(|_| cells.is_some());
    case.allocatable.memory.extend([block("hugepages-2Mi", GIB, "0"), block("hugepages-2Mi", GIB, "1")]);
    case
}

const WIDE: &str = "0-1";

fn group(nodes: &str) -> Option<String> {
    Some(nodes.to_owned())
}

#[test]
fn with_single_numa_node_a_group_has_nothing_available() {
    let five = || vec![block("memory", 5 * GIB, WIDE)];
    let of = |policy, cells| zones(&case(policy, five(), cells));
    for cells in [None, Some([WIDE, WIDE])] {
        assert_eq!(of("single-numa-node", cells), [(0, 0, group(WIDE)), (0, 0, group(WIDE))]);
        for policy in ["restricted", "best-effort", "none"] {
            assert_eq!(of(policy, cells), [(0, 1, group(WIDE)), (3, 1, group(WIDE))], "{policy}");
        }
    }
    let mut carried = case("restricted", five(), None);
    carried.policies = Some(vec![(POLICY.to_owned(), "single-numa-node".to_owned())]);
    assert_eq!(zones(&carried)[1], (0, 0, group(WIDE)), "the published policy decides");
    let unchanged = |case: Case| {
        case.of("memory").iter().map(|(_, [capacity, all, _])| (*capacity, *all)).collect::<Vec<_>>()
    };
    assert_eq!(unchanged(case("single-numa-node", five(), None)), unchanged(case("none", five(), None)));
}

#[test]
fn only_the_checkpoint_tells_that_a_zone_is_in_no_group() {
    let one = || vec![block("memory", GIB, "0")];
    let groups = |case: &Case| zones(case).into_iter().map(|(.., group)| group).collect::<Vec<_>>();
    assert_eq!(groups(&case("restricted", one(), None)), [None, None]);
    assert_eq!(groups(&case("restricted", one(), Some(["0", "1"]))), [group("0"), group("1")]);
    assert_eq!(groups(&case("single-numa-node", one(), Some(["0", "1"]))), [None, None]);
    assert_eq!(
        groups(&case("restricted", one(), Some([WIDE, WIDE]))),
        [group("0"), group("1")],
        "its pod has ended"
    );
    let mut small = case("restricted", one(), Some(["0", "1"]));
    small.machine.nodes.pop();
    assert_eq!(groups(&small), [None], "there is nothing to join");
}

#[test]
fn the_last_block_on_a_node_decides_its_group() {
    let both = || vec![block("memory", GIB, WIDE), block("memory", GIB, "0")];
    let mut mixed = case("best-effort", both(), Some(["0", WIDE]));
    let groups = |case: &Case| zones(case).into_iter().map(|(.., group)| group).collect::<Vec<_>>();
    assert_eq!(groups(&mixed), [group("0"), group(WIDE)]);
    let of_pods = &mut mixed.checkpoints.as_mut().unwrap().pods;
    of_pods.get_mut("u").unwrap()[0].memory.remove(0);
    assert_eq!(groups(&mixed), [group(WIDE), group(WIDE)], "the checkpoint is older than the List");
    let mut single = case("single-numa-node", both(), Some(["0", WIDE]));
    assert_eq!(zones(&single).iter().map(|zone| zone.0).collect::<Vec<_>>(), [2, 0]);
    single.checkpoints = None;
    assert_eq!(zones(&single).iter().map(|zone| zone.0).collect::<Vec<_>>(), [0, 0], "never too much");
}

#[test]
fn pods_without_resources_make_no_groups() {
    let mut ended = case("single-numa-node", vec![block("memory", 5 * GIB, WIDE)], Some([WIDE, WIDE]));
    ended.terminated = [("ns".to_owned(), "a".to_owned())].into();
    assert_eq!(zones(&ended), [(4, 1, None), (4, 1, None)]);
    let mut excluded = case("restricted", vec![block("memory", 5 * GIB, WIDE)], None);
    excluded.rules.exclude.outside_namespace = Some("other".to_owned());
    assert_eq!(zones(&excluded), [(4, 1, None), (4, 1, None)]);
}
