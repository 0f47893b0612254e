//! A small Kubernetes API server over HTTP, sufficient for kube, the agent and a user's `kubectl`, with the
//! messages of a real one and with faults on demand ([`Fault`]).
//!
//! It serves nodes, pods, namespaces, events, leases, DaemonSets, `NodeResourceTopology` and `Device` objects with get,
//! list, watch, create, update, merge patch, server-side apply and delete, and collects garbage by owner. It
//! has no authentication, no JSON patch, no protocol buffers except for pods, and no tables (so `kubectl`
//! prints names and ages only).

mod endpoint;
mod faults;
mod fields;
mod http;
mod kinds;
mod pages;
mod protobuf;
mod schema;
mod selector;
mod shape;
mod status;
mod store;
mod target;
mod watches;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use serde_json::{Value, json};
use tokio::sync::{broadcast, watch};

pub use faults::{Fault, Rule};
pub use kinds::{
    CORE_EVENTS, DAEMON_SETS, DEVICES, EVENTS, Kind, LEASES, NAMESPACES, NODES, PODS, TOPOLOGIES,
};
pub use store::{Change, EventType};

use self::endpoint::Endpoint;
use self::faults::Faults;
use self::fields::Writer;
use self::pages::Pages;
use self::store::{Key, Store, Write, Written};
use super::serve::Serving;
use crate::sync::lock;
use numacast_core::nrt::NodeResourceTopology;

/// Number of writes of `NodeResourceTopology` objects by clients.
#[derive(Clone, Copy, Debug, Default)]
pub struct Writes {
    /// Write requests, rejected ones included.
    pub requests: u64,
    /// Requests that changed an object.
    pub changes: u64,
    /// When the last change was in the store.
    pub last_change: Option<Instant>,
}

/// A recorded request for objects.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    /// The RBAC verb: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`.
    pub verb: &'static str,
    /// The kind of the objects.
    pub kind: &'static Kind,
    /// The query string.
    pub query: String,
    /// When it arrived.
    pub at: tokio::time::Instant,
}

/// Maximum number of recorded requests.
const MAX_REQUESTS: usize = 4096;

/// A rejected write of a test or the scenario.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the simulated API server rejected the object: {0}")]
pub struct Rejected(String);

/// An embedded API server. Dropping it stops it.
#[derive(Debug)]
pub struct ApiServer {
    shared: Arc<Shared>,
    endpoint: Endpoint,
    serving: Serving,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    frozen: watch::Sender<bool>,
}

#[derive(Debug)]
struct State {
    store: Store,
    pages: Pages,
    faults: Faults,
    installed: bool,
    koordinator: bool,
    denied: BTreeSet<(&'static str, &'static str)>,
    user: String,
    writes: Writes,
    generated: u64,
    /// The kind of each open watch.
    watched: Vec<&'static Kind>,
    /// The latest requests.
    requests: VecDeque<RecordedRequest>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Waits until the server is not frozen.
    async fn thawed(&self) {
        // Cannot fail: `self` owns the sender.
        let _ = self.frozen.subscribe().wait_for(|frozen| !frozen).await;
    }
}

impl State {
    fn count(&mut self, kind: &Kind, written: Option<&Written>) {
        if kind != &TOPOLOGIES {
            return;
        }
        self.writes.requests += 1;
        if written.is_some_and(|written| written.changed) {
            self.writes.changes += 1;
            self.writes.last_change = Some(Instant::now());
        }
    }

    fn record(&mut self, verb: &'static str, kind: &'static Kind, query: &str) {
        if self.requests.len() == MAX_REQUESTS {
            self.requests.pop_front();
        }
        let (query, at) = (query.to_owned(), tokio::time::Instant::now());
        self.requests.push_back(RecordedRequest { verb, kind, query, at });
    }

    /// Returns true if the kind is installed.
    fn serves(&self, kind: &Kind) -> bool {
        (self.installed || kind != &TOPOLOGIES) && (self.koordinator || kind != &DEVICES)
    }

    fn generated_name(&mut self, prefix: &str) -> String {
        self.generated += 1;
        format!("{prefix}{:05x}", self.generated)
    }
}

