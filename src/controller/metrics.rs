use std::sync::Arc;
use std::time::Duration;

use super::fleet::Fleet;
use super::health::Health;
use crate::cluster::{ClusterError, is_built_in};
use crate::fragmentation::Fragmentation;
use crate::telemetry::registry::{Counter, Family, Gauge, OptionalGauge, Registry, label, unix_seconds};

/// The controller's metrics. Updates also go to its health.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(super) health: Arc<Health>,
    leader: Gauge,
    pub(super) errors: Family<2, Counter>,
    pub(super) events: Family<1, Counter>,
    pub(super) deleted: Counter,
    pub(super) held_back: Gauge,
    pub(super) nudges: Counter,
    last_pass: Family<1, Gauge>,
    objects_by_policy: Family<2, Gauge>,
    resources: Family<2, Gauge>,
    shape_pods: Family<2, Gauge>,
    shape_stranded: Family<2, Gauge>,
    // Only the leader has these, and only while the value is known.
    pub(super) garbage: OptionalGauge,
    pub(super) rejected_pods: OptionalGauge,
    pub(super) daemon_set: OptionalGauge,
    covered: OptionalGauge,
    not_ready: OptionalGauge,
    missing: OptionalGauge,
    foreign: OptionalGauge,
    newer: OptionalGauge,
}

impl Metrics {
    pub(crate) fn register(registry: &mut Registry, health: Arc<Health>) -> Self {
        Self {
            health,
            leader: registry.gauge(
                "numacast_controller_leader",
                "1 for the replica that leads",
            ),
            errors: registry.counters(
                "numacast_controller_errors_total",
                "Failed requests to the API server, which are retried",
                [
                    label(
                        "operation",
                        "`delete`, `nudge`: errors that may be about the object; `request`: all others",
                    ),
                    label(
                        "kind",
                        "such as `unreachable`, `deadline`, `forbidden`, `no_crd`, `conflict` or `watch`",
                    ),
                ],
            ),
            events: registry.counters(
                "numacast_events_total",
                "Posted Kubernetes Events",
                [label("reason", "")],
            ),
            deleted: registry.counter("numacast_garbage_deleted_total", "Deleted objects of deleted Nodes"),
            held_back: registry.gauge(
                "numacast_garbage_held_back",
                "1 while nothing is deleted because the list of Nodes is unreliable, or too many objects \
                 have no Node",
            ),
            nudges: registry.counter(
                "numacast_nudges_total",
                "Updates of objects that make the scheduler retry rejected pods",
            ),
            last_pass: registry
                .gauges(
                    "numacast_controller_last_pass_timestamp_seconds",
                    "Unix time of the last pass over all objects; 0 before",
                    [label("pass", "`garbage`: deletion; `fleet`: totals")],
                )
                .at_zero([["garbage"], ["fleet"]]),
            objects_by_policy: registry.gauges(
                "numacast_fleet_objects",
                "Objects by Topology Manager policy and scope",
                [
                    label(
                        "policy",
                        "`none`, `best-effort`, `restricted`, `single-numa-node`, `other` or `unknown`",
                    ),
                    label("scope", "`container`, `pod`, `other` or `unknown`"),
                ],
            ),
            resources: registry.gauges(
                "numacast_fleet_resources",
                "CPUs, bytes or devices in the zones of all objects; a device in several zones counts in each",
                [
                    // A resource name: a DNS name, a slash and 63 characters. A cluster has a few dozen.
                    label(
                        "resource",
                        "such as `cpu`; `other` beyond 128",
                    )
                        .at_most(128, 317),
                    label("type", "`capacity`, `allocatable` or `available`"),
                ],
            ),
            shape_pods: registry.gauges(
                "numacast_fleet_shape_pods",
                "Pods of each of `controller.shapes` that fit into what is free, one shape at a time",
                [
                    label("shape", "the shape's name"),
                    label(
                        "placement",
                        "`aligned`: each within one zone; `any`: if zones did not matter",
                    ),
                ],
            ),
            shape_stranded: registry.gauges(
                "numacast_fleet_shape_stranded",
                "Free CPUs, bytes or devices, on nodes that are large enough for the shape, that none of its pods can \
                 use within one zone",
                [label("shape", "the shape's name"), label("resource", "the shape's resources")],
            ),
            garbage: registry.optional_gauge(
                "numacast_garbage_objects",
                "Objects without a Node, including those of just deleted Nodes",
            ),
            rejected_pods: registry.optional_gauge(
                "numacast_rejected_pods",
                "Pods pending because the scheduler plugin rejected nodes for them; missing with \
                 `controller.nudge: off`",
            ),
            daemon_set: registry.optional_gauge(
                "numacast_fleet_daemonset",
                "1 if the agents' DaemonSets exist and have usable selectors, else 0, and agents are not \
                 checked; missing without `controller.daemonSets`",
            ),
            covered: registry.optional_gauge(
                "numacast_fleet_covered_nodes",
                "Nodes that should have an agent, by the DaemonSets",
            ),
            not_ready: registry.optional_gauge(
                "numacast_fleet_nodes_without_ready_agent",
                "Covered, Ready Nodes without a Ready agent for at least five minutes",
            ),
            missing: registry.optional_gauge(
                "numacast_fleet_missing_objects",
                "Covered, Ready Nodes with a Ready agent but no object",
            ),
            foreign: registry.optional_gauge(
                "numacast_fleet_foreign_objects",
                "Objects whose zones another field manager wrote",
            ),
            newer: registry.optional_gauge(
                "numacast_fleet_objects_newer_than_scheduler",
                "Objects created after the scheduler started, which its plugin ignores; missing without \
                 `controller.scheduler`, and while none of its pods runs",
            ),
        }
    }

