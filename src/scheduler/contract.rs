//! Decides which fingerprint the object carries, and when it is held.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use super::accounted::Requirements;
use super::exclusive::is_exclusive;
use super::unlisted::{Unlisted, has_plain_init};
use super::{Informer, PluginRelease, Reservation, View};
use crate::kubelet::{ContainerUsage, PodUsage, Usage};
use crate::pod::{ContainerKind, Phase, Pod};
use crate::topology::{Fingerprint, Method, PodSet, Zone, pod_hash};

/// A wait that new pods keep extending ends after this many times [`Terms::patience`].
const PROLONGED: u32 = 3;

/// How long an admitted pod is counted before it is Running. The write that accounts for it then already has
/// the fingerprint that the plugin computes once the pod runs, which saves a write. Containers whose image is
/// on the node start within about a second. Until the pod runs, the plugin's fingerprint cannot match, so a
/// release on the node ends this early.
const STARTING: Duration = Duration::from_secs(2);

/// How long a running pod may be missing from the List: it is assumed to be terminating, which the API server
/// is about to report.
const MISSING: Duration = Duration::from_secs(10);

/// The plugin's configuration, and how long to wait for pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Which pods the fingerprint covers.
    pub view: View,
    /// Which of these pods count.
    pub method: Method,
    /// Which pods the plugin's informer caches.
    pub informer: Informer,
    /// Which rule the plugin applies to pods with exclusive resources.
    pub release: PluginRelease,
    /// How long a bound pod may be unaccounted before the object is held. A pod accounted for in time costs
    /// one write instead of two.
    pub patience: Duration,
    /// How long a pod may hold the object, or have resources reserved; only time in which the kubelet
    /// responds counts.
    pub hold_limit: Duration,
    /// Whether the zones reserve what unaccounted pods will be allocated. If so, `patience` is not applied.
    pub reserve: bool,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            view: View::default(),
            method: Method::default(),
            informer: Informer::default(),
            release: PluginRelease::default(),
            patience: Duration::from_millis(50),
            hold_limit: Duration::from_secs(60),
            reserve: false,
        }
    }
}

/// The node as the kubelet reports it, and the zones to publish.
#[derive(Clone, Copy, Debug)]
pub struct Reading<'a> {
    /// The latest accepted List.
    pub usage: &'a Usage,
    /// The sequence number of that List, from any start.
    pub number: u64,
    /// Which resources the kubelet allocates exclusively to one container.
    pub requirements: &'a Requirements,
    /// The zones that are published with the fingerprint.
    pub zones: &'a [Zone],
    /// Whether the kubelet responds. While it does not, no pod can become accounted, so the time does not
    /// count against [`Terms::hold_limit`].
    pub answers: bool,
    /// Where to find what ordinary init containers keep; `None` to ignore that.
    pub unlisted: Option<Unlisted<'a>>,
}

/// What may be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stance {
    /// The fingerprint of the pods that the plugin counts: the zones account for all of them.
    Agreed,
    /// Nothing yet: a pod is being admitted, and one write a moment later may cover everything.
    Wait,
    /// The fingerprint that never matches.
    Held,
}

/// What to publish now, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What may be published.
    pub stance: Stance,
    /// The fingerprint to publish; `None` in [`View::None`].
    pub pods: Option<PodSet>,
    /// Pods (namespace, name) that the zones do not account for.
    pub unaccounted: Vec<(String, String)>,
    /// What to subtract from the zones: reservations for unaccounted pods, if enabled, and what pods keep
    /// that the List does not show.
    pub reserved: Vec<Reservation>,
    /// Pods that did not become accounted within the limit: from now on they neither hold the object nor have
    /// resources reserved.
    pub released: Vec<(String, String)>,
    /// When to evaluate again if nothing happens before.
    pub again: Option<Duration>,
}

/// The state of one pod, keyed by UID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It was allocated what it requested. From now on the List is the source of truth for it.
    Accounted,
    /// The List shows everything it requested, but it is still Pending, and the entry may be that of an
    /// earlier pod with the same name.
    Shown,
    /// Like [`Standing::Shown`], since this time, and about to run: the fingerprint counts it already.
    Starting(Duration),
    /// It was accounted, and has been missing from the List since this time: it is terminating, or the
    /// kubelet lost it.
    Missing(Duration),
    /// Not accounted yet.
    Waiting(Wait),
    /// Not accounted within the limit, and no longer waited for.
    Excused,
}

/// How long a pod has been waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wait {
    /// Since when.
    since: Duration,
    /// How much of that time the kubelet responded.
    answered: Duration,
    /// When this was last evaluated, and whether the kubelet responded then.
    looked: (Duration, bool),
    /// The number of the latest List when the pod was first seen to have left Pending.
    ran: Option<u64>,
}

/// The pod whose entry the List shows under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    uid: String,
    /// Hash of the allocated resources it showed.
    holdings: u64,
}

/// Keeps the published fingerprint in agreement with the plugin's.
#[derive(Clone, Debug)]
pub struct Contract {
    terms: Terms,
    pods: BTreeMap<String, Standing>,
    /// List entries by pod name, from when an entry showed everything of a pod until the pod is gone.
    rows: BTreeMap<(String, String), Row>,
    /// Whether any of `rows` belongs to a pod that is gone.
    shows_the_gone: bool,
    /// Since when publishing has been deferred because pods are being admitted.
    waiting: Option<Duration>,
    /// What was available in the zones at the last evaluation; empty outside the scheduler's view.
    available: Vec<u64>,
    /// Whether this evaluation found more available than the one before.
    released: bool,
}

impl Contract {
    /// Returns a contract that knows no pods yet.
    #[must_use]
    pub const fn new(terms: Terms) -> Self {
        Self {
            terms,
            pods: BTreeMap::new(),
            rows: BTreeMap::new(),
            shows_the_gone: false,
            waiting: None,
            available: Vec::new(),
            released: false,
        }
    }

