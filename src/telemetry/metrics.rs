//! What the agent counts. Names and help texts stand in [`DOCS`], which `docs/metrics.md` is made from.
//!
//! Label values that come from outside are bounded in number and length: nobody can grow the set of series.

use std::collections::{BTreeMap, BTreeSet};

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};

use crate::kubelet::{ClaimedDevice, Usage};
use crate::topology::Finding;

/// One family of metrics, for people.
#[derive(Debug)]
pub struct Doc {
    /// As in a query.
    pub name: &'static str,
    /// The type, in the words of OpenMetrics.
    pub kind: &'static str,
    /// Label and what it may say.
    pub labels: &'static [(&'static str, &'static str)],
    /// The help text.
    pub help: &'static str,
}

const BUILD: Doc = Doc {
    name: "numacast_build_info",
    kind: "info",
    labels: &[("version", "of numacast")],
    help: "Always 1; its label tells what runs",
};

const SCANS: Doc = Doc {
    name: "numacast_scans_total",
    kind: "counter",
    labels: &[(
        "outcome",
        "`accounted`; `admitting`: a pod was being admitted; `unsettled`: the kubelet did not know everything \
         yet; `failed`: the kubelet or the hardware could not be read",
    )],
    help: "Readings of the node",
};

const FINDINGS: Doc = Doc {
    name: "numacast_findings",
    kind: "gauge",
    labels: &[(
        "kind",
        "`unpublished_node`, `unknown_cpus`, `impossible_memory`, `overused_memory` or `device_on_unknown_node`",
    )],
    help: "Things in the last account that do not fit together; the log says which",
};

const PROBLEMS: Doc = Doc {
    name: "numacast_inventory_problems",
    kind: "gauge",
    labels: &[],
    help: "What of the hardware and the kubelet's configuration could not be read; the log says what",
};

const CLAIMED: Doc = Doc {
    name: "numacast_claimed_devices",
    kind: "gauge",
    labels: &[(
        "driver",
        "the DRA driver; `unknown` before kubelet 1.31, which tells of claims only; `other` above 32 drivers",
    )],
    help: "Devices that resource claims (DRA) gave to containers and that are therefore in no zone",
};

/// Every family, in the order in which they are served.
pub const DOCS: &[&Doc] = &[&BUILD, &SCANS, &FINDINGS, &PROBLEMS, &CLAIMED];

/// How a scan ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It gave an account.
    Accounted,
    /// A pod was being admitted: look again.
    Admitting,
    /// The kubelet did not know everything yet.
    Unsettled,
    /// The kubelet or the hardware could not be read.
    Failed,
}

impl Outcome {
    const ALL: [Self; 4] = [Self::Accounted, Self::Admitting, Self::Unsettled, Self::Failed];

    const fn label(self) -> &'static str {
        match self {
            Self::Accounted => "accounted",
            Self::Admitting => "admitting",
            Self::Unsettled => "unsettled",
            Self::Failed => "failed",
        }
    }
}

/// Why the object was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WriteReason {
    /// The first write of this process.
    First,
    /// The account changed.
    Change,
    /// Nothing changed for a long time.
    Refresh,
    /// Somebody deleted or edited the object.
    Repair,
    /// The object was another manager's, which no longer writes it.
    Takeover,
}

impl WriteReason {
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

/// Findings that are shown with 0 while there are none.
const FINDING_KINDS: [&str; 5] =
    ["unpublished_node", "unknown_cpus", "impossible_memory", "overused_memory", "device_on_unknown_node"];

const fn finding_kind(finding: &Finding) -> &'static str {
    match finding {
        Finding::UnpublishedNode(_) => "unpublished_node",
        Finding::UnknownCpus(_) => "unknown_cpus",
        Finding::ImpossibleMemory { .. } => "impossible_memory",
        Finding::OverusedMemory { .. } => "overused_memory",
        Finding::DeviceOnUnknownNode { .. } => "device_on_unknown_node",
    }
}

/// A node has a handful of drivers. The rest is counted together.
const MOST_DRIVERS: usize = 32;
/// The API server's limit for the name of a driver.
const DRIVER_NAME: usize = 63;

