//! Measures the agent's cost and latency against its budgets, on a real kubelet and a real API server: first
//! as the chart installs it, then in variants.
//!
//! `make bench` builds the binary as shipped and runs this. Latency is measured from outside: from the
//! kubelet's checkpoint write, or from the request to delete a pod, to the object's event on a watch of the
//! API server. `ONLY=two-by-eight` measures only one node, `VARIANT=none` one variant, `IDLE=600` measures the
//! idle agent for ten minutes, `STEPS=20` makes that many changes. Only a complete run replaces
//! `benches/figures.json`.

#[path = "../../tests/real/support/mod.rs"]
#[allow(dead_code, unused_imports)] // the tests use the rest
mod support;

mod container;
mod events;
mod record;
mod report;
mod running;
mod slices;
#[allow(dead_code)] // the test of the documents uses the rest
mod tables;
mod variants;
mod zones;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fastrand::Rng;
use serde_json::json;

use container::Container;
use events::{Events, PATIENCE, QUIET};
use record::{Figures, Idle, Node, Quantiles, rounded};
use report::Report;
use running::{Counts, Running};
use support::chart::{self, Chart, RIGHTS};
use support::node::PodOutcome;
use support::prober::{Prober, Requests, Response};
use support::{Cluster, Needs, Parts, RealNode, pod};
use variants::{VARIANTS, Variant};
use zones::{Zones, current_since};

/// Interval of the prober's Lists while a pod ends: half of the rate that the kubelet allows for all its
/// clients.
const PROBE: Duration = Duration::from_millis(20);
/// How often an agent is started to measure its first object: for the default, and for the other variants.
const STARTS: [usize; 2] = [11, 5];
/// Longer than the agent's poll interval: by then it has detected any change it missed.
const BEYOND_POLL: Duration = Duration::from_secs(6);
/// Maximum idle time measured for variants other than the default.
const VARIANT_IDLE: Duration = Duration::from_secs(60);
/// Number of the benchmark's own writes when nothing else happens.
const FLOOR_WRITES: usize = 40;

/// A node and the number of measurements on it.
struct Shape {
    title: &'static str,
    machine: &'static str,
    /// Pods that run from the beginning.
    filled: usize,
    /// Pods that are started and deleted one after another: for the default, and for each other variant.
    steps: [usize; 2],
}

const SHAPES: [Shape; 2] = [
    Shape { title: "2 zones x 8 CPUs", machine: "two-by-eight", filled: 0, steps: [50, 15] },
    Shape {
        title: "8 zones x 64 CPUs, 110 pods",
        machine: "eight-by-sixty-four",
        filled: 110,
        steps: [30, 12],
    },
];

/// Command-line arguments and environment variables.
struct Options {
    only: Vec<String>,
    variants: Vec<String>,
    idle: Duration,
    steps: Option<usize>,
    seed: u64,
}

impl Options {
    fn read() -> Result<Self> {
        // cargo passes its own flags.
        let only: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
        let known = |name: &String| SHAPES.iter().any(|shape| shape.machine == name);
        ensure!(only.iter().all(known), "ONLY is one of {:?}", SHAPES.map(|shape| shape.machine));
        let variants = std::env::var("VARIANT").unwrap_or_default();
        let variants: Vec<String> =
            variants.split([',', ' ']).filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let known = |name: &String| VARIANTS.iter().any(|variant| variant.name == name);
        ensure!(variants.iter().all(known), "VARIANT is one of {:?}", VARIANTS.map(|variant| variant.name));
        Ok(Self {
            only,
            variants,
            idle: Duration::from_secs(number("IDLE")?.unwrap_or(60)),
            steps: number("STEPS")?,
            seed: number("NUMACAST_SEED")?.unwrap_or_else(|| fastrand::u64(..)),
        })
    }

    fn everything(&self) -> bool {
        self.only.is_empty() && self.variants.is_empty()
    }
}

