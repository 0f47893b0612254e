//! Matching the List with the managers' checkpoints.

use super::*;
use crate::util::glob::{Pattern, PodPattern};

/// The name of a pod with this UID that was listed before and no longer is.
fn gone(uid: &str) -> BTreeMap<String, (String, String)> {
    [(uid.to_owned(), ("ns".to_owned(), "gone".to_owned()))].into()
}

fn state(pods: &[(&str, &[ContainerUsage])]) -> Checkpoints {
    let pods = pods.iter().map(|(uid, containers)| ((*uid).to_owned(), containers.to_vec()));
    Checkpoints { pods: pods.collect(), ..Default::default() }
}

/// A checkpoint with one pod that has these blocks, and these bytes of memory in use on nodes 0 and 1.
fn memory_state(blocks: Vec<MemoryBlock>, first: u64, second: u64) -> Checkpoints {
    let reserved = [(0, first), (1, second)];
    Checkpoints {
        reserved: reserved.map(|(node, bytes)| (node, [("memory".to_owned(), bytes)].into())).into(),
        ..state(&[("u", &[container("main", "", blocks)])])
    }
}

/// Returns the free memory of nodes 0 and 1, of 4 GiB each, with one listed pod.
fn free_memory(listed: Vec<MemoryBlock>, state: Checkpoints) -> Vec<u64> {
    let zones = case_with(vec![pod("a", container("main", "", listed))], state).of("memory");
    zones.into_iter().map(|(_, [.., free])| free).collect()
}

#[test]
fn the_checkpoint_decides_the_split_of_a_block() {
    let on = |nodes, gib| block("memory", gib * GIB, nodes);
    let of = |listed: &[MemoryBlock], state| free_memory(listed.to_vec(), state);
    let five = [on("0-1", 5)];
    assert_eq!(of(&five, memory_state(five.to_vec(), 2 * GIB, 3 * GIB)), [2 * GIB, GIB]);
    assert_eq!(
        of(&five, memory_state(vec![on("0-1", 4)], GIB, 3 * GIB)),
        [2 * GIB, GIB],
        "the checkpoint is older: the rest as without one"
    );
    assert_eq!(
        of(&five, memory_state(vec![on("0-1", 8)], 4 * GIB, 4 * GIB)),
        [3 * GIB, 0],
        "the checkpoint still has a terminated pod, whose memory is released on the lowest node first"
    );
    assert_eq!(of(&five, Checkpoints::default()), [0, 3 * GIB], "the checkpoint has no memory");
    assert_eq!(of(&five, memory_state(five.to_vec(), GIB, 3 * GIB)), [0, 3 * GIB], "it contradicts itself");
}

#[test]
fn memory_is_released_as_by_the_kubelet_whichever_pod_holds_it() {
    let on = |nodes, gib| block("memory", gib * GIB, nodes);
    let of = |listed: &[MemoryBlock], state| free_memory(listed.to_vec(), state);
    let gone_beside = |node| memory_state(vec![on(node, 1), on("0-1", 3)], 2 * GIB, 2 * GIB);
    assert_eq!(of(&[on("0", 1)], gone_beside("0")), [4 * GIB, 3 * GIB]);
    assert_eq!(of(&[on("1", 1)], gone_beside("1")), [4 * GIB, 3 * GIB]);
    assert_eq!(of(&[on("0-1", 3)], gone_beside("0")), [3 * GIB, 2 * GIB]);
    assert_eq!(of(&[on("0-1", 3)], gone_beside("1")), [2 * GIB, 3 * GIB]);
    // Released before: the kubelet counts the block of node 0 on node 1.
    assert_eq!(of(&[on("0", 1)], memory_state(vec![on("0", 1)], 0, GIB)), [4 * GIB, 3 * GIB]);
    // Released before: memory of a pod that is gone stays in use.
    assert_eq!(of(&[on("0", 1)], memory_state(vec![on("0", 1)], GIB, GIB)), [3 * GIB, 3 * GIB]);
    // Both are gone. In the other order, all is free.
    assert_eq!(of(&[], gone_beside("0")), [4 * GIB, 3 * GIB]);
    // A block that is not in the checkpoint yet.
    assert_eq!(of(&[on("0", 1), on("0", 2)], memory_state(vec![on("0", 1)], 0, GIB)), [2 * GIB, 3 * GIB]);
    // A node that is not there.
    assert_eq!(of(&[on("0,7", 1)], memory_state(vec![on("0,7", 1)], 0, GIB)), [4 * GIB, 3 * GIB]);
}

