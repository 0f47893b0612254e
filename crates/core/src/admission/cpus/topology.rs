//! Where each CPU of a machine is.

use std::collections::BTreeMap;

use super::super::NodeSet;
use super::super::node_set::PerNode;
use crate::machine::{CpuLocation, Id, IdSet};

/// The online CPUs of a machine (upstream: `cpumanager/topology`).
#[derive(Clone, Debug, Default)]
pub struct CpuTopology {
    /// By id.
    cpus: Vec<Option<CpuLocation>>,
    all: IdSet,
    levels: [Parts; 4],
}

/// The parts of one level.
#[derive(Clone, Debug, Default)]
struct Parts {
    ids: IdSet,
    /// By id.
    cpus: Vec<IdSet>,
}

impl Parts {
    fn add(&mut self, part: Id, cpu: Id) {
        if self.cpus.len() <= usize::from(part) {
            self.cpus.resize(usize::from(part) + 1, IdSet::new());
        }
        self.cpus[usize::from(part)].insert(cpu);
        self.ids.insert(part);
    }
}

/// A part of the machine that contains CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Node,
    Socket,
    Core,
    Cache,
}

const fn part(cpu: &CpuLocation, level: Level) -> Id {
    match level {
        Level::Node => cpu.node,
        Level::Socket => cpu.socket,
        Level::Core => cpu.core,
        Level::Cache => cpu.cache,
    }
}

impl FromIterator<(Id, CpuLocation)> for CpuTopology {
    fn from_iter<I: IntoIterator<Item = (Id, CpuLocation)>>(cpus: I) -> Self {
        let cpus: BTreeMap<Id, CpuLocation> = cpus.into_iter().collect();
        let mut levels: [Parts; 4] = Default::default();
        let mut by_id = vec![None; cpus.last_key_value().map_or(0, |(last, _)| usize::from(*last) + 1)];
        for (id, cpu) in &cpus {
            for level in [Level::Node, Level::Socket, Level::Core, Level::Cache] {
                levels[level as usize].add(part(cpu, level), *id);
            }
            by_id[usize::from(*id)] = Some(*cpu);
        }
        Self { all: cpus.keys().copied().collect(), cpus: by_id, levels }
    }
}

impl CpuTopology {
    /// Returns every CPU.
    #[must_use]
    pub const fn all(&self) -> &IdSet {
        &self.all
    }

    /// Returns the nodes with CPUs.
    #[must_use]
    pub fn nodes(&self) -> NodeSet {
        NodeSet::from(self.ids_of(Level::Node))
    }

    /// Returns the CPUs of these nodes.
    #[must_use]
    pub fn in_nodes(&self, nodes: NodeSet) -> IdSet {
        self.in_all(Level::Node, nodes.iter())
    }

    /// Returns the average number of threads per core, rounded down.
    #[must_use]
    pub fn threads_per_core(&self) -> u64 {
        self.average(Level::Core)
    }

    /// Returns every CPU of the cores that these CPUs are in.
    #[must_use]
    pub fn whole_cores(&self, cpus: &IdSet) -> IdSet {
        self.in_all(Level::Core, self.ids(Level::Core, cpus).iter())
    }

    /// Returns the number of these CPUs on each node, without zeros.
    #[must_use]
    pub fn count_by_node(&self, cpus: &IdSet) -> BTreeMap<Id, u64> {
        self.counts(cpus).filter(|(_, count)| *count > 0).collect()
    }

    /// Returns the number of these CPUs on each node.
    pub(super) fn count(&self, cpus: &IdSet) -> PerNode {
        self.counts(cpus).collect()
    }

    fn counts(&self, cpus: &IdSet) -> impl Iterator<Item = (Id, u64)> {
        self.ids_of(Level::Node).iter().map(|node| (node, self.within(Level::Node, node).common(cpus)))
    }

    pub(super) fn sockets(&self) -> u64 {
        self.ids_of(Level::Socket).len()
    }

    pub(super) fn sockets_of(&self, nodes: NodeSet) -> IdSet {
        self.ids(Level::Socket, &self.in_nodes(nodes))
    }

    pub(super) fn in_sockets(&self, sockets: &IdSet) -> IdSet {
        self.in_all(Level::Socket, sockets.iter())
    }

    /// Returns the CPUs of one part.
    pub(super) fn within(&self, level: Level, id: Id) -> &IdSet {
        static NONE: IdSet = IdSet::new();
        self.levels[level as usize].cpus.get(usize::from(id)).unwrap_or(&NONE)
    }

    const fn ids_of(&self, level: Level) -> &IdSet {
        &self.levels[level as usize].ids
    }

    /// Returns the parts that these CPUs are in.
    pub(super) fn ids(&self, level: Level, cpus: &IdSet) -> IdSet {
        let known = cpus.iter().filter_map(|cpu| self.cpus.get(usize::from(cpu))?.as_ref());
        known.map(|cpu| part(cpu, level)).collect()
    }

    /// Returns the number of CPUs per part, rounded down.
    pub(super) fn average(&self, level: Level) -> u64 {
        self.all.len().checked_div(self.ids_of(level).len()).unwrap_or(0)
    }

    fn in_all(&self, level: Level, ids: impl Iterator<Item = Id>) -> IdSet {
        let mut cpus = IdSet::new();
        ids.for_each(|id| cpus.union_with(self.within(level, id)));
        cpus
    }
}
