//! Publishes the newest topology to the API server.
//!
//! It runs in a task of its own: scans continue while the API server is slow or unavailable, and afterwards
//! only the newest topology is written, never a queue of old ones. The task starts by reading the live
//! object.

mod care;
mod drift;
mod rivals;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, info, warn};

use super::Settings;
use super::notices::{Notices, Reason};
use super::object::held;
use super::standing::Standing;
use crate::cluster::{Cluster, ClusterError, Follow, Glimpse};
use crate::nrt::NodeResourceTopology;
use crate::scheduler::View;
use crate::telemetry::metrics::{Metrics, WriteReason};
use crate::topology::{Fingerprint, PodSet, Topology};
use crate::util::backoff::{jittered, random_back_off};

pub use rivals::ConflictPolicy;
pub(super) use writer::Writer;

use care::Care;

/// Initial backoff after a failed write.
const RETRY: Duration = Duration::from_millis(200);
/// Maximum backoff after a failed write.
const RETRY_LIMIT: Duration = Duration::from_secs(10);
/// How long a write in flight may take at shutdown.
const FAREWELL: Duration = Duration::from_secs(2);

/// How long the live object is trusted at startup while the node cannot be read.
const UNREAD: Duration = Duration::from_millis(500);

/// What the publisher has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// The number of successful writes.
    pub writes: u64,
    /// The object's resource version after the last one.
    pub resource_version: String,
    /// How long the last one took.
    pub took: Duration,
    /// The last error, until a write succeeds.
    pub trouble: Option<String>,
    /// The field managers that keep rewriting the object.
    pub rival: Option<String>,
}

/// Handle to the publishing task.
#[derive(Debug)]
pub(super) struct Publisher {
    newest: Option<watch::Sender<Option<Topology>>>,
    published: watch::Receiver<Published>,
    standing: watch::Receiver<Standing>,
    task: JoinHandle<()>,
}

impl Publisher {
    /// Starts the task, with nothing to write yet.
    pub(super) fn start(
        settings: &Settings,
        cluster: Cluster,
        metrics: Arc<Metrics>,
        notices: Notices,
    ) -> Self {
        let (newest, offers) = watch::channel(None);
        let (report, published) = watch::channel(Published::default());
        let (stood, standing) = watch::channel(Standing::Unknown);
        let form = cluster.form();
        let task = Task {
            node: settings.node.clone(),
            writer: Writer::new(settings.node.clone(), cluster.clone(), settings.owner_reference),
            cluster,
            refresh: settings.refresh,
            watches: settings.watch_object,
            follow: None,
            offers,
            report,
            stood,
            metrics,
            notices,
            pending: None,
            pace: Pace::default(),
            refresh_at: Instant::now(),
            first: Some(WriteReason::First),
            care: Care::new(settings.conflicts, form),
            holds: settings.terms.view == View::Scheduler,
            unread: None,
            held: false,
        };
        Self { newest: Some(newest), published, standing, task: tokio::spawn(task.run()) }
    }

    /// Makes `topology` the newest; an older one that is still waiting is dropped.
    pub(super) fn offer(&self, topology: Topology) {
        if let Some(newest) = &self.newest {
            newest.send_replace(Some(topology));
        }
    }

    /// Returns true while the API server rejects our calls or does not respond.
    pub(super) fn is_failing(&self) -> bool {
        self.published.borrow().trouble.is_some()
    }

    pub(super) fn published(&self) -> watch::Receiver<Published> {
        self.published.clone()
    }

    /// Returns the live object before this agent's first write. It is known soon after the API server
    /// responds.
    pub(super) fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.clone()
    }

    /// Stops the task. A write in flight is given a moment to end.
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
    /// Whether the server requested the delay.
    asked: bool,
    not_before: Option<Instant>,
}

impl Pace {
    fn failed(&mut self, error: &ClusterError, now: Instant) {
        // After an outage all agents of the cluster have something to write.
        let own = random_back_off(&mut self.failures, RETRY / 2, RETRY, RETRY_LIMIT);
        let asked = error.retry_after().map(|wait| wait.min(RETRY_LIMIT));
        self.asked = asked.is_some();
        self.not_before = Some(now + asked.unwrap_or_default() + own);
    }

    /// Shortens a long backoff because there is something new. A flood of changes must not become a flood of
    /// attempts.
    fn hurry(&mut self, now: Instant) {
        if !self.asked {
            self.not_before = self.not_before.map(|at| at.min(now + RETRY));
        }
    }
}

/// Why the task stopped waiting.
enum Wake {
    /// There is a newer topology.
    Offer,
    /// The pending attempt is due, or a refresh.
    Due,
    /// There is no topology yet, and the live object should not be trusted any longer.
    Unread,
    /// An event of the watch on the object, or its error.
    News(Result<Glimpse, ClusterError>),
}

