//! Every machine in the repository is possible, matches its tree and could run a kubelet.

use numacast_core::machine::{CpuLayout, HostRoots, Machine, NumaNode, read, read_cpus};
use serde_json::Value;

use super::*;

/// The machines in `tests/machines/`, by name.
fn described() -> Vec<(String, MachineSpec)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/machines");
    let machines = MachineSpec::read_all(&dir).unwrap();
    assert!(machines.len() > 20, "{machines:?}");
    machines
}

/// Every machine, and those with a hardware change also after it.
fn states() -> Vec<(String, MachineSpec)> {
    let mut all = described();
    let later: Vec<_> =
        all.iter().filter_map(|(name, spec)| Some((format!("{name}, later"), spec.later()?))).collect();
    assert!(later.len() >= 3);
    all.extend(later);
    all
}

fn roots(root: &Path) -> HostRoots {
    HostRoots { sys: root.join("sys"), proc: root.join("proc") }
}

fn read_from(root: &Path) -> Machine {
    read(&roots(root)).unwrap()
}

/// The described nodes as [`Machine`] represents them.
fn expected_nodes(spec: &MachineSpec) -> Vec<NumaNode> {
    let node = |node: &NodeSpec| {
        let has_pages = node.memory.ceil() > 0 && !node.missing.contains(&Missing::Hugepages);
        let sizes = spec.page_sizes().into_iter().filter(|_| has_pages);
        NumaNode {
            id: node.id,
            cpus: node.cpus.clone(),
            memory: node.memory.ceil(),
            hugepages: sizes.map(|size| (size, node.pages().get(&size).copied().unwrap_or(0))).collect(),
            hugepages_unread: false,
            distances: node.distances.clone(),
        }
    };
    spec.nodes.iter().map(node).collect()
}

#[test]
fn described_machines_are_read_back_from_their_trees() {
    for (name, spec) in states() {
        let machine = read(&spec.files()).unwrap();
        assert_eq!(machine.nodes, expected_nodes(&spec), "{name}");
        assert_eq!(machine.numa, spec.numa, "{name}");
        let types = spec.core_types.iter().map(|(kind, of)| (kind.clone(), of.cpus.clone()));
        assert_eq!(machine.core_types, types.collect(), "{name}");
        let repeated = spec.nodes.iter().filter(|node| !node.repeated_cpus.is_empty());
        let errors: Vec<String> = machine.errors.iter().map(ToString::to_string).collect();
        let expected: Vec<String> = repeated
            .map(|node| {
                let (id, cpus) = (node.id, &node.repeated_cpus);
                let file = format!("sys/devices/system/node/node{id}/cpulist");
                format!("{file}: CPUs {cpus} are on a lower node too; counted there only")
            })
            .collect();
        assert_eq!(errors, expected, "{name}");
    }
}

/// The described sockets and caches as [`Machine`] represents them.
fn layout(spec: &MachineSpec) -> BTreeMap<Id, CpuLayout> {
    let mut caches: BTreeMap<(Id, Id), IdSet> = BTreeMap::new();
    let mut layouts: BTreeMap<Id, CpuLayout> = BTreeMap::new();
    for (cpu, location) in spec.cpu_locations() {
        layouts.entry(location.node).or_default().sockets.insert(location.socket);
        caches.entry((location.node, location.cache)).or_default().insert(cpu);
    }
    for ((node, _), cpus) in caches {
        layouts.entry(node).or_default().caches.push(cpus);
    }
    layouts.values_mut().for_each(|layout| layout.caches.sort_by_key(|cpus| cpus.iter().next()));
    layouts
}

