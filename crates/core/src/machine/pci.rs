//! PCI devices: their addresses and NUMA nodes.

use std::io;

use std::collections::BTreeSet;

use super::{HIGHEST_NODE, HostFiles, Id};

/// Returns the NUMA node of the device at a normalized [`address`]; `None` if it has none.
///
/// # Errors
/// The I/O error; `NotFound` without such a device.
pub fn read_node(files: &(impl HostFiles + ?Sized), address: &str) -> io::Result<Option<Id>> {
    let text = files.read(&format!("sys/bus/pci/devices/{address}/numa_node"))?;
    Ok(text.trim().parse().ok().filter(|node| *node <= HIGHEST_NODE))
}

/// Returns the normalized [`address`]es of all devices; none if they cannot be read.
pub fn addresses(files: &(impl HostFiles + ?Sized)) -> BTreeSet<String> {
    files.list("sys/bus/pci/devices").unwrap_or_default().into_iter().collect()
}

/// Normalizes a PCI address to the form in sysfs: `0000:3b:00.0`. The text is untrusted and must not lead to
/// any other file, so only an address is accepted.
#[must_use]
pub fn address(text: &str) -> Option<String> {
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
    use super::*;
    use crate::machine::RecordedFiles;

    #[test]
    fn the_kernel_knows_devices_and_their_nodes() {
        let nodes = [("0000:01:00.0", "0\n"), ("0000:02:00.0", "-1\n"), ("0000:03:00.0", "1023\n")];
        let nodes = nodes.into_iter().chain([("0000:04:00.0", "1024\n")]);
        let path = |address: &str| format!("sys/bus/pci/devices/{address}/numa_node");
        let read = nodes.map(|(address, node)| (path(address), node.to_owned())).collect();
        let files = RecordedFiles { read, ..RecordedFiles::default() };
        let found: Vec<String> = addresses(&files).into_iter().collect();
        assert_eq!(found, ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:04:00.0"]);
        let nodes: Vec<Option<Id>> =
            found.iter().map(|address| read_node(&files, address).unwrap()).collect();
        assert_eq!(nodes, [Some(0), None, Some(1023), None]);
        assert_eq!(read_node(&files, "0000:05:00.0").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(addresses(&RecordedFiles::default()), BTreeSet::new());
    }

    #[test]
    fn only_valid_addresses_are_looked_up() {
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
