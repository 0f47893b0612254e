use super::*;
use crate::agent::reconcile::plan::Retry;
use crate::kubelet::{ContainerUsage, DeviceGroup, KubeletConfig};

const LIMIT: Duration = Duration::from_secs(30);

fn scan(instance: KubeletInstance, pods: &[&str], devices: &[&str]) -> Scan {
    let pod = |name: &&str| PodUsage {
        namespace: "ns".into(),
        name: (*name).into(),
        containers: vec![ContainerUsage { cpus: "1".parse().unwrap(), ..ContainerUsage::default() }],
        ..PodUsage::default()
    };
    let group = |resource: &&str| DeviceGroup { resource: (*resource).into(), ..DeviceGroup::default() };
    let allocatable = Allocatable {
        cpus: "0-3".parse().unwrap(),
        devices: devices.iter().map(group).collect(),
        ..Allocatable::default()
    };
    Scan {
        usage: Arc::new(Usage { pods: pods.iter().map(pod).collect() }),
        inventory: Arc::new(Inventory { allocatable, ..Inventory::default() }),
        instance,
        ..Scan::default()
    }
}

fn waits(check: &Check<Arc<Usage>>, words: &str) -> bool {
    matches!(check, Check::Wait { why, retry: Retry::Backoff } if why.contains(words))
}

fn gives_up(check: &Check<Arc<Usage>>) -> bool {
    matches!(check, Check::GiveUp(Reason::KubeletStateIncomplete, _))
}

/// Returns the pods of an amended usage, and what is missing.
fn joined(check: &Check<Arc<Usage>>) -> (String, &str) {
    let Check::Amend(usage, Some(missing)) = check else { panic!("{check:?}") };
    let names: Vec<&str> = usage.pods.iter().map(|pod| pod.name.as_str()).collect();
    (names.join(","), missing)
}

/// A pod source that knows pods by their names.
#[derive(Default)]
struct Pods {
    live: &'static [&'static str],
    gone: &'static [&'static str],
    /// Pods that are missing from a list, and when it was requested.
    missing: Option<(&'static str, Instant)>,
}

impl Pods {
    fn check(&self, guard: &mut RestartGuard, scan: &Scan, now: Instant) -> Check<Arc<Usage>> {
        let is_live = |(_, name): &PodName| self.live.contains(&name.as_str());
        let is_gone = |(_, name): &PodName| self.gone.contains(&name.as_str());
        let is_missing_since = |(_, name): &PodName, since: Instant| {
            self.missing.is_some_and(|(missing, listed)| missing == name && listed > since)
        };
        let pods = KnownPods { is_live: &is_live, is_gone: &is_gone, is_missing_since: &is_missing_since };
        guard.check(scan, false, Some(pods), now)
    }
}

fn check(guard: &mut RestartGuard, scan: &Scan, now: Instant) -> Check<Arc<Usage>> {
    guard.check(scan, false, None, now)
}

/// Returns a guard that accepted pods a and b and a nic of the first kubelet instance, and the second instance.
fn restarted() -> (RestartGuard, KubeletInstance, Instant) {
    let mut guard = RestartGuard::new("node", LIMIT);
    let start = Instant::now();
    let first = scan(KubeletInstance::default(), &["a", "b"], &["nic"]);
    assert_eq!(check(&mut guard, &first, start), Check::Pass);
    (guard, KubeletInstance::default().next(), start)
}

#[test]
fn a_pod_that_is_gone_without_a_restart_is_accepted() {
    let (mut guard, _, start) = restarted();
    assert_eq!(check(&mut guard, &scan(KubeletInstance::default(), &[], &[]), start), Check::Pass);
}

#[test]
fn an_empty_list_after_a_restart_is_waited_for_ten_times_as_long() {
    let (mut guard, second, start) = restarted();
    let empty = scan(second, &[], &["nic"]);
    assert!(!guard.is_waiting(), "there is nothing to wait for yet");
    assert!(waits(&check(&mut guard, &empty, start), "does not list 2 of the 2 pods"));
    assert!(guard.is_waiting());
    assert!(waits(&check(&mut guard, &empty, start + LIMIT * 9), "does not list 2 of the 2 pods"));
    assert!(gives_up(&check(&mut guard, &empty, start + LIMIT * 10)));
    assert_eq!(check(&mut guard, &empty, start + LIMIT * 10), Check::Pass, "it is accepted from then on");
    assert!(!guard.is_waiting());
}

