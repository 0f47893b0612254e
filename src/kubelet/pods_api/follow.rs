//! All pods of the Pods API and what becomes of them, with everything listed anew whenever something may have been missed
//! (kubelet.md 4.3).

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
use crate::backoff::{back_off, jittered};
use crate::core_v1::{keep_within, read_pod};
use crate::kubelet::belief::{Belief, SOON, Teller};
use crate::kubelet::client::{Identity, age, identity};
use crate::kubelet::proto::pods::{EventType, GetPodRequest, GetPodResponse, WatchPodsEvent};
use crate::pod::{Life, Pod, PodEvent, Wanted, Whole};

/// How often everything is told anew: the kubelet may lose an event without a word. A new watch tells one pod at a
/// time, where ListPods would tell all of them in one message of some 10 KiB each.
const ANEW: Duration = Duration::from_secs(180);

/// The same while there are pods that have ended: nothing tells that the object of such a one is deleted.
const ANEW_AFTER_END: Duration = Duration::from_secs(60);

/// Where a server has never said that its list is complete, as early builds do not, it is when nothing came for so long.
const SILENCE: Duration = Duration::from_secs(10);

/// A kubelet that is as old knows its pods, as far as anybody can tell who knew none of them before.
const GROWN_UP: Duration = Duration::from_secs(60);

/// How soon to look again after a pod that was said to be deleted, at first and at last: kubelets say so a moment before its
/// object goes.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
const LOOK_LIMIT: Duration = Duration::from_secs(5);
/// How far apart such looks are: all clients of a kubelet share a limit of 100 in a second, 10 at once.
const LOOKS: Duration = Duration::from_millis(20);

/// A watch that has lived for so long after its list is no failure when it ends.
const STEADY: Duration = Duration::from_secs(5);

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
    /// Pods that were said to be deleted, until it is known what became of them.
    deleted: BTreeMap<Key, Deleted>,
    /// One of them, and the answer to come.
    looking: Option<(Key, BoxFuture<'static, Look>)>,
    /// When the next may be looked after.
    next_look: Instant,
    /// The kubelet whose lists are believed: one of them was, or it said that it had none yet.
    known: Option<Identity>,
    /// The sockets at which somebody has said that a list is complete.
    marks: Vec<bool>,
    failures: u32,
    not_before: Instant,
}

/// A pod that was said to be deleted.
struct Deleted {
    pod: Pod,
    /// What was found of it last.
    left: Option<Found>,
    looks: u32,
    due: Instant,
}

/// A pod as it was found: only whether it is another one by now has to be known, and whole ones are large.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    pod: Pod,
    whole: u64,
}

impl Found {
    fn of(pod: &Pod) -> Self {
        let mut hasher = DefaultHasher::new();
        if let Some(Whole::Protobuf(bytes)) = pod.whole.as_deref() {
            bytes.hash(&mut hasher);
        }
        Self { pod: Pod { whole: None, ..pod.clone() }, whole: hasher.finish() }
    }
}

/// What a look after a pod has shown.
enum Look {
    /// It is there.
    There(Box<Pod>),
    /// It is not.
    Gone,
    /// Nobody knows.
    Unknown,
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
    /// When its list was complete.
    complete: Option<Instant>,
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
            deleted: BTreeMap::new(),
            looking: None,
            next_look: Instant::now(),
            known: None,
            marks,
            failures: 0,
            not_before: Instant::now(),
        }
    }

    /// What is told next: all pods at first ([`PodEvent::Listing`], each [`PodEvent::Listed`], [`PodEvent::Complete`]), then
    /// what becomes of them; all again now and then. May be dropped while it waits for news; while it connects, that is begun
    /// anew the next time, so whoever stops waiting often takes [`PodsFollow::stream`].
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
        let listing = watch.listing.is_some();
        let marks = self.marks[watch.open.socket];
        let after = if marks { self.client.deadline } else { SILENCE };
        let limit = if listing { Instant::now() + after } else { watch.ends };
        // A list that comes in tells of them all.
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
                // The old one stays until then: an earlier socket may keep us waiting.
                let open = watch.open.clone();
                self.watch = Some(self.begin(Some(open)).await?);
            }
        }
        Ok(())
    }

    /// The list is complete.
    fn complete(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        let Some(listed) = watch.listing.take() else { return };
        watch.complete = Some(Instant::now());
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
        let pod = match read_pod(&event.pod, &self.wanted) {
            Ok(pod) => pod,
            Err(reason) => return watch.complain(&self.client.sockets[watch.open.socket], &reason),
        };
        match (kind, &mut watch.listing) {
            // Which of the two it is says nothing: the first word of a new pod may be that it was modified.
            (EventType::Added | EventType::Modified, Some(listing)) => {
                listing.insert(key(&pod), pod);
                keep_within(self.client.budget, listing.values_mut());
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
                // Who it was is all that has to be told.
                let pod = Pod { whole: None, ..pod };
                self.deleted.insert(key(&pod), Deleted { pod, left: None, looks: 0, due });
            }
            (EventType::Unspecified | EventType::InitialSyncComplete, _) => {
                debug!("the server tells of a pod in a way that we do not know");
            }
        }
    }

    /// When to look after a pod that was said to be deleted.
    fn next_look(&self) -> Option<Instant> {
        self.deleted.values().map(|deleted| deleted.due).min().map(|due| due.max(self.next_look))
    }

    /// Looks what has become of a pod that was said to be deleted: kubelets say so when no container of it will ever run
    /// again, though its object may live on, Succeeded or Failed (seen with 1.36).
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
        // Kept until it is there: somebody may stop waiting for it.
        let Some((_, look)) = &mut self.looking else { return };
        let look = look.await;
        let Some((key, _)) = self.looking.take() else { return };
        self.next_look = Instant::now() + LOOKS;
        let Some(mut deleted) = self.deleted.remove(&key) else { return };
        deleted.due = Instant::now() + back_off(&mut deleted.looks, LOOK_AGAIN, LOOK_LIMIT);
        match look {
            Look::Gone => self.is_gone(deleted.pod),
            // Nobody takes it away: it has ended, and stays.
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
                    return Ok(Watch { open, told, listing, ends, complete: None, complained: false });
                }
                Err(error) => {
                    // From 1.37 on a kubelet says when it does not know its pods yet: what it lists after that are all of them.
                    if error.is_starting() {
                        self.known = identity(&self.client.sockets[socket]).ok();
                    }
                    reasons.push(error);
                }
            }
        }
        Err(PodsError::all(reasons))
    }

    /// Ends the watch and says when to try again.
    fn fail(&mut self, error: &PodsError) {
        // What became of pods that were said to be deleted the next list tells.
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

/// Is it on its way out?
fn goes(pod: &Pod) -> bool {
    pod.deleted || pod.life == Life::Ended
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_comes_in_keeps_no_more_than_its_budget_the_largest_as_outlines() {
        let mut listing = BTreeMap::new();
        for number in 0..64_usize {
            let bytes = vec![0; if number.is_multiple_of(2) { 1_400_000 } else { 10_000 }];
            let whole = Some(Box::new(Whole::Protobuf(bytes.into())));
            let pod = Pod { uid: number.to_string(), whole, ..Pod::default() };
            listing.insert(key(&pod), pod);
            keep_within(16 << 20, listing.values_mut());
            assert!(listing.values().map(Pod::whole_bytes).sum::<usize>() <= 16 << 20);
        }
        let is_outline = |pod: &&Pod| matches!(pod.whole.as_deref(), Some(Whole::Outline(_, 1_400_000)));
        assert_eq!(listing.values().filter(is_outline).count(), 32 - 11);
    }
}
