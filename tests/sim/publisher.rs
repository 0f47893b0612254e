//! The agent's object in a cluster with other writers: its owner, its field managers, and its previous
//! content.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use numacast::agent::{Agent, Settings};
use numacast::cluster::{Cluster, ClusterError, NewEvent, Regarding};
use numacast::config::Config;
use numacast::nrt::NodeResourceTopology;
use numacast::sim::api_server::{ApiServer, Change, EVENTS, Fault, NODES, PODS, Rule, TOPOLOGIES};
use numacast::sim::kubelet::PodSpec;
use numacast::telemetry::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;

use crate::agent::{World, quick, server};
use crate::support::SimNode;

const GIB: u64 = 1 << 30;

/// Returns a zone as another publisher writes it.
fn zone(resources: &[&str]) -> Value {
    let one = |name: &&str| json!({"name": name, "capacity": "9", "allocatable": "9", "available": "9"});
    json!({"name": "node-0", "type": "Node", "resources": resources.iter().map(one).collect::<Vec<_>>()})
}

/// Returns an object left behind by another publisher.
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

/// Returns the attributes except those about pods.
fn attributes(object: &NodeResourceTopology) -> BTreeMap<String, String> {
    let all = object.spec.attributes.iter().flatten();
    let of_pods = ["nodeTopologyPodsFingerprint", "topology.node.k8s.io/numaplacement"];
    let all = all.filter(|attribute| !of_pods.iter().any(|start| attribute.name.starts_with(start)));
    all.map(|attribute| (attribute.name.clone(), attribute.value.clone())).collect()
}

fn owners(server: &ApiServer) -> Vec<String> {
    let object = server.topology("worker").unwrap();
    let all = object.metadata.owner_references.into_iter().flatten();
    all.map(|owner| format!("{} {} {}", owner.kind, owner.name, owner.uid)).collect()
}

/// Makes the kubelet's configuration unreadable.
fn without_config(settings: &mut Settings) {
    settings.kubelet_config.files.file = Some("/nowhere/config.yaml".into());
}

const POLICIES: [(&str, &str); 2] =
    [("topologyManagerPolicy", "single-numa-node"), ("topologyManagerScope", "pod")];

#[tokio::test]
async fn policies_and_devices_of_the_standing_object_are_carried_over() {
    let server = server().await;
    let mut was = left_behind(&POLICIES, &["cpu", "example.com/away", "hugepages-3Mi"]);
    let fingerprint = json!({"name": "nodeTopologyPodsFingerprint", "value": "pfp0v001bb89419dce9a8948"});
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
    assert_eq!(attributes(&object), expected.into());
    let fingerprint = json!({"name": "nodeTopologyPodsFingerprint", "value": "pfp0v001ef46db3751d8e999"});
    let all = serde_json::to_value(&object).unwrap();
    assert!(all["attributes"].as_array().unwrap().contains(&fingerprint), "no pods, not those of before");
    assert_eq!(world.available(0, "example.com/away"), 0);
    assert_eq!(world.available(1, "example.com/away"), 0);
    let names: Vec<&str> =
        object.spec.zones[0].resources.iter().flatten().map(|resource| resource.name.as_str()).collect();
    assert!(!names.contains(&"hugepages-3Mi"), "the kernel knows no such pages: {names:?}");
    world.stop().await;
}

#[tokio::test]
async fn policies_that_nobody_can_read_stay_for_an_hour_and_are_reported_once() {
    let server = server().await;
    server.put(&TOPOLOGIES, left_behind(&POLICIES, &["cpu"])).unwrap();
    let world = World::with(SimNode::with(quick()), server, without_config);
    let kept = || {
        let object = world.server.topology("worker")?;
        (object.spec.zones.len() == 2 && attributes(&object).len() == 2).then_some(())
    };
    world.until(kept).await;
    let lists = world.node.kubelet.calls().list;
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    tokio::time::resume();
    let lists = world.node.kubelet.calls().list - lists;
    assert!(lists > 300, "the agent was at work, with {lists} Lists");
    kept().expect("the policies have vanished");
    assert_eq!(world.server.writes().changes, 1, "with them, and never without");
    let events = world.server.list(&EVENTS, "default");
    let unknown = events.iter().filter(|event| event["reason"] == "PoliciesUnknown");
    let notes: Vec<&str> = unknown.map(|event| event["note"].as_str().unwrap()).collect();
    assert!(matches!(notes[..], [note] if note.contains("keeps the policies")), "{notes:?}");
    world.node.kubelet.start_pod(PodSpec::guaranteed("a", 2, GIB)).await.unwrap();
    world.agrees().await;
    kept().expect("the policies have vanished with a pod");
    world.stop().await;
}

