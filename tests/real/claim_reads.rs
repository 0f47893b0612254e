//! When claims are read: of a driver that returns nothing to the kubelet, only the API server tells what they hold.

use anyhow::{Result, ensure};

use crate::support::agent::Agent;
use crate::support::dra::{Claims, Driver, Pool, device};
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Parts, RealNode, nrt, pod};

const NIC: &str = "dra.net";

/// Waits until this many of the driver's devices are available in each zone.
async fn available(agent: &mut Agent, node: &RealNode, expected: [u64; 2]) -> Result<()> {
    until(&format!("{expected:?} devices are available"), async || {
        agent.still_runs()?;
        let zones = nrt::read(&node.client(), node.name()).await?.zones;
        let found: Vec<u64> = zones.values().map(|zone| zone.get(NIC).map_or(0, |of| of.available)).collect();
        ensure!(found == expected, "{found:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn claims_are_read_as_soon_as_they_are_there_and_again_for_other_pods() -> Result<()> {
    let Some(parts) = Parts::with_dra_driver(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let node = RealNode::on("two-by-eight")?.start(&cluster).await?;
    let on = |name: &str, node: i64| device(name).int("dra.net/numaNode", node);
    let pool = Pool::of("nics").device(on("eth0", 0)).device(on("eth1", 1)).device(on("eth2", 1));
    let driver = Driver::start(&cluster, &node, NIC, &[pool.returns_nothing()]).await?;
    let claims = Claims::of(&node);
    let mut agent = Agent::start(&node, &[])?;
    available(&mut agent, &node, [1, 2]).await?;

    // A claim that does not exist does not delay others, and is read once it does.
    claims.submit_before_its_claims(&pod("early").claim("late")).await?;
    claims.create("ready", vec![driver.allocated("nics", "eth0")]).await?;
    claims.run(&node, pod("user").claim("ready")).await?;
    available(&mut agent, &node, [0, 2]).await?;
    claims.create("late", vec![driver.allocated("nics", "eth1")]).await?;
    claims.allocate_for("late", "early").await?;
    available(&mut agent, &node, [0, 1]).await?;

    // The agent misses that a claim was allocated anew for another pod of the same name.
    agent.signal("STOP")?;
    node.delete("user").await?;
    claims.deallocate("ready").await?;
    claims.plan("ready", vec![driver.allocated("nics", "eth2")]);
    claims.run(&node, pod("user").claim("ready")).await?;
    agent.signal("CONT")?;
    available(&mut agent, &node, [1, 0]).await?;

    // It is read at the start before anything is published.
    agent.end().await?;
    let mut agent = Agent::start(&node, &[])?;
    node.delete("early").await?;
    claims.deallocate("late").await?;
    available(&mut agent, &node, [1, 1]).await?;
    driver.stop()
}
