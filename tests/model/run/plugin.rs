//! The plugin's caches for one node (upstream: scheduler-plugins, `pkg/noderesourcetopology/cache`).

use std::collections::BTreeMap;

use super::cluster::{Object, Phase, Pod, PodId, PodState, Request};
use super::fingerprint;

/// The plugin's cache implementation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Cache {
    /// Deducts the pods it placed from every zone, and refreshes a node at its ticks.
    #[default]
    OverReserve,
    /// Reads the object for every pod, and rejects a node while a pod that it placed there is not bound.
    DiscardReserved,
    /// Reads the object for every pod.
    Passthrough,
}

/// The plugin's pod source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Informer {
    /// Counts every phase but Pending.
    Dedicated,
    /// Counts Running pods; it is the scheduler's own informer, which drops terminated pods.
    Shared,
}

/// The plugin's decision about a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    Pass,
    /// No zone has enough: the node is marked.
    Reject,
    /// The cache is stale since a pod of another scheduler changed, or a pod there is not bound yet.
    Stale,
}

/// The fingerprints of all pods that the plugin counts and of those with exclusive resources. `None` if it
/// counts none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) all: u64,
    pub(crate) exclusive: u64,
}

/// The cache of one node.
#[derive(Debug)]
pub(crate) struct Plugin {
    cache: Cache,
    informer: Informer,
    /// Whether reserving clears the mark (v0.34.7 and before).
    reserve_clears_mark: bool,
    pub(crate) cached: Option<Object>,
    /// Pods placed since the last flush or, with `DiscardReserved`, those not bound yet.
    pub(crate) assumed: Vec<PodId>,
    rejected: bool,
    foreign: bool,
    attributes: bool,
    known: BTreeMap<PodId, PodState>,
    pub(crate) flushes: u64,
}

impl Plugin {
    pub(crate) fn new(cache: Cache, informer: Informer, reserve_clears_mark: bool) -> Self {
        Self {
            cache,
            informer,
            reserve_clears_mark,
            cached: None,
            assumed: Vec::new(),
            rejected: false,
            foreign: false,
            attributes: false,
            known: BTreeMap::new(),
            flushes: 0,
        }
    }

    /// Handles an informer event; `None` if the pod was removed.
    pub(crate) fn handle_pod(&mut self, id: PodId, pod: &Pod, state: Option<PodState>) {
        let bound =
            state.map_or_else(|| self.known.get(&id).is_some_and(|state| state.bound), |state| state.bound);
        self.foreign |= bound && !pod.own_scheduler && self.cached.is_some();
        match state.filter(|state| self.informer == Informer::Dedicated || !state.phase.is_terminal()) {
            Some(state) => self.known.insert(id, state),
            None => self.known.remove(&id),
        };
    }

    /// Handles a change of the object.
    pub(crate) fn handle_object(&mut self, object: &Object) {
        self.attributes |= self.cached.as_ref().is_some_and(|cached| cached.policy != object.policy);
    }

    /// Filters the node. `live`: the object in the API server, which all caches but `OverReserve` read.
    pub(crate) fn filter(&mut self, request: Request, pods: &[Pod], live: Option<&Object>) -> Filter {
        if request.milli == 0 {
            return Filter::Pass;
        }
        if self.foreign || self.cache == Cache::DiscardReserved && !self.assumed.is_empty() {
            return Filter::Stale;
        }
        let Some(free) = self.free(pods, live) else { return Filter::Pass };
        // A pod that is not Guaranteed fits wherever the resource is listed.
        if !request.guaranteed || free.iter().any(|free| *free >= request.milli) {
            return Filter::Pass;
        }
        self.rejected = true;
        Filter::Reject
    }

    /// The `LeastAllocated` score: the lowest of the zones where the pod fits, up to 100.
    pub(crate) fn score(&self, request: Request, pods: &[Pod], live: Option<&Object>) -> u32 {
        if !request.guaranteed {
            return 100;
        }
        let free = self.free(pods, live).unwrap_or_default();
        let scores = free.iter().filter(|free| **free >= request.milli && **free > 0);
        scores.map(|free| (free - request.milli) * 100 / free).filter(|score| *score > 0).min().unwrap_or(0)
    }

    /// Free CPU of each zone for the plugin, in millicores; `None` if it ignores this node.
    fn free(&self, pods: &[Pod], live: Option<&Object>) -> Option<Vec<u32>> {
        let object = if self.cache == Cache::OverReserve { self.cached.as_ref() } else { live };
        let object = object.filter(|object| object.policy)?;
        let assumed: u32 = match self.cache {
            Cache::OverReserve => self.assumed.iter().map(|pod| pods[*pod].request.milli).sum(),
            Cache::DiscardReserved | Cache::Passthrough => 0,
        };
        Some(object.available.iter().map(|free| (free * 1000).saturating_sub(assumed)).collect())
    }

