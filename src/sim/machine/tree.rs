//! A described machine as the files in which the kernel would show it: everything below `/sys` and `/proc`
//! that the kubelet and numacast read.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::{MachineSpec, NodeSpec};
use crate::machine::{Id, IdSet};

/// Writes the machine to `root/sys` and `root/proc`.
pub(super) fn write(machine: &MachineSpec, root: &Path) -> io::Result<()> {
    let tree = Tree { machine, root, cores: cores(machine) };
    tree.node_lists()?;
    for node in &machine.nodes {
        tree.node(node)?;
    }
    tree.cpu_lists()?;
    for (cpu, core) in &tree.cores {
        tree.cpu(*cpu, core)?;
    }
    tree.hugepages()?;
    tree.meminfo()
}

/// Where one CPU sits.
struct Core {
    id: usize,
    node: Id,
    package: Id,
    /// Online CPUs of the core.
    siblings: IdSet,
}

/// The core of each present CPU. Core ids are unique within a package, as on real machines, and nodes may
/// share a package.
fn cores(machine: &MachineSpec) -> BTreeMap<Id, Core> {
    let mut cores = BTreeMap::new();
    let mut next_in_package: BTreeMap<Id, usize> = BTreeMap::new();
    for node in &machine.nodes {
        let cpus: Vec<Id> = node.present_cpus().iter().collect();
        let count = cpus.len().div_ceil(usize::from(machine.threads_per_core)).max(1);
        let first = next_in_package.entry(node.package()).or_default();
        for (position, cpu) in cpus.iter().enumerate() {
            let of_core = position % count;
            let all = cpus.iter().skip(of_core).step_by(count).copied();
            let siblings = all.filter(|sibling| node.cpus.contains(*sibling)).collect();
            let core = Core { id: *first + of_core, node: node.id, package: node.package(), siblings };
            cores.insert(*cpu, core);
        }
        *first += count;
    }
    cores
}

struct Tree<'a> {
    machine: &'a MachineSpec,
    root: &'a Path,
    cores: BTreeMap<Id, Core>,
}

