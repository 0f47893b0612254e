//! The sockets and L3 caches of NUMA nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::{CPUS, HostFiles, Id, IdSet, Machine, NumaNode, SHARED_LEVEL};

/// Where the CPUs of one node are. What the kernel does not tell is empty, as on many virtual machines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuLayout {
    /// The sockets (`physical_package_id`).
    pub sockets: BTreeSet<Id>,
    /// The CPUs of the node that share an L3 cache, for each of its caches, ascending.
    pub caches: Vec<IdSet>,
}

/// Reads the layout of each node, from the files of one CPU of each cache. Where there are no caches, those of every
/// CPU are read. A node with the same CPUs as `before` still has its layout.
pub(super) fn read(files: &impl HostFiles, nodes: &[NumaNode], before: &Machine) -> BTreeMap<Id, CpuLayout> {
    let known = |node: &NumaNode| {
        let is_same = before.node(node.id).is_some_and(|known| known.cpus == node.cpus);
        before.layout.get(&node.id).filter(|_| is_same).cloned()
    };
    let with_cpus = nodes.iter().filter(|node| !node.cpus.is_empty());
    with_cpus.map(|node| (node.id, known(node).unwrap_or_else(|| of(files, &node.cpus)))).collect()
}

fn of(files: &impl HostFiles, cpus: &IdSet) -> CpuLayout {
    let mut layout = CpuLayout::default();
    let mut covered = IdSet::new();
    for cpu in cpus.iter() {
        if covered.contains(cpu) {
            continue;
        }
        let socket = files.read(&format!("{CPUS}/cpu{cpu}/topology/physical_package_id"));
        layout.sockets.extend(socket.ok().and_then(|text| text.trim().parse::<Id>().ok()));
        let cache = shared_by(files, cpu).map(|cache| cache.intersection(cpus));
        if let Some(cache) = cache.filter(|cache| cache.contains(cpu)) {
            covered.union_with(&cache);
            layout.caches.push(cache);
        }
    }
    layout
}

/// Returns the CPUs that share the L3 cache of this one.
fn shared_by(files: &impl HostFiles, cpu: Id) -> Option<IdSet> {
    let dir = format!("{CPUS}/cpu{cpu}/cache");
    let indexes = files.list(&dir).ok()?;
    let read = |index: &str, name: &str| files.read(&format!("{dir}/{index}/{name}")).ok();
    let is_shared = |index: &&String| {
        let level = index.starts_with("index").then(|| read(index, "level")).flatten();
        level.is_some_and(|level| level.trim().parse() == Ok(SHARED_LEVEL))
    };
    read(indexes.iter().find(is_shared)?, "shared_cpu_list")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::RecordedFiles;

    /// A tree in which these CPUs have these sockets and L3 caches.
    fn files(cpus: &[(Id, &str, &str)]) -> RecordedFiles {
        let mut files = RecordedFiles::default();
        for (cpu, socket, cache) in cpus {
            let mut put = |name: &str, text: &str| {
                files.read.insert(format!("{CPUS}/cpu{cpu}/{name}"), format!("{text}\n"));
            };
            put("topology/physical_package_id", socket);
            put("cache/index0/level", "1");
            put("cache/index0/shared_cpu_list", &cpu.to_string());
            if !cache.is_empty() {
                put("cache/index3/level", "3");
                put("cache/index3/shared_cpu_list", cache);
            }
        }
        files
    }

    fn layout(files: &RecordedFiles, cpus: &str) -> (String, Vec<String>) {
        let CpuLayout { sockets, caches } = of(files, &cpus.parse().unwrap());
        (format!("{sockets:?}"), caches.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn one_cpu_of_each_cache_is_read() {
        // There are no files of CPUs 1 and 3.
        let two = files(&[(0, "0", "0-1"), (2, "0", "2-3")]);
        assert_eq!(layout(&two, "0-3"), ("{0}".to_owned(), vec!["0-1".to_owned(), "2-3".to_owned()]));
    }

    #[test]
    fn the_layout_is_read_again_if_the_cpus_change() {
        let node = |cpus: &str| NumaNode { cpus: cpus.parse().unwrap(), ..NumaNode::default() };
        let read = |files: &RecordedFiles, cpus: &str, before: &Machine| {
            let nodes = vec![node(cpus)];
            let layout = super::read(files, &nodes, before);
            Machine { nodes, layout, ..Machine::default() }
        };
        let (before, after) = (files(&[(0, "0", "0-1")]), files(&[(0, "1", "0-1")]));
        let first = read(&before, "0-1", &Machine::default());
        assert_eq!(read(&after, "0-1", &first).layout, first.layout);
        assert_eq!(read(&after, "0", &first).layout[&0].sockets, [1].into());
    }

    #[test]
    fn a_cache_of_several_nodes_counts_in_each() {
        let one = files(&[(0, "0", "0-3"), (2, "0", "0-3")]);
        assert_eq!(layout(&one, "2-3"), ("{0}".to_owned(), vec!["2-3".to_owned()]));
    }

    #[test]
    fn without_caches_every_cpu_tells_its_socket() {
        let bare = files(&[(0, "0", ""), (1, "1", ""), (2, "-1", ""), (3, "x", "y")]);
        assert_eq!(layout(&bare, "0-4"), ("{0, 1}".to_owned(), Vec::new()));
    }
}
