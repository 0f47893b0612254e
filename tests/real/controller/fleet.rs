//! A cluster full of Nodes and objects without kubelets: a fleet as the controller sees it.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::support::Cluster;
use crate::support::wait::until;

/// The namespace of the controller, its DaemonSet and its Lease.
pub(crate) const NAMESPACE: &str = "numacast";
pub(crate) const DAEMON_SET: &str = "numacast-agent";
pub(crate) const LEASE: &str = "numacast-controller";
/// The service account with the rights of docs/rbac.md.
const ACCOUNT: &str = "system:serviceaccount:numacast:controller";
/// Concurrent requests.
const AT_ONCE: usize = 24;

/// Creates and deletes a fleet's objects.
pub(crate) struct Fleet<'a> {
    cluster: &'a Cluster,
    client: Client,
}

/// Returns the API of the objects.
pub(crate) fn objects(client: &Client) -> Api<DynamicObject> {
    let version = numacast::nrt::Version::V1alpha2;
    Api::all_with(client.clone(), &version.resource())
}

impl<'a> Fleet<'a> {
    /// Creates the namespace and grants the controller's rights, nothing more.
    pub(crate) async fn new(cluster: &'a Cluster) -> Result<Self> {
        let fleet = Self { cluster, client: cluster.client() };
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
        Api::all(fleet.client.clone()).create(&PostParams::default(), &namespace).await?;
        fleet.grant().await?;
        Ok(fleet)
    }

