//! Decides which objects are garbage and may be deleted: pure, given the time.
//!
//! An object is garbage if no Node of its name has existed for the grace period. If the list of Nodes is
//! wrong, every object looks like garbage, so deleting too many at once is refused.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use super::said::first_of;
use crate::cluster::Mark;

/// This many objects may be deleted whatever their share.
const FEW: usize = 10;
/// Minimum interval between two passes.
const SPACING: Duration = Duration::from_secs(10);
/// Interval after a pass that was held back or failed.
const RETRY: Duration = Duration::from_secs(60);
/// This many consecutive refusals end a pass: they are unlikely to be about single objects.
const MOST_REFUSALS: usize = 10;
/// Maximum number of other writers' objects read in one pass.
const MOST_ASKED: usize = 500;
/// Maximum number of objects read one by one in a pass. More are cheaper to list.
const MOST_NAMED: usize = 50;

/// The rules of garbage collection.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Interval between passes over all objects.
    pub interval: Duration,
    /// How long a Node must have been gone.
    pub grace: Duration,
    /// Percentage of objects that may be deleted within an interval.
    pub most: u8,
}

/// The state of garbage collection.
#[derive(Debug)]
pub(super) struct Garbage {
    rules: Rules,
    /// Nodes that were deleted, and when.
    gone: BTreeMap<Box<str>, Instant>,
    /// Objects without a Node, and since when.
    waiting: BTreeMap<Box<str>, Instant>,
    /// What is known of other writers' objects without a Node.
    asked: BTreeMap<Box<str>, Asked>,
    /// How often the API server refused to delete an object.
    refused: BTreeMap<Box<str>, u32>,
    /// When objects were deleted, within the last interval.
    deleted: VecDeque<Instant>,
    last: Option<Instant>,
    /// When all objects were listed, and how many there were.
    listed: Option<(Instant, usize)>,
    /// Whether the last pass failed or did not delete all it should have.
    stuck: bool,
}

/// Whether another writer's object describes a Node, as of this version.
#[derive(Debug)]
struct Asked {
    version: String,
    /// A scheduler reads it as a Node's. Any other object stays even without a Node.
    of_numa: bool,
}

/// Deletions that the API server refused in one pass.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    names: Vec<String>,
    first: Option<String>,
    in_a_row: usize,
}

impl Refusals {
    /// Records a refusal. Returns true if the pass should end.
    pub(super) fn add(&mut self, name: &str, sentence: String) -> bool {
        self.names.push(name.to_owned());
        self.first.get_or_insert(sentence);
        self.in_a_row += 1;
        self.in_a_row >= MOST_REFUSALS
    }

    /// Resets the count of consecutive refusals.
    pub(super) fn broken(&mut self) {
        self.in_a_row = 0;
    }

    /// Returns a message about the refusals.
    pub(super) fn sentence(&self) -> Option<String> {
        let first = self.first.as_ref()?;
        Some(format!("objects of Nodes that are gone cannot be deleted ({}): {first}", first_of(&self.names)))
    }
}

/// One pass over all objects, or over some.
#[derive(Debug, Default)]
pub(super) struct Pass {
    objects: usize,
    orphans: Vec<Mark>,
    /// The names of the objects that were read; `None` if all were listed.
    named: Option<Vec<Box<str>>>,
}

impl Pass {
    /// Creates a pass over the objects of these names only.
    pub(super) fn over(names: Vec<Box<str>>) -> Self {
        Self { named: Some(names), ..Self::default() }
    }

    /// Returns true for a pass over all objects.
    pub(super) fn is_over_all(&self) -> bool {
        self.named.is_none()
    }

    /// Records an object. One that was deleted and has finalizers needs no action.
    pub(super) fn look(&mut self, mark: Mark, has_node: bool) {
        self.objects += 1;
        if !has_node && !mark.kept && !mark.going {
            self.orphans.push(mark);
        }
    }

    /// Returns true if an object has no Node.
    pub(super) fn has_orphans(&self) -> bool {
        !self.orphans.is_empty()
    }
}

/// The result of a pass.
#[derive(Debug)]
pub(super) enum Verdict {
    /// Delete these one by one, if their Nodes are still gone.
    Delete(Vec<Mark>),
    /// Delete nothing.
    Held(Held),
}

