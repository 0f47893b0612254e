//! Properties of the computed zones over odd machines, with and without the managers' checkpoints. The
//! properties of single rules are tested next to the rules.

use std::io;

use super::*;
use crate::machine::{HostFiles, HostRoots, RecordedFiles, read};

/// Shuffles `items` according to `seed` (Fisher-Yates, xorshift).
fn shuffle<T>(items: &mut [T], seed: &mut u64) {
    for last in (1..items.len()).rev() {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        items.swap(last, usize::try_from(*seed % (last as u64 + 1)).unwrap());
    }
}

/// Nodes with and without CPUs, memory, pages and distances, at ids that the scheduler can and cannot handle.
fn any_machine() -> impl Strategy<Value = Machine> {
    let ids = proptest::sample::subsequence(vec![0, 1, 2, 5, 62, 63, 64, 1000], 1..=5);
    let node = (any::<bool>(), 0..9_u64, 0..300_u64, 0..3_u64, any::<bool>());
    (ids, proptest::collection::vec(node, 5), any::<bool>()).prop_map(|(ids, shapes, distances)| {
        let costs =
            |from: Id| ids.iter().map(move |to| (*to, if *to == from { 10 } else { 20 + u32::from(*to) }));
        let node = |(id, (cpus, gib, small, large, unread)): (&Id, _)| NumaNode {
            id: *id,
            cpus: if cpus { (id * 4..id * 4 + 4).collect() } else { IdSet::new() },
            memory: gib * GIB,
            hugepages: if gib == 0 { BTreeMap::new() } else { [(2 * MIB, small), (GIB, large)].into() },
            hugepages_unread: unread && gib > 0,
            distances: if distances { costs(*id).collect() } else { BTreeMap::new() },
        };
        let nodes: Vec<NumaNode> = ids.iter().zip(shapes).map(node).collect();
        Machine { nodes, numa: true, ..Machine::default() }
    })
}

/// Returns the files that describe this machine.
fn files(machine: &Machine) -> RecordedFiles {
    let place = "sys/devices/system/node";
    let ids: IdSet = machine.nodes.iter().map(|node| node.id).collect();
    let mut files: BTreeMap<String, String> = [(format!("{place}/online"), format!("{ids}\n"))].into();
    for node in &machine.nodes {
        let dir = format!("{place}/node{}", node.id);
        let mut add = |name: &str, text: String| files.insert(format!("{dir}/{name}"), text);
        add("cpulist", format!("{}\n", node.cpus));
        add("meminfo", format!("Node {} MemTotal: {} kB\n", node.id, node.memory >> 10));
        if !node.distances.is_empty() {
            let columns: Vec<String> = node.distances.values().map(ToString::to_string).collect();
            add("distance", format!("{}\n", columns.join(" ")));
        }
        let unread = node.hugepages.keys().next().filter(|_| node.hugepages_unread);
        for (size, pages) in &node.hugepages {
            let text = if Some(size) == unread { "?\n".into() } else { format!("{pages}\n") };
            add(&format!("hugepages/hugepages-{}kB/nr_hugepages", size >> 10), text);
        }
    }
    RecordedFiles { read: files, ..RecordedFiles::default() }
}

/// Returns the nodes as read from the files: the pool that cannot be read has no pages.
fn as_read(machine: &Machine) -> Vec<NumaNode> {
    let mut nodes = machine.nodes.clone();
    for node in nodes.iter_mut().filter(|node| node.hugepages_unread) {
        node.hugepages.first_entry().map(|mut entry| entry.insert(0));
    }
    nodes
}

/// Lists directories in reverse order.
struct Backwards(RecordedFiles);

impl HostFiles for Backwards {
    fn read(&self, path: &str) -> io::Result<String> {
        self.0.read(path)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let mut names = self.0.list(path)?;
        names.reverse();
        Ok(names)
    }
}

