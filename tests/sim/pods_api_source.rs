//! The Pods API as a pod source, with faults that a real kubelet does not produce on demand;
//! `tests/real` has the rest.

use std::collections::BTreeMap;
use std::panic::Location;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use crate::support::{self, eventually};
use futures::{Stream, StreamExt};
use numacast::core_v1::proto as core;
use numacast::kubelet::watch_pods;
use numacast::pod::{Phase, Pod, Wanted};
use numacast::watch_event::WatchEvent;
use numacast_sim::pods_api::SimPodsApi;
use tempfile::TempDir;
use tokio::time::Instant;
use tonic::Status;

/// The timeout of a call.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long any wait may take, in virtual time: it only ends a test that would hang.
const MAX_WAIT: Duration = Duration::from_secs(3600);

struct SocketDir(TempDir);

impl SocketDir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn socket(&self) -> PathBuf {
        self.0.path().join("pods-api.sock")
    }
}

/// A consumer of the source and the state it has built from the events.
struct Subscriber {
    events: Pin<Box<dyn Stream<Item = Result<WatchEvent<Pod>, String>>>>,
    listed: BTreeMap<String, Pod>,
    pods: BTreeMap<String, Pod>,
    /// Number of complete lists.
    lists: usize,
    errors: Vec<String>,
}

impl Subscriber {
    fn new(socket: PathBuf) -> Self {
        let events = Box::pin(watch_pods(socket, TIMEOUT, Wanted::default()));
        Self { events, listed: BTreeMap::new(), pods: BTreeMap::new(), lists: 0, errors: Vec::new() }
    }

    /// Consumes events until `condition` holds.
    #[track_caller]
    fn read_until(&mut self, condition: impl Fn(&Self) -> bool) -> impl Future<Output = ()> {
        let caller = Location::caller();
        async move {
            let read = async {
                while !condition(self) {
                    self.read().await;
                }
            };
            if tokio::time::timeout(MAX_WAIT, read).await.is_err() {
                panic!("the condition at {caller} never holds: {}, {:?}", self.names(), self.errors);
            }
        }
    }

    /// Consumes one event.
    async fn read(&mut self) {
        match self.events.next().await.unwrap() {
            Ok(WatchEvent::Init) => self.listed.clear(),
            Ok(WatchEvent::InitApply(pod)) => drop(self.listed.insert(pod.name.clone(), pod)),
            Ok(WatchEvent::InitDone) => {
                self.pods = std::mem::take(&mut self.listed);
                self.lists += 1;
            }
            Ok(WatchEvent::Apply(pod)) => drop(self.pods.insert(pod.name.clone(), pod)),
            Ok(WatchEvent::Delete(pod)) => drop(self.pods.remove(&pod.name)),
            Ok(WatchEvent::Resumed) => {}
            Err(error) => self.errors.push(error),
        }
    }

    fn names(&self) -> String {
        self.pods.keys().map(String::as_str).collect::<Vec<_>>().join(",")
    }

    async fn next_error(&mut self) -> String {
        let before = self.errors.len();
        self.read_until(|state| state.errors.len() > before).await;
        self.errors.last().unwrap().clone()
    }

    async fn next_list(&mut self) -> String {
        let before = self.lists;
        self.read_until(|state| state.lists > before).await;
        self.names()
    }
}

/// Adds these pods to the kubelet and returns a subscriber that has listed exactly them.
async fn subscribe(dir: &SocketDir, kubelet: &SimPodsApi, names: &[&str]) -> Subscriber {
    names.iter().for_each(|name| kubelet.set(&pod(name)));
    let mut subscriber = Subscriber::new(dir.socket());
    assert_eq!(subscriber.next_list().await, names.join(","));
    subscriber
}

pub(crate) fn pod(name: &str) -> core::Pod {
    support::pod(name, &format!("uid-{name}"), "Running")
}

fn failed(name: &str) -> core::Pod {
    let mut pod = pod(name);
    pod.status = Some(core::PodStatus { phase: "Failed".into(), ..core::PodStatus::default() });
    pod
}

#[tokio::test(start_paused = true)]
async fn pods_are_listed_and_then_watched() {
    let dir = SocketDir::new();
    let kubelet = SimPodsApi::start(dir.socket()).unwrap();
    kubelet.set(&pod("b"));
    kubelet.set(&pod("a"));
    let mut subscriber = Subscriber::new(dir.socket());
    assert_eq!(subscriber.next_list().await, "a,b");
    kubelet.set(&pod("c"));
    subscriber.read_until(|state| state.pods.contains_key("c")).await;
    kubelet.set(&failed("b"));
    subscriber.read_until(|state| state.pods["b"].phase == Phase::Failed).await;
    kubelet.remove(&pod("b"));
    subscriber.read_until(|state| !state.pods.contains_key("b")).await;
    assert_eq!((subscriber.names(), subscriber.errors.len()), ("a,c".into(), 0));
}

