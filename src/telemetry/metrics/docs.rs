//! Names and descriptions of the metrics.

/// Description of a metric family.
#[derive(Debug)]
pub struct Doc {
    /// The name as used in queries.
    pub name: &'static str,
    /// The OpenMetrics type.
    pub kind: &'static str,
    /// Labels and their possible values.
    pub labels: &'static [(&'static str, &'static str)],
    /// The help text.
    pub help: &'static str,
}

impl Doc {
    /// Returns the name without the suffixes that the encoder adds to counters and infos for OpenMetrics.
    pub(in crate::telemetry) fn family(&self) -> &'static str {
        self.name.trim_end_matches("_total").trim_end_matches("_info")
    }
}

pub(in crate::telemetry) const BUILD: Doc = Doc {
    name: "numacast_build_info",
    kind: "info",
    labels: &[("version", "of numacast")],
    help: "Always 1; its label tells what runs",
};

pub(in crate::telemetry) const SCANS: Doc = Doc {
    name: "numacast_scans_total",
    kind: "counter",
    labels: &[(
        "outcome",
        "`accounted`; `early`: good, but it was not known yet what the API server has; `admitting`: a pod was being admitted; `unsettled`: the kubelet did not know everything \
         yet; `failed`: the kubelet or the hardware could not be read",
    )],
    help: "Readings of the node",
};

pub(in crate::telemetry) const SCAN_SECONDS: Doc = Doc {
    name: "numacast_scan_duration_seconds",
    kind: "histogram",
    labels: &[],
    help: "How long a reading of the node took, whatever came of it",
};

pub(in crate::telemetry) const CALL_SECONDS: Doc = Doc {
    name: "numacast_kubelet_call_duration_seconds",
    kind: "histogram",
    labels: &[("call", "`List` or `GetAllocatableResources`")],
    help: "How long a call to the kubelet took, failed ones too",
};

pub(in crate::telemetry) const KUBELET_ERRORS: Doc = Doc {
    name: "numacast_kubelet_errors_total",
    kind: "counter",
    labels: &[(
        "kind",
        "`no_socket`, `refused`, `connect`, `not_grpc`, `silent`: nobody speaks; `deadline`, `rate_limited`, \
         `too_large`, `unsupported`, `lost`, `status`: of a call",
    )],
    help: "Calls to the kubelet that failed; the log has the sentence",
};

pub(in crate::telemetry) const TRIGGERS: Doc = Doc {
    name: "numacast_triggers_total",
    kind: "counter",
    labels: &[(
        "trigger",
        "`cpus`, `memory`: a state file; `devices`: the device plugins' directory; `everything`: a new kubelet, other \
         hardware, or something that may have gone unseen; `notified`: the notify file; `pods`: a pod that went; `bound`: one that came; \
         `configuration`, `standing`: other rules, or the object as it stood, became known; `poll`",
    )],
    help: "Reasons to look; a burst of equal ones counts once",
};

pub(in crate::telemetry) const UNACCOUNTED: Doc = Doc {
    name: "numacast_unaccounted_pods",
    kind: "gauge",
    labels: &[],
    help: "Pods bound to the node that the zones do not account for; in the scheduler's view the object is held for them",
};

pub(in crate::telemetry) const RESERVED_PODS: Doc = Doc {
    name: "numacast_reserved_pods",
    kind: "gauge",
    labels: &[],
    help: "Pods for which the zones lack what the kubelet's List does not show: not yet, or what init containers keep",
};

pub(in crate::telemetry) const RESERVED: Doc = Doc {
    name: "numacast_reserved",
    kind: "gauge",
    labels: &[("resource", "the resource's name")],
    help: "CPUs, bytes or devices that are reserved for these pods, taken from what the zones have available",
};

pub(in crate::telemetry) const LET_GO: Doc = Doc {
    name: "numacast_pods_let_go_total",
    kind: "counter",
    labels: &[],
    help: "Pods for which the object was held, or something was reserved, for too long",
};

pub(in crate::telemetry) const HELD: Doc = Doc {
    name: "numacast_held",
    kind: "gauge",
    labels: &[],
    help: "1 while the newest object is held: its fingerprint agrees with no set of pods",
};

pub(in crate::telemetry) const PUBLISH_SECONDS: Doc = Doc {
    name: "numacast_publish_duration_seconds",
    kind: "histogram",
    labels: &[],
    help: "How long a write that the API server took lasted",
};

pub(in crate::telemetry) const WRITES: Doc = Doc {
    name: "numacast_writes_total",
    kind: "counter",
    labels: &[(
        "reason",
        "`first`; `change`: of the node; `refresh`; `repair`: the object was deleted or edited; `takeover`: \
         somebody else's leftover",
    )],
    help: "Writes of the object that the API server took",
};

pub(in crate::telemetry) const PUBLISH_ERRORS: Doc = Doc {
    name: "numacast_publish_errors_total",
    kind: "counter",
    labels: &[("kind", "of error, such as `unreachable`, `deadline`, `forbidden` or `no_crd`")],
    help: "Calls to the API server for the object that failed; the log has the sentence",
};

pub(in crate::telemetry) const FOREIGN_WRITES: Doc = Doc {
    name: "numacast_foreign_writes_total",
    kind: "counter",
    labels: &[("writer", "`person`: `kubectl`; `manager`: another publisher")],
    help: "Writes of our object by somebody else",
};

pub(in crate::telemetry) const EVENTS: Doc = Doc {
    name: "numacast_events_total",
    kind: "counter",
    labels: &[("reason", "of the Event")],
    help: "Kubernetes Events that were posted",
};

pub(in crate::telemetry) const SCAN_TIME: Doc = Doc {
    name: "numacast_last_scan_timestamp_seconds",
    kind: "gauge",
    labels: &[],
    help: "When the node was last read well, by the wall clock; 0 before",
};

