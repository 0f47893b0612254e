//! Kubernetes Events about our Node: only what an operator must act on.
//!
//! Posting never blocks: a task does it, and an Event that the API server does not accept is dropped. The log
//! contains all of it as well.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::debug;

use crate::cluster::{Cluster, NewEvent, Regarding};
use crate::agent::metrics::Metrics;
use crate::util::token_bucket::TokenBucket;

/// The reporting component, as a qualified name.
const REPORTER: &str = "numacast/agent";
/// How long the same note is not posted again.
const AGAIN: Duration = Duration::from_secs(600);
/// Burst of Events, all reasons together...
const BURST: f64 = 5.0;
/// ...and their rate per second: ten per hour.
const RATE: f64 = 10.0 / 3600.0;
/// Maximum number of Events that wait while one is posted.
const QUEUE: usize = 16;

/// Why an Event is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Another publisher keeps rewriting the object.
    RivalPublisher,
    /// Another writer's edit or leftover was overwritten.
    ObjectTakenOver,
    /// The object has the wrong owner.
    StaleOwner,
    /// The API server rejects the object.
    PublishRefused,
    /// The node cannot be read.
    NodeUnreadable,
    /// A restarted kubelet did not bring back what was there before.
    KubeletNotSettled,
    /// NUMA nodes have ids that the scheduler plugin cannot handle.
    NodesNotPublished,
    /// The kubelet's policies are unknown.
    PoliciesUnknown,
    /// The node's pods are unknown.
    PodsUnknown,
    /// The kubelet neither admits nor rejects a pod.
    PodNotAccounted,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 10] = [
        Self::RivalPublisher,
        Self::ObjectTakenOver,
        Self::StaleOwner,
        Self::PublishRefused,
        Self::NodeUnreadable,
        Self::KubeletNotSettled,
        Self::NodesNotPublished,
        Self::PoliciesUnknown,
        Self::PodsUnknown,
        Self::PodNotAccounted,
    ];

    /// Returns the Event's reason.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RivalPublisher => "RivalPublisher",
            Self::ObjectTakenOver => "ObjectTakenOver",
            Self::StaleOwner => "StaleOwner",
            Self::PublishRefused => "PublishRefused",
            Self::NodeUnreadable => "NodeUnreadable",
            Self::KubeletNotSettled => "KubeletNotSettled",
            Self::NodesNotPublished => "NodesNotPublished",
            Self::PoliciesUnknown => "PoliciesUnknown",
            Self::PodsUnknown => "PodsUnknown",
            Self::PodNotAccounted => "PodNotAccounted",
        }
    }

    /// Returns true if the Event is a `Warning`, false if it is `Normal`.
    #[must_use]
    pub const fn is_warning(self) -> bool {
        !matches!(self, Self::ObjectTakenOver)
    }

    /// Returns when it is posted, and what to do then. `docs/events.md` is generated from these.
    #[must_use]
    pub const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::RivalPublisher => (
                "Somebody wrote the object again after it was taken over",
                "Stop the other publisher (the note names its field manager). `publish.conflicts: overwrite` answers every \
                 rewrite instead, which costs both a write each time",
            ),
            Self::ObjectTakenOver => (
                "A person's edit, or what another publisher left, was written over",
                "Nothing, if the other publisher is gone. Edits do not last: change the configuration instead",
            ),
            Self::StaleOwner => (
                "For minutes the object has had an owner that it should not have: a Node with the UID of an earlier \
                 one, which garbage collection did not take away, or a Namespace that may not be removed",
                "Look whether garbage collection works (kube-controller-manager), or delete the object: it is made \
                 again at once, with the right owner",
            ),
            Self::PublishRefused => (
                "The API server has refused the object for more than a minute",
                "Read the note: mostly a missing right, a missing CRD (`numacast crd`) or one with another schema, or more zones than \
                 the chart's `admissionPolicy.maxZones`",
            ),
            Self::NodeUnreadable => (
                "The kubelet or the hardware could not be read for more than a minute; the object is getting old",
                "Read the note: mostly the kubelet is down, or its socket's directory is not mounted",
            ),
            Self::KubeletNotSettled => (
                "A kubelet started, and what pods were allocated before did not come back within half a minute; what it \
                 reports is published now",
                "Check whether device plugins and pods came back",
            ),
            Self::NodesNotPublished => (
                "NUMA nodes have ids above 63, with which the scheduler plugin would panic; they are in no zone",
                "Pods cannot be aligned on these nodes. If they have CPUs, report the machine",
            ),
            Self::PoliciesUnknown => (
                "The kubelet's configuration could not be read since the agent started. The object keeps the policies \
                 that it had before; if it had none, the scheduler plugin aligns nothing there",
                "Mount the kubelet's configuration file (`kubelet.config.file`), let the agent ask the kubelet \
                 (`kubelet.config.source: configz`), or give the policies by hand",
            ),
            Self::PodsUnknown => (
                "A minute after the agent started nobody has told which pods there are, so the object is held and the \
                 scheduler plugin places no pod there once its cache is full; with `publish.reserve` nothing is reserved",
                "Allow the agent to list and watch pods, or set `fingerprint.view: kubelet`",
            ),
            Self::PodNotAccounted => (
                "The kubelet has neither admitted nor rejected a pod for a minute; the fingerprint is not withheld for it any \
                 longer, nor anything reserved, and the scheduler may assign what it requests to another pod as well",
                "Look at the pod and the kubelet's log",
            ),
        }
    }
}

