//! Answers `fit`: on which nodes a pod fits, and why not on the others.

mod claims;
mod filters;
mod fleet;
mod local;
mod pod_spec;
mod report;
mod workload;

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::rc::Rc;

use serde::Serialize;

use crate::admission::{Guess, NodeAmounts, NodeSet, Placement, Refusal, ZoneReader};
use crate::fit::{Change, MAX_TRIES, Need, NodeView, ObjectView, Room, Verdict};
use crate::machine::IdSet;
use crate::nrt::POLICY;
use crate::scheduler;

pub use claims::{PodClaim, read_claims};
pub use fleet::{Fleet, FleetNode, Selection, pending_pods};
pub use local::{Local, LocalError};
pub use pod_spec::PodSpec;
pub use report::{easiest, explanation, pending, summary};
pub use workload::{Workload, WorkloadError};

/// Whether a pod fits on one node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// The node.
    pub node: String,
    /// Whether it fits, or why not.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// How many of the wanted pods fit there, one after another.
    pub copies: u64,
    /// What the scheduler plugin says; `None` if it checks nothing there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin: Option<Plugin>,
    /// Why not, and what would help: [`Explanation::to_json`]. Only for a single node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explanation: Option<serde_json::Value>,
}

/// The scheduler plugin's opinion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Plugin {
    /// It accepts the node.
    Accepts,
    /// It rejects it with this message.
    #[serde(untagged)]
    Rejects(&'static str),
}

/// Whether a pod fits.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "fits", rename_all = "camelCase")]
pub enum Outcome {
    /// The kubelet admits it.
    #[serde(rename = "yes", rename_all = "camelCase")]
    Yes {
        /// Where each container lands.
        containers: Vec<Landing>,
        /// What is not known, so that it is a guess.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        guesses: Vec<String>,
    },
    /// It is a pod of the cluster that is there already: its kubelet has admitted it.
    #[serde(rename = "yes")]
    Runs,
    /// The scheduler excludes the node.
    #[serde(rename = "no")]
    Excluded {
        /// The scheduler's message.
        message: String,
    },
    /// The kubelet refuses it.
    #[serde(rename = "no", rename_all = "camelCase")]
    Refused {
        /// The reason in the pod's status.
        reason: &'static str,
        /// The message in the pod's status.
        message: String,
        /// The container; empty if it is the pod as a whole.
        container: String,
        /// The resources that block it.
        resources: Vec<String>,
    },
    /// The node has no object.
    #[serde(rename = "unknown")]
    NoObject,
}

/// Where a container lands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Landing {
    /// The container; empty for what the whole pod shares.
    pub container: String,
    /// The zones of what it gets exclusively; empty if it gets nothing.
    pub zones: IdSet,
    /// The CPUs, if the node itself was read.
    #[serde(skip_serializing_if = "IdSet::is_empty")]
    pub cpus: IdSet,
}

/// Why a pod does not fit on one node, and what would help.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The node.
    pub view: NodeView,
    /// What the refused container needs, and what each zone has.
    pub needs: Vec<Need>,
    /// Single changes that would make it fit.
    pub changes: Vec<Change>,
    /// Which pods would have to end, if that was asked.
    pub room: Option<Room>,
}

/// What is not known, for people.
const fn guess_text(guess: Guess) -> &'static str {
    match guess {
        Guess::Policies => "the kubelet's policies",
        Guess::Cpus => "which CPUs are free",
        Guess::MemoryGroups => "which NUMA nodes share memory",
        Guess::Devices => "where each device is",
        Guess::PodLevel => "whether pod-level resources are exclusive",
        Guess::Version => "what a kubelet before 1.34 does",
        Guess::TooLarge => "all of its resources",
    }
}

impl Answer {
    /// Returns true if the pod fits, perhaps as a guess.
    #[must_use]
    pub const fn fits(&self) -> bool {
        matches!(self.outcome, Outcome::Yes { .. } | Outcome::Runs)
    }

    /// Returns true if nothing is known of the node.
    #[must_use]
    pub const fn is_unknown(&self) -> bool {
        matches!(self.outcome, Outcome::NoObject)
    }

    const fn new(node: String, outcome: Outcome) -> Self {
        let copies = matches!(outcome, Outcome::Runs) as u64;
        Self { node, outcome, copies, plugin: None, explanation: None }
    }

    /// Returns the answer for a pod and a node's state.
    fn of_view(view: &NodeView, workload: &Workload) -> Self {
        if workload.node.as_ref() == Some(&view.name) {
            return Self::new(view.name.clone(), Outcome::Runs);
        }
        let outcome = match view.fit(&workload.wish) {
            Verdict::Fits { placements, guesses } => {
                let guesses = guesses.into_iter().map(|guess| guess_text(guess).to_owned());
                Outcome::yes(view, &placements, guesses.chain(workload.guesses()).collect())
            }
            Verdict::Insufficient(resources) => Outcome::insufficient(&resources),
            Verdict::Refused(refusal) => Outcome::refused(refusal),
        };
        let copies = match (&outcome, workload.replicas) {
            (Outcome::Yes { .. }, 1) => 1,
            (Outcome::Yes { .. }, most) => view.copies(&workload.wish, most.min(MAX_COPIES)),
            _ => 0,
        };
        Self { node: view.name.clone(), outcome, copies, plugin: plugin(view, workload), explanation: None }
    }
}

