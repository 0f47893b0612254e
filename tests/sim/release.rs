//! Releases, which no checkpoint of the kubelet shows in time, and other changes that no file shows.

use std::time::Duration;

use numacast::agent::Settings;
use numacast::sim::api_server::{Fault, PODS, Rule};
use numacast::sim::kubelet::{Options, PodSpec};
use serde_json::json;

use crate::agent::{World, quick, server, with_terminated_pods_listed};
use crate::support::SimNode;

const GIB: u64 = 1 << 30;

/// The kubelet releases nothing in its checkpoints by itself, so no file shows a release.
fn silent() -> Options {
    Options { release_lag: Duration::MAX, ..quick() }
}

/// Effectively disables polling.
fn patient(settings: &mut Settings) {
    settings.poll = Duration::from_secs(3600);
    settings.settle = Duration::from_secs(3600);
}

fn db() -> PodSpec {
    PodSpec::guaranteed("db", 3, GIB).devices("example.com/nic", 1)
}

/// Starts an agent that watches the API server's pods, with one running pod.
async fn followed() -> World {
    let server = server().await;
    server.put(&PODS, db().object("worker", "Running")).unwrap();
    let world = World::with(SimNode::with(silent()), server, patient);
    world.node.kubelet.start_pod(db()).await.unwrap();
    world.agrees().await;
    world
}

#[tokio::test]
async fn a_release_shows_when_the_api_server_deletes_the_pod() {
    let world = followed().await;
    assert!(world.node.kubelet.stop_pod("default", "db"));
    assert!(world.server.delete(&PODS, "default", "db"));
    world.agrees().await;
    world.stop().await;
}

#[tokio::test]
async fn a_release_shows_although_the_list_is_behind_the_api_server() {
    let world = followed().await;
    let lists = world.node.kubelet.calls().list;
    let mut object = db().object("worker", "Running");
    object["metadata"]["deletionTimestamp"] = json!("2026-11-21T14:00:00Z");
    object["status"]["containerStatuses"] =
        json!([{"name": "main", "state": {"terminated": {"exitCode": 0}}}]);
    world.server.put(&PODS, object).unwrap();
    // The agent has scanned and scans again: the pod is still listed.
    world.lists_reach(lists + 3).await;
    assert!(world.node.kubelet.stop_pod("default", "db"));
    world.agrees().await;
    world.stop().await;
}

#[tokio::test]
async fn a_release_shows_although_the_watch_was_cut_while_it_happened() {
    let world = followed().await;
    world.server.stop();
    assert!(world.node.kubelet.stop_pod("default", "db"));
    assert!(world.server.delete(&PODS, "default", "db"));
    world.server.compact_history();
    world.server.resume().await.unwrap();
    world.agrees().await;
    world.stop().await;
}

#[tokio::test]
async fn without_anybody_who_tells_a_release_is_looked_for() {
    let world = World::with(SimNode::with(silent()), server().await, |settings| {
        patient(settings);
        settings.pods.order.clear();
    });
    world.node.kubelet.start_pod(db()).await.unwrap();
    world.agrees().await;
    assert!(world.node.kubelet.stop_pod("default", "db"));
    world.agrees().await;
    // Nothing is allocated that could be released, so there are no scans.
    let lists = world.node.kubelet.calls().list;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(world.node.kubelet.calls().list <= lists + 1);
    world.stop().await;
}

#[tokio::test]
async fn nor_where_the_api_server_does_not_let_us_see_pods() {
    let server = server().await;
    server.inject(Rule { verb: None, resource: Some("pods"), times: None, fault: Fault::Status(403) });
    let world = World::with(SimNode::with(silent()), server, patient);
    world.node.kubelet.start_pod(db()).await.unwrap();
    world.agrees().await;
    assert!(world.node.kubelet.stop_pod("default", "db"));
    world.agrees().await;
    world.stop().await;
}

#[tokio::test]
async fn a_touch_of_the_notify_file_is_enough() {
    let node = SimNode::with(silent());
    let hook = tempfile::tempdir().unwrap();
    let file = hook.path().join("notify");
    let notify = file.clone();
    let world = World::with(node, server().await, |settings| {
        patient(settings);
        // As with only the sockets mounted.
        settings.kubelet_dir = hook.path().join("nothing");
        settings.notify_file = Some(notify);
    });
    world.agrees().await;
    world.node.kubelet.start_pod(db()).await.unwrap();
    std::fs::write(&file, "").unwrap();
    world.agrees().await;
    world.stop().await;
}

#[tokio::test]
async fn an_agent_that_starts_with_its_kubelet_does_not_make_a_full_node_look_free() {
    let world = followed().await;
    let promised = world.available(0, "cpu");
    let World { node, server, .. } = world.halt().await;
    let writes = server.writes().changes;
    // Both restart, and the kubelet does not know its pods yet.
    node.kubelet.stop();
    node.kubelet.boot().unwrap();
    node.kubelet.set_ready(true, false);
    let lists = node.kubelet.calls().list;
    let world = World::with(node, server, patient);
    world.lists_reach(lists + 5).await;
    assert_eq!((world.available(0, "cpu"), world.server.writes().changes), (promised, writes));
    world.node.kubelet.set_ready(true, true);
    world.node.kubelet.start_pod(PodSpec::guaranteed("next", 1, GIB)).await.unwrap();
    world.agrees().await;
    world.stop().await;
}

#[tokio::test]
async fn a_name_that_comes_back_while_nobody_tells_is_another_pod() {
    let world = with_terminated_pods_listed(silent()).await;
    let show = |phase: &str| world.server.put(&PODS, db().object("worker", phase)).unwrap();
    world.node.kubelet.start_pod(db()).await.unwrap();
    show("Running");
    world.agrees().await;
    assert!(world.node.kubelet.terminate_pod("default", "db"));
    show("Succeeded");
    world.agrees().await;
    assert_eq!(world.available(0, "example.com/nic"), 2);
    world.server.inject(Rule { verb: None, resource: Some("pods"), times: None, fault: Fault::Status(500) });
    world.server.cut_connections();
    assert!(world.node.kubelet.stop_pod("default", "db"));
    world.node.kubelet.start_pod(PodSpec { uid: "again".into(), ..db() }).await.unwrap();
    world.agrees().await;
    assert_eq!(world.available(0, "example.com/nic"), 1);
    // The new pod terminates as well, before the API server can report it as running.
    assert!(world.node.kubelet.terminate_pod("default", "db"));
    let again = PodSpec { uid: "again".into(), ..db() };
    assert!(world.server.delete(&PODS, "default", "db"));
    world.server.put(&PODS, again.object("worker", "Succeeded")).unwrap();
    world.server.clear_faults();
    // The agent lists the pods again after a backoff.
    while world.server.watchers(&PODS) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    world.agrees().await;
    assert_eq!(world.available(0, "example.com/nic"), 2);
    world.stop().await;
}

#[tokio::test]
async fn a_first_object_waits_for_the_pods_that_the_api_server_has() {
    let (node, server) = (SimNode::with(silent()), server().await);
    server.put(&PODS, db().object("worker", "Running")).unwrap();
    node.kubelet.start_pod(db()).await.unwrap();
    node.kubelet.stop();
    node.kubelet.boot().unwrap();
    node.kubelet.set_ready(true, false);
    let lists = node.kubelet.calls().list;
    let world = World::with(node, server, patient);
    world.lists_reach(lists + 5).await;
    assert_eq!(world.server.topology("worker"), None, "the node would look free");
    world.node.kubelet.set_ready(true, true);
    world.agrees().await;
    world.stop().await;
}
