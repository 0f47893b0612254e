//! numacast on a real cluster: `make e2e`, and the cluster alone: `make cluster`.
//!
//! The cluster is real: etcd, the API server, the controller manager, schedulers, kube-proxy, and kubelets with
//! containerd, runc and CNI plugins. Only the hardware of the nodes is described (`tests/machines`). It runs in
//! namespaces of its own on this machine, so it takes no ports and leaves no network rules behind.

#[path = "../real/support/mod.rs"]
#[allow(dead_code, unused_imports)] // the tests use the rest
mod support;

mod alone;
mod cluster;
mod images;
mod network;
mod outside;
mod platforms;
mod pods;
mod quick_start;
mod steps;
mod table;
mod tools;
mod worker;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

/// Installs numacast by its chart on a real cluster of described machines and does what its users do: pods, upgrades, removed nodes,
/// uninstall. Fails at the first step that does not end as it has to. Needs root; the directory that it prints has all logs.
#[derive(Debug, Parser)]
#[command(name = "e2e")]
struct Options {
    /// The machine of every node, a file of tests/machines without its extension; several are run one after another. By default
    /// two-by-eight and eight-by-sixty-four, with --up and --quick-start only the first.
    #[arg(long, value_name = "NAME")]
    machine: Vec<String>,
    /// The number of nodes.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    nodes: u8,
    /// The archive of the image. By default the one that `make image` made.
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// Only bring up the cluster, with the images loaded, and keep it until interrupted.
    #[arg(long)]
    up: bool,
    /// Only take the steps of docs/quickstart.md, on one node, and write their output into the documents.
    #[arg(long)]
    quick_start: bool,
    /// The seed of the pods, instead of a new one.
    #[arg(long, env = "NUMACAST_SEED")]
    seed: Option<u64>,
    /// The number of pods of random sizes that arrive, two per second.
    #[arg(long, default_value_t = 50)]
    pods: usize,
    /// A value of the chart besides scheduler.enabled; several are possible.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The program is in the namespaces already; the directory of the cluster.
    #[arg(long, hide = true)]
    inside: Option<PathBuf>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode> {
    let options = Options::parse();
    match &options.inside {
        Some(dir) => inside(&options, dir).await,
        None => outside::run(&options).await,
    }
}

/// Brings up the cluster and takes the steps.
async fn inside(options: &Options, dir: &Path) -> Result<ExitCode> {
    let mut cluster = cluster::Cluster::start(options, dir).await?;
    if options.up {
        cluster.keep().await?;
        return Ok(ExitCode::SUCCESS);
    }
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
    table::note(&format!("NUMACAST_SEED={seed}"));
    let tools = cluster.tools.clone();
    let taken = steps::run(&mut cluster, options, seed).await;
    if taken.is_err() {
        tools.describe(&dir.join("failure.txt")).await?;
    }
    taken.map(|()| ExitCode::SUCCESS)
}
