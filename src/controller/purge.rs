//! Removes our objects before numacast is uninstalled: objects that are no longer updated would mislead the
//! scheduler forever.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use super::names::first_names;
use super::settings::Settings;
use crate::cluster::{Cluster, ClusterError, Pages, SlimDaemonSet, SlimPod, pod_labels, runs_agents};
use crate::nrt::{Form, Version};

/// How long the agents may take to terminate.
const AGENTS_TIMEOUT: Duration = Duration::from_secs(120);
/// How long the whole purge may take. Helm waits for five minutes.
const TIMEOUT: Duration = Duration::from_secs(240);
const POLL: Duration = Duration::from_secs(1);
/// A pod that still exists after this time may be on a Node that is down, where it stays forever.
const NODE_DOWN: Duration = Duration::from_secs(15);

/// Why something is left.
#[allow(missing_docs, reason = "each variant's message describes it")]
#[derive(Debug, thiserror::Error)]
pub enum PurgeError {
    #[error("{0}; run the command again")]
    Cluster(ClusterError),
    #[error(
        "the DaemonSet {namespace}/{name} runs no agents of numacast, so nothing was deleted: name those of the agents in \
         --set controller.daemonSets=[NAME], or use [] if there are none"
    )]
    NotOurs { namespace: String, name: String },
    #[error(
        "{removed} objects were removed, but after {AGENTS_TIMEOUT:?} agents still run on {nodes}: they make their objects again; \
         delete their pods and run the command again"
    )]
    Agents { removed: usize, nodes: String },
    #[error(
        "{removed} objects {done} removed in {TIMEOUT:?}, and some are left{}; run the command again",
        reason(.left)
    )]
    Time { removed: usize, done: &'static str, left: Remaining },
}

/// Not `#[from]`, which would print the message twice.
impl From<ClusterError> for PurgeError {
    fn from(error: ClusterError) -> Self {
        Self::Cluster(error)
    }
}

fn reason(Remaining { finalizing, error, .. }: &Remaining) -> String {
    let finalizing = match finalizing.is_empty() {
        true => String::new(),
        false => format!(": finalizers keep {}", first_names(finalizing)),
    };
    error.as_ref().map_or_else(|| finalizing.clone(), |error| format!("{finalizing}: {error}"))
}

/// What is left after a pass over all objects.
#[derive(Debug, Default)]
pub struct Remaining {
    found: bool,
    /// Objects that were deleted but have finalizers.
    finalizing: BTreeSet<String>,
    error: Option<ClusterError>,
}

/// What was removed, or would be in a dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Of the form `NAMESPACE/NAME`.
    daemon_sets: Vec<String>,
    objects: Vec<String>,
    no_crd: bool,
    is_dry_run: bool,
}

impl fmt::Display for Purged {
    /// A summary; in a dry run after a line for each object.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { daemon_sets, objects, no_crd, is_dry_run } = self;
        if *is_dry_run {
            for daemon_set in daemon_sets {
                writeln!(f, "DaemonSet {daemon_set}")?;
            }
            for object in objects {
                writeln!(f, "NodeResourceTopology {object}")?;
            }
        }
        let done = if *is_dry_run { "would be removed" } else { "removed" };
        let agents = match daemon_sets.len() {
            0 => "",
            1 => "the agents' DaemonSet and ",
            _ => "the agents' DaemonSets and ",
        };
        match no_crd {
            true => {
                write!(f, "{agents}no object {done}: the CRD of NodeResourceTopology is not installed")
            }
            false => write!(f, "{agents}{} objects {done}", objects.len()),
        }
    }
}

/// Deletes the agents' DaemonSets, waits for their pods to terminate, and deletes every object whose zones we
/// wrote.
///
/// # Errors
/// If something is left; it can be run again.
pub async fn purge(settings: &Settings, cluster: &Cluster) -> Result<Purged, PurgeError> {
    let cluster = &cluster.clone().in_form(settings.form);
    let end = Instant::now() + TIMEOUT;
    let (daemon_sets, left) = match settings.daemon_sets.is_empty() {
        true => (Vec::new(), BTreeSet::new()),
        false => delete_agents(settings, cluster).await?,
    };
    let mut purged = Purged { daemon_sets, is_dry_run: settings.dry_run, ..Purged::default() };
    // In the API version that agents write, or in the other one if that is not served.
    let mut removed = remove_objects(settings, cluster, end).await;
    if let Err(PurgeError::Cluster(ClusterError::NoCrd(_))) = removed {
        let version = match settings.form.version {
            Version::V1alpha1 => Version::V1alpha2,
            Version::V1alpha2 => Version::V1alpha1,
        };
        let other = cluster.clone().in_form(Form { version, ..settings.form });
        removed = remove_objects(settings, &other, end).await;
    }
    match removed {
        Ok(objects) => purged.objects = objects,
        Err(PurgeError::Cluster(ClusterError::NoCrd(_))) => purged.no_crd = true,
        Err(error) => return Err(error),
    }
    match left.is_empty() {
        true => Ok(purged),
        false => Err(PurgeError::Agents { removed: purged.objects.len(), nodes: first_names(&left) }),
    }
}

