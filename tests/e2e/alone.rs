//! Agents that publish nothing, beside another publisher's objects: they serve the proxy and the Pods API.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::images;
use crate::pods::{phase, pods};
use crate::steps::{RELEASE, agents, chart, is_ready};
use crate::support::nrt;
use crate::support::parts::fetched;
use crate::support::wait::until;
use crate::tools::output_of;

/// The group that may connect to the socket of PodInfo.
const GROUP: i64 = 2000;
/// Where the workload has that socket.
const SOCKET: &str = "/pod-info/pod-info.sock";
/// What a workload calls, by the name of its container, and whether it gets an answer.
const CALLS: [(&str, &str, bool); 7] = [
    ("conditions", "/podinfo.v1alpha1.PodInfo/ListPodConditions", true),
    ("list", "/v1alpha1.Pods/ListPods", false),
    ("get", "/v1alpha1.Pods/GetPod", false),
    ("watch", "/v1alpha1.Pods/WatchPods", false),
    ("podresources", "/v1.PodResourcesLister/List", false),
    ("allocatable", "/v1.PodResourcesLister/GetAllocatableResources", false),
    ("reflection", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", false),
];

/// The proxy and the Pods API are served, and another publisher's objects are as they were, to the last field.
pub(crate) async fn beside_another_publisher(cluster: &Cluster) -> Result<String> {
    let before = publish(cluster).await?;
    let values = format!("{}/values-without-objects.yaml", chart());
    let podinfo = format!("config.podsApi.enabled=true,config.podsApi.podInfo.group={GROUP}");
    let arguments = [
        "install",
        RELEASE,
        &chart(),
        "--namespace",
        RELEASE,
        "--create-namespace",
        "--wait",
        "--values",
        &values,
    ];
    let notes = cluster.tools.helm(&[&arguments[..], &["--set", &podinfo]].concat()).await?;
    ensure!(!notes.contains("WARNING"), "{notes}");
    for pod in agents(cluster).await? {
        ensure!(is_ready(&pod), "{} is not Ready", pod.name_any());
    }
    may_not_write(cluster).await?;
    proxy_serves(cluster).await?;
    finds_nothing(cluster)?;
    let calls = workload(cluster).await?;
    unchanged(cluster, &before).await?;
    cluster.tools.helm(&["uninstall", RELEASE, "--namespace", RELEASE, "--wait"]).await?;
    unchanged(cluster, &before).await?;
    cluster.tools.kubectl(&["delete", "noderesourcetopologies", "--all"]).await?;
    Ok(format!("{} objects of koordlet untouched; {calls}", before.len()))
}

/// Writes an object of each Node, as another publisher.
async fn publish(cluster: &Cluster) -> Result<Vec<DynamicObject>> {
    let mut objects = Vec::new();
    for worker in &cluster.workers {
        let amount = |name: &str, amount: &str| json!({"name": name, "capacity": amount, "allocatable": amount, "available": amount});
        let object = json!({
            "apiVersion": "topology.node.k8s.io/v1alpha2",
            "kind": "NodeResourceTopology",
            "metadata": {
                "name": worker.name,
                "annotations": {"node.koordinator.sh/cpu-topology": "{\"detail\":[]}"},
                "labels": {"app.kubernetes.io/managed-by": "Koordinator"},
            },
            "topologyPolicies": ["None"],
            "zones": [{"name": "node-0", "type": "Node", "resources": [amount("cpu", "5")]}],
        });
        let params = PatchParams::apply("koordlet");
        objects.push(nrt::api(&cluster.client).patch(&worker.name, &params, &Patch::Apply(object)).await?);
    }
    Ok(objects)
}

async fn unchanged(cluster: &Cluster, before: &[DynamicObject]) -> Result<()> {
    for object in before {
        let now = nrt::api(&cluster.client).get(&object.name_any()).await?;
        let (now, before) = (serde_json::to_value(&now)?, serde_json::to_value(object)?);
        ensure!(now == before, "it is {now} and was {before}");
    }
    Ok(())
}

async fn may_not_write(cluster: &Cluster) -> Result<()> {
    let account = format!("system:serviceaccount:{RELEASE}:numacast-agent");
    for (verb, resource) in [
        ("patch", "noderesourcetopologies.topology.node.k8s.io"),
        ("get", "noderesourcetopologies.topology.node.k8s.io"),
        ("create", "events.events.k8s.io"),
        ("patch", "pods/status"),
        ("get", "nodes/configz"),
        ("list", "resourceslices.resource.k8s.io"),
    ] {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let subresource = format!("--subresource={subresource}");
        let question = ["auth", "can-i", verb, resource, &subresource, "--as", &account, "--all-namespaces"];
        let answer = cluster.tools.kubectl(&question).await;
        ensure!(answer.is_err_and(|error| error.to_string().contains("no")), "it may {verb} {resource}");
    }
    let question = ["auth", "can-i", "watch", "pods", "--as", &account, "--all-namespaces"];
    cluster.tools.kubectl(&question).await.map(drop)
}

/// `doctor` takes the objects for another's.
fn finds_nothing(cluster: &Cluster) -> Result<()> {
    let kubeconfig = cluster.dir().join("inside.kubeconfig");
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_numacast"));
    doctor.arg("doctor").arg("--kubeconfig").arg(kubeconfig).arg("--ignore=SchedulerMissing");
    output_of(&mut doctor).map(drop)
}

/// The proxy has what the kubelet has.
async fn proxy_serves(cluster: &Cluster) -> Result<()> {
    let programs = fetched(&["podresources"])?.context("there is no client")?;
    for worker in &cluster.workers {
        let list = |socket: &str| -> Result<BTreeSet<String>> {
            let mut command = worker.command();
            command.arg(programs.join("podresources")).args(["request", "--socket", socket]);
            let text = output_of(command.args(["--rpc", "list", "--dial", "library"]))?;
            let response: Value = serde_json::from_str(&text)?;
            let pods = response["answer"]["podResources"].as_array().context(text)?;
            Ok(pods.iter().map(Value::to_string).collect())
        };
        let ours = list("/run/numacast/pod-resources/kubelet.sock")?;
        let theirs = list("/var/lib/kubelet/pod-resources/kubelet.sock")?;
        ensure!(ours == theirs && !ours.is_empty(), "{ours:?} instead of {theirs:?}");
    }
    Ok(())
}

/// A workload in the socket's group gets conditions and no specs; one that is not in it cannot connect.
async fn workload(cluster: &Cluster) -> Result<String> {
    let spec = |name: &str, groups: &[i64]| -> Result<Pod> {
        let containers = CALLS.map(|(name, rpc, _)| {
            json!({
                "name": name,
                "image": images::CLIENT,
                "args": ["call", "--socket", SOCKET, "--rpc", rpc, "--request", "/dev/null"],
                "env": [{"name": "SECRET", "value": "in-the-spec"}],
                "volumeMounts": [{"name": "pod-info", "mountPath": "/pod-info", "readOnly": true}],
            })
        });
        Ok(serde_json::from_value(json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": false,
                "securityContext": {"runAsUser": 65532, "runAsGroup": 65532, "supplementalGroups": groups},
                "containers": containers,
                "volumes": [{"name": "pod-info", "hostPath": {"path": "/run/numacast/pod-info", "type": "Directory"}}],
            },
        }))?)
    };
    run_to_end(cluster, &spec("member", &[GROUP])?).await?;
    run_to_end(cluster, &spec("stranger", &[])?).await?;
    for (container, rpc, is_answered) in CALLS {
        let said = log(cluster, "member", container).await?;
        ensure!(said["code"] == if is_answered { "OK" } else { "Unimplemented" }, "{rpc}: {said}");
        ensure!(!said.to_string().contains("in-the-spec"), "{rpc}: {said}");
        let said = log(cluster, "stranger", container).await?;
        ensure!(said["code"] == "Unavailable", "{rpc}, from outside of the group: {said}");
    }
    for name in ["member", "stranger"] {
        crate::pods::remove(cluster, name).await?;
    }
    Ok(format!("a workload got conditions, and {} other calls nothing", CALLS.len() - 1))
}

async fn run_to_end(cluster: &Cluster, pod: &Pod) -> Result<()> {
    pods(cluster).create(&PostParams::default(), pod).await?;
    until(&format!("{} ends", pod.name_any()), async || {
        let pod = pods(cluster).get(&pod.name_any()).await?;
        match phase(&pod) {
            "Succeeded" | "Failed" => Ok(()),
            other => bail!("it is {other}"),
        }
    })
    .await
}

/// Returns what a container printed.
async fn log(cluster: &Cluster, pod: &str, container: &str) -> Result<Value> {
    let text = cluster.tools.kubectl(&["logs", pod, "--container", container]).await?;
    serde_json::from_str(text.trim()).with_context(|| format!("{pod} {container}: {text}"))
}
