//! Metrics and health of the Pods API server. [`DOCS`] has the names and help texts. Metrics that the kubelet
//! has too are named like the kubelet's.

mod docs;
mod health;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::metrics::{Counts, Label, Shown, histogram, now, register};

pub use docs::DOCS;
pub use health::Health;

use docs::{
    CONNECTIONS, CUT, DROPPED, GETS, HEARD, LEFT_OUT, LISTS, PODS, REJECTED, REQUESTS, SOURCE_ERRORS,
    SOURCE_TIME, SOURCE_UP, WATCHERS, WATCHES,
};

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Returns all pods.
    List,
    /// Returns one pod.
    Get,
    /// Streams all pods and their changes.
    Watch,
}

/// Calls by API version and status code.
type Calls = Family<[(&'static str, &'static str); 2], Counter>;

/// The metrics of the Pods API server. Clones share the same counters.
#[derive(Clone, Debug)]
pub struct Metrics {
    requests: Calls,
    lists: Calls,
    gets: Calls,
    watches: Calls,
    dropped: Counter,
    rejected: Counter,
    watchers: Family<Label<&'static str>, Gauge>,
    pods: Family<Label<&'static str>, Gauge>,
    left_out: Family<Label<&'static str>, Gauge>,
    source_up: Family<Label<&'static str>, Gauge>,
    source_time: Family<Label<&'static str>, Gauge<f64, AtomicU64>>,
    source_errors: Counts,
    heard: Histogram,
    connections: Gauge,
    cut: Counts,
    health: Arc<Health>,
}

impl Metrics {
    /// Returns metrics without any observations.
    #[must_use]
    pub fn new(health: Arc<Health>) -> Self {
        Self {
            requests: Calls::default(),
            lists: Calls::default(),
            gets: Calls::default(),
            watches: Calls::default(),
            dropped: Counter::default(),
            rejected: Counter::default(),
            watchers: Family::default(),
            pods: Family::default(),
            left_out: Family::default(),
            source_up: Family::default(),
            source_time: Family::default(),
            source_errors: Counts::default(),
            heard: histogram(),
            connections: Gauge::default(),
            cut: Counts::default(),
            health,
        }
    }

    fn register(&self, registry: &mut Registry) {
        register(registry, &REQUESTS, self.requests.clone());
        register(registry, &LISTS, self.lists.clone());
        register(registry, &GETS, self.gets.clone());
        register(registry, &WATCHES, self.watches.clone());
        register(registry, &DROPPED, self.dropped.clone());
        register(registry, &REJECTED, self.rejected.clone());
        register(registry, &WATCHERS, self.watchers.clone());
        register(registry, &PODS, self.pods.clone());
        register(registry, &LEFT_OUT, self.left_out.clone());
        register(registry, &SOURCE_UP, self.source_up.clone());
        register(registry, &SOURCE_TIME, self.source_time.clone());
        register(registry, &SOURCE_ERRORS, self.source_errors.clone());
        register(registry, &HEARD, self.heard.clone());
        register(registry, &CONNECTIONS, self.connections.clone());
        register(registry, &CUT, self.cut.clone());
    }

    /// Returns these metrics, to be exposed together with the agent's.
    #[must_use]
    pub fn beside(&self) -> Shown {
        Shown::beside(|registry| self.register(registry))
    }

    /// Returns these metrics with those of the process, for a process that exposes nothing else.
    #[must_use]
    pub fn alone(&self) -> Shown {
        Shown::alone(|registry| self.register(registry))
    }

    /// Returns the server's health, which is updated together with the metrics.
    #[must_use]
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// Counts a call that was answered or a watch that ended.
    pub fn answered(&self, call: Call, version: &'static str, code: &'static str) {
        let of_its_kind = match call {
            Call::List => &self.lists,
            Call::Get => &self.gets,
            Call::Watch => &self.watches,
        };
        for calls in [&self.requests, of_its_kind] {
            calls.get_or_create(&[("server_api_version", version), ("status_code", code)]).inc();
        }
    }

