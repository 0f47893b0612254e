//! Proxy, kubelet and pod source restart in any order while clients send requests. Clients get only
//! `Unavailable` and correct responses, and the socket always exists. `NUMACAST_RESTARTS` sets the number of
//! rounds.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use futures::future::join_all;
use numacast::cluster::Cluster;
use numacast::config::Config;
use numacast::kubelet::{ClientError, Request, decode_list};
use numacast::proxy::Proxy;
use numacast::telemetry::registry::Registry;
use numacast_sim::api_server::{ApiServer, PODS};
use numacast_sim::kubelet::PodSpec;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tonic::Code;

use crate::support::{Client, Node};

/// Default number of rounds.
const ROUNDS: usize = 24;
/// Clients that send requests continuously.
const CLIENTS: usize = 8;
/// Approximate number of pods on the node.
const POD_COUNT: usize = 6;
/// Upper bound for the recovery once everything is up, which is normally much faster.
const TIMEOUT: Duration = Duration::from_secs(60);

const GPUS: &str = "scheduling.koordinator.sh/device-allocated";

/// Pods by name, with the device that each has from its annotation.
type State = BTreeMap<String, Option<String>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Component {
    Proxy,
    Kubelet,
    PodSource,
}

struct Environment {
    node: Node,
    server: ApiServer,
    config: Config,
    socket: PathBuf,
    proxy: RefCell<Option<RunningProxy>>,
    /// All states so far, the current one last.
    history: RefCell<Vec<State>>,
    /// Number of correct responses by kind of request.
    correct: RefCell<[usize; 4]>,
    /// Number of errors by kind.
    unavailable: RefCell<BTreeMap<&'static str, usize>>,
}

struct RunningProxy {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Environment {
    async fn start() -> Self {
        let server = ApiServer::start_on_any_port(0).await.unwrap();
        server.add_node("worker").unwrap();
        let node = Node::start();
        let mut config = Config { node_name: "worker".into(), ..Config::default() };
        config.host.root = node.root().to_owned();
        config.proxy.fail_closed = true;
        let env = Self {
            socket: config.proxy_socket().path,
            node,
            server,
            config,
            proxy: RefCell::default(),
            history: RefCell::new(vec![State::default()]),
            correct: RefCell::default(),
            unavailable: RefCell::default(),
        };
        for _ in 0..POD_COUNT {
            env.add_pod();
        }
        let first = env.start_proxy();
        env.proxy.replace(Some(first));
        env
    }

    /// Starts a new proxy, equivalent to a new process as seen from outside.
    fn start_proxy(&self) -> RunningProxy {
        let (settings, sources) = (self.config.proxy_settings(), self.config.pod_sources());
        let client = self.server.client().unwrap();
        let cluster = Cluster::with_client(client, self.server.url(), Duration::from_secs(5));
        let proxy = Proxy::with_pod_sources(settings, sources, cluster, &mut Registry::default());
        let server = proxy.start().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(proxy.run(Some(server), async { drop(stopped.await) }));
        RunningProxy { stop, task }
    }

    /// Adds a pod with a new name; every second one has a device from its annotation.
    fn add_pod(&self) {
        let mut history = self.history.borrow_mut();
        let number = history.len();
        let name = format!("pod-{number}");
        let id = number.is_multiple_of(2).then(|| format!("GPU-{number}"));
        let mut object = PodSpec::new(&name).object("worker", "Running");
        if let Some(id) = &id {
            let text = json!({"gpu": [{"minor": 0, "id": id}]}).to_string();
            object["metadata"]["annotations"] = json!({ GPUS: text });
        }
        self.server.put(&PODS, object).unwrap();
        self.node.kubelet.add_pod(PodSpec::new(&name)).unwrap();
        let mut state = history.last().cloned().unwrap_or_default();
        state.insert(name, id);
        history.push(state);
    }

    fn remove_pod(&self, rng: &mut Rng) {
        let mut history = self.history.borrow_mut();
        let mut state = history.last().cloned().unwrap_or_default();
        let Some(name) = rng.choice(state.keys().cloned().collect::<Vec<_>>()) else { return };
        assert!(self.node.kubelet.stop_pod("default", &name));
        self.server.delete(&PODS, "default", &name);
        state.remove(&name);
        history.push(state);
    }

    async fn change_pods(&self, rng: &mut Rng) {
        for _ in 0..rng.usize(1..5) {
            sleep(Duration::from_millis(rng.u64(..60))).await;
            let is_full = self.history.borrow().last().map_or(0, BTreeMap::len) >= POD_COUNT;
            if is_full { self.remove_pod(rng) } else { self.add_pod() }
        }
    }

