//! Counts events between two moments.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Result;
use jiff::Timestamp;

use crate::audit::{AuditLog, Request};
use crate::figures::{Kind, Phase, Role};
use crate::fleet::Fleet;
use crate::samples::Samples;
use crate::support::Cluster;

/// Objects read from the cache for lists.
const CACHE: &str = "apiserver_cache_list_fetched_objects_total";
/// The same metric from 1.37 on, with the label `storage`.
const FETCHED: &str = "apiserver_storage_list_fetched_objects_total";
/// Objects read for watches that start with all objects.
const INITIAL: &str = "apiserver_init_events_total";
/// Objects read from etcd for lists.
const ETCD: &str = "apiserver_storage_list_evaluated_objects_total";
const ETCD_REQUESTS: &str = "etcd_request_duration_seconds_count";
const CPU: &str = "process_cpu_seconds_total";

/// The counters at one moment.
pub(crate) struct Meter {
    samples: Samples,
    bytes: [u64; 2],
    refreshes: f64,
    nudges: f64,
    began: Instant,
    /// When the current API server was started.
    restarted: Option<Timestamp>,
}

/// Scrapes the API server's relevant counters.
pub(crate) async fn samples(cluster: &Cluster) -> Result<Samples> {
    Ok(Samples::read(&cluster.metrics().await?, &[CACHE, FETCHED, INITIAL, ETCD, ETCD_REQUESTS, CPU]))
}

impl Meter {
    /// Starts counting.
    pub(crate) async fn begin(cluster: &Cluster, fleet: &Fleet, log: &mut AuditLog) -> Result<Self> {
        let samples = samples(cluster).await?;
        // Drops earlier requests.
        drop(log.read()?);
        Ok(Self {
            samples,
            bytes: fleet.agents.bytes(),
            refreshes: fleet.writes_for("refresh"),
            nudges: fleet.writes_for("nudge"),
            began: Instant::now(),
            restarted: None,
        })
    }

    /// Called when a new API server process is started: its counters begin at those of `idle`, one that was
    /// just started and has no clients.
    #[allow(clippy::disallowed_methods, reason = "the audit log is by the wall clock")]
    pub(crate) fn restarts(&mut self, idle: &Samples) {
        (self.samples, self.restarted) = (idle.clone(), Some(Timestamp::now()));
    }

    /// Returns the counts since `begin`.
    pub(crate) async fn end(
        self,
        cluster: &Cluster,
        fleet: &Fleet,
        log: &mut AuditLog,
        (kind, name, changes): (Kind, String, usize),
    ) -> Result<Phase> {
        let seconds = self.began.elapsed().as_secs_f64();
        let counted = samples(cluster).await?.since(&self.samples);
        let requests = log.read()?;
        let pods = |metric: &str| counted.sum(metric, of_pods);
        let lists =
            |of: Role| requests.iter().filter(move |request| request.role == of && request.lists_pods());
        // The metric also counts the events of watches that resume from a version.
        let from_the_start = requests.iter().any(|request| request.verb == "watch" && request.lists_pods());
        let initial = if from_the_start { pods(INITIAL) } else { 0.0 };
        let etcd = |operation: &str| {
            let of = |labels: &BTreeMap<String, String>| {
                labels.get("operation").is_some_and(|is| is.starts_with(operation))
            };
            counted.sum(ETCD_REQUESTS, of)
        };
        let now = fleet.agents.bytes();
        let by_controller = |request: &&Request| {
            request.role == Role::Controller
                && request.verb == "patch"
                && request.resource == "noderesourcetopologies"
        };
        let nudges = fleet.writes_for("nudge") - self.nudges;
        Ok(Phase {
            kind,
            name,
            seconds,
            nodes: fleet.nodes.len(),
            pods: fleet.pods,
            changes,
            late: 0,
            bytes: [now[0] - self.bytes[0], now[1] - self.bytes[1]],
            refreshes: fleet.writes_for("refresh") - self.refreshes,
            nudges: nudges + requests.iter().filter(by_controller).count() as f64,
            pod_lists: lists(Role::Agents).count() as u64,
            controller_lists: lists(Role::Controller).count() as u64,
            from_cache: pods(CACHE) + counted.sum(FETCHED, of_cached_pods) + initial,
            from_etcd: pods(ETCD),
            etcd: [etcd("get"), etcd("list")],
            cpu: counted.sum(CPU, |_| true),
            arrivals: self.restarted.map(|start| arrivals(&requests, start)).unwrap_or_default(),
            requests: by_verb(&requests),
        })
    }
}

/// Returns true if the labels are those of pods. Older API servers report the prefix in etcd.
fn of_pods(labels: &BTreeMap<String, String>) -> bool {
    let named = |label: &str, name: &str| labels.get(label).is_some_and(|is| is == name);
    named("resource", "pods") || named("resource_prefix", "/pods")
}

fn of_cached_pods(labels: &BTreeMap<String, String>) -> bool {
    of_pods(labels) && labels.get("storage").is_some_and(|storage| storage == "watchcache")
}

/// Counts requests by role, verb and resource. Failed ones have the status code added to the verb, and so do
/// not count as writes.
fn by_verb(requests: &[Request]) -> BTreeMap<(Role, String, String), u64> {
    let mut counts = BTreeMap::new();
    for Request { role, verb, resource, code, .. } in requests {
        let verb = if *code < 400 { verb.clone() } else { format!("{verb} ({code})") };
        *counts.entry((*role, verb, resource.clone())).or_default() += 1;
    }
    counts
}

/// Returns the times of all but the controller's requests after `start`, in seconds since the first of them,
/// sorted.
fn arrivals(requests: &[Request], start: Timestamp) -> Vec<f64> {
    let agents = requests.iter().filter(|request| request.role != Role::Controller && request.at >= start);
    let mut seconds: Vec<f64> =
        agents.map(|request| request.at.duration_since(start).as_secs_f64()).collect();
    seconds.sort_by(f64::total_cmp);
    let first = seconds.first().copied().unwrap_or_default();
    seconds.into_iter().map(|at| at - first).collect()
}
