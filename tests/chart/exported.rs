//! The series that agents and controllers export, with their labels.

use std::collections::{BTreeMap, BTreeSet};

use numacast::telemetry::metrics::Doc;
use numacast::telemetry::{controller, metrics, pods_api, proxy};

/// Labels that Prometheus and the chart's monitors add to every series.
pub(crate) const TARGET: [&str; 7] = ["job", "namespace", "instance", "pod", "node", "container", "endpoint"];

/// Returns every series by name, with its labels. Series not exported by numacast have to be listed here.
pub(crate) fn exported() -> BTreeMap<String, BTreeSet<&'static str>> {
    let mut all = BTreeMap::from([("up".to_owned(), BTreeSet::new())]);
    for Doc { name, kind, labels, .. } in
        metrics::DOCS.iter().chain(controller::DOCS).chain(proxy::DOCS).chain(pods_api::DOCS)
    {
        let labels: BTreeSet<&str> = labels.iter().map(|(label, _)| *label).collect();
        if *kind == "histogram" {
            let buckets = labels.iter().copied().chain(["le"]).collect();
            all.insert(format!("{name}_bucket"), buckets);
            all.insert(format!("{name}_sum"), labels.clone());
            all.insert(format!("{name}_count"), labels);
        } else {
            all.entry((*name).to_owned()).or_insert(labels);
        }
    }
    all
}
