//! A watch on our one object, of its metadata only.

use std::time::Duration;

use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use kube::api::{DynamicObject, ObjectMeta, WatchEvent, WatchParams};
use kube::core::PartialObjectMeta;
use tokio::time::{Instant, sleep_until, timeout};

use super::{Cluster, ClusterError};
use crate::backoff::back_off;

/// How long one watch lasts: some load balancers cut what was idle for five minutes.
const SECONDS: u32 = 240;
/// A connection that says nothing for so long beyond that is dead.
const GRACE: Duration = Duration::from_secs(15);
/// A real API server says about once a minute how far it is. One that did and is silent for longer watches what is no more,
/// such as the objects of a CRD that was deleted and made again.
const HEARTBEAT: Duration = Duration::from_secs(80);
/// How soon to try again after a failure.
const RETRY: Duration = Duration::from_millis(500);
/// The longest wait between two failures.
const RETRY_LIMIT: Duration = Duration::from_secs(30);

/// What was seen of the object.
#[derive(Clone, Debug)]
pub enum Glimpse {
    /// It is like this.
    Is(Box<ObjectMeta>),
    /// It is gone. This is what it was, unless nobody saw it go.
    Gone(Option<Box<ObjectMeta>>),
}

type Events = BoxStream<'static, kube::Result<WatchEvent<PartialObjectMeta<DynamicObject>>>>;

/// Follows the object of one node.
pub struct Follow {
    cluster: Cluster,
    name: String,
    /// Everything up to this version was seen; `None`: something may have been missed.
    version: Option<String>,
    events: Option<Events>,
    failures: u32,
    not_before: Instant,
    /// Has this API server ever said how far it is, with nothing to tell?
    beats: bool,
}

impl Cluster {
    /// Follows the object of a node from `version` on.
    #[must_use]
    pub fn follow_topology(&self, name: &str, version: &str) -> Follow {
        Follow {
            cluster: self.clone(),
            name: name.to_owned(),
            version: Some(version.to_owned()).filter(|version| !version.is_empty()),
            events: None,
            failures: 0,
            not_before: Instant::now(),
            beats: false,
        }
    }
}

impl Follow {
    /// The next news. After an error it goes on by itself, a while later. May be dropped while it waits.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn next(&mut self) -> Result<Glimpse, ClusterError> {
        loop {
            sleep_until(self.not_before).await;
            let Some(events) = &mut self.events else {
                if let Some(glimpse) = self.begin().await? {
                    return Ok(glimpse);
                }
                continue;
            };
            let limit = if self.beats { HEARTBEAT } else { Duration::from_secs(SECONDS.into()) + GRACE };
            let event = match timeout(limit, events.try_next()).await {
                Ok(Ok(Some(event))) => event,
                // The server ends every watch after a while; the next one goes on from here.
                Ok(Ok(None)) => {
                    self.events = None;
                    self.not_before = Instant::now() + RETRY;
                    continue;
                }
                // Cut in the middle, or silent: whatever was said last may have been lost.
                Ok(Err(_)) | Err(_) => {
                    self.lose();
                    continue;
                }
            };
            if let Some(glimpse) = self.digest(event) {
                return Ok(glimpse);
            }
        }
    }

    /// Starts a watch; looks at the object first where something may have been missed.
    async fn begin(&mut self) -> Result<Option<Glimpse>, ClusterError> {
        let api = self.cluster.topologies();
        let Some(version) = self.version.clone() else {
            let what = format!("get noderesourcetopology {}", self.name);
            let read = self.cluster.in_time(&what, api.get_metadata_opt(&self.name)).await;
            return match read {
                Ok(Some(object)) => {
                    self.version.clone_from(&object.metadata.resource_version);
                    Ok(Some(Glimpse::Is(Box::new(object.metadata))))
                }
                Ok(None) => {
                    // From now on, whatever the version is: an object that is there will be told of.
                    self.version = Some(String::new());
                    Ok(Some(Glimpse::Gone(None)))
                }
                Err(failure) => match self.cluster.explain_object(failure, &what) {
                    // Then a watch from now on has to do.
                    error if error.is_forbidden() => {
                        self.version = Some(String::new());
                        Ok(None)
                    }
                    error => Err(self.fail(error)),
                },
            };
        };
        let what = format!("watch noderesourcetopology {}", self.name);
        let only = WatchParams::default().fields(&format!("metadata.name={}", self.name)).timeout(SECONDS);
        match self.cluster.in_time(&what, api.watch_metadata(&only, &version)).await {
            Ok(events) => {
                self.events = Some(events.boxed());
                Ok(None)
            }
            Err(failure) => {
                let error = self.cluster.explain_object(failure, &what);
                Err(self.fail(error))
            }
        }
    }

    fn digest(&mut self, event: WatchEvent<PartialObjectMeta<DynamicObject>>) -> Option<Glimpse> {
        let glimpse = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                self.version.clone_from(&object.metadata.resource_version);
                Glimpse::Is(Box::new(object.metadata))
            }
            WatchEvent::Deleted(object) => {
                self.version.clone_from(&object.metadata.resource_version);
                Glimpse::Gone(Some(Box::new(object.metadata)))
            }
            WatchEvent::Bookmark(bookmark) => {
                self.version = Some(bookmark.metadata.resource_version);
                self.beats = true;
                return None;
            }
            // Mostly 410: the version is too old to go on from.
            WatchEvent::Error(_) => {
                self.lose();
                return None;
            }
        };
        self.failures = 0;
        Some(glimpse)
    }

    /// Something may have been missed.
    fn lose(&mut self) {
        self.events = None;
        self.version = None;
        self.not_before = Instant::now() + back_off(&mut self.failures, RETRY, RETRY_LIMIT);
    }

    fn fail(&mut self, error: ClusterError) -> ClusterError {
        // A right that is missing does not make the version old, but much happens until it is given.
        self.events = None;
        self.version = None;
        self.not_before = Instant::now() + back_off(&mut self.failures, RETRY, RETRY_LIMIT);
        error
    }
}
