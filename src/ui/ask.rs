//! Answers what a page asks of the cluster: whether a pod fits, which pods wait, where a pod is.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{Instant, timeout};

use super::details::{node_details, pod_details};
use super::feed::{Shared, Viewer};
use crate::cluster::{Cluster, ClusterError, PublishedObject};
use crate::core_v1::PlacedPod;
use crate::fragmentation::MAX_RESOURCES;
use crate::inspect::fit::{self, Answer, Fleet, Landing, Outcome, Workload};
use crate::names::is_dns_name;
use crate::pod::Wanted;

/// How long Nodes and pods that were read for `fit` are used again at least, and in proportion to the time that reading
/// them took: a large cluster is asked less often. Objects are those of the watch.
const REUSE: Duration = Duration::from_secs(10);
const REUSE_FACTOR: u32 = 20;
/// How long a node's pods are used again while its object is the same. Several pages may show it.
const REUSE_PODS: Duration = Duration::from_millis(500);
/// How long a question waits for the nodes to be listed.
const LISTED: Duration = Duration::from_secs(30);
/// The most nodes whose pods are remembered.
const MAX_NODES: usize = 100;
/// A pod of a shape without memory would not be Guaranteed: this little is requested.
const LEAST_MEMORY: &str = "1Mi";

/// An error that the page shows.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    /// The question is wrong.
    #[error("{0}")]
    Invalid(String),
    /// There is nothing of this name.
    #[error("{0}")]
    Missing(String),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("the nodes could not be listed yet: try again")]
    NotListed,
    #[error("the answer could not be computed")]
    Failed,
}

/// The nodes as they were read last, and until when they are used.
#[derive(Debug, Default)]
struct Known {
    until: Option<Instant>,
    fleet: Fleet,
}

/// Reads the cluster for the pages.
#[derive(Debug)]
pub(super) struct Reader {
    cluster: Cluster,
    shared: Arc<Shared>,
    /// One at a time: the lists of a large cluster take seconds and memory.
    fleet: Arc<Mutex<Known>>,
    pods: Mutex<KnownPods>,
}

/// The pods of nodes as they were read last.
type KnownPods = BTreeMap<String, NodePods>;

#[derive(Debug)]
struct NodePods {
    at: Instant,
    /// The node's newest object before they were read. Pods that it counts are bound, so they are among these.
    object: Arc<PublishedObject>,
    pods: Arc<[PlacedPod]>,
}

impl Reader {
    pub(super) fn new(cluster: Cluster, shared: Arc<Shared>) -> Self {
        Self { cluster, shared, fleet: Arc::default(), pods: Mutex::default() }
    }

    /// Forgets what was read.
    pub(super) async fn forget(&self) {
        *self.fleet.lock().await = Known::default();
        self.pods.lock().await.clear();
    }

    /// Waits until the nodes are listed. They are followed until the result is dropped: another replica of the controller
    /// may send the page its changes.
    async fn listed(&self) -> Result<Viewer, AskError> {
        let viewer = self.shared.viewer();
        let mut versions = self.shared.versions();
        let shown = async {
            // Cannot fail: `shared` has the sender.
            let _ = versions.wait_for(|_| self.shared.fleet().is_shown()).await;
        };
        timeout(LISTED, shown).await.map_err(|_| AskError::NotListed)?;
        Ok(viewer)
    }

    /// Returns the tile of a node, and, if it has an object, its zones and what its pods have.
    pub(super) async fn node(&self, name: &str) -> Result<Value, AskError> {
        let _viewer = self.listed().await?;
        let tile = self.shared.fleet().tile(name).map(|tile| json!(tile));
        let tile = tile.ok_or_else(|| AskError::Missing(format!("there is no node {name}")))?;
        let Some(object) = self.shared.fleet().object(name) else { return Ok(json!({"tile": tile})) };
        let (pods, error) = match self.pods_of(name, &object).await {
            Ok(pods) => (pods, None),
            Err(error) => (Arc::from([]), Some(format!("who has what is not known: {error}"))),
        };
        Ok(json!({"tile": tile, "details": node_details(&object, &pods), "error": error}))
    }

