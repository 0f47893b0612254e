//! The pods that are asked about: from a manifest, from the API server, or from flags.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Toleration;
use serde::Deserialize;
use serde_json::{Value, json};

use super::claims::PodClaim;
use super::filters;
use super::pod_spec::PodSpec;
use crate::admission::{NodeAmounts, PodRequest};
use crate::cluster::NodeDetails;
use crate::fit::Wish;
use crate::pod::Pod;
use crate::quantity::Quantity;

/// The most pods in one manifest.
const MAX_WORKLOADS: usize = 100;

/// Why a manifest cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    /// It is no YAML or JSON.
    #[error("it is neither YAML nor JSON: {0}")]
    Malformed(String),
    /// It has an object without pods.
    #[error(
        "a {0} has no pods; Pod, Deployment, StatefulSet, ReplicaSet, DaemonSet, Job, CronJob and List are read"
    )]
    OtherKind(String),
    /// A pod is not valid.
    #[error("{name}: {reason}")]
    Invalid {
        /// Kind and name.
        name: String,
        /// The error.
        reason: String,
    },
    /// It is empty.
    #[error("it has no objects")]
    Empty,
    /// It has too many.
    #[error("it has more than {MAX_WORKLOADS} objects")]
    TooMany,
}

/// A pod to place, perhaps several times.
#[derive(Clone, Debug)]
pub struct Workload {
    /// `Pod default/db-0`, `Deployment default/web`.
    pub name: String,
    /// How many pods are wanted; at least 1.
    pub replicas: u64,
    /// What it requests.
    pub wish: Wish,
    /// Its specification.
    pub spec: PodSpec,
    /// The node on which it is, if it is a pod of the cluster that has not terminated.
    pub node: Option<String>,
    /// What its RuntimeClass adds to its requests.
    pub overhead: NodeAmounts,
    /// Its namespace.
    pub namespace: String,
    /// Its ResourceClaims.
    pub claims: Vec<PodClaim>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawObject {
    kind: String,
    metadata: RawMetadata,
    spec: Value,
    items: Vec<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawMetadata {
    name: Option<String>,
    #[serde(rename = "generateName")]
    generate_name: Option<String>,
    namespace: Option<String>,
}

impl Workload {
    /// Reads a manifest of one or several objects, YAML or JSON. Objects without a namespace get `namespace`.
    ///
    /// # Errors
    /// If it is malformed, or has anything but objects with pods.
    pub fn read(text: &str, namespace: &str) -> Result<Vec<Self>, WorkloadError> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| {
            WorkloadError::Malformed(error.to_string().lines().next().unwrap_or_default().into())
        })?;
        let mut workloads = Vec::new();
        for document in documents.into_iter().filter(|document| !document.is_null()) {
            Self::add(document, namespace, &mut workloads)?;
        }
        if workloads.is_empty() { Err(WorkloadError::Empty) } else { Ok(workloads) }
    }

    fn add(document: Value, namespace: &str, workloads: &mut Vec<Self>) -> Result<(), WorkloadError> {
        let malformed = |error: serde_json::Error| WorkloadError::Malformed(error.to_string());
        let whole = document.clone();
        let object: RawObject = serde_json::from_value(document).map_err(malformed)?;
        let RawObject { kind, metadata, spec, items } = object;
        if kind.ends_with("List") {
            return items.into_iter().try_for_each(|item| Self::add(item, namespace, workloads));
        }
        // A Job does not run more pods than it has to complete.
        let job = |spec: &Value| {
            let wanted = |key: &str| spec[key].as_u64();
            wanted("parallelism").unwrap_or(1).min(wanted("completions").unwrap_or(u64::MAX))
        };
        let (replicas, pod) = match kind.as_str() {
            "Pod" => (1, whole),
            "Deployment" | "StatefulSet" | "ReplicaSet" | "ReplicationController" => {
                (spec["replicas"].as_u64().unwrap_or(1), spec["template"].clone())
            }
            "DaemonSet" => (1, spec["template"].clone()),
            "Job" => (job(&spec), spec["template"].clone()),
            "CronJob" => {
                let spec = &spec["jobTemplate"]["spec"];
                (job(spec), spec["template"].clone())
            }
            other => return Err(WorkloadError::OtherKind(format!("{other:?}"))),
        };
        if workloads.len() == MAX_WORKLOADS {
            return Err(WorkloadError::TooMany);
        }
        let name = metadata.name.or(metadata.generate_name).unwrap_or_else(|| "unnamed".to_owned());
        let namespace = metadata.namespace.unwrap_or_else(|| namespace.to_owned());
        let name = format!("{kind} {namespace}/{name}");
        let workload = Self::of_pod(pod, &name)
            .map_err(|reason| WorkloadError::Invalid { name: name.clone(), reason })?;
        let mut workload = Self { replicas: replicas.max(1), namespace, ..workload };
        if kind == "DaemonSet" {
            workload.spec.tolerations.get_or_insert_default().extend(daemon_tolerations());
        }
        workloads.push(workload);
        Ok(())
    }

