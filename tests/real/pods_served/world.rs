//! A node and everything that serves its pods: what clients receive is compared with the API server's pods.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::differences::{Source, excuse};
use super::served::Served;
use crate::support::pods_clients::{ClientKind, Clients, Pod, Response, WatchState, Watcher};
use crate::support::wait::until_every;
use crate::support::{Cluster, Parts, RealNode};

/// Longer waits are printed with `NUMACAST_MEASURE`.
const PRINTED_AFTER: Duration = Duration::from_secs(2);
/// The pause between two comparisons, each of which starts several client programs.
const PAUSE: Duration = Duration::from_millis(250);

/// A server of pods, and its watchers.
pub(super) struct Server {
    pub(super) source: Source,
    pub(super) socket: PathBuf,
    /// numacast's server; `None` for the kubelet's own.
    pub(super) served: Option<Served>,
    /// Watchers that stay connected through all scenarios.
    pub(super) subscribers: Vec<Subscriber>,
}

/// What a subscriber watches, and which client it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watches {
    Pods(ClientKind),
    /// PodInfo, in Python.
    Conditions,
}

/// A watcher that reconnects when its watch ends.
pub(super) struct Subscriber {
    pub(super) watches: Watches,
    pub(super) watcher: Watcher,
    /// The numbers of events and of redundant ones at the last check.
    checked: (usize, usize),
}

/// A node, its clients and the current scenario.
pub(super) struct World {
    pub(super) clients: Clients,
    pub(super) servers: Vec<Server>,
    pub(super) node: RealNode,
    pub(super) cluster: Cluster,
    pub(super) scenario: &'static str,
    /// Rows of the table of differences that were needed.
    pub(super) used: BTreeSet<usize>,
}

/// A deviation from the API server, at one server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Difference {
    /// What differs: `too few`, `watched old`, `field metadata uid`.
    pub(super) aspect: String,
    /// `namespace/name`.
    pub(super) pod: String,
    pub(super) detail: String,
}

impl Difference {
    pub(super) fn new(aspect: impl Into<String>, pod: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { aspect: aspect.into(), pod: pod.into(), detail: detail.into() }
    }
}

impl World {
    pub(super) async fn start(parts: &Parts, sources: &[Source]) -> Result<Self> {
        let cluster = Cluster::start(parts).await?;
        let node = RealNode::on("two-by-eight")?
            // The default, 50 requests per second, would dominate the test's duration.
            .kubelet("kubeAPIQPS", 500.into())
            .kubelet("kubeAPIBurst", 500.into())
            .static_pods(&cluster)?
            .start(&cluster)
            .await?;
        let clients = Clients::of(parts);
        let mut world =
            Self { clients, servers: Vec::new(), node, cluster, scenario: "", used: BTreeSet::new() };
        for source in sources {
            world.servers.push(Server::start(&world.node, *source).await?);
        }
        world.subscribe()?;
        Ok(world)
    }

    /// Starts new watchers everywhere.
    pub(super) fn subscribe(&mut self) -> Result<()> {
        let clients = self.clients.clone();
        for server in &mut self.servers {
            if server.source.serves_pods() {
                server.subscribe(&clients, Watches::Pods(ClientKind::Go))?;
                server.subscribe(&clients, Watches::Pods(ClientKind::Python))?;
            }
            if server.served.is_some() {
                server.subscribe(&clients, Watches::Conditions)?;
            }
        }
        Ok(())
    }

    /// Returns the node's pods from the API server.
    pub(super) async fn truth(&self) -> Result<Vec<Value>> {
        let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{}", self.node.name());
        let request = tonic::codegen::http::Request::get(path).body(Vec::new())?;
        let mut list: Value = self.node.client().request(request).await?;
        Ok(list["items"].as_array_mut().map(std::mem::take).unwrap_or_default())
    }

    /// Waits until all watchers and lists are up to date, except for the table's rows; records the rows that
    /// were needed.
    pub(super) async fn wait_until_equal(&mut self, when: &str) -> Result<()> {
        let (scenario, minor) = (self.scenario, self.node.minor());
        let begun = Instant::now();
        let mut last: Vec<(Source, Difference)> = Vec::new();
        let what = format!("all servers and clients are up to date: {scenario}, {when}");
        let excused = until_every(&what, PAUSE, async || {
            self.node.kubelet_still_runs()?;
            self.reconnect()?;
            let truth = self.truth().await?;
            let mut excused = BTreeSet::new();
            let mut wrong = Vec::new();
            // PodInfo watchers cost nothing to compare, a PodInfo List does.
            for step in 0..3 {
                for server in &mut self.servers {
                    let found = match step {
                        0 => server.of_pods(&self.clients, &truth).await?,
                        1 => server.of_conditions_watched(&truth),
                        _ => server.of_conditions(&self.clients, &truth).await?,
                    };
                    for difference in found {
                        match excuse(minor, scenario, server.source, &difference) {
                            Some(row) => drop(excused.insert(row)),
                            None => wrong.push((server.source, difference)),
                        }
                    }
                }
                if !wrong.is_empty() {
                    break;
                }
            }
            if begun.elapsed() > PRINTED_AFTER && !wrong.is_empty() {
                last.clone_from(&wrong);
            }
            ensure!(wrong.is_empty(), "{} differences: {:#?}", wrong.len(), &wrong[..wrong.len().min(12)]);
            Ok(excused)
        })
        .await;
        if let Some((source, difference)) = last.first()
            && std::env::var_os("NUMACAST_MEASURE").is_some()
        {
            eprintln!("{scenario}: {when}: after {:?}, last {source:?}: {difference:?}", begun.elapsed());
        }
        self.used.extend(excused.with_context(|| self.log_tail())?);
        self.check_events(when)
    }

