//! The agent's metrics. [`DOCS`] has the names and help texts; `docs/metrics.md` is generated from it.
//!
//! Label values from outside are limited in number and length, so cardinality is bounded.

pub(super) mod docs;
mod process;
mod zones;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};

use super::health::Health;
use super::pods::PodSourceCounts;
use super::server::Exposition;
use crate::kubelet::{ClaimedDevice, ClientError, Usage};
use crate::topology::{Finding, Topology};

pub use docs::{DOCS, Doc};

pub(super) use docs::{BUILD, CPU_SECONDS, EVENTS, MAX_FDS, OPEN_FDS, RESIDENT, START_TIME, VIRTUAL};
use docs::{
    CALL_SECONDS, CLAIMED, FINDINGS, FOREIGN_WRITES, HELD, KUBELET_ERRORS, LET_GO, PROBLEMS, PUBLISH_AGE,
    PUBLISH_ERRORS, PUBLISH_SECONDS, PUBLISH_TIME, RESERVED, RESERVED_PODS, SCAN_AGE, SCAN_SECONDS,
    SCAN_TIME, SCANS, TRIGGERS, UNACCOUNTED, WRITES,
};
pub(super) use process::Process;

use zones::Zones;

/// Histogram buckets, in seconds. Performance budgets are at 5, 15, 50, 100 and 150 ms and at 1 s; deadlines
/// at 5 and 10 s.
const BUCKETS: [f64; 14] =
    [0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.15, 0.5, 1.0, 5.0, 10.0];

/// The outcome of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It produced a topology.
    Accounted,
    /// It succeeded, but the current object in the API server is not known yet.
    Early,
    /// A pod was being admitted, so the scan is repeated.
    Admitting,
    /// The kubelet's state was not complete yet.
    Unsettled,
    /// The kubelet or the hardware could not be read.
    Failed,
}

impl Outcome {
    const ALL: [Self; 5] = [Self::Accounted, Self::Early, Self::Admitting, Self::Unsettled, Self::Failed];

    const fn label(self) -> &'static str {
        match self {
            Self::Accounted => "accounted",
            Self::Early => "early",
            Self::Admitting => "admitting",
            Self::Unsettled => "unsettled",
            Self::Failed => "failed",
        }
    }
}

/// Kinds of findings that are exposed as 0 while there are none.
const FINDING_KINDS: [&str; 5] =
    ["unpublished_node", "unknown_cpus", "impossible_memory", "overused_memory", "device_on_unknown_node"];

const fn finding_kind(finding: &Finding) -> &'static str {
    match finding {
        Finding::UnpublishedNodes(_) => "unpublished_node",
        Finding::UnknownCpus(_) => "unknown_cpus",
        Finding::ImpossibleMemory { .. } => "impossible_memory",
        Finding::OverusedMemory { .. } => "overused_memory",
        Finding::DevicesOnUnknownNodes { .. } => "device_on_unknown_node",
    }
}

/// Maximum number of DRA drivers with their own series; the others are counted together. A node has a few.
const MOST_DRIVERS: usize = 32;
/// The API server's limit for a driver name.
const DRIVER_NAME: usize = 63;

/// A single label.
pub(super) type Label<V> = [(&'static str, V); 1];

/// Why the object was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteReason {
    /// The first write of this process.
    First,
    /// The topology changed.
    Change,
    /// The refresh interval elapsed without a change.
    Refresh,
    /// The object was deleted or edited by someone else.
    Repair,
    /// The object belonged to another field manager that no longer writes it.
    Takeover,
}

impl WriteReason {
    const ALL: [Self; 5] = [Self::First, Self::Change, Self::Refresh, Self::Repair, Self::Takeover];

    const fn label(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Change => "change",
            Self::Refresh => "refresh",
            Self::Repair => "repair",
            Self::Takeover => "takeover",
        }
    }
}

/// Counters with a single label whose values are constants.
pub(super) type Counts = Family<Label<&'static str>, Counter>;

