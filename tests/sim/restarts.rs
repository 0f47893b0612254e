//! Proxy, kubelet and pod source restart in any order while clients send requests. Clients see only
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
use numacast::kubelet::{Request, Client, ClientError, decode_list};
use numacast::proxy::Proxy;
use numacast::sim::api_server::{ApiServer, PODS};
use numacast::sim::kubelet::PodSpec;
use numacast::telemetry::registry::Registry;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tonic::Code;

use crate::support::SimNode;

/// Default number of rounds.
const ROUNDS: usize = 24;
/// Clients that send requests continuously.
const CLIENTS: usize = 8;
/// Approximate number of pods on the node.
const PODS_AT_ONCE: usize = 6;
/// Upper bound for the recovery once everything is up. It is normally much faster; this only fails a test
/// that hangs.
const PATIENCE: Duration = Duration::from_secs(60);

const GPUS: &str = "scheduling.koordinator.sh/device-allocated";

/// Pods by name, with the device that each has from its annotation.
type State = BTreeMap<String, Option<String>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Proxy,
    Kubelet,
    Source,
}

struct World {
    node: SimNode,
    server: ApiServer,
    config: Config,
    socket: PathBuf,
    running: RefCell<Option<Running>>,
    /// All states so far, the current one last.
    history: RefCell<Vec<State>>,
    right: RefCell<[usize; 4]>,
    unavailable: RefCell<BTreeMap<&'static str, usize>>,
}

