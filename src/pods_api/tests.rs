//! The store and its watchers, checked against a simple model, and the contents of `PodInfo`.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures::Stream;
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;
use prost::bytes::Bytes;
use serde_json::json;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::board::{Missing, Shared, Watch, lock};
use super::info::Info;
use super::proto::v1alpha1::{ListPodConditionsResponse, PodConditions};
use super::store::Store;
use super::watchers::{BEHIND, Tally};
use crate::core_v1::proto as core;
use crate::grpc::Feed;
use crate::kubelet::proto::pods::{EventType, ListPodsResponse, WatchPodsEvent};
use crate::pod::{Pod, PodEvent, RawPod};
use crate::util::wire::{put_bytes, put_number};

#[derive(Debug, Default)]
struct Count {
    watchers: AtomicUsize,
    cut: AtomicUsize,
    heard: AtomicUsize,
}

impl Tally for Count {
    fn watchers(&self, more: i64) {
        self.watchers.fetch_add(more as usize, Ordering::Relaxed);
    }

    fn cut(&self, watchers: usize) {
        self.cut.fetch_add(watchers, Ordering::Relaxed);
    }

    fn heard(&self, _: Duration) {
        self.heard.fetch_add(1, Ordering::Relaxed);
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

/// Encodes a status. Conditions are in it, but not in the message types that we decode.
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
    let whole = Some(Box::new(RawPod::Protobuf(message.into())));
    Pod { namespace: "ns".into(), name: uid.into(), uid: uid.into(), raw: whole, ..Pod::default() }
}

fn tell<const N: usize>(store: &mut Store, events: [PodEvent; N]) {
    for event in events {
        store.take(event, Instant::now()).unwrap();
    }
}

/// Returns a pod as in the kubelet's `/pods`, without a note.
fn page_pod(uid: &str, annotations: &[(&str, &str)], phase: &str) -> Pod {
    let annotations: BTreeMap<_, _> = annotations.iter().copied().collect();
    let item = json!({
        "metadata": {"name": uid, "namespace": "ns", "uid": uid, "annotations": annotations},
        "status": {"phase": phase, "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": null}]},
    });
    let whole = Some(Box::new(RawPod::Json(item.to_string().into())));
    Pod { namespace: "ns".into(), name: uid.into(), uid: uid.into(), raw: whole, ..Pod::default() }
}

fn uid_of_pod(content: &[u8]) -> String {
    core::Pod::decode(content).unwrap().metadata.unwrap().uid
}

fn uid_of_info(content: &[u8]) -> String {
    PodConditions::decode(content).unwrap().pod_uid
}

/// Returns the pods of the List response.
fn listed(board: &Shared, uid: fn(&[u8]) -> String) -> BTreeMap<String, Bytes> {
    // The List responses of both services have the same wire format.
    let pods = ListPodsResponse::decode(lock(board).list()).unwrap().pods;
    let named: Vec<_> = pods.into_iter().map(|pod| (uid(&pod), pod)).collect();
    assert!(named.is_sorted_by(|(a, _), (b, _)| a < b), "by UID: {named:?}");
    named.into_iter().collect()
}

fn poll(watch: &mut Watch) -> Poll<Option<Result<Bytes, Status>>> {
    let polled = Pin::new(watch).poll_next(&mut Context::from_waker(Waker::noop()));
    polled.map_ok(|message| message.to_vec().into())
}

/// A watcher that fails on any event it does not expect.
struct Listener {
    watch: Watch,
    uid: fn(&[u8]) -> String,
    /// The pods when it joined, until it has received them.
    initial: Option<BTreeMap<String, Bytes>>,
    last: String,
    known: BTreeMap<String, Bytes>,
    /// Events that it has not read.
    waiting: usize,
}

impl Listener {
    fn join(board: &Shared, uid: fn(&[u8]) -> String) -> Self {
        let initial = Some(listed(board, uid));
        let (last, known) = (String::new(), BTreeMap::new());
        Self { watch: Watch::new(Arc::clone(board)), uid, initial, last, known, waiting: 0 }
    }

    /// Reads one event. Returns true if there may be more.
    fn hear(&mut self) -> bool {
        match poll(&mut self.watch) {
            Poll::Ready(Some(Ok(bytes))) => self.take(&WatchPodsEvent::decode(bytes).unwrap()),
            Poll::Ready(Some(Err(status))) => {
                assert!(self.waiting > BEHIND, "cut with {} waiting: {status}", self.waiting);
                assert_eq!(status.code(), Code::ResourceExhausted);
                assert_eq!(status.message(), "watch client channel closed");
                assert!(matches!(poll(&mut self.watch), Poll::Ready(None)));
                return false;
            }
            Poll::Ready(None) => panic!("it ended without a word"),
            Poll::Pending => {
                assert_eq!((self.waiting, self.initial.is_some()), (0, false), "an event was lost");
                return false;
            }
        }
        true
    }

