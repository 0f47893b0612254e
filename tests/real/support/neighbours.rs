//! Stand-ins for other programs that write the objects of Nodes. Each reads and writes as its source does: the same
//! requests, the same version, the fields that its Go types have, and its user agent, from which the API server takes
//! the field manager.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use http::header::{CONTENT_TYPE, HeaderValue, USER_AGENT};
use http::{Method, Request};
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::{Map, Value, json};

const GROUP: &str = "topology.node.k8s.io";
const JSON: &str = "application/json";
/// How often koordlet repeats a write after a conflict.
const RETRIES: usize = 5;
/// RTE writes the whole object after this many patches (`--patch-resync`).
const PATCH_RESYNC: u32 = 10;

/// A program, and the way in which it writes if it has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// koordinator a7a1b76, `pkg/koordlet/statesinformer/impl/states_noderesourcetopology.go`.
    Koordlet,
    /// koordinator a7a1b76, `pkg/slo-controller/noderesource/plugins/batchresource/plugin.go`.
    KoordManager,
    /// nri-plugins 0705acc, `pkg/agent/node-resource-topology.go`, with the zones of its policy topology-aware.
    TopologyAware,
    /// The same with those of balloons.
    Balloons,
    /// node-feature-discovery 76e6cc8cc, `pkg/nfd-topology-updater`.
    NfdApply,
    /// The same to v0.19.0.
    NfdUpdate,
    /// resource-topology-exporter ef567ef3, `pkg/nrtupdater`.
    RtePatch,
    /// The same with `--patch-mode=false`.
    RteUpdate,
}

impl Kind {
    /// Returns its user agent. Those without a version set it themselves.
    pub(crate) fn user_agent(self) -> &'static str {
        match self {
            Self::Koordlet => "koordlet",
            Self::KoordManager => "koordinator-manager",
            Self::TopologyAware => {
                "nri-resource-policy-topology-aware/v0.14.0 (linux/amd64) kubernetes/$Format"
            }
            Self::Balloons => "nri-resource-policy-balloons/v0.14.0 (linux/amd64) kubernetes/$Format",
            Self::NfdApply | Self::NfdUpdate => {
                "nfd-topology-updater/v0.0.0 (linux/amd64) kubernetes/$Format"
            }
            Self::RtePatch | Self::RteUpdate => {
                "resource-topology-exporter/v0.0.0 (linux/amd64) kubernetes/$Format"
            }
        }
    }

    /// Returns what its users know it by, in metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Koordlet => "koordlet",
            Self::KoordManager => "koord-manager",
            Self::TopologyAware | Self::Balloons => "nri-plugins",
            Self::NfdApply | Self::NfdUpdate => "nfd",
            Self::RtePatch | Self::RteUpdate => "rte",
        }
    }

    /// Returns what an order to its operator has to name.
    pub(crate) fn switch(self) -> &'static str {
        match self {
            Self::Koordlet => "`NodeTopologyReport=false`",
            Self::KoordManager => "`enable: false` for these nodes in `colocation-config`",
            Self::TopologyAware | Self::Balloons => "`config.agent.nodeResourceTopology: false`",
            Self::NfdApply | Self::NfdUpdate => "`topologyUpdater.enable: false`",
            Self::RtePatch | Self::RteUpdate => "delete its DaemonSet",
        }
    }
}

/// What a look led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Nothing,
    Wrote,
    /// The API server rejected the write.
    Rejected(String),
}

/// An error response.
#[derive(Debug)]
struct Status {
    code: u16,
    message: String,
}

type Response = Result<Result<Value, Status>>;

/// A running program.
pub(crate) struct Neighbour {
    kind: Kind,
    node: String,
    client: Client,
    /// Counts what happened to the containers of the node: its own state.
    events: u32,
    /// Whether its switch lets it write.
    is_on: bool,
    /// koordlet's informer.
    cache: Option<Value>,
    /// RTE's last response, and how many patches it has sent since the last whole object.
    previous: Option<Value>,
    patches: u32,
    namespace: Value,
    owner: Value,
}

impl Neighbour {
    pub(crate) async fn start(kind: Kind, node: &str, kubeconfig: &Path) -> Result<Self> {
        Self::start_as(kind, kind.user_agent(), node, kubeconfig).await
    }

