//! Pod specifications for the simulation.

use std::collections::{BTreeMap, BTreeSet};

use numacast_core::machine::IdSet;
use serde_json::{Value, json};

/// A pod for the simulated kubelet, which can be turned into an object for the simulated API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSpec {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's uid, unique among all pods.
    pub uid: String,
    /// QoS class Guaranteed: limits equal requests, so that CPUs and memory can be exclusive.
    pub guaranteed: bool,
    /// Init containers, sidecars and app containers in specification order.
    pub containers: Vec<ContainerSpec>,
    /// Places everything on exactly these NUMA nodes or rejects the pod, for tests that need a certain group
    /// of nodes.
    pub affinity: Option<IdSet>,
    /// Pod-level resources (`spec.resources`).
    pub pod_level: Option<PodLevel>,
}

/// Pod-level resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodLevel {
    /// Millicores.
    pub milli_cpu: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// `hugepages-<size>` to bytes.
    pub hugepages: BTreeMap<String, u64>,
}

/// When a container runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// After all init containers have ended or, for sidecars, started.
    #[default]
    App,
    /// A restartable init container that keeps running beside the others (kubelet 1.29 and later).
    Sidecar,
    /// A regular init container, which terminates before the next one starts. Never in the List.
    Init,
}

/// A device allocated to a container by a resource claim (dynamic resource allocation).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimedDevice {
    /// The claim's name; its namespace is the pod's.
    pub claim: String,
    /// The driver: `gpu.example.com`.
    pub driver: String,
    /// The driver's pool.
    pub pool: String,
    /// The device in the pool; empty if the drivers of the claim return none.
    pub device: String,
    /// The share id of a shared device.
    pub share: Option<String>,
}

/// One container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerSpec {
    /// The container's name.
    pub name: String,
    /// When it runs.
    pub role: Role,
    /// Requested millicores.
    pub milli_cpu: u64,
    /// Requested bytes of memory.
    pub memory: u64,
    /// `hugepages-<size>` to bytes.
    pub hugepages: BTreeMap<String, u64>,
    /// Extended resource to the number of devices.
    pub devices: BTreeMap<String, u64>,
    /// Devices allocated by resource claims.
    pub claims: Vec<ClaimedDevice>,
}

