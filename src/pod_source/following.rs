//! The cache of the node's pods, usually fed by the API server.
//!
//! A deleted pod leaves the List before the kubelet writes any file, so a deletion triggers a scan. Kubelets
//! before 1.34 also list terminated pods, with the memory and devices that they released (kubelet.md 3.3):
//! only the pods' phases distinguish these from the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::metrics::PodSourceMetrics;
use super::tellers::{PodTeller, PodTellers, Telling};
use crate::cluster::Cluster;
use crate::pod::{Liveness, Pod, PodEvent, PodName};
use crate::pod::annotation::PodMap;
use crate::util::backoff::{back_off, jittered};

/// The first kubelet whose List contains active pods only.
const ACTIVE_PODS_ONLY: (u32, u32) = (1, 34);

/// How often the kubelet's version is read again: kubelets are upgraded in place.
const REREAD: Duration = Duration::from_secs(600);
/// Initial backoff after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum backoff between two failures.
const RETRY_LIMIT: Duration = Duration::from_secs(60);

/// How long the terminated pods are trusted while the watch is broken: a new pod may have taken such a name.
const STALE: Duration = Duration::from_secs(30);

/// How long the List may still show a pod that is gone before that is accepted as the truth: a kubelet that
/// cannot stop a container lists its pod indefinitely.
pub const LINGER: Duration = Duration::from_secs(15);

/// How long deletions are remembered: kubelets restart within minutes.
const DEPARTED: Duration = Duration::from_secs(600);
/// Maximum number of remembered deletions. With more of them, a restarted kubelet is accepted a while later.
const MOST_DEPARTED: usize = 1024;

/// A view of the node's pods at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodView {
    /// Whether the watch is up and everything was listed once. If not, the agent has to poll for releases.
    pub follows: bool,
    /// Pods that are allocated nothing although the kubelet lists them, with their UIDs; empty for kubelets
    /// that do not list terminated pods.
    pub terminal: Arc<BTreeMap<PodName, String>>,
    /// Pods that were recently deleted or terminated, with the time: the List will follow.
    pub gone: Arc<BTreeMap<PodName, Instant>>,
    /// Changes whenever any pod changes.
    pub version: u64,
    /// All pods were listed once, and it is known whether this kubelet lists terminated pods.
    pub complete: bool,
}

impl PodView {
    /// Returns true if a pod released resources, or the source's health changed, since `before`: rescan,
    /// since only the kubelet's List shows the result.
    pub fn asks_for_a_look(&self, before: &Self) -> bool {
        // A pod that was forgotten is not a change.
        let went = |(name, at)| before.gone.get(name) != Some(at);
        self.follows != before.follows || self.terminal != before.terminal || self.gone.iter().any(went)
    }
}

/// Handle to the node's pod cache. All clones see every change; the task behind them ends with the last one.
#[derive(Clone, Debug)]
pub struct PodSource {
    newest: watch::Receiver<PodView>,
    pods: Arc<Mutex<Pods>>,
    prompt: Arc<Notify>,
    _task: Option<Arc<Task>>,
}

