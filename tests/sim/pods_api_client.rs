//! The public Pods API client, against one or two simulated servers.

use std::path::PathBuf;
use std::time::Duration;

use numacast::core_v1::proto as core;
use numacast::kubelet::{PodsClient, PodsError, PodsWatch};
use numacast::pod::{PodEvent, RawPod, Wanted};
use numacast::sim::pods_api::SimPodsApi;
use prost::Message;
use tempfile::TempDir;
use tokio::time::Instant;
use tonic::Status;

const DEADLINE: Duration = Duration::from_secs(10);

/// Directories for two sockets.
struct Places(TempDir);

impl Places {
    fn new() -> Self {
        let places = Self(tempfile::tempdir().unwrap());
        places.sockets().iter().for_each(|path| std::fs::create_dir_all(path.parent().unwrap()).unwrap());
        places
    }

    fn sockets(&self) -> Vec<PathBuf> {
        PodsClient::sockets(self.0.path())
    }

    fn client(&self) -> PodsClient {
        PodsClient::new(self.sockets(), DEADLINE)
    }

    fn server(&self, index: usize) -> SimPodsApi {
        SimPodsApi::start(self.sockets()[index].clone()).unwrap()
    }
}

fn pod(name: &str, uid: &str) -> core::Pod {
    let metadata = core::ObjectMeta {
        name: name.into(),
        namespace: "default".into(),
        uid: uid.into(),
        ..core::ObjectMeta::default()
    };
    let status = core::PodStatus { phase: "Running".into(), ..core::PodStatus::default() };
    core::Pod { metadata: Some(metadata), status: Some(status), ..core::Pod::default() }
}

/// Returns the UIDs of the next complete list.
async fn next_list(watch: &mut PodsWatch) -> Vec<String> {
    let mut uids = Vec::new();
    loop {
        match watch.next().await.unwrap() {
            PodEvent::Init => uids.clear(),
            PodEvent::InitApply(pod) => uids.push(pod.uid),
            PodEvent::InitDone => return uids,
            _ => {}
        }
    }
}

async fn uids(client: &mut PodsClient) -> Vec<String> {
    let pods = client.list(&Wanted::default()).await.unwrap();
    pods.into_iter().map(|pod| pod.uid).collect()
}

