//! Metric families on top of `prometheus_client`. One statement registers and describes a family;
//! `docs/metrics.md` is generated from what is registered.

use std::any::Any;
use std::array;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::text;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::{MetricType, TypedMetric, gauge};
use prometheus_client::registry::Metric;

use crate::util::sync::lock;

pub use prometheus_client::metrics::counter::Counter;
pub use prometheus_client::metrics::histogram::Histogram;

/// A gauge without fractions or negative values.
pub type Gauge = gauge::Gauge<u64, AtomicU64>;

/// A gauge without a sample while its value is unknown.
pub type OptionalGauge = Family<0, Gauge>;

/// Histogram buckets, in seconds. Performance budgets are at 5, 15, 50, 100 and 150 ms and at 1 s; deadlines
/// at 5 and 10 s.
const BUCKETS: [f64; 14] =
    [0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.15, 0.5, 1.0, 5.0, 10.0];

/// Counts what exceeds a label's limit.
const OTHER: &str = "other";

/// A label of a family.
#[derive(Clone, Copy, Debug)]
pub struct Label {
    /// Its name.
    pub name: &'static str,
    /// Its values, for the documentation.
    pub values: &'static str,
    max_values: usize,
    max_chars: usize,
}

/// Returns a label whose values are constants, described by `values`.
#[must_use]
pub const fn label(name: &'static str, values: &'static str) -> Label {
    Label { name, values, max_values: usize::MAX, max_chars: usize::MAX }
}

impl Label {
    /// Limits the values, which come from outside: to this many, the rest is counted as `other`, and to this
    /// many characters each.
    #[must_use]
    pub const fn at_most(self, max_values: usize, max_chars: usize) -> Self {
        Self { max_values, max_chars, ..self }
    }
}

/// A registered family.
#[derive(Debug)]
pub struct Registered {
    /// The name as used in queries.
    pub name: &'static str,
    /// The OpenMetrics type.
    pub kind: MetricType,
    /// The labels of every series.
    pub labels: Vec<Label>,
    /// The help text.
    pub help: &'static str,
    metric: Box<dyn Any + Send + Sync>,
}

/// The metric families of a process. A name that is registered twice is one family, which several parts of
/// the process share.
#[derive(Debug, Default)]
pub struct Registry {
    inner: prometheus_client::registry::Registry,
    families: Vec<Registered>,
}

impl Registry {
    /// Registers a counter.
    pub fn counter(&mut self, name: &'static str, help: &'static str) -> Counter {
        self.register(name, help, &[], Counter::default())
    }

    /// Registers counters by labels.
    pub fn counters<const N: usize>(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: [Label; N],
    ) -> Family<N, Counter> {
        self.register(name, help, &labels, Family::new(labels, <Counter>::default))
    }

    /// Registers a gauge that starts at 0.
    pub fn gauge(&mut self, name: &'static str, help: &'static str) -> Gauge {
        self.register(name, help, &[], Gauge::default())
    }

    /// Registers a gauge that has no sample while its value is unknown.
    pub fn optional_gauge(&mut self, name: &'static str, help: &'static str) -> OptionalGauge {
        self.gauges(name, help, [])
    }

    /// Registers gauges by labels.
    pub fn gauges<const N: usize>(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: [Label; N],
    ) -> Family<N, Gauge> {
        self.register(name, help, &labels, Family::new(labels, Gauge::default))
    }

    /// Registers a histogram of durations in seconds.
    pub fn histogram(&mut self, name: &'static str, help: &'static str) -> Histogram {
        self.register(name, help, &[], histogram())
    }

    /// Registers histograms of durations in seconds by labels.
    pub fn histograms<const N: usize>(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: [Label; N],
    ) -> Family<N, Histogram> {
        self.register(name, help, &labels, Family::new(labels, histogram))
    }

    /// Registers a counter or gauge that is read on each scrape; it has no sample if `read` returns `None`.
    pub fn computed(
        &mut self,
        name: &'static str,
        kind: MetricType,
        help: &'static str,
        read: fn() -> Option<f64>,
    ) {
        self.register(name, help, &[], Computed { kind, read });
    }