    /// Sets whether this replica leads, and removes what only a leader knows.
    pub(crate) fn leads(&self, leads: bool) {
        self.leader.set(u64::from(leads));
        self.health.leads(leads);
        self.held_back.set(0);
        self.objects_by_policy.clear();
        self.resources.clear();
        self.shape_pods.clear();
        self.shape_stranded.clear();
        let Self { garbage, rejected_pods, daemon_set, covered, not_ready, missing, foreign, newer, .. } =
            self;
        for gauge in [garbage, rejected_pods, daemon_set, covered, not_ready, missing, foreign, newer] {
            gauge.clear();
        }
    }

    pub(crate) fn request_failed(&self, error: &ClusterError) {
        self.errors.with(["request", error.kind()]).inc();
    }

    /// Records a garbage collection pass that found this many objects without a Node.
    pub(crate) fn garbage_pass(&self, objects: usize) {
        self.garbage.set(Some(objects as u64));
        self.last_pass.with(["garbage"]).set(unix_seconds());
        self.health.garbage_pass();
    }

    /// Sets the numbers of covered Nodes and of those without a Ready agent; `None` if they are unknown.
    pub(crate) fn agents(&self, counts: Option<(u64, usize)>) {
        self.covered.set(counts.map(|(covered, _)| covered));
        self.not_ready.set(counts.map(|(_, not_ready)| not_ready as u64));
    }

    /// Sets the totals over all objects, and the number of missing ones if that is known.
    pub(super) fn fleet(&self, fleet: &Fleet, missing: Option<usize>) {
        let objects = fleet.objects_by_policy.iter();
        self.objects_by_policy.replace(objects.map(|((policy, scope), count)| ([*policy, *scope], *count)));
        // Native resources first: excess devices are counted as `other`.
        let native = fleet.resources.iter().filter(|(name, _)| is_built_in(name));
        let others = fleet.resources.iter().filter(|(name, _)| !is_built_in(name));
        self.resources.replace(native.chain(others).flat_map(|(name, totals)| {
            [
                ([name.as_str(), "capacity"], totals.capacity),
                ([name.as_str(), "allocatable"], totals.allocatable),
                ([name.as_str(), "available"], totals.available),
            ]
        }));
        self.shapes(fleet);
        self.foreign.set(Some(fleet.foreign));
        self.newer.set(fleet.newer_than_scheduler());
        self.missing.set(missing.map(|missing| missing as u64));
    }

