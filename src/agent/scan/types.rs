//! The result of a scan.

use std::sync::Arc;
use std::time::Duration;

use crate::kubelet::{Allocatable, Connection, KubeletConfig, Checkpoints, Usage};
use crate::machine::Machine;
use crate::pod::TerminalPods;
use crate::scheduler::Unlisted;

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
    pub problems: Vec<String>,
}

/// One List and the inventory that goes with it.
#[derive(Clone, Debug)]
pub struct Scan {
    /// What pods are allocated.
    pub usage: Arc<Usage>,
    /// What there is to allocate.
    pub inventory: Arc<Inventory>,
    /// The managers' checkpoints, read right after the List; `None` if they cannot be read.
    pub state: Option<Arc<Checkpoints>>,
    /// Problems of the checkpoints, one sentence each.
    pub state_problems: Vec<String>,
    /// Whether the CPU Manager's checkpoint exists, which changes with admissions. The Device Manager's,
    /// which is mounted with the device plugins' sockets, changes with devices only.
    pub files_tell: bool,
    /// Terminated pods (namespace, name), as far as known.
    pub terminal: TerminalPods,
    /// The connection that both came from.
    pub connection: Connection,
    /// How long ago the kubelet created its socket, as far as the clock can be trusted.
    pub socket_age: Duration,
}

impl Scan {
    /// Returns everything that could not be read, one sentence each.
    pub fn problems(&self) -> impl Iterator<Item = &String> {
        self.inventory.problems.iter().chain(&self.state_problems)
    }

    /// Returns the state that shows what plain init containers keep.
    pub(crate) fn unlisted(&self) -> Unlisted<'_> {
        Unlisted {
            machine: &self.inventory.machine,
            config: self.inventory.config.as_ref(),
            state: self.state.as_deref(),
            managers: self.files_tell && self.state_problems.is_empty(),
        }
    }
}
