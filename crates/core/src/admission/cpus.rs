//! The static CPU Manager (upstream: `cpumanager/policy_static.go`, 1.34 to 1.37).

mod distribute;
mod take;
mod topology;

use std::sync::Arc;

use super::hints::{Hint, mark_preferred};
use super::node_set::PerNode;
use super::{NodeSet, Refusal};
use crate::machine::IdSet;

pub use topology::CpuTopology;

/// The options of the CPU Manager's policy `static`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the kubelet has a flag for each")]
pub struct CpuOptions {
    /// `full-pcpus-only`: only whole cores, and only to containers that request a multiple of their threads.
    pub full_cores_only: bool,
    /// `distribute-cpus-across-numa`: an allocation that needs several nodes is spread evenly over them.
    pub distribute_across_nodes: bool,
    /// `align-by-socket`: nodes of one socket count as aligned.
    pub align_by_socket: bool,
    /// `distribute-cpus-across-cores`: threads are taken from different cores.
    pub distribute_across_cores: bool,
    /// `strict-cpu-reservation`: reserved CPUs are not in the shared pool either. Without effect on admission.
    pub strict_reservation: bool,
    /// `prefer-align-cpus-by-uncorecache`: CPUs of one L3 cache are preferred.
    pub prefer_shared_cache: bool,
    /// Since 1.37 `distribute-cpus-across-numa` respects `align-by-socket`.
    pub distribute_by_socket: bool,
}

/// The static CPU Manager's state.
#[derive(Clone, Debug, Default)]
pub struct Cpus {
    /// Shared by the nodes of one kind of machine.
    topology: Arc<CpuTopology>,
    options: CpuOptions,
    /// Never allocated.
    reserved: IdSet,
    /// The reserved CPUs and the other threads of their cores.
    reserved_cores: IdSet,
    /// Not allocated to any container.
    unallocated: IdSet,
}

impl Cpus {
    /// Creates the state of a kubelet that has allocated nothing.
    #[must_use]
    pub fn new(topology: impl Into<Arc<CpuTopology>>, reserved: IdSet, options: CpuOptions) -> Self {
        let topology = topology.into();
        let reserved_cores = topology.whole_cores(&reserved);
        let unallocated = topology.all().clone();
        Self { topology, options, reserved, reserved_cores, unallocated }
    }

    /// Returns the CPUs that a kubelet reserves if its configuration only says how many.
    #[must_use]
    pub fn reserved_by_count(topology: &CpuTopology, count: u64, options: CpuOptions) -> IdSet {
        let all = topology.all().clone();
        let cpus = Self { options, ..Self::new(topology.clone(), IdSet::new(), options) };
        cpus.take(&all, count).unwrap_or_default()
    }

    /// Marks CPUs as allocated.
    pub fn allocate(&mut self, cpus: &IdSet) {
        self.unallocated = self.unallocated.difference(cpus);
    }

    /// Marks CPUs as not allocated.
    pub fn release(&mut self, cpus: &IdSet) {
        self.unallocated.union_with(&cpus.intersection(self.topology.all()));
    }

    /// Returns the CPUs that can be allocated now.
    #[must_use]
    pub fn available(&self) -> IdSet {
        self.unallocated.difference(&self.reserved)
    }

    /// Returns the CPUs that can be allocated when nothing is.
    #[must_use]
    pub fn allocatable(&self) -> IdSet {
        self.topology.all().difference(&self.reserved)
    }

    /// Returns the CPUs that containers have.
    #[must_use]
    pub fn allocated(&self) -> IdSet {
        self.topology.all().difference(&self.unallocated)
    }

    /// Returns the machine's CPUs.
    #[must_use]
    pub fn topology(&self) -> &CpuTopology {
        &self.topology
    }

    /// Returns the options.
    #[must_use]
    pub const fn options(&self) -> CpuOptions {
        self.options
    }

    /// Returns where this many CPUs are available. `reusable` are CPUs of the pod's init containers, which
    /// must all be on the nodes of a hint. Hints of more than `most` nodes are left out.
    pub(super) fn hints(&self, count: u64, reusable: &IdSet, most: u32) -> Vec<Hint> {
        let nodes = self.topology.nodes();
        let (total, available) =
            (self.topology.count(self.topology.all()), self.topology.count(&self.available()));
        let reused = self.topology.count_by_node(reusable);
        let reused_nodes: NodeSet = reused.keys().copied().collect();
        let reused: PerNode = reused.into_iter().collect();
        let mut smallest = nodes.len();
        let mut sets = Vec::new();
        for set in nodes.subsets(most) {
            if total.sum(set) >= count {
                smallest = smallest.min(set.len());
            }
            if reused_nodes.is_subset(set) && available.sum(set) + reused.sum(set) >= count {
                sets.push(set);
            }
        }
        let mut hints = mark_preferred(sets, smallest);
        if self.options.align_by_socket {
            for hint in &mut hints {
                hint.preferred |= hint.nodes.is_some_and(|nodes| self.is_on_few_sockets(nodes, smallest));
            }
        }
        hints
    }

    /// Returns true if the nodes are on no more sockets than `smallest` nodes need.
    fn is_on_few_sockets(&self, nodes: NodeSet, smallest: u32) -> bool {
        let per_socket = u64::from(self.topology.nodes().len()) / self.topology.sockets().max(1);
        per_socket > 0 && self.topology.sockets_of(nodes).len() == u64::from(smallest).div_ceil(per_socket)
    }

    /// Chooses CPUs and marks them as allocated, preferably on these nodes. CPUs in `reusable` can be chosen
    /// too.
    pub(super) fn choose(
        &mut self,
        count: u64,
        nodes: Option<NodeSet>,
        reusable: &IdSet,
    ) -> Result<IdSet, Refusal> {
        let mut allocatable = self.available();
        allocatable.union_with(reusable);
        let mut chosen = IdSet::new();
        if let Some(nodes) = nodes {
            let aligned = allocatable.intersection(&self.aligned(nodes));
            chosen = self.take(&aligned, count.min(aligned.len()))?;
        }
        let rest = self.take(&allocatable.difference(&chosen), count - chosen.len())?;
        chosen.union_with(&rest);
        self.allocate(&chosen);
        Ok(chosen)
    }

    /// Refuses a request that the option `full-pcpus-only` does not allow.
    pub(super) fn check_full_cores(&self, count: u64) -> Result<(), Refusal> {
        let threads = self.topology.threads_per_core();
        if !self.options.full_cores_only || threads == 0 {
            return Ok(());
        }
        if !count.is_multiple_of(threads) {
            return Err(Refusal::not_whole_cores(count, threads));
        }
        let available = self.unallocated.difference(&self.reserved_cores).len();
        if count > available {
            return Err(Refusal::too_few_cores(count, threads, available));
        }
        Ok(())
    }

    fn aligned(&self, nodes: NodeSet) -> IdSet {
        if self.options.align_by_socket {
            return self.topology.in_sockets(&self.topology.sockets_of(nodes));
        }
        self.topology.in_nodes(nodes)
    }

    /// Chooses CPUs of `from`, as `takeByTopology` does.
    pub(super) fn take(&self, from: &IdSet, count: u64) -> Result<IdSet, Refusal> {
        let options = self.options;
        let taken = if options.distribute_across_nodes {
            let group = if options.full_cores_only { self.topology.threads_per_core() } else { 1 };
            distribute::take(&self.topology, from, count, group.max(1), options)
        } else {
            take::packed(&self.topology, from, count, options.into())
        };
        taken.map_err(Refusal::unexpected)
    }
}
