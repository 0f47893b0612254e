//! Random schedules in virtual time: no response is older than its request, and the limits of rate and
//! concurrency are kept. `NUMACAST_SCHEDULES` sets their number, `NUMACAST_SEED` repeats one that
//! failed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use futures::future::join_all;
use numacast::kubelet::{
    Caller, ClientError, Request, RequestError, SharedClient, SharedResponse, decode_allocatable, decode_list,
};
use numacast_sim::kubelet::{Call, Fault, KubeletVersion, Options, PodSpec, SimKubelet};
use numacast_sim::machine::{Device, MachineSpec};
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

use super::fixture::{CallLog, TIMEOUT, busiest_second, get};
use crate::support::machine;

/// Default number of schedules.
const SCHEDULES: u64 = 60;
/// Duration of each schedule.
const LENGTH: Duration = Duration::from_secs(3);
/// Number of distinct pod names, so that names are reused.
const PODS: u64 = 4;
/// Kubelet versions; the first is twice as likely.
const VERSIONS: [KubeletVersion; 5] = [
    KubeletVersion::V1_34,
    KubeletVersion::V1_34,
    KubeletVersion::V1_37,
    KubeletVersion::V1_29,
    KubeletVersion::V1_23,
];
/// A resource whose device ID contains the time of its registration.
const STAMP: &str = "example.com/stamp";

/// The participants and faults of a schedule.
#[derive(Debug)]
struct Setup {
    version: KubeletVersion,
    /// Number of concurrent clients of the proxy.
    clients: usize,
    agent: bool,
    /// Rejections by the rate limiter.
    rejections: bool,
    /// Restarts, hanging calls, broken connections.
    outages: bool,
}

/// The kubelet's state: the change numbers at which each running pod and the device were created.
#[derive(Clone, Debug, Default, PartialEq)]
struct State {
    pods: BTreeMap<String, u64>,
    device: u64,
}

struct Environment {
    kubelet: SimKubelet,
    client: SharedClient,
    setup: Setup,
    /// All states so far, the current one last.
    history: RefCell<Vec<State>>,
    ends: Instant,
    counts: Cell<Counts>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    responses: usize,
    /// Responses during whose request the state changed.
    concurrent: usize,
    dropped: usize,
    rejected: usize,
    unavailable: usize,
    calls: usize,
    /// Maximum number of calls in flight.
    max_in_flight: usize,
    /// Maximum number of calls in a second.
    busiest: usize,
}

impl Setup {
    fn random(rng: &mut Rng) -> Self {
        Self {
            version: VERSIONS[rng.usize(..VERSIONS.len())],
            clients: rng.usize(2..12),
            agent: rng.bool(),
            rejections: rng.bool(),
            outages: rng.u8(..3) == 0,
        }
    }
}

impl Environment {
    fn start(spec: &MachineSpec, root: &Path, setup: Setup, log: &Arc<CallLog>) -> Self {
        let options = Options {
            version: setup.version,
            release_lag: Duration::ZERO,
            // The limiter uses the real clock; its rejections are injected as faults instead.
            limited: false,
            ..Options::default()
        };
        let kubelet = SimKubelet::start(spec, root, options).unwrap();
        kubelet.traffic();
        let client = SharedClient::start(kubelet.socket(), TIMEOUT, log.observer());
        let history = RefCell::new(vec![State::default()]);
        let env =
            Self { kubelet, client, setup, history, ends: Instant::now() + LENGTH, counts: Cell::default() };
        env.change(&mut Rng::with_seed(0), true);
        env
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.ends
    }

