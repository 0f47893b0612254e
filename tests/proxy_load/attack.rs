//! The proxy under attack: `make proxy-load ARGS=--attack`.
//!
//! Local processes attack the proxy while clients send ten requests per second and the agent publishes its
//! kubelet's allocations. The kubelet and the API server are simulated.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use numacast::kubelet::proto::v1::ListPodResourcesRequest;
use numacast::kubelet::proto::v1::pod_resources_lister_client::PodResourcesListerClient;
use numacast_sim::kubelet::{Options as Kubelet, PodSpec};
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};

use super::Options;
use super::frames::{
    DATA, END_HEADERS, END_STREAM, HEADERS, PING, RST_STREAM, SETTINGS, field, frame, indexed, text,
};
use super::soak_agent::Agent;

/// What an attacker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Attack {
    /// Nothing, for comparison.
    None,
    /// Calls of a method that is not served.
    Unknown,
    /// Calls with two hundred unknown fields, cancelled at once.
    Fields,
    /// The same from HPACK's table, a byte each.
    Indexed,
    /// Calls with two hundred trailers.
    Trailers,
    /// Calls that are cancelled at once.
    Resets,
    /// PINGs.
    Pings,
    /// Connections, as many as can be made.
    Connections,
}

/// Connections per attacker.
const CONNECTIONS: usize = 64;
/// Concurrent calls per connection.
const CALLS: u32 = 64;
/// Number of legitimate clients, and the interval of their requests.
const CLIENTS: usize = 20;
const PERIOD: Duration = Duration::from_millis(100);

/// Prints a row for each attack.
pub(crate) async fn run(options: &Options, out: &mut impl Write) -> Result<()> {
    writeln!(
        out,
        "| attack | responses | failed | p50 ms | p99 ms | published p50 ms | max ms | CPU | peak memory |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|---|---|")?;
    for attack in Attack::value_variants() {
        writeln!(out, "{}", under(*attack, options).await.with_context(|| format!("{attack:?}"))?)?;
    }
    Ok(())
}

async fn under(attack: Attack, options: &Options) -> Result<String> {
    let dir = tempfile::tempdir()?;
    let at = format!("proxy.dir={}", dir.path().join("proxy").display());
    let settings = ["--set", "proxy.enabled=true", "--set", &at, "--set", "proxy.annotations.koordinator=[]"];
    let kubelet = Kubelet { release_lag: Duration::ZERO, ..Kubelet::default() };
    let mut agent = Agent::start(&options.binary, kubelet, &settings).await?;
    let socket = dir.path().join("proxy/kubelet.sock");
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
        clients.push(endpoint.connect().await?);
    }
    let attacker = (attack != Attack::None).then(|| Attacker::start(attack, &socket)).transpose()?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (begun, spent) = (Instant::now(), agent.cpu()?);
    let end = begun + Duration::from_secs(options.seconds.into());
    let mut requests = JoinSet::new();
    clients.into_iter().for_each(|channel| drop(requests.spawn(request(channel, end))));
    let mut published = Vec::new();
    while Instant::now() < end {
        let name = format!("pod-{}", published.len());
        agent.node.start_pod(PodSpec::guaranteed(&name, 2, 1 << 20)).await?;
        published.push(agent.wait_until_correct().await?);
        ensure!(agent.node.stop_pod("default", &name), "{name} is gone");
        agent.wait_until_correct().await?;
    }
    let (mut took, mut failed) = (Vec::new(), 0);
    while let Some(result) = requests.join_next().await {
        let (times, failures) = result?;
        took.extend(times);
        failed += failures;
    }
    let cpu = (agent.cpu()? - spent).as_secs_f64() / begun.elapsed().as_secs_f64();
    let peak = agent.sample()?.peak;
    drop(attacker);
    let [took, published] = [took, published].map(|mut times| {
        times.sort_unstable();
        times
    });
    let at = |times: &[Duration], share: f64| {
        let at = (times.len() as f64 * share) as usize;
        times.get(at.min(times.len().saturating_sub(1))).map_or(f64::NAN, |time| time.as_secs_f64() * 1000.0)
    };
    Ok(format!(
        "| {attack:?} | {} | {failed} | {:.1} | {:.1} | {:.1} | {:.1} | {:.0} % | {:.1} MiB |",
        took.len(),
        at(&took, 0.5),
        at(&took, 0.99),
        at(&published, 0.5),
        at(&published, 1.0),
        100.0 * cpu,
        peak as f64 / 1024.0,
    ))
}

