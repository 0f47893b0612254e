//! Tests of the embedded API server from outside, through kube. Messages were compared with kube-apiserver
//! 1.36.3.

use futures::{AsyncBufReadExt, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{
    Api, DeleteParams, ListParams, PartialObjectMeta, Patch, PatchParams, PostParams, Preconditions,
    WatchEvent, WatchParams,
};

use super::*;
use crate::kubelet::PodSpec;

struct Cluster {
    server: ApiServer,
    client: kube::Client,
}

impl Cluster {
    async fn new() -> Self {
        let server = ApiServer::start_on_any_port(0).await.unwrap();
        let client = server.client().unwrap();
        Self { server, client }
    }

    fn topologies(&self) -> Api<NodeResourceTopology> {
        Api::all(self.client.clone())
    }

    async fn apply(&self, manager: &str, force: bool, body: Value) -> Result<NodeResourceTopology, String> {
        let mut params = PatchParams::apply(manager).validation_strict();
        params.force = force;
        self.topologies().patch("w", &params, &Patch::Apply(body)).await.map_err(message)
    }

    async fn raw(&self, method: &str, path: &str, content: &str, body: &str) -> Result<String, String> {
        let request = axum::http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content)
            .body(body.as_bytes().to_vec())
            .unwrap();
        self.client.request_text(request).await.map_err(message)
    }
}

/// Code and message of an error.
fn message(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} {}", status.code, status.message),
        other => format!("{other:?}"),
    }
}

fn topology(zones: &Value) -> Value {
    json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": "w"},
        "zones": zones,
    })
}

fn one_zone() -> Value {
    json!([{"name": "node-0", "type": "Node"}])
}

const NRTS: &str = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies";
const APPLY: &str = "application/apply-patch+yaml";

#[tokio::test]
async fn an_apply_creates_the_object_and_a_repeated_one_changes_nothing() {
    let cluster = Cluster::new().await;
    let created = cluster.apply("numacast", true, topology(&one_zone())).await.unwrap();
    assert_eq!(created.metadata.generation, Some(1));
    assert!(created.metadata.uid.is_some() && created.metadata.creation_timestamp.is_some());
    let manager = &created.metadata.managed_fields.as_ref().unwrap()[0];
    assert_eq!(manager.manager.as_deref(), Some("numacast"));
    assert_eq!(manager.operation.as_deref(), Some("Apply"));
    assert_eq!(manager.fields_v1.as_ref().unwrap().0, json!({"f:zones": {}}));
    let again = cluster.apply("numacast", true, topology(&one_zone())).await.unwrap();
    assert_eq!(again.metadata.resource_version, created.metadata.resource_version);
    let writes = cluster.server.writes();
    assert_eq!((writes.requests, writes.changes), (2, 1));
    let other = cluster.apply("numacast", true, topology(&json!([]))).await.unwrap();
    assert_eq!(other.metadata.generation, Some(2));
    assert_ne!(other.metadata.resource_version, created.metadata.resource_version);
    assert_eq!(other.metadata.uid, created.metadata.uid);
}

