//! Pods as large as the API server accepts, more than an agent can keep, and clients that do not read: the
//! agent stays below its memory limit, serves all other pods, and publishes correct zones.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod as Object;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use numacast::core_v1::proto as core;
use numacast::kubelet::proto::pods::pods_client::PodsClient;
use numacast::kubelet::proto::pods::{EventType, GetPodRequest, ListPodsRequest, WatchPodsRequest};
use numacast::pods_api::proto::v1alpha1::ListPodConditionsRequest;
use numacast::pods_api::proto::v1alpha1::pod_info_client::PodInfoClient;
use numacast_sim::kubelet::PodSpec;
use prost::Message;
use prost::bytes::Bytes;
use serde_json::json;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Streaming};

use crate::refusals::{add_node, agent};
use crate::sim_node::{Node as SimNode, get};
use crate::support::cluster::free_port;
use crate::support::process::Process;
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Parts, nrt, pod};

/// The chart's memory limit for an agent that serves the Pods API, in MiB: the same as in
/// `tests/chart/rendered.rs`.
const LIMIT: usize = 256;
/// The agent's budget for the Pods API's pods, in bytes.
const BUDGET: usize = 16 << 20;

const HOSTILE: usize = 64;
const SMALL: usize = 5;
/// Updates of each hostile pod while the silent clients do not read.
const UPDATES: usize = 3;
/// Maximum size of a pod's annotations (`TotalAnnotationSizeLimitB` of
/// `k8s.io/apimachinery/pkg/api/validation`).
const ANNOTATIONS: usize = 256 << 10;
/// Maximum size of an object: etcd accepts requests of 1.5 MiB (`--max-request-bytes`), and the object has a
/// few KiB more.
const OBJECT: usize = 1400 << 10;

/// Returns a pod as large as the API server accepts.
fn hostile(number: usize) -> Result<Object> {
    let mut object = pod(&format!("hostile-{number:02}")).bound_to("worker")?;
    let annotations = &mut object.metadata.annotations;
    annotations.get_or_insert_default().insert("round".to_owned(), "0".to_owned());
    annotations.get_or_insert_default().insert("x".to_owned(), "x".repeat(ANNOTATIONS - 100));
    let mut object = serde_json::to_value(object)?;
    let container = &mut object["spec"]["containers"][0];
    container["env"] = json!([{"name": "X", "value": "x".repeat((OBJECT - ANNOTATIONS) / 2)}]);
    container["args"] = json!(["x".repeat((OBJECT - ANNOTATIONS) / 2)]);
    Ok(serde_json::from_value(object)?)
}

/// A pod in a list.
#[derive(Debug)]
struct Listed {
    name: String,
    /// The number of updates of a hostile pod.
    round: String,
    bytes: usize,
}

impl Listed {
    fn of(pod: &Bytes) -> Result<Self> {
        let metadata = core::Pod::decode(pod.clone())?.metadata.unwrap_or_default();
        let round = metadata.annotations.get("round").map(|round| String::from_utf8(round.to_vec()));
        Ok(Self { name: metadata.name, round: round.transpose()?.unwrap_or_default(), bytes: pod.len() })
    }
}

/// An agent that serves the Pods API from a real API server.
struct World {
    cluster: Cluster,
    node: SimNode,
    process: Process,
    socket: PathBuf,
    metrics: std::net::SocketAddr,
}

impl World {
    async fn start(parts: &Parts) -> Result<Self> {
        let cluster = Cluster::start(parts).await?;
        add_node(&cluster).await?;
        let node = SimNode::start();
        let dir = cluster.dir().join("ours");
        let metrics = ([127, 0, 0, 1], free_port()?).into();
        let arguments = [
            "--metrics-address".to_owned(),
            format!("{metrics}"),
            "--health-address".to_owned(),
            "none".to_owned(),
            "--set=podsApi.enabled=true".to_owned(),
            format!("--set=podsApi.dir={}", dir.display()),
        ];
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let command = agent(&node, &cluster.admin_kubeconfig(), "worker", &arguments);
        let process = Process::start("agent", cluster.dir(), command)?;
        let world = Self { cluster, node, process, socket: dir.join("pods-api.sock"), metrics };
        until("the Pods API is served", async || {
            ensure!(world.listed().await?.is_empty());
            Ok(())
        })
        .await?;
        Ok(world)
    }