    fn take(&mut self, event: &WatchPodsEvent) {
        if event.r#type() == EventType::InitialSyncComplete {
            assert!(event.pod.is_empty());
            assert_eq!(self.initial.take(), Some(self.known.clone()), "what there was when it joined");
            return;
        }
        let uid = (self.uid)(&event.pod);
        if self.initial.is_some() {
            assert_eq!(event.r#type(), EventType::Added);
            assert!(self.last < uid, "{uid} after {}", self.last);
            self.last.clone_from(&uid);
            assert!(self.known.insert(uid, event.pod.clone()).is_none());
            return;
        }
        assert!(self.waiting > 0, "an event that it should have heard before: {event:?}");
        self.waiting -= 1;
        let known = match event.r#type() {
            EventType::Deleted => self.known.remove(&uid),
            _ => self.known.insert(uid, event.pod.clone()),
        };
        match event.r#type() {
            EventType::Added => assert_eq!(known, None, "{event:?}"),
            EventType::Modified => assert!(known.is_some_and(|known| known != event.pod), "{event:?}"),
            EventType::Deleted => assert!(known.is_some(), "{event:?}"),
            other => panic!("{other:?}"),
        }
    }
}

/// A step of the test.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A pod changes; the source reports it, or not.
    Set(u8, u8, bool),
    Remove(u8, bool),
    /// A list, complete or broken off after this many pods.
    List(Option<u8>),
    /// The kubelet's `/pods` reports a list, or one pod.
    Page,
    PagePod(u8, u8),
    Again,
    Join(bool),
    Leave(u8),
    Hear(u8, u8),
    Tidy,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pod = 0..12_u8;
    let step = prop_oneof![
        12 => (pod.clone(), 0..8_u8, prop::bool::weighted(0.8)).prop_map(|(a, b, c)| Step::Set(a, b, c)),
        4 => (pod.clone(), prop::bool::weighted(0.8)).prop_map(|(a, b)| Step::Remove(a, b)),
        2 => prop::option::weighted(0.3, 0..12_u8).prop_map(Step::List),
        1 => Just(Step::Page),
        1 => (pod, 0..8_u8).prop_map(|(a, b)| Step::PagePod(a, b)),
        1 => Just(Step::Again),
        2 => any::<bool>().prop_map(Step::Join),
        1 => any::<u8>().prop_map(Step::Leave),
        6 => (any::<u8>(), 1..30_u8).prop_map(|(a, b)| Step::Hear(a, b)),
        1 => Just(Step::Tidy),
    ];
    vec(step, 0..400)
}

/// Makes every fourth pod the mirror of a static one.
fn annotations(number: u8, hash: &str) -> Vec<(&'static str, &str)> {
    match number % 4 {
        0 => vec![("kubernetes.io/config.mirror", hash), ("kubernetes.io/config.hash", hash)],
        _ => vec![],
    }
}

/// Returns a version of a pod. Versions differ in what `PodInfo` contains, or only in the rest.
fn made(number: u8, version: u8) -> Pod {
    let phase = ["Pending", "Running"][usize::from(version % 2)];
    pod(&format!("u{number:02}"), &annotations(number, &format!("h{number}")), phase, &version.to_string())
}

/// Returns the same for `/pods`, which has static pods instead of their mirrors.
fn made_for_page(number: u8, version: u8) -> Pod {
    let (hash, phase) = (format!("h{number}"), ["Pending", "Running"][usize::from(version % 2)]);
    match number % 4 {
        0 => page_pod(&hash, &[("kubernetes.io/config.source", "file")], phase),
        _ => page_pod(&format!("u{number:02}"), &[], phase),
    }
}

struct World {
    store: Store,
    count: Arc<Count>,
    /// The source's pods, and those it has reported.
    truth: BTreeMap<u8, u8>,
    told: BTreeMap<u8, u8>,
    listeners: Vec<Listener>,
    /// The time of the last step. Events of one step arrive at the same time.
    now: Instant,
}

impl World {
    fn new() -> Self {
        let (store, count) = store();
        let (truth, told) = (BTreeMap::new(), BTreeMap::new());
        Self { store, count, truth, told, listeners: Vec::new(), now: Instant::now() }
    }

    fn tell(&mut self, events: impl IntoIterator<Item = PodEvent>) {
        self.changing(|store, now| {
            for event in events {
                store.take(event, now).unwrap();
            }
        });
    }

