//! A random walk: all events of pods, the exporter and the kubelet, in any order and at any rate.

use super::cluster::{Kind, NodeId, Phase, Pod, PodId, Request};
use super::controller::Nudges;
use super::exporter::{ExporterKind, WITHHOLD_AFTER};
use super::kubelet::Stage;
use super::load::create_initial_pods;
use super::measurements::{Cause, Measurements};
use super::plugin::{Cache, Informer};
use super::queue::Backoff;
use super::random::Random;
use super::settings::{Delays, Settings};
use super::simulation::{DriverEvent, Simulation, guaranteed};
use super::time::{MS, NEVER, S, Span, Time};

/// Maximum number of pod objects per node. With more, almost all events would be scheduling.
const MAX_PODS: usize = 24;
/// How long nothing is changed before the probe.
const IDLE: Time = 90 * S;
/// The probe must run within this time, which exceeds the longest withholding of a fingerprint and twice the
/// time the scheduler leaves a pod unschedulable.
const PROBE: Time = 900 * S;

/// The parameters of a walk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk {
    pub(crate) steps: u64,
    pub(crate) informer: Informer,
    pub(crate) cache: Cache,
    pub(crate) nudges: Nudges,
    /// How long the exporter may take after receiving a binding, in addition to its writes.
    pub(crate) withhold_after: Time,
    /// Number of nodes.
    pub(crate) nodes: usize,
    /// Whether other schedulers place pods, too. No exporter can prevent the conflicts that follow.
    pub(crate) foreign: bool,
    /// Whether exporters and kubelets restart and watches break.
    pub(crate) faults: bool,
}

impl Default for Walk {
    /// One node, no other schedulers, no faults.
    fn default() -> Self {
        Self {
            steps: 0,
            informer: Informer::Dedicated,
            cache: Cache::OverReserve,
            nudges: Nudges::default_plan(),
            withhold_after: WITHHOLD_AFTER,
            nodes: 1,
            foreign: false,
            faults: false,
        }
    }
}

/// The result of one walk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) steps: u64,
    pub(crate) measurements: Measurements,
    pub(crate) placed: u64,
    /// Mean of the CPUs that were idle while pods waited for them, in thousandths of all.
    pub(crate) idle: u64,
    /// Whether the probe, the last pod of the walk, did not run.
    pub(crate) frozen: bool,
    /// How long the probe took.
    pub(crate) probe: Time,
    /// Virtual time.
    pub(crate) time: Time,
}

impl Report {
    pub(crate) fn rejected_for(&self, cause: Cause) -> usize {
        self.measurements.rejected_for(cause)
    }
}

/// Draws the settings of one walk.
pub(crate) fn settings(walk: &Walk, rng: &mut Random) -> Settings {
    let zones: &[&[u32]] = &[&[7, 7], &[6, 8], &[4, 4, 4, 4], &[2, 3], &[12, 12], &[9]];
    let (first, longest) = rng.pick(&[(S, 10 * S), (S, 10 * S), (S, 2 * S)]);
    let mut delays = Delays::default();
    for watch in &mut delays.watch {
        let times = rng.pick(&[1, 1, 1, 5, 20, 100]);
        *watch = Span(watch.0, watch.1 * times);
    }
    delays.object_watch.1 *= rng.pick(&[1, 1, 10]);
    delays.admission.1 *= rng.pick(&[1, 1, 5, 30]);
    delays.start.1 *= rng.pick(&[1, 10, 60]);
    delays.status.1 *= rng.pick(&[1, 1, 10, 50]);
    delays.read.1 *= rng.pick(&[1, 1, 10]);
    delays.bind[0].1 *= rng.pick(&[1, 1, 10]);
    delays.list[0].1 *= rng.pick(&[1, 1, 20]);
    let grace = delays.grace(walk.withhold_after);
    Settings {
        zones: rng.pick(zones).to_vec(),
        resync: rng.pick(&[S / 2, S, 2 * S, 5 * S, 10 * S]),
        informer: walk.informer,
        cache: walk.cache,
        nudges: walk.nudges,
        backoff: Backoff { first, longest, early: rng.per_mille(700) },
        reserve_clears_mark: rng.per_mille(500),
        delays,
        grace,
        ..Settings::default()
    }
}

struct Walker<'a> {
    walk: &'a Walk,
    names: u64,
    idle: u64,
    steps: u64,
    pace: Time,
}

const STEP: u64 = 1;

