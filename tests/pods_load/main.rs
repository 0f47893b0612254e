//! The Pods API under load: `make pods-load`.
//!
//! A thousand clients watch the shipped binary, which watches one simulated kubelet. Each client must receive
//! each event, byte for byte, once and in order. It measures the time until the last client receives an
//! event: at ten events per second, with additional clients that do not read, and at rising rates until the
//! server is overloaded.

#[path = "../grpc_memory/frames.rs"]
#[allow(dead_code)] // the test of memory uses the rest
mod frames;
#[path = "../soak/usage.rs"]
mod usage;
mod watcher;

use std::cell::RefCell;
use std::io::Write;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use numacast::core_v1::proto as core;
use numacast_sim::pods_api::SimPodsApi;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{sleep, sleep_until};

use watcher::Watcher;

/// A thousand clients that watch the pods of one node.
#[derive(Debug, Parser)]
#[command(name = "pods-load")]
struct Options {
    /// Number of watching clients.
    #[arg(long, default_value_t = 1000)]
    watchers: usize,
    /// How many pods the node has, of 5 to 10 KiB each.
    #[arg(long, default_value_t = 500)]
    pods: usize,
    /// How many pods change in a second.
    #[arg(long, default_value_t = 10)]
    rate: u32,
    /// Duration of each measurement at `--rate`, in seconds.
    #[arg(long, default_value_t = 30)]
    seconds: u32,
    /// Number of other clients, which do not read.
    #[arg(long, default_value_t = 10)]
    stalled: usize,
    /// Rates to try, in events per second, in this order, until the server is overloaded.
    #[arg(long, value_delimiter = ',', default_values_t = [20, 50, 100, 200, 400])]
    rates: Vec<u32>,
    /// Maximum p50 of the time until the last watcher receives an event, at `--rate`, in ms. The clients run on the same
    /// machine, without compiler optimisation.
    #[arg(long, default_value_t = 250.0)]
    p50: f64,
    /// The same for p99, in ms.
    #[arg(long, default_value_t = 1000.0)]
    p99: f64,
    /// The binary under test.
    #[arg(long, default_value = env!("CARGO_BIN_EXE_numacast"))]
    binary: PathBuf,
}

/// Maximum memory of the server per watcher, in bytes.
const WATCHER: f64 = 40960.0;
/// Maximum memory of the server for its pods, in addition to twice their encoded size: it caches them once,
/// and receives a list now and then.
const AT_REST: usize = 2 << 20;
/// The server counts as overloaded if the p99 of the time until the last watcher receives an event exceeds this,
/// in ms, or if watchers are disconnected.
const OVERLOADED: f64 = 2000.0;
/// Upper bound for any wait.
const TIMEOUT: Duration = Duration::from_secs(120);

/// What all watchers have received.
#[derive(Default)]
struct Received {
    /// The pods after each change, in order, and when each was sent to the server.
    pods: Vec<Vec<u8>>,
    sent_at: Vec<Instant>,
    /// How many watchers have received each change, and when the last of them did.
    last: Vec<(usize, Instant)>,
    /// Number of watchers that have received the initial state.
    synced: usize,
    /// Errors of watchers that were disconnected or received something wrong.
    lost: Vec<String>,
}

/// Verifies the events of one watcher.
struct Checker {
    received: Rc<RefCell<Received>>,
    /// Number of initial pods received.
    initial: usize,
    pods: usize,
    /// Index of the next expected change.
    next: Option<usize>,
}

impl Checker {
    fn take(&mut self, message: &[u8]) -> Result<()> {
        let received = &mut *self.received.borrow_mut();
        let Some(next) = self.next else {
            if message == [8, 4] {
                ensure!(self.initial == self.pods, "{} pods at first, not {}", self.initial, self.pods);
                (self.next, received.synced) = (Some(received.pods.len()), received.synced + 1);
                return Ok(());
            }
            self.initial += 1;
            return Ok(());
        };
        let expected = received.pods.get(next).context("an event without a change")?;
        // MODIFIED and the pod, whose length takes two bytes.
        ensure!(
            message.starts_with(&[8, 2, 18]) && message[5..] == expected[..],
            "another event than {next}"
        );
        let (count, last) = &mut received.last[next];
        (*count, *last, self.next) = (*count + 1, Instant::now(), Some(next + 1));
        Ok(())
    }
}

/// The results of a load.
struct Figures {
    rate: u32,
    changes: usize,
    /// Times from the source's event until the last watcher received it, in ms, sorted.
    waits: Vec<f64>,
    lost: usize,
    /// Upper bounds, from the server's own histogram, of the time until it had passed an event on to all
    /// watchers, in ms.
    own: [f64; 2],
    /// CPU time as a share of a core.
    cpu: f64,
}