    pub(crate) fn reserve(&mut self, id: PodId, pods: &[Pod]) {
        if self.cache == Cache::Passthrough {
            return;
        }
        // By name: a recreated pod replaces the earlier one.
        self.assumed.retain(|other| pods[*other].hash != pods[id].hash);
        self.assumed.push(id);
        if self.reserve_clears_mark {
            self.rejected = false;
        }
    }

    /// Handles the end of a binding.
    pub(crate) fn post_bind(&mut self, id: PodId) {
        if self.cache == Cache::DiscardReserved {
            self.unreserve(id);
        }
    }

    pub(crate) fn unreserve(&mut self, id: PodId) {
        self.assumed.retain(|other| *other != id);
    }

    /// Returns true if a tick would read the node.
    pub(crate) fn is_dirty(&self) -> bool {
        self.cache == Cache::OverReserve && (self.rejected || self.foreign || self.attributes)
    }

    /// The fingerprints that a tick compares with; `None` if all pods are Pending.
    pub(crate) fn expected(&self, pods: &[Pod]) -> Option<Expected> {
        let counts = |state: &PodState| match self.informer {
            Informer::Dedicated => state.bound && state.phase != Phase::Pending,
            Informer::Shared => state.bound && state.phase == Phase::Running,
        };
        let counted: Vec<&Pod> =
            self.known.iter().filter(|(_, state)| counts(state)).map(|(id, _)| &pods[*id]).collect();
        let exclusive = counted.iter().filter(|pod| pod.request.looks_exclusive());
        (!counted.is_empty()).then(|| Expected {
            all: fingerprint::sum(counted.iter().map(|pod| pod.hash)),
            exclusive: fingerprint::sum(exclusive.map(|pod| pod.hash)),
        })
    }

    /// Returns true if a tick accepts this object.
    pub(crate) fn accepts(&self, expected: Option<Expected>, object: &Object) -> bool {
        let matches = expected.is_some_and(|expected| matches_expected(expected, object));
        self.attributes || (self.rejected || self.foreign) && matches
    }

    /// Replaces the cached state by this object.
    pub(crate) fn flush(&mut self, object: Object) {
        self.cached = Some(object);
        self.assumed.clear();
        (self.rejected, self.foreign, self.attributes) = (false, false, false);
        self.flushes += 1;
    }
}

/// Returns true if the object's fingerprint is that of the pods that the plugin counts.
pub(crate) fn matches_expected(expected: Expected, object: &Object) -> bool {
    object.fingerprint == Some(if object.exclusive { expected.exclusive } else { expected.all })
}

#[cfg(test)]
#[allow(dead_code, unused_imports)] // the long form has no test harness
mod tests {
    use super::*;

    fn pods() -> Vec<Pod> {
        ["a", "b", "agent"]
            .map(|name| {
                let request = if name == "agent" { Request::BEST_EFFORT } else { Request::whole(2) };
                Pod::new(name.into(), request, 0)
            })
            .to_vec()
    }

    fn object(available: &[u32], pods: &[&Pod]) -> Object {
        let fingerprint = Some(fingerprint::sum(pods.iter().map(|pod| pod.hash)));
        Object { available: available.to_vec(), policy: true, fingerprint, ..Object::default() }
    }

    fn plugin(informer: Informer, reserve_clears_mark: bool, cached: Option<Object>) -> Plugin {
        Plugin { cached, ..Plugin::new(Cache::OverReserve, informer, reserve_clears_mark) }
    }

    const fn state(phase: Phase) -> Option<PodState> {
        Some(PodState { bound: true, phase, deleted: false })
    }

    #[test]
    fn assumed_pods_are_deducted_from_every_zone_until_the_fingerprints_match() {
        let pods = pods();
        let mut plugin = plugin(Informer::Dedicated, false, Some(object(&[3, 2], &[])));
        plugin.handle_pod(2, &pods[2], state(Phase::Running));
        assert_eq!(plugin.filter(pods[0].request, &pods, None), Filter::Pass);
        plugin.reserve(0, &pods);
        assert!(!plugin.is_dirty());
        assert_eq!(plugin.filter(pods[1].request, &pods, None), Filter::Reject);
        assert!(plugin.is_dirty());
        let old = object(&[3, 2], &[&pods[2]]);
        assert!(plugin.accepts(plugin.expected(&pods), &old), "a pending pod does not prevent it");
        plugin.handle_pod(0, &pods[0], state(Phase::Running));
        assert!(!plugin.accepts(plugin.expected(&pods), &old));
        let new = object(&[1, 2], &[&pods[0], &pods[2]]);
        assert!(plugin.accepts(plugin.expected(&pods), &new));
        plugin.flush(new);
        assert!(!plugin.is_dirty());
        assert_eq!(plugin.filter(pods[1].request, &pods, None), Filter::Pass);
        plugin.unreserve(0);
    }