impl Walker<'_> {
    fn handle(&mut self, sim: &mut Simulation, event: DriverEvent) {
        match event {
            DriverEvent::Timer(STEP) if self.steps < self.walk.steps => {
                self.steps += 1;
                let total = sim.nodes.len() as u32 * sim.settings.zones.iter().sum::<u32>();
                self.idle += u64::from(sim.idle() * 1000 / total);
                self.step(sim);
                if self.steps.is_multiple_of(200) {
                    self.pace = sim.rng.pick(&[20 * MS, 100 * MS, 400 * MS, 400 * MS, S, 3 * S]);
                }
                let pause = sim.rng.exponential(self.pace);
                sim.set_driver_timer(sim.now + pause, STEP);
            }
            DriverEvent::Timer(token) => sim.resume(token),
            DriverEvent::Rejected(_) | DriverEvent::Running(_) | DriverEvent::Terminated(_) => {}
        }
    }

    fn step(&mut self, sim: &mut Simulation) {
        let is_full = sim.objects.len() >= MAX_PODS * sim.nodes.len();
        match sim.rng.below(1000) {
            0..450 if !is_full => self.create(sim),
            450..470 if !is_full && self.walk.foreign => self.create_foreign(sim),
            470..480 if self.walk.foreign => self.static_pod(sim),
            480..500 if !is_full => self.create_shared(sim),
            500..520 => self.replace(sim),
            520..640 => self.delete(sim, false),
            640..680 => self.delete(sim, true),
            680..700 => self.finalize(sim),
            700..703 if self.walk.faults => {
                let downtime = sim.rng.within(Span(100 * MS, 5 * S));
                let killed = sim.rng.per_mille(500);
                let node = any_node(sim);
                sim.restart_exporter(node, downtime, killed);
            }
            703..706 if self.walk.faults => {
                let downtime = sim.rng.within(Span(300 * MS, 5 * S));
                let node = any_node(sim);
                sim.restart_kubelet(node, downtime);
            }
            706..712 if self.walk.faults => {
                let downtime = sim.rng.within(Span(10 * MS, 20 * S));
                let node = any_node(sim);
                sim.lose_watch(node, downtime);
            }
            _ => self.clean_up(sim),
        }
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("pod-{}", self.names)
    }

    fn new_pod(&mut self, sim: &mut Simulation, name: String) -> Pod {
        let largest = sim.settings.zones.iter().copied().max().unwrap_or(1) as usize;
        let cpus = 1 + sim.rng.below(largest.min(6)) as u32;
        let mut pod = guaranteed(name, cpus, sim.now);
        let mean = sim.rng.pick(&[300 * MS, 2 * S, 10 * S, 60 * S]);
        pod.run_time = if sim.rng.per_mille(200) { NEVER } else { sim.rng.exponential(mean) };
        pod.termination = sim.rng.pick(&[0, 0, 50 * MS, 500 * MS, 5 * S, 30 * S]);
        pod.finalizer = sim.rng.per_mille(60);
        if sim.rng.per_mille(40) {
            pod.kind = Kind::Unpullable;
        }
        pod
    }

    fn create(&mut self, sim: &mut Simulation) {
        let name = self.name();
        let pod = self.new_pod(sim, name);
        sim.create(pod);
    }

    fn create_shared(&mut self, sim: &mut Simulation) {
        let name = self.name();
        let mut pod = self.new_pod(sim, name);
        pod.request = sim.rng.pick(&[
            Request::BEST_EFFORT,
            Request { milli: 500, guaranteed: false },
            Request { milli: 2000, guaranteed: false },
            Request { milli: 500, guaranteed: true },
        ]);
        sim.create(pod);
    }

    fn create_foreign(&mut self, sim: &mut Simulation) {
        let name = self.name();
        let mut pod = self.new_pod(sim, name);
        if sim.rng.per_mille(500) {
            pod.request = Request::BEST_EFFORT;
        }
        let node = any_node(sim);
        sim.create_bound(pod, node);
    }

    fn static_pod(&mut self, sim: &mut Simulation) {
        let node = any_node(sim);
        let is_static = |id: &PodId| sim.pods[*id].kind == Kind::Static;
        if let Some(id) = sim.nodes[node].placed.iter().copied().find(is_static) {
            sim.remove_static(id);
        } else {
            let name = self.name();
            let mut pod = guaranteed(name, 1, sim.now);
            pod.run_time = NEVER;
            sim.create_static(pod, node);
        }
    }

    fn any(&mut self, sim: &mut Simulation) -> Option<PodId> {
        // The first pods are the exporters' own.
        let agents = sim.nodes.len();
        let is_deletable = |id: &PodId| sim.pods[*id].kind != Kind::Static && *id >= agents;
        let pods: Vec<PodId> = sim.objects.iter().copied().filter(is_deletable).collect();
        (!pods.is_empty()).then(|| pods[sim.rng.below(pods.len())])
    }

    fn delete(&mut self, sim: &mut Simulation, force: bool) {
        if let Some(id) = self.any(sim) {
            sim.delete(id, force);
        }
    }

    /// Replaces a pod by another with the same name, like a StatefulSet.
    fn replace(&mut self, sim: &mut Simulation) {
        let Some(id) = self.any(sim) else { return };
        sim.delete(id, true);
        if sim.pods[id].object.is_none() {
            let name = sim.pods[id].name.clone();
            let pod = self.new_pod(sim, name);
            sim.create(pod);
        }
    }

    fn finalize(&mut self, sim: &mut Simulation) {
        let has_finalizer = |id: &&PodId| sim.pods[**id].finalizer;
        let kept: Vec<PodId> = sim.objects.iter().filter(has_finalizer).copied().collect();
        if !kept.is_empty() {
            let id = kept[sim.rng.below(kept.len())];
            sim.finalize(id);
        }
    }

    /// Cleans up a terminated pod.
    fn clean_up(&mut self, sim: &mut Simulation) {
        let is_terminal = |id: &&PodId| sim.pods[**id].object.is_some_and(|state| state.phase.is_terminal());
        let terminated: Vec<PodId> = sim.objects.iter().filter(is_terminal).copied().collect();
        if terminated.len() > 3 {
            let id = terminated[sim.rng.below(terminated.len())];
            sim.finalize(id);
            sim.delete(id, false);
        }
    }
}

