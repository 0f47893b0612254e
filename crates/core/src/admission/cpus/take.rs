//! Which CPUs are allocated (upstream: `cpumanager/cpu_assignment.go`, `takeByTopologyNUMAPacked`).

use super::CpuOptions;
use super::topology::{CpuTopology, Level};
use crate::machine::{Id, IdSet};

/// In which order CPUs are taken.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Order {
    /// Threads of different cores before those of one core.
    pub(super) spread: bool,
    /// CPUs of one L3 cache first.
    pub(super) shared_cache: bool,
}

impl From<CpuOptions> for Order {
    fn from(options: CpuOptions) -> Self {
        Self { spread: options.distribute_across_cores, shared_cache: options.prefer_shared_cache }
    }
}

/// Takes CPUs so that as few sockets, nodes, caches and cores as possible are used, and prefers those of which
/// part is already allocated.
pub(super) fn packed(
    topology: &CpuTopology,
    available: &IdSet,
    count: u64,
    order: Order,
) -> Result<IdSet, String> {
    let mut taking = Taking::new(topology, available, count, order.spread);
    if taking.is_done() {
        return Ok(taking.taken);
    }
    check_enough(available, count)?;
    let levels =
        if taking.nodes_first() { [Level::Node, Level::Socket] } else { [Level::Socket, Level::Node] };
    for level in levels {
        taking.take_whole(level);
        if taking.is_done() {
            return Ok(taking.taken);
        }
    }
    if order.shared_cache {
        taking.take_caches();
        if taking.is_done() {
            return Ok(taking.taken);
        }
    }
    if !order.spread {
        taking.take_whole(Level::Core);
        if taking.is_done() {
            return Ok(taking.taken);
        }
    }
    taking.take_single();
    match taking.is_done() {
        true => Ok(taking.taken),
        false => Err("failed to allocate cpus".to_owned()),
    }
}

pub(super) fn check_enough(available: &IdSet, count: u64) -> Result<(), String> {
    let found = available.len();
    match count > found {
        true => {
            Err(format!("not enough cpus available to satisfy request: requested={count}, available={found}"))
        }
        false => Ok(()),
    }
}

/// An allocation in progress.
pub(super) struct Taking<'a> {
    topology: &'a CpuTopology,
    pub(super) free: IdSet,
    /// Negative if a CPU was counted twice, as the kubelet does where nodes share sockets.
    pub(super) needed: i64,
    pub(super) taken: IdSet,
    spread: bool,
}

impl<'a> Taking<'a> {
    pub(super) fn new(topology: &'a CpuTopology, available: &IdSet, count: u64, spread: bool) -> Self {
        let free = available.intersection(topology.all());
        let needed = i64::try_from(count).unwrap_or(i64::MAX);
        Self { topology, free, needed, taken: IdSet::new(), spread }
    }

    pub(super) fn is_done(&self) -> bool {
        self.needed < 1
    }

    pub(super) fn take(&mut self, cpus: &IdSet) {
        self.needed -= size(cpus);
        self.taken.union_with(cpus);
        self.free = self.free.difference(cpus);
    }

    pub(super) fn count_in(&self, level: Level, id: Id) -> u64 {
        self.free.common(self.topology.within(level, id))
    }

    pub(super) fn free_in(&self, level: Level, id: Id) -> IdSet {
        self.free.intersection(self.topology.within(level, id))
    }

    fn nodes_first(&self) -> bool {
        self.topology.sockets() >= u64::from(self.topology.nodes().len())
    }

    /// Takes every wholly free part of this level that is not larger than what is needed.
    fn take_whole(&mut self, level: Level) {
        let parts = match level {
            Level::Node => self.nodes(),
            Level::Socket => self.sockets(),
            Level::Core => self.cores(),
            Level::Cache => self.caches(),
        };
        let free: Vec<Id> = parts.into_iter().filter(|id| self.is_free(level, *id)).collect();
        for id in free {
            let cpus = self.topology.within(level, id);
            if self.needed >= size(cpus) {
                self.take(cpus);
            }
        }
    }

