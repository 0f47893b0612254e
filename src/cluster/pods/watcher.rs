//! Lists and watches the pods of one node.

use std::time::Duration;

use futures::Stream;
use futures::stream::unfold;
use tokio::time::Instant;
use tracing::warn;

use super::frame::PodFrame;
use super::list_reader::{ListItem, ListReader};
use crate::cluster::frames::FrameSplitter;
use crate::cluster::protobuf::DecodeError;
use crate::cluster::watch::{
    Frame, Interruption, RESPONSE_TIMEOUT, Watch, WatchItem, WatchTarget, is_version_too_large,
};
use crate::cluster::{Cluster, ClusterError};
use crate::core_v1::read_pod;
use crate::pod::{PodEvent, Wanted};
use crate::util::log_throttle::LastLogged;

/// The list's action, for messages.
const LIST: &str = "list pods of the node";
/// The watch's action, for messages.
const WATCH: &str = "watch pods of the node";
/// Media type of a watch.
const CONTENT: &str = "application/vnd.kubernetes.protobuf;stream=watch";

/// If the API server has not known a version as new as ours for this long, etcd was restored from a backup,
/// and an older list has to be accepted.
const RESTORED_AFTER: Duration = Duration::from_secs(120);

impl Cluster {
    /// Watches the pods of `node`, starting with a list, and decodes what is `wanted` of each. An error is
    /// one sentence; the watch continues after a backoff.
    pub fn watch_pods(
        &self,
        node: &str,
        wanted: Wanted,
    ) -> impl Stream<Item = Result<PodEvent, String>> + Send + 'static {
        let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}");
        let watcher = PodWatcher {
            watch: Watch::new(self.clone(), PodsOfNode { path, wanted }, String::new()),
            phase: Phase::Unsynced,
            unreadable: LastLogged::default(),
            version_too_large_since: None,
        };
        unfold(watcher, |mut watcher| async { Some((watcher.next().await, watcher)) })
    }
}

/// The pods of a node.
struct PodsOfNode {
    /// The path and selector of list and watch.
    path: String,
    wanted: Wanted,
}

impl WatchTarget for PodsOfNode {
    /// A decoded pod event, or why the pod cannot be decoded.
    type Event = Result<PodEvent, String>;

    fn what(&self) -> String {
        WATCH.to_owned()
    }

    fn request(&self) -> (String, &'static str, FrameSplitter) {
        (self.path.clone(), CONTENT, FrameSplitter::default())
    }

    fn decode(&self, frame: &[u8]) -> Result<Frame<Self::Event>, DecodeError> {
        let pod = |bytes: &[u8]| read_pod(bytes, &self.wanted);
        Ok(match PodFrame::decode(frame)? {
            PodFrame::Applied(bytes, version) => Frame::Event(pod(&bytes).map(PodEvent::Apply), version),
            PodFrame::Deleted(bytes, version) => Frame::Event(pod(&bytes).map(PodEvent::Delete), version),
            PodFrame::Bookmark(version) => Frame::Bookmark(version),
            PodFrame::Error(status) => Frame::Error(status),
        })
    }
}

/// A list and the watch after it.
struct PodWatcher {
    watch: Watch<PodsOfNode>,
    phase: Phase,
    /// Whether an unreadable pod of the current list was logged.
    unreadable: LastLogged,
    /// Since when the API server has not known a version as new as ours.
    version_too_large_since: Option<Instant>,
}

enum Phase {
    /// A relist is needed: at the start, or after events may have been missed.
    Unsynced,
    /// Before the list request.
    Requesting,
    /// Reading the list.
    Listing(Box<ListReader>),
    Watching,
}

impl PodWatcher {
    async fn next(&mut self) -> Result<PodEvent, String> {
        loop {
            match self.step().await {
                Ok(None) => {}
                Ok(Some(event)) => return Ok(event),
                Err(reason) => return Err(format!("cannot watch the node's pods: {reason}")),
            }
        }
    }

    /// Takes one step, which may yield no event.
    async fn step(&mut self) -> Result<Option<PodEvent>, String> {
        match &mut self.phase {
            Phase::Unsynced => {
                self.watch.wait().await;
                self.phase = Phase::Requesting;
                self.unreadable.reset();
                Ok(Some(PodEvent::Init))
            }
            Phase::Requesting => {
                let path = self.list_path();
                let list = ListReader::start(&self.watch.cluster, path, LIST, RESPONSE_TIMEOUT).await;
                let list = list.map_err(|error| self.fail_list(&error))?;
                self.phase = Phase::Listing(Box::new(list));
                Ok(None)
            }
            Phase::Listing(list) => match list.next(&self.watch.cluster, &self.watch.target.wanted).await {
                Ok(ListItem::Pod(Ok(pod))) => Ok(Some(PodEvent::InitApply(pod))),
                Ok(ListItem::Pod(Err(reason))) => {
                    // The other pods are still listed.
                    if self.unreadable.is_new(()) {
                        warn!("a pod from the API server cannot be read and is left out: {reason}");
                    }
                    Ok(None)
                }
                Ok(ListItem::End(version)) => {
                    self.watch.resume_from(version);
                    (self.phase, self.version_too_large_since) = (Phase::Watching, None);
                    Ok(Some(PodEvent::InitDone))
                }
                Err(error) => Err(self.fail_list(&error)),
            },
            Phase::Watching => match self.watch.next().await {
                Ok(WatchItem::Event(Ok(event))) => Ok(Some(event)),
                Ok(WatchItem::Event(Err(reason))) => {
                    // The cached pod is outdated; a relist omits it.
                    self.phase = Phase::Unsynced;
                    self.watch.fail(None);
                    Err(format!("a pod cannot be read: {reason}"))
                }
                Ok(WatchItem::Resumed) => Ok(Some(PodEvent::Resumed)),
                Err(Interruption::Failed(error)) => Err(error.to_string()),
                Err(Interruption::MustRelist(error)) => {
                    self.phase = Phase::Unsynced;
                    error.map_or(Ok(None), |error| Err(error.to_string()))
                }
            },
        }
    }

    /// Returns the path and query of the list. The first list may be arbitrarily old: the watch delivers what
    /// it lacks. Later lists must not be older than the last event; an API server that has just started waits
    /// until its cache has caught up.
    fn list_path(&self) -> String {
        let version = &self.watch.version;
        let is_restored = self.version_too_large_since.is_some_and(|since| since.elapsed() > RESTORED_AFTER);
        let age = match version.is_empty() || is_restored {
            true => "resourceVersion=0".to_owned(),
            false => format!("resourceVersion={version}&resourceVersionMatch=NotOlderThan"),
        };
        format!("{}&{age}", self.watch.target.path)
    }

    /// Restarts a failed list from its beginning.
    fn fail_list(&mut self, error: &ClusterError) -> String {
        self.phase = Phase::Unsynced;
        self.watch.fail(Some(error));
        if is_version_too_large(error) {
            self.version_too_large_since.get_or_insert_with(Instant::now);
        }
        error.to_string()
    }
}