    /// Returns the last log lines of numacast's servers.
    pub(super) fn log_tail(&self) -> String {
        let logs: Vec<String> =
            self.servers.iter().filter_map(|server| server.served.as_ref()).map(Served::log_tail).collect();
        logs.join("\n")
    }

    /// Restarts watches that have ended: a new one starts empty.
    pub(super) fn reconnect(&mut self) -> Result<()> {
        let clients = self.clients.clone();
        for server in &mut self.servers {
            for index in 0..server.subscribers.len() {
                let subscriber = &server.subscribers[index];
                if subscriber.watcher.state().ended.is_some() {
                    subscriber.check_protocol(server.source)?;
                    let watches = subscriber.watches;
                    server.subscribers.remove(index);
                    server.subscribe(&clients, watches)?;
                    let new = server.subscribers.pop().context("no subscriber")?;
                    server.subscribers.insert(index, new);
                }
            }
        }
        Ok(())
    }

    /// Checks the events since the last call: no DELETED for a pod that still exists, and no redundant or
    /// invalid event.
    pub(super) fn check_events(&mut self, when: &str) -> Result<()> {
        let mut found = Vec::new();
        for server in &mut self.servers {
            for subscriber in &mut server.subscribers {
                subscriber.check_protocol(server.source)?;
                let state = subscriber.watcher.state();
                let (events, redundant) = subscriber.checked;
                for event in &state.events[events..] {
                    let metadata = &event.pod["metadata"];
                    let uid = metadata["uid"].as_str().unwrap_or_default();
                    if event.kind == "DELETED" && state.pods.contains_key(uid) {
                        let name = metadata["name"].as_str().unwrap_or_default();
                        let detail = format!("{:?}", subscriber.watches);
                        found.push((
                            server.source,
                            Difference::new("flicker", format!("default/{name}"), detail),
                        ));
                    }
                }
                for name in &state.redundant[redundant..] {
                    let detail = format!("{:?}", subscriber.watches);
                    found.push((server.source, Difference::new("redundant", name.as_str(), detail)));
                }
                let checked = (state.events.len(), state.redundant.len());
                drop(state);
                subscriber.checked = checked;
            }
        }
        for (source, difference) in found {
            let row = excuse(self.node.minor(), self.scenario, source, &difference);
            let row =
                row.with_context(|| format!("{}: {when}: {source:?}: {difference:?}", self.scenario))?;
            self.used.insert(row);
        }
        Ok(())
    }

    /// Returns the server of a source.
    pub(super) fn server(&self, source: Source) -> Result<&Server> {
        self.servers.iter().find(|server| server.source == source).context("there is no such server")
    }

    /// Records a difference, which the table must excuse.
    pub(super) fn note(&mut self, source: Source, aspect: &str, detail: &str) -> Result<()> {
        let difference = Difference::new(aspect, "", detail);
        let row = excuse(self.node.minor(), self.scenario, source, &difference);
        self.used.insert(row.with_context(|| format!("{}: {source:?}: {difference:?}", self.scenario))?);
        Ok(())
    }
}

impl Subscriber {
    fn check_protocol(&self, source: Source) -> Result<()> {
        let state = self.watcher.state();
        ensure!(state.violations.is_empty(), "{source:?} sends {:?}: {:#?}", self.watches, state.violations);
        Ok(())
    }
}

impl Server {
    /// Starts the server, without watchers.
    pub(super) async fn start(node: &RealNode, source: Source) -> Result<Self> {
        let served = match source.settings() {
            Some(settings) => Some(Served::start(node, source, settings).await?),
            None => None,
        };
        let socket = match &served {
            Some(served) => served.socket(),
            None => node.kubelet_dir().join("pods-api/pods-api.sock"),
        };
        Ok(Self { source, socket, served, subscribers: Vec::new() })
    }

