//! Follows the pod sources and updates the store.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tracing::warn;

use super::metrics::Metrics;
use super::service::KubeletReads;
use super::store::{InvalidPod, Store};
use super::watch_cache::{SharedCache, lock};
use crate::cluster::Cluster;
use crate::pod::PodEvent;
use crate::pod_source::{PodSourceKind, PodSources, SourceSelector};
use crate::util::log_throttle::LastLogged;

/// How long the sources of full pods may take for their first list before `/pods` is read.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long these sources may have failed without an event before `/pods` is read.
const FAILURE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long after the start full pods are expected although only `/pods` works: until then the service `Pods`
/// is initializing, then it is unimplemented.
const STARTUP: Duration = Duration::from_secs(60);

/// How long after an omitted pod fits again all pods are relisted, and the minimum interval between two such
/// relists. Pods come and go in groups, at times their creators choose.
const RELIST_DELAY: Duration = Duration::from_secs(1);
const MIN_RELIST_INTERVAL: Duration = Duration::from_secs(30);

/// Maximum number of invalid pods that are logged.
const MAX_INVALID: usize = 64;

pub(super) struct SourceFollower {
    pub(super) sources: PodSources,
    pub(super) node: String,
    pub(super) cluster: Option<Cluster>,
    pub(super) store: Store,
    pub(super) has_only_kubelet_pods: Arc<AtomicBool>,
    pub(super) kubelet_reads: Arc<KubeletReads>,
    pub(super) metrics: Metrics,
    pub(super) state: State,
}

#[derive(Default)]
pub(super) struct State {
    /// The source that last completed a list of full pods, and since when the sources fail.
    synced_source: Option<PodSourceKind>,
    failing_since: Option<Instant>,
    /// The last error logged of the sources of full pods, and of `/pods`.
    errors: [LastLogged<String>; 2],
    /// Invalid pods that were logged. Sources report them repeatedly.
    invalid: Vec<InvalidPod>,
    /// When to relist because a pod that was omitted fits again, and when that last happened.
    relist_at: Option<Instant>,
    relisted_at: Option<Instant>,
}

