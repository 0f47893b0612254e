//! The contract with the scheduler over real parts: `make contract`.
//!
//! A real kube-scheduler with the real NodeResourceTopologyMatch plugin places short pods on a real kubelet, by what
//! the exporter under test publishes to a real API server.

#[path = "../real/support/mod.rs"]
#[allow(dead_code, unused_imports)] // the tests use the rest
mod support;

mod binds;
mod events;
mod exporter;
mod load;
mod run;
mod scheduler;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::Parser;
use fastrand::Rng;

use exporter::Exporter;
use run::Run;
use scheduler::Clocks;
use support::{Cluster, Needs, Parts, RealNode};

/// A closed loop of short pods between a real scheduler and a real kubelet, with one table at the end.
#[derive(Debug, Parser)]
#[command(name = "contract")]
struct Options {
    /// Who publishes: `numacast`, `numacast KEY=VALUE...`, `none`, or `NAME: COMMAND`, a command that is run on the
    /// described machine with NODE_NAME, KUBECONFIG and KUBELET_CONFIG; several are run one after another.
    #[arg(long, value_name = "WHO", default_value = "numacast")]
    exporter: Vec<Exporter>,
    /// The scheduler's clocks in seconds, RESYNC:INITIAL-MAX (the plugin's resync, the pods' backoff); several are possible.
    #[arg(long, value_name = "CLOCKS", default_values = ["1:1-2", "5:1-10"])]
    clocks: Vec<Clocks>,
    /// Also with a Completed pod and one whose image cannot be pulled on the node.
    #[arg(long)]
    everyday: bool,
    /// Only with these two.
    #[arg(long, conflicts_with = "everyday")]
    only_everyday: bool,
    /// Let pods of another scheduler that ask for nothing come and go, one every five seconds or so: at each word of
    /// them the plugin takes nobody onto the node until its next resync.
    #[arg(long)]
    foreign: bool,
    /// The plugin's informerMode.
    #[arg(long, default_value = "Dedicated")]
    informer: String,
    /// How long each run is, in seconds.
    #[arg(long, default_value_t = 120)]
    seconds: u64,
    /// Another binary than the one that was built for tests.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Only measure how long after its bind a pod shows, and where, over so many pods, and when numacast tells of it.
    #[arg(long, value_name = "PODS")]
    binds: Option<usize>,
    /// The seed, instead of a new one.
    #[arg(long, env = "NUMACAST_SEED")]
    seed: Option<u64>,
}

impl Options {
    fn binary(&self) -> PathBuf {
        self.binary.clone().unwrap_or_else(|| env!("CARGO_BIN_EXE_numacast").into())
    }

    /// Every combination that was asked for.
    fn runs(&self, seed: u64) -> Vec<Run> {
        let everyday: &[bool] = match (self.everyday, self.only_everyday) {
            (true, _) => &[false, true],
            (_, true) => &[true],
            (_, false) => &[false],
        };
        let mut runs = Vec::new();
        for exporter in &self.exporter {
            for clocks in &self.clocks {
                for everyday in everyday {
                    runs.push(Run {
                        exporter: exporter.clone(),
                        clocks: *clocks,
                        everyday: *everyday,
                        foreign: self.foreign,
                        informer: self.informer.clone(),
                        time: Duration::from_secs(self.seconds),
                        seed,
                        binary: self.binary(),
                    });
                }
            }
        }
        runs
    }
}

#[tokio::main(flavor = "current_thread")] // programs end with the thread that started them
async fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let mut out = std::io::stdout();
    let Some(parts) = Parts::for_test(Needs::Kubelet).await? else { bail!("the real parts cannot run here") };
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
    writeln!(out, "NUMACAST_SEED={seed}")?;
    if let Some(count) = options.binds {
        let cluster = Cluster::start(&parts).await?;
        let node = node(&cluster).await?;
        let exporter = options.exporter.first().cloned().unwrap_or(Exporter::None);
        let _running = exporter.start(&options.binary(), &cluster, &node).await?;
        writeln!(out, "{}", binds::measure(&node, &mut Rng::with_seed(seed), count).await?.table())?;
        return Ok(ExitCode::SUCCESS);
    }
    let program = parts.program("scheduler");
    ensure!(program.is_file(), "there is no {}; `tests/parts/build scheduler` builds it", program.display());
    let mut table = String::new();
    let mut bad = 0;
    for run in options.runs(seed) {
        let (figures, told) = run.tell(&parts).await?;
        writeln!(out, "{told}")?;
        table += told.lines().next().unwrap_or_default();
        table.push('\n');
        let numacast = matches!(run.exporter, Exporter::Numacast(_));
        bad += usize::from(numacast && (figures.avoidable() > 0 || figures.frozen()));
    }
    writeln!(out, "{}\n{table}", run::HEAD)?;
    writeln!(
        out,
        "runs of numacast with a pod that was refused outside the window, or a frozen node: {bad}"
    )?;
    Ok(if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Fourteen CPUs in two zones, of which a pod gets all of its own from one.
async fn node(cluster: &Cluster) -> Result<RealNode> {
    RealNode::on("two-by-eight")?
        .kubelet("topologyManagerPolicy", "single-numa-node".into())
        .kubelet("topologyManagerScope", "pod".into())
        .start(cluster)
        .await
}

/// The values at these percentages of the way, or nothing of nothing.
fn percentiles<const N: usize>(times: &mut [Duration], at: [usize; N]) -> [Duration; N] {
    times.sort_unstable();
    at.map(|percent| {
        let index = times.len().saturating_sub(1) * percent / 100;
        times.get(index).copied().unwrap_or_default()
    })
}
