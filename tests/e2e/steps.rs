//! What the cluster's users do, in order.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::Options;
use crate::cluster::Cluster;
use crate::support::nrt;
use crate::support::parts::repository;
use crate::support::wait::until;
use crate::table;
use crate::{alone, platforms, pods, quick_start};

/// The release and its namespace.
pub(crate) const RELEASE: &str = "numacast";
/// The agents' ports.
const METRICS: u16 = 9742;
const HEALTH: u16 = 9743;
/// Takes every step.
pub(crate) async fn run(cluster: &mut Cluster, options: &Options, seed: u64) -> Result<()> {
    let mut rng = Rng::with_seed(seed);
    set_kubeadm(cluster, true).await?;
    if options.quick_start {
        table::step("helm install --wait, scheduler.enabled", install(cluster, &options.set)).await?;
        return table::step("docs/quickstart.md", quick_start::run(cluster)).await.map(drop);
    }
    let installed = Instant::now();
    table::step("helm install --wait, scheduler.enabled", install(cluster, &options.set)).await?;
    table::step("objects with policies", objects(cluster)).await?;
    table::step("a Guaranteed pod on one zone", pods::aligned(cluster)).await?;
    table::note(&format!(
        "{:>6.1} s  from helm install to the first aligned pod",
        installed.elapsed().as_secs_f64()
    ));
    table::step("helm test", helm_test(cluster)).await?;
    table::step("a pod that fits no zone stays Pending", pods::pending(cluster, None)).await?;
    table::step("a node joins", join(cluster)).await?;
    table::step("pods through the scheduler", pods::many(cluster, options.pods, &mut rng)).await?;
    table::step("the containers' rights", rights(cluster)).await?;
    table::step("the containers' memory", memory(cluster)).await?;
    table::step("what was logged", logs(cluster)).await?;
    table::step("the API server is away for 20 s", outage(cluster)).await?;
    table::step("NetworkPolicies", network_policies(cluster)).await?;
    table::step("rollout restart", restart(cluster)).await?;
    table::step("helm upgrade --wait", upgrade(cluster, "config.log.level=debug")).await?;
    table::step("a node is drained and removed", remove_node(cluster)).await?;
    table::step("a kubelet gets another configuration", platforms::new_configuration(cluster)).await?;
    table::step("helm uninstall", uninstall(cluster)).await?;
    table::step("the configuration cannot be read", platforms::unreadable(cluster)).await?;
    table::step("with the certificates' fingerprints", platforms::fingerprints(cluster)).await?;
    table::step("an image that cannot be pulled", platforms::missing_image(cluster)).await?;
    table::step("a mixed cluster: pools", platforms::pools(cluster)).await?;
    table::step("helm uninstall", uninstall(cluster)).await?;
    let alone = alone::beside_another_publisher(cluster);
    table::step("proxy and Pods API, beside another publisher", alone).await?;
    Ok(())
}

/// Creates or deletes what kubeadm leaves in a cluster, by which the chart recognizes it.
pub(crate) async fn set_kubeadm(cluster: &Cluster, is_there: bool) -> Result<()> {
    let literal = "--from-literal=ClusterConfiguration=apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n";
    let arguments: &[&str] = if is_there {
        &["create", "configmap", "kubeadm-config", literal]
    } else {
        &["delete", "configmap", "kubeadm-config"]
    };
    cluster.tools.kubectl(&[&["--namespace", "kube-system"], arguments].concat()).await.map(drop)
}

pub(crate) fn chart() -> String {
    repository().join("charts/numacast").display().to_string()
}

async fn install(cluster: &Cluster, values: &[String]) -> Result<String> {
    let chart = chart();
    let arguments = ["install", RELEASE, &chart, "--namespace", RELEASE, "--create-namespace", "--wait"];
    let values = ["scheduler.enabled=true"].into_iter().chain(values.iter().map(String::as_str));
    let values: Vec<&str> = values.flat_map(|value| ["--set", value]).collect();
    let output = cluster.tools.helm(&[&arguments[..], &values].concat()).await?;
    std::fs::write(cluster.dir().join("notes.txt"), &output)?;
    let image = agents(cluster).await?.first().and_then(|pod| pod.spec.clone()).context("no agent runs")?;
    Ok(image.containers[0].image.clone().unwrap_or_default())
}

/// Returns whether a pod is Ready.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|one| one.type_ == "Ready" && one.status == "True")
}

/// Returns the agents' pods on the nodes that the cluster has.
pub(crate) async fn agents(cluster: &Cluster) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), RELEASE);
    let params = ListParams::default().labels("app.kubernetes.io/component=agent");
    let pods = pods.list(&params).await?.items;
    Ok(pods.into_iter().filter(|pod| pods::worker_of(cluster, pod).is_ok()).collect())
}

