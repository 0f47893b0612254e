//! What the agent costs and how fast it is, on a real kubelet and a real API server, next to its budgets.
//!
//! `make bench` builds the binary as it ships and runs this. Latency is measured from outside: from what the kubelet
//! says and writes to the object's event at a watch of the API server. `make bench ONLY=two-by-eight` measures one
//! node only, `IDLE=600` watches the agent doing nothing for ten minutes, `STEPS=20` makes that many changes.

#[path = "../../tests/real/support/mod.rs"]
#[allow(dead_code, unused_imports)] // the tests use the rest
mod support;

mod events;
mod figures;
mod report;
mod running;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fastrand::Rng;

use events::{Events, PATIENCE, QUIET};
use figures::{Figures, Release};
use report::{Budget, Report};
use running::Running;
use support::prober::{Answer, Heard, Prober, Questions};
use support::{Cluster, Needs, Parts, RealNode, pod};

/// How often the prober Lists while a pod ends: half of what the kubelet allows all its clients.
const PROBE: Duration = Duration::from_millis(20);
/// How often it does when nothing is expected.
const REST: Duration = Duration::from_secs(1);
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
    Shape { name: "2 zones x 8 CPUs", machine: "two-by-eight", filled: 0, steps: 200, budget: report::SMALL },
    Shape {
        name: "8 zones x 64 CPUs, 134 pods",
        machine: "eight-by-sixty-four",
        filled: 134,
        steps: 60,
        budget: report::LARGE,
    },
];

/// What a person can set.
struct Options {
    only: Vec<String>,
    idle: Duration,
    steps: Option<usize>,
    seed: u64,
}

impl Options {
    fn read() -> Result<Self> {
        // cargo passes flags of its own.
        let only = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
        let seed = number("NUMACAST_SEED")?.unwrap_or_else(|| fastrand::u64(..));
        Ok(Self {
            only,
            idle: Duration::from_secs(number("IDLE")?.unwrap_or(30)),
            steps: number("STEPS")?,
            seed,
        })
    }
}

fn number<T: FromStr>(variable: &str) -> Result<Option<T>> {
    let Ok(text) = std::env::var(variable) else { return Ok(None) };
    let Ok(number) = text.parse() else { bail!("{variable} is no number: `{text}`") };
    Ok(Some(number))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let options = Options::read()?;
    let binary = std::env::var_os("NUMACAST_SHIPPED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target/shipped/numacast"), PathBuf::from);
    ensure!(binary.is_file(), "there is no binary at {}; `make bench` builds it", binary.display());
    let Some(parts) = Parts::for_test(Needs::Kubelet).await? else { bail!("the real parts cannot run here") };
    let mut report = Report::new(&binary, &parts, options.seed)?;
    let chosen = |shape: &&Shape| options.only.is_empty() || options.only.iter().any(|o| o == shape.machine);
    for shape in SHAPES.iter().filter(chosen) {
        let cluster = Cluster::start(&parts).await?;
        let measured = Bench::new(shape, &options, &cluster, &binary).await?.run().await;
        report.add(shape.name, &measured.with_context(|| shape.name.to_owned())?, &shape.budget);
        // After every node: the next one may fail.
        report.write()?;
    }
    Ok(())
}

/// One node under measurement.
struct Bench<'a> {
    shape: &'a Shape,
    steps: usize,
    idle: Duration,
    cluster: &'a Cluster,
    binary: &'a Path,
    node: RealNode,
    events: Events,
    prober: Prober,
    random: Rng,
    pods: usize,
}

impl<'a> Bench<'a> {
    async fn new(
        shape: &'a Shape,
        options: &Options,
        cluster: &'a Cluster,
        binary: &'a Path,
    ) -> Result<Self> {
        let node = RealNode::on(shape.machine)?.start(cluster).await?;
        eprintln!("{}: {} pods to start with", shape.name, shape.filled);
        for index in 0..shape.filled {
            node.run(pod(&format!("filler-{index}")).cpus(1).memory("16Mi")).await?;
        }
        Ok(Self {
            shape,
            steps: options.steps.unwrap_or(shape.steps).max(5),
            idle: options.idle,
            cluster,
            binary,
            events: Events::watch(&node)?,
            prober: Prober::start(node.socket(), Questions::Lists, REST)?,
            node,
            random: Rng::with_seed(options.seed),
            pods: 0,
        })
    }

