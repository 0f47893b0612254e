//! Is what the kubelet says the whole truth yet?
//!
//! A kubelet that has just started answers before it knows its pods, its devices and even its own CPUs. Taken at
//! its word, a full node would look free. So after a new connection the last good object stays until what was
//! held before is held again, or a bounded time has passed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::scan::{Inventory, Scan};
use crate::kubelet::{Allocatable, Connection, Usage};

/// While not one of the pods that held something is back, the node may only look free: be ten times as patient.
const PATIENCE: u32 = 10;

/// What to make of a scan.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Publish it.
    Settled,
    /// Not yet, and why.
    Wait(String),
}

/// The memory that tells a restarted kubelet from a node that became free.
#[derive(Debug)]
pub(super) struct Settling {
    bound: Duration,
    /// What was true before the connection broke.
    before: Option<Held>,
    /// The connection whose answers are believed.
    settled: Option<Connection>,
    /// When the connection that is being judged was first seen.
    since: Option<(Connection, Instant)>,
}

/// Who held something exclusive, and what was offered.
#[derive(Debug, Default, Clone)]
struct Held {
    pods: BTreeSet<(String, String)>,
    devices: BTreeSet<String>,
    inventory: Option<Arc<Inventory>>,
}

impl Settling {
    pub(super) fn new(bound: Duration) -> Self {
        Self { bound, before: None, settled: None, since: None }
    }

    /// Judges a scan, and remembers it if it is believed. While `cut_off` from the API server the clock stands
    /// still: the kubelet has its pods from there.
    pub(super) fn judge(&mut self, scan: &Scan, now: Instant, cut_off: bool) -> Verdict {
        let since = match self.since {
            Some((connection, since)) if connection == scan.connection && !cut_off => since,
            _ => {
                self.since = Some((scan.connection, now));
                now
            }
        };
        if self.settled != Some(scan.connection) {
            let waited = now.duration_since(since);
            if let Some((reason, bound)) = self.doubt(scan)
                && waited < bound
            {
                return Verdict::Wait(reason);
            }
        }
        self.settled = Some(scan.connection);
        self.remember(scan);
        Verdict::Settled
    }

    /// What is missing still, and how long to wait for it.
    fn doubt(&self, scan: &Scan) -> Option<(String, Duration)> {
        if let Some(reason) = self.unstarted(&scan.inventory) {
            return Some((reason, self.bound * PATIENCE));
        }
        let before = self.before.as_ref()?;
        let pods = holders(&scan.usage);
        // Somebody new holds something: the kubelet has its pods, and who is missing is gone. Devices are not
        // waited for either then, since what the new pods hold must not look free meanwhile.
        if !pods.is_subset(&before.pods) {
            return None;
        }
        let missing = before.pods.difference(&pods).count();
        if missing > 0 {
            let bound = if pods.is_empty() { self.bound * PATIENCE } else { self.bound };
            let reason = format!(
                "the kubelet has restarted and does not list {missing} of the {} pods yet that held exclusive \
                 resources; the last good object stays",
                before.pods.len()
            );
            return Some((reason, bound));
        }
        let devices = offered_devices(&scan.inventory);
        let away: Vec<&str> = before.devices.difference(&devices).map(String::as_str).collect();
        (!away.is_empty()).then(|| {
            let reason = format!(
                "the kubelet has restarted and its device plugins have not registered {} yet; the last good \
                 object stays",
                away.join(", ")
            );
            (reason, self.bound)
        })
    }

