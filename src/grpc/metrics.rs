//! Metrics of a gRPC server's clients, which the proxy and the Pods API share.

use crate::telemetry::registry::{Counter, Family, Gauge, Label, Registry, label};

const COMPONENT: Label = label("component", "`proxy`, `pods_api` or `pod_info` (PodInfo's own socket)");

/// Counts connections, and violations of limits, of one server.
#[derive(Clone, Debug)]
pub struct ServerMetrics {
    component: &'static str,
    connections: Family<1, Gauge>,
    limits_exceeded: Family<2, Counter>,
}

impl ServerMetrics {
    /// Registers the metrics, with `component` as the value of that label.
    pub fn register(registry: &mut Registry, component: &'static str) -> Self {
        Self {
            component,
            connections: registry.gauges(
                "numacast_grpc_connections",
                "Open connections of clients",
                [COMPONENT],
            ),
            limits_exceeded: registry.counters(
                "numacast_grpc_limits_exceeded_total",
                "Connections closed, and requests rejected or slowed down, for exceeding a limit or \
                 violating the protocol",
                [
                    COMPONENT,
                    label(
                        "reason",
                        "closed: `silent` (sent nothing), `protocol` (violated it), `stalled` (did not read \
                         a response), `connections` (too many, of the client or in total); rejected or \
                         slowed down: `flood` (too many frames), `calls` (too many), `failures` (hundreds \
                         per second), `rate_limit` (List and Get of the Pods API)",
                    ),
                ],
            ),
        }
    }

    pub(super) fn connections(&self, count: usize) {
        self.connections.with([self.component]).set(count as u64);
    }

    /// Counts a client that violated a limit or the protocol ([`super::Violation::as_str`]), or exceeded a
    /// limit of the service itself.
    pub(crate) fn limit_exceeded(&self, reason: &str) {
        self.limits_exceeded.with([self.component, reason]).inc();
    }
}
