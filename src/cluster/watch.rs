//! A resumable watch on the API server, of the node's pods or of its object.
//!
//! A watch lasts for minutes. When it ends or breaks, the next one resumes at once from the last version
//! seen; the API server serves that from its watch cache. Relists (the API server no longer knows that
//! version) and refused requests wait longer, with jitter ([`Pace`]): usually an API server restarted, and
//! all agents of the cluster lost their watches at the same moment.

use std::time::Duration;

use http_body_util::BodyExt;
use kube::client::Body;
use kube::core::Status;
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::debug;

use super::pods::{Frames, Odd};
use super::{Cluster, ClusterError, Failure, chain};
use crate::util::backoff::{random_back_off, random_delay};

/// Minimum of the requested watch timeout, which is random up to twice this, as in Kubernetes' own clients.
/// At 5,000 nodes that is some 11 requests per second.
const SECONDS: u32 = 300;
/// How long a watch may be silent. The API server sends a bookmark about once a minute, so that no load
/// balancer considers the connection idle. A watch that misses two in a row is dead, or what it watches no
/// longer exists, such as the objects of a CRD that was deleted and recreated.
const SILENCE: Duration = Duration::from_secs(130);
/// After this many silent watches in a row, relist: after a restore of etcd our version may be in the future,
/// and the API server omits all changes up to it.
const SILENT: u32 = 2;
/// Timeout for a response: the API server itself gives up after a minute.
pub(super) const ANSWER: Duration = Duration::from_secs(65);
/// A reopened watch that has not failed after this counts as working.
const QUIET: Duration = Duration::from_secs(1);
/// A watch that lasts less than this counts as failed: resuming at once would mean reconnecting again and
/// again.
const SHORT: Duration = Duration::from_secs(10);

/// Upper bound of the random delay before the next watch, after one that worked.
const RECONNECT: Duration = Duration::from_secs(1);
/// Minimum delay after a failure.
const LEAST: Duration = Duration::from_millis(500);
/// Width of the random delay on top of it.
const WINDOW: Duration = Duration::from_secs(10);
/// Maximum width after many failures.
const WINDOW_LIMIT: Duration = Duration::from_secs(30);
/// The longest retry delay that the API server may ask for.
pub(super) const ASKED_LIMIT: Duration = Duration::from_secs(300);

/// The earliest time of the next request.
#[derive(Debug)]
pub(super) struct Pace {
    failures: u32,
    not_before: Instant,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { failures: 0, not_before: Instant::now() }
    }

    pub(super) async fn wait(&self) {
        sleep_until(self.not_before).await;
    }

    /// Called when a working watch has ended. An agent cannot know whether it alone lost its watch: if all
    /// did, the API server that went away refuses this attempt, and the ones after it are spread.
    fn ended(&mut self) {
        self.not_before = Instant::now() + random_delay(RECONNECT);
    }

    /// Called when the API server refused a request, with the delay that it asks for, or cannot be reached:
    /// other clients likely fail too.
    pub(super) fn failed(&mut self, asked: Option<Duration>) {
        let least = asked.unwrap_or_default().clamp(LEAST, ASKED_LIMIT);
        self.not_before = Instant::now() + random_back_off(&mut self.failures, least, WINDOW, WINDOW_LIMIT);
    }

    pub(super) fn worked(&mut self) {
        self.failures = 0;
    }
}

/// A resource that can be watched.
pub(super) trait Watched: Send + 'static {
    /// The watch's event.
    type Event: Send;

    /// Returns the action for messages, such as `watch pods of the node`.
    fn what(&self) -> String;

    /// Returns the path with its selectors, and the media type to accept.
    fn request(&self) -> (String, &'static str);

    /// Returns the splitter for its frames.
    fn frames(&self) -> Frames;

    /// Decodes a frame.
    ///
    /// # Errors
    /// The frame does not belong to this watch.
    fn read(&self, frame: &[u8]) -> Result<Told<Self::Event>, Odd>;

    /// Maps a failed request.
    fn explain(&self, _cluster: &Cluster, failure: Failure) -> ClusterError {
        failure.explain(&self.what())
    }
}

