//! The task that writes the object.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info, warn};

use super::apply::ObjectWriter;
use super::object::withheld;
use super::ownership::OwnershipState;
use super::retry_timer::{RETRY, RetryTimer};
use crate::agent::live_object::LiveObject;
use crate::agent::metrics::{Metrics, WriteReason};
use crate::agent::report::{EventRecorder, Reason};
use crate::agent::settings::Settings;
use crate::cluster::{Cluster, ClusterError, ObjectEvent, ObjectWatch, StartupDenials};
use crate::nrt::NodeResourceTopology;
use crate::scheduler::{FingerprintView, Publishable};
use crate::util::backoff::jittered;
use crate::util::log_throttle::LastLogged;

/// How long the live object is trusted at startup without a write of this agent.
const TRUSTED: Duration = Duration::from_millis(500);

/// What the publisher has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// The number of successful writes.
    pub writes: u64,
    /// The last error, until a read or write of the object succeeds.
    pub error: Option<String>,
    /// Whether that error is that the API server cannot be reached.
    pub is_unreachable: bool,
    /// The field managers that keep rewriting the object.
    pub competitor: Option<String>,
}

enum Wake {
    Newest,
    /// The pending attempt is due, or a refresh.
    Due,
    /// This agent has not written yet, and the live object should not be trusted any longer.
    Withhold,
    /// An event of the watch on the object, or its error.
    Object(Result<ObjectEvent, ClusterError>),
}

pub(super) struct PublishTask {
    pub(super) writer: ObjectWriter,
    pub(super) ownership: OwnershipState,
    pub(super) newest: watch::Receiver<Option<Publishable>>,
    pub(super) published: watch::Sender<Published>,
    live_object: watch::Sender<LiveObject>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) events: EventRecorder,
    /// Why the object has to be written, until it is.
    pub(super) pending: Option<WriteReason>,
    pub(super) retry: RetryTimer,
    denials: StartupDenials,
    pub(super) refresh_interval: Duration,
    pub(super) refresh_at: Instant,
    /// The reason for the first write of this process, until it is done.
    pub(super) first: Option<WriteReason>,
    /// The watch on the object, from the first write on.
    watch: Option<ObjectWatch>,
    pub(super) watch_error: LastLogged<String>,
    fingerprint: WithheldFingerprint,
}

/// When to withhold the fingerprint of the object because no agent accounts for the pods: before the first
/// write, and at shutdown.
struct WithheldFingerprint {
    /// Whether that is done: in the scheduler's view only.
    is_enabled: bool,
    /// The live object with its fingerprint withheld, and when to write it; `None` once that or a state of
    /// this agent is written.
    unwritten: Option<(NodeResourceTopology, Instant)>,
    /// Whether the object that was written last has no fingerprint that can match.
    is_withheld: bool,
}

impl PublishTask {
    pub(super) fn new(
        settings: &Settings,
        cluster: Cluster,
        newest: watch::Receiver<Option<Publishable>>,
        published: watch::Sender<Published>,
        live_object: watch::Sender<LiveObject>,
        metrics: Arc<Metrics>,
        events: EventRecorder,
    ) -> Self {
        let ownership = OwnershipState::new(settings.conflicts, cluster.form());
        Self {
            writer: ObjectWriter::new(settings.node.clone(), cluster, settings.owner_reference),
            ownership,
            newest,
            published,
            live_object,
            metrics,
            events,
            pending: None,
            retry: RetryTimer::default(),
            denials: StartupDenials::default(),
            refresh_interval: settings.refresh,
            refresh_at: Instant::now(),
            first: Some(WriteReason::First),
            watch: None,
            watch_error: LastLogged::default(),
            fingerprint: WithheldFingerprint {
                is_enabled: settings.gate.view == FingerprintView::Scheduler,
                unwritten: None,
                is_withheld: false,
            },
        }
    }

    /// Runs until the agent drops the sender of the newest state.
    pub(super) async fn run(mut self) {
        let mut newest = self.newest.clone();
        let ended = async move { while newest.changed().await.is_ok() {} };
        // A read may be dropped at once.
        tokio::select! {
            () = self.read_live_object() => {}
            () = ended => return,
        }
        while let Some(wake) = self.wait().await {
            match wake {
                Wake::Newest => {
                    self.pending.get_or_insert(self.first.unwrap_or(WriteReason::Change));
                    self.retry.shorten(Instant::now());
                }
                Wake::Withhold => self.withhold_until_first_write().await,
                Wake::Object(Ok(ObjectEvent::Applied(metadata))) => self.object_changed(*metadata).await,
                Wake::Object(Ok(ObjectEvent::Deleted(last))) => self.object_deleted(last.as_deref()),
                Wake::Object(Err(error)) => self.watch_failed(&error),
                Wake::Due if self.pending.is_none() => self.refresh().await,
                Wake::Due => {}
            }
            self.write_if_due().await;
        }
        self.withhold_at_the_end().await;
    }

    /// Withholds the fingerprint at shutdown: no agent will account for the pods that are bound from now on.
    /// The next one to start publishes a fingerprint again.
    async fn withhold_at_the_end(&mut self) {
        let newest = self.newest.borrow().clone();
        let written = match (newest, self.fingerprint.unwritten.take()) {
            (_, Some((object, _))) => self.writer.write_withheld(&object).await,
            (Some(newest), None) if self.has_matching_fingerprint() => {
                self.writer.write(&newest.withheld()).await
            }
            _ => return,
        };
        match written {
            Ok(()) => debug!("the fingerprint is withheld until the next agent starts"),
            Err(error) => debug!("{error}; the fingerprint is not withheld"),
        }
    }

