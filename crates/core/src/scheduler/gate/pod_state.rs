//! How far each pod is accounted for by the List.

use std::time::Duration;

use super::{FingerprintGate, GateInput, Verdict};
use crate::kubelet::PodUsage;
use crate::pod::{ContainerKind, Phase, Pod};
use crate::scheduler::list_index::ListIndex;
use crate::scheduler::{FingerprintView, Reservation};

/// How long an admitted pod is counted before it is Running. The write that accounts for it then already has
/// the fingerprint that the plugin computes once the pod runs, which saves a write. Containers whose image is
/// on the node start within about a second. Until the pod runs, the plugin's fingerprint cannot match, so this
/// ends early if resources of the node are released.
const STARTING_LIMIT: Duration = Duration::from_secs(2);

/// How long a running pod may be missing from the List: it is assumed to be terminating, which the API server
/// is about to report.
const MISSING_LIMIT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PodState {
    /// It was allocated what it requested. From now on the List is the source of truth for it.
    Accounted,
    /// The List shows everything it requested, but it is still Pending, and the entry may be that of an
    /// earlier pod with the same name.
    Listed,
    /// Like [`PodState::Listed`], since this time, and about to run: the fingerprint counts it already.
    Starting(Duration),
    /// It was accounted, and has been missing from the List since this time: it is terminating, or the
    /// kubelet lost it.
    Missing(Duration),
    /// Not accounted yet.
    Waiting(Wait),
    /// Not accounted within the limit, and no longer waited for.
    GivenUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    /// Since when.
    since: Duration,
    /// How much of that time the kubelet responded.
    responding: Duration,
    /// When this was last evaluated, and whether the kubelet responded then.
    evaluated: (Duration, bool),
    /// The number of the latest List when the pod was first seen to have left Pending.
    ran_at_list: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) uid: String,
    /// Hash of the allocated resources it showed.
    allocations: u64,
}

impl PodState {
    pub(super) const fn waiting_since(&self) -> Option<Duration> {
        match self {
            Self::Waiting(wait) => Some(wait.since),
            Self::Accounted | Self::Listed | Self::Starting(_) | Self::Missing(_) | Self::GivenUp => None,
        }
    }

    const fn settled(pod: &Pod) -> Self {
        match pod.phase {
            Phase::Pending => Self::Listed,
            _ => Self::Accounted,
        }
    }
}

impl FingerprintGate {
    pub(super) fn update_states(
        &mut self,
        pods: &[&Pod],
        input: &GateInput<'_>,
        now: Duration,
        verdict: &mut Verdict,
    ) {
        let index = ListIndex::new(input.usage);
        for pod in pods {
            let before = self.pods.get(&pod.uid).copied();
            let entries = index.of_pod(pod);
            let state = match before {
                Some(PodState::GivenUp) => continue,
                // The common case: an accounted pod stays accounted, whatever it requests later.
                Some(PodState::Accounted) if !entries.is_empty() => continue,
                _ if needs_nothing(pod, input) => PodState::settled(pod),
                // The List shows what it still is allocated.
                Some(known) if is_terminating(pod) && !matches!(known, PodState::Waiting(_)) => {
                    PodState::Accounted
                }
                Some(PodState::Accounted) => {
                    verdict.recheck_by(now + MISSING_LIMIT);
                    PodState::Missing(now)
                }
                Some(PodState::Missing(_)) if !entries.is_empty() => PodState::Accounted,
                Some(PodState::Missing(since)) if now < since + MISSING_LIMIT => {
                    verdict.recheck_by(since + MISSING_LIMIT);
                    continue;
                }
                Some(
                    PodState::Missing(_) | PodState::Listed | PodState::Starting(_) | PodState::Waiting(_),
                )
                | None => self.inspect(pod, entries, input, now, verdict),
            };
            match self.pods.get_mut(&pod.uid) {
                Some(known) => *known = state,
                None => drop(self.pods.insert(pod.uid.clone(), state)),
            }
        }
    }

