//! What is seen from outside, each with its instant: renames of the kubelet's files, versions of an object.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::{AsyncBufReadExt, StreamExt};
use inotify::{Inotify, WatchMask};
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};

use crate::support::RealNode;

/// A change has ended when neither a state file nor the object moved for this long.
pub(crate) const QUIET: Duration = Duration::from_millis(400);
/// Nothing here takes this long unless it is broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const NRT_PATH: &str = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies";

/// The object that the benchmark itself writes, to know what a write costs without an agent.
const FLOOR: &str = "floor";

type Instants = Arc<Mutex<VecDeque<Instant>>>;

pub(crate) struct Events {
    files: Instants,
    /// Ends of admissions: the kubelet has written the last of its files for a pod.
    admitted: mpsc::UnboundedReceiver<Instant>,
    /// Rung at each rename of a state file, once somebody wants it.
    bell: Arc<Mutex<Option<Arc<Notify>>>>,
    objects: Instants,
    floors: Instants,
    client: Client,
    node: String,
    turn: u32,
}

pub(crate) fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Events {
    pub(crate) fn watch(node: &RealNode) -> Result<Self> {
        let (files, objects, floors) = (Instants::default(), Instants::default(), Instants::default());
        let bell = Arc::<Mutex<Option<Arc<Notify>>>>::default();
        let (tell, admitted) = mpsc::unbounded_channel();
        watch_files(&node.kubelet_dir(), Arc::clone(&files), tell, Arc::clone(&bell))?;
        let (client, name) = (node.client(), node.name().to_owned());
        tokio::spawn(watch_object(client.clone(), name.clone(), Arc::clone(&objects)));
        tokio::spawn(watch_object(client.clone(), FLOOR.to_owned(), Arc::clone(&floors)));
        Ok(Self { files, admitted, bell, objects, floors, client, node: name, turn: 0 })
    }

    /// Rings at each rename of a state file from now on, or no longer.
    pub(crate) fn ring(&self, bell: Option<Arc<Notify>>) {
        *held(&self.bell) = bell;
    }

    pub(crate) fn forget(&mut self) {
        for seen in [&self.files, &self.objects, &self.floors] {
            held(seen).clear();
        }
        while self.admitted.try_recv().is_ok() {}
    }

    pub(crate) fn writes(&self) -> usize {
        held(&self.objects).len()
    }

    pub(crate) fn first_write(&self) -> Option<Instant> {
        held(&self.objects).front().copied()
    }

    pub(crate) fn last_write(&self) -> Option<Instant> {
        held(&self.objects).back().copied()
    }

    pub(crate) fn last_file(&self) -> Option<Instant> {
        held(&self.files).back().copied()
    }

    pub(crate) fn since_last(&self) -> Duration {
        self.last_file().max(self.last_write()).map_or(Duration::MAX, |at| at.elapsed())
    }

    /// Writes the object of the benchmark as soon as the kubelet has admitted a pod, and gives how long after the
    /// last state file the watch showed it: what a client would take that knows everything beforehand.
    pub(crate) async fn floor_at_admission(&mut self, zones: &Value) -> Result<Duration> {
        loop {
            let admitted = tokio::time::timeout(PATIENCE, self.admitted.recv()).await?;
            ensure!(admitted.is_some(), "nobody watches the files");
            // The file is written for every pod; only one that gets something moves the others before.
            if self.last_file().is_some() {
                break;
            }
        }
        self.apply_floor(zones).await?;
        let start = Instant::now();
        let seen = loop {
            if let Some(at) = held(&self.floors).back().copied() {
                break at;
            }
            ensure!(start.elapsed() < PATIENCE, "the watch does not show the benchmark's own write");
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        let file = self.last_file().unwrap_or(seen);
        Ok(seen.saturating_duration_since(file))
    }

    /// How long the API server takes to answer an apply when nothing else happens.
    pub(crate) async fn floor_when_idle(&mut self, zones: &Value, samples: usize) -> Result<Vec<Duration>> {
        let mut all = Vec::new();
        for _ in 0..=samples {
            let start = Instant::now();
            self.apply_floor(zones).await?;
            all.push(start.elapsed());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // The first one may create the object.
        Ok(all.split_off(1))
    }

    /// The zones as they are published, for the benchmark's own object.
    pub(crate) async fn zones(&self) -> Result<Value> {
        let path = format!("{NRT_PATH}/{}", self.node);
        let object = self.client.request_text(http::Request::get(path).body(Vec::new())?).await?;
        Ok(serde_json::from_str::<Value>(&object)?["zones"].take())
    }

    async fn apply_floor(&mut self, zones: &Value) -> Result<()> {
        self.turn += 1;
        let body = serde_json::to_vec(&json!({
            "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
            "metadata": {"name": FLOOR}, "zones": zones,
            "attributes": [{"name": "turn", "value": self.turn.to_string()}],
        }))?;
        let request = http::Request::patch(format!("{NRT_PATH}/{FLOOR}?fieldManager=bench&force=true"))
            .header("content-type", "application/apply-patch+yaml")
            .header("accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
            .body(body)?;
        self.client.request_text(request).await?;
        Ok(())
    }

    pub(crate) async fn delete_object(&self) -> Result<()> {
        let request = http::Request::delete(format!("{NRT_PATH}/{}", self.node)).body(Vec::new())?;
        // It may not be there yet.
        let _ = self.client.request_text(request).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok(())
    }
}

/// A thread of its own: its instants do not wait for anything else here.
fn watch_files(
    dir: &Path,
    seen: Instants,
    admitted: mpsc::UnboundedSender<Instant>,
    bell: Arc<Mutex<Option<Arc<Notify>>>>,
) -> Result<()> {
    let mut inotify = Inotify::init()?;
    inotify.watches().add(dir, WatchMask::MOVED_TO)?;
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(events) = inotify.read_events_blocking(&mut buffer) {
            let now = Instant::now();
            for name in events.filter_map(|event| event.name.and_then(|name| name.to_str())) {
                match name {
                    "cpu_manager_state" | "memory_manager_state" => {
                        held(&seen).push_back(now);
                        held(&bell).iter().for_each(|bell| bell.notify_one());
                    }
                    // Nobody may be interested.
                    "allocated_pods_state" => drop(admitted.send(now)),
                    _ => {}
                }
            }
        }
    });
    Ok(())
}

/// One line of the watch is one version; it is not parsed, so that its instant is that of its arrival.
async fn watch_object(client: Client, name: String, seen: Instants) -> Result<()> {
    loop {
        let path = format!("{NRT_PATH}?watch=1&fieldSelector=metadata.name%3D{name}");
        let Ok(stream) = client.request_stream(http::Request::get(path).body(Vec::new())?).await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let mut lines = std::pin::pin!(stream.lines());
        while let Some(Ok(line)) = lines.next().await {
            if !line.starts_with(r#"{"type":"DELETED""#) {
                held(&seen).push_back(Instant::now());
            }
        }
    }
}
