//! Reads a [`Machine`] from sysfs, as documented in the kernel's ABI of `/sys/devices/system/node`.

use std::collections::BTreeMap;
use std::io;
use std::str::FromStr;

use super::{
    CPUS, FileError, HIGHEST_NODE, HostFiles, Id, IdSet, Machine, MachineError, NumaNode, ParseIdSetError,
    layout,
};

const NODES: &str = "sys/devices/system/node";
/// The machine-wide huge page pools, for machines without NUMA nodes.
const HUGEPAGES: &str = "sys/kernel/mm/hugepages";

/// Contains a directory `cpu_<kind>` for each kind of core.
const DEVICES: &str = "sys/devices";
const CORE_TYPE: &str = "cpu_";

/// Reads the machine.
///
/// # Errors
/// The NUMA directory or, without one, the list of online CPUs cannot be read. Anything else stays zero and
/// is reported in [`Machine::errors`].
pub fn read(files: &impl HostFiles) -> Result<Machine, MachineError> {
    read_after(files, &Machine::default())
}

/// As [`read`]. What is in many files and changes with the hardware only, the layout, is taken from `before` for nodes
/// that have the same CPUs.
///
/// # Errors
/// As [`read`].
pub fn read_after(files: &impl HostFiles, before: &Machine) -> Result<Machine, MachineError> {
    let mut reader = Reader { files, errors: Vec::new() };
    let online = reader.online_nodes()?;
    let mut nodes = match &online {
        Some(ids) => ids.iter().map(|id| reader.node(id, ids)).collect(),
        None => vec![reader.whole_machine()?],
    };
    if online.is_some() {
        reader.remove_offline(&mut nodes);
    }
    reader.count_once(&mut nodes);
    let core_types = reader.core_types();
    let threads_per_core = reader.threads_per_core(&nodes);
    let layout = layout::read(files, &nodes, before);
    let numa = online.is_some();
    Ok(Machine { nodes, numa, core_types, threads_per_core, layout, errors: reader.errors })
}

struct Reader<'a, F> {
    files: &'a F,
    errors: Vec<FileError>,
}

