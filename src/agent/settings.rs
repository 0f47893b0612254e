//! The agent's settings.

use std::path::PathBuf;
use std::time::Duration;

use crate::agent::observe::config_sources::ConfigSources;
use crate::agent::publish::competing_managers::ConflictPolicy;
use crate::machine::HostRoots;
use crate::nrt::Form;
use crate::pod_source::{PodSourceKind, PodSources};
use crate::scheduler::GateSettings;
use crate::topology::ZoneRules;

/// The agent's settings, with resolved paths.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's name in the cluster.
    pub node: String,
    /// The roots of `/sys` and `/proc`.
    pub host: HostRoots,
    /// The kubelet's root directory.
    pub kubelet_dir: PathBuf,
    /// Where device plugins register.
    pub device_plugins: PathBuf,
    /// The podresources socket.
    pub socket: PathBuf,
    /// The sources of the kubelet's configuration.
    pub kubelet_config: ConfigSources,
    /// The deadline of one call to the kubelet.
    pub kubelet_timeout: Duration,
    /// Whether the object's consumer needs the kubelet's policies.
    pub needs_policies: bool,
    /// The interval between scans of everything; also the maximum interval between polls.
    pub poll: Duration,
    /// How long the last good object stays after a kubelet restart, until the known pods are back; ten times as
    /// long while none is.
    pub restart_wait: Duration,
    /// The file to which the object is written, instead of the API server.
    pub file: Option<PathBuf>,
    /// How often the object is applied again if nothing changed.
    pub refresh: Duration,
    /// Whether to make the Node the object's owner.
    pub owner_reference: bool,
    /// What to do about a publisher that keeps rewriting the object.
    pub conflicts: ConflictPolicy,
    /// The form in which the object is written.
    pub form: Form,
    /// Whether to post Kubernetes Events about the Node.
    pub events: bool,
    /// The sources of the node's pods; there may be none.
    pub pods: PodSources,
    /// Which fingerprint to publish, and whether to reserve resources for bound pods.
    pub gate: GateSettings,
    /// Whether to annotate pods with what they have of each zone, as KAI-Scheduler reads it.
    pub annotate_pods: bool,
    /// The status file, which lists the pods of the fingerprint for people.
    pub status_file: Option<PathBuf>,
    /// Where container runtimes read CDI files.
    pub cdi: PathBuf,
    /// Whether to read ResourceSlices and ResourceClaims.
    pub reads_claims: bool,
    /// A file that is touched to request a scan.
    pub notify_file: Option<PathBuf>,
    /// How to compute the topology.
    pub rules: ZoneRules,
}

impl Settings {
    /// Leaves out all that needs the API server, or its credentials for the kubelet.
    #[must_use]
    pub fn without_cluster(mut self) -> Self {
        if !self.pods.order.is_empty() {
            self.pods.order = vec![PodSourceKind::PodsApi];
        }
        (self.events, self.reads_claims, self.annotate_pods) = (false, false, false);
        self
    }
}
