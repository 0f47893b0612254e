//! Pods as a test describes them: `pod("a").cpus(2).memory("1Gi").device("example.com/nic", 1)`.

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Map, Value, json};

/// A pod of one container, `main`, unless more are named. The methods for resources speak of the container
/// that was named last.
///
/// What is asked for is limit and request alike: a pod whose containers have CPUs and memory is Guaranteed,
/// one that asks for nothing BestEffort. [`PodSpec::burstable`] leaves the limits off.
#[derive(Clone, Debug)]
pub(crate) struct PodSpec {
    name: String,
    burstable: bool,
    annotations: Map<String, Value>,
    finalizers: Vec<String>,
    /// Every container's, where it is not what its kind runs.
    image: Option<String>,
    /// What it asks for as a whole.
    whole: Map<String, Value>,
    containers: Vec<Container>,
}

#[derive(Clone, Debug)]
struct Container {
    name: String,
    kind: Kind,
    resources: Map<String, Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    App,
    Init,
    Sidecar,
}

/// One line: the pod, and what each container asks for.
impl std::fmt::Display for PodSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "pod {}{}", self.name, if self.burstable { " (burstable)" } else { "" })?;
        for Container { name, kind, resources } in &self.containers {
            write!(f, ", {kind:?} {name}")?;
            for (resource, quantity) in resources {
                write!(f, " {}={}", resource, quantity.as_str().unwrap_or_default())?;
            }
        }
        Ok(())
    }
}

/// A pod that asks for nothing yet.
pub(crate) fn pod(name: &str) -> PodSpec {
    let main = Container { name: "main".to_owned(), kind: Kind::App, resources: Map::new() };
    PodSpec {
        name: name.to_owned(),
        burstable: false,
        annotations: Map::new(),
        finalizers: Vec::new(),
        image: None,
        whole: Map::new(),
        containers: vec![main],
    }
}

#[allow(dead_code, reason = "a vocabulary: not every word is in use at all times")]
impl PodSpec {
    /// The pod's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether a container asks for devices.
    pub(crate) fn has_devices(&self) -> bool {
        self.containers.iter().any(|container| container.resources.keys().any(|name| name.contains('/')))
    }

    /// Whether a container ends before the others start.
    pub(crate) fn has_init(&self) -> bool {
        self.containers.iter().any(|container| container.kind == Kind::Init)
    }

    /// Whole CPUs: exclusive ones when the pod is Guaranteed.
    pub(crate) fn cpus(self, count: u32) -> Self {
        self.asks("cpu", count.to_string())
    }

    /// Thousandths of a CPU: a share of the CPUs that nobody has to himself.
    pub(crate) fn millicpus(self, count: u32) -> Self {
        self.asks("cpu", format!("{count}m"))
    }

    /// CPU, as somebody may write it: `5e-1`.
    pub(crate) fn cpu(self, quantity: &str) -> Self {
        self.asks("cpu", quantity)
    }

    /// Memory, such as `1Gi`.
    pub(crate) fn memory(self, quantity: &str) -> Self {
        self.asks("memory", quantity)
    }

    /// Huge pages of one size: `hugepages("2Mi", "64Mi")`.
    pub(crate) fn hugepages(self, size: &str, quantity: &str) -> Self {
        self.asks(&format!("hugepages-{size}"), quantity)
    }

    /// Devices of a plugin.
    pub(crate) fn device(self, resource: &str, count: u32) -> Self {
        self.asks(resource, count.to_string())
    }

    /// Whole CPUs and memory of the pod itself, which its containers have together.
    pub(crate) fn together(mut self, cpus: u32, memory: &str) -> Self {
        self.whole.insert("cpu".to_owned(), json!(cpus.to_string()));
        self.whole.insert("memory".to_owned(), json!(memory));
        self
    }

    /// Requests without limits, of CPUs and memory.
    pub(crate) fn burstable(mut self) -> Self {
        self.burstable = true;
        self
    }

