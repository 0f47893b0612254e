//! The node's devices, as Koordinator's Device object and sysfs tell them.

use std::sync::Arc;

use tokio::sync::watch;

use super::Settings;
use super::merge::{Node, Pci};
use crate::cluster::Cluster;
use crate::machine::HostRoots;
use crate::telemetry::proxy::Metrics;

/// Reads the Device object.
pub struct Follower;

/// Follows the node's devices.
pub fn follow(
    settings: &Settings,
    cluster: Option<Cluster>,
    metrics: &Metrics,
) -> (watch::Receiver<Node>, Option<Follower>) {
    let _ = (cluster, metrics);
    let (_, node) = watch::channel(Node::new(
        None,
        Arc::new(Pci::new(HostRoots { sys: settings.sys.clone(), proc: "/proc".into() })),
    ));
    (node, None)
}
