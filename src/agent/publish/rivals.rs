//! Decides which changes by others are overwritten.
//!
//! A person's edit, or what another manager left behind, is taken over. A publisher that keeps rewriting the
//! object is a rival: two publishers that overwrite each other write forever, so it is reported and, unless
//! configured otherwise, left alone.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::drift::Author;
use crate::util::backoff::back_off;

/// How many times a person, or an agent that is being replaced, may write...
const EDITS: usize = 3;
/// ...within this time before it is a rival.
const EDITS_WITHIN: Duration = Duration::from_secs(600);
/// A writer that was silent for this long is forgotten.
const SILENCE: Duration = Duration::from_secs(3600);
/// Initial backoff before a rival's change is overwritten, in [`ConflictPolicy::Overwrite`].
const ANSWER: Duration = Duration::from_millis(200);
/// Maximum of that backoff.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Maximum number of tracked writers, more than any cluster has. Their names are untrusted.
const MOST: usize = 32;

/// What to do about a publisher that keeps rewriting the object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ConflictPolicy {
    /// Report it, and leave its changes.
    #[default]
    Report,
    /// Report it, and overwrite each change, with a backoff.
    Overwrite,
}

/// What to do about a change by another writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Overwrite it.
    TakeOver,
    /// It is a rival's: overwrite it after this delay.
    Answer(Duration),
    /// It is a rival's: leave it.
    Leave,
}

#[derive(Debug)]
struct Writer {
    last: Instant,
    /// When its changes were overwritten.
    taken: VecDeque<Instant>,
    rival: bool,
    answers: u32,
}

/// Tracks other writers of the object.
#[derive(Debug)]
pub(super) struct Rivals {
    mode: ConflictPolicy,
    writers: BTreeMap<Author, Writer>,
}

impl Rivals {
    pub(super) fn new(mode: ConflictPolicy) -> Self {
        Self { mode, writers: BTreeMap::new() }
    }

    /// Decides what to do about a change by `author`. `fresh`: the change was not seen before.
    pub(super) fn judge(&mut self, author: &Author, fresh: bool, now: Instant) -> Verdict {
        self.forget(now);
        let writer = self.writers.entry(author.clone()).or_insert_with(|| Writer {
            last: now,
            taken: VecDeque::new(),
            rival: false,
            answers: 0,
        });
        if fresh {
            writer.last = now;
        }
        writer.rival = match author {
            // A manager that writes again after it was overwritten is active, not a leftover.
            Author::Manager(_) => !writer.taken.is_empty(),
            Author::Person(_) | Author::Namesake | Author::Unknown => {
                writer.taken.retain(|taken| now.duration_since(*taken) < EDITS_WITHIN);
                writer.taken.len() >= EDITS
            }
        };
        if !writer.rival {
            writer.taken.push_back(now);
            writer.answers = 0;
            return Verdict::TakeOver;
        }
        match self.mode {
            ConflictPolicy::Report => Verdict::Leave,
            ConflictPolicy::Overwrite => Verdict::Answer(back_off(&mut writer.answers, ANSWER, ANSWER_LIMIT)),
        }
    }

    /// Returns the rivals that wrote recently.
    pub(super) fn active(&self, now: Instant) -> impl Iterator<Item = &Author> {
        let active = move |writer: &Writer| writer.rival && now.duration_since(writer.last) < SILENCE;
        self.writers.iter().filter(move |(_, writer)| active(writer)).map(|(author, _)| author)
    }

    /// Returns true if this is a rival that is left alone.
    pub(super) fn is_left(&self, author: &Author, now: Instant) -> bool {
        self.mode == ConflictPolicy::Report && self.active(now).any(|rival| rival == author)
    }

