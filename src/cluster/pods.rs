//! The pods of one node, from a list and a watch on the API server, in protocol buffers: a pod takes less than half of
//! the bytes that it has in JSON, and can be handed on as it came.
//!
//! **The list** costs the API server the pods of this node, and etcd nothing: it has no `limit`, and a `resourceVersion` that
//! it may be as old as, so that it comes from the watch cache, by its index on `spec.nodeName`. Of 2,000 pods on 20 nodes one
//! list fetched the node's 100 from the cache and none from etcd (1.36.3; `tests/real/pod_list.rs`). Pages without a version
//! are read from etcd before 1.34, each time all pods of the cluster, and later ones walk through all pods of the cache from
//! the second page on. A watch that begins with what there is (`sendInitialEvents`) is no better: it walks through all pods
//! of the cache as well, in every version, waits until the cache has caught up with etcd, and is off by default before 1.32
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
use crate::seen::Seen;

use answers::details_of;
pub use answers::{News, Odd, refusal};
pub use frames::Frames;
pub use list::PodList;

/// Where all pods are.
const PODS: &str = "/api/v1/pods";
/// What is listed.
const KIND: &str = "PodList";
/// What is done, in sentences.
const LIST: &str = "list pods of the node";
/// Likewise.
const WATCH: &str = "watch pods of the node";
/// How they are wanted...
const ACCEPTED: &str = "application/vnd.kubernetes.protobuf";
/// ...and how, one after the other.
const ACCEPTED_OF_WATCH: &str = "application/vnd.kubernetes.protobuf;stream=watch";

/// An answer that is no success is no longer.
const LARGEST_REFUSAL: usize = 64 << 10;

/// An API server that knows no version as new as ours for so long will not: etcd was restored from a backup, and an older list
/// is what there is.
const RESTORED: Duration = Duration::from_secs(120);

impl Cluster {
    /// Follows the pods of `node`, with what is wanted of them. An error is one sentence, and it goes on after a back-off.
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

    /// The pod of this name on `node`, as it is now, with what is wanted of it; `None` if there is none. It is listed,
    /// since who may watch the node's pods may list them, and need not be allowed to get one.
    ///
    /// It must not be older than the kubelet's answer that names the pod, so that it comes from etcd: Kubernetes takes a list of one
    /// name in one namespace for a read of one key. That is all before 1.31; from 1.31 on the API server asks etcd for its
    /// version alone, and answers when its cache has caught up, after some 100 ms at most.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn pod_of(
        &self,
        node: &str,
        (namespace, name): &PodName,
        wanted: &Wanted,
    ) -> Result<Option<Pod>, ClusterError> {
        // A client of the proxy may ask for any name: one that no pod can have must not get into the query.
        if !is_name(namespace) || !is_name(name) {
            return Ok(None);
        }
        // The same for every pod: it stands in sentences that are told once.
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

    /// Begins a list of pods.
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

    /// Asks for something in this form. What comes is not compressed: some servers compress each event of a watch by itself.
    pub(super) async fn ask(
        &self,
        request: Request<Vec<u8>>,
        accept: &'static str,
    ) -> Result<Body, kube::Error> {
        let mut request = request.map(Body::from);
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(accept));
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
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

/// May an object be called so? Kubernetes allows DNS subdomains (RFC 1123).
fn is_name(name: &str) -> bool {
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    // A lone `.` or `..` in a path is a way to somewhere else.
    (1..=253).contains(&name.len()) && name.bytes().all(allowed) && !name.starts_with('.')
}

/// The field selector for the pods of a node, as it stands in a query.
fn on(node: &str) -> String {
    format!("spec.nodeName%3D{node}")
}

/// Seconds to wait: priority and fairness says it in a header alone.
fn retry_after(headers: &HeaderMap) -> u32 {
    let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    seconds.unwrap_or_default()
}

/// A short body; what is longer is cut.
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

/// A list that comes in.
struct Listing {
    body: Body,
    list: PodList,
    /// That of the list, after its end.
    version: String,
    what: &'static str,
    after: Duration,
    until: Instant,
}

impl Listing {
    /// The next pod, or why it cannot be read; `None` after the last one, when the version is known.
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

/// What is watched.
struct PodsOfNode {
    node: String,
    wanted: Wanted,
}

impl Watched for PodsOfNode {
    /// A pod that can be read, or why it cannot.
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
            News::Is(pod, version) => Told::Event(read_pod(pod, &self.wanted).map(Seen::Is), version),
            News::Gone(pod, version) => Told::Event(read_pod(pod, &self.wanted).map(Seen::Gone), version),
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
    /// Of the pods of a list that cannot be read one is told of.
    complained: bool,
    /// Since when the API server knows no version as new as ours.
    ahead: Option<Instant>,
}

/// How far it is.
enum At {
    /// Something may have been missed, or nothing was told yet.
    Nothing,
    /// Before the list.
    Before,
    /// In the list.
    Within(Box<Listing>),
    /// In the watch.
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

    /// Does one thing, of which there may be nothing to tell.
    async fn step(&mut self) -> Result<Option<PodEvent>, String> {
        match &mut self.at {
            At::Nothing => {
                self.watch.pace.wait().await;
                self.at = At::Before;
                self.complained = false;
                Ok(Some(Seen::Listing))
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
                Ok(Some(Ok(pod))) => Ok(Some(Seen::Listed(pod))),
                Ok(Some(Err(reason))) => Ok(self.leave_out(&reason)),
                Ok(None) => {
                    self.watch.go_on_from(std::mem::take(&mut listing.version));
                    (self.at, self.ahead) = (At::Watching, None);
                    Ok(Some(Seen::Complete))
                }
                Err(error) => Err(self.lose(&error)),
            },
            At::Watching => {
                let heard = self.watch.next().await;
                self.take(heard)
            }
        }
    }

    /// What is asked for. At first it may be as old as it likes: what it lacks the watch tells. From then on it must not be
    /// older than what was told; an API server that has just started waits until its cache is as new.
    fn list(&self) -> String {
        let (version, restored) =
            (self.watch.version(), self.ahead.is_some_and(|since| since.elapsed() > RESTORED));
        let age = match version.is_empty() || restored {
            true => "resourceVersion=0".to_owned(),
            false => format!("resourceVersion={version}&resourceVersionMatch=NotOlderThan"),
        };
        format!("{PODS}?fieldSelector={}&{age}", on(&self.node))
    }

    /// A list that failed is told from its beginning.
    fn lose(&mut self, error: &ClusterError) -> String {
        self.at = At::Nothing;
        self.watch.fail(Some(error));
        if is_ahead(error) {
            self.ahead.get_or_insert_with(Instant::now);
        }
        error.to_string()
    }

    /// One pod of a list that cannot be read must not cost us the others.
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
                // What was told of it before is no longer true: a list leaves it out.
                self.at = At::Nothing;
                self.watch.fail(None);
                Err(format!("a pod cannot be read: {reason}"))
            }
            Ok(Heard::Again) => Ok(Some(Seen::Again)),
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
