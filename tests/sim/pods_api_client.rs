//! The Pods API client with one or two servers.

use std::path::PathBuf;
use std::time::Duration;

use crate::support;
use numacast::core_v1::proto as core;
use numacast::kubelet::{PodsClient, PodsErrorKind, PodsWatch};
use numacast::pod::{Pod, RawPod, Wanted};
use numacast::watch_event::WatchEvent;
use numacast_sim::pods_api::SimPodsApi;
use prost::Message;
use tempfile::TempDir;
use tokio::time::Instant;
use tonic::Status;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Directories for two sockets.
struct Sockets(TempDir);

impl Sockets {
    fn new() -> Self {
        let sockets = Self(tempfile::tempdir().unwrap());
        sockets.paths().iter().for_each(|path| std::fs::create_dir_all(path.parent().unwrap()).unwrap());
        sockets
    }

    fn paths(&self) -> Vec<PathBuf> {
        PodsClient::sockets(self.0.path())
    }

    fn client(&self) -> PodsClient {
        PodsClient::new(self.paths(), TIMEOUT)
    }

    fn server(&self, index: usize) -> SimPodsApi {
        SimPodsApi::start(self.paths()[index].clone()).unwrap()
    }
}

fn pod(name: &str, uid: &str) -> core::Pod {
    support::pod(name, uid, "Running")
}

/// Returns the UIDs of the next complete list.
async fn next_list(watch: &mut PodsWatch) -> Vec<String> {
    let mut uids = Vec::new();
    loop {
        match watch.next().await.unwrap() {
            WatchEvent::Init => uids.clear(),
            WatchEvent::InitApply(pod) => uids.push(pod.uid),
            WatchEvent::InitDone => return uids,
            _ => {}
        }
    }
}

async fn uids(client: &mut PodsClient) -> Vec<String> {
    let pods = client.list(&Wanted::default()).await.unwrap();
    pods.into_iter().map(|pod| pod.uid).collect()
}

