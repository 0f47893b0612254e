use std::collections::BTreeSet;

use super::*;
use crate::agent::reconcile::tests::{pod, scan};
use crate::topology::ZoneRules;

/// Returns an account of a node with the CPUs 0-3, on which these pods have these CPUs.
fn account(pods: &[(&str, &str)]) -> Account {
    Account::new(scan(pods), None, &BTreeSet::new(), &ZoneRules::default())
}

struct Bench {
    guard: FingerprintGuard,
    pods: PodCache,
    start: Instant,
    report: PodReport,
}

impl Bench {
    /// Returns a guard that has accepted an account without pods.
    fn new(settings: GateSettings, pods: PodCache) -> Self {
        let start = Instant::now();
        let mut guard = FingerprintGuard::new(settings, start);
        guard.accept(account(&[]));
        Self { guard, pods, start, report: PodReport::default() }
    }

    fn check(&mut self, scope: Scope, milliseconds: u64) -> Option<Newest> {
        let now = self.start + Duration::from_millis(milliseconds);
        self.guard.check(&self.pods, &NodeExclusions::default(), scope, now, &mut self.report)
    }

    /// Returns when the guard is to be checked again, in milliseconds after its start.
    fn recheck_after(&self) -> Option<u128> {
        Some(self.guard.recheck_at?.duration_since(self.start).as_millis())
    }
}

/// Returns whether the state is new, and whether its fingerprint is withheld.
fn published(newest: Option<Newest>) -> (bool, bool) {
    let newest = newest.expect("nothing is published");
    (newest.is_new, newest.publishable.is_withheld())
}

#[test]
fn nothing_is_published_without_an_account() {
    let mut guard = FingerprintGuard::new(GateSettings::default(), Instant::now());
    let (pods, exclude) = (PodCache::none(), NodeExclusions::default());
    assert!(guard.check(&pods, &exclude, Scope::All, Instant::now(), &mut PodReport::default()).is_none());
}

#[test]
fn the_first_object_waits_for_the_pods_and_is_withheld_without_them() {
    let mut bench = Bench::new(GateSettings::default(), PodCache::none());
    assert!(bench.check(Scope::All, 0).is_none());
    assert_eq!(bench.recheck_after(), Some(2000));
    assert_eq!(published(bench.check(Scope::All, 2000)), (true, true));
    assert_eq!(bench.recheck_after(), Some(60_000));
    assert!(bench.check(Scope::All, 59_999).is_none());
    assert!(bench.report.events.is_empty());
    assert_eq!(published(bench.check(Scope::All, 60_000)), (false, true));
    let [(Reason::PodsUnknown, note)] = &bench.report.events[..] else { panic!("{:?}", bench.report.events) };
    let cause =
        "the scheduler plugin cannot use its NodeResourceTopology: their source has not responded yet";
    assert!(note.ends_with(cause), "{note}");
    bench.guard.accept(account(&[]));
    assert_eq!(published(bench.check(Scope::All, 120_000)), (false, true));
    assert_eq!(bench.report.events.len(), 1, "it is reported once");
}

#[test]
fn the_wait_for_the_pods_begins_when_the_api_server_has_responded() {
    let mut bench = Bench::new(GateSettings::default(), PodCache::failing("RBAC denied the request"));
    // Without the object in the API server no scan is accepted. The pods are listed again after a backoff.
    assert!(bench.check(Scope::All, 600_000).is_none());
    assert_eq!(bench.recheck_after(), Some(602_000));
    assert_eq!(published(bench.check(Scope::All, 602_000)), (true, true));
    bench.check(Scope::All, 659_999);
    assert!(bench.report.events.is_empty(), "{:?}", bench.report.events);
    bench.check(Scope::All, 660_000);
    let [(Reason::PodsUnknown, note)] = &bench.report.events[..] else { panic!("{:?}", bench.report.events) };
    assert!(note.ends_with(": RBAC denied the request"), "{note}");
}

#[test]
fn reservations_wait_longer_for_the_pods_and_other_views_do_not_wait() {
    let settings = |reserve| GateSettings { view: FingerprintView::None, reserve, ..GateSettings::default() };
    let mut bench = Bench::new(settings(true), PodCache::none());
    assert!(bench.check(Scope::All, 0).is_none());
    assert_eq!(bench.recheck_after(), Some(12_000));
    assert_eq!(published(bench.check(Scope::All, 12_000)), (true, false));
    let mut bench = Bench::new(settings(false), PodCache::none());
    assert_eq!(published(bench.check(Scope::All, 0)), (true, false));
}

