//! A fleet against one real API server: `make fleet-load`.
//!
//! Some hundreds of agents and the controller run numacast's own code as configured by the chart, each with
//! its own connection and token, a simulated kubelet per agent, and as many pods as on a large node. It
//! reports the load on the API server when nothing happens, when pods are created and deleted, and during
//! failures.

#[path = "../real/support/mod.rs"]
#[allow(dead_code, unused_imports)] // the tests use the rest
mod support;

mod audit;
mod configz;
mod counting_proxy;
mod figures;
mod fleet;
mod meter;
mod phases;
mod pods;
mod samples;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use fastrand::Rng;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use figures::{Extrapolation, FLEET, Kind, Phase, leases};
use phases::Run;
use support::cluster::ApiServerOptions;
use support::{Cluster, Needs, Parts, document, parts};

/// Some hundreds of agents and the controller against a real API server.
#[derive(Debug, Parser)]
#[command(name = "fleet-load")]
struct Options {
    /// How many nodes, each with an agent.
    #[arg(long, default_value_t = 200)]
    nodes: usize,
    /// How many pods each of them has; a fifth of them has CPUs of its own.
    #[arg(long, default_value_t = 100)]
    pods: usize,
    /// Minor versions of the API server.
    #[arg(long, value_delimiter = ',', default_values = ["1.33", "1.36"])]
    api_server: Vec<String>,
    /// Only these phases.
    #[arg(long, value_delimiter = ',', value_enum)]
    phases: Vec<PhaseName>,
    /// How long nothing changes, in seconds.
    #[arg(long, default_value_t = 120)]
    calm: u64,
    /// How long pods are created and deleted, and how long they wait for the scheduler plugin, in seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Lifetimes of pods, in minutes: a phase for each. The one of 60 is extrapolated.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 60, 240])]
    lifetimes: Vec<u64>,
    /// Any key of the agents' configuration, e.g. --set publish.events=false
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The seed, instead of a new one (`NUMACAST_SEED`).
    #[arg(long, env = "NUMACAST_SEED")]
    seed: Option<u64>,
    /// Put the excerpt of the tables into `docs/internals/benchmarks.md`.
    #[arg(long)]
    write: bool,
}

/// What can be left out. All agents start before, at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PhaseName {
    /// Nothing happens.
    Calm,
    /// Pods come and go.
    Churn,
    /// The same, with `fingerprint.method: with-exclusive-resources`.
    Exclusive,
    /// Agents are replaced, a tenth of them at a time and then all at once.
    Rollout,
    /// The API server is killed and started again.
    Restart,
    /// The kubelets are away for a minute.
    Kubelets,
    /// Pods wait for the scheduler plugin.
    Pending,
}

impl Options {
    fn has(&self, phase: PhaseName) -> bool {
        self.phases.is_empty() || self.phases.contains(&phase)
    }

    /// Returns true if the run is complete, so that its results may be written to the documentation.
    fn is_whole(&self) -> bool {
        self.phases.is_empty() && self.set.is_empty() && self.lifetimes.contains(&60)
    }
}

/// The markers of the excerpt in `docs/internals/benchmarks.md`.
const BEGIN: &str = "<!-- make fleet-load: what follows is written by it -->\n";
const END: &str = "<!-- make fleet-load: end -->\n";
/// The columns of the table of phases that are there.
const COLUMNS: [&str; 9] = [
    "phase",
    "s",
    "writes of agents",
    "per change",
    "nudges",
    "writes of the controller",
    "KiB per node, sent / received",
    "pods looked at per list, in the cache",
    "CPU of the API server, s",
];

/// Inotify instances and file descriptors per node: for its agent, its kubelet and both ends of every
/// connection.
const INSTANCES: usize = 2;
const DESCRIPTORS: usize = 24;

