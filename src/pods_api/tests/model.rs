//! Random changes of pods, lists and watchers, checked against a simple model.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// A watcher that fails on any event it does not expect.
pub(super) struct TestWatcher {
    watch: Watch,
    uid: fn(&[u8]) -> String,
    /// The pods when it was added, until it has received them.
    initial: Option<BTreeMap<String, Bytes>>,
    last: String,
    pub(super) known: BTreeMap<String, Bytes>,
    /// Events that it has not read.
    pub(super) unread: usize,
}

impl TestWatcher {
    pub(super) fn new(cache: &SharedCache, uid: fn(&[u8]) -> String) -> Self {
        let initial = Some(listed(cache, uid));
        let (last, known) = (String::new(), BTreeMap::new());
        Self { watch: Watch::new(Arc::clone(cache)), uid, initial, last, known, unread: 0 }
    }

    /// Reads one event. Returns true if there may be more.
    pub(super) fn read_event(&mut self) -> bool {
        match poll(&mut self.watch) {
            Poll::Ready(Some(Ok(bytes))) => self.take(&WatchPodsEvent::decode(bytes).unwrap()),
            Poll::Ready(Some(Err(status))) => {
                assert!(self.unread > MAX_UNREAD, "cut off with {} unread: {status}", self.unread);
                assert_eq!(status.code(), Code::ResourceExhausted);
                assert_eq!(status.message(), "watch client channel closed");
                assert!(matches!(poll(&mut self.watch), Poll::Ready(None)));
                return false;
            }
            Poll::Ready(None) => panic!("it ended without a status"),
            Poll::Pending => {
                assert_eq!((self.unread, self.initial.is_some()), (0, false), "an event was lost");
                return false;
            }
        }
        true
    }

