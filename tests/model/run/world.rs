//! The cluster, the scheduler and the kubelet in virtual time: the events and their effects.

mod api;
mod controlling;
mod exporting;
mod kubelet;
mod scheduler;

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use super::chance::{Dice, MS, S, Span, Time};
use super::cluster::{Forgotten, Kind, NodeId, Object, Phase, Pod, PodId, Request, Seen};
use super::controller::{Controller, Nudges};
use super::exporter::{Exporter, SETTLE};
use super::figures::Figures;
use super::kubelet::{KnownPod, Kubelet, List, Stage};
use super::plugin::{Cache, Expected, Filter, Informer, Plugin, agree};
use super::queue::{BackOff, Move, Queue};

/// The latency of each operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delays {
    /// From the API server to a pod watcher: the scheduler, the plugin, the agent, the kubelet.
    pub(crate) watch: [Span; 4],
    /// From the API server to a watcher of the objects.
    pub(crate) object_watch: Span,
    pub(crate) cycle: Span,
    /// From the end of the cycle to the binding in the API server, and from there to the response.
    pub(crate) bind: [Span; 2],
    /// Additional delay of a pod that binds late (`Pod::binds_late`).
    pub(crate) late_bind: Span,
    /// From the end of a cycle to the pod condition that explains why there is no node.
    pub(crate) condition: Span,
    /// A GET of an object; `flush` is from the last response of a tick to the flush.
    pub(crate) read: Span,
    pub(crate) flush: Span,
    /// A write of the object: to the API server, and back.
    pub(crate) write: [Span; 2],
    /// A List: to the kubelet's response, and back.
    pub(crate) list: [Span; 2],
    pub(crate) admission: Span,
    pub(crate) start: Span,
    /// From a change in the kubelet to the pod status in the API server.
    pub(crate) status: Span,
    /// From an admission to the event of the state file.
    pub(crate) file: Span,
    /// From a release to the event of the state file.
    pub(crate) file_release: Span,
    /// From the end of a deleted pod's containers to the removal of its object.
    pub(crate) removal: Span,
}

impl Default for Delays {
    fn default() -> Self {
        Self {
            watch: [Span(MS / 3, 5 * MS); 4],
            object_watch: Span(MS / 3, 5 * MS),
            cycle: Span(MS, 4 * MS),
            bind: [Span(3 * MS / 2, 6 * MS), Span(MS, 4 * MS)],
            late_bind: Span(S, 5 * S),
            condition: Span(2 * MS, 8 * MS),
            read: Span(MS, 4 * MS),
            flush: Span(MS / 2, 2 * MS),
            write: [Span(3 * MS, 9 * MS), Span(2 * MS, 6 * MS)],
            list: [Span(MS / 2, 2 * MS), Span(MS / 2, 2 * MS)],
            admission: Span(3 * MS, 15 * MS),
            start: Span(10 * MS, 40 * MS),
            status: Span(3 * MS, 20 * MS),
            file: Span(MS, 5 * MS),
            file_release: Span(0, 1500 * MS),
            removal: Span(50 * MS, 1500 * MS),
        }
    }
}

/// All settings.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Allocatable CPUs of each zone of a node.
    pub(crate) zones: Vec<u32>,
    pub(crate) cache: Cache,
    pub(crate) resync: Time,
    pub(crate) informer: Informer,
    pub(crate) back_off: BackOff,
    /// Whether reserving clears the plugin's mark, as in v0.34.7 and before.
    pub(crate) forgetful: bool,
    /// Whether the plugin is used at all.
    pub(crate) plugin: bool,
    /// Rate limit of the plugin's client: requests per second, and burst. `None`: unlimited.
    pub(crate) client: Option<(u32, u32)>,
    /// When the cluster's controller nudges.
    pub(crate) nudges: Nudges,
    pub(crate) delays: Delays,
    /// How long after receiving a binding the exporter may take until the object accounts for the pod or its
    /// fingerprint is withheld.
    pub(crate) grace: Time,
    /// Whether an oracle moves rejected pods right after each flush.
    pub(crate) oracle: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            zones: vec![7, 7],
            cache: Cache::OverReserve,
            resync: 5 * S,
            informer: Informer::Dedicated,
            back_off: BackOff { first: S, longest: 10 * S, early: true },
            forgetful: true,
            plugin: true,
            client: None,
            nudges: Nudges::None,
            delays: Delays::default(),
            grace: 40 * MS,
            oracle: false,
        }
    }
}

