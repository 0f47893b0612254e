use jiff::Timestamp;
use serde::Deserialize;

use super::{Cluster, ClusterError};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SchedulerPod {
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    container_statuses: Option<Vec<Container>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Container {
    state: State,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct State {
    running: Option<Running>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Running {
    started_at: Option<Timestamp>,
}

impl SchedulerPod {
    /// Returns when the oldest of its running containers started: nothing identifies the scheduler's
    /// container.
    fn started(&self) -> Option<Timestamp> {
        let containers = self.status.container_statuses.iter().flatten();
        containers.filter_map(|container| container.state.running.as_ref()?.started_at).min()
    }
}

impl Cluster {
    /// Returns when the oldest running container of the pods with these labels started; `None` if none runs.
    pub async fn scheduler_started(
        &self,
        namespace: &str,
        labels: &str,
    ) -> Result<Option<Timestamp>, ClusterError> {
        let mut started: Vec<Timestamp> = Vec::new();
        let pages = self.labelled_pods::<SchedulerPod>(namespace, labels);
        pages.for_each(|pod| started.extend(pod.started())).await?;
        Ok(started.into_iter().min())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn started(containers: Value) -> Option<String> {
        let pod = json!({"metadata": {"name": "a"}, "status": {"containerStatuses": containers}});
        let pod: SchedulerPod = serde_json::from_value(pod).unwrap();
        pod.started().map(|started| started.to_string())
    }

    fn running(since: &str) -> Value {
        json!({"name": "c", "state": {"running": {"startedAt": since}}})
    }

    #[test]
    fn a_pod_runs_since_its_oldest_running_container_started() {
        let (first, second) = ("2026-11-23T07:00:00Z", "2026-11-23T08:00:00Z");
        assert_eq!(started(json!([running(second), running(first)])).as_deref(), Some(first));
        let waiting = json!({"name": "d", "state": {"waiting": {"reason": "CrashLoopBackOff"}}});
        assert_eq!(started(json!([waiting, running(second)])).as_deref(), Some(second));
        assert_eq!(started(json!([waiting])), None);
        assert_eq!(started(Value::Null), None);
    }
}