/// Why nothing is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// The list of Nodes is unknown.
    NodesUnknown,
    /// There are objects but no Nodes.
    NoNodes {
        /// Number of objects.
        objects: usize,
    },
    /// The cached list of Nodes differs too much from the API server's count.
    Disagreement {
        /// Number of cached Nodes.
        known: usize,
        /// The API server's count.
        counted: u64,
    },
    /// Too many objects would be deleted.
    TooMany {
        /// Objects without a Node.
        orphans: usize,
        /// Objects deleted recently.
        lately: usize,
        /// All objects.
        objects: usize,
        /// Percentage that may be deleted.
        most: u8,
    },
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NodesUnknown => f.write_str("the list of Nodes is not known or may be old"),
            Self::NoNodes { objects } => {
                write!(f, "the list of Nodes is empty while there are {objects} objects")
            }
            Self::Disagreement { known, counted } => {
                write!(f, "{known} Nodes are known while the API server counts {counted}")
            }
            Self::TooMany { orphans, lately, objects, most } => write!(
                f,
                "{orphans} of {objects} objects have no Node{}, more than the {most} % of `controller.garbage.most`; if \
                 these Nodes are really gone, set it to 100 for once",
                match lately {
                    0 => String::new(),
                    lately => format!(" and {lately} were deleted lately"),
                }
            ),
        }
    }
}

