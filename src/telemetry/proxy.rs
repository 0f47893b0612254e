//! Metrics and health of the podresources proxy. [`DOCS`] has the names and help texts.

mod docs;
mod health;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::metrics::{Counts, Label, Shown, histogram, register};
use super::pods::PodSourceCounts;
use crate::kubelet::ClientError;

pub use docs::DOCS;
pub use health::Health;

use docs::{
    ANSWER_AGE, ANSWER_BYTES, CALL_SECONDS, CALLS, COALESCED, CONNECTIONS, CUT, DEVICE_ERRORS, IN_FLIGHT,
    LEFT_OUT, MERGED_DEVICES, MERGED_PODS, PASSING, PROBLEMS, REQUEST_SECONDS, REQUESTS, UNKNOWN,
};

/// Maximum number of clients with their own series; the others are counted together. A node has a few.
const MOST_CLIENTS: usize = 32;
/// Maximum length of a process name; the kernel keeps no more.
const CLIENT_NAME: usize = 15;

/// A request and its outcome.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'a> {
    /// The method: `List`, `Get`, `GetAllocatableResources` or `other`.
    pub rpc: &'static str,
    /// The version of the API, or `other`.
    pub version: &'static str,
    /// The gRPC code.
    pub code: &'static str,
    /// The client's name.
    pub client: &'a str,
    /// The duration.
    pub took: Duration,
}

/// Figures of the last `List`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Size of the response in bytes.
    pub bytes: usize,
    /// Pods with merged devices.
    pub pods: usize,
    /// Merged devices.
    pub devices: usize,
    /// Devices omitted from the response, by reason.
    pub left_out: BTreeMap<&'static str, usize>,
    /// Pods that no source has reported.
    pub unknown: usize,
}