pub(in crate::telemetry) const PUBLISH_TIME: Doc = Doc {
    name: "numacast_last_publish_timestamp_seconds",
    kind: "gauge",
    labels: &[],
    help: "When the API server was last known to have the newest account, by the wall clock; 0 before",
};

pub(in crate::telemetry) const SCAN_AGE: Doc = Doc {
    name: "numacast_last_scan_age_seconds",
    kind: "gauge",
    labels: &[],
    help: "How long ago the node was last read well, by a clock that nobody sets; missing before",
};

pub(in crate::telemetry) const PUBLISH_AGE: Doc = Doc {
    name: "numacast_last_publish_age_seconds",
    kind: "gauge",
    labels: &[],
    help: "How long ago the API server was last known to have the newest account, by a clock that nobody sets; \
           missing before",
};

const ZONE_LABELS: &[(&str, &str)] = &[
    ("zone", "such as `node-0`"),
    ("resource", "such as `cpu` or `memory`; at most 128, devices beyond that are left out"),
];

pub(in crate::telemetry) const CAPACITY: Doc = Doc {
    name: "numacast_zone_capacity",
    kind: "gauge",
    labels: ZONE_LABELS,
    help: "What the zone has in the last account: CPUs, bytes or devices",
};

pub(in crate::telemetry) const ALLOCATABLE: Doc = Doc {
    name: "numacast_zone_allocatable",
    kind: "gauge",
    labels: ZONE_LABELS,
    help: "What of it the kubelet may hand out",
};

pub(in crate::telemetry) const AVAILABLE: Doc = Doc {
    name: "numacast_zone_available",
    kind: "gauge",
    labels: ZONE_LABELS,
    help: "What of that nobody holds",
};

pub(in crate::telemetry) const FINDINGS: Doc = Doc {
    name: "numacast_findings",
    kind: "gauge",
    labels: &[(
        "kind",
        "`unpublished_node`, `unknown_cpus`, `impossible_memory`, `overused_memory` or `device_on_unknown_node`",
    )],
    help: "Things in the last account that do not fit together, one for all NUMA nodes with the same; the log says which",
};

pub(in crate::telemetry) const PROBLEMS: Doc = Doc {
    name: "numacast_inventory_problems",
    kind: "gauge",
    labels: &[],
    help: "What of the hardware and the kubelet's configuration could not be read; the log says what",
};

pub(in crate::telemetry) const CLAIMED: Doc = Doc {
    name: "numacast_claimed_devices",
    kind: "gauge",
    labels: &[(
        "driver",
        "the DRA driver; `unknown` before kubelet 1.31, which tells of claims only; `other` above 32 drivers",
    )],
    help: "Devices that resource claims (DRA) gave to containers and that are therefore in no zone",
};

pub(in crate::telemetry) const CPU_SECONDS: Doc = Doc {
    name: "process_cpu_seconds_total",
    kind: "counter",
    labels: &[],
    help: "CPU time of the process, user and system",
};

pub(in crate::telemetry) const RESIDENT: Doc = Doc {
    name: "process_resident_memory_bytes",
    kind: "gauge",
    labels: &[],
    help: "Resident memory of the process",
};

pub(in crate::telemetry) const VIRTUAL: Doc = Doc {
    name: "process_virtual_memory_bytes",
    kind: "gauge",
    labels: &[],
    help: "Virtual memory of the process",
};

pub(in crate::telemetry) const OPEN_FDS: Doc = Doc {
    name: "process_open_fds",
    kind: "gauge",
    labels: &[],
    help: "File descriptors that the process has open",
};

pub(in crate::telemetry) const MAX_FDS: Doc = Doc {
    name: "process_max_fds",
    kind: "gauge",
    labels: &[],
    help: "File descriptors that the process may have open",
};

pub(in crate::telemetry) const START_TIME: Doc = Doc {
    name: "process_start_time_seconds",
    kind: "gauge",
    labels: &[],
    help: "When the process started, by the wall clock",
};

pub(in crate::telemetry) const POD_SOURCE: Doc = Doc {
    name: "numacast_pod_source_up",
    kind: "gauge",
    labels: &[("source", "who tells about pods: `api_server`, `pods_api` or `kubelet`")],
    help: "1 while it can be asked and has listed all pods, 0 while what it told last is what is known; missing with \
           `pods.source: none`",
};

pub(in crate::telemetry) const POD_SOURCE_ERRORS: Doc = Doc {
    name: "numacast_pod_source_errors_total",
    kind: "counter",
    labels: &[("source", "as above")],
    help: "How often it could not be asked or broke off; the log has the sentence",
};

/// All metric families of the agent.
pub const DOCS: &[&Doc] = &[
    &BUILD,
    &SCANS,
    &SCAN_SECONDS,
    &CALL_SECONDS,
    &KUBELET_ERRORS,
    &TRIGGERS,
    &PUBLISH_SECONDS,
    &WRITES,
    &PUBLISH_ERRORS,
    &FOREIGN_WRITES,
    &EVENTS,
    &SCAN_TIME,
    &PUBLISH_TIME,
    &SCAN_AGE,
    &PUBLISH_AGE,
    &CAPACITY,
    &ALLOCATABLE,
    &AVAILABLE,
    &FINDINGS,
    &PROBLEMS,
    &CLAIMED,
    &POD_SOURCE,
    &POD_SOURCE_ERRORS,
    &HELD,
    &UNACCOUNTED,
    &RESERVED_PODS,
    &RESERVED,
    &LET_GO,
    &CPU_SECONDS,
    &RESIDENT,
    &VIRTUAL,
    &OPEN_FDS,
    &MAX_FDS,
    &START_TIME,
];
