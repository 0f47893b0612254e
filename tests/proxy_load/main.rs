//! The podresources proxy under load, with real components: `make proxy-load`.
//!
//! Clients with Kubernetes' own Go library send requests in a closed loop, first to the proxy of a real
//! kubelet, then to that kubelet.

#[path = "../real/support/mod.rs"]
#[allow(dead_code, unused_imports)] // the tests use the rest
mod support;

mod attack;
#[path = "../grpc_memory/frames.rs"]
#[allow(dead_code)] // the test of memory uses the rest
mod frames;
#[path = "../soak/agent.rs"]
#[allow(dead_code)] // `make soak` uses the rest
mod soak_agent;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use numacast::grpc::Limits;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;

use attack::Attack;
use support::koordinator::{self, DEVICE_ALLOCATED};
use support::podresources::{ClientKind, Clients, Recorder, Rpc, Sent};
use support::proxy::{Place, Proxy};
use support::wait::until;
use support::{Cluster, Needs, Parts, RealNode, parts, pod, usage};

/// Clients in closed loop before the proxy and before the kubelet itself, with one table at the end.
#[derive(Debug, Parser)]
#[command(name = "proxy-load")]
struct Options {
    /// How many clients.
    #[arg(long, default_value_t = 200)]
    clients: u32,
    /// How long each load is, in seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// How many pods the node has; every fourth has a device by annotation, and the first four have one of a plugin.
    #[arg(long, default_value_t = 40)]
    pods: usize,
    /// Size of the large responses, in bytes.
    #[arg(long, default_value_t = 5 << 20)]
    large: usize,
    /// Attack the proxy instead, with a simulated kubelet and API server: one run per kind of attack.
    #[arg(long)]
    attack: bool,
    /// Run as an attacker (internal).
    #[arg(long, hide = true, requires = "socket")]
    attacker: Option<Attack>,
    /// What it attacks.
    #[arg(long, hide = true)]
    socket: Option<PathBuf>,
    /// The binary under test.
    #[arg(long, default_value = env!("CARGO_BIN_EXE_numacast"))]
    binary: PathBuf,
}

/// Maximum number of calls to the kubelet in any second.
const CALLS_PER_SECOND: usize = 30;
/// Maximum number of concurrent calls of all kinds.
const IN_FLIGHT: usize = 2;
/// Memory limit of the agent with the proxy, without requests.
const AT_REST: usize = 16 << 20;
/// Memory per connection with an active request.
const CONNECTION: usize = 48 << 10;
/// Required ratio of responses to those of the kubelet alone.
const MIN_RATIO: f64 = 20.0;

/// The output of `podresources load`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Figures {
    calls: u64,
    accepted: u64,
    accepted_per_second: f64,
    p50: f64,
    p99: f64,
    max: f64,
    bytes: usize,
    codes: BTreeMap<String, u64>,
    texts: Vec<String>,
}

impl Figures {
    fn row(&self, what: &str, more: &str) -> String {
        let Self { accepted_per_second, p50, p99, max, bytes, .. } = self;
        let failed = 100.0 * (self.calls - self.accepted) as f64 / self.calls.max(1) as f64;
        format!(
            "| {what} | {accepted_per_second:.0} | {failed:.2} % | {p50:.1} | {p99:.1} | {max:.0} | {} | {more} |",
            size(*bytes)
        )
    }

    fn check(&self, what: &str) -> Result<()> {
        ensure!(!self.codes.contains_key("ResourceExhausted"), "{what}: {:?}", self.texts);
        ensure!(
            self.accepted == self.calls && self.accepted > 0,
            "{what}: {:?}, {:?}",
            self.codes,
            self.texts
        );
        Ok(())
    }
}

fn size(bytes: usize) -> String {
    if bytes >= 1 << 20 {
        format!("{:.1} MiB", bytes as f64 / 1048576.0)
    } else {
        format!("{} KiB", bytes >> 10)
    }
}

