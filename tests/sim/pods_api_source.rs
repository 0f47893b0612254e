//! The Pods API source against a simulated kubelet, with faults that real ones do not produce on demand;
//! `tests/real` has the rest.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use futures::{Stream, StreamExt};
use numacast::core_v1::proto as core;
use numacast::kubelet::watch_pods;
use numacast::pod::{Phase, Pod, PodEvent, Wanted};
use numacast::sim::pods_api::SimPodsApi;
use tempfile::TempDir;
use tokio::time::Instant;
use tonic::Status;

/// The timeout of a call.
const DEADLINE: Duration = Duration::from_secs(10);

struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn socket(&self) -> PathBuf {
        self.0.path().join("pods-api.sock")
    }
}

/// A consumer of the source and the state it has built from the events.
struct Listener {
    events: Pin<Box<dyn Stream<Item = Result<PodEvent, String>>>>,
    listed: BTreeMap<String, Pod>,
    pods: BTreeMap<String, Pod>,
    /// Number of complete lists.
    lists: usize,
    errors: Vec<String>,
}

impl Listener {
    fn new(socket: PathBuf) -> Self {
        let events = Box::pin(watch_pods(socket, DEADLINE, Wanted::default()));
        Self { events, listed: BTreeMap::new(), pods: BTreeMap::new(), lists: 0, errors: Vec::new() }
    }

    /// Consumes events until `enough` holds.
    async fn until(&mut self, enough: impl Fn(&Self) -> bool) {
        while !enough(self) {
            match self.events.next().await.unwrap() {
                Ok(PodEvent::Init) => self.listed.clear(),
                Ok(PodEvent::InitApply(pod)) => drop(self.listed.insert(pod.name.clone(), pod)),
                Ok(PodEvent::InitDone) => {
                    self.pods = std::mem::take(&mut self.listed);
                    self.lists += 1;
                }
                Ok(PodEvent::Apply(pod)) => drop(self.pods.insert(pod.name.clone(), pod)),
                Ok(PodEvent::Delete(pod)) => drop(self.pods.remove(&pod.name)),
                Ok(PodEvent::Resumed) => {}
                Err(error) => self.errors.push(error),
            }
        }
    }

    fn names(&self) -> String {
        self.pods.keys().map(String::as_str).collect::<Vec<_>>().join(",")
    }

    async fn next_error(&mut self) -> String {
        let before = self.errors.len();
        self.until(|now| now.errors.len() > before).await;
        self.errors.last().unwrap().clone()
    }

    async fn next_list(&mut self) -> String {
        let before = self.lists;
        self.until(|now| now.lists > before).await;
        self.names()
    }
}

pub(crate) fn pod(name: &str) -> core::Pod {
    let metadata = core::ObjectMeta {
        name: name.into(),
        namespace: "default".into(),
        uid: format!("uid-{name}"),
        ..core::ObjectMeta::default()
    };
    let status = core::PodStatus { phase: "Running".into(), ..core::PodStatus::default() };
    core::Pod { metadata: Some(metadata), status: Some(status), ..core::Pod::default() }
}

fn ended(name: &str) -> core::Pod {
    let mut pod = pod(name);
    pod.status = Some(core::PodStatus { phase: "Failed".into(), ..core::PodStatus::default() });
    pod
}

