//! Objects that are followed by a watch, by name. An object is known as long as the newest complete list has it.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::Seen;

/// A watch that fails tries again after little more than half of this.
const UNCERTAIN: Duration = Duration::from_secs(60);

/// By name.
type Known<T> = BTreeMap<Box<str>, T>;

/// What is known of some objects.
#[derive(Debug)]
pub(super) struct Followed<T> {
    known: Known<T>,
    /// What a list that is not complete yet has told.
    listing: Option<Known<T>>,
    complete: bool,
    failed: Option<Instant>,
}

impl<T> Default for Followed<T> {
    fn default() -> Self {
        Self { known: Known::new(), listing: None, complete: false, failed: None }
    }
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing that matters to whoever waits for Nodes to come or go.
    None,
    /// This one is there.
    Came(Box<str>),
    /// These are gone.
    Gone(Vec<Box<str>>),
}

impl<T> Followed<T> {
    /// Takes what was seen, as name and value.
    pub(super) fn take(&mut self, seen: Seen<(Box<str>, T)>) -> Change {
        if seen.is_proof() {
            self.failed = None;
        }
        match seen {
            Seen::Listing => self.listing = Some(Known::new()),
            Seen::Listed((name, value)) => {
                self.listing.get_or_insert_default().insert(name, value);
            }
            Seen::Complete => {
                let listed = self.listing.take().unwrap_or_default();
                let before = std::mem::replace(&mut self.known, listed);
                self.complete = true;
                let gone = before.into_keys().filter(|name| !self.known.contains_key(name));
                return Change::Gone(gone.collect());
            }
            Seen::Is((name, value)) => {
                self.known.insert(name.clone(), value);
                return Change::Came(name);
            }
            Seen::Gone((name, _)) => {
                self.known.remove(&name);
                return Change::Gone(vec![name]);
            }
            Seen::Again => {}
        }
        Change::None
    }

    /// The watch failed: what is known may be old.
    pub(super) fn failed(&mut self, now: Instant) {
        self.failed = Some(now);
    }

    /// Everything, if all of it was listed once and nothing says that it may be old. A list that is read after a failure
    /// may take as long as it likes; a watch that goes on shows that only when something happens.
    pub(super) fn trusted(&self, now: Instant) -> Option<&Known<T>> {
        let goes_on = |at| self.listing.is_none() && now.duration_since(at) > UNCERTAIN;
        let certain = self.failed.is_none_or(goes_on);
        (self.complete && certain).then_some(&self.known)
    }

    /// Is it there, as far as is known?
    pub(super) fn knows(&self, name: &str) -> bool {
        self.known.contains_key(name)
    }

    /// Was all of it listed once, or could it not be?
    pub(super) fn is_settled(&self) -> bool {
        self.complete || self.failed.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> (Box<str>, ()) {
        (name.into(), ())
    }

    fn gone(names: &[&str]) -> Change {
        Change::Gone(names.iter().map(|name| (*name).into()).collect())
    }

    fn names(followed: &Followed<()>) -> Vec<&str> {
        followed.trusted(Instant::now()).unwrap().keys().map(|name| &**name).collect()
    }

    #[test]
    fn a_list_counts_when_it_is_complete_and_tells_who_went_unseen() {
        let mut followed = Followed::default();
        followed.take(Seen::Listing);
        followed.take(Seen::Listed(named("a")));
        followed.take(Seen::Listed(named("b")));
        assert_eq!(followed.trusted(Instant::now()), None);
        assert!(!followed.is_settled(), "it may take its time");
        assert_eq!(followed.take(Seen::Complete), gone(&[]));
        assert!(followed.is_settled());
        assert_eq!(followed.take(Seen::Is(named("c"))), Change::Came("c".into()));
        assert_eq!(followed.take(Seen::Gone(named("a"))), gone(&["a"]));
        assert_eq!(names(&followed), ["b", "c"]);
        // A list that breaks off changes nothing.
        followed.take(Seen::Listing);
        followed.take(Seen::Listed(named("d")));
        assert_eq!(names(&followed), ["b", "c"]);
        followed.take(Seen::Listing);
        followed.take(Seen::Listed(named("c")));
        assert_eq!(followed.take(Seen::Complete), gone(&["b"]));
        assert_eq!(names(&followed), ["c"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_fails_makes_what_is_known_doubtful_for_a_while() {
        let mut followed = Followed::<()>::default();
        followed.take(Seen::Complete);
        followed.failed(Instant::now());
        followed.take(Seen::Listing);
        assert_eq!(followed.trusted(Instant::now()), None);
        followed.take(Seen::Complete);
        assert!(followed.trusted(Instant::now()).is_some(), "it goes on");
        followed.failed(Instant::now());
        tokio::time::advance(UNCERTAIN + Duration::from_secs(1)).await;
        assert!(followed.trusted(Instant::now()).is_some(), "it did not fail again");
        followed.failed(Instant::now());
        followed.take(Seen::Listing);
        tokio::time::advance(UNCERTAIN * 5).await;
        assert_eq!(followed.trusted(Instant::now()), None, "a list that hangs proves nothing");
        followed.take(Seen::Complete);
        assert!(followed.trusted(Instant::now()).is_some());
    }
}