/// Waits until every node has an object with its policies and zones.
pub(crate) async fn objects(cluster: &Cluster) -> Result<String> {
    let zones = cluster.machine.nodes.len();
    let mut attributes = BTreeMap::new();
    for worker in &cluster.workers {
        attributes = until(&format!("{} has an object with policies", worker.name), async || {
            let object = nrt::api(&cluster.client).get(&worker.name).await?;
            let found = object.data["zones"].as_array().map_or(0, Vec::len);
            ensure!(found == zones, "it has {found} zones, not {zones}");
            let attributes = attributes_of(&object.data);
            let policy = attributes.get("topologyManagerPolicy").map(String::as_str);
            ensure!(policy == Some("single-numa-node"), "its policy is {policy:?}");
            Ok(attributes)
        })
        .await?;
    }
    let scope = attributes.get("topologyManagerScope").cloned().unwrap_or_default();
    Ok(format!("{} objects, {zones} zones each, single-numa-node, scope {scope}", cluster.workers.len()))
}

pub(crate) fn attributes_of(object: &Value) -> BTreeMap<String, String> {
    let attributes = object["attributes"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    attributes.map(|one| (text(&one["name"]), text(&one["value"]))).collect()
}

async fn helm_test(cluster: &Cluster) -> Result<String> {
    let output = cluster.tools.helm(&["test", RELEASE, "--namespace", RELEASE, "--logs"]).await?;
    let mut lines = output.lines().map(str::trim).filter(|line| !line.is_empty());
    Ok(lines.next_back().unwrap_or_default().to_owned())
}

/// The scheduler reads the new node's object, so that it places no pod there that the kubelet would refuse.
async fn join(cluster: &mut Cluster) -> Result<String> {
    let Some(mut worker) = cluster.spare.take() else {
        return Ok("skipped: there is one node only".to_owned());
    };
    worker.join()?;
    worker.wait_until_ready(&cluster.client).await?;
    let name = worker.name.clone();
    cluster.workers.push(worker);
    objects(cluster).await?;
    let begin = Instant::now();
    let object = nrt::api(&cluster.client).get(&name).await?;
    let created = object.metadata.creation_timestamp.context("when was it created?")?;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), RELEASE);
    let schedulers = ListParams::default().labels("app.kubernetes.io/component=scheduler");
    until("the scheduler was restarted", async || {
        let pods = pods.list(&schedulers).await?.items;
        let old = pods.iter().find(|pod| !is_ready(pod) || started(pod).is_none_or(|at| at < created));
        ensure!(
            old.is_none() && pods.len() == 2,
            "{:?} is not new and Ready",
            old.map(ResourceExt::name_any)
        );
        Ok(())
    })
    .await?;
    let known = begin.elapsed().as_secs_f64();
    pods::pending(cluster, Some(&name)).await?;
    Ok(format!("{name}; the scheduler knows its object after {known:.0} s"))
}

/// Returns when the pod's only container started.
fn started(pod: &Pod) -> Option<Time> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.first()?.state.as_ref()?.running.as_ref()?.started_at.clone()
}

/// What the chart asks for is what the kernel enforces.
async fn rights(cluster: &Cluster) -> Result<String> {
    let mut count = 0;
    for pod in running(cluster).await? {
        let container = pod.spec.as_ref().context("a pod without a spec")?.containers[0].name.clone();
        let worker = pods::worker_of(cluster, &pod)?;
        let process = worker.process(&pod, &container)?;
        for right in [("CapEff", "0000000000000000"), ("NoNewPrivs", "1"), ("Seccomp", "2")] {
            let found = process.status(right.0)?;
            ensure!(found == right.1, "{container}: {} is {found}, not {}", right.0, right.1);
        }
        ensure!(process.root_is_read_only()?, "{container} can write its root");
        let limits = pod.spec.as_ref().and_then(|spec| spec.containers[0].resources.as_ref()?.limits.clone());
        if let Some(limit) = limits.as_ref().and_then(|limits| limits.get("memory")) {
            let limit: numacast_core::quantity::Quantity =
                limit.0.parse().map_err(|_| anyhow::anyhow!("{}", limit.0))?;
            let enforced = worker.memory_limit(&pod, &container)?;
            ensure!(enforced == limit.ceil(), "{container}: its limit is {enforced}");
        }
        count += 1;
    }
    Ok(format!(
        "{count} containers: no capability, seccomp, no new privileges, root read-only, memory limits"
    ))
}

/// Returns the release's pods that run.
async fn running(cluster: &Cluster) -> Result<Vec<Pod>> {
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), RELEASE);
    let pods = api.list(&ListParams::default()).await?.items;
    Ok(pods.into_iter().filter(|pod| pods::phase(pod) == "Running").collect())
}