const HEAD: &str = "| server | responses per second | rejected | p50 ms | p99 ms | max ms | response | the process meanwhile |\n\
                    |---|---|---|---|---|---|---|---|";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let mut out = std::io::stdout();
    if let Some((attack, socket)) = options.attacker.zip(options.socket.as_ref()) {
        attack::attack(attack, socket);
        return Ok(ExitCode::SUCCESS);
    }
    if options.attack {
        attack::run(&options, &mut out).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { bail!("the real parts cannot run here") };
    parts::fetched(&["podresources"])?.context("no clients")?;
    let clients = Clients::of(&parts);
    let cluster = Cluster::start(&parts).await?;
    let node = RealNode::on("two-by-eight")?.start(&cluster).await?;
    set_up(&options, &cluster, &node).await?;
    writeln!(out, "{} clients for {} s, {} pods\n\n{HEAD}", options.clients, options.seconds, options.pods)?;

    let mut best = f64::INFINITY;
    for place in [Place::Standalone, Place::Agent] {
        let small = Load { what: "", pad: 0, more: &[] };
        let figures = small.run(&options, &clients, &node, place, &mut out).await?;
        best = best.min(figures.accepted_per_second);
        // Decoding would keep the clients busy.
        let more: &[_] = &["--limit", "16777216", "--decode=false"];
        let large = Load { what: ", large responses", pad: options.large, more };
        let figures = large.run(&options, &clients, &node, place, &mut out).await?;
        ensure!(figures.bytes >= options.large, "large responses have {} bytes", figures.bytes);
    }
    let mixed = Load { what: ", every tenth a Get", pad: 0, more: &["--mix", "get:default/pod-0:10"] };
    mixed.run(&options, &clients, &node, Place::Standalone, &mut out).await?;
    let alone = load(&options, &clients, &node.socket(), &[]).await?;
    writeln!(out, "{}", alone.row("the kubelet itself", ""))?;
    writeln!(out, "its errors: {:?}, {:?}\n", alone.codes, alone.texts)?;
    let times = best / alone.accepted_per_second;
    writeln!(out, "The proxy sends {times:.0} times as many responses per second as the kubelet alone.")?;
    ensure!(times >= MIN_RATIO, "that is less than {MIN_RATIO}");
    Ok(ExitCode::SUCCESS)
}

/// Creates pods on the node, some with devices of plugins and some by annotation.
async fn set_up(options: &Options, cluster: &Cluster, node: &RealNode) -> Result<()> {
    let admin = cluster.client();
    koordinator::install(&admin).await?;
    let gpus = (0..options.pods).map(|minor| {
        json!({
            "type": "gpu", "id": format!("GPU-{minor:08x}"), "minor": minor, "health": true,
            "topology": {"socketID": 0, "nodeID": minor % 2, "pcieID": "pci0000:3a", "busID": ""},
        })
    });
    koordinator::describe(&admin, node.name(), gpus.collect()).await?;
    for number in 0..options.pods {
        let mut one = pod(&format!("pod-{number}"));
        if number % 4 == 0 {
            let gpu = json!({"gpu": [{"minor": number, "id": format!("GPU-{number:08x}")}]});
            one = one.annotation(DEVICE_ALLOCATED, &gpu.to_string());
        }
        if number < 4 {
            one = one.device("example.com/nic", 1);
        }
        node.submit(&one).await?;
    }
    for number in 0..options.pods {
        node.wait_for_outcome(&format!("pod-{number}")).await?;
    }
    Ok(())
}

/// Runs one load.
async fn load(options: &Options, clients: &Clients, socket: &Path, more: &[&str]) -> Result<Figures> {
    let mut command = tokio::process::Command::new(clients.go());
    command.arg("load").arg("--socket").arg(socket).args(more).kill_on_drop(true);
    command.args(["--clients", &options.clients.to_string(), "--seconds", &options.seconds.to_string()]);
    let output = command.output().await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn name(place: Place) -> &'static str {
    match place {
        Place::Standalone => "`numacast proxy`",
        Place::Agent => "the agent with the proxy",
    }
}

/// The requests of the proxy's clients. A recorder in front of the kubelet sees the proxy's calls.
struct Load {
    what: &'static str,
    /// Bytes added to each response.
    pad: usize,
    more: &'static [&'static str],
}

