//! Pods that the second scheduler places.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fastrand::Rng;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use numacast_core::machine::IdSet;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::images;
use crate::support::wait::{Fatal, pause, until};
use crate::worker::Worker;

/// The name by which pods choose the scheduler.
const SCHEDULER: &str = "numa-scheduler";

/// The time between two pods.
const PACE: Duration = Duration::from_millis(500);

/// A pod of the default namespace with the same requests and limits.
pub(crate) fn pod(name: &str, cpus: u64, extra: &Value, arguments: &[&str]) -> Result<Pod> {
    let mut resources = json!({"cpu": cpus.to_string(), "memory": "32Mi"});
    for (resource, amount) in extra.as_object().into_iter().flatten() {
        resources[resource] = amount.clone();
    }
    Ok(serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "schedulerName": SCHEDULER,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "main",
                "image": images::PAUSE,
                "args": arguments,
                "resources": {"requests": resources, "limits": resources},
            }],
        },
    }))?)
}

pub(crate) fn pods(cluster: &Cluster) -> Api<Pod> {
    Api::default_namespaced(cluster.client.clone())
}

/// Creates a pod and waits until it runs; a pod that ends instead is an error.
pub(crate) async fn run_pod(cluster: &Cluster, pod: &Pod) -> Result<Pod> {
    pods(cluster).create(&PostParams::default(), pod).await?;
    wait_until_it_runs(cluster, &pod.name_any()).await
}

/// Waits until a pod runs; one that ends instead is an error.
pub(crate) async fn wait_until_it_runs(cluster: &Cluster, name: &str) -> Result<Pod> {
    until(&format!("{name} runs"), async || {
        let pod = pods(cluster).get(name).await?;
        match phase(&pod) {
            "Running" => Ok(pod),
            "Failed" | "Succeeded" => Err(Fatal(format!("it ended: {:?}", pod.status)).into()),
            other => bail!("it is {other}: {}", scheduled(&pod)),
        }
    })
    .await
}

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Returns what the scheduler says about a pod.
fn scheduled(pod: &Pod) -> String {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions
        .filter(|one| one.type_ == "PodScheduled")
        .find_map(|one| one.message.clone())
        .unwrap_or_default()
}

pub(crate) fn worker_of<'a>(cluster: &'a Cluster, pod: &Pod) -> Result<&'a Worker> {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).context("the pod has no node")?;
    cluster.workers.iter().find(|worker| worker.name == node).with_context(|| format!("there is no {node}"))
}

/// The largest pod that fits a zone, with a device if the machine has any, is on one zone.
pub(crate) async fn aligned(cluster: &Cluster) -> Result<String> {
    let device = cluster.machine.devices.first().map(|device| device.resource.clone());
    let extra = device.as_ref().map_or(json!({}), |device| json!({device: "1"}));
    let pod = run_pod(cluster, &pod("aligned", largest(cluster)?, &extra, &[])?).await?;
    let worker = worker_of(cluster, &pod)?;
    let (cpus, mems) = worker.cpuset(&pod, "main")?;
    let zone = one_zone(cluster, &cpus)?;
    ensure!(mems.iter().eq([zone]), "its memory is on {mems}, its CPUs on {zone}");
    remove(cluster, "aligned").await?;
    let device = device.map_or(String::new(), |device| format!(", 1 {device}"));
    Ok(format!("{}: CPUs {cpus}{device}, all of zone {zone}", worker.name))
}

/// Returns the CPUs of the largest zone, less those that the kubelet reserves.
fn largest(cluster: &Cluster) -> Result<u64> {
    let reserved =
        cluster.machine.kubelet.get("reservedSystemCPUs").and_then(Value::as_str).unwrap_or_default();
    let reserved: IdSet = reserved.parse().map_err(|error| anyhow::anyhow!("reservedSystemCPUs: {error}"))?;
    let sizes = cluster.machine.nodes.iter().map(|node| node.cpus.difference(&reserved).len());
    sizes.max().context("the machine has no node")
}

/// Returns the only zone that has these CPUs.
fn one_zone(cluster: &Cluster, cpus: &IdSet) -> Result<u16> {
    ensure!(!cpus.is_empty(), "the container has no CPUs of its own");
    let zones = cluster.machine.nodes.iter().filter(|node| node.cpus.intersects(cpus));
    let zones: Vec<u16> = zones.map(|node| node.id).collect();
    ensure!(zones.len() == 1, "the CPUs {cpus} are on the zones {zones:?}");
    Ok(zones[0])
}

/// Deletes a pod and waits until it is gone.
pub(crate) async fn remove(cluster: &Cluster, name: &str) -> Result<()> {
    pods(cluster).delete(name, &DeleteParams::default()).await?;
    until(&format!("{name} is gone"), async || {
        ensure!(pods(cluster).get_opt(name).await?.is_none(), "it is still there");
        Ok(())
    })
    .await
}

/// A pod with more CPUs than any zone has, and fewer than the node; `on` one node, if given.
pub(crate) async fn pending(cluster: &Cluster, on: Option<&str>) -> Result<String> {
    let api = pods(cluster);
    let mut pod = pod("too-large", largest(cluster)? + 1, &json!({}), &[])?;
    let selector = on.map(|node| [("kubernetes.io/hostname".to_owned(), node.to_owned())].into());
    pod.spec.as_mut().context("a pod without a spec")?.node_selector = selector;
    api.create(&PostParams::default(), &pod).await?;
    let message = until("the scheduler says why", async || {
        let pod = api.get("too-large").await?;
        ensure!(phase(&pod) == "Pending", Fatal(format!("it is {}", phase(&pod))));
        let message = scheduled(&pod);
        // The plugin may still wait for a fingerprint that matches; the scheduler tries again then.
        ensure!(message.contains("cannot align"), "the scheduler says: {message}");
        Ok(message)
    })
    .await?;
    remove(cluster, "too-large").await?;
    Ok(message)
}

/// Pods of random sizes, each of which ends soon after it starts. They arrive at a pace that the machine under the test keeps up
/// with: it has all nodes, and each kubelet computes for half a second before it admits a pod of a large node.
pub(crate) async fn many(cluster: &Cluster, count: usize, rng: &mut Rng) -> Result<String> {
    let api = pods(cluster);
    let most = largest(cluster)?;
    for number in 0..count {
        let pod = pod(&format!("pod-{number}"), rng.u64(1..=most), &json!({}), &["-for", "1s"])?;
        api.create(&PostParams::default(), &pod).await?;
        pause("the next pod arrives", PACE).await;
    }
    let pods = until("all have ended", async || {
        let pods = api.list(&ListParams::default()).await?.items;
        let open = pods.iter().filter(|pod| !matches!(phase(pod), "Succeeded" | "Failed")).count();
        ensure!(open == 0, "{open} of {} have not", pods.len());
        Ok(pods)
    })
    .await?;
    let refused: Vec<String> = pods.iter().filter(|pod| phase(pod) == "Failed").map(reason).collect();
    ensure!(
        refused.is_empty(),
        "{} of {} were refused by the kubelet: {refused:?}",
        refused.len(),
        pods.len()
    );
    api.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    Ok(format!("{} pods of 1 to {most} CPUs, 0 refused by the kubelet", pods.len()))
}

fn reason(pod: &Pod) -> String {
    let status = pod.status.clone().unwrap_or_default();
    format!("{}: {}", status.reason.unwrap_or_default(), status.message.unwrap_or_default())
}
