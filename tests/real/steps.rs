//! After every step of a seeded walk the published object says what the kubelet's own files say. The agent has the rights that
//! the chart gives it, under the chart's admission policies.

use std::io::Write;

use anyhow::Result;
use serde_json::Value;

use crate::support::agent::Agent;
use crate::support::chart;
use crate::support::walk::Walk;
use crate::support::{Cluster, Needs, Parts, RealNode};

/// Steps of one walk.
const STEPS: usize = 36;

#[tokio::test]
async fn two_zones_are_true_after_every_step() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::Kubelet).await? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let mut node = RealNode::on("two-by-eight")?.start(&cluster).await?;
    node.act_as(chart::agent_without_a_pod(&cluster, &parts).await?);
    let agent = Agent::start(&node, &[])?;

    walk(node, agent, 12).go(STEPS).await
}

#[tokio::test]
async fn eight_zones_with_a_hundred_pods_are_true_after_every_step() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::Kubelet).await? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let mut node = RealNode::on("eight-by-sixty-four")?.start(&cluster).await?;
    node.act_as(chart::agent_without_a_pod(&cluster, &parts).await?);
    let agent = Agent::start(&node, &[])?;

    let mut walk = walk(node, agent, 110);
    walk.fill(100).await?;
    walk.go(STEPS).await
}

#[tokio::test]
async fn a_kubelet_without_static_policies_has_every_cpu_for_everyone() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::Kubelet).await? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let mut node = RealNode::on("two-by-eight")?
        .kubelet("cpuManagerPolicy", "none".into())
        .kubelet("memoryManagerPolicy", "None".into())
        .kubelet("topologyManagerPolicy", "none".into())
        .kubelet("reservedSystemCPUs", Value::Null)
        .kubelet("reservedMemory", Value::Null)
        .start(&cluster)
        .await?;
    node.act_as(chart::agent_without_a_pod(&cluster, &parts).await?);
    let agent = Agent::start(&node, &[])?;

    walk(node, agent, 12).go(12).await
}

/// A walk whose seed is given or printed.
fn walk(node: RealNode, agent: Agent, crowd: usize) -> Walk {
    let given = std::env::var("NUMACAST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    // Past the test harness, which keeps what passing tests print to itself.
    let _ = writeln!(std::io::stderr(), "walk on {}: NUMACAST_SEED={seed}", node.name());
    Walk::new(node, agent, crowd, seed)
}
