//! An event storm in the kubelet's directories.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use numacast_sim::kubelet::{Options, PodSpec};

use crate::agent::Agent;

/// The agent's budget of Lists.
const LISTS_PER_SECOND: f64 = 10.0;
const LIST_BURST: f64 = 4.0;
/// Limit of CPU time as a share of a core.
const CPU_LIMIT: f64 = 0.1;
/// File events per round of the storm: a file is created and renamed; another is created and removed.
const EVENTS_PER_ROUND: u64 = 4;

/// Runs the storm; returns whether the agent stayed within its limits.
pub(crate) async fn run(binary: &Path, per_second: u64, length: Duration) -> Result<bool> {
    let mut agent = Agent::start(binary, Options::default(), &[]).await?;
    agent.node.kubelet.start_pod(PodSpec::guaranteed("before", 2, 1 << 30)).await?;
    agent.wait_until_correct().await?;
    let root = agent.node.kubelet.root().to_owned();
    let (cpu, lists, start) = (agent.cpu()?, agent.node.kubelet.calls().list, Instant::now());
    let rounds = tokio::task::spawn_blocking(move || cause_events(&root, per_second, length)).await??;
    let took = start.elapsed().as_secs_f64();
    let cpu = (agent.cpu()? - cpu).as_secs_f64() / took;
    let lists = (agent.node.kubelet.calls().list - lists) as f64;
    let budget = LISTS_PER_SECOND.mul_add(took, LIST_BURST);
    let sample = agent.sample()?;
    // After the storm, a change is detected as usual.
    agent.node.kubelet.start_pod(PodSpec::guaranteed("after", 2, 1 << 30)).await?;
    let after = agent.wait_until_correct().await?;
    let reached = (rounds * EVENTS_PER_ROUND) as f64 / took;
    let within_limits = cpu <= CPU_LIMIT && lists <= budget && reached >= 0.95 * per_second as f64;
    let mut out = std::io::stdout().lock();
    writeln!(out, "storm: {reached:.0} file events per second for {took:.1} s (wanted {per_second})")?;
    writeln!(out, "  the agent's CPU     {:.2} % of a core (limit {:.0} %)", cpu * 100.0, CPU_LIMIT * 100.0)?;
    writeln!(out, "  Lists               {lists} (limit {budget:.0})")?;
    writeln!(out, "  RSS                 {} KiB, {} of them anonymous", sample.rss, sample.anonymous)?;
    writeln!(out, "  a change afterwards {} ms", after.as_millis())?;
    writeln!(out, "  {}", if within_limits { "within the limits" } else { "OVER the limits" })?;
    Ok(within_limits)
}

/// Rewrites the checkpoints as the kubelet does, with unchanged contents, and creates and removes a socket
/// beside them.
fn cause_events(root: &Path, per_second: u64, length: Duration) -> Result<u64> {
    let names = ["cpu_manager_state", "memory_manager_state"];
    let contents = names.map(|name| std::fs::read(root.join(name)).with_context(|| name.to_owned()));
    let temporary = root.join(".storm");
    let socket = root.join("device-plugins/storm.sock");
    let pause = Duration::from_secs(EVENTS_PER_ROUND) / u32::try_from(per_second)?;
    let start = Instant::now();
    let mut rounds: u64 = 0;
    while start.elapsed() < length {
        let at = usize::from(rounds % 2 == 1);
        std::fs::write(&temporary, contents[at].as_ref().map_err(|e| anyhow::anyhow!("{e:#}"))?)?;
        std::fs::rename(&temporary, root.join(names[at]))?;
        wait_until(start + pause * u32::try_from(rounds)? + pause / 2);
        std::fs::write(&socket, "")?;
        std::fs::remove_file(&socket)?;
        rounds += 1;
        wait_until(start + pause * u32::try_from(rounds)?);
    }
    Ok(rounds)
}

fn wait_until(instant: Instant) {
    std::thread::sleep(instant.saturating_duration_since(Instant::now()));
}
