//! The CPU Manager's state and its choice of CPUs.

use std::collections::{BTreeMap, BTreeSet};

use numacast_core::machine::{Id, IdSet};

use super::allocation::{Rejection, unexpected};
use super::settings::Settings;
use crate::machine::MachineSpec;

/// The CPU Manager's state. All of it dates from the kubelet's start, except for the allocations.
#[derive(Clone, Debug, Default)]
pub(super) struct CpuManager {
    /// Cores in allocation order, each with its NUMA node and its threads.
    cores: Vec<(Id, Vec<Id>)>,
    of_node: BTreeMap<Id, IdSet>,
    all: IdSet,
    reserved: IdSet,
    full_cores: bool,
    /// `strict-cpu-reservation`: the shared pool excludes the reserved CPUs.
    strict_reservation: bool,
    /// The CPUs that were free when the kubelet started; kubelets before 1.23 report only these as
    /// allocatable.
    free_at_start: IdSet,
    /// Pod uid to container to its exclusive CPUs.
    pub(super) entries: BTreeMap<String, BTreeMap<String, IdSet>>,
    /// Pod uid to the CPUs of a pod with pod-level resources.
    pub(super) pod_entries: BTreeMap<String, IdSet>,
}

impl CpuManager {
    pub(super) fn new(spec: &MachineSpec, settings: &Settings) -> Self {
        let cores = cores(spec);
        let reserved = reserved(settings, &cores);
        let all = spec.online_cpus();
        Self {
            free_at_start: all.difference(&reserved),
            of_node: spec.nodes.iter().map(|node| (node.id, node.cpus.clone())).collect(),
            full_cores: settings.full_cores,
            strict_reservation: settings.strict_reservation,
            cores,
            all,
            reserved,
            ..Self::default()
        }
    }

    /// Restarts the kubelet; the allocations stay.
    pub(super) fn restart(&mut self) {
        self.free_at_start = self.free();
    }

    /// The CPUs that can be allocated exclusively, whether they are or not.
    pub(super) fn allocatable(&self) -> IdSet {
        self.all.difference(&self.reserved)
    }

    pub(super) fn free_at_start(&self) -> &IdSet {
        &self.free_at_start
    }

    pub(super) fn of_node(&self, node: Id) -> IdSet {
        self.of_node.get(&node).cloned().unwrap_or_default()
    }

    /// The CPUs allocated to a pod, its regular init containers included.
    pub(super) fn allocated_to(&self, uid: &str) -> IdSet {
        let mut allocated = self.pod_entries.get(uid).cloned().unwrap_or_default();
        self.entries.get(uid).into_iter().flatten().for_each(|(_, cpus)| allocated.union_with(cpus));
        allocated
    }

    fn allocated(&self) -> IdSet {
        let mut allocated = IdSet::new();
        let containers = self.entries.values().flatten().map(|(_, cpus)| cpus);
        containers.chain(self.pod_entries.values()).for_each(|cpus| allocated.union_with(cpus));
        allocated
    }

    /// The CPUs that can be allocated to a container now.
    pub(super) fn free(&self) -> IdSet {
        self.allocatable().difference(&self.allocated())
    }

    /// The `defaultCpuSet`: the CPUs for all containers without exclusive CPUs.
    pub(super) fn shared(&self) -> IdSet {
        let base = if self.strict_reservation { self.allocatable() } else { self.all.clone() };
        base.difference(&self.allocated())
    }

    /// Threads per core; with `full-pcpus-only`, requests must be multiples of it.
    pub(super) fn threads(&self) -> u64 {
        self.cores.iter().map(|(_, threads)| threads.len()).max().unwrap_or(1) as u64
    }

    pub(super) fn allocate(&mut self, uid: &str, container: &str, cpus: IdSet) {
        if !cpus.is_empty() {
            self.entries.entry(uid.to_owned()).or_default().insert(container.to_owned(), cpus);
        }
    }

    /// Releases all CPUs of a pod.
    pub(super) fn remove(&mut self, uid: &str) {
        self.pod_entries.remove(uid);
        self.entries.remove(uid);
    }

    /// Chooses from `pool`, CPUs on the `affinity` nodes first; with `strict`, only those.
    pub(super) fn choose(
        &self,
        pool: &IdSet,
        count: u64,
        affinity: Option<&BTreeSet<Id>>,
        strict: bool,
    ) -> Result<IdSet, Rejection> {
        let near = |node: Id| affinity.is_none_or(|nodes| nodes.contains(&node));
        let mut order = if count == 0 { Vec::new() } else { self.order(pool, near) };
        if (order.len() as u64) < count && !(strict && affinity.is_some()) {
            order.extend(self.order(pool, |node| !near(node)));
        }
        if (order.len() as u64) < count {
            return Err(unexpected(format!(
                "Allocate failed due to not enough cpus available to satisfy request: requested={count}, \
                 available={}, which is unexpected",
                order.len()
            )));
        }
        Ok(order.into_iter().take(usize::try_from(count).unwrap_or(usize::MAX)).collect())
    }

    /// The CPUs of a pool on some nodes in allocation order: whole cores first, then the free threads of
    /// partly allocated cores.
    fn order(&self, pool: &IdSet, wanted: impl Fn(Id) -> bool) -> Vec<Id> {
        let (mut whole, mut single) = (Vec::new(), Vec::new());
        for (_, threads) in self.cores.iter().filter(|(node, _)| wanted(*node)) {
            let all_free = threads.iter().all(|cpu| pool.contains(*cpu));
            let target = if all_free { &mut whole } else { &mut single };
            target.extend(threads.iter().copied().filter(|cpu| pool.contains(*cpu)));
        }
        if !self.full_cores {
            whole.extend(single);
        }
        whole
    }
}

/// The cores of every node in ascending order, each with its online CPUs.
fn cores(spec: &MachineSpec) -> Vec<(Id, Vec<Id>)> {
    let mut cores = Vec::new();
    for node in &spec.nodes {
        for mut threads in spec.cores(node) {
            threads.retain(|cpu| node.cpus.contains(*cpu));
            cores.push((node.id, threads));
        }
    }
    cores.retain(|(_, threads)| !threads.is_empty());
    cores
}

/// The configured list of reserved CPUs or, without one, the configured number of CPUs, from the lowest core
/// on.
fn reserved(settings: &Settings, cores: &[(Id, Vec<Id>)]) -> IdSet {
    if !settings.reserved_cpus.is_empty() {
        return settings.reserved_cpus.clone();
    }
    let count = usize::try_from(settings.reserved_cpu_count).unwrap_or(usize::MAX);
    cores.iter().flat_map(|(_, threads)| threads).take(count).copied().collect()
}