/// Sends List requests until `end`. Returns the response times and the number of failed calls.
async fn request(channel: Channel, end: Instant) -> (Vec<Duration>, usize) {
    let mut client = PodResourcesListerClient::new(channel);
    let (mut took, mut failed) = (Vec::new(), 0);
    let mut times = tokio::time::interval(PERIOD);
    while Instant::now() < end {
        times.tick().await;
        let begun = Instant::now();
        match client.list(ListPodResourcesRequest {}).await {
            Ok(_) => took.push(begun.elapsed()),
            Err(_) => failed += 1,
        }
    }
    (took, failed)
}

/// A process that attacks until dropped.
struct Attacker(Child);

impl Attacker {
    fn start(attack: Attack, socket: &Path) -> Result<Self> {
        let name = attack.to_possible_value().context("no name")?;
        // The attacker's own CPU use is not what is measured.
        let mut command = Command::new("nice");
        command.args(["-n", "19"]).arg(std::env::current_exe()?);
        command.args(["--attacker", name.get_name(), "--socket"]).arg(socket).stdin(Stdio::piped());
        Ok(Self(command.spawn()?))
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Attacks until the parent process closes stdin.
pub(crate) fn attack(attack: Attack, socket: &Path) {
    for _ in 0..CONNECTIONS {
        let socket = socket.to_owned();
        thread::spawn(move || {
            loop {
                // The server keeps cutting the connection.
                let _ = one(attack, &socket);
                if attack != Attack::Connections {
                    thread::sleep(Duration::from_millis(10));
                }
            }
        });
    }
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// Attacks on one connection until it is cut.
fn one(attack: Attack, socket: &PathBuf) -> std::io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    let preface =
        [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &frame(SETTINGS, 0, 0, &[])[..], &frame(SETTINGS, 1, 0, &[])];
    stream.write_all(&preface.concat())?;
    if attack == Attack::Connections {
        // Wait until the connection is accepted.
        stream.read_exact(&mut [0; 9])?;
        return Ok(());
    }
    let (ended, ends) = mpsc::channel();
    let reading = stream.try_clone()?;
    thread::spawn(move || read(reading, &ended));
    let mut calls = 0_u32;
    for number in 0.. {
        stream.write_all(&bytes(attack, 2 * number + 1))?;
        if matches!(attack, Attack::Unknown | Attack::Trailers) {
            calls += 1;
            if calls >= CALLS {
                ends.recv().map_err(std::io::Error::other)?;
                calls -= 1;
            }
        }
    }
    Ok(())
}

/// Returns the bytes to send repeatedly.
fn bytes(attack: Attack, stream: u32) -> Vec<u8> {
    let list = |more: &[u8]| {
        let path = text(b"/v1.PodResourcesLister/List");
        let kind = field(b"content-type", b"application/grpc");
        frame(HEADERS, END_HEADERS, stream, &[&[0x83, 0x86, 0x04], &path[..], &kind, more].concat())
    };
    let message = |flags| frame(DATA, flags, stream, &[0; 5]);
    let reset = || frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]);
    match attack {
        Attack::None | Attack::Connections => Vec::new(),
        Attack::Unknown => {
            let path = text(b"/v1.PodResourcesLister/Nothing");
            let kind = field(b"content-type", b"application/grpc");
            let head = [&[0x83, 0x86, 0x04], &path[..], &kind].concat();
            [frame(HEADERS, END_HEADERS, stream, &head), message(END_STREAM)].concat()
        }
        Attack::Fields => [list(&fields()), reset()].concat(),
        Attack::Indexed => {
            // Index of the newest entry of the dynamic table.
            let more = [&indexed(b"x", b"y")[..], &[0xbe; 200]].concat();
            [list(&more), reset()].concat()
        }
        Attack::Trailers => {
            let trailers = frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields());
            [list(&[]), message(0), trailers].concat()
        }
        Attack::Resets => [list(&[]), message(END_STREAM), reset()].concat(),
        Attack::Pings => frame(PING, 0, 0, &[1; 8]).repeat(100),
    }
}

fn fields() -> Vec<u8> {
    let letter = |at: u8| b'a' + at % 26;
    (0..200).flat_map(|at| field(&[letter(at / 26), letter(at)], b"")).collect()
}

/// Reads all frames and reports each call that ended.
fn read(mut stream: UnixStream, ended: &mpsc::Sender<()>) {
    let (mut head, mut payload) = ([0; 9], vec![0; 1 << 16]);
    while stream.read_exact(&mut head).is_ok() {
        let length = usize::from(head[1]) << 8 | usize::from(head[2]);
        if stream.read_exact(&mut payload[..length]).is_err() {
            return;
        }
        let end = head[3] == RST_STREAM || head[3] == HEADERS && head[4] & END_STREAM != 0;
        let granted = head[3] == DATA && length > 0;
        if granted {
            let grant = frame(8, 0, 0, &u32::try_from(length).unwrap_or(1).to_be_bytes());
            let _ = stream.write_all(&grant);
        }
        if end && ended.send(()).is_err() {
            return;
        }
    }
}