struct Task {
    node: String,
    cluster: Cluster,
    writer: Writer,
    refresh: Duration,
    watches: bool,
    /// The watch on the object, from the first write on.
    follow: Option<Follow>,
    offers: watch::Receiver<Option<Topology>>,
    report: watch::Sender<Published>,
    stood: watch::Sender<Standing>,
    metrics: Arc<Metrics>,
    notices: Notices,
    /// Why the object has to be written, until it is.
    pending: Option<WriteReason>,
    pace: Pace,
    refresh_at: Instant,
    /// The reason for the first write of this process, until it is done.
    first: Option<WriteReason>,
    care: Care,
    /// Whether the object is held while no agent can account for the pods: in the scheduler's view only.
    holds: bool,
    /// The live object, held; and when to write it unless there is a topology by then.
    unread: Option<(NodeResourceTopology, Instant)>,
    /// Whether the object that was written last is held.
    held: bool,
}

impl Task {
    /// Runs until the agent drops the sender of the offers.
    async fn run(mut self) {
        let mut offers = self.offers.clone();
        let ended = async move { while offers.changed().await.is_ok() {} };
        // A read may be dropped at once.
        tokio::select! {
            () = self.learn() => {}
            () = ended => return,
        }
        while let Some(wake) = self.wait().await {
            match wake {
                Wake::Offer => self.take_offer(),
                Wake::Unread => self.hold_what_stands().await,
                Wake::News(Ok(Glimpse::Is(metadata))) => self.look(*metadata).await,
                Wake::News(Ok(Glimpse::Gone(was))) => self.gone(was.as_deref()),
                Wake::News(Err(error)) => self.cannot_watch(&error),
                Wake::Due if self.pending.is_none() => self.look_again().await,
                Wake::Due => {}
            }
            self.write_what_is_pending().await;
        }
        self.hold_at_the_end().await;
    }

    /// Holds the object at shutdown: no agent will account for the pods that are bound from now on. The next
    /// one to start publishes a fingerprint again.
    async fn hold_at_the_end(&mut self) {
        let newest = self.offers.borrow().clone();
        let held = match (newest, self.unread.take()) {
            (_, Some((object, _))) => self.writer.hold(&object).await,
            (Some(mut newest), None) if self.agrees() => {
                newest.pods = newest.pods.map(|pods| PodSet { fingerprint: Fingerprint::HELD, ..pods });
                self.writer.write(&newest).await
            }
            _ => return,
        };
        match held {
            Ok(()) => debug!("held for whoever starts next"),
            Err(error) => debug!("{error}; not held"),
        }
    }

    /// Returns true if the object is as we last wrote it, with a fingerprint that the plugin can match. The
    /// object of a rival is not held.
    fn agrees(&self) -> bool {
        self.holds && !self.held && self.writer.own().is_some_and(|own| self.care.agrees_with(own))
    }

    /// Holds the live object: the node has been unreadable since this agent started, and pods may have been
    /// bound that the object does not account for. Only its fingerprint changes.
    async fn hold_what_stands(&mut self) {
        let Some((object, due)) = &mut self.unread else { return };
        match self.writer.hold(object).await {
            Ok(()) => self.unread = None,
            Err(error) => {
                debug!("{error}; trying again");
                *due = Instant::now() + UNREAD;
            }
        }
    }

    /// Reads the live object, retrying until it succeeds; also the Node, while the first scan runs.
    async fn learn(&mut self) {
        loop {
            match self.writer.start().await {
                Ok(standing) => {
                    self.recovered();
                    self.consider(&standing);
                    // An object of another publisher is not held before it is taken over.
                    let object =
                        standing.object().filter(|_| self.holds && self.first == Some(WriteReason::First));
                    self.unread = object.and_then(held).map(|object| (object, Instant::now() + UNREAD));
                    self.stood.send_replace(standing);
                    return;
                }
                Err(error) => self.fail(&error),
            }
            sleep(self.pace.not_before.map_or(RETRY, |at| at.duration_since(Instant::now()))).await;
        }
    }