/// One label.
type Label<V> = [(&'static str, V); 1];

/// Everything that is counted. Cheap to report into; encoded only when somebody asks.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    scans: Family<Label<&'static str>, Counter>,
    findings: Family<Label<&'static str>, Gauge>,
    problems: Gauge,
    claimed: Family<Label<String>, Gauge>,
    writes: Family<Label<&'static str>, Counter>,
    publish_errors: Family<Label<&'static str>, Counter>,
    foreign_writes: Family<Label<&'static str>, Counter>,
    events: Family<Label<&'static str>, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            scans: Family::default(),
            findings: Family::default(),
            problems: Gauge::default(),
            claimed: Family::default(),
            writes: Family::default(),
            publish_errors: Family::default(),
            foreign_writes: Family::default(),
            events: Family::default(),
        };
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        let registry = &mut metrics.registry;
        register(registry, &BUILD, build);
        register(registry, &SCANS, metrics.scans.clone());
        register(registry, &FINDINGS, metrics.findings.clone());
        register(registry, &PROBLEMS, metrics.problems.clone());
        register(registry, &CLAIMED, metrics.claimed.clone());
        for outcome in Outcome::ALL {
            // A counter that starts at 0 shows its first step.
            drop(metrics.scans.get_or_create(&[("outcome", outcome.label())]));
        }
        metrics.found(&BTreeSet::new());
        metrics
    }
}

/// The encoder adds the suffixes that OpenMetrics gives to counters and infos.
fn register(registry: &mut Registry, doc: &Doc, metric: impl Metric) {
    let name = doc.name.trim_end_matches("_total").trim_end_matches("_info");
    registry.register(name, doc.help, metric);
}

impl Metrics {
    /// A scan ended.
    pub fn scanned(&self, outcome: Outcome) {
        self.scans.get_or_create(&[("outcome", outcome.label())]).inc();
    }

    /// A scan gave an account: what pods hold, what could not be read, and what does not fit together.
    pub fn accounted(&self, usage: &Usage, problems: usize, findings: &BTreeSet<Finding>) {
        self.scanned(Outcome::Accounted);
        self.problems.set(count(problems));
        self.found(findings);
        self.claimed(usage);
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
        // Drivers that are gone leave.
        self.claimed.clear();
        for (driver, devices) in claimed_devices(usage) {
            self.claimed.get_or_create(&[("driver", driver)]).set(devices);
        }
    }

    /// The API server took a write.
    pub fn wrote(&self, reason: WriteReason, _took: std::time::Duration) {
        self.writes.get_or_create(&[("reason", reason.label())]).inc();
    }

    /// The object in the API server was found equal to the newest account: no write is needed.
    pub fn agreed(&self) {}

    /// A call to the API server for the object failed.
    pub fn write_failed(&self, kind: &'static str) {
        self.publish_errors.get_or_create(&[("kind", kind)]).inc();
    }

    /// Somebody else wrote our object.
    pub fn foreign_write(&self, person: bool) {
        let writer = if person { "person" } else { "manager" };
        self.foreign_writes.get_or_create(&[("writer", writer)]).inc();
    }

    /// A Kubernetes Event was posted.
    pub fn event_posted(&self, reason: &'static str) {
        self.events.get_or_create(&[("reason", reason)]).inc();
    }

