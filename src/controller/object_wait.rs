//! Waits for the objects of Nodes, before a scheduler starts that ignores objects created later.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::info;

use super::coverage::{coverage_and_labels, is_covered};
use super::settings::Settings;
use crate::cluster::{Cluster, ClusterError, NrtSummary, SlimNode};
use crate::util::backoff::back_off;

/// Delay between two reads of the cluster, and its maximum.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_LIMIT: Duration = Duration::from_secs(10);
/// Maximum number of Nodes that are named.
const MAX_NAMES: usize = 10;

/// The result of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectWait {
    /// Every one of so many Nodes has an object.
    Complete(usize),
    /// These Nodes have none.
    Missing(Vec<String>),
    /// It is not known which Nodes should have one; the text is the reason.
    Unknown(String),
}

impl ObjectWait {
    const fn is_complete(&self) -> bool {
        matches!(self, Self::Complete(_))
    }
}

impl fmt::Display for ObjectWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Complete(nodes) => write!(f, "all Nodes that should have an object have one: {nodes}"),
            Self::Missing(names) => {
                write!(f, "Nodes without an object: {}", names[..names.len().min(MAX_NAMES)].join(", "))?;
                match names.len().saturating_sub(MAX_NAMES) {
                    0 => Ok(()),
                    more => write!(f, " and {more} more"),
                }
            }
            Self::Unknown(reason) => write!(f, "it is not known which Nodes should have an object: {reason}"),
        }
    }
}

/// Waits until every Ready Node that a DaemonSet covers has an object, at most for `limit`. Returns the last state.
pub async fn wait_for_objects(settings: &Settings, cluster: &Cluster, limit: Duration) -> ObjectWait {
    let cluster = cluster.clone().in_form(settings.form);
    let (deadline, mut failures, mut last) = (Instant::now() + limit, 0, None);
    loop {
        let state =
            read(settings, &cluster).await.unwrap_or_else(|error| ObjectWait::Unknown(error.to_string()));
        let delay = back_off(&mut failures, RETRY, RETRY_LIMIT);
        if state.is_complete() || Instant::now() + delay > deadline {
            return state;
        }
        if last.as_ref() != Some(&state) {
            info!("{state}");
        }
        last = Some(state);
        sleep(delay).await;
    }
}

async fn read(settings: &Settings, cluster: &Cluster) -> Result<ObjectWait, ClusterError> {
    let (namespace, names) = (&settings.namespace, &settings.daemon_sets);
    if names.is_empty() {
        return Ok(ObjectWait::Unknown("no DaemonSet is set (controller.daemonSets)".to_owned()));
    }
    let found = cluster.daemon_sets(namespace, names).await?;
    let coverage = match coverage_and_labels(namespace, found) {
        Ok((coverage, _)) => coverage,
        Err(problem) => return Ok(ObjectWait::Unknown(problem)),
    };
    let mut nodes = BTreeSet::new();
    let mut add_node = |node: SlimNode| {
        if node.ready && is_covered(&coverage, &node) {
            nodes.insert(node.name);
        }
    };
    cluster.node_pages().for_each(&mut add_node).await?;
    let count = nodes.len();
    let remove = |summary: NrtSummary| {
        nodes.remove(&summary.meta.name);
    };
    cluster.topology_summaries().for_each(remove).await?;
    Ok(match nodes.is_empty() {
        true => ObjectWait::Complete(count),
        false => ObjectWait::Missing(nodes.into_iter().collect()),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::{Value, json};

    use super::super::fake::{self, Parts};
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn node(name: &str, ready: bool, labels: &Value) -> Value {
        let status = if ready { "True" } else { "False" };
        json!({
            "metadata": {"name": name, "uid": name, "labels": labels},
            "status": {"conditions": [{"type": "Ready", "status": status}]},
        })
    }

    /// Returns the result on a cluster whose Nodes have these objects at the first read, the second and so on; the
    /// last ones stay.
    async fn wait(nodes: Vec<Value>, objects: &'static [&'static [&'static str]]) -> ObjectWait {
        let reads = Arc::new(AtomicUsize::new(0));
        let cluster = fake::cluster(move |call| {
            let list = |items: Vec<Value>| json!({"metadata": {}, "items": items});
            let response = if call.contains("/daemonsets/") {
                let pod = json!({"nodeSelector": {"pool": "numa"}, "containers": []});
                json!({
                    "metadata": {},
                    "spec": {"selector": {"matchLabels": {"app": "agent"}}, "template": {"spec": pod}},
                })
            } else if call.contains("/noderesourcetopologies") {
                let read = reads.fetch_add(1, Ordering::Relaxed).min(objects.len() - 1);
                let object = |name: &&str| json!({"metadata": {"name": name}, "zones": []});
                list(objects[read].iter().map(object).collect())
            } else {
                list(nodes.clone())
            };
            async move { (200, response) }
        });
        let mut settings = Parts::new(cluster.clone()).settings;
        (settings.namespace, settings.daemon_sets) = ("ns".to_owned(), vec!["agents".to_owned()]);
        wait_for_objects(&settings, &cluster, LIMIT).await
    }

    #[tokio::test(start_paused = true)]
    async fn only_ready_nodes_that_the_daemon_set_covers_are_waited_for() {
        let covered = json!({"pool": "numa"});
        let nodes =
            || vec![node("a", true, &covered), node("b", false, &covered), node("c", true, &json!({}))];
        let start = Instant::now();
        assert_eq!(wait(nodes(), &[&["a"]]).await, ObjectWait::Complete(1));
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert_eq!(wait(nodes(), &[&[], &["b"], &["a"]]).await, ObjectWait::Complete(1));
        assert!(start.elapsed() >= RETRY * 2, "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_is_limited_and_the_missing_objects_are_named() {
        let start = Instant::now();
        let nodes = (10..22).map(|n| node(&format!("n{n}"), true, &json!({"pool": "numa"}))).collect();
        let state = wait(nodes, &[&["n10"]]).await;
        assert!(start.elapsed() > LIMIT / 2 && start.elapsed() <= LIMIT, "{:?}", start.elapsed());
        assert_eq!(
            state.to_string(),
            "Nodes without an object: n11, n12, n13, n14, n15, n16, n17, n18, n19, n20 and 1 more"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_daemon_set_that_does_not_exist_is_waited_for() {
        let cluster = fake::cluster(|_| async {
            (404, json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"}))
        });
        let mut settings = Parts::new(cluster.clone()).settings;
        (settings.namespace, settings.daemon_sets) = ("ns".to_owned(), vec!["agents".to_owned()]);
        let state = wait_for_objects(&settings, &cluster, LIMIT).await;
        assert_eq!(
            state.to_string(),
            "it is not known which Nodes should have an object: there is no DaemonSet ns/agents"
        );
    }
}
