//! The result of a scan.

use std::sync::Arc;
use std::time::Duration;

use crate::claims::NodeClaims;
use crate::kubelet::{Allocatable, Checkpoints, ClientError, KubeletConfig, KubeletInstance, Usage};
use crate::machine::{Machine, MachineError};
use crate::pod::TerminatedPodNames;
use crate::scheduler::NodeContext;

/// How many times a scan is attempted while the kubelet restarts in the middle of it.
pub(super) const ATTEMPTS: usize = 3;

/// How much of the node to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// One List.
    #[default]
    Usage,
    /// Also what the kubelet can allocate.
    Allocatable,
    /// Also the hardware and the kubelet's configuration.
    Everything,
}

/// Why a scan failed.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// The kubelet could not be read.
    #[error(transparent)]
    Kubelet(#[from] ClientError),
    /// The hardware could not be read at all.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// Without the annotated devices, those in use would look available.
    #[error(
        "the devices in the pods' annotations are not known yet (`proxy.zones`): the pods, or the node's Koordinator \
         Device, have not been read since the start"
    )]
    AnnotationsUnknown,
    /// Without the claims, what they hold would look available.
    #[error("cannot read the node's ResourceClaims (`dra.source: auto`): {0}")]
    ClaimsUnknown(String),
    /// The responses of a scan never came from a single kubelet.
    #[error("the kubelet restarted during each of {ATTEMPTS} attempts to read it")]
    Restarting,
}

/// What changes slowly: hardware, allocatable and the kubelet's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// The node's hardware.
    pub machine: Arc<Machine>,
    /// What the kubelet can allocate.
    pub allocatable: Allocatable,
    /// The kubelet's configuration; `None` while unknown.
    pub config: Option<KubeletConfig>,
    /// What could not be read, one sentence each.
    pub errors: Vec<String>,
}

impl Inventory {
    /// Combines what was read, with the errors of the machine and of the configuration.
    pub(in super::super) fn new(
        machine: Machine,
        allocatable: Allocatable,
        config: Option<KubeletConfig>,
        config_errors: Vec<String>,
    ) -> Self {
        let mut errors: Vec<String> = machine.errors.iter().map(ToString::to_string).collect();
        errors.extend(config_errors);
        Self { machine: Arc::new(machine), allocatable, config, errors }
    }
}

/// How certain the kubelet's configuration is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConfigConfidence {
    /// It is unknown.
    #[default]
    Unknown,
    /// The kubelet may still run with another one.
    Doubtful,
    /// It was read for this kubelet or the previous one, and no file has changed since that one started.
    Certain,
}

/// What is known about the kubelet's configuration at the end of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigStatus {
    /// How certain the configuration in the inventory is.
    pub confidence: ConfigConfidence,
    /// Whether it was requested from the kubelet, and there is no response yet.
    pub is_requested: bool,
    /// Why this kubelet's configuration cannot be read; that of the previous kubelet may still be used.
    pub error: Option<String>,
}

/// One List and the inventory that goes with it.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// What pods are allocated.
    pub usage: Arc<Usage>,
    /// What there is to allocate.
    pub inventory: Arc<Inventory>,
    /// The managers' checkpoints, read right after the List; `None` if they cannot be read.
    pub checkpoints: Option<Arc<Checkpoints>>,
    /// The node's claims and their devices; `None` if they are not read.
    pub claims: Option<Arc<NodeClaims>>,
    /// Errors of the checkpoints, one sentence each.
    pub checkpoint_errors: Vec<String>,
    /// Why slices and claims cannot be read at the moment, one sentence each.
    pub claim_errors: Vec<String>,
    /// Whether the CPU Manager's checkpoint exists, which changes with admissions. The device manager's,
    /// which is mounted with the device plugins' sockets, changes with devices only.
    pub has_cpu_checkpoint: bool,
    /// Terminated pods (namespace, name), as far as known.
    pub terminated: TerminatedPodNames,
    /// The kubelet instance that both came from.
    pub instance: KubeletInstance,
    /// How long ago the kubelet created its socket, as far as the clock can be trusted.
    pub socket_age: Duration,
    /// What is known about the kubelet's configuration.
    pub config: ConfigStatus,
}

impl Scan {
    /// Returns everything that could not be read, one sentence each.
    pub fn errors(&self) -> impl Iterator<Item = &String> {
        self.inventory.errors.iter().chain(&self.checkpoint_errors).chain(&self.claim_errors)
    }

    /// Returns the state that shows what regular init containers keep.
    pub(in super::super) fn node_context(&self) -> NodeContext<'_> {
        NodeContext {
            machine: &self.inventory.machine,
            config: self.inventory.config.as_ref(),
            checkpoints: self.checkpoints.as_deref(),
            has_manager_checkpoints: self.has_cpu_checkpoint && self.checkpoint_errors.is_empty(),
        }
    }
}
