//! The watch of the node's pods at the API server, with faults that a real one does not produce on demand;
//! `tests/real/protobuf.rs` has the rest.

mod environment;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use numacast::cluster::Cluster;
use numacast::core_v1::decode_pod;
use numacast::pod::{RawPod, Wanted};
use numacast::util::wire::put_bytes;
use numacast::watch_event::WatchEvent;
use numacast_sim::api_server::{ApiServer, Fault, NODES, PODS};
use serde_json::json;
use tokio::time::Instant;

use self::environment::{Environment, NODE, TIMEOUT};

#[tokio::test(start_paused = true)]
async fn all_pods_are_read_by_one_list() {
    let mut env = Environment::new(Wanted::default().with_raw()).await;
    for index in 0..300 {
        env.put(&format!("pod-{index}"), "Running");
        env.put_on("other", &format!("other-{index}"), "Running");
    }
    env.read_until(|env| env.lists == 1).await;
    assert!(env.errors.is_empty(), "{:?}", env.errors);
    for pod in env.pods.values_mut() {
        let Some(RawPod::Protobuf(bytes)) = pod.raw.take().map(|raw| *raw) else { panic!("{pod:?}") };
        assert_eq!(decode_pod(&bytes).as_ref(), Ok(&*pod));
    }
    env.check();
    assert_eq!(env.queries("list"), ["fieldSelector=spec.nodeName%3Dworker&resourceVersion=0"]);
}