#[test]
fn memory_in_the_checkpoint_beyond_the_allocatable_is_a_finding() {
    let blocks = vec![block("memory", 5 * GIB, "0-1"), block("memory", GIB, "1")];
    let pods = vec![pod("a", container("main", "", blocks.clone()))];
    let found = |first, second| {
        case_with(pods.clone(), memory_state(blocks.clone(), first, second)).account().findings
    };
    assert_eq!(found(2 * GIB, 4 * GIB), [].into());
    let overused = |nodes| Finding::OverusedMemory { nodes: ids(nodes), resource: "memory".to_owned() };
    assert_eq!(found(GIB, 5 * GIB), [overused("1")].into());
}

#[test]
fn the_leftover_of_an_init_container_is_in_use() {
    let listed = || pod("a", container("main", "1-2", vec![block("memory", GIB, "0")]));
    let nic = ContainerUsage {
        devices: vec![devices("example.com/nic", &["a"], "0")],
        ..container("init", "1-3", vec![block("memory", GIB, "0")])
    };
    let main = || container("main", "1-2", vec![block("memory", GIB, "0")]);
    let case = case_with(vec![listed()], state(&[("u", &[nic, main()])]));
    assert_eq!(case.of("cpu"), [(0, [4, 4, 1]), (1, [4, 4, 4])]);
    assert_eq!(case.of("memory")[0], (0, [8 * GIB, 4 * GIB, 2 * GIB]));
    assert_eq!(case.of("example.com/nic")[0], (0, [2, 2, 1]));
    // The pod's CPUs differ from this entry's, so the entry belongs to another pod, whether or not one was
    // seen before.
    let mut stale = state(&[("u", &[container("init", "4-7", vec![]), container("main", "5", vec![])])]);
    assert_eq!(case_with(vec![listed()], stale.clone()).of("cpu"), [(0, [4, 4, 2]), (1, [4, 4, 0])]);
    stale.names = gone("u");
    assert_eq!(case_with(vec![listed()], stale).of("cpu"), [(0, [4, 4, 2]), (1, [4, 4, 4])]);
}

#[test]
fn cpus_of_an_init_container_are_in_use_until_its_pod_is_known_to_be_gone() {
    let listed = || pod("a", container("main", "", vec![]));
    let mut state = state(&[("u", &[container("init", "4-5", vec![])])]);
    assert_eq!(case_with(vec![listed()], state.clone()).of("cpu"), [(0, [4, 4, 4]), (1, [4, 4, 2])]);
    state.names = gone("u");
    assert_eq!(case_with(vec![listed()], state).of("cpu"), [(0, [4, 4, 4]), (1, [4, 4, 4])]);
}

#[test]
fn unlisted_resources_of_an_excluded_pod_look_free_too() {
    let listed = pod("a", container("main", "1-2", vec![]));
    let state = state(&[("u", &[container("init", "1-3", vec![]), container("main", "1-2", vec![])])]);
    let mut case = case_with(vec![listed], state);
    case.rules.exclude.pods = vec![PodPattern { namespace: Pattern::any(), name: "a".parse().unwrap() }];
    assert_eq!(case.of("cpu"), [(0, [4, 4, 4]), (1, [4, 4, 4])]);
}

