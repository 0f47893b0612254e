//! The NUMA nodes of PCI devices, from sysfs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::machine::{HostFiles, Id, pci};
use crate::util::sync::lock;

/// Maximum number of PCI devices whose location is cached, and of addresses cached as missing.
const MAX_CACHED: usize = 16_384;
/// How long an address is cached as missing: functions are created on demand, and annotations may name
/// anything.
const MISSING_TTL: Duration = Duration::from_secs(60);
/// Minimum interval between purges of expired missing addresses when there are too many: annotations can
/// cause any number of lookups.
const PURGE_INTERVAL: Duration = Duration::from_secs(1);

/// The locations of PCI devices from sysfs. Each is read once, and a missing one once a minute.
#[derive(Default)]
pub struct PciDevices {
    files: Option<Box<dyn HostFiles + Send + Sync>>,
    cache: Mutex<Cache>,
}

#[derive(Default)]
struct Cache {
    nodes: BTreeMap<Box<str>, Option<Id>>,
    /// Missing addresses, and when that was found.
    missing: BTreeMap<Box<str>, Instant>,
    /// When the expired ones were last removed.
    purged: Option<Instant>,
}

impl fmt::Debug for PciDevices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PciDevices").finish_non_exhaustive()
    }
}

impl PciDevices {
    /// Creates the lookup in these files.
    #[must_use]
    pub fn new(files: impl HostFiles + Send + Sync + 'static) -> Self {
        Self { files: Some(Box::new(files)), cache: Mutex::default() }
    }

    /// Returns the NUMA node of the device at an address; `None` if the text is not an address, or there is
    /// no device or no node.
    pub(super) fn numa_node(&self, text: &str) -> Option<Id> {
        self.node_at(text, Instant::now())
    }

    fn node_at(&self, text: &str, now: Instant) -> Option<Id> {
        let files = self.files.as_ref()?;
        let address = pci::address(text)?;
        let mut cache = lock(&self.cache);
        if let Some(node) = cache.nodes.get(&*address) {
            return *node;
        }
        if cache.is_missing(&address, now) {
            return None;
        }
        let Ok(node) = pci::read_node(files.as_ref(), &address) else {
            cache.missing.insert(address.into(), now);
            return None;
        };
        if cache.nodes.len() >= MAX_CACHED {
            cache.nodes.clear();
        }
        cache.nodes.insert(address.into(), node);
        node
    }
}

impl Cache {
    /// Returns true if the lookup can be skipped. If too many addresses are missing, no further ones are
    /// looked up for a while.
    fn is_missing(&mut self, address: &str, now: Instant) -> bool {
        let is_fresh = |at: &Instant| now.saturating_duration_since(*at) < MISSING_TTL;
        if self.missing.get(address).is_some_and(is_fresh) {
            return true;
        }
        let is_due = self.purged.is_none_or(|at| now.saturating_duration_since(at) >= PURGE_INTERVAL);
        if self.missing.len() >= MAX_CACHED && is_due {
            self.missing.retain(|_, at| is_fresh(at));
            self.purged = Some(now);
        }
        self.missing.len() >= MAX_CACHED
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Devices at odd functions, on node 1, and the number of lookups.
    #[derive(Clone, Default)]
    struct Odd(Arc<AtomicUsize>);

    impl HostFiles for Odd {
        fn read(&self, path: &str) -> io::Result<String> {
            self.0.fetch_add(1, Ordering::Relaxed);
            match path.strip_suffix("/numa_node").is_some_and(|path| path.ends_with(['1', '3', '5', '7'])) {
                true => Ok("1\n".to_owned()),
                false => Err(io::ErrorKind::NotFound.into()),
            }
        }

        fn list(&self, _: &str) -> io::Result<Vec<String>> {
            Err(io::ErrorKind::NotFound.into())
        }
    }

    #[test]
    fn a_missing_address_is_looked_up_once_a_minute() {
        let files = Odd::default();
        let (pci, start) = (PciDevices::new(files.clone()), Instant::now());
        for (after, node_0, node_1, reads) in
            [(0, None, Some(1), 2), (59, None, Some(1), 2), (60, None, Some(1), 3)]
        {
            let now = start + Duration::from_secs(after);
            assert_eq!(pci.node_at("0000:01:00.0", now), node_0);
            assert_eq!(pci.node_at("0000:01:00.1", now), node_1);
            assert_eq!(files.0.load(Ordering::Relaxed), reads, "after {after} s");
        }
    }

    #[test]
    fn lookups_of_missing_addresses_are_bounded() {
        let files = Odd::default();
        let (pci, start) = (PciDevices::new(files.clone()), Instant::now());
        for n in 0..2 * MAX_CACHED {
            let text = format!("{:04x}:{:02x}:{:02x}.0", n >> 16, n >> 8 & 0xff, n & 0xff);
            assert_eq!(pci.node_at(&text, start), None);
        }
        assert_eq!(files.0.load(Ordering::Relaxed), MAX_CACHED);
        // Expired addresses are not purged at every lookup.
        let before = start + MISSING_TTL - Duration::from_millis(1);
        assert_eq!(pci.node_at("0000:ff:00.1", before), None);
        assert_eq!(pci.node_at("0000:ff:00.1", start + MISSING_TTL), None);
        let later = before + PURGE_INTERVAL;
        assert_eq!(pci.node_at("0000:ff:00.1", later), Some(1));
        assert_eq!(pci.node_at("0000:00:00.0", later), None);
        assert_eq!(files.0.load(Ordering::Relaxed), MAX_CACHED + 2);
    }

    #[test]
    fn the_number_of_cached_locations_is_bounded() {
        let files = Odd::default();
        let (pci, now) = (PciDevices::new(files.clone()), Instant::now());
        let address = |n: usize| format!("{:04x}:{:02x}:{:02x}.1", n >> 16, n >> 8 & 0xff, n & 0xff);
        for n in (0..MAX_CACHED).chain([0, 1]) {
            assert_eq!(pci.node_at(&address(n), now), Some(1));
        }
        assert_eq!(files.0.load(Ordering::Relaxed), MAX_CACHED, "each was read once");
        assert_eq!(pci.node_at(&address(MAX_CACHED), now), Some(1));
        assert_eq!(pci.cache.lock().unwrap().nodes.len(), 1);
    }
}
