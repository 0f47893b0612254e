//! The fingerprint in the object is the one that the scheduler plugin expects, in every state of a pod, and
//! while the zones do not account for a bound pod it matches no set of pods. The expected value is computed
//! by upstream's own library from the API server's pods; the kubelet and its pods are real.

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use numacast::pod::Pod;
use numacast::scheduler::{PluginRelease, is_exclusive};
use numacast_sim::machine::Device;
use serde_json::{Value, json};

use crate::support::agent::Agent;
use crate::support::fingerprint::{Counting, Upstream, WITHHELD, attribute, output_of, published};
use crate::support::parts::fetched;
use crate::support::pods::PodSpec;
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Observer, Parts, RealNode, Stop, nrt, pod, seed};

const NIC: &str = "example.com/nic";
const FAR: &str = "example.com/far";

/// The plugin's defaults.
const DEFAULT: Counting = Counting { informer: "dedicated", method: "all", plugin: "v0.35" };

/// All other supported combinations.
const OTHERS: [Counting; 4] = [
    Counting { informer: "shared", ..DEFAULT },
    Counting { method: "with-exclusive-resources", ..DEFAULT },
    Counting { method: "with-exclusive-resources", plugin: "v0.34", ..DEFAULT },
    Counting { informer: "shared", method: "with-exclusive-resources", plugin: "v0.35" },
];

/// A node, its agent, and upstream's library.
struct Bench {
    agent: Agent,
    node: RealNode,
    cluster: Cluster,
    upstream: Upstream,
    counting: Counting,
}

impl Bench {
    /// Starts a kubelet that rejects pods that do not fit into one zone, and reads static pods from
    /// `manifests`.
    async fn start(parts: &Parts) -> Result<Self> {
        let cluster = Cluster::shared(parts).await?;
        let node = RealNode::on("two-by-eight")?
            .kubelet("topologyManagerPolicy", "single-numa-node".into())
            .static_pods(&cluster)?
            .start(&cluster)
            .await?;
        let agent = agent(&node, DEFAULT)?;
        Ok(Self { agent, node, cluster, upstream: Upstream::of(parts), counting: DEFAULT })
    }

    /// Restarts the agent with another counting.
    fn count(&mut self, counting: Counting) -> Result<()> {
        self.agent.kill()?;
        self.counting = counting;
        self.agent = agent(&self.node, counting)?;
        Ok(())
    }

    /// Waits until the object has the fingerprint that upstream computes from the API server's pods, and its
    /// zones match the kubelet's checkpoints; returns the names of the counted pods.
    async fn matches(&mut self, when: &str) -> Result<Vec<String>> {
        let (node, counting) = (&self.node, self.counting);
        let pods = until(&format!("the fingerprint matches: {when}, {counting:?}"), async || {
            self.agent.still_runs()?;
            node.kubelet_still_runs()?;
            let object = nrt::read(&node.client(), node.name()).await?;
            let expected = self.upstream.expects(counting, &node.pods().await?, &object)?;
            let ours = published(&object);
            ensure!(
                ours == Some(&expected.fingerprint),
                "{ours:?} is published, upstream expects {expected:?}"
            );
            let method = attribute(&object, "nodeTopologyPodsFingerprintMethod");
            ensure!(method == Some(counting.method), "its method is {method:?}");
            Ok(expected.pods)
        })
        .await?;
        self.agent.matches_oracle(node).await.with_context(|| when.to_owned())?;
        let name = |pod: &String| pod.rsplit('/').next().unwrap_or_default().to_owned();
        Ok(pods.iter().map(name).collect())
    }

    /// Creates a bound pod and returns its resourceVersion.
    async fn bind(&self, spec: &PodSpec) -> Result<u64> {
        self.node.submit(spec).await?;
        let pods = self.node.pods().await?;
        let pod = pods.iter().find(|pod| pod.name_any() == spec.name()).context("the pod is not there")?;
        Ok(pod.resource_version().context("a pod without a version")?.parse()?)
    }

    async fn wait_until_withheld(&self, when: &str) -> Result<()> {
        until(&format!("the fingerprint is withheld: {when}"), async || {
            let object = nrt::read(&self.node.client(), self.node.name()).await?;
            ensure!(published(&object) == Some(WITHHELD), "it is {:?}", published(&object));
            Ok(())
        })
        .await
    }

    /// Writes a static pod's manifest where the kubelet looks for it.
    fn static_pod(&self) -> Result<()> {
        let manifest = self.node.manifest(&pod("static").cpus(1).memory("64Mi"))?;
        Ok(std::fs::write(self.cluster.dir().join("manifests/static.yaml"), manifest)?)
    }
}

