//! The current annotations and devices of the node, and the allocations that they make.

mod error_log;
mod lookups;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::debug;

use super::Settings;
use super::allocations::Allocations;
use super::annotations::{NodeDevices, Rules};
use super::device_poller::DevicePoller;
use super::merge::{Merged, WireError};
use super::metrics::Metrics;
use crate::pod::{Pod, PodName};
use crate::pod_source::PodCache;
use crate::util::sync::lock;

use error_log::ErrorLog;
use lookups::Lookups;
pub(super) use lookups::PodLookup;

/// How many pods are looked up by name for one response, and how many concurrently. A node admits a few at a
/// time.
const MAX_LOOKUPS: usize = 64;
const MAX_CONCURRENT_LOOKUPS: usize = 8;

/// How often a response is merged again at most because something changed meanwhile.
const MAX_REMERGES: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SourceFreshness {
    /// A pod source is synced, or was not long ago.
    Fresh,
    /// The pods were never listed, or the node's devices never read.
    Unsynced,
    /// All pod sources have been failing for too long.
    Stale,
}

pub(super) struct AnnotationState {
    rules: Rules,
    /// The rules for the agent's zones, in which parts of a device have the device's own id.
    zone_rules: Rules,
    pods: PodCache,
    lookup: Option<PodLookup>,
    devices: Option<DevicePoller>,
    /// [`Settings::wait`] and [`Settings::last_known`].
    wait: Duration,
    last_known: Duration,
    state: Mutex<State>,
    /// Serializes the lookups of unknown pods: the next caller finds the results of the first.
    lookup_lock: tokio::sync::Mutex<()>,
    metrics: Metrics,
}

struct State {
    node: watch::Receiver<NodeDevices>,
    /// Incremented when the devices change.
    node_version: u64,
    for_clients: Cached,
    for_zones: Cached,
    lookups: Lookups,
    /// When the last error about an unknown device appeared; `None` once a response has waited for a newer
    /// read.
    unknown_device_since: Option<Instant>,
    error_log: ErrorLog,
}

/// Allocations, and the versions they were made from: of the pods, of the devices, and of the lookups.
#[derive(Default)]
struct Cached {
    versions: Option<(u64, u64, u64)>,
    allocations: Arc<Allocations>,
}

impl AnnotationState {
    pub(super) fn new(
        rules: Rules,
        settings: &Settings,
        pods: PodCache,
        lookup: Option<PodLookup>,
        (node, devices): (watch::Receiver<NodeDevices>, Option<DevicePoller>),
        metrics: Metrics,
    ) -> Self {
        let state = State {
            node,
            node_version: 0,
            for_clients: Cached::default(),
            for_zones: Cached::default(),
            lookups: Lookups::default(),
            unknown_device_since: None,
            error_log: ErrorLog::new(Instant::now()),
        };
        Self {
            zone_rules: rules.without_shared_ids(),
            rules,
            pods,
            lookup,
            devices,
            wait: settings.wait,
            last_known: settings.last_known,
            state: Mutex::new(state),
            lookup_lock: tokio::sync::Mutex::default(),
            metrics,
        }
    }

    pub(super) fn is_synced(&self) -> bool {
        self.pods.is_synced()
    }

