//! A random walk: all events of pods, the exporter and the kubelet, in any order and at any rate.

use super::chance::{Dice, MS, NEVER, S, Span, Time};
use super::cluster::{Kind, NodeId, Phase, Pod, PodId, Request};
use super::controller::Nudges;
use super::exporter::{PATIENCE, Who};
use super::figures::{Cause, Figures};
use super::kubelet::Stage;
use super::load::residents;
use super::plugin::{Cache, Informer};
use super::queue::BackOff;
use super::world::{Delays, DriverEvent, Settings, World, guaranteed};

/// Maximum number of pod objects per node. With more, almost all events would be scheduling.
const MOST_PODS: usize = 24;
/// How long everything is left alone before the probe.
const CALM: Time = 90 * S;
/// Within this time the probe must run: longer than a fingerprint may be withheld, and than twice the time that the
/// scheduler leaves a pod unschedulable.
const PROBE: Time = 900 * S;

/// The parameters of a walk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk {
    pub(crate) steps: u64,
    pub(crate) informer: Informer,
    pub(crate) cache: Cache,
    pub(crate) nudges: Nudges,
    /// How long the exporter may take after receiving a binding, in addition to its writes.
    pub(crate) patience: Time,
    /// Number of nodes.
    pub(crate) nodes: usize,
    /// Whether other schedulers place pods, too, which no exporter can keep from colliding with ours.
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
            nudges: Nudges::usual(),
            patience: PATIENCE,
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
    pub(crate) figures: Figures,
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
        self.figures.rejected_for(cause)
    }
}

