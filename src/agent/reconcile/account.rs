//! An accepted scan and the topology computed from it.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::agent::observe::Scan;
use crate::pod::Pod;
use crate::scheduler::{FingerprintGate, GateInput, GateSettings, Publishable, Requirements, Reservation};
use crate::topology::{self, Inputs, NodeExclusions, Topology, ZoneRules};

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
        let topology = topology::account(&Inputs {
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
        });
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

    /// Combines the topology with these reservations, without a fingerprint.
    #[must_use]
    pub fn with_reservations(&self, reservations: &[Reservation]) -> Publishable {
        Publishable::new(&self.topology, None, reservations, None)
    }
}
