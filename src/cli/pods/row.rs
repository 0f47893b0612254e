//! A pod in one line, as `kubectl get pods` prints it: `printPod` of Kubernetes 1.36, rule by rule.

use jiff::Timestamp;
use serde_json::Value;

/// The printed columns of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Row {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) ready: String,
    pub(super) status: String,
    pub(super) restarts: Restarts,
    /// When it was created.
    pub(super) since: Option<Timestamp>,
    /// Whether it is a static pod, from a file or a URL, or the mirror pod of one.
    pub(super) is_static: bool,
    pub(super) uid: String,
    pub(super) addresses: String,
    pub(super) class: String,
    pub(super) conditions: String,
}

/// Annotations of static pods and mirror pods.
const SOURCE: &str = "kubernetes.io/config.source";
const MIRROR: &str = "kubernetes.io/config.mirror";

impl Row {
    pub(super) fn of(pod: &Value) -> Self {
        let metadata = &pod["metadata"];
        let annotations = &metadata["annotations"];
        let (ready, status, restarts) = standing(pod);
        Self {
            namespace: text(&metadata["namespace"]).to_owned(),
            name: text(&metadata["name"]).to_owned(),
            ready,
            status,
            restarts,
            since: time(&metadata["creationTimestamp"]),
            is_static: matches!(text(&annotations[SOURCE]), "file" | "http")
                || !annotations[MIRROR].is_null(),
            uid: text(&metadata["uid"]).to_owned(),
            addresses: addresses(&pod["status"]),
            class: text(&pod["status"]["qosClass"]).to_owned(),
            conditions: conditions(&pod["status"]),
        }
    }

    /// Returns the row without the columns of a wide table.
    pub(super) fn narrow(self) -> Self {
        Self { addresses: String::new(), class: String::new(), conditions: String::new(), ..self }
    }
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or_default()
}

fn is_true(value: &Value) -> bool {
    value.as_bool() == Some(true)
}

fn time(value: &Value) -> Option<Timestamp> {
    text(value).parse().ok()
}

fn has_condition(status: &Value, kind: &str) -> bool {
    items(&status["conditions"])
        .iter()
        .any(|one| text(&one["type"]) == kind && text(&one["status"]) == "True")
}

/// The number of container restarts, and the time of the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Restarts {
    count: i64,
    last: Option<Timestamp>,
}

impl Restarts {
    fn add(&mut self, container: &Value) {
        self.count += number(&container["restartCount"]);
        self.last = self.last.max(time(&container["lastState"]["terminated"]["finishedAt"]));
    }

    pub(super) fn print(self, now: Timestamp) -> String {
        match self.last {
            Some(last) if self.count != 0 => format!("{} ({} ago)", self.count, age(Some(last), now)),
            _ => self.count.to_string(),
        }
    }
}

/// Returns the columns READY, STATUS and RESTARTS.
fn standing(pod: &Value) -> (String, String, Restarts) {
    let (spec, status) = (&pod["spec"], &pod["status"]);
    let init = items(&spec["initContainers"]);
    let stays = |container: &Value| text(&container["restartPolicy"]) == "Always";
    let phase = text(&status["phase"]);
    let mut reason = match text(&status["reason"]) {
        "" => phase.to_owned(),
        reason => reason.to_owned(),
    };
    let gated =
        |one: &Value| text(&one["type"]) == "PodScheduled" && text(&one["reason"]) == "SchedulingGated";
    if items(&status["conditions"]).iter().any(gated) {
        reason = "SchedulingGated".to_owned();
    }
    let all = items(&spec["containers"]).len() + init.iter().filter(|container| stays(container)).count();
    let (mut ready, mut restarts, mut of_sidecars) = (0, Restarts::default(), Restarts::default());
    let mut initializing = false;
    for (index, container) in items(&status["initContainerStatuses"]).iter().enumerate() {
        restarts.add(container);
        // If two containers have the same name, the last one counts.
        let is_sidecar = init.iter().rfind(|one| one["name"] == container["name"]).is_some_and(stays);
        if is_sidecar {
            of_sidecars.add(container);
        }
        let (ended, waiting) = (&container["state"]["terminated"], &container["state"]["waiting"]);
        if !ended.is_null() && number(&ended["exitCode"]) == 0 {
            continue;
        }
        if is_sidecar && is_true(&container["started"]) {
            ready += usize::from(is_true(&container["ready"]));
            continue;
        }
        initializing = true;
        reason = match (ended.is_null(), text(&waiting["reason"])) {
            (false, _) => format!("Init:{}", end(ended)),
            (true, "" | "PodInitializing") => format!("Init:{index}/{}", init.len()),
            (true, waiting) => format!("Init:{waiting}"),
        };
        break;
    }
    if !initializing || is_initialized(status) {
        restarts = of_sidecars;
        let (mut runs, mut failure) = (false, None);
        for container in items(&status["containerStatuses"]).iter().rev() {
            restarts.add(container);
            let state = &container["state"];
            match (text(&state["waiting"]["reason"]), &state["terminated"]) {
                ("", Value::Null) => {
                    if is_true(&container["ready"]) && !state["running"].is_null() {
                        runs = true;
                        ready += 1;
                    }
                }
                ("", ended) => {
                    reason = end(ended);
                    if number(&ended["exitCode"]) != 0 {
                        failure = Some(reason.clone());
                    }
                }
                (waiting, _) => reason = waiting.to_owned(),
            }
        }
        if reason == "Completed" {
            if runs && has_condition(status, "Ready") {
                reason = "Running".to_owned();
            } else if let Some(failure) = failure {
                reason = failure;
            } else if runs {
                reason = "NotReady".to_owned();
            }
        }
    }
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        if text(&status["reason"]) == "NodeLost" {
            reason = "Unknown".to_owned();
        } else if !matches!(phase, "Succeeded" | "Failed") {
            reason = "Terminating".to_owned();
        }
    }
    (format!("{ready}/{all}"), reason, restarts)
}