/// Handle for posting Events.
#[derive(Clone, Debug)]
pub(super) struct Notices(Option<mpsc::Sender<(Reason, String)>>);

impl Notices {
    /// Returns a handle that posts nothing.
    pub(super) fn nowhere() -> Self {
        Self(None)
    }

    /// Starts the task that posts; it ends when the last handle is dropped.
    pub(super) fn start(node: String, cluster: Cluster, metrics: Arc<Metrics>) -> Self {
        let (sender, mut receiver) = mpsc::channel::<(Reason, String)>(QUEUE);
        tokio::spawn(async move {
            let mut limiter = Limiter::new(Instant::now());
            while let Some((reason, note)) = receiver.recv().await {
                if !limiter.allows(reason, &note, Instant::now()) {
                    debug!("no event {}: too soon after another", reason.name());
                } else if let Err(error) = post(&node, &cluster, reason, &note).await {
                    debug!("no event {}: {error}", reason.name());
                } else {
                    metrics.event_posted(reason.name());
                }
            }
        });
        Self(Some(sender))
    }

    /// Posts an Event, unless the same was posted recently or the rate limit is reached. Never blocks.
    pub(super) fn post(&self, reason: Reason, note: String) {
        let full = self.0.as_ref().is_some_and(|sender| sender.try_send((reason, note)).is_err());
        if full {
            debug!("no event {}: too many wait", reason.name());
        }
    }
}

/// Posts one Event. The Node's UID is read each time: the Node may be recreated, and this is rare.
async fn post(
    node: &str,
    cluster: &Cluster,
    reason: Reason,
    note: &str,
) -> Result<(), crate::cluster::ClusterError> {
    let uid = cluster.node_uid(node).await?;
    let event = NewEvent {
        regarding: Regarding::Node { name: node, uid: &uid },
        reporter: REPORTER,
        instance: node,
        action: "Publish",
        warning: reason.is_warning(),
        reason: reason.name(),
        note,
    };
    cluster.create_event(event).await
}

/// Decides which Events are posted.
struct Limiter {
    told: BTreeMap<Reason, (String, Instant)>,
    bucket: TokenBucket,
}

impl Limiter {
    fn new(now: Instant) -> Self {
        Self { told: BTreeMap::new(), bucket: TokenBucket::new(RATE, BURST, now) }
    }

    fn allows(&mut self, reason: Reason, note: &str, now: Instant) -> bool {
        let known = |(words, at): &(String, Instant)| words == note && now.duration_since(*at) < AGAIN;
        if self.told.get(&reason).is_some_and(known) || !self.bucket.take_now(now) {
            return false;
        }
        self.told.insert(reason, (note.to_owned(), now));
        true
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::generated;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_sentence_is_told_again_after_ten_minutes_and_another_at_once() {
        let start = Instant::now();
        let mut limiter = Limiter::new(start);
        let mut tell = |reason, note, minutes| limiter.allows(reason, note, start + MINUTE * minutes);
        assert!(tell(Reason::RivalPublisher, "nfd", 0));
        assert!(!tell(Reason::RivalPublisher, "nfd", 9));
        assert!(tell(Reason::RivalPublisher, "rte", 9));
        assert!(tell(Reason::StaleOwner, "nfd", 9), "reasons do not share their time");
        assert!(!tell(Reason::StaleOwner, "nfd", 18));
        assert!(tell(Reason::StaleOwner, "nfd", 19));
    }

    #[test]
    fn all_reasons_together_share_a_bucket() {
        let start = Instant::now();
        let mut limiter = Limiter::new(start);
        let mut told = |minutes: u32| {
            let notes = (0..100).map(|n| format!("{minutes} {n}"));
            notes
                .filter(|note| limiter.allows(Reason::PublishRefused, note, start + MINUTE * minutes))
                .count()
        };
        assert_eq!(told(0), 5, "the burst");
        assert_eq!(told(5), 0);
        assert_eq!(told(7), 1, "one in six minutes");
        assert_eq!(told(600), 5, "never more than the burst at once");
    }

    #[tokio::test]
    async fn nobody_waits_for_the_task() {
        let (sender, _held) = mpsc::channel(1);
        let notices = Notices(Some(sender));
        for _ in 0..3 {
            notices.post(Reason::StaleOwner, "x".to_owned());
        }
        Notices::nowhere().post(Reason::StaleOwner, "x".to_owned());
    }

    #[test]
    fn the_document_lists_every_reason() {
        let mut table = "| reason | type | when | what to do |\n|---|---|---|---|\n".to_owned();
        for reason in Reason::ALL {
            let (when, what) = reason.words();
            let kind = if reason.is_warning() { "Warning" } else { "Normal" };
            writeln!(table, "| `{}` | {kind} | {when} | {what} |", reason.name()).unwrap();
        }
        generated::section("docs/events.md", "events", &table);
    }
}
