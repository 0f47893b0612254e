//! numacast's agent: its real fingerprint gate, with a model of the loop around it.

use std::collections::BTreeMap;
use std::time::Duration;

use numacast::kubelet::{ContainerUsage, PodUsage, Usage};
use numacast::machine::Machine;
use numacast::pod;
use numacast::scheduler::{
    Decision, FingerprintGate, FingerprintView, GateInput, GateSettings, NodeContext, Requirements, Verdict,
};
use numacast::topology::{Amounts, NodeExclusions, Topology, Zone};

use super::bug::Bug;
use super::cluster::{NAMESPACE, NodeId, Object, Phase, Pod, PodId, PodState};
use super::exporter::{Exporter, SETTLE};
use super::fingerprint;
use super::kubelet::{List, Listed, left_over};
use super::simulation::{ExporterInput, Simulation};
use super::time::{MS, NEVER, S, Time};

/// Rate limit of scans: the interval, and the burst.
const RATE: (Time, u64) = (100 * MS, 4);
/// Delay before the List is read again while a change of it is expected; doubled each time.
const MIN_DELAY: Time = 15 * MS;
/// Maximum of that delay.
const MAX_DELAY: Time = S;
/// Poll interval while no change is expected.
const POLL: Time = 5 * S;
/// The same while the pods are not watched.
const POLL_WITHOUT_WATCH: Time = 800 * MS;
/// How long the existing object is kept while the node cannot be read.
const UNREAD_TIMEOUT: Time = 500 * MS;
/// How long an agent with reservations waits for the pods before its first object.
const FIRST_PODS_TIMEOUT: Time = 12 * S;
/// How long a deleted or terminated pod may stay in the List.
const RELEASE_TIMEOUT: Time = 15 * S;

/// numacast's agent.
pub(crate) struct Agent {
    node: NodeId,
    settings: GateSettings,
    /// How long a write that only makes the fingerprint match waits for the next change.
    write_delay: Time,
    bug: Bug,
    gate: FingerprintGate,
    requirements: Requirements,
    /// The node's pods, from the watch.
    pods: Option<BTreeMap<PodId, pod::Pod>>,
    watched: bool,
    /// Pods that were recently deleted or terminated.
    removed: BTreeMap<PodId, Time>,
    usage: Usage,
    /// Number of Lists so far.
    lists: u64,
    listed: Vec<Listed>,
    topology: Topology,
    has_scanned: bool,
    started: Time,
    is_responding: bool,
    /// When the kubelet restarted, until its List is trusted again.
    restarted_at: Option<Time>,
    // Scans.
    scanning: bool,
    rescan: bool,
    tokens: (u64, Time),
    pause: Time,
    next_scan: Time,
    // Writes.
    /// Until when a write that only makes the fingerprint match waits.
    delayed_until: Option<Time>,
    last: Option<Object>,
    writing: Option<Object>,
    wanted: Option<Object>,
    /// The current timer; earlier ones are void.
    timer: u32,
    wakes: Time,
    recheck_at: Option<Time>,
}

impl Agent {
    pub(crate) fn new(node: NodeId, settings: GateSettings, write_delay: Time, bug: Bug) -> Self {
        Self {
            node,
            gate: FingerprintGate::new(settings.clone()),
            requirements: Requirements { cpus: true, ..Requirements::default() },
            settings,
            write_delay,
            bug,
            pods: None,
            watched: true,
            removed: BTreeMap::new(),
            usage: Usage::default(),
            lists: 0,
            listed: Vec::new(),
            topology: Topology::default(),
            has_scanned: false,
            started: 0,
            is_responding: false,
            restarted_at: None,
            scanning: false,
            rescan: false,
            tokens: (RATE.1, 0),
            pause: MIN_DELAY,
            next_scan: 0,
            delayed_until: None,
            last: None,
            writing: None,
            wanted: None,
            timer: 0,
            wakes: NEVER,
            recheck_at: None,
        }
    }