    /// Returns the settings.
    #[must_use]
    pub const fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Decides what may be published for `reading`. `pods` are the node's pods in the API server, `None`
    /// before the first sync. Without them the object is held in the scheduler's view; in the other views
    /// they determine which pods to wait for.
    pub fn judge<'a>(
        &mut self,
        pods: Option<impl IntoIterator<Item = &'a Pod>>,
        reading: &Reading<'_>,
        now: Duration,
    ) -> Verdict {
        let mut verdict = Verdict::of(Stance::Agreed, None);
        let pods: Option<Vec<&Pod>> = pods.map(|pods| pods.into_iter().collect());
        if self.terms.view == View::Scheduler {
            self.look_for_releases(reading.zones);
        }
        if let Some(pods) = &pods {
            self.look_at_new_ones(pods, reading, now, &mut verdict);
            self.forget_all_but(pods, reading.usage);
            self.look_for_surplus(pods, reading, &mut verdict);
        }
        if self.terms.view == View::Scheduler {
            verdict.stance = if pods.is_some() { self.stance(&mut verdict, now) } else { Stance::Held };
        }
        let fingerprint = match (self.terms.view, verdict.stance) {
            (View::Scheduler, Stance::Held) => Some(Fingerprint::HELD),
            (View::Scheduler, _) => Some(self.of_plugin(pods.as_deref().unwrap_or_default(), reading.zones)),
            (View::Kubelet, _) => Some(self.of_list(reading.usage)),
            (View::None, _) => None,
        };
        verdict.pods = fingerprint.map(|fingerprint| self.set(fingerprint));
        verdict
    }

    /// Records whether any zone has more available than at the last evaluation.
    fn look_for_releases(&mut self, zones: &[Zone]) {
        let amounts = zones.iter().flat_map(|zone| zone.resources.values());
        let available: Vec<u64> = amounts.map(|amounts| amounts.available).collect();
        let before = std::mem::replace(&mut self.available, available);
        self.released = before.len() != self.available.len()
            || before.iter().zip(&self.available).any(|(before, now)| before < now);
    }

    const fn set(&self, fingerprint: Fingerprint) -> PodSet {
        PodSet { fingerprint, method: self.terms.method }
    }

    /// Removes pods that are gone, and their List entries once the List no longer shows them.
    fn forget_all_but(&mut self, pods: &[&Pod], usage: &Usage) {
        // Every pod in `pods` has a state by now, so any surplus belongs to pods that are gone.
        if self.pods.len() == pods.len() && !self.shows_the_gone {
            return;
        }
        let present: HashSet<&str> = pods.iter().map(|pod| pod.uid.as_str()).collect();
        self.pods.retain(|uid, _| present.contains(uid.as_str()));
        let is_listed = |(namespace, name): &(String, String)| {
            usage.pods.iter().any(|row| row.name == *name && row.namespace == *namespace)
        };
        self.rows.retain(|name, row| present.contains(row.uid.as_str()) || is_listed(name));
        self.shows_the_gone = self.rows.values().any(|row| !present.contains(row.uid.as_str()));
    }

    /// Updates the state of each pod that is not accounted, or no longer is.
    fn look_at_new_ones(
        &mut self,
        pods: &[&Pod],
        reading: &Reading<'_>,
        now: Duration,
        verdict: &mut Verdict,
    ) {
        let rows = Rows::of(reading.usage);
        for pod in pods {
            let before = self.pods.get(&pod.uid).copied();
            let rows = rows.of_pod(pod);
            let standing = match before {
                Some(Standing::Excused) => continue,
                // The common case: an accounted pod stays accounted, whatever it requests later.
                Some(Standing::Accounted) if !rows.is_empty() => continue,
                _ if asks_for_nothing(pod, reading) => Standing::settled(pod),
                // The List shows what it still is allocated.
                Some(known) if is_leaving(pod) && !matches!(known, Standing::Waiting(_)) => {
                    Standing::Accounted
                }
                Some(Standing::Accounted) => {
                    verdict.ask_again(now + MISSING);
                    Standing::Missing(now)
                }
                Some(Standing::Missing(_)) if !rows.is_empty() => Standing::Accounted,
                Some(Standing::Missing(since)) if now < since + MISSING => {
                    verdict.ask_again(since + MISSING);
                    continue;
                }
                Some(
                    Standing::Missing(_) | Standing::Shown | Standing::Starting(_) | Standing::Waiting(_),
                )
                | None => self.look_at(pod, rows, reading, now, verdict),
            };
            match self.pods.get_mut(&pod.uid) {
                Some(known) => *known = standing,
                None => drop(self.pods.insert(pod.uid.clone(), standing)),
            }
        }
    }

    /// Adds what ordinary init containers of accounted pods keep and the List does not show.
    fn look_for_surplus(&self, pods: &[&Pod], reading: &Reading<'_>, verdict: &mut Verdict) {
        let Some(unlisted) = reading.unlisted else { return };
        let unseen = PodUsage::default();
        let waits = |pod: &Pod| matches!(self.pods.get(&pod.uid), Some(Standing::Waiting(_)));
        for pod in pods.iter().filter(|pod| has_plain_init(pod) && !pod.phase.is_terminal() && !waits(pod)) {
            let named = |row: &&PodUsage| row.name == pod.name && row.namespace == pod.namespace;
            let rows = reading.usage.pods.iter().filter(named);
            // If two entries share the name, the pod's is the one that shows what it requests.
            let row = rows.max_by_key(|row| reading.requirements.are_met(pod, row));
            // Nothing waits for a pod of which only init containers are allocated something, so the List may be
            // older than its admission.
            let only_init = row.is_none() && !is_leaving(pod) && !reading.requirements.concern(pod);
            let row = row.or(only_init.then_some(&unseen));
            let surplus = row.map(|row| unlisted.surplus(reading.requirements, reading.zones, pod, row));
            verdict.reserved.extend(surplus.into_iter().flatten());
        }
    }

    /// Returns the state of a pod, by whether one of its List entries shows everything it requests.
    fn look_at(
        &mut self,
        pod: &Pod,
        rows: &[&PodUsage],
        reading: &Reading<'_>,
        now: Duration,
        verdict: &mut Verdict,
    ) -> Standing {
        let wait = self.waited(pod, reading, now);
        // A List received after the pod was seen to have left Pending has the pod's own entry.
        let sure = wait.ran.is_some_and(|ran| ran != reading.number);
        let own: Vec<&&PodUsage> = rows.iter().filter(|row| sure || !self.is_anothers(pod, row)).collect();
        if let Some(row) = own.iter().find(|row| reading.requirements.are_met(pod, row)) {
            self.rows.insert(pod.full_name(), Row { uid: pod.uid.clone(), holdings: row.holdings_hash() });
            return self.shown(pod, now, verdict);
        }
        // A List requested after the pod ran shows what it still is allocated. The next one may have been
        // requested before.
        if is_leaving(pod) && wait.ran.is_some_and(|ran| reading.number > ran + 1) {
            return Standing::Accounted;
        }
        let left = self.terms.hold_limit.saturating_sub(wait.answered);
        if left.is_zero() {
            verdict.released.push(pod.full_name());
            return Standing::Excused;
        }
        verdict.unaccounted.push(pod.full_name());
        if self.terms.reserve {
            // With several entries, the pod's own cannot be identified.
            let row = if let [row] = own[..] { Some(*row) } else { None };
            let amounts = reading.requirements.missing(pod, row);
            verdict.reserved.push(Reservation { pod: pod.full_name(), amounts, zones: None });
        }
        verdict.ask_again(now + left);
        Standing::Waiting(wait)
    }

    /// Returns the state of a pod that the List shows completely.
    fn shown(&self, pod: &Pod, now: Duration, verdict: &mut Verdict) -> Standing {
        let since = match self.pods.get(&pod.uid) {
            Some(Standing::Shown) => None,
            Some(Standing::Starting(since)) => Some(*since),
            _ => Some(now),
        };
        let starts = self.terms.view == View::Scheduler && pod.phase == Phase::Pending && starts_soon(pod);
        match since.filter(|since| starts && !self.released && now < *since + STARTING) {
            Some(since) => {
                verdict.ask_again(since + STARTING);
                Standing::Starting(since)
            }
            None => Standing::settled(pod),
        }
    }

    /// Returns true if the entry is that of an earlier pod with this name, which was force-deleted. Its CPUs
    /// may be in another zone than those of the new pod.
    fn is_anothers(&self, pod: &Pod, row: &PodUsage) -> bool {
        let known = self.rows.get(&pod.full_name());
        known.is_some_and(|known| known.uid != pod.uid && known.holdings == row.holdings_hash())
    }

    /// Returns how long a pod has been waited for so far.
    fn waited(&self, pod: &Pod, reading: &Reading<'_>, now: Duration) -> Wait {
        let looked = (now, reading.answers);
        let ran = (pod.phase != Phase::Pending).then_some(reading.number);
        match self.pods.get(&pod.uid) {
            Some(Standing::Waiting(before)) => {
                // The kubelet counts as responsive between two evaluations if it was at both.
                let (at, did_answer) = before.looked;
                let more =
                    if did_answer && reading.answers { now.saturating_sub(at) } else { Duration::ZERO };
                Wait { looked, answered: before.answered + more, ran: before.ran.or(ran), ..*before }
            }
            _ => Wait { since: now, answered: Duration::ZERO, looked, ran },
        }
    }

    /// Returns [`Stance::Held`] as soon as one pod has been waited for long enough.
    fn stance(&mut self, verdict: &mut Verdict, now: Duration) -> Stance {
        let oldest = self.pods.values().filter_map(|standing| match standing {
            Standing::Waiting(wait) => Some(wait.since),
            Standing::Accounted
            | Standing::Shown
            | Standing::Starting(_)
            | Standing::Missing(_)
            | Standing::Excused => None,
        });
        let Some(oldest) = oldest.min() else {
            self.waiting = None;
            return Stance::Agreed;
        };
        let began = *self.waiting.get_or_insert(now);
        let patience = if self.terms.reserve { Duration::ZERO } else { self.terms.patience };
        let until = (oldest + patience).min(began + patience * PROLONGED);
        if now >= until {
            return Stance::Held;
        }
        verdict.ask_again(until);
        Stance::Wait
    }

    /// Returns the fingerprint of the pods that the plugin counts.
    fn of_plugin(&self, pods: &[&Pod], zones: &[Zone]) -> Fingerprint {
        let counted = pods.iter().filter(|pod| self.counts(pod, zones));
        Fingerprint::of(counted.map(|pod| pod_hash(&pod.namespace, &pod.name)))
    }

    /// Returns true if the plugin counts this pod, or is about to, as of the last evaluation.
    #[must_use]
    pub fn counts(&self, pod: &Pod, zones: &[Zone]) -> bool {
        let phase = match self.terms.informer {
            _ if pod.phase == Phase::Pending => self.is_starting(pod),
            Informer::Dedicated => true,
            Informer::Shared => pod.phase == Phase::Running,
        };
        let listed = |name: &str| lists(zones, name);
        phase && (self.terms.method == Method::All || is_exclusive(pod, &listed, self.terms.release))
    }

    fn is_starting(&self, pod: &Pod) -> bool {
        matches!(self.pods.get(&pod.uid), Some(Standing::Starting(_)))
    }

    /// Returns the pods (namespace, name) that the fingerprint covers.
    #[must_use]
    pub fn counted<'a>(
        &self,
        pods: Option<impl IntoIterator<Item = &'a Pod>>,
        usage: &Usage,
        zones: &[Zone],
    ) -> Vec<(String, String)> {
        match self.terms.view {
            View::Scheduler => {
                let pods = pods.into_iter().flatten();
                pods.filter(|pod| self.counts(pod, zones)).map(Pod::full_name).collect()
            }
            View::Kubelet => self.listed(usage).map(PodUsage::full_name).collect(),
            View::None => Vec::new(),
        }
    }

    /// Returns the fingerprint of the pods in the List.
    fn of_list(&self, usage: &Usage) -> Fingerprint {
        Fingerprint::of(self.listed(usage).map(|pod| pod_hash(&pod.namespace, &pod.name)))
    }

    fn listed<'a>(&self, usage: &'a Usage) -> impl Iterator<Item = &'a PodUsage> + use<'a> {
        let all = self.terms.method == Method::All;
        usage.pods.iter().filter(move |pod| all || holds_on_a_node(pod))
    }
}

