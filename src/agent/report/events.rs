//! Kubernetes Events about our Node: what an operator should know.
//!
//! Posting never blocks: a task does it, and an Event that the API server does not accept is dropped. The log
//! contains all of it as well.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::debug;

use crate::agent::metrics::Metrics;
use crate::agent::settings::Settings;
use crate::cluster::{Cluster, ClusterError, EventPoster, Regarding};
use crate::util::token_bucket::TokenBucket;

/// How long the same note is not posted again.
const REPEAT_AFTER: Duration = Duration::from_secs(600);
/// Burst of Events, all reasons together.
const BURST: f64 = 5.0;
/// Events per second after the burst, all reasons together: ten per hour.
const RATE: f64 = 10.0 / 3600.0;
/// Maximum number of Events that wait while one is posted.
const QUEUE: usize = 16;

/// Why an Event is posted. The name of the variant is the Event's reason; `docs/troubleshooting.md` explains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::agent) enum Reason {
    CompetingPublisher,
    ObjectTakenOver,
    StaleOwner,
    PublishRejected,
    NodeUnreadable,
    KubeletStateIncomplete,
    NodesNotPublished,
    PoliciesUnknown,
    PodsUnknown,
    PodAdmissionTimeout,
}

impl Reason {
    /// Returns true if the Event is a `Warning`, false if it is `Normal`.
    const fn is_warning(self) -> bool {
        !matches!(self, Self::ObjectTakenOver)
    }
}

#[derive(Clone, Debug)]
pub(in crate::agent) struct EventRecorder(Option<mpsc::Sender<(Reason, String)>>);

impl EventRecorder {
    /// Starts the task that posts, if the settings allow it; it ends when the last handle is dropped.
    pub(in crate::agent) fn start(
        settings: &Settings,
        cluster: Option<Cluster>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let Some(cluster) = cluster.filter(|_| settings.events) else { return Self(None) };
        let (reporter, action, instance) = ("numacast/agent", "Publish", settings.node.clone());
        let poster = EventPoster { cluster, reporter, instance, action };
        let (sender, mut receiver) = mpsc::channel::<(Reason, String)>(QUEUE);
        tokio::spawn(async move {
            let mut limiter = Limiter::new(Instant::now());
            while let Some((reason, note)) = receiver.recv().await {
                if !limiter.admits(reason, &note, Instant::now()) {
                    debug!("Event {reason:?} not posted: repeated or rate-limited");
                } else if let Err(error) = post(&poster, reason, &note).await {
                    debug!("cannot post Event {reason:?}: {error}");
                } else {
                    metrics.events.with([&format!("{reason:?}")]).inc();
                }
            }
        });
        Self(Some(sender))
    }

    /// Posts an Event, unless the same was posted recently or the rate limit is reached. Never blocks.
    pub(in crate::agent) fn post(&self, reason: Reason, note: String) {
        let is_full = self.0.as_ref().is_some_and(|sender| sender.try_send((reason, note)).is_err());
        if is_full {
            debug!("Event {reason:?} dropped: the queue is full");
        }
    }
}

/// Posts one Event. The Node's UID is read each time: the Node may be recreated, and this is rare.
async fn post(poster: &EventPoster, reason: Reason, note: &str) -> Result<(), ClusterError> {
    let name = &poster.instance;
    let uid = poster.cluster.node_uid(name).await?;
    let regarding = Regarding::Node { name, uid: &uid };
    poster.post(regarding, &format!("{reason:?}"), reason.is_warning(), note).await
}

struct Limiter {
    last: BTreeMap<Reason, (String, Instant)>,
    bucket: TokenBucket,
}

impl Limiter {
    fn new(now: Instant) -> Self {
        Self { last: BTreeMap::new(), bucket: TokenBucket::new(RATE, BURST, now) }
    }