#[test]
fn a_restarted_kubelet_is_waited_for_until_all_pods_are_back() {
    let (mut guard, second, start) = restarted();
    let partial = scan(second, &["a"], &["nic"]);
    assert!(waits(&check(&mut guard, &partial, start), "does not list 1 of the 2 pods"));
    assert_eq!(check(&mut guard, &scan(second, &["a", "b"], &["nic"]), start), Check::Pass);
    // From then on this instance is accepted.
    assert_eq!(check(&mut guard, &scan(second, &[], &[]), start), Check::Pass);

    let (mut guard, _, start) = restarted();
    assert!(waits(&check(&mut guard, &partial, start), "1 of the 2"));
    assert!(gives_up(&check(&mut guard, &partial, start + LIMIT)));
}

#[test]
fn a_pod_is_back_with_as_much_as_it_had() {
    let (mut guard, second, start) = restarted();
    let with = |cpus: &str| {
        let mut scan = scan(second, &["a", "b"], &["nic"]);
        let usage = Arc::make_mut(&mut scan.usage);
        let nic = DeviceGroup { resource: "nic".into(), ids: vec!["n".into()], ..DeviceGroup::default() };
        usage.pods[1].containers[0] =
            ContainerUsage { cpus: cpus.parse().unwrap(), devices: vec![nic], ..ContainerUsage::default() };
        scan
    };
    let half_admitted = check(&mut guard, &with(""), start);
    assert!(waits(&half_admitted, "does not list 1 of the 2 pods"), "{half_admitted:?}");
    assert_eq!(check(&mut guard, &with("7"), start), Check::Pass, "a CPU, if another one");
}

#[test]
fn a_new_pod_with_allocations_proves_that_the_kubelet_knows_its_pods() {
    let (mut guard, second, start) = restarted();
    assert_eq!(check(&mut guard, &scan(second, &["new"], &[]), start), Check::Pass);
}

#[test]
fn a_new_static_pod_proves_nothing_and_is_published_with_the_missing_ones() {
    let (mut guard, second, start) = restarted();
    let waiting = check(&mut guard, &scan(second, &["web-node"], &["nic"]), start);
    let (names, missing) = joined(&waiting);
    assert_eq!(names, "web-node,a,b");
    assert!(missing.contains("does not list 2 of the 2"), "{missing}");
    // One of them is back, the other is listed without allocations.
    let mut partial = scan(second, &["web-node", "a", "b"], &["nic"]);
    Arc::make_mut(&mut partial.usage).pods[2].containers.clear();
    let waiting = check(&mut guard, &partial, start);
    assert_eq!(joined(&waiting).0, "web-node,a,b");
    let Check::Amend(usage, _) = &waiting else { panic!("{waiting:?}") };
    assert!(usage.pods.iter().all(PodUsage::has_allocations));
    let without_nic = scan(second, &["web-node", "a", "b"], &[]);
    assert_eq!(joined(&check(&mut guard, &without_nic, start)).0, "web-node,a,b");
    let complete = scan(second, &["web-node", "a", "b"], &["nic"]);
    assert_eq!(check(&mut guard, &complete, start), Check::Pass);
}

#[test]
fn a_pod_that_is_gone_from_the_api_server_is_not_waited_for() {
    let (mut guard, second, start) = restarted();
    let partial = scan(second, &["a"], &["nic"]);
    assert!(waits(&check(&mut guard, &partial, start), "1 of the 2"));
    let pods = Pods { gone: &["b"], ..Pods::default() };
    assert_eq!(pods.check(&mut guard, &partial, start), Check::Pass);

    let mut guard = RestartGuard::new("node", LIMIT);
    let first = scan(KubeletInstance::default(), &["a", "web-node"], &["nic"]);
    assert_eq!(check(&mut guard, &first, start), Check::Pass);
    assert!(waits(&check(&mut guard, &partial, start), "1 of the 2"));
    let pods = Pods { live: &["a"], ..Pods::default() };
    assert!(waits(&pods.check(&mut guard, &partial, start), "1 of the 2"), "static pods come from files");
}