#[tokio::test]
async fn a_single_pass_keeps_policies_that_nobody_can_read() {
    let server = server().await;
    server.put(&TOPOLOGIES, left_behind(&POLICIES, &["cpu"])).unwrap();
    let node = SimNode::with(quick());
    let mut config = Config { node_name: "worker".into(), ..Config::default() };
    config.host.root = node.root().to_owned();
    let mut settings = config.agent_settings();
    without_config(&mut settings);
    let cluster = Cluster::with_client(server.client().unwrap(), server.url(), Duration::from_secs(5));
    Agent::new(settings, cluster, &mut Registry::default()).run_once().await.unwrap();
    let object = server.topology("worker").unwrap();
    assert_eq!(object.spec.zones.len(), 2);
    let expected = POLICIES.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(attributes(&object), expected.into());
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
    // The Node was recreated, and garbage collection has not run yet.
    let mut was = left_behind(&[], &["cpu"]);
    was["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Node", "name": "worker", "uid": "before"}]);
    server.put(&TOPOLOGIES, was).unwrap();
    let world = World::with(SimNode::with(quick()), server, |_| {});
    world.agrees().await;
    assert_eq!(owners(&world.server), ["Node worker before"]);
    // Garbage collection deletes the object.
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

/// The chart's admission policy does this while the agent's token names a Node that was recreated.
#[tokio::test]
async fn an_object_whose_owner_a_policy_refuses_is_made_without_one() {
    let server = server().await;
    server.fail_next("patch", TOPOLOGIES.plural, 1, Fault::Status(403));
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

fn topologies(server: &ApiServer) -> Api<NodeResourceTopology> {
    Api::all(server.client().unwrap())
}

/// Edits the object as `manager`.
async fn edit(server: &ApiServer, manager: &str, patch: Value) {
    let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
    topologies(server).patch("worker", &params, &Patch::Merge(patch)).await.unwrap();
}

/// Returns the number of foreign writes that the agent has counted.
fn foreign_writes(world: &World) -> u64 {
    let metrics = world.metrics.encode();
    let mut samples = metrics.lines().filter_map(|line| line.split_once(' '));
    let sample = samples.find(|(name, _)| *name == r#"numacast_foreign_writes_total{writer="manager"}"#);
    sample.and_then(|(_, value)| value.parse().ok()).unwrap_or_default()
}

/// Returns the field managers of the object's changes since the last call.
fn writers(changes: &mut Receiver<Arc<Change>>) -> Vec<String> {
    let mut found = Vec::new();
    while let Ok(change) = changes.try_recv() {
        if change.kind == &TOPOLOGIES {
            found.push(change.manager.clone());
        }
    }
    found
}

/// Returns the reasons and notes of the Events about the Node.
fn told(server: &ApiServer) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let events = server.list(&EVENTS, "default");
    let about =
        |event: &&Arc<Value>| event["regarding"]["kind"] == "Node" && event["regarding"]["name"] == "worker";
    events.iter().filter(about).map(|event| (text(&event["reason"]), text(&event["note"]))).collect()
}

fn was_told(server: &ApiServer, reason: &str, part: &str) -> Option<()> {
    told(server).iter().any(|(why, note)| why == reason && note.contains(part)).then_some(())
}

async fn started(change: impl FnOnce(&mut Settings)) -> World {
    let world = World::with(SimNode::with(quick()), server().await, change);
    world.agrees().await;
    // The watch starts after the first write.
    world.until(|| (world.server.watchers(&TOPOLOGIES) > 0).then_some(())).await;
    world
}

fn unwatched(settings: &mut Settings) {
    settings.watch_object = false;
    settings.refresh = Duration::from_millis(200);
}

#[tokio::test]
async fn a_deleted_object_is_made_again() {
    let world = started(|_| {}).await;
    for _ in 0..3 {
        assert!(world.server.delete(&TOPOLOGIES, "", "worker"));
        world.agrees().await;
        assert_eq!(owners(&world.server).len(), 1);
    }
    world.stop().await;
}

#[tokio::test]
async fn an_edit_is_written_over_and_told() {
    let world = started(|_| {}).await;
    edit(&world.server, "kubectl-edit", json!({"zones": [zone(&["cpu"])]})).await;
    world.agrees().await;
    world
        .until(|| was_told(&world.server, "ObjectTakenOver", "somebody with `kubectl-edit` changed zones"))
        .await;
    // Removed fields have no field manager.
    edit(&world.server, "kubectl-patch", json!({"attributes": null})).await;
    world.until(|| (!attributes(&world.server.topology("worker")?).is_empty()).then_some(())).await;
    world.stop().await;
}

#[tokio::test]
async fn labels_and_annotations_are_their_writers_business() {
    let world = started(|_| {}).await;
    let theirs =
        json!({"labels": {"team": "a"}, "annotations": {"k8stopoawareschedwg/rte-update": "periodic"}});
    edit(&world.server, "kubectl-label", json!({"metadata": theirs})).await;
    let requests = world.server.writes().requests;
    assert!(world.node.kubelet.set_device_health("example.com/nic", "nic-0", false));
    world.agrees().await;
    let object = world.server.topology("worker").unwrap();
    assert_eq!(object.metadata.labels.unwrap()["team"], "a");
    assert_eq!(object.metadata.annotations.unwrap().len(), 1);
    assert_eq!(world.server.writes().requests, requests + 1, "only the device was worth a write");
    world.stop().await;
}

/// Creates an object with what NFD and RTE leave behind and server-side apply does not remove.
async fn leave_behind(server: &ApiServer) {
    let mut was =
        left_behind(&[("topologyManagerPolicy", "none"), ("topologyManagerScope", "pod")], &["cpu"]);
    was["topologyPolicies"] = json!(["SingleNUMANodePodLevel"]);
    was["metadata"]["annotations"] =
        json!({"topology.node.k8s.io/fingerprint": "pfp0v001ef46db3751d8e999", "note": "mine"});
    was["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Namespace", "name": "nfd", "uid": "n"}]);
    let object: NodeResourceTopology = serde_json::from_value(was).unwrap();
    let params = PostParams { field_manager: Some("nfd".to_owned()), ..PostParams::default() };
    topologies(server).create(&params, &object).await.unwrap();
}