fn agent(node: &RealNode, Counting { informer, method, plugin }: Counting) -> Result<Agent> {
    let settings = [
        format!("fingerprint.informerMode={informer}"),
        format!("fingerprint.method={method}"),
        format!("fingerprint.pluginRelease={plugin}"),
    ];
    let arguments: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting.as_str()]).collect();
    Agent::start(node, &arguments)
}

#[tokio::test]
async fn the_fingerprint_is_upstreams_in_every_state_of_a_pod() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let mut bench = Bench::start(&parts).await?;
    ensure!(bench.matches("no pod at all").await?.is_empty());

    bench.node.run(pod("best-effort")).await?;
    bench.node.run(pod("burstable").burstable().millicpus(100).memory("64Mi").device(NIC, 1)).await?;
    bench.node.run(pod("fraction").millicpus(500).memory("64Mi")).await?;
    bench.node.run(pod("whole").cpus(2).memory("64Mi")).await?;
    bench.node.run(pod("helped").cpus(1).memory("64Mi").sidecar("side").cpus(1).memory("64Mi")).await?;
    // The API server rewrites the request as `500e-3`; and the plugin counts a pod that requests 0 of a
    // device.
    bench.node.run(pod("spelled").cpu("5e-1").memory("64Mi")).await?;
    bench.node.run(pod("none").burstable().millicpus(100).memory("64Mi").device(NIC, 0)).await?;
    // A device without NUMA affinity, which is in no zone.
    let far = Device { id: "far-0".to_owned(), numa: Vec::new(), unhealthy: false };
    bench.node.set_devices(FAR, &[far])?;
    bench.node.wait_until_ready().await?;
    bench.node.run(pod("far").burstable().millicpus(100).memory("64Mi").device(FAR, 1)).await?;
    let running = ["best-effort", "burstable", "far", "fraction", "helped", "none", "spelled", "whole"];
    ensure!(bench.matches("all run").await? == running);

    bench.node.submit(&pod("unpullable").cpus(1).memory("64Mi").unpullable()).await?;
    bench.node.wait_for_status("unpullable", "ErrImageNeverPull").await?;
    ensure!(bench.matches("a pod is admitted and cannot start").await? == running);

    bench.node.run(pod("completed").cpus(1).memory("64Mi")).await?;
    bench.node.finish("completed", 0).await?;
    bench.matches("a pod has completed").await?;
    bench.node.run(pod("failed").cpus(1).memory("64Mi")).await?;
    bench.node.finish("failed", 1).await?;
    bench.matches("a pod has failed").await?;
    bench.node.try_to_run(pod("rejected").cpus(8).memory("64Mi")).await?;
    bench.matches("the kubelet has rejected a pod").await?;

    bench.static_pod()?;
    bench.node.wait_for_outcome(&bench.node.mirror("static")).await?;
    bench.matches("a static pod runs").await?;

    bench.node.run(pod("finalized").cpus(1).memory("64Mi").finalizer("example.com/keeps")).await?;
    bench.node.request_deletion("finalized").await?;
    bench.node.wait_for_status("finalized", "\"terminated\"").await?;
    bench.matches("a finalizer keeps a pod that was deleted").await?;

    bench.node.run(pod("forced").cpus(1).memory("64Mi")).await?;
    bench.node.force_delete("forced").await?;
    bench.matches("a pod was deleted by force").await?;

    // All of them together, for newly started agents with every counting.
    let all = bench.matches("before the agent's restart").await?;
    let ended = ["completed", "failed", "finalized", "rejected"];
    ensure!(ended.iter().all(|name| all.iter().any(|one| one == name)) && all.len() == 13, "{all:?}");
    for counting in OTHERS {
        bench.count(counting)?;
        let counted = bench.matches("after the agent's restart").await?;
        let has = |name: &str| counted.iter().any(|one| one == name);
        ensure!(has("completed") == (counting.informer == "dedicated"), "{counting:?}: {counted:?}");
        ensure!(has("best-effort") == (counting.method == "all"), "{counting:?}: {counted:?}");
        ensure!(has("none") && has("spelled"), "{counting:?}: {counted:?}");
        let exclusive = counting.method == "all" || counting.plugin == "v0.34";
        ensure!(has("far") == exclusive, "{counting:?}: {counted:?}");
        // It follows further changes, which depend on the informer.
        if counting.informer == "dedicated" {
            continue;
        }
        bench.node.run(pod("next").cpus(1).memory("64Mi")).await?;
        bench.matches("another pod runs").await?;
        bench.node.finish("next", 0).await?;
        bench.matches("it has completed").await?;
        bench.node.delete("next").await?;
        bench.matches("it was deleted").await?;
    }

    bench.count(DEFAULT)?;
    for gone in ["unpullable", "completed", "failed", "rejected", "whole"] {
        bench.node.delete(gone).await?;
        bench.matches(&format!("{gone} was deleted")).await?;
    }
    bench.node.remove_finalizers("finalized").await?;
    bench.node.wait_until_gone("finalized").await?;
    bench.matches("the finalizer is gone").await?;
    std::fs::remove_file(bench.cluster.dir().join("manifests/static.yaml"))?;
    bench.node.wait_until_gone(&bench.node.mirror("static")).await?;
    bench.matches("the static pod is gone").await?;
    Ok(())
}

