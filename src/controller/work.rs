//! The work of the leader: follows the Nodes and the agents' pods, makes passes over all objects, and nudges
//! while pods are pending.

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

/// The cached state of a Node, some 150 bytes.
#[derive(Clone, Debug)]
struct KnownNode {
    uid: Box<str>,
    covered: bool,
    ready: bool,
}

/// The cached state of an agent's pod.
#[derive(Clone, Debug)]
struct KnownAgent {
    node: Box<str>,
    ready: bool,
}

/// The state of the agents' DaemonSet.
#[derive(Clone, Debug, Default, PartialEq)]
enum Agents {
    /// Not read yet.
    #[default]
    Unread,
    /// There is no DaemonSet, or none is configured.
    None,
    /// The Nodes it covers, and the labels of its pods.
    Some { coverage: Coverage, labels: String },
}

/// The known state of the cluster.
#[derive(Debug)]
struct Known {
    nodes: Followed<KnownNode>,
    agents: Followed<KnownAgent>,
    garbage: Garbage,
    /// Nodes without a Ready agent.
    silent: Silence,
    /// Nodes with a Ready agent but no object.
    missing: Silence,
}

impl Known {
    /// Creates an empty state, except for the recent deletions in `garbage`.
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

/// The leader's work, in one term after another.
pub(super) struct Work<'a> {
    settings: &'a Settings,
    cluster: &'a Cluster,
    metrics: &'a Metrics,
    notices: &'a Notices,
    known: Mutex<Known>,
    daemon_set: watch::Sender<Agents>,
    /// Notified when the Nodes were listed or some were deleted.
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

    /// Runs a term, forever. State from the previous term is dropped.
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

    /// Locks the state. Never held across an await.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
