//! Random schedules in virtual time: no response is older than its request, and the rate and concurrency
//! limits towards the kubelet hold. `NUMACAST_SCHEDULES` sets their number, `NUMACAST_SEED` repeats one that
//! failed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use futures::future::join_all;
use numacast::kubelet::{Request, Caller, ClientError, SharedResponse, RequestError, SharedClient, decode_allocatable, decode_list};
use numacast::sim::kubelet::{Age, Call, Fault, Options, PodSpec, SimKubelet};
use numacast::sim::machine::{Device, MachineSpec};
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

use super::{Seen, TIMEOUT, busiest_second};
use crate::support::machine;

/// Default number of schedules.
const SCHEDULES: u64 = 60;
/// Duration of each schedule.
const LENGTH: Duration = Duration::from_secs(3);
/// Number of distinct pod names, so that names are reused.
const PODS: u64 = 4;
/// A resource whose device ID contains the time of its registration.
const STAMP: &str = "example.com/stamp";

/// What may happen in a schedule.
#[derive(Debug)]
struct Weather {
    age: Age,
    proxys: usize,
    agent: bool,
    refusals: bool,
    /// Restarts, hanging calls, broken connections.
    storms: bool,
}

/// The kubelet's state: the change numbers at which each running pod and the device were created.
#[derive(Clone, Debug, Default, PartialEq)]
struct State {
    pods: BTreeMap<String, u64>,
    device: u64,
}

struct World {
    kubelet: SimKubelet,
    upstream: SharedClient,
    weather: Weather,
    /// All states so far, the current one last.
    history: RefCell<Vec<State>>,
    ends: Instant,
    tally: Cell<Tally>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    answers: usize,
    /// Responses during whose request the state changed.
    moved: usize,
    dropped: usize,
    refused: usize,
    unavailable: usize,
    calls: usize,
    most: usize,
    busiest: usize,
}

impl Weather {
    fn of(rng: &mut Rng) -> Self {
        Self {
            age: [Age::V1_34, Age::V1_34, Age::V1_37, Age::V1_29, Age::V1_23][rng.usize(..5)],
            proxys: rng.usize(2..12),
            agent: rng.bool(),
            refusals: rng.bool(),
            storms: rng.u8(..3) == 0,
        }
    }
}

impl World {
    fn start(spec: &MachineSpec, root: &Path, weather: Weather, seen: &Arc<Seen>) -> Self {
        let options = Options {
            age: weather.age,
            release_lag: Duration::ZERO,
            // The limiter uses the real clock; its rejections are injected as faults instead.
            limited: false,
            ..Options::default()
        };
        let kubelet = SimKubelet::start(spec, root, options).unwrap();
        kubelet.traffic();
        let upstream = SharedClient::start(kubelet.socket(), TIMEOUT, seen.clone());
        let history = RefCell::new(vec![State::default()]);
        let world = Self {
            kubelet,
            upstream,
            weather,
            history,
            ends: Instant::now() + LENGTH,
            tally: Cell::default(),
        };
        world.change(&mut Rng::with_seed(0), true);
        world
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.ends
    }

    fn count(&self, what: impl FnOnce(&mut Tally)) {
        let mut tally = self.tally.get();
        what(&mut tally);
        self.tally.set(tally);
    }

    /// Starts or stops a pod, or replaces the device. Atomic for all observers.
    fn change(&self, rng: &mut Rng, device: bool) {
        let mut history = self.history.borrow_mut();
        let number = history.len() as u64;
        let mut state = history.last().cloned().unwrap_or_default();
        let name = format!("pod-{}", rng.u64(..PODS));
        if device {
            state.device = number;
            self.offer(number);
        } else if state.pods.remove(&name).is_some() {
            assert!(self.kubelet.stop_pod("default", &name));
        } else {
            let mut pod = PodSpec::new(&name);
            pod.uid = format!("uid-{number}");
            pod.containers[0].name = format!("made-{number}");
            self.kubelet.announce_pod(pod).unwrap();
            state.pods.insert(name, number);
        }
        history.push(state);
    }

    fn offer(&self, number: u64) {
        let device = Device { id: format!("made-{number}"), numa: vec![0], ..Device::default() };
        self.kubelet.offer_devices(STAMP, &[device]);
    }

    /// Changes the node and injects faults until the schedule ends.
    async fn go_on(&self, mut rng: Rng) {
        while !self.is_over() {
            sleep(Duration::from_micros(rng.u64(..60_000))).await;
            match rng.u8(..12) {
                0..5 => self.change(&mut rng, false),
                5..7 => self.change(&mut rng, true),
                7..10 => self.delay(&mut rng),
                10 if self.weather.refusals => {
                    let words = Fault::Status(Code::ResourceExhausted, "rejected by rate limit".into());
                    self.kubelet.fail_next(any_call(&mut rng), rng.usize(1..4), &words);
                }
                11 if self.weather.storms => self.storm(&mut rng).await,
                _ => {}
            }
        }
    }

