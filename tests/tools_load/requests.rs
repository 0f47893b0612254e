//! The requests that the API server has counted.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use crate::support::Cluster;

/// Numbers of requests by verb and resource.
pub(crate) type Requests = BTreeMap<(String, String), u64>;

const METRIC: &str = "apiserver_request_total{";
/// Verbs of commands that only read.
const VERBS: [&str; 2] = ["GET", "LIST"];

/// What the API server itself reads now and then.
const OWN: [&str; 6] = ["leases", "endpoints", "endpointslices", "services", "ipaddresses", "servicecidrs"];

/// Returns the numbers of requests so far, without those for the API server's own resources.
pub(crate) async fn count(cluster: &Cluster) -> Result<Requests> {
    let metrics = cluster.metrics().await?;
    let mut counts = Requests::new();
    for line in metrics.lines() {
        let Some(labels) = line.strip_prefix(METRIC) else { continue };
        let (verb, resource) = (label(labels, "verb")?, label(labels, "resource")?);
        if !VERBS.contains(&verb) || resource.is_empty() || OWN.contains(&resource) {
            continue;
        }
        let value: f64 = line.rsplit(' ').next().unwrap_or_default().parse()?;
        *counts.entry((verb.to_owned(), resource.to_owned())).or_default() += value as u64;
    }
    Ok(counts)
}

/// Returns a label's value.
fn label<'a>(labels: &'a str, name: &str) -> Result<&'a str> {
    let start = format!("{name}=\"");
    let after = labels.split(',').find_map(|one| one.strip_prefix(start.as_str()));
    let value = after.and_then(|rest| rest.split('"').next());
    value.with_context(|| format!("{METRIC} has no label {name}"))
}

/// Returns the increases.
pub(crate) fn since(before: &Requests, after: Requests) -> Requests {
    let increase = |(key, count): ((String, String), u64)| {
        let more = count - before.get(&key).copied().unwrap_or_default();
        (more > 0).then_some((key, more))
    };
    after.into_iter().filter_map(increase).collect()
}