    fn start(&mut self, sim: &Simulation) {
        let new = Self::new(self.node, self.settings.clone(), self.write_delay, self.bug);
        *self = Self { timer: self.timer, started: sim.now, ..new };
        // It first reads its own object. The kubelet's socket shows whether the kubelet started recently.
        let node = &sim.nodes[self.node];
        self.last = node.object.clone().map(|object| Object { nudges: 0, ..object });
        self.restarted_at = (node.kubelet.down || node.kubelet.loading).then_some(sim.now);
    }

    // Pods.

    fn handle_pod(&mut self, sim: &Simulation, id: PodId, state: Option<PodState>) {
        let Some(pods) = &mut self.pods else { return };
        let is_new = !pods.contains_key(&id);
        match state {
            Some(state) => drop(pods.insert(id, reported_pod(id, &sim.pods[id], state))),
            None => drop(pods.remove(&id)),
        }
        let is_over = state.is_none_or(|state| state.deleted || state.phase.is_terminal());
        if is_over {
            self.removed.insert(id, sim.now);
        }
        if is_new || is_over {
            self.scan_now(sim.now);
        }
    }

    fn handle_all_pods(&mut self, sim: &Simulation, all: Vec<(PodId, PodState)>) {
        let pods: BTreeMap<_, _> =
            all.into_iter().map(|(id, state)| (id, reported_pod(id, &sim.pods[id], state))).collect();
        for id in self.pods.iter().flatten().map(|(id, _)| *id) {
            if !pods.contains_key(&id) {
                self.removed.insert(id, sim.now);
            }
        }
        self.pods = Some(pods);
        self.watched = true;
        self.scan_now(sim.now);
    }

    // Scans.

    /// Reads the List now, and again soon.
    fn scan_now(&mut self, now: Time) {
        self.pause = MIN_DELAY;
        self.next_scan = now;
    }

    fn scan(&mut self, sim: &mut Simulation) {
        if self.scanning {
            self.rescan = true;
            self.next_scan = NEVER;
            return;
        }
        let (tokens, since) = self.tokens;
        let earned = (sim.now - since) / RATE.0;
        let tokens = (tokens + earned).min(RATE.1);
        let since = if tokens == RATE.1 { sim.now } else { since + earned * RATE.0 };
        self.tokens = (tokens, since);
        if tokens == 0 {
            self.next_scan = since + RATE.0;
            return;
        }
        self.tokens.0 -= 1;
        self.scanning = true;
        self.next_scan = NEVER;
        sim.list(self.node);
    }

    fn handle_list(&mut self, sim: &Simulation, list: List) {
        self.scanning = false;
        self.is_responding = list.is_some();
        if let Some(listed) = list {
            if self.is_trusted(&listed, sim.now) {
                self.restarted_at = None;
                self.apply_list(sim, listed);
            }
        } else {
            let _ = self.restarted_at.get_or_insert(sim.now);
        }
        let expects_change = self.expects_change(sim.now);
        let poll = if self.watched { POLL } else { POLL_WITHOUT_WATCH };
        let pause = if std::mem::take(&mut self.rescan) {
            0
        } else if expects_change {
            self.pause
        } else {
            poll
        };
        self.pause = (self.pause * 2).min(MAX_DELAY);
        self.next_scan = self.next_scan.min(sim.now + pause);
    }

    /// Returns true if the List is trusted. A restarted kubelet must list all live pods, unless that takes
    /// too long.
    fn is_trusted(&self, listed: &[Listed], now: Time) -> bool {
        let Some(restarted_at) = self.restarted_at else { return true };
        let is_live = |id: &PodId| match &self.pods {
            Some(pods) => pods.get(id).is_some_and(|pod| !pod.phase.is_terminal()),
            None => true,
        };
        let before = self.listed.iter().filter(|pod| pod.cpus != 0).map(|pod| pod.pod);
        let known: Vec<PodId> = if self.has_scanned {
            before.filter(is_live).collect()
        } else {
            let running = |pod: &pod::Pod| pod.phase == pod::Phase::Running && pod.guaranteed;
            let pods = self.pods.iter().flatten();
            pods.filter(|(_, pod)| running(pod)).map(|(id, _)| *id).collect()
        };
        let is_listed = |id: &PodId| listed.iter().any(|pod| pod.pod == *id && pod.cpus != 0);
        now > restarted_at + SETTLE || self.pods.is_some() && known.iter().all(is_listed)
    }

