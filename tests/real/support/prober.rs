//! Polls the kubelet beside the agent, over its own connection.
//!
//! It connects, requests and decodes independently, on its own thread, and records every response that
//! differs from the previous one, with the time range in which it was given.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hyper_util::rt::TokioIo;
use numacast::kubelet::proto::v1;
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;
use v1::pod_resources_lister_client::PodResourcesListerClient;

/// Request timeout; a timeout is recorded as a response.
const DEADLINE: Duration = Duration::from_secs(2);

/// Each pod's resources by name, from one List.
pub(crate) type Pods = BTreeMap<String, Allocated>;

/// What all containers of a pod are allocated together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allocated {
    pub(crate) cpus: BTreeSet<i64>,
    /// Bytes, huge pages included.
    pub(crate) memory: u64,
    pub(crate) devices: BTreeSet<String>,
}

/// The allocatable resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allocatable {
    pub(crate) cpus: usize,
    /// Bytes, huge pages included.
    pub(crate) memory: u64,
    /// Resource and number of devices.
    pub(crate) devices: BTreeMap<String, usize>,
}

/// The content of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Response {
    Pods(Pods),
    Allocatable(Allocatable),
    /// No connection, or an error.
    Error(String),
}

/// A recorded response.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "tests and benchmarks read different parts")]
pub(crate) struct Recorded {
    /// When the request was sent; the response was true at some moment after it.
    pub(crate) sent: Instant,
    pub(crate) received: Instant,
    /// Identifies the socket: changes with every restart.
    pub(crate) socket: u64,
    pub(crate) response: Response,
    /// When the previous, different response was last requested; `None` if it was an error.
    pub(crate) last_other: Option<Instant>,
}

/// What is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requests {
    Lists,
    /// List and `GetAllocatableResources` alternately.
    Both,
}

