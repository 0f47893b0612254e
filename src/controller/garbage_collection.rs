//! Decides which objects are garbage and may be deleted: pure, given the time.
//!
//! An object is garbage if no Node of its name has existed for the grace period. If the list of Nodes is
//! wrong, every object looks like garbage, so deleting too many at once is held back.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::NrtMeta;

/// This many objects may be deleted whatever their share.
const ALWAYS_ALLOWED: usize = 10;
/// Minimum interval between two passes.
const SPACING: Duration = Duration::from_secs(10);
/// Interval after a pass that was held back or failed.
const RETRY: Duration = Duration::from_secs(60);
/// Maximum number of other writers' objects read in one pass.
const MAX_CLASSIFIED: usize = 500;
/// Maximum number of objects read one by one in a pass. More are cheaper to list.
const MAX_READ: usize = 50;

/// The rules of garbage collection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// Interval between passes over all objects.
    pub interval: Duration,
    /// How long a Node must have been gone.
    pub grace: Duration,
    /// Percentage of objects that may be deleted within an interval.
    pub max_percent: u8,
}

#[derive(Debug, Default)]
pub(super) struct GarbageCollector {
    rules: Rules,
    /// Nodes that were deleted, and when.
    deleted_nodes: BTreeMap<Box<str>, Instant>,
    /// Objects without a Node, and since when.
    orphans: BTreeMap<Box<str>, Instant>,
    /// Other writers' objects without a Node that were read: in which version, and whether a scheduler reads
    /// them as a Node's. Any other object stays even without a Node.
    classified: BTreeMap<Box<str>, (String, bool)>,
    /// How often the deletion of an object failed.
    failures: BTreeMap<Box<str>, u32>,
    /// When objects were deleted, within the last interval.
    deletions: VecDeque<Instant>,
    last_pass: Option<Instant>,
    /// When all objects were listed, and how many there were.
    last_list: Option<(Instant, usize)>,
    /// Whether the last pass failed or did not delete all it should have.
    is_incomplete: bool,
}

/// One pass over all objects, or over some.
#[derive(Debug, Default)]
pub(super) struct Pass {
    pub(super) objects: usize,
    pub(super) orphans: Vec<NrtMeta>,
    /// The names of the objects that were read; `None` if all were listed.
    pub(super) names: Option<Vec<Box<str>>>,
}

impl Pass {
    /// Records an object. One that was deleted and waits for a finalizer needs no action.
    pub(super) fn add(&mut self, meta: NrtMeta, has_node: bool) {
        self.objects += 1;
        if !has_node && !meta.is_kept && !meta.is_deleted {
            self.orphans.push(meta);
        }
    }
}

#[derive(Debug)]
pub(super) enum Decision {
    /// Delete these one by one, if their Nodes are still gone.
    Delete(Vec<NrtMeta>),
    HoldBack(Doubt),
}

/// Why nothing is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Doubt {
    /// The list of Nodes is unknown.
    NodesUnknown,
    /// There are objects but no Nodes.
    NoNodes { objects: usize },
    /// The cached list of Nodes differs too much from the API server's count.
    CountsDiffer { cached: usize, counted: u64 },
    /// Too many objects would be deleted; `deleted` counts those of the last interval.
    TooMany { orphans: usize, deleted: usize, objects: usize, max_percent: u8 },
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NodesUnknown => f.write_str("the list of Nodes is not known or may be old"),
            Self::NoNodes { objects } => {
                write!(f, "the list of Nodes is empty while there are {objects} objects")
            }
            Self::CountsDiffer { cached, counted } => {
                write!(f, "{cached} Nodes are known while the API server counts {counted}")
            }
            Self::TooMany { orphans, deleted, objects, max_percent } => write!(
                f,
                "{orphans} of {objects} objects have no Node{}, more than the {max_percent} % of \
                 `controller.garbage.maxPercent`; if these Nodes are really gone, set it to 100 until their objects are deleted",
                match deleted {
                    0 => String::new(),
                    deleted => format!(" and {deleted} were deleted recently"),
                }
            ),
        }
    }
}

