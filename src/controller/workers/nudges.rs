//! Nudges while pods are pending because the scheduler plugin rejected them. [`Nudger`] decides when.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt;
use tokio::time::{Instant, sleep_until};
use tracing::debug;

use super::Workers;
use crate::cluster::{ClusterError, ListWatchEvent, ListWatchStream, NrtMeta, SlimPod};
use crate::controller::nudge::Nudger;
use crate::util::backoff::back_off;
use crate::util::log_throttle::LogOnce;

const RETRY: Duration = Duration::from_secs(1);
const RETRY_LIMIT: Duration = Duration::from_secs(60);
/// Minimum interval between two starts of the watch of objects, in case pods are pending only briefly.
const WATCH_SPACING: Duration = Duration::from_secs(1);
const PODS_RECOVERED: &str = "pods without a node can be watched again";
const OBJECTS_RECOVERED: &str = "the objects can be watched again";

/// The state of pending pods and of objects during a term.
struct Nudging<'a> {
    workers: &'a Workers<'a>,
    nudger: Nudger,
    /// The origin of the nudger's time.
    started: Instant,
    /// Namespace and name of each.
    pending: BTreeSet<(String, String)>,
    changes: Option<ListWatchStream<NrtMeta>>,
    /// When the watch of objects was last started.
    watched: Option<Instant>,
    /// Whether objects were listed since.
    listed: bool,
    object: Option<String>,
    /// Its resource version after the last nudge.
    nudged: String,
    failures: u32,
    not_before: Instant,
    pods_log: LogOnce,
    objects_log: LogOnce,
    nudges_log: LogOnce,
}

impl Workers<'_> {
    pub(super) async fn nudge(&self) {
        let Some(plan) = self.settings.nudge else { return };
        let now = Instant::now();
        let mut nudging = Nudging {
            workers: self,
            nudger: Nudger::new(plan),
            started: now,
            pending: BTreeSet::new(),
            changes: None,
            watched: None,
            listed: false,
            object: None,
            nudged: String::new(),
            failures: 0,
            not_before: now,
            pods_log: LogOnce::default(),
            objects_log: LogOnce::default(),
            nudges_log: LogOnce::default(),
        };
        nudging.run().await;
    }
}