fn is_clean(server: &ApiServer) -> Option<()> {
    let object = server.topology("worker")?;
    let annotations = object.metadata.annotations.unwrap_or_default();
    let clean = object.spec.topology_policies.is_none() && annotations.keys().eq(["note"]);
    (clean && owners(server)[0].starts_with("Node worker ") && owners(server).len() == 1).then_some(())
}

#[tokio::test]
async fn what_another_publisher_left_is_taken_over_once() {
    let server = server().await;
    leave_behind(&server).await;
    let world = World::with(SimNode::with(quick()), server, |_| {});
    world.agrees().await;
    world.until(|| is_clean(&world.server)).await;
    world
        .until(|| was_told(&world.server, "ObjectTakenOver", "`nfd` wrote the NodeResourceTopology worker"))
        .await;
    world.stop().await;
}

#[tokio::test]
async fn a_publisher_that_rewrites_is_reported_and_not_answered() {
    let world = started(|_| {}).await;
    let truth = world.server.topology("worker").unwrap();
    edit(&world.server, "rte", json!({"zones": [zone(&["cpu"])]})).await;
    world.agrees().await;
    let mut changes = world.server.changes();
    for turn in 0..20 {
        edit(&world.server, "rte", json!({"zones": [zone(&["cpu", &format!("example.com/{turn}")])]})).await;
    }
    world.until(|| was_told(&world.server, "CompetingPublisher", "`rte` keeps rewriting")).await;
    assert_eq!(writers(&mut changes), ["rte"; 20]);
    // The controller's nudges do not count as rewrites.
    for turn in 20..23 {
        let nudge = json!({"metadata": {"annotations": {"numacast.io/nudge": turn.to_string()}}});
        edit(&world.server, "numacast", nudge).await;
    }
    edit(&world.server, "rte", json!({"zones": [zone(&["cpu"])]})).await;
    world.until(|| (foreign_writes(&world) >= 22).then_some(())).await;
    assert_eq!(foreign_writes(&world), 22, "the first edit, and 21 rewrites");
    writers(&mut changes);
    // Our own changes are still written.
    assert!(world.node.kubelet.set_device_health("example.com/nic", "nic-0", false));
    world.agrees().await;
    assert_eq!(writers(&mut changes), ["numacast"]);
    edit(&world.server, "rte", json!({"zones": truth.spec.zones})).await;
    let told = told(&world.server);
    assert_eq!(told.iter().filter(|(reason, _)| reason == "CompetingPublisher").count(), 1, "{told:?}");
    world.stop().await;
}

