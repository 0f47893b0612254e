//! A pod in one line, as `kubectl get pods` prints it: `printPod` of Kubernetes 1.36, rule by rule.

use std::borrow::Cow;

use anyhow::anyhow;
use jiff::Timestamp;
use prost::Message;

use crate::core_v1::{SOURCE_ANNOTATIONS, text};
use crate::pod::{Pod, RawPod};
use crate::util::age::age;

/// The fields of a Pod that are printed; generated from `proto/core/row.proto`.
#[allow(missing_docs, clippy::all, unreachable_pub)] // generated code
mod proto {
    tonic::include_proto!("core/row");
}
use proto::{Container, ContainerState, ContainerStatus, PodCondition, PodSpec, PodStatus, Terminated, Time};

/// Go's zero time: the beginning of the year 1.
const ZERO_TIME: i64 = -62_135_596_800;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) ready: String,
    pub(super) status: String,
    pub(super) restarts: Restarts,
    pub(super) since: Option<Timestamp>,
    /// Whether it is a static pod, from a file or a URL, or the mirror pod of one.
    pub(super) is_static: bool,
    pub(super) uid: String,
    pub(super) addresses: String,
    pub(super) class: String,
    pub(super) conditions: String,
}

impl Row {
    /// Returns the row of a pod that was read with its message.
    pub(super) fn of(pod: &Pod) -> anyhow::Result<Self> {
        let decoded = match pod.raw.as_deref() {
            Some(RawPod::Protobuf(message) | RawPod::Outline(message, _)) => {
                proto::Pod::decode(message.clone()).map_err(|error| error.to_string())
            }
            Some(RawPod::Json(_)) | None => Err("its fields are missing".to_owned()),
        };
        let message = decoded
            .map_err(|reason| anyhow!("the pod {}/{} cannot be read: {reason}", pod.namespace, pod.name))?;
        let (metadata, spec, status) = (
            message.metadata.unwrap_or_default(),
            message.spec.unwrap_or_default(),
            message.status.unwrap_or_default(),
        );
        let is_deleted = metadata.deletion_timestamp.as_ref().and_then(time).is_some();
        let (ready, reason, restarts) = state(&spec, &status, is_deleted);
        let [source, mirror] = SOURCE_ANNOTATIONS.map(|key| metadata.annotations.get(key));
        Ok(Self {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            ready,
            status: reason,
            restarts,
            since: metadata.creation_timestamp.as_ref().and_then(time),
            is_static: source.is_some_and(|source| matches!(&source[..], b"file" | b"http"))
                || mirror.is_some(),
            uid: pod.uid.clone(),
            addresses: joined(status.pod_ips.iter().map(|address| text(&address.ip))),
            class: text(&status.qos_class).into_owned(),
            conditions: joined(status.conditions.iter().map(condition)),
        })
    }

    /// Returns the row without the columns of a wide table.
    pub(super) fn narrow(self) -> Self {
        Self { addresses: String::new(), class: String::new(), conditions: String::new(), ..self }
    }
}

fn joined<'a>(items: impl Iterator<Item = Cow<'a, str>>) -> String {
    items.collect::<Vec<_>>().join(",")
}

/// Returns the time; `None` for Go's zero time and for years beyond 9999.
fn time(time: &Time) -> Option<Timestamp> {
    let seconds = time.seconds.filter(|seconds| *seconds != ZERO_TIME)?;
    Timestamp::from_second(seconds).ok()
}

/// The number of container restarts, and the time of the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Restarts {
    count: i64,
    last: Option<Timestamp>,
}

impl Restarts {
    fn add(&mut self, container: &ContainerStatus) {
        self.count += i64::from(container.restart_count);
        let last = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
        let finished = last.and_then(|terminated| terminated.finished_at.as_ref());
        self.last = self.last.max(finished.and_then(time));
    }

    pub(super) fn print(self, now: Timestamp) -> String {
        match self.last {
            Some(last) if self.count != 0 => format!("{} ({} ago)", self.count, age(Some(last), now)),
            _ => self.count.to_string(),
        }
    }
}

