//! The differences between the servers of pods, and the reasons for them. A row that is no longer needed
//! fails the test.

use super::world::Difference;

/// The source of a server's pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// The kubelet's own Pods API.
    Kubelet,
    /// numacast, with the kubelet's Pods API as its source.
    PodsApi,
    /// numacast, with a watch of the API server.
    ApiServer,
    /// numacast, with the kubelet's `/pods`: PodInfo only.
    Page,
}

impl Source {
    /// Returns numacast's settings; none for the kubelet itself.
    pub(super) fn settings(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Kubelet => None,
            Self::PodsApi => Some(&["podsApi.source=podsApi"]),
            // As on a kubelet without the Pods API.
            Self::ApiServer => Some(&["podsApi.source=auto", "kubelet.dir=/nowhere"]),
            Self::Page => Some(&["podsApi.source=kubelet", "scan.poll=1s"]),
        }
    }

    /// Returns the source's name in file names.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kubelet => "kubelet",
            Self::PodsApi => "pods-api",
            Self::ApiServer => "api-server",
            Self::Page => "page",
        }
    }

    /// Returns whether it serves `v1alpha1.Pods`.
    pub(super) fn serves_pods(self) -> bool {
        self != Self::Page
    }

    /// Returns whether static pods are those of the kubelet rather than the API server's mirror pods.
    pub(super) fn knows_static_pods(self) -> bool {
        matches!(self, Self::Kubelet | Self::PodsApi)
    }
}

/// A row of the table: where and when a server differs from the API server.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) sources: &'static [Source],
    /// The scenarios; empty for all.
    pub(super) scenarios: &'static [&'static str],
    /// Which pods it applies to.
    pub(super) pods: Pods,
    /// The aspect, or its prefix followed by `*`.
    pub(super) aspect: &'static str,
    /// The aspect as text, for the document.
    pub(super) what: &'static str,
    pub(super) why: &'static str,
    /// Whether it depends on a race: a run may not need it.
    pub(super) sometimes: bool,
    /// The last kubelet minor version (36 for 1.36) that needs it; `None`: the newest does too.
    pub(super) until: Option<u32>,
}

/// Defaults: any pod, any scenario, any kubelet.
const ROW: Row = Row {
    sources: &[],
    scenarios: &[],
    pods: Pods::Any,
    aspect: "",
    what: "",
    why: "",
    sometimes: false,
    until: None,
};

/// Which pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pods {
    Any,
    /// Static pods.
    Static,
    /// Pods that end and whose objects remain.
    Ended,
}

impl Row {
    /// Returns whether this kubelet version needs it.
    pub(super) fn is_of(&self, minor: u32) -> bool {
        self.until.is_none_or(|until| minor <= until)
    }

    fn excuses(&self, scenario: &str, source: Source, difference: &Difference) -> bool {
        let fits = match self.aspect.strip_suffix('*') {
            Some(start) => difference.aspect.starts_with(start),
            None => difference.aspect == self.aspect,
        };
        let pod = match self.pods {
            Pods::Any => true,
            Pods::Static => difference.pod.starts_with("default/static"),
            Pods::Ended => ENDED.contains(&&*difference.pod),
        };
        let when = self.scenarios.is_empty() || self.scenarios.contains(&scenario);
        fits && pod && when && self.sources.contains(&source)
    }
}

const OURS: &[Source] = &[Source::PodsApi, Source::ApiServer];

const ENDED: [&str; 5] =
    ["default/succeeded", "default/failed", "default/rejected", "default/ends", "default/kept"];

/// Sources that identify pods as the kubelet does.
const KUBELETS: &[Source] = &[Source::Kubelet, Source::PodsApi];