/// Aborts the task when dropped.
#[derive(Debug)]
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl PodSource {
    /// Returns a handle without a source.
    #[must_use]
    pub fn none() -> Self {
        let (_, newest) = watch::channel(PodView::default());
        Self { newest, pods: Arc::default(), prompt: Arc::default(), _task: None }
    }

    /// Watches the pods of `node` through `tellers`; without a source if there are none.
    #[must_use]
    pub fn follow(tellers: PodTellers, node: String, cluster: Cluster, metrics: PodSourceMetrics) -> Self {
        if tellers.order.is_empty() {
            return Self::none();
        }
        let telling = Telling::new(tellers, node.clone(), Some(cluster.clone()));
        let prompt = telling.prompt();
        let (news, newest) = watch::channel(PodView::default());
        let pods = Arc::<Mutex<Pods>>::default();
        let follower = Follower::new(node, cluster, news, Arc::clone(&pods), metrics);
        let task = Some(Arc::new(Task(tokio::spawn(follower.run(telling)))));
        Self { newest, pods, prompt, _task: task }
    }

    /// Returns the current view, and marks it as seen.
    pub fn now(&mut self) -> PodView {
        self.newest.borrow_and_update().clone()
    }

    /// Returns the current view without marking it as seen: [`PodSource::changed`] still reports it.
    pub fn peek(&self) -> watch::Ref<'_, PodView> {
        self.newest.borrow()
    }

    /// Returns true if all pods were listed once.
    #[must_use]
    pub fn has_told(&self) -> bool {
        lock(&self.pods).complete
    }

    /// Returns how long the source has been failing; `None` while it works, and before its first event or
    /// error.
    #[must_use]
    pub fn silent_for(&self) -> Option<Duration> {
        lock(&self.pods).silent.map(|since| since.elapsed())
    }

    /// Returns a number that changes whenever any pod changes, and when the first list is complete.
    #[must_use]
    pub fn version(&self) -> u64 {
        lock(&self.pods).version
    }

    /// Makes a polled source read now.
    pub fn hurry(&self) {
        // If the source is not waiting right now, it has just read or is about to.
        self.prompt.notify_one();
    }

    /// Calls `act` with the pods as of the last list and the events since; with `None` before the first list.
    pub fn with<T>(&self, act: impl FnOnce(Option<&mut dyn Iterator<Item = &Pod>>) -> T) -> T {
        let pods = lock(&self.pods);
        match pods.complete {
            true => act(Some(&mut pods.now.values())),
            false => act(None),
        }
    }

    /// Returns true if there is a pod with this name, as of the last list and the events since.
    #[must_use]
    pub fn knows(&self, name: &PodName) -> bool {
        lock(&self.pods).now.contains_key(name)
    }

    /// Returns true if this pod is running or will run, as of the last list and the events since.
    #[must_use]
    pub fn knows_living(&self, name: &PodName) -> bool {
        lock(&self.pods).is_living(name)
    }

    /// Returns true if there is a pod with this name, as of the last list and the events since, that is
    /// running or will run, or has ended and is not being deleted: no other pod can have its name.
    #[must_use]
    pub fn knows_settled(&self, name: &PodName) -> bool {
        lock(&self.pods).is_settled(name)
    }

    /// Returns true if this pod has terminated or was recently deleted, and no pod with its name is running or
    /// will run.
    #[must_use]
    pub fn knows_gone(&self, name: &PodName) -> bool {
        let pods = lock(&self.pods);
        let has_ended = pods.now.get(name).is_some_and(|pod| pod.liveness == Liveness::Terminated);
        (has_ended || pods.departed.contains_key(name)) && !pods.is_living(name)
    }

    /// Returns true if a complete list that was requested after `moment`, and the events since, lack this
    /// pod.
    #[must_use]
    pub fn lacks_since(&self, name: &PodName, moment: Instant) -> bool {
        let pods = lock(&self.pods);
        pods.listed_since(moment) && !pods.now.contains_key(name)
    }

    /// Returns true if the pods are those of a complete list that was requested after `moment`, and of the
    /// events since.
    #[must_use]
    pub fn listed_since(&self, moment: Instant) -> bool {
        lock(&self.pods).listed_since(moment)
    }

    /// Returns the number of pods that are running or will run and are not among `listed`.
    #[must_use]
    pub fn living_besides(&self, listed: &BTreeSet<PodName>) -> usize {
        let pods = lock(&self.pods);
        let living = pods.now.iter().filter(|(_, pod)| pod.liveness == Liveness::Live);
        living.filter(|(name, _)| !listed.contains(*name)).count()
    }

    /// Waits for a change.
    pub async fn changed(&mut self) {
        if self.newest.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

struct Follower {
    node: String,
    cluster: Cluster,
    news: watch::Sender<PodView>,
    pods: Arc<Mutex<Pods>>,
    metrics: PodSourceMetrics,
    /// Whether this kubelet lists terminated pods. Unknown until its version was read.
    lists_ended: Option<bool>,
    /// Since when the watch is broken.
    broken: Option<Instant>,
    /// The last error that was logged.
    told: Option<String>,
}

impl Follower {
    fn new(
        node: String,
        cluster: Cluster,
        news: watch::Sender<PodView>,
        pods: Arc<Mutex<Pods>>,
        metrics: PodSourceMetrics,
    ) -> Self {
        Self { node, cluster, news, pods, metrics, lists_ended: None, broken: None, told: None }
    }

    async fn run(mut self, mut telling: Telling) {
        // A stream, so that pod events are processed while the Node is read.
        let mut versions = std::pin::pin!(versions(self.node.clone(), self.cluster.clone()));
        loop {
            tokio::select! {
                event = telling.next() => self.take(event, telling.teller()),
                Some(version) = versions.next() => self.take_version(&version),
            }
            self.send(telling.teller());
        }
    }

    fn take(&mut self, event: Result<PodEvent, String>, teller: PodTeller) {
        match event {
            Ok(event) => {
                // The start of a list is no proof: it may fail as the one before did.
                if event.is_proof() {
                    self.broken = None;
                    self.told = None;
                }
                let mut pods = lock(&self.pods);
                pods.silent = self.broken;
                pods.take(event, Instant::now());
            }
            Err(sentence) => {
                let since = *self.broken.get_or_insert_with(Instant::now);
                lock(&self.pods).silent = Some(since);
                self.metrics.count_error(teller.label());
                self.tell(sentence);
            }
        }
    }

    fn take_version(&mut self, version: &str) {
        let lists_ended = lists_ended_pods(version);
        if lists_ended && self.lists_ended != Some(true) {
            info!("kubelet {version} lists pods that have ended: who tells about pods says which these are");
        }
        self.lists_ended = Some(lists_ended);
    }

    fn send(&mut self, teller: PodTeller) {
        let stale = self.broken.is_some_and(|since| since.elapsed() > STALE);
        let believed = self.lists_ended == Some(true) && !stale;
        let mut pods = lock(&self.pods);
        let terminal = if believed { pods.ended() } else { BTreeMap::new() };
        let up = pods.complete && self.broken.is_none();
        self.metrics.set_source(teller.label(), up);
        // A polled source reports deletions too late to rely on it for releases.
        let follows = up && teller.is_prompt();
        let version = pods.version;
        let complete = pods.complete && self.lists_ended.is_some();
        let gone = pods.gone(Instant::now());
        self.news.send_if_modified(|last| {
            let same = last.follows == follows
                && last.version == version
                && last.complete == complete
                && *last.terminal == terminal
                && *last.gone == *gone;
            if !same {
                let (terminal, gone) = (Arc::new(terminal), Arc::new(gone.clone()));
                *last = PodView { follows, terminal, gone, version, complete };
            }
            !same
        });
    }

    fn tell(&mut self, sentence: String) {
        if self.told.as_ref() != Some(&sentence) {
            warn!("{sentence}; releases are looked for once a second meanwhile");
            self.told = Some(sentence);
        }
    }
}

/// Yields the kubelet's version, now and periodically.
fn versions(node: String, cluster: Cluster) -> impl Stream<Item = String> {
    futures::stream::unfold(Instant::now(), move |mut due| {
        let (node, cluster) = (node.clone(), cluster.clone());
        async move {
            let mut failures = 0;
            loop {
                sleep_until(due).await;
                // The publisher, which reads the same Node, logs what is wrong.
                match cluster.kubelet_version(&node).await {
                    Ok(version) => return Some((version, Instant::now() + jittered(REREAD))),
                    Err(_) => due = Instant::now() + back_off(&mut failures, RETRY, RETRY_LIMIT),
                }
            }
        }
    })
}

fn lock(pods: &Mutex<Pods>) -> MutexGuard<'_, Pods> {
    pods.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The node's pods as reported by the source.
#[derive(Debug, Default)]
struct Pods {
    now: PodMap<PodName>,
    /// The list being received, and when it was requested.
    listed: Option<(PodMap<PodName>, Instant)>,
    /// When the last complete list was requested.
    listed_at: Option<Instant>,
    /// Whether all pods were listed once.
    complete: bool,
    /// Incremented whenever a pod changes.
    version: u64,
    /// Since when the source has been failing.
    silent: Option<Instant>,
    /// Pods that were deleted or terminated within [`LINGER`].
    gone: BTreeMap<PodName, Instant>,
    /// Pods that were deleted or terminated within [`DEPARTED`]: the kubelet may restart in between.
    departed: BTreeMap<PodName, Instant>,
}

impl Pods {
    fn take(&mut self, event: PodEvent, at: Instant) {
        match event {
            PodEvent::Listing => self.listed = Some((PodMap::default(), at)),
            PodEvent::Listed(pod) => {
                let (listed, _) = self.listed.get_or_insert_with(|| (PodMap::default(), at));
                listed.insert(pod.full_name(), pod);
            }
            PodEvent::Complete => self.replace(at),
            PodEvent::Is(pod) => self.put(pod.full_name(), pod, at),
            PodEvent::Gone(pod) => self.remove(pod.full_name(), &pod.uid, at),
            PodEvent::Again => {}
        }
    }

    /// Applies the new list. Pods missing from it were deleted unseen.
    fn replace(&mut self, at: Instant) {
        let (listed, asked_at) = self.listed.take().unwrap_or_else(|| (PodMap::default(), at));
        self.listed_at = Some(asked_at);
        let missing = self.now.iter().filter(|(name, _)| !listed.contains_key(*name));
        let missing: Vec<_> = missing.map(|(name, pod)| (name.clone(), pod.uid.clone())).collect();
        for (name, uid) in missing {
            self.remove(name, &uid, at);
        }
        for (name, pod) in listed {
            self.put(name, pod, at);
        }
        if !self.complete {
            self.complete = true;
            self.version += 1;
        }
    }

    fn put(&mut self, name: PodName, pod: Pod, at: Instant) {
        if pod.liveness == Liveness::Live {
            // It may be another pod with the same name.
            self.gone.remove(&name);
        } else if self.is_living(&name) || self.now.get(&name).is_none_or(|known| known.uid != pod.uid) {
            self.leave(name.clone(), at);
        }
        if self.now.get(&name) != Some(&pod) {
            self.version += 1;
            self.now.insert(name, pod);
        }
    }

    fn remove(&mut self, name: PodName, uid: &str, at: Instant) {
        // Another pod may already have its name.
        if self.now.get(&name).is_none_or(|known| known.uid != uid) {
            return;
        }
        let lived = self.is_living(&name);
        self.now.remove(&name);
        self.version += 1;
        if lived {
            self.leave(name, at);
        }
    }

    fn leave(&mut self, name: PodName, at: Instant) {
        if self.departed.len() >= MOST_DEPARTED {
            let half = at.checked_sub(DEPARTED / 2).unwrap_or(at);
            self.departed.retain(|_, left| *left > half);
        }
        if self.departed.len() < MOST_DEPARTED {
            self.departed.insert(name.clone(), at);
        }
        self.gone.insert(name, at);
    }

    fn is_living(&self, name: &PodName) -> bool {
        self.now.get(name).is_some_and(|pod| pod.liveness == Liveness::Live)
    }

    fn listed_since(&self, moment: Instant) -> bool {
        self.listed_at.is_some_and(|at| at > moment)
    }

    fn is_settled(&self, name: &PodName) -> bool {
        let settled = |pod: &Pod| match pod.liveness {
            Liveness::Live => true,
            Liveness::Stopped => false,
            Liveness::Terminated => !pod.deleted,
        };
        self.now.get(name).is_some_and(settled)
    }

    fn ended(&self) -> BTreeMap<PodName, String> {
        let ended = self.now.iter().filter(|(_, pod)| pod.liveness == Liveness::Terminated);
        ended.map(|(name, pod)| (name.clone(), pod.uid.clone())).collect()
    }

    fn gone(&mut self, now: Instant) -> &BTreeMap<PodName, Instant> {
        self.departed.retain(|_, at| now.duration_since(*at) < DEPARTED);
        self.gone.retain(|_, at| now.duration_since(*at) < LINGER);
        &self.gone
    }
}

/// Returns true if a kubelet of this version (`v1.33.13`) lists terminated pods; also if the version cannot
/// be parsed.
fn lists_ended_pods(version: &str) -> bool {
    let mut numbers = version.trim_start_matches('v').split('.').map(|part| part.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) < ACTIVE_PODS_ONLY,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::Annotation;
    use crate::pod::annotation::MAX_ANNOTATION_BYTES;
    use crate::pod::annotation::tests::annotated;

    #[test]
    fn kubelets_before_1_34_list_pods_that_have_ended() {
        for old in ["v1.33.13", "v1.23.0-eks-1", "1.9.0", "v0.1", "", "v1.x"] {
            assert!(lists_ended_pods(old), "{old}");
        }
        for new in ["v1.34.0", "v1.36.3+k3s1", "v2.0.0"] {
            assert!(!lists_ended_pods(new), "{new}");
        }
    }

    fn pod(name: &str, uid: &str, liveness: Liveness) -> Pod {
        Pod { namespace: "ns".into(), name: name.into(), uid: uid.into(), liveness, ..Pod::default() }
    }

    fn names<'a>(set: impl IntoIterator<Item = &'a PodName>) -> String {
        set.into_iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(",")
    }

    #[test]
    fn a_pod_is_gone_when_it_leaves_ends_or_vanishes_and_not_when_its_name_returns() {
        let mut pods = Pods::default();
        let start = Instant::now();
        let mut gone = |event, seconds| {
            let now = start + Duration::from_secs(seconds);
            pods.take(event, now);
            names(pods.gone(now).keys())
        };
        for name in ["a", "b", "c"] {
            assert_eq!(gone(PodEvent::Is(pod(name, "1", Liveness::Live)), 0), "");
        }
        assert_eq!(gone(PodEvent::Is(pod("a", "1", Liveness::Stopped)), 1), "a");
        assert_eq!(gone(PodEvent::Is(pod("b", "1", Liveness::Terminated)), 2), "a,b");
        assert_eq!(gone(PodEvent::Gone(pod("c", "1", Liveness::Live)), 3), "a,b,c");
        // Later events of a pod that is already gone change nothing.
        assert_eq!(gone(PodEvent::Is(pod("a", "1", Liveness::Terminated)), 15), "a,b,c");
        assert_eq!(gone(PodEvent::Gone(pod("a", "1", Liveness::Terminated)), 16), "b,c", "long enough");
        assert_eq!(gone(PodEvent::Is(pod("b", "2", Liveness::Live)), 16), "c", "another pod");
        assert_eq!(gone(PodEvent::Is(pod("d", "1", Liveness::Terminated)), 18), "d", "refused at once");
        assert_eq!(names(pods.departed.keys()), "a,b,c,d");
        pods.gone(start + DEPARTED + Duration::from_secs(10));
        assert_eq!(names(pods.departed.keys()), "d");
        let many = (0..3 * MOST_DEPARTED).map(|number| pod(&number.to_string(), "1", Liveness::Terminated));
        many.for_each(|pod| pods.take(PodEvent::Is(pod), start));
        assert_eq!(pods.departed.len(), MOST_DEPARTED);
    }

    #[test]
    fn a_pod_that_goes_asks_for_a_look_and_one_that_is_forgotten_does_not() {
        let (start, later) = (Instant::now(), Instant::now() + LINGER);
        let gone = |pods: &[(&str, Instant)]| {
            let pods = pods.iter().map(|(name, at)| (("ns".into(), (*name).into()), *at));
            PodView { gone: Arc::new(pods.collect()), ..PodView::default() }
        };
        let (one, both, next) =
            (gone(&[("a", start)]), gone(&[("a", start), ("b", later)]), gone(&[("b", later)]));
        assert!(one.asks_for_a_look(&gone(&[])) && both.asks_for_a_look(&one) && next.asks_for_a_look(&one));
        assert!(gone(&[("a", later)]).asks_for_a_look(&one), "another pod of that name");
        assert!(!next.asks_for_a_look(&both) && !one.asks_for_a_look(&one));
    }

    #[test]
    fn a_name_may_be_another_pods_once_its_pod_is_gone_or_leaves_or_is_deleted_and_has_ended() {
        let mut pods = Pods::default();
        let name = ("ns".to_owned(), "a".to_owned());
        assert!(!pods.is_settled(&name));
        for (life, deleted, settled) in [
            (Liveness::Live, false, true),
            (Liveness::Live, true, true),
            (Liveness::Stopped, true, false),
            (Liveness::Terminated, false, true),
            (Liveness::Terminated, true, false),
        ] {
            pods.take(PodEvent::Is(Pod { deleted, ..pod("a", "1", life) }), Instant::now());
            assert_eq!(pods.is_settled(&name), settled, "{life:?} {deleted}");
        }
    }

    #[test]
    fn a_new_list_replaces_the_old_one_when_it_is_complete() {
        let mut pods = Pods::default();
        let now = Instant::now();
        for event in [
            PodEvent::Is(pod("a", "1", Liveness::Live)),
            PodEvent::Is(pod("b", "1", Liveness::Terminated)),
            PodEvent::Is(pod("c", "1", Liveness::Live)),
            PodEvent::Listing,
            PodEvent::Listed(pod("b", "1", Liveness::Terminated)),
            PodEvent::Listed(pod("c", "1", Liveness::Terminated)),
        ] {
            pods.take(event, now);
        }
        assert_eq!((names(pods.ended().keys()), names(pods.gone(now).keys())), ("b".into(), "b".into()));
        assert!(!pods.complete);
        pods.take(PodEvent::Complete, now);
        assert_eq!(
            (names(pods.ended().keys()), names(pods.gone(now).keys())),
            ("b,c".into(), "a,b,c".into())
        );
        assert!(pods.complete);
    }

    #[test]
    fn annotations_of_the_list_and_of_events_are_bounded_together() {
        let (mut pods, now) = (Pods::default(), Instant::now());
        let texts = |pods: &PodMap<PodName>| pods.values().map(Pod::annotation_bytes).sum::<usize>();
        let many = || (0..1000).map(|number| annotated(&number.to_string(), Annotation::MAX_BYTES));
        let small = || PodEvent::Is(annotated("small", 1000));
        pods.take(PodEvent::Listing, now);
        many().for_each(|pod| pods.take(PodEvent::Listed(pod), now));
        assert!((MAX_ANNOTATION_BYTES / 2..=MAX_ANNOTATION_BYTES).contains(&texts(&pods.listed.as_ref().unwrap().0)));
        pods.take(PodEvent::Complete, now);
        assert!((MAX_ANNOTATION_BYTES / 2..=MAX_ANNOTATION_BYTES).contains(&texts(&pods.now)));
        pods.take(small(), now);
        let version = pods.version;
        many().for_each(|pod| pods.take(PodEvent::Is(pod), now));
        assert!((MAX_ANNOTATION_BYTES / 2..=MAX_ANNOTATION_BYTES).contains(&texts(&pods.now)));
        assert_eq!(pods.now[&("ns".into(), "small".into())].annotation_bytes(), 1000, "the longest go");
        assert!(pods.version > version);
        many().for_each(|pod| pods.take(PodEvent::Gone(pod), now));
        assert_eq!(texts(&pods.now), 1000);
    }

    #[test]
    fn a_list_says_who_is_missing_as_of_when_it_was_asked_for() {
        let source = PodSource::none();
        let take = |event, at| lock(&source.pods).take(event, at);
        let name = |name: &str| ("ns".to_owned(), name.to_owned());
        let (early, asked, late) = {
            let now = Instant::now();
            (now, now + Duration::from_secs(1), now + Duration::from_secs(2))
        };
        assert!(!source.lacks_since(&name("b"), early), "nothing was listed");
        take(PodEvent::Listing, asked);
        take(PodEvent::Listed(pod("a", "1", Liveness::Live)), late);
        assert!(!source.lacks_since(&name("b"), early), "not all of it is there");
        take(PodEvent::Complete, late);
        assert!(source.lacks_since(&name("b"), early));
        assert!(!source.lacks_since(&name("a"), early), "it is there");
        assert!(!source.lacks_since(&name("b"), asked), "it may have come since");
        take(PodEvent::Is(pod("b", "1", Liveness::Live)), late);
        assert!(!source.lacks_since(&name("b"), early), "it has come since");
        take(PodEvent::Listing, late);
        assert!(!source.lacks_since(&name("c"), asked), "the next list is not complete yet");
    }
}