#[tokio::test(start_paused = true)]
async fn a_terminated_pod_remains_until_its_object_is_deleted() {
    let dir = SocketDir::new();
    let kubelet = SimPodsApi::start(dir.socket()).unwrap();
    let mut subscriber = subscribe(&dir, &kubelet, &["a", "b"]).await;
    let lists = subscriber.lists;
    kubelet.finish(&failed("a"));
    subscriber.read_until(|state| state.pods["a"].phase == Phase::Failed).await;
    assert_eq!((subscriber.names(), subscriber.lists), ("a,b".into(), lists));
    // Removed without an event.
    kubelet.remove_silently(&pod("a"));
    let before = Instant::now();
    assert_eq!(subscriber.next_list().await, "b");
    assert!(before.elapsed() < Duration::from_secs(70), "{:?}", before.elapsed());
    // The pod no longer exists when it is queried.
    kubelet.finish(&failed("b"));
    kubelet.remove_silently(&pod("b"));
    subscriber.read_until(|state| state.pods.is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn after_the_watch_of_a_slow_subscriber_ends_all_pods_are_listed_again() {
    let dir = SocketDir::new();
    let kubelet = SimPodsApi::start(dir.socket()).unwrap();
    let mut subscriber = subscribe(&dir, &kubelet, &["a", "b"]).await;
    kubelet.end_watches();
    kubelet.remove(&pod("a"));
    let error = subscriber.next_error().await;
    assert!(error.contains("watch client channel closed"), "{error}");
    assert_eq!(subscriber.names(), "a,b", "known pods stay");
    assert_eq!(subscriber.next_list().await, "b");
}

#[tokio::test(start_paused = true)]
async fn after_a_lost_connection_and_a_restart_all_pods_are_listed_again() {
    let dir = SocketDir::new();
    let mut kubelet = SimPodsApi::start(dir.socket()).unwrap();
    let mut subscriber = subscribe(&dir, &kubelet, &["a"]).await;
    kubelet.cut_connections();
    subscriber.next_error().await;
    assert_eq!(subscriber.next_list().await, "a");
    kubelet.stop();
    kubelet.set(&pod("b"));
    // The first error may be about the connection, later ones are about the socket.
    subscriber
        .read_until(|state| state.errors.iter().any(|error| error.contains("no process listens")))
        .await;
    assert_eq!(subscriber.names(), "a", "known pods stay");
    kubelet.restart().unwrap();
    kubelet.fail_with(Some(Status::failed_precondition("Kubelet is initializing")));
    let starts = |error: &String| error.contains("Kubelet is initializing");
    subscriber.read_until(|state| state.errors.iter().any(starts)).await;
    assert_eq!(subscriber.names(), "a");
    kubelet.fail_with(None);
    assert_eq!(subscriber.next_list().await, "a,b");
}

#[tokio::test(start_paused = true)]
async fn a_lost_event_is_found_by_the_next_list() {
    let dir = SocketDir::new();
    let kubelet = SimPodsApi::start(dir.socket()).unwrap();
    let mut subscriber = subscribe(&dir, &kubelet, &["a", "b"]).await;
    kubelet.set_silently(&pod("c"));
    kubelet.remove_silently(&pod("a"));
    let (before, watches) = (Instant::now(), kubelet.watch_calls());
    assert_eq!(subscriber.next_list().await, "b,c");
    let waited = before.elapsed();
    assert!((Duration::from_secs(120)..Duration::from_secs(300)).contains(&waited), "{waited:?}");
    assert_eq!((subscriber.errors.len(), kubelet.watch_calls() - watches), (0, 1), "there were no errors");
}

#[tokio::test(start_paused = true)]
async fn a_list_without_an_end_marker_ends_by_itself() {
    let dir = SocketDir::new();
    let kubelet = SimPodsApi::start(dir.socket()).unwrap();
    kubelet.set_sync_marker(false);
    let mut subscriber = subscribe(&dir, &kubelet, &["a", "b"]).await;
    kubelet.set(&pod("c"));
    subscriber.read_until(|state| state.pods.len() == 3).await;
    // Without the marker, the initial list cannot be distinguished from concurrent changes.
    kubelet.cut_connections();
    subscriber.next_error().await;
    let watches = kubelet.watch_calls();
    eventually("the pods are watched again", async || {
        let event = subscriber.events.next();
        assert!(tokio::time::timeout(Duration::from_millis(10), event).await.is_err(), "there is no event");
        (kubelet.watch_calls() > watches).then_some(())
    })
    .await;
    kubelet.remove(&pod("a"));
    kubelet.remove(&pod("b"));
    kubelet.set(&pod("b"));
    kubelet.set(&pod("d"));
    assert_eq!(subscriber.next_list().await, "b,c,d");
}

#[tokio::test(start_paused = true)]
async fn a_restarted_kubelet_removes_no_pod_before_it_has_found_its_pods() {
    let dir = SocketDir::new();
    let mut kubelet = SimPodsApi::start(dir.socket()).unwrap();
    let mut subscriber = subscribe(&dir, &kubelet, &["a", "b", "c", "d"]).await;
    // The kubelet has lost all pods and finds them again one by one; b was deleted.
    kubelet.stop();
    for name in ["a", "b", "c", "d"] {
        kubelet.remove_silently(&pod(name));
    }
    kubelet.restart().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    tokio::time::timeout_at(deadline, subscriber.read_until(|state| state.pods.len() < 4)).await.unwrap_err();
    kubelet.set(&failed("c"));
    subscriber.read_until(|state| state.pods["c"].phase == Phase::Failed).await;
    assert_eq!(subscriber.names(), "a,b,c,d");
    kubelet.set_silently(&pod("a"));
    kubelet.set(&pod("d"));
    kubelet.set(&pod("e"));
    assert_eq!(subscriber.next_list().await, "a,c,d,e");
    // A pod that the kubelet reports as deleted is removed at once.
    let before = Instant::now();
    kubelet.remove(&pod("a"));
    subscriber.read_until(|state| state.names() == "c,d,e").await;
    assert!(before.elapsed() < Duration::from_secs(1));
}

/// Kubelets from 1.37 on report that they do not know their pods yet.
#[tokio::test(start_paused = true)]
async fn the_first_list_of_a_kubelet_that_reported_its_start_is_complete() {
    let dir = SocketDir::new();
    let mut kubelet = SimPodsApi::start(dir.socket()).unwrap();
    let mut subscriber = subscribe(&dir, &kubelet, &["a", "b"]).await;
    kubelet.stop();
    kubelet.remove_silently(&pod("b"));
    kubelet.fail_with(Some(tonic::Status::failed_precondition("Kubelet is initializing")));
    kubelet.restart().unwrap();
    subscriber.read_until(|state| state.errors.iter().any(|error| error.contains("initializing"))).await;
    assert_eq!(subscriber.names(), "a,b");
    kubelet.fail_with(None);
    let watches = kubelet.watch_calls();
    assert_eq!(subscriber.next_list().await, "a");
    assert_eq!(kubelet.watch_calls() - watches, 1, "no second list");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_stalls_removes_no_pod() {
    let dir = SocketDir::new();
    let kubelet = SimPodsApi::start(dir.socket()).unwrap();
    let mut subscriber = subscribe(&dir, &kubelet, &["a", "b", "c"]).await;
    let lists = subscriber.lists;
    kubelet.stall_after(Some(1));
    kubelet.cut_connections();
    subscriber.read_until(|state| state.errors.iter().any(|error| error.contains("did not continue"))).await;
    assert_eq!((subscriber.names(), subscriber.lists), ("a,b,c".into(), lists));
    kubelet.stall_after(None);
    assert_eq!(subscriber.next_list().await, "a,b,c");
}

#[tokio::test(start_paused = true)]
async fn invalid_events_are_ignored() {
    let dir = SocketDir::new();
    let kubelet = SimPodsApi::start(dir.socket()).unwrap();
    let mut subscriber = subscribe(&dir, &kubelet, &["a"]).await;
    let good = prost::Message::encode_to_vec(&pod("x"));
    for kind in [0, 1, 2, 3, 4, 99, -1] {
        kubelet.send_event(kind, vec![0xff; 100]);
        kubelet.send_event(kind, good[..good.len() - 3].to_vec());
        kubelet.send_event(kind, Vec::new());
    }
    kubelet.send_event(99, good);
    kubelet.set(&pod("b"));
    subscriber.read_until(|state| state.pods.contains_key("b")).await;
    assert_eq!((subscriber.names(), subscriber.lists, subscriber.errors.len()), ("a,b".into(), 1, 0));
}

#[tokio::test(start_paused = true)]
async fn every_failure_is_an_error_of_one_line() {
    let dir = SocketDir::new();
    let mut subscriber = Subscriber::new(dir.socket());
    let error = subscriber.next_error().await;
    assert!(error.contains("there is no Pods API socket") && error.contains("1.36"), "{error}");
    std::fs::write(dir.socket(), "a file").unwrap();
    let error = subscriber.next_error().await;
    assert!(error.contains("no process listens on"), "{error}");
    std::fs::remove_file(dir.socket()).unwrap();
    let kubelet = SimPodsApi::start(dir.socket()).unwrap();
    for (status, text) in [
        (Status::unimplemented("unknown service v1alpha1.Pods"), "does not serve the Pods API"),
        (Status::resource_exhausted("rejected by rate limit"), "rejected by rate limit"),
        (Status::internal("error marshalling initial watch event pod"), "Internal: error marshalling"),
        (Status::unknown("disabled"), "Unknown: disabled"),
    ] {
        kubelet.fail_with(Some(status));
        subscriber.read_until(|state| state.errors.last().is_some_and(|error| error.contains(text))).await;
    }
    kubelet.fail_with(None);
    assert_eq!(subscriber.next_list().await, "");
    assert!(subscriber.errors.iter().all(|error| !error.contains('\n')), "{:?}", subscriber.errors);
}
