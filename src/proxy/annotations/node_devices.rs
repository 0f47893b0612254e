//! What is known of the node's devices: what Koordinator reports, and the locations of PCI devices in sysfs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::cluster::{Device, Devices};
use crate::machine::{HIGHEST_NODE, HostFiles, Id, IdSet};

/// Maximum number of PCI devices whose location is cached, and of addresses cached as missing.
const KEPT: usize = 16_384;
/// How long an address is cached as missing: functions are created on demand, and annotations may name
/// anything.
const MISSED: Duration = Duration::from_secs(60);
/// Minimum interval between purges of expired missing addresses when there are too many: annotations can
/// cause any number of lookups.
const SWEEP: Duration = Duration::from_secs(1);

/// The devices of one node. By default nothing is known.
#[derive(Clone, Debug, Default)]
pub struct Node {
    devices: Option<Arc<Devices>>,
    /// Every id and address with the index of its device, sorted.
    index: Arc<[(Box<str>, usize)]>,
    pci: Arc<Pci>,
}

/// What is known of an id.
#[derive(Clone, Copy, Debug)]
pub(super) enum Known<'a> {
    /// The node's devices are not reported.
    Nothing,
    /// They are reported, and it is not among them.
    Missing,
    /// It is this device, or a virtual function of it.
    Is(&'a Device),
}

impl Node {
    /// Creates a node from the reported devices, if there are any, and the lookup of PCI devices.
    #[must_use]
    pub fn new(devices: Option<Arc<Devices>>, pci: Arc<Pci>) -> Self {
        let mut index = Vec::new();
        for (at, device) in devices.iter().flat_map(|devices| devices.devices.iter()).enumerate() {
            index.extend(device.functions.iter().chain([&device.id]).map(|id| (id.clone(), at)));
        }
        index.sort_unstable();
        Self { devices, index: index.into(), pci }
    }

    /// Returns true if the devices are reported.
    #[cfg(test)]
    pub(crate) const fn is_reported(&self) -> bool {
        self.devices.is_some()
    }

    /// The accelerators' vendor; empty if not reported.
    pub(super) fn vendor(&self) -> &str {
        self.devices.as_ref().map_or("", |devices| &devices.vendor)
    }

    /// Returns all reported devices.
    pub(super) fn devices(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter().flat_map(|devices| devices.devices.iter())
    }

    /// Returns the device of a type that has this id, or a virtual function with this address.
    pub(super) fn find(&self, kind: &str, id: &str) -> Known<'_> {
        let Some(devices) = &self.devices else { return Known::Nothing };
        let found = self.all(id).map(|at| &devices.devices[at]).find(|device| &*device.kind == kind);
        found.map_or(Known::Missing, Known::Is)
    }

    /// Returns the id of the device of a type with this minor number.
    pub(super) fn id_of(&self, kind: &str, minor: i64) -> Option<&str> {
        let is = |device: &&Device| &*device.kind == kind && device.minor == Some(minor);
        self.devices().find(is).map(|device| &*device.id).filter(|id| !id.is_empty())
    }

    /// Returns the NUMA node of a device, if known: as reported, else from sysfs.
    pub(super) fn nodes_of(&self, id: &str, device: Option<&Device>) -> IdSet {
        let reported = || device.or_else(|| self.devices.as_ref()?.devices.get(self.all(id).next()?));
        let device = reported();
        let node = device.and_then(|device| device.node);
        let node = node.or_else(|| self.pci.node_of(id));
        let node = node.or_else(|| self.pci.node_of(&device?.bus));
        node.into_iter().collect()
    }

    /// Returns the indexes of the devices that have this id.
    fn all(&self, id: &str) -> impl Iterator<Item = usize> {
        let first = self.index.partition_point(|(known, _)| **known < *id);
        self.index[first..].iter().take_while(move |(known, _)| **known == *id).map(|(_, at)| *at)
    }
}

/// The locations of PCI devices from sysfs. Each is read once, and a missing one once a minute.
#[derive(Default)]
pub struct Pci {
    files: Option<Box<dyn HostFiles + Send + Sync>>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    nodes: BTreeMap<Box<str>, Option<Id>>,
    /// Missing addresses, and when that was found.
    missed: BTreeMap<Box<str>, Instant>,
    /// When the expired ones were last removed.
    swept: Option<Instant>,
}

impl fmt::Debug for Pci {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pci").finish_non_exhaustive()
    }
}

impl Pci {
    /// Creates the lookup in these files.
    #[must_use]
    pub fn new(files: impl HostFiles + Send + Sync + 'static) -> Self {
        Self { files: Some(Box::new(files)), seen: Mutex::default() }
    }

    /// Returns the NUMA node of the device at an address; `None` if the text is not an address, or there is
    /// no device or no node.
    fn node_of(&self, text: &str) -> Option<Id> {
        self.node_at(text, Instant::now())
    }

