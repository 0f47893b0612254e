//! What only the node's files tell about claims: where PCI devices are, and which CPUs a driver chose.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use tracing::debug;

use crate::claims::{CPU_DRIVER, CdiAllocations, Inventory, MEMORY_DRIVER, NodeClaims, parse_cdi};
use crate::machine::{HostRoots, Id, pci};
use crate::util::file::{FileVersion, read_bounded, version};

/// Maximum size of a CDI file in bytes: some files have all claims of a driver.
const MAX_CDI_BYTES: u64 = 1 << 20;

/// Reads these files, each again only when it has changed; those of a PCI device once.
#[derive(Debug)]
pub(super) struct ClaimFiles {
    host: HostRoots,
    /// Where container runtimes read CDI files.
    cdi: PathBuf,
    /// What `pci` was read for.
    read_for: Arc<Inventory>,
    pci: Arc<BTreeMap<String, Option<Id>>>,
    absent_pci: Arc<BTreeSet<String>>,
    /// By name. A driver writes the file of a claim at each prepare.
    files: BTreeMap<String, (FileVersion, CdiAllocations)>,
}

impl ClaimFiles {
    pub(super) fn new(host: HostRoots, cdi: PathBuf) -> Self {
        let (read_for, pci, absent_pci) = (Arc::default(), Arc::default(), Arc::default());
        Self { host, cdi, read_for, pci, absent_pci, files: BTreeMap::new() }
    }

    /// Adds what the files tell. PCI devices that are not there are looked up again when a slice changes.
    pub(super) fn complete(&mut self, claims: &mut NodeClaims) {
        if !Arc::ptr_eq(&self.read_for, &claims.inventory) {
            self.read_pci(&claims.inventory);
            self.read_for = Arc::clone(&claims.inventory);
        }
        claims.pci = Arc::clone(&self.pci);
        claims.absent_pci = Arc::clone(&self.absent_pci);
        claims.cdi = self.read_cdi(claims);
    }

    fn read_pci(&mut self, inventory: &Inventory) {
        let (mut pci, mut absent) = (BTreeMap::new(), BTreeSet::new());
        let present = LazyCell::new(|| pci::addresses(&self.host));
        for text in inventory.devices().filter_map(|(_, device)| device.pci.as_ref()) {
            let Some(address) = pci::address(text) else { continue };
            let known = self.pci.get(text).copied();
            match known.map_or_else(|| pci::read_node(&self.host, &address), Ok) {
                Ok(node) => _ = pci.insert(text.clone(), node),
                Err(_) if present.is_empty() || present.contains(&address) => {}
                Err(_) => _ = absent.insert(text.clone()),
            }
        }
        (self.pci, self.absent_pci) = (Arc::new(pci), Arc::new(absent));
    }

    fn read_cdi(&mut self, claims: &NodeClaims) -> CdiAllocations {
        let uids_of = |driver: &str| -> BTreeSet<&str> {
            let claims = claims.claims.values().map(|of| &of.claim);
            let of_driver = claims.filter(|claim| claim.devices.iter().any(|device| device.driver == driver));
            of_driver.map(|claim| claim.uid.as_str()).filter(|uid| !uid.is_empty()).collect()
        };
        let (cpus, memory) = (uids_of(CPU_DRIVER), uids_of(MEMORY_DRIVER));
        if (cpus.is_empty() && memory.is_empty()) || !self.cdi.is_dir() {
            self.files.clear();
            return CdiAllocations::default();
        }
        // The first release of the CPU driver writes one file.
        let mut names: Vec<String> =
            cpus.iter().map(|uid| format!("dra.k8s.io-cpu_claim-{uid}.json")).collect();
        names.extend(cpus.first().map(|_| "dra.cpu.json".to_owned()));
        names.extend(memory.first().map(|_| "dra.memory.json".to_owned()));
        self.files.retain(|name, _| names.contains(name));
        names.iter().for_each(|name| self.read_file(name));
        let mut read = CdiAllocations::default();
        for (_, file) in self.files.values() {
            let of_claims = file.cpus.iter().filter(|(uid, _)| cpus.contains(uid.as_str()));
            read.cpus.extend(of_claims.map(|(uid, of)| (uid.clone(), of.clone())));
            let of_claims = file.memory.iter().filter(|(uid, _)| memory.contains(uid.as_str()));
            read.memory.extend(of_claims.map(|(uid, of)| (uid.clone(), of.clone())));
        }
        read
    }

