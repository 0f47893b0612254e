//! Follows many objects by a list and the watches after it, reduced as they are read.
//!
//! The list is not paged: it is read item by item while it comes in. A watch that ends or is cut goes on where it ended; the
//! list is read anew, after a back-off, where that cannot be.

use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::time::Duration;

use futures::stream::{BoxStream, unfold};
use futures::{AsyncBufRead, AsyncBufReadExt, StreamExt, TryStreamExt};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::core::Request;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until, timeout};

use super::list_items::ListItems;
use super::nodes::WATCH_SECONDS;
use super::watch::{ANSWER, is_useless};
use super::{Cluster, ClusterError, Failure};
use crate::backoff::back_off;

/// A connection that says nothing for so long after the watch should have ended is dead.
const GRACE: Duration = Duration::from_secs(15);
/// A real API server sends a bookmark about once a minute. A watch that had one and is silent for longer is dead.
const HEARTBEAT: Duration = Duration::from_secs(80);
/// How soon to try again after a failure, or after a watch that ended.
const RETRY: Duration = Duration::from_secs(1);
/// The longest wait between two failures.
const RETRY_LIMIT: Duration = Duration::from_secs(30);

/// What is read of an object.
pub(super) trait Reduced: DeserializeOwned + Clone + Send + 'static {
    /// The object's version.
    fn version(&self) -> &str;

    /// Is it kept of a list?
    fn is_kept(&self) -> bool {
        true
    }
}

/// An event about the objects that are followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told<T> {
    /// A complete list: at the start, and after events may have been missed.
    Listed(Vec<T>),
    /// This one came, or changed.
    Is(T),
    /// This one is gone.
    Gone(T),
}

/// Goes on for ever; after an error by itself, a while later.
pub type Tellings<T> = BoxStream<'static, Result<Told<T>, ClusterError>>;

/// What is listed and watched.
#[derive(Clone, Debug)]
pub(super) struct Which {
    /// In sentences: `list` and `watch` stand before it.
    pub(super) what: &'static str,
    /// The path of the resource.
    pub(super) path: String,
    pub(super) list: ListParams,
    pub(super) watch: WatchParams,
    /// Only the metadata of each object.
    pub(super) metadata: bool,
}

type Events<T> = BoxStream<'static, kube::Result<WatchEvent<T>>>;

struct ListWatch<T> {
    cluster: Cluster,
    which: Which,
    /// The version of the last event. `None` where events may have been missed: the objects have to be listed.
    version: Option<String>,
    events: Option<Events<T>>,
    failures: u32,
    not_before: Instant,
    /// Has this API server ever sent a bookmark?
    beats: bool,
    items: PhantomData<fn() -> T>,
}

impl Cluster {
    /// Follows what is asked for, but not before this moment.
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
                // An event that cannot be read is missed.
                Ok(Err(kube::Error::SerdeError(_))) => self.lose(),
                // Cut: the next watch goes on where this one was.
                Ok(Err(_)) => self.interrupt(),
                // Silent.
                Err(_) => self.lose(),
            }
        }
    }

    /// Lists where something may have been missed, else begins a watch.
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

    /// What of the list is kept, and its version.
    async fn list(&mut self) -> Result<(Vec<T>, String), ClusterError> {
        let Which { what, path, list, metadata, .. } = &self.which;
        let what = format!("list {what}");
        let request = Request::new(path.clone());
        let request = if *metadata { request.list_metadata(list) } else { request.list(list) };
        let request = request.map_err(kube::Error::BuildRequest);
        let call = async { read_list(pin!(self.cluster.client.request_stream(request?).await?)).await };
        let read = self.cluster.within(ANSWER, &what, call).await;
        let read = read.map_err(|failure| self.explain(failure, &what))?;
        let server = self.cluster.server.clone();
        read.map_err(|reason| ClusterError::NotUnderstood { server, what, reason })
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
            // Mostly 410: the version is too old to go on from.
            WatchEvent::Error(_) => {
                self.lose();
                return None;
            }
        };
        self.failures = 0;
        told
    }

    /// The watch ended, and no event was missed: the next one begins at the last version, which costs the API server much less
    /// than a list.
    fn interrupt(&mut self) {
        self.events = None;
        self.not_before = Instant::now() + back_off(&mut self.failures, RETRY, RETRY_LIMIT);
    }

    /// Something may have been missed.
    fn lose(&mut self) {
        self.version = None;
        self.interrupt();
    }

    /// Of objects the resource itself may be unknown.
    fn explain(&self, failure: Failure, what: &str) -> ClusterError {
        match self.which.path.contains("/noderesourcetopologies") {
            true => self.cluster.explain_object(failure, what),
            false => failure.explain(what),
        }
    }
}

/// What is kept of a list that comes in, and its version; or what is wrong with it.
async fn read_list<T: Reduced>(
    mut answer: Pin<&mut impl AsyncBufRead>,
) -> kube::Result<Result<(Vec<T>, String), String>> {
    let (mut items, mut kept) = (ListItems::default(), Vec::new());
    loop {
        let piece = answer.fill_buf().await.map_err(|error| kube::Error::Service(error.into()))?;
        let length = piece.len();
        if length == 0 {
            return Ok(items.finish().map(|version| (kept, version)));
        }
        let pushed = items.push(piece, |item| {
            let item: T = serde_json::from_slice(item).map_err(|error| error.to_string())?;
            kept.extend(Some(item).filter(Reduced::is_kept));
            Ok(())
        });
        if let Err(reason) = pushed {
            return Ok(Err(reason));
        }
        answer.as_mut().consume(length);
    }
}