/// The agent's metrics. Updates are cheap; encoding happens only on a scrape.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    health: Arc<Health>,
    scans: Counts,
    scan_seconds: Histogram,
    call_seconds: Family<Label<&'static str>, Histogram, fn() -> Histogram>,
    kubelet_errors: Counts,
    triggers: Counts,
    publish_seconds: Histogram,
    writes: Counts,
    publish_errors: Counts,
    foreign_writes: Counts,
    events: Counts,
    scan_time: Gauge<f64, AtomicU64>,
    publish_time: Gauge<f64, AtomicU64>,
    zones: Zones,
    findings: Family<Label<&'static str>, Gauge>,
    problems: Gauge,
    claimed: Family<Label<String>, Gauge>,
    pod_source: PodSourceCounts,
    unaccounted: Gauge,
    reserved_pods: Gauge,
    reserved: Family<Label<String>, Gauge>,
    let_go: Counter,
    held: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

/// Registers a metric. The encoder adds OpenMetrics' suffixes for counters and infos.
pub(super) fn register(registry: &mut Registry, doc: &Doc, metric: impl Metric) {
    registry.register(doc.family(), doc.help, metric);
}

pub(super) fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

/// Encodes a gauge of a collector; without a value the family has no sample.
pub(super) fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    doc: &Doc,
    value: Option<impl EncodeGaugeValue>,
) -> fmt::Result {
    let help = format!("{}.", doc.help);
    let mut metric = encoder.encode_descriptor(doc.family(), &help, None, MetricType::Gauge)?;
    value.map_or(Ok(()), |value| metric.encode_gauge(&value))
}

/// Encodes a counter; see [`gauge`].
fn counter(
    encoder: &mut DescriptorEncoder<'_>,
    doc: &Doc,
    value: Option<impl EncodeCounterValue>,
) -> fmt::Result {
    let help = format!("{}.", doc.help);
    let mut metric = encoder.encode_descriptor(doc.family(), &help, None, MetricType::Counter)?;
    value.map_or(Ok(()), |value| metric.encode_counter::<[(&str, &str); 0], _, f64>(&value, None))
}

/// Gauges with the ages, which grow between updates.
#[derive(Debug)]
struct Ages(Arc<Health>);

impl Collector for Ages {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        gauge(&mut encoder, &SCAN_AGE, self.0.scan_age().map(|age| age.as_secs_f64()))?;
        gauge(&mut encoder, &PUBLISH_AGE, self.0.publish_age().map(|age| age.as_secs_f64()))
    }
}

#[allow(clippy::disallowed_methods, reason = "process_start_time_seconds and the like are its times")]
/// Returns the wall-clock time in seconds since the epoch.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

