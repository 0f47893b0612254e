//! `numacast demo`: an agent on a simulated node, its object read back from an embedded API server.
//!
//! The command line provides the agent, so that the simulation does not depend on it.

mod fleet;
mod latency;
mod terminal;
mod updates;
mod view;

use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use futures::stream::BoxStream;
use numacast_core::nrt::NodeResourceTopology;
use numacast_core::render::Zone;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};

pub use self::fleet::DemoFleet;

use self::latency::Latencies;
use self::terminal::{Input, Screen};
use self::updates::Update;
use self::view::{Event, MAX_EVENTS, View, render};
use super::kubelet::{Allocation, Options, PodSpec, Split};
use super::node::{NodeError, SimNode};
use super::scenario::{Scenario, Step, machine};

const NODE: &str = "sim-node";
/// Interval between steps, for one zone at speed 1. More zones make it shorter.
const STEP: Duration = Duration::from_secs(3);
/// How long after a pod leaves the List the simulated kubelet releases its resources; up to 1.5 s in a real
/// one.
const RELEASE_LAG: Duration = Duration::from_millis(250);
/// Steps per zone before `--once` prints.
const STEPS_ONCE: u16 = 3;
/// Interval between steps with `--once`. The agent is limited to ten scans per second; faster steps would
/// measure that limit instead of the latency.
const STEP_ONCE: Duration = Duration::from_millis(150);
/// How long `--once` waits for the agent.
const TIMEOUT_ONCE: Duration = Duration::from_secs(20);

/// The flags of the demo.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How many NUMA zones the simulated node has
    #[arg(long, value_name = "2..8", default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=8))]
    zones: u16,
    /// Seed of the workload: the same seed starts and stops the same pods
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Where the embedded API server listens, for your own kubectl [default: any free port of 127.0.0.1]
    #[arg(long, value_name = "ADDRESS:PORT")]
    addr: Option<SocketAddr>,
    /// Place a few pods, print the zones and exit; also done when standard output is not a terminal
    #[arg(long)]
    once: bool,
    /// How fast pods come and go: 2 is twice as fast
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = speed)]
    speed: f64,
    /// Show a fleet in a browser, as `numacast ui` does
    #[arg(long, conflicts_with_all = ["once", "zones"])]
    pub ui: bool,
    /// How many nodes the fleet has
    #[arg(long, value_name = "1..100", default_value_t = 24, requires = "ui", value_parser = clap::value_parser!(u16).range(1..=100))]
    nodes: u16,
    /// Only print the address of the page, do not open a browser
    #[arg(long, requires = "ui")]
    pub no_open: bool,
}

fn speed(text: &str) -> Result<f64, String> {
    let factor: f64 = text.parse().map_err(|_| "write a number such as 0.5 or 4".to_owned())?;
    if (0.1..=50.0).contains(&factor) { Ok(factor) } else { Err("it must be from 0.1 to 50".to_owned()) }
}

/// A running agent.
pub struct DemoAgent {
    /// Its task, which ends when `stop` is dropped.
    pub task: JoinHandle<()>,
    /// Dropped to stop the agent, as SIGTERM would.
    pub stop: oneshot::Sender<()>,
    /// The agent's error, or `None`, whenever it may have changed.
    pub errors: BoxStream<'static, Option<String>>,
}

/// Shows what an agent publishes about a simulated node, on which `start_agent` starts it.
///
/// # Errors
/// When the node or the agent cannot be started, the agent publishes nothing, or the terminal is lost.
pub async fn run(
    args: Args,
    start_agent: impl AsyncFnOnce(&SimNode) -> anyhow::Result<DemoAgent>,
) -> anyhow::Result<ExitCode> {
    let Args { zones, seed, addr, once, speed, .. } = args;
    // Small, so that it is easy to type.
    let seed = seed.unwrap_or_else(|| fastrand::u64(1..100_000));
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    let live = !once && !dumb && std::io::stdout().is_terminal();
    let mut demo = Demo::start(zones, seed, addr, start_agent).await?;
    if live {
        demo.play(STEP.div_f64(speed * f64::from(zones))).await?;
    } else {
        tokio::select! {
            placed = demo.place_a_few(zones * STEPS_ONCE) => placed?,
            // Exits as the signal would, but removes the temporary directory.
            _ = tokio::signal::ctrl_c() => return Ok(ExitCode::from(130)),
        }
        std::io::stdout().write_all(demo.page().as_bytes())?;
    }
    demo.end().await;
    Ok(ExitCode::SUCCESS)
}