    fn read_file(&mut self, name: &str) {
        let path = self.cdi.join(name);
        // A UID of the API server has no slash; the name must stay below the directory whatever it has.
        let Some(version) = version(&path).filter(|_| !name.contains('/')) else {
            self.files.remove(name);
            return;
        };
        if self.files.get(name).is_some_and(|(known, _)| *known == version) {
            return;
        }
        let Ok(text) = read_bounded(&path, MAX_CDI_BYTES) else { return };
        let mut read = CdiAllocations::default();
        if let Err(error) = parse_cdi(&text, &mut read) {
            debug!("cannot read the CDI file {name}: {error}");
        }
        self.files.insert(name.to_owned(), (version, read));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::{Allocated, Claim, ClaimInUse};

    fn claims(driver: &str) -> NodeClaims {
        let device = Allocated { driver: driver.to_owned(), ..Allocated::default() };
        let claim = Claim { uid: "u".to_owned(), devices: vec![device], ..Claim::default() };
        let claims = [("ns/a".to_owned(), ClaimInUse { claim, ..ClaimInUse::default() })].into();
        NodeClaims { claims, ..NodeClaims::default() }
    }

    #[test]
    fn cpus_of_a_claim_are_those_of_its_last_prepare() {
        let dir = tempfile::tempdir().unwrap();
        let root = HostRoots { sys: dir.path().to_owned(), proc: dir.path().to_owned() };
        let mut files = ClaimFiles::new(root, dir.path().to_owned());
        let mut cpus = || {
            let mut claims = claims(CPU_DRIVER);
            files.complete(&mut claims);
            claims.cdi.cpus.get("u").map(ToString::to_string)
        };
        let file = dir.path().join("dra.k8s.io-cpu_claim-u.json");
        // As the driver does, which replaces the file.
        let write = |cpus: &str| {
            let json = format!(
                r#"{{"kind": "dra.k8s.io/cpu", "devices": [{{"name": "claim-u", "containerEdits": {{"env": ["DRA_CPUSET_u={cpus}"]}}}}]}}"#
            );
            let next = dir.path().join("next");
            std::fs::write(&next, json).unwrap();
            std::fs::rename(&next, &file).unwrap();
        };
        assert_eq!(cpus(), None);
        write("2-5");
        assert_eq!(cpus().as_deref(), Some("2-5"));
        write("1-3");
        assert_eq!(cpus().as_deref(), Some("1-3"));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(cpus(), None);
    }

    #[test]
    fn an_absent_pci_device_is_told_from_one_that_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let root = HostRoots { sys: dir.path().to_owned(), proc: dir.path().to_owned() };
        let json = serde_json::json!({"inventory": {"gpu.a.io": {"w": {"devices": {
            "a": {"pci": "0000:01:00.0"}, "b": {"pci": "0000:02:00.0"}, "c": {"pci": "x"}}}}}});
        let read = || {
            let mut claims: NodeClaims = serde_json::from_value(json.clone()).unwrap();
            ClaimFiles::new(root.clone(), dir.path().to_owned()).complete(&mut claims);
            (claims.pci, claims.absent_pci)
        };
        assert_eq!(read(), (Arc::default(), Arc::default()), "sysfs is not mounted");
        let device = dir.path().join("bus/pci/devices/0000:01:00.0");
        std::fs::create_dir_all(&device).unwrap();
        let absent = Arc::new(BTreeSet::from(["0000:02:00.0".to_owned()]));
        assert_eq!(read(), (Arc::default(), Arc::clone(&absent)), "a kernel without NUMA");
        std::fs::write(device.join("numa_node"), "1\n").unwrap();
        assert_eq!(read(), (Arc::new([("0000:01:00.0".to_owned(), Some(1))].into()), absent));
    }
}
