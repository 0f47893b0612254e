//! Names and descriptions of the controller's metrics.

use crate::telemetry::metrics::Doc;
pub(super) use crate::telemetry::metrics::{BUILD, EVENTS};
use crate::telemetry::metrics::{CPU_SECONDS, MAX_FDS, OPEN_FDS, RESIDENT, START_TIME, VIRTUAL};

pub(super) const LEADER: Doc = Doc {
    name: "numacast_controller_leader",
    kind: "gauge",
    labels: &[],
    help: "1 for the replica that leads. What is counted of the fleet is missing in the others",
};

pub(super) const ERRORS: Doc = Doc {
    name: "numacast_controller_errors_total",
    kind: "counter",
    labels: &[(
        "kind",
        "of error, such as `unreachable`, `deadline`, `forbidden` or `no_crd`; `watch`: of a watch",
    )],
    help: "Calls to the API server that failed; the log has the sentence",
};

pub(super) const DELETED: Doc = Doc {
    name: "numacast_garbage_deleted_total",
    kind: "counter",
    labels: &[],
    help: "Objects of Nodes that are gone which were deleted",
};

pub(super) const DELETE_ERRORS: Doc = Doc {
    name: "numacast_garbage_delete_errors_total",
    kind: "counter",
    labels: &[("kind", "of error; `conflict`: somebody wrote the object just then")],
    help: "Deletions that failed; they are tried again",
};

pub(super) const HELD_BACK: Doc = Doc {
    name: "numacast_garbage_held_back",
    kind: "gauge",
    labels: &[],
    help: "1 while nothing is deleted because the list of Nodes is unknown or looks wrong",
};

pub(super) const ORPHANS: Doc = Doc {
    name: "numacast_garbage_objects",
    kind: "gauge",
    labels: &[],
    help: "Objects without a Node in the last pass, those within `controller.garbage.grace` among them",
};

pub(super) const GARBAGE_TIME: Doc = Doc {
    name: "numacast_garbage_last_pass_timestamp_seconds",
    kind: "gauge",
    labels: &[],
    help: "When all objects were last looked at for garbage, by the wall clock; 0 before",
};

pub(super) const REJECTED: Doc = Doc {
    name: "numacast_rejected_pods",
    kind: "gauge",
    labels: &[],
    help: "Pods that are pending because the scheduler plugin (NodeResourceTopologyMatch) rejected nodes for them. Missing \
           with `controller.nudge: off`",
};

pub(super) const NUDGES: Doc = Doc {
    name: "numacast_nudges_total",
    kind: "counter",
    labels: &[],
    help: "Nudges: updates of one object, so that the scheduler tries these pods again",
};

pub(super) const NUDGE_ERRORS: Doc = Doc {
    name: "numacast_nudge_errors_total",
    kind: "counter",
    labels: &[("kind", "of error, such as `forbidden`")],
    help: "Nudges that failed; they are tried again",
};

pub(super) const NODES: Doc = Doc {
    name: "numacast_fleet_nodes",
    kind: "gauge",
    labels: &[
        (
            "policy",
            "the Topology Manager's: `none`, `best-effort`, `restricted`, `single-numa-node`, `other` or `unknown`",
        ),
        ("scope", "`container`, `pod`, `other` or `unknown`"),
    ],
    help: "Objects by the policies that they say",
};

pub(super) const OBJECTS: Doc =
    Doc { name: "numacast_fleet_objects", kind: "gauge", labels: &[], help: "Objects" };

const RESOURCE: &[(&str, &str)] = &[(
    "resource",
    "such as `cpu` or `memory`; at most 128, those of Kubernetes itself first; at most 64 others of one object",
)];

pub(super) const CAPACITY: Doc = Doc {
    name: "numacast_fleet_capacity",
    kind: "gauge",
    labels: RESOURCE,
    help: "What the zones of all objects have: CPUs, bytes or devices; a device in several zones counts in each",
};

pub(super) const ALLOCATABLE: Doc = Doc {
    name: "numacast_fleet_allocatable",
    kind: "gauge",
    labels: RESOURCE,
    help: "What of it kubelets may hand out",
};

pub(super) const AVAILABLE: Doc = Doc {
    name: "numacast_fleet_available",
    kind: "gauge",
    labels: RESOURCE,
    help: "What of that nobody holds",
};

pub(super) const DAEMON_SET: Doc = Doc {
    name: "numacast_fleet_daemonset",
    kind: "gauge",
    labels: &[],
    help: "1 if the agents' DaemonSet is there, else 0: then nobody looks for silent agents. Missing without `controller.daemonSet`",
};

pub(super) const COVERED: Doc = Doc {
    name: "numacast_fleet_covered_nodes",
    kind: "gauge",
    labels: &[],
    help: "Nodes that should have an agent by the DaemonSet's node selector, affinity and tolerations",
};

pub(super) const AGENTS: Doc = Doc {
    name: "numacast_fleet_ready_agents",
    kind: "gauge",
    labels: &[],
    help: "Covered Nodes with a Ready agent",
};

pub(super) const SILENT: Doc = Doc {
    name: "numacast_fleet_silent_nodes",
    kind: "gauge",
    labels: &[],
    help: "Covered, Ready Nodes without a Ready agent for at least `controller.silent.after`",
};

pub(super) const MISSING: Doc = Doc {
    name: "numacast_fleet_missing_objects",
    kind: "gauge",
    labels: &[],
    help: "Covered, Ready Nodes with a Ready agent and without an object",
};

pub(super) const FOREIGN: Doc = Doc {
    name: "numacast_fleet_foreign_objects",
    kind: "gauge",
    labels: &[],
    help: "Objects whose zones somebody else wrote, by `managedFields`",
};

pub(super) const NEWER: Doc = Doc {
    name: "numacast_fleet_objects_newer_than_scheduler",
    kind: "gauge",
    labels: &[],
    help: "Objects that were created after the scheduler started: its plugin ignores them until the scheduler is restarted. \
           Missing without `controller.scheduler`, and while none of its pods runs",
};

pub(super) const FLEET_TIME: Doc = Doc {
    name: "numacast_fleet_last_pass_timestamp_seconds",
    kind: "gauge",
    labels: &[],
    help: "When all objects were last added up, by the wall clock; 0 before",
};

/// All metric families of the controller.
pub const DOCS: &[&Doc] = &[
    &BUILD,
    &LEADER,
    &ERRORS,
    &EVENTS,
    &ORPHANS,
    &DELETED,
    &DELETE_ERRORS,
    &HELD_BACK,
    &GARBAGE_TIME,
    &REJECTED,
    &NUDGES,
    &NUDGE_ERRORS,
    &NODES,
    &OBJECTS,
    &CAPACITY,
    &ALLOCATABLE,
    &AVAILABLE,
    &DAEMON_SET,
    &COVERED,
    &AGENTS,
    &SILENT,
    &MISSING,
    &FOREIGN,
    &NEWER,
    &FLEET_TIME,
    &CPU_SECONDS,
    &RESIDENT,
    &VIRTUAL,
    &OPEN_FDS,
    &MAX_FDS,
    &START_TIME,
];