    /// Forgets silent writers, and the longest silent ones above the limit.
    fn forget(&mut self, now: Instant) {
        self.writers.retain(|_, writer| now.duration_since(writer.last) < SILENCE);
        while self.writers.len() >= MOST {
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

    fn nfd() -> Author {
        Author::Manager("nfd".into())
    }

    #[test]
    fn a_manager_is_taken_over_once_and_again_after_a_long_silence() {
        let mut rivals = Rivals::new(ConflictPolicy::Report);
        let start = Instant::now();
        assert_eq!(rivals.judge(&nfd(), true, start), Verdict::TakeOver);
        assert_eq!(rivals.active(start).count(), 0);
        for minute in 1..10 {
            assert_eq!(rivals.judge(&nfd(), true, start + MINUTE * minute), Verdict::Leave);
        }
        let last = start + MINUTE * 9;
        assert!(rivals.is_left(&nfd(), last));
        // Its change is still there and is looked at, but it does not write.
        assert_eq!(rivals.judge(&nfd(), false, last + MINUTE * 59), Verdict::Leave);
        assert_eq!(rivals.active(last + MINUTE * 59).count(), 1);
        assert_eq!(rivals.active(last + MINUTE * 60).count(), 0);
        assert_eq!(rivals.judge(&nfd(), false, last + MINUTE * 60), Verdict::TakeOver);
        assert_eq!(rivals.active(last + MINUTE * 60).count(), 0);
    }

    #[test]
    fn each_manager_is_judged_by_itself() {
        let mut rivals = Rivals::new(ConflictPolicy::Report);
        let now = Instant::now();
        rivals.judge(&nfd(), true, now);
        rivals.judge(&nfd(), true, now);
        assert_eq!(rivals.judge(&Author::Manager("rte".into()), true, now), Verdict::TakeOver);
    }

    #[test]
    fn a_person_may_try_a_few_times() {
        for author in [Author::Person("kubectl-edit".into()), Author::Unknown, Author::Namesake] {
            let mut rivals = Rivals::new(ConflictPolicy::Report);
            let start = Instant::now();
            for edit in 0..3 {
                let verdict = rivals.judge(&author, true, start + MINUTE * edit);
                assert_eq!(verdict, Verdict::TakeOver, "{author} {edit}");
            }
            assert_eq!(rivals.judge(&author, true, start + MINUTE * 9), Verdict::Leave, "{author}");
            assert_eq!(rivals.judge(&author, true, start + MINUTE * 10), Verdict::TakeOver, "{author}");
        }
    }

    #[test]
    fn who_fights_answers_ever_slower() {
        let mut rivals = Rivals::new(ConflictPolicy::Overwrite);
        let now = Instant::now();
        assert_eq!(rivals.judge(&nfd(), true, now), Verdict::TakeOver);
        let waits: Vec<Duration> = (0..12)
            .map(|_| match rivals.judge(&nfd(), true, now) {
                Verdict::Answer(wait) => wait,
                other => panic!("{other:?}"),
            })
            .collect();
        assert!(waits[0] < Duration::from_millis(250), "{waits:?}");
        assert!(waits.windows(2).take(5).all(|pair| pair[1] > pair[0]), "{waits:?}");
        assert!(waits.iter().all(|wait| *wait <= ANSWER_LIMIT.mul_f64(1.1)), "{waits:?}");
        assert!(waits[11] >= ANSWER_LIMIT.mul_f64(0.9), "{waits:?}");
        assert!(!rivals.is_left(&nfd(), now) && rivals.active(now).count() == 1);
    }

    #[test]
    fn names_without_end_fill_no_memory() {
        let mut rivals = Rivals::new(ConflictPolicy::Report);
        let start = Instant::now();
        for n in 0..1000 {
            rivals.judge(&Author::Manager(n.to_string()), true, start + Duration::from_millis(n));
        }
        assert!(rivals.writers.len() <= MOST);
        let last = start + Duration::from_secs(1);
        assert_eq!(
            rivals.judge(&Author::Manager("999".into()), true, last),
            Verdict::Leave,
            "the newest stay"
        );
    }
}
