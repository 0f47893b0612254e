//! Lists and watches the pods of one node on the API server, in protocol buffers: a pod takes less than half
//! the bytes of its JSON, and can be forwarded unchanged.
//!
//! **The list** costs the API server only the pods of this node, and etcd nothing: it has no `limit`, and a
//! `resourceVersion` as the minimum version, so that it comes from the watch cache, by its index on
//! `spec.nodeName`. With 2,000 pods on 20 nodes one list fetched the node's 100 from the cache and none from
//! etcd (1.36.3; `tests/real/pod_list.rs`). Paged lists without a version are read from etcd before 1.34,
//! each page reading all pods of the cluster; since 1.34 they scan all pods of the cache from the second page
//! on. A watch with initial events (`sendInitialEvents`) is no better: in every version it scans all pods of
//! the cache as well and waits until the cache has caught up with etcd, and it is off by default before 1.32
//! and in 1.33.

mod answers;
mod frames;
mod list;
#[cfg(test)]
mod samples;

use std::time::Duration;

use futures::Stream;
use futures::stream::unfold;
use http_body_util::BodyExt;
use hyper::header::{ACCEPT, ACCEPT_ENCODING, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, Request};
use kube::client::Body;
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use super::watch::{ANSWER, Heard, Lost, Told, Watch, Watched, is_ahead};
use super::{Cluster, ClusterError};
use crate::core_v1::read_pod;
use crate::pod::{Pod, PodEvent, PodName, Wanted};
use crate::watch_event::WatchEvent;

use answers::details_of;
pub use answers::{News, Odd, refusal};
pub use frames::Frames;
pub use list::PodList;

/// Path of all pods.
const PODS: &str = "/api/v1/pods";
/// Kind of the list.
const KIND: &str = "PodList";
/// The list's action, for messages.
const LIST: &str = "list pods of the node";
/// The watch's action, for messages.
const WATCH: &str = "watch pods of the node";
/// Media type of a list.
const ACCEPTED: &str = "application/vnd.kubernetes.protobuf";
/// Media type of a watch.
const ACCEPTED_OF_WATCH: &str = "application/vnd.kubernetes.protobuf;stream=watch";

/// Maximum size of an error response; a longer one is truncated.
const LARGEST_REFUSAL: usize = 64 << 10;

/// If the API server has not known a version as new as ours for this long, etcd was restored from a backup,
/// and an older list has to be accepted.
const RESTORED: Duration = Duration::from_secs(120);

impl Cluster {
    /// Watches the pods of `node`, decoding what is `wanted` of each. An error is one sentence; the watch
    /// continues after a backoff.
    pub fn pods_of(
        &self,
        node: &str,
        wanted: Wanted,
    ) -> impl Stream<Item = Result<PodEvent, String>> + Send + 'static {
        let watched = PodsOfNode { node: node.to_owned(), wanted };
        let following = Following {
            wanted: watched.wanted.clone(),
            node: node.to_owned(),
            watch: Watch::new(self.clone(), watched, String::new()),
            at: At::Nothing,
            complained: false,
            ahead: None,
        };
        unfold(following, |mut following| async { Some((following.next().await, following)) })
    }

    /// Returns the pod of this name on `node`, as it is now, with what is `wanted` of it; `None` if there is
    /// none. It is listed rather than read: watching needs permission to list pods, but not to get one.
    ///
    /// The result must not be older than the kubelet's response that names the pod, so it is read from etcd:
    /// Kubernetes turns a list of one name in one namespace into a read of one key. Before 1.31 that is all;
    /// since 1.31 the API server asks etcd only for its current version, and responds when its cache has
    /// caught up, after some 100 ms at most.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn pod_of(
        &self,
        node: &str,
        (namespace, name): &PodName,
        wanted: &Wanted,
    ) -> Result<Option<Pod>, ClusterError> {
        // A client of the proxy may request any name: an invalid one must not get into the query.
        if !is_name(namespace) || !is_name(name) {
            return Ok(None);
        }
        // Constant, because messages with it are logged once.
        let what = "list one pod of the node";
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let path = format!("{path}?fieldSelector=metadata.name%3D{name}%2C{}", on(node));
        let mut list = self.pod_list(path, what, self.timeout).await?;
        let mut found = None;
        while let Some(pod) = list.next(self, wanted).await? {
            found = Some(pod.map_err(|reason| self.not_understood(what, reason))?);
        }
        Ok(found)
    }

    /// Starts a list of pods.
    async fn pod_list(
        &self,
        path: String,
        what: &'static str,
        after: Duration,
    ) -> Result<Listing, ClusterError> {
        let until = Instant::now() + after;
        let call = async {
            let request = Request::get(path).body(Vec::new());
            self.ask(request.map_err(kube::Error::HttpError)?, ACCEPTED).await
        };
        let body = self.within(after, what, call).await.map_err(|failure| failure.explain(what))?;
        Ok(Listing { body, list: PodList::default(), version: String::new(), what, after, until })
    }

    /// Sends a request with this media type. The response is not compressed: some servers compress each event
    /// of a watch separately.
    pub(super) async fn ask(
        &self,
        request: Request<Vec<u8>>,
        accept: &'static str,
    ) -> Result<Body, kube::Error> {
        let mut request = request.map(Body::from);
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(accept));
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        self.send(request).await
    }

    /// Sends a request and returns the body of the response; an error response becomes a status, with the
    /// delay before a retry that the server asks for.
    pub(super) async fn send(&self, request: Request<Body>) -> Result<Body, kube::Error> {
        let (head, mut body) = self.client.send(request).await?.into_parts();
        if head.status.is_success() {
            return Ok(body);
        }
        let told = collect(&mut body).await?;
        let mut status = refusal(head.status.as_u16(), &told);
        let details = status.details.get_or_insert_with(|| details_of(0));
        if details.retry_after_seconds == 0 {
            details.retry_after_seconds = retry_after(&head.headers);
        }
        Err(kube::Error::Api(status))
    }

    pub(super) fn not_understood(&self, what: &str, reason: String) -> ClusterError {
        ClusterError::NotUnderstood { server: self.server.clone(), what: what.to_owned(), reason }
    }
}

