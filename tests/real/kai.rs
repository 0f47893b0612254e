//! KAI-Scheduler computes from the object and the annotations of pods what the account has.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::support::agent::Agent;
use crate::support::kai::{self, OBSERVED};
use crate::support::wait::until;
use crate::support::walk::Walk;
use crate::support::{Cluster, Needs, Parts, RealNode, chart, nrt, pod, seed};

const CONSUMER: &str = "--set=consumer=kai";
/// Steps of one walk.
const STEPS: usize = 36;

/// Waits until KAI-Scheduler takes as available what the object has available.
async fn agrees(node: &RealNode, agent: &mut Agent) -> Result<()> {
    until("KAI-Scheduler agrees with the object", async || {
        agent.still_runs()?;
        let zones = nrt::read(&node.client(), node.name()).await?.zones;
        let found = kai::available(&zones, &node.pods().await?)?;
        for ((zone, resource), available) in found {
            let expected = zones[&zone][&resource].available;
            ensure!(
                available == i128::from(expected),
                "{zone} {resource}: {available} instead of {expected}"
            );
        }
        Ok(())
    })
    .await
}

/// Counts the changes of the annotation of all pods of a namespace.
struct Changes(tokio::task::JoinHandle<Result<BTreeMap<String, usize>>>);

impl Changes {
    async fn start(node: &RealNode) -> Result<Self> {
        let pods: Api<Pod> = Api::namespaced(node.client(), node.namespace());
        let mut version =
            pods.list(&ListParams::default()).await?.metadata.resource_version.context("a version")?;
        let end = format!("end-of-{}", node.name());
        let counting = async move {
            let (mut values, mut changes) = (BTreeMap::new(), BTreeMap::new());
            loop {
                let mut events = std::pin::pin!(pods.watch(&WatchParams::default(), &version).await?);
                while let Some(Ok(event)) = events.next().await {
                    let (WatchEvent::Added(pod) | WatchEvent::Modified(pod) | WatchEvent::Deleted(pod)) =
                        event
                    else {
                        continue;
                    };
                    version = pod.resource_version().context("a pod without a version")?;
                    if pod.name_any() == end {
                        return Ok(changes);
                    }
                    let uid = pod.uid().context("a pod without a UID")?;
                    let value = pod.annotations().get(OBSERVED).cloned();
                    if values.insert(uid.clone(), value.clone()).unwrap_or_default() != value {
                        *changes.entry(uid).or_default() += 1;
                    }
                }
            }
        };
        Ok(Self(tokio::spawn(counting)))
    }

    /// Returns the number of changes by pod.
    async fn end(self, node: &RealNode) -> Result<BTreeMap<String, usize>> {
        node.submit(&pod(&format!("end-of-{}", node.name())).unpullable()).await?;
        self.0.await?
    }
}

#[tokio::test]
async fn kai_has_the_numbers_of_the_account_after_every_step() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let mut node = RealNode::on("two-by-eight")?.start(&cluster).await?;
    let values = json!({"config": {"consumer": "kai"}});
    node.set_agent_kubeconfig(chart::agent_without_a_pod_of(&cluster, &parts, values).await?);
    let seed = seed("KAI-Scheduler on two-by-eight");
    let mut random = Rng::with_seed(seed);
    let changes = Changes::start(&node).await?;
    let agent = Agent::start(&node, &[CONSUMER])?;
    let mut walk = Walk::new(node, agent, 12, seed);
    // An agent that ends before its first object tells the next one of no device.
    walk.matches_oracle().await?;
    let mut writes = 0.0;
    for _ in 0..STEPS {
        // The next agent finds annotations of pods that have changed.
        let is_away = random.u8(..6) == 0;
        if is_away {
            writes += walk.agent().annotations().await?;
            walk.agent().end().await?;
        }
        let what = walk.step().await?;
        if is_away {
            let agent = Agent::start(walk.node(), &[CONSUMER])?;
            *walk.agent() = agent;
        }
        walk.matches_oracle().await.with_context(|| format!("after {what}"))?;
        let (node, agent) = walk.parts();
        agrees(node, agent).await.with_context(|| format!("after {what}"))?;
    }
    writes += walk.agent().annotations().await?;
    walk.agent().end().await?;
    let changes = changes.end(walk.node()).await?;
    let sum: usize = changes.values().sum();
    eprintln!(
        "{sum} writes for {} of {} pods, at most {:?} for one",
        changes.len(),
        walk.started(),
        changes.values().max()
    );
    ensure!(writes == sum as f64, "{writes} writes, {sum} changes: one was repeated");
    Ok(())
}

async fn is_annotated(node: &RealNode, pod: &str) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(node.client(), node.namespace());
    until(&format!("{pod} is annotated"), async || {
        ensure!(pods.get(pod).await?.annotations().contains_key(OBSERVED));
        Ok(())
    })
    .await
}

