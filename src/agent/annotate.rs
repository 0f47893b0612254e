//! Annotates the node's pods with what they have of each zone, for KAI-Scheduler.
//!
//! It runs in a task of its own: scans and the object do not wait for it. Only the newest state is written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, warn};

use super::metrics::Metrics;
use super::reconcile::Account;
use crate::cluster::{Cluster, ClusterError};
use crate::kai::{OBSERVED_PLACEMENT, observed_placement};
use crate::pod::{Annotation, Pod, PodName, Termination};
use crate::pod_source::PodCache;
use crate::topology::ZoneRules;
use crate::util::backoff::NextAttempt;
use crate::util::log_throttle::LastLogged;
use crate::util::task::Task;

/// Delay after the first failed write, and the maximum.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_LIMIT: Duration = Duration::from_secs(30);
/// The longest delay that the API server may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);
/// Delay before a value is written again: the watch may not have shown it yet, or another client changes it.
const REWRITE: Duration = Duration::from_secs(10);
const REWRITE_LIMIT: Duration = Duration::from_secs(600);

/// What the annotations should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wanted {
    /// The values of all pods that have anything.
    values: Arc<BTreeMap<PodName, String>>,
    /// Pods that the kubelet's List does not account for yet. It may still show an earlier pod of that name.
    unaccounted: BTreeSet<PodName>,
}

/// Annotates pods in the background.
#[derive(Debug)]
pub(super) struct PodAnnotator {
    wanted: watch::Sender<Option<Wanted>>,
    _task: Task,
}

impl PodAnnotator {
    pub(super) fn start(cluster: Cluster, pods: PodCache, metrics: Arc<Metrics>) -> Self {
        let (wanted, receiver) = watch::channel(None);
        let task = Annotating {
            cluster,
            pods,
            wanted: receiver,
            metrics,
            next: NextAttempt::new(Instant::now()),
            written: Written::default(),
            error: LastLogged::default(),
        };
        Self { wanted, _task: Task::spawn(task.run()) }
    }

    /// Takes a new account.
    pub(super) fn accounted(&self, account: &Account, rules: &ZoneRules) {
        let values = account.amounts_by_pod(rules).into_iter();
        let values = values.map(|(pod, amounts)| (pod, observed_placement(&amounts)));
        self.change(|wanted| wanted.values = Arc::new(values.collect()));
    }

    /// Sets which pods the account does not include yet.
    pub(super) fn set_unaccounted(&self, unaccounted: &BTreeSet<PodName>) {
        self.change(|wanted| wanted.unaccounted.clone_from(unaccounted));
    }

    fn change(&self, change: impl FnOnce(&mut Wanted)) {
        self.wanted.send_if_modified(|wanted| {
            let before = wanted.clone();
            change(wanted.get_or_insert_default());
            *wanted != before
        });
    }
}

/// The task behind a [`PodAnnotator`].
struct Annotating {
    cluster: Cluster,
    pods: PodCache,
    wanted: watch::Receiver<Option<Wanted>>,
    metrics: Arc<Metrics>,
    /// When the next write may begin, after a failure that affects every call.
    next: NextAttempt,
    written: Written,
    error: LastLogged<String>,
}

impl Annotating {
    async fn run(mut self) {
        loop {
            self.pods.view();
            let wanted = self.wanted.borrow_and_update().clone();
            let now = Instant::now();
            let change = wanted.map(|wanted| {
                self.pods.with(|pods| self.written.next(pods.into_iter().flatten(), &wanted, now))
            });
            let due = match change {
                Some(Next::Write(pod, value)) if self.next.at() <= now => {
                    self.write(pod, value).await;
                    continue;
                }
                Some(Next::Write(..)) => Some(self.next.at()),
                Some(Next::At(at)) => Some(at),
                Some(Next::Nothing) | None => None,
            };
            tokio::select! {
                () = self.pods.changed() => {}
                changed = self.wanted.changed() => if changed.is_err() { return },
                () = sleep_until(due.unwrap_or(now)), if due.is_some() => {}
            }
        }
    }

