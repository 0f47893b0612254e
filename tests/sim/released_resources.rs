//! Releases and other changes that no checkpoint of the kubelet shows in time.

use std::time::Duration;

use numacast::agent::Settings;
use numacast::pod_source::PodSourceKind;
use numacast::scheduler::FingerprintView;
use numacast::sim::api_server::{ApiServer, Fault, PODS, Rule};
use numacast::sim::kubelet::{Options, PodSpec};
use numacast::sim::pods_api::SimPodsApi;
use serde_json::json;

use crate::pods_api_source::pod;
use crate::support::Node;
use crate::world::{World, api_server, quick, with_terminated_pods_listed};

const GIB: u64 = 1 << 30;

/// A kubelet that releases nothing in its checkpoints by itself, so no file shows a release.
fn without_checkpoint_changes() -> Options {
    Options { release_lag: Duration::MAX, ..quick() }
}

/// Effectively disables polling.
fn without_polling(settings: &mut Settings) {
    settings.poll = Duration::from_secs(3600);
    settings.settle = Duration::from_secs(3600);
}

/// Rejects all requests for pods.
fn deny_pods(server: &ApiServer) {
    server.inject(Rule { verb: None, resource: Some("pods"), times: None, fault: Fault::Status(403) });
}

fn db() -> PodSpec {
    PodSpec::guaranteed("db", 3, GIB).devices("example.com/nic", 1)
}

/// Starts an agent that watches the API server's pods, with one running pod.
async fn with_running_pod() -> World {
    let server = api_server().await;
    server.put(&PODS, db().object("worker", "Running")).unwrap();
    let world = World::with(Node::with(without_checkpoint_changes()), server, without_polling);
    world.node.kubelet.start_pod(db()).await.unwrap();
    world.converges().await;
    world
}

#[tokio::test]
async fn a_deletion_in_the_api_server_triggers_a_scan() {
    let world = with_running_pod().await;
    assert!(world.node.kubelet.stop_pod("default", "db"));
    assert!(world.server.delete(&PODS, "default", "db"));
    world.converges().await;
    world.stop().await;
}

#[tokio::test]
async fn lists_are_repeated_until_a_terminated_pod_has_left_the_list() {
    let world = with_running_pod().await;
    let lists = world.node.kubelet.calls().list;
    let mut object = db().object("worker", "Running");
    object["metadata"]["deletionTimestamp"] = json!("2026-11-21T14:00:00Z");
    object["status"]["containerStatuses"] =
        json!([{"name": "main", "state": {"terminated": {"exitCode": 0}}}]);
    world.server.put(&PODS, object).unwrap();
    // The agent has scanned and scans again: the pod is still listed.
    world.wait_for_lists(lists + 3).await;
    assert!(world.node.kubelet.stop_pod("default", "db"));
    world.converges().await;
    world.stop().await;
}

#[tokio::test]
async fn a_release_during_a_broken_watch_is_found() {
    let world = with_running_pod().await;
    world.server.stop();
    assert!(world.node.kubelet.stop_pod("default", "db"));
    assert!(world.server.delete(&PODS, "default", "db"));
    world.server.compact_history();
    world.server.resume().await.unwrap();
    world.converges().await;
    world.stop().await;
}

#[tokio::test]
async fn without_a_pod_source_releases_are_found_by_polling() {
    let world = World::with(Node::with(without_checkpoint_changes()), api_server().await, |settings| {
        without_polling(settings);
        settings.pods.order.clear();
    });
    world.node.kubelet.start_pod(db()).await.unwrap();
    world.converges().await;
    assert!(world.node.kubelet.stop_pod("default", "db"));
    world.converges().await;
    // Nothing is allocated any more, so there are no scans.
    let lists = world.node.kubelet.calls().list;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(world.node.kubelet.calls().list <= lists + 1);
    world.stop().await;
}

#[tokio::test]
async fn without_the_right_to_read_pods_releases_are_found_by_polling() {
    let server = api_server().await;
    deny_pods(&server);
    let world = World::with(Node::with(without_checkpoint_changes()), server, without_polling);
    world.node.kubelet.start_pod(db()).await.unwrap();
    world.converges().await;
    assert!(world.node.kubelet.stop_pod("default", "db"));
    world.converges().await;
    world.stop().await;
}

#[tokio::test]
async fn touching_the_notify_file_triggers_a_scan() {
    let node = Node::with(without_checkpoint_changes());
    let hook = tempfile::tempdir().unwrap();
    let file = hook.path().join("notify");
    let notify = file.clone();
    let world = World::with(node, api_server().await, |settings| {
        without_polling(settings);
        // As with only the sockets mounted.
        settings.kubelet_dir = hook.path().join("nothing");
        settings.notify_file = Some(notify);
    });
    world.converges().await;
    world.node.kubelet.start_pod(db()).await.unwrap();
    std::fs::write(&file, "").unwrap();
    world.converges().await;
    world.stop().await;
}