    /// Grants the rights that docs/rbac.md lists.
    async fn grant(&self) -> Result<()> {
        let role: ClusterRole =
            serde_json::from_value(json!({"metadata": {"name": "controller"}, "rules": [
                {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
                {"apiGroups": ["topology.node.k8s.io"], "resources": ["noderesourcetopologies"],
                 "verbs": ["get", "list", "delete", "watch", "patch"]},
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
            ]}))?;
        Api::all(self.client.clone()).create(&PostParams::default(), &role).await?;
        let binding: ClusterRoleBinding = serde_json::from_value(binding("ClusterRole", "controller"))?;
        Api::all(self.client.clone()).create(&PostParams::default(), &binding).await?;
        let own = json!([
            {"apiGroups": ["apps"], "resources": ["daemonsets"], "resourceNames": [DAEMON_SET],
             "verbs": ["get", "delete"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [LEASE],
             "verbs": ["get", "update"]},
        ]);
        self.grant_in(NAMESPACE, own).await?;
        let events = json!([{"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]}]);
        self.grant_in("default", events).await
    }

    async fn grant_in(&self, namespace: &str, rules: Value) -> Result<()> {
        let role: Role = serde_json::from_value(json!({"metadata": {"name": "controller"}, "rules": rules}))?;
        let binding: RoleBinding = serde_json::from_value(binding("Role", "controller"))?;
        Api::namespaced(self.client.clone(), namespace).create(&PostParams::default(), &role).await?;
        Api::namespaced(self.client.clone(), namespace).create(&PostParams::default(), &binding).await?;
        Ok(())
    }

    /// Returns a kubeconfig with these rights.
    pub(crate) fn kubeconfig(&self) -> Result<PathBuf> {
        self.cluster.kubeconfig_as(ACCOUNT, &[])
    }

    /// Creates the Lease as the chart does: without a holder.
    pub(crate) async fn add_lease(&self) -> Result<()> {
        let lease: Lease = serde_json::from_value(json!({"metadata": {"name": LEASE}}))?;
        self.namespaced::<Lease>().create(&PostParams::default(), &lease).await?;
        Ok(())
    }

    pub(crate) fn namespaced<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Returns the leader.
    pub(crate) async fn holder(&self) -> Result<Option<String>> {
        let lease = self.namespaced::<Lease>().get(LEASE).await?;
        Ok(lease.spec.and_then(|spec| spec.holder_identity))
    }

    /// Creates Ready Nodes of realistic size.
    pub(crate) async fn add_nodes(&self, names: &[String]) -> Result<()> {
        let api: Api<Node> = Api::all(self.client.clone());
        each(names, async |name| {
            let node: Node = serde_json::from_value(node(name))?;
            // The API server taints new Nodes.
            let mut made = api.create(&PostParams::default(), &node).await?;
            if let Some(spec) = made.spec.as_mut() {
                spec.taints = None;
            }
            made.metadata.managed_fields = None;
            api.replace(name, &PostParams::default(), &made).await?;
            Ok(())
        })
        .await
    }

    pub(crate) async fn delete_nodes(&self, names: &[String]) -> Result<()> {
        let api: Api<Node> = Api::all(self.client.clone());
        let delete = async |name: &str| {
            api.delete(name, &DeleteParams::default()).await?;
            Ok(())
        };
        each(names, delete).await
    }

    /// Creates objects as the field manager `manager`.
    pub(crate) async fn add_objects(&self, names: &[String], manager: &str) -> Result<()> {
        each(names, async |name| self.add_object(object(name), manager).await).await
    }

    pub(crate) async fn add_object(&self, object: Value, manager: &str) -> Result<()> {
        let params = PatchParams::apply(manager).force();
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        objects(&self.client).patch(&name, &params, &Patch::Apply(&object)).await?;
        Ok(())
    }

    pub(crate) async fn delete_object(&self, name: &str) -> Result<()> {
        objects(&self.client).delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Returns the names of all objects.
    pub(crate) async fn object_names(&self) -> Result<BTreeSet<String>> {
        Ok(objects(&self.client)
            .list_metadata(&ListParams::default())
            .await?
            .items
            .into_iter()
            .map(|object| object.name_any())
            .collect())
    }

    /// Creates the agents' DaemonSet with all tolerations, and a node selector if any.
    pub(crate) async fn add_daemon_set(&self, selector: Value) -> Result<()> {
        let labels = json!({"app": "agent"});
        let daemon_set: DaemonSet = serde_json::from_value(json!({
            "metadata": {"name": DAEMON_SET},
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {
                "containers": [{"name": "agent", "image": "numacast", "args": ["agent"]}], "nodeSelector": selector,
                "tolerations": [{"operator": "Exists"}]}}},
        }))?;
        self.namespaced().create(&PostParams::default(), &daemon_set).await?;
        Ok(())
    }

    /// Creates the agent's pod on a Node.
    pub(crate) async fn add_agent(&self, node: &str, ready: bool) -> Result<()> {
        let name = format!("agent-{node}");
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"app": "agent"}, "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": DAEMON_SET, "uid": "1"}]},
            "spec": {"nodeName": node, "containers": [{"name": "agent", "image": "agent"}],
                     "tolerations": [{"operator": "Exists"}]},
        }))?;
        self.namespaced::<Pod>().create(&PostParams::default(), &pod).await?;
        self.agent_is(node, ready).await
    }

    pub(crate) async fn agent_is(&self, node: &str, ready: bool) -> Result<()> {
        let status = if ready { "True" } else { "False" };
        let patch = json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
        let api = self.namespaced::<Pod>();
        let name = format!("agent-{node}");
        api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    }

    /// Returns an object's creation time.
    pub(crate) async fn created(&self, name: &str) -> Result<Time> {
        let object = objects(&self.client).get_metadata(name).await?;
        object.metadata.creation_timestamp.context("when was it created?")
    }

    /// Creates an object with a later creation time than another one's; creation times have a resolution of
    /// one second.
    pub(crate) async fn add_later(&self, name: &str, than: &str) -> Result<()> {
        let before = self.created(than).await?;
        until("the next second", async || {
            self.add_object(object(name), "numacast").await?;
            if self.created(name).await? == before {
                self.delete_object(name).await?;
                bail!("it is the same second");
            }
            Ok(())
        })
        .await
    }

    /// Creates a scheduler pod in a namespace, with the status that a kubelet reports for a container started at
    /// `since`.
    pub(crate) async fn run_scheduler(&self, namespace: &str, since: Time) -> Result<()> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "scheduler", "labels": {"component": "kube-scheduler"}},
            "spec": {"nodeName": "control-plane", "containers": [{"name": "scheduler", "image": "scheduler"}]},
        });
        api.patch("scheduler", &PatchParams::apply("test"), &Patch::Apply(&pod)).await?;
        let container = json!({"name": "scheduler", "image": "scheduler", "imageID": "", "ready": true, "restartCount": 0,
                               "state": {"running": {"startedAt": since}}});
        let patch = json!({"status": {"phase": "Running", "containerStatuses": [container]}});
        api.patch_status("scheduler", &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    }

    /// Deletes the agent's pod at once, as the kubelet finally does.
    pub(crate) async fn delete_agent(&self, node: &str) -> Result<()> {
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        self.namespaced::<Pod>().delete(&format!("agent-{node}"), &now).await?;
        Ok(())
    }

    /// Returns the notes of Events with this reason about `name`.
    pub(crate) async fn events(&self, reason: &str, name: &str) -> Result<Vec<String>> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let events = api.list(&ListParams::default()).await?.items.into_iter();
        let about = |event: &Event| {
            let regarding = event.regarding.as_ref().and_then(|regarding| regarding.name.as_deref());
            event.reason.as_deref() == Some(reason) && regarding == Some(name)
        };
        Ok(events.filter(about).filter_map(|event| event.note).collect())
    }
}

