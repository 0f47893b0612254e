//! Quantities are parsed as by Kubernetes' own type, in Go.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use numacast::quantity::Parsed;
use serde_json::Value;

use crate::support::parts::{fetched, repository, script};
use crate::support::seed;

/// Number of random texts.
const RANDOM: usize = 100_000;
/// How many of them are kept as vectors for the tests without Go.
const KEPT: usize = 3000;
const VECTORS: &str = "tests/vectors/quantities.tsv";
/// The module whose tests have the tables. The package is unchanged since v0.33 except for one method; its
/// tests have grown.
const TABLES: &str = "k8s.io/apimachinery@v0.37.0";

/// Returns the program's output, one line for each text.
fn lines_of(program: &Path, arguments: &[&str]) -> Result<Vec<String>> {
    let output = Command::new(program).args(arguments).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
}

/// Returns numacast's result for the text of one output line.
fn ours(line: &str) -> String {
    let text = line.split('\t').next().unwrap_or_default();
    let Ok(parsed) = Parsed::of(text) else { return text.to_owned() };
    let sign = parsed.quantity().nano().signum();
    format!("{text}\t{}\t{}\t{sign}", parsed.value(), parsed.milli_value())
}

#[test]
fn random_quantities_are_parsed_as_in_go() -> Result<()> {
    let Some(dir) = fetched(&["quantity"])? else { return Ok(()) };
    let seed = seed("random quantities") >> 1;
    let lines = lines_of(&dir.join("quantity"), &["random", &seed.to_string(), &RANDOM.to_string()])?;
    ensure!(lines.len() == RANDOM, "{} lines", lines.len());
    let wrong: Vec<&String> = lines.iter().filter(|line| ours(line) != **line).collect();
    let first = wrong.first().map(|line| format!("Go: {line:?}, ours: {:?}", ours(line)));
    ensure!(wrong.is_empty(), "{} of {RANDOM} differ: {}", wrong.len(), first.unwrap_or_default());
    let read = lines.iter().filter(|line| line.contains('\t')).count();
    eprintln!("{read} of them are quantities");
    ensure!(read > RANDOM / 2 && read < RANDOM, "{read} of them are quantities");
    Ok(())
}

/// Returns the directory of upstream's tests.
fn tables() -> Result<PathBuf> {
    let mut go = Command::new("go");
    let output = go.args(["mod", "download", "-json", TABLES]).current_dir(script("kubernetes")).output()?;
    let module: Value = serde_json::from_slice(&output.stdout)?;
    Ok(Path::new(module["Dir"].as_str().context("no directory")?).join("pkg/api/resource"))
}

/// Checks the vectors that the tests without Go read. `NUMACAST_WRITE_VECTORS=1` writes them.
#[test]
fn the_vectors_are_the_results_of_go() -> Result<()> {
    if std::env::var_os("NUMACAST_WRITE_VECTORS").is_none() {
        return Ok(());
    }
    let dir = fetched(&["quantity"])?.context("needs Go")?;
    let program = dir.join("quantity");
    let tables = tables()?;
    let tables = lines_of(&program, &["tables", tables.to_str().context("a path that is no text")?])?;
    let random = lines_of(&program, &["random", "19", &KEPT.to_string()])?;
    let mut file = String::new();
    writeln!(file, "# text, Value(), MilliValue(), Sign() in Go; a text alone is not a quantity")?;
    writeln!(
        file,
        "# NUMACAST_WRITE_VECTORS=1 cargo test --locked --test real the_vectors_are_the_results_of_go"
    )?;
    writeln!(file, "# the tables of {TABLES}, pkg/api/resource")?;
    let mut seen = BTreeSet::new();
    for line in tables.iter().filter(|line| seen.insert(*line)) {
        writeln!(file, "{line}")?;
    }
    writeln!(file, "# random")?;
    for line in random.iter().filter(|line| seen.insert(*line)) {
        writeln!(file, "{line}")?;
    }
    std::fs::write(repository().join(VECTORS), file)?;
    Ok(())
}