    /// Returns a pod of the cluster as if it could still go to any node. On the one where it is, it runs.
    ///
    /// # Errors
    /// One sentence.
    pub fn of_cluster(pod: Value, name: &str) -> Result<Self, String> {
        let has_ended = ["Succeeded", "Failed"].iter().any(|phase| pod["status"]["phase"] == *phase);
        let mut workload = Self::of_pod(pod, name)?;
        let bound = workload.spec.node_name.take();
        workload.node = bound.filter(|node| !node.is_empty() && !has_ended);
        Ok(workload)
    }

    /// Returns true if both get the same answers, as replicas do, whose volumes and host names differ.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let (mine, others) = (&self.spec, &other.spec);
        self.wish == other.wish
            && self.overhead == other.overhead
            && (self.replicas, &self.node) == (other.replicas, &other.node)
            && (&mine.node_name, &mine.node_selector) == (&others.node_name, &others.node_selector)
            && (&mine.affinity, &mine.tolerations) == (&others.affinity, &others.tolerations)
            && self.claims == other.claims
    }

    /// Returns why the scheduler excludes the node whatever its pods have.
    pub(super) fn excluded(&self, node: &NodeDetails) -> Option<String> {
        let by_spec = filters::excluded(&self.spec, node).map(str::to_owned);
        by_spec.or_else(|| self.claims.iter().find_map(|claim| claim.excludes(&node.slim)))
    }

    /// Returns what is not known of its claims.
    pub(super) fn guesses(&self) -> impl Iterator<Item = String> {
        self.claims.iter().filter_map(PodClaim::guess)
    }

    /// Returns a pod from its JSON; its metadata may be incomplete.
    ///
    /// # Errors
    /// One sentence.
    pub fn of_pod(mut pod: Value, name: &str) -> Result<Self, String> {
        let spec: PodSpec = serde_json::from_value(pod["spec"].clone()).map_err(|error| error.to_string())?;
        if spec.containers.is_empty() {
            return Err("it has no containers".to_owned());
        }
        let names = spec.init_containers.iter().flatten().chain(&spec.containers);
        let mut seen = std::collections::BTreeSet::new();
        if let Some(twice) = names.clone().find(|container| !seen.insert(&container.name)) {
            return Err(format!("two containers have the name {:?}", twice.name));
        }
        for container in names {
            let Some(resources) = &container.resources else { continue };
            let all = [("requests", &resources.requests), ("limits", &resources.limits)];
            for (kind, amounts) in all {
                for (resource, quantity) in amounts.iter().flatten() {
                    quantity.0.parse::<Quantity>().map_err(|error| {
                        format!("container {}: {kind}.{resource}: {error}", container.name)
                    })?;
                }
            }
        }
        if !pod["metadata"].is_object() {
            pod["metadata"] = json!({});
        }
        for (key, default) in [("name", "pod"), ("namespace", "default")] {
            if pod["metadata"][key].as_str().is_none_or(str::is_empty) {
                pod["metadata"][key] = json!(default);
            }
        }
        let read = Pod::from_json(&serde_json::to_vec(&pod).map_err(|error| error.to_string())?)?;
        let overhead = overhead(&spec);
        let claims = PodClaim::all(&spec, &pod["status"]);
        Ok(Self {
            namespace: read.namespace.clone(),
            claims,
            name: name.to_owned(),
            replicas: 1,
            wish: Wish::new(PodRequest::from(&read), &overhead),
            node: None,
            spec,
            overhead,
        })
    }

    /// Returns a Guaranteed pod with one container that requests this.
    ///
    /// # Errors
    /// If a quantity is not valid.
    pub fn of_amounts(amounts: &BTreeMap<String, String>) -> Result<Self, String> {
        let container = json!({"name": "pod", "resources": {"limits": amounts}});
        Self::of_pod(json!({"spec": {"containers": [container]}}), "a pod")
    }
}

