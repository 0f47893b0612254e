//! One run: a fresh cluster, a node, an exporter, numacast's controller, a scheduler, and the load.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use fastrand::Rng;
use kube::ResourceExt;
use kube::api::DynamicObject;

use crate::events::Events;
use crate::exporter::Exporter;
use crate::load::{CPUS, Load, LoadPod};
use crate::rows::Row;
use crate::scheduler::{Log, Scheduler, Setup};
use crate::support::{Cluster, Parts, pod};
use crate::{ideal, node, percentiles};

/// A node counts as frozen if no pod has started for this long although some were always waiting.
const FROZEN: Duration = Duration::from_secs(45);
/// The only annotation that a nudge changes.
const NUDGE: &str = "numacast.io/nudge";
const OBJECTS: &str = "noderesourcetopologies";

/// The parameters of a run.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) row: Row,
    pub(crate) exporter: Exporter,
    /// Whether pods of another scheduler are created and deleted.
    pub(crate) foreign: bool,
    pub(crate) informer: String,
    pub(crate) time: Duration,
    pub(crate) seed: u64,
    pub(crate) binary: PathBuf,
}

/// The results of a run.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) started: usize,
    /// Rejected pods, with the kubelet's reasons.
    pub(crate) rejected: Vec<(String, String)>,
    pub(crate) busy: f64,
    /// What `busy` would be if the only delay were the kubelet's when terminating pods.
    pub(crate) ideal: f64,
    /// Times from a pod's creation until it is Running.
    pub(crate) waits: Vec<Duration>,
    /// Requests that write the object, excluding nudges.
    pub(crate) writes: u64,
    pub(crate) nudges: u64,
    /// Requests that read the object.
    pub(crate) gets: u64,
    /// The longest period in which no pod started.
    pub(crate) pause: Duration,
    pub(crate) log: Log,
}

/// The number of requests for the object so far.
#[derive(Clone, Copy, Debug)]
struct Requests {
    writes: u64,
    gets: u64,
}

impl Requests {
    async fn of(cluster: &Cluster) -> Result<Self> {
        let gets = cluster.requests_of(OBJECTS, &["GET"]).await?;
        Ok(Self { writes: cluster.writes_of(OBJECTS).await?, gets })
    }
}

impl Run {
    pub(crate) async fn run(&self, parts: &Parts) -> Result<Figures> {
        let cluster = Cluster::start(parts).await?;
        let node = node(&cluster).await?;
        // Stands for the exporter's own pod: the plugin does not resync a node without pods.
        node.run(pod("agent")).await?;
        if self.row.odd {
            node.run(pod("completed").cpus(1).memory("64Mi")).await?;
            node.finish("completed", 0).await?;
            node.submit(&pod("unpullable").cpus(1).memory("64Mi").unpullable()).await?;
            node.wait_for_status("unpullable", "ErrImageNeverPull").await?;
        }
        let mut exporter = self.exporter.start(&self.binary, &cluster, &node, self.row.settings()).await?;
        let mut controller =
            self.exporter.start_controller(&self.binary, &cluster, self.row.controller_settings())?;
        let Row { cache, clocks, .. } = self.row;
        let setup = Setup { cache, clocks, informer: self.informer.clone() };
        let mut scheduler = Scheduler::start(&parts.program("scheduler"), &cluster, &setup).await?;
        scheduler.first_flush(&setup).await?;

        let mut load = Load::new(&node, Rng::with_seed(self.seed), self.foreign).await?;
        let mut objects = Events::of_object(&node.client(), node.name()).await?;
        let before = Requests::of(&cluster).await?;
        let (from, to) = (Instant::now(), Instant::now() + self.time);
        let all_run = || {
            scheduler.still_runs()?;
            node.kubelet_still_runs()?;
            [&mut exporter, &mut controller]
                .into_iter()
                .flatten()
                .try_for_each(|process| process.still_runs())
        };
        load.run(to, all_run).await?;
        let after = Requests::of(&cluster).await?;
        let nudges = nudges(&mut objects)?;
        let requests = Requests {
            writes: (after.writes - before.writes).saturating_sub(nudges),
            gets: after.gets - before.gets,
        };
        let ideal = ideal::busy(self.seed, self.row.odd, self.time, load.ends());
        Ok(Figures::of(&load, [from, to], ideal, requests, nudges, scheduler.log()?))
    }
}

/// Returns how many of the observed changes are nudges.
fn nudges(objects: &mut Events<DynamicObject>) -> Result<u64> {
    let mut last = None;
    let mut nudges = 0;
    while let Some(event) = objects.waiting()? {
        let nudge = event.object.annotations().get(NUDGE).cloned();
        nudges += u64::from(nudge.is_some() && nudge != last);
        last = nudge;
    }
    Ok(nudges)
}

impl Figures {
    fn of(
        load: &Load<'_>,
        [from, to]: [Instant; 2],
        ideal: f64,
        requests: Requests,
        nudges: u64,
        log: Log,
    ) -> Self {
        let mut starts: Vec<Instant> = load.pods.values().filter_map(|pod| pod.running).collect();
        starts.sort_unstable();
        let edges: Vec<Instant> = [from].into_iter().chain(starts.iter().copied()).chain([to]).collect();
        let pause = edges.windows(2).map(|pair| pair[1].saturating_duration_since(pair[0])).max();
        let busy = |pod: &LoadPod| {
            let time =
                pod.running.map(|since| pod.ending.unwrap_or(to).min(to).saturating_duration_since(since));
            time.unwrap_or_default().as_secs_f64() * f64::from(pod.cpus)
        };
        let wait = |pod: &LoadPod| Some(pod.running?.saturating_duration_since(pod.created));
        let rejected = load.pods.iter().filter_map(|(name, pod)| Some((name.clone(), pod.rejected.clone()?)));
        Self {
            started: starts.len(),
            rejected: rejected.collect(),
            busy: load.pods.values().map(busy).sum::<f64>() / f64::from(CPUS) / (to - from).as_secs_f64(),
            ideal,
            waits: load.pods.values().filter_map(wait).collect(),
            writes: requests.writes,
            nudges,
            gets: requests.gets,
            pause: pause.unwrap_or_default(),
            log,
        }
    }

