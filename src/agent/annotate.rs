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
use super::report::{EventRecorder, Reason};
use crate::cluster::{Cluster, ClusterError};
use crate::kai::{OBSERVED_PLACEMENT, observed_placement};
use crate::pod::{Annotation, Pod, PodName, Termination};
use crate::pod_source::PodCache;
use crate::publishers::KAI_EXPORTER;
use crate::topology::ZoneRules;
use crate::util::backoff::NextAttempt;
use crate::util::log_throttle::LastLogged;
use crate::util::task::Task;

/// Delay after the first failed write, and the maximum.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_LIMIT: Duration = Duration::from_secs(30);
/// Delay before a value is written again: the watch may not have shown it yet, or another client changes it.
const REWRITE: Duration = Duration::from_secs(10);
const REWRITE_LIMIT: Duration = Duration::from_secs(600);
/// From which write of one value on another client is reported: the watch may be late once, and a person may edit.
const CONTESTED: u32 = 3;

/// What the annotations should be.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    /// The values of all pods that have anything.
    values: Arc<BTreeMap<PodName, String>>,
    /// The UIDs of the pods to annotate. For others the values are not the truth yet, or not any more: the kubelet's
    /// List may still show an earlier pod of that name, or lack one that is ending.
    settled: BTreeSet<String>,
}

/// Annotates pods in the background.
#[derive(Debug)]
pub(super) struct PodAnnotator {
    wanted: watch::Sender<Option<Wanted>>,
    _task: Task,
}

impl PodAnnotator {
    pub(super) fn start(
        cluster: Cluster,
        pods: PodCache,
        metrics: Arc<Metrics>,
        events: EventRecorder,
    ) -> Self {
        let (wanted, receiver) = watch::channel(None);
        let task = Annotating {
            cluster,
            pods,
            wanted: receiver,
            metrics,
            events,
            next: NextAttempt::new(Instant::now()),
            written: Written::default(),
            error: LastLogged::default(),
            rival: LastLogged::default(),
        };
        Self { wanted, _task: Task::spawn(task.run()) }
    }

    /// Takes an account, the rules if it is a new one, and the UIDs of the pods for which it is the truth.
    pub(super) fn update(&self, account: &Account, rules: Option<&ZoneRules>, settled: BTreeSet<String>) {
        let values = rules.map(|rules| {
            let amounts = account.amounts_by_pod(rules).into_iter();
            Arc::new(amounts.map(|(pod, amounts)| (pod, observed_placement(&amounts))).collect())
        });
        self.wanted.send_if_modified(|wanted| {
            // Nothing is known before the first account.
            let values = values.or_else(|| wanted.as_ref().map(|wanted| Arc::clone(&wanted.values)));
            let next = values.map(|values| Wanted { values, settled });
            let is_other = *wanted != next;
            *wanted = next;
            is_other
        });
    }
}

/// The task behind a [`PodAnnotator`].
struct Annotating {
    cluster: Cluster,
    pods: PodCache,
    wanted: watch::Receiver<Option<Wanted>>,
    metrics: Arc<Metrics>,
    events: EventRecorder,
    /// When the next write may begin, after a failure that affects every call.
    next: NextAttempt,
    written: Written,
    /// The kind of the last error: its text names a pod.
    error: LastLogged<String>,
    rival: LastLogged<()>,
}

impl Annotating {
    async fn run(mut self) {
        loop {
            self.pods.view();
            let now = Instant::now();
            let change = self.wanted.borrow_and_update().as_ref().map(|wanted| {
                self.pods.with(|pods| self.written.next(pods.into_iter().flatten(), wanted, now))
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
                if self.written.add(pod.uid, value, true) {
                    self.report_rival();
                }
            }
            // The watch's event follows.
            Err(error) if error.is_not_found() || error.is_other_object_or_version() => {
                self.written.add(pod.uid, value, false);
            }
            Err(error) => {
                self.metrics.publish_errors.with([error.kind()]).inc();
                self.report(&error);
                if error.affects_every_call() {
                    let min = error.retry_after().unwrap_or_default().max(RETRY);
                    self.next.failed(min, RETRY, RETRY_LIMIT);
                } else {
                    self.written.add(pod.uid, value, false);
                }
            }
        }
    }

    /// Another client changed an annotation that had been written. Pods are watched without the names of those who wrote
    /// them.
    fn report_rival(&mut self) {
        self.metrics.foreign_writes.with([KAI_EXPORTER.label]).inc();
        let note = format!(
            "another client keeps changing the annotation {OBSERVED_PLACEMENT} of pods, probably {}: {}",
            KAI_EXPORTER.name, KAI_EXPORTER.switch
        );
        if self.rival.is_new(()) {
            warn!("{note}");
        }
        self.events.post(Reason::CompetingPublisher, note);
    }

    fn report(&mut self, error: &ClusterError) {
        if self.error.is_new(error.kind().to_owned()) {
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

/// The last write of each pod, by UID.
#[derive(Debug, Default)]
struct Written(BTreeMap<String, Attempt>);

#[derive(Debug)]
struct Attempt {
    value: Option<String>,
    /// How often this value was written in a row.
    writes: u32,
    /// When it may be written again.
    next: NextAttempt,
}

impl Written {
    /// Returns a write that is due, of those pods that run and are not being deleted: KAI-Scheduler does not read the
    /// annotations of others.
    fn next<'a>(&mut self, pods: impl Iterator<Item = &'a Pod>, wanted: &Wanted, now: Instant) -> Next {
        let mut present = BTreeSet::new();
        let mut next = Next::Nothing;
        for pod in pods {
            present.insert(pod.uid.as_str());
            if pod.deleted || pod.termination != Termination::Live || !wanted.settled.contains(&pod.uid) {
                continue;
            }
            let value = wanted.values.get(&pod.full_name());
            if is_annotated(pod, value) {
                continue;
            }
            let again = self.0.get(&pod.uid).filter(|attempt| attempt.value.as_ref() == value);
            match (again.map_or(now, |attempt| attempt.next.at()), &next) {
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

    /// Records a write. One that failed is tried again sooner. Returns true if another client seems to write too: this is
    /// at least the third write of one value.
    fn add(&mut self, uid: String, value: Option<String>, has_succeeded: bool) -> bool {
        let same = self.0.remove(&uid).filter(|attempt| attempt.value == value);
        let new = || Attempt { value, writes: 0, next: NextAttempt::new(Instant::now()) };
        let mut attempt = same.unwrap_or_else(new);
        match has_succeeded {
            true => attempt.next.failed(REWRITE, REWRITE, REWRITE_LIMIT),
            false => attempt.next.failed(RETRY, RETRY, RETRY_LIMIT),
        }
        attempt.writes += u32::from(has_succeeded);
        let is_contested = has_succeeded && attempt.writes >= CONTESTED;
        self.0.insert(uid, attempt);
        is_contested
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
        let settled = ["a", "b", "c"].map(|name| format!("uid-{name}"));
        Wanted { values: Arc::new(values.collect()), settled: settled.into() }
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
        wanted.settled.remove("uid-a");
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
        assert!(!written.add("uid-a".to_owned(), Some("[1]".to_owned()), true));
        let contested = (0..10).all(|_| written.add("uid-a".to_owned(), Some("[1]".to_owned()), true));
        assert!(contested, "the third write and all that follow");
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
