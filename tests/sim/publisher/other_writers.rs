//! Other writers of the object: edits, deletions, and competing publishers.

use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use numacast::agent::{ConflictPolicy, Settings};
use numacast::nrt::NodeResourceTopology;
use numacast_sim::api_server::{ApiServer, Change, EVENTS, TOPOLOGIES};
use numacast_sim::kubelet::PodSpec;
use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;

use super::{
    GIB, attributes, foreign_object, node_events, owners, synced, wait_for_report, wait_for_watch, zone,
};
use crate::environment::{Environment, api_server, quick};
use crate::support::{Node, sample};

fn topologies(server: &ApiServer) -> Api<NodeResourceTopology> {
    Api::all(server.client().unwrap())
}

/// Edits the object as `manager`.
async fn edit(server: &ApiServer, manager: &str, patch: Value) {
    let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
    topologies(server).patch("worker", &params, &Patch::Merge(patch)).await.unwrap();
}

/// Returns the number of foreign writes that the agent has counted.
fn foreign_writes(env: &Environment) -> u64 {
    let series = r#"numacast_foreign_writes_total{writer="other"}"#;
    sample(&env.metrics.encode(), series).map_or(0, |value| value.parse().unwrap())
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

/// Starts an agent that may not watch its object.
async fn unwatched(change: impl FnOnce(&mut Settings)) -> Environment {
    let server = api_server();
    server.set_denied("watch", TOPOLOGIES.plural, true);
    let env = Environment::with(Node::with(quick()), server, change);
    env.converges().await;
    env
}

#[tokio::test]
async fn a_deleted_object_is_recreated() {
    let env = synced(|_| {}).await;
    for _ in 0..3 {
        assert!(env.server.delete(&TOPOLOGIES, "", "worker"));
        env.converges().await;
        assert_eq!(owners(&env.server).len(), 1);
    }
    env.stop().await;
}

#[tokio::test]
async fn an_edit_is_overwritten_and_reported() {
    let env = synced(|_| {}).await;
    edit(&env.server, "kubectl-edit", json!({"zones": [zone(&["cpu"])]})).await;
    env.converges().await;
    let note = "a person with `kubectl-edit` changed zones";
    wait_for_report(&env, "ObjectTakenOver", note).await;
    // Removed fields have no field manager.
    edit(&env.server, "kubectl-patch", json!({"attributes": null})).await;
    let has_attributes = || (!attributes(&env.server.topology("worker")?).is_empty()).then_some(());
    env.wait_for("the attributes are written again", has_attributes).await;
    env.stop().await;
}

#[tokio::test]
async fn labels_and_annotations_of_others_are_left_alone() {
    let env = synced(|_| {}).await;
    let theirs =
        json!({"labels": {"team": "a"}, "annotations": {"k8stopoawareschedwg/rte-update": "periodic"}});
    edit(&env.server, "kubectl-label", json!({"metadata": theirs})).await;
    let requests = env.server.writes().requests;
    assert!(env.node.kubelet.set_device_health("example.com/nic", "nic-0", false));
    env.converges().await;
    let object = env.server.topology("worker").unwrap();
    assert_eq!(object.metadata.labels.unwrap()["team"], "a");
    assert_eq!(object.metadata.annotations.unwrap().len(), 1);
    assert_eq!(env.server.writes().requests, requests + 1, "only the device causes a write");
    env.stop().await;
}

/// Creates an object with fields of NFD and RTE that server-side apply does not remove.
async fn create_foreign_object(server: &ApiServer) {
    let mut object =
        foreign_object(&[("topologyManagerPolicy", "none"), ("topologyManagerScope", "pod")], &["cpu"]);
    object["topologyPolicies"] = json!(["SingleNUMANodePodLevel"]);
    object["metadata"]["annotations"] =
        json!({"topology.node.k8s.io/fingerprint": "pfp0v001ef46db3751d8e999", "note": "mine"});
    object["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Namespace", "name": "nfd", "uid": "n"}]);
    let object: NodeResourceTopology = serde_json::from_value(object).unwrap();
    let params = PostParams { field_manager: Some("nfd".to_owned()), ..PostParams::default() };
    topologies(server).create(&params, &object).await.unwrap();
}

fn is_clean(server: &ApiServer) -> Option<()> {
    let object = server.topology("worker")?;
    let annotations = object.metadata.annotations.unwrap_or_default();
    let is_clean = object.spec.topology_policies.is_none() && annotations.keys().eq(["note"]);
    (is_clean && owners(server)[0].starts_with("Node worker ") && owners(server).len() == 1).then_some(())
}

#[tokio::test]
async fn an_object_of_another_publisher_is_taken_over_once() {
    let server = api_server();
    create_foreign_object(&server).await;
    let env = Environment::with(Node::with(quick()), server, |_| {});
    env.converges().await;
    env.wait_for("the foreign fields are removed", || is_clean(&env.server)).await;
    let note = "`nfd` wrote the NodeResourceTopology worker";
    wait_for_report(&env, "ObjectTakenOver", note).await;
    env.stop().await;
}

