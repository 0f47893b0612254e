//! Names and descriptions of the Pods API server's metrics.

use crate::telemetry::metrics::Doc;

const VERSION: (&str, &str) = ("server_api_version", "`v1alpha1`; `podinfo.v1alpha1` for PodInfo");
const CODE: (&str, &str) = ("status_code", "gRPC's, such as `OK` or `NotFound`");

pub(in crate::telemetry) const REQUESTS: Doc = Doc {
    name: "numacast_pod_requests_total",
    kind: "counter",
    labels: &[VERSION, CODE],
    help: "Calls that have ended, watches among them; without those that the limiter rejected, as the kubelet's \
           `kubelet_pod_requests_total`",
};

pub(in crate::telemetry) const LISTS: Doc = Doc {
    name: "numacast_pod_requests_list_total",
    kind: "counter",
    labels: &[VERSION, CODE],
    help: "Of these ListPods and ListPodConditions",
};

pub(in crate::telemetry) const GETS: Doc = Doc {
    name: "numacast_pod_requests_get_total",
    kind: "counter",
    labels: &[VERSION, CODE],
    help: "Of these GetPod and GetPodConditions",
};

pub(in crate::telemetry) const WATCHES: Doc = Doc {
    name: "numacast_pod_requests_watch_total",
    kind: "counter",
    labels: &[VERSION, CODE],
    help: "Of these WatchPods and WatchPodConditions",
};

pub(in crate::telemetry) const DROPPED: Doc = Doc {
    name: "numacast_pod_watch_events_dropped_total",
    kind: "counter",
    labels: &[],
    help: "Events that were not told, each to a watcher who was cut off instead for having 100, or 8 MiB, \
           waiting",
};

pub(in crate::telemetry) const REJECTED: Doc = Doc {
    name: "numacast_pods_api_rejected_total",
    kind: "counter",
    labels: &[],
    help: "Calls that the limiter rejected: a client listed or got more than 100 times in a second",
};

pub(in crate::telemetry) const WATCHERS: Doc = Doc {
    name: "numacast_pods_api_watchers",
    kind: "gauge",
    labels: &[VERSION],
    help: "Watches that are open",
};

pub(in crate::telemetry) const PODS: Doc = Doc {
    name: "numacast_pods_api_pods",
    kind: "gauge",
    labels: &[VERSION],
    help: "Pods that are served, from the last known state where nobody tells",
};

pub(in crate::telemetry) const LEFT_OUT: Doc = Doc {
    name: "numacast_pods_api_left_out_pods",
    kind: "gauge",
    labels: &[VERSION],
    help: "Pods that are not served, the largest ones: all together would be above 16 MiB (4 MiB for PodInfo). The log names \
           each once",
};

pub(in crate::telemetry) const SOURCE_UP: Doc = Doc {
    name: "numacast_pods_api_source_up",
    kind: "gauge",
    labels: &[(
        "source",
        "who tells: `pods_api` (the kubelet's own), `api_server`, or `kubelet` (its `/pods`, for PodInfo alone)",
    )],
    help: "1 while it tells, all pods told once; 0 while it does not, be it that what it told last is what is served",
};

pub(in crate::telemetry) const SOURCE_TIME: Doc = Doc {
    name: "numacast_pods_api_source_last_word_timestamp_seconds",
    kind: "gauge",
    labels: &[("source", "as above")],
    help: "When it last told anything, by the wall clock; of a quiet node that may be long ago",
};

pub(in crate::telemetry) const SOURCE_ERRORS: Doc = Doc {
    name: "numacast_pods_api_source_errors_total",
    kind: "counter",
    labels: &[("source", "as above")],
    help: "How often it could not be asked or broke off; the log has the sentence",
};

pub(in crate::telemetry) const HEARD: Doc = Doc {
    name: "numacast_pods_api_event_duration_seconds",
    kind: "histogram",
    labels: &[],
    help: "How long after we were told of a pod the last of those who watch was told",
};

pub(in crate::telemetry) const CONNECTIONS: Doc = Doc {
    name: "numacast_pods_api_connections",
    kind: "gauge",
    labels: &[],
    help: "Clients that are connected",
};

pub(in crate::telemetry) const CUT: Doc = Doc {
    name: "numacast_pods_api_cut_total",
    kind: "counter",
    labels: &[("reason", "as in `numacast_proxy_cut_total`")],
    help: "Connections that were cut, and clients that were refused or slowed down",
};

/// All metric families exposed while the Pods API is served.
pub const DOCS: &[&Doc] = &[
    &REQUESTS,
    &LISTS,
    &GETS,
    &WATCHES,
    &DROPPED,
    &REJECTED,
    &WATCHERS,
    &PODS,
    &LEFT_OUT,
    &SOURCE_UP,
    &SOURCE_TIME,
    &SOURCE_ERRORS,
    &HEARD,
    &CONNECTIONS,
    &CUT,
];
