//! Reads what the API server knows of nodes: Nodes, objects, pods and PodDisruptionBudgets.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt};
use serde_json::Value;

use super::workload::Workload;
use crate::admission::NodeAmounts;
use crate::cluster::{Cluster, ClusterError, NodeDetails, PublishedObject};
use crate::core_v1::PlacedPod;
use crate::fit::{NodeView, Wish};
use crate::pod::Wanted;

/// The nodes that are asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// All.
    All,
    /// Those with matching labels.
    Labels(String),
    /// These, by name.
    Named(Vec<String>),
}

/// The nodes, ascending by name.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    /// The nodes.
    pub nodes: Vec<FleetNode>,
    /// The PodDisruptionBudgets, if they were read.
    pub budgets: Vec<Budget>,
}

/// What the API server knows of a node.
#[derive(Clone, Debug, Default)]
pub struct FleetNode {
    /// The Node.
    pub details: NodeDetails,
    /// Its object.
    pub object: Option<Arc<PublishedObject>>,
    /// Its pods, terminated ones included.
    pub pods: Vec<PlacedPod>,
    /// What its pods request of it.
    pub used: NodeAmounts,
}

/// A PodDisruptionBudget.
#[derive(Clone, Debug)]
pub struct Budget {
    namespace: String,
    name: String,
    selector: Selector,
    /// How many pods may end now.
    allowed: u64,
}

impl Fleet {
    /// Reads the nodes: three lists, or three requests for each named node.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn read(cluster: &Cluster, selection: &Selection) -> Result<Self, ClusterError> {
        let wanted = Wanted::default();
        if let Selection::Named(names) = selection {
            let mut nodes = Vec::new();
            for name in names {
                let details = cluster.node(name).await?;
                let object = cluster.object(name).await?.map(Arc::new);
                let pods = cluster.placed_pods(Some(name), &wanted).await?;
                nodes.push(FleetNode::new(details, object, pods));
            }
            return Ok(Self { nodes, budgets: Vec::new() });
        }
        let labels = if let Selection::Labels(labels) = selection { Some(labels.clone()) } else { None };
        let mut objects = BTreeMap::new();
        let add = |object: PublishedObject| _ = objects.insert(object.meta.name.clone(), Arc::new(object));
        let (nodes, read_objects) = (Self::without_objects(cluster, labels), cluster.objects().for_each(add));
        let (mut fleet, ()) = tokio::try_join!(nodes, read_objects)?;
        for node in &mut fleet.nodes {
            node.object = objects.remove(&node.details.slim.name);
        }
        Ok(fleet)
    }

    /// Reads the nodes, with their pods but without their objects: two lists. `labels` are a label selector.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn without_objects(cluster: &Cluster, labels: Option<String>) -> Result<Self, ClusterError> {
        let (wanted, mut details) = (Wanted::default(), Vec::new());
        let nodes = cluster.node_details(labels).for_each(|node| details.push(node));
        let ((), pods) = tokio::try_join!(nodes, cluster.placed_pods(None, &wanted))?;
        let mut of_nodes: BTreeMap<String, Vec<PlacedPod>> = BTreeMap::new();
        for pod in pods {
            of_nodes.entry(pod.node.clone()).or_default().push(pod);
        }
        let nodes = details.into_iter().map(|details| {
            let pods = of_nodes.remove(&details.slim.name).unwrap_or_default();
            FleetNode::new(details, None, pods)
        });
        Ok(Self { nodes: nodes.collect(), budgets: Vec::new() })
    }

    /// Reads the PodDisruptionBudgets as well.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn read_budgets(&mut self, cluster: &Cluster) -> Result<(), ClusterError> {
        let budgets = cluster.disruption_budgets().await?;
        self.budgets = budgets.iter().filter_map(Budget::of).collect();
        Ok(())
    }
}