    /// Runs an action, and counts the events expected from the lists before and after.
    fn changing(&mut self, act: impl FnOnce(&mut Store, Instant)) {
        let lists = |store: &Store| [listed(&store.pods, uid_of_pod), listed(&store.infos, uid_of_info)];
        let before = lists(&self.store);
        self.now += Duration::from_secs(1);
        act(&mut self.store, self.now);
        let after = lists(&self.store);
        let events = [0, 1].map(|at| {
            let (before, after) = (&before[at], &after[at]);
            let gone = before.keys().filter(|uid| !after.contains_key(*uid)).count();
            gone + after.iter().filter(|(uid, pod)| before.get(*uid) != Some(pod)).count()
        });
        for listener in &mut self.listeners {
            listener.waiting += events[usize::from(Arc::ptr_eq(listener.watch.board(), &self.store.infos))];
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Set(number, version, told) => {
                self.truth.insert(number, version);
                if told && lock(&self.store.pods).has_told() {
                    self.told.insert(number, version);
                    self.tell([PodEvent::Is(made(number, version))]);
                }
            }
            Step::Remove(number, told) => {
                self.truth.remove(&number);
                if told && lock(&self.store.pods).has_told() {
                    self.told.remove(&number);
                    // Only namespace, name and UID need be set.
                    let gone = Pod { raw: None, ..made(number, 0) };
                    self.tell([PodEvent::Gone(gone)]);
                }
            }
            Step::List(most) => {
                let pods = self.truth.iter().map(|(number, version)| made(*number, *version));
                let most_listed = most.map_or(usize::MAX, usize::from);
                let listed: Vec<_> = pods.take(most_listed).map(PodEvent::Listed).collect();
                self.tell(std::iter::once(PodEvent::Listing).chain(listed));
                if most.is_none() {
                    self.tell([PodEvent::Complete]);
                    self.told.clone_from(&self.truth);
                }
            }
            Step::Page => {
                let pods: Vec<_> = self.truth.iter().map(|(number, v)| made_for_page(*number, *v)).collect();
                self.changing(|store, now| {
                    let listed = pods.into_iter().map(PodEvent::Listed);
                    for event in std::iter::once(PodEvent::Listing).chain(listed).chain([PodEvent::Complete])
                    {
                        store.take_page(event, now).unwrap();
                    }
                });
            }
            Step::PagePod(number, version) => self.changing(|store, now| {
                store.take_page(PodEvent::Is(made_for_page(number, version)), now).unwrap();
            }),
            Step::Again => self.tell([PodEvent::Again]),
            Step::Join(infos) => {
                let board = if infos { &self.store.infos } else { &self.store.pods };
                let uid = if infos { uid_of_info } else { uid_of_pod };
                if lock(board).has_told() {
                    let listener = Listener::join(board, uid);
                    self.listeners.push(listener);
                }
            }
            Step::Leave(which) => {
                if !self.listeners.is_empty() {
                    let which = usize::from(which) % self.listeners.len();
                    self.listeners.swap_remove(which);
                }
            }
            Step::Hear(which, most) => {
                if !self.listeners.is_empty() {
                    let which = usize::from(which) % self.listeners.len();
                    let listener = &mut self.listeners[which];
                    let mut left = most;
                    while left > 0 && listener.hear() {
                        left -= 1;
                    }
                    if listener.waiting > BEHIND {
                        self.listeners.swap_remove(which);
                    }
                }
            }
            Step::Tidy => lock(&self.store.pods).tidy(),
        }
    }

    /// Drains all watchers and checks that they know what is listed, which is what was reported.
    fn settle(mut self) {
        for mut listener in std::mem::take(&mut self.listeners) {
            while listener.hear() {}
            if listener.waiting <= BEHIND {
                assert_eq!(listener.known, listed(listener.watch.board(), listener.uid));
            }
        }
        let told = self.told.iter().map(|(number, version)| {
            let Some(RawPod::Protobuf(bytes)) = made(*number, *version).raw.map(|whole| *whole) else {
                panic!("it is whole")
            };
            (format!("u{number:02}"), bytes)
        });
        assert_eq!(listed(&self.store.pods, uid_of_pod), told.collect());
        if !self.store.shows_page() {
            let shown = self.told.iter().map(|(number, version)| {
                let info = Info::of(&made(*number, *version)).unwrap();
                (info.uid.clone(), info.encoded().into())
            });
            assert_eq!(listed(&self.store.infos, uid_of_info), shown.collect());
        }
        // Without watchers no events are buffered.
        assert_eq!(self.count.watchers.load(Ordering::Relaxed), 0);
        for board in [&self.store.pods, &self.store.infos] {
            assert_eq!(lock(board).waiting(), 0, "events that nobody waits for");
        }
    }
}

proptest! {
    #![proptest_config(crate::randomised::fewer_cases(4))]

    #[test]
    fn who_watches_knows_what_is_listed(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        world.settle();
    }
}