    async fn restart(&self, component: Component, rng: &mut Rng) {
        sleep(Duration::from_millis(rng.u64(..80))).await;
        let down = Duration::from_millis(if rng.bool() { rng.u64(..150) } else { 0 });
        match component {
            Component::Proxy => self.restart_proxy(down, rng).await,
            Component::Kubelet => {
                if rng.bool() {
                    self.node.kubelet.stop()
                } else {
                    self.node.kubelet.kill()
                }
                sleep(down).await;
                self.node.kubelet.boot().unwrap();
                // Before it is ready the kubelet would omit pods that it does not know yet, which is correct
                // but not tested here.
                self.node.kubelet.set_ready(true, true);
            }
            Component::PodSource => {
                self.server.stop();
                sleep(down).await;
                self.server.resume();
            }
        }
    }

    async fn restart_proxy(&self, down: Duration, rng: &mut Rng) {
        let old = self.proxy.take().unwrap();
        match rng.u8(..3) {
            0 => {
                drop(old.stop);
                old.task.await.unwrap();
                sleep(down).await;
                self.proxy.replace(Some(self.start_proxy()));
            }
            1 => {
                old.task.abort();
                sleep(down).await;
                self.proxy.replace(Some(self.start_proxy()));
            }
            _ => {
                // The new proxy starts before the old one ends.
                self.proxy.replace(Some(self.start_proxy()));
                sleep(down).await;
                drop(old.stop);
                old.task.await.unwrap();
            }
        }
    }

    /// Sends requests continuously, sometimes on a new connection.
    async fn send_requests(&self, mut rng: Rng) {
        loop {
            let mut client = Client::new(self.socket.clone(), Duration::from_secs(20));
            for _ in 0..rng.usize(1..30) {
                self.send_request(&mut client, &mut rng).await;
                sleep(Duration::from_millis(rng.u64(..20))).await;
            }
        }
    }

    /// Sends one request and checks the response. Returns false if the proxy is unavailable.
    async fn send_request(&self, client: &mut Client, rng: &mut Rng) -> bool {
        let before = self.history.borrow().len() - 1;
        let (kind, name) = (rng.usize(..4), rng.choice(self.pod_names()));
        let request = match (kind, &name) {
            (0, _) | (2, None) => Request::List,
            (1, _) => Request::ListV1alpha1,
            (2, Some(name)) => Request::Get { namespace: "default".to_owned(), name: name.clone() },
            _ => Request::Allocatable,
        };
        let response = client.request(&request).await;
        let history = self.history.borrow();
        let states = &history[before..];
        match response {
            Ok((bytes, _)) => match &request {
                Request::Allocatable => assert!(!bytes.is_empty()),
                Request::Get { name, .. } => check_pod(name, &decode(&bytes), states),
                _ => check_list(&decode(&bytes), states),
            },
            Err(error) => {
                let status = &error.status;
                let is_removed = |name: &String| states.iter().any(|state| !state.contains_key(name));
                match (&request, status.code()) {
                    (Request::Get { name, .. }, Code::Unknown) if status.message().ends_with("not found") => {
                        assert!(is_removed(name), "{name} exists: {status:?}");
                    }
                    (_, Code::Unavailable) => {
                        // The socket always exists, and no client is kept waiting.
                        let late = ClientError::Deadline {
                            path: self.socket.clone(),
                            call: request.method(),
                            after: Duration::from_secs(20),
                        };
                        assert_ne!(error.error, late);
                        assert_ne!(error.error, ClientError::NoSocket(self.socket.clone()));
                        *self.unavailable.borrow_mut().entry(error.error.kind()).or_default() += 1;
                        return false;
                    }
                    _ => panic!("{request:?}: {error:?}"),
                }
            }
        }
        self.correct.borrow_mut()[kind] += 1;
        true
    }

    fn pod_names(&self) -> Vec<String> {
        self.history.borrow().last().map_or_else(Vec::new, |state| state.keys().cloned().collect())
    }

    /// Waits until every request gets a response again. Everything must be up.
    async fn wait_until_recovered(&self, rng: &mut Rng) {
        let start = Instant::now();
        let mut client = Client::new(self.socket.clone(), Duration::from_secs(20));
        let mut responses = 0;
        while responses < 8 {
            assert!(start.elapsed() < TIMEOUT, "no response for {TIMEOUT:?}: {:?}", client.list().await);
            responses = if self.send_request(&mut client, rng).await { responses + 1 } else { 0 };
            sleep(Duration::from_millis(5)).await;
        }
    }

