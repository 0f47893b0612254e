//! What a refused container needs, and what each zone has of it.

use std::collections::BTreeMap;

use super::{NodeView, Wish};
use crate::admission::{Node, NodeSet, Refusal};
use crate::machine::Id;

/// What is needed of one resource: CPUs, bytes or devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// The resource.
    pub resource: String,
    /// The amount that the container, or the pod, requests exclusively.
    pub requested: u64,
    /// Whether the kubelet names it as the reason.
    pub blocks: bool,
    /// What each zone has.
    pub zones: BTreeMap<Id, ZoneNeed>,
}

/// What one zone has of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneNeed {
    /// What can be allocated.
    pub allocatable: u64,
    /// What is left for the container, after the pod's containers before it.
    pub free: u64,
    /// The pods that have the rest: position in the view's pods, and the amount. The most first.
    pub holders: Vec<(usize, u64)>,
}

impl NodeView {
    /// Returns what the pod's refused container, or the whole pod, needs exclusively.
    #[must_use]
    pub fn needs(&self, wish: &Wish, refusal: &Refusal) -> Vec<Need> {
        let mut state = self.state.clone();
        // Leaves what the containers before the refused one were allocated.
        drop(state.admit(&wish.pod));
        let requested = self.state.requests_of(&wish.pod, &refusal.container);
        let need = |(resource, requested): (String, u64)| {
            let zone = |id: Id| (id, self.zone_need(&state, id, &resource));
            let zones = state.nodes.iter().map(zone).collect();
            Need { requested, blocks: refusal.resources.contains(&resource), zones, resource }
        };
        requested.into_iter().map(need).collect()
    }

    fn zone_need(&self, state: &Node, zone: Id, resource: &str) -> ZoneNeed {
        let (allocatable, free) = amounts(state, zone, resource);
        let held = self.pods.iter().enumerate().map(|(at, pod)| (at, pod.amount_on(state, zone, resource)));
        let mut holders: Vec<(usize, u64)> = held.filter(|(_, amount)| *amount > 0).collect();
        holders.sort_by_key(|(at, amount)| (std::cmp::Reverse(*amount), *at));
        ZoneNeed { allocatable, free, holders }
    }
}

/// Returns what can be allocated of a resource in a zone, and what is free.
pub(super) fn amounts(state: &Node, zone: Id, resource: &str) -> (u64, u64) {
    let here = NodeSet::one(zone);
    if resource == "cpu" {
        return state.cpus.as_ref().map_or((0, 0), |cpus| {
            let local = cpus.topology().in_nodes(here);
            (cpus.allocatable().intersection(&local).len(), cpus.available().intersection(&local).len())
        });
    }
    if let Some(known) = state.devices.resources().get(resource) {
        let local = known.devices.iter().filter(|(_, device)| device.healthy && device.nodes.contains(zone));
        let free = local.clone().filter(|(id, _)| !known.allocated.contains(*id));
        return (local.count() as u64, free.count() as u64);
    }
    let kind = state.memory.as_ref().and_then(|memory| memory.nodes().get(&zone)?.kinds.get(resource));
    kind.map_or((0, 0), |kind| (kind.allocatable, kind.free()))
}
