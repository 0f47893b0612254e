//! What the agent sees of the cache at one moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use crate::pod::PodName;

/// A view of the node's pods at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodView {
    /// Whether the watch is up and everything was listed once. If not, the agent has to poll for releases.
    pub is_live: bool,
    /// Pods that are allocated nothing although the kubelet lists them, with their UIDs; empty for kubelets
    /// that do not list terminated pods.
    pub terminated: Arc<BTreeMap<PodName, String>>,
    /// Pods that were recently deleted or terminated, with the time: the List will follow.
    pub recently_deleted: Arc<BTreeMap<PodName, Instant>>,
    /// Changes whenever any pod changes.
    pub version: u64,
    /// All pods were listed once, and it is known whether this kubelet lists terminated pods.
    pub is_complete: bool,
}

impl PodView {
    /// Returns true if a pod released resources, or the source's health changed, since `before`: rescan,
    /// since only the kubelet's List shows the result.
    pub fn needs_rescan(&self, before: &Self) -> bool {
        // A deletion that is no longer recent is not a change.
        let is_new = |(name, at)| before.recently_deleted.get(name) != Some(at);
        self.is_live != before.is_live
            || self.terminated != before.terminated
            || self.recently_deleted.iter().any(is_new)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_deletion_needs_a_rescan_and_its_expiry_does_not() {
        let (start, later) = (Instant::now(), Instant::now() + Duration::from_secs(15));
        let view = |pods: &[(&str, Instant)]| {
            let pods = pods.iter().map(|(name, at)| (("ns".into(), (*name).into()), *at));
            PodView { recently_deleted: Arc::new(pods.collect()), ..PodView::default() }
        };
        let (one, next) = (view(&[("a", start)]), view(&[("b", later)]));
        let both = view(&[("a", start), ("b", later)]);
        assert!(one.needs_rescan(&view(&[])) && both.needs_rescan(&one) && next.needs_rescan(&one));
        assert!(view(&[("a", later)]).needs_rescan(&one), "another pod of that name");
        assert!(!next.needs_rescan(&both) && !one.needs_rescan(&one));
    }
}
