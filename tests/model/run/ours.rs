//! numacast's agent: its real fingerprint gate, with an imitation of the loop around it.

use std::collections::BTreeMap;
use std::time::Duration;

use numacast::kubelet::{ContainerUsage, PodUsage, Usage};
use numacast::machine::Machine;
use numacast::pod;
use numacast::scheduler::{
    Decision, FingerprintGate, FingerprintView, GateInput, GateSettings, NodeContext, Requirements, Verdict,
};
use numacast::topology::{Amounts, Exclude, Topology, Zone};

use super::chance::{MS, NEVER, S, Time};
use super::cluster::{NAMESPACE, NodeId, Object, Phase, Pod, PodId, Seen};
use super::exporter::{Exporter, SETTLE};
use super::fingerprint;
use super::kubelet::{List, Listed, left_over};
use super::world::{Signal, World};

/// Rate limit of scans: the interval, and the burst.
const RATE: (Time, u64) = (100 * MS, 4);
/// Delay before the List is read again while a change of it is expected; doubled each time.
const SOON: Time = 15 * MS;
/// Maximum of that delay.
const LATE: Time = S;
/// Poll interval while no change is expected.
const POLL: Time = 5 * S;
/// The same while the pods are not watched.
const POLL_BLIND: Time = 800 * MS;
/// How long the existing object is trusted while the node cannot be read.
const UNREAD: Time = 500 * MS;
/// How long an agent with reservations waits for the pods before its first object.
const FIRST_LIST: Time = 12 * S;
/// How long a pod that is gone may stay in the List.
const LINGER: Time = 15 * S;

/// A deliberate bug, to verify that the model detects it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Flaw {
    #[default]
    None,
    /// The fingerprint is never withheld.
    NeverWithholds,
    /// While the fingerprint is withheld, it can match: it is that of the set with the pods that are
    /// waited for.
    WithholdsByPossibleSet,
    /// The set comes from the latest events, but the zones from the last slow poll.
    StaleZones,
}

impl Flaw {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "nothing",
            Self::NeverWithholds => "never withheld",
            Self::WithholdsByPossibleSet => "withheld by a set of pods that may occur",
            Self::StaleZones => "never withheld, zones of the last poll",
        }
    }
}

/// numacast's agent.
pub(crate) struct Ours {
    node: NodeId,
    settings: GateSettings,
    /// How long a write that only makes the fingerprint agree waits for the next change.
    join: Time,
    flaw: Flaw,
    gate: FingerprintGate,
    requirements: Requirements,
    /// The node's pods, from the watch.
    pods: Option<BTreeMap<PodId, pod::Pod>>,
    watched: bool,
    /// Pods that were recently deleted or terminated.
    gone: BTreeMap<PodId, Time>,
    usage: Usage,
    /// Number of Lists so far.
    lists: u64,
    listed: Vec<Listed>,
    topology: Topology,
    read: bool,
    started: Time,
    is_responding: bool,
    young: Option<Time>,
    // Scans.
    scanning: bool,
    again: bool,
    tokens: (u64, Time),
    pause: Time,
    next_scan: Time,
    // Writes.
    /// Until when a write that only makes the fingerprint agree waits.
    joins: Option<Time>,
    last: Option<Object>,
    writing: Option<Object>,
    wanted: Option<Object>,
    /// The current timer; earlier ones are void.
    timer: u32,
    wakes: Time,
    recheck_at: Option<Time>,
}

impl Ours {
    pub(crate) fn new(node: NodeId, settings: GateSettings, join: Time, flaw: Flaw) -> Self {
        Self {
            node,
            gate: FingerprintGate::new(settings.clone()),
            requirements: Requirements { cpus: true, ..Requirements::default() },
            settings,
            join,
            flaw,
            pods: None,
            watched: true,
            gone: BTreeMap::new(),
            usage: Usage::default(),
            lists: 0,
            listed: Vec::new(),
            topology: Topology::default(),
            read: false,
            started: 0,
            is_responding: false,
            young: None,
            scanning: false,
            again: false,
            tokens: (RATE.1, 0),
            pause: SOON,
            next_scan: 0,
            joins: None,
            last: None,
            writing: None,
            wanted: None,
            timer: 0,
            wakes: NEVER,
            recheck_at: None,
        }
    }

