use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use numacast_sim::api_server::{ApiServer, Fault, TOPOLOGIES};
use serde_json::json;

use super::*;
use crate::agent::health::Health;
use crate::config::Config;
use crate::nrt::NodeResourceTopology;
use crate::telemetry::registry::Registry;
use crate::topology::{Amounts, Topology, Zone};

/// Returns a publisher of the object `w`.
fn publisher(server: &ApiServer) -> Publisher {
    let config = Config { node_name: "w".into(), ..Config::default() };
    let settings = Settings { events: false, owner_reference: true, ..config.agent_settings() };
    let health = Health::new(settings.poll, settings.kubelet_timeout, settings.refresh);
    let metrics = Arc::new(Metrics::register(&mut Registry::default(), Arc::new(health)));
    let cluster = Cluster::with_client(server.client().unwrap(), server.url(), Duration::from_secs(10));
    let events = EventRecorder::start(&settings, Some(cluster.clone()), Arc::clone(&metrics));
    Publisher::start(&settings, Some(cluster), metrics, events)
}

fn state(available: u64) -> Publishable {
    let amounts = Amounts { capacity: 4, allocatable: 4, available };
    let zone = Zone { id: 0, resources: [("cpu".to_owned(), amounts)].into(), ..Zone::default() };
    Publishable::new(&Topology { zones: vec![zone], ..Topology::default() }, None, &[], None)
}

#[tokio::test(start_paused = true)]
async fn leftovers_that_could_not_be_removed_are_not_taken_for_a_new_write() {
    let server = ApiServer::start_in_process(0);
    server.add_node("w").unwrap();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "name": "nfd", "uid": "n"});
    let object = json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": "w", "ownerReferences": [namespace]},
        "zones": [{"name": "node-0", "type": "Node"}],
    });
    let object: NodeResourceTopology = serde_json::from_value(object).unwrap();
    let params = PostParams { field_manager: Some("nfd".to_owned()), ..PostParams::default() };
    Api::all(server.client().unwrap()).create(&params, &object).await.unwrap();
    // The Node is read at the start, and for the reference to it that replaces the Namespace's.
    server.fail_next("get", "nodes", 2, Fault::Status(503));
    let publisher = publisher(&server);
    publisher.publish(state(4));
    let mut published = publisher.published.clone();
    let refreshed = published.wait_for(|it| it.writes > 1 || it.competitor.is_some()).await.unwrap().clone();
    assert_eq!(refreshed.competitor, None);
    publisher.stop().await;
    let owners = server.topology("w").unwrap().metadata.owner_references.unwrap();
    let kinds: Vec<&str> = owners.iter().map(|owner| owner.kind.as_str()).collect();
    assert_eq!(kinds, ["Node"], "the removal was tried again");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_rejects_a_write_is_reachable() {
    let server = ApiServer::start_in_process(0);
    server.add_node("w").unwrap();
    server.set_denied("patch", TOPOLOGIES.plural, true);
    let publisher = publisher(&server);
    publisher.publish(state(4));
    let mut published = publisher.published.clone();
    let denied = published.wait_for(|it| it.error.is_some()).await.unwrap().clone();
    assert!(!denied.is_unreachable, "{denied:?}");
    server.set_denied("patch", TOPOLOGIES.plural, false);
    published.wait_for(|it| it.writes == 1).await.unwrap();
    server.stop();
    publisher.publish(state(3));
    let stopped = published.wait_for(|it| it.error.is_some()).await.unwrap().clone();
    assert!(stopped.is_unreachable, "{stopped:?}");
    server.resume();
    let resumed = published.wait_for(|it| it.writes == 2).await.unwrap().clone();
    assert!(!resumed.is_unreachable && resumed.error.is_none(), "{resumed:?}");
}

#[tokio::test(start_paused = true)]
async fn an_object_of_the_old_version_that_is_gone_is_created_anew() {
    let server = ApiServer::start_in_process(0);
    server.add_node("w").unwrap();
    let version = GroupVersionKind::gvk("topology.node.k8s.io", "v1alpha1", "NodeResourceTopology");
    let resource = ApiResource::from_gvk_with_plural(&version, TOPOLOGIES.plural);
    let fields = json!({"topologyPolicies": ["None"], "zones": [{"name": "node-0", "type": "Node"}]});
    let object = DynamicObject::new("w", &resource).data(fields);
    let objects = Api::all_with(server.client().unwrap(), &resource);
    let params = PostParams { field_manager: Some("koordlet".to_owned()), ..PostParams::default() };
    objects.create(&params, &object).await.unwrap();
    let mut publisher = publisher(&server);
    publisher.live_object.wait_for(|live| live.object().is_some()).await.unwrap();
    assert!(server.delete(&TOPOLOGIES, "", "w"));
    publisher.publish(state(4));
    let published = publisher.published.wait_for(|it| it.writes == 1 || it.error.is_some()).await.unwrap();
    assert_eq!(published.error, None);
    assert!(server.topology("w").is_some());
}
