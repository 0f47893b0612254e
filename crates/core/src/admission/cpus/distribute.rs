//! Spreads CPUs evenly over nodes (upstream: `cpumanager/cpu_assignment.go`, `takeByTopologyNUMADistributed`).

use std::collections::{BTreeMap, BTreeSet};

use super::super::node_set::{Combinations, MOST_FOR_ALL_SUBSETS};
use super::CpuOptions;
use super::take::{Order, Taking, check_enough, packed};
use super::topology::{CpuTopology, Level};
use crate::machine::{Id, IdSet};

/// Takes CPUs in groups of `group` from as few nodes as possible, equally many from each.
pub(super) fn take(
    topology: &CpuTopology,
    available: &IdSet,
    count: u64,
    group: u64,
    options: CpuOptions,
) -> Result<IdSet, String> {
    let order = Order { spread: options.distribute_across_cores, shared_cache: false };
    if !count.is_multiple_of(group) {
        return packed(topology, available, count, order);
    }
    let mut taking = Taking::new(topology, available, count, order.spread);
    if taking.is_done() {
        return Ok(taking.taken);
    }
    check_enough(available, count)?;
    let nodes = taking.nodes();
    if nodes.len() > MOST_FOR_ALL_SUBSETS as usize {
        return Err(format!("combinations of {} nodes are not tried", nodes.len()));
    }
    let by_socket = options.align_by_socket && options.distribute_by_socket;
    let search = Search { topology, free: free_by_node(&taking, &nodes), nodes, count, group, by_socket };
    for size in search.sizes() {
        let Some(choice) = search.best(size) else { continue };
        choice.take(&mut taking, &search, order, options.distribute_by_socket);
        return match taking.needed {
            0 => Ok(taking.taken),
            1.. => Err(format!("accounting error, not enough CPUs allocated, remaining: {}", taking.needed)),
            _ => Err(format!("accounting error, too many CPUs allocated, remaining: {}", taking.needed)),
        };
    }
    packed(topology, available, count, order)
}

fn free_by_node(taking: &Taking<'_>, nodes: &[Id]) -> BTreeMap<Id, u64> {
    nodes.iter().map(|node| (*node, taking.count_in(Level::Node, *node))).collect()
}

struct Search<'a> {
    topology: &'a CpuTopology,
    /// The nodes with free CPUs, in the order in which combinations are tried.
    nodes: Vec<Id>,
    /// The number of free CPUs of each node.
    free: BTreeMap<Id, u64>,
    /// The number of CPUs to take.
    count: u64,
    /// CPUs are taken in groups of this size: 1, or the threads of a core.
    group: u64,
    /// Whether combinations within one socket are preferred.
    by_socket: bool,
}

/// The nodes to take from, and those of them that give the remainder.
#[derive(Clone, Debug)]
struct Choice {
    nodes: Vec<Id>,
    remainder: Vec<Id>,
    /// How unequal the numbers of free CPUs are afterwards; the lower, the better.
    balance: f64,
    /// Whether the nodes are within one socket. Only set if that is preferred.
    one_socket: bool,
}