/// What a DaemonSet's pods tolerate besides what it says (upstream: `pkg/controller/daemon/util`,
/// `AddOrUpdateDaemonPodTolerations`).
fn daemon_tolerations() -> impl Iterator<Item = Toleration> {
    let conditions = [
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    ];
    conditions.into_iter().map(|(condition, effect)| Toleration {
        key: Some(format!("node.kubernetes.io/{condition}")),
        operator: Some("Exists".to_owned()),
        effect: Some(effect.to_owned()),
        ..Toleration::default()
    })
}

fn overhead(spec: &PodSpec) -> NodeAmounts {
    let amount = |(name, quantity): (&String, &k8s_openapi::apimachinery::pkg::api::resource::Quantity)| {
        let quantity: Quantity = quantity.0.parse().ok()?;
        Some((name.clone(), quantity.of_node(name)))
    };
    spec.overhead.iter().flatten().filter_map(amount).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "
kind: Pod
metadata: {name: db-0, namespace: db}
spec:
  containers:
  - name: db
    resources: {limits: {cpu: 4, memory: 8Gi, nvidia.com/gpu: '1'}}
";

    fn error(text: &str) -> String {
        Workload::read(text, "default").unwrap_err().to_string()
    }

    #[test]
    fn every_kind_with_pods_is_read() {
        let template = "template: {spec: {containers: [{name: c, resources: {requests: {cpu: 500m}}}]}}";
        let text = format!(
            "{POD}---\nkind: Deployment\nmetadata: {{name: web}}\nspec: {{replicas: 3000, {template}}}\n---\n\
             kind: List\nitems:\n- kind: Job\n  metadata: {{generateName: run-}}\n  spec: {{parallelism: 5, completions: 2, {template}}}\n\
             - kind: CronJob\n  metadata: {{name: night}}\n  spec: {{jobTemplate: {{spec: {{{template}}}}}}}\n"
        );
        let read = Workload::read(&text, "mine").unwrap();
        let names: Vec<(&str, u64)> = read.iter().map(|one| (one.name.as_str(), one.replicas)).collect();
        let expected = [
            ("Pod db/db-0", 1),
            ("Deployment mine/web", 3000),
            ("Job mine/run-", 2),
            ("CronJob mine/night", 1),
        ];
        assert_eq!(names, expected);
        let pod = &read[0].wish.pod;
        assert!(pod.guaranteed, "requests are the limits");
        assert_eq!((pod.containers[0].cpu_milli, pod.containers[0].devices["nvidia.com/gpu"]), (4000, 1));
        assert_eq!((read[0].wish.of_node["pods"], read[1].wish.of_node["cpu"]), (1, 500));
        assert!(!read[1].wish.pod.guaranteed);
    }

    #[test]
    fn what_cannot_be_read_is_said_in_a_sentence() {
        assert_eq!(error(""), "it has no objects");
        assert!(error("a: [").starts_with("it is neither YAML nor JSON: "));
        assert!(error("kind: Service\nmetadata: {name: a}").starts_with("a \"Service\" has no pods; "));
        assert_eq!(
            error("kind: Pod\nmetadata: {name: a}\nspec: {containers: []}"),
            "Pod default/a: it has no containers"
        );
        let odd = POD.replace("8Gi", "8G i");
        let expected = "Pod db/db-0: container db: limits.memory: `8G i` is not a Kubernetes quantity such as 4, 500m, 64Mi or 16Gi";
        assert_eq!(error(&odd), expected);
        assert!(
            error(&POD.repeat(MAX_WORKLOADS + 1).replace("\nkind: Pod", "\n---\nkind: Pod"))
                .contains("more than")
        );
    }

    #[test]
    fn a_pod_of_the_cluster_may_go_to_any_node() {
        let of = |phase: &str| {
            let containers = json!([{"name": "c"}]);
            let pod =
                json!({"spec": {"nodeName": "w", "containers": containers}, "status": {"phase": phase}});
            Workload::of_cluster(pod, "Pod a/b").unwrap()
        };
        assert_eq!((of("Running").node.as_deref(), of("Running").spec.node_name), (Some("w"), None));
        assert_eq!(of("Failed").node, None, "its kubelet refused it");
    }

    #[test]
    fn the_pods_of_a_daemon_set_go_to_cordoned_nodes() {
        let read = |kind: &str| {
            let text = format!("kind: {kind}\nspec: {{template: {{spec: {{containers: [{{name: c}}]}}}}}}");
            Workload::read(&text, "default").unwrap().remove(0)
        };
        let cordoned = crate::cluster::NodeDetails { unschedulable: true, ..Default::default() };
        let excluded = |kind: &str| super::super::filters::excluded(&read(kind).spec, &cordoned).is_some();
        assert!(!excluded("DaemonSet") && excluded("Deployment"));
    }

    #[test]
    fn a_shape_is_a_guaranteed_pod() {
        let amounts =
            [("cpu", "8"), ("memory", "16Gi")].map(|(name, amount)| (name.to_owned(), amount.to_owned()));
        let pod = Workload::of_amounts(&amounts.into()).unwrap();
        assert!(pod.wish.pod.guaranteed);
        assert_eq!((pod.wish.of_node["cpu"], pod.wish.of_node["memory"]), (8000, 16 << 30));
    }

    #[test]
    fn overhead_is_part_of_what_the_node_needs() {
        let text = format!("{POD}  overhead: {{cpu: 250m, memory: 100Mi}}\n");
        let read = &Workload::read(&text, "default").unwrap()[0];
        assert_eq!((read.wish.of_node["cpu"], read.overhead["memory"]), (4250, 100 << 20));
        assert_eq!(read.wish.pod.containers[0].cpu_milli, 4000);
    }

    #[test]
    fn claims_are_known_by_the_objects_that_the_pod_names() {
        let containers = json!([{"name": "c"}]);
        let claims = json!([{"name": "own", "resourceClaimTemplateName": "t"},
            {"name": "shared", "resourceClaimName": "s"}, {"name": "new", "resourceClaimTemplateName": "t"}]);
        let status = json!({"resourceClaimStatuses": [{"name": "own", "resourceClaimName": "p-own-x"}]});
        let guesses = |node: &str| {
            let spec = json!({"nodeName": node, "containers": containers, "resourceClaims": claims});
            let pod = json!({"metadata": {"namespace": "ns"}, "spec": spec, "status": status});
            let pod = Workload::of_cluster(pod, "Pod ns/p").unwrap();
            assert_eq!(pod.namespace, "ns");
            pod.guesses().collect::<Vec<_>>()
        };
        let guess =
            |claim: &str, why: &str| format!("whether the devices of its claim {claim} are free ({why})");
        let (unread, new) = ("it was not read", "the scheduler has not allocated it");
        assert_eq!(guesses(""), [guess("own", unread), guess("shared", unread), guess("new", new)]);
        assert_eq!(guesses("w")[0], guess("own", new), "another pod of the template gets a claim of its own");
    }

    #[test]
    fn replicas_are_alike_whatever_their_volumes() {
        let pod = |cpus: u64, volume: &str, pool: &str| {
            let container = json!({"name": "c", "resources": {"limits": {"cpu": cpus}}});
            let spec = json!({"containers": [container], "hostname": volume, "nodeSelector": {"pool": pool},
                "volumes": [{"name": volume}]});
            Workload::of_cluster(json!({"spec": spec}), volume).unwrap()
        };
        let first = pod(2, "a", "gpu");
        assert!(first.is_like(&pod(2, "b", "gpu")));
        assert!(!first.is_like(&pod(3, "a", "gpu")));
        assert!(!first.is_like(&pod(2, "a", "cpu")));
    }
}
