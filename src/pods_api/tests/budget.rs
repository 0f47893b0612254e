//! Pods that exceed the budget: the largest are left out, watchers are notified, and nothing else is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::Stream;
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;
use prost::bytes::Bytes;
use serde_json::json;
use tokio::time::Instant;
use tonic::Code;

use super::board::{Board, Listing, Missing, Shared, Watch, lock};
use super::records::{Content, Limit, Record};
use super::store::Store;
use super::watchers::Tally;
use crate::core_v1::{MAX_RAW_BYTES, outline};
use crate::kubelet::proto::pods::{EventType, ListPodsResponse, WatchPodsEvent};
use crate::pod::{Pod, PodEvent, RawPod};
use crate::util::wire::put_bytes;

#[derive(Debug)]
struct Nobody;

impl Tally for Nobody {
    fn watchers(&self, _: i64) {}
    fn cut(&self, _: usize) {}
    fn heard(&self, _: Duration) {}
}

/// Returns a pod of slightly more than `bytes` bytes.
fn pod(uid: &str, bytes: usize) -> Pod {
    let (mut metadata, mut status, mut message) = (Vec::new(), Vec::new(), Vec::new());
    for (number, text) in [(1, uid), (3, "ns"), (5, uid)] {
        put_bytes(&mut metadata, number, text.as_bytes());
    }
    put_bytes(&mut status, 1, b"Running");
    put_bytes(&mut message, 1, &metadata);
    // An unknown field.
    put_bytes(&mut message, 100, &vec![0; bytes]);
    put_bytes(&mut message, 3, &status);
    let whole = Some(Box::new(RawPod::Protobuf(message.into())));
    Pod { namespace: "ns".into(), name: uid.into(), uid: uid.into(), raw: whole, ..Pod::default() }
}

/// Returns the names of all listed pods.
fn listed(board: &Shared) -> Vec<String> {
    let pods = ListPodsResponse::decode(lock(board).list()).unwrap().pods;
    let name = |pod: &Bytes| crate::core_v1::decode_pod(pod).unwrap().name;
    pods.iter().map(name).collect()
}

fn hear(watch: &mut Watch) -> Vec<WatchPodsEvent> {
    let mut heard = Vec::new();
    while let Poll::Ready(Some(Ok(event))) =
        Pin::new(&mut *watch).poll_next(&mut Context::from_waker(Waker::noop()))
    {
        heard.push(WatchPodsEvent::decode(event.to_vec().as_slice()).unwrap());
    }
    heard
}

fn complete(store: &mut Store, pods: impl IntoIterator<Item = Pod>) {
    let listed: Vec<_> = pods.into_iter().map(PodEvent::Listed).collect();
    for event in std::iter::once(PodEvent::Listing).chain(listed).chain([PodEvent::Complete]) {
        store.take(event, Instant::now()).unwrap();
    }
}