impl Nudging<'_> {
    async fn run(&mut self) {
        let mut pods = self.workers.cluster.unscheduled_pods();
        loop {
            self.watch_objects_while_pending();
            let due = self.due();
            tokio::select! {
                Some(event) = pods.next() => self.apply_pods(event),
                Some(event) = next(&mut self.changes) => self.apply_objects(event),
                () = sleep_until(due.unwrap_or(self.started)), if due.is_some() => self.nudge().await,
            }
        }
    }

    /// Returns when to nudge; `None` if no object is known.
    fn due(&self) -> Option<Instant> {
        let due = self.nudger.due().filter(|_| self.object.is_some())?;
        Some((self.started + due).max(self.not_before))
    }

    /// The watch reports every change of every object, so it runs only while needed.
    fn watch_objects_while_pending(&mut self) {
        if self.pending.is_empty() {
            self.changes = None;
        } else if self.changes.is_none() {
            let now = Instant::now();
            let not_before = self.watched.map_or(now, |last| now.max(last + WATCH_SPACING));
            self.changes = Some(self.workers.cluster.changed_topologies(not_before));
            (self.watched, self.listed) = (Some(not_before), false);
        }
    }

    fn apply_pods(&mut self, event: Result<ListWatchEvent<SlimPod>, ClusterError>) {
        match event {
            Ok(ListWatchEvent::Listed(pods)) => {
                self.pods_log.recovered(PODS_RECOVERED);
                let listed: BTreeSet<_> = pods.into_iter().map(|pod| (pod.namespace, pod.name)).collect();
                // Drop pods that are gone first, so that new ones count even if their number is the same.
                self.pending.retain(|name| listed.contains(name));
                self.update_count();
                self.pending = listed;
            }
            Ok(ListWatchEvent::Applied(pod)) if pod.rejected => {
                self.pending.insert((pod.namespace, pod.name));
            }
            Ok(ListWatchEvent::Applied(pod) | ListWatchEvent::Deleted(pod)) => {
                self.pending.remove(&(pod.namespace, pod.name));
            }
            Ok(ListWatchEvent::Resumed) => return self.pods_log.recovered(PODS_RECOVERED),
            Err(error) => {
                self.workers.metrics.request_failed(&error);
                let message = "rejected pods are unknown, and there are no nudges for new ones";
                return self.pods_log.warn(&format!("{message}: {error}"));
            }
        }
        self.update_count();
    }

    fn update_count(&mut self) {
        let pods = self.pending.len();
        self.nudger.set_pending(pods, self.started.elapsed());
        self.workers.metrics.rejected_pods.set(Some(pods as u64));
    }

    fn apply_objects(&mut self, event: Result<ListWatchEvent<NrtMeta>, ClusterError>) {
        match event {
            Ok(ListWatchEvent::Listed(first)) => {
                self.objects_log.recovered(OBJECTS_RECOVERED);
                self.object = first.into_iter().next().map(|object| object.name);
                // Changes since the last list may have been missed.
                if self.listed {
                    self.nudger.changed(self.started.elapsed());
                }
                self.listed = true;
            }
            Ok(ListWatchEvent::Applied(object)) if object.version == self.nudged => {}
            Ok(ListWatchEvent::Applied(object)) => {
                self.object.get_or_insert(object.name);
                self.nudger.changed(self.started.elapsed());
            }
            Ok(ListWatchEvent::Deleted(object)) if self.object.as_ref() == Some(&object.name) => {
                self.choose_another_object();
            }
            Ok(ListWatchEvent::Deleted(_)) => {}
            Ok(ListWatchEvent::Resumed) => self.objects_log.recovered(OBJECTS_RECOVERED),
            Err(error) => {
                self.workers.metrics.request_failed(&error);
                self.objects_log.warn(&format!("the objects cannot be watched for nudges: {error}"));
            }
        }
    }

    /// Restarts the watch, whose initial list returns an object.
    fn choose_another_object(&mut self) {
        (self.object, self.changes) = (None, None);
    }

    async fn nudge(&mut self) {
        let Some(name) = self.object.clone() else { return };
        match self.workers.cluster.nudge(&name, &now()).await {
            Ok(version) => {
                debug!("nudged {name}: {} pods are pending because of the plugin", self.pending.len());
                self.nudges_log.recovered("objects can be nudged again");
                self.workers.metrics.nudges.inc();
                (self.nudged, self.failures) = (version, 0);
                self.nudger.nudged(self.started.elapsed());
            }
            Err(error) => {
                let operation = if error.affects_every_call() { "request" } else { "nudge" };
                self.workers.metrics.errors.with([operation, error.kind()]).inc();
                if error.is_not_found() {
                    self.choose_another_object();
                } else {
                    self.nudges_log.warn(&format!("rejected pods may be pending for longer: {error}"));
                }
                self.not_before = Instant::now() + back_off(&mut self.failures, RETRY, RETRY_LIMIT);
            }
        }
    }
}

/// Returns the next event; waits forever without a watch.
async fn next<T>(watch: &mut Option<ListWatchStream<T>>) -> Option<Result<ListWatchEvent<T>, ClusterError>> {
    match watch {
        Some(events) => events.next().await,
        None => std::future::pending().await,
    }
}

