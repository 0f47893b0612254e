//! A closed loop of short-lived pods: each that ends is replaced at once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use fastrand::Rng;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};

use crate::events::{Event, Events, phase};
use crate::scheduler;
use crate::support::{RealNode, pod};

/// CPUs available for exclusive allocation.
pub(crate) const CPUS: u32 = 14;
/// CPUs requested by all pods that have not ended: 110 % of [`CPUS`], in tenths of a CPU.
pub(crate) const WANTED: u32 = CPUS * 11;
/// CPUs per pod.
const SIZES: std::ops::RangeInclusive<u32> = 1..=4;
/// Minimum lifetime of a pod.
const SHORTEST: Duration = Duration::from_secs(1);
/// Mean lifetime of a pod.
const LIFETIME: Duration = Duration::from_secs(6);
/// Interval of the loop.
const STEP: Duration = Duration::from_millis(10);

/// Mean interval between pods of another scheduler, and their mean lifetime.
const FOREIGN: Duration = Duration::from_secs(5);

/// The lifecycle of one pod.
#[derive(Debug)]
pub(crate) struct LoadPod {
    pub(crate) cpus: u32,
    lifetime: Duration,
    /// The container exits by itself; otherwise the pod is deleted.
    completes: bool,
    pub(crate) created: Instant,
    pub(crate) running: Option<Instant>,
    /// When the pod was deleted or its container exited.
    pub(crate) ending: Option<Instant>,
    /// When the pod became terminal or its object was removed.
    ended: Option<Instant>,
    /// The kubelet's reason for rejecting the pod.
    pub(crate) rejected: Option<String>,
}

/// A random sequence of pods.
pub(crate) struct Draw {
    random: Rng,
    next_cpus: u32,
}

/// The parameters of a pod to create.
pub(crate) struct PodParameters {
    pub(crate) cpus: u32,
    pub(crate) lifetime: Duration,
    completes: bool,
}

impl Draw {
    pub(crate) fn new(mut random: Rng) -> Self {
        let next_cpus = random.u32(SIZES);
        Self { random, next_cpus }
    }

    pub(crate) fn next(&mut self) -> PodParameters {
        let cpus = std::mem::replace(&mut self.next_cpus, self.random.u32(SIZES));
        let lifetime = SHORTEST + self.exponential(LIFETIME - SHORTEST);
        PodParameters { cpus, lifetime, completes: self.random.bool() }
    }

    /// Returns an exponentially distributed time with this mean.
    fn exponential(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(-self.random.f64().max(1e-9).ln())
    }
}

/// The running loop.
pub(crate) struct Load<'a> {
    node: &'a RealNode,
    events: Events<Pod>,
    draw: Draw,
    pub(crate) pods: BTreeMap<String, LoadPod>,
    foreign: Option<Foreign>,
}

/// Pods of another scheduler.
#[derive(Debug)]
struct Foreign {
    number: usize,
    /// When to create the next one.
    next: Instant,
    /// Existing pods, and when to delete each.
    there: Vec<(String, Instant)>,
}

impl<'a> Load<'a> {
    pub(crate) async fn new(node: &'a RealNode, random: Rng, foreign: bool) -> Result<Self> {
        let events = Events::of_pods(&node.client(), None).await?;
        let foreign = foreign.then(|| Foreign { number: 0, next: Instant::now(), there: Vec::new() });
        Ok(Self { node, events, draw: Draw::new(random), pods: BTreeMap::new(), foreign })
    }

    /// Runs the loop until `until`.
    pub(crate) async fn run(&mut self, until: Instant, mut check: impl FnMut() -> Result<()>) -> Result<()> {
        while Instant::now() < until {
            while let Some(event) = self.events.waiting()? {
                self.apply(event).await?;
            }
            self.end_due_pods().await?;
            self.change_foreign_pods().await?;
            while self.wanted() * 10 < WANTED {
                self.create().await?;
            }
            check()?;
            tokio::time::sleep(STEP).await;
        }
        Ok(())
    }

