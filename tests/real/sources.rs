//! Every pod source against its real server: the API server's watch, the kubelet's Pods API and its HTTPS
//! endpoint `/pods` report the same in every state of a pod, and lose no pod when their server restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use numacast::cluster::Cluster as ApiServer;
use numacast::kubelet::{HttpsClient, HttpsTarget, poll_pods, watch_pods};
use numacast::pod::{Phase, Pod, PodEvent, Termination, Wanted};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::support::agent::Agent;
use crate::support::wait::{pause, until};
use crate::support::{Cluster, Needs, Observer, Parts, RealNode, Stop, oracle, pod};

/// Request timeout.
const DEADLINE: Duration = Duration::from_secs(10);
/// Poll interval of `/pods`.
const INTERVAL: Duration = Duration::from_millis(500);

/// The state of a client that applies a source's events.
#[derive(Debug, Default)]
struct State {
    listed: BTreeMap<String, Pod>,
    pods: BTreeMap<String, Pod>,
    /// Number of completed lists.
    lists: usize,
    /// Pods that were known and have disappeared.
    lost: BTreeSet<String>,
    errors: Vec<String>,
}

impl State {
    fn apply(&mut self, event: Result<PodEvent, String>) {
        match event {
            Ok(PodEvent::Init) => self.listed.clear(),
            Ok(PodEvent::InitApply(pod)) => drop(self.listed.insert(pod.name.clone(), pod)),
            Ok(PodEvent::InitDone) => {
                let listed = std::mem::take(&mut self.listed);
                self.lost.extend(self.pods.keys().filter(|name| !listed.contains_key(*name)).cloned());
                self.pods = listed;
                self.lists += 1;
            }
            Ok(PodEvent::Apply(pod)) => drop(self.pods.insert(pod.name.clone(), pod)),
            Ok(PodEvent::Delete(pod)) => {
                self.pods.remove(&pod.name);
                self.lost.insert(pod.name);
            }
            Ok(PodEvent::Resumed) => {}
            Err(error) => self.errors.push(error),
        }
    }
}

