//! The long form of the random walks: cells of machine x kubelet version x policies, and a table of results.
//!
//! `make matrix` runs everything; `cargo test --test matrix -- --help` lists the options. In each cell a
//! seeded walk covers everything that changes the node's available resources. After each step the published
//! object must equal an oracle that shares no code with the agent.

#[path = "../real/support/mod.rs"]
#[allow(dead_code, unused_imports)] // the rest is for tests/real
mod support;

#[path = "../sim/walk/mod.rs"]
mod sim_walk;

mod cell;
mod real;
mod sim;
mod table;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use clap::Parser;
use futures::StreamExt;

use cell::{Cell, KubeletKind, Outcome};
use support::{Cluster, Needs, Parts};

/// Random walks over machines, kubelets and policies, with a table of results.
#[derive(Debug, Parser)]
#[command(name = "matrix")]
struct Options {
    /// Only the cells on real kubelets.
    #[arg(long, conflicts_with = "sim")]
    real: bool,
    /// Only the cells on simulated kubelets.
    #[arg(long)]
    sim: bool,
    /// Steps of each walk on a real kubelet.
    #[arg(long, default_value_t = 30)]
    steps: usize,
    /// Steps of each walk on a simulated kubelet.
    #[arg(long, default_value_t = 525)]
    sim_steps: usize,
    /// The seed of every walk, instead of a new one for each.
    #[arg(long, env = "NUMACAST_SEED")]
    seed: Option<u64>,
    /// Only cells whose row contains this text, such as `1.33` or `cxl 1.36 static`.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Number of walks that run at the same time.
    #[arg(long, default_value_t = 4)]
    jobs: usize,
    /// Only list the cells.
    #[arg(long)]
    list: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let cells = select_cells(&options)?;
    if options.list {
        let mut out = std::io::stdout().lock();
        cells.iter().try_for_each(|cell| writeln!(out, "{cell}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let (real, sim) = cells.into_iter().partition(|cell: &Cell| cell.kind == KubeletKind::Real);
    let mut rows = run(sim, &options, None).await?;
    let cluster = match real.is_empty() {
        true => None,
        false => Some(cluster(&real).await?),
    };
    rows.splice(..0, run(real, &options, cluster.as_ref().map(|(cluster, _)| cluster)).await?);
    // Printed before the cluster is dropped: its directory has a /sys for each machine, which takes a while
    // to remove.
    write!(std::io::stdout(), "{}", table::Table(&rows))?;
    Ok(if rows.iter().all(|(_, outcome)| outcome.is_good()) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Starts the cluster that cells on real kubelets need. The parts must be kept as long.
async fn cluster(cells: &[Cell]) -> Result<(Cluster, Parts)> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { bail!("the real parts cannot run here") };
    real::build_kubelets(cells)?;
    Ok((Cluster::start(&parts).await?, parts))
}

fn select_cells(options: &Options) -> Result<Vec<Cell>> {
    let mut cells = Vec::new();
    if !options.sim {
        cells.extend(real::cells()?);
    }
    if !options.real {
        cells.extend(sim::cells()?);
    }
    if let Some(text) = &options.only {
        cells.retain(|cell| cell.to_string().contains(text.as_str()));
    }
    ensure!(!cells.is_empty(), "no cell matches; `--list` without other options lists all");
    Ok(cells)
}

/// Runs the cells concurrently and returns them in their original order.
async fn run(cells: Vec<Cell>, options: &Options, cluster: Option<&Cluster>) -> Result<Vec<(Cell, Outcome)>> {
    let total = cells.len();
    let walks = cells.into_iter().enumerate().map(async |(index, cell)| {
        let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
        let outcome = match cluster {
            Some(cluster) => real::run(&cell, index, cluster, options.steps, seed).await,
            None => sim::run(&cell, options.sim_steps, seed).await,
        };
        (index, cell, outcome)
    });
    let mut walks = futures::stream::iter(walks).buffer_unordered(options.jobs.max(1));
    let mut rows = Vec::new();
    while let Some((index, cell, outcome)) = walks.next().await {
        writeln!(std::io::stderr(), "{}/{total} {cell}: {outcome}", rows.len() + 1)?;
        rows.push((index, cell, outcome));
    }
    rows.sort_by_key(|(index, ..)| *index);
    Ok(rows.into_iter().map(|(_, cell, outcome)| (cell, outcome)).collect())
}
