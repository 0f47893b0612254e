use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::admission::tests::{container, node_with, pod};
use crate::admission::{CpuOptions, Scope, TopologyPolicy};
use crate::kubelet::{Allocatable, Checkpoints, ContainerUsage, KubeletConfig, MemoryBlock, PodUsage, Usage};
use crate::machine::{Id, Machine};
use crate::nrt::{Amounts, POLICY, SCOPE};
use crate::pod::ContainerKind::{App, Init};
use crate::randomised::fewer_cases;

const GIB: u64 = 1 << 30;
const SINGLE: TopologyPolicy = TopologyPolicy::SingleNumaNode;

/// Two NUMA nodes of eight CPUs, CPU 0 reserved, 8 GiB each; a NIC on node 0, two on node 1.
fn view(policy: TopologyPolicy, scope: Scope, options: CpuOptions) -> NodeView {
    let allocatable =
        [("cpu", 15_000), ("memory", 16 * GIB), ("nic", 3), ("pods", 8), ("hugepages-2Mi", 2 * GIB)];
    let allocatable = allocatable.map(|(name, amount)| (name.to_owned(), amount)).into();
    NodeView {
        name: "w".to_owned(),
        state: node_with(policy, scope, options, 2),
        allocatable: Some(allocatable),
        ..NodeView::default()
    }
}

fn wish(cpus: u64, gib: u64, nics: u64) -> Wish {
    Wish::new(pod(&[container(App, cpus, gib, nics)]), &NodeAmounts::new())
}

/// Admits a pod as the kubelet would; false if it is refused.
fn admit(view: &mut NodeView, name: &str, wish: &Wish, priority: i32, keep: Option<Keep>) -> bool {
    if !view.fits(wish) {
        return false;
    }
    let mut pod = PodOnNode {
        name: name.to_owned(),
        priority,
        keep,
        requests: wish.of_node.clone(),
        ..PodOnNode::default()
    };
    for placement in view.state.admit(&wish.pod).unwrap() {
        pod.cpus.union_with(&placement.cpus);
        let blocks = placement.memory.unwrap_or_default();
        pod.memory.extend(blocks.bytes.iter().map(|(resource, bytes)| MemoryBlock {
            resource: resource.clone(),
            bytes: *bytes,
            nodes: blocks.nodes.iter().collect(),
        }));
        for (resource, choice) in placement.devices {
            pod.devices.entry(resource).or_default().extend(choice.chosen);
        }
    }
    view.used = sum([&view.used, &pod.requests]);
    view.pods.push(pod);
    true
}

fn with(pods: &[(&str, Wish)]) -> NodeView {
    let mut view = view(SINGLE, Scope::Container, CpuOptions::default());
    for (name, wish) in pods {
        assert!(admit(&mut view, name, wish, 0, None), "{name}");
    }
    view
}