#[test]
fn a_pod_that_a_newer_list_lacks_is_not_waited_for() {
    let start = Instant::now();
    let created = start + Duration::from_secs(20);
    let mut partial = scan(KubeletInstance::default().next(), &["a"], &["nic"]);
    partial.socket_age = Duration::from_secs(10);
    let check = |missing: &'static str, listed: Instant| {
        let mut guard = RestartGuard::new("node", LIMIT);
        let first = scan(KubeletInstance::default(), &["a", missing], &["nic"]);
        assert_eq!(check(&mut guard, &first, start), Check::Pass);
        let pods = Pods { live: &["a"], missing: Some((missing, listed)), ..Pods::default() };
        pods.check(&mut guard, &partial, created + partial.socket_age)
    };
    assert_eq!(check("b", created + Duration::from_millis(1)), Check::Pass);
    assert!(waits(&check("b", created), "1 of the 2"), "the list may be older than the pod");
    let of_static_pod = check("web-node", created + Duration::from_millis(1));
    assert!(waits(&of_static_pod, "1 of the 2"), "static pods come from files: {of_static_pod:?}");
}

#[test]
fn a_live_pod_is_waited_for_although_another_is_new() {
    let (mut guard, second, start) = restarted();
    let with_new = scan(second, &["a", "new"], &["nic"]);
    let pods = Pods { live: &["a", "b"], ..Pods::default() };
    assert_eq!(joined(&pods.check(&mut guard, &with_new, start)).0, "a,new,b");
    let pods = Pods { gone: &["b"], ..Pods::default() };
    assert_eq!(pods.check(&mut guard, &with_new, start), Check::Pass);
}

#[test]
fn device_plugins_are_waited_for() {
    let (mut guard, second, start) = restarted();
    let without_nic = scan(second, &["a", "b"], &[]);
    assert!(waits(&check(&mut guard, &without_nic, start), "have not registered nic yet"));
    assert!(gives_up(&check(&mut guard, &without_nic, start + LIMIT)));
}

#[test]
fn the_wait_starts_over_while_the_api_server_cannot_be_reached() {
    let (mut guard, second, start) = restarted();
    let partial = scan(second, &["a"], &["nic"]);
    for (after, is_unreachable) in [(Duration::ZERO, true), (LIMIT, true), (LIMIT + LIMIT / 2, false)] {
        let check = guard.check(&partial, is_unreachable, None, start + after);
        assert!(waits(&check, "1 of the 2"), "{after:?}");
    }
    assert!(gives_up(&check(&mut guard, &partial, start + LIMIT * 2)));
}

#[test]
fn what_was_allocatable_is_expected_if_the_policy_is_unknown() {
    let (mut guard, second, start) = restarted();
    let mut empty = scan(second, &["a", "b"], &["nic"]);
    empty.inventory = Arc::new(Inventory::default());
    let expected = "offers no CPUs, although it had some before the restart";
    assert!(waits(&check(&mut guard, &empty, start), expected));
    let config = Some(KubeletConfig::default());
    let allocatable = empty.inventory.allocatable.clone();
    empty.inventory = Arc::new(Inventory { config, allocatable, ..Inventory::default() });
    let waiting = check(&mut guard, &empty, start);
    assert!(waits(&waiting, "have not registered nic"), "the policy is now `none`: {waiting:?}");
}

#[test]
fn a_static_policy_without_cpus_or_memory_has_not_started() {
    let mut guard = RestartGuard::new("node", LIMIT);
    let start = Instant::now();
    let config = |cpu: &str, memory: &str| KubeletConfig {
        cpu_manager_policy: cpu.into(),
        memory_manager_policy: memory.into(),
        ..KubeletConfig::default()
    };
    let with = |config| {
        let inventory = Inventory { config: Some(config), ..Inventory::default() };
        Scan { inventory: Arc::new(inventory), ..scan(KubeletInstance::default(), &[], &[]) }
    };
    let (cpus, memory) = (with(config("static", "None")), with(config("none", "Static")));
    assert!(waits(&check(&mut guard, &cpus, start), "CPU Manager policy is static"));
    assert!(waits(&check(&mut guard, &memory, start), "Memory Manager policy is Static"));
    let later = check(&mut guard, &cpus, start + LIMIT * 9);
    assert!(waits(&later, "CPU Manager policy is static"));
    assert_eq!(check(&mut guard, &with(config("none", "None")), start), Check::Pass);
}
