//! List and watch of all pods of the Pods API, with a new list whenever events may have been missed: a watch
//! cannot be resumed (KEP-4188), and the kubelet drops events when its queue is full.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use futures::stream::{Stream, unfold};
use prost::Message;
use prost::bytes::Bytes;
use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::Streaming;
use tracing::{debug, warn};

use super::client::{Method, OpenSocket, PodsClient};
use super::deletions::{Deletions, Key, Lookup, key};
use super::error::{PodsError, PodsErrorKind};
use crate::core_v1::{read_pod, reduce_to};
use crate::kubelet::connector::SocketId;
use crate::kubelet::list_filter::{KubeletAge, ListFilter, RECHECK_DELAY};
use crate::kubelet::proto::pods::{EventType, WatchPodsEvent};
use crate::pod::{Pod, PodEvent, PodMap, Termination, Wanted};
use crate::util::backoff::{back_off, jittered};
use crate::util::log_throttle::LastLogged;

/// Interval of resyncs: the kubelet may drop an event silently. A new watch sends one pod at a time, while
/// ListPods would send all of them in one message of some 10 KiB per pod.
const RESYNC: Duration = Duration::from_secs(180);

/// The same while there are terminated pods: no event reports the deletion of such a pod's object.
const RESYNC_TERMINATED: Duration = Duration::from_secs(60);

/// For servers that have never sent a marker at the end of a list, as early builds do not: the list is
/// complete when nothing arrived for this long.
const NO_MARKER_TIMEOUT: Duration = Duration::from_secs(10);

/// A kubelet older than this is assumed to know all its pods if no earlier list is available to compare with.
const ESTABLISHED_AFTER: Duration = Duration::from_secs(60);

/// The end of a watch that lasted this long after its list is not counted as a failure.
const STABLE_AFTER: Duration = Duration::from_secs(5);

const RETRY: Duration = Duration::from_millis(100);
const RETRY_LIMIT: Duration = Duration::from_secs(5);
/// Delay if no socket serves the Pods API: the kubelet may be replaced by one that does.
const UNSERVED_RETRY: Duration = Duration::from_secs(30);

/// The event source returned by [`PodsClient::watch`].
pub struct PodsWatch {
    client: PodsClient,
    wanted: Wanted,
    open: Option<OpenWatch>,
    filter: ListFilter,
    events: VecDeque<PodEvent>,
    deletions: Deletions,
    /// The kubelet whose lists are accepted at once: an earlier list was accepted, or it has reported that it
    /// was still starting.
    established: Option<SocketId>,
    /// By socket, whether its server has ever sent a marker at the end of a list.
    sends_marker: Vec<bool>,
    failures: u32,
    not_before: Instant,
}

#[derive(Debug)]
struct OpenWatch {
    socket: OpenSocket,
    stream: Streaming<Bytes>,
    /// The incoming list, by UID: briefly there may be two pods of the same name.
    list: Option<PodMap<Key>>,
    /// When to start the next watch.
    ends: Instant,
    synced_at: Option<Instant>,
    /// Whether an undecodable pod was logged.
    unreadable: LastLogged,
}

impl PodsClient {
    /// Lists and watches all pods until dropped; `wanted` selects what is kept of each.
    ///
    /// All pods are listed at the start, after every failure, and again every few minutes, since the kubelet
    /// may drop an event silently. If the watch is on a later socket, the earlier ones are tried again each
    /// time.
    #[must_use]
    pub fn watch(self, wanted: Wanted) -> PodsWatch {
        let sends_marker = vec![false; self.sockets.len()];
        PodsWatch {
            client: self,
            wanted,
            open: None,
            filter: ListFilter::default(),
            events: VecDeque::new(),
            deletions: Deletions::new(),
            established: None,
            sends_marker,
            failures: 0,
            not_before: Instant::now(),
        }
    }
}