impl FleetNode {
    fn new(details: NodeDetails, object: Option<Arc<PublishedObject>>, pods: Vec<PlacedPod>) -> Self {
        let running = pods.iter().filter(|placed| !placed.pod.phase.is_terminal());
        let requests: Vec<NodeAmounts> = running.map(|placed| Wish::from(placed).of_node).collect();
        let used = crate::fit::sum(&requests);
        Self { details, object, pods, used }
    }
}

impl Budget {
    fn of(budget: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let selector: LabelSelector = serde_json::from_value(budget["spec"]["selector"].clone()).ok()?;
        Some(Self {
            namespace: text(&budget["metadata"]["namespace"])?,
            name: text(&budget["metadata"]["name"])?,
            selector: selector.try_into().ok()?,
            allowed: budget["status"]["disruptionsAllowed"].as_u64().unwrap_or(0),
        })
    }

    /// Since `policy/v1` an empty selector selects every pod of the namespace.
    fn selects(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        self.namespace == namespace && self.selector.matches(labels)
    }
}

/// Adds the budgets that count the node's pods.
pub(super) fn add_budgets(view: &mut NodeView, budgets: &[Budget]) {
    for pod in &mut view.pods {
        for budget in budgets.iter().filter(|budget| budget.selects(&pod.namespace, &pod.labels)) {
            let name = format!("{}/{}", budget.namespace, budget.name);
            view.budgets.insert(name.clone(), budget.allowed);
            pod.budgets.push(name);
        }
    }
}

/// Returns the pods that are Pending and not bound, and the scheduler's message about each.
///
/// # Errors
/// See [`ClusterError`].
pub async fn pending_pods(
    cluster: &Cluster,
    namespace: Option<&str>,
) -> Result<Vec<(Workload, String)>, ClusterError> {
    let mut found = Vec::new();
    let mut pages = cluster.unbound_pods(namespace);
    while let Some(page) = pages.next().await? {
        for pod in page.into_iter().take(MAX_PENDING - found.len()) {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let metadata = &pod["metadata"];
            let name = format!("{}/{}", text(&metadata["namespace"]), text(&metadata["name"]));
            let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let scheduled = conditions.iter().find(|condition| condition["type"] == "PodScheduled");
            let message = scheduled.map(|condition| text(&condition["message"])).unwrap_or_default();
            if let Ok(workload) = Workload::of_cluster(pod, &name) {
                found.push((workload, message));
            }
        }
    }
    Ok(found)
}