    fn delay(&self, rng: &mut Rng) {
        let delay = Duration::from_micros(rng.u64(..150_000));
        let fault = if rng.bool() { Fault::Late(delay) } else { Fault::Delay(delay) };
        self.kubelet.fail_next(any_call(rng), rng.usize(1..4), &fault);
    }

    async fn storm(&self, rng: &mut Rng) {
        match rng.u8(..4) {
            0 => self.kubelet.cut_connections(),
            1 => self.kubelet.fail_next(any_call(rng), 1, &Fault::CutShort),
            2 => self.kubelet.fail_next(any_call(rng), 1, &Fault::Hang),
            _ => {
                if rng.bool() {
                    self.kubelet.stop()
                } else {
                    self.kubelet.kill()
                }
                sleep(Duration::from_micros(rng.u64(..100_000))).await;
                if rng.bool() {
                    self.kubelet.set_age([Age::V1_34, Age::V1_29][rng.usize(..2)]);
                }
                self.kubelet.boot().unwrap();
                self.kubelet.set_ready(true, true);
                // The plugin registers at once, as seen by all observers.
                self.offer(self.history.borrow().last().unwrap().device);
            }
        }
    }

    async fn ask_on(&self, mut rng: Rng, asker: Caller) {
        while !self.is_over() {
            let pause = match asker {
                Caller::Proxy => rng.u64(..40_000) * u64::from(rng.bool()),
                Caller::Agent => 100_000 + rng.u64(..100_000),
            };
            sleep(Duration::from_micros(pause)).await;
            self.ask_once(&mut rng, asker).await;
        }
    }

    async fn ask_once(&self, rng: &mut Rng, asker: Caller) {
        let ask = match rng.u8(..8) {
            0..3 => Request::List,
            3..6 => super::get(&format!("pod-{}", rng.u64(..PODS))),
            6 => Request::ListV1alpha1,
            _ => Request::Allocatable,
        };
        let patience = if rng.u8(..6) == 0 { rng.u64(..30_000) } else { u64::MAX >> 1 };
        let (asked, before) = (Instant::now(), self.history.borrow().len() - 1);
        let answer = self.upstream.request(ask.clone(), asker);
        let Ok(answer) = timeout(Duration::from_micros(patience), answer).await else {
            return self.count(|tally| tally.dropped += 1);
        };
        assert!(asked.elapsed() <= 2 * TIMEOUT, "{ask:?} took {:?}", asked.elapsed());
        match told(&ask, answer) {
            Told::Answer(matches, started) => {
                assert!(started >= asked, "{ask:?} is answered by a call from before");
                let history = self.history.borrow();
                let fits: Vec<bool> = history[before..].iter().map(matches).collect();
                assert!(fits.contains(&true), "{ask:?}: an answer that was not true since it was asked");
                let moved = fits.contains(&false);
                self.count(|tally| tally.moved += usize::from(moved));
                self.count(|tally| tally.answers += 1);
            }
            Told::Limited => {
                // A call behind a hanging one may have no time left for a retry.
                let heard = asker == Caller::Agent || self.weather.storms;
                assert!(heard, "the proxy's clients do not hear of the limiter");
                self.count(|tally| tally.refused += 1);
            }
            Told::Unavailable(sentence) => {
                assert!(self.weather.storms, "{ask:?}: {sentence}");
                self.count(|tally| tally.unavailable += 1);
            }
        }
    }
}

enum Told {
    /// The states that the response matches, and the start of its call.
    Answer(Box<dyn Fn(&State) -> bool>, Instant),
    Limited,
    Unavailable(String),
}

