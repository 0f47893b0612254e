//! Annotations, and limits for those that are cached or buffered in one place. Pods are untrusted: anyone
//! who may create pods may create thousands of them and bind them to one node.

use std::cmp::Reverse;
use std::collections::{BTreeMap, btree_map};
use std::ops::Deref;
use std::sync::Arc;

use super::Pod;
use crate::watch_event::ObjectMap;

/// Maximum size, in bytes, of all annotations in one place: enough for 110 pods with
/// [`Annotation::MAX_BYTES`] each. Above it, the longest are dropped, as for one pod.
pub const MAX_ANNOTATION_BYTES: usize = 8 << 20;

/// How much is kept then. It is less than the maximum, so that not every later pod triggers another search;
/// still enough for 110 pods with [`Annotation::MAX_BYTES`] each.
const KEPT_BYTES: usize = MAX_ANNOTATION_BYTES / 8 * 7;

/// The value of an annotation. Untrusted: written by the pod's creator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Annotation {
    /// The text, shared by all copies of the pod.
    Text(Arc<str>),
    /// The size in bytes of a text that was dropped: it exceeds [`Annotation::MAX_BYTES`], or is among the
    /// longest of its pod or of the node's pods, whose texts exceed their maximum together.
    TooLong(usize),
}

impl Annotation {
    /// Maximum size in bytes of a cached text, and of all cached texts of one pod. A scheduler's annotation
    /// for a node full of devices takes a few KiB; a pod's creator may write 256 KiB
    /// (`TotalAnnotationSizeLimitB` of `k8s.io/apimachinery/pkg/api/validation`).
    pub const MAX_BYTES: usize = 64 << 10;

    /// Wraps a text, dropping it if it is too long.
    #[must_use]
    pub fn of(text: &str) -> Self {
        match text.len() {
            bytes if bytes > Self::MAX_BYTES => Self::TooLong(bytes),
            _ => Self::Text(text.into()),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::TooLong(_) => 0,
        }
    }
}

/// Drops the longest of these annotations until the rest take at most `limit` bytes. Returns how many bytes
/// they take then.
pub(super) fn drop_longest<'a>(
    annotations: impl IntoIterator<Item = &'a mut (Box<str>, Annotation)>,
    limit: usize,
) -> usize {
    let annotations = annotations.into_iter().map(|(_, annotation)| annotation);
    let mut texts: Vec<&mut Annotation> = annotations.filter(|annotation| annotation.bytes() > 0).collect();
    let mut bytes = texts.iter().map(|text| text.bytes()).sum();
    if bytes > limit {
        texts.sort_by_key(|text| Reverse(text.bytes()));
        for longest in texts {
            if bytes <= limit {
                break;
            }
            bytes -= longest.bytes();
            *longest = Annotation::TooLong(longest.bytes());
        }
    }
    bytes
}

/// Drops the longest annotations of these pods until the rest take at most seven eighths of
/// [`MAX_ANNOTATION_BYTES`]. Returns how many bytes they take then.
pub fn drop_longest_annotations<'a>(pods: impl Iterator<Item = &'a mut Pod>) -> usize {
    drop_longest(pods.flat_map(|pod| &mut pod.annotations), KEPT_BYTES)
}

impl Pod {
    /// Returns the size of the annotations that are kept, in bytes.
    #[must_use]
    pub fn annotation_bytes(&self) -> usize {
        self.annotations.iter().map(|(_, annotation)| annotation.bytes()).sum()
    }
}

/// Pods by key, whose annotations take at most [`MAX_ANNOTATION_BYTES`] together.
#[derive(Debug)]
pub struct PodMap<K> {
    pods: BTreeMap<K, Pod>,
    annotation_bytes: usize,
}

impl<K> Default for PodMap<K> {
    fn default() -> Self {
        Self { pods: BTreeMap::new(), annotation_bytes: 0 }
    }
}

impl<K: Ord> PodMap<K> {
    /// Adds a pod, or replaces it. If the annotations exceed the maximum then, the longest are dropped.
    pub fn insert(&mut self, key: K, pod: Pod) {
        self.annotation_bytes += pod.annotation_bytes();
        self.annotation_bytes -= self.pods.insert(key, pod).map_or(0, |before| before.annotation_bytes());
        if self.annotation_bytes > MAX_ANNOTATION_BYTES {
            self.annotation_bytes = drop_longest_annotations(self.pods.values_mut());
        }
    }

    /// Removes a pod, if it is there.
    pub fn remove(&mut self, key: &K) {
        self.annotation_bytes -= self.pods.remove(key).map_or(0, |before| before.annotation_bytes());
    }

