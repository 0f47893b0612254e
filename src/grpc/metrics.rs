//! Metrics of a gRPC server's clients, which the proxy and the Pods API share.

use crate::telemetry::registry::{Counter, Family, Gauge, Label, Registry, label};

const COMPONENT: Label = label("component", "`proxy` or `pods_api`");

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
            connections: registry.gauges("numacast_grpc_connections", "Open connections of clients", [COMPONENT]),
            limits_exceeded: registry.counters(
                "numacast_grpc_limits_exceeded_total",
                "Connections that were closed, and requests that were rejected or slowed down, because of a limit or a \
                 violation of the protocol; see the log",
                [
                    COMPONENT,
                    label(
                        "reason",
                        "closed: `silent`: it sent nothing; `protocol`: it violated the protocol; `stalled`: it did \
                         not read a response; `connections`: there were too many connections, of this client or in \
                         total. Rejected or slowed down: `flood`: too many frames per second; `calls`: \
                         too many calls; `failures`: hundreds of failing calls per second; `rate_limit`: more than 100 List and Get calls of the Pods API \
                         per second",
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
