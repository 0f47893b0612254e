//! A seeded run of faults of the simulated node and API server. The agent runs on its own thread, with real
//! sockets and real HTTP.
//!
//! Each step draws one fault, sometimes two at once, and changes the workload before and during it. After the
//! fault the object must be correct again within the fault's bound, and at no time may it have reported more
//! than was available (see [`availability`] for the exact rules).
//!
//! This module does not use the test harness: `tests/faults` is the long form, `tests/sim` has a short one.

mod availability;
mod cluster_faults;
mod environment;
mod fault_kind;
mod kubelet_faults;

use std::time::{Duration, Instant};

use fastrand::Rng;
use futures::future::join_all;
use numacast_sim::api_server::PODS;
use tokio::time::sleep;

use availability::AvailabilityCheck;
use environment::{Environment, Variant};
pub(crate) use fault_kind::{FaultKind, Side};

/// The agent's configuration, with intervals shorter than usual, so that a step takes seconds.
const POLL: Duration = Duration::from_secs(2);
const RESTART_WAIT: Duration = Duration::from_secs(3);
const REFRESH: Duration = Duration::from_secs(5);
/// Timeout of one call to the kubelet or the API server.
const TIMEOUT: Duration = Duration::from_millis(500);

/// The agent's longest delay before it lists and watches the pods again, and the list itself. Kubelets before
/// 1.34 list terminated pods, which only the API server reports as terminated.
const MAX_WITHOUT_WATCH: Duration = Duration::from_secs(33);

/// Interval at which the object is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// Interval at which the cluster's garbage collector looks for missing owners.
const COLLECT_INTERVAL: Duration = Duration::from_millis(500);

/// One step: its faults, and how long the object was incorrect after them.
pub(crate) struct Step {
    pub(crate) faults: Vec<FaultKind>,
    pub(crate) took: Duration,
}

/// The result of a shard.
pub(crate) struct Outcome {
    pub(crate) steps: Vec<Step>,
    /// Number of versions of the object that were checked.
    pub(crate) versions: u64,
    /// The failure in detail.
    pub(crate) failure: Option<String>,
}

/// Runs `steps` steps on one node, whose variant depends on the shard number. Bounds are multiplied by
/// `factor`: by 1 where they are measured, by more where a slow machine must not cause a failure.
pub(crate) async fn run_shard(
    shard: usize,
    steps: usize,
    kinds: &[FaultKind],
    seed: u64,
    factor: u32,
) -> Outcome {
    let mut rng = Rng::with_seed(seed.wrapping_add(shard as u64));
    let mut outcome = Outcome { steps: Vec::new(), versions: 0, failure: None };
    let env = match Environment::start(Variant::of_shard(shard), rng.u64(..)).await {
        Ok(env) => env,
        Err(error) => {
            outcome.failure = Some(format!("shard {shard} does not start: {error}"));
            return outcome;
        }
    };
    let availability = AvailabilityCheck::new(&env.node.kubelet, env.node.server.changes());
    let mut run = Run { env, availability, rng, factor };
    let result = run.steps(steps, kinds, &mut outcome.steps).await;
    let stopped = run.env.stop_agent().await;
    outcome.versions = run.availability.versions;
    if let Err(error) = result.and(stopped) {
        let (actions, variant, seconds) = (run.env.actions(), run.env.variant, run.env.seconds());
        let step = outcome.steps.len() + 1;
        outcome.failure = Some(format!(
            "NUMACAST_SEED={seed}, shard {shard} ({variant:?}), step {step}, {seconds:.3} s, after\n\
             {actions}\n{error}"
        ));
    }
    outcome
}

struct Run {
    env: Environment,
    availability: AvailabilityCheck,
    rng: Rng,
    factor: u32,
}

impl Run {
    async fn steps(&mut self, count: usize, kinds: &[FaultKind], done: &mut Vec<Step>) -> Result<(), String> {
        let kinds: Vec<FaultKind> = kinds.iter().copied().filter(|kind| kind.applies_to(&self.env)).collect();
        if kinds.is_empty() {
            return Ok(());
        }
        self.env.start_agent();
        self.wait_until_correct(Duration::from_secs(30)).await?;
        // Draw each kind once before any kind is repeated.
        let mut remaining: Vec<FaultKind> = Vec::new();
        for _ in 0..count {
            if remaining.is_empty() {
                remaining.clone_from(&kinds);
                self.rng.shuffle(&mut remaining);
            }
            let first = remaining.pop().unwrap_or(FaultKind::NoFault);
            let mut faults = vec![first];
            let second = kinds[self.rng.usize(0..kinds.len())];
            if self.rng.u8(0..5) == 0 && first.side() != second.side() {
                faults.push(second);
            }
            let took = self.step(&faults).await?;
            done.push(Step { faults, took });
        }
        Ok(())
    }