impl Metrics {
    /// Returns metrics without any observations. Updates also go to `health`, so its ages and these metrics
    /// are consistent.
    #[must_use]
    pub fn new(health: Arc<Health>) -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            health,
            scans: Counts::default(),
            scan_seconds: histogram(),
            call_seconds: Family::new_with_constructor(histogram),
            kubelet_errors: Counts::default(),
            triggers: Counts::default(),
            publish_seconds: histogram(),
            writes: Counts::default(),
            publish_errors: Counts::default(),
            foreign_writes: Counts::default(),
            events: Counts::default(),
            scan_time: Gauge::default(),
            publish_time: Gauge::default(),
            zones: Zones::default(),
            findings: Family::default(),
            problems: Gauge::default(),
            claimed: Family::default(),
            pod_source: PodSourceCounts::default(),
            unaccounted: Gauge::default(),
            reserved_pods: Gauge::default(),
            reserved: Family::default(),
            let_go: Counter::default(),
            held: Gauge::default(),
        };
        metrics.register();
        metrics.start_at_zero();
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        register(registry, &BUILD, Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        register(registry, &SCANS, self.scans.clone());
        register(registry, &SCAN_SECONDS, self.scan_seconds.clone());
        register(registry, &CALL_SECONDS, self.call_seconds.clone());
        register(registry, &KUBELET_ERRORS, self.kubelet_errors.clone());
        register(registry, &TRIGGERS, self.triggers.clone());
        register(registry, &PUBLISH_SECONDS, self.publish_seconds.clone());
        register(registry, &WRITES, self.writes.clone());
        register(registry, &PUBLISH_ERRORS, self.publish_errors.clone());
        register(registry, &FOREIGN_WRITES, self.foreign_writes.clone());
        register(registry, &EVENTS, self.events.clone());
        register(registry, &SCAN_TIME, self.scan_time.clone());
        register(registry, &PUBLISH_TIME, self.publish_time.clone());
        register(registry, &FINDINGS, self.findings.clone());
        register(registry, &PROBLEMS, self.problems.clone());
        register(registry, &CLAIMED, self.claimed.clone());
        self.pod_source.register(registry);
        register(registry, &UNACCOUNTED, self.unaccounted.clone());
        register(registry, &RESERVED_PODS, self.reserved_pods.clone());
        register(registry, &RESERVED, self.reserved.clone());
        register(registry, &LET_GO, self.let_go.clone());
        register(registry, &HELD, self.held.clone());
        registry.register_collector(Box::new(Ages(Arc::clone(&self.health))));
        registry.register_collector(Box::new(self.zones.clone()));
        registry.register_collector(Box::new(Process::default()));
    }

    /// Creates the known series at 0, so that the first increment is visible to `rate()`.
    fn start_at_zero(&self) {
        let zero = |counts: &Counts, label: &'static str, values: &[&'static str]| {
            for value in values {
                drop(counts.get_or_create(&[(label, value)]));
            }
        };
        zero(&self.scans, "outcome", &Outcome::ALL.map(Outcome::label));
        zero(&self.writes, "reason", &WriteReason::ALL.map(WriteReason::label));
        zero(&self.kubelet_errors, "kind", &ClientError::KINDS);
        zero(&self.foreign_writes, "writer", &["person", "manager"]);
        self.found(&BTreeSet::new());
    }

    /// Returns the agent's health, which is updated together with the metrics.
    #[must_use]
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// Counts a scan by its outcome.
    pub fn scanned(&self, outcome: Outcome) {
        self.scans.get_or_create(&[("outcome", outcome.label())]).inc();
        if matches!(outcome, Outcome::Accounted | Outcome::Early) {
            self.scan_time.set(now());
            self.health.scanned();
        }
    }

    /// Observes the duration of a scan, whatever its outcome.
    pub fn scan_took(&self, took: Duration) {
        self.scan_seconds.observe(took.as_secs_f64());
    }

    /// Observes a call to the kubelet.
    pub fn called(&self, call: &'static str, took: Duration, error: Option<&ClientError>) {
        self.call_seconds.get_or_create(&[("call", call)]).observe(took.as_secs_f64());
        if let Some(error) = error {
            self.kubelet_errors.get_or_create(&[("kind", error.kind())]).inc();
        }
    }

    /// Records a scan that produced a topology: its claimed devices, findings and inventory problems.
    pub fn accounted(&self, usage: &Usage, problems: usize, topology: &Topology) {
        self.scanned(Outcome::Accounted);
        self.problems.set(count(problems));
        self.found(&topology.findings);
        self.claimed(usage);
    }

    /// Records a changed topology, which is to be published.
    pub fn changed(&self, topology: &Topology) {
        self.zones.set(&topology.zones);
        self.held.set(i64::from(topology.pods.is_some_and(|set| set.is_held())));
        self.health.waiting();
    }

    /// Sets the number of pods that are bound to the node but not accounted for in the zones.
    pub fn unaccounted(&self, pods: usize) {
        self.unaccounted.set(count(pods));
    }

    /// Sets the number of pods with reservations and the reserved amounts by resource name.
    pub fn reserved(&self, pods: usize, amounts: &BTreeMap<&str, u64>) {
        self.reserved_pods.set(count(pods));
        self.reserved.clear();
        for (resource, amount) in amounts {
            let gauge = self.reserved.get_or_create(&[("resource", (*resource).to_owned())]);
            gauge.set(i64::try_from(*amount).unwrap_or(i64::MAX));
        }
    }

    /// Counts a pod that is no longer waited for although the kubelet neither admitted nor rejected it.
    pub fn let_go(&self) {
        self.let_go.inc();
    }

    /// Returns the observer that counts events of the pod sources.
    #[must_use]
    pub fn pod_source(&self) -> Arc<PodSourceCounts> {
        Arc::new(self.pod_source.clone())
    }

    /// Counts a trigger of a scan.
    pub fn triggered(&self, trigger: &'static str) {
        self.triggers.get_or_create(&[("trigger", trigger)]).inc();
    }

    /// Records a successful write to the API server.
    pub fn wrote(&self, reason: WriteReason, took: Duration) {
        self.writes.get_or_create(&[("reason", reason.label())]).inc();
        self.publish_seconds.observe(took.as_secs_f64());
        self.publish_time.set(now());
        self.health.published(took);
    }

    /// Records that the object in the API server equals the newest topology, so no write is needed.
    pub fn agreed(&self) {
        self.publish_time.set(now());
        self.health.published(Duration::ZERO);
    }

    /// Counts a failed call to the API server for the object.
    pub fn write_failed(&self, kind: &'static str) {
        self.publish_errors.get_or_create(&[("kind", kind)]).inc();
    }

    /// Counts a write of the object by another field manager.
    pub fn foreign_write(&self, person: bool) {
        let writer = if person { "person" } else { "manager" };
        self.foreign_writes.get_or_create(&[("writer", writer)]).inc();
    }

    /// Counts a posted Kubernetes Event.
    pub fn event_posted(&self, reason: &'static str) {
        self.events.get_or_create(&[("reason", reason)]).inc();
    }

    fn found(&self, findings: &BTreeSet<Finding>) {
        let mut counts = BTreeMap::from(FINDING_KINDS.map(|kind| (kind, 0)));
        for finding in findings {
            *counts.entry(finding_kind(finding)).or_default() += 1;
        }
        for (kind, count) in counts {
            self.findings.get_or_create(&[("kind", kind)]).set(count);
        }
    }

    fn claimed(&self, usage: &Usage) {
        // Removes the series of drivers that are no longer in use.
        self.claimed.clear();
        for (driver, devices) in claimed_devices(usage) {
            self.claimed.get_or_create(&[("driver", driver)]).set(devices);
        }
    }
}

