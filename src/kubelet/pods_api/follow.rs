//! List and watch of all pods of the Pods API, with a new list whenever events may have been missed: a watch
//! cannot be resumed (KEP-4188), and the kubelet drops events when its queue is full.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{Stream, unfold};
use prost::Message;
use prost::bytes::Bytes;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tonic::{Code, Streaming};
use tracing::{debug, warn};

use super::{Open, Outcome, PodsClient, PodsError, PodsPath, unary};
use crate::core_v1::{reduce_to, read_pod};
use crate::kubelet::belief::{Belief, SOON, Teller};
use crate::kubelet::connector::SocketId;
use crate::kubelet::proto::pods::{EventType, GetPodRequest, GetPodResponse, WatchPodsEvent};
use crate::pod::{Liveness, Pod, PodEvent, Wanted, RawPod};
use crate::pod::annotation::PodMap;
use crate::util::backoff::{back_off, jittered};

/// Interval of resyncs: the kubelet may drop an event silently. A new watch sends one pod at a time, while
/// ListPods would send all of them in one message of some 10 KiB per pod.
const ANEW: Duration = Duration::from_secs(180);

/// The same while there are terminated pods: no event reports the deletion of such a pod's object.
const ANEW_AFTER_END: Duration = Duration::from_secs(60);

/// For servers that have never sent a marker at the end of a list, as early builds do not: the list is
/// complete when nothing arrived for this long.
const SILENCE: Duration = Duration::from_secs(10);

/// A kubelet older than this is assumed to know all its pods if no earlier list is available to compare with.
const GROWN_UP: Duration = Duration::from_secs(60);

/// First and last delay between lookups of a pod that was reported deleted: kubelets report it a moment
/// before the object is gone.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
const LOOK_LIMIT: Duration = Duration::from_secs(5);
/// Minimum interval of such lookups: all clients of a kubelet share a rate limit of 100 per second with a
/// burst of 10.
const LOOKS: Duration = Duration::from_millis(20);

/// The end of a watch that lasted this long after its list is not counted as a failure.
const STEADY: Duration = Duration::from_secs(5);

/// First delay after a failure.
const RETRY: Duration = Duration::from_millis(100);
/// Maximum delay after a failure.
const RETRY_LIMIT: Duration = Duration::from_secs(5);
/// Delay if no socket serves the Pods API: the kubelet may be replaced by one that does.
const UNSERVED: Duration = Duration::from_secs(30);

/// The event source returned by [`PodsClient::follow`].
pub struct PodsFollow {
    client: PodsClient,
    wanted: Wanted,
    watch: Option<Watch>,
    belief: Belief,
    /// Events not yet returned.
    events: VecDeque<PodEvent>,
    /// Pods that were reported deleted and whose fate is not known yet.
    deleted: BTreeMap<Key, Deleted>,
    /// The lookup in progress, and its pod.
    looking: Option<(Key, BoxFuture<'static, Look>)>,
    /// The earliest time of the next lookup.
    next_look: Instant,
    /// The kubelet whose lists are accepted at once: an earlier list was accepted, or it has reported that it
    /// was still starting.
    known: Option<SocketId>,
    /// By socket, whether its server has ever sent a marker at the end of a list.
    marks: Vec<bool>,
    failures: u32,
    not_before: Instant,
}

/// A pod that was reported deleted.
struct Deleted {
    pod: Pod,
    /// The result of the last lookup.
    left: Option<Found>,
    looks: u32,
    due: Instant,
}

/// A pod as returned by a lookup. A hash replaces the serialized pod and the annotations, which may be large
/// and are only compared.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    pod: Pod,
    rest: u64,
}

impl Found {
    fn of(pod: &Pod) -> Self {
        let mut hasher = DefaultHasher::new();
        pod.annotations.hash(&mut hasher);
        if let Some(RawPod::Protobuf(bytes)) = pod.raw.as_deref() {
            bytes.hash(&mut hasher);
        }
        let pod = Pod { raw: None, annotations: Box::default(), ..pod.clone() };
        Self { pod, rest: hasher.finish() }
    }
}

/// The result of looking up a pod.
enum Look {
    /// The pod exists.
    There(Box<Pod>),
    /// The pod does not exist.
    Gone,
    /// The lookup failed.
    Unknown,
}