    /// An annotation.
    pub(crate) fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), json!(value));
        self
    }

    /// A finalizer: the object stays when the pod is deleted, until it is taken off.
    pub(crate) fn finalizer(mut self, name: &str) -> Self {
        self.finalizers.push(name.to_owned());
        self
    }

    /// Names an image that the node does not have and never pulls: the pod is admitted, and stays Pending.
    pub(crate) fn unpullable(mut self) -> Self {
        self.image = Some("absent:latest".to_owned());
        self
    }

    /// Another container.
    pub(crate) fn container(self, name: &str) -> Self {
        self.and(name, Kind::App)
    }

    /// A container that ends by itself, before the others start.
    pub(crate) fn init(self, name: &str) -> Self {
        self.and(name, Kind::Init)
    }

    /// An init container that goes on running beside the others.
    pub(crate) fn sidecar(self, name: &str) -> Self {
        self.and(name, Kind::Sidecar)
    }

    fn and(mut self, name: &str, kind: Kind) -> Self {
        self.containers.push(Container { name: name.to_owned(), kind, resources: Map::new() });
        self
    }

    fn asks(mut self, resource: &str, quantity: impl Into<String>) -> Self {
        if let Some(container) = self.containers.last_mut() {
            container.resources.insert(resource.to_owned(), Value::String(quantity.into()));
        }
        self
    }

    /// The object, bound to a node.
    pub(crate) fn bound_to(&self, node: &str) -> Result<Pod> {
        self.object(json!({ "nodeName": node }))
    }

    /// The object, for a scheduler to bind.
    pub(crate) fn scheduled_by(&self, scheduler: &str) -> Result<Pod> {
        self.object(json!({ "schedulerName": scheduler }))
    }

    /// The object, with more in its specification.
    fn object(&self, more: Value) -> Result<Pod> {
        let (apps, inits): (Vec<&Container>, Vec<&Container>) =
            self.containers.iter().partition(|container| container.kind == Kind::App);
        let all = |containers: Vec<&Container>| -> Vec<Value> {
            containers.into_iter().map(|container| self.to_json(container)).collect()
        };
        let mut object = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": self.name,
                "namespace": "default",
                "annotations": self.annotations,
                "finalizers": self.finalizers,
            },
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "enableServiceLinks": false,
                "tolerations": [{ "operator": "Exists" }],
                "initContainers": all(inits),
                "containers": all(apps),
            },
        });
        if !self.whole.is_empty() {
            object["spec"]["resources"] = json!({ "requests": self.whole, "limits": self.whole });
        }
        for (key, value) in more.as_object().into_iter().flatten() {
            object["spec"][key] = value.clone();
        }
        Ok(serde_json::from_value(object)?)
    }

    /// What the container that was named last asks for, as its spec says it.
    pub(crate) fn resources(&self) -> Value {
        self.containers.last().map(|container| self.resources_of(container)).unwrap_or_default()
    }

    fn resources_of(&self, container: &Container) -> Value {
        // A burstable pod still needs the limit of everything that cannot be overcommitted.
        let limited = |name: &str| !(self.burstable && ["cpu", "memory"].contains(&name));
        let resources = &container.resources;
        let limits: Map<String, Value> =
            resources.iter().filter(|(name, _)| limited(name)).map(|(k, v)| (k.clone(), v.clone())).collect();
        json!({ "requests": resources, "limits": limits })
    }

    fn to_json(&self, container: &Container) -> Value {
        let runs = if container.kind == Kind::Init { "true:latest" } else { "pause:latest" };
        let mut value = json!({
            "name": container.name,
            "image": self.image.as_deref().unwrap_or(runs),
            "imagePullPolicy": if self.image.is_some() { "Never" } else { "IfNotPresent" },
            "resources": self.resources_of(container),
        });
        if container.kind == Kind::Sidecar {
            value["restartPolicy"] = json!("Always");
        }
        value
    }
}
