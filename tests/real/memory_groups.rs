//! Groups of NUMA nodes on a machine with eight: a pod that the kubelet refuses for a group is one that the object says
//! does not fit, and the other way round.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use numacast::admission::{self, Guess, NodeAmounts, PodRequest, ZoneReader};
use numacast::cluster::PublishedObject;
use numacast::pod::Pod;
use serde_json::{Value, json};

use crate::support::agent::Agent;
use crate::support::node::{self, PodOutcome, Stop};
use crate::support::nrt::{self, ObjectVersion};
use crate::support::pods::{PodSpec, pod};
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Parts, RealNode};

const ZONES: usize = 8;
const RESTRICTED: &str = "restricted";
const SINGLE: &str = "single-numa-node";
/// Every node in a group of two.
const ALL: [&str; 4] = ["0-1", "2-3", "4-5", "6-7"];

/// What an object says about a pod.
struct Said {
    fits: bool,
    /// Whether groups make it a guess.
    is_guess: bool,
    /// Whether a zone has all of the pod's memory available, which is all that the scheduler plugin compares.
    has_zone: bool,
}

#[tokio::test]
async fn a_pod_is_refused_for_a_group_if_the_object_says_so() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let mut node = RealNode::on("eight-by-sixty-four")?
        .kubelet("topologyManagerPolicy", RESTRICTED.into())
        .kubelet("cpuManagerPolicy", "none".into())
        .start(&cluster)
        .await?;
    let mut agent = Agent::start(&node, &[])?;

    // More than any one node has. Eight nodes become four groups of two.
    for number in 0..3 {
        node.run(wide(&format!("wide-{number}"))).await?;
    }
    let object = groups_are(&node, &mut agent, RESTRICTED, &["0-1", "2-3", "4-5"]).await?;
    let small = pod("small").millicpus(500).memory("1Gi");
    checks(&node, &object, &small, (true, true), "two nodes are in no group").await?;
    agent.matches_oracle(&node).await?;
    let object = groups_are(&node, &mut agent, RESTRICTED, &["0-1", "2-3", "4-5"]).await?;
    let many = pod("many").millicpus(500).memory("130Gi");
    checks(&node, &object, &many, (false, false), "node 6 has a pod of its own").await?;
    node.delete("small").await?;
    node.run(wide("wide-3")).await?;

    let object = groups_are(&node, &mut agent, RESTRICTED, &ALL).await?;
    checks(&node, &object, &small, (false, true), "every node is in a group").await?;
    let pages = pod("pages").millicpus(500).memory("1Gi").hugepages("1Gi", "20Gi");
    checks(&node, &object, &pages, (true, false), "a group has the huge pages of two nodes").await?;

    // For the scheduler plugin, which reads zones only with this policy. The kubelet has another one.
    agent.end().await?;
    let overrides = "--set=kubelet.configOverrides={topologyManagerPolicy: single-numa-node, topologyManagerScope: container}";
    let mut agent = Agent::start(&node, &[overrides])?;
    let object = groups_are(&node, &mut agent, SINGLE, &ALL).await?;
    checks(&node, &object, &small, (false, false), "every node is in a group").await?;

    // A kubelet with it rejects the pods of groups when it starts.
    node.stop_kubelet(Stop::Term)?;
    let file = node.kubelet_dir().join("config.yaml");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&file)?)?;
    config["topologyManagerPolicy"] = SINGLE.into();
    std::fs::write(&file, config.to_string())?;
    node.start_kubelet().await?;
    let object = groups_are(&node, &mut agent, SINGLE, &[]).await?;
    checks(&node, &object, &small, (true, true), "there are no groups").await?;
    Ok(())
}

/// Under `best-effort` a container can get memory on one node of a group, and the kubelet then releases memory of the
/// group from that node first, whoever has it there. Only its checkpoint shows that, not the List.
#[tokio::test]
async fn memory_that_the_kubelet_takes_for_free_is_known_from_its_checkpoint() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let mut machine = node::machine("wide-devices")?;
    let near_0 = machine.devices.iter_mut().find(|plugin| plugin.resource == "example.com/sick");
    for device in &mut near_0.context("no such plugin")?.devices {
        (device.numa, device.unhealthy) = (vec![0], false);
    }
    let mut node = RealNode::of("released", machine).start(&cluster).await?;
    let mut agent = Agent::start(&node, &[])?;
    let empty = memory_of(&object_of(&node, &mut agent).await?)?;

    // All that node 0 has and a part of node 1, then more of node 1, since the others are full: both are a group.
    node.run(pod("first").millicpus(500).memory("8Gi")).await?;
    node.run(pod("full-1").millicpus(500).memory("7Gi")).await?;
    node.run(pod("full-2").millicpus(500).memory("7Gi")).await?;
    node.run(pod("second").millicpus(500).memory("2Gi")).await?;
    for name in ["first", "full-1", "full-2"] {
        node.delete(name).await?;
    }
    // The device is near node 0, whose memory only a group has. Other nodes could give memory alone.
    node.run(pod("third").millicpus(500).memory("1Gi").device("example.com/sick", 1)).await?;
    node.delete("second").await?;
    // The kubelet releases memory when it admits a pod.
    node.run(pod("fourth").millicpus(500).burstable()).await?;

    const GIB: u64 = 1 << 30;
    let without = |taken: &str| {
        let mut left = empty.clone();
        left.entry(taken.to_owned()).and_modify(|bytes| *bytes -= GIB);
        left
    };
    memory_is(&node, &mut agent, &without("node-1")).await.context("by the checkpoint")?;
    agent.end().await?;
    let mut agent = Agent::start_with_default_mounts(&node)?;
    memory_is(&node, &mut agent, &without("node-0")).await.context("by the List")?;
    agent.end().await?;

    // With this checkpoint the kubelet does not start again.
    node.stop_kubelet(Stop::Term)?;
    node.launch_kubelet()?;
    until("the kubelet has ended", async || {
        ensure!(node.kubelet_still_runs().is_err(), "it runs");
        Ok(())
    })
    .await?;
    let log = node.kubelet_log()?;
    ensure!(log.contains("the expected machine state is different from the real one"), "{log}");
    Ok(())
}