/// Returns true if the first condition of type Initialized is true.
fn is_initialized(status: &Value) -> bool {
    let first = items(&status["conditions"]).iter().find(|one| text(&one["type"]) == "Initialized");
    first.is_some_and(|one| text(&one["status"]) == "True")
}

/// Returns why a container terminated.
fn end(ended: &Value) -> String {
    match (text(&ended["reason"]), number(&ended["signal"])) {
        ("", 0) => format!("ExitCode:{}", number(&ended["exitCode"])),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

fn addresses(status: &Value) -> String {
    let all: Vec<&str> = items(&status["podIPs"]).iter().map(|one| text(&one["ip"])).collect();
    all.join(",")
}

/// Formats the conditions: the type if true, otherwise also the status and the reason.
fn conditions(status: &Value) -> String {
    let print = |one: &Value| match (text(&one["status"]), text(&one["reason"])) {
        ("True", _) => text(&one["type"]).to_owned(),
        (status, "") => format!("{}={status}", text(&one["type"])),
        (status, reason) => format!("{}={status}:{reason}", text(&one["type"])),
    };
    let all: Vec<String> = items(&status["conditions"]).iter().map(print).collect();
    all.join(",")
}

/// Formats the time since `then` as kubectl does (`duration.HumanDuration`).
pub(super) fn age(then: Option<Timestamp>, now: Timestamp) -> String {
    /// The longest duration that Go can represent, in seconds.
    const LONGEST: i64 = i64::MAX / 1_000_000_000;
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let Some(then) = then else { return "<unknown>".to_owned() };
    let seconds = now.duration_since(then).as_secs().min(LONGEST);
    // The second unit is omitted if it is zero.
    let two = |unit: i64, name: char, per: i64, small: char| match (seconds % unit) / per {
        0 => format!("{}{name}", seconds / unit),
        rest => format!("{}{name}{rest}{small}", seconds / unit),
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        _ if seconds < 10 * MINUTE => two(MINUTE, 'm', 1, 's'),
        _ if seconds < 3 * HOUR => format!("{}m", seconds / MINUTE),
        _ if seconds < 8 * HOUR => two(HOUR, 'h', MINUTE, 'm'),
        _ if seconds < 2 * DAY => format!("{}h", seconds / HOUR),
        _ if seconds < 8 * DAY => two(DAY, 'd', HOUR, 'h'),
        _ if seconds < 2 * YEAR => format!("{}d", seconds / DAY),
        _ if seconds < 8 * YEAR => two(YEAR, 'y', DAY, 'd'),
        _ => format!("{}y", seconds / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_told_in_one_or_two_units() {
        let now: Timestamp = "2026-11-22T03:00:00Z".parse().unwrap();
        for (seconds, expected) in [
            (-7200, "<invalid>"),
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (599, "9m59s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (11_000, "3h3m"),
            (28_800, "8h"),
            (172_799, "47h"),
            (172_800, "2d"),
            (176_400, "2d1h"),
            (691_200, "8d"),
            (63_071_999, "729d"),
            (63_072_000, "2y"),
            (63_158_400, "2y1d"),
            (252_288_000, "8y"),
            (40_000_000_000, "292y"),
        ] {
            let then = Timestamp::from_second(now.as_second() - seconds).unwrap();
            assert_eq!(age(Some(then), now), expected, "{seconds}");
        }
        assert_eq!(age(None, now), "<unknown>");
    }
}
