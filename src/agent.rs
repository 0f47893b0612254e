//! Keeps one node's NodeResourceTopology up to date: observe -> reconcile -> publish.
//!
//! A scan is one `List`; the slower inventory (hardware, allocatable, kubelet configuration) is read when it
//! may have changed. The zones are computed from that one List and published in one write. If a scan fails,
//! or the kubelet is not ready yet, the zones of the last good scan stay; the fingerprint and the reservations
//! still follow the node's pods.

pub(crate) mod health;
pub(crate) mod metrics;

mod annotate;
mod executor;
mod live_object;
mod observe;
mod publish;
mod reconcile;
mod record;
mod report;
mod reused_names;
mod settings;

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info};

use crate::cluster::Cluster;
use crate::kubelet::SharedClient;
use crate::pod_source::PodCache;
use crate::telemetry::health::Probes;
use crate::telemetry::registry::Registry;
use crate::topology::ZoneRules;
use crate::util::token_bucket::TokenBucket;

pub use observe::{
    ConfigConfidence, ConfigSource, ConfigSources, ConfigStatus, Depth, Inventory, Merge, MergeResponse,
    NodeReader, Scan, ScanError, list_pods,
};
pub use publish::{ConflictPolicy, Published, object};
pub use reconcile::Account;
pub use record::{Observed, Recorded, Recording, RecordingError};
pub use settings::Settings;

use executor::Executor;
use health::Health;
use live_object::LiveObject;
use metrics::Metrics;
use observe::{ClaimReader, Directories, Trigger, Triggers, cpu_time};
use reconcile::Requeue;

/// Rate of List calls: a tenth of the kubelet's limit for all its clients together (100 per second; upstream:
/// `podresources.DefaultQPS`).
const LISTS_PER_SECOND: f64 = 10.0;
/// Burst of List calls: a pod's admission may need a few at once.
const LIST_BURST: f64 = 4.0;

/// How long the first scan waits for the watches on the kubelet's directories. They are usually set within a
/// few milliseconds; a scan follows any that are set later.
const FIRST_WATCHES: Duration = Duration::from_millis(20);

/// Why a single pass ended without publishing the object.
#[derive(Debug, thiserror::Error)]
pub enum OnceError {
    /// The node could not be read.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// The object could not be written; the text is the reason.
    #[error("{0}")]
    Publish(String),
}

/// A file of the kubelet's configuration that was replaced on the host. The mount still shows the old one, so only a
/// new container can read what the kubelet has read.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} was replaced on the host before the kubelet restarted, and only a new container sees the new one; the agent \
     exits, to be restarted",
    .0.display()
)]
pub struct FileReplaced(PathBuf);

/// Keeps the object of one node up to date until it is shut down.
pub struct Agent {
    reader: NodeReader,
    triggers: Triggers,
    lists: TokenBucket,
    executor: Executor,
    /// The live object before this agent's first write.
    live_object: watch::Receiver<LiveObject>,
    rules: watch::Sender<ZoneRules>,
    new_rules: watch::Receiver<ZoneRules>,
    metrics: Arc<Metrics>,
}

impl Agent {
    /// Returns an agent for this node and cluster. [`Agent::run`] starts it. Without a cluster, the settings must
    /// be those [`Settings::without_cluster`], with a file.
    #[must_use]
    pub fn new(settings: Settings, cluster: impl Into<Option<Cluster>>, registry: &mut Registry) -> Self {
        let cluster = cluster.into().map(|cluster| cluster.in_form(settings.form));
        let health = Health::new(settings.poll, settings.kubelet_timeout, settings.refresh);
        let metrics = Arc::new(Metrics::register(registry, Arc::new(health)));
        let (sources, node) = (settings.pods.clone(), settings.node.clone());
        let pods = PodCache::start(sources, node, cluster.clone(), metrics.pod_source.clone());
        let (rules, new_rules) = watch::channel(settings.rules.clone());
        let (for_executor, shared_metrics) = (rules.subscribe(), Arc::clone(&metrics));
        let executor = Executor::new(&settings, cluster.clone(), pods.clone(), for_executor, shared_metrics);
        Self {
            reader: NodeReader::of_agent(&settings, pods, cluster, Some(Arc::clone(&metrics))),
            triggers: Triggers::start(directories(settings)),
            lists: TokenBucket::new(LISTS_PER_SECOND, LIST_BURST, Instant::now()),
            live_object: executor.publisher.live_object.clone(),
            executor,
            rules,
            new_rules,
            metrics,
        }
    }

    /// Returns the agent's pod source, to be shared.
    #[must_use]
    pub fn pods(&self) -> PodCache {
        self.executor.pods.clone()
    }

    /// Sends requests to the kubelet through a shared connection from now on.
    pub fn read_through(&mut self, client: SharedClient) {
        self.reader.kubelet.client = client;
    }

    /// Merges this into the kubelet's responses from now on.
    pub fn merge_with(&mut self, merge: Merge) {
        self.reader.merge_with(merge);
    }

    /// Returns the last error of a scan, until one is accepted.
    #[must_use]
    pub fn scan_error(&self) -> watch::Receiver<Option<String>> {
        self.executor.reporter.scan_error.subscribe()
    }

    /// Returns the status of the agent's writes.
    #[must_use]
    pub fn published(&self) -> watch::Receiver<Published> {
        self.executor.publisher.published.clone()
    }

