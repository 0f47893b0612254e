//! A node on which nothing changes costs the API server nothing.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::support::agent::Agent;
use crate::support::{Cluster, Needs, Observer, Parts, RealNode, pod};

#[tokio::test]
async fn a_scan_without_a_change_writes_nothing() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet).await? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let mut node = RealNode::on("two-by-eight")?.start(&cluster).await?;
    let mut agent = Agent::start(&node, &[])?;
    node.run(pod("holder").cpus(2).memory("1Gi").device("example.com/nic", 1)).await?;
    agent.tells_the_truth(&node).await?;
    let observer = Observer::start(&node.client(), node.name()).await?;

    for _ in 0..10 {
        poke(&node.kubelet_dir())?;
        // Apart, so that each makes a scan of its own.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    // A change that shows ends the story: whatever the pokes caused was written before it.
    let mut nics = node.machine().devices[0].devices.clone();
    nics.truncate(3);
    node.set_devices("example.com/nic", &nics)?;
    agent.tells_the_truth(&node).await?;

    let seen = observer.everything_so_far().await?;
    for pair in seen.windows(2) {
        ensure!(pair[0].content != pair[1].content, "version {} changes nothing", pair[1].version);
    }
    ensure!(seen.len() == 2, "ten pokes and one change made {} versions", seen.len() - 1);
    Ok(())
}

/// Replaces each state file by itself, in the way in which the kubelet writes it.
fn poke(kubelet_dir: &Path) -> Result<()> {
    for file in ["cpu_manager_state", "memory_manager_state", "device-plugins/kubelet_internal_checkpoint"] {
        let path = kubelet_dir.join(file);
        let copy = path.with_file_name(".poke");
        std::fs::copy(&path, &copy)?;
        std::fs::rename(copy, path)?;
    }
    Ok(())
}