#[tokio::test]
async fn the_fingerprint_matches_nothing_while_a_bound_pod_is_not_accounted() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let mut bench = Bench::start(&parts).await?;
    bench.node.run(pod("first").cpus(2).memory("64Mi")).await?;
    bench.matches("one pod runs").await?;
    let observer = Observer::start(&bench.node.client(), bench.node.name()).await?;

    // The kubelet hangs.
    bench.node.signal_kubelet("STOP")?;
    let bound = bench.bind(&pod("second").cpus(3).memory("64Mi")).await?;
    bench.wait_until_withheld("a pod is bound, and the kubelet hangs").await?;
    bench.node.signal_kubelet("CONT")?;
    bench.node.wait_for_outcome("second").await?;
    ensure!(bench.matches("the kubelet goes on").await? == ["first", "second"]);
    no_version_matches_with_more(&observer, bound, 14 - 2 - 3).await?;

    // The kubelet is dead, and the agent restarts meanwhile.
    bench.node.stop_kubelet(Stop::Kill)?;
    let bound = bench.bind(&pod("third").cpus(4).memory("64Mi")).await?;
    bench.wait_until_withheld("a pod is bound, and the kubelet is dead").await?;
    bench.count(DEFAULT)?;
    bench.node.start_kubelet().await?;
    bench.node.wait_for_outcome("third").await?;
    ensure!(bench.matches("the kubelet runs again").await? == ["first", "second", "third"]);
    no_version_matches_with_more(&observer, bound, 14 - 2 - 3 - 4).await?;

    // A pod that is deleted before the kubelet admitted it is no longer waited for.
    bench.node.signal_kubelet("STOP")?;
    bench.node.submit(&pod("fourth").cpus(1).memory("64Mi")).await?;
    bench.wait_until_withheld("another pod is bound, and the kubelet hangs again").await?;
    bench.node.force_delete("fourth").await?;
    let (node, upstream) = (&bench.node, &bench.upstream);
    until("the fingerprint matches without the pod", async || {
        let object = nrt::read(&node.client(), node.name()).await?;
        let expected = upstream.expects(DEFAULT, &node.pods().await?, &object)?;
        ensure!(published(&object) == Some(&expected.fingerprint), "it is {:?}", published(&object));
        Ok(())
    })
    .await?;
    bench.node.signal_kubelet("CONT")?;
    bench.matches("the kubelet goes on").await?;
    Ok(())
}

#[tokio::test]
async fn no_fingerprint_matches_while_the_agent_is_away() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let mut bench = Bench::start(&parts).await?;
    bench.node.run(pod("first").cpus(2).memory("64Mi")).await?;
    bench.matches("one pod runs").await?;

    // When terminated, the agent withholds the fingerprint.
    bench.agent.end().await?;
    bench.wait_until_withheld("the agent was terminated").await?;
    bench.agent = agent(&bench.node, DEFAULT)?;
    ensure!(bench.matches("another one has started").await? == ["first"]);

    // When killed, it cannot; and its successor cannot read the node.
    bench.agent.kill()?;
    bench.node.signal_kubelet("STOP")?;
    let bound = bench.bind(&pod("second").cpus(3).memory("64Mi")).await?;
    let observer = Observer::start(&bench.node.client(), bench.node.name()).await?;
    bench.agent = agent(&bench.node, DEFAULT)?;
    bench.wait_until_withheld("a pod was bound while no agent ran, and the kubelet hangs").await?;
    bench.node.signal_kubelet("CONT")?;
    bench.node.wait_for_outcome("second").await?;
    ensure!(bench.matches("the kubelet goes on").await? == ["first", "second"]);
    no_version_matches_with_more(&observer, bound, 14 - 2 - 3).await
}