    fn start(&mut self, world: &World) {
        let new = Self::new(self.node, self.settings.clone(), self.join, self.flaw);
        *self = Self { timer: self.timer, started: world.now, ..new };
        // It first reads its own object. The kubelet's socket shows whether the kubelet started recently.
        let there = &world.nodes[self.node];
        self.last = there.object.clone().map(|object| Object { nudges: 0, ..object });
        self.young = (there.kubelet.down || there.kubelet.loading).then_some(world.now);
    }

    // Pods.

    fn pod(&mut self, world: &World, id: PodId, seen: Option<Seen>) {
        let Some(pods) = &mut self.pods else { return };
        let is_new = !pods.contains_key(&id);
        match seen {
            Some(seen) => drop(pods.insert(id, reported_pod(id, &world.pods[id], seen))),
            None => drop(pods.remove(&id)),
        }
        let over = seen.is_none_or(|seen| seen.deleted || seen.phase.is_terminal());
        if over {
            self.gone.insert(id, world.now);
        }
        if is_new || over {
            self.look(world.now);
        }
    }

    fn all_pods(&mut self, world: &World, all: Vec<(PodId, Seen)>) {
        let pods: BTreeMap<_, _> =
            all.into_iter().map(|(id, seen)| (id, reported_pod(id, &world.pods[id], seen))).collect();
        for id in self.pods.iter().flatten().map(|(id, _)| *id) {
            if !pods.contains_key(&id) {
                self.gone.insert(id, world.now);
            }
        }
        self.pods = Some(pods);
        self.watched = true;
        self.look(world.now);
    }

    // Scans.

    /// Reads the List now, and again soon.
    fn look(&mut self, now: Time) {
        self.pause = SOON;
        self.next_scan = now;
    }

    fn scan(&mut self, world: &mut World) {
        if self.scanning {
            self.again = true;
            self.next_scan = NEVER;
            return;
        }
        let (tokens, since) = self.tokens;
        let earned = (world.now - since) / RATE.0;
        let tokens = (tokens + earned).min(RATE.1);
        let since = if tokens == RATE.1 { world.now } else { since + earned * RATE.0 };
        self.tokens = (tokens, since);
        if tokens == 0 {
            self.next_scan = since + RATE.0;
            return;
        }
        self.tokens.0 -= 1;
        self.scanning = true;
        self.next_scan = NEVER;
        world.list(self.node);
    }

    fn take_list(&mut self, world: &World, list: List) {
        self.scanning = false;
        self.is_responding = list.is_some();
        if let Some(listed) = list {
            if self.is_trusted(&listed, world.now) {
                self.young = None;
                self.take(world, listed);
            }
        } else {
            let _ = self.young.get_or_insert(world.now);
        }
        let expects = self.expects(world.now);
        let calm = if self.watched { POLL } else { POLL_BLIND };
        let pause = if std::mem::take(&mut self.again) {
            0
        } else if expects {
            self.pause
        } else {
            calm
        };
        self.pause = (self.pause * 2).min(LATE);
        self.next_scan = self.next_scan.min(world.now + pause);
    }

    /// Returns true if the List is trusted. A restarted kubelet must list all live pods, unless that takes
    /// too long.
    fn is_trusted(&self, listed: &[Listed], now: Time) -> bool {
        let Some(young) = self.young else { return true };
        let lives = |id: &PodId| match &self.pods {
            Some(pods) => pods.get(id).is_some_and(|pod| !pod.phase.is_terminal()),
            None => true,
        };
        let before = self.listed.iter().filter(|pod| pod.cpus != 0).map(|pod| pod.pod);
        let known: Vec<PodId> = if self.read {
            before.filter(lives).collect()
        } else {
            let running = |pod: &pod::Pod| pod.phase == pod::Phase::Running && pod.guaranteed;
            let pods = self.pods.iter().flatten();
            pods.filter(|(_, pod)| running(pod)).map(|(id, _)| *id).collect()
        };
        let shown = |id: &PodId| listed.iter().any(|pod| pod.pod == *id && pod.cpus != 0);
        now > young + SETTLE || self.pods.is_some() && known.iter().all(shown)
    }

    fn take(&mut self, world: &World, listed: Vec<Listed>) {
        let row = |listed: &Listed| {
            let bits = (0..64).filter(|bit| listed.cpus >> bit & 1 == 1);
            let cpus = bits.map(|bit| bit as numacast::machine::Id).collect();
            let container = ContainerUsage { name: "main".into(), cpus, ..ContainerUsage::default() };
            PodUsage {
                namespace: NAMESPACE.into(),
                name: world.pods[listed.pod].name.clone(),
                containers: vec![container],
                ..PodUsage::default()
            }
        };
        self.lists += 1;
        self.usage = Usage { pods: listed.iter().map(row).collect() };
        let used = listed.iter().fold(0, |used, pod| used | pod.cpus);
        let left = left_over(&world.nodes[self.node].kubelet.zones, used);
        self.topology.zones = left.iter().enumerate().map(|(id, free)| zone(id, *free)).collect();
        self.listed = listed;
        self.read = true;
    }

