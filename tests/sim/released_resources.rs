//! Releases and other changes that no checkpoint of the kubelet shows in time.

use std::time::Duration;

use numacast::agent::Settings;
use numacast::pod_source::PodSourceKind;
use numacast::scheduler::FingerprintView;
use numacast_sim::api_server::{ApiServer, Fault, PODS, Rule};
use numacast_sim::kubelet::{Options, PodSpec};
use numacast_sim::pods_api::SimPodsApi;
use serde_json::json;

use crate::environment::{Environment, api_server, quick, with_terminated_pods_listed};
use crate::pods_api_source::pod;
use crate::support::{Node, eventually};

const GIB: u64 = 1 << 30;

/// A kubelet that releases nothing in its checkpoints by itself, so no file shows a release.
fn without_checkpoint_changes() -> Options {
    Options { release_lag: Duration::MAX, ..quick() }
}

/// Effectively disables the periodic full scan. While no pod source is live, the agent still polls.
fn without_full_scans(settings: &mut Settings) {
    settings.poll = Duration::from_secs(3600);
    settings.restart_wait = Duration::from_secs(3600);
}

/// Rejects all requests for pods.
fn deny_pods(server: &ApiServer) {
    server.inject(Rule { verb: None, resource: Some("pods"), times: None, fault: Fault::Status(403) });
}

fn db() -> PodSpec {
    PodSpec::guaranteed("db", 3, GIB).devices("example.com/nic", 1)
}

/// Starts an agent that watches the API server's pods, with one running pod.
async fn with_running_pod() -> Environment {
    let server = api_server();
    server.put(&PODS, db().object("worker", "Running")).unwrap();
    let env = Environment::with(Node::with(without_checkpoint_changes()), server, without_full_scans);
    env.node.kubelet.start_pod(db()).await.unwrap();
    env.converges().await;
    env
}

