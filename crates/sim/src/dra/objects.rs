//! The objects of the API server and the CDI files.

use serde_json::{Value, json};

use super::*;

impl Drivers {
    /// The ResourceSlices, some in the form of the first beta.
    pub fn slices(&mut self) -> Vec<Value> {
        let Self { rng, pools, .. } = self;
        let mut slices = Vec::new();
        for Pool { driver, slices: published, .. } in pools {
            for (number, (generation, count, devices)) in published.iter().enumerate() {
                let pool = json!({"name": POOL, "generation": generation, "resourceSliceCount": count});
                let is_beta = rng.bool();
                let devices = devices.iter().map(|device| device.object(driver, is_beta));
                let spec = match devices.len() {
                    0 => json!({"driver": driver, "pool": pool, "sharedCounters": counters()}),
                    _ => json!({"driver": driver, "pool": pool, "devices": devices.collect::<Vec<_>>()}),
                };
                slices.push(json!({"metadata": {"name": format!("{driver}-{number}")}, "spec": spec}));
            }
        }
        rng.shuffle(&mut slices);
        slices
    }

    /// The ResourceClaim of this name, if the API server returns it.
    #[must_use]
    pub fn claim_object(&self, name: &str) -> Option<Value> {
        let claim = self.claims.get(name).filter(|claim| claim.is_readable)?;
        let (mut results, mut config) = (Vec::new(), Vec::new());
        for (number, given) in claim.results.iter().enumerate() {
            let request = format!("request-{number}");
            if given.is_configured() {
                let parameters = json!({"cpuConfig": {"cpuset": given.cpus.to_string()}});
                let opaque = json!({"driver": given.driver, "parameters": parameters});
                config.push(json!({"source": "FromClaim", "requests": [request], "opaque": opaque}));
            }
            results.push(given.object(&request));
        }
        let allocation = json!({"devices": {"results": results, "config": config}});
        Some(json!({"metadata": {"name": name, "uid": uid(name)}, "status": {"allocation": allocation}}))
    }

    /// The CDI files, if the agent reads them.
    #[must_use]
    pub fn cdi_files(&self) -> Vec<Value> {
        let prepared = self.claims.iter().filter(|(_, claim)| self.has_cdi && claim.is_prepared);
        let files = prepared.flat_map(|(name, claim)| {
            let (uid, mut cpus, mut memory) = (uid(name), None, Vec::new());
            for given in &claim.results {
                if given.driver == CPU_DRIVER {
                    cpus.get_or_insert_with(IdSet::new).union_with(&given.cpus);
                }
                if let (Kind::Memory(resource, position), Some(bytes)) = (&given.device.kind, given.amount) {
                    let kind = kind_name(resource);
                    memory.push(format!("DRAMEMORY_{uid}_{kind}=numanode:{position},size:{bytes}"));
                }
            }
            let cpus = cpus.map(|cpus| vec![format!("DRA_CPUSET_{uid}={cpus}")]);
            let file = |kind: &str, env: Vec<String>| {
                let device = json!({"name": format!("claim-{uid}"), "containerEdits": {"env": env}});
                json!({"cdiVersion": "0.8.0", "kind": kind, "devices": [device]})
            };
            let cpus = cpus.map(|env| file("dra.k8s.io/cpu", env));
            cpus.into_iter().chain((!memory.is_empty()).then(|| file("dra.k8s.io/memory", memory)))
        });
        files.collect()
    }

    /// The time since the drivers started.
    #[must_use]
    pub const fn now(&self) -> Duration {
        self.now
    }
}

/// The PCI address of the devices on a NUMA node.
#[must_use]
pub fn pci_address(node: Id) -> String {
    format!("{node:04x}:3b:00.0")
}

fn uid(claim: &str) -> String {
    format!("uid-of-{claim}")
}

/// `hugepages-2Mi` is `hugepages_2m`.
fn kind_name(resource: &str) -> String {
    resource.to_lowercase().trim_end_matches('i').replace('-', "_")
}

fn counters() -> Value {
    let set = |card: usize| json!({"name": format!("card-{card}"), "counters": {"slices": {"value": WHOLE.to_string()}}});
    json!([set(0), set(1)])
}

impl Device {
    fn object(&self, driver: &str, is_beta: bool) -> Value {
        let effect = if self.is_tainted { "NoSchedule" } else { "None" };
        let mut fields = json!({"attributes": self.attributes(), "taints": [{"key": "k", "effect": effect}]});
        if let Some(name) = self.capacity_name() {
            fields["allowMultipleAllocations"] = json!(true);
            fields["capacity"] = json!({name: {"value": self.capacity.to_string()}});
        }
        if let Some((card, amount)) = &self.part {
            let counters = json!({"slices": {"value": amount.to_string()}});
            fields["consumesCounters"] = json!([{"counterSet": card, "counters": counters}]);
        }
        if driver == CPU_DRIVER && self.publishes == Publishes::Own {
            fields["attributes"] = json!({"dra.cpu/numaNodeID": {"int": self.node}});
        }
        if is_beta {
            return json!({"name": self.name, "basic": fields});
        }
        fields["name"] = json!(self.name);
        fields
    }

    fn attributes(&self) -> Value {
        match (&self.kind, self.publishes) {
            (Kind::Cpu(cpu), _) => json!({"dra.cpu/cpuID": {"int": cpu}}),
            (Kind::Cpus { socket: Some(socket), .. }, _) => json!({"dra.cpu/socketID": {"int": socket}}),
            (Kind::Memory(resource, position), _) => json!({
                "resource.kubernetes.io/numaNode": {"int": position},
                "resource.kubernetes.io/pageSize":
                    {"string": kind_name(resource).rsplit_once('_').map_or("4k", |(_, size)| size)},
            }),
            (_, Publishes::Standard) => json!({"resource.kubernetes.io/numaNode": {"int": self.node}}),
            // A neighbour follows.
            (_, Publishes::List) => json!({"resource.kubernetes.io/numaNode": {"ints": [self.node, 0, 1]}}),
            (_, Publishes::Dranet) => json!({"dra.net/numaNode": {"int": self.node}}),
            (_, Publishes::Own) => json!({"numa": {"int": self.node}}),
            (_, Publishes::Pci) => json!({
                "dra.net/numaNode": {"int": -1},
                "resource.kubernetes.io/pciBusID": {"string": pci_address(self.node)},
            }),
            (_, Publishes::Nothing) => json!({}),
        }
    }

    fn capacity_name(&self) -> Option<&'static str> {
        match self.kind {
            _ if self.capacity == 0 => None,
            Kind::Memory(..) => Some("size"),
            Kind::Cpus { .. } => Some("dra.cpu/cpu"),
            _ => Some("memory"),
        }
    }
}

impl Given {
    fn object(&self, request: &str) -> Value {
        let mut result =
            json!({"request": request, "driver": self.driver, "pool": POOL, "device": self.device.name});
        if self.is_admin {
            result["adminAccess"] = json!(true);
        }
        if let (Some(name), Some(amount), Some(share)) =
            (self.device.capacity_name(), self.amount, &self.share)
        {
            result["shareID"] = json!(share);
            result["consumedCapacity"] = json!({name: amount.to_string()});
        }
        result
    }
}
