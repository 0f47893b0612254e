//! Lists and watches many objects, decoding only what is needed.
//!
//! The list is not paged: it is decoded item by item while it arrives, without items that are too large. A
//! watch that ends or breaks resumes after the last event; if that is impossible, the objects are relisted.
//! Timeouts and delays are random, as every agent watches its node's ResourceSlices this way.
//!
//! kube-runtime's `watcher`, which is used for Nodes, does not fit: it holds a whole page, and fails if one
//! object in it is too large or cannot be decoded. Anyone who may create a pod could stop it.

use std::time::Duration;

use futures::stream::{BoxStream, unfold};
use futures::{StreamExt, TryStreamExt};
use http_body_util::BodyExt;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::client::Body;
use kube::core::Request;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout};

use super::watch::{RESPONSE_TIMEOUT, SILENCE_TIMEOUT, requires_relist};
use super::watch_timer::{WatchSpan, WatchTimer, random_watch_seconds};
use super::{Cluster, ClusterError};
use crate::json_list::{List, ListSplitter, log_omitted};
use crate::util::log_throttle::LastLogged;

/// Minimum of the requested watch timeout, which is random up to twice this. It is shorter than that of
/// [`super::watch`], since an API server sends no bookmarks for a resource of which it has seen no change since
/// its start, such as ResourceSlices, and load balancers drop connections that are silent for four minutes. At
/// 5,000 nodes that is some 28 requests per second.
const MIN_WATCH_SECONDS: u32 = 120;
/// Without bookmarks, a connection still silent this long after the watch should have ended is dead. With them
/// it is after [`SILENCE_TIMEOUT`].
const GRACE: Duration = Duration::from_secs(15);

/// The decoded part of an object.
pub(super) trait PartialObject: DeserializeOwned + Clone + Send + 'static {
    fn version(&self) -> &str;
}

/// An event about the watched objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListWatchEvent<T> {
    /// A complete list: at the start, and after events may have been missed.
    Listed(Vec<T>),
    /// An object was added or changed.
    Applied(T),
    /// An object was deleted.
    Deleted(T),
}

/// An endless stream; it continues by itself after an error and a backoff.
pub type ListWatchStream<T> = BoxStream<'static, Result<ListWatchEvent<T>, ClusterError>>;

/// The listed and watched resource.
pub(super) struct ListWatchParams<T> {
    /// The resource for messages, which put `list` or `watch` before it.
    pub(super) what: &'static str,
    pub(super) path: String,
    pub(super) list: ListParams,
    pub(super) watch: WatchParams,
    /// Request only the metadata of each object.
    pub(super) metadata: bool,
    /// Whether a list keeps an object.
    pub(super) keep: fn(&T) -> bool,
}

type Events<T> = BoxStream<'static, kube::Result<WatchEvent<T>>>;

struct OpenWatch<T> {
    events: Events<T>,
    span: WatchSpan,
}

struct ListWatch<T> {
    cluster: Cluster,
    params: ListWatchParams<T>,
    /// The version of the last event. `None` if events may have been missed: a relist is needed.
    version: Option<String>,
    open: Option<OpenWatch<T>>,
    timer: WatchTimer,
    /// Whether a bookmark was received since a watch was last silent for too long.
    sends_bookmarks: bool,
    /// Whether objects that the last list omitted were logged.
    omitted: LastLogged,
}

impl Cluster {
    /// Lists and watches, starting at `not_before`.
    pub(super) fn list_watch<T: PartialObject>(
        &self,
        params: ListWatchParams<T>,
        not_before: Instant,
    ) -> ListWatchStream<T> {
        let list_watch = ListWatch {
            cluster: self.clone(),
            params,
            version: None,
            open: None,
            timer: WatchTimer::new(not_before),
            sends_bookmarks: false,
            omitted: LastLogged::default(),
        };
        unfold(list_watch, |mut list_watch| async { Some((list_watch.next().await, list_watch)) }).boxed()
    }
}

impl<T: PartialObject> ListWatch<T> {
    async fn next(&mut self) -> Result<ListWatchEvent<T>, ClusterError> {
        loop {
            self.timer.wait().await;
            let Some(open) = &mut self.open else {
                match self.start().await {
                    Ok(Some(listed)) => return Ok(ListWatchEvent::Listed(listed)),
                    Ok(None) => continue,
                    Err(error) => {
                        if requires_relist(&error) {
                            self.version = None;
                        }
                        self.timer.fail(Some(&error));
                        return Err(error);
                    }
                }
            };
            let limit = match self.sends_bookmarks {
                true => SILENCE_TIMEOUT,
                false => open.span.requested + GRACE,
            };
            match timeout(limit, open.events.try_next()).await {
                Ok(Ok(Some(event))) => {
                    open.span.has_frames = true;
                    if let Some(event) = self.apply(event) {
                        return Ok(event);
                    }
                }
                // The server ends every watch after a while.
                Ok(Ok(None)) => self.ended(false),
                // An unreadable event counts as missed.
                Ok(Err(kube::Error::SerdeError(_))) => self.relist(),
                Ok(Err(_)) => self.ended(true),
                // The watch was silent for too long. The next API server may not send bookmarks.
                Err(_) => {
                    self.sends_bookmarks = false;
                    self.relist();
                }
            }
        }
    }

