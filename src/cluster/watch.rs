//! A resumable watch on the API server, of the node's pods or of its object.
//!
//! A watch lasts for minutes. When it ends or breaks, the next one resumes at once from the last version
//! seen; the API server serves that from its watch cache. Relists (the API server no longer knows that
//! version) and rejected requests wait longer, with jitter: usually an API server restarted, and all agents
//! of the cluster lost their watches at the same moment.
//!
//! kube-runtime's `watcher` does not fit: it decodes JSON only, and whole pages of a list at a time; it may
//! relist to a state older than the last event; it neither reports that a watch works again nor detects a
//! silent connection before the watch's own timeout; and it ignores the delay that a busy API server
//! requests.

use std::time::Duration;

use http_body_util::BodyExt;
use kube::client::Body;
use kube::core::Status;
use tokio::time::{Instant, Sleep, timeout_at};
use tracing::debug;

use super::error::Failure;
use super::frames::FrameSplitter;
use super::protobuf::DecodeError;
use super::watch_timer::{WatchSpan, WatchTimer, random_watch_seconds};
use super::{Cluster, ClusterError};
use crate::util::error_chain::chain;

/// Minimum of the requested watch timeout, which is random up to twice this. At 5,000 nodes that is some 11
/// requests per second for each watched resource.
const MIN_WATCH_SECONDS: u32 = 300;
/// How long a watch may be silent. The API server sends a bookmark about once a minute, so that no load
/// balancer considers the connection idle. A watch that misses two in a row is dead, or what it watches no
/// longer exists, such as the objects of a CRD that was deleted and recreated.
pub(super) const SILENCE_TIMEOUT: Duration = Duration::from_secs(130);
/// After this many silent watches in a row, relist: after a restore of etcd our version may be in the future,
/// and the API server omits all changes up to it.
const MAX_SILENT_WATCHES: u32 = 2;
/// Timeout for a response: the API server itself gives up after a minute.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(65);
/// A reopened watch that has not failed after this counts as working.
const WORKS_AFTER: Duration = Duration::from_secs(1);

/// A resource that can be watched.
pub(super) trait WatchTarget: Send + 'static {
    type Event: Send;

    /// Returns the action for messages, such as `watch pods of the node`.
    fn what(&self) -> String;

    /// Returns the path with its selectors, the media type to accept, and the splitter for its frames.
    fn request(&self) -> (String, &'static str, FrameSplitter);

    /// Decodes a frame.
    fn decode(&self, frame: &[u8]) -> Result<Frame<Self::Event>, DecodeError>;
}

pub(super) enum Frame<E> {
    Event(E, String),
    Bookmark(String),
    Error(Box<Status>),
}

pub(super) enum WatchItem<E> {
    Event(E),
    /// The watch works again, without an event.
    Resumed,
}

/// Why a watch was interrupted.
pub(super) enum Interruption {
    /// A failure; the watch resumes by itself.
    Failed(ClusterError),
    /// The caller must relist, with the error if there is one to report.
    MustRelist(Option<ClusterError>),
}

/// A watch that is reopened whenever it ends.
pub(super) struct Watch<T> {
    pub(super) cluster: Cluster,
    pub(super) target: T,
    /// The resource version to resume from, of the last event or of the list; empty if neither had one.
    pub(super) version: String,
    open: Option<OpenWatch>,
    /// It failed and has received nothing since.
    is_broken: bool,
    /// Silent watches in a row.
    silent_watches: u32,
    timer: WatchTimer,
}

struct OpenWatch {
    body: Body,
    splitter: FrameSplitter,
    span: WatchSpan,
    last_frame_at: Instant,
}

impl<T: WatchTarget> Watch<T> {
    pub(super) fn new(cluster: Cluster, target: T, version: String) -> Self {
        let timer = WatchTimer::new(Instant::now());
        Self { cluster, target, version, open: None, is_broken: false, silent_watches: 0, timer }
    }

    /// Waits until the next request may be sent.
    pub(super) fn wait(&self) -> Sleep {
        self.timer.wait()
    }

    /// Sets the version to resume from, after a successful list.
    pub(super) fn resume_from(&mut self, version: String) {
        self.version = version;
        self.recover();
    }

    /// Closes the watch and backs off, after a failed request or an unreadable event.
    pub(super) fn fail(&mut self, error: Option<&ClusterError>) {
        self.open = None;
        self.is_broken = true;
        self.timer.fail(error);
    }

    /// Returns the next item. May be called again after an error; it then waits for the backoff.
    pub(super) async fn next(&mut self) -> Result<WatchItem<T::Event>, Interruption> {
        loop {
            self.wait().await;
            if self.open.is_none() {
                self.open().await?;
            } else if let Some(item) = self.receive().await? {
                return Ok(item);
            }
        }
    }

