//! The computed zones of every described machine, empty and busy. The oracle is the simulated managers' own
//! state, which shares no code with the accounting; the rules that the scheduler depends on are checked
//! separately.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use numacast_core::kubelet::{Allocatable, KubeletConfig, Usage, parse_config};
use numacast_core::machine::{Id, Machine, read};
use numacast_core::nrt::{NodeResourceTopology, NodeResourceTopologyFields, ResourceInfo, zone_name};
use numacast_core::quantity::hugepages_name;
use numacast_core::topology::{Amounts, Finding, Inputs, Topology, Zone, ZoneRules, account};

use super::kubelet::{ContainerSpec, Model, PodLevel, PodSpec, Split};
use super::machine::MachineSpec;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

struct Case {
    machine: Machine,
    allocatable: Allocatable,
    usage: Usage,
    config: KubeletConfig,
}

impl Case {
    fn account(&self) -> Topology {
        account(&Inputs {
            machine: &self.machine,
            allocatable: &self.allocatable,
            usage: &self.usage,
            terminated: &BTreeSet::new(),
            claims: None,
            checkpoints: None,
            config: Some(&self.config),
            policies: None,
            remembered: &BTreeSet::new(),
            rules: &ZoneRules { fillers: true, ..ZoneRules::default() },
        })
    }

    /// Returns zone and capacity, allocatable and available of one resource.
    fn of(&self, resource: &str) -> Vec<(Id, [u64; 3])> {
        let amounts = |zone: &Zone| {
            let Amounts { capacity, allocatable, available } = *zone.resources.get(resource)?;
            Some((zone.id, [capacity, allocatable, available]))
        };
        self.account().zones.iter().filter_map(amounts).collect()
    }
}

/// Returns the machines of `tests/machines/`, by name.
fn described() -> Vec<(String, MachineSpec)> {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/machines");
    MachineSpec::read_all(&dir).unwrap()
}

/// What the agent would read of this machine with these managers.
fn case(spec: &MachineSpec, model: &Model, rng: &mut Rng) -> Case {
    let (allocatable, usage) = model.responses(rng);
    let machine = read(&spec.files()).unwrap();
    Case { machine, allocatable, usage, config: config(spec) }
}

fn config(spec: &MachineSpec) -> KubeletConfig {
    let (config, problems) = parse_config(&serde_json::to_string(&spec.kubelet).unwrap()).unwrap();
    assert_eq!(problems, Vec::<String>::new());
    config
}

/// Converts the topology to the object that the oracle checks.
fn object(topology: &Topology) -> NodeResourceTopology {
    let resource = |(name, amounts): (&String, &Amounts)| ResourceInfo {
        name: name.clone(),
        capacity: amounts.capacity.into(),
        allocatable: amounts.allocatable.into(),
        available: amounts.available.into(),
    };
    let zone = |zone: &Zone| numacast_core::nrt::Zone {
        name: zone_name(zone.id),
        kind: numacast_core::nrt::ZONE_TYPE.into(),
        resources: Some(zone.resources.iter().map(resource).collect()),
        ..numacast_core::nrt::Zone::default()
    };
    let zones = topology.zones.iter().map(zone).collect();
    NodeResourceTopology::new("worker", NodeResourceTopologyFields { zones, ..Default::default() })
}

