//! Lists and watches many objects, decoding only what is needed.
//!
//! The list is not paged: it is decoded item by item while it arrives, without items that are too large. A
//! watch that ends or breaks resumes after the last event; if that is impossible, the objects are relisted
//! after a backoff.

use std::marker::PhantomData;
use std::time::Duration;

use futures::stream::{BoxStream, unfold};
use futures::{StreamExt, TryStreamExt};
use http_body_util::BodyExt;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::client::Body;
use kube::core::Request;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until, timeout};

use super::list_items::ListItems;
use super::nodes::WATCH_SECONDS;
use super::watch::{ANSWER, ASKED_LIMIT, is_useless};
use super::{Cluster, ClusterError, Failure};
use crate::one_item::LeftOutLog;
use crate::util::backoff::back_off;

/// A connection still silent this long after the watch should have ended is dead.
const GRACE: Duration = Duration::from_secs(15);
/// A real API server sends a bookmark about once a minute. A watch that had one and is silent for longer than
/// this is dead.
const HEARTBEAT: Duration = Duration::from_secs(80);
/// Delay after the first failure, and after a watch that ended.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum delay between two attempts.
const RETRY_LIMIT: Duration = Duration::from_secs(30);

/// The decoded part of an object.
pub(super) trait Reduced: DeserializeOwned + Clone + Send + 'static {
    /// Returns the object's version.
    fn version(&self) -> &str;

    /// Returns true if a list keeps the object.
    fn is_kept(&self) -> bool {
        true
    }
}

/// An event about the watched objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told<T> {
    /// A complete list: at the start, and after events may have been missed.
    Listed(Vec<T>),
    /// An object was added or changed.
    Is(T),
    /// An object was deleted.
    Gone(T),
}

/// An endless stream; it continues by itself after an error and a backoff.
pub type Tellings<T> = BoxStream<'static, Result<Told<T>, ClusterError>>;

/// The listed and watched resource.
#[derive(Clone, Debug)]
pub(super) struct Which {
    /// The resource for messages, which put `list` or `watch` before it.
    pub(super) what: &'static str,
    /// The path of the resource.
    pub(super) path: String,
    pub(super) list: ListParams,
    pub(super) watch: WatchParams,
    /// Request only the metadata of each object.
    pub(super) metadata: bool,
}

type Events<T> = BoxStream<'static, kube::Result<WatchEvent<T>>>;

struct ListWatch<T> {
    cluster: Cluster,
    which: Which,
    /// The version of the last event. `None` if events may have been missed: a relist is needed.
    version: Option<String>,
    events: Option<Events<T>>,
    failures: u32,
    not_before: Instant,
    /// Whether this API server has ever sent a bookmark.
    beats: bool,
    left_out: LeftOutLog,
    items: PhantomData<fn() -> T>,
}

/// A list that was read.
#[derive(Debug)]
struct Read<T> {
    /// The kept objects.
    kept: Vec<T>,
    version: String,
    /// A message about items that were too large.
    left_out: Option<String>,
}

impl Cluster {
    /// Lists and watches `which`, starting at `not_before`.
    pub(super) fn list_watch<T: Reduced>(&self, which: Which, not_before: Instant) -> Tellings<T> {
        let which = Which { watch: which.watch.timeout(WATCH_SECONDS), ..which };
        let following = ListWatch {
            cluster: self.clone(),
            which,
            version: None,
            events: None,
            failures: 0,
            not_before,
            beats: false,
            left_out: LeftOutLog::default(),
            items: PhantomData,
        };
        unfold(following, |mut following| async { Some((following.next().await, following)) }).boxed()
    }
}

impl<T: Reduced> ListWatch<T> {
    async fn next(&mut self) -> Result<Told<T>, ClusterError> {
        loop {
            sleep_until(self.not_before).await;
            let Some(events) = &mut self.events else {
                match self.begin().await {
                    Ok(Some(listed)) => return Ok(Told::Listed(listed)),
                    Ok(None) => continue,
                    Err(error) => {
                        match is_useless(&error) {
                            true => self.lose(),
                            false => self.interrupt(),
                        }
                        let asked = error.retry_after().unwrap_or_default().min(ASKED_LIMIT);
                        self.not_before = self.not_before.max(Instant::now() + asked);
                        return Err(error);
                    }
                }
            };
            let limit =
                if self.beats { HEARTBEAT } else { Duration::from_secs(WATCH_SECONDS.into()) + GRACE };
            match timeout(limit, events.try_next()).await {
                Ok(Ok(Some(event))) => {
                    if let Some(told) = self.digest(event) {
                        return Ok(told);
                    }
                }
                // The server ends every watch after a while.
                Ok(Ok(None)) => {
                    self.events = None;
                    self.not_before = Instant::now() + RETRY;
                }
                // An unreadable event counts as missed.
                Ok(Err(kube::Error::SerdeError(_))) => self.lose(),
                // The connection broke: the next watch resumes after the last event.
                Ok(Err(_)) => self.interrupt(),
                // The watch was silent for too long.
                Err(_) => self.lose(),
            }
        }
    }