    fn count(&self, add: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        add(&mut counts);
        self.counts.set(counts);
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
            self.kubelet.add_pod(pod).unwrap();
            state.pods.insert(name, number);
        }
        history.push(state);
    }

    fn offer(&self, number: u64) {
        let device = Device { id: format!("made-{number}"), numa: vec![0], ..Device::default() };
        self.kubelet.offer_devices(STAMP, &[device]);
    }

    /// Changes the node and injects faults until the schedule ends.
    async fn run_changes(&self, mut rng: Rng) {
        while !self.is_over() {
            sleep(Duration::from_micros(rng.u64(..60_000))).await;
            match rng.u8(..12) {
                0..5 => self.change(&mut rng, false),
                5..7 => self.change(&mut rng, true),
                7..10 => self.delay(&mut rng),
                10 if self.setup.rejections => {
                    self.kubelet.fail_next(any_call(&mut rng), rng.usize(1..4), &Fault::rate_limited());
                }
                11 if self.setup.outages => self.start_outage(&mut rng).await,
                _ => {}
            }
        }
    }

    fn delay(&self, rng: &mut Rng) {
        let delay = Duration::from_micros(rng.u64(..150_000));
        let fault = if rng.bool() { Fault::Stale(delay) } else { Fault::Delay(delay) };
        self.kubelet.fail_next(any_call(rng), rng.usize(1..4), &fault);
    }

    async fn start_outage(&self, rng: &mut Rng) {
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
                    self.kubelet.set_version([KubeletVersion::V1_34, KubeletVersion::V1_29][rng.usize(..2)]);
                }
                self.kubelet.boot().unwrap();
                self.kubelet.set_ready(true, true);
                // The plugin registers at once, as seen by all observers.
                self.offer(self.history.borrow().last().unwrap().device);
            }
        }
    }

    async fn request_repeatedly(&self, mut rng: Rng, caller: Caller) {
        while !self.is_over() {
            let pause = match caller {
                Caller::Proxy => rng.u64(..40_000) * u64::from(rng.bool()),
                Caller::Agent => 100_000 + rng.u64(..100_000),
            };
            sleep(Duration::from_micros(pause)).await;
            self.request_once(&mut rng, caller).await;
        }
    }

    async fn request_once(&self, rng: &mut Rng, caller: Caller) {
        let request = match rng.u8(..8) {
            0..3 => Request::List,
            3..6 => get(&format!("pod-{}", rng.u64(..PODS))),
            6 => Request::ListV1alpha1,
            _ => Request::Allocatable,
        };
        // Some requests are dropped after a while.
        let limit = if rng.u8(..6) == 0 { rng.u64(..30_000) } else { u64::MAX >> 1 };
        let (requested, before) = (Instant::now(), self.history.borrow().len() - 1);
        let result = self.client.request(request.clone(), caller);
        let Ok(result) = timeout(Duration::from_micros(limit), result).await else {
            return self.count(|counts| counts.dropped += 1);
        };
        assert!(requested.elapsed() <= 2 * TIMEOUT, "{request:?} took {:?}", requested.elapsed());
        match outcome(&request, result) {
            Outcome::Response(matches, started) => {
                assert!(started >= requested, "{request:?}: the call started before the request");
                let history = self.history.borrow();
                let fits: Vec<bool> = history[before..].iter().map(matches).collect();
                assert!(fits.contains(&true), "{request:?}: the response matches no state since the request");
                let is_concurrent = fits.contains(&false);
                self.count(|counts| counts.concurrent += usize::from(is_concurrent));
                self.count(|counts| counts.responses += 1);
            }
            Outcome::RateLimited => {
                // A call behind a hanging one may have no time left for a retry.
                let is_expected = caller == Caller::Agent || self.setup.outages;
                assert!(is_expected, "rejections are retried for the proxy's clients");
                self.count(|counts| counts.rejected += 1);
            }
            Outcome::Unavailable(error) => {
                assert!(self.setup.outages, "{request:?}: {error}");
                self.count(|counts| counts.unavailable += 1);
            }
        }
    }
}

enum Outcome {
    /// The states that the response matches, and the start of its call.
    Response(Box<dyn Fn(&State) -> bool>, Instant),
    RateLimited,
    Unavailable(String),
}

fn outcome(request: &Request, result: Result<Arc<SharedResponse>, RequestError>) -> Outcome {
    match (request, result) {
        (Request::List | Request::ListV1alpha1, Ok(response)) => {
            let pods = pods(&response);
            Outcome::Response(Box::new(move |state| state.pods == pods), response.started)
        }
        (Request::Get { name, .. }, Ok(response)) => {
            let (pods, name) = (pods(&response), name.clone());
            assert_eq!(pods.len(), 1);
            let fits =
                move |state: &State| state.pods.get(&name) == pods.get(&name) && pods.contains_key(&name);
            Outcome::Response(Box::new(fits), response.started)
        }
        (Request::Allocatable, Ok(response)) => {
            let devices = decode_allocatable(response.bytes.clone()).unwrap().devices;
            let stamp = devices.iter().find(|group| group.resource == STAMP).map(|group| made(&group.ids[0]));
            Outcome::Response(Box::new(move |state| Some(state.device) == stamp), response.started)
        }
        (_, Err(RequestError { error: ClientError::RateLimited(_), .. })) => Outcome::RateLimited,
        (_, Err(error)) if error.status.code() == Code::Unavailable => {
            Outcome::Unavailable(error.status.message().to_owned())
        }
        (Request::Get { name, .. }, Err(error)) => {
            let text = format!("pod {name} in namespace default not found");
            assert_eq!((error.status.code(), error.status.message()), (Code::Unknown, &*text));
            let name = name.clone();
            // An error has no start time.
            Outcome::Response(Box::new(move |state| !state.pods.contains_key(&name)), Instant::now())
        }
        (request, Err(error)) => panic!("{request:?}: {error:?}"),
    }
}

