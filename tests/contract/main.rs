//! The contract with the scheduler, with real components: `make contract`.
//!
//! A real kube-scheduler with the real NodeResourceTopologyMatch plugin schedules short-lived pods to a real
//! kubelet, based on what the exporter under test publishes to a real API server.

#[path = "../real/support/mod.rs"]
#[allow(dead_code, unused_imports)] // the tests use the rest
mod support;

mod binds;
mod events;
mod exporter;
mod ideal;
mod late;
mod load;
mod rows;
mod run;
mod scheduler;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use fastrand::Rng;

use exporter::Exporter;
use rows::Row;
use run::{Run, Total};
use scheduler::Clocks;
use support::{Cluster, Needs, Parts, RealNode};

/// A closed loop of short pods between a real scheduler and a real kubelet, with one table at the end. It fails if numacast exceeds a
/// limit: with the overreserving cache at most 2 % of the pods are rejected, and each of them was placed by an object that the plugin
/// read less than 75 ms after a bind; with a direct cache and reservations at least 90 % of the CPUs that could be busy are, and with
/// DiscardReserved at most 4 % of the pods are rejected; and in no run may 45 s pass without a pod starting.
#[derive(Debug, Parser)]
#[command(name = "contract")]
struct Options {
    /// Only rows whose name contains this text; several are possible. `--list` prints the names.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Runs of each row, each with the seed after the one before.
    #[arg(long)]
    seeds: Option<u64>,
    /// How long each run is, in seconds.
    #[arg(long)]
    seconds: Option<u64>,
    /// The first seed, instead of a new one.
    #[arg(long, env = "NUMACAST_SEED")]
    seed: Option<u64>,
    /// Who publishes: `numacast`, `numacast KEY=VALUE...`, `none`, or `NAME: COMMAND`, a command that is run on the
    /// described machine with NODE_NAME, KUBECONFIG and KUBELET_CONFIG; several are run one after another. numacast's
    /// controller runs beside its agent.
    #[arg(long, value_name = "WHO", default_value = "numacast")]
    exporter: Vec<Exporter>,
    /// Other clocks in seconds, RESYNC:INITIAL-MAX (the plugin's resync, the pods' backoff).
    #[arg(long, value_name = "CLOCKS")]
    clocks: Option<Clocks>,
    /// Start and stop pods of another scheduler without requests, one every five seconds or so: at each of their events an
    /// overreserving plugin places no pod on the node until its next resync.
    #[arg(long)]
    foreign: bool,
    /// The plugin's informerMode.
    #[arg(long, default_value = "Dedicated")]
    informer: String,
    /// Another binary than the one that was built for tests.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Only measure, for this many pods, how long after the bind each source shows the pod, and when the object accounts for it.
    #[arg(long, value_name = "PODS")]
    binds: Option<usize>,
    /// Only show what becomes of a pod that fits no zone, on a node whose object was created after the scheduler started.
    #[arg(long)]
    late: bool,
    /// Only list the rows.
    #[arg(long)]
    list: bool,
}

impl Options {
    fn binary(&self) -> PathBuf {
        self.binary.clone().unwrap_or_else(|| env!("CARGO_BIN_EXE_numacast").into())
    }

    fn rows(&self) -> Vec<Row> {
        let chosen = |row: &Row| {
            self.only.is_empty() || self.only.iter().any(|text| row.name().contains(text.as_str()))
        };
        let mut rows: Vec<Row> = rows::ALL.into_iter().filter(chosen).collect();
        for row in &mut rows {
            row.clocks = self.clocks.unwrap_or(row.clocks);
            row.seeds = self.seeds.unwrap_or(row.seeds);
            row.seconds = self.seconds.unwrap_or(row.seconds);
        }
        rows
    }

    fn run(&self, row: Row, exporter: &Exporter, seed: u64) -> Run {
        Run {
            row,
            exporter: exporter.clone(),
            foreign: self.foreign,
            informer: self.informer.clone(),
            time: Duration::from_secs(row.seconds),
            seed,
            binary: self.binary(),
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let mut out = std::io::stdout();
    let rows = options.rows();
    ensure!(!rows.is_empty(), "no row is chosen; `--list` without other options prints them");
    if options.list {
        rows.iter().try_for_each(|row| writeln!(out, "{}", row.name()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { bail!("the real parts cannot run here") };
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
    writeln!(out, "NUMACAST_SEED={seed}")?;
    if let Some(count) = options.binds {
        let cluster = Cluster::start(&parts).await?;
        let node = node(&cluster).await?;
        let exporter = options.exporter.first().cloned().unwrap_or(Exporter::None);
        let _running = exporter.start(&options.binary(), &cluster, &node, &[]).await?;
        writeln!(out, "{}", binds::measure(&node, &mut Rng::with_seed(seed), count).await?.table())?;
        return Ok(ExitCode::SUCCESS);
    }
    let program = parts.program("scheduler");
    ensure!(program.is_file(), "there is no {}; `tests/parts/build scheduler` builds it", program.display());
    if options.late {
        let (table, as_documented) = late::table(&parts, &options.binary()).await?;
        writeln!(out, "{table}")?;
        ensure!(as_documented, "docs/scheduler.md differs");
        return Ok(ExitCode::SUCCESS);
    }
    let (mut table, mut broken) = (String::new(), Vec::new());
    for exporter in &options.exporter {
        for row in &rows {
            let mut total = Total::default();
            for number in 0..row.seeds {
                let run = options.run(*row, exporter, seed.wrapping_add(number));
                let figures =
                    run.run(&parts).await.with_context(|| format!("{}, seed {}", row.name(), run.seed))?;
                write!(out, "{}", figures.text(&run))?;
                total.add(figures, run.time);
            }
            table += &format!("| {exporter} | {} | {} |\n", row.name(), total.row());
            if matches!(exporter, Exporter::Numacast(_)) {
                broken.extend(row.broken(&total).into_iter().map(|what| format!("{}: {what}", row.name())));
            }
        }
    }
    writeln!(out, "\n{}\n{table}", run::HEAD)?;
    broken.iter().try_for_each(|what| writeln!(out, "BROKEN: {what}"))?;
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Starts a node with 14 CPUs for exclusive allocation in two zones; each pod gets CPUs of one zone.
async fn node(cluster: &Cluster) -> Result<RealNode> {
    RealNode::on("two-by-eight")?
        .kubelet("topologyManagerPolicy", "single-numa-node".into())
        .kubelet("topologyManagerScope", "pod".into())
        .start(cluster)
        .await
}

/// Returns the values at these percentiles, or zeros if there are no values.
fn percentiles<const N: usize>(times: &mut [Duration], at: [usize; N]) -> [Duration; N] {
    times.sort_unstable();
    at.map(|percent| {
        let index = times.len().saturating_sub(1) * percent / 100;
        times.get(index).copied().unwrap_or_default()
    })
}