fn number<T: FromStr>(variable: &str) -> Result<Option<T>> {
    let Some(text) = std::env::var(variable).ok().filter(|text| !text.is_empty()) else { return Ok(None) };
    let Ok(number) = text.parse() else { bail!("{variable} is no number: `{text}`") };
    Ok(Some(number))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let options = Options::read()?;
    let binary = std::env::var_os("NUMACAST_SHIPPED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target/shipped/numacast"), PathBuf::from);
    ensure!(binary.is_file(), "there is no binary at {}; `make bench` builds it", binary.display());
    let Some(parts) = Parts::with_helm(Needs::Kubelet)? else { bail!("the real parts cannot run here") };
    let mut report = Report::new(&binary, &parts, options.seed)?;
    let chosen = |shape: &&Shape| options.only.is_empty() || options.only.iter().any(|o| o == shape.machine);
    for shape in SHAPES.iter().filter(chosen) {
        let cluster = Cluster::start(&parts).await?;
        let mut bench = Bench::new(shape, &options, &parts, &cluster, &binary).await?;
        let measured = bench.run().await.with_context(|| shape.title.to_owned())?;
        // After every node, since the next one may fail.
        report.add(measured)?;
    }
    report.end(options.everything())
}

/// One node under measurement.
struct Bench<'a> {
    shape: &'a Shape,
    options: &'a Options,
    parts: &'a Parts,
    cluster: &'a Cluster,
    binary: &'a Path,
    node: RealNode,
    /// The kubeconfig of the agent's service account.
    kubeconfig: PathBuf,
    events: Events,
    random: Rng,
    pods: usize,
    started: Instant,
}

impl<'a> Bench<'a> {
    async fn new(
        shape: &'a Shape,
        options: &'a Options,
        parts: &'a Parts,
        cluster: &'a Cluster,
        binary: &'a Path,
    ) -> Result<Self> {
        let started = Instant::now();
        let node = RealNode::on(shape.machine)?.start(cluster).await?;
        eprintln!("{}: {} pods to start with", shape.title, shape.filled);
        for index in 0..shape.filled {
            node.run(pod(&format!("filler-{index}")).cpus(1).memory("16Mi")).await?;
        }
        let chart = Chart::render(parts, &json!({}))?;
        let kubeconfig = chart::agent_of(cluster, &chart, node.name()).await?;
        Ok(Self {
            shape,
            options,
            parts,
            cluster,
            binary,
            events: Events::watch(&node)?,
            node,
            kubeconfig,
            random: Rng::with_seed(options.seed),
            pods: 0,
            started,
        })
    }

    async fn run(&mut self) -> Result<Node> {
        let mut node = Node {
            machine: self.shape.machine.to_owned(),
            title: self.shape.title.to_owned(),
            floor: None,
            floor_when_idle: None,
            variants: Vec::new(),
        };
        let wanted = &self.options.variants;
        for (index, variant) in VARIANTS.iter().enumerate() {
            if !wanted.is_empty() && !wanted.iter().any(|name| name == variant.name) {
                continue;
            }
            let what = || format!("variant {}", variant.name);
            node.variants.push(self.variant(index, variant).await.with_context(what)?);
            if node.floor.is_none() {
                self.floor(&mut node).await?;
            }
        }
        Ok(node)
    }

    fn log(&self, what: &str) {
        eprintln!("{}, {} s: {what}", self.shape.title, self.started.elapsed().as_secs());
    }

    /// Returns the number of pods for a variant; `index` 0 is the default.
    fn steps(&self, index: usize) -> usize {
        self.options.steps.unwrap_or(self.shape.steps[index.min(1)]).max(5)
    }