#[allow(clippy::disallowed_methods, reason = "objects carry the wall clock's times")]
fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl Shared {
    /// Returns an empty cluster. Uids are drawn from `seed`.
    fn new(seed: u64) -> Arc<Self> {
        let mut store = Store::new(seed);
        store::seed(&mut store, &now());
        let state = State {
            store,
            pages: Pages::default(),
            faults: Faults::default(),
            installed: true,
            koordinator: false,
            denied: BTreeSet::new(),
            user: "system:serviceaccount:numacast:numacast".into(),
            writes: Writes::default(),
            generated: 0,
            watched: Vec::new(),
            requests: VecDeque::new(),
        };
        Arc::new(Self { state: Mutex::new(state), frozen: watch::Sender::new(false) })
    }
}

impl ApiServer {
    /// Starts a server on `address` (port 0 takes any free one) with the namespaces of a fresh cluster and
    /// the CRD. Uids are drawn from `seed`.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn start(address: SocketAddr, seed: u64) -> io::Result<Self> {
        let shared = Shared::new(seed);
        let (endpoint, serving) = Endpoint::tcp(address, &shared).await?;
        Ok(Self { shared, endpoint, serving })
    }

    /// Starts a server for clients in this process, without sockets: the clock may be paused. Data in a socket
    /// may take a moment to arrive, in which a paused clock would advance.
    #[must_use]
    pub fn start_in_process(seed: u64) -> Self {
        let shared = Shared::new(seed);
        let (endpoint, serving) = Endpoint::in_process(&shared);
        Self { shared, endpoint, serving }
    }

    /// Starts a server on any free port of a loopback address that no other server has.
    ///
    /// # Errors
    /// If no port is free.
    pub async fn start_on_any_port(seed: u64) -> io::Result<Self> {
        let address = [127, fastrand::u8(1..255), fastrand::u8(..), fastrand::u8(1..255)];
        Self::start(SocketAddr::from((address, 0)), seed).await
    }

    /// `http://127.12.34.56:12345`, or `http://localhost` for a server in this process.
    #[must_use]
    pub fn url(&self) -> String {
        self.endpoint.url()
    }

    /// Creates a client of this server.
    ///
    /// # Errors
    /// When kube cannot create one.
    pub fn client(&self) -> Result<kube::Client, kube::Error> {
        self.endpoint.client()
    }

    /// Stops the server: connections are closed, new ones at once. Its objects stay.
    pub fn stop(&self) {
        self.serving.control.set_stopped(true);
    }

    /// Lets a stopped server serve again.
    pub fn resume(&self) {
        self.serving.control.set_stopped(false);
    }

    /// Closes the connections that are open now.
    pub fn cut_connections(&self) {
        self.serving.control.cut_connections();
    }

    /// Freezes the server: it accepts connections and requests but does not respond, and watches send
    /// nothing.
    pub fn set_frozen(&self, frozen: bool) {
        self.shared.frozen.send_replace(frozen);
    }

    /// Injects faults into the requests that match the rule.
    pub fn inject(&self, rule: Rule) {
        self.shared.lock().faults.push(rule);
    }

    /// Injects a fault into the next `times` requests with this verb on this resource.
    pub fn fail_next(&self, verb: &'static str, resource: &'static str, times: usize, fault: Fault) {
        self.inject(Rule { verb: Some(verb), resource: Some(resource), times: Some(times), fault });
    }

    /// Removes all rules.
    pub fn clear_faults(&self) {
        self.shared.lock().faults.clear();
    }

    /// Sets whether the CRD of `NodeResourceTopology` is installed.
    pub fn set_installed(&self, installed: bool) {
        self.shared.lock().installed = installed;
    }

    /// Sets whether the CRD of Koordinator's `Device` is installed. Initially it is not.
    pub fn set_koordinator(&self, installed: bool) {
        self.shared.lock().koordinator = installed;
    }

    /// Denies a verb on a resource by RBAC, or allows it again.
    pub fn set_denied(&self, verb: &'static str, resource: &'static str, denied: bool) {
        let rules = &mut self.shared.lock().denied;
        if denied {
            rules.insert((verb, resource));
        } else {
            rules.remove(&(verb, resource));
        }
    }

    /// Compacts the history: a watch from an older version and the next page of a list fail with 410.
    pub fn compact_history(&self) {
        let state = &mut *self.shared.lock();
        state.store.compact_history();
        state.pages.compact();
    }

    /// Stops updating the watch cache, or catches up. Requests that accept older data are served from it.
    pub fn set_cache_stale(&self, stale: bool) {
        self.shared.lock().store.set_cache_stale(stale);
    }

    /// Restores an old backup: resource versions go back. A watch from a newer version receives nothing until
    /// that version is reached again.
    pub fn restore_backup(&self) {
        let state = &mut *self.shared.lock();
        state.store.restore_backup();
        state.pages.compact();
    }

    /// The latest requests for objects of a kind, rejected ones included.
    #[must_use]
    pub fn requests(&self, kind: &'static Kind) -> Vec<RecordedRequest> {
        self.shared.lock().requests.iter().filter(|request| request.kind == kind).cloned().collect()
    }

    /// Number of writes of `NodeResourceTopology` objects over HTTP.
    #[must_use]
    pub fn writes(&self) -> Writes {
        self.shared.lock().writes
    }

    /// Number of open watches of a kind.
    #[must_use]
    pub fn watchers(&self, kind: &'static Kind) -> usize {
        self.shared.lock().watched.iter().filter(|watched| **watched == kind).count()
    }

    /// Subscribes to the changes of all objects.
    #[must_use]
    pub fn changes(&self) -> broadcast::Receiver<Arc<Change>> {
        self.shared.lock().store.subscribe()
    }

    /// Creates or replaces an object, as the cluster would.
    ///
    /// # Errors
    /// When the object has no name or does not match its schema.
    pub fn put(&self, kind: &'static Kind, object: Value) -> Result<Arc<Value>, Rejected> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (name, namespace) = (text(&object["metadata"]["name"]), text(&object["metadata"]["namespace"]));
        if name.is_empty() {
            return Err(Rejected("the object has no name".into()));
        }
        let key = Key { kind, namespace, name };
        let state = &mut *self.shared.lock();
        let write = match state.store.get(&key) {
            Ok(live) => {
                let mut object = object;
                object["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
                Write::Replace(object)
            }
            Err(_) => Write::Create(object),
        };
        let (api_version, time) = (kind.api_version(kind.versions[0]), now());
        let writer = Writer { manager: "sim", api_version: &api_version, time: &time };
        let written = state.store.write(&key, write, &writer);
        written.map(|written| written.object).map_err(|failure| Rejected(failure.message))
    }

    /// The current object.
    #[must_use]
    pub fn get(&self, kind: &'static Kind, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let key = Key { kind, namespace: namespace.into(), name: name.into() };
        self.shared.lock().store.get(&key).ok()
    }

    /// The objects of a kind, in one namespace or, if that is empty, in all.
    #[must_use]
    pub fn list(&self, kind: &'static Kind, namespace: &str) -> Vec<Arc<Value>> {
        self.shared.lock().store.list(kind, namespace)
    }

    /// Deletes an object, and the objects of which it is the only owner. Returns false if there is no such object.
    pub fn delete(&self, kind: &'static Kind, namespace: &str, name: &str) -> bool {
        let key = Key { kind, namespace: namespace.into(), name: name.into() };
        self.shared.lock().store.delete(&key, None, "sim").is_ok()
    }

    /// Removes objects whose owners are all missing, as after a write with the uid of an owner deleted just
    /// before.
    pub fn collect_garbage(&self) {
        self.shared.lock().store.collect_ownerless();
    }

    /// Creates a ready Node. Returns its uid.
    ///
    /// # Errors
    /// Never for a non-empty name.
    pub fn add_node(&self, name: &str) -> Result<String, Rejected> {
        let object = self.put(
            &NODES,
            json!({
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
                "spec": {},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            }),
        )?;
        Ok(object["metadata"]["uid"].as_str().unwrap_or_default().to_owned())
    }

    /// The `NodeResourceTopology` of a node, if there is one.
    #[must_use]
    pub fn topology(&self, node: &str) -> Option<NodeResourceTopology> {
        let object = self.get(&TOPOLOGIES, "", node)?;
        serde_json::from_value((*object).clone()).ok()
    }
}

#[cfg(test)]
mod tests;