#[tokio::test]
async fn a_rival_is_fought_on_request() {
    let world = started(|settings| settings.conflicts = ConflictPolicy::Overwrite).await;
    for turn in 0..4 {
        let zones = json!([zone(&["cpu", &format!("example.com/{turn}")])]);
        edit(&world.server, "rte", json!({"zones": zones})).await;
        world.agrees().await;
    }
    world.until(|| was_told(&world.server, "CompetingPublisher", "`rte` keeps rewriting")).await;
    world.stop().await;
}

#[tokio::test]
async fn two_agents_of_one_node_do_not_write_for_ever() {
    let world = started(|_| {}).await;
    let mut changes = world.server.changes();
    for turn in 0..10 {
        let mut wrong = left_behind(&[], &["cpu", &format!("example.com/{turn}")]);
        wrong["metadata"]["ownerReferences"] =
            json!(world.server.topology("worker").unwrap().metadata.owner_references);
        let params = PatchParams::apply("numacast").force();
        topologies(&world.server).patch("worker", &params, &Patch::Apply(wrong)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    world.until(|| was_told(&world.server, "CompetingPublisher", "another `numacast` keeps")).await;
    assert_eq!(writers(&mut changes).len(), 10 + 3, "theirs, and three answers");
    world.stop().await;
}

#[tokio::test]
async fn without_a_watch_a_refresh_finds_it() {
    let world = World::with(SimNode::with(quick()), server().await, unwatched);
    world.agrees().await;
    world.server.set_denied("watch", TOPOLOGIES.plural, true);
    edit(&world.server, "kubectl-edit", json!({"zones": [zone(&["cpu"])]})).await;
    world.agrees().await;
    assert!(world.server.delete(&TOPOLOGIES, "", "worker"));
    world.agrees().await;
    assert_eq!(world.server.watchers(&TOPOLOGIES), 0);
    world.stop().await;
}

#[tokio::test]
async fn a_watch_that_breaks_misses_nothing() {
    let world = started(|_| {}).await;
    // The history is gone, so the watch cannot resume, and the edit happens while it is disconnected.
    world.server.cut_connections();
    edit(&world.server, "kubectl-edit", json!({"zones": [zone(&["cpu"])]})).await;
    world.server.compact_history();
    world.agrees().await;
    world.until(|| (world.server.watchers(&TOPOLOGIES) > 0).then_some(())).await;
    // A new watch reports no event for a missing object.
    world.server.cut_connections();
    world.server.delete(&TOPOLOGIES, "", "worker");
    world.server.compact_history();
    world.agrees().await;
    world.until(|| (world.server.watchers(&TOPOLOGIES) > 0).then_some(())).await;
    world.server.stop();
    world.until(|| (world.server.watchers(&TOPOLOGIES) == 0).then_some(())).await;
    world.server.delete(&TOPOLOGIES, "", "worker");
    world.server.resume().await.unwrap();
    world.agrees().await;
    world.stop().await;
}

#[tokio::test]
async fn an_object_that_is_older_than_the_history_is_watched() {
    let world = started(|_| {}).await;
    // As after a restart of the API server: the object's resource version is too old.
    world.server.add_node("another").unwrap();
    world.server.cut_connections();
    world.server.compact_history();
    world.until(|| (world.server.watchers(&TOPOLOGIES) == 0).then_some(())).await;
    world.until(|| (world.server.watchers(&TOPOLOGIES) > 0).then_some(())).await;
    edit(&world.server, "kubectl-edit", json!({"zones": [zone(&["cpu"])]})).await;
    world.agrees().await;
    world.stop().await;
}

#[tokio::test]
async fn a_node_that_is_made_anew_gets_an_object_of_its_own() {
    let world = started(|settings| settings.refresh = Duration::from_millis(300)).await;
    let before = owners(&world.server);
    // Garbage collection deletes the object while there is no Node.
    assert!(world.server.delete(&NODES, "", "worker"));
    world.until(|| world.server.topology("worker").is_none().then_some(())).await;
    let uid = world.server.add_node("worker").unwrap();
    world.agrees().await;
    assert_eq!(owners(&world.server), [format!("Node worker {uid}")]);
    assert_ne!(owners(&world.server), before);
    world.stop().await;
}

#[tokio::test]
async fn an_owner_that_garbage_collection_leaves_is_told() {
    let server = server().await;
    let mut was = left_behind(&[], &["cpu"]);
    was["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Node", "name": "worker", "uid": "before"}]);
    server.put(&TOPOLOGIES, was).unwrap();
    let world = World::with(SimNode::with(quick()), server, |settings| {
        settings.refresh = Duration::from_millis(300);
    });
    world.until(|| was_told(&world.server, "StaleOwner", "belongs to an earlier Node worker")).await;
    assert_eq!(owners(&world.server), ["Node worker before"], "and left");
    world.stop().await;
}

