//! Metrics of the proxy.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tonic::Code;

use super::health::Health;
use super::service::{V1, V1ALPHA1};
use crate::grpc::{self, Peer, ServerMetrics, Violation};
use crate::kubelet::{self, FinishedCall, Request, RequestMetrics};
use crate::telemetry::registry::{Counter, Family, Gauge, Histogram, Label, Registry, label};

/// Name under which the proxy appears in metrics that several components share.
pub(super) const COMPONENT: &str = "proxy";

const METHOD: Label = label("method", "`List`, `Get`, `GetAllocatableResources` or `other`");

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListStats {
    pub(crate) bytes: usize,
    /// Devices of annotations in it.
    pub(crate) merged: usize,
    /// Devices of annotations that it omits, by reason.
    pub(crate) omitted: BTreeMap<&'static str, usize>,
    /// Pods in it that the pod source does not know.
    pub(crate) unknown: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    health: Arc<Health>,
    kubelet: RequestMetrics,
    server: ServerMetrics,
    requests: Family<4, Counter>,
    request_seconds: Family<1, Histogram>,
    list_bytes: Gauge,
    devices: Family<1, Gauge>,
    annotation_errors: Family<1, Gauge>,
    unknown_pods: Gauge,
    passing_through: Gauge,
    device_errors: Family<1, Counter>,
}

impl Metrics {
    pub(crate) fn register(registry: &mut Registry, health: Arc<Health>) -> Self {
        Self {
            health,
            requests: registry.counters(
                "numacast_proxy_requests_total",
                "Requests to the proxy that have ended",
                [
                    METHOD,
                    label("version", "`v1`, `v1alpha1` or `other`"),
                    label("code", "of gRPC, such as `OK` or `Unavailable`"),
                    // The kernel keeps 15 characters. A node has a few clients.
                    label(
                        "client",
                        "the name of the client's process; `uid <number>` if that is not visible, as from within a \
                         pod; `other` beyond 32",
                    )
                    .at_most(32, 15),
                ],
            ),
            request_seconds: registry.histograms(
                "numacast_proxy_request_duration_seconds",
                "Duration of requests to the proxy",
                [METHOD],
            ),
            kubelet: RequestMetrics::register(registry, COMPONENT),
            server: ServerMetrics::register(registry, COMPONENT),
            list_bytes: registry.gauge(
                "numacast_proxy_list_bytes",
                "Size of the last List response; many clients accept at most 4 MiB",
            ),
            devices: registry.gauges(
                "numacast_proxy_annotated_devices",
                "Devices from pod annotations, by what became of them in the last List response",
                [label(
                    "state",
                    "`merged`; omitted: `listed`: the kubelet lists the device for some pod; `allocated`: the kubelet \
                     allocated devices of this resource to the pod; `claimed`: a resource claim of the pod has the \
                     device; `container_not_listed`: the response does not have the container",
                )],
            ),
            annotation_errors: registry.gauges(
                "numacast_proxy_annotation_errors",
                "Errors in annotations of the node's pods, whose devices are not merged, or only in part; see the log",
                [label(
                    "kind",
                    "`too_long`: more than 64 KiB, or among the longest of a pod with more in total, or of a node with \
                     more than 8 MiB; `malformed`; `no_id`: neither an id nor a minor number in Koordinator's Device \
                     object; `bad_id`: no valid device id; `unknown_id`: not in the Device object; `too_many`: more ids \
                     than are merged; `no_container`: the pod has no container for the device; `claimed_twice`: \
                     another pod has all of the same device",
                )],
            ),
            unknown_pods: registry.gauge(
                "numacast_proxy_unknown_pods",
                "Pods in the last List response that the pod source does not know, nor therefore their annotations",
            ),
            passing_through: registry.gauge(
                "numacast_proxy_passing_through",
                "1 while the pods are unknown, so that responses lack the devices from annotations, or are rejected \
                 with `proxy.failClosed`",
            ),
            device_errors: registry.counters(
                "numacast_proxy_device_errors_total",
                "Failed reads of Koordinator's Device object; see the log",
                [label("kind", "as of `numacast_publish_errors_total`")],
            ),
        }
    }

    pub(crate) const fn health(&self) -> &Arc<Health> {
        &self.health
    }

    pub(crate) fn listed(&self, stats: &ListStats) {
        self.list_bytes.set(stats.bytes as u64);
        self.unknown_pods.set(stats.unknown as u64);
        let omitted = stats.omitted.iter().map(|(reason, devices)| (*reason, *devices));
        let devices = omitted.chain([("merged", stats.merged)]);
        self.devices.replace(devices.map(|(state, devices)| ([state], devices as u64)));
    }