    fn register<M: Metric + Clone>(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &[Label],
        metric: M,
    ) -> M {
        let known = self.families.iter().find(|family| family.name == name);
        if let Some(known) = known.and_then(|family| family.metric.downcast_ref::<M>()) {
            return known.clone();
        }
        // The encoder adds the suffix of counters.
        self.inner.register(name.trim_end_matches("_total"), help, metric.clone());
        let (kind, labels) = (metric.metric_type(), labels.to_vec());
        self.families.push(Registered { name, kind, labels, help, metric: Box::new(metric.clone()) });
        metric
    }

    /// Returns all families, in the order in which they were registered.
    #[must_use]
    pub fn families(&self) -> &[Registered] {
        &self.families
    }

    /// Returns all metrics in the OpenMetrics text format.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut encoded = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut encoded, &self.inner);
        encoded
    }
}

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

/// Returns the wall-clock time in seconds since the epoch, for gauges whose names end in
/// `_timestamp_seconds`.
#[allow(clippy::disallowed_methods, reason = "Prometheus compares such gauges with its wall clock")]
#[must_use]
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The series of a family, by the values of its labels. Clones share them.
#[derive(Clone, Debug)]
pub struct Family<const N: usize, M>(Arc<Shared<N, M>>);

#[derive(Debug)]
struct Shared<const N: usize, M> {
    labels: [Label; N],
    new: fn() -> M,
    series: Mutex<Series<N, M>>,
}

#[derive(Debug)]
struct Series<const N: usize, M> {
    by_values: BTreeMap<[String; N], M>,
    /// The values of each limited label that are not counted as `other`.
    values: [BTreeSet<String>; N],
}

impl<const N: usize, M: Clone> Series<N, M> {
    fn new() -> Self {
        Self { by_values: BTreeMap::new(), values: array::from_fn(|_| BTreeSet::new()) }
    }

    fn with(&mut self, family: &Shared<N, M>, values: [&str; N]) -> &M {
        let shortened = |index: usize| values[index].chars().take(family.labels[index].max_chars).collect();
        let mut values: [String; N] = array::from_fn(shortened);
        if !self.by_values.contains_key(&values) {
            for (index, label) in family.labels.iter().enumerate() {
                let (value, known) = (&mut values[index], &mut self.values[index]);
                if known.len() < label.max_values && label.max_values < usize::MAX {
                    known.insert(value.clone());
                } else if known.len() >= label.max_values && !known.contains(value) {
                    *value = OTHER.to_owned();
                }
            }
        }
        self.by_values.entry(values).or_insert_with(family.new)
    }
}

impl<const N: usize, M: Clone> Family<N, M> {
    fn new(labels: [Label; N], new: fn() -> M) -> Self {
        Self(Arc::new(Shared { labels, new, series: Mutex::new(Series::new()) }))
    }

    /// Creates these series at 0, so that their first increment is visible to `rate()`.
    #[must_use]
    pub fn at_zero<'a>(self, values: impl IntoIterator<Item = [&'a str; N]>) -> Self {
        values.into_iter().for_each(|values| drop(self.with(values)));
        self
    }

    /// Returns the series with these label values, and creates it if it does not exist.
    pub fn with(&self, values: [&str; N]) -> M {
        lock(&self.0.series).with(&self.0, values).clone()
    }

    /// Removes all series but these.
    pub fn retain(&self, keep: impl Fn(&[String; N]) -> bool) {
        lock(&self.0.series).by_values.retain(|values, _| keep(values));
    }

    /// Removes all series.
    pub fn clear(&self) {
        *lock(&self.0.series) = Series::new();
    }
}

impl OptionalGauge {
    /// Sets the value, if it is known.
    pub fn set(&self, value: Option<u64>) {
        match value {
            Some(value) => {
                self.with([]).set(value);
            }
            None => self.clear(),
        }
    }
}

impl<const N: usize> Family<N, Gauge> {
    /// Replaces all series at once: a scrape gets either the old or the new ones.
    pub fn replace<L: AsRef<str>>(&self, new: impl IntoIterator<Item = ([L; N], u64)>) {
        let mut series = Series::new();
        for (values, value) in new {
            series.with(&self.0, values.each_ref().map(|value| value.as_ref())).inc_by(value);
        }
        *lock(&self.0.series) = series;
    }
}

