//! ResourceClaims, allocated and reserved as by a scheduler, and released as by the controller manager.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::super::node::RealNode;
use super::super::pods::{PodClaim, PodSpec};
use super::kind;

/// The request in a claim that an allocation is for, unless a test sets another.
const REQUEST: &str = "devices";

/// An allocated device: one of `status.allocation.devices.results`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Allocated {
    request: String,
    driver: String,
    pool: String,
    device: String,
    #[serde(rename = "shareID", skip_serializing_if = "Option::is_none")]
    share_id: Option<String>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    consumed_capacity: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    admin_access: Option<bool>,
}

impl Allocated {
    /// Returns an allocation of a device as a whole. No slice has to have it.
    pub(crate) fn new(driver: &str, pool: &str, device: &str) -> Self {
        Self {
            request: REQUEST.to_owned(),
            driver: driver.to_owned(),
            pool: pool.to_owned(),
            device: device.to_owned(),
            share_id: None,
            consumed_capacity: Map::new(),
            admin_access: None,
        }
    }

    /// Sets the request that it is for: its name, or its name and that of an alternative, such as `gpu/small`.
    pub(crate) fn request(mut self, name: &str) -> Self {
        name.clone_into(&mut self.request);
        self
    }

    /// Makes it a share of the device, with an ID of its own, that takes part of a capacity.
    pub(crate) fn consumes(mut self, capacity: &str, quantity: &str) -> Self {
        self.consumed_capacity.insert(capacity.to_owned(), json!(quantity));
        self.share_id.get_or_insert_with(random_uuid);
        self
    }

    /// Makes it access by an administrator, which takes nothing.
    pub(crate) fn admin(mut self) -> Self {
        self.admin_access = Some(true);
        self
    }
}

/// The claims of a node's pods.
pub(crate) struct Claims {
    client: Client,
    namespace: String,
    node: String,
    /// What each claim is to be allocated, by name.
    allocations: RefCell<BTreeMap<String, Vec<Allocated>>>,
}

impl Claims {
    /// Returns an empty collection, in the namespace of the node's pods.
    pub(crate) fn of(node: &RealNode) -> Self {
        Self {
            client: node.client(),
            namespace: node.namespace().to_owned(),
            node: node.name().to_owned(),
            allocations: RefCell::default(),
        }
    }

    /// Creates a claim that is allocated these devices when a pod that names it is submitted.
    pub(crate) async fn create(&self, name: &str, results: Vec<Allocated>) -> Result<()> {
        self.plan(name, results);
        self.create_object(name, name, &json!({})).await
    }

    /// Sets what pods' own claims are allocated, from the template of that name or for extended resources.
    /// Each is created when its pod is submitted, as `<pod>-<name>`.
    pub(crate) fn plan(&self, name: &str, results: Vec<Allocated>) {
        self.allocations.borrow_mut().insert(name.to_owned(), results);
    }

    /// Creates a pod and its own claims, allocates its claims and reserves them for it, and binds it to the
    /// node, in the order in which the scheduler does: a pod that is bound before cannot be prepared at first.
    pub(crate) async fn submit(&self, spec: &PodSpec) -> Result<()> {
        let (pods, uid) = self.create_pod(spec).await?;
        for claim in spec.claims() {
            let name = self.object_of(claim, spec.name(), &uid, &pods).await?;
            self.reserve(&name, claim.name(), (spec.name(), &uid)).await?;
        }
        self.bind(&pods, spec.name()).await
    }

    /// Creates a pod and binds it before the claims that it names exist, as somebody may do without a scheduler.
    pub(crate) async fn submit_before_its_claims(&self, spec: &PodSpec) -> Result<()> {
        let (pods, _) = self.create_pod(spec).await?;
        self.bind(&pods, spec.name()).await
    }