fn pods(response: &SharedResponse) -> BTreeMap<String, u64> {
    let pods = decode_list(response.bytes.clone()).unwrap().pods;
    pods.into_iter().map(|pod| (pod.name, made(&pod.containers[0].name))).collect()
}

fn made(text: &str) -> u64 {
    text.strip_prefix("made-").unwrap().parse().unwrap()
}

fn any_call(rng: &mut Rng) -> Call {
    [Call::List, Call::Allocatable, Call::Get][rng.usize(..3)]
}

async fn run(spec: &MachineSpec, seed: u64) -> Counts {
    let mut rng = Rng::with_seed(seed);
    // Seeds the random delays.
    fastrand::seed(seed);
    let (dir, log) = (tempfile::tempdir().unwrap(), Arc::new(CallLog::default()));
    let env = Environment::start(spec, dir.path(), Setup::random(&mut rng), &log);
    let agents = usize::from(env.setup.agent);
    let callers = [vec![Caller::Proxy; env.setup.clients], vec![Caller::Agent; agents]].concat();
    let callers = join_all(callers.into_iter().map(|caller| env.request_repeatedly(rng.fork(), caller)));
    let changes = Rng::with_seed(seed ^ 1);
    tokio::join!(env.run_changes(changes), callers);
    let (traffic, mut counts) = (env.kubelet.traffic(), env.counts.get());
    counts.max_in_flight = log.max_in_flight();
    assert!(counts.max_in_flight <= 2, "{} calls in flight", counts.max_in_flight);
    // A closed connection may have calls whose end the kubelet has not noticed yet.
    if !env.setup.outages {
        assert!(traffic.max_concurrent_total <= 2, "{} calls at once", traffic.max_concurrent_total);
        assert!(traffic.max_concurrent.values().all(|max| *max <= 1), "{:?}", traffic.max_concurrent);
    }
    counts.calls = traffic.calls.len();
    counts.busiest = busiest_second(&traffic.calls.into_iter().map(|(_, at)| at).collect::<Vec<_>>());
    // The agent has a budget of its own: here at most ten requests per second with at most two calls each.
    let agents = if env.setup.agent { 20 } else { 0 };
    assert!(counts.busiest <= 30 + agents, "{} calls in one second", counts.busiest);
    counts
}

#[test]
fn no_response_is_older_than_its_request() {
    let seed = numacast_sim::seed();
    let schedules = std::env::var("NUMACAST_SCHEDULES").map_or(SCHEDULES, |text| text.parse().unwrap());
    let spec = machine("two-by-eight");
    let mut sum = Counts::default();
    for number in 0..schedules {
        let seed = seed.wrapping_add(number);
        eprintln!("NUMACAST_SEED={seed}");
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let counts = runtime.block_on(run(&spec, seed));
        sum = Counts {
            responses: sum.responses + counts.responses,
            concurrent: sum.concurrent + counts.concurrent,
            dropped: sum.dropped + counts.dropped,
            rejected: sum.rejected + counts.rejected,
            unavailable: sum.unavailable + counts.unavailable,
            calls: sum.calls + counts.calls,
            max_in_flight: sum.max_in_flight.max(counts.max_in_flight),
            busiest: sum.busiest.max(counts.busiest),
        };
    }
    eprintln!("{schedules} schedules: {sum:?}");
    if schedules >= SCHEDULES {
        // There were enough changes and faults.
        assert!(sum.concurrent * 20 > sum.responses, "{sum:?}");
        assert!(sum.dropped > 0 && sum.unavailable > 0 && sum.max_in_flight == 2, "{sum:?}");
    }
}
