//! Writes a machine as the files in which the kernel would report it: everything below `/sys` and `/proc`
//! that the kubelet and numacast read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use numacast_core::machine::{CpuLocation, Id, IdSet};

use super::{MachineSpec, Missing, NodeSpec};

const NODES: &str = "sys/devices/system/node";
const BUS: &str = "sys/bus/node/devices";
const CPUS: &str = "sys/devices/system/cpu";
const HUGEPAGES: &str = "sys/kernel/mm/hugepages";
const DEVICES: &str = "sys/devices";

/// The content of a path.
enum Entry {
    Text(String),
    Link(String),
}

/// Writes the machine to `root/sys` and `root/proc`. Existing files are replaced atomically; obsolete ones
/// are removed last.
pub(super) fn write(machine: &MachineSpec, root: &Path) -> io::Result<()> {
    let mut written = BTreeSet::new();
    for (path, entry) in entries(machine, true) {
        let path = root.join(path);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        match entry {
            Entry::Text(text) => put(&path, &text, &root.join(".new"))?,
            Entry::Link(target) => link(&path, &target)?,
        }
        written.insert(path);
    }
    std::fs::create_dir_all(root.join(HUGEPAGES))?;
    sweep(root, &written)
}

/// The text files by path, without those about single CPUs.
pub(super) fn files(machine: &MachineSpec) -> BTreeMap<String, String> {
    let text = |(path, entry)| match entry {
        Entry::Text(text) => Some((path, text)),
        Entry::Link(_) => None,
    };
    entries(machine, false).into_iter().filter_map(text).collect()
}

/// All files that the kernel reports. The node lists come after the nodes, so that a list never contains a
/// node that does not exist yet.
fn entries(machine: &MachineSpec, single_cpus: bool) -> Vec<(String, Entry)> {
    let mut tree = Tree { machine, cores: cores(machine), entries: Vec::new() };
    if single_cpus {
        tree.cpus();
    }
    tree.cpu_lists();
    tree.core_types();
    if machine.numa {
        machine.nodes.iter().for_each(|node| tree.node(node));
        tree.node_lists();
    }
    tree.hugepages();
    tree.meminfo();
    tree.cpuinfo();
    tree.entries
}

fn put(path: &Path, text: &str, new: &Path) -> io::Result<()> {
    match std::fs::read_to_string(path) {
        Ok(before) if before == text => Ok(()),
        Ok(_) => {
            std::fs::write(new, text)?;
            std::fs::rename(new, path)
        }
        Err(_) => std::fs::write(path, text),
    }
}

/// Creates a symlink, unless it exists from an earlier write.
fn link(path: &Path, target: &str) -> io::Result<()> {
    match symlink(target, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        done => done,
    }
}

/// Removes the files of an earlier machine. The top directories stay, since they may be mount points.
fn sweep(root: &Path, written: &BTreeSet<PathBuf>) -> io::Result<()> {
    let types = names(&root.join(DEVICES))?;
    let types = types.iter().filter(|name| name.as_encoded_bytes().starts_with(b"cpu_"));
    let types = types.map(|name| Path::new(DEVICES).join(name));
    for dir in [NODES, BUS, CPUS, HUGEPAGES].iter().map(PathBuf::from).chain(types) {
        sweep_below(&root.join(dir), written)?;
    }
    Ok(())
}