    async fn open(&mut self) -> Result<(), Interruption> {
        let (path, accept, splitter) = self.target.request();
        let seconds = random_watch_seconds(MIN_WATCH_SECONDS);
        let path = format!(
            "{path}&watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={}",
            self.version
        );
        let call = self.cluster.get_as(path, accept);
        let body = self.cluster.within(RESPONSE_TIMEOUT, &self.target.what(), call).await;
        let body = match body {
            Ok(body) => body,
            Err(failure) => {
                let error = self.explain(failure);
                let passes = self.timer.passes(&error);
                let interruption = self.interrupted(error);
                return if passes { Ok(()) } else { Err(interruption) };
            }
        };
        let span = WatchSpan::new(seconds);
        self.open = Some(OpenWatch { body, splitter, last_frame_at: span.since, span });
        Ok(())
    }

    async fn receive(&mut self) -> Result<Option<WatchItem<T::Event>>, Interruption> {
        let Some(open) = &mut self.open else { return Ok(None) };
        match open.splitter.take() {
            Ok(Some(frame)) => {
                (open.span.has_frames, open.last_frame_at, self.silent_watches) = (true, Instant::now(), 0);
                let frame = self.target.decode(frame);
                return frame.map_err(|error| self.unreadable(&error)).and_then(|frame| self.apply(frame));
            }
            Ok(None) => {}
            Err(error) => return Err(self.unreadable(&error)),
        }
        let silent_at = open.last_frame_at + SILENCE_TIMEOUT;
        // A reopened watch is silent until something changes. That the API server accepted it and has not
        // failed since is proof enough; another request would cost the API server more.
        let limit = if self.is_broken { silent_at.min(open.span.since + WORKS_AFTER) } else { silent_at };
        match timeout_at(limit, open.body.frame()).await {
            Ok(Some(Ok(frame))) => {
                if let Ok(piece) = frame.into_data() {
                    open.splitter.push(&piece);
                }
                Ok(None)
            }
            Ok(Some(Err(error))) => self.ended(Some(&error)).map(|()| None),
            Ok(None) => self.ended(None).map(|()| None),
            Err(_) if limit == silent_at => self.silent().map(|()| None),
            Err(_) => {
                self.recover();
                Ok(Some(WatchItem::Resumed))
            }
        }
    }

    fn apply(&mut self, frame: Frame<T::Event>) -> Result<Option<WatchItem<T::Event>>, Interruption> {
        match frame {
            Frame::Event(event, version) => {
                self.version = version;
                self.recover();
                Ok(Some(WatchItem::Event(event)))
            }
            Frame::Bookmark(version) => {
                self.version = version;
                let was_broken = self.is_broken;
                self.recover();
                Ok(was_broken.then_some(WatchItem::Resumed))
            }
            Frame::Error(status) => Err(self.interrupted(self.explain(Failure::Status(status)))),
        }
    }

    fn explain(&self, failure: Failure) -> ClusterError {
        self.cluster.explain_at(&self.target.request().0, failure, &self.target.what())
    }

    fn recover(&mut self) {
        self.is_broken = false;
        self.timer.recover();
    }

    /// Handles the end of a watch, regular or not: the next one resumes after the last event.
    fn ended(&mut self, error: Option<&kube::Error>) -> Result<(), Interruption> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let lasted = open.span.since.elapsed();
        let reason = error.map_or_else(|| "the API server ended it".to_owned(), |error| chain(error));
        debug!("{} ended after {lasted:.1?}: {reason}", self.target.what());
        if self.timer.ended(&open.span, error.is_some()) {
            return Ok(());
        }
        let reason = format!("the watch lasted {lasted:.1?} only: {reason}");
        Err(self.interrupted(ClusterError::Unreachable { server: self.cluster.server.clone(), reason }))
    }

    /// Handles a watch that is silent, without even a bookmark.
    fn silent(&mut self) -> Result<(), Interruption> {
        debug!("{}: nothing was received for {SILENCE_TIMEOUT:?}", self.target.what());
        self.open = None;
        self.timer.reconnect_soon();
        self.silent_watches += 1;
        if self.silent_watches < MAX_SILENT_WATCHES {
            return Ok(());
        }
        self.silent_watches = 0;
        Err(Interruption::MustRelist(None))
    }

    /// Backs off after a rejected watch, and decides whether it can still resume.
    fn interrupted(&mut self, error: ClusterError) -> Interruption {
        self.fail(Some(&error));
        match requires_relist(&error) {
            true => Interruption::MustRelist(Some(error)),
            false => Interruption::Failed(error),
        }
    }

    /// Backs off after an unexpected frame; the caller must relist.
    fn unreadable(&mut self, error: &DecodeError) -> Interruption {
        self.fail(None);
        let error = self.cluster.not_understood(&self.target.what(), error.to_string());
        Interruption::MustRelist(Some(error))
    }
}

/// Returns true if a client must relist instead of watching from this version: it has expired, is invalid, or
/// is newer than any that the API server knows.
pub(super) fn requires_relist(error: &ClusterError) -> bool {
    matches!(error, ClusterError::Rejected { code: 400 | 410, .. }) || is_version_too_large(error)
}

/// Returns true if the version is newer than any that this API server knows. A load balancer's 504 does not
/// count.
pub(super) fn is_version_too_large(error: &ClusterError) -> bool {
    let is_too_large = |message: &str| message.contains("Too large resource version");
    matches!(error, ClusterError::Rejected { code: 504, message, .. } if is_too_large(message))
}
