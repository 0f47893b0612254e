//! The tables of `docs/proofs.md`.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::run::chance::{MS, S, Span, Time, seconds};
use crate::run::exporter::{PATIENCE, QUIET, Who, usual};
use crate::run::figures::{Cause, percentile};
use crate::run::load::{self, Load, Outcome};
use crate::run::ours::{Flaw, Nudges};
use crate::run::plugin::Informer;
use crate::run::queue::BackOff;
use crate::run::walk::{self, Report, Walk};
use crate::run::world::{Delays, Settings};

/// What the tables are made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bench {
    pub(crate) seed: u64,
    pub(crate) steps: u64,
    pub(crate) length: f64,
    pub(crate) jobs: usize,
}

/// One table; what is wrong with it comes beside its lines.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) make: fn(&Bench) -> (String, Vec<String>),
}

pub(crate) const ALL: &[Table] = &[
    Table {
        name: "measured",
        title: "CPUs busy in percent, on real parts (the real plugin, scheduler and kubelet; ranges of several runs of some minutes, \
                then one run of two minutes with the load of the model) and in the model (mean of 60 runs of two minutes, and the \
                lowest and highest of them). The resync of 1 s has a back-off of 1 to 2 s:",
        make: measured,
    },
    Table {
        name: "load",
        title: "The closed loop: pods that ask together for 110 % of 14 CPUs in two zones, each for 1 to 4; they live 6 s on average, then \
                half of them complete and half are deleted. Refused at any resync; CPUs busy and seconds from create to Running (p50, \
                p90) at a resync of 1 / 5 / 10 s; writes of the object at 5 s:",
        make: |bench| by_life(bench, &[6], false),
    },
    Table {
        name: "odd",
        title: "The same with one completed, one unpullable and one refused pod on the node, all Guaranteed:",
        make: |bench| by_life(bench, &[6], true),
    },
    Table { name: "lives", title: "Other lives:", make: |bench| by_life(bench, &[3, 30, 60, 300], false) },
    Table {
        name: "queue",
        title: "The scheduler's queue: CPUs busy at a resync of 1 / 5 / 10 s, in percent. Since 1.33 a pod that an event woke is \
                tried at once when nobody else waits, however long its back-off is:",
        make: queues,
    },
    Table {
        name: "nudges",
        title: "When to nudge: CPUs busy at a resync of 1 / 5 / 10 s, and nudges per pod at 5 s. The oracle wakes pods right \
                after each refresh of the plugin's cache, which nobody can see:",
        make: nudges,
    },
    Table {
        name: "patience",
        title: "How long a pod that was bound may be unaccounted before the object is held (`fingerprint.holdAfter`), resync 1 s, \
                life 6 s:",
        make: patience,
    },
    Table {
        name: "walk",
        title: "The random walk. Overcommits: pods that the plugin placed and the kubelet had to refuse; *in the window*: the \
                agent had not heard of the other pod's binding for long enough to act. The others were avoidable, but for pods \
                that somebody else placed at the same moment (not counted here). Frozen: at the end a pod that fits does not run within 15 \
                minutes:",
        make: walks,
    },
];