#[test]
fn the_fingerprint_is_withheld_until_a_bound_pod_is_accounted_for() {
    let mut bench = Bench::new(GateSettings::default(), PodCache::fixed(vec![pod("a")]));
    assert!(bench.check(Scope::All, 0).is_none(), "it may be admitted in time");
    assert_eq!((bench.recheck_after(), bench.guard.bound_pods.unaccounted.len()), (Some(50), 1));
    assert!(bench.guard.bound_pods.scan_at.is_some());
    assert_eq!(published(bench.check(Scope::All, 50)), (true, true));
    bench.guard.accept(account(&[("a", "1")]));
    assert_eq!(published(bench.check(Scope::All, 60)), (true, false));
    assert_eq!((bench.guard.bound_pods.scan_at, bench.guard.bound_pods.unaccounted.len()), (None, 0));
    let covered = bench.guard.covered_pods(&bench.pods, &NodeExclusions::default());
    assert_eq!(covered, [("ns".to_owned(), "a".to_owned())]);
}

#[test]
fn while_a_scan_is_due_only_a_withheld_fingerprint_is_published() {
    let mut bench = Bench::new(GateSettings::default(), PodCache::fixed(vec![]));
    assert!(bench.check(Scope::Urgent, 0).is_none());
    assert!(bench.check(Scope::Urgent, 1).is_none());
    assert_eq!(published(bench.check(Scope::All, 2)), (true, false));
    assert!(bench.check(Scope::All, 3).is_none(), "nothing has changed");
    let mut bench = Bench::new(GateSettings::default(), PodCache::fixed(vec![pod("a")]));
    assert!(bench.check(Scope::Urgent, 0).is_none());
    assert_eq!(published(bench.check(Scope::Urgent, 50)), (true, true));
    assert!(bench.check(Scope::All, 51).is_none(), "it is published already");
}

#[test]
fn reservations_are_published_at_once() {
    let settings = GateSettings { view: FingerprintView::None, reserve: true, ..GateSettings::default() };
    let mut bench = Bench::new(settings.clone(), PodCache::fixed(vec![pod("a")]));
    let newest = bench.check(Scope::Urgent, 0).expect("it waits");
    assert_eq!(newest.publishable.zones[0].resources["cpu"].available, 3);
    let account = account(&[]);
    let reservations = account.reservations(&settings, Some(&[pod("a")]), &NodeExclusions::default());
    assert_eq!((reservations.len(), &reservations), (1, &newest.verdict.reservations));
    assert_eq!(account.with_reservations(&reservations), newest.publishable);
}

#[test]
fn nothing_is_delayed_in_the_kubelets_view() {
    let settings = GateSettings { view: FingerprintView::Kubelet, ..GateSettings::default() };
    let mut bench = Bench::new(settings, PodCache::none());
    assert_eq!(published(bench.check(Scope::All, 0)), (true, false));
    bench.guard.accept(account(&[("a", "")]));
    assert_eq!(published(bench.check(Scope::All, 1)), (true, false));
}

#[test]
fn a_pod_that_is_not_admitted_is_given_up() {
    let mut bench = Bench::new(GateSettings::default(), PodCache::fixed(vec![pod("a")]));
    assert!(bench.check(Scope::All, 0).is_none());
    assert_eq!(published(bench.check(Scope::All, 30_000)), (true, true));
    assert!(bench.check(Scope::All, 60_000).is_none(), "a match is delayed for a moment");
    assert_eq!(bench.recheck_after(), Some(60_050));
    assert_eq!(published(bench.check(Scope::All, 60_050)), (true, false));
    let [(Reason::PodAdmissionTimeout, note)] = &bench.report.events[..] else {
        panic!("{:?}", bench.report.events)
    };
    assert!(note.contains("the pod ns/a within 60s") && note.contains("not withheld"), "{note}");
}

#[test]
fn a_pod_that_nothing_waits_for_is_given_up_silently() {
    let given_up = |reserve| {
        let settings = GateSettings { view: FingerprintView::None, reserve, ..GateSettings::default() };
        let mut bench = Bench::new(settings, PodCache::fixed(vec![pod("a")]));
        bench.check(Scope::All, 0);
        bench.check(Scope::All, 60_000);
        assert_eq!(bench.report.given_up, 1, "it is counted");
        bench.report.events
    };
    assert!(given_up(false).is_empty());
    let events = given_up(true);
    let [(Reason::PodAdmissionTimeout, note)] = &events[..] else { panic!("{events:?}") };
    assert!(note.contains("nothing is reserved for it any longer"), "{note}");
}

#[test]
fn a_kubelet_that_does_not_respond_does_not_use_up_a_pods_time() {
    let mut bench = Bench::new(GateSettings::default(), PodCache::fixed(vec![pod("a")]));
    assert!(bench.check(Scope::All, 0).is_none());
    bench.guard.is_responding = false;
    assert_eq!(published(bench.check(Scope::All, 30_000)), (true, true));
    assert_eq!(published(bench.check(Scope::All, 90_000)), (false, true));
    assert!(bench.report.events.is_empty());
}
