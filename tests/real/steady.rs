//! A node on which nothing changes causes no writes to the API server.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::support::agent::Agent;
use crate::support::wait::{pause, until};
use crate::support::{Cluster, Needs, Observer, Parts, RealNode, pod};

const NRT: &str = "noderesourcetopologies";

#[tokio::test]
async fn a_scan_without_a_change_writes_nothing() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let mut node = RealNode::on("two-by-eight")?.start(&cluster).await?;
    // Zones only: a pod that starts running changes the fingerprint.
    let alone = ["--set", "fingerprint.view=none"];
    let mut agent = Agent::start(&node, &alone)?;
    node.run(pod("a").cpus(2).memory("1Gi").device("example.com/nic", 1)).await?;
    agent.matches_oracle(&node).await?;
    let observer = Observer::start(&node.client(), node.name()).await?;
    let before = cluster.writes_of(NRT).await?;

    for _ in 0..10 {
        touch(&node.kubelet_dir())?;
        // So that each causes a separate scan.
        pause("between two changes", Duration::from_millis(200)).await;
    }
    // A visible change comes last: writes caused by the touched files precede it.
    let mut nics = node.machine().devices[0].devices.clone();
    nics[3].unhealthy = true;
    node.set_devices("example.com/nic", &nics)?;
    agent.matches_oracle(&node).await?;

    let seen = observer.versions().await?;
    ensure!(seen.len() == 2, "ten touches and one change made {} versions", seen.len() - 1);
    ensure!(seen[0].content != seen[1].content);
    // The API server counts a write a moment after responding.
    let writes = until("the API server has counted", async || {
        let writes = cluster.writes_of(NRT).await? - before;
        ensure!(writes > 0, "no write yet");
        Ok(writes)
    })
    .await?;
    ensure!(writes == 1, "ten touches and one change took {writes} writes");
    Ok(())
}

/// Replaces each checkpoint by a copy of itself, as the kubelet writes it.
fn touch(kubelet_dir: &Path) -> Result<()> {
    for file in ["cpu_manager_state", "memory_manager_state", "device-plugins/kubelet_internal_checkpoint"] {
        let path = kubelet_dir.join(file);
        let copy = path.with_file_name(".touched");
        std::fs::copy(&path, &copy)?;
        std::fs::rename(copy, path)?;
    }
    Ok(())
}