/// One watch on one connection.
#[derive(Debug)]
struct Watch {
    open: Open,
    told: Streaming<Bytes>,
    /// The incoming list, by UID: briefly there may be two pods of the same name.
    listing: Option<PodMap<Key>>,
    /// When to start the next watch.
    ends: Instant,
    /// When its list was complete.
    complete: Option<Instant>,
    /// Set once an undecodable pod was logged.
    complained: bool,
}

/// UID, namespace and name; the latter two for pods without a UID.
type Key = (String, String, String);

fn key(pod: &Pod) -> Key {
    (pod.uid.clone(), pod.namespace.clone(), pod.name.clone())
}

impl PodsFollow {
    pub(super) fn new(client: PodsClient, wanted: Wanted) -> Self {
        let marks = vec![false; client.sockets.len()];
        Self {
            client,
            wanted,
            watch: None,
            belief: Belief::default(),
            events: VecDeque::new(),
            deleted: BTreeMap::new(),
            looking: None,
            next_look: Instant::now(),
            known: None,
            marks,
            failures: 0,
            not_before: Instant::now(),
        }
    }

    /// Returns the next event: first all pods ([`PodEvent::Init`], [`PodEvent::InitApply`] for each,
    /// [`PodEvent::InitDone`]), then changes, and periodically all pods again. It may be dropped while
    /// waiting for events. If dropped while connecting, the next call starts connecting again, so callers
    /// that cancel often should use [`PodsFollow::stream`].
    ///
    /// # Errors
    /// Why no events are available at the moment. The watch is retried after a backoff, with a new list.
    pub async fn next(&mut self) -> Result<PodEvent, PodsError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            if let Err(error) = self.hear().await {
                self.fail(&error);
                return Err(error);
            }
        }
    }

    /// Returns the events as a stream, which never ends.
    pub fn stream(self) -> impl Stream<Item = Result<PodEvent, PodsError>> + Send + 'static {
        unfold(self, |mut follow| async { Some((follow.next().await, follow)) })
    }

    /// Returns the socket that is watched.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        self.watch.as_ref().map(|watch| &**self.path(&watch.open))
    }

    /// Returns why the sockets before it failed.
    #[must_use]
    pub fn passed_over(&self) -> &[PodsError] {
        &self.client.passed_over
    }

    fn path(&self, open: &Open) -> &PathBuf {
        &self.client.sockets[open.socket]
    }

    /// Waits for one event, lookup or timeout and handles it.
    async fn hear(&mut self) -> Result<(), PodsError> {
        let Some(watch) = &mut self.watch else {
            sleep_until(self.not_before).await;
            self.watch = Some(self.begin(None).await?);
            return Ok(());
        };
        let listing = watch.listing.is_some();
        let marks = self.marks[watch.open.socket];
        let after = if marks { self.client.deadline } else { SILENCE };
        let limit = if listing { Instant::now() + after } else { watch.ends };
        // No lookups during a list: it shows which pods exist.
        let look = self.next_look().filter(|due| !listing && *due < limit);
        if self.looking.is_some() || look.is_some_and(|due| due <= Instant::now()) {
            self.look_after().await;
            return Ok(());
        }
        let Some(watch) = &mut self.watch else { return Ok(()) };
        let limit = look.unwrap_or(limit);
        let heard = timeout_at(limit, watch.told.message()).await;
        let path = || self.client.sockets[watch.open.socket].clone();
        match heard {
            Ok(Ok(Some(event))) => match WatchPodsEvent::decode(event) {
                Ok(event) => self.take(event),
                Err(error) => {
                    let reason = error.to_string();
                    return Err(PodsError::Garbled { path: path(), call: "WatchPods", reason });
                }
            },
            Ok(Ok(None)) => return Err(PodsError::Ended { path: path() }),
            Ok(Err(status)) => return Err(PodsError::of_status(&path(), "WatchPods", &status)),
            Err(_) if listing && marks => return Err(PodsError::Stuck { path: path(), after }),
            Err(_) if listing => self.complete(),
            Err(_) if look.is_some() => {}
            Err(_) => {
                // The old watch is kept until then: an earlier socket may take long to respond.
                let open = watch.open.clone();
                self.watch = Some(self.begin(Some(open)).await?);
            }
        }
        Ok(())
    }

    /// Handles the end of a list.
    fn complete(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        let Some(listed) = watch.listing.take() else { return };
        watch.complete = Some(Instant::now());
        let mut pods: Vec<Pod> = listed.into_iter().map(|(_, pod)| pod).collect();
        // If two pods share a name, emit the one that stays last, so name-keyed caches keep it.
        pods.sort_by_key(|pod| !goes(pod));
        if pods.iter().any(|pod| pod.liveness == Liveness::Terminated) {
            watch.hurry();
        }
        let identity = watch.open.identity;
        let grown_up = || !self.belief.knows_any() && identity.age() > GROWN_UP;
        let known = !self.client.doubts || self.known == Some(identity) || grown_up();
        let teller = if known { Teller::Known } else { Teller::Young };
        self.events.extend(self.belief.take(pods, teller, Instant::now()));
        if self.belief.doubts() {
            watch.ends = Instant::now() + SOON;
        } else {
            self.known = Some(identity);
        }
    }

    fn take(&mut self, event: WatchPodsEvent) {
        let Some(watch) = &mut self.watch else { return };
        let kind = event.r#type();
        if kind == EventType::InitialSyncComplete {
            self.marks[watch.open.socket] = true;
            return self.complete();
        }
        let pod = match read_pod(&event.pod, &self.wanted) {
            Ok(pod) => pod,
            Err(reason) => return watch.complain(&self.client.sockets[watch.open.socket], &reason),
        };
        match (kind, &mut watch.listing) {
            // ADDED and MODIFIED are treated alike: the first event of a new pod may be MODIFIED.
            (EventType::Added | EventType::Modified, Some(listing)) => {
                listing.insert(key(&pod), pod);
                reduce_to(self.client.budget, listing.values_mut());
            }
            (EventType::Added | EventType::Modified, None) => {
                self.deleted.remove(&key(&pod));
                self.is_there(pod);
            }
            (EventType::Deleted, listing) => {
                if let Some(listing) = listing {
                    listing.remove(&key(&pod));
                }
                let due = Instant::now();
                // A deletion needs only the pod's identity.
                let pod = Pod { raw: None, annotations: Box::default(), ..pod };
                self.deleted.insert(key(&pod), Deleted { pod, left: None, looks: 0, due });
            }
            (EventType::Unspecified | EventType::InitialSyncComplete, _) => {
                debug!("the server tells of a pod in a way that we do not know");
            }
        }
    }

    /// Returns when to look up the next pod that was reported deleted.
    fn next_look(&self) -> Option<Instant> {
        self.deleted.values().map(|deleted| deleted.due).min().map(|due| due.max(self.next_look))
    }

    /// Looks up a pod that was reported deleted: kubelets send DELETED when none of its containers will run
    /// again, although its object may live on as Succeeded or Failed (seen with 1.36).
    async fn look_after(&mut self) {
        if self.looking.is_none() {
            let first = self.deleted.iter().min_by_key(|(_, deleted)| deleted.due);
            let (Some(watch), Some((key, deleted))) = (&self.watch, first) else { return };
            let request = GetPodRequest { pod_uid: deleted.pod.uid.clone() }.encode_to_vec();
            let asked = unary(watch.open.channel.clone(), PodsPath::Get, request.into());
            let (deadline, wanted) = (self.client.deadline, self.wanted.clone());
            let look = async move { Look::of(timeout(deadline, asked).await, &wanted) };
            self.looking = Some((key.clone(), look.boxed()));
        }
        // Kept until it is done, since the caller may cancel.
        let Some((_, look)) = &mut self.looking else { return };
        let look = look.await;
        let Some((key, _)) = self.looking.take() else { return };
        self.next_look = Instant::now() + LOOKS;
        let Some(mut deleted) = self.deleted.remove(&key) else { return };
        deleted.due = Instant::now() + back_off(&mut deleted.looks, LOOK_AGAIN, LOOK_LIMIT);
        match look {
            Look::Gone => self.is_gone(deleted.pod),
            // It has terminated but was not deleted, so it stays.
            Look::There(left) if !left.deleted => self.is_there(*left),
            Look::There(left) => {
                let found = Found::of(&left);
                if deleted.left.as_ref() != Some(&found) {
                    self.is_there(*left);
                }
                self.deleted.insert(key, Deleted { left: Some(found), ..deleted });
            }
            Look::Unknown => drop(self.deleted.insert(key, deleted)),
        }
    }

    fn is_there(&mut self, pod: Pod) {
        if let Some(watch) = &mut self.watch
            && pod.liveness == Liveness::Terminated
        {
            watch.hurry();
        }
        self.belief.is(&pod);
        self.events.push_back(PodEvent::Apply(pod));
    }

    fn is_gone(&mut self, pod: Pod) {
        self.belief.gone(&pod);
        self.events.push_back(PodEvent::Delete(pod));
    }

    /// Starts another watch at the first socket that serves one; on the open connection if it still leads to
    /// the socket at its path.
    async fn begin(&mut self, open: Option<Open>) -> Result<Watch, PodsError> {
        self.client.open = open;
        let mut reasons = Vec::new();
        for socket in 0..self.client.sockets.len() {
            match self.client.watch_at(socket).await {
                Ok((open, told)) => {
                    self.client.passed_over = reasons;
                    let ends = Instant::now() + jittered(ANEW);
                    let listing = Some(PodMap::default());
                    return Ok(Watch { open, told, listing, ends, complete: None, complained: false });
                }
                Err(error) => {
                    // From 1.37 on a kubelet reports that it does not know its pods yet, so what it lists
                    // later is complete.
                    if error.is_starting() {
                        self.known = SocketId::of(&self.client.sockets[socket]).ok();
                    }
                    reasons.push(error);
                }
            }
        }
        Err(PodsError::all(reasons))
    }

    /// Drops the watch and schedules the next attempt.
    fn fail(&mut self, error: &PodsError) {
        // The next list shows what became of pods that were reported deleted.
        (self.looking, self.deleted) = (None, BTreeMap::new());
        let complete = self.watch.take().and_then(|watch| watch.complete);
        if complete.is_some_and(|complete| complete.elapsed() >= STEADY) {
            self.failures = 0;
        }
        let wait = match error.is_unserved() {
            true => jittered(UNSERVED),
            false => back_off(&mut self.failures, RETRY, RETRY_LIMIT),
        };
        self.not_before = Instant::now() + wait;
    }
}

