//! A cache of watched objects, by name. It contains what the last complete list and the events since then
//! report.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::Seen;

/// How long the cache counts as stale after a failed watch, which is retried after little more than half of
/// this.
const UNCERTAIN: Duration = Duration::from_secs(60);

/// Objects by name.
type Known<T> = BTreeMap<Box<str>, T>;

/// A cache of watched objects.
#[derive(Debug)]
pub(super) struct Followed<T> {
    known: Known<T>,
    /// A list being received.
    listing: Option<Known<T>>,
    complete: bool,
    failed: Option<Instant>,
}

impl<T> Default for Followed<T> {
    fn default() -> Self {
        Self { known: Known::new(), listing: None, complete: false, failed: None }
    }
}

/// The effect of an event on the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing was added or removed.
    None,
    /// This object was added or changed.
    Came(Box<str>),
    /// These objects were removed.
    Gone(Vec<Box<str>>),
}

impl<T> Followed<T> {
    /// Applies an event with an object's name and value.
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

    /// Marks the cache as possibly stale, after the watch failed.
    pub(super) fn failed(&mut self, now: Instant) {
        self.failed = Some(now);
    }

    /// Returns all objects if they were listed once and are not stale. After a failure they are stale until a
    /// list in progress completes, however long that takes. A watch that resumed sends an event only when
    /// something changes; without one it counts as working if it has not failed again for [`UNCERTAIN`].
    pub(super) fn trusted(&self, now: Instant) -> Option<&Known<T>> {
        let goes_on = |at| self.listing.is_none() && now.duration_since(at) > UNCERTAIN;
        let certain = self.failed.is_none_or(goes_on);
        (self.complete && certain).then_some(&self.known)
    }

    /// Returns true if the object is in the cache, stale or not.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.known.contains_key(name)
    }

    /// Returns true if all objects were listed once, or the watch has failed.
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
        // An incomplete list changes nothing.
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
