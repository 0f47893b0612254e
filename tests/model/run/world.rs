//! The cluster, the scheduler and the kubelet in virtual time: what happens when, and what it leads to.

mod api;
mod exporting;
mod kubelet;
mod scheduler;

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeSet, BinaryHeap};

use super::chance::{Dice, MS, S, Span, Time};
use super::cluster::{Forgotten, Kind, Object, Phase, Pod, PodId, Request, Seen};
use super::exporter::Exporter;
use super::figures::Figures;
use super::kubelet::{Held, Kubelet, List, Stage};
use super::plugin::{Expected, Filter, Informer, Plugin, agree};
use super::queue::{BackOff, Move, Queue, Rejector};

/// How long everything takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delays {
    /// From the API server to one who watches pods: the scheduler, the plugin, the agent, the kubelet.
    pub(crate) watch: [Span; 4],
    /// From the API server to one who watches the object.
    pub(crate) object_watch: Span,
    pub(crate) cycle: Span,
    /// From the end of the cycle to the binding in the API server.
    pub(crate) bind: Span,
    /// The tick's GET, then from the answer to the flush.
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
            bind: Span(3 * MS / 2, 6 * MS),
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
    /// Allocatable CPUs of each zone.
    pub(crate) zones: Vec<u32>,
    pub(crate) resync: Time,
    pub(crate) informer: Informer,
    pub(crate) back_off: BackOff,
    /// Reserving clears the plugin's mark: v0.34.7 and before.
    pub(crate) forgetful: bool,
    /// The plugin is in use at all.
    pub(crate) plugin: bool,
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
            resync: 5 * S,
            informer: Informer::Dedicated,
            back_off: BackOff { first: S, longest: 10 * S, early: true },
            forgetful: true,
            plugin: true,
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

const WATCHERS: [Watcher; 4] = [Watcher::Scheduler, Watcher::Plugin, Watcher::Exporter, Watcher::Kubelet];

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
    /// All pods of the node, anew.
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
    Seen { watcher: Watcher, epoch: u32, pod: PodId, seen: Option<Seen> },
    Relisted { epoch: u32, pods: Vec<(PodId, Seen)> },
    ObjectChanged,
    ObjectSeen(Box<Object>),
    Cycle,
    CycleEnds { pod: PodId, rejector: Option<Rejector> },
    Bind(PodId),
    BackOffs,
    LeftOvers,
    Tick,
    TickRead(Option<Expected>),
    TickFlush { object: Option<Box<Object>>, read: Time },
    Kubelet { life: u32, duty: Duty },
    KubeletUp,
    File,
    List { epoch: u32 },
    Commit(Box<Object>),
    Signal { epoch: u32, signal: Box<Signal> },
    Drive(u64),
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
    /// Its containers have ended.
    Ended(PodId),
}

/// The world.
pub(crate) struct World {
    pub(crate) settings: Settings,
    pub(crate) now: Time,
    pub(crate) dice: Dice,
    pub(crate) pods: Vec<Pod>,
    /// Pods with an object.
    pub(crate) objects: BTreeSet<PodId>,
    /// Pods that were placed, by us or by others, and have not ended.
    pub(crate) placed: BTreeSet<PodId>,
    /// The NodeResourceTopology.
    pub(crate) object: Option<Object>,
    pub(crate) kubelet: Kubelet,
    pub(crate) queue: Queue,
    pub(crate) plugin: Plugin,
    pub(crate) figures: Figures,
    pub(crate) notices: Vec<Notice>,
    exporter: Option<Box<dyn Exporter>>,
    /// Counts the exporter's processes and its watches, so that what earlier ones are told is void.
    process: u32,
    watch: u32,
    watching: bool,
    exporting: bool,
    /// CPU, in thousandths, of the pods that the scheduler's own cache has on the node.
    on_node: Vec<PodId>,
    scheduling: bool,
    heap: BinaryHeap<Reverse<Due>>,
    number: u64,
    /// No watcher hears a later event before an earlier one.
    last_told: [Time; 5],
}

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
    /// A world at its beginning: the exporter has written its first object, then the scheduler has started.
    pub(crate) fn new(settings: Settings, seed: u64, exporter: Box<dyn Exporter>) -> Self {
        let mut dice = Dice::new(seed);
        let relist = dice.within(Span(0, S - 1));
        let mut world = Self {
            kubelet: Kubelet::new(&settings.zones, relist),
            queue: Queue::new(settings.back_off),
            plugin: Plugin::new(settings.informer, settings.forgetful, None),
            settings,
            now: 0,
            dice,
            pods: Vec::new(),
            objects: BTreeSet::new(),
            placed: BTreeSet::new(),
            object: None,
            figures: Figures::default(),
            notices: Vec::new(),
            exporter: Some(exporter),
            process: 0,
            watch: 0,
            watching: true,
            exporting: true,
            on_node: Vec::new(),
            scheduling: false,
            heap: BinaryHeap::new(),
            number: 0,
            last_told: [0; 5],
        };
        world.tell(Signal::Started);
        world.tell(Signal::Pods(Vec::new()));
        let start = S;
        let first_tick = start + world.dice.within(Span(0, world.settings.resync));
        world.at(first_tick, Event::Tick);
        let flush = world.dice.within(Span(0, S));
        let early = world.settings.back_off.early;
        world.at(if early { 2 * S } else { S + flush }, Event::BackOffs);
        world.at(30 * S, Event::LeftOvers);
        world.run_until(start, &mut |_, _| {});
        world.plugin.cached = world.object.clone().filter(|_| world.settings.plugin);
        world
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
            Event::Relisted { epoch, pods } => {
                if epoch == self.watch {
                    pods.iter().for_each(|(pod, _)| self.heard(*pod));
                    self.tell(Signal::Pods(pods));
                }
            }
            Event::ObjectChanged => {
                self.queue.happens(Move::Object, self.now);
                self.schedule();
            }
            Event::ObjectSeen(object) => self.plugin.see_object(&object),
            Event::Cycle => self.cycle(),
            Event::CycleEnds { pod, rejector } => self.cycle_ends(pod, rejector),
            Event::Bind(pod) => self.bind(pod),
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
            Event::TickRead(expected) => self.tick_read(expected),
            Event::TickFlush { object, read } => self.tick_flush(object, read),
            Event::Kubelet { life, duty } => {
                if life == self.kubelet.life && !self.kubelet.down {
                    self.kubelet_does(duty);
                }
            }
            Event::KubeletUp => self.kubelet_up(),
            Event::File => self.tell(Signal::File),
            Event::List { epoch } => {
                let list = self.kubelet.list();
                let [_, back] = self.settings.delays.list;
                self.after(back, Event::Signal { epoch, signal: Box::new(Signal::Listed(list)) });
            }
            Event::Commit(object) => self.commit(*object),
            Event::Signal { epoch, signal } => {
                if epoch == self.process {
                    self.tell(*signal);
                }
            }
            Event::Drive(token) => self.notices.push(Notice::Drive(token)),
        }
    }
}

/// Tokens of [`World::comes_back`].
pub(crate) const BACK: u64 = u64::MAX;
pub(crate) const WATCH_BACK: u64 = u64::MAX - 1;

/// A Guaranteed pod that a load would create.
pub(crate) fn guaranteed(name: String, cpus: u32, now: Time) -> Pod {
    Pod::new(name, Request::whole(cpus), now)
}
