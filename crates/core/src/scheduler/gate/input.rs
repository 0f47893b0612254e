//! What the gate is configured with, and what it evaluates.

use std::time::Duration;

use crate::claims::NodeClaims;
use crate::kubelet::Usage;
use crate::pod::Pod;
use crate::scheduler::{
    FingerprintMethod, FingerprintView, Informer, NodeContext, PluginRelease, Requirements,
};
use crate::topology::{NodeExclusions, Topology};

/// The plugin's configuration, and how long to wait for pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateSettings {
    /// Which pods the fingerprint covers.
    pub view: FingerprintView,
    /// Which of these pods count.
    pub method: FingerprintMethod,
    /// Which pods the plugin's informer caches.
    pub informer: Informer,
    /// Which rule the plugin applies to pods with exclusive resources.
    pub release: PluginRelease,
    /// How long a bound pod may be missing in the zones before the fingerprint is withheld. Nothing is
    /// written until then: if the kubelet admits the pod in time, one write accounts for it instead of two.
    pub withhold_after: Duration,
    /// How long the fingerprint may be withheld, or resources reserved, for one pod; only time in which the
    /// kubelet responds counts.
    pub give_up_after: Duration,
    /// Whether the zones reserve what unaccounted pods will be allocated. If so, the object is written at
    /// once, with the fingerprint withheld, as if `withhold_after` were 0.
    pub reserve: bool,
    /// Whether to publish the placement of containers.
    pub placement: bool,
}

impl Default for GateSettings {
    fn default() -> Self {
        Self {
            view: FingerprintView::default(),
            method: FingerprintMethod::default(),
            informer: Informer::default(),
            release: PluginRelease::default(),
            withhold_after: Duration::from_millis(50),
            give_up_after: Duration::from_secs(60),
            reserve: false,
            placement: false,
        }
    }
}

/// The node as the kubelet reports it, and the topology computed from that.
#[derive(Clone, Copy, Debug)]
pub struct GateInput<'a> {
    /// The latest accepted List.
    pub usage: &'a Usage,
    /// The sequence number of that List, from any start.
    pub list_number: u64,
    /// Which resources the kubelet allocates exclusively to one container.
    pub requirements: &'a Requirements,
    /// The topology computed from that List.
    pub topology: &'a Topology,
    /// The claims that the topology accounts for; `None` if they are not read.
    pub claims: Option<&'a NodeClaims>,
    /// What is excluded from the topology.
    pub exclude: &'a NodeExclusions,
    /// Whether the kubelet responds. While it does not, no pod can become accounted, so the time does not
    /// count against [`GateSettings::give_up_after`].
    pub is_responding: bool,
    /// Where to find what regular init containers keep.
    pub node: NodeContext<'a>,
}

impl GateInput<'_> {
    /// Returns true if the topology accounts for every claim of the pod.
    pub(super) fn accounts_for_claims_of(&self, pod: &Pod) -> bool {
        self.claims.is_none_or(|read| {
            let claim = |name| read.claims.get(&format!("{}/{name}", pod.namespace));
            pod.claim_names().all(|name| claim(name).is_some_and(|of| of.is_known))
        })
    }
}