    fn node_at(&self, text: &str, now: Instant) -> Option<Id> {
        let files = self.files.as_ref()?;
        let address = address(text)?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = seen.nodes.get(&*address) {
            return *node;
        }
        if seen.is_missed(&address, now) {
            return None;
        }
        let Ok(text) = files.read(&format!("sys/bus/pci/devices/{address}/numa_node")) else {
            seen.missed.insert(address.into(), now);
            return None;
        };
        let node = text.trim().parse().ok().filter(|node| *node <= HIGHEST_NODE);
        if seen.nodes.len() >= KEPT {
            seen.nodes.clear();
        }
        seen.nodes.insert(address.into(), node);
        node
    }
}

impl Seen {
    /// Whether the lookup can be skipped. If too many addresses are missing, they are made up, and no further
    /// ones are looked up for a while.
    fn is_missed(&mut self, address: &str, now: Instant) -> bool {
        let is_fresh = |at: &Instant| now.saturating_duration_since(*at) < MISSED;
        if self.missed.get(address).is_some_and(is_fresh) {
            return true;
        }
        let is_due = self.swept.is_none_or(|at| now.saturating_duration_since(at) >= SWEEP);
        if self.missed.len() >= KEPT && is_due {
            self.missed.retain(|_, at| is_fresh(at));
            self.swept = Some(now);
        }
        self.missed.len() >= KEPT
    }
}

/// Normalizes a PCI address to the form in sysfs: `0000:3b:00.0`. The text is untrusted and must not lead to
/// any other file, so only an address is accepted.
fn address(text: &str) -> Option<String> {
    let (domain, rest) = text.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    // NVIDIA's tools write eight digits.
    let domain = match domain.len() {
        4..=8 if is_hex(domain) => domain.trim_start_matches('0'),
        _ => return None,
    };
    let fits = bus.len() == 2 && device.len() == 2 && function.len() == 1;
    if !fits || !is_hex(bus) || !is_hex(device) || !matches!(function.as_bytes(), [b'0'..=b'7']) {
        return None;
    }
    Some(format!("{domain:0>4}:{bus}:{device}.{function}").to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use std::io;
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
    fn what_is_not_there_is_looked_for_once_a_minute() {
        let files = Odd::default();
        let (pci, start) = (Pci::new(files.clone()), Instant::now());
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
    fn addresses_that_are_made_up_cost_so_many_looks_and_no_more() {
        let files = Odd::default();
        let (pci, start) = (Pci::new(files.clone()), Instant::now());
        for n in 0..2 * KEPT {
            let text = format!("{:04x}:{:02x}:{:02x}.0", n >> 16, n >> 8 & 0xff, n & 0xff);
            assert_eq!(pci.node_at(&text, start), None);
        }
        assert_eq!(files.0.load(Ordering::Relaxed), KEPT);
        // Expired addresses are not purged at every lookup.
        let swept = start + MISSED - Duration::from_millis(1);
        assert_eq!(pci.node_at("0000:ff:00.1", swept), None);
        assert_eq!(pci.node_at("0000:ff:00.1", start + MISSED), None);
        let later = swept + SWEEP;
        assert_eq!(pci.node_at("0000:ff:00.1", later), Some(1));
        assert_eq!(pci.node_at("0000:00:00.0", later), None);
        assert_eq!(files.0.load(Ordering::Relaxed), KEPT + 2);
    }

    #[test]
    fn so_many_devices_that_are_there_are_kept() {
        let files = Odd::default();
        let (pci, now) = (Pci::new(files.clone()), Instant::now());
        let address = |n: usize| format!("{:04x}:{:02x}:{:02x}.1", n >> 16, n >> 8 & 0xff, n & 0xff);
        for n in (0..KEPT).chain([0, 1]) {
            assert_eq!(pci.node_at(&address(n), now), Some(1));
        }
        assert_eq!(files.0.load(Ordering::Relaxed), KEPT, "each was looked for once");
        assert_eq!(pci.node_at(&address(KEPT), now), Some(1));
        assert_eq!(pci.seen.lock().unwrap().nodes.len(), 1);
    }

    #[test]
    fn nothing_but_an_address_is_looked_up() {
        for text in ["0000:3b:00.0", "00000000:3B:00.0", "0000:3b:00.7", "10000:e1:1f.0", "abcd:ff:1f.3"] {
            let address = address(text).unwrap();
            assert!(text.to_ascii_lowercase().ends_with(&address) && address.len() <= 13, "{text} {address}");
        }
        for text in [
            "",
            "0",
            ":",
            "0000:3b:00",
            "0000:3b:00.8",
            "0000:3b:00.0/../../x",
            "../0:3b:00.0",
            "000:3b:00.0",
            "0000:3b:0.0",
            "0000:3b:00.00",
            "0000:/b:00.0",
            "0000:3b:..:0",
            "0000:3b:00.0\n",
            " 0000:3b:00.0",
            "000000000:3b:00.0",
            "0000:3b:00.0:",
            "+000:3b:00.0",
            "0000:3b:00.٣",
            "0000.3b:00:0",
        ] {
            assert_eq!(address(text), None, "{text:?}");
        }
    }
}
