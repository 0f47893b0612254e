//! One consistent reading of the node.

use std::path::PathBuf;
use std::sync::Arc;

use super::Settings;
use crate::kubelet::{Allocatable, Api, Client, ClientError, Connection, KubeletConfig, Usage, read_config};
use crate::machine::{self, HostRoots, Machine, MachineError};

/// What moves slowly: hardware, allocatable and the kubelet's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// What the hardware has.
    pub machine: Machine,
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
    pub usage: Usage,
    /// What there is to hold.
    pub inventory: Arc<Inventory>,
    /// Which API version told.
    pub api: Api,
    /// The connection that both came from.
    pub connection: Connection,
}

/// Why there is no scan.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// The kubelet did not tell.
    #[error(transparent)]
    Kubelet(#[from] ClientError),
    /// The hardware could not be read at all.
    #[error(transparent)]
    Machine(#[from] MachineError),
}

/// Reads the node again and again.
#[derive(Debug)]
pub struct Scanner {
    client: Client,
    host: HostRoots,
    config_file: PathBuf,
    inventory: Option<(Connection, Arc<Inventory>)>,
    /// The last configuration that could be read: a failed read must not look like a change of policy.
    config: Option<KubeletConfig>,
}

impl Scanner {
    /// A scanner that has read nothing yet.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        Self {
            client: Client::new(settings.socket.clone(), settings.kubelet_timeout),
            host: settings.host.clone(),
            config_file: settings.kubelet_config.clone(),
            inventory: None,
            config: None,
        }
    }

    /// Reads the inventory again with the next scan.
    pub fn forget_inventory(&mut self) {
        self.inventory = None;
    }

    /// One List; the inventory as well if `inventory` says so, the kubelet restarted, or the List names
    /// something the inventory does not have.
    ///
    /// # Errors
    /// When the kubelet or the hardware cannot be read. Nothing of a failed scan is kept.
    pub async fn scan(&mut self, inventory: bool) -> Result<Scan, ScanError> {
        let (usage, api, connection) = self.client.list().await?;
        let known = self.inventory.take().filter(|(from, _)| *from == connection && !inventory);
        if let Some((_, inventory)) = known.filter(|(_, inventory)| covers(inventory, &usage)) {
            self.inventory = Some((connection, Arc::clone(&inventory)));
            return Ok(Scan { usage, inventory, api, connection });
        }
        let (inventory, from) = self.read_inventory().await?;
        let inventory = Arc::new(inventory);
        if from != connection {
            // The kubelet restarted between the two calls: the List is the old one's.
            let (usage, api, connection) = self.client.list().await?;
            self.inventory = (from == connection).then(|| (connection, Arc::clone(&inventory)));
            return Ok(Scan { usage, inventory, api, connection });
        }
        self.inventory = Some((connection, Arc::clone(&inventory)));
        Ok(Scan { usage, inventory, api, connection })
    }

    async fn read_inventory(&mut self) -> Result<(Inventory, Connection), ScanError> {
        let (allocatable, connection) = self.client.allocatable().await?;
        let machine = machine::read(&self.host)?;
        let mut problems: Vec<String> = machine.problems.iter().map(ToString::to_string).collect();
        match read_config(&self.config_file) {
            Ok((config, odd)) => {
                problems.extend(odd);
                self.config = Some(config);
            }
            Err(problem) => problems.push(config_problem(&problem, self.config.is_some())),
        }
        let config = self.config.clone();
        Ok((Inventory { machine, allocatable, config, problems }, connection))
    }
}

/// Does the inventory know every device resource and memory type that is in use?
fn covers(inventory: &Inventory, usage: &Usage) -> bool {
    let offered =
        |resource: &str| inventory.allocatable.devices.iter().any(|group| group.resource == resource);
    let mut containers = usage.pods.iter().flat_map(|pod| &pod.containers);
    containers.all(|container| container.devices.iter().all(|group| offered(&group.resource)))
}

/// What a configuration that cannot be read means; `known`: it could be read before.
pub(super) fn config_problem(problem: &str, known: bool) -> String {
    if known {
        format!("{problem}; the last one read still holds")
    } else {
        format!("{problem}; policies are left out and nothing is taken as reserved")
    }
}
