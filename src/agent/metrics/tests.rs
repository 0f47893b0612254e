use super::*;
use crate::agent::observe::Inventory;
use crate::kubelet::ClientError;
use crate::telemetry::registry::samples;
use crate::topology::Amounts;

fn registered() -> (Registry, Metrics) {
    let mut registry = Registry::default();
    let [poll, call, refresh] = [5, 10, 600].map(Duration::from_secs);
    let health = Arc::new(Health::new(poll, call, refresh));
    let metrics = Metrics::register(&mut registry, health);
    (registry, metrics)
}

#[test]
fn drivers_that_are_accounted_for_are_named_with_what_is_in_no_zone() {
    let unplaced_devices = [("dra.cpu".to_owned(), 0), ("gpu.a.io".to_owned(), 3)].into();
    let (registry, metrics) = registered();
    metrics.accounted(&Scan::default(), &Topology { unplaced_devices, ..Topology::default() });
    let of = || samples(&registry, "numacast_dra_unplaced_devices");
    assert_eq!(of(), [r#"{driver="dra.cpu"} 0"#, r#"{driver="gpu.a.io"} 3"#]);
    metrics.accounted(&Scan::default(), &Topology::default());
    assert_eq!(of(), Vec::<String>::new());
}

#[test]
fn drivers_are_limited() {
    let unplaced_devices = (0..1_000).map(|n| (format!("driver-{n:04}{}", "x".repeat(99)), 0)).collect();
    let (registry, metrics) = registered();
    metrics.accounted(&Scan::default(), &Topology { unplaced_devices, ..Topology::default() });
    let found = samples(&registry, "numacast_dra_unplaced_devices");
    assert_eq!(found.len(), 33);
    assert!(found.contains(&r#"{driver="other"} 0"#.to_owned()), "{found:?}");
    assert!(found.iter().all(|line| line.len() < 80), "{found:?}");
}

#[test]
fn findings_are_those_of_the_last_scan() {
    let (registry, metrics) = registered();
    let of = |kind: &str| samples(&registry, &format!("numacast_findings{{kind=\"{kind}\"}} "));
    assert_eq!(of("overused_memory"), ["0"], "shown before the first scan");
    let overused =
        |nodes: &str| Finding::OverusedMemory { nodes: nodes.parse().unwrap(), resource: "memory".into() };
    let findings = [overused("0"), overused("0-1")].into();
    let inventory = Arc::new(Inventory { errors: vec!["no".to_owned()], ..Inventory::default() });
    let unreadable = Scan { inventory, ..Scan::default() };
    metrics.accounted(&unreadable, &Topology { findings, ..Topology::default() });
    assert_eq!([of("overused_memory"), of("unknown_cpus"), of("unreadable")], [["2"], ["0"], ["1"]]);
    metrics.accounted(&Scan::default(), &Topology::default());
    assert_eq!([of("overused_memory"), of("unreadable")], [["0"], ["0"]]);
    assert_eq!(samples(&registry, r#"numacast_scans_total{outcome="success"} "#), ["2"]);
}

#[test]
fn writes_are_counted_by_reason_and_errors_by_kind() {
    let (registry, metrics) = registered();
    assert_eq!(samples(&registry, "numacast_last_publish_timestamp_seconds "), ["0"]);
    metrics.wrote(WriteReason::Change, Duration::from_millis(4));
    metrics.wrote(WriteReason::Change, Duration::from_millis(8));
    metrics.publish_errors.with(["deadline"]).inc();
    assert_eq!(samples(&registry, r#"numacast_publishes_total{reason="change"} "#), ["2"]);
    assert_eq!(samples(&registry, r#"numacast_publish_errors_total{kind="deadline"} "#), ["1"]);
    assert_eq!(samples(&registry, r#"numacast_publish_duration_seconds_bucket{le="0.005"} "#), ["1"]);
    let time = &samples(&registry, "numacast_last_publish_timestamp_seconds ")[0];
    assert!(time.parse::<f64>().unwrap() > 1e9, "{time}");
}

#[test]
fn failed_kubelet_requests_are_timed_and_counted_by_kind() {
    let (registry, metrics) = registered();
    let of = |outcome: &str| {
        let labels = format!(r#"component="agent",method="List",outcome="{outcome}""#);
        samples(&registry, &format!("numacast_kubelet_requests_total{{{labels}}} "))
    };
    assert_eq!(of("rate_limited"), ["0"]);
    metrics.kubelet.record("List", Duration::from_secs(1), Some(&ClientError::RateLimited("List")));
    metrics.kubelet.record("List", Duration::from_secs(1), None);
    assert_eq!([of("rate_limited"), of("ok")], [["1"], ["1"]]);
    let count = r#"numacast_kubelet_request_duration_seconds_count{component="agent",method="List"} "#;
    assert_eq!(samples(&registry, count), ["2"]);
}

/// Returns a zone with the given resources, each with capacity 3, allocatable 2 and available 1.
fn zone(id: u16, resources: impl IntoIterator<Item = String>) -> Zone {
    let amounts = Amounts { capacity: 3, allocatable: 2, available: 1 };
    Zone { id, resources: resources.into_iter().map(|name| (name, amounts)).collect(), ..Zone::default() }
}

fn publishable(zones: Vec<Zone>) -> Publishable {
    Publishable::new(&Topology { zones, ..Topology::default() }, None, &[], None)
}

#[test]
fn zones_are_those_of_the_last_topology() {
    let (registry, metrics) = registered();
    let change = |zones: Vec<Zone>| metrics.changed(&publishable(zones));
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    change(vec![zone(0, names(&["cpu", "a/b"])), zone(2, names(&["cpu"]))]);
    let series = |zone: u16, resource: &str, kind: &str, amount: u64| {
        format!(r#"{{zone="node-{zone}",resource="{resource}",type="{kind}"}} {amount}"#)
    };
    let found = || samples(&registry, "numacast_zone_resources");
    assert_eq!(found().len(), 9);
    for expected in [
        series(0, "cpu", "available", 1),
        series(0, "a/b", "allocatable", 2),
        series(2, "cpu", "capacity", 3),
    ] {
        assert!(found().contains(&expected), "{expected}");
    }
    change(vec![zone(0, names(&["cpu"]))]);
    let expected = [("allocatable", 2), ("available", 1), ("capacity", 3)];
    assert_eq!(found(), expected.map(|(kind, amount)| series(0, "cpu", kind, amount)));
}

#[test]
fn resources_are_limited_and_native_ones_come_first() {
    let many = (0..1_000).map(|n| format!("a.example.com/{n:04}-{}", "x".repeat(999)));
    let (registry, metrics) = registered();
    let zones = vec![zone(0, many.chain(["cpu".into(), "memory".into()]))];
    metrics.changed(&publishable(zones));
    let found = samples(&registry, "numacast_zone_resources{");
    assert_eq!(found.len(), 129 * 3);
    assert!(found.iter().all(|line| line.len() < 400), "{found:?}");
    assert!(found.iter().any(|line| line.contains("\"memory\"")), "{found:?}");
}
