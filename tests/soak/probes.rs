//! Probes while a client has as many connections as it can.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use numacast_sim::kubelet::Options;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::agent::Agent;

/// Number of connections; each is reopened as soon as it is closed.
const CONNECTIONS: usize = 1000;
/// The probes' `timeoutSeconds` in the kubelet.
const TIMEOUT: Duration = Duration::from_secs(1);
const PROBES: usize = 200;
/// Pause between two probes.
const PAUSE: Duration = Duration::from_millis(50);
/// Pause between two bytes of a slow connection.
const BYTE: Duration = Duration::from_millis(200);
/// The kubelet's address, and another one.
const SOURCES: [[u8; 4]; 2] = [[127, 0, 0, 1], [127, 0, 0, 2]];

/// Probes the agent without load, then while connections arrive from the prober's own address and from
/// another one. Returns whether every probe got a response in time.
pub(crate) async fn run(binary: &Path) -> Result<bool> {
    let health = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let agent = Agent::start(binary, Options::default(), &["--health-address", &health.to_string()]).await?;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "probes: /livez every {} ms, {CONNECTIONS} connections that are idle or slow",
        PAUSE.as_millis()
    )?;
    writeln!(out, "  without connections  {}", Probes::run(health).await?)?;
    let mut failed = 0;
    for source in SOURCES.map(IpAddr::from) {
        let mut connections = JoinSet::new();
        (0..CONNECTIONS).for_each(|number| drop(connections.spawn(keep_connected(source, health, number))));
        sleep(TIMEOUT).await;
        let probes = Probes::run(health).await?;
        failed += probes.failed;
        writeln!(out, "  from {source:<15} {probes}")?;
    }
    writeln!(out, "  RSS                  {} KiB", agent.sample()?.rss)?;
    writeln!(out, "  {}", if failed == 0 { "within the limits" } else { "OVER the limits" })?;
    Ok(failed == 0)
}

/// Keeps reconnecting, and sends nothing or one byte at a time.
async fn keep_connected(from: IpAddr, to: SocketAddr, number: usize) {
    let slow = number.is_multiple_of(2);
    loop {
        let Ok(mut stream) = connect(from, to).await else {
            sleep(BYTE).await;
            continue;
        };
        let mut byte = [0];
        while timeout(BYTE, stream.read(&mut byte)).await.is_err() {
            if slow && stream.write_all(b"G").await.is_err() {
                break;
            }
        }
    }
}

async fn connect(from: IpAddr, to: SocketAddr) -> std::io::Result<tokio::net::TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(from, 0))?;
    socket.connect(to).await
}

/// The results of the probes.
struct Probes {
    failed: usize,
    /// Response times in ms, sorted.
    took: Vec<f64>,
}

impl Probes {
    /// Probes from a thread of its own, which the connections cannot delay.
    async fn run(address: SocketAddr) -> Result<Self> {
        Ok(tokio::task::spawn_blocking(move || Self::run_blocking(address)).await?)
    }

    fn run_blocking(address: SocketAddr) -> Self {
        let mut probes = Self { failed: 0, took: Vec::new() };
        for _ in 0..PROBES {
            let started = Instant::now();
            let result = probe(address);
            if let Err(error) = &result {
                eprintln!("{error:#} after {:?}", started.elapsed());
            }
            match result.is_ok() && started.elapsed() < TIMEOUT {
                true => probes.took.push(started.elapsed().as_secs_f64() * 1000.0),
                false => probes.failed += 1,
            }
            std::thread::sleep(PAUSE);
        }
        probes.took.sort_by(f64::total_cmp);
        probes
    }

    fn percentile(&self, percent: usize) -> f64 {
        self.took.get(self.took.len().saturating_sub(1) * percent / 100).copied().unwrap_or(f64::NAN)
    }
}

impl std::fmt::Display for Probes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [p50, p99, max] = [50, 99, 100].map(|percent| self.percentile(percent));
        write!(f, "{} of {PROBES} failed; p50 {p50:.1}, p99 {p99:.1}, longest {max:.1} ms", self.failed)
    }
}

fn probe(address: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    ensure!(response.starts_with("HTTP/1.1 200"), "{response}");
    Ok(())
}