/// Returns true if `name` is a DNS subdomain (RFC 1123), as Kubernetes requires.
fn is_name(name: &str) -> bool {
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    // `.` or `..` would change the path.
    (1..=253).contains(&name.len()) && name.bytes().all(allowed) && !name.starts_with('.')
}

/// Returns the field selector for the pods of a node, URL-encoded.
fn on(node: &str) -> String {
    format!("spec.nodeName%3D{node}")
}

/// Returns the seconds to wait: API Priority and Fairness sends them in a header only.
fn retry_after(headers: &HeaderMap) -> u32 {
    let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    seconds.unwrap_or_default()
}

/// Reads a body, truncated to [`LARGEST_REFUSAL`].
async fn collect(body: &mut Body) -> Result<Vec<u8>, kube::Error> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame?.into_data() else { continue };
        let most = LARGEST_REFUSAL - bytes.len();
        bytes.extend_from_slice(&piece[..piece.len().min(most)]);
        if bytes.len() == LARGEST_REFUSAL {
            break;
        }
    }
    Ok(bytes)
}

/// A list response that is being read.
struct Listing {
    body: Body,
    list: PodList,
    /// The version of the list, set at its end.
    version: String,
    what: &'static str,
    after: Duration,
    until: Instant,
}

impl Listing {
    /// Returns the next pod, or why it cannot be decoded; `None` after the last one, when the version is
    /// known.
    async fn next(
        &mut self,
        cluster: &Cluster,
        wanted: &Wanted,
    ) -> Result<Option<Result<Pod, String>>, ClusterError> {
        let odd = |odd: Odd| cluster.not_understood(self.what, odd.to_string());
        loop {
            if let Some(pod) = self.list.take().map_err(odd)? {
                return Ok(Some(read_pod(pod, wanted)));
            }
            let late = || ClusterError::Deadline { what: self.what.to_owned(), after: self.after };
            match timeout_at(self.until, self.body.frame()).await.map_err(|_| late())? {
                Some(Ok(frame)) => {
                    if let Ok(piece) = frame.into_data() {
                        self.list.put(&piece);
                    }
                }
                Some(Err(error)) => return Err(cluster.explain(self.what, &error)),
                None => {
                    self.version = std::mem::take(&mut self.list).end().map_err(odd)?;
                    return Ok(None);
                }
            }
        }
    }
}

/// The watch's selection.
struct PodsOfNode {
    node: String,
    wanted: Wanted,
}

impl Watched for PodsOfNode {
    /// A decoded pod event, or why the pod cannot be decoded.
    type Event = Result<PodEvent, String>;

    fn what(&self) -> String {
        WATCH.to_owned()
    }

    fn request(&self) -> (String, &'static str) {
        (format!("{PODS}?fieldSelector={}", on(&self.node)), ACCEPTED_OF_WATCH)
    }

    fn frames(&self) -> Frames {
        Frames::default()
    }