impl PodSpec {
    /// A pod in the namespace `default` with one container without requests.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            namespace: "default".into(),
            name: name.into(),
            uid: format!("uid-{name}"),
            containers: vec![ContainerSpec { name: "main".into(), ..ContainerSpec::default() }],
            ..Self::default()
        }
    }

    /// A Guaranteed pod with one container that requests whole CPUs and bytes of memory.
    #[must_use]
    pub fn guaranteed(name: &str, cpus: u64, memory: u64) -> Self {
        let mut pod = Self { guaranteed: true, ..Self::new(name) };
        pod.containers[0].milli_cpu = cpus * 1000;
        pod.containers[0].memory = memory;
        pod
    }

    /// Adds huge pages to the last container: `hugepages("hugepages-2Mi", 64 << 20)`.
    #[must_use]
    pub fn hugepages(mut self, resource: &str, bytes: u64) -> Self {
        if let Some(container) = self.containers.last_mut() {
            container.hugepages.insert(resource.into(), bytes);
        }
        self
    }

    /// Adds devices to the last container.
    #[must_use]
    pub fn devices(mut self, resource: &str, count: u64) -> Self {
        if let Some(container) = self.containers.last_mut() {
            container.devices.insert(resource.into(), count);
        }
        self
    }

    /// The containers in the kubelet's allocation order: init containers and sidecars first.
    pub fn in_order(&self) -> impl Iterator<Item = &ContainerSpec> {
        let of_kind = |first: bool| self.containers.iter().filter(move |of| (of.role != Role::App) == first);
        of_kind(true).chain(of_kind(false))
    }

    /// Places the pod on exactly these NUMA nodes.
    #[must_use]
    pub fn on(mut self, nodes: impl IntoIterator<Item = numacast_core::machine::Id>) -> Self {
        self.affinity = Some(nodes.into_iter().collect());
        self
    }

    /// The pod as an object of the API server, bound to `node`.
    #[must_use]
    pub fn object(&self, node: &str, phase: &str) -> Value {
        let of_kind = |init: bool| -> Vec<Value> {
            let containers = self.containers.iter().filter(|container| (container.role != Role::App) == init);
            containers.map(|container| self.container_object(container)).collect()
        };
        let mut object = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": self.namespace, "name": self.name, "uid": self.uid},
            "spec": {"nodeName": node, "initContainers": of_kind(true), "containers": of_kind(false)},
            "status": {"phase": phase, "qosClass": self.qos_class()},
        });
        let claims: BTreeSet<&str> =
            self.containers.iter().flat_map(|of| &of.claims).map(|of| &*of.claim).collect();
        if !claims.is_empty() {
            let claims = claims.into_iter().map(|name| json!({"name": name, "resourceClaimName": name}));
            object["spec"]["resourceClaims"] = claims.collect();
        }
        if let Some(of_pod) = &self.pod_level {
            let requests = requests(of_pod.milli_cpu, of_pod.memory, &of_pod.hugepages);
            let limits = if self.guaranteed { requests.clone() } else { serde_json::Map::new() };
            object["spec"]["resources"] = json!({"requests": requests, "limits": limits});
        }
        object
    }

    fn qos_class(&self) -> &'static str {
        let has_requests = |container: &ContainerSpec| container.milli_cpu > 0 || container.memory > 0;
        match self.guaranteed {
            true => "Guaranteed",
            false if self.containers.iter().any(has_requests) => "Burstable",
            false => "BestEffort",
        }
    }

    fn container_object(&self, container: &ContainerSpec) -> Value {
        let mut requests = requests(container.milli_cpu, container.memory, &BTreeMap::new());
        let mut limits = serde_json::Map::new();
        for (resource, amount) in container.hugepages.iter().chain(&container.devices) {
            limits.insert(resource.clone(), json!(amount.to_string()));
        }
        // Huge pages and devices cannot be over-committed: their limits equal their requests for every pod.
        requests.extend(limits.clone());
        if self.guaranteed {
            limits.clone_from(&requests);
        }
        let mut object = json!({
            "name": container.name,
            "image": "registry.k8s.io/pause:3.10",
            "resources": {"requests": requests, "limits": limits},
        });
        if container.role == Role::Sidecar {
            object["restartPolicy"] = json!("Always");
        }
        object
    }
}

fn requests(
    milli_cpu: u64,
    memory: u64,
    hugepages: &BTreeMap<String, u64>,
) -> serde_json::Map<String, Value> {
    let mut requests = serde_json::Map::new();
    if milli_cpu > 0 {
        requests.insert("cpu".into(), json!(cpu_quantity(milli_cpu)));
    }
    if memory > 0 {
        requests.insert("memory".into(), json!(memory.to_string()));
    }
    requests.extend(hugepages.iter().map(|(size, bytes)| (size.clone(), json!(bytes.to_string()))));
    requests
}

fn cpu_quantity(milli: u64) -> String {
    if milli.is_multiple_of(1000) { (milli / 1000).to_string() } else { format!("{milli}m") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guaranteed_pod_has_limits_equal_to_its_requests() {
        let pod =
            PodSpec::guaranteed("db", 4, 1 << 30).hugepages("hugepages-2Mi", 2 << 20).devices("a.b/c", 1);
        let object = pod.object("worker", "Running");
        let resources = &object["spec"]["containers"][0]["resources"];
        assert_eq!(resources["limits"], resources["requests"]);
        assert_eq!(
            resources["requests"],
            json!({"cpu": "4", "memory": "1073741824", "hugepages-2Mi": "2097152", "a.b/c": "1"})
        );
        assert_eq!(object["status"]["qosClass"], "Guaranteed");
    }

    #[test]
    fn sidecars_are_init_containers_that_restart() {
        let mut pod = PodSpec::new("web");
        pod.containers.insert(
            0,
            ContainerSpec {
                name: "mesh".into(),
                role: Role::Sidecar,
                milli_cpu: 1500,
                ..ContainerSpec::default()
            },
        );
        let object = pod.object("worker", "Pending");
        assert_eq!(object["spec"]["initContainers"][0]["restartPolicy"], "Always");
        assert_eq!(object["spec"]["initContainers"][0]["resources"]["requests"]["cpu"], "1500m");
        assert_eq!(object["spec"]["containers"][0]["name"], "main");
        assert_eq!(object["status"]["qosClass"], "Burstable");
    }
}
