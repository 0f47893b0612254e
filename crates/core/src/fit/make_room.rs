//! The smallest sets of pods whose end would let a pod fit.

use std::collections::BTreeMap;

use super::{NodeView, PodOnNode, Wish};
use crate::admission::{Cpus, NodeAmounts, TopologyPolicy};
use crate::machine::Id;

/// The most sets of pods that are tried on one node, if it is the only one.
pub const MAX_TRIES: usize = 20_000;

/// Which pods would have to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Room {
    /// Any of these sets, all of the smallest size; the preferred first: those that violate the fewest
    /// PodDisruptionBudgets, then those of the lowest priorities, then those with the fewest CPUs. Positions in the view's pods.
    Sets(Vec<Vec<usize>>),
    /// Not even the end of every pod helps that is not started again at once.
    Never,
    /// The object does not tell in which zones some pods are whose end might help.
    Unknown,
    /// More than this many pods would have to end.
    MoreThan(usize),
}

impl NodeView {
    /// Returns the smallest sets of pods whose end would let the pod fit, which it does not now.
    ///
    /// Pods with equal resources in the same zones are exchangeable, so that one of them is tried for all. At most
    /// `tries` sets are tried.
    #[must_use]
    pub fn make_room(&self, wish: &Wish, tries: usize) -> Room {
        let candidates = self.candidates(wish);
        let all: Vec<usize> = candidates.iter().flatten().copied().collect();
        let is_unknown = |pod: &PodOnNode| pod.keep.is_none() && !pod.elsewhere.is_empty();
        let never = if self.pods.iter().any(is_unknown) { Room::Unknown } else { Room::Never };
        // What is refused on an emptier node can fit on a fuller one: with `restricted`, and if the first container takes
        // the node that the second needs.
        let is_one = wish.pod.containers.len() == 1;
        let is_strict = self.state.settings.policy == TopologyPolicy::Restricted;
        if is_one && !is_strict && !self.fits_without(&all, wish) {
            return never;
        }
        let mut tried = 0;
        for size in 1..=all.len() {
            let mut found = Vec::new();
            for counts in Counts::new(&candidates, size) {
                tried += 1;
                if tried > tries {
                    return Room::MoreThan(size - 1);
                }
                let chosen = counts.iter().zip(&candidates).flat_map(|(count, group)| &group[..*count]);
                let mut set: Vec<usize> = chosen.copied().collect();
                set.sort_unstable();
                if self.fits_without(&set, wish) {
                    found.push(set);
                }
            }
            if !found.is_empty() {
                found.sort_by_cached_key(|set| self.cost(set));
                return Room::Sets(found);
            }
        }
        never
    }

    /// Returns the pods that could matter, in groups of exchangeable ones, the cheapest of each first.
    fn candidates(&self, wish: &Wish) -> Vec<Vec<usize>> {
        let insufficient = self.insufficient(wish);
        let requests = |pod: &PodOnNode| -> NodeAmounts {
            let of = |name: &String| Some((name.clone(), *pod.requests.get(name)?));
            wish.of_node.keys().filter_map(of).collect()
        };
        let lacks = |pod: &PodOnNode| {
            insufficient.iter().any(|name| pod.requests.get(name).is_some_and(|amount| *amount > 0))
        };
        let matters = |pod: &PodOnNode| pod.keep.is_none() && (pod.is_holder() || lacks(pod));
        let by_ids = self.do_ids_matter(wish);
        let mut groups: BTreeMap<(Shape, NodeAmounts, &[String]), Vec<usize>> = BTreeMap::new();
        for (at, pod) in self.pods.iter().enumerate().filter(|(_, pod)| matters(pod)) {
            groups.entry((self.shape(pod, by_ids), requests(pod), &pod.budgets)).or_default().push(at);
        }
        let mut groups: Vec<Vec<usize>> = groups.into_values().collect();
        groups.iter_mut().for_each(|group| group.sort_by_cached_key(|at| self.cost(&[*at])));
        groups
    }

    /// Returns true if it matters which CPUs of a NUMA node are free, not only how many.
    fn do_ids_matter(&self, wish: &Wish) -> bool {
        let options = self.state.cpus.as_ref().map(Cpus::options).unwrap_or_default();
        let with_cpus = wish.pod.containers.iter().filter(|container| container.cpu_milli >= 1000);
        options.full_cores_only || options.align_by_socket || with_cpus.count() > 1
    }

