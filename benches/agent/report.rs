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
    pub(crate) cpu_per_change: Duration,
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
    nodes: Vec<(String, Figures)>,
}

/// Budgets of a node: the small one's and the large one's differ.
struct Budget {
    p50_ms: f64,
    p99_ms: f64,
    nfd: [&'static str; 6],
    rte: [&'static str; 6],
}

/// The peers' columns are those of the table in the project's reference, measured on such nodes.
const BUDGETS: [Budget; 2] = [
    Budget {
        p50_ms: 5.0,
        p99_ms: 15.0,
        nfd: ["59.7 s", "15.9 / 27.7 (max)", "3.9", "6.5 ms", "0 %", "54-58 MiB"],
        rte: ["0.07-0.54 s", "892 / 896 (max)", "1.0", "3.3 ms", "0.3-0.8 %", "40 MiB"],
    },
    Budget {
        p50_ms: 15.0,
        p99_ms: 50.0,
        nfd: ["60.2 s", "290 / 546 (max)", "5.1", "15 ms", "0 %", "60-63 MiB"],
        rte: ["0.07-0.54 s", "869 / 926 (max)", "1.0", "8 ms", "0.3-0.8 %", "42 MiB"],
    },
];

impl Report {
    pub(crate) fn new(binary: u64) -> Self {
        Self { binary, nodes: Vec::new() }
    }

    pub(crate) fn add(&mut self, name: &str, figures: Figures) {
        self.nodes.push((name.to_owned(), figures));
    }

    /// The table on standard output, the same as JSON in `target/bench.json`.
    #[allow(clippy::print_stdout)] // the table is what the program is for
    pub(crate) fn print(&self) -> Result<()> {
        println!("binary, as shipped: {:.2} MiB (budget 10 MiB)", mib(self.binary));
        let mut all = Vec::new();
        for ((name, figures), budget) in self.nodes.iter().zip(&BUDGETS) {
            println!("\n{name}\n");
            println!("| what | measured | budget | NFD updater | RTE, 1 s |");
            println!("|---|---|---|---|---|");
            for (index, (what, measured, limit)) in rows(figures, budget).into_iter().enumerate() {
                println!("| {what} | {measured} | {limit} | {} | {} |", budget.nfd[index], budget.rte[index]);
            }
            println!("\nalso: {}", also(figures));
            all.push(as_json(name, figures));
        }
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/target/bench.json");
        std::fs::write(
            file,
            serde_json::to_string_pretty(&json!({"binaryBytes": self.binary, "nodes": all}))?,
        )?;
        Ok(())
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
    let latency = quantiles(&figures.latency);
    format!(
        "{} allocations, slowest {:.1} ms; NRT writes per release, mean {:.2}",
        figures.latency.len(),
        latency.max,
        mean(&figures.release_writes)
    )
}

fn as_json(name: &str, figures: &Figures) -> Value {
    let (first, latency) = (quantiles(&figures.first), quantiles(&figures.latency));
    json!({
        "node": name,
        "firstNrtMs": {"p50": first.p50, "max": first.max},
        "allocationMs": {"p50": latency.p50, "p99": latency.p99, "max": latency.max},
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
