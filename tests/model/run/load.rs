//! A closed loop: the pods always request somewhat more than the nodes have.

use std::collections::BTreeSet;

use super::cluster::{Kind, NodeId, Pod, PodId, Request};
use super::exporter::Exporter;
use super::measurements::{Cause, Measurements, percentile};
use super::settings::Settings;
use super::simulation::{DriverEvent, Simulation, guaranteed};
use super::time::{MS, NEVER, S, Span, Time};

/// The load. Half of the pods complete and are deleted once that is reported; the others are deleted while
/// they run.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// Requests of all active pods, in percent of the nodes' CPUs.
    pub(crate) percent: u32,
    /// The sizes to draw from.
    pub(crate) sizes: &'static [u32],
    /// The mean run time of a pod, and the shortest.
    pub(crate) run_time: Time,
    pub(crate) min_run_time: Time,
    /// How soon a terminated pod is replaced.
    pub(crate) replace_after: Span,
    /// Whether there are a completed, an unpullable and a rejected pod on each node, all Guaranteed.
    pub(crate) odd_pods: bool,
    /// Number of pods in a thousand that bind late.
    pub(crate) late_per_mille: u32,
    /// The duration.
    pub(crate) time: Time,
}

/// The results of a load.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) created: u64,
    pub(crate) placed: u64,
    pub(crate) rejected: usize,
    pub(crate) rejected_avoidably: usize,
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
    pub(crate) windows: Vec<Time>,
    pub(crate) unknown: usize,
    pub(crate) time: Time,
}

struct Driver {
    load: Load,
    active: BTreeSet<PodId>,
    /// CPUs requested by the active pods.
    requested: u32,
    created: Vec<PodId>,
    capacity: u32,
    number: u64,
}

/// Tokens of the driver.
const FILL: u64 = 0;
const DELETE: u64 = 1 << 40;

impl Driver {
    fn fill(&mut self, sim: &mut Simulation) {
        loop {
            if self.requested * 100 >= self.capacity * self.load.percent {
                return;
            }
            self.number += 1;
            let cpus = sim.rng.pick(self.load.sizes);
            let mut pod = guaranteed(format!("pod-{}", self.number), cpus, sim.now);
            let run_time = self.run_time(sim);
            pod.termination = 20 * MS;
            if sim.rng.per_mille(500) {
                pod.run_time = run_time;
            }
            pod.binds_late = sim.rng.per_mille(self.load.late_per_mille);
            let id = sim.create(pod);
            self.requested += cpus;
            self.active.insert(id);
            self.created.push(id);
        }
    }

    fn run_time(&self, sim: &mut Simulation) -> Time {
        let min = self.load.min_run_time;
        min + sim.rng.exponential(self.load.run_time.saturating_sub(min))
    }

    fn handle(&mut self, sim: &mut Simulation, event: DriverEvent) {
        match event {
            DriverEvent::Timer(FILL) => self.fill(sim),
            DriverEvent::Timer(token) if token & DELETE != 0 => {
                let id = (token & !DELETE) as PodId;
                sim.delete(id, false);
            }
            DriverEvent::Rejected(id) | DriverEvent::Terminated(id) => {
                if self.active.remove(&id) {
                    self.requested -= sim.pods[id].request.exclusive();
                    let delete_after = sim.rng.within(Span(50 * MS, 500 * MS));
                    sim.set_driver_timer(sim.now + delete_after, DELETE | id as u64);
                    let replace_after = sim.rng.within(self.load.replace_after);
                    sim.set_driver_timer(sim.now + replace_after, FILL);
                }
            }
            DriverEvent::Running(id) if sim.pods[id].run_time == NEVER && self.active.contains(&id) => {
                let run_time = self.run_time(sim);
                sim.set_driver_timer(sim.now + run_time, DELETE | id as u64);
            }
            DriverEvent::Running(_) => {}
            DriverEvent::Timer(token) => sim.resume(token),
        }
    }
}

/// Creates the pods that every node has: the exporter's own and, with `odd_pods`, one that has completed, one
/// that cannot be pulled and one that was rejected. Returns the number of CPUs allocated to them.
pub(crate) fn create_initial_pods(sim: &mut Simulation, odd_pods: bool) -> u32 {
    (0..sim.nodes.len()).map(|node| create_initial_pods_on(sim, node, odd_pods)).sum()
}

fn create_initial_pods_on(sim: &mut Simulation, node: NodeId, odd_pods: bool) -> u32 {
    let agent = Pod::new(format!("agent-{node}"), Request::BEST_EFFORT, sim.now);
    sim.create_bound(agent, node);
    if !odd_pods {
        return 0;
    }
    let mut completed = guaranteed(format!("completed-{node}"), 1, sim.now);
    completed.run_time = S;
    sim.create_bound(completed, node);
    let mut unpullable = guaranteed(format!("unpullable-{node}"), 1, sim.now);
    unpullable.kind = Kind::Unpullable;
    sim.create_bound(unpullable, node);
    let rejected = guaranteed(format!("rejected-{node}"), 64, sim.now);
    sim.create_bound(rejected, node);
    1
}

/// Runs the load.
pub(crate) fn run(settings: Settings, load: &Load, exporters: Vec<Box<dyn Exporter>>, seed: u64) -> Outcome {
    let plugin = settings.plugin;
    let mut sim = Simulation::new(settings, seed, exporters);
    let allocated = create_initial_pods(&mut sim, load.odd_pods);
    let capacity = sim.nodes.len() as u32 * sim.settings.zones.iter().sum::<u32>() - allocated;
    let mut driver = Driver {
        load: load.clone(),
        active: BTreeSet::new(),
        requested: 0,
        created: Vec::new(),
        capacity,
        number: 0,
    };
    // NFD's updater writes its first complete object after a minute.
    sim.run_until(90 * S, &mut |_, _| {});
    sim.measurements = Measurements::default();
    sim.set_driver_timer(sim.now, FILL);
    let start = sim.now;
    let end = start + load.time;
    sim.run_until(end, &mut |sim, event| driver.handle(sim, event));
    let now = sim.now;
    sim.measurements.finish(now);
    outcome(&sim, &driver, start, plugin)
}

fn outcome(sim: &Simulation, driver: &Driver, start: Time, plugin: bool) -> Outcome {
    let measurements = &sim.measurements;
    let time = sim.now - start;
    let mut waits: Vec<Time> = driver
        .created
        .iter()
        .filter_map(|id| sim.pods[*id].running.map(|at| at - sim.pods[*id].created))
        .collect();
    waits.sort_unstable();
    let mean =
        |times: &[Time]| times.iter().sum::<Time>().checked_div(times.len() as u64).unwrap_or_default();
    Outcome {
        created: driver.created.len() as u64,
        placed: driver.created.iter().filter(|id| sim.pods[**id].reserved.is_some()).count() as u64,
        rejected: measurements.rejected.len(),
        rejected_avoidably: measurements.rejected_for(Cause::Avoidable),
        rejected_unbound: measurements.rejected_for(Cause::Unbound),
        busy: measurements.busy as f64 / (time as f64 * f64::from(driver.capacity)),
        p50: percentile(&waits, 50),
        p90: percentile(&waits, 90),
        mean: mean(&waits),
        writes: measurements.writes,
        nudges: measurements.nudges,
        withheld_writes: measurements.withheld_writes,
        reads: measurements.reads,
        cycles: measurements.cycles,
        windows: measurements.windows.clone(),
        unknown: if plugin { measurements.rejected_for(Cause::Unknown) } else { 0 },
        time,
    }
}
