//! What the commands for people need of the cluster's pods: what decides where they run and whether they may be
//! ended.

use std::collections::BTreeMap;

use prost::Message;
use prost::bytes::Bytes;

use super::{read_pod, text};
use crate::pod::{Pod, Wanted};
use crate::quantity::{NodeAmounts, Quantity};

#[allow(missing_docs, clippy::all, unreachable_pub)] // generated code
mod proto {
    include!(concat!(env!("OUT_DIR"), "/core/placed.rs"));
}

/// A pod, its node, and what ranks it among others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacedPod {
    /// The pod.
    pub pod: Pod,
    /// The node that it is bound to; empty before.
    pub node: String,
    /// The scheduler that binds it.
    pub scheduler: String,
    /// Its priority.
    pub priority: i32,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Kind and name of its first owner.
    pub owner: Option<(String, String)>,
    /// What its RuntimeClass adds to its requests: `cpu` in millicores, `memory` in bytes.
    pub overhead: NodeAmounts,
}

/// Decodes a `core/v1` Pod. `bytes` may be part of a larger buffer, which is not retained.
///
/// # Errors
/// If the bytes are invalid, or the pod has no name or no namespace.
pub fn read_placed_pod(bytes: &[u8], wanted: &Wanted) -> Result<PlacedPod, String> {
    let placed = proto::Pod::decode(bytes).map_err(|error| error.to_string())?;
    let (metadata, spec) = (placed.metadata.unwrap_or_default(), placed.spec.unwrap_or_default());
    let own = |bytes: &Bytes| text(bytes).into_owned();
    let owner = metadata.owner_references.first().map(|owner| (own(&owner.kind), own(&owner.name)));
    Ok(PlacedPod {
        pod: read_pod(bytes, wanted)?,
        node: own(&spec.node_name),
        scheduler: own(&spec.scheduler_name),
        priority: spec.priority,
        labels: metadata.labels.into_iter().map(|(key, value)| (key, own(&value))).collect(),
        owner,
        overhead: spec
            .overhead
            .into_iter()
            .filter_map(|(name, quantity)| {
                amount(&name, &text(&quantity.string)).map(|amount| (name, amount))
            })
            .collect(),
    })
}

/// Returns millicores of `cpu`, and whole units of other resources.
fn amount(name: &str, quantity: &str) -> Option<u64> {
    let quantity: Quantity = quantity.parse().ok()?;
    Some(quantity.of_node(name))
}
