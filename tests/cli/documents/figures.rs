//! The figures of README.md, docs/performance.md and docs/internals/benchmarks.md match the last complete run of
//! `make bench`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

#[allow(dead_code, reason = "other programs use the rest")]
#[path = "../../real/support/document.rs"]
mod document;
#[allow(dead_code, reason = "the benchmark writes what is only read here")]
#[path = "../../../benches/agent/record.rs"]
mod record;
#[path = "../../../benches/agent/tables.rs"]
mod tables;
#[allow(dead_code, reason = "the benchmark sets what is only named here")]
#[path = "../../../benches/agent/variants.rs"]
mod variants;
#[path = "../../../benches/agent/zones.rs"]
mod zones;

use record::{Figures, Node, PeerFigures, Quantiles, Record};
use serde_json::json;
use variants::VARIANTS;
use zones::{Zones, current_since};

fn recorded() -> Result<Record> {
    serde_json::from_str(&super::read(record::FILE)).context(record::FILE)
}

/// A single test for all files, so that README.md cannot differ from docs/performance.md.
#[test]
fn the_documents_have_the_figures_of_the_last_run() -> Result<()> {
    let record = recorded()?;
    let is = |file, name, right: &str| document::section(file, name, right, "--test cli documents");
    is("docs/internals/benchmarks.md", "figures", &tables::figures(&record))?;
    is("docs/performance.md", "default", &tables::defaults(&record).context("no default")?)?;
    is("docs/performance.md", "peers", &tables::peers(&record).context("no peers")?)?;
    is("README.md", "comparison", &tables::comparison(&record).context("no default, or no peers")?)
}

/// The record is complete: both nodes, the default first, and the same variants on both.
#[test]
fn the_record_is_complete() -> Result<()> {
    let record = recorded()?;
    let names = |node: &Node| node.variants.iter().map(|of| of.variant.clone()).collect::<Vec<_>>();
    assert_eq!(
        record.nodes.iter().map(|node| node.machine.as_str()).collect::<Vec<_>>(),
        ["two-by-eight", "eight-by-sixty-four"]
    );
    for node in &record.nodes {
        assert_eq!(names(node), VARIANTS.map(|variant| variant.name));
        assert!(node.floor.is_some() && node.floor_when_idle.is_some(), "{} has no floor", node.title);
    }
    Ok(())
}

fn quantiles(samples: &[u64]) -> Option<Quantiles> {
    Quantiles::of(&samples.iter().map(|ms| Duration::from_millis(*ms)).collect::<Vec<_>>())
}

#[test]
fn of_no_samples_there_are_no_quantiles() {
    assert_eq!(quantiles(&[]), None);
}

#[test]
fn a_quantile_is_one_of_the_samples() {
    let one = Quantiles { count: 1, p50: 7.0, p99: 7.0, max: 7.0 };
    assert_eq!(quantiles(&[7]), Some(one));
    let four = Quantiles { count: 4, p50: 2.0, p99: 4.0, max: 4.0 };
    assert_eq!(quantiles(&[4, 1, 3, 2]), Some(four));
    let samples: Vec<u64> = (1..=200).rev().collect();
    let many = Quantiles { count: 200, p50: 100.0, p99: 198.0, max: 200.0 };
    assert_eq!(quantiles(&samples), Some(many));
}

#[test]
fn figures_have_three_digits() {
    for (value, text) in [
        (1717.4, "1717"),
        (100.0, "100"),
        (24.13, "24.1"),
        (3.0, "3"),
        (3.046, "3.05"),
        (0.0264, "0.026"),
        (0.0, "0"),
        (-0.0001, "0"),
        (-1.25, "-1.25"),
    ] {
        assert_eq!(tables::short(value), text);
    }
}