/// Checks that every version since a pod was bound with a valid fingerprint has at most `free` CPUs
/// available.
async fn no_version_matches_with_more(observer: &Observer, bound: u64, free: u64) -> Result<()> {
    let mut all = Vec::new();
    for version in observer.versions().await? {
        let cpus: u64 = version.zones.values().map(|zone| zone["cpu"].available).sum();
        let fingerprint = published(&version).unwrap_or("none").to_owned();
        all.push((version.version.parse::<u64>()?, fingerprint, cpus));
    }
    all.retain(|(version, ..)| *version > bound);
    let withheld = all.iter().any(|(_, fingerprint, _)| fingerprint == WITHHELD);
    ensure!(withheld, "the fingerprint of no version was withheld: {all:?}");
    let wrong = all.iter().find(|(_, fingerprint, cpus)| fingerprint != WITHHELD && *cpus > free);
    ensure!(wrong.is_none(), "a version has more than {free} CPUs available: {wrong:?}, of {all:?}");
    Ok(())
}

/// Resources in the zones, of those that generated pods request.
const LISTED: [&str; 4] = ["cpu", "memory", NIC, "hugepages-a.b/c"];

fn random_pod(random: &mut fastrand::Rng, name: usize) -> Value {
    let cpu = [
        "0",
        "1",
        "2",
        "500m",
        "2000m",
        "5e-1",
        "2e0",
        "1500000u",
        "1n",
        "999999999n",
        "20E",
        "10P",
        "20000000000000000001",
    ];
    let memory = ["0", "1", "1Gi", "1500m", "20E", "9Ei", "9223372036854775808", "20000000000000000001"];
    let count = ["0", "1", "8", "0k", "20E"];
    let container = |random: &mut fastrand::Rng, kind: &str| {
        let mut requests = serde_json::Map::new();
        for (resource, amounts) in [
            ("cpu", &cpu[..]),
            ("memory", &memory),
            ("hugepages-2Mi", &memory),
            (NIC, &count),
            (FAR, &count),
            ("a.kubernetes.io/b", &count),
            ("hugepages-a.b/c", &count),
            ("ephemeral-storage", &memory),
        ] {
            let often = if matches!(resource, "cpu" | "memory") { 4 } else { 1 };
            if random.u8(..6) < often {
                requests.insert(resource.to_owned(), json!(amounts[random.usize(..amounts.len())]));
            }
        }
        let policy = if kind == "sidecar" { json!("Always") } else { Value::Null };
        let limits = if random.u8(..4) > 0 { Value::Object(requests.clone()) } else { Value::Null };
        json!({"name": kind, "restartPolicy": policy, "resources": {"requests": requests, "limits": limits}})
    };
    let classes = ["", "", "Guaranteed", "Guaranteed", "Burstable", "BestEffort"];
    let mut init = Vec::new();
    for kind in ["init", "sidecar"] {
        if random.u8(..3) == 0 {
            init.push(container(random, kind));
        }
    }
    json!({
        "metadata": {"name": format!("p{name}"), "namespace": "ns", "uid": format!("u{name}")},
        "spec": {"nodeName": "n", "initContainers": init, "containers": [container(random, "app")]},
        "status": {"phase": "Running", "qosClass": classes[random.usize(..classes.len())]},
    })
}

#[test]
fn random_pods_count_as_the_plugin_counts_them() -> Result<()> {
    let Some(dir) = fetched(&["exclusive"])? else { return Ok(()) };
    let mut random = fastrand::Rng::with_seed(seed("pods that count"));
    let pods: Vec<Value> = (0..4000).map(|name| random_pod(&mut random, name)).collect();
    let ours = |release| {
        let listed = |name: &str| LISTED.contains(&name);
        let exclusive = |pod: &Value| {
            let pod = Pod::from_json(&serde_json::to_vec(pod)?).map_err(anyhow::Error::msg)?;
            Ok(is_exclusive(&pod, &listed, release))
        };
        pods.iter().map(exclusive).collect::<Result<Vec<bool>>>()
    };
    let program = dir.join("exclusive");
    let zones = LISTED.join(",");
    for (release, arguments) in [(PluginRelease::V0_34, &[][..]), (PluginRelease::V0_35, &[zones.as_str()])] {
        let theirs: Vec<bool> = serde_json::from_value(output_of(&program, arguments, &pods)?)?;
        let count = theirs.iter().filter(|exclusive| **exclusive).count();
        ensure!(count > 400 && count < 3600, "{release:?}: {count} are exclusive");
        let mut pairs = ours(release)?.into_iter().zip(theirs).zip(&pods);
        let wrong = pairs.find(|((ours, theirs), _)| ours != theirs);
        ensure!(wrong.is_none(), "{release:?}: ours and theirs differ: {wrong:?}");
    }
    Ok(())
}