fn sweep_below(dir: &Path, written: &BTreeSet<PathBuf>) -> io::Result<()> {
    for name in names(dir)? {
        let path = dir.join(name);
        if path.is_dir() && !path.is_symlink() {
            sweep_below(&path, written)?;
            if names(&path)?.is_empty() {
                std::fs::remove_dir(path)?;
            }
        } else if !written.contains(&path) {
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// The names in a directory; empty if it does not exist.
fn names(dir: &Path) -> io::Result<Vec<std::ffi::OsString>> {
    match std::fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.file_name())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The core of a CPU.
struct Core {
    id: usize,
    /// The L3 cache: its number on the machine.
    cache: usize,
    node: Id,
    package: Id,
    /// Online CPUs of the core.
    siblings: IdSet,
}

/// The core of each present CPU. Core ids are unique within a package, and no cache is shared by two packages, as on
/// real machines; nodes can share a package.
fn cores(machine: &MachineSpec) -> BTreeMap<Id, Core> {
    let mut cores = BTreeMap::new();
    let mut next_in_package: BTreeMap<Id, usize> = BTreeMap::new();
    let mut caches = 0;
    for node in &machine.nodes {
        let mut previous = None;
        for (number, cpus) in machine.cores(node).into_iter().enumerate() {
            let package = node.package_of(cpus[0]);
            let is_next = machine.cores_per_cache.is_some_and(|cores| number % usize::from(cores) == 0);
            caches += usize::from(is_next || previous != Some(package));
            previous = Some(package);
            let id = next_in_package.entry(package).or_default();
            let siblings: IdSet = cpus.iter().copied().filter(|cpu| node.cpus.contains(*cpu)).collect();
            for cpu in cpus {
                cores.insert(
                    cpu,
                    Core { id: *id, cache: caches, node: node.id, package, siblings: siblings.clone() },
                );
            }
            *id += 1;
        }
    }
    cores
}

/// Where each online CPU is. A cache of a whole node counts as its socket.
pub(super) fn cpu_locations(machine: &MachineSpec) -> BTreeMap<Id, CpuLocation> {
    let cores = cores(machine);
    let online = cores.iter().filter(|(cpu, core)| core.siblings.contains(**cpu));
    let location = |(cpu, core): (&Id, &Core)| {
        let near = online_where(&cores, |other| other.cache == core.cache);
        let node = online_where(&cores, |other| other.node == core.node);
        let cache = if near == node { core.package } else { Id::try_from(core.cache).unwrap_or(Id::MAX) };
        let first = core.siblings.iter().next().unwrap_or(*cpu);
        (*cpu, CpuLocation { node: core.node, socket: core.package, core: first, cache })
    };
    online.map(location).collect()
}

struct Tree<'a> {
    machine: &'a MachineSpec,
    cores: BTreeMap<Id, Core>,
    entries: Vec<(String, Entry)>,
}

impl Tree<'_> {
    /// Adds a file of one or more lines.
    fn put(&mut self, path: String, content: impl Display) {
        self.entries.push((path, Entry::Text(format!("{content}\n"))));
    }

    fn link(&mut self, path: String, target: String) {
        self.entries.push((path, Entry::Link(target)));
    }

    fn node_lists(&mut self) {
        let nodes = &self.machine.nodes;
        let which = |belongs: fn(&NodeSpec) -> bool| -> IdSet {
            nodes.iter().filter(|node| belongs(node)).map(|node| node.id).collect()
        };
        let online = which(|_| true);
        let has_memory = which(|node| node.memory.ceil() > 0);
        let has_cpu = which(|node| !node.cpus.is_empty());
        let possible = or(&self.machine.possible, &online).clone();
        self.put(format!("{NODES}/possible"), possible);
        self.put(format!("{NODES}/online"), online);
        self.put(format!("{NODES}/has_cpu"), has_cpu);
        self.put(format!("{NODES}/has_memory"), &has_memory);
        self.put(format!("{NODES}/has_normal_memory"), has_memory);
    }

    fn node(&mut self, node: &NodeSpec) {
        if node.missing.contains(&Missing::Directory) {
            return;
        }
        let id = node.id;
        let dir = format!("{NODES}/node{id}");
        let mut listed = node.cpus.clone();
        listed.union_with(&node.repeated_cpus);
        self.put(format!("{dir}/cpulist"), &listed);
        self.put(format!("{dir}/cpumap"), mask(&listed));
        for cpu in node.present_cpus().iter() {
            self.link(format!("{dir}/cpu{cpu}"), format!("../../cpu/cpu{cpu}"));
        }
        if !node.distances.is_empty() {
            let columns: Vec<String> = node.distances.values().map(u32::to_string).collect();
            self.put(format!("{dir}/distance"), columns.join(" "));
        }
        if !node.missing.contains(&Missing::Meminfo) {
            self.put(format!("{dir}/meminfo"), node_meminfo(node));
        }
        if node.memory.ceil() > 0 && !node.missing.contains(&Missing::Hugepages) {
            for size in self.machine.page_sizes() {
                let pages = node.pages().get(&size).copied().unwrap_or(0);
                self.pages(&format!("{dir}/hugepages"), size, pages);
            }
        }
        self.link(format!("{BUS}/node{id}"), format!("../../../devices/system/node/node{id}"));
    }

    fn pages(&mut self, dir: &str, size: u64, pages: u64) {
        let dir = format!("{dir}/hugepages-{}kB", size / 1024);
        self.put(format!("{dir}/nr_hugepages"), pages);
        self.put(format!("{dir}/free_hugepages"), pages);
        self.put(format!("{dir}/surplus_hugepages"), 0);
    }

    fn cpu_lists(&mut self) {
        let present: IdSet = self.cores.keys().copied().collect();
        let online = self.machine.online_cpus();
        let possible = or(&self.machine.possible_cpus, &present).clone();
        self.put(format!("{CPUS}/offline"), possible.difference(&online));
        self.put(format!("{CPUS}/online"), online);
        self.put(format!("{CPUS}/kernel_max"), possible.last().unwrap_or(0));
        self.put(format!("{CPUS}/possible"), possible);
        self.put(format!("{CPUS}/present"), present);
        self.put(format!("{CPUS}/isolated"), "");
        let active = self.cores.values().any(|core| core.siblings.len() > 1);
        let types = self.machine.core_types.values().map(|kind| kind.threads_per_core);
        let supported = types.chain([self.machine.threads_per_core]).any(|threads| threads > 1);
        self.put(format!("{CPUS}/smt/active"), u8::from(active));
        let control = match (supported, active) {
            (false, _) => "notsupported",
            (true, true) => "on",
            (true, false) => "off",
        };
        self.put(format!("{CPUS}/smt/control"), control);
    }

    /// The kernel has a directory for the performance counters of each core type.
    fn core_types(&mut self) {
        let online = self.machine.online_cpus();
        for (name, kind) in &self.machine.core_types {
            self.put(format!("{DEVICES}/cpu_{name}/cpus"), kind.cpus.intersection(&online));
        }
    }

    fn cpus(&mut self) {
        let cores = std::mem::take(&mut self.cores);
        for (cpu, core) in &cores {
            self.cpu(*cpu, core, &cores);
        }
        self.cores = cores;
    }

    fn cpu(&mut self, cpu: Id, core: &Core, all: &BTreeMap<Id, Core>) {
        let dir = format!("{CPUS}/cpu{cpu}");
        let node = core.node;
        if self.machine.numa {
            self.link(format!("{dir}/node{node}"), format!("../../node/node{node}"));
        }
        let online = core.siblings.contains(cpu);
        if cpu != 0 {
            self.put(format!("{dir}/online"), u8::from(online));
        }
        if !online {
            return; // the kernel shows neither topology nor caches of such a CPU
        }
        let package = online_where(all, |other| other.package == core.package);
        let topology = format!("{dir}/topology");
        self.put(format!("{topology}/physical_package_id"), core.package);
        self.put(format!("{topology}/die_id"), 0);
        self.put(format!("{topology}/core_id"), core.id);
        self.put(format!("{topology}/thread_siblings_list"), &core.siblings);
        self.put(format!("{topology}/core_cpus_list"), &core.siblings);
        self.put(format!("{topology}/core_siblings_list"), &package);
        self.put(format!("{topology}/package_cpus_list"), package);
        let near = online_where(all, |other| other.cache == core.cache);
        self.caches(&format!("{dir}/cache"), core, &near);
    }

    /// Per core, two L1 caches and one L2 cache; per node or group of cores, one L3 cache.
    fn caches(&mut self, dir: &str, core: &Core, near: &IdSet) {
        let first = usize::from(core.siblings.iter().next().unwrap_or(0));
        let has_packages = self.machine.node(core.node).is_some_and(|node| !node.packages.is_empty());
        let is_split = self.machine.cores_per_cache.is_some() || has_packages;
        let cache = if is_split { core.cache } else { usize::from(core.node) };
        let caches = [
            (1, "Data", "48K", first, &core.siblings),
            (1, "Instruction", "32K", first, &core.siblings),
            (2, "Unified", "2048K", first, &core.siblings),
            (3, "Unified", "32768K", cache, near),
        ];
        for (index, (level, kind, size, id, cpus)) in caches.into_iter().enumerate() {
            let dir = format!("{dir}/index{index}");
            self.put(format!("{dir}/level"), level);
            self.put(format!("{dir}/type"), kind);
            self.put(format!("{dir}/size"), size);
            self.put(format!("{dir}/id"), id);
            self.put(format!("{dir}/shared_cpu_list"), cpus);
            self.put(format!("{dir}/shared_cpu_map"), mask(cpus));
        }
    }

    /// Huge pages of the whole machine, the only ones that the Node object counts.
    fn hugepages(&mut self) {
        for size in self.machine.page_sizes() {
            let of_size = |node: &NodeSpec| node.pages().get(&size).copied().unwrap_or(0);
            self.pages(HUGEPAGES, size, self.machine.nodes.iter().map(of_size).sum());
        }
    }

    /// The kubelet counts sockets by `physical id`.
    fn cpuinfo(&mut self) {
        let cores = self.cores.iter().filter(|(cpu, core)| core.siblings.contains(**cpu));
        let lines = cores.map(|(cpu, Core { id, package, .. })| {
            format!(
                "processor\t: {cpu}\ncpu MHz\t\t: 2400.000\nphysical id\t: {package}\ncore id\t\t: {id}\n"
            )
        });
        let text = lines.collect::<Vec<_>>().join("\n");
        self.put("proc/cpuinfo".to_owned(), text);
    }

    fn meminfo(&mut self) {
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
        self.put("proc/meminfo".to_owned(), lines.join("\n"));
    }
}

fn online_where(cores: &BTreeMap<Id, Core>, belongs: impl Fn(&Core) -> bool) -> IdSet {
    let online = cores.iter().filter(|(cpu, core)| core.siblings.contains(**cpu));
    online.filter(|(_, core)| belongs(core)).map(|(cpu, _)| *cpu).collect()
}

/// The first set, or the second one if the first is empty.
fn or<'a>(ids: &'a IdSet, default: &'a IdSet) -> &'a IdSet {
    if ids.is_empty() { default } else { ids }
}

fn node_meminfo(node: &NodeSpec) -> String {
    let id = node.id;
    let (total, huge) = (node.memory.ceil() / 1024, node.hugepage_bytes() / 1024);
    let pages: u64 = node.pages().values().sum();
    let first = format!("Node {id} MemTotal:       {total} kB");
    let lines = [
        format!("Node {id} MemFree:        {} kB", total - huge),
        format!("Node {id} MemUsed:        {huge} kB"),
        format!("Node {id} HugePages_Total: {pages}"),
        format!("Node {id} HugePages_Free:  {pages}"),
        format!("Node {id} HugePages_Surp:  0"),
    ];
    let first = Some(first).filter(|_| !node.missing.contains(&Missing::MemTotal));
    first.into_iter().chain(lines).collect::<Vec<_>>().join("\n")
}

/// Formats a CPU mask as the kernel does: 32-bit words in hexadecimal, the highest first.
fn mask(cpus: &IdSet) -> String {
    let word = |index: Id| {
        let bits = cpus.iter().filter(|cpu| cpu / 32 == index);
        bits.fold(0_u32, |word, cpu| word | 1 << (cpu % 32))
    };
    let words = (0..=cpus.last().unwrap_or(0) / 32).rev().map(|index| format!("{:08x}", word(index)));
    words.collect::<Vec<_>>().join(",")
}