#[allow(clippy::disallowed_methods, reason = "the annotation carries the wall clock's time")]
fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::{Value, json};
    use tokio::time::timeout;

    use super::*;
    use crate::controller::fake::{self, Parts};

    /// When objects were patched, in milliseconds; their names and the status codes.
    type Patches = Arc<Mutex<Vec<(u128, String, u16)>>>;

    /// Returns a cluster with a pending pod. `first` returns the object listed at a time since the start,
    /// `patch` the status code of a patch by name; the watch of objects reports each nudge.
    fn cluster(
        first: impl Fn(Duration) -> &'static str + Send + Sync + 'static,
        patch: impl Fn(&str) -> u16 + Send + Sync + 'static,
    ) -> (Parts, Patches) {
        let (start, patches) = (Instant::now(), Patches::default());
        let recorded = Arc::clone(&patches);
        let respond = move |call: &str| -> (u16, Value) {
            let version = recorded.lock().unwrap().iter().filter(|(.., code)| *code == 200).count() + 1;
            let pods = call.contains("/pods");
            let metadata =
                json!({"name": "db", "namespace": "default", "resourceVersion": version.to_string()});
            if let Some((_, path)) = call.split_once("PATCH ") {
                let name = path.rsplit('/').next().unwrap().split('?').next().unwrap().to_owned();
                let code = patch(&name);
                recorded.lock().unwrap().push((start.elapsed().as_millis(), name, code));
                let metadata = json!({"name": "a", "resourceVersion": (version + 1).to_string()});
                return (code, if code == 200 { json!({"metadata": metadata}) } else { status(code) });
            }
            if call.contains("watch=") {
                let bookmark = json!({"type": "BOOKMARK", "object": {"kind": "Pod", "apiVersion": "v1", "metadata":
                    {"resourceVersion": version.to_string(), "annotations": {}}}});
                let nudged = json!({"type": "MODIFIED", "object": {"metadata": metadata}});
                return (200, if pods || version == 1 { bookmark } else { nudged });
            }
            let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                                   "message": "0/1 nodes are available: 1 cannot align pod."});
            let item = match pods {
                true => json!({"metadata": metadata, "status": {"conditions": [condition]}}),
                false => json!({"metadata": {"name": first(start.elapsed()), "resourceVersion": "1"}}),
            };
            (200, json!({"metadata": {"resourceVersion": version.to_string()}, "items": [item]}))
        };
        let parts = Parts::new(fake::cluster(move |call| std::future::ready(respond(&call))));
        (parts, patches)
    }

    fn status(code: u16) -> Value {
        let reason = if code == 404 { "NotFound" } else { "InternalError" };
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "reason": reason, "code": code})
    }

    async fn nudge_during(parts: &Parts, time: Duration) {
        let _ = timeout(time, parts.workers().nudge()).await;
    }

    fn times(patches: &Patches) -> Vec<u128> {
        // Timers may be up to a millisecond late.
        patches.lock().unwrap().iter().map(|(at, ..)| at / 10 * 10).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn nudges_follow_the_plan_and_are_no_changes() {
        let (parts, patches) = cluster(|_| "a", |_| 200);
        nudge_during(&parts, Duration::from_secs(80)).await;
        assert_eq!(times(&patches), [1040, 2600, 5200, 10_400, 70_400]);
    }

    #[tokio::test(start_paused = true)]
    async fn failed_nudges_are_retried_with_a_backoff() {
        let (parts, patches) = cluster(|_| "a", |_| 500);
        nudge_during(&parts, Duration::from_secs(600)).await;
        let count = patches.lock().unwrap().len();
        assert!((10..20).contains(&count), "{count} in ten minutes");
        let errors = |operation| parts.metrics.errors.with([operation, "server_error"]).get();
        assert_eq!((errors("nudge"), errors("request")), (count as u64, 0), "they may be about the object");
    }

    #[tokio::test(start_paused = true)]
    async fn if_an_object_is_gone_another_one_is_nudged() {
        let first = |passed: Duration| if passed < Duration::from_secs(1) { "a" } else { "b" };
        let (parts, patches) = cluster(first, |name| if name == "a" { 404 } else { 200 });
        nudge_during(&parts, Duration::from_secs(8)).await;
        let names: Vec<String> = patches.lock().unwrap().iter().map(|(_, name, _)| name.clone()).collect();
        assert_eq!(names[..2], ["a", "b"], "{names:?}");
        assert_eq!(names.iter().filter(|name| *name == "a").count(), 1);
    }
}
