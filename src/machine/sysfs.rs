//! Reads a [`Machine`] from sysfs, as documented in the kernel's ABI of `/sys/devices/system/node`.

use std::collections::BTreeMap;
use std::io;
use std::str::FromStr;

use super::{HIGHEST_NODE, HostFiles, Id, IdSet, Machine, MachineError, NumaNode, Problem};

const NODES: &str = "sys/devices/system/node";
const CPUS: &str = "sys/devices/system/cpu";
/// The machine-wide huge page pools, for machines without NUMA nodes.
const HUGEPAGES: &str = "sys/kernel/mm/hugepages";

/// Contains a directory `cpu_<kind>` for each kind of core.
const DEVICES: &str = "sys/devices";
const CORE_TYPE: &str = "cpu_";

/// Reads the machine.
///
/// # Errors
/// The NUMA directory or, without one, the list of online CPUs cannot be read. Anything else stays zero and
/// is reported in [`Machine::problems`].
pub fn read(files: &impl HostFiles) -> Result<Machine, MachineError> {
    let mut reader = Reader { files, problems: Vec::new() };
    let online = reader.online_nodes()?;
    let mut nodes = match &online {
        Some(ids) => ids.iter().map(|id| reader.node(id, ids)).collect(),
        None => vec![reader.whole_machine()?],
    };
    if online.is_some() {
        reader.leave_out_offline(&mut nodes);
    }
    reader.count_once(&mut nodes);
    let core_types = reader.core_types();
    let threads_per_core = reader.threads_per_core(&nodes);
    Ok(Machine { nodes, numa: online.is_some(), core_types, threads_per_core, problems: reader.problems })
}

struct Reader<'a, F> {
    files: &'a F,
    problems: Vec<Problem>,
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
            Err(source) => Err(MachineError::Unreadable { file, source }),
        }
    }

    /// Falls back to the node directories if `online` is missing or malformed.
    fn listed_nodes(&mut self, file: &str, what: &str) -> Result<Option<IdSet>, MachineError> {
        let names = match self.files.list(NODES) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(MachineError::Unreadable { file: NODES.to_owned(), source }),
        };
        let id = |name: &String| name.strip_prefix("node")?.parse::<Id>().ok();
        let ids: IdSet = names.iter().filter_map(id).filter(|id| *id <= HIGHEST_NODE).collect();
        if ids.is_empty() {
            return Ok(None);
        }
        self.problem(file, format!("{what}; using the node directories instead: {ids}"));
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
            Some(None) if self.has_directory(id) => self.problem(&file, format!("is missing; {consequence}")),
            Some(None) | None => {}
        }
        IdSet::new()
    }

    fn has_directory(&self, id: Id) -> bool {
        self.files.list(NODES).is_ok_and(|names| names.contains(&format!("node{id}")))
    }

    /// Removes offline CPUs: on arm64, kernels before 4.15 list them too ("mm: only display online cpus of
    /// the numa node").
    fn leave_out_offline(&mut self, nodes: &mut [NumaNode]) {
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
                self.problem(&format!("{NODES}/node{}/cpulist", node.id), what);
            }
        }
    }

    /// Reads the CPUs of each kind of core (`cpu_core` etc.); empty if all cores are of one kind.
    fn core_types(&mut self) -> BTreeMap<String, IdSet> {
        let consequence = "the kinds of cores are not told";
        let names = match self.files.list(DEVICES) {
            Ok(names) => names,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    self.problem(DEVICES, format!("{error}; {consequence}"));
                }
                return BTreeMap::new();
            }
        };
        let mut types = BTreeMap::new();
        for name in &names {
            let Some(kind) = name.strip_prefix(CORE_TYPE).filter(|kind| !kind.is_empty()) else { continue };
            let file = format!("{DEVICES}/{name}/cpus");
            let cpus: IdSet =
                self.parsed(&file, "this kind of cores is not told").flatten().unwrap_or_default();
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
        let text = match self.files.read(&file) {
            Ok(text) => text,
            Err(source) => return Err(MachineError::Unreadable { file, source }),
        };
        let cpus: IdSet = match text.parse() {
            Ok(cpus) => cpus,
            Err(error) => return Err(MachineError::Malformed { file, what: format!("{error}") }),
        };
        let (hugepages, hugepages_unread) = self.hugepages(HUGEPAGES);
        let memory = self.mem_total("proc/meminfo");
        Ok(NumaNode { id: 0, cpus, memory, hugepages, hugepages_unread, distances: BTreeMap::new() })
    }

    /// Parses a file that may be missing (`Some(None)`). If it is unreadable or malformed, records a problem
    /// and returns `None`.
    fn parsed<T: FromStr>(&mut self, file: &str, consequence: &str) -> Option<Option<T>>
    where
        T::Err: std::fmt::Display,
    {
        let text = match self.files.read(file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(None),
            Err(error) => {
                self.problem(file, format!("{error}; {consequence}"));
                return None;
            }
        };
        let parsed = text.trim().parse();
        parsed.map_err(|error| self.problem(file, format!("{error}; {consequence}"))).ok().map(Some)
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
                self.problem(file, format!("`{}` is no amount of memory; {consequence}", brief(line)));
                0
            }
        }
    }

    /// Reads `hugepages-<kB>kB/nr_hugepages` below `dir`, and returns whether any of it was unreadable. Nodes
    /// without memory have no such directory.
    fn hugepages(&mut self, dir: &str) -> (BTreeMap<u64, u64>, bool) {
        let names = match self.files.list(dir) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return (BTreeMap::new(), false),
            Err(error) => {
                self.problem(dir, format!("{error}; its huge pages are taken as 0"));
                return (BTreeMap::new(), true);
            }
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
                    brief(&text),
                    online.len()
                );
                self.problem(file, what);
                BTreeMap::new()
            }
        }
    }

    /// Returns the text of a file; `None` if it is missing or unreadable (the latter is a problem).
    fn text(&mut self, file: &str, consequence: &str) -> Option<String> {
        match self.files.read(file) {
            Ok(text) => Some(text),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    self.problem(file, format!("{error}; {consequence}"));
                }
                None
            }
        }
    }

    fn problem(&mut self, file: &str, what: String) {
        self.problems.push(Problem { file: file.to_owned(), what });
    }
}