    /// Returns true if the List is expected to change soon.
    fn expects(&mut self, now: Time) -> bool {
        self.gone.retain(|_, at| now < *at + LINGER);
        let lingers = self.gone.keys().any(|id| self.listed.iter().any(|pod| pod.pod == *id));
        let waits = self.pods.iter().flatten().any(|(id, pod)| {
            pod.guaranteed
                && !pod.phase.is_terminal()
                && !pod.deleted
                && !self.listed.iter().any(|listed| listed.pod == *id && listed.cpus != 0)
        });
        lingers || waits || !self.is_responding || self.young.is_some()
    }

    // Writes.

    fn decide(&mut self, world: &mut World) {
        if !self.read {
            return self.hold_what_is_not_read(world);
        }
        let first_list = self.started + FIRST_LIST;
        if self.settings.reserve && self.pods.is_none() && world.now < first_list {
            self.recheck_at = Some(first_list);
            return;
        }
        let now = Duration::from_micros(world.now);
        // The pods have no init containers, so the machine does not matter.
        let (machine, exclude) = (Machine::default(), Exclude::default());
        let input = GateInput {
            usage: &self.usage,
            list_number: self.lists,
            requirements: &self.requirements,
            topology: &self.topology,
            exclude: &exclude,
            is_responding: self.is_responding,
            node: NodeContext::of_machine(&machine),
        };
        let pods = || self.pods.as_ref().map(|pods| pods.values());
        let verdict = self.gate.evaluate(pods(), &input, now);
        self.recheck_at = verdict.recheck_at.map(micros);
        if verdict.decision == Decision::Wait && self.flaw == Flaw::None {
            return;
        }
        let published = self.gate.publishable(pods(), &input, &verdict);
        let accounts = self.listed.iter().filter(|pod| pod.cpus != 0).map(|pod| pod.pod).collect();
        let accounts = self.with_reserved(&verdict, accounts);
        let object = Object {
            available: published.zones().iter().map(|zone| zone.resources["cpu"].available as u32).collect(),
            policy: true,
            print: self.print(&verdict),
            accounts,
            withheld: verdict.decision == Decision::Withhold && self.flaw == Flaw::None,
            ..Object::default()
        };
        if !self.may_wait(&object, world.now) {
            self.offer(world, object);
        }
    }

    /// Returns true if the object only makes the fingerprint agree and can wait for the next change.
    fn may_wait(&mut self, object: &Object, now: Time) -> bool {
        let joins = |newest: &&Object| *newest != object && newest.available == object.available;
        let is_scheduler_view = self.settings.view == FingerprintView::Scheduler;
        if !is_scheduler_view || object.withheld || self.newest().filter(joins).is_none() {
            self.joins = None;
            return false;
        }
        let until = *self.joins.get_or_insert(now + self.join);
        if now >= until {
            self.joins = None;
            return false;
        }
        self.recheck_at = Some(self.recheck_at.map_or(until, |at| at.min(until)));
        true
    }

    /// The object that the API server has or will have.
    fn newest(&self) -> Option<&Object> {
        self.wanted.as_ref().or(self.writing.as_ref()).or(self.last.as_ref())
    }

    /// Adds the pods with reservations to those that are accounted for.
    fn with_reserved(&self, verdict: &Verdict, mut accounts: Vec<PodId>) -> Vec<PodId> {
        let is_reserved = |pod: &pod::Pod| verdict.reservations.iter().any(|of| of.pod.1 == pod.name);
        let pods = self.pods.iter().flatten().filter(|(_, pod)| is_reserved(pod));
        accounts.extend(pods.map(|(id, _)| *id));
        accounts.sort_unstable();
        accounts.dedup();
        accounts
    }

    /// Trusts the object of an earlier process for a while, then withholds its fingerprint.
    fn hold_what_is_not_read(&mut self, world: &mut World) {
        let until = self.started + UNREAD;
        if world.now < until {
            self.recheck_at = Some(until);
        } else {
            self.recheck_at = None;
            self.hold(world);
        }
    }

