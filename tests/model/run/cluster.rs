//! What the API server holds: pods and each node's NodeResourceTopology.

use super::chance::{NEVER, Time};
use super::fingerprint::pod_hash;

/// A pod by its place in the run; no two have the same, as with UIDs.
pub(crate) type PodId = usize;

/// A node by its number.
pub(crate) type NodeId = usize;

/// All of them live here.
pub(crate) const NAMESPACE: &str = "load";

/// How far a pod is, in the API's words.
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

/// What kind of pod it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It runs, and ends if it has an end.
    Ordinary,
    /// Its image cannot be pulled: it is admitted, holds what it asked for and stays Pending.
    Unpullable,
    /// A file on the node describes it; the API server has a copy.
    Static,
}

/// What a pod asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// CPU in thousandths.
    pub(crate) milli: u32,
    /// Guaranteed: with whole CPUs it gets CPUs of its own.
    pub(crate) guaranteed: bool,
}

impl Request {
    /// A Guaranteed pod of so many CPUs.
    pub(crate) fn whole(cpus: u32) -> Self {
        Self { milli: cpus * 1000, guaranteed: true }
    }

    /// Nothing at all.
    pub(crate) const BEST_EFFORT: Self = Self { milli: 0, guaranteed: false };

    /// CPUs of its own that it must get.
    pub(crate) fn exclusive(self) -> u32 {
        if self.guaranteed && self.milli.is_multiple_of(1000) { self.milli / 1000 } else { 0 }
    }

    /// Does the plugin count it as a pod with exclusive resources? It looks at the specification only, and a Guaranteed
    /// pod asks for memory.
    pub(crate) fn looks_exclusive(self) -> bool {
        self.guaranteed
    }
}

/// What one watcher knows of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) bound: bool,
    pub(crate) phase: Phase,
    pub(crate) deleted: bool,
}

/// A pod: its object, and what is measured about it.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) hash: u64,
    pub(crate) request: Request,
    pub(crate) kind: Kind,
    /// Our scheduler places it. Others are bound by somebody else.
    pub(crate) ours: bool,
    /// Where it was placed.
    pub(crate) node: Option<NodeId>,
    /// Its binding waits for something: for the other pods of its gang, or for a volume.
    pub(crate) binds_late: bool,
    /// The object, as long as there is one.
    pub(crate) object: Option<Seen>,
    /// Deleting it only marks it, as long as this is set.
    pub(crate) finalizer: bool,
    /// How long its containers run.
    pub(crate) life: Time,
    /// How long they take to end once they are told to.
    pub(crate) termination: Time,
    pub(crate) created: Time,
    /// When the plugin let it pass.
    pub(crate) passed: Option<Time>,
    pub(crate) reserved: Option<Time>,
    /// When the API server had the binding.
    pub(crate) bound: Option<Time>,
    /// When the agent heard of it.
    pub(crate) heard: Option<Time>,
    /// When its status said Running.
    pub(crate) running: Option<Time>,
    /// When the object first was held for it or accounted for it.
    pub(crate) covered: Option<Time>,
    /// Pods that the plugin did not know when it let this one pass, and why, see `figures`.
    pub(crate) blind: Vec<(PodId, Option<Forgotten>)>,
    /// Why the plugin does not know this one, if it forgot it.
    pub(crate) forgotten: Option<Forgotten>,
}

/// How the plugin came to forget a pod, or not to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forgotten {
    /// The object was believed before the agent could have prevented it.
    pub(crate) excused: bool,
    /// The pod was reserved and not bound: nobody but the scheduler knew of it.
    pub(crate) unbound: bool,
}

impl Pod {
    pub(crate) fn new(name: String, request: Request, created: Time) -> Self {
        Self {
            hash: pod_hash(NAMESPACE, &name),
            name,
            request,
            kind: Kind::Ordinary,
            ours: true,
            node: None,
            binds_late: false,
            object: None,
            finalizer: false,
            life: NEVER,
            termination: 0,
            created,
            passed: None,
            reserved: None,
            bound: None,
            heard: None,
            running: None,
            covered: None,
            blind: Vec::new(),
            forgotten: None,
        }
    }
}

/// The object, as far as the plugin reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Object {
    /// Free CPUs in each zone.
    pub(crate) available: Vec<u32>,
    /// `topologyManagerPolicy` and scope are there.
    pub(crate) policy: bool,
    /// The sum in the fingerprint, if there is one.
    pub(crate) print: Option<u64>,
    /// The method is `with-exclusive-resources`.
    pub(crate) exclusive: bool,
    /// What makes a write a write where nothing else changed.
    pub(crate) counter: u64,
    /// The controller's annotation, which no exporter touches.
    pub(crate) nudges: u64,
    /// Not published: the pods whose CPUs were taken off, or reserved in every zone, ascending.
    pub(crate) accounts: Vec<PodId>,
    /// Not published: the exporter means the fingerprint never to come true.
    pub(crate) held: bool,
}
