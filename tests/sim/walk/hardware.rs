//! Random changes of the hardware.

use numacast::agent::Depth;
use numacast::machine::{Id, IdSet};
use numacast::quantity::Quantity;
use numacast_sim::machine::{MachineSpec, NodeSpec};

use super::{MIB, Step, Walk};

impl Walk {
    /// Changes one node, or all as described for later.
    pub(super) fn change_hardware(&mut self) -> Step {
        let at = self.rng.usize(0..self.hardware.nodes.len());
        let Some(action) = self.change_node(at) else { return Ok(("nothing".to_owned(), Depth::Usage)) };
        self.write_tree()?;
        self.kubelet.set_hardware(&self.hardware);
        self.outcome.hardware += 1;
        Ok((action, Depth::Everything))
    }

    fn change_node(&mut self, at: usize) -> Option<String> {
        let id = self.hardware.nodes[at].id;
        match self.rng.u8(0..12) {
            0..3 => {
                let cpu = self.cpu_to_switch_off(at)?;
                let off = IdSet::from_iter([cpu]);
                for node in &mut self.hardware.nodes {
                    node.repeated_cpus = node.repeated_cpus.difference(&off);
                }
                let node = &mut self.hardware.nodes[at];
                node.cpus = node.cpus.difference(&off);
                node.offline_cpus.insert(cpu);
                Some(format!("CPU {cpu} of node {id} goes offline"))
            }
            3..6 => {
                let node = &mut self.hardware.nodes[at];
                let cpu = node.offline_cpus.last()?;
                node.offline_cpus = node.offline_cpus.difference(&IdSet::from_iter([cpu]));
                node.cpus.insert(cpu);
                Some(format!("CPU {cpu} of node {id} comes online"))
            }
            6 | 7 => {
                let before = self.hardware.nodes[at].memory.ceil();
                let after = before + (before / 8).div_ceil(MIB) * MIB;
                // One terabyte is enough.
                (before > 0 && after < 1 << 40).then(|| self.set_memory(at, after))
            }
            8 | 9 => self.drift(at),
            10 => self.late_node(),
            _ => {
                let later = self.hardware.later()?;
                // Memory was added since this kubelet started, and no real machine loses that much again.
                let shrinks = |node: &NodeSpec| {
                    let (now, started) = (node.memory.ceil(), self.at_start.node(node.id));
                    started.is_some_and(|started| now + now / 32 < started.memory.ceil())
                };
                if later.nodes.iter().any(shrinks) {
                    return None;
                }
                // The machine's own later state: undo the earlier changes.
                self.hardware = MachineSpec { later: None, ..later };
                Some(format!("later: {}", self.hardware.description))
            }
        }
    }

    /// Returns a CPU to switch off: not the boot CPU, a CPU reserved by the kubelet, or the last one of a
    /// node.
    fn cpu_to_switch_off(&mut self, at: usize) -> Option<Id> {
        let reserved = self.hardware.kubelet.get("reservedSystemCPUs").and_then(|value| value.as_str());
        let mut reserved: IdSet = reserved.unwrap_or_default().parse().unwrap_or_default();
        reserved.insert(0);
        let node = &self.hardware.nodes[at];
        let cpus: Vec<Id> = node.cpus.difference(&reserved).iter().collect();
        if cpus.is_empty() || node.cpus.len() < 2 {
            return None;
        }
        Some(*self.pick(&cpus))
    }

    /// Changes a node's memory by a few pages, relative to the kubelet's start.
    fn drift(&mut self, at: usize) -> Option<String> {
        let NodeSpec { id, memory, .. } = &self.hardware.nodes[at];
        let started = self.at_start.node(*id)?.memory.ceil();
        let pages = self.rng.u64(0..32) * 4096;
        if memory.ceil() > started + 32 * 4096 || started < 64 * MIB {
            return None;
        }
        let after = if self.rng.bool() { started + pages } else { started - pages };
        (after >= self.hardware.nodes[at].hugepage_bytes()).then(|| self.set_memory(at, after))
    }

    fn set_memory(&mut self, at: usize, bytes: u64) -> String {
        let node = &mut self.hardware.nodes[at];
        let before = std::mem::replace(&mut node.memory, Quantity::whole(bytes)).ceil();
        format!("node {} has {bytes} bytes instead of {before}", node.id)
    }

    /// Brings a memory-only node online, possibly leaving a gap in the node IDs.
    fn late_node(&mut self) -> Option<String> {
        let last = self.hardware.nodes.last()?.id;
        if !self.hardware.numa || self.hardware.nodes.len() >= self.at_start.nodes.len() + 2 {
            return None;
        }
        let id = last + self.rng.u16(1..4);
        let has_distances = self.hardware.nodes.iter().all(|node| !node.distances.is_empty());
        let mut node = NodeSpec { id, memory: Quantity::whole(4096 * MIB), ..NodeSpec::default() };
        if has_distances {
            for peer in &mut self.hardware.nodes {
                peer.distances.insert(id, 80);
                node.distances.insert(peer.id, 80);
            }
            node.distances.insert(id, 10);
        }
        self.hardware.nodes.push(node);
        Some(format!("node {id} comes online with memory only"))
    }
}
