//! A closed loop: there is always somewhat more to do than the node can.

use std::collections::BTreeSet;

use super::chance::{MS, S, Span, Time};
use super::cluster::{Kind, Pod, PodId, Request};
use super::exporter::Exporter;
use super::figures::{Cause, Figures, percentile};
use super::world::{Notice, Settings, World, guaranteed};

/// How pods come to their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// They complete, and somebody deletes them some time later.
    Complete(Span),
    /// They are deleted while they run.
    Delete,
}

/// The load.
#[derive(Clone, Debug)]
pub struct Load {
    /// Requests of all living pods, in hundredths of what the node has.
    pub percent: u32,
    /// The sizes to draw from.
    pub sizes: &'static [u32],
    /// The mean life of a pod.
    pub life: Time,
    pub end: End,
    /// How soon a pod that has ended is replaced.
    pub again: Span,
    /// There are a completed, an unpullable and a refused pod on the node, Guaranteed ones.
    pub odd_pods: bool,
    /// For how long.
    pub time: Time,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub created: u64,
    pub placed: u64,
    pub refused: usize,
    pub refused_late: usize,
    /// Parts of the CPUs that could be busy.
    pub busy: f64,
    pub p50: Time,
    pub p90: Time,
    pub writes: u64,
    pub nudges: u64,
    pub holds: u64,
    pub cycles: u64,
    pub agreement: Time,
    pub windows: Vec<Time>,
    pub unknown: usize,
    pub time: Time,
}

struct Driver {
    load: Load,
    living: BTreeSet<PodId>,
    ours: Vec<PodId>,
    capacity: u32,
    number: u64,
}

/// What the driver is told to do.
const MORE: u64 = 0;
const DELETE: u64 = 1 << 40;

impl Driver {
    fn fill(&mut self, world: &mut World) {
        loop {
            let asked: u32 = self.living.iter().map(|id| world.pods[*id].request.exclusive()).sum();
            if asked * 100 >= self.capacity * self.load.percent {
                return;
            }
            self.number += 1;
            let cpus = world.dice.pick(self.load.sizes);
            let mut pod = guaranteed(format!("pod-{}", self.number), cpus, world.now);
            let life = world.dice.about(self.load.life).max(100 * MS);
            match self.load.end {
                End::Complete(_) => pod.life = life,
                End::Delete => pod.termination = 20 * MS,
            }
            let id = world.create(pod);
            self.living.insert(id);
            self.ours.push(id);
        }
    }

    fn hear(&mut self, world: &mut World, notice: Notice) {
        match notice {
            Notice::Drive(MORE) => self.fill(world),
            Notice::Drive(token) if token & DELETE != 0 => {
                let id = (token & !DELETE) as PodId;
                world.delete(id, false);
            }
            Notice::Refused(id) | Notice::Ended(id) => {
                if self.living.remove(&id) {
                    let later = match self.load.end {
                        End::Complete(later) if notice == Notice::Ended(id) => world.dice.within(later),
                        _ => world.dice.within(Span(50 * MS, 500 * MS)),
                    };
                    world.drive_at(world.now + later, DELETE | id as u64);
                    let again = world.dice.within(self.load.again);
                    world.drive_at(world.now + again, MORE);
                }
            }
            Notice::Runs(id) if self.load.end == End::Delete && self.living.contains(&id) => {
                let life = world.dice.about(self.load.life).max(100 * MS);
                world.drive_at(world.now + life, DELETE | id as u64);
            }
            Notice::Runs(_) => {}
            Notice::Drive(token) => world.comes_back(token),
        }
    }
}

/// The pods that every cluster has: the exporter's own, and, if asked for, one that has completed, one that cannot be pulled
/// and one that was refused.
pub fn residents(world: &mut World, odd_pods: bool) -> u32 {
    let mut agent = Pod::new("agent".into(), Request::BEST_EFFORT, world.now);
    agent.ours = false;
    world.create_bound(agent);
    if !odd_pods {
        return 0;
    }
    let mut completed = guaranteed("completed".into(), 1, world.now);
    completed.life = S;
    world.create_bound(completed);
    let mut unpullable = guaranteed("unpullable".into(), 1, world.now);
    unpullable.kind = Kind::Unpullable;
    world.create_bound(unpullable);
    let refused = guaranteed("refused".into(), 64, world.now);
    world.create_bound(refused);
    1
}

/// Runs it.
pub fn run(settings: Settings, load: &Load, exporter: Box<dyn Exporter>, seed: u64) -> Outcome {
    let plugin = settings.plugin;
    let mut world = World::new(settings, seed, exporter);
    let taken = residents(&mut world, load.odd_pods);
    let capacity = world.settings.zones.iter().sum::<u32>() - taken;
    let mut driver =
        Driver { load: load.clone(), living: BTreeSet::new(), ours: Vec::new(), capacity, number: 0 };
    // NFD's updater writes its first complete object after a minute.
    world.run_until(90 * S, &mut |_, _| {});
    world.figures = Figures::default();
    world.drive_at(world.now, MORE);
    let start = world.now;
    let end = start + load.time;
    world.run_until(end, &mut |world, notice| driver.hear(world, notice));
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
        refused: figures.refused.len(),
        refused_late: figures.refused_for(Cause::Late),
        busy: figures.busy as f64 / (time as f64 * f64::from(driver.capacity)),
        p50: percentile(&waits, 50),
        p90: percentile(&waits, 90),
        writes: figures.writes,
        nudges: figures.nudges,
        holds: figures.holds,
        cycles: figures.cycles,
        agreement: mean(&figures.disagreements),
        windows: figures.windows.clone(),
        unknown: if plugin { figures.refused_for(Cause::Unknown) } else { 0 },
        time,
    }
}
