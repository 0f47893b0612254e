//! The table about random walks.

use std::fmt::Write as _;

use super::{Output, Parameters, Setup, WITHOUT_NUDGES, all, default_numacast, name};
use crate::run::bug::Bug;
use crate::run::controller::Nudges;
use crate::run::exporter::ExporterKind;
use crate::run::measurements::{Cause, percentile};
use crate::run::plugin::{Cache, Informer};
use crate::run::time::{Time, seconds};
use crate::run::walk::{self, Report, Walk};

/// Steps of one walk; then another one begins with other settings.
const WALK_STEPS: u64 = 2_000;

pub(super) fn walks(parameters: &Parameters) -> Output {
    let direct = ExporterKind::Direct { reserves: true };
    let row = |setup: Setup, part: u64| {
        (setup, Cache::OverReserve, 1, Informer::Dedicated, parameters.steps / part)
    };
    let with_bug = |bug| row((ExporterKind::WithBug(bug), Nudges::default_plan()), 10);
    let rows = [
        (default_numacast(), Cache::OverReserve, 1, Informer::Dedicated, parameters.steps * 3 / 10),
        (default_numacast(), Cache::OverReserve, 1, Informer::Shared, parameters.steps * 3 / 10),
        (default_numacast(), Cache::OverReserve, 3, Informer::Dedicated, parameters.steps / 10),
        row(WITHOUT_NUDGES, 5),
        ((direct, Nudges::None), Cache::DiscardReserved, 1, Informer::Dedicated, parameters.steps / 10),
        ((direct, Nudges::None), Cache::Passthrough, 1, Informer::Dedicated, parameters.steps / 10),
        row((ExporterKind::KubeletView, Nudges::default_plan()), 10),
        row((ExporterKind::Nfd, Nudges::None), 10),
        row((ExporterKind::Rte, Nudges::None), 10),
        with_bug(Bug::NeverWithholds),
        with_bug(Bug::WithholdsByPossibleSet),
        with_bug(Bug::StaleZones),
    ];
    let mut lines = "| exporter | cache | nodes | informer | steps, walks | pods placed \
                     | overcommits in the window | others | walks that end frozen | \
                     matches again after, mean | CPUs idle while a pod waits for them | writes per pod |\n\
                     |---|---|---|---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    let (mut failures, mut windows) = (Vec::new(), Vec::new());
    for (setup, cache, nodes, informer, steps) in rows {
        let numbers: Vec<u64> = (0..steps.div_ceil(WALK_STEPS)).collect();
        let walk = Walk { steps: WALK_STEPS, informer, cache, nodes, nudges: setup.1, ..Walk::default() };
        let run = |number: &u64| run_walk(parameters, &walk, setup.0, *number);
        let reports = all(parameters.jobs, &numbers, run);
        let _ = writeln!(
            lines,
            "| {} | `{cache:?}` | {nodes} | `{informer:?}` | {} |",
            name(setup),
            walk_row(&reports)
        );
        if matches!(setup.0, ExporterKind::Numacast { .. } | ExporterKind::Direct { .. }) {
            failures.extend(reports.iter().filter_map(failure));
        }
        if setup == default_numacast() {
            windows.extend(reports.iter().flat_map(|report| report.measurements.windows.iter().copied()));
        }
    }
    windows.sort_unstable();
    let window = |percent| seconds(percentile(&windows, percent)) * 1e3;
    let _ = writeln!(
        lines,
        "\nThe window, from the plugin's reservation to an object that accounts for the pod or withholds its \
         fingerprint, over {} pods of numacast with slow watches, writes, admissions and restarts: \
         p50 {:.0} ms, p90 {:.0} ms, p99 {:.0} ms, at most {:.1} s.",
        windows.len(),
        window(50),
        window(90),
        window(99),
        window(100) / 1e3
    );
    (lines, failures)
}

fn run_walk(parameters: &Parameters, walk: &Walk, exporter: ExporterKind, number: u64) -> Report {
    let seed = parameters.seed.wrapping_add(number);
    // A quarter of the walks have no faults, and half have pods of other schedulers. The seed decides which,
    // so that it alone reproduces a walk.
    let (foreign, faults) = (!seed.is_multiple_of(2), !seed.is_multiple_of(4));
    walk::run(&Walk { foreign, faults, ..*walk }, seed, exporter)
}

fn failure(report: &Report) -> Option<String> {
    let (avoidable, unknown) = (report.rejected_for(Cause::Avoidable), report.rejected_for(Cause::Unknown));
    let failed = avoidable + unknown > 0 || report.frozen;
    let command = "make model ARGS='--only walk --steps 5000'";
    failed.then(|| {
        let (frozen, seed) = (report.frozen, report.seed);
        format!("{avoidable} avoidable, {unknown} unknown, frozen: {frozen}: NUMACAST_SEED={seed} {command}")
    })
}

fn walk_row(reports: &[Report]) -> String {
    let sum = |of: &dyn Fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    let placed = sum(&|report| report.placed);
    let count = |report: &Report, cause| report.rejected_for(cause) as u64;
    let others = sum(&|report| count(report, Cause::Avoidable) + count(report, Cause::Unknown));
    let total: Time = sum(&|report| report.measurements.disagreements.iter().sum());
    let times = sum(&|report| report.measurements.disagreements.len() as u64).max(1);
    format!(
        "{}, {} | {placed} | {} | {others} | {} | {:.2} s | {:.1} % | {:.1}",
        sum(&|report| report.steps),
        reports.len(),
        sum(&|report| count(report, Cause::Window)),
        sum(&|report| u64::from(report.frozen)),
        seconds(total) / times as f64,
        sum(&|report| report.idle) as f64 / reports.len() as f64 / 10.0,
        sum(&|report| report.measurements.writes) as f64 / placed.max(1) as f64,
    )
}
