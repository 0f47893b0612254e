//! The ResourceClaims of the pods that are asked about, and where the scheduler has allocated them.
//!
//! The kubelet's managers ignore a claim's devices, so that only the node of an allocation matters. Whether devices are
//! free for a claim that is not allocated is up to its DeviceClass and the scheduler, and is not computed.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use k8s_openapi::api::core::v1::NodeSelector;
use serde_json::Value;

use super::Workload;
use super::pod_spec::PodSpec;
use crate::cluster::{Cluster, DraVersion, SlimNode};

/// The most claims that are read, and how many at the same time.
const MAX_CLAIMS: usize = 1000;
const CONCURRENT: usize = 8;

/// A claim of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodClaim {
    /// Its name in the pod's specification.
    name: String,
    /// The object's name; `None` before it is made from its template.
    object: Option<String>,
    state: State,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    /// Why it is not known.
    Unknown(String),
    NotAllocated,
    /// The nodes that can use its devices; `None` is all.
    Allocated(Option<NodeSelector>),
}

impl PodClaim {
    /// Returns the claims of a pod. Those that were made from templates are named in its `status`. A pod like one that is
    /// bound would get others.
    pub(super) fn all(spec: &PodSpec, status: &Value) -> Vec<Self> {
        let is_bound = spec.node_name.as_ref().is_some_and(|node| !node.is_empty());
        let made = status["resourceClaimStatuses"].as_array().filter(|_| !is_bound);
        let made = |name: &str| {
            let of_name = made.into_iter().flatten().find(|one| one["name"] == *name)?;
            Some(of_name["resourceClaimName"].as_str()?.to_owned())
        };
        let claim = |reference: &super::pod_spec::ClaimReference| {
            let object = reference.resource_claim_name.clone().or_else(|| made(&reference.name));
            let state = match object {
                Some(_) => State::Unknown("it was not read".to_owned()),
                None => State::NotAllocated,
            };
            Self { name: reference.name.clone(), object, state }
        };
        spec.resource_claims.iter().flatten().map(claim).collect()
    }

    /// Returns what is not known of it.
    pub(super) fn guess(&self) -> Option<String> {
        let reason = match &self.state {
            State::Allocated(_) => return None,
            State::NotAllocated => "the scheduler has not allocated it",
            State::Unknown(reason) => reason,
        };
        Some(format!("whether the devices of its claim {} are free ({reason})", self.name))
    }

    /// Returns why the pod cannot run on the node.
    pub(super) fn excludes(&self, node: &SlimNode) -> Option<String> {
        let State::Allocated(Some(selector)) = &self.state else { return None };
        if node.is_selected(&BTreeMap::new(), Some(selector)) {
            return None;
        }
        let claim = self.object.as_deref().unwrap_or(&self.name);
        let on = only_node(selector)
            .map_or_else(|| "for other nodes".to_owned(), |name| format!("on node {name}"));
        Some(format!("its claim {claim} is allocated {on}"))
    }
}

/// Returns the node of devices that are local to it.
fn only_node(selector: &NodeSelector) -> Option<&str> {
    let [term] = selector.node_selector_terms.as_slice() else { return None };
    let [field] = term.match_fields.as_deref()? else { return None };
    let is_name = field.key == "metadata.name" && field.operator == "In";
    let [name] = field.values.as_deref().filter(|_| is_name)? else { return None };
    Some(name)
}

