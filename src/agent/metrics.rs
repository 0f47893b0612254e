//! Metrics of the agent. Label values from outside are limited in number and length.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::health::Health;
use super::observe::Scan;
use crate::kubelet::RequestMetrics;
use crate::nrt::zone_name;
use crate::pod_source::PodSourceMetrics;
use crate::scheduler::Publishable;
use crate::telemetry::registry::{Counter, Family, Gauge, Histogram, Registry, label, unix_seconds};
use crate::topology::{Finding, Topology, Zone};

/// Name under which the agent appears in metrics that several components share.
const COMPONENT: &str = "agent";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Success,
    ObjectUnknown,
    ConfigUnknown,
    PodAdmission,
    KubeletNotReady,
    Failed,
}

impl Outcome {
    const LABELS: [&str; 6] =
        ["success", "object_unknown", "config_unknown", "pod_admission", "kubelet_not_ready", "failed"];
}

/// Why the object was written; the help text of `numacast_publishes_total` explains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteReason {
    First,
    Change,
    Refresh,
    Repair,
    Takeover,
}

impl WriteReason {
    const LABELS: [&str; 5] = ["first", "change", "refresh", "repair", "takeover"];
}

/// Kinds of findings that are exposed as 0 while there are none. The last one is not a finding of the
/// topology: something could not be read.
const FINDINGS: [&str; 8] = [
    "unpublished_node",
    "unknown_cpus",
    "cpus_allocated_twice",
    "claims",
    "impossible_memory",
    "overused_memory",
    "device_on_unknown_node",
    UNREADABLE,
];
const UNREADABLE: &str = "unreadable";

const fn finding_kind(finding: &Finding) -> &'static str {
    match finding {
        Finding::UnpublishedNodes(_) => "unpublished_node",
        Finding::UnknownCpus(_) => "unknown_cpus",
        Finding::CpusAllocatedTwice(_) => "cpus_allocated_twice",
        Finding::Claims(_) => "claims",
        Finding::ImpossibleMemory { .. } => "impossible_memory",
        Finding::OverusedMemory { .. } => "overused_memory",
        Finding::DevicesOnUnknownNodes { .. } => "device_on_unknown_node",
    }
}

/// The agent's metrics. Updates also go to its health, so the two are consistent.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(super) health: Arc<Health>,
    pub(super) kubelet: RequestMetrics,
    pub(super) pod_source: PodSourceMetrics,
    scans: Family<1, Counter>,
    pub(super) scan_seconds: Histogram,
    last_scan: Gauge,
    pub(super) triggers: Family<1, Counter>,
    findings: Family<1, Gauge>,
    zones: Family<3, Gauge>,
    unplaced_devices: Family<1, Gauge>,
    withheld: Gauge,
    pub(super) unaccounted: Gauge,
    reserved: Family<1, Gauge>,
    pub(super) admission_timeouts: Counter,
    publishes: Family<1, Counter>,
    pub(super) publish_errors: Family<1, Counter>,
    publish_seconds: Histogram,
    last_publish: Gauge,
    pub(super) foreign_writes: Family<1, Counter>,
    pub(super) events: Family<1, Counter>,
}