/// The proxy's metrics. Clones share the same counters.
#[derive(Clone, Debug)]
pub struct Metrics {
    requests: Family<[(&'static str, String); 4], Counter>,
    request_seconds: Family<Label<&'static str>, Histogram>,
    calls: Family<[(&'static str, &'static str); 2], Counter>,
    call_seconds: Family<Label<&'static str>, Histogram>,
    coalesced: Counter,
    in_flight: Gauge,
    answer_age: Histogram,
    answer_bytes: Gauge,
    merged_pods: Gauge,
    merged_devices: Gauge,
    problems: Family<Label<&'static str>, Gauge>,
    left_out: Family<Label<&'static str>, Gauge>,
    unknown: Gauge,
    passing: Gauge,
    connections: Gauge,
    cut: Counts,
    device_errors: Counts,
    /// Clients with their own series.
    clients: Arc<Mutex<Vec<String>>>,
    health: Arc<Health>,
}

impl Metrics {
    /// Returns metrics without any observations.
    #[must_use]
    pub fn new(health: Arc<Health>) -> Self {
        Self {
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(histogram),
            calls: Family::default(),
            call_seconds: Family::new_with_constructor(histogram),
            coalesced: Counter::default(),
            in_flight: Gauge::default(),
            answer_age: histogram(),
            answer_bytes: Gauge::default(),
            merged_pods: Gauge::default(),
            merged_devices: Gauge::default(),
            problems: Family::default(),
            left_out: Family::default(),
            unknown: Gauge::default(),
            passing: Gauge::default(),
            connections: Gauge::default(),
            cut: Counts::default(),
            device_errors: Counts::default(),
            clients: Arc::default(),
            health,
        }
    }

    fn register(&self, registry: &mut Registry) {
        register(registry, &REQUESTS, self.requests.clone());
        register(registry, &REQUEST_SECONDS, self.request_seconds.clone());
        register(registry, &CALLS, self.calls.clone());
        register(registry, &CALL_SECONDS, self.call_seconds.clone());
        register(registry, &COALESCED, self.coalesced.clone());
        register(registry, &IN_FLIGHT, self.in_flight.clone());
        register(registry, &ANSWER_AGE, self.answer_age.clone());
        register(registry, &ANSWER_BYTES, self.answer_bytes.clone());
        register(registry, &MERGED_PODS, self.merged_pods.clone());
        register(registry, &MERGED_DEVICES, self.merged_devices.clone());
        register(registry, &PROBLEMS, self.problems.clone());
        register(registry, &LEFT_OUT, self.left_out.clone());
        register(registry, &UNKNOWN, self.unknown.clone());
        register(registry, &PASSING, self.passing.clone());
        register(registry, &CONNECTIONS, self.connections.clone());
        register(registry, &CUT, self.cut.clone());
        register(registry, &DEVICE_ERRORS, self.device_errors.clone());
    }

    /// Returns these metrics, to be exposed together with the agent's.
    #[must_use]
    pub fn beside(&self) -> Shown {
        Shown::beside(|registry| self.register(registry))
    }

    /// Returns these metrics with those of the pod source and the process, for a process that exposes nothing
    /// else.
    #[must_use]
    pub fn alone(&self, pod_source: &PodSourceCounts) -> Shown {
        Shown::alone(|registry| {
            pod_source.register(registry);
            self.register(registry);
        })
    }

    /// Returns the proxy's health, which is updated together with the metrics.
    #[must_use]
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// Counts and times a request.
    pub fn answered(&self, answered: &Answered<'_>) {
        let Answered { rpc, version, code, client, took } = *answered;
        let client = self.shown(client);
        let labels = [
            ("rpc", rpc.to_owned()),
            ("version", version.to_owned()),
            ("code", code.to_owned()),
            ("client", client),
        ];
        self.requests.get_or_create(&labels).inc();
        self.request_seconds.get_or_create(&[("rpc", rpc)]).observe(took.as_secs_f64());
    }

    /// Returns the client's label value. The first [`MOST_CLIENTS`] have their own.
    fn shown(&self, client: &str) -> String {
        let name: String = client.chars().take(CLIENT_NAME).collect();
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if clients.contains(&name) {
            return name;
        }
        if clients.len() >= MOST_CLIENTS {
            return "other".to_owned();
        }
        clients.push(name.clone());
        name
    }

    /// Records the number of concurrent calls to the kubelet; the gauge keeps the maximum.
    pub fn in_flight(&self, calls: usize) {
        let calls = i64::try_from(calls).unwrap_or(i64::MAX);
        if calls > self.in_flight.get() {
            self.in_flight.set(calls);
        }
    }

    /// Records a call to the kubelet, whose response was shared by this many requests.
    pub fn called(&self, rpc: &'static str, took: Duration, error: Option<&ClientError>, shared_by: usize) {
        let outcome = error.map_or("ok", ClientError::kind);
        self.calls.get_or_create(&[("rpc", rpc), ("outcome", outcome)]).inc();
        self.call_seconds.get_or_create(&[("rpc", rpc)]).observe(took.as_secs_f64());
        self.coalesced.inc_by(u64::try_from(shared_by.saturating_sub(1)).unwrap_or(0));
        if error.is_none() {
            self.health.kubelet_answered();
        }
    }

    /// Observes the age of a response when it was sent.
    pub fn served(&self, age: Duration) {
        self.answer_age.observe(age.as_secs_f64());
    }

    /// Records a `List` response.
    pub fn listed(&self, listed: &Listed) {
        let Listed { bytes, pods, devices, left_out, unknown } = listed;
        let gauge = |gauge: &Gauge, value: &usize| gauge.set(i64::try_from(*value).unwrap_or(i64::MAX));
        gauge(&self.answer_bytes, bytes);
        gauge(&self.merged_pods, pods);
        gauge(&self.merged_devices, devices);
        gauge(&self.unknown, unknown);
        self.left_out.clear();
        for (reason, devices) in left_out {
            gauge(&self.left_out.get_or_create(&[("reason", *reason)]), devices);
        }
    }

    /// Sets the number of problems with annotations, by kind.
    pub fn problems(&self, problems: &BTreeMap<&'static str, usize>) {
        self.problems.clear();
        for (kind, count) in problems {
            self.problems.get_or_create(&[("kind", *kind)]).set(i64::try_from(*count).unwrap_or(i64::MAX));
        }
    }

    /// Sets whether responses are passed through without annotated devices because no pod source is
    /// available.
    pub fn passing_through(&self, passing: bool) {
        self.passing.set(i64::from(passing));
    }

    /// Sets the number of connected clients.
    pub fn connections(&self, connections: usize) {
        self.connections.set(i64::try_from(connections).unwrap_or(i64::MAX));
    }

    /// Counts a client that was disconnected or rejected.
    pub fn cut(&self, reason: &'static str) {
        self.cut.get_or_create(&[("reason", reason)]).inc();
    }

    /// Counts a failed read of Koordinator's Device object.
    pub fn device_error(&self, kind: &'static str) {
        self.device_errors.get_or_create(&[("kind", kind)]).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::super::metrics::{check_table, table};
    use super::super::server::Exposition;
    use super::*;
    use crate::generated;

    fn metrics() -> Metrics {
        Metrics::new(Arc::new(Health::new(true)))
    }

    fn text(metrics: &Metrics) -> String {
        metrics.beside().encode()
    }

    fn answered(client: &str) -> Answered<'_> {
        Answered { rpc: "List", version: "v1", code: "OK", client, took: Duration::ZERO }
    }

    #[test]
    fn the_table_says_what_is_served() {
        let metrics = metrics();
        metrics.answered(&answered("dcgm-exporter"));
        metrics.called("List", Duration::ZERO, None, 3);
        metrics.in_flight(2);
        metrics.served(Duration::ZERO);
        metrics.listed(&Listed { left_out: [("duplicate", 1)].into(), ..Listed::default() });
        metrics.problems(&[("malformed", 1)].into());
        metrics.cut("stalled");
        metrics.device_error("forbidden");
        check_table(&text(&metrics), DOCS);
    }

    #[test]
    fn the_document_lists_every_metric() {
        generated::section("docs/metrics.md", "metrics of the proxy", &table(DOCS));
    }

    #[test]
    fn clients_are_bounded_in_number_and_length() {
        let metrics = metrics();
        for number in 0..100 {
            metrics.answered(&answered(&format!("c{number:03}{}", "x".repeat(100))));
        }
        metrics.answered(&answered("c000xxxxxxxxxxxxxxx"));
        let text = text(&metrics);
        let clients = text.lines().filter(|line| line.starts_with("numacast_proxy_requests_total")).count();
        assert_eq!(clients, MOST_CLIENTS + 1, "{text}");
        assert!(
            text.contains(r#"client="other"} 68"#) && text.contains(r#"client="c000xxxxxxxxxxx"} 2"#),
            "{text}"
        );
    }

    #[test]
    fn what_the_last_list_did_not_have_is_shown_no_longer() {
        let metrics = metrics();
        metrics.listed(&Listed { left_out: [("duplicate", 1)].into(), unknown: 2, ..Listed::default() });
        metrics.problems(&[("malformed", 1)].into());
        metrics.listed(&Listed::default());
        metrics.problems(&BTreeMap::new());
        let text = text(&metrics);
        assert!(!text.contains("duplicate") && !text.contains("malformed"), "{text}");
        assert!(text.contains("numacast_proxy_unknown_pods 0"), "{text}");
    }

    #[test]
    fn requests_that_shared_an_answer_are_counted() {
        let metrics = metrics();
        metrics.called("List", Duration::ZERO, None, 5);
        metrics.called("List", Duration::ZERO, Some(&ClientError::RateLimited("List")), 0);
        metrics.in_flight(2);
        metrics.in_flight(1);
        let text = text(&metrics);
        for sample in [
            "numacast_proxy_coalesced_total 4",
            r#"numacast_proxy_upstream_calls_total{rpc="List",outcome="ok"} 1"#,
            r#"numacast_proxy_upstream_calls_total{rpc="List",outcome="rate_limited"} 1"#,
            "numacast_proxy_upstream_in_flight_max 2",
        ] {
            assert!(text.contains(sample), "{sample}: {text}");
        }
    }
}
