//! The agent's object: its previous content, its owner, and failing writes.

mod other_writers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use numacast::agent::{Agent, Settings};
use numacast::cluster::{Cluster, ClusterError, EventPoster, Regarding};
use numacast::config::Config;
use numacast::nrt::NodeResourceTopology;
use numacast::telemetry::registry::Registry;
use numacast_sim::api_server::{ApiServer, EVENTS, Fault, NODES, PODS, Rule, TOPOLOGIES};
use numacast_sim::kubelet::PodSpec;
use serde_json::{Value, json};

use crate::environment::{Environment, api_server, quick};
use crate::support::Node;

const GIB: u64 = 1 << 30;

/// Returns a zone as another publisher writes it.
fn zone(resources: &[&str]) -> Value {
    let one = |name: &&str| json!({"name": name, "capacity": "9", "allocatable": "9", "available": "9"});
    json!({"name": "node-0", "type": "Node", "resources": resources.iter().map(one).collect::<Vec<_>>()})
}

/// Returns an object of another publisher.
fn foreign_object(attributes: &[(&str, &str)], resources: &[&str]) -> Value {
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
async fn policies_and_devices_of_the_live_object_are_carried_over() {
    let server = api_server();
    let mut object = foreign_object(&POLICIES, &["cpu", "example.com/away", "hugepages-3Mi"]);
    let fingerprint = json!({"name": "nodeTopologyPodsFingerprint", "value": "pfp0v001bb89419dce9a8948"});
    object["attributes"].as_array_mut().unwrap().push(fingerprint);
    server.put(&TOPOLOGIES, object).unwrap();
    let env = Environment::with(Node::with(quick()), server, without_config);
    let written = || {
        let object = env.server.topology("worker")?;
        (object.spec.zones.len() == 2).then_some(())
    };
    env.wait_for("the object is written", written).await;
    let object = env.server.topology("worker").unwrap();
    let expected = POLICIES.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(attributes(&object), expected.into());
    let fingerprint = json!({"name": "nodeTopologyPodsFingerprint", "value": "pfp0v001ef46db3751d8e999"});
    let all = serde_json::to_value(&object).unwrap();
    assert!(all["attributes"].as_array().unwrap().contains(&fingerprint), "the fingerprint of no pods");
    assert_eq!(env.available(0, "example.com/away"), 0);
    assert_eq!(env.available(1, "example.com/away"), 0);
    let names: Vec<&str> =
        object.spec.zones[0].resources.iter().flatten().map(|resource| resource.name.as_str()).collect();
    assert!(!names.contains(&"hugepages-3Mi"), "the kernel has no such pages: {names:?}");
    env.stop().await;
}

#[tokio::test]
async fn unreadable_policies_are_carried_over_and_reported_once() {
    let server = api_server();
    server.put(&TOPOLOGIES, foreign_object(&POLICIES, &["cpu"])).unwrap();
    let env = Environment::with(Node::with(quick()), server, without_config);
    let kept = || {
        let object = env.server.topology("worker")?;
        (object.spec.zones.len() == 2 && attributes(&object).len() == 2).then_some(())
    };
    env.wait_for("the policies are carried over", kept).await;
    let lists = env.node.kubelet.calls().list;
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    tokio::time::resume();
    let lists = env.node.kubelet.calls().list - lists;
    assert!(lists > 300, "the agent scans: {lists} Lists");
    kept().expect("the policies are gone");
    assert_eq!(env.server.writes().changes, 1, "no write lacked them");
    let events = env.server.list(&EVENTS, "default");
    let unknown = events.iter().filter(|event| event["reason"] == "PoliciesUnknown");
    let notes: Vec<&str> = unknown.map(|event| event["note"].as_str().unwrap()).collect();
    assert!(matches!(notes[..], [note] if note.contains("keeps those that it had before")), "{notes:?}");
    env.node.kubelet.start_pod(PodSpec::guaranteed("a", 2, GIB)).await.unwrap();
    env.converges().await;
    kept().expect("the policies are gone after a change");
    env.stop().await;
}

#[tokio::test]
async fn an_event_names_the_cause_before_the_object_is_written_without_policies() {
    let env = Environment::with(Node::with(quick()), api_server(), |settings| {
        without_config(settings);
        settings.restart_wait = Duration::from_secs(30);
    });
    let note = || {
        let events = env.server.list(&EVENTS, "default");
        let event = events.into_iter().find(|event| event["reason"] == "PoliciesUnknown")?;
        Some(event["note"].as_str().unwrap().to_owned())
    };
    env.wait_for("the configuration is unreadable", || (env.node.kubelet.calls().list > 1).then_some(()))
        .await;
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(10)).await;
    tokio::time::resume();
    env.wait_for("the Event", || note().map(drop)).await;
    let note = note().unwrap();
    let start = "the kubelet's policies are unknown, so the object has none and schedulers ignore its zones: set \
                 `kubelet.configFile`";
    assert!(note.starts_with(start), "{note}");
    assert!(
        note.contains("cannot read the kubelet's configuration /nowhere/config.yaml: No such file"),
        "{note}"
    );
    assert!(env.server.topology("worker").is_none(), "it waits longer than the Event");
    env.stop().await;
}

