//! What each pod has of the zones.

use proptest::prelude::*;

use super::generators::{any_case, any_machine, any_world};
use super::*;
use crate::claims::{Allocated, CPU_DRIVER, Claim, ClaimInUse};

/// Returns what is taken of each zone that no pod has.
fn unexplained(case: &Case) -> BTreeMap<(Id, String), u64> {
    let topology = case.account();
    let mut taken: BTreeMap<(Id, String), u64> = BTreeMap::new();
    for zone in &topology.zones {
        for (resource, amounts) in &zone.resources {
            taken.insert((zone.id, resource.clone()), amounts.allocatable - amounts.available);
        }
    }
    for (zone, amounts) in amounts_by_pod(&case.inputs(), &topology).into_values().flatten() {
        for (resource, amount) in amounts {
            assert!(amount > 0, "{resource}");
            let left = taken.get_mut(&(zone, resource)).unwrap();
            *left = left.checked_sub(amount).unwrap();
        }
    }
    taken.retain(|_, left| *left > 0);
    taken
}

/// Returns what a pod has as `zone resource amount`, in GiB if it is memory.
fn of_pod(case: &Case, name: &str) -> Vec<String> {
    let mut pods = amounts_by_pod(&case.inputs(), &case.account());
    let of_pod = pods.remove(&("ns".to_owned(), name.to_owned())).unwrap_or_default();
    let of_zone = |(zone, amounts): (Id, BTreeMap<String, u64>)| {
        let text = move |(resource, amount): (String, u64)| match resource.as_str() {
            "memory" => format!("{zone} memory {}", amount / GIB),
            _ => format!("{zone} {resource} {amount}"),
        };
        amounts.into_iter().map(text)
    };
    of_pod.into_iter().flat_map(of_zone).collect()
}

#[test]
fn a_pod_has_what_all_of_its_containers_have() {
    let mut both = pod("a", container("main", "0-1", vec![block("memory", GIB, "0")]));
    both.containers.push(ContainerUsage {
        devices: vec![devices("example.com/nic", &["a"], "0"), devices("example.com/nic", &["gone"], "1")],
        ..container("other", "4", vec![block("memory", 6 * GIB, "0-1")])
    });
    let idle = pod("idle", container("main", "", Vec::new()));
    let mut case = case_with(vec![both, idle], Checkpoints::default());
    let all = ["0 cpu 2", "0 example.com/nic 1", "0 memory 4", "1 cpu 1", "1 memory 3"];
    assert_eq!(of_pod(&case, "a"), all);
    assert_eq!(of_pod(&case, "idle"), [""; 0]);
    assert_eq!(unexplained(&case), BTreeMap::new());
    case.rules.exclude.pods = vec![crate::util::glob::PodPattern {
        namespace: crate::util::glob::Pattern::any(),
        name: "a".parse().unwrap(),
    }];
    assert_eq!(of_pod(&case, "a"), [""; 0], "nothing is taken for it");
}

#[test]
fn what_two_pods_have_is_counted_once() {
    let pods = ["b", "a"].map(|name| pod(name, container("main", "0-1", Vec::new())));
    let case = case_with(pods.to_vec(), Checkpoints::default());
    assert_eq!(of_pod(&case, "a"), ["0 cpu 2"]);
    assert_eq!(of_pod(&case, "b"), [""; 0]);
}

#[test]
fn a_pod_has_what_its_init_containers_have() {
    let init = ContainerUsage {
        devices: vec![devices("example.com/nic", &["b"], "0")],
        ..container("init", "2-3", vec![block("memory", GIB, "1")])
    };
    let main = container("main", "2", Vec::new());
    let checkpoints = Checkpoints {
        pods: [("u".to_owned(), vec![main.clone(), init])].into(),
        names: [("u".to_owned(), ("ns".to_owned(), "a".to_owned()))].into(),
        ..Checkpoints::default()
    };
    let mut case = case_with(vec![pod("a", main)], checkpoints);
    assert_eq!(of_pod(&case, "a"), ["0 cpu 2", "0 example.com/nic 1", "1 memory 1"]);
    assert_eq!(unexplained(&case), BTreeMap::new());
    case.usage.pods[0].memory = vec![block("memory", 2 * GIB, "0")];
    assert_eq!(
        of_pod(&case, "a"),
        ["0 cpu 2", "0 example.com/nic 1", "0 memory 2"],
        "pod-level memory has it"
    );
}

#[test]
fn a_claim_is_of_the_first_of_its_pods() {
    let device = Allocated {
        driver: CPU_DRIVER.to_owned(),
        consumed: [("dra.cpu/cpu".to_owned(), 3)].into(),
        ..Allocated::default()
    };
    let claim = Claim { uid: "u".to_owned(), devices: vec![device], ..Claim::default() };
    let in_use = ClaimInUse { claim, is_known: true, pods: ["b", "a"].map(str::to_owned).into() };
    let mut case = case_with(vec![pod("b", container("main", "0", Vec::new()))], Checkpoints::default());
    case.claims =
        Some(NodeClaims { claims: [("ns/claim".to_owned(), in_use)].into(), ..NodeClaims::default() });
    assert_eq!(of_pod(&case, "a"), ["0 cpu 3", "1 cpu 3"], "it is not known where");
    assert_eq!(of_pod(&case, "b"), ["0 cpu 1"]);
    assert_eq!(unexplained(&case), BTreeMap::new());
}

proptest! {
    #![proptest_config(crate::randomised::cases())]

    #[test]
    fn pods_have_exactly_what_is_not_available(machine in any_machine(), mut case in any_case()) {
        prop_assert_eq!(unexplained(&case), BTreeMap::new());
        case.machine = machine;
        prop_assert_eq!(unexplained(&case), BTreeMap::new());
    }

    #[test]
    fn with_checkpoints_pods_have_no_more_than_is_taken(world in any_world()) {
        unexplained(&world.case);
    }
}
