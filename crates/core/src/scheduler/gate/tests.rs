//! Which pods the fingerprint covers.

mod reservations;
mod waiting;

use std::slice;

use super::*;
use crate::claims::{ClaimInUse, NodeClaims};
use crate::kubelet::{DeviceGroup, MemoryBlock};
use crate::machine::{Id, IdSet, Machine};
use crate::pod::{Container, ContainerKind};
use crate::scheduler::{NodeContext, Requirements};
use crate::topology::{Amounts, NodeExclusions, Topology};

use Phase::{Failed, Pending, Running, Succeeded, Unknown};

const WITHHOLD_AFTER: Duration = Duration::from_millis(20);
const UNACCOUNTED: Decision = Decision::Withhold(WithholdReason::UnaccountedPods);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Returns a Guaranteed pod with two CPUs.
fn pod(name: &str, uid: &str, phase: Phase) -> Pod {
    let container = Container { name: "main".into(), cpu_milli: 2000, ..Container::default() };
    Pod {
        namespace: "ns".into(),
        name: name.into(),
        uid: uid.into(),
        phase,
        guaranteed: true,
        qos_guaranteed: true,
        containers: Box::new([container]),
        ..Pod::default()
    }
}

/// Returns a List; pods whose name ends with `+` have CPUs.
fn list(names: &str) -> Usage {
    let pods = names.split_whitespace().map(|name| {
        let cpus = if name.ends_with('+') { "1-2" } else { "" };
        let cpus = cpus.parse().unwrap();
        let container = ContainerUsage { name: "main".into(), cpus, ..ContainerUsage::default() };
        PodUsage {
            namespace: "ns".into(),
            name: name.trim_end_matches('+').into(),
            containers: vec![container],
            ..PodUsage::default()
        }
    });
    Usage { pods: pods.collect() }
}

/// Returns a topology with a zone for each of these numbers of available CPUs, out of 8.
fn topology(available: &[u64]) -> Topology {
    let amounts = |available: &u64| Amounts { capacity: 8, allocatable: 8, available: *available };
    let resources = |available| [("cpu".to_owned(), amounts(available))].into();
    let zone = |available| Zone { resources: resources(available), ..Zone::default() };
    Topology { zones: available.iter().map(zone).collect(), ..Topology::default() }
}

struct Bench {
    gate: FingerprintGate,
    requirements: Requirements,
    topology: Topology,
    claims: Option<NodeClaims>,
    is_responding: bool,
    number: u64,
}

impl Bench {
    fn new() -> Self {
        Self::with(GateSettings { withhold_after: WITHHOLD_AFTER, ..GateSettings::default() })
    }

    fn with(settings: GateSettings) -> Self {
        Self {
            gate: FingerprintGate::new(settings),
            requirements: Requirements { cpus: true, ..Requirements::default() },
            topology: Topology::default(),
            claims: None,
            is_responding: true,
            number: 0,
        }
    }

    /// Calls `action` with the gate and its input.
    fn act<T>(&mut self, names: &str, action: impl FnOnce(&mut FingerprintGate, &GateInput<'_>) -> T) -> T {
        let (usage, machine, exclude) = (list(names), Machine::default(), NodeExclusions::default());
        let node = NodeContext::of_machine(&machine);
        let input = GateInput {
            claims: self.claims.as_ref(),
            usage: &usage,
            list_number: self.number,
            requirements: &self.requirements,
            topology: &self.topology,
            exclude: &exclude,
            is_responding: self.is_responding,
            node,
        };
        action(&mut self.gate, &input)
    }

    /// Evaluates with a new List.
    fn evaluate(&mut self, pods: &[Pod], names: &str, now: Duration) -> Verdict {
        self.number += 1;
        self.evaluate_again(pods, names, now)
    }

    fn evaluate_again(&mut self, pods: &[Pod], names: &str, now: Duration) -> Verdict {
        self.act(names, |gate, input| gate.evaluate(Some(pods), input, now))
    }

    fn decision(&mut self, pods: &[Pod], names: &str, milliseconds: u64) -> Decision {
        let verdict = self.evaluate(pods, names, ms(milliseconds));
        assert_eq!(verdict.fingerprint.unwrap().is_withheld(), verdict.decision == UNACCOUNTED);
        verdict.decision
    }
}

fn fingerprint(names: &str) -> Option<Fingerprint> {
    Some(Fingerprint::of(names.split_whitespace().map(|name| pod_hash("ns", name))))
}

fn value(verdict: &Verdict) -> Option<Fingerprint> {
    verdict.fingerprint.map(|fingerprint| fingerprint.value)
}

#[test]
fn a_pod_is_accounted_for_once_its_claims_are_known() {
    let mut bench = Bench::new();
    bench.requirements = Requirements::default();
    let json = r#"{"metadata": {"namespace": "ns", "name": "a", "uid": "1"}, "status": {"phase": "Running",
        "resourceClaimStatuses": [{"name": "x", "resourceClaimName": "a-x"}]},
        "spec": {"containers": [{"name": "main"}], "resourceClaims": [{"name": "x", "resourceClaimTemplateName": "t"}]}}"#;
    let pods = [Pod::from_json(json.as_bytes()).unwrap()];
    let claims = |name: &str, is_known: bool| NodeClaims {
        claims: [(name.to_owned(), ClaimInUse { is_known, ..ClaimInUse::default() })].into(),
        ..NodeClaims::default()
    };
    for (now, unknown) in [(0, claims("ns/other", true)), (30, claims("ns/a-x", false))] {
        bench.claims = Some(unknown);
        assert_ne!(bench.decision(&pods, "a", now), Decision::Publish);
    }
    bench.claims = Some(claims("ns/a-x", true));
    assert_eq!(value(&bench.evaluate(&pods, "a", ms(31))), fingerprint("a"));
}

