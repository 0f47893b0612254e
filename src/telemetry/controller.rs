//! Metrics and health of the controller. [`DOCS`] has the names and help texts.

mod docs;
mod health;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::metrics::{Counts, Doc, Process, expose, gauge, now, register};
use super::server::Exposition;
use crate::cluster::{ClusterError, Sum, is_native};

pub use docs::DOCS;
pub use health::{Bounds, Health};

use docs::{
    AGENTS, ALLOCATABLE, AVAILABLE, BUILD, CAPACITY, COVERED, DAEMON_SET, DELETE_ERRORS, DELETED, ERRORS,
    EVENTS, FLEET_TIME, FOREIGN, GARBAGE_TIME, HELD_BACK, LEADER, MISSING, NEWER, NODES, NUDGE_ERRORS,
    NUDGES, OBJECTS, ORPHANS, REJECTED, SILENT,
};

/// Maximum number of resources; the rest is omitted, devices first. A cluster has a few dozen.
const MOST_RESOURCES: usize = 128;
/// Maximum length of a resource name: a DNS name, a slash and 63 characters.
const RESOURCE_NAME: usize = 317;

/// Figures of the whole cluster. Unknown ones have no sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Objects by policy and scope.
    pub nodes: BTreeMap<(&'static str, &'static str), u64>,
    /// Totals by resource.
    pub resources: BTreeMap<String, Sum>,
    /// Number of objects.
    pub objects: Option<u64>,
    /// Objects whose zones were written by another field manager.
    pub foreign: Option<u64>,
    /// Objects created after the scheduler started.
    pub newer: Option<u64>,
    /// Ready Nodes with a Ready agent but without an object.
    pub missing: Option<u64>,
    /// Whether the agents' DaemonSet exists.
    pub daemon_set: Option<bool>,
    /// Nodes that should have an agent.
    pub covered: Option<u64>,
    /// Covered Nodes with a Ready agent.
    pub agents: Option<u64>,
    /// Nodes whose agent is silent.
    pub silent: Option<u64>,
    /// Objects without a Node.
    pub orphans: Option<u64>,
    /// Pods pending because the scheduler plugin rejected nodes.
    pub rejected_pods: Option<u64>,
}

/// The current figures; known only to the leader.
#[derive(Clone, Debug, Default)]
struct Shown(Arc<Mutex<Figures>>);

impl Collector for Shown {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let figures = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let encoder = &mut encoder;
        by_policy(encoder, &figures)?;
        by_resource(encoder, &CAPACITY, &figures, |sum| sum.capacity)?;
        by_resource(encoder, &ALLOCATABLE, &figures, |sum| sum.allocatable)?;
        by_resource(encoder, &AVAILABLE, &figures, |sum| sum.available)?;
        for (doc, value) in [
            (&OBJECTS, figures.objects),
            (&DAEMON_SET, figures.daemon_set.map(u64::from)),
            (&COVERED, figures.covered),
            (&AGENTS, figures.agents),
            (&SILENT, figures.silent),
            (&MISSING, figures.missing),
            (&FOREIGN, figures.foreign),
            (&NEWER, figures.newer),
            (&ORPHANS, figures.orphans),
            (&REJECTED, figures.rejected_pods),
        ] {
            gauge(encoder, doc, value)?;
        }
        Ok(())
    }
}

fn by_policy(encoder: &mut DescriptorEncoder<'_>, figures: &Figures) -> fmt::Result {
    let help = format!("{}.", NODES.help);
    let mut family = encoder.encode_descriptor(NODES.family(), &help, None, MetricType::Gauge)?;
    for ((policy, scope), nodes) in &figures.nodes {
        let labels = [("policy", *policy), ("scope", *scope)];
        family.encode_family(&labels)?.encode_gauge(nodes)?;
    }
    Ok(())
}

fn by_resource(
    encoder: &mut DescriptorEncoder<'_>,
    doc: &Doc,
    figures: &Figures,
    amount: impl Fn(&Sum) -> u64,
) -> fmt::Result {
    let help = format!("{}.", doc.help);
    let mut family = encoder.encode_descriptor(doc.family(), &help, None, MetricType::Gauge)?;
    let native = figures.resources.iter().filter(|(name, _)| is_native(name));
    let others = figures.resources.iter().filter(|(name, _)| !is_native(name));
    for (name, sum) in native.chain(others).take(MOST_RESOURCES) {
        let name: String = name.chars().take(RESOURCE_NAME).collect();
        family.encode_family(&[("resource", name)])?.encode_gauge(&amount(sum))?;
    }
    Ok(())
}