    /// Returns the sender for changed rules. They replace those of the settings, and cause a scan.
    #[must_use]
    pub fn rules(&self) -> watch::Sender<ZoneRules> {
        self.rules.clone()
    }

    /// Returns the agent's health, to be served.
    #[must_use]
    pub fn health(&self) -> Arc<dyn Probes> {
        self.metrics.health.clone()
    }

    /// Runs the loop until `shutdown` completes, then withholds the fingerprint, within a limited time.
    ///
    /// # Errors
    /// It ends earlier if only a new container can read the kubelet's configuration.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<(), FileReplaced> {
        let mut shutdown = pin!(shutdown);
        let mut depth = Depth::Everything;
        // Setting the watches triggers a full scan: wait for it, so that the first scan covers it. If nothing
        // can be watched, no trigger comes.
        tokio::select! {
            _ = self.triggers.next() => {}
            () = sleep(FIRST_WATCHES) => {}
        }
        let result = loop {
            self.metrics.health.iteration.confirm();
            let (next, _) = tokio::select! {
                biased;
                () = &mut shutdown => break Ok(()),
                scanned = self.scan(depth) => scanned,
            };
            if let Some(file) = self.reader.config.replaced.take() {
                break Err(FileReplaced(file));
            }
            depth = tokio::select! {
                biased;
                () = &mut shutdown => break Ok(()),
                depth = self.wait(next) => depth,
            };
        };
        info!("stopping");
        self.executor.publisher.stop().await;
        result
    }

    /// Runs the loop until the object is written once.
    ///
    /// # Errors
    /// The first scan or write that failed.
    pub async fn run_once(mut self) -> Result<(), OnceError> {
        self.executor.wait_for_pods().await;
        let mut published = self.published();
        let mut depth = Depth::Everything;
        loop {
            let (next, result) = self.scan(depth).await;
            result?;
            depth = tokio::select! {
                biased;
                Ok(()) = published.changed() => {
                    let Published { writes, error, .. } = published.borrow_and_update().clone();
                    match error {
                        Some(error) => return Err(OnceError::Publish(error)),
                        None if writes > 0 => return Ok(()),
                        None => Depth::Everything,
                    }
                }
                depth = self.wait(next) => depth,
            };
        }
    }

    /// Scans once, and lets the result be reconciled and published. Returns when to scan next, and the error
    /// if the node could not be read.
    async fn scan(&mut self, depth: Depth) -> (Requeue, Result<(), ScanError>) {
        let wait = self.lists.take(Instant::now());
        self.executor.sleep_while_following_pods(wait).await;
        let (start, used) = (Instant::now(), cpu_time());
        let depth = self.executor.reconciler.depth(depth, start);
        let terminated = self.executor.start_scan();
        let scan = self.executor.run_while_following_pods(self.reader.scan(depth, &terminated)).await;
        self.metrics.scan_seconds.observe(start.elapsed().as_secs_f64());
        debug!("read {depth:?} in {:?}", start.elapsed());
        self.executor.check_api_server().await;
        // Requests beyond the List count against the rate limit, too.
        let requests = std::mem::take(&mut self.reader.kubelet.requests);
        let _ = self.lists.take_many(requests.saturating_sub(1), start);
        let (scan, result) = match scan {
            Ok(scan) => (Ok(scan), Ok(())),
            Err(error) => (Err(error.to_string()), Err(error)),
        };
        let next = self.executor.scanned(scan, start, depth == Depth::Everything);
        if depth == Depth::Usage {
            let cost = cpu_time().saturating_sub(used);
            self.executor.reconciler.schedule.poll.record_cost(cost);
        }
        (next, result)
    }

    /// Waits for the next reason to scan, and merges a burst of triggers into one.
    async fn wait(&mut self, next: Requeue) -> Depth {
        let (trigger, depth) = tokio::select! {
            reasons = self.triggers.next() => return self.triggered(reasons).await,
            (trigger, delay) = self.executor.follow() => {
                self.executor.sleep_while_following_pods(delay).await;
                (trigger, Depth::Usage)
            }
            Ok(()) = self.new_rules.changed() => ("configuration", Depth::Usage),
            () = claims_changed(&mut self.reader.claims) => ("claims", Depth::Usage),
            () = self.reader.config.received() => ("configuration", Depth::Everything),
            Ok(()) = self.live_object.changed() => ("live_object", Depth::Usage),
            () = sleep_until(next.at) => ("poll", next.depth),
        };
        self.metrics.triggers.with([trigger]).inc();
        depth
    }

    async fn triggered(&mut self, reasons: Trigger) -> Depth {
        self.executor.reconciler.schedule.poll.record_change(Instant::now());
        let reasons = self.executor.run_while_following_pods(self.triggers.burst(reasons)).await;
        for trigger in reasons.names() {
            self.metrics.triggers.with([trigger]).inc();
        }
        if reasons.has(Trigger::EVERYTHING) {
            Depth::Everything
        } else if reasons.has(Trigger::DEVICES) {
            Depth::Allocatable
        } else {
            Depth::Usage
        }
    }
}

async fn claims_changed(claims: &mut Option<ClaimReader>) {
    match claims {
        Some(claims) => claims.changed().await,
        None => std::future::pending().await,
    }
}

fn directories(settings: Settings) -> Directories {
    Directories {
        root: settings.kubelet_dir,
        device_plugins: settings.device_plugins,
        socket: settings.socket.parent().map(PathBuf::from).unwrap_or_default(),
        notify: settings.notify_file,
    }
}
