//! The smallest changes that would make a pod fit.

use super::shortage::amounts;
use super::{NodeView, Wish};
use crate::admission::{ContainerRequest, Refusal, Scope, TopologyPolicy};
use crate::machine::Id;
use crate::quantity::is_huge_pages;

/// A single change that makes a pod fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A container requests another amount: CPUs, bytes or devices.
    Request {
        /// The container.
        container: String,
        /// The resource.
        resource: String,
        /// The nearest amount that fits.
        amount: u64,
    },
    /// The kubelet aligns each container by itself.
    Scope,
    /// The kubelet has another policy.
    Policy(TopologyPolicy),
    /// A zone gets more huge pages.
    HugePages {
        /// The zone.
        zone: Id,
        /// `hugepages-<size>`.
        resource: String,
        /// The additional bytes.
        bytes: u64,
    },
}

/// Larger requests of CPUs than this many more are not tried.
const MOST_MORE_CPUS: u64 = 16;

impl NodeView {
    /// Returns single changes of the pod or of the kubelet that make the refused pod fit: of each container's requests
    /// the nearest amount, the kubelet's scope and policy, and more huge pages in a zone.
    #[must_use]
    pub fn changes(&self, wish: &Wish, refusal: &Refusal) -> Vec<Change> {
        let mut changes = Vec::new();
        for at in 0..wish.pod.containers.len() {
            self.other_requests(wish, at, &mut changes);
        }
        changes.extend(self.more_huge_pages(wish, refusal));
        if self.state.settings.scope == Scope::Pod
            && self.changed(|view| view.state.settings.scope = Scope::Container, wish)
        {
            changes.push(Change::Scope);
        }
        let looser = [TopologyPolicy::Restricted, TopologyPolicy::BestEffort, TopologyPolicy::None];
        let looser = looser.into_iter().skip_while(|policy| !is_looser(*policy, self.state.settings.policy));
        let mut fitting =
            looser.filter(|policy| self.changed(|view| view.state.settings.policy = *policy, wish));
        changes.extend(fitting.next().map(Change::Policy));
        changes
    }

    fn changed(&self, change: impl FnOnce(&mut Self), wish: &Wish) -> bool {
        let mut view = self.clone();
        change(&mut view);
        view.fits(wish)
    }

    /// Adds the nearest amounts of one container.
    fn other_requests(&self, wish: &Wish, at: usize, changes: &mut Vec<Change>) {
        let container = &wish.pod.containers[at];
        let mut add = |resource: &str, candidates: Vec<u64>, set: &dyn Fn(&mut ContainerRequest, u64)| {
            let fits = |amount: &u64| {
                let mut changed = wish.clone();
                set(&mut changed.pod.containers[at], *amount);
                changed.of_node = wish.of_node_with(&changed.pod);
                self.fits(&changed)
            };
            if let Some(amount) = candidates.into_iter().find(fits) {
                let (container, resource) = (container.name.clone(), resource.to_owned());
                changes.push(Change::Request { container, resource, amount });
            }
        };
        let cpus = container.cpu_milli / 1000;
        if wish.pod.guaranteed && container.cpu_milli.is_multiple_of(1000) && cpus > 1 {
            let has = self.state.cpus.as_ref().map_or(0, |cpus| cpus.allocatable().len());
            let fewer = (1..cpus.min(has.saturating_add(1))).rev();
            // Full cores are the only reason why more can fit.
            let more = cpus.saturating_add(1)..=cpus.saturating_add(MOST_MORE_CPUS).min(has);
            let set = |container: &mut ContainerRequest, cpus: u64| container.cpu_milli = cpus * 1000;
            add("cpu", fewer.collect(), &set);
            add("cpu", more.collect(), &set);
        }
        for (resource, bytes) in &container.memory {
            let candidates = self.free_amounts(resource, *bytes);
            add(resource, candidates, &|container, bytes| {
                container.memory.insert(resource.clone(), bytes);
            });
        }
        for (resource, count) in &container.devices {
            let known = self.state.devices.resources().get(resource);
            let has = known.map_or(0, |known| known.devices.len() as u64);
            let candidates = (1..(*count).min(has.saturating_add(1))).rev().collect();
            add(resource, candidates, &|container, count| {
                container.devices.insert(resource.clone(), count);
            });
        }
    }

    /// Returns what zones have free of a kind of memory, as far as it is less than `bytes`; the most first.
    fn free_amounts(&self, resource: &str, bytes: u64) -> Vec<u64> {
        let zones = self.state.nodes.iter();
        let mut free: Vec<u64> = zones.map(|zone| amounts(&self.state, zone, resource).1).collect();
        free.retain(|free| *free > 0 && *free < bytes);
        free.sort_unstable_by(|a, b| b.cmp(a));
        free.dedup();
        free
    }

    /// Returns the zone that needs the fewest additional bytes of huge pages.
    fn more_huge_pages(&self, wish: &Wish, refusal: &Refusal) -> Option<Change> {
        let needs = self.needs(wish, refusal);
        let need = needs.iter().find(|need| need.blocks && is_huge_pages(&need.resource))?;
        let lacking = need.zones.iter().map(|(zone, has)| (need.requested.saturating_sub(has.free), *zone));
        let mut lacking: Vec<(u64, Id)> = lacking.filter(|(bytes, _)| *bytes > 0).collect();
        lacking.sort_unstable();
        let helps = |(bytes, zone): &(u64, Id)| {
            self.changed(
                |view| {
                    let nodes = view.state.memory.as_mut().map(|memory| memory.nodes_mut());
                    let node = nodes.and_then(|nodes| nodes.get_mut(zone));
                    if let Some(kind) = node.and_then(|node| node.kinds.get_mut(&need.resource)) {
                        kind.allocatable = kind.allocatable.saturating_add(*bytes);
                    }
                    if let Some(allocatable) = &mut view.allocatable {
                        let sum = allocatable.entry(need.resource.clone()).or_default();
                        *sum = sum.saturating_add(*bytes);
                    }
                },
                wish,
            )
        };
        let (bytes, zone) = lacking.into_iter().find(helps)?;
        Some(Change::HugePages { zone, resource: need.resource.clone(), bytes })
    }
}

fn is_looser(policy: TopologyPolicy, than: TopologyPolicy) -> bool {
    let rank = |policy| match policy {
        TopologyPolicy::None => 0,
        TopologyPolicy::BestEffort => 1,
        TopologyPolicy::Restricted => 2,
        TopologyPolicy::SingleNumaNode => 3,
    };
    rank(policy) < rank(than)
}
