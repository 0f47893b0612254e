//! Watching the API server's pods, with faults that real servers do not produce on demand;
//! `tests/real/protobuf.rs` has the rest.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::{Stream, StreamExt};
use numacast::cluster::Cluster;
use numacast::core_v1::decode_pod;
use numacast::pod::{Pod, PodEvent, RawPod, Wanted};
use numacast::sim::api_server::{ApiServer, Fault, NODES, PODS};
use numacast::util::wire::put_bytes;
use serde_json::json;
use tokio::time::Instant;

const NODE: &str = "worker";

struct World {
    server: ApiServer,
    events: Pin<Box<dyn Stream<Item = Result<PodEvent, String>>>>,
    listed: BTreeMap<String, Pod>,
    pods: BTreeMap<String, Pod>,
    /// Number of complete lists.
    lists: usize,
    errors: Vec<String>,
    /// The events since the last reset, abbreviated: `[` and `]` around a list, `a` for a pod that exists,
    /// `-a` for a deleted one, `+` for a recovery without events, `!` for an error.
    story: Vec<String>,
}

impl World {
    async fn new(wanted: Wanted) -> Self {
        let server = ApiServer::start_on_any_port(0).await.unwrap();
        let cluster = Cluster::with_client(server.client().unwrap(), server.url(), Duration::from_secs(10));
        let events = Box::pin(cluster.watch_pods(NODE, wanted));
        let (listed, pods) = (BTreeMap::new(), BTreeMap::new());
        Self { server, events, listed, pods, lists: 0, errors: Vec::new(), story: Vec::new() }
    }

    /// Returns a world with these pods, once the list is complete.
    async fn of(names: &str) -> Self {
        let mut world = Self::new(Wanted::default()).await;
        names.chars().for_each(|name| world.put(&name.to_string(), "Pending"));
        world.until(|world| world.lists == 1).await;
        world.story.clear();
        world
    }

    fn put(&self, name: &str, phase: &str) {
        self.put_on(NODE, name, phase);
    }