/// A running proxy.
struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl World {
    async fn start() -> Self {
        let server = ApiServer::start_on_any_port(0).await.unwrap();
        server.add_node("worker").unwrap();
        let node = SimNode::start();
        let mut config = Config { node_name: "worker".into(), ..Config::default() };
        config.host.root = node.root().to_owned();
        config.proxy.fail_closed = true;
        let world = Self {
            socket: config.proxy_socket().path,
            node,
            server,
            config,
            running: RefCell::default(),
            history: RefCell::new(vec![State::default()]),
            right: RefCell::default(),
            unavailable: RefCell::default(),
        };
        for _ in 0..PODS_AT_ONCE {
            world.add();
        }
        let first = world.serve();
        world.running.replace(Some(first));
        world
    }

    /// Starts a new proxy, equivalent to a new process as seen from outside.
    fn serve(&self) -> Running {
        let (settings, sources) = (self.config.proxy_settings(), self.config.pod_sources());
        let client = self.server.client().unwrap();
        let cluster = Cluster::with_client(client, self.server.url(), Duration::from_secs(5));
        let proxy = Proxy::with_pod_sources(settings, sources, cluster, &mut Registry::default());
        let server = proxy.start().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(proxy.run(Some(server), async { drop(stopped.await) }));
        Running { stop, task }
    }

    /// Adds a pod with a new name; every second one has a device from its annotation.
    fn add(&self) {
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

    fn remove(&self, rng: &mut Rng) {
        let mut history = self.history.borrow_mut();
        let mut state = history.last().cloned().unwrap_or_default();
        let Some(name) = rng.choice(state.keys().cloned().collect::<Vec<_>>()) else { return };
        assert!(self.node.kubelet.stop_pod("default", &name));
        self.server.delete(&PODS, "default", &name);
        state.remove(&name);
        history.push(state);
    }

    async fn change(&self, rng: &mut Rng) {
        for _ in 0..rng.usize(1..5) {
            sleep(Duration::from_millis(rng.u64(..60))).await;
            let many = self.history.borrow().last().map_or(0, BTreeMap::len) >= PODS_AT_ONCE;
            if many { self.remove(rng) } else { self.add() }
        }
    }

    async fn restart(&self, part: Part, rng: &mut Rng) {
        sleep(Duration::from_millis(rng.u64(..80))).await;
        let down = Duration::from_millis(if rng.bool() { rng.u64(..150) } else { 0 });
        match part {
            Part::Proxy => self.restart_proxy(down, rng).await,
            Part::Kubelet => {
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
            Part::Source => {
                self.server.stop();
                sleep(down).await;
                self.server.resume().await.unwrap();
            }
        }
    }

    async fn restart_proxy(&self, down: Duration, rng: &mut Rng) {
        let old = self.running.take().unwrap();
        match rng.u8(..3) {
            0 => {
                drop(old.stop);
                old.task.await.unwrap();
                sleep(down).await;
                self.running.replace(Some(self.serve()));
            }
            1 => {
                old.task.abort();
                sleep(down).await;
                self.running.replace(Some(self.serve()));
            }
            _ => {
                // The new proxy starts before the old one ends.
                self.running.replace(Some(self.serve()));
                sleep(down).await;
                drop(old.stop);
                old.task.await.unwrap();
            }
        }
    }

    /// Sends requests continuously, sometimes on a new connection.
    async fn ask_on(&self, mut rng: Rng) {
        loop {
            let mut client = Client::new(self.socket.clone(), Duration::from_secs(20));
            for _ in 0..rng.usize(1..30) {
                self.ask_once(&mut client, &mut rng).await;
                sleep(Duration::from_millis(rng.u64(..20))).await;
            }
        }
    }

    /// Returns true if there was a response, after checking that it is correct.
    async fn ask_once(&self, client: &mut Client, rng: &mut Rng) -> bool {
        let before = self.history.borrow().len() - 1;
        let (kind, name) = (rng.usize(..4), rng.choice(self.known()));
        let ask = match (kind, &name) {
            (0, _) | (2, None) => Request::List,
            (1, _) => Request::ListV1alpha1,
            (2, Some(name)) => Request::Get { namespace: "default".to_owned(), name: name.clone() },
            _ => Request::Allocatable,
        };
        let answer = client.request(&ask).await;
        let history = self.history.borrow();
        let states = &history[before..];
        match answer {
            Ok((bytes, _)) => match &ask {
                Request::Allocatable => assert!(!bytes.is_empty()),
                Request::Get { name, .. } => assert_one(name, &told(&bytes), states),
                _ => assert_one_of(&told(&bytes), states),
            },
            Err(refusal) => {
                let status = &refusal.status;
                let gone = |name: &String| states.iter().any(|state| !state.contains_key(name));
                match (&ask, status.code()) {
                    (Request::Get { name, .. }, Code::Unknown) if status.message().ends_with("not found") => {
                        assert!(gone(name), "{name} is there: {status:?}");
                    }
                    (_, Code::Unavailable) => {
                        // The socket always exists, and no client is kept waiting.
                        let late = ClientError::Deadline {
                            path: self.socket.clone(),
                            call: ask.method(),
                            after: Duration::from_secs(20),
                        };
                        assert_ne!(refusal.error, late);
                        assert_ne!(refusal.error, ClientError::NoSocket(self.socket.clone()));
                        *self.unavailable.borrow_mut().entry(refusal.error.kind()).or_default() += 1;
                        return false;
                    }
                    _ => panic!("{ask:?}: {refusal:?}"),
                }
            }
        }
        self.right.borrow_mut()[kind] += 1;
        true
    }

    fn known(&self) -> Vec<String> {
        self.history.borrow().last().map_or_else(Vec::new, |state| state.keys().cloned().collect())
    }

    /// Waits until, with everything up, every request gets a response again.
    async fn recovered(&self, rng: &mut Rng) {
        let start = Instant::now();
        let mut client = Client::new(self.socket.clone(), Duration::from_secs(20));
        let mut good = 0;
        while good < 8 {
            assert!(start.elapsed() < PATIENCE, "no answer for {PATIENCE:?}: {:?}", client.list().await);
            good = if self.ask_once(&mut client, rng).await { good + 1 } else { 0 };
            sleep(Duration::from_millis(5)).await;
        }
    }

    async fn go_through(&self, rounds: usize, seed: u64) {
        for round in 0..rounds {
            let seed = seed.wrapping_add(round as u64);
            eprintln!("NUMACAST_SEED={seed}");
            let mut rng = Rng::with_seed(seed);
            let mut parts = vec![Part::Proxy, Part::Kubelet, Part::Source];
            rng.shuffle(&mut parts);
            parts.truncate(rng.usize(1..=3));
            let mut of_changes = rng.fork();
            let restarts = parts.into_iter().map(|part| {
                let mut rng = rng.fork();
                async move { self.restart(part, &mut rng).await }
            });
            let restarts = join_all(restarts.collect::<Vec<_>>());
            tokio::join!(restarts, self.change(&mut of_changes));
            self.recovered(&mut rng).await;
        }
    }
}

/// Decodes pods and their devices from a response.
fn told(bytes: &prost::bytes::Bytes) -> State {
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

/// Reports whether a pod's device is correct. The source may have forgotten the device of a pod that is being
/// deleted.
fn fits(told: Option<&String>, was: Option<&String>, is_going: bool) -> bool {
    told == was || (is_going && told.is_none())
}

fn assert_one(name: &String, told: &State, states: &[State]) {
    let going = states.iter().any(|state| !state.contains_key(name));
    let was = states.iter().find_map(|state| state.get(name)).unwrap();
    assert_eq!(told.keys().collect::<Vec<_>>(), [name]);
    assert!(fits(told[name].as_ref(), was.as_ref(), going), "{name}: {:?} is told, not {was:?}", told[name]);
}

fn assert_one_of(told: &State, states: &[State]) {
    let matches = |state: &State| {
        state.len() == told.len()
            && state.iter().all(|(name, was)| {
                let going = states.iter().any(|state| !state.contains_key(name));
                told.get(name).is_some_and(|told| fits(told.as_ref(), was.as_ref(), going))
            })
    };
    assert!(states.iter().any(matches), "{told:?} was never true since it was asked for: {states:?}");
}

/// Checks the socket until `done`; returns the number of checks and how often it was missing.
fn watch(socket: &Path, done: &AtomicBool) -> (usize, usize) {
    let (mut looks, mut missing) = (0, 0);
    while !done.load(Ordering::Relaxed) {
        let is_there = std::fs::symlink_metadata(socket).is_ok_and(|meta| meta.file_type().is_socket());
        looks += 1;
        missing += usize::from(!is_there);
        std::thread::sleep(Duration::from_micros(200));
    }
    (looks, missing)
}

#[tokio::test]
async fn clients_see_unavailable_and_right_answers_whatever_restarts() {
    let seed =
        std::env::var("NUMACAST_SEED").map_or_else(|_| fastrand::u64(..), |text| text.parse().unwrap());
    let rounds = std::env::var("NUMACAST_RESTARTS").map_or(ROUNDS, |text| text.parse().unwrap());
    let world = World::start().await;
    let mut rng = Rng::with_seed(seed);
    let done = Arc::new(AtomicBool::new(false));
    let watcher = std::thread::spawn({
        let (socket, done) = (world.socket.clone(), Arc::clone(&done));
        move || watch(&socket, &done)
    });
    world.recovered(&mut rng).await;
    let start = Instant::now();
    let clients = join_all((0..CLIENTS).map(|_| world.ask_on(rng.fork())));
    tokio::select! {
        _ = clients => {}
        () = world.go_through(rounds, seed) => {}
    }
    done.store(true, Ordering::Relaxed);
    let (looks, missing) = watcher.join().unwrap();
    assert_eq!(missing, 0, "of {looks} looks at the socket so many found none");
    let (right, unavailable) = (world.right.borrow(), world.unavailable.borrow());
    eprintln!(
        "{rounds} rounds in {:?}: right answers to List, v1alpha1 List, Get and Allocatable {right:?}; unavailable \
         {unavailable:?}; {looks} looks at the socket",
        start.elapsed()
    );
    assert!(right.iter().all(|count| *count > rounds) && !unavailable.is_empty());
}