    /// Measures one variant.
    async fn variant(&mut self, index: usize, variant: &Variant) -> Result<Figures> {
        self.log(variant.title);
        let mut values = container::values_here(&self.node)?;
        container::merge_values(&mut values, &(variant.values)());
        let chart = Chart::render(self.parts, &values)?;
        chart.install(&self.cluster.client(), &RIGHTS).await?;
        // Short, because the path of a socket is limited to about a hundred characters.
        let place = self.cluster.dir().join(format!("c{index}"));
        let container = Container::make(&chart, &self.node, &place, &self.kubeconfig)?;
        let sees = container.sees_state_files;
        ensure!(sees == (variant.name == "directory"), "whether it sees the kubelet's state files: {sees}");
        let mut figures = Figures {
            variant: variant.name.to_owned(),
            title: variant.title.to_owned(),
            ..Figures::default()
        };

        slices::create(self.cluster, self.node.name(), variant.devices).await?;
        let mut first = Vec::new();
        for _ in 0..STARTS[index.min(1)] {
            first.push(self.start(&container).await?.1);
        }
        figures.first_object = quantiles(&first)?;

        let (mut agent, _) = self.start(&container).await?;
        let result = self.changes(index, &mut agent, &mut figures).await;
        result.with_context(|| format!("the end of the agent's log:\n{}", agent.log_tail()))?;
        if index == 0 {
            figures.sigterm_seconds = Some(rounded(self.frozen(agent).await?.as_secs_f64()));
        }
        Ok(figures)
    }

