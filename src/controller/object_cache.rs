use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::WatchEvent;
use crate::watch_event::Reflector;

/// How long the cache counts as stale after a failed watch, which is retried after little more than half of
/// this.
const STALE: Duration = Duration::from_secs(60);

type Objects<T> = BTreeMap<Box<str>, T>;

#[derive(Debug)]
pub(super) struct ObjectCache<T> {
    objects: Reflector<Objects<T>>,
    failed: Option<Instant>,
}

impl<T> Default for ObjectCache<T> {
    fn default() -> Self {
        Self { objects: Reflector::default(), failed: None }
    }
}

impl<T> ObjectCache<T> {
    /// Applies an event with an object's name and value. Returns the names of deleted objects.
    pub(super) fn apply(&mut self, event: WatchEvent<(Box<str>, T)>) -> Vec<Box<str>> {
        if event.confirms_health() {
            self.failed = None;
        }
        let deleted = match &event {
            WatchEvent::Delete((name, _)) => vec![name.clone()],
            _ => Vec::new(),
        };
        match self.objects.apply(event) {
            Some(before) => before.into_keys().filter(|name| !self.contains(name)).collect(),
            None => deleted,
        }
    }

    /// Marks the cache as possibly stale, after the watch failed.
    pub(super) fn failed(&mut self, now: Instant) {
        self.failed = Some(now);
    }

    /// Returns all objects if they were listed once and are not stale. After a failure they are stale until a
    /// list in progress completes, however long that takes. A watch that resumed sends an event only when
    /// something changes; without one it counts as working if it has not failed again for [`STALE`].
    pub(super) fn trusted(&self, now: Instant) -> Option<&Objects<T>> {
        let has_resumed = |at| self.objects.incoming().is_none() && now.duration_since(at) > STALE;
        let is_fresh = self.failed.is_none_or(has_resumed);
        (self.objects.is_synced() && is_fresh).then_some(self.objects.objects())
    }

    /// Returns true if the object is in the cache, stale or not.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.objects.objects().contains_key(name)
    }

    /// Returns true if all objects were listed once, or the watch has failed.
    pub(super) fn is_settled(&self) -> bool {
        self.objects.is_synced() || self.failed.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> (Box<str>, ()) {
        (name.into(), ())
    }

    fn names(cache: &ObjectCache<()>) -> Vec<&str> {
        cache.trusted(Instant::now()).unwrap().keys().map(|name| &**name).collect()
    }

    #[test]
    fn a_complete_list_reports_the_deletions_that_were_missed() {
        let mut cache = ObjectCache::default();
        cache.apply(WatchEvent::Init);
        cache.apply(WatchEvent::InitApply(named("a")));
        cache.apply(WatchEvent::InitApply(named("b")));
        assert_eq!(cache.trusted(Instant::now()), None);
        assert!(!cache.is_settled(), "it may take its time");
        assert!(cache.apply(WatchEvent::InitDone).is_empty());
        assert!(cache.is_settled());
        assert!(cache.apply(WatchEvent::Apply(named("c"))).is_empty());
        assert_eq!(cache.apply(WatchEvent::Delete(named("a"))), [Box::<str>::from("a")]);
        assert_eq!(names(&cache), ["b", "c"]);
        // An incomplete list changes nothing.
        cache.apply(WatchEvent::Init);
        cache.apply(WatchEvent::InitApply(named("d")));
        assert_eq!(names(&cache), ["b", "c"]);
        cache.apply(WatchEvent::Init);
        cache.apply(WatchEvent::InitApply(named("c")));
        assert_eq!(cache.apply(WatchEvent::InitDone), [Box::<str>::from("b")]);
        assert_eq!(names(&cache), ["c"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_watch_makes_the_cache_stale_for_a_while() {
        let mut cache = ObjectCache::<()>::default();
        cache.apply(WatchEvent::InitDone);
        cache.failed(Instant::now());
        cache.apply(WatchEvent::Init);
        assert_eq!(cache.trusted(Instant::now()), None);
        cache.apply(WatchEvent::InitDone);
        assert!(cache.trusted(Instant::now()).is_some(), "it was relisted");
        cache.failed(Instant::now());
        tokio::time::advance(STALE + Duration::from_secs(1)).await;
        assert!(cache.trusted(Instant::now()).is_some(), "it did not fail again");
        cache.failed(Instant::now());
        cache.apply(WatchEvent::Init);
        tokio::time::advance(STALE * 5).await;
        assert_eq!(cache.trusted(Instant::now()), None, "a list that hangs proves nothing");
        cache.apply(WatchEvent::InitDone);
        assert!(cache.trusted(Instant::now()).is_some());
    }
}
