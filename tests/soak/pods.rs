//! Memory of the agent with many pods.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use numacast_sim::api_server::PODS;
use numacast_sim::kubelet::{Options, PodSpec};
use serde_json::{Value, json};

use crate::agent::{Agent, NODE};

/// Number of pods.
const PODS_ON_NODE: usize = 500;
/// Limit of resident memory with that many pods, KiB.
const LIMIT: u64 = 12 << 10;
/// How often each pod changes and all are listed again.
const ROUNDS: usize = 5;

/// Fills a node; returns whether the agent stayed within its limit.
pub(crate) async fn run(binary: &Path) -> Result<bool> {
    let options = Options { limited: false, release_lag: Duration::ZERO, ..Options::default() };
    let mut agent = Agent::start_on("eight-by-sixty-four", binary, options, &[]).await?;
    let empty = agent.sample()?;
    let specs: Vec<PodSpec> = (0..PODS_ON_NODE).map(spec).collect();
    for spec in &specs {
        agent.node.server.put(&PODS, large(spec, 0))?;
        agent.node.kubelet.start_pod(spec.clone()).await?;
    }
    agent.wait_until_correct().await?;
    pause().await;
    let listed = agent.sample()?;
    for round in 1..=ROUNDS {
        for spec in &specs {
            agent.node.server.put(&PODS, large(spec, round))?;
        }
        pause().await;
        // The history of the missed changes is compacted, which forces a new list.
        agent.node.server.compact_history();
        agent.node.server.cut_connections();
        pause().await;
    }
    agent.wait_until_correct().await?;
    let changed = agent.sample()?;
    let size = large(specs.first().context("no pods")?, 0).to_string().len();
    let within_limit = listed.rss <= LIMIT && changed.rss <= LIMIT;
    let mut out = std::io::stdout().lock();
    writeln!(out, "pods: {PODS_ON_NODE} pods of {size} bytes each, on a node of 512 CPUs")?;
    for (when, sample) in [("without pods", empty), ("listed", listed), ("after changes", changed)] {
        writeln!(
            out,
            "  {when:<14} {} KiB resident, {} of them anonymous, {} at most (limit {LIMIT})",
            sample.rss, sample.anonymous, sample.peak
        )?;
    }
    writeln!(out, "  {}", if within_limit { "within the limit" } else { "OVER the limit" })?;
    Ok(within_limit)
}

/// Gives the agent five seconds to process all events.
async fn pause() {
    tokio::time::sleep(Duration::from_secs(5)).await;
}

/// Returns a pod; every second one has an exclusive CPU.
fn spec(index: usize) -> PodSpec {
    let name = format!("user-plane-function-7d9c5b6f8d-{index:05}");
    if index.is_multiple_of(2) { PodSpec::new(&name) } else { PodSpec::guaranteed(&name, 1, 64 << 20) }
}

/// Returns the pod's object, of a realistic size.
fn large(spec: &PodSpec, round: usize) -> Value {
    let mut object = spec.object(NODE, "Running");
    object["metadata"]["annotations"] = json!({
        "kubectl.kubernetes.io/last-applied-configuration": "y".repeat(3000),
        "round": round.to_string(),
    });
    object["metadata"]["managedFields"] =
        json!([{"manager": "kubelet", "fieldsV1": {"f:status": "z".repeat(2000)}}]);
    let variables: Vec<Value> =
        (0..40).map(|n| json!({"name": format!("VARIABLE_{n}"), "value": "x".repeat(60)})).collect();
    for container in object["spec"]["containers"].as_array_mut().into_iter().flatten() {
        container["env"] = json!(variables);
    }
    object
}
