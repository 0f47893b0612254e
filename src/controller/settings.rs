use std::collections::BTreeMap;
use std::time::Duration;

use super::garbage_collection::Rules;
use super::nudge::NudgePlan;
use super::scheduler_pods::SchedulerPods;
use crate::fragmentation::Shape;
use crate::nrt::Form;

/// The controller's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This replica's identity, for the Lease and in Events.
    pub identity: String,
    /// The namespace of the DaemonSets and the Lease.
    pub namespace: String,
    /// The agents' DaemonSets; without one, agents are not checked.
    pub daemon_sets: Vec<String>,
    /// The Lease for leader election; without it, every replica leads.
    pub lease: Option<String>,
    /// Delete and nudge nothing.
    pub dry_run: bool,
    /// When objects may be deleted.
    pub garbage: Rules,
    /// How long a Node may be without a Ready agent or without an object before it is reported.
    pub not_ready_after: Duration,
    /// Interval of the totals over all objects.
    pub fleet_interval: Duration,
    /// When to nudge while pods are pending because of the scheduler plugin; never if `None`.
    pub nudge: Option<NudgePlan>,
    /// The scheduler's pods. If set, objects created after they started are reported.
    pub scheduler: Option<SchedulerPods>,
    /// Whether to evict these pods then.
    pub restart_scheduler: bool,
    /// Shapes of pods, by name, whose fit is part of the totals.
    pub shapes: BTreeMap<String, Shape>,
    /// The API version in which objects are read.
    pub form: Form,
    /// Whether to post Kubernetes Events.
    pub events: bool,
}

impl Settings {
    /// Returns true if the scheduler's pods are evicted when there are objects that they do not know.
    pub(super) const fn restarts_scheduler(&self) -> bool {
        self.restart_scheduler && !self.dry_run
    }
}

/// The namespace is unknown.
#[derive(Debug, thiserror::Error)]
#[error(
    "the namespace of the agents' DaemonSets and of the Lease is not known: set POD_NAMESPACE (in a pod, from \
     metadata.namespace) or --namespace"
)]
pub struct NoNamespace;