/// Nothing is written for a pod that has nothing of a zone, and nothing when a pod ends: its annotation ends with it.
#[tokio::test]
async fn a_pod_is_annotated_once_in_its_life() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let node = RealNode::on("two-by-eight")?.static_pods(&cluster)?.start(&cluster).await?;
    let device = node.machine().devices.first().context("the machine has no device")?.resource.clone();
    let changes = Changes::start(&node).await?;
    // The proxy follows the same pods, for other annotations.
    let proxy = format!("--set=proxy.dir={}", node.dir().join("proxy").display());
    let arguments = [CONSUMER, "--set=proxy.enabled=true", &proxy];
    let mut agent = Agent::start(&node, &arguments)?;
    // KAI-Scheduler does not place it, but has to know of it.
    let manifest = node.manifest(&pod("static").cpus(1).memory("64Mi"))?;
    std::fs::write(cluster.dir().join("manifests/static.json"), manifest)?;
    node.wait_until_running(&node.mirror("static")).await?;
    is_annotated(&node, &node.mirror("static")).await?;
    for index in 0..6 {
        let holder = pod(&format!("holder-{index}")).cpus(2).memory("128Mi").device(&device, 1);
        let holder = if index % 2 == 0 { holder } else { holder.container("second").cpus(1).memory("64Mi") };
        node.run(holder).await?;
        node.run(pod(&format!("other-{index}")).burstable()).await?;
        is_annotated(&node, &format!("holder-{index}")).await?;
        agrees(&node, &mut agent).await?;
        if index > 1 {
            node.delete(&format!("holder-{}", index - 2)).await?;
            agrees(&node, &mut agent).await?;
        }
    }
    let mut writes = agent.annotations().await?;
    agent.end().await?;
    // The next agent has nothing to correct.
    let mut agent = Agent::start(&node, &arguments)?;
    node.run(pod("last").cpus(1).memory("64Mi")).await?;
    is_annotated(&node, "last").await?;
    agrees(&node, &mut agent).await?;
    writes += agent.annotations().await?;
    agent.end().await?;
    let changes = changes.end(&node).await?;
    ensure!(changes.len() == 8 && changes.values().all(|count| *count == 1), "{changes:?}");
    ensure!(writes == 8.0, "{writes} writes");
    Ok(())
}

/// KAI-Scheduler d5bc503, `pkg/npe/exporter.go`: a pass that compares the annotation with the exporter's own value, and
/// patches the pod if it differs. Returns whether it did.
async fn exporter_looks(pods: &Api<Pod>, name: &str, own: &str) -> Result<bool> {
    if pods.get(name).await?.annotations().get(OBSERVED).map(String::as_str) == Some(own) {
        return Ok(false);
    }
    let patch = Patch::Merge(json!({"metadata": {"annotations": {OBSERVED: own}}}));
    pods.patch(name, &PatchParams::default(), &patch).await?;
    Ok(true)
}

#[tokio::test]
async fn beside_kais_own_exporter_writes_are_few_and_its_end_ends_the_conflict() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let node = RealNode::on("two-by-eight")?.start(&cluster).await?;
    let pods: Api<Pod> = Api::namespaced(node.client(), node.namespace());
    node.run(pod("holder").cpus(2).memory("64Mi")).await?;
    let mut agent = Agent::start(&node, &[CONSUMER])?;
    agrees(&node, &mut agent).await?;
    let annotation = async || -> Result<String> {
        pods.get("holder").await?.annotations().get(OBSERVED).cloned().context("no annotation")
    };
    // The same amounts, as Go writes quantities.
    let ours = annotation().await?;
    let theirs = ours.replace("67108864", "64Mi");
    ensure!(theirs != ours, "{ours}");
    let mut patches = 0;
    for _ in 0..30 {
        patches += usize::from(exporter_looks(&pods, "holder", &theirs).await?);
    }
    let written = agent.annotations().await?;
    ensure!(patches >= 1 && written <= 2.0, "{written} writes of ours, {patches} of the exporter");
    // It is switched off.
    until("the annotation is ours", async || {
        agent.still_runs()?;
        ensure!(annotation().await? == ours, "it is not");
        Ok(())
    })
    .await?;
    agent.end().await
}

#[tokio::test]
async fn the_annotation_of_a_pod_is_mended_and_that_of_others_is_left_alone() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let node = RealNode::on("two-by-eight")?.start(&cluster).await?;
    let pods: Api<Pod> = Api::namespaced(node.client(), node.namespace());
    let forged = json!([{"zone": "node-0", "amount": {"cpu": "7"}}]).to_string();
    node.run(pod("liar").annotation(OBSERVED, &forged)).await?;
    node.run(pod("holder").cpus(2).memory("64Mi").annotation(OBSERVED, "[")).await?;
    let mut elsewhere = pod("elsewhere").annotation(OBSERVED, "[]").scheduled_by("none")?;
    elsewhere.metadata.namespace = Some(node.namespace().to_owned());
    let elsewhere = pods.create(&PostParams::default(), &elsewhere).await?;
    let mut agent = Agent::start(&node, &[CONSUMER])?;
    agrees(&node, &mut agent).await?;
    let annotation = async |name: &str| -> Result<Option<String>> {
        Ok(pods.get(name).await?.annotations().get(OBSERVED).cloned())
    };
    ensure!(annotation("liar").await?.is_none(), "it has nothing");
    ensure!(annotation("holder").await?.is_some_and(|text| text.contains(r#""cpu":"2""#)));
    ensure!(annotation("elsewhere").await? == Some("[]".to_owned()), "it is on no node");
    ensure!(pods.get("elsewhere").await?.resource_version() == elsewhere.resource_version());

    // Another client's change is overwritten.
    let other = Patch::Merge(json!({"metadata": {"annotations": {OBSERVED: forged}}}));
    pods.patch("holder", &PatchParams::default(), &other).await?;
    agrees(&node, &mut agent).await?;
    agent.end().await
}