impl GarbageCollector {
    /// Creates an empty state; the first pass is due at once.
    pub(super) fn new(rules: Rules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// Returns the state for a new term as leader: empty, except for the deletions within the last interval.
    pub(super) fn next_term(&mut self) -> Self {
        Self { deletions: std::mem::take(&mut self.deletions), ..Self::new(self.rules) }
    }

    pub(super) fn node_deleted(&mut self, name: Box<str>, now: Instant) {
        self.deleted_nodes.entry(name).or_insert(now);
    }

    pub(super) fn node_exists(&mut self, name: &str) {
        self.deleted_nodes.remove(name);
        self.orphans.remove(name);
    }

    /// Records a list of all Nodes. Those that exist are not gone, whatever was observed before.
    pub(super) fn nodes_listed(&mut self, is_node: impl Fn(&str) -> bool) {
        self.deleted_nodes.retain(|name, _| !is_node(name));
        self.orphans.retain(|name, _| !is_node(name));
    }

    pub(super) fn next_pass(&self, now: Instant) -> Instant {
        let Some(last) = self.last_pass else { return now };
        if self.is_incomplete {
            return last + RETRY.min(self.rules.interval);
        }
        let regular = self.last_list.map_or(last, |(listed, _)| listed) + self.rules.interval;
        let Some(earliest) = self.deleted_nodes.values().chain(self.orphans.values()).min() else {
            return regular;
        };
        let spaced = last + SPACING.min(self.rules.grace);
        (*earliest + self.rules.grace).max(spaced).min(regular)
    }

    /// Returns the names of the objects that are due and may be read one by one; `None` if all objects must
    /// be listed: at the start, at each interval, after a pass that was held back or failed, and if so many
    /// Nodes are gone that their number must be compared with that of all objects. `nodes` is the number of
    /// cached Nodes.
    pub(super) fn objects_to_read(&mut self, nodes: usize, now: Instant) -> Option<Vec<Box<str>>> {
        let (listed, objects) = self.last_list?;
        if self.is_incomplete || nodes == 0 || now >= listed + self.rules.interval {
            return None;
        }
        let deleted = self.recent_deletions(now);
        let gone = self.deleted_nodes.iter().filter(|(name, _)| !self.orphans.contains_key(*name));
        let all: Vec<_> = self.orphans.iter().chain(gone).collect();
        // Each is assumed to have an object.
        let objects = objects.min(nodes + all.len());
        if all.len() + deleted > self.allowed(objects, deleted) {
            return None;
        }
        let due = all.into_iter().filter(|(_, since)| now.duration_since(**since) >= self.rules.grace);
        let due: Vec<Box<str>> = due.map(|(name, _)| name.clone()).collect();
        (due.len() <= MAX_READ).then_some(due)
    }

    /// Returns the number of objects that were deleted within the last interval, and drops older deletions.
    fn recent_deletions(&mut self, now: Instant) -> usize {
        while self.deletions.front().is_some_and(|at| now.duration_since(*at) >= self.rules.interval) {
            self.deletions.pop_front();
        }
        self.deletions.len()
    }

    /// Returns how many objects may have no Node or have been deleted within the last interval.
    fn allowed(&self, objects: usize, deleted: usize) -> usize {
        ((objects + deleted) * usize::from(self.rules.max_percent) / 100).max(ALWAYS_ALLOWED)
    }

    pub(super) fn orphans(&self) -> usize {
        self.orphans.len()
    }

    pub(super) fn pass_failed(&mut self, now: Instant) {
        (self.last_pass, self.is_incomplete) = (Some(now), true);
        // Only a completed pass would prune these. An object of a pruned Node starts a new grace period.
        let max_age = self.rules.interval.max(self.rules.grace) * 2;
        self.deleted_nodes.retain(|_, since| now.duration_since(*since) < max_age);
    }

    /// Returns objects of other writers that were not read in their current version. They may or may not
    /// describe a Node.
    pub(super) fn unclassified(&self, pass: &Pass) -> Vec<NrtMeta> {
        let unclassified = pass.orphans.iter().filter(|meta| self.describes_node(meta).is_none());
        unclassified.take(MAX_CLASSIFIED).cloned().collect()
    }

    /// Returns whether a scheduler reads the object as a Node's; `None` if it was not read. Our own objects
    /// are a Node's.
    pub(super) fn describes_node(&self, meta: &NrtMeta) -> Option<bool> {
        if meta.writers.ours {
            return Some(true);
        }
        let classified = self.classified.get(meta.name.as_str());
        classified.filter(|(version, _)| *version == meta.version).map(|(_, describes_node)| *describes_node)
    }

    pub(super) fn classify(&mut self, meta: &NrtMeta, describes_node: bool) {
        self.classified.insert(meta.name.as_str().into(), (meta.version.clone(), describes_node));
    }

    /// Decides what to do after a pass. `nodes` is the number of cached Nodes, `counted` the API server's
    /// count.
    pub(super) fn conclude(&mut self, pass: Pass, nodes: usize, counted: u64, now: Instant) -> Decision {
        let Pass { objects, mut orphans, names } = pass;
        self.last_pass = Some(now);
        if names.is_none() {
            self.last_list = Some((now, objects));
            self.prune(&orphans);
        }
        orphans.retain(|meta| self.describes_node(meta) != Some(false));
        let found: BTreeMap<Box<str>, Instant> =
            orphans.iter().map(|meta| (meta.name.as_str().into(), self.since(&meta.name, now))).collect();
        // A Node that has been gone for longer has no object.
        let within_grace = |since: &Instant| now.duration_since(*since) < self.rules.grace;
        let objects = match names {
            None => {
                self.orphans = found;
                self.deleted_nodes.retain(|_, since| within_grace(since));
                objects
            }
            Some(names) => {
                for name in &names {
                    self.orphans.remove(name);
                    self.deleted_nodes.retain(|node, since| node != name || within_grace(since));
                }
                self.orphans.extend(found);
                let listed = self.last_list.map_or(0, |(_, objects)| objects);
                listed.min(nodes + self.orphans.len())
            }
        };
        let deleted = self.recent_deletions(now);
        let doubt = self.doubt(objects, nodes, counted, deleted);
        self.is_incomplete = doubt.is_some();
        if let Some(doubt) = doubt {
            return Decision::HoldBack(doubt);
        }
        let is_due = |meta: &NrtMeta| now.duration_since(self.since(&meta.name, now)) >= self.rules.grace;
        let mut due: Vec<NrtMeta> = orphans.into_iter().filter(is_due).collect();
        // Failed deletions come last, so that they do not block others.
        due.sort_by_key(|meta| self.failures.get(meta.name.as_str()).copied().unwrap_or_default());
        Decision::Delete(due)
    }

    /// Drops what is known of objects that are gone or have changed since.
    fn prune(&mut self, orphans: &[NrtMeta]) {
        let mut classified = std::mem::take(&mut self.classified);
        let mut failures = std::mem::take(&mut self.failures);
        for meta in orphans {
            if let Some((name, before)) = classified.remove_entry(meta.name.as_str())
                && before.0 == meta.version
            {
                self.classified.insert(name, before);
            }
            self.failures.extend(failures.remove_entry(meta.name.as_str()));
        }
    }

    /// Returns since when the object has had no Node.
    fn since(&self, name: &str, now: Instant) -> Instant {
        self.orphans.get(name).or_else(|| self.deleted_nodes.get(name)).copied().unwrap_or(now)
    }

    fn doubt(&self, objects: usize, nodes: usize, counted: u64, deleted: usize) -> Option<Doubt> {
        let orphans = self.orphans.len();
        if orphans == 0 {
            return None;
        }
        if nodes == 0 {
            return Some(Doubt::NoNodes { objects });
        }
        // Nodes may have been added or removed between the two counts.
        let difference = usize::try_from(counted.abs_diff(nodes as u64)).unwrap_or(usize::MAX);
        if difference > (nodes / 20).max(ALWAYS_ALLOWED) {
            return Some(Doubt::CountsDiffer { cached: nodes, counted });
        }
        let max_percent = self.rules.max_percent;
        let is_too_much = orphans + deleted > self.allowed(objects, deleted);
        is_too_much.then_some(Doubt::TooMany { orphans, deleted, objects, max_percent })
    }

    /// Records that an object was deleted, or was already gone.
    pub(super) fn object_deleted(&mut self, name: &str, now: Instant) {
        self.orphans.remove(name);
        self.deletions.push_back(now);
        if let Some((_, objects)) = &mut self.last_list {
            *objects = objects.saturating_sub(1);
        }
    }

    pub(super) fn deletion_failed(&mut self, name: &str) {
        let count = self.failures.entry(name.into()).or_default();
        *count = count.saturating_add(1);
        self.is_incomplete = true;
    }

    /// Records that an object was not deleted: all objects are listed again soon.
    pub(super) fn retry_soon(&mut self) {
        self.is_incomplete = true;
    }
}

#[cfg(test)]
mod tests;