/// Draws the settings of one walk.
pub(crate) fn settings(walk: &Walk, dice: &mut Dice) -> Settings {
    let zones: &[&[u32]] = &[&[7, 7], &[6, 8], &[4, 4, 4, 4], &[2, 3], &[12, 12], &[9]];
    let (first, longest) = dice.pick(&[(S, 10 * S), (S, 10 * S), (S, 2 * S)]);
    let mut delays = Delays::default();
    for watch in &mut delays.watch {
        let times = dice.pick(&[1, 1, 1, 5, 20, 100]);
        *watch = Span(watch.0, watch.1 * times);
    }
    delays.object_watch.1 *= dice.pick(&[1, 1, 10]);
    delays.admission.1 *= dice.pick(&[1, 1, 5, 30]);
    delays.start.1 *= dice.pick(&[1, 10, 60]);
    delays.status.1 *= dice.pick(&[1, 1, 10, 50]);
    delays.read.1 *= dice.pick(&[1, 1, 10]);
    delays.bind[0].1 *= dice.pick(&[1, 1, 10]);
    delays.list[0].1 *= dice.pick(&[1, 1, 20]);
    let grace = delays.grace(walk.patience);
    Settings {
        zones: dice.pick(zones).to_vec(),
        resync: dice.pick(&[S / 2, S, 2 * S, 5 * S, 10 * S]),
        informer: walk.informer,
        cache: walk.cache,
        nudges: walk.nudges,
        back_off: BackOff { first, longest, early: dice.per_mille(700) },
        forgetful: dice.per_mille(500),
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
    fn hear(&mut self, world: &mut World, driver_event: DriverEvent) {
        match driver_event {
            DriverEvent::Drive(STEP) if self.steps < self.walk.steps => {
                self.steps += 1;
                let total = world.nodes.len() as u32 * world.settings.zones.iter().sum::<u32>();
                self.idle += u64::from(world.idle() * 1000 / total);
                self.step(world);
                if self.steps.is_multiple_of(200) {
                    self.pace = world.dice.pick(&[20 * MS, 100 * MS, 400 * MS, 400 * MS, S, 3 * S]);
                }
                let pause = world.dice.about(self.pace);
                world.drive_at(world.now + pause, STEP);
            }
            DriverEvent::Drive(token) => world.comes_back(token),
            DriverEvent::Rejected(_) | DriverEvent::Runs(_) | DriverEvent::Ended(_) => {}
        }
    }

    fn step(&mut self, world: &mut World) {
        let crowded = world.objects.len() >= MOST_PODS * world.nodes.len();
        match world.dice.below(1000) {
            0..450 if !crowded => self.create(world),
            450..470 if !crowded && self.walk.foreign => self.create_foreign(world),
            470..480 if self.walk.foreign => self.static_pod(world),
            480..500 if !crowded => self.create_modest(world),
            500..520 => self.replace(world),
            520..640 => self.delete(world, false),
            640..680 => self.delete(world, true),
            680..700 => self.finalize(world),
            700..703 if self.walk.faults => {
                let away = world.dice.within(Span(100 * MS, 5 * S));
                let killed = world.dice.per_mille(500);
                let node = any_node(world);
                world.restart_exporter(node, away, killed);
            }
            703..706 if self.walk.faults => {
                let away = world.dice.within(Span(300 * MS, 5 * S));
                let node = any_node(world);
                world.restart_kubelet(node, away);
            }
            706..712 if self.walk.faults => {
                let away = world.dice.within(Span(10 * MS, 20 * S));
                let node = any_node(world);
                world.lose_watch(node, away);
            }
            _ => self.sweep(world),
        }
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("pod-{}", self.names)
    }

    fn fresh(&mut self, world: &mut World, name: String) -> Pod {
        let most = world.settings.zones.iter().copied().max().unwrap_or(1) as usize;
        let cpus = 1 + world.dice.below(most.min(6)) as u32;
        let mut pod = guaranteed(name, cpus, world.now);
        let mean = world.dice.pick(&[300 * MS, 2 * S, 10 * S, 60 * S]);
        pod.life = if world.dice.per_mille(200) { NEVER } else { world.dice.about(mean) };
        pod.termination = world.dice.pick(&[0, 0, 50 * MS, 500 * MS, 5 * S, 30 * S]);
        pod.finalizer = world.dice.per_mille(60);
        if world.dice.per_mille(40) {
            pod.kind = Kind::Unpullable;
        }
        pod
    }

    fn create(&mut self, world: &mut World) {
        let name = self.name();
        let pod = self.fresh(world, name);
        world.create(pod);
    }

    fn create_modest(&mut self, world: &mut World) {
        let name = self.name();
        let mut pod = self.fresh(world, name);
        pod.request = world.dice.pick(&[
            Request::BEST_EFFORT,
            Request { milli: 500, guaranteed: false },
            Request { milli: 2000, guaranteed: false },
            Request { milli: 500, guaranteed: true },
        ]);
        world.create(pod);
    }

    fn create_foreign(&mut self, world: &mut World) {
        let name = self.name();
        let mut pod = self.fresh(world, name);
        if world.dice.per_mille(500) {
            pod.request = Request::BEST_EFFORT;
        }
        let node = any_node(world);
        world.create_bound(pod, node);
    }

    fn static_pod(&mut self, world: &mut World) {
        let node = any_node(world);
        let statics = |id: &PodId| world.pods[*id].kind == Kind::Static;
        if let Some(id) = world.nodes[node].placed.iter().copied().find(statics) {
            world.remove_static(id);
        } else {
            let name = self.name();
            let mut pod = guaranteed(name, 1, world.now);
            pod.life = NEVER;
            world.create_static(pod, node);
        }
    }

    fn any(&mut self, world: &mut World) -> Option<PodId> {
        // The first pods are the exporters' own.
        let agents = world.nodes.len();
        let mortal = |id: &PodId| world.pods[*id].kind != Kind::Static && *id >= agents;
        let pods: Vec<PodId> = world.objects.iter().copied().filter(mortal).collect();
        (!pods.is_empty()).then(|| pods[world.dice.below(pods.len())])
    }

    fn delete(&mut self, world: &mut World, force: bool) {
        if let Some(id) = self.any(world) {
            world.delete(id, force);
        }
    }

    /// Replaces a pod by another with the same name, as happens in a set.
    fn replace(&mut self, world: &mut World) {
        let Some(id) = self.any(world) else { return };
        world.delete(id, true);
        if world.pods[id].object.is_none() {
            let name = world.pods[id].name.clone();
            let pod = self.fresh(world, name);
            world.create(pod);
        }
    }

    fn finalize(&mut self, world: &mut World) {
        let kept = |id: &&PodId| world.pods[**id].finalizer;
        let kept: Vec<PodId> = world.objects.iter().filter(kept).copied().collect();
        if !kept.is_empty() {
            let id = kept[world.dice.below(kept.len())];
            world.finalize(id);
        }
    }

    /// Cleans up a terminated pod.
    fn sweep(&mut self, world: &mut World) {
        let over = |id: &&PodId| world.pods[**id].object.is_some_and(|seen| seen.phase.is_terminal());
        let over: Vec<PodId> = world.objects.iter().filter(over).copied().collect();
        if over.len() > 3 {
            let id = over[world.dice.below(over.len())];
            world.finalize(id);
            world.delete(id, false);
        }
    }
}

fn any_node(world: &mut World) -> NodeId {
    let nodes = world.nodes.len();
    if nodes == 1 { 0 } else { world.dice.below(nodes) }
}

/// Runs one walk.
pub(crate) fn run(walk: &Walk, seed: u64, who: Who) -> Report {
    let mut dice = Dice::new(seed);
    let settings = settings(walk, &mut dice);
    let mut world = World::new(settings, dice.seed(), who.exporters(walk.informer, walk.nodes));
    residents(&mut world, false);
    world.run_until(5 * S, &mut |_, _| {});
    let mut walker = Walker { walk, names: 0, idle: 0, steps: 0, pace: 400 * MS };
    world.drive_at(world.now, STEP);
    let begin = world.now;
    while walker.steps < walk.steps {
        let end = world.now + 60 * S;
        world.run_until(end, &mut |world, driver_event| walker.hear(world, driver_event));
    }
    let time = world.now - begin;
    let figures = world.figures.clone();
    let placed = world.pods.iter().filter(|pod| pod.reserved.is_some()).count() as u64;
    let (frozen, probe) = probe(&mut world, &mut walker);
    Report {
        seed,
        steps: walker.steps,
        figures,
        placed,
        idle: walker.idle / walker.steps.max(1),
        frozen,
        probe,
        time,
    }
}

/// Leaves everything alone until it is calm, makes sure that a CPU is free, and creates a pod that needs one.
fn probe(world: &mut World, walker: &mut Walker<'_>) -> (bool, Time) {
    let waiting: Vec<PodId> = world.queue.waiting().collect();
    waiting.into_iter().for_each(|id| {
        world.finalize(id);
        world.delete(id, true);
    });
    let total: u32 = world.settings.zones.iter().sum();
    let calm = world.now + CALM;
    world.run_until(calm, &mut |world, driver_event| walker.hear(world, driver_event));
    // Delete only pods that do not end by themselves, and only until there is room on the first node.
    let running: Vec<PodId> = world.nodes[0].kubelet.pods.keys().copied().collect();
    for id in running {
        let first = &world.nodes[0];
        let used: u32 = first.placed.iter().map(|id| world.pods[*id].request.milli).sum();
        if first.kubelet.free().count_ones() >= 1 && used + 1000 <= total * 1000 {
            break;
        }
        if id != 0 && first.kubelet.pods[&id].stage != Stage::Ending {
            world.finalize(id);
            world.delete(id, true);
            if world.pods[id].kind == Kind::Static {
                world.remove_static(id);
            }
        }
    }
    let begin = world.now;
    let id = world.create(guaranteed("probe".into(), 1, world.now));
    let runs = |world: &World| world.pods[id].object.is_some_and(|seen| seen.phase == Phase::Running);
    while world.now < begin + PROBE && !runs(world) {
        let next = world.now + S / 4;
        world.run_until(next, &mut |world, driver_event| walker.hear(world, driver_event));
    }
    (!runs(world), world.now - begin)
}