/// Whether to print in colour. Any non-empty `NO_COLOR` disables it (no-color.org).
fn colour() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[derive(Debug)]
struct Change {
    at: Instant,
    text: String,
    is_release: bool,
}

struct Demo {
    node: SimNode,
    scenario: Scenario,
    agent: JoinHandle<()>,
    stop_agent: oneshot::Sender<()>,
    /// Aborted with the demo.
    _watches: JoinSet<()>,
    updates: mpsc::Receiver<Update>,
    /// Changes that the object does not show yet.
    pending: VecDeque<Change>,
    /// The last object and when it was received.
    topology: Option<(NodeResourceTopology, Instant)>,
    allocations: Latencies,
    releases: Latencies,
    view: View,
}

impl Demo {
    async fn start(
        zones: u16,
        seed: u64,
        addr: Option<SocketAddr>,
        start_agent: impl AsyncFnOnce(&SimNode) -> anyhow::Result<DemoAgent>,
    ) -> anyhow::Result<Self> {
        let address = addr.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
        let options = Options { seed, release_lag: RELEASE_LAG, ..Options::default() };
        let node =
            SimNode::start(NODE, &machine(zones), address, options).await.map_err(|error| match error {
                NodeError::Listen(..) => anyhow!("{error}; choose another address with --addr"),
                error => error.into(),
            })?;
        let DemoAgent { task: agent, stop: stop_agent, errors } = start_agent(&node).await?;
        let (sender, updates) = mpsc::channel(64);
        let watches = updates::start(&node.server.client()?, NODE, errors, &sender);
        let view = View {
            node: NODE.to_owned(),
            seed,
            command: format!("kubectl -s {} get node-res-topo -o yaml -w", node.server.url()),
            release_lag: RELEASE_LAG,
            ..View::default()
        };
        Ok(Self {
            node,
            scenario: Scenario::new(zones, seed),
            agent,
            stop_agent,
            _watches: watches,
            updates,
            pending: VecDeque::new(),
            topology: None,
            allocations: Latencies::default(),
            releases: Latencies::default(),
            view,
        })
    }