    /// Starts a program that was built under another name.
    pub(crate) async fn start_as(
        kind: Kind,
        user_agent: &str,
        node: &str,
        kubeconfig: &Path,
    ) -> Result<Self> {
        let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.headers.push((USER_AGENT, HeaderValue::from_str(user_agent)?));
        let client = Client::try_from(config)?;
        let namespace = Api::<Namespace>::all(client.clone()).get("default").await?.metadata;
        let uid = Api::<Node>::all(client.clone()).get(node).await?.metadata.uid;
        let reference = |kind: &str, name: &str, uid: Option<String>| json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": uid});
        Ok(Self {
            kind,
            node: node.to_owned(),
            client,
            events: 0,
            is_on: true,
            cache: None,
            previous: None,
            patches: 0,
            namespace: reference("Namespace", "default", namespace.uid),
            owner: reference("Node", node, uid),
        })
    }

    /// Does what doctor says.
    pub(crate) fn switch_off(&mut self) {
        self.is_on = false;
    }

    /// Something happens to the containers of the node.
    pub(crate) fn event(&mut self) {
        self.events += 1;
    }

    /// Looks once, with what it knows by now: it reads what it reads, and writes if it would.
    pub(crate) async fn look(&mut self) -> Result<Look> {
        if !self.is_on {
            return Ok(Look::Nothing);
        }
        match self.kind {
            Kind::Koordlet => {
                self.cache = self.read("v1alpha1").await?;
                self.koordlet().await
            }
            Kind::KoordManager => self.koord_manager().await,
            Kind::TopologyAware | Kind::Balloons => self.nri_plugins().await,
            Kind::NfdApply => self.nfd_apply().await,
            Kind::NfdUpdate => self.nfd_update().await,
            Kind::RtePatch => self.rte_patch().await,
            Kind::RteUpdate => self.rte_update().await.map(|(look, _)| look),
        }
    }

    /// Looks until it has written. A conflict with another writer is followed by the next look.
    pub(crate) async fn write(&mut self) -> Result<()> {
        for _ in 0..RETRIES {
            match self.look().await? {
                Look::Wrote => return Ok(()),
                Look::Rejected(message) if message.contains("the object has been modified") => {}
                look => bail!("{:?} does not write: {look:?}", self.kind),
            }
        }
        bail!("{:?} has conflict after conflict", self.kind)
    }

    /// Like [`Neighbour::look`], before koordlet's informer has seen the last writes of others.
    pub(crate) async fn look_late(&mut self) -> Result<Look> {
        match self.kind {
            Kind::Koordlet if self.is_on && self.cache.is_some() => self.koordlet().await,
            _ => self.look().await,
        }
    }

    // ---- koordinator

    async fn koordlet(&mut self) -> Result<Look> {
        let mut wrote = false;
        if self.cache.is_none() {
            let created = json!({
                "apiVersion": format!("{GROUP}/v1alpha1"), "kind": "NodeResourceTopology",
                "metadata": {
                    "name": self.node, "labels": {"app.kubernetes.io/managed-by": "Koordinator"},
                    "ownerReferences": [owned(&self.owner)],
                },
                "topologyPolicies": ["None"], "zones": [],
            });
            wrote = self.create("v1alpha1", &created).await?.is_ok();
            self.cache = self.read("v1alpha1").await?;
        }
        for _ in 0..RETRIES {
            let Some(old) = &self.cache else { return Ok(Look::Nothing) };
            let mut new = typed_v1alpha1(old);
            if !self.koordlet_changes(old)? {
                return Ok(if wrote { Look::Wrote } else { Look::Nothing });
            }
            for (key, value) in self.koordlet_annotations() {
                annotations(&mut new)[key] = value;
            }
            // The Node has no label of which it would copy the value.
            new["topologyPolicies"] = json!(["BestEffortContainerLevel"]);
            new["zones"] = merged(&new["zones"], &self.koordlet_zones())?;
            match self.update("v1alpha1", &new).await? {
                Ok(written) => {
                    self.cache = Some(written);
                    return Ok(Look::Wrote);
                }
                // It reads its cache again, in which the other write is by then.
                Err(status) if status.code == 409 => self.cache = self.read("v1alpha1").await?,
                Err(status) => return Ok(Look::Rejected(status.message)),
            }
        }
        bail!("koordlet has conflict after conflict");
    }

