//! Pods from a real API server in protobuf: what is decoded from lists and watches equals the same API
//! server's JSON, for all fields of a pod, and across restarts of the API server.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod as Object;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::ApiResource;
use numacast::cluster::Cluster as ApiServer;
use numacast::core_v1::decode_pod;
use numacast::pod::{Annotation, Pod, PodEvent, RawPod, Termination, Wanted};
use numacast::util::wire::put_bytes;
use serde_json::json;
use tokio::time::timeout;

use crate::support::pods::PodSpec;
use crate::support::{Cluster, Needs, Parts, pod};

const NODE: &str = "worker";
/// Timeout of a request, and of waiting for an event.
const DEADLINE: Duration = Duration::from_secs(10);
/// Timeout for a broken watch to be re-established.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A subscriber of a node's pods.
struct Subscriber {
    node: String,
    events: Pin<Box<dyn Stream<Item = Result<PodEvent, String>> + Send>>,
    pods: BTreeMap<String, Pod>,
    errors: Vec<String>,
}

impl Subscriber {
    async fn start(cluster: &Cluster, wanted: Wanted) -> Result<Self> {
        let api_server = ApiServer::new(Some(&cluster.admin_kubeconfig()), DEADLINE).await?;
        let node = cluster.node_name(NODE);
        let events = Box::pin(api_server.watch_pods(&node, wanted));
        let mut subscriber = Self { node, events, pods: BTreeMap::new(), errors: Vec::new() };
        ensure!(subscriber.next().await? == PodEvent::Init);
        subscriber.rest_of_list().await?;
        ensure!(subscriber.errors.is_empty(), "{:?}", subscriber.errors);
        Ok(subscriber)
    }

    async fn next(&mut self) -> Result<PodEvent> {
        loop {
            match timeout(TIMEOUT, self.events.next()).await?.context("it has ended")? {
                Ok(event) => return Ok(event),
                Err(error) => self.errors.push(error),
            }
        }
    }

    /// Reads a list to its end; it replaces the known pods.
    async fn rest_of_list(&mut self) -> Result<()> {
        self.pods.clear();
        loop {
            match self.next().await? {
                PodEvent::Init => self.pods.clear(),
                PodEvent::InitApply(pod) => drop(self.pods.insert(pod.name.clone(), pod)),
                PodEvent::InitDone => return Ok(()),
                event => bail!("{event:?} in a list"),
            }
        }
    }

    /// Reads events until `enough` is true of the known pods.
    async fn until(&mut self, enough: impl Fn(&BTreeMap<String, Pod>) -> bool) -> Result<()> {
        while !enough(&self.pods) {
            match self.next().await? {
                PodEvent::Init => self.rest_of_list().await?,
                PodEvent::Apply(pod) => drop(self.pods.insert(pod.name.clone(), pod)),
                PodEvent::Delete(pod) => drop(self.pods.remove(&pod.name)),
                PodEvent::Resumed => {}
                event => bail!("{event:?} outside of a list"),
            }
        }
        Ok(())
    }

    /// Checks that the known pods equal the API server's JSON, and that the kept bytes decode to the same.
    async fn is_right(&self, cluster: &Cluster, wanted: &Wanted) -> Result<()> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"));
        let all: Api<DynamicObject> = Api::all_with(cluster.client(), &kind);
        let only = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        let mut expected = BTreeMap::new();
        for object in all.list(&only).await?.items {
            let text = serde_json::to_vec(&object)?;
            let pod = Pod::from_json(&text).map_err(anyhow::Error::msg)?;
            expected.insert(pod.name.clone(), pod);
        }
        ensure!(expected.keys().eq(self.pods.keys()), "{:?}\n{:?}", expected.keys(), self.pods.keys());
        for (name, pod) in &self.pods {
            let right = &expected[name];
            match (wanted.has_raw(), pod.raw.as_deref()) {
                (false, None) => {}
                (true, Some(RawPod::Protobuf(bytes))) => {
                    let read = decode_pod(bytes).map_err(anyhow::Error::msg)?;
                    ensure!(read == *right, "{name}:\n{read:?}\n{right:?}");
                }
                (_, raw) => bail!("{name}: {raw:?}"),
            }
            // Only wanted annotations are kept, in this test one, and none of pods that have ended.
            let is_kept = |key: &str| key == "wanted" && right.termination != Termination::Terminated;
            let annotations = right.annotations.iter().filter(|(key, _)| is_kept(key)).cloned();
            let right = Pod { annotations: annotations.collect(), ..right.clone() };
            let pod = Pod { raw: None, ..pod.clone() };
            ensure!(pod == right, "{name}:\n{pod:?}\n{right:?}");
        }
        Ok(())
    }
}

