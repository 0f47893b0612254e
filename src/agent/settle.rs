//! Decides whether the kubelet's state is complete yet.
//!
//! A kubelet that has just started responds before it knows its pods, its devices and even its own CPUs, so a
//! full node would look free. After a new connection, the last good object therefore stays until what was
//! allocated before is allocated again, or a limited time has passed.
//!
//! A real kubelet (`tests/real/order.rs`) reports nothing at first, then CPUs and memory, then devices, then
//! the pods of its API server, oldest first, perhaps not all in one List, each with everything that it is
//! allocated. So a new pod with allocations comes last: a pod that is still missing then is gone. Static pods
//! come from files, and prove nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::scan::{Inventory, Scan};
use crate::kubelet::{Allocatable, Connection, PodUsage, Usage};
use crate::pod::PodName;

/// The wait is this many times longer while none of the pods with allocations is back, or the kubelet has not
/// finished its start: the node may only look free.
pub(super) const PATIENCE: u32 = 10;

/// What to do with a scan.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Publish it.
    Settled,
    /// Publish it with this usage: a new pod has allocations, and missing pods may still have theirs.
    Joined(Arc<Usage>, String),
    /// It is not complete yet, for this reason.
    Wait(String),
    /// The time is up and it is still incomplete, for this reason: publish it.
    GivenUp(String),
}

/// Distinguishes a restarted kubelet from a node whose resources were released.
#[derive(Debug)]
pub(super) struct Settling {
    bound: Duration,
    /// The name suffix of every static pod.
    static_suffix: String,
    /// The state before the connection broke.
    before: Option<Held>,
    /// The connection whose responses are accepted.
    settled: Option<Connection>,
    /// When the connection being evaluated was first seen.
    since: Option<(Connection, Instant)>,
}

/// What was allocated and allocatable.
#[derive(Debug, Default, Clone)]
struct Held {
    usage: Arc<Usage>,
    inventory: Arc<Inventory>,
}

/// What the pod source knows of the pods of the API server. It does not cover static pods.
#[derive(Clone, Copy)]
pub(super) struct Told<'a> {
    /// Whether this pod is running or will run.
    pub(super) lives: &'a dyn Fn(&PodName) -> bool,
    /// Whether this pod was recently deleted or terminated.
    pub(super) went: &'a dyn Fn(&PodName) -> bool,
    /// Whether this pod is missing from the last complete list, which was requested after this time. It may
    /// have come and gone while the source was failing.
    pub(super) lacks: &'a dyn Fn(&PodName, Instant) -> bool,
}

/// What is still missing, and how long to wait for it.
struct Doubt {
    reason: String,
    bound: Duration,
    /// The usage to publish meanwhile, if a new pod has allocations.
    joined: Option<Arc<Usage>>,
}

impl Settling {
    /// Returns a guard for `node` without any history.
    pub(super) fn new(node: &str, bound: Duration) -> Self {
        Self { bound, static_suffix: format!("-{node}"), before: None, settled: None, since: None }
    }

    /// Evaluates a scan, and remembers it if it is accepted. While the API server does not respond
    /// (`cut_off`), the time does not run: the kubelet gets its pods from there. With a pod source (`told`),
    /// pods that are gone are not waited for, and live ones are, whatever new pods appear.
    pub(super) fn judge(
        &mut self,
        scan: &Scan,
        now: Instant,
        cut_off: bool,
        told: Option<Told<'_>>,
    ) -> Verdict {
        let since = match self.since {
            Some((connection, since)) if connection == scan.connection && !cut_off => since,
            _ => {
                self.since = Some((scan.connection, now));
                now
            }
        };
        let doubt = if self.settled == Some(scan.connection) {
            None
        } else {
            if let Some(told) = told {
                // These pods were listed before this socket was created.
                self.forget(told, now.checked_sub(scan.socket_age).unwrap_or(now));
            }
            self.doubt(scan, told)
        };
        let verdict = match doubt {
            None => Verdict::Settled,
            Some(Doubt { reason, bound, .. }) if now.duration_since(since) >= bound => {
                Verdict::GivenUp(reason)
            }
            Some(Doubt { reason, joined: Some(joined), .. }) => return Verdict::Joined(joined, reason),
            Some(Doubt { reason, .. }) => return Verdict::Wait(reason),
        };
        self.settled = Some(scan.connection);
        self.before = Some(Held { usage: Arc::clone(&scan.usage), inventory: Arc::clone(&scan.inventory) });
        verdict
    }