impl PodsWatch {
    /// Returns the next event: first a list of all pods, then changes, and periodically all pods again. It
    /// may be dropped while waiting for events. If dropped while connecting, the next call starts connecting
    /// again, so callers that cancel often should use [`PodsWatch::stream`].
    ///
    /// # Errors
    /// Why no events are available at the moment. The watch is retried after a backoff, with a new list.
    pub async fn next(&mut self) -> Result<PodEvent, PodsError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            if let Err(error) = self.receive().await {
                self.fail(&error);
                return Err(error);
            }
        }
    }

    /// Returns the events as a stream, which never ends.
    pub fn stream(self) -> impl Stream<Item = Result<PodEvent, PodsError>> + Send + 'static {
        unfold(self, |mut watch| async { Some((watch.next().await, watch)) })
    }

    /// Returns the socket that is watched.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        self.open.as_ref().map(|open| &*self.client.sockets[open.socket.index])
    }

    /// Waits for one event, lookup or timeout and handles it.
    async fn receive(&mut self) -> Result<(), PodsError> {
        let Some(open) = &mut self.open else {
            sleep_until(self.not_before).await;
            self.open = Some(self.start(None).await?);
            return Ok(());
        };
        let is_listing = open.list.is_some();
        let sends_marker = self.sends_marker[open.socket.index];
        let list_timeout = if sends_marker { self.client.deadline } else { NO_MARKER_TIMEOUT };
        let limit = if is_listing { Instant::now() + list_timeout } else { open.ends };
        // No lookups during a list: it shows which pods exist.
        let lookup = self.deletions.due().filter(|due| !is_listing && *due < limit);
        if self.deletions.has_started() || lookup.is_some_and(|due| due <= Instant::now()) {
            let channel = &open.socket.channel;
            let found = self.deletions.look_up(channel, self.client.deadline, &self.wanted).await;
            match found {
                Some(Lookup::Exists(pod)) => self.apply(*pod),
                Some(Lookup::Gone(pod)) => self.delete(pod),
                None => {}
            }
            return Ok(());
        }
        let limit = lookup.unwrap_or(limit);
        let received = timeout_at(limit, open.stream.message()).await;
        let path = &self.client.sockets[open.socket.index];
        let call = Method::Watch.name();
        match received {
            Ok(Ok(Some(event))) => match WatchPodsEvent::decode(event) {
                Ok(event) => self.take(event),
                Err(error) => return Err(PodsError::invalid(path, call, &error)),
            },
            Ok(Ok(None)) => return Err(PodsError::failed(path, "ended the watch of its pods")),
            Ok(Err(status)) => return Err(PodsError::of_status(path, call, &status)),
            Err(_) if is_listing && sends_marker => {
                let what = format!("did not continue the list of its pods within {list_timeout:?}");
                return Err(PodsError::failed(path, &what));
            }
            Err(_) if is_listing => self.complete(),
            Err(_) if lookup.is_some() => {}
            Err(_) => {
                // The old watch is kept until then: an earlier socket may take long to respond.
                let socket = open.socket.clone();
                self.open = Some(self.start(Some(socket)).await?);
            }
        }
        Ok(())
    }

    fn complete(&mut self) {
        let Some(open) = &mut self.open else { return };
        let Some(listed) = open.list.take() else { return };
        open.synced_at = Some(Instant::now());
        let mut pods: Vec<Pod> = listed.into_iter().map(|(_, pod)| pod).collect();
        // If two pods share a name, emit the one that stays last, so name-keyed caches keep it.
        pods.sort_by_key(|pod| !pod.deleted && pod.termination != Termination::Terminated);
        if pods.iter().any(|pod| pod.termination == Termination::Terminated) {
            open.resync_soon();
        }
        let identity = open.socket.identity;
        let is_old = || !self.filter.has_accepted() && identity.age() > ESTABLISHED_AFTER;
        let is_established = !self.client.verifies_lists || self.established == Some(identity) || is_old();
        let age = if is_established { KubeletAge::Established } else { KubeletAge::Restarted };
        self.events.extend(self.filter.filter_list(pods, age, Instant::now()));
        if self.filter.is_doubtful() {
            open.ends = Instant::now() + RECHECK_DELAY;
        } else {
            self.established = Some(identity);
        }
    }

    fn take(&mut self, event: WatchPodsEvent) {
        let Some(open) = &mut self.open else { return };
        let kind = event.r#type();
        if kind == EventType::InitialSyncComplete {
            self.sends_marker[open.socket.index] = true;
            return self.complete();
        }
        let pod = match read_pod(&event.pod, &self.wanted) {
            Ok(pod) => pod,
            // The other pods are still reported.
            Err(reason) => {
                if open.unreadable.is_new(()) {
                    let path = self.client.sockets[open.socket.index].display();
                    warn!("a pod from the server at {path} cannot be read and is left out: {reason}");
                }
                return;
            }
        };
        match (kind, &mut open.list) {
            // ADDED and MODIFIED are treated alike: the first event of a new pod may be MODIFIED.
            (EventType::Added | EventType::Modified, Some(list)) => {
                list.insert(key(&pod), pod);
                reduce_to(self.client.raw_limit, list.values_mut());
            }
            (EventType::Added | EventType::Modified, None) => {
                self.deletions.remove(&pod);
                self.apply(pod);
            }
            (EventType::Deleted, list) => {
                if let Some(list) = list {
                    list.remove(&key(&pod));
                }
                self.deletions.add(pod);
            }
            (EventType::Unspecified | EventType::InitialSyncComplete, _) => {
                debug!("an event of unknown type from the Pods API is ignored");
            }
        }
    }

    fn apply(&mut self, pod: Pod) {
        if let Some(open) = &mut self.open
            && pod.termination == Termination::Terminated
        {
            open.resync_soon();
        }
        self.filter.apply(&pod);
        self.events.push_back(PodEvent::Apply(pod));
    }

    fn delete(&mut self, pod: Pod) {
        self.filter.delete(&pod);
        self.events.push_back(PodEvent::Delete(pod));
    }

    /// Starts another watch at the first socket that serves one; on the open connection if it still leads to
    /// the socket at its path.
    async fn start(&mut self, open: Option<OpenSocket>) -> Result<OpenWatch, PodsError> {
        self.client.open = open;
        let mut errors = Vec::new();
        for index in 0..self.client.sockets.len() {
            match self.client.watch_at(index).await {
                Ok((socket, stream)) => {
                    let ends = Instant::now() + jittered(RESYNC);
                    let (list, unreadable) = (Some(PodMap::default()), LastLogged::default());
                    return Ok(OpenWatch { socket, stream, list, ends, synced_at: None, unreadable });
                }
                Err(error) => {
                    // From 1.37 on a kubelet reports that it does not know its pods yet, so what it lists
                    // later is complete.
                    if error.kind == PodsErrorKind::Starting {
                        self.established = SocketId::of(&self.client.sockets[index]).ok();
                    }
                    errors.push(error);
                }
            }
        }
        Err(PodsError::all(errors))
    }

    /// Drops the watch and schedules the next attempt.
    fn fail(&mut self, error: &PodsError) {
        self.deletions.clear();
        let synced_at = self.open.take().and_then(|open| open.synced_at);
        if synced_at.is_some_and(|synced_at| synced_at.elapsed() >= STABLE_AFTER) {
            self.failures = 0;
        }
        let wait = match error.kind == PodsErrorKind::Unserved {
            true => jittered(UNSERVED_RETRY),
            false => back_off(&mut self.failures, RETRY, RETRY_LIMIT),
        };
        self.not_before = Instant::now() + wait;
    }
}

impl OpenWatch {
    /// Brings the next resync forward.
    fn resync_soon(&mut self) {
        self.ends = self.ends.min(Instant::now() + jittered(RESYNC_TERMINATED));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::pod::RawPod;

    #[test]
    fn serialized_pods_of_an_incoming_list_are_bounded() {
        let mut list = BTreeMap::new();
        for number in 0..64_usize {
            let bytes = vec![0; if number.is_multiple_of(2) { 1_400_000 } else { 10_000 }];
            let raw = Some(Box::new(RawPod::Protobuf(bytes.into())));
            let pod = Pod { uid: number.to_string(), raw, ..Pod::default() };
            list.insert(key(&pod), pod);
            reduce_to(16 << 20, list.values_mut());
            assert!(list.values().map(Pod::raw_bytes).sum::<usize>() <= 16 << 20);
        }
        let is_outline = |pod: &&Pod| matches!(pod.raw.as_deref(), Some(RawPod::Outline(_, 1_400_000)));
        assert_eq!(list.values().filter(is_outline).count(), 32 - 11);
    }
}