async fn next(source: &mut Option<SourceSelector>) -> Result<PodEvent, String> {
    match source {
        Some(source) => source.next().await,
        None => pending().await,
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
}

impl SourceFollower {
    pub(super) async fn run(mut self) {
        let started = Instant::now();
        let (kubelet_order, full_order): (Vec<_>, Vec<_>) =
            self.sources.order.iter().partition(|source| **source == PodSourceKind::Kubelet);
        full_order.iter().for_each(|source: &PodSourceKind| self.metrics.source_down(source.label()));
        let mut full = self.subscribe(full_order.clone());
        let mut kubelet: Option<SourceSelector> = None;
        loop {
            let due = self.kubelet_due(started, full.is_some());
            let due = due.filter(|_| !kubelet_order.is_empty() && kubelet.is_none());
            tokio::select! {
                event = next(&mut full) => {
                    let source = full.as_ref().map_or(PodSourceKind::ApiServer, SourceSelector::source);
                    if self.apply(event, source) && kubelet.take().is_some() {
                        self.store.kubelet_list = None;
                        self.metrics.source_down(PodSourceKind::Kubelet.label());
                    }
                }
                event = next(&mut kubelet) => {
                    let is_starting = full.is_some() && started.elapsed() < STARTUP;
                    self.apply_kubelet(event, is_starting);
                }
                () = until(due) => kubelet = self.subscribe_kubelet(kubelet_order.clone()),
                () = until(self.state.relist_at) => {
                    if self.store.has_room() {
                        full = self.subscribe(full_order.clone());
                        self.state.relisted_at = Some(Instant::now());
                    }
                    self.state.relist_at = None;
                }
            }
            self.kubelet_reads.are_served.store(self.store.serves_kubelet_pods(), Ordering::Relaxed);
            self.check_omitted();
        }
    }

    /// Opens the kubelet's `/pods`. It is not shared: a response of `PodInfo` needs to know which read it is from.
    fn subscribe_kubelet(&self, order: Vec<PodSourceKind>) -> Option<SourceSelector> {
        (!order.is_empty()).then(|| {
            let refresh = Some(Arc::clone(&self.kubelet_reads.refresh));
            let sources = PodSources { order, informer: None, refresh, ..self.sources.clone() };
            SourceSelector::new(sources, self.node.clone(), self.cluster.clone())
        })
    }

    fn subscribe(&self, order: Vec<PodSourceKind>) -> Option<SourceSelector> {
        (!order.is_empty()).then(|| {
            let sources = PodSources { order, ..self.sources.clone() };
            SourceSelector::new(sources, self.node.clone(), self.cluster.clone())
        })
    }

    fn kubelet_due(&self, started: Instant, has_full_source: bool) -> Option<Instant> {
        match lock(&self.store.pods).is_synced {
            true => self.state.failing_since.map(|since| since + FAILURE_TIMEOUT),
            false if has_full_source => Some(started + FIRST_LIST_TIMEOUT),
            false => Some(started),
        }
    }

    /// Updates the metrics, logs newly omitted pods, and schedules a relist if one of them fits again.
    fn check_omitted(&mut self) {
        let count = |cache: &SharedCache| {
            let cache = lock(cache);
            (cache.entries.len() - cache.entries.omitted, cache.entries.omitted)
        };
        self.metrics.pods(count(&self.store.pods), count(&self.store.infos));
        for pod in self.store.take_newly_omitted() {
            warn!("{pod}; this is logged once for each pod");
        }
        if self.state.relist_at.is_none() && self.store.has_room() {
            let soon = Instant::now() + RELIST_DELAY;
            let last = self.state.relisted_at;
            self.state.relist_at = Some(last.map_or(soon, |last| soon.max(last + MIN_RELIST_INTERVAL)));
        }
    }

    /// Applies an event of a source of full pods. Returns true if it proves that the source works and all its
    /// pods are known.
    fn apply(&mut self, event: Result<PodEvent, String>, source: PodSourceKind) -> bool {
        let event = match event {
            Ok(event) => event,
            Err(message) => {
                self.state.failing_since.get_or_insert_with(Instant::now);
                self.fail(source, message);
                return false;
            }
        };
        let is_healthy = event.confirms_health();
        if event == PodEvent::InitDone
            && let Some(before) = self.state.synced_source.replace(source).filter(|before| *before != source)
        {
            self.metrics.source_down(before.label());
        }
        // A source that is being tried may report a pod before it has listed all.
        let is_synced = self.state.synced_source == Some(source);
        self.store.is_source_synced = is_synced;
        let result = self.store.apply(event, Instant::now());
        let is_up = is_synced && is_healthy;
        if is_up {
            self.state.failing_since = None;
            self.has_only_kubelet_pods.store(false, Ordering::Relaxed);
        }
        self.record(source, is_healthy, is_up, result.err());
        is_up
    }

    /// Applies an event of the kubelet's `/pods`. `is_starting`: full pods are still expected.
    fn apply_kubelet(&mut self, event: Result<PodEvent, String>, is_starting: bool) {
        let event = match event {
            Ok(event) => event,
            Err(message) => return self.fail(PodSourceKind::Kubelet, message),
        };
        let (is_healthy, is_complete) = (event.confirms_health(), event == PodEvent::InitDone);
        let result = self.store.apply_kubelet(event, Instant::now());
        if is_complete {
            self.kubelet_reads.served.send_replace(self.kubelet_reads.refresh.read_at());
        }
        let is_up = self.store.serves_kubelet_pods();
        self.has_only_kubelet_pods.store(is_up && !is_starting, Ordering::Relaxed);
        self.record(PodSourceKind::Kubelet, is_healthy, is_up, result.err());
    }

    fn record(&mut self, source: PodSourceKind, is_healthy: bool, is_up: bool, invalid: Option<InvalidPod>) {
        if is_healthy {
            self.metrics.source_event(source.label(), is_up);
            self.state.errors[index(source)].reset();
        }
        if let Some(invalid) = invalid
            && self.state.invalid.len() < MAX_INVALID
            && !self.state.invalid.contains(&invalid)
        {
            warn!("{invalid}");
            self.state.invalid.push(invalid);
        }
    }

    fn fail(&mut self, source: PodSourceKind, message: String) {
        self.metrics.source_failed(source.label());
        if self.state.errors[index(source)].is_new(message.clone()) {
            match lock(&self.store.infos).is_synced {
                true => warn!("{message}; the last known pods are served meanwhile"),
                false => warn!("{message}; nothing can be served until a source lists all pods"),
            }
        }
    }
}

/// Returns the index of a source's errors: 0 for sources of full pods, 1 for `/pods`.
fn index(source: PodSourceKind) -> usize {
    usize::from(source == PodSourceKind::Kubelet)
}