/// The watchers of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watcher {
    Scheduler = 0,
    Plugin = 1,
    Exporter = 2,
    Kubelet = 3,
}

/// A delayed action of a kubelet, void after its restart.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Duty {
    Admit,
    Start(PodId),
    SayRunning(PodId),
    /// The containers have ended.
    Stop(PodId),
    Report(PodId),
    Remove(PodId),
    /// Create the mirror pod of a static pod.
    Mirror(PodId),
    /// Load one more pod or, with `None`, finish loading.
    Load(Option<PodId>),
}

/// An input of the exporter.
#[derive(Clone, Debug)]
pub(crate) enum Signal {
    /// Its process starts. It reads its initial state from the world.
    Started,
    /// It received the signal to stop, and may write once more.
    Stopping,
    /// One pod; `None` if it is gone.
    Pod(PodId, Option<Seen>),
    /// A relist: all pods of its node.
    Pods(Vec<(PodId, Seen)>),
    /// The pod watch is broken.
    WatchLost,
    /// A state file of the kubelet changed.
    File,
    /// The kubelet's socket is back.
    KubeletStarted,
    Listed(List),
    /// The write in progress is complete.
    Written,
    Timer(u32),
}

/// An event of the simulation.
#[derive(Clone, Debug)]
enum Event {
    Seen {
        watcher: Watcher,
        epoch: u32,
        pod: PodId,
        seen: Option<Seen>,
    },
    Relisted {
        node: NodeId,
        epoch: u32,
        pods: Vec<(PodId, Seen)>,
    },
    /// The scheduler's watch reports a write of an object.
    ObjectChanged,
    /// The plugin's watch reports changed attributes.
    ObjectSeen(NodeId, Box<Object>),
    Cycle,
    /// The cycle reads the objects.
    CycleReads(PodId),
    CycleEnds {
        pod: PodId,
        found: Found,
    },
    Bind(PodId),
    PostBind(PodId),
    BackOffs,
    LeftOvers,
    Tick,
    TickRead,
    TickFlush,
    Kubelet {
        node: NodeId,
        life: u32,
        duty: Duty,
    },
    KubeletUp(NodeId),
    File(NodeId),
    List {
        node: NodeId,
        epoch: u32,
    },
    Commit {
        node: NodeId,
        object: Box<Object>,
    },
    Signal {
        node: NodeId,
        epoch: u32,
        signal: Box<Signal>,
    },
    Controller(Heard),
    /// The controller's write arrives at the API server.
    Nudge,
    Drive(u64),
}

/// The result of a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Node(NodeId),
    /// Whether the plugin rejected the pod on some node; if not, no node has enough in total.
    None {
        by_plugin: bool,
    },
}

/// An input of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// An exporter changed an object.
    Object,
    /// The plugin rejects this pod.
    Waits(PodId),
    /// It no longer does, or the pod was bound or is gone.
    WaitsNoMore(PodId),
    /// Its write is complete.
    Nudged,
    Timer(u32),
}

/// One tick of the plugin: the nodes still to be read, and the objects that were accepted.
#[derive(Debug, Default)]
struct Ticking {
    dirty: VecDeque<(NodeId, Option<Expected>)>,
    accepted: Vec<(NodeId, Object, Time)>,
}

struct Due {
    at: Time,
    number: u64,
    event: Event,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// A notification for the driver of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DriverEvent {
    /// A timer of the driver.
    Drive(u64),
    Rejected(PodId),
    /// The pod's status is Running.
    Runs(PodId),
    /// The pod's status is terminal.
    Ended(PodId),
}

/// A node and its counterparts in the other components.
pub(crate) struct Node {
    /// Pods that were placed here, by the scheduler or by others, and have not ended.
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
    /// An exporter that started while the kubelet was starting may not know the node until this time, or until
    /// its first write.
    reading_until: Time,
    /// The pods on this node in the scheduler's own cache.
    on_node: Vec<PodId>,
    /// When the object and the plugin began to disagree.
    disagrees: Option<Time>,
    /// Latest delivery times, which keep the events of the exporter and the kubelet in order.
    last_notified: [Time; 2],
}