    pub(super) fn freshness(&self) -> SourceFreshness {
        let has_devices = self.devices.as_ref().is_none_or(DevicePoller::has_response);
        match self.pods.failing_for() {
            _ if !self.pods.is_synced() || !has_devices => SourceFreshness::Unsynced,
            Some(silent) if silent > self.last_known => SourceFreshness::Stale,
            _ => SourceFreshness::Fresh,
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.wait
    }

    /// Waits for the first list of pods and for the first read of the node's devices, until `deadline`.
    pub(super) async fn wait_until_synced(&self, deadline: Instant) {
        let mut pods = self.pods.clone();
        let synced = async {
            while !pods.is_synced() {
                pods.changed().await;
            }
            if let Some(devices) = &self.devices {
                devices.first_read().await;
            }
        };
        let _ = timeout_at(deadline, synced).await;
    }

    pub(super) fn allocations(&self) -> Arc<Allocations> {
        let mut state = lock(&self.state);
        let versions = self.versions(&mut state);
        if state.for_clients.versions == Some(versions) {
            return Arc::clone(&state.for_clients.allocations);
        }
        let allocations = self.read(&self.rules, &state);
        self.report(&mut state, &allocations);
        state.for_clients = Cached { versions: Some(versions), allocations: Arc::clone(&allocations) };
        allocations
    }

    /// Returns what the agent has to count now; `None` as long as it is unknown: no zone may look free until
    /// then.
    pub(super) fn zone_allocations(&self) -> Option<Arc<Allocations>> {
        if self.freshness() == SourceFreshness::Unsynced {
            return None;
        }
        let mut state = lock(&self.state);
        let versions = self.versions(&mut state);
        if state.for_zones.versions != Some(versions) {
            let allocations = self.read(&self.zone_rules, &state);
            state.for_zones = Cached { versions: Some(versions), allocations };
        }
        Some(Arc::clone(&state.for_zones.allocations))
    }

    fn versions(&self, state: &mut State) -> (u64, u64, u64) {
        // Reading the devices marks them as seen.
        if state.node.has_changed().unwrap_or(false) {
            drop(state.node.borrow_and_update());
            state.node_version += 1;
        }
        state.lookups.remove_expired(|name| self.pods.has_current(name));
        (self.pods.version(), state.node_version, state.lookups.version())
    }

    fn read(&self, rules: &Rules, state: &State) -> Arc<Allocations> {
        let node = state.node.borrow().clone();
        // Pods that were looked up are newer than the pod source's pods of the same name.
        let pods: Vec<Pod> = self.pods.with(|pods| {
            let pods = pods.into_iter().flatten();
            let annotated = pods.filter(|pod| !pod.annotations.is_empty());
            annotated.filter(|pod| !state.lookups.replaces(pod)).cloned().collect()
        });
        Arc::new(rules.read(pods.iter().chain(state.lookups.found()), &node))
    }

    fn report(&self, state: &mut State, allocations: &Allocations) {
        self.metrics.annotation_errors(allocations.errors().iter().map(|error| error.kind.name()));
        let now = Instant::now();
        let earlier = Arc::clone(&state.for_clients.allocations);
        if allocations.new_errors(&earlier).any(|error| error.kind.concerns_devices()) {
            state.unknown_device_since = Some(now);
        }
        state.error_log.log(allocations.new_errors(&earlier), now);
    }

    /// Merges the allocations into a response. Unknown pods in it are looked up until `deadline`; also
    /// returns how many are still unknown.
    pub(super) async fn merge(
        &self,
        deadline: Instant,
        merge: impl Fn(&Allocations) -> Result<Merged, WireError>,
    ) -> Result<(Merged, usize), WireError> {
        let mut allocations = self.allocations();
        let mut merged = merge(&allocations)?;
        if !self.pods_to_look_up(&merged).is_empty() {
            self.look_up_pods(&merged, deadline).await;
        }
        self.wait_for_devices(deadline).await;
        // Pods that were looked up or received while merging are in newer allocations. No pod counts as known
        // unless the allocations that were merged know it.
        for _ in 0..MAX_REMERGES {
            let unknown = self.count_unknown(&merged);
            let newer = self.allocations();
            if Arc::ptr_eq(&newer, &allocations) {
                return Ok((merged, unknown));
            }
            merged = merge(&newer)?;
            allocations = newer;
        }
        let unknown = self.count_unknown(&merged);
        Ok((merged, unknown))
    }

    /// Reads the node's devices once more if an annotation names one that the node is not known to have.
    async fn wait_for_devices(&self, deadline: Instant) {
        let Some(devices) = &self.devices else { return };
        let since = lock(&self.state).unknown_device_since;
        if let Some(since) = since.filter(|since| !devices.has_read_since(*since)) {
            let _ = timeout_at(deadline, devices.read_now()).await;
            let mut state = lock(&self.state);
            // Whatever the result: no response waits twice for the same devices.
            if state.unknown_device_since == Some(since) {
                state.unknown_device_since = None;
            }
        }
    }

    /// Returns the pods of a response that the pod source lacks or has only as terminating: there may be a
    /// new pod of that name.
    fn unsettled(&self, merged: &Merged) -> Vec<PodName> {
        let names = merged.listed.names().map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
        names.filter(|name| !self.pods.has_current(name)).collect()
    }

    fn pods_to_look_up(&self, merged: &Merged) -> Vec<PodName> {
        let unsettled = self.unsettled(merged);
        let state = lock(&self.state);
        unsettled.into_iter().filter(|name| !state.lookups.is_fresh(name)).collect()
    }

    /// Returns how many pods of a response are unknown. A pod that does not exist is not unknown.
    fn count_unknown(&self, merged: &Merged) -> usize {
        let unsettled = self.unsettled(merged);
        let state = lock(&self.state);
        let is_known = |name: &PodName| state.lookups.has_succeeded(name) || self.pods.contains(name);
        unsettled.iter().filter(|name| !is_known(name)).count()
    }

    /// Looks up unknown pods, and waits until the lookups or the pod source provide them, or until
    /// `deadline`.
    async fn look_up_pods(&self, merged: &Merged, deadline: Instant) {
        let Ok(_guard) = timeout_at(deadline, self.lookup_lock.lock()).await else { return };
        let mut names = self.pods_to_look_up(merged);
        // The others are looked up for the next response.
        names.truncate(MAX_LOOKUPS);
        if names.is_empty() {
            return;
        }
        debug!("looking up {} pods that the kubelet lists and the pod source does not know", names.len());
        let mut source = self.pods.clone();
        let provided = async {
            source.refresh();
            while !names.iter().all(|name| source.has_current(name)) {
                source.changed().await;
            }
        };
        let looked_up = async {
            match &self.lookup {
                Some(lookup) => self.look_up_all(lookup, &names).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = provided => {}
            () = looked_up => {}
            () = sleep_until(deadline) => {}
        }
        // Caches the failed lookups, so that no response waits for these pods again too soon.
        for name in names {
            let mut state = lock(&self.state);
            if !self.pods.has_current(&name) && !state.lookups.is_fresh(&name) {
                state.lookups.insert(name, None);
            }
        }
    }

    /// Looks up each pod by its name; waits forever if any lookup failed.
    async fn look_up_all(&self, lookup: &PodLookup, names: &[PodName]) {
        let mut failed = false;
        for some in names.chunks(MAX_CONCURRENT_LOOKUPS) {
            let results = join_all(some.iter().map(|name| self.look_up(lookup, name))).await;
            failed |= results.contains(&false);
        }
        if failed {
            std::future::pending::<()>().await;
        }
    }

    /// Looks up one pod, and returns false if that failed. The result is cached at once: the caller may give
    /// up while it waits for the others.
    async fn look_up(&self, PodLookup { cluster, node, wanted }: &PodLookup, name: &PodName) -> bool {
        match cluster.get_pod(node, name, wanted).await {
            Ok(pod) => {
                lock(&self.state).lookups.insert(name.clone(), Some(pod));
                true
            }
            Err(error) => {
                lock(&self.state).error_log.log_failed_lookup(error.to_string());
                false
            }
        }
    }
}