/// Checks for what would make the scheduler panic, skip a zone or misread a node.
fn check_scheduler_rules(topology: &Topology, machine: &Machine, context: &str) {
    let zones: Vec<Id> = topology.zones.iter().map(|zone| zone.id).collect();
    let highest = machine.nodes.iter().map(|node| node.id).filter(|id| *id < 64).max().unwrap();
    assert_eq!(zones, (0..=highest).collect::<Vec<_>>(), "{context}: position is id");
    let names: Vec<&String> = topology.zones[0].resources.keys().collect();
    assert!(["cpu", "memory"].iter().all(|name| names.iter().any(|listed| listed == name)), "{context}");
    for zone in &topology.zones {
        let context = format!("{context}: zone {}", zone.id);
        assert_eq!(zone.resources.keys().collect::<Vec<_>>(), names, "{context}");
        for (name, amounts) in &zone.resources {
            let Amounts { capacity, allocatable, available } = *amounts;
            assert!(available <= allocatable && allocatable <= capacity, "{context}: {name} {amounts:?}");
        }
        assert_eq!(zone.costs.keys().copied().collect::<Vec<_>>(), zones, "{context}: costs");
        let node = machine.nodes.iter().find(|node| node.id == zone.id);
        for (peer, cost) in &zone.costs {
            let reported = node.and_then(|node| node.distances.get(peer).copied());
            let default = if node.is_some() && *peer == zone.id { 10 } else { 255 };
            assert_eq!(*cost, reported.unwrap_or(default), "{context}: cost to {peer}");
        }
        if node.is_none() {
            assert!(zone.resources.values().all(|amounts| *amounts == Amounts::default()), "{context}");
        }
    }
    let beyond: BTreeSet<Id> = machine.nodes.iter().map(|node| node.id).filter(|id| *id >= 64).collect();
    let reported = topology.findings.iter().filter_map(|finding| match finding {
        Finding::UnpublishedNodes(ids) => Some(ids.iter()),
        _ => None,
    });
    assert_eq!(reported.flatten().collect::<BTreeSet<_>>(), beyond, "{context}");
}

fn check(spec: &MachineSpec, model: &Model, rng: &mut Rng, context: &str) {
    let case = case(spec, model, rng);
    let topology = case.account();
    let expected = model.expected();
    // Any other policy keeps containers that need one node out of groups.
    let is_best_effort = spec.kubelet.get("topologyManagerPolicy").is_some_and(|it| it == "best-effort");
    assert!(is_best_effort || expected.contradictions.is_empty(), "{context}: {:?}", expected.contradictions);
    let differences = expected.differences(&object(&topology), Split::PerGroup);
    assert_eq!(differences, Vec::<String>::new(), "{context}");
    check_scheduler_rules(&topology, &case.machine, context);
    let is_unexpected = |finding: &Finding| match finding {
        Finding::UnpublishedNodes(_) => false,
        Finding::DevicesOnUnknownNodes { nodes, .. } => nodes.iter().any(|node| node < 64),
        // What the kubelet takes for free is given out twice.
        Finding::OverusedMemory { nodes, resource } => {
            !nodes.iter().all(|node| expected.contradictions.contains(&(node, resource.clone())))
        }
        _ => true,
    };
    assert!(!topology.findings.iter().any(is_unexpected), "{context}: {:?}", topology.findings);
}

/// Whole CPUs or fractions, any kind of memory, any devices, any placement.
fn some_pod(spec: &MachineSpec, name: &str, rng: &mut Rng) -> PodSpec {
    let mut pod = PodSpec::new(name);
    pod.guaranteed = rng.u8(..4) > 0;
    // The simulated managers ignore such a pod; `tests/sim` covers kubelets that do not.
    pod.pod_level = (rng.u8(..8) == 0).then(PodLevel::default);
    for number in 1..rng.usize(1..3) {
        pod.containers.push(ContainerSpec { name: format!("c{number}"), ..ContainerSpec::default() });
    }
    for container in &mut pod.containers {
        container.milli_cpu = *rng.choice(&[0, 500, 1000, 2000, 3000, 5000]).unwrap();
        container.memory = rng.u64(..40) * 128 * MIB;
        for size in spec.page_sizes() {
            if rng.bool() {
                container.hugepages.insert(hugepages_name(size), rng.u64(1..9) * size);
            }
        }
        for plugin in &spec.devices {
            if rng.bool() {
                container.devices.insert(plugin.resource.clone(), rng.u64(1..3));
            }
        }
    }
    if rng.u8(..6) == 0 {
        let node = rng.choice(&spec.nodes).unwrap().id;
        let other = rng.choice(&spec.nodes).unwrap().id;
        pod.affinity = Some([node, other].into_iter().collect());
    }
    pod
}

