//! An accepted scan and the topology computed from it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::agent::observe::Scan;
use crate::pod::{Pod, PodName};
use crate::scheduler::{FingerprintGate, GateInput, GateSettings, Publishable, Requirements, Reservation};
use crate::topology::{self, Inputs, NodeExclusions, PodAmounts, Topology, ZoneRules};

/// A scan and its topology. It does not change any more.
#[derive(Debug)]
pub struct Account {
    /// The scan.
    pub scan: Scan,
    /// The topology.
    pub topology: Topology,
    requirements: Requirements,
}

impl Account {
    /// Computes the topology of a scan. `policies` replace those of the kubelet's configuration, and
    /// `remembered` device resources are listed in any case.
    #[must_use]
    pub fn new(
        scan: Scan,
        policies: Option<&[(String, String)]>,
        remembered: &BTreeSet<String>,
        rules: &ZoneRules,
    ) -> Self {
        let topology = topology::account(&inputs(&scan, policies, remembered, rules));
        let requirements = Requirements::of(&scan.inventory.allocatable, remembered);
        Self { scan, topology, requirements }
    }

    /// Returns the input of the fingerprint gate. `number` is that of the account.
    pub(super) fn gate_input<'a>(
        &'a self,
        number: u64,
        is_responding: bool,
        exclude: &'a NodeExclusions,
    ) -> GateInput<'a> {
        GateInput {
            usage: &self.scan.usage,
            list_number: number,
            requirements: &self.requirements,
            topology: &self.topology,
            claims: self.scan.claims.as_deref(),
            exclude,
            is_responding,
            node: self.scan.node_context(),
        }
    }

    /// Returns what an agent that starts now would reserve for `pods`, the node's pods in the API server.
    #[must_use]
    pub fn reservations(
        &self,
        settings: &GateSettings,
        pods: Option<&[Pod]>,
        exclude: &NodeExclusions,
    ) -> Vec<Reservation> {
        let input = self.gate_input(0, true, exclude);
        FingerprintGate::new(settings.clone()).evaluate(pods, &input, Duration::ZERO).reservations
    }

    /// Returns what each pod has of each zone, by the rules of the account.
    #[must_use]
    pub fn amounts_by_pod(&self, rules: &ZoneRules) -> BTreeMap<PodName, PodAmounts> {
        topology::amounts_by_pod(&inputs(&self.scan, None, &BTreeSet::new(), rules), &self.topology)
    }

    /// Combines the topology with these reservations, without a fingerprint.
    #[must_use]
    pub fn with_reservations(&self, reservations: &[Reservation]) -> Publishable {
        Publishable::new(&self.topology, None, reservations, None)
    }
}

fn inputs<'a>(
    scan: &'a Scan,
    policies: Option<&'a [(String, String)]>,
    remembered: &'a BTreeSet<String>,
    rules: &'a ZoneRules,
) -> Inputs<'a> {
    Inputs {
        machine: &scan.inventory.machine,
        allocatable: &scan.inventory.allocatable,
        usage: &scan.usage,
        terminated: &scan.terminated,
        claims: scan.claims.as_deref(),
        checkpoints: scan.checkpoints.as_deref(),
        config: scan.inventory.config.as_ref(),
        policies,
        remembered,
        rules,
    }
}
