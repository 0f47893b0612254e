//! The expected object of the simulated kubelet.

use std::collections::BTreeMap;

use numacast::nrt::{self, NodeResourceTopology, NodeResourceTopologyFields};
use numacast::quantity::Quantity;
use numacast_sim::kubelet::{Amounts, Expected, PodSpec, Split};
use numacast_sim::machine::NodeSpec;
use serde_json::json;

use super::{Node, immediate, spec};

fn memory_group(group: &str) -> nrt::AttributeInfo {
    nrt::AttributeInfo { name: "memoryGroup".into(), value: group.to_owned() }
}

/// The object with exactly the oracle's zones.
fn correct_object(expected: &Expected) -> NodeResourceTopology {
    let resource = |(name, amounts): (&String, &Amounts)| nrt::ResourceInfo {
        name: name.clone(),
        capacity: amounts.capacity.into(),
        allocatable: amounts.allocatable.into(),
        available: amounts.available.into(),
    };
    let zone = |(id, resources): (&u16, &BTreeMap<String, Amounts>)| nrt::Zone {
        name: nrt::zone_name(*id),
        kind: nrt::ZONE_TYPE.into(),
        resources: Some(resources.iter().map(resource).collect()),
        attributes: expected.memory_groups.get(id).map(|group| vec![memory_group(group)]),
        ..nrt::Zone::default()
    };
    let zones = expected.zones.iter().map(zone).collect();
    let fields = NodeResourceTopologyFields { zones, ..Default::default() };
    NodeResourceTopology::new("w", fields)
}

#[tokio::test]
async fn the_oracle_reports_every_wrong_amount() {
    let node = Node::new(&spec("best-effort"), immediate());
    node.kubelet.start_pod(PodSpec::guaranteed("db", 2, 1 << 30)).await.unwrap();
    let expected = node.kubelet.expected();
    let object = correct_object(&expected);
    assert_eq!(expected.differences(&object, Split::PerNode), Vec::<String>::new());
    for zone in 0..2 {
        for resource in 0..expected.zones[&0].len() {
            for number in 0..3 {
                let mut wrong = object.clone();
                let resource = &mut wrong.spec.zones[zone].resources.as_mut().unwrap()[resource];
                let numbers = [&mut resource.capacity, &mut resource.allocatable, &mut resource.available];
                let number = numbers.into_iter().nth(number).unwrap();
                *number = (number.ceil() + 1).into();
                let differences = expected.differences(&wrong, Split::PerGroup);
                assert_eq!(differences.len(), 1, "{differences:?}");
            }
            let mut wrong = object.clone();
            wrong.spec.zones[zone].resources.as_mut().unwrap().remove(resource);
            assert_eq!(expected.differences(&wrong, Split::PerNode).len(), 1);
        }
        let mut wrong = object.clone();
        wrong.spec.zones.remove(zone);
        assert_eq!(expected.differences(&wrong, Split::PerNode), [format!("node-{zone} is missing")]);
    }
    let mut filled = object.clone();
    let filler = nrt::Zone { name: "node-7".into(), attributes: None, ..object.spec.zones[0].clone() };
    filled.spec.zones.push(filler);
    assert_eq!(expected.differences(&filled, Split::PerNode).len(), 4, "an additional zone must be empty");
    for resource in filled.spec.zones[2].resources.as_mut().unwrap() {
        (resource.capacity, resource.allocatable, resource.available) = (0.into(), 0.into(), 0.into());
    }
    assert_eq!(expected.differences(&filled, Split::PerNode), Vec::<String>::new());
    for (name, problem) in
        [("node-0", "node-0 is repeated"), ("socket-0", "\"socket-0\" is not the name of a zone")]
    {
        let mut wrong = object.clone();
        wrong.spec.zones.push(nrt::Zone { name: name.into(), ..object.spec.zones[0].clone() });
        assert_eq!(expected.differences(&wrong, Split::PerNode), [problem]);
    }
    let mut wrong = object.clone();
    let resources = wrong.spec.zones[0].resources.as_mut().unwrap();
    resources.push(resources[0].clone());
    let problem = format!("node-0 {} is repeated", resources[0].name);
    assert_eq!(expected.differences(&wrong, Split::PerNode), [problem]);
}