/// One pod, as the kubelet's managers know it.
#[derive(Clone, Debug)]
struct Member {
    uid: String,
    pod: PodUsage,
    /// Everything that its containers were allocated, plain init containers included, by name.
    written: Vec<ContainerUsage>,
}

/// The state of one kubelet: no CPU and no device is allocated to two pods, and the List and the checkpoints
/// agree on the containers that both name.
#[derive(Clone, Debug)]
struct World {
    members: Vec<Member>,
    case: Case,
}

impl World {
    /// Returns what is available if only the pods of `mask` are listed.
    fn listed(&self, mask: u8) -> BTreeMap<(Id, String), u64> {
        let mut case = self.case.clone();
        let members = self.members.iter().enumerate().filter(|(at, _)| mask & 1 << at != 0);
        case.usage.pods = members.map(|(_, member)| member.pod.clone()).collect();
        available(&case.account())
    }
}

/// A container's part of its pod's CPUs, memory and devices.
type Share = (u8, Vec<MemoryBlock>, u8);

fn any_share(nodes: impl Strategy<Value = IdSet> + 'static) -> impl Strategy<Value = Share> {
    let resource = prop_oneof![4 => Just("memory".to_owned()), 1 => Just("hugepages-2Mi".to_owned())];
    // Few different amounts: pods with equal memory are the hard case.
    let block = (resource, prop_oneof![Just(GIB / 4), Just(GIB / 2)], nodes);
    let block = block.prop_map(|(resource, bytes, nodes)| MemoryBlock { resource, bytes, nodes });
    (any::<u8>(), proptest::collection::vec(block, 0..3), any::<u8>())
}

fn any_world() -> impl Strategy<Value = World> {
    world(proptest::sample::select(vec!["0", "1", "0-1"]).prop_map(ids).boxed())
}

fn world(nodes: BoxedStrategy<IdSet>) -> impl Strategy<Value = World> {
    let owners = |count| proptest::collection::vec(0..6_usize, count);
    let container = any_share(nodes);
    let member = (any::<u16>(), proptest::collection::vec(container, 3), 0..8_u8, any::<[bool; 2]>());
    let members = proptest::collection::vec(member, 4);
    let reserved = proptest::collection::vec(0..5_u64, 2);
    (owners(8), owners(4), members, reserved).prop_map(|(cpus, nics, members, reserved)| {
        let mut state = ManagerState::default();
        for (node, amount) in (0..).zip(reserved) {
            state.reserved.insert(node, [("memory".to_owned(), amount * GIB / 2)].into());
        }
        let mut all = Vec::new();
        for (at, (number, shares, listed, [in_books, ended])) in members.into_iter().enumerate() {
            let member = member_of(at, number, &shares, listed, [&cpus, &nics]);
            if in_books {
                state.pods.insert(member.uid.clone(), member.written.clone());
            }
            if ended {
                // Known under its own name, or under that of a pod that is no longer listed.
                let name = if number % 2 == 0 { member.pod.name.clone() } else { format!("gone-{at}") };
                state.names.insert(member.uid.clone(), ("ns".to_owned(), name));
            }
            all.push(member);
        }
        let case = with_books(vec![], state);
        let nic = |at: usize, nodes| devices("example.com/nic", &[["a", "b", "c", "d"][at]], nodes);
        let devices = vec![nic(0, "0"), nic(1, "0"), nic(2, "1"), nic(3, "1")];
        let allocatable = Allocatable { devices, ..case.allocatable };
        World { members: all, case: Case { allocatable, ..case } }
    })
}