    fn read(&self, frame: &[u8]) -> Result<Told<Self::Event>, Odd> {
        Ok(match News::read(frame)? {
            News::Is(pod, version) => Told::Event(read_pod(pod, &self.wanted).map(WatchEvent::Apply), version),
            News::Gone(pod, version) => Told::Event(read_pod(pod, &self.wanted).map(WatchEvent::Delete), version),
            News::Until(version) => Told::Until(version),
            News::Failed(status) => Told::Failed(status),
        })
    }
}

/// A list and the watch after it.
struct Following {
    wanted: Wanted,
    node: String,
    watch: Watch<PodsOfNode>,
    at: At,
    /// An unreadable pod of the current list was logged.
    complained: bool,
    /// Since when the API server has not known a version as new as ours.
    ahead: Option<Instant>,
}

/// The current phase.
enum At {
    /// A relist is needed: at the start, or after events may have been missed.
    Nothing,
    /// Before the list request.
    Before,
    /// Reading the list.
    Within(Box<Listing>),
    /// Watching.
    Watching,
}

impl Following {
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
        match &mut self.at {
            At::Nothing => {
                self.watch.pace.wait().await;
                self.at = At::Before;
                self.complained = false;
                Ok(Some(WatchEvent::Init))
            }
            At::Before => {
                let path = self.list();
                match self.watch.cluster.pod_list(path, LIST, ANSWER).await {
                    Ok(listing) => {
                        self.at = At::Within(Box::new(listing));
                        Ok(None)
                    }
                    Err(error) => Err(self.lose(&error)),
                }
            }
            At::Within(listing) => match listing.next(&self.watch.cluster, &self.wanted).await {
                Ok(Some(Ok(pod))) => Ok(Some(WatchEvent::InitApply(pod))),
                Ok(Some(Err(reason))) => Ok(self.leave_out(&reason)),
                Ok(None) => {
                    self.watch.go_on_from(std::mem::take(&mut listing.version));
                    (self.at, self.ahead) = (At::Watching, None);
                    Ok(Some(WatchEvent::InitDone))
                }
                Err(error) => Err(self.lose(&error)),
            },
            At::Watching => {
                let heard = self.watch.next().await;
                self.take(heard)
            }
        }
    }

    /// Returns the path and query of the list. The first list may be arbitrarily old: the watch delivers what
    /// it lacks. Later lists must not be older than the last event; an API server that has just started waits
    /// until its cache has caught up.
    fn list(&self) -> String {
        let (version, restored) =
            (self.watch.version(), self.ahead.is_some_and(|since| since.elapsed() > RESTORED));
        let age = match version.is_empty() || restored {
            true => "resourceVersion=0".to_owned(),
            false => format!("resourceVersion={version}&resourceVersionMatch=NotOlderThan"),
        };
        format!("{PODS}?fieldSelector={}&{age}", on(&self.node))
    }

    /// Restarts a failed list from its beginning.
    fn lose(&mut self, error: &ClusterError) -> String {
        self.at = At::Nothing;
        self.watch.fail(Some(error));
        if is_ahead(error) {
            self.ahead.get_or_insert_with(Instant::now);
        }
        error.to_string()
    }

    /// Skips an unreadable pod, so that the others are still listed.
    fn leave_out(&mut self, reason: &str) -> Option<PodEvent> {
        if !self.complained {
            warn!("a pod that the API server tells of cannot be read and is left out: {reason}");
            self.complained = true;
        }
        None
    }

    fn take(
        &mut self,
        heard: Result<Heard<Result<PodEvent, String>>, Lost>,
    ) -> Result<Option<PodEvent>, String> {
        match heard {
            Ok(Heard::Event(Ok(event))) => Ok(Some(event)),
            Ok(Heard::Event(Err(reason))) => {
                // The cached pod is outdated; a relist omits it.
                self.at = At::Nothing;
                self.watch.fail(None);
                Err(format!("a pod cannot be read: {reason}"))
            }
            Ok(Heard::Again) => Ok(Some(WatchEvent::Resumed)),
            Err(Lost::Failed(error)) => Err(error.to_string()),
            Err(Lost::Stale(reason)) => {
                self.at = At::Nothing;
                reason.map_or(Ok(None), |error| Err(error.to_string()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_object_has_do_not_get_into_a_query() {
        for name in ["web-0", "a", "10", "web.example-1"] {
            assert!(is_name(name), "{name}");
        }
        let long = "a".repeat(254);
        for name in
            ["", ".", "..", "a/b", "a&limit=1", "a%2Cspec.nodeName!=x", "A", "a b", "a?b", "a#", "\n", &long]
        {
            assert!(!is_name(name), "{name}");
        }
    }
}
