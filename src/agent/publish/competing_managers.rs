//! Decides which changes by others are overwritten.
//!
//! A person's edit, or what another manager left behind, is taken over. A publisher that keeps rewriting the
//! object competes: two publishers that overwrite each other write forever, so it is reported and, unless
//! configured otherwise, left alone.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::field_manager::FieldManager;
use crate::publishers::Publisher;
use crate::util::backoff::back_off;

/// How many times a person, or an agent that is being replaced, may write within [`EDITS_WITHIN`] before it
/// competes.
const EDITS: usize = 3;
/// The time in which the writes of a person are counted.
const EDITS_WITHIN: Duration = Duration::from_secs(600);
/// A writer that was silent for this long is forgotten.
const SILENCE: Duration = Duration::from_secs(3600);
/// Initial backoff before a competitor's change is overwritten, in [`ConflictPolicy::Overwrite`].
const OVERWRITE_DELAY: Duration = Duration::from_millis(200);
/// Maximum of that backoff.
const OVERWRITE_LIMIT: Duration = Duration::from_secs(10);
/// Maximum number of tracked writers, more than any cluster has. Their names are untrusted.
const MAX_WRITERS: usize = 32;

/// What to do about a publisher that keeps rewriting the object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ConflictPolicy {
    /// Report it, and leave its changes until this node's state changes.
    #[default]
    Report,
    /// Report it, and overwrite each change, with a backoff.
    Overwrite,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaction {
    TakeOver,
    /// It is a competitor's: overwrite it after this delay.
    Overwrite(Duration),
    /// It is a competitor's: leave it.
    Leave,
}

#[derive(Debug)]
struct Writer {
    /// What it is, once that is known.
    publisher: Option<&'static Publisher>,
    last: Instant,
    overwritten: VecDeque<Instant>,
    competes: bool,
    /// The number of its consecutive changes that were overwritten although it competes.
    overwrites: u32,
}

#[derive(Debug)]
pub(super) struct CompetingManagers {
    policy: ConflictPolicy,
    writers: BTreeMap<FieldManager, Writer>,
}

impl CompetingManagers {
    pub(super) fn new(policy: ConflictPolicy) -> Self {
        Self { policy, writers: BTreeMap::new() }
    }

    /// Remembers which publisher a writer is.
    pub(super) fn recognise(&mut self, author: &FieldManager, publisher: &'static Publisher, now: Instant) {
        self.forget(now);
        self.writer(author, now).publisher = Some(publisher);
    }

