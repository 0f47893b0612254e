//! All pods of the Pods API and what becomes of them, with everything listed anew whenever something may have been missed
//! (kubelet.md 4.3).

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{Stream, unfold};
use prost::Message;
use prost::bytes::Bytes;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tonic::Streaming;
use tracing::{debug, warn};

use super::{Open, PodsClient, PodsError, PodsPath, read, unary};
use crate::backoff::{back_off, jittered};
use crate::kubelet::belief::{Belief, SOON, Teller};
use crate::kubelet::client::{Identity, age};
use crate::kubelet::proto::pods::{EventType, GetPodRequest, GetPodResponse, WatchPodsEvent};
use crate::pod::{Life, Pod, PodEvent, Wanted};

/// How often everything is told anew: the kubelet may lose an event without a word. A new watch tells one pod at a
/// time, where ListPods would tell all of them in one message of some 10 KiB each.
const ANEW: Duration = Duration::from_secs(180);

/// The same while there are pods that have ended: nothing tells that the object of such a one is deleted.
const ANEW_AFTER_END: Duration = Duration::from_secs(60);

/// Where a server has never said that its list is complete, as early builds do not, it is when nothing came for so long.
const SILENCE: Duration = Duration::from_secs(10);

/// A kubelet that is as old knows its pods, as far as anybody can tell who knew none of them before.
const GROWN_UP: Duration = Duration::from_secs(60);

/// How soon to try again after a failure.
const RETRY: Duration = Duration::from_millis(100);
/// The longest wait between two failures.
const RETRY_LIMIT: Duration = Duration::from_secs(5);
/// How soon to ask again where nobody serves this: a kubelet may be replaced by one that does.
const UNSERVED: Duration = Duration::from_secs(30);