#[tokio::test]
async fn an_agent_that_starts_with_its_kubelet_waits_for_the_pods() {
    let world = with_running_pod().await;
    let available = world.available(0, "cpu");
    let World { node, server, .. } = world.stop_agent().await;
    let writes = server.writes().changes;
    // Both restart, and the kubelet does not know its pods yet.
    node.kubelet.stop();
    node.kubelet.boot().unwrap();
    node.kubelet.set_ready(true, false);
    let lists = node.kubelet.calls().list;
    let world = World::with(node, server, without_polling);
    world.wait_for_lists(lists + 5).await;
    assert_eq!((world.available(0, "cpu"), world.server.writes().changes), (available, writes));
    world.node.kubelet.set_ready(true, true);
    world.node.kubelet.start_pod(PodSpec::guaranteed("next", 1, GIB)).await.unwrap();
    world.converges().await;
    world.stop().await;
}

#[tokio::test]
async fn a_name_reused_while_the_pods_are_unknown_is_another_pod() {
    let world = with_terminated_pods_listed(without_checkpoint_changes()).await;
    world.node.kubelet.start_pod(db()).await.unwrap();
    world.put_pod(&db(), "Running");
    world.converges().await;
    assert!(world.node.kubelet.terminate_pod("default", "db"));
    world.put_pod(&db(), "Succeeded");
    world.converges().await;
    assert_eq!(world.available(0, "example.com/nic"), 2);
    world.server.inject(Rule { verb: None, resource: Some("pods"), times: None, fault: Fault::Status(500) });
    world.server.cut_connections();
    assert!(world.node.kubelet.stop_pod("default", "db"));
    world.node.kubelet.start_pod(PodSpec { uid: "again".into(), ..db() }).await.unwrap();
    world.converges().await;
    assert_eq!(world.available(0, "example.com/nic"), 1);
    // The new pod terminates as well, before the API server can report it as running.
    assert!(world.node.kubelet.terminate_pod("default", "db"));
    let again = PodSpec { uid: "again".into(), ..db() };
    assert!(world.server.delete(&PODS, "default", "db"));
    world.put_pod(&again, "Succeeded");
    world.server.clear_faults();
    // The agent lists the pods again after a backoff.
    while world.server.watchers(&PODS) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    world.converges().await;
    assert_eq!(world.available(0, "example.com/nic"), 2);
    world.stop().await;
}

#[tokio::test]
async fn the_first_write_waits_until_the_kubelet_lists_the_pods_of_the_api_server() {
    let (node, server) = (Node::with(without_checkpoint_changes()), api_server().await);
    server.put(&PODS, db().object("worker", "Running")).unwrap();
    node.kubelet.start_pod(db()).await.unwrap();
    node.kubelet.stop();
    node.kubelet.boot().unwrap();
    node.kubelet.set_ready(true, false);
    let lists = node.kubelet.calls().list;
    let world = World::with(node, server, without_polling);
    world.wait_for_lists(lists + 5).await;
    assert_eq!(world.server.topology("worker"), None, "the node would look free");
    world.node.kubelet.set_ready(true, true);
    world.converges().await;
    world.stop().await;
}

#[tokio::test]
async fn an_event_of_the_pods_api_triggers_a_scan() {
    let server = api_server().await;
    deny_pods(&server);
    let node = Node::with(without_checkpoint_changes());
    let directory = node.root().join("var/lib/kubelet/pods-api");
    std::fs::create_dir(&directory).unwrap();
    let api = SimPodsApi::start(directory.join("pods-api.sock")).unwrap();
    api.set(&pod("db"));
    let world = World::with(node, server, |settings| {
        without_polling(settings);
        settings.gate.view = FingerprintView::Kubelet;
        settings.pods.order = vec![PodSourceKind::ApiServer, PodSourceKind::PodsApi];
    });
    world.node.kubelet.start_pod(PodSpec::guaranteed("db", 3, GIB)).await.unwrap();
    world.converges().await;
    // A kubelet whose socket is new is scanned repeatedly. After that, only pod events trigger scans.
    while lists_in_two_seconds(&world).await > 1 {}
    assert!(world.node.kubelet.stop_pod("default", "db"));
    api.remove(&pod("db"));
    world.converges().await;
    world.stop().await;
}

async fn lists_in_two_seconds(world: &World) -> u64 {
    let before = world.node.kubelet.calls().list;
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.node.kubelet.calls().list - before
}