    pub(crate) fn annotation_errors(&self, errors: &BTreeMap<&'static str, usize>) {
        self.annotation_errors.replace(errors.iter().map(|(kind, count)| ([*kind], *count as u64)));
    }

    pub(crate) fn passing_through(&self, is_passing: bool) {
        self.passing_through.set(u64::from(is_passing));
    }

    pub(crate) fn device_error(&self, kind: &str) {
        self.device_errors.with([kind]).inc();
    }
}

impl kubelet::Observer for Metrics {
    fn finished(&self, call: &FinishedCall<'_>) {
        let method = match call.request {
            Request::List => "List",
            Request::ListV1alpha1 => "ListV1alpha1",
            Request::Allocatable => "GetAllocatableResources",
            Request::Get { .. } => "Get",
        };
        self.kubelet.record(method, call.took, call.error);
        if call.error.is_none() {
            self.health.kubelet_responded();
        }
    }
}

impl grpc::Observer for Metrics {
    fn finished(&self, path: &str, peer: &Peer, code: Code, _: usize, took: Duration) {
        let (service, method) = grpc::split_path(path);
        let version = match service {
            V1 => "v1",
            V1ALPHA1 => "v1alpha1",
            _ => "other",
        };
        let method = match method {
            "List" | "Get" | "GetAllocatableResources" => method,
            _ => "other",
        };
        self.requests.with([method, version, grpc::code_name(code), &peer.name]).inc();
        self.request_seconds.with([method]).observe(took.as_secs_f64());
    }

    fn connections(&self, count: usize) {
        self.server.connections(count);
    }

    fn violation(&self, violation: Violation, _: &Peer) {
        self.server.violation(violation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::registry::samples;

    fn registered() -> (Registry, Metrics) {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry, Arc::new(Health::new(true)));
        (registry, metrics)
    }

    #[test]
    fn clients_are_limited_in_number_and_length() {
        let (registry, metrics) = registered();
        let request = |client: &str| {
            let peer = Peer { pid: None, uid: 0, name: client.into(), client: 0 };
            let path = "/v1.PodResourcesLister/List";
            grpc::Observer::finished(&metrics, path, &peer, Code::Ok, 0, Duration::ZERO);
        };
        (0..100).for_each(|number| request(&format!("c{number:03}{}", "x".repeat(100))));
        request("c000xxxxxxxxxxxxxxx");
        let found = samples(&registry, r#"numacast_proxy_requests_total{method="List",version="v1",code="OK","#);
        assert_eq!(found.len(), 33, "{found:?}");
        for expected in [r#"client="other"} 68"#, r#"client="c000xxxxxxxxxxx"} 2"#] {
            assert!(found.contains(&expected.to_owned()), "{expected}: {found:?}");
        }
    }

    #[test]
    fn devices_and_annotation_errors_are_those_of_the_last_list() {
        let (registry, metrics) = registered();
        let first = ListStats { omitted: [("listed", 1)].into(), merged: 3, unknown: 2, bytes: 9 };
        metrics.listed(&first);
        metrics.annotation_errors(&[("malformed", 1)].into());
        let devices = || samples(&registry, "numacast_proxy_annotated_devices");
        assert_eq!(devices(), [r#"{state="listed"} 1"#, r#"{state="merged"} 3"#]);
        assert_eq!(samples(&registry, "numacast_proxy_unknown_pods"), [" 2"]);
        metrics.listed(&ListStats::default());
        metrics.annotation_errors(&BTreeMap::new());
        assert_eq!(devices(), [r#"{state="merged"} 0"#]);
        assert_eq!(samples(&registry, "numacast_proxy_unknown_pods"), [" 0"]);
        assert!(!registry.encode().contains("malformed"));
    }

    #[test]
    fn a_response_of_the_kubelet_is_recorded_in_the_health() {
        let (registry, metrics) = registered();
        let finished = |error: Option<&kubelet::ClientError>| {
            let took = Duration::ZERO;
            let call = FinishedCall { request: &Request::List, took, error, shared_by: 1 };
            kubelet::Observer::finished(&metrics, &call);
        };
        finished(Some(&kubelet::ClientError::RateLimited("List")));
        assert_eq!(metrics.health().kubelet_age(), None);
        finished(None);
        assert!(metrics.health().kubelet_age().is_some());
        let of = r#"numacast_kubelet_requests_total{component="proxy",method="List",outcome="rate_limited"}"#;
        assert_eq!(samples(&registry, of), [" 1"]);
    }
}
