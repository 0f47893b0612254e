//! Configured exclusions.

use super::*;
use crate::util::glob::{Pattern, PodPattern};

/// A pod in each of two namespaces, each with a CPU, 1 GiB and a device of node 0.
fn two_tenants() -> Case {
    let tenant = |name: &str, cpu: &str, device: &str| {
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
        usage: Usage { pods: vec![tenant("a", "1", "x"), tenant("b", "2", "y")] },
        ..Default::default()
    }
}

/// What is available on node 0: CPUs, GiB and devices.
fn free(case: &Case) -> [u64; 3] {
    let free = |resource| case.of(resource)[0].1[2];
    [free("cpu"), free("memory") / GIB, free("example.com/nic")]
}

#[test]
fn the_resources_of_an_excluded_pod_look_free() {
    let mut case = two_tenants();
    assert_eq!(free(&case), [1, 5, 1]);
    let mut exclude = |namespace: &str, name: &str| {
        let (namespace, name) = (namespace.parse().unwrap(), name.parse().unwrap());
        case.rules.exclude.pods = vec![PodPattern { namespace, name }];
        free(&case)
    };
    assert_eq!(exclude("team-?", "a"), [2, 6, 2]);
    assert_eq!(exclude("team-a", "b"), [1, 5, 1], "both parts have to match");
    assert_eq!(exclude("*", "[ab]"), [3, 7, 3]);
    assert_eq!(exclude("other", "*"), [1, 5, 1]);
}

#[test]
fn the_resources_of_pods_outside_the_namespace_look_free() {
    let mut case = two_tenants();
    case.rules.exclude.outside_namespace = Some("team-b".into());
    assert_eq!(free(&case), [2, 6, 2]);
    case.rules.exclude.pods = vec![PodPattern { namespace: Pattern::any(), name: "b".parse().unwrap() }];
    assert_eq!(free(&case), [3, 7, 3]);
}

#[test]
fn an_excluded_resource_is_in_no_zone_even_if_used_or_remembered() {
    let mut case = two_tenants();
    case.remembered = ["example.com/nic".to_owned(), "example.com/gone".to_owned()].into();
    case.usage.pods[0].containers[0].cpus.union_with(&ids("900"));
    case.allocatable.devices.push(devices("example.com/nic", &["far"], "9"));
    assert_eq!(case.account().findings.len(), 2);
    case.rules.exclude.resources =
        ["cpu", "memory", "hugepages-2Mi", "example.com/nic", "example.com/never"].map(str::to_owned).into();
    let topology = case.account();
    for zone in &topology.zones {
        assert_eq!(zone.resources.keys().collect::<Vec<_>>(), ["example.com/gone"]);
    }
    assert_eq!(topology.findings, BTreeSet::new(), "excluded resources have no findings");
}

#[test]
fn every_exclusion_has_a_warning() {
    let mut exclude = NodeExclusions::default();
    assert!(exclude.is_empty());
    assert_eq!(exclude.warnings(), Vec::<String>::new());
    exclude.resources =
        ["hugepages-2Mi", "example.com/nic", "own.kubernetes.io/nic"].map(str::to_owned).into();
    let infra = PodPattern { namespace: "infra".parse().unwrap(), name: Pattern::any() };
    exclude.pods = vec![infra, PodPattern { namespace: Pattern::any(), name: "dns".parse().unwrap() }];
    exclude.outside_namespace = Some("team".into());
    assert!(!exclude.is_empty());
    let warnings = exclude.warnings();
    let starts = [
        "example.com/nic is excluded: the scheduler plugin does not check it",
        "hugepages-2Mi is excluded: under the policy single-numa-node the scheduler plugin rejects the node",
        "own.kubernetes.io/nic is excluded: under the policy single-numa-node the scheduler plugin rejects the node",
        "pods infra/*, */dns are excluded: what they are allocated looks free",
        "pods outside the namespace team are excluded: what they are allocated looks free",
    ];
    assert_eq!(warnings.len(), starts.len());
    for (warning, start) in warnings.iter().zip(starts) {
        assert!(warning.starts_with(start), "{warning}");
    }
}
