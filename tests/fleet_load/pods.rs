//! The pods of the fleet: their objects, written as by a scheduler and kubelets, and what the simulated
//! kubelets run.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use numacast_sim::kubelet::{PodSpec, SimKubelet};
use serde_json::{Value, json};
use tokio::time::sleep;

/// The namespace of the pods.
pub(crate) const NAMESPACE: &str = "default";
/// Every fifth pod has exclusive CPUs.
const EXCLUSIVE: usize = 5;
/// Memory of a pod with exclusive CPUs, in bytes.
const MEMORY: u64 = 64 << 20;

/// From the bind to the pod's admission.
const ADMISSION: Duration = Duration::from_millis(10);
/// From the admission to the kubelet's first status update.
const FIRST_STATUS: Duration = Duration::from_millis(50);
/// From the kubelet's first status update to phase Running.
const START: Duration = Duration::from_secs(1);
/// From the deletion to the end of the containers.
const GRACE: Duration = Duration::from_secs(1);
/// From the status Succeeded to the release of the pod's resources.
const RELEASE: Duration = Duration::from_millis(15);
/// From that release to the removal of the object.
const REMOVAL: Duration = Duration::from_millis(200);

/// One pod of a node.
#[derive(Clone, Debug)]
pub(crate) struct LoadPod {
    pub(crate) name: String,
    pub(crate) exclusive: bool,
}

impl LoadPod {
    /// Creates the pod with this number on a node.
    pub(crate) fn new(node: &str, number: usize, generation: usize) -> Self {
        let name = format!("{node}-{number}-{generation}");
        // The hash spreads a node's pods over the key space, as in real clusters, so that sequential reads
        // find them late.
        let place = twox_hash::XxHash64::oneshot(0, name.as_bytes());
        Self { name: format!("load-{place:016x}-{name}"), exclusive: number.is_multiple_of(EXCLUSIVE) }
    }

    /// Returns what the node's kubelet runs.
    fn spec(&self, uid: &str) -> PodSpec {
        let mut spec = match self.exclusive {
            true => PodSpec::guaranteed(&self.name, 1, MEMORY),
            false => PodSpec::new(&self.name),
        };
        if !self.exclusive {
            spec.containers[0].milli_cpu = 50;
        }
        NAMESPACE.clone_into(&mut spec.namespace);
        uid.clone_into(&mut spec.uid);
        spec
    }

    /// Returns its object, of a realistic size.
    fn object(&self, node: &str) -> Result<Pod> {
        let mut object = self.spec("").object(node, "Pending");
        object["metadata"] = json!({
            "namespace": NAMESPACE,
            "name": self.name,
            "labels": {"app": "load", "pod-template-hash": "7c5ddbdf54"},
            "annotations": {"load/configuration": "x".repeat(1000)},
        });
        object["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
        let environment = (0..20).map(|number| {
            json!({"name": format!("SETTING_{number}"), "value": format!("the value of setting {number}")})
        });
        object["spec"]["containers"][0]["env"] = environment.collect();
        if let Some(fields) = object.as_object_mut() {
            fields.remove("status");
        }
        serde_json::from_value(object).context("the object of a pod")
    }
}

/// Returns a status as the kubelet writes it.
fn status(phase: &str, ready: bool, container: &Value) -> Value {
    let is = |holds: bool| if holds { "True" } else { "False" };
    let conditions = [
        ("PodReadyToStartContainers", phase == "Running"),
        ("Initialized", true),
        ("Ready", ready),
        ("ContainersReady", ready),
        ("PodScheduled", true),
    ];
    let conditions = conditions.map(|(kind, holds)| {
        json!({"type": kind, "status": is(holds), "lastTransitionTime": "2026-01-01T00:00:00Z"})
    });
    json!({"status": {
        "phase": phase,
        "conditions": conditions,
        "hostIP": "127.0.0.1",
        "hostIPs": [{"ip": "127.0.0.1"}],
        "podIP": "10.0.0.7",
        "podIPs": [{"ip": "10.0.0.7"}],
        "startTime": "2026-01-01T00:00:00Z",
        "containerStatuses": [{
            "name": "main",
            "ready": ready,
            "restartCount": 0,
            "image": "registry.k8s.io/pause:3.10",
            "imageID": format!("registry.k8s.io/pause@sha256:{}", "0".repeat(64)),
            "containerID": format!("containerd://{}", "0".repeat(64)),
            "started": ready,
            "state": container,
        }],
    }})
}

fn pending() -> Value {
    status("Pending", false, &json!({"waiting": {"reason": "ContainerCreating"}}))
}

/// Returns the status of a running pod.
pub(crate) fn running() -> Value {
    status("Running", true, &json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}))
}