#[tokio::test(start_paused = true)]
async fn pods_are_listed_and_got_by_uid_whole_where_that_is_wanted() {
    let places = Places::new();
    let server = places.server(0);
    for (name, uid) in [("b", "2"), ("a", "3"), ("a", "1")] {
        server.set(&pod(name, uid));
    }
    server.set_encoded("4", vec![0xff; 9]);
    let mut client = places.client();
    assert_eq!(uids(&mut client).await, ["1", "2", "3"], "what cannot be read is left out");
    let whole = Wanted::default().with_raw();
    for (wanted, expected) in [(&whole, true), (&Wanted::default(), false)] {
        let (listed, got) =
            (client.list(wanted).await.unwrap().remove(1), client.get("2", wanted).await.unwrap());
        assert_eq!(listed, got);
        let bytes = expected.then(|| Box::new(RawPod::Protobuf(pod("b", "2").encode_to_vec().into())));
        assert_eq!(got.raw, bytes);
    }
    let path = places.sockets().remove(0);
    let uid = "no such".to_owned();
    let error = client.get("no such", &whole).await.unwrap_err();
    assert_eq!(error, PodsError::NoSuchPod { path, uid });
    assert!(error.to_string().contains("has no pod with the UID no such"), "{error}");
    let error = client.get("4", &whole).await.unwrap_err();
    assert!(error.to_string().contains("is invalid"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_first_who_serves_is_asked_and_why_not_the_others_is_told() {
    let places = Places::new();
    let mut client = places.client();
    let error = client.list(&Wanted::default()).await.unwrap_err().to_string();
    let [ours, theirs] = [0, 1].map(|index| places.sockets()[index].display().to_string());
    assert!(error.starts_with("nobody serves the Pods API here: "), "{error}");
    for words in [&ours, &theirs, "kubelets have one from 1.36 on"] {
        assert_eq!(error.matches(words).count(), 1, "{words}: {error}");
    }
    let kubelet = places.server(1);
    kubelet.set(&pod("a", "kubelet"));
    assert_eq!(uids(&mut client).await, ["kubelet"]);
    assert_eq!(client.socket(), Some(&*places.sockets()[1]));
    assert_eq!(client.skipped(), [PodsError::NoSocket { path: ours.clone().into() }]);
    let own = places.server(0);
    own.set(&pod("a", "own"));
    // A server that cannot respond yet is skipped too.
    own.fail_with(Some(Status::failed_precondition("Kubelet is initializing")));
    assert_eq!(uids(&mut client).await, ["kubelet"]);
    assert!(client.skipped()[0].to_string().contains("Kubelet is initializing"));
    own.fail_with(None);
    assert_eq!(uids(&mut client).await, ["own"]);
    assert_eq!((client.socket(), client.skipped().len()), (Some(&*places.sockets()[0]), 0));
    // A server that responds is not skipped, so that its rate limit is not bypassed.
    own.fail_with(Some(Status::resource_exhausted("rejected by rate limit")));
    let error = client.list(&Wanted::default()).await.unwrap_err();
    assert!(matches!(error, PodsError::RateLimited { .. }), "{error}");
    // A pod that one server leaves out for its size may be available from another.
    let words = "numacast: the pod default/a is left out, for its 9 bytes do not fit, the largest of which are left out";
    own.fail_with(Some(Status::resource_exhausted(words)));
    assert_eq!(client.get("kubelet", &Wanted::default()).await.unwrap().uid, "kubelet");
    own.fail_with(None);
    let error = client.get("kubelet", &Wanted::default()).await.unwrap_err();
    assert!(matches!(error, PodsError::NoSuchPod { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_connection_of_old_is_made_anew() {
    let places = Places::new();
    let mut server = places.server(0);
    server.set(&pod("a", "1"));
    let mut client = places.client();
    assert_eq!(uids(&mut client).await, ["1"]);
    server.cut_connections();
    assert_eq!(uids(&mut client).await, ["1"]);
    server.restart().unwrap();
    assert_eq!(uids(&mut client).await, ["1"]);
    server.stop();
    let error = client.list(&Wanted::default()).await.unwrap_err().to_string();
    assert!(error.contains("nobody listens on"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn who_follows_at_a_later_socket_returns_to_the_first() {
    let places = Places::new();
    let kubelet = places.server(1);
    kubelet.set(&pod("a", "kubelet"));
    let mut watch = places.client().watch(Wanted::default());
    let before = Instant::now();
    assert_eq!(next_list(&mut watch).await, ["kubelet"]);
    assert!(before.elapsed() < Duration::from_secs(1), "who does not doubt is told at once");
    assert_eq!(watch.socket(), Some(&*places.sockets()[1]));
    assert!(matches!(watch.skipped(), [PodsError::NoSocket { .. }]), "{:?}", watch.skipped());
    let own = places.server(0);
    own.set(&pod("a", "own"));
    assert_eq!(next_list(&mut watch).await, ["own"]);
    assert_eq!((watch.socket(), watch.skipped().len()), (Some(&*places.sockets()[0]), 0));
    // Falls back to the second one when the first is gone.
    drop(own);
    let error = watch.next().await.unwrap_err();
    assert!(
        matches!(error, PodsError::Lost { .. } | PodsError::Status { .. } | PodsError::Ended { .. }),
        "{error}"
    );
    assert_eq!(next_list(&mut watch).await, ["kubelet"]);
}

#[tokio::test(start_paused = true)]
async fn who_doubts_waits_for_a_young_kubelet() {
    let places = Places::new();
    let kubelet = places.server(1);
    kubelet.set(&pod("a", "1"));
    let mut watch =
        PodsClient::new([places.sockets().remove(1)], DEADLINE).verifying_lists().watch(Wanted::default());
    let before = Instant::now();
    assert_eq!(next_list(&mut watch).await, ["1"]);
    assert!(before.elapsed() >= Duration::from_secs(10), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn two_pods_of_one_name_are_two() {
    let places = Places::new();
    let server = places.server(0);
    let going = core::PodStatus { phase: "Failed".into(), ..core::PodStatus::default() };
    // The terminating one comes first although its UID is greater.
    let old = core::Pod { status: Some(going), ..pod("a", "2") };
    server.set(&old);
    server.set(&pod("a", "1"));
    let mut watch = places.client().watch(Wanted::default());
    assert_eq!(next_list(&mut watch).await, ["2", "1"]);
    server.remove(&old);
    assert!(matches!(watch.next().await.unwrap(), PodEvent::Delete(gone) if gone.uid == "2"));
    server.set(&pod("a", "3"));
    server.remove(&pod("a", "1"));
    assert!(matches!(watch.next().await.unwrap(), PodEvent::Apply(pod) if pod.uid == "3"));
    assert!(matches!(watch.next().await.unwrap(), PodEvent::Delete(gone) if gone.uid == "1"));
}

#[tokio::test(start_paused = true)]
async fn whoever_stops_waiting_misses_nothing() {
    let places = Places::new();
    let server = places.server(0);
    server.set(&pod("a", "1"));
    let mut watch = places.client().watch(Wanted::default());
    assert_eq!(next_list(&mut watch).await, ["1"]);
    server.set(&pod("b", "2"));
    server.remove(&pod("a", "1"));
    server.finish(&pod("b", "2"));
    let mut told = Vec::new();
    let mut waits = 0;
    while told.len() < 3 {
        // The future is dropped repeatedly while it waits.
        let heard = tokio::select! {
            biased;
            heard = watch.next() => Some(heard.unwrap()),
            () = tokio::time::sleep(Duration::from_millis(1)) => None,
        };
        waits += usize::from(heard.is_none());
        told.extend(heard);
    }
    let word = |event: &PodEvent| match event {
        PodEvent::Apply(pod) => format!("+{}", pod.uid),
        PodEvent::Delete(pod) => format!("-{}", pod.uid),
        _ => "?".to_owned(),
    };
    assert_eq!(told.iter().map(word).collect::<Vec<_>>(), ["+2", "-1", "+2"]);
    assert!(waits > 3, "{waits}");
}

/// The kubelet reports a pod as deleted shortly before its object is removed.
#[tokio::test(start_paused = true)]
async fn a_pod_that_is_about_to_go_is_looked_after_until_it_has_gone() {
    let places = Places::new();
    let server = places.server(0);
    server.set(&pod("a", "1"));
    let mut watch = places.client().watch(Wanted::default());
    assert_eq!(next_list(&mut watch).await, ["1"]);
    let mut going = pod("a", "1");
    going.metadata.as_mut().unwrap().deletion_timestamp = Some(core::Present {});
    server.finish(&going);
    assert!(matches!(watch.next().await.unwrap(), PodEvent::Apply(pod) if pod.deleted));
    let quiet = tokio::time::timeout(Duration::from_secs(20), watch.next()).await;
    assert!(quiet.is_err(), "it is there, and nothing is said twice: {quiet:?}");
    server.remove_silently(&going);
    let before = Instant::now();
    assert!(matches!(watch.next().await.unwrap(), PodEvent::Delete(pod) if pod.uid == "1"));
    assert!(before.elapsed() < Duration::from_secs(7), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn who_is_not_told_whether_a_pod_is_gone_does_not_make_it_up() {
    let places = Places::new();
    let server = places.server(0);
    for number in 0..30 {
        server.set(&pod(&format!("pod-{number}"), &number.to_string()));
    }
    let mut watch = places.client().watch(Wanted::default());
    assert_eq!(next_list(&mut watch).await.len(), 30);
    server.fail_with(Some(Status::resource_exhausted("rejected by rate limit")));
    // Ten have ended and still exist, the others are gone.
    for number in 0..30 {
        let one = pod(&format!("pod-{number}"), &number.to_string());
        if number < 10 { server.finish(&one) } else { server.remove(&one) }
    }
    let quiet = tokio::time::timeout(Duration::from_secs(30), watch.next()).await;
    assert!(quiet.is_err(), "nobody knows: {quiet:?}");
    server.fail_with(None);
    let (mut there, mut gone) = (0, 0);
    let before = Instant::now();
    while there + gone < 30 {
        match watch.next().await.unwrap() {
            PodEvent::Apply(_) => there += 1,
            PodEvent::Delete(_) => gone += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((there, gone), (10, 20));
    assert!(before.elapsed() < Duration::from_secs(10), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cuts_us_off_after_each_list_is_asked_ever_more_rarely() {
    let places = Places::new();
    let server = places.server(0);
    server.set(&pod("a", "1"));
    let mut watch = places.client().watch(Wanted::default());
    let before = Instant::now();
    for _ in 0..8 {
        assert_eq!(next_list(&mut watch).await, ["1"]);
        server.end_watches();
        let error = watch.next().await.unwrap_err();
        assert!(matches!(error, PodsError::TooSlow { .. }), "{error}");
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