impl Garbage {
    /// Creates an empty state; the first pass is due at once.
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            rules,
            gone: BTreeMap::new(),
            waiting: BTreeMap::new(),
            asked: BTreeMap::new(),
            refused: BTreeMap::new(),
            deleted: VecDeque::new(),
            last: None,
            listed: None,
            stuck: false,
        }
    }

    /// Returns the state for a new term as leader: empty, except for the deletions within the last interval.
    pub(super) fn next_term(&mut self) -> Self {
        Self { deleted: std::mem::take(&mut self.deleted), ..Self::new(self.rules) }
    }

    /// A Node was deleted.
    pub(super) fn node_went(&mut self, name: Box<str>, now: Instant) {
        self.gone.entry(name).or_insert(now);
    }

    /// A Node exists.
    pub(super) fn node_came(&mut self, name: &str) {
        self.gone.remove(name);
        self.waiting.remove(name);
    }

    /// All Nodes were listed. Those that exist are not gone, whatever was seen before.
    pub(super) fn nodes_are(&mut self, is_node: impl Fn(&str) -> bool) {
        self.gone.retain(|name, _| !is_node(name));
        self.waiting.retain(|name, _| !is_node(name));
    }

    /// Returns when the next pass is due.
    pub(super) fn due(&self, now: Instant) -> Instant {
        let Some(last) = self.last else { return now };
        if self.stuck {
            return last + RETRY.min(self.rules.interval);
        }
        let regular = self.listed.map_or(last, |(listed, _)| listed) + self.rules.interval;
        let Some(earliest) = self.gone.values().chain(self.waiting.values()).min() else { return regular };
        let spaced = last + SPACING.min(self.rules.grace);
        (*earliest + self.rules.grace).max(spaced).min(regular)
    }

    /// Returns the names of the objects that are due and may be read one by one; `None` if all objects must be
    /// listed: at the start, at each interval, after a pass that was held back or failed, and if so many
    /// Nodes are gone that their number must be compared with that of all objects. `known` is the number of
    /// cached Nodes.
    pub(super) fn named(&self, known: usize, now: Instant) -> Option<Vec<Box<str>>> {
        let (listed, objects) = self.listed?;
        if self.stuck || known == 0 || now >= listed + self.rules.interval {
            return None;
        }
        let gone = self.gone.iter().filter(|(name, _)| !self.waiting.contains_key(*name));
        let all: Vec<_> = self.waiting.iter().chain(gone).collect();
        // Each is taken to have an object.
        let objects = objects.min(known + all.len());
        if all.len() + self.lately(now) > self.allowed(objects, self.lately(now)) {
            return None;
        }
        let due = all.into_iter().filter(|(_, since)| now.duration_since(**since) >= self.rules.grace);
        let due: Vec<Box<str>> = due.map(|(name, _)| name.clone()).collect();
        (due.len() <= MOST_NAMED).then_some(due)
    }

    /// Returns the number of objects that were deleted within the last interval.
    fn lately(&self, now: Instant) -> usize {
        self.deleted.iter().filter(|at| now.duration_since(**at) < self.rules.interval).count()
    }

    /// Returns how many objects may have no Node or have been deleted lately.
    fn allowed(&self, objects: usize, lately: usize) -> usize {
        ((objects + lately) * usize::from(self.rules.most) / 100).max(FEW)
    }

    /// Returns the number of objects without a Node.
    pub(super) fn orphans(&self) -> usize {
        self.waiting.len()
    }

    /// A pass failed.
    pub(super) fn failed(&mut self, now: Instant) {
        (self.last, self.stuck) = (Some(now), true);
        // Only a completed pass would prune these. An object of a pruned Node starts a new grace period.
        let long = self.rules.interval.max(self.rules.grace) * 2;
        self.gone.retain(|_, since| now.duration_since(*since) < long);
    }

    /// Returns objects of other writers that were not read in their current version. They may or may not
    /// describe a Node.
    pub(super) fn unasked(&self, pass: &Pass) -> Vec<Mark> {
        let unasked = pass.orphans.iter().filter(|mark| self.is_of_numa(mark).is_none());
        unasked.take(MOST_ASKED).cloned().collect()
    }

    /// Returns whether a scheduler reads the object as a Node's; `None` if not read yet. Our own objects are.
    pub(super) fn is_of_numa(&self, mark: &Mark) -> Option<bool> {
        if mark.writers.ours {
            return Some(true);
        }
        let asked = self.asked.get(mark.name.as_str()).filter(|asked| asked.version == mark.version);
        asked.map(|asked| asked.of_numa)
    }

    /// Records the result of reading an object.
    pub(super) fn asked(&mut self, mark: &Mark, of_numa: bool) {
        let version = mark.version.clone();
        self.asked.insert(mark.name.as_str().into(), Asked { version, of_numa });
    }

    /// Decides what to do after a pass. `known` is the number of cached Nodes, `counted` the API server's
    /// count.
    pub(super) fn conclude(&mut self, pass: Pass, known: usize, counted: u64, now: Instant) -> Verdict {
        let Pass { objects, mut orphans, named } = pass;
        self.last = Some(now);
        if named.is_none() {
            self.listed = Some((now, objects));
            self.forget(&orphans);
        }
        orphans.retain(|mark| self.is_of_numa(mark) != Some(false));
        let found: BTreeMap<Box<str>, Instant> =
            orphans.iter().map(|mark| (mark.name.as_str().into(), self.since(&mark.name, now))).collect();
        // A Node that has been gone for longer has no object.
        let is_young = |since: &Instant| now.duration_since(*since) < self.rules.grace;
        let objects = match named {
            None => {
                self.waiting = found;
                self.gone.retain(|_, since| is_young(since));
                objects
            }
            Some(names) => {
                for name in &names {
                    self.waiting.remove(name);
                    self.gone.retain(|gone, since| gone != name || is_young(since));
                }
                self.waiting.extend(found);
                let listed = self.listed.map_or(0, |(_, objects)| objects);
                listed.min(known + self.waiting.len())
            }
        };
        while self.deleted.front().is_some_and(|at| now.duration_since(*at) >= self.rules.interval) {
            self.deleted.pop_front();
        }
        let held = self.held(objects, known, counted);
        self.stuck = held.is_some();
        if let Some(held) = held {
            return Verdict::Held(held);
        }
        let due = |mark: &Mark| now.duration_since(self.since(&mark.name, now)) >= self.rules.grace;
        let mut marks: Vec<Mark> = orphans.into_iter().filter(due).collect();
        // Refused objects come last, so that they do not block others.
        marks.sort_by_key(|mark| self.refused.get(mark.name.as_str()).copied().unwrap_or_default());
        Verdict::Delete(marks)
    }

    /// Drops what is known of objects that are gone or have changed since.
    fn forget(&mut self, orphans: &[Mark]) {
        let mut asked = std::mem::take(&mut self.asked);
        let mut refused = std::mem::take(&mut self.refused);
        for mark in orphans {
            if let Some((name, before)) = asked.remove_entry(mark.name.as_str())
                && before.version == mark.version
            {
                self.asked.insert(name, before);
            }
            self.refused.extend(refused.remove_entry(mark.name.as_str()));
        }
    }

    fn since(&self, name: &str, now: Instant) -> Instant {
        let known = self.waiting.get(name).or_else(|| self.gone.get(name));
        known.copied().unwrap_or(now)
    }

    fn held(&self, objects: usize, known: usize, counted: u64) -> Option<Held> {
        let orphans = self.waiting.len();
        if orphans == 0 {
            return None;
        }
        if known == 0 {
            return Some(Held::NoNodes { objects });
        }
        // Nodes may have been added or removed between the two counts.
        let difference = usize::try_from(counted.abs_diff(known as u64)).unwrap_or(usize::MAX);
        if difference > (known / 20).max(FEW) {
            return Some(Held::Disagreement { known, counted });
        }
        let (lately, most) = (self.deleted.len(), self.rules.most);
        let allowed = self.allowed(objects, lately);
        (orphans + lately > allowed).then_some(Held::TooMany { orphans, lately, objects, most })
    }

    /// An object was deleted, or was already gone.
    pub(super) fn deleted(&mut self, name: &str, now: Instant) {
        self.waiting.remove(name);
        self.deleted.push_back(now);
        if let Some((_, objects)) = &mut self.listed {
            *objects = objects.saturating_sub(1);
        }
    }

    /// The API server refused to delete an object.
    pub(super) fn refused(&mut self, name: &str) {
        let times = self.refused.entry(name.into()).or_default();
        *times = times.saturating_add(1);
        self.stuck = true;
    }

    /// A deletion failed: the rest is retried later.
    pub(super) fn gave_up(&mut self) {
        self.stuck = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Writers;

    const SECOND: Duration = Duration::from_secs(1);
    const RULES: Rules =
        Rules { interval: Duration::from_secs(600), grace: Duration::from_secs(60), most: 20 };

    fn mark(name: &str) -> Mark {
        Mark {
            name: name.to_owned(),
            uid: format!("uid-of-{name}"),
            version: "1".to_owned(),
            created: None,
            writers: Writers { ours: true, other: None },
            kept: false,
            going: false,
        }
    }

    /// Returns a pass over this many objects with a Node, and these without.
    fn pass(with: usize, without: &[String]) -> Pass {
        let mut pass = Pass::default();
        (0..with).for_each(|n| pass.look(mark(&format!("with-{n}")), true));
        without.iter().for_each(|name| pass.look(mark(name), false));
        pass
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("without-{n}")).collect()
    }

    fn deletes(verdict: Verdict) -> Vec<String> {
        match verdict {
            Verdict::Delete(marks) => marks.into_iter().map(|mark| mark.name).collect(),
            Verdict::Held(held) => panic!("{held}"),
        }
    }

    fn held(verdict: Verdict) -> Held {
        match verdict {
            Verdict::Held(held) => held,
            Verdict::Delete(marks) => panic!("{marks:?}"),
        }
    }

    #[test]
    fn what_the_first_pass_finds_waits_for_the_grace_period() {
        let start = Instant::now();
        let mut garbage = Garbage::new(RULES);
        assert_eq!(garbage.due(start), start);
        let two = names(2);
        assert_eq!(deletes(garbage.conclude(pass(98, &two), 98, 98, start)), Vec::<String>::new());
        assert_eq!((garbage.orphans(), garbage.due(start)), (2, start + 60 * SECOND));
        let later = start + 60 * SECOND;
        assert_eq!(deletes(garbage.conclude(pass(98, &two), 98, 98, later)), two);
        two.iter().for_each(|name| garbage.deleted(name, later));
        assert_eq!((garbage.orphans(), garbage.due(later)), (0, later + RULES.interval));
    }

    #[test]
    fn a_node_that_is_seen_to_go_starts_its_own_grace_period() {
        let start = Instant::now();
        let mut garbage = Garbage::new(RULES);
        garbage.conclude(pass(100, &[]), 100, 100, start);
        garbage.node_went("without-0".into(), start + 20 * SECOND);
        garbage.node_went("without-1".into(), start + 30 * SECOND);
        garbage.node_went("without-0".into(), start + 50 * SECOND);
        assert_eq!(garbage.due(start), start + 80 * SECOND);
        garbage.node_came("without-1");
        let (now, both) = (start + 80 * SECOND, names(2));
        // The other one's Node was added and deleted again between passes.
        assert_eq!(deletes(garbage.conclude(pass(98, &both), 98, 98, now)), ["without-0"]);
    }

    /// Returns a pass over these names, of which these have an object.
    fn pass_over(names: Vec<Box<str>>, objects: &[&str]) -> Pass {
        let mut pass = Pass::over(names);
        objects.iter().for_each(|name| pass.look(mark(name), false));
        pass
    }

    #[test]
    fn objects_of_nodes_that_went_are_read_one_by_one_until_the_interval() {
        let start = Instant::now();
        let mut garbage = Garbage::new(RULES);
        assert_eq!(garbage.named(100, start), None, "the start");
        garbage.conclude(pass(100, &[]), 100, 100, start);
        garbage.node_went("a".into(), start);
        garbage.node_went("b".into(), start);
        garbage.node_went("c".into(), start + 30 * SECOND);
        let now = start + 60 * SECOND;
        let named = garbage.named(97, now).unwrap();
        assert_eq!(named, ["a".into(), "b".into()]);
        assert_eq!(garbage.named(0, now), None, "without Nodes");
        // The other one's object went with its Node.
        assert_eq!(deletes(garbage.conclude(pass_over(named, &["b"]), 97, 97, now)), ["b"]);
        assert_eq!(garbage.orphans(), 1);
        garbage.deleted("b", now);
        assert_eq!((garbage.orphans(), garbage.due(now)), (0, start + 90 * SECOND), "the third");
        let now = start + 90 * SECOND;
        let named = garbage.named(97, now).unwrap();
        assert_eq!(named, ["c".into()]);
        assert!(deletes(garbage.conclude(pass_over(named, &[]), 97, 97, now)).is_empty());
        assert_eq!(garbage.due(now), start + RULES.interval, "since all were listed");
        assert_eq!(garbage.named(97, start + RULES.interval), None);
        garbage.gave_up();
        assert_eq!(garbage.named(97, now), None, "something went wrong");
    }

    #[test]
    fn all_objects_are_listed_if_many_nodes_went() {
        let start = Instant::now();
        let went = |nodes: usize, count: usize| {
            let mut garbage = Garbage::new(RULES);
            garbage.conclude(pass(nodes, &[]), nodes, nodes as u64, start);
            names(count).into_iter().for_each(|name| garbage.node_went(name.into(), start + SECOND));
            garbage
        };
        let (early, late) = (start + 2 * SECOND, start + 61 * SECOND);
        assert_eq!(went(100, 20).named(80, late).map(|names| names.len()), Some(20));
        assert_eq!(went(100, 21).named(79, early), None, "though none is due: they count");
        assert_eq!(went(1000, MOST_NAMED).named(950, late).map(|names| names.len()), Some(MOST_NAMED));
        assert_eq!(went(1000, MOST_NAMED + 1).named(949, late), None);
        let mut garbage = went(100, 11);
        (0..10).for_each(|n| garbage.deleted(&format!("deleted-{n}"), late));
        assert_eq!(garbage.named(79, late), None, "deleted lately");
    }

    #[test]
    fn a_node_that_is_back_keeps_its_object() {
        let start = Instant::now();
        let mut garbage = Garbage::new(RULES);
        garbage.conclude(pass(99, &names(1)), 99, 99, start);
        garbage.node_came("without-0");
        let later = start + 61 * SECOND;
        assert_eq!(garbage.due(later), start + RULES.interval);
        assert!(deletes(garbage.conclude(pass(100, &[]), 100, 100, later)).is_empty());
        // It is deleted again: a new grace period starts.
        let again = later + SECOND;
        assert!(deletes(garbage.conclude(pass(99, &names(1)), 99, 99, again)).is_empty());
    }

    #[test]
    fn too_much_at_once_is_held_back_and_goes_on_when_it_looks_right() {
        let start = Instant::now();
        let mut garbage = Garbage::new(RULES);
        let half = names(50);
        let verdict = held(garbage.conclude(pass(50, &half), 50, 50, start));
        assert_eq!(verdict, Held::TooMany { orphans: 50, lately: 0, objects: 100, most: 20 });
        assert!(verdict.to_string().starts_with("50 of 100 objects have no Node, more than the 20 %"));
        let later = start + 120 * SECOND;
        held(garbage.conclude(pass(50, &half), 50, 50, later));
        assert_eq!(deletes(garbage.conclude(pass(80, &half[..20]), 80, 80, later + SECOND)).len(), 20);
        let mut garbage = Garbage::new(Rules { most: 100, ..RULES });
        garbage.conclude(pass(1, &half), 1, 1, start);
        assert_eq!(deletes(garbage.conclude(pass(1, &half), 1, 1, later)).len(), 50, "100 % is no limit");
    }

    #[test]
    fn a_few_may_always_go() {
        let start = Instant::now();
        let mut garbage = Garbage::new(Rules { most: 0, ..RULES });
        garbage.conclude(pass(1, &names(FEW)), 1, 1, start);
        assert_eq!(deletes(garbage.conclude(pass(1, &names(FEW)), 1, 1, start + 60 * SECOND)).len(), FEW);
        held(garbage.conclude(pass(1, &names(FEW + 1)), 1, 1, start + 60 * SECOND));
    }

    #[test]
    fn many_small_passes_are_no_way_round_the_limit() {
        let start = Instant::now();
        let mut garbage = Garbage::new(RULES);
        let fifteen = names(15);
        garbage.conclude(pass(85, &fifteen), 85, 85, start);
        let now = start + 60 * SECOND;
        let gone = deletes(garbage.conclude(pass(85, &fifteen), 85, 85, now));
        gone.iter().for_each(|name| garbage.deleted(name, now));
        let verdict = held(garbage.conclude(pass(79, &names(6)), 79, 79, now + SECOND));
        assert_eq!(verdict, Held::TooMany { orphans: 6, lately: 15, objects: 85, most: 20 });
        assert!(verdict.to_string().contains("have no Node and 15 were deleted lately, more"), "{verdict}");
        let mut garbage = garbage.next_term();
        assert_eq!((garbage.orphans(), garbage.due(now)), (0, now), "nothing is known");
        let verdict = held(garbage.conclude(pass(79, &names(6)), 79, 79, now + SECOND));
        assert!(matches!(verdict, Held::TooMany { lately: 15, .. }), "a new term is no way round it either");
        let later = now + RULES.interval;
        assert_eq!(deletes(garbage.conclude(pass(79, &names(6)), 79, 79, later)).len(), 6);
    }

    #[test]
    fn an_empty_list_and_one_that_the_server_does_not_count_delete_nothing() {
        let now = Instant::now();
        let mut garbage = Garbage::new(RULES);
        assert_eq!(held(garbage.conclude(pass(0, &names(3)), 0, 0, now)), Held::NoNodes { objects: 3 });
        let verdict = held(garbage.conclude(pass(100, &names(3)), 100, 200, now));
        assert_eq!(verdict, Held::Disagreement { known: 100, counted: 200 });
        assert!(deletes(garbage.conclude(pass(100, &names(3)), 100, 105, now)).is_empty(), "some came since");
        assert!(deletes(garbage.conclude(pass(0, &[]), 0, 0, now)).is_empty(), "nothing is nothing wrong");
    }

    #[test]
    fn what_is_held_back_or_failed_is_looked_at_less_often() {
        let start = Instant::now();
        let rules = Rules { grace: 90 * SECOND, ..RULES };
        let mut garbage = Garbage::new(rules);
        garbage.failed(start);
        assert_eq!(garbage.due(start), start + 60 * SECOND, "whether something waits or not");
        garbage.node_went("a".into(), start);
        assert_eq!(garbage.due(start), start + 60 * SECOND);
        let mut garbage = Garbage::new(rules);
        garbage.conclude(pass(100, &[]), 100, 100, start + 88 * SECOND);
        garbage.node_went("a".into(), start);
        assert_eq!(garbage.due(start), start + 98 * SECOND, "passes keep their distance");
    }

    /// Returns another writer's object.
    fn theirs(name: &str) -> Mark {
        Mark { writers: Writers { ours: false, other: Some("rack".to_owned()) }, ..mark(name) }
    }

    #[test]
    fn what_no_scheduler_reads_as_a_nodes_stays_until_somebody_writes_it() {
        let start = Instant::now();
        let mut garbage = Garbage::new(RULES);
        let seen = |version: &str| {
            let mut pass = pass(9, &[]);
            pass.look(Mark { version: version.into(), ..theirs("rack") }, false);
            pass
        };
        let names = |marks: Vec<Mark>| marks.into_iter().map(|mark| mark.name).collect::<Vec<_>>();
        assert_eq!(names(garbage.unasked(&seen("1"))), ["rack"]);
        garbage.asked(&theirs("rack"), false);
        assert!(garbage.unasked(&seen("1")).is_empty());
        garbage.conclude(seen("1"), 9, 9, start);
        assert_eq!((garbage.orphans(), garbage.due(start)), (0, start + RULES.interval));
        assert_eq!(names(garbage.unasked(&seen("2"))), ["rack"], "somebody wrote it");
        garbage.asked(&Mark { version: "2".into(), ..theirs("rack") }, true);
        garbage.conclude(seen("2"), 9, 9, start);
        assert!(garbage.unasked(&seen("2")).is_empty(), "once is enough");
        assert_eq!(deletes(garbage.conclude(seen("2"), 9, 9, start + 60 * SECOND)), ["rack"]);
        assert!(garbage.unasked(&pass(9, &names(vec![mark("a")]))).is_empty(), "we wrote it");
    }

    #[test]
    fn objects_that_are_no_nodes_do_not_hold_the_others_back() {
        let start = Instant::now();
        let mut garbage = Garbage::new(RULES);
        let seen = || {
            let mut pass = pass(50, &["without".to_owned()]);
            (0..40).for_each(|n| pass.look(theirs(&format!("rack-{n}")), false));
            pass
        };
        let unasked = garbage.unasked(&seen());
        assert_eq!(unasked.len(), 40);
        unasked.iter().for_each(|mark| garbage.asked(mark, false));
        garbage.conclude(seen(), 50, 50, start);
        assert_eq!(deletes(garbage.conclude(seen(), 50, 50, start + 60 * SECOND)), ["without"]);
    }

    #[test]
    fn what_is_refused_comes_after_everything_else() {
        let start = Instant::now();
        let mut garbage = Garbage::new(RULES);
        let three = names(3);
        garbage.conclude(pass(98, &three), 98, 98, start);
        assert_eq!(deletes(garbage.conclude(pass(98, &three), 98, 98, start + 60 * SECOND)), three);
        garbage.refused("without-0");
        garbage.refused("without-0");
        garbage.refused("without-1");
        let later = start + 120 * SECOND;
        assert_eq!(garbage.due(later), later, "a minute after the last pass");
        let order = ["without-2", "without-1", "without-0"];
        assert_eq!(deletes(garbage.conclude(pass(98, &three), 98, 98, later)), order);
        garbage.conclude(pass(98, &[]), 98, 98, later);
        assert!(garbage.refused.is_empty(), "they are gone");
    }

    #[test]
    fn single_refusals_end_no_pass_and_are_named() {
        let mut refusals = Refusals::default();
        assert_eq!(refusals.sentence(), None);
        for n in 0..MOST_REFUSALS * 2 {
            assert!(!refusals.add(&n.to_string(), format!("because of {n}")));
            if n % 2 == 1 {
                refusals.broken();
            }
        }
        assert_eq!(
            refusals.sentence().unwrap(),
            "objects of Nodes that are gone cannot be deleted (0, 1, 2, 3, 4 and 15 more): because of 0"
        );
        refusals.broken();
        let enough = (0..MOST_REFUSALS).map(|n| refusals.add(&n.to_string(), String::new()));
        assert_eq!(enough.filter(|enough| *enough).count(), 1, "the last in a row");
    }

    #[test]
    fn nodes_that_are_listed_again_have_not_gone() {
        let start = Instant::now();
        let mut garbage = Garbage::new(RULES);
        garbage.conclude(pass(98, &names(1)), 98, 98, start);
        garbage.node_went("without-1".into(), start);
        garbage.nodes_are(|name| name.starts_with("without"));
        let later = start + 61 * SECOND;
        assert_eq!((garbage.orphans(), garbage.due(later)), (0, start + RULES.interval));
        assert!(deletes(garbage.conclude(pass(98, &names(2)), 98, 98, later)).is_empty(), "they wait anew");
    }

    #[test]
    fn nodes_that_go_while_no_pass_can_be_made_fill_no_memory() {
        let start = Instant::now();
        let mut garbage = Garbage::new(RULES);
        garbage.node_went("a".into(), start);
        garbage.failed(start + RULES.interval);
        assert_eq!(garbage.gone.len(), 1);
        garbage.failed(start + RULES.interval * 2);
        assert!(garbage.gone.is_empty());
    }

    #[test]
    fn what_somebody_keeps_and_what_goes_already_is_no_garbage() {
        let mut pass = Pass::default();
        pass.look(Mark { kept: true, ..mark("a") }, false);
        pass.look(Mark { going: true, ..mark("b") }, false);
        assert!(!pass.has_orphans() && pass.objects == 2);
    }
}