#[tokio::test(start_paused = true)]
async fn pods_are_listed_and_then_followed() {
    let place = Place::new();
    let kubelet = SimPodsApi::start(place.socket()).unwrap();
    kubelet.set(&pod("b"));
    kubelet.set(&pod("a"));
    let mut listener = Listener::new(place.socket());
    assert_eq!(listener.next_list().await, "a,b");
    kubelet.set(&pod("c"));
    listener.until(|now| now.pods.contains_key("c")).await;
    kubelet.set(&ended("b"));
    listener.until(|now| now.pods["b"].phase == Phase::Failed).await;
    kubelet.remove(&pod("b"));
    listener.until(|now| !now.pods.contains_key("b")).await;
    assert_eq!((listener.names(), listener.errors.len()), ("a,c".into(), 0));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_finished_is_not_gone_before_its_object_is() {
    let place = Place::new();
    let kubelet = SimPodsApi::start(place.socket()).unwrap();
    kubelet.set(&pod("a"));
    kubelet.set(&pod("b"));
    let mut listener = Listener::new(place.socket());
    assert_eq!(listener.next_list().await, "a,b");
    let lists = listener.lists;
    kubelet.finish(&ended("a"));
    listener.until(|now| now.pods["a"].phase == Phase::Failed).await;
    assert_eq!((listener.names(), listener.lists), ("a,b".into(), lists));
    // Removed without an event.
    kubelet.remove_silently(&pod("a"));
    let before = Instant::now();
    assert_eq!(listener.next_list().await, "b");
    assert!(before.elapsed() < Duration::from_secs(70), "{:?}", before.elapsed());
    // The pod is already gone when it is queried.
    kubelet.finish(&ended("b"));
    kubelet.remove_silently(&pod("b"));
    listener.until(|now| now.pods.is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn who_is_cut_off_for_being_slow_hears_everything_anew() {
    let place = Place::new();
    let kubelet = SimPodsApi::start(place.socket()).unwrap();
    kubelet.set(&pod("a"));
    kubelet.set(&pod("b"));
    let mut listener = Listener::new(place.socket());
    assert_eq!(listener.next_list().await, "a,b");
    kubelet.end_watches();
    kubelet.remove(&pod("a"));
    let error = listener.next_error().await;
    assert!(error.contains("watch client channel closed"), "{error}");
    assert_eq!(listener.names(), "a,b", "what was known stays");
    assert_eq!(listener.next_list().await, "b");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_and_another_kubelet_are_survived() {
    let place = Place::new();
    let mut kubelet = SimPodsApi::start(place.socket()).unwrap();
    kubelet.set(&pod("a"));
    let mut listener = Listener::new(place.socket());
    assert_eq!(listener.next_list().await, "a");
    kubelet.cut_connections();
    listener.next_error().await;
    assert_eq!(listener.next_list().await, "a");
    kubelet.stop();
    kubelet.set(&pod("b"));
    // The first error may be about the connection, later ones are about the socket.
    listener.until(|now| now.errors.iter().any(|error| error.contains("nobody listens"))).await;
    assert_eq!(listener.names(), "a", "what was known stays");
    kubelet.restart().unwrap();
    kubelet.fail_with(Some(Status::failed_precondition("Kubelet is initializing")));
    listener.until(|now| now.errors.iter().any(|error| error.contains("Kubelet is initializing"))).await;
    assert_eq!(listener.names(), "a");
    kubelet.fail_with(None);
    assert_eq!(listener.next_list().await, "a,b");
}

#[tokio::test(start_paused = true)]
async fn a_lost_event_is_made_good() {
    let place = Place::new();
    let kubelet = SimPodsApi::start(place.socket()).unwrap();
    kubelet.set(&pod("a"));
    kubelet.set(&pod("b"));
    let mut listener = Listener::new(place.socket());
    assert_eq!(listener.next_list().await, "a,b");
    kubelet.set_silently(&pod("c"));
    kubelet.remove_silently(&pod("a"));
    let (before, watches) = (Instant::now(), kubelet.watch_calls());
    assert_eq!(listener.next_list().await, "b,c");
    let waited = before.elapsed();
    assert!((Duration::from_secs(120)..Duration::from_secs(300)).contains(&waited), "{waited:?}");
    assert_eq!((listener.errors.len(), kubelet.watch_calls() - watches), (0, 1), "nothing broke");
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_never_says_that_its_list_is_complete_is_understood() {
    let place = Place::new();
    let kubelet = SimPodsApi::start(place.socket()).unwrap();
    kubelet.set_sync_marker(false);
    kubelet.set(&pod("a"));
    kubelet.set(&pod("b"));
    let mut listener = Listener::new(place.socket());
    assert_eq!(listener.next_list().await, "a,b");
    kubelet.set(&pod("c"));
    listener.until(|now| now.pods.len() == 3).await;
    // Without the marker, the initial list cannot be distinguished from concurrent changes.
    kubelet.cut_connections();
    listener.next_error().await;
    let watches = kubelet.watch_calls();
    while kubelet.watch_calls() == watches {
        let heard = listener.events.next();
        assert!(tokio::time::timeout(Duration::from_millis(10), heard).await.is_err(), "it is listening");
    }
    kubelet.remove(&pod("a"));
    kubelet.remove(&pod("b"));
    kubelet.set(&pod("b"));
    kubelet.set(&pod("d"));
    assert_eq!(listener.next_list().await, "b,c,d");
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_has_just_started_takes_no_pod_away() {
    let place = Place::new();
    let mut kubelet = SimPodsApi::start(place.socket()).unwrap();
    for name in ["a", "b", "c", "d"] {
        kubelet.set(&pod(name));
    }
    let mut listener = Listener::new(place.socket());
    assert_eq!(listener.next_list().await, "a,b,c,d");
    // The kubelet has lost all pods and finds them again one by one; b is really gone.
    kubelet.stop();
    for name in ["a", "b", "c", "d"] {
        kubelet.remove_silently(&pod(name));
    }
    kubelet.restart().unwrap();
    let late = Instant::now() + Duration::from_secs(60);
    tokio::time::timeout_at(late, listener.until(|now| now.pods.len() < 4)).await.unwrap_err();
    kubelet.set(&ended("c"));
    listener.until(|now| now.pods["c"].phase == Phase::Failed).await;
    assert_eq!(listener.names(), "a,b,c,d");
    kubelet.set_silently(&pod("a"));
    kubelet.set(&pod("d"));
    kubelet.set(&pod("e"));
    assert_eq!(listener.next_list().await, "a,c,d,e");
    // A pod that the kubelet reports as deleted is gone at once.
    let before = Instant::now();
    kubelet.remove(&pod("a"));
    listener.until(|now| now.names() == "c,d,e").await;
    assert!(before.elapsed() < Duration::from_secs(1));
}

/// Kubelets from 1.37 on do this.
#[tokio::test(start_paused = true)]
async fn a_kubelet_that_said_that_it_did_not_know_its_pods_yet_is_believed_at_once() {
    let place = Place::new();
    let mut kubelet = SimPodsApi::start(place.socket()).unwrap();
    kubelet.set(&pod("a"));
    kubelet.set(&pod("b"));
    let mut listener = Listener::new(place.socket());
    assert_eq!(listener.next_list().await, "a,b");
    kubelet.stop();
    kubelet.remove_silently(&pod("b"));
    kubelet.fail_with(Some(tonic::Status::failed_precondition("Kubelet is initializing")));
    kubelet.restart().unwrap();
    listener.until(|now| now.errors.iter().any(|error| error.contains("initializing"))).await;
    assert_eq!(listener.names(), "a,b");
    kubelet.fail_with(None);
    let watches = kubelet.watch_calls();
    assert_eq!(listener.next_list().await, "a");
    assert_eq!(kubelet.watch_calls() - watches, 1, "no second look");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_gets_stuck_takes_no_pod_away() {
    let place = Place::new();
    let kubelet = SimPodsApi::start(place.socket()).unwrap();
    for name in ["a", "b", "c"] {
        kubelet.set(&pod(name));
    }
    let mut listener = Listener::new(place.socket());
    assert_eq!(listener.next_list().await, "a,b,c");
    let lists = listener.lists;
    kubelet.stall_after(Some(1));
    kubelet.cut_connections();
    listener.until(|now| now.errors.iter().any(|error| error.contains("did not continue"))).await;
    assert_eq!((listener.names(), listener.lists), ("a,b,c".into(), lists));
    kubelet.stall_after(None);
    assert_eq!(listener.next_list().await, "a,b,c");
}

#[tokio::test(start_paused = true)]
async fn garbage_costs_nothing_but_itself() {
    let place = Place::new();
    let kubelet = SimPodsApi::start(place.socket()).unwrap();
    kubelet.set(&pod("a"));
    let mut listener = Listener::new(place.socket());
    assert_eq!(listener.next_list().await, "a");
    let good = prost::Message::encode_to_vec(&pod("x"));
    for kind in [0, 1, 2, 3, 4, 99, -1] {
        kubelet.send_event(kind, vec![0xff; 100]);
        kubelet.send_event(kind, good[..good.len() - 3].to_vec());
        kubelet.send_event(kind, Vec::new());
    }
    kubelet.send_event(99, good);
    kubelet.set(&pod("b"));
    listener.until(|now| now.pods.contains_key("b")).await;
    assert_eq!((listener.names(), listener.lists, listener.errors.len()), ("a,b".into(), 1, 0));
}

#[tokio::test(start_paused = true)]
async fn every_reason_why_there_is_nothing_is_one_sentence() {
    let place = Place::new();
    let mut listener = Listener::new(place.socket());
    let error = listener.next_error().await;
    assert!(error.contains("there is no Pods API socket") && error.contains("1.36"), "{error}");
    std::fs::write(place.socket(), "a file").unwrap();
    let error = listener.next_error().await;
    assert!(error.contains("nobody listens on"), "{error}");
    std::fs::remove_file(place.socket()).unwrap();
    let kubelet = SimPodsApi::start(place.socket()).unwrap();
    for (status, words) in [
        (Status::unimplemented("unknown service v1alpha1.Pods"), "does not serve the Pods API"),
        (Status::resource_exhausted("rejected by rate limit"), "rejected by rate limit"),
        (Status::internal("error marshalling initial watch event pod"), "Internal: error marshalling"),
        (Status::unknown("disabled"), "Unknown: disabled"),
    ] {
        kubelet.fail_with(Some(status));
        listener.until(|now| now.errors.last().is_some_and(|error| error.contains(words))).await;
    }
    kubelet.fail_with(None);
    assert_eq!(listener.next_list().await, "");
    assert!(listener.errors.iter().all(|error| !error.contains('\n')), "{:?}", listener.errors);
}