fn pods(cluster: &Cluster) -> Api<Object> {
    Api::namespaced(cluster.client(), &cluster.namespace())
}

/// Returns a pod that is bound to a node.
fn bound(cluster: &Cluster, spec: &PodSpec, node: &str) -> Result<Object> {
    let mut object = spec.bound_to(&cluster.node_name(node))?;
    object.metadata.namespace = Some(cluster.namespace());
    Ok(object)
}

/// Creates a few pods of every kind, enough for several pages.
async fn fill(cluster: &Cluster) -> Result<()> {
    let api = pods(cluster);
    let mut specs = vec![
        pod("best-effort"),
        pod("burstable").burstable().millicpus(100).memory("64Mi").device("example.com/nic", 1),
        pod("whole").cpus(2).memory("1.5Gi").hugepages("2Mi", "64Mi").init("first").cpus(1).memory("64Mi"),
        pod("helped").millicpus(500).memory("64Mi").sidecar("side").cpus(1).memory("64Mi"),
    ];
    specs.extend((0..70).map(|index| pod(&format!("many-{index:02}")).cpus(1).memory("1Gi")));
    for spec in specs {
        let mut object = bound(cluster, &spec, NODE)?;
        let annotations = [("wanted", "yes"), ("other", "no")].map(|(key, value)| (key.into(), value.into()));
        object.metadata.annotations = Some(annotations.into());
        api.create(&PostParams::default(), &object).await?;
    }
    // A pod on another node.
    api.create(&PostParams::default(), &bound(cluster, &pod("elsewhere"), "other")?).await?;
    Ok(())
}

async fn set_phase(cluster: &Cluster, name: &str, phase: &str) -> Result<()> {
    let status = json!({"status": {"phase": phase, "containerStatuses": [
        {"name": "main", "image": "pause", "imageID": "", "ready": false, "restartCount": 0, "state": {"running": {}}},
    ]}});
    pods(cluster).patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await?;
    Ok(())
}

#[tokio::test]
async fn protocol_buffers_and_json_contain_the_same_pods() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let mut cluster = Cluster::start(&parts).await?;
    let trimmed = Wanted::of(["wanted"]);
    let whole = trimmed.clone().with_raw();
    let empty = Subscriber::start(&cluster, whole.clone()).await?;
    ensure!(empty.pods.is_empty());
    fill(&cluster).await?;

    // Received as single events, and as a list.
    let mut first = empty;
    first.until(|pods| pods.len() == 74).await?;
    let mut second = Subscriber::start(&cluster, trimmed.clone()).await?;
    first.is_right(&cluster, &whole).await?;
    second.is_right(&cluster, &trimmed).await?;

    // Changes of their state.
    set_phase(&cluster, "whole", "Running").await?;
    set_phase(&cluster, "helped", "Succeeded").await?;
    let label = json!({"metadata": {"labels": {"changed": "yes"}}});
    pods(&cluster).patch("burstable", &PatchParams::default(), &Patch::Merge(label)).await?;
    let now = DeleteParams::default().grace_period(0);
    pods(&cluster).delete("many-07", &now).await?;
    pods(&cluster).delete("best-effort", &DeleteParams::default().grace_period(300)).await?;
    pods(&cluster).create(&PostParams::default(), &bound(&cluster, &pod("last"), NODE)?).await?;
    for (subscriber, wanted) in [(&mut first, &whole), (&mut second, &trimmed)] {
        subscriber.until(|pods| pods.contains_key("last")).await?;
        ensure!(subscriber.pods["best-effort"].deleted && !subscriber.pods.contains_key("many-07"));
        subscriber.is_right(&cluster, wanted).await?;
        ensure!(subscriber.errors.is_empty(), "{:?}", subscriber.errors);
    }

    // A restarted API server, which knows nothing of the earlier watches.
    cluster.kill_api_server()?;
    while first.errors.is_empty() {
        let event = timeout(TIMEOUT, first.events.next()).await?.context("it has ended")?;
        first.errors.push(event.err().context("it continues")?);
    }
    cluster.restart_api_server().await?;
    pods(&cluster).create(&PostParams::default(), &bound(&cluster, &pod("after"), NODE)?).await?;
    for (subscriber, wanted) in [(&mut first, &whole), (&mut second, &trimmed)] {
        subscriber.until(|pods| pods.contains_key("after")).await?;
        subscriber.is_right(&cluster, wanted).await?;
    }
    Ok(())
}

