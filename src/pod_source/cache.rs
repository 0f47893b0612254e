//! The cache of the node's pods, usually fed by the API server.
//!
//! A deleted pod leaves the List before the kubelet writes any file, so a deletion triggers a scan. Kubelets
//! before 1.34 also list terminated pods, with the memory and devices that they released: only the pods'
//! phases distinguish these from the others.

mod pods;
mod updater;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::metrics::PodSourceMetrics;
use super::selector::{PodSources, SourceSelector};
use crate::cluster::Cluster;
use crate::kubelet::Refresh;
use crate::pod::{Pod, PodName, Termination};
use crate::util::log_throttle::LastLogged;
use crate::util::sync::lock;
use crate::util::task::Task;

pub use pods::RELEASE_TIMEOUT;

use pods::CachedPods;
use updater::Updater;

/// A view of the node's pods at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodView {
    /// Whether the watch is up and everything was listed once. If not, the agent has to poll for releases.
    pub is_up_to_date: bool,
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
        self.is_up_to_date != before.is_up_to_date
            || self.terminated != before.terminated
            || self.recently_deleted.iter().any(is_new)
    }
}

/// Handle to the node's pod cache. All clones see every change; the task behind them ends with the last one.
#[derive(Clone, Debug)]
pub struct PodCache {
    view: watch::Receiver<PodView>,
    pods: Arc<Mutex<CachedPods>>,
    refresh: Arc<Refresh>,
    _task: Option<Arc<Task>>,
}

impl PodCache {
    /// Returns a cache without a source.
    #[must_use]
    pub fn none() -> Self {
        let (_, view) = watch::channel(PodView::default());
        Self { view, pods: Arc::default(), refresh: Arc::default(), _task: None }
    }

    /// Returns a cache that has listed these pods.
    #[cfg(test)]
    pub(crate) fn fixed(pods: Vec<Pod>) -> Self {
        let cache = Self::none();
        crate::pod::PodEvent::list(pods).for_each(|event| cache.pods().apply(event, Instant::now()));
        cache
    }

    /// Returns a cache whose source has failed with this error since its start.
    #[cfg(test)]
    pub(crate) fn failing(error: &str) -> Self {
        let cache = Self::none();
        {
            let mut pods = cache.pods();
            (pods.failing_since, pods.error) = (Some(Instant::now()), Some(error.to_owned()));
        }
        cache
    }

    /// Watches the pods of `node`; without a source if `sources` has none. Without a cluster, only the kubelet's
    /// Pods API works.
    #[must_use]
    pub fn start(
        sources: PodSources,
        node: String,
        cluster: Option<Cluster>,
        metrics: PodSourceMetrics,
    ) -> Self {
        if sources.order.is_empty() {
            return Self::none();
        }
        let selector = SourceSelector::new(sources, node.clone(), cluster.clone());
        let refresh = Arc::clone(&selector.refresh);
        let (sender, view) = watch::channel(PodView::default());
        let pods = Arc::<Mutex<CachedPods>>::default();
        let (lists_terminated, error) = (None, LastLogged::default());
        let updater = Updater { view: sender, pods: Arc::clone(&pods), metrics, lists_terminated, error };
        let task = Task::spawn(updater.run(selector, node, cluster));
        Self { view, pods, refresh, _task: Some(Arc::new(task)) }
    }

    /// Returns the current view, and marks it as seen.
    pub fn view(&mut self) -> PodView {
        self.view.borrow_and_update().clone()
    }

