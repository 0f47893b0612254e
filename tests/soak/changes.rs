//! A million changes: the object stays correct, and nothing grows.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fastrand::Rng;
use numacast_sim::api_server::{Fault, Rule, TOPOLOGIES};
use numacast_sim::kubelet::{Options, PodSpec, RestartTiming};

use crate::agent::{Agent, Sample};

/// How often the object is compared and the process measured.
const CHECK_PERIOD: Duration = Duration::from_secs(3);
/// Maximum number of pods at a time.
const MAX_PODS: usize = 10;
/// Changes between two restarts of the kubelet.
const RESTART_PERIOD: u64 = 20_000;
/// Changes between two faults of the API server.
const FAULT_PERIOD: u64 = 7_000;
/// Changes between two periods in which the agent is stopped and loses events.
const STOP_PERIOD: u64 = 90_000;
/// More events than the kernel queues for one reader.
const LOST_EVENTS: u32 = 20_000;
/// Allowed steady growth of resident memory over the second half of the run: the allocator's noise.
const MAX_GROWTH_KIB: f64 = 256.0;
/// Allowed growth in steps beside it: hyper's read buffer of one connection. When a read needs more than the
/// buffer has, the buffer doubles (`BytesMut::reserve`), up to twice hyper's `DEFAULT_MAX_BUFFER_SIZE` of 408 KiB
/// (`hyper::proto::h1::io`), and the heap keeps the pages. Seen with perf: after the first half minute, each step of
/// more than 116 KiB came within 2.5 s after such a reallocation.
const MAX_STEP_KIB: f64 = 816.0;

const GIB: u64 = 1 << 30;

/// Returns one value of a sample.
type Value = fn(&Sample) -> u64;

/// Runs the soak; returns whether nothing grew.
pub(crate) async fn run(binary: &Path, changes: u64, rate: u64, seed: u64) -> Result<bool> {
    writeln!(std::io::stdout(), "NUMACAST_SEED={seed}")?;
    let timing = Duration::from_millis(50);
    let options = Options {
        seed,
        release_lag: Duration::from_millis(30),
        restart: RestartTiming { down: timing, managers: timing, pods: timing, plugins: timing },
        ..Options::default()
    };
    let agent = Agent::start(binary, options, &[]).await?;
    let mut soak = Soak { agent, rng: Rng::with_seed(seed), pods: Vec::new(), started: 0, injected: [0; 3] };
    let start = Instant::now();
    let mut samples: Vec<(f64, Sample)> = Vec::new();
    let (mut done, mut slowest, mut period) = (0, Duration::ZERO, Instant::now());
    let (mut paused, mut logged_at) = (Duration::ZERO, Instant::now());
    while done < changes {
        soak.change().await;
        done += 1;
        soak.inject_faults(done).await?;
        if period.elapsed() >= CHECK_PERIOD || done == changes {
            let waiting = Instant::now();
            slowest = slowest.max(soak.agent.wait_until_correct().await?);
            samples.push((start.elapsed().as_secs_f64(), soak.agent.sample()?));
            paused += waiting.elapsed();
            period = Instant::now();
        }
        if logged_at.elapsed() > Duration::from_secs(60) {
            writeln!(std::io::stderr(), "{done} of {changes}, {:.0} s", start.elapsed().as_secs_f64())?;
            logged_at = Instant::now();
        }
        // Yield to the kubelet and the API server, which run on this thread too.
        let due = Duration::from_secs_f64(done as f64 / rate as f64);
        match due.checked_sub(start.elapsed().saturating_sub(paused)) {
            Some(early) if early > Duration::from_millis(2) => tokio::time::sleep(early).await,
            _ => tokio::task::yield_now().await,
        }
    }
    report(&soak, done, start.elapsed(), slowest, &samples)
}

struct Soak {
    agent: Agent,
    rng: Rng,
    /// Running pods.
    pods: Vec<String>,
    started: u64,
    /// Number of kubelet restarts, of API server faults, and of stops of the agent.
    injected: [u64; 3],
}

impl Soak {
    /// Starts or stops a pod, or changes a device's health.
    async fn change(&mut self) {
        let kubelet = &self.agent.node.kubelet;
        match self.rng.u8(0..10) {
            0 => {
                let (id, healthy) = (format!("nic-{}", self.rng.u8(0..4)), self.rng.bool());
                kubelet.set_device_health("example.com/nic", &id, healthy);
            }
            1..6 if self.pods.len() < MAX_PODS => {
                self.started += 1;
                let name = format!("p{}", self.started);
                let mut pod = PodSpec::guaranteed(&name, self.rng.u64(1..3), self.rng.u64(1..3) * GIB);
                if self.rng.u8(0..4) == 0 {
                    pod = pod.devices("example.com/nic", 1);
                }
                // Only some have an object in the API server, since that costs this process as much as ten
                // changes.
                let in_api = self.started.is_multiple_of(8);
                let node = &self.agent.node;
                let outcome = if in_api { node.start_pod(pod).await } else { kubelet.start_pod(pod).await };
                match outcome {
                    Ok(_) => self.pods.push(name),
                    // Otherwise its object would stay in the API server.
                    Err(_) => drop(node.stop_pod("default", &name)),
                }
            }
            _ if !self.pods.is_empty() => {
                let name = self.pods.swap_remove(self.rng.usize(0..self.pods.len()));
                self.agent.node.stop_pod("default", &name);
            }
            _ => {}
        }
    }

