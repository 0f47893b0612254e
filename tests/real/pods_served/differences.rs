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
    /// The aspect as text, for the document; empty if the text of the row above includes it.
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
        what: "two more annotations, `kubernetes.io/config.seen` and `kubernetes.io/config.source`",
        why: "the kubelet adds them",
        ..ROW
    },
    Row {
        sources: KUBELETS,
        aspect: "field metadata resourceVersion",
        what: "`metadata.resourceVersion` and `metadata.managedFields` are old, or missing (static pods)",
        why: "the kubelet keeps the first ones",
        ..ROW
    },
    Row { sources: KUBELETS, aspect: "field metadata managedFields*", ..ROW },
    Row {
        sources: KUBELETS,
        pods: Pods::Static,
        aspect: "field metadata uid",
        what: "static pods have another `metadata.uid`",
        why: "the kubelet's is a hash of the file, not the mirror's",
        ..ROW
    },
    Row {
        sources: KUBELETS,
        pods: Pods::Static,
        aspect: "field metadata annotations kubernetes.io/config.mirror",
        what: "static pods have no annotation `kubernetes.io/config.mirror`, `creationTimestamp`, `generation`, \
               `ownerReferences`, `priority` and `preemptionPolicy`",
        why: "only mirrors have them",
        ..ROW
    },
    Row { sources: KUBELETS, pods: Pods::Static, aspect: "field metadata creationTimestamp", ..ROW },
    Row { sources: KUBELETS, pods: Pods::Static, aspect: "field metadata generation", ..ROW },
    Row { sources: KUBELETS, pods: Pods::Static, aspect: "field metadata ownerReferences*", ..ROW },
    Row { sources: KUBELETS, pods: Pods::Static, aspect: "field spec pr*", ..ROW },
    Row {
        sources: &[Source::Kubelet],
        scenarios: &["labels"],
        aspect: "watched old",
        what: "a watch has no event if only labels or annotations change",
        why: "the kubelet sends them with the next change of the pod's status; List has them at once",
        ..ROW
    },
    Row {
        sources: &[Source::Kubelet],
        aspect: "redundant",
        what: "a watch may have a deletion or state twice",
        why: "the kubelet may send it twice",
        sometimes: true,
        ..ROW
    },
    Row {
        sources: &[Source::PodsApi],
        pods: Pods::Ended,
        aspect: "too many",
        what: "an ended pod that is deleted is listed for up to another minute, also in `PodInfo`",
        why: "the kubelet sends no event for it; numacast lists all pods every minute while there are ended ones",
        sometimes: true,
        ..ROW
    },
    Row { sources: &[Source::PodsApi], pods: Pods::Ended, aspect: "info too many", sometimes: true, ..ROW },
    Row {
        sources: &[Source::PodsApi],
        pods: Pods::Ended,
        aspect: "field metadata deletion*",
        what: "an ended pod with a finalizer: `deletionTimestamp` and `deletionGracePeriodSeconds` may be old for a minute",
        why: "the kubelet sends `DELETED` before they are set, and nothing afterwards",
        sometimes: true,
        ..ROW
    },
    Row {
        sources: &[Source::PodsApi],
        scenarios: &["labels"],
        aspect: "field metadata labels*",
        what: "a change of only labels or annotations comes with the next change of the pod's state, or within three minutes",
        why: "the kubelet sends no event for it; numacast lists all pods every three minutes",
        ..ROW
    },
    Row {
        sources: &[Source::PodsApi],
        scenarios: &["labels"],
        aspect: "field metadata annotations example.com/new",
        ..ROW
    },
    Row {
        sources: &[Source::Kubelet],
        pods: Pods::Ended,
        aspect: "watched too few",
        what: "a watch has `DELETED` for a pod that is still listed",
        why: "the kubelet sends it when the pod has ended, and lists the pod until its object is deleted",
        ..ROW
    },
    Row {
        sources: &[Source::Kubelet],
        scenarios: &["start_up"],
        aspect: "responses",
        what: "before all pods are known, it returns some of them or none",
        why: "only later kubelets return `FailedPrecondition`, as numacast does",
        until: Some(36),
        ..ROW
    },
    Row {
        sources: OURS,
        scenarios: &["bad_requests"],
        aspect: "text",
        what: "invalid requests get the same code, but another text after `grpc: `",
        why: "each library has its own text",
        ..ROW
    },
    Row {
        sources: &[Source::ApiServer],
        scenarios: &["the_api_server_is_down"],
        pods: Pods::Static,
        aspect: "flicker",
        what: "after an outage of the API server of more than 30 s, a `PodInfo` watch may get `DELETED` and `ADDED` for a static \
               pod created meanwhile",
        why: "the API server lacks it until the kubelet creates its mirror",
        sometimes: true,
        ..ROW
    },
    Row {
        sources: OURS,
        scenarios: &["a_slow_watcher"],
        aspect: "cut",
        what: "a slow watch may end in the middle of an event, with the same code (`ResourceExhausted`) and a text of the \
               client's library, and with `Unavailable` if the client reads nothing for a minute",
        why: "unread events take memory",
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
    let mut table = String::from("| difference | of | reason |\n|---|---|---|\n");
    for row in DIFFERENCES.iter().filter(|row| !row.what.is_empty()) {
        let of = row.sources.iter().map(|source| match (source, row.until) {
            (Source::Kubelet, Some(minor)) => format!("kubelet up to 1.{minor}"),
            (Source::Kubelet, None) => "kubelet".to_owned(),
            (Source::PodsApi, _) => "`podsApi`".to_owned(),
            (Source::ApiServer, _) => "`apiServer`".to_owned(),
            (Source::Page, _) => "`kubelet`".to_owned(),
        });
        let of: Vec<_> = of.collect();
        table += &format!("| {} | {} | {} |\n", row.what, of.join(", "), row.why);
    }
    table
}
