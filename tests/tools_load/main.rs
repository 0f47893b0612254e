//! The commands that read a whole cluster, on a large one: `make tools-load`.
//!
//! One real etcd and API server with thousands of Nodes, objects and pods. It runs `fit`, `show` and `doctor`
//! several times each and reports how long they take, their memory, and the requests that the API server has
//! counted; then it opens the page of `ui` in a real browser.

#[path = "../real/support/mod.rs"]
#[allow(dead_code, unused_imports)] // the tests use the rest
mod support;

mod figures;
mod objects;
mod page;
mod requests;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use clap::Parser;

use figures::{Figures, HEAD, Run};
use support::cluster::ApiServerOptions;
use support::{Cluster, Needs, Parts, document};

/// Times the commands that read a whole cluster.
#[derive(Debug, Parser)]
#[command(name = "tools-load")]
struct Options {
    /// How many Nodes, each with an object.
    #[arg(long, default_value_t = 5000)]
    nodes: usize,
    /// How many pods each of them has, an agent included.
    #[arg(long, default_value_t = 3)]
    pods: usize,
    /// How many pods are pending.
    #[arg(long, default_value_t = 20)]
    pending: usize,
    /// How often each command is run.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// The binary under test.
    #[arg(long, default_value = env!("CARGO_BIN_EXE_numacast"))]
    binary: PathBuf,
    /// Exit with 1 if a target is missed. They are for a binary with optimisation.
    #[arg(long)]
    check: bool,
    /// Only open the page.
    #[arg(long)]
    page: bool,
    /// Put the tables into `docs/internals/benchmarks.md`.
    #[arg(long)]
    write: bool,
}

/// A command, and its targets.
struct Tool {
    arguments: &'static [&'static str],
    /// A part of what it prints, so that nobody measures a command that fails.
    prints: &'static str,
    seconds: Option<f64>,
    /// Maximum number of lists; each page of a list is one.
    lists: Option<u64>,
}

impl Tool {
    const fn new(arguments: &'static [&'static str], prints: &'static str) -> Self {
        Self { arguments, prints, seconds: None, lists: None }
    }

    const fn within(self, seconds: f64) -> Self {
        Self { seconds: Some(seconds), ..self }
    }
}

const SHAPE: [&str; 5] = ["fit", "--cpu", "8", "--memory", "16Gi"];
const TOOLS: [Tool; 7] = [
    Tool::new(&SHAPE, " fits on ").within(3.0),
    Tool::new(&[SHAPE[0], SHAPE[1], SHAPE[2], SHAPE[3], SHAPE[4], "-l", "pool=a"], " fits on ").within(3.0),
    Tool::new(&[SHAPE[0], SHAPE[1], SHAPE[2], SHAPE[3], SHAPE[4], "--node", "node-00004"], "node-00004")
        .within(3.0),
    Tool::new(&["fit", "--pending"], "waits-00019"),
    Tool::new(&["show"], "node-00042"),
    Tool::new(&["show", "-o", "wide", "--sort-by", "largest-cpu"], "node-00042"),
    Tool { lists: Some(20), ..Tool::new(&["doctor"], "ControllerMissing").within(10.0) },
];

/// The head of the table of the page.
const PAGE_HEAD: &str =
    "| in Chromium without a graphics card | median | worst | target |\n|---|---|---|---|";

/// The markers of the tables in `docs/internals/benchmarks.md`.
const TOOLS_MARKERS: [&str; 2] =
    ["<!-- make tools-load: what follows is written by it -->\n", "<!-- make tools-load: end -->\n"];
const PAGE_MARKERS: [&str; 2] = [
    "<!-- make tools-load ARGS=--page: what follows is written by it -->\n",
    "<!-- make tools-load ARGS=--page: end -->\n",
];

// Child processes are killed when the thread that started them ends: here the one that blocks on this.
#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<ExitCode> {
    let options = Options::parse();
    ensure!(
        options.nodes >= 50 && options.pods > 0 && options.runs > 0,
        "--nodes must be at least 50, and --pods and --runs at least 1"
    );
    ensure!(options.pending >= 20, "--pending must be at least 20");
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { bail!("the real parts cannot run here") };
    let server = ApiServerOptions { arguments: &objects::ARGUMENTS, ..ApiServerOptions::default() };
    let cluster = Cluster::start_with(&parts, &server).await?;
    let began = Instant::now();
    objects::create(&cluster.client(), &options).await?;
    writeln!(std::io::stdout(), "everything was created in {:.0} s", began.elapsed().as_secs_f64())?;
    let version = cluster.client().apiserver_version().await?.git_version;
    let cores = std::thread::available_parallelism()?;
    let setup = format!(
        "{} Nodes with an object of {} zones each, {} pods, {} of them pending; API server {version} on the same {cores} cores:",
        options.nodes,
        objects::ZONES,
        options.nodes * options.pods + options.pending,
        options.pending
    );
    let (mut missed, mut tables) = (Vec::new(), Vec::new());
    if !options.page {
        let mut rows = Rows::begin(&setup, HEAD)?;
        for tool in &TOOLS {
            let figures = measure(&cluster, &options, tool).await?;
            rows.add(&figures.row(tool))?;
            missed.extend(figures.missed(tool));
        }
        tables.push((TOOLS_MARKERS, rows));
    }
    let mut rows = Rows::begin(&setup, PAGE_HEAD)?;
    for figure in page::measure(&cluster, &options).await? {
        rows.add(&figure.row())?;
        missed.extend(figure.missed());
    }
    tables.push((PAGE_MARKERS, rows));
    for (markers, Rows(text)) in tables.iter().filter(|_| options.write) {
        document::replace("docs/internals/benchmarks.md", *markers, &format!("{text}\n"))?;
    }
    let mut out = std::io::stdout();
    missed.iter().try_for_each(|sentence| writeln!(out, "MISSED: {sentence}"))?;
    Ok(if options.check && !missed.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A table, which is printed while it grows.
struct Rows(String);

impl Rows {
    fn begin(setup: &str, head: &str) -> Result<Self> {
        let text = format!("\n{setup}\n\n{head}\n");
        write!(std::io::stdout(), "{text}")?;
        Ok(Self(text))
    }

    fn add(&mut self, row: &str) -> Result<()> {
        writeln!(std::io::stdout(), "{row}")?;
        self.0 += row;
        self.0.push('\n');
        Ok(())
    }
}

/// Runs a command several times.
async fn measure(cluster: &Cluster, options: &Options, tool: &Tool) -> Result<Figures> {
    // The first run fills the API server's caches.
    Run::measure(cluster, &options.binary, tool).await?;
    let mut runs = Vec::new();
    for _ in 0..options.runs {
        runs.push(Run::measure(cluster, &options.binary, tool).await?);
    }
    Ok(Figures(runs))
}

/// Upper bound for a run: a binary without optimisation takes long.
const TIMEOUT: Duration = Duration::from_secs(120);
