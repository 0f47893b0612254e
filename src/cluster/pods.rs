//! The pods of one node, from a list and a watch on the API server, in protocol buffers: a pod takes less than half of
//! the bytes that it has in JSON, and can be handed on as it came.

mod answers;
mod frames;

use std::time::Duration;

use futures::Stream;
use futures::stream::unfold;
use http_body_util::BodyExt;
use hyper::body::Body as _;
use hyper::header::{ACCEPT, ACCEPT_ENCODING, HeaderValue};
use kube::api::{ListParams, WatchParams};
use kube::client::Body;
use kube::core::{Request, Status};
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::{debug, warn};

use super::{Cluster, ClusterError, Failure, chain};
use crate::backoff::back_off;
use crate::core_v1::read_pod;
use crate::pod::{Pod, PodEvent, PodName, Wanted};
use crate::seen::Seen;

pub use answers::{News, Odd, PodPage, refusal};
pub use frames::Frames;

/// Where all pods are.
const PODS: &str = "/api/v1/pods";
/// What is done, in sentences.
const LIST: &str = "list pods of the node";
/// Likewise.
const WATCH: &str = "watch pods of the node";
/// How they are wanted...
const ACCEPTED: &str = "application/vnd.kubernetes.protobuf";
/// ...and how, one after the other.
const ACCEPTED_OF_WATCH: &str = "application/vnd.kubernetes.protobuf;stream=watch";

/// A node's pods are listed in pages of so many: a page is held for a moment, at some 5 KiB a pod.
const PAGE: u32 = 32;
/// The largest page that is taken; of a larger one fewer pods are asked for. A single pod is at most some 3 MiB, which is
/// what the API server takes.
const LARGEST_PAGE: usize = frames::LARGEST;
/// An answer that is no success is no longer.
const LARGEST_REFUSAL: usize = 64 << 10;

/// For how long a watch is asked for; the next one goes on where it ended. Load balancers drop flows that are silent for
/// some minutes, and nothing but this tells that a watch is dead.
const WATCH_SECONDS: u32 = 60;
/// An answer is waited for as long, and the end of a watch from when it was asked for: the API server itself ends the one
/// and gives up the other after a minute.
const ANSWER: Duration = Duration::from_secs(65);

/// How soon a watch that failed is asked for again...
const RETRY: Duration = Duration::from_millis(800);
/// ...and the longest wait between two failures.
const RETRY_LIMIT: Duration = Duration::from_secs(30);
/// A watch that was asked for again and has not failed after this may work.
const QUIET: Duration = Duration::from_secs(1);
/// A watch that does not last as long is no good: who cuts it would be asked again and again.
const SHORT: Duration = Duration::from_secs(10);

impl Cluster {
    /// Follows the pods of `node`, with what is wanted of them. An error is one sentence, and it goes on after a back-off.
    pub fn pods_of(
        &self,
        node: &str,
        wanted: Wanted,
    ) -> impl Stream<Item = Result<PodEvent, String>> + Send + 'static {
        let following = Following {
            cluster: self.clone(),
            node: node.to_owned(),
            wanted,
            at: At::Nothing,
            version: String::new(),
            failures: 0,
            broken: false,
            complained: false,
            not_before: Instant::now(),
        };
        unfold(following, |mut following| async { Some((following.next().await, following)) })
    }

    /// Does the API server answer when it is asked for pods of this node?
    async fn tells_pods(&self, node: &str) -> bool {
        let one = ListParams::default().fields(&on(node)).limit(1);
        self.pod_page(self.timeout, "list one pod of the node", PODS, &one).await.is_ok()
    }

    /// The pod of this name on `node`, as it is now, with what is wanted of it; `None` if there is none. It is listed,
    /// since who may watch the node's pods may list them, and need not be allowed to get one.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn pod_of(
        &self,
        node: &str,
        (namespace, name): &PodName,
        wanted: &Wanted,
    ) -> Result<Option<Pod>, ClusterError> {
        // The same for every pod: it stands in sentences that are told once.
        let what = "list one pod of the node";
        let this = ListParams::default().fields(&format!("metadata.name={name},{}", on(node)));
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let wrong = |reason| self.not_understood(what, reason);
        match self.pod_page(self.timeout, what, &path, &this).await? {
            Some(mut page) => page.take(wanted).transpose().map_err(wrong),
            None => Err(wrong(Odd::TooLarge(LARGEST_PAGE).to_string())),
        }
    }

    /// Some pods; `None` if they are larger together than what is taken.
    async fn pod_page(
        &self,
        deadline: Duration,
        what: &str,
        path: &str,
        which: &ListParams,
    ) -> Result<Option<PodPage>, ClusterError> {
        let request = Request::new(path).list(which).map_err(kube::Error::BuildRequest);
        let call = async {
            let mut body = self.ask(request?, ACCEPTED).await?;
            collect(&mut body, LARGEST_PAGE).await
        };
        let bytes = self.within(deadline, what, call).await.map_err(|failure| failure.explain(what))?;
        let page = bytes.map(PodPage::open).transpose();
        page.map_err(|odd| self.not_understood(what, odd.to_string()))
    }

    /// Begins a watch of a node's pods after `version`.
    async fn pod_watch(&self, node: &str, version: &str) -> Result<Body, ClusterError> {
        let which = WatchParams::default().fields(&on(node)).timeout(WATCH_SECONDS);
        let request = Request::new(PODS).watch(&which, version).map_err(kube::Error::BuildRequest);
        let call = async { self.ask(request?, ACCEPTED_OF_WATCH).await };
        self.within(ANSWER, WATCH, call).await.map_err(|failure| failure.explain(WATCH))
    }

    /// Asks for protocol buffers. What comes is not compressed: some servers compress each event of a watch by itself.
    async fn ask(&self, request: hyper::Request<Vec<u8>>, accept: &'static str) -> Result<Body, kube::Error> {
        let mut request = request.map(Body::from);
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(accept));
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let (head, mut body) = self.client.send(request).await?.into_parts();
        if head.status.is_success() {
            return Ok(body);
        }
        let told = collect(&mut body, LARGEST_REFUSAL).await?.unwrap_or_default();
        Err(kube::Error::Api(refusal(head.status.as_u16(), &told)))
    }

    fn not_understood(&self, what: &str, reason: String) -> ClusterError {
        ClusterError::NotUnderstood { server: self.server.clone(), what: what.to_owned(), reason }
    }
}

