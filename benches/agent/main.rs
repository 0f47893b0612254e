//! What the agent costs and how fast it is, on a real kubelet and a real API server, next to its budgets.
//!
//! `make bench` builds the binary as it ships and runs this. Latency is measured from outside: from the rename
//! of the kubelet's state file to the object's event at a watch of the API server. `make bench ONLY=two-by-eight`
//! measures one node only.

#[path = "../../tests/real/support/mod.rs"]
#[allow(dead_code, unused_imports)] // the tests use the rest
mod support;

mod report;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::{AsyncBufReadExt, StreamExt};
use inotify::{Inotify, WatchMask};
use kube::Client;

use report::{Budget, Figures, Report};
use support::process::{Process, tethered};
use support::{Cluster, Needs, Parts, RealNode, pod};

/// A change has ended when neither a state file nor the object moved for this long.
const QUIET: Duration = Duration::from_millis(400);
/// Nothing here takes this long unless it is broken.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the agent is watched doing nothing.
const IDLE: Duration = Duration::from_secs(30);
/// How often the agent is started to measure its first object.
const STARTS: usize = 11;

/// A node and how much is done on it.
struct Shape {
    name: &'static str,
    machine: &'static str,
    /// Pods that are there already.
    filled: usize,
    /// Pods that are started and deleted one after another.
    steps: usize,
    budget: Budget,
}

/// The peers' columns were measured on such nodes with the same kubelet and API server, all in one run.
const SHAPES: [Shape; 2] = [
    Shape {
        name: "2 zones x 8 CPUs",
        machine: "two-by-eight",
        filled: 0,
        steps: 40,
        budget: Budget {
            p50_ms: 5.0,
            p99_ms: 15.0,
            nfd: ["59.7 s", "15.9 / 27.7 (max)", "3.9", "6.5 ms", "0 %", "54-58 MiB"],
            rte: ["0.07-0.54 s", "892 / 896 (max)", "1.0", "3.3 ms", "0.3-0.8 %", "40 MiB"],
        },
    },
    Shape {
        name: "8 zones x 64 CPUs, 134 pods",
        machine: "eight-by-sixty-four",
        filled: 134,
        steps: 40,
        budget: Budget {
            p50_ms: 15.0,
            p99_ms: 50.0,
            nfd: ["60.2 s", "290 / 546 (max)", "5.1", "15 ms", "0 %", "60-63 MiB"],
            rte: ["0.07-0.54 s", "869 / 926 (max)", "1.0", "8 ms", "0.3-0.8 %", "42 MiB"],
        },
    },
];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let binary = std::env::var_os("NUMACAST_SHIPPED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target/shipped/numacast"), PathBuf::from);
    ensure!(binary.is_file(), "there is no binary at {}; `make bench` builds it", binary.display());
    let Some(parts) = Parts::for_test(Needs::Kubelet).await? else { bail!("the real parts cannot run here") };
    let mut report = Report::new(std::fs::metadata(&binary)?.len());
    // cargo passes flags of its own.
    let only: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    for shape in SHAPES.iter().filter(|shape| only.is_empty() || only.iter().any(|o| o == shape.machine)) {
        let cluster = Cluster::start(&parts).await?;
        let figures = measure(shape, &cluster, &binary).await.with_context(|| shape.name.to_owned())?;
        report.add(shape.name, figures, &shape.budget);
    }
    report.write()
}

