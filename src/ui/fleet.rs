//! All nodes as the page shows them, and what changed since a version. Pure.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

use super::tile::{Change, Labels, Tile};
use crate::cluster::PublishedObject;

/// Nodes as something that is read.
pub(super) const NODES: &str = "nodes";
/// How many changes are kept for the history.
const MAX_HISTORY: usize = 500;
/// How many nodes that are gone are remembered. A page that knows none of the newest ones gets everything again.
const MAX_GONE: usize = 1000;

/// What is known of the nodes.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    nodes: BTreeMap<String, Entry>,
    /// The name of the node that changed in each version; each node once, at its newest.
    by_version: BTreeMap<u64, String>,
    version: u64,
    /// Pages that are older than this have missed nodes that are gone.
    oldest: u64,
    gone: VecDeque<(u64, String)>,
    history: VecDeque<Event>,
    known: Known,
    /// What could not be read, by what was read.
    problems: BTreeMap<&'static str, String>,
    /// Whether nodes are shown. Before all is listed, most would be shown without their object, or without their Node.
    is_shown: bool,
}

/// What is known of all nodes: of other things nothing is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Known {
    objects: bool,
    nodes: bool,
    agents: bool,
}

#[derive(Debug, Default)]
struct Entry {
    object: Option<Arc<PublishedObject>>,
    /// The labels of its Node.
    node: Option<Labels>,
    /// Its agents' pods and whether each is Ready.
    agents: BTreeMap<String, bool>,
    version: u64,
    /// What was shown last.
    tile: Option<Tile>,
}

impl Entry {
    fn exists(&self) -> bool {
        self.object.is_some() || self.node.is_some()
    }

    fn tile_now(&self, name: &str, known: Known) -> Tile {
        let has_agent = known.agents.then(|| self.agents.values().any(|is_ready| *is_ready));
        let has_node = known.nodes.then_some(self.node.is_some());
        Tile::new(name, self.object.as_deref(), self.node.as_ref(), has_node, has_agent)
    }
}

/// Changes of one node at one time.
#[derive(Clone, Debug, Serialize)]
struct Event {
    #[serde(skip)]
    version: u64,
    /// Milliseconds since 1970.
    at: i64,
    node: String,
    changes: Vec<Change>,
}

/// What changed after a version.
#[derive(Debug, Serialize)]
pub(super) struct Delta<'a> {
    /// The version that this leads to.
    pub(super) version: u64,
    /// Whether the page is to forget all nodes first.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    reset: bool,
    /// Whether this is all for now.
    #[serde(skip)]
    pub(super) is_last: bool,
    /// Whether the page has all nodes then.
    complete: bool,
    nodes: Vec<&'a Tile>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gone: Vec<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    history: Vec<&'a Event>,
    pub(super) problems: Vec<&'a str>,
}

impl Fleet {
    /// Returns the version, which increases with each change.
    pub(super) const fn version(&self) -> u64 {
        self.version
    }

    /// Forgets everything. Pages start again.
    pub(super) fn clear(&mut self) {
        let version = self.version + 1;
        *self = Self { version, oldest: version, ..Self::default() };
    }

    /// Returns the object of a node.
    pub(super) fn object(&self, node: &str) -> Option<Arc<PublishedObject>> {
        self.nodes.get(node)?.object.clone()
    }

    /// Returns the tile of a node.
    pub(super) fn tile(&self, node: &str) -> Option<&Tile> {
        self.nodes.get(node)?.tile.as_ref()
    }

    /// Returns true once nodes are shown: objects and Nodes have been listed, or objects have, and Nodes cannot be.
    pub(super) const fn is_shown(&self) -> bool {
        self.is_shown
    }

    /// Takes a complete list of objects.
    pub(super) fn list_objects(&mut self, objects: Vec<PublishedObject>, now: Timestamp) {
        let listed: BTreeSet<String> = objects.iter().map(|object| object.meta.name.clone()).collect();
        let has_object = self.nodes.iter().filter(|(_, entry)| entry.object.is_some());
        let gone: Vec<String> =
            has_object.map(|(name, _)| name.clone()).filter(|name| !listed.contains(name)).collect();
        objects.into_iter().for_each(|object| self.put_object(object, now));
        gone.iter().for_each(|name| self.remove_object(name, now));
        self.know(Known { objects: true, ..self.known }, now);
    }

    /// Takes an object that was added or changed.
    pub(super) fn put_object(&mut self, object: PublishedObject, now: Timestamp) {
        let name = object.meta.name.clone();
        self.change(&name, now, |entry| entry.object = Some(Arc::new(object)));
    }

