//! Whether the cluster is set up right: facts are read first, and each family of checks is a pure function of them.

mod agents;
mod controllers;
mod crd;
mod facts;
mod fingerprints;
mod installed;
mod kubelets;
mod objects;
mod policies;
mod report;
mod rivals;
mod schedulers;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(in crate::inspect) use tests::table;

use crate::cluster::Cluster;

pub use facts::Unchecked;
pub(in crate::inspect) use kubelets::{CPU_MANAGER_NOT_STATIC, MEMORY_MANAGER_NOT_STATIC};
pub use report::{Outcome, Report, Summary};

use super::{Check, Finding};
use facts::Facts;

/// A family of checks, and what runs them.
type Family = (&'static [&'static Check], fn(&Facts) -> Vec<Finding>);

const FAMILIES: [Family; 9] = [
    (crd::CHECKS, crd::check),
    (agents::CHECKS, agents::check),
    (objects::CHECKS, objects::check),
    (fingerprints::CHECKS, fingerprints::check),
    (rivals::CHECKS, rivals::check),
    (kubelets::CHECKS, kubelets::check),
    (schedulers::CHECKS, schedulers::check),
    (controllers::CHECKS, controllers::check),
    (policies::CHECKS, policies::check),
];

/// Returns the checks of a cluster.
pub fn cluster_checks() -> impl Iterator<Item = &'static Check> {
    FAMILIES.into_iter().flat_map(|(checks, _)| checks).copied()
}

/// Checks the cluster, and the configuration with which this many kubelets run, which needs `get` of `nodes/proxy`.
pub async fn check_cluster(cluster: &Cluster, kubelets: usize) -> Report {
    let mut facts = Facts::read(cluster, kubelets).await;
    schedulers::note_hidden(&mut facts);
    fingerprints::read_again(&mut facts, cluster).await;
    Report::new(&facts, findings(&facts))
}

fn findings(facts: &Facts) -> Vec<Finding> {
    FAMILIES.into_iter().flat_map(|(_, check)| check(facts)).collect()
}
