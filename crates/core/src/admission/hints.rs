//! The hints of the resource managers and how the Topology Manager merges them (upstream:
//! `topologymanager/policy.go`, 1.34 to 1.37).

use std::collections::BTreeSet;

use super::{NodeSet, TopologyPolicy};
use crate::machine::Id;

/// Where a manager can allocate one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hint {
    /// `None`: anywhere.
    pub(super) nodes: Option<NodeSet>,
    /// Whether no smaller set of nodes could hold the request on an empty machine.
    pub(super) preferred: bool,
}

/// The hints for one resource. `None`: the manager has no preference; empty: it cannot allocate the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResourceHints {
    pub(super) resource: String,
    pub(super) hints: Option<Vec<Hint>>,
}

/// What the Topology Manager knows about the machine: its nodes and their distances.
#[derive(Clone, Debug, Default)]
pub(super) struct Merger {
    pub(super) policy: TopologyPolicy,
    pub(super) all: NodeSet,
    /// Distances by node, set with the option `prefer-closest-numa-nodes` only.
    pub(super) distances: Option<super::Distances>,
}

/// The most combinations of sets of nodes that are tried. With more, kubelets take minutes.
const MOST_COMBINATIONS: usize = 1 << 24;

impl Merger {
    /// Merges the hints of all resources into one, and returns whether the policy admits it.
    pub(super) fn merge(&self, resources: &[ResourceHints]) -> (Hint, bool) {
        let single = self.policy == TopologyPolicy::SingleNumaNode;
        let lists: Vec<Vec<Hint>> = resources.iter().map(|resource| usable(resource, single)).collect();
        let mut best = self.best(&lists);
        if single && best.nodes == Some(self.all) {
            best.nodes = None;
        }
        (best, best.preferred || self.policy == TopologyPolicy::BestEffort)
    }

    /// The resources without a preferred hint. If each has one, those whose preferred hints have nothing in
    /// common: all that name nodes.
    pub(super) fn blocking(&self, resources: &[ResourceHints]) -> Vec<String> {
        let single = self.policy == TopologyPolicy::SingleNumaNode;
        let is_blocked =
            |resource: &&ResourceHints| !usable(resource, single).iter().any(|hint| hint.preferred);
        let blocked: Vec<&ResourceHints> = resources.iter().filter(is_blocked).collect();
        let named = resources.iter().filter(|resource| resource.hints.is_some());
        let blocking = if blocked.is_empty() { named.collect() } else { blocked };
        blocking.into_iter().map(|resource| resource.resource.clone()).collect()
    }

    /// The best combination of one hint per list: its nodes are those that all of its hints share.
    fn best(&self, lists: &[Vec<Hint>]) -> Hint {
        let failed = Hint { nodes: Some(self.all), preferred: false };
        if lists.iter().any(Vec::is_empty) {
            return failed;
        }
        let preferred = self.preferred(lists).into_iter().min_by(|a, b| self.compare(*a, *b));
        if let Some(nodes) = preferred {
            return Hint { nodes: Some(nodes), preferred: true };
        }
        // Any other policy refuses the pod, wherever it would be.
        if self.policy != TopologyPolicy::BestEffort {
            return failed;
        }
        let most = lists.iter().filter_map(|list| narrowest(list)).max().unwrap_or(0);
        let order = |a: &NodeSet, b: &NodeSet| rank(*a, most).cmp(&rank(*b, most)).then(self.compare(*a, *b));
        match self.shared(lists).into_iter().min_by(order) {
            Some(nodes) => Hint { nodes: Some(nodes), preferred: false },
            None => failed,
        }
    }

    /// A combination is preferred if all its hints are, and if those that name nodes name the same ones.
    fn preferred(&self, lists: &[Vec<Hint>]) -> BTreeSet<NodeSet> {
        let mut common: Option<BTreeSet<NodeSet>> = None;
        for list in lists {
            let preferred = list.iter().filter(|hint| hint.preferred);
            let sets: BTreeSet<NodeSet> = preferred.clone().filter_map(|hint| hint.nodes).collect();
            if preferred.count() == 0 {
                return BTreeSet::new();
            }
            if sets.is_empty() {
                continue;
            }
            common = Some(match common {
                Some(before) => before.intersection(&sets).copied().collect(),
                None => sets,
            });
        }
        common.unwrap_or_else(|| BTreeSet::from([self.all]))
    }

    /// The nodes that any combination of hints shares, without empty sets.
    fn shared(&self, lists: &[Vec<Hint>]) -> BTreeSet<NodeSet> {
        let mut shared = BTreeSet::from([self.all]);
        for list in lists {
            let nodes = list.iter().map(|hint| hint.nodes.unwrap_or(NodeSet::ALL));
            let nodes: BTreeSet<NodeSet> = nodes.collect();
            if shared.len().saturating_mul(nodes.len()) > MOST_COMBINATIONS {
                break;
            }
            let mut both = BTreeSet::new();
            for set in &shared {
                both.extend(nodes.iter().map(|other| set.intersection(*other)));
            }
            shared = both;
        }
        shared.remove(&NodeSet::default());
        shared
    }

    fn compare(&self, a: NodeSet, b: NodeSet) -> std::cmp::Ordering {
        let distance = |set: NodeSet| self.distances.as_ref().map_or(0, |distances| distances.within(set));
        a.len()
            .cmp(&b.len())
            .then_with(|| distance(a).cmp(&distance(b)))
            .then(a.narrowness().cmp(&b.narrowness()))
    }
}

/// Without a preferred combination the kubelet wants as many nodes as the resource that needs most: exactly
/// those, else fewer, else more.
fn rank(nodes: NodeSet, most: u32) -> (u8, u32) {
    match nodes.len().cmp(&most) {
        std::cmp::Ordering::Equal => (0, 0),
        std::cmp::Ordering::Less => (1, most - nodes.len()),
        std::cmp::Ordering::Greater => (2, 0),
    }
}

fn narrowest(list: &[Hint]) -> Option<u32> {
    list.iter().filter_map(|hint| hint.nodes).map(NodeSet::len).min()
}

fn usable(resource: &ResourceHints, single: bool) -> Vec<Hint> {
    let anywhere = |preferred| vec![Hint { nodes: None, preferred }];
    let mut hints = match &resource.hints {
        None => anywhere(true),
        Some(hints) if hints.is_empty() => anywhere(false),
        Some(hints) => hints.clone(),
    };
    if single {
        hints.retain(|hint| hint.preferred && hint.nodes.is_none_or(|nodes| nodes.len() == 1));
    }
    hints
}

/// The smallest preferred hints: how the managers mark hints that no smaller set of nodes could replace.
pub(super) fn mark_preferred(sets: Vec<NodeSet>, smallest: u32) -> Vec<Hint> {
    sets.into_iter().map(|nodes| Hint { nodes: Some(nodes), preferred: nodes.len() == smallest }).collect()
}

/// SLIT distances between nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distances(std::collections::BTreeMap<(Id, Id), u32>);

impl Distances {
    /// The sum over all pairs of the set. Sets of the same size are compared by it as by the average.
    fn within(&self, set: NodeSet) -> u64 {
        let pairs = set.iter().flat_map(|from| set.iter().map(move |to| (from, to)));
        pairs.map(|pair| u64::from(self.0.get(&pair).copied().unwrap_or(0))).sum()
    }
}

impl FromIterator<((Id, Id), u32)> for Distances {
    fn from_iter<I: IntoIterator<Item = ((Id, Id), u32)>>(pairs: I) -> Self {
        Self(pairs.into_iter().collect())
    }
}