/// The most pending pods that are considered.
const MAX_PENDING: usize = 1000;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::pod::Pod;

    use super::*;

    /// Returns a node of one zone with four CPUs, and running pods with this many of them.
    fn node(name: &str, available: u64, pods: &[u64]) -> FleetNode {
        let cpu = json!({"name": "cpu", "capacity": 4, "allocatable": 4, "available": available});
        let zone = json!({"name": "node-0", "type": "Node", "resources": [cpu]});
        let attributes = [("topologyManagerPolicy", "restricted"), ("cpuManagerPolicy", "static")];
        let attributes = attributes.map(|(name, value)| json!({"name": name, "value": value}));
        let object = json!({"metadata": {"name": name}, "zones": [zone], "attributes": attributes});
        let allocatable = json!({"cpu": "4", "memory": "8Gi", "pods": "9"});
        let details = json!({"metadata": {"name": name}, "status": {"allocatable": allocatable}});
        let pod = |(number, cpus): (usize, &u64)| {
            let limits = json!({"cpu": cpus.to_string(), "memory": "1Gi"});
            let pod = json!({
                "metadata": {"namespace": "ns", "name": format!("{name}-{number}"), "uid": format!("{name}-{number}")},
                "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
                "status": {"phase": "Running"},
            });
            let pod = Pod::from_json(pod.to_string().as_bytes()).unwrap();
            PlacedPod { pod, ..PlacedPod::default() }
        };
        let object = serde_json::from_value(object).unwrap();
        let pods = pods.iter().enumerate().map(pod).collect();
        FleetNode::new(serde_json::from_value(details).unwrap(), Some(object), pods)
    }

    fn wish(cpus: u64) -> Workload {
        let amounts = [("cpu", cpus.to_string()), ("memory", "1Gi".to_owned())];
        Workload::of_amounts(&amounts.map(|(name, amount)| (name.to_owned(), amount)).into()).unwrap()
    }

    #[test]
    fn the_easiest_room_is_where_the_fewest_pods_would_end() {
        let nodes = vec![node("a", 0, &[1, 1, 2]), node("b", 0, &[3, 1]), node("c", 0, &[2, 2])];
        let fleet = Fleet { nodes, budgets: Vec::new() };
        let easiest = |cpus| {
            let workload = wish(cpus);
            let answers = super::super::answers(&fleet, std::slice::from_ref(&workload)).remove(0);
            let easiest = super::super::easiest_room(&fleet, &workload, &answers);
            easiest.map(|easiest| {
                (easiest.view.name.clone(), easiest.to_json()["room"]["sets"][0]["pods"].clone())
            })
        };
        assert_eq!(easiest(3), Some(("b".to_owned(), json!(["ns/b-0"]))));
        assert_eq!(easiest(5), None);
    }

    #[test]
    fn a_pod_of_the_cluster_runs_where_it_is_and_may_fit_elsewhere() {
        let fleet = Fleet {
            nodes: vec![node("a", 0, &[]), node("b", 4, &[]), node("c", 2, &[])],
            budgets: Vec::new(),
        };
        let answers = |phase: &str| {
            let container = json!({"name": "c", "resources": {"limits": {"cpu": "3", "memory": "1Gi"}}});
            let pod =
                json!({"spec": {"nodeName": "a", "containers": [container]}, "status": {"phase": phase}});
            let workload = Workload::of_cluster(pod, "Pod ns/p").unwrap();
            super::super::answers(&fleet, &[workload])[0]
                .iter()
                .map(|answer| answer.fits())
                .collect::<Vec<_>>()
        };
        assert_eq!(answers("Running"), [true, true, false], "what it has does not count against it");
        assert_eq!(answers("Failed"), [false, true, false], "it is not bound to its node any more");
    }

    #[test]
    fn budgets_select_pods_of_their_namespace() {
        let budget = |selector: Value| {
            let status = json!({"disruptionsAllowed": 2});
            let metadata = json!({"namespace": "db", "name": "one"});
            Budget::of(&json!({"metadata": metadata, "spec": {"selector": selector}, "status": status}))
                .unwrap()
        };
        let labels: BTreeMap<String, String> = [("app".to_owned(), "db".to_owned())].into();
        let named = budget(json!({"matchLabels": {"app": "db"}}));
        assert_eq!(
            (named.allowed, named.selects("db", &labels), named.selects("x", &labels)),
            (2, true, false)
        );
        assert!(!budget(json!({"matchLabels": {"app": "web"}})).selects("db", &labels));
        assert!(budget(json!({})).selects("db", &labels));
        let expression = |operator: &str, values: &[&str]| {
            let expressions = json!([{"key": "app", "operator": operator, "values": values}]);
            budget(json!({"matchExpressions": expressions})).selects("db", &labels)
        };
        assert!(expression("In", &["db"]) && !expression("NotIn", &["db"]) && expression("Exists", &[]));
        assert!(
            !expression("DoesNotExist", &[]) && !expression("In", &["web"]) && expression("NotIn", &["web"])
        );
        let mut view = NodeView::default();
        view.pods.push(crate::fit::PodOnNode { namespace: "db".into(), labels, ..Default::default() });
        add_budgets(&mut view, &[named]);
        assert_eq!(
            (view.budgets["db/one"], view.pods[0].budgets.as_slice()),
            (2, &["db/one".to_owned()][..])
        );
    }
}