    async fn run(mut self) -> Result<Figures> {
        let mut figures = Figures::default();
        self.say(&format!("{STARTS} starts"));
        for _ in 0..STARTS {
            figures.first.push(self.first_object().await?);
        }
        self.changes(&mut figures).await?;
        if running::takes(self.binary, "pods.source=auto") {
            self.changes_without_pod_source(&mut figures).await?;
        }
        Ok(figures)
    }

    fn say(&self, what: &str) {
        eprintln!("{}: {what}", self.shape.name);
    }

    /// From the start of the process to the first object at the API server.
    async fn first_object(&mut self) -> Result<Duration> {
        self.events.delete_object().await?;
        self.events.forget();
        let start = Instant::now();
        let mut agent = Running::start(&self.node, self.binary, &[])?;
        let first = loop {
            agent.still_runs()?;
            if let Some(at) = self.events.first_write() {
                break at;
            }
            ensure!(start.elapsed() < PATIENCE, "no object appeared");
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        Ok(first.duration_since(start))
    }

    /// All that is measured on the agent as it is by default.
    async fn changes(&mut self, figures: &mut Figures) -> Result<()> {
        let mut agent = Running::start(&self.node, self.binary, &[])?;
        agent.settle(&self.events).await?;

        self.say(&format!("{} changes", self.steps * 2));
        let scans = agent.scans()?;
        let (before, started) = (agent.cpu()?, Instant::now());
        for _ in 0..self.steps {
            let (name, latency) = self.allocation(&mut agent, figures).await?;
            figures.latency.push(latency);
            let release = self.release(&mut agent, &name).await?;
            figures.release_writes.push(self.events.writes());
            figures.release.push(release);
        }
        let (busy, elapsed) = (agent.cpu()? - before, started.elapsed());
        figures.scans_per_change = (agent.scans()? - scans) as f64 / (self.steps * 2) as f64;

        self.idle(&mut agent, figures).await?;
        // What it costs to look when nothing happens goes on between changes.
        let idle = elapsed.mul_f64(figures.idle_share);
        figures.cpu_per_change = busy.saturating_sub(idle) / u32::try_from(self.steps * 2)?;

        self.say(&format!("{} changes, with somebody else who Lists at each rename", self.steps / 5 * 2));
        self.events.ring(Some(self.prober.bell()));
        for _ in 0..self.steps / 5 {
            self.prober.forget();
            let (name, _) = self.allocation(&mut agent, figures).await?;
            figures.since_listed.push(self.since_listed(&name)?);
            self.release(&mut agent, &name).await?;
        }
        self.events.ring(None);
        (figures.resident, figures.peak) = agent.memory()?;

        self.floor(&mut agent, figures).await?;
        self.frozen(agent, figures).await
    }

    /// Starts a pod; the time from the kubelet's last file to the object, and the pod's name.
    async fn allocation(&mut self, agent: &mut Running, figures: &mut Figures) -> Result<(String, Duration)> {
        let name = self.next_pod().await;
        self.events.forget();
        self.node.submit(&pod(&name).cpus(1).memory("16Mi")).await?;
        self.change(agent).await?;
        figures.writes.push(self.events.writes());
        let (file, object) = (self.events.last_file(), self.events.last_write().context("no write")?);
        // The List may be ahead of the file: then there is nothing to wait for.
        Ok((name, file.map_or(Duration::ZERO, |file| object.saturating_duration_since(file))))
    }

    /// A name, and a pause, so that the changes do not fall into step with the kubelet's own periods.
    async fn next_pod(&mut self) -> String {
        self.pods += 1;
        tokio::time::sleep(Duration::from_millis(self.random.u64(..250))).await;
        format!("step-{}", self.pods)
    }

    /// From what is later, the last file or the first List that has all of the pod, to the object.
    fn since_listed(&self, name: &str) -> Result<Duration> {
        let whole = |answer: &&Answer| match &answer.heard {
            Heard::Pods(pods) => pods.get(name).is_some_and(|has| !has.cpus.is_empty() && has.memory > 0),
            _ => false,
        };
        let answers = self.prober.answers();
        let listed = answers.iter().find(whole).context("no List has the pod")?.at;
        let object = self.events.last_write().context("no write")?;
        let known = self.events.last_file().map_or(listed, |file| file.max(listed));
        Ok(object.saturating_duration_since(known))
    }

    /// Deletes a pod; the time from its end in the List to the object. It left between two Lists.
    async fn release(&mut self, agent: &mut Running, name: &str) -> Result<Release> {
        self.prober.set_pause(PROBE);
        self.prober.forget();
        self.events.forget();
        self.node.delete(name).await?;
        self.change(agent).await?;
        self.prober.set_pause(REST);
        let gone = |answer: &&Answer| matches!(&answer.heard, Heard::Pods(pods) if !pods.contains_key(name));
        let answers = self.prober.answers();
        let gone = answers.iter().find(gone).context("the pod never left the List")?;
        // The last write may come from a file that the kubelet wrote later, and changes nothing then.
        let object = self.events.first_write().context("no write")?;
        let since = |at: Instant| object.saturating_duration_since(at);
        Ok(Release { at_most: since(gone.last_other.unwrap_or(gone.asked)), at_least: since(gone.at) })
    }

    /// Waits for a change of the object and for the quiet after it.
    async fn change(&self, agent: &mut Running) -> Result<()> {
        let start = Instant::now();
        while self.events.writes() == 0 || self.events.since_last() < QUIET {
            agent.still_runs()?;
            ensure!(start.elapsed() < PATIENCE, "the object did not change");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    async fn idle(&mut self, agent: &mut Running, figures: &mut Figures) -> Result<()> {
        self.say(&format!("idle for {:?}", self.idle));
        self.events.forget();
        let before = agent.cpu()?;
        tokio::time::sleep(self.idle).await;
        figures.idle = self.idle;
        figures.idle_share = (agent.cpu()? - before).as_secs_f64() / self.idle.as_secs_f64();
        figures.idle_writes = self.events.writes();
        Ok(())
    }

    /// The same changes with the agent frozen, and the benchmark writing the same zones at the same moments.
    async fn floor(&mut self, agent: &mut Running, figures: &mut Figures) -> Result<()> {
        let count = (self.steps / 2).min(60);
        self.say(&format!("{count} writes of the benchmark's own, with the agent frozen"));
        let zones = self.events.zones().await?;
        agent.signal("STOP")?;
        figures.floor_idle = self.events.floor_when_idle(&zones, 40).await?;
        for _ in 0..count {
            let name = self.next_pod().await;
            self.events.forget();
            self.node.submit(&pod(&name).cpus(1).memory("16Mi")).await?;
            figures.floor.push(self.events.floor_at_admission(&zones).await?);
            tokio::time::sleep(QUIET).await;
            self.node.delete(&name).await?;
        }
        agent.signal("CONT")?;
        agent.settle(&self.events).await
    }

    /// SIGTERM while the API server accepts a write and does not answer it.
    async fn frozen(&mut self, mut agent: Running, figures: &mut Figures) -> Result<()> {
        self.say("the API server frozen, and SIGTERM");
        let mut devices = self.node.machine().devices.first().context("no devices")?.clone();
        self.cluster.signal_api_server("STOP")?;
        for device in &mut devices.devices {
            device.unhealthy = true;
        }
        self.node.set_devices(&devices.resource, &devices.devices)?;
        // Long enough for the agent to see it and to send its write, and shorter than any deadline.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let start = Instant::now();
        agent.signal("TERM")?;
        let status = tokio::task::spawn_blocking(move || agent.wait()).await?;
        figures.term = Some(start.elapsed());
        self.cluster.signal_api_server("CONT")?;
        ensure!(status?.code() == Some(0), "SIGTERM during a frozen write does not end with exit code 0");
        let devices = self.node.machine().devices[0].clone();
        self.node.set_devices(&devices.resource, &devices.devices)
    }

    /// Releases that nobody tells the agent of.
    async fn changes_without_pod_source(&mut self, figures: &mut Figures) -> Result<()> {
        let count = (self.steps / 4).max(5);
        self.say(&format!("{count} releases without a pod source"));
        let mut agent = Running::start(&self.node, self.binary, &["--set", "pods.source=none"])?;
        agent.settle(&self.events).await?;
        for _ in 0..count {
            let (name, _) = self.allocation(&mut agent, &mut Figures::default()).await?;
            figures.release_unaided.push(self.release(&mut agent, &name).await?);
        }
        Ok(())
    }
}