/// Deletes the DaemonSets and waits for their pods. Returns their names, and the Nodes where agents
/// are still running.
async fn delete_agents(
    settings: &Settings,
    cluster: &Cluster,
) -> Result<(Vec<String>, BTreeSet<String>), PurgeError> {
    let (namespace, names) = (&settings.namespace, &settings.daemon_sets);
    let found: Vec<SlimDaemonSet> = agents(settings, cluster).await?;
    // Without a DaemonSet, or with selectors that cannot be sent as a query, pods are found by their owner
    // references.
    let all = found.len() == names.len();
    let labels = all.then(|| pod_labels(&found)).flatten().unwrap_or_default();
    let full_name = |daemon_set: &SlimDaemonSet| format!("{namespace}/{}", daemon_set.name());
    if settings.dry_run {
        return Ok((found.iter().map(full_name).collect(), BTreeSet::new()));
    }
    let mut deleted = Vec::new();
    for daemon_set in &found {
        if cluster.delete_daemon_set(namespace, daemon_set).await? {
            deleted.push(full_name(daemon_set));
        }
    }
    if !deleted.is_empty() {
        info!("deleted the DaemonSets {}; waiting for their pods to end", deleted.join(", "));
    }
    let owned = |pod: &SlimPod| pod.daemon_set.as_ref().is_some_and(|owner| names.contains(owner));
    let is_ours = |pod: &SlimPod| !labels.is_empty() || owned(pod);
    let started = Instant::now();
    let mut check_nodes_at = started + NODE_DOWN;
    loop {
        let only_ready = Instant::now() >= check_nodes_at;
        match nodes_of_pods(cluster, cluster.labelled_pods(namespace, &labels), &is_ours, only_ready).await {
            Ok(nodes) if nodes.is_empty() || started.elapsed() >= AGENTS_TIMEOUT => {
                return Ok((deleted, nodes));
            }
            Ok(_) => {}
            Err(error) if error.is_permanent() || started.elapsed() >= AGENTS_TIMEOUT => {
                return Err(error.into());
            }
            Err(error) => debug!("{error}; retrying"),
        }
        if only_ready {
            check_nodes_at = Instant::now() + NODE_DOWN;
        }
        sleep(POLL).await;
    }
}

/// Returns the agents' DaemonSets that exist; an error if one runs something else.
async fn agents(settings: &Settings, cluster: &Cluster) -> Result<Vec<SlimDaemonSet>, PurgeError> {
    let namespace = &settings.namespace;
    let mut found = Vec::new();
    for (name, daemon_set) in cluster.daemon_sets(namespace, &settings.daemon_sets).await? {
        let Some(daemon_set) = daemon_set else { continue };
        if !runs_agents(&daemon_set) {
            return Err(PurgeError::NotOurs { namespace: namespace.clone(), name });
        }
        found.push(daemon_set);
    }
    Ok(found)
}

/// Returns the Nodes where agents run, or only those that are Ready. A pod without a Node writes nothing.
async fn nodes_of_pods(
    cluster: &Cluster,
    pages: Pages<SlimPod>,
    is_ours: impl Fn(&SlimPod) -> bool,
    only_ready: bool,
) -> Result<BTreeSet<String>, ClusterError> {
    let mut nodes: BTreeSet<String> = BTreeSet::new();
    let add = |pod: SlimPod| nodes.extend((is_ours(&pod) && !pod.node.is_empty()).then_some(pod.node));
    pages.for_each(add).await?;
    if only_ready && !nodes.is_empty() {
        let mut ready = BTreeSet::new();
        cluster.node_pages().for_each(|node| ready.extend(node.ready.then_some(node.name))).await?;
        nodes.retain(|node| ready.contains(node));
        if nodes.is_empty() {
            warn!("not waiting for agents on Nodes that are not Ready");
        }
    }
    Ok(nodes)
}

