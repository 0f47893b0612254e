//! Whether a pod fits on a node, why not, who has what it lacks, and what would make it fit. Pure.
//!
//! Every answer is one or more calls of the model of the kubelet's admission ([`crate::admission`]).

mod changes;
mod make_room;
mod pods;
mod shortage;

use std::collections::{BTreeMap, BTreeSet};

use crate::admission::{
    self, Guess, KubeletState, Node, NodeAmounts, Placement, PodRequest, Refusal, ZoneReader,
};
use crate::core_v1::PlacedPod;
use crate::topology::Zone;

pub use changes::Change;
pub use make_room::{MAX_TRIES, Room};
pub use pods::{Keep, PodOnNode};
pub use shortage::{Need, ZoneNeed};

/// What is known of one node.
#[derive(Clone, Debug, Default)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// The state of its kubelet's resource managers.
    pub state: Node,
    /// The published zones, if that is what the state comes from.
    pub object: Option<ObjectView>,
    /// What the Node has: `cpu` in millicores, others in whole units. `None` if the Node is not known.
    pub allocatable: Option<NodeAmounts>,
    /// What its pods request of it as a whole.
    pub used: NodeAmounts,
    /// Its pods that have not terminated, if they were added.
    pub pods: Vec<PodOnNode>,
    /// How many pods each PodDisruptionBudget allows to end now, by `namespace/name`.
    pub budgets: BTreeMap<String, u64>,
}

/// The content of a node's object.
#[derive(Clone, Debug, Default)]
pub struct ObjectView {
    /// The zones, ascending by id.
    pub zones: Vec<Zone>,
    /// The attributes.
    pub attributes: BTreeMap<String, String>,
}

/// What a pod requests of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// Of its kubelet's managers.
    pub pod: PodRequest,
    /// Of the node as a whole: the sum with the overhead of its RuntimeClass, and `pods`.
    pub of_node: NodeAmounts,
}

/// Whether a pod fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its kubelet admits it.
    Fits {
        /// What it allocates.
        placements: Vec<Placement>,
        /// Why this is a guess; empty if it is certain.
        guesses: BTreeSet<Guess>,
    },
    /// The node as a whole has too little of these resources left.
    Insufficient(Vec<String>),
    /// Its kubelet refuses it.
    Refused(Refusal),
}

impl Verdict {
    /// Returns true if the pod fits.
    #[must_use]
    pub const fn fits(&self) -> bool {
        matches!(self, Self::Fits { .. })
    }
}

impl Wish {
    /// Returns what a pod requests.
    #[must_use]
    pub fn new(pod: PodRequest, overhead: &NodeAmounts) -> Self {
        let mut of_node = sum([&pod.of_node(), overhead]);
        of_node.insert("pods".to_owned(), 1);
        Self { pod, of_node }
    }

    /// Returns what another pod requests of the node if it differs in nothing else.
    fn of_node_with(&self, pod: &PodRequest) -> NodeAmounts {
        let mut of_node = self.of_node.clone();
        for (name, amount) in self.pod.of_node() {
            of_node.entry(name).and_modify(|sum| *sum = sum.saturating_sub(amount));
        }
        sum([&of_node, &pod.of_node()])
    }
}

impl From<&PlacedPod> for Wish {
    fn from(placed: &PlacedPod) -> Self {
        Self::new(PodRequest::from(&placed.pod), &placed.overhead)
    }
}

impl NodeView {
    /// Creates a view from a node's object, its allocatable resources, the sum of its pods' requests, and the minor
    /// version of its kubelet.
    #[must_use]
    pub fn of_object(
        reader: &mut ZoneReader,
        name: String,
        object: ObjectView,
        (allocatable, used): (NodeAmounts, NodeAmounts),
        minor: u32,
    ) -> Self {
        let state = reader.node(&object.zones, &object.attributes, &allocatable, minor);
        Self { name, state, object: Some(object), allocatable: Some(allocatable), used, ..Self::default() }
    }

    /// Adds the node's pods to what its object tells.
    pub fn add_pods(&mut self, pods: &[PlacedPod]) {
        if let Some(object) = &self.object {
            self.pods = pods::of_object(&self.state, object, pods);
        }
    }

    /// Returns what a node's own sockets and files tell. `pods` are those of the API server, if it was asked.
    #[must_use]
    pub fn of_kubelet(
        name: String,
        state: &KubeletState<'_>,
        allocatable: Option<NodeAmounts>,
        pods: Option<&[PlacedPod]>,
    ) -> Self {
        let pods = pods::of_kubelet(state, pods);
        let used = sum(pods.iter().map(|pod| &pod.requests));
        Self { name, state: Node::from(state), allocatable, used, pods, ..Self::default() }
    }

    /// Returns whether the pod fits.
    #[must_use]
    pub fn fit(&self, wish: &Wish) -> Verdict {
        let insufficient = self.insufficient(wish);
        if !insufficient.is_empty() {
            return Verdict::Insufficient(insufficient);
        }
        match self.state.clone().admit(&wish.pod) {
            Ok(placements) => Verdict::Fits { placements, guesses: self.guesses(&wish.pod) },
            Err(refusal) => Verdict::Refused(refusal),
        }
    }

    /// Returns how many such pods fit one after another, up to `most`.
    #[must_use]
    pub fn copies(&self, wish: &Wish, most: u64) -> u64 {
        let mut view = self.clone();
        let mut copies = 0;
        while copies < most && view.insufficient(wish).is_empty() && view.state.admit(&wish.pod).is_ok() {
            view.used = sum([&view.used, &wish.of_node]);
            copies += 1;
        }
        copies
    }

    fn fits(&self, wish: &Wish) -> bool {
        self.insufficient(wish).is_empty() && self.state.clone().admit(&wish.pod).is_ok()
    }

    fn guesses(&self, pod: &PodRequest) -> BTreeSet<Guess> {
        match &self.object {
            Some(object) => admission::guesses(&self.state, &object.zones, &object.attributes, pod),
            None => self.state.settings.is_older.then_some(Guess::Version).into_iter().collect(),
        }
    }

    fn insufficient(&self, wish: &Wish) -> Vec<String> {
        let Some(allocatable) = &self.allocatable else { return Vec::new() };
        insufficient(&wish.of_node, allocatable, &self.used)
    }
}

/// Returns the resources of which the scheduler finds too little. Unlike the kubelet, it also rejects nodes that do not
/// have an extended resource at all (upstream: `noderesources.Fits`).
fn insufficient(requested: &NodeAmounts, allocatable: &NodeAmounts, used: &NodeAmounts) -> Vec<String> {
    let is_absent = |name: &&String| name.contains('/') && !allocatable.contains_key(*name);
    let absent = requested.keys().filter(is_absent).cloned();
    admission::insufficient(requested, allocatable, used).into_iter().chain(absent).collect()
}

/// Returns the sums of amounts.
pub fn sum<'a>(all: impl IntoIterator<Item = &'a NodeAmounts>) -> NodeAmounts {
    let mut sums = NodeAmounts::new();
    for (name, amount) in all.into_iter().flatten() {
        match sums.get_mut(name) {
            Some(sum) => *sum = sum.saturating_add(*amount),
            None => drop(sums.insert(name.clone(), *amount)),
        }
    }
    sums
}

#[cfg(test)]
mod tests;