    async fn inject_faults(&mut self, done: u64) -> Result<()> {
        let restarts = done.is_multiple_of(RESTART_PERIOD);
        // The agent cannot know that pods without an object are gone. If every pod that it knew was deleted, it
        // would wait minutes for them after the restart.
        if restarts && self.pods.is_empty() {
            self.agent.wait_until_correct().await?;
        }
        let (kubelet, server) = (&self.agent.node.kubelet, &self.agent.node.server);
        if restarts {
            kubelet.restart().await?;
            self.injected[0] += 1;
        }
        if done.is_multiple_of(FAULT_PERIOD) {
            self.injected[1] += 1;
            let fault = match self.rng.u8(0..5) {
                0 => Fault::Status(503),
                1 => Fault::Cut,
                2 => Fault::CutAfterwards,
                3 => Fault::Delay(Duration::from_millis(300)),
                _ => {
                    server.stop();
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    server.resume();
                    return Ok(());
                }
            };
            server.inject(Rule { verb: None, resource: Some(TOPOLOGIES.plural), times: Some(2), fault });
        }
        if done.is_multiple_of(STOP_PERIOD) {
            self.injected[2] += 1;
            self.signal("-STOP")?;
            let (one, other) = (kubelet.root().join(".soak"), kubelet.root().join(".soaked"));
            std::fs::write(&one, "")?;
            for _ in 0..LOST_EVENTS / 2 {
                std::fs::rename(&one, &other)?;
                std::fs::rename(&other, &one)?;
            }
            std::fs::remove_file(&one)?;
            self.change().await;
            self.signal("-CONT")?;
        }
        Ok(())
    }

    fn signal(&self, name: &str) -> Result<()> {
        let status = Command::new("kill").arg(name).arg(self.agent.pid().to_string()).status()?;
        ensure!(status.success(), "kill {name}: {status}");
        Ok(())
    }
}

fn report(
    soak: &Soak,
    done: u64,
    took: Duration,
    slowest: Duration,
    samples: &[(f64, Sample)],
) -> Result<bool> {
    let (kubelet, server) = (&soak.agent.node.kubelet, &soak.agent.node.server);
    let (calls, writes, seconds) = (kubelet.calls(), server.writes(), took.as_secs_f64());
    let second = &samples[samples.len() / 2..];
    let series: [(&str, Value); 4] = [
        ("RSS KiB", |sample| sample.rss),
        ("  of it anonymous KiB", |sample| sample.anonymous),
        ("open descriptors", |sample| sample.descriptors),
        ("threads", |sample| sample.threads),
    ];
    let mut out = std::io::stdout().lock();
    let [restarts, api_faults, stops] = soak.injected;
    writeln!(out, "{done} changes in {seconds:.0} s ({:.0} per second)", done as f64 / seconds)?;
    writeln!(
        out,
        "{restarts} kubelet restarts, {api_faults} API faults, {stops} overflows of the event queue"
    )?;
    writeln!(
        out,
        "{} Lists ({:.1} per second), {} GetAllocatableResources, {} rejected",
        calls.list,
        calls.list as f64 / seconds,
        calls.allocatable,
        calls.rejected
    )?;
    writeln!(out, "{} writes, {} of them changed the object", writes.requests, writes.changes)?;
    writeln!(out, "correct at all {} checks, after {:.1} s at most", samples.len(), slowest.as_secs_f64())?;
    writeln!(
        out,
        "CPU {:.2} s, {:.1} us per change",
        soak.agent.cpu()?.as_secs_f64(),
        soak.agent.cpu()?.as_secs_f64() * 1e6 / done as f64
    )?;
    writeln!(
        out,
        "| {:22} | {:>7} | {:>7} | {:>7} | growth over the second half: {:>6} | {:>6} |",
        "", "first", "last", "max", "steady", "in all"
    )?;
    let mut within_limits = true;
    for (index, (name, value)) in series.into_iter().enumerate() {
        let values = || samples.iter().map(|(_, sample)| value(sample));
        let (first, last, max) =
            (values().next().unwrap_or(0), values().next_back().unwrap_or(0), values().max().unwrap_or(0));
        let points: Vec<(f64, f64)> = second.iter().map(|(at, sample)| (*at, value(sample) as f64)).collect();
        let (steady, growth) = (steady_growth(&points), growth(&points));
        writeln!(out, "| {name:22} | {first:7} | {last:7} | {max:7} | {steady:35.1} | {growth:6.1} |")?;
        within_limits &= match index {
            0 | 1 => steady <= MAX_GROWTH_KIB && growth <= MAX_GROWTH_KIB + MAX_STEP_KIB,
            // Descriptors and threads stay constant, except for a connection that is being reopened.
            _ => growth <= 1.0,
        };
    }
    writeln!(out, "{}", if within_limits { "nothing grows" } else { "it GROWS" })?;
    Ok(within_limits)
}

/// Returns the increase from the first to the last point at the median slope of all pairs of points (Theil-Sen):
/// that of a steady growth, which one step does not change.
fn steady_growth(points: &[(f64, f64)]) -> f64 {
    let pairs = points.iter().enumerate().flat_map(|(index, one)| {
        points[index + 1..].iter().map(move |other| (other.1 - one.1) / (other.0 - one.0))
    });
    let mut slopes: Vec<f64> = pairs.collect();
    slopes.sort_by(f64::total_cmp);
    slopes.get(slopes.len() / 2).map_or(0.0, |median| median * length(points))
}

/// Returns the increase from the first to the last point along a least-squares line.
fn growth(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0 / count, y + point.1 / count));
    let (mut up, mut down) = (0.0, 0.0);
    for point in points {
        up += (point.0 - x) * (point.1 - y);
        down += (point.0 - x) * (point.0 - x);
    }
    if down > 0.0 { up / down * length(points) } else { 0.0 }
}

/// Returns the seconds from the first to the last point.
fn length(points: &[(f64, f64)]) -> f64 {
    points.last().map_or(0.0, |last| last.0) - points.first().map_or(0.0, |first| first.0)
}