    /// Lists if events may have been missed, otherwise opens a watch.
    async fn start(&mut self) -> Result<Option<Vec<T>>, ClusterError> {
        let Some(version) = &self.version else {
            let (items, version) = self.list().await?;
            self.version = Some(version);
            return Ok(Some(items));
        };
        let ListWatchParams { what, path, watch, metadata, .. } = &self.params;
        let seconds = random_watch_seconds(MIN_WATCH_SECONDS);
        let watch = watch.clone().timeout(seconds);
        let request = Request::new(path.clone());
        let request =
            if *metadata { request.watch_metadata(&watch, version) } else { request.watch(&watch, version) };
        let request = request.map_err(kube::Error::BuildRequest);
        let call = async { self.cluster.client.request_events(request?).await };
        let what = format!("watch {what}");
        let events = self.cluster.in_time(&what, call).await;
        let events = events.map_err(|failure| self.cluster.explain_at(path, failure, &what))?.boxed();
        self.open = Some(OpenWatch { events, span: WatchSpan::new(seconds) });
        Ok(None)
    }

    /// Returns the kept objects of the list, and its version.
    async fn list(&mut self) -> Result<(Vec<T>, String), ClusterError> {
        let ListWatchParams { what, path, list, metadata, keep, .. } = &self.params;
        let what = format!("list {what}");
        let request = Request::new(path.clone());
        let request = if *metadata { request.list_metadata(list) } else { request.list(list) };
        let request = request.map_err(kube::Error::BuildRequest);
        let call = async { read_list(self.cluster.send(request?.map(Body::from)).await?, *keep).await };
        let read = self.cluster.within(RESPONSE_TIMEOUT, &what, call).await;
        let read = read.map_err(|failure| self.cluster.explain_at(path, failure, &what))?;
        let (kept, list) = read.map_err(|reason| self.cluster.not_understood(&what, reason))?;
        let no_version = || self.cluster.not_understood(&what, "it has no version".to_owned());
        let version = list.version.ok_or_else(no_version)?;
        log_omitted(&self.omitted, &what, list.omitted.as_deref());
        Ok((kept, version))
    }

    fn apply(&mut self, event: WatchEvent<T>) -> Option<ListWatchEvent<T>> {
        let (version, event) = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                (object.version().to_owned(), Some(ListWatchEvent::Applied(object)))
            }
            WatchEvent::Deleted(object) => {
                (object.version().to_owned(), Some(ListWatchEvent::Deleted(object)))
            }
            WatchEvent::Bookmark(bookmark) => {
                self.sends_bookmarks = true;
                (bookmark.metadata.resource_version, None)
            }
            // Mostly 410: the version is too old to resume from.
            WatchEvent::Error(_) => {
                self.relist();
                return None;
            }
        };
        self.version = Some(version);
        self.timer.recover();
        event
    }

    /// Handles the end of a watch, or its break. The next one resumes from the last version, which costs the API
    /// server much less than a list.
    fn ended(&mut self, is_broken: bool) {
        let Some(open) = self.open.take() else { return };
        match self.timer.ended(&open.span, is_broken) {
            true => self.timer.recover(),
            false => self.timer.fail(None),
        }
    }

    /// Backs off and forces a relist, as events may have been missed.
    fn relist(&mut self) {
        (self.open, self.version) = (None, None);
        self.timer.fail(None);
    }
}

/// Reads a list as it arrives: its kept objects and its end, or what is wrong with it.
async fn read_list<T: PartialObject>(
    mut body: Body,
    keep: fn(&T) -> bool,
) -> kube::Result<Result<(Vec<T>, List), String>> {
    let (mut list, mut kept) = (ListSplitter::default(), Vec::new());
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame.map_err(|error| kube::Error::Service(error.into()))?.into_data() else {
            continue;
        };
        let pushed = list.push(&piece, |item| {
            let item: T = serde_json::from_slice(item).map_err(|error| error.to_string())?;
            kept.extend(Some(item).filter(keep));
            Ok(())
        });
        if let Err(reason) = pushed {
            return Ok(Err(reason));
        }
    }
    Ok(list.finish().map(|list| (kept, list)))
}
