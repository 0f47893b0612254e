//! A closed loop: the pods always request somewhat more than the nodes have.

use std::collections::BTreeSet;

use super::chance::{MS, NEVER, S, Span, Time};
use super::cluster::{Kind, NodeId, Pod, PodId, Request};
use super::exporter::Exporter;
use super::figures::{Cause, Figures, percentile};
use super::world::{DriverEvent, Settings, World, guaranteed};

/// The load. Half of the pods complete and are deleted once that is reported; the others are deleted while
/// they run.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// Requests of all living pods, in percent of the nodes' CPUs.
    pub(crate) percent: u32,
    /// The sizes to draw from.
    pub(crate) sizes: &'static [u32],
    /// The mean lifetime of a pod; `shortest`: the shortest.
    pub(crate) life: Time,
    pub(crate) shortest: Time,
    /// How soon a terminated pod is replaced.
    pub(crate) again: Span,
    /// Whether there are a completed, an unpullable and a rejected pod on each node, all Guaranteed.
    pub(crate) odd_pods: bool,
    /// Number of pods in a thousand that bind late.
    pub(crate) late: u32,
    /// The duration.
    pub(crate) time: Time,
}

/// The results of a load.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) created: u64,
    pub(crate) placed: u64,
    pub(crate) rejected: usize,
    pub(crate) rejected_late: usize,
    /// Rejected because of pods that were reserved but not bound yet.
    pub(crate) rejected_unbound: usize,
    /// Fraction of the CPU time that was used.
    pub(crate) busy: f64,
    pub(crate) p50: Time,
    pub(crate) p90: Time,
    pub(crate) mean: Time,
    pub(crate) writes: u64,
    pub(crate) nudges: u64,
    pub(crate) withheld_writes: u64,
    pub(crate) reads: u64,
    pub(crate) cycles: u64,
    pub(crate) agreement: Time,
    pub(crate) windows: Vec<Time>,
    pub(crate) unknown: usize,
    pub(crate) time: Time,
}

struct Driver {
    load: Load,
    living: BTreeSet<PodId>,
    /// CPUs requested by the living pods.
    requested: u32,
    ours: Vec<PodId>,
    capacity: u32,
    number: u64,
}

/// Tokens of the driver.
const MORE: u64 = 0;
const DELETE: u64 = 1 << 40;

impl Driver {
    fn fill(&mut self, world: &mut World) {
        loop {
            if self.requested * 100 >= self.capacity * self.load.percent {
                return;
            }
            self.number += 1;
            let cpus = world.dice.pick(self.load.sizes);
            let mut pod = guaranteed(format!("pod-{}", self.number), cpus, world.now);
            let life = self.life(world);
            pod.termination = 20 * MS;
            if world.dice.per_mille(500) {
                pod.life = life;
            }
            pod.binds_late = world.dice.per_mille(self.load.late);
            let id = world.create(pod);
            self.requested += cpus;
            self.living.insert(id);
            self.ours.push(id);
        }
    }

    fn life(&self, world: &mut World) -> Time {
        self.load.shortest + world.dice.about(self.load.life.saturating_sub(self.load.shortest))
    }

    fn hear(&mut self, world: &mut World, driver_event: DriverEvent) {
        match driver_event {
            DriverEvent::Drive(MORE) => self.fill(world),
            DriverEvent::Drive(token) if token & DELETE != 0 => {
                let id = (token & !DELETE) as PodId;
                world.delete(id, false);
            }
            DriverEvent::Rejected(id) | DriverEvent::Ended(id) => {
                if self.living.remove(&id) {
                    self.requested -= world.pods[id].request.exclusive();
                    let later = world.dice.within(Span(50 * MS, 500 * MS));
                    world.drive_at(world.now + later, DELETE | id as u64);
                    let again = world.dice.within(self.load.again);
                    world.drive_at(world.now + again, MORE);
                }
            }
            DriverEvent::Runs(id) if world.pods[id].life == NEVER && self.living.contains(&id) => {
                let life = self.life(world);
                world.drive_at(world.now + life, DELETE | id as u64);
            }
            DriverEvent::Runs(_) => {}
            DriverEvent::Drive(token) => world.comes_back(token),
        }
    }
}

