//! Decides whether the state of a restarted kubelet is complete yet.
//!
//! A kubelet that has just started responds before it knows its pods, its devices and even its own CPUs, so a
//! full node would look free. After a kubelet start, the last good object therefore stays until what was
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

use super::plan::Check;
use crate::agent::observe::{Inventory, Scan};
use crate::agent::report::Reason;
use crate::kubelet::{Allocatable, KubeletInstance, PodUsage, Usage};
use crate::pod::PodName;

/// The wait is this many times longer while none of the pods with allocations is back, or the kubelet has not
/// finished its start: the node may only look free.
pub(super) const EMPTY_FACTOR: u32 = 10;

#[derive(Debug)]
pub(in super::super) struct RestartGuard {
    limit: Duration,
    static_suffix: String,
    before: Option<Accepted>,
    accepted: Option<KubeletInstance>,
    since: Option<(KubeletInstance, Instant)>,
}

#[derive(Debug, Default, Clone)]
struct Accepted {
    usage: Arc<Usage>,
    inventory: Arc<Inventory>,
}

/// What the pod source knows of the pods of the API server. It does not cover static pods.
#[derive(Clone, Copy)]
pub(super) struct KnownPods<'a> {
    pub(super) is_live: &'a dyn Fn(&PodName) -> bool,
    pub(super) is_gone: &'a dyn Fn(&PodName) -> bool,
    /// Whether this pod is missing from the last complete list, which was requested after this time. It may
    /// have come and gone while the source was failing.
    pub(super) is_missing_since: &'a dyn Fn(&PodName, Instant) -> bool,
}

struct Missing {
    what: String,
    limit: Duration,
    /// The usage to publish meanwhile, if a new pod has allocations.
    joined: Option<Arc<Usage>>,
}

impl RestartGuard {
    /// Returns a guard for `node` without any history. It waits for `limit`, or for [`EMPTY_FACTOR`] times
    /// that.
    pub(super) fn new(node: &str, limit: Duration) -> Self {
        Self { limit, static_suffix: format!("-{node}"), before: None, accepted: None, since: None }
    }

    /// Evaluates a scan, and remembers it if it is accepted. If a new pod has allocations while others are
    /// missing, the usage is amended by theirs. While the API server cannot be reached, the wait starts over:
    /// the kubelet gets its pods from there. With a pod source (`pods`), pods that are gone are not waited
    /// for, and live ones are, whatever new pods appear.
    pub(super) fn check(
        &mut self,
        scan: &Scan,
        is_api_server_unreachable: bool,
        pods: Option<KnownPods<'_>>,
        now: Instant,
    ) -> Check<Arc<Usage>> {
        let since = match self.since {
            Some((instance, since)) if instance == scan.instance && !is_api_server_unreachable => since,
            _ => {
                self.since = Some((scan.instance, now));
                now
            }
        };
        let missing = if self.accepted == Some(scan.instance) {
            None
        } else {
            if let Some(pods) = pods {
                // These pods were listed before this socket was created.
                self.forget_gone(pods, now.checked_sub(scan.socket_age).unwrap_or(now));
            }
            self.missing(scan, pods)
        };
        let check = match missing {
            None => Check::Pass,
            Some(Missing { what, limit, .. }) if now.duration_since(since) >= limit => {
                Check::GiveUp(Reason::KubeletStateIncomplete, format!("{what}; accepting this state now"))
            }
            Some(Missing { what, joined: Some(joined), .. }) => {
                let what = format!("{what}; until then, their previous allocations are counted");
                return Check::Amend(joined, Some(what));
            }
            Some(Missing { what, .. }) => {
                return Check::not_ready(format!("{what}; the last good object stays"));
            }
        };
        self.accepted = Some(scan.instance);
        self.before =
            Some(Accepted { usage: Arc::clone(&scan.usage), inventory: Arc::clone(&scan.inventory) });
        check
    }

    /// Returns true while a kubelet instance is being evaluated and not accepted yet.
    pub(in super::super) fn is_waiting(&self) -> bool {
        self.since.is_some_and(|(instance, _)| self.accepted != Some(instance))
    }

    /// Stops waiting for pods that are gone, or missing from a list that is newer than the kubelet's `start`.
    fn forget_gone(&mut self, pods: KnownPods<'_>, start: Instant) {
        let Some(Accepted { usage, .. }) = &mut self.before else { return };
        let is_static = |pod: &PodUsage| pod.name.ends_with(&self.static_suffix);
        let may_return = |pod: &PodUsage| {
            let name = pod.full_name();
            !(pods.is_gone)(&name) && (is_static(pod) || !(pods.is_missing_since)(&name, start))
        };
        if !usage.pods.iter().all(may_return) {
            Arc::make_mut(usage).pods.retain(may_return);
        }
    }

