//! Properties of the computed zones over odd machines, with and without the managers' checkpoints.

use std::io;

use proptest::prelude::*;

use super::generators::{any_case, any_cpus, any_machine, any_pod, any_world, world};
use super::*;
use crate::machine::{HostFiles, HostRoots, RecordedFiles, read};
use crate::util::glob::{Pattern, PodPattern};

/// Shuffles `items` according to `seed` (Fisher-Yates, xorshift).
fn shuffle<T>(items: &mut [T], seed: &mut u64) {
    for last in (1..items.len()).rev() {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        items.swap(last, usize::try_from(*seed % (last as u64 + 1)).unwrap());
    }
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

proptest! {
    #![proptest_config(crate::randomised::cases())]

    #[test]
    fn the_zones_of_any_machine_are_safe_for_the_scheduler(
        machine in any_machine(),
        mut case in any_case(),
        excluded in proptest::collection::btree_set("cpu|[ab]|hugepages-2Mi", 0..2),
    ) {
        case.machine = machine;
        case.rules.exclude.resources = excluded.clone();
        let topology = case.account();
        let ids: Vec<Id> = topology.zones.iter().map(|zone| zone.id).collect();
        let nodes = case.machine.nodes.iter().map(|node| node.id).filter(|id| *id <= HIGHEST_ZONE);
        let nodes: Vec<Id> = nodes.collect();
        if case.rules.fillers {
            prop_assert_eq!(&ids, &(0..=ids.last().copied().unwrap_or(0)).take(ids.len()).collect::<Vec<_>>());
            prop_assert!(nodes.iter().all(|id| ids.contains(id)));
            prop_assert_eq!(ids.last(), nodes.last());
        } else {
            prop_assert_eq!(&ids, &nodes);
        }
        for zone in &topology.zones {
            prop_assert!(zone.costs.keys().eq(ids.iter()));
            prop_assert!(zone.resources.keys().eq(topology.zones[0].resources.keys()));
            for name in ["cpu", "memory"] {
                prop_assert_eq!(zone.resources.contains_key(name), !excluded.contains(name));
            }
            prop_assert!(excluded.iter().all(|name| !zone.resources.contains_key(name)));
            for (name, amounts) in &zone.resources {
                prop_assert!(amounts.available <= amounts.allocatable, "{} {:?}", name, amounts);
                prop_assert!(amounts.allocatable <= amounts.capacity, "{} {:?}", name, amounts);
            }
            if !nodes.contains(&zone.id) {
                prop_assert!(zone.costs.values().all(|cost| *cost == UNKNOWN_COST));
                prop_assert!(zone.resources.values().all(|amounts| *amounts == Amounts::default()));
            }
        }
    }

    #[test]
    fn a_machine_is_read_the_same_in_any_order_of_its_files(machine in any_machine()) {
        let files = files(&machine);
        let forth = read(&files).unwrap();
        prop_assert_eq!(&forth.nodes, &as_read(&machine));
        prop_assert_eq!(&read(&Backwards(files)).unwrap().nodes, &forth.nodes);
    }

    #[test]
    fn the_order_of_the_list_and_the_checkpoints_does_not_matter(
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
    fn with_checkpoints_too_one_more_pod_never_raises_available(
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
    fn the_allocations_of_all_pods_are_what_is_not_available(
        world in world(proptest::sample::select(vec!["0", "1"]).prop_map(ids).boxed()),
        mask in any::<u8>(),
    ) {
        let mut world = world;
        world.case.checkpoints = None;
        let (idle, busy) = (world.listed(0), world.listed(mask));
        let mut used: BTreeMap<(Id, String), u64> = BTreeMap::new();
        let mut cpus = IdSet::new();
        let mut nics = BTreeSet::new();
        let members = world.members.iter().enumerate().filter(|(at, _)| mask & 1 << at != 0);
        for container in members.flat_map(|(_, member)| &member.pod.containers) {
            cpus.union_with(&container.cpus);
            nics.extend(container.devices.iter().map(|group| (group.nodes.last().unwrap(), &group.ids)));
            for block in &container.memory {
                *used.entry((block.nodes.last().unwrap(), block.resource.clone())).or_default() += block.bytes;
            }
        }
        cpus.iter().for_each(|cpu| *used.entry((cpu / 4, "cpu".into())).or_default() += 1);
        nics.iter().for_each(|(node, _)| *used.entry((*node, "example.com/nic".into())).or_default() += 1);
        for (place, free) in idle {
            let used = used.get(&place).copied().unwrap_or(0);
            prop_assert_eq!(busy[&place], free.saturating_sub(used), "{:?}", place);
        }
    }

    #[test]
    fn serialized_inputs_give_the_same_topology(world in any_world(), case in any_case()) {
        let mut case = Case { config: case.config, allocatable: case.allocatable, ..world.case };
        case.usage.pods = world.members.into_iter().map(|member| member.pod).chain(case.usage.pods).collect();
        let before = case.account();
        prop_assert_eq!(&case.account(), &before);
        let inputs = (&case.allocatable, &case.usage, &case.checkpoints, &case.config);
        let text = serde_json::to_string(&inputs).unwrap();
        (case.allocatable, case.usage, case.checkpoints, case.config) = serde_json::from_str(&text).unwrap();
        case.machine = read(&files(&case.machine)).unwrap();
        prop_assert_eq!(case.account(), before);
    }

    #[test]
    fn order_does_not_matter(mut case in any_case()) {
        let before = case.account();
        case.usage.pods.reverse();
        for container in case.usage.pods.iter_mut().flat_map(|pod| &mut pod.containers) {
            container.devices.reverse();
            container.memory.reverse();
        }
        case.allocatable.devices.reverse();
        case.allocatable.memory.reverse();
        prop_assert_eq!(case.account(), before);
    }

    #[test]
    fn a_pod_takes_from_its_zone_exactly_what_it_is_allocated(cpus in any_cpus(), bytes in 0..4 * GIB) {
        let mut case = Case {
            allocatable: Allocatable {
                cpus: ids("0-7"),
                memory: vec![block("memory", 7 * GIB, "0"), block("memory", 7 * GIB, "1")],
                ..Default::default()
            },
            ..Default::default()
        };
        let total = |case: &Case, resource| case.of(resource).iter().map(|(_, amounts)| amounts[2]).sum::<u64>();
        let (free_cpus, free_memory) = (total(&case, "cpu"), total(&case, "memory"));
        let used = cpus.intersection(&ids("0-7")).len();
        let memory = vec![block("memory", bytes, "1")];
        case.usage.pods.push(pod("a", ContainerUsage { cpus, memory, ..Default::default() }));
        prop_assert_eq!(total(&case, "cpu"), free_cpus - used);
        prop_assert_eq!(total(&case, "memory"), free_memory - bytes);
        prop_assert_eq!(case.account(), case.account());
    }

    #[test]
    fn excluding_pods_never_lowers_what_is_available(mut case in any_case(), name in "[a-c]") {
        let before = available(&case.account());
        case.rules.exclude.pods = vec![PodPattern { namespace: Pattern::any(), name: name.parse().unwrap() }];
        let account = case.account();
        let after = available(&account);
        for (place, before) in &before {
            // A resource that only pods name has nothing available, and disappears with its pods.
            prop_assert!(after.get(place).copied().unwrap_or(0) >= *before, "{place:?}");
        }
        // The result is the same as without the pods.
        case.usage.pods.retain(|pod| pod.name != name);
        prop_assert_eq!(case.account(), account);
    }

    #[test]
    fn excluding_a_resource_removes_exactly_it(
        mut case in any_case(),
        name in prop_oneof![Just("cpu"), Just("memory"), Just("hugepages-2Mi"), Just("a"), Just("d")],
    ) {
        let mut expected = case.account();
        for zone in &mut expected.zones {
            zone.resources.remove(name);
        }
        case.rules.exclude.resources.insert(name.to_owned());
        let account = case.account();
        prop_assert_eq!(account.zones, expected.zones);
        prop_assert_eq!(account.attributes, expected.attributes);
        prop_assert!(account.findings.is_subset(&expected.findings));
    }

    #[test]
    fn one_more_pod_never_raises_what_is_available(mut case in any_case(), pod in any_pod()) {
        let before = available(&case.account());
        case.usage.pods.push(pod);
        for (place, after) in available(&case.account()) {
            // A resource that only the new pod names was not listed before, and has nothing available.
            prop_assert!(after <= before.get(&place).copied().unwrap_or(0), "{place:?}");
        }
    }
}

proptest! {
    // Each case makes some thirty files.
    #![proptest_config(crate::randomised::fewer_cases(16))]

    #[test]
    fn the_order_in_which_the_files_were_created_does_not_matter(machine in any_machine(), mut seed in 1..u64::MAX) {
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
