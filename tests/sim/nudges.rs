//! The controller nudges while, and only while, pods are pending because of the scheduler plugin.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{eventually, sample};
use numacast::cluster::{Cluster, NUDGE};
use numacast::config::Config;
use numacast::controller::Controller;
use numacast::telemetry::registry::Registry;
use numacast_sim::api_server::{ApiServer, Change, PODS, TOPOLOGIES};
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// A running controller replica.
struct Replica {
    metrics: Registry,
    task: JoinHandle<()>,
}

impl Replica {
    fn start(server: &ApiServer, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::default();
        config.controller.namespace = "numacast".to_owned();
        config.controller.daemon_sets = Vec::new();
        change(&mut config);
        let settings = config.controller_settings(None).unwrap();
        let cluster = Cluster::with_client(server.client().unwrap(), server.url(), Duration::from_secs(5));
        let mut metrics = Registry::default();
        let controller = Controller::new(settings, cluster, &mut metrics);
        Self { metrics, task: tokio::spawn(controller.run(std::future::pending())) }
    }

    /// Returns a sample's value by its name with labels; 0 if missing.
    fn sample(&self, name: &str) -> u64 {
        sample(&self.metrics.encode(), name).map_or(0, |value| value.parse().unwrap())
    }

    fn nudges(&self) -> u64 {
        self.sample("numacast_nudges_total")
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Starts an API server with two objects.
fn server() -> ApiServer {
    let server = ApiServer::start_in_process(1);
    for name in ["beta", "alpha"] {
        server.add_node(name).unwrap();
        server.put(&TOPOLOGIES, object(name, 8)).unwrap();
    }
    server
}

fn object(name: &str, cpus: u32) -> Value {
    let cpu = json!({"name": "cpu", "capacity": "8", "allocatable": "8", "available": cpus.to_string()});
    json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
        "metadata": {"name": name, "annotations": {"a": "b"}},
        "zones": [{"name": "node-0", "type": "Node", "resources": [cpu]}],
    })
}

/// Returns an unscheduled pod with this message in its `PodScheduled` condition.
fn pod(name: &str, message: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "main", "image": "pause"}]},
        "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message},
        ]},
    })
}

const REJECTED: &str = "0/2 nodes are available: 2 cannot align pod.";

async fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    eventually(what, async || condition().then_some(())).await;
}

/// Returns the objects written, without the nudge annotation and the fields that the API server sets.
fn written(changes: &mut broadcast::Receiver<Arc<Change>>) -> Vec<Value> {
    let mut all = Vec::new();
    while let Ok(change) = changes.try_recv() {
        if change.object["kind"] == "NodeResourceTopology" {
            let mut object = (*change.object).clone();
            let metadata = object["metadata"].as_object_mut().unwrap();
            assert!(metadata["annotations"].as_object_mut().unwrap().remove(NUDGE).is_some());
            metadata.remove("resourceVersion");
            metadata.remove("managedFields");
            all.push(object);
        }
    }
    all
}

