//! The measurements.

use std::collections::{BTreeMap, BTreeSet};

use super::cluster::{Pod, PodId};
use super::time::Time;

/// Why the kubelet had to reject a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The plugin had forgotten a pod before the exporter could have prevented it.
    Window,
    /// The plugin had forgotten a pod that was reserved but not bound yet, which no exporter can know.
    Unbound,
    /// The plugin had forgotten a pod, and the exporter could have prevented it.
    Avoidable,
    /// Another scheduler placed a pod at the same time.
    Foreign,
    /// There is no plugin.
    NoPlugin,
    /// None of these: a bug in the exporter's numbers or in the model.
    Unknown,
}

/// The measurements of one run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measurements {
    pub(crate) events: u64,
    pub(crate) created: u64,
    pub(crate) cycles: u64,
    pub(crate) dirty_ticks: u64,
    pub(crate) lists: u64,
    pub(crate) writes: u64,
    pub(crate) nudges: u64,
    pub(crate) withheld_writes: u64,
    pub(crate) restarts: u64,
    /// Pods that a flush made the plugin forget although they have or will be allocated CPUs;
    /// `forgotten_avoidably`: those that the exporter could have prevented.
    pub(crate) forgotten: u64,
    pub(crate) forgotten_avoidably: u64,
    /// Rejected pods and why.
    pub(crate) rejected: Vec<(PodId, Cause)>,
    /// Times from the reservation to an object that accounts for the pod or withholds its fingerprint.
    pub(crate) windows: Vec<Time>,
    /// CPU time of containers, over all pods that have ended.
    pub(crate) busy: Time,
    /// The plugin's GETs of objects.
    pub(crate) reads: u64,
    started: BTreeMap<PodId, (u32, Time)>,
    /// How long object and plugin had different fingerprints.
    pub(crate) disagreements: Vec<Time>,
    last_release: Time,
}

impl Measurements {
    pub(crate) fn start(&mut self, id: PodId, cpus: u32, now: Time) {
        self.started.insert(id, (cpus, now));
    }

    pub(crate) fn stop(&mut self, id: PodId, at: Time) {
        if let Some((cpus, from)) = self.started.remove(&id) {
            self.busy += u64::from(cpus) * at.saturating_sub(from);
        }
    }

    pub(crate) fn release(&mut self, id: PodId, now: Time) {
        self.stop(id, now);
        self.last_release = now;
    }

    /// Adds the time of pods that still run.
    pub(crate) fn finish(&mut self, now: Time) {
        let running: Vec<PodId> = self.started.keys().copied().collect();
        running.into_iter().for_each(|id| self.stop(id, now));
    }

    /// Records whether a node's object and the plugin have the same fingerprint; `since` is when they began
    /// to differ.
    pub(crate) fn agreement(&mut self, matches: bool, since: &mut Option<Time>, now: Time) {
        match (matches, *since) {
            (false, None) => *since = Some(now),
            (true, Some(before)) => {
                self.disagreements.push(now - before);
                *since = None;
            }
            _ => {}
        }
    }

    /// Records a rejected pod; `placed` are the pods of the node.
    pub(crate) fn reject(&mut self, id: PodId, pods: &[Pod], placed: &BTreeSet<PodId>) {
        let pod = &pods[id];
        // It took the CPUs of a pod that the plugin had forgotten, or it was forgotten and lost its own.
        let unknown = pod.unknown_pods.iter().filter_map(|(_, forgotten)| *forgotten);
        let forgotten: Vec<_> = unknown.chain(pod.forgotten).collect();
        let is_foreign = |other: &PodId| {
            let other = &pods[*other];
            !other.own_scheduler && other.request.exclusive() > 0 && other.bound >= pod.passed
        };
        let cause = if forgotten.iter().any(|forgotten| !forgotten.unavoidable) {
            Cause::Avoidable
        } else if forgotten.iter().any(|forgotten| forgotten.unbound) {
            Cause::Unbound
        } else if !forgotten.is_empty() {
            Cause::Window
        } else if !pod.own_scheduler
            || pod.unknown_pods.iter().any(|(other, _)| !pods[*other].own_scheduler)
            || placed.iter().any(is_foreign)
        {
            Cause::Foreign
        } else {
            Cause::Unknown
        };
        self.rejected.push((id, cause));
    }

    pub(crate) fn rejected_for(&self, cause: Cause) -> usize {
        self.rejected.iter().filter(|(_, of)| *of == cause).count()
    }
}

/// The value of a percentile.
pub(crate) fn percentile(sorted: &[Time], percent: usize) -> Time {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last * percent + 50) / 100).copied().unwrap_or_default()
}