#[test]
fn allocations_are_exclusive_by_cpus_or_by_numa_nodes() {
    let with = |nodes: &[Id]| {
        let nodes: IdSet = nodes.iter().copied().collect();
        let memory = MemoryBlock { nodes: nodes.clone(), ..MemoryBlock::default() };
        let devices = DeviceGroup { nodes, ..DeviceGroup::default() };
        (memory, devices)
    };
    let of = |container: ContainerUsage| PodUsage { containers: vec![container], ..PodUsage::default() };
    let ((anywhere, any_device), (there, device)) = (with(&[]), with(&[0]));
    let nothing =
        ContainerUsage { memory: vec![anywhere], devices: vec![any_device], ..ContainerUsage::default() };
    let memory = ContainerUsage { memory: vec![there.clone()], ..ContainerUsage::default() };
    let devices = ContainerUsage { devices: vec![device], ..ContainerUsage::default() };
    let cpus = ContainerUsage { cpus: "1".parse().unwrap(), ..ContainerUsage::default() };
    assert!(!has_exclusive_allocations(&PodUsage::default()) && !has_exclusive_allocations(&of(nothing)));
    for container in [memory, devices, cpus] {
        assert!(has_exclusive_allocations(&of(container.clone())), "{container:?}");
    }
    assert!(has_exclusive_allocations(&PodUsage { cpus: "1".parse().unwrap(), ..PodUsage::default() }));
    assert!(has_exclusive_allocations(&PodUsage { memory: vec![there], ..PodUsage::default() }));
}

#[test]
fn a_starting_pod_is_counted_for_a_while() {
    let mut bench = Bench::new();
    let pods = [pod("a", "1", Running), pod("b", "2", Pending)];
    let burstable = Pod { guaranteed: false, ..pod("c", "3", Pending) };
    let all = [pods[0].clone(), pods[1].clone(), burstable];
    assert_eq!(value(&bench.evaluate(&all, "a+ b c", ms(0))), fingerprint("a"), "it is allocated nothing");
    let counted = bench.evaluate(&all, "a+ b+ c", ms(10));
    assert_eq!((value(&counted), counted.recheck_at), (fingerprint("a b"), Some(ms(2010))));
    let covered = bench.act("a+ b+ c", |gate, input| gate.covered_pods(Some(&all), input));
    assert_eq!(covered, ["a", "b"].map(|name| ("ns".to_owned(), name.to_owned())));
    assert_eq!(value(&bench.evaluate(&pods, "a+ b+", ms(2009))), fingerprint("a b"));
    // Its image is being pulled; meanwhile the fingerprint is to match for the others.
    let late = bench.evaluate(&pods, "a+ b+", ms(2010));
    assert_eq!((value(&late), late.recheck_at), (fingerprint("a"), None));
    assert_eq!(value(&bench.evaluate(&pods, "a+ b+", ms(2011))), fingerprint("a"), "not once more");
    let running = [pod("a", "1", Running), pod("b", "2", Running)];
    assert_eq!(value(&bench.evaluate(&running, "a+ b+", ms(9000))), fingerprint("a b"));
}

#[test]
fn a_release_ends_the_counting_of_a_starting_pod() {
    let mut bench = Bench::new();
    let pods = [pod("a", "1", Running), pod("b", "2", Pending)];
    let mut evaluate = |names: &str, available: [u64; 2]| {
        bench.topology = topology(&available);
        value(&bench.evaluate_again(&pods, names, ms(0)))
    };
    assert_eq!(evaluate("a+ b", [4, 4]), fingerprint("a"));
    assert_eq!(evaluate("a+ b+", [4, 2]), fingerprint("a b"));
    assert_eq!(evaluate("a+ b+", [4, 2]), fingerprint("a b"));
    assert_eq!(evaluate("a+ b+", [5, 1]), fingerprint("a"), "more in one zone, less in the other");
    assert_eq!(evaluate("a+ b+", [5, 1]), fingerprint("a"), "and it stays so");
}