#[tokio::test(start_paused = true)]
async fn a_rejected_pod_is_nudged_for_until_it_is_scheduled() {
    let server = server();
    let before = server.get(&TOPOLOGIES, "", "alpha").unwrap();
    let mut changes = server.changes();
    let replicas = [Replica::start(&server, |_| {}), Replica::start(&server, |_| {})];
    wait_for("the leader watches pods", || server.watchers(&PODS) == 1).await;
    server.put(&PODS, pod("db", REJECTED)).unwrap();
    let nudges = || replicas.iter().map(Replica::nudges).sum::<u64>();
    wait_for("two nudges", || nudges() >= 2).await;
    assert_eq!(replicas.iter().filter(|replica| replica.nudges() > 0).count(), 1, "only one replica nudges");
    assert_eq!(replicas.iter().map(|replica| replica.sample("numacast_rejected_pods")).sum::<u64>(), 1);
    assert_eq!(server.watchers(&TOPOLOGIES), 1);

    // The pod is bound.
    let mut bound = pod("db", REJECTED);
    bound["spec"]["nodeName"] = json!("alpha");
    server.put(&PODS, bound).unwrap();
    wait_for("objects are not watched", || server.watchers(&TOPOLOGIES) == 0).await;
    let last = nudges();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(nudges(), last);

    // Only the annotation of one object changed.
    let mut expected = (*before).clone();
    expected["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    expected["metadata"].as_object_mut().unwrap().remove("managedFields");
    let written = written(&mut changes);
    assert_eq!(written.len() as u64, last);
    assert!(written.iter().all(|object| *object == expected), "{written:#?}");
}

#[tokio::test(start_paused = true)]
async fn pods_that_wait_for_other_reasons_cause_no_nudge() {
    let server = server();
    let mut gated = pod("gated", REJECTED);
    gated["spec"]["schedulingGates"] = json!([{"name": "example.com/wait"}]);
    gated["status"]["conditions"][0]["reason"] = json!("SchedulingGated");
    server.put(&PODS, gated).unwrap();
    server.put(&PODS, pod("large", "0/2 nodes are available: 2 Insufficient cpu.")).unwrap();
    let replica = Replica::start(&server, |_| {});
    wait_for("pods are watched", || server.watchers(&PODS) == 1).await;
    let new = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "new", "namespace": "default"},
        "spec": {"containers": [{"name": "main", "image": "pause"}]},
    });
    server.put(&PODS, new).unwrap();
    server.put(&TOPOLOGIES, object("alpha", 4)).unwrap();
    sleep(Duration::from_secs(3)).await;
    assert_eq!((server.watchers(&TOPOLOGIES), server.writes().requests), (0, 0));
    assert_eq!(replica.sample("numacast_rejected_pods"), 0);

    // A pending pod that is deleted.
    server.put(&PODS, pod("large", REJECTED)).unwrap();
    wait_for("it is counted", || replica.sample("numacast_rejected_pods") == 1).await;
    wait_for("objects are watched", || server.watchers(&TOPOLOGIES) == 1).await;
    server.delete(&PODS, "default", "large");
    wait_for("it is no longer counted", || replica.sample("numacast_rejected_pods") == 0).await;
    wait_for("objects are not watched", || server.watchers(&TOPOLOGIES) == 0).await;
}

#[tokio::test(start_paused = true)]
async fn with_a_dry_run_or_nudges_off_pods_are_not_watched() {
    for change in [
        (|config: &mut Config| config.controller.dry_run = true) as fn(&mut Config),
        |config: &mut Config| config.controller.nudge = "off".parse().unwrap(),
    ] {
        let server = server();
        server.put(&PODS, pod("db", REJECTED)).unwrap();
        let replica = Replica::start(&server, change);
        wait_for("it is the leader", || replica.sample("numacast_controller_leader") == 1).await;
        sleep(Duration::from_secs(2)).await;
        assert_eq!((server.watchers(&PODS), server.writes().requests), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn missing_permissions_are_counted_and_used_once_granted() {
    let server = server();
    server.put(&PODS, pod("db", REJECTED)).unwrap();
    server.set_denied("list", "pods", true);
    server.set_denied("patch", "noderesourcetopologies", true);
    let replica = Replica::start(&server, |_| {});
    let forbidden = "numacast_controller_errors_total{operation=\"request\",kind=\"forbidden\"}";
    wait_for("listing pods is forbidden", || replica.sample(forbidden) > 0).await;
    server.set_denied("list", "pods", false);
    let forbidden = "numacast_controller_errors_total{operation=\"nudge\",kind=\"forbidden\"}";
    wait_for("a nudge is forbidden", || replica.sample(forbidden) > 0).await;
    assert_eq!(replica.nudges(), 0);
    server.set_denied("patch", "noderesourcetopologies", false);
    wait_for("there is a nudge", || replica.nudges() > 0).await;
}

#[tokio::test(start_paused = true)]
async fn after_a_compacted_history_pods_are_listed_again() {
    let server = server();
    let replica = Replica::start(&server, |_| {});
    wait_for("pods are watched", || server.watchers(&PODS) == 1).await;
    server.put(&PODS, pod("old", REJECTED)).unwrap();
    wait_for("it is counted", || replica.sample("numacast_rejected_pods") == 1).await;
    // While disconnected, one pod is deleted and two are added.
    server.stop();
    server.delete(&PODS, "default", "old");
    for name in ["new", "newer"] {
        server.put(&PODS, pod(name, REJECTED)).unwrap();
    }
    server.compact_history();
    server.resume();
    wait_for("both pods are counted", || replica.sample("numacast_rejected_pods") == 2).await;
    wait_for("there is a nudge", || replica.nudges() > 0).await;
}