    /// Returns what makes pods exchangeable.
    fn shape(&self, pod: &PodOnNode, by_ids: bool) -> Shape {
        let memory = pod.memory.iter().map(|block| {
            let nodes: Vec<Id> = block.nodes.iter().collect();
            (block.resource.clone(), nodes, block.bytes)
        });
        let mut memory: Vec<(String, Vec<Id>, u64)> = memory.collect();
        memory.sort_unstable();
        let mut devices: Vec<(String, Vec<Id>)> = Vec::new();
        for (name, ids) in &pod.devices {
            let known = self.state.devices.resources().get(name);
            let nodes = |id: &String| {
                let device = known.and_then(|known| known.devices.get(id));
                device.map(|device| device.nodes.iter().collect()).unwrap_or_default()
            };
            devices.extend(ids.iter().map(|id| (name.clone(), nodes(id))));
        }
        devices.sort_unstable();
        let topology = self.state.cpus.as_ref().map(Cpus::topology).filter(|_| !by_ids);
        let cpus = match topology {
            Some(topology) => topology.count_by_node(&pod.cpus).into_iter().collect(),
            None => pod.cpus.iter().map(|id| (id, 1)).collect(),
        };
        (cpus, memory, devices)
    }

    /// Returns true if the pod fits after these pods have ended.
    pub(super) fn fits_without(&self, ended: &[usize], wish: &Wish) -> bool {
        let (mut state, mut used) = (self.state.clone(), self.used.clone());
        for pod in ended.iter().map(|at| &self.pods[*at]) {
            pod.release(&mut state);
            for (name, amount) in &pod.requests {
                let used = used.entry(name.clone()).or_default();
                *used = used.saturating_sub(*amount);
            }
        }
        let allocatable = self.allocatable.as_ref();
        let is_sufficient = |of: &NodeAmounts| super::insufficient(&wish.of_node, of, &used).is_empty();
        allocatable.is_none_or(is_sufficient) && state.admit(&wish.pod).is_ok()
    }

    /// Returns how many of these pods may not end now because of PodDisruptionBudgets.
    #[must_use]
    pub fn violated_budgets(&self, set: &[usize]) -> u64 {
        let mut ended: BTreeMap<&String, u64> = BTreeMap::new();
        let pods = set.iter().map(|at| &self.pods[*at]);
        pods.flat_map(|pod| &pod.budgets).for_each(|budget| *ended.entry(budget).or_default() += 1);
        let allowed = |budget: &String| self.budgets.get(budget).copied().unwrap_or(0);
        ended.into_iter().map(|(budget, ended)| ended.saturating_sub(allowed(budget))).sum()
    }

    pub(super) fn cost(&self, set: &[usize]) -> Cost {
        let pods = || set.iter().map(|at| &self.pods[*at]);
        let mut priorities: Vec<i32> = pods().map(|pod| pod.priority).collect();
        priorities.sort_unstable_by(|a, b| b.cmp(a));
        let cpus = pods().map(|pod| pod.cpus.len()).sum();
        let names = pods().map(|pod| (pod.namespace.clone(), pod.name.clone())).collect();
        (self.violated_budgets(set), priorities, cpus, names)
    }
}

/// CPUs, memory blocks, devices.
type Shape = (Vec<(Id, u64)>, Vec<(String, Vec<Id>, u64)>, Vec<(String, Vec<Id>)>);
/// Pods that budgets do not allow to end, priorities from the highest, CPUs, names.
pub(super) type Cost = (u64, Vec<i32>, u64, Vec<(String, String)>);

/// How many pods of each group are in a set of a given size: every possibility.
struct Counts {
    most: Vec<usize>,
    next: Option<Vec<usize>>,
}

impl Counts {
    fn new(groups: &[Vec<usize>], size: usize) -> Self {
        let most: Vec<usize> = groups.iter().map(Vec::len).collect();
        let next = fill(&most, size);
        Self { most, next }
    }
}

/// Returns the first possibility: as many as possible of the last groups.
fn fill(most: &[usize], size: usize) -> Option<Vec<usize>> {
    let mut left = size;
    let mut counts = vec![0; most.len()];
    for (count, most) in counts.iter_mut().zip(most).rev() {
        *count = left.min(*most);
        left -= *count;
    }
    (left == 0).then_some(counts)
}

impl Iterator for Counts {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        let now = self.next.take()?;
        // One more of the last group that can have one more if a later one has one less; the rest is filled again.
        self.next = (0..now.len()).rev().find_map(|at| {
            let after: usize = now[at + 1..].iter().sum();
            if after == 0 || now[at] == self.most[at] {
                return None;
            }
            let mut counts = now[..=at].to_vec();
            counts[at] += 1;
            counts.extend(fill(&self.most[at + 1..], after - 1)?);
            Some(counts)
        });
        Some(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_of_a_size_is_tried_once() {
        let groups = [vec![0, 1], vec![2], vec![3, 4, 5]];
        for size in 0..=7 {
            let sets: Vec<Vec<usize>> = Counts::new(&groups, size).collect();
            let mut expected = Vec::new();
            for a in 0..=2 {
                for b in 0..=1 {
                    expected.extend((0..=3).filter(|c| a + b + c == size).map(|c| vec![a, b, c]));
                }
            }
            assert_eq!(sets, expected, "{size}");
        }
    }
}