#[test]
fn a_watcher_is_cut_off_when_a_hundred_events_wait_and_one_more_comes() {
    let (mut store, count) = store();
    let now = Instant::now();
    tell(&mut store, [PodEvent::Listing, PodEvent::Complete]);
    let (mut quick, mut slow) = (Watch::new(Arc::clone(&store.pods)), Watch::new(Arc::clone(&store.pods)));
    let mut heard = 0;
    for number in 0..=BEHIND {
        assert_eq!(count.cut.load(Ordering::Relaxed), 0, "{number}");
        let at = now + Duration::from_millis(10 * number as u64);
        store.take(PodEvent::Is(pod("u", &[], "Running", &number.to_string())), at).unwrap();
        while let Poll::Ready(Some(event)) = poll(&mut quick) {
            event.unwrap();
            heard += 1;
        }
    }
    assert_eq!((heard, count.cut.load(Ordering::Relaxed)), (BEHIND + 2, 1), "with the marker");
    let Poll::Ready(Some(Err(status))) = poll(&mut slow) else { panic!("it goes on") };
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "watch client channel closed"));
    // Nothing is buffered for a watcher that was cut off.
    assert_eq!(lock(&store.pods).waiting(), 0);
    drop(slow);
    store.take(PodEvent::Is(pod("u", &[], "Failed", "")), now).unwrap();
    assert!(matches!(poll(&mut quick), Poll::Ready(Some(Ok(_)))));
}

/// Returns true if a watcher with an unsent message is to be ended.
fn is_over(watch: &mut Watch, context: &mut Context<'_>) -> bool {
    Pin::new(watch).poll_over(context).is_ready()
}

#[test]
fn a_watcher_that_takes_nothing_is_woken_when_it_is_cut_off_and_not_before() {
    let (mut store, _) = store();
    let now = Instant::now();
    tell(&mut store, [PodEvent::Listing, PodEvent::Complete]);
    let mut watch = Watch::new(Arc::clone(&store.pods));
    let woken = Arc::new(Woken::default());
    let waker = Arc::clone(&woken).into();
    for number in 0..=BEHIND {
        assert!(!is_over(&mut watch, &mut Context::from_waker(&waker)), "{number}");
        assert_eq!(woken.0.load(Ordering::Relaxed), 0, "{number}");
        let at = now + Duration::from_millis(10 * number as u64);
        store.take(PodEvent::Is(pod("u", &[], "Running", &number.to_string())), at).unwrap();
    }
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(is_over(&mut watch, &mut Context::from_waker(&waker)));
}