    /// Returns what is still missing, and how long to wait for it.
    fn missing(&self, scan: &Scan, pods: Option<KnownPods<'_>>) -> Option<Missing> {
        if let Some(what) = self.unstarted(&scan.inventory) {
            return Some(Missing { what, limit: self.limit * EMPTY_FACTOR, joined: None });
        }
        let before = self.before.as_ref()?;
        let (then, now) = (with_allocations(&before.usage), with_allocations(&scan.usage));
        let new_pods = || now.keys().filter(|name| !then.contains_key(*name));
        // A new pod has allocations: the kubelet knows its pods, and a missing pod is gone unless it is known
        // to be live. Devices are not waited for then either, since the allocations of new pods must not look
        // free meanwhile.
        let knows_its_pods = new_pods().any(|(_, name)| !name.ends_with(&self.static_suffix));
        let is_expected = |name: &PodName| !knows_its_pods || pods.is_some_and(|pods| (pods.is_live)(name));
        // A pod that is being admitted again is listed with its devices before its CPUs.
        let is_back = |name: &PodName, pod: &PodUsage| now.get(name).is_some_and(|now| now.has_at_least(pod));
        let missing: Vec<&PodUsage> = then
            .iter()
            .filter(|(name, pod)| !is_back(name, pod) && is_expected(name))
            .map(|(_, pod)| *pod)
            .collect();
        if !missing.is_empty() {
            let what = format!(
                "the kubelet has restarted and does not list {} of the {} pods yet with the exclusive resources that \
                 were allocated to them",
                missing.len(),
                then.len()
            );
            let limit = if missing.len() == then.len() { self.limit * EMPTY_FACTOR } else { self.limit };
            let joined = new_pods().next().map(|_| join(&scan.usage, &missing));
            return Some(Missing { what, limit, joined });
        }
        if knows_its_pods {
            return None;
        }
        let (then, now) = (offered_devices(&before.inventory), offered_devices(&scan.inventory));
        let missing: Vec<String> = then.difference(&now).map(ToString::to_string).collect();
        (!missing.is_empty()).then(|| Missing {
            what: format!(
                "the kubelet has restarted and its device plugins have not registered {} yet",
                missing.join(", ")
            ),
            limit: self.limit,
            joined: new_pods().next().map(|_| Arc::clone(&scan.usage)),
        })
    }

    /// Returns why the kubelet has not finished its start: a static policy always has something to allocate
    /// once it is started. If the policy is unknown, it depends on what was allocatable before.
    fn unstarted(&self, inventory: &Inventory) -> Option<String> {
        let was_offered = |has: fn(&Allocatable) -> bool| {
            self.before.as_ref().is_some_and(|before| has(&before.inventory.allocatable))
        };
        let config = inventory.config.as_ref();
        let cpu_policy = config.map_or("", |config| &config.cpu_manager_policy);
        let memory_policy = config.map_or("", |config| &config.memory_manager_policy);
        let expects_cpus = match cpu_policy {
            "" => was_offered(|allocatable| !allocatable.cpus.is_empty()),
            policy => policy == "static",
        };
        let expects_memory = match memory_policy {
            "" => was_offered(|allocatable| !allocatable.memory.is_empty()),
            policy => policy == "Static",
        };
        let (missing, manager, policy) = if expects_cpus && inventory.allocatable.cpus.is_empty() {
            ("CPUs", "CPU Manager", cpu_policy)
        } else if expects_memory && inventory.allocatable.memory.is_empty() {
            ("memory", "Memory Manager", memory_policy)
        } else {
            return None;
        };
        let why = match policy {
            "" => "it had some before the restart".to_owned(),
            policy => format!("its {manager} policy is {policy}"),
        };
        Some(format!("the kubelet offers no {missing}, although {why}: it is still starting"))
    }
}

/// Returns what is listed, and what the missing pods were last allocated.
fn join(usage: &Usage, missing: &[&PodUsage]) -> Arc<Usage> {
    let is_missing =
        |pod: &PodUsage| missing.iter().any(|m| m.name == pod.name && m.namespace == pod.namespace);
    // A pod that is listed without allocations counts with its earlier ones.
    let pods = usage.pods.iter().filter(|pod| !is_missing(pod)).chain(missing.iter().copied());
    Arc::new(Usage { pods: pods.cloned().collect() })
}

fn with_allocations(usage: &Usage) -> BTreeMap<PodName, &PodUsage> {
    let pods = usage.pods.iter().filter(|pod| pod.has_allocations());
    pods.map(|pod| (pod.full_name(), pod)).collect()
}

fn offered_devices(inventory: &Inventory) -> BTreeSet<&str> {
    inventory.allocatable.devices.iter().map(|group| group.resource.as_str()).collect()
}

#[cfg(test)]
mod tests;