#[test]
fn the_largest_pods_are_left_out_and_come_back_when_there_is_room() {
    let mut store = Store::new(Arc::new(Nobody), Arc::new(Nobody));
    let large = |number: usize| pod(&format!("large-{number:02}"), 1_400_000);
    let small = |number: usize| pod(&format!("small-{number}"), 10_000);
    complete(&mut store, (0..3).map(small));
    let mut watch = Watch::new(Arc::clone(&store.pods));
    hear(&mut watch);
    (0..64).for_each(|number| store.take(PodEvent::Is(large(number)), Instant::now()).unwrap());
    let fits = MAX_RAW_BYTES / 1_400_000;
    for round in 0..2 {
        let names = listed(&store.pods);
        assert_eq!(names.len(), fits + 3, "{round}: {names:?}");
        assert!(lock(&store.pods).list().len() <= MAX_RAW_BYTES);
        assert_eq!(names.iter().filter(|name| name.starts_with("small")).count(), 3, "{round}");
        assert_eq!(lock(&store.pods).records().left_out(), 64 - fits);
        assert_eq!(lock(&store.infos).records().len(), 67, "PodInfo has all of them");
        assert_eq!(store.newly_left_out().len(), if round == 0 { 64 - fits } else { 0 }, "told once");
        complete(&mut store, (0..3).map(small).chain((0..64).map(large)));
    }
    // The watcher got events of served pods only.
    assert_eq!(hear(&mut watch).len(), fits);
    let Err(Missing::TooLarge(missing)) = lock(&store.pods).get("large-63") else { panic!("it is served") };
    let sentence = missing.to_string();
    assert!(sentence.contains("ns/large-63") && sentence.contains("1400"), "{sentence}");
    assert!(!store.has_room_again());

    // A served pod grows: it is left out, and watchers get a deletion.
    store.take(PodEvent::Is(pod("large-00", 3_000_000)), Instant::now()).unwrap();
    let [gone] = &hear(&mut watch)[..] else { panic!("one event") };
    assert_eq!(gone.r#type(), EventType::Deleted);
    assert!(store.has_room_again(), "another one would fit");
    store.take(PodEvent::Is(large(63)), Instant::now()).unwrap();
    assert_eq!(hear(&mut watch)[0].r#type(), EventType::Added);
    assert!(!store.has_room_again());
    // Large pods are left out for small ones.
    (3..40).for_each(|number| {
        store.take(PodEvent::Is(pod(&format!("small-{number}"), 100_000)), Instant::now()).unwrap()
    });
    let names = listed(&store.pods);
    assert_eq!(names.iter().filter(|name| name.starts_with("small")).count(), 40, "{names:?}");
    (0..64).for_each(|number| store.take(PodEvent::Gone(large(number)), Instant::now()).unwrap());
    assert_eq!((listed(&store.pods).len(), lock(&store.pods).records().left_out()), (40, 0));
}

#[test]
fn of_pods_of_one_size_the_later_is_left_out_and_told_of_once() {
    let mut store = Store::new(Arc::new(Nobody), Arc::new(Nobody));
    let pods = ["b", "a"].map(|uid| pod(uid, MAX_RAW_BYTES * 5 / 8));
    for _ in 0..2 {
        complete(&mut store, pods.clone());
        assert_eq!(listed(&store.pods), ["b"]);
    }
    assert_eq!(store.newly_left_out().len(), 1);
    store.take(PodEvent::Is(pods[1].clone()), Instant::now()).unwrap();
    assert_eq!((listed(&store.pods), store.newly_left_out()), (vec!["b".to_owned()], vec![]));
}

#[test]
fn a_pod_whose_source_left_it_out_is_named_and_in_pod_info() {
    let mut store = Store::new(Arc::new(Nobody), Arc::new(Nobody));
    complete(&mut store, [pod("a", 10)]);
    let mut large = pod("large", 1_000);
    let Some(RawPod::Protobuf(bytes)) = large.raw.as_deref() else { panic!("it is whole") };
    large.raw = Some(Box::new(RawPod::Outline(outline(bytes), bytes.len())));
    for _ in 0..2 {
        store.take(PodEvent::Is(large.clone()), Instant::now()).unwrap();
        assert_eq!((listed(&store.pods), lock(&store.pods).records().left_out()), (vec!["a".to_owned()], 1));
        assert_eq!(lock(&store.infos).records().len(), 2);
        let missing = lock(&store.pods).get("large");
        assert!(matches!(missing, Err(Missing::TooLarge(_))), "{missing:?}");
    }
    store.take(PodEvent::Gone(large), Instant::now()).unwrap();
    assert_eq!(lock(&store.pods).records().left_out(), 0);
}

#[test]
fn pod_info_has_a_budget_of_its_own() {
    let mut store = Store::new(Arc::new(Nobody), Arc::new(Nobody));
    store.take_page(PodEvent::Listing, Instant::now()).unwrap();
    for number in 0..5 {
        let condition = json!({"type": "Ready", "status": "True", "message": "x".repeat(MAX_RAW_BYTES / 18)});
        let metadata = json!({"name": "a", "namespace": "ns", "uid": number.to_string()});
        let item = json!({"metadata": metadata, "status": {"conditions": [condition]}});
        let whole = Some(Box::new(RawPod::Json(item.to_string().into())));
        store.take_page(PodEvent::Listed(Pod { raw: whole, ..pod("a", 0) }), Instant::now()).unwrap();
    }
    store.take_page(PodEvent::Complete, Instant::now()).unwrap();
    let infos = lock(&store.infos);
    assert_eq!((infos.records().len(), infos.records().left_out()), (5, 1));
}

#[test]
fn what_waits_for_a_watcher_is_bounded_in_bytes() {
    let mut store = Store::new(Arc::new(Nobody), Arc::new(Nobody));
    complete(&mut store, []);
    let mut silent = Watch::new(Arc::clone(&store.pods));
    let mut reads = Watch::new(Arc::clone(&store.pods));
    let start = Instant::now();
    let mut most = 0;
    for round in 0..60 {
        let at = start + Duration::from_millis(200 * round);
        store.take(PodEvent::Is(pod("a", 1_000_000 + round as usize)), at).unwrap();
        hear(&mut reads);
        most = most.max(lock(&store.pods).waiting_bytes());
    }
    assert!(most <= MAX_RAW_BYTES / 2 + 1_001_000, "{most} bytes");
    let next = Pin::new(&mut silent).poll_next(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Some(Err(status))) = next else { panic!("it goes on") };
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(lock(&store.pods).waiting_bytes(), 0);
    // A burst may buffer three times as much.
    let silent = Watch::new(Arc::clone(&store.pods));
    let at = start + Duration::from_secs(60);
    for round in 0..60 {
        store.take(PodEvent::Is(pod("a", 1_100_000 + round)), at).unwrap();
        hear(&mut reads);
        most = most.max(lock(&store.pods).waiting_bytes());
    }
    assert!((3 * MAX_RAW_BYTES / 2..3 * MAX_RAW_BYTES / 2 + 1_200_000).contains(&most), "{most} bytes");
    drop(silent);
}

/// A budget for a handful of pods of up to 100 bytes.
const LIMIT: Limit = Limit { bytes: 300, outline: |_| Bytes::new() };

#[derive(Clone, Debug)]
enum Step {
    /// Sets a pod's size.
    Put(u8, u8),
    Remove(u8),
    /// Relists: the pods with their sizes, and those that are unchanged.
    Replace(BTreeMap<u8, u8>, Vec<u8>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (uid, bytes) = (0..12_u8, 1..100_u8);
    let step = prop_oneof![
        8 => (uid.clone(), bytes.clone()).prop_map(|(uid, bytes)| Step::Put(uid, bytes)),
        2 => uid.clone().prop_map(Step::Remove),
        2 => (prop::collection::btree_map(uid.clone(), bytes, 0..12), vec(uid, 0..6))
            .prop_map(|(pods, same)| Step::Replace(pods, same)),
    ];
    vec(step, 0..100)
}

fn record(uid: u8, bytes: u8) -> Record {
    let content = vec![uid; usize::from(bytes)];
    Record::new(Content::Whole(content.into()), vec![uid], None, ("ns", &uid.to_string()))
}

#[test]
fn the_budget_may_be_used_up() {
    let mut board = Board::new(LIMIT, Arc::new(Nobody));
    (0..3).for_each(|uid| board.put(&uid.to_string(), record(uid, 100), Instant::now()));
    assert_eq!(board.records().left_out(), 0);
    board.put("3", record(3, 1), Instant::now());
    assert_eq!(board.records().left_out(), 1);
}

proptest! {
    #[test]
    fn whatever_comes_fits_and_is_told(steps in steps()) {
        let board: Shared = Arc::new(std::sync::Mutex::new(Board::new(LIMIT, Arc::new(Nobody))));
        let mut watch = Watch::new(Arc::clone(&board));
        let (mut known, mut all) = (BTreeMap::new(), BTreeMap::<u8, u8>::new());
        for step in steps {
            let now = Instant::now();
            // An unchanged pod may stay although it is larger.
            let all_are_new = matches!(&step, Step::Replace(_, same) if same.is_empty());
            match step {
                Step::Put(uid, bytes) => {
                    lock(&board).put(&uid.to_string(), record(uid, bytes), now);
                    all.insert(uid, bytes);
                }
                Step::Remove(uid) => {
                    lock(&board).remove(&uid.to_string(), now);
                    all.remove(&uid);
                }
                Step::Replace(pods, same) => {
                    let mut listing = Listing::new(LIMIT);
                    pods.iter().for_each(|(uid, bytes)| listing.put(&uid.to_string(), record(*uid, *bytes)));
                    let same: BTreeSet<u8> = same.into_iter().filter(|uid| known.contains_key(uid)).collect();
                    same.iter().for_each(|uid| listing.keep(&uid.to_string()));
                    let kept: Vec<(u8, u8)> = same.iter().map(|uid| (*uid, all[uid])).collect();
                    all = pods;
                    all.extend(kept);
                    lock(&board).replace(listing, now);
                }
            }
            for event in hear(&mut watch) {
                let Some(uid) = event.pod.first().copied() else { continue };
                match event.r#type() {
                    EventType::Added => prop_assert!(known.insert(uid, event.pod).is_none()),
                    EventType::Modified => prop_assert!(known.insert(uid, event.pod).is_some()),
                    _ => prop_assert!(known.remove(&uid).is_some()),
                }
            }
            let board = lock(&board);
            let served: BTreeMap<u8, Bytes> =
                board.records().served().map(|(_, content)| (content[0], content.clone())).collect();
            prop_assert_eq!(&served, &known);
            prop_assert!(served.values().map(Bytes::len).sum::<usize>() <= LIMIT.bytes);
            prop_assert_eq!(board.records().len(), all.len());
            prop_assert_eq!(board.records().left_out(), all.len() - served.len());
            for (uid, content) in &served {
                prop_assert_eq!(content.len(), usize::from(all[uid]));
            }
            let left_out = all.iter().filter(|(uid, _)| !served.contains_key(uid));
            let smallest = left_out.map(|(_, bytes)| usize::from(*bytes)).min();
            let largest = served.values().map(Bytes::len).max();
            if let Some((smallest, largest)) = smallest.zip(largest).filter(|_| all_are_new) {
                prop_assert!(smallest >= largest, "{} is left out, and {} is not", smallest, largest);
            }
        }
    }
}

#[test]
fn an_outline_says_who_a_pod_is_and_how_far_it_is() {
    let Some(RawPod::Protobuf(bytes)) = pod("a", 1_000_000).raw.map(|whole| *whole) else { panic!("whole") };
    let outline_of = outline(&bytes);
    assert!(outline_of.len() < 50, "{}", outline_of.len());
    let read = crate::core_v1::decode_pod(&outline_of).unwrap();
    assert_eq!(read, crate::core_v1::decode_pod(&bytes).unwrap());
    assert_eq!(outline(&bytes[..bytes.len() - 1]), Bytes::new(), "of what is no pod nothing is kept");
}
