//! The cluster, the scheduler and the kubelet in virtual time: the events and their effects.

mod api;
mod controller;
mod events;
mod exporter;
mod kubelet;
mod scheduler;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use super::cluster::{Forgotten, Kind, NodeId, Object, Phase, Pod, PodId, PodState, Request};
use super::controller::{Controller, Nudges};
use super::exporter::{Exporter, SETTLE};
use super::kubelet::{KnownPod, Kubelet, Stage};
use super::measurements::Measurements;
use super::plugin::{Cache, Expected, Filter, Informer, Plugin, matches_expected};
use super::queue::{Queue, QueueEvent};
use super::random::Random;
use super::settings::Settings;
use super::time::{MS, S, Span, Time};

use events::{ControllerInput, CycleResult, Event, KubeletTask, ScheduledEvent};
pub(crate) use events::{DriverEvent, ExporterInput, Watcher};

/// One tick of the plugin: the nodes still to be read, and the objects that were accepted.
#[derive(Debug, Default)]
struct TickState {
    dirty: VecDeque<(NodeId, Option<Expected>)>,
    accepted: Vec<(NodeId, Object, Time)>,
}

/// A node and its counterparts in the other components.
pub(crate) struct Node {
    /// Pods that were placed here, by the scheduler or by others, and have not terminated.
    pub(crate) placed: BTreeSet<PodId>,
    /// Its NodeResourceTopology.
    pub(crate) object: Option<Object>,
    pub(crate) kubelet: Kubelet,
    /// The plugin's state for this node.
    pub(crate) plugin: Plugin,
    exporter: Option<Box<dyn Exporter>>,
    /// Number of the exporter's processes and of its watches, to drop inputs of earlier ones.
    process: u32,
    watch: u32,
    watching: bool,
    exporting: bool,
    /// An exporter that started while the kubelet was starting may not know the node until this time, or
    /// until its first write.
    reading_until: Time,
    /// The pods on this node in the scheduler's own cache.
    on_node: Vec<PodId>,
    /// When the fingerprints of the object and the plugin began to differ.
    disagrees_since: Option<Time>,
    /// Latest delivery times, which keep the events of the exporter and the kubelet in order.
    last_notified: [Time; 2],
}

/// The state of the simulation.
pub(crate) struct Simulation {
    pub(crate) settings: Settings,
    pub(crate) now: Time,
    pub(crate) rng: Random,
    pub(crate) pods: Vec<Pod>,
    /// Pods with an object.
    pub(crate) objects: BTreeSet<PodId>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) queue: Queue,
    pub(crate) measurements: Measurements,
    pub(crate) driver_events: Vec<DriverEvent>,
    controller: Controller,
    scheduling: bool,
    tick_state: TickState,
    /// The tokens of the plugin's client in millionths of a request, and their time.
    tokens: (u64, Time),
    heap: BinaryHeap<Reverse<ScheduledEvent>>,
    number: u64,
    /// Latest delivery times, which keep the events of the scheduler, the plugin and the object watchers in
    /// order.
    last_notified: [Time; 3],
}

/// Index of the object watchers in `Simulation::last_notified`.
const OBJECTS: usize = 2;

impl Simulation {
    /// Creates a simulation with one node for each exporter. The exporters have written their first objects,
    /// and then the scheduler has started.
    pub(crate) fn new(settings: Settings, seed: u64, exporters: Vec<Box<dyn Exporter>>) -> Self {
        let mut rng = Random::new(seed);
        let nodes = exporters.into_iter().map(|exporter| Node::new(&settings, &mut rng, exporter)).collect();
        let mut sim = Self {
            nodes,
            queue: Queue::new(settings.backoff),
            controller: Controller::new(settings.nudges),
            tokens: (settings.client.map_or(0, |(_, burst)| u64::from(burst) * S), 0),
            settings,
            now: 0,
            rng,
            pods: Vec::new(),
            objects: BTreeSet::new(),
            measurements: Measurements::default(),
            driver_events: Vec::new(),
            scheduling: false,
            tick_state: TickState::default(),
            heap: BinaryHeap::new(),
            number: 0,
            last_notified: [0; 3],
        };
        for node in 0..sim.nodes.len() {
            sim.notify(node, ExporterInput::Started);
            sim.notify(node, ExporterInput::Pods(Vec::new()));
        }
        let start = S;
        let first_tick = start + sim.rng.within(Span(0, sim.settings.resync));
        sim.at(first_tick, Event::Tick);
        let flush = sim.rng.within(Span(0, S));
        let early = sim.settings.backoff.early;
        sim.at(if early { 2 * S } else { S + flush }, Event::FlushBackoff);
        sim.at(30 * S, Event::FlushUnschedulable);
        sim.run_until(start, &mut |_, _| {});
        if sim.settings.plugin && sim.settings.cache == Cache::OverReserve {
            sim.nodes.iter_mut().for_each(|node| node.plugin.cached.clone_from(&node.object));
        }
        sim
    }

    /// The node on which a pod was placed. For other pods it is 0, which no caller relies on.
    fn node_of(&self, id: PodId) -> NodeId {
        self.pods[id].node.unwrap_or_default()
    }