/// Creates the pods that every node has: the exporter's own and, with `odd_pods`, one that has completed, one
/// that cannot be pulled and one that was rejected. Returns the number of CPUs allocated to them.
pub(crate) fn residents(world: &mut World, odd_pods: bool) -> u32 {
    (0..world.nodes.len()).map(|node| residents_of(world, node, odd_pods)).sum()
}

fn residents_of(world: &mut World, node: NodeId, odd_pods: bool) -> u32 {
    let agent = Pod::new(format!("agent-{node}"), Request::BEST_EFFORT, world.now);
    world.create_bound(agent, node);
    if !odd_pods {
        return 0;
    }
    let mut completed = guaranteed(format!("completed-{node}"), 1, world.now);
    completed.life = S;
    world.create_bound(completed, node);
    let mut unpullable = guaranteed(format!("unpullable-{node}"), 1, world.now);
    unpullable.kind = Kind::Unpullable;
    world.create_bound(unpullable, node);
    let rejected = guaranteed(format!("rejected-{node}"), 64, world.now);
    world.create_bound(rejected, node);
    1
}

/// Runs the load.
pub(crate) fn run(settings: Settings, load: &Load, exporters: Vec<Box<dyn Exporter>>, seed: u64) -> Outcome {
    let plugin = settings.plugin;
    let mut world = World::new(settings, seed, exporters);
    let taken = residents(&mut world, load.odd_pods);
    let capacity = world.nodes.len() as u32 * world.settings.zones.iter().sum::<u32>() - taken;
    let mut driver = Driver {
        load: load.clone(),
        living: BTreeSet::new(),
        requested: 0,
        ours: Vec::new(),
        capacity,
        number: 0,
    };
    // NFD's updater writes its first complete object after a minute.
    world.run_until(90 * S, &mut |_, _| {});
    world.figures = Figures::default();
    world.drive_at(world.now, MORE);
    let start = world.now;
    let end = start + load.time;
    world.run_until(end, &mut |world, driver_event| driver.hear(world, driver_event));
    let now = world.now;
    world.figures.finish(now);
    outcome(&world, &driver, start, plugin)
}

fn outcome(world: &World, driver: &Driver, start: Time, plugin: bool) -> Outcome {
    let figures = &world.figures;
    let time = world.now - start;
    let mut waits: Vec<Time> = driver
        .ours
        .iter()
        .filter_map(|id| world.pods[*id].running.map(|at| at - world.pods[*id].created))
        .collect();
    waits.sort_unstable();
    let mean =
        |times: &[Time]| times.iter().sum::<Time>().checked_div(times.len() as u64).unwrap_or_default();
    Outcome {
        created: driver.ours.len() as u64,
        placed: driver.ours.iter().filter(|id| world.pods[**id].reserved.is_some()).count() as u64,
        rejected: figures.rejected.len(),
        rejected_late: figures.rejected_for(Cause::Late),
        rejected_unbound: figures.rejected_for(Cause::Unbound),
        busy: figures.busy as f64 / (time as f64 * f64::from(driver.capacity)),
        p50: percentile(&waits, 50),
        p90: percentile(&waits, 90),
        mean: mean(&waits),
        writes: figures.writes,
        nudges: figures.nudges,
        withheld_writes: figures.withheld_writes,
        reads: figures.reads,
        cycles: figures.cycles,
        agreement: mean(&figures.disagreements),
        windows: figures.windows.clone(),
        unknown: if plugin { figures.rejected_for(Cause::Unknown) } else { 0 },
        time,
    }
}