    async fn pods_of(
        &self,
        node: &str,
        object: &Arc<PublishedObject>,
    ) -> Result<Arc<[PlacedPod]>, ClusterError> {
        let mut known = self.pods.lock().await;
        if let Some(known) = known.get(node)
            && known.at.elapsed() < REUSE_PODS
            && Arc::ptr_eq(&known.object, object)
        {
            return Ok(Arc::clone(&known.pods));
        }
        let pods: Arc<[PlacedPod]> = self.cluster.placed_pods(Some(node), &Wanted::default()).await?.into();
        if known.len() >= MAX_NODES {
            known.clear();
        }
        let object = Arc::clone(object);
        known.insert(node.to_owned(), NodePods { at: Instant::now(), object, pods: Arc::clone(&pods) });
        Ok(pods)
    }

    /// Returns where a pod is, or, if it is bound to no node, where it fits.
    pub(super) async fn pod(&self, namespace: &str, name: &str) -> Result<Value, AskError> {
        if !is_dns_name(namespace) || !is_dns_name(name) {
            return Err(AskError::Invalid(format!("{namespace}/{name} cannot be the name of a pod")));
        }
        let _viewer = self.listed().await?;
        let pod = self.cluster.whole_pod(namespace, name).await?;
        let pod = pod.ok_or_else(|| AskError::Missing(format!("there is no pod {namespace}/{name}")))?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (phase, node) = (text(&pod["status"]["phase"]), text(&pod["spec"]["nodeName"]));
        let mut answer = json!({"namespace": namespace, "name": name, "phase": phase, "node": node,
            "message": text(&pod["status"]["message"])});
        let object = self.shared.fleet().object(&node);
        if node.is_empty() {
            let workload = Workload::of_cluster(pod, &format!("Pod {namespace}/{name}"));
            answer["fit"] = self.fit(workload.map_err(AskError::Invalid)?).await?;
        } else if let Some(object) = object {
            answer["placement"] = self.placement(&object, &node, namespace, name).await?;
        }
        Ok(answer)
    }

