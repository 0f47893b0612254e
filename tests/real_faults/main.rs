//! Many faults with a real kubelet, a real API server and a real etcd: `make real-faults`.
//!
//! Each is one of eighteen, drawn from a printed seed, with pods created and deleted before, during and after
//! it. After each one the object must equal the oracle within [`BOUND`], or [`RESTART_DISTRUST`] later if the
//! kubelet restarted, and no version of it may ever report more than is available.

#[path = "../real/support/mod.rs"]
#[allow(dead_code, unused_imports)] // the tests use the rest
mod support;

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;

use support::faults::{Fault, Faults, Outcome};
use support::{Cluster, Needs, Parts};

/// Time from the recovery of every component and every pod until the object is correct. The agent's own
/// longest wait is the ten seconds, plus or minus a tenth, between two attempts to write.
const BOUND: Duration = Duration::from_secs(12);

/// How long a restarted kubelet that does not list a pod is distrusted if no source reports
/// the pod as gone. After a restart of the API server, the agents relist their pods at random moments within
/// half a minute.
const RESTART_DISTRUST: Duration = Duration::from_secs(30);

/// Faults over real parts, with one table at the end.
#[derive(Debug, Parser)]
#[command(name = "real-faults")]
struct Options {
    /// Number of faults to inject.
    #[arg(long, default_value_t = 100)]
    faults: usize,
    /// The seed, instead of a new one.
    #[arg(long, env = "NUMACAST_SEED")]
    seed: Option<u64>,
    /// Only faults whose name contains this text, such as `kubelet` or `CRD`; several are possible.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
}

#[derive(Default)]
struct Row {
    times: Vec<Duration>,
    versions: usize,
}

impl Row {
    /// Returns how many took longer than [`BOUND`], and how many of them longer than allowed.
    fn slow_and_late(&self, fault: Fault) -> (usize, usize) {
        let distrust = if fault.restarts_the_kubelet() { RESTART_DISTRUST } else { Duration::ZERO };
        let beyond = |bound: Duration| self.times.iter().filter(|time| **time > bound).count();
        (beyond(BOUND), beyond(BOUND + distrust))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let mut out = std::io::stdout();
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { bail!("the real parts cannot run here") };
    let wanted = |fault: &Fault| {
        let name = fault.to_string();
        options.only.is_empty() || options.only.iter().any(|text| name.contains(text.as_str()))
    };
    let chosen: Vec<Fault> = Fault::ALL.into_iter().filter(wanted).collect();
    ensure!(!chosen.is_empty(), "no fault has that name; there are: {:?}", Fault::ALL.map(|f| f.to_string()));
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
    writeln!(out, "{} faults: NUMACAST_SEED={seed}", options.faults)?;
    let started = Instant::now();
    let cluster = Cluster::start(&parts).await?;
    let mut faults = Faults::start(cluster, parts.program("kubectl"), seed).await?;
    let mut rows = BTreeMap::<Fault, Row>::new();
    for number in 1..=options.faults {
        let fault = faults.choose(&chosen);
        let outcome = faults.inject(fault).await;
        writeln!(out, "{number:>4} {fault}: {} ({})", describe(outcome.as_ref()), faults.notes())?;
        let outcome =
            outcome.with_context(|| format!("fault {number} with NUMACAST_SEED={seed}: {fault}"))?;
        let row = rows.entry(fault).or_default();
        row.times.push(outcome.until_correct);
        row.versions += outcome.versions;
    }
    writeln!(out, "\n| fault | times | correct after, median, s | slowest, s | versions of the object |")?;
    writeln!(out, "|---|---|---|---|---|")?;
    for (fault, Row { times, versions }) in &mut rows {
        times.sort();
        let (middle, last) = (times[times.len() / 2].as_secs_f64(), times[times.len() - 1].as_secs_f64());
        writeln!(out, "| {fault} | {} | {middle:.2} | {last:.2} | {versions} |", times.len())?;
    }
    let counts = rows.iter().map(|(fault, row)| row.slow_and_late(*fault));
    let (slow, late) = counts.fold((0, 0), |(slow, late), row| (slow + row.0, late + row.1));
    let minutes = started.elapsed().as_secs_f64() / 60.0;
    writeln!(
        out,
        "\n{} faults in {minutes:.1} minutes, after {slow} of them the object was correct only after more than {BOUND:?}, after {late} of them later than allowed",
        options.faults
    )?;
    Ok(if late == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn describe(outcome: Result<&Outcome, &anyhow::Error>) -> String {
    match outcome {
        Ok(outcome) => format!("correct after {:.2?}", outcome.until_correct),
        Err(error) => format!("FAILED: {error:#}"),
    }
}
