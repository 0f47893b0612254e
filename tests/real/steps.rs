//! After every step of a seeded random walk the published object matches the kubelet's own state files. The
//! agent has the chart's rights, under the chart's admission policies.

use anyhow::Result;
use serde_json::Value;

use crate::support::agent::Agent;
use crate::support::chart;
use crate::support::walk::Walk;
use crate::support::{Cluster, Needs, Parts, RealNode, seed};

/// Steps of one walk.
const STEPS: usize = 36;

#[tokio::test]
async fn two_zones_are_correct_after_every_step() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let mut node = RealNode::on("two-by-eight")?.start(&cluster).await?;
    node.set_agent_kubeconfig(chart::agent_without_a_pod(&cluster, &parts).await?);
    let agent = Agent::start(&node, &[])?;

    walk(node, agent, 12).run(STEPS).await
}

#[tokio::test]
async fn eight_zones_with_a_hundred_pods_are_correct_after_every_step() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let mut node = RealNode::on("eight-by-sixty-four")?.start(&cluster).await?;
    node.set_agent_kubeconfig(chart::agent_without_a_pod(&cluster, &parts).await?);
    let agent = Agent::start(&node, &[])?;

    let mut walk = walk(node, agent, 110);
    walk.fill(100).await?;
    walk.run(STEPS).await
}

#[tokio::test]
async fn without_static_policies_every_cpu_is_available() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let mut node = RealNode::on("two-by-eight")?
        .kubelet("cpuManagerPolicy", "none".into())
        .kubelet("memoryManagerPolicy", "None".into())
        .kubelet("topologyManagerPolicy", "none".into())
        .kubelet("reservedSystemCPUs", Value::Null)
        .kubelet("reservedMemory", Value::Null)
        .start(&cluster)
        .await?;
    node.set_agent_kubeconfig(chart::agent_without_a_pod(&cluster, &parts).await?);
    let agent = Agent::start(&node, &[])?;

    walk(node, agent, 12).run(12).await
}

/// Returns a walk with the seed `NUMACAST_SEED`, or a random one, and prints the seed.
fn walk(node: RealNode, agent: Agent, max_pods: usize) -> Walk {
    let seed = seed(&format!("walk on {}", node.name()));
    Walk::new(node, agent, max_pods, seed)
}
