//! The tables about loads.

use std::fmt::Write as _;
use std::time::Duration;

use numacast::controller::NudgePlan;

use super::load::{Cell, Mean, QUEUES, avoidable_rejections, means};
use super::{Output, Parameters, Setup, WITHOUT_NUDGES, default_numacast, name};
use crate::run::controller::Nudges;
use crate::run::exporter::{ExporterKind, WITHHOLD_AFTER, WRITE_DELAY};
use crate::run::measurements::percentile;
use crate::run::plugin::{Cache, Informer};
use crate::run::time::{MS, S, Span, seconds};

/// The resync periods, in seconds.
const PERIODS: [u64; 3] = [1, 5, 10];

fn all_exporters() -> [Setup; 6] {
    [
        (ExporterKind::None, Nudges::None),
        (ExporterKind::Nfd, Nudges::None),
        (ExporterKind::Rte, Nudges::None),
        (ExporterKind::KubeletView, Nudges::default_plan()),
        WITHOUT_NUDGES,
        default_numacast(),
    ]
}

/// Joins the three values for the periods.
fn three(means: &[Mean], of: impl Fn(&Mean) -> String) -> String {
    means.iter().map(of).collect::<Vec<_>>().join(" / ")
}

pub(super) fn measured(parameters: &Parameters) -> Output {
    let periodic = |ms: u64| (ExporterKind::DEFAULT, Nudges::Periodic(ms * MS, 12 * S));
    // CPUs busy at a resync of 5 s, and of 1 s.
    let rows = [
        ((ExporterKind::None, Nudges::None), "86-90; 83", "90; 85"),
        ((ExporterKind::Nfd, Nudges::None), "6-40; 38", "65-75; 53"),
        ((ExporterKind::Rte, Nudges::None), "37-52", "56-66"),
        (WITHOUT_NUDGES, "46", "58-66; 63"),
        (periodic(1000), "32-51", "66-78"),
        (periodic(300), "-", "65-79"),
        (default_numacast(), "49", "68"),
    ];
    let cell = |setup, resync, queue: usize| Cell {
        backoff: QUEUES[queue].1,
        runs: 60,
        time: 120,
        ..Cell::new(parameters, setup, resync, 6)
    };
    let cells = rows.iter().flat_map(|(setup, ..)| [cell(*setup, 5, 0), cell(*setup, 1, 1)]);
    let cells: Vec<Cell> = cells.collect();
    let found = means(parameters, &cells);
    let mut lines = "| | 5 s, measured | 5 s, model | 1 s, measured | 1 s, model | rejected, model |\n\
         |---|---|---|---|---|---|\n"
        .to_owned();
    for ((setup, five, one), mean) in rows.iter().zip(found.chunks(2)) {
        let range = |mean: &Mean| format!("{:.0} ({:.0}-{:.0})", mean.busy, mean.spread.0, mean.spread.1);
        let (name, rejected) = (name(*setup), mean[0].rejected.max(mean[1].rejected));
        let (in_five, in_one) = (range(&mean[0]), range(&mean[1]));
        let _ = writeln!(lines, "| {name} | {five} | {in_five} | {one} | {in_one} | {rejected:.1} % |");
    }
    (lines, avoidable_rejections(&cells, &found))
}

pub(super) fn by_run_time(parameters: &Parameters, run_times: &[u64], odd: bool) -> Output {
    let mut rows: Vec<(u64, Setup, Informer)> = Vec::new();
    for run_time in run_times {
        rows.extend(all_exporters().map(|setup| (*run_time, setup, Informer::Dedicated)));
        rows.push((*run_time, default_numacast(), Informer::Shared));
    }
    let cells: Vec<Cell> = rows
        .iter()
        .flat_map(|(run_time, setup, informer)| {
            let cell = |resync| Cell::new(parameters, *setup, resync, *run_time);
            PERIODS.map(|resync| Cell { informer: *informer, odd, ..cell(resync) })
        })
        .collect();
    let found = means(parameters, &cells);
    let mut lines = "| run time | exporter | rejected | busy, % | create to Running, s | writes per pod |\n\
         |---|---|---|---|---|---|\n"
        .to_owned();
    for ((run_time, setup, informer), means) in rows.iter().zip(found.chunks(PERIODS.len())) {
        let name = name(*setup) + if *informer == Informer::Shared { ", `Shared`" } else { "" };
        let rejected = means.iter().map(|mean| mean.rejected).fold(0.0, f64::max);
        let busy = three(means, |mean| format!("{:.0}", mean.busy));
        // If nothing ever runs, there is no waiting time.
        let waits = three(means, |mean| match mean.busy {
            busy if busy < 0.5 => "never".to_owned(),
            _ => format!("{:.1}, {:.0}", mean.p50, mean.p90),
        });
        let _ = writeln!(
            lines,
            "| {run_time} s | {name} | {rejected:.1} % | {busy} | {waits} | {:.1} |",
            means[1].writes
        );
    }
    (lines, avoidable_rejections(&cells, &found))
}

