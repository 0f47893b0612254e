//! The newest account, in the API server.
//!
//! A task of its own: scans go on while the API server is slow or away, and when it is back only the newest
//! account goes out, never a queue of old ones.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, info, warn};

use super::object::object;
use super::{back_off, jittered};
use crate::cluster::{Cluster, ClusterError};
use crate::telemetry::metrics::{Metrics, WriteReason};
use crate::topology::Topology;

/// How soon to try again after a failed write.
const RETRY: Duration = Duration::from_millis(200);
/// The longest wait between two failed writes.
const RETRY_LIMIT: Duration = Duration::from_secs(10);
/// How long a write in flight may take once we were told to stop.
const FAREWELL: Duration = Duration::from_secs(2);

/// What the publisher did so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Writes that the API server took.
    pub writes: u64,
    /// The object's version after the last of them.
    pub resource_version: String,
    /// How long the last of them took.
    pub took: Duration,
    /// The sentence of the last failure, until a write succeeds.
    pub trouble: Option<String>,
}

/// The handle of the publishing task.
#[derive(Debug)]
pub(super) struct Publisher {
    newest: Option<watch::Sender<Option<Topology>>>,
    published: watch::Receiver<Published>,
    task: JoinHandle<()>,
}

impl Publisher {
    /// Starts the task; it has nothing to write yet.
    pub(super) fn start(
        node: String,
        cluster: Cluster,
        refresh: Duration,
        owned: bool,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (newest, offers) = watch::channel(None);
        let (report, published) = watch::channel(Published::default());
        let writer = Writer {
            node,
            cluster,
            refresh,
            owned,
            owner: None,
            offers,
            report,
            failures: 0,
            reason: WriteReason::First,
            metrics,
        };
        Self { newest: Some(newest), published, task: tokio::spawn(writer.run()) }
    }

    /// Makes `topology` the newest account; an older one that waits is forgotten.
    pub(super) fn offer(&self, topology: Topology) {
        if let Some(newest) = &self.newest {
            newest.send_replace(Some(topology));
        }
    }

    /// Does the API server refuse us, or not answer?
    pub(super) fn in_trouble(&self) -> bool {
        self.published.borrow().trouble.is_some()
    }

    pub(super) fn published(&self) -> watch::Receiver<Published> {
        self.published.clone()
    }

    /// Lets a write in flight end, but not for ever.
    pub(super) async fn stop(mut self) {
        self.newest = None;
        if timeout(FAREWELL, &mut self.task).await.is_err() {
            debug!("a write in flight was dropped");
            self.task.abort();
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Writer {
    node: String,
    cluster: Cluster,
    refresh: Duration,
    owned: bool,
    /// The Node's UID, once it was read.
    owner: Option<String>,
    offers: watch::Receiver<Option<Topology>>,
    report: watch::Sender<Published>,
    failures: u32,
    /// Of the next write.
    reason: WriteReason,
    metrics: Arc<Metrics>,
}

impl Writer {
    async fn run(mut self) {
        // The Node is read while the first scan runs.
        self.know_owner().await;
        while self.offers.changed().await.is_ok() {
            if self.keep_writing().await.is_none() {
                return;
            }
        }
    }

    /// Writes the newest account until it is in, then again at each refresh; `None` at the end of the agent.
    async fn keep_writing(&mut self) -> Option<()> {
        loop {
            let newest = self.offers.borrow_and_update().clone()?;
            let next = match self.write(&newest).await {
                Ok(()) => Instant::now() + jittered(self.refresh),
                Err(error) => Instant::now() + self.fail(&error),
            };
            tokio::select! {
                changed = self.offers.changed() => {
                    changed.ok()?;
                    self.because(WriteReason::Change);
                }
                () = sleep_until(next) => {
                    self.forget_owner_unless_failing();
                    self.because(WriteReason::Refresh);
                }
            }
            // After a failure a flood of changes must not become a flood of attempts.
            if self.failures > 0 {
                sleep(RETRY).await;
            }
        }
    }

    async fn write(&mut self, topology: &Topology) -> Result<(), ClusterError> {
        if self.owned && self.owner.is_none() {
            self.owner = Some(self.cluster.node_uid(&self.node).await?);
        }
        let start = Instant::now();
        let object = object(&self.node, self.owner.as_deref(), topology);
        let applied = self.cluster.apply(&object).await?;
        let took = start.elapsed();
        debug!("published {} as version {} in {took:?}", self.node, applied.resource_version);
        if self.failures > 0 {
            info!("publishing works again");
        }
        self.failures = 0;
        self.metrics.wrote(self.reason, took);
        self.report.send_modify(|report| {
            report.writes += 1;
            report.resource_version = applied.resource_version;
            report.took = took;
            report.trouble = None;
        });
        Ok(())
    }

    /// Says what is wrong, once per sentence; returns how long to wait.
    fn fail(&mut self, error: &ClusterError) -> Duration {
        self.metrics.write_failed(kind(error));
        let sentence = error.to_string();
        let known = self.report.borrow().trouble.as_ref() == Some(&sentence);
        if !known {
            warn!("{sentence}");
            self.report.send_modify(|report| report.trouble = Some(sentence));
        }
        back_off(&mut self.failures, RETRY, RETRY_LIMIT)
    }

    /// What the next write is for; one that failed is tried again for its own reason.
    fn because(&mut self, reason: WriteReason) {
        if self.failures == 0 {
            self.reason = reason;
        }
    }

    async fn know_owner(&mut self) {
        if !self.owned {
            return;
        }
        match self.cluster.node_uid(&self.node).await {
            Ok(uid) => self.owner = Some(uid),
            Err(error) => drop(self.fail(&error)),
        }
    }

    /// At a refresh the Node's UID is read again: it may have been made anew. A retry needs no second call.
    fn forget_owner_unless_failing(&mut self) {
        if self.failures == 0 {
            self.owner = None;
        }
    }
}

/// The variant, in a word for counters.
const fn kind(error: &ClusterError) -> &'static str {
    match error {
        ClusterError::NoConfig(_) => "no_config",
        ClusterError::Unreachable { .. } => "unreachable",
        ClusterError::Deadline { .. } => "deadline",
        ClusterError::NotUnderstood { .. } => "not_understood",
        ClusterError::NoCrd => "no_crd",
        ClusterError::Unauthorized(_) => "unauthorized",
        ClusterError::Forbidden(_) => "forbidden",
        ClusterError::NoSuchNode(_) => "no_such_node",
        ClusterError::Refused { .. } => "refused",
    }
}