/// The controller's metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    health: Arc<Health>,
    leader: Gauge,
    errors: Counts,
    events: Counts,
    deleted: Counter,
    delete_errors: Counts,
    held_back: Gauge,
    nudges: Counter,
    nudge_errors: Counts,
    garbage_time: Gauge<f64, AtomicU64>,
    fleet_time: Gauge<f64, AtomicU64>,
    shown: Shown,
}

impl Metrics {
    /// Returns metrics without any observations.
    #[must_use]
    pub fn new(health: Arc<Health>) -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            health,
            leader: Gauge::default(),
            errors: Counts::default(),
            events: Counts::default(),
            deleted: Counter::default(),
            delete_errors: Counts::default(),
            held_back: Gauge::default(),
            nudges: Counter::default(),
            nudge_errors: Counts::default(),
            garbage_time: Gauge::default(),
            fleet_time: Gauge::default(),
            shown: Shown::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        register(registry, &BUILD, Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        register(registry, &LEADER, self.leader.clone());
        register(registry, &ERRORS, self.errors.clone());
        register(registry, &EVENTS, self.events.clone());
        register(registry, &DELETED, self.deleted.clone());
        register(registry, &DELETE_ERRORS, self.delete_errors.clone());
        register(registry, &HELD_BACK, self.held_back.clone());
        register(registry, &NUDGES, self.nudges.clone());
        register(registry, &NUDGE_ERRORS, self.nudge_errors.clone());
        register(registry, &GARBAGE_TIME, self.garbage_time.clone());
        register(registry, &FLEET_TIME, self.fleet_time.clone());
        registry.register_collector(Box::new(self.shown.clone()));
        registry.register_collector(Box::new(Process::default()));
    }

    /// Returns the controller's health, which is updated together with the metrics.
    #[must_use]
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// Sets whether this replica leads, and clears the figures, which only a leader knows.
    pub fn leads(&self, leads: bool) {
        self.leader.set(i64::from(leads));
        self.health.leads(leads);
        self.held_back.set(0);
        self.figures(|figures| *figures = Figures::default());
    }

    /// Counts a failed call to the API server.
    pub fn call_failed(&self, error: &ClusterError) {
        self.errors.get_or_create(&[("kind", error.kind())]).inc();
    }

    /// Counts a failed watch.
    pub fn watch_failed(&self) {
        self.errors.get_or_create(&[("kind", "watch")]).inc();
    }

    /// Counts a posted Kubernetes Event.
    pub fn event_posted(&self, reason: &'static str) {
        self.events.get_or_create(&[("reason", reason)]).inc();
    }

    /// Counts a deleted object.
    pub fn deleted(&self) {
        self.deleted.inc();
    }

    /// Counts a failed deletion of an object.
    pub fn delete_failed(&self, error: &ClusterError) {
        self.delete_errors.get_or_create(&[("kind", error.kind())]).inc();
    }

    /// Records a garbage collection pass that found this many objects without a Node.
    pub fn looked_for_garbage(&self, orphans: usize) {
        self.figures(|figures| figures.orphans = u64::try_from(orphans).ok());
        self.garbage_time.set(now());
        self.health.looked_for_garbage();
    }

    /// Sets whether deletion is paused.
    pub fn held_back(&self, held: bool) {
        self.held_back.set(i64::from(held));
    }

    /// Counts a nudged object.
    pub fn nudged(&self) {
        self.nudges.inc();
    }

    /// Counts a failed nudge of an object.
    pub fn nudge_failed(&self, error: &ClusterError) {
        self.nudge_errors.get_or_create(&[("kind", error.kind())]).inc();
    }

    /// Records that the figures of all objects were computed. The next pass starts within `next`.
    pub fn summed_up(&self, next: std::time::Duration) {
        self.fleet_time.set(now());
        self.health.summed_up(next);
    }

    /// Updates the figures.
    pub fn figures(&self, change: impl FnOnce(&mut Figures)) {
        change(&mut self.shown.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Exposition for Metrics {
    fn encode(&self) -> String {
        expose(&self.registry)
    }
}

#[cfg(test)]
mod tests;
