//! Keeps the fleet up to date: watches objects, Nodes and agents.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{BoxStream, pending, select_all, unfold};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::fleet::{Fleet, NODES};
use super::tile::grouping_labels;
use crate::cluster::{
    Cluster, ClusterError, ListWatchEvent, NodeMetadata, PublishedObject, SlimDaemonSet, SlimPod, WatchEvent,
    pod_labels, runs_agents,
};
use crate::util::backoff::jittered;
use crate::util::sync::lock;

/// How long the cluster is followed after the last page was closed.
const UNUSED: Duration = Duration::from_secs(300);
/// How often the agents' DaemonSets are looked for, and how long after the nodes are shown for the first time: the page is
/// to draw them first.
const DAEMON_SETS: Duration = Duration::from_secs(60);
const AGENTS_AFTER: Duration = Duration::from_secs(1);

/// The fleet, and its newest version.
#[derive(Debug)]
pub(super) struct Shared {
    fleet: Mutex<Fleet>,
    version: watch::Sender<u64>,
    viewers: watch::Sender<usize>,
}

/// An open page.
#[derive(Debug)]
pub(super) struct Viewer(watch::Sender<usize>);

impl Drop for Viewer {
    fn drop(&mut self) {
        self.0.send_modify(|viewers| *viewers -= 1);
    }
}

impl Shared {
    pub(super) fn new() -> Self {
        Self { fleet: Mutex::default(), version: watch::Sender::new(0), viewers: watch::Sender::new(0) }
    }

    /// Counts a page until the result is dropped.
    pub(super) fn viewer(&self) -> Viewer {
        self.viewers.send_modify(|viewers| *viewers += 1);
        Viewer(self.viewers.clone())
    }

    pub(super) fn fleet(&self) -> MutexGuard<'_, Fleet> {
        lock(&self.fleet)
    }

    /// Returns the version whenever it has changed.
    pub(super) fn versions(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    #[allow(clippy::disallowed_methods)] // the history shows when something changed
    fn change(&self, act: impl FnOnce(&mut Fleet, Timestamp)) {
        let mut fleet = self.fleet();
        act(&mut fleet, Timestamp::now());
        let version = fleet.version();
        drop(fleet);
        self.version.send_if_modified(|known| std::mem::replace(known, version) != version);
    }
}