    fn put_on(&self, node: &str, name: &str, phase: &str) {
        let metadata = json!({"name": name, "namespace": "default", "labels": {"a": "b"}});
        let spec = json!({"nodeName": node, "containers": [{"name": "main", "resources": {
            "requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"},
        }}]});
        let pod = json!({"metadata": metadata, "spec": spec, "status": {"phase": phase}});
        self.server.put(&PODS, pod).unwrap();
    }

    fn delete(&self, name: &str) {
        assert!(self.server.delete(&PODS, "default", name));
    }

    async fn hear(&mut self) {
        let told = self.events.next().await.unwrap();
        self.story.push(match &told {
            Ok(PodEvent::Init) => "[".to_owned(),
            Ok(PodEvent::InitApply(pod) | PodEvent::Apply(pod)) => pod.name.clone(),
            Ok(PodEvent::InitDone) => "]".to_owned(),
            Ok(PodEvent::Delete(pod)) => format!("-{}", pod.name),
            Ok(PodEvent::Resumed) => "+".to_owned(),
            Err(_) => "!".to_owned(),
        });
        match told {
            Ok(PodEvent::Init) => self.listed.clear(),
            Ok(PodEvent::InitApply(pod)) => {
                let twice = self.listed.insert(pod.name.clone(), pod);
                assert!(twice.is_none(), "{twice:?} was listed twice");
            }
            Ok(PodEvent::InitDone) => {
                self.pods = std::mem::take(&mut self.listed);
                self.lists += 1;
            }
            Ok(PodEvent::Apply(pod)) => drop(self.pods.insert(pod.name.clone(), pod)),
            Ok(PodEvent::Delete(pod)) => drop(self.pods.remove(&pod.name)),
            Ok(PodEvent::Resumed) => {}
            Err(sentence) => self.errors.push(sentence),
        }
    }

    async fn until(&mut self, enough: impl Fn(&Self) -> bool) {
        while !enough(self) {
            self.hear().await;
        }
    }

    /// Returns the query strings of the requests for pods with this verb.
    fn asked(&self, verb: &str) -> Vec<String> {
        let asked = self.server.requests(&PODS).into_iter();
        asked.filter(|asked| asked.verb == verb).map(|asked| asked.query).collect()
    }

    /// Consumes all events up to a newly created pod of this name, and returns them.
    async fn up_to(&mut self, name: &str) -> String {
        self.put(name, "Pending");
        self.until(|world| world.pods.contains_key(name)).await;
        std::mem::take(&mut self.story).concat()
    }

    /// Asserts that the known pods are those in the API server.
    fn is_right(&self) {
        let there = self.server.list(&PODS, "");
        let mine = there.iter().filter(|pod| pod["spec"]["nodeName"] == NODE);
        let there: BTreeMap<String, Pod> = mine
            .map(|pod| Pod::from_json(pod.to_string().as_bytes()).unwrap())
            .map(|pod| (pod.name.clone(), pod))
            .collect();
        assert_eq!(self.pods, there);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_full_of_pods_is_one_list() {
    let mut world = World::new(Wanted::default().with_raw()).await;
    for index in 0..300 {
        world.put(&format!("pod-{index}"), "Running");
        world.put_on("other", &format!("other-{index}"), "Running");
    }
    world.until(|world| world.lists == 1).await;
    assert!(world.errors.is_empty(), "{:?}", world.errors);
    for pod in world.pods.values_mut() {
        let Some(RawPod::Protobuf(bytes)) = pod.raw.take().map(|whole| *whole) else { panic!("{pod:?}") };
        assert_eq!(decode_pod(&bytes).as_ref(), Ok(&*pod));
    }
    world.is_right();
    assert_eq!(world.asked("list"), ["fieldSelector=spec.nodeName%3Dworker&resourceVersion=0"]);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_cut_off_is_begun_again() {
    for bytes in [0, 3, 20, 200, 20_000] {
        let mut world = World::new(Wanted::default()).await;
        (0..100).for_each(|index| world.put(&format!("pod-{index}"), "Running"));
        world.server.fail_next("list", "pods", 1, Fault::CutWithin(bytes));
        world.until(|world| world.lists == 1).await;
        assert_eq!(world.errors.len(), 1, "{:?}", world.errors);
        world.is_right();
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_larger_than_any_is_named() {
    let mut world = World::new(Wanted::default()).await;
    world.put("a", "Running");
    let metadata = json!({"name": "fat", "namespace": "default", "annotations": {"k": "x".repeat(5 << 20)}});
    world.server.put(&PODS, json!({"metadata": metadata, "spec": {"nodeName": NODE}})).unwrap();
    world.until(|world| !world.errors.is_empty()).await;
    assert!(world.errors[0].contains("an object in it is larger than 4194304 bytes"), "{:?}", world.errors);
    world.delete("fat");
    world.until(|world| world.lists == 1).await;
    world.is_right();
}

/// The API server's watch cache lags behind: the known state must not go back in time.
#[tokio::test(start_paused = true)]
async fn a_list_is_never_older_than_what_was_told() {
    let mut world = World::of("ab").await;
    world.server.set_cache_stale(true);
    world.delete("a");
    assert_eq!(world.up_to("c").await, "-ac");
    let version = world.server.get(&PODS, "default", "c").unwrap()["metadata"]["resourceVersion"].clone();
    world.put_on("other", "d", "Running");
    world.server.compact_history();
    world.server.cut_connections();
    world.until(|world| world.errors.iter().filter(|error| error.contains("Too large")).count() == 3).await;
    assert_eq!(world.lists, 1, "{:?}", world.story);
    world.server.set_cache_stale(false);
    world.until(|world| world.lists == 2).await;
    world.is_right();
    let asked = world.asked("list").pop().unwrap();
    let version = version.as_str().unwrap();
    assert!(
        asked.ends_with(&format!("&resourceVersion={version}&resourceVersionMatch=NotOlderThan")),
        "{asked}"
    );
}

/// Resource versions go backwards: the last one yields no events, and no list is as new.
#[tokio::test(start_paused = true)]
async fn after_a_restore_of_etcd_older_lists_are_taken_in_the_end() {
    let mut world = World::of("abcdefghij").await;
    assert_eq!(world.up_to("k").await, "k");
    let before = Instant::now();
    world.server.restore_backup();
    world.put("l", "Running");
    world.until(|world| world.lists == 2).await;
    assert!(before.elapsed() < Duration::from_secs(600), "{:?}", before.elapsed());
    assert!(
        world.errors.iter().all(|error| error.contains("Too large resource version")),
        "{:?}",
        world.errors
    );
    world.is_right();
    world.story.clear();
    assert_eq!(world.up_to("m").await, "m");
    assert!(world.asked("list").pop().unwrap().ends_with("&resourceVersion=0"));
}

#[tokio::test(start_paused = true)]
async fn nothing_at_all_is_a_list() {
    let mut world = World::new(Wanted::default()).await;
    world.until(|world| world.lists == 1).await;
    assert_eq!(world.story.concat(), "[]");
    assert_eq!(world.up_to("a").await, "[]a");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_is_gone_on_with_where_it_ended() {
    let mut world = World::of("ab").await;
    world.put("c", "Pending");
    world.delete("a");
    world.put("b", "Running");
    world.put_on("other", "d", "Running");
    world.until(|world| world.story.len() == 3).await;
    assert_eq!(world.story.concat(), "c-ab");
    // The watch ends by itself after some minutes, a few times.
    let hour = tokio::time::timeout(Duration::from_secs(3600), world.hear()).await;
    assert!(hour.is_err(), "nothing happens");
    let watches = world.asked("watch");
    assert!((7..=13).contains(&watches.len()), "{watches:?}");
    assert!(watches.iter().all(|watch| watch.contains("&allowWatchBookmarks=true&")), "{watches:?}");
    assert_eq!(world.up_to("e").await, "c-abe");
    assert_eq!(world.server.watchers(&PODS), 1);
    world.is_right();
}

/// Other objects change all the time, and old history is dropped.
#[tokio::test(start_paused = true)]
async fn bookmarks_keep_a_quiet_watch_from_growing_old() {
    let mut world = World::of("a").await;
    for round in 0..5 {
        world.server.put(&NODES, json!({"metadata": {"name": format!("node-{round}")}})).unwrap();
        let quiet = tokio::time::timeout(Duration::from_secs(61), world.hear()).await;
        assert!(quiet.is_err(), "{:?}", world.story);
        world.server.compact_history();
    }
    assert_eq!(world.up_to("b").await, "b");
}

#[tokio::test(start_paused = true)]
async fn after_a_watch_that_is_too_old_everything_is_listed_again() {
    let mut world = World::of("ab").await;
    // The connection breaks, and the history of the changes made meanwhile is dropped.
    world.server.stop();
    world.delete("a");
    world.put("c", "Running");
    world.server.compact_history();
    while world.errors.is_empty() {
        world.hear().await;
    }
    world.server.resume().await.unwrap();
    world.until(|world| world.lists == 2).await;
    assert!(world.errors.last().unwrap().contains("too old resource version"), "{:?}", world.errors);
    assert_eq!(world.story.concat().trim_start_matches('!'), "[bc]");
    world.is_right();
}

/// Two changes arrive in two frames, of which only some bytes are received.
#[tokio::test(start_paused = true)]
async fn nothing_is_lost_or_told_twice_wherever_a_watch_breaks() {
    let mut world = World::of("").await;
    for bytes in (0..700).step_by(7) {
        for stuck in [false, true] {
            let fault = if stuck { Fault::StuckWithin(bytes) } else { Fault::CutWithin(bytes) };
            world.put("a", "Running");
            world.put("b", "Running");
            world.until(|world| world.pods.len() == 2).await;
            // Between two watches, so that the next one starts with both changes.
            world.server.stop();
            world.errors.clear();
            while world.errors.is_empty() {
                world.hear().await;
            }
            world.story.clear();
            world.delete("a");
            world.delete("b");
            world.server.fail_next("watch", "pods", 1, fault.clone());
            world.server.resume().await.unwrap();
            world.until(|world| world.pods.is_empty()).await;
            let told: Vec<&String> =
                world.story.iter().filter(|word| !["!", "+"].contains(&word.as_str())).collect();
            assert_eq!(told, ["-a", "-b"], "{fault:?}: {:?} {:?}", world.story, world.errors);
            world.story.clear();
        }
    }
    assert_eq!(world.lists, 1);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_dead_is_found_out() {
    let mut world = World::of("a").await;
    let quiet = tokio::time::timeout(Duration::from_secs(5), world.hear()).await;
    assert!(quiet.is_err());
    world.server.set_frozen(true);
    world.put("b", "Running");
    let before = Instant::now();
    while world.errors.is_empty() {
        world.hear().await;
    }
    // Two bookmarks are missing, and the next request gets no response.
    assert!(before.elapsed() < Duration::from_secs(200), "{:?}", before.elapsed());
    assert!(world.errors[0].contains("did not answer within 65s"), "{:?}", world.errors);
    world.server.set_frozen(false);
    world.until(|world| world.pods.len() == 2).await;
    assert_eq!(world.lists, 1);
    world.is_right();
}

#[tokio::test(start_paused = true)]
async fn a_list_that_gets_stuck_is_given_up() {
    let mut world = World::new(Wanted::default()).await;
    world.put("a", "Running");
    world.server.fail_next("list", "pods", 1, Fault::StuckWithin(50));
    let before = Instant::now();
    world.until(|world| world.lists == 1).await;
    assert_eq!(world.story.concat(), "[![a]");
    assert!(world.errors[0].contains("did not answer within 65s"), "{:?}", world.errors);
    assert!(before.elapsed() < Duration::from_secs(76), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_works_again_says_so_though_nothing_happens() {
    for fault in
        [Fault::Status(500), Fault::TooManyRequests { retry_after: 1 }, Fault::Cut, Fault::Status(401)]
    {
        let mut world = World::of("a").await;
        world.server.fail_next("watch", "pods", 2, fault.clone());
        world.server.cut_connections();
        world.until(|world| world.story.len() == 3).await;
        assert_eq!(world.story.concat(), "!!+", "{fault:?}: {:?}", world.errors);
        world.story.clear();
        assert_eq!(world.up_to("b").await, "b", "{fault:?}");
        assert_eq!(world.lists, 1, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_right_that_is_missing_is_named() {
    let mut world = World::of("a").await;
    for verb in ["watch", "list"] {
        world.server.set_denied(verb, "pods", true);
        world.server.cut_connections();
        if verb == "list" {
            world.put("b", "Running");
            world.server.compact_history();
        }
        let right = "cannot watch the node's pods: RBAC refuses: pods is forbidden: User ";
        let cannot = format!("cannot {verb} resource");
        world
            .until(|world| world.errors.iter().any(|told| told.starts_with(right) && told.contains(&cannot)))
            .await;
        world.server.set_denied(verb, "pods", false);
        world.until(|world| world.story.last().is_some_and(|word| ["+", "]"].contains(&word.as_str()))).await;
    }
    world.is_right();
}

fn record(number: u32, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, number, content);
    out
}

fn framed(content: &[u8]) -> Vec<u8> {
    [&u32::try_from(content.len()).unwrap().to_be_bytes()[..], content].concat()
}

#[tokio::test(start_paused = true)]
async fn what_makes_no_sense_ends_a_watch_and_everything_is_listed_again() {
    let event = [record(1, b"RENAMED"), record(2, &record(1, b"k8s\0"))].concat();
    let json = b"{\"type\":\"ADDED\",\"object\":{\"kind\":\"Pod\"}}\n";
    for says in [&framed(b"nonsense")[..], &framed(b""), &[0xff; 40], json, &framed(&event)] {
        let mut world = World::of("a").await;
        world.server.fail_next("watch", "pods", 1, Fault::Body(says.to_vec()));
        world.server.cut_connections();
        world.until(|world| world.lists == 2).await;
        assert_eq!(world.story.concat(), "![a]", "{says:?}: {:?}", world.errors);
        assert!(world.errors[0].contains("is not understood"), "{says:?}: {:?}", world.errors);
        assert_eq!(world.up_to("b").await, "![a]b");
    }
    for says in [&b"k8s\0"[..], b"", b"{\"kind\":\"PodList\",\"items\":[]}", &framed(b"")] {
        let mut world = World::new(Wanted::default()).await;
        world.put("a", "Running");
        world.server.fail_next("list", "pods", 1, Fault::Body(says.to_vec()));
        world.until(|world| world.lists == 1).await;
        assert_eq!(world.story.concat(), "[![a]", "{says:?}: {:?}", world.errors);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_cannot_be_read_does_not_cost_the_others() {
    let named = |name: &[u8]| record(1, &[record(1, name), record(3, b"default"), record(6, b"3")].concat());
    let items = [named(b"a"), named(b""), vec![0x0a, 0x05], named(b"b")];
    let items: Vec<u8> = items.iter().flat_map(|pod| record(2, pod)).collect();
    let list = [record(1, &record(2, b"3")), items].concat();
    let about = [record(1, b"v1"), record(2, b"PodList")].concat();
    let says = [b"k8s\0".to_vec(), record(1, &about), record(2, &list)].concat();
    let mut world = World::new(Wanted::default()).await;
    world.server.fail_next("list", "pods", 1, Fault::Body(says));
    world.until(|world| world.lists == 1).await;
    assert_eq!(world.story.concat(), "[ab]");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_can_no_longer_be_read_is_no_longer_told_of() {
    let mut world = World::of("ab").await;
    let version = world.server.get(&PODS, "default", "a").unwrap()["metadata"]["resourceVersion"].clone();
    let version = version.as_str().unwrap().as_bytes();
    let pod = record(1, &[record(1, b""), record(3, b"default"), record(6, version)].concat());
    let about = [record(1, b"v1"), record(2, b"Pod")].concat();
    let object = [b"k8s\0".to_vec(), record(1, &about), record(2, &pod)].concat();
    for what in [&b"MODIFIED"[..], b"DELETED"] {
        let event = [record(1, what), record(2, &record(1, &object))].concat();
        world.server.fail_next("watch", "pods", 1, Fault::Body(framed(&event)));
        world.server.cut_connections();
        let lists = world.lists;
        world.until(|world| world.lists > lists).await;
        assert_eq!(std::mem::take(&mut world.story).concat().trim_start_matches('!'), "[ab]");
        assert!(world.errors.last().unwrap().contains("a pod cannot be read"), "{:?}", world.errors);
    }
}

/// 502, 503 and 504 come from a proxy before the API server; 410 and 400 from an API server that does not
/// know the version.
#[tokio::test(start_paused = true)]
async fn only_who_knows_the_version_can_refuse_it() {
    for (code, lists) in [(502, 1), (503, 1), (504, 1), (410, 2), (400, 2)] {
        let mut world = World::of("a").await;
        world.server.fail_next("watch", "pods", 1, Fault::Status(code));
        world.until(|world| world.story.len() > 1 && world.errors.len() == 1).await;
        assert_eq!(world.up_to("b").await.matches('b').count(), 1, "{code}");
        assert_eq!(world.lists, lists, "{code}: {:?}", world.errors);
    }
}

/// Reconnects are limited when a connection breaks all the time, and the error is reported.
#[tokio::test(start_paused = true)]
async fn a_link_that_breaks_all_the_time_is_told_of() {
    let mut world = World::of("a").await;
    let before = Instant::now();
    while world.errors.len() < 8 {
        let heard = tokio::time::timeout(Duration::from_secs(2), world.hear()).await;
        if heard.is_err() && world.server.watchers(&PODS) > 0 {
            world.server.cut_connections();
        }
    }
    assert!(world.errors[0].contains("the watch lasted 2."), "{:?}", world.errors);
    assert!(before.elapsed() > Duration::from_secs(16), "{:?}", before.elapsed());
    world.up_to("b").await;
    assert_eq!(world.lists, 1);
}

/// Requests back off when a server ends each watch at once.
#[tokio::test(start_paused = true)]
async fn watches_that_end_at_once_are_asked_for_more_and_more_slowly() {
    let mut world = World::of("a").await;
    world.server.fail_next("watch", "pods", 20, Fault::Body(Vec::new()));
    world.server.cut_connections();
    let before = Instant::now();
    world.until(|world| world.errors.len() == 20).await;
    assert!(before.elapsed() > Duration::from_secs(150), "{:?}", before.elapsed());
    assert_eq!(world.up_to("b").await.trim_start_matches(['!', '+']), "b");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_alone_is_back_at_once() {
    let mut world = World::of("a").await;
    let quiet = tokio::time::timeout(Duration::from_secs(20), world.hear()).await;
    assert!(quiet.is_err(), "{:?}", world.story);
    world.server.cut_connections();
    let before = Instant::now();
    assert_eq!(world.up_to("b").await, "b");
    assert!(before.elapsed() <= Duration::from_secs(1), "{:?}", before.elapsed());
    assert!(world.errors.is_empty() && world.lists == 1, "{:?}", world.errors);
}

/// All agents lose their watches at the same moment, and the returning API server has no history.
#[tokio::test(start_paused = true)]
async fn a_fleet_does_not_return_at_once() {
    const AGENTS: usize = 60;
    let server = ApiServer::start_on_any_port(0).await.unwrap();
    let lists = Arc::new(AtomicUsize::new(0));
    let agents: Vec<_> = (0..AGENTS)
        .map(|_| {
            let client = server.client().unwrap();
            let cluster = Cluster::with_client(client, server.url(), Duration::from_secs(10));
            let (mut events, lists) =
                (Box::pin(cluster.watch_pods(NODE, Wanted::default())), Arc::clone(&lists));
            tokio::spawn(async move {
                while let Some(event) = events.next().await {
                    lists.fetch_add(usize::from(matches!(event, Ok(PodEvent::InitDone))), Ordering::Relaxed);
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert_eq!(lists.swap(0, Ordering::Relaxed), AGENTS);
    server.stop();
    tokio::time::sleep(Duration::from_secs(5)).await;
    server.put(&NODES, json!({"metadata": {"name": "another"}})).unwrap();
    server.compact_history();
    let before = server.requests(&PODS).len();
    server.resume().await.unwrap();
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(lists.load(Ordering::Relaxed), AGENTS);
    let asked = &server.requests(&PODS)[before..];
    // A rejected watch, a list and the watch after it.
    assert!(asked.len() <= 3 * AGENTS, "{}", asked.len());
    let mut seconds = BTreeMap::<u64, usize>::new();
    let first = asked[0].at;
    for one in asked {
        *seconds.entry(one.at.duration_since(first).as_secs()).or_default() += 1;
    }
    let (last, most) = (*seconds.keys().last().unwrap(), *seconds.values().max().unwrap());
    assert!(last >= 10 && most <= asked.len() / 4, "{seconds:?}");
    agents.iter().for_each(tokio::task::JoinHandle::abort);
}

/// After any faults in any order, the known state is correct in the end.
#[tokio::test(start_paused = true)]
async fn whatever_goes_wrong_the_truth_is_known_in_the_end() {
    let seed = std::env::var("NUMACAST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("NUMACAST_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut world = World::new(Wanted::default()).await;
    let mut away = false;
    for step in 0..600 {
        match rng.u32(0..16) {
            0..6 => world.put(&format!("pod-{}", rng.u32(0..60)), ["Pending", "Running"][rng.usize(0..2)]),
            6..8 => {
                world.server.delete(&PODS, "default", &format!("pod-{}", rng.u32(0..60)));
            }
            8 => world.server.compact_history(),
            9 => world.server.cut_connections(),
            10 if !away => {
                world.server.stop();
                away = true;
            }
            11 if away => {
                world.server.resume().await.unwrap();
                away = false;
            }
            12 => {
                let fault = match rng.u32(0..6) {
                    0 => Fault::Status([410, 429, 500, 503, 504][rng.usize(0..5)]),
                    1 => Fault::CutWithin(rng.usize(0..2000)),
                    2 => Fault::StuckWithin(rng.usize(0..2000)),
                    3 => Fault::Body((0..rng.usize(0..40)).map(|_| rng.u8(..)).collect()),
                    4 => Fault::Cut,
                    _ => Fault::Delay(Duration::from_secs(rng.u64(0..100))),
                };
                world.server.fail_next(["list", "watch"][rng.usize(0..2)], "pods", 1, fault);
            }
            _ => {
                for _ in 0..rng.u32(1..20) {
                    if tokio::time::timeout(Duration::from_secs(rng.u64(1..90)), world.hear()).await.is_err()
                    {
                        break;
                    }
                }
            }
        }
        if step % 60 == 59 {
            world.server.clear_faults();
            if away {
                world.server.resume().await.unwrap();
                away = false;
            }
            // Its event is the last one.
            let last = format!("last-{step}");
            world.up_to(&last).await;
            world.is_right();
        }
    }
}
