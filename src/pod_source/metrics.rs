//! Metrics of the pod sources, shared by the components that read pods.

use crate::telemetry::registry::{Counter, Family, Gauge, Label, Registry, label};

const COMPONENT: Label = label("component", "`agent`, `proxy` (without agent) or `pods_api`");
const SOURCE: Label = label("source", "`api_server`, `pods_api` or `kubelet` (its `/pods`)");

/// State and errors of the pod sources of one component.
#[derive(Clone, Debug)]
pub struct PodSourceMetrics {
    component: &'static str,
    up: Family<2, Gauge>,
    errors: Family<2, Counter>,
}

impl PodSourceMetrics {
    /// Registers the metrics of `component`.
    pub fn register(registry: &mut Registry, component: &'static str) -> Self {
        Self {
            component,
            up: registry.gauges(
                "numacast_pod_source_up",
                "1 while the source works and has listed all pods, else 0",
                [COMPONENT, SOURCE],
            ),
            errors: registry.counters(
                "numacast_pod_source_errors_total",
                "Failed connections, requests and watches of the source",
                [COMPONENT, SOURCE],
            ),
        }
    }

    /// Sets whether a source works and has listed all pods.
    pub fn set_up(&self, source: &str, up: bool) {
        self.up.with([self.component, source]).set(u64::from(up));
    }

    /// As [`PodSourceMetrics::set_up`], for a component that uses one source at a time: the others are not
    /// shown any longer.
    pub fn set_source(&self, source: &str, up: bool) {
        self.up.retain(|[component, shown]| component != self.component || shown == source);
        self.set_up(source, up);
    }

    /// Counts an error of a source.
    pub fn count_error(&self, source: &str) {
        self.errors.with([self.component, source]).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::registry::samples;

    #[test]
    fn only_the_source_in_use_is_shown() {
        let mut registry = Registry::default();
        let agent = PodSourceMetrics::register(&mut registry, "agent");
        let served = PodSourceMetrics::register(&mut registry, "pods_api");
        served.set_up("kubelet", true);
        agent.set_source("api_server", false);
        agent.count_error("api_server");
        agent.set_source("pods_api", true);
        let up =
            [r#"{component="agent",source="pods_api"} 1"#, r#"{component="pods_api",source="kubelet"} 1"#];
        assert_eq!(samples(&registry, "numacast_pod_source_up"), up);
        let errors = [r#"{component="agent",source="api_server"} 1"#];
        assert_eq!(samples(&registry, "numacast_pod_source_errors_total"), errors);
    }
}
