//! What the model of the kubelet's admission says about random pods, and what real kubelets do with them.
//!
//! `make admission` runs everything; `cargo test --test admission -- --help` lists the options. In each cell, a
//! kubelet on a described machine gets pods of every kind, one after another. Before each pod, the model
//! decides from what is on the node (with ids) and from the published amounts alone; afterwards both answers
//! are compared with the kubelet's.

#[path = "../real/support/mod.rs"]
#[allow(dead_code, unused_imports)] // the rest is for tests/real
mod support;

mod cell;
mod compare;
mod pods;
mod predict;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use fastrand::Rng;
use futures::StreamExt;

use cell::Cell;
use compare::Tally;
use support::{Cluster, Needs, Parts, parts};

/// Predictions of the kubelet's admission, compared with real kubelets.
#[derive(Debug, Parser)]
#[command(name = "admission")]
struct Options {
    /// Kubelets to start.
    #[arg(long, default_value_t = 120)]
    cells: usize,
    /// Pods that each of them gets.
    #[arg(long, default_value_t = 30)]
    pods: usize,
    /// The seed of the whole run, instead of a new one.
    #[arg(long, env = "NUMACAST_SEED")]
    seed: Option<u64>,
    /// Only cells whose row contains this text, such as `1.34` or `restricted pod`.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Number of kubelets that run at the same time.
    #[arg(long, default_value_t = 4)]
    jobs: usize,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
    writeln!(std::io::stderr(), "NUMACAST_SEED={seed}")?;
    let mut random = Rng::with_seed(seed);
    let mut cells: Vec<(usize, Cell, u64)> = cell::all(options.cells, &mut random)
        .into_iter()
        .enumerate()
        .map(|(index, cell)| (index, cell, random.u64(..)))
        .collect();
    if let Some(text) = &options.only {
        cells.retain(|(_, cell, _)| cell.to_string().contains(text.as_str()));
    }
    ensure!(!cells.is_empty(), "no cell contains this text");
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { bail!("the real parts cannot run here") };
    for (_, cell, _) in &cells {
        parts::program_of(cell.version, "kubelet")?;
    }
    let cluster = Cluster::start(&parts).await?;
    let tally = run(cells, &options, &cluster).await?;
    write!(std::io::stdout(), "{tally}")?;
    Ok(if tally.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn run(cells: Vec<(usize, Cell, u64)>, options: &Options, cluster: &Cluster) -> Result<Tally> {
    let total = cells.len();
    let walks = cells.into_iter().map(async |(index, cell, seed)| {
        let tally = compare::run(&cell, index, cluster, options.pods, seed).await;
        (cell, tally.with_context(|| format!("cell {index}")))
    });
    let mut walks = futures::stream::iter(walks).buffer_unordered(options.jobs.max(1));
    let mut sum = Tally::default();
    let mut done = 0;
    while let Some((cell, tally)) = walks.next().await {
        done += 1;
        match tally {
            Ok(tally) => {
                writeln!(std::io::stderr(), "{done}/{total} {cell}: {}", tally.summary())?;
                let lines = tally.differences.iter().map(|line| format!("difference: {line}"));
                let notes = tally.notes.iter().map(|line| format!("note: {line}"));
                lines.chain(notes).try_for_each(|line| writeln!(std::io::stderr(), "  {line}"))?;
                sum.add(tally);
            }
            Err(error) => {
                writeln!(std::io::stderr(), "{done}/{total} {cell}: aborted: {error:#}")?;
                sum.aborted += 1;
            }
        }
    }
    Ok(sum)
}
