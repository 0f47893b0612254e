//! A cache of watched objects: those of the last complete list, and the changes since.
//!
//! kube-runtime's `reflector` does not fit. It keys objects by namespace and name, so that a pod would be
//! mistaken for an earlier one of its name. It keeps whole objects of any size; here a Node is reduced to a
//! few bytes, and pods share a limit. And it does not return the objects that a list replaced, which shows
//! the deletions that no event reported. The Pods API's cache (`pods_api::watch_cache`) is not a `Reflector`
//! either: its next list shares a limit with the pods that are served meanwhile, and holds no second copy of
//! unchanged ones.

use std::collections::BTreeMap;

use super::WatchEvent;

/// The map in which a [`Reflector`] keeps objects.
pub trait ObjectMap<K, V>: Default {
    /// Adds an object, or replaces it.
    fn insert(&mut self, key: K, object: V);

    /// Removes an object, if it is there.
    fn remove(&mut self, key: &K);
}

impl<K: Ord, V> ObjectMap<K, V> for BTreeMap<K, V> {
    fn insert(&mut self, key: K, object: V) {
        Self::insert(self, key, object);
    }

    fn remove(&mut self, key: &K) {
        Self::remove(self, key);
    }
}

/// A cache of watched objects. An incomplete list changes nothing.
#[derive(Debug, Default)]
pub struct Reflector<M> {
    objects: M,
    incoming: Option<M>,
    is_synced: bool,
}

impl<M> Reflector<M> {
    /// Returns the objects of the last complete list, with the changes since.
    pub const fn objects(&self) -> &M {
        &self.objects
    }

    /// Returns the objects so far of a list that is being received.
    pub const fn incoming(&self) -> Option<&M> {
        self.incoming.as_ref()
    }

    /// Returns true once a list was complete.
    pub const fn is_synced(&self) -> bool {
        self.is_synced
    }

    /// Applies an event. When a list is complete, returns the objects that it replaces.
    pub fn apply<K, V>(&mut self, event: WatchEvent<(K, V)>) -> Option<M>
    where
        M: ObjectMap<K, V>,
    {
        match event {
            WatchEvent::Init => self.incoming = Some(M::default()),
            WatchEvent::InitApply((key, object)) => {
                self.incoming.get_or_insert_with(M::default).insert(key, object);
            }
            WatchEvent::InitDone => {
                self.is_synced = true;
                let listed = self.incoming.take().unwrap_or_default();
                return Some(std::mem::replace(&mut self.objects, listed));
            }
            WatchEvent::Apply((key, object)) => self.objects.insert(key, object),
            WatchEvent::Delete((key, _)) => self.objects.remove(&key),
            WatchEvent::Resumed => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_replaces_all_objects_once_it_is_complete() {
        let mut reflector = Reflector::<BTreeMap<&str, u8>>::default();
        let listed = |names: &'static str| -> Vec<_> {
            WatchEvent::list((0..names.len()).map(move |at| (&names[at..=at], 1))).collect()
        };
        let names = |objects: &BTreeMap<&str, u8>| objects.keys().copied().collect::<String>();
        let state = |reflector: &Reflector<BTreeMap<&str, u8>>| {
            (names(reflector.objects()), reflector.incoming().map(names))
        };
        let list = listed("ab");
        for event in list[..3].iter().cloned() {
            assert_eq!(reflector.apply(event), None);
        }
        assert_eq!(state(&reflector), (String::new(), Some("ab".to_owned())));
        assert!(!reflector.is_synced());
        assert_eq!(reflector.apply(list[3].clone()), Some(BTreeMap::new()));
        assert!(reflector.is_synced() && reflector.incoming().is_none());
        for event in [WatchEvent::Apply(("c", 2)), WatchEvent::Delete(("a", 0)), WatchEvent::Resumed] {
            assert_eq!(reflector.apply(event), None);
        }
        assert_eq!(names(reflector.objects()), "bc");
        // A list that begins again drops what was received of the one before.
        for event in [&listed("d")[..2], &listed("c")[..2]].concat() {
            reflector.apply(event);
        }
        assert_eq!(state(&reflector), ("bc".to_owned(), Some("c".to_owned())));
        let before = reflector.apply(WatchEvent::InitDone);
        assert_eq!(before.as_ref().map(names).as_deref(), Some("bc"));
        assert_eq!(state(&reflector), ("c".to_owned(), None));
    }
}
