//! Keeps the fleet up to date: watches objects, Nodes and agents.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::stream::{BoxStream, pending, select_all, unfold};
use futures::{Stream, StreamExt};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::fleet::Fleet;
use super::tile::NodeFacts;
use crate::cluster::{
    Cluster, ClusterError, ListWatchEvent, PublishedObject, SlimDaemonSet, SlimNode, SlimPod, WatchEvent,
    pod_labels, runs_agents,
};
use crate::util::backoff::jittered;
use crate::util::sync::lock;

/// How long the cluster is followed after the last page was closed.
const UNUSED: Duration = Duration::from_secs(300);
/// How often the agents' DaemonSets are looked for.
const DAEMON_SETS: Duration = Duration::from_secs(60);

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

type Events<T> = Pin<Box<dyn Stream<Item = Result<WatchEvent<T>, String>> + Send>>;

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
    let mut nodes: Events<SlimNode> = Box::pin(cluster.nodes());
    let mut nodes_listed = BTreeSet::new();
    let mut agents = Agents::new(cluster);
    loop {
        tokio::select! {
            Some(event) = objects.next() => shared.change(|fleet, now| object_event(fleet, event, now)),
            Some(event) = nodes.next() => {
                shared.change(|fleet, now| node_event(fleet, &mut nodes_listed, event, &group_by, now));
            }
            change = agents.next() => shared.change(|fleet, now| agents.apply(fleet, change, now)),
        }
    }
}

fn object_event(
    fleet: &mut Fleet,
    event: Result<ListWatchEvent<PublishedObject>, ClusterError>,
    now: Timestamp,
) {
    let problem = event.as_ref().err().map(|error| format!("objects are not up to date: {error}"));
    fleet.set_problem("objects", problem);
    match event {
        Ok(ListWatchEvent::Listed(objects)) => fleet.list_objects(objects, now),
        Ok(ListWatchEvent::Applied(object)) => fleet.put_object(object, now),
        Ok(ListWatchEvent::Deleted(object)) => fleet.remove_object(&object.meta.name, now),
        Ok(ListWatchEvent::Resumed) | Err(_) => {}
    }
}

fn node_event(
    fleet: &mut Fleet,
    listed: &mut BTreeSet<String>,
    event: Result<WatchEvent<SlimNode>, String>,
    group_by: &[String],
    now: Timestamp,
) {
    let facts = |node: &SlimNode| Some(NodeFacts::new(&node.labels, node.ready, group_by));
    match event {
        Err(error) => return fleet.set_problem("nodes", Some(format!("Nodes are not up to date: {error}"))),
        Ok(WatchEvent::Init) => return listed.clear(),
        Ok(WatchEvent::InitApply(node)) => {
            fleet.set_node(&node.name, facts(&node), now);
            listed.insert(node.name);
            return;
        }
        Ok(WatchEvent::InitDone) => fleet.keep_nodes(&std::mem::take(listed), now),
        Ok(WatchEvent::Apply(node)) => fleet.set_node(&node.name, facts(&node), now),
        Ok(WatchEvent::Delete(node)) => fleet.set_node(&node.name, None, now),
        Ok(WatchEvent::Resumed) => {}
    }
    fleet.set_problem("nodes", None);
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
        let daemon_sets = unfold((cluster.clone(), Duration::ZERO), look);
        Self {
            daemon_sets: daemon_sets.boxed(),
            cluster,
            watched: BTreeMap::new(),
            pods: pending().boxed(),
            nodes: BTreeMap::new(),
            listing: BTreeMap::new(),
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
                fleet.set_problem("daemonSets", Some(note));
            }
            Change::Found(Ok(found)) => {
                fleet.set_problem("daemonSets", None);
                if found != self.watched {
                    self.watch(found);
                }
                if self.watched.is_empty() {
                    fleet.set_knows_agents(false, now);
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

    fn pod_event(
        &mut self,
        fleet: &mut Fleet,
        namespace: String,
        event: Result<WatchEvent<SlimPod>, String>,
        now: Timestamp,
    ) {
        fleet.set_problem("agents", event.as_ref().err().map(|error| format!("agents: {error}")));
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
                fleet.set_knows_agents(true, now);
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