impl<F: HostFiles> Reader<'_, F> {
    /// Returns the ids of the online nodes; `None` if the kernel reports no NUMA nodes.
    fn online_nodes(&mut self) -> Result<Option<IdSet>, MachineError> {
        let file = format!("{NODES}/online");
        match self.files.read(&file) {
            Ok(text) => match IdSet::from_str(&text) {
                Ok(ids) if ids.last().is_some_and(|last| last <= HIGHEST_NODE) => Ok(Some(ids)),
                Ok(ids) if ids.is_empty() => self.listed_nodes(&file, "is empty"),
                Ok(_) => self.listed_nodes(&file, "names more nodes than Linux can have"),
                Err(error) => self.listed_nodes(&file, &error.to_string()),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.listed_nodes(&file, "is missing"),
            Err(error) => Err(unreadable(&file, &error)),
        }
    }

    /// Falls back to the node directories if `online` is missing or malformed.
    fn listed_nodes(&mut self, file: &str, what: &str) -> Result<Option<IdSet>, MachineError> {
        let names = match self.files.list(NODES) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(NODES, &error)),
        };
        let id = |name: &String| name.strip_prefix("node")?.parse::<Id>().ok();
        let ids: IdSet = names.iter().filter_map(id).filter(|id| *id <= HIGHEST_NODE).collect();
        if ids.is_empty() {
            return Ok(None);
        }
        self.error(file, format!("{what}; using the node directories instead: {ids}"));
        Ok(Some(ids))
    }

    fn node(&mut self, id: Id, online: &IdSet) -> NumaNode {
        let dir = format!("{NODES}/node{id}");
        let (hugepages, hugepages_unread) = self.hugepages(&format!("{dir}/hugepages"));
        NumaNode {
            id,
            cpus: self.cpus(id),
            memory: self.mem_total(&format!("{dir}/meminfo")),
            hugepages,
            hugepages_unread,
            distances: self.distances(&format!("{dir}/distance"), online),
        }
    }

    /// Reads a node's CPUs. A node without CPUs has an empty list; if its directory has no list, its CPUs are
    /// unknown.
    fn cpus(&mut self, id: Id) -> IdSet {
        let (file, consequence) = (format!("{NODES}/node{id}/cpulist"), "no CPUs of this node are known");
        match self.parsed(&file, consequence) {
            Some(Some(cpus)) => return cpus,
            Some(None) if self.has_directory(id) => self.error(&file, format!("is missing; {consequence}")),
            Some(None) | None => {}
        }
        IdSet::new()
    }

    fn has_directory(&self, id: Id) -> bool {
        self.files.list(NODES).is_ok_and(|names| names.contains(&format!("node{id}")))
    }

    /// Removes offline CPUs: on arm64, kernels before 4.15 list them too ("mm: only display online cpus of
    /// the numa node").
    fn remove_offline(&mut self, nodes: &mut [NumaNode]) {
        let online: Option<IdSet> =
            self.parsed(&format!("{CPUS}/online"), "CPUs that are offline may be counted").flatten();
        if let Some(online) = online.filter(|online| !online.is_empty()) {
            nodes.iter_mut().for_each(|node| node.cpus = node.cpus.intersection(&online));
        }
    }

    /// Keeps each CPU on one node only. With `numa=fake=` the kernel lists a CPU on every fake node split
    /// from its real one. Both the kernel's map from CPU to node and the kubelet, which uses it, take the
    /// lowest of them.
    fn count_once(&mut self, nodes: &mut [NumaNode]) {
        let mut lower = IdSet::new();
        for node in nodes {
            let repeated = node.cpus.intersection(&lower);
            lower.union_with(&node.cpus);
            if !repeated.is_empty() {
                node.cpus = node.cpus.difference(&repeated);
                let what = format!("CPUs {repeated} are on a lower node too; counted there only");
                self.error(&format!("{NODES}/node{}/cpulist", node.id), what);
            }
        }
    }

    /// Reads the CPUs of each kind of core (`cpu_core` etc.); empty if all cores are of one kind.
    fn core_types(&mut self) -> BTreeMap<String, IdSet> {
        let consequence = "the kinds of cores are unknown";
        let names = self.found(DEVICES, self.files.list(DEVICES), consequence).flatten();
        let mut types = BTreeMap::new();
        for name in names.iter().flatten() {
            let Some(kind) = name.strip_prefix(CORE_TYPE).filter(|kind| !kind.is_empty()) else { continue };
            let file = format!("{DEVICES}/{name}/cpus");
            let cpus: IdSet =
                self.parsed(&file, "this kind of cores is left out").flatten().unwrap_or_default();
            if !cpus.is_empty() {
                types.insert(kind.to_owned(), cpus);
            }
        }
        types
    }

    /// Returns the number of CPUs per core: the maximum over the first CPU of each node; 2 if unknown.
    fn threads_per_core(&self, nodes: &[NumaNode]) -> u64 {
        let first = nodes.iter().filter_map(|node| node.cpus.iter().next());
        let siblings = |cpu: Id| {
            let text = self.files.read(&format!("{CPUS}/cpu{cpu}/topology/thread_siblings_list")).ok()?;
            text.parse().ok().map(|siblings: IdSet| siblings.len())
        };
        first.filter_map(siblings).max().unwrap_or(2)
    }

    /// Reads a machine without NUMA information as one node with the id 0.
    fn whole_machine(&mut self) -> Result<NumaNode, MachineError> {
        let file = format!("{CPUS}/online");
        let text = self.files.read(&file).map_err(|error| unreadable(&file, &error))?;
        let malformed = |error: ParseIdSetError| MachineError(FileError { file, message: error.to_string() });
        let cpus: IdSet = text.parse().map_err(malformed)?;
        let (hugepages, hugepages_unread) = self.hugepages(HUGEPAGES);
        let memory = self.mem_total("proc/meminfo");
        Ok(NumaNode { id: 0, cpus, memory, hugepages, hugepages_unread, distances: BTreeMap::new() })
    }

    /// Parses a file that may be missing (`Some(None)`). If it is unreadable or malformed, records an error
    /// and returns `None`.
    fn parsed<T: FromStr>(&mut self, file: &str, consequence: &str) -> Option<Option<T>>
    where
        T::Err: std::fmt::Display,
    {
        let Some(text) = self.found(file, self.files.read(file), consequence)? else { return Some(None) };
        let parsed = text.trim().parse();
        parsed.map_err(|error| self.error(file, format!("{error}; {consequence}"))).ok().map(Some)
    }

    /// Reads `Node 0 MemTotal:  16384 kB` or `MemTotal:  16384 kB`, as bytes. A node without memory may lack
    /// it.
    fn mem_total(&mut self, file: &str) -> u64 {
        let consequence = "its memory is taken as 0";
        let Some(text) = self.text(file, consequence) else { return 0 };
        let Some(line) = text.lines().find(|line| line.contains("MemTotal:")) else { return 0 };
        let mut words = line.split_whitespace().skip_while(|word| *word != "MemTotal:").skip(1);
        match (words.next().map(str::parse::<u64>), words.next()) {
            (Some(Ok(kib)), Some("kB")) => kib.saturating_mul(1024),
            _ => {
                self.error(file, format!("`{}` is not an amount of memory; {consequence}", excerpt(line)));
                0
            }
        }
    }

    /// Reads `hugepages-<kB>kB/nr_hugepages` below `dir`, and returns whether any of it was unreadable. Nodes
    /// without memory have no such directory.
    fn hugepages(&mut self, dir: &str) -> (BTreeMap<u64, u64>, bool) {
        let names = match self.found(dir, self.files.list(dir), "its huge pages are taken as 0") {
            Some(Some(names)) => names,
            found => return (BTreeMap::new(), found.is_none()),
        };
        let size = |name: &String| -> Option<u64> {
            let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            // No processor has pages of another size. This also bounds the number of pools, whatever is in
            // the directory.
            kib.checked_mul(1024).filter(|size| size.is_power_of_two())
        };
        let (mut pools, mut unread) = (BTreeMap::new(), false);
        for (name, size) in names.iter().filter_map(|name| Some((name, size(name)?))) {
            let pages = self.parsed(&format!("{dir}/{name}/nr_hugepages"), "these pages are taken as 0");
            unread |= pages.is_none();
            pools.insert(size, pages.flatten().unwrap_or(0));
        }
        (pools, unread)
    }

    /// Reads the distances: one column per online node in ascending order of id, not indexed by id.
    fn distances(&mut self, file: &str, online: &IdSet) -> BTreeMap<Id, u32> {
        let consequence = "the costs of this node are published as unknown (255)";
        let Some(text) = self.text(file, consequence) else { return BTreeMap::new() };
        let columns: Result<Vec<u32>, _> = text.split_whitespace().map(str::parse).collect();
        match columns {
            Ok(columns) if columns.len() as u64 == online.len() => online.iter().zip(columns).collect(),
            _ => {
                let what = format!(
                    "`{}` is not one distance for each of the {} online nodes; {consequence}",
                    excerpt(&text),
                    online.len()
                );
                self.error(file, what);
                BTreeMap::new()
            }
        }
    }

    /// Returns what was read; `Some(None)` if it is missing. If it is unreadable, records an error and
    /// returns `None`.
    fn found<T>(&mut self, file: &str, read: io::Result<T>, consequence: &str) -> Option<Option<T>> {
        match read {
            Ok(found) => Some(Some(found)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(None),
            Err(error) => {
                self.error(file, format!("{error}; {consequence}"));
                None
            }
        }
    }

    /// Returns the text of a file; `None` if it is missing or unreadable (the latter is an error).
    fn text(&mut self, file: &str, consequence: &str) -> Option<String> {
        self.found(file, self.files.read(file), consequence).flatten()
    }

    fn error(&mut self, file: &str, message: String) {
        self.errors.push(FileError { file: file.to_owned(), message });
    }
}

fn unreadable(file: &str, error: &io::Error) -> MachineError {
    MachineError(FileError { file: file.to_owned(), message: format!("{error}; is `host.sys` right?") })
}

fn excerpt(text: &str) -> String {
    text.trim().chars().take(64).collect()
}

#[cfg(test)]
mod tests;
