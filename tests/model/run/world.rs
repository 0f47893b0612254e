//! The cluster, the scheduler and the kubelet in virtual time: what happens when, and what it leads to.

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
use super::exporter::Exporter;
use super::figures::Figures;
use super::kubelet::{Held, Kubelet, List, Stage};
use super::plugin::{Cache, Expected, Filter, Informer, Plugin, agree};
use super::queue::{BackOff, Move, Queue};

/// How long everything takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delays {
    /// From the API server to one who watches pods: the scheduler, the plugin, the agent, the kubelet.
    pub(crate) watch: [Span; 4],
    /// From the API server to one who watches the objects.
    pub(crate) object_watch: Span,
    pub(crate) cycle: Span,
    /// From the end of the cycle to the binding in the API server, and to the answer.
    pub(crate) bind: [Span; 2],
    /// How long a binding waits that waits for something.
    pub(crate) late_bind: Span,
    /// From the end of a cycle to the condition in the pod's status that says why there is no node.
    pub(crate) condition: Span,
    /// A GET of an object, then from the last answer of a tick to the flush.
    pub(crate) read: Span,
    pub(crate) flush: Span,
    /// A write of the object: to the API server, and back.
    pub(crate) write: [Span; 2],
    /// A List: to the kubelet's answer, and back.
    pub(crate) list: [Span; 2],
    pub(crate) admission: Span,
    pub(crate) start: Span,
    /// From what the kubelet knows to the API server.
    pub(crate) status: Span,
    /// From an admission to the event of the state file.
    pub(crate) file: Span,
    /// From a release to the event of the state file.
    pub(crate) file_release: Span,
    /// From the end of a deleted pod's containers to the end of its object.
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

/// Everything that is set.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Allocatable CPUs of each zone of a node.
    pub(crate) zones: Vec<u32>,
    pub(crate) cache: Cache,
    pub(crate) resync: Time,
    pub(crate) informer: Informer,
    pub(crate) back_off: BackOff,
    /// Reserving clears the plugin's mark: v0.34.7 and before.
    pub(crate) forgetful: bool,
    /// The plugin is in use at all.
    pub(crate) plugin: bool,
    /// Requests per second of the plugin's client, and at once; none: as many as it likes.
    pub(crate) client: Option<(u32, u32)>,
    /// When the cluster's controller nudges.
    pub(crate) nudges: Nudges,
    pub(crate) delays: Delays,
    /// How long after it heard of a binding the exporter may take to have it held or accounted for.
    pub(crate) grace: Time,
    /// An oracle moves rejected pods right after each flush.
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

/// Who follows the pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watcher {
    Scheduler = 0,
    Plugin = 1,
    Exporter = 2,
    Kubelet = 3,
}

/// What a kubelet does some time later; void after its restart.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Duty {
    Admit,
    Start(PodId),
    SayRunning(PodId),
    /// Notice that the containers have ended.
    Stop(PodId),
    Report(PodId),
    Remove(PodId),
    /// Show the copy of a static pod.
    Mirror(PodId),
    /// Know one pod more, or, at last, all.
    Load(Option<PodId>),
}

/// What the exporter is told.
#[derive(Clone, Debug)]
pub(crate) enum Signal {
    /// A process starts; what it reads first is in the world.
    Started,
    /// It was told to end, and may write once more.
    Stopping,
    /// One pod; `None`: it is gone.
    Pod(PodId, Option<Seen>),
    /// All pods of its node, anew.
    Pods(Vec<(PodId, Seen)>),
    /// Nobody tells of pods any more.
    WatchLost,
    /// A state file of the kubelet changed.
    File,
    /// The kubelet's socket is there again.
    KubeletStarted,
    Listed(List),
    /// The write in flight is done.
    Written,
    Timer(u32),
}

/// What happens.
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
    /// The scheduler hears that an object was written.
    ObjectChanged,
    /// The plugin's watch hears of other attributes.
    ObjectSeen(NodeId, Box<Object>),
    Cycle,
    /// The objects are read that the cycle looks at.
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
    /// The controller's write arrives.
    Nudge,
    Drive(u64),
}

/// What a cycle comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Node(NodeId),
    /// The plugin rejected the pod on some node; if not, no node has enough in total.
    None {
        by_plugin: bool,
    },
}

/// What the controller hears of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// An object changed by itself.
    Object,
    /// The plugin rejects this pod.
    Waits(PodId),
    /// It does not any more, or the pod was bound, or is gone.
    WaitsNoMore(PodId),
    /// Its write was answered.
    Nudged,
    Timer(u32),
}

/// One tick of the plugin: who is still to be read, and what was believed.
#[derive(Debug, Default)]
struct Ticking {
    dirty: VecDeque<(NodeId, Option<Expected>)>,
    believed: Vec<(NodeId, Object, Time)>,
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

/// What the driver of the run wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// It is the driver's turn.
    Drive(u64),
    Refused(PodId),
    /// Its status says that it runs.
    Runs(PodId),
    /// Its status says that it has ended.
    Ended(PodId),
}