fn succeeded() -> Value {
    status("Succeeded", false, &json!({"terminated": {"exitCode": 0, "reason": "Completed"}}))
}

/// Manages one node's pods in both the API server and the kubelet.
#[derive(Clone)]
pub(crate) struct NodePods<'a> {
    pub(crate) api: Api<Pod>,
    pub(crate) node: &'a str,
    pub(crate) kubelet: &'a SimKubelet,
}

impl<'a> NodePods<'a> {
    pub(crate) fn new(client: &Client, node: &'a str, kubelet: &'a SimKubelet) -> Self {
        Self { api: Api::namespaced(client.clone(), NAMESPACE), node, kubelet }
    }

    async fn patch(&self, pod: &LoadPod, status: &Value) -> Result<()> {
        let patch = Patch::Strategic(status);
        self.api.patch_status(&pod.name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    async fn create(&self, pod: &LoadPod) -> Result<String> {
        let made = self.api.create(&PostParams::default(), &pod.object(self.node)?).await?;
        made.metadata.uid.context("a pod without a UID")
    }

    async fn admit(&self, pod: &LoadPod, uid: &str) -> Result<()> {
        let started = self.kubelet.start_pod(pod.spec(uid)).await;
        started.map(drop).with_context(|| format!("the simulated kubelet rejects {}", pod.name))
    }

    /// Creates a pod that has been running for a long time.
    pub(crate) async fn set_up(&self, pod: &LoadPod) -> Result<()> {
        let uid = self.create(pod).await?;
        self.admit(pod, &uid).await?;
        self.patch(pod, &running()).await
    }

    /// Binds and starts a pod.
    pub(crate) async fn start(&self, pod: &LoadPod) -> Result<()> {
        let uid = self.create(pod).await?;
        sleep(ADMISSION).await;
        self.admit(pod, &uid).await?;
        sleep(FIRST_STATUS).await;
        self.patch(pod, &pending()).await?;
        sleep(START).await;
        self.patch(pod, &running()).await
    }

    /// Deletes and stops a pod.
    pub(crate) async fn end(&self, pod: &LoadPod) -> Result<()> {
        self.api.delete(&pod.name, &DeleteParams::default().grace_period(30)).await?;
        sleep(GRACE).await;
        self.patch(pod, &succeeded()).await?;
        sleep(RELEASE).await;
        self.kubelet.stop_pod(NAMESPACE, &pod.name);
        sleep(REMOVAL).await;
        self.api.delete(&pod.name, &DeleteParams::default().grace_period(0)).await?;
        Ok(())
    }
}

/// Returns a pod that the scheduler plugin has rejected on every node.
pub(crate) fn rejected(name: &str, nodes: usize) -> Result<(Pod, Value)> {
    let pod = json!({
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"schedulerName": "topology-aware", "containers": [{
            "name": "main",
            "image": "registry.k8s.io/pause:3.10",
            "resources": {"requests": {"cpu": "4", "memory": "1Gi"}, "limits": {"cpu": "4", "memory": "1Gi"}},
        }]},
    });
    let status = json!({"status": {"conditions": [{
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": format!(
            "0/{nodes} nodes are available: {nodes} cannot align pod. preemption: 0/{nodes} nodes are available: \
             {nodes} Preemption is not helpful for scheduling."
        ),
    }]}});
    Ok((serde_json::from_value(pod)?, status))
}
