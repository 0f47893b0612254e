//! Pods with pod-level CPUs and memory, on a kubelet with the feature gate PodLevelResourceManagers: their
//! resources count once, though the List has them for the pod and for its containers.

use anyhow::{Context, Result, ensure};
use numacast::kubelet::{CheckpointPaths, read_checkpoints};

use crate::support::agent::Agent;
use crate::support::nrt::{self, ObjectVersion};
use crate::support::pods::pod;
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Parts, RealNode};

const GIB: u64 = 1 << 30;

#[tokio::test]
async fn a_pod_placed_as_a_whole_counts_once() -> Result<()> {
    // The other three CPUs and 2 GiB are for the helper, and not shared with other pods.
    check("pod", (5, 3 * GIB), Some(5)).await
}

#[tokio::test]
async fn a_pod_whose_containers_are_placed_one_by_one_counts_what_they_have() -> Result<()> {
    check("container", (2, GIB), None).await
}

/// Checks what a pod with one exclusive container and one that shares the rest is allocated, and how many
/// pod-level CPUs the CPU Manager's checkpoint has for it.
async fn check(scope: &str, (cpus, memory): (u64, u64), written: Option<usize>) -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let node = RealNode::on("two-by-eight")?
        .kubelet("topologyManagerPolicy", "single-numa-node".into())
        .kubelet("topologyManagerScope", scope.into())
        .gate("PodLevelResourceManagers")
        .start(&cluster)
        .await?;
    let _agent = Agent::start(&node, &[])?;
    let all = available_is(&node, None).await?;
    node.run(pod("whole").pod_level_resources(5, "3Gi").cpus(2).memory("1Gi").container("helper")).await?;
    available_is(&node, Some((all.0 - cpus, all.1 - memory))).await?;

    let dir = node.kubelet_dir();
    let (checkpoints, errors) = read_checkpoints(&CheckpointPaths::new(&dir, &dir.join("device-plugins")));
    ensure!(errors.is_empty(), "{errors:?}");
    let of_pods = checkpoints.context("no checkpoints")?.pods;
    let whole = of_pods.values().flatten().find(|container| container.name.is_empty());
    ensure!(whole.map(|whole| whole.cpus.iter().count()) == written, "{of_pods:?}");

    node.delete("whole").await?;
    available_is(&node, Some(all)).await?;
    Ok(())
}

/// Waits until all zones together have these CPUs and this memory available, and returns both.
async fn available_is(node: &RealNode, expected: Option<(u64, u64)>) -> Result<(u64, u64)> {
    until(&format!("the object has {expected:?} free"), async || {
        node.kubelet_still_runs()?;
        let seen = nrt::read(&node.client(), node.name()).await?;
        let free = (sum(&seen, "cpu"), sum(&seen, "memory"));
        ensure!(expected.is_none_or(|expected| free == expected), "it has {free:?}");
        Ok(free)
    })
    .await
}

fn sum(seen: &ObjectVersion, resource: &str) -> u64 {
    seen.zones.values().filter_map(|zone| zone.get(resource)).map(|figures| figures.available).sum()
}