/// Returns the columns READY, STATUS and RESTARTS.
fn state(spec: &PodSpec, status: &PodStatus, is_deleted: bool) -> (String, String, Restarts) {
    let init = &spec.init_containers;
    let is_sidecar = |container: &Container| container.restart_policy == "Always";
    let mut reason = text(if status.reason.is_empty() { &status.phase } else { &status.reason }).into_owned();
    let is_gated = |one: &PodCondition| one.kind == "PodScheduled" && one.reason == "SchedulingGated";
    if status.conditions.iter().any(is_gated) {
        reason = "SchedulingGated".to_owned();
    }
    let all = spec.containers.len() + init.iter().filter(|container| is_sidecar(container)).count();
    let (mut ready, mut restarts, mut of_sidecars) = (0, Restarts::default(), Restarts::default());
    let mut is_initializing = false;
    for (index, container) in status.init_container_statuses.iter().enumerate() {
        restarts.add(container);
        // If two containers have the same name, the last one counts.
        let is_sidecar = init.iter().rfind(|one| one.name == container.name).is_some_and(is_sidecar);
        if is_sidecar {
            of_sidecars.add(container);
        }
        let (waiting, terminated) = parts(container);
        if terminated.is_some_and(|terminated| terminated.exit_code == 0) {
            continue;
        }
        if is_sidecar && container.started {
            ready += usize::from(container.ready);
            continue;
        }
        is_initializing = true;
        reason = match (terminated, &*waiting) {
            (Some(terminated), _) => format!("Init:{}", end(terminated)),
            (None, "" | "PodInitializing") => format!("Init:{index}/{}", init.len()),
            (None, waiting) => format!("Init:{waiting}"),
        };
        break;
    }
    // The first condition of this type counts.
    let initialized = status.conditions.iter().find(|one| one.kind == "Initialized");
    if !is_initializing || initialized.is_some_and(|one| one.status == "True") {
        restarts = of_sidecars;
        let (mut runs, mut failure) = (false, None);
        for container in status.container_statuses.iter().rev() {
            restarts.add(container);
            match parts(container) {
                (waiting, _) if !waiting.is_empty() => reason = waiting.into_owned(),
                (_, Some(terminated)) => {
                    reason = end(terminated);
                    if terminated.exit_code != 0 {
                        failure = Some(reason.clone());
                    }
                }
                (_, None) => {
                    let is_running = container.state.as_ref().is_some_and(|state| state.running.is_some());
                    if container.ready && is_running {
                        runs = true;
                        ready += 1;
                    }
                }
            }
        }
        if reason == "Completed" {
            let is_ready = |one: &PodCondition| one.kind == "Ready" && one.status == "True";
            if runs && status.conditions.iter().any(is_ready) {
                reason = "Running".to_owned();
            } else if let Some(failure) = failure {
                reason = failure;
            } else if runs {
                reason = "NotReady".to_owned();
            }
        }
    }
    if is_deleted {
        if status.reason == "NodeLost" {
            reason = "Unknown".to_owned();
        } else if !matches!(&status.phase[..], b"Succeeded" | b"Failed") {
            reason = "Terminating".to_owned();
        }
    }
    (format!("{ready}/{all}"), reason, restarts)
}

/// Returns why a container waits, if it does, and how it terminated.
fn parts(container: &ContainerStatus) -> (Cow<'_, str>, Option<&Terminated>) {
    let Some(ContainerState { waiting, terminated, .. }) = &container.state else {
        return (Cow::Borrowed(""), None);
    };
    let waiting = waiting.as_ref().map_or(Cow::Borrowed(""), |waiting| text(&waiting.reason));
    (waiting, terminated.as_ref())
}

fn end(terminated: &Terminated) -> String {
    match (&*text(&terminated.reason), terminated.signal) {
        ("", 0) => format!("ExitCode:{}", terminated.exit_code),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

/// Formats a condition: the type if true, otherwise also the status and the reason.
fn condition(condition: &PodCondition) -> Cow<'_, str> {
    let [kind, status, reason] =
        [&condition.kind, &condition.status, &condition.reason].map(|part| text(part));
    match (&*status, &*reason) {
        ("True", _) => kind,
        (status, "") => Cow::Owned(format!("{kind}={status}")),
        (status, reason) => Cow::Owned(format!("{kind}={status}:{reason}")),
    }
}