    /// Adds a watcher.
    pub(super) fn subscribe(&mut self, clients: &Clients, watches: Watches) -> Result<()> {
        let watcher = match watches {
            Watches::Pods(kind) => clients.watch(kind, &self.socket, &[])?,
            Watches::Conditions => clients.watch_conditions(&self.socket)?,
        };
        self.subscribers.push(Subscriber { watches, watcher, checked: (0, 0) });
        Ok(())
    }

    /// Returns where the list differs from the API server, and where watchers differ from the list.
    async fn of_pods(&mut self, clients: &Clients, truth: &[Value]) -> Result<Vec<Difference>> {
        if let Some(served) = &mut self.served {
            served.still_runs()?;
        }
        if !self.source.serves_pods() {
            return Ok(Vec::new());
        }
        Ok(match of(clients.list(ClientKind::Go, &self.socket).await?) {
            Err(error) => vec![error],
            Ok(listed) => {
                let mut found = self.of_list(&listed, truth);
                found.extend(self.of_subscribers(
                    &listed,
                    |watches| watches != Watches::Conditions,
                    "watched",
                ));
                found
            }
        })
    }

    /// Returns where watchers of PodInfo differ from the API server.
    fn of_conditions_watched(&self, truth: &[Value]) -> Vec<Difference> {
        let subscribers =
            self.subscribers.iter().filter(|subscriber| subscriber.watches == Watches::Conditions);
        let known = subscribers
            .map(|subscriber| subscriber.watcher.state().pods.values().cloned().collect::<Vec<_>>());
        known.flat_map(|pods| of_infos(&pods, truth)).collect()
    }

    /// Returns where a List of PodInfo differs from the API server, and where its watchers differ from the
    /// List.
    async fn of_conditions(&self, clients: &Clients, truth: &[Value]) -> Result<Vec<Difference>> {
        if self.served.is_none() {
            return Ok(Vec::new());
        }
        Ok(match of(clients.conditions(&self.socket, "list", &[]).await?) {
            Err(error) => vec![error],
            Ok(listed) => {
                let mut found = of_infos(&listed, truth);
                found.extend(self.of_subscribers(
                    &listed,
                    |watches| watches == Watches::Conditions,
                    "info watched",
                ));
                found
            }
        })
    }

    fn of_subscribers(
        &self,
        listed: &[Pod],
        whose: impl Fn(Watches) -> bool,
        aspect: &str,
    ) -> Vec<Difference> {
        let subscribers = self.subscribers.iter().filter(|subscriber| whose(subscriber.watches));
        subscribers
            .flat_map(|subscriber| of_state(&subscriber.watcher.state(), listed, aspect, subscriber.watches))
            .collect()
    }

    fn of_list(&self, listed: &[Pod], truth: &[Value]) -> Vec<Difference> {
        let mut found = order(listed, "order");
        let mut unlisted: BTreeMap<&str, &Value> = truth.iter().map(|pod| (self.uid_of(pod), pod)).collect();
        for pod in listed {
            if pod.exact != Some(true) {
                found.push(Difference::new("bytes", pod.name(), "encoding the pod again gives others"));
            }
            match unlisted.remove(pod.uid()) {
                None => found.push(Difference::new("too many", pod.name(), pod.uid())),
                Some(right) => {
                    for path in paths(right, &pod.pod) {
                        let value = |of: &Value| at(of, &path).to_string();
                        let detail = format!("{} and not {}", value(&pod.pod), value(right));
                        found.push(Difference::new(format!("field {path}"), pod.name(), detail));
                    }
                }
            }
        }
        found.extend(unlisted.into_iter().map(|(uid, pod)| Difference::new("too few", name_of(pod), uid)));
        found
    }

    /// Returns the UID by which this server identifies an API server's pod: the kubelet's UID of a static pod
    /// is not its mirror pod's.
    fn uid_of<'a>(&self, pod: &'a Value) -> &'a str {
        if self.source.knows_static_pods() { kubelets_uid(pod) } else { text(&pod["metadata"]["uid"]) }
    }
}

