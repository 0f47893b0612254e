//! A simulated node: a machine described in a directory, with a simulated kubelet on it. Also plain HTTP
//! requests.

// Other programs include this file by its path.
#[path = "client.rs"]
mod client;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::time::Duration;

use numacast::core_v1::proto as core;
use numacast_sim::kubelet::{Options, SimKubelet};
use numacast_sim::machine::MachineSpec;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) use client::Client;

/// How long any wait may take: it only ends a test that would hang.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Any free port of the loopback address.
pub(crate) const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

pub(crate) struct Node {
    dir: TempDir,
    pub(crate) kubelet: SimKubelet,
}

impl Node {
    /// Starts a node with two zones of eight CPUs and a kubelet without a rate limit.
    pub(crate) fn start() -> Self {
        Self::with(Options { limited: false, ..Options::default() })
    }

    pub(crate) fn with(options: Options) -> Self {
        Self::with_machine(&machine("two-by-eight"), options)
    }

    pub(crate) fn with_machine(spec: &MachineSpec, options: Options) -> Self {
        let dir = tempfile::tempdir().unwrap();
        spec.write_tree(dir.path()).unwrap();
        let kubelet = SimKubelet::start(spec, &dir.path().join("var/lib/kubelet"), options).unwrap();
        Self { dir, kubelet }
    }

    /// The simulated host root, as given to `numacast --host-root`.
    pub(crate) fn root(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.kubelet.socket(), Duration::from_secs(5))
    }

    pub(crate) fn client_with_short_timeout(&self) -> Client {
        Client::new(self.kubelet.socket(), Duration::from_millis(200))
    }
}

/// Reads a machine of `tests/machines/`.
pub(crate) fn machine(name: &str) -> MachineSpec {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/machines/{name}.yaml"));
    MachineSpec::read(&file).unwrap()
}

/// Returns the value of a series, given by its name with labels, in the text of metrics.
pub(crate) fn sample<'a>(metrics: &'a str, series: &str) -> Option<&'a str> {
    metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))
}

/// Returns a pod in the namespace `default`.
pub(crate) fn pod(name: &str, uid: &str, phase: &str) -> core::Pod {
    let metadata = core::ObjectMeta {
        name: name.to_owned(),
        namespace: "default".to_owned(),
        uid: uid.to_owned(),
        ..core::ObjectMeta::default()
    };
    let status = core::PodStatus { phase: phase.to_owned(), ..core::PodStatus::default() };
    core::Pod { metadata: Some(metadata), status: Some(status), ..core::Pod::default() }
}

/// Sends one request and returns the whole response.
pub(crate) async fn send(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response
}

pub(crate) async fn get(address: SocketAddr, path: &str) -> String {
    send(address, &format!("GET {path} HTTP/1.1\r\nHost: numacast\r\n\r\n")).await
}

/// Runs `work` while the virtual clock stands still. Otherwise the paused clock advances whenever all tasks
/// wait, even for a socket.
///
/// # Panics
/// If `work` waits for a timer.
#[track_caller]
pub(crate) fn with_frozen_clock<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    let caller = Location::caller();
    async move {
        // A running blocking task keeps tokio from advancing the paused clock.
        let (done, ended) = std::sync::mpsc::channel::<()>();
        let guard = tokio::task::spawn_blocking(move || ended.recv_timeout(Duration::from_secs(20)));
        let result = tokio::select! {
            result = work => result,
            _ = guard => panic!("{caller} waits for a timer"),
        };
        drop(done);
        result
    }
}

/// Checks every 10 ms until `check` returns something. Returns `None` after a minute.
pub(crate) async fn poll<T>(mut check: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let polling = async {
        loop {
            if let Some(found) = check().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, polling).await.ok()
}

/// Waits until `check` returns something.
pub(crate) async fn eventually<T>(what: &str, check: impl AsyncFnMut() -> Option<T>) -> T {
    poll(check).await.unwrap_or_else(|| panic!("timed out while waiting until {what}"))
}
