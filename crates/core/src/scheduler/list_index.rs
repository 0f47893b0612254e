//! The kubelet's List by pod name.

use crate::kubelet::{PodUsage, Usage};
use crate::pod::Pod;

pub(super) struct ListIndex<'a>(Vec<&'a PodUsage>);

impl<'a> ListIndex<'a> {
    pub(super) fn new(usage: &'a Usage) -> Self {
        let mut entries: Vec<&PodUsage> = usage.pods.iter().collect();
        // The sort is stable: entries of one name stay in the List's order.
        entries.sort_by_key(|entry| (&entry.namespace, &entry.name));
        Self(entries)
    }

    /// Returns the entries with a pod's name: two while a force-deleted pod is torn down and its successor
    /// has the same name.
    pub(super) fn of_pod(&self, pod: &Pod) -> &[&'a PodUsage] {
        let name = (&pod.namespace, &pod.name);
        let from = self.0.partition_point(|entry| (&entry.namespace, &entry.name) < name);
        let count = self.0[from..].partition_point(|entry| (&entry.namespace, &entry.name) == name);
        &self.0[from..from + count]
    }
}
