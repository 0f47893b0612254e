//! The series that agents and controllers export, with their labels.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};

use crate::parts::repository;

/// Labels that Prometheus and the chart's monitors add to every series.
pub(crate) const TARGET: [&str; 7] = ["job", "namespace", "instance", "pod", "node", "container", "endpoint"];

/// A series of the kubelet, which no release has: it has no labels of the chart's monitors.
pub(crate) const KUBELET: &str = "kubelet_pod_resources_endpoint_requests_total";

/// Returns every series by name, with its labels, from the tables of `docs/metrics.md`, which are generated
/// from what the commands register. Series not exported by numacast have to be listed here.
pub(crate) fn exported() -> Result<BTreeMap<String, BTreeSet<String>>> {
    let kubelet = BTreeSet::from(["server_api_version".to_owned()]);
    let mut all = BTreeMap::from([("up".to_owned(), BTreeSet::new()), (KUBELET.to_owned(), kubelet)]);
    let document = std::fs::read_to_string(repository().join("docs/metrics.md"))?;
    let is_row = |line: &&str| line.starts_with("| `numacast_") || line.starts_with("| `process_");
    for row in document.lines().filter(is_row) {
        let cells: Vec<&str> = row.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let [_, name, kind, labels, ..] = cells[..] else { bail!("not a row: {row}") };
        let labels = labels.split("`, `").filter(|label| !label.is_empty());
        let labels: BTreeSet<String> = labels.map(str::to_owned).collect();
        if kind == "histogram" {
            let buckets = labels.iter().cloned().chain(["le".to_owned()]).collect();
            all.insert(format!("{name}_bucket"), buckets);
            all.insert(format!("{name}_sum"), labels.clone());
            all.insert(format!("{name}_count"), labels);
        } else {
            all.insert(name.to_owned(), labels);
        }
    }
    all.get("numacast_scans_total").context("docs/metrics.md has no metrics")?;
    Ok(all)
}
