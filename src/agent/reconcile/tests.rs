use std::time::Duration;

use super::*;
use crate::agent::live_object::tests::live_object;
use crate::agent::observe::{ConfigConfidence, ConfigStatus, Inventory};
use crate::config::Config;
use crate::kubelet::{Allocatable, ContainerUsage, KubeletConfig, KubeletInstance, MemoryBlock};
use crate::machine::{Machine, NumaNode};
use crate::pod::{Container, Pod};
use crate::topology::ZoneRules;

/// Returns a scan of a node with the CPUs 0-3, on which these pods have these CPUs.
pub(super) fn scan(pods: &[(&str, &str)]) -> Scan {
    let cpus = || "0-3".parse().unwrap();
    let node = NumaNode { cpus: cpus(), ..NumaNode::default() };
    let pod = |(name, cpus): &(&str, &str)| PodUsage {
        namespace: "ns".into(),
        name: (*name).into(),
        containers: vec![ContainerUsage {
            name: "main".into(),
            cpus: cpus.parse().unwrap(),
            ..ContainerUsage::default()
        }],
        ..PodUsage::default()
    };
    let inventory = Inventory {
        machine: Arc::new(Machine { nodes: vec![node], ..Machine::default() }),
        allocatable: Allocatable { cpus: cpus(), ..Allocatable::default() },
        config: Some(KubeletConfig::default()),
        errors: Vec::new(),
    };
    let config = ConfigStatus { confidence: ConfigConfidence::Certain, ..ConfigStatus::default() };
    Scan {
        usage: Arc::new(Usage { pods: pods.iter().map(pod).collect() }),
        inventory: Arc::new(inventory),
        config,
        ..Scan::default()
    }
}

/// Returns a Guaranteed pod with one CPU.
pub(super) fn pod(name: &str) -> Pod {
    let container = Container { name: "main".into(), cpu_milli: 1000, ..Container::default() };
    Pod {
        namespace: "ns".into(),
        name: name.into(),
        uid: name.into(),
        guaranteed: true,
        qos_guaranteed: true,
        containers: Box::new([container]),
        ..Pod::default()
    }
}

struct Bench {
    reconciler: Reconciler,
    pods: PodCache,
    view: PodView,
    live_object: LiveObject,
    start: Instant,
}

impl Bench {
    /// Returns a reconciler on a node with these pods and no object.
    fn new(pods: Vec<Pod>) -> Self {
        let config = Config { node_name: "worker".into(), ..Config::default() };
        let start = Instant::now();
        Self {
            reconciler: Reconciler::new(&config.agent_settings(), start),
            pods: PodCache::fixed(pods),
            view: PodView { is_up_to_date: true, is_complete: true, ..PodView::default() },
            live_object: LiveObject::Missing,
            start,
        }
    }

    fn after(&self, seconds: u64) -> Instant {
        self.start + Duration::from_secs(seconds)
    }

    fn step(&mut self, change: Change, now: Instant) -> Plan {
        let context = Context {
            pods: &self.pods,
            view: &self.view,
            live_object: &self.live_object,
            rules: &ZoneRules::default(),
            is_api_server_unreachable: false,
        };
        self.reconciler.step(change, &context, now)
    }

    fn scanned(&mut self, scan: Scan, seconds: u64) -> Plan {
        let now = self.after(seconds);
        self.step(Change::Scanned { scan, start: now, is_full: true }, now)
    }

    fn failed(&mut self, error: &str, seconds: u64) -> Plan {
        self.step(Change::ScanFailed(error.to_owned()), self.after(seconds))
    }
}

/// Returns the number of available CPUs in a new state.
fn available(plan: &Plan) -> u64 {
    let newest = plan.publish.as_ref().filter(|newest| newest.is_new).expect("nothing new is published");
    newest.publishable.zones[0].resources["cpu"].available
}

fn publishes_nothing_new(plan: &Plan) -> bool {
    plan.publish.as_ref().is_none_or(|newest| !newest.is_new)
}

#[test]
fn an_accepted_scan_is_published() {
    let mut bench = Bench::new(vec![]);
    assert_eq!(bench.reconciler.depth(Depth::Usage, bench.start), Depth::Everything, "for the first time");
    let plan = bench.scanned(scan(&[("a", "1")]), 0);
    assert_eq!((plan.outcome, &plan.status), (Some(Outcome::Success), &Some(Ok(()))));
    assert_eq!(available(&plan), 3);
    assert!(!plan.has_recovered && plan.warnings.is_empty() && plan.events.is_empty());
    assert_eq!(bench.reconciler.requeue.depth, Depth::Everything);
    assert!(bench.reconciler.requeue.at > bench.after(4) && bench.reconciler.requeue.at < bench.after(6));
    assert_eq!(bench.reconciler.depth(Depth::Usage, bench.after(1)), Depth::Usage);
    assert!(publishes_nothing_new(&bench.scanned(scan(&[("a", "1")]), 1)));
}