/// Returns pod number `at`: the CPUs and devices it owns are distributed to its containers as in `shares`;
/// the bits of `listed` select the containers that the List names.
fn member_of(at: usize, number: u16, shares: &[Share], listed: u8, owners: [&[usize]; 2]) -> Member {
    let own = |owners: &[usize], mask: u8| -> Vec<usize> {
        let mine = owners.iter().enumerate().filter(|(_, owner)| **owner == at).map(|(thing, _)| thing);
        mine.filter(|thing| mask & 1 << thing != 0).collect()
    };
    let mut containers = Vec::new();
    for (name, (cpu_mask, memory, nic_mask)) in ["init", "main", "side"].into_iter().zip(shares) {
        let nics = own(owners[1], *nic_mask).into_iter();
        containers.push(ContainerUsage {
            name: name.into(),
            cpus: own(owners[0], *cpu_mask).into_iter().map(|cpu| Id::try_from(cpu).unwrap()).collect(),
            memory: memory.clone(),
            devices: nics
                .map(|nic| {
                    let name = ["a", "b", "c", "d"][nic];
                    devices("example.com/nic", &[name], if nic < 2 { "0" } else { "1" })
                })
                .collect(),
            ..ContainerUsage::default()
        });
    }
    let named = containers.iter().enumerate().filter(|(index, _)| listed & 1 << index != 0);
    let pod = PodUsage {
        namespace: "ns".into(),
        name: format!("pod-{at}"),
        containers: named.map(|(_, container)| container.clone()).collect(),
        ..PodUsage::default()
    };
    // The checkpoints do not name containers without allocated resources.
    containers.retain(|c| !c.cpus.is_empty() || !c.memory.is_empty() || !c.devices.is_empty());
    Member { uid: format!("{number}-{at}"), pod, written: containers }
}

