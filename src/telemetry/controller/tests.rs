use std::time::Duration;

use super::*;
use crate::generated;
use crate::telemetry::metrics::{check_table, table};

fn metrics() -> Metrics {
    let bounds = Bounds { lease: true, garbage: Duration::from_secs(600), fleet: Duration::from_secs(60) };
    Metrics::new(Arc::new(Health::new(bounds)))
}

/// Returns the samples of one family, without its name.
fn samples(metrics: &Metrics, name: &str) -> Vec<String> {
    metrics.encode().lines().filter_map(|line| line.strip_prefix(name)).map(str::to_owned).collect()
}

fn full() -> Figures {
    let sum = Sum { capacity: 3, allocatable: 2, available: 1 };
    Figures {
        nodes: [(("restricted", "pod"), 5)].into(),
        resources: [("cpu".to_owned(), sum)].into(),
        objects: Some(5),
        foreign: Some(1),
        newer: Some(3),
        missing: Some(2),
        daemon_set: Some(true),
        covered: Some(7),
        agents: Some(6),
        silent: Some(1),
        orphans: Some(0),
        rejected_pods: Some(4),
    }
}

#[test]
fn a_replica_that_leads_no_longer_knows_nothing_of_the_fleet() {
    let metrics = metrics();
    metrics.leads(true);
    metrics.held_back(true);
    metrics.figures(|figures| *figures = full());
    assert_eq!(samples(&metrics, "numacast_fleet_nodes"), [r#"{policy="restricted",scope="pod"} 5"#]);
    assert_eq!(samples(&metrics, "numacast_fleet_available"), [r#"{resource="cpu"} 1"#]);
    assert_eq!(samples(&metrics, "numacast_fleet_covered_nodes "), ["7"]);
    assert_eq!(samples(&metrics, "numacast_rejected_pods "), ["4"]);
    metrics.leads(false);
    for name in [
        "numacast_fleet_nodes{",
        "numacast_fleet_available{",
        "numacast_fleet_covered_nodes ",
        "numacast_rejected_pods ",
    ] {
        assert_eq!(samples(&metrics, name), Vec::<String>::new(), "{name}");
    }
    assert_eq!(samples(&metrics, "numacast_garbage_held_back "), ["0"]);
    assert_eq!(samples(&metrics, "numacast_controller_leader "), ["0"]);
}

#[test]
fn resources_are_bounded_in_number_and_length_and_native_ones_come_first() {
    let metrics = metrics();
    let many = (0..1_000).map(|n| (format!("a.example.com/{n:04}-{}", "x".repeat(999)), Sum::default()));
    let made_up = (0..1_000).map(|n| (format!("a{n}"), Sum::default()));
    let resources = many.chain(made_up).chain([("memory".to_owned(), Sum::default())]).collect();
    metrics.figures(|figures| figures.resources = resources);
    let found = samples(&metrics, "numacast_fleet_capacity{");
    assert_eq!(found.len(), MOST_RESOURCES);
    assert!(found[0].contains("\"memory\"") && found.iter().all(|line| line.len() < 400), "{found:?}");
}

#[test]
fn the_table_says_what_is_served() {
    let metrics = metrics();
    metrics.leads(true);
    metrics.figures(|figures| *figures = full());
    let error = ClusterError::NoCrd("v1alpha2");
    metrics.call_failed(&error);
    metrics.delete_failed(&error);
    metrics.nudge_failed(&error);
    metrics.event_posted("AgentSilent");
    check_table(&metrics.encode(), DOCS);
}

#[test]
fn the_document_lists_every_metric() {
    generated::section("docs/metrics.md", "metrics of the controller", &table(DOCS));
}
