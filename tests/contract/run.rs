//! One run: a fresh cluster, a node, an exporter, a scheduler, and the load.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fastrand::Rng;

use crate::exporter::Exporter;
use crate::load::{CPUS, Load, Short};
use crate::scheduler::{Clocks, Log, Scheduler};
use crate::support::{Cluster, Parts, pod};
use crate::{node, percentiles};

/// What an agent may need from a bind to the object that tells of it: a few times what it takes on a quiet machine.
/// A resync within this time after a bind may believe an object from before it.
const WINDOW: Duration = Duration::from_millis(100);
/// A node on which no pod has started for so long, though some waited all the time, is called frozen.
const FROZEN: Duration = Duration::from_secs(45);

/// What is run.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) exporter: Exporter,
    pub(crate) clocks: Clocks,
    /// There are a Completed pod and one whose image cannot be pulled, both Guaranteed.
    pub(crate) everyday: bool,
    /// Pods of another scheduler come and go.
    pub(crate) foreign: bool,
    pub(crate) informer: String,
    pub(crate) time: Duration,
    pub(crate) seed: u64,
    pub(crate) binary: PathBuf,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) started: usize,
    /// Name, the kubelet's word, and the time between the bind before and the resync.
    pub(crate) refused: Vec<(String, String, Option<Duration>)>,
    pub(crate) busy: f64,
    /// From the creation of a pod to its being Running.
    pub(crate) waits: Vec<Duration>,
    pub(crate) writes: u64,
    /// The longest time in which no pod started.
    pub(crate) pause: Duration,
    pub(crate) log: Log,
}

impl Run {
    pub(crate) async fn go(&self, parts: &Parts) -> Result<Figures> {
        let cluster = Cluster::start(parts).await?;
        let node = node(&cluster).await?;
        // The exporter's own pod, so to speak: the plugin resyncs no node without one.
        node.run(pod("agent")).await?;
        if self.everyday {
            node.run(pod("completed").cpus(1).memory("64Mi")).await?;
            node.finish("completed", 0).await?;
            node.submit(&pod("unpullable").cpus(1).memory("64Mi").unpullable()).await?;
            node.says("unpullable", "ErrImageNeverPull").await?;
        }
        let mut exporter = self.exporter.start(&self.binary, &cluster, &node).await?;
        let program = parts.program("scheduler");
        let mut scheduler = Scheduler::start(&program, &cluster, self.clocks, &self.informer).await?;

        scheduler.first_flush(self.clocks).await?;

        let mut load = Load::new(&node, Rng::with_seed(self.seed), self.foreign).await?;
        let writes = cluster.writes_of("noderesourcetopologies").await?;
        let (from, to) = (Instant::now(), Instant::now() + self.time);
        let all_run = || {
            scheduler.still_runs()?;
            node.kubelet_still_runs()?;
            exporter.as_mut().map_or(Ok(()), |exporter| exporter.still_runs())
        };
        load.run(to, all_run).await?;
        let writes = cluster.writes_of("noderesourcetopologies").await? - writes;
        let log = scheduler.log()?;
        Ok(Figures::of(&load, from, to, writes, log))
    }
}

impl Figures {
    fn of(load: &Load<'_>, from: Instant, to: Instant, writes: u64, log: Log) -> Self {
        let mut starts: Vec<Instant> = load.pods.values().filter_map(|pod| pod.running).collect();
        starts.sort_unstable();
        let edges: Vec<Instant> = [from].into_iter().chain(starts.iter().copied()).chain([to]).collect();
        let pause = edges.windows(2).map(|pair| pair[1].saturating_duration_since(pair[0])).max();
        let busy = |pod: &Short| {
            let time =
                pod.running.map(|since| pod.ending.unwrap_or(to).min(to).saturating_duration_since(since));
            time.unwrap_or_default().as_secs_f64() * f64::from(pod.cpus)
        };
        let wait = |pod: &Short| Some(pod.running?.saturating_duration_since(pod.created));
        let refused = load.pods.iter().filter_map(|(name, pod)| {
            let window = log.window(&format!("default/{name}")).ok();
            Some((name.clone(), pod.refused.clone()?, window))
        });
        Self {
            started: starts.len(),
            refused: refused.collect(),
            busy: load.pods.values().map(busy).sum::<f64>() / f64::from(CPUS) / (to - from).as_secs_f64(),
            waits: load.pods.values().filter_map(wait).collect(),
            writes,
            pause: pause.unwrap_or_default(),
            log,
        }
    }

    /// Pods that were refused although the exporter could have known better.
    pub(crate) fn avoidable(&self) -> usize {
        self.refused.iter().filter(|(.., window)| window.is_none_or(|window| window > WINDOW)).count()
    }

    pub(crate) fn frozen(&self) -> bool {
        self.pause > FROZEN
    }

    /// A table's row, after what was run.
    pub(crate) fn row(&mut self) -> String {
        let [p50, p90] = percentiles(&mut self.waits, [50, 90]).map(|time| time.as_secs_f64());
        let per_pod = self.writes as f64 / self.started.max(1) as f64;
        let refused = match self.refused.len() {
            0 => "0".to_owned(),
            all => format!("{all} ({:.0} %)", 100.0 * all as f64 / (all + self.started) as f64),
        };
        let Log { compared, agreed, .. } = self.log;
        format!(
            "{} | {refused} | {:.0} % | {p50:.1} | {p90:.1} | {:.0} | {per_pod:.1} | {agreed} of {compared}",
            self.started,
            100.0 * self.busy,
            self.pause.as_secs_f64(),
        )
    }
}

/// The head of the table.
pub(crate) const HEAD: &str = "\
| exporter | resync:backoff, s | other pods | started | refused | CPUs busy | create to Running p50, s | p90, s | longest pause, s | writes per pod | fingerprints agreed |
|---|---|---|---|---|---|---|---|---|---|---|";

impl Run {
    /// The columns before the figures.
    pub(crate) fn name(&self) -> String {
        let others = match (self.everyday, self.foreign) {
            (false, false) => "",
            (true, false) => "Completed, unpullable",
            (false, true) => "foreign",
            (true, true) => "Completed, unpullable, foreign",
        };
        format!("| {} | {} | {others} |", self.exporter, self.clocks)
    }

    /// Runs it and says in one line each what a person should know beside the figures.
    pub(crate) async fn tell(&self, parts: &Parts) -> Result<(Figures, String)> {
        let mut figures = self.go(parts).await.with_context(|| self.name())?;
        let mut notes = String::new();
        for (name, why, window) in &figures.refused {
            if self.exporter != Exporter::None {
                let window = window
                    .map_or("no resync before it".to_owned(), |w| format!("{w:.1?} after the last bind"));
                notes += &format!(
                    "  {name} refused ({why}); the object by which it was placed was read {window}\n"
                );
            }
        }
        if figures.log.missing > 0 {
            notes += &format!("  the object had no fingerprint at {} ticks\n", figures.log.missing);
        }
        if figures.log.no_pods > 0 {
            notes += &format!("  the plugin saw no pod on the node at {} ticks\n", figures.log.no_pods);
        }
        let row = figures.row();
        Ok((figures, format!("{} {row} |\n{notes}", self.name())))
    }
}