impl Exposition for Metrics {
    fn encode(&self) -> String {
        expose(&self.registry)
    }
}

/// The metrics that a process exposes.
#[derive(Debug)]
pub struct Shown(Registry);

impl Shown {
    /// Returns these metrics only, to be exposed together with the agent's.
    pub(super) fn beside(register: impl FnOnce(&mut Registry)) -> Self {
        let mut registry = Registry::default();
        register(&mut registry);
        Self(registry)
    }

    /// Returns these metrics with those of the process itself, for a process that exposes nothing else.
    pub(super) fn alone(register_all: impl FnOnce(&mut Registry)) -> Self {
        let mut registry = Registry::default();
        register(&mut registry, &BUILD, Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        register_all(&mut registry);
        registry.register_collector(Box::new(Process::default()));
        Self(registry)
    }
}

impl Exposition for Shown {
    fn encode(&self) -> String {
        expose(&self.0)
    }
}

/// Encodes a registry in the OpenMetrics text format.
pub(super) fn expose(registry: &Registry) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, registry);
    text
}

/// Counts devices by driver. The kubelet lists a device once for each container that uses its claim.
fn claimed_devices(usage: &Usage) -> BTreeMap<String, i64> {
    let containers = usage.pods.iter().flat_map(|pod| &pod.containers);
    let devices: BTreeSet<_> = containers.flat_map(|container| &container.claimed).map(identity).collect();
    let mut drivers: BTreeMap<&str, i64> = BTreeMap::new();
    for (driver, ..) in devices {
        *drivers.entry(driver).or_default() += 1;
    }
    let mut shown: BTreeMap<String, i64> = BTreeMap::new();
    for (index, (driver, devices)) in drivers.into_iter().enumerate() {
        let name = match driver {
            "" => "unknown".to_owned(),
            _ if index >= MOST_DRIVERS => "other".to_owned(),
            name => name.chars().take(DRIVER_NAME).collect(),
        };
        *shown.entry(name).or_default() += devices;
    }
    shown
}

