//! The zones of a node with what is merged: from the allocations to the topology.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::kubelet::{Allocatable, Usage};
use crate::machine::{IdSet, Machine, NumaNode};
use crate::topology::{self, Inputs};

const RDMA: &str = "koordinator.sh/rdma";
const GPU: &str = "nvidia.com/gpu";

/// `capacity/allocatable/available` of resources on two NUMA nodes with four CPUs and 8 GiB each.
fn accounted(
    rules: &Rules,
    pods: &[Pod],
    node: &NodeDevices,
    from_kubelet: &v1::AllocatableResourcesResponse,
) -> BTreeMap<(u16, String), [u64; 3]> {
    let zone = |id: Id, cpus: &str| NumaNode {
        id,
        cpus: cpus.parse::<IdSet>().unwrap(),
        memory: 8 << 30,
        hugepages: BTreeMap::default(),
        hugepages_unread: false,
        distances: [(0, 10), (1, 10)].into(),
    };
    let machine = Machine { nodes: vec![zone(0, "0-3"), zone(1, "4-7")], numa: true, ..Machine::default() };
    let allocations = rules.read(pods.iter(), node);
    let listed = allocations.merge_list(&bytes(&kubelet_list(pods)), PodResourcesVersion::V1).unwrap().bytes;
    let allocatable = allocations.merge_allocatable(&bytes(from_kubelet)).unwrap().bytes;
    let topology = topology::account(&Inputs {
        machine: &machine,
        allocatable: &Allocatable::from(v1::AllocatableResourcesResponse::decode(allocatable).unwrap()),
        usage: &Usage::from(v1::ListPodResourcesResponse::decode(listed).unwrap()),
        terminated: &BTreeSet::new(),
        claims: None,
        checkpoints: None,
        config: None,
        policies: None,
        remembered: &BTreeSet::new(),
        rules: &topology::ZoneRules::default(),
    });
    let amounts = |zone: &topology::Zone| {
        let of = |(name, amounts): (&String, &topology::Amounts)| {
            ((zone.id, name.clone()), [amounts.capacity, amounts.allocatable, amounts.available])
        };
        zone.resources.iter().map(of).collect::<Vec<_>>()
    };
    topology.zones.iter().flat_map(amounts).collect()
}

#[test]
fn parts_of_a_device_are_that_device() {
    let half = r#"{"gpu":[{"id":"GPU-a","resources":{"koordinator.sh/gpu-core":50}}]}"#;
    let pods = ["p", "q"].map(|name| pod(name, DEVICES, half, &[container("main", &[])]));
    let node = reported("", &[device("gpu", "GPU-a", 0, Some(0)), device("gpu", "GPU-b", 1, Some(0))]);
    let zones = |rules: &Rules| accounted(rules, &pods, &node, &Default::default())[&(0, GPU.to_owned())];
    let shared = rules("{koordinator: [devices, sharedIds, allocatable]}");
    assert_eq!(zones(&shared.without_shared_ids()), [2, 2, 1]);
    assert_eq!(zones(&shared), [4, 2, 2], "what it would be");
}

#[test]
fn an_allocated_card_leaves_none_of_its_functions_free() {
    let mut cards = [device("rdma", "0000:01:00.0", 0, Some(0)), device("rdma", "0000:02:00.0", 1, Some(1))];
    cards[0].functions = ["0000:01:00.1".into(), "0000:01:00.2".into()].into();
    cards[1].functions = ["0000:02:00.1".into(), "0000:02:00.2".into()].into();
    let node = reported("", &cards);
    let rules = rules("{koordinator: [devices, allocatable]}");
    let zones = |text: &str| {
        let pods = [pod("p", DEVICES, text, &[container("main", &[])])];
        let all = accounted(&rules, &pods, &node, &Default::default());
        [0, 1].map(|zone| all[&(zone, RDMA.to_owned())])
    };
    assert_eq!(zones("{}"), [[2, 2, 2]; 2]);
    let function = r#"{"id":"0000:01:00.0","extension":{"vfs":[{"busID":"0000:01:00.2"}]}}"#;
    assert_eq!(zones(&format!(r#"{{"rdma":[{function}]}}"#)), [[2, 2, 1], [2, 2, 2]]);
    let card = r#"{"id":"0000:01:00.0","extension":{"vfs":[]}}"#;
    assert_eq!(zones(&format!(r#"{{"rdma":[{card}]}}"#)), [[1, 1, 0], [2, 2, 2]]);
    // Both are never allocated, but if an annotation names both, both count.
    assert_eq!(zones(&format!(r#"{{"rdma":[{card},{function}]}}"#)), [[2, 2, 0], [2, 2, 2]]);
}

#[test]
fn cpus_and_memory_of_annotations_are_subtracted_from_zones() {
    const STATUS: &str = "scheduling.koordinator.sh/resource-status";
    let text = r#"{"cpuset":"1-2","numaNodeResources":[{"node":1,"resources":{"memory":"1Gi"}}]}"#;
    let pods = [pod("p", STATUS, text, &[container("main", &[])])];
    let from_kubelet = v1::AllocatableResourcesResponse {
        cpu_ids: (0..8).collect(),
        memory: [0, 1]
            .map(|node| v1::ContainerMemory {
                memory_type: "memory".into(),
                size: 8 << 30,
                topology: Some(v1::TopologyInfo { nodes: vec![v1::NumaNode { id: node }] }),
            })
            .into(),
        ..Default::default()
    };
    let available = |yaml: &str| {
        let all = accounted(&rules(yaml), &pods, &unreported(), &from_kubelet);
        ["cpu", "memory"].map(|name| [0, 1].map(|zone| all[&(zone, name.to_owned())][2]))
    };
    assert_eq!(available("{}"), [[4, 4], [8 << 30, 8 << 30]]);
    assert_eq!(available("{koordinator: [devices, cpus]}"), [[2, 4], [8 << 30, 7 << 30]]);
}