    async fn placement(
        &self,
        object: &Arc<PublishedObject>,
        node: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Value, AskError> {
        let pods = self.pods_of(node, object).await?;
        Ok(pod_details(object, &pods, namespace, name))
    }

    /// Returns where a Guaranteed pod of one container with these amounts fits, such as `cpu=8,nvidia.com/gpu=1`.
    pub(super) async fn shape(&self, text: &str) -> Result<Value, AskError> {
        let workload = shape(text).map_err(AskError::Invalid)?;
        let _viewer = self.listed().await?;
        self.fit(workload).await
    }

    async fn fit(&self, workload: Workload) -> Result<Value, AskError> {
        let mut workloads = vec![workload];
        fit::read_claims(&self.cluster, &mut workloads).await;
        let known = self.fleet().await?;
        let compute = move || {
            let answers = fit::answers(&known.fleet, &workloads);
            workloads.iter().zip(&answers).map(|(workload, answers)| summary(workload, answers)).next()
        };
        let answer = tokio::task::spawn_blocking(compute).await.map_err(|_| AskError::Failed)?;
        answer.ok_or(AskError::Failed)
    }

    /// Returns the pods that are Pending without a node, with what the scheduler says and where they fit.
    pub(super) async fn pending(&self) -> Result<Value, AskError> {
        let _viewer = self.listed().await?;
        let pods = fit::pending_pods(&self.cluster, None).await?;
        if pods.is_empty() {
            return Ok(json!({"pods": []}));
        }
        let (mut workloads, messages): (Vec<Workload>, Vec<String>) = pods.into_iter().unzip();
        fit::read_claims(&self.cluster, &mut workloads).await;
        let known = self.fleet().await?;
        let compute = move || {
            let answers = fit::shared_answers(&known.fleet, &workloads);
            let answers: Vec<&[Answer]> = answers.iter().map(Rc::as_ref).collect();
            let pods = workloads.iter().zip(&messages).zip(answers).map(|((workload, message), answers)| {
                let fits = answers.iter().filter(|answer| answer.fits()).count();
                json!({"name": workload.name, "message": message, "fits": fits, "nodes": answers.len(),
                       "reasons": reasons(answers)})
            });
            json!({"pods": pods.collect::<Vec<_>>()})
        };
        tokio::task::spawn_blocking(compute).await.map_err(|_| AskError::Failed)
    }

    /// Returns the nodes with their pods, and the newest objects.
    async fn fleet(&self) -> Result<OwnedMutexGuard<Known>, AskError> {
        let mut known = Arc::clone(&self.fleet).lock_owned().await;
        let start = Instant::now();
        if known.until.is_none_or(|until| until <= start) {
            // Not both in memory at once.
            *known = Known::default();
            let fleet = Fleet::without_objects(&self.cluster, None).await?;
            let reuse = REUSE.max(start.elapsed() * REUSE_FACTOR);
            *known = Known { until: Some(Instant::now() + reuse), fleet };
        }
        let shared = self.shared.fleet();
        for node in &mut known.fleet.nodes {
            node.object = shared.object(&node.details.slim.name);
        }
        drop(shared);
        Ok(known)
    }
}

/// Parses `cpu=8,nvidia.com/gpu=1`.
fn shape(text: &str) -> Result<Workload, String> {
    let mut amounts = BTreeMap::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let Some((name, amount)) = part.split_once('=') else {
            return Err(format!("{part:?}: write RESOURCE=QUANTITY, such as cpu=8"));
        };
        if amounts.insert(name.trim().to_owned(), amount.trim().to_owned()).is_some() {
            return Err(format!("{name} is there twice"));
        }
    }
    if amounts.is_empty() {
        return Err("a pod has no resource: write one such as cpu=8,memory=16Gi".to_owned());
    }
    if amounts.len() > MAX_RESOURCES {
        return Err(format!("a pod has at most {MAX_RESOURCES} resources here"));
    }
    for (name, least) in [("cpu", "1m"), ("memory", LEAST_MEMORY)] {
        amounts.entry(name.to_owned()).or_insert_with(|| least.to_owned());
    }
    Workload::of_amounts(&amounts)
}

/// Returns the nodes on which a pod fits, and how many others there are by reason.
fn summary(workload: &Workload, answers: &[Answer]) -> Value {
    let fitting: Vec<Value> = answers.iter().filter_map(of_node).collect();
    json!({"pod": workload.name, "nodes": answers.len(), "fits": fitting, "reasons": reasons(answers),
           "notConsidered": fit::not_considered(workload)})
}

/// Returns where the containers land, and whether each is on one zone, if the pod fits.
fn of_node(answer: &Answer) -> Option<Value> {
    let Outcome::Yes { containers, guesses } = &answer.outcome else { return None };
    let is_aligned = |landing: &Landing| landing.zones.len() <= 1;
    let zones: Vec<Vec<crate::machine::Id>> =
        containers.iter().map(|landing| landing.zones.iter().collect()).collect();
    Some(json!({"node": answer.node, "zones": zones, "aligned": containers.iter().all(is_aligned),
                "guess": !guesses.is_empty()}))
}

fn reasons(answers: &[Answer]) -> Vec<(String, usize)> {
    fit::reasons(answers).into_iter().map(|(reason, nodes)| (reason, nodes.len())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_a_guaranteed_pod() {
        let workload = shape(" cpu=8, nvidia.com/gpu=1").unwrap();
        assert!(workload.wish.pod.guaranteed);
        assert_eq!(workload.wish.pod.containers[0].devices["nvidia.com/gpu"], 1);
        for (text, error) in
            [("", "no resource"), ("cpu", "RESOURCE=QUANTITY"), ("cpu=1,cpu=2", "twice"), ("cpu=x", "`x`")]
        {
            let found = shape(text).unwrap_err();
            assert!(found.contains(error), "{text}: {found}");
        }
    }
}
