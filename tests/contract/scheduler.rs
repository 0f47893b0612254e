//! The real scheduler with the real plugin, and what its log says.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::support::Cluster;
use crate::support::process::{Process, tethered};
use crate::support::wait::until;

/// What pods name as their scheduler: it runs beside a cluster's own one, as upstream advises.
pub(crate) const NAME: &str = "topology-scheduler";

/// Which cache the plugin has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cache {
    OverReserve,
    DiscardReserved,
    Passthrough,
}

impl Cache {
    /// It reads the object for every pod.
    pub(crate) fn is_direct(self) -> bool {
        self != Self::OverReserve
    }
}

/// How the scheduler under test is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) cache: Cache,
    pub(crate) clocks: Clocks,
    /// The plugin's informerMode.
    pub(crate) informer: String,
}

/// The clocks of a scheduler, all in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clocks {
    /// `cacheResyncPeriodSeconds` of the plugin; of no importance to caches that read the object directly.
    pub(crate) resync: u64,
    /// `podInitialBackoffSeconds` and `podMaxBackoffSeconds`.
    pub(crate) backoff: (u64, u64),
}

impl std::fmt::Display for Clocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}-{}", self.resync, self.backoff.0, self.backoff.1)
    }
}

impl FromStr for Clocks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || -> Option<Self> {
            let (resync, backoff) = text.split_once(':')?;
            let (from, to) = backoff.split_once('-')?;
            Some(Self { resync: resync.parse().ok()?, backoff: (from.parse().ok()?, to.parse().ok()?) })
        };
        parse().ok_or_else(|| format!("`{text}` is not like 5:1-10: seconds between resyncs, and of backoff"))
    }
}

/// A scheduler at work.
pub(crate) struct Scheduler {
    process: Process,
    log: PathBuf,
}

impl Scheduler {
    /// Starts it and waits until it schedules; an overreserving plugin has read the objects that there are by then.
    pub(crate) async fn start(program: &Path, cluster: &Cluster, setup: &Setup) -> Result<Self> {
        let config = cluster.dir().join("scheduler.yaml");
        std::fs::write(&config, configuration(cluster, setup).to_string())?;
        let mut command = tethered(program);
        command.arg("--config").arg(config).args(["--secure-port=0", "-v=4"]);
        let process = Process::start("scheduler", cluster.dir(), command)?;
        let mut scheduler = Self { process, log: cluster.dir().join("scheduler.log") };
        let sign = if setup.cache.is_direct() { "Handlers synced" } else { "nrtcache.resync" };
        until("the scheduler is ready", async || {
            scheduler.still_runs()?;
            ensure!(scheduler.text()?.contains(sign), "it does not say `{sign}`");
            Ok(())
        })
        .await?;
        Ok(scheduler)
    }

    /// Waits until the plugin has believed an object for the first time: the pods that are there already are not its
    /// own, and until then it lets nobody onto the node. Where it never does, that shows soon enough.
    pub(crate) async fn first_flush(&self, setup: &Setup) -> Result<()> {
        if setup.cache.is_direct() {
            return Ok(());
        }
        let end = Instant::now() + Duration::from_secs(setup.clocks.resync * 3 + 2);
        while Instant::now() < end && !self.text()?.contains("\"flushing\"") {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    pub(crate) fn still_runs(&mut self) -> Result<()> {
        self.process.still_runs()
    }

    /// All that it has said so far.
    pub(crate) fn log(&self) -> Result<Log> {
        Ok(Log::of(&self.text()?))
    }

    fn text(&self) -> Result<String> {
        std::fs::read_to_string(&self.log).with_context(|| self.log.display().to_string())
    }
}

fn configuration(cluster: &Cluster, setup: &Setup) -> Value {
    let clocks = setup.clocks;
    json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": { "leaderElect": false },
        "clientConnection": { "kubeconfig": cluster.admin_kubeconfig() },
        "podInitialBackoffSeconds": clocks.backoff.0,
        "podMaxBackoffSeconds": clocks.backoff.1,
        "profiles": [{
            "schedulerName": NAME,
            "plugins": { "multiPoint": { "enabled": [{ "name": "NodeResourceTopologyMatch" }] } },
            "pluginConfig": [{
                "name": "NodeResourceTopologyMatch",
                "args": arguments(setup),
            }],
        }],
    })
}

