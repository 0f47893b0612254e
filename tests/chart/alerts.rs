//! Test cases of each alert: series for which it fires, and similar ones for which it does not.

use std::collections::BTreeMap;

/// A test case of one alert: series with a value per minute, in the notation of `promtool test rules`. `{A}`
/// stands for an agent's target labels, `{C}` and `{D}` for those of two controller replicas; `{A, kind="x"}`
/// adds a label.
pub(crate) struct Case {
    pub(crate) alert: &'static str,
    /// A minute in which the alert fires.
    pub(crate) at: u32,
    /// An earlier minute in which it does not fire yet.
    pub(crate) not_at: Option<u32>,
    pub(crate) fires: &'static [(&'static str, &'static str)],
    /// Series for which it does not fire in minute `at`.
    pub(crate) quiet: &'static [(&'static str, &'static str)],
    /// The target whose labels the alert has.
    pub(crate) of: Of,
    /// Additional labels.
    pub(crate) more: &'static [(&'static str, &'static str)],
}

/// The target whose labels an alert has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Of {
    Agent,
    AllAgents,
    Controller,
    AllControllers,
}

const AGENT: [(&str, &str); 5] = [
    ("job", "numacast-agent"),
    ("namespace", "numa"),
    ("instance", "10.0.0.1:9742"),
    ("pod", "numacast-agent-x"),
    ("node", "worker-1"),
];
const CONTROLLER: [(&str, &str); 5] = [
    ("job", "numacast-controller"),
    ("namespace", "numa"),
    ("instance", "10.0.0.2:9742"),
    ("pod", "numacast-controller-c"),
    ("node", "worker-2"),
];
const OTHER: [(&str, &str); 5] = [
    ("job", "numacast-controller"),
    ("namespace", "numa"),
    ("instance", "10.0.0.3:9742"),
    ("pod", "numacast-controller-d"),
    ("node", "worker-3"),
];

impl Case {
    /// Returns a series with its target's labels filled in.
    pub(crate) fn with_targets(&self, series: &str) -> String {
        let written = |labels: &[(&str, &str)]| -> String {
            labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect::<Vec<_>>().join(", ")
        };
        let full = [("{A", AGENT), ("{C", CONTROLLER), ("{D", OTHER)];
        let found = full.into_iter().find(|(mark, _)| series.contains(mark));
        found.map_or(series.to_owned(), |(mark, labels)| {
            series.replace(mark, &format!("{{{}", written(&labels)))
        })
    }

    /// Returns the alert's labels except its severity.
    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        let own = match self.of {
            Of::Agent => &AGENT[..],
            Of::AllAgents => &AGENT[..2],
            Of::Controller => &CONTROLLER[..],
            Of::AllControllers => &CONTROLLER[..2],
        };
        own.iter().chain(self.more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }
}

const LEADS: (&str, &str) = ("numacast_controller_leader{C}", "1x100");
const OTHER_FOLLOWS: (&str, &str) = ("numacast_controller_leader{D}", "0x100");
const FOLLOWS: (&str, &str) = ("numacast_controller_leader{C}", "0x100");

