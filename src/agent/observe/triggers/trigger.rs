//! Reasons to scan.

use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::Notify;

/// Reasons to scan: a set, so that many of them cost no more than one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::agent) struct Trigger(u8);

impl Trigger {
    /// `cpu_manager_state` was written.
    pub(in crate::agent) const CPUS: Self = Self(1);
    /// `memory_manager_state` was written.
    pub(in crate::agent) const MEMORY: Self = Self(2);
    /// Something changed in the device plugins' directory.
    pub(in crate::agent) const DEVICES: Self = Self(4);
    /// `allocated_pods_state` was written (kubelet 1.33 and later): the last file of an admission. Alone it
    /// is no reason to scan, since it is written for every pod.
    pub(in crate::agent) const ADMITTED: Self = Self(16);
    /// The kubelet or the hardware may have changed, or events may have been missed.
    pub(in crate::agent) const EVERYTHING: Self = Self(8);
    /// The notify file was touched.
    pub(in crate::agent) const NOTIFIED: Self = Self(32);

    /// Returns the union of both sets.
    pub(in crate::agent) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the names of these reasons, as used in the metrics.
    pub(in crate::agent) fn names(self) -> impl Iterator<Item = &'static str> {
        let names = [
            (Self::CPUS, "cpus"),
            (Self::MEMORY, "memory"),
            (Self::DEVICES, "devices"),
            (Self::EVERYTHING, "everything"),
            (Self::NOTIFIED, "notified"),
        ];
        names.into_iter().filter(move |(reason, _)| self.has(*reason)).map(|(_, name)| name)
    }

    /// Returns true if every reason of `other` is among these.
    pub(in crate::agent) fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The reasons that no scan has covered yet. None that is raised here is ever lost.
#[derive(Debug, Default)]
pub(super) struct Pending {
    reasons: AtomicU8,
    raised: Notify,
}

impl Pending {
    pub(super) fn raise(&self, trigger: Trigger) {
        self.reasons.fetch_or(trigger.0, Ordering::Relaxed);
        self.raised.notify_one();
    }

    /// Waits for a reason other than `ignored`.
    pub(super) async fn take(&self, ignored: Trigger) -> Trigger {
        loop {
            let reasons = Trigger(self.reasons.swap(0, Ordering::Relaxed));
            if reasons != Trigger::default() && reasons != ignored {
                return reasons;
            }
            self.raised.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_all_of_its_reasons() {
        let both = Trigger::CPUS.and(Trigger::DEVICES);
        assert!(both.has(Trigger::CPUS) && both.has(Trigger::DEVICES) && !both.has(Trigger::MEMORY));
    }
}
