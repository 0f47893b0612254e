//! Records the environment of a run, and writes the figures.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::record::{FILE, Node, Record, Run, rounded};
use crate::support::Parts;
use crate::support::parts::repository;
use crate::tables;

/// The record of the current run.
pub(crate) struct Report {
    record: Record,
}

#[allow(clippy::print_stdout)] // prints the tables
impl Report {
    pub(crate) fn new(binary: &Path, parts: &Parts, seed: u64) -> Result<Self> {
        let bytes = std::fs::metadata(binary)?.len();
        let versions = [
            ("numacast", binary.to_owned()),
            ("API server", parts.program("kube-apiserver")),
            ("kubelet", parts.program("kubelet")),
            ("etcd", parts.program("etcd")),
        ];
        let versions = versions.map(|(name, program)| (name.to_owned(), version(&program)));
        let run = Run {
            date: output_of(Command::new("date").args(["-u", "+%F"])),
            commit: output_of(Command::new("git").current_dir(repository()).args([
                "describe",
                "--always",
                "--exclude=*",
                "--dirty",
            ])),
            seed,
            binary_mib: rounded(bytes as f64 / f64::from(1 << 20)),
            machine: machine(),
            versions: versions.into(),
        };
        println!("NUMACAST_SEED={seed}");
        Ok(Self { record: Record { run, nodes: Vec::new(), peers: None } })
    }

    /// Writes a node's figures to `target/bench.json`.
    pub(crate) fn add(&mut self, node: Node) -> Result<()> {
        self.record.nodes.push(node);
        write(&repository().join("target/bench.json"), &self.record)
    }

    /// Prints the tables; after a complete run, replaces the documents' figures.
    pub(crate) fn end(mut self, everything: bool) -> Result<()> {
        println!("{}", tables::figures(&self.record));
        if !everything {
            println!(
                "Not everything was measured: {FILE} stays as it is; target/bench.json has the figures."
            );
            return Ok(());
        }
        let file = repository().join(FILE);
        self.record.peers = peers_of(&file)?;
        write(&file, &self.record)?;
        println!("{FILE} is new; this puts its figures into the documents:");
        println!("NUMACAST_WRITE_DOCS=1 cargo test --locked --test cli documents");
        Ok(())
    }
}

/// Returns the peers from the previous record: they are not measured here.
fn peers_of(file: &PathBuf) -> Result<Option<crate::record::Peers>> {
    if !file.exists() {
        return Ok(None);
    }
    let before: Record = serde_json::from_slice(&std::fs::read(file)?).context("an old record")?;
    Ok(before.peers)
}

fn write(file: &Path, record: &Record) -> Result<()> {
    Ok(std::fs::write(file, serde_json::to_string_pretty(record)? + "\n")?)
}

fn machine() -> BTreeMap<String, String> {
    let first = |file: &str, key: &str| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
        line.split_once(':').map_or(line, |(_, value)| value).trim().to_owned()
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    // The rest of the version names its builder.
    let kernel = first("/proc/sys/kernel/osrelease", "").split('-').next().unwrap_or_default().to_owned();
    let load = first("/proc/loadavg", "").split(' ').take(3).collect::<Vec<_>>().join(" ");
    let facts = [
        ("CPU", first("/proc/cpuinfo", "model name")),
        ("cores", cores.to_string()),
        ("kernel", kernel),
        ("load average before", load),
    ];
    facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the last word of a program's version line: `Kubernetes v1.36.3`, `etcd Version: 3.6.13`.
fn version(program: &Path) -> String {
    let text = output_of(Command::new(program).arg("--version"));
    let line = text.lines().next().unwrap_or_default();
    line.split_whitespace().next_back().unwrap_or_default().to_owned()
}

fn output_of(command: &mut Command) -> String {
    let output = command.output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.trim().to_owned()
}
