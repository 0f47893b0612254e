//! The phases that the fleet goes through.

use std::io::Write as _;
use std::time::Duration;

use anyhow::Result;
use fastrand::Rng;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, sleep, sleep_until};

use crate::audit::AuditLog;
use crate::figures::{self, Kind, Phase};
use crate::fleet::{self, Fleet};
use crate::meter::{self, Meter};
use crate::samples::Samples;
use crate::support::{Cluster, Parts};
use crate::{Options, PhaseName};

/// How long to wait for the agents' requests after an event.
const AFTERMATH: Duration = Duration::from_secs(5);
/// How long a newly started fleet settles before the calm phase.
const SETTLE: Duration = Duration::from_secs(20);
/// How long the API server is down.
const DOWN: Duration = Duration::from_secs(10);
/// How long to count requests after its restart; shorter than the shortest watch.
const COUNTED_AFTER_RESTART: Duration = Duration::from_secs(45);
/// How long an API server needs to finish its initial reads.
const WARM_UP: Duration = Duration::from_secs(15);
/// How long the kubelets are down; half of this is counted afterwards too.
const KUBELETS_DOWN: Duration = Duration::from_secs(60);
/// Time between stopping an agent and starting the next one on its node.
const REPLACED: Duration = Duration::from_secs(1);
/// Number of pods that wait for the scheduler plugin.
const REJECTED: usize = 5;

/// The fingerprint methods.
const ALL: &str = "all";
const EXCLUSIVE: &str = "with-exclusive-resources";

/// A fleet with its API server.
pub(crate) struct Run {
    // Dropped first: clients stop before the API server.
    fleet: Fleet,
    cluster: Cluster,
    log: AuditLog,
    rng: Rng,
    /// The counters of an API server that was just started and has no clients.
    idle: Samples,
    phases: Vec<Phase>,
    version: String,
}

/// Describes the pods' lifetime.
pub(crate) fn lifetime(minutes: u64) -> String {
    match minutes {
        60.. if minutes.is_multiple_of(60) => format!("pods live {} h", minutes / 60),
        _ => format!("pods live {minutes} min"),
    }
}

impl Run {
    /// Creates the fleet, without agents.
    pub(crate) async fn set_up(
        options: &Options,
        parts: &Parts,
        mut cluster: Cluster,
        version: &str,
        rng: Rng,
    ) -> Result<Self> {
        let began = Instant::now();
        let fleet = Fleet::set_up(parts, &cluster, options.nodes, options.pods, &options.set).await?;
        fleet::policies_are_in_force(&cluster, &fleet).await?;
        print(&format!(
            "API server {version}: {} nodes and {} pods made in {:.0} s",
            options.nodes,
            options.nodes * options.pods,
            began.elapsed().as_secs_f64()
        ))?;
        cluster.kill_api_server()?;
        cluster.restart_api_server().await?;
        sleep(WARM_UP).await;
        let idle = meter::samples(&cluster).await?;
        let log = AuditLog::new(cluster.audit_log());
        Ok(Self { fleet, cluster, log, rng, idle, phases: Vec::new(), version: version.to_owned() })
    }

    /// Stops the fleet and returns the counts.
    pub(crate) async fn end(mut self) -> Result<Vec<Phase>> {
        self.fleet.stop_agents(&self.fleet.nodes).await?;
        self.fleet.stop_controllers().await?;
        Ok(self.phases)
    }

    /// Runs every selected phase.
    pub(crate) async fn all(&mut self, options: &Options) -> Result<()> {
        let (calm, seconds) = (Duration::from_secs(options.calm), Duration::from_secs(options.seconds));
        self.start().await?;
        sleep(SETTLE).await;
        if options.has(PhaseName::Calm) {
            self.calm(calm).await?;
        }
        if options.has(PhaseName::Churn) {
            for minutes in &options.lifetimes {
                self.churn(Kind::Churn, *minutes, seconds).await?;
            }
        }
        if options.has(PhaseName::Rollout) {
            self.rollout(10).await?;
            self.rollout(1).await?;
        }
        if options.has(PhaseName::Restart) {
            self.restart().await?;
        }
        if options.has(PhaseName::Kubelets) {
            self.without_kubelets().await?;
        }
        if options.has(PhaseName::Pending) {
            self.pending(seconds).await?;
            self.after_pending(seconds).await?;
        }
        if options.has(PhaseName::Exclusive) {
            self.fleet.stop_agents(&self.fleet.nodes).await?;
            let late = self.fleet.start_agents(&self.fleet.nodes, EXCLUSIVE).await?;
            sleep(SETTLE).await;
            self.churn(Kind::ChurnExclusive, 60, seconds).await?;
            self.note_late(late)?;
        }
        Ok(())
    }

    async fn begin(&mut self) -> Result<Meter> {
        self.fleet.connect_again(&self.cluster).await?;
        Meter::begin(&self.cluster, &self.fleet, &mut self.log).await
    }

    async fn note(&mut self, meter: Meter, kind: Kind, name: String, changes: usize) -> Result<()> {
        let phase = meter.end(&self.cluster, &self.fleet, &mut self.log, (kind, name, changes)).await?;
        let table = figures::table(std::slice::from_ref(&phase));
        print(&format!("\n{}, {}", self.version, table.lines().last().unwrap_or_default()))?;
        print(phase.requests().trim_end())?;
        if kind == Kind::Restart {
            print(&format!("  {}", describe(&phase.arrivals)))?;
        }
        self.phases.push(phase);
        Ok(())
    }