    /// A static policy always has something to hand out, except before it was started. Where the policy is not
    /// known, what was offered before tells.
    fn unstarted(&self, inventory: &Inventory) -> Option<String> {
        let offered = |look: fn(&Allocatable) -> bool| {
            let before = self.before.as_ref().and_then(|held| held.inventory.as_ref());
            before.is_some_and(|before| look(&before.allocatable))
        };
        let (cpus, memory) = match &inventory.config {
            Some(config) => (config.cpu_manager_policy == "static", config.memory_manager_policy == "Static"),
            None => (offered(|a| !a.cpus.is_empty()), offered(|a| !a.memory.is_empty())),
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

    fn remember(&mut self, scan: &Scan) {
        // The inventory is shared between scans: its devices are collected once for each.
        let known = self.before.as_ref().and_then(|held| held.inventory.as_ref());
        let devices = match (&self.before, known) {
            (Some(held), Some(inventory)) if Arc::ptr_eq(inventory, &scan.inventory) => held.devices.clone(),
            _ => offered_devices(&scan.inventory),
        };
        let inventory = Some(Arc::clone(&scan.inventory));
        self.before = Some(Held { pods: holders(&scan.usage), devices, inventory });
    }
}

fn holders(usage: &Usage) -> BTreeSet<(String, String)> {
    let holding = usage.pods.iter().filter(|pod| pod.holds_anything());
    holding.map(|pod| (pod.namespace.clone(), pod.name.clone())).collect()
}

fn offered_devices(inventory: &Inventory) -> BTreeSet<String> {
    inventory.allocatable.devices.iter().map(|group| group.resource.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::{ContainerUsage, DeviceGroup, KubeletConfig, PodUsage};

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
            usage: Usage { pods: pods.iter().map(pod).collect() },
            inventory: Arc::new(Inventory { allocatable, ..Inventory::default() }),
            state: None,
            state_problems: Vec::new(),
            terminal: Arc::default(),
            connection,
        }
    }

    fn waits(verdict: &Verdict, words: &str) -> bool {
        matches!(verdict, Verdict::Wait(reason) if reason.contains(words))
    }

    /// Two connections, the first settled with pods a and b and a nic.
    fn restarted() -> (Settling, Connection, Instant) {
        let mut settling = Settling::new(BOUND);
        let start = Instant::now();
        let first = scan(Connection::default(), &["a", "b"], &["nic"]);
        assert_eq!(settling.judge(&first, start, false), Verdict::Settled);
        (settling, Connection::default().next(), start)
    }

    #[test]
    fn a_pod_that_leaves_without_a_restart_is_believed() {
        let (mut settling, _, start) = restarted();
        assert_eq!(settling.judge(&scan(Connection::default(), &[], &[]), start, false), Verdict::Settled);
    }

    #[test]
    fn an_empty_list_after_a_restart_waits_ten_bounds() {
        let (mut settling, second, start) = restarted();
        let empty = scan(second, &[], &["nic"]);
        assert!(waits(&settling.judge(&empty, start, false), "does not list 2 of the 2 pods"));
        assert!(waits(&settling.judge(&empty, start + BOUND * 9, false), "does not list 2 of the 2 pods"));
        assert_eq!(settling.judge(&empty, start + BOUND * 10, false), Verdict::Settled);
    }

    #[test]
    fn a_partial_list_waits_one_bound_and_settles_when_all_are_back() {
        let (mut settling, second, start) = restarted();
        let partial = scan(second, &["a"], &["nic"]);
        assert!(waits(&settling.judge(&partial, start, false), "does not list 1 of the 2 pods"));
        assert_eq!(settling.judge(&scan(second, &["a", "b"], &["nic"]), start, false), Verdict::Settled);
        // From then on this connection is believed.
        assert_eq!(settling.judge(&scan(second, &[], &[]), start, false), Verdict::Settled);

        let (mut settling, second, start) = restarted();
        assert!(waits(&settling.judge(&partial, start, false), "1 of the 2"));
        assert_eq!(settling.judge(&partial, start + BOUND, false), Verdict::Settled);
        let _ = second;
    }

    #[test]
    fn a_new_holder_proves_that_the_kubelet_knows_its_pods() {
        let (mut settling, second, start) = restarted();
        assert_eq!(settling.judge(&scan(second, &["new"], &[]), start, false), Verdict::Settled);
    }

    #[test]
    fn devices_are_waited_for_one_bound() {
        let (mut settling, second, start) = restarted();
        let without = scan(second, &["a", "b"], &[]);
        assert!(waits(&settling.judge(&without, start, false), "have not registered nic yet"));
        assert_eq!(settling.judge(&without, start + BOUND, false), Verdict::Settled);
    }

    #[test]
    fn the_clock_stands_still_while_the_api_server_is_away() {
        let (mut settling, second, start) = restarted();
        let partial = scan(second, &["a"], &["nic"]);
        assert!(waits(&settling.judge(&partial, start, true), "1 of the 2"));
        assert!(waits(&settling.judge(&partial, start + BOUND, true), "1 of the 2"));
        assert!(waits(&settling.judge(&partial, start + BOUND + BOUND / 2, false), "1 of the 2"));
        assert_eq!(settling.judge(&partial, start + BOUND * 2, false), Verdict::Settled);
    }

    #[test]
    fn an_offer_that_vanished_is_doubted_where_the_policy_is_not_known() {
        let (mut settling, second, start) = restarted();
        let mut empty = scan(second, &["a", "b"], &["nic"]);
        empty.inventory = Arc::new(Inventory::default());
        assert!(waits(&settling.judge(&empty, start, false), "offers no CPUs"));
        let config = Some(KubeletConfig::default());
        let allocatable = empty.inventory.allocatable.clone();
        empty.inventory = Arc::new(Inventory { config, allocatable, ..Inventory::default() });
        let verdict = settling.judge(&empty, start, false);
        assert!(waits(&verdict, "have not registered nic"), "the policy is none now: {verdict:?}");
    }

    #[test]
    fn a_static_policy_without_cpus_or_memory_has_not_started() {
        let mut settling = Settling::new(BOUND);
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
            &settling.judge(&with(config("static", "None")), start, false),
            "CPU manager policy is static"
        ));
        assert!(waits(
            &settling.judge(&with(config("none", "Static")), start, false),
            "Memory Manager policy is Static"
        ));
        assert_eq!(settling.judge(&with(config("none", "None")), start, false), Verdict::Settled);
    }
}