#[tokio::test]
async fn a_field_of_another_manager_is_a_conflict_until_forced() {
    let cluster = Cluster::new().await;
    cluster.apply("numacast", true, topology(&one_zone())).await.unwrap();
    let conflict = cluster.apply("other", false, topology(&json!([]))).await.unwrap_err();
    assert_eq!(conflict, "409 Apply failed with 1 conflict: conflict with \"numacast\": .zones");
    cluster.apply("other", false, topology(&one_zone())).await.unwrap();
    let taken = cluster.apply("other", true, topology(&json!([]))).await.unwrap();
    assert_eq!(taken.metadata.managed_fields.unwrap().len(), 1, "managers without fields are dropped");

    let edit = PatchParams { field_manager: Some("kubectl-edit".into()), ..PatchParams::default() };
    let merge = Patch::Merge(json!({"zones": one_zone(), "metadata": {"labels": {"x": "y"}}}));
    let edited = cluster.topologies().patch("w", &edit, &merge).await.unwrap();
    assert_eq!(edited.metadata.labels.unwrap()["x"], "y");
    let conflict = cluster.apply("other", false, topology(&json!([]))).await.unwrap_err();
    assert_eq!(
        conflict,
        "409 Apply failed with 1 conflict: conflict with \"kubectl-edit\" using \
         topology.node.k8s.io/v1alpha2: .zones"
    );
    let mut body = topology(&json!([]));
    body["metadata"]["labels"] = json!({"x": "z"});
    let conflict = cluster.apply("other", false, body).await.unwrap_err();
    assert_eq!(
        conflict,
        "409 Apply failed with 2 conflicts: conflicts with \"kubectl-edit\" using \
         topology.node.k8s.io/v1alpha2:\n- .metadata.labels.x\n- .zones"
    );
}

#[tokio::test]
async fn a_field_that_is_no_longer_applied_is_removed_unless_another_manager_owns_it() {
    let cluster = Cluster::new().await;
    let owner = |uid: &str| json!({"apiVersion": "v1", "kind": "Node", "name": "w", "uid": uid});
    let mut first = topology(&one_zone());
    first["metadata"]["annotations"] = json!({"a/b": "c", "d/e": "f"});
    first["metadata"]["ownerReferences"] = json!([owner("u")]);
    cluster.apply("numacast", true, first).await.unwrap();
    let mut second = topology(&one_zone());
    second["metadata"]["annotations"] = json!({"d/e": "f"});
    second["metadata"]["ownerReferences"] = json!([owner("v")]);
    let both = cluster.apply("other", false, second).await.unwrap();
    assert_eq!(both.metadata.owner_references.as_ref().unwrap().len(), 2, "the list is merged by uid");
    let left = cluster.apply("numacast", true, topology(&one_zone())).await.unwrap();
    assert_eq!(left.metadata.annotations.unwrap(), [("d/e".to_owned(), "f".to_owned())].into());
    assert_eq!(left.metadata.owner_references.unwrap()[0].uid, "v");
}

#[tokio::test]
async fn violations_of_the_schema_are_rejected_with_the_servers_messages() {
    let cluster = Cluster::new().await;
    let zone = |more: Value| {
        let mut zone = json!({"name": "node-0", "type": "Node"});
        zone.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        topology(&json!([zone]))
    };
    let typed = "500 failed to create typed patch object (/w; topology.node.k8s.io/v1alpha2, \
                 Kind=NodeResourceTopology): ";
    let quantity = schema::of_version("v1alpha2")["properties"]["zones"]["items"]["properties"]["resources"]
        ["items"]["properties"]["capacity"]["pattern"]
        .as_str()
        .unwrap();
    let mut nameless = topology(&one_zone());
    nameless.as_object_mut().unwrap().remove("zones");
    for (body, expected) in [
        (zone(json!({"bogus": 1})), format!("{typed}.zones[0].bogus: field not declared in schema")),
        (
            zone(json!({"parent": 1})),
            format!("{typed}.zones[0].parent: expected string, got &value.valueUnstructured{{Value:1}}"),
        ),
        (
            nameless,
            "422 NodeResourceTopology.topology.node.k8s.io \"w\" is invalid: zones: Required value"
                .to_owned(),
        ),
        (
            topology(&json!([
                {"name": "x", "resources": [{"name": "cpu", "capacity": 1, "allocatable": "abc"}]}
            ])),
            format!(
                "422 NodeResourceTopology.topology.node.k8s.io \"w\" is invalid: \
                 [zones[0].resources[0].allocatable: Invalid value: \"abc\": \
                 zones[0].resources[0].allocatable in body should match '{quantity}', \
                 zones[0].resources[0].available: Required value, zones[0].type: Required value]"
            ),
        ),
    ] {
        assert_eq!(cluster.apply("numacast", true, body).await.unwrap_err(), expected);
    }
    let body = zone(json!({"bogus": 1})).to_string();
    let strict = format!("{NRTS}?fieldValidation=Strict");
    assert_eq!(
        cluster.raw("POST", &strict, "application/json", &body).await.unwrap_err(),
        "400 NodeResourceTopology in version \"v1alpha2\" cannot be handled as a NodeResourceTopology: strict \
         decoding error: unknown field \"zones[0].bogus\""
    );
    let pruned = cluster.raw("POST", NRTS, "application/json", &body).await.unwrap();
    assert!(!pruned.contains("bogus"), "{pruned}");
}