fn any_node(sim: &mut Simulation) -> NodeId {
    let nodes = sim.nodes.len();
    if nodes == 1 { 0 } else { sim.rng.below(nodes) }
}

/// Runs one walk.
pub(crate) fn run(walk: &Walk, seed: u64, exporter: ExporterKind) -> Report {
    let mut rng = Random::new(seed);
    let settings = settings(walk, &mut rng);
    let mut sim = Simulation::new(settings, rng.seed(), exporter.create(walk.informer, walk.nodes));
    create_initial_pods(&mut sim, false);
    sim.run_until(5 * S, &mut |_, _| {});
    let mut walker = Walker { walk, names: 0, idle: 0, steps: 0, pace: 400 * MS };
    sim.set_driver_timer(sim.now, STEP);
    let begin = sim.now;
    while walker.steps < walk.steps {
        let end = sim.now + 60 * S;
        sim.run_until(end, &mut |sim, event| walker.handle(sim, event));
    }
    let time = sim.now - begin;
    let measurements = sim.measurements.clone();
    let placed = sim.pods.iter().filter(|pod| pod.reserved.is_some()).count() as u64;
    let (frozen, probe) = probe(&mut sim, &mut walker);
    Report {
        seed,
        steps: walker.steps,
        measurements,
        placed,
        idle: walker.idle / walker.steps.max(1),
        frozen,
        probe,
        time,
    }
}

/// Changes nothing for a while, makes sure that a CPU is free, and creates a pod that needs one.
fn probe(sim: &mut Simulation, walker: &mut Walker<'_>) -> (bool, Time) {
    let queued: Vec<PodId> = sim.queue.pods().collect();
    queued.into_iter().for_each(|id| {
        sim.finalize(id);
        sim.delete(id, true);
    });
    let total: u32 = sim.settings.zones.iter().sum();
    let end = sim.now + IDLE;
    sim.run_until(end, &mut |sim, event| walker.handle(sim, event));
    // Delete only pods that do not end by themselves, and only until there is room on the first node.
    let running: Vec<PodId> = sim.nodes[0].kubelet.pods.keys().copied().collect();
    for id in running {
        let first = &sim.nodes[0];
        let used: u32 = first.placed.iter().map(|id| sim.pods[*id].request.milli).sum();
        if first.kubelet.free().count_ones() >= 1 && used + 1000 <= total * 1000 {
            break;
        }
        if id != 0 && first.kubelet.pods[&id].stage != Stage::Terminating {
            sim.finalize(id);
            sim.delete(id, true);
            if sim.pods[id].kind == Kind::Static {
                sim.remove_static(id);
            }
        }
    }
    let begin = sim.now;
    let id = sim.create(guaranteed("probe".into(), 1, sim.now));
    let is_running =
        |sim: &Simulation| sim.pods[id].object.is_some_and(|state| state.phase == Phase::Running);
    while sim.now < begin + PROBE && !is_running(sim) {
        let next = sim.now + S / 4;
        sim.run_until(next, &mut |sim, event| walker.handle(sim, event));
    }
    (!is_running(sim), sim.now - begin)
}