/// A decoded frame.
pub(super) enum Told<E> {
    /// An event and its version.
    Event(E, String),
    /// A bookmark with its version.
    Until(String),
    /// An error event.
    Failed(Box<Status>),
}

/// An item of a watch.
pub(super) enum Heard<E> {
    /// An event.
    Event(E),
    /// The watch works again, without an event.
    Again,
}

/// Why a watch was interrupted.
pub(super) enum Lost {
    /// A failure; the watch resumes by itself.
    Failed(ClusterError),
    /// The caller must relist, with the reason if there is one to report.
    Stale(Option<ClusterError>),
}

/// A watch that is reopened whenever it ends.
pub(super) struct Watch<W> {
    pub(super) cluster: Cluster,
    pub(super) pace: Pace,
    watched: W,
    /// The version to resume from.
    version: String,
    open: Option<Open>,
    /// It failed and has received nothing since.
    broken: bool,
    /// Silent watches in a row.
    silent: u32,
}

/// An open watch.
struct Open {
    body: Body,
    frames: Frames,
    since: Instant,
    /// The requested watch timeout.
    asked: Duration,
    /// When the last frame arrived.
    heard: Instant,
    told: bool,
}

impl<W: Watched> Watch<W> {
    pub(super) fn new(cluster: Cluster, watched: W, version: String) -> Self {
        Self { cluster, pace: Pace::new(), watched, version, open: None, broken: false, silent: 0 }
    }

    /// Returns the version to resume from: that of the last event or of the list; empty if there is none.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Sets the version to resume from, after a successful list.
    pub(super) fn go_on_from(&mut self, version: String) {
        self.version = version;
        self.broken = false;
        self.pace.worked();
    }

    /// Closes the watch and backs off, after a failed request or an unreadable event.
    pub(super) fn fail(&mut self, error: Option<&ClusterError>) {
        self.open = None;
        self.broken = true;
        self.pace.failed(error.and_then(ClusterError::retry_after));
    }

    /// Returns the next item. May be called again after an error; it then waits for the backoff.
    ///
    /// # Errors
    /// The watch was interrupted.
    pub(super) async fn next(&mut self) -> Result<Heard<W::Event>, Lost> {
        loop {
            self.pace.wait().await;
            let news = match &mut self.open {
                None => self.begin().await.map(|()| None)?,
                Some(_) => self.hear().await?,
            };
            if let Some(news) = news {
                return Ok(news);
            }
        }
    }

    async fn begin(&mut self) -> Result<(), Lost> {
        let (path, form) = self.watched.request();
        let seconds = fastrand::u32(SECONDS..2 * SECONDS);
        let request = hyper::Request::get(format!(
            "{path}&watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={}",
            self.version
        ));
        let call = async {
            let request = request.body(Vec::new()).map_err(kube::Error::HttpError)?;
            self.cluster.ask(request, form).await
        };
        match self.cluster.within(ANSWER, &self.watched.what(), call).await {
            Ok(body) => {
                let (frames, now) = (self.watched.frames(), Instant::now());
                let asked = Duration::from_secs(seconds.into());
                self.open = Some(Open { body, frames, since: now, asked, heard: now, told: false });
                Ok(())
            }
            Err(failure) => Err(self.lose(self.watched.explain(&self.cluster, failure))),
        }
    }