impl Figures {
    fn at(&self, share: f64) -> f64 {
        let index = ((self.waits.len() as f64 * share).ceil() as usize).clamp(1, self.waits.len().max(1));
        self.waits.get(index - 1).copied().unwrap_or(f64::INFINITY)
    }

    fn row(&self, what: &str) -> String {
        format!(
            "| {what} | {} | {} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {} | {:.0} % |",
            self.rate,
            self.changes,
            self.at(0.5),
            self.at(0.99),
            self.at(1.0),
            self.own[0],
            self.own[1],
            self.lost,
            100.0 * self.cpu
        )
    }

    fn check_latency(&self, options: &Options) -> Result<()> {
        let Options { p50, p99, .. } = options;
        ensure!(self.at(1.0).is_finite(), "an event did not reach all watchers");
        ensure!(self.at(0.5) <= *p50 && self.at(0.99) <= *p99, "more than {p50} and {p99} ms");
        Ok(())
    }

    fn is_overloaded(&self) -> bool {
        self.lost > 0 || self.at(0.99) > OVERLOADED
    }
}

const HEAD: &str = "| watched by | events per second | events | to the last watcher p50 ms | p99 ms | max ms | server passed it to all watchers, p50 ms, upper bound | p99 ms, upper bound | cut off | CPU of the server |\n\
                    |---|---|---|---|---|---|---|---|---|---|";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode> {
    let options = Options::parse();
    LocalSet::new().run_until(run(&options)).await?;
    Ok(ExitCode::SUCCESS)
}

async fn run(options: &Options) -> Result<()> {
    let mut out = std::io::stdout();
    let (watchers, pods) = (options.watchers, options.pods);
    let mut node = Node::start(options).await?;
    let empty = node.resident()?;
    let bytes = node.set_up(pods).await?;
    let rest = node.resident()?;
    writeln!(
        out,
        "{pods} pods of {:.1} KiB; the server: {:.1} MiB without them, {:.1} MiB with them",
        bytes as f64 / pods as f64 / 1024.0,
        mib(empty),
        mib(rest)
    )?;
    let most = empty + 2 * bytes + AT_REST;
    ensure!(rest <= most, "that is more than {:.1} MiB", mib(most));

    let started = Instant::now();
    for _ in 0..watchers {
        node.watch(pods).await?;
    }
    node.until("all have received all pods", |received| received.synced == watchers).await?;
    let initial = started.elapsed();
    sleep(Duration::from_secs(2)).await;
    let idle = node.resident()?;
    let each = (idle.saturating_sub(rest)) as f64 / watchers as f64;
    writeln!(
        out,
        "{watchers} watchers connected and received all pods within {:.1} s; {:.1} MiB then, {:.1} KiB for each ({:.1} MiB at most)\n\n{HEAD}",
        initial.as_secs_f64(),
        mib(idle),
        each / 1024.0,
        mib(node.peak()?),
    )?;

    let usual = node.load(options.rate, options.seconds).await?;
    writeln!(out, "{}", usual.row(&watchers.to_string()))?;
    ensure!(usual.lost == 0, "{:?}", node.received.borrow().lost);
    usual.check_latency(options)?;
    ensure!(each <= WATCHER, "{each:.0} bytes for each watcher, more than {WATCHER}");

    // Clients that read only the beginning.
    let mut stalled = Vec::new();
    for _ in 0..options.stalled {
        stalled.push(Watcher::call(&node.socket).await?);
    }
    let beside = node.load(options.rate, options.seconds).await?;
    writeln!(out, "{}", beside.row(&format!("{watchers}, and {} that do not read", options.stalled)))?;
    ensure!(beside.lost == 0, "{:?}", node.received.borrow().lost);
    beside.check_latency(options)?;
    let left = node.metric("numacast_pods_api_watchers{server_api_version=\"v1alpha1\"}").await?;
    ensure!(
        left == watchers as f64,
        "{left} watches are open, expected {watchers}: clients that do not read were not disconnected"
    );
    for stalled in stalled {
        stalled.read_to_the_end().await?;
    }

    let mut best = options.rate;
    for rate in &options.rates {
        let figures = node.load(*rate, 10).await?;
        writeln!(out, "{}", figures.row(&watchers.to_string()))?;
        if figures.is_overloaded() {
            break;
        }
        best = *rate;
    }
    let after = node.resident()?;
    let all = node.api.watch_calls();
    writeln!(
        out,
        "\nIt serves {best} events per second to {watchers} watchers. {:.1} MiB after that, {:.1} MiB at most. The kubelet was \
         watched by {} at once, at most.",
        mib(after),
        mib(node.peak()?),
        node.upstream,
    )?;
    ensure!(node.upstream == 1, "{} watches of the kubelet at once, {all} in all", node.upstream);
    Ok(())
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / 1048576.0
}

