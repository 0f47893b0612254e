//! The publishing rules of NFD's topology-updater and RTE: everything comes from the List.

use super::chance::{S, Time};
use super::cluster::{NodeId, Object};
use super::exporter::Exporter;
use super::fingerprint;
use super::kubelet::{List, Listed, left_over};
use super::world::{Signal, World};

/// The object for a List. With `mute_when_empty`, as in NFD, an empty List leads to no fingerprint.
fn object(
    world: &World,
    node: NodeId,
    listed: &[Listed],
    exclusive: bool,
    mute_when_empty: bool,
    counter: u64,
) -> Object {
    let used = listed.iter().fold(0, |used, pod| used | pod.cpus);
    let counted = listed.iter().filter(|pod| !exclusive || pod.cpus != 0);
    let print = fingerprint::sum(counted.map(|listed| world.pods[listed.pod].hash));
    Object {
        available: left_over(&world.nodes[node].kubelet.zones, used),
        policy: true,
        print: (!mute_when_empty || !listed.is_empty()).then_some(print),
        exclusive,
        counter,
        nudges: 0,
        accounts: listed.iter().filter(|pod| pod.cpus != 0).map(|pod| pod.pod).collect(),
        withheld: false,
    }
}

/// NFD's topology updater: a scan and a write for each event of a state file, several of which come with one
/// change, and one a minute. It does not compare with the last object and writes in a different order each
/// time, so each write is a change.
#[derive(Debug)]
pub(crate) struct Nfd {
    node: NodeId,
    /// Number of events for one change of a file.
    per_file: u32,
    due: u32,
    busy: bool,
    writes: u64,
}

impl Nfd {
    pub(crate) fn new(node: NodeId, per_file: u32) -> Self {
        Self { node, per_file, due: 0, busy: false, writes: 0 }
    }

    fn go_on(&mut self, world: &mut World) {
        if self.due > 0 && !self.busy {
            self.due -= 1;
            self.busy = true;
            world.list(self.node);
        }
    }

    fn listed(&mut self, world: &mut World, list: List) {
        if let Some(listed) = list {
            self.writes += 1;
            let object = object(world, self.node, &listed, false, true, self.writes);
            world.write(self.node, object);
        } else {
            self.busy = false;
            self.go_on(world);
        }
    }
}

impl Exporter for Nfd {
    fn hear(&mut self, world: &mut World, signal: Signal) {
        match signal {
            Signal::Started => {
                *self = Self::new(self.node, self.per_file);
                self.due = 1;
                world.wake_at(self.node, world.now + 60 * S, 0);
                self.go_on(world);
            }
            Signal::File => {
                self.due += self.per_file;
                self.go_on(world);
            }
            Signal::Timer(_) => {
                self.due += 1;
                world.wake_at(self.node, world.now + 60 * S, 0);
                self.go_on(world);
            }
            Signal::Listed(list) => self.listed(world, list),
            Signal::Written => {
                self.busy = false;
                self.go_on(world);
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
    fn hear(&mut self, world: &mut World, signal: Signal) {
        match signal {
            Signal::Started => {
                world.list(self.node);
                let at = world.now + self.period;
                world.wake_at(self.node, at, 0);
            }
            Signal::Timer(_) => {
                world.list(self.node);
                let at = world.now + self.period;
                world.wake_at(self.node, at, 0);
            }
            Signal::Listed(Some(listed)) => {
                let object = object(world, self.node, &listed, self.exclusive, false, 0);
                world.write(self.node, object);
            }
            _ => {}
        }
    }
}