    /// Returns the pods, to change anything but their annotations.
    pub fn values_mut(&mut self) -> btree_map::ValuesMut<'_, K, Pod> {
        self.pods.values_mut()
    }
}

impl<K: Ord> ObjectMap<K, Pod> for PodMap<K> {
    fn insert(&mut self, key: K, pod: Pod) {
        Self::insert(self, key, pod);
    }

    fn remove(&mut self, key: &K) {
        Self::remove(self, key);
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
mod tests {
    use super::*;
    use crate::pod::Wanted;

    fn annotated(name: &str, length: usize) -> Pod {
        let annotations = [("a".into(), Annotation::of(&"x".repeat(length)))].into();
        let (namespace, uid) = ("ns".to_owned(), format!("uid-{name}"));
        Pod { namespace, name: name.to_owned(), uid, annotations, ..Pod::default() }
    }

    fn kept<K>(pods: &PodMap<K>) -> (Vec<usize>, usize) {
        let sizes = pods.values().map(Pod::annotation_bytes);
        let (kept, dropped): (Vec<_>, Vec<_>) = sizes.partition(|bytes| *bytes > 0);
        assert_eq!(pods.annotation_bytes, kept.iter().sum::<usize>());
        (kept, dropped.len())
    }

    #[test]
    fn of_a_long_annotation_only_the_length_is_kept() {
        let longest = "x".repeat(Annotation::MAX_BYTES);
        assert_eq!(Annotation::of(&longest), Annotation::Text(longest.as_str().into()));
        assert_eq!(Annotation::of(&format!("{longest}x")), Annotation::TooLong(Annotation::MAX_BYTES + 1));
    }

    #[test]
    fn the_longest_annotations_of_a_pod_are_dropped_until_the_others_fit() {
        let kept = |lengths: &[usize]| -> Vec<bool> {
            let named =
                |(at, length): (usize, &usize)| (at.to_string().into(), Annotation::of(&"x".repeat(*length)));
            let annotations = lengths.iter().enumerate().map(named).collect();
            let pod = Pod { annotations, ..Pod::default() };
            let pod = pod.keeping(&Wanted::of((0..lengths.len()).map(|at| at.to_string())));
            pod.annotations.iter().map(|(_, annotation)| matches!(annotation, Annotation::Text(_))).collect()
        };
        let half = Annotation::MAX_BYTES / 2;
        assert_eq!(kept(&[half, half]), [true, true]);
        assert_eq!(kept(&[half, half + 1]), [true, false]);
        assert_eq!(kept(&[1, half + 2, half + 1, half]), [true, false, false, true]);
    }

    #[test]
    fn the_longest_annotations_of_all_pods_are_dropped_until_the_others_fit() {
        let mut pods = PodMap::default();
        let longest = Annotation::MAX_BYTES;
        (0..110).for_each(|number| pods.insert(number, annotated("a", longest)));
        assert_eq!(kept(&pods), (vec![longest; 110], 0), "a node full of pods has room for all");
        (0..110).for_each(|number| pods.insert(number, annotated("a", longest)));
        assert_eq!(kept(&pods), (vec![longest; 110], 0), "replaced pods do not count");
        (110..200).for_each(|number| pods.insert(number, annotated("a", 1000)));
        (200..3000).for_each(|number| pods.insert(number, annotated("a", longest - 1)));
        let (sizes, dropped) = kept(&pods);
        assert_eq!(sizes.iter().filter(|bytes| **bytes == 1000).count(), 90, "the short ones stay");
        assert!(sizes.iter().sum::<usize>() <= MAX_ANNOTATION_BYTES && sizes.len() + dropped == 3000);
        assert_eq!(*pods[&0].annotations, [("a".into(), Annotation::TooLong(longest))]);
        (0..3000).for_each(|number| pods.remove(&number));
        assert_eq!(kept(&pods), (vec![], 0));
    }

    #[test]
    fn annotations_that_just_fit_are_kept_and_one_byte_more_makes_room() {
        let mut pods = PodMap::default();
        let fit = MAX_ANNOTATION_BYTES / Annotation::MAX_BYTES;
        (0..fit).for_each(|number| pods.insert(number, annotated("a", Annotation::MAX_BYTES)));
        assert_eq!(kept(&pods), (vec![Annotation::MAX_BYTES; fit], 0));
        pods.insert(fit, annotated("b", 1));
        let (sizes, dropped) = kept(&pods);
        let expected = (KEPT_BYTES - Annotation::MAX_BYTES + 1, fit / 8 + 1);
        assert_eq!((sizes.iter().sum::<usize>(), dropped), expected);
    }

    #[test]
    fn annotations_of_replaced_or_removed_pods_do_not_count() {
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