/// The polling thread.
pub(crate) struct Prober {
    recorded: Arc<Mutex<Vec<Recorded>>>,
    end: Arc<AtomicBool>,
    /// Microseconds.
    pause: Arc<AtomicU64>,
    now: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

#[allow(dead_code, reason = "tests and benchmarks use different parts")]
impl Prober {
    /// Starts polling, with `pause` between requests.
    pub(crate) fn start(socket: PathBuf, requests: Requests, pause: Duration) -> Result<Self> {
        let recorded = Arc::<Mutex<Vec<Recorded>>>::default();
        let end = Arc::new(AtomicBool::new(false));
        let (pause, now) = (Arc::new(AtomicU64::new(micros(pause))), Arc::<Notify>::default());
        let poller = Poller {
            socket,
            recorded: Arc::clone(&recorded),
            end: Arc::clone(&end),
            pause: Arc::clone(&pause),
            now: Arc::clone(&now),
            last: BTreeMap::new(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::spawn(move || runtime.block_on(poller.run(requests)));
        Ok(Self { recorded, end, pause, now, thread: Some(thread) })
    }

    /// Returns every response so far that differed from the previous one.
    pub(crate) fn responses(&self) -> Vec<Recorded> {
        lock(&self.recorded).clone()
    }

    /// Changes the pause between requests.
    pub(crate) fn set_pause(&self, pause: Duration) {
        self.pause.store(micros(pause), Ordering::Relaxed);
        self.now.notify_one();
    }

    /// Returns a handle that triggers a request at once.
    pub(crate) fn trigger(&self) -> Arc<Notify> {
        Arc::clone(&self.now)
    }

    /// Clears the recorded responses.
    pub(crate) fn clear(&self) {
        lock(&self.recorded).clear();
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        self.now.notify_one();
        // A thread that panicked has already printed its message.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Poller {
    socket: PathBuf,
    recorded: Arc<Mutex<Vec<Recorded>>>,
    end: Arc<AtomicBool>,
    pause: Arc<AtomicU64>,
    now: Arc<Notify>,
    /// The last response to each kind of request, and when it was last requested.
    last: BTreeMap<bool, (u64, Response, Instant)>,
}

impl Poller {
    async fn run(mut self, requests: Requests) {
        let mut open: Option<(u64, PodResourcesListerClient<Channel>)> = None;
        let mut lists = true;
        let mut last = tokio::time::Instant::now();
        while !self.end.load(Ordering::Relaxed) {
            let pause = Duration::from_micros(self.pause.load(Ordering::Relaxed));
            tokio::select! {
                () = tokio::time::sleep_until(last + pause) => {}
                () = self.now.notified() => {}
            }
            last = tokio::time::Instant::now();
            let sent = Instant::now();
            let now = identity(&self.socket);
            open = open.filter(|(socket, _)| Some(*socket) == now);
            let response = match self.request(&mut open, now, lists).await {
                Ok(response) => response,
                Err(error) => {
                    open = None;
                    Response::Error(format!("{error:#}"))
                }
            };
            self.record(lists, sent, now.unwrap_or_default(), response);
            lists = requests == Requests::Lists || !lists;
        }
    }

    async fn request(
        &self,
        open: &mut Option<(u64, PodResourcesListerClient<Channel>)>,
        socket: Option<u64>,
        lists: bool,
    ) -> Result<Response> {
        let (_, client) = match open {
            Some(open) => open,
            None => open.insert((socket.context("no socket")?, connect(&self.socket).await?)),
        };
        let response = async {
            Ok(match lists {
                true => Response::Pods(pods(client.list(v1::ListPodResourcesRequest {}).await?.into_inner())),
                false => {
                    let request = v1::AllocatableResourcesRequest {};
                    let response = client.get_allocatable_resources(request).await?.into_inner();
                    Response::Allocatable(allocatable(response))
                }
            })
        };
        tokio::time::timeout(DEADLINE, response).await.context("no response")?
    }

    /// Records a response that differs from the previous one.
    fn record(&mut self, lists: bool, sent: Instant, socket: u64, response: Response) {
        if let Some((from, before, last)) = self.last.get_mut(&lists)
            && *from == socket
            && *before == response
        {
            *last = sent;
            return;
        }
        let before = self.last.insert(lists, (socket, response.clone(), sent));
        let other = before.filter(|(_, response, _)| !matches!(response, Response::Error(_)));
        let last_other = other.map(|(.., sent)| sent);
        let received = Instant::now();
        lock(&self.recorded).push(Recorded { sent, received, socket, response, last_other });
    }
}

fn micros(pause: Duration) -> u64 {
    u64::try_from(pause.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the ctime of the socket's inode: inode numbers are reused.
fn identity(socket: &Path) -> Option<u64> {
    let meta = std::fs::metadata(socket).ok()?;
    u64::try_from(meta.ctime() * 1_000_000_000 + meta.ctime_nsec()).ok()
}

async fn connect(socket: &Path) -> Result<PodResourcesListerClient<Channel>> {
    let path = socket.to_owned();
    let connector = service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let channel = Endpoint::from_static("http://localhost").connect_with_connector(connector).await?;
    Ok(PodResourcesListerClient::new(channel).max_decoding_message_size(16 << 20))
}

fn pods(response: v1::ListPodResourcesResponse) -> Pods {
    let of = |pod: v1::PodResources| {
        let mut has = Allocated::default();
        for container in pod.containers {
            has.cpus.extend(container.cpu_ids);
            has.memory += container.memory.iter().map(|block| block.size).sum::<u64>();
            has.devices.extend(container.devices.into_iter().flat_map(|group| group.device_ids));
        }
        (pod.name, has)
    };
    response.pod_resources.into_iter().map(of).collect()
}

fn allocatable(response: v1::AllocatableResourcesResponse) -> Allocatable {
    let mut ids = BTreeMap::<String, BTreeSet<String>>::new();
    for group in response.devices {
        ids.entry(group.resource_name).or_default().extend(group.device_ids);
    }
    Allocatable {
        cpus: response.cpu_ids.len(),
        memory: response.memory.iter().map(|block| block.size).sum(),
        devices: ids.into_iter().map(|(name, ids)| (name, ids.len())).collect(),
    }
}