    /// Returns the mean time from a running pod's deletion or exit until it has ended.
    pub(crate) fn ends(&self) -> Duration {
        let ran = self.pods.values().filter(|pod| pod.running.is_some());
        let times = ran.filter_map(|pod| Some(pod.ended?.saturating_duration_since(pod.ending?)));
        let times: Vec<Duration> = times.collect();
        times.iter().sum::<Duration>() / u32::try_from(times.len().max(1)).unwrap_or(u32::MAX)
    }

    /// Returns the CPUs of all pods that have not ended.
    fn wanted(&self) -> u32 {
        self.pods.values().filter(|pod| pod.ended.is_none()).map(|pod| pod.cpus).sum()
    }

    async fn create(&mut self) -> Result<()> {
        let PodParameters { cpus, lifetime, completes } = self.draw.next();
        let name = format!("short-{}", self.pods.len());
        let object = pod(&name).cpus(cpus).memory("64Mi").scheduled_by(scheduler::NAME)?;
        let load_pod = LoadPod {
            cpus,
            lifetime,
            completes,
            created: Instant::now(),
            running: None,
            ending: None,
            ended: None,
            rejected: None,
        };
        self.pods.insert(name, load_pod);
        self.api().create(&PostParams::default(), &object).await?;
        Ok(())
    }

    async fn change_foreign_pods(&mut self) -> Result<()> {
        let now = Instant::now();
        let Some(mut foreign) = self.foreign.take() else { return Ok(()) };
        if foreign.next <= now {
            let name = format!("foreign-{}", foreign.number);
            foreign.number += 1;
            foreign.next = now + self.draw.exponential(FOREIGN);
            foreign.there.push((name.clone(), now + self.draw.exponential(FOREIGN)));
            self.node.submit(&pod(&name)).await?;
        }
        for (name, _) in foreign.there.extract_if(.., |(_, until)| *until <= now) {
            self.delete(&name).await?;
        }
        self.foreign = Some(foreign);
        Ok(())
    }

    async fn end_due_pods(&mut self) -> Result<()> {
        let due = |pod: &LoadPod| {
            pod.ending.is_none()
                && pod.ended.is_none()
                && pod.running.is_some_and(|since| since.elapsed() >= pod.lifetime)
        };
        let due: Vec<String> = self.pods.iter().filter(|(_, pod)| due(pod)).map(|(n, _)| n.clone()).collect();
        for name in due {
            let Some(pod) = self.pods.get_mut(&name) else { continue };
            pod.ending = Some(Instant::now());
            if pod.completes {
                self.node.exit(&name, 0)?;
            } else {
                self.delete(&name).await?;
            }
        }
        Ok(())
    }

    async fn apply(&mut self, Event { at, object, gone }: Event<Pod>) -> Result<()> {
        let name = object.name_any();
        let Some(pod) = self.pods.get_mut(&name) else { return Ok(()) };
        let terminal = ["Succeeded", "Failed"].contains(&phase(&object));
        if phase(&object) == "Running" {
            pod.running.get_or_insert(at);
        }
        if !terminal && !gone || pod.ended.is_some() {
            return Ok(());
        }
        pod.ended = Some(at);
        pod.ending.get_or_insert(at);
        if pod.running.is_none() {
            pod.rejected = Some(object.status.and_then(|status| status.reason).unwrap_or_default());
        }
        // As the pod's owner would.
        if !gone {
            self.delete(&name).await?;
        }
        Ok(())
    }

    async fn delete(&self, name: &str) -> Result<()> {
        match self.api().delete(name, &DeleteParams::default()).await {
            Err(kube::Error::Api(gone)) if gone.code == 404 => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }

    fn api(&self) -> Api<Pod> {
        Api::default_namespaced(self.node.client())
    }
}