    /// Returns true if the object is as we last wrote it, with a fingerprint that the plugin can match. The
    /// object of a competing publisher is left alone.
    fn has_matching_fingerprint(&self) -> bool {
        let is_up_to_date = |metadata| self.ownership.is_up_to_date(metadata);
        self.fingerprint.is_enabled
            && !self.fingerprint.is_withheld
            && self.writer.metadata.as_ref().is_some_and(is_up_to_date)
    }

    /// Withholds the fingerprint of the live object: this agent has not written yet, since it cannot read the
    /// node or its writes fail, and pods may have been bound that the object does not account for.
    async fn withhold_until_first_write(&mut self) {
        let Some((object, due)) = &mut self.fingerprint.unwritten else { return };
        match self.writer.write_withheld(object).await {
            Ok(()) => {
                self.fingerprint.unwritten = None;
                debug!("the fingerprint is withheld until this agent's first write");
            }
            Err(error) => {
                debug!("{error}; trying again");
                *due = Instant::now() + TRUSTED;
            }
        }
    }

    /// Reads the live object, retrying until it succeeds; also the Node, while the first scan runs.
    async fn read_live_object(&mut self) {
        loop {
            match self.writer.start().await {
                Ok(live_object) => {
                    self.recovered();
                    self.examine(&live_object);
                    // The fingerprint of another publisher's object is not withheld before it is taken over.
                    let is_ours = self.fingerprint.is_enabled && self.first == Some(WriteReason::First);
                    let object = live_object.object().filter(|_| is_ours).and_then(withheld);
                    self.fingerprint.unwritten = object.map(|object| (object, Instant::now() + TRUSTED));
                    self.live_object.send_replace(live_object);
                    return;
                }
                Err(error) => self.fail(&error),
            }
            sleep(self.retry.not_before.map_or(RETRY, |at| at.duration_since(Instant::now()))).await;
        }
    }

    async fn wait(&mut self) -> Option<Wake> {
        let is_idle = self.newest.borrow().is_none();
        let due = match self.pending {
            Some(_) => self.retry.not_before.unwrap_or(self.refresh_at),
            None => self.refresh_at,
        };
        let withhold_at = self.fingerprint.unwritten.as_ref().map(|(_, due)| *due);
        let event = async {
            match &mut self.watch {
                Some(watch) => watch.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = self.newest.changed() => changed.ok().map(|()| Wake::Newest),
            Some(event) = event => Some(Wake::Object(event)),
            () = sleep_until(due), if !is_idle => Some(Wake::Due),
            () = sleep_until(withhold_at.unwrap_or(due)), if withhold_at.is_some() => Some(Wake::Withhold),
        }
    }

    /// Writes the newest state if a write is pending and no backoff delays it.
    async fn write_if_due(&mut self) {
        let (Some(reason), now) = (self.pending, Instant::now()) else { return };
        if self.retry.not_before.is_some_and(|at| at > now) {
            return;
        }
        let Some(newest) = self.newest.borrow_and_update().clone() else { return };
        let is_withheld = newest.fingerprint.is_none_or(|fingerprint| fingerprint.is_withheld());
        // The write may succeed even if there is no response.
        self.fingerprint.is_withheld &= is_withheld;
        match self.writer.write(&newest).await {
            Ok(()) => {
                self.written(reason, now.elapsed());
                self.fingerprint.is_withheld = is_withheld;
                self.remove_leftovers().await;
            }
            Err(error) => self.fail(&error),
        }
    }

    fn written(&mut self, reason: WriteReason, took: Duration) {
        self.metrics.wrote(reason, took);
        (self.pending, self.first, self.fingerprint.unwritten) = (None, None, None);
        let refresh_at = Instant::now() + jittered(self.refresh_interval);
        let stale_owner_due = self.ownership.stale_owner_due(self.refresh_interval);
        self.refresh_at = stale_owner_due.map_or(refresh_at, |due| refresh_at.min(due));
        debug!("published version {} in {took:?} ({reason:?})", self.writer.version());
        self.recovered();
        self.watch.get_or_insert_with(|| self.writer.watch());
        self.published.send_modify(|published| published.writes += 1);
    }

    /// Records that a read or write of the object succeeded.
    pub(super) fn recovered(&mut self) {
        if self.retry.failures > 0 {
            info!("publishing works again");
            self.published.send_modify(|published| {
                (published.error, published.is_unreachable) = (None, false);
            });
        }
        self.retry = RetryTimer::default();
        self.denials.reset();
        self.ownership.rejected_since = None;
    }

    /// Counts, logs and reports an error of reading or writing the object, once per message in the log, and
    /// backs off. Not called if the write only withholds the fingerprint or removes what others left.
    pub(super) fn fail(&mut self, error: &ClusterError) {
        self.metrics.publish_errors.with([error.kind()]).inc();
        if self.pending.is_some() {
            self.metrics.health.write_pending();
        }
        let now = Instant::now();
        let message = error.to_string();
        if self.ownership.is_rejected_for_long(error, now) {
            self.events.post(Reason::PublishRejected, message.clone());
        }
        let is_known = self.published.borrow().error.as_ref() == Some(&message);
        if !is_known && !self.denials.include(error) {
            warn!("{message}");
            self.published.send_modify(|published| {
                (published.error, published.is_unreachable) = (Some(message), error.is_unreachable());
            });
        }
        self.retry.fail(error, now);
    }
}