/// A simulated kubelet, the server of its pods, and the watchers.
struct Node {
    _dir: tempfile::TempDir,
    api: SimPodsApi,
    server: Child,
    pid: u32,
    socket: PathBuf,
    metrics: std::net::SocketAddr,
    received: Rc<RefCell<Received>>,
    changes: usize,
    pods: usize,
    /// The maximum number of concurrent watches of the kubelet.
    upstream: usize,
}

impl Node {
    async fn start(options: &Options) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let kubelet = dir.path().join("kubelet");
        std::fs::create_dir_all(kubelet.join("pods-api"))?;
        let api = SimPodsApi::start(kubelet.join("pods-api/pods-api.sock"))?;
        let ours = dir.path().join("ours");
        // With thousands of free ports, no other process is likely to take this one meanwhile.
        let metrics = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = Command::new(&options.binary);
        command
            .arg("pods-api")
            .args(["--source", "podsApi", "--metrics-address", &metrics.to_string()])
            .args(["--health-address", &metrics.to_string(), "--log-level", "warn"])
            .arg("--kubelet-dir")
            .arg(&kubelet)
            .arg("--dir")
            .arg(&ours)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let server = command.spawn().with_context(|| options.binary.display().to_string())?;
        let pid = server.id().context("the server has ended at once")?;
        let socket = ours.join("pods-api.sock");
        let (received, changes, upstream) = (Rc::default(), 0, 0);
        let node =
            Self { _dir: dir, api, server, pid, socket, metrics, received, changes, pods: 0, upstream };
        let start = Instant::now();
        while !node.socket.exists() || node.metric("process_resident_memory_bytes").await.is_err() {
            ensure!(start.elapsed() < TIMEOUT, "there is no server");
            sleep(Duration::from_millis(50)).await;
        }
        Ok(node)
    }

    /// Creates pods and waits until the server has them. Returns their total size in bytes.
    async fn set_up(&mut self, pods: usize) -> Result<usize> {
        self.pods = pods;
        let all: Vec<core::Pod> = (0..pods).map(|number| pod(number, 0)).collect();
        all.iter().for_each(|pod| self.api.set_silently(pod));
        let start = Instant::now();
        // A kubelet that has just started is not trusted at once.
        while self
            .metric("numacast_pods_api_pods{server_api_version=\"v1alpha1\",state=\"served\"}")
            .await
            .ok()
            != Some(pods as f64)
        {
            ensure!(start.elapsed() < TIMEOUT, "the server does not know the pods");
            sleep(Duration::from_millis(200)).await;
        }
        sleep(Duration::from_secs(1)).await;
        Ok(all.iter().map(Message::encoded_len).sum())
    }

    async fn watch(&self, pods: usize) -> Result<()> {
        let mut watcher = Watcher::call(&self.socket).await?;
        let mut checker = Checker { received: Rc::clone(&self.received), initial: 0, pods, next: None };
        spawn_local(async move {
            let ended = loop {
                match watcher.read(&mut |message| checker.take(message)).await {
                    Ok(true) => {}
                    Ok(false) => break "it was cut off".to_owned(),
                    Err(error) => break error.to_string(),
                }
            };
            checker.received.borrow_mut().lost.push(ended);
        });
        Ok(())
    }

    /// Waits until `enough` holds.
    async fn until(&mut self, what: &str, enough: impl Fn(&Received) -> bool) -> Result<()> {
        let start = Instant::now();
        while !enough(&self.received.borrow()) {
            if let Some(status) = self.server.try_wait()? {
                bail!("the server has ended: {status}");
            }
            let lost = self.received.borrow().lost.clone();
            ensure!(
                lost.is_empty() && start.elapsed() < TIMEOUT,
                "timed out or disconnected while waiting until {what}: {lost:?}"
            );
            sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Changes `rate` pods per second.
    async fn load(&mut self, rate: u32, seconds: u32) -> Result<Figures> {
        let first = self.received.borrow().pods.len();
        let (cpu, before) = (usage::cpu(self.pid)?, self.delivery_buckets().await?);
        let start = tokio::time::Instant::now();
        for number in 0..rate * seconds {
            sleep_until(start + Duration::from_secs(1) * number / rate).await;
            self.change();
        }
        let sent = start.elapsed();
        let cpu = (usage::cpu(self.pid)? - cpu).as_secs_f64() / sent.as_secs_f64();
        // A watcher that is not done by then was disconnected, or the server is overloaded.
        let last = |received: &Received| received.last.last().map_or(0, |(count, _)| *count);
        let deadline = Instant::now() + Duration::from_secs(10);
        while last(&self.received.borrow()) + self.received.borrow().lost.len()
            < self.received.borrow().synced
            && Instant::now() < deadline
        {
            sleep(Duration::from_millis(20)).await;
        }
        let after = self.delivery_buckets().await?;
        let own = [0.5, 0.99].map(|share| bound(&before, &after, share));
        let received = self.received.borrow();
        let connected = received.synced - received.lost.len();
        let waits = received.sent_at.iter().zip(&received.last).skip(first);
        let mut waits: Vec<f64> = waits
            .map(|(sent_at, (count, last))| match *count < connected {
                // Not every watcher received it.
                true => f64::INFINITY,
                false => last.duration_since(*sent_at).as_secs_f64() * 1000.0,
            })
            .collect();
        waits.sort_by(f64::total_cmp);
        Ok(Figures { rate, changes: waits.len(), waits, lost: received.lost.len(), own, cpu })
    }

    fn change(&mut self) {
        self.changes += 1;
        // A different pod each time, far from the previous one.
        let changed = pod(self.changes * 7 % self.pods, self.changes);
        let now = Instant::now();
        {
            let received = &mut *self.received.borrow_mut();
            received.pods.push(changed.encode_to_vec());
            received.sent_at.push(now);
            received.last.push((0, now));
        }
        self.api.set(&changed);
        self.upstream = self.upstream.max(self.api.open_watches());
    }

    fn resident(&self) -> Result<usize> {
        usage::memory(self.pid, "VmRSS")
    }

    fn peak(&self) -> Result<usize> {
        usage::memory(self.pid, "VmHWM")
    }

    /// Returns the histogram of times until events were passed on to all watchers: bounds in seconds and
    /// counts.
    async fn delivery_buckets(&self) -> Result<Vec<(f64, f64)>> {
        let text = self.exposition().await?;
        let buckets = text.lines().filter_map(|line| {
            let rest = line.strip_prefix("numacast_pods_api_event_duration_seconds_bucket{le=\"")?;
            let (bound, count) = rest.split_once("\"} ")?;
            Some((bound.parse().unwrap_or(f64::INFINITY), count.parse().ok()?))
        });
        Ok(buckets.collect())
    }

    /// Returns the value of a sample.
    async fn metric(&self, sample: &str) -> Result<f64> {
        let text = self.exposition().await?;
        let value = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        Ok(value.with_context(|| format!("no {sample}"))?.parse()?)
    }

    async fn exposition(&self) -> Result<String> {
        let mut stream = TcpStream::connect(self.metrics).await?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    }
}

/// Returns the bucket bound, in ms, within which this share of the new observations is.
fn bound(before: &[(f64, f64)], after: &[(f64, f64)], share: f64) -> f64 {
    let counts = before.iter().zip(after).map(|((bound, before), (_, after))| (*bound, after - before));
    let counts: Vec<(f64, f64)> = counts.collect();
    let all = counts.last().map_or(0.0, |(_, count)| *count);
    let bucket = counts.iter().find(|(_, count)| *count >= all * share);
    bucket.map_or(f64::INFINITY, |(bound, _)| bound * 1000.0)
}

/// Returns a pod of a realistic size, from 5 to 10 KiB.
fn pod(number: usize, change: usize) -> core::Pod {
    let applied = "kubectl.kubernetes.io/last-applied-configuration".to_owned();
    let annotations = [
        (applied, "y".repeat(4600 + number * 997 % 5000).into()),
        ("change".to_owned(), format!("{change:010}").into()),
    ];
    let metadata = core::ObjectMeta {
        name: format!("user-plane-function-7d9c5b6f8d-{number:05}"),
        namespace: "default".to_owned(),
        uid: format!("{number:08x}-0000-4000-8000-000000000000"),
        annotations: annotations.into_iter().collect(),
        ..core::ObjectMeta::default()
    };
    let status = core::PodStatus { phase: "Running".to_owned(), ..core::PodStatus::default() };
    core::Pod { metadata: Some(metadata), status: Some(status), ..core::Pod::default() }
}
