//! The publishing rules of NFD's topology-updater and RTE: everything comes from the List.

use super::cluster::{NodeId, Object};
use super::exporter::Exporter;
use super::fingerprint;
use super::kubelet::{List, Listed, left_over};
use super::simulation::{ExporterInput, Simulation};
use super::time::{S, Time};

/// The object for a List. With `none_if_empty`, as in NFD, an empty List leads to no fingerprint.
fn object(
    sim: &Simulation,
    node: NodeId,
    listed: &[Listed],
    exclusive: bool,
    none_if_empty: bool,
    counter: u64,
) -> Object {
    let used = listed.iter().fold(0, |used, pod| used | pod.cpus);
    let counted = listed.iter().filter(|pod| !exclusive || pod.cpus != 0);
    let fingerprint = fingerprint::sum(counted.map(|listed| sim.pods[listed.pod].hash));
    Object {
        available: left_over(&sim.nodes[node].kubelet.zones, used),
        policy: true,
        fingerprint: (!none_if_empty || !listed.is_empty()).then_some(fingerprint),
        exclusive,
        counter,
        nudges: 0,
        accounts: listed.iter().filter(|pod| pod.cpus != 0).map(|pod| pod.pod).collect(),
        withheld: false,
    }
}

/// NFD's topology updater: a scan and a write for each event of a checkpoint, several of which belong to one
/// change, and one a minute. It does not compare with the last object and writes in a different order each
/// time, so each write is a change.
#[derive(Debug)]
pub(crate) struct Nfd {
    node: NodeId,
    /// Number of events for one change of a checkpoint.
    events_per_change: u32,
    due: u32,
    busy: bool,
    writes: u64,
}

impl Nfd {
    pub(crate) fn new(node: NodeId, events_per_change: u32) -> Self {
        Self { node, events_per_change, due: 0, busy: false, writes: 0 }
    }

    fn scan_if_due(&mut self, sim: &mut Simulation) {
        if self.due > 0 && !self.busy {
            self.due -= 1;
            self.busy = true;
            sim.list(self.node);
        }
    }

    fn listed(&mut self, sim: &mut Simulation, list: List) {
        if let Some(listed) = list {
            self.writes += 1;
            let object = object(sim, self.node, &listed, false, true, self.writes);
            sim.write(self.node, object);
        } else {
            self.busy = false;
            self.scan_if_due(sim);
        }
    }
}

impl Exporter for Nfd {
    fn handle(&mut self, sim: &mut Simulation, input: ExporterInput) {
        match input {
            ExporterInput::Started => {
                *self = Self::new(self.node, self.events_per_change);
                self.due = 1;
                sim.wake_at(self.node, sim.now + 60 * S, 0);
                self.scan_if_due(sim);
            }
            ExporterInput::Checkpoint => {
                self.due += self.events_per_change;
                self.scan_if_due(sim);
            }
            ExporterInput::Timer(_) => {
                self.due += 1;
                sim.wake_at(self.node, sim.now + 60 * S, 0);
                self.scan_if_due(sim);
            }
            ExporterInput::Listed(list) => self.listed(sim, list),
            ExporterInput::Written => {
                self.busy = false;
                self.scan_if_due(sim);
            }
            _ => {}
        }
    }
}

/// RTE: a periodic scan and a merge patch, which changes nothing if nothing changed.
#[derive(Debug)]
pub(crate) struct Rte {
    node: NodeId,
    period: Time,
    exclusive: bool,
}

impl Rte {
    /// Creates one with its default method, `with-exclusive-resources`.
    pub(crate) fn new(node: NodeId, period: Time) -> Self {
        Self { node, period, exclusive: true }
    }
}

impl Exporter for Rte {
    fn handle(&mut self, sim: &mut Simulation, input: ExporterInput) {
        match input {
            ExporterInput::Started => {
                sim.list(self.node);
                let at = sim.now + self.period;
                sim.wake_at(self.node, at, 0);
            }
            ExporterInput::Timer(_) => {
                sim.list(self.node);
                let at = sim.now + self.period;
                sim.wake_at(self.node, at, 0);
            }
            ExporterInput::Listed(Some(listed)) => {
                let object = object(sim, self.node, &listed, self.exclusive, false, 0);
                sim.write(self.node, object);
            }
            _ => {}
        }
    }
}