impl<const N: usize, M: EncodeMetric + TypedMetric + Clone> EncodeMetric for Family<N, M> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (values, metric) in &lock(&self.0.series).by_values {
            // An empty set of labels would be encoded as `{}`.
            if N == 0 {
                return metric.encode(encoder);
            }
            let labels: [_; N] = array::from_fn(|index| (self.0.labels[index].name, values[index].as_str()));
            metric.encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }

    fn is_empty(&self) -> bool {
        lock(&self.0.series).by_values.is_empty()
    }
}

#[derive(Clone, Copy, Debug)]
struct Computed {
    kind: MetricType,
    read: fn() -> Option<f64>,
}

impl EncodeMetric for Computed {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        match ((self.read)(), self.kind) {
            (None, _) => Ok(()),
            (Some(value), MetricType::Counter) => {
                encoder.encode_counter::<[(&str, &str); 0], _, f64>(&value, None)
            }
            (Some(value), _) => encoder.encode_gauge(&value),
        }
    }

    fn metric_type(&self) -> MetricType {
        self.kind
    }
}

/// Returns the samples whose names and labels start with `start`, without that.
#[cfg(test)]
pub(crate) fn samples(registry: &Registry, start: &str) -> Vec<String> {
    registry.encode().lines().filter_map(|line| line.strip_prefix(start)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_encoded_with_their_help_type_and_labels() {
        let mut registry = Registry::default();
        let scans = registry.counters("scans_total", "Scans", [label("outcome", "")]).at_zero([["ok"]]);
        scans.with(["failed"]).inc();
        registry.gauge("pods", "Pods").set(3);
        registry.histogram("seconds", "Duration").observe(0.004);
        let text = registry.encode();
        let expected = "# HELP scans Scans.\n# TYPE scans counter\nscans_total{outcome=\"failed\"} 1\n\
                        scans_total{outcome=\"ok\"} 0\n# HELP pods Pods.\n# TYPE pods gauge\npods 3\n";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("seconds_count 1\n") && text.contains("le=\"0.005\"} 1\n"), "{text}");
        assert!(text.contains("le=\"0.002\"} 0\n") && text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn an_optional_gauge_has_no_sample_while_its_value_is_unknown() {
        let mut registry = Registry::default();
        let gauge = registry.optional_gauge("nodes", "Nodes");
        assert_eq!(registry.encode(), "# EOF\n");
        gauge.set(Some(2));
        assert_eq!(samples(&registry, "nodes"), [" 2"]);
        gauge.set(None);
        assert_eq!(registry.encode(), "# EOF\n");
    }

    #[test]
    fn a_name_that_is_registered_twice_is_one_family() {
        let mut registry = Registry::default();
        let mut add = || registry.counters("errors_total", "Errors", [label("component", "")]);
        let (one, other) = (add(), add());
        one.with(["a"]).inc();
        other.with(["a"]).inc();
        other.with(["b"]).inc();
        assert_eq!(samples(&registry, "errors_total"), [r#"{component="a"} 2"#, r#"{component="b"} 1"#]);
        assert_eq!(registry.families().len(), 1);
    }

    #[test]
    fn values_are_limited_in_number_and_length() {
        let mut registry = Registry::default();
        let label = label("client", "").at_most(2, 3);
        let requests = registry.counters("requests_total", "Requests", [label]);
        for client in ["abcd", "abce", "b", "c", "d", "b"] {
            requests.with([client]).inc();
        }
        let expected = [r#"{client="abc"} 2"#, r#"{client="b"} 2"#, r#"{client="other"} 2"#];
        assert_eq!(samples(&registry, "requests_total"), expected);

        let devices = registry.gauges("devices", "Devices", [label]);
        devices.replace([(["a"], 1), (["b"], 2), (["c"], 3), (["d"], 4)]);
        let expected = [r#"{client="a"} 1"#, r#"{client="b"} 2"#, r#"{client="other"} 7"#];
        assert_eq!(samples(&registry, "devices"), expected);
        devices.replace([(["c"], 5)]);
        assert_eq!(samples(&registry, "devices"), [r#"{client="c"} 5"#]);
    }
}