#[tokio::test]
async fn bytes_that_are_no_utf_8_lose_no_pod() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let (node, namespace) = (cluster.node_name(NODE), cluster.namespace());
    // Anyone who may create pods may write this; as JSON the API server would reject it.
    let text = |number, text: &[u8]| {
        let mut record = Vec::new();
        put_bytes(&mut record, number, text);
        record
    };
    let annotation = [text(1, b"wanted"), text(2, b"\xff\xfe")].concat();
    let metadata = [text(1, b"odd"), text(3, namespace.as_bytes()), text(12, &annotation)].concat();
    let container = [text(1, b"main"), text(2, b"pause")].concat();
    let spec = [text(2, &container), text(10, node.as_bytes())].concat();
    let object = [text(1, &metadata), text(2, &spec)].concat();
    let about = [text(1, b"v1"), text(2, b"Pod")].concat();
    let body = [b"k8s\0".to_vec(), text(1, &about), text(2, &object)].concat();
    let request = http::Request::post(format!("/api/v1/namespaces/{namespace}/pods"))
        .header("content-type", "application/vnd.kubernetes.protobuf")
        .body(body)?;
    cluster.client().request::<serde_json::Value>(request).await?;

    let wanted = Wanted::of(["wanted"]).with_raw();
    let subscriber = Subscriber::start(&cluster, wanted.clone()).await?;
    let expected = Annotation::Text("\u{fffd}\u{fffd}".into());
    ensure!(subscriber.pods["odd"].annotations[0].1 == expected, "{:?}", subscriber.pods);
    subscriber.is_right(&cluster, &wanted).await
}

#[tokio::test]
async fn one_pod_is_found_by_its_name() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let (node, namespace) = (cluster.node_name(NODE), cluster.namespace());
    pods(&cluster).create(&PostParams::default(), &bound(&cluster, &pod("here"), NODE)?).await?;
    pods(&cluster).create(&PostParams::default(), &bound(&cluster, &pod("there"), "other")?).await?;
    let api_server = ApiServer::new(Some(&cluster.admin_kubeconfig()), DEADLINE).await?;
    let get = async |api_server: &ApiServer, name: &str| {
        api_server.get_pod(&node, &(namespace.clone(), name.to_owned()), &Wanted::default()).await
    };
    ensure!(get(&api_server, "here").await?.is_some_and(|pod| pod.name == "here"));
    ensure!(get(&api_server, "there").await?.is_none() && get(&api_server, "nowhere").await?.is_none());
    let file = cluster.kubeconfig_as("nobody", &[])?;
    let without_rights = ApiServer::new(Some(&file), DEADLINE).await?;
    let error = get(&without_rights, "here").await.err().context("it may list pods")?.to_string();
    ensure!(
        error.starts_with("RBAC denied the request: pods \"here\" is forbidden: User \"nobody\" cannot list"),
        "{error}"
    );
    Ok(())
}
