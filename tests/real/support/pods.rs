//! Pod specs for tests: `pod("a").cpus(2).memory("1Gi").device("example.com/nic", 1)`.

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Map, Value, json};

/// A pod with one container, `main`, unless more are added. Methods for resources apply to the container that
/// was added last.
///
/// Quantities are both limit and request: a pod whose containers have CPUs and memory is Guaranteed, one
/// without resources is BestEffort. [`PodSpec::burstable`] omits the limits.
#[derive(Clone, Debug)]
pub(crate) struct PodSpec {
    name: String,
    burstable: bool,
    annotations: Map<String, Value>,
    finalizers: Vec<String>,
    /// The image of every container; by default it depends on the container's kind.
    image: Option<String>,
    /// Pod-level resources.
    whole: Map<String, Value>,
    claims: Vec<PodClaim>,
    containers: Vec<Container>,
}

#[derive(Clone, Debug)]
struct Container {
    name: String,
    kind: Kind,
    resources: Map<String, Value>,
    /// References to the pod's claims.
    claims: Vec<Value>,
}

/// How a pod comes to a ResourceClaim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PodClaim {
    /// The pod names it.
    Named(String),
    /// A controller makes it from a template with this name in the pod.
    FromTemplate(String),
    /// The scheduler makes it for an extended resource that a container requests.
    Extended { name: String, container: String, resource: String },
}

impl PodClaim {
    /// Returns its name, or for a claim of the pod's own the part after the pod's name.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Named(name) | Self::FromTemplate(name) | Self::Extended { name, .. } => name,
        }
    }

    /// Returns its entry in the pod's spec.
    fn to_json(&self) -> Option<Value> {
        match self {
            Self::Named(name) => Some(json!({ "name": name, "resourceClaimName": name })),
            Self::FromTemplate(name) => Some(json!({ "name": name, "resourceClaimTemplateName": name })),
            Self::Extended { .. } => None,
        }
    }
}

impl Container {
    fn new(name: &str, kind: Kind) -> Self {
        Self { name: name.to_owned(), kind, resources: Map::new(), claims: Vec::new() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    App,
    Init,
    Sidecar,
}

/// One line: the pod, and each container's requests.
impl std::fmt::Display for PodSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "pod {}{}", self.name, if self.burstable { " (burstable)" } else { "" })?;
        for Container { name, kind, resources, claims } in &self.containers {
            write!(f, ", {kind:?} {name}")?;
            for (resource, quantity) in resources {
                write!(f, " {}={}", resource, quantity.as_str().unwrap_or_default())?;
            }
            for claim in claims {
                write!(f, " claim={}", claim["name"].as_str().unwrap_or_default())?;
            }
        }
        Ok(())
    }
}

/// Returns a pod without requests.
pub(crate) fn pod(name: &str) -> PodSpec {
    let main = Container::new("main", Kind::App);
    PodSpec {
        name: name.to_owned(),
        burstable: false,
        annotations: Map::new(),
        finalizers: Vec::new(),
        image: None,
        whole: Map::new(),
        claims: Vec::new(),
        containers: vec![main],
    }
}

#[allow(dead_code, reason = "not every test program uses everything")]
impl PodSpec {
    /// Returns the pod's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether a container requests devices.
    pub(crate) fn has_devices(&self) -> bool {
        self.containers.iter().any(|container| container.resources.keys().any(|name| name.contains('/')))
    }

    /// Returns whether a container ends before the others start.
    pub(crate) fn has_init(&self) -> bool {
        self.containers.iter().any(|container| container.kind == Kind::Init)
    }

    /// Requests whole CPUs: exclusive ones if the pod is Guaranteed.
    pub(crate) fn cpus(self, count: u32) -> Self {
        self.request("cpu", count.to_string())
    }

    /// Requests millicores, from the shared pool.
    pub(crate) fn millicpus(self, count: u32) -> Self {
        self.request("cpu", format!("{count}m"))
    }

    /// Requests CPU as any quantity: `5e-1`.
    pub(crate) fn cpu(self, quantity: &str) -> Self {
        self.request("cpu", quantity)
    }

    /// Requests memory, such as `1Gi`.
    pub(crate) fn memory(self, quantity: &str) -> Self {
        self.request("memory", quantity)
    }

    /// Requests huge pages of one size: `hugepages("2Mi", "64Mi")`.
    pub(crate) fn hugepages(self, size: &str, quantity: &str) -> Self {
        self.request(&format!("hugepages-{size}"), quantity)
    }

    /// Requests devices of a plugin.
    pub(crate) fn device(self, resource: &str, count: u32) -> Self {
        self.request(resource, count.to_string())
    }

    /// Gives the container every device of a ResourceClaim.
    pub(crate) fn claim(self, name: &str) -> Self {
        self.refer_to(PodClaim::Named(name.to_owned()), json!({ "name": name }))
    }