    async fn run(&self, rounds: usize, seed: u64) {
        for round in 0..rounds {
            let seed = seed.wrapping_add(round as u64);
            eprintln!("NUMACAST_SEED={seed}");
            let mut rng = Rng::with_seed(seed);
            let mut components = vec![Component::Proxy, Component::Kubelet, Component::PodSource];
            rng.shuffle(&mut components);
            components.truncate(rng.usize(1..=3));
            let mut of_changes = rng.fork();
            let restarts = components.into_iter().map(|component| {
                let mut rng = rng.fork();
                async move { self.restart(component, &mut rng).await }
            });
            let restarts = join_all(restarts.collect::<Vec<_>>());
            tokio::join!(restarts, self.change_pods(&mut of_changes));
            self.wait_until_recovered(&mut rng).await;
        }
    }
}

/// Decodes pods and their devices from a response.
fn decode(bytes: &prost::bytes::Bytes) -> State {
    let pods = decode_list(bytes.clone()).unwrap().pods;
    let device = |pod: &numacast::kubelet::PodUsage| {
        let ids: Vec<&String> = pod
            .containers
            .iter()
            .flat_map(|container| &container.devices)
            .flat_map(|group| &group.ids)
            .collect();
        assert!(ids.len() <= 1, "{pod:?}");
        ids.first().map(|id| (*id).clone())
    };
    pods.iter().map(|pod| (pod.name.clone(), device(pod))).collect()
}

/// Returns true if a pod's device is correct. The pod source may already lack a pod that was removed
/// meanwhile.
fn is_correct(device: Option<&String>, expected: Option<&String>, is_removed: bool) -> bool {
    device == expected || (is_removed && device.is_none())
}

/// Checks a response to `Get`. `states` are those since the request.
fn check_pod(name: &String, pods: &State, states: &[State]) {
    let is_removed = states.iter().any(|state| !state.contains_key(name));
    let expected = states.iter().find_map(|state| state.get(name)).unwrap();
    assert_eq!(pods.keys().collect::<Vec<_>>(), [name]);
    let device = &pods[name];
    assert!(
        is_correct(device.as_ref(), expected.as_ref(), is_removed),
        "{name} has {device:?} instead of {expected:?}"
    );
}

/// Checks a response to `List`, which must match one of the states since the request.
fn check_list(pods: &State, states: &[State]) {
    let matches = |state: &State| {
        state.len() == pods.len()
            && state.iter().all(|(name, expected)| {
                let is_removed = states.iter().any(|state| !state.contains_key(name));
                pods.get(name)
                    .is_some_and(|device| is_correct(device.as_ref(), expected.as_ref(), is_removed))
            })
    };
    assert!(states.iter().any(matches), "{pods:?} matches no state since the request: {states:?}");
}

/// Checks the socket until `done`; returns the number of checks and how often it was missing.
fn watch_socket(socket: &Path, done: &AtomicBool) -> (usize, usize) {
    let (mut checks, mut missing) = (0, 0);
    while !done.load(Ordering::Relaxed) {
        let exists = std::fs::symlink_metadata(socket).is_ok_and(|meta| meta.file_type().is_socket());
        checks += 1;
        missing += usize::from(!exists);
        std::thread::sleep(Duration::from_micros(200));
    }
    (checks, missing)
}

#[tokio::test]
async fn clients_get_unavailable_or_correct_responses_whatever_restarts() {
    let seed = numacast_sim::seed();
    let rounds = std::env::var("NUMACAST_RESTARTS").map_or(ROUNDS, |text| text.parse().unwrap());
    let env = Environment::start().await;
    let mut rng = Rng::with_seed(seed);
    let done = Arc::new(AtomicBool::new(false));
    let watcher = std::thread::spawn({
        let (socket, done) = (env.socket.clone(), Arc::clone(&done));
        move || watch_socket(&socket, &done)
    });
    env.wait_until_recovered(&mut rng).await;
    let start = Instant::now();
    let clients = join_all((0..CLIENTS).map(|_| env.send_requests(rng.fork())));
    tokio::select! {
        _ = clients => {}
        () = env.run(rounds, seed) => {}
    }
    done.store(true, Ordering::Relaxed);
    let (checks, missing) = watcher.join().unwrap();
    assert_eq!(missing, 0, "missing in some of {checks} checks of the socket");
    let (correct, unavailable) = (env.correct.borrow(), env.unavailable.borrow());
    eprintln!(
        "{rounds} rounds in {:?}: correct responses to List, v1alpha1 List, Get and Allocatable {correct:?}; \
         unavailable {unavailable:?}; {checks} checks of the socket",
        start.elapsed()
    );
    assert!(correct.iter().all(|count| *count > rounds));
    // A single round may cause no error.
    assert!(rounds < ROUNDS || !unavailable.is_empty());
}