/// Returns true if the pod has terminated or is allocated nothing exclusively.
fn asks_for_nothing(pod: &Pod, reading: &Reading<'_>) -> bool {
    pod.phase.is_terminal() || !reading.requirements.concern(pod)
}

/// Returns true if the pod was deleted after it left Pending. A pod deleted while Pending may still be
/// admitted, by a kubelet that learns of the deletion later than we do.
fn is_leaving(pod: &Pod) -> bool {
    pod.deleted && pod.phase != Phase::Pending
}

/// Returns true if nothing known keeps the pod Pending for long after its admission.
fn starts_soon(pod: &Pod) -> bool {
    !pod.deleted && pod.containers.iter().all(|container| container.kind != ContainerKind::Init)
}

impl Standing {
    /// Returns the state of a pod that needs no further waiting.
    const fn settled(pod: &Pod) -> Self {
        match pod.phase {
            Phase::Pending => Self::Shown,
            _ => Self::Accounted,
        }
    }
}

impl Verdict {
    const fn of(stance: Stance, pods: Option<PodSet>) -> Self {
        Self {
            stance,
            pods,
            unaccounted: Vec::new(),
            reserved: Vec::new(),
            released: Vec::new(),
            again: None,
        }
    }

    fn ask_again(&mut self, at: Duration) {
        self.again = Some(self.again.map_or(at, |before| before.min(at)));
    }
}