fn brief(text: &str) -> String {
    text.trim().chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::super::RecordedFiles;
    use super::*;

    fn files(entries: &[(&str, &str)]) -> RecordedFiles {
        let read = entries.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        RecordedFiles { read, ..RecordedFiles::default() }
    }

    const TWO_SPARSE_NODES: [(&str, &str); 9] = [
        ("sys/devices/system/node/online", "0,8\n"),
        ("sys/devices/system/node/node0/cpulist", "0-3\n"),
        ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       16384 kB\nNode 0 MemFree: 1 kB\n"),
        ("sys/devices/system/node/node0/distance", "10 40\n"),
        ("sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages", "3\n"),
        ("sys/devices/system/node/node0/hugepages/hugepages-1048576kB/nr_hugepages", "0\n"),
        ("sys/devices/system/node/node8/cpulist", "\n"),
        ("sys/devices/system/node/node8/meminfo", "Node 8 MemTotal:       4096 kB\n"),
        ("sys/devices/system/node/node8/distance", "40 10\n"),
    ];

    #[test]
    fn nodes_are_keyed_by_their_real_id() {
        let machine = read(&files(&TWO_SPARSE_NODES)).unwrap();
        assert!(machine.numa);
        assert_eq!(machine.problems, []);
        assert_eq!(
            machine.nodes,
            [
                NumaNode {
                    id: 0,
                    cpus: "0-3".parse().unwrap(),
                    memory: 16384 << 10,
                    hugepages: [(2 << 20, 3), (1 << 30, 0)].into(),
                    hugepages_unread: false,
                    distances: [(0, 10), (8, 40)].into(),
                },
                NumaNode {
                    id: 8,
                    cpus: IdSet::new(),
                    memory: 4096 << 10,
                    hugepages: BTreeMap::new(),
                    hugepages_unread: false,
                    distances: [(0, 40), (8, 10)].into(),
                },
            ]
        );
        assert_eq!(machine.node(8).unwrap().memory, 4096 << 10);
        assert_eq!(machine.node(1), None);
    }

    #[test]
    fn a_malformed_file_is_told_once_and_hides_nothing_else() {
        for (file, text, expected) in [
            (
                "node0/cpulist",
                "0-x\n",
                "`0-x` is not a list of ids such as 0-3,8; no CPUs of this node are known",
            ),
            (
                "node0/meminfo",
                "Node 0 MemTotal: lots\n",
                "`Node 0 MemTotal: lots` is no amount of memory; its memory is taken as 0",
            ),
            (
                "node0/distance",
                "10\n",
                "`10` is not one distance for each of the 2 online nodes; the costs of this node are published as unknown (255)",
            ),
            (
                "node0/hugepages/hugepages-2048kB/nr_hugepages",
                "\u{0}\n",
                "invalid digit found in string; these pages are taken as 0",
            ),
            (
                "online",
                "zero\n",
                "`zero` is not a list of ids such as 0-3,8; using the node directories instead: 0,8",
            ),
        ] {
            let mut recorded = files(&TWO_SPARSE_NODES);
            recorded.read.insert(format!("{NODES}/{file}"), text.to_owned());
            let machine = read(&recorded).unwrap();
            let problems: Vec<String> = machine.problems.iter().map(Problem::to_string).collect();
            assert_eq!(problems, [format!("{NODES}/{file}: {expected}")]);
            assert_eq!(machine.nodes.len(), 2);
            assert_eq!(machine.nodes[1].memory, 4096 << 10);
            assert_eq!(machine.nodes[0].hugepages_unread, file.ends_with("nr_hugepages"));
        }
    }

    #[test]
    fn there_are_no_more_nodes_and_page_sizes_than_linux_can_have() {
        let pool = "sys/devices/system/node/node3/hugepages/hugepages";
        let (odd, even) = (format!("{pool}-3000kB/nr_hugepages"), format!("{pool}-2048kB/nr_hugepages"));
        let machine = read(&files(&[
            ("sys/devices/system/node/online", "0-65535\n"),
            ("sys/devices/system/node/node3/cpulist", "0\n"),
            ("sys/devices/system/node/node1024/cpulist", "1\n"),
            (&odd, "1\n"),
            (&even, "1\n"),
        ]))
        .unwrap();
        assert_eq!(machine.nodes.iter().map(|node| node.id).collect::<Vec<_>>(), [3]);
        assert_eq!(machine.nodes[0].hugepages, [(2 << 20, 1)].into());
        assert_eq!(
            machine.problems[0].what,
            "names more nodes than Linux can have; using the node directories instead: 3"
        );
        let highest = read(&files(&[("sys/devices/system/node/online", "1023\n")])).unwrap();
        assert_eq!((highest.nodes[0].id, highest.problems), (1023, vec![]));
    }

    #[test]
    fn kinds_of_cores_are_told_where_there_are_any() {
        let machine = read(&files(&[
            ("sys/devices/system/node/online", "0\n"),
            ("sys/devices/cpu_core/cpus", "0-3\n"),
            ("sys/devices/cpu_core/type", "4\n"),
            ("sys/devices/cpu_atom/cpus", "4-7\n"),
            ("sys/devices/cpu_none/cpus", "\n"),
            ("sys/devices/cpu_else/type", "8\n"),
            ("sys/devices/cpu_odd/cpus", "?\n"),
            ("sys/devices/cpu_/cpus", "1\n"),
            ("sys/devices/cpu/cpus", "1\n"),
        ]))
        .unwrap();
        let types: Vec<_> = machine.core_types.iter().map(|(kind, cpus)| format!("{kind} {cpus}")).collect();
        assert_eq!(types, ["atom 4-7", "core 0-3"]);
        let problems: Vec<String> = machine.problems.iter().map(Problem::to_string).collect();
        assert_eq!(
            problems,
            [
                "sys/devices/cpu_odd/cpus: `?` is not a list of ids such as 0-3,8; this kind of cores is not told",
            ]
        );
    }

    #[test]
    fn missing_files_are_normal_but_for_the_list_of_cpus() {
        let machine = read(&files(&[("sys/devices/system/node/online", "0-1\n")])).unwrap();
        assert_eq!(machine.problems, []);
        assert_eq!(machine.nodes[1], NumaNode { id: 1, ..NumaNode::default() });
        let machine = read(&files(&[
            ("sys/devices/system/node/online", "0-2\n"),
            ("sys/devices/system/node/node0/cpulist", "\n"),
            ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       4096 kB\n"),
            ("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:       4096 kB\n"),
        ]))
        .unwrap();
        let problems: Vec<String> = machine.problems.iter().map(Problem::to_string).collect();
        let file = "sys/devices/system/node/node1/cpulist";
        assert_eq!(problems, [format!("{file}: is missing; no CPUs of this node are known")]);
    }

    #[test]
    fn cpus_that_are_offline_do_not_count() {
        let of = |online: Option<&str>| {
            let mut recorded = files(&TWO_SPARSE_NODES);
            recorded.read.insert(format!("{NODES}/node8/cpulist"), "4-7\n".to_owned());
            let file = format!("{CPUS}/online");
            recorded.read.extend(online.map(|online| (file, format!("{online}\n"))));
            let machine = read(&recorded).unwrap();
            let cpus: Vec<String> = machine.nodes.iter().map(|node| node.cpus.to_string()).collect();
            (cpus.join(" "), machine.problems.iter().map(Problem::to_string).collect::<String>())
        };
        let all = ("0-3 4-7".to_owned(), String::new());
        assert_eq!(of(Some("0-2,5-7")), ("0-2 5-7".to_owned(), String::new()));
        assert_eq!(of(Some("0-100")), all);
        assert_eq!((of(None), of(Some(""))), (all.clone(), all));
        let (cpus, problem) = of(Some("?"));
        assert_eq!(cpus, "0-3 4-7");
        assert!(problem.ends_with("; CPUs that are offline may be counted"), "{problem}");
    }

    #[test]
    fn without_a_numa_directory_there_is_one_node() {
        let machine = read(&files(&[
            ("sys/devices/system/cpu/online", "0-3\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "7\n"),
            ("proc/meminfo", "MemTotal:  1000 kB\n"),
        ]))
        .unwrap();
        assert!(!machine.numa);
        assert_eq!(machine.problems, []);
        assert_eq!(
            machine.nodes,
            [NumaNode {
                id: 0,
                cpus: "0-3".parse().unwrap(),
                memory: 1000 << 10,
                hugepages: [(2 << 20, 7)].into(),
                hugepages_unread: false,
                distances: BTreeMap::new(),
            }]
        );
    }

    #[test]
    fn a_host_without_anything_is_an_error_that_names_the_setting() {
        let error = read(&files(&[])).unwrap_err().to_string();
        assert!(error.starts_with("cannot read the hardware: sys/devices/system/cpu/online: "), "{error}");
        assert!(error.ends_with("is `host.sys` right?"), "{error}");
    }
}