/// The field selector for the pods of a node.
fn on(node: &str) -> String {
    format!("spec.nodeName={node}")
}

/// All of a body; `None` if that is more than `most`.
async fn collect(body: &mut Body, most: usize) -> Result<Option<Vec<u8>>, kube::Error> {
    let expected = body.size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
    let mut bytes = Vec::with_capacity(expected.unwrap_or_default().min(most));
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame?.into_data() else { continue };
        if bytes.len() + piece.len() > most {
            return Ok(None);
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(Some(bytes))
}

/// A list and the watches after it, and what is known of them.
struct Following {
    cluster: Cluster,
    node: String,
    wanted: Wanted,
    at: At,
    /// All up to this version was told, once a list was.
    version: String,
    failures: u32,
    /// It failed, and has told nothing since.
    broken: bool,
    /// Of the pods of a list that cannot be read one is told of.
    complained: bool,
    not_before: Instant,
}

/// How far it is.
enum At {
    /// Something may have been missed, or nothing was told yet.
    Nothing,
    /// Before a page of so many pods; the first one if there is no place where it begins.
    Before(String, u32),
    /// In a page, of which the next one has as many.
    Within(PodPage, u32),
    /// Between two watches.
    Idle,
    /// In a watch.
    Watching(Watch),
}

/// A watch that goes on.
struct Watch {
    body: Body,
    frames: Frames,
    /// When it was asked for.
    since: Instant,
    /// It has told something.
    told: bool,
}

impl Following {
    async fn next(&mut self) -> Result<PodEvent, String> {
        sleep_until(self.not_before).await;
        loop {
            match self.step().await {
                Ok(None) => {}
                Ok(Some(event)) => {
                    self.note(&event);
                    return Ok(event);
                }
                Err(reason) => {
                    self.broken = true;
                    self.not_before = Instant::now() + back_off(&mut self.failures, RETRY, RETRY_LIMIT);
                    return Err(format!("cannot watch the node's pods: {reason}"));
                }
            }
        }
    }

    fn note(&mut self, event: &PodEvent) {
        // A list that has begun may fail as the one before did.
        if event.is_proof() {
            (self.broken, self.failures) = (false, 0);
        }
    }

    /// Does one thing, of which there may be nothing to tell.
    async fn step(&mut self) -> Result<Option<PodEvent>, String> {
        match &mut self.at {
            At::Nothing => {
                self.at = At::Before(String::new(), PAGE);
                self.complained = false;
                Ok(Some(Seen::Listing))
            }
            At::Before(..) => self.turn_page().await.map(|()| None),
            At::Within(page, _) => match page.take(&self.wanted) {
                Some(Ok(pod)) => Ok(Some(Seen::Listed(pod))),
                Some(Err(reason)) => Ok(self.leave_out(&reason)),
                None => Ok(self.end_of_page()),
            },
            At::Idle => self.begin().await.map(|()| None),
            At::Watching(_) => self.hear().await,
        }
    }

    async fn turn_page(&mut self) -> Result<(), String> {
        // Whatever goes wrong, a list is told from its beginning.
        let At::Before(next, pods) = std::mem::replace(&mut self.at, At::Nothing) else { return Ok(()) };
        let mut which = ListParams::default().fields(&on(&self.node)).limit(pods);
        which.continue_token = Some(next.clone()).filter(|next| !next.is_empty());
        let page = self.cluster.pod_page(ANSWER, LIST, PODS, &which).await;
        self.at = match page.map_err(|error| error.to_string())? {
            Some(page) => At::Within(page, pods),
            // No limit at all is what 0 would be.
            None if pods > 1 => At::Before(next, (pods / 4).max(1)),
            None => return Err(self.odd(LIST, &Odd::TooLarge(LARGEST_PAGE))),
        };
        Ok(())
    }

    fn end_of_page(&mut self) -> Option<PodEvent> {
        let At::Within(page, pods) = std::mem::replace(&mut self.at, At::Nothing) else { return None };
        if !page.next.is_empty() {
            self.at = At::Before(page.next, pods);
            return None;
        }
        self.version = page.version;
        self.at = At::Idle;
        Some(Seen::Complete)
    }

    /// One pod of a list that cannot be read must not cost us the others.
    fn leave_out(&mut self, reason: &str) -> Option<PodEvent> {
        if !self.complained {
            warn!("a pod that the API server tells of cannot be read and is left out: {reason}");
            self.complained = true;
        }
        None
    }

    async fn begin(&mut self) -> Result<(), String> {
        let since = Instant::now();
        match self.cluster.pod_watch(&self.node, &self.version).await {
            Ok(body) => {
                self.at = At::Watching(Watch { body, frames: Frames::default(), since, told: false });
                Ok(())
            }
            Err(error) => Err(self.lose(&error)),
        }
    }

    /// Hears what a watch tells next.
    async fn hear(&mut self) -> Result<Option<PodEvent>, String> {
        let At::Watching(watch) = &mut self.at else { return Ok(None) };
        match watch.frames.take() {
            Ok(Some(frame)) => {
                watch.told = true;
                let heard = News::read(frame).map(|news| Heard::of(news, &self.wanted));
                return heard.map_err(|odd| self.odd(WATCH, &odd)).and_then(|heard| self.take(heard));
            }
            Ok(None) => {}
            Err(odd) => return Err(self.odd(WATCH, &odd)),
        }
        let ends = watch.since + ANSWER;
        // One that works again says nothing as long as nothing happens.
        let limit = if self.broken { ends.min(Instant::now() + QUIET) } else { ends };
        match timeout_at(limit, watch.body.frame()).await {
            Ok(Some(Ok(frame))) => {
                if let Ok(piece) = frame.into_data() {
                    watch.frames.put(&piece);
                }
                Ok(None)
            }
            Ok(Some(Err(error))) => self.end(Some(&error)).map(|()| None),
            Ok(None) => self.end(None).map(|()| None),
            Err(_) if limit == ends => self.end(None).map(|()| None),
            Err(_) => Ok(self.cluster.tells_pods(&self.node).await.then_some(Seen::Again)),
        }
    }

    fn take(&mut self, heard: Heard) -> Result<Option<PodEvent>, String> {
        match heard {
            Heard::Pod(Ok(event), version) => {
                self.version = version;
                Ok(Some(event))
            }
            Heard::Pod(Err(reason), _) => {
                // What was told of it before is no longer true: a list leaves it out.
                self.at = At::Nothing;
                Err(format!("a pod cannot be read: {reason}"))
            }
            Heard::Until(version) => {
                self.version = version;
                Ok(None)
            }
            Heard::Failed(status) => Err(self.lose(&Failure::Status(status).explain(WATCH))),
        }
    }

    /// After the end of a watch, in time or because it was cut: the next one tells what this one did not.
    fn end(&mut self, error: Option<&kube::Error>) -> Result<(), String> {
        let At::Watching(watch) = std::mem::replace(&mut self.at, At::Idle) else { return Ok(()) };
        let lasted = watch.since.elapsed();
        let reason = error.map_or_else(|| "the API server ended it".to_owned(), |error| chain(error));
        debug!("the watch of the node's pods ended after {lasted:.1?}: {reason}");
        if lasted >= SHORT || (watch.told && error.is_none()) {
            return Ok(());
        }
        Err(format!("the watch lasted {lasted:.1?} only: {reason}"))
    }

    /// After a watch that was refused: is what was told still something to go on from?
    fn lose(&mut self, error: &ClusterError) -> String {
        let useless = match error {
            // The version is too old, or is none.
            ClusterError::Refused { code: 400 | 410, .. } => true,
            // It is newer than any that there is. A load balancer's 504 says nothing of it.
            ClusterError::Refused { code: 504, message, .. } => {
                message.contains("Too large resource version")
            }
            _ => false,
        };
        self.at = if useless { At::Nothing } else { At::Idle };
        error.to_string()
    }

    /// After something that should not be there, everything is listed again.
    fn odd(&mut self, what: &str, odd: &Odd) -> String {
        self.at = At::Nothing;
        self.cluster.not_understood(what, odd.to_string()).to_string()
    }
}

/// What a frame says, when the frame is gone.
enum Heard {
    Pod(Result<PodEvent, String>, String),
    Until(String),
    Failed(Box<Status>),
}

impl Heard {
    fn of(news: News<'_>, wanted: &Wanted) -> Self {
        match news {
            News::Is(pod, version) => Self::Pod(read_pod(pod, wanted).map(Seen::Is), version),
            News::Gone(pod, version) => Self::Pod(read_pod(pod, wanted).map(Seen::Gone), version),
            News::Until(version) => Self::Until(version),
            News::Failed(status) => Self::Failed(status),
        }
    }
}