#[tokio::test]
async fn a_single_pass_carries_unreadable_policies_over() {
    let server = api_server();
    server.put(&TOPOLOGIES, foreign_object(&POLICIES, &["cpu"])).unwrap();
    let node = Node::with(quick());
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
    let server = api_server();
    server.put(&TOPOLOGIES, foreign_object(&POLICIES[..1], &["cpu"])).unwrap();
    let env = Environment::with(Node::with(quick()), server, without_config);
    let written = || (env.server.topology("worker")?.spec.zones.len() == 2).then_some(());
    env.wait_for("the object is written", written).await;
    assert_eq!(attributes(&env.server.topology("worker").unwrap()), BTreeMap::new());
    env.stop().await;
}

#[tokio::test]
async fn the_object_is_written_without_the_right_to_read_it() {
    let server = api_server();
    server.set_denied("get", TOPOLOGIES.plural, true);
    let env = Environment::with(Node::with(quick()), server, |_| {});
    env.converges().await;
    env.node.kubelet.start_pod(PodSpec::guaranteed("a", 2, GIB)).await.unwrap();
    env.converges().await;
    assert_eq!(owners(&env.server).len(), 1);
    env.stop().await;
}

#[tokio::test]
async fn the_first_write_waits_for_the_live_object() {
    let server = api_server();
    server.put(&TOPOLOGIES, foreign_object(&POLICIES, &["cpu"])).unwrap();
    server.stop();
    let env = Environment::with(Node::with(quick()), server, without_config);
    env.wait_for_lists(1).await;
    env.server.resume();
    let written = || (env.server.topology("worker")?.spec.zones.len() == 2).then_some(());
    env.wait_for("the object is written", written).await;
    assert_eq!(attributes(&env.server.topology("worker").unwrap()).len(), 2, "they are carried over");
    env.stop().await;
}

#[tokio::test]
async fn the_owner_is_set_at_creation_and_never_changed() {
    let server = api_server();
    // The Node was recreated, and garbage collection has not run yet.
    let mut object = foreign_object(&[], &["cpu"]);
    object["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Node", "name": "worker", "uid": "before"}]);
    server.put(&TOPOLOGIES, object).unwrap();
    let env = Environment::with(Node::with(quick()), server, |_| {});
    env.converges().await;
    assert_eq!(owners(&env.server), ["Node worker before"]);
    // Garbage collection deletes the object.
    assert!(env.server.delete(&TOPOLOGIES, "", "worker"));
    env.node.kubelet.start_pod(PodSpec::guaranteed("a", 2, GIB)).await.unwrap();
    env.converges().await;
    let node = env.server.get(&NODES, "", "worker").unwrap();
    assert_eq!(owners(&env.server), [format!("Node worker {}", node["metadata"]["uid"].as_str().unwrap())]);
    env.stop().await;
}

#[tokio::test]
async fn an_existing_object_without_an_owner_gets_none() {
    let server = api_server();
    server.put(&TOPOLOGIES, foreign_object(&[], &["cpu"])).unwrap();
    let env = Environment::with(Node::with(quick()), server, |_| {});
    env.converges().await;
    assert_eq!(owners(&env.server), [""; 0]);
    env.stop().await;
}

/// The chart's admission policy rejects it while the agent's token names an earlier Node.
#[tokio::test]
async fn an_object_whose_owner_is_rejected_is_created_without_one() {
    let server = api_server();
    server.fail_next("patch", TOPOLOGIES.plural, 1, Fault::Status(403));
    let env = Environment::with(Node::with(quick()), server, |_| {});
    env.converges().await;
    assert_eq!(owners(&env.server), [""; 0]);
    env.stop().await;
}

#[tokio::test]
async fn without_owner_references_the_node_is_not_read() {
    let server = api_server();
    server.set_denied("get", NODES.plural, true);
    let env = Environment::with(Node::with(quick()), server, |settings| settings.owner_reference = false);
    env.converges().await;
    assert_eq!(owners(&env.server), [""; 0]);
    env.stop().await;
}

