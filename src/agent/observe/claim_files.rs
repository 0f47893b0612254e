//! What only the node's files tell about claims: where PCI devices are, and which CPUs a driver chose.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use tracing::debug;

use crate::claims::{CPU_DRIVER, CdiAllocations, Inventory, MEMORY_DRIVER, NodeClaims, parse_cdi};
use crate::machine::{HostRoots, Id, IdSet, pci};
use crate::util::file::read_bounded;

/// Maximum size of a CDI file in bytes: some files have all claims of a driver.
const MAX_CDI_BYTES: u64 = 1 << 20;

/// Reads these files; those of a PCI device once.
#[derive(Debug)]
pub(super) struct ClaimFiles {
    host: HostRoots,
    /// Where container runtimes read CDI files.
    cdi: PathBuf,
    /// What `pci` was read for.
    read_for: Arc<Inventory>,
    pci: Arc<BTreeMap<String, Option<Id>>>,
    /// The CPUs of claims, which do not change. Files of claims that ended are removed by their driver.
    cpus: BTreeMap<String, IdSet>,
}

impl ClaimFiles {
    pub(super) fn new(host: HostRoots, cdi: PathBuf) -> Self {
        Self { host, cdi, read_for: Arc::default(), pci: Arc::default(), cpus: BTreeMap::new() }
    }

    /// Adds what the files tell. PCI devices that are not there are looked up again when a slice changes.
    pub(super) fn complete(&mut self, claims: &mut NodeClaims) {
        if !Arc::ptr_eq(&self.read_for, &claims.inventory) {
            self.read_pci(&claims.inventory);
            self.read_for = Arc::clone(&claims.inventory);
        }
        claims.pci = Arc::clone(&self.pci);
        claims.cdi = self.read_cdi(claims);
    }

    fn read_pci(&mut self, inventory: &Inventory) {
        let mut pci = BTreeMap::new();
        for text in inventory.devices().filter_map(|(_, device)| device.pci.as_ref()) {
            let read = || pci::read_node(&self.host, &pci::address(text)?).ok();
            let node = self.pci.get(text).copied().or_else(read);
            pci.extend(node.map(|node| (text.clone(), node)));
        }
        self.pci = Arc::new(pci);
    }

    fn read_cdi(&mut self, claims: &NodeClaims) -> CdiAllocations {
        let of = |driver: &'static str| {
            let claims = claims.claims.values().map(|of| &of.claim).filter(|claim| !claim.uid.is_empty());
            claims.filter(move |claim| claim.devices.iter().any(|device| device.driver == driver))
        };
        let uids: BTreeSet<&String> = of(CPU_DRIVER).map(|claim| &claim.uid).collect();
        self.cpus.retain(|uid, _| uids.contains(uid));
        let mut read = CdiAllocations::default();
        let unknown: Vec<&&String> = uids.iter().filter(|uid| !self.cpus.contains_key(**uid)).collect();
        for uid in &unknown {
            self.read_file(&format!("dra.k8s.io-cpu_claim-{uid}.json"), &mut read);
        }
        if !unknown.is_empty() {
            // The first release writes one file.
            self.read_file("dra.cpu.json", &mut read);
        }
        if of(MEMORY_DRIVER).next().is_some() {
            self.read_file("dra.memory.json", &mut read);
        }
        let known = std::mem::take(&mut read.cpus).into_iter().filter(|(uid, _)| uids.contains(uid));
        self.cpus.extend(known);
        read.cpus.clone_from(&self.cpus);
        read
    }

    fn read_file(&self, name: &str, read: &mut CdiAllocations) {
        // A UID of the API server has no slash; the name must stay below the directory whatever it has.
        if name.contains('/') {
            return;
        }
        let Ok(text) = read_bounded(&self.cdi.join(name), MAX_CDI_BYTES) else { return };
        if let Err(error) = parse_cdi(&text, read) {
            debug!("cannot read the CDI file {name}: {error}");
        }
    }
}
