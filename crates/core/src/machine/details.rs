//! What only `doctor` looks at: settings of the kernel, and devices that do not report their NUMA node.

use std::collections::BTreeMap;

use super::{CPUS, HostFiles, Id, IdSet, Machine};

const NODES: &str = "sys/devices/system/node";
const PCI: &str = "sys/bus/pci/devices";
/// Maximum number of PCI devices that are read. Machines have some hundreds.
const MAX_PCI: usize = 4096;
/// Classes of PCI devices that device plugins offer: network, display, co-processors and accelerators; the first
/// two digits (upstream: `include/linux/pci_ids.h`).
const PCI_CLASSES: [&str; 4] = ["0x02", "0x03", "0x0b", "0x12"];

/// Settings of the kernel, and devices. What cannot be read is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// CPUs that are plugged in but offline, unless simultaneous multithreading is off.
    pub offline_cpus: IdSet,
    /// CPUs that the kernel's scheduler does not balance (`isolcpus`).
    pub isolated_cpus: IdSet,
    /// NUMA node and page size in bytes to the pages above the persistent pool (overcommit), if any.
    pub surplus_pages: BTreeMap<(Id, u64), u64>,
    /// Whether the kernel moves pages between NUMA nodes by itself.
    pub numa_balancing: bool,
    /// The controllers of cgroup v2; `None` with cgroup v1.
    pub cgroup_controllers: Option<String>,
    /// MemTotal of the whole machine, in bytes.
    pub mem_total: Option<u64>,
    /// Addresses of PCI devices, of the classes that device plugins offer, whose NUMA node is unknown.
    pub pci_without_node: Vec<String>,
}

impl Details {
    /// Reads them.
    #[must_use]
    pub fn read(files: &impl HostFiles, machine: &Machine) -> Self {
        let text = |file: &str| files.read(file).map(|text| text.trim().to_owned()).unwrap_or_default();
        let ids = |name: &str| text(&format!("{CPUS}/{name}")).parse::<IdSet>().unwrap_or_default();
        // With it off, half of the CPUs are offline on purpose, and sysfs does not tell which.
        let has_threads_off = matches!(text(&format!("{CPUS}/smt/control")).as_str(), "off" | "forceoff");
        let offline = ids("present").difference(&ids("online"));
        Self {
            offline_cpus: if has_threads_off { IdSet::new() } else { offline },
            isolated_cpus: ids("isolated"),
            surplus_pages: surplus_pages(files, machine),
            numa_balancing: !matches!(text("proc/sys/kernel/numa_balancing").as_str(), "" | "0"),
            cgroup_controllers: files.read("sys/fs/cgroup/cgroup.controllers").ok(),
            mem_total: mem_total(&text("proc/meminfo")),
            pci_without_node: pci_without_node(files),
        }
    }
}

fn surplus_pages(files: &impl HostFiles, machine: &Machine) -> BTreeMap<(Id, u64), u64> {
    let pools = machine.nodes.iter().flat_map(|node| node.hugepages.keys().map(|size| (node.id, *size)));
    let surplus = |(node, size): &(Id, u64)| {
        let kib = size / 1024;
        let file = format!("{NODES}/node{node}/hugepages/hugepages-{kib}kB/surplus_hugepages");
        files.read(&file).ok()?.trim().parse::<u64>().ok().filter(|pages| *pages > 0)
    };
    pools.filter_map(|pool| Some((pool, surplus(&pool)?))).collect()
}

fn mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn pci_without_node(files: &impl HostFiles) -> Vec<String> {
    let names = files.list(PCI).unwrap_or_default();
    let has_class = |name: &String| {
        files
            .read(&format!("{PCI}/{name}/class"))
            .is_ok_and(|class| PCI_CLASSES.iter().any(|it| class.starts_with(it)))
    };
    let has_no_node =
        |name: &String| files.read(&format!("{PCI}/{name}/numa_node")).is_ok_and(|node| node.trim() == "-1");
    names.into_iter().take(MAX_PCI).filter(|name| has_class(name) && has_no_node(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::RecordedFiles;

    #[test]
    fn what_is_missing_is_empty() {
        assert_eq!(Details::read(&RecordedFiles::default(), &Machine::default()), Details::default());
    }

    #[test]
    fn every_file_is_read() {
        let files = [
            ("sys/devices/system/cpu/present", "0-7\n"),
            ("sys/devices/system/cpu/online", "0-5\n"),
            ("sys/devices/system/cpu/isolated", "4\n"),
            ("sys/devices/system/cpu/smt/control", "on\n"),
            ("sys/devices/system/node/online", "0\n"),
            ("sys/devices/system/node/node0/cpulist", "0-5\n"),
            ("sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages", "9\n"),
            ("sys/devices/system/node/node0/hugepages/hugepages-2048kB/surplus_hugepages", "2\n"),
            ("sys/fs/cgroup/cgroup.controllers", "cpuset cpu\n"),
            ("sys/bus/pci/devices/0000:00:1f.0/class", "0x060100\n"),
            ("sys/bus/pci/devices/0000:00:1f.0/numa_node", "-1\n"),
            ("sys/bus/pci/devices/0000:17:00.0/class", "0x020000\n"),
            ("sys/bus/pci/devices/0000:17:00.0/numa_node", "-1\n"),
            ("sys/bus/pci/devices/0000:65:00.0/class", "0x030200\n"),
            ("sys/bus/pci/devices/0000:65:00.0/numa_node", "1\n"),
            ("proc/meminfo", "MemTotal:       2048 kB\nMemFree: 1 kB\n"),
            ("proc/sys/kernel/numa_balancing", "1\n"),
        ];
        let read = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        let mut files = RecordedFiles { read, ..RecordedFiles::default() };
        let machine = crate::machine::read(&files).unwrap();
        let details = Details::read(&files, &machine);
        let expected = Details {
            offline_cpus: "6-7".parse().unwrap(),
            isolated_cpus: "4".parse().unwrap(),
            surplus_pages: [((0, 2 << 20), 2)].into(),
            numa_balancing: true,
            cgroup_controllers: Some("cpuset cpu\n".to_owned()),
            mem_total: Some(2 << 20),
            pci_without_node: vec!["0000:17:00.0".to_owned()],
        };
        assert_eq!(details, expected);
        files.read.insert("sys/devices/system/cpu/smt/control".to_owned(), "off\n".to_owned());
        assert_eq!(Details::read(&files, &machine).offline_cpus, IdSet::new());
    }
}