/// The plugin's.
fn arguments(setup: &Setup) -> Value {
    let mut args = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "NodeResourceTopologyMatchArgs",
        "scoringStrategy": { "type": "LeastAllocated" },
    });
    match setup.cache {
        Cache::OverReserve => {
            args["cacheResyncPeriodSeconds"] = setup.clocks.resync.into();
            args["cache"] = json!({
                "foreignPodsDetect": "All",
                "resyncMethod": "Autodetect",
                "informerMode": setup.informer,
            });
        }
        Cache::DiscardReserved => args["discardReservedNodes"] = true.into(),
        Cache::Passthrough => {}
    }
    args
}

/// What a log says, with times since midnight.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// Ticks at which a fingerprint was compared, and those at which it agreed.
    pub(crate) compared: usize,
    pub(crate) agreed: usize,
    /// Ticks at which the object had none.
    pub(crate) missing: usize,
    /// Ticks at which there was nothing to compare it with.
    pub(crate) no_pods: usize,
    /// When the object was read that then replaced the cached one.
    flushes: Vec<Duration>,
    /// When a pod was bound, by `namespace/name`.
    binds: BTreeMap<String, Duration>,
}

impl Log {
    fn of(text: &str) -> Self {
        let mut log = Self::default();
        let mut read = Duration::ZERO;
        for line in text.lines() {
            let Some(at) = time_of(line) else { continue };
            if line.contains("\"trying to sync NodeTopology\"") {
                read = at;
            } else if line.contains("\"podset fingerprint check\"") {
                log.compared += 1;
                log.agreed += usize::from(value(line, "expected") == value(line, "computed"));
            } else if line.contains("\"missing NodeTopology podset fingerprint data\"") {
                log.missing += 1;
            } else if line.contains("\"cannot find any pod for node\"") {
                log.no_pods += 1;
            } else if line.contains("\"overriding cached info\"") && line.contains("\"resynced\"") {
                log.flushes.push(read);
            } else if line.contains("\"Successfully bound pod to node\"")
                && let Some(pod) = value(line, "pod")
            {
                log.binds.insert(pod.to_owned(), at);
            }
        }
        log
    }

    /// For a pod that the kubelet refused: how long before its own binding the last other pod was bound.
    pub(crate) fn since_other(&self, refused: &str) -> Option<Duration> {
        let bound = *self.binds.get(refused)?;
        let others = self.binds.iter().filter(|(name, at)| *name != refused && **at <= bound);
        others.map(|(_, at)| bound - *at).min()
    }

    /// For a pod that the kubelet refused: how long before the object was read by which it was placed the pod before
    /// it had been bound. Less than an agent needs to hear of a bind and to write means that no agent can help it.
    pub(crate) fn window(&self, refused: &str) -> Result<Duration> {
        let bound = *self.binds.get(refused).with_context(|| format!("{refused} was never bound"))?;
        let read =
            self.flushes.iter().rev().find(|read| **read < bound).context("nothing was ever resynced")?;
        let before = self.binds.values().filter(|at| *at < read).max();
        Ok(before.map_or(Duration::MAX, |at| *read - *at))
    }
}

/// The time of a line such as `I1121 17:20:01.123456  123 file.go:1] "said" key="value"`.
fn time_of(line: &str) -> Option<Duration> {
    let clock = line.split_whitespace().nth(1)?;
    let mut parts = clock.split(':');
    let hours: u64 = parts.next()?.parse().ok()?;
    let minutes: u64 = parts.next()?.parse().ok()?;
    let seconds: f64 = parts.next()?.parse().ok()?;
    Some(Duration::from_secs(hours * 3600 + minutes * 60) + Duration::from_secs_f64(seconds))
}

/// The value of a key in a line.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!(" {key}=\""))?;
    rest.split('"').next()
}