    fn apply_list(&mut self, sim: &Simulation, listed: Vec<Listed>) {
        let row = |listed: &Listed| {
            let bits = (0..64).filter(|bit| listed.cpus >> bit & 1 == 1);
            let cpus = bits.map(|bit| bit as numacast::machine::Id).collect();
            let container = ContainerUsage { name: "main".into(), cpus, ..ContainerUsage::default() };
            PodUsage {
                namespace: NAMESPACE.into(),
                name: sim.pods[listed.pod].name.clone(),
                containers: vec![container],
                ..PodUsage::default()
            }
        };
        self.lists += 1;
        self.usage = Usage { pods: listed.iter().map(row).collect() };
        let used = listed.iter().fold(0, |used, pod| used | pod.cpus);
        let left = left_over(&sim.nodes[self.node].kubelet.zones, used);
        self.topology.zones = left.iter().enumerate().map(|(id, free)| zone(id, *free)).collect();
        self.listed = listed;
        self.has_scanned = true;
    }

    /// Returns true if the List is expected to change soon.
    fn expects_change(&mut self, now: Time) -> bool {
        self.removed.retain(|_, at| now < *at + RELEASE_TIMEOUT);
        let is_released_soon = self.removed.keys().any(|id| self.listed.iter().any(|pod| pod.pod == *id));
        let is_admitted_soon = self.pods.iter().flatten().any(|(id, pod)| {
            pod.guaranteed
                && !pod.phase.is_terminal()
                && !pod.deleted
                && !self.listed.iter().any(|listed| listed.pod == *id && listed.cpus != 0)
        });
        is_released_soon || is_admitted_soon || !self.is_responding || self.restarted_at.is_some()
    }

    // Writes.