    /// Everything, in the OpenMetrics text format.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// Driver to number of devices. The kubelet names a device once for each container that uses its claim.
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

/// What tells devices apart: driver, pool, device and share; only the claim where nothing else is told.
fn identity(device: &ClaimedDevice) -> (&str, &str, &str, Option<&str>, Option<&str>) {
    let ClaimedDevice { claim, driver, pool, device, share } = device;
    (driver, pool, device, share.as_deref(), driver.is_empty().then_some(claim))
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::kubelet::{ContainerUsage, PodUsage};

    /// `driver/pool/device`, or with a share after it.
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

    /// One pod for each list of devices.
    fn usage(pods: &[&[ClaimedDevice]]) -> Usage {
        let pod = |claimed: &&[ClaimedDevice]| PodUsage {
            containers: vec![ContainerUsage { claimed: claimed.to_vec(), ..ContainerUsage::default() }],
            ..PodUsage::default()
        };
        Usage { pods: pods.iter().map(pod).collect() }
    }

    /// The samples of one family, without its name.
    fn samples(metrics: &Metrics, name: &str) -> Vec<String> {
        metrics.encode().lines().filter_map(|line| line.strip_prefix(name)).map(str::to_owned).collect()
    }

    #[test]
    fn a_device_counts_once_however_many_containers_share_its_claim() {
        let (gpu, nic) = (claimed("gpu.example.com/worker/gpu-0"), claimed("nic.example.com/worker/vf-3"));
        let usage = usage(&[&[gpu.clone(), nic], &[gpu], &[claimed("gpu.example.com/worker/gpu-1")]]);
        let metrics = Metrics::default();
        metrics.accounted(&usage, 0, &BTreeSet::new());
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
        metrics.accounted(&usage(&[&many]), 0, &BTreeSet::new());
        let found = samples(&metrics, "numacast_claimed_devices");
        assert_eq!(found.len(), MOST_DRIVERS + 1);
        assert!(found.contains(&r#"{driver="other"} 968"#.to_owned()), "{found:?}");
        assert!(found.iter().all(|line| line.len() < 80), "{found:?}");
        metrics.accounted(&Usage::default(), 0, &BTreeSet::new());
        assert_eq!(samples(&metrics, "numacast_claimed_devices"), Vec::<String>::new());
    }

    #[test]
    fn findings_and_problems_are_those_of_the_last_account() {
        let metrics = Metrics::default();
        let of = |kind: &str| samples(&metrics, &format!("numacast_findings{{kind=\"{kind}\"}} "));
        assert_eq!(of("unpublished_node"), ["0"], "shown before the first account");
        let findings = [Finding::UnpublishedNode(64), Finding::UnpublishedNode(65)].into();
        metrics.accounted(&Usage::default(), 1, &findings);
        assert_eq!((of("unpublished_node"), of("unknown_cpus")), (vec!["2".into()], vec!["0".into()]));
        assert_eq!(samples(&metrics, "numacast_inventory_problems "), ["1"]);
        metrics.accounted(&Usage::default(), 0, &BTreeSet::new());
        assert_eq!(of("unpublished_node"), ["0"]);
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

    /// Everything that can be served is, with the type and help of [`DOCS`].
    #[test]
    fn the_table_says_what_is_served() {
        let metrics = Metrics::default();
        metrics.accounted(&usage(&[&[claimed("a/p/d")]]), 0, &BTreeSet::new());
        let text = metrics.encode();
        let families: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        assert_eq!(families.len(), DOCS.len(), "{families:?}");
        for doc in DOCS {
            let mut found = samples(&metrics, doc.name).into_iter().peekable();
            assert!(found.peek().is_some(), "{}", doc.name);
            for sample in found {
                let labels: Vec<&str> = doc.labels.iter().map(|(label, _)| *label).collect();
                let expected: usize = sample.matches("=\"").count();
                assert_eq!(expected, labels.len(), "{}{sample}", doc.name);
                assert!(labels.iter().all(|label| sample.contains(&format!("{label}=\""))), "{sample}");
            }
            let family = doc.name.trim_end_matches("_total").trim_end_matches("_info");
            let head = format!("# HELP {family} {}.\n# TYPE {family} {}\n", doc.help, doc.kind);
            assert!(text.contains(&head), "{head}");
        }
    }

    /// `NUMACAST_WRITE_DOCS=1` writes the document instead.
    #[test]
    fn the_document_lists_every_metric() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");
        let text = std::fs::read_to_string(file).unwrap();
        let mut table = "| metric | type | labels | meaning |\n|---|---|---|---|\n".to_owned();
        for Doc { name, kind, labels, help } in DOCS {
            let labels: Vec<String> =
                labels.iter().map(|(label, values)| format!("`{label}`: {values}")).collect();
            writeln!(table, "| `{name}` | {kind} | {} | {help} |", labels.join("; ")).unwrap();
        }
        let (start, rest) = text.split_once("<!-- metrics -->\n").unwrap();
        let (_, end) = rest.split_once("<!-- end of metrics -->\n").unwrap();
        let right = format!("{start}<!-- metrics -->\n{table}<!-- end of metrics -->\n{end}");
        if std::env::var_os("NUMACAST_WRITE_DOCS").is_some() {
            std::fs::write(file, right).unwrap();
        } else {
            assert!(right == text, "docs/metrics.md is old: run `NUMACAST_WRITE_DOCS=1 cargo test metrics`");
        }
    }
}
