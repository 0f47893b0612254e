//! Observations from outside, with timestamps: renames of the kubelet's checkpoints, versions of objects.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{AsyncBufReadExt, StreamExt};
use inotify::{Inotify, WatchMask};
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::support::RealNode;
use crate::zones::Zones;

/// A change is complete when neither a checkpoint nor the object changed for this long.
pub(crate) const QUIET: Duration = Duration::from_millis(400);
/// Timeout: nothing here takes this long unless it is broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const NRT_PATH: &str = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies";

/// Name of the object that the benchmark itself writes, to measure a write without an agent.
const FLOOR: &str = "floor";

/// One version of an object from the watch. Parsing is deferred, so that `at` is the time of arrival.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    pub(crate) at: Instant,
    line: String,
}

type Versions = Arc<Mutex<Vec<Version>>>;

pub(crate) struct Events {
    /// The last rename of a checkpoint.
    last_file: Arc<Mutex<Option<Instant>>>,
    /// For each admission of a pod with exclusive resources, the last rename of a checkpoint.
    admitted: mpsc::UnboundedReceiver<Instant>,
    objects: Versions,
    floors: Versions,
    client: Client,
    node: String,
    floor_writes: u32,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Version {
    pub(crate) fn zones(&self) -> Result<Zones> {
        let event: Value = serde_json::from_str(&self.line)?;
        Zones::of(&event["object"])
    }
}

impl Events {
    pub(crate) fn watch(node: &RealNode) -> Result<Self> {
        let (objects, floors) = (Versions::default(), Versions::default());
        let last_file = Arc::<Mutex<Option<Instant>>>::default();
        let (sender, admitted) = mpsc::unbounded_channel();
        watch_files(&node.kubelet_dir(), Arc::clone(&last_file), sender)?;
        let (client, name) = (node.client(), node.name().to_owned());
        tokio::spawn(watch_object(client.clone(), name.clone(), Arc::clone(&objects)));
        tokio::spawn(watch_object(client.clone(), FLOOR.to_owned(), Arc::clone(&floors)));
        Ok(Self { last_file, admitted, objects, floors, client, node: name, floor_writes: 0 })
    }

    pub(crate) fn forget(&mut self) {
        locked(&self.objects).clear();
        locked(&self.floors).clear();
        while self.admitted.try_recv().is_ok() {}
    }

    /// Returns all versions since the last [`Events::forget`].
    pub(crate) fn versions(&self) -> Vec<Version> {
        locked(&self.objects).clone()
    }

    pub(crate) fn first_write(&self) -> Option<Instant> {
        locked(&self.objects).first().map(|version| version.at)
    }

    /// Returns how long neither a checkpoint nor the object has changed.
    pub(crate) fn quiet_for(&self) -> Duration {
        let object = locked(&self.objects).last().map(|version| version.at);
        (*locked(&self.last_file)).max(object).map_or(Duration::MAX, |at| at.elapsed())
    }

    /// Returns the time of the admission's last checkpoint since the last [`Events::forget`].
    pub(crate) fn last_file_of_admission(&mut self) -> Result<Instant> {
        self.admitted.try_recv().context("the kubelet wrote no state file for the pod")
    }

    /// Writes the benchmark's object as soon as the kubelet has admitted a pod, and returns how long after
    /// the last checkpoint the watch showed it: the latency of a publisher that knows everything in advance.
    pub(crate) async fn floor_at_admission(&mut self, zones: &Value) -> Result<Duration> {
        let file = tokio::time::timeout(PATIENCE, self.admitted.recv()).await?;
        let file = file.context("nobody watches the files")?;
        self.apply_floor(zones).await?;
        let start = Instant::now();
        loop {
            if let Some(version) = locked(&self.floors).last() {
                return Ok(version.at.saturating_duration_since(file));
            }
            ensure!(start.elapsed() < PATIENCE, "the watch does not show the benchmark's own write");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Returns how long an apply takes when nothing else happens.
    pub(crate) async fn floor_when_idle(&mut self, zones: &Value, samples: usize) -> Result<Vec<Duration>> {
        let mut all = Vec::new();
        for _ in 0..=samples {
            let start = Instant::now();
            self.apply_floor(zones).await?;
            all.push(start.elapsed());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // The first apply may create the object.
        Ok(all.split_off(1))
    }

    /// Returns the node's current object.
    pub(crate) async fn published(&self) -> Result<Value> {
        let path = format!("{NRT_PATH}/{}", self.node);
        let object = self.client.request_text(http::Request::get(path).body(Vec::new())?).await?;
        Ok(serde_json::from_str(&object)?)
    }

    async fn apply_floor(&mut self, zones: &Value) -> Result<()> {
        self.floor_writes += 1;
        let body = serde_json::to_vec(&json!({
            "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
            "metadata": {"name": FLOOR}, "zones": zones,
            "attributes": [{"name": "write", "value": self.floor_writes.to_string()}],
        }))?;
        let request = http::Request::patch(format!("{NRT_PATH}/{FLOOR}?fieldManager=bench&force=true"))
            .header("content-type", "application/apply-patch+yaml")
            .header("accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
            .body(body)?;
        self.client.request_text(request).await?;
        Ok(())
    }

    /// Deletes the node's object and discards its observed versions.
    pub(crate) async fn delete_object(&mut self) -> Result<()> {
        let request = http::Request::delete(format!("{NRT_PATH}/{}", self.node)).body(Vec::new())?;
        // It may not exist yet.
        let _ = self.client.request_text(request).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        self.forget();
        Ok(())
    }
}

/// Watches the checkpoints in a separate thread, so that its timestamps are not delayed by other work.
fn watch_files(
    dir: &Path,
    last: Arc<Mutex<Option<Instant>>>,
    admitted: mpsc::UnboundedSender<Instant>,
) -> Result<()> {
    let mut inotify = Inotify::init()?;
    inotify.watches().add(dir, WatchMask::MOVED_TO)?;
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        let mut of_admission = None;
        while let Ok(events) = inotify.read_events_blocking(&mut buffer) {
            let now = Instant::now();
            for name in events.filter_map(|event| event.name.and_then(|name| name.to_str())) {
                match name {
                    "cpu_manager_state" | "memory_manager_state" => {
                        of_admission = Some(now);
                        *locked(&last) = Some(now);
                    }
                    // The last file of an admission is written for every pod; only a pod with exclusive
                    // resources changes the files before. The receiver may be gone.
                    "allocated_pods_state" => {
                        let _ = of_admission.take().map(|file| admitted.send(file));
                    }
                    _ => {}
                }
            }
        }
    });
    Ok(())
}

/// Records the watch's events: each line is one version.
async fn watch_object(client: Client, name: String, seen: Versions) -> Result<()> {
    loop {
        let path = format!("{NRT_PATH}?watch=1&fieldSelector=metadata.name%3D{name}");
        let Ok(stream) = client.request_stream(http::Request::get(path).body(Vec::new())?).await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let mut lines = std::pin::pin!(stream.lines());
        while let Some(Ok(line)) = lines.next().await {
            let at = Instant::now();
            if !line.starts_with(r#"{"type":"DELETED""#) {
                locked(&seen).push(Version { at, line });
            }
        }
    }
}