    fn at(&mut self, at: Time, event: Event) {
        self.number += 1;
        self.heap.push(Reverse(ScheduledEvent { at: at.max(self.now), number: self.number, event }));
    }

    fn after(&mut self, span: Span, event: Event) {
        let at = self.now + self.rng.within(span);
        self.at(at, event);
    }

    /// Notifies the driver at this time.
    pub(crate) fn set_driver_timer(&mut self, at: Time, token: u64) {
        self.at(at, Event::DriverTimer(token));
    }

    /// Runs until `end`, and passes the driver its events.
    pub(crate) fn run_until(&mut self, end: Time, driver: &mut dyn FnMut(&mut Self, DriverEvent)) {
        while self.heap.peek().is_some_and(|Reverse(due)| due.at <= end) {
            let Some(Reverse(due)) = self.heap.pop() else { return };
            self.now = due.at;
            self.measurements.events += 1;
            self.handle(due.event);
            while let Some(event) = self.driver_events.pop() {
                driver(self, event);
            }
        }
        self.now = end;
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::PodChanged { watcher, epoch, pod, state } => self.deliver(watcher, epoch, pod, state),
            Event::Relisted { node, epoch, pods } => {
                if epoch == self.nodes[node].watch {
                    pods.iter().for_each(|(pod, _)| self.record_received(*pod));
                    self.notify(node, ExporterInput::Pods(pods));
                }
            }
            Event::ObjectChanged => {
                self.queue.handle(QueueEvent::Object, self.now);
                self.schedule();
            }
            Event::AttributesChanged(node, object) => self.nodes[node].plugin.handle_object(&object),
            Event::Cycle => self.cycle(),
            Event::CycleReads(pod) => self.choose_node(pod),
            Event::CycleEnds { pod, result } => self.end_cycle(pod, result),
            Event::Bind(pod) => self.bind(pod),
            Event::PostBind(pod) => {
                let node = self.node_of(pod);
                self.nodes[node].plugin.post_bind(pod);
            }
            Event::FlushBackoff => {
                self.queue.flush(self.now);
                self.at(self.now + S, Event::FlushBackoff);
                self.schedule();
            }
            Event::FlushUnschedulable => {
                self.queue.flush_unschedulable(self.now);
                self.at(self.now + 30 * S, Event::FlushUnschedulable);
                self.schedule();
            }
            Event::Tick => self.tick(),
            Event::TickRead => self.tick_read(),
            Event::TickFlush => self.tick_flush(),
            Event::Kubelet { node, starts, task } => {
                let kubelet = &self.nodes[node].kubelet;
                if starts == kubelet.starts && !kubelet.down {
                    self.run_task(node, task);
                }
            }
            Event::KubeletUp(node) => self.kubelet_up(node),
            Event::Checkpoint(node) => self.notify(node, ExporterInput::Checkpoint),
            Event::List { node, epoch } => {
                let list = self.nodes[node].kubelet.list();
                let [_, back] = self.settings.delays.list;
                let input = Box::new(ExporterInput::Listed(list));
                self.after(back, Event::Exporter { node, epoch, input });
            }
            Event::Commit { node, object } => self.commit(node, *object),
            Event::Exporter { node, epoch, input } => {
                if epoch == self.nodes[node].process {
                    self.notify(node, *input);
                }
            }
            Event::Controller(input) => self.controller_receives(input),
            Event::Nudge => self.apply_nudge(),
            Event::DriverTimer(token) => self.driver_events.push(DriverEvent::Timer(token)),
        }
    }
}

impl Node {
    fn new(settings: &Settings, rng: &mut Random, exporter: Box<dyn Exporter>) -> Self {
        let relist = rng.within(Span(0, S - 1));
        Self {
            placed: BTreeSet::new(),
            object: None,
            kubelet: Kubelet::new(&settings.zones, relist),
            plugin: Plugin::new(settings.cache, settings.informer, settings.reserve_clears_mark),
            exporter: Some(exporter),
            process: 0,
            watch: 0,
            watching: true,
            exporting: true,
            reading_until: 0,
            on_node: Vec::new(),
            disagrees_since: None,
            last_notified: [0; 2],
        }
    }

    /// Free CPUs in each zone, without those for pods that are placed but not admitted yet.
    fn free_by_zone(&self, pods: &[Pod]) -> Vec<u32> {
        let mut free = self.kubelet.free_by_zone();
        let is_pending =
            |id: &&PodId| self.kubelet.pods.get(*id).is_none_or(|entry| entry.stage == Stage::Pending);
        let pending = self.placed.iter().filter(is_pending);
        for wanted in pending.map(|id| pods[*id].request.exclusive()) {
            if let Some(zone) = free.iter_mut().find(|zone| **zone >= wanted) {
                *zone -= wanted;
            }
        }
        free
    }
}

/// Tokens of [`Simulation::resume`], combined with the node's number.
const RESUME_PROCESS: u64 = 1 << 60;
const RESUME_WATCH: u64 = 1 << 61;

/// Creates a Guaranteed pod, as in a load.
pub(crate) fn guaranteed(name: String, cpus: u32, now: Time) -> Pod {
    Pod::new(name, Request::whole(cpus), now)
}