    /// Returns a summary line, followed by a line for each rejected pod or anomaly.
    pub(crate) fn text(&self, run: &Run) -> String {
        let mut text = format!(
            "{}, {}, seed {}: {} started, {} rejected, {:.0} of {:.0} % busy, {} writes, {} nudges, {} GETs, longest pause {:.0} s\n",
            run.exporter,
            run.row.name(),
            run.seed,
            self.started,
            self.rejected.len(),
            100.0 * self.busy,
            100.0 * self.ideal,
            self.writes,
            self.nudges,
            self.gets,
            self.pause.as_secs_f64()
        );
        for (name, why) in &self.rejected {
            let pod = format!("default/{name}");
            let since = if run.row.cache.is_direct() {
                let since = self.log.since_other(&pod);
                since.map_or("no other pod bound before".to_owned(), |since| {
                    format!("it was bound {since:.1?} after another")
                })
            } else {
                let window = self.log.window(&pod);
                window.map_or("no resync before".to_owned(), |window| {
                    format!("the object by which it was placed was read {window:.1?} after the last bind")
                })
            };
            text += &format!("  {name} rejected ({why}): {since}\n");
        }
        if self.log.missing > 0 {
            text += &format!("  the object had no fingerprint at {} ticks\n", self.log.missing);
        }
        if self.log.no_pods > 0 {
            text += &format!("  the plugin found no pod on the node at {} ticks\n", self.log.no_pods);
        }
        text
    }
}

/// An object that the plugin reads this long after a bind accounts for the pod, or withholds the fingerprint:
/// `fingerprint.withholdAfter` (50 ms), the watch and the write.
const GAP: Duration = Duration::from_millis(75);

/// The totals of one row.
#[derive(Debug, Default)]
pub(crate) struct Total {
    runs: usize,
    time: Duration,
    started: usize,
    pub(crate) rejected: usize,
    /// The rejected pods among them that were placed by an object in which an earlier bind had to show, with the overreserving cache.
    pub(crate) preventable: usize,
    busy: Vec<f64>,
    ideal: f64,
    waits: Vec<Duration>,
    writes: u64,
    nudges: u64,
    gets: u64,
    matched: (usize, usize),
    pub(crate) frozen: usize,
}

impl Total {
    pub(crate) fn add(&mut self, figures: Figures, time: Duration) {
        self.runs += 1;
        self.time += time;
        self.started += figures.started;
        self.rejected += figures.rejected.len();
        let windows = figures.rejected.iter().map(|(name, _)| figures.log.window(&format!("default/{name}")));
        self.preventable +=
            windows.filter(|window| !window.as_ref().is_ok_and(|window| *window < GAP)).count();
        self.busy.push(figures.busy);
        self.ideal += figures.ideal;
        self.waits.extend(figures.waits);
        self.writes += figures.writes;
        self.nudges += figures.nudges;
        self.gets += figures.gets;
        self.matched = (self.matched.0 + figures.log.matched, self.matched.1 + figures.log.compared);
        self.frozen += usize::from(figures.pause > FROZEN);
    }

    pub(crate) fn busy(&self) -> f64 {
        self.busy.iter().sum::<f64>() / self.runs.max(1) as f64
    }

    /// Returns what `busy` would be if the only delay were the kubelet's when terminating pods.
    pub(crate) fn ideal(&self) -> f64 {
        self.ideal / self.runs.max(1) as f64
    }

    pub(crate) fn rejected_percent(&self) -> f64 {
        100.0 * self.rejected as f64 / (self.rejected + self.started).max(1) as f64
    }

    /// Returns a row of the table.
    pub(crate) fn row(&mut self) -> String {
        let [p50, p90] = percentiles(&mut self.waits, [50, 90]).map(|time| time.as_secs_f64());
        let pods = (self.rejected + self.started).max(1) as f64;
        let (least, most) = self
            .busy
            .iter()
            .fold((f64::MAX, 0.0), |(least, most): (f64, f64), busy| (least.min(*busy), most.max(*busy)));
        let matched = match self.matched {
            (_, 0) => String::new(),
            (matched, compared) => format!("{matched} of {compared}"),
        };
        format!(
            "{} | {:.0} | {:.0} % ({:.0}-{:.0}) | {:.0} % | {} ({:.1} %) | {p50:.1} / {p90:.1} | {:.1} | {:.2} | {:.1} | {matched}",
            self.runs,
            pods,
            100.0 * self.busy(),
            100.0 * least,
            100.0 * most,
            100.0 * self.ideal(),
            self.rejected,
            self.rejected_percent(),
            self.writes as f64 / pods,
            self.nudges as f64 / self.time.as_secs_f64().max(1.0),
            self.gets as f64 / pods,
        )
    }
}

/// The header of the table.
pub(crate) const HEAD: &str = "\
| exporter | plugin's cache, clocks | seeds | pods | CPUs busy | ideally | rejected | create to Running p50 / p90, s | writes per pod | nudges/s | GETs per pod | fingerprints matched |
|---|---|---|---|---|---|---|---|---|---|---|---|";