fn told(ask: &Request, answer: Result<Arc<SharedResponse>, RequestError>) -> Told {
    match (ask, answer) {
        (Request::List | Request::ListV1alpha1, Ok(flight)) => {
            let pods = pods(&flight);
            Told::Answer(Box::new(move |state| state.pods == pods), flight.started)
        }
        (Request::Get { name, .. }, Ok(flight)) => {
            let (pods, name) = (pods(&flight), name.clone());
            assert_eq!(pods.len(), 1);
            let fits =
                move |state: &State| state.pods.get(&name) == pods.get(&name) && pods.contains_key(&name);
            Told::Answer(Box::new(fits), flight.started)
        }
        (Request::Allocatable, Ok(flight)) => {
            let devices = decode_allocatable(flight.bytes.clone()).unwrap().devices;
            let stamp = devices.iter().find(|group| group.resource == STAMP).map(|group| made(&group.ids[0]));
            Told::Answer(Box::new(move |state| Some(state.device) == stamp), flight.started)
        }
        (_, Err(RequestError { error: ClientError::RateLimited(_), .. })) => Told::Limited,
        (_, Err(refusal)) if refusal.status.code() == Code::Unavailable => {
            Told::Unavailable(refusal.status.message().to_owned())
        }
        (Request::Get { name, .. }, Err(refusal)) => {
            let words = format!("pod {name} in namespace default not found");
            assert_eq!((refusal.status.code(), refusal.status.message()), (Code::Unknown, &*words));
            let name = name.clone();
            // A refusal carries no start time.
            Told::Answer(Box::new(move |state| !state.pods.contains_key(&name)), Instant::now())
        }
        (ask, Err(refusal)) => panic!("{ask:?}: {refusal:?}"),
    }
}

fn pods(flight: &SharedResponse) -> BTreeMap<String, u64> {
    let pods = decode_list(flight.bytes.clone()).unwrap().pods;
    pods.into_iter().map(|pod| (pod.name, made(&pod.containers[0].name))).collect()
}

fn made(text: &str) -> u64 {
    text.strip_prefix("made-").unwrap().parse().unwrap()
}

fn any_call(rng: &mut Rng) -> Call {
    [Call::List, Call::Allocatable, Call::Get][rng.usize(..3)]
}

async fn run(spec: &MachineSpec, seed: u64) -> Tally {
    let mut rng = Rng::with_seed(seed);
    // Seeds the random delays.
    fastrand::seed(seed);
    let (dir, seen) = (tempfile::tempdir().unwrap(), Arc::new(Seen::default()));
    let world = World::start(spec, dir.path(), Weather::of(&mut rng), &seen);
    let agents = usize::from(world.weather.agent);
    let askers = [vec![Caller::Proxy; world.weather.proxys], vec![Caller::Agent; agents]].concat();
    let askers = join_all(askers.into_iter().map(|asker| world.ask_on(rng.fork(), asker)));
    let changes = Rng::with_seed(seed ^ 1);
    tokio::join!(world.go_on(changes), askers);
    let (traffic, mut tally) = (world.kubelet.traffic(), world.tally.get());
    tally.most = seen.calls().most;
    assert!(tally.most <= 2, "{} calls in flight", tally.most);
    // An abandoned connection may have calls whose end its kubelet has not seen yet.
    if !world.weather.storms {
        assert!(traffic.all_at_once <= 2, "{} calls at once", traffic.all_at_once);
        assert!(traffic.at_once.values().all(|at_once| *at_once <= 1), "{:?}", traffic.at_once);
    }
    tally.calls = traffic.calls.len();
    tally.busiest = busiest_second(&traffic.calls.into_iter().map(|(_, at)| at).collect::<Vec<_>>());
    // The agent has a budget of its own: here at most ten requests per second with at most two calls each.
    let agents = if world.weather.agent { 20 } else { 0 };
    assert!(tally.busiest <= 30 + agents, "{} calls in one second", tally.busiest);
    tally
}

#[test]
fn no_answer_is_older_than_its_question() {
    let seed =
        std::env::var("NUMACAST_SEED").map_or_else(|_| fastrand::u64(..), |text| text.parse().unwrap());
    let schedules = std::env::var("NUMACAST_SCHEDULES").map_or(SCHEDULES, |text| text.parse().unwrap());
    let spec = machine("two-by-eight");
    let mut sum = Tally::default();
    for number in 0..schedules {
        let seed = seed.wrapping_add(number);
        eprintln!("NUMACAST_SEED={seed}");
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let tally = runtime.block_on(run(&spec, seed));
        sum = Tally {
            answers: sum.answers + tally.answers,
            moved: sum.moved + tally.moved,
            dropped: sum.dropped + tally.dropped,
            refused: sum.refused + tally.refused,
            unavailable: sum.unavailable + tally.unavailable,
            calls: sum.calls + tally.calls,
            most: sum.most.max(tally.most),
            busiest: sum.busiest.max(tally.busiest),
        };
    }
    eprintln!("{schedules} schedules: {sum:?}");
    if schedules >= SCHEDULES {
        // The schedules were eventful enough.
        assert!(sum.moved * 20 > sum.answers, "{sum:?}");
        assert!(sum.dropped > 0 && sum.unavailable > 0 && sum.most == 2, "{sum:?}");
    }
}