/// The world.
pub(crate) struct World {
    pub(crate) settings: Settings,
    pub(crate) now: Time,
    pub(crate) dice: Dice,
    pub(crate) pods: Vec<Pod>,
    /// Pods with an object.
    pub(crate) objects: BTreeSet<PodId>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) queue: Queue,
    pub(crate) figures: Figures,
    pub(crate) driver_events: Vec<DriverEvent>,
    controller: Controller,
    scheduling: bool,
    ticking: Ticking,
    /// The tokens of the plugin's client in millionths of a request, and their time.
    tokens: (u64, Time),
    heap: BinaryHeap<Reverse<Due>>,
    number: u64,
    /// Latest delivery times, which keep the events of the scheduler, the plugin and the object watchers in
    /// order.
    last_notified: [Time; 3],
}

/// Index of the object watchers in `World::last_notified`.
const OBJECTS: usize = 2;

impl Delays {
    /// How long after receiving a binding an exporter of this patience may need: a write in progress completes,
    /// a List returns, and its own write arrives.
    pub(crate) fn grace(&self, patience: Time) -> Time {
        let [list_there, list_back] = self.list;
        let [write_there, write_back] = self.write;
        patience + 2 * (write_there.1 + list_there.1 + list_back.1) + write_back.1 + 2 * MS
    }
}

impl World {
    /// Creates a world with one node for each exporter. The exporters have written their first objects, and
    /// then the scheduler has started.
    pub(crate) fn new(settings: Settings, seed: u64, exporters: Vec<Box<dyn Exporter>>) -> Self {
        let mut dice = Dice::new(seed);
        let nodes = exporters.into_iter().map(|exporter| Node::new(&settings, &mut dice, exporter)).collect();
        let mut world = Self {
            nodes,
            queue: Queue::new(settings.back_off),
            controller: Controller::new(settings.nudges),
            tokens: (settings.client.map_or(0, |(_, burst)| u64::from(burst) * S), 0),
            settings,
            now: 0,
            dice,
            pods: Vec::new(),
            objects: BTreeSet::new(),
            figures: Figures::default(),
            driver_events: Vec::new(),
            scheduling: false,
            ticking: Ticking::default(),
            heap: BinaryHeap::new(),
            number: 0,
            last_notified: [0; 3],
        };
        for node in 0..world.nodes.len() {
            world.notify(node, Signal::Started);
            world.notify(node, Signal::Pods(Vec::new()));
        }
        let start = S;
        let first_tick = start + world.dice.within(Span(0, world.settings.resync));
        world.at(first_tick, Event::Tick);
        let flush = world.dice.within(Span(0, S));
        let early = world.settings.back_off.early;
        world.at(if early { 2 * S } else { S + flush }, Event::BackOffs);
        world.at(30 * S, Event::LeftOvers);
        world.run_until(start, &mut |_, _| {});
        if world.settings.plugin && world.settings.cache == Cache::OverReserve {
            world.nodes.iter_mut().for_each(|node| node.plugin.cached.clone_from(&node.object));
        }
        world
    }

    /// The node on which a pod was placed. For other pods it is 0, which no caller relies on.
    fn node_of(&self, id: PodId) -> NodeId {
        self.pods[id].node.unwrap_or_default()
    }

    fn at(&mut self, at: Time, event: Event) {
        self.number += 1;
        self.heap.push(Reverse(Due { at: at.max(self.now), number: self.number, event }));
    }

    fn after(&mut self, span: Span, event: Event) {
        let at = self.now + self.dice.within(span);
        self.at(at, event);
    }

    /// Notifies the driver at this time.
    pub(crate) fn drive_at(&mut self, at: Time, token: u64) {
        self.at(at, Event::Drive(token));
    }