#[tokio::test]
async fn invalid_requests_are_rejected() {
    let cluster = Cluster::new().await;
    let body = topology(&one_zone()).to_string();
    let path = format!("{NRTS}/w");
    let managed = topology(&one_zone())
        .to_string()
        .replace("\"name\":\"w\"", "\"name\":\"w\",\"managedFields\":[{\"manager\":\"x\"}]");
    for (path, content, body, expected) in [
        (
            path.clone(),
            APPLY,
            body.as_str(),
            "422 PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
        ),
        (
            format!("{NRTS}/v?fieldManager=a"),
            APPLY,
            body.as_str(),
            "400 the name of the object (w) does not match the name on the URL (v)",
        ),
        (format!("{path}?fieldManager=a"), APPLY, managed.as_str(), "400 metadata.managedFields must be nil"),
        (
            path.clone(),
            "application/strategic-merge-patch+json",
            "{}",
            "415 the body of the request was in an unknown format - accepted media types include: \
             application/merge-patch+json, application/apply-patch+yaml",
        ),
    ] {
        assert_eq!(cluster.raw("PATCH", &path, content, body).await.unwrap_err(), expected);
    }
}

#[tokio::test]
async fn yaml_is_applied_like_json() {
    let cluster = Cluster::new().await;
    let yaml = "apiVersion: topology.node.k8s.io/v1alpha2\nkind: NodeResourceTopology\nmetadata:\n  name: w\n\
                zones:\n- name: node-0\n  type: Node\n";
    cluster.raw("PATCH", &format!("{NRTS}/w?fieldManager=a"), APPLY, yaml).await.unwrap();
    assert_eq!(cluster.server.topology("w").unwrap().spec.zones[0].name, "node-0");
}

#[tokio::test]
async fn an_update_needs_the_current_resource_version() {
    let cluster = Cluster::new().await;
    let api = cluster.topologies();
    cluster.apply("numacast", true, topology(&one_zone())).await.unwrap();
    let mut read = api.get("w").await.unwrap();
    cluster.apply("numacast", true, topology(&json!([]))).await.unwrap();
    let stale = api.replace("w", &PostParams::default(), &read).await.map_err(message).unwrap_err();
    assert_eq!(
        stale,
        "409 Operation cannot be fulfilled on noderesourcetopologies.topology.node.k8s.io \"w\": the object \
         has been modified; please apply your changes to the latest version and try again"
    );
    read.metadata.resource_version = None;
    let blind = api.replace("w", &PostParams::default(), &read).await.map_err(message).unwrap_err();
    assert_eq!(
        blind,
        "422 noderesourcetopologies.topology.node.k8s.io \"w\" is invalid: metadata.resourceVersion: Invalid \
         value: 0: must be specified for an update"
    );
    let mut fresh = api.get("w").await.unwrap();
    fresh.spec.topology_policies = Some(vec![]);
    let updated = api.replace("w", &PostParams::default(), &fresh).await.unwrap();
    assert_eq!(updated.metadata.managed_fields.unwrap().len(), 2);
    let twice = api.create(&PostParams::default(), &fresh).await.map_err(message).unwrap_err();
    assert_eq!(twice, "409 noderesourcetopologies.topology.node.k8s.io \"w\" already exists");
}

