//! Pods that exceed the budget: the largest are omitted, watchers are notified, and nothing else is lost.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::core_v1::{MAX_RAW_BYTES, outline};
use crate::pods_api::entries::{Content, Entry, Limit};
use crate::pods_api::watch_cache::{IncomingList, WatchCache};

/// Returns a pod of slightly more than `bytes` bytes.
fn pod_of_size(uid: &str, bytes: usize) -> Pod {
    let (mut metadata, mut status, mut message) = (Vec::new(), Vec::new(), Vec::new());
    for (number, text) in [(1, uid), (3, "ns"), (5, uid)] {
        put_bytes(&mut metadata, number, text.as_bytes());
    }
    put_bytes(&mut status, 1, b"Running");
    put_bytes(&mut message, 1, &metadata);
    // An unknown field.
    put_bytes(&mut message, 100, &vec![0; bytes]);
    put_bytes(&mut message, 3, &status);
    let raw = Some(Box::new(RawPod::Protobuf(message.into())));
    Pod { namespace: "ns".into(), name: uid.into(), uid: uid.into(), raw, ..Pod::default() }
}

/// Returns the names of all listed pods.
fn pod_names(cache: &SharedCache) -> Vec<String> {
    let pods = ListPodsResponse::decode(lock(cache).list()).unwrap().pods;
    let name = |pod: &Bytes| crate::core_v1::decode_pod(pod).unwrap().name;
    pods.iter().map(name).collect()
}

fn read_events(watch: &mut Watch) -> Vec<WatchPodsEvent> {
    let mut received = Vec::new();
    while let Poll::Ready(Some(Ok(event))) = poll(watch) {
        received.push(WatchPodsEvent::decode(event).unwrap());
    }
    received
}

fn complete(store: &mut Store, pods: impl IntoIterator<Item = Pod>) {
    let listed: Vec<_> = pods.into_iter().map(PodEvent::InitApply).collect();
    for event in std::iter::once(PodEvent::Init).chain(listed).chain([PodEvent::InitDone]) {
        store.apply(event, Instant::now()).unwrap();
    }
}

