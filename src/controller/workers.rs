//! The leader's workers: they watch the Nodes and the agents' pods, make passes over all objects, and nudge
//! while pods are pending.
//!
//! kube-runtime's `Controller` does not fit: it reconciles single objects, while most decisions here compare
//! all Nodes with all objects.

mod agents;
mod agents_not_ready;
mod fleet;
mod garbage_collection;
mod nodes;
mod nudges;

use std::sync::{Mutex, MutexGuard};

use tokio::sync::{Notify, watch};

use super::coverage::Coverage;
use super::events::EventRecorder;
use super::garbage_collection::GarbageCollector;
use super::metrics::Metrics;
use super::node_problems::NodeProblems;
use super::object_cache::ObjectCache;
use super::settings::Settings;
use crate::cluster::Cluster;
use crate::util::sync::lock;

/// The cached state of a Node, some 150 bytes.
#[derive(Clone, Debug)]
struct CachedNode {
    uid: Box<str>,
    covered: bool,
    ready: bool,
}

#[derive(Clone, Debug)]
struct CachedAgent {
    node: Box<str>,
    ready: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
enum DaemonSets {
    #[default]
    Unknown,
    /// Agents are not checked: a DaemonSet does not exist, is being deleted, cannot be used or was never read,
    /// or no name is configured.
    Missing,
    /// The Nodes they cover, and the labels of their pods.
    Present { coverage: Vec<Coverage>, labels: String },
}

#[derive(Debug)]
struct State {
    nodes: ObjectCache<CachedNode>,
    agents: ObjectCache<CachedAgent>,
    garbage: GarbageCollector,
    /// Nodes without a Ready agent.
    without_ready_agent: NodeProblems,
    /// Nodes with a Ready agent but no object.
    missing: NodeProblems,
}

impl State {
    /// Creates an empty state, except for the recent deletions in `garbage`.
    fn new(settings: &Settings, garbage: GarbageCollector) -> Self {
        Self {
            nodes: ObjectCache::default(),
            agents: ObjectCache::default(),
            garbage,
            without_ready_agent: NodeProblems::new(settings.not_ready_after),
            missing: NodeProblems::new(settings.not_ready_after),
        }
    }
}

/// The leader's workers, in one term after another.
pub(super) struct Workers<'a> {
    settings: &'a Settings,
    cluster: &'a Cluster,
    metrics: &'a Metrics,
    events: &'a EventRecorder,
    state: Mutex<State>,
    daemon_sets: watch::Sender<DaemonSets>,
    /// Notified when the Nodes were listed or some were deleted.
    nodes_changed: Notify,
}

impl<'a> Workers<'a> {
    pub(super) fn new(
        settings: &'a Settings,
        cluster: &'a Cluster,
        metrics: &'a Metrics,
        events: &'a EventRecorder,
    ) -> Self {
        let state = State::new(settings, GarbageCollector::new(settings.garbage));
        Self {
            settings,
            cluster,
            metrics,
            events,
            state: Mutex::new(state),
            daemon_sets: watch::Sender::new(DaemonSets::default()),
            nodes_changed: Notify::new(),
        }
    }

    /// Runs a term, forever. State from the previous term is dropped.
    pub(super) async fn run(&self) {
        let garbage = self.state().garbage.next_term();
        *self.state() = State::new(self.settings, garbage);
        self.daemon_sets.send_replace(DaemonSets::Unknown);
        tokio::join!(
            self.poll_daemon_sets(),
            self.watch_agents(),
            self.watch_nodes(),
            self.collect_garbage(),
            self.report_agents_not_ready(),
            self.aggregate_fleet(),
            self.nudge(),
        );
    }

    /// Locks the state. Never held across an await.
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}