impl Search<'_> {
    /// The numbers of nodes to try.
    fn sizes(&self) -> std::ops::RangeInclusive<usize> {
        let nodes = u64::from(self.topology.nodes().len()).max(1);
        let groups = self.topology.all().len().div_ceil(self.group);
        let needed = self.count.div_ceil(self.group);
        let least = needed.div_ceil(groups.div_ceil(nodes).max(1));
        let most = needed.min(self.nodes.len() as u64);
        usize::try_from(least).unwrap_or(usize::MAX)..=usize::try_from(most).unwrap_or(0)
    }

    /// The best combination of `size` nodes: the one that leaves the numbers of free CPUs most equal.
    fn best(&self, size: usize) -> Option<Choice> {
        let mut best: Option<Choice> = None;
        let mut combinations = Combinations::new(self.nodes.len(), size);
        while let Some(positions) = combinations.next() {
            let nodes: Vec<Id> = positions.iter().map(|at| self.nodes[*at]).collect();
            if let Some(best) = &mut best {
                overwrite_tail(&mut best.nodes, &nodes);
                if best.balance == 0.0 && (!self.by_socket || best.one_socket) {
                    break;
                }
            }
            let Some(choice) = self.evaluate(nodes) else { continue };
            let (balance, one_socket) =
                best.as_ref().map_or((f64::MAX, false), |best| (best.balance, best.one_socket));
            let is_better = match self.by_socket && choice.one_socket != one_socket {
                true => choice.one_socket,
                false => choice.balance < balance,
            };
            if is_better {
                best = Some(choice);
            }
        }
        best
    }

    fn evaluate(&self, nodes: Vec<Id>) -> Option<Choice> {
        let free = |node: &Id| self.free.get(node).copied().unwrap_or(0);
        let in_groups = |node: &Id| free(node) / self.group * self.group;
        // A node that is on two sockets is listed twice.
        let distinct: BTreeSet<&Id> = nodes.iter().collect();
        if distinct.into_iter().map(free).sum::<u64>() < self.count
            || nodes.iter().map(in_groups).sum::<u64>() < self.count
        {
            return None;
        }
        let mut each = self.each(&nodes);
        if self.by_socket {
            each = nodes.iter().map(in_groups).fold(each, u64::min);
        }
        if nodes.iter().any(|node| free(node) < each) {
            return None;
        }
        let mut left = self.free.clone();
        nodes.iter().for_each(|node| {
            let left = left.entry(*node).or_default();
            *left = left.saturating_sub(each);
        });
        let (balance, remainder) = self.balance(&nodes, &left, self.count - each * nodes.len() as u64);
        let one_socket =
            self.by_socket && self.topology.sockets_of(nodes.iter().copied().collect()).len() <= 1;
        Some(Choice { nodes, remainder, balance, one_socket })
    }

    /// The CPUs that each node gives, without the remainder.
    fn each(&self, nodes: &[Id]) -> u64 {
        self.count / nodes.len() as u64 / self.group * self.group
    }

    /// Which nodes should give the remainder, and how unequal the numbers of free CPUs are then.
    fn balance(&self, nodes: &[Id], left: &BTreeMap<Id, u64>, remainder: u64) -> (f64, Vec<Id>) {
        if remainder == 0 {
            return (deviation(left), Vec::new());
        }
        let able: Vec<Id> = nodes.iter().copied().filter(|node| left[node] >= self.group).collect();
        let mut best: (f64, Vec<Id>) = (f64::MAX, Vec::new());
        for size in (1..=able.len()).rev() {
            let mut best_of_size = false;
            let mut combinations = Combinations::new(able.len(), size);
            while let Some(positions) = combinations.next() {
                let subset: Vec<Id> = positions.iter().map(|at| able[*at]).collect();
                if best_of_size {
                    overwrite_tail(&mut best.1, &subset);
                }
                let Some(after) = self.without_remainder(left, &subset, remainder) else { continue };
                let balance = deviation(&after);
                if balance < best.0 {
                    best = (balance, subset);
                    best_of_size = true;
                }
            }
        }
        best
    }

    fn without_remainder(
        &self,
        left: &BTreeMap<Id, u64>,
        subset: &[Id],
        remainder: u64,
    ) -> Option<BTreeMap<Id, u64>> {
        let (mut left, mut remainder) = (left.clone(), remainder);
        if subset.iter().map(|node| left[node]).sum::<u64>() < remainder {
            return None;
        }
        while remainder > 0 {
            let before = remainder;
            for node in subset {
                let free = left.entry(*node).or_default();
                if remainder > 0 && *free >= self.group {
                    *free -= self.group;
                    remainder -= self.group.min(remainder);
                }
            }
            // The kubelet would never end here; it does not happen, since the sum is a multiple of the group.
            if remainder == before {
                return None;
            }
        }
        Some(left)
    }
}

impl Choice {
    fn take(&self, taking: &mut Taking<'_>, search: &Search<'_>, order: Order, bounded: bool) {
        let mut each = search.each(&self.nodes);
        if bounded {
            let most = |node: &Id| search.free.get(node).copied().unwrap_or(0) / search.group * search.group;
            each = self.nodes.iter().map(most).fold(each, u64::min);
        }
        let mut remainder = search.count.saturating_sub(each * self.nodes.len() as u64);
        for node in &self.nodes {
            self.take_from(taking, search, *node, each, order);
        }
        while remainder > 0 {
            let before = remainder;
            for node in &self.remainder {
                if remainder > 0 && taking.count_in(Level::Node, *node) >= search.group {
                    self.take_from(taking, search, *node, search.group, order);
                    remainder -= search.group.min(remainder);
                }
            }
            if remainder == before {
                return;
            }
        }
    }

    fn take_from(&self, taking: &mut Taking<'_>, search: &Search<'_>, node: Id, count: u64, order: Order) {
        let free = taking.free_in(Level::Node, node);
        // If there are too few, the kubelet takes none and finds the total wrong afterwards.
        let cpus = packed(search.topology, &free, count, Order { shared_cache: false, ..order });
        taking.take(&cpus.unwrap_or_default());
    }
}

/// Imitates a defect of the kubelet: it keeps the best combination in memory that it shares with the next ones.
/// A combination of 4, or of 6 to 8 nodes shares its last elements with every later one that begins with the
/// same nodes (Go's `append` within the capacity of a slice, which doubles).
fn overwrite_tail(best: &mut [Id], now: &[Id]) {
    let own = (best.len() - 1).checked_ilog2().map_or(best.len(), |bits| (1 << bits) + 1);
    if best.len() == now.len() && best[..own] == now[..own] {
        best[own..].copy_from_slice(&now[own..]);
    }
}

/// The standard deviation, rounded to three decimals as in the kubelet.
#[expect(clippy::cast_precision_loss, reason = "numbers of CPUs")]
fn deviation(values: &BTreeMap<Id, u64>) -> f64 {
    let rounded = |value: f64| (value * 1000.0).round() / 1000.0;
    let count = values.len() as f64;
    let mean = rounded(values.values().map(|value| *value as f64).sum::<f64>() / count);
    let squares: f64 = values.values().map(|value| (*value as f64 - mean).powi(2)).sum();
    rounded((squares / count).sqrt())
}