async fn measure(shape: &Shape, cluster: &Cluster, binary: &Path) -> Result<Figures> {
    let node = RealNode::on(shape.machine)?.start(cluster).await?;
    eprintln!("{}: filling", shape.name);
    for index in 0..shape.filled {
        node.run(pod(&format!("filler-{index}")).cpus(1).memory("16Mi")).await?;
    }
    let events = Events::watch(&node)?;
    let mut figures = Figures::default();
    eprintln!("{}: {STARTS} starts", shape.name);
    for _ in 0..STARTS {
        figures.first.push(first_object(&node, binary, &events).await?);
    }
    let mut agent = Running::start(&node, binary)?;
    agent.settle(&events).await?;
    eprintln!("{}: {} changes", shape.name, shape.steps * 2);
    let (before, started) = (agent.cpu()?, Instant::now());
    for step in 0..shape.steps {
        let name = format!("step-{step}");
        events.forget();
        node.submit(&pod(&name).cpus(1).memory("16Mi")).await?;
        let change = events.change(&mut agent).await?;
        figures.latency.push(change.latency);
        figures.writes.push(change.writes);
        events.forget();
        node.delete(&name).await?;
        figures.release_writes.push(events.change(&mut agent).await?.writes);
    }
    let (busy, elapsed) = (agent.cpu()? - before, started.elapsed());
    eprintln!("{}: idle for {IDLE:?}", shape.name);
    events.forget();
    let before = agent.cpu()?;
    tokio::time::sleep(IDLE).await;
    figures.idle_share = (agent.cpu()? - before).as_secs_f64() / IDLE.as_secs_f64();
    figures.idle_writes = events.writes();
    // What it costs to look when nothing happens goes on between changes.
    let idle = elapsed.mul_f64(figures.idle_share);
    figures.cpu_per_change = busy.saturating_sub(idle) / u32::try_from(shape.steps * 2)?;
    figures.own_write = events.own_writes().await?;
    (figures.resident, figures.peak) = agent.memory()?;
    Ok(figures)
}

