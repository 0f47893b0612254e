//! What a scan comes to.

use std::sync::Arc;
use std::time::Duration;

use crate::kubelet::{Allocatable, Connection, KubeletConfig, ManagerState, Usage};
use crate::machine::Machine;
use crate::pod::Terminal;
use crate::scheduler::Unlisted;

/// What moves slowly: hardware, allocatable and the kubelet's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// What the hardware has.
    pub machine: Arc<Machine>,
    /// What the kubelet may hand out.
    pub allocatable: Allocatable,
    /// How the kubelet is configured; `None` while that is unknown.
    pub config: Option<KubeletConfig>,
    /// What could not be read, one sentence each.
    pub problems: Vec<String>,
}

/// One List and the inventory that goes with it.
#[derive(Clone, Debug)]
pub struct Scan {
    /// What pods hold.
    pub usage: Arc<Usage>,
    /// What there is to hold.
    pub inventory: Arc<Inventory>,
    /// The managers' books, read right after the List; `None` where they cannot be read.
    pub state: Option<Arc<ManagerState>>,
    /// What is wrong with these books, one sentence each.
    pub state_problems: Vec<String>,
    /// Is the file there that changes with whoever is admitted? The device manager's, which is mounted with the device
    /// plugins' sockets, changes with devices only.
    pub files_tell: bool,
    /// Pods (namespace, name) that have ended, as far as anybody told.
    pub terminal: Terminal,
    /// The connection that both came from.
    pub connection: Connection,
    /// How long ago the kubelet made its socket, as far as the clock can be believed.
    pub socket_age: Duration,
}

impl Scan {
    /// Everything that could not be read, one sentence each.
    pub fn problems(&self) -> impl Iterator<Item = &String> {
        self.inventory.problems.iter().chain(&self.state_problems)
    }

    /// What tells what plain init containers keep.
    pub(crate) fn unlisted(&self) -> Unlisted<'_> {
        Unlisted {
            machine: &self.inventory.machine,
            config: self.inventory.config.as_ref(),
            state: self.state.as_deref(),
            managers: self.files_tell && self.state_problems.is_empty(),
        }
    }
}