/// Returns the reasons and notes of the Events about the Node.
fn node_events(server: &ApiServer) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let events = server.list(&EVENTS, "default");
    let about =
        |event: &&Arc<Value>| event["regarding"]["kind"] == "Node" && event["regarding"]["name"] == "worker";
    events.iter().filter(about).map(|event| (text(&event["reason"]), text(&event["note"]))).collect()
}

/// Waits until an Event about the Node has this reason and this part of a note.
async fn wait_for_report(env: &Environment, reason: &str, part: &str) {
    let is_it = |(why, note): &(String, String)| why == reason && note.contains(part);
    let is_reported = || node_events(&env.server).iter().any(is_it).then_some(());
    env.wait_for(&format!("{reason} is reported: {part}"), is_reported).await;
}

/// Waits until the object is watched, or no longer is.
async fn wait_for_watch(env: &Environment, open: bool) {
    let what = if open { "the object is watched" } else { "the object is not watched" };
    env.wait_for(what, || ((env.server.watchers(&TOPOLOGIES) > 0) == open).then_some(())).await;
}

async fn synced(change: impl FnOnce(&mut Settings)) -> Environment {
    let env = Environment::with(Node::with(quick()), api_server(), change);
    env.converges().await;
    // The watch starts after the first write.
    wait_for_watch(&env, true).await;
    env
}

#[tokio::test]
async fn a_recreated_node_gets_a_new_object() {
    let env = synced(|settings| settings.refresh = Duration::from_millis(300)).await;
    let before = owners(&env.server);
    // Garbage collection deletes the object while there is no Node.
    assert!(env.server.delete(&NODES, "", "worker"));
    let is_deleted = || env.server.topology("worker").is_none().then_some(());
    env.wait_for("the object is deleted", is_deleted).await;
    let uid = env.server.add_node("worker").unwrap();
    env.converges().await;
    assert_eq!(owners(&env.server), [format!("Node worker {uid}")]);
    assert_ne!(owners(&env.server), before);
    env.stop().await;
}

#[tokio::test]
async fn a_stale_owner_is_reported() {
    let server = api_server();
    let mut object = foreign_object(&[], &["cpu"]);
    object["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Node", "name": "worker", "uid": "before"}]);
    server.put(&TOPOLOGIES, object).unwrap();
    let env = Environment::with(Node::with(quick()), server, |settings| {
        settings.refresh = Duration::from_millis(300);
    });
    wait_for_report(&env, "StaleOwner", "belongs to an earlier Node worker").await;
    assert_eq!(owners(&env.server), ["Node worker before"], "it is not changed");
    env.stop().await;
}

#[tokio::test]
async fn the_newest_state_is_written_after_any_failure() {
    let env = synced(|_| {}).await;
    let faults = [
        Fault::Status(409),
        Fault::Status(422),
        Fault::Status(500),
        Fault::Status(503),
        Fault::TooManyRequests { retry_after: 1 },
        Fault::RetryAfter { code: 429, seconds: 1 },
        Fault::RetryAfter { code: 503, seconds: 1 },
        Fault::Status(504),
        Fault::Cut,
        Fault::CutAfterwards,
        Fault::Hang,
    ];
    for (index, fault) in faults.into_iter().enumerate() {
        env.server.fail_next("patch", TOPOLOGIES.plural, 2, fault);
        env.node.kubelet.start_pod(PodSpec::guaranteed(&format!("p{index}"), 1, GIB)).await.unwrap();
        env.converges().await;
    }
    assert_eq!(node_events(&env.server), [], "there is no other writer");
    env.stop().await;
}

#[tokio::test]
async fn a_frozen_api_server_does_not_block_the_shutdown() {
    let server = api_server();
    server.set_frozen(true);
    let env = Environment::with(Node::with(quick()), server, |_| {});
    tokio::time::timeout(Duration::from_secs(60), env.stop()).await.unwrap();
    let env = synced(|_| {}).await;
    env.server.set_frozen(true);
    tokio::time::timeout(Duration::from_secs(60), env.stop()).await.unwrap();
}

/// Returns `object` with an entry in its `managedFields` that is nested deeper than serde_json decodes.
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
async fn deeply_nested_managed_fields_do_not_break_the_agent() {
    let server = api_server();
    server.put(&TOPOLOGIES, nested(foreign_object(&POLICIES, &["cpu"]))).unwrap();
    let env = Environment::with(Node::with(quick()), server, |_| {});
    env.converges().await;
    env.node.kubelet.start_pod(PodSpec::guaranteed("a", 2, GIB)).await.unwrap();
    env.converges().await;
    assert!(is_nested(&env.server), "an apply leaves the entry");
    let env = env.stop_agent().await.restart_agent(|_| {});
    env.node.kubelet.start_pod(PodSpec::guaranteed("b", 2, GIB)).await.unwrap();
    env.converges().await;
    assert!(is_nested(&env.server));
    env.stop().await;
}

