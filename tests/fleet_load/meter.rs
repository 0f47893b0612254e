//! Counts what happens between two moments.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Result;
use jiff::Timestamp;

use crate::audit::{AuditLog, Request};
use crate::figures::{Kind, Phase, Role};
use crate::fleet::Fleet;
use crate::samples::Samples;
use crate::support::Cluster;

/// Lists of objects that the API server answered from its cache: the objects that it looked at.
const CACHE: &str = "apiserver_cache_list_fetched_objects_total";
/// The same from 1.37 on, with the label `storage`.
const FETCHED: &str = "apiserver_storage_list_fetched_objects_total";
/// Watches that begin with all objects: those that it looked at.
const INITIAL: &str = "apiserver_init_events_total";
/// Lists that it answered from etcd: the objects that it read.
const ETCD: &str = "apiserver_storage_list_evaluated_objects_total";
const ETCD_REQUESTS: &str = "etcd_request_duration_seconds_count";
const CPU: &str = "process_cpu_seconds_total";

/// Counters of one moment.
pub(crate) struct Meter {
    samples: Samples,
    bytes: [u64; 2],
    refreshes: f64,
    nudges: f64,
    began: Instant,
    /// When the API server that answers was started.
    restarted: Option<Timestamp>,
}

/// The counters of the API server that matter here.
pub(crate) async fn samples(cluster: &Cluster) -> Result<Samples> {
    Ok(Samples::read(&cluster.metrics().await?, &[CACHE, FETCHED, INITIAL, ETCD, ETCD_REQUESTS, CPU]))
}

impl Meter {
    /// Begins to count.
    pub(crate) async fn begin(cluster: &Cluster, fleet: &Fleet, log: &mut AuditLog) -> Result<Self> {
        let samples = samples(cluster).await?;
        // What came before counts for nobody.
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

    /// The API server is started now, as another process: its counters begin with those of `idle`, one that was just started
    /// and that nobody asks for anything.
    #[allow(clippy::disallowed_methods, reason = "the audit log is by the wall clock")]
    pub(crate) fn restarts(&mut self, idle: &Samples) {
        (self.samples, self.restarted) = (idle.clone(), Some(Timestamp::now()));
    }

    /// What was counted since.
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
        // A watch that goes on from a version is told what came after it, and that is counted as well.
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

/// Are these the labels of what is counted of pods? Older API servers name the place in etcd.
fn of_pods(labels: &BTreeMap<String, String>) -> bool {
    let named = |label: &str, name: &str| labels.get(label).is_some_and(|is| is == name);
    named("resource", "pods") || named("resource_prefix", "/pods")
}

fn of_cached_pods(labels: &BTreeMap<String, String>) -> bool {
    of_pods(labels) && labels.get("storage").is_some_and(|storage| storage == "watchcache")
}

/// What failed is told with its code, and is no write.
fn by_verb(requests: &[Request]) -> BTreeMap<(Role, String, String), u64> {
    let mut counts = BTreeMap::new();
    for Request { role, verb, resource, code, .. } in requests {
        let verb = if *code < 400 { verb.clone() } else { format!("{verb} ({code})") };
        *counts.entry((*role, verb, resource.clone())).or_default() += 1;
    }
    counts
}

/// When the requests of agents came after `start`, in seconds after the first of them, sorted.
fn arrivals(requests: &[Request], start: Timestamp) -> Vec<f64> {
    let agents = requests.iter().filter(|request| request.role != Role::Controller && request.at >= start);
    let mut seconds: Vec<f64> =
        agents.map(|request| request.at.duration_since(start).as_secs_f64()).collect();
    seconds.sort_by(f64::total_cmp);
    let first = seconds.first().copied().unwrap_or_default();
    seconds.into_iter().map(|at| at - first).collect()
}