impl Tree<'_> {
    /// Writes a file with one line, or several.
    fn put(&self, path: impl AsRef<Path>, content: impl Display) -> io::Result<()> {
        std::fs::write(self.place(path)?, format!("{content}\n"))
    }

    /// Makes a link, unless it is there from an earlier writing.
    fn link(&self, path: impl AsRef<Path>, target: String) -> io::Result<()> {
        match symlink(target, self.place(path)?) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            done => done,
        }
    }

    /// The path below the root, in a directory that exists.
    fn place(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let path = self.root.join(path);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        Ok(path)
    }

    fn node_lists(&self) -> io::Result<()> {
        let which = |belongs: fn(&NodeSpec) -> bool| -> IdSet {
            self.machine.nodes.iter().filter(|node| belongs(node)).map(|node| node.id).collect()
        };
        let dir = Path::new("sys/devices/system/node");
        self.put(dir.join("possible"), which(|_| true))?;
        self.put(dir.join("online"), which(|_| true))?;
        self.put(dir.join("has_cpu"), which(|node| !node.cpus.is_empty()))?;
        self.put(dir.join("has_memory"), which(|node| node.memory.ceil() > 0))?;
        self.put(dir.join("has_normal_memory"), which(|node| node.memory.ceil() > 0))
    }

    fn node(&self, node: &NodeSpec) -> io::Result<()> {
        let id = node.id;
        let dir = PathBuf::from(format!("sys/devices/system/node/node{id}"));
        self.put(dir.join("cpulist"), &node.cpus)?;
        self.put(dir.join("cpumap"), mask(&node.cpus))?;
        for cpu in node.present_cpus().iter() {
            self.link(dir.join(format!("cpu{cpu}")), format!("../../cpu/cpu{cpu}"))?;
        }
        if !node.distances.is_empty() {
            let columns: Vec<String> = node.distances.values().map(u32::to_string).collect();
            self.put(dir.join("distance"), columns.join(" "))?;
        }
        self.put(dir.join("meminfo"), node_meminfo(node))?;
        if node.memory.ceil() > 0 {
            for size in self.machine.page_sizes() {
                let pages = node.pages().get(&size).copied().unwrap_or(0);
                self.pages(&dir.join("hugepages"), size, pages)?;
            }
        }
        self.link(format!("sys/bus/node/devices/node{id}"), format!("../../../devices/system/node/node{id}"))
    }

    fn pages(&self, dir: &Path, size: u64, pages: u64) -> io::Result<()> {
        let dir = dir.join(format!("hugepages-{}kB", size / 1024));
        self.put(dir.join("nr_hugepages"), pages)?;
        self.put(dir.join("free_hugepages"), pages)?;
        self.put(dir.join("surplus_hugepages"), 0)
    }

    fn cpu_lists(&self) -> io::Result<()> {
        let present: IdSet = self.cores.keys().copied().collect();
        let online = self.machine.online_cpus();
        let threads = self.machine.threads_per_core > 1;
        let dir = Path::new("sys/devices/system/cpu");
        self.put(dir.join("offline"), present.difference(&online))?;
        self.put(dir.join("online"), online)?;
        self.put(dir.join("kernel_max"), present.last().unwrap_or(0))?;
        self.put(dir.join("possible"), &present)?;
        self.put(dir.join("present"), present)?;
        self.put(dir.join("isolated"), "")?;
        self.put(dir.join("smt/active"), u8::from(threads))?;
        self.put(dir.join("smt/control"), if threads { "on" } else { "notsupported" })
    }

    fn cpu(&self, cpu: Id, core: &Core) -> io::Result<()> {
        let dir = PathBuf::from(format!("sys/devices/system/cpu/cpu{cpu}"));
        let node = core.node;
        self.link(dir.join(format!("node{node}")), format!("../../node/node{node}"))?;
        let online = core.siblings.contains(cpu);
        if cpu != 0 {
            self.put(dir.join("online"), u8::from(online))?;
        }
        if !online {
            return Ok(()); // the kernel shows neither topology nor caches of such a CPU
        }
        let package = self.online_where(|other| other.package == core.package);
        let topology = dir.join("topology");
        self.put(topology.join("physical_package_id"), core.package)?;
        self.put(topology.join("die_id"), 0)?;
        self.put(topology.join("core_id"), core.id)?;
        self.put(topology.join("thread_siblings_list"), &core.siblings)?;
        self.put(topology.join("core_cpus_list"), &core.siblings)?;
        self.put(topology.join("core_siblings_list"), &package)?;
        self.put(topology.join("package_cpus_list"), package)?;
        self.caches(&dir.join("cache"), core)
    }

    /// Two caches of the first level and one of the second for each core, one of the third for the node.
    fn caches(&self, dir: &Path, core: &Core) -> io::Result<()> {
        let node = self.online_where(|other| other.node == core.node);
        let first = core.siblings.iter().next().unwrap_or(0);
        let caches = [
            (1, "Data", "48K", first, &core.siblings),
            (1, "Instruction", "32K", first, &core.siblings),
            (2, "Unified", "2048K", first, &core.siblings),
            (3, "Unified", "32768K", core.node, &node),
        ];
        for (index, (level, kind, size, id, cpus)) in caches.into_iter().enumerate() {
            let dir = dir.join(format!("index{index}"));
            self.put(dir.join("level"), level)?;
            self.put(dir.join("type"), kind)?;
            self.put(dir.join("size"), size)?;
            self.put(dir.join("id"), id)?;
            self.put(dir.join("shared_cpu_list"), cpus)?;
            self.put(dir.join("shared_cpu_map"), mask(cpus))?;
        }
        Ok(())
    }

    fn online_where(&self, belongs: impl Fn(&Core) -> bool) -> IdSet {
        let online = self.cores.iter().filter(|(cpu, core)| core.siblings.contains(**cpu));
        online.filter(|(_, core)| belongs(core)).map(|(cpu, _)| *cpu).collect()
    }

    /// Huge pages of the whole machine, which is all that the Node object counts.
    fn hugepages(&self) -> io::Result<()> {
        let dir = Path::new("sys/kernel/mm/hugepages");
        std::fs::create_dir_all(self.root.join(dir))?;
        for size in self.machine.page_sizes() {
            let of_size = |node: &NodeSpec| node.pages().get(&size).copied().unwrap_or(0);
            self.pages(dir, size, self.machine.nodes.iter().map(of_size).sum())?;
        }
        Ok(())
    }

    fn meminfo(&self) -> io::Result<()> {
        let total: u64 = self.machine.nodes.iter().map(|node| node.memory.ceil() / 1024).sum();
        let pages: u64 = self.machine.nodes.iter().map(|node| node.hugepage_bytes() / 1024).sum();
        let free = total - pages;
        let lines = [
            format!("MemTotal:       {total} kB"),
            format!("MemFree:        {free} kB"),
            format!("MemAvailable:   {free} kB"),
            "Buffers:        0 kB".to_owned(),
            "Cached:         0 kB".to_owned(),
            "SwapTotal:      0 kB".to_owned(),
            "SwapFree:       0 kB".to_owned(),
            format!("Hugetlb:        {pages} kB"),
        ];
        self.put("proc/meminfo", lines.join("\n"))
    }
}

fn node_meminfo(node: &NodeSpec) -> String {
    let id = node.id;
    let (total, huge) = (node.memory.ceil() / 1024, node.hugepage_bytes() / 1024);
    let pages: u64 = node.pages().values().sum();
    let lines = [
        format!("Node {id} MemTotal:       {total} kB"),
        format!("Node {id} MemFree:        {} kB", total - huge),
        format!("Node {id} MemUsed:        {huge} kB"),
        format!("Node {id} HugePages_Total: {pages}"),
        format!("Node {id} HugePages_Free:  {pages}"),
        format!("Node {id} HugePages_Surp:  0"),
    ];
    lines.join("\n")
}

/// A CPU mask as the kernel prints it: words of 32 bits in hexadecimal, the highest first.
fn mask(cpus: &IdSet) -> String {
    let word = |index: Id| {
        let bits = cpus.iter().filter(|cpu| cpu / 32 == index);
        bits.fold(0_u32, |word, cpu| word | 1 << (cpu % 32))
    };
    let words = (0..=cpus.last().unwrap_or(0) / 32).rev().map(|index| format!("{:08x}", word(index)));
    words.collect::<Vec<_>>().join(",")
}