#[tokio::test(start_paused = true)]
async fn a_truncated_list_is_repeated() {
    for bytes in [0, 3, 20, 200, 20_000] {
        let mut env = Environment::new(Wanted::default()).await;
        (0..100).for_each(|index| env.put(&format!("pod-{index}"), "Running"));
        env.server.fail_next("list", "pods", 1, Fault::CutWithin(bytes));
        env.read_until(|env| env.lists == 1).await;
        assert_eq!(env.errors.len(), 1, "{:?}", env.errors);
        env.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_above_the_size_limit_is_an_error() {
    let mut env = Environment::new(Wanted::default()).await;
    env.put("a", "Running");
    let annotations = json!({"k": "x".repeat(5 << 20)});
    let metadata = json!({"name": "large", "namespace": "default", "annotations": annotations});
    env.server.put(&PODS, json!({"metadata": metadata, "spec": {"nodeName": NODE}})).unwrap();
    env.read_until(|env| !env.errors.is_empty()).await;
    assert!(env.errors[0].contains("an object in it is larger than 4194304 bytes"), "{:?}", env.errors);
    env.delete("large");
    env.read_until(|env| env.lists == 1).await;
    env.check();
}

/// With a stale watch cache the known state must not go back in time.
#[tokio::test(start_paused = true)]
async fn a_list_is_never_older_than_the_known_state() {
    let mut env = Environment::with_pods("ab").await;
    env.server.set_cache_stale(true);
    env.delete("a");
    assert_eq!(env.create("c").await, "-ac");
    let version = env.server.get(&PODS, "default", "c").unwrap()["metadata"]["resourceVersion"].clone();
    env.put_on("other", "d", "Running");
    env.server.compact_history();
    env.server.cut_connections();
    let is_too_new = |error: &&String| error.contains("Too large");
    env.read_until(|env| env.errors.iter().filter(is_too_new).count() == 3).await;
    assert_eq!(env.lists, 1, "{:?}", env.trace);
    env.server.set_cache_stale(false);
    env.read_until(|env| env.lists == 2).await;
    env.check();
    let query = env.queries("list").pop().unwrap();
    let version = version.as_str().unwrap();
    assert!(
        query.ends_with(&format!("&resourceVersion={version}&resourceVersionMatch=NotOlderThan")),
        "{query}"
    );
}

/// Resource versions go backwards: the last one yields no events, and no list is as new.
#[tokio::test(start_paused = true)]
async fn after_a_restore_of_etcd_an_older_list_is_accepted_eventually() {
    let mut env = Environment::with_pods("abcdefghij").await;
    assert_eq!(env.create("k").await, "k");
    let before = Instant::now();
    env.server.restore_backup();
    env.put("l", "Running");
    env.read_until(|env| env.lists == 2).await;
    assert!(before.elapsed() < Duration::from_secs(600), "{:?}", before.elapsed());
    assert!(env.errors.iter().all(|error| error.contains("Too large resource version")), "{:?}", env.errors);
    env.check();
    env.trace.clear();
    assert_eq!(env.create("m").await, "m");
    assert!(env.queries("list").pop().unwrap().ends_with("&resourceVersion=0"));
}

#[tokio::test(start_paused = true)]
async fn an_empty_list_is_complete() {
    let mut env = Environment::new(Wanted::default()).await;
    env.read_until(|env| env.lists == 1).await;
    assert_eq!(env.trace.concat(), "[]");
    assert_eq!(env.create("a").await, "[]a");
}

#[tokio::test(start_paused = true)]
async fn an_ended_watch_continues_where_it_ended() {
    let mut env = Environment::with_pods("ab").await;
    env.put("c", "Pending");
    env.delete("a");
    env.put("b", "Running");
    env.put_on("other", "d", "Running");
    env.read_until(|env| env.trace.len() == 3).await;
    assert_eq!(env.trace.concat(), "c-ab");
    // The watch ends by itself after some minutes, a few times.
    let hour = tokio::time::timeout(Duration::from_secs(3600), env.read()).await;
    assert!(hour.is_err(), "there is no event");
    let watches = env.queries("watch");
    assert!((7..=13).contains(&watches.len()), "{watches:?}");
    assert!(watches.iter().all(|watch| watch.contains("&allowWatchBookmarks=true&")), "{watches:?}");
    assert_eq!(env.create("e").await, "c-abe");
    assert_eq!(env.server.watchers(&PODS), 1);
    env.check();
}

/// Other objects change all the time, and old history is dropped.
#[tokio::test(start_paused = true)]
async fn bookmarks_keep_the_version_of_an_idle_watch_recent() {
    let mut env = Environment::with_pods("a").await;
    for round in 0..5 {
        env.server.put(&NODES, json!({"metadata": {"name": format!("node-{round}")}})).unwrap();
        let event = tokio::time::timeout(Duration::from_secs(61), env.read()).await;
        assert!(event.is_err(), "{:?}", env.trace);
        env.server.compact_history();
    }
    assert_eq!(env.create("b").await, "b");
}

#[tokio::test(start_paused = true)]
async fn after_a_version_that_is_too_old_all_pods_are_listed_again() {
    let mut env = Environment::with_pods("ab").await;
    // The connection breaks, and the history of the changes made meanwhile is dropped.
    env.server.stop();
    env.delete("a");
    env.put("c", "Running");
    env.server.compact_history();
    env.read_until(|env| !env.errors.is_empty()).await;
    env.server.resume();
    env.read_until(|env| env.lists == 2).await;
    assert!(env.errors.last().unwrap().contains("too old resource version"), "{:?}", env.errors);
    assert_eq!(env.trace.concat().trim_start_matches('!'), "[bc]");
    env.check();
}

/// Two changes are sent in two frames, of which only some bytes arrive.
#[tokio::test(start_paused = true)]
async fn no_event_is_lost_or_repeated_wherever_a_watch_breaks() {
    let mut env = Environment::with_pods("").await;
    for bytes in (0..700).step_by(7) {
        for stalled in [false, true] {
            let fault = if stalled { Fault::StallWithin(bytes) } else { Fault::CutWithin(bytes) };
            env.put("a", "Running");
            env.put("b", "Running");
            env.read_until(|env| env.pods.len() == 2).await;
            // Between two watches, so that the next one starts with both changes.
            env.server.stop();
            env.errors.clear();
            env.read_until(|env| !env.errors.is_empty()).await;
            env.trace.clear();
            env.delete("a");
            env.delete("b");
            env.server.fail_next("watch", "pods", 1, fault.clone());
            env.server.resume();
            env.read_until(|env| env.pods.is_empty()).await;
            let events: Vec<&String> =
                env.trace.iter().filter(|event| !["!", "+"].contains(&event.as_str())).collect();
            assert_eq!(events, ["-a", "-b"], "{fault:?}: {:?} {:?}", env.trace, env.errors);
            env.trace.clear();
        }
    }
    assert_eq!(env.lists, 1);
}

#[tokio::test(start_paused = true)]
async fn a_dead_watch_is_detected() {
    let mut env = Environment::with_pods("a").await;
    let event = tokio::time::timeout(Duration::from_secs(5), env.read()).await;
    assert!(event.is_err());
    env.server.set_frozen(true);
    env.put("b", "Running");
    let before = Instant::now();
    env.read_until(|env| !env.errors.is_empty()).await;
    // Two bookmarks are missing, and the next request gets no response.
    assert!(before.elapsed() < Duration::from_secs(200), "{:?}", before.elapsed());
    assert!(env.errors[0].contains("did not respond within 65s"), "{:?}", env.errors);
    env.server.set_frozen(false);
    env.read_until(|env| env.pods.len() == 2).await;
    assert_eq!(env.lists, 1);
    env.check();
}

#[tokio::test(start_paused = true)]
async fn a_stalled_list_times_out() {
    let mut env = Environment::new(Wanted::default()).await;
    env.put("a", "Running");
    env.server.fail_next("list", "pods", 1, Fault::StallWithin(50));
    let before = Instant::now();
    env.read_until(|env| env.lists == 1).await;
    assert_eq!(env.trace.concat(), "[![a]");
    assert!(env.errors[0].contains("did not respond within 65s"), "{:?}", env.errors);
    assert!(before.elapsed() < Duration::from_secs(76), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_works_again_reports_it_without_a_change() {
    for fault in
        [Fault::Status(500), Fault::TooManyRequests { retry_after: 1 }, Fault::Cut, Fault::Status(401)]
    {
        let mut env = Environment::with_pods("a").await;
        env.server.fail_next("watch", "pods", 2, fault.clone());
        env.server.cut_connections();
        env.read_until(|env| env.trace.len() == 3).await;
        assert_eq!(env.trace.concat(), "!!+", "{fault:?}: {:?}", env.errors);
        env.trace.clear();
        assert_eq!(env.create("b").await, "b", "{fault:?}");
        assert_eq!(env.lists, 1, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_permission_is_reported() {
    let mut env = Environment::with_pods("a").await;
    for verb in ["watch", "list"] {
        env.server.set_denied(verb, "pods", true);
        env.server.cut_connections();
        if verb == "list" {
            env.put("b", "Running");
            env.server.compact_history();
        }
        let prefix = "cannot watch the node's pods: RBAC denied the request: pods is forbidden: User ";
        let cannot = format!("cannot {verb} resource");
        env.read_until(|env| {
            env.errors.iter().any(|error| error.starts_with(prefix) && error.contains(&cannot))
        })
        .await;
        env.server.set_denied(verb, "pods", false);
        env.read_until(|env| env.trace.last().is_some_and(|last| ["+", "]"].contains(&&**last))).await;
    }
    env.check();
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
        let mut env = Environment::with_pods("a").await;
        env.server.fail_next("watch", "pods", 1, Fault::Body(body.to_vec()));
        env.server.cut_connections();
        env.read_until(|env| env.lists == 2).await;
        assert_eq!(env.trace.concat(), "![a]", "{body:?}: {:?}", env.errors);
        assert!(env.errors[0].contains("cannot parse the response of "), "{body:?}: {:?}", env.errors);
        assert_eq!(env.create("b").await, "![a]b");
    }
    for body in [&b"k8s\0"[..], b"", b"{\"kind\":\"PodList\",\"items\":[]}", &framed(b"")] {
        let mut env = Environment::new(Wanted::default()).await;
        env.put("a", "Running");
        env.server.fail_next("list", "pods", 1, Fault::Body(body.to_vec()));
        env.read_until(|env| env.lists == 1).await;
        assert_eq!(env.trace.concat(), "[![a]", "{body:?}: {:?}", env.errors);
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
    let mut env = Environment::new(Wanted::default()).await;
    env.server.fail_next("list", "pods", 1, Fault::Body(body));
    env.read_until(|env| env.lists == 1).await;
    assert_eq!(env.trace.concat(), "[ab]");
}

#[tokio::test(start_paused = true)]
async fn after_an_event_with_an_invalid_pod_all_pods_are_listed_again() {
    let mut env = Environment::with_pods("ab").await;
    let version = env.server.get(&PODS, "default", "a").unwrap()["metadata"]["resourceVersion"].clone();
    let version = version.as_str().unwrap().as_bytes();
    let pod = field(1, &[field(1, b""), field(3, b"default"), field(6, version)].concat());
    let type_meta = [field(1, b"v1"), field(2, b"Pod")].concat();
    let object = [b"k8s\0".to_vec(), field(1, &type_meta), field(2, &pod)].concat();
    for event_type in [&b"MODIFIED"[..], b"DELETED"] {
        let event = [field(1, event_type), field(2, &field(1, &object))].concat();
        env.server.fail_next("watch", "pods", 1, Fault::Body(framed(&event)));
        env.server.cut_connections();
        let lists = env.lists;
        env.read_until(|env| env.lists > lists).await;
        assert_eq!(std::mem::take(&mut env.trace).concat().trim_start_matches('!'), "[ab]");
        assert!(env.errors.last().unwrap().contains("a pod cannot be read"), "{:?}", env.errors);
    }
}

/// 502, 503 and 504 come from a proxy before the API server; 410 and 400 from an API server that does not
/// know the version.
#[tokio::test(start_paused = true)]
async fn only_the_api_server_can_reject_a_version() {
    for (code, lists) in [(502, 1), (503, 1), (504, 1), (410, 2), (400, 2)] {
        let mut env = Environment::with_pods("a").await;
        env.server.fail_next("watch", "pods", 1, Fault::Status(code));
        env.read_until(|env| env.trace.len() > 1 && env.errors.len() == 1).await;
        assert_eq!(env.create("b").await.matches('b').count(), 1, "{code}");
        assert_eq!(env.lists, lists, "{code}: {:?}", env.errors);
    }
}

/// Reconnects are limited when a connection breaks all the time, and the error is reported.
#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_repeatedly_is_reported() {
    let mut env = Environment::with_pods("a").await;
    let before = Instant::now();
    while env.errors.len() < 8 {
        assert!(before.elapsed() < TIMEOUT, "{:?}", env.errors);
        let event = tokio::time::timeout(Duration::from_secs(2), env.read()).await;
        if event.is_err() && env.server.watchers(&PODS) > 0 {
            env.server.cut_connections();
        }
    }
    assert!(env.errors[0].contains("the watch lasted 2."), "{:?}", env.errors);
    assert!(before.elapsed() > Duration::from_secs(16), "{:?}", before.elapsed());
    env.create("b").await;
    assert_eq!(env.lists, 1);
}

/// Requests back off when a server ends each watch at once.
#[tokio::test(start_paused = true)]
async fn watches_that_end_at_once_are_retried_with_backoff() {
    let mut env = Environment::with_pods("a").await;
    env.server.fail_next("watch", "pods", 20, Fault::Body(Vec::new()));
    env.server.cut_connections();
    let before = Instant::now();
    env.read_until(|env| env.errors.len() == 20).await;
    assert!(before.elapsed() > Duration::from_secs(150), "{:?}", before.elapsed());
    assert_eq!(env.create("b").await.trim_start_matches(['!', '+']), "b");
}

#[tokio::test(start_paused = true)]
async fn after_a_single_lost_connection_the_watch_continues_at_once() {
    let mut env = Environment::with_pods("a").await;
    let event = tokio::time::timeout(Duration::from_secs(20), env.read()).await;
    assert!(event.is_err(), "{:?}", env.trace);
    env.server.cut_connections();
    let before = Instant::now();
    assert_eq!(env.create("b").await, "b");
    assert!(before.elapsed() <= Duration::from_secs(1), "{:?}", before.elapsed());
    assert!(env.errors.is_empty() && env.lists == 1, "{:?}", env.errors);
}

/// All agents lose their watches at the same moment, and the returning API server has no history.
#[tokio::test(start_paused = true)]
async fn the_agents_of_a_cluster_reconnect_over_some_time() {
    const AGENTS: usize = 60;
    let server = ApiServer::start_in_process(0);
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
    server.resume();
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
    let seed = numacast_sim::seed();
    eprintln!("NUMACAST_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    // Seeds the random delays.
    fastrand::seed(seed);
    let mut env = Environment::new(Wanted::default()).await;
    let mut down = false;
    for step in 0..600 {
        match rng.u32(0..16) {
            0..6 => env.put(&format!("pod-{}", rng.u32(0..60)), ["Pending", "Running"][rng.usize(0..2)]),
            6..8 => {
                env.server.delete(&PODS, "default", &format!("pod-{}", rng.u32(0..60)));
            }
            8 => env.server.compact_history(),
            9 => env.server.cut_connections(),
            10 if !down => {
                env.server.stop();
                down = true;
            }
            11 if down => {
                env.server.resume();
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
                env.server.fail_next(["list", "watch"][rng.usize(0..2)], "pods", 1, fault);
            }
            _ => {
                for _ in 0..rng.u32(1..20) {
                    if tokio::time::timeout(Duration::from_secs(rng.u64(1..90)), env.read()).await.is_err() {
                        break;
                    }
                }
            }
        }
        if step % 60 == 59 {
            env.server.clear_faults();
            if down {
                env.server.resume();
                down = false;
            }
            // Its event is the last one.
            let last = format!("last-{step}");
            env.create(&last).await;
            env.check();
        }
    }
}