    /// Runs until `end`; after each event the driver receives what happened.
    pub(crate) fn run_until(&mut self, end: Time, driver: &mut dyn FnMut(&mut Self, DriverEvent)) {
        while self.heap.peek().is_some_and(|Reverse(due)| due.at <= end) {
            let Some(Reverse(due)) = self.heap.pop() else { return };
            self.now = due.at;
            self.figures.events += 1;
            self.take(due.event);
            while let Some(driver_event) = self.driver_events.pop() {
                driver(self, driver_event);
            }
        }
        self.now = end;
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Seen { watcher, epoch, pod, seen } => self.seen(watcher, epoch, pod, seen),
            Event::Relisted { node, epoch, pods } => {
                if epoch == self.nodes[node].watch {
                    pods.iter().for_each(|(pod, _)| self.heard(*pod));
                    self.notify(node, Signal::Pods(pods));
                }
            }
            Event::ObjectChanged => {
                self.queue.happens(Move::Object, self.now);
                self.schedule();
            }
            Event::ObjectSeen(node, object) => self.nodes[node].plugin.see_object(&object),
            Event::Cycle => self.cycle(),
            Event::CycleReads(pod) => self.look_for_node(pod),
            Event::CycleEnds { pod, found } => self.cycle_ends(pod, found),
            Event::Bind(pod) => self.bind(pod),
            Event::PostBind(pod) => {
                let node = self.node_of(pod);
                self.nodes[node].plugin.post_bind(pod);
            }
            Event::BackOffs => {
                self.queue.flush(self.now);
                self.at(self.now + S, Event::BackOffs);
                self.schedule();
            }
            Event::LeftOvers => {
                self.queue.flush_left_over(self.now);
                self.at(self.now + 30 * S, Event::LeftOvers);
                self.schedule();
            }
            Event::Tick => self.tick(),
            Event::TickRead => self.tick_read(),
            Event::TickFlush => self.tick_flush(),
            Event::Kubelet { node, life, duty } => {
                let kubelet = &self.nodes[node].kubelet;
                if life == kubelet.life && !kubelet.down {
                    self.kubelet_does(node, duty);
                }
            }
            Event::KubeletUp(node) => self.kubelet_up(node),
            Event::File(node) => self.notify(node, Signal::File),
            Event::List { node, epoch } => {
                let list = self.nodes[node].kubelet.list();
                let [_, back] = self.settings.delays.list;
                self.after(back, Event::Signal { node, epoch, signal: Box::new(Signal::Listed(list)) });
            }
            Event::Commit { node, object } => self.commit(node, *object),
            Event::Signal { node, epoch, signal } => {
                if epoch == self.nodes[node].process {
                    self.notify(node, *signal);
                }
            }
            Event::Controller(heard) => self.controller_hears(heard),
            Event::Nudge => self.take_nudge(),
            Event::Drive(token) => self.driver_events.push(DriverEvent::Drive(token)),
        }
    }
}

impl Node {
    fn new(settings: &Settings, dice: &mut Dice, exporter: Box<dyn Exporter>) -> Self {
        let relist = dice.within(Span(0, S - 1));
        Self {
            placed: BTreeSet::new(),
            object: None,
            kubelet: Kubelet::new(&settings.zones, relist),
            plugin: Plugin::new(settings.cache, settings.informer, settings.forgetful),
            exporter: Some(exporter),
            process: 0,
            watch: 0,
            watching: true,
            exporting: true,
            reading_until: 0,
            on_node: Vec::new(),
            disagrees: None,
            last_notified: [0; 2],
        }
    }

    /// Free CPUs in each zone, without those for pods that are placed but not admitted yet.
    fn free_by_zone(&self, pods: &[Pod]) -> Vec<u32> {
        let mut free = self.kubelet.free_by_zone();
        let admitted = |id: &PodId| self.kubelet.pods.get(id).is_some_and(|entry| entry.stage != Stage::Known);
        for wanted in self.placed.iter().filter(|id| !admitted(id)).map(|id| pods[*id].request.exclusive()) {
            if let Some(zone) = free.iter_mut().find(|zone| **zone >= wanted) {
                *zone -= wanted;
            }
        }
        free
    }
}

/// Tokens of [`World::comes_back`], combined with the node's number.
const BACK: u64 = 1 << 60;
const WATCH_BACK: u64 = 1 << 61;

/// Creates a Guaranteed pod, as in a load.
pub(crate) fn guaranteed(name: String, cpus: u32, now: Time) -> Pod {
    Pod::new(name, Request::whole(cpus), now)
}
