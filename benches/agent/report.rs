//! Figures beside their budgets (DESIGN section 10) and what the peers did on the same parts.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde_json::{Value, json};

use crate::figures::{Figures, Quantiles, at_least, at_most, mean, ms, quantiles};
use crate::support::Parts;

/// A node's budgets, and what the peers did on it.
pub(crate) struct Budget {
    p50_ms: f64,
    p99_ms: f64,
    /// What is ours of it, where a budget is set for that alone.
    own_ms: Option<f64>,
    nfd: Peer,
    rte: Peer,
}

/// What a peer did, measured once (the better end where it was a range).
struct Peer {
    first: Said,
    p50: Said,
    max: Said,
    writes: Said,
    cpu: Said,
    idle_cpu: Said,
    idle_writes: Said,
    resident: Said,
}

/// A figure as it is printed and as it is compared.
#[derive(Clone, Copy)]
struct Said(&'static str, f64);

pub(crate) const SMALL: Budget = Budget {
    p50_ms: 5.0,
    p99_ms: 15.0,
    own_ms: None,
    nfd: Peer {
        first: Said("59.7 s", 59_700.0),
        p50: Said("15.9", 15.9),
        max: Said("27.7 (max)", 27.7),
        writes: Said("3.9", 3.9),
        cpu: Said("6.5", 6.5),
        resident: Said("54-58", 54.0),
        ..NFD
    },
    rte: Peer {
        p50: Said("892", 892.0),
        max: Said("896 (max)", 896.0),
        cpu: Said("3.3", 3.3),
        resident: Said("40", 40.0),
        ..RTE
    },
};

pub(crate) const LARGE: Budget = Budget { p50_ms: 15.0, p99_ms: 50.0, own_ms: Some(2.0), nfd: NFD, rte: RTE };

const NFD: Peer = Peer {
    first: Said("60.2 s", 60_200.0),
    p50: Said("290", 290.0),
    max: Said("546 (max)", 546.0),
    writes: Said("5.1", 5.1),
    cpu: Said("15", 15.0),
    idle_cpu: Said("0", 0.0),
    idle_writes: Said("0", 0.0),
    resident: Said("60-63", 60.0),
};

const RTE: Peer = Peer {
    first: Said("0.07-0.54 s", 70.0),
    p50: Said("869", 869.0),
    max: Said("926 (max)", 926.0),
    writes: Said("1.0", 1.0),
    cpu: Said("8", 8.0),
    idle_cpu: Said("0.3-0.8", 0.3),
    idle_writes: Said("1 per s", 1.0),
    resident: Said("42", 42.0),
};

/// One line of the table.
struct Row {
    what: &'static str,
    /// `None` where nothing was measured.
    measured: Option<f64>,
    budget: Option<f64>,
    nfd: Option<Said>,
    rte: Option<Said>,
}

impl Row {
    fn new(what: &'static str, measured: Option<f64>, budget: Option<f64>) -> Self {
        Self { what, measured, budget, nfd: None, rte: None }
    }

    fn beside(self, nfd: Said, rte: Said) -> Self {
        Self { nfd: Some(nfd), rte: Some(rte), ..self }
    }

    fn of_budget(&self) -> Option<f64> {
        Some(self.measured? / self.budget.filter(|budget| *budget > 0.0)?)
    }

    fn of_better_peer(&self) -> Option<f64> {
        let better = [self.nfd, self.rte].into_iter().flatten().map(|said| said.1).reduce(f64::min)?;
        Some(self.measured? / Some(better).filter(|better| *better > 0.0)?)
    }

    fn print(&self) -> String {
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), short);
        let said = |said: Option<Said>| said.map_or("-", |said| said.0).to_owned();
        let cells = [
            self.what.to_owned(),
            number(self.measured),
            number(self.budget),
            number(self.of_budget()),
            said(self.nfd),
            said(self.rte),
            number(self.of_better_peer()),
        ];
        format!("| {} |", cells.join(" | "))
    }

    fn as_json(&self) -> Value {
        json!({
            "what": self.what, "measured": self.measured, "budget": self.budget, "ofBudget": self.of_budget(),
            "nfd": self.nfd.map(|said| said.0), "rte": self.rte.map(|said| said.0),
            "ofBetterPeer": self.of_better_peer(),
        })
    }
}

/// Three digits that matter.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 || v == 0.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// Every node's figures, and where they are from.
pub(crate) struct Report {
    about: Value,
    nodes: Vec<Value>,
}

#[allow(clippy::print_stdout)] // the tables are what the program is for
impl Report {
    pub(crate) fn new(binary: &Path, parts: &Parts, seed: u64) -> Result<Self> {
        let bytes = std::fs::metadata(binary)?.len();
        let size = mib(bytes);
        println!("binary, as shipped: {size:.2} MiB of a budget of 10 ({:.2})", size / 10.0);
        let about = json!({
            "binaryBytes": bytes,
            "seed": seed,
            "machine": machine(),
            "versions": {
                "numacast": version(binary, "--version"),
                "kube-apiserver": version(&parts.program("kube-apiserver"), "--version"),
                "kubelet": version(&parts.program("kubelet"), "--version"),
                "etcd": version(&parts.program("etcd"), "--version"),
            },
            "peers": "measured once, on the same parts and the same kind of machine",
        });
        println!("NUMACAST_SEED={seed}; {}", about["machine"]);
        println!("{}", about["versions"]);
        Ok(Self { about, nodes: Vec::new() })
    }

