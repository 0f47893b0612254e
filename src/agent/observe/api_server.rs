//! Whether the API server responds, from which a restarted kubelet gets its pods.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::{Cluster, ClusterError};

/// Minimum interval between two checks: all agents of a cluster may wait for their kubelets at the same time.
const INTERVAL: Duration = Duration::from_secs(5);

/// Checks the API server while the agent waits for a restarted kubelet.
#[derive(Debug)]
pub(in crate::agent) struct ApiServerCheck {
    cluster: Cluster,
    node: String,
    /// Whether the last check failed, and its time. `None` unless the agent waits for a kubelet.
    last: Option<(bool, Instant)>,
}

impl ApiServerCheck {
    pub(in crate::agent) fn new(cluster: Cluster, node: String) -> Self {
        Self { cluster, node, last: None }
    }

    /// Returns true unless there was a check lately.
    pub(in crate::agent) fn is_due(&self) -> bool {
        self.last.is_none_or(|(_, at)| at.elapsed() >= INTERVAL)
    }

    /// Sends a request, and returns whether it failed for lack of a response.
    pub(in crate::agent) fn fails(&self) -> impl Future<Output = bool> + use<> {
        let (cluster, node) = (self.cluster.clone(), self.node.clone());
        async move {
            let response = cluster.node_uid(&node).await;
            matches!(response, Err(ClusterError::Unreachable { .. } | ClusterError::Deadline { .. }))
        }
    }

    /// Records the result of a check.
    pub(in crate::agent) fn record(&mut self, failed: bool) {
        self.last = Some((failed, Instant::now()));
    }

    /// Forgets the last check.
    pub(in crate::agent) fn reset(&mut self) {
        self.last = None;
    }

    /// Returns true if the last check failed.
    pub(in crate::agent) fn has_failed(&self) -> bool {
        self.last.is_some_and(|(failed, _)| failed)
    }
}