    /// Returns which publisher a writer is.
    pub(super) fn publisher(&self, author: &FieldManager) -> Option<&'static Publisher> {
        self.writers.get(author)?.publisher
    }

    fn writer(&mut self, author: &FieldManager, now: Instant) -> &mut Writer {
        self.writers.entry(author.clone()).or_insert_with(|| Writer {
            publisher: None,
            last: now,
            overwritten: VecDeque::new(),
            competes: false,
            overwrites: 0,
        })
    }

    /// Decides what to do about a change by `author`. `is_fresh`: the change was not seen before.
    pub(super) fn react(&mut self, author: &FieldManager, is_fresh: bool, now: Instant) -> Reaction {
        self.forget(now);
        let policy = self.policy;
        let writer = self.writer(author, now);
        if is_fresh {
            writer.last = now;
        }
        let has_written_again = match author {
            // A program that writes again after it was overwritten is active, not a leftover.
            FieldManager::Program(_) => !writer.overwritten.is_empty(),
            FieldManager::Person(_) | FieldManager::SameName | FieldManager::Unknown => {
                writer.overwritten.retain(|at| now.duration_since(*at) < EDITS_WITHIN);
                writer.overwritten.len() >= EDITS
            }
        };
        writer.competes = has_written_again && (is_fresh || writer.competes);
        if !writer.competes {
            writer.overwritten.push_back(now);
            writer.overwrites = 0;
            return Reaction::TakeOver;
        }
        match policy {
            ConflictPolicy::Report => Reaction::Leave,
            ConflictPolicy::Overwrite => {
                Reaction::Overwrite(back_off(&mut writer.overwrites, OVERWRITE_DELAY, OVERWRITE_LIMIT))
            }
        }
    }

    pub(super) fn active(&self, now: Instant) -> impl Iterator<Item = &FieldManager> {
        let is_active = move |writer: &Writer| writer.competes && now.duration_since(writer.last) < SILENCE;
        self.writers.iter().filter(move |(_, writer)| is_active(writer)).map(|(author, _)| author)
    }

    pub(super) fn is_left(&self, author: &FieldManager, now: Instant) -> bool {
        self.policy == ConflictPolicy::Report && self.active(now).any(|competitor| competitor == author)
    }

    fn forget(&mut self, now: Instant) {
        self.writers.retain(|_, writer| now.duration_since(writer.last) < SILENCE);
        while self.writers.len() >= MAX_WRITERS {
            let oldest =
                self.writers.iter().min_by_key(|(_, writer)| writer.last).map(|(name, _)| name.clone());
            let Some(oldest) = oldest else { return };
            self.writers.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn nfd() -> FieldManager {
        FieldManager::Program("nfd".into())
    }

    #[test]
    fn a_program_is_taken_over_once_and_again_after_a_long_silence() {
        let mut managers = CompetingManagers::new(ConflictPolicy::Report);
        let start = Instant::now();
        assert_eq!(managers.react(&nfd(), true, start), Reaction::TakeOver);
        assert_eq!(managers.react(&nfd(), false, start), Reaction::TakeOver, "it has not written again");
        assert_eq!(managers.active(start).count(), 0);
        for minute in 1..10 {
            assert_eq!(managers.react(&nfd(), true, start + MINUTE * minute), Reaction::Leave);
        }
        let last = start + MINUTE * 9;
        assert!(managers.is_left(&nfd(), last));
        // Its change is still there and is found again, but it does not write.
        assert_eq!(managers.react(&nfd(), false, last + MINUTE * 59), Reaction::Leave);
        assert_eq!(managers.active(last + MINUTE * 59).count(), 1);
        assert_eq!(managers.active(last + MINUTE * 60).count(), 0);
        assert_eq!(managers.react(&nfd(), false, last + MINUTE * 60), Reaction::TakeOver);
        assert_eq!(managers.active(last + MINUTE * 60).count(), 0);
    }

    #[test]
    fn each_program_has_its_own_history() {
        let mut managers = CompetingManagers::new(ConflictPolicy::Report);
        let now = Instant::now();
        managers.react(&nfd(), true, now);
        managers.react(&nfd(), true, now);
        assert_eq!(managers.react(&FieldManager::Program("rte".into()), true, now), Reaction::TakeOver);
    }

    #[test]
    fn a_person_may_edit_a_few_times() {
        let authors =
            [FieldManager::Person("kubectl-edit".into()), FieldManager::Unknown, FieldManager::SameName];
        for author in authors {
            let mut managers = CompetingManagers::new(ConflictPolicy::Report);
            let start = Instant::now();
            for edit in 0..3 {
                let reaction = managers.react(&author, true, start + MINUTE * edit);
                assert_eq!(reaction, Reaction::TakeOver, "{author} {edit}");
            }
            assert_eq!(managers.react(&author, true, start + MINUTE * 9), Reaction::Leave, "{author}");
            assert_eq!(managers.react(&author, true, start + MINUTE * 10), Reaction::TakeOver, "{author}");
        }
    }

    #[test]
    fn overwriting_a_competitor_backs_off() {
        let mut managers = CompetingManagers::new(ConflictPolicy::Overwrite);
        let now = Instant::now();
        assert_eq!(managers.react(&nfd(), true, now), Reaction::TakeOver);
        let delays: Vec<Duration> = (0..12)
            .map(|_| match managers.react(&nfd(), true, now) {
                Reaction::Overwrite(delay) => delay,
                other => panic!("{other:?}"),
            })
            .collect();
        assert!(delays[0] < Duration::from_millis(250), "{delays:?}");
        assert!(delays.windows(2).take(5).all(|pair| pair[1] > pair[0]), "{delays:?}");
        assert!(delays.iter().all(|delay| *delay <= OVERWRITE_LIMIT.mul_f64(1.1)), "{delays:?}");
        assert!(delays[11] >= OVERWRITE_LIMIT.mul_f64(0.9), "{delays:?}");
        assert!(!managers.is_left(&nfd(), now) && managers.active(now).count() == 1);
    }

    #[test]
    fn the_number_of_tracked_writers_is_limited() {
        let mut managers = CompetingManagers::new(ConflictPolicy::Report);
        let start = Instant::now();
        for n in 0..1000 {
            let author = FieldManager::Program(n.to_string());
            managers.react(&author, true, start + Duration::from_millis(n));
        }
        assert!(managers.writers.len() <= MAX_WRITERS);
        let newest = FieldManager::Program("999".into());
        let reaction = managers.react(&newest, true, start + Duration::from_secs(1));
        assert_eq!(reaction, Reaction::Leave, "the newest are kept");
    }
}