    async fn write(&mut self, pod: Pod, value: Option<String>) {
        let result = self.cluster.annotate_pod(&pod, OBSERVED_PLACEMENT, value.as_deref()).await;
        match result {
            Ok(()) => {
                self.metrics.annotated();
                self.next.succeeded();
                self.error.reset();
                debug!("annotated the pod {}/{}: {value:?}", pod.namespace, pod.name);
                self.written.add(pod.uid, value, true);
            }
            // The watch's event follows.
            Err(error) if error.is_not_found() || error.is_other_object_or_version() => {
                self.written.add(pod.uid, value, false);
            }
            Err(error) => {
                self.metrics.publish_errors.with([error.kind()]).inc();
                self.report(&error);
                if error.affects_every_call() {
                    let min = error.retry_after().unwrap_or_default().clamp(RETRY, MAX_RETRY_AFTER);
                    self.next.failed(min, RETRY, RETRY_LIMIT);
                } else {
                    self.written.add(pod.uid, value, false);
                }
            }
        }
    }

    fn report(&mut self, error: &ClusterError) {
        if self.error.is_new(error.to_string()) {
            warn!("{error}; KAI-Scheduler does not know where that pod's resources are");
        }
    }
}

/// What to do next.
#[derive(Debug, PartialEq)]
enum Next {
    /// Set this pod's annotation, or remove it.
    Write(Pod, Option<String>),
    /// Look again at this time.
    At(Instant),
    Nothing,
}

/// By UID, the value of the last write, and when the same value may be written again.
#[derive(Debug, Default)]
struct Written(BTreeMap<String, (Option<String>, NextAttempt)>);

impl Written {
    /// Returns a write that is due, of those pods that run and are not being deleted: KAI-Scheduler does not read the
    /// annotations of others.
    fn next<'a>(&mut self, pods: impl Iterator<Item = &'a Pod>, wanted: &Wanted, now: Instant) -> Next {
        let mut present = BTreeSet::new();
        let mut next = Next::Nothing;
        for pod in pods {
            present.insert(pod.uid.as_str());
            let name = pod.full_name();
            if pod.deleted || pod.termination != Termination::Live || wanted.unaccounted.contains(&name) {
                continue;
            }
            let value = wanted.values.get(&name);
            if is_annotated(pod, value) {
                continue;
            }
            let again = self.0.get(&pod.uid).filter(|(of, _)| of.as_ref() == value);
            match (again.map_or(now, |(_, next)| next.at()), &next) {
                (at, Next::Write(..)) if at <= now => {}
                (at, _) if at <= now => next = Next::Write(pod.clone(), value.cloned()),
                (at, Next::At(other)) => next = Next::At(at.min(*other)),
                (at, Next::Nothing) => next = Next::At(at),
                (_, Next::Write(..)) => {}
            }
        }
        self.0.retain(|uid, _| present.contains(uid.as_str()));
        next
    }

    /// Records a write. One that failed is tried again sooner.
    fn add(&mut self, uid: String, value: Option<String>, has_succeeded: bool) {
        let before = self.0.remove(&uid).filter(|(of, _)| *of == value);
        let mut next = before.map_or_else(|| NextAttempt::new(Instant::now()), |(_, next)| next);
        match has_succeeded {
            true => next.failed(REWRITE, REWRITE, REWRITE_LIMIT),
            false => next.failed(RETRY, RETRY, RETRY_LIMIT),
        }
        self.0.insert(uid, (value, next));
    }
}