pub(super) fn queues(parameters: &Parameters) -> Output {
    let nfd = (ExporterKind::Nfd, Nudges::None);
    let rte = (ExporterKind::Rte, Nudges::None);
    let setups = [nfd, rte, WITHOUT_NUDGES, default_numacast()];
    let mut lines =
        "| scheduler, backoff | NFD's updater | RTE, 1 s | numacast, no nudge | numacast, nudges |\n\
         |---|---|---|---|---|\n"
            .to_owned();
    let mut failures = Vec::new();
    for (name, backoff) in QUEUES {
        let cells: Vec<Cell> = setups
            .iter()
            .flat_map(|setup| {
                PERIODS.map(|resync| Cell { backoff, ..Cell::new(parameters, *setup, resync, 6) })
            })
            .collect();
        let found = means(parameters, &cells);
        let busy: Vec<String> = found
            .chunks(PERIODS.len())
            .map(|means| three(means, |mean| format!("{:.0}", mean.busy)))
            .collect();
        let _ = writeln!(lines, "| {name} | {} |", busy.join(" | "));
        failures.append(&mut avoidable_rejections(&cells, &found));
    }
    (lines, failures)
}

/// CPUs busy, in percent, at each resync period.
fn busy(means: &[Mean]) -> String {
    three(means, |mean| format!("{:.0}", mean.busy))
}

pub(super) fn nodes(parameters: &Parameters) -> Output {
    let mut lines = "| nodes | exporter | rejected | busy, % | create to Running, mean, s | writes per pod \
                     | nudges per second |\n\
                     |---|---|---|---|---|---|---|\n"
        .to_owned();
    let setups = [(ExporterKind::Nfd, Nudges::None), WITHOUT_NUDGES, default_numacast()];
    let kinds = [(1, false), (1, true), (MANY_NODES, false), (MANY_NODES, true)];
    let rows: Vec<_> = kinds.iter().flat_map(|kind| setups.map(|setup| (*kind, setup))).collect();
    let cells: Vec<Cell> = rows
        .iter()
        .flat_map(|((nodes, odd), setup)| {
            let cell = |resync| Cell::new(parameters, *setup, resync, 6).on(*nodes);
            PERIODS.map(|resync| Cell { odd: *odd, ..cell(resync) })
        })
        .collect();
    let found = means(parameters, &cells);
    for (((nodes, odd), setup), means) in rows.iter().zip(found.chunks(PERIODS.len())) {
        let rejected = means.iter().map(|mean| mean.rejected).fold(0.0, f64::max);
        let waits =
            three(
                means,
                |mean| if mean.busy < 0.5 { "never".to_owned() } else { format!("{:.1}", mean.wait) },
            );
        let writes = three(means, |mean| format!("{:.1}", mean.writes));
        let nudges = three(means, |mean| format!("{:.2}", mean.nudges));
        let _ = writeln!(
            lines,
            "| {nodes}{} | {} | {rejected:.1} % | {} | {waits} | {writes} | {nudges} |",
            if *odd { ", odd" } else { "" },
            name(*setup),
            busy(means)
        );
    }
    (lines, avoidable_rejections(&cells, &found))
}

/// The size of a cluster with many nodes.
const MANY_NODES: usize = 50;