#[tokio::test]
async fn a_delete_checks_the_uid_and_deletes_dependents() {
    let cluster = Cluster::new().await;
    let uid = cluster.server.add_node("w").unwrap();
    let mut body = topology(&one_zone());
    body["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Node", "name": "w", "uid": uid}]);
    cluster.apply("numacast", true, body).await.unwrap();
    let nodes = Api::<Node>::all(cluster.client.clone());
    let other = Preconditions { uid: Some("other".into()), resource_version: None };
    let params = DeleteParams { preconditions: Some(other), ..DeleteParams::default() };
    let rejected = nodes.delete("w", &params).await.map_err(message).unwrap_err();
    assert!(
        rejected.contains("Precondition failed: UID in precondition: other, UID in object meta"),
        "{rejected}"
    );
    nodes.delete("w", &DeleteParams::default()).await.unwrap();
    assert_eq!(cluster.server.topology("w"), None);
    let missing = cluster.topologies().get("w").await.map_err(message).unwrap_err();
    assert_eq!(missing, "404 noderesourcetopologies.topology.node.k8s.io \"w\" not found");
}

#[tokio::test]
async fn lists_support_selectors_and_metadata_only() {
    let cluster = Cluster::new().await;
    for (name, node) in [("a", "w"), ("b", "v")] {
        cluster.server.put(&PODS, PodSpec::new(name).object(node, "Running")).unwrap();
    }
    let params = ListParams::default().fields("spec.nodeName=w");
    let pods = Api::<Pod>::all(cluster.client.clone()).list(&params).await.unwrap();
    assert_eq!(pods.items.len(), 1);
    assert_eq!(pods.items[0].metadata.uid.as_deref(), Some("uid-a"), "the uid in its kubelet");
    let api = Api::<PartialObjectMeta<Pod>>::all(cluster.client.clone());
    let metadata = api.list_metadata(&params).await.unwrap();
    assert_eq!(metadata.items[0].metadata.name.as_deref(), Some("a"));
}

#[tokio::test]
async fn a_watch_sends_every_change_since_its_version() {
    let cluster = Cluster::new().await;
    let pods = Api::<Pod>::namespaced(cluster.client.clone(), "default");
    let version = pods.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    cluster.server.put(&PODS, PodSpec::new("a").object("w", "Pending")).unwrap();
    cluster.server.put(&PODS, PodSpec::new("other").object("v", "Pending")).unwrap();
    let params = WatchParams::default().fields("spec.nodeName=w");
    let mut stream = pods.watch(&params, &version).await.unwrap().boxed();
    let mut next = async || match stream.try_next().await.unwrap() {
        Some(WatchEvent::Added(pod)) => format!("added {}", pod.metadata.name.unwrap()),
        Some(WatchEvent::Modified(pod)) => format!("modified {}", pod.metadata.name.unwrap()),
        Some(WatchEvent::Deleted(pod)) => format!("deleted {}", pod.metadata.name.unwrap()),
        other => format!("{other:?}"),
    };
    assert_eq!(next().await, "added a");
    cluster.server.put(&PODS, PodSpec::new("a").object("w", "Running")).unwrap();
    assert_eq!(next().await, "modified a");
    cluster.server.put(&PODS, PodSpec::new("b").object("w", "Running")).unwrap();
    assert_eq!(next().await, "added b");
    assert!(cluster.server.delete(&PODS, "default", "a"));
    assert_eq!(next().await, "deleted a");
    cluster.server.put(&PODS, PodSpec::new("b").object("v", "Running")).unwrap();
    assert_eq!(next().await, "deleted b", "it no longer matches");
    cluster.server.compact_history();
    let mut late = pods.watch(&params, &version).await.unwrap().boxed();
    let Some(WatchEvent::Error(error)) = late.try_next().await.unwrap() else { panic!("no error") };
    assert_eq!((error.code, error.reason.as_str()), (410, "Expired"));
}