    /// Runs one step; returns how long the object was incorrect after the faults were over.
    async fn step(&mut self, faults: &[FaultKind]) -> Result<Duration, String> {
        self.availability.check_new_versions(&self.env.node.kubelet)?;
        let differences = self.env.differences();
        if !differences.is_empty() {
            return Err(format!("the object was correct and no longer is:\n{}", differences.join("\n")));
        }
        if faults.iter().any(|kind| kind.side() == Side::Kubelet || *kind == FaultKind::AgentRestarts) {
            self.availability.start_fault(faults.iter().any(|kind| kind.is_restart()));
        }
        let mut rngs: Vec<Rng> = faults.iter().map(|_| self.rng.fork()).collect();
        let mut workload = self.rng.fork();
        if workload.bool() {
            self.env.change_workload(&mut workload).await;
        }
        let changes = workload.u8(0..4);
        {
            let env = &self.env;
            let injected = join_all(faults.iter().zip(&mut rngs).map(|(kind, rng)| kind.inject(env, rng)));
            let changed = async {
                for _ in 0..changes {
                    sleep(Duration::from_millis(workload.u64(0..600))).await;
                    env.change_workload(&mut workload).await;
                }
            };
            let both = async { tokio::join!(injected, changed).0 };
            let mut both = std::pin::pin!(both);
            loop {
                tokio::select! {
                    done = &mut both => {
                        done.into_iter().collect::<Result<(), String>>()?;
                        break;
                    }
                    () = sleep(CHECK_INTERVAL * 10) => {
                        self.availability.check_new_versions(&env.node.kubelet)?;
                    }
                }
            }
        }
        if faults.contains(&FaultKind::OtherManager) {
            // The agent does not overwrite another manager's object at once; it publishes its next change. A
            // change that is reverted before the agent lists the pods is not published, so wait for a List.
            self.wait_for_list().await?;
            self.env.change_expected(&mut workload).await;
        } else if workload.bool() {
            self.env.change_workload(&mut workload).await;
        }
        let bound = faults.iter().map(|kind| kind.bound()).max().unwrap_or_default();
        let took = self.wait_until_correct(bound * self.factor).await?;
        self.availability.end_fault();
        Ok(took)
    }

    /// Waits until the agent has listed the pods as they are now.
    async fn wait_for_list(&mut self) -> Result<(), String> {
        let start = Instant::now();
        while !self.availability.has_list_since(start) {
            if start.elapsed() > FaultKind::OtherManager.bound() * self.factor {
                return Err("the agent no longer lists the pods".to_owned());
            }
            sleep(CHECK_INTERVAL).await;
            self.availability.check_new_versions(&self.env.node.kubelet)?;
        }
        Ok(())
    }

    /// Waits until the object is correct; returns how long that took. The bound starts when the agent watches
    /// the pods, which it may not do yet after an earlier fault.
    async fn wait_until_correct(&mut self, bound: Duration) -> Result<Duration, String> {
        let start = Instant::now();
        let mut collected = start;
        let mut watched = start;
        loop {
            if collected.elapsed() > COLLECT_INTERVAL {
                self.env.node.server.collect_garbage();
                collected = Instant::now();
            }
            self.availability.check_new_versions(&self.env.node.kubelet)?;
            let differences = self.env.differences();
            let took = start.elapsed();
            if differences.is_empty() {
                return Ok(took);
            }
            if self.env.node.server.watchers(&PODS) == 0 && took < MAX_WITHOUT_WATCH * self.factor {
                watched = Instant::now();
            }
            if watched.elapsed() > bound {
                return Err(format!("not correct after {bound:?}:\n{}", differences.join("\n")));
            }
            sleep(CHECK_INTERVAL).await;
        }
    }
}

async fn pause(rng: &mut Rng, max_milliseconds: u64) {
    sleep(up_to(rng, max_milliseconds)).await;
}

fn up_to(rng: &mut Rng, milliseconds: u64) -> Duration {
    Duration::from_millis(rng.u64(0..=milliseconds))
}