/// Nothing went wrong so far, so no line says so; and attributes are not worth a line for each pod.
async fn logs(cluster: &Cluster) -> Result<String> {
    let (mut lines, mut slow) = (0, 0);
    for pod in agents(cluster).await? {
        let log = log_of(cluster, &pod).await?;
        let bad = log.lines().filter(|line| !line.contains(" INFO "));
        // How long the API server takes beside all kubelets on the same processors is the machine's affair.
        let (late, bad): (Vec<&str>, Vec<&str>) =
            bad.partition(|line| line.contains(" the API server did not respond within "));
        slow += late.len();
        ensure!(bad.is_empty(), "{} logged: {bad:?}", pod.name_any());
        let attributes = log.lines().filter(|line| line.contains("attributes:")).count();
        ensure!(attributes < 3, "{} logged its attributes {attributes} times", pod.name_any());
        lines = lines.max(log.lines().count());
    }
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), RELEASE);
    let events = events.list(&ListParams::default()).await?.items;
    // kube-scheduler listens before it is ready.
    let ours = |event: &&Event| {
        !event.involved_object.name.as_ref().is_some_and(|name| name.contains("-scheduler-"))
    };
    let warnings = events.iter().filter(|event| event.type_.as_deref() == Some("Warning")).filter(ours);
    let warnings: Vec<&str> = warnings.filter_map(|event| event.message.as_deref()).collect();
    // How long a program needs until it listens is the machine's affair.
    let (early, others): (Vec<&str>, Vec<&str>) =
        warnings.iter().partition(|message| message.starts_with("Startup probe"));
    ensure!(others.is_empty(), "Events of the release: {others:?}");
    Ok(format!(
        "at most {lines} lines of an agent, no warning; the API server was late {slow} times, {} startup probes too early",
        early.len()
    ))
}

pub(crate) async fn log_of(cluster: &Cluster, pod: &Pod) -> Result<String> {
    cluster.tools.kubectl(&["--namespace", RELEASE, "logs", &pod.name_any()]).await
}

/// No one is blamed for an API server that does not answer, and objects are right again afterwards.
async fn outage(cluster: &mut Cluster) -> Result<String> {
    let before = agents(cluster).await?;
    cluster.interrupt_api_server(Duration::from_secs(20)).await?;
    let aligned = pods::aligned(cluster).await?;
    let events: Api<Event> = Api::all(cluster.client.clone());
    let events = events.list(&ListParams::default()).await?.items;
    let of_us = events.iter().filter(|event| event.reporting_component.as_deref() == Some("numacast/agent"));
    let said: Vec<String> = of_us.filter_map(|event| event.message.clone()).collect();
    ensure!(said.is_empty(), "Events of the agents: {said:?}");
    let after = agents(cluster).await?;
    let restarts = |pods: &[Pod]| -> i32 {
        let statuses = pods.iter().filter_map(|pod| pod.status.as_ref()?.container_statuses.as_ref());
        statuses.flatten().map(|one| one.restart_count).sum()
    };
    ensure!(restarts(&before) == restarts(&after), "agents restarted");
    for pod in after {
        let log = log_of(cluster, &pod).await?;
        let blamed = log.lines().find(|line| line.contains("may not") || line.contains("forbidden"));
        ensure!(blamed.is_none(), "{} blames rights: {blamed:?}", pod.name_any());
    }
    Ok(aligned)
}

/// The largest of the agents and of the other containers, as their cgroups count them.
async fn memory(cluster: &Cluster) -> Result<String> {
    let mut most: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for pod in running(cluster).await? {
        let name = pod.spec.as_ref().context("a pod without a spec")?.containers[0].name.clone();
        let found = pods::worker_of(cluster, &pod)?.memory(&pod, &name)?;
        let most = most.entry(name).or_default();
        *most = (most.0.max(found.0), most.1.max(found.1));
    }
    let mib = |bytes: u64| {
        let tenths = (bytes * 10) >> 20;
        format!("{}.{}", tenths / 10, tenths % 10)
    };
    let words = most
        .iter()
        .map(|(name, (usage, rss))| format!("{name} {} MiB ({} anonymous)", mib(*usage), mib(*rss)));
    Ok(words.collect::<Vec<_>>().join(", "))
}

