//! Metrics of the proxy.

use std::sync::Arc;
use std::time::Duration;

use tonic::Code;

use super::merge::Omitted;
use super::{V1, V1ALPHA1};
use crate::grpc::{self, Peer, ServerMetrics};
use crate::kubelet::{ClientError, Request, RequestMetrics};
use crate::telemetry::health::{Recent, ServerHealth};
use crate::telemetry::registry::{Counter, Family, Gauge, Histogram, Label, Registry, label};

/// Name under which the proxy appears in metrics that several components share.
pub(super) const COMPONENT: &str = "proxy";

const METHOD: Label = label("method", "`List`, `Get`, `GetAllocatableResources` or `other`");

/// A proxy is not ready if the kubelet's last response is older. The kubelet is called more often; see
/// `crate::proxy`.
const MAX_RESPONSE_AGE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    pub(super) health: Arc<ServerHealth>,
    kubelet: RequestMetrics,
    pub(super) server: ServerMetrics,
    requests: Family<4, Counter>,
    request_seconds: Family<1, Histogram>,
    list_bytes: Gauge,
    devices: Family<1, Gauge>,
    annotation_errors: Family<1, Gauge>,
    unknown_pods: Gauge,
    annotations_unavailable: Gauge,
    device_errors: Family<1, Counter>,
}