/// The table.
pub(super) const DIFFERENCES: &[Row] = &[
    Row {
        sources: KUBELETS,
        aspect: "field metadata annotations kubernetes.io/config.s*",
        what: "two more annotations: `kubernetes.io/config.seen`, `kubernetes.io/config.source`",
        why: "the kubelet adds `kubernetes.io/config.seen` and `kubernetes.io/config.source`",
        ..ROW
    },
    Row {
        sources: KUBELETS,
        aspect: "field metadata resourceVersion",
        what: "`metadata.resourceVersion` is old, or missing (static pods)",
        why: "the kubelet keeps the first one that it received (mirrors have one, static pods none)",
        ..ROW
    },
    Row {
        sources: KUBELETS,
        aspect: "field metadata managedFields*",
        what: "`metadata.managedFields` is old, or missing (static pods)",
        why: "as `resourceVersion`",
        ..ROW
    },
    Row {
        sources: KUBELETS,
        pods: Pods::Static,
        aspect: "field metadata uid",
        what: "static pods: `metadata.uid`",
        why: "the kubelet's UID of a static pod is a hash of its file; its mirror has one of the API server",
        ..ROW
    },
    Row {
        sources: KUBELETS,
        pods: Pods::Static,
        aspect: "field metadata annotations kubernetes.io/config.mirror",
        what: "static pods: no annotation `kubernetes.io/config.mirror`",
        why: "mirrors alone have it",
        ..ROW
    },
    Row {
        sources: KUBELETS,
        pods: Pods::Static,
        aspect: "field metadata creationTimestamp",
        what: "static pods: no `metadata.creationTimestamp`",
        why: "mirrors alone have it",
        ..ROW
    },
    Row {
        sources: KUBELETS,
        pods: Pods::Static,
        aspect: "field metadata generation",
        what: "static pods: no `metadata.generation`",
        why: "mirrors alone have it",
        ..ROW
    },
    Row {
        sources: KUBELETS,
        pods: Pods::Static,
        aspect: "field metadata ownerReferences*",
        what: "static pods: no `metadata.ownerReferences`",
        why: "mirrors alone have it: the Node",
        ..ROW
    },
    Row {
        sources: KUBELETS,
        pods: Pods::Static,
        aspect: "field spec pr*",
        what: "static pods: no `spec.priority` and `spec.preemptionPolicy`",
        why: "admission by the API server gives mirrors `priority` and `preemptionPolicy`",
        ..ROW
    },
    Row {
        sources: &[Source::Kubelet],
        scenarios: &["labels"],
        aspect: "watched old",
        what: "a watch has no event if only labels or annotations change",
        why: "the kubelet sends watchers changes of a pod's status, and with these its labels and annotations; List has them \
              at once",
        ..ROW
    },
    Row {
        sources: &[Source::Kubelet],
        aspect: "redundant",
        what: "a watch may have an event twice",
        why: "the kubelet may send a deletion or a state twice",
        sometimes: true,
        ..ROW
    },
    Row {
        sources: &[Source::PodsApi],
        pods: Pods::Ended,
        aspect: "too many",
        what: "an ended pod that is deleted is listed for up to another minute",
        why: "the kubelet sends no event when the object of an ended pod is deleted; numacast lists all pods every minute \
              while there are such pods",
        sometimes: true,
        ..ROW
    },
    Row {
        sources: &[Source::PodsApi],
        pods: Pods::Ended,
        aspect: "info too many",
        what: "the same in `PodInfo`",
        why: "as in its List",
        sometimes: true,
        ..ROW
    },
    Row {
        sources: &[Source::PodsApi],
        pods: Pods::Ended,
        aspect: "field metadata deletion*",
        what: "an ended pod that a finalizer keeps: `metadata.deletionTimestamp` and `deletionGracePeriodSeconds` may be old for a minute",
        why: "the kubelet sends `DELETED` before the API server sets these, and nothing afterwards",
        sometimes: true,
        ..ROW
    },
    Row {
        sources: &[Source::PodsApi],
        scenarios: &["labels"],
        aspect: "field metadata labels*",
        what: "a change of only labels comes with the next change of the pod's state, or within three minutes",
        why: "numacast is a watcher of the kubelet itself; it lists all pods every three minutes",
        ..ROW
    },
    Row {
        sources: &[Source::PodsApi],
        scenarios: &["labels"],
        aspect: "field metadata annotations example.com/new",
        what: "the same for annotations",
        why: "as labels",
        ..ROW
    },
    Row {
        sources: &[Source::Kubelet],
        pods: Pods::Ended,
        aspect: "watched too few",
        what: "a watch has `DELETED` for an ended pod, and the pod is listed until its object is deleted",
        why: "the kubelet sends `DELETED` when a pod has ended, although its object exists and is in its List",
        ..ROW
    },
    Row {
        sources: &[Source::Kubelet],
        scenarios: &["start_up"],
        aspect: "responses",
        what: "before all pods are known there is a response, with some of them or none",
        why: "1.36 does not wait for the API server's pods; 1.37 returns `FailedPrecondition`, as numacast does",
        until: Some(36),
        ..ROW
    },
    Row {
        sources: OURS,
        scenarios: &["bad_requests"],
        aspect: "text",
        what: "another text, after the same code and `grpc: `, for an invalid request",
        why: "each library has its own text",
        ..ROW
    },
    Row {
        sources: &[Source::ApiServer],
        scenarios: &["the_api_server_is_down"],
        pods: Pods::Static,
        aspect: "flicker",
        what: "a static pod that was created while the API server was unreachable for more than 30 s: when it is back, a `PodInfo` \
               watch may get `DELETED` and then `ADDED` for it",
        why: "during the outage the pod is read from the kubelet's `/pods`; the API server does not have it until the kubelet \
              creates its mirror pod",
        sometimes: true,
        ..ROW
    },
    Row {
        sources: OURS,
        scenarios: &["a_slow_watcher"],
        aspect: "cut",
        what: "a slow watch may be ended in the middle of an event, with the same code, `ResourceExhausted`, and a text of the \
               client's library; one that reads nothing for a minute is disconnected, `Unavailable`",
        why: "unread events take memory; the kubelet keeps them until the client reads",
        sometimes: true,
        ..ROW
    },
];

/// Returns the index of the row that excuses a difference with this kubelet version.
pub(super) fn excuse(minor: u32, scenario: &str, source: Source, difference: &Difference) -> Option<usize> {
    DIFFERENCES.iter().position(|row| row.is_of(minor) && row.excuses(scenario, source, difference))
}

/// Returns the table in Markdown.
pub(super) fn table() -> String {
    let mut table = String::from(
        "| difference | kubelet | numacast, `podsApi` | numacast, `apiServer` | reason |\n|---|---|---|---|---|\n",
    );
    for row in DIFFERENCES {
        let differs = |source| match row.until {
            _ if !row.sources.contains(&source) => String::new(),
            Some(minor) => format!("differs with 1.{minor}"),
            None => "differs".to_owned(),
        };
        let [kubelet, pods_api, api_server] =
            [Source::Kubelet, Source::PodsApi, Source::ApiServer].map(differs);
        table += &format!("| {} | {kubelet} | {pods_api} | {api_server} | {} |\n", row.what, row.why);
    }
    table
}
