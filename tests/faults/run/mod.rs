//! A seeded run of faults over the simulated node and cluster. The agent between them runs on its own thread,
//! with real sockets and real HTTP.
//!
//! Each step draws one fault, sometimes two at once, with ordinary changes before and during it. After the
//! fault the object must be correct again within the fault's bound, and at no time may it have reported more
//! than there was (see [`judge`] for the exact rules).
//!
//! This module does not use the test harness: `tests/faults` is the long form, `tests/sim` has a short one.

mod judge;
mod kinds;
mod world;

use std::time::{Duration, Instant};

use fastrand::Rng;
use futures::future::join_all;
use numacast::sim::api_server::PODS;
use tokio::time::sleep;

use judge::Judge;
pub(crate) use kinds::{Kind, Side};
use world::{Variant, World};

/// The agent's configuration, with intervals shorter than usual, so that a step takes seconds.
pub(crate) const POLL: Duration = Duration::from_secs(2);
pub(crate) const SETTLE: Duration = Duration::from_secs(3);
pub(crate) const REFRESH: Duration = Duration::from_secs(5);
/// Timeout of one call to the kubelet or the API server.
pub(crate) const DEADLINE: Duration = Duration::from_millis(500);

/// The agent's longest delay before it relists and watches the pods again, and the list itself. Kubelets
/// before 1.34 list terminated pods, which only the API server reports as terminated.
const UNHEARD: Duration = Duration::from_secs(33);

/// Interval at which the object is checked.
const LOOK: Duration = Duration::from_millis(2);

/// The faults of one step, and how long the object was incorrect after them.
pub(crate) struct Measured {
    pub(crate) kinds: Vec<Kind>,
    pub(crate) took: Duration,
}

/// Interval at which the cluster's garbage collector looks for missing owners.
const COLLECT: Duration = Duration::from_millis(500);

/// The result of a shard.
pub(crate) struct Outcome {
    pub(crate) measured: Vec<Measured>,
    /// Number of versions of the object that were judged.
    pub(crate) versions: u64,
    /// The failure in detail.
    pub(crate) failure: Option<String>,
}

/// Runs `faults` steps on one node, whose variant depends on the shard number. Bounds are multiplied by
/// `patience`: by 1 where they are measured, by more where a slow machine must not cause a failure.
pub(crate) async fn run_shard(
    shard: usize,
    faults: usize,
    kinds: &[Kind],
    seed: u64,
    patience: u32,
) -> Outcome {
    let mut rng = Rng::with_seed(seed.wrapping_add(shard as u64));
    let mut outcome = Outcome { measured: Vec::new(), versions: 0, failure: None };
    let world = match World::start(Variant::of_shard(shard), rng.u64(..)).await {
        Ok(world) => world,
        Err(error) => {
            outcome.failure = Some(format!("shard {shard} does not start: {error}"));
            return outcome;
        }
    };
    let judge = Judge::new(&world.node.kubelet, world.node.server.changes());
    let mut run = Run { judge, world, rng, patience };
    let result = run.steps(faults, kinds, &mut outcome.measured).await;
    let ended = run.world.stop_agent().await;
    outcome.versions = run.judge.versions;
    if let Err(what) = result.and(ended) {
        let (deeds, variant, now) = (run.world.deeds(), run.world.variant, run.world.now());
        outcome.failure = Some(format!(
            "NUMACAST_SEED={seed}, shard {shard} ({variant:?}), step {}, {now:.3} s, after\n{deeds}\n{what}",
            outcome.measured.len() + 1
        ));
    }
    outcome
}

struct Run {
    world: World,
    judge: Judge,
    rng: Rng,
    patience: u32,
}

impl Run {
    async fn steps(
        &mut self,
        faults: usize,
        kinds: &[Kind],
        measured: &mut Vec<Measured>,
    ) -> Result<(), String> {
        let kinds: Vec<Kind> = kinds.iter().copied().filter(|kind| kind.fits(&self.world)).collect();
        if kinds.is_empty() {
            return Ok(());
        }
        self.world.start_agent();
        self.agrees(Duration::from_secs(30)).await?;
        // Draw each kind once before any kind is repeated.
        let mut deck: Vec<Kind> = Vec::new();
        for _ in 0..faults {
            if deck.is_empty() {
                deck.clone_from(&kinds);
                self.rng.shuffle(&mut deck);
            }
            let first = deck.pop().unwrap_or(Kind::Nothing);
            let mut chosen = vec![first];
            let second = kinds[self.rng.usize(0..kinds.len())];
            if self.rng.u8(0..5) == 0 && first.goes_with(second) {
                chosen.push(second);
            }
            let took = self.step(&chosen).await?;
            measured.push(Measured { kinds: chosen, took });
        }
        Ok(())
    }

    /// Runs one step; returns how long the object was incorrect after the faults were over.
    async fn step(&mut self, kinds: &[Kind]) -> Result<Duration, String> {
        self.judge.look(&self.world.node.kubelet)?;
        let differences = self.world.differences();
        if !differences.is_empty() {
            return Err(format!("the object was true and is not any more:\n{}", differences.join("\n")));
        }
        if kinds.iter().any(|kind| kind.side() == Side::Kubelet || *kind == Kind::AgentRestarts) {
            self.judge.fault_begins(kinds.iter().any(|kind| kind.is_restart()));
        }
        let mut rngs: Vec<Rng> = kinds.iter().map(|_| self.rng.fork()).collect();
        let mut life = self.rng.fork();
        if life.bool() {
            self.world.live(&mut life).await;
        }
        let changes = life.u8(0..4);
        {
            let world = &self.world;
            let faults = join_all(kinds.iter().zip(&mut rngs).map(|(kind, rng)| kind.happen(world, rng)));
            let living = async {
                for _ in 0..changes {
                    sleep(Duration::from_millis(life.u64(0..600))).await;
                    world.live(&mut life).await;
                }
            };
            let both = async { tokio::join!(faults, living).0 };
            let mut both = std::pin::pin!(both);
            loop {
                tokio::select! {
                    done = &mut both => {
                        done.into_iter().collect::<Result<(), String>>()?;
                        break;
                    }
                    () = sleep(LOOK * 10) => self.judge.look(&world.node.kubelet)?,
                }
            }
        }
        if kinds.contains(&Kind::CompetingPublisher) {
            // The agent does not overwrite a competing publisher, but publishes the next change, correctly.
            self.world.change(&mut life).await;
        } else if life.bool() {
            self.world.live(&mut life).await;
        }
        let bound = kinds.iter().map(|kind| kind.bound()).max().unwrap_or_default();
        let took = self.agrees(bound * self.patience).await?;
        self.judge.fault_is_over();
        Ok(took)
    }

    /// Waits until the object is correct; returns how long that took. The bound starts when the agent watches
    /// the pods, which it may not do yet after an earlier fault.
    async fn agrees(&mut self, bound: Duration) -> Result<Duration, String> {
        let start = Instant::now();
        let mut collected = start;
        let mut watched = start;
        loop {
            if collected.elapsed() > COLLECT {
                self.world.node.server.collect_garbage();
                collected = Instant::now();
            }
            self.judge.look(&self.world.node.kubelet)?;
            let differences = self.world.differences();
            let took = start.elapsed();
            if differences.is_empty() {
                return Ok(took);
            }
            if self.world.node.server.watchers(&PODS) == 0 && took < UNHEARD * self.patience {
                watched = Instant::now();
            }
            if watched.elapsed() > bound {
                return Err(format!("not true after {bound:?}:\n{}", differences.join("\n")));
            }
            sleep(LOOK).await;
        }
    }
}