    #[test]
    fn no_object_is_accepted_while_all_pods_are_pending_or_it_has_no_fingerprint() {
        let pods = pods();
        let mut plugin = plugin(Informer::Dedicated, false, Some(object(&[0, 0], &[])));
        plugin.handle_pod(0, &pods[0], state(Phase::Pending));
        plugin.filter(pods[1].request, &pods, None);
        assert!(plugin.is_dirty());
        let free = object(&[7, 7], &[]);
        assert!(!plugin.accepts(plugin.expected(&pods), &free));
        plugin.handle_pod(2, &pods[2], state(Phase::Running));
        let without = Object { fingerprint: None, ..object(&[7, 7], &[]) };
        assert!(!plugin.accepts(plugin.expected(&pods), &without));
        assert!(plugin.accepts(plugin.expected(&pods), &object(&[7, 7], &[&pods[2]])));
    }

    #[test]
    fn only_the_dedicated_informer_counts_terminated_pods() {
        let pods = pods();
        for (informer, counts) in [(Informer::Dedicated, true), (Informer::Shared, false)] {
            let mut plugin = plugin(informer, false, None);
            plugin.handle_pod(0, &pods[0], state(Phase::Succeeded));
            plugin.handle_pod(2, &pods[2], state(Phase::Running));
            let both = fingerprint::sum([pods[0].hash, pods[2].hash]);
            let expected = plugin.expected(&pods);
            assert_eq!(expected.map(|expected| expected.all) == Some(both), counts);
            let exclusive = fingerprint::sum([pods[0].hash]);
            assert_eq!(expected.map(|expected| expected.exclusive) == Some(exclusive), counts);
        }
    }

    #[test]
    fn a_pod_of_another_scheduler_makes_the_node_stale_and_a_changed_policy_is_always_accepted() {
        let mut pods = pods();
        pods[2].own_scheduler = false;
        let mut plugin = plugin(Informer::Dedicated, true, Some(object(&[7, 7], &[])));
        plugin.handle_pod(2, &pods[2], state(Phase::Running));
        assert_eq!(plugin.filter(pods[0].request, &pods, None), Filter::Stale);
        assert_eq!(plugin.filter(Request::BEST_EFFORT, &pods, None), Filter::Pass);
        plugin.flush(object(&[7, 7], &[&pods[2]]));
        assert_eq!(plugin.filter(pods[0].request, &pods, None), Filter::Pass);
        let changed = Object { policy: false, ..object(&[1, 1], &[]) };
        plugin.handle_object(&changed);
        assert!(plugin.accepts(plugin.expected(&pods), &changed));
        plugin.flush(changed);
        let large = Request::whole(9);
        assert_eq!(plugin.filter(large, &pods, None), Filter::Pass, "without a policy the filter is off");
    }

    #[test]
    fn reserving_clears_the_mark_up_to_v0_34() {
        let pods = pods();
        for clears_mark in [true, false] {
            let mut plugin = plugin(Informer::Dedicated, clears_mark, Some(object(&[2, 2], &[])));
            assert_eq!(plugin.filter(Request::whole(3), &pods, None), Filter::Reject);
            plugin.reserve(0, &pods);
            assert_eq!(plugin.is_dirty(), !clears_mark);
        }
    }

    #[test]
    fn discard_reserved_rejects_a_node_until_its_pod_is_bound() {
        let pods = pods();
        let (free, full) = (object(&[3, 2], &[]), object(&[1, 0], &[]));
        for (cache, until_bound) in
            [(Cache::DiscardReserved, Filter::Stale), (Cache::Passthrough, Filter::Pass)]
        {
            let mut plugin = Plugin::new(cache, Informer::Dedicated, false);
            assert_eq!(plugin.filter(pods[0].request, &pods, None), Filter::Pass, "there is no object");
            assert_eq!(plugin.filter(pods[0].request, &pods, Some(&full)), Filter::Reject);
            assert_eq!(plugin.filter(pods[0].request, &pods, Some(&free)), Filter::Pass);
            plugin.reserve(0, &pods);
            assert_eq!(plugin.filter(pods[1].request, &pods, Some(&free)), until_bound);
            plugin.post_bind(0);
            assert_eq!(plugin.filter(pods[1].request, &pods, Some(&free)), Filter::Pass);
            assert!(!plugin.is_dirty(), "there is nothing to refresh");
        }
    }

    #[test]
    fn the_score_is_that_of_the_fullest_zone_that_fits() {
        let pods = pods();
        let plugin = plugin(Informer::Dedicated, false, Some(object(&[4, 8], &[])));
        assert_eq!(plugin.score(pods[0].request, &pods, None), 50);
        assert_eq!(plugin.score(Request::whole(6), &pods, None), 25);
        assert_eq!(plugin.score(Request::BEST_EFFORT, &pods, None), 100);
    }
}