#[test]
fn the_largest_pods_are_omitted_and_return_when_there_is_room() {
    let (mut store, _) = store();
    let large = |number: usize| pod_of_size(&format!("large-{number:02}"), 1_400_000);
    let small = |number: usize| pod_of_size(&format!("small-{number}"), 10_000);
    complete(&mut store, (0..3).map(small));
    let mut watch = Watch::new(Arc::clone(&store.pods));
    read_events(&mut watch);
    (0..64).for_each(|number| store.apply(PodEvent::Apply(large(number)), Instant::now()).unwrap());
    let fits = MAX_RAW_BYTES / 1_400_000;
    for round in 0..2 {
        let names = pod_names(&store.pods);
        assert_eq!(names.len(), fits + 3, "{round}: {names:?}");
        assert!(lock(&store.pods).list().len() <= MAX_RAW_BYTES);
        assert_eq!(names.iter().filter(|name| name.starts_with("small")).count(), 3, "{round}");
        assert_eq!(lock(&store.pods).entries.omitted, 64 - fits);
        assert_eq!(lock(&store.infos).entries.len(), 67, "PodInfo has all of them");
        assert_eq!(store.take_newly_omitted().len(), if round == 0 { 64 - fits } else { 0 }, "reported once");
        complete(&mut store, (0..3).map(small).chain((0..64).map(large)));
    }
    // The watcher got events of served pods only.
    assert_eq!(read_events(&mut watch).len(), fits);
    let Err(GetError::TooLarge(missing)) = lock(&store.pods).get("large-63") else { panic!("it is served") };
    let message = missing.to_string();
    assert!(message.contains("ns/large-63") && message.contains("1400"), "{message}");
    assert!(!store.has_room());

    // A served pod grows: it is omitted, and watchers get a deletion.
    store.apply(PodEvent::Apply(pod_of_size("large-00", 3_000_000)), Instant::now()).unwrap();
    let [deleted] = &read_events(&mut watch)[..] else { panic!("one event") };
    assert_eq!(deleted.r#type(), EventType::Deleted);
    assert!(store.has_room(), "another one would fit");
    store.apply(PodEvent::Apply(large(63)), Instant::now()).unwrap();
    assert_eq!(read_events(&mut watch)[0].r#type(), EventType::Added);
    assert!(!store.has_room());
    // Large pods are omitted for small ones.
    (3..40).for_each(|number| {
        store
            .apply(PodEvent::Apply(pod_of_size(&format!("small-{number}"), 100_000)), Instant::now())
            .unwrap()
    });
    let names = pod_names(&store.pods);
    assert_eq!(names.iter().filter(|name| name.starts_with("small")).count(), 40, "{names:?}");
    (0..64).for_each(|number| store.apply(PodEvent::Delete(large(number)), Instant::now()).unwrap());
    assert_eq!((pod_names(&store.pods).len(), lock(&store.pods).entries.omitted), (40, 0));
}

#[test]
fn of_pods_of_one_size_the_newer_is_omitted_and_reported_once() {
    let (mut store, _) = store();
    let pods = ["b", "a"].map(|uid| pod_of_size(uid, MAX_RAW_BYTES * 5 / 8));
    for _ in 0..2 {
        complete(&mut store, pods.clone());
        assert_eq!(pod_names(&store.pods), ["b"]);
    }
    assert_eq!(store.take_newly_omitted().len(), 1);
    store.apply(PodEvent::Apply(pods[1].clone()), Instant::now()).unwrap();
    assert_eq!((pod_names(&store.pods), store.take_newly_omitted()), (vec!["b".to_owned()], vec![]));
}

#[test]
fn a_pod_that_its_source_reduced_is_in_pod_info() {
    let (mut store, _) = store();
    complete(&mut store, [pod_of_size("a", 10)]);
    let mut large = pod_of_size("large", 1_000);
    let Some(RawPod::Protobuf(bytes)) = large.raw.as_deref() else { panic!("it is encoded") };
    large.raw = Some(Box::new(RawPod::Outline(outline(bytes), bytes.len())));
    for _ in 0..2 {
        store.apply(PodEvent::Apply(large.clone()), Instant::now()).unwrap();
        assert_eq!((pod_names(&store.pods), lock(&store.pods).entries.omitted), (vec!["a".to_owned()], 1));
        assert_eq!(lock(&store.infos).entries.len(), 2);
        let missing = lock(&store.pods).get("large");
        assert!(matches!(missing, Err(GetError::TooLarge(_))), "{missing:?}");
    }
    store.apply(PodEvent::Delete(large), Instant::now()).unwrap();
    assert_eq!(lock(&store.pods).entries.omitted, 0);
}

#[test]
fn pod_info_has_a_budget_of_its_own() {
    let (mut store, _) = store();
    store.apply_kubelet(PodEvent::Init, Instant::now()).unwrap();
    for number in 0..5 {
        let condition = json!({"type": "Ready", "status": "True", "message": "x".repeat(MAX_RAW_BYTES / 18)});
        let metadata = json!({"name": "a", "namespace": "ns", "uid": number.to_string()});
        let item = json!({"metadata": metadata, "status": {"conditions": [condition]}});
        let raw = Some(Box::new(RawPod::Json(item.to_string().into())));
        store.apply_kubelet(PodEvent::InitApply(Pod { raw, ..pod_of_size("a", 0) }), Instant::now()).unwrap();
    }
    store.apply_kubelet(PodEvent::InitDone, Instant::now()).unwrap();
    let infos = lock(&store.infos);
    assert_eq!((infos.entries.len(), infos.entries.omitted), (5, 1));
}

#[test]
fn unread_events_are_bounded_in_bytes() {
    let (mut store, _) = store();
    complete(&mut store, []);
    let mut idle = Watch::new(Arc::clone(&store.pods));
    let mut reads = Watch::new(Arc::clone(&store.pods));
    let start = Instant::now();
    let mut most = 0;
    for round in 0..60 {
        let at = start + Duration::from_millis(200 * round);
        store.apply(PodEvent::Apply(pod_of_size("a", 1_000_000 + round as usize)), at).unwrap();
        read_events(&mut reads);
        most = most.max(lock(&store.pods).watchers.buffered().1);
    }
    assert!(most <= MAX_RAW_BYTES / 2 + 1_001_000, "{most} bytes");
    let next = Pin::new(&mut idle).poll_next(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Some(Err(status))) = next else { panic!("it continues") };
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(lock(&store.pods).watchers.buffered().1, 0);
    // A burst may buffer three times as much.
    let idle = Watch::new(Arc::clone(&store.pods));
    let at = start + Duration::from_secs(60);
    for round in 0..60 {
        store.apply(PodEvent::Apply(pod_of_size("a", 1_100_000 + round)), at).unwrap();
        read_events(&mut reads);
        most = most.max(lock(&store.pods).watchers.buffered().1);
    }
    assert!((3 * MAX_RAW_BYTES / 2..3 * MAX_RAW_BYTES / 2 + 1_200_000).contains(&most), "{most} bytes");
    drop(idle);
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

fn entry(uid: u8, bytes: u8) -> Entry {
    let content = vec![uid; usize::from(bytes)];
    Entry::new(Content::Served(content.into()), vec![uid], None, ("ns", &uid.to_string()))
}

#[test]
fn the_budget_may_be_used_up() {
    let mut cache = WatchCache::new(LIMIT, Arc::<Count>::default());
    (0..3).for_each(|uid| cache.put(&uid.to_string(), entry(uid, 100), Instant::now()));
    assert_eq!(cache.entries.omitted, 0);
    cache.put("3", entry(3, 1), Instant::now());
    assert_eq!(cache.entries.omitted, 1);
}

proptest! {
    #[test]
    fn any_change_fits_the_budget_and_is_sent(steps in steps()) {
        let cache = WatchCache::new(LIMIT, Arc::<Count>::default());
        let cache: SharedCache = Arc::new(std::sync::Mutex::new(cache));
        let mut watch = Watch::new(Arc::clone(&cache));
        let (mut known, mut all) = (BTreeMap::new(), BTreeMap::<u8, u8>::new());
        for step in steps {
            let now = Instant::now();
            // An unchanged pod may stay although it is larger.
            let all_are_new = matches!(&step, Step::Replace(_, same) if same.is_empty());
            match step {
                Step::Put(uid, bytes) => {
                    lock(&cache).put(&uid.to_string(), entry(uid, bytes), now);
                    all.insert(uid, bytes);
                }
                Step::Remove(uid) => {
                    lock(&cache).remove(&uid.to_string(), now);
                    all.remove(&uid);
                }
                Step::Replace(pods, same) => {
                    let mut list = IncomingList::new(LIMIT);
                    pods.iter().for_each(|(uid, bytes)| list.put(&uid.to_string(), entry(*uid, *bytes)));
                    let same: BTreeSet<u8> = same.into_iter().filter(|uid| known.contains_key(uid)).collect();
                    same.iter().for_each(|uid| list.put_unchanged(&uid.to_string()));
                    let kept: Vec<(u8, u8)> = same.iter().map(|uid| (*uid, all[uid])).collect();
                    all = pods;
                    all.extend(kept);
                    lock(&cache).replace(list, now);
                }
            }
            for event in read_events(&mut watch) {
                let Some(uid) = event.pod.first().copied() else { continue };
                match event.r#type() {
                    EventType::Added => prop_assert!(known.insert(uid, event.pod).is_none()),
                    EventType::Modified => prop_assert!(known.insert(uid, event.pod).is_some()),
                    _ => prop_assert!(known.remove(&uid).is_some()),
                }
            }
            let cache = lock(&cache);
            let served: BTreeMap<u8, Bytes> =
                cache.entries.all_served().map(|(_, content)| (content[0], content.clone())).collect();
            prop_assert_eq!(&served, &known);
            prop_assert!(served.values().map(Bytes::len).sum::<usize>() <= LIMIT.bytes);
            prop_assert_eq!(cache.entries.len(), all.len());
            prop_assert_eq!(cache.entries.omitted, all.len() - served.len());
            for (uid, content) in &served {
                prop_assert_eq!(content.len(), usize::from(all[uid]));
            }
            let omitted = all.iter().filter(|(uid, _)| !served.contains_key(uid));
            let smallest = omitted.map(|(_, bytes)| usize::from(*bytes)).min();
            let largest = served.values().map(Bytes::len).max();
            if let Some((smallest, largest)) = smallest.zip(largest).filter(|_| all_are_new) {
                prop_assert!(smallest >= largest, "{} is omitted, and {} is not", smallest, largest);
            }
        }
    }
}

#[test]
fn an_outline_has_the_name_and_status_of_a_pod() {
    let pod = pod_of_size("a", 1_000_000);
    let Some(RawPod::Protobuf(bytes)) = pod.raw.as_deref() else { panic!("it is encoded") };
    let reduced = outline(bytes);
    assert!(reduced.len() < 50, "{}", reduced.len());
    let read = crate::core_v1::decode_pod(&reduced).unwrap();
    assert_eq!(read, crate::core_v1::decode_pod(bytes).unwrap());
    assert_eq!(outline(&bytes[..bytes.len() - 1]), Bytes::new(), "an invalid pod has no outline");
}