pub(super) fn nudges(parameters: &Parameters) -> Output {
    let periodic = |ms: u64| (Nudges::Periodic(ms * MS, 12 * S), false);
    let plan = |first: u64, last: u64| {
        let (first, last) = (Duration::from_millis(first), Duration::from_millis(last));
        (Nudges::Plan(NudgePlan { first, last, ..NudgePlan::default() }), false)
    };
    let rows = [
        ("none", (Nudges::None, false)),
        ("each 0.3 s for 12 s", periodic(300)),
        ("each 1 s for 12 s", periodic(1000)),
        ("each 2 s for 12 s", periodic(2000)),
        ("each 4 s for 12 s", periodic(4000)),
        ("0.65 s, then doubled up to 10.4 s", plan(650, 10_400)),
        ("numacast's plan", (Nudges::default_plan(), false)),
        ("oracle", (Nudges::None, true)),
    ];
    // Number of nodes, run time, queue.
    let kinds = [(1, 6, 0), (1, 60, 0), (1, 60, 2), (MANY_NODES, 6, 0), (MANY_NODES, 300, 0)];
    let mut lines =
        "| nudges | one node, run time 6 s | 60 s | 60 s, no early tries | 50 nodes, 6 s | 50 nodes, 300 s \
         |\n|---|---|---|---|---|---|\n"
            .to_owned();
    let mut failures = Vec::new();
    for (name, (nudges, oracle)) in rows {
        let cells: Vec<Cell> = kinds
            .iter()
            .flat_map(|(nodes, run_time, queue)| {
                PERIODS.map(|resync| Cell {
                    backoff: QUEUES[*queue].1,
                    oracle,
                    ..Cell::new(parameters, (ExporterKind::DEFAULT, nudges), resync, *run_time).on(*nodes)
                })
            })
            .collect();
        let found = means(parameters, &cells);
        let row: Vec<String> = found
            .chunks(PERIODS.len())
            .map(|means| format!("{} ({:.2})", busy(means), means[1].nudges))
            .collect();
        let _ = writeln!(lines, "| {name} | {} |", row.join(" | "));
        failures.append(&mut avoidable_rejections(&cells, &found));
    }
    (lines, failures)
}

pub(super) fn write_delay(parameters: &Parameters) -> Output {
    let mut lines =
        "| waits | run time 6 s | 6 s, odd | 60 s | 50 nodes, 6 s |\n|---|---|---|---|---|\n".to_owned();
    let kinds = [(1, 6, false), (1, 6, true), (1, 60, false), (MANY_NODES, 6, false)];
    let mut failures = Vec::new();
    for ms in [0, 50, 100, 200, 400] {
        let exporter = ExporterKind::Numacast { withhold_after: WITHHOLD_AFTER, write_delay: ms * MS };
        let setup = (exporter, Nudges::default_plan());
        let cells: Vec<Cell> = kinds
            .iter()
            .flat_map(|(nodes, run_time, odd)| {
                let cell = |resync| Cell::new(parameters, setup, resync, *run_time).on(*nodes);
                PERIODS.map(|resync| Cell { odd: *odd, ..cell(resync) })
            })
            .collect();
        let found = means(parameters, &cells);
        let row: Vec<String> = found
            .chunks(PERIODS.len())
            .map(|means| format!("{} ({:.1})", busy(means), means[1].writes))
            .collect();
        let _ = writeln!(lines, "| {ms} ms | {} |", row.join(" | "));
        failures.append(&mut avoidable_rejections(&cells, &found));
    }
    (lines, failures)
}