    /// Returns whether the object differs from what koordlet wants.
    fn koordlet_changes(&self, old: &Value) -> Result<bool> {
        let annotations = &old["metadata"]["annotations"];
        let own = self.koordlet_annotations();
        let differs = |(key, value): (&String, &Value)| annotations.get(key) != Some(value);
        if annotations.is_null()
            || old["topologyPolicies"] != json!(["BestEffortContainerLevel"])
            || own.iter().any(differs)
        {
            return Ok(true);
        }
        let (theirs, own) = (list(&old["zones"]), self.koordlet_zones());
        let same_name = |(a, b): (&Value, &Value)| a["name"] == b["name"] && a["type"] == b["type"];
        if theirs.len() != own.len() || !theirs.iter().zip(&own).all(same_name) {
            return Ok(true);
        }
        for (theirs, own) in theirs.iter().zip(&own) {
            for resource in list(&own["resources"]) {
                let found = list(&theirs["resources"]).iter().find(|one| one["name"] == resource["name"]);
                let Some(found) = found else { return Ok(true) };
                if milli(&found["allocatable"])? != milli(&resource["allocatable"])? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn koordlet_annotations(&self) -> Map<String, Value> {
        let pools = |cpus: &str| {
            format!(r#"[{{"socket":0,"node":0,"cpuset":"{cpus}"}},{{"socket":1,"node":1,"cpuset":"8-15"}}]"#)
        };
        let shared = pools(&format!("{}-7", self.events % 4));
        let all = [
            ("node.koordinator.sh/cpu-basic-info", r#"{"cpuModel":"XXX","hyperThreadEnabled":true}"#),
            ("node.koordinator.sh/cpu-topology", r#"{"detail":[{"id":0,"core":0,"socket":0,"node":0}]}"#),
            ("node.koordinator.sh/cpu-shared-pools", &shared),
            ("node.koordinator.sh/be-cpu-shared-pools", &shared),
            ("kubelet.koordinator.sh/cpu-manager-policy", r#"{"policy":"static","reservedCPUs":"0,8"}"#),
            ("node.koordinator.sh/pod-cpu-allocs", "null"),
            ("node.koordinator.sh/reservation", "{}"),
            ("node.koordinator.sh/system-qos-resource", "null"),
        ];
        all.into_iter().map(|(key, value)| (key.to_owned(), json!(value))).collect()
    }

    fn koordlet_zones(&self) -> Vec<Value> {
        let resources =
            [("cpu", "8"), ("hugepages-1Gi", "2Gi"), ("hugepages-2Mi", "1Gi"), ("memory", "13Gi")]
                .map(|(name, amount)| resource(name, [amount; 3]));
        (0..2)
            .map(|id| json!({"name": format!("node-{id}"), "type": "Node", "resources": resources}))
            .collect()
    }

    async fn koord_manager(&mut self) -> Result<Look> {
        let Some(old) = self.read("v1alpha1").await? else { return Ok(Look::Nothing) };
        let mut new = typed_v1alpha1(&old);
        let amounts =
            [("kubernetes.io/batch-cpu", 1000 * (1 + self.events % 4)), ("kubernetes.io/batch-memory", 4096)];
        let is_made = list(&new["zones"])
            .iter()
            .flat_map(|zone| list(&zone["resources"]))
            .any(|resource| resource["name"] == "cpu" || resource["name"] == "memory");
        if !is_made {
            return Ok(Look::Nothing);
        }
        for zone in new["zones"].as_array_mut().into_iter().flatten() {
            let Some(resources) = zone["resources"].as_array_mut() else { continue };
            for (name, amount) in amounts {
                resources.retain(|resource| resource["name"] != name);
                resources.push(resource(name, [&amount.to_string(); 3]));
            }
            resources.sort_by_key(|resource| resource["name"].to_string());
        }
        if new == typed_v1alpha1(&old) {
            return Ok(Look::Nothing);
        }
        // A conflict is followed by the next look.
        written(self.update("v1alpha1", &new).await?)
    }

    // ---- nri-plugins

    async fn nri_plugins(&mut self) -> Result<Look> {
        let (policy, zones) = match self.kind {
            Kind::Balloons => ("balloons", self.balloons()),
            _ => ("topology-aware", self.pools()),
        };
        let mut object = match self.read("v1alpha2").await? {
            Some(object) => typed_v1alpha2(&object),
            None => {
                let attributes = json!([{"name": "TopologyPolicy", "value": policy}]);
                let created = self.with_content(&zones, &attributes);
                return written(self.create("v1alpha2", &created).await?);
            }
        };
        object["attributes"] = json!([{"name": "TopologyPolicy", "value": policy}]);
        object["zones"] = zones;
        written(self.update("v1alpha2", &object).await?)
    }

    /// Returns the pools of the policy topology-aware as zones.
    fn pools(&self) -> Value {
        let free = format!("{}m", 6500 - 250 * (self.events % 8));
        let zone = |name: &str, kind: &str, parent: Option<&str>| {
            let mut zone = json!({
                "name": name, "type": kind,
                "resources": [resource("memory", ["17179869184", "17179869184", "16G"]), resource("cpu", ["8", "8", &free])],
                "attributes": [{"name": "memory set", "value": "0"}, {"name": "shared cpuset", "value": "1-7"},
                               {"name": "reserved cpuset", "value": "0"}],
            });
            if let Some(parent) = parent {
                zone["parent"] = json!(parent);
            }
            zone
        };
        json!([
            zone("root", "virtual node", None),
            zone("socket #0", "socket", Some("root")),
            zone("die #0/0", "die", Some("socket #0")),
            zone("NUMA node #0", "numa node", Some("die #0/0")),
            zone("NUMA node #0/L3 cache #0", "L3 cache", Some("NUMA node #0")),
            zone("socket #1", "socket", Some("root")),
        ])
    }

    /// Returns the balloons as zones, with a container in one.
    fn balloons(&self) -> Value {
        let free = format!("{}m", 12_000 - 500 * (self.events % 8));
        json!([
            {"name": "reserved[0]", "type": "balloon", "resources": [resource("cpu", ["16", "2", "1750m"])],
             "attributes": [{"name": "cpuset", "value": "0,8"}, {"name": "shared cpuset", "value": ""},
                            {"name": "excess cpus", "value": "250m"}]},
            {"name": "default[0]", "type": "balloon", "resources": [resource("cpu", ["16", "14", &free])],
             "attributes": [{"name": "cpuset", "value": "1-4"}, {"name": "shared cpuset", "value": ""},
                            {"name": "excess cpus", "value": "0m"}]},
            {"name": "default/web:main", "type": "allocation for container", "parent": "default[0]",
             "resources": [resource("cpu", ["4", "3500m", "0"])],
             "attributes": [{"name": "cpuset", "value": "1-4"}, {"name": "memory set", "value": "0"}]},
        ])
    }

    // ---- NFD and RTE

    async fn nfd_apply(&mut self) -> Result<Look> {
        let (zones, mut attributes) = self.podresources();
        attributes.push(json!({"name": "nodeTopologyPodsFingerprint", "value": "pfp0v001ef46db3751d8e999"}));
        let applied = json!({
            "apiVersion": format!("{GROUP}/v1alpha2"), "kind": "NodeResourceTopology",
            "metadata": {"name": self.node, "ownerReferences": [self.namespace]},
            "topologyPolicies": ["BestEffortContainerLevel"], "zones": zones, "attributes": attributes,
        });
        let query = "?fieldManager=node-feature-discovery-topology-updater&force=true";
        let path = format!("{}{query}", self.path("v1alpha2"));
        written(self.send(Method::PATCH, &path, "application/apply-patch+yaml", Some(&applied)).await?)
    }

    async fn nfd_update(&mut self) -> Result<Look> {
        let (zones, mut attributes) = self.podresources();
        attributes.push(json!({"name": "nodeTopologyPodsFingerprint", "value": "pfp0v001ef46db3751d8e999"}));
        let Some(old) = self.read("v1alpha2").await? else {
            let mut created = self.with_content(&json!(zones), &json!(attributes));
            created["metadata"]["ownerReferences"] = json!([self.namespace]);
            created["topologyPolicies"] = json!(["BestEffortContainerLevel"]);
            return written(self.create("v1alpha2", &created).await?);
        };
        let mut new = typed_v1alpha2(&old);
        new["zones"] = json!(zones);
        new["metadata"]["ownerReferences"] = json!([self.namespace]);
        new["topologyPolicies"] = json!(["BestEffortContainerLevel"]);
        // Those of others stay.
        let mut all = list(&new["attributes"]).to_vec();
        for attribute in attributes {
            match all.iter_mut().find(|one| one["name"] == attribute["name"]) {
                Some(one) => *one = attribute,
                None => all.push(attribute),
            }
        }
        new["attributes"] = json!(all);
        // It ends after an error, and is started again.
        written(self.update("v1alpha2", &new).await?)
    }

    async fn rte_patch(&mut self) -> Result<Look> {
        if self.patches < PATCH_RESYNC
            && let Some(previous) = self.previous.clone()
        {
            let mut new = previous.clone();
            self.rte_changes(&mut new);
            let mut patch = json!({});
            for field in ["/zones", "/attributes", "/metadata/annotations", "/metadata/ownerReferences"] {
                let value = new.pointer(field).cloned().unwrap_or_default();
                if Some(&value) != previous.pointer(field) {
                    match field.strip_prefix("/metadata/") {
                        Some(name) => patch["metadata"][name] = value,
                        None => patch[&field[1..]] = value,
                    }
                }
            }
            let path = self.path("v1alpha2");
            let patched =
                self.send(Method::PATCH, &path, "application/merge-patch+json", Some(&patch)).await?;
            if let Ok(object) = patched {
                self.patches += 1;
                self.previous = Some(object);
                return Ok(Look::Wrote);
            }
        }
        let (look, object) = self.rte_update().await?;
        if let Some(object) = object {
            (self.previous, self.patches) = (Some(object), 0);
        }
        Ok(look)
    }

    async fn rte_update(&mut self) -> Result<(Look, Option<Value>)> {
        let old = self.read("v1alpha2").await?;
        let mut new = match &old {
            Some(old) => typed_v1alpha2(old),
            None => self.with_content(&json!([]), &json!([])),
        };
        self.rte_changes(&mut new);
        let response = match old {
            Some(_) => self.update("v1alpha2", &new).await?,
            None => self.create("v1alpha2", &new).await?,
        };
        Ok(match response {
            Ok(object) => (Look::Wrote, Some(object)),
            Err(status) => (Look::Rejected(status.message), None),
        })
    }

    fn rte_changes(&self, object: &mut Value) {
        let reason = if self.events.is_multiple_of(2) { "periodic" } else { "reactive" };
        annotations(object)["k8stopoawareschedwg/rte-update"] = json!(reason);
        object["metadata"]["ownerReferences"] = json!([self.owner]);
        let (zones, attributes) = self.podresources();
        object["zones"] = json!(zones);
        object["attributes"] = json!(attributes);
    }

    /// Returns zones and attributes as both make them of the kubelet's responses.
    fn podresources(&self) -> (Vec<Value>, Vec<Value>) {
        let free = (7 - self.events % 4).to_string();
        let zone = |id: usize| {
            json!({
                "name": format!("node-{id}"), "type": "Node",
                "costs": [{"name": "node-0", "value": 10}, {"name": "node-1", "value": 21}],
                "resources": [resource("example.com/nic", ["2"; 3]), resource("cpu", ["8", "7", &free]),
                              resource("memory", ["16Gi"; 3])],
            })
        };
        let attribute = |name: &str, value: &str| json!({"name": name, "value": value});
        let attributes = vec![
            attribute("topologyManagerScope", "container"),
            attribute("topologyManagerPolicy", "best-effort"),
        ];
        (vec![zone(0), zone(1)], attributes)
    }

    // ---- requests

    fn path(&self, version: &str) -> String {
        format!("/apis/{GROUP}/{version}/noderesourcetopologies/{}", self.node)
    }

    fn with_content(&self, zones: &Value, attributes: &Value) -> Value {
        json!({
            "apiVersion": format!("{GROUP}/v1alpha2"), "kind": "NodeResourceTopology",
            "metadata": {"name": self.node}, "zones": zones, "attributes": attributes,
        })
    }

    async fn read(&self, version: &str) -> Result<Option<Value>> {
        match self.send(Method::GET, &self.path(version), JSON, None).await? {
            Ok(object) => Ok(Some(object)),
            Err(status) if status.code == 404 => Ok(None),
            Err(status) => bail!("{status:?}"),
        }
    }

    async fn create(&self, version: &str, object: &Value) -> Response {
        let path = format!("/apis/{GROUP}/{version}/noderesourcetopologies");
        self.send(Method::POST, &path, JSON, Some(object)).await
    }

    async fn update(&self, version: &str, object: &Value) -> Response {
        ensure!(object["metadata"]["resourceVersion"].is_string(), "an update without a version");
        self.send(Method::PUT, &self.path(version), JSON, Some(object)).await
    }

    async fn send(&self, method: Method, path: &str, kind: &str, body: Option<&Value>) -> Response {
        let body = body.map(serde_json::to_vec).transpose()?.unwrap_or_default();
        let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, kind).body(body)?;
        match self.client.request::<Value>(request).await {
            Ok(object) => Ok(Ok(object)),
            Err(kube::Error::Api(status)) => {
                Ok(Err(Status { code: status.code, message: status.message.clone() }))
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn written(response: Result<Value, Status>) -> Result<Look> {
    Ok(match response {
        Ok(_) => Look::Wrote,
        Err(status) => Look::Rejected(status.message),
    })
}

/// Returns what Go's type of v1alpha1 has of an object: no attributes, and policies even if there are none.
fn typed_v1alpha1(object: &Value) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1alpha1"), "kind": "NodeResourceTopology", "metadata": object["metadata"],
        "topologyPolicies": object["topologyPolicies"], "zones": object["zones"],
    })
}

/// Returns what Go's type of v1alpha2 has of an object.
fn typed_v1alpha2(object: &Value) -> Value {
    let mut typed = json!({
        "apiVersion": format!("{GROUP}/v1alpha2"), "kind": "NodeResourceTopology", "metadata": object["metadata"],
        "zones": object["zones"],
    });
    for field in ["topologyPolicies", "attributes"] {
        if !list(&object[field]).is_empty() {
            typed[field] = object[field].clone();
        }
    }
    typed
}

/// Merges koordlet's zones over those of an object as `MergeZoneList` and `TrimDifferentZone` do
/// (`pkg/util/resource.go`): all amounts become what was allocatable, and zones that koordlet does not have go.
fn merged(theirs: &Value, own: &[Value]) -> Result<Value> {
    let mut zones = Vec::new();
    for zone in own {
        let same = list(theirs).iter().find(|one| one["name"] == zone["name"]);
        let mut resources = list(&zone["resources"]).to_vec();
        for other in same.map(|same| list(&same["resources"])).unwrap_or_default() {
            let name = other["name"].as_str().context("a resource without a name")?;
            if !resources.iter().any(|one| one["name"] == name) {
                let amount = &other["allocatable"];
                resources.push(
                    json!({"name": name, "capacity": amount, "allocatable": amount, "available": amount}),
                );
            }
        }
        resources.sort_by_key(|resource| resource["name"].to_string());
        zones.push(json!({"name": zone["name"], "type": "Node", "resources": resources}));
    }
    Ok(json!(zones))
}

fn resource(name: &str, [capacity, allocatable, available]: [&str; 3]) -> Value {
    json!({"name": name, "capacity": capacity, "allocatable": allocatable, "available": available})
}

fn owned(owner: &Value) -> Value {
    let mut owner = owner.clone();
    owner["controller"] = json!(true);
    owner["blockOwnerDeletion"] = json!(true);
    owner
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Returns the annotations of an object; they are made if there are none.
fn annotations(object: &mut Value) -> &mut Value {
    let annotations = &mut object["metadata"]["annotations"];
    if annotations.is_null() {
        *annotations = json!({});
    }
    annotations
}

/// Returns a quantity in thousandths.
fn milli(quantity: &Value) -> Result<i128> {
    let text = quantity.as_str().map_or_else(|| quantity.to_string(), str::to_owned);
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor: i128 = match &text[digits.len()..] {
        "m" => 1,
        "" => 1000,
        "k" => 1_000_000,
        "M" => 1_000_000_000,
        "G" => 1_000_000_000_000,
        "Ki" => 1000 << 10,
        "Mi" => 1000 << 20,
        "Gi" => 1000 << 30,
        other => bail!("the unit {other}"),
    };
    Ok(digits.parse::<i128>().with_context(|| text.clone())? * factor)
}