/// Returns a device's identity: driver, pool, device and share, or the claim if the kubelet reports only
/// that.
fn identity(device: &ClaimedDevice) -> (&str, &str, &str, Option<&str>, Option<&str>) {
    let ClaimedDevice { claim, driver, pool, device, share } = device;
    (driver, pool, device, share.as_deref(), driver.is_empty().then_some(claim))
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns the Markdown table of metrics for the documentation.
#[cfg(test)]
pub(super) fn table(docs: &[&Doc]) -> String {
    let mut table = "| metric | type | labels | meaning |\n|---|---|---|---|\n".to_owned();
    for Doc { name, kind, labels, help } in docs {
        let labels: Vec<String> =
            labels.iter().map(|(label, values)| format!("`{label}`: {values}")).collect();
        table += &format!("| `{name}` | {kind} | {} | {help} |\n", labels.join("; "));
    }
    table
}

/// Checks that the exposed families are those of the table, with the same help, type and labels.
#[cfg(test)]
pub(super) fn check_table(text: &str, docs: &[&Doc]) {
    let families: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    assert_eq!(families.len(), docs.len(), "{families:?}");
    for doc in docs {
        let last = if doc.kind == "histogram" { "_sum" } else { "" };
        let name = format!("{}{last}", doc.name);
        let samples = text.lines().filter_map(|line| line.strip_prefix(name.as_str()));
        let found: Vec<&str> = samples.filter(|sample| sample.starts_with(['{', ' '])).collect();
        assert!(!found.is_empty(), "{}", doc.name);
        for sample in found {
            let labels: Vec<&str> = doc.labels.iter().map(|(label, _)| *label).collect();
            assert_eq!(sample.matches("=\"").count(), labels.len(), "{}{sample}", doc.name);
            assert!(labels.iter().all(|label| sample.contains(&format!("{label}=\""))), "{sample}");
        }
        let family = doc.family();
        let head = format!("# HELP {family} {}.\n# TYPE {family} {}\n", doc.help, doc.kind);
        assert!(text.contains(&head), "{head}");
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::generated;
    use crate::kubelet::{ContainerUsage, PodUsage};
    use crate::pod_source::Tally as _;
    use crate::topology::{Amounts, Zone};

    /// Parses `driver/pool/device` or `driver/pool/device/share`.
    fn claimed(name: &str) -> ClaimedDevice {
        let mut parts = name.split('/').map(str::to_owned);
        let mut part = || parts.next().unwrap_or_default();
        ClaimedDevice {
            claim: "ns/claim".into(),
            driver: part(),
            pool: part(),
            device: part(),
            share: parts.next(),
        }
    }

    /// Returns a usage with one pod for each list of devices.
    fn usage(pods: &[&[ClaimedDevice]]) -> Usage {
        let pod = |claimed: &&[ClaimedDevice]| PodUsage {
            containers: vec![ContainerUsage { claimed: claimed.to_vec(), ..ContainerUsage::default() }],
            ..PodUsage::default()
        };
        Usage { pods: pods.iter().map(pod).collect() }
    }

    /// Returns the samples of one family, without its name.
    fn samples(metrics: &Metrics, name: &str) -> Vec<String> {
        metrics.encode().lines().filter_map(|line| line.strip_prefix(name)).map(str::to_owned).collect()
    }

    #[test]
    fn a_device_counts_once_however_many_containers_share_its_claim() {
        let (gpu, nic) = (claimed("gpu.example.com/worker/gpu-0"), claimed("nic.example.com/worker/vf-3"));
        let usage = usage(&[&[gpu.clone(), nic], &[gpu], &[claimed("gpu.example.com/worker/gpu-1")]]);
        let metrics = Metrics::default();
        metrics.accounted(&usage, 0, &Topology::default());
        let mut found = samples(&metrics, "numacast_claimed_devices");
        found.sort();
        assert_eq!(found, [r#"{driver="gpu.example.com"} 2"#, r#"{driver="nic.example.com"} 1"#]);
    }

    #[test]
    fn shares_of_a_device_and_equal_names_in_two_pools_are_several_devices() {
        let devices = ["a/p/gpu/share-1", "a/p/gpu/share-2", "a/q/gpu", "a/p/gpu"].map(claimed);
        assert_eq!(claimed_devices(&usage(&[&devices])), [("a".to_owned(), 4)].into());
    }

    #[test]
    fn a_kubelet_that_names_only_claims_is_counted_by_claims() {
        let claim = |name: &str| ClaimedDevice { claim: name.into(), ..ClaimedDevice::default() };
        let usage = usage(&[&[claim("ns/a")], &[claim("ns/b"), claim("ns/a")]]);
        assert_eq!(claimed_devices(&usage), [("unknown".to_owned(), 2)].into());
    }

    #[test]
    fn drivers_are_bounded_in_number_and_length_and_leave_when_they_are_gone() {
        let many: Vec<_> =
            (0..1_000).map(|n| claimed(&format!("driver-{n:04}{}/p/d", "x".repeat(99)))).collect();
        let metrics = Metrics::default();
        metrics.accounted(&usage(&[&many]), 0, &Topology::default());
        let found = samples(&metrics, "numacast_claimed_devices");
        assert_eq!(found.len(), MOST_DRIVERS + 1);
        assert!(found.contains(&r#"{driver="other"} 968"#.to_owned()), "{found:?}");
        assert!(found.iter().all(|line| line.len() < 80), "{found:?}");
        metrics.accounted(&Usage::default(), 0, &Topology::default());
        assert_eq!(samples(&metrics, "numacast_claimed_devices"), Vec::<String>::new());
    }

    #[test]
    fn findings_and_problems_are_those_of_the_last_account() {
        let metrics = Metrics::default();
        let of = |kind: &str| samples(&metrics, &format!("numacast_findings{{kind=\"{kind}\"}} "));
        assert_eq!(of("overused_memory"), ["0"], "shown before the first account");
        let overused = |nodes: &str| Finding::OverusedMemory {
            nodes: nodes.parse().unwrap(),
            resource: "memory".into(),
        };
        let findings = [overused("0"), overused("0-1")].into();
        metrics.accounted(&Usage::default(), 1, &Topology { findings, ..Topology::default() });
        assert_eq!((of("overused_memory"), of("unknown_cpus")), (vec!["2".into()], vec!["0".into()]));
        assert_eq!(samples(&metrics, "numacast_inventory_problems "), ["1"]);
        metrics.accounted(&Usage::default(), 0, &Topology::default());
        assert_eq!(of("overused_memory"), ["0"]);
        assert_eq!(samples(&metrics, "numacast_inventory_problems "), ["0"]);
    }

    #[test]
    fn scans_are_counted_by_outcome() {
        let metrics = Metrics::default();
        let failed = || samples(&metrics, r#"numacast_scans_total{outcome="failed"} "#);
        assert_eq!(failed(), ["0"]);
        metrics.scanned(Outcome::Failed);
        metrics.scanned(Outcome::Failed);
        assert_eq!(failed(), ["2"]);
    }

    #[test]
    fn writes_are_counted_by_reason_and_timed() {
        let metrics = Metrics::default();
        assert_eq!(samples(&metrics, r#"numacast_writes_total{reason="change"} "#), ["0"]);
        assert_eq!(samples(&metrics, "numacast_last_publish_age_seconds "), Vec::<String>::new());
        assert_eq!(samples(&metrics, "numacast_last_publish_timestamp_seconds "), ["0.0"]);
        metrics.wrote(WriteReason::Change, Duration::from_millis(4));
        metrics.wrote(WriteReason::Change, Duration::from_millis(6));
        metrics.write_failed("deadline");
        assert_eq!(samples(&metrics, r#"numacast_writes_total{reason="change"} "#), ["2"]);
        assert_eq!(samples(&metrics, r#"numacast_publish_errors_total{kind="deadline"} "#), ["1"]);
        let bucket = |bound: &str| {
            samples(&metrics, &format!("numacast_publish_duration_seconds_bucket{{le=\"{bound}\"}} "))
        };
        assert_eq!(
            (bucket("0.002"), bucket("0.005"), bucket("0.01")),
            (vec!["0".into()], vec!["1".into()], vec!["2".into()])
        );
        assert_eq!(samples(&metrics, "numacast_last_publish_age_seconds ").len(), 1);
        let time: f64 = samples(&metrics, "numacast_last_publish_timestamp_seconds ")[0].parse().unwrap();
        assert!(time > 1e9, "{time}");
    }

    #[test]
    fn failed_calls_are_timed_and_counted_by_kind() {
        let metrics = Metrics::default();
        let of =
            |kind: &str| samples(&metrics, &format!("numacast_kubelet_errors_total{{kind=\"{kind}\"}} "));
        assert_eq!(of("rate_limited"), ["0"]);
        metrics.called("List", Duration::from_secs(1), Some(&ClientError::RateLimited("List")));
        metrics.called("List", Duration::from_secs(1), None);
        assert_eq!(of("rate_limited"), ["1"]);
        let calls = samples(&metrics, r#"numacast_kubelet_call_duration_seconds_count{call="List"} "#);
        assert_eq!(calls, ["2"]);
    }

    /// Returns a zone with the given resources, each with capacity 3, allocatable 2 and available 1.
    fn zone(id: u16, resources: impl IntoIterator<Item = String>) -> Zone {
        let amounts = Amounts { capacity: 3, allocatable: 2, available: 1 };
        Zone { id, resources: resources.into_iter().map(|name| (name, amounts)).collect(), ..Zone::default() }
    }

    #[test]
    fn series_of_zones_and_resources_leave_with_them() {
        let metrics = Metrics::default();
        let change = |zones: Vec<Zone>| metrics.changed(&Topology { zones, ..Topology::default() });
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        change(vec![zone(0, names(&["cpu", "a/b"])), zone(2, names(&["cpu"]))]);
        let available = || samples(&metrics, "numacast_zone_available{");
        let series =
            |zone: u16, resource: &str, n: u64| format!("zone=\"node-{zone}\",resource=\"{resource}\"}} {n}");
        assert_eq!(available(), [series(0, "cpu", 1), series(0, "a/b", 1), series(2, "cpu", 1)]);
        assert_eq!(samples(&metrics, "numacast_zone_allocatable{")[2], series(2, "cpu", 2));
        assert_eq!(samples(&metrics, "numacast_zone_capacity{")[2], series(2, "cpu", 3));
        change(vec![zone(0, names(&["cpu"]))]);
        assert_eq!(available(), [series(0, "cpu", 1)]);
    }

    #[test]
    fn resources_are_bounded_in_number_and_length() {
        let many = (0..1_000).map(|n| format!("a.example.com/{n:04}-{}", "x".repeat(999)));
        let metrics = Metrics::default();
        let zones = vec![zone(0, many.chain(["cpu".into(), "memory".into()]))];
        metrics.changed(&Topology { zones, ..Topology::default() });
        let found = samples(&metrics, "numacast_zone_available{");
        assert_eq!(found.len(), 128);
        assert!(found[1].contains("\"memory\"") && found.iter().all(|line| line.len() < 400), "{found:?}");
    }

    #[test]
    fn one_source_of_pods_is_shown() {
        let metrics = Metrics::default();
        metrics.pod_source().told("api_server", false);
        metrics.pod_source().untold("api_server");
        metrics.pod_source().told("pods_api", true);
        assert_eq!(samples(&metrics, "numacast_pod_source_up"), [r#"{source="pods_api"} 1"#]);
        assert_eq!(samples(&metrics, "numacast_pod_source_errors_total"), [r#"{source="api_server"} 1"#]);
    }

    #[test]
    fn the_table_says_what_is_served() {
        let metrics = Metrics::default();
        metrics.accounted(&usage(&[&[claimed("a/p/d")]]), 0, &Topology::default());
        metrics.changed(&Topology { zones: vec![zone(0, ["cpu".to_owned()])], ..Topology::default() });
        metrics.called("List", Duration::ZERO, None);
        metrics.triggered("poll");
        metrics.wrote(WriteReason::First, Duration::ZERO);
        metrics.write_failed("deadline");
        metrics.event_posted("ForeignWriter");
        metrics.reserved(1, &[("cpu", 2)].into());
        metrics.pod_source().told("api_server", true);
        metrics.pod_source().untold("api_server");
        check_table(&metrics.encode(), DOCS);
    }

    #[test]
    fn the_document_lists_every_metric() {
        generated::section("docs/metrics.md", "metrics", &table(DOCS));
    }
}
