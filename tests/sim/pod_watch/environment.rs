//! A watch of the pods of a simulated API server.

use std::collections::BTreeMap;
use std::panic::Location;
use std::pin::Pin;
use std::time::Duration;

use futures::{Stream, StreamExt};
use numacast::cluster::Cluster;
use numacast::pod::{Pod, Wanted};
use numacast::watch_event::WatchEvent;
use numacast_sim::api_server::{ApiServer, PODS};
use serde_json::json;

pub(super) const NODE: &str = "worker";
/// How long any wait may take, in virtual time: it only ends a test that would hang.
pub(super) const TIMEOUT: Duration = Duration::from_secs(3600);

/// An API server, and a watch of its pods.
pub(super) struct Environment {
    pub(super) server: ApiServer,
    events: Pin<Box<dyn Stream<Item = Result<WatchEvent<Pod>, String>>>>,
    listed: BTreeMap<String, Pod>,
    /// The known pods, by name.
    pub(super) pods: BTreeMap<String, Pod>,
    /// Number of complete lists.
    pub(super) lists: usize,
    pub(super) errors: Vec<String>,
    /// The events since the last reset, abbreviated: `[` and `]` around a list, `a` for a pod that exists,
    /// `-a` for a deleted one, `+` for a recovery without events, `!` for an error.
    pub(super) trace: Vec<String>,
}

impl Environment {
    pub(super) async fn new(wanted: Wanted) -> Self {
        let server = ApiServer::start_in_process(0);
        let cluster = Cluster::with_client(server.client().unwrap(), server.url(), Duration::from_secs(10));
        let events = Box::pin(cluster.watch_pods(NODE, wanted));
        let (listed, pods) = (BTreeMap::new(), BTreeMap::new());
        Self { server, events, listed, pods, lists: 0, errors: Vec::new(), trace: Vec::new() }
    }

    /// Returns an environment with these pods, each named by one letter, once the list is complete.
    pub(super) async fn with_pods(names: &str) -> Self {
        let mut env = Self::new(Wanted::default()).await;
        names.chars().for_each(|name| env.put(&name.to_string(), "Pending"));
        env.read_until(|env| env.lists == 1).await;
        env.trace.clear();
        env
    }

    pub(super) fn put(&self, name: &str, phase: &str) {
        self.put_on(NODE, name, phase);
    }

    pub(super) fn put_on(&self, node: &str, name: &str, phase: &str) {
        let metadata = json!({"name": name, "namespace": "default", "labels": {"a": "b"}});
        let spec = json!({"nodeName": node, "containers": [{"name": "main", "resources": {
            "requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"},
        }}]});
        let pod = json!({"metadata": metadata, "spec": spec, "status": {"phase": phase}});
        self.server.put(&PODS, pod).unwrap();
    }

    pub(super) fn delete(&self, name: &str) {
        assert!(self.server.delete(&PODS, "default", name));
    }

    /// Reads one event.
    pub(super) async fn read(&mut self) {
        let event = self.events.next().await.unwrap();
        self.trace.push(match &event {
            Ok(WatchEvent::Init) => "[".to_owned(),
            Ok(WatchEvent::InitApply(pod) | WatchEvent::Apply(pod)) => pod.name.clone(),
            Ok(WatchEvent::InitDone) => "]".to_owned(),
            Ok(WatchEvent::Delete(pod)) => format!("-{}", pod.name),
            Ok(WatchEvent::Resumed) => "+".to_owned(),
            Err(_) => "!".to_owned(),
        });
        match event {
            Ok(WatchEvent::Init) => self.listed.clear(),
            Ok(WatchEvent::InitApply(pod)) => {
                let duplicate = self.listed.insert(pod.name.clone(), pod);
                assert!(duplicate.is_none(), "{duplicate:?} was listed twice");
            }
            Ok(WatchEvent::InitDone) => {
                self.pods = std::mem::take(&mut self.listed);
                self.lists += 1;
            }
            Ok(WatchEvent::Apply(pod)) => drop(self.pods.insert(pod.name.clone(), pod)),
            Ok(WatchEvent::Delete(pod)) => drop(self.pods.remove(&pod.name)),
            Ok(WatchEvent::Resumed) => {}
            Err(error) => self.errors.push(error),
        }
    }

    /// Reads events until `condition` holds.
    #[track_caller]
    pub(super) fn read_until(&mut self, condition: impl Fn(&Self) -> bool) -> impl Future<Output = ()> {
        let caller = Location::caller();
        async move {
            let read = async {
                while !condition(self) {
                    self.read().await;
                }
            };
            if tokio::time::timeout(TIMEOUT, read).await.is_err() {
                panic!("the condition at {caller} never holds: {:?}, {:?}", self.trace, self.errors);
            }
        }
    }

    /// Returns the query strings of the requests for pods with this verb.
    pub(super) fn queries(&self, verb: &str) -> Vec<String> {
        let requests = self.server.requests(&PODS).into_iter();
        requests.filter(|request| request.verb == verb).map(|request| request.query).collect()
    }

    /// Creates a pod, reads all events up to it, and returns the trace.
    pub(super) async fn create(&mut self, name: &str) -> String {
        self.put(name, "Pending");
        self.read_until(|env| env.pods.contains_key(name)).await;
        std::mem::take(&mut self.trace).concat()
    }

    /// Asserts that the known pods are those in the API server.
    pub(super) fn check(&self) {
        let objects = self.server.list(&PODS, "");
        let of_node = objects.iter().filter(|pod| pod["spec"]["nodeName"] == NODE);
        let expected: BTreeMap<String, Pod> = of_node
            .map(|pod| Pod::from_json(pod.to_string().as_bytes()).unwrap())
            .map(|pod| (pod.name.clone(), pod))
            .collect();
        assert_eq!(self.pods, expected);
    }
}