/// From the start of the process to the first object at the API server.
async fn first_object(node: &RealNode, binary: &Path, events: &Events) -> Result<Duration> {
    events.delete_object().await?;
    events.forget();
    let start = Instant::now();
    let mut agent = Running::start(node, binary)?;
    let first = loop {
        agent.process.still_runs()?;
        if let Some(at) = events.first_write() {
            break at;
        }
        ensure!(start.elapsed() < PATIENCE, "no object appeared");
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    Ok(first.duration_since(start))
}

/// The shipped binary at work.
struct Running {
    process: Process,
}

impl Running {
    fn start(node: &RealNode, binary: &Path) -> Result<Self> {
        let mut command = tethered(binary);
        command.args(["agent", "--node-name", node.name()]);
        command.arg("--kubeconfig").arg(node.agent_kubeconfig());
        command.arg("--sys-dir").arg(node.dir().join("sys"));
        command.arg("--proc-dir").arg(node.dir().join("proc"));
        command.arg("--kubelet-dir").arg(node.kubelet_dir());
        Ok(Self { process: Process::start("agent", node.dir(), command)? })
    }

    /// Waits until the first object is there and nothing moves.
    async fn settle(&mut self, events: &Events) -> Result<()> {
        let start = Instant::now();
        while events.since_last() < QUIET || start.elapsed() < QUIET {
            self.process.still_runs()?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// CPU time used so far, as the scheduler counts it (nanoseconds).
    fn cpu(&self) -> Result<Duration> {
        let mut total = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
            total += text.split_whitespace().next().context("an empty schedstat")?.parse::<u64>()?;
        }
        Ok(Duration::from_nanos(total))
    }

    /// Resident memory now and at its peak, in KiB.
    fn memory(&self) -> Result<(u64, u64)> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let field = |name: &str| -> Result<u64> {
            let line = status.lines().find(|line| line.starts_with(name)).context("no such field")?;
            Ok(line.split_whitespace().nth(1).context("no value")?.parse()?)
        };
        Ok((field("VmRSS:")?, field("VmHWM:")?))
    }
}

/// One change as it was seen from outside.
struct Change {
    latency: Duration,
    writes: usize,
}

/// State files and object versions, each with the instant at which it was seen.
struct Events {
    files: Arc<Mutex<VecDeque<Instant>>>,
    objects: Arc<Mutex<VecDeque<Instant>>>,
    client: Client,
    node: String,
}

fn held<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Events {
    fn watch(node: &RealNode) -> Result<Self> {
        let files = Arc::<Mutex<VecDeque<Instant>>>::default();
        let objects = Arc::<Mutex<VecDeque<Instant>>>::default();
        watch_files(&node.kubelet_dir(), Arc::clone(&files))?;
        let (client, name) = (node.client(), node.name().to_owned());
        tokio::spawn(watch_object(client.clone(), name.clone(), Arc::clone(&objects)));
        Ok(Self { files, objects, client, node: name })
    }

    fn forget(&self) {
        held(&self.files).clear();
        held(&self.objects).clear();
    }

    fn writes(&self) -> usize {
        held(&self.objects).len()
    }

    fn first_write(&self) -> Option<Instant> {
        held(&self.objects).front().copied()
    }

    fn since_last(&self) -> Duration {
        let last = held(&self.files).back().copied().max(held(&self.objects).back().copied());
        last.map_or(Duration::MAX, |at| at.elapsed())
    }

    /// Waits for a change of the object and for the quiet after it.
    async fn change(&self, agent: &mut Running) -> Result<Change> {
        let start = Instant::now();
        while self.writes() == 0 || self.since_last() < QUIET {
            agent.process.still_runs()?;
            ensure!(start.elapsed() < PATIENCE, "the object did not change");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let file = held(&self.files).back().copied();
        let object = held(&self.objects).back().copied().context("no write")?;
        // The List may be ahead of the file: then there is nothing to wait for.
        let latency = file.map_or(Duration::ZERO, |file| object.saturating_duration_since(file));
        Ok(Change { latency, writes: self.writes() })
    }

    /// How long the API server takes for an apply of the same zones under another name, with nobody in between:
    /// what is left of a latency when the agent costs nothing.
    async fn own_writes(&self) -> Result<Vec<Duration>> {
        let path = format!("{NRT_PATH}/{}", self.node);
        let object = self.client.request_text(http::Request::get(path).body(Vec::new())?).await?;
        let object: serde_json::Value = serde_json::from_str(&object)?;
        let mut samples = Vec::new();
        for index in 0..41 {
            let body = serde_json::to_vec(&serde_json::json!({
                "apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": {"name": "probe"},
                "zones": object["zones"], "attributes": [{"name": "turn", "value": index.to_string()}],
            }))?;
            let request = http::Request::patch(format!("{NRT_PATH}/probe?fieldManager=bench&force=true"))
                .header("content-type", "application/apply-patch+yaml")
                .header("accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
                .body(body)?;
            let start = Instant::now();
            self.client.request_text(request).await?;
            samples.push(start.elapsed());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // The first one creates the object.
        Ok(samples.split_off(1))
    }

    async fn delete_object(&self) -> Result<()> {
        let request = http::Request::delete(format!("{NRT_PATH}/{}", self.node)).body(Vec::new())?;
        // It may not be there yet.
        let _ = self.client.request_text(request).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok(())
    }
}

const NRT_PATH: &str = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies";

/// A thread of its own: its instants do not wait for anything else here.
fn watch_files(dir: &Path, seen: Arc<Mutex<VecDeque<Instant>>>) -> Result<()> {
    let mut inotify = Inotify::init()?;
    inotify.watches().add(dir, WatchMask::MOVED_TO)?;
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(events) = inotify.read_events_blocking(&mut buffer) {
            let now = Instant::now();
            let state = |name: &str| matches!(name, "cpu_manager_state" | "memory_manager_state");
            let hits = events.filter(|event| event.name.and_then(|n| n.to_str()).is_some_and(state));
            held(&seen).extend(hits.map(|_| now));
        }
    });
    Ok(())
}

/// One line of the watch is one version; it is not parsed, so that its instant is that of its arrival.
async fn watch_object(client: Client, node: String, seen: Arc<Mutex<VecDeque<Instant>>>) -> Result<()> {
    loop {
        let path = format!("{NRT_PATH}?watch=1&fieldSelector=metadata.name%3D{node}");
        let stream = client.request_stream(http::Request::get(path).body(Vec::new())?).await?;
        let mut lines = std::pin::pin!(stream.lines());
        while let Some(Ok(line)) = lines.next().await {
            if !line.starts_with(r#"{"type":"DELETED""#) {
                held(&seen).push_back(Instant::now());
            }
        }
    }
}