/// A node, and who stands for it elsewhere.
pub(crate) struct Node {
    /// Pods that were placed here, by us or by others, and have not ended.
    pub(crate) placed: BTreeSet<PodId>,
    /// Its NodeResourceTopology.
    pub(crate) object: Option<Object>,
    pub(crate) kubelet: Kubelet,
    /// What the plugin knows of it.
    pub(crate) plugin: Plugin,
    exporter: Option<Box<dyn Exporter>>,
    /// Counts the exporter's processes and its watches, so that what earlier ones are told is void.
    process: u32,
    watch: u32,
    watching: bool,
    exporting: bool,
    /// The pods that the scheduler's own cache has here.
    on_node: Vec<PodId>,
    /// Since when the object and the plugin have not agreed.
    disagrees: Option<Time>,
    /// The exporter and the kubelet hear no later event before an earlier one.
    last_told: [Time; 2],
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
    pub(crate) notices: Vec<Notice>,
    controller: Controller,
    scheduling: bool,
    ticking: Ticking,
    /// Requests that the plugin's client may send at once, in millionths, and when that was so.
    tokens: (u64, Time),
    heap: BinaryHeap<Reverse<Due>>,
    number: u64,
    /// The scheduler, the plugin and those who watch the objects hear no later event before an earlier one.
    last_told: [Time; 3],
}

/// Who watches the objects, in `World::last_told`.
const OBJECTS: usize = 2;

impl Delays {
    /// How long after it heard of a binding an exporter of this patience may need: a write in flight ends, a List is
    /// answered, its own write arrives.
    pub(crate) fn grace(&self, patience: Time) -> Time {
        let [list_there, list_back] = self.list;
        let [write_there, write_back] = self.write;
        patience + 2 * (write_there.1 + list_there.1 + list_back.1) + write_back.1 + 2 * MS
    }
}

impl World {
    /// A world at its beginning, a node for each exporter: they have written their first objects, then the scheduler has
    /// started.
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
            notices: Vec::new(),
            scheduling: false,
            ticking: Ticking::default(),
            heap: BinaryHeap::new(),
            number: 0,
            last_told: [0; 3],
        };
        for node in 0..world.nodes.len() {
            world.tell(node, Signal::Started);
            world.tell(node, Signal::Pods(Vec::new()));
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

    /// Where a pod was placed. Nobody asks about another.
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

    /// Lets the driver know at that time.
    pub(crate) fn drive_at(&mut self, at: Time, token: u64) {
        self.at(at, Event::Drive(token));
    }

    /// Goes on until `end`; after each event the driver hears what it wants to know.
    pub(crate) fn run_until(&mut self, end: Time, driver: &mut dyn FnMut(&mut Self, Notice)) {
        while self.heap.peek().is_some_and(|Reverse(due)| due.at <= end) {
            let Some(Reverse(due)) = self.heap.pop() else { return };
            self.now = due.at;
            self.figures.events += 1;
            self.take(due.event);
            while let Some(notice) = self.notices.pop() {
                driver(self, notice);
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
                    self.tell(node, Signal::Pods(pods));
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
            Event::File(node) => self.tell(node, Signal::File),
            Event::List { node, epoch } => {
                let list = self.nodes[node].kubelet.list();
                let [_, back] = self.settings.delays.list;
                self.after(back, Event::Signal { node, epoch, signal: Box::new(Signal::Listed(list)) });
            }
            Event::Commit { node, object } => self.commit(node, *object),
            Event::Signal { node, epoch, signal } => {
                if epoch == self.nodes[node].process {
                    self.tell(node, *signal);
                }
            }
            Event::Controller(heard) => self.controller_hears(heard),
            Event::Nudge => self.take_nudge(),
            Event::Drive(token) => self.notices.push(Notice::Drive(token)),
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
            on_node: Vec::new(),
            disagrees: None,
            last_told: [0; 2],
        }
    }

    /// CPUs that are free in each zone, without those of pods that are placed and not admitted yet.
    fn free_by_zone(&self, pods: &[Pod]) -> Vec<u32> {
        let mut free = self.kubelet.free_by_zone();
        let admitted = |id: &PodId| self.kubelet.pods.get(id).is_some_and(|held| held.stage != Stage::Known);
        for wanted in self.placed.iter().filter(|id| !admitted(id)).map(|id| pods[*id].request.exclusive()) {
            if let Some(zone) = free.iter_mut().find(|zone| **zone >= wanted) {
                *zone -= wanted;
            }
        }
        free
    }
}

/// Tokens of [`World::comes_back`], together with the node's number.
const BACK: u64 = 1 << 60;
const WATCH_BACK: u64 = 1 << 61;

/// A Guaranteed pod that a load would create.
pub(crate) fn guaranteed(name: String, cpus: u32, now: Time) -> Pod {
    Pod::new(name, Request::whole(cpus), now)
}
