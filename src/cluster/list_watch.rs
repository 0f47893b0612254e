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
    /// The watch is open again after an error, and no event was missed.
    Resumed,
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
    /// How much a list keeps; `None` is all.
    pub(super) limit: Option<Limit<T>>,
}

/// Limits what a list keeps, in a unit that stands for memory. A watch does not know what its caller keeps: the
/// caller limits that.
pub(super) struct Limit<T> {
    pub(super) weigh: fn(&T) -> usize,
    /// The maximum of all objects together. Those that exceed it are left out, and that is logged.
    pub(super) max: usize,
    /// What is counted, for the message.
    pub(super) unit: &'static str,
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
    /// Whether the last request failed.
    has_failed: bool,
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
            has_failed: false,
        };
        unfold(list_watch, |mut list_watch| async { Some((list_watch.next().await, list_watch)) }).boxed()
    }
}

impl<T: PartialObject> ListWatch<T> {
    async fn next(&mut self) -> Result<ListWatchEvent<T>, ClusterError> {
        loop {
            self.timer.wait().await;
            let Some(open) = &mut self.open else {
                let started = self.start().await;
                let had_failed = std::mem::replace(&mut self.has_failed, started.is_err());
                match started {
                    Ok(Some(listed)) => return Ok(ListWatchEvent::Listed(listed)),
                    Ok(None) if had_failed => return Ok(ListWatchEvent::Resumed),
                    Ok(None) => continue,
                    Err(error) => {
                        if requires_relist(&error) {
                            self.version = None;
                        }
                        self.timer.fail(Some(&error));
                        if self.timer.passes(&error) {
                            continue;
                        }
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
        let ListWatchParams { what, path, list, metadata, .. } = &self.params;
        let what = format!("list {what}");
        let request = Request::new(path.clone());
        let request = if *metadata { request.list_metadata(list) } else { request.list(list) };
        let request = request.map_err(kube::Error::BuildRequest);
        let call =
            async { read_list(self.cluster.send(request?.map(Body::from)).await?, &self.params).await };
        let read = self.cluster.within(RESPONSE_TIMEOUT, &what, call).await;
        let read = read.map_err(|failure| self.cluster.explain_at(path, failure, &what))?;
        let (kept, list) = read.map_err(|reason| self.cluster.not_understood(&what, reason))?;
        let no_version = || self.cluster.not_understood(&what, "it has no version".to_owned());
        let version = list.version.ok_or_else(no_version)?;
        let omitted: Vec<String> = list.omitted.into_iter().chain(kept.omitted(&self.params)).collect();
        log_omitted(&self.omitted, &what, (!omitted.is_empty()).then(|| omitted.join("; ")).as_deref());
        Ok((kept.items, version))
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

/// The kept objects of a list.
struct Kept<T> {
    items: Vec<T>,
    weight: usize,
    /// The number of objects that exceed the limit.
    omitted: usize,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self { items: Vec::new(), weight: 0, omitted: 0 }
    }
}

impl<T> Kept<T> {
    fn add(&mut self, item: T, params: &ListWatchParams<T>) {
        if !(params.keep)(&item) {
            return;
        }
        if let Some(limit) = &params.limit {
            let weight = self.weight.saturating_add((limit.weigh)(&item));
            if weight > limit.max {
                self.omitted += 1;
                return;
            }
            self.weight = weight;
        }
        self.items.push(item);
    }

    /// Returns a message about objects that exceed the limit, if there are any.
    fn omitted(&self, params: &ListWatchParams<T>) -> Option<String> {
        let Limit { max, unit, .. } = params.limit.as_ref().filter(|_| self.omitted > 0)?;
        Some(format!("{} objects are left out, as all together have more than {max} {unit}", self.omitted))
    }
}

/// Reads a list as it arrives: its kept objects and its end, or what is wrong with it.
async fn read_list<T: PartialObject>(
    mut body: Body,
    params: &ListWatchParams<T>,
) -> kube::Result<Result<(Kept<T>, List), String>> {
    let (mut list, mut kept) = (ListSplitter::default(), Kept::default());
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame.map_err(|error| kube::Error::Service(error.into()))?.into_data() else {
            continue;
        };
        let pushed = list.push(&piece, |item| {
            let item: T = serde_json::from_slice(item).map_err(|error| error.to_string())?;
            kept.add(item, params);
            Ok(())
        });
        if let Err(reason) = pushed {
            return Ok(Err(reason));
        }
    }
    Ok(list.finish().map(|list| (kept, list)))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::{FutureExt, stream};
    use http::{Request, Response};
    use http_body_util::StreamBody;
    use hyper::body::{Bytes, Frame};
    use serde_json::json;
    use tokio::time::sleep;

    use super::*;

    type Chunks = BoxStream<'static, Result<Frame<Bytes>, Infallible>>;

    fn chunk(json: &serde_json::Value) -> Result<Frame<Bytes>, Infallible> {
        Ok(Frame::data(format!("{json}\n").into()))
    }

    /// Returns an API server that sends one bookmark, in the first watch: so does one behind a load balancer with
    /// another that has seen no change of the resource since its start. Counts lists and watches.
    fn server() -> (Cluster, Arc<[AtomicUsize; 2]>) {
        let counts = Arc::<[AtomicUsize; 2]>::default();
        let counted = Arc::clone(&counts);
        let service = tower::service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let is_watch = query.contains("watch=true");
            let before = counted[usize::from(is_watch)].fetch_add(1, Ordering::Relaxed);
            let metadata = json!({"resourceVersion": "7", "annotations": {}});
            let bookmark =
                json!({"type": "BOOKMARK", "object": {"kind": "N", "apiVersion": "v", "metadata": metadata}});
            let (_, seconds) = query.split_once("timeoutSeconds=").unwrap_or_default();
            let seconds = seconds.split('&').next().and_then(|seconds| seconds.parse().ok()).unwrap_or(0);
            let end = sleep(Duration::from_secs(seconds)).into_stream().filter_map(|()| async { None });
            let chunks: Chunks = match (is_watch, before) {
                (false, _) => stream::iter([chunk(&json!({"metadata": metadata, "items": []}))]).boxed(),
                (true, 0) => stream::iter([chunk(&bookmark)]).chain(end).boxed(),
                (true, _) => end.boxed(),
            };
            async move { Ok::<_, Infallible>(Response::new(StreamBody::new(chunks))) }
        });
        let client = kube::Client::new(service, "default");
        (Cluster::with_client(client, "fake".to_owned(), Duration::from_secs(30)), counts)
    }

    #[tokio::test(start_paused = true)]
    async fn watches_without_bookmarks_resume_when_the_server_ends_them() {
        let (cluster, counts) = server();
        let mut events = cluster.watch_objects(None);
        assert!(matches!(events.next().await, Some(Ok(ListWatchEvent::Listed(_)))));
        let mut lists = 1;
        let hour = async {
            while let Some(event) = events.next().await {
                assert!(matches!(event, Ok(ListWatchEvent::Listed(_))), "{event:?}");
                lists += 1;
            }
        };
        assert!(timeout(Duration::from_secs(3600), hour).await.is_err());
        let [listed, watched] = [0, 1].map(|at| counts[at].load(Ordering::Relaxed));
        // The first silence after a bookmark may be that of a dead connection.
        assert!(lists == listed && listed <= 2, "{listed}");
        assert!((15..=32).contains(&watched), "{watched}");
    }

    /// Returns the error that the stream has first when each watch is denied, and after how long.
    async fn denied(message: &'static str) -> (ClusterError, Duration) {
        let service = tower::service_fn(move |request: Request<Body>| async move {
            let is_watch = request.uri().query().unwrap_or_default().contains("watch=true");
            let status = json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": message});
            let list = json!({"metadata": {"resourceVersion": "7"}, "items": []});
            let (code, body) = if is_watch { (403, status) } else { (200, list) };
            let body = StreamBody::new(stream::iter([chunk(&body)]));
            Response::builder().status(code).body(body)
        });
        let client = kube::Client::new(service, "default");
        let cluster = Cluster::with_client(client, "fake".to_owned(), Duration::from_secs(30));
        let (mut events, start) = (cluster.watch_objects(None), Instant::now());
        assert!(matches!(events.next().await, Some(Ok(ListWatchEvent::Listed(_)))));
        let error = events.next().await.and_then(Result::err);
        (error.unwrap_or_else(|| ClusterError::Forbidden(String::new())), start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_denial_by_an_api_server_that_has_just_started_is_reported_if_it_lasts() {
        let denial = r#"x is forbidden: User "a" cannot watch resource "x" at the cluster scope"#;
        let unknown = r#"x is forbidden: User "a" cannot watch resource "x" at the cluster scope: RBAC: clusterrole "b" not found"#;
        let (error, after) = denied(denial).await;
        assert_eq!(
            (error, after < Duration::from_secs(1)),
            (ClusterError::Forbidden(denial.to_owned()), true)
        );
        let (error, after) = denied(unknown).await;
        assert_eq!(
            (error, after >= Duration::from_secs(10)),
            (ClusterError::Forbidden(unknown.to_owned()), true)
        );
    }
}
