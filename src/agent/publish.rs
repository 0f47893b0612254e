//! The newest account, in the API server.
//!
//! A task of its own: scans go on while the API server is slow or away, and when it is back only the newest
//! account goes out, never a queue of old ones. It starts by reading what the API server has.

mod writer;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, info, warn};

use super::standing::Standing;
use super::{Settings, back_off, jittered};
use crate::cluster::{Cluster, ClusterError};
use crate::telemetry::metrics::{Metrics, WriteReason};
use crate::topology::Topology;

pub(super) use writer::Writer;

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
    standing: watch::Receiver<Standing>,
    task: JoinHandle<()>,
}

impl Publisher {
    /// Starts the task; it has nothing to write yet.
    pub(super) fn start(settings: &Settings, cluster: Cluster, metrics: Arc<Metrics>) -> Self {
        let (newest, offers) = watch::channel(None);
        let (report, published) = watch::channel(Published::default());
        let (stood, standing) = watch::channel(Standing::Unknown);
        let task = Task {
            writer: Writer::new(settings.node.clone(), cluster, settings.owner_reference),
            refresh: settings.refresh,
            offers,
            report,
            stood,
            metrics,
            pending: None,
            pace: Pace::default(),
            refresh_at: Instant::now(),
            wrote: false,
        };
        Self { newest: Some(newest), published, standing, task: tokio::spawn(task.run()) }
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

    /// What the API server had before this agent wrote; it is known soon after the API server answers.
    pub(super) fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.clone()
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

/// When the next attempt may be made.
#[derive(Debug, Default)]
struct Pace {
    failures: u32,
    /// The server itself asked for the wait.
    asked: bool,
    not_before: Option<Instant>,
}

impl Pace {
    fn failed(&mut self, error: &ClusterError, now: Instant) {
        let own = back_off(&mut self.failures, RETRY, RETRY_LIMIT);
        let asked = error.retry_after().map(|wait| wait.min(RETRY_LIMIT));
        self.asked = asked.is_some();
        self.not_before = Some(now + asked.map_or(own, |asked| own.max(jittered(asked))));
    }

    /// There is something new: a long wait is cut short, but a flood of changes must not become a flood of attempts.
    fn hurry(&mut self, now: Instant) {
        if !self.asked {
            self.not_before = self.not_before.map(|at| at.min(now + RETRY));
        }
    }
}

/// Why the task stopped waiting.
enum Wake {
    /// There is a newer account.
    Offer,
    /// It is time for the attempt that waits, or for a refresh.
    Due,
}

struct Task {
    writer: Writer,
    refresh: Duration,
    offers: watch::Receiver<Option<Topology>>,
    report: watch::Sender<Published>,
    stood: watch::Sender<Standing>,
    metrics: Arc<Metrics>,
    /// Why the object has to be written, until it is.
    pending: Option<WriteReason>,
    pace: Pace,
    refresh_at: Instant,
    /// This process has written the object.
    wrote: bool,
}

impl Task {
    /// Ends with the agent, which drops the other end of the offers.
    async fn run(mut self) {
        self.learn().await;
        loop {
            let Some(wake) = self.wait().await else { return };
            self.digest(wake).await;
            self.write_what_is_pending().await;
        }
    }

    /// Reads what the API server has, for as long as it takes: the Node too, while the first scan runs.
    async fn learn(&mut self) {
        loop {
            match self.writer.start().await {
                Ok(standing) => {
                    self.recovered();
                    self.stood.send_replace(standing);
                    return;
                }
                Err(error) => self.fail(&error),
            }
            sleep(self.pace.not_before.map_or(RETRY, |at| at.duration_since(Instant::now()))).await;
        }
    }

    /// Waits for something to do; `None` at the end of the agent.
    async fn wait(&mut self) -> Option<Wake> {
        let idle = self.offers.borrow().is_none();
        let due = match self.pending {
            Some(_) => self.pace.not_before.unwrap_or(self.refresh_at),
            None => self.refresh_at,
        };
        tokio::select! {
            changed = self.offers.changed() => changed.ok().map(|()| Wake::Offer),
            () = sleep_until(due), if !idle => Some(Wake::Due),
        }
    }

    async fn digest(&mut self, wake: Wake) {
        match wake {
            Wake::Offer => {
                let reason = if self.wrote { WriteReason::Change } else { WriteReason::First };
                self.pending.get_or_insert(reason);
                self.pace.hurry(Instant::now());
            }
            Wake::Due if self.pending.is_none() => self.look_again().await,
            Wake::Due => {}
        }
    }

    /// Nothing has changed for long: is what we wrote still there?
    async fn look_again(&mut self) {
        self.refresh_at = Instant::now() + jittered(self.refresh);
        match self.writer.read().await {
            Ok(_) => self.pending = Some(WriteReason::Refresh),
            Err(error) => {
                self.pending = Some(WriteReason::Refresh);
                self.fail(&error);
            }
        }
    }

    async fn write_what_is_pending(&mut self) {
        let (Some(reason), now) = (self.pending, Instant::now()) else { return };
        if self.pace.not_before.is_some_and(|at| at > now) {
            return;
        }
        let Some(newest) = self.offers.borrow_and_update().clone() else { return };
        match self.writer.write(&newest).await {
            Ok(()) => self.written(reason, now.elapsed()),
            Err(error) => self.fail(&error),
        }
    }

    fn written(&mut self, reason: WriteReason, took: Duration) {
        self.metrics.wrote(reason, took);
        self.pending = None;
        self.wrote = true;
        self.refresh_at = Instant::now() + jittered(self.refresh);
        let version = self.writer.version().to_owned();
        debug!("published version {version} in {took:?} ({reason:?})");
        self.recovered();
        self.report.send_modify(|report| {
            report.writes += 1;
            report.resource_version = version;
            report.took = took;
        });
    }

    fn recovered(&mut self) {
        if self.pace.failures > 0 {
            info!("publishing works again");
            self.report.send_modify(|report| report.trouble = None);
        }
        self.pace = Pace::default();
    }

    /// Says what is wrong, once per sentence, and waits.
    fn fail(&mut self, error: &ClusterError) {
        self.metrics.write_failed(error.kind());
        if self.pending.is_some() {
            self.metrics.health().waiting();
        }
        let sentence = error.to_string();
        let known = self.report.borrow().trouble.as_ref() == Some(&sentence);
        if !known {
            warn!("{sentence}");
            self.report.send_modify(|report| report.trouble = Some(sentence));
        }
        self.pace.failed(error, Instant::now());
    }
}