/// Runs `work` for many names, some concurrently.
async fn each(names: &[String], work: impl AsyncFn(&str) -> Result<()>) -> Result<()> {
    stream::iter(names).map(|name| work(name)).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
    Ok(())
}

fn binding(kind: &str, name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "controller", "namespace": NAMESPACE}],
    })
}

/// Returns `<prefix>-00000` and so on.
pub(crate) fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}-{n:05}")).collect()
}

/// Returns a Node with what makes up most of a real one: labels, annotations and images.
fn node(name: &str) -> Value {
    let labels = (0..20).map(|n| (format!("feature.node.kubernetes.io/some-feature-{n:02}"), json!("true")));
    let labels: serde_json::Map<String, Value> =
        labels.chain([("kubernetes.io/hostname".to_owned(), json!(name))]).collect();
    let image = |n: usize| {
        let digest =
            format!("registry.example.com/team/some-image-{n:02}@sha256:{}", "0123456789abcdef".repeat(4));
        json!({"names": [digest, format!("registry.example.com/team/some-image-{n:02}:v1.2.{n}")],
               "sizeBytes": 123_456_789})
    };
    let condition = |kind: &str, status: &str| {
        json!({"type": kind, "status": status, "reason": "KubeletReady", "message": "kubelet is posting ready status",
               "lastHeartbeatTime": "2026-11-21T20:00:00Z", "lastTransitionTime": "2026-11-21T20:00:00Z"})
    };
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"podCIDR": "10.0.0.0/24"},
        "status": {
            "conditions": [condition("MemoryPressure", "False"), condition("DiskPressure", "False"),
                           condition("PIDPressure", "False"), condition("Ready", "True")],
            "images": (0..50).map(image).collect::<Vec<_>>(),
        },
    })
}

/// Returns an object with two zones of typical content.
pub(crate) fn object(name: &str) -> Value {
    let resource = |name: &str, capacity: &str, available: &str| json!({"name": name, "capacity": capacity, "allocatable": capacity, "available": available});
    let zone = |id: usize| {
        json!({"name": format!("node-{id}"), "type": "Node",
               "costs": [{"name": "node-0", "value": 10}, {"name": "node-1", "value": 20}],
               "resources": [resource("cpu", "32", "16"), resource("example.com/nic", "4", "4"),
                             resource("hugepages-1Gi", "0", "0"), resource("hugepages-2Mi", "1073741824", "0"),
                             resource("memory", "137438953472", "68719476736")]})
    };
    let attribute = |name: &str, value: &str| json!({"name": name, "value": value});
    json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
        "metadata": {"name": name},
        "attributes": [attribute("topologyManagerPolicy", "single-numa-node"),
                       attribute("topologyManagerScope", "pod"),
                       attribute("nodeTopologyPodsFingerprint", "pfp0v001ef46db3751d8e999")],
        "zones": [zone(0), zone(1)],
    })
}

/// Fails with the difference if the sets are not equal.
pub(crate) fn same(found: &BTreeSet<String>, expected: &BTreeSet<String>) -> Result<()> {
    let some = |names: Vec<&String>| names.into_iter().take(5).cloned().collect::<Vec<_>>();
    let (left, lost) = (found.difference(expected).collect(), expected.difference(found).collect());
    ensure!(found == expected, "still there: {:?}; gone: {:?}", some(left), some(lost));
    Ok(())
}
