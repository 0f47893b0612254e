//! The real binary under load for a long time: `make soak`.
//!
//! - `changes`: a million changes on a simulated node with a simulated API server, at most 2,000 per second
//!   (`--rate`); the object must stay correct, and memory, descriptors and threads must not grow.
//! - `storm`: 10,000 file events per second in the kubelet's directories; the agent may use a tenth of a core
//!   and no more Lists than its budget.
//! - `pods`: 500 pods of some 10 KiB each on a node of 512 CPUs, listed, changed one by one and listed again;
//!   the agent must cache them within its memory budget.
//! - `probes`: 1,000 idle or slow connections; every probe must get a response within a second.

mod agent;
mod changes;
mod pods;
mod probes;
mod storm;
#[allow(dead_code)] // the other load programs use the rest
mod usage;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};

/// The real binary under load for a long time.
#[derive(Debug, Parser)]
#[command(name = "soak")]
struct Options {
    /// Only this part.
    #[arg(long)]
    only: Option<Part>,
    /// The binary; without it the one that cargo built for tests.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Changes of the soak.
    #[arg(long, default_value_t = 1_000_000)]
    changes: u64,
    /// Changes per second, at most.
    #[arg(long, default_value_t = 2_000)]
    rate: u64,
    /// The seed, instead of a new one (`NUMACAST_SEED`).
    #[arg(long, env = "NUMACAST_SEED")]
    seed: Option<u64>,
    /// Events per second of the storm.
    #[arg(long, default_value_t = 10_000)]
    events: u64,
    /// Seconds of the storm.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Many changes, flat memory.
    Changes,
    /// Many file events, little work.
    Storm,
    /// Many pods, little memory.
    Pods,
    /// Many connections, and probes with responses.
    Probes,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let built = || PathBuf::from(env!("CARGO_BIN_EXE_numacast"));
    let binary = options.binary.clone().unwrap_or_else(built);
    ensure!(binary.is_file(), "there is no binary at {}", binary.display());
    let wanted = |part| options.only.is_none_or(|only| only == part);
    let mut within_limits = true;
    if wanted(Part::Storm) {
        within_limits &= storm::run(&binary, options.events, Duration::from_secs(options.seconds)).await?;
    }
    if wanted(Part::Pods) {
        within_limits &= pods::run(&binary).await?;
    }
    if wanted(Part::Probes) {
        within_limits &= probes::run(&binary).await?;
    }
    if wanted(Part::Changes) {
        let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
        within_limits &= changes::run(&binary, options.changes, options.rate, seed).await?;
    }
    Ok(if within_limits { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
