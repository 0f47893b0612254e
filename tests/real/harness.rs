//! Tests of the test components, without the agent: the kubelet behaves as the other tests assume, and the
//! oracle reflects it.

use anyhow::{Result, ensure};
use numacast_sim::machine::Device;

use crate::support::node::PodOutcome;
use crate::support::nrt::Figures;
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Parts, RealNode, Stop, oracle, pod};

const NIC: &str = "example.com/nic";

#[tokio::test]
async fn the_oracle_follows_a_real_kubelet() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let mut node = RealNode::on("two-by-eight")?.start(&cluster).await?;

    let at_first = oracle::expected(&node).await?;
    ensure!(at_first.figures("node-0", "cpu")? == Figures { capacity: 8, allocatable: 7, available: 7 });
    ensure!(at_first.figures("node-1", NIC)? == Figures { capacity: 2, allocatable: 2, available: 2 });

    node.run(pod("a").cpus(2).memory("1Gi").hugepages("2Mi", "64Mi").device(NIC, 1)).await?;
    let with_a = oracle::expected(&node).await?;
    ensure!(free(&with_a, "cpu")? == 12 && free(&with_a, NIC)? == 3);
    ensure!(free(&with_a, "hugepages-2Mi")? == (1024 - 32) << 21);
    ensure!(free(&with_a, "memory")? + (1 << 30) == free(&at_first, "memory")?);

    ensure!(node.try_to_run(pod("greedy").cpus(14).memory("1Gi")).await? != PodOutcome::Running);
    let before = with_a.figures("node-0", "cpu")?;
    let now = oracle::expected(&node).await?.figures("node-0", "cpu")?;
    ensure!(now == before, "a rejected pod was allocated CPUs");

    node.restart_kubelet(Stop::Kill).await?;
    ensure!(free(&oracle::expected(&node).await?, "cpu")? == 12);

    // All of them stay listed: a kubelet that starts panics if a device in use is missing from its plugin's
    // list.
    let unhealthy = |device: &Device| Device { unhealthy: true, ..device.clone() };
    let nics: Vec<Device> = node.machine().devices[0].devices.iter().map(unhealthy).collect();
    node.set_devices(NIC, &nics)?;
    until("only devices in use are left", async || {
        let now = oracle::expected(&node).await?;
        let (zone_0, zone_1) = (now.figures("node-0", NIC)?, now.figures("node-1", NIC)?);
        ensure!(zone_0.allocatable + zone_1.allocatable == 0, "{zone_0:?}, {zone_1:?}");
        ensure!(zone_0.capacity + zone_1.capacity == 1, "{zone_0:?}, {zone_1:?}");
        Ok(())
    })
    .await?;

    node.finish("a", 1).await?;
    ensure!(
        free(&oracle::expected(&node).await?, "cpu")? == 14,
        "CPUs stay allocated to a pod that has ended"
    );
    node.delete("a").await?;
    node.delete("greedy").await
}

#[tokio::test]
async fn the_oracle_adds_up_what_a_pod_has_on_two_nodes() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let node = RealNode::on("two-by-eight")?.start(&cluster).await?;
    let at_first = free(&oracle::expected(&node).await?, "memory")?;

    node.run(pod("wide").cpus(1).memory("14Gi")).await?;
    ensure!(free(&oracle::expected(&node).await?, "memory")? + (14 << 30) == at_first);
    // NUMA nodes that serve a multi-node allocation no longer serve single-node ones: this spans both, small
    // as it is.
    node.run(pod("narrow").cpus(1).memory("1Gi")).await?;
    ensure!(free(&oracle::expected(&node).await?, "memory")? + (15 << 30) == at_first);
    node.delete("wide").await?;
    ensure!(free(&oracle::expected(&node).await?, "memory")? + (1 << 30) == at_first);
    node.delete("narrow").await
}

#[tokio::test]
async fn the_oracle_counts_what_stays_allocated_to_init_containers() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let mut node = RealNode::on("two-by-eight")?.start(&cluster).await?;
    let at_first = free_of(&node).await?;

    // CPUs and devices of the init container stay with the pod, even though the main container reuses none of
    // the CPUs: it prefers the sibling of the reserved CPU 0. Memory does not stay.
    let larger = pod("larger").cpus(1).memory("1Gi").init("first").cpus(4).memory("3Gi").device(NIC, 2);
    node.run(larger).await?;
    ensure!(free_of(&node).await? == at_first.less(5, 1 << 30, 2));
    node.delete("larger").await?;
    ensure!(free_of(&node).await? == at_first);

    // Only the init container has exclusive CPUs: the List does not contain them.
    node.run(pod("fraction").millicpus(500).memory("1Gi").init("first").cpus(3).memory("1Gi")).await?;
    ensure!(free_of(&node).await? == at_first.less(3, 1 << 30, 0));

    // A restarted kubelet finds no memory for an init container that has ended, and allocates some.
    node.restart_kubelet(Stop::Kill).await?;
    until("the kubelet has admitted the pod again", async || {
        let now = free_of(&node).await?;
        ensure!(now == at_first.less(3, 2 << 30, 0), "{now:?}");
        Ok(())
    })
    .await?;
    node.delete("fraction").await
}

/// Returns what is available in both zones together.
fn free(expected: &oracle::Expected, resource: &str) -> Result<u64> {
    let (zone_0, zone_1) = (expected.figures("node-0", resource)?, expected.figures("node-1", resource)?);
    Ok(zone_0.available + zone_1.available)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Free {
    cpus: u64,
    memory: u64,
    nics: u64,
}

impl Free {
    fn less(self, cpus: u64, memory: u64, nics: u64) -> Self {
        Self { cpus: self.cpus - cpus, memory: self.memory - memory, nics: self.nics - nics }
    }
}

async fn free_of(node: &RealNode) -> Result<Free> {
    let now = oracle::expected(node).await?;
    Ok(Free { cpus: free(&now, "cpu")?, memory: free(&now, "memory")?, nics: free(&now, NIC)? })
}