impl Metrics {
    pub(crate) fn register(registry: &mut Registry, health: Arc<Health>) -> Self {
        let metrics = Self {
            health,
            scans: registry
                .counters(
                    "numacast_scans_total",
                    "Scans of the node",
                    [label(
                        "outcome",
                        "`success`; `failed`: kubelet, hardware, slices or claims could not be read; `pod_admission`: a pod \
                         was being admitted; `object_unknown`, `config_unknown`, `kubelet_not_ready`: the \
                         object, the kubelet's configuration or its state was not known yet",
                    )],
                )
                .at_zero(Outcome::LABELS.map(|outcome| [outcome])),
            scan_seconds: registry.histogram(
                "numacast_scan_duration_seconds",
                "Duration of scans",
            ),
            last_scan: registry.gauge(
                "numacast_last_scan_timestamp_seconds",
                "Unix time of the last scan with the outcome `success`, `object_unknown` or \
                 `config_unknown`; 0 before",
            ),
            triggers: registry.counters(
                "numacast_scan_triggers_total",
                "Triggers of scans; a burst counts once",
                [label(
                    "trigger",
                    "`cpus`, `memory`: the kubelet's checkpoints; `devices`: the device plugins' directory; \
                     `everything`: a new kubelet, other hardware, or possibly missed changes; `claims`: \
                     ResourceSlices and ResourceClaims; `notified`: \
                     the notify file; `pods`: a pod ended; `bound`: a pod was bound; `configuration`, \
                     `live_object`: configuration or object became known; `poll`",
                )],
            ),
            kubelet: RequestMetrics::register(registry, COMPONENT),
            pod_source: PodSourceMetrics::register(registry, COMPONENT),
            findings: registry.gauges(
                "numacast_findings",
                "Inconsistencies in the last scan",
                [label(
                    "kind",
                    "`unpublished_node`, `unknown_cpus`, `cpus_allocated_twice`, `claims` (DRA), \
                     `impossible_memory`, `overused_memory`, `device_on_unknown_node` or `unreadable`",
                )],
            ),
            zones: registry.gauges(
                "numacast_zone_resources",
                "CPUs, bytes or devices of a zone",
                [
                    label("zone", "such as `node-0`"),
                    // A resource name: a DNS name, a slash and 63 characters. A node has about ten.
                    label("resource", "such as `cpu`; `other` beyond 128, devices first").at_most(128, 317),
                    label("type", "`capacity`, `allocatable` or `available`"),
                ],
            ),
            unplaced_devices: registry.gauges(
                "numacast_dra_unplaced_devices",
                "Devices that are in no zone, since their NUMA node is not known, for each DRA driver that is \
                 accounted for",
                // The API server's limit for a driver name. A node has a few.
                [label("driver", "`other` beyond 32").at_most(32, 63)],
            ),
            withheld: registry.gauge(
                "numacast_fingerprint_withheld",
                "1 while the fingerprint of the agent's newest state is withheld",
            ),
            unaccounted: registry.gauge(
                "numacast_unaccounted_pods",
                "Pods bound to the node that are not in the zones yet",
            ),
            reserved: registry.gauges(
                "numacast_reserved_resources",
                "CPUs, bytes or devices reserved for pods that the kubelet does not list yet, and for init \
                 containers",
                [label("resource", "").at_most(128, 317)],
            ),
            admission_timeouts: registry.counter(
                "numacast_pod_admission_timeouts_total",
                "Pods neither admitted nor rejected within a minute",
            ),
            publishes: registry
                .counters(
                    "numacast_publishes_total",
                    "Accepted writes of the object, and of pods' annotations",
                    [label(
                        "reason",
                        "`first`; `change`: of the node; `refresh`; `repair`: another client deleted or \
                         changed the object; `takeover`: from another publisher, or of what was there at the \
                         start; `annotation`: of a pod, for KAI-Scheduler",
                    )],
                )
                .at_zero(WriteReason::LABELS.map(|reason| [reason])),
            publish_errors: registry.counters(
                "numacast_publish_errors_total",
                "Failed reads and writes of the object, writes of pods' annotations, and reads of the Node for a write, unless the write \
                 is repeated at once, removes what others left, or only withholds the fingerprint",
                [label(
                    "kind",
                    "such as `unreachable`, `deadline`, `forbidden`, `no_crd`, `conflict` (HTTP 409), `invalid` \
                     (400, 422) or `file`",
                )],
            ),
            publish_seconds: registry.histogram(
                "numacast_publish_duration_seconds",
                "Duration of accepted writes",
            ),
            last_publish: registry.gauge(
                "numacast_last_publish_timestamp_seconds",
                "Unix time when the API server was last known to have the newest state; 0 before",
            ),
            foreign_writes: registry
                .counters(
                    "numacast_foreign_writes_total",
                    "Writes by others after which the object, or a pod's annotation, was not as wanted",
                    [label(
                        "writer",
                        "`user`: `kubectl` or an unknown client; `nfd`, `rte` (resource-topology-exporter), `koordlet`, \
                         `koord-manager`, `nri-plugins`: that program; `kai`: KAI-Scheduler's exporter or another client, \
                         of annotations; `numacast`: another agent; `other`: another program",
                    )],
                )
                .at_zero(
                    ["user", "nfd", "rte", "koordlet", "koord-manager", "nri-plugins", "kai", "numacast", "other"]
                        .map(|writer| [writer]),
                ),
            events: registry.counters(
                "numacast_events_total",
                "Posted Kubernetes Events",
                [label("reason", "")],
            ),
        };
        metrics.set_findings(&BTreeSet::new(), 0);
        metrics
    }

