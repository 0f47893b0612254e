//! The kubelet's podresources socket.

use std::path::Path;

use super::facts::{KubeletError, NodeFacts, is_denied};
use crate::inspect::{Check, Finding, Mend, Severity, shell_word};
use crate::kubelet::ClientError;

const NO_ZONES: &str = "Without the kubelet's responses, zones are not published or stay as they are.";

static SOCKET_MISSING: Check = Check {
    name: "SocketMissing",
    severity: Severity::Error,
    looks_for: "the kubelet's podresources socket does not exist",
    why: NO_ZONES,
};
static SOCKET_INVALID: Check = Check {
    name: "SocketInvalid",
    severity: Severity::Error,
    looks_for: "the path of the podresources socket is no socket, or not the kubelet's",
    why: NO_ZONES,
};
static SOCKET_DENIED: Check = Check {
    name: "SocketDenied",
    severity: Severity::Error,
    looks_for: "this process may not connect to the podresources socket",
    why: NO_ZONES,
};
static KUBELET_DOWN: Check = Check {
    name: "KubeletDown",
    severity: Severity::Error,
    looks_for: "no process listens on the podresources socket",
    why: NO_ZONES,
};
static KUBELET_SILENT: Check = Check {
    name: "KubeletSilent",
    severity: Severity::Error,
    looks_for: "the kubelet does not respond in time",
    why: NO_ZONES,
};
static KUBELET_TOO_OLD: Check = Check {
    name: "KubeletTooOld",
    severity: Severity::Error,
    looks_for: "the kubelet does not serve GetAllocatableResources",
    why: NO_ZONES,
};
static KUBELET_OVERLOADED: Check = Check {
    name: "KubeletOverloaded",
    severity: Severity::Warning,
    looks_for: "the clients of the podresources socket exceed the kubelet's rate limit",
    why: "Zones are published late.",
};
static KUBELET_ERROR: Check = Check {
    name: "KubeletError",
    severity: Severity::Error,
    looks_for: "the kubelet responds with another error",
    why: NO_ZONES,
};

pub(super) const CHECKS: &[&Check] = &[
    &SOCKET_MISSING,
    &SOCKET_INVALID,
    &SOCKET_DENIED,
    &KUBELET_DOWN,
    &KUBELET_SILENT,
    &KUBELET_TOO_OLD,
    &KUBELET_OVERLOADED,
    &KUBELET_ERROR,
];

const RESTART: &str = "systemctl restart kubelet";

pub(super) fn check(facts: &NodeFacts) -> Vec<Finding> {
    // Usually both calls fail for the same reason.
    let error = facts.list_error.as_ref().or_else(|| facts.allocatable.as_ref().err());
    error.map(|error| finding(facts, error)).into_iter().collect()
}

fn finding(facts: &NodeFacts, error: &KubeletError) -> Finding {
    let (check, mend) = match error {
        KubeletError::Client(error) => explain(facts, error),
        KubeletError::Text(_) => (&KUBELET_ERROR, run("journalctl --unit kubelet --lines 50")),
    };
    facts.finding(check, error.to_string(), mend)
}

fn run(command: &str) -> Mend {
    Mend::Run(command.to_owned())
}

fn explain(facts: &NodeFacts, error: &ClientError) -> (&'static Check, Mend) {
    match error {
        ClientError::NoSocket(_) => (&SOCKET_MISSING, find_socket(facts)),
        ClientError::Refused(_) => (&KUBELET_DOWN, run(RESTART)),
        ClientError::Connect { reason, .. } if is_denied(reason) => (
            &SOCKET_DENIED,
            Mend::Do("Run numacast as root: only root may connect to the socket.".to_owned()),
        ),
        ClientError::Connect { .. } | ClientError::NotGrpc { .. } => (&SOCKET_INVALID, replace_socket(facts)),
        ClientError::Silent { .. } | ClientError::Deadline { .. } => (&KUBELET_SILENT, run(RESTART)),
        ClientError::Unsupported { .. } => {
            (&KUBELET_TOO_OLD, Mend::Do("Upgrade the kubelet to 1.23 or later.".to_owned()))
        }
        ClientError::RateLimited(_) => {
            let mend = "Let the other clients use the socket of numacast's proxy (`proxy.enabled: true`).";
            (&KUBELET_OVERLOADED, Mend::Do(mend.to_owned()))
        }
        ClientError::TooLarge { .. } | ClientError::Lost { .. } | ClientError::Status { .. } => {
            (&KUBELET_ERROR, run("journalctl --unit kubelet --lines 50"))
        }
    }
}

/// Removes only what is in the kubelet's way.
fn replace_socket(facts: &NodeFacts) -> Mend {
    let socket = &facts.paths.socket;
    match socket.ends_with("pod-resources/kubelet.sock") {
        true => Mend::Run(format!("rm {} && {RESTART}", shell_word(&socket.to_string_lossy()))),
        false => Mend::Do("Set `kubelet.socket` to the kubelet's podresources socket.".to_owned()),
    }
}

fn find_socket(facts: &NodeFacts) -> Mend {
    let is_other = |dir: &&Path| **dir != *facts.paths.kubelet_dir;
    match facts.root_dir.as_deref().filter(is_other) {
        Some(dir) => Mend::Do(format!("Set `kubelet.dir: {}`, the kubelet's --root-dir.", dir.display())),
        None => run("systemctl start kubelet"),
    }
}