    fn decide(&mut self, sim: &mut Simulation) {
        if !self.has_scanned {
            return self.withhold_until_first_write(sim);
        }
        let deadline = self.started + FIRST_PODS_TIMEOUT;
        if self.settings.reserve && self.pods.is_none() && sim.now < deadline {
            self.recheck_at = Some(deadline);
            return;
        }
        let now = Duration::from_micros(sim.now);
        // The pods have no init containers, so the machine does not matter.
        let (machine, exclude) = (Machine::default(), NodeExclusions::default());
        let input = GateInput {
            claims: None,
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
        if verdict.decision == Decision::Wait && self.bug == Bug::None {
            return;
        }
        let published = self.gate.publishable(pods(), &input, &verdict);
        let accounts = self.listed.iter().filter(|pod| pod.cpus != 0).map(|pod| pod.pod).collect();
        let accounts = self.with_reserved(&verdict, accounts);
        let object = Object {
            available: published.zones.iter().map(|zone| zone.resources["cpu"].available as u32).collect(),
            policy: true,
            fingerprint: self.fingerprint(&verdict),
            accounts,
            withheld: matches!(verdict.decision, Decision::Withhold(_)) && self.bug == Bug::None,
            ..Object::default()
        };
        if !self.may_be_delayed(&object, sim.now) {
            self.publish(sim, object);
        }
    }

    /// Returns true if the object only makes the fingerprint match and can wait for the next change.
    fn may_be_delayed(&mut self, object: &Object, now: Time) -> bool {
        let differs_only_in_pods =
            |newest: &&Object| *newest != object && newest.available == object.available;
        let is_scheduler_view = self.settings.view == FingerprintView::Scheduler;
        if !is_scheduler_view || object.withheld || self.newest().filter(differs_only_in_pods).is_none() {
            self.delayed_until = None;
            return false;
        }
        let until = *self.delayed_until.get_or_insert(now + self.write_delay);
        if now >= until {
            self.delayed_until = None;
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

    /// Keeps the object of an earlier process for a while, then withholds its fingerprint.
    fn withhold_until_first_write(&mut self, sim: &mut Simulation) {
        let until = self.started + UNREAD_TIMEOUT;
        if sim.now < until {
            self.recheck_at = Some(until);
        } else {
            self.recheck_at = None;
            self.withhold(sim);
        }
    }

    /// Withholds the fingerprint without any other change.
    fn withhold(&mut self, sim: &mut Simulation) {
        let view = self.settings.view;
        if let (Some(last), FingerprintView::Scheduler, Bug::None) = (&self.last, view, self.bug) {
            let object = Object { fingerprint: Some(0), withheld: true, ..last.clone() };
            self.publish(sim, object);
        }
    }

    fn fingerprint(&self, verdict: &Verdict) -> Option<u64> {
        let text = verdict.fingerprint?.value.to_string();
        let value = u64::from_str_radix(&text["pfp0v001".len()..], 16).ok();
        if self.bug == Bug::None || verdict.decision == Decision::Publish {
            return value;
        }
        let is_unaccounted = |pod: &pod::Pod| {
            self.bug == Bug::WithholdsByPossibleSet
                && verdict.unaccounted.iter().any(|(_, name)| *name == pod.name)
        };
        let pods = self.pods.iter().flatten().map(|(_, pod)| pod);
        let counted = pods.filter(|pod| self.gate.counts(pod, &self.topology.zones) || is_unaccounted(pod));
        Some(fingerprint::sum(counted.map(|pod| fingerprint::pod_hash(NAMESPACE, &pod.name))))
    }

    fn publish(&mut self, sim: &mut Simulation, object: Object) {
        if self.newest() != Some(&object) {
            self.wanted = Some(object);
        }
        self.write(sim);
    }

    fn write(&mut self, sim: &mut Simulation) {
        if self.writing.is_some() {
            return;
        }
        if let Some(object) = self.wanted.take() {
            sim.write(self.node, object.clone());
            self.writing = Some(object);
        }
    }

    fn written(&mut self, sim: &mut Simulation) {
        if let Some(object) = self.writing.take() {
            self.last = Some(object);
        }
        if self.wanted == self.last {
            self.wanted = None;
        }
        self.write(sim);
    }

    /// Does what is due and sets the timer.
    fn run_due(&mut self, sim: &mut Simulation) {
        if self.next_scan <= sim.now {
            self.scan(sim);
        }
        self.decide(sim);
        let due = [Some(self.next_scan), self.recheck_at];
        let due = due.into_iter().flatten().filter(|due| *due > sim.now).min().unwrap_or(NEVER);
        if due != NEVER && due != self.wakes {
            self.timer += 1;
            self.wakes = due;
            sim.wake_at(self.node, due, self.timer);
        }
    }
}

impl Exporter for Agent {
    fn handle(&mut self, sim: &mut Simulation, input: ExporterInput) {
        match input {
            ExporterInput::Started => self.start(sim),
            ExporterInput::Stopping => return self.withhold(sim),
            ExporterInput::Pod(id, state) => self.handle_pod(sim, id, state),
            ExporterInput::Pods(all) => self.handle_all_pods(sim, all),
            ExporterInput::WatchLost => {
                self.watched = false;
                self.scan_now(sim.now);
            }
            ExporterInput::Checkpoint => {
                if self.bug != Bug::StaleZones {
                    self.scan_now(sim.now);
                }
            }
            ExporterInput::KubeletStarted => {
                let _ = self.restarted_at.get_or_insert(sim.now);
                self.scan_now(sim.now);
            }
            ExporterInput::Listed(list) => self.handle_list(sim, list),
            ExporterInput::Written => self.written(sim),
            ExporterInput::Timer(timer) if timer != self.timer => return,
            ExporterInput::Timer(_) => self.wakes = NEVER,
        }
        self.run_due(sim);
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
fn reported_pod(id: PodId, pod: &Pod, state: PodState) -> pod::Pod {
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
        phase: match state.phase {
            Phase::Pending => pod::Phase::Pending,
            Phase::Running => pod::Phase::Running,
            Phase::Succeeded => pod::Phase::Succeeded,
            Phase::Failed => pod::Phase::Failed,
        },
        deleted: state.deleted,
        guaranteed: pod.request.guaranteed,
        qos_guaranteed: pod.request.guaranteed,
        containers: Box::new([container]),
        ..pod::Pod::default()
    }
}
