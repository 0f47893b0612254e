//! A model of the scheduler plugin's cache. Run manually with `make model`.
//!
//! `make model ARGS=--help` lists the options. It prints all tables; `--write` puts an excerpt into
//! `docs/internals/proofs.md`. It fails if numacast lets a pod be rejected although it could have prevented
//! that, or leaves a node frozen.

#[allow(dead_code)] // other programs use the rest
#[path = "../real/support/document.rs"]
mod document;
#[allow(dead_code)] // some items are used only by the short form, in `cargo test`
mod run;
mod tables;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;

use tables::{Excerpt, Parameters, Table};

/// A model of the plugin's cache, the scheduler's queue and the kubelet in virtual time.
#[derive(Debug, Parser)]
#[command(name = "model")]
struct Options {
    /// The seed, instead of a new one (`NUMACAST_SEED`).
    #[arg(long, env = "NUMACAST_SEED")]
    seed: Option<u64>,
    /// Only tables whose name contains this text.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Steps of the random walk for numacast; the others get a tenth each.
    #[arg(long, default_value_t = 1_000_000)]
    steps: u64,
    /// Factor for the length of the loads.
    #[arg(long, default_value_t = 1.0)]
    length: f64,
    /// Number of runs at the same time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Put the excerpt of the tables into `docs/internals/proofs.md`.
    #[arg(long)]
    write: bool,
    /// Only list the tables.
    #[arg(long)]
    list: bool,
}

/// Markers of the excerpt in `docs/internals/proofs.md`.
const BEGIN: &str = "<!-- make model: what follows is written by it -->\n";
const END: &str = "<!-- make model: end -->\n";

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let only = options.only.as_deref().unwrap_or_default();
    let selected: Vec<&Table> = tables::ALL.iter().filter(|table| table.name.contains(only)).collect();
    ensure!(!selected.is_empty(), "no table matches; `--list` without `--only` lists all");
    let mut out = std::io::stdout().lock();
    if options.list {
        selected.iter().try_for_each(|table| writeln!(out, "{}", table.name))?;
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(!options.write || only.is_empty(), "--write cannot be combined with --only");
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
    writeln!(out, "NUMACAST_SEED={seed}")?;
    let Options { steps, length, jobs, .. } = options;
    let parameters = Parameters { seed, steps, length, jobs: jobs.max(1) };
    let mut text = format!("`NUMACAST_SEED={seed}`, {} steps of the walk:\n", options.steps);
    let mut failures = Vec::new();
    for table in selected {
        let start = Instant::now();
        let (lines, mut failed) = (table.make)(&parameters);
        writeln!(out, "\n{}\n\n{lines}", table.title)?;
        writeln!(out, "({}: {:.0} s)", table.name, start.elapsed().as_secs_f64())?;
        if let Some(Excerpt { title, columns, rows }) = &table.excerpt {
            let lines = document::excerpt(&lines, columns, rows).context(table.name)?;
            text = format!("{text}\n{}\n\n", wrap(title));
            for line in lines.lines() {
                text += &if line.starts_with('|') { line.to_owned() } else { wrap(line) };
                text.push('\n');
            }
        }
        failures.append(&mut failed);
    }
    if options.write {
        document::replace("docs/internals/proofs.md", [BEGIN, END], &format!("\n{text}\n"))?;
    }
    failures.iter().try_for_each(|failure| writeln!(out, "FAILED: {failure}"))?;
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Wraps a text at the document's line length.
fn wrap(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + word.len() < 120 => *line = format!("{line} {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}
