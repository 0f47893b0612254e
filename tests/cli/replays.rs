//! Recordings of unusual machines and kubelets, each with a table of the expected result.
//!
//! `tests/replays/<name>.json` is a recording (`numacast snapshot --record`), `<name>.txt` its table, written
//! by hand or by the simulation's oracle: zones, costs, attributes and warnings, one per line, and `#`
//! comments. `node-1..62` stands for equal zones, `255*61` for equal costs. With `NUMACAST_WRITE_REPLAYS=1`
//! the tables are rewritten from numacast's output, for review.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use numacast::nrt::{NodeResourceTopology, Zone};
use numacast::quantity::Quantity;
use serde_json::Value;

use crate::support::{Outcome, numacast};

/// The expected result for one node, one item per line; zones are kept apart so that equal ones can be
/// merged.
#[derive(Debug, Default, PartialEq, Eq)]
struct Table {
    /// Each zone's resources: `cpu 4 3 3`.
    resources: BTreeMap<u16, Vec<String>>,
    /// Each zone's row of costs: `10 21`.
    costs: BTreeMap<u16, Vec<String>>,
    /// Each zone's attributes: `memoryGroup 0-1`.
    attributes: BTreeMap<u16, Vec<String>>,
    /// Attributes, warnings and errors, in order.
    rest: Vec<String>,
}

impl Table {
    /// Parses a table, normalising white space.
    fn parse(text: &str) -> Self {
        let mut table = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let Some(zones) = words[0].strip_prefix("node-") else {
                table.rest.push(words.join(" "));
                continue;
            };
            let (first, last) = zones.split_once("..").unwrap_or((zones, zones));
            for zone in first.parse().unwrap()..=last.parse().unwrap() {
                match words[1] {
                    "costs" => drop(table.costs.insert(zone, words[2..].iter().flat_map(repeated).collect())),
                    "attribute" => table.attributes.entry(zone).or_default().push(words[2..].join(" ")),
                    _ => table.resources.entry(zone).or_default().push(words[1..].join(" ")),
                }
            }
        }
        table
    }

    /// Converts the output of `numacast snapshot --replay`.
    fn actual(outcome: &Outcome) -> Self {
        let mut table = Self::default();
        let mut warnings = Vec::new();
        for line in outcome.stderr.lines() {
            match serde_json::from_str::<Value>(line) {
                Ok(entry) => warnings.push(format!("warning {}", entry["message"].as_str().unwrap())),
                Err(_) => table.rest.push(format!("error {}", line.strip_prefix("numacast: ").unwrap())),
            }
        }
        if outcome.code == Some(0) {
            let object: NodeResourceTopology = serde_json::from_str(&outcome.stdout).unwrap();
            for zone in &object.spec.zones {
                table.zone(zone);
            }
            let attributes = object.spec.attributes.iter().flatten();
            table.rest.extend(attributes.map(|entry| format!("attribute {} {}", entry.name, entry.value)));
        }
        table.rest.extend(warnings);
        table
    }

    fn zone(&mut self, zone: &Zone) {
        let id: u16 = zone.name.strip_prefix("node-").unwrap().parse().unwrap();
        let resources = zone.resources.iter().flatten().map(|resource| {
            let amounts = [&resource.capacity, &resource.allocatable, &resource.available];
            let amounts = amounts.map(|amount| self::amount(&resource.name, amount));
            format!("{} {}", resource.name, amounts.join(" "))
        });
        self.resources.insert(id, resources.collect());
        let costs = zone.costs.iter().flatten().map(|cost| cost.value.to_string());
        self.costs.insert(id, costs.collect());
        let attributes: Vec<String> =
            zone.attributes.iter().flatten().map(|entry| format!("{} {}", entry.name, entry.value)).collect();
        if !attributes.is_empty() {
            self.attributes.insert(id, attributes);
        }
    }

    fn render(&self) -> String {
        let mut lines = Vec::new();
        for (zones, resources) in runs(&self.resources) {
            for resource in resources {
                let words: Vec<&str> = resource.split(' ').collect();
                lines.push(format!(
                    "{zones:<10} {:<24} {:>12} {:>12} {:>12}",
                    words[0], words[1], words[2], words[3]
                ));
            }
        }
        for (zones, costs) in runs(&self.costs) {
            let mut row: Vec<String> = Vec::new();
            for chunk in costs.chunk_by(|a, b| a == b) {
                match chunk {
                    [one] => row.push(one.clone()),
                    [one, other] => row.extend([one.clone(), other.clone()]),
                    _ => row.push(format!("{}*{}", chunk[0], chunk.len())),
                }
            }
            lines.push(format!("{zones:<10} costs {}", row.join(" ")));
        }
        for (zones, attributes) in runs(&self.attributes) {
            lines.extend(attributes.iter().map(|attribute| format!("{zones:<10} attribute {attribute}")));
        }
        lines.extend(self.rest.iter().cloned());
        lines.join("\n") + "\n"
    }
}

