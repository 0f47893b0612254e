//! The watch of the node's pods at the API server, with faults that a real one does not produce on demand;
//! `tests/real/protobuf.rs` has the rest.

mod world;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use numacast::cluster::Cluster;
use numacast::core_v1::decode_pod;
use numacast::pod::{RawPod, Wanted};
use numacast::sim::api_server::{ApiServer, Fault, NODES, PODS};
use numacast::util::wire::put_bytes;
use numacast::watch_event::WatchEvent;
use serde_json::json;
use tokio::time::Instant;

use self::world::{NODE, World};

#[tokio::test(start_paused = true)]
async fn all_pods_are_read_by_one_list() {
    let mut world = World::new(Wanted::default().with_raw()).await;
    for index in 0..300 {
        world.put(&format!("pod-{index}"), "Running");
        world.put_on("other", &format!("other-{index}"), "Running");
    }
    world.read_until(|world| world.lists == 1).await;
    assert!(world.errors.is_empty(), "{:?}", world.errors);
    for pod in world.pods.values_mut() {
        let Some(RawPod::Protobuf(bytes)) = pod.raw.take().map(|raw| *raw) else { panic!("{pod:?}") };
        assert_eq!(decode_pod(&bytes).as_ref(), Ok(&*pod));
    }
    world.check();
    assert_eq!(world.queries("list"), ["fieldSelector=spec.nodeName%3Dworker&resourceVersion=0"]);
}

