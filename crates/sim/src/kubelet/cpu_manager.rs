//! The CPU Manager's state.

use std::collections::BTreeMap;

use numacast_core::admission::{CpuOptions, CpuTopology, Cpus};
use numacast_core::machine::{Id, IdSet};

use super::settings::{KubeletVersion, Settings};
use crate::machine::MachineSpec;

/// The CPU Manager's state. All of it dates from the kubelet's start, except for the allocations.
#[derive(Clone, Debug, Default)]
pub(super) struct CpuManager {
    /// The hardware at the kubelet's start.
    pub(super) hardware: MachineSpec,
    topology: CpuTopology,
    options: CpuOptions,
    all: IdSet,
    reserved: IdSet,
    /// The CPUs that were free when the kubelet started; kubelets before 1.23 report only these as
    /// allocatable.
    free_at_start: IdSet,
    /// Pod uid to container to its exclusive CPUs.
    pub(super) entries: BTreeMap<String, BTreeMap<String, IdSet>>,
    /// Pod uid to the CPUs of a pod with pod-level resources.
    pub(super) pod_entries: BTreeMap<String, IdSet>,
}

impl CpuManager {
    pub(super) fn new(spec: &MachineSpec, settings: &Settings, version: KubeletVersion) -> Self {
        let topology: CpuTopology = spec.cpu_locations().into_iter().collect();
        let options = settings.cpu_options(version);
        let reserved = match settings.reserved_cpus.is_empty() {
            true => Cpus::reserved_by_count(&topology, settings.reserved_cpu_count, options),
            false => settings.reserved_cpus.clone(),
        };
        let all = spec.online_cpus();
        Self {
            hardware: spec.clone(),
            free_at_start: all.difference(&reserved),
            topology,
            options,
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
        self.hardware.nodes.iter().find(|of| of.id == node).map(|of| of.cpus.clone()).unwrap_or_default()
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
        let base = if self.options.strict_reservation { self.allocatable() } else { self.all.clone() };
        base.difference(&self.allocated())
    }

    /// The state that admission depends on.
    pub(super) fn state(&self) -> Cpus {
        let mut cpus = Cpus::new(self.topology.clone(), self.reserved.clone(), self.options);
        cpus.allocate(&self.allocated());
        cpus
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
}
