//! The tables of `docs/metrics.md`, generated from what the commands register.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::telemetry::registry::{Registered, Registry};
use crate::{agent, controller, generated, pods_api, proxy};

/// Maximum number of metric families of all commands together.
const MAX_FAMILIES: usize = 60;

fn register_agent(registry: &mut Registry) {
    let health = agent::health::Health::new(Duration::ZERO, Duration::ZERO, Duration::ZERO);
    drop(agent::metrics::Metrics::register(registry, Arc::new(health)));
}

fn register_proxy(registry: &mut Registry) {
    drop(proxy::metrics::Metrics::register(registry, true));
}

fn register_pods_api(registry: &mut Registry) {
    drop(pods_api::metrics::Metrics::register(registry));
}

fn register_controller(registry: &mut Registry) {
    let health = controller::health::Health::new(true, Duration::ZERO, Duration::ZERO);
    drop(controller::metrics::Metrics::register(registry, Arc::new(health)));
}

/// Labels with their values, and the first family that has them.
type Described = BTreeMap<(&'static str, &'static str), &'static str>;

/// Returns the row of one family. `tests/chart/exported.rs` reads it. Values that were described before are not
/// repeated if that is longer than to name the family.
fn row(family: &Registered, described: &mut Described) -> String {
    let labels: Vec<String> = family.labels.iter().map(|label| format!("`{}`", label.name)).collect();
    let (name, kind, labels) = (family.name, family.kind.as_str(), labels.join(", "));
    let mut row = format!("| `{name}` | {kind} | {labels} | {}", family.help);
    for label in family.labels.iter().filter(|label| !label.values.is_empty()) {
        let first = *described.entry((label.name, label.values)).or_insert(name);
        let reference = format!("as in `{first}`");
        let is_repeated = first != name && reference.len() < label.values.len();
        row += &format!(". `{}`: {}", label.name, if is_repeated { &reference } else { label.values });
    }
    row + " |\n"
}

#[test]
fn the_document_lists_every_metric() {
    let mut registry = Registry::default();
    type Register = fn(&mut Registry);
    let sections: [(&str, Register); 5] = [
        ("metrics of every command", |registry| *registry = Registry::of_process()),
        ("metrics of the agent", register_agent),
        ("metrics of the proxy", register_proxy),
        ("metrics of the Pods API", register_pods_api),
        ("metrics of the controller", register_controller),
    ];
    let mut described = Described::new();
    for (section, register) in sections {
        let known = registry.families().len();
        register(&mut registry);
        let rows: String =
            registry.families()[known..].iter().map(|family| row(family, &mut described)).collect();
        let head = "| metric | type | labels | meaning |\n|---|---|---|---|\n";
        generated::section("docs/metrics.md", section, &(head.to_owned() + &rows));
    }
    let names: BTreeSet<&str> = registry.families().iter().map(|family| family.name).collect();
    assert_eq!(names.len(), registry.families().len(), "a name is registered with two types or label sets");
    assert!(names.len() <= MAX_FAMILIES, "{} families", names.len());
}
