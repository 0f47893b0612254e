//! The tables of `docs/proofs.md`.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use numacast::controller::NudgePlan;

use crate::run::chance::{MS, S, Span, Time, seconds};
use crate::run::controller::Nudges;
use crate::run::exporter::{JOIN, PATIENCE, Who};
use crate::run::figures::{Cause, percentile};
use crate::run::load::{self, Load, Outcome};
use crate::run::ours::Flaw;
use crate::run::plugin::{Cache, Informer};
use crate::run::queue::BackOff;
use crate::run::walk::{self, Report, Walk};
use crate::run::world::{Delays, Settings};

/// The parameters of all tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bench {
    pub(crate) seed: u64,
    pub(crate) steps: u64,
    pub(crate) length: f64,
    pub(crate) jobs: usize,
}

/// One table; `make` returns its lines and its failures.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) make: fn(&Bench) -> (String, Vec<String>),
}

pub(crate) const ALL: &[Table] = &[
    Table {
        name: "measured",
        title: "CPUs busy in percent, on real parts (the real plugin, scheduler and kubelet; ranges of several runs of some \
                minutes, then one run of two minutes with the load of the model) and in the model (mean of 60 runs of two \
                minutes, and the lowest and highest of them). The resync of 1 s has a back-off of 1 to 2 s:",
        make: measured,
    },
    Table {
        name: "load",
        title: "The closed loop: pods that together request 110 % of 14 CPUs in two zones, 1 to 4 each; they run for 6 s on \
                average, then half of them complete and half are deleted. *Rejected*: at any resync; CPUs busy, and seconds from \
                create to Running (p50, p90), at a resync of 1 / 5 / 10 s; writes of the object at 5 s:",
        make: |bench| by_life(bench, &[6], false),
    },
    Table {
        name: "odd",
        title: "The same with one completed, one unpullable and one rejected pod on the node, all Guaranteed:",
        make: |bench| by_life(bench, &[6], true),
    },
    Table { name: "lives", title: "Other run times:", make: |bench| by_life(bench, &[3, 30, 60, 300], false) },
    Table {
        name: "queue",
        title: "The scheduler's queue: CPUs busy at a resync of 1 / 5 / 10 s, in percent. Since 1.33 a pod that an event \
                requeued is tried at once if no other pod waits, however long its backoff is:",
        make: queues,
    },
    Table {
        name: "nodes",
        title: "One node and fifty, with a load of 110 % of all of them; *odd*: with these three pods on each node. Percent, \
                seconds and writes at a resync of 1 / 5 / 10 s; *nudges* are those of the whole cluster:",
        make: nodes,
    },
    Table {
        name: "nudges",
        title: "When to nudge: CPUs busy at a resync of 1 / 5 / 10 s, and nudges per second in the whole cluster at 5 s. The \
                oracle requeues pods right after each refresh of the plugin's cache, which no program can see:",
        make: nudges,
    },
    Table {
        name: "join",
        title: "How long a change of the fingerprint alone waits for the next change: CPUs busy at a resync of 1 / 5 / 10 s, and \
                writes per pod at 5 s:",
        make: join,
    },
    Table {
        name: "direct",
        title: "The caches that read the object for every pod, and have no resync. *Reservations*: the agent subtracts what a \
                pod requests from every zone, from its binding until the List shows what it was allocated. *Client*: requests \
                per second that the plugin's client may send (`clientConnection.qps` of the scheduler, 50 by default, burst \
                100); it sends one per node and try, and one more for the score of each node that fits where several do:",
        make: direct,
    },
    Table {
        name: "late",
        title: "Pods whose binding waits, 1 to 5 s, for their gang or a volume, resync 1 s (`OverReserve`). The plugin forgets \
                what it reserved for them when it refreshes the node, and no other component knows of them. Percent rejected, in \
                parentheses those rejected because of that, and CPUs busy:",
        make: late,
    },
    Table {
        name: "patience",
        title: "How long a bound pod may be unaccounted before the fingerprint is withheld (`fingerprint.withholdAfter`), resync \
                1 s, run time 6 s:",
        make: patience,
    },
    Table {
        name: "walk",
        title: "The random walk. Overcommits: pods that the plugin placed and the kubelet had to reject; *in the window*: the \
                agent had received the other pod's binding too recently to act, or had started while the kubelet did not list \
                its pods yet. The others were avoidable. Conflicts with pods that another scheduler placed at the same time are \
                not counted. Frozen: at the end a pod that fits does not run within 15 minutes:",
        make: walks,
    },
];