#[tokio::test]
async fn a_streamed_list_ends_with_a_bookmark() {
    let cluster = Cluster::new().await;
    cluster.apply("numacast", true, topology(&one_zone())).await.unwrap();
    let path = format!("{NRTS}?watch=1&sendInitialEvents=true&allowWatchBookmarks=true");
    let request = axum::http::Request::get(path).body(Vec::new()).unwrap();
    let mut lines = Box::pin(cluster.client.request_stream(request).await.unwrap()).lines();
    let mut next = async || serde_json::from_str::<Value>(&lines.next().await.unwrap().unwrap()).unwrap();
    assert_eq!(next().await["type"], "ADDED");
    let bookmark = next().await;
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
}

#[tokio::test]
async fn discovery_lists_the_installed_kinds() {
    let cluster = Cluster::new().await;
    let groups = cluster.client.list_api_groups().await.unwrap();
    let group = groups.groups.iter().find(|group| group.name == "topology.node.k8s.io").unwrap();
    assert_eq!(group.preferred_version.as_ref().unwrap().version, "v1alpha2");
    let resources = cluster.client.list_api_group_resources("topology.node.k8s.io/v1alpha2").await.unwrap();
    assert_eq!(resources.resources[0].short_names.as_ref().unwrap(), &["node-res-topo"]);
    let core = cluster.client.list_core_api_resources("v1").await.unwrap();
    assert!(core.resources.iter().any(|resource| resource.name == "nodes" && !resource.namespaced));
    assert!(cluster.client.apiserver_version().await.unwrap().git_version.starts_with("v1."));
    cluster.server.set_installed(false);
    let groups = cluster.client.list_api_groups().await.unwrap();
    assert!(!groups.groups.iter().any(|group| group.name == "topology.node.k8s.io"));
    let missing = cluster.topologies().get("w").await.map_err(message).unwrap_err();
    assert!(missing.contains("404 page not found"), "{missing}");
}

#[tokio::test]
async fn the_old_version_is_the_same_object_without_attributes() {
    let cluster = Cluster::new().await;
    let mut body = topology(&one_zone());
    body["attributes"] = json!([{"name": "topologyManagerPolicy", "value": "none"}]);
    cluster.apply("numacast", true, body).await.unwrap();
    let path = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies/w";
    let old: Value = serde_json::from_str(&cluster.raw("GET", path, "", "").await.unwrap()).unwrap();
    assert_eq!(old["apiVersion"], "topology.node.k8s.io/v1alpha1");
    assert_eq!(old["attributes"], Value::Null);
    assert_eq!(old["zones"], one_zone());
}

#[tokio::test]
async fn denied_verbs_and_missing_objects_have_the_servers_messages() {
    let cluster = Cluster::new().await;
    cluster.server.set_denied("patch", "noderesourcetopologies", true);
    cluster.server.set_denied("list", "pods", true);
    let user = "User \"system:serviceaccount:numacast:numacast\"";
    assert_eq!(
        cluster.apply("numacast", true, topology(&one_zone())).await.unwrap_err(),
        format!(
            "403 noderesourcetopologies.topology.node.k8s.io \"w\" is forbidden: {user} cannot patch resource \
             \"noderesourcetopologies\" in API group \"topology.node.k8s.io\" at the cluster scope"
        )
    );
    let pods = Api::<Pod>::namespaced(cluster.client.clone(), "d").list(&ListParams::default()).await;
    assert_eq!(
        pods.map_err(message).unwrap_err(),
        format!(
            "403 pods is forbidden: {user} cannot list resource \"pods\" in API group \"\" in the namespace \"d\""
        )
    );
    let node = Api::<Node>::all(cluster.client.clone()).get("w").await.map_err(message).unwrap_err();
    assert_eq!(node, "404 nodes \"w\" not found");
    cluster.server.set_denied("patch", "noderesourcetopologies", false);
    cluster.apply("numacast", true, topology(&one_zone())).await.unwrap();
}