impl Metrics {
    pub(crate) fn register(registry: &mut Registry, needs_pods: bool) -> Self {
        Self {
            health: ServerHealth::new(
                "the proxy's socket",
                "the proxy has no list of pods yet",
                "the proxy has not checked its socket",
                Some(Recent::new("the kubelet has not responded to the proxy", MAX_RESPONSE_AGE)),
                !needs_pods,
            ),
            requests: registry.counters(
                "numacast_proxy_requests_total",
                "Ended requests to the proxy",
                [
                    METHOD,
                    label("version", "`v1`, `v1alpha1` or `other`"),
                    label("code", "gRPC status code"),
                    // The kernel keeps 15 characters. A node has a few clients.
                    label(
                        "client",
                        "the client's process; `uid <number>` if not visible, as from a pod; `other` beyond \
                         32",
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
                "Devices from pod annotations, by whether the last List response has them",
                [label(
                    "state",
                    "`merged`; omitted: `listed` (by the kubelet, for some pod), `allocated` (the kubelet \
                     allocated the resource to the pod), `claimed` (by a resource claim of the pod), \
                     `container_not_listed`",
                )],
            ),
            annotation_errors: registry.gauges(
                "numacast_proxy_annotation_errors",
                "Pods with errors in their annotations; except for `allocated_twice`, some devices are not \
                 merged",
                [label(
                    "kind",
                    "`too_long`, `malformed`, `bad_id`, `too_many`; `no_id`: neither an id nor a minor \
                     number in Koordinator's Device; `unknown_id`: not in the Device; `no_container`: the \
                     pod has none for the device; `allocated_twice`: another pod has all of the same device",
                )],
            ),
            unknown_pods: registry.gauge(
                "numacast_proxy_unknown_pods",
                "Pods in the last List response that the pod source does not know",
            ),
            annotations_unavailable: registry.gauge(
                "numacast_proxy_annotations_unavailable",
                "1 while pods or the node's devices are not known, or no pod source has worked for ten \
                 minutes",
            ),
            device_errors: registry.counters(
                "numacast_proxy_device_errors_total",
                "Failed reads of Koordinator's Device",
                [label("kind", "as in `numacast_publish_errors_total`")],
            ),
        }
    }

    /// Records the last List: its size, the devices merged into it and omitted, and its unknown pods.
    pub(crate) fn listed(&self, bytes: usize, merged: usize, omitted: Omitted, unknown: usize) {
        self.list_bytes.set(bytes as u64);
        self.unknown_pods.set(unknown as u64);
        let omitted = omitted.reasons().into_iter().filter(|(_, devices)| *devices > 0);
        let devices = omitted.chain([("merged", merged)]);
        self.devices.replace(devices.map(|(state, devices)| ([state], devices as u64)));
    }

    pub(crate) fn annotation_errors(&self, kinds: impl Iterator<Item = &'static str>) {
        self.annotation_errors.replace(kinds.map(|kind| ([kind], 1)));
    }

    pub(crate) fn annotations_unavailable(&self, are_unavailable: bool) {
        self.annotations_unavailable.set(u64::from(are_unavailable));
    }

    pub(crate) fn device_error(&self, kind: &str) {
        self.device_errors.with([kind]).inc();
    }

    pub(super) fn finished(&self, path: &str, peer: &Peer, code: Code, took: Duration) {
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
        self.requests.with([method, version, &grpc::code_name(code), &peer.name]).inc();
        self.request_seconds.with([method]).observe(took.as_secs_f64());
    }

    /// Records a call to the kubelet.
    pub(super) fn kubelet_called(&self, request: &Request, took: Duration, error: Option<&ClientError>) {
        let method = match request {
            Request::List => "List",
            Request::ListV1alpha1 => "ListV1alpha1",
            Request::Allocatable => "GetAllocatableResources",
            Request::Get { .. } => "Get",
        };
        self.kubelet.record(method, took, error);
        if error.is_none() {
            self.health.response.iter().for_each(Recent::confirm);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::telemetry::health::{CHECK, Probes};
    use crate::telemetry::registry::samples;

    fn registered() -> (Registry, Metrics) {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry, true);
        (registry, metrics)
    }

    #[test]
    fn clients_are_limited_in_number_and_length() {
        let (registry, metrics) = registered();
        let request = |client: &str| {
            let peer = Peer { pid: None, uid: 0, name: client.into(), client: 0 };
            let path = "/v1.PodResourcesLister/List";
            metrics.finished(path, &peer, Code::Ok, Duration::ZERO);
        };
        (0..100).for_each(|number| request(&format!("c{number:03}{}", "x".repeat(100))));
        request("c000xxxxxxxxxxxxxxx");
        let found =
            samples(&registry, r#"numacast_proxy_requests_total{method="List",version="v1",code="OK","#);
        assert_eq!(found.len(), 33, "{found:?}");
        for expected in [r#"client="other"} 68"#, r#"client="c000xxxxxxxxxxx"} 2"#] {
            assert!(found.contains(&expected.to_owned()), "{expected}: {found:?}");
        }
    }

    #[test]
    fn devices_and_annotation_errors_are_those_of_the_last_list() {
        let (registry, metrics) = registered();
        metrics.listed(9, 3, Omitted { listed: 1, ..Omitted::default() }, 2);
        metrics.annotation_errors(["malformed"].into_iter());
        let devices = || samples(&registry, "numacast_proxy_annotated_devices");
        assert_eq!(devices(), [r#"{state="listed"} 1"#, r#"{state="merged"} 3"#]);
        assert_eq!(samples(&registry, "numacast_proxy_unknown_pods"), [" 2"]);
        metrics.listed(0, 0, Omitted::default(), 0);
        metrics.annotation_errors(std::iter::empty());
        assert_eq!(devices(), [r#"{state="merged"} 0"#]);
        assert_eq!(samples(&registry, "numacast_proxy_unknown_pods"), [" 0"]);
        assert!(!registry.encode().contains("malformed"));
    }

    #[test]
    fn a_response_of_the_kubelet_is_recorded_in_the_health() {
        let (registry, metrics) = registered();
        let called = |error: Option<&ClientError>| {
            metrics.kubelet_called(&Request::List, Duration::ZERO, error);
        };
        called(Some(&ClientError::RateLimited("List")));
        let age = || metrics.health.response.as_ref().and_then(Recent::age);
        assert_eq!(age(), None);
        called(None);
        assert!(age().is_some());
        let of = r#"numacast_kubelet_requests_total{component="proxy",method="List",outcome="rate_limited"}"#;
        assert_eq!(samples(&registry, of), [" 1"]);
    }

    const OK: [String; 0] = [];

    #[tokio::test(start_paused = true)]
    async fn it_is_ready_once_it_serves_the_kubelet_responds_and_pods_are_synced() {
        let health = registered().1.health;
        let respond = || health.response.iter().for_each(Recent::confirm);
        assert_eq!(health.ready().len(), 3, "{:?}", health.ready());
        assert_ne!(health.started(), OK);
        assert_eq!(health.live(), OK);
        health.checked(true, false);
        respond();
        assert_eq!(health.ready(), ["the proxy has no list of pods yet"]);
        health.checked(true, true);
        assert_eq!([health.ready(), health.started()], [OK; 2]);
        advance(MAX_RESPONSE_AGE + Duration::from_secs(1)).await;
        assert!(
            health.ready()[0].contains("has not responded to the proxy for 31 s"),
            "{:?}",
            health.ready()
        );
        advance(CHECK).await;
        assert_ne!(health.live(), OK);
    }

    #[tokio::test(start_paused = true)]
    async fn without_annotations_it_needs_no_pods() {
        let health = Metrics::register(&mut Registry::default(), false).health;
        health.response.iter().for_each(Recent::confirm);
        assert_eq!(health.ready(), ["the proxy's socket is not served; see the log"]);
        health.checked(true, true);
        assert_eq!(health.ready(), OK);
    }
}
