//! What whoever leads does: it follows the Nodes and the agents' pods, looks at all objects again and again, and nudges
//! while pods wait.

mod agents;
mod garbage;
mod nodes;
mod nudges;
mod silence;
mod sums;

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use super::coverage::Coverage;
use super::followed::Followed;
use super::garbage::Garbage;
use super::notices::Notices;
use super::settings::Settings;
use super::silence::Silence;
use crate::cluster::Cluster;
use crate::telemetry::controller::Metrics;

/// What is kept of a Node: some 150 bytes.
#[derive(Clone, Debug)]
struct KnownNode {
    uid: Box<str>,
    covered: bool,
    ready: bool,
}

/// What is kept of an agent's pod.
#[derive(Clone, Debug)]
struct KnownAgent {
    node: Box<str>,
    ready: bool,
}

/// What the DaemonSet says.
#[derive(Clone, Debug, Default, PartialEq)]
enum Agents {
    /// It was not read yet.
    #[default]
    Unread,
    /// Nobody looks for agents, or there is no DaemonSet.
    None,
    /// It covers these Nodes, and its pods have these labels.
    Some { coverage: Coverage, labels: String },
}

/// Everything that is known of the cluster.
#[derive(Debug)]
struct Known {
    nodes: Followed<KnownNode>,
    agents: Followed<KnownAgent>,
    garbage: Garbage,
    /// Nodes without a Ready agent.
    silent: Silence,
    /// Nodes with one, and without an object.
    missing: Silence,
}

impl Known {
    /// Nothing, but what was deleted lately.
    fn new(settings: &Settings, garbage: Garbage) -> Self {
        Self {
            nodes: Followed::default(),
            agents: Followed::default(),
            garbage,
            silent: Silence::new(settings.silent_after),
            missing: Silence::new(settings.silent_after),
        }
    }
}

/// The work of whoever leads, one term after the other.
pub(super) struct Work<'a> {
    settings: &'a Settings,
    cluster: &'a Cluster,
    metrics: &'a Metrics,
    notices: &'a Notices,
    known: Mutex<Known>,
    daemon_set: watch::Sender<Agents>,
    /// The Nodes were listed, or some are gone.
    nodes_changed: Notify,
}

impl<'a> Work<'a> {
    pub(super) fn new(
        settings: &'a Settings,
        cluster: &'a Cluster,
        metrics: &'a Metrics,
        notices: &'a Notices,
    ) -> Self {
        let known = Known::new(settings, Garbage::new(settings.garbage));
        Self {
            settings,
            cluster,
            metrics,
            notices,
            known: Mutex::new(known),
            daemon_set: watch::Sender::new(Agents::default()),
            nodes_changed: Notify::new(),
        }
    }

    /// A term. Goes on for ever; whatever was known of the cluster in the last one is forgotten.
    pub(super) async fn run(&self) {
        self.begin();
        tokio::join!(
            self.read_daemon_set(),
            self.follow_agents(),
            self.follow_nodes(),
            self.collect_garbage(),
            self.look_for_silence(),
            self.sum_up(),
            self.nudge(),
        );
    }

    fn begin(&self) {
        let mut known = self.known();
        let garbage = known.garbage.next_term();
        *known = Known::new(self.settings, garbage);
        self.daemon_set.send_replace(Agents::Unread);
    }

    /// Never held while anything is waited for.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
