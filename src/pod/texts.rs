//! Bounds the annotations of all pods that are cached or buffered in one place. Pods are untrusted: anybody who
//! may create pods may create thousands of them and bind them to one node.

use std::collections::{BTreeMap, btree_map};
use std::ops::Deref;

use super::{Pod, drop_longest};

/// Maximum size, in bytes, of the texts of all annotations in one place: enough for 110 pods with
/// [`LONGEST`](super::Annotation::LONGEST) each. Above it, the longest texts are dropped, as for one pod.
pub(crate) const TEXTS: usize = 8 << 20;

/// What is left then at most. It is less than the maximum, so that not every further pod has the others
/// searched for the longest texts, and still enough for the same pods.
const LEFT: usize = TEXTS / 8 * 7;

/// Drops the longest annotations of these pods until the rest take at most seven eighths of [`TEXTS`].
/// Returns how many bytes they take then.
pub(crate) fn shorten<'a>(pods: impl Iterator<Item = &'a mut Pod>) -> usize {
    let annotations = pods.flat_map(|pod| &mut pod.annotations);
    drop_longest(annotations.map(|(_, annotation)| annotation), LEFT)
}

impl Pod {
    /// Returns the size of its annotations' texts, in bytes.
    pub(crate) fn texts(&self) -> usize {
        self.annotations.iter().map(|(_, annotation)| annotation.kept()).sum()
    }
}

/// Pods by key, whose annotations take at most [`TEXTS`] together.
#[derive(Debug)]
pub(crate) struct PodMap<K> {
    pods: BTreeMap<K, Pod>,
    /// The size of their annotations' texts.
    texts: usize,
}

impl<K> Default for PodMap<K> {
    fn default() -> Self {
        Self { pods: BTreeMap::new(), texts: 0 }
    }
}

impl<K: Ord> PodMap<K> {
    /// Adds or replaces a pod.
    pub(crate) fn insert(&mut self, key: K, pod: Pod) {
        self.texts += pod.texts();
        self.texts -= self.pods.insert(key, pod).map_or(0, |before| before.texts());
        if self.texts > TEXTS {
            self.texts = shorten(self.pods.values_mut());
        }
    }

    /// Removes a pod.
    pub(crate) fn remove(&mut self, key: &K) {
        self.texts -= self.pods.remove(key).map_or(0, |before| before.texts());
    }

    /// Returns the pods, to change anything but their annotations.
    pub(crate) fn values_mut(&mut self) -> btree_map::ValuesMut<'_, K, Pod> {
        self.pods.values_mut()
    }
}

impl<K> Deref for PodMap<K> {
    type Target = BTreeMap<K, Pod>;

    fn deref(&self) -> &Self::Target {
        &self.pods
    }
}

impl<K> IntoIterator for PodMap<K> {
    type Item = (K, Pod);
    type IntoIter = btree_map::IntoIter<K, Pod>;

    fn into_iter(self) -> Self::IntoIter {
        self.pods.into_iter()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::pod::Annotation;

    /// Returns a pod with an annotation of this length.
    pub(crate) fn annotated(name: &str, length: usize) -> Pod {
        let annotations = [("a".into(), Annotation::of(&"x".repeat(length)))].into();
        let (namespace, uid) = ("ns".to_owned(), format!("uid-{name}"));
        Pod { namespace, name: name.to_owned(), uid, annotations, ..Pod::default() }
    }

    /// Returns the sizes of the texts that are kept, and the number of those that were dropped.
    fn kept<K>(pods: &PodMap<K>) -> (Vec<usize>, usize) {
        let (kept, dropped): (Vec<_>, Vec<_>) = pods.values().map(Pod::texts).partition(|bytes| *bytes > 0);
        assert_eq!(pods.texts, kept.iter().sum::<usize>());
        (kept, dropped.len())
    }

    #[test]
    fn the_longest_annotations_are_dropped_until_the_others_fit() {
        let mut pods = PodMap::default();
        let longest = Annotation::LONGEST;
        (0..110).for_each(|number| pods.insert(number, annotated("a", longest)));
        assert_eq!(kept(&pods), (vec![longest; 110], 0), "a node full of pods has room for all");
        (0..110).for_each(|number| pods.insert(number, annotated("a", longest)));
        assert_eq!(kept(&pods), (vec![longest; 110], 0), "those that are replaced do not count");
        (110..200).for_each(|number| pods.insert(number, annotated("a", 1000)));
        (200..3000).for_each(|number| pods.insert(number, annotated("a", longest - 1)));
        let (texts, dropped) = kept(&pods);
        assert_eq!(texts.iter().filter(|bytes| **bytes == 1000).count(), 90, "the short ones stay");
        assert!(texts.iter().sum::<usize>() <= TEXTS && texts.len() + dropped == 3000, "{texts:?}");
        assert_eq!(*pods[&0].annotations, [("a".into(), Annotation::TooLong(longest))]);
        (0..3000).for_each(|number| pods.remove(&number));
        assert_eq!(kept(&pods), (vec![], 0));
    }

    #[test]
    fn annotations_that_just_fit_are_kept_and_one_byte_more_makes_room() {
        let mut pods = PodMap::default();
        let fit = TEXTS / Annotation::LONGEST;
        (0..fit).for_each(|number| pods.insert(number, annotated("a", Annotation::LONGEST)));
        assert_eq!(kept(&pods), (vec![Annotation::LONGEST; fit], 0));
        pods.insert(fit, annotated("b", 1));
        let (texts, dropped) = kept(&pods);
        assert_eq!((texts.iter().sum::<usize>(), dropped), (LEFT - Annotation::LONGEST + 1, fit / 8 + 1));
    }

    #[test]
    fn annotations_of_pods_that_are_replaced_or_removed_do_not_count() {
        let mut pods = PodMap::default();
        for length in [1000, 10, 500] {
            pods.insert("a", annotated("a", length));
            assert_eq!(kept(&pods), (vec![length], 0));
        }
        pods.insert("b", annotated("b", 7));
        pods.values_mut().for_each(|pod| pod.deleted = true);
        pods.remove(&"a");
        assert_eq!(kept(&pods), (vec![7], 0));
        let left: Vec<_> = pods.into_iter().map(|(key, pod)| (key, pod.deleted)).collect();
        assert_eq!(left, [("b", true)]);
    }
}
