use super::*;
use crate::machine::RecordedFiles;

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
fn nodes_are_keyed_by_their_id() {
    let machine = read(&files(&TWO_SPARSE_NODES)).unwrap();
    assert!(machine.numa);
    assert_eq!(machine.errors, []);
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
fn a_malformed_file_is_one_error_and_hides_nothing_else() {
    for (file, text, expected) in [
        (
            "node0/cpulist",
            "0-x\n",
            "`0-x` is not a list of ids such as 0-3,8; no CPUs of this node are known",
        ),
        (
            "node0/meminfo",
            "Node 0 MemTotal: lots\n",
            "`Node 0 MemTotal: lots` is not an amount of memory; its memory is taken as 0",
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
        let errors: Vec<String> = machine.errors.iter().map(FileError::to_string).collect();
        assert_eq!(errors, [format!("{NODES}/{file}: {expected}")]);
        assert_eq!(machine.nodes.len(), 2);
        assert_eq!(machine.nodes[1].memory, 4096 << 10);
        assert_eq!(machine.nodes[0].hugepages_unread, file.ends_with("nr_hugepages"));
    }
}

#[test]
fn nodes_and_page_sizes_are_limited_to_those_of_linux() {
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
        machine.errors[0].message,
        "names more nodes than Linux can have; using the node directories instead: 3"
    );
    let highest = read(&files(&[("sys/devices/system/node/online", "1023\n")])).unwrap();
    assert_eq!((highest.nodes[0].id, highest.errors), (1023, vec![]));
}

#[test]
fn kinds_of_cores_are_read_from_hybrid_machines() {
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
    let errors: Vec<String> = machine.errors.iter().map(FileError::to_string).collect();
    assert_eq!(
        errors,
        ["sys/devices/cpu_odd/cpus: `?` is not a list of ids such as 0-3,8; this kind of cores is left out",]
    );
}

#[test]
fn missing_files_are_no_errors_except_the_list_of_cpus() {
    let machine = read(&files(&[("sys/devices/system/node/online", "0-1\n")])).unwrap();
    assert_eq!(machine.errors, []);
    assert_eq!(machine.nodes[1], NumaNode { id: 1, ..NumaNode::default() });
    let machine = read(&files(&[
        ("sys/devices/system/node/online", "0-2\n"),
        ("sys/devices/system/node/node0/cpulist", "\n"),
        ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       4096 kB\n"),
        ("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:       4096 kB\n"),
    ]))
    .unwrap();
    let errors: Vec<String> = machine.errors.iter().map(FileError::to_string).collect();
    let file = "sys/devices/system/node/node1/cpulist";
    assert_eq!(errors, [format!("{file}: is missing; no CPUs of this node are known")]);
}

#[test]
fn offline_cpus_do_not_count() {
    let of = |online: Option<&str>| {
        let mut recorded = files(&TWO_SPARSE_NODES);
        recorded.read.insert(format!("{NODES}/node8/cpulist"), "4-7\n".to_owned());
        let file = format!("{CPUS}/online");
        recorded.read.extend(online.map(|online| (file, format!("{online}\n"))));
        let machine = read(&recorded).unwrap();
        let cpus: Vec<String> = machine.nodes.iter().map(|node| node.cpus.to_string()).collect();
        (cpus.join(" "), machine.errors.iter().map(FileError::to_string).collect::<String>())
    };
    let all = ("0-3 4-7".to_owned(), String::new());
    assert_eq!(of(Some("0-2,5-7")), ("0-2 5-7".to_owned(), String::new()));
    assert_eq!(of(Some("0-100")), all);
    assert_eq!((of(None), of(Some(""))), (all.clone(), all));
    let (cpus, error) = of(Some("?"));
    assert_eq!(cpus, "0-3 4-7");
    assert!(error.ends_with("; CPUs that are offline may be counted"), "{error}");
}

#[test]
fn a_machine_without_numa_directory_has_one_node() {
    let machine = read(&files(&[
        ("sys/devices/system/cpu/online", "0-3\n"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "7\n"),
        ("proc/meminfo", "MemTotal:  1000 kB\n"),
    ]))
    .unwrap();
    assert!(!machine.numa);
    assert_eq!(machine.errors, []);
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
fn an_empty_host_is_an_error_that_names_the_setting() {
    let error = read(&files(&[])).unwrap_err().to_string();
    assert!(error.starts_with("cannot read the hardware: sys/devices/system/cpu/online: "), "{error}");
    assert!(error.ends_with("is `host.sys` right?"), "{error}");
}