impl Load {
    async fn run(
        &self,
        options: &Options,
        clients: &Clients,
        node: &RealNode,
        place: Place,
        out: &mut impl Write,
    ) -> Result<Figures> {
        let what = format!("{}{}", name(place), self.what);
        let dir = node.dir().join(format!("recorder of {what}"));
        let pad = self.pad.to_string();
        let recorder =
            Recorder::start(clients, &node.socket(), &dir, &["--plain", "--quiet", "--pad", &pad]).await?;
        let upstream = format!("kubelet.socket={}", recorder.socket().display());
        let mut proxy = Proxy::start_of(&options.binary, node, place, &[&upstream]).await?;
        merges(&proxy, clients, options).await?;
        let known = recorder.count()?;
        let (resident, spent) = (usage::memory(proxy.id(), "VmRSS")?, usage::cpu(proxy.id())?);
        let figures = load(options, clients, &proxy.socket(), self.more).await?;
        let spent = (usage::cpu(proxy.id())? - spent).as_secs_f64();
        let (after, peak) = (usage::memory(proxy.id(), "VmRSS")?, usage::memory(proxy.id(), "VmHWM")?);
        let sent = recorder.sent_since(known)?;
        let per_second = most_per_second(&sent);
        let in_flight = most_in_flight(&sent);
        let bound = max_resident(options, place, figures.bytes);
        let mib = |bytes: usize| bytes as f64 / 1048576.0;
        let more = format!(
            "{:.1} calls of the kubelet per second, at most {per_second} in any, {in_flight} at once; {:.1} MiB before, {:.1} \
             after, {:.1} at most (bound {:.0}); {:.0} % of a core",
            sent.len() as f64 / f64::from(options.seconds),
            mib(resident),
            mib(after),
            mib(peak),
            mib(bound),
            100.0 * spent / f64::from(options.seconds),
        );
        writeln!(out, "{}", figures.row(&what, &more))?;
        figures.check(&what)?;
        proxy.still_runs()?;
        ensure!(per_second <= CALLS_PER_SECOND, "{what}: {per_second} calls in a second");
        ensure!(in_flight <= IN_FLIGHT, "{what}: {in_flight} calls in flight");
        ensure!(peak <= bound, "{what}: {:.1} MiB, more than {:.1}", mib(peak), mib(bound));
        Ok(figures)
    }
}

/// Returns the allowed resident memory for responses of this size. Besides the memory at rest and that of the
/// connections, this is
/// - the responses being sent: the server's limit, plus a response for each running call when it was
///   reached;
/// - a response being received for each running call: what is made of it counts as being sent;
/// - in the agent, the last decoded response and the one being decoded.
///
/// More clients only add connections: if each had its own response, 200 would need 1 GiB.
fn max_resident(options: &Options, place: Place, response: usize) -> usize {
    let clients = options.clients as usize;
    let sent = Limits::default().response_bytes.min(clients * response) + IN_FLIGHT * response;
    let decoded = if place == Place::Agent { 2 * response } else { 0 };
    AT_REST + clients * CONNECTION + sent + IN_FLIGHT * response + decoded
}

/// Waits until the proxy has merged every annotation.
async fn merges(proxy: &Proxy, clients: &Clients, options: &Options) -> Result<()> {
    let right = options.pods.div_ceil(4) as f64;
    until("the proxy merges", async || {
        clients
            .request_with(ClientKind::Go, &proxy.socket(), &Rpc::List, &["--limit", "16777216"])
            .await?
            .ok()?;
        let merged = proxy.sum("numacast_proxy_annotated_devices", &["state=\"merged\""]).await?;
        ensure!(merged == right, "{merged} devices, not {right}");
        Ok(())
    })
    .await
    .with_context(|| proxy.log_tail())
}

/// Returns the maximum number of calls within any second.
fn most_per_second(sent: &[Sent]) -> usize {
    let mut times: Vec<u64> = sent.iter().map(|one| one.received).collect();
    times.sort_unstable();
    let within = |at: &u64| times.iter().filter(|other| (*at..*at + 1_000_000_000).contains(other)).count();
    times.iter().map(within).max().unwrap_or(0)
}

/// Returns the maximum number of concurrent calls.
fn most_in_flight(sent: &[Sent]) -> usize {
    let at = |moment: u64| sent.iter().filter(|one| (one.received..one.answered).contains(&moment)).count();
    sent.iter().map(|one| at(one.received)).max().unwrap_or(0)
}
