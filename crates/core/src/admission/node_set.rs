//! Sets of NUMA nodes as the Topology Manager compares them.

use crate::machine::{Id, IdSet};

/// The most nodes of which every subset is considered; of more, only single nodes and pairs. The kubelet tries all
/// of them, and practically never ends with 30.
pub(super) const MOST_FOR_ALL_SUBSETS: u32 = 16;

/// A set of NUMA nodes with ids below 64, as in the kubelet (`topologymanager/bitmask`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeSet(u64);

impl NodeSet {
    /// Every id.
    pub(super) const ALL: Self = Self(u64::MAX);

    /// A set of one node. Empty if the id is above 63.
    #[must_use]
    pub const fn one(id: Id) -> Self {
        Self(if id < 64 { 1 << id } else { 0 })
    }

    /// Returns true if the node is in the set.
    #[must_use]
    pub const fn contains(self, id: Id) -> bool {
        id < 64 && self.0 & (1 << id) != 0
    }

    /// Returns true if the sets share a node.
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the nodes in both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the nodes in either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if every node of this set is in `other`.
    #[must_use]
    pub const fn is_subset(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// Returns true if the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the number of nodes.
    #[must_use]
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Iterates over the ids in ascending order.
    pub fn iter(self) -> impl Iterator<Item = Id> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let lowest = (left != 0).then(|| left.trailing_zeros())?;
            left &= left - 1;
            Id::try_from(lowest).ok()
        })
    }

    /// The order in which the kubelet prefers sets: fewer nodes first, then lower ids.
    #[must_use]
    pub(super) const fn narrowness(self) -> (u32, u64) {
        (self.len(), self.0)
    }

    /// Iterates over the non-empty subsets of at most `most` nodes, those with fewer nodes first. Of a large set
    /// these are only single nodes and pairs.
    pub(super) fn subsets(self, most: u32) -> impl Iterator<Item = Self> {
        let most = if self.len() > MOST_FOR_ALL_SUBSETS { most.min(2) } else { most };
        (1..=self.len().min(most)).flat_map(move |size| self.subsets_of_size(size))
    }

    /// Iterates over the subsets of exactly `size` nodes.
    pub(super) fn subsets_of_size(self, size: u32) -> impl Iterator<Item = Self> {
        let ids: Vec<Id> = self.iter().collect();
        let mut combinations = Combinations::new(ids.len(), size as usize);
        std::iter::from_fn(move || Some(combinations.next()?.iter().map(|at| ids[*at]).collect()))
    }
}

/// Every way to choose `size` of the numbers `0..count`, in lexicographic order. Nothing if `size` is 0.
#[derive(Debug)]
pub(super) struct Combinations {
    at: Vec<usize>,
    count: usize,
    started: bool,
}

impl Combinations {
    pub(super) fn new(count: usize, size: usize) -> Self {
        Self { at: (0..size).collect(), count, started: false }
    }

    /// Returns the next combination.
    pub(super) fn next(&mut self) -> Option<&[usize]> {
        let size = self.at.len();
        if self.started {
            let last = self.count - size;
            let advanced = (0..size).rev().find(|position| self.at[*position] < last + position)?;
            let start = self.at[advanced] + 1;
            (advanced..size).for_each(|position| self.at[position] = start + position - advanced);
        }
        self.started = true;
        (0 < size && size <= self.count).then_some(&self.at)
    }
}

/// An amount for each node.
#[derive(Clone, Debug)]
pub(super) struct PerNode([u64; 64]);

impl PerNode {
    /// Returns the sum over the nodes of a set, saturating.
    pub(super) fn sum(&self, set: NodeSet) -> u64 {
        set.iter().map(|id| self.0[usize::from(id)]).fold(0, u64::saturating_add)
    }
}

/// Ids above 63 are left out.
impl FromIterator<(Id, u64)> for PerNode {
    fn from_iter<I: IntoIterator<Item = (Id, u64)>>(amounts: I) -> Self {
        let mut all = [0; 64];
        for (id, amount) in amounts {
            if let Some(of_node) = all.get_mut(usize::from(id)) {
                *of_node = amount;
            }
        }
        Self(all)
    }
}

impl From<&IdSet> for NodeSet {
    fn from(ids: &IdSet) -> Self {
        Self(ids.low_mask())
    }
}

impl FromIterator<Id> for NodeSet {
    fn from_iter<I: IntoIterator<Item = Id>>(ids: I) -> Self {
        ids.into_iter().fold(Self::default(), |set, id| set.union(Self::one(id)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsets_come_by_size() {
        let set: NodeSet = [0, 3, 5].into_iter().collect();
        let ids = |set: NodeSet| set.iter().collect::<Vec<_>>();
        let all: Vec<Vec<Id>> = set.subsets(3).map(ids).collect();
        let expected: [&[Id]; 7] = [&[0], &[3], &[5], &[0, 3], &[0, 5], &[3, 5], &[0, 3, 5]];
        assert_eq!(all, expected);
        assert_eq!(set.subsets(1).count(), 3);
        assert_eq!(NodeSet::default().subsets(9).count(), 0);
        assert_eq!(NodeSet::ALL.subsets(1).count(), 64);
    }
}