#[test]
fn nothing_is_published_before_the_live_object_is_known() {
    let mut bench = Bench::new(vec![]);
    bench.live_object = LiveObject::Unknown;
    let plan = bench.scanned(scan(&[]), 0);
    assert!(plan.publish.is_none() && plan.status.is_none());
    assert_eq!(plan.outcome, Some(Outcome::ObjectUnknown));
    assert_eq!(bench.reconciler.requeue.depth, Depth::Everything);
    bench.live_object = LiveObject::Missing;
    assert_eq!(available(&bench.scanned(scan(&[]), 1)), 4);
}

#[test]
fn nothing_is_published_before_the_first_response_about_the_configuration() {
    let mut bench = Bench::new(vec![]);
    let mut scan = scan(&[]);
    Arc::make_mut(&mut scan.inventory).config = None;
    scan.config = ConfigStatus { is_requested: true, ..ConfigStatus::default() };
    let plan = bench.scanned(scan, 0);
    assert!(plan.publish.is_none() && plan.status.is_none());
    assert_eq!(plan.outcome, Some(Outcome::ConfigUnknown));
}

#[test]
fn a_failed_scan_is_reported_once_and_posted_after_a_minute() {
    let mut bench = Bench::new(vec![]);
    let plan = bench.failed("x", 0);
    assert_eq!((plan.outcome, plan.status), (Some(Outcome::Failed), Some(Err("x".to_owned()))));
    assert_eq!((plan.warnings, bench.reconciler.requeue.depth), (vec!["x".to_owned()], Depth::Everything));
    let again = bench.failed("x", 60);
    assert!(again.warnings.is_empty() && again.events.is_empty());
    let later = bench.failed("x", 61);
    assert_eq!(later.events, [(Reason::NodeUnreadable, "x".to_owned())]);
    assert!(bench.scanned(scan(&[]), 62).has_recovered);
}

#[test]
fn a_restarted_kubelet_is_waited_for() {
    let mut bench = Bench::new(vec![]);
    bench.scanned(scan(&[("a", "1")]), 0);
    let restarted = || Scan { instance: KubeletInstance::default().next(), ..scan(&[]) };
    let plan = bench.scanned(restarted(), 1);
    assert!(publishes_nothing_new(&plan));
    assert_eq!(plan.outcome, Some(Outcome::KubeletNotReady));
    assert!(plan.notes[0].contains("does not list 1 of the 1 pods"), "{:?}", plan.notes);
    assert!(plan.warnings.is_empty() && plan.events.is_empty(), "{:?}", plan.warnings);
    assert!(bench.reconciler.requeue.at < bench.after(2));
    assert!(bench.reconciler.restart.is_waiting());
    assert_eq!(bench.reconciler.depth(Depth::Usage, bench.after(1)), Depth::Everything);
    let again = bench.scanned(restarted(), 2);
    assert!(again.notes.is_empty(), "{:?}", again.notes);
    let late = bench.scanned(restarted(), 62);
    assert_eq!(late.warnings, plan.notes);
    assert!(matches!(late.events[..], [(Reason::NodeUnreadable, _)]), "{:?}", late.events);
    let plan = bench.scanned(restarted(), 302);
    assert_eq!(available(&plan), 4);
    assert!(matches!(plan.events[..], [(Reason::KubeletStateIncomplete, _)]), "{:?}", plan.events);
}

#[test]
fn a_new_static_pod_is_published_before_the_others_are_back() {
    let mut bench = Bench::new(vec![]);
    bench.scanned(scan(&[("a", "1")]), 0);
    let restarted = Scan { instance: KubeletInstance::default().next(), ..scan(&[("web-worker", "2")]) };
    let plan = bench.scanned(restarted, 1);
    assert_eq!(available(&plan), 2);
    assert!(plan.status.is_none(), "it is incomplete");
    let requeue = Requeue { at: bench.after(1) + Duration::from_millis(100), depth: Depth::Everything };
    assert_eq!(bench.reconciler.requeue, requeue);
}

