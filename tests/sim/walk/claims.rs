//! Drivers of dynamic resource allocation in some of the walks, and what the agent reads of their slices and claims.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use numacast::agent::{Depth, Scan};
use numacast::claims::{
    Claim, DeviceKey, Inventory, NodeClaims, Slice, SliceObject, claims_of, known_claims, named_claims,
    parse_cdi,
};
use numacast::machine::{HostRoots, pci};
use numacast::pod::Pod;
use numacast::topology::active_pods;
use numacast_sim::dra::{Drivers, pci_address};
use numacast_sim::kubelet::{ClaimUse, Claimed, ClaimedDevice, PodSpec, Stage};
use numacast_sim::machine::MachineSpec;

use super::{Step, Walk};

/// The drivers, and what the agent has read.
pub(super) struct Dra {
    drivers: Drivers,
    inventory: Inventory,
    /// Whether the agent sees pods, and not only the List.
    has_pods: bool,
}

impl Dra {
    pub(super) fn start(hardware: &MachineSpec, seed: u64, has_pods: bool) -> Self {
        Self { drivers: Drivers::start(hardware, seed), inventory: Inventory::default(), has_pods }
    }

    pub(super) fn kubelet_starts(&mut self) {
        self.drivers.kubelet_starts();
    }

    /// Returns what claims exist, for a failure.
    pub(super) fn claims(&self) -> String {
        format!("claims: {:?}", self.drivers.claims())
    }

    /// Reads slices, claims and files as the agent does.
    fn read(&mut self, scan: &Scan, pods: &[Pod], host: &HostRoots) -> Result<NodeClaims, String> {
        let explain = |error: serde_json::Error| error.to_string();
        let listed = claims_of(active_pods(&scan.usage, &scan.terminated));
        let named = named_claims(&listed, pods.iter().filter(|_| self.has_pods));
        let mut read = BTreeMap::new();
        for name in named.keys() {
            let object = name.split_once('/').and_then(|(_, name)| self.drivers.claim_object(name));
            let claim = object.map(|object| Claim::from_json(object.to_string().as_bytes()));
            read.insert(name.clone(), claim.transpose().map_err(explain)?);
        }
        let claims = known_claims(named, &listed, |name| read.get(name).map(Option::as_ref));
        let devices = claims.values().flat_map(|of| &of.claim.devices);
        let in_use: BTreeSet<DeviceKey> = devices.map(DeviceKey::from).collect();
        let mut slices = Vec::new();
        for object in self.drivers.slices() {
            slices.push(Slice::from(serde_json::from_value::<SliceObject>(object).map_err(explain)?));
        }
        self.inventory.update(&slices, &in_use, self.drivers.now());
        let mut read =
            NodeClaims { inventory: Arc::new(self.inventory.clone()), claims, ..NodeClaims::default() };
        for file in self.drivers.cdi_files() {
            parse_cdi(file.to_string().as_bytes(), &mut read.cdi).map_err(explain)?;
        }
        let devices = self.inventory.devices().map(|(_, device)| device);
        for address in devices.filter_map(|device| device.pci.clone()) {
            let node = pci::address(&address).and_then(|address| pci::read_node(host, &address).ok());
            Arc::make_mut(&mut read.pci).extend(node.map(|node| (address, node)));
        }
        Ok(read)
    }
}

impl Walk {
    /// Returns the files about the devices' NUMA nodes and the CPUs' sockets.
    pub(super) fn files_of_devices(&self) -> BTreeMap<String, String> {
        let nodes = self.cell.machine.nodes.iter().map(|node| node.id).filter(|_| self.dra.is_some());
        let pci = nodes.map(|node| (format!("sys/bus/pci/devices/{}/numa_node", pci_address(node)), node));
        let cpus = self.hardware.cpu_locations().into_iter().filter(|_| self.dra.is_some());
        let sockets = cpus.map(|(cpu, at)| {
            (format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"), at.socket)
        });
        pci.chain(sockets).map(|(file, id)| (file, format!("{id}\n"))).collect()
    }

    /// Adds what the agent knows of claims.
    pub(super) fn add_claims(&mut self, scan: &mut Scan) -> Result<(), String> {
        let pods = self.kubelet.with_model(|model| {
            let pods = model.pods().values().filter(|pod| pod.stage != Stage::Removed);
            let object = |spec: &PodSpec, stage| {
                let phase = if stage == Stage::Terminated { "Succeeded" } else { "Running" };
                Pod::from_json(spec.object("worker", phase).to_string().as_bytes())
            };
            pods.map(|pod| object(&pod.spec, pod.stage)).collect::<Result<Vec<Pod>, String>>()
        })?;
        if let Some(dra) = &mut self.dra {
            scan.claims = Some(Arc::new(dra.read(scan, &pods, &self.settings.host)?));
        }
        Ok(())
    }

    /// Returns what claims have.
    pub(super) fn claimed(&mut self) -> Claimed {
        let in_use = self.claims_in_use();
        let Some(dra) = &mut self.dra else { return Claimed::default() };
        let is_seen = |(_, of): &(String, ClaimUse)| dra.has_pods || of.is_listed;
        dra.drivers.claimed(&self.hardware, &in_use.into_iter().filter(is_seen).collect())
    }

    fn claims_in_use(&self) -> BTreeMap<String, ClaimUse> {
        self.kubelet.with_model(|model| model.claims_in_use())
    }

    /// Changes slices or claims.
    pub(super) fn change_claims(&mut self) -> Step {
        let in_use = self.claims_in_use();
        let choice = self.rng.u8(0..20);
        let Some(dra) = &mut self.dra else { return Ok(("nothing".to_owned(), Depth::Usage)) };
        let action = match choice {
            0..3 => dra.drivers.hide_claim(),
            3..7 => dra.drivers.deallocate(&in_use),
            7 => {
                dra.drivers.agent_starts();
                dra.inventory = Inventory::default();
                "the agent restarts".to_owned()
            }
            _ => dra.drivers.change(&self.hardware),
        };
        self.outcome.slices += 1;
        Ok((action, Depth::Usage))
    }

    /// Adds claims to some of the containers; some have the same.
    pub(super) fn add_claims_of_drivers(&mut self, pod: &mut PodSpec) {
        let Some(dra) = &mut self.dra else { return };
        let count = self.rng.usize(1..3);
        let claims: Vec<Vec<ClaimedDevice>> = (0..count).filter_map(|_| dra.drivers.claim()).collect();
        for claim in claims {
            let first = self.rng.usize(0..pod.containers.len());
            let is_shared = self.chance(30);
            for (number, container) in pod.containers.iter_mut().enumerate() {
                let has_it = container.claims.iter().any(|of| of.claim == claim[0].claim);
                if (number == first || is_shared) && !has_it {
                    container.claims.extend(claim.clone());
                }
            }
            self.outcome.claims += 1;
        }
    }
}
