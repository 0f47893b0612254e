//! What drivers have and publish.

use super::*;
use crate::machine::NodeSpec;

impl Drivers {
    /// Starts drivers on this machine, with all of their pools published.
    #[must_use]
    pub fn start(hardware: &MachineSpec, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let has_cdi = rng.bool();
        let mut drivers = Self {
            rng,
            pools: Vec::new(),
            claims: BTreeMap::new(),
            claims_made: 0,
            silent: BTreeSet::new(),
            has_cdi,
            now: Duration::ZERO,
        };
        let all = [
            (CPU_DRIVER, drivers.cpus(hardware)),
            (MEMORY_DRIVER, drivers.memory(hardware)),
            ("gpu.example.com", (0..6).map(|number| drivers.gpu(hardware, number)).collect()),
            ("card.example.com", (0..2).flat_map(|card| drivers.card(hardware, card)).collect()),
            ("nic.example.com", (0..4).map(|number| drivers.nic(hardware, number)).collect()),
        ];
        for (driver, devices) in all {
            drivers.pools.push(Pool { driver: driver.to_owned(), devices, ..Pool::default() });
            if drivers.rng.u8(0..4) == 0 {
                drivers.silent.insert(driver.to_owned());
            }
        }
        (0..drivers.pools.len()).for_each(|at| drivers.publish(at));
        drivers
    }

    fn place(&mut self, hardware: &MachineSpec) -> (Id, Publishes) {
        use Publishes::{Dranet, List, Nothing, Own, Pci, Standard};
        let node = hardware.nodes[self.rng.usize(0..hardware.nodes.len())].id;
        let publishes = self.rng.choice([Standard, Standard, List, Dranet, Own, Pci, Nothing]);
        (node, publishes.unwrap_or_default())
    }

    /// CPUs one by one, or by count: of each node, of each socket, or of the machine.
    fn cpus(&mut self, hardware: &MachineSpec) -> Vec<Device> {
        let by_count = |name: String, from: IdSet, socket: Option<Id>| Device {
            name,
            capacity: from.len(),
            kind: Kind::Cpus { from, socket },
            ..Device::default()
        };
        match self.rng.u8(0..5) {
            0 => {
                let some = hardware.nodes.iter().flat_map(|node| node.cpus.iter().take(12));
                let one = |(number, cpu): (usize, Id)| {
                    let name = format!("cpudev{number:03}");
                    Device { name, kind: Kind::Cpu(cpu), ..Device::default() }
                };
                some.enumerate().map(one).collect()
            }
            1 => {
                let mut sockets: BTreeMap<Id, IdSet> = BTreeMap::new();
                for (cpu, at) in hardware.cpu_locations() {
                    sockets.entry(at.socket).or_default().insert(cpu);
                }
                let one = |(id, from)| by_count(format!("cpudevsocket{id:03}"), from, Some(id));
                sockets.into_iter().map(one).collect()
            }
            2 => vec![by_count("cpudevmachine".to_owned(), hardware.online_cpus(), None)],
            _ => {
                let publishes = if self.rng.bool() { Publishes::Standard } else { Publishes::Own };
                let one = |node: &NodeSpec| {
                    let device = by_count(format!("cpudevnuma{:03}", node.id), node.cpus.clone(), None);
                    Device { node: node.id, publishes, ..device }
                };
                hardware.nodes.iter().filter(|node| !node.cpus.is_empty()).map(one).collect()
            }
        }
    }

    /// Memory and huge pages of each node, under names that are new at each start.
    fn memory(&mut self, hardware: &MachineSpec) -> Vec<Device> {
        let mut devices = Vec::new();
        for (position, id) in listed(hardware).into_iter().enumerate() {
            let Some(node) = hardware.node(id) else { continue };
            // Those that the driver knows.
            let pages = node.pages().into_iter().filter(|(size, _)| [2 << 20, 1 << 30].contains(size));
            let pages = pages.map(|(size, count)| (hugepages_name(size), size * count));
            for (resource, capacity) in pages.chain([("memory".to_owned(), node.memory.ceil())]) {
                let name = format!("{}-{:06x}", resource.to_lowercase(), self.rng.u32(0..1 << 24));
                let kind = Kind::Memory(resource, position);
                devices.push(Device { name, kind, node: id, capacity, ..Device::default() });
            }
        }
        devices.retain(|device| device.capacity > 0);
        devices
    }

    fn gpu(&mut self, hardware: &MachineSpec, number: usize) -> Device {
        let (node, publishes) = self.place(hardware);
        // Some are shared.
        let capacity = if self.rng.u8(0..3) == 0 { 80 } else { 0 };
        Device { name: format!("gpu-{number}"), node, publishes, capacity, ..Device::default() }
    }

