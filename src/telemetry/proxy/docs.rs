//! Names and descriptions of the proxy's metrics.

use crate::telemetry::metrics::Doc;

pub(in crate::telemetry) const REQUESTS: Doc = Doc {
    name: "numacast_proxy_requests_total",
    kind: "counter",
    labels: &[
        ("rpc", "`List`, `Get`, `GetAllocatableResources` or `other`"),
        ("version", "`v1`, `v1alpha1` or `other`"),
        ("code", "gRPC's, such as `OK` or `Unavailable`"),
        (
            "client",
            "the name of the process; `uid <number>` where its process cannot be seen, as from within a pod; `other` beyond \
             32 of them",
        ),
    ],
    help: "Requests that were answered",
};

pub(in crate::telemetry) const REQUEST_SECONDS: Doc = Doc {
    name: "numacast_proxy_request_duration_seconds",
    kind: "histogram",
    labels: &[("rpc", "as above")],
    help: "How long a request took until its answer was there",
};

pub(in crate::telemetry) const CALLS: Doc = Doc {
    name: "numacast_proxy_upstream_calls_total",
    kind: "counter",
    labels: &[
        ("rpc", "`List`, `ListV1alpha1`, `Get` or `GetAllocatableResources`"),
        (
            "outcome",
            "`ok`, or the kind of failure as in `numacast_kubelet_errors_total`; `rate_limited`: the kubelet's limiter",
        ),
    ],
    help: "Calls to the kubelet, the agent's among them where it shares the connection",
};

pub(in crate::telemetry) const CALL_SECONDS: Doc = Doc {
    name: "numacast_proxy_upstream_call_duration_seconds",
    kind: "histogram",
    labels: &[("rpc", "as above")],
    help: "How long a call to the kubelet took, failed ones too",
};

pub(in crate::telemetry) const COALESCED: Doc = Doc {
    name: "numacast_proxy_coalesced_total",
    kind: "counter",
    labels: &[],
    help: "Requests that shared the kubelet's answer with another one",
};

pub(in crate::telemetry) const IN_FLIGHT: Doc = Doc {
    name: "numacast_proxy_upstream_in_flight_max",
    kind: "gauge",
    labels: &[],
    help: "The most calls to the kubelet that were ever under way at once; never more than 2",
};

pub(in crate::telemetry) const ANSWER_AGE: Doc = Doc {
    name: "numacast_proxy_answer_age_seconds",
    kind: "histogram",
    labels: &[],
    help: "How long before its answer the kubelet was asked",
};

pub(in crate::telemetry) const ANSWER_BYTES: Doc = Doc {
    name: "numacast_proxy_answer_bytes",
    kind: "gauge",
    labels: &[],
    help: "The size of the last `List` that was served; many clients take no more than 4 MiB",
};

pub(in crate::telemetry) const MERGED_PODS: Doc = Doc {
    name: "numacast_proxy_merged_pods",
    kind: "gauge",
    labels: &[],
    help: "Pods that the last `List` had something merged into",
};

pub(in crate::telemetry) const MERGED_DEVICES: Doc = Doc {
    name: "numacast_proxy_merged_devices",
    kind: "gauge",
    labels: &[],
    help: "Devices that were merged into the last `List`",
};

pub(in crate::telemetry) const PROBLEMS: Doc = Doc {
    name: "numacast_proxy_annotation_problems",
    kind: "gauge",
    labels: &[(
        "kind",
        "`too_long`: the annotation has more than 64 KiB, or is among the longest of a pod's that have more together, or of a node's that have more than 8 MiB; `malformed`: not what it should be, as a whole or in a part; \
         `no_id`: neither an id nor a number that the Device knows; `bad_id`: no device can have this id; `unknown_id`: the \
         node has no such device, as its Device says; `too_many`: more ids than are put into answers; `no_container`: the \
         pod has none that the device could be given to; `claimed_twice`: another pod has the whole of the same device. The \
         log has the sentence",
    )],
    help: "What cannot be merged, or only in part, of the annotations of the node's pods",
};

pub(in crate::telemetry) const LEFT_OUT: Doc = Doc {
    name: "numacast_proxy_left_out_devices",
    kind: "gauge",
    labels: &[(
        "reason",
        "`listed`: the kubelet lists the device already, with whichever pod; `allocated`: it allocated devices of this \
         resource to the pod itself; `claimed`: a resource claim of the pod has the device; `container_not_listed`: the \
         answer does not have the container",
    )],
    help: "Devices of annotations that the last `List` was served without",
};

pub(in crate::telemetry) const UNKNOWN: Doc = Doc {
    name: "numacast_proxy_unknown_pods",
    kind: "gauge",
    labels: &[],
    help: "Pods of the last `List` that nobody has told about, so that their annotations are not known",
};

pub(in crate::telemetry) const PASSING: Doc = Doc {
    name: "numacast_proxy_passing_through",
    kind: "gauge",
    labels: &[],
    help: "1 while answers go out without devices from annotations, for nobody tells about pods; with `proxy.failClosed` \
           while they are refused",
};

pub(in crate::telemetry) const CONNECTIONS: Doc = Doc {
    name: "numacast_proxy_connections",
    kind: "gauge",
    labels: &[],
    help: "Clients that are connected",
};

pub(in crate::telemetry) const CUT: Doc = Doc {
    name: "numacast_proxy_cut_total",
    kind: "counter",
    labels: &[(
        "reason",
        "cut are who connects and says nothing (`silent`), breaks the protocol (`garbage`), does not read an answer \
         (`stalled`), or has the most of too many connections (`connections`); refused or slowed down are who sends frames \
         without end (`flood`), has too many calls (`calls`), or calls that fail by the hundred in a second \
         (`failures`). The log has the sentence",
    )],
    help: "Connections that were cut, and clients that were refused or slowed down",
};

pub(in crate::telemetry) const DEVICE_ERRORS: Doc = Doc {
    name: "numacast_proxy_device_errors_total",
    kind: "counter",
    labels: &[("kind", "of error, as in `numacast_publish_errors_total`")],
    help: "How often Koordinator's Device object could not be read; the log has the sentence",
};

/// All metric families exposed, beside those of the agent or controller, while the proxy is running.
pub const DOCS: &[&Doc] = &[
    &REQUESTS,
    &REQUEST_SECONDS,
    &CALLS,
    &CALL_SECONDS,
    &COALESCED,
    &IN_FLIGHT,
    &ANSWER_AGE,
    &ANSWER_BYTES,
    &MERGED_PODS,
    &MERGED_DEVICES,
    &PROBLEMS,
    &LEFT_OUT,
    &UNKNOWN,
    &PASSING,
    &CONNECTIONS,
    &CUT,
    &DEVICE_ERRORS,
];
