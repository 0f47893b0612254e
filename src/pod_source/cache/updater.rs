//! The task that keeps the cache up to date.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::PodView;
use super::pods::CachedPods;
use crate::cluster::Cluster;
use crate::pod::PodEvent;
use crate::pod_source::kind::PodSourceKind;
use crate::pod_source::metrics::PodSourceMetrics;
use crate::pod_source::selector::SourceSelector;
use crate::util::backoff::{back_off, jittered};
use crate::util::log_throttle::{LastLogged, LogOnce};
use crate::util::sync::lock;

/// The first kubelet whose List contains active pods only.
const ACTIVE_PODS_ONLY: (u32, u32) = (1, 34);

/// How often the kubelet's version is read again: kubelets are upgraded in place.
const VERSION_INTERVAL: Duration = Duration::from_secs(600);
const RETRY: Duration = Duration::from_secs(1);
const RETRY_LIMIT: Duration = Duration::from_secs(60);

/// How long the terminated pods are trusted while the watch is broken: a new pod may have taken such a name.
const STALE: Duration = Duration::from_secs(30);

pub(super) struct Updater {
    pub(super) view: watch::Sender<PodView>,
    pub(super) pods: Arc<Mutex<CachedPods>>,
    pub(super) metrics: PodSourceMetrics,
    /// Whether this kubelet lists terminated pods. Unknown until its version was read.
    pub(super) lists_terminated: Option<bool>,
    pub(super) error: LastLogged<String>,
}

impl Updater {
    pub(super) async fn run(mut self, mut selector: SourceSelector, node: String, cluster: Option<Cluster>) {
        // A stream, so that pod events are processed while the Node is read.
        // Only kubelets of 1.36 and later have a Pods API, so without a cluster none lists terminated pods.
        self.lists_terminated = cluster.is_none().then_some(false);
        let versions = cluster.map(|cluster| versions(node, cluster));
        let mut versions = std::pin::pin!(stream::iter(versions).flatten());
        loop {
            tokio::select! {
                event = selector.next() => self.apply(event, selector.source()),
                Some(version) = versions.next() => self.set_version(&version),
            }
            self.update_view(selector.source());
        }
    }

    fn apply(&mut self, event: Result<PodEvent, String>, source: PodSourceKind) {
        let mut pods = lock(&self.pods);
        match event {
            Ok(event) => {
                // The start of a list shows nothing: it may fail as the one before did.
                if event.confirms_health() {
                    (pods.failing_since, pods.error) = (None, None);
                    self.error.reset();
                }
                pods.apply(event, Instant::now());
            }
            Err(error) => {
                pods.failing_since.get_or_insert_with(Instant::now);
                pods.error = Some(error.clone());
                self.metrics.count_error(source.label());
                if self.error.is_new(error.clone()) {
                    warn!("{error}; the last known pods are used meanwhile");
                }
            }
        }
    }

    fn set_version(&mut self, version: &str) {
        let lists_terminated = lists_terminated_pods(version);
        if lists_terminated && self.lists_terminated != Some(true) {
            info!("kubelet {version} lists terminated pods: the pod source shows which these are");
        }
        self.lists_terminated = Some(lists_terminated);
    }

    fn update_view(&mut self, source: PodSourceKind) {
        let mut pods = lock(&self.pods);
        let is_stale = pods.failing_since.is_some_and(|since| since.elapsed() > STALE);
        let terminated = match self.lists_terminated == Some(true) && !is_stale {
            true => pods.terminated(),
            false => BTreeMap::new(),
        };
        let is_up = pods.is_synced() && pods.failing_since.is_none();
        self.metrics.set_source(source.label(), is_up);
        let view = PodView {
            // A polled source reports deletions too late to rely on it for releases.
            is_up_to_date: is_up && source.is_prompt(),
            terminated: Arc::new(terminated),
            recently_deleted: Arc::new(pods.recently_deleted(Instant::now()).clone()),
            version: pods.version,
            is_complete: pods.is_synced() && self.lists_terminated.is_some(),
        };
        self.view.send_if_modified(|last| {
            *last != view && {
                *last = view;
                true
            }
        });
    }
}

/// Yields the kubelet's version, now and periodically.
fn versions(node: String, cluster: Cluster) -> impl Stream<Item = String> {
    let start = (Instant::now(), LogOnce::default());
    futures::stream::unfold(start, move |(mut due, log)| {
        let (node, cluster) = (node.clone(), cluster.clone());
        async move {
            let mut failures = 0;
            loop {
                sleep_until(due).await;
                match cluster.kubelet_version(&node).await {
                    Ok(version) => {
                        log.reset();
                        due = Instant::now() + jittered(VERSION_INTERVAL);
                        return Some((version, (due, log)));
                    }
                    Err(error) => {
                        log.warn(&format!("cannot read the kubelet's version: {error}"));
                        due = Instant::now() + back_off(&mut failures, RETRY, RETRY_LIMIT);
                    }
                }
            }
        }
    })
}

/// Returns true if a kubelet of this version (`v1.33.13`) lists terminated pods; also if the version cannot
/// be parsed.
fn lists_terminated_pods(version: &str) -> bool {
    let mut numbers = version.trim_start_matches('v').split('.').map(|part| part.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) < ACTIVE_PODS_ONLY,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubelets_before_1_34_list_terminated_pods() {
        for old in ["v1.33.13", "v1.23.0-eks-1", "1.9.0", "v0.1", "", "v1.x"] {
            assert!(lists_terminated_pods(old), "{old}");
        }
        for new in ["v1.34.0", "v1.36.3+k3s1", "v2.0.0"] {
            assert!(!lists_terminated_pods(new), "{new}");
        }
    }
}
