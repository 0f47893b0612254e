//! Kubernetes Events about the fleet, limited to what an operator must act on.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::time::Instant;
use tracing::debug;

use crate::bucket::Bucket;
use crate::cluster::{Cluster, Regarding, Report};
use crate::telemetry::controller::Metrics;

/// The reporting controller, a qualified name.
const REPORTER: &str = "numacast/controller";
/// Burst of Events about all Nodes together.
const BURST: f64 = 20.0;
/// Burst of Events about garbage.
const FEW: f64 = 4.0;
/// Events per second after the burst: one a minute.
const RATE: f64 = 1.0 / 60.0;

/// The reason of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// A Node's agent is not working.
    AgentSilent,
    /// A Node has no object.
    ObjectMissing,
    /// Objects of apparently removed Nodes are not deleted.
    GarbageHeldBack,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 3] = [Self::AgentSilent, Self::ObjectMissing, Self::GarbageHeldBack];

    /// Returns the Event's `reason`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AgentSilent => "AgentSilent",
            Self::ObjectMissing => "ObjectMissing",
            Self::GarbageHeldBack => "GarbageHeldBack",
        }
    }

    /// Returns what the Event is about, when it is posted, and what to do; `docs/events.md` is generated from
    /// these.
    #[must_use]
    pub const fn words(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::AgentSilent => (
                "the Node",
                "A Ready Node that the DaemonSet covers has had no Ready agent for `controller.silent.after`; its object \
                 gets old, and the scheduler goes by it",
                "Look at the agent's pod on that Node, and at its log",
            ),
            Self::ObjectMissing => (
                "the Node",
                "A Ready Node with a Ready agent has had no NodeResourceTopology for `controller.silent.after`; the \
                 scheduler plugin aligns nothing there",
                "Look whether something deletes the object, and whether `nodeName` (NODE_NAME) of the agent is the Node's \
                 name",
            ),
            Self::GarbageHeldBack => (
                "the CustomResourceDefinition",
                "So many objects have no Node that the list of Nodes may be wrong; nothing is deleted",
                "Compare `kubectl get nodes` with what there should be. If these Nodes are really gone, set \
                 `controller.garbage.most: 100` for once",
            ),
        }
    }
}

/// Posts Events, rate-limited.
#[derive(Debug)]
pub(super) struct Notices {
    cluster: Cluster,
    instance: String,
    metrics: Arc<Metrics>,
    on: bool,
    /// Limits Events about Nodes.
    nodes: Mutex<Bucket>,
    /// Limits Events about garbage, separately, so that many silent Nodes do not suppress them.
    garbage: Mutex<Bucket>,
}

impl Notices {
    pub(super) fn new(cluster: Cluster, instance: String, on: bool, metrics: Arc<Metrics>) -> Self {
        let bucket = |burst| Mutex::new(Bucket::new(RATE, burst, Instant::now()));
        Self { cluster, instance, metrics, on, nodes: bucket(BURST), garbage: bucket(FEW) }
    }

    async fn may_post(&self, reason: Reason) -> bool {
        let bucket = match reason {
            Reason::AgentSilent | Reason::ObjectMissing => &self.nodes,
            Reason::GarbageHeldBack => &self.garbage,
        };
        bucket.lock().await.take_now(Instant::now())
    }

    /// Posts an Event. Returns false if it must be retried later because of the rate limit.
    pub(super) async fn post(&self, reason: Reason, regarding: Regarding<'_>, note: &str) -> bool {
        if !self.on {
            return true;
        }
        if !self.may_post(reason).await {
            return false;
        }
        let report = Report {
            regarding,
            reporter: REPORTER,
            instance: &self.instance,
            action: "Control",
            warning: true,
            reason: reason.name(),
            note,
        };
        match self.cluster.post_event(report).await {
            Ok(()) => self.metrics.event_posted(reason.name()),
            Err(error) => {
                self.metrics.call_failed(&error);
                debug!("no event {}: {error}", reason.name());
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::generated;

    #[test]
    fn the_document_lists_every_reason() {
        let mut table = "| reason | type | about | when | what to do |\n|---|---|---|---|---|\n".to_owned();
        for reason in Reason::ALL {
            let (about, when, what) = reason.words();
            writeln!(table, "| `{}` | Warning | {about} | {when} | {what} |", reason.name()).unwrap();
        }
        generated::section("docs/events.md", "events of the controller", &table);
    }
}