#[test]
fn every_described_machine_is_accounted_correctly() {
    let seed = crate::seed();
    println!("NUMACAST_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    for (name, spec) in described() {
        let mut model = Model::new(&spec);
        check(&spec, &model, &mut rng, &format!("seed {seed}, {name}, empty"));
        let mut running = Vec::new();
        for step in 0..24 {
            let context = format!("seed {seed}, {name}, step {step}");
            if running.len() > 6 || (!running.is_empty() && rng.u8(..4) == 0) {
                let gone: String = running.swap_remove(rng.usize(..running.len()));
                model.remove("default", &gone);
                model.release_stale();
            } else {
                let pod = some_pod(&spec, &format!("pod-{step}"), &mut rng);
                let (uid, name) = (pod.uid.clone(), pod.name.clone());
                model.add(pod).unwrap();
                if model.admit(&uid).is_ok() {
                    running.push(name);
                }
            }
            if rng.u8(..6) == 0 {
                let plugin = rng.choice(&spec.devices).unwrap();
                let device = rng.choice(&plugin.devices).unwrap();
                model.set_health(&plugin.resource, &device.id, rng.bool());
            }
            check(&spec, &model, &mut rng, &context);
        }
    }
}

/// The largest machine that the scheduler can handle.
#[test]
fn sixty_four_zones_with_a_thousand_cpus_are_accounted_correctly() {
    let mut spec = super::scenario::machine(64);
    for node in &mut spec.nodes {
        let first = 512 + node.id * 8;
        node.cpus.union_with(&(first..first + 8).collect());
    }
    assert_eq!(spec.online_cpus().len(), 1024);
    let mut model = Model::new(&spec);
    for zone in 0..64_u16 {
        let pod = PodSpec::guaranteed(&format!("pod-{zone}"), 1 + u64::from(zone % 13), GIB)
            .devices("example.com/gpu", 1)
            .on([zone]);
        let uid = pod.uid.clone();
        model.add(pod).unwrap();
        model.admit(&uid).unwrap();
    }
    check(&spec, &model, &mut Rng::with_seed(1), "64 zones");
}

/// Returns a machine as its kubelet read it at startup, combined with its present hardware.
fn changed(name: &str) -> Case {
    let (_, spec) = described().into_iter().find(|(described, _)| described == name).unwrap();
    let later = spec.later().unwrap();
    let mut case = case(&spec, &Model::new(&spec), &mut Rng::with_seed(1));
    case.machine = read(&later.files()).unwrap();
    check_scheduler_rules(&case.account(), &case.machine, name);
    case
}

#[test]
fn memory_that_drifted_since_the_kubelet_started_is_no_finding() {
    let case = changed("drift");
    let offered = |reserved| 8 * GIB - 128 * MIB - reserved;
    assert_eq!(
        case.of("memory"),
        [
            (0, [8 * GIB - 40 * 1024, offered(GIB), offered(GIB)]),
            (1, [8 * GIB + 12 * 1024, offered(0), offered(0)]),
        ]
    );
    assert_eq!(case.account().findings, BTreeSet::new());
}

#[test]
fn cpus_count_if_they_are_online_and_known_to_the_kubelet() {
    let case = changed("hotplug");
    // Reserved: 0. Removed: 3. Added, and unknown to the kubelet until it restarts: 6 to 9.
    assert_eq!(case.of("cpu"), [(0, [3, 2, 2]), (1, [6, 2, 2])]);
    assert_eq!(case.account().findings, [Finding::UnknownCpus("3".into())].into());
}

#[test]
fn memory_that_was_added_later_is_capacity_but_not_allocatable() {
    let case = changed("late-gpu-memory");
    let memory: BTreeMap<Id, [u64; 3]> = case.of("memory").into_iter().collect();
    assert_eq!(memory.keys().copied().collect::<Vec<_>>(), (0..=10).collect::<Vec<_>>());
    assert_eq!((memory[&2], memory[&10]), ([4 * GIB, 0, 0], [4 * GIB, 0, 0]));
    assert_eq!((memory[&3], memory[&1][0]), ([0, 0, 0], 8 * GIB));
    assert_eq!(case.account().findings, BTreeSet::new());
}