// Child processes are killed when the thread that started them ends: here the one that blocks on this.
#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<ExitCode> {
    let options = Options::parse();
    ensure!(options.nodes > 0 && options.pods >= 10, "--nodes must be at least 1 and --pods at least 10");
    ensure!(
        !options.write || options.is_whole(),
        "--write needs all phases, no --set, and 60 in --lifetimes"
    );
    let mut out = std::io::stdout();
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
    writeln!(out, "NUMACAST_SEED={seed}")?;
    raise_limits(options.nodes)?;
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { bail!("the real parts cannot run here") };
    let mut text = String::new();
    let mut broken = Vec::new();
    for minor in &options.api_server {
        let began = Instant::now();
        let (report, excerpt, mut sentences) = run(&options, &parts, minor, seed).await?;
        writeln!(out, "\n{report}\n(API server {minor}: {:.0} s)", began.elapsed().as_secs_f64())?;
        text += &excerpt;
        broken.append(&mut sentences);
    }
    if options.write {
        document::replace("docs/internals/benchmarks.md", [BEGIN, END], &format!("\n{text}"))?;
    }
    broken.iter().try_for_each(|sentence| writeln!(out, "FAILED: {sentence}"))?;
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs all phases on one API server. Returns the report, its excerpt, and the violated bounds.
async fn run(
    options: &Options,
    parts: &Parts,
    minor: &str,
    seed: u64,
) -> Result<(String, String, Vec<String>)> {
    let program = Some(parts::program_of(minor, "kube-apiserver")?);
    // From 1.34 on it compares its cache with etcd every five minutes, and its metrics do not distinguish
    // this from a client's list.
    let checks = ["--feature-gates=DetectCacheInconsistency=false"];
    let arguments = if minor == "1.33" { &[] } else { &checks[..] };
    let server = ApiServerOptions { program, audit: true, arguments, ..ApiServerOptions::default() };
    let cluster = Cluster::start_with(parts, &server).await?;
    let version = cluster.client().apiserver_version().await?.git_version;
    let mut run = Run::set_up(options, parts, cluster, &version, Rng::with_seed(seed)).await?;
    run.all(options).await?;
    let phases = run.end().await?;
    let (extrapolated, mut broken) = extrapolate(&phases);
    broken.extend(phases.iter().flat_map(Phase::broken));
    let broken = broken.into_iter().map(|sentence| format!("{version}, {sentence}")).collect();
    let title = format!("API server {version}, {} nodes with {} pods each:", options.nodes, options.pods);
    let (table, requests) = (figures::table(&phases), figures::requests_table(&phases));
    let report = format!("{title}\n\n{table}\nPer node and minute:\n\n{requests}\n{extrapolated}\n");
    let excerpt = document::excerpt(&table, &COLUMNS, |_| true)?;
    Ok((report, format!("{title}\n\n{excerpt}\n{extrapolated}\n"), broken))
}

/// Extrapolates the writes to a large fleet, from those of the required phases that were run.
fn extrapolate(phases: &[Phase]) -> (String, Vec<String>) {
    let an_hour = phases::lifetime(60);
    let find = |kind: Kind| phases.iter().find(|phase| phase.kind == kind && phase.name.contains(&an_hour));
    let waiting = phases.iter().find(|phase| phase.kind == Kind::Pending);
    let mut text = String::new();
    let mut broken = Vec::new();
    for (kind, method, share) in
        [(Kind::Churn, "all", 2.0 / 3.0), (Kind::ChurnExclusive, "with-exclusive-resources", 0.25)]
    {
        let Some(churn) = find(kind) else { continue };
        let found = Extrapolation::of(churn, waiting);
        text += &format!(
            "| {method} | {:.0} | {:.1} | {:.0} | {:.0} % | {:.0} % |\n",
            found.agents,
            found.controller,
            leases(),
            100.0 * found.all() / leases(),
            100.0 * share
        );
        broken.extend(found.broken(&format!("fingerprint.method {method}"), share));
    }
    let head = format!(
        "Writes per second of {FLEET:.0} nodes with 100 pods each that live an hour, a fifth of them with CPUs of their own:\n\n\
         | fingerprint.method | agents | controller | Leases of the nodes | of these | at most |\n|---|---|---|---|---|---|\n"
    );
    if text.is_empty() { (text, broken) } else { (head + &text, broken) }
}

/// Raises the kernel's per-user limits if permitted.
fn raise_limits(nodes: usize) -> Result<()> {
    let path = "/proc/sys/fs/inotify/max_user_instances";
    let instances: usize = std::fs::read_to_string(path)?.trim().parse()?;
    let wanted = nodes * INSTANCES + 128;
    if instances < wanted {
        std::fs::write(path, wanted.to_string()).with_context(|| {
            format!("{nodes} agents need {wanted} inotify instances: as root, `sysctl fs.inotify.max_user_instances={wanted}`")
        })?;
    }
    let limit = getrlimit(Resource::Nofile);
    let wanted = (nodes * DESCRIPTORS + 512) as u64;
    let Some(current) = limit.current.filter(|current| *current < wanted) else { return Ok(()) };
    let raised = Rlimit { current: Some(wanted), maximum: limit.maximum.map(|most| most.max(wanted)) };
    setrlimit(Resource::Nofile, raised).with_context(|| {
        format!("{nodes} agents need {wanted} descriptors, and {current} are allowed: `ulimit -n {wanted}`")
    })
}