    fn take(&mut self, event: &WatchPodsEvent) {
        if event.r#type() == EventType::InitialSyncComplete {
            assert!(event.pod.is_empty());
            assert_eq!(self.initial.take(), Some(self.known.clone()), "the pods when it was added");
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
        assert!(self.unread > 0, "an event that it should have received earlier: {event:?}");
        self.unread -= 1;
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
    KubeletList,
    KubeletPod(u8, u8),
    Again,
    Watch(bool),
    Unwatch(u8),
    Read(u8, u8),
    DropUnusedList,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pod = 0..12_u8;
    let step = prop_oneof![
        12 => (pod.clone(), 0..8_u8, prop::bool::weighted(0.8)).prop_map(|(a, b, c)| Step::Set(a, b, c)),
        4 => (pod.clone(), prop::bool::weighted(0.8)).prop_map(|(a, b)| Step::Remove(a, b)),
        2 => prop::option::weighted(0.3, 0..12_u8).prop_map(Step::List),
        1 => Just(Step::KubeletList),
        1 => (pod, 0..8_u8).prop_map(|(a, b)| Step::KubeletPod(a, b)),
        1 => Just(Step::Again),
        2 => any::<bool>().prop_map(Step::Watch),
        1 => any::<u8>().prop_map(Step::Unwatch),
        6 => (any::<u8>(), 1..30_u8).prop_map(|(a, b)| Step::Read(a, b)),
        1 => Just(Step::DropUnusedList),
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
fn version_of(number: u8, version: u8) -> Pod {
    let phase = ["Pending", "Running"][usize::from(version % 2)];
    pod(&format!("u{number:02}"), &annotations(number, &format!("h{number}")), phase, &version.to_string())
}

/// Returns the same for `/pods`, which has static pods instead of their mirrors.
fn version_of_kubelet(number: u8, version: u8) -> Pod {
    let (hash, phase) = (format!("h{number}"), ["Pending", "Running"][usize::from(version % 2)]);
    match number % 4 {
        0 => kubelet_pod(&hash, &[("kubernetes.io/config.source", "file")], phase),
        _ => kubelet_pod(&format!("u{number:02}"), &[], phase),
    }
}

struct World {
    store: Store,
    count: Arc<Count>,
    /// The source's pods, and those it has reported.
    truth: BTreeMap<u8, u8>,
    reported: BTreeMap<u8, u8>,
    watchers: Vec<TestWatcher>,
    /// The time of the last step. Events of one step arrive at the same time.
    now: Instant,
}

impl World {
    fn new() -> Self {
        let (store, count) = store();
        let (truth, reported) = (BTreeMap::new(), BTreeMap::new());
        Self { store, count, truth, reported, watchers: Vec::new(), now: Instant::now() }
    }

    fn apply(&mut self, events: impl IntoIterator<Item = PodEvent>) {
        self.changing(|store, now| {
            for event in events {
                store.apply(event, now).unwrap();
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
            let deleted = before.keys().filter(|uid| !after.contains_key(*uid)).count();
            deleted + after.iter().filter(|(uid, pod)| before.get(*uid) != Some(pod)).count()
        });
        for watcher in &mut self.watchers {
            watcher.unread += events[usize::from(Arc::ptr_eq(&watcher.watch.cache, &self.store.infos))];
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Set(number, version, is_reported) => {
                self.truth.insert(number, version);
                if is_reported && lock(&self.store.pods).is_synced {
                    self.reported.insert(number, version);
                    self.apply([PodEvent::Apply(version_of(number, version))]);
                }
            }
            Step::Remove(number, is_reported) => {
                self.truth.remove(&number);
                if is_reported && lock(&self.store.pods).is_synced {
                    self.reported.remove(&number);
                    // Only namespace, name and UID need be set.
                    let deleted = Pod { raw: None, ..version_of(number, 0) };
                    self.apply([PodEvent::Delete(deleted)]);
                }
            }
            Step::List(most) => {
                let pods = self.truth.iter().map(|(number, version)| version_of(*number, *version));
                let most_listed = most.map_or(usize::MAX, usize::from);
                let listed: Vec<_> = pods.take(most_listed).map(PodEvent::InitApply).collect();
                self.apply(std::iter::once(PodEvent::Init).chain(listed));
                if most.is_none() {
                    self.apply([PodEvent::InitDone]);
                    self.reported.clone_from(&self.truth);
                }
            }
            Step::KubeletList => {
                let pods = self.truth.iter().map(|(number, version)| version_of_kubelet(*number, *version));
                let pods: Vec<_> = pods.collect();
                self.changing(|store, now| {
                    let listed = pods.into_iter().map(PodEvent::InitApply);
                    for event in std::iter::once(PodEvent::Init).chain(listed).chain([PodEvent::InitDone]) {
                        store.apply_kubelet(event, now).unwrap();
                    }
                });
            }
            Step::KubeletPod(number, version) => self.changing(|store, now| {
                store.apply_kubelet(PodEvent::Apply(version_of_kubelet(number, version)), now).unwrap();
            }),
            Step::Again => self.apply([PodEvent::Resumed]),
            Step::Watch(infos) => {
                let cache = if infos { &self.store.infos } else { &self.store.pods };
                let uid = if infos { uid_of_info } else { uid_of_pod };
                if lock(cache).is_synced {
                    let watcher = TestWatcher::new(cache, uid);
                    self.watchers.push(watcher);
                }
            }
            Step::Unwatch(which) => {
                if !self.watchers.is_empty() {
                    let which = usize::from(which) % self.watchers.len();
                    self.watchers.swap_remove(which);
                }
            }
            Step::Read(which, most) => {
                if !self.watchers.is_empty() {
                    let which = usize::from(which) % self.watchers.len();
                    let watcher = &mut self.watchers[which];
                    let mut left = most;
                    while left > 0 && watcher.read_event() {
                        left -= 1;
                    }
                    if watcher.unread > MAX_UNREAD {
                        self.watchers.swap_remove(which);
                    }
                }
            }
            Step::DropUnusedList => lock(&self.store.pods).drop_unused_list(),
        }
    }

    /// Drains all watchers and checks that they know what is listed, which is what was reported.
    fn settle(mut self) {
        for mut watcher in std::mem::take(&mut self.watchers) {
            while watcher.read_event() {}
            if watcher.unread <= MAX_UNREAD {
                assert_eq!(watcher.known, listed(&watcher.watch.cache, watcher.uid));
            }
        }
        let reported = self.reported.iter().map(|(number, version)| {
            let Some(RawPod::Protobuf(bytes)) = version_of(*number, *version).raw.map(|raw| *raw) else {
                panic!("it is encoded")
            };
            (format!("u{number:02}"), bytes)
        });
        assert_eq!(listed(&self.store.pods, uid_of_pod), reported.collect());
        if !self.store.serves_kubelet_pods() {
            let infos = self.reported.iter().map(|(number, version)| {
                let info = PodInfo::of(&version_of(*number, *version)).unwrap();
                (info.uid.clone(), info.encode_to_vec().into())
            });
            assert_eq!(listed(&self.store.infos, uid_of_info), infos.collect());
        }
        // Without watchers no events are buffered.
        assert_eq!(self.count.watchers.load(Ordering::Relaxed), 0);
        for cache in [&self.store.pods, &self.store.infos] {
            assert_eq!(lock(cache).watchers.buffered().0, 0, "no watcher needs them");
        }
    }
}

proptest! {
    #![proptest_config(crate::randomised::fewer_cases(4))]

    #[test]
    fn a_watcher_knows_what_is_listed(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        world.settle();
    }
}