/// Writes several machines to disk, each into the tree of the one before.
#[test]
fn writing_another_machine_replaces_all_files() {
    let root = tempfile::tempdir().unwrap();
    let names = [
        "fake-numa",
        "power9-gpus",
        "no-numa",
        "late-gpu-memory",
        "empty-nodes",
        "hybrid",
        "hotplug",
        "smt-off",
        "spanning",
        "split-caches",
    ];
    for name in names {
        let (_, spec) = described().into_iter().find(|(described, _)| described == name).unwrap();
        for spec in [Some(spec.clone()), spec.later()].into_iter().flatten() {
            spec.write_tree(root.path()).unwrap();
            // `files` has no topology of single CPUs.
            let whole = read_from(root.path());
            let machine = Machine { threads_per_core: 2, layout: BTreeMap::new(), ..whole.clone() };
            let threads = read(&spec.files()).unwrap();
            assert_eq!(
                machine,
                Machine { threads_per_core: 2, layout: BTreeMap::new(), ..threads },
                "{name}"
            );
            let (cpus, errors) = read_cpus(&roots(root.path()), &machine);
            assert_eq!((cpus, errors), (spec.cpu_locations(), Vec::new()), "{name}");
            assert_eq!(whole.layout, layout(&spec), "{name}");
            let (files, links) = contents(root.path());
            // All files that are not about a single CPU are in `files`.
            let is_single = |path: &str| path.contains("/cpu/cpu");
            let texts = files.into_iter().filter(|(path, _)| !is_single(path)).collect::<BTreeMap<_, _>>();
            assert_eq!(texts, spec.files().read, "{name}");
            let present = spec.nodes.iter().map(|node| node.present_cpus().len()).sum::<u64>();
            let listed = root.path().join("sys/devices/system/cpu");
            let cpus = std::fs::read_dir(listed).unwrap().map(|entry| entry.unwrap().file_name());
            let cpus =
                cpus.filter(|name| name.to_str().unwrap().trim_start_matches("cpu").parse::<Id>().is_ok());
            assert_eq!(cpus.count() as u64, present, "{name}");
            // The real kubelet reads these links.
            let reported =
                spec.nodes.iter().filter(|node| spec.numa && !node.missing.contains(&Missing::Directory));
            let bus: BTreeSet<String> =
                reported.map(|node| format!("sys/bus/node/devices/node{}", node.id)).collect();
            let links: BTreeSet<String> =
                links.into_iter().filter(|link| link.starts_with("sys/bus")).collect();
            assert_eq!(links, bus, "{name}");
        }
    }
}

/// The content of every file and the path of every link below a directory.
fn contents(root: &Path) -> (BTreeMap<String, String>, BTreeSet<String>) {
    let (mut texts, mut links) = (BTreeMap::new(), BTreeSet::new());
    let mut left = vec![root.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let short = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            match path.symlink_metadata().unwrap().file_type() {
                kind if kind.is_symlink() => drop(links.insert(short)),
                kind if kind.is_dir() => left.push(path),
                _ => drop(texts.insert(short, std::fs::read_to_string(path).unwrap())),
            }
        }
    }
    (texts, links)
}

/// What a kubelet checks at startup: reserved CPUs exist, and its reserved memory adds up.
#[test]
fn described_kubelets_would_start() {
    for (name, spec) in described() {
        let text = |key: &str| spec.kubelet.get(key).and_then(Value::as_str).unwrap_or_default();
        let reserved: IdSet = text("reservedSystemCPUs").parse().unwrap();
        assert!(reserved.difference(&spec.online_cpus()).is_empty(), "{name}: {reserved}");
        assert_eq!(text("cpuManagerPolicy") == "static", !reserved.is_empty(), "{name}");
        let bytes = |value: &Value| value.as_str().unwrap_or("0").parse::<Quantity>().unwrap().ceil();
        let mut sum = 0;
        for entry in spec.kubelet.get("reservedMemory").and_then(Value::as_array).into_iter().flatten() {
            let node = spec.node(Id::try_from(entry["numaNode"].as_u64().unwrap()).unwrap()).unwrap();
            let memory = bytes(&entry["limits"]["memory"]);
            assert!(memory + node.hugepage_bytes() < node.memory.ceil(), "{name}: node {}", node.id);
            sum += memory;
        }
        if text("memoryManagerPolicy") == "Static" {
            let system = spec.kubelet.get("systemReserved").map_or(0, |keys| bytes(&keys["memory"]));
            assert_eq!(sum, system + (100 << 20), "{name}");
        }
        let aligned = !matches!(text("topologyManagerPolicy"), "" | "none");
        let max = spec
            .kubelet
            .get("topologyManagerPolicyOptions")
            .map(|options| &options["max-allowable-numa-nodes"]);
        let max = max.and_then(Value::as_str).map_or(8, |max| max.parse::<usize>().unwrap());
        assert!(!aligned || spec.nodes.len() <= max, "{name}: more nodes than its kubelet aligns");
    }
}

