//! One load with one exporter, run several times.

use super::{Parameters, Setup, all};
use crate::run::controller::Nudges;
use crate::run::exporter::{ExporterKind, WITHHOLD_AFTER};
use crate::run::load::{self, Load, Outcome};
use crate::run::plugin::{Cache, Informer};
use crate::run::queue::Backoff;
use crate::run::settings::{Delays, Settings};
use crate::run::time::{MS, S, Span, Time, seconds};

/// One load with one exporter.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) exporter: ExporterKind,
    pub(super) resync: Time,
    pub(super) backoff: Backoff,
    pub(super) informer: Informer,
    pub(super) cache: Cache,
    pub(super) nodes: usize,
    pub(super) nudges: Nudges,
    pub(super) client: Option<(u32, u32)>,
    pub(super) run_time: u64,
    pub(super) odd: bool,
    /// Number of pods in a thousand that bind late.
    pub(super) late_per_mille: u32,
    pub(super) oracle: bool,
    /// How long containers take to start, if not the default.
    pub(super) start: Option<Span>,
    pub(super) runs: u64,
    /// Seconds of each run.
    pub(super) time: u64,
}

impl Cell {
    pub(super) fn new(
        parameters: &Parameters,
        (exporter, nudges): Setup,
        resync: u64,
        run_time: u64,
    ) -> Self {
        Self {
            exporter,
            cache: Cache::OverReserve,
            nodes: 1,
            nudges,
            client: None,
            late_per_mille: 0,
            resync: resync * S,
            backoff: QUEUES[0].1,
            informer: Informer::Dedicated,
            run_time,
            odd: false,
            oracle: false,
            start: None,
            runs: 4,
            time: (800.0_f64.max(100.0 * run_time as f64) * parameters.length) as u64,
        }
    }

    /// Sets the number of nodes. Many nodes need only one run, and a shorter one.
    pub(super) fn on(self, nodes: usize) -> Self {
        match nodes {
            1 => self,
            _ => Self { nodes, runs: 1, time: self.time / 8, ..self },
        }
    }

    fn run(&self, seed: u64) -> Outcome {
        let mut delays = Delays::default();
        delays.start = self.start.unwrap_or(delays.start);
        let withhold_after = match self.exporter {
            ExporterKind::Numacast { withhold_after, .. } => withhold_after,
            _ => WITHHOLD_AFTER,
        };
        let settings = Settings {
            grace: delays.grace(withhold_after),
            delays,
            resync: self.resync,
            backoff: self.backoff,
            informer: self.informer,
            plugin: self.exporter != ExporterKind::None,
            cache: self.cache,
            client: self.client,
            nudges: self.nudges,
            oracle: self.oracle,
            ..Settings::default()
        };
        let load = Load {
            percent: 110,
            sizes: &[1, 2, 3, 4],
            run_time: self.run_time * S,
            min_run_time: self.run_time * S / 6,
            replace_after: Span(0, 10 * MS),
            odd_pods: self.odd,
            late_per_mille: self.late_per_mille,
            time: self.time * S,
        };
        load::run(settings, &load, self.exporter.create(self.informer, self.nodes), seed)
    }
}

/// The mean of several runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Mean {
    pub(super) busy: f64,
    pub(super) spread: (f64, f64),
    pub(super) rejected: f64,
    pub(super) unbound: f64,
    pub(super) avoidable: usize,
    pub(super) unknown: usize,
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) wait: f64,
    pub(super) writes: f64,
    /// Per second.
    pub(super) nudges: f64,
    /// The plugin's GETs per pod.
    pub(super) reads: f64,
    pub(super) withheld_writes: f64,
    pub(super) windows: Vec<Time>,
}

pub(super) fn means(parameters: &Parameters, cells: &[Cell]) -> Vec<Mean> {
    all(parameters.jobs, cells, |cell| {
        // Use the same seeds for all cells, so that they differ only in what is compared.
        let outcomes: Vec<Outcome> =
            (0..cell.runs).map(|run| cell.run(parameters.seed.wrapping_add(run))).collect();
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
        avoidable: outcomes.iter().map(|outcome| outcome.rejected_avoidably).sum(),
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
pub(super) fn avoidable_rejections(cells: &[Cell], means: &[Mean]) -> Vec<String> {
    let is_numacast = |exporter| {
        matches!(exporter, ExporterKind::Numacast { .. } | ExporterKind::Direct { reserves: true })
    };
    let of_numacast = cells.iter().zip(means).filter(|(cell, _)| is_numacast(cell.exporter));
    let avoidable = of_numacast.filter(|(_, mean)| mean.avoidable + mean.unknown > 0);
    avoidable.map(|(cell, mean)| format!("{} of {:?}", mean.avoidable + mean.unknown, cell)).collect()
}

/// The settings of the queue, by scheduler.
pub(super) const QUEUES: [(&str, Backoff); 4] = [
    ("1.33 and later, 1-10 s", Backoff { first: S, longest: 10 * S, early: true }),
    ("1.33 and later, 1-2 s", Backoff { first: S, longest: 2 * S, early: true }),
    ("before, or the gate off, 1-10 s", Backoff { first: S, longest: 10 * S, early: false }),
    ("before, or the gate off, 1-2 s", Backoff { first: S, longest: 2 * S, early: false }),
];