#[tokio::test(start_paused = true)]
async fn a_truncated_list_is_repeated() {
    for bytes in [0, 3, 20, 200, 20_000] {
        let mut world = World::new(Wanted::default()).await;
        (0..100).for_each(|index| world.put(&format!("pod-{index}"), "Running"));
        world.server.fail_next("list", "pods", 1, Fault::CutWithin(bytes));
        world.read_until(|world| world.lists == 1).await;
        assert_eq!(world.errors.len(), 1, "{:?}", world.errors);
        world.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_above_the_size_limit_is_an_error() {
    let mut world = World::new(Wanted::default()).await;
    world.put("a", "Running");
    let annotations = json!({"k": "x".repeat(5 << 20)});
    let metadata = json!({"name": "large", "namespace": "default", "annotations": annotations});
    world.server.put(&PODS, json!({"metadata": metadata, "spec": {"nodeName": NODE}})).unwrap();
    world.read_until(|world| !world.errors.is_empty()).await;
    assert!(world.errors[0].contains("an object in it is larger than 4194304 bytes"), "{:?}", world.errors);
    world.delete("large");
    world.read_until(|world| world.lists == 1).await;
    world.check();
}

/// With a stale watch cache the known state must not go back in time.
#[tokio::test(start_paused = true)]
async fn a_list_is_never_older_than_the_known_state() {
    let mut world = World::with_pods("ab").await;
    world.server.set_cache_stale(true);
    world.delete("a");
    assert_eq!(world.create("c").await, "-ac");
    let version = world.server.get(&PODS, "default", "c").unwrap()["metadata"]["resourceVersion"].clone();
    world.put_on("other", "d", "Running");
    world.server.compact_history();
    world.server.cut_connections();
    let is_too_new = |error: &&String| error.contains("Too large");
    world.read_until(|world| world.errors.iter().filter(is_too_new).count() == 3).await;
    assert_eq!(world.lists, 1, "{:?}", world.trace);
    world.server.set_cache_stale(false);
    world.read_until(|world| world.lists == 2).await;
    world.check();
    let query = world.queries("list").pop().unwrap();
    let version = version.as_str().unwrap();
    assert!(
        query.ends_with(&format!("&resourceVersion={version}&resourceVersionMatch=NotOlderThan")),
        "{query}"
    );
}

/// Resource versions go backwards: the last one yields no events, and no list is as new.
#[tokio::test(start_paused = true)]
async fn after_a_restore_of_etcd_an_older_list_is_accepted_eventually() {
    let mut world = World::with_pods("abcdefghij").await;
    assert_eq!(world.create("k").await, "k");
    let before = Instant::now();
    world.server.restore_backup();
    world.put("l", "Running");
    world.read_until(|world| world.lists == 2).await;
    assert!(before.elapsed() < Duration::from_secs(600), "{:?}", before.elapsed());
    assert!(
        world.errors.iter().all(|error| error.contains("Too large resource version")),
        "{:?}",
        world.errors
    );
    world.check();
    world.trace.clear();
    assert_eq!(world.create("m").await, "m");
    assert!(world.queries("list").pop().unwrap().ends_with("&resourceVersion=0"));
}

#[tokio::test(start_paused = true)]
async fn an_empty_list_is_complete() {
    let mut world = World::new(Wanted::default()).await;
    world.read_until(|world| world.lists == 1).await;
    assert_eq!(world.trace.concat(), "[]");
    assert_eq!(world.create("a").await, "[]a");
}

#[tokio::test(start_paused = true)]
async fn an_ended_watch_continues_where_it_ended() {
    let mut world = World::with_pods("ab").await;
    world.put("c", "Pending");
    world.delete("a");
    world.put("b", "Running");
    world.put_on("other", "d", "Running");
    world.read_until(|world| world.trace.len() == 3).await;
    assert_eq!(world.trace.concat(), "c-ab");
    // The watch ends by itself after some minutes, a few times.
    let hour = tokio::time::timeout(Duration::from_secs(3600), world.read()).await;
    assert!(hour.is_err(), "there is no event");
    let watches = world.queries("watch");
    assert!((7..=13).contains(&watches.len()), "{watches:?}");
    assert!(watches.iter().all(|watch| watch.contains("&allowWatchBookmarks=true&")), "{watches:?}");
    assert_eq!(world.create("e").await, "c-abe");
    assert_eq!(world.server.watchers(&PODS), 1);
    world.check();
}

/// Other objects change all the time, and old history is dropped.
#[tokio::test(start_paused = true)]
async fn bookmarks_keep_the_version_of_an_idle_watch_recent() {
    let mut world = World::with_pods("a").await;
    for round in 0..5 {
        world.server.put(&NODES, json!({"metadata": {"name": format!("node-{round}")}})).unwrap();
        let event = tokio::time::timeout(Duration::from_secs(61), world.read()).await;
        assert!(event.is_err(), "{:?}", world.trace);
        world.server.compact_history();
    }
    assert_eq!(world.create("b").await, "b");
}

#[tokio::test(start_paused = true)]
async fn after_a_version_that_is_too_old_all_pods_are_listed_again() {
    let mut world = World::with_pods("ab").await;
    // The connection breaks, and the history of the changes made meanwhile is dropped.
    world.server.stop();
    world.delete("a");
    world.put("c", "Running");
    world.server.compact_history();
    while world.errors.is_empty() {
        world.read().await;
    }
    world.server.resume().await.unwrap();
    world.read_until(|world| world.lists == 2).await;
    assert!(world.errors.last().unwrap().contains("too old resource version"), "{:?}", world.errors);
    assert_eq!(world.trace.concat().trim_start_matches('!'), "[bc]");
    world.check();
}

/// Two changes are sent in two frames, of which only some bytes arrive.
#[tokio::test(start_paused = true)]
async fn no_event_is_lost_or_repeated_wherever_a_watch_breaks() {
    let mut world = World::with_pods("").await;
    for bytes in (0..700).step_by(7) {
        for stalled in [false, true] {
            let fault = if stalled { Fault::StallWithin(bytes) } else { Fault::CutWithin(bytes) };
            world.put("a", "Running");
            world.put("b", "Running");
            world.read_until(|world| world.pods.len() == 2).await;
            // Between two watches, so that the next one starts with both changes.
            world.server.stop();
            world.errors.clear();
            while world.errors.is_empty() {
                world.read().await;
            }
            world.trace.clear();
            world.delete("a");
            world.delete("b");
            world.server.fail_next("watch", "pods", 1, fault.clone());
            world.server.resume().await.unwrap();
            world.read_until(|world| world.pods.is_empty()).await;
            let events: Vec<&String> =
                world.trace.iter().filter(|event| !["!", "+"].contains(&event.as_str())).collect();
            assert_eq!(events, ["-a", "-b"], "{fault:?}: {:?} {:?}", world.trace, world.errors);
            world.trace.clear();
        }
    }
    assert_eq!(world.lists, 1);
}

#[tokio::test(start_paused = true)]
async fn a_dead_watch_is_detected() {
    let mut world = World::with_pods("a").await;
    let event = tokio::time::timeout(Duration::from_secs(5), world.read()).await;
    assert!(event.is_err());
    world.server.set_frozen(true);
    world.put("b", "Running");
    let before = Instant::now();
    while world.errors.is_empty() {
        world.read().await;
    }
    // Two bookmarks are missing, and the next request gets no response.
    assert!(before.elapsed() < Duration::from_secs(200), "{:?}", before.elapsed());
    assert!(world.errors[0].contains("did not answer within 65s"), "{:?}", world.errors);
    world.server.set_frozen(false);
    world.read_until(|world| world.pods.len() == 2).await;
    assert_eq!(world.lists, 1);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_stalled_list_times_out() {
    let mut world = World::new(Wanted::default()).await;
    world.put("a", "Running");
    world.server.fail_next("list", "pods", 1, Fault::StallWithin(50));
    let before = Instant::now();
    world.read_until(|world| world.lists == 1).await;
    assert_eq!(world.trace.concat(), "[![a]");
    assert!(world.errors[0].contains("did not answer within 65s"), "{:?}", world.errors);
    assert!(before.elapsed() < Duration::from_secs(76), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_works_again_reports_it_without_a_change() {
    for fault in
        [Fault::Status(500), Fault::TooManyRequests { retry_after: 1 }, Fault::Cut, Fault::Status(401)]
    {
        let mut world = World::with_pods("a").await;
        world.server.fail_next("watch", "pods", 2, fault.clone());
        world.server.cut_connections();
        world.read_until(|world| world.trace.len() == 3).await;
        assert_eq!(world.trace.concat(), "!!+", "{fault:?}: {:?}", world.errors);
        world.trace.clear();
        assert_eq!(world.create("b").await, "b", "{fault:?}");
        assert_eq!(world.lists, 1, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_permission_is_reported() {
    let mut world = World::with_pods("a").await;
    for verb in ["watch", "list"] {
        world.server.set_denied(verb, "pods", true);
        world.server.cut_connections();
        if verb == "list" {
            world.put("b", "Running");
            world.server.compact_history();
        }
        let prefix = "cannot watch the node's pods: RBAC refuses: pods is forbidden: User ";
        let cannot = format!("cannot {verb} resource");
        world
            .read_until(|world| {
                world.errors.iter().any(|error| error.starts_with(prefix) && error.contains(&cannot))
            })
            .await;
        world.server.set_denied(verb, "pods", false);
        world.read_until(|world| world.trace.last().is_some_and(|last| ["+", "]"].contains(&&**last))).await;
    }
    world.check();
}

/// Returns a length-delimited protobuf field.
fn field(number: u32, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, number, content);
    out
}

fn framed(content: &[u8]) -> Vec<u8> {
    [&u32::try_from(content.len()).unwrap().to_be_bytes()[..], content].concat()
}

#[tokio::test(start_paused = true)]
async fn after_an_invalid_event_all_pods_are_listed_again() {
    let event = [field(1, b"RENAMED"), field(2, &field(1, b"k8s\0"))].concat();
    let json = b"{\"type\":\"ADDED\",\"object\":{\"kind\":\"Pod\"}}\n";
    for body in [&framed(b"nonsense")[..], &framed(b""), &[0xff; 40], json, &framed(&event)] {
        let mut world = World::with_pods("a").await;
        world.server.fail_next("watch", "pods", 1, Fault::Body(body.to_vec()));
        world.server.cut_connections();
        world.read_until(|world| world.lists == 2).await;
        assert_eq!(world.trace.concat(), "![a]", "{body:?}: {:?}", world.errors);
        assert!(world.errors[0].contains("is not understood"), "{body:?}: {:?}", world.errors);
        assert_eq!(world.create("b").await, "![a]b");
    }
    for body in [&b"k8s\0"[..], b"", b"{\"kind\":\"PodList\",\"items\":[]}", &framed(b"")] {
        let mut world = World::new(Wanted::default()).await;
        world.put("a", "Running");
        world.server.fail_next("list", "pods", 1, Fault::Body(body.to_vec()));
        world.read_until(|world| world.lists == 1).await;
        assert_eq!(world.trace.concat(), "[![a]", "{body:?}: {:?}", world.errors);
    }
}

#[tokio::test(start_paused = true)]
async fn invalid_pods_of_a_list_are_skipped() {
    let named = |name: &[u8]| field(1, &[field(1, name), field(3, b"default"), field(6, b"3")].concat());
    let items = [named(b"a"), named(b""), vec![0x0a, 0x05], named(b"b")];
    let items: Vec<u8> = items.iter().flat_map(|pod| field(2, pod)).collect();
    let list = [field(1, &field(2, b"3")), items].concat();
    let type_meta = [field(1, b"v1"), field(2, b"PodList")].concat();
    let body = [b"k8s\0".to_vec(), field(1, &type_meta), field(2, &list)].concat();
    let mut world = World::new(Wanted::default()).await;
    world.server.fail_next("list", "pods", 1, Fault::Body(body));
    world.read_until(|world| world.lists == 1).await;
    assert_eq!(world.trace.concat(), "[ab]");
}

#[tokio::test(start_paused = true)]
async fn after_an_event_with_an_invalid_pod_all_pods_are_listed_again() {
    let mut world = World::with_pods("ab").await;
    let version = world.server.get(&PODS, "default", "a").unwrap()["metadata"]["resourceVersion"].clone();
    let version = version.as_str().unwrap().as_bytes();
    let pod = field(1, &[field(1, b""), field(3, b"default"), field(6, version)].concat());
    let type_meta = [field(1, b"v1"), field(2, b"Pod")].concat();
    let object = [b"k8s\0".to_vec(), field(1, &type_meta), field(2, &pod)].concat();
    for event_type in [&b"MODIFIED"[..], b"DELETED"] {
        let event = [field(1, event_type), field(2, &field(1, &object))].concat();
        world.server.fail_next("watch", "pods", 1, Fault::Body(framed(&event)));
        world.server.cut_connections();
        let lists = world.lists;
        world.read_until(|world| world.lists > lists).await;
        assert_eq!(std::mem::take(&mut world.trace).concat().trim_start_matches('!'), "[ab]");
        assert!(world.errors.last().unwrap().contains("a pod cannot be read"), "{:?}", world.errors);
    }
}

/// 502, 503 and 504 come from a proxy before the API server; 410 and 400 from an API server that does not
/// know the version.
#[tokio::test(start_paused = true)]
async fn only_the_api_server_can_reject_a_version() {
    for (code, lists) in [(502, 1), (503, 1), (504, 1), (410, 2), (400, 2)] {
        let mut world = World::with_pods("a").await;
        world.server.fail_next("watch", "pods", 1, Fault::Status(code));
        world.read_until(|world| world.trace.len() > 1 && world.errors.len() == 1).await;
        assert_eq!(world.create("b").await.matches('b').count(), 1, "{code}");
        assert_eq!(world.lists, lists, "{code}: {:?}", world.errors);
    }
}

/// Reconnects are limited when a connection breaks all the time, and the error is reported.
#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_repeatedly_is_reported() {
    let mut world = World::with_pods("a").await;
    let before = Instant::now();
    while world.errors.len() < 8 {
        let event = tokio::time::timeout(Duration::from_secs(2), world.read()).await;
        if event.is_err() && world.server.watchers(&PODS) > 0 {
            world.server.cut_connections();
        }
    }
    assert!(world.errors[0].contains("the watch lasted 2."), "{:?}", world.errors);
    assert!(before.elapsed() > Duration::from_secs(16), "{:?}", before.elapsed());
    world.create("b").await;
    assert_eq!(world.lists, 1);
}

/// Requests back off when a server ends each watch at once.
#[tokio::test(start_paused = true)]
async fn watches_that_end_at_once_are_retried_with_backoff() {
    let mut world = World::with_pods("a").await;
    world.server.fail_next("watch", "pods", 20, Fault::Body(Vec::new()));
    world.server.cut_connections();
    let before = Instant::now();
    world.read_until(|world| world.errors.len() == 20).await;
    assert!(before.elapsed() > Duration::from_secs(150), "{:?}", before.elapsed());
    assert_eq!(world.create("b").await.trim_start_matches(['!', '+']), "b");
}

#[tokio::test(start_paused = true)]
async fn after_a_single_lost_connection_the_watch_continues_at_once() {
    let mut world = World::with_pods("a").await;
    let event = tokio::time::timeout(Duration::from_secs(20), world.read()).await;
    assert!(event.is_err(), "{:?}", world.trace);
    world.server.cut_connections();
    let before = Instant::now();
    assert_eq!(world.create("b").await, "b");
    assert!(before.elapsed() <= Duration::from_secs(1), "{:?}", before.elapsed());
    assert!(world.errors.is_empty() && world.lists == 1, "{:?}", world.errors);
}

/// All agents lose their watches at the same moment, and the returning API server has no history.
#[tokio::test(start_paused = true)]
async fn the_agents_of_a_cluster_reconnect_over_some_time() {
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
                    let is_list = matches!(event, Ok(WatchEvent::InitDone));
                    lists.fetch_add(usize::from(is_list), Ordering::Relaxed);
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
    let requests = &server.requests(&PODS)[before..];
    // A rejected watch, a list and the watch after it.
    assert!(requests.len() <= 3 * AGENTS, "{}", requests.len());
    let mut seconds = BTreeMap::<u64, usize>::new();
    let first = requests[0].at;
    for request in requests {
        *seconds.entry(request.at.duration_since(first).as_secs()).or_default() += 1;
    }
    let (last, max) = (*seconds.keys().last().unwrap(), *seconds.values().max().unwrap());
    assert!(last >= 10 && max <= requests.len() / 4, "{seconds:?}");
    agents.iter().for_each(tokio::task::JoinHandle::abort);
}

/// After any faults in any order, the known state is correct in the end.
#[tokio::test(start_paused = true)]
async fn after_random_faults_all_pods_are_known() {
    let seed = std::env::var("NUMACAST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("NUMACAST_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut world = World::new(Wanted::default()).await;
    let mut down = false;
    for step in 0..600 {
        match rng.u32(0..16) {
            0..6 => world.put(&format!("pod-{}", rng.u32(0..60)), ["Pending", "Running"][rng.usize(0..2)]),
            6..8 => {
                world.server.delete(&PODS, "default", &format!("pod-{}", rng.u32(0..60)));
            }
            8 => world.server.compact_history(),
            9 => world.server.cut_connections(),
            10 if !down => {
                world.server.stop();
                down = true;
            }
            11 if down => {
                world.server.resume().await.unwrap();
                down = false;
            }
            12 => {
                let fault = match rng.u32(0..6) {
                    0 => Fault::Status([410, 429, 500, 503, 504][rng.usize(0..5)]),
                    1 => Fault::CutWithin(rng.usize(0..2000)),
                    2 => Fault::StallWithin(rng.usize(0..2000)),
                    3 => Fault::Body((0..rng.usize(0..40)).map(|_| rng.u8(..)).collect()),
                    4 => Fault::Cut,
                    _ => Fault::Delay(Duration::from_secs(rng.u64(0..100))),
                };
                world.server.fail_next(["list", "watch"][rng.usize(0..2)], "pods", 1, fault);
            }
            _ => {
                for _ in 0..rng.u32(1..20) {
                    if tokio::time::timeout(Duration::from_secs(rng.u64(1..90)), world.read()).await.is_err()
                    {
                        break;
                    }
                }
            }
        }
        if step % 60 == 59 {
            world.server.clear_faults();
            if down {
                world.server.resume().await.unwrap();
                down = false;
            }
            // Its event is the last one.
            let last = format!("last-{step}");
            world.create(&last).await;
            world.check();
        }
    }
}