/// With the chart's NetworkPolicies everything works, and nothing else can be reached.
async fn network_policies(cluster: &mut Cluster) -> Result<String> {
    for worker in &mut cluster.workers {
        worker.enforce_network_policies()?;
    }
    let client = pods::run_pod(cluster, &pods::pod("client", 1, &json!({}), &[])?).await?;
    let agents = agents(cluster).await?;
    let agent = agents.first().context("no agent runs")?;
    let health = ConnectionTo { from: (&client, "main"), to: agent, port: HEALTH };
    ensure!(health.works(cluster)?, "without policies, anyone reaches the agent's health port");
    upgrade(cluster, "networkPolicy.enabled=true").await?;

    let scheduler = running(cluster).await?.into_iter().find(|pod| pod.name_any().contains("-scheduler-"));
    let scheduler = scheduler.context("no scheduler runs")?;
    let metrics = ConnectionTo { port: METRICS, ..health };
    let of_scheduler = ConnectionTo { from: (&scheduler, "scheduler"), ..metrics };
    for (connection, expected) in [(health, false), (metrics, true), (of_scheduler, false)] {
        until("the policies are enforced", async || {
            let (pod, port) = (connection.from.0.name_any(), connection.port);
            ensure!(connection.works(cluster)? == expected, "from {pod} to port {port}: not {expected}");
            Ok(())
        })
        .await?;
    }
    pods::remove(cluster, "client").await?;
    helm_test(cluster).await?;
    pods::aligned(cluster).await
}

/// From a pod's container to a pod.
#[derive(Clone, Copy)]
struct ConnectionTo<'a> {
    from: (&'a Pod, &'a str),
    to: &'a Pod,
    port: u16,
}

impl ConnectionTo<'_> {
    fn works(self, cluster: &Cluster) -> Result<bool> {
        let (pod, container) = self.from;
        let address = self.to.status.as_ref().and_then(|status| status.pod_ip.as_deref());
        let address = address.context("the pod has no address")?;
        pods::worker_of(cluster, pod)?.connects(pod, container, address, self.port)
    }
}

async fn restart(cluster: &Cluster) -> Result<()> {
    for workload in
        ["daemonset/numacast-agent", "deployment/numacast-controller", "deployment/numacast-scheduler"]
    {
        cluster.tools.kubectl(&["--namespace", RELEASE, "rollout", "restart", workload]).await?;
    }
    for workload in
        ["daemonset/numacast-agent", "deployment/numacast-controller", "deployment/numacast-scheduler"]
    {
        cluster
            .tools
            .kubectl(&["--namespace", RELEASE, "rollout", "status", workload, "--timeout=3m"])
            .await?;
    }
    Ok(())
}

async fn upgrade(cluster: &Cluster, value: &str) -> Result<()> {
    let chart = chart();
    let arguments = ["upgrade", RELEASE, &chart, "--namespace", RELEASE, "--reuse-values", "--wait"];
    cluster.tools.helm(&[&arguments[..], &["--set", value]].concat()).await?;
    Ok(())
}

/// The last node goes: its object must go as well, the others' stay.
async fn remove_node(cluster: &mut Cluster) -> Result<String> {
    let Some(mut worker) = cluster.workers.pop().filter(|_| !cluster.workers.is_empty()) else {
        return Ok("skipped: there is one node only".to_owned());
    };
    let drain = ["drain", &worker.name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=2m"];
    cluster.tools.kubectl(&drain).await?;
    worker.stop_kubelet()?;
    Api::<Node>::all(cluster.client.clone()).delete(&worker.name, &DeleteParams::default()).await?;
    until("its object is gone", async || {
        ensure!(nrt::api(&cluster.client).get_opt(&worker.name).await?.is_none(), "it is still there");
        Ok(())
    })
    .await?;
    let left = nrt::api(&cluster.client).list(&ListParams::default()).await?.items.len();
    ensure!(left == cluster.workers.len(), "{left} objects are left of {} nodes", cluster.workers.len());
    Ok(format!("{} has no object any more", worker.name))
}

/// Everything goes but the CRD.
async fn uninstall(cluster: &Cluster) -> Result<String> {
    cluster.tools.helm(&["uninstall", RELEASE, "--namespace", RELEASE, "--wait"]).await?;
    let objects = nrt::api(&cluster.client).list(&ListParams::default()).await?.items.len();
    ensure!(objects == 0, "{objects} objects are left");
    let mut left = Vec::new();
    for scope in ["true", "false"] {
        let scope = format!("--namespaced={scope}");
        let kinds =
            cluster.tools.kubectl(&["api-resources", &scope, "--verbs=list", "--output=name"]).await?;
        let kinds = kinds.lines().map(str::to_owned).collect::<Vec<_>>().join(",");
        let label = format!("app.kubernetes.io/instance={RELEASE}");
        let listed =
            ["get", &kinds, "--all-namespaces", "--ignore-not-found", "--output=name", "--selector", &label];
        left.extend(cluster.tools.kubectl(&listed).await?.lines().map(str::to_owned));
    }
    // A pod that ends takes a moment longer than the object that made it.
    left.retain(|name| !name.starts_with("pod/") && !name.starts_with("endpointslice"));
    let only_crd = left.iter().all(|name| name.starts_with("customresourcedefinition"));
    ensure!(only_crd, "left behind: {left:?}");
    Ok("the CRD is left".to_owned())
}