    /// Takes the deletion of an object.
    pub(super) fn remove_object(&mut self, node: &str, now: Timestamp) {
        self.change(node, now, |entry| entry.object = None);
    }

    /// Takes a Node that was added, changed or, with `None`, deleted.
    pub(super) fn set_node(&mut self, name: &str, node: Option<Labels>, now: Timestamp) {
        self.change(name, now, |entry| entry.node = node);
    }

    /// Takes a complete list of Nodes.
    pub(super) fn list_nodes(&mut self, nodes: BTreeMap<String, Labels>, now: Timestamp) {
        let has_node = self.nodes.iter().filter(|(_, entry)| entry.node.is_some());
        let gone: Vec<String> =
            has_node.map(|(name, _)| name.clone()).filter(|name| !nodes.contains_key(name)).collect();
        nodes.into_iter().for_each(|(name, node)| self.set_node(&name, Some(node), now));
        gone.iter().for_each(|name| self.set_node(name, None, now));
        self.know(Known { nodes: true, ..self.known }, now);
    }

    /// Takes an agent's pod on a node, and whether it is Ready; `None` if it is gone.
    pub(super) fn set_agent(&mut self, node: &str, pod: &str, is_ready: Option<bool>, now: Timestamp) {
        self.change(node, now, |entry| match is_ready {
            Some(is_ready) => drop(entry.agents.insert(pod.to_owned(), is_ready)),
            None => drop(entry.agents.remove(pod)),
        });
    }

    /// Sets whether agents are known.
    pub(super) fn set_knows_agents(&mut self, knows: bool, now: Timestamp) {
        self.know(Known { agents: knows, ..self.known }, now);
    }

    /// Notes that something cannot be read, or, with `None`, that it can.
    pub(super) fn set_problem(&mut self, what: &'static str, problem: Option<String>, now: Timestamp) {
        let before = self.problems.get(what).cloned();
        if before != problem {
            match problem {
                Some(problem) => drop(self.problems.insert(what, problem)),
                None => drop(self.problems.remove(what)),
            }
            self.version += 1;
            self.know(self.known, now);
        }
    }

    /// Sets what is known of all nodes, and changes what is shown of them accordingly.
    fn know(&mut self, known: Known, now: Timestamp) {
        let is_shown = known.objects && (known.nodes || self.problems.contains_key(NODES));
        if (self.known, self.is_shown) == (known, is_shown) {
            return;
        }
        (self.known, self.is_shown) = (known, is_shown);
        self.version += 1;
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        names.iter().for_each(|name| self.change(name, now, |_| ()));
    }

    fn change(&mut self, name: &str, now: Timestamp, act: impl FnOnce(&mut Entry)) {
        let entry = self.nodes.entry(name.to_owned()).or_default();
        act(entry);
        let tile = (self.is_shown && entry.exists()).then(|| entry.tile_now(name, self.known));
        if tile == entry.tile {
            if entry.version == 0 && !entry.exists() && entry.agents.is_empty() {
                self.nodes.remove(name);
            }
            return;
        }
        self.version += 1;
        self.by_version.remove(&entry.version);
        let changes = match (&tile, &entry.tile) {
            (Some(tile), Some(before)) => tile.changes(before),
            _ => Vec::new(),
        };
        let is_gone = tile.is_none();
        (entry.version, entry.tile) = (self.version, tile);
        self.by_version.insert(self.version, name.to_owned());
        if is_gone {
            self.forget_later(name);
        }
        if !changes.is_empty() {
            let (version, at, node) = (self.version, now.as_millisecond(), name.to_owned());
            self.history.push_back(Event { version, at, node, changes });
            if self.history.len() > MAX_HISTORY {
                self.history.pop_front();
            }
        }
    }

    /// Remembers that a node is gone, and forgets the oldest such node if there are too many.
    fn forget_later(&mut self, name: &str) {
        self.gone.push_back((self.version, name.to_owned()));
        if self.gone.len() <= MAX_GONE {
            return;
        }
        let Some((version, name)) = self.gone.pop_front() else { return };
        // Unless it has come back since.
        if self.nodes.get(&name).is_some_and(|entry| entry.version == version) {
            self.nodes.remove(&name);
            self.by_version.remove(&version);
            self.oldest = version;
        }
    }