    /// Starts the agent without an object, and returns it and the time from its start to the first object.
    async fn start(&mut self, container: &Container) -> Result<(Running, Duration)> {
        self.events.delete_object().await?;
        let start = Instant::now();
        let mut agent = Running::start(&self.node, self.binary, container)?;
        let first = loop {
            agent.still_runs()?;
            if let Some(at) = self.events.first_write() {
                break at;
            }
            ensure!(start.elapsed() < PATIENCE, "no object appeared: {}", agent.log_tail());
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        Ok((agent, first.duration_since(start)))
    }

    /// Measures everything for a running agent.
    async fn changes(&mut self, index: usize, agent: &mut Running, figures: &mut Figures) -> Result<()> {
        let steps = self.steps(index);
        let zones = self.warm_up().await?;
        self.log(&format!("{} changes", steps * 2));
        let before = agent.counts(self.cluster).await?;
        let (mut allocations, mut releases) = (Vec::new(), Vec::new());
        for _ in 0..steps {
            let (name, allocation) = self.allocation(agent, &zones).await?;
            allocations.push(allocation);
            releases.push(self.release(agent, &name, &zones).await?);
        }
        let after = agent.counts(self.cluster).await?;
        (figures.allocation, figures.release) = (quantiles(&allocations)?, quantiles(&releases)?);

        let idle = self.idle(index, agent, figures).await?;
        per_change(figures, [before, after], idle, (steps * 2) as f64);

        let probed = (steps / 4).max(5);
        self.log(&format!("{} changes, with another client that Lists", probed * 2));
        let mut since_listed = Vec::new();
        for _ in 0..probed {
            let (name, _) = self.allocation(agent, &zones).await?;
            since_listed.push(self.release_since_listed(agent, &name, &zones).await?);
        }
        figures.release_since_listed = quantiles(&since_listed)?;
        let (resident, peak) = agent.memory()?;
        (figures.resident_mib, figures.peak_mib) = (rounded(resident), rounded(peak));
        Ok(())
    }

    /// Starts and deletes a pod, and returns the zones without it. The managers' checkpoints keep a deleted
    /// pod's resources until the next pod is admitted, and an agent that starts between the two counts them
    /// as in use.
    async fn warm_up(&mut self) -> Result<Zones> {
        let name = self.next_pod().await;
        self.node.run(pod(&name).cpus(1).memory("16Mi")).await?;
        self.node.delete(&name).await?;
        tokio::time::sleep(BEYOND_POLL).await;
        Zones::of(&self.events.published().await?)
    }

    /// Waits until the latest version of the object is as expected and nothing changes any more, and returns
    /// its zones.
    async fn settled(&self, agent: &mut Running, is_expected: impl Fn(&Zones) -> bool) -> Result<Zones> {
        let (start, mut checked) = (Instant::now(), 0);
        loop {
            agent.still_runs()?;
            let versions = self.events.versions();
            if self.events.quiet_for() >= QUIET && versions.len() > checked {
                checked = versions.len();
                let zones = versions.last().context("no version")?.zones()?;
                if is_expected(&zones) {
                    return Ok(zones);
                }
            }
            ensure!(start.elapsed() < PATIENCE, "the object is not as expected after {checked} versions");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Returns since when the object has had its current zones.
    fn current_since(&self) -> Result<Instant> {
        let versions = self.events.versions();
        let versions = versions.iter().map(|version| Ok((version.at, version.zones()?)));
        current_since(&versions.collect::<Result<Vec<_>>>()?).context("no version")
    }

    /// Starts a pod, and returns its name and the time from the last checkpoint of its admission to the
    /// object that accounts for it.
    async fn allocation(&mut self, agent: &mut Running, before: &Zones) -> Result<(String, Duration)> {
        let name = self.next_pod().await;
        self.events.forget();
        self.node.submit(&pod(&name).cpus(1).memory("16Mi")).await?;
        self.settled(agent, |zones| zones.free_cpus() + 1 == before.free_cpus()).await?;
        let file = self.events.last_file_of_admission()?;
        // The List may be ahead of the checkpoint: the latency is zero then.
        Ok((name, self.current_since()?.saturating_duration_since(file)))
    }

    /// Returns the next pod's name, after a pause.
    async fn next_pod(&mut self) -> String {
        self.pods += 1;
        self.pause().await;
        format!("step-{}", self.pods)
    }

    /// Waits a random time, so that the changes do not synchronize with the kubelet's own periods.
    async fn pause(&mut self) {
        tokio::time::sleep(Duration::from_millis(self.random.u64(..250))).await;
    }

    /// Deletes a running pod, and returns the time from the request to the object without it.
    async fn release(&mut self, agent: &mut Running, name: &str, before: &Zones) -> Result<Duration> {
        ensure!(self.node.wait_for_outcome(name).await? == PodOutcome::Running, "pod {name} does not run");
        self.pause().await;
        self.events.forget();
        let asked = Instant::now();
        self.node.request_deletion(name).await?;
        self.settled(agent, |zones| zones == before).await?;
        let object = self.current_since()?;
        self.node.wait_until_gone(name).await?;
        Ok(object.saturating_duration_since(asked))
    }

    /// Deletes a pod, and returns the time from its removal from the List to the object without it. An upper
    /// bound: the pod was removed between two Lists.
    async fn release_since_listed(
        &mut self,
        agent: &mut Running,
        name: &str,
        before: &Zones,
    ) -> Result<Duration> {
        let prober = Prober::start(self.node.socket(), Requests::Lists, PROBE)?;
        let has = |response: &Response| matches!(response, Response::Pods(pods) if pods.contains_key(name));
        let start = Instant::now();
        while !prober.responses().iter().any(|recorded| has(&recorded.response)) {
            ensure!(start.elapsed() < PATIENCE, "no List has the pod");
            tokio::time::sleep(PROBE).await;
        }
        self.release(agent, name, before).await?;
        let responses = prober.responses();
        let without =
            |response: &Response| matches!(response, Response::Pods(pods) if !pods.contains_key(name));
        let last = responses.iter().rposition(|recorded| has(&recorded.response));
        let last = last.context("no List has the pod")?;
        let gone = responses[last..].iter().find(|recorded| without(&recorded.response));
        let gone = gone.context("the pod never left the List")?;
        Ok(self.current_since()?.saturating_duration_since(gone.last_other.unwrap_or(gone.sent)))
    }

    async fn idle(&mut self, index: usize, agent: &Running, figures: &mut Figures) -> Result<[Counts; 2]> {
        let most = if index == 0 { Duration::MAX } else { VARIANT_IDLE };
        let time = self.options.idle.min(most);
        self.log(&format!("idle for {time:?}"));
        // By then, the cost of reading the API server's metrics, and any pending write, are over.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let before = agent.counts(self.cluster).await?;
        tokio::time::sleep(time).await;
        let after = agent.counts(self.cluster).await?;
        let used = after.cpu.saturating_sub(before.cpu).as_secs_f64();
        figures.idle = Idle {
            seconds: time.as_secs(),
            writes: after.writes - before.writes,
            claims: after.claims - before.claims,
            cpu_percent: rounded(used / time.as_secs_f64() * 100.0),
        };
        Ok([before, after])
    }

    /// Measures the floor: the same pods without an agent, while the benchmark writes the same zones at the
    /// same moments.
    async fn floor(&mut self, node: &mut Node) -> Result<()> {
        let count = (self.steps(0) / 2).max(5);
        self.log(&format!("{count} writes of the benchmark's own, without an agent"));
        let zones = self.events.published().await?["zones"].take();
        let idle = self.events.floor_when_idle(&zones, FLOOR_WRITES).await?;
        let mut floor = Vec::new();
        for _ in 0..count {
            let name = self.next_pod().await;
            self.events.forget();
            self.node.submit(&pod(&name).cpus(1).memory("16Mi")).await?;
            floor.push(self.events.floor_at_admission(&zones).await?);
            tokio::time::sleep(QUIET).await;
            self.node.delete(&name).await?;
        }
        (node.floor, node.floor_when_idle) = (Quantiles::of(&floor), Quantiles::of(&idle));
        Ok(())
    }

    /// Returns the time from SIGTERM, while the API server accepts a write and does not respond, to exit
    /// code 0.
    async fn frozen(&mut self, mut agent: Running) -> Result<Duration> {
        self.log("the API server frozen, and SIGTERM");
        let mut devices = self.node.machine().devices.first().context("no devices")?.clone();
        self.cluster.signal_api_server("STOP")?;
        for device in &mut devices.devices {
            device.unhealthy = true;
        }
        self.node.set_devices(&devices.resource, &devices.devices)?;
        // Long enough for the agent to detect it and to send its write, and shorter than any timeout.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let start = Instant::now();
        agent.signal("TERM")?;
        let status = tokio::task::spawn_blocking(move || agent.wait()).await?;
        let took = start.elapsed();
        self.cluster.signal_api_server("CONT")?;
        ensure!(status?.code() == Some(0), "SIGTERM during a frozen write does not end with exit code 0");
        let devices = self.node.machine().devices[0].clone();
        self.node.set_devices(&devices.resource, &devices.devices)?;
        Ok(took)
    }
}

/// Computes the figures per change. Lists and CPU time exclude what the agent uses when nothing changes;
/// writes include everything.
fn per_change(figures: &mut Figures, busy: [Counts; 2], idle: [Counts; 2], changes: f64) {
    let seconds = |of: [Counts; 2]| of[1].at.duration_since(of[0].at).as_secs_f64();
    let cpu = |of: [Counts; 2]| of[1].cpu.saturating_sub(of[0].cpu).as_secs_f64() * 1e3;
    let lists = |of: [Counts; 2]| of[1].lists.saturating_sub(of[0].lists) as f64;
    let beyond = |all: f64, of_idle: f64| (all - of_idle / seconds(idle) * seconds(busy)).max(0.0);
    figures.writes_per_change = rounded((busy[1].writes - busy[0].writes) as f64 / changes);
    figures.cpu_ms_per_change = rounded(beyond(cpu(busy), cpu(idle)) / changes);
    figures.lists_per_change = rounded(beyond(lists(busy), lists(idle)) / changes);
}

fn quantiles(samples: &[Duration]) -> Result<Quantiles> {
    Quantiles::of(samples).context("nothing was measured")
}