    /// Counts a call rejected by the rate limiter.
    pub fn rejected(&self) {
        self.rejected.inc();
    }

    /// Counts watchers that were disconnected for being too slow.
    pub fn dropped(&self, watchers: usize) {
        self.dropped.inc_by(watchers as u64);
    }

    /// Adds `more` to the number of open watches.
    pub fn watchers(&self, version: &'static str, more: i64) {
        self.watchers.get_or_create(&[("server_api_version", version)]).inc_by(more);
    }

    /// Sets the numbers of served and omitted pods, for each of the two APIs.
    pub fn pods(&self, pods: (usize, usize), infos: (usize, usize)) {
        for (version, (served, left_out)) in [("v1alpha1", pods), ("podinfo.v1alpha1", infos)] {
            for (family, count) in [(&self.pods, served), (&self.left_out, left_out)] {
                let gauge = family.get_or_create(&[("server_api_version", version)]);
                gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
    }

    /// Records an event from a source. `up`: the source is working and has delivered all pods once.
    pub fn told_by(&self, source: &'static str, up: bool) {
        self.source_time.get_or_create(&[("source", source)]).set(now());
        if up {
            self.source_up.get_or_create(&[("source", source)]).set(1);
            self.health.told();
        }
    }

    /// Records that a source is down: not synced yet, or no longer in use.
    pub fn left(&self, source: &'static str) {
        self.source_up.get_or_create(&[("source", source)]).set(0);
    }

    /// Counts an error: a source could not be reached, or its stream broke.
    pub fn lost(&self, source: &'static str) {
        self.left(source);
        self.source_errors.get_or_create(&[("source", source)]).inc();
    }

    /// Observes the delay between receiving an event and sending it to the last watcher.
    pub fn heard(&self, after: Duration) {
        self.heard.observe(after.as_secs_f64());
    }

    /// Sets the number of connected clients.
    pub fn connections(&self, connections: usize) {
        self.connections.set(i64::try_from(connections).unwrap_or(i64::MAX));
    }

    /// Counts a client that was disconnected or rejected.
    pub fn cut(&self, reason: &'static str) {
        self.cut.get_or_create(&[("reason", reason)]).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::super::metrics::{check_table, table};
    use super::super::server::Exposition;
    use super::*;
    use crate::generated;

    fn text(metrics: &Metrics) -> String {
        metrics.beside().encode()
    }

    #[test]
    fn the_table_says_what_is_served() {
        let metrics = Metrics::new(Arc::default());
        for call in [Call::List, Call::Get, Call::Watch] {
            metrics.answered(call, "v1alpha1", "OK");
        }
        metrics.watchers("v1alpha1", 1);
        metrics.pods((2, 1), (3, 0));
        metrics.told_by("api_server", true);
        metrics.lost("api_server");
        metrics.heard(Duration::ZERO);
        metrics.cut("stalled");
        check_table(&text(&metrics), DOCS);
    }

    #[test]
    fn the_document_lists_every_metric() {
        generated::section("docs/metrics.md", "metrics of the Pods API", &table(DOCS));
    }

    #[test]
    fn calls_are_counted_as_the_kubelet_counts_them() {
        let metrics = Metrics::new(Arc::default());
        metrics.answered(Call::List, "v1alpha1", "OK");
        metrics.answered(Call::Get, "v1alpha1", "NotFound");
        metrics.dropped(3);
        metrics.told_by("pods_api", true);
        metrics.lost("pods_api");
        metrics.lost("kubelet");
        let text = text(&metrics);
        for sample in [
            r#"numacast_pod_requests_total{server_api_version="v1alpha1",status_code="OK"} 1"#,
            r#"numacast_pod_requests_get_total{server_api_version="v1alpha1",status_code="NotFound"} 1"#,
            "numacast_pod_watch_events_dropped_total 3",
            r#"numacast_pods_api_source_up{source="pods_api"} 0"#,
            r#"numacast_pods_api_source_up{source="kubelet"} 0"#,
        ] {
            assert!(text.contains(sample), "{sample}: {text}");
        }
    }
}