    /// Returns what changed after `version`, with at most `max` nodes; after 0 everything.
    pub(super) fn since(&self, version: u64, max: usize) -> Delta<'_> {
        let reset = version == 0 || version < self.oldest || version > self.version;
        let since = if reset { 0 } else { version };
        let changed: Vec<(&u64, &String)> = self.by_version.range(since + 1..).take(max).collect();
        let is_last = changed.len() < max;
        let last = changed.last().map_or(since, |(version, _)| **version);
        let reached = if is_last { self.version } else { last };
        let (mut nodes, mut gone) = (Vec::new(), Vec::new());
        for (_, name) in changed {
            match self.nodes.get(name).and_then(|entry| entry.tile.as_ref()) {
                Some(tile) => nodes.push(tile),
                None => gone.push(name.as_str()),
            }
        }
        let in_range = |event: &&Event| event.version > since && event.version <= reached;
        Delta {
            version: reached,
            reset,
            is_last,
            complete: is_last && self.is_shown,
            nodes,
            gone: if reset { Vec::new() } else { gone },
            history: self.history.iter().filter(in_range).collect(),
            problems: self.problems.values().map(String::as_str).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::test_runner::RngSeed;
    use serde_json::{Value, json};

    use super::super::tile::Status;
    use super::*;
    use crate::randomised::cases;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn object(name: &str, available: u64) -> PublishedObject {
        let cpu = json!({"name": "cpu", "capacity": 8, "allocatable": 8, "available": available});
        let zones = json!([{"name": "node-0", "type": "Node", "resources": [cpu]}]);
        serde_json::from_value(json!({"metadata": {"name": name}, "zones": zones})).unwrap()
    }

    /// A page: what it has after the differences that it got.
    #[derive(Default)]
    struct Page {
        version: u64,
        nodes: BTreeMap<String, Value>,
        history: usize,
        resets: usize,
    }

    impl Page {
        fn read(&mut self, fleet: &Fleet, max: usize) {
            loop {
                let is_new = self.version == 0;
                let delta = fleet.since(self.version, max);
                let is_last = delta.is_last;
                let delta = serde_json::to_value(&delta).unwrap();
                self.version = delta["version"].as_u64().unwrap();
                if delta["reset"] == true {
                    self.nodes.clear();
                    self.resets += usize::from(!is_new);
                }
                for node in delta["nodes"].as_array().unwrap() {
                    self.nodes.insert(node["name"].as_str().unwrap().to_owned(), node.clone());
                }
                for name in delta["gone"].as_array().into_iter().flatten() {
                    self.nodes.remove(name.as_str().unwrap());
                }
                self.history += delta["history"].as_array().map_or(0, Vec::len);
                if is_last {
                    return;
                }
            }
        }
    }

    #[test]
    fn a_page_that_reads_differences_has_what_a_new_one_gets() {
        let RngSeed::Fixed(seed) = cases().rng_seed else { panic!("no seed") };
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..50 {
            let (mut fleet, mut page) = (Fleet::default(), Page::default());
            for _ in 0..60 {
                let name = format!("n{}", random.u8(..12));
                match random.u8(..12) {
                    0..4 => fleet.put_object(object(&name, random.u64(..3)), NOW),
                    4 => fleet.remove_object(&name, NOW),
                    5 => {
                        let labels = Labels::from([("rack".to_owned(), random.u8(..2).to_string())]);
                        fleet.set_node(&name, random.bool().then_some(labels), NOW);
                    }
                    6 => fleet.set_agent(&name, "agent", random.bool().then(|| random.bool()), NOW),
                    7 => fleet.set_knows_agents(random.bool(), NOW),
                    8 => fleet.list_nodes(BTreeMap::new(), NOW),
                    9 => fleet.list_objects(vec![object(&name, 1)], NOW),
                    _ => fleet.set_problem(NODES, random.bool().then(|| "denied".to_owned()), NOW),
                }
                if random.bool() {
                    page.read(&fleet, random.usize(1..6));
                }
            }
            page.read(&fleet, 3);
            let mut new = Page::default();
            new.read(&fleet, 100);
            assert_eq!(page.nodes, new.nodes);
            assert_eq!(page.resets, 0);
            assert_eq!(
                new.nodes.is_empty(),
                !fleet.is_shown || fleet.nodes.values().all(|one| !one.exists())
            );
            let exist = fleet.nodes.values().filter(|entry| entry.tile.is_some()).count();
            assert_eq!(new.nodes.len(), exist);
            assert_eq!(fleet.by_version.len(), fleet.nodes.values().filter(|one| one.version > 0).count());
        }
    }

    #[test]
    fn a_list_removes_what_it_lacks() {
        let mut fleet = Fleet::default();
        fleet.list_objects(vec![object("a", 1), object("b", 1)], NOW);
        fleet.list_nodes(BTreeMap::new(), NOW);
        let mut page = Page::default();
        page.read(&fleet, 10);
        assert_eq!(page.nodes.keys().collect::<Vec<_>>(), ["a", "b"]);
        fleet.list_objects(vec![object("b", 2)], NOW);
        page.read(&fleet, 10);
        assert_eq!(page.nodes.keys().collect::<Vec<_>>(), ["b"]);
        assert_eq!((page.nodes["b"]["zones"][0]["free"][0].as_u64(), page.history), (Some(2), 1));
        fleet.list_nodes([("c".to_owned(), Labels::new())].into(), NOW);
        fleet.list_nodes([("d".to_owned(), Labels::new())].into(), NOW);
        page.read(&fleet, 10);
        assert_eq!(page.nodes.keys().collect::<Vec<_>>(), ["b", "d"]);
    }

    #[test]
    fn nodes_are_shown_and_complete_once_all_is_listed() {
        let mut fleet = Fleet::default();
        fleet.put_object(object("a", 1), NOW);
        fleet.list_objects(vec![object("a", 1)], NOW);
        let before = fleet.since(0, 10);
        assert!(!before.complete && before.nodes.is_empty());
        let version = fleet.version();
        fleet.list_nodes([("a".to_owned(), Labels::new())].into(), NOW);
        let listed = fleet.since(version, 10);
        assert!(listed.complete);
        assert_eq!(listed.nodes.iter().map(|tile| tile.status).collect::<Vec<_>>(), [Status::Ok]);
        assert!(!fleet.since(version, 1).complete, "there may be more nodes");
        let version = fleet.version();
        fleet.list_nodes([("a".to_owned(), Labels::new())].into(), NOW);
        assert_eq!(fleet.version(), version);
    }

    #[test]
    fn without_objects_nothing_is_said_of_nodes() {
        let mut fleet = Fleet::default();
        fleet.list_nodes([("a".to_owned(), Labels::new())].into(), NOW);
        fleet.set_problem("objects", Some("denied".to_owned()), NOW);
        let delta = fleet.since(0, 10);
        assert_eq!((delta.complete, delta.nodes.len(), delta.problems.len()), (false, 0, 1));
    }

    #[test]
    fn objects_are_shown_if_nodes_cannot_be_listed() {
        let mut fleet = Fleet::default();
        fleet.list_objects(vec![object("a", 1)], NOW);
        fleet.set_problem(NODES, Some("denied".to_owned()), NOW);
        let delta = fleet.since(0, 10);
        assert!(delta.complete);
        assert_eq!(delta.nodes.iter().map(|tile| tile.status).collect::<Vec<_>>(), [Status::Ok]);
        fleet.list_nodes(BTreeMap::new(), NOW);
        assert_eq!(fleet.tile("a").map(|tile| tile.status), Some(Status::Stale));
    }

    #[test]
    fn a_page_that_missed_too_many_deletions_starts_again() {
        let mut fleet = Fleet::default();
        fleet.list_objects(Vec::new(), NOW);
        fleet.list_nodes(BTreeMap::new(), NOW);
        fleet.put_object(object("first", 1), NOW);
        let mut page = Page::default();
        page.read(&fleet, 10);
        for number in 0..=MAX_GONE + 1 {
            let name = format!("n{number}");
            fleet.put_object(object(&name, 1), NOW);
            fleet.remove_object(&name, NOW);
        }
        assert!(fleet.nodes.len() <= MAX_GONE + 1 && fleet.by_version.len() <= MAX_GONE + 1);
        page.read(&fleet, 100);
        assert_eq!((page.resets, page.nodes.len()), (1, 1));
        // A page of an earlier server may be ahead.
        page.version = fleet.version() + 7;
        page.read(&fleet, 100);
        assert_eq!((page.resets, page.nodes.len()), (2, 1));
    }

    #[test]
    fn problems_are_versions_too() {
        let mut fleet = Fleet::default();
        fleet.set_problem("agents", Some("denied".to_owned()), NOW);
        let version = fleet.version();
        fleet.set_problem("agents", Some("denied".to_owned()), NOW);
        assert_eq!(fleet.version(), version);
        assert_eq!(fleet.since(0, 10).problems, ["denied"]);
        fleet.set_problem("agents", None, NOW);
        assert!(fleet.version() > version && fleet.since(0, 10).problems.is_empty());
    }
}