    fn admits(&mut self, reason: Reason, note: &str, now: Instant) -> bool {
        let is_same = |(last, at): &(String, Instant)| last == note && now.duration_since(*at) < REPEAT_AFTER;
        if self.last.get(&reason).is_some_and(is_same) || !self.bucket.take_now(now) {
            return false;
        }
        self.last.insert(reason, (note.to_owned(), now));
        true
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::generated;

    const MINUTE: Duration = Duration::from_secs(60);

    impl Reason {
        /// All reasons.
        const ALL: [Self; 10] = [
            Self::CompetingPublisher,
            Self::ObjectTakenOver,
            Self::StaleOwner,
            Self::PublishRejected,
            Self::NodeUnreadable,
            Self::KubeletStateIncomplete,
            Self::NodesNotPublished,
            Self::PoliciesUnknown,
            Self::PodsUnknown,
            Self::PodAdmissionTimeout,
        ];

        /// Returns when it is posted, and what to do then.
        const fn documentation(self) -> (&'static str, &'static str) {
            match self {
                Self::CompetingPublisher => (
                    "Another publisher rewrote the object after it was taken over",
                    "See [NumacastForeignWrites](#numacastforeignwrites)",
                ),
                Self::ObjectTakenOver => (
                    "A person's edit, or what another publisher left, was overwritten",
                    "Change the configuration instead",
                ),
                Self::StaleOwner => (
                    "The object has had a wrong owner for minutes: an earlier Node of that name, or a \
                     Namespace that may not be removed",
                    "Check Kubernetes' garbage collector, or delete the object: it is recreated at once",
                ),
                Self::PublishRejected => (
                    "The API server has rejected the object for a minute",
                    "See [NumacastPublishErrors](#numacastpublisherrors)",
                ),
                Self::NodeUnreadable => (
                    "The kubelet, the hardware or claims could not be read for a minute",
                    "See [NumacastNodeUnreadable](#numacastnodeunreadable)",
                ),
                Self::KubeletStateIncomplete => (
                    "After a kubelet's start, earlier allocations did not come back within 30 s (five \
                     minutes if none did, or the start did not finish); its new state is published",
                    "Check device plugins and pods",
                ),
                Self::NodesNotPublished => (
                    "NUMA nodes with IDs above 63 are in no zone, because the scheduler plugin would panic",
                    "Pods cannot be aligned there. If they have CPUs, report the machine",
                ),
                Self::PoliciesUnknown => (
                    "The kubelet's configuration could not be read. The object keeps its policies; without \
                     any, schedulers ignore its zones and the agent is not Ready",
                    "Read the note; the certificate may be self-signed. Set `kubelet.configFile`, \
                     `kubelet.certificateFingerprints` or `kubelet.configOverrides`",
                ),
                Self::PodsUnknown => (
                    "The node's pods could not be listed for a minute, although the API server responds: the \
                     fingerprint is withheld, or nothing is reserved",
                    "Let the agent list and watch pods, or set `fingerprint.view: kubelet`",
                ),
                Self::PodAdmissionTimeout => (
                    "The kubelet has neither admitted nor rejected a pod for a minute",
                    "See [NumacastPodAdmissionTimeouts](#numacastpodadmissiontimeouts)",
                ),
            }
        }
    }

    #[test]
    fn a_note_is_repeated_after_ten_minutes_and_another_posted_at_once() {
        let start = Instant::now();
        let mut limiter = Limiter::new(start);
        let mut admits = |reason, note, minutes| limiter.admits(reason, note, start + MINUTE * minutes);
        assert!(admits(Reason::CompetingPublisher, "nfd", 0));
        assert!(!admits(Reason::CompetingPublisher, "nfd", 9));
        assert!(admits(Reason::CompetingPublisher, "rte", 9));
        assert!(admits(Reason::StaleOwner, "nfd", 9), "reasons do not share their time");
        assert!(!admits(Reason::StaleOwner, "nfd", 18));
        assert!(admits(Reason::StaleOwner, "nfd", 19));
    }

    #[test]
    fn all_reasons_share_a_rate_limit() {
        let start = Instant::now();
        let mut limiter = Limiter::new(start);
        let mut posted = |minutes: u32| {
            let notes = (0..100).map(|n| format!("{minutes} {n}"));
            notes
                .filter(|note| limiter.admits(Reason::PublishRejected, note, start + MINUTE * minutes))
                .count()
        };
        assert_eq!(posted(0), 5, "the burst");
        assert_eq!(posted(5), 0);
        assert_eq!(posted(7), 1, "one in six minutes");
        assert_eq!(posted(600), 5, "never more than the burst at once");
    }

    #[tokio::test]
    async fn posting_never_blocks() {
        let (sender, _receiver) = mpsc::channel(1);
        let recorder = EventRecorder(Some(sender));
        for _ in 0..3 {
            recorder.post(Reason::StaleOwner, "x".to_owned());
        }
        EventRecorder(None).post(Reason::StaleOwner, "x".to_owned());
    }

    #[test]
    fn the_document_lists_every_reason() {
        let mut table = "| Event | when | what to do |\n|---|---|---|\n".to_owned();
        for reason in Reason::ALL {
            let (when, action) = reason.documentation();
            writeln!(table, "| `{reason:?}` | {when} | {action} |").unwrap();
        }
        generated::section("docs/troubleshooting.md", "events", &table);
    }
}