/// A subscriber of one source.
struct Subscriber {
    name: &'static str,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

impl Subscriber {
    fn start(
        name: &'static str,
        source: impl Stream<Item = Result<PodEvent, String>> + Send + 'static,
    ) -> Self {
        let state = Arc::<Mutex<State>>::default();
        let (mut source, shared): (BoxStream<'static, _>, _) = (source.boxed(), Arc::clone(&state));
        let task = tokio::spawn(async move {
            while let Some(event) = source.next().await {
                lock(&shared).apply(event);
            }
        });
        Self { name, state, task }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    async fn fails(&self, when: &str) -> Result<()> {
        let before = self.state().errors.len();
        until(&format!("{} reports an error: {when}", self.name), async || {
            ensure!(self.state().errors.len() > before);
            Ok(())
        })
        .await
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A node, and a subscriber of each source.
struct Bench {
    api_server: Subscriber,
    pods_api: Subscriber,
    endpoint: Subscriber,
    node: RealNode,
    cluster: Cluster,
}

impl Bench {
    async fn start(parts: &Parts) -> Result<Self> {
        let cluster = Cluster::start(parts).await?;
        let node = RealNode::on("two-by-eight")?
            .kubelet("topologyManagerPolicy", "single-numa-node".into())
            .static_pods(&cluster)?
            .start(&cluster)
            .await?;
        let api_server = ApiServer::new(Some(node.agent_kubeconfig()), DEADLINE).await?;
        let endpoint = endpoint(&node, api_server.clone())?;
        let pods_api =
            watch_pods(node.kubelet_dir().join("pods-api/pods-api.sock"), DEADLINE, Wanted::default());
        Ok(Self {
            api_server: Subscriber::start(
                "the API server",
                api_server.watch_pods(node.name(), Wanted::default()),
            ),
            pods_api: Subscriber::start("the Pods API", pods_api),
            endpoint: Subscriber::start("/pods", endpoint),
            node,
            cluster,
        })
    }

    fn subscribers(&self) -> [&Subscriber; 3] {
        [&self.api_server, &self.pods_api, &self.endpoint]
    }

    /// Waits until all sources report the same, for all pods of the API server; returns their names.
    async fn wait_until_equal(&self, when: &str) -> Result<BTreeSet<String>> {
        until(&format!("all sources report the same: {when}"), async || {
            self.node.kubelet_still_runs()?;
            let pods = self.node.pods().await?;
            let phase = |pod: &k8s_openapi::api::core::v1::Pod| pod.status.clone()?.phase;
            let expected: BTreeMap<String, Option<String>> =
                pods.iter().map(|pod| (pod.metadata.name.clone().unwrap_or_default(), phase(pod))).collect();
            let first = comparable(&self.api_server.state().pods);
            for subscriber in self.subscribers() {
                let (name, state) = (subscriber.name, subscriber.state());
                ensure!(state.lists > 0, "{name} has listed nothing yet: {:?}", state.errors.last());
                let phase = |pod: &Pod| (pod.name.clone(), Some(format!("{:?}", pod.phase)));
                let found: BTreeMap<String, Option<String>> = state.pods.values().map(phase).collect();
                ensure!(found == expected, "{name} has {found:?}, and there are {expected:?}");
                let now = comparable(&state.pods);
                ensure!(now == first, "{name} has\n{now:#?}\nand the API server\n{first:#?}");
            }
            Ok(expected.into_keys().collect())
        })
        .await
    }

    /// Returns the number of completed lists of the kubelet's own sources.
    fn lists(&self) -> [usize; 2] {
        [&self.pods_api, &self.endpoint].map(|subscriber| subscriber.state().lists)
    }

    async fn wait_until_listed_again(&self, before: [usize; 2]) -> Result<()> {
        until("the kubelet has listed its pods again", async || {
            let now = self.lists();
            ensure!(now[0] > before[0] && now[1] > before[1], "{before:?}, {now:?}");
            Ok(())
        })
        .await
    }

    /// Checks that every source has lost exactly these pods since the last call.
    fn lost(&self, expected: &[&str], when: &str) -> Result<()> {
        for subscriber in self.subscribers() {
            let lost = std::mem::take(&mut subscriber.state().lost);
            let right = lost.iter().map(String::as_str).eq(expected.iter().copied());
            ensure!(right, "{when}: {} has lost {lost:?}, not {expected:?}", subscriber.name);
        }
        Ok(())
    }
}

/// Returns the source that reads the kubelet's `/pods`, trusting its self-signed certificate.
fn endpoint(
    node: &RealNode,
    api_server: ApiServer,
) -> Result<impl Stream<Item = Result<PodEvent, String>> + Send + 'static> {
    let config: Value = serde_json::from_slice(&std::fs::read(node.kubelet_dir().join("config.yaml"))?)?;
    let port = config["port"].as_u64().and_then(|port| u16::try_from(port).ok()).context("no port")?;
    let target = HttpsTarget {
        host: "127.0.0.1".to_owned(),
        port,
        ca_file: Some(certificate(node)),
        server_name: Some(node.name().to_owned()),
        fingerprints: Vec::new(),
        timeout: DEADLINE,
    };
    let connect = move || {
        let (api_server, target) = (api_server.clone(), target.clone());
        async move {
            let config = api_server.config().ok_or("no credentials")?;
            HttpsClient::new(config, &target)
        }
    };
    Ok(poll_pods(connect, INTERVAL, Wanted::default(), Arc::default()))
}

fn certificate(node: &RealNode) -> PathBuf {
    node.dir().join("kubelet-certificates/kubelet.crt")
}

/// Normalizes pods for comparison: a mirror pod's UID is not the static pod's.
fn comparable(pods: &BTreeMap<String, Pod>) -> Vec<Pod> {
    let strip = |pod: &Pod| match pod.name.starts_with("static-") {
        true => Pod { uid: String::new(), ..pod.clone() },
        false => pod.clone(),
    };
    pods.values().map(strip).collect()
}

#[tokio::test]
async fn all_sources_report_the_same_in_every_state_of_a_pod() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let bench = Bench::start(&parts).await?;
    ensure!(bench.wait_until_equal("no pod at all").await?.is_empty());

    bench.node.run(pod("best-effort")).await?;
    let burstable = pod("burstable").burstable().millicpus(100).memory("64Mi").device("example.com/nic", 1);
    bench.node.run(burstable).await?;
    let whole = pod("whole").cpus(2).memory("1.5Gi").hugepages("2Mi", "64Mi");
    bench.node.run(whole.init("first").cpus(1).memory("64Mi")).await?;
    bench
        .node
        .run(pod("helped").millicpus(500).memory("64Mi").sidecar("side").cpus(1).memory("64Mi"))
        .await?;
    bench.wait_until_equal("all run").await?;
    let pods = bench.pods_api.state().pods.clone();
    let guaranteed: Vec<&str> = pods
        .values()
        .filter(|pod| pod.guaranteed && pod.qos_guaranteed)
        .map(|pod| pod.name.as_str())
        .collect();
    ensure!(guaranteed == ["helped", "whole"], "{guaranteed:?}");
    ensure!(pods["burstable"].containers[0].others == [("example.com/nic".into(), 1)].into());

    bench.node.submit(&pod("unpullable").cpus(1).memory("64Mi").unpullable()).await?;
    bench.node.wait_for_status("unpullable", "ErrImageNeverPull").await?;
    bench.wait_until_equal("a pod is admitted and cannot start").await?;
    ensure!(bench.endpoint.state().pods["unpullable"].phase == Phase::Pending);

    bench.node.run(pod("completed").cpus(1).memory("64Mi")).await?;
    bench.node.finish("completed", 0).await?;
    bench.node.run(pod("failed").cpus(1).memory("64Mi")).await?;
    bench.node.finish("failed", 1).await?;
    bench.node.try_to_run(pod("rejected").cpus(8).memory("64Mi")).await?;
    bench.wait_until_equal("pods have completed, have failed and were rejected").await?;
    ensure!(bench.endpoint.state().pods["rejected"].termination == Termination::Terminated);

    let manifest = bench.cluster.dir().join("manifests/static.yaml");
    let mirror = bench.node.mirror("static");
    std::fs::write(&manifest, bench.node.manifest(&pod("static").cpus(1).memory("64Mi"))?)?;
    bench.node.wait_for_outcome(&mirror).await?;
    bench.wait_until_equal("a static pod runs").await?;
    ensure!(bench.pods_api.state().pods[&mirror].guaranteed);

    bench.node.run(pod("finalized").cpus(1).memory("64Mi").finalizer("example.com/keeps")).await?;
    bench.node.request_deletion("finalized").await?;
    bench.node.wait_for_status("finalized", "\"terminated\"").await?;
    bench.wait_until_equal("a finalizer keeps a pod that was deleted").await?;
    ensure!(bench.pods_api.state().pods["finalized"].deleted);
    bench.lost(&[], "nothing was deleted")?;

    bench.node.run(pod("forced").cpus(1).memory("64Mi")).await?;
    bench.wait_until_equal("one more runs").await?;
    bench.node.force_delete("forced").await?;
    for gone in ["unpullable", "completed", "failed", "whole"] {
        bench.node.delete(gone).await?;
    }
    bench.node.remove_finalizers("finalized").await?;
    std::fs::remove_file(&manifest)?;
    bench.node.wait_until_gone(&mirror).await?;
    // A pod with the name of an earlier one.
    bench.node.run(pod("whole").cpus(1).memory("64Mi")).await?;
    let left = bench.wait_until_equal("most are gone").await?;
    ensure!(left == ["best-effort", "burstable", "helped", "rejected", "whole"].map(str::to_owned).into());
    Ok(())
}

#[tokio::test]
async fn no_source_loses_a_pod_when_its_server_restarts() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let mut bench = Bench::start(&parts).await?;
    for index in 0..4 {
        bench.node.run(pod(&format!("stays-{index}")).cpus(1).memory("64Mi")).await?;
    }
    bench.node.run(pod("ends").cpus(1).memory("64Mi")).await?;
    bench.wait_until_equal("all run").await?;

    // The kubelet is down.
    for how in [Stop::Term, Stop::Kill] {
        bench.node.stop_kubelet(how)?;
        bench.pods_api.fails("the kubelet is down").await?;
        bench.endpoint.fails("the kubelet is down").await?;
        let lists = bench.lists();
        bench.node.start_kubelet().await?;
        // The earlier state would agree, too: the kubelet must have listed its pods again.
        bench.wait_until_listed_again(lists).await?;
        bench.wait_until_equal("the kubelet is back").await?;
        bench.lost(&[], &format!("the kubelet is back, {how:?}"))?;
    }

    // The API server is down while a pod ends: only the kubelet can know.
    bench.cluster.kill_api_server()?;
    bench.api_server.fails("the API server is down").await?;
    bench.node.exit("ends", 0)?;
    until("the Pods API has the end of the pod", async || {
        let state = bench.pods_api.state();
        let termination = state.pods.get("ends").map(|pod| pod.termination);
        ensure!(
            termination == Some(Termination::Terminated),
            "{termination:?}, and it was lost: {:?}, {:?}",
            state.lost,
            state.errors
        );
        Ok(())
    })
    .await?;
    let termination = bench.api_server.state().pods.get("ends").map(|pod| pod.termination);
    ensure!(termination == Some(Termination::Live), "{termination:?}");
    bench.cluster.restart_api_server().await?;
    bench.wait_until_equal("the API server is back").await?;

    // Both are down, and the kubelet returns first: it has none of its pods yet.
    bench.node.stop_kubelet(Stop::Kill)?;
    bench.cluster.kill_api_server()?;
    bench.pods_api.fails("both are down").await?;
    bench.node.launch_kubelet()?;
    pause("the kubelet runs without an API server", Duration::from_secs(15)).await;
    bench.lost(&[], "the kubelet is back, the API server is not")?;
    bench.cluster.restart_api_server().await?;
    bench.node.wait_until_ready().await?;
    bench.wait_until_equal("both are back").await?;
    bench.lost(&[], "both are back")?;

    // A pod is deleted and another one created while the kubelet is down.
    bench.node.stop_kubelet(Stop::Kill)?;
    bench.node.force_delete("stays-0").await?;
    bench.node.submit(&pod("new").cpus(1).memory("64Mi")).await?;
    bench.node.start_kubelet().await?;
    bench.node.wait_for_outcome("new").await?;
    bench.wait_until_equal("the kubelet is back, with other pods").await?;
    bench.lost(&["stays-0"], "the kubelet is back, with other pods")?;
    Ok(())
}

#[tokio::test]
async fn the_object_is_never_wrong_when_a_source_restarts() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let mut bench = Bench::start(&parts).await?;
    let port = format!("kubelet.caFile={}", certificate(&bench.node).display());
    let name = format!("kubelet.serverName={}", bench.node.name());
    let config: Value =
        serde_json::from_slice(&std::fs::read(bench.node.kubelet_dir().join("config.yaml"))?)?;
    let address = format!("kubelet.address=127.0.0.1:{}", config["port"]);
    for (round, source) in ["podsApi", "kubelet", "apiServer"].into_iter().enumerate() {
        let source = format!("pods.source={source}");
        let settings = [source.as_str(), "fingerprint.view=kubelet", "scan.poll=1s", &port, &name, &address];
        let arguments: Vec<&str> = settings.into_iter().flat_map(|setting| ["--set", setting]).collect();
        let mut agent = Agent::start(&bench.node, &arguments)?;
        bench
            .node
            .run(pod(&format!("stays-{round}")).cpus(2).memory("1Gi").device("example.com/nic", 1))
            .await?;
        bench.node.run(pod("goes").cpus(1).memory("64Mi")).await?;
        agent.matches_oracle(&bench.node).await?;
        let observer = Observer::start(&bench.node.client(), bench.node.name()).await?;
        let truth = oracle::expected(&bench.node).await?;

        bench.node.restart_kubelet(Stop::Kill).await?;
        agent.matches_oracle(&bench.node).await?;
        bench.node.stop_kubelet(Stop::Term)?;
        agent.fails_to_scan(5).await?;
        bench.node.start_kubelet().await?;
        agent.matches_oracle(&bench.node).await.context(source.clone())?;
        for seen in observer.versions().await? {
            let beyond = truth.overstated(&seen.zones);
            ensure!(beyond.is_empty(), "{source}: version {}: {}", seen.version, beyond.join(", "));
        }
        bench.cluster.kill_api_server()?;
        pause("the API server is down", Duration::from_secs(2)).await;
        bench.cluster.restart_api_server().await?;
        agent.matches_oracle(&bench.node).await.context(source.clone())?;
        bench.node.delete("goes").await?;
        agent.matches_oracle(&bench.node).await.context(source)?;
        agent.kill()?;
        bench.node.delete(&format!("stays-{round}")).await?;
    }
    Ok(())
}