#[tokio::test]
async fn deeply_nested_managed_fields_do_not_end_the_watch() {
    let env = Environment::start(quick()).await;
    env.converges().await;
    let mut edited = nested((*env.server.get(&TOPOLOGIES, "", "worker").unwrap()).clone());
    edited["zones"] = json!([zone(&["cpu"])]);
    env.server.put(&TOPOLOGIES, edited).unwrap();
    env.converges().await;
    assert!(is_nested(&env.server));
    env.stop().await;
}

#[tokio::test]
async fn every_call_reports_the_servers_retry_after() {
    let server = api_server();
    server.set_koordinator(true);
    let cluster = Cluster::with_client(server.client().unwrap(), server.url(), Duration::from_secs(5));
    let object: NodeResourceTopology = serde_json::from_value(foreign_object(&POLICIES, &["cpu"])).unwrap();
    cluster.apply(&object).await.unwrap();
    let meta = cluster.topology_metas().next().await.unwrap().unwrap().remove(0);
    let lease = cluster.create_lease("default", "l", Default::default()).await.unwrap();
    let (reporter, instance) = ("numacast/agent", "i".to_owned());
    let poster = EventPoster { cluster: cluster.clone(), reporter, instance, action: "Act" };
    let fault = Fault::TooManyRequests { retry_after: 3 };
    server.inject(Rule { verb: None, resource: None, times: None, fault });
    fn is_throttled<T>(what: &str, result: Result<T, ClusterError>) {
        let error = result.err().unwrap();
        assert_eq!(error.kind(), "too_many_requests", "{what}: {error}");
        assert_eq!(error.retry_after(), Some(Duration::from_secs(3)), "{what}");
    }
    is_throttled("get object", cluster.topology("worker").await);
    is_throttled("apply", cluster.apply(&object).await);
    is_throttled("merge", cluster.nudge("worker", "now").await);
    is_throttled("delete", cluster.delete_topology(&meta).await);
    is_throttled("list objects", cluster.topology_summaries().next().await);
    is_throttled("get node", cluster.node_uid("worker").await);
    is_throttled("get kubelet", cluster.kubelet_endpoint("worker").await);
    is_throttled("look for node", cluster.has_no_node("worker").await);
    is_throttled("count nodes", cluster.node_count().await);
    is_throttled("get daemonset", cluster.daemon_set("default", "d").await);
    is_throttled("get lease", cluster.lease("default", "l").await);
    is_throttled("create lease", cluster.create_lease("default", "l", Default::default()).await);
    is_throttled("replace lease", cluster.replace_lease("default", lease).await);
    is_throttled("get device", cluster.devices_of("worker").await);
    is_throttled("create event", poster.post(Regarding::Objects, "Reason", false, "note").await);
    let mut pods = cluster.unscheduled_pods();
    is_throttled("list and watch", pods.next().await.unwrap());
    server.clear_faults();
    pods.next().await.unwrap().unwrap();
    let lists: Vec<_> = server.requests(&PODS).into_iter().map(|request| request.at).collect();
    let waited = lists[1] - lists[0];
    assert!(waited >= Duration::from_secs(3), "{waited:?}");
}

#[tokio::test]
async fn a_throttled_agent_waits_for_retry_after() {
    let env = Environment::start(quick()).await;
    env.converges().await;
    let patches = || {
        let all = env.server.requests(&TOPOLOGIES).into_iter().filter(|request| request.verb == "patch");
        all.map(|request| request.at).collect::<Vec<_>>()
    };
    let before = patches().len();
    env.server.fail_next("patch", TOPOLOGIES.plural, 1, Fault::TooManyRequests { retry_after: 3 });
    env.node.kubelet.start_pod(PodSpec::guaranteed("a", 1, GIB)).await.unwrap();
    env.wait_for("the API server rejects a patch", || (patches().len() > before).then_some(())).await;
    // A newer state does not shorten the wait.
    env.node.kubelet.start_pod(PodSpec::guaranteed("b", 1, GIB)).await.unwrap();
    env.converges().await;
    let patches = patches();
    let waited = patches[before + 1] - patches[before];
    assert!(waited >= Duration::from_secs(3), "{waited:?}");
    env.stop().await;
}