#[tokio::test]
async fn an_object_that_was_replaced_unseen_is_looked_at_and_written_once_more() {
    let world = World::with(SimNode::with(quick()), server().await, |settings| settings.watch_object = false);
    world.agrees().await;
    assert!(world.server.delete(&TOPOLOGIES, "", "worker"));
    world.server.put(&TOPOLOGIES, left_behind(&[], &["cpu"])).unwrap();
    world.node.kubelet.start_pod(PodSpec::guaranteed("a", 2, GIB)).await.unwrap();
    world.agrees().await;
    assert_eq!(owners(&world.server), [""; 0], "it is not the object that the Node owned");
    world.stop().await;
}

#[tokio::test]
async fn whatever_the_server_answers_the_newest_account_gets_there() {
    let world = started(|_| {}).await;
    let faults = [
        Fault::Status(409),
        Fault::Status(422),
        Fault::RetryAfter { code: 429, seconds: 1 },
        Fault::RetryAfter { code: 503, seconds: 1 },
        Fault::Status(504),
        Fault::CutAfterwards,
        Fault::Hang,
    ];
    for (index, fault) in faults.into_iter().enumerate() {
        world.server.fail_next("patch", TOPOLOGIES.plural, 2, fault);
        world.node.kubelet.start_pod(PodSpec::guaranteed(&format!("p{index}"), 1, GIB)).await.unwrap();
        world.agrees().await;
    }
    assert_eq!(told(&world.server), [], "nobody else wrote");
    world.stop().await;
}

#[tokio::test]
async fn events_that_nobody_may_create_disturb_nothing() {
    let world = started(|_| {}).await;
    world.server.set_denied("create", EVENTS.plural, true);
    edit(&world.server, "kubectl-edit", json!({"zones": [zone(&["cpu"])]})).await;
    world.agrees().await;
    assert_eq!(told(&world.server), []);
    world.stop().await;
}

#[tokio::test]
async fn a_start_and_a_watch_that_are_frozen_do_not_stop_the_end() {
    let server = server().await;
    server.set_frozen(true);
    let world = World::with(SimNode::with(quick()), server, |_| {});
    tokio::time::timeout(Duration::from_secs(60), world.stop()).await.unwrap();
    let world = started(|_| {}).await;
    world.server.set_frozen(true);
    tokio::time::timeout(Duration::from_secs(60), world.stop()).await.unwrap();
}

/// Returns `object` with an entry in its `managedFields` that is nested deeper than serde_json decodes values.
fn nested(mut object: Value) -> Value {
    let fields = (0..200).fold(json!({}), |below, _| json!({"f:a": below}));
    let entry = json!({"manager": "x", "operation": "Update", "apiVersion": "topology.node.k8s.io/v1alpha2",
        "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": fields});
    match object["metadata"]["managedFields"].as_array_mut() {
        Some(entries) => entries.push(entry),
        None => object["metadata"]["managedFields"] = json!([entry]),
    }
    object
}

fn is_nested(server: &ApiServer) -> bool {
    let object = server.get(&TOPOLOGIES, "", "worker").unwrap();
    object["metadata"]["managedFields"].as_array().unwrap().iter().any(|entry| entry["manager"] == "x")
}

#[tokio::test]
async fn managed_fields_that_are_nested_deeply_lock_no_agent_out() {
    let server = server().await;
    server.put(&TOPOLOGIES, nested(left_behind(&POLICIES, &["cpu"]))).unwrap();
    let world = World::with(SimNode::with(quick()), server, |_| {});
    world.agrees().await;
    world.node.kubelet.start_pod(PodSpec::guaranteed("a", 2, GIB)).await.unwrap();
    world.agrees().await;
    assert!(is_nested(&world.server), "an apply leaves the entry");
    let world = world.halt().await.again(|_| {});
    world.node.kubelet.start_pod(PodSpec::guaranteed("b", 2, GIB)).await.unwrap();
    world.agrees().await;
    assert!(is_nested(&world.server));
    world.stop().await;
}

