//! The agents' DaemonSets and their pods, decoding only what the controller needs.

use std::collections::BTreeMap;

use futures::stream::iter;
use futures::{Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{NodeAffinity, NodeSelector, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::Resource;
use kube::api::{DeleteParams, EvictParams, GetParams, ListParams, Preconditions, WatchParams};
use kube::core::{Request, Selector};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use super::list_watch::{ListWatchEvent, ListWatchParams};
use super::metadata::metadata;
use super::pages::{Listing, Pages};
use super::slim_pod::SlimPod;
use super::{Cluster, ClusterError, Failure};
use crate::quantity::Quantity;
use crate::watch_event::WatchEvent;

/// Page size. A pod has some 10 KiB.
const PAGE: u32 = 100;

/// The part of a DaemonSet that the controller uses. Deserializing all of it adds 200 KiB to the binary,
/// mostly for volumes.
#[derive(Clone, Debug, Deserialize)]
pub struct SlimDaemonSet {
    #[serde(default, deserialize_with = "metadata")]
    metadata: ObjectMeta,
    spec: Option<DaemonSetSpec>,
}

#[derive(Clone, Debug, Deserialize)]
struct DaemonSetSpec {
    selector: LabelSelector,
    template: PodTemplate,
}

#[derive(Clone, Debug, Deserialize)]
struct PodTemplate {
    spec: Option<SlimPodSpec>,
}

/// The part of a DaemonSet's pod template that the controller uses.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimPodSpec {
    /// `nodeName`
    pub node_name: Option<String>,
    /// `nodeSelector`: labels that the Node must have.
    pub node_selector: Option<BTreeMap<String, String>>,
    affinity: Option<Affinity>,
    /// `tolerations`, without those that the DaemonSet controller adds.
    pub tolerations: Option<Vec<Toleration>>,
    /// `hostNetwork`
    pub host_network: Option<bool>,
    /// `serviceAccountName`
    pub service_account_name: Option<String>,
    containers: Option<Vec<SlimContainer>>,
    volumes: Option<Vec<SlimVolume>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Affinity {
    node_affinity: Option<NodeAffinity>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SlimVolume {
    config_map: Option<ConfigMapVolume>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ConfigMapVolume {
    name: Option<String>,
}

/// The part of a container that the controller uses.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SlimContainer {
    /// `name`
    pub name: String,
    /// `image`
    pub image: Option<String>,
    command: Option<Vec<String>>,
    args: Option<Vec<String>>,
    resources: SlimResources,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct SlimResources {
    limits: Option<BTreeMap<String, Value>>,
}

impl SlimContainer {
    /// Returns its memory limit, in bytes.
    pub fn memory_limit(&self) -> Option<u64> {
        let limit = self.resources.limits.as_ref()?.get("memory")?;
        Quantity::deserialize(limit).ok().map(Quantity::ceil)
    }

    /// Returns command and arguments.
    pub fn arguments(&self) -> impl Iterator<Item = &str> {
        self.command.iter().chain(&self.args).flatten().map(String::as_str)
    }
}

impl SlimDaemonSet {
    /// Returns its namespace.
    pub fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Returns true if it is being deleted.
    pub const fn is_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Returns the spec of its pod template.
    pub fn pod(&self) -> Option<&SlimPodSpec> {
        self.spec.as_ref().and_then(|spec| spec.template.spec.as_ref())
    }
}

impl SlimPodSpec {
    /// Returns the containers, without init containers.
    pub fn containers(&self) -> impl Iterator<Item = &SlimContainer> {
        self.containers.iter().flatten()
    }

    /// Returns the names of mounted ConfigMaps.
    pub fn config_maps(&self) -> impl Iterator<Item = &str> {
        self.volumes.iter().flatten().filter_map(|volume| volume.config_map.as_ref()?.name.as_deref())
    }

    /// Returns the required node affinity.
    pub fn required_nodes(&self) -> Option<&NodeSelector> {
        let affinity = self.affinity.as_ref()?.node_affinity.as_ref()?;
        affinity.required_during_scheduling_ignored_during_execution.as_ref()
    }
}

/// Returns what the selectors of these DaemonSets have in common, in query syntax; `None` if that is invalid
/// or empty, which would select every pod.
pub fn pod_labels(of: &[SlimDaemonSet]) -> Option<String> {
    let selectors: Option<Vec<_>> = of.iter().map(|one| Some(&one.spec.as_ref()?.selector)).collect();
    let mut selectors = selectors?.into_iter();
    let first = selectors.next()?.clone();
    let selector = Selector::try_from(selectors.fold(first, in_common)).ok()?;
    Some(selector.to_string()).filter(|text| !text.is_empty())
}

/// Returns the requirements that both selectors have.
fn in_common(mut one: LabelSelector, other: &LabelSelector) -> LabelSelector {
    if let Some(labels) = &mut one.match_labels {
        let others = other.match_labels.as_ref();
        labels.retain(|key, value| others.is_some_and(|others| others.get(key) == Some(value)));
    }
    if let Some(expressions) = &mut one.match_expressions {
        expressions
            .retain(|expression| other.match_expressions.iter().flatten().any(|one| one == expression));
    }
    one
}

/// Returns true if the DaemonSet runs our agents, so that another one configured by mistake is not deleted.
pub fn runs_agents(of: &SlimDaemonSet) -> bool {
    of.pod().into_iter().flat_map(|pod| pod.containers.iter().flatten()).any(|container| {
        let arguments = || container.command.iter().chain(&container.args).flatten();
        let is_ours =
            |path: &String| path.rsplit('/').next().is_some_and(|file| file.starts_with("numacast"));
        arguments().any(|argument| argument == "agent") && arguments().chain(&container.image).any(is_ours)
    })
}

impl Cluster {
    /// Returns DaemonSets by name; `None` for one that does not exist.
    pub async fn daemon_sets(
        &self,
        namespace: &str,
        names: &[String],
    ) -> Result<Vec<(String, Option<SlimDaemonSet>)>, ClusterError> {
        let mut found = Vec::new();
        for name in names {
            found.push((name.clone(), self.daemon_set(namespace, name).await?));
        }
        Ok(found)
    }

    /// Returns a DaemonSet; `None` if it does not exist.
    pub async fn daemon_set(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<SlimDaemonSet>, ClusterError> {
        let what = format!("get daemonset {namespace}/{name}");
        let request = daemon_sets(namespace).get(name, &GetParams::default());
        self.read_opt(&what, request).await
    }

    /// Deletes exactly this DaemonSet, and leaves its pods to Kubernetes' garbage collector; returns false if
    /// it is gone.
    pub async fn delete_daemon_set(&self, namespace: &str, of: &SlimDaemonSet) -> Result<bool, ClusterError> {
        let name = of.name();
        let what = format!("delete daemonset {namespace}/{name}");
        let preconditions = Preconditions { uid: of.metadata.uid.clone(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        let request = daemon_sets(namespace).delete(name, &params);
        match self.in_time(&what, self.bytes(request)).await {
            Ok(_) => Ok(true),
            Err(Failure::Status(status)) if status.code == 404 => Ok(false),
            Err(failure) => Err(failure.explain(&what)),
        }
    }

    /// Lists and watches the pods with these labels. An error is one sentence; the watch resumes after a
    /// backoff.
    ///
    /// The list is not paged: API servers before 1.34 serve only the first page from their cache.
    pub fn agents(
        &self,
        namespace: &str,
        labels: &str,
    ) -> impl Stream<Item = Result<WatchEvent<SlimPod>, String>> + Send + 'static {
        let params = ListWatchParams {
            what: "the agents' pods",
            path: pods_path(namespace),
            list: ListParams::default().labels(labels).match_any(),
            watch: WatchParams::default().labels(labels),
            metadata: false,
            keep: |_: &SlimPod| true,
            limit: None,
        };
        self.list_watch(params, Instant::now()).flat_map(|event| iter(watch_events(event)))
    }

    /// Lists the pods with these labels; without labels all of the namespace.
    pub fn labelled_pods(&self, namespace: &str, labels: &str) -> Pages<SlimPod> {
        let listing = Listing {
            what: format!("list pods in {namespace}"),
            path: pods_path(namespace),
            labels: Some(labels.to_owned()).filter(|labels| !labels.is_empty()),
            page: PAGE,
            ..Listing::default()
        };
        Pages::new(self.clone(), listing)
    }

    /// Returns the running pods with these labels, and when the oldest running container of each started.
    pub async fn running_pods(
        &self,
        namespace: &str,
        labels: &str,
    ) -> Result<Vec<(String, Timestamp)>, ClusterError> {
        let mut running = Vec::new();
        let add = |pod: SlimPod| running.extend(pod.started.map(|started| (pod.name, started)));
        self.labelled_pods(namespace, labels).for_each(add).await?;
        Ok(running)
    }

    /// Evicts a pod; returns false if it is gone, or if a PodDisruptionBudget does not allow it now.
    pub async fn evict(&self, namespace: &str, name: &str) -> Result<bool, ClusterError> {
        let what = format!("evict pod {namespace}/{name}");
        let request = Request::new(pods_path(namespace)).evict(name, &EvictParams::default());
        match self.in_time(&what, self.bytes(request)).await {
            Ok(_) => Ok(true),
            Err(Failure::Status(status)) if [404, 429].contains(&status.code) => Ok(false),
            Err(failure) => Err(failure.explain(&what)),
        }
    }
}

fn daemon_sets(namespace: &str) -> Request {
    Request::new(DaemonSet::url_path(&(), Some(namespace)))
}

pub(super) fn pods_path(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

fn watch_events(
    event: Result<ListWatchEvent<SlimPod>, ClusterError>,
) -> Vec<Result<WatchEvent<SlimPod>, String>> {
    match event {
        Ok(ListWatchEvent::Listed(pods)) => WatchEvent::list(pods).map(Ok).collect(),
        Ok(ListWatchEvent::Applied(pod)) => vec![Ok(WatchEvent::Apply(pod))],
        Ok(ListWatchEvent::Deleted(pod)) => vec![Ok(WatchEvent::Delete(pod))],
        Ok(ListWatchEvent::Resumed) => Vec::new(),
        Err(error) => vec![Err(format!("cannot watch the agents' pods: {error}"))],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn labels(selector: serde_json::Value) -> Option<String> {
        let spec = json!({"selector": selector, "template": {}});
        pod_labels(&[serde_json::from_value(json!({"spec": spec})).unwrap()])
    }

    #[test]
    fn agents_are_recognized_by_image_and_command() {
        let runs = |container: serde_json::Value| {
            let template = json!({"spec": {"containers": [container]}});
            let spec = json!({"selector": {}, "template": template});
            runs_agents(&serde_json::from_value(json!({"spec": spec})).unwrap())
        };
        assert!(runs(json!({"name": "a", "command": ["/numacast"], "args": ["agent", "--config", "c"]})));
        assert!(runs(
            json!({"name": "a", "image": "registry.example:5000/x/numacast:v1", "args": ["agent"]})
        ));
        assert!(!runs(json!({"name": "a", "command": ["/numacast"], "args": ["controller"]})));
        assert!(!runs(json!({"name": "kube-proxy", "image": "k8s/kube-proxy", "command": ["kube-proxy"]})));
        assert!(!runs(json!({"name": "a", "image": "datadog/agent", "command": ["agent"]})));
    }

    #[test]
    fn a_daemon_set_is_read_whatever_its_managed_fields_are() {
        for levels in [1, 130, 10_000] {
            let nested = crate::cluster::metadata::tests::nested(levels);
            let read: SlimDaemonSet = serde_json::from_str(&format!(r#"{{"metadata":{nested}}}"#)).unwrap();
            assert_eq!(read.metadata.name.as_deref(), Some("w"));
        }
    }

    #[test]
    fn an_empty_selector_selects_nothing() {
        let query = labels(json!({
            "matchLabels": {"app": "numacast"},
            "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["a"]}],
        }));
        let query = query.unwrap();
        assert!(query.contains("app=numacast") && query.contains("tier notin (a)"), "{query}");
        assert_eq!(labels(json!({})), None, "as a query it would select every pod");
    }

    #[test]
    fn pods_of_several_daemon_sets_are_selected_by_what_they_have_in_common() {
        let labels = |selectors: Vec<serde_json::Value>| {
            let template = json!({});
            let of = selectors
                .iter()
                .map(|selector| json!({"spec": {"selector": selector, "template": template}}));
            let of: Vec<SlimDaemonSet> = of.map(|one| serde_json::from_value(one).unwrap()).collect();
            pod_labels(&of)
        };
        let of = |pool: &str| json!({"matchLabels": {"app": "numacast", "pool": pool}});
        assert_eq!(labels(vec![of("a"), of("b")]).as_deref(), Some("app=numacast"));
        assert_eq!(labels(vec![of("a"), of("a")]).as_deref(), Some("app=numacast,pool=a"));
        assert_eq!(labels(vec![of("a"), json!({"matchLabels": {"app": "other"}})]), None);
        assert_eq!(labels(vec![of("a"), json!({})]), None);
        assert_eq!(labels(Vec::new()), None);
        let tier =
            |value: &str| json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": [value]}]});
        assert_eq!(labels(vec![tier("a"), tier("a")]).as_deref(), Some("tier in (a)"));
        assert_eq!(labels(vec![tier("a"), tier("b")]), None);
    }
}