proptest! {
    #![proptest_config(crate::randomised::cases())]

    #[test]
    fn the_zones_of_any_machine_are_what_the_scheduler_can_hold(
        machine in any_machine(),
        mut case in any_case(),
        excluded in proptest::collection::btree_set("cpu|[ab]|hugepages-2Mi", 0..2),
    ) {
        case.machine = machine;
        case.rules.exclude.resources = excluded.clone();
        let topology = case.account();
        let ids: Vec<Id> = topology.zones.iter().map(|zone| zone.id).collect();
        let held = case.machine.nodes.iter().map(|node| node.id).filter(|id| *id <= HIGHEST_ZONE);
        let held: Vec<Id> = held.collect();
        if case.rules.fillers {
            prop_assert_eq!(&ids, &(0..=ids.last().copied().unwrap_or(0)).take(ids.len()).collect::<Vec<_>>());
            prop_assert!(held.iter().all(|id| ids.contains(id)));
            prop_assert_eq!(ids.last(), held.last());
        } else {
            prop_assert_eq!(&ids, &held);
        }
        for zone in &topology.zones {
            prop_assert!(zone.costs.keys().eq(ids.iter()));
            prop_assert!(zone.resources.keys().eq(topology.zones[0].resources.keys()));
            prop_assert!(excluded.iter().all(|name| !zone.resources.contains_key(name)));
            for (name, amounts) in &zone.resources {
                prop_assert!(amounts.available <= amounts.allocatable, "{} {:?}", name, amounts);
                prop_assert!(amounts.allocatable <= amounts.capacity, "{} {:?}", name, amounts);
            }
            if !held.contains(&zone.id) {
                prop_assert!(zone.costs.values().all(|cost| *cost == UNKNOWN_COST));
                prop_assert!(zone.resources.values().all(|amounts| *amounts == Amounts::default()));
            }
        }
    }

    #[test]
    fn a_machine_is_read_as_its_files_show_it_in_whatever_order_they_are_listed(machine in any_machine()) {
        let files = files(&machine);
        let forth = read(&files).unwrap();
        prop_assert_eq!(&forth.nodes, &as_read(&machine));
        prop_assert_eq!(&read(&Backwards(files)).unwrap().nodes, &forth.nodes);
    }

    #[test]
    fn no_order_of_the_list_matters(
        mut world in any_world(),
        strange in proptest::collection::vec(any_pod(), 0..3),
        mut seed in 1..u64::MAX,
    ) {
        world.case.usage.pods = world.members.iter().map(|member| member.pod.clone()).chain(strange).collect();
        let before = world.case.account();
        let case = &mut world.case;
        shuffle(&mut case.usage.pods, &mut seed);
        for pod in &mut case.usage.pods {
            shuffle(&mut pod.containers, &mut seed);
            for container in &mut pod.containers {
                shuffle(&mut container.memory, &mut seed);
                shuffle(&mut container.devices, &mut seed);
                container.devices.iter_mut().for_each(|group| shuffle(&mut group.ids, &mut seed));
            }
        }
        shuffle(&mut case.allocatable.memory, &mut seed);
        shuffle(&mut case.allocatable.devices, &mut seed);
        prop_assert_eq!(case.account(), before);
    }

    /// Here the List and the checkpoints are of one kubelet. The property need not hold for checkpoints that
    /// contradict the List: a listed pod then proves that its entry in an older checkpoint is outdated.
    #[test]
    fn with_the_books_too_one_more_pod_never_raises_what_is_available(
        world in any_world(),
        mask in any::<u8>(),
        more in 0..4_u8,
    ) {
        let (few, many) = (mask & !(1 << more), mask | 1 << more);
        let before = world.listed(few);
        for (place, after) in world.listed(many) {
            prop_assert!(after <= before.get(&place).copied().unwrap_or(0), "{:?}", place);
        }
    }

    #[test]
    fn what_all_pods_hold_is_what_is_gone(
        world in world(proptest::sample::select(vec!["0", "1"]).prop_map(ids).boxed()),
        mask in any::<u8>(),
    ) {
        let mut world = world;
        world.case.state = None;
        let (idle, busy) = (world.listed(0), world.listed(mask));
        let mut held: BTreeMap<(Id, String), u64> = BTreeMap::new();
        let mut cpus = IdSet::new();
        let mut nics = BTreeSet::new();
        let members = world.members.iter().enumerate().filter(|(at, _)| mask & 1 << at != 0);
        for container in members.flat_map(|(_, member)| &member.pod.containers) {
            cpus.union_with(&container.cpus);
            nics.extend(container.devices.iter().map(|group| (group.nodes.last().unwrap(), &group.ids)));
            for block in &container.memory {
                *held.entry((block.nodes.last().unwrap(), block.resource.clone())).or_default() += block.bytes;
            }
        }
        cpus.iter().for_each(|cpu| *held.entry((cpu / 4, "cpu".into())).or_default() += 1);
        nics.iter().for_each(|(node, _)| *held.entry((*node, "example.com/nic".into())).or_default() += 1);
        for (place, free) in idle {
            let gone = held.get(&place).copied().unwrap_or(0);
            prop_assert_eq!(busy[&place], free.saturating_sub(gone), "{:?}", place);
        }
    }

    #[test]
    fn inputs_that_were_written_and_read_again_give_the_same_account(world in any_world(), case in any_case()) {
        let mut case = Case { config: case.config, allocatable: case.allocatable, ..world.case };
        case.usage.pods = world.members.into_iter().map(|member| member.pod).chain(case.usage.pods).collect();
        let before = case.account();
        prop_assert_eq!(&case.account(), &before);
        let text = serde_json::to_string(&(&case.allocatable, &case.usage, &case.state, &case.config)).unwrap();
        (case.allocatable, case.usage, case.state, case.config) = serde_json::from_str(&text).unwrap();
        case.machine = read(&files(&case.machine)).unwrap();
        prop_assert_eq!(case.account(), before);
    }
}

proptest! {
    // Each case makes some thirty files.
    #![proptest_config(crate::randomised::fewer_cases(16))]

    #[test]
    fn the_order_in_which_the_kernel_made_the_files_does_not_matter(machine in any_machine(), mut seed in 1..u64::MAX) {
        let recorded = files(&machine);
        let root = tempfile::tempdir().unwrap();
        let mut order: Vec<(&String, &String)> = recorded.read.iter().collect();
        shuffle(&mut order, &mut seed);
        for (path, text) in order {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let host = HostRoots { sys: root.path().join("sys"), proc: root.path().join("proc") };
        prop_assert_eq!(read(&host).unwrap(), read(&recorded).unwrap());
    }
}
