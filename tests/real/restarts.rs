//! A kubelet that restarts: the agent keeps running, and no watcher of the object ever sees resources as
//! available while they are allocated to pods.

use anyhow::{Result, ensure};

use crate::support::agent::Agent;
use crate::support::{Cluster, Needs, Observer, Parts, RealNode, Stop, oracle, pod};

#[tokio::test]
async fn a_restarted_kubelet_never_makes_the_node_look_free() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let mut node = RealNode::on("two-by-eight")?.start(&cluster).await?;
    let mut agent = Agent::start(&node, &[])?;
    let pods = [
        pod("cpus-and-nic").cpus(3).memory("1Gi").device("example.com/nic", 1),
        pod("pages").cpus(1).memory("512Mi").hugepages("2Mi", "128Mi").hugepages("1Gi", "1Gi"),
        pod("bridge").burstable().millicpus(100).memory("64Mi").device("example.com/bridge", 1),
        pod("nothing"),
    ];
    for spec in pods {
        node.run(spec).await?;
    }
    agent.matches_oracle(&node).await?;
    let observer = Observer::start(&node.client(), node.name()).await?;

    for (how, lost_directory) in
        [(Stop::Term, false), (Stop::Kill, false), (Stop::Kill, true), (Stop::Term, true)]
    {
        node.stop_kubelet(how)?;
        if lost_directory {
            node.recreate_pod_resources_dir()?;
        }
        node.start_kubelet().await?;
        agent.matches_oracle(&node).await?;
    }
    // The agent is not stuck: a change is still published.
    let before = oracle::expected(&node).await?;
    nothing_was_overstated(&before, &observer).await?;
    node.run(pod("after").cpus(2).memory("1Gi").device("example.com/nic", 1)).await?;
    agent.matches_oracle(&node).await
}

#[tokio::test]
async fn a_kubelet_that_is_down_for_long_changes_nothing() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let mut node = RealNode::on("two-by-eight")?.start(&cluster).await?;
    let mut agent = Agent::start(&node, &[])?;
    node.run(pod("a").cpus(4).memory("2Gi").device("example.com/nic", 2)).await?;
    agent.matches_oracle(&node).await?;
    let observer = Observer::start(&node.client(), node.name()).await?;
    let truth = oracle::expected(&node).await?;

    node.stop_kubelet(Stop::Kill)?;
    node.recreate_pod_resources_dir()?;
    agent.fails_to_scan(6).await?;
    nothing_was_overstated(&truth, &observer).await?;

    node.start_kubelet().await?;
    agent.matches_oracle(&node).await?;
    nothing_was_overstated(&truth, &observer).await
}

/// Checks that no version that the observer saw would mislead a scheduler.
async fn nothing_was_overstated(truth: &oracle::Expected, observer: &Observer) -> Result<()> {
    for seen in observer.versions().await? {
        let beyond = truth.overstated(&seen.zones);
        ensure!(beyond.is_empty(), "version {}:\n  {}", seen.version, beyond.join("\n  "));
    }
    Ok(())
}
