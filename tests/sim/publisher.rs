//! The agent's object in a cluster where others have a say: who owns it, who writes it, and what it said before.

use std::collections::BTreeMap;
use std::time::Duration;

use numacast::agent::Settings;
use numacast::nrt::NodeResourceTopology;
use numacast::sim::api_server::{ApiServer, NODES, TOPOLOGIES};
use numacast::sim::kubelet::PodSpec;
use serde_json::{Value, json};

use crate::agent::{World, quick, server};
use crate::support::SimNode;

const GIB: u64 = 1 << 30;

/// What a zone of another publisher says.
fn zone(resources: &[&str]) -> Value {
    let one = |name: &&str| json!({"name": name, "capacity": "9", "allocatable": "9", "available": "9"});
    json!({"name": "node-0", "type": "Node", "resources": resources.iter().map(one).collect::<Vec<_>>()})
}

/// An object as it may have been left behind.
fn left_behind(attributes: &[(&str, &str)], resources: &[&str]) -> Value {
    let attribute = |(name, value): &(&str, &str)| json!({"name": name, "value": value});
    json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": "worker"},
        "zones": [zone(resources)],
        "attributes": attributes.iter().map(attribute).collect::<Vec<_>>(),
    })
}

fn attributes(object: &NodeResourceTopology) -> BTreeMap<String, String> {
    let all = object.spec.attributes.iter().flatten();
    all.map(|attribute| (attribute.name.clone(), attribute.value.clone())).collect()
}

fn owners(server: &ApiServer) -> Vec<String> {
    let object = server.topology("worker").unwrap();
    let all = object.metadata.owner_references.into_iter().flatten();
    all.map(|owner| format!("{} {} {}", owner.kind, owner.name, owner.uid)).collect()
}

/// The kubelet's configuration cannot be read.
fn without_config(settings: &mut Settings) {
    settings.kubelet_config = "/nowhere/config.yaml".into();
}

const POLICIES: [(&str, &str); 2] =
    [("topologyManagerPolicy", "single-numa-node"), ("topologyManagerScope", "pod")];

#[tokio::test]
async fn policies_and_devices_of_the_standing_object_are_carried_over() {
    let server = server().await;
    let mut was = left_behind(&POLICIES, &["cpu", "example.com/away", "hugepages-3Mi"]);
    let fingerprint = json!({"name": "nodeTopologyPodsFingerprint", "value": "pfp0v001ef46db3751d8e999"});
    was["attributes"].as_array_mut().unwrap().push(fingerprint);
    server.put(&TOPOLOGIES, was).unwrap();
    let world = World::with(SimNode::with(quick()), server, without_config);
    let written = || {
        let object = world.server.topology("worker")?;
        (object.spec.zones.len() == 2).then_some(())
    };
    world.until(written).await;
    let object = world.server.topology("worker").unwrap();
    let expected = POLICIES.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(attributes(&object), expected.into(), "no fingerprint, which nobody computes any more");
    assert_eq!(world.available(0, "example.com/away"), 0);
    assert_eq!(world.available(1, "example.com/away"), 0);
    let names: Vec<&str> =
        object.spec.zones[0].resources.iter().flatten().map(|resource| resource.name.as_str()).collect();
    assert!(!names.contains(&"hugepages-3Mi"), "the kernel knows no such pages: {names:?}");
    world.stop().await;
}

#[tokio::test]
async fn policies_that_nobody_can_read_are_carried_for_a_while_only() {
    let server = server().await;
    server.put(&TOPOLOGIES, left_behind(&POLICIES, &["cpu"])).unwrap();
    let world = World::with(SimNode::with(quick()), server, |settings| {
        without_config(settings);
        // A tenth of how long they are carried.
        settings.settle = Duration::from_millis(100);
        settings.poll = Duration::from_millis(200);
    });
    let with = |wanted: usize| {
        let object = world.server.topology("worker")?;
        (object.spec.zones.len() == 2 && attributes(&object).len() == wanted).then_some(())
    };
    world.until(|| with(0)).await;
    let changes = world.server.writes().changes;
    assert_eq!(changes, 2, "first with them, then without");
    world.stop().await;
}

#[tokio::test]
async fn a_policy_without_its_scope_is_not_carried_over() {
    let server = server().await;
    server.put(&TOPOLOGIES, left_behind(&POLICIES[..1], &["cpu"])).unwrap();
    let world = World::with(SimNode::with(quick()), server, without_config);
    let written = || (world.server.topology("worker")?.spec.zones.len() == 2).then_some(());
    world.until(written).await;
    assert_eq!(attributes(&world.server.topology("worker").unwrap()), BTreeMap::new());
    world.stop().await;
}

#[tokio::test]
async fn who_may_not_read_the_object_writes_it_all_the_same() {
    let server = server().await;
    server.set_denied("get", TOPOLOGIES.plural, true);
    let world = World::with(SimNode::with(quick()), server, |_| {});
    world.agrees().await;
    world.node.kubelet.start_pod(PodSpec::guaranteed("a", 2, GIB)).await.unwrap();
    world.agrees().await;
    assert_eq!(owners(&world.server).len(), 1);
    world.stop().await;
}

#[tokio::test]
async fn an_api_server_that_is_away_at_the_start_is_waited_for() {
    let server = server().await;
    server.put(&TOPOLOGIES, left_behind(&POLICIES, &["cpu"])).unwrap();
    server.stop();
    let world = World::with(SimNode::with(quick()), server, without_config);
    while world.node.kubelet.calls().list == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    world.server.resume().await.unwrap();
    let written = || (world.server.topology("worker")?.spec.zones.len() == 2).then_some(());
    world.until(written).await;
    assert_eq!(attributes(&world.server.topology("worker").unwrap()).len(), 2, "they were waited for");
    world.stop().await;
}

#[tokio::test]
async fn an_owner_is_set_with_the_object_and_never_changed() {
    let server = server().await;
    // The Node was made anew, and garbage collection has not come by yet.
    let mut was = left_behind(&[], &["cpu"]);
    was["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Node", "name": "worker", "uid": "before"}]);
    server.put(&TOPOLOGIES, was).unwrap();
    let world = World::with(SimNode::with(quick()), server, |_| {});
    world.agrees().await;
    assert_eq!(owners(&world.server), ["Node worker before"]);
    // Now it comes.
    assert!(world.server.delete(&TOPOLOGIES, "", "worker"));
    world.node.kubelet.start_pod(PodSpec::guaranteed("a", 2, GIB)).await.unwrap();
    world.agrees().await;
    let node = world.server.get(&NODES, "", "worker").unwrap();
    assert_eq!(owners(&world.server), [format!("Node worker {}", node["metadata"]["uid"].as_str().unwrap())]);
    world.stop().await;
}

#[tokio::test]
async fn an_object_that_nobody_owns_stays_so() {
    let server = server().await;
    server.put(&TOPOLOGIES, left_behind(&[], &["cpu"])).unwrap();
    let world = World::with(SimNode::with(quick()), server, |_| {});
    world.agrees().await;
    assert_eq!(owners(&world.server), [""; 0]);
    world.stop().await;
}

#[tokio::test]
async fn without_owner_references_the_node_is_never_asked_for() {
    let server = server().await;
    server.set_denied("get", NODES.plural, true);
    let world = World::with(SimNode::with(quick()), server, |settings| settings.owner_reference = false);
    world.agrees().await;
    assert_eq!(owners(&world.server), [""; 0]);
    world.stop().await;
}