    fn shapes(&self, fleet: &Fleet) {
        let shapes = || fleet.shapes.iter().map(|(name, (_, fragmentation))| (name.as_str(), fragmentation));
        self.shape_pods.replace(shapes().flat_map(|(name, Fragmentation { aligned, any, .. })| {
            [([name, "aligned"], *aligned), ([name, "any"], *any)]
        }));
        self.shape_stranded.replace(shapes().flat_map(|(name, Fragmentation { stranded, .. })| {
            stranded.iter().map(move |(resource, amount)| ([name, resource.as_str()], *amount))
        }));
    }

    /// Records that all objects were aggregated. The next pass starts after about `next`.
    pub(crate) fn fleet_pass(&self, next: Duration) {
        self.last_pass.with(["fleet"]).set(unix_seconds());
        self.health.fleet_pass(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nrt::Amounts;
    use crate::telemetry::registry::samples;

    fn registered() -> (Registry, Metrics) {
        let health = Health::new(true, Duration::from_secs(600), Duration::from_secs(60));
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry, Arc::new(health));
        (registry, metrics)
    }

    #[test]
    fn only_a_leader_has_metrics_of_the_fleet() {
        let (registry, metrics) = registered();
        metrics.leads(true);
        metrics.held_back.set(1);
        let totals = Amounts { capacity: 3, allocatable: 2, available: 1 };
        let shape = [("large".to_owned(), "cpu=4".parse().unwrap())].into();
        let mut fleet = Fleet::new(None).with_shapes(&shape);
        fleet.objects_by_policy = [(("restricted", "pod"), 5)].into();
        fleet.resources = [("cpu".to_owned(), totals)].into();
        fleet.foreign = 1;
        metrics.fleet(&fleet, Some(2));
        metrics.agents(Some((7, 1)));
        metrics.rejected_pods.set(Some(4));
        let only_leaders = [
            ("numacast_fleet_objects", r#"{policy="restricted",scope="pod"} 5"#),
            ("numacast_fleet_resources", r#"{resource="cpu",type="allocatable"} 2"#),
            ("numacast_fleet_shape_pods", r#"{shape="large",placement="aligned"} 0"#),
            ("numacast_fleet_shape_stranded", r#"{shape="large",resource="cpu"} 0"#),
            ("numacast_fleet_covered_nodes", " 7"),
            ("numacast_fleet_nodes_without_ready_agent", " 1"),
            ("numacast_fleet_missing_objects", " 2"),
            ("numacast_fleet_foreign_objects", " 1"),
            ("numacast_rejected_pods", " 4"),
        ];
        for (name, expected) in only_leaders {
            assert_eq!(samples(&registry, name)[0], expected, "{name}");
        }
        let newer = "numacast_fleet_objects_newer_than_scheduler";
        assert!(samples(&registry, newer).is_empty(), "the scheduler is unknown");
        metrics.leads(false);
        for (name, _) in only_leaders {
            assert!(samples(&registry, name).is_empty(), "{name}");
        }
        assert_eq!(samples(&registry, "numacast_garbage_held_back "), ["0"]);
        assert_eq!(samples(&registry, "numacast_controller_leader "), ["0"]);
    }

    #[test]
    fn resources_are_limited_and_native_ones_come_first() {
        let (registry, metrics) = registered();
        let totals = Amounts::default();
        let many = (0..1_000).map(|n| (format!("a.example.com/{n:04}-{}", "x".repeat(999)), totals));
        let made_up = (0..1_000).map(|n| (format!("a{n}"), totals));
        let mut fleet = Fleet::new(None);
        fleet.resources = many.chain(made_up).chain([("memory".to_owned(), totals)]).collect();
        metrics.fleet(&fleet, None);
        let found = samples(&registry, "numacast_fleet_resources{");
        assert_eq!(found.len(), 129 * 3);
        assert!(found.iter().any(|line| line.contains("\"memory\"")), "{found:?}");
        assert!(found.iter().all(|line| line.len() < 400), "{found:?}");
    }
}