#[test]
fn a_half_admitted_pod_is_scanned_again() {
    let mut bench = Bench::new(vec![]);
    let mut half = scan(&[("a", "1")]);
    Arc::make_mut(&mut half.inventory).allocatable.memory = vec![MemoryBlock::default()];
    let plan = bench.scanned(half.clone(), 0);
    assert_eq!((plan.outcome, bench.reconciler.requeue.depth), (Some(Outcome::PodAdmission), Depth::Usage));
    assert_eq!(bench.reconciler.requeue.at, bench.start + Duration::from_millis(10));
    assert_eq!(bench.scanned(half, 1).outcome, Some(Outcome::Success), "it is waited for once");
}

#[test]
fn policies_of_the_live_object_are_published_while_the_configuration_is_unknown() {
    let mut bench = Bench::new(vec![]);
    bench.live_object =
        live_object(&[("topologyManagerPolicy", "restricted"), ("topologyManagerScope", "pod")], &[]);
    let mut scan = scan(&[]);
    Arc::make_mut(&mut scan.inventory).config = None;
    scan.config = ConfigStatus::default();
    let plan = bench.scanned(scan, 0);
    let published = plan.publish.expect("nothing is published").publishable;
    assert_eq!(published.attributes, bench.live_object.policies());
}

#[test]
fn a_source_of_pods_that_is_not_synced_is_waited_for_after_the_start() {
    let mut bench = Bench::new(vec![]);
    bench.view = PodView::default();
    let plan = bench.scanned(scan(&[]), 0);
    assert_eq!(plan.outcome, Some(Outcome::KubeletNotReady));
    assert!(plan.notes[0].contains("have not been listed yet"), "{:?}", plan.notes);
    let plan = bench.scanned(scan(&[]), 3);
    assert_eq!((plan.outcome, plan.has_recovered), (Some(Outcome::Success), false));
}

#[test]
fn a_reused_name_counts_as_allocated() {
    let mut bench = Bench::new(vec![]);
    let terminated = || Arc::new([("ns".to_owned(), "a".to_owned())].into());
    bench.view.terminated = Arc::new([(("ns".to_owned(), "a".to_owned()), "uid".to_owned())].into());
    assert_eq!(bench.reconciler.start_scan(&bench.view, &bench.pods), terminated());
    let plan = bench.scanned(Scan { terminated: terminated(), ..scan(&[("a", "1")]) }, 0);
    assert_eq!(available(&plan), 4, "it has released its CPU");
    let plan = bench.scanned(Scan { terminated: terminated(), ..scan(&[("a", "1-2")]) }, 1);
    assert_eq!(available(&plan), 2, "another pod has the name");
    assert!(bench.reconciler.start_scan(&bench.view, &bench.pods).is_empty());
}

#[test]
fn errors_and_findings_are_reported_once() {
    let mut bench = Bench::new(vec![]);
    let mut scan = scan(&[]);
    let inventory = Arc::make_mut(&mut scan.inventory);
    inventory.errors = vec!["x".to_owned()];
    let machine = Arc::make_mut(&mut inventory.machine);
    machine.nodes.push(NumaNode { id: 64, ..NumaNode::default() });
    let plan = bench.scanned(scan.clone(), 0);
    let [finding, error] = &plan.warnings[..] else { panic!("{:?}", plan.warnings) };
    assert!(finding.starts_with("NUMA node 64 is not published") && error == "x", "{:?}", plan.warnings);
    assert_eq!(plan.events, [(Reason::NodesNotPublished, finding.clone())]);
    let again = bench.scanned(scan, 1);
    assert!(again.warnings.is_empty() && again.events.is_empty());
}

#[test]
fn pods_that_change_between_scans_are_published_without_one() {
    let mut bench = Bench::new(vec![]);
    bench.scanned(scan(&[]), 0);
    let requeue = bench.reconciler.requeue;
    bench.pods = PodCache::fixed(vec![pod("a")]);
    let plan = bench.step(Change::Pods(Scope::All), bench.after(1));
    assert!(plan.publish.is_none(), "it may be admitted in time");
    assert_eq!(bench.reconciler.fingerprint.bound_pods.unaccounted.len(), 1);
    assert_eq!(bench.reconciler.requeue, requeue);
    let due = bench.reconciler.fingerprint.recheck_at.expect("there is nothing to wait for");
    let plan = bench.step(Change::Pods(Scope::Urgent), due);
    assert!(plan.publish.is_some_and(|newest| newest.is_new && newest.publishable.is_withheld()));
    assert!(plan.outcome.is_none() && plan.status.is_none());
}