    /// The kubelet compares sockets and cores with the average, nodes and caches with their own size.
    fn is_free(&self, level: Level, id: Id) -> bool {
        let whole = match level {
            Level::Socket | Level::Core => self.topology.average(level),
            Level::Node | Level::Cache => self.topology.within(level, id).len(),
        };
        self.count_in(level, id) == whole
    }

    fn take_caches(&mut self) {
        let per_cache = i64::try_from(self.topology.average(Level::Cache)).unwrap_or(i64::MAX);
        for cache in self.caches() {
            if self.needed >= per_cache {
                self.take_whole(Level::Cache);
            }
            if self.is_done() {
                return;
            }
            self.take_part_of_cache(cache);
            if self.is_done() {
                return;
            }
        }
    }

    /// Takes the remaining CPUs from one cache if exactly as many are free in the first cores that are needed.
    fn take_part_of_cache(&mut self, cache: Id) {
        let threads = i64::try_from(self.topology.threads_per_core()).unwrap_or(i64::MAX).max(1);
        let cores = (self.needed + threads - 1) / threads;
        let first = self.topology.ids(Level::Core, &self.free_in(Level::Cache, cache));
        let first = first.iter().take(usize::try_from(cores).unwrap_or(usize::MAX));
        let mut cpus: Vec<Id> =
            first.flat_map(|core| self.free_in(Level::Core, core).iter().collect::<Vec<_>>()).collect();
        cpus.sort_unstable();
        if self.needed % 2 != 0 && threads > 1 && cpus.len() as u64 > self.needed.unsigned_abs() {
            cpus.pop();
        }
        if cpus.len() as u64 == self.needed.unsigned_abs() {
            self.take(&cpus.into_iter().collect());
        }
    }

    fn take_single(&mut self) {
        for cpu in self.single_cpus() {
            self.take(&std::iter::once(cpu).collect());
            if self.is_done() {
                return;
            }
        }
    }

    fn single_cpus(&self) -> Vec<Id> {
        let (level, parts) =
            if self.spread { (Level::Socket, self.sockets()) } else { (Level::Core, self.cores()) };
        parts.into_iter().flat_map(|id| self.free_in(level, id).iter().collect::<Vec<_>>()).collect()
    }

    /// The nodes with free CPUs, those with the fewest first.
    pub(super) fn nodes(&self) -> Vec<Id> {
        if self.nodes_first() {
            self.parts(Level::Node, &self.free)
        } else {
            self.each(self.sockets(), Level::Socket, Level::Node)
        }
    }

    fn sockets(&self) -> Vec<Id> {
        if self.nodes_first() {
            self.each(self.nodes(), Level::Node, Level::Socket)
        } else {
            self.parts(Level::Socket, &self.free)
        }
    }

    fn cores(&self) -> Vec<Id> {
        match self.nodes_first() {
            true => self.each(self.sockets(), Level::Socket, Level::Core),
            false => self.each(self.nodes(), Level::Node, Level::Core),
        }
    }

    fn caches(&self) -> Vec<Id> {
        self.each(self.nodes(), Level::Node, Level::Cache)
    }

    /// The parts of level `lower` in each of the given parts of level `upper`.
    fn each(&self, parts: Vec<Id>, upper: Level, lower: Level) -> Vec<Id> {
        parts.into_iter().flat_map(|id| self.parts(lower, &self.free_in(upper, id))).collect()
    }

    /// The parts that these free CPUs are in, those with the fewest free CPUs first.
    fn parts(&self, level: Level, cpus: &IdSet) -> Vec<Id> {
        let mut ids: Vec<Id> = self.topology.ids(level, cpus).iter().collect();
        ids.sort_by_cached_key(|id| (self.count_in(level, *id), *id));
        ids
    }
}

fn size(cpus: &IdSet) -> i64 {
    i64::try_from(cpus.len()).unwrap_or(i64::MAX)
}