/// Returns true if some zone lists this resource.
pub(super) fn lists(zones: &[Zone], resource: &str) -> bool {
    zones.iter().any(|zone| zone.resources.contains_key(resource))
}

/// The List's entries, sorted by pod name.
pub(super) struct Rows<'a>(Vec<&'a PodUsage>);

impl<'a> Rows<'a> {
    pub(super) fn of(usage: &'a Usage) -> Self {
        let mut rows: Vec<&PodUsage> = usage.pods.iter().collect();
        // The sort is stable: entries of one name stay in the List's order.
        rows.sort_by_key(|row| (&row.namespace, &row.name));
        Self(rows)
    }

    /// Returns the entries with a pod's name: two while a force-deleted pod is torn down and its successor
    /// has the same name.
    pub(super) fn of_pod(&self, pod: &Pod) -> &[&'a PodUsage] {
        let name = (&pod.namespace, &pod.name);
        let from = self.0.partition_point(|row| (&row.namespace, &row.name) < name);
        let named = self.0[from..].partition_point(|row| (&row.namespace, &row.name) == name);
        &self.0[from..from + named]
    }
}

/// Returns true if other publishers treat the pod as exclusive (peers.md 3): it has CPUs, or memory or
/// devices with NUMA affinity.
fn holds_on_a_node(pod: &PodUsage) -> bool {
    let holds = |container: &ContainerUsage| {
        !container.cpus.is_empty()
            || container.memory.iter().any(|block| !block.nodes.is_empty())
            || container.devices.iter().any(|group| !group.nodes.is_empty())
    };
    !pod.cpus.is_empty() || !pod.memory.is_empty() || pod.containers.iter().any(holds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::{DeviceGroup, MemoryBlock};
    use crate::machine::{Id, IdSet, Machine};
    use crate::pod::Container;
    use crate::topology::Amounts;

    const PATIENCE: Duration = Duration::from_millis(20);

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn pod(name: &str, uid: &str, phase: Phase) -> Pod {
        let container = Container { name: "main".into(), cpu_milli: 2000, ..Container::default() };
        Pod {
            namespace: "ns".into(),
            name: name.into(),
            uid: uid.into(),
            phase,
            guaranteed: true,
            said_guaranteed: true,
            containers: Box::new([container]),
            ..Pod::default()
        }
    }

    /// Returns a List; pods whose name ends with `+` have CPUs.
    fn list(names: &str) -> Usage {
        let pods = names.split_whitespace().map(|name| {
            let cpus = if name.ends_with('+') { "1-2" } else { "" };
            let cpus = cpus.parse().unwrap();
            let container = ContainerUsage { name: "main".into(), cpus, ..ContainerUsage::default() };
            PodUsage {
                namespace: "ns".into(),
                name: name.trim_end_matches('+').into(),
                containers: vec![container],
                ..PodUsage::default()
            }
        });
        Usage { pods: pods.collect() }
    }

    #[test]
    fn a_pod_holds_something_on_a_node_by_its_cpus_or_by_what_has_nodes() {
        let with = |nodes: &[Id]| {
            let nodes: IdSet = nodes.iter().copied().collect();
            let memory = MemoryBlock { nodes: nodes.clone(), ..MemoryBlock::default() };
            let devices = DeviceGroup { nodes, ..DeviceGroup::default() };
            (memory, devices)
        };
        let of = |container: ContainerUsage| PodUsage { containers: vec![container], ..PodUsage::default() };
        let ((anywhere, any_device), (there, device)) = (with(&[]), with(&[0]));
        let nothing =
            ContainerUsage { memory: vec![anywhere], devices: vec![any_device], ..ContainerUsage::default() };
        let memory = ContainerUsage { memory: vec![there.clone()], ..ContainerUsage::default() };
        let devices = ContainerUsage { devices: vec![device], ..ContainerUsage::default() };
        let cpus = ContainerUsage { cpus: "1".parse().unwrap(), ..ContainerUsage::default() };
        assert!(!holds_on_a_node(&PodUsage::default()) && !holds_on_a_node(&of(nothing)));
        for container in [memory, devices, cpus] {
            assert!(holds_on_a_node(&of(container.clone())), "{container:?}");
        }
        assert!(holds_on_a_node(&PodUsage { cpus: "1".parse().unwrap(), ..PodUsage::default() }));
        assert!(holds_on_a_node(&PodUsage { memory: vec![there], ..PodUsage::default() }));
    }

    struct Bench {
        contract: Contract,
        requirements: Requirements,
        answers: bool,
        number: u64,
    }

    impl Bench {
        fn new() -> Self {
            let contract = Contract::new(Terms { patience: PATIENCE, ..Terms::default() });
            let requirements = Requirements { cpus: true, ..Requirements::default() };
            Self { contract, requirements, answers: true, number: 0 }
        }

        /// Evaluates with a new List.
        fn verdict(&mut self, pods: &[Pod], names: &str, now: Duration) -> Verdict {
            self.number += 1;
            self.verdict_again(pods, names, now)
        }

        fn verdict_again(&mut self, pods: &[Pod], names: &str, now: Duration) -> Verdict {
            let usage = list(names);
            let reading = Reading {
                usage: &usage,
                number: self.number,
                requirements: &self.requirements,
                zones: &[],
                answers: self.answers,
                unlisted: None,
            };
            self.contract.judge(Some(pods), &reading, now)
        }

        fn stance(&mut self, pods: &[Pod], names: &str, milliseconds: u64) -> Stance {
            let verdict = self.verdict(pods, names, ms(milliseconds));
            assert_eq!(verdict.pods.unwrap().is_held(), verdict.stance == Stance::Held);
            verdict.stance
        }
    }

    fn fingerprint(names: &str) -> Option<Fingerprint> {
        Some(Fingerprint::of(names.split_whitespace().map(|name| pod_hash("ns", name))))
    }

    fn said(verdict: &Verdict) -> Option<Fingerprint> {
        verdict.pods.map(|set| set.fingerprint)
    }

    use Phase::{Failed, Pending, Running, Succeeded, Unknown};

    #[test]
    fn a_bound_pod_is_waited_for_and_then_holds_the_object_until_the_list_shows_its_cpus() {
        let mut bench = Bench::new();
        let pods = [pod("a", "1", Running), pod("b", "2", Pending)];
        assert_eq!(bench.stance(&pods[..1], "a+", 0), Stance::Agreed);
        let waits = bench.verdict(&pods, "a+", ms(100));
        assert_eq!((waits.stance, waits.again), (Stance::Wait, Some(ms(120))));
        assert_eq!(waits.unaccounted, [("ns".to_owned(), "b".to_owned())]);
        assert_eq!(bench.stance(&pods, "a+ b", 119), Stance::Wait, "it is named before it is admitted");
        assert_eq!(bench.stance(&pods, "a+ b", 120), Stance::Held);
        let agreed = bench.verdict(&pods, "a+ b+", ms(150));
        assert_eq!(agreed.stance, Stance::Agreed);
        assert_eq!(said(&agreed), fingerprint("a b"), "the plugin will count it in a moment");
        let running = [pod("a", "1", Running), pod("b", "2", Running)];
        assert_eq!(said(&bench.verdict(&running, "a+ b+", ms(900))), fingerprint("a b"));
        assert_eq!(bench.stance(&running, "a+", 950), Stance::Agreed, "what it has given back is free");
    }

    #[test]
    fn a_pod_that_is_about_to_run_is_counted_for_a_while() {
        let mut bench = Bench::new();
        let pods = [pod("a", "1", Running), pod("b", "2", Pending)];
        let modest = Pod { guaranteed: false, ..pod("c", "3", Pending) };
        let all = [pods[0].clone(), pods[1].clone(), modest];
        assert_eq!(said(&bench.verdict(&all, "a+ b c", ms(0))), fingerprint("a"), "nothing was given to it");
        let counted = bench.verdict(&all, "a+ b+ c", ms(10));
        assert_eq!((said(&counted), counted.again), (fingerprint("a b"), Some(ms(2010))));
        let listed = list("a+ b+ c");
        let names: Vec<String> =
            bench.contract.counted(Some(&all), &listed, &[]).into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(said(&bench.verdict(&pods, "a+ b+", ms(2009))), fingerprint("a b"));
        // Its image is being pulled; meanwhile the fingerprint is to match for the others.
        let late = bench.verdict(&pods, "a+ b+", ms(2010));
        assert_eq!((said(&late), late.again), (fingerprint("a"), None));
        assert_eq!(said(&bench.verdict(&pods, "a+ b+", ms(2011))), fingerprint("a"), "not once more");
        let running = [pod("a", "1", Running), pod("b", "2", Running)];
        assert_eq!(said(&bench.verdict(&running, "a+ b+", ms(9000))), fingerprint("a b"));
    }

    #[test]
    fn a_release_is_told_without_a_pod_that_does_not_run_yet() {
        let mut bench = Bench::new();
        let pods = [pod("a", "1", Running), pod("b", "2", Pending)];
        let mut said = |names: &str, available: [u64; 2]| {
            let amounts = |available| crate::topology::Amounts { capacity: 8, allocatable: 8, available };
            let zone = |available| Zone {
                resources: [("cpu".to_owned(), amounts(available))].into(),
                ..Zone::default()
            };
            let (usage, zones) = (list(names), available.map(zone));
            let Bench { contract, requirements, .. } = &mut bench;
            let reading = Reading {
                usage: &usage,
                number: 0,
                requirements,
                zones: &zones,
                answers: true,
                unlisted: None,
            };
            contract.judge(Some(&pods), &reading, ms(0)).pods.map(|set| set.fingerprint)
        };
        assert_eq!(said("a+ b", [4, 4]), fingerprint("a"));
        assert_eq!(said("a+ b+", [4, 2]), fingerprint("a b"));
        assert_eq!(said("a+ b+", [4, 2]), fingerprint("a b"));
        assert_eq!(said("a+ b+", [5, 1]), fingerprint("a"), "more in one zone, less in the other");
        assert_eq!(said("a+ b+", [5, 1]), fingerprint("a"), "and it stays so");
    }

    #[test]
    fn a_pod_that_will_not_run_soon_is_not_counted_before_it_does() {
        let init = Container { kind: ContainerKind::Init, ..Container::default() };
        let mut initialised = pod("a", "1", Pending);
        initialised.containers = initialised.containers.iter().cloned().chain([init]).collect();
        let deleted = Pod { deleted: true, ..pod("a", "1", Pending) };
        for late in [initialised, deleted] {
            let (mut bench, late) = (Bench::new(), [late]);
            assert_eq!(said(&bench.verdict(&late, "a+", ms(0))), fingerprint(""));
            assert_eq!(bench.stance(&late, "", 1), Stance::Wait, "those may have been an earlier pod's CPUs");
        }
        let mut bench = Bench::new();
        bench.contract = Contract::new(Terms { view: View::None, ..Terms::default() });
        assert_eq!(bench.verdict(&[pod("a", "1", Pending)], "a+", ms(0)).again, None, "nobody counts");
    }

    #[test]
    fn what_a_bound_pod_will_have_is_reserved_until_the_list_shows_it() {
        let mut bench = Bench::new();
        bench.contract = Contract::new(Terms { view: View::None, reserve: true, ..Terms::default() });
        let mut reserved = |pods: &[Pod], names: &str, milliseconds: u64| {
            let verdict = bench.verdict(pods, names, ms(milliseconds));
            assert_eq!((verdict.stance, verdict.pods), (Stance::Agreed, None));
            let one = |of: &Reservation| format!("{} {:?}", of.pod.1, of.amounts);
            verdict.reserved.iter().map(one).collect::<Vec<_>>().join(" ")
        };
        let waits = r#"a {"cpu": 2}"#;
        let pending = [pod("a", "1", Pending)];
        assert_eq!(reserved(&pending, "", 0), waits, "at once");
        assert_eq!(reserved(&pending, "a", 1), waits, "it is named before it is admitted");
        assert_eq!(reserved(&pending, "a+", 2), "");
        assert_eq!(reserved(&[pod("a", "1", Running)], "a+", 3), "");
        assert_eq!(reserved(&[pod("a", "1", Running)], "", 3), "", "it is ending");
        // A pod with the same name, while the List has the first pod's entry.
        assert_eq!(reserved(&[pod("a", "2", Pending)], "a+", 4), waits);
        assert_eq!(reserved(&[pod("a", "2", Pending)], "a+ a", 5), waits);
        assert_eq!(reserved(&[pod("a", "2", Failed)], "a+", 6), "", "it was refused");
        assert_eq!(reserved(&[Pod { deleted: true, ..pod("a", "3", Pending) }], "", 7), waits);
        assert_eq!(reserved(&[], "", 8), "");
        let modest = Pod { guaranteed: false, ..pod("b", "4", Pending) };
        assert_eq!(reserved(&[modest], "", 9), "");
        // The agent has just started and has not seen the pod before.
        assert_eq!(reserved(&[pod("a", "5", Running)], "", 10), waits);
        assert_eq!(reserved(&[pod("a", "5", Running)], "", 60_009), waits);
        assert_eq!(reserved(&[pod("a", "5", Running)], "", 60_010), "", "and not for ever");
    }

    #[test]
    fn what_init_containers_keep_is_reserved_while_the_list_shows_their_pod() {
        let machine = Machine::default();
        let unlisted = Unlisted { machine: &machine, config: None, state: None, managers: false };
        let amounts = Amounts { capacity: 8, allocatable: 8, available: 8 };
        let zones = [Zone { resources: [("cpu".to_owned(), amounts)].into(), ..Zone::default() }];
        let requirements = Requirements { cpus: true, ..Requirements::default() };
        let mut contract = Contract::new(Terms { view: View::None, ..Terms::default() });
        let mut number = 0;
        let mut reserved = |pod: &Pod, names: &str| {
            number += 1;
            let usage = list(names);
            let reading = Reading {
                usage: &usage,
                number,
                requirements: &requirements,
                zones: &zones,
                answers: true,
                unlisted: Some(unlisted),
            };
            let verdict = contract.judge(Some(std::slice::from_ref(pod)), &reading, ms(number));
            verdict.reserved.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        let with_init = |uid: &str, phase| {
            let init = Container {
                name: "init".into(),
                kind: ContainerKind::Init,
                cpu_milli: 6000,
                ..Container::default()
            };
            let pod = pod("a", uid, phase);
            Pod { containers: [init].into_iter().chain(pod.containers).collect(), ..pod }
        };
        let kept = "ns/a: cpu 4 in every zone";
        assert_eq!(reserved(&with_init("1", Pending), "a"), "", "it is named before it is admitted");
        assert_eq!(reserved(&with_init("1", Running), "b+ a+"), kept);
        assert_eq!(reserved(&with_init("1", Running), "b+"), "", "it is not listed any more");
        assert_eq!(reserved(&with_init("1", Succeeded), "a+"), "");
        assert_eq!(reserved(&pod("a", "2", Running), "a+"), "", "it has no init container");

        // Only its init container has CPUs of its own: nothing waits until the List names the pod.
        let mut only_init = with_init("3", Pending);
        only_init.containers[1].cpu_milli = 1500;
        assert_eq!(reserved(&only_init, ""), "ns/a: cpu 6 in every zone");
        assert_eq!(reserved(&only_init, "a"), "ns/a: cpu 6 in every zone");
        (only_init.phase, only_init.deleted) = (Running, true);
        assert_eq!(reserved(&only_init, ""), "", "it is not listed any more");
    }

    #[test]
    fn who_reserves_in_the_schedulers_view_holds_at_once() {
        let mut bench = Bench::new();
        bench.contract = Contract::new(Terms { reserve: true, ..Terms::default() });
        assert_eq!(bench.stance(&[pod("a", "1", Pending)], "", 0), Stance::Held);
        assert_eq!(bench.stance(&[pod("a", "1", Pending)], "a+", 1), Stance::Agreed);
    }

    #[test]
    fn pods_that_are_bound_one_after_another_do_not_put_the_verdict_off_for_ever() {
        let mut bench = Bench::new();
        let mut stances = Vec::new();
        for number in 0..10_u64 {
            // The previous pod is accounted just in time.
            let known: Vec<Pod> =
                (0..=number).map(|n| pod(&format!("p{n}"), &n.to_string(), Pending)).collect();
            let shown: String = (0..number).map(|n| format!("p{n}+ ")).collect();
            stances.push(bench.stance(&known, &shown, number * 19));
        }
        let most = usize::try_from(PROLONGED).unwrap() * 20 / 19 + 1;
        assert!(stances[..most].iter().all(|stance| *stance == Stance::Wait), "{stances:?}");
        assert!(stances[most..].contains(&Stance::Held), "{stances:?}");
    }

    #[test]
    fn pods_that_ask_for_nothing_of_their_own_do_not_hold() {
        let mut bench = Bench::new();
        let modest = Pod { guaranteed: false, ..pod("a", "1", Pending) };
        assert_eq!(bench.stance(&[modest], "", 0), Stance::Agreed);
        bench.requirements.cpus = false;
        assert_eq!(bench.stance(&[pod("b", "2", Pending)], "", 0), Stance::Agreed);
    }

    #[test]
    fn a_pod_that_ended_does_not_hold() {
        for gone in [pod("a", "1", Succeeded), pod("a", "1", Failed)] {
            let mut bench = Bench::new();
            assert_eq!(bench.stance(&[pod("a", "1", Pending)], "", 0), Stance::Wait);
            assert_eq!(bench.stance(&[pod("a", "1", Pending)], "", 100), Stance::Held);
            assert_eq!(bench.stance(std::slice::from_ref(&gone), "", 101), Stance::Agreed, "{gone:?}");
            assert_eq!(bench.stance(&[], "", 102), Stance::Agreed);
        }
    }

    #[test]
    fn a_pod_that_was_deleted_while_it_ran_holds_until_a_list_that_came_later() {
        let leaving = || [Pod { deleted: true, ..pod("a", "1", Running) }];
        let mut bench = Bench::new();
        assert_eq!(bench.stance(&leaving(), "", 0), Stance::Wait);
        // The List from before its admission, and one that may have been requested before the deletion.
        assert_eq!(bench.verdict_again(&leaving(), "", ms(100)).stance, Stance::Held);
        assert_eq!(bench.stance(&leaving(), "", 101), Stance::Held);
        assert_eq!(bench.stance(&leaving(), "", 102), Stance::Agreed, "what it had is free");
        let mut bench = Bench::new();
        assert_eq!(bench.stance(&[pod("a", "1", Running)], "a+", 0), Stance::Agreed);
        assert_eq!(bench.stance(&leaving(), "a+", 1), Stance::Agreed, "it was accounted for before");
        let given_back = bench.verdict(&leaving(), "", ms(2));
        assert_eq!((given_back.stance, given_back.again), (Stance::Agreed, None), "nothing of it is missing");
    }

    #[test]
    fn a_pod_that_was_deleted_while_pending_holds_until_the_kubelet_is_done_with_it() {
        let gone = || Pod { deleted: true, ..pod("a", "1", Pending) };
        let mut bench = Bench::new();
        assert_eq!(bench.stance(&[pod("a", "1", Pending)], "", 0), Stance::Wait);
        assert_eq!(
            bench.stance(&[gone()], "", 100),
            Stance::Held,
            "the kubelet may let it in before it hears"
        );
        assert_eq!(bench.stance(&[gone()], "a+", 200), Stance::Agreed, "and then it has CPUs until it ends");
        let mut bench = Bench::new();
        assert_eq!(bench.stance(&[gone()], "a", 0), Stance::Wait);
        assert_eq!(bench.stance(&[], "", 100), Stance::Agreed);
        assert_eq!(bench.stance(&[gone()], "", 200), Stance::Wait);
        let failed = Pod { phase: Failed, ..gone() };
        assert_eq!(bench.stance(&[failed], "", 300), Stance::Agreed, "a finalizer keeps it");
        let mut bench = Bench::new();
        assert_eq!(bench.stance(&[gone()], "", 0), Stance::Wait);
        assert_eq!(bench.stance(&[gone()], "", 60_000), Stance::Agreed, "and not for ever");
    }

    #[test]
    fn a_pod_that_takes_the_name_of_another_is_not_taken_for_it() {
        let mut bench = Bench::new();
        assert_eq!(bench.stance(&[pod("a", "1", Running)], "a+", 0), Stance::Agreed);
        // The kubelet has not learned yet that the first pod was force-deleted.
        let second = [pod("a", "2", Pending)];
        assert_eq!(bench.stance(&second, "a+", 10), Stance::Wait, "those CPUs are the first one's");
        assert_eq!(bench.stance(&second, "a+", 30), Stance::Held);
        assert_eq!(bench.stance(&second, "a a+", 35), Stance::Held, "the first is being torn down");
        assert_eq!(bench.stance(&second, "", 40), Stance::Held);
        assert_eq!(bench.stance(&second, "a+", 70), Stance::Agreed);
        assert_eq!(bench.stance(&second, "", 75), Stance::Wait);
        assert_eq!(bench.stance(&[pod("a", "2", Running)], "a+", 80), Stance::Agreed);
        assert_eq!(bench.stance(&[pod("a", "2", Running)], "", 90), Stance::Agreed);
        // A pod's entry is removed with the pod, whatever others the List shows.
        let mut bench = Bench::new();
        assert_eq!(bench.stance(&[pod("a", "1", Running)], "a+ b", 0), Stance::Agreed);
        assert_eq!(bench.stance(&[], "b", 10), Stance::Agreed);
        assert_eq!(bench.stance(&[pod("a", "2", Pending)], "a+ b", 20), Stance::Agreed);
    }

    #[test]
    fn a_namesake_that_got_the_same_cpus_is_told_by_a_later_list_at_the_latest() {
        let mut bench = Bench::new();
        assert_eq!(bench.stance(&[pod("a", "1", Running)], "a+", 0), Stance::Agreed);
        // The first pod's deletion was never observed.
        assert_eq!(bench.stance(&[pod("a", "2", Pending)], "a+", 10), Stance::Wait);
        let running = [pod("a", "2", Running)];
        bench.number -= 1;
        assert_eq!(bench.stance(&running, "a+", 50), Stance::Held, "the same List");
        assert_eq!(bench.stance(&running, "a+", 60), Stance::Agreed);
    }

    #[test]
    fn a_pod_that_runs_and_is_missing_in_the_list_for_long_holds() {
        let mut bench = Bench::new();
        let pods = [pod("a", "1", Running)];
        assert_eq!(bench.stance(&pods, "a+", 0), Stance::Agreed);
        let missing = bench.verdict(&pods, "", ms(100));
        assert_eq!((missing.stance, missing.again), (Stance::Agreed, Some(ms(10_100))), "it is ending");
        assert_eq!(bench.stance(&pods, "a+", 200), Stance::Agreed, "it is back");
        assert_eq!(bench.stance(&pods, "", 300), Stance::Agreed);
        assert_eq!(bench.stance(&pods, "", 10_299), Stance::Agreed);
        assert_eq!(bench.stance(&pods, "", 10_300), Stance::Wait, "the kubelet forgot it");
        assert_eq!(bench.stance(&pods, "", 10_400), Stance::Held);
        assert_eq!(bench.stance(&[pod("a", "1", Succeeded)], "", 10_500), Stance::Agreed);
    }

    #[test]
    fn a_hold_ends_when_the_kubelet_had_time_enough() {
        let mut bench = Bench::new();
        let pods = [pod("a", "1", Pending)];
        assert_eq!(bench.stance(&pods, "", 0), Stance::Wait);
        let held = bench.verdict(&pods, "", ms(30_000));
        assert_eq!((held.stance, held.again), (Stance::Held, Some(ms(60_000))));
        // Time in which the kubelet does not respond does not count, whenever that was noticed.
        bench.answers = false;
        assert_eq!(bench.verdict(&pods, "", ms(500_000)).again, Some(ms(530_000)));
        bench.answers = true;
        assert_eq!(bench.verdict(&pods, "", ms(600_000)).again, Some(ms(630_000)));
        assert_eq!(bench.stance(&pods, "", 629_999), Stance::Held);
        let released = bench.verdict(&pods, "", ms(630_000));
        assert_eq!(released.stance, Stance::Agreed);
        assert_eq!(released.released, [("ns".to_owned(), "a".to_owned())]);
        let after = bench.verdict(&pods, "", ms(630_001));
        assert!(after.released.is_empty() && after.unaccounted.is_empty(), "it is told once");
        assert_eq!(bench.stance(&[pod("b", "2", Pending)], "", 640_000), Stance::Wait, "the next one may");
    }

    #[test]
    fn who_runs_and_asks_for_more_meanwhile_does_not_hold() {
        let mut bench = Bench::new();
        let mut resized = pod("a", "1", Running);
        resized.containers[0].cpu_milli = 5000;
        assert_eq!(
            bench.stance(std::slice::from_ref(&resized), "", 0),
            Stance::Wait,
            "the agent has just started"
        );
        assert_eq!(
            bench.stance(&[resized.clone()], "a", 1),
            Stance::Wait,
            "a List from before it was admitted"
        );
        assert_eq!(bench.stance(&[resized.clone()], "a+", 2), Stance::Agreed);
        let pending = Pod { uid: "2".into(), phase: Pending, ..resized };
        assert_eq!(bench.stance(&[pending], "a+", 3), Stance::Wait);
    }

    #[test]
    fn the_set_is_what_the_plugins_informer_has() {
        let phases = [Pending, Running, Succeeded, Failed, Unknown];
        let pods: Vec<Pod> =
            phases.map(|phase| pod(&format!("{phase:?}"), &format!("{phase:?}"), phase)).into();
        let mut bench = Bench::new();
        bench.requirements.cpus = false;
        let names = "Pending+ Running+ Unknown+";
        assert_eq!(
            said(&bench.verdict(&pods, names, ms(0))),
            fingerprint("Running Succeeded Failed Unknown")
        );
        let shared = Terms { informer: Informer::Shared, ..Terms::default() };
        bench.contract = Contract::new(shared);
        assert_eq!(said(&bench.verdict(&pods, names, ms(0))), fingerprint("Running"));
        // Deleted pods count as long as their phase does.
        let deleted = [Pod { deleted: true, ..pod("Running", "1", Running) }];
        assert_eq!(said(&bench.verdict(&deleted, "", ms(0))), fingerprint("Running"));
    }

    #[test]
    fn with_exclusive_resources_only_those_count_that_have_some() {
        let terms = Terms { method: Method::WithExclusiveResources, ..Terms::default() };
        let modest = Pod { guaranteed: false, said_guaranteed: false, ..pod("b", "2", Running) };
        let mut bench = Bench { contract: Contract::new(terms), ..Bench::new() };
        let pods = [pod("a", "1", Running), modest];
        assert_eq!(said(&bench.verdict(&pods, "a+ b", ms(0))), fingerprint("a"));
    }

    #[test]
    fn the_kubelets_view_is_its_list() {
        let mut bench = Bench::new();
        bench.contract = Contract::new(Terms { view: View::Kubelet, ..Terms::default() });
        let pods = [pod("c", "1", Pending)];
        assert_eq!(said(&bench.verdict(&pods, "a+ b", ms(100))), fingerprint("a b"));
        let method = Method::WithExclusiveResources;
        bench.contract = Contract::new(Terms { view: View::Kubelet, method, ..Terms::default() });
        assert_eq!(said(&bench.verdict(&pods, "a+ b", ms(100))), fingerprint("a"));
        bench.contract = Contract::new(Terms { view: View::None, ..Terms::default() });
        assert_eq!(said(&bench.verdict(&pods, "a+ b", ms(100))), None);
    }

    #[test]
    fn while_nobody_has_told_which_pods_there_are_the_object_is_held() {
        let mut bench = Bench::new();
        let usage = list("a+");
        let reading = Reading {
            usage: &usage,
            number: 0,
            requirements: &bench.requirements,
            zones: &[],
            answers: true,
            unlisted: None,
        };
        let verdict = bench.contract.judge(None::<[&Pod; 0]>, &reading, ms(0));
        assert_eq!((verdict.stance, said(&verdict)), (Stance::Held, Some(Fingerprint::HELD)));
        assert_eq!(bench.stance(&[pod("a", "1", Running)], "a+", 1), Stance::Agreed);
    }
}