    /// Returns the state of a pod, by whether one of its List entries shows everything it requests.
    fn inspect(
        &mut self,
        pod: &Pod,
        entries: &[&PodUsage],
        input: &GateInput<'_>,
        now: Duration,
        verdict: &mut Verdict,
    ) -> PodState {
        let wait = self.wait_of(pod, input, now);
        // The List after `ran_at_list` may have been requested before the pod left Pending. The following ones
        // were not: they have the pod's own entry, and what a terminating pod is still allocated.
        let is_current = wait.ran_at_list.is_some_and(|number| input.list_number > number + 1);
        let own = entries.iter().filter(|entry| is_current || !self.is_predecessors(pod, entry));
        let own: Vec<&&PodUsage> = own.collect();
        let has_claims = input.accounts_for_claims_of(pod);
        let met = own.iter().find(|entry| has_claims && input.requirements.are_met(pod, entry));
        if let Some(entry) = met {
            let entry = Entry { uid: pod.uid.clone(), allocations: entry.allocations_hash() };
            self.entries.insert(pod.full_name(), entry);
            return self.listed_state(pod, now, verdict);
        }
        if is_terminating(pod) && is_current {
            return PodState::Accounted;
        }
        let left = self.settings.give_up_after.saturating_sub(wait.responding);
        if left.is_zero() {
            verdict.given_up.push(pod.full_name());
            return PodState::GivenUp;
        }
        verdict.unaccounted.push(pod.full_name());
        if self.settings.reserve {
            // With several entries, the pod's own cannot be identified.
            let entry = if let [entry] = own[..] { Some(*entry) } else { None };
            let amounts = input.requirements.missing(pod, entry);
            verdict.reservations.push(Reservation { pod: pod.full_name(), amounts, zones: None });
        }
        verdict.recheck_by(now + left);
        PodState::Waiting(wait)
    }

    fn listed_state(&self, pod: &Pod, now: Duration, verdict: &mut Verdict) -> PodState {
        let since = match self.pods.get(&pod.uid) {
            Some(PodState::Listed) => None,
            Some(PodState::Starting(since)) => Some(*since),
            _ => Some(now),
        };
        let is_starting = self.settings.view == FingerprintView::Scheduler
            && pod.phase == Phase::Pending
            && starts_soon(pod)
            && !self.has_releases;
        match since.filter(|since| is_starting && now < *since + STARTING_LIMIT) {
            Some(since) => {
                verdict.recheck_by(since + STARTING_LIMIT);
                PodState::Starting(since)
            }
            None => PodState::settled(pod),
        }
    }

    /// Returns true if the entry is that of an earlier pod with this name, which was force-deleted. Its CPUs
    /// may be in another zone than those of the new pod.
    fn is_predecessors(&self, pod: &Pod, entry: &PodUsage) -> bool {
        let known = self.entries.get(&pod.full_name());
        known.is_some_and(|known| known.uid != pod.uid && known.allocations == entry.allocations_hash())
    }

    fn wait_of(&self, pod: &Pod, input: &GateInput<'_>, now: Duration) -> Wait {
        let evaluated = (now, input.is_responding);
        let ran_at_list = (pod.phase != Phase::Pending).then_some(input.list_number);
        match self.pods.get(&pod.uid) {
            Some(PodState::Waiting(before)) => {
                // The kubelet counts as responsive between two evaluations if it was at both.
                let (at, did_respond) = before.evaluated;
                let is_responding = did_respond && input.is_responding;
                let more = if is_responding { now.saturating_sub(at) } else { Duration::ZERO };
                let ran_at_list = before.ran_at_list.or(ran_at_list);
                Wait { evaluated, responding: before.responding + more, ran_at_list, ..*before }
            }
            _ => Wait { since: now, responding: Duration::ZERO, evaluated, ran_at_list },
        }
    }
}

/// Returns true if the pod has terminated or is allocated nothing exclusively.
fn needs_nothing(pod: &Pod, input: &GateInput<'_>) -> bool {
    pod.phase.is_terminal() || (!input.requirements.apply_to(pod) && input.accounts_for_claims_of(pod))
}

/// Returns true if the pod was deleted after it left Pending. A pod deleted while Pending may still be
/// admitted, by a kubelet that learns of the deletion later than we do.
pub(super) fn is_terminating(pod: &Pod) -> bool {
    pod.deleted && pod.phase != Phase::Pending
}

/// Returns true if nothing known keeps the pod Pending for long after its admission.
fn starts_soon(pod: &Pod) -> bool {
    !pod.deleted && pod.containers.iter().all(|container| container.kind != ContainerKind::Init)
}
