//! Metrics of the requests to the kubelet's podresources API, which the agent and the proxy share.

use std::time::Duration;

use super::ClientError;
use crate::telemetry::registry::{Counter, Family, Histogram, Label, Registry, label};

const COMPONENT: Label = label("component", "`agent` or `proxy`, whose connection the agent may share");
const METHOD: Label = label("method", "`List`, `ListV1alpha1`, `Get` or `GetAllocatableResources`");

#[derive(Clone, Debug)]
pub(crate) struct RequestMetrics {
    component: &'static str,
    requests: Family<3, Counter>,
    seconds: Family<2, Histogram>,
}

impl RequestMetrics {
    pub(crate) fn register(registry: &mut Registry, component: &'static str) -> Self {
        let outcomes = ClientError::KINDS.into_iter().chain(["ok"]);
        Self {
            component,
            requests: registry
                .counters(
                    "numacast_kubelet_requests_total",
                    "Requests to the kubelet's podresources API",
                    [
                        COMPONENT,
                        METHOD,
                        label(
                            "outcome",
                            "`ok`; no kubelet responds: `no_socket`, `refused`, `connect`, `not_grpc`, \
                             `silent`; `rate_limited`: by the kubelet; failed: `deadline`, `too_large`, \
                             `unsupported`, `lost`, `status`",
                        ),
                    ],
                )
                .at_zero(outcomes.map(|outcome| [component, "List", outcome])),
            seconds: registry.histograms(
                "numacast_kubelet_request_duration_seconds",
                "Duration of requests to the kubelet's podresources API",
                [COMPONENT, METHOD],
            ),
        }
    }

    pub(crate) fn record(&self, method: &str, took: Duration, error: Option<&ClientError>) {
        let outcome = error.map_or("ok", ClientError::kind);
        self.requests.with([self.component, method, outcome]).inc();
        self.seconds.with([self.component, method]).observe(took.as_secs_f64());
    }
}
