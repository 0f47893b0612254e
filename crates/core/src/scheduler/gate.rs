//! Decides which fingerprint the object has, and when it is withheld.
//!
//! All reasons to withhold it, also those that other modules decide on, as listed in `docs/troubleshooting.md`:
//!
//! - A: the pods are unknown (`evaluate`).
//! - B: a bound pod is not in the zones (`decide` and `pod_state`), each pod for at most `give_up_after`:
//!   - B1: for longer than `withhold_after`, or at once with `reserve`.
//!   - B2: for `MAX_EXTENSION` times `withhold_after`, some pod was always waiting, even if none for longer
//!     than `withhold_after`.
//!   - B3: the List has lacked a running pod for `MISSING_LIMIT`.
//!   - B4: its entry is that of an earlier pod with the same name (`is_predecessors`).
//!   - B5: it was deleted while Pending, and may still be admitted (so not `is_terminating`).
//! - C: while the kubelet does not respond, B lasts longer (`Reconciler::failed`, `wait_of`).
//! - D: the agent stops (`PublishTask::withhold_at_the_end`).
//! - E: the agent has started and cannot write its first object (`PublishTask::withhold_until_first_write`).

mod input;
mod placement;
mod pod_state;
mod verdict;

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use super::exclusive::is_exclusive;
use super::init_containers::has_init;
use super::{
    Fingerprint, FingerprintMethod, FingerprintView, Informer, PodFingerprint, Publishable, lists, pod_hash,
    reservation,
};
use crate::kubelet::{ContainerUsage, PodUsage, Usage};
use crate::pod::{Phase, Pod, PodName};
use crate::topology::Zone;

pub use input::{GateInput, GateSettings};
pub use verdict::{Decision, Verdict, WithholdReason};

use pod_state::{Entry, PodState};

/// The fingerprint is withheld if, for this many times [`GateSettings::withhold_after`], there was always a
/// pod to wait for, even if none of them for longer than that.
const MAX_EXTENSION: u32 = 3;

/// Keeps the published fingerprint in agreement with the plugin's.
#[derive(Clone, Debug)]
pub struct FingerprintGate {
    /// The settings.
    pub settings: GateSettings,
    /// By UID.
    pods: BTreeMap<String, PodState>,
    /// List entries by pod name, from when an entry showed everything of a pod until the pod is gone.
    entries: BTreeMap<PodName, Entry>,
    /// Whether any of `entries` belongs to a pod that is gone.
    lists_gone_pods: bool,
    /// Since when publishing has been deferred because pods are being admitted.
    deferred_since: Option<Duration>,
    /// What was available in the zones at the last evaluation; empty outside the scheduler's view.
    available: Vec<u64>,
    /// Whether this evaluation found more available than the one before.
    has_releases: bool,
}

impl FingerprintGate {
    /// Returns a gate that knows no pods yet.
    #[must_use]
    pub const fn new(settings: GateSettings) -> Self {
        Self {
            settings,
            pods: BTreeMap::new(),
            entries: BTreeMap::new(),
            lists_gone_pods: false,
            deferred_since: None,
            available: Vec::new(),
            has_releases: false,
        }
    }

