//! Random pods.

use fastrand::Rng;
use numacast_sim::machine::MachineSpec;

use crate::support::pod;
use crate::support::pods::PodSpec;

/// Returns a pod of any class, with init containers, sidecars, huge pages and devices, from small to as large as
/// the machine.
pub(crate) fn random(name: &str, machine: &MachineSpec, pod_level: bool, random: &mut Rng) -> PodSpec {
    let mut maker = Maker { machine, random };
    let one = pod(name);
    match maker.random.u8(..20) {
        0 => one,
        1 => maker.burstable(one),
        2 => maker.fractional(one),
        3 if pod_level => maker.pod_level(one),
        _ => maker.guaranteed(one),
    }
}

struct Maker<'a> {
    machine: &'a MachineSpec,
    random: &'a mut Rng,
}

impl Maker<'_> {
    fn guaranteed(&mut self, one: PodSpec) -> PodSpec {
        let mut one = self.requests(one);
        for number in 0..self.few() {
            let one_more = one.init(&format!("init-{number}"));
            one = self.requests(one_more);
        }
        for number in 0..self.few() {
            let one_more = one.sidecar(&format!("sidecar-{number}"));
            one = self.small_requests(one_more);
        }
        for number in 0..self.few() {
            let one_more = one.container(&format!("app-{number}"));
            one = if self.random.u8(..4) == 0 {
                self.small_fraction(one_more)
            } else {
                self.requests(one_more)
            };
        }
        one
    }

    /// Mostly none, sometimes one or two.
    fn few(&mut self) -> usize {
        [0, 0, 0, 0, 1, 1, 2][self.random.usize(..7)]
    }

    fn requests(&mut self, one: PodSpec) -> PodSpec {
        let one = self.cpus_and_memory(one);
        let one = if self.random.u8(..4) == 0 { self.pages(one) } else { one };
        if self.random.u8(..3) == 0 { self.device(one) } else { one }
    }

    fn small_requests(&mut self, one: PodSpec) -> PodSpec {
        let count = self.random.u32(1..=2);
        let memory = self.memory(1, 3);
        one.cpus(count).memory(&memory)
    }

    fn small_fraction(&mut self, one: PodSpec) -> PodSpec {
        let memory = self.memory(1, 3);
        one.millicpus(250).memory(&memory)
    }

    /// CPUs up to a few, up to a node's, or more than a node has; memory likewise.
    fn cpus_and_memory(&mut self, one: PodSpec) -> PodSpec {
        let of_node = self.machine.nodes.iter().map(|node| node.cpus.len()).max().unwrap_or(1);
        let of_node = u32::try_from(of_node).unwrap_or(1).max(2);
        let cpus = match self.random.u8(..10) {
            0..6 => self.random.u32(1..=(of_node / 3).max(2)),
            6..9 => self.random.u32(1..=of_node),
            _ => self.random.u32(of_node..=of_node * 2),
        };
        let memory = match self.random.u8(..10) {
            0..6 => self.memory(1, 10),
            6..9 => self.memory(10, 70),
            _ => self.memory(70, 160),
        };
        one.cpus(cpus).memory(&memory)
    }

    /// Returns a random percentage of the largest node's memory without huge pages.
    fn memory(&mut self, least: u64, most: u64) -> String {
        let plain = self.machine.nodes.iter().map(|node| node.memory.ceil() - node.hugepage_bytes()).max();
        let percent = self.random.u64(least..=most);
        format!("{}Mi", ((plain.unwrap_or(0) >> 20) * percent / 100).max(1))
    }

    /// Adds huge pages, if every node has memory: the kubelet ends with a panic otherwise.
    fn pages(&mut self, one: PodSpec) -> PodSpec {
        if self.machine.nodes.iter().any(|node| node.memory.ceil() == 0) {
            return one;
        }
        let sizes: Vec<u64> = self.machine.page_sizes().into_iter().collect();
        if sizes.is_empty() {
            return one;
        }
        let size = sizes[self.random.usize(..sizes.len())];
        let name = numacast::quantity::hugepages_name(size);
        let count = self.random.u64(1..=40);
        one.hugepages(name.trim_start_matches("hugepages-"), &(size * count).to_string())
    }

    fn device(&mut self, one: PodSpec) -> PodSpec {
        let devices = &self.machine.devices;
        if devices.is_empty() {
            return one;
        }
        let resource = devices[self.random.usize(..devices.len())].resource.clone();
        let count = self.random.u32(1..=3);
        one.device(&resource, count)
    }

    fn burstable(&mut self, one: PodSpec) -> PodSpec {
        let memory = self.memory(1, 3);
        let one = one.millicpus(100).memory(&memory).burstable();
        if self.random.bool() { self.device(one) } else { one }
    }

    fn fractional(&mut self, one: PodSpec) -> PodSpec {
        let memory = self.memory(1, 20);
        let milli = self.random.u32(1..=30) * 50;
        one.millicpus(milli).memory(&memory)
    }

    /// Pod-level resources that its containers share or divide.
    fn pod_level(&mut self, one: PodSpec) -> PodSpec {
        let cpus = self.random.u32(2..=6);
        let memory = self.memory(6, 20);
        let one = one.pod_level_resources(cpus, &memory);
        let small = self.memory(1, 3);
        let own = self.random.u32(1..=2);
        match self.random.u8(..4) {
            0 => one,
            1 => one.cpus(own).memory(&small),
            2 => one.cpus(own).memory(&small).container("shared"),
            _ => one.cpus(own).memory(&small).init("before").cpus(1).memory(&small).container("shared"),
        }
    }
}