#[test]
fn among_entries_with_equal_memory_the_largest_are_assumed_to_be_alive() {
    let listed = pod("a", container("main", "", vec![block("memory", GIB, "0")]));
    let main = || container("main", "", vec![block("memory", GIB, "0")]);
    let init = |bytes| container("init", "", vec![block("memory", bytes, "0")]);
    let other = container("main", "", vec![block("memory", 2 * GIB, "0")]);
    let state = state(&[
        ("1", &[init(GIB / 2), main()]),
        ("2", &[init(GIB), main()]),
        ("3", &[init(2 * GIB), other]),
    ]);
    let pods = [listed];
    let matches = match_uids(pods.iter(), &state);
    assert_eq!(matches.listed.into_keys().collect::<Vec<_>>(), ["2"]);
    let case = case_with(pods.to_vec(), state);
    assert_eq!(case.of("memory")[0], (0, [8 * GIB, 4 * GIB, 2 * GIB]));
}

#[test]
fn pods_are_matched_by_their_devices_too() {
    let nic = |name: &str, id: &str| ContainerUsage {
        devices: vec![devices("example.com/nic", &[id], "0")],
        ..container(name, "", vec![])
    };
    let listed = pod("a", nic("main", "a"));
    let case = case_with(vec![listed], state(&[("u", &[nic("init", "b"), nic("main", "a")])]));
    assert_eq!(case.of("example.com/nic")[0], (0, [2, 2, 0]));
}

fn quarters(name: &str, count: u64, nodes: &[&str]) -> ContainerUsage {
    container(name, "", nodes.iter().map(|node| block("memory", count * GIB / 4, node)).collect())
}

#[test]
fn cpus_in_the_checkpoint_are_in_use_before_the_list_shows_them() {
    let mut listed = pod("a", container("main", "1", vec![]));
    listed.containers.push(container("side", "", vec![]));
    let entry = [container("main", "1", vec![]), container("side", "2-3", vec![])];
    let mut case = case_with(vec![listed], state(&[("u", &entry)]));
    assert_eq!(case.of("cpu")[0], (0, [4, 4, 1]));
    case.rules.exclude.outside_namespace = Some("other".into());
    assert_eq!(case.of("cpu")[0], (0, [4, 4, 4]), "those of an excluded pod are not");
}

#[test]
fn a_container_is_listed_only_if_every_pod_that_may_have_the_entry_lists_it() {
    let plain = pod("a", quarters("main", 1, &["0"]));
    let mut other = pod("b", quarters("main", 1, &["0"]));
    other.containers.push(container("start", "", vec![]));
    let entry = [quarters("main", 1, &["0"]), quarters("start", 4, &["0"])];
    let state = state(&[("u", &entry), ("v", &[quarters("main", 1, &["0"])])]);
    for pods in [vec![plain.clone(), other.clone()], vec![other.clone(), plain]] {
        assert_eq!(case_with(pods, state.clone()).of("memory")[0], (0, [8 * GIB, 4 * GIB, 5 * GIB / 2]));
    }
    assert_eq!(case_with(vec![other], state).of("memory")[0], (0, [8 * GIB, 4 * GIB, 15 * GIB / 4]));
}

#[test]
fn an_entry_with_equal_memory_on_two_nodes_is_chosen_once() {
    let main = || quarters("main", 1, &["0", "1"]);
    let state = state(&[
        ("u", &[main(), quarters("start", 4, &["0"])]),
        ("v", &[main(), quarters("start", 2, &["0"])]),
    ]);
    let pods = vec![pod("a", main()), pod("b", main())];
    assert_eq!(match_uids(pods.iter(), &state).listed.into_keys().collect::<Vec<_>>(), ["u", "v"]);
    assert_eq!(case_with(pods, state).of("memory")[0], (0, [8 * GIB, 4 * GIB, 2 * GIB]));
}

#[test]
fn pods_with_different_memory_never_share_an_entry() {
    // One pod matches both entries, the other only the first, which has the most unlisted memory.
    let both = |name| pod(name, quarters("main", 1, &["0"]));
    let mut first = both("b");
    first.containers.push(quarters("side", 1, &["1"]));
    let entry = [quarters("main", 1, &["0"]), quarters("side", 1, &["1"]), quarters("start", 4, &["0"])];
    let state = state(&[("u", &entry), ("v", &[quarters("main", 1, &["0"]), quarters("start", 2, &["0"])])]);
    let pods = [both("a"), first];
    assert_eq!(match_uids(pods.iter(), &state).listed.into_keys().collect::<Vec<_>>(), ["u", "v"]);
    let matches = match_uids(pods[1..].iter(), &state);
    assert_eq!(matches.listed, [("u", ["main", "side"].into())].into());
}