    /// Waits for something to do; `None` when the agent ends.
    async fn wait(&mut self) -> Option<Wake> {
        let idle = self.offers.borrow().is_none();
        let due = match self.pending {
            Some(_) => self.pace.not_before.unwrap_or(self.refresh_at),
            None => self.refresh_at,
        };
        let unread = self.unread.as_ref().map(|(_, due)| *due);
        let news = async {
            match &mut self.follow {
                Some(follow) => follow.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = self.offers.changed() => changed.ok().map(|()| Wake::Offer),
            news = news => Some(Wake::News(news)),
            () = sleep_until(due), if !idle => Some(Wake::Due),
            () = sleep_until(unread.unwrap_or(due)), if unread.is_some() => Some(Wake::Unread),
        }
    }

    fn take_offer(&mut self) {
        let reason = self.first.unwrap_or(WriteReason::Change);
        self.pending.get_or_insert(reason);
        self.pace.hurry(Instant::now());
    }

    async fn write_what_is_pending(&mut self) {
        let (Some(reason), now) = (self.pending, Instant::now()) else { return };
        if self.pace.not_before.is_some_and(|at| at > now) {
            return;
        }
        let Some(newest) = self.offers.borrow_and_update().clone() else { return };
        // The write may succeed even if there is no response.
        self.held &= newest.pods.is_none_or(|pods| pods.is_held());
        match self.writer.write(&newest).await {
            Ok(()) => {
                self.written(reason, now.elapsed());
                self.held = newest.pods.is_none_or(|pods| pods.is_held());
                self.clean().await;
            }
            Err(error) => self.fail(&error),
        }
    }

    fn written(&mut self, reason: WriteReason, took: Duration) {
        self.metrics.wrote(reason, took);
        (self.pending, self.first, self.unread) = (None, None, None);
        let refresh_at = Instant::now() + jittered(self.refresh);
        self.refresh_at = self.care.stale_due(self.refresh).map_or(refresh_at, |due| refresh_at.min(due));
        let version = self.writer.version().to_owned();
        debug!("published version {version} in {took:?} ({reason:?})");
        self.recovered();
        if self.watches && self.follow.is_none() {
            self.follow = Some(self.cluster.follow_topology(&self.node, &version));
        }
        self.report.send_modify(|report| {
            report.writes += 1;
            report.resource_version = version;
            report.took = took;
        });
    }

    /// Records that the API server responds and accepts our writes.
    fn recovered(&mut self) {
        if self.pace.failures > 0 {
            info!("publishing works again");
            self.report.send_modify(|report| report.trouble = None);
        }
        self.pace = Pace::default();
        self.care.refused_since = None;
    }

    /// Logs an error, once per message, and backs off.
    fn fail(&mut self, error: &ClusterError) {
        self.metrics.write_failed(error.kind());
        if self.pending.is_some() {
            self.metrics.health().waiting();
        }
        let sentence = error.to_string();
        if self.care.is_refused_for_long(error, Instant::now()) {
            self.notices.post(Reason::PublishRefused, sentence.clone());
        }
        let known = self.report.borrow().trouble.as_ref() == Some(&sentence);
        if !known {
            warn!("{sentence}");
            self.report.send_modify(|report| report.trouble = Some(sentence));
        }
        self.pace.failed(error, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nrt::Form;

    fn refused(code: u16, retry_after: Option<u64>) -> ClusterError {
        let retry_after = retry_after.map(Duration::from_secs);
        ClusterError::Refused { what: "x".into(), code, message: "no".into(), retry_after }
    }

    #[test]
    fn the_server_may_ask_for_a_longer_wait_but_not_for_any() {
        let now = Instant::now();
        let wait = |error: &ClusterError| {
            let mut pace = Pace::default();
            pace.failed(error, now);
            pace.hurry(now);
            pace.not_before.unwrap() - now
        };
        assert!(wait(&refused(500, None)) <= RETRY);
        let asked = wait(&refused(429, Some(4))).as_secs_f64();
        assert!((4.0..4.5).contains(&asked), "a change does not cut it short: {asked}");
        assert!(wait(&refused(503, Some(3600))) <= RETRY_LIMIT + 2 * RETRY);
    }

    #[test]
    fn a_change_cuts_a_long_wait_short() {
        let now = Instant::now();
        let mut pace = Pace::default();
        while pace.not_before.is_none_or(|at| at < now + Duration::from_secs(5)) {
            pace.failed(&refused(500, None), now);
        }
        pace.hurry(now);
        assert_eq!(pace.not_before, Some(now + RETRY));
    }

    #[test]
    fn only_a_refusal_that_lasts_needs_an_operator() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut care = Care::new(ConflictPolicy::Report, Form::default());
        let forbidden = ClusterError::Forbidden("no".into());
        assert!(!care.is_refused_for_long(&forbidden, start));
        assert!(!care.is_refused_for_long(&forbidden, after(59)));
        assert!(care.is_refused_for_long(&refused(422, None), after(60)));
        assert!(!care.is_refused_for_long(&refused(503, None), after(61)), "the server is in trouble itself");
        assert!(!care.is_refused_for_long(&forbidden, after(62)), "from the beginning");
    }
}
