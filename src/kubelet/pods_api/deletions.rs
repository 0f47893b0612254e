//! Pods that were reported deleted: kubelets send DELETED when none of a pod's containers will run again,
//! although its object may live on as Succeeded or Failed (seen with 1.36). So each is looked up.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use prost::Message;
use prost::bytes::Bytes;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout};
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::client::{Method, unary};
use crate::core_v1::read_pod;
use crate::kubelet::proto::pods::{GetPodRequest, GetPodResponse};
use crate::pod::{Pod, Wanted};
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
    not_before: Instant,
}

struct DeletedPod {
    /// Without annotations and the serialized pod, which may be large.
    pod: Pod,
    /// A hash of the pod as of the last lookup.
    last: Option<u64>,
    lookups: u32,
    due: Instant,
}

/// What a lookup found.
pub(super) enum Lookup {
    /// The pod exists, and has changed.
    Exists(Box<Pod>),
    /// The pod does not exist.
    Gone(Pod),
}

/// The response of a lookup: the pod and a hash of its message, or `None` if the pod does not exist.
type Response = Option<(Box<Pod>, u64)>;

/// Returns the response of a lookup; `None` if the lookup failed.
fn response(outcome: Result<Result<Bytes, Status>, Elapsed>, wanted: &Wanted) -> Option<Response> {
    match outcome {
        Ok(Ok(response)) => {
            let message = GetPodResponse::decode(response).ok()?.pod;
            let mut hasher = DefaultHasher::new();
            message.hash(&mut hasher);
            Some(Some((Box::new(read_pod(&message, wanted).ok()?), hasher.finish())))
        }
        Ok(Err(status)) if status.code() == Code::NotFound => Some(None),
        Ok(Err(_)) | Err(_) => None,
    }
}

impl Deletions {
    pub(super) fn new() -> Self {
        Self { pods: BTreeMap::new(), lookup: None, not_before: Instant::now() }
    }

    pub(super) fn add(&mut self, pod: Pod) {
        let (key, due) = (key(&pod), Instant::now());
        let pod = Pod { raw: None, annotations: Box::default(), ..pod };
        self.pods.insert(key, DeletedPod { pod, last: None, lookups: 0, due });
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
            Some(Some((pod, _))) if !pod.deleted => Some(Lookup::Exists(pod)),
            Some(Some((pod, hash))) => {
                let is_changed = deleted.last.replace(hash) != Some(hash);
                self.pods.insert(key, deleted);
                is_changed.then_some(Lookup::Exists(pod))
            }
            None => {
                self.pods.insert(key, deleted);
                None
            }
        }
    }
}