impl Outcome {
    fn yes(view: &NodeView, placements: &[Placement], guesses: Vec<String>) -> Self {
        let containers = placements.iter().map(|placement| Landing::of(view, placement)).collect();
        Self::Yes { containers, guesses }
    }

    /// As the scheduler says it.
    fn insufficient(resources: &[String]) -> Self {
        let sentence = |name: &String| match name.as_str() {
            "pods" => "Too many pods".to_owned(),
            name => format!("Insufficient {name}"),
        };
        Self::Excluded { message: resources.iter().map(sentence).collect::<Vec<_>>().join(", ") }
    }

    fn refused(refusal: Refusal) -> Self {
        let Refusal { reason, message, container, resources, .. } = refusal;
        Self::Refused { reason: reason.name(), message, container, resources }
    }
}

impl Landing {
    fn of(view: &NodeView, placement: &Placement) -> Self {
        let mut zones = IdSet::new();
        if let Some(cpus) = &view.state.cpus {
            zones.union_with(&cpus.topology().count_by_node(&placement.cpus).into_keys().collect());
        }
        if let Some(memory) = &placement.memory {
            let has_any = memory.bytes.values().any(|bytes| *bytes > 0);
            zones.union_with(&memory.nodes.iter().filter(|_| has_any).collect());
        }
        for (resource, choice) in &placement.devices {
            let Some(known) = view.state.devices.resources().get(resource) else { continue };
            let nodes =
                choice.chosen.iter().filter_map(|id| known.devices.get(id)).map(|device| device.nodes);
            // A device on several nodes does not tell on which the container is.
            let one = nodes.filter(|nodes| nodes.len() == 1).fold(NodeSet::default(), NodeSet::union);
            zones.union_with(&one.iter().collect());
        }
        let is_exact = view.object.is_none() && !placement.shared;
        let cpus = if is_exact { placement.cpus.clone() } else { IdSet::new() };
        Self { container: placement.container.clone(), zones, cpus }
    }
}

/// Returns what the scheduler plugin says about a node that is known from its object.
fn plugin(view: &NodeView, workload: &Workload) -> Option<Plugin> {
    let object = view.object.as_ref()?;
    if object.attributes.get(POLICY).is_none_or(|policy| policy != "single-numa-node") {
        return None;
    }
    let none = NodeAmounts::new();
    let allocatable = view.allocatable.as_ref().unwrap_or(&none);
    let message = scheduler::filter(
        &object.zones,
        &object.attributes,
        allocatable,
        &workload.wish.pod,
        &workload.overhead,
    );
    Some(message.map_or(Plugin::Accepts, Plugin::Rejects))
}

impl Explanation {
    /// Explains why the pod does not fit. `room`: whether to search for pods whose end would help.
    #[must_use]
    pub fn new(view: NodeView, workload: &Workload, room: bool) -> Self {
        let wish = &workload.wish;
        let (needs, changes) = match view.fit(wish) {
            Verdict::Refused(refusal) => (view.needs(wish, &refusal), view.changes(wish, &refusal)),
            _ => (Vec::new(), Vec::new()),
        };
        let room = room.then(|| view.make_room(wish, MAX_TRIES));
        Self { view, needs, changes, room }
    }
}

/// Returns for each workload the answers for all nodes, in their order.
#[must_use]
pub fn answers(fleet: &Fleet, workloads: &[Workload]) -> Vec<Vec<Answer>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let part = fleet.nodes.len().div_ceil(threads).max(1);
    let of_nodes: Vec<Vec<Answer>> = std::thread::scope(|scope| {
        let parts = fleet.nodes.chunks(part).map(|nodes| {
            scope.spawn(move || {
                let mut reader = ZoneReader::default();
                nodes.iter().map(|node| answers_of_node(&mut reader, node, workloads)).collect::<Vec<_>>()
            })
        });
        let parts: Vec<_> = parts.collect();
        let joined = parts.into_iter().map(|part| part.join().unwrap_or_else(|panic| resume_unwind(panic)));
        joined.flatten().collect()
    });
    let mut of_workloads: Vec<Vec<Answer>> = workloads.iter().map(|_| Vec::new()).collect();
    for answer in of_nodes {
        of_workloads.iter_mut().zip(answer).for_each(|(answers, answer)| answers.push(answer));
    }
    of_workloads
}