    /// Lists if events may have been missed, otherwise opens a watch.
    async fn begin(&mut self) -> Result<Option<Vec<T>>, ClusterError> {
        let Some(version) = &self.version else {
            let (items, version) = self.list().await?;
            self.version = Some(version);
            return Ok(Some(items));
        };
        let Which { what, path, watch, metadata, .. } = &self.which;
        let request = Request::new(path.clone());
        let request =
            if *metadata { request.watch_metadata(watch, version) } else { request.watch(watch, version) };
        let request = request.map_err(kube::Error::BuildRequest);
        let call = async { self.cluster.client.request_events(request?).await };
        let what = format!("watch {what}");
        let begun = self.cluster.in_time(&what, call).await;
        self.events = Some(begun.map_err(|failure| self.explain(failure, &what))?.boxed());
        Ok(None)
    }

    /// Returns the kept objects of the list, and its version.
    async fn list(&mut self) -> Result<(Vec<T>, String), ClusterError> {
        let Which { what, path, list, metadata, .. } = &self.which;
        let what = format!("list {what}");
        let request = Request::new(path.clone());
        let request = if *metadata { request.list_metadata(list) } else { request.list(list) };
        let request = request.map_err(kube::Error::BuildRequest);
        let call = async { read_list(self.cluster.send(request?.map(Body::from)).await?).await };
        let read = self.cluster.within(ANSWER, &what, call).await;
        let read = read.map_err(|failure| self.explain(failure, &what))?;
        let server = self.cluster.server.clone();
        let not_understood = |reason| ClusterError::NotUnderstood { server, what: what.clone(), reason };
        let Read { kept, version, left_out } = read.map_err(not_understood)?;
        self.left_out.log(&what, left_out);
        Ok((kept, version))
    }

    fn digest(&mut self, event: WatchEvent<T>) -> Option<Told<T>> {
        let told = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                self.version = Some(object.version().to_owned());
                Some(Told::Is(object))
            }
            WatchEvent::Deleted(object) => {
                self.version = Some(object.version().to_owned());
                Some(Told::Gone(object))
            }
            WatchEvent::Bookmark(bookmark) => {
                self.version = Some(bookmark.metadata.resource_version);
                self.beats = true;
                None
            }
            // Mostly 410: the version is too old to resume from.
            WatchEvent::Error(_) => {
                self.lose();
                return None;
            }
        };
        self.failures = 0;
        told
    }

    /// Backs off after a watch that ended without missing an event: the next one resumes from the last
    /// version, which costs the API server much less than a list.
    fn interrupt(&mut self) {
        self.events = None;
        self.not_before = Instant::now() + back_off(&mut self.failures, RETRY, RETRY_LIMIT);
    }

    /// Backs off and forces a relist, as events may have been missed.
    fn lose(&mut self) {
        self.version = None;
        self.interrupt();
    }

    /// Maps a failed request: for our objects, the resource itself may be unknown.
    fn explain(&self, failure: Failure, what: &str) -> ClusterError {
        match self.which.path.contains("/noderesourcetopologies") {
            true => self.cluster.explain_object(failure, what),
            false => failure.explain(what),
        }
    }
}

/// Reads a list as it arrives; or returns what is wrong with it.
async fn read_list<T: Reduced>(mut body: Body) -> kube::Result<Result<Read<T>, String>> {
    let (mut items, mut kept) = (ListItems::default(), Vec::new());
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame.map_err(|error| kube::Error::Service(error.into()))?.into_data() else {
            continue;
        };
        let pushed = items.push(&piece, |item| {
            let item: T = serde_json::from_slice(item).map_err(|error| error.to_string())?;
            kept.extend(Some(item).filter(Reduced::is_kept));
            Ok(())
        });
        if let Err(reason) = pushed {
            return Ok(Err(reason));
        }
    }
    Ok(items.finish().map(|(version, left_out)| Read { kept, version, left_out }))
}
