//! Cells on simulated kubelets: every described machine with every version and set of policies.

use anyhow::{Context, Result};
use numacast_sim::kubelet::KubeletVersion;

use crate::cell::{Cell, KubeletKind, Outcome, Policies};
use crate::sim_walk;

/// Returns all combinations of machines, versions and policies.
pub(crate) fn cells() -> Result<Vec<Cell>> {
    let mut cells = Vec::new();
    for (name, machine) in sim_walk::machines().map_err(anyhow::Error::msg)? {
        for (version, policies) in sim_walk::variants() {
            cells.push(Cell {
                kind: KubeletKind::Sim,
                machine: name.clone(),
                version: minor(version),
                policies: Some(Policies {
                    cpu: policies.cpus,
                    memory: sim_walk::Cell::new(&name, &machine, version, &policies).memory,
                    topology: policies.topology,
                    scope: policies.scope,
                    option: policies.cpu_options.first().copied(),
                    numeric: false,
                    exclusive_resize: false,
                }),
            });
        }
    }
    Ok(cells)
}

/// Converts `V1_34` to `1.34`.
fn minor(version: KubeletVersion) -> String {
    format!("{version:?}").trim_start_matches('V').replace('_', ".")
}

/// Walks on a thread of its own, since the walk rarely yields.
pub(crate) async fn run(cell: &Cell, steps: usize, seed: u64) -> Outcome {
    let mut outcome = Outcome::new(seed);
    let cell = cell.clone();
    let walked = tokio::task::spawn_blocking(move || walk(&cell, steps, seed)).await;
    match walked.context("the walk panicked").and_then(|walked| walked) {
        Ok(Ok(walked)) => {
            outcome.pods = walked.admitted;
            // The first comparison precedes the first step.
            outcome.steps = walked.compared - 1;
        }
        Ok(Err(difference)) => outcome.differences.push(difference),
        Err(error) => outcome.aborted = Some(format!("{error:#}")),
    }
    outcome
}

fn walk(cell: &Cell, steps: usize, seed: u64) -> Result<Result<sim_walk::Outcome, String>> {
    let machines = sim_walk::machines().map_err(anyhow::Error::msg)?;
    let (name, machine) =
        machines.iter().find(|(name, _)| *name == cell.machine).context("no such machine")?;
    let mut variants = sim_walk::variants().into_iter();
    let wanted = cell.policies.context("a simulated cell without policies")?;
    let is_wanted = |(version, policies): &(KubeletVersion, sim_walk::Policies)| {
        minor(*version) == cell.version && policies.topology == wanted.topology && policies.cpus == wanted.cpu
    };
    let (version, policies) = variants.find(is_wanted).context("no such variant")?;
    let cell = sim_walk::Cell::new(name, machine, version, &policies);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(sim_walk::walk(&cell, steps, seed)))
}