/// Returns true if the pod is being deleted or has terminated.
fn goes(pod: &Pod) -> bool {
    pod.deleted || pod.liveness == Liveness::Terminated
}

impl Look {
    fn of(outcome: Outcome<Bytes>, wanted: &Wanted) -> Self {
        match outcome {
            Ok(Ok(answer)) => {
                let answer = GetPodResponse::decode(answer).map_err(|error| error.to_string());
                let pod = answer.and_then(|answer| read_pod(&answer.pod, wanted));
                pod.map_or(Self::Unknown, |pod| Self::There(Box::new(pod)))
            }
            Ok(Err(status)) if status.code() == Code::NotFound => Self::Gone,
            Ok(Err(_)) | Err(_) => Self::Unknown,
        }
    }
}

impl Watch {
    /// Brings the next resync forward.
    fn hurry(&mut self) {
        self.ends = self.ends.min(Instant::now() + jittered(ANEW_AFTER_END));
    }

    /// Logs an undecodable pod, once per watch, and goes on with the others.
    fn complain(&mut self, socket: &Path, reason: &str) {
        if !self.complained {
            let path = socket.display();
            warn!("a pod that the server at {path} tells of cannot be read and is left out: {reason}");
            self.complained = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_comes_in_keeps_no_more_than_its_budget_the_largest_as_outlines() {
        let mut listing = BTreeMap::new();
        for number in 0..64_usize {
            let bytes = vec![0; if number.is_multiple_of(2) { 1_400_000 } else { 10_000 }];
            let whole = Some(Box::new(RawPod::Protobuf(bytes.into())));
            let pod = Pod { uid: number.to_string(), raw: whole, ..Pod::default() };
            listing.insert(key(&pod), pod);
            reduce_to(16 << 20, listing.values_mut());
            assert!(listing.values().map(Pod::raw_bytes).sum::<usize>() <= 16 << 20);
        }
        let is_outline = |pod: &&Pod| matches!(pod.raw.as_deref(), Some(RawPod::Outline(_, 1_400_000)));
        assert_eq!(listing.values().filter(is_outline).count(), 32 - 11);
    }
}