    /// Returns true while a connection is being evaluated and not accepted yet.
    pub(super) fn is_waiting(&self) -> bool {
        self.since.is_some_and(|(connection, _)| self.settled != Some(connection))
    }

    /// Stops waiting for pods that are gone, or missing from a list that is newer than the kubelet's `start`.
    fn forget(&mut self, told: Told<'_>, start: Instant) {
        let Some(Held { usage, .. }) = &mut self.before else { return };
        let is_static = |pod: &PodUsage| pod.name.ends_with(&self.static_suffix);
        let stays = |pod: &PodUsage| {
            let name = pod.full_name();
            !(told.went)(&name) && (is_static(pod) || !(told.lacks)(&name, start))
        };
        if !usage.pods.iter().all(stays) {
            Arc::make_mut(usage).pods.retain(stays);
        }
    }

    /// Returns what is still missing, and how long to wait for it.
    fn doubt(&self, scan: &Scan, told: Option<Told<'_>>) -> Option<Doubt> {
        if let Some(reason) = self.unstarted(&scan.inventory) {
            return Some(Doubt { reason, bound: self.bound * PATIENCE, joined: None });
        }
        let before = self.before.as_ref()?;
        let (held, now) = (holders(&before.usage), holders(&scan.usage));
        let newcomers = || now.keys().filter(|name| !held.contains_key(*name));
        // A new pod has allocations: the kubelet knows its pods, and a missing pod is gone unless it is known
        // to be live. Devices are not waited for then either, since the allocations of new pods must not look
        // free meanwhile.
        let proof = newcomers().any(|(_, name)| !name.ends_with(&self.static_suffix));
        let awaited = |name: &PodName| !proof || told.is_some_and(|told| (told.lives)(name));
        // A pod that is being admitted again is listed with its devices before its CPUs.
        let is_back =
            |name: &PodName, pod: &PodUsage| now.get(name).is_some_and(|now| now.holds_as_much_as(pod));
        let missing: Vec<&PodUsage> = held
            .iter()
            .filter(|(name, pod)| !is_back(name, pod) && awaited(name))
            .map(|(_, pod)| *pod)
            .collect();
        if proof && missing.is_empty() {
            return None;
        }
        if !missing.is_empty() {
            let bound = if missing.len() == held.len() { self.bound * PATIENCE } else { self.bound };
            let reason = format!(
                "the kubelet has restarted and does not list {} of the {} pods yet with the exclusive resources that they held",
                missing.len(),
                held.len()
            );
            let joined = newcomers().next().map(|_| join(&scan.usage, &missing));
            return Some(Doubt { reason, bound, joined });
        }
        let devices = offered_devices(&scan.inventory);
        let away: Vec<String> =
            offered_devices(&before.inventory).difference(&devices).map(ToString::to_string).collect();
        (!away.is_empty()).then(|| Doubt {
            reason: format!(
                "the kubelet has restarted and its device plugins have not registered {} yet",
                away.join(", ")
            ),
            bound: self.bound,
            joined: newcomers().next().map(|_| Arc::clone(&scan.usage)),
        })
    }

    /// Returns why the kubelet has not finished its start: a static policy always has something to allocate
    /// once it is started. If the policy is unknown, it depends on what was allocatable before.
    fn unstarted(&self, inventory: &Inventory) -> Option<String> {
        let offered = |look: fn(&Allocatable) -> bool| {
            self.before.as_ref().is_some_and(|before| look(&before.inventory.allocatable))
        };
        let config = inventory.config.as_ref();
        let cpus = match config.map_or("", |config| &config.cpu_manager_policy) {
            "" => offered(|a| !a.cpus.is_empty()),
            policy => policy == "static",
        };
        let memory = match config.map_or("", |config| &config.memory_manager_policy) {
            "" => offered(|a| !a.memory.is_empty()),
            policy => policy == "Static",
        };
        let missing = if cpus && inventory.allocatable.cpus.is_empty() {
            "CPUs although its CPU manager policy is static"
        } else if memory && inventory.allocatable.memory.is_empty() {
            "memory although its Memory Manager policy is Static"
        } else {
            return None;
        };
        Some(format!("the kubelet offers no {missing}: it has not finished its start"))
    }
}