    /// Decides what may be published for `input`. `pods` are the node's pods in the API server, `None` before
    /// the first sync. Without them the fingerprint is withheld in the scheduler's view; in the other views
    /// they determine only reservations, and which pods are reported as unaccounted.
    pub fn evaluate<'a>(
        &mut self,
        pods: Option<impl IntoIterator<Item = &'a Pod>>,
        input: &GateInput<'_>,
        now: Duration,
    ) -> Verdict {
        let mut verdict = Verdict::default();
        let is_scheduler_view = self.settings.view == FingerprintView::Scheduler;
        let pods: Option<Vec<&Pod>> = pods.map(|pods| pods.into_iter().collect());
        if is_scheduler_view {
            self.detect_releases(&input.topology.zones);
        }
        if let Some(pods) = &pods {
            self.update_states(pods, input, now, &mut verdict);
            self.remove_gone(pods, input.usage);
            self.add_leftovers(pods, input, &mut verdict);
        }
        if is_scheduler_view {
            verdict.decision = match pods {
                Some(_) => self.decide(&mut verdict, now),
                None => Decision::Withhold(WithholdReason::PodsUnknown),
            };
        }
        let zones = &input.topology.zones;
        let value = match (self.settings.view, verdict.decision) {
            (FingerprintView::Scheduler, Decision::Withhold(_)) => Some(Fingerprint::WITHHELD),
            (FingerprintView::Scheduler, _) => {
                Some(self.plugin_fingerprint(pods.as_deref().unwrap_or_default(), zones))
            }
            (FingerprintView::Kubelet, _) => Some(self.list_fingerprint(input.usage)),
            (FingerprintView::None, _) => None,
        };
        verdict.fingerprint = value.map(|value| PodFingerprint { value, method: self.settings.method });
        verdict.reservations = reservation::allowed(&verdict.reservations, input.exclude, zones);
        verdict
    }

    /// Combines the last evaluation of `pods` and `input` with their topology.
    pub fn publishable<'a>(
        &self,
        pods: Option<impl IntoIterator<Item = &'a Pod>>,
        input: &GateInput<'_>,
        verdict: &Verdict,
    ) -> Publishable {
        let placement = match verdict.decision {
            Decision::Publish => self.placement(pods, input),
            Decision::Wait | Decision::Withhold(_) => None,
        };
        Publishable::new(input.topology, verdict.fingerprint, &verdict.reservations, placement)
    }

    /// Returns the pods that the fingerprint covers, as of the last evaluation.
    pub fn covered_pods<'a>(
        &self,
        pods: Option<impl IntoIterator<Item = &'a Pod>>,
        input: &GateInput<'_>,
    ) -> Vec<PodName> {
        match self.settings.view {
            FingerprintView::Scheduler => {
                let pods = pods.into_iter().flatten();
                pods.filter(|pod| self.counts(pod, &input.topology.zones)).map(Pod::full_name).collect()
            }
            FingerprintView::Kubelet => self.listed(input.usage).map(PodUsage::full_name).collect(),
            FingerprintView::None => Vec::new(),
        }
    }

    /// Returns the UIDs of the pods for which the List is the truth, as of the last evaluation: neither waited for, nor
    /// missing from the List.
    pub fn settled_pods(&self) -> impl Iterator<Item = &str> {
        let is_settled = |state: &PodState| !matches!(state, PodState::Waiting(_) | PodState::Missing(_));
        self.pods.iter().filter(move |(_, state)| is_settled(state)).map(|(uid, _)| uid.as_str())
    }

    fn detect_releases(&mut self, zones: &[Zone]) {
        let amounts = zones.iter().flat_map(|zone| zone.resources.values());
        let available: Vec<u64> = amounts.map(|amounts| amounts.available).collect();
        let before = std::mem::replace(&mut self.available, available);
        self.has_releases = before.len() != self.available.len()
            || before.iter().zip(&self.available).any(|(before, now)| before < now);
    }

    /// Removes pods that are gone, and their List entries once the List no longer shows them.
    fn remove_gone(&mut self, pods: &[&Pod], usage: &Usage) {
        // Every pod in `pods` has a state by now, so any further state belongs to a pod that is gone.
        if self.pods.len() == pods.len() && !self.lists_gone_pods {
            return;
        }
        let present: HashSet<&str> = pods.iter().map(|pod| pod.uid.as_str()).collect();
        self.pods.retain(|uid, _| present.contains(uid.as_str()));
        let is_listed = |(namespace, name): &PodName| {
            usage.pods.iter().any(|entry| entry.name == *name && entry.namespace == *namespace)
        };
        self.entries.retain(|name, entry| present.contains(entry.uid.as_str()) || is_listed(name));
        self.lists_gone_pods = self.entries.values().any(|entry| !present.contains(entry.uid.as_str()));
    }

    /// Adds what regular init containers of accounted pods keep and the List does not show.
    fn add_leftovers(&self, pods: &[&Pod], input: &GateInput<'_>, verdict: &mut Verdict) {
        let unlisted = PodUsage::default();
        let is_waiting = |pod: &Pod| matches!(self.pods.get(&pod.uid), Some(PodState::Waiting(_)));
        for pod in pods.iter().filter(|pod| has_init(pod) && !pod.phase.is_terminal() && !is_waiting(pod)) {
            let named = |entry: &&PodUsage| entry.name == pod.name && entry.namespace == pod.namespace;
            let entries = input.usage.pods.iter().filter(named);
            // If two entries share the name, the pod's is the one that shows what it requests.
            let entry = entries.max_by_key(|entry| input.requirements.are_met(pod, entry));
            // A pod whose init containers alone are allocated something is not waited for, so the List may be
            // older than its admission.
            let has_only_init =
                entry.is_none() && !pod_state::is_terminating(pod) && !input.requirements.apply_to(pod);
            let entry = entry.or(has_only_init.then_some(&unlisted));
            let zones = &input.topology.zones;
            let leftover = entry.map(|entry| input.node.leftover(input.requirements, zones, pod, entry));
            verdict.reservations.extend(leftover.into_iter().flatten());
        }
    }

    /// Publishes if no pod is waited for. Otherwise publishes nothing until one has been waited for too long,
    /// then withholds the fingerprint.
    fn decide(&mut self, verdict: &mut Verdict, now: Duration) -> Decision {
        let waiting_since = self.pods.values().filter_map(PodState::waiting_since);
        let Some(oldest) = waiting_since.min() else {
            self.deferred_since = None;
            return Decision::Publish;
        };
        let deferred_since = *self.deferred_since.get_or_insert(now);
        let limit = if self.settings.reserve { Duration::ZERO } else { self.settings.withhold_after };
        let until = (oldest + limit).min(deferred_since + limit * MAX_EXTENSION);
        if now >= until {
            return Decision::Withhold(WithholdReason::UnaccountedPods);
        }
        verdict.recheck_by(until);
        Decision::Wait
    }

    fn plugin_fingerprint(&self, pods: &[&Pod], zones: &[Zone]) -> Fingerprint {
        let counted = pods.iter().filter(|pod| self.counts(pod, zones));
        Fingerprint::of(counted.map(|pod| pod_hash(&pod.namespace, &pod.name)))
    }

    /// Returns true if the plugin counts this pod, or is about to, as of the last evaluation.
    #[must_use]
    pub fn counts(&self, pod: &Pod, zones: &[Zone]) -> bool {
        let is_cached = match self.settings.informer {
            _ if pod.phase == Phase::Pending => {
                matches!(self.pods.get(&pod.uid), Some(PodState::Starting(_)))
            }
            Informer::Dedicated => true,
            Informer::Shared => pod.phase == Phase::Running,
        };
        let GateSettings { method, release, .. } = self.settings;
        let is_listed = |name: &str| lists(zones, name);
        is_cached && (method == FingerprintMethod::All || is_exclusive(pod, &is_listed, release))
    }

    fn list_fingerprint(&self, usage: &Usage) -> Fingerprint {
        Fingerprint::of(self.listed(usage).map(|pod| pod_hash(&pod.namespace, &pod.name)))
    }

    fn listed<'a>(&self, usage: &'a Usage) -> impl Iterator<Item = &'a PodUsage> + use<'a> {
        let all = self.settings.method == FingerprintMethod::All;
        usage.pods.iter().filter(move |pod| all || has_exclusive_allocations(pod))
    }
}

/// Returns true if resource-topology-exporter counts the pod with the method `with-exclusive-resources`: it
/// has CPUs, or memory or devices with NUMA affinity.
fn has_exclusive_allocations(pod: &PodUsage) -> bool {
    let is_exclusive = |container: &ContainerUsage| {
        !container.cpus.is_empty()
            || container.memory.iter().any(|block| !block.nodes.is_empty())
            || container.devices.iter().any(|group| !group.nodes.is_empty())
    };
    !pod.cpus.is_empty() || !pod.memory.is_empty() || pod.containers.iter().any(is_exclusive)
}

#[cfg(test)]
mod tests;