#[test]
fn a_pod_that_will_not_run_soon_is_not_counted_before_it_runs() {
    let init = Container { kind: ContainerKind::Init, ..Container::default() };
    let mut initialised = pod("a", "1", Pending);
    initialised.containers = initialised.containers.iter().cloned().chain([init]).collect();
    let deleted = Pod { deleted: true, ..pod("a", "1", Pending) };
    for late in [initialised, deleted] {
        let (mut bench, late) = (Bench::new(), [late]);
        assert_eq!(value(&bench.evaluate(&late, "a+", ms(0))), fingerprint(""));
        assert_eq!(bench.decision(&late, "", 1), Decision::Wait, "those may have been an earlier pod's CPUs");
    }
    let mut bench = Bench::with(GateSettings { view: FingerprintView::None, ..GateSettings::default() });
    assert_eq!(bench.evaluate(&[pod("a", "1", Pending)], "a+", ms(0)).recheck_at, None, "no fingerprint");
}

#[test]
fn the_fingerprint_covers_the_pods_of_the_plugins_informer() {
    let phases = [Pending, Running, Succeeded, Failed, Unknown];
    let pods: Vec<Pod> = phases.map(|phase| pod(&format!("{phase:?}"), &format!("{phase:?}"), phase)).into();
    let mut bench = Bench::new();
    bench.requirements.cpus = false;
    let names = "Pending+ Running+ Unknown+";
    assert_eq!(value(&bench.evaluate(&pods, names, ms(0))), fingerprint("Running Succeeded Failed Unknown"));
    let shared = GateSettings { informer: Informer::Shared, ..GateSettings::default() };
    bench.gate = FingerprintGate::new(shared);
    assert_eq!(value(&bench.evaluate(&pods, names, ms(0))), fingerprint("Running"));
    // Deleted pods count as long as their phase does.
    let deleted = [Pod { deleted: true, ..pod("Running", "1", Running) }];
    assert_eq!(value(&bench.evaluate(&deleted, "", ms(0))), fingerprint("Running"));
}

#[test]
fn the_method_may_select_pods_with_exclusive_resources() {
    let method = FingerprintMethod::WithExclusiveResources;
    let settings = GateSettings { method, ..GateSettings::default() };
    let burstable = Pod { guaranteed: false, qos_guaranteed: false, ..pod("b", "2", Running) };
    let mut bench = Bench::with(settings);
    let pods = [pod("a", "1", Running), burstable];
    assert_eq!(value(&bench.evaluate(&pods, "a+ b", ms(0))), fingerprint("a"));
}

#[test]
fn the_kubelets_view_covers_its_list() {
    let mut bench = Bench::with(GateSettings { view: FingerprintView::Kubelet, ..GateSettings::default() });
    let pods = [pod("c", "1", Pending)];
    assert_eq!(value(&bench.evaluate(&pods, "a+ b", ms(100))), fingerprint("a b"));
    let method = FingerprintMethod::WithExclusiveResources;
    let mut bench =
        Bench::with(GateSettings { view: FingerprintView::Kubelet, method, ..GateSettings::default() });
    assert_eq!(value(&bench.evaluate(&pods, "a+ b", ms(100))), fingerprint("a"));
    let mut bench = Bench::with(GateSettings { view: FingerprintView::None, ..GateSettings::default() });
    assert_eq!(value(&bench.evaluate(&pods, "a+ b", ms(100))), None);
}

#[test]
fn the_fingerprint_is_withheld_before_the_pods_are_known() {
    let mut bench = Bench::new();
    let verdict = bench.act("a+", |gate, input| gate.evaluate(None::<[&Pod; 0]>, input, ms(0)));
    assert_eq!(verdict.decision, Decision::Withhold(WithholdReason::PodsUnknown));
    assert_eq!(value(&verdict), Some(Fingerprint::WITHHELD));
    assert_eq!(bench.decision(&[pod("a", "1", Running)], "a+", 1), Decision::Publish);
}

#[test]
fn the_result_has_the_fingerprint_and_the_zones_without_the_reservations() {
    let mut bench = Bench::with(GateSettings { reserve: true, ..GateSettings::default() });
    bench.topology = topology(&[8]);
    let pods = [pod("a", "1", Pending)];
    let published = bench.act("", |gate, input| {
        let verdict = gate.evaluate(Some(&pods), input, ms(0));
        gate.publishable(Some(&pods), input, &verdict)
    });
    assert!(published.is_withheld());
    assert_eq!(published.zones, topology(&[6]).zones);
    assert_eq!(published.placement, None);
}