    fn pods(&self) -> Api<Object> {
        Api::namespaced(self.cluster.client(), "default")
    }

    async fn channel(&self) -> Result<Channel> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", self.socket.display()))?;
        // Go's default.
        Ok(endpoint.initial_stream_window_size(65_535).connect().await?)
    }

    async fn client(&self) -> Result<PodsClient<Channel>> {
        Ok(PodsClient::new(self.channel().await?).max_decoding_message_size(1 << 30))
    }

    /// Returns the pods of `ListPods`.
    async fn listed(&self) -> Result<Vec<Listed>> {
        let list = self.client().await?.list_pods(ListPodsRequest {}).await?.into_inner();
        list.pods.iter().map(Listed::of).collect()
    }

    /// Returns the number of pods in `ListPodConditions`.
    async fn conditions(&self) -> Result<usize> {
        let mut client = PodInfoClient::new(self.channel().await?);
        Ok(client.list_pod_conditions(ListPodConditionsRequest {}).await?.into_inner().pods.len())
    }

    async fn metric(&self, sample: &str) -> Result<usize> {
        let text = get(self.metrics, "/metrics").await;
        let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        Ok(line.with_context(|| format!("no {sample}"))?.parse()?)
    }

    /// Starts a watch that is never read.
    async fn silent(&self) -> Result<Streaming<numacast::kubelet::proto::pods::WatchPodsEvent>> {
        Ok(self.client().await?.watch_pods(WatchPodsRequest {}).await?.into_inner())
    }

    /// Starts a client that reads its watch, and reconnects when it is cut off.
    async fn reader(&self) -> Result<JoinHandle<Result<()>>> {
        let mut client = self.client().await?;
        Ok(tokio::spawn(async move {
            loop {
                let mut events = client.watch_pods(WatchPodsRequest {}).await?.into_inner();
                while let Ok(Some(event)) = events.message().await {
                    ensure!(event.r#type() != EventType::Unspecified);
                }
            }
        }))
    }

    /// Updates all hostile pods, a few at a time.
    async fn update(&self, round: usize) -> Result<()> {
        let patch = json!({"metadata": {"annotations": {"round": round.to_string()}}});
        stream::iter(0..HOSTILE)
            .map(|number| {
                let (pods, patch) = (self.pods(), &patch);
                async move {
                    let name = format!("hostile-{number:02}");
                    pods.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
                    anyhow::Ok(())
                }
            })
            .buffer_unordered(4)
            .try_collect()
            .await
    }

    fn peak(&self) -> Result<usize> {
        let status = Path::new("/proc").join(self.process.id().to_string()).join("status");
        let status = std::fs::read_to_string(status)?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<usize>()? >> 10)
    }

    /// Waits until the published object has this many CPUs available in both zones together.
    async fn publishes(&self, cpus: u64) -> Result<()> {
        until(&format!("{cpus} CPUs are available"), async || {
            let zones = nrt::read(&self.cluster.client(), "worker").await?.zones;
            let free: u64 = zones.values().map(|zone| zone["cpu"].available).sum();
            ensure!(free == cpus, "{free}");
            Ok(())
        })
        .await
    }
}

