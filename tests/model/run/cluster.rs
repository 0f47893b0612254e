//! The content of the API server: pods and each node's NodeResourceTopology.

use super::fingerprint::pod_hash;
use super::time::{NEVER, Time};

/// A pod's index in the run, unique like a UID.
pub(crate) type PodId = usize;

/// A node's index.
pub(crate) type NodeId = usize;

/// The namespace of all pods.
pub(crate) const NAMESPACE: &str = "load";

/// The phase of a pod in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

impl Phase {
    pub(crate) fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// The kind of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Runs, and completes if its run time is limited.
    Ordinary,
    /// Its image cannot be pulled: it is admitted, keeps its resources and stays Pending.
    Unpullable,
    /// Described by a file on the node; the API server has a mirror pod.
    Static,
}

/// The resource request of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Millicores.
    pub(crate) milli: u32,
    /// QoS class Guaranteed: whole CPUs are exclusive.
    pub(crate) guaranteed: bool,
}

impl Request {
    /// A Guaranteed request of whole CPUs.
    pub(crate) fn whole(cpus: u32) -> Self {
        Self { milli: cpus * 1000, guaranteed: true }
    }

    /// No request.
    pub(crate) const BEST_EFFORT: Self = Self { milli: 0, guaranteed: false };

    /// Number of exclusive CPUs.
    pub(crate) fn exclusive(self) -> u32 {
        if self.guaranteed && self.milli.is_multiple_of(1000) { self.milli / 1000 } else { 0 }
    }

    /// Returns true if the plugin counts it as a pod with exclusive resources. It looks at the specification
    /// only, and a Guaranteed pod requests memory.
    pub(crate) fn looks_exclusive(self) -> bool {
        self.guaranteed
    }
}

/// The state of a pod, as a watcher receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PodState {
    pub(crate) bound: bool,
    pub(crate) phase: Phase,
    pub(crate) deleted: bool,
}

/// A pod: its object and its measurements.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) hash: u64,
    pub(crate) request: Request,
    pub(crate) kind: Kind,
    /// Whether the scheduler of the simulation places it, not another one.
    pub(crate) own_scheduler: bool,
    /// The node on which it was placed.
    pub(crate) node: Option<NodeId>,
    /// Whether its binding waits for something: for the other pods of its gang, or for a volume.
    pub(crate) binds_late: bool,
    /// The object, while it exists.
    pub(crate) object: Option<PodState>,
    /// While this is set, deleting the pod only marks it.
    pub(crate) finalizer: bool,
    /// How long its containers run.
    pub(crate) run_time: Time,
    /// How long they take to terminate after the signal.
    pub(crate) termination: Time,
    pub(crate) created: Time,
    /// When the plugin let it pass.
    pub(crate) passed: Option<Time>,
    pub(crate) reserved: Option<Time>,
    /// When the API server received the binding.
    pub(crate) bound: Option<Time>,
    /// When the agent received it.
    pub(crate) received_at: Option<Time>,
    /// When its status became Running.
    pub(crate) running: Option<Time>,
    /// When the object first accounted for it, or its fingerprint was withheld for it.
    pub(crate) accounted_at: Option<Time>,
    /// Pods that the plugin did not know when it let this one pass, and why.
    pub(crate) unknown_pods: Vec<(PodId, Option<Forgotten>)>,
    /// Why the plugin does not know this one, if it forgot it.
    pub(crate) forgotten: Option<Forgotten>,
}

/// How the plugin came to forget a pod or not to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forgotten {
    /// Whether the object was accepted before the agent could have prevented it.
    pub(crate) unavoidable: bool,
    /// Whether the pod was reserved but not bound: only the scheduler knew of it.
    pub(crate) unbound: bool,
}

impl Pod {
    pub(crate) fn new(name: String, request: Request, created: Time) -> Self {
        Self {
            hash: pod_hash(NAMESPACE, &name),
            name,
            request,
            kind: Kind::Ordinary,
            own_scheduler: true,
            node: None,
            binds_late: false,
            object: None,
            finalizer: false,
            run_time: NEVER,
            termination: 0,
            created,
            passed: None,
            reserved: None,
            bound: None,
            received_at: None,
            running: None,
            accounted_at: None,
            unknown_pods: Vec::new(),
            forgotten: None,
        }
    }
}

/// The object, as far as the plugin reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Object {
    /// Free CPUs in each zone.
    pub(crate) available: Vec<u32>,
    /// Whether `topologyManagerPolicy` and scope are present.
    pub(crate) policy: bool,
    /// The fingerprint, if there is one.
    pub(crate) fingerprint: Option<u64>,
    /// Whether the method is `with-exclusive-resources`.
    pub(crate) exclusive: bool,
    /// Makes a write a change even if nothing else changed.
    pub(crate) counter: u64,
    /// The controller's annotation, which exporters do not change.
    pub(crate) nudges: u64,
    /// Not published: the pods whose CPUs were deducted, or reserved in every zone, in ascending order.
    pub(crate) accounts: Vec<PodId>,
    /// Not published: whether the exporter intends the fingerprint never to match.
    pub(crate) withheld: bool,
}
