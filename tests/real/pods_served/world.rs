//! One node, and everything that serves its pods: what clients hear there is compared with what the API server has.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::differences::{DIFFERENCES, Source};
use super::served::Served;
use crate::support::pods_clients::{Clients, Pod, Watcher, Who};
use crate::support::wait::until;
use crate::support::{Cluster, Parts, RealNode};

/// Where pods are served, and who listens there.
pub(super) struct Place {
    pub(super) source: Source,
    pub(super) socket: PathBuf,
    /// Ours.
    pub(super) served: Option<Served>,
    /// They go on through all scenarios: one in Go, one in Python.
    pub(super) listeners: Vec<Listener>,
}

/// Someone who follows, and connects again when that ends.
pub(super) struct Listener {
    who: Who,
    pub(super) watcher: Watcher,
    /// How many words it had heard when a scenario last looked.
    marked: usize,
}

/// A node, its clients and the scenario that is under way.
pub(super) struct World {
    pub(super) clients: Clients,
    pub(super) places: Vec<Place>,
    pub(super) node: RealNode,
    pub(super) cluster: Cluster,
    pub(super) scenario: &'static str,
    /// Rows of the table that were needed.
    pub(super) used: BTreeSet<usize>,
}

/// Something that is not as it should be, at one place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Difference {
    /// What it is about: `list`, `heard`, `field metadata.uid`.
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
            // Fifty calls per second, its default, would be what most of these tests wait for.
            .kubelet("kubeAPIQPS", 500.into())
            .kubelet("kubeAPIBurst", 500.into())
            .static_pods(&cluster)?
            .start(&cluster)
            .await?;
        let mut world = Self {
            clients: Clients::of(parts),
            places: Vec::new(),
            node,
            cluster,
            scenario: "",
            used: BTreeSet::new(),
        };
        for source in sources {
            let served = match source.setting() {
                Some(source) => Some(Served::start(&world.node, source, &[]).await?),
                None => None,
            };
            let socket = match &served {
                Some(served) => served.socket(),
                None => world.node.kubelet_dir().join("pods-api/pods-api.sock"),
            };
            let mut place = Place { source: *source, socket, served, listeners: Vec::new() };
            if source.serves_pods() {
                for who in [Who::Go, Who::Python] {
                    place.listen(&world.clients, who)?;
                }
            }
            world.places.push(place);
        }
        Ok(world)
    }

    /// What the API server has of the node's pods.
    pub(super) async fn truth(&self) -> Result<Vec<Value>> {
        let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{}", self.node.name());
        let request = tonic::codegen::http::Request::get(path).body(Vec::new())?;
        let mut list: Value = self.node.client().request(request).await?;
        Ok(list["items"].as_array_mut().map(std::mem::take).unwrap_or_default())
    }

    /// Waits until everybody hears what there is, but for what the table excuses; what of the table is needed is noted.
    pub(super) async fn quiet(&mut self, when: &str) -> Result<()> {
        let scenario = self.scenario;
        let explore = std::env::var_os("EXPLORE").is_some();
        let begun = std::time::Instant::now();
        let excused = until(&format!("{scenario}: all is told everywhere: {when}"), async || {
            self.node.kubelet_still_runs()?;
            self.connect_again().await?;
            let truth = self.truth().await?;
            let mut excused = BTreeSet::new();
            let mut wrong = Vec::new();
            for place in self.places.iter_mut().filter(|place| place.source.serves_pods()) {
                for difference in place.differences(&self.clients, &truth).await? {
                    match DIFFERENCES.iter().position(|row| row.excuses(scenario, place.source, &difference)) {
                        Some(row) => drop(excused.insert(row)),
                        None => wrong.push((place.source, difference)),
                    }
                }
            }
            if explore && begun.elapsed().as_secs() > 6 {
                let all: BTreeSet<String> = wrong.iter().map(|(s, d)| format!("EXPLORE {scenario}/{when}: {s:?} {} {} {}", d.aspect, d.pod, &d.detail.chars().take(300).collect::<String>())).collect();
                for one in all { println!("{one}"); }
                wrong.clear();
            }
            ensure!(wrong.is_empty(), "{} differences: {:#?}", wrong.len(), &wrong[..wrong.len().min(20)]);
            Ok(excused)
        })
        .await;
        let excused = match excused {
            Ok(excused) => excused,
            Err(error) => {
                let words: Vec<String> =
                    self.places.iter().filter_map(|place| place.served.as_ref()).map(Served::last_words).collect();
                return Err(error.context(words.join("\n---\n")));
            }
        };
        self.used.extend(excused);
        self.no_flicker(when)
    }

    /// Whoever's watch has ended follows again: it begins with nothing.
    pub(super) async fn connect_again(&mut self) -> Result<()> {
        let clients = self.clients.clone();
        for place in &mut self.places {
            for listener in &mut place.listeners {
                let ended = listener.watcher.known().ended.clone();
                if ended.is_some() {
                    listener.is_sound(place.source)?;
                    listener.watcher = clients.watch(listener.who, &place.socket, &[])?;
                    listener.marked = 0;
                }
            }
        }
        Ok(())
    }

    /// Since it was asked last, no pod was said to be deleted that is there still; what nobody may say nobody said.
    fn no_flicker(&mut self, when: &str) -> Result<()> {
        let scenario = self.scenario;
        for place in &mut self.places {
            for listener in &mut place.listeners {
                listener.is_sound(place.source)?;
                let known = listener.watcher.known();
                let there: BTreeSet<&str> = known.pods.keys().map(String::as_str).collect();
                for event in &known.events[listener.marked.min(known.events.len())..] {
                    let uid = event.pod["metadata"]["uid"].as_str().unwrap_or_default();
                    if event.kind != "DELETED" || !there.contains(uid) {
                        continue;
                    }
                    let name = event.pod["metadata"]["name"].as_str().unwrap_or_default();
                    let difference = Difference::new("flicker", format!("default/{name}"), "deleted, and there again");
                    let row = DIFFERENCES.iter().position(|row| row.excuses(scenario, place.source, &difference));
                    let row = row.with_context(|| format!("{scenario}: {when}: {:?}: {difference:?}", place.source))?;
                    self.used.insert(row);
                }
                let heard = known.events.len();
                drop(known);
                listener.marked = heard;
            }
        }
        Ok(())
    }

    /// The place of a source.
    pub(super) fn at(&self, source: Source) -> Result<&Place> {
        self.places.iter().find(|place| place.source == source).context("there is no such place")
    }
}