/// Expands `255*61` to 61 times 255.
fn repeated(word: &&str) -> Vec<String> {
    let (value, count) = word.split_once('*').unwrap_or((word, "1"));
    vec![value.to_owned(); count.parse().unwrap()]
}

/// Merges consecutive equal zones: `node-3` or `node-1..62`.
fn runs(zones: &BTreeMap<u16, Vec<String>>) -> Vec<(String, &Vec<String>)> {
    let all: Vec<(&u16, &Vec<String>)> = zones.iter().collect();
    let runs = all.chunk_by(|(first, actual), (next, same)| **next == **first + 1 && actual == same);
    runs.map(|run| {
        let (first, last) = (run[0].0, run[run.len() - 1].0);
        let name = if first == last { format!("node-{first}") } else { format!("node-{first}..{last}") };
        (name, run[0].1)
    })
    .collect()
}

/// Formats an amount; bytes use the largest unit that divides them.
fn amount(resource: &str, amount: &Quantity) -> String {
    let amount = amount.ceil();
    let bytes = resource == "memory" || resource.starts_with("hugepages-");
    let units = [("Gi", 30), ("Mi", 20), ("Ki", 10)];
    let whole = |(_, shift): &&(&str, u32)| amount > 0 && amount.trailing_zeros() >= *shift;
    match units.iter().find(whole).filter(|_| bytes) {
        Some((unit, shift)) => format!("{}{unit}", amount >> shift),
        None => amount.to_string(),
    }
}

fn files(extension: &str) -> BTreeSet<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/replays");
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|file| file.extension().is_some_and(|found| found == extension)).collect()
}

fn replay(recording: &Path) -> Outcome {
    let words = ["snapshot", "-o", "json", "--set", "log.format=json", "--replay"];
    numacast(&[words.as_slice(), &[recording.to_str().unwrap()]].concat())
}

/// Returns true if amounts are plain integers: other readers misread `12k` and `64G`, or fail.
fn plain(outcome: &Outcome) -> bool {
    let object: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let resources = object["zones"].as_array().into_iter().flatten().map(|zone| &zone["resources"]);
    resources.filter_map(Value::as_array).flatten().all(|resource| {
        let digits =
            |amount: &Value| amount.as_str().is_some_and(|text| text.bytes().all(|b| b.is_ascii_digit()));
        ["capacity", "allocatable", "available"].iter().all(|amount| digits(&resource[amount]))
    })
}

#[test]
fn every_recording_gives_its_table() {
    let recordings = files("json");
    let tables: BTreeSet<PathBuf> = recordings.iter().map(|file| file.with_extension("txt")).collect();
    let write = std::env::var("NUMACAST_WRITE_REPLAYS").is_ok_and(|value| value == "1");
    let mut wrong = Vec::new();
    for recording in &recordings {
        let outcome = replay(recording);
        let actual = Table::actual(&outcome);
        if outcome.code == Some(0) {
            assert!(plain(&outcome), "{}", recording.display());
        }
        let table = recording.with_extension("txt");
        let text = std::fs::read_to_string(&table).unwrap_or_default();
        if write {
            let comments = text.lines().take_while(|line| line.starts_with('#'));
            let comments: String = comments.map(|line| format!("{line}\n")).collect();
            std::fs::write(&table, comments + &actual.render()).unwrap();
        } else if actual != Table::parse(&text) {
            let expected = Table::parse(&text).render();
            wrong.push(format!("{}\nexpected:\n{expected}actual:\n{}", recording.display(), actual.render()));
        }
    }
    assert!(wrong.is_empty(), "{} of {} recordings:\n{}", wrong.len(), recordings.len(), wrong.join("\n"));
    assert!(recordings.len() > 60, "{}", recordings.len());
    assert_eq!(files("txt"), tables, "a table without a recording, or a recording without a table");
}

#[test]
fn a_table_reads_back_as_it_was_written() {
    let text = "node-0 cpu 4 3 3\nnode-1..3 cpu 0 0 0\nnode-0..3 costs 10 255*3\nwarning a  b\n";
    let table = Table::parse(text);
    assert_eq!(table.resources[&2], ["cpu 0 0 0"]);
    assert_eq!(table.costs[&3], ["10", "255", "255", "255"]);
    assert_eq!(Table::parse(&table.render()), table);
    assert_ne!(Table::parse(&text.replace("4 3 3", "4 3 2")), table);
    assert_ne!(Table::parse(&text.replace("255*3", "255*2")), table);
    assert_ne!(Table::parse(&text.replace("a  b", "a c")), table);
}