/// Like [`answers`], with one list for all pods that are alike: of a thousand pending pods most are replicas.
#[must_use]
pub fn shared_answers(fleet: &Fleet, workloads: &[Workload]) -> Vec<Rc<[Answer]>> {
    let mut distinct: Vec<Workload> = Vec::new();
    let mut kind = |workload: &Workload| {
        let known = distinct.iter().position(|other| other.is_like(workload));
        known.unwrap_or_else(|| {
            distinct.push(workload.clone());
            distinct.len() - 1
        })
    };
    let kinds: Vec<usize> = workloads.iter().map(&mut kind).collect();
    let answers: Vec<Rc<[Answer]>> = answers(fleet, &distinct).into_iter().map(Rc::from).collect();
    kinds.into_iter().map(|kind| Rc::clone(&answers[kind])).collect()
}

/// Returns the answer of a node for each workload. Its state is computed once, if any needs it.
fn answers_of_node(reader: &mut ZoneReader, node: &FleetNode, workloads: &[Workload]) -> Vec<Answer> {
    let name = &node.details.slim.name;
    let view = OnceCell::new();
    let mut answer = |workload: &Workload| {
        if workload.node.as_ref() == Some(name) {
            return Answer::new(name.clone(), Outcome::Runs);
        }
        if let Some(message) = workload.excluded(&node.details) {
            return Answer::new(name.clone(), Outcome::Excluded { message });
        }
        match view.get_or_init(|| node.view(reader)) {
            Some(view) => Answer::of_view(view, workload),
            None => Answer::new(name.clone(), Outcome::NoObject),
        }
    };
    workloads.iter().map(&mut answer).collect()
}

/// Returns what of the pod's specification was not considered.
#[must_use]
pub fn not_considered(workload: &Workload) -> Vec<&'static str> {
    filters::not_considered(&workload.spec)
}

impl FleetNode {
    /// Returns the node's state without its pods; `None` without an object.
    fn view(&self, reader: &mut ZoneReader) -> Option<NodeView> {
        let object = self.object.as_deref()?;
        let object = ObjectView { zones: object.zones.clone(), attributes: object.attributes.clone() };
        let amounts = (self.details.allocatable.clone(), self.used.clone());
        let minor = self.details.minor().unwrap_or(NEWEST_MINOR);
        Some(NodeView::of_object(reader, self.details.slim.name.clone(), object, amounts, minor))
    }

    /// Explains why the pod does not fit; `None` if it does, without an object, or if the scheduler excludes the node
    /// whatever its pods have.
    #[must_use]
    pub fn explain(
        &self,
        budgets: &[fleet::Budget],
        workload: &Workload,
        answer: &Answer,
        room: bool,
    ) -> Option<Explanation> {
        self.refusing(budgets, workload, answer).map(|view| Explanation::new(view, workload, room))
    }

    /// Returns the node's state with its pods, if its kubelet or what its pods have is why the pod does not fit.
    fn refusing(&self, budgets: &[fleet::Budget], workload: &Workload, answer: &Answer) -> Option<NodeView> {
        if answer.fits() || workload.excluded(&self.details).is_some() {
            return None;
        }
        let mut view = self.view(&mut ZoneReader::default())?;
        view.add_pods(&self.pods);
        fleet::add_budgets(&mut view, budgets);
        Some(view)
    }
}

/// The most copies of one pod that are tried on a node.
const MAX_COPIES: u64 = 1000;

/// The newest minor version of Kubernetes 1 that the model of admission knows.
pub const NEWEST_MINOR: u32 = 37;

/// The most nodes on which a room is searched, and the most sets of pods that are tried on each.
const MAX_ROOMS: usize = 50;
const MAX_TRIES_OF_MANY: usize = 1000;

/// Returns on which node the fewest pods would have to end, and which; nodes that the scheduler excludes for other
/// reasons are left out.
#[must_use]
pub fn easiest_room(fleet: &Fleet, workload: &Workload, answers: &[Answer]) -> Option<Explanation> {
    let nodes = fleet.nodes.iter().zip(answers);
    let views = nodes.filter_map(|(node, answer)| node.refusing(&fleet.budgets, workload, answer));
    let rooms = views.take(MAX_ROOMS).filter_map(|view| {
        let Room::Sets(sets) = view.make_room(&workload.wish, MAX_TRIES_OF_MANY) else { return None };
        let first = sets.first()?;
        Some(((first.len(), view.violated_budgets(first)), (view, sets)))
    });
    let (_, (view, sets)) = rooms.min_by_key(|(size, _)| *size)?;
    Some(Explanation { room: Some(Room::Sets(sets)), ..Explanation::new(view, workload, false) })
}

/// Names and numbers of nodes by why the pod does not fit there; the most frequent first.
pub(crate) fn reasons(answers: &[Answer]) -> Vec<(String, Vec<&str>)> {
    let mut groups: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for answer in answers.iter().filter(|answer| !answer.fits()) {
        groups.entry(report::reason(&answer.outcome)).or_default().push(&answer.node);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by(|a, b| b.1.len().cmp(&a.1.len()).then(a.0.cmp(&b.0)));
    groups
}