    /// One card as a whole and in parts.
    fn card(&mut self, hardware: &MachineSpec, number: usize) -> Vec<Device> {
        let (node, publishes) = self.place(hardware);
        let card = format!("card-{number}");
        let one = |(number, amount)| {
            let part = Some((card.clone(), amount));
            Device { name: format!("{card}-{number}"), node, publishes, part, ..Device::default() }
        };
        [WHOLE, 4, 2, 2, 1, 1].into_iter().enumerate().map(one).collect()
    }

    fn nic(&mut self, hardware: &MachineSpec, number: usize) -> Device {
        let publishes = if self.rng.bool() { Publishes::Dranet } else { Publishes::Pci };
        let node = self.place(hardware).0;
        Device { name: format!("nic-{number}"), node, publishes, ..Device::default() }
    }

    /// Publishes a new generation of a pool: without some devices, and some with taints.
    fn publish(&mut self, at: usize) {
        let Self { rng, pools, .. } = self;
        let pool = &mut pools[at];
        let mut devices: Vec<Device> = pool.devices.iter().filter(|_| rng.u8(0..12) > 0).cloned().collect();
        devices.iter_mut().for_each(|device| device.is_tainted = rng.u8(0..8) == 0);
        rng.shuffle(&mut devices);
        let size = devices.len().max(1).div_ceil(rng.usize(1..4)).min(128);
        // The counters of cards have a slice of their own.
        let counters = devices.iter().any(|device| device.part.is_some()).then(Vec::new);
        let parts: Vec<Vec<Device>> = devices.chunks(size).map(<[Device]>::to_vec).chain(counters).collect();
        pool.generation += 1;
        pool.slices = parts.iter().map(|part| (pool.generation, parts.len(), part.clone())).collect();
    }

    /// Changes the slices of a pool, or lets time pass. Returns what happened.
    pub fn change(&mut self, hardware: &MachineSpec) -> String {
        let at = self.rng.usize(0..self.pools.len());
        let is_complete = self.pools[at].newest().1;
        let action = match self.rng.u8(0..10) {
            0..4 => {
                let old = self.pools[at].slices.clone();
                self.publish(at);
                // Some old slices are still to be deleted.
                self.pools[at].slices.extend(old.into_iter().filter(|_| self.rng.u8(0..4) == 0));
                "publishes a new generation"
            }
            4 if is_complete => {
                let old = self.pools[at].slices.clone();
                self.publish(at);
                let pool = &mut self.pools[at];
                // One more is to come.
                pool.slices.iter_mut().for_each(|(_, count, _)| *count += 1);
                pool.slices.extend(old.into_iter().filter(|_| self.rng.bool()));
                "has published a part of a new generation"
            }
            5 => {
                self.pools[at].slices.clear();
                "has no slices"
            }
            6 => {
                let devices = self.pools[at].slices.iter_mut().flat_map(|(.., devices)| devices);
                let Some(device) = self.rng.choice(devices.collect::<Vec<_>>()) else {
                    return "nothing".to_owned();
                };
                device.is_tainted = !device.is_tainted;
                "taints a device, or no longer does"
            }
            7 if is_complete => {
                let slices = &mut self.pools[at].slices;
                if let Some((.., devices)) = slices.iter_mut().find(|(.., devices)| !devices.is_empty()) {
                    devices.push(devices[0].clone());
                }
                "has two devices of one name"
            }
            8 if self.pools[at].driver == MEMORY_DRIVER => {
                self.pools[at].devices = self.memory(hardware);
                self.publish(at);
                "restarts"
            }
            _ => {
                self.now += Duration::from_secs(self.rng.u64(1..150));
                return format!("{} seconds have passed", self.now.as_secs());
            }
        };
        let Pool { driver, slices, .. } = &self.pools[at];
        let names = |devices: &[Device]| -> Vec<String> {
            let taint = |device: &Device| if device.is_tainted { " (tainted)" } else { "" };
            devices.iter().map(|device| format!("{}{}", device.name, taint(device))).collect()
        };
        let slices: Vec<_> =
            slices.iter().map(|(generation, count, all)| (generation, count, names(all))).collect();
        format!("{driver} {action}: {slices:?}")
    }

    /// The kubelet starts and deletes all slices.
    pub fn kubelet_starts(&mut self) {
        self.pools.iter_mut().for_each(|pool| pool.slices.clear());
    }

    /// The agent starts and has seen no slices yet.
    pub fn agent_starts(&mut self) {
        for pool in &mut self.pools {
            (pool.contents, pool.kept, pool.incomplete_since) = Default::default();
        }
    }
}