#[tokio::test]
async fn an_entry_that_comes_later_does_not_end_the_watch() {
    let world = World::start(quick()).await;
    world.agrees().await;
    let mut edited = nested((*world.server.get(&TOPOLOGIES, "", "worker").unwrap()).clone());
    edited["zones"] = json!([zone(&["cpu"])]);
    world.server.put(&TOPOLOGIES, edited).unwrap();
    world.agrees().await;
    assert!(is_nested(&world.server));
    world.stop().await;
}

#[tokio::test]
async fn every_call_says_how_long_the_server_wants_to_be_left_alone() {
    let server = server().await;
    server.set_koordinator(true);
    let cluster = Cluster::with_client(server.client().unwrap(), server.url(), Duration::from_secs(5));
    let object: NodeResourceTopology = serde_json::from_value(left_behind(&POLICIES, &["cpu"])).unwrap();
    cluster.apply(&object).await.unwrap();
    let meta = cluster.topology_metas().next().await.unwrap().unwrap().remove(0);
    let lease = cluster.create_lease("default", "l", Default::default()).await.unwrap();
    let event = NewEvent {
        regarding: Regarding::Objects,
        reporter: "numacast/agent",
        instance: "i",
        action: "Act",
        warning: false,
        reason: "Reason",
        note: "note",
    };
    let fault = Fault::TooManyRequests { retry_after: 3 };
    server.inject(Rule { verb: None, resource: None, times: None, fault });
    fn asked<T>(what: &str, answer: Result<T, ClusterError>) {
        let error = answer.err().unwrap();
        assert_eq!(error.kind(), "too_many_requests", "{what}: {error}");
        assert_eq!(error.retry_after(), Some(Duration::from_secs(3)), "{what}");
    }
    asked("get object", cluster.topology("worker").await);
    asked("apply", cluster.apply(&object).await);
    asked("merge", cluster.nudge("worker", "now").await);
    asked("delete", cluster.delete_topology(&meta).await);
    asked("list objects", cluster.topology_summaries().next().await);
    asked("get node", cluster.node_uid("worker").await);
    asked("get kubelet", cluster.kubelet_endpoint("worker").await);
    asked("look for node", cluster.has_no_node("worker").await);
    asked("count nodes", cluster.node_count().await);
    asked("get daemonset", cluster.daemon_set("default", "d").await);
    asked("get lease", cluster.lease("default", "l").await);
    asked("create lease", cluster.create_lease("default", "l", Default::default()).await);
    asked("replace lease", cluster.replace_lease("default", lease).await);
    asked("get device", cluster.devices_of("worker").await);
    asked("create event", cluster.create_event(event).await);
    let mut pods = cluster.unscheduled_pods();
    asked("list and watch", pods.next().await.unwrap());
    server.clear_faults();
    pods.next().await.unwrap().unwrap();
    let lists: Vec<_> = server.requests(&PODS).into_iter().map(|asked| asked.at).collect();
    let waited = lists[1] - lists[0];
    assert!(waited >= Duration::from_secs(3), "{waited:?}");
}

#[tokio::test]
async fn an_agent_that_is_throttled_waits_as_long_as_it_is_told() {
    let world = World::start(quick()).await;
    world.agrees().await;
    let patches = || {
        let all = world.server.requests(&TOPOLOGIES).into_iter().filter(|asked| asked.verb == "patch");
        all.map(|asked| asked.at).collect::<Vec<_>>()
    };
    let before = patches().len();
    world.server.fail_next("patch", TOPOLOGIES.plural, 1, Fault::TooManyRequests { retry_after: 3 });
    world.node.kubelet.start_pod(PodSpec::guaranteed("a", 1, GIB)).await.unwrap();
    world.until(|| (patches().len() > before).then_some(())).await;
    // What is new does not cut the wait short.
    world.node.kubelet.start_pod(PodSpec::guaranteed("b", 1, GIB)).await.unwrap();
    world.agrees().await;
    let patches = patches();
    let waited = patches[before + 1] - patches[before];
    assert!(waited >= Duration::from_secs(3), "{waited:?}");
    world.stop().await;
}
