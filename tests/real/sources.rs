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
use numacast::kubelet::{HttpsClient, HttpsTarget, follow_pods, poll_pods};
use numacast::pod::{Liveness, Phase, Pod, PodEvent, Wanted};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::support::agent::Agent;
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Observer, Parts, RealNode, Stop, oracle, pod};

/// Request timeout.
const DEADLINE: Duration = Duration::from_secs(10);
/// Poll interval of `/pods`.
const INTERVAL: Duration = Duration::from_millis(500);

/// The state of a client that trusts a source's events.
#[derive(Debug, Default)]
struct Known {
    listed: BTreeMap<String, Pod>,
    pods: BTreeMap<String, Pod>,
    /// Number of completed lists.
    lists: usize,
    /// Pods that were known and have disappeared.
    lost: BTreeSet<String>,
    errors: Vec<String>,
}

impl Known {
    fn hear(&mut self, told: Result<PodEvent, String>) {
        match told {
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
            Err(sentence) => self.errors.push(sentence),
        }
    }
}

/// A subscriber of one source.
struct Listener {
    name: &'static str,
    known: Arc<Mutex<Known>>,
    task: JoinHandle<()>,
}

impl Listener {
    fn start(
        name: &'static str,
        source: impl Stream<Item = Result<PodEvent, String>> + Send + 'static,
    ) -> Self {
        let known = Arc::<Mutex<Known>>::default();
        let (mut source, hears): (BoxStream<'static, _>, _) = (source.boxed(), Arc::clone(&known));
        let task = tokio::spawn(async move {
            while let Some(told) = source.next().await {
                lock(&hears).hear(told);
            }
        });
        Self { name, known, task }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }

    async fn complains(&self, when: &str) -> Result<()> {
        let before = self.known().errors.len();
        until(&format!("{} says that it is lost: {when}", self.name), async || {
            ensure!(self.known().errors.len() > before);
            Ok(())
        })
        .await
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A node, and a subscriber of each source.
struct Bench {
    cluster: Cluster,
    node: RealNode,
    api_server: Listener,
    pods_api: Listener,
    page: Listener,
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
        let page = page(&node, api_server.clone())?;
        let pods_api =
            follow_pods(node.kubelet_dir().join("pods-api/pods-api.sock"), DEADLINE, Wanted::default());
        Ok(Self {
            api_server: Listener::start("the API server", api_server.pods_of(node.name(), Wanted::default())),
            pods_api: Listener::start("the Pods API", pods_api),
            page: Listener::start("/pods", page),
            cluster,
            node,
        })
    }

    fn listeners(&self) -> [&Listener; 3] {
        [&self.api_server, &self.pods_api, &self.page]
    }

    /// Waits until all sources report the same, for all pods of the API server; returns their names.
    async fn agree(&self, when: &str) -> Result<BTreeSet<String>> {
        until(&format!("all sources agree: {when}"), async || {
            self.node.kubelet_still_runs()?;
            let pods = self.node.pods().await?;
            let phase = |pod: &k8s_openapi::api::core::v1::Pod| pod.status.clone()?.phase;
            let expected: BTreeMap<String, Option<String>> =
                pods.iter().map(|pod| (pod.metadata.name.clone().unwrap_or_default(), phase(pod))).collect();
            let first = comparable(&self.api_server.known().pods);
            for listener in self.listeners() {
                let known = listener.known();
                ensure!(
                    known.lists > 0,
                    "{} has listed nothing yet: {:?}",
                    listener.name,
                    known.errors.last()
                );
                let told: BTreeMap<String, Option<String>> = known
                    .pods
                    .values()
                    .map(|pod| (pod.name.clone(), Some(format!("{:?}", pod.phase))))
                    .collect();
                ensure!(told == expected, "{} tells {told:?}, and there are {expected:?}", listener.name);
                let now = comparable(&known.pods);
                ensure!(now == first, "{} tells\n{now:#?}\nand the API server\n{first:#?}", listener.name);
            }
            Ok(expected.into_keys().collect())
        })
        .await
    }

    /// Returns the number of completed lists of the kubelet's own sources.
    fn lists(&self) -> [usize; 2] {
        [&self.pods_api, &self.page].map(|listener| listener.known().lists)
    }

    async fn list_again(&self, before: [usize; 2]) -> Result<()> {
        until("the kubelet has listed its pods again", async || {
            let now = self.lists();
            ensure!(now[0] > before[0] && now[1] > before[1], "{before:?}, {now:?}");
            Ok(())
        })
        .await
    }

    /// Checks that every source has lost exactly these pods since the last call.
    fn lost(&self, expected: &[&str], when: &str) -> Result<()> {
        for listener in self.listeners() {
            let lost = std::mem::take(&mut listener.known().lost);
            let right = lost.iter().map(String::as_str).eq(expected.iter().copied());
            ensure!(right, "{when}: {} has lost {lost:?}, not {expected:?}", listener.name);
        }
        Ok(())
    }
}

/// Returns the source that reads the kubelet's `/pods`, trusting its self-signed certificate.
fn page(
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
        timeout: DEADLINE,
    };
    let connect = move || {
        let (api_server, target) = (api_server.clone(), target.clone());
        async move {
            let config = api_server.config().ok_or("no credentials")?;
            HttpsClient::new(config, &target).map_err(|error| error.to_string())
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
async fn all_sources_tell_the_same_in_every_state_of_a_pod() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let bench = Bench::start(&parts).await?;
    ensure!(bench.agree("no pod at all").await?.is_empty());

    bench.node.run(pod("best-effort")).await?;
    let burstable = pod("burstable").burstable().millicpus(100).memory("64Mi").device("example.com/nic", 1);
    bench.node.run(burstable).await?;
    let whole = pod("whole").cpus(2).memory("1.5Gi").hugepages("2Mi", "64Mi");
    bench.node.run(whole.init("first").cpus(1).memory("64Mi")).await?;
    bench
        .node
        .run(pod("helped").millicpus(500).memory("64Mi").sidecar("side").cpus(1).memory("64Mi"))
        .await?;
    bench.agree("all run").await?;
    let known = bench.pods_api.known().pods.clone();
    let guaranteed: Vec<&str> = known
        .values()
        .filter(|pod| pod.guaranteed && pod.qos_guaranteed)
        .map(|pod| pod.name.as_str())
        .collect();
    ensure!(guaranteed == ["helped", "whole"], "{guaranteed:?}");
    ensure!(known["burstable"].containers[0].others == [("example.com/nic".into(), 1)].into());

    bench.node.submit(&pod("unpullable").cpus(1).memory("64Mi").unpullable()).await?;
    bench.node.wait_for_status("unpullable", "ErrImageNeverPull").await?;
    bench.agree("a pod is admitted and cannot start").await?;
    ensure!(bench.page.known().pods["unpullable"].phase == Phase::Pending);

    bench.node.run(pod("completed").cpus(1).memory("64Mi")).await?;
    bench.node.finish("completed", 0).await?;
    bench.node.run(pod("failed").cpus(1).memory("64Mi")).await?;
    bench.node.finish("failed", 1).await?;
    bench.node.try_to_run(pod("refused").cpus(8).memory("64Mi")).await?;
    bench.agree("pods have completed, have failed and were refused").await?;
    ensure!(bench.page.known().pods["refused"].liveness == Liveness::Terminated);

    let manifest = bench.cluster.dir().join("manifests/static.yaml");
    let limits_only = pod("static").cpus(1).memory("64Mi").bound_to("")?;
    std::fs::write(&manifest, serde_json::to_vec(&limits_only)?)?;
    bench.node.fate_of("static-two-by-eight").await?;
    bench.agree("a static pod runs").await?;
    ensure!(bench.pods_api.known().pods["static-two-by-eight"].guaranteed);

    bench.node.run(pod("finalized").cpus(1).memory("64Mi").finalizer("example.com/keeps")).await?;
    bench.node.request_deletion("finalized").await?;
    bench.node.wait_for_status("finalized", "\"terminated\"").await?;
    bench.agree("a finalizer keeps a pod that was deleted").await?;
    ensure!(bench.pods_api.known().pods["finalized"].deleted);
    bench.lost(&[], "nothing was deleted")?;

    bench.node.run(pod("forced").cpus(1).memory("64Mi")).await?;
    bench.agree("one more runs").await?;
    bench.node.force_delete("forced").await?;
    for gone in ["unpullable", "completed", "failed", "whole"] {
        bench.node.delete(gone).await?;
    }
    bench.node.remove_finalizers("finalized").await?;
    std::fs::remove_file(&manifest)?;
    bench.node.wait_until_gone("static-two-by-eight").await?;
    // A pod with the name of an earlier one.
    bench.node.run(pod("whole").cpus(1).memory("64Mi")).await?;
    let left = bench.agree("most are gone").await?;
    ensure!(left == ["best-effort", "burstable", "helped", "refused", "whole"].map(str::to_owned).into());
    Ok(())
}

#[tokio::test]
async fn no_source_loses_a_pod_when_its_server_goes_and_comes_back() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let mut bench = Bench::start(&parts).await?;
    for index in 0..4 {
        bench.node.run(pod(&format!("stays-{index}")).cpus(1).memory("64Mi")).await?;
    }
    bench.node.run(pod("ends").cpus(1).memory("64Mi")).await?;
    bench.agree("all run").await?;

    // The kubelet is down.
    for how in [Stop::Term, Stop::Kill] {
        bench.node.stop_kubelet(how)?;
        bench.pods_api.complains("the kubelet is away").await?;
        bench.page.complains("the kubelet is away").await?;
        let lists = bench.lists();
        bench.node.start_kubelet().await?;
        // The earlier state would agree, too: the kubelet must have listed its pods again.
        bench.list_again(lists).await?;
        bench.agree("the kubelet is back").await?;
        bench.lost(&[], &format!("the kubelet is back, {how:?}"))?;
    }

    // The API server is down while a pod ends: only the kubelet can know.
    bench.cluster.kill_api_server()?;
    bench.api_server.complains("the API server is away").await?;
    bench.node.exit("ends", 0)?;
    until("the Pods API says that the pod has ended", async || {
        let known = bench.pods_api.known();
        let life = known.pods.get("ends").map(|pod| pod.liveness);
        ensure!(life == Some(Liveness::Terminated), "{life:?}, and it was lost: {:?}, {:?}", known.lost, known.errors);
        Ok(())
    })
    .await?;
    let life = bench.api_server.known().pods.get("ends").map(|pod| pod.liveness);
    ensure!(life == Some(Liveness::Live), "{life:?}");
    bench.cluster.restart_api_server().await?;
    bench.agree("the API server is back").await?;

    // Both are down, and the kubelet returns first: it has none of its pods yet.
    bench.node.stop_kubelet(Stop::Kill)?;
    bench.cluster.kill_api_server()?;
    bench.pods_api.complains("both are away").await?;
    bench.node.launch_kubelet()?;
    tokio::time::sleep(Duration::from_secs(15)).await;
    bench.lost(&[], "the kubelet is back, the API server is not")?;
    bench.cluster.restart_api_server().await?;
    bench.node.wait_until_ready().await?;
    bench.agree("both are back").await?;
    bench.lost(&[], "both are back")?;

    // A pod is deleted and another one created while the kubelet is down.
    bench.node.stop_kubelet(Stop::Kill)?;
    bench.node.force_delete("stays-0").await?;
    bench.node.submit(&pod("new").cpus(1).memory("64Mi")).await?;
    bench.node.start_kubelet().await?;
    bench.node.fate_of("new").await?;
    bench.agree("the kubelet is back, with other pods").await?;
    bench.lost(&["stays-0"], "the kubelet is back, with other pods")?;
    Ok(())
}

#[tokio::test]
async fn the_object_is_never_wrong_whatever_the_source_goes_through() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let mut bench = Bench::start(&parts).await?;
    let port = format!("kubelet.caFile={}", certificate(&bench.node).display());
    let name = format!("kubelet.serverName={}", bench.node.name());
    let config: Value =
        serde_json::from_slice(&std::fs::read(bench.node.kubelet_dir().join("config.yaml"))?)?;
    let address = format!("kubelet.address=127.0.0.1:{}", config["port"]);
    for (round, source) in ["podsApi", "kubelet", "apiServer"].into_iter().enumerate() {
        let source = format!("pods.source={source}");
        let settings =
            [source.as_str(), "fingerprint.view=kubelet", "scan.poll=1s", &port, &name, &address];
        let arguments: Vec<&str> = settings.into_iter().flat_map(|setting| ["--set", setting]).collect();
        let mut agent = Agent::start(&bench.node, &arguments)?;
        bench
            .node
            .run(pod(&format!("holder-{round}")).cpus(2).memory("1Gi").device("example.com/nic", 1))
            .await?;
        bench.node.run(pod("goes").cpus(1).memory("64Mi")).await?;
        agent.matches_oracle(&bench.node).await?;
        let observer = Observer::start(&bench.node.client(), bench.node.name()).await?;
        let truth = oracle::expected(&bench.node).await?;

        bench.node.restart_kubelet(Stop::Kill).await?;
        agent.matches_oracle(&bench.node).await?;
        bench.node.stop_kubelet(Stop::Term)?;
        tokio::time::sleep(Duration::from_secs(4)).await;
        bench.node.start_kubelet().await?;
        agent.matches_oracle(&bench.node).await.context(source.clone())?;
        for seen in observer.versions().await? {
            let beyond = truth.overstated(&seen.zones);
            ensure!(beyond.is_empty(), "{source}: version {} promised {}", seen.version, beyond.join(", "));
        }
        bench.cluster.kill_api_server()?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        bench.cluster.restart_api_server().await?;
        agent.matches_oracle(&bench.node).await.context(source.clone())?;
        bench.node.delete("goes").await?;
        agent.matches_oracle(&bench.node).await.context(source)?;
        agent.kill()?;
        bench.node.delete(&format!("holder-{round}")).await?;
    }
    Ok(())
}