    async fn hear(&mut self) -> Result<Option<Heard<W::Event>>, Lost> {
        let Some(open) = &mut self.open else { return Ok(None) };
        match open.frames.take() {
            Ok(Some(frame)) => {
                (open.told, open.heard, self.silent) = (true, Instant::now(), 0);
                let told = self.watched.read(frame);
                return told.map_err(|odd| self.odd(&odd)).and_then(|told| self.take(told));
            }
            Ok(None) => {}
            Err(odd) => return Err(self.odd(&odd)),
        }
        let silence = open.heard + SILENCE;
        // A reopened watch is silent until something changes. That the API server accepted it and has not
        // failed since is proof enough; another request would cost the API server more.
        let limit = if self.broken { silence.min(open.since + QUIET) } else { silence };
        match timeout_at(limit, open.body.frame()).await {
            Ok(Some(Ok(frame))) => {
                if let Ok(piece) = frame.into_data() {
                    open.frames.put(&piece);
                }
                Ok(None)
            }
            Ok(Some(Err(error))) => self.end(Some(&error)).map(|()| None),
            Ok(None) => self.end(None).map(|()| None),
            Err(_) if limit == silence => self.give_up().map(|()| None),
            Err(_) => {
                self.worked();
                Ok(Some(Heard::Again))
            }
        }
    }

    fn take(&mut self, told: Told<W::Event>) -> Result<Option<Heard<W::Event>>, Lost> {
        match told {
            Told::Event(event, version) => {
                self.version = version;
                self.worked();
                Ok(Some(Heard::Event(event)))
            }
            Told::Until(version) => {
                self.version = version;
                let again = std::mem::take(&mut self.broken);
                self.pace.worked();
                Ok(again.then_some(Heard::Again))
            }
            Told::Failed(status) => {
                let error = self.watched.explain(&self.cluster, Failure::Status(status));
                Err(self.lose(error))
            }
        }
    }

    fn worked(&mut self) {
        self.broken = false;
        self.pace.worked();
    }

    /// Handles the end of a watch, regular or not: the next one resumes after the last event.
    fn end(&mut self, error: Option<&kube::Error>) -> Result<(), Lost> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let lasted = open.since.elapsed();
        let reason = error.map_or_else(|| "the API server ended it".to_owned(), |error| chain(error));
        debug!("{} ended after {lasted:.1?}: {reason}", self.watched.what());
        if lasted >= SHORT || (open.told && error.is_none()) {
            // The watch timeout is random already, so the next one begins at once.
            if error.is_some() || lasted + RECONNECT < open.asked {
                self.pace.ended();
            }
            return Ok(());
        }
        let reason = format!("the watch lasted {lasted:.1?} only: {reason}");
        Err(self.lose(ClusterError::Unreachable { server: self.cluster.server.clone(), reason }))
    }

    /// Handles a watch that is silent, without even a bookmark.
    fn give_up(&mut self) -> Result<(), Lost> {
        debug!("{}: nothing was heard for {SILENCE:?}", self.watched.what());
        self.open = None;
        self.pace.ended();
        self.silent += 1;
        if self.silent < SILENT {
            return Ok(());
        }
        self.silent = 0;
        Err(Lost::Stale(None))
    }

    /// Backs off after a refused watch, and decides whether it can still resume.
    fn lose(&mut self, error: ClusterError) -> Lost {
        self.fail(Some(&error));
        match is_useless(&error) {
            true => Lost::Stale(Some(error)),
            false => Lost::Failed(error),
        }
    }

    /// Backs off after an unexpected frame; the caller must relist.
    fn odd(&mut self, odd: &Odd) -> Lost {
        self.fail(None);
        Lost::Stale(Some(self.cluster.not_understood(&self.watched.what(), odd.to_string())))
    }
}

/// Returns true if a client must relist instead of watching from this version: it has expired, is invalid, or
/// is newer than any that the API server knows.
pub(super) fn is_useless(error: &ClusterError) -> bool {
    matches!(error, ClusterError::Refused { code: 400 | 410, .. }) || is_ahead(error)
}

/// Returns true if the version is newer than any that this API server knows. A load balancer's 504 does not
/// count.
pub(super) fn is_ahead(error: &ClusterError) -> bool {
    matches!(error, ClusterError::Refused { code: 504, message, .. } if message.contains("Too large resource version"))
}