    /// Withholds the fingerprint without any other change.
    fn hold(&mut self, world: &mut World) {
        let view = self.settings.view;
        if let (Some(last), FingerprintView::Scheduler, Flaw::None) = (&self.last, view, self.flaw) {
            let object = Object { print: Some(0), withheld: true, ..last.clone() };
            self.offer(world, object);
        }
    }

    fn print(&self, verdict: &Verdict) -> Option<u64> {
        let print = verdict.fingerprint?.value.to_string();
        let value = u64::from_str_radix(&print["pfp0v001".len()..], 16).ok();
        if self.flaw == Flaw::None || verdict.decision == Decision::Publish {
            return value;
        }
        let waits = |pod: &pod::Pod| {
            self.flaw == Flaw::WithholdsByPossibleSet && verdict.unaccounted.iter().any(|(_, name)| *name == pod.name)
        };
        let pods = self.pods.iter().flatten().map(|(_, pod)| pod);
        let counted = pods.filter(|pod| self.gate.counts(pod, &self.topology.zones) || waits(pod));
        Some(fingerprint::sum(counted.map(|pod| fingerprint::pod_hash(NAMESPACE, &pod.name))))
    }

    fn offer(&mut self, world: &mut World, object: Object) {
        if self.newest() != Some(&object) {
            self.wanted = Some(object);
        }
        self.write(world);
    }

    fn write(&mut self, world: &mut World) {
        if self.writing.is_some() {
            return;
        }
        if let Some(object) = self.wanted.take() {
            world.write(self.node, object.clone());
            self.writing = Some(object);
        }
    }

    fn written(&mut self, world: &mut World) {
        if let Some(object) = self.writing.take() {
            self.last = Some(object);
        }
        if self.wanted == self.last {
            self.wanted = None;
        }
        self.write(world);
    }

    /// Does what is due and sets the timer.
    fn go_on(&mut self, world: &mut World) {
        if self.next_scan <= world.now {
            self.scan(world);
        }
        self.decide(world);
        let due = [Some(self.next_scan), self.recheck_at];
        let due = due.into_iter().flatten().filter(|due| *due > world.now).min().unwrap_or(NEVER);
        if due != NEVER && due != self.wakes {
            self.timer += 1;
            self.wakes = due;
            world.wake_at(self.node, due, self.timer);
        }
    }
}

impl Exporter for Ours {
    fn hear(&mut self, world: &mut World, signal: Signal) {
        match signal {
            Signal::Started => self.start(world),
            Signal::Stopping => return self.hold(world),
            Signal::Pod(id, seen) => self.pod(world, id, seen),
            Signal::Pods(all) => self.all_pods(world, all),
            Signal::WatchLost => {
                self.watched = false;
                self.look(world.now);
            }
            Signal::File => {
                if self.flaw != Flaw::StaleZones {
                    self.look(world.now);
                }
            }
            Signal::KubeletStarted => {
                let _ = self.young.get_or_insert(world.now);
                self.look(world.now);
            }
            Signal::Listed(list) => self.take_list(world, list),
            Signal::Written => self.written(world),
            Signal::Timer(timer) if timer != self.timer => return,
            Signal::Timer(_) => self.wakes = NEVER,
        }
        self.go_on(world);
    }
}

fn micros(time: Duration) -> Time {
    Time::try_from(time.as_micros()).unwrap_or(NEVER)
}

fn zone(id: usize, free: u32) -> Zone {
    let amounts = Amounts { capacity: 64, allocatable: 64, available: u64::from(free) };
    let resources = [("cpu".to_owned(), amounts)].into();
    Zone { id: id as numacast::machine::Id, resources, ..Zone::default() }
}

/// The pod as the API server reports it.
fn reported_pod(id: PodId, pod: &Pod, seen: Seen) -> pod::Pod {
    let container = pod::Container {
        name: "main".into(),
        cpu_milli: u64::from(pod.request.milli),
        memory: u64::from(pod.request.guaranteed) << 20,
        ..pod::Container::default()
    };
    pod::Pod {
        namespace: NAMESPACE.into(),
        name: pod.name.clone(),
        uid: id.to_string(),
        phase: match seen.phase {
            Phase::Pending => pod::Phase::Pending,
            Phase::Running => pod::Phase::Running,
            Phase::Succeeded => pod::Phase::Succeeded,
            Phase::Failed => pod::Phase::Failed,
        },
        deleted: seen.deleted,
        guaranteed: pod.request.guaranteed,
        qos_guaranteed: pod.request.guaranteed,
        containers: Box::new([container]),
        ..pod::Pod::default()
    }
}