#[tokio::test]
async fn a_competing_publisher_is_reported_and_not_overwritten() {
    let env = synced(|_| {}).await;
    let object = env.server.topology("worker").unwrap();
    edit(&env.server, "rte", json!({"zones": [zone(&["cpu"])]})).await;
    env.converges().await;
    let mut changes = env.server.changes();
    for round in 0..20 {
        edit(&env.server, "rte", json!({"zones": [zone(&["cpu", &format!("example.com/{round}")])]})).await;
    }
    wait_for_report(&env, "CompetingPublisher", "`rte` keeps rewriting").await;
    assert_eq!(writers(&mut changes), ["rte"; 20]);
    // The controller's nudges are not counted.
    for round in 20..23 {
        let nudge = json!({"metadata": {"annotations": {"numacast.io/nudge": round.to_string()}}});
        edit(&env.server, "numacast", nudge).await;
    }
    edit(&env.server, "rte", json!({"zones": [zone(&["cpu"])]})).await;
    env.wait_for("22 foreign writes are counted", || (foreign_writes(&env) >= 22).then_some(())).await;
    assert_eq!(foreign_writes(&env), 22, "the first edit, and 21 others");
    writers(&mut changes);
    // Our own changes are still written.
    assert!(env.node.kubelet.set_device_health("example.com/nic", "nic-0", false));
    env.converges().await;
    assert_eq!(writers(&mut changes), ["numacast"]);
    edit(&env.server, "rte", json!({"zones": object.spec.zones})).await;
    let events = node_events(&env.server);
    assert_eq!(events.iter().filter(|(reason, _)| reason == "CompetingPublisher").count(), 1, "{events:?}");
    env.stop().await;
}

#[tokio::test]
async fn a_competing_publisher_is_overwritten_if_configured() {
    let env = synced(|settings| settings.conflicts = ConflictPolicy::Overwrite).await;
    for round in 0..4 {
        let zones = json!([zone(&["cpu", &format!("example.com/{round}")])]);
        edit(&env.server, "rte", json!({"zones": zones})).await;
        env.converges().await;
    }
    wait_for_report(&env, "CompetingPublisher", "`rte` keeps rewriting").await;
    env.stop().await;
}

#[tokio::test]
async fn two_agents_of_one_node_do_not_write_forever() {
    let env = synced(|_| {}).await;
    let mut changes = env.server.changes();
    for round in 0..10 {
        let mut wrong = foreign_object(&[], &["cpu", &format!("example.com/{round}")]);
        wrong["metadata"]["ownerReferences"] =
            json!(env.server.topology("worker").unwrap().metadata.owner_references);
        let params = PatchParams::apply("numacast").force();
        topologies(&env.server).patch("worker", &params, &Patch::Apply(wrong)).await.unwrap();
        // The first three are overwritten, each before the next one.
        if round < 3 {
            env.converges().await;
        }
    }
    wait_for_report(&env, "CompetingPublisher", "another `numacast` keeps").await;
    assert_eq!(writers(&mut changes).len(), 10 + 3, "theirs, and three of ours");
    env.stop().await;
}

#[tokio::test]
async fn without_a_watch_a_refresh_repairs_the_object() {
    let env = unwatched(|settings| settings.refresh = Duration::from_millis(200)).await;
    edit(&env.server, "kubectl-edit", json!({"zones": [zone(&["cpu"])]})).await;
    env.converges().await;
    assert!(env.server.delete(&TOPOLOGIES, "", "worker"));
    env.converges().await;
    assert_eq!(env.server.watchers(&TOPOLOGIES), 0);
    env.stop().await;
}

#[tokio::test]
async fn a_broken_watch_misses_nothing() {
    let env = synced(|_| {}).await;
    // The history is gone, so the watch cannot resume, and the edit happens while it is disconnected.
    env.server.cut_connections();
    edit(&env.server, "kubectl-edit", json!({"zones": [zone(&["cpu"])]})).await;
    env.server.compact_history();
    env.converges().await;
    wait_for_watch(&env, true).await;
    // A new watch reports no event for a missing object.
    env.server.cut_connections();
    env.server.delete(&TOPOLOGIES, "", "worker");
    env.server.compact_history();
    env.converges().await;
    wait_for_watch(&env, true).await;
    env.server.stop();
    wait_for_watch(&env, false).await;
    env.server.delete(&TOPOLOGIES, "", "worker");
    env.server.resume();
    env.converges().await;
    env.stop().await;
}

#[tokio::test]
async fn an_object_older_than_the_history_is_watched() {
    let env = synced(|_| {}).await;
    // As after a restart of the API server: the object's resource version is too old.
    env.server.add_node("another").unwrap();
    env.server.cut_connections();
    env.server.compact_history();
    wait_for_watch(&env, false).await;
    wait_for_watch(&env, true).await;
    edit(&env.server, "kubectl-edit", json!({"zones": [zone(&["cpu"])]})).await;
    env.converges().await;
    env.stop().await;
}

#[tokio::test]
async fn an_unwatched_replacement_of_the_object_is_found_at_the_next_write() {
    let env = unwatched(|_| {}).await;
    assert!(env.server.delete(&TOPOLOGIES, "", "worker"));
    env.server.put(&TOPOLOGIES, foreign_object(&[], &["cpu"])).unwrap();
    env.node.kubelet.start_pod(PodSpec::guaranteed("a", 2, GIB)).await.unwrap();
    env.converges().await;
    assert_eq!(owners(&env.server), [""; 0], "it replaces the object that the Node owned");
    env.stop().await;
}

#[tokio::test]
async fn the_agent_works_without_the_right_to_create_events() {
    let env = synced(|_| {}).await;
    env.server.set_denied("create", EVENTS.plural, true);
    edit(&env.server, "kubectl-edit", json!({"zones": [zone(&["cpu"])]})).await;
    env.converges().await;
    assert_eq!(node_events(&env.server), []);
    env.stop().await;
}