#[tokio::test(start_paused = true)]
async fn pods_are_listed_and_read_by_uid_with_raw_bytes_on_request() {
    let sockets = Sockets::new();
    let server = sockets.server(0);
    for (name, uid) in [("b", "2"), ("a", "3"), ("a", "1")] {
        server.set(&pod(name, uid));
    }
    server.set_encoded("4", vec![0xff; 9]);
    let mut client = sockets.client();
    assert_eq!(uids(&mut client).await, ["1", "2", "3"], "invalid pods are skipped");
    let with_raw = Wanted::default().with_raw();
    for (wanted, has_raw) in [(&with_raw, true), (&Wanted::default(), false)] {
        let listed = client.list(wanted).await.unwrap().remove(1);
        let got = client.get("2", wanted).await.unwrap();
        assert_eq!(listed, got);
        let bytes = has_raw.then(|| Box::new(RawPod::Protobuf(pod("b", "2").encode_to_vec().into())));
        assert_eq!(got.raw, bytes);
    }
    let error = client.get("no such", &with_raw).await.unwrap_err();
    assert_eq!(error.kind, PodsErrorKind::NoSuchPod);
    let path = sockets.paths().remove(0);
    let expected = format!("the server at {} has no pod with the UID no such", path.display());
    assert_eq!(error.to_string(), expected);
    let error = client.get("4", &with_raw).await.unwrap_err();
    assert!(error.to_string().contains("is invalid"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_first_server_that_responds_is_used() {
    let sockets = Sockets::new();
    let mut client = sockets.client();
    let error = client.list(&Wanted::default()).await.unwrap_err().to_string();
    let [first, second] = [0, 1].map(|index| sockets.paths()[index].display().to_string());
    assert!(error.starts_with("no process serves the Pods API here: "), "{error}");
    for text in [&first, &second, "kubelet 1.36 and later create it"] {
        assert_eq!(error.matches(text).count(), 1, "{text}: {error}");
    }
    let kubelet = sockets.server(1);
    kubelet.set(&pod("a", "kubelet"));
    assert_eq!(uids(&mut client).await, ["kubelet"]);
    assert_eq!(client.socket(), Some(&*sockets.paths()[1]));
    let own = sockets.server(0);
    own.set(&pod("a", "own"));
    // A server that cannot respond yet is skipped too.
    own.fail_with(Some(Status::failed_precondition("Kubelet is initializing")));
    assert_eq!(uids(&mut client).await, ["kubelet"]);
    assert_eq!(client.socket(), Some(&*sockets.paths()[1]));
    own.fail_with(None);
    assert_eq!(uids(&mut client).await, ["own"]);
    assert_eq!(client.socket(), Some(&*sockets.paths()[0]));
    // A server that responds is not skipped, so that its rate limit is not bypassed.
    own.fail_with(Some(Status::resource_exhausted("rejected by rate limit")));
    let error = client.list(&Wanted::default()).await.unwrap_err();
    assert_eq!(error.kind, PodsErrorKind::Final, "{error}");
    assert!(error.to_string().contains("ListPods was rejected by rate limit"), "{error}");
    // A pod that one server omits for its size may be available from another.
    let omitted = "numacast: pod default/large is omitted: its 9 bytes do not fit into the 16777216 bytes for all pods; read it from the API server";
    own.fail_with(Some(Status::resource_exhausted(omitted)));
    assert_eq!(client.get("kubelet", &Wanted::default()).await.unwrap().uid, "kubelet");
    own.fail_with(None);
    let error = client.get("kubelet", &Wanted::default()).await.unwrap_err();
    assert_eq!(error.kind, PodsErrorKind::NoSuchPod, "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_is_replaced() {
    let sockets = Sockets::new();
    let mut server = sockets.server(0);
    server.set(&pod("a", "1"));
    let mut client = sockets.client();
    assert_eq!(uids(&mut client).await, ["1"]);
    server.cut_connections();
    assert_eq!(uids(&mut client).await, ["1"]);
    server.restart().unwrap();
    assert_eq!(uids(&mut client).await, ["1"]);
    server.stop();
    let error = client.list(&Wanted::default()).await.unwrap_err().to_string();
    assert!(error.contains("no process listens on"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_returns_to_the_first_socket_once_it_is_served() {
    let sockets = Sockets::new();
    let kubelet = sockets.server(1);
    kubelet.set(&pod("a", "kubelet"));
    let mut watch = sockets.client().watch(Wanted::default());
    let before = Instant::now();
    assert_eq!(next_list(&mut watch).await, ["kubelet"]);
    assert!(before.elapsed() < Duration::from_secs(1), "the list is not verified");
    assert_eq!(watch.socket(), Some(&*sockets.paths()[1]));
    let own = sockets.server(0);
    own.set(&pod("a", "own"));
    assert_eq!(next_list(&mut watch).await, ["own"]);
    assert_eq!(watch.socket(), Some(&*sockets.paths()[0]));
    // Without the first one it falls back to the second.
    drop(own);
    let error = watch.next().await.unwrap_err().to_string();
    let expected = ["broke during WatchPods", "responded to WatchPods with", "ended the watch of its pods"];
    assert!(expected.iter().any(|text| error.contains(text)), "{error}");
    assert_eq!(next_list(&mut watch).await, ["kubelet"]);
}

#[tokio::test(start_paused = true)]
async fn a_verified_list_of_a_restarted_kubelet_takes_longer() {
    let sockets = Sockets::new();
    let kubelet = sockets.server(1);
    kubelet.set(&pod("a", "1"));
    let client = PodsClient::new([sockets.paths().remove(1)], TIMEOUT).verifying_lists();
    let mut watch = client.watch(Wanted::default());
    let before = Instant::now();
    assert_eq!(next_list(&mut watch).await, ["1"]);
    assert!(before.elapsed() >= Duration::from_secs(10), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn two_pods_of_the_same_name_are_distinguished_by_uid() {
    let sockets = Sockets::new();
    let server = sockets.server(0);
    let failed = core::PodStatus { phase: "Failed".into(), ..core::PodStatus::default() };
    // The terminating one comes first although its UID is greater.
    let old = core::Pod { status: Some(failed), ..pod("a", "2") };
    server.set(&old);
    server.set(&pod("a", "1"));
    let mut watch = sockets.client().watch(Wanted::default());
    assert_eq!(next_list(&mut watch).await, ["2", "1"]);
    server.remove(&old);
    assert!(matches!(watch.next().await.unwrap(), WatchEvent::Delete(pod) if pod.uid == "2"));
    server.set(&pod("a", "3"));
    server.remove(&pod("a", "1"));
    assert!(matches!(watch.next().await.unwrap(), WatchEvent::Apply(pod) if pod.uid == "3"));
    assert!(matches!(watch.next().await.unwrap(), WatchEvent::Delete(pod) if pod.uid == "1"));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_wait_loses_no_event() {
    let sockets = Sockets::new();
    let server = sockets.server(0);
    server.set(&pod("a", "1"));
    let mut watch = sockets.client().watch(Wanted::default());
    assert_eq!(next_list(&mut watch).await, ["1"]);
    server.set(&pod("b", "2"));
    server.remove(&pod("a", "1"));
    server.finish(&pod("b", "2"));
    let mut events = Vec::new();
    let mut waits = 0;
    while events.len() < 3 {
        // The future is dropped repeatedly while it waits.
        let event = tokio::select! {
            biased;
            event = watch.next() => Some(event.unwrap()),
            () = tokio::time::sleep(Duration::from_millis(1)) => None,
        };
        waits += usize::from(event.is_none());
        events.extend(event);
    }
    let short = |event: &WatchEvent<Pod>| match event {
        WatchEvent::Apply(pod) => format!("+{}", pod.uid),
        WatchEvent::Delete(pod) => format!("-{}", pod.uid),
        _ => "?".to_owned(),
    };
    assert_eq!(events.iter().map(short).collect::<Vec<_>>(), ["+2", "-1", "+2"]);
    assert!(waits > 3, "{waits}");
}

/// The kubelet reports a pod as deleted shortly before its object is removed.
#[tokio::test(start_paused = true)]
async fn a_pod_that_is_being_deleted_is_queried_until_it_is_removed() {
    let sockets = Sockets::new();
    let server = sockets.server(0);
    server.set(&pod("a", "1"));
    let mut watch = sockets.client().watch(Wanted::default());
    assert_eq!(next_list(&mut watch).await, ["1"]);
    let mut deleting = pod("a", "1");
    deleting.metadata.as_mut().unwrap().deletion_timestamp = Some(core::Present {});
    server.finish(&deleting);
    assert!(matches!(watch.next().await.unwrap(), WatchEvent::Apply(pod) if pod.deleted));
    let event = tokio::time::timeout(Duration::from_secs(20), watch.next()).await;
    assert!(event.is_err(), "it exists, and no event is repeated: {event:?}");
    server.remove_silently(&deleting);
    let before = Instant::now();
    assert!(matches!(watch.next().await.unwrap(), WatchEvent::Delete(pod) if pod.uid == "1"));
    assert!(before.elapsed() < Duration::from_secs(7), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_removed_only_once_the_server_confirms_it() {
    let sockets = Sockets::new();
    let server = sockets.server(0);
    for number in 0..30 {
        server.set(&pod(&format!("pod-{number}"), &number.to_string()));
    }
    let mut watch = sockets.client().watch(Wanted::default());
    assert_eq!(next_list(&mut watch).await.len(), 30);
    server.fail_with(Some(Status::resource_exhausted("rejected by rate limit")));
    // Ten are terminated and still exist, the others are deleted.
    for number in 0..30 {
        let one = pod(&format!("pod-{number}"), &number.to_string());
        if number < 10 { server.finish(&one) } else { server.remove(&one) }
    }
    let event = tokio::time::timeout(Duration::from_secs(30), watch.next()).await;
    assert!(event.is_err(), "it is unknown: {event:?}");
    server.fail_with(None);
    let (mut present, mut deleted) = (0, 0);
    let before = Instant::now();
    while present + deleted < 30 {
        match watch.next().await.unwrap() {
            WatchEvent::Apply(_) => present += 1,
            WatchEvent::Delete(_) => deleted += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((present, deleted), (10, 20));
    assert!(before.elapsed() < Duration::from_secs(10), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn after_repeated_ends_of_the_watch_the_backoff_grows() {
    let sockets = Sockets::new();
    let server = sockets.server(0);
    server.set(&pod("a", "1"));
    let mut watch = sockets.client().watch(Wanted::default());
    let before = Instant::now();
    for _ in 0..8 {
        assert_eq!(next_list(&mut watch).await, ["1"]);
        server.end_watches();
        let error = watch.next().await.unwrap_err().to_string();
        assert!(error.contains("ended the watch: we were too slow"), "{error}");
    }
    assert!(before.elapsed() > Duration::from_secs(8), "{:?}", before.elapsed());
    // After a connection that lasted, the backoff starts over.
    assert_eq!(next_list(&mut watch).await, ["1"]);
    assert!(tokio::time::timeout(Duration::from_secs(20), watch.next()).await.is_err());
    server.end_watches();
    watch.next().await.unwrap_err();
    let before = Instant::now();
    assert_eq!(next_list(&mut watch).await, ["1"]);
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
}