#[tokio::test(start_paused = true)]
async fn a_deletion_in_the_api_server_triggers_a_scan() {
    let env = with_running_pod().await;
    assert!(env.node.kubelet.stop_pod("default", "db"));
    assert!(env.server.delete(&PODS, "default", "db"));
    env.converges().await;
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn lists_are_repeated_until_a_terminated_pod_has_left_the_list() {
    let env = with_running_pod().await;
    let lists = env.node.kubelet.calls().list;
    let mut object = db().object("worker", "Running");
    object["metadata"]["deletionTimestamp"] = json!("2026-11-21T14:00:00Z");
    object["status"]["containerStatuses"] =
        json!([{"name": "main", "state": {"terminated": {"exitCode": 0}}}]);
    env.server.put(&PODS, object).unwrap();
    // The agent has scanned and scans again: the pod is still listed.
    env.wait_for_lists(lists + 3).await;
    assert!(env.node.kubelet.stop_pod("default", "db"));
    env.converges().await;
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_release_during_a_broken_watch_is_found() {
    let env = with_running_pod().await;
    env.server.stop();
    assert!(env.node.kubelet.stop_pod("default", "db"));
    assert!(env.server.delete(&PODS, "default", "db"));
    env.server.compact_history();
    env.server.resume();
    env.converges().await;
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_pod_source_releases_are_found_by_polling() {
    let env = Environment::with(Node::with(without_checkpoint_changes()), api_server(), |settings| {
        without_full_scans(settings);
        settings.pods.order.clear();
    });
    env.node.kubelet.start_pod(db()).await.unwrap();
    env.converges().await;
    assert!(env.node.kubelet.stop_pod("default", "db"));
    env.converges().await;
    // Nothing is allocated any more, so there are no scans.
    let lists = env.node.kubelet.calls().list;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(env.node.kubelet.calls().list <= lists + 1);
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_read_pods_releases_are_found_by_polling() {
    let server = api_server();
    deny_pods(&server);
    let env = Environment::with(Node::with(without_checkpoint_changes()), server, without_full_scans);
    env.node.kubelet.start_pod(db()).await.unwrap();
    env.converges().await;
    assert!(env.node.kubelet.stop_pod("default", "db"));
    env.converges().await;
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn touching_the_notify_file_triggers_a_scan() {
    let node = Node::with(without_checkpoint_changes());
    let hook = tempfile::tempdir().unwrap();
    let file = hook.path().join("notify");
    let notify = file.clone();
    let env = Environment::with(node, api_server(), |settings| {
        without_full_scans(settings);
        // As with only the sockets mounted.
        settings.kubelet_dir = hook.path().join("nothing");
        settings.notify_file = Some(notify);
    });
    env.converges().await;
    env.node.kubelet.start_pod(db()).await.unwrap();
    std::fs::write(&file, "").unwrap();
    env.converges().await;
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_starts_with_its_kubelet_waits_for_the_pods() {
    let env = with_running_pod().await;
    let available = env.available(0, "cpu");
    let Environment { node, server, .. } = env.stop_agent().await;
    let writes = server.writes().changes;
    // Both restart, and the kubelet does not know its pods yet.
    node.kubelet.stop();
    node.kubelet.boot().unwrap();
    node.kubelet.set_ready(true, false);
    let lists = node.kubelet.calls().list;
    let env = Environment::with(node, server, without_full_scans);
    env.wait_for_lists(lists + 5).await;
    assert_eq!((env.available(0, "cpu"), env.server.writes().changes), (available, writes));
    env.node.kubelet.set_ready(true, true);
    env.node.kubelet.start_pod(PodSpec::guaranteed("next", 1, GIB)).await.unwrap();
    env.converges().await;
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_name_reused_while_the_pods_are_unknown_is_another_pod() {
    let env = with_terminated_pods_listed(without_checkpoint_changes()).await;
    env.node.kubelet.start_pod(db()).await.unwrap();
    env.put_pod(&db(), "Running");
    env.converges().await;
    assert!(env.node.kubelet.terminate_pod("default", "db"));
    env.put_pod(&db(), "Succeeded");
    env.converges().await;
    assert_eq!(env.available(0, "example.com/nic"), 2);
    env.server.inject(Rule { verb: None, resource: Some("pods"), times: None, fault: Fault::Status(500) });
    env.server.cut_connections();
    assert!(env.node.kubelet.stop_pod("default", "db"));
    env.node.kubelet.start_pod(PodSpec { uid: "again".into(), ..db() }).await.unwrap();
    env.converges().await;
    assert_eq!(env.available(0, "example.com/nic"), 1);
    // The new pod terminates as well, before the API server can report it as running.
    assert!(env.node.kubelet.terminate_pod("default", "db"));
    let again = PodSpec { uid: "again".into(), ..db() };
    assert!(env.server.delete(&PODS, "default", "db"));
    env.put_pod(&again, "Succeeded");
    env.server.clear_faults();
    // The agent lists the pods again after a backoff.
    env.wait_for("pods are watched", || (env.server.watchers(&PODS) > 0).then_some(())).await;
    env.converges().await;
    assert_eq!(env.available(0, "example.com/nic"), 2);
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_first_write_waits_until_the_kubelet_lists_the_pods_of_the_api_server() {
    let (node, server) = (Node::with(without_checkpoint_changes()), api_server());
    server.put(&PODS, db().object("worker", "Running")).unwrap();
    node.kubelet.start_pod(db()).await.unwrap();
    node.kubelet.stop();
    node.kubelet.boot().unwrap();
    node.kubelet.set_ready(true, false);
    let lists = node.kubelet.calls().list;
    let env = Environment::with(node, server, without_full_scans);
    env.wait_for_lists(lists + 5).await;
    assert_eq!(env.server.topology("worker"), None, "the node would look free");
    env.node.kubelet.set_ready(true, true);
    env.converges().await;
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_event_of_the_pods_api_triggers_a_scan() {
    let server = api_server();
    deny_pods(&server);
    let node = Node::with(without_checkpoint_changes());
    let directory = node.root().join("var/lib/kubelet/pods-api");
    std::fs::create_dir(&directory).unwrap();
    let api = SimPodsApi::start(directory.join("pods-api.sock")).unwrap();
    api.set(&pod("db"));
    let env = Environment::with(node, server, |settings| {
        without_full_scans(settings);
        settings.gate.view = FingerprintView::Kubelet;
        settings.pods.order = vec![PodSourceKind::ApiServer, PodSourceKind::PodsApi];
    });
    env.node.kubelet.start_pod(PodSpec::guaranteed("db", 3, GIB)).await.unwrap();
    env.converges().await;
    // A kubelet whose socket is new is scanned repeatedly. After that, only pod events trigger scans.
    let is_quiet = async || (lists_in_two_seconds(&env).await <= 1).then_some(());
    eventually("scans are rare", is_quiet).await;
    assert!(env.node.kubelet.stop_pod("default", "db"));
    api.remove(&pod("db"));
    env.converges().await;
    env.stop().await;
}

async fn lists_in_two_seconds(env: &Environment) -> u64 {
    let before = env.node.kubelet.calls().list;
    tokio::time::sleep(Duration::from_secs(2)).await;
    env.node.kubelet.calls().list - before
}