#[tokio::test]
async fn within_a_group_only_the_sum_of_free_memory_is_compared() {
    let node = Node::new(&spec("best-effort"), immediate());
    node.kubelet.start_pod(PodSpec::guaranteed("huge", 1, 9 << 30)).await.unwrap();
    let expected = node.kubelet.expected();
    let mut object = correct_object(&expected);
    for attributes in [None, Some(vec![memory_group("1")])] {
        let mut wrong = object.clone();
        wrong.spec.zones[1].attributes = attributes;
        assert_eq!(expected.differences(&wrong, Split::PerNode).len(), 1);
    }
    for (zone, free) in [(0, 1_u64 << 30), (1, 3 << 30)] {
        let resources = object.spec.zones[zone].resources.as_mut().unwrap();
        let memory = resources.iter_mut().find(|resource| resource.name == "memory").unwrap();
        memory.available = free.into();
    }
    assert_eq!(expected.differences(&object, Split::PerGroup), Vec::<String>::new());
    assert_eq!(expected.differences(&object, Split::PerNode).len(), 2);
    let resources = object.spec.zones[0].resources.as_mut().unwrap();
    resources.iter_mut().find(|resource| resource.name == "memory").unwrap().available = 0.into();
    assert_eq!(
        expected.differences(&object, Split::PerGroup),
        ["nodes {0, 1} together memory: 3221225472 available instead of 4294967296"]
    );
}

#[tokio::test]
async fn allocatable_matches_the_oracle() {
    let mut node = Node::new(&spec("best-effort"), immediate());
    let allocatable = node.client.allocatable().await.unwrap().0;
    assert_eq!(allocatable.cpus.to_string(), "1-3,5-15");
    let expected = node.kubelet.expected();
    for block in &allocatable.memory {
        let zone = block.nodes.iter().next().unwrap();
        assert_eq!(expected.zones[&zone][&block.resource].allocatable, block.bytes);
    }
    assert_eq!(allocatable.memory.len(), 4);
    assert!(allocatable.devices.iter().any(|group| group.nodes.is_empty()), "a device without topology");
}

#[tokio::test]
async fn changed_hardware_is_capacity_at_once_and_allocatable_after_a_reset() {
    let machine = spec("best-effort");
    let mut node = Node::new(&machine, immediate());
    let mut changed = machine.clone();
    changed.nodes[0].cpus = "0-6".parse().unwrap();
    changed.nodes[0].offline_cpus = "7".parse().unwrap();
    changed.nodes[0].memory = Quantity::whole((8 << 30) - 4096);
    changed.nodes[1].memory = Quantity::whole(10 << 30);
    changed.nodes.push(NodeSpec { id: 5, memory: Quantity::whole(4 << 30), ..NodeSpec::default() });
    node.kubelet.set_hardware(&changed);
    assert_eq!(node.client.allocatable().await.unwrap().0.cpus.len(), 14, "the kubelet does not notice");
    let amounts = |capacity, allocatable| Amounts { capacity, allocatable, available: allocatable };
    let of = |node: &Node, zone: u16, name: &str| node.kubelet.expected().zones[&zone][name];
    assert_eq!(of(&node, 0, "cpu"), amounts(7, 5));
    assert_eq!(of(&node, 0, "memory"), amounts((8 << 30) - 4096, 6 << 30));
    assert_eq!(of(&node, 1, "memory"), amounts(10 << 30, 7 << 30));
    assert_eq!((of(&node, 5, "memory"), of(&node, 5, "cpu")), (amounts(4 << 30, 0), amounts(0, 0)));

    node.kubelet.stop();
    node.kubelet.reset();
    node.kubelet.boot().unwrap();
    node.kubelet.set_ready(true, true);
    assert_eq!(node.client.allocatable().await.unwrap().0.cpus.len(), 13);
    assert_eq!(of(&node, 1, "memory"), amounts(10 << 30, 9 << 30));
    assert_eq!(of(&node, 5, "memory"), amounts(4 << 30, 4 << 30));
}

#[tokio::test]
async fn without_managers_the_oracle_uses_the_current_hardware() {
    let mut machine = spec("none");
    machine.kubelet = json!({"kubeReserved": {"cpu": "1500m"}}).as_object().unwrap().clone();
    let node = Node::new(&machine, immediate());
    assert_eq!(node.kubelet.expected().zones[&0]["cpu"].allocatable, 6, "CPUs 0 and 1 are the lowest");
    machine.nodes[0].cpus = "0,2-7".parse().unwrap();
    node.kubelet.set_hardware(&machine);
    let amounts = node.kubelet.expected().zones[&0]["cpu"];
    assert_eq!((amounts.capacity, amounts.allocatable), (7, 5), "CPUs 0 and 2 are the lowest now");
}