/// Waits until a page is open, and follows the cluster until all have been closed for a while: nobody pays for a page that
/// nobody reads.
pub(super) async fn follow_while_viewed(cluster: Cluster, shared: Arc<Shared>) {
    let mut viewers = shared.viewers.subscribe();
    // Cannot fail: `shared` has the sender.
    let _ = viewers.wait_for(|viewers| *viewers > 0).await;
    let unused = async {
        loop {
            let _ = viewers.wait_for(|viewers| *viewers == 0).await;
            if timeout(UNUSED, viewers.wait_for(|viewers| *viewers > 0)).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = follow(cluster, Arc::clone(&shared), Vec::new()) => {}
        () = unused => {}
    }
    shared.change(|fleet, _| fleet.clear());
}

/// Follows the cluster until it is dropped.
pub(super) async fn follow(cluster: Cluster, shared: Arc<Shared>, group_by: Vec<String>) {
    let mut objects = cluster.watch_objects(None);
    let mut nodes = cluster.watch_node_metadata();
    let mut agents = Agents::new(cluster);
    loop {
        // What tells whether agents are Ready is read last: without it, the nodes are shown earlier.
        let is_shown = shared.fleet().is_shown();
        tokio::select! {
            Some(event) = objects.next() => shared.change(|fleet, now| object_event(fleet, event, now)),
            Some(event) = nodes.next() => {
                shared.change(|fleet, now| node_event(fleet, event, &group_by, now));
            }
            change = agents.next(), if is_shown => shared.change(|fleet, now| agents.apply(fleet, change, now)),
        }
    }
}

fn object_event(
    fleet: &mut Fleet,
    event: Result<ListWatchEvent<PublishedObject>, ClusterError>,
    now: Timestamp,
) {
    let problem = event.as_ref().err().map(|error| format!("objects are not up to date: {error}"));
    fleet.set_problem("objects", problem, now);
    match event {
        Ok(ListWatchEvent::Listed(objects)) => fleet.list_objects(objects, now),
        Ok(ListWatchEvent::Applied(object)) => fleet.put_object(object, now),
        Ok(ListWatchEvent::Deleted(object)) => fleet.remove_object(&object.meta.name, now),
        Ok(ListWatchEvent::Resumed) | Err(_) => {}
    }
}

fn node_event(
    fleet: &mut Fleet,
    event: Result<ListWatchEvent<NodeMetadata>, ClusterError>,
    group_by: &[String],
    now: Timestamp,
) {
    let labels = |node: NodeMetadata| grouping_labels(node.labels, group_by);
    let problem = event.as_ref().err().map(|error| format!("Nodes are not up to date: {error}"));
    match event {
        Ok(ListWatchEvent::Listed(nodes)) => {
            let nodes = nodes.into_iter().map(|node| (node.name.clone(), labels(node)));
            fleet.list_nodes(nodes.collect(), now);
        }
        Ok(ListWatchEvent::Applied(node)) => fleet.set_node(&node.name.clone(), Some(labels(node)), now),
        Ok(ListWatchEvent::Deleted(node)) => fleet.set_node(&node.name, None, now),
        Ok(ListWatchEvent::Resumed) | Err(_) => {}
    }
    fleet.set_problem(NODES, problem, now);
}

/// Finds the agents' DaemonSets, and watches their pods.
struct Agents {
    cluster: Cluster,
    /// The namespaces and labels of the pods that are watched.
    watched: BTreeMap<String, String>,
    pods: BoxStream<'static, (String, Result<WatchEvent<SlimPod>, String>)>,
    daemon_sets: BoxStream<'static, Result<BTreeMap<String, String>, ClusterError>>,
    /// The node of each pod, by namespace and name.
    nodes: BTreeMap<(String, String), String>,
    listing: BTreeMap<String, BTreeSet<(String, String)>>,
    /// The namespaces whose pods have been listed.
    listed: BTreeSet<String>,
    /// Why the pods of a namespace are not up to date.
    problems: BTreeMap<String, String>,
}

/// What happened to agents.
enum Change {
    /// These are the namespaces and labels of agents' pods, or why that is not known.
    Found(Result<BTreeMap<String, String>, ClusterError>),
    Pod(String, Result<WatchEvent<SlimPod>, String>),
}

impl Agents {
    fn new(cluster: Cluster) -> Self {
        let look = |(cluster, delay): (Cluster, Duration)| async move {
            sleep(delay).await;
            Some((found(&cluster).await, (cluster, jittered(DAEMON_SETS))))
        };
        let daemon_sets = unfold((cluster.clone(), AGENTS_AFTER), look);
        Self {
            daemon_sets: daemon_sets.boxed(),
            cluster,
            watched: BTreeMap::new(),
            pods: pending().boxed(),
            nodes: BTreeMap::new(),
            listing: BTreeMap::new(),
            listed: BTreeSet::new(),
            problems: BTreeMap::new(),
        }
    }

    async fn next(&mut self) -> Change {
        tokio::select! {
            Some((namespace, event)) = self.pods.next() => Change::Pod(namespace, event),
            Some(found) = self.daemon_sets.next() => Change::Found(found),
        }
    }

    fn apply(&mut self, fleet: &mut Fleet, change: Change, now: Timestamp) {
        match change {
            Change::Found(Err(error)) => {
                let note = format!("whether agents are Ready is not known: {error}");
                fleet.set_problem("daemonSets", Some(note), now);
            }
            Change::Found(Ok(found)) => {
                fleet.set_problem("daemonSets", None, now);
                if found != self.watched {
                    self.watch(found);
                    self.forget_others(fleet, now);
                }
            }
            Change::Pod(namespace, event) => self.pod_event(fleet, namespace, event, now),
        }
    }

    fn watch(&mut self, found: BTreeMap<String, String>) {
        let watches = found.iter().map(|(namespace, labels)| {
            let of = namespace.clone();
            self.cluster.agents(namespace, labels).map(move |event| (of.clone(), event)).boxed()
        });
        // An empty `select_all` ends at once, which `next` takes for no event.
        self.pods = select_all(watches.chain([pending().boxed()])).boxed();
        self.watched = found;
    }

    /// Forgets the pods of namespaces that are no longer watched. Nothing is known of the others until they are listed.
    fn forget_others(&mut self, fleet: &mut Fleet, now: Timestamp) {
        self.listing.clear();
        self.listed.clear();
        self.problems.clear();
        fleet.set_problem("agents", None, now);
        fleet.set_knows_agents(false, now);
        let is_other = |key: &&(String, String)| !self.watched.contains_key(&key.0);
        let others: Vec<_> = self.nodes.keys().filter(is_other).cloned().collect();
        others.iter().for_each(|key| self.remove(fleet, key, now));
    }

    fn pod_event(
        &mut self,
        fleet: &mut Fleet,
        namespace: String,
        event: Result<WatchEvent<SlimPod>, String>,
        now: Timestamp,
    ) {
        match &event {
            Ok(_) => drop(self.problems.remove(&namespace)),
            Err(error) => drop(self.problems.insert(namespace.clone(), format!("agents: {error}"))),
        }
        fleet.set_problem("agents", self.problems.values().next().cloned(), now);
        match event {
            Ok(WatchEvent::Init) => drop(self.listing.insert(namespace, BTreeSet::new())),
            Ok(WatchEvent::InitApply(pod)) => {
                let key = (namespace.clone(), pod.name.clone());
                self.listing.entry(namespace).or_default().insert(key.clone());
                self.put(fleet, key, &pod, now);
            }
            Ok(WatchEvent::InitDone) => {
                let listed = self.listing.remove(&namespace).unwrap_or_default();
                let is_gone = |key: &&(String, String)| key.0 == namespace && !listed.contains(*key);
                let gone: Vec<_> = self.nodes.keys().filter(is_gone).cloned().collect();
                gone.iter().for_each(|key| self.remove(fleet, key, now));
                self.listed.insert(namespace);
                fleet.set_knows_agents(self.listed.len() == self.watched.len(), now);
            }
            Ok(WatchEvent::Apply(pod)) => self.put(fleet, (namespace, pod.name.clone()), &pod, now),
            Ok(WatchEvent::Delete(pod)) => self.remove(fleet, &(namespace, pod.name), now),
            Ok(WatchEvent::Resumed) | Err(_) => {}
        }
    }

    fn put(&mut self, fleet: &mut Fleet, key: (String, String), pod: &SlimPod, now: Timestamp) {
        if pod.node.is_empty() {
            return;
        }
        fleet.set_agent(&pod.node, &key.1, Some(pod.ready), now);
        self.nodes.insert(key, pod.node.clone());
    }

    fn remove(&mut self, fleet: &mut Fleet, key: &(String, String), now: Timestamp) {
        if let Some(node) = self.nodes.remove(key) {
            fleet.set_agent(&node, &key.1, None, now);
        }
    }
}

/// Returns the namespaces of DaemonSets that run agents, and the labels of their pods.
async fn found(cluster: &Cluster) -> Result<BTreeMap<String, String>, ClusterError> {
    let mut sets: BTreeMap<String, Vec<SlimDaemonSet>> = BTreeMap::new();
    let add = |set: SlimDaemonSet| {
        if runs_agents(&set) {
            sets.entry(set.namespace().to_owned()).or_default().push(set);
        }
    };
    cluster.all_daemon_sets().for_each(add).await?;
    let labels = sets.into_iter().filter_map(|(namespace, sets)| Some((namespace, pod_labels(&sets)?)));
    Ok(labels.collect())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::super::tile::{Labels, Status};
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    /// Returns a cluster that never answers.
    fn cluster() -> Cluster {
        let silent = |_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>();
        let client = kube::Client::new(tower::service_fn(silent), "default");
        Cluster::with_client(client, "fake".to_owned(), Duration::from_secs(30))
    }

    fn object(name: &str) -> PublishedObject {
        let cpu = json!({"name": "cpu", "capacity": 8, "allocatable": 8, "available": 8});
        let zones = json!([{"name": "node-0", "type": "Node", "resources": [cpu]}]);
        serde_json::from_value(json!({"metadata": {"name": name}, "zones": zones})).unwrap()
    }

    fn pod(node: &str) -> SlimPod {
        let conditions = json!([{"type": "Ready", "status": "True"}]);
        let pod: Value = json!({"metadata": {"name": format!("agent-{node}")}, "spec": {"nodeName": node},
            "status": {"conditions": conditions}});
        serde_json::from_value(pod).unwrap()
    }

    #[tokio::test]
    async fn agents_are_known_once_the_pods_of_all_namespaces_are_listed() {
        let (mut fleet, mut agents) = (Fleet::default(), Agents::new(cluster()));
        fleet.list_objects(vec![object("a"), object("b")], NOW);
        fleet.list_nodes([("a".to_owned(), Labels::new()), ("b".to_owned(), Labels::new())].into(), NOW);
        let found = |namespaces: &[&str]| {
            let labels = namespaces.iter().map(|name| ((*name).to_owned(), "app=numacast".to_owned()));
            Change::Found(Ok(labels.collect()))
        };
        let stale = |fleet: &Fleet| {
            ["a", "b"].map(|name| fleet.tile(name).is_some_and(|tile| tile.status == Status::Stale))
        };
        let listed = |agents: &mut Agents, fleet: &mut Fleet, namespace: &str, pods: Vec<SlimPod>| {
            for event in WatchEvent::list(pods) {
                agents.apply(fleet, Change::Pod(namespace.to_owned(), Ok(event)), NOW);
            }
        };
        agents.apply(&mut fleet, found(&["one", "two"]), NOW);
        listed(&mut agents, &mut fleet, "one", vec![pod("a")]);
        assert_eq!(stale(&fleet), [false, false], "the pods of two are not listed");
        let denied = Change::Pod("two".to_owned(), Err("denied".to_owned()));
        agents.apply(&mut fleet, denied, NOW);
        listed(&mut agents, &mut fleet, "one", vec![pod("a")]);
        assert_eq!(fleet.since(0, 10).problems, ["agents: denied"]);
        listed(&mut agents, &mut fleet, "two", Vec::new());
        assert_eq!((stale(&fleet), fleet.since(0, 10).problems.len()), ([false, true], 0));
        // Of a namespace without agents no deletion is seen.
        agents.apply(&mut fleet, found(&["two"]), NOW);
        assert_eq!(stale(&fleet), [false, false]);
        listed(&mut agents, &mut fleet, "two", vec![pod("b")]);
        assert_eq!(stale(&fleet), [true, false]);
    }
}
