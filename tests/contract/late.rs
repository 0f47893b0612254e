//! What happens to a pod that fits no zone, on a node whose object was created after the scheduler started
//! (scheduler-plugins issue 967).

use std::fmt;
use std::path::Path;

use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;

use crate::exporter::Exporter;
use crate::node;
use crate::rows::{self, Row};
use crate::scheduler::{self, Cache, Scheduler, Setup};
use crate::support::wait::until;
use crate::support::{Cluster, Parts, RealNode, pod};

/// More CPUs than one of the two zones has, but fewer than both.
const CPUS: u32 = 10;

/// What happens to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PodOutcome {
    /// The plugin filtered the node.
    Filtered,
    /// The pod was bound to the node, and the kubelet rejected it.
    Rejected,
}

impl fmt::Display for PodOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Filtered => "stays pending",
            Self::Rejected => "bound to the node, rejected by the kubelet",
        })
    }
}

/// Returns a table with each of the plugin's caches, and whether it matches docs/scheduler.md.
pub(crate) async fn table(parts: &Parts, binary: &Path) -> Result<(String, bool)> {
    let mut table = "| cache | the object is newer than the scheduler | after a restart of the scheduler |\n|---|---|---|\n".to_owned();
    let mut as_documented = true;
    for cache in [Cache::OverReserve, Cache::DiscardReserved, Cache::Passthrough] {
        let [late, restarted] = of(parts, binary, cache).await?;
        table += &format!("| `{cache:?}` | {late} | {restarted} |\n");
        let expected = if cache.is_direct() { PodOutcome::Filtered } else { PodOutcome::Rejected };
        as_documented &= [late, restarted] == [expected, PodOutcome::Filtered];
    }
    Ok((table, as_documented))
}

async fn of(parts: &Parts, binary: &Path, cache: Cache) -> Result<[PodOutcome; 2]> {
    let cluster = Cluster::start(parts).await?;
    let node = node(&cluster).await?;
    node.run(pod("agent")).await?;
    let Row { clocks, .. } = rows::ALL[0];
    let setup = Setup { cache, clocks, informer: "Dedicated".to_owned() };
    let program = parts.program("scheduler");
    let first = Scheduler::start(&program, &cluster, &setup).await?;
    let settings: &[&str] = if cache.is_direct() { &["consumer=schedulerPluginsDirect"] } else { &[] };
    let exporter = Exporter::Numacast(Vec::new());
    let _running = exporter.start(&binary.to_owned(), &cluster, &node, settings).await?;
    let late = outcome(&node, "late").await?;
    drop(first);
    let second = Scheduler::start(&program, &cluster, &setup).await?;
    second.first_flush(&setup).await?;
    Ok([late, outcome(&node, "restarted").await?])
}

/// Creates a pod of this name and waits for its outcome.
async fn outcome(node: &RealNode, name: &str) -> Result<PodOutcome> {
    let api: Api<Pod> = Api::default_namespaced(node.client());
    let wide = pod(name).cpus(CPUS).memory("64Mi").scheduled_by(scheduler::NAME)?;
    api.create(&PostParams::default(), &wide).await?;
    until(&format!("{name} is filtered or rejected"), async || {
        let status = api.get(name).await?.status.unwrap_or_default();
        let messages =
            status.conditions.iter().flatten().filter_map(|condition| condition.message.as_deref());
        let filtered = messages.into_iter().any(|message| message.contains("cannot align"));
        let rejected = status.reason.as_deref() == Some("TopologyAffinityError");
        match (filtered, rejected, status.phase.as_deref()) {
            (true, ..) => Ok(PodOutcome::Filtered),
            (_, true, _) => Ok(PodOutcome::Rejected),
            (.., Some("Running")) => bail!("it runs, on two zones"),
            (.., phase) => bail!("it is {phase:?}, without a reason"),
        }
    })
    .await
}