/// Reads where the claims of these pods are allocated. What cannot be read stays unknown, with the reason.
pub async fn read_claims(cluster: &Cluster, workloads: &mut [Workload]) {
    let names = workloads.iter().flat_map(|workload| {
        let objects = workload.claims.iter().filter_map(|claim| claim.object.as_deref());
        objects.map(|object| (workload.namespace.clone(), object.to_owned()))
    });
    let names: BTreeSet<(String, String)> = names.collect();
    if names.is_empty() {
        return;
    }
    let version = match cluster.dra_version().await {
        Ok(Some(version)) => Ok(version),
        Ok(None) => Err("the API server has no resource.k8s.io".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    let read = names.into_iter().take(MAX_CLAIMS).map(|name| {
        let version = version.clone();
        async move { (read_claim(cluster, version, &name).await, name) }
    });
    let read: Vec<_> = futures::stream::iter(read).buffer_unordered(CONCURRENT).collect().await;
    let read: BTreeMap<(String, String), State> =
        read.into_iter().map(|(state, name)| (name, state)).collect();
    for workload in workloads {
        for claim in &mut workload.claims {
            let key = claim.object.clone().map(|object| (workload.namespace.clone(), object));
            let Some(state) = key.and_then(|key| read.get(&key)) else { continue };
            claim.state = state.clone();
            // So that replicas, whose claims have other names, are alike.
            if claim.state == State::NotAllocated {
                claim.object = None;
            }
        }
    }
}

async fn read_claim(
    cluster: &Cluster,
    version: Result<DraVersion, String>,
    (namespace, name): &(String, String),
) -> State {
    let version = match version {
        Ok(version) => version,
        Err(reason) => return State::Unknown(reason),
    };
    let status = match cluster.claim_status(version, namespace, name).await {
        Ok(Some(status)) => status,
        Ok(None) => return State::Unknown(format!("there is no ResourceClaim {namespace}/{name}")),
        Err(error) => return State::Unknown(error.to_string()),
    };
    status.allocation.map_or(State::NotAllocated, |allocation| State::Allocated(allocation.node_selector))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::NodeDetails;

    fn node(name: &str) -> NodeDetails {
        serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
    }

    fn claim(state: State) -> PodClaim {
        PodClaim { name: "gpu".to_owned(), object: Some("gpu-0".to_owned()), state }
    }

    fn allocated(terms: &Value) -> PodClaim {
        let selector = json!({"nodeSelectorTerms": terms});
        claim(State::Allocated(Some(serde_json::from_value(selector).unwrap())))
    }

    #[test]
    fn an_allocation_fixes_the_node() {
        let node = node("w").slim;
        let on = |names: &[&str]| {
            let field = json!({"key": "metadata.name", "operator": "In", "values": names});
            allocated(&json!([{"matchFields": [field]}])).excludes(&node)
        };
        assert_eq!(on(&["w"]), None);
        assert_eq!(on(&["v"]).as_deref(), Some("its claim gpu-0 is allocated on node v"));
        assert_eq!(on(&["v", "u"]).as_deref(), Some("its claim gpu-0 is allocated for other nodes"));
        let label = json!([{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["a"]}]}]);
        assert_eq!(
            allocated(&label).excludes(&node).as_deref(),
            Some("its claim gpu-0 is allocated for other nodes")
        );
        for everywhere in [State::Allocated(None), State::NotAllocated, State::Unknown("no".to_owned())] {
            assert_eq!(claim(everywhere).excludes(&node), None);
        }
        assert_eq!(allocated(&label).guess(), None);
    }

    #[tokio::test]
    async fn claims_are_read_by_name() {
        let field = json!({"key": "metadata.name", "operator": "In", "values": ["v"]});
        let selector = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
        let respond = move |path: &str| match path.rsplit_once('/') {
            Some(("/apis", "resource.k8s.io")) => (200, json!({"versions": [{"version": "v1"}]})),
            Some(("/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims", name)) => match name {
                "here" => (200, json!({"status": {"allocation": {"nodeSelector": selector}}})),
                "new" => (200, json!({"status": {}})),
                "secret" => {
                    (403, json!({"kind": "Status", "code": 403, "message": "User \"a\" cannot get it"}))
                }
                name => {
                    let details = json!({"name": name, "kind": "resourceclaims"});
                    (404, json!({"kind": "Status", "code": 404, "reason": "NotFound", "details": details}))
                }
            },
            other => panic!("{other:?}"),
        };
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (code, body) = respond(request.uri().path());
            let body = kube::client::Body::from(body.to_string().into_bytes());
            let response = http::Response::builder().status(code).body(body);
            async move { Ok::<_, std::convert::Infallible>(response.unwrap()) }
        });
        let client = kube::Client::new(service, "default");
        let cluster = Cluster::with_client(client, "fake".to_owned(), std::time::Duration::from_secs(30));
        let pod = |name: &str| {
            let claims = json!([{"name": "gpu", "resourceClaimName": name}]);
            let spec = json!({"containers": [{"name": "c"}], "resourceClaims": claims});
            Workload::of_cluster(json!({"metadata": {"namespace": "ns"}, "spec": spec}), name).unwrap()
        };
        let mut pods = ["here", "new", "secret", "none", "../../pods"].map(pod);
        read_claims(&cluster, &mut pods).await;
        let [here, rest @ ..] = &pods;
        assert_eq!(here.guesses().count(), 0);
        let node = node("w");
        assert_eq!(here.excluded(&node).as_deref(), Some("its claim here is allocated on node v"));
        let reasons = [
            "the scheduler has not allocated it",
            "RBAC denied the request: User \"a\" cannot get it",
            "there is no ResourceClaim ns/none",
            "there is no ResourceClaim ns/../../pods",
        ];
        for (pod, reason) in rest.iter().zip(reasons) {
            let expected = format!("whether the devices of its claim gpu are free ({reason})");
            assert_eq!(pod.guesses().collect::<Vec<_>>(), [expected]);
            assert_eq!(pod.excluded(&node), None);
        }
    }
}