    /// Records in the last phase how many agents were not ready in time.
    fn note_late(&mut self, late: usize) -> Result<()> {
        let Some(phase) = self.phases.last_mut().filter(|_| late > 0) else { return Ok(()) };
        phase.late = late;
        print(&format!("  agents that were not ready after two minutes: {late}"))
    }

    async fn start(&mut self) -> Result<()> {
        let meter = self.begin().await?;
        self.fleet.start_controllers().await?;
        let late = self.fleet.start_agents(&self.fleet.nodes, ALL).await?;
        sleep(AFTERMATH).await;
        self.note(meter, Kind::Rollout, "all agents start for the first time".to_owned(), 0).await?;
        self.note_late(late)
    }

    async fn calm(&mut self, time: Duration) -> Result<()> {
        let meter = self.begin().await?;
        sleep(time).await;
        self.note(meter, Kind::Calm, "calm".to_owned(), 0).await
    }

    /// Replaces pods at the rate that results from this lifetime.
    async fn churn(&mut self, kind: Kind, minutes: u64, time: Duration) -> Result<()> {
        let meter = self.begin().await?;
        let changes = self.replace_pods(minutes, time).await?;
        sleep(AFTERMATH).await;
        let method = if kind == Kind::ChurnExclusive { format!(", {EXCLUSIVE}") } else { String::new() };
        self.note(meter, kind, lifetime(minutes) + &method, changes).await
    }

    async fn replace_pods(&mut self, minutes: u64, time: Duration) -> Result<usize> {
        let all = self.fleet.nodes.len() * self.fleet.pods;
        let every = Duration::from_secs(minutes * 60).div_f64(all as f64);
        let changes = (time.as_secs_f64() / every.as_secs_f64()).round().max(1.0) as u32;
        let start = Instant::now();
        let mut going = FuturesUnordered::new();
        for number in 0..changes {
            let due = start + every * number;
            while going.is_empty() || Instant::now() < due {
                tokio::select! {
                    () = sleep_until(due) => break,
                    Some(done) = going.next() => done?,
                }
            }
            let (node, which) = (self.rng.usize(..self.fleet.nodes.len()), self.rng.u64(..));
            going.push(self.fleet.replace_one(node, which));
        }
        while let Some(done) = going.next().await {
            let done: Result<()> = done;
            done?;
        }
        sleep_until(start + time).await;
        Ok(changes as usize)
    }

    /// Replaces all agents, in this many batches.
    async fn rollout(&mut self, parts: usize) -> Result<()> {
        let meter = self.begin().await?;
        let connections = self.fleet.agents.connections();
        let mut late = 0;
        for part in self.fleet.nodes.chunks(self.fleet.nodes.len().div_ceil(parts)) {
            self.fleet.stop_agents(part).await?;
            sleep(REPLACED).await;
            late += self.fleet.start_agents(part, ALL).await?;
        }
        sleep(AFTERMATH).await;
        let connections = self.fleet.agents.connections() - connections;
        let how = if parts == 1 { "all at once".to_owned() } else { format!("1 of {parts} at a time") };
        self.note(meter, Kind::Rollout, format!("rollout, {how}"), 0).await?;
        self.note_late(late)?;
        print(&format!("  connections of agents: {connections}"))
    }

    async fn restart(&mut self) -> Result<()> {
        let mut meter = self.begin().await?;
        self.cluster.kill_api_server()?;
        self.fleet.agents.cut();
        self.fleet.controllers.cut();
        sleep(DOWN).await;
        meter.restarts(&self.idle);
        self.cluster.restart_api_server().await?;
        sleep(COUNTED_AFTER_RESTART).await;
        self.note(meter, Kind::Restart, "the API server is killed and starts again".to_owned(), 0).await
    }

    async fn without_kubelets(&mut self) -> Result<()> {
        let meter = self.begin().await?;
        self.fleet.kubelets_run(false)?;
        sleep(KUBELETS_DOWN).await;
        self.fleet.kubelets_run(true)?;
        sleep(KUBELETS_DOWN / 2).await;
        self.note(meter, Kind::NoKubelet, "a minute without kubelets".to_owned(), 0).await
    }

    /// Pods wait for the plugin: nothing else happens for half of the time, then pods are replaced.
    async fn pending(&mut self, time: Duration) -> Result<()> {
        let meter = self.begin().await?;
        let names = self.fleet.reject(REJECTED).await?;
        sleep(time / 2).await;
        let changes = self.replace_pods(60, time / 2).await?;
        self.note(meter, Kind::Pending, format!("{REJECTED} pods wait for the plugin"), changes).await?;
        self.fleet.delete_pods(&names).await
    }

    async fn after_pending(&mut self, time: Duration) -> Result<()> {
        sleep(AFTERMATH).await;
        let meter = self.begin().await?;
        let changes = self.replace_pods(60, time / 2).await?;
        sleep(AFTERMATH).await;
        self.note(meter, Kind::Churn, "after those pods were deleted".to_owned(), changes).await
    }
}

/// Describes the times of requests.
fn describe(arrivals: &[f64]) -> String {
    let [first, half, last] = [0.05, 0.5, 0.95].map(|share| figures::percentile(arrivals, share));
    format!(
        "{} requests of agents after it: 5 % of them within {first:.1} s, half within {half:.1} s, 95 % within {last:.1} s; \
         {} in the fullest second",
        arrivals.len(),
        figures::fullest_second(arrivals)
    )
}

/// Prints a progress line.
fn print(line: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}
