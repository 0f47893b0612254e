//! Pods that were reported deleted: kubelets send DELETED when none of a pod's containers will run again,
//! although its object may live on as Succeeded or Failed (seen with 1.36). So each is looked up.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use prost::Message;
use prost::bytes::Bytes;
use tokio::time::{Instant, timeout};
use tonic::Code;
use tonic::transport::Channel;

use super::call::{Method, Outcome, unary};
use crate::core_v1::read_pod;
use crate::kubelet::proto::pods::{GetPodRequest, GetPodResponse};
use crate::pod::{Pod, RawPod, Wanted};
use crate::util::backoff::back_off;

/// First and last delay between lookups of a pod: kubelets report a deletion a moment before the object is
/// gone.
const RETRY: Duration = Duration::from_millis(200);
const RETRY_LIMIT: Duration = Duration::from_secs(5);
/// Minimum interval of lookups: all clients of a kubelet share a rate limit of 100 per second with a burst
/// of 10.
const INTERVAL: Duration = Duration::from_millis(20);

/// UID, namespace and name; the latter two for pods without a UID.
pub(super) type Key = (String, String, String);

pub(super) fn key(pod: &Pod) -> Key {
    (pod.uid.clone(), pod.namespace.clone(), pod.name.clone())
}

/// The pods that were reported deleted and whose fate is not known yet.
pub(super) struct Deletions {
    pods: BTreeMap<Key, DeletedPod>,
    /// The lookup in progress, and its pod.
    lookup: Option<(Key, BoxFuture<'static, Option<Response>>)>,
    /// The earliest time of the next lookup.
    not_before: Instant,
}

struct DeletedPod {
    pod: Pod,
    /// The pod as of the last lookup.
    last: Option<Digest>,
    lookups: u32,
    due: Instant,
}

/// A pod as returned by a lookup. A hash replaces the serialized pod and the annotations, which may be large
/// and are only compared.
#[derive(Debug, PartialEq, Eq)]
struct Digest {
    pod: Pod,
    hash: u64,
}

impl Digest {
    fn of(pod: &Pod) -> Self {
        let mut hasher = DefaultHasher::new();
        pod.annotations.hash(&mut hasher);
        if let Some(RawPod::Protobuf(bytes)) = pod.raw.as_deref() {
            bytes.hash(&mut hasher);
        }
        Self { pod: identity_of(pod.clone()), hash: hasher.finish() }
    }
}

/// What a lookup found.
pub(super) enum Lookup {
    /// The pod exists, and has changed.
    Exists(Box<Pod>),
    /// The pod does not exist.
    Gone(Pod),
}

/// The response of a lookup: the pod, or `None` if there is none.
type Response = Option<Box<Pod>>;

/// Returns the response of a lookup; `None` if the lookup failed.
fn response(outcome: Outcome<Bytes>, wanted: &Wanted) -> Option<Response> {
    match outcome {
        Ok(Ok(response)) => {
            let response = GetPodResponse::decode(response).ok()?;
            Some(Some(Box::new(read_pod(&response.pod, wanted).ok()?)))
        }
        Ok(Err(status)) if status.code() == Code::NotFound => Some(None),
        Ok(Err(_)) | Err(_) => None,
    }
}

/// Drops what may be large: annotations and the serialized pod.
fn identity_of(pod: Pod) -> Pod {
    Pod { raw: None, annotations: Box::default(), ..pod }
}

impl Deletions {
    pub(super) fn new() -> Self {
        Self { pods: BTreeMap::new(), lookup: None, not_before: Instant::now() }
    }

    /// Adds a pod that was reported deleted.
    pub(super) fn add(&mut self, pod: Pod) {
        let key = key(&pod);
        let deleted = DeletedPod { pod: identity_of(pod), last: None, lookups: 0, due: Instant::now() };
        self.pods.insert(key, deleted);
    }

    /// Removes a pod that was reported to exist.
    pub(super) fn remove(&mut self, pod: &Pod) {
        self.pods.remove(&key(pod));
    }

    /// Removes all pods: a new list will show what became of them.
    pub(super) fn clear(&mut self) {
        (self.lookup, self.pods) = (None, BTreeMap::new());
    }

    /// Returns true if a lookup was started and cancelled.
    pub(super) fn has_started(&self) -> bool {
        self.lookup.is_some()
    }

    /// Returns when to look up the next pod.
    pub(super) fn due(&self) -> Option<Instant> {
        self.pods.values().map(|deleted| deleted.due).min().map(|due| due.max(self.not_before))
    }

    /// Looks up the pod that is due. Returns `None` if it is as it was at the last lookup, or the lookup
    /// failed. Cancel-safe.
    pub(super) async fn look_up(
        &mut self,
        channel: &Channel,
        deadline: Duration,
        wanted: &Wanted,
    ) -> Option<Lookup> {
        if self.lookup.is_none() {
            let (key, deleted) = self.pods.iter().min_by_key(|(_, deleted)| deleted.due)?;
            let request = GetPodRequest { pod_uid: deleted.pod.uid.clone() }.encode_to_vec();
            let call = unary(channel.clone(), Method::Get, request.into());
            let wanted = wanted.clone();
            let lookup = async move { response(timeout(deadline, call).await, &wanted) };
            self.lookup = Some((key.clone(), lookup.boxed()));
        }
        // Kept until it is done, since the caller may cancel.
        let (_, lookup) = self.lookup.as_mut()?;
        let response = lookup.await;
        let (key, _) = self.lookup.take()?;
        self.not_before = Instant::now() + INTERVAL;
        let mut deleted = self.pods.remove(&key)?;
        deleted.due = Instant::now() + back_off(&mut deleted.lookups, RETRY, RETRY_LIMIT);
        match response {
            Some(None) => Some(Lookup::Gone(deleted.pod)),
            // It has terminated but was not deleted, so it stays.
            Some(Some(pod)) if !pod.deleted => Some(Lookup::Exists(pod)),
            Some(Some(pod)) => {
                let digest = Some(Digest::of(&pod));
                let is_changed = deleted.last != digest;
                self.pods.insert(key, DeletedPod { last: digest, ..deleted });
                is_changed.then_some(Lookup::Exists(pod))
            }
            None => {
                self.pods.insert(key, deleted);
                None
            }
        }
    }
}