#[tokio::test]
async fn hostile_pods_harm_neither_the_agent_nor_other_pods() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let mut world = World::start(&parts).await?;
    let read = async || nrt::read(&world.cluster.client(), "worker").await;
    let before = until("the object is there", read).await?.zones;
    let cpus: u64 = before.values().map(|zone| zone["cpu"].available).sum();
    for number in 0..SMALL {
        let object = pod(&format!("small-{number}")).bound_to("worker")?;
        world.pods().create(&PostParams::default(), &object).await?;
    }
    until("the small pods are served", async || {
        ensure!(world.listed().await?.len() == SMALL);
        Ok(())
    })
    .await?;
    let at_rest = world.peak()?;

    let silent = [world.silent().await?, world.silent().await?];
    let reader = world.reader().await?;
    stream::iter(0..HOSTILE)
        .map(|number| {
            let pods = world.pods();
            async move {
                pods.create(&PostParams::default(), &hostile(number)?).await?;
                anyhow::Ok(())
            }
        })
        .buffer_unordered(4)
        .try_collect::<()>()
        .await?;
    for round in 1..=UPDATES {
        world.update(round).await?;
        let later = world.silent().await?;
        world.listed().await?;
        drop(later);
    }
    until("the agent has all pods", async || {
        let count = world.conditions().await?;
        ensure!(count == SMALL + HOSTILE, "{count}");
        Ok(())
    })
    .await?;
    let attacked = world.peak()?;
    // While the agent is stopped, all pods change and the API server restarts: everything that it then lists
    // is new, and is buffered beside its cache.
    world.process.signal("STOP")?;
    world.update(UPDATES + 1).await?;
    world.cluster.kill_api_server()?;
    world.cluster.restart_api_server().await?;
    world.process.signal("CONT")?;
    let newest = (UPDATES + 1).to_string();
    let listed = until("all pods are listed again", async || {
        let listed = world.listed().await?;
        let old = listed.iter().find(|pod| pod.name.starts_with("hostile") && pod.round != newest);
        ensure!(old.is_none(), "{old:?}");
        Ok(listed)
    })
    .await?;
    let bytes: usize = listed.iter().map(|pod| pod.bytes).sum();
    if std::env::var_os("NUMACAST_MEASURE").is_some() {
        let (all, count) = (SMALL + HOSTILE, listed.len());
        eprintln!(
            "peak: {at_rest} MiB at rest, {attacked} MiB with {HOSTILE} hostile pods, {} MiB with all listed again; {count} of {all} \
             pods served, {bytes} bytes",
            world.peak()?,
        );
    }
    world.process.still_runs()?;
    ensure!(world.peak()? < LIMIT, "{} MiB, and the chart's limit is {LIMIT}", world.peak()?);

    let small = listed.iter().filter(|pod| pod.name.starts_with("small")).count();
    ensure!(small == SMALL, "{listed:?}");
    ensure!(bytes <= BUDGET, "{listed:?}");
    let omitted =
        world.metric("numacast_pods_api_pods{server_api_version=\"v1alpha1\",state=\"omitted\"}").await?;
    ensure!(omitted + listed.len() == SMALL + HOSTILE, "{omitted} of {}", listed.len());
    ensure!(world.conditions().await? == SMALL + HOSTILE);

    // A Get of a pod that is left out returns the reason.
    let served = |name: &str| listed.iter().any(|pod| pod.name == name);
    let missing = (0..HOSTILE).map(|number| format!("hostile-{number:02}")).find(|name| !served(name));
    let missing = world.pods().get(&missing.context("all are served")?).await?.metadata;
    let pod_uid = missing.uid.context("no UID")?;
    let status = world.client().await?.get_pod(GetPodRequest { pod_uid }).await;
    let status = status.err().context("it is served")?;
    ensure!(status.code() == Code::ResourceExhausted, "{status}");
    let name = missing.name.unwrap_or_default();
    ensure!(status.message().contains(&name) && status.message().contains("bytes"), "{status}");

    // The agent keeps publishing.
    world
        .pods()
        .create(&PostParams::default(), &pod("honest").cpus(2).memory("1Gi").bound_to("worker")?)
        .await?;
    world.node.kubelet.start_pod(PodSpec::guaranteed("honest", 2, 1 << 30)).await?;
    world.publishes(cpus - 2).await?;

    // Left-out pods are served again once there is room.
    drop((silent, reader));
    for number in 4..HOSTILE {
        let at_once = DeleteParams::default().grace_period(0);
        world.pods().delete(&format!("hostile-{number:02}"), &at_once).await?;
    }
    until("all that is left is served", async || {
        let listed = world.listed().await?;
        ensure!(listed.len() == SMALL + 5, "{listed:?}");
        Ok(())
    })
    .await?;
    let omitted =
        world.metric("numacast_pods_api_pods{server_api_version=\"v1alpha1\",state=\"omitted\"}").await?;
    ensure!(omitted == 0, "{omitted}");
    Ok(())
}