/// Returns a record of a node where everything is well within its budget.
fn calm() -> Record {
    let some = |ms| Quantiles { count: 10, p50: ms, p99: ms + 1.0, max: ms + 2.0 };
    let figures = Figures {
        variant: "default".to_owned(),
        title: "default".to_owned(),
        first_object: some(50.0),
        allocation: some(11.5),
        release: some(30.0),
        release_since_listed: some(20.0),
        ..Figures::default()
    };
    let node = Node {
        machine: "two-by-eight".to_owned(),
        title: "2 zones".to_owned(),
        floor: Some(some(10.0)),
        floor_when_idle: Some(some(5.0)),
        variants: vec![figures],
    };
    let run = recorded().map(|record| record.run);
    Record { run: run.unwrap(), nodes: vec![node], peers: None }
}

#[test]
fn a_table_has_a_column_for_each_variant_and_the_budgets() {
    let mut record = calm();
    let node = &mut record.nodes[0];
    let mut other = node.variants[0].clone();
    (other.title, other.allocation.p50) = ("other".to_owned(), 12.25);
    node.variants.push(other);
    let text = tables::figures(&record);
    for line in [
        "### 2 zones",
        "|  | budget | default | other |",
        "| allocation, p50, ms | - | 11.5 | 12.2 |",
        "| allocation less the floor, p50, ms | 2 | 1.5 | 2.25 |",
        "The default is within every budget.",
    ] {
        assert!(text.lines().any(|one| one == line), "`{line}` is not in\n{text}");
    }
}

#[test]
fn what_is_over_its_budget_is_listed() {
    let mut record = calm();
    let default = &mut record.nodes[0].variants[0];
    default.release_since_listed.p99 = 120.0;
    default.writes_per_change = 3.0;
    let text = tables::figures(&record);
    let listed = text.split_once("Over budget in the default:\n\n").expect("nothing is listed").1;
    let right = "- 2 zones: release, from the last List with the pod, p99, ms: 120 of 100\n\
                 - 2 zones: writes per change: 3 of 1.5\n";
    assert_eq!(listed, right);
}

#[test]
fn what_was_not_measured_of_a_peer_is_a_dash() -> Result<()> {
    let mut record = recorded()?;
    let peers = record.peers.as_mut().context("no peers")?;
    peers.publishers.truncate(1);
    peers.publishers[0].large = PeerFigures::default();
    let text = tables::peers(&record).context("no peers")?;
    let line = text.lines().find(|line| line.starts_with("| writes when nothing changes")).unwrap();
    let cell = line.split('|').nth(2).unwrap().trim();
    assert_eq!(cell, "0 in 70 s / -");
    Ok(())
}

/// Returns two zones with these numbers of available CPUs.
fn zones(free: [u64; 2]) -> Zones {
    let zone = |id: usize| {
        let cpu = json!({"name": "cpu", "capacity": "8", "available": free[id].to_string()});
        json!({"name": format!("node-{id}"), "type": "Node", "resources": [cpu]})
    };
    Zones::of(&json!({"zones": [zone(0), zone(1)]})).unwrap()
}

#[test]
fn free_cpus_are_those_of_all_zones() {
    assert_eq!(zones([3, 4]).free_cpus(), 7);
}

/// Returns the second from which the object was correct, for versions that are a second apart.
fn right_after(versions: &[[u64; 2]]) -> Option<u64> {
    let start = Instant::now();
    let at = |second| start + Duration::from_secs(second);
    let versions: Vec<_> = (0..).zip(versions).map(|(second, free)| (at(second), zones(*free))).collect();
    current_since(&versions).map(|instant| instant.duration_since(start).as_secs())
}

#[test]
fn an_object_is_right_from_the_first_version_that_says_what_the_last_one_says() {
    assert_eq!(right_after(&[]), None);
    assert_eq!(right_after(&[[7, 8]]), Some(0));
    // Withheld without a change, then correct, then a change of something else.
    assert_eq!(right_after(&[[8, 8], [7, 8], [7, 8]]), Some(1));
    // Reserved in every zone, then accounted for.
    assert_eq!(right_after(&[[7, 7], [7, 8]]), Some(1));
    // The first correct version is replaced again.
    assert_eq!(right_after(&[[7, 8], [8, 8], [7, 8]]), Some(2));
}