fn refusal(view: &NodeView, wish: &Wish) -> Refusal {
    match view.fit(wish) {
        Verdict::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pod_that_fits_is_placed_and_counted() {
    let view = with(&[]);
    let Verdict::Fits { placements, guesses } = view.fit(&wish(4, 1, 1)) else { panic!("it fits") };
    assert_eq!((placements[0].cpus.len(), guesses.len()), (4, 0));
    assert_eq!(view.copies(&wish(4, 1, 0), 10), 3, "7 and 8 CPUs");
    assert_eq!(view.copies(&wish(4, 1, 0), 2), 2);
    assert_eq!(view.copies(&wish(8, 1, 0), 10), 1);
    assert_eq!(view.copies(&wish(1, 1, 0), 100), 8, "eight pods at most");
}

#[test]
fn a_node_without_an_extended_resource_is_excluded() {
    let mut view = with(&[]);
    let gpu = "a.io/gpu".to_owned();
    let mut wanted = wish(1, 1, 0);
    wanted.of_node.insert(gpu.clone(), 1);
    assert_eq!(view.fit(&wanted), Verdict::Insufficient(vec![gpu.clone()]));
    assert_eq!((view.copies(&wanted, 2), view.make_room(&wanted, MAX_TRIES)), (0, Room::Never));
    view.allocatable.as_mut().unwrap().insert(gpu, 1);
    assert!(view.fit(&wanted).fits());
}

#[test]
fn ordinary_resources_come_first() {
    let view = with(&[("a", wish(7, 1, 0)), ("b", wish(4, 1, 0))]);
    assert_eq!(view.fit(&wish(5, 1, 0)), Verdict::Insufficient(vec!["cpu".to_owned()]));
    let unknown = NodeView { allocatable: None, ..view };
    assert!(!unknown.fit(&wish(5, 1, 0)).fits() && unknown.insufficient(&wish(5, 1, 0)).is_empty());
}

#[test]
fn a_refusal_says_what_each_zone_has_and_who_has_the_rest() {
    let view = with(&[("a", wish(4, 1, 1)), ("b", wish(5, 2, 0))]);
    let wish = wish(6, 1, 1);
    let needs = view.needs(&wish, &refusal(&view, &wish));
    let cpu = needs.iter().find(|need| need.resource == "cpu").unwrap();
    assert!(cpu.blocks);
    assert_eq!(
        (cpu.requested, cpu.zones[&0].allocatable, cpu.zones[&0].free, cpu.zones[&1].free),
        (6, 7, 3, 3)
    );
    let holders = [&cpu.zones[&0].holders, &cpu.zones[&1].holders];
    assert_eq!(holders, [&vec![(0, 4)], &vec![(1, 5)]]);
    let nic = needs.iter().find(|need| need.resource == "nic").unwrap();
    assert!(!nic.blocks && nic.zones[&0].holders == [(0, 1)]);
    let memory = needs.iter().find(|need| need.resource == "memory").unwrap();
    assert_eq!((memory.zones[&1].free, &memory.zones[&1].holders), (6 * GIB, &vec![(1, 2 * GIB)]));
}

#[test]
fn needs_count_what_earlier_containers_take() {
    let view = with(&[]);
    let two = Wish::new(pod(&[container(App, 4, 1, 0), container(App, 9, 1, 0)]), &NodeAmounts::new());
    let refusal = refusal(&view, &two);
    assert_eq!(refusal.container, "app-9");
    let needs = view.needs(&two, &refusal);
    let cpu = needs.iter().find(|need| need.resource == "cpu").unwrap();
    assert_eq!((cpu.requested, cpu.zones[&0].free), (9, 3));
}

#[test]
fn changes_are_the_nearest_that_fit() {
    let view = with(&[("a", wish(4, 1, 1)), ("b", wish(5, 2, 0))]);
    let wish = wish(6, 1, 1);
    let changes = view.changes(&wish, &refusal(&view, &wish));
    let request = |resource: &str, amount| Change::Request {
        container: "app-6".into(),
        resource: resource.into(),
        amount,
    };
    assert_eq!(changes, [request("cpu", 3), Change::Policy(TopologyPolicy::BestEffort)]);
    // What restricted would not admit either is no change.
    assert!(!changes.contains(&Change::Policy(TopologyPolicy::Restricted)));
}

#[test]
fn more_cpus_can_be_the_nearest_change() {
    let options = CpuOptions { full_cores_only: true, ..CpuOptions::default() };
    let view = view(SINGLE, Scope::Container, options);
    let wish = wish(3, 1, 0);
    let changes = view.changes(&wish, &refusal(&view, &wish));
    let amounts: Vec<u64> = changes
        .iter()
        .filter_map(|change| match change {
            Change::Request { amount, .. } => Some(*amount),
            _ => None,
        })
        .collect();
    assert_eq!(amounts, [2, 4]);
}

#[test]
fn the_scope_and_huge_pages_can_be_changes() {
    let pods = view(SINGLE, Scope::Pod, CpuOptions::default());
    let two = Wish::new(pod(&[container(App, 5, 1, 0), container(App, 6, 1, 0)]), &NodeAmounts::new());
    assert!(pods.changes(&two, &refusal(&pods, &two)).contains(&Change::Scope));
    let view = with(&[]);
    let mut pages = wish(1, 1, 2);
    pages.pod.containers[0].memory.insert("hugepages-2Mi".to_owned(), GIB + (4 << 20));
    pages.of_node = pages.pod.of_node();
    let changes = view.changes(&pages, &refusal(&view, &pages));
    let bytes = 4 << 20;
    let more = Change::HugePages { zone: 1, resource: "hugepages-2Mi".to_owned(), bytes };
    assert!(changes.contains(&more), "{changes:?}");
    let less = Change::Request { container: "app-1".into(), resource: "hugepages-2Mi".into(), amount: GIB };
    assert!(changes.contains(&less), "{changes:?}");
}

#[test]
fn the_room_is_made_by_pods_that_may_end() {
    let mut view = view(SINGLE, Scope::Container, CpuOptions::default());
    for (name, cpus, priority, keep) in [
        ("static", 3, 0, Some(Keep::Static)),
        ("important", 4, 9, None),
        ("cheap", 4, 1, None),
        ("guarded", 4, 0, None),
    ] {
        assert!(admit(&mut view, name, &wish(cpus, 1, 0), priority, keep), "{name}");
    }
    view.pods[3].budgets = vec!["ns/one".to_owned()];
    let names = |view: &NodeView, room: Room| match room {
        Room::Sets(sets) => {
            let name = |set: &Vec<usize>| {
                set.iter().map(|at| view.pods[*at].name.clone()).collect::<Vec<_>>().join("+")
            };
            sets.iter().map(name).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    let of = |view: &NodeView, cpus| names(view, view.make_room(&wish(cpus, 1, 0), MAX_TRIES));
    // Node 0 has `static` and `important`, node 1 the others.
    assert_eq!(of(&view, 4), ["cheap", "important", "guarded"]);
    assert_eq!(of(&view, 7)[0], "cheap+guarded");
    assert_eq!(view.make_room(&wish(9, 1, 0), MAX_TRIES), Room::Never);
    view.budgets = [("ns/one".to_owned(), 1)].into();
    assert_eq!(of(&view, 4), ["guarded", "cheap", "important"]);
}

fn object(available: &[u64], attributes: &[(&str, &str)]) -> ObjectView {
    let zone = |(id, available): (Id, &u64)| {
        let amounts = Amounts { capacity: 8, allocatable: 7, available: *available };
        Zone { id, resources: [("cpu".to_owned(), amounts)].into(), ..Zone::default() }
    };
    let attributes = attributes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    ObjectView { zones: (0..).zip(available).map(zone).collect(), attributes: attributes.collect() }
}

fn placed(name: &str, milli: u64) -> PlacedPod {
    let json = serde_json::json!({
        "metadata": {"namespace": "ns", "name": name, "uid": name}, "status": {"phase": "Running"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": format!("{milli}m"), "memory": "1Gi"}}}]},
    });
    let pod = crate::pod::Pod::from_json(json.to_string().as_bytes()).unwrap();
    PlacedPod { pod, ..PlacedPod::default() }
}

#[test]
fn an_object_and_its_pods_tell_who_has_what_where() {
    let attributes = [
        (POLICY, "single-numa-node"),
        (SCOPE, "container"),
        ("cpuManagerPolicy", "static"),
        ("memoryManagerPolicy", "None"),
    ];
    let allocatable: NodeAmounts =
        [("cpu".to_owned(), 14_000), ("pods".to_owned(), 9), ("memory".to_owned(), 9 * GIB)].into();
    let pods = [placed("a", 5000), placed("b", 3000), placed("shared", 500)];
    let of = |available: &[u64]| {
        let requests: Vec<NodeAmounts> = pods.iter().map(|pod| Wish::from(pod).of_node).collect();
        let amounts = (allocatable.clone(), sum(&requests));
        let object = object(available, &attributes);
        let mut view = NodeView::of_object(&mut ZoneReader::default(), "w".into(), object, amounts, 36);
        view.add_pods(&pods);
        view
    };
    let view = of(&[2, 4]);
    let where_is = |at: usize| [0, 1].map(|zone| view.pods[at].amount_on(&view.state, zone, "cpu"));
    assert_eq!((where_is(0), where_is(2)), ([5, 0], [0, 0]));
    assert_eq!(
        (where_is(1), view.pods[1].elsewhere["cpu"]),
        ([0, 0], 3),
        "5 or 3 CPUs are in use in either zone"
    );
    assert_eq!(view.used["cpu"], 8500);
    // 5500 millicores are left, 5 CPUs in no zone.
    let Room::Sets(sets) = view.make_room(&wish(5, 1, 0), MAX_TRIES) else { panic!("ending `a` makes room") };
    assert_eq!(sets, [[0]]);
    assert!(view.fit(&wish(4, 1, 0)).fits());
    let view = of(&[3, 3]);
    assert_eq!(view.pods[0].elsewhere["cpu"], 5);
    assert_eq!(view.make_room(&wish(4, 1, 0), MAX_TRIES), Room::Unknown, "it would if `a` is in one zone");
}

#[test]
fn amounts_beyond_any_machine_are_bounded() {
    let view = NodeView { allocatable: None, ..with(&[]) };
    for wish in [wish(u64::MAX / 1000, 1, 0), wish(1, 1, u64::MAX), wish(1, u64::MAX / GIB, 0)] {
        let amounts: Vec<u64> = view
            .changes(&wish, &refusal(&view, &wish))
            .iter()
            .filter_map(|change| match change {
                Change::Request { amount, .. } => Some(*amount),
                _ => None,
            })
            .collect();
        assert!(matches!(amounts.as_slice(), [8 | 2 | 8_589_934_592]), "{amounts:?}");
    }
}

#[test]
fn an_object_beyond_any_machine_is_bounded() {
    let mut object = object(&[4, 4], &[("cpuManagerPolicy", "static")]);
    object.zones[1].id = 64;
    let nics = Amounts { capacity: 1 << 20, allocatable: 1 << 20, available: 1 << 20 };
    object.zones[0].resources.insert("example.com/nic".to_owned(), nics);
    let read = |object: ObjectView| {
        let amounts = (NodeAmounts::new(), NodeAmounts::new());
        NodeView::of_object(&mut ZoneReader::default(), "w".into(), object, amounts, 36)
    };
    let view = read(object);
    let cpus = view.state.cpus.as_ref().map(|cpus| cpus.allocatable().len());
    assert_eq!((view.state.nodes.len(), cpus), (1, Some(7)), "a kubelet panics at 64");
    assert_eq!(view.state.devices.resources()["example.com/nic"].devices.len(), 4096);
    let policies =
        [(POLICY, "restricted"), ("cpuManagerPolicy", "static"), ("memoryManagerPolicy", "Static")];
    let empty = NodeView { allocatable: None, ..read(self::object(&[], &policies)) };
    assert!(!empty.fit(&wish(1, 1, 0)).fits());
    let mut many = self::object(&[4], &[]);
    let resources =
        (0..100).map(|number| (format!("example.com/{number}"), Amounts { capacity: 4000, ..nics }));
    many.zones[0].resources.extend(resources);
    let view = NodeView { allocatable: None, ..read(many) };
    let devices = view.state.devices.resources().values().map(|resource| resource.devices.len());
    assert_eq!(devices.sum::<usize>(), 1 << 16);
    let Verdict::Fits { guesses, .. } = view.fit(&wish(1, 1, 0)) else { panic!("it fits") };
    assert!(guesses.contains(&Guess::TooLarge));
}

#[test]
fn an_older_kubelet_is_a_guess() {
    let is_guess = |minor| {
        let object = object(&[4, 4], &[(POLICY, "single-numa-node"), ("cpuManagerPolicy", "static")]);
        let amounts = (NodeAmounts::new(), NodeAmounts::new());
        let view = NodeView::of_object(&mut ZoneReader::default(), "w".into(), object, amounts, minor);
        let view = NodeView { allocatable: None, ..view };
        let Verdict::Fits { guesses, .. } = view.fit(&wish(2, 1, 0)) else { panic!("it fits") };
        guesses.contains(&Guess::Version)
    };
    assert_eq!([33, 34].map(is_guess), [true, false]);
}

#[test]
fn a_static_pod_has_what_its_checkpoint_says() {
    let usage =
        Usage { pods: vec![PodUsage { namespace: "ns".into(), name: "db".into(), ..PodUsage::default() }] };
    let container = ContainerUsage { name: "init".into(), cpus: "3".parse().unwrap(), ..Default::default() };
    let checkpoints = Checkpoints {
        names: [("hash".to_owned(), ("ns".to_owned(), "db".to_owned()))].into(),
        pods: [("hash".to_owned(), vec![container])].into(),
        ..Checkpoints::default()
    };
    let state = KubeletState {
        minor: 36,
        machine: &Machine::default(),
        cpus: &BTreeMap::new(),
        config: &KubeletConfig::default(),
        allocatable: &Allocatable::default(),
        usage: &usage,
        checkpoints: Some(&checkpoints),
        ended: &BTreeSet::new(),
    };
    let cpus = |owner: &str, uid: &str| {
        let mut placed = placed("db", 1000);
        placed.pod.uid = uid.to_owned();
        placed.owner = Some((owner.to_owned(), "w".to_owned()));
        NodeView::of_kubelet("w".into(), &state, None, Some(&[placed])).pods[0].cpus.to_string()
    };
    assert_eq!(cpus("Node", "mirror"), "3", "the mirror pod has another UID");
    assert_eq!(cpus("StatefulSet", "new"), "", "an earlier pod of this name had it");
}

#[test]
fn more_cpus_must_be_left_on_the_node() {
    let options = CpuOptions { full_cores_only: true, ..CpuOptions::default() };
    let mut view = view(SINGLE, Scope::Container, options);
    view.used = [("cpu".to_owned(), 11_500)].into();
    let wish = wish(3, 1, 0);
    let changes = view.changes(&wish, &refusal(&view, &wish));
    let request = |amount| Change::Request { container: "app-3".into(), resource: "cpu".into(), amount };
    assert!(changes.contains(&request(2)) && !changes.contains(&request(4)), "{changes:?}");
}

/// Random pods on a small node, and one more.
fn pods() -> impl Strategy<Value = (Vec<(Wish, i32, u8)>, Wish)> {
    let container = |(init, cpus, gib, nics): (bool, u64, u64, u64)| {
        container(if init { Init } else { App }, cpus, gib, nics)
    };
    let one = (prop::bool::weighted(0.2), 0..6_u64, 1..4_u64, 0..2_u64).prop_map(container);
    let wish = prop::collection::vec(one, 1..3).prop_map(|mut containers| {
        containers.sort_by_key(|container| container.kind != Init);
        (0..).zip(&mut containers).for_each(|(at, container): (u8, _)| container.name = format!("c{at}"));
        Wish::new(pod(&containers), &NodeAmounts::new())
    });
    let pods = prop::collection::vec((wish.clone(), 0..3_i32, 0..6_u8), 1..9);
    (pods, wish)
}

fn options() -> impl Strategy<Value = (TopologyPolicy, Scope, CpuOptions)> {
    let policies = [TopologyPolicy::None, TopologyPolicy::BestEffort, TopologyPolicy::Restricted, SINGLE];
    let options =
        prop::bool::ANY.prop_map(|full_cores_only| CpuOptions { full_cores_only, ..CpuOptions::default() });
    (
        prop::sample::select(policies.to_vec()),
        prop::sample::select(vec![Scope::Container, Scope::Pod]),
        options,
    )
}

proptest! {
    #![proptest_config(fewer_cases(1))]
    #[test]
    fn the_room_is_what_brute_force_finds((policy, scope, options) in options(), (pods, wish) in pods()) {
        let mut view = view(policy, scope, options);
        view.budgets = [("one".to_owned(), 1)].into();
        for (at, (wish, priority, kind)) in pods.iter().enumerate() {
            let keep = (*kind == 0).then_some(Keep::DaemonSet);
            if admit(&mut view, &at.to_string(), wish, *priority, keep) {
                let budgets = [(1, "none"), (2, "one")].into_iter().filter(|(of, _)| of == kind);
                let pod = view.pods.last_mut().unwrap();
                pod.budgets = budgets.map(|(_, name)| name.to_owned()).collect();
            }
        }
        if view.fits(&wish) {
            return Ok(());
        }
        let sets = (0..1_usize << view.pods.len()).map(|mask| -> Vec<usize> {
            (0..view.pods.len()).filter(|at| mask >> at & 1 == 1).collect()
        });
        let sets = sets.filter(|set| set.iter().all(|at| view.pods[*at].keep.is_none()));
        let fitting: Vec<Vec<usize>> = sets.filter(|set| view.fits_without(set, &wish)).collect();
        let smallest = fitting.iter().map(Vec::len).min();
        let best = fitting.iter().filter(|set| Some(set.len()) == smallest).map(|set| view.cost(set)).min();
        match view.make_room(&wish, MAX_TRIES) {
            Room::Sets(found) => {
                prop_assert_eq!(Some(found[0].len()), smallest);
                prop_assert_eq!(Some(view.cost(&found[0])), best);
                for set in &found {
                    prop_assert!(view.fits_without(set, &wish), "{:?}", set);
                }
            }
            Room::Never => prop_assert_eq!(smallest, None),
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn every_change_makes_the_pod_fit((policy, scope, options) in options(), (pods, wish) in pods()) {
        let mut view = view(policy, scope, options);
        for (at, (wish, priority, _)) in pods.iter().enumerate() {
            admit(&mut view, &at.to_string(), wish, *priority, None);
        }
        let Verdict::Refused(refusal) = view.fit(&wish) else { return Ok(()) };
        for change in view.changes(&wish, &refusal) {
            let (mut view, mut wish) = (view.clone(), wish.clone());
            match &change {
                Change::Request { container, resource, amount } => {
                    let container = wish.pod.containers.iter_mut().find(|one| one.name == *container).unwrap();
                    match resource.as_str() {
                        "cpu" => container.cpu_milli = amount * 1000,
                        "nic" => drop(container.devices.insert(resource.clone(), *amount)),
                        _ => drop(container.memory.insert(resource.clone(), *amount)),
                    }
                }
                Change::Scope => view.state.settings.scope = Scope::Container,
                Change::Policy(policy) => view.state.settings.policy = *policy,
                Change::HugePages { .. } => prop_assert!(false, "no pod requests huge pages"),
            }
            prop_assert!(view.state.clone().admit(&wish.pod).is_ok(), "{:?}", change);
        }
    }
}