fn is_annotated(pod: &Pod, value: Option<&String>) -> bool {
    let annotation = pod.annotations.iter().find(|(key, _)| &**key == OBSERVED_PLACEMENT);
    match (annotation, value) {
        (None, None) => true,
        (Some((_, Annotation::Text(text))), Some(value)) => **text == **value,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, annotation: Option<&str>) -> Pod {
        let annotation = annotation.map(|text| (OBSERVED_PLACEMENT.into(), Annotation::of(text)));
        Pod {
            namespace: "ns".into(),
            name: name.into(),
            uid: format!("uid-{name}"),
            annotations: annotation.into_iter().collect(),
            ..Pod::default()
        }
    }

    fn wanted(values: &[(&str, &str)]) -> Wanted {
        let values =
            values.iter().map(|(pod, value)| (("ns".to_owned(), (*pod).to_owned()), (*value).to_owned()));
        Wanted { values: Arc::new(values.collect()), ..Wanted::default() }
    }

    /// Returns the name and the value of the write that is due after this many seconds.
    fn due(
        written: &mut Written,
        pods: &[Pod],
        wanted: &Wanted,
        seconds: u64,
    ) -> Option<(String, Option<String>)> {
        match written.next(pods.iter(), wanted, Instant::now() + Duration::from_secs(seconds)) {
            Next::Write(pod, value) => Some((pod.name, value)),
            Next::At(_) | Next::Nothing => None,
        }
    }

    fn write(name: &str, value: Option<&str>) -> Option<(String, Option<String>)> {
        Some((name.to_owned(), value.map(str::to_owned)))
    }

    #[test]
    fn what_differs_is_written_and_what_no_pod_has_is_removed() {
        let mut written = Written::default();
        let wanted = wanted(&[("a", "[1]"), ("b", "[2]")]);
        let pods = |a, b, c| [pod("a", a), pod("b", b), pod("c", c)];
        assert_eq!(due(&mut written, &pods(None, Some("[2]"), None), &wanted, 0), write("a", Some("[1]")));
        assert_eq!(
            due(&mut written, &pods(Some("[1]"), Some("[1]"), None), &wanted, 0),
            write("b", Some("[2]"))
        );
        assert_eq!(
            due(&mut written, &pods(Some("[1]"), Some("[2]"), Some("[]")), &wanted, 0),
            write("c", None)
        );
        assert_eq!(due(&mut written, &pods(Some("[1]"), Some("[2]"), None), &wanted, 0), None);
        let long = "x".repeat(Annotation::MAX_BYTES + 1);
        assert_eq!(due(&mut written, &[pod("c", Some(&long))], &wanted, 0), write("c", None));
    }

    #[test]
    fn pods_that_end_or_are_not_in_the_zones_yet_are_left_alone() {
        let mut written = Written::default();
        let mut wanted = wanted(&[("a", "[1]")]);
        let deleted = Pod { deleted: true, ..pod("a", None) };
        let ended = Pod { termination: Termination::Terminated, ..pod("a", None) };
        assert_eq!(due(&mut written, &[deleted, ended], &wanted, 0), None);
        wanted.unaccounted.insert(("ns".to_owned(), "a".to_owned()));
        assert_eq!(due(&mut written, &[pod("a", None)], &wanted, 0), None);
    }

    #[test]
    fn the_same_value_is_not_repeated_while_the_watch_may_be_late() {
        let mut written = Written::default();
        let (one, two) = (wanted(&[("a", "[1]")]), wanted(&[("a", "[2]")]));
        let stale = [pod("a", None)];
        assert_eq!(due(&mut written, &stale, &one, 0), write("a", Some("[1]")));
        written.add("uid-a".to_owned(), Some("[1]".to_owned()), true);
        assert_eq!(due(&mut written, &stale, &one, 9), None);
        assert_eq!(
            due(&mut written, &stale, &two, 0),
            write("a", Some("[2]")),
            "another value is due at once"
        );
        assert_eq!(due(&mut written, &stale, &one, 21), write("a", Some("[1]")));
        // Another client changes it each time.
        (0..10).for_each(|_| written.add("uid-a".to_owned(), Some("[1]".to_owned()), true));
        assert_eq!(due(&mut written, &[pod("a", Some("[3]"))], &one, 9), None);
        assert_eq!(due(&mut written, &[pod("a", Some("[3]"))], &one, 611), write("a", Some("[1]")));
        assert_eq!(due(&mut written, &[], &one, 0), None);
        assert!(written.0.is_empty(), "the pod is gone");
    }

    #[test]
    fn a_failed_write_of_one_pod_does_not_delay_others() {
        let mut written = Written::default();
        let wanted = wanted(&[("a", "[1]"), ("b", "[2]")]);
        written.add("uid-a".to_owned(), Some("[1]".to_owned()), false);
        let pods = [pod("a", None), pod("b", None)];
        assert_eq!(due(&mut written, &pods, &wanted, 0), write("b", Some("[2]")));
        assert!(matches!(written.next(pods[..1].iter(), &wanted, Instant::now()), Next::At(_)));
        assert_eq!(due(&mut written, &pods[..1], &wanted, 3), write("a", Some("[1]")));
    }
}