#[tokio::test]
async fn faults_affect_matching_requests() {
    let cluster = Cluster::new().await;
    // kube retries some codes by itself; raw requests show every response.
    let path = format!("{NRTS}/w?fieldManager=a");
    let apply = async || cluster.raw("PATCH", &path, APPLY, &topology(&one_zone()).to_string()).await;
    cluster.server.fail_next("patch", "noderesourcetopologies", 1, Fault::Status(500));
    assert!(apply().await.unwrap_err().starts_with("500 Internal error occurred"));
    cluster.server.fail_next("patch", "noderesourcetopologies", 1, Fault::Cut);
    assert!(apply().await.is_err());
    assert_eq!(cluster.server.topology("w"), None, "it was not executed");
    cluster.server.fail_next("patch", "noderesourcetopologies", 1, Fault::CutAfterwards);
    assert!(apply().await.is_err());
    assert!(cluster.server.topology("w").is_some(), "it was executed");
    cluster.server.fail_next("get", "nodes", 1, Fault::Status(503));
    apply().await.unwrap();
    cluster.server.clear_faults();
    let node = Api::<Node>::all(cluster.client.clone()).get("w").await.map_err(message).unwrap_err();
    assert!(node.starts_with("404"), "{node}");
}

#[tokio::test]
async fn a_frozen_server_responds_once_it_is_thawed() {
    let cluster = Cluster::new().await;
    cluster.server.add_node("w").unwrap();
    cluster.server.set_frozen(true);
    let api = Api::<Node>::all(cluster.client.clone());
    let request = tokio::spawn(async move { api.get("w").await.map(|_| ()).map_err(message) });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!request.is_finished());
    cluster.server.set_frozen(false);
    request.await.unwrap().unwrap();
}

#[tokio::test]
async fn objects_survive_a_stop_of_the_server() {
    let cluster = Cluster::new().await;
    cluster.server.add_node("w").unwrap();
    let nodes = Api::<Node>::all(cluster.client.clone());
    nodes.get("w").await.unwrap();
    cluster.server.stop();
    assert!(nodes.get("w").await.is_err());
    cluster.server.resume();
    nodes.get("w").await.unwrap();
    cluster.server.cut_connections();
    nodes.get("w").await.unwrap();
}

#[tokio::test]
async fn generated_names_of_events_are_validated() {
    let cluster = Cluster::new().await;
    let event = |prefix: &str| {
        json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"generateName": prefix, "namespace": "default"},
            "reason": "Started", "involvedObject": {},
        })
        .to_string()
    };
    let path = "/api/v1/namespaces/default/events";
    cluster.raw("POST", path, "application/json", &event("w-")).await.unwrap();
    let events = cluster.server.list(&CORE_EVENTS, "default");
    assert!(events[0]["metadata"]["name"].as_str().unwrap().starts_with("w-"));
    let rejected = cluster.raw("POST", path, "application/json", &event("w.")).await.unwrap_err();
    assert!(
        rejected.starts_with("422 Event \"\" is invalid: metadata.generateName: Invalid value"),
        "{rejected}"
    );
}

#[tokio::test]
async fn changes_are_sent_to_subscribers() {
    let cluster = Cluster::new().await;
    let mut changes = cluster.server.changes();
    cluster.apply("numacast", true, topology(&one_zone())).await.unwrap();
    cluster.apply("numacast", true, topology(&one_zone())).await.unwrap();
    cluster.server.delete(&TOPOLOGIES, "", "w");
    let first = changes.recv().await.unwrap();
    assert_eq!((first.event, first.manager.as_str()), (EventType::Added, "numacast"));
    assert_eq!(changes.recv().await.unwrap().event, EventType::Deleted, "an equal write is no change");
}
