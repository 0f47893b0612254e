//! Injects a thousand faults into the simulated kubelet and API server. Run manually with `make faults`.
//!
//! `make faults ARGS=--help` lists the options, `ARGS=--list` the faults. After each fault the object must be
//! correct within a bound, and it may never report more than was available. A table at the end shows how long
//! each kind took.

mod run;

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;

use run::{FaultKind, Outcome, Side, Step};

/// Number of simulated nodes. Each has its own seed; `--jobs` of them run in parallel.
const SHARDS: usize = 12;

/// Faults of the simulated kubelet and API server.
#[derive(Debug, Parser)]
#[command(name = "faults")]
struct Options {
    /// Number of steps with one or two faults each, over all nodes together.
    #[arg(long, default_value_t = 1000)]
    faults: usize,
    /// The seed, instead of a new one (`NUMACAST_SEED`).
    #[arg(long, env = "NUMACAST_SEED")]
    seed: Option<u64>,
    /// Only faults whose name contains this text.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Only the node with this number.
    #[arg(long)]
    shard: Option<usize>,
    /// Number of nodes that run at the same time.
    #[arg(long, default_value_t = 6)]
    jobs: usize,
    /// Only list the faults.
    #[arg(long)]
    list: bool,
    /// Show what the agents log.
    #[arg(long)]
    logs: bool,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let only = options.only.as_deref().unwrap_or_default();
    let kinds = FaultKind::ALL.iter().copied().filter(|kind| kind.name().contains(only));
    let kinds: Vec<FaultKind> = kinds.collect();
    ensure!(!kinds.is_empty(), "no fault matches; `--list` without `--only` lists all");
    let mut out = std::io::stdout().lock();
    if options.list {
        for kind in kinds {
            let side = if kind.side() == Side::Kubelet { "kubelet" } else { "cluster" };
            writeln!(out, "{side}: {} (bound {:.1} s)", kind.name(), kind.bound().as_secs_f64())?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if options.logs {
        numacast::telemetry::start_logs(Default::default(), Default::default());
    }
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
    writeln!(out, "NUMACAST_SEED={seed}")?;
    let start = Instant::now();
    let outcomes = run_all(&options, &kinds, seed)?;
    table(&mut out, &outcomes)?;
    let steps: Vec<&Step> = outcomes.iter().flat_map(|outcome| &outcome.steps).collect();
    let faults: usize = steps.iter().map(|step| step.faults.len()).sum();
    let versions: u64 = outcomes.iter().map(|outcome| outcome.versions).sum();
    let failures: Vec<&String> = outcomes.iter().filter_map(|outcome| outcome.failure.as_ref()).collect();
    writeln!(
        out,
        "\n{faults} faults in {} steps on {} nodes, {versions} versions checked, {} failures, {:.0} s",
        steps.len(),
        outcomes.len(),
        failures.len(),
        start.elapsed().as_secs_f64()
    )?;
    failures.iter().try_for_each(|failure| writeln!(out, "\n{failure}"))?;
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the shards on `--jobs` threads.
fn run_all(options: &Options, kinds: &[FaultKind], seed: u64) -> Result<Vec<Outcome>> {
    let shards: Vec<usize> = options.shard.map_or_else(|| (0..SHARDS).collect(), |shard| vec![shard]);
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || -> Result<()> {
        while let Some(shard) = shards.get(next.fetch_add(1, Ordering::Relaxed)) {
            let faults = options.faults / SHARDS + usize::from(*shard < options.faults % SHARDS);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let outcome = runtime.block_on(run::run_shard(*shard, faults, kinds, seed, 1));
            let result = if outcome.failure.is_some() { "FAILED" } else { "ok" };
            writeln!(std::io::stderr(), "node {shard}: {} steps, {result}", outcome.steps.len())?;
            outcomes.lock().map_err(|_| anyhow::anyhow!("a shard has panicked"))?.push((*shard, outcome));
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.jobs.max(1)).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a shard has panicked")))
        })
    })?;
    let mut outcomes = outcomes.into_inner().map_err(|_| anyhow::anyhow!("a shard has panicked"))?;
    outcomes.sort_by_key(|(shard, _)| *shard);
    Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
}

/// Prints how long the object was incorrect after each kind of fault; steps with two faults have their own
/// row.
fn table(out: &mut impl Write, outcomes: &[Outcome]) -> Result<()> {
    let mut rows: BTreeMap<String, (Vec<Duration>, Duration)> = BTreeMap::new();
    for step in outcomes.iter().flat_map(|outcome| &outcome.steps) {
        let name = match &step.faults[..] {
            [kind] => kind.name().to_owned(),
            _ => "two at once".to_owned(),
        };
        let bound = step.faults.iter().map(|kind| kind.bound()).max().unwrap_or_default();
        let row = rows.entry(name).or_default();
        row.0.push(step.took);
        row.1 = row.1.max(bound);
    }
    writeln!(
        out,
        "| {:36} | {:>5} | {:>8} | {:>8} | {:>8} |",
        "fault", "times", "p50 ms", "max ms", "bound ms"
    )?;
    writeln!(out, "| {:-<36} | {:->5} | {:->8} | {:->8} | {:->8} |", "", "", "", "", "")?;
    for (name, (mut times, bound)) in rows {
        times.sort();
        let (count, middle, last) = (times.len(), times[times.len() / 2], times[times.len() - 1]);
        writeln!(
            out,
            "| {name:36} | {count:5} | {:8.1} | {:8.1} | {:8} |",
            middle.as_secs_f64() * 1e3,
            last.as_secs_f64() * 1e3,
            bound.as_millis()
        )?;
    }
    Ok(())
}
