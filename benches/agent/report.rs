//! Figures beside their budgets (DESIGN section 10) and what the peers did on the same parts.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

/// What was measured on one node.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) first: Vec<Duration>,
    pub(crate) latency: Vec<Duration>,
    pub(crate) writes: Vec<usize>,
    pub(crate) release_writes: Vec<usize>,
    /// Beyond what it costs when nothing changes.
    pub(crate) cpu_per_change: Duration,
    /// The same write without an agent.
    pub(crate) own_write: Vec<Duration>,
    pub(crate) idle_share: f64,
    pub(crate) idle_writes: usize,
    /// KiB
    pub(crate) resident: u64,
    /// KiB
    pub(crate) peak: u64,
}

/// Every node's figures.
pub(crate) struct Report {
    binary: u64,
    nodes: Vec<Value>,
}

/// Budgets of a node, and the peers' figures in the order of the rows.
pub(crate) struct Budget {
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) nfd: [&'static str; 6],
    pub(crate) rte: [&'static str; 6],
}

#[allow(clippy::print_stdout)] // the tables are what the program is for
impl Report {
    pub(crate) fn new(binary: u64) -> Self {
        println!("binary, as shipped: {:.2} MiB (budget 10 MiB)", mib(binary));
        Self { binary, nodes: Vec::new() }
    }

    /// Prints a node's table on standard output.
    pub(crate) fn add(&mut self, name: &str, figures: Figures, budget: &Budget) {
        println!("\n{name}\n");
        println!("| what | measured | budget | NFD updater | RTE, 1 s |");
        println!("|---|---|---|---|---|");
        for (index, (what, measured, limit)) in rows(&figures, budget).into_iter().enumerate() {
            println!("| {what} | {measured} | {limit} | {} | {} |", budget.nfd[index], budget.rte[index]);
        }
        println!("\nalso: {}", also(&figures));
        self.nodes.push(as_json(name, &figures));
    }

    /// The same as JSON, in `target/bench.json`.
    pub(crate) fn write(&self) -> Result<()> {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/target/bench.json");
        let all = json!({"binaryBytes": self.binary, "nodes": self.nodes});
        Ok(std::fs::write(file, serde_json::to_string_pretty(&all)?)?)
    }
}

fn rows(figures: &Figures, budget: &Budget) -> Vec<(&'static str, String, String)> {
    let first = quantiles(&figures.first);
    let latency = quantiles(&figures.latency);
    vec![
        (
            "first NRT after start, median (max)",
            format!("{:.1} ms ({:.1})", first.p50, first.max),
            "150 ms".into(),
        ),
        (
            "allocation: state file -> NRT, p50 / p99, ms",
            format!("{:.1} / {:.1}", latency.p50, latency.p99),
            format!("{} / {}", budget.p50_ms, budget.p99_ms),
        ),
        ("NRT writes per allocation, mean", format!("{:.2}", mean(&figures.writes)), "1".into()),
        ("CPU per change", format!("{:.2} ms", figures.cpu_per_change.as_secs_f64() * 1e3), "1 ms".into()),
        (
            "CPU when nothing changes",
            format!("{:.3} % of a core, {} writes", figures.idle_share * 100.0, figures.idle_writes),
            "0.1 %, 0 writes".into(),
        ),
        (
            "resident memory (peak)",
            format!("{:.1} MiB ({:.1})", mib(figures.resident << 10), mib(figures.peak << 10)),
            "10 MiB, aim 8".into(),
        ),
    ]
}

fn also(figures: &Figures) -> String {
    let (latency, own) = (quantiles(&figures.latency), quantiles(&figures.own_write));
    format!(
        "{} allocations, slowest {:.1} ms; NRT writes per release, mean {:.2}; the API server's own share, an apply of \
         the same zones by this program on the then idle machine: p50 {:.1} ms, p99 {:.1} ms",
        figures.latency.len(),
        latency.max,
        mean(&figures.release_writes),
        own.p50,
        own.p99
    )
}

fn as_json(name: &str, figures: &Figures) -> Value {
    let (first, latency) = (quantiles(&figures.first), quantiles(&figures.latency));
    let own = quantiles(&figures.own_write);
    json!({
        "node": name,
        "firstNrtMs": {"p50": first.p50, "max": first.max},
        "allocationMs": {"p50": latency.p50, "p99": latency.p99, "max": latency.max},
        "apiServerAloneMs": {"p50": own.p50, "p99": own.p99},
        "writesPerAllocation": mean(&figures.writes),
        "writesPerRelease": mean(&figures.release_writes),
        "cpuPerChangeMs": figures.cpu_per_change.as_secs_f64() * 1e3,
        "idleCpuShare": figures.idle_share,
        "idleWrites": figures.idle_writes,
        "residentKiB": figures.resident,
        "peakKiB": figures.peak,
    })
}

/// Milliseconds.
struct Quantiles {
    p50: f64,
    p99: f64,
    max: f64,
}

fn quantiles(samples: &[Duration]) -> Quantiles {
    let mut sorted: Vec<f64> = samples.iter().map(|sample| sample.as_secs_f64() * 1e3).collect();
    sorted.sort_by(f64::total_cmp);
    // The smallest sample that at least this share of all samples does not exceed.
    let at = |hundredths: usize| {
        let rank = (sorted.len() * hundredths).div_ceil(100).max(1);
        sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
    };
    Quantiles { p50: at(50), p99: at(99), max: at(100) }
}

fn mean(samples: &[usize]) -> f64 {
    samples.iter().sum::<usize>() as f64 / samples.len().max(1) as f64
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