/// Repeats until a pass finds no object of ours. Returns the removed objects, in a dry run those that would be.
async fn remove_objects(
    settings: &Settings,
    cluster: &Cluster,
    end: Instant,
) -> Result<Vec<String>, PurgeError> {
    let mut removed = Vec::new();
    loop {
        if settings.dry_run {
            removed.clear();
        }
        let before = removed.len();
        let left = remove_once(settings, cluster, end, &mut removed).await;
        // A list expires if it takes too long to read.
        let is_expired = |error: &ClusterError| matches!(error, ClusterError::Rejected { code: 410, .. });
        let is_permanent = |error: &ClusterError| error.is_permanent() && !is_expired(error);
        match &left.error {
            // Single objects may be rejected for their own reasons; if all are, a retry is pointless.
            Some(error) if removed.len() == before && is_permanent(error) => {
                return Err(error.clone().into());
            }
            None if settings.dry_run || !left.found => return Ok(removed),
            _ => {}
        }
        if Instant::now() >= end {
            let done = if settings.dry_run { "would be" } else { "were" };
            return Err(PurgeError::Time { removed: removed.len(), done, left });
        }
        let retry_after = left.error.as_ref().and_then(ClusterError::retry_after);
        left.error.iter().for_each(|error| debug!("{error}; retrying"));
        // Objects that have finalizers or are recreated are not polled in a tight loop.
        sleep(retry_after.unwrap_or(POLL)).await;
    }
}

async fn remove_once(
    settings: &Settings,
    cluster: &Cluster,
    end: Instant,
    removed: &mut Vec<String>,
) -> Remaining {
    let mut left = Remaining::default();
    let mut pages = cluster.topology_metas();
    loop {
        let metas = match pages.next().await {
            Ok(Some(metas)) => metas,
            Ok(None) => return left,
            Err(error) => {
                left.error = Some(error);
                return left;
            }
        };
        for meta in metas.into_iter().filter(|meta| meta.writers.ours) {
            left.found = true;
            if settings.dry_run {
                removed.push(meta.name);
                continue;
            }
            if meta.is_deleted {
                left.finalizing.insert(meta.name);
                continue;
            }
            if Instant::now() >= end {
                return left;
            }
            match cluster.delete_topology_by_uid(&meta).await {
                Ok(true) => removed.push(meta.name),
                Ok(false) => {}
                // Another object has this name now; the next pass checks whose it is.
                Err(error) if error.is_other_object_or_version() => {}
                Err(error) => {
                    let ends_pass = error.affects_every_call();
                    left.error = Some(error);
                    if ends_pass {
                        return left;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::{Value, json};

    use super::super::fake::{self, Parts};
    use super::*;

    /// Does a dry run with three objects of ours on two pages. The second page can be read after this many
    /// failures.
    async fn dry_run(failures: usize) -> String {
        let second_page = AtomicUsize::new(0);
        let cluster = fake::cluster(move |call| {
            let page = |names: &[&str], next: &str| -> (u16, Value) {
                let managed = json!([{"manager": "numacast", "fieldsV1": {"f:zones": {}}}]);
                let object =
                    |name: &&str| json!({"metadata": {"name": name, "uid": name, "managedFields": managed}});
                let items: Vec<Value> = names.iter().map(object).collect();
                (200, json!({"metadata": {"continue": next}, "items": items}))
            };
            let response = match call.contains("continue=") {
                false => page(&["a", "b"], "next"),
                true if second_page.fetch_add(1, Ordering::Relaxed) < failures => (
                    500,
                    json!({"status": "Failure", "code": 500, "reason": "InternalError", "message": "no"}),
                ),
                true => page(&["c"], ""),
            };
            async move { response }
        });
        let settings = Settings { dry_run: true, ..Parts::new(cluster.clone()).settings };
        match purge(&settings, &cluster).await {
            Ok(purged) => purged.to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_dry_run_that_is_repeated_counts_each_object_once() {
        let objects = ["a", "b", "c"].map(|name| format!("NodeResourceTopology {name}\n")).concat();
        assert_eq!(dry_run(2).await, objects + "3 objects would be removed");
        let error = dry_run(usize::MAX).await;
        assert!(
            error.starts_with("2 objects would be removed in 240s, and some are left: the API"),
            "{error}"
        );
    }

    #[test]
    fn the_result_says_what_was_removed() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let text = |daemon_sets: &[&str], no_crd, is_dry_run| {
            let (daemon_sets, objects) = (names(daemon_sets), names(&["w-1", "w-2"]));
            Purged { daemon_sets, objects, no_crd, is_dry_run }.to_string()
        };
        assert_eq!(text(&["n/a"], false, false), "the agents' DaemonSet and 2 objects removed");
        assert_eq!(text(&["n/a", "n/b"], false, false), "the agents' DaemonSets and 2 objects removed");
        assert_eq!(
            text(&["n/a"], false, true),
            "DaemonSet n/a\nNodeResourceTopology w-1\nNodeResourceTopology w-2\n\
             the agents' DaemonSet and 2 objects would be removed"
        );
        assert_eq!(
            text(&[], true, false),
            "no object removed: the CRD of NodeResourceTopology is not installed"
        );
    }
}