impl Listener {
    fn is_sound(&self, source: Source) -> Result<()> {
        let known = self.watcher.known();
        ensure!(known.nonsense.is_empty(), "{source:?} tells a client in {:?}: {:#?}", self.who, known.nonsense);
        Ok(())
    }
}

impl Place {
    /// Someone more who listens.
    pub(super) fn listen(&mut self, clients: &Clients, who: Who) -> Result<()> {
        let watcher = clients.watch(who, &self.socket, &[])?;
        self.listeners.push(Listener { who, watcher, marked: 0 });
        Ok(())
    }

    /// What is not here as the API server has it, and what its watchers believe that is not in its list.
    async fn differences(&mut self, clients: &Clients, truth: &[Value]) -> Result<Vec<Difference>> {
        if let Some(served) = &mut self.served {
            served.still_runs()?;
        }
        let listed = clients.list(Who::Go, &self.socket).await?.pods()?;
        let mut found = self.of_list(&listed, truth);
        let listed: BTreeMap<&str, &Pod> = listed.iter().map(|pod| (pod.uid(), pod)).collect();
        for listener in &self.listeners {
            let known = listener.watcher.known();
            let who = listener.who;
            if known.synced == 0 {
                found.push(Difference::new("heard", "", format!("{who:?} has heard no end of a list")));
                continue;
            }
            for (uid, pod) in &known.pods {
                match listed.get(uid.as_str()) {
                    None => found.push(Difference::new("heard too many", pod.name(), format!("by {who:?}"))),
                    Some(now) if now.hash != pod.hash => {
                        let detail = format!("{who:?}: {}", paths(&pod.pod, &now.pod).join(", "));
                        found.push(Difference::new("heard old", pod.name(), detail));
                    }
                    Some(_) => {}
                }
            }
            for (uid, pod) in &listed {
                if !known.pods.contains_key(*uid) {
                    found.push(Difference::new("not heard", pod.name(), format!("by {who:?}")));
                }
            }
        }
        Ok(found)
    }

    fn of_list(&self, listed: &[Pod], truth: &[Value]) -> Vec<Difference> {
        let mut found = Vec::new();
        let uids: Vec<&str> = listed.iter().map(Pod::uid).collect();
        if !uids.is_sorted() || uids.windows(2).any(|two| two[0] == two[1]) {
            found.push(Difference::new("order", "", format!("{uids:?}")));
        }
        let mut unlisted: BTreeMap<&str, &Value> = truth.iter().map(|pod| (self.uid_of(pod), pod)).collect();
        for pod in listed {
            if pod.exact != Some(true) {
                found.push(Difference::new("bytes", pod.name(), "they are not what is encoded again"));
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
        for (uid, pod) in unlisted {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            found.push(Difference::new("too few", format!("default/{name}"), uid));
        }
        found
    }

    /// What this place calls a pod of the API server: the kubelet knows static pods by another UID than their mirrors'.
    fn uid_of<'a>(&self, pod: &'a Value) -> &'a str {
        let metadata = &pod["metadata"];
        let own = metadata["annotations"]["kubernetes.io/config.mirror"].as_str();
        own.filter(|_| self.source.knows_static_pods()).or(metadata["uid"].as_str()).unwrap_or_default()
    }
}

/// Paths of what two values do not have in common, a list being one thing unless both have as many in it.
pub(super) fn paths(one: &Value, other: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk(one, other, &mut Vec::new(), &mut found);
    found.dedup();
    found
}

fn walk(one: &Value, other: &Value, path: &mut Vec<String>, found: &mut Vec<String>) {
    match (one, other) {
        _ if one == other => {}
        // An empty object is left out.
        (Value::Object(_), Value::Null) => walk(one, &empty(), path, found),
        (Value::Null, Value::Object(_)) => walk(&empty(), other, path, found),
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

fn empty() -> Value {
    Value::Object(serde_json::Map::new())
}

/// What is at a path.
fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    path.split(' ').filter(|key| !key.is_empty()).fold(value, |value, key| match key.parse::<usize>() {
        Ok(index) if value.is_array() => &value[index],
        _ => &value[key],
    })
}