/// Computes all cells, `jobs` at a time.
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

/// One load with one exporter.
#[derive(Clone, Debug)]
struct Cell {
    who: Who,
    resync: Time,
    back_off: BackOff,
    informer: Informer,
    cache: Cache,
    nodes: usize,
    nudges: Nudges,
    client: Option<(u32, u32)>,
    life: u64,
    odd: bool,
    /// Number of pods in a thousand that bind late.
    late: u32,
    oracle: bool,
    /// How long containers take to start, if not the default.
    start: Option<Span>,
    runs: u64,
    /// Seconds of each run.
    time: u64,
}

impl Cell {
    fn new(bench: &Bench, (who, nudges): (Who, Nudges), resync: u64, life: u64) -> Self {
        Self {
            who,
            cache: Cache::OverReserve,
            nodes: 1,
            nudges,
            client: None,
            late: 0,
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

    /// Sets the number of nodes. Many nodes need only one run, and a shorter one.
    fn on(self, nodes: usize) -> Self {
        match nodes {
            1 => self,
            _ => Self { nodes, runs: 1, time: self.time / 8, ..self },
        }
    }

    fn run(&self, seed: u64) -> Outcome {
        let mut delays = Delays::default();
        delays.start = self.start.unwrap_or(delays.start);
        let patience = if let Who::Ours { patience, .. } = self.who { patience } else { PATIENCE };
        let settings = Settings {
            grace: delays.grace(patience),
            delays,
            resync: self.resync,
            back_off: self.back_off,
            informer: self.informer,
            plugin: self.who != Who::Nobody,
            cache: self.cache,
            client: self.client,
            nudges: self.nudges,
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
            late: self.late,
            time: self.time * S,
        };
        load::run(settings, &load, self.who.exporters(self.informer, self.nodes), seed)
    }
}

/// The mean of several runs.
#[derive(Clone, Debug, Default)]
struct Mean {
    busy: f64,
    spread: (f64, f64),
    rejected: f64,
    unbound: f64,
    late: usize,
    unknown: usize,
    p50: f64,
    p90: f64,
    wait: f64,
    writes: f64,
    /// Per second.
    nudges: f64,
    /// The plugin's GETs per pod.
    reads: f64,
    withheld_writes: f64,
    windows: Vec<Time>,
}

fn means(bench: &Bench, cells: &[Cell]) -> Vec<Mean> {
    all(bench.jobs, cells, |cell| {
        // Use the same seeds for all cells, so that they differ only in what is compared.
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
        rejected: 100.0 * sum(&|outcome| outcome.rejected as f64) / created,
        unbound: 100.0 * sum(&|outcome| outcome.rejected_unbound as f64) / created,
        late: outcomes.iter().map(|outcome| outcome.rejected_late).sum(),
        unknown: outcomes.iter().map(|outcome| outcome.unknown).sum(),
        p50: sum(&|outcome| seconds(outcome.p50)) / count,
        p90: sum(&|outcome| seconds(outcome.p90)) / count,
        writes: sum(&|outcome| outcome.writes as f64) / created,
        wait: sum(&|outcome| seconds(outcome.mean)) / count,
        nudges: sum(&|outcome| outcome.nudges as f64) / sum(&|outcome| seconds(outcome.time)),
        reads: sum(&|outcome| outcome.reads as f64) / created,
        withheld_writes: sum(&|outcome| outcome.withheld_writes as f64) / created,
        windows,
    }
}

/// Reports the rejections that numacast could have prevented.
fn judge(cells: &[Cell], means: &[Mean]) -> Vec<String> {
    let does_what_it_can = |who| matches!(who, Who::Ours { .. } | Who::Direct { reserves: true });
    let ours = cells.iter().zip(means).filter(|(cell, _)| does_what_it_can(cell.who));
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

const QUIET: (Who, Nudges) = (Who::USUAL, Nudges::None);

/// numacast with its defaults.
fn usual() -> (Who, Nudges) {
    (Who::USUAL, Nudges::usual())
}

fn everybody() -> [(Who, Nudges); 6] {
    [
        (Who::Nobody, Nudges::None),
        (Who::Nfd, Nudges::None),
        (Who::Rte, Nudges::None),
        (Who::KubeletView, Nudges::usual()),
        QUIET,
        usual(),
    ]
}

/// The exporter's name, with the nudges if it is numacast.
fn name((who, nudges): (Who, Nudges)) -> String {
    match who {
        Who::Ours { .. } | Who::KubeletView => format!("{}, {}", who.name(), nudges.name()),
        _ => who.name(),
    }
}

fn three(means: &[Mean], of: impl Fn(&Mean) -> String) -> String {
    means.iter().map(of).collect::<Vec<_>>().join(" / ")
}

fn measured(bench: &Bench) -> (String, Vec<String>) {
    let each = |ms: u64| (Who::USUAL, Nudges::Each(ms * MS, 12 * S));
    // CPUs busy at a resync of 5 s, and of 1 s.
    let rows = [
        ((Who::Nobody, Nudges::None), "86-90; 83", "90; 85"),
        ((Who::Nfd, Nudges::None), "6-40; 38", "65-75; 53"),
        ((Who::Rte, Nudges::None), "37-52", "56-66"),
        (QUIET, "46", "58-66; 63"),
        (each(1000), "32-51", "66-78"),
        (each(300), "-", "65-79"),
        (usual(), "49", "68"),
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
        "| | 5 s, measured | 5 s, model | 1 s, measured | 1 s, model | rejected, model |\n|---|---|---|---|---|---|\n".to_owned();
    for ((who, five, one), mean) in rows.iter().zip(found.chunks(2)) {
        let range = |mean: &Mean| format!("{:.0} ({:.0}-{:.0})", mean.busy, mean.spread.0, mean.spread.1);
        let (name, rejected) = (name(*who), mean[0].rejected.max(mean[1].rejected));
        let (in_five, in_one) = (range(&mean[0]), range(&mean[1]));
        let _ = writeln!(lines, "| {name} | {five} | {in_five} | {one} | {in_one} | {rejected:.1} % |");
    }
    (lines, judge(&cells, &found))
}

fn by_life(bench: &Bench, lives: &[u64], odd: bool) -> (String, Vec<String>) {
    let mut rows: Vec<(u64, (Who, Nudges), Informer)> = Vec::new();
    for life in lives {
        rows.extend(everybody().map(|who| (*life, who, Informer::Dedicated)));
        rows.push((*life, usual(), Informer::Shared));
    }
    let cells: Vec<Cell> = rows
        .iter()
        .flat_map(|(life, who, informer)| {
            PERIODS.map(|resync| Cell { informer: *informer, odd, ..Cell::new(bench, *who, resync, *life) })
        })
        .collect();
    let found = means(bench, &cells);
    let mut lines =
        "| run time | exporter | rejected | busy, % | create to Running, s | writes per pod |\n|---|---|---|---|---|---|\n".to_owned();
    for ((life, who, informer), means) in rows.iter().zip(found.chunks(PERIODS.len())) {
        let name = name(*who) + if *informer == Informer::Shared { ", `Shared`" } else { "" };
        let rejected = means.iter().map(|mean| mean.rejected).fold(0.0, f64::max);
        let busy = three(means, |mean| format!("{:.0}", mean.busy));
        // If nothing ever runs, there is no waiting time.
        let waits = three(means, |mean| match mean.busy {
            busy if busy < 0.5 => "never".to_owned(),
            _ => format!("{:.1}, {:.0}", mean.p50, mean.p90),
        });
        let _ = writeln!(
            lines,
            "| {life} s | {name} | {rejected:.1} % | {busy} | {waits} | {:.1} |",
            means[1].writes
        );
    }
    (lines, judge(&cells, &found))
}

fn queues(bench: &Bench) -> (String, Vec<String>) {
    let whos = [(Who::Nfd, Nudges::None), (Who::Rte, Nudges::None), QUIET, usual()];
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

/// CPUs busy, in percent, at each resync period.
fn busy(means: &[Mean]) -> String {
    three(means, |mean| format!("{:.0}", mean.busy))
}

fn nodes(bench: &Bench) -> (String, Vec<String>) {
    let mut lines = "| nodes | exporter | rejected | busy, % | create to Running, mean, s | writes per pod | nudges per second |\n\
                     |---|---|---|---|---|---|---|\n"
        .to_owned();
    let whos = [(Who::Nfd, Nudges::None), QUIET, usual()];
    let kinds = [(1, false), (1, true), (FLEET, false), (FLEET, true)];
    let rows: Vec<_> = kinds.iter().flat_map(|kind| whos.map(|who| (*kind, who))).collect();
    let cells: Vec<Cell> = rows
        .iter()
        .flat_map(|((nodes, odd), who)| {
            PERIODS.map(|resync| Cell { odd: *odd, ..Cell::new(bench, *who, resync, 6).on(*nodes) })
        })
        .collect();
    let found = means(bench, &cells);
    for (((nodes, odd), who), means) in rows.iter().zip(found.chunks(PERIODS.len())) {
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
            name(*who),
            busy(means)
        );
    }
    (lines, judge(&cells, &found))
}

/// The size of a cluster with many nodes.
const FLEET: usize = 50;

fn nudges(bench: &Bench) -> (String, Vec<String>) {
    let each = |ms: u64| (Nudges::Each(ms * MS, 12 * S), false);
    let plan = |first: u64, last: u64| {
        let (first, last) = (Duration::from_millis(first), Duration::from_millis(last));
        (Nudges::Plan(NudgePlan { first, last, ..NudgePlan::default() }), false)
    };
    let rows = [
        ("none", (Nudges::None, false)),
        ("each 0.3 s for 12 s", each(300)),
        ("each 1 s for 12 s", each(1000)),
        ("each 2 s for 12 s", each(2000)),
        ("each 4 s for 12 s", each(4000)),
        ("0.65 s, then doubled up to 10.4 s", plan(650, 10_400)),
        ("numacast's plan", (Nudges::usual(), false)),
        ("oracle", (Nudges::None, true)),
    ];
    // Nodes, life, queue.
    let kinds = [(1, 6, 0), (1, 60, 0), (1, 60, 2), (FLEET, 6, 0), (FLEET, 300, 0)];
    let mut lines =
        "| nudges | one node, run time 6 s | 60 s | 60 s, no early tries | 50 nodes, 6 s | 50 nodes, 300 s |\n\
                     |---|---|---|---|---|---|\n"
            .to_owned();
    let mut failures = Vec::new();
    for (name, (nudges, oracle)) in rows {
        let cells: Vec<Cell> = kinds
            .iter()
            .flat_map(|(nodes, life, queue)| {
                PERIODS.map(|resync| Cell {
                    back_off: QUEUES[*queue].1,
                    oracle,
                    ..Cell::new(bench, (Who::USUAL, nudges), resync, *life).on(*nodes)
                })
            })
            .collect();
        let found = means(bench, &cells);
        let row: Vec<String> = found
            .chunks(PERIODS.len())
            .map(|means| format!("{} ({:.2})", busy(means), means[1].nudges))
            .collect();
        let _ = writeln!(lines, "| {name} | {} |", row.join(" | "));
        failures.append(&mut judge(&cells, &found));
    }
    (lines, failures)
}

fn join(bench: &Bench) -> (String, Vec<String>) {
    let mut lines =
        "| waits | run time 6 s | 6 s, odd | 60 s | 50 nodes, 6 s |\n|---|---|---|---|---|\n".to_owned();
    let kinds = [(1, 6, false), (1, 6, true), (1, 60, false), (FLEET, 6, false)];
    let mut failures = Vec::new();
    for ms in [0, 50, 100, 200, 400] {
        let who = (Who::Ours { patience: PATIENCE, join: ms * MS }, Nudges::usual());
        let cells: Vec<Cell> = kinds
            .iter()
            .flat_map(|(nodes, life, odd)| {
                PERIODS.map(|resync| Cell { odd: *odd, ..Cell::new(bench, who, resync, *life).on(*nodes) })
            })
            .collect();
        let found = means(bench, &cells);
        let row: Vec<String> = found
            .chunks(PERIODS.len())
            .map(|means| format!("{} ({:.1})", busy(means), means[1].writes))
            .collect();
        let _ = writeln!(lines, "| {ms} ms | {} |", row.join(" | "));
        failures.append(&mut judge(&cells, &found));
    }
    (lines, failures)
}

fn direct(bench: &Bench) -> (String, Vec<String>) {
    let unlimited = |nodes, life, odd| (nodes, life, odd, None);
    let kinds = [
        unlimited(1, 6, false),
        unlimited(1, 6, true),
        unlimited(FLEET, 6, false),
        unlimited(FLEET, 300, false),
        (FLEET, 300, false, Some((50, 100))),
    ];
    let mut lines = "| nodes | run time | client | cache | | rejected | busy, % | create to Running, mean, s | writes per pod | GETs per pod |\n\
                     |---|---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    let mut cells = Vec::new();
    for (nodes, life, odd, client) in kinds {
        for (cache, who) in [
            (Cache::OverReserve, usual()),
            (Cache::DiscardReserved, (Who::Direct { reserves: false }, Nudges::None)),
            (Cache::DiscardReserved, (Who::Direct { reserves: true }, Nudges::None)),
            (Cache::Passthrough, (Who::Direct { reserves: false }, Nudges::None)),
            (Cache::Passthrough, (Who::Direct { reserves: true }, Nudges::None)),
        ] {
            let cell = Cell::new(bench, who, 5, life).on(nodes);
            cells.push(Cell { cache, client, odd, ..cell });
        }
    }
    let found = means(bench, &cells);
    for (cell, mean) in cells.iter().zip(&found) {
        let client = cell.client.map_or("any".to_owned(), |(rate, _)| format!("{rate}/s"));
        let who = if let Who::Direct { reserves: true } = cell.who { "reservations" } else { "" };
        let cache = match cell.cache {
            Cache::OverReserve => "`OverReserve`, resync 5 s".to_owned(),
            cache => format!("`{cache:?}`"),
        };
        let _ = writeln!(
            lines,
            "| {}{} | {} s | {client} | {cache} | {who} | {:.2} % | {:.0} | {:.1} | {:.1} | {:.1} |",
            cell.nodes,
            if cell.odd { ", odd" } else { "" },
            cell.life,
            mean.rejected,
            mean.busy,
            mean.wait,
            mean.writes,
            mean.reads
        );
    }
    (lines, judge(&cells, &found))
}

fn late(bench: &Bench) -> (String, Vec<String>) {
    let mut lines =
        "| pods that bind late | no nudge | nudges | 50 nodes, nudges | `DiscardReserved`, reservations | \
                     `Passthrough`, reservations |\n|---|---|---|---|---|---|\n"
            .to_owned();
    let direct = (Who::Direct { reserves: true }, Nudges::None);
    let mut failures = Vec::new();
    for share in [0, 20, 100, 500] {
        let columns = [
            (Cache::OverReserve, QUIET, 1),
            (Cache::OverReserve, usual(), 1),
            (Cache::OverReserve, usual(), FLEET),
            (Cache::DiscardReserved, direct, 1),
            (Cache::Passthrough, direct, 1),
        ];
        let cells: Vec<Cell> = columns
            .iter()
            .map(|(cache, who, nodes)| {
                let cell = Cell::new(bench, *who, 1, 60).on(*nodes);
                Cell { cache: *cache, late: share, ..cell }
            })
            .collect();
        let found = means(bench, &cells);
        let column = |mean: &Mean| format!("{:.1} ({:.1}), {:.0}", mean.rejected, mean.unbound, mean.busy);
        let row: Vec<String> = found.iter().map(column).collect();
        let _ = writeln!(lines, "| {} % | {} |", share / 10, row.join(" | "));
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
            ..Cell::new(bench, (Who::Ours { patience: ms * MS, join: JOIN }, Nudges::usual()), 1, 6)
        })
        .collect();
    let found = means(bench, &cells);
    let mut lines = "| containers start in | `withholdAfter` | rejected (all in the window) | busy | withheld per pod | writes per pod | window, ms: \
                     p50 / p99 / max |\n|---|---|---|---|---|---|---|\n"
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

/// Steps of one walk; then another one begins with other settings.
const LEG: u64 = 2_000;

fn walks(bench: &Bench) -> (String, Vec<String>) {
    let direct = Who::Direct { reserves: true };
    let row =
        |who: (Who, Nudges), part: u64| (who, Cache::OverReserve, 1, Informer::Dedicated, bench.steps / part);
    let broken = |flaw| row((Who::Broken(flaw), Nudges::usual()), 10);
    let rows = [
        (usual(), Cache::OverReserve, 1, Informer::Dedicated, bench.steps * 3 / 10),
        (usual(), Cache::OverReserve, 1, Informer::Shared, bench.steps * 3 / 10),
        (usual(), Cache::OverReserve, 3, Informer::Dedicated, bench.steps / 10),
        row(QUIET, 5),
        ((direct, Nudges::None), Cache::DiscardReserved, 1, Informer::Dedicated, bench.steps / 10),
        ((direct, Nudges::None), Cache::Passthrough, 1, Informer::Dedicated, bench.steps / 10),
        row((Who::KubeletView, Nudges::usual()), 10),
        row((Who::Nfd, Nudges::None), 10),
        row((Who::Rte, Nudges::None), 10),
        broken(Flaw::NeverWithholds),
        broken(Flaw::WithholdsByPossibleSet),
        broken(Flaw::StaleZones),
    ];
    let mut lines = "| exporter | cache | nodes | informer | steps, walks | pods placed | overcommits in the window | others | walks that end frozen | \
                     matches again after, mean | CPUs idle while a pod waits for them | writes per pod |\n\
                     |---|---|---|---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    let (mut failures, mut windows) = (Vec::new(), Vec::new());
    for (who, cache, nodes, informer, steps) in rows {
        let legs: Vec<u64> = (0..steps.div_ceil(LEG)).collect();
        let walk = Walk { steps: LEG, informer, cache, nodes, nudges: who.1, ..Walk::default() };
        let reports = all(bench.jobs, &legs, |leg| leg_of(bench, &walk, who.0, *leg));
        let _ = writeln!(
            lines,
            "| {} | `{cache:?}` | {nodes} | `{informer:?}` | {} |",
            name(who),
            walk_row(&reports)
        );
        if matches!(who.0, Who::Ours { .. } | Who::Direct { .. }) {
            failures.extend(reports.iter().filter_map(wrong));
        }
        if who == usual() {
            windows.extend(reports.iter().flat_map(|report| report.figures.windows.iter().copied()));
        }
    }
    windows.sort_unstable();
    let window = |percent| seconds(percentile(&windows, percent)) * 1e3;
    let _ = writeln!(
        lines,
        "\nThe window, from the plugin's reservation to an object that accounts for the pod or withholds its fingerprint, over {} pods of numacast \
         with slow watches, writes, admissions and restarts: p50 {:.0} ms, p90 {:.0} ms, p99 {:.0} ms, at most {:.1} s.",
        windows.len(),
        window(50),
        window(90),
        window(99),
        window(100) / 1e3
    );
    (lines, failures)
}

fn leg_of(bench: &Bench, walk: &Walk, who: Who, leg: u64) -> Report {
    let seed = bench.seed.wrapping_add(leg);
    // A quarter of the walks have no faults, and half have pods of other schedulers. The seed decides which,
    // so that it alone reproduces a walk.
    let (foreign, faults) = (!seed.is_multiple_of(2), !seed.is_multiple_of(4));
    walk::run(&Walk { foreign, faults, ..*walk }, seed, who)
}

fn wrong(report: &Report) -> Option<String> {
    let (late, unknown) = (report.rejected_for(Cause::Late), report.rejected_for(Cause::Unknown));
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
    let late = sum(&|report| (report.rejected_for(Cause::Late) + report.rejected_for(Cause::Unknown)) as u64);
    let disagreed: Time = sum(&|report| report.figures.disagreements.iter().sum());
    let times = sum(&|report| report.figures.disagreements.len() as u64).max(1);
    format!(
        "{}, {} | {placed} | {} | {late} | {} | {:.2} s | {:.1} % | {:.1}",
        sum(&|report| report.steps),
        reports.len(),
        sum(&|report| report.rejected_for(Cause::Window) as u64),
        sum(&|report| u64::from(report.frozen)),
        seconds(disagreed) / times as f64,
        sum(&|report| report.idle) as f64 / reports.len() as f64 / 10.0,
        sum(&|report| report.figures.writes) as f64 / placed.max(1) as f64,
    )
}
