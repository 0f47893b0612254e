//! The store and its watchers.

mod budget;
mod model;
mod pod_info;
mod sources;
mod watchers;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures::Stream;
use prost::Message;
use prost::bytes::Bytes;
use serde_json::json;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::pod_info::PodInfo;
use super::proto::v1alpha1::{ListPodConditionsResponse, PodConditions};
use super::store::Store;
use super::watch_cache::{GetError, SharedCache, Watch, lock};
use super::watchers::{MAX_UNREAD, WatcherObserver};
use crate::core_v1::proto as core;
use crate::grpc::MessageStream;
use crate::kubelet::proto::pods::{EventType, ListPodsResponse, WatchPodsEvent};
use crate::pod::{Pod, PodEvent, RawPod};
use crate::util::wire::{put_bytes, put_number};

#[derive(Debug, Default)]
struct Count {
    watchers: AtomicUsize,
    cut_off: AtomicUsize,
    delivered: AtomicUsize,
}

impl WatcherObserver for Count {
    fn watchers(&self, more: i64) {
        self.watchers.fetch_add(more as usize, Ordering::Relaxed);
    }

    fn cut_off(&self, watchers: usize) {
        self.cut_off.fetch_add(watchers, Ordering::Relaxed);
    }

    fn delivered(&self, _: Duration) {
        self.delivered.fetch_add(1, Ordering::Relaxed);
    }
}

/// How often a waker was woken.
#[derive(Debug, Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn store() -> (Store, Arc<Count>) {
    let count = Arc::<Count>::default();
    (Store::new(Arc::<Count>::clone(&count), Arc::<Count>::clone(&count)), count)
}

/// Encodes a status. Conditions are in it, but not in the message types that are decoded here.
fn status(phase: &str, ready: &str) -> Vec<u8> {
    let (mut condition, mut status) = (Vec::new(), Vec::new());
    put_bytes(&mut condition, 1, b"Ready");
    put_bytes(&mut condition, 2, ready.as_bytes());
    put_bytes(&mut status, 1, phase.as_bytes());
    put_bytes(&mut status, 2, &condition);
    status
}

/// Returns a pod as reported by a source of full pods. `PodInfo` does not contain `note`.
fn pod(uid: &str, annotations: &[(&str, &str)], phase: &str, note: &str) -> Pod {
    let (mut metadata, mut message) = (Vec::new(), Vec::new());
    for (number, text) in [(1, uid), (3, "ns"), (5, uid)] {
        put_bytes(&mut metadata, number, text.as_bytes());
    }
    for (key, value) in annotations.iter().chain([&("note", note)]) {
        let mut entry = Vec::new();
        put_bytes(&mut entry, 1, key.as_bytes());
        put_bytes(&mut entry, 2, value.as_bytes());
        put_bytes(&mut metadata, 12, &entry);
    }
    put_bytes(&mut message, 1, &metadata);
    put_bytes(&mut message, 3, &status(phase, "True"));
    let raw = Some(Box::new(RawPod::Protobuf(message.into())));
    Pod { namespace: "ns".into(), name: uid.into(), uid: uid.into(), raw, ..Pod::default() }
}

fn apply<const N: usize>(store: &mut Store, events: [PodEvent; N]) {
    for event in events {
        store.apply(event, Instant::now()).unwrap();
    }
}

/// Returns a pod as in the kubelet's `/pods`, without a note.
fn kubelet_pod(uid: &str, annotations: &[(&str, &str)], phase: &str) -> Pod {
    let annotations: BTreeMap<_, _> = annotations.iter().copied().collect();
    let item = json!({
        "metadata": {"name": uid, "namespace": "ns", "uid": uid, "annotations": annotations},
        "status": {"phase": phase, "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": null}]},
    });
    let raw = Some(Box::new(RawPod::Json(item.to_string().into())));
    Pod { namespace: "ns".into(), name: uid.into(), uid: uid.into(), raw, ..Pod::default() }
}

fn uid_of_pod(content: &[u8]) -> String {
    core::Pod::decode(content).unwrap().metadata.unwrap().uid
}

fn uid_of_info(content: &[u8]) -> String {
    PodConditions::decode(content).unwrap().pod_uid
}

/// Returns the pods of the List response.
fn listed(cache: &SharedCache, uid: fn(&[u8]) -> String) -> BTreeMap<String, Bytes> {
    // The List responses of both services have the same wire format.
    let pods = ListPodsResponse::decode(lock(cache).list()).unwrap().pods;
    let named: Vec<_> = pods.into_iter().map(|pod| (uid(&pod), pod)).collect();
    assert!(named.is_sorted_by(|(a, _), (b, _)| a < b), "by UID: {named:?}");
    named.into_iter().collect()
}

fn poll(watch: &mut Watch) -> Poll<Option<Result<Bytes, Status>>> {
    let polled = Pin::new(watch).poll_next(&mut Context::from_waker(Waker::noop()));
    polled.map_ok(|message| message.to_vec().into())
}
