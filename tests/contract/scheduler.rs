//! The real scheduler with the real plugin, and its log.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::support::Cluster;
use crate::support::process::{Process, tethered};
use crate::support::wait::until;

/// Scheduler name in the pods' specs: it runs beside the cluster's default scheduler, as upstream recommends.
pub(crate) const NAME: &str = "topology-scheduler";

/// The plugin's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cache {
    OverReserve,
    DiscardReserved,
    Passthrough,
}

impl Cache {
    /// Returns true if the cache reads the object for every pod.
    pub(crate) fn is_direct(self) -> bool {
        self != Self::OverReserve
    }
}

/// The configuration of the scheduler under test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) cache: Cache,
    pub(crate) clocks: Clocks,
    /// The plugin's informerMode.
    pub(crate) informer: String,
}

/// The scheduler's intervals in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clocks {
    /// The plugin's `cacheResyncPeriodSeconds`; unused by caches that read the object directly.
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

/// A running scheduler.
pub(crate) struct Scheduler {
    process: Process,
    log: PathBuf,
}

impl Scheduler {
    /// Starts the scheduler and waits until it schedules. An overreserving plugin has read the existing
    /// objects by then.
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
            ensure!(scheduler.text()?.contains(sign), "its log has no `{sign}`");
            Ok(())
        })
        .await?;
        Ok(scheduler)
    }

    /// Waits until the plugin has accepted an object for the first time: it did not place the existing pods
    /// itself, and until then it filters the node. If it never does, the run shows that soon.
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

    /// Parses the log so far.
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

/// Returns the plugin's arguments.
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

/// Parsed log; times are since midnight.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// Resync ticks at which fingerprints were compared, and those at which they matched.
    pub(crate) compared: usize,
    pub(crate) matched: usize,
    /// Ticks at which the object had no fingerprint.
    pub(crate) missing: usize,
    /// Ticks at which the plugin had no pods to compare with.
    pub(crate) no_pods: usize,
    /// Read times of the objects that replaced the cached one.
    flushes: Vec<Duration>,
    /// Bind times by `namespace/name`.
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
                log.matched += usize::from(value(line, "expected") == value(line, "computed"));
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

    /// Returns, for a rejected pod, the time from the previous bind of another pod to its own.
    pub(crate) fn since_other(&self, rejected: &str) -> Option<Duration> {
        let bound = *self.binds.get(rejected)?;
        let others = self.binds.iter().filter(|(name, at)| *name != rejected && **at <= bound);
        others.map(|(_, at)| bound - *at).min()
    }

    /// Returns, for a rejected pod, the time from the last bind before the object was read to that read; the
    /// pod was placed by that object. If this is less than an agent needs to observe a bind and write, no
    /// agent can prevent the rejection.
    pub(crate) fn window(&self, rejected: &str) -> Result<Duration> {
        let bound = *self.binds.get(rejected).with_context(|| format!("{rejected} was never bound"))?;
        let read =
            self.flushes.iter().rev().find(|read| **read < bound).context("nothing was ever resynced")?;
        let before = self.binds.values().filter(|at| *at < read).max();
        Ok(before.map_or(Duration::MAX, |at| *read - *at))
    }
}

/// Returns the time of a line such as `I1121 17:20:01.123456  123 file.go:1] "said" key="value"`.
fn time_of(line: &str) -> Option<Duration> {
    let clock = line.split_whitespace().nth(1)?;
    let mut parts = clock.split(':');
    let hours: u64 = parts.next()?.parse().ok()?;
    let minutes: u64 = parts.next()?.parse().ok()?;
    let seconds: f64 = parts.next()?.parse().ok()?;
    Some(Duration::from_secs(hours * 3600 + minutes * 60) + Duration::from_secs_f64(seconds))
}

/// Returns the value of a key in a line.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!(" {key}=\""))?;
    rest.split('"').next()
}
