//! A seeded run of faults over the simulated node and cluster: the agent between them on a thread of its own, over real
//! sockets and real HTTP.
//!
//! Each step draws one fault, sometimes two at once, and ordinary changes around and during it. When the fault is over
//! the object must be true again within the fault's bound, and at no moment may it have promised more than there was
//! ([`judge`] says what that means exactly).
//!
//! No test harness in here: `tests/faults` is the long form, `tests/sim` has a short one.

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

/// The agent's configuration: everything a little faster than usual, so that a step takes seconds.
pub(crate) const POLL: Duration = Duration::from_secs(2);
pub(crate) const SETTLE: Duration = Duration::from_secs(3);
pub(crate) const REFRESH: Duration = Duration::from_secs(5);
/// Of one call, to the kubelet and to the API server.
pub(crate) const DEADLINE: Duration = Duration::from_millis(500);

/// The longest wait of the agent before it lists and watches the pods again, and the list itself. Kubelets before 1.34 list pods that have
/// ended, and nobody but the API server tells which these are.
const UNHEARD: Duration = Duration::from_secs(33);

/// How often the object is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// The faults of one step, and how long the object was wrong after them.
pub(crate) struct Measured {
    pub(crate) kinds: Vec<Kind>,
    pub(crate) took: Duration,
}

/// How often the cluster's garbage collector looks for owners that are not there.
const COLLECT: Duration = Duration::from_millis(500);

/// What a shard came to.
pub(crate) struct Outcome {
    pub(crate) measured: Vec<Measured>,
    /// Versions of the object that were judged.
    pub(crate) versions: u64,
    /// What went wrong, at length.
    pub(crate) failure: Option<String>,
}

/// Runs `faults` steps on one node; what it is like follows from the number of the shard. Bounds are taken `patience` times:
/// once where they are measured, more often where a slow machine must not fail.
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
        // Each kind once before any comes twice.
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

    /// One step; returns how long the object was wrong after the faults were over.
    async fn step(&mut self, kinds: &[Kind]) -> Result<Duration, String> {
        self.judge.look(&self.world.node.kubelet)?;
        let differences = self.world.differences();
        if !differences.is_empty() {
            return Err(format!("the object was true and is not any more:\n{}", differences.join("\n")));
        }
        if kinds.iter().any(|kind| kind.side() == Side::Kubelet || *kind == Kind::AgentRestarts) {
            self.judge.trouble_begins(kinds.iter().any(|kind| kind.is_restart()));
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
        if kinds.contains(&Kind::Rival) {
            // Nobody fights a rival, but what changes next is published, and true.
            self.world.change(&mut life).await;
        } else if life.bool() {
            self.world.live(&mut life).await;
        }
        let bound = kinds.iter().map(|kind| kind.bound()).max().unwrap_or_default();
        let took = self.agrees(bound * self.patience).await?;
        self.judge.trouble_is_over();
        Ok(took)
    }

    /// Waits until the object is true; returns how long that took. The bound counts from when the agent watches the pods, which
    /// it may not do yet since an earlier fault.
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