/// Returns the pods of a response, or the difference that it failed.
fn of(response: Response) -> Result<Vec<Pod>, Difference> {
    let error = format!("{}: {}", response.code, response.text);
    response.pods().map_err(|_| Difference::new("failed", "", error))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn name_of(pod: &Value) -> String {
    format!("{}/{}", text(&pod["metadata"]["namespace"]), text(&pod["metadata"]["name"]))
}

fn kubelets_uid(pod: &Value) -> &str {
    let metadata = &pod["metadata"];
    metadata["annotations"]["kubernetes.io/config.mirror"].as_str().unwrap_or_else(|| text(&metadata["uid"]))
}

fn order(listed: &[Pod], aspect: &str) -> Vec<Difference> {
    let uids: Vec<&str> = listed.iter().map(Pod::uid).collect();
    let sorted = uids.windows(2).all(|two| two[0] < two[1]);
    (!sorted).then(|| Difference::new(aspect, "", format!("{uids:?}"))).into_iter().collect()
}

/// Returns where a watcher's state differs from the list.
fn of_state(state: &WatchState, listed: &[Pod], aspect: &str, watches: Watches) -> Vec<Difference> {
    let mut found = Vec::new();
    if state.synced == 0 {
        return vec![Difference::new(
            aspect,
            "",
            format!("{watches:?}: no end of a list, {:?}", state.ended),
        )];
    }
    let listed: BTreeMap<&str, &Pod> = listed.iter().map(|pod| (pod.uid(), pod)).collect();
    for (uid, pod) in &state.pods {
        match listed.get(uid.as_str()) {
            None => {
                found.push(Difference::new(format!("{aspect} too many"), pod.name(), format!("{watches:?}")))
            }
            Some(now) if now.hash != pod.hash => {
                let detail = format!("{watches:?}: {}", paths(&pod.pod, &now.pod).join(", "));
                found.push(Difference::new(format!("{aspect} old"), pod.name(), detail));
            }
            Some(_) => {}
        }
    }
    for pod in listed.values().filter(|pod| !state.pods.contains_key(pod.uid())) {
        found.push(Difference::new(format!("{aspect} too few"), pod.name(), format!("{watches:?}")));
    }
    found
}

/// Returns where PodInfo differs from what the API server's pods imply.
fn of_infos(listed: &[Pod], truth: &[Value]) -> Vec<Difference> {
    let mut found = order(listed, "info order");
    let mut unlisted: BTreeMap<&str, &Value> = truth.iter().map(|pod| (kubelets_uid(pod), pod)).collect();
    for info in listed {
        let Some(pod) = unlisted.remove(info.uid()) else {
            found.push(Difference::new("info too many", info.name(), info.uid()));
            continue;
        };
        let mut served = info.pod["info"].clone();
        without_epoch(&mut served);
        for path in paths(&info_of(pod), &served) {
            let detail = format!("{} and not {}", at(&served, &path), at(&info_of(pod), &path));
            found.push(Difference::new(format!("info {path}"), info.name(), detail));
        }
    }
    found.extend(unlisted.into_iter().map(|(uid, pod)| Difference::new("info too few", name_of(pod), uid)));
    found
}

/// Returns a pod of the API server as PodInfo shows it, in protobuf JSON.
fn info_of(pod: &Value) -> Value {
    let (metadata, status) = (&pod["metadata"], &pod["status"]);
    let mut conditions = status["conditions"].clone();
    for condition in conditions.as_array_mut().into_iter().flatten() {
        // Protobuf JSON writes 64-bit numbers as strings.
        if let Some(generation) = condition["observedGeneration"].as_u64() {
            condition["observedGeneration"] = json!(generation.to_string());
        }
    }
    let mirror = metadata["annotations"]["kubernetes.io/config.mirror"].is_string();
    let mut info = json!({
        "podUID": kubelets_uid(pod),
        "podNamespace": metadata["namespace"],
        "podName": metadata["name"],
        "static": mirror.then_some(true),
        "conditions": conditions,
        "deletionTimestamp": metadata["deletionTimestamp"],
        "phase": status["phase"],
    });
    without_epoch(&mut info);
    info
}

/// Removes empty values: an unset time is the epoch in protobuf.
fn without_epoch(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.retain(|_, value| !value.is_null() && *value != "1970-01-01T00:00:00Z");
            object.values_mut().for_each(without_epoch);
        }
        Value::Array(list) => list.iter_mut().for_each(without_epoch),
        _ => {}
    }
}

/// Returns the paths at which two values differ; lists of different lengths differ as a whole.
pub(super) fn paths(one: &Value, other: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk(one, other, &mut Vec::new(), &mut found);
    found
}

fn walk(one: &Value, other: &Value, path: &mut Vec<String>, found: &mut Vec<String>) {
    match (one, other) {
        _ if one == other => {}
        // An empty object is omitted.
        (Value::Object(_), Value::Null) => walk(one, &json!({}), path, found),
        (Value::Null, Value::Object(_)) => walk(&json!({}), other, path, found),
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                path.push(key.clone());
                walk(&one[key], &other[key], path, found);
                path.pop();
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (one, other)) in a.iter().zip(b).enumerate() {
                path.push(index.to_string());
                walk(one, other, path, found);
                path.pop();
            }
        }
        _ => found.push(path.join(" ")),
    }
}

/// Returns the value at a path.
fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    path.split(' ').filter(|key| !key.is_empty()).fold(value, |value, key| match key.parse::<usize>() {
        Ok(index) if value.is_array() => &value[index],
        _ => &value[key],
    })
}