/// Returns what is listed, and what the missing pods were last allocated.
fn join(usage: &Usage, missing: &[&PodUsage]) -> Arc<Usage> {
    let listed = |pod: &PodUsage| missing.iter().any(|m| m.name == pod.name && m.namespace == pod.namespace);
    // A pod that is listed without allocations counts with its earlier ones.
    let pods = usage.pods.iter().filter(|pod| !listed(pod)).chain(missing.iter().copied());
    Arc::new(Usage { pods: pods.cloned().collect() })
}

fn holders(usage: &Usage) -> BTreeMap<PodName, &PodUsage> {
    let holding = usage.pods.iter().filter(|pod| pod.holds_anything());
    holding.map(|pod| (pod.full_name(), pod)).collect()
}

fn offered_devices(inventory: &Inventory) -> BTreeSet<&str> {
    inventory.allocatable.devices.iter().map(|group| group.resource.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::{ContainerUsage, DeviceGroup, KubeletConfig};

    const BOUND: Duration = Duration::from_secs(30);

    fn scan(connection: Connection, pods: &[&str], devices: &[&str]) -> Scan {
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
            state: None,
            state_problems: Vec::new(),
            files_tell: false,
            terminal: Arc::default(),
            connection,
            socket_age: Duration::ZERO,
        }
    }

    fn waits(verdict: &Verdict, words: &str) -> bool {
        matches!(verdict, Verdict::Wait(reason) if reason.contains(words))
    }

    fn told<'a>(lives: &'a dyn Fn(&str) -> bool, went: &'a dyn Fn(&str) -> bool) -> Option<Told<'a>> {
        // Leaked, since a test is short and its closures have no other owner.
        let lives = Box::leak(Box::new(move |(_, name): &PodName| lives(name)));
        let went = Box::leak(Box::new(move |(_, name): &PodName| went(name)));
        Some(Told { lives, went, lacks: &|_, _| false })
    }

    /// Returns a guard whose first connection settled with pods a and b and a nic, and the second connection.
    fn restarted() -> (Settling, Connection, Instant) {
        let mut settling = Settling::new("node", BOUND);
        let start = Instant::now();
        let first = scan(Connection::default(), &["a", "b"], &["nic"]);
        assert_eq!(settling.judge(&first, start, false, None), Verdict::Settled);
        (settling, Connection::default().next(), start)
    }

    #[test]
    fn a_pod_that_leaves_without_a_restart_is_believed() {
        let (mut settling, _, start) = restarted();
        assert_eq!(
            settling.judge(&scan(Connection::default(), &[], &[]), start, false, None),
            Verdict::Settled
        );
    }

    #[test]
    fn an_empty_list_after_a_restart_waits_ten_bounds() {
        let (mut settling, second, start) = restarted();
        let empty = scan(second, &[], &["nic"]);
        assert!(!settling.is_waiting(), "for nothing yet");
        assert!(waits(&settling.judge(&empty, start, false, None), "does not list 2 of the 2 pods"));
        assert!(settling.is_waiting());
        assert!(waits(
            &settling.judge(&empty, start + BOUND * 9, false, None),
            "does not list 2 of the 2 pods"
        ));
        let given_up = settling.judge(&empty, start + BOUND * 10, false, None);
        assert!(matches!(given_up, Verdict::GivenUp(_)), "{given_up:?}");
        assert_eq!(
            settling.judge(&empty, start + BOUND * 10, false, None),
            Verdict::Settled,
            "and believed from then on"
        );
        assert!(!settling.is_waiting());
    }

    #[test]
    fn a_partial_list_waits_one_bound_and_settles_when_all_are_back() {
        let (mut settling, second, start) = restarted();
        let partial = scan(second, &["a"], &["nic"]);
        assert!(waits(&settling.judge(&partial, start, false, None), "does not list 1 of the 2 pods"));
        assert_eq!(
            settling.judge(&scan(second, &["a", "b"], &["nic"]), start, false, None),
            Verdict::Settled
        );
        // From then on this connection is accepted.
        assert_eq!(settling.judge(&scan(second, &[], &[]), start, false, None), Verdict::Settled);

        let (mut settling, _, start) = restarted();
        assert!(waits(&settling.judge(&partial, start, false, None), "1 of the 2"));
        assert!(matches!(settling.judge(&partial, start + BOUND, false, None), Verdict::GivenUp(_)));
    }

    #[test]
    fn a_pod_is_back_with_as_much_as_it_had() {
        let (mut settling, second, start) = restarted();
        let with = |cpus: &str| {
            let mut scan = scan(second, &["a", "b"], &["nic"]);
            let usage = Arc::make_mut(&mut scan.usage);
            let nic = DeviceGroup { resource: "nic".into(), ids: vec!["n".into()], ..DeviceGroup::default() };
            usage.pods[1].containers[0] = ContainerUsage {
                cpus: cpus.parse().unwrap(),
                devices: vec![nic],
                ..ContainerUsage::default()
            };
            scan
        };
        let admitted_in_part = settling.judge(&with(""), start, false, None);
        assert!(waits(&admitted_in_part, "does not list 1 of the 2 pods"), "{admitted_in_part:?}");
        assert_eq!(settling.judge(&with("7"), start, false, None), Verdict::Settled, "a CPU, if another one");
    }

    #[test]
    fn a_new_holder_proves_that_the_kubelet_knows_its_pods() {
        let (mut settling, second, start) = restarted();
        assert_eq!(settling.judge(&scan(second, &["new"], &[]), start, false, None), Verdict::Settled);
    }

    #[test]
    fn a_new_static_pod_proves_nothing_and_joins_those_that_are_missing() {
        let (mut settling, second, start) = restarted();
        let joined = |verdict| match verdict {
            Verdict::Joined(usage, reason) => {
                let names: Vec<&str> = usage.pods.iter().map(|pod| pod.name.as_str()).collect();
                (names.join(","), reason)
            }
            other => (format!("{other:?}"), String::new()),
        };
        let (names, reason) =
            joined(settling.judge(&scan(second, &["web-node"], &["nic"]), start, false, None));
        assert_eq!(names, "web-node,a,b");
        assert!(reason.contains("does not list 2 of the 2"), "{reason}");
        // One of them is back, the other is listed without allocations.
        let mut partial = scan(second, &["web-node", "a", "b"], &["nic"]);
        Arc::make_mut(&mut partial.usage).pods[2].containers.clear();
        let verdict = settling.judge(&partial, start, false, None);
        let Verdict::Joined(usage, _) = &verdict else { panic!("{verdict:?}") };
        assert!(usage.pods.iter().all(PodUsage::holds_anything));
        assert_eq!(joined(verdict).0, "web-node,a,b");
        let without = scan(second, &["web-node", "a", "b"], &[]);
        assert_eq!(joined(settling.judge(&without, start, false, None)).0, "web-node,a,b", "for its nic");
        let complete = scan(second, &["web-node", "a", "b"], &["nic"]);
        assert_eq!(settling.judge(&complete, start, false, None), Verdict::Settled);
    }

    #[test]
    fn a_pod_that_the_api_server_does_not_know_any_more_is_not_waited_for() {
        let (mut settling, second, start) = restarted();
        let partial = scan(second, &["a"], &["nic"]);
        assert!(waits(&settling.judge(&partial, start, false, None), "1 of the 2"));
        assert_eq!(
            settling.judge(&partial, start, false, told(&|_| false, &|name| name == "b")),
            Verdict::Settled
        );

        let mut settling = Settling::new("node", BOUND);
        let first = scan(Connection::default(), &["a", "web-node"], &["nic"]);
        assert_eq!(settling.judge(&first, start, false, None), Verdict::Settled);
        assert!(waits(&settling.judge(&partial, start, false, None), "1 of the 2"));
        let verdict = settling.judge(&partial, start, false, told(&|name| name == "a", &|_| false));
        assert!(waits(&verdict, "1 of the 2"), "nobody knows anything of it: static pods come from files");
    }

    #[test]
    fn a_pod_that_came_and_went_while_nobody_told_is_not_waited_for_once_all_pods_are_listed() {
        let start = Instant::now();
        let made = start + Duration::from_secs(20);
        let mut partial = scan(Connection::default().next(), &["a"], &["nic"]);
        partial.socket_age = Duration::from_secs(10);
        let judged = |missing: &str, listed: Instant| {
            let mut settling = Settling::new("node", BOUND);
            let first = scan(Connection::default(), &["a", missing], &["nic"]);
            assert_eq!(settling.judge(&first, start, false, None), Verdict::Settled);
            let lacks = |(_, name): &PodName, after: Instant| name == missing && listed > after;
            let told = Told { lives: &|(_, name)| name == "a", went: &|_| false, lacks: &lacks };
            settling.judge(&partial, made + partial.socket_age, false, Some(told))
        };
        assert_eq!(judged("b", made + Duration::from_millis(1)), Verdict::Settled);
        let verdict = judged("b", made);
        assert!(waits(&verdict, "1 of the 2"), "the list may be older than the pod: {verdict:?}");
        let verdict = judged("web-node", made + Duration::from_millis(1));
        assert!(waits(&verdict, "1 of the 2"), "static pods come from files: {verdict:?}");
    }

    #[test]
    fn a_pod_that_is_known_to_live_is_waited_for_although_another_is_new() {
        let (mut settling, second, start) = restarted();
        let newcomer = scan(second, &["a", "new"], &["nic"]);
        let verdict = settling.judge(&newcomer, start, false, told(&|name| name != "new", &|_| false));
        let Verdict::Joined(usage, _) = &verdict else { panic!("{verdict:?}") };
        assert_eq!(usage.pods.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>(), ["a", "new", "b"]);
        assert_eq!(
            settling.judge(&newcomer, start, false, told(&|_| false, &|name| name == "b")),
            Verdict::Settled
        );
    }

    #[test]
    fn devices_are_waited_for_one_bound() {
        let (mut settling, second, start) = restarted();
        let without = scan(second, &["a", "b"], &[]);
        assert!(waits(&settling.judge(&without, start, false, None), "have not registered nic yet"));
        assert!(matches!(settling.judge(&without, start + BOUND, false, None), Verdict::GivenUp(_)));
    }

    #[test]
    fn the_clock_stands_still_while_the_api_server_is_away() {
        let (mut settling, second, start) = restarted();
        let partial = scan(second, &["a"], &["nic"]);
        assert!(waits(&settling.judge(&partial, start, true, None), "1 of the 2"));
        assert!(waits(&settling.judge(&partial, start + BOUND, true, None), "1 of the 2"));
        assert!(waits(&settling.judge(&partial, start + BOUND + BOUND / 2, false, None), "1 of the 2"));
        assert!(matches!(settling.judge(&partial, start + BOUND * 2, false, None), Verdict::GivenUp(_)));
    }

    #[test]
    fn an_offer_that_vanished_is_doubted_where_the_policy_is_not_known() {
        let (mut settling, second, start) = restarted();
        let mut empty = scan(second, &["a", "b"], &["nic"]);
        empty.inventory = Arc::new(Inventory::default());
        assert!(waits(&settling.judge(&empty, start, false, None), "offers no CPUs"));
        let config = Some(KubeletConfig::default());
        let allocatable = empty.inventory.allocatable.clone();
        empty.inventory = Arc::new(Inventory { config, allocatable, ..Inventory::default() });
        let verdict = settling.judge(&empty, start, false, None);
        assert!(waits(&verdict, "have not registered nic"), "the policy is none now: {verdict:?}");
    }

    #[test]
    fn a_static_policy_without_cpus_or_memory_has_not_started() {
        let mut settling = Settling::new("node", BOUND);
        let start = Instant::now();
        let config = |cpu: &str, memory: &str| KubeletConfig {
            cpu_manager_policy: cpu.into(),
            memory_manager_policy: memory.into(),
            ..KubeletConfig::default()
        };
        let with = |config| {
            let inventory = Inventory { config: Some(config), ..Inventory::default() };
            Scan { inventory: Arc::new(inventory), ..scan(Connection::default(), &[], &[]) }
        };
        assert!(waits(
            &settling.judge(&with(config("static", "None")), start, false, None),
            "CPU manager policy is static"
        ));
        assert!(waits(
            &settling.judge(&with(config("none", "Static")), start, false, None),
            "Memory Manager policy is Static"
        ));
        let later = settling.judge(&with(config("static", "None")), start + BOUND * 9, false, None);
        assert!(waits(&later, "CPU manager policy is static"));
        assert_eq!(settling.judge(&with(config("none", "None")), start, false, None), Verdict::Settled);
    }
}