    /// Prints a node's table on standard output.
    pub(crate) fn add(&mut self, name: &str, figures: &Figures, budget: &Budget) {
        let rows = rows(figures, budget);
        println!("\n{name}\n");
        println!("| what | measured | budget | of budget | NFD updater | RTE, 1 s | of the better peer |");
        println!("|---|---|---|---|---|---|---|");
        for row in &rows {
            println!("{}", row.print());
        }
        println!("\n{}", also(figures));
        let rows: Vec<Value> = rows.iter().map(Row::as_json).collect();
        self.nodes.push(json!({"node": name, "rows": rows, "figures": figures.as_json()}));
    }

    /// Everything as JSON, in `target/bench.json`.
    pub(crate) fn write(&self) -> Result<()> {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/target/bench.json");
        let all = json!({"about": self.about, "nodes": self.nodes});
        Ok(std::fs::write(file, serde_json::to_string_pretty(&all)?)?)
    }
}

fn rows(figures: &Figures, budget: &Budget) -> Vec<Row> {
    let Budget { nfd, rte, .. } = budget;
    let [first, latency, listed, floor] =
        [&figures.first, &figures.latency, &figures.since_listed, &figures.floor].map(|all| quantiles(all));
    let release = quantiles(&at_most(&figures.release));
    let unaided = quantiles(&at_most(&figures.release_unaided));
    let p50 = |of: Option<Quantiles>| of.map(|of| of.p50);
    let p99 = |of: Option<Quantiles>| of.map(|of| of.p99);
    let own = p50(latency).zip(p50(floor)).map(|(all, floor)| all - floor);
    vec![
        Row::new("first NRT after start, median, ms", p50(first), Some(150.0)).beside(nfd.first, rte.first),
        Row::new("allocation, last state file -> NRT, p50, ms", p50(latency), Some(budget.p50_ms))
            .beside(nfd.p50, rte.p50),
        Row::new("the same, p99, ms", p99(latency), Some(budget.p99_ms)).beside(nfd.max, rte.max),
        Row::new("allocation, List and state file -> NRT, p50, ms", p50(listed), Some(budget.p50_ms)),
        Row::new("the same, p99, ms", p99(listed), Some(budget.p99_ms)),
        Row::new("floor: the benchmark writes at that moment, p50, ms", p50(floor), None),
        Row::new("the same, p99, ms", p99(floor), None),
        Row::new("allocation less floor, p50, ms", own, budget.own_ms),
        Row::new("release, gone from the List -> NRT, p50, ms, at most", p50(release), None),
        Row::new("the same, p99, ms, at most", p99(release), Some(100.0)),
        Row::new("release without a pod source, p50, ms, at most", p50(unaided), None),
        Row::new("the same, p99, ms, at most", p99(unaided), Some(1000.0)),
        Row::new("NRT writes per allocation, mean", mean(&figures.writes), Some(1.0))
            .beside(nfd.writes, rte.writes),
        Row::new("NRT writes per release, mean", mean(&figures.release_writes), Some(1.0)),
        Row::new("readings of the node per change", Some(figures.scans_per_change), None),
        Row::new("CPU per change, ms", Some(ms(figures.cpu_per_change)), Some(1.0)).beside(nfd.cpu, rte.cpu),
        Row::new("CPU when nothing changes, % of a core", Some(figures.idle_share * 100.0), Some(0.1))
            .beside(nfd.idle_cpu, rte.idle_cpu),
        Row::new("NRT writes when nothing changes", Some(figures.idle_writes as f64), Some(0.0))
            .beside(nfd.idle_writes, rte.idle_writes),
        Row::new("resident memory, MiB", Some(mib(figures.resident << 10)), Some(10.0))
            .beside(nfd.resident, rte.resident),
        Row::new("its peak, MiB", Some(mib(figures.peak << 10)), None),
        Row::new(
            "SIGTERM in a frozen write -> exit code 0, s",
            figures.term.map(|t| t.as_secs_f64()),
            Some(30.0),
        ),
    ]
}

fn also(figures: &Figures) -> String {
    let max = |samples: &[std::time::Duration]| quantiles(samples).map_or(f64::NAN, |of| of.max);
    let idle = quantiles(&figures.floor_idle);
    let least = quantiles(&at_least(&figures.release));
    format!(
        "also: {} allocations, slowest {:.1} ms, {} of them beside a prober that Lists at each rename; slowest first NRT \
         {:.1} ms; {} releases, whose latency is at least p50 {:.1} ms, p99 {:.1} ms (the pod left between two Lists); \
         floor of {} writes, slowest {:.1} ms, when nothing else happens p50 {:.1} ms, p99 {:.1} ms; idle for {} s",
        figures.latency.len() + figures.since_listed.len(),
        max(&figures.latency),
        figures.since_listed.len(),
        max(&figures.first),
        figures.release.len(),
        least.map_or(f64::NAN, |of| of.p50),
        least.map_or(f64::NAN, |of| of.p99),
        figures.floor.len(),
        max(&figures.floor),
        idle.map_or(f64::NAN, |of| of.p50),
        idle.map_or(f64::NAN, |of| of.p99),
        figures.idle.as_secs(),
    )
}

fn machine() -> Value {
    let first = |file: &str, key: &str| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
        line.split_once(':').map_or(line, |(_, value)| value).trim().to_owned()
    };
    json!({
        "cpu": first("/proc/cpuinfo", "model name"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory": first("/proc/meminfo", "MemTotal"),
        "kernel": first("/proc/sys/kernel/osrelease", ""),
        "loadBefore": first("/proc/loadavg", ""),
    })
}

fn version(program: &Path, flag: &str) -> String {
    let output = Command::new(program).arg(flag).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
