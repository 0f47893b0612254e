//! Where each CPU is: its core, socket and L3 cache.

use std::collections::BTreeMap;

use super::{CPUS, FileError, HostFiles, Id, IdSet, Machine, SHARED_LEVEL};

/// Where one CPU is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuLocation {
    /// The NUMA node.
    pub node: Id,
    /// The socket (`physical_package_id`).
    pub socket: Id,
    /// The core: the lowest of its CPUs.
    pub core: Id,
    /// The id of its L3 cache if only a part of the node shares it, else its socket. The kubelet calls this the
    /// uncore cache.
    pub cache: Id,
}

/// Reads where each online CPU of the machine is, as the kubelet does (upstream: cAdvisor,
/// `utils/sysinfo/sysinfo.go`). A CPU whose core or socket cannot be read is left out.
#[must_use]
pub fn read_cpus(files: &impl HostFiles, machine: &Machine) -> (BTreeMap<Id, CpuLocation>, Vec<FileError>) {
    let mut reader = Reader { files, errors: Vec::new() };
    let mut cpus = BTreeMap::new();
    for node in &machine.nodes {
        // Core ids are unique within a socket only.
        let mut cores: BTreeMap<(Id, Id), Vec<Id>> = BTreeMap::new();
        for cpu in node.cpus.iter() {
            let core = reader.number(&format!("{CPUS}/cpu{cpu}/topology/core_id"));
            let socket = reader.number(&format!("{CPUS}/cpu{cpu}/topology/physical_package_id"));
            if let (Some(core), Some(socket)) = (core, socket) {
                cores.entry((socket, core)).or_default().push(cpu);
            }
        }
        let count = cores.len() as u64;
        for ((socket, _), threads) in cores {
            let core = threads[0];
            let whole_node = count * threads.len() as u64;
            let cache = reader.shared_cache(core, whole_node).unwrap_or(socket);
            let location = CpuLocation { node: node.id, socket, core, cache };
            cpus.extend(threads.into_iter().map(|cpu| (cpu, location)));
        }
    }
    (cpus, reader.errors)
}

struct Reader<'a, F> {
    files: &'a F,
    errors: Vec<FileError>,
}

impl<F: HostFiles> Reader<'_, F> {
    fn number(&mut self, file: &str) -> Option<Id> {
        let text = self.files.read(file).map_err(|error| error.to_string());
        let number = text.and_then(|text| text.trim().parse().map_err(|_| "is not a number".to_owned()));
        let consequence = "the CPU is left out";
        number
            .map_err(|what| {
                self.errors
                    .push(FileError { file: file.to_owned(), message: format!("{what}; {consequence}") });
            })
            .ok()
    }

    /// Returns the id of the first cache that several cores share, but not all of the node's `whole_node` CPUs.
    /// Virtual machines may have no caches.
    fn shared_cache(&self, cpu: Id, whole_node: u64) -> Option<Id> {
        let dir = format!("{CPUS}/cpu{cpu}/cache");
        let indexes = self.files.list(&dir).ok()?;
        let read = |index: &str, name: &str| self.files.read(&format!("{dir}/{index}/{name}")).ok();
        indexes.iter().filter(|name| name.starts_with("index")).find_map(|index| {
            let level: u64 = read(index, "level")?.trim().parse().ok()?;
            if level < SHARED_LEVEL {
                return None;
            }
            let cpus: IdSet = read(index, "shared_cpu_list")?.parse().ok()?;
            let id = read(index, "id")?.trim().parse().ok()?;
            (cpus.len() != whole_node).then_some(id)
        })
    }
}