pub(super) fn direct(parameters: &Parameters) -> Output {
    let unlimited = |nodes, run_time, odd| (nodes, run_time, odd, None);
    let kinds = [
        unlimited(1, 6, false),
        unlimited(1, 6, true),
        unlimited(MANY_NODES, 6, false),
        unlimited(MANY_NODES, 300, false),
        (MANY_NODES, 300, false, Some((50, 100))),
    ];
    let mut lines =
        "| nodes | run time | client | cache | | rejected | busy, % | create to Running, mean, s \
                     | writes per pod | GETs per pod |\n\
                     |---|---|---|---|---|---|---|---|---|---|\n"
            .to_owned();
    let mut cells = Vec::new();
    for (nodes, run_time, odd, client) in kinds {
        for (cache, setup) in [
            (Cache::OverReserve, default_numacast()),
            (Cache::DiscardReserved, (ExporterKind::Direct { reserves: false }, Nudges::None)),
            (Cache::DiscardReserved, (ExporterKind::Direct { reserves: true }, Nudges::None)),
            (Cache::Passthrough, (ExporterKind::Direct { reserves: false }, Nudges::None)),
            (Cache::Passthrough, (ExporterKind::Direct { reserves: true }, Nudges::None)),
        ] {
            let cell = Cell::new(parameters, setup, 5, run_time).on(nodes);
            cells.push(Cell { cache, client, odd, ..cell });
        }
    }
    let found = means(parameters, &cells);
    for (cell, mean) in cells.iter().zip(&found) {
        let client = cell.client.map_or("any".to_owned(), |(rate, _)| format!("{rate}/s"));
        let is_reserving = cell.exporter == ExporterKind::Direct { reserves: true };
        let reservations = if is_reserving { "reservations" } else { "" };
        let cache = match cell.cache {
            Cache::OverReserve => "`OverReserve`, resync 5 s".to_owned(),
            cache => format!("`{cache:?}`"),
        };
        let _ = writeln!(
            lines,
            "| {}{} | {} s | {client} | {cache} | {reservations} | {:.2} % | {:.0} | {:.1} | {:.1} | {:.1} |",
            cell.nodes,
            if cell.odd { ", odd" } else { "" },
            cell.run_time,
            mean.rejected,
            mean.busy,
            mean.wait,
            mean.writes,
            mean.reads
        );
    }
    (lines, avoidable_rejections(&cells, &found))
}

pub(super) fn late(parameters: &Parameters) -> Output {
    let mut lines =
        "| pods that bind late | no nudge | nudges | 50 nodes, nudges | `DiscardReserved`, reservations | \
                     `Passthrough`, reservations |\n|---|---|---|---|---|---|\n"
            .to_owned();
    let direct = (ExporterKind::Direct { reserves: true }, Nudges::None);
    let mut failures = Vec::new();
    for share in [0, 20, 100, 500] {
        let columns = [
            (Cache::OverReserve, WITHOUT_NUDGES, 1),
            (Cache::OverReserve, default_numacast(), 1),
            (Cache::OverReserve, default_numacast(), MANY_NODES),
            (Cache::DiscardReserved, direct, 1),
            (Cache::Passthrough, direct, 1),
        ];
        let cells: Vec<Cell> = columns
            .iter()
            .map(|(cache, setup, nodes)| {
                let cell = Cell::new(parameters, *setup, 1, 60).on(*nodes);
                Cell { cache: *cache, late_per_mille: share, ..cell }
            })
            .collect();
        let found = means(parameters, &cells);
        let column = |mean: &Mean| format!("{:.1} ({:.1}), {:.0}", mean.rejected, mean.unbound, mean.busy);
        let row: Vec<String> = found.iter().map(column).collect();
        let _ = writeln!(lines, "| {} % | {} |", share / 10, row.join(" | "));
        failures.append(&mut avoidable_rejections(&cells, &found));
    }
    (lines, failures)
}

pub(super) fn withhold_after(parameters: &Parameters) -> Output {
    let starts = [("10-40 ms", Span(10 * MS, 40 * MS)), ("0.5-3 s", Span(500 * MS, 3 * S))];
    let waits = [0, 10, 20, 40, 100];
    let rows: Vec<_> = starts.iter().flat_map(|start| waits.map(|ms| (*start, ms))).collect();
    let cells: Vec<Cell> = rows
        .iter()
        .map(|((_, start), ms)| {
            let exporter = ExporterKind::Numacast { withhold_after: ms * MS, write_delay: WRITE_DELAY };
            let cell = Cell::new(parameters, (exporter, Nudges::default_plan()), 1, 6);
            Cell { runs: 60, start: Some(*start), ..cell }
        })
        .collect();
    let found = means(parameters, &cells);
    let mut lines = "| containers start in | `withholdAfter` | rejected (all in the window) | busy \
                     | withheld per pod | writes per pod | window, ms: p50 / p99 / max |\n\
                     |---|---|---|---|---|---|---|\n"
        .to_owned();
    for (((start, _), ms), mean) in rows.iter().zip(&found) {
        let window = |percent| seconds(percentile(&mean.windows, percent)) * 1e3;
        let _ = writeln!(
            lines,
            "| {start} | {ms} ms | {:.2} % | {:.0} % | {:.2} | {:.1} | {:.0} / {:.0} / {:.0} |",
            mean.rejected,
            mean.busy,
            mean.withheld_writes,
            mean.writes,
            window(50),
            window(99),
            window(100)
        );
    }
    (lines, Vec::new())
}
