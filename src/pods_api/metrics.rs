//! Metrics of the Pods API server. Those that the kubelet has too are named like the kubelet's.

use std::sync::Arc;
use std::time::Duration;

use tonic::Code;

use super::watchers::WatcherObserver;
use super::{INFO, PODS};
use crate::grpc::{self, ServerMetrics, code_name};
use crate::pod_source::PodSourceMetrics;
use crate::telemetry::health::ServerHealth;
use crate::telemetry::registry::{Counter, Family, Gauge, Histogram, Label, Registry, label, unix_seconds};

/// Name under which the Pods API appears in metrics that several components share.
const COMPONENT: &str = "pods_api";
/// Versions of the two APIs, as label values.
pub(super) const PODS_VERSION: &str = "v1alpha1";
pub(super) const INFO_VERSION: &str = "podinfo.v1alpha1";

const VERSION: Label = label("server_api_version", "`v1alpha1`; `podinfo.v1alpha1` for PodInfo");

#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    pub(super) health: Arc<ServerHealth>,
    pub(super) server: ServerMetrics,
    sources: PodSourceMetrics,
    requests: Family<3, Counter>,
    dropped_events: Counter,
    watchers: Family<1, Gauge>,
    pods: Family<2, Gauge>,
    last_event: Family<1, Gauge>,
    event_seconds: Histogram,
}

impl Metrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        Self {
            health: ServerHealth::new(
                "the socket of the Pods API",
                "the Pods API has no list of pods yet",
                "the Pods API has not checked its socket",
                None,
                false,
            ),
            requests: registry.counters(
                "numacast_pod_requests_total",
                "Calls and ended watches of the Pods API, as the kubelet's `kubelet_pod_requests_total`; \
                 without calls that end with `ResourceExhausted`",
                [
                    label("method", "`list`, `get` or `watch`"),
                    VERSION,
                    label("status_code", "gRPC status code"),
                ],
            ),
            dropped_events: registry.counter(
                "numacast_pod_watch_events_dropped_total",
                "Events not sent, because the watch was too far behind and was ended",
            ),
            watchers: registry.gauges("numacast_pods_api_watchers", "Open watches", [VERSION]),
            pods: registry.gauges(
                "numacast_pods_api_pods",
                "Known pods",
                [VERSION, label("state", "`served`, or `omitted` because of their size")],
            ),
            last_event: registry.gauges(
                "numacast_pods_api_last_event_timestamp_seconds",
                "Unix time of the last event of a pod source",
                [label("source", "as in `numacast_pod_source_up`")],
            ),
            event_seconds: registry.histogram(
                "numacast_pods_api_event_duration_seconds",
                "Time from an event of the pod source until the last watcher got it",
            ),
            server: ServerMetrics::register(registry, COMPONENT),
            sources: PodSourceMetrics::register(registry, COMPONENT),
        }
    }

    pub(crate) fn pods(&self, pods: (usize, usize), infos: (usize, usize)) {
        for (version, (served, omitted)) in [(PODS_VERSION, pods), (INFO_VERSION, infos)] {
            self.pods.with([version, "served"]).set(served as u64);
            self.pods.with([version, "omitted"]).set(omitted as u64);
        }
    }

    /// Records an event of a source. `up`: the source works and has listed all pods once.
    pub(crate) fn source_event(&self, source: &str, up: bool) {
        self.last_event.with([source]).set(unix_seconds());
        if up {
            self.sources.set_up(source, true);
            self.health.synced();
        }
    }

    pub(crate) fn source_down(&self, source: &str) {
        self.sources.set_up(source, false);
    }

    pub(crate) fn source_failed(&self, source: &str) {
        self.source_down(source);
        self.sources.count_error(source);
    }

    pub(super) fn finished(&self, path: &str, code: Code) {
        let (service, method) = grpc::split_path(path);
        let version = match service {
            PODS => PODS_VERSION,
            INFO => INFO_VERSION,
            _ => return,
        };
        let method = match method {
            "ListPods" | "ListPodConditions" => "list",
            "GetPod" | "GetPodConditions" => "get",
            "WatchPods" | "WatchPodConditions" => "watch",
            _ => return,
        };
        // The kubelet does not count calls that its rate limiter rejects, with this code.
        if code != Code::ResourceExhausted || method == "watch" {
            self.requests.with([method, version, &code_name(code)]).inc();
        }
    }
}

#[derive(Debug)]
pub(super) struct WatcherMetrics {
    pub(super) version: &'static str,
    pub(super) metrics: Metrics,
}

impl WatcherObserver for WatcherMetrics {
    fn watchers(&self, more: i64) {
        let watchers = self.metrics.watchers.with([self.version]);
        match more.is_negative() {
            true => watchers.dec_by(more.unsigned_abs()),
            false => watchers.inc_by(more.unsigned_abs()),
        };
    }

    fn cut_off(&self, watchers: usize) {
        self.metrics.dropped_events.inc_by(watchers as u64);
    }

    fn delivered(&self, after: Duration) {
        self.metrics.event_seconds.observe(after.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::telemetry::health::{CHECK, Probes};
    use crate::telemetry::registry::samples;

    #[test]
    fn calls_are_counted_as_the_kubelet_counts_them() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let call = |method: &str, code: Code| metrics.finished(&format!("/{PODS}/{method}"), code);
        call("ListPods", Code::Ok);
        call("ListPods", Code::ResourceExhausted);
        call("GetPod", Code::NotFound);
        call("WatchPods", Code::ResourceExhausted);
        call("Other", Code::Unimplemented);
        let expected = [
            r#"{method="get",server_api_version="v1alpha1",status_code="NotFound"} 1"#,
            r#"{method="list",server_api_version="v1alpha1",status_code="OK"} 1"#,
            r#"{method="watch",server_api_version="v1alpha1",status_code="ResourceExhausted"} 1"#,
        ];
        assert_eq!(samples(&registry, "numacast_pod_requests_total"), expected);
    }

    #[test]
    fn a_failed_source_is_down() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        metrics.source_event("pods_api", true);
        metrics.source_failed("pods_api");
        metrics.source_failed("kubelet");
        let expected =
            [r#"{component="pods_api",source="kubelet"} 0"#, r#"{component="pods_api",source="pods_api"} 0"#];
        assert_eq!(samples(&registry, "numacast_pod_source_up"), expected);
    }

    #[test]
    fn watchers_come_and_go() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let watchers = WatcherMetrics { version: PODS_VERSION, metrics };
        [1, 1, -1].into_iter().for_each(|more| watchers.watchers(more));
        assert_eq!(
            samples(&registry, "numacast_pods_api_watchers"),
            [r#"{server_api_version="v1alpha1"} 1"#]
        );
    }

    const OK: [String; 0] = [];

    #[tokio::test(start_paused = true)]
    async fn it_is_ready_once_it_serves_and_pods_are_synced() {
        let health = Metrics::register(&mut Registry::default()).health;
        assert_eq!(health.ready().len(), 2);
        assert_ne!(health.started(), OK);
        assert_eq!(health.live(), OK);
        health.checked(true, false);
        assert_eq!(health.ready(), ["the Pods API has no list of pods yet"]);
        assert_eq!(health.started(), OK);
        health.synced();
        assert_eq!(health.ready(), OK);
        // The source is down now: the last known pods are served, which is no reason to become unready.
        advance(CHECK / 2).await;
        assert_eq!([health.ready(), health.live()], [OK; 2]);
        advance(CHECK).await;
        assert_ne!(health.live(), OK);
    }
}