pub(crate) const CASES: &[Case] = &[
    Case {
        alert: "NumacastAgentDown",
        at: 11,
        not_at: Some(9),
        fires: &[("up{A}", "0x20")],
        quiet: &[("up{A}", "0x5 1x20")],
        of: Of::Agent,
        more: &[],
    },
    Case {
        alert: "NumacastAgentsAbsent",
        at: 16,
        not_at: Some(14),
        fires: &[("up{C}", "1x20")],
        quiet: &[("up{A}", "0x20")],
        of: Of::AllAgents,
        more: &[],
    },
    Case {
        alert: "NumacastNodeUnreadable",
        at: 4,
        not_at: Some(2),
        // The node was never read; time starts at 0.
        fires: &[("numacast_last_scan_timestamp_seconds{A}", "0x10")],
        // It is read every five seconds, and once it was not for a while.
        quiet: &[("numacast_last_scan_timestamp_seconds{A}", "0x2 180+60x10")],
        of: Of::Agent,
        more: &[],
    },
    Case {
        alert: "NumacastPublishErrors",
        at: 12,
        not_at: Some(7),
        fires: &[
            (r#"numacast_publish_errors_total{A, kind="forbidden"}"#, "0+1x30"),
            (r#"numacast_publish_errors_total{A, kind="deadline"}"#, "5x30"),
        ],
        // The API server restarts.
        quiet: &[(r#"numacast_publish_errors_total{A, kind="unreachable"}"#, "0x10 1 2 3x20")],
        of: Of::Agent,
        more: &[],
    },
    Case {
        alert: "NumacastObjectStale",
        at: 32,
        not_at: Some(25),
        // Nothing was published since the start at 0.
        fires: &[("numacast_last_publish_timestamp_seconds{A}", "0x60")],
        // Refreshes every ten minutes.
        quiet: &[("numacast_last_publish_timestamp_seconds{A}", "0x9 600x9 1200x9 1800x9 2400x9")],
        of: Of::Agent,
        more: &[],
    },
    Case {
        alert: "NumacastForeignWrites",
        at: 60,
        not_at: None,
        fires: &[(r#"numacast_foreign_writes_total{A, writer="koordlet"}"#, "0x20 1x20 2x30")],
        // A single takeover, and edits by people.
        quiet: &[
            (r#"numacast_foreign_writes_total{A, writer="koordlet"}"#, "0x30 1x40"),
            (r#"numacast_foreign_writes_total{A, writer="user"}"#, "0+1x70"),
        ],
        of: Of::Agent,
        more: &[("writer", "koordlet")],
    },
    Case {
        alert: "NumacastSlowWrites",
        at: 30,
        not_at: Some(10),
        fires: &[
            (r#"numacast_publish_duration_seconds_bucket{A, le="0.5"}"#, "0x40"),
            (r#"numacast_publish_duration_seconds_bucket{A, le="1.0"}"#, "0+9x40"),
            (r#"numacast_publish_duration_seconds_bucket{A, le="+Inf"}"#, "0+9x40"),
        ],
        quiet: &[
            (r#"numacast_publish_duration_seconds_bucket{A, le="0.15"}"#, "0x40"),
            (r#"numacast_publish_duration_seconds_bucket{A, le="0.5"}"#, "0+200x40"),
            (r#"numacast_publish_duration_seconds_bucket{A, le="1.0"}"#, "0+201x40"),
            (r#"numacast_publish_duration_seconds_bucket{A, le="+Inf"}"#, "0+201x40"),
        ],
        of: Of::AllAgents,
        more: &[],
    },
    Case {
        alert: "NumacastFindings",
        at: 16,
        not_at: Some(14),
        fires: &[
            (r#"numacast_findings{A, kind="unknown_cpus"}"#, "2x20"),
            (r#"numacast_findings{A, kind="overused_memory"}"#, "0x20"),
        ],
        quiet: &[
            (r#"numacast_findings{A, kind="unknown_cpus"}"#, "1x10 0 1x10"),
            (r#"numacast_findings{A, kind="unreadable"}"#, "1x20"),
        ],
        of: Of::Agent,
        more: &[("kind", "unknown_cpus")],
    },
    Case {
        alert: "NumacastInventoryErrors",
        at: 16,
        not_at: Some(14),
        fires: &[(r#"numacast_findings{A, kind="unreadable"}"#, "1x20")],
        quiet: &[
            (r#"numacast_findings{A, kind="unreadable"}"#, "1x10 0x10"),
            (r#"numacast_findings{A, kind="unknown_cpus"}"#, "1x20"),
        ],
        of: Of::Agent,
        more: &[("kind", "unreadable")],
    },
    Case {
        alert: "NumacastFingerprintWithheld",
        at: 20,
        not_at: Some(16),
        fires: &[("numacast_fingerprint_withheld{A}", "0x7 1x20")],
        // Pods that arrive one after another.
        quiet: &[("numacast_fingerprint_withheld{A}", "1 1 0 1 1 1 0 1 1 1 1 0 1 1 1 1 0 1 1 1 1 1")],
        of: Of::Agent,
        more: &[],
    },
    Case {
        alert: "NumacastPodAdmissionTimeouts",
        at: 30,
        not_at: Some(5),
        fires: &[("numacast_pod_admission_timeouts_total{A}", "3x10 4x40")],
        quiet: &[("numacast_pod_admission_timeouts_total{A}", "3x50")],
        of: Of::Agent,
        more: &[],
    },
    Case {
        alert: "NumacastPodSourceDown",
        at: 11,
        not_at: Some(9),
        fires: &[(r#"numacast_pod_source_up{A, component="agent", source="api_server"}"#, "0x20")],
        quiet: &[
            (r#"numacast_pod_source_up{A, component="agent", source="api_server"}"#, "0x8 1 0x10"),
            // A source of the Pods API.
            (r#"numacast_pod_source_up{A, component="pods_api", source="kubelet"}"#, "0x20"),
        ],
        of: Of::Agent,
        more: &[("component", "agent"), ("source", "api_server")],
    },
    Case {
        alert: "NumacastAgentRestarts",
        at: 50,
        not_at: Some(20),
        fires: &[("process_start_time_seconds{A}", "1000x9 1600x9 2200x9 2800x9 3400x30")],
        // A rollout, and one more restart.
        quiet: &[("process_start_time_seconds{A}", "1000x9 1600x9 2200x50")],
        of: Of::Agent,
        more: &[],
    },
    Case {
        alert: "NumacastPodsApiNoSource",
        at: 11,
        not_at: Some(9),
        fires: &[
            (r#"numacast_pod_source_up{A, component="pods_api", source="api_server"}"#, "0x20"),
            // Serves PodInfo only.
            (r#"numacast_pod_source_up{A, component="pods_api", source="kubelet"}"#, "1x20"),
        ],
        // Another source is up.
        quiet: &[
            (r#"numacast_pod_source_up{A, component="pods_api", source="pods_api"}"#, "0x20"),
            (r#"numacast_pod_source_up{A, component="pods_api", source="api_server"}"#, "1x20"),
        ],
        of: Of::Agent,
        more: &[],
    },
    // The only source.
    Case {
        alert: "NumacastPodsApiNoSource",
        at: 11,
        not_at: Some(9),
        fires: &[(r#"numacast_pod_source_up{A, component="pods_api", source="kubelet"}"#, "0x20")],
        // Another source is up.
        quiet: &[
            (r#"numacast_pod_source_up{A, component="pods_api", source="kubelet"}"#, "0x20"),
            (r#"numacast_pod_source_up{A, component="pods_api", source="api_server"}"#, "1x20"),
        ],
        of: Of::Agent,
        more: &[],
    },
    Case {
        alert: "NumacastPodsApiSlowClients",
        at: 21,
        not_at: Some(4),
        fires: &[("numacast_pod_watch_events_dropped_total{A}", "0+1x30")],
        quiet: &[("numacast_pod_watch_events_dropped_total{A}", "0x10 3x20")],
        of: Of::Agent,
        more: &[],
    },
    Case {
        alert: "NumacastProxyAnnotationsUnavailable",
        at: 11,
        not_at: Some(9),
        fires: &[("numacast_proxy_annotations_unavailable{A}", "1x20")],
        // The API server is down for a while.
        quiet: &[("numacast_proxy_annotations_unavailable{A}", "1x8 0 1x8 0x10")],
        of: Of::Agent,
        more: &[],
    },
    Case {
        alert: "NumacastProxyUnknownPods",
        at: 11,
        not_at: Some(9),
        fires: &[("numacast_proxy_unknown_pods{A}", "1x20")],
        // New pods, each known shortly afterwards.
        quiet: &[("numacast_proxy_unknown_pods{A}", "1 0 2 0 1x6 0 1x8")],
        of: Of::Agent,
        more: &[],
    },
    Case {
        alert: "NumacastProxyLargeResponses",
        at: 16,
        not_at: Some(13),
        fires: &[("numacast_proxy_list_bytes{A}", "3670016x9 3670017x20")],
        quiet: &[("numacast_proxy_list_bytes{A}", "3670016x30")],
        of: Of::Agent,
        more: &[],
    },
    Case {
        alert: "NumacastProxyAnnotationErrors",
        at: 31,
        not_at: Some(29),
        fires: &[
            (r#"numacast_proxy_annotation_errors{A, kind="unknown_id"}"#, "1x40"),
            (r#"numacast_proxy_annotation_errors{A, kind="no_id"}"#, "0x40"),
        ],
        quiet: &[(r#"numacast_proxy_annotation_errors{A, kind="unknown_id"}"#, "3x20 0 1x20")],
        of: Of::Agent,
        more: &[("kind", "unknown_id")],
    },
    // A quarter of all requests fail, of two clients and methods.
    Case {
        alert: "NumacastProxyErrors",
        at: 20,
        not_at: Some(10),
        fires: &[
            (
                r#"numacast_proxy_requests_total{A, method="List", version="v1", code="OK", client="dcgm-exporter"}"#,
                "0+6x40",
            ),
            (
                r#"numacast_proxy_requests_total{A, method="Get", version="v1", code="Unavailable", client="kata"}"#,
                "0+1x40",
            ),
            (
                r#"numacast_proxy_requests_total{A, method="List", version="v1", code="Unknown", client="other"}"#,
                "0+1x40",
            ),
        ],
        // A constant tenth of errors, and a kubelet that is down for five minutes.
        quiet: &[
            (
                r#"numacast_proxy_requests_total{A, method="List", version="v1", code="OK", client="multus"}"#,
                "0+9x8 72x5 72+9x40",
            ),
            (
                r#"numacast_proxy_requests_total{A, method="List", version="v1", code="Unavailable", client="multus"}"#,
                "0+1x8 8+10x5 58+1x40",
            ),
        ],
        of: Of::Agent,
        more: &[],
    },
    // The quiet series has no requests.
    Case {
        alert: "NumacastProxyErrors",
        at: 20,
        not_at: None,
        fires: &[(
            r#"numacast_proxy_requests_total{A, method="List", version="v1", code="Internal", client="other"}"#,
            "0+1x40",
        )],
        quiet: &[(
            r#"numacast_proxy_requests_total{A, method="List", version="v1", code="Internal", client="other"}"#,
            "7x40",
        )],
        of: Of::Agent,
        more: &[],
    },
    Case {
        alert: "NumacastControllerDown",
        at: 11,
        not_at: Some(9),
        fires: &[("up{C}", "0x20"), ("up{D}", "1x20")],
        quiet: &[("up{C}", "1x20"), ("up{A}", "0x20")],
        of: Of::Controller,
        more: &[],
    },
    Case {
        alert: "NumacastControllerAbsent",
        at: 16,
        not_at: Some(14),
        fires: &[("up{A}", "1x20")],
        quiet: &[("up{C}", "0x20")],
        of: Of::AllControllers,
        more: &[],
    },
    Case {
        alert: "NumacastControllerNoLeader",
        at: 6,
        not_at: Some(4),
        fires: &[("numacast_controller_leader{C}", "0x10"), ("numacast_controller_leader{D}", "0x10")],
        // Leadership moves to the other replica.
        quiet: &[
            ("numacast_controller_leader{C}", "1x2 0x10"),
            ("numacast_controller_leader{D}", "0x3 1x10"),
        ],
        of: Of::AllControllers,
        more: &[],
    },
    Case {
        alert: "NumacastControllerErrors",
        at: 16,
        not_at: Some(12),
        fires: &[(r#"numacast_controller_errors_total{C, operation="nudge", kind="forbidden"}"#, "0+1x40")],
        quiet: &[
            (
                r#"numacast_controller_errors_total{C, operation="request", kind="unreachable"}"#,
                "0x3 1x4 2x4 3x4 4x4",
            ),
            // Has an alert of its own.
            (r#"numacast_controller_errors_total{C, operation="delete", kind="forbidden"}"#, "0+1x40"),
        ],
        of: Of::Controller,
        more: &[],
    },
    Case {
        alert: "NumacastControllerRestarts",
        at: 50,
        not_at: Some(20),
        fires: &[("process_start_time_seconds{C}", "1000x9 1600x9 2200x9 2800x9 3400x30")],
        quiet: &[("process_start_time_seconds{C}", "1000x9 1600x9 2200x50")],
        of: Of::Controller,
        more: &[],
    },
    Case {
        alert: "NumacastGarbageHeldBack",
        at: 16,
        not_at: Some(14),
        fires: &[("numacast_garbage_held_back{C}", "1x20"), LEADS],
        // An outdated value of a former leader.
        quiet: &[
            ("numacast_garbage_held_back{C}", "0x20"),
            LEADS,
            ("numacast_garbage_held_back{D}", "1x20"),
            OTHER_FOLLOWS,
        ],
        of: Of::Controller,
        more: &[],
    },
    Case {
        alert: "NumacastGarbageNotCollected",
        at: 80,
        not_at: Some(70),
        fires: &[(r#"numacast_controller_last_pass_timestamp_seconds{C, pass="garbage"}"#, "0x100"), LEADS],
        quiet: &[
            (r#"numacast_controller_last_pass_timestamp_seconds{C, pass="garbage"}"#, "0+60x100"),
            LEADS,
        ],
        of: Of::Controller,
        more: &[],
    },
    Case {
        alert: "NumacastGarbageNotCollected",
        at: 80,
        not_at: Some(10),
        fires: &[(r#"numacast_controller_errors_total{C, operation="delete", kind="forbidden"}"#, "0+1x100")],
        quiet: &[(r#"numacast_controller_last_pass_timestamp_seconds{C, pass="garbage"}"#, "0x100"), FOLLOWS],
        of: Of::Controller,
        more: &[],
    },
    Case {
        alert: "NumacastNoDaemonSet",
        at: 11,
        not_at: Some(9),
        fires: &[("numacast_fleet_daemonset{C}", "0x20"), LEADS],
        // Also an outdated value of a former leader.
        quiet: &[
            ("numacast_fleet_daemonset{C}", "0x8 1 0x20"),
            LEADS,
            ("numacast_fleet_daemonset{D}", "0x20"),
            OTHER_FOLLOWS,
        ],
        of: Of::Controller,
        more: &[],
    },
    // All agents are gone, and with them the metric of nodes without one.
    Case {
        alert: "NumacastAgentsNotReady",
        at: 40,
        not_at: Some(9),
        fires: &[
            ("numacast_fleet_nodes_without_ready_agent{C}", "2x15 _x30"),
            ("numacast_fleet_daemonset{C}", "1x15 0x30"),
            LEADS,
        ],
        quiet: &[
            ("numacast_fleet_nodes_without_ready_agent{C}", "2x15 _x30"),
            ("numacast_fleet_daemonset{C}", "1x45"),
            LEADS,
        ],
        of: Of::Controller,
        more: &[],
    },
    Case {
        alert: "NumacastAgentsNotReady",
        at: 11,
        not_at: Some(9),
        fires: &[("numacast_fleet_nodes_without_ready_agent{C}", "2x20"), LEADS],
        // Also an outdated value of a former leader.
        quiet: &[
            ("numacast_fleet_nodes_without_ready_agent{C}", "2x5 0x20"),
            LEADS,
            ("numacast_fleet_nodes_without_ready_agent{D}", "2x20"),
            OTHER_FOLLOWS,
        ],
        of: Of::Controller,
        more: &[],
    },
    Case {
        alert: "NumacastManyAgentsNotReady",
        at: 11,
        not_at: Some(9),
        fires: &[
            ("numacast_fleet_nodes_without_ready_agent{C}", "5x20"),
            ("numacast_fleet_covered_nodes{C}", "40x20"),
            LEADS,
        ],
        quiet: &[
            ("numacast_fleet_nodes_without_ready_agent{C}", "4x20"),
            ("numacast_fleet_covered_nodes{C}", "40x20"),
            LEADS,
            ("numacast_fleet_nodes_without_ready_agent{D}", "5x20"),
            ("numacast_fleet_covered_nodes{D}", "40x20"),
            OTHER_FOLLOWS,
        ],
        of: Of::Controller,
        more: &[],
    },
    // A small cluster, where one node is more than a tenth.
    Case {
        alert: "NumacastManyAgentsNotReady",
        at: 11,
        not_at: None,
        fires: &[
            ("numacast_fleet_nodes_without_ready_agent{C}", "2x20"),
            ("numacast_fleet_covered_nodes{C}", "3x20"),
            LEADS,
        ],
        quiet: &[
            ("numacast_fleet_nodes_without_ready_agent{C}", "1x20"),
            ("numacast_fleet_covered_nodes{C}", "3x20"),
            LEADS,
        ],
        of: Of::Controller,
        more: &[],
    },
    Case {
        alert: "NumacastMissingObjects",
        at: 16,
        not_at: Some(14),
        fires: &[("numacast_fleet_missing_objects{C}", "1x20"), LEADS],
        // New nodes, and an outdated value of a former leader.
        quiet: &[
            ("numacast_fleet_missing_objects{C}", "3x10 0 2x10"),
            LEADS,
            ("numacast_fleet_missing_objects{D}", "1x20"),
            OTHER_FOLLOWS,
        ],
        of: Of::Controller,
        more: &[],
    },
    Case {
        alert: "NumacastObjectsNewerThanScheduler",
        at: 11,
        not_at: Some(9),
        fires: &[("numacast_fleet_objects_newer_than_scheduler{C}", "1x20"), LEADS],
        // The scheduler was restarted. Also an outdated value of a former leader.
        quiet: &[
            ("numacast_fleet_objects_newer_than_scheduler{C}", "3x8 0 2x10"),
            LEADS,
            ("numacast_fleet_objects_newer_than_scheduler{D}", "1x20"),
            OTHER_FOLLOWS,
        ],
        of: Of::Controller,
        more: &[],
    },
    Case {
        alert: "NumacastForeignObjects",
        at: 61,
        not_at: Some(59),
        fires: &[("numacast_fleet_foreign_objects{C}", "1x70"), LEADS],
        // Also an outdated value of a former leader.
        quiet: &[
            ("numacast_fleet_foreign_objects{C}", "9x30 0x40"),
            LEADS,
            ("numacast_fleet_foreign_objects{D}", "1x70"),
            OTHER_FOLLOWS,
        ],
        of: Of::Controller,
        more: &[],
    },
    Case {
        alert: "NumacastFragmented",
        at: 16,
        not_at: Some(14),
        fires: &[
            (r#"numacast_fleet_shape_pods{C, shape="large", placement="aligned"}"#, "0x20"),
            (r#"numacast_fleet_shape_pods{C, shape="large", placement="any"}"#, "3x20"),
            // Another shape fits.
            (r#"numacast_fleet_shape_pods{C, shape="small", placement="aligned"}"#, "1x20"),
            (r#"numacast_fleet_shape_pods{C, shape="small", placement="any"}"#, "2x20"),
            LEADS,
        ],
        // One fits meanwhile, and nothing is free for another shape. Also outdated values of a former leader.
        quiet: &[
            (r#"numacast_fleet_shape_pods{C, shape="large", placement="aligned"}"#, "0x10 1 0x10"),
            (r#"numacast_fleet_shape_pods{C, shape="large", placement="any"}"#, "3x20"),
            (r#"numacast_fleet_shape_pods{C, shape="small", placement="aligned"}"#, "0x20"),
            (r#"numacast_fleet_shape_pods{C, shape="small", placement="any"}"#, "0x20"),
            LEADS,
            (r#"numacast_fleet_shape_pods{D, shape="large", placement="aligned"}"#, "0x20"),
            (r#"numacast_fleet_shape_pods{D, shape="large", placement="any"}"#, "3x20"),
            OTHER_FOLLOWS,
        ],
        of: Of::Controller,
        more: &[("shape", "large")],
    },
    Case {
        alert: "NumacastFleetMetricsStale",
        at: 25,
        not_at: Some(20),
        fires: &[(r#"numacast_controller_last_pass_timestamp_seconds{C, pass="fleet"}"#, "0x40"), LEADS],
        quiet: &[(r#"numacast_controller_last_pass_timestamp_seconds{C, pass="fleet"}"#, "0x40"), FOLLOWS],
        of: Of::Controller,
        more: &[("pass", "fleet")],
    },
];