#[test]
fn a_known_pod_keeps_its_uid_and_a_pod_that_left_is_ignored() {
    // Replicas: in the List they differ only in their names.
    let replica = |name| pod(name, quarters("main", 1, &["0"]));
    let entry = || [quarters("main", 1, &["0"]), quarters("start", 2, &["0"])];
    let mut state = state(&[("u", &entry()), ("v", &entry()), ("w", &entry())]);
    let free = |case: &Case| case.of("memory")[0].1[2] * 4 / GIB;
    let both = [replica("a"), replica("b")];
    assert!(match_uids(both.iter(), &state).certain.is_empty(), "three entries for two pods");
    let name = |uid: &str, name: &str| (uid.to_owned(), ("ns".to_owned(), name.to_owned()));
    state.names = [name("u", "a"), name("w", "c")].into();
    let certain = match_uids(both.iter(), &state).certain;
    assert_eq!(
        certain.into_iter().map(|(uid, pod)| (uid, pod.name.as_str())).collect::<Vec<_>>(),
        [("u", "a"), ("v", "b")]
    );
    state.names = [name("u", "a"), name("v", "b"), name("w", "c")].into();
    assert_eq!(free(&case_with(both.to_vec(), state.clone())), 16 - 2 * 3, "c has left");
    assert_eq!(free(&case_with(vec![replica("b")], state.clone())), 16 - 3);
    // A new replica cannot match an entry that is known to be another pod's.
    assert_eq!(free(&case_with(vec![replica("b"), replica("d")], state.clone())), 16 - 3 - 1);
    // A pod without allocated resources may be a new pod with the name of an old one.
    assert_eq!(free(&case_with(vec![pod("a", container("main", "", vec![]))], state)), 16);
}

#[test]
fn an_entry_with_other_cpus_belongs_to_another_pod() {
    let entry = |cpus| [quarters("init", 4, &["0"]), container("main", cpus, vec![])];
    let case = |cpus, names| {
        let state = Checkpoints { names, ..state(&[("u", &entry(cpus))]) };
        case_with(vec![pod("a", container("main", "1", vec![]))], state)
    };
    let unknown = BTreeMap::new;
    assert_eq!(case("1", unknown()).of("memory")[0], (0, [8 * GIB, 4 * GIB, 3 * GIB]));
    assert_eq!(case("1-3", unknown()).of("memory")[0], (0, [8 * GIB, 4 * GIB, 4 * GIB]));
    assert_eq!(case("1-3", unknown()).of("cpu")[0], (0, [4, 4, 1]), "no pod is known to be gone");
    assert_eq!(case("1-3", gone("u")).of("cpu")[0], (0, [4, 4, 3]));
    assert_eq!(
        case("1", gone("u")).of("memory")[0],
        (0, [8 * GIB, 4 * GIB, 4 * GIB]),
        "the next pod got its CPUs"
    );
}

#[test]
fn a_known_pod_keeps_its_uid_with_any_allocation() {
    let nothing = || pod("a", container("main", "", vec![]));
    let cpus = PodUsage { cpus: ids("1"), ..nothing() };
    let memory = PodUsage { memory: vec![block("memory", GIB, "0")], ..nothing() };
    let state = Checkpoints {
        names: [("u".to_owned(), ("ns".to_owned(), "a".to_owned()))].into(),
        ..state(&[("u", &[quarters("init", 1, &["0"])])])
    };
    for listed in [cpus, memory, pod("a", quarters("main", 1, &["0"]))] {
        assert_eq!(match_uids([listed].iter(), &state).certain.into_keys().collect::<Vec<_>>(), ["u"]);
    }
    assert!(match_uids([nothing()].iter(), &state).certain.is_empty());
}