/// What [`PodsClient::follow`] tells.
pub struct PodsFollow {
    client: PodsClient,
    wanted: Wanted,
    watch: Option<Watch>,
    belief: Belief,
    /// What is still to be told.
    events: VecDeque<PodEvent>,
    /// Pods that were said to be deleted, to be looked after.
    deleted: VecDeque<Pod>,
    /// One of them, and the answer to come.
    looking: Option<(Pod, BoxFuture<'static, Option<Bytes>>)>,
    /// The kubelet that told a list which was believed.
    known: Option<Identity>,
    /// The sockets at which somebody has said that a list is complete.
    marks: Vec<bool>,
    failures: u32,
    not_before: Instant,
}

/// One watch on one connection.
#[derive(Debug)]
struct Watch {
    open: Open,
    told: Streaming<Bytes>,
    /// The list that is coming in, by UID: for a moment there may be two pods of one name.
    listing: Option<BTreeMap<Key, Pod>>,
    /// When to begin another.
    ends: Instant,
    /// A pod that cannot be read is told of once.
    complained: bool,
}

/// UID, and namespace and name where somebody gave none.
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
            deleted: VecDeque::new(),
            looking: None,
            known: None,
            marks,
            failures: 0,
            not_before: Instant::now(),
        }
    }

    /// What is told next: all pods at first ([`PodEvent::Listing`], each [`PodEvent::Listed`], [`PodEvent::Complete`]), then
    /// what becomes of them; all again now and then. May be dropped while it waits.
    ///
    /// # Errors
    /// Why nothing is told at the moment; it goes on after a while, with everything listed anew.
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

    /// The same as a stream, which does not end.
    pub fn stream(self) -> impl Stream<Item = Result<PodEvent, PodsError>> + Send + 'static {
        unfold(self, |mut follow| async { Some((follow.next().await, follow)) })
    }

    /// The socket at which somebody tells.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        self.watch.as_ref().map(|watch| &**self.path(&watch.open))
    }

    /// Why nobody told at the sockets before it.
    #[must_use]
    pub fn passed_over(&self) -> &[PodsError] {
        &self.client.passed_over
    }

    fn path(&self, open: &Open) -> &PathBuf {
        &self.client.sockets[open.socket]
    }

    /// Hears one thing, be it that there is nothing to hear.
    async fn hear(&mut self) -> Result<(), PodsError> {
        let Some(watch) = &mut self.watch else {
            sleep_until(self.not_before).await;
            self.watch = Some(self.begin(None).await?);
            return Ok(());
        };
        if self.looking.is_some() || !self.deleted.is_empty() {
            self.look_after().await;
            return Ok(());
        }
        let listing = watch.listing.is_some();
        let marks = self.marks[watch.open.socket];
        let after = if marks { self.client.deadline } else { SILENCE };
        let limit = if listing { Instant::now() + after } else { watch.ends };
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
            Err(_) => {
                let open = self.watch.take().map(|watch| watch.open);
                self.watch = Some(self.begin(open).await?);
            }
        }
        Ok(())
    }

    /// The list is complete.
    fn complete(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        let Some(listed) = watch.listing.take() else { return };
        self.failures = 0;
        let mut pods: Vec<Pod> = listed.into_values().collect();
        // Of two that have one name the one that stays comes last: who knows pods by name keeps that.
        pods.sort_by_key(|pod| !goes(pod));
        if pods.iter().any(|pod| pod.life == Life::Ended) {
            watch.hurry();
        }
        let identity = watch.open.identity;
        let grown_up = || !self.belief.knows_any() && age(identity) > GROWN_UP;
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
        let pod = match read(&event.pod, &self.wanted) {
            Ok(pod) => pod,
            Err(reason) => return watch.complain(&self.client.sockets[watch.open.socket], &reason),
        };
        match (kind, &mut watch.listing) {
            // Which of the two it is says nothing: the first word of a new pod may be that it was modified.
            (EventType::Added | EventType::Modified, Some(listing)) => {
                listing.insert(key(&pod), pod);
            }
            (EventType::Added | EventType::Modified, None) => self.is_there(pod),
            (EventType::Deleted, Some(listing)) => {
                listing.remove(&key(&pod));
            }
            (EventType::Deleted, None) => self.deleted.push_back(pod),
            (EventType::Unspecified | EventType::InitialSyncComplete, _) => {
                debug!("the server tells of a pod in a way that we do not know");
            }
        }
    }

    /// Looks what has become of a pod that was said to be deleted: kubelets say so when no container of it will ever run
    /// again, though its object may live on, Succeeded or Failed (seen with 1.36).
    async fn look_after(&mut self) {
        if self.looking.is_none() {
            let (Some(watch), Some(pod)) = (&self.watch, self.deleted.pop_front()) else { return };
            let request = GetPodRequest { pod_uid: pod.uid.clone() }.encode_to_vec();
            let asked = unary(watch.open.channel.clone(), PodsPath::Get, request.into());
            let answer = timeout(self.client.deadline, asked).map(|answer| answer.ok().and_then(Result::ok));
            self.looking = Some((pod, answer.boxed()));
        }
        // Kept until it is there: somebody may stop waiting for it.
        let Some((_, answer)) = &mut self.looking else { return };
        let answer = answer.await;
        let Some((pod, _)) = self.looking.take() else { return };
        let answer = answer.and_then(|answer| GetPodResponse::decode(answer).ok());
        match answer.and_then(|answer| read(&answer.pod, &self.wanted).ok()) {
            Some(left) => self.is_there(left),
            None => self.is_gone(pod),
        }
    }

    fn is_there(&mut self, pod: Pod) {
        if let Some(watch) = &mut self.watch
            && pod.life == Life::Ended
        {
            watch.hurry();
        }
        self.belief.is(&pod);
        self.events.push_back(PodEvent::Is(pod));
    }

    fn is_gone(&mut self, pod: Pod) {
        self.belief.gone(&pod);
        self.events.push_back(PodEvent::Gone(pod));
    }

    /// Another watch, at the first socket where there is one; on the connection that there is, if that still leads to
    /// whoever serves there.
    async fn begin(&mut self, open: Option<Open>) -> Result<Watch, PodsError> {
        self.client.open = open;
        let mut reasons = Vec::new();
        for socket in 0..self.client.sockets.len() {
            match self.client.watch_at(socket).await {
                Ok((open, told)) => {
                    self.client.passed_over = reasons;
                    let ends = Instant::now() + jittered(ANEW);
                    let listing = Some(BTreeMap::new());
                    return Ok(Watch { open, told, listing, ends, complained: false });
                }
                Err(error) => reasons.push(error),
            }
        }
        Err(PodsError::all(reasons))
    }

    /// Ends the watch and says when to try again.
    fn fail(&mut self, error: &PodsError) {
        self.watch = None;
        if let Some((pod, _)) = self.looking.take() {
            self.is_gone(pod);
        }
        while let Some(pod) = self.deleted.pop_front() {
            self.is_gone(pod);
        }
        let wait = match error.is_unserved() {
            true => jittered(UNSERVED),
            false => back_off(&mut self.failures, RETRY, RETRY_LIMIT),
        };
        self.not_before = Instant::now() + wait;
    }
}

/// Is it on its way out?
fn goes(pod: &Pod) -> bool {
    pod.deleted || pod.life == Life::Ended
}

impl Watch {
    /// It is listened to for a shorter time.
    fn hurry(&mut self) {
        self.ends = self.ends.min(Instant::now() + jittered(ANEW_AFTER_END));
    }

    /// One pod that cannot be read must not cost us the others.
    fn complain(&mut self, socket: &Path, reason: &str) {
        if !self.complained {
            let path = socket.display();
            warn!("a pod that the server at {path} tells of cannot be read and is left out: {reason}");
            self.complained = true;
        }
    }
}