fn one(yaml: &str) -> (tempfile::TempDir, MachineSpec) {
    let spec = MachineSpec::from_yaml(yaml).unwrap();
    let root = tempfile::tempdir().unwrap();
    spec.write_tree(root.path()).unwrap();
    (root, spec)
}

fn text(root: &tempfile::TempDir, file: &str) -> String {
    std::fs::read_to_string(root.path().join(file)).unwrap().trim().to_owned()
}

fn siblings(root: &tempfile::TempDir, cpu: Id) -> String {
    text(root, &format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
}

#[test]
fn siblings_are_numbered_as_in_linux() {
    let (root, _) =
        one("{description: x, threadsPerCore: 2, nodes: [{id: 0, cpus: '0-1,4-5', memory: 1Gi}]}");
    assert_eq!([0, 5].map(|cpu| siblings(&root, cpu)), ["0,4", "1,5"]);
    let (root, _) = one("{description: x, threadsPerCore: 4, adjacentThreads: true,
          nodes: [{id: 0, cpus: '0-5', offlineCpus: '6-7'}]}");
    assert_eq!([0, 5].map(|cpu| siblings(&root, cpu)), ["0-3", "4-5"]);
    let (root, _) = one("{description: x, adjacentThreads: true, nodes: [{id: 0, cpus: 0-5}],
          coreTypes: {core: {cpus: 0-3, threadsPerCore: 2}, atom: {cpus: 4-5}}}");
    assert_eq!([2, 4, 5].map(|cpu| siblings(&root, cpu)), ["2-3", "4", "5"]);
    assert_eq!(text(&root, "sys/devices/cpu_atom/cpus"), "4-5");
}

#[test]
fn offline_threads_are_present_but_not_siblings() {
    let (root, _) = one("{description: x, threadsPerCore: 2, possibleCpus: 0-7, possible: 0-1,
          nodes: [{id: 0, cpus: 0-1, offlineCpus: 2-3, memory: 1Gi}]}");
    assert_eq!(siblings(&root, 1), "1");
    let cpu = |file: &str| text(&root, &format!("sys/devices/system/cpu/{file}"));
    assert_eq!(["online", "present", "possible", "offline"].map(cpu), ["0-1", "0-3", "0-7", "2-7"]);
    assert_eq!((cpu("smt/active"), cpu("smt/control")), ("0".to_owned(), "off".to_owned()));
    assert!(!root.path().join("sys/devices/system/cpu/cpu2/topology").exists());
    assert_eq!(text(&root, "sys/devices/system/node/possible"), "0-1");
}

#[test]
fn a_node_can_span_sockets() {
    let (root, _) = one("{description: x, threadsPerCore: 2,
          nodes: [{id: 0, cpus: 0-7, packages: {0: '0-1,4-5', 1: '2-3,6-7'}}]}");
    let of = |cpu: Id, file: &str| text(&root, &format!("sys/devices/system/cpu/cpu{cpu}/topology/{file}"));
    assert_eq!([0, 3].map(|cpu| of(cpu, "physical_package_id")), ["0", "1"]);
    assert_eq!([0, 3].map(|cpu| of(cpu, "core_id")), ["0", "1"], "core ids start anew in each socket");
    assert_eq!(of(3, "package_cpus_list"), "2-3,6-7");
}

#[test]
fn impossible_machines_are_rejected() {
    for (rest, why) in [
        ("nodes: []", "no node"),
        ("nodes: [{id: 0}, {id: 0}]", "node 0 exists twice"),
        ("nodes: [{id: 0, cpus: 0-3}, {id: 1, cpus: '3'}]", "CPU 3 of node 1"),
        ("nodes: [{id: 0, cpus: 0-3, offlineCpus: 3-4}]", "both online and offline"),
        ("nodes: [{id: 0, memory: 1Gi, hugepages: {1Gi: 2}}]", "more than its memory"),
        ("nodes: [{id: 0, memory: 1Gi, hugepages: {big: 2}}]", "an invalid size"),
        ("nodes: [{id: 0, distances: {1: 20}}]", "not one for each node"),
        ("nodes: [{id: 0}, {id: 1}], distances: ['10 20']", "1 rows of distances for 2 nodes"),
        ("nodes: [{id: 0}, {id: 1}], distances: ['10 20', '20']", "not one for each node"),
        ("nodes: [{id: 0}], distances: ['near']", "the row of distances `near`"),
        ("nodes: [{id: 0, distances: {0: 10}}], distances: ['10']", "not one for each node"),
        ("nodes: [{id: 0, repeatedCpus: 0-1}]", "repeats CPU 0"),
        ("nodes: [{id: 0, memory: 1Gi, missing: [meminfo]}]", "has memory and does not report it"),
        ("nodes: [{id: 0, memory: 1Gi, missing: [memTotal]}]", "has memory and does not report it"),
        ("nodes: [{id: 0, cpus: '0', missing: [directory]}]", "has CPUs and does not report"),
        ("nodes: [{id: 0, distances: {0: 10}, missing: [directory]}]", "has distances and does not"),
        ("nodes: [{id: 0, memory: 1Gi, hugepages: {2Mi: 1}, missing: [hugepages]}]", "has huge pages"),
        ("nodes: [{id: 0, missing: [cpulist]}]", "unknown variant"),
        ("nodes: [{id: 0, cpus: 0-3, packages: {0: 0-1}}]", "not those of its CPUs"),
        ("nodes: [{id: 0, cpus: 0-1, packages: {0: 0-1, 1: '1'}}]", "have the same CPU"),
        ("threadsPerCore: 2, nodes: [{id: 0, cpus: 0-3, packages: {0: 0-1, 1: 2-3}}]", "in two sockets"),
        ("numa: false, nodes: [{id: 0}, {id: 1}]", "without NUMA"),
        ("numa: false, nodes: [{id: 1}]", "without NUMA"),
        ("numa: false, nodes: [{id: 0, distances: {0: 10}}]", "without NUMA"),
        ("numa: false, possible: 0-1, nodes: [{id: 0}]", "no possible nodes"),
        ("possible: 0-1, nodes: [{id: 2}]", "node 2 is online and not possible"),
        ("possibleCpus: 0-1, nodes: [{id: 0, cpus: 1-2}]", "CPU 2 is present and not possible"),
        ("nodes: [{id: 0, cpus: '0'}], coreTypes: {atom: {cpus: '1'}}", "CPU 1 of the atom cores"),
        ("nodes: [{id: 0, cpus: '0'}], coreTypes: {a: {cpus: '0'}, b: {cpus: '0'}}", "has two core types"),
        ("nodes: [{id: 0, cpus: '0'}], coreTypes: {../a: {cpus: '0'}}", "not a valid core type"),
        ("nodes: [{id: 0}], devices: [{resource: a, devices: [{id: b, numa: [1]}]}]", "does not exist"),
        ("nodes: [{id: 0}], devices: [{resource: a, devices: [{id: b}, {id: b}]}]", "exists twice"),
        (
            "nodes: [{id: 0}], kubelet: {systemReserved: {cpu: much}}",
            "reserves \"much\", which is not a quantity",
        ),
        ("nodes: [{id: 0}], kubelet: {reservedMemory: [{limits: {memory: [1]}}]}", "reserves [1], which is"),
        ("nodes: [{id: 0}], later: {description: y, nodes: []}", "later: it has no node"),
    ] {
        let error = MachineSpec::from_yaml(&format!("{{description: x, {rest}}}")).unwrap_err();
        assert!(error.contains(why), "{rest}: {error}");
    }
}

/// The kinds of damage to a file, and whether each is reported. A missing file is not, since no machine has
/// all of them, except for the CPU list.
fn damages(file: &str) -> Vec<(Option<&'static str>, bool)> {
    let of_kind: &[(Option<&str>, bool)] = match file {
        "cpulist" => {
            &[(Some("\n"), false), (Some("0-\n"), true), (Some("3-0\n"), true), (Some("99999999\n"), true)]
        }
        "meminfo" => &[
            (Some("MemFree: 1 kB\n"), false),
            (Some("Node 0 MemTotal: -1 kB\n"), true),
            (Some("MemTotal:\n"), true),
        ],
        "distance" => &[
            (Some("10\n10 10 10 10 10 10 10 10 10\n"), true),
            (Some("near far\n"), true),
            (Some("\n"), true),
        ],
        _ => &[(Some("\n"), true), (Some("-1\n"), true), (Some("18446744073709551616\n"), true)],
    };
    let always = [(None, file == "cpulist"), (Some(""), !matches!(file, "cpulist" | "meminfo"))];
    let binary = (Some("\u{0}\u{fffd}"), file != "meminfo");
    always.into_iter().chain([binary]).chain(of_kind.iter().copied()).collect()
}

/// One bad file loses its own information and nothing else: not the other nodes, not the rest of its node.
#[test]
fn a_missing_empty_or_malformed_file_loses_only_its_own_information() {
    let mut damaged = 0;
    for (name, spec) in states().into_iter().filter(|(_, spec)| spec.numa) {
        let mut files = spec.files();
        let whole = read(&files).unwrap();
        let read_files: Vec<String> = files.read.keys().filter(|file| is_read(file)).cloned().collect();
        for path in read_files {
            let (dir, file) = path.rsplit_once('/').unwrap();
            let id: Id =
                dir["sys/devices/system/node/node".len()..].split('/').next().unwrap().parse().unwrap();
            let before = files.read.remove(&path).unwrap();
            for (text, is_reported) in damages(file) {
                match text {
                    Some(text) => drop(files.read.insert(path.clone(), text.to_owned())),
                    None => drop(files.read.remove(&path)),
                }
                let context = format!("{name}: {path}: {text:?}");
                let machine = read(&files).unwrap();
                let names_it = machine.errors.iter().any(|error| error.file == path);
                assert_eq!(names_it, is_reported, "{context}: {:?}", machine.errors);
                assert_eq!(machine.nodes.len(), whole.nodes.len(), "{context}");
                for (after, before) in machine.nodes.iter().zip(&whole.nodes) {
                    let mut expected = before.clone();
                    if after.id == id {
                        lose(&mut expected, &path, after);
                    }
                    // With fake NUMA, the next node's list repeats these CPUs, so they are assigned to that
                    // node.
                    if file == "cpulist" && !spec.nodes.iter().all(|node| node.repeated_cpus.is_empty()) {
                        expected.cpus.clone_from(&after.cpus);
                    }
                    assert_eq!(*after, expected, "{context}");
                }
                damaged += 1;
            }
            files.read.insert(path, before);
        }
    }
    assert!(damaged > 1000, "{damaged}");
}

/// Returns true for the per-node files that numacast reads.
fn is_read(file: &str) -> bool {
    let of_node = file.starts_with("sys/devices/system/node/node");
    of_node && ["/cpulist", "/meminfo", "/distance", "/nr_hugepages"].iter().any(|name| file.ends_with(name))
}

/// Removes the information of one file from a node.
fn lose(node: &mut NumaNode, path: &str, after: &NumaNode) {
    match path.rsplit('/').next().unwrap() {
        "cpulist" => node.cpus = IdSet::new(),
        "meminfo" => node.memory = 0,
        "distance" => node.distances.clear(),
        _ => {
            let size = path.split("/hugepages-").nth(1).unwrap().split("kB").next().unwrap();
            let size = size.parse::<u64>().unwrap() * 1024;
            // A pool without a count has no pages; a pool without a directory does not exist.
            match after.hugepages.get(&size) {
                Some(pages) => {
                    assert_eq!(*pages, 0);
                    node.hugepages.insert(size, 0);
                }
                None => drop(node.hugepages.remove(&size)),
            }
            node.hugepages_unread = after.hugepages_unread;
        }
    }
}

/// Without a valid list of nodes, the node directories are used.
#[test]
fn without_a_list_of_nodes_the_node_directories_are_used() {
    for (name, spec) in states().into_iter().filter(|(_, spec)| spec.numa) {
        let whole = read(&spec.files()).unwrap();
        for text in [None, Some(""), Some("\n"), Some("none\n"), Some("0,4294967296\n"), Some("\u{0}")] {
            let mut files = spec.files();
            let online = "sys/devices/system/node/online".to_owned();
            match text {
                Some(text) => drop(files.read.insert(online.clone(), text.to_owned())),
                None => drop(files.read.remove(&online)),
            }
            let machine = read(&files).unwrap();
            let context = format!("{name}: {text:?}");
            assert!(machine.numa && machine.errors.iter().any(|error| error.file == online), "{context}");
            let is_reported = |id: Id| !spec.node(id).unwrap().missing.contains(&Missing::Directory);
            let mut expected = whole.nodes.clone();
            expected.retain(|node| is_reported(node.id));
            if expected.len() < whole.nodes.len() {
                // The columns of `distance` include nodes that are now unknown.
                expected.iter_mut().for_each(|node| node.distances.clear());
            }
            assert_eq!(machine.nodes, expected, "{context}");
        }
    }
}