    pub(crate) fn scanned(&self, outcome: Outcome) {
        self.scans.with([Outcome::LABELS[outcome as usize]]).inc();
        if matches!(outcome, Outcome::Success | Outcome::ObjectUnknown | Outcome::ConfigUnknown) {
            self.last_scan.set(unix_seconds());
            self.health.scan.confirm();
        }
    }

    /// Records a scan that produced a topology: its findings, devices in no zone, and what could not be read.
    pub(crate) fn accounted(&self, scan: &Scan, topology: &Topology) {
        self.scanned(Outcome::Success);
        self.set_findings(&topology.findings, scan.errors().count());
        let unplaced = topology.unplaced_devices.iter();
        self.unplaced_devices.replace(unplaced.map(|(driver, devices)| ([driver.as_str()], *devices)));
    }

    pub(crate) fn changed(&self, newest: &Publishable) {
        // Native resources first: excess devices are counted as `other`.
        let is_device = |(_, resource, _, _): &(&Zone, &String, _, _)| resource.contains(['/', '.']);
        let amounts = newest.zones.iter().flat_map(|zone| {
            zone.resources.iter().flat_map(move |(resource, amounts)| {
                let amounts = [
                    ("capacity", amounts.capacity),
                    ("allocatable", amounts.allocatable),
                    ("available", amounts.available),
                ];
                amounts.map(|(kind, amount)| (zone, resource, kind, amount))
            })
        });
        let (devices, native): (Vec<_>, Vec<_>) = amounts.partition(is_device);
        self.zones.replace(native.into_iter().chain(devices).map(|(zone, resource, kind, amount)| {
            ([zone_name(zone.id), resource.clone(), kind.to_owned()], amount)
        }));
        self.withheld.set(u64::from(newest.is_withheld()));
        self.health.write_pending();
    }

    pub(crate) fn reserved(&self, amounts: &BTreeMap<&str, u64>) {
        self.reserved.replace(amounts.iter().map(|(resource, amount)| ([*resource], *amount)));
    }

    pub(crate) fn wrote(&self, reason: WriteReason, took: Duration) {
        self.publishes.with([WriteReason::LABELS[reason as usize]]).inc();
        self.publish_seconds.observe(took.as_secs_f64());
        self.last_publish.set(unix_seconds());
        self.health.published(took);
    }

    /// Records that a pod was annotated.
    pub(crate) fn annotated(&self) {
        self.publishes.with(["annotation"]).inc();
    }

    /// Records that the object in the API server was read and is as wanted.
    pub(crate) fn is_as_wanted(&self) {
        self.last_publish.set(unix_seconds());
        self.health.published(Duration::ZERO);
    }

    fn set_findings(&self, findings: &BTreeSet<Finding>, unreadable: usize) {
        let zero = FINDINGS.map(|kind| (kind, 0));
        let found = findings.iter().map(|finding| (finding_kind(finding), 1));
        let all = zero.into_iter().chain(found).chain([(UNREADABLE, unreadable as u64)]);
        self.findings.replace(all.map(|(kind, count)| ([kind], count)));
    }
}

#[cfg(test)]
mod tests;