    /// Returns the current view without marking it as seen: [`PodCache::changed`] still reports it.
    pub fn peek(&self) -> watch::Ref<'_, PodView> {
        self.view.borrow()
    }

    /// Waits for a change of the view.
    pub async fn changed(&mut self) {
        if self.view.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Makes a polled source read now.
    pub fn refresh(&self) {
        // If the source is not waiting right now, it has just read or is about to.
        self.refresh.request();
    }

    /// Returns true if all pods were listed once.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.pods().is_synced()
    }

    /// Returns how long the source has been failing; `None` while it works, and before its first event or
    /// error.
    #[must_use]
    pub fn failing_for(&self) -> Option<Duration> {
        self.pods().failing_since.map(|since| since.elapsed())
    }

    /// Returns the source's last error, while it is failing.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        self.pods().error.clone()
    }

    /// Returns a number that changes whenever any pod changes, and when the first list is complete.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.pods().version
    }

    /// Calls `act` with the pods as of the last list and the events since; with `None` before the first list.
    pub fn with<T>(&self, act: impl FnOnce(Option<&mut dyn Iterator<Item = &Pod>>) -> T) -> T {
        let pods = self.pods();
        match pods.is_synced() {
            true => act(Some(&mut pods.all().values())),
            false => act(None),
        }
    }

    /// Returns true if there is a pod with this name, as of the last list and the events since.
    #[must_use]
    pub fn contains(&self, name: &PodName) -> bool {
        self.pods().all().contains_key(name)
    }

    /// Returns true if this pod is running or will run, as of the last list and the events since.
    #[must_use]
    pub fn has_live(&self, name: &PodName) -> bool {
        self.pods().all().get(name).is_some_and(|pod| pod.termination == Termination::Live)
    }

    /// Returns true if there is a pod with this name, as of the last list and the events since, that is
    /// running or will run, or has terminated and is not being deleted: no newer pod can have its name.
    #[must_use]
    pub fn has_current(&self, name: &PodName) -> bool {
        self.pods().all().get(name).is_some_and(|pod| match pod.termination {
            Termination::Live => true,
            Termination::Stopped => false,
            Termination::Terminated => !pod.deleted,
        })
    }

    /// Returns true if this pod has terminated or was recently deleted, and no pod with its name is running
    /// or will run.
    #[must_use]
    pub fn is_gone(&self, name: &PodName) -> bool {
        let pods = self.pods();
        match pods.all().get(name).map(|pod| pod.termination) {
            Some(Termination::Live) => false,
            Some(Termination::Terminated) => true,
            Some(Termination::Stopped) | None => pods.was_deleted(name),
        }
    }

    /// Returns true if a complete list that was requested after `moment`, and the events since, lack this
    /// pod.
    #[must_use]
    pub fn lacks_since(&self, name: &PodName, moment: Instant) -> bool {
        self.listed_since(moment) && !self.contains(name)
    }

    /// Returns true if the pods are those of a complete list that was requested after `moment`, and of the
    /// events since.
    #[must_use]
    pub fn listed_since(&self, moment: Instant) -> bool {
        self.pods().listed_at.is_some_and(|at| at > moment)
    }

    /// Returns the number of pods that are running or will run and are not among `listed`.
    #[must_use]
    pub fn count_live_except(&self, listed: &BTreeSet<PodName>) -> usize {
        let pods = self.pods();
        let live = pods.all().iter().filter(|(_, pod)| pod.termination == Termination::Live);
        live.filter(|(name, _)| !listed.contains(*name)).count()
    }

    fn pods(&self) -> MutexGuard<'_, CachedPods> {
        lock(&self.pods)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::PodEvent;

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

    #[test]
    fn a_pod_is_missing_as_of_the_time_its_list_was_requested() {
        let cache = PodCache::none();
        let apply = |event, at| cache.pods().apply(event, at);
        let name = |name: &str| ("ns".to_owned(), name.to_owned());
        let pod = |name: &str| Pod { namespace: "ns".into(), name: name.into(), ..Pod::default() };
        let (early, requested, late) = {
            let now = Instant::now();
            (now, now + Duration::from_secs(1), now + Duration::from_secs(2))
        };
        assert!(!cache.lacks_since(&name("b"), early), "nothing was listed");
        apply(PodEvent::Init, requested);
        apply(PodEvent::InitApply(pod("a")), late);
        assert!(!cache.lacks_since(&name("b"), early), "the list is incomplete");
        apply(PodEvent::InitDone, late);
        assert!(cache.lacks_since(&name("b"), early));
        assert!(!cache.lacks_since(&name("a"), early), "it is listed");
        assert!(!cache.lacks_since(&name("b"), requested), "it may have been created since");
        apply(PodEvent::Apply(pod("b")), late);
        assert!(!cache.lacks_since(&name("b"), early), "it was created since");
        apply(PodEvent::Init, late);
        assert!(!cache.lacks_since(&name("c"), requested), "the next list is incomplete");
    }

    #[test]
    fn a_name_may_be_taken_again_once_its_pod_is_stopped_or_deleted() {
        let cache = PodCache::none();
        let name = ("ns".to_owned(), "a".to_owned());
        assert!(!cache.has_current(&name));
        for (termination, deleted, is_current) in [
            (Termination::Live, false, true),
            (Termination::Live, true, true),
            (Termination::Stopped, true, false),
            (Termination::Terminated, false, true),
            (Termination::Terminated, true, false),
        ] {
            let pod =
                Pod { namespace: "ns".into(), name: "a".into(), termination, deleted, ..Pod::default() };
            cache.pods().apply(PodEvent::Apply(pod), Instant::now());
            assert_eq!(cache.has_current(&name), is_current, "{termination:?} {deleted}");
        }
    }
}