/// Every cell on its own, a few at once.
fn all<C: Sync, R: Send>(jobs: usize, cells: &[C], work: impl Fn(&C) -> R + Sync) -> Vec<R> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(index) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < cells.len())
                {
                    let result = work(&cells[index]);
                    results.lock().expect("a run has panicked").push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("a run has panicked");
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// One load under one exporter.
#[derive(Clone, Debug)]
struct Cell {
    who: Who,
    resync: Time,
    back_off: BackOff,
    informer: Informer,
    life: u64,
    odd: bool,
    oracle: bool,
    /// How long containers take to start, if not as usual.
    start: Option<Span>,
    runs: u64,
    /// Seconds of each run.
    time: u64,
}

impl Cell {
    fn new(bench: &Bench, who: Who, resync: u64, life: u64) -> Self {
        Self {
            who,
            resync: resync * S,
            back_off: QUEUES[0].1,
            informer: Informer::Dedicated,
            life,
            odd: false,
            oracle: false,
            start: None,
            runs: 4,
            time: (800.0_f64.max(100.0 * life as f64) * bench.length) as u64,
        }
    }

    fn run(&self, seed: u64) -> Outcome {
        let mut delays = Delays::default();
        delays.start = self.start.unwrap_or(delays.start);
        let patience = if let Who::Ours(_, patience) = self.who { patience } else { PATIENCE };
        let settings = Settings {
            grace: delays.grace(patience),
            delays,
            resync: self.resync,
            back_off: self.back_off,
            informer: self.informer,
            plugin: self.who != Who::Nobody,
            oracle: self.oracle,
            ..Settings::default()
        };
        let load = Load {
            percent: 110,
            sizes: &[1, 2, 3, 4],
            life: self.life * S,
            shortest: self.life * S / 6,
            again: Span(0, 10 * MS),
            odd_pods: self.odd,
            time: self.time * S,
        };
        load::run(settings, &load, self.who.exporter(self.informer), seed)
    }
}

/// The middle of several runs.
#[derive(Clone, Debug, Default)]
struct Mean {
    busy: f64,
    spread: (f64, f64),
    refused: f64,
    late: usize,
    unknown: usize,
    p50: f64,
    p90: f64,
    writes: f64,
    nudges: f64,
    holds: f64,
    windows: Vec<Time>,
}

fn means(bench: &Bench, cells: &[Cell]) -> Vec<Mean> {
    all(bench.jobs, cells, |cell| {
        // The same seeds for all cells: they differ by what is compared.
        let outcomes: Vec<Outcome> =
            (0..cell.runs).map(|run| cell.run(bench.seed.wrapping_add(run))).collect();
        mean(&outcomes)
    })
}

fn mean(outcomes: &[Outcome]) -> Mean {
    let count = outcomes.len() as f64;
    let created = outcomes.iter().map(|outcome| outcome.created).sum::<u64>().max(1) as f64;
    let sum = |of: &dyn Fn(&Outcome) -> f64| outcomes.iter().map(of).sum::<f64>();
    let mut busy: Vec<f64> = outcomes.iter().map(|outcome| outcome.busy).collect();
    busy.sort_by(f64::total_cmp);
    let mut windows: Vec<Time> = outcomes.iter().flat_map(|outcome| outcome.windows.clone()).collect();
    windows.sort_unstable();
    Mean {
        busy: 100.0 * sum(&|outcome| outcome.busy) / count,
        spread: (100.0 * busy[0], 100.0 * busy[busy.len() - 1]),
        refused: 100.0 * sum(&|outcome| outcome.refused as f64) / created,
        late: outcomes.iter().map(|outcome| outcome.refused_late).sum(),
        unknown: outcomes.iter().map(|outcome| outcome.unknown).sum(),
        p50: sum(&|outcome| seconds(outcome.p50)) / count,
        p90: sum(&|outcome| seconds(outcome.p90)) / count,
        writes: sum(&|outcome| outcome.writes as f64) / created,
        nudges: sum(&|outcome| outcome.nudges as f64) / created,
        holds: sum(&|outcome| outcome.holds as f64) / created,
        windows,
    }
}

/// numacast must not refuse what it could have prevented.
fn judge(cells: &[Cell], means: &[Mean]) -> Vec<String> {
    let ours = cells.iter().zip(means).filter(|(cell, _)| matches!(cell.who, Who::Ours(..)));
    let bad = ours.filter(|(_, mean)| mean.late + mean.unknown > 0);
    bad.map(|(cell, mean)| format!("{} of {:?}", mean.late + mean.unknown, cell)).collect()
}

const QUEUES: [(&str, BackOff); 4] = [
    ("1.33 and later, 1-10 s", BackOff { first: S, longest: 10 * S, early: true }),
    ("1.33 and later, 1-2 s", BackOff { first: S, longest: 2 * S, early: true }),
    ("before, or the gate off, 1-10 s", BackOff { first: S, longest: 10 * S, early: false }),
    ("before, or the gate off, 1-2 s", BackOff { first: S, longest: 2 * S, early: false }),
];

const PERIODS: [u64; 3] = [1, 5, 10];

fn everybody() -> [Who; 6] {
    [
        Who::Nobody,
        Who::Nfd,
        Who::Rte,
        Who::KubeletView(usual()),
        Who::Ours(QUIET, PATIENCE),
        Who::Ours(usual(), PATIENCE),
    ]
}

fn three(means: &[Mean], of: impl Fn(&Mean) -> String) -> String {
    means.iter().map(of).collect::<Vec<_>>().join(" / ")
}

fn measured(bench: &Bench) -> (String, Vec<String>) {
    let each = |ms: u64| Who::Ours(Nudges::Each(ms * MS, 12 * S), PATIENCE);
    // CPUs busy at a resync of 5 s, and of 1 s.
    let rows = [
        (Who::Nobody, "86-90; 83", "90; 85"),
        (Who::Nfd, "6-40; 38", "65-75; 53"),
        (Who::Rte, "37-52", "56-66"),
        (Who::Ours(QUIET, PATIENCE), "46", "58-66; 63"),
        (each(1000), "32-51", "66-78"),
        (each(300), "-", "65-79"),
        (Who::Ours(usual(), PATIENCE), "49", "68"),
    ];
    let cell = |who, resync, queue: usize| Cell {
        back_off: QUEUES[queue].1,
        runs: 60,
        time: 120,
        ..Cell::new(bench, who, resync, 6)
    };
    let cells: Vec<Cell> = rows.iter().flat_map(|(who, ..)| [cell(*who, 5, 0), cell(*who, 1, 1)]).collect();
    let found = means(bench, &cells);
    let mut lines =
        "| | 5 s, measured | 5 s, model | 1 s, measured | 1 s, model | refused, model |\n|---|---|---|---|---|---|\n".to_owned();
    for ((who, five, one), mean) in rows.iter().zip(found.chunks(2)) {
        let range = |mean: &Mean| format!("{:.0} ({:.0}-{:.0})", mean.busy, mean.spread.0, mean.spread.1);
        let (name, refused) = (who.name(), mean[0].refused.max(mean[1].refused));
        let (in_five, in_one) = (range(&mean[0]), range(&mean[1]));
        let _ = writeln!(lines, "| {name} | {five} | {in_five} | {one} | {in_one} | {refused:.1} % |");
    }
    (lines, judge(&cells, &found))
}

fn by_life(bench: &Bench, lives: &[u64], odd: bool) -> (String, Vec<String>) {
    let shared = (Who::Ours(usual(), PATIENCE), Informer::Shared);
    let mut rows: Vec<(u64, Who, Informer)> = Vec::new();
    for life in lives {
        rows.extend(everybody().map(|who| (*life, who, Informer::Dedicated)));
        rows.push((*life, shared.0, shared.1));
    }
    let cells: Vec<Cell> = rows
        .iter()
        .flat_map(|(life, who, informer)| {
            PERIODS.map(|resync| Cell { informer: *informer, odd, ..Cell::new(bench, *who, resync, *life) })
        })
        .collect();
    let found = means(bench, &cells);
    let mut lines =
        "| life | exporter | refused | busy, % | create to Running, s | writes per pod |\n|---|---|---|---|---|---|\n".to_owned();
    for ((life, who, informer), means) in rows.iter().zip(found.chunks(PERIODS.len())) {
        let name = who.name() + if *informer == Informer::Shared { ", `Shared`" } else { "" };
        let refused = means.iter().map(|mean| mean.refused).fold(0.0, f64::max);
        let busy = three(means, |mean| format!("{:.0}", mean.busy));
        // Where nothing ever runs there is nothing to wait for.
        let waits = three(means, |mean| match mean.busy {
            busy if busy < 0.5 => "never".to_owned(),
            _ => format!("{:.1}, {:.0}", mean.p50, mean.p90),
        });
        let _ = writeln!(
            lines,
            "| {life} s | {name} | {refused:.1} % | {busy} | {waits} | {:.1} |",
            means[1].writes
        );
    }
    (lines, judge(&cells, &found))
}

fn queues(bench: &Bench) -> (String, Vec<String>) {
    let whos = [Who::Nfd, Who::Rte, Who::Ours(QUIET, PATIENCE), Who::Ours(usual(), PATIENCE)];
    let mut lines = "| scheduler, back-off | NFD's updater | RTE, 1 s | numacast, no nudge | numacast, nudges |\n|---|---|---|---|---|\n".to_owned();
    let mut failures = Vec::new();
    for (name, back_off) in QUEUES {
        let cells: Vec<Cell> = whos
            .iter()
            .flat_map(|who| PERIODS.map(|resync| Cell { back_off, ..Cell::new(bench, *who, resync, 6) }))
            .collect();
        let found = means(bench, &cells);
        let busy: Vec<String> = found
            .chunks(PERIODS.len())
            .map(|means| three(means, |mean| format!("{:.0}", mean.busy)))
            .collect();
        let _ = writeln!(lines, "| {name} | {} |", busy.join(" | "));
        failures.append(&mut judge(&cells, &found));
    }
    (lines, failures)
}

fn nudges(bench: &Bench) -> (String, Vec<String>) {
    let each = |ms: u64| (Nudges::Each(ms * MS, 12 * S), false);
    let rows = [
        ("none", (QUIET, false)),
        ("each 0.3 s for 12 s", each(300)),
        ("each 1 s for 12 s", each(1000)),
        ("each 2 s for 12 s", each(2000)),
        ("each 4 s for 12 s", each(4000)),
        ("numacast: 0.65, 1.3, 2.6, 5.2, 10.4 s, then each minute", (usual(), false)),
        ("oracle", (QUIET, true)),
    ];
    let kinds = [(6, 0), (60, 0), (6, 2), (60, 2)];
    let mut lines = "| nudges | life 6 s | life 60 s | life 6 s, no early tries | life 60 s, no early tries |\n|---|---|---|---|---|\n".to_owned();
    let mut failures = Vec::new();
    for (name, (nudges, oracle)) in rows {
        let cells: Vec<Cell> = kinds
            .iter()
            .flat_map(|(life, queue)| {
                PERIODS.map(|resync| Cell {
                    back_off: QUEUES[*queue].1,
                    oracle,
                    ..Cell::new(bench, Who::Ours(nudges, PATIENCE), resync, *life)
                })
            })
            .collect();
        let found = means(bench, &cells);
        let row: Vec<String> = found
            .chunks(PERIODS.len())
            .map(|means| {
                format!("{} ({:.1})", three(means, |mean| format!("{:.0}", mean.busy)), means[1].nudges)
            })
            .collect();
        let _ = writeln!(lines, "| {name} | {} |", row.join(" | "));
        failures.append(&mut judge(&cells, &found));
    }
    (lines, failures)
}

fn patience(bench: &Bench) -> (String, Vec<String>) {
    let starts = [("10-40 ms", Span(10 * MS, 40 * MS)), ("0.5-3 s", Span(500 * MS, 3 * S))];
    let waits = [0, 10, 20, 40, 100];
    let rows: Vec<_> = starts.iter().flat_map(|start| waits.map(|ms| (*start, ms))).collect();
    let cells: Vec<Cell> = rows
        .iter()
        .map(|((_, start), ms)| Cell {
            runs: 60,
            start: Some(*start),
            ..Cell::new(bench, Who::Ours(usual(), ms * MS), 1, 6)
        })
        .collect();
    let found = means(bench, &cells);
    let mut lines = "| containers start in | patience | refused (all in the window) | busy | holds per pod | writes per pod | window, ms: \
                     p50 / p99 / most |\n|---|---|---|---|---|---|---|\n"
        .to_owned();
    for (((start, _), ms), mean) in rows.iter().zip(&found) {
        let window = |percent| seconds(percentile(&mean.windows, percent)) * 1e3;
        let _ = writeln!(
            lines,
            "| {start} | {ms} ms | {:.2} % | {:.0} % | {:.2} | {:.1} | {:.0} / {:.0} / {:.0} |",
            mean.refused,
            mean.busy,
            mean.holds,
            mean.writes,
            window(50),
            window(99),
            window(100)
        );
    }
    (lines, Vec::new())
}

/// Steps of one walk; then another begins, under other conditions.
const LEG: u64 = 2_000;

fn walks(bench: &Bench) -> (String, Vec<String>) {
    let ours = Who::Ours(usual(), PATIENCE);
    let rows = [
        (ours, Informer::Dedicated, bench.steps * 2 / 5),
        (ours, Informer::Shared, bench.steps * 2 / 5),
        (Who::Ours(QUIET, PATIENCE), Informer::Dedicated, bench.steps / 5),
        (Who::KubeletView(usual()), Informer::Dedicated, bench.steps / 10),
        (Who::Nfd, Informer::Dedicated, bench.steps / 10),
        (Who::Rte, Informer::Dedicated, bench.steps / 10),
        (Who::Broken(Flaw::NoHold), Informer::Dedicated, bench.steps / 10),
        (Who::Broken(Flaw::HoldsBySet), Informer::Dedicated, bench.steps / 10),
        (Who::Broken(Flaw::StaleZones), Informer::Dedicated, bench.steps / 10),
    ];
    let mut lines = "| exporter | informer | steps, walks | pods placed | overcommits in the window | others | walks that end frozen | \
                     agrees again after, mean | CPUs idle that somebody waits for | writes per pod |\n\
                     |---|---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    let (mut failures, mut windows) = (Vec::new(), Vec::new());
    for (who, informer, steps) in rows {
        let legs: Vec<u64> = (0..steps.div_ceil(LEG)).collect();
        let reports = all(bench.jobs, &legs, |leg| leg_of(bench, who, informer, *leg));
        let _ = writeln!(lines, "| {} | `{informer:?}` | {} |", who.name(), walk_row(&reports));
        if who == ours {
            failures.extend(reports.iter().filter_map(wrong));
            windows.extend(reports.iter().flat_map(|report| report.figures.windows.iter().copied()));
        } else if matches!(who, Who::Ours(..)) {
            failures.extend(reports.iter().filter_map(wrong));
        }
    }
    windows.sort_unstable();
    let window = |percent| seconds(percentile(&windows, percent)) * 1e3;
    let _ = writeln!(
        lines,
        "\nThe window, from the plugin's reservation to an object that is held or accounts for the pod, over {} pods of numacast \
         with slow watches, writes, admissions and restarts: p50 {:.0} ms, p90 {:.0} ms, p99 {:.0} ms, at most {:.1} s.",
        windows.len(),
        window(50),
        window(90),
        window(99),
        window(100) / 1e3
    );
    (lines, failures)
}

fn leg_of(bench: &Bench, who: Who, informer: Informer, leg: u64) -> Report {
    let seed = bench.seed.wrapping_add(leg);
    // A quarter of the walks has no faults, and half has pods of others: which ones says the seed, so that it alone repeats one.
    let (foreign, faults) = (!seed.is_multiple_of(2), !seed.is_multiple_of(4));
    let walk = Walk { steps: LEG, informer, patience: PATIENCE, foreign, faults };
    walk::run(&walk, seed, who.exporter(informer))
}

fn wrong(report: &Report) -> Option<String> {
    let (late, unknown) = (report.refused_for(Cause::Late), report.refused_for(Cause::Unknown));
    let bad = late + unknown > 0 || report.frozen;
    let again = "make model ARGS='--only walk --steps 5000'";
    bad.then(|| {
        let frozen = report.frozen;
        format!("{late} late, {unknown} unknown, frozen: {frozen}: NUMACAST_SEED={} {again}", report.seed)
    })
}

fn walk_row(reports: &[Report]) -> String {
    let sum = |of: &dyn Fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    let placed = sum(&|report| report.placed);
    let late = sum(&|report| (report.refused_for(Cause::Late) + report.refused_for(Cause::Unknown)) as u64);
    let disagreed: Time = sum(&|report| report.figures.disagreements.iter().sum());
    let times = sum(&|report| report.figures.disagreements.len() as u64).max(1);
    format!(
        "{}, {} | {placed} | {} | {late} | {} | {:.2} s | {:.1} % | {:.1}",
        sum(&|report| report.steps),
        reports.len(),
        sum(&|report| report.refused_for(Cause::Window) as u64),
        sum(&|report| u64::from(report.frozen)),
        seconds(disagreed) / times as f64,
        sum(&|report| report.idle) as f64 / reports.len() as f64 / 10.0,
        sum(&|report| report.figures.writes) as f64 / placed.max(1) as f64,
    )
}