#[test]
fn when_the_server_stops_all_watchers_hear_so_and_new_ones_at_once() {
    let (mut store, count) = store();
    tell(&mut store, [PodEvent::Listing, PodEvent::Complete]);
    let mut watch = Watch::new(Arc::clone(&store.pods));
    let woken = Arc::new(Woken::default());
    let waker = Arc::clone(&woken).into();
    let mut context = Context::from_waker(&waker);
    assert!(Pin::new(&mut watch).poll_next(&mut context).is_ready(), "the marker");
    assert!(Pin::new(&mut watch).poll_next(&mut context).is_pending());
    lock(&store.pods).close();
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(!is_over(&mut watch, &mut context), "it has a moment to hear why");
    for mut watch in [watch, Watch::new(Arc::clone(&store.pods))] {
        let Poll::Ready(Some(Err(status))) = poll(&mut watch) else { panic!("it goes on") };
        assert_eq!(status.code(), Code::Unavailable);
        assert!(matches!(poll(&mut watch), Poll::Ready(None)));
    }
    tell(&mut store, [PodEvent::Is(pod("u", &[], "Running", ""))]);
    assert_eq!((lock(&store.pods).waiting(), count.cut.load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn a_pod_that_goes_while_a_list_comes_in_is_not_in_it() {
    let (mut store, _) = store();
    let pods = ["a", "b", "c"].map(|uid| pod(uid, &[], "Running", ""));
    tell(&mut store, [PodEvent::Listing, PodEvent::Listed(pods[0].clone()), PodEvent::Complete]);
    tell(&mut store, [PodEvent::Listing]);
    pods.iter().for_each(|pod| tell(&mut store, [PodEvent::Listed(pod.clone())]));
    // An unchanged pod, and a new one.
    tell(&mut store, [PodEvent::Gone(pods[0].clone()), PodEvent::Gone(pods[1].clone()), PodEvent::Complete]);
    assert_eq!(listed(&store.pods, uid_of_pod).into_keys().collect::<Vec<_>>(), ["c"]);
}

#[test]
fn nothing_is_lost_between_the_list_of_a_new_watcher_and_what_comes_then() {
    let (mut store, _) = store();
    let now = Instant::now();
    let list = [PodEvent::Listing, PodEvent::Listed(pod("a", &[], "Running", "")), PodEvent::Complete];
    tell(&mut store, list);
    let mut listener = Listener::join(&store.pods, uid_of_pod);
    assert!(listener.hear(), "one of its list");
    // Meanwhile the pod is deleted and another one is added.
    store.take(PodEvent::Gone(pod("a", &[], "Running", "")), now).unwrap();
    store.take(PodEvent::Is(pod("b", &[], "Running", "")), now).unwrap();
    listener.waiting = 2;
    while listener.hear() {}
    assert_eq!(listener.known.keys().collect::<Vec<_>>(), ["b"]);
}

#[test]
fn a_pod_that_is_gone_is_told_of_by_its_names_alone() {
    let (mut store, _) = store();
    let now = Instant::now();
    let gone = pod("m", &[("kubernetes.io/config.mirror", "h")], "Running", "");
    let list = [PodEvent::Listing, PodEvent::Listed(gone.clone()), PodEvent::Complete];
    tell(&mut store, list);
    let mut watches = [&store.pods, &store.infos].map(|board| Watch::new(Arc::clone(board)));
    watches.iter_mut().for_each(|watch| drop([poll(watch), poll(watch)]));
    store.take(PodEvent::Gone(gone), now).unwrap();
    let [pod, info] = watches.map(|mut watch| match poll(&mut watch) {
        Poll::Ready(Some(Ok(event))) => WatchPodsEvent::decode(event).unwrap(),
        other => panic!("{other:?}"),
    });
    assert_eq!((pod.r#type(), info.r#type()), (EventType::Deleted, EventType::Deleted));
    let names = ("m".to_owned(), "ns".to_owned(), "m".to_owned());
    let metadata =
        core::ObjectMeta { name: names.0, namespace: names.1, uid: names.2, ..core::ObjectMeta::default() };
    let expected = core::Pod { metadata: Some(metadata), ..core::Pod::default() };
    assert_eq!(core::Pod::decode(pod.pod).unwrap(), expected);
    let expected = PodConditions {
        pod_uid: "h".into(),
        pod_namespace: "ns".into(),
        pod_name: "m".into(),
        ..PodConditions::default()
    };
    assert_eq!(PodConditions::decode(info.pod).unwrap(), expected);
}

#[test]
fn what_comes_in_one_go_cuts_nobody_off_and_is_bounded() {
    let (mut store, count) = store();
    let now = Instant::now();
    let pods = |number: usize, note: &str| {
        let listed = (0..number).map(|n| PodEvent::Listed(pod(&format!("u{n}"), &[], "Running", note)));
        std::iter::once(PodEvent::Listing).chain(listed.collect::<Vec<_>>()).chain([PodEvent::Complete])
    };
    pods(250, "before").for_each(|event| store.take(event, now).unwrap());
    let mut watch = Watch::new(Arc::clone(&store.pods));
    while poll(&mut watch).is_ready() {}
    // Another kubelet: every pod has changed.
    pods(250, "after").for_each(|event| store.take(event, now).unwrap());
    let mut heard = 0;
    while let Poll::Ready(Some(event)) = poll(&mut watch) {
        event.unwrap();
        heard += 1;
    }
    assert_eq!((heard, count.cut.load(Ordering::Relaxed)), (250, 0));
    // A watcher that has not read them a second later is cut off.
    pods(250, "later").for_each(|event| store.take(event, now).unwrap());
    let after = now + Duration::from_secs(1);
    store.take(PodEvent::Is(pod("u0", &[], "Failed", "")), after).unwrap();
    assert_eq!(count.cut.load(Ordering::Relaxed), 1);
    // The buffer is limited to all pods twice, plus 100 events.
    let mut watch = Watch::new(Arc::clone(&store.pods));
    while poll(&mut watch).is_ready() {}
    for round in 0..4 {
        pods(250, &round.to_string()).for_each(|event| store.take(event, after).unwrap());
        assert_eq!(count.cut.load(Ordering::Relaxed), if round < 2 { 1 } else { 2 }, "{round}");
    }
    assert_eq!(lock(&store.pods).waiting(), 0);
}

/// Returns a mirror pod as in the API server. Its name is a second field in the message: the last one wins.
fn mirror(uid: &str, name: &str, of: &str) -> Pod {
    let mut mirror = pod(uid, &[("kubernetes.io/config.mirror", of)], "Running", "");
    let Some(RawPod::Protobuf(bytes)) = mirror.raw.as_deref() else { panic!("it is whole") };
    let (mut metadata, mut message) = (Vec::new(), bytes.to_vec());
    put_bytes(&mut metadata, 1, name.as_bytes());
    put_bytes(&mut message, 1, &metadata);
    (mirror.name, mirror.raw) = (name.into(), Some(Box::new(RawPod::Protobuf(message.into()))));
    mirror
}

#[test]
fn who_says_that_it_is_another_pods_mirror_does_not_take_its_place() {
    let names = |store: &Store| -> Vec<String> {
        let shown = ListPodConditionsResponse::decode(lock(&store.infos).list()).unwrap().pods;
        shown.iter().map(|pod| format!("{}={}", pod.pod_uid, pod.pod_name)).collect()
    };
    let (mut store, _) = store();
    let all = [pod("v", &[], "Running", ""), mirror("m", "etcd-worker", "h")].map(PodEvent::Listed);
    tell(&mut store, [PodEvent::Listing]);
    tell(&mut store, all);
    tell(&mut store, [PodEvent::Complete]);
    assert_eq!(names(&store), ["h=etcd-worker", "v=v"]);
    // The UID of an ordinary pod and of a static pod. The other pod's own UID sorts before and after them.
    for (victim, own) in ["v", "h"].into_iter().flat_map(|victim| [(victim, "e"), (victim, "z")]) {
        let mut all = [format!("{own}=evil"), "h=etcd-worker".to_owned(), "v=v".to_owned()];
        all.sort_unstable();
        tell(&mut store, [PodEvent::Is(mirror(own, "evil", victim))]);
        assert_eq!(names(&store), all, "{victim} {own}");
        // The same after the victim changes and after all pods are evaluated anew.
        tell(&mut store, [PodEvent::Is(pod("v", &[], "Running", victim))]);
        tell(&mut store, [PodEvent::Is(mirror("m", "etcd-worker", "h"))]);
        assert_eq!(names(&store), all, "{victim} {own}");
        tell(&mut store, [PodEvent::Gone(mirror(own, "evil", victim))]);
        assert_eq!(names(&store), ["h=etcd-worker", "v=v"], "{victim} {own}");
    }
    // The impostor came first.
    tell(&mut store, [PodEvent::Gone(pod("v", &[], "Running", "")), PodEvent::Is(mirror("e", "evil", "v"))]);
    assert_eq!(names(&store), ["h=etcd-worker", "v=evil"], "nobody else has that UID");
    tell(&mut store, [PodEvent::Is(pod("v", &[], "Running", ""))]);
    assert_eq!(names(&store), ["e=evil", "h=etcd-worker", "v=v"]);
}

#[test]
fn a_mirror_is_found_by_either_uid_and_its_successor_is_not_taken_for_it() {
    let (mut store, _) = store();
    let now = Instant::now();
    let mirror = |uid: &str| mirror(uid, "etcd-worker", "h");
    let list = [PodEvent::Listing, PodEvent::Listed(mirror("m1")), PodEvent::Complete];
    tell(&mut store, list);
    for board in [&store.pods, &store.infos] {
        for uid in ["m1", "h"] {
            assert!(lock(board).get(uid).is_ok(), "{uid}");
        }
        assert!(lock(board).get("m2").is_err() && lock(board).get("").is_err());
    }
    let mut watch = Watch::new(Arc::clone(&store.infos));
    drop([poll(&mut watch), poll(&mut watch)]);
    // The mirror was deleted and recreated by the kubelet before the deletion was reported.
    store.take(PodEvent::Is(mirror("m2")), now).unwrap();
    store.take(PodEvent::Gone(mirror("m1")), now).unwrap();
    assert!(poll(&mut watch).is_pending(), "the static pod is what it was");
    let shown = ListPodConditionsResponse::decode(lock(&store.infos).list()).unwrap().pods;
    assert_eq!(shown.iter().map(|pod| &*pod.pod_uid).collect::<Vec<_>>(), ["h"]);
    store.take(PodEvent::Gone(mirror("m2")), now).unwrap();
    assert_eq!(lock(&store.infos).records().len(), 0);
}

#[test]
fn of_two_mirrors_of_one_name_the_one_that_came_last_is_shown() {
    let mirror = |uid: &str| mirror(uid, "etcd-worker", "h");
    // In either order of their UIDs.
    for (older, newer) in [("a", "b"), ("b", "a")] {
        let (mut store, _) = store();
        tell(&mut store, [PodEvent::Listing, PodEvent::Listed(mirror(older)), PodEvent::Complete]);
        tell(&mut store, [PodEvent::Is(mirror(newer))]);
        // An unrelated pod changes nothing.
        for event in [None, Some(PodEvent::Is(pod("u", &[], "Running", "")))] {
            event.into_iter().for_each(|event| tell(&mut store, [event]));
            let infos = lock(&store.infos);
            assert!(infos.get("h").is_ok() && infos.get(newer).is_ok(), "{newer}");
            assert_eq!(infos.get(older).err(), Some(Missing::Unknown), "{newer}");
        }
    }
}

#[test]
fn what_the_page_has_is_shown_until_all_whole_pods_are_told() {
    let (mut store, _) = store();
    let now = Instant::now();
    let uids = |store: &Store| listed(&store.infos, uid_of_info).into_keys().collect::<Vec<_>>();
    let whole = |uid: &str| pod(uid, &[], "Running", "");
    let on_page = |uid: &str| page_pod(uid, &[], "Running");
    let page = |store: &mut Store, uids: &[&str]| {
        store.take_page(PodEvent::Listing, now).unwrap();
        uids.iter().for_each(|uid| store.take_page(PodEvent::Listed(on_page(uid)), now).unwrap());
    };
    page(&mut store, &["a"]);
    store.close_page();
    store.take_page(PodEvent::Complete, now).unwrap();
    assert!(!store.shows_page(), "it was asked no more");

    page(&mut store, &["a", "b"]);
    store.take_page(PodEvent::Complete, now).unwrap();
    store.take_page(PodEvent::Gone(on_page("b")), now).unwrap();
    store.take_page(PodEvent::Is(on_page("c")), now).unwrap();
    tell(&mut store, [PodEvent::Is(whole("d"))]);
    assert_eq!((uids(&store), store.shows_page()), (vec!["a".to_owned(), "c".to_owned()], true));

    tell(&mut store, [PodEvent::Listing, PodEvent::Listed(whole("e")), PodEvent::Complete]);
    store.take_page(PodEvent::Gone(on_page("e")), now).unwrap();
    store.take_page(PodEvent::Is(on_page("c")), now).unwrap();
    assert_eq!((uids(&store), store.shows_page()), (vec!["e".to_owned()], false));

    // Another source of full pods takes over, and has not listed all pods yet.
    page(&mut store, &["a"]);
    store.take_page(PodEvent::Complete, now).unwrap();
    store.lead(false);
    tell(&mut store, [PodEvent::Is(whole("f"))]);
    assert_eq!((uids(&store), store.shows_page()), (vec!["a".to_owned()], true));
    store.lead(true);
    tell(&mut store, [PodEvent::Again]);
    assert_eq!((uids(&store), store.shows_page()), (vec!["e".to_owned(), "f".to_owned()], false));
}

#[test]
fn a_static_pod_of_the_page_is_found_by_either_uid() {
    let (mut store, _) = store();
    let now = Instant::now();
    let mirror = page_pod("m", &[("kubernetes.io/config.mirror", "h")], "Running");
    let all = [PodEvent::Listing, PodEvent::Listed(mirror.clone()), PodEvent::Complete];
    all.into_iter().for_each(|event| store.take_page(event, now).unwrap());
    assert!(["m", "h"].iter().all(|uid| lock(&store.infos).get(uid).is_ok()));
    store.take_page(PodEvent::Gone(mirror), now).unwrap();
    assert_eq!(lock(&store.infos).records().len(), 0);
}

#[test]
fn a_list_is_made_once_and_not_kept_for_nobody() {
    let (mut store, _) = store();
    let now = Instant::now();
    tell(&mut store, [PodEvent::Listing, PodEvent::Complete]);
    store.take(PodEvent::Is(pod("a", &[], "Running", "")), now).unwrap();
    let mut board = lock(&store.pods);
    let first = board.list();
    assert_eq!(board.list().as_ptr(), first.as_ptr());
    board.tidy();
    assert_eq!(board.list().as_ptr(), first.as_ptr(), "somebody had asked");
    board.tidy();
    board.tidy();
    assert!(first.is_unique(), "nobody asks");
}

#[test]
fn who_cannot_be_served_is_named_and_the_others_are_served() {
    let (mut store, _) = store();
    let now = Instant::now();
    store.take(PodEvent::Listing, now).unwrap();
    store.take(PodEvent::Listed(pod("a", &[], "Running", "")), now).unwrap();
    for (strange, reason) in [
        (Pod { raw: None, ..pod("b", &[], "Running", "") }, "it did not come as protocol buffers"),
        (page_pod("c", &[], "Running"), "it did not come as protocol buffers"),
        (pod("", &[], "Running", ""), "it has no UID"),
    ] {
        let name = strange.name.clone();
        let left_out = store.take(PodEvent::Listed(strange), now).unwrap_err();
        assert_eq!(left_out.to_string(), format!("a pod is left out, ns/{name}: {reason}"));
    }
    store.take(PodEvent::Complete, now).unwrap();
    assert_eq!(lock(&store.pods).records().len(), 1);
}

#[test]
fn conditions_are_read_alike_whatever_the_pod_came_as() {
    let moment = |seconds: u64, nanos: u64| {
        let mut out = Vec::new();
        put_number(&mut out, 1, seconds);
        // Go writes zero nanoseconds too.
        put_number(&mut out, 2, nanos);
        out
    };
    let mut condition = Vec::new();
    put_bytes(&mut condition, 1, b"example.com/gate");
    put_bytes(&mut condition, 2, b"False");
    put_bytes(&mut condition, 3, b"");
    put_bytes(&mut condition, 4, &moment(1_700_000_000, 500_000_000));
    put_bytes(&mut condition, 5, b"");
    put_bytes(&mut condition, 6, "not yet \u{e9}".as_bytes());
    put_number(&mut condition, 7, 0);
    let newer = [&condition[..], &[0xa2, 0x06, 1, b'x']].concat();
    let (mut metadata, mut status, mut message) = (Vec::new(), Vec::new(), Vec::new());
    for (number, text) in [(1, "etcd-worker"), (2, "generated"), (3, "kube-system"), (5, "u")] {
        put_bytes(&mut metadata, number, text.as_bytes());
    }
    put_bytes(&mut metadata, 9, &moment(1_700_000_060, 0));
    let mut entry = Vec::new();
    put_bytes(&mut entry, 1, b"kubernetes.io/config.source");
    put_bytes(&mut entry, 2, b"file");
    put_bytes(&mut metadata, 12, &entry);
    put_bytes(&mut status, 1, b"Running");
    put_bytes(&mut status, 2, &condition);
    put_bytes(&mut message, 1, &metadata);
    put_bytes(&mut message, 3, &status);
    let came = |whole| Pod { raw: Some(Box::new(whole)), ..Pod::default() };
    let info = Info::of(&came(RawPod::Protobuf(message.clone().into()))).unwrap();
    let item = json!({
        "metadata": {
            "name": "etcd-worker", "namespace": "kube-system", "uid": "u", "deletionTimestamp": "2023-11-14T22:14:20Z",
            "annotations": {"kubernetes.io/config.source": "file"},
        },
        "spec": {"containers": []},
        "status": {"phase": "Running", "conditions": [{
            "type": "example.com/gate", "status": "False", "lastProbeTime": null,
            "lastTransitionTime": "2023-11-14T22:13:20.5Z", "message": "not yet \u{e9}",
        }]},
    });
    assert_eq!(info, Info::of(&came(RawPod::Json(item.to_string().into()))).unwrap());
    let shown = PodConditions::decode(&*info.encoded()).unwrap();
    assert!(shown.r#static);
    assert_eq!((&*shown.phase, shown.deletion_timestamp.unwrap().seconds), ("Running", 1_700_000_060));
    let [shown] = &shown.conditions[..] else { panic!("{shown:?}") };
    assert_eq!((&*shown.r#type, &*shown.status, &*shown.reason), ("example.com/gate", "False", ""));
    assert_eq!((shown.last_probe_time, &*shown.message), (None, "not yet \u{e9}"));
    let at = shown.last_transition_time.unwrap();
    assert_eq!((at.seconds, at.nanos), (1_700_000_000, 500_000_000));
    // Fields that only newer kubelets set are kept.
    put_bytes(&mut message, 3, &{
        let mut status = Vec::new();
        put_bytes(&mut status, 2, &newer);
        status
    });
    let encoded = Info::of(&came(RawPod::Protobuf(message.into()))).unwrap().encoded();
    assert!(encoded.windows(4).any(|bytes| bytes == [0xa2, 0x06, 1, b'x']));
}

#[test]
fn text_that_is_no_utf_8_does_not_spoil_the_list() {
    let mut whole = pod("a", &[], "Running", "");
    let mut status = Vec::new();
    put_bytes(&mut status, 1, b"Run\xffning");
    let Some(RawPod::Protobuf(bytes)) = whole.raw.as_deref() else { panic!("it is whole") };
    let mut message = bytes.to_vec();
    put_bytes(&mut message, 3, &status);
    whole.raw = Some(Box::new(RawPod::Protobuf(message.into())));
    let shown = PodConditions::decode(&*Info::of(&whole).unwrap().encoded()).unwrap();
    assert_eq!(shown.phase, "Run\u{fffd}ning");
}

#[test]
fn only_what_is_shown_is_told_and_a_source_that_takes_over_says_nothing_new() {
    let (mut store, _) = store();
    let now = Instant::now();
    let list = [PodEvent::Listing, PodEvent::Listed(pod("a", &[], "Running", "1")), PodEvent::Complete];
    tell(&mut store, list);
    let mut watch = Watch::new(Arc::clone(&store.infos));
    drop([poll(&mut watch), poll(&mut watch)]);
    store.take(PodEvent::Is(pod("a", &[], "Running", "2")), now).unwrap();
    assert!(poll(&mut watch).is_pending(), "an annotation is not shown");
    // The sources of full pods fail, and the kubelet's /pods has the same pod.
    let list = [PodEvent::Listing, PodEvent::Listed(page_pod("a", &[], "Running")), PodEvent::Complete];
    list.into_iter().for_each(|event| store.take_page(event, now).unwrap());
    assert!(store.shows_page() && poll(&mut watch).is_pending());
    store.take_page(PodEvent::Is(page_pod("a", &[], "Failed")), now).unwrap();
    assert!(matches!(poll(&mut watch), Poll::Ready(Some(Ok(_)))));
    // They work again: their pods are served, and `Pods` was not affected by /pods.
    store.take(PodEvent::Again, now).unwrap();
    assert!(!store.shows_page() && matches!(poll(&mut watch), Poll::Ready(Some(Ok(_)))));
    let pods = listed(&store.pods, uid_of_pod);
    assert_eq!(pods.len(), 1);
}
