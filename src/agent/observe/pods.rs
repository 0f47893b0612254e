//! Lists the node's pods once.

use std::time::Duration;

use futures::StreamExt;
use tokio::time::timeout;
use tracing::warn;

use crate::cluster::Cluster;
use crate::pod::{Pod, PodEvent, Wanted};

/// Lists the node's pods from the API server; `None` if that fails, or one event takes longer than
/// `event_timeout`.
pub async fn list_pods(cluster: &Cluster, node: &str, event_timeout: Duration) -> Option<Vec<Pod>> {
    let mut events = std::pin::pin!(cluster.watch_pods(node, Wanted::default()));
    let mut pods = Vec::new();
    loop {
        match timeout(event_timeout, events.next()).await.ok()?? {
            Ok(PodEvent::Init) => pods.clear(),
            Ok(PodEvent::InitApply(pod)) => pods.push(pod),
            Ok(PodEvent::InitDone) => return Some(pods),
            // They follow the list.
            Ok(PodEvent::Apply(_) | PodEvent::Delete(_) | PodEvent::Resumed) => {}
            Err(error) => {
                warn!("{error}");
                return None;
            }
        }
    }
}