/// Waits until the object is there, and returns it.
async fn object_of(node: &RealNode, agent: &mut Agent) -> Result<ObjectVersion> {
    until("the object is there", async || {
        agent.still_runs()?;
        nrt::read(&node.client(), node.name()).await
    })
    .await
}

/// Returns the bytes of available memory by zone.
fn memory_of(object: &ObjectVersion) -> Result<BTreeMap<String, u64>> {
    let of = |(name, resources): (&String, &BTreeMap<String, nrt::Figures>)| {
        Ok((name.clone(), resources.get("memory").context("no memory")?.available))
    };
    object.zones.iter().map(of).collect()
}

async fn memory_is(node: &RealNode, agent: &mut Agent, expected: &BTreeMap<String, u64>) -> Result<()> {
    until("the available memory is as expected", async || {
        agent.still_runs()?;
        node.kubelet_still_runs()?;
        let found = memory_of(&nrt::read(&node.client(), node.name()).await?)?;
        ensure!(found == *expected, "{found:?} instead of {expected:?}");
        Ok(())
    })
    .await
}

/// A pod whose memory is on two nodes.
fn wide(name: &str) -> PodSpec {
    pod(name).millicpus(500).memory("130Gi")
}

/// Waits until the object has this policy and its zones are in exactly these groups of several, and returns it.
async fn groups_are(
    node: &RealNode,
    agent: &mut Agent,
    policy: &str,
    expected: &[&str],
) -> Result<ObjectVersion> {
    until(&format!("the groups are {expected:?}"), async || {
        agent.still_runs()?;
        node.kubelet_still_runs()?;
        let object = nrt::read(&node.client(), node.name()).await?;
        let zones = object.content["zones"].as_array().context("no zones")?;
        let attributes = zones.iter().flat_map(|zone| zone["attributes"].as_array().into_iter().flatten());
        let mut groups: BTreeMap<&str, usize> = BTreeMap::new();
        for group in attributes.filter(|it| it["name"] == "memoryGroup") {
            *groups.entry(group["value"].as_str().context("no text")?).or_default() += 1;
        }
        groups.retain(|group, _| group.contains('-'));
        let wanted: BTreeMap<&str, usize> = expected.iter().map(|group| (*group, 2)).collect();
        ensure!(groups == wanted && zones.len() == ZONES, "{groups:?}");
        let attributes = object.content["attributes"].as_array().into_iter().flatten();
        let published = attributes.filter(|it| it["name"] == "topologyManagerPolicy").map(|it| &it["value"]);
        let published: Vec<&Value> = published.collect();
        ensure!(published == [policy], "{published:?}");
        Ok(object.clone())
    })
    .await
}

/// Checks that the object says of a pod what the kubelet does, and whether a zone has the memory for it.
async fn checks(
    node: &RealNode,
    object: &ObjectVersion,
    spec: &PodSpec,
    (fits, has_zone): (bool, bool),
    why: &str,
) -> Result<()> {
    let said = says(node, object, spec)?;
    ensure!(!said.is_guess, "{spec} is a guess: {why}");
    ensure!((said.fits, said.has_zone) == (fits, has_zone), "{spec}: {} {}: {why}", said.fits, said.has_zone);
    let outcome = node.try_to_run(spec.clone()).await?;
    ensure!((outcome == PodOutcome::Running) == fits, "{spec}: {outcome:?}, although {why}");
    if !fits {
        node.force_delete(spec.name()).await?;
        node.wait_until_gone(spec.name()).await?;
    }
    Ok(())
}

fn says(node: &RealNode, object: &ObjectVersion, spec: &PodSpec) -> Result<Said> {
    let mut whole = object.content.clone();
    whole["metadata"] = json!({"name": node.name()});
    let object: PublishedObject = serde_json::from_value(whole)?;
    let mut bound = spec.bound_to(node.name())?;
    bound.metadata.namespace = Some(node.namespace().to_owned());
    let request =
        PodRequest::from(&Pod::from_json(&serde_json::to_vec(&bound)?).map_err(anyhow::Error::msg)?);
    let (zones, attributes) = (&object.zones, &object.attributes);
    let mut state = ZoneReader::default().node(zones, attributes, &NodeAmounts::new(), node.minor());
    let guesses = admission::guesses(&state, zones, attributes, &request);
    let memory = request.containers.iter().flat_map(|container| &container.memory);
    let memory: Vec<(&String, &u64)> = memory.collect();
    let has_all = |zone: &numacast::topology::Zone| {
        memory
            .iter()
            .all(|(name, bytes)| zone.resources.get(*name).is_some_and(|has| has.available >= **bytes))
    };
    Ok(Said {
        fits: state.admit(&request).is_ok(),
        is_guess: guesses.contains(&Guess::MemoryGroups),
        has_zone: zones.iter().any(has_all),
    })
}