    async fn play(&mut self, step: Duration) -> anyhow::Result<()> {
        let mut screen = Screen::open(colour())?;
        let mut term = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let mut interval = tokio::time::interval(step);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            screen.draw(|width, height, colour| render(&self.view, width, height, colour))?;
            tokio::select! {
                biased;
                input = screen.input() => match input {
                    Input::Quit => return Ok(()),
                    Input::Redraw => {}
                    Input::Lost(reason) => bail!("the terminal cannot be read: {reason}"),
                },
                _ = term.recv() => return Ok(()),
                _ = hangup.recv() => return Ok(()),
                update = self.updates.recv() => self.apply(update)?,
                // The first pod starts once there is an object to show it.
                _ = interval.tick(), if self.topology.is_some() => self.step().await,
            }
        }
    }

    async fn place_a_few(&mut self, steps: u16) -> anyhow::Result<()> {
        self.wait("the first object").await?;
        for _ in 0..steps {
            tokio::time::sleep(STEP_ONCE).await;
            self.step().await;
            self.wait("the last change").await?;
        }
        Ok(())
    }

    async fn wait(&mut self, what: &str) -> anyhow::Result<()> {
        let deadline = tokio::time::Instant::now() + TIMEOUT_ONCE;
        while self.topology.is_none() || !self.pending.is_empty() {
            match tokio::time::timeout_at(deadline, self.updates.recv()).await {
                Ok(update) => self.apply(update)?,
                Err(_) => {
                    let error = self.view.error.as_ref().map(|error| format!(": {error}"));
                    let error = error.unwrap_or_default();
                    bail!("{what} is not in the API server after {TIMEOUT_ONCE:?}{error}");
                }
            }
        }
        Ok(())
    }

    /// Returns the zones as one page, for a pipe or a file.
    fn page(&mut self) -> String {
        self.view.command.clear();
        let size = if std::io::stdout().is_terminal() { crossterm::terminal::size().ok() } else { None };
        let width = size.map_or(100, |(columns, _)| usize::from(columns).clamp(40, 120));
        let mut page = render(&self.view, width, usize::MAX, colour());
        page.push('\n');
        page
    }

    async fn step(&mut self) {
        let before = self.node.kubelet.expected();
        let (is_visible, change) = match self.scenario.step() {
            Step::Start(pod) => self.start_pod(pod).await,
            Step::Stop(name) => {
                let at = Instant::now();
                self.node.stop_pod("default", &name);
                (true, Change { at, text: format!("{name} ended"), is_release: true })
            }
        };
        if is_visible && self.node.kubelet.expected() != before {
            self.view.changes += 1;
            self.pending.push_back(change);
        } else {
            self.add_event(change.text, None);
        }
        self.compare();
    }

    /// Starts a pod. Returns whether an object can show it, and the change.
    async fn start_pod(&mut self, pod: PodSpec) -> (bool, Change) {
        let name = pod.name.clone();
        let outcome = self.node.start_pod(pod.clone()).await;
        let at = self.node.kubelet.changed_at();
        let is_shared =
            |one: &Allocation| one.cpus.is_empty() && one.memory.is_empty() && one.devices.is_empty();
        let (is_visible, text) = match outcome {
            Ok(allocated) if !allocated.iter().all(is_shared) => {
                let zones = self.node.kubelet.with_model(|model| model.zones_of(&allocated));
                (true, format!("{name} took {} on node-{zones}", view::request(&pod)))
            }
            Ok(_) => (false, format!("{name} runs in the shared pool, without exclusive resources")),
            Err(rejection) => {
                self.scenario.rejected(&name);
                tracing::debug!("{rejection}");
                (false, format!("{name} was rejected: no zone has {}", view::request(&pod)))
            }
        };
        (is_visible, Change { at, text, is_release: false })
    }

    fn apply(&mut self, update: Option<Update>) -> anyhow::Result<()> {
        match update {
            Some(Update::Object { object, at }) => {
                self.view.zones = object.spec.zones.iter().map(Zone::from).collect();
                self.topology = Some((*object, at));
                self.compare();
            }
            Some(Update::Pod { name, zones }) => match zones {
                Some(zones) => drop(self.view.pods.insert(name, zones)),
                None => drop(self.view.pods.remove(&name)),
            },
            Some(Update::Error(error)) => self.view.error = error,
            None => bail!("the agent has ended"),
        }
        Ok(())
    }

    /// Compares the object with the kubelet's state. If they match, the object shows all changes.
    fn compare(&mut self) {
        let Some((object, received)) = &self.topology else { return };
        let received = *received;
        let differences = self.node.kubelet.expected().differences(object, Split::PerGroup);
        self.view.matches = differences.is_empty();
        if self.view.matches {
            for Change { at, text, is_release } in std::mem::take(&mut self.pending) {
                let took = received.saturating_duration_since(at);
                if is_release {
                    self.releases.add(took)
                } else {
                    self.allocations.add(took)
                }
                self.add_event(text, Some(took));
            }
        }
        self.view.writes = self.node.server.writes().changes;
        self.view.allocation = self.allocations.summary();
        self.view.release = self.releases.summary();
    }

    fn add_event(&mut self, text: String, took: Option<Duration>) {
        self.view.events.push_front(Event { text, took });
        self.view.events.truncate(MAX_EVENTS);
    }

    /// Stops the agent and waits for it.
    async fn end(self) {
        drop(self.stop_agent);
        // It exits by itself; a panic in it was already reported.
        let _ = self.agent.await;
    }
}