    /// Allocates a claim for a pod that was bound before.
    pub(crate) async fn allocate_for(&self, claim: &str, pod: &str) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let uid = pods.get(pod).await?.metadata.uid.context("a pod without UID")?;
        self.reserve(claim, claim, (pod, &uid)).await
    }

    /// Creates a pod that no scheduler binds. Returns its UID too.
    async fn create_pod(&self, spec: &PodSpec) -> Result<(Api<Pod>, String)> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut pod = spec.scheduled_by("none")?;
        pod.metadata.namespace = Some(self.namespace.clone());
        let pod = pods.create(&PostParams::default(), &pod).await?;
        Ok((pods, pod.metadata.uid.context("a pod without UID")?))
    }

    async fn bind(&self, pods: &Api<Pod>, name: &str) -> Result<()> {
        let binding = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": { "name": name },
            "target": { "apiVersion": "v1", "kind": "Node", "name": self.node },
        });
        pods.create_subresource::<_, Value>("binding", name, &PostParams::default(), &binding).await?;
        Ok(())
    }

    /// Like [`Claims::submit`]; then waits until the pod is running.
    pub(crate) async fn run(&self, node: &RealNode, spec: PodSpec) -> Result<()> {
        self.submit(&spec).await?;
        node.wait_until_running(spec.name()).await
    }

    /// Returns a claim as the API server has it.
    pub(crate) async fn get(&self, name: &str) -> Result<Value> {
        Ok(serde_json::to_value(self.api().get(name).await?)?)
    }

    /// Returns a claim's UID.
    pub(crate) async fn uid(&self, name: &str) -> Result<String> {
        self.api().get(name).await?.metadata.uid.context("a claim without UID")
    }

    /// Releases a claim, which a pod that is submitted later may have again. The controller manager does so
    /// some time after the claim's last pod has ended; here the test decides when.
    pub(crate) async fn deallocate(&self, name: &str) -> Result<()> {
        self.set_status(name, &json!({ "allocation": null, "reservedFor": null })).await
    }

    /// Deletes a claim at once, even if it is in use: it has no finalizer.
    pub(crate) async fn delete(&self, name: &str) -> Result<()> {
        self.api().delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Returns the name of a pod's claim. One of its own is created first, and named in the pod's status.
    async fn object_of(&self, claim: &PodClaim, pod: &str, uid: &str, pods: &Api<Pod>) -> Result<String> {
        let own = format!("{pod}-{}", claim.name());
        let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid, "controller": true });
        let mut metadata = json!({ "ownerReferences": [owner] });
        let status = match claim {
            PodClaim::Named(name) => return Ok(name.clone()),
            PodClaim::FromTemplate(name) => {
                json!({ "resourceClaimStatuses": [{ "name": name, "resourceClaimName": own }] })
            }
            PodClaim::Extended { container, resource, .. } => {
                metadata["annotations"] = json!({ "resource.kubernetes.io/extended-resource-claim": "true" });
                let mapping =
                    json!({ "containerName": container, "resourceName": resource, "requestName": REQUEST });
                json!({ "extendedResourceClaimStatus": {
                    "resourceClaimName": own, "requestMappings": [mapping],
                } })
            }
        };
        self.create_object(&own, claim.name(), &metadata).await?;
        // A strategic merge: a pod has several statuses of claims.
        let patch = Patch::Strategic(json!({ "status": status }));
        pods.patch_status(pod, &PatchParams::default(), &patch).await?;
        Ok(own)
    }

    /// Creates a claim whose requests are those of a planned allocation.
    async fn create_object(&self, name: &str, plan: &str, metadata: &Value) -> Result<()> {
        let results = self.planned(plan)?;
        if results.iter().any(|result| result.admin_access == Some(true)) {
            self.label_namespace().await?;
        }
        let names: BTreeSet<&str> = results.iter().map(|result| result.request.as_str()).collect();
        let class = "example.com";
        let request = |name: &&str| match name.split_once('/') {
            None => json!({ "name": name, "exactly": { "deviceClassName": class } }),
            // A prioritized list of alternatives, of which this one is chosen.
            Some((name, chosen)) => {
                let alternative = |name: &str| json!({ "name": name, "deviceClassName": class });
                let alternatives = ["other", chosen].map(alternative);
                json!({ "name": name, "firstAvailable": alternatives })
            }
        };
        let requests: Vec<Value> = names.iter().map(request).collect();
        let mut claim = json!({
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": metadata,
            "spec": { "devices": { "requests": requests } },
        });
        claim["metadata"]["name"] = json!(name);
        let claim: DynamicObject = serde_json::from_value(claim)?;
        self.api().create(&PostParams::default(), &claim).await?;
        Ok(())
    }

    fn planned(&self, name: &str) -> Result<Vec<Allocated>> {
        let results = self.allocations.borrow().get(name).cloned();
        results.with_context(|| format!("nothing is known to be allocated for the claim {name}"))
    }

    /// Reserves a claim for a pod, and allocates it if it is not yet.
    async fn reserve(&self, name: &str, plan: &str, (pod, uid): (&str, &str)) -> Result<()> {
        let claim = self.get(name).await?;
        let mut reserved = claim["status"]["reservedFor"].as_array().cloned().unwrap_or_default();
        reserved.push(json!({ "resource": "pods", "name": pod, "uid": uid }));
        let mut status = json!({ "reservedFor": reserved });
        if claim["status"]["allocation"].is_null() {
            let here = json!({ "key": "metadata.name", "operator": "In", "values": [self.node] });
            status["allocation"] = json!({
                "devices": { "results": self.planned(plan)? },
                "nodeSelector": { "nodeSelectorTerms": [{ "matchFields": [here] }] },
            });
        }
        self.set_status(name, &status).await
    }

    async fn set_status(&self, name: &str, status: &Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "status": status }));
        self.api().patch_status(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Admits access by administrators to the namespace.
    async fn label_namespace(&self) -> Result<()> {
        let label = json!({ "resource.kubernetes.io/admin-access": "true" });
        let patch = Patch::Merge(json!({ "metadata": { "labels": label } }));
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        namespaces.patch(&self.namespace, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    fn api(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &kind("ResourceClaim"))
    }
}

fn random_uuid() -> String {
    let bits = fastrand::u128(..) & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}