    /// Gives the container the devices of one request of a ResourceClaim.
    pub(crate) fn claim_request(self, name: &str, request: &str) -> Self {
        self.refer_to(PodClaim::Named(name.to_owned()), json!({ "name": name, "request": request }))
    }

    /// Names a ResourceClaim that no container refers to.
    pub(crate) fn unused_claim(self, name: &str) -> Self {
        self.with(PodClaim::Named(name.to_owned()))
    }

    /// Gives the container every device of a ResourceClaim that is made for the pod from a template.
    pub(crate) fn template_claim(self, name: &str) -> Self {
        self.refer_to(PodClaim::FromTemplate(name.to_owned()), json!({ "name": name }))
    }

    /// Requests an extended resource whose devices are those of a ResourceClaim that is made for it.
    pub(crate) fn extended_claim(self, name: &str, resource: &str, count: u32) -> Self {
        let container = self.containers.last().map(|container| container.name.clone()).unwrap_or_default();
        let claim = PodClaim::Extended { name: name.to_owned(), container, resource: resource.to_owned() };
        self.with(claim).device(resource, count)
    }

    /// Returns its ResourceClaims.
    pub(crate) fn claims(&self) -> &[PodClaim] {
        &self.claims
    }

    fn refer_to(mut self, claim: PodClaim, reference: Value) -> Self {
        if let Some(container) = self.containers.last_mut() {
            container.claims.push(reference);
        }
        self.with(claim)
    }

    fn with(mut self, claim: PodClaim) -> Self {
        if !self.claims.contains(&claim) {
            self.claims.push(claim);
        }
        self
    }

    /// Sets pod-level whole CPUs and memory, which its containers share.
    pub(crate) fn pod_level_resources(mut self, cpus: u32, memory: &str) -> Self {
        self.whole.insert("cpu".to_owned(), json!(cpus.to_string()));
        self.whole.insert("memory".to_owned(), json!(memory));
        self
    }

    /// Omits the limits of CPUs and memory.
    pub(crate) fn burstable(mut self) -> Self {
        self.burstable = true;
        self
    }

    /// Adds an annotation.
    pub(crate) fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), json!(value));
        self
    }

    /// Adds a finalizer: a deleted pod's object remains until it is removed.
    pub(crate) fn finalizer(mut self, name: &str) -> Self {
        self.finalizers.push(name.to_owned());
        self
    }

    /// Uses an image that the node does not have and never pulls: the pod is admitted, and stays Pending.
    pub(crate) fn unpullable(mut self) -> Self {
        self.image = Some("absent:latest".to_owned());
        self
    }

    /// Adds a container.
    pub(crate) fn container(self, name: &str) -> Self {
        self.and(name, Kind::App)
    }

    /// Adds an init container that ends before the others start.
    pub(crate) fn init(self, name: &str) -> Self {
        self.and(name, Kind::Init)
    }

    /// Adds a sidecar: an init container that keeps running beside the others.
    pub(crate) fn sidecar(self, name: &str) -> Self {
        self.and(name, Kind::Sidecar)
    }

    fn and(mut self, name: &str, kind: Kind) -> Self {
        self.containers.push(Container::new(name, kind));
        self
    }

    fn request(mut self, resource: &str, quantity: impl Into<String>) -> Self {
        if let Some(container) = self.containers.last_mut() {
            container.resources.insert(resource.to_owned(), Value::String(quantity.into()));
        }
        self
    }

    /// Returns the object, bound to a node.
    pub(crate) fn bound_to(&self, node: &str) -> Result<Pod> {
        self.object(json!({ "nodeName": node }))
    }

    /// Returns the object, to be bound by a scheduler.
    pub(crate) fn scheduled_by(&self, scheduler: &str) -> Result<Pod> {
        self.object(json!({ "schedulerName": scheduler }))
    }

    /// Returns the object, with `more` merged into its spec.
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
        let claims: Vec<Value> = self.claims.iter().filter_map(PodClaim::to_json).collect();
        if !claims.is_empty() {
            object["spec"]["resourceClaims"] = claims.into();
        }
        for (key, value) in more.as_object().into_iter().flatten() {
            object["spec"][key] = value.clone();
        }
        Ok(serde_json::from_value(object)?)
    }

    /// Returns the resources of the container that was added last, as in its spec.
    pub(crate) fn resources(&self) -> Value {
        self.containers.last().map(|container| self.resources_of(container)).unwrap_or_default()
    }

    fn resources_of(&self, container: &Container) -> Value {
        // A burstable pod still needs the limit of everything that cannot be overcommitted.
        let limited = |name: &str| !(self.burstable && ["cpu", "memory"].contains(&name));
        let resources = &container.resources;
        let limits: Map<String, Value> =
            resources.iter().filter(|(name, _)| limited(name)).map(|(k, v)| (k.clone(), v.clone())).collect();
        let mut value = json!({ "requests": resources, "limits": limits });
        if !container.claims.is_empty() {
            value["claims"] = json!(container.claims);
        }
        value
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
