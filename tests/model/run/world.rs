//! The cluster, the scheduler and the kubelet in virtual time: what happens when, and what it leads to.

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

    // The API server.

    /// A new pod that nobody has placed.
    pub(crate) fn create(&mut self, mut pod: Pod) -> PodId {
        let id = self.pods.len();
        pod.object = Some(Seen { bound: false, phase: Phase::Pending, deleted: false });
        self.pods.push(pod);
        self.objects.insert(id);
        self.figures.created += 1;
        self.broadcast(id);
        id
    }

    /// A new pod that somebody else has placed here.
    pub(crate) fn create_bound(&mut self, mut pod: Pod) -> PodId {
        pod.ours = false;
        let id = self.create(pod);
        self.change(id, |seen| seen.bound = true);
        self.pods[id].bound = Some(self.now);
        self.placed.insert(id);
        id
    }

    /// A new file on the node; the API server has a copy of the pod later.
    pub(crate) fn create_static(&mut self, mut pod: Pod) -> PodId {
        let id = self.pods.len();
        (pod.ours, pod.kind) = (false, Kind::Static);
        pod.bound = Some(self.now);
        self.pods.push(pod);
        self.placed.insert(id);
        if !self.kubelet.down {
            self.kubelet_adds(id);
        }
        id
    }

    fn change(&mut self, id: PodId, change: impl FnOnce(&mut Seen)) {
        let Some(mut seen) = self.pods[id].object else { return };
        let before = seen;
        change(&mut seen);
        if seen != before {
            self.pods[id].object = Some(seen);
            self.broadcast(id);
        }
    }

    /// Deletes a pod as people do; `force`: without waiting for the kubelet.
    pub(crate) fn delete(&mut self, id: PodId, force: bool) {
        let Some(seen) = self.pods[id].object else { return };
        if force || !seen.bound {
            self.remove(id);
        } else {
            self.change(id, |seen| seen.deleted = true);
        }
    }

    /// Ends the object, unless a finalizer holds it.
    pub(crate) fn remove(&mut self, id: PodId) {
        if self.pods[id].finalizer {
            self.change(id, |seen| seen.deleted = true);
        } else if self.pods[id].object.take().is_some() {
            self.objects.remove(&id);
            self.broadcast(id);
        }
    }

    /// Nothing holds the object any more.
    pub(crate) fn finalize(&mut self, id: PodId) {
        self.pods[id].finalizer = false;
        let kubelet_has = self.kubelet.pods.contains_key(&id) || self.kubelet.unreported.contains_key(&id);
        if self.pods[id].object.is_some_and(|seen| seen.deleted) && !kubelet_has {
            self.remove(id);
        }
    }

    fn broadcast(&mut self, id: PodId) {
        let seen = self.pods[id].object;
        for watcher in WATCHERS {
            if watcher == Watcher::Exporter && !self.watching
                || watcher == Watcher::Kubelet && self.kubelet.down
            {
                continue;
            }
            let epoch = match watcher {
                Watcher::Exporter => self.watch,
                Watcher::Kubelet => self.kubelet.life,
                _ => 0,
            };
            let at = self.told_at(watcher as usize, self.settings.delays.watch[watcher as usize]);
            self.at(at, Event::Seen { watcher, epoch, pod: id, seen });
        }
    }

    fn told_at(&mut self, whom: usize, span: Span) -> Time {
        let at = (self.now + self.dice.within(span)).max(self.last_told[whom]);
        self.last_told[whom] = at;
        at
    }

    fn seen(&mut self, watcher: Watcher, epoch: u32, id: PodId, seen: Option<Seen>) {
        match watcher {
            Watcher::Scheduler => self.scheduler_sees(id, seen),
            Watcher::Plugin => {
                if self.settings.informer == Informer::Dedicated {
                    self.plugin_sees(id, seen);
                }
            }
            Watcher::Exporter => {
                // It follows the pods of its node.
                if epoch == self.watch && seen.map_or(self.pods[id].bound.is_some(), |seen| seen.bound) {
                    self.heard(id);
                    self.tell(Signal::Pod(id, seen));
                }
            }
            Watcher::Kubelet => {
                if epoch == self.kubelet.life && !self.kubelet.down && !self.kubelet.loading {
                    self.kubelet_sees(id, seen);
                }
            }
        }
    }

    fn heard(&mut self, id: PodId) {
        let _ = self.pods[id].heard.get_or_insert(self.now);
    }

    fn commit(&mut self, object: Object) {
        if self.object.as_ref() == Some(&object) {
            return;
        }
        let attributes = self.object.as_ref().is_some_and(|before| before.policy != object.policy);
        let counter_only = self
            .object
            .as_ref()
            .is_some_and(|before| Object { counter: object.counter, ..before.clone() } == object);
        if counter_only {
            self.figures.nudges += 1;
        }
        self.figures.writes += 1;
        self.figures.holds += u64::from(object.held);
        for id in &self.placed {
            let pod = &mut self.pods[*id];
            if pod.covered.is_none() && (object.held || object.accounts.binary_search(id).is_ok()) {
                pod.covered = Some(self.now);
                if pod.request.exclusive() > 0 && pod.ours {
                    self.figures.windows.push(self.now - pod.reserved.unwrap_or(self.now));
                }
            }
        }
        if attributes {
            self.after(self.settings.delays.object_watch, Event::ObjectSeen(Box::new(object.clone())));
        }
        self.object = Some(object);
        let at = self.told_at(4, self.settings.delays.object_watch);
        self.at(at, Event::ObjectChanged);
        self.look_at_agreement();
    }

    fn look_at_agreement(&mut self) {
        let expected = self.plugin.expected(&self.pods);
        let agrees = match (&self.object, expected) {
            (Some(object), Some(expected)) => agree(expected, object),
            _ => false,
        };
        self.figures.agreement(agrees, self.now);
    }

    // The scheduler.

    fn scheduler_sees(&mut self, id: PodId, seen: Option<Seen>) {
        if self.settings.informer == Informer::Shared {
            self.plugin_sees(id, seen);
        }
        match seen.filter(|seen| !seen.phase.is_terminal()) {
            Some(seen) if seen.bound => {
                if !self.on_node.contains(&id) {
                    self.on_node.push(id);
                }
            }
            Some(_) => {
                let fresh = !self.queue.waiting().any(|waiting| waiting == id);
                if fresh && self.pods[id].reserved.is_none() && self.pods[id].ours {
                    self.queue.add(id, self.now);
                }
            }
            None => {
                let was_here = self.on_node.contains(&id);
                self.on_node.retain(|other| *other != id);
                self.queue.remove(id);
                if was_here {
                    self.queue.happens(Move::PodGone, self.now);
                }
            }
        }
        self.schedule();
    }

    fn plugin_sees(&mut self, id: PodId, seen: Option<Seen>) {
        self.plugin.see(id, &self.pods[id], seen);
        self.look_at_agreement();
    }

    fn schedule(&mut self) {
        if !self.scheduling {
            self.at(self.now, Event::Cycle);
        }
    }

    fn cycle(&mut self) {
        if self.scheduling {
            return;
        }
        let Some(id) = self.queue.pop() else { return };
        self.scheduling = true;
        let request = self.pods[id].request;
        let used: u32 = self.on_node.iter().map(|pod| self.pods[*pod].request.milli).sum();
        let total = self.settings.zones.iter().sum::<u32>() * 1000;
        let rejector = if used + request.milli > total {
            Some(Rejector::Resources)
        } else if self.settings.plugin && self.plugin.filter(request, &self.pods) != Filter::Pass {
            Some(Rejector::Topology)
        } else {
            self.pods[id].blind = self.unknown_to_plugin();
            self.pods[id].passed = Some(self.now);
            None
        };
        self.figures.cycles += 1;
        self.after(self.settings.delays.cycle, Event::CycleEnds { pod: id, rejector });
    }

    /// Placed pods with CPUs of their own that neither the plugin's object accounts for nor its memory.
    fn unknown_to_plugin(&self) -> Vec<PodId> {
        let accounts = self.plugin.cached.as_ref().map_or(&[][..], |cached| &cached.accounts);
        let unknown = |id: &&PodId| {
            let pod = &self.pods[**id];
            // Who was deleted before the kubelet let it in will not get anything, and who was deleted by force loses it
            // before the kubelet hears of the next pod.
            let comes = pod.object.is_some_and(|seen| !seen.deleted) || pod.kind == Kind::Static;
            let holds = self.kubelet.pods.get(id).is_some_and(|held| held.cpus != 0);
            pod.request.exclusive() > 0
                && (comes || holds && pod.object.is_some())
                && !self.plugin.assumed.contains(id)
                && accounts.binary_search(id).is_err()
        };
        self.placed.iter().filter(unknown).copied().collect()
    }

    fn cycle_ends(&mut self, id: PodId, rejector: Option<Rejector>) {
        self.scheduling = false;
        if self.pods[id].object.is_none() {
            self.queue.dropped();
        } else if let Some(rejector) = rejector {
            self.queue.rejected(rejector, self.now);
        } else {
            self.queue.placed();
            self.plugin.reserve(id, &self.pods);
            self.on_node.push(id);
            self.pods[id].reserved = Some(self.now);
            self.placed.insert(id);
            if self.object.as_ref().is_some_and(|object| object.held) {
                self.pods[id].covered = Some(self.now);
                self.figures.windows.push(0);
            }
            self.after(self.settings.delays.bind, Event::Bind(id));
        }
        self.schedule();
    }

    fn bind(&mut self, id: PodId) {
        if self.pods[id].object.is_none() {
            // Deleted meanwhile.
            self.plugin.unreserve(id);
            self.on_node.retain(|other| *other != id);
            self.placed.remove(&id);
            self.queue.happens(Move::PodGone, self.now);
            self.schedule();
            return;
        }
        self.pods[id].bound = Some(self.now);
        self.change(id, |seen| seen.bound = true);
    }

    fn tick(&mut self) {
        if !self.settings.plugin || !self.plugin.is_dirty() {
            self.at(self.now + self.settings.resync, Event::Tick);
            return;
        }
        self.figures.dirty_ticks += 1;
        let expected = self.plugin.expected(&self.pods);
        self.after(self.settings.delays.read, Event::TickRead(expected));
    }

    fn tick_read(&mut self, expected: Option<Expected>) {
        let believed = self.object.clone().filter(|object| self.plugin.believes(expected, object));
        let read = self.now;
        self.after(self.settings.delays.flush, Event::TickFlush { object: believed.map(Box::new), read });
    }

    fn tick_flush(&mut self, object: Option<Box<Object>>, read: Time) {
        self.at(self.now + self.settings.resync, Event::Tick);
        let Some(object) = object else { return };
        let before = self.unknown_to_plugin();
        self.plugin.flush(*object);
        if self.settings.oracle {
            self.at(self.now + MS, Event::ObjectChanged);
        }
        for id in self.unknown_to_plugin() {
            if !before.contains(&id) {
                let grace = self.settings.grace;
                let excused = self.pods[id].heard.is_none_or(|heard| read <= heard + grace);
                self.pods[id].forgotten = Some(Forgotten { read, excused });
                self.figures.forgotten += 1;
                self.figures.forgotten_late += u64::from(!excused);
            }
        }
    }

    // The kubelet.

    fn duty(&mut self, span: Span, duty: Duty) {
        let at = self.now + self.dice.within(span);
        self.duty_at(at, duty);
    }

    fn duty_at(&mut self, at: Time, duty: Duty) {
        self.at(at, Event::Kubelet { life: self.kubelet.life, duty });
    }

    fn kubelet_sees(&mut self, id: PodId, seen: Option<Seen>) {
        let Some(seen) = seen else {
            // Not its own doing: somebody has forced it.
            self.kubelet.unreported.remove(&id);
            if self.kubelet.pods.contains_key(&id) && self.pods[id].kind != Kind::Static {
                self.release(id);
            }
            return;
        };
        if self.pods[id].kind == Kind::Static || !seen.bound {
            return;
        }
        let stage = self.kubelet.pods.get(&id).map(|held| held.stage);
        match stage {
            None if self.kubelet.unreported.contains_key(&id) => {}
            None if seen.deleted => {
                self.placed.remove(&id);
                self.conclude(id);
            }
            None if !seen.phase.is_terminal() && !self.kubelet.done.contains(&id) => {
                self.kubelet_adds(id);
            }
            Some(Stage::Known) if seen.deleted => {
                self.release(id);
                self.conclude(id);
            }
            Some(Stage::Admitted | Stage::Running) if seen.deleted => self.end_containers(id),
            _ => {}
        }
    }

    /// A deleted pod that nothing runs of: its object says how it ended, and goes.
    fn conclude(&mut self, id: PodId) {
        if self.pods[id].object.is_some_and(|seen| seen.phase.is_terminal()) {
            self.duty(self.settings.delays.status, Duty::Remove(id));
        } else {
            self.kubelet.unreported.insert(id, Phase::Failed);
            self.duty(self.settings.delays.status, Duty::Report(id));
        }
    }

    fn end_containers(&mut self, id: PodId) {
        if let Some(held) = self.kubelet.pods.get_mut(&id) {
            held.stage = Stage::Ending;
            let termination = self.pods[id].termination;
            self.duty(Span(termination, termination + 20 * MS), Duty::Stop(id));
        }
    }

    fn kubelet_adds(&mut self, id: PodId) {
        let kind = self.pods[id].kind;
        self.kubelet.pods.insert(id, Held { stage: Stage::Known, cpus: 0, kind, ends: 0 });
        self.kubelet.waiting.push_back(id);
        self.kubelet_admits();
    }

    fn kubelet_admits(&mut self) {
        if !self.kubelet.busy && !self.kubelet.waiting.is_empty() {
            self.kubelet.busy = true;
            self.duty(self.settings.delays.admission, Duty::Admit);
        }
    }

    /// The kubelet has nothing to do with it any more, and its CPUs are free.
    fn release(&mut self, id: PodId) {
        self.kubelet.waiting.retain(|other| *other != id);
        let held = self.kubelet.pods.remove(&id);
        self.kubelet.done.insert(id);
        self.placed.remove(&id);
        if held.is_some_and(|held| held.cpus != 0) {
            self.figures.release(id, self.now);
            self.after(self.settings.delays.file_release, Event::File);
        }
        self.notices.push(Notice::Ended(id));
    }

    fn kubelet_does(&mut self, duty: Duty) {
        match duty {
            Duty::Admit => self.admit(),
            Duty::Start(id) => self.start(id),
            Duty::SayRunning(id) => {
                if self.kubelet.pods.get(&id).is_some_and(|held| held.stage == Stage::Running) {
                    let now = self.now;
                    if self.pods[id].running.is_none() {
                        self.pods[id].running = Some(now);
                        self.notices.push(Notice::Runs(id));
                    }
                    self.change(id, |seen| seen.phase = Phase::Running);
                }
            }
            Duty::Stop(id) => self.stop(id),
            Duty::Report(id) => self.report(id),
            Duty::Remove(id) => self.remove(id),
            Duty::Mirror(id) => self.mirror(id),
            Duty::Load(pod) => self.load(pod),
        }
    }

    fn admit(&mut self) {
        self.kubelet.busy = false;
        let Some(id) = self.kubelet.waiting.pop_front() else { return };
        let chosen = self.kubelet.choose(self.pods[id].request);
        if let (Some(cpus), Some(held)) = (chosen, self.kubelet.pods.get_mut(&id)) {
            (held.stage, held.cpus) = (Stage::Admitted, cpus);
            if cpus != 0 {
                self.after(self.settings.delays.file, Event::File);
            }
            match self.pods[id].kind {
                Kind::Ordinary => self.duty(self.settings.delays.start, Duty::Start(id)),
                Kind::Static => {
                    self.duty(self.settings.delays.status, Duty::Mirror(id));
                    self.duty(self.settings.delays.start, Duty::Start(id));
                }
                Kind::Unpullable => {}
            }
        } else {
            self.refuse(id);
        }
        self.kubelet_admits();
    }

    fn refuse(&mut self, id: PodId) {
        self.kubelet.pods.remove(&id);
        self.kubelet.done.insert(id);
        self.placed.remove(&id);
        self.figures.refuse(id, &self.pods, &self.placed);
        self.kubelet.unreported.insert(id, Phase::Failed);
        self.duty(self.settings.delays.status, Duty::Report(id));
        self.notices.push(Notice::Refused(id));
    }

    fn start(&mut self, id: PodId) {
        let (now, life) = (self.now, self.pods[id].life);
        let Some(held) = self.kubelet.pods.get_mut(&id).filter(|held| held.stage == Stage::Admitted) else {
            return;
        };
        held.stage = Stage::Running;
        held.ends = now.saturating_add(life);
        let ends = held.ends;
        self.figures.start(id, self.pods[id].request.exclusive(), now);
        self.follow_running(id, ends);
    }

    /// What is to come of a pod whose containers run.
    fn follow_running(&mut self, id: PodId, ends: Time) {
        self.duty(self.settings.delays.status, Duty::SayRunning(id));
        if ends != Time::MAX {
            let noticed = self.kubelet.next_relist(ends.max(self.now)) + self.dice.within(Span(MS, 20 * MS));
            self.duty_at(noticed, Duty::Stop(id));
        }
    }

    fn stop(&mut self, id: PodId) {
        let Some(held) = self.kubelet.pods.get(&id).copied() else { return };
        let deleted = self.pods[id].object.is_none_or(|seen| seen.deleted);
        let ran_to_its_end = held.stage == Stage::Running && held.ends <= self.now;
        if !(ran_to_its_end || held.stage == Stage::Ending && deleted) {
            return;
        }
        self.figures.stop(id, self.now.min(held.ends.max(1)));
        self.release(id);
        self.kubelet.unreported.insert(id, Phase::Succeeded);
        self.duty(self.settings.delays.status, Duty::Report(id));
    }

    fn report(&mut self, id: PodId) {
        let Some(phase) = self.kubelet.unreported.remove(&id) else { return };
        self.change(id, |seen| seen.phase = phase);
        if self.pods[id].object.is_some_and(|seen| seen.deleted) {
            self.duty(self.settings.delays.removal, Duty::Remove(id));
        }
    }

    fn mirror(&mut self, id: PodId) {
        if self.kubelet.pods.contains_key(&id) && self.pods[id].object.is_none() {
            self.pods[id].object = Some(Seen { bound: true, phase: Phase::Pending, deleted: false });
            self.objects.insert(id);
            self.broadcast(id);
        }
    }

    /// Ends a static pod: its file is gone.
    pub(crate) fn remove_static(&mut self, id: PodId) {
        if self.kubelet.pods.contains_key(&id) && !self.kubelet.down {
            self.figures.stop(id, self.now);
            self.release(id);
            self.remove(id);
        }
    }

    /// The kubelet ends; its containers go on. It is back after `away`.
    pub(crate) fn restart_kubelet(&mut self, away: Time) {
        if self.kubelet.down {
            return;
        }
        self.kubelet.down = true;
        self.kubelet.life += 1;
        self.kubelet.busy = false;
        // Who was not admitted is new to the next one.
        let waiting: Vec<PodId> = self.kubelet.waiting.drain(..).collect();
        for id in waiting {
            self.kubelet.pods.remove(&id);
        }
        self.at(self.now + away, Event::KubeletUp);
    }

    fn kubelet_up(&mut self) {
        self.kubelet.down = false;
        self.kubelet.loading = true;
        self.kubelet.loaded.clear();
        let (now, mut last) = (self.now, self.now);
        let held: Vec<PodId> = self.kubelet.pods.keys().copied().collect();
        let begin = now + self.dice.within(Span(300 * MS, 1000 * MS));
        for id in held {
            let at = begin + self.dice.within(Span(0, 45 * MS));
            last = last.max(at);
            self.duty_at(at, Duty::Load(Some(id)));
        }
        self.duty_at(last.max(begin) + MS, Duty::Load(None));
        self.tell(Signal::KubeletStarted);
    }

    fn load(&mut self, pod: Option<PodId>) {
        if let Some(id) = pod {
            self.kubelet.loaded.push(id);
            return;
        }
        self.kubelet.loading = false;
        let held: Vec<(PodId, Held)> = self.kubelet.pods.iter().map(|(id, held)| (*id, *held)).collect();
        for (id, held) in held {
            match held.stage {
                Stage::Known => {}
                Stage::Admitted if held.kind != Kind::Unpullable => {
                    self.duty(self.settings.delays.start, Duty::Start(id));
                    if held.kind == Kind::Static {
                        self.duty(self.settings.delays.status, Duty::Mirror(id));
                    }
                }
                Stage::Admitted => {}
                Stage::Running => {
                    if held.kind == Kind::Static {
                        self.duty(self.settings.delays.status, Duty::Mirror(id));
                    }
                    self.follow_running(id, held.ends);
                }
                Stage::Ending => self.end_containers(id),
            }
            if held.kind != Kind::Static {
                let seen = self.pods[id].object;
                self.kubelet_sees(id, seen);
            }
        }
        let unreported: Vec<PodId> = self.kubelet.unreported.keys().copied().collect();
        for id in unreported {
            self.duty(self.settings.delays.status, Duty::Report(id));
        }
        let objects: Vec<PodId> = self.objects.iter().copied().collect();
        for id in objects {
            if !self.kubelet.pods.contains_key(&id) {
                let seen = self.pods[id].object;
                self.kubelet_sees(id, seen);
            }
        }
        let files: Vec<PodId> = self.placed.iter().copied().collect();
        for id in files {
            if self.pods[id].kind == Kind::Static && !self.kubelet.pods.contains_key(&id) {
                self.kubelet_adds(id);
            }
        }
    }

    // The exporter.

    fn tell(&mut self, signal: Signal) {
        if !self.exporting {
            return;
        }
        if let Some(mut exporter) = self.exporter.take() {
            exporter.hear(self, signal);
            self.exporter = Some(exporter);
        }
    }

    /// Asks the kubelet; the answer is a signal.
    pub(crate) fn list(&mut self) {
        let [there, _] = self.settings.delays.list;
        self.figures.lists += 1;
        self.after(there, Event::List { epoch: self.process });
    }

    /// Writes; that it is done is a signal.
    pub(crate) fn write(&mut self, object: Object) {
        let [there, back] = self.settings.delays.write;
        let at = self.now + self.dice.within(there);
        self.at(at, Event::Commit(Box::new(object)));
        let done = at + self.dice.within(back);
        self.at(done, Event::Signal { epoch: self.process, signal: Box::new(Signal::Written) });
    }

    /// Wakes the exporter.
    pub(crate) fn wake_at(&mut self, at: Time, token: u32) {
        self.at(at, Event::Signal { epoch: self.process, signal: Box::new(Signal::Timer(token)) });
    }

    /// The exporter is told to end, or is killed, and is back after `away`.
    pub(crate) fn restart_exporter(&mut self, away: Time, killed: bool) {
        if !killed {
            self.tell(Signal::Stopping);
        }
        self.exporting = false;
        self.watching = false;
        self.process += 1;
        self.watch += 1;
        for id in &self.placed {
            // What it heard without acting on it is forgotten.
            if self.pods[*id].covered.is_none() {
                self.pods[*id].heard = None;
            }
        }
        self.drive_at(self.now + away, BACK);
    }

    /// The exporter's watch of pods breaks and is back after `away`.
    pub(crate) fn lose_watch(&mut self, away: Time) {
        if self.watching && self.exporting {
            self.watching = false;
            self.watch += 1;
            self.tell(Signal::WatchLost);
            self.drive_at(self.now + away, WATCH_BACK);
        }
    }

    /// What the driver is to call with each token it does not know.
    pub(crate) fn comes_back(&mut self, token: u64) {
        if token == BACK && !self.exporting {
            self.exporting = true;
            self.figures.restarts += 1;
            self.tell(Signal::Started);
        }
        if token == BACK || token == WATCH_BACK && self.exporting && !self.watching {
            self.watching = true;
            let known = |id: &PodId| Some((*id, self.pods[*id].object.filter(|seen| seen.bound)?));
            let pods = self.objects.iter().filter_map(known).collect();
            let at = self.told_at(Watcher::Exporter as usize, self.settings.delays.watch[2]);
            self.at(at, Event::Relisted { epoch: self.watch, pods });
        }
    }

    /// CPUs that pods which wait could have now, one after the other.
    pub(crate) fn idle(&self) -> u32 {
        let mut free = self.kubelet.free_by_zone();
        for id in &self.placed {
            // Placed, but not admitted yet.
            let wanted = self.pods[*id].request.exclusive();
            let admitted = self.kubelet.pods.get(id).is_some_and(|held| held.stage != Stage::Known);
            let zone = free.iter_mut().find(|zone| !admitted && **zone >= wanted);
            if let Some(zone) = zone {
                *zone -= wanted;
            }
        }
        let mut idle = 0;
        for id in self.queue.waiting() {
            let wanted = self.pods[id].request.exclusive();
            if let Some(zone) = free.iter_mut().find(|zone| **zone >= wanted) {
                *zone -= wanted;
                idle += wanted;
            }
        }
        idle
    }
}

/// Tokens of [`World::comes_back`].
pub(crate) const BACK: u64 = u64::MAX;
pub(crate) const WATCH_BACK: u64 = u64::MAX - 1;

/// A Guaranteed pod that a load would create.
pub(crate) fn guaranteed(name: String, cpus: u32, now: Time) -> Pod {
    Pod::new(name, Request::whole(cpus), now)
}
