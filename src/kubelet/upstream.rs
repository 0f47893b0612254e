//! One connection to the kubelet's podresources socket, shared by any number of callers.
//!
//! A response always comes from a call that started after it was requested. A request made while a call is in
//! flight waits for the next call, which all such requests share: at most one `List` runs and one waits. All
//! other calls run beside it one at a time, so at most two calls are in flight. Calls for the proxy's clients
//! have a rate limit of their own. The agent uses the same connection: its requests start as soon as their
//! lane is free, and their responses are shared with everyone waiting.

mod driver;
mod records;
mod waiting;

use std::any::Any;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use prost::bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::ask::{Ask, Refusal};
use super::client::{ClientError, Identity, Line, age, made};
use super::types::Connection;
use driver::Driver;
use waiting::Waiting;

/// The caller of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// The agent, which has its own rate limit and retries by itself.
    Agent,
    /// The proxy, for one of its clients.
    Proxy,
}

/// The response of one call, shared by all who requested it.
pub struct Flight {
    /// The undecoded response message; for a pod looked up in a List, its record as a response to `Get`.
    pub bytes: Bytes,
    /// The connection it came from.
    pub connection: Connection,
    /// When the call started.
    pub started: Instant,
    /// The socket it came from.
    identity: Identity,
    slot: OnceLock<Arc<dyn Any + Send + Sync>>,
}

/// Observes every call.
pub trait Observer: Send + Sync + 'static {
    /// A call starts; `in_flight` calls are in flight, including this one.
    fn started(&self, ask: &Ask, in_flight: usize) {
        let _ = (ask, in_flight);
    }

    /// A call ended, or could not start because there was no connection.
    fn ended(&self, ended: &Ended<'_>) {
        let _ = ended;
    }
}

/// Ignores all calls.
impl Observer for () {}

/// The outcome of one call.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    /// The request.
    pub ask: &'a Ask,
    /// The duration of the call.
    pub took: Duration,
    /// The error, if any; [`ClientError::RateLimited`] if the kubelet's rate limiter rejected the call.
    pub error: Option<&'a ClientError>,
    /// Number of requests answered by this call. All but one of them cost the kubelet nothing.
    pub shared_by: usize,
}

/// A handle. When the last one is dropped, the connection is closed and all state discarded.
#[derive(Clone)]
pub struct Upstream {
    shared: Arc<Shared>,
    _task: Arc<Task>,
}

/// The state shared by callers and the driver task. It is never locked across an await.
struct Shared {
    waiting: Mutex<Waiting>,
    /// Notified when a request is queued.
    news: Notify,
}

struct Task(JoinHandle<()>);

/// A request's place in the queue, given up when dropped.
struct Place<'a> {
    shared: &'a Shared,
    ask: Ask,
    number: u64,
    answer: oneshot::Receiver<Answer>,
}

type Answer = Result<Arc<Flight>, Refusal>;

impl Upstream {
    /// Starts a client for the kubelet whose socket is at `socket`. No call takes longer than `timeout`, nor
    /// does a request wait longer for its call to start. It does not connect yet, and runs on the current
    /// tokio runtime.
    #[must_use]
    pub fn start(socket: PathBuf, timeout: Duration, observer: Arc<dyn Observer>) -> Self {
        let waiting = Mutex::new(Waiting::new(timeout));
        let shared = Arc::new(Shared { waiting, news: Notify::new() });
        let driver = Driver::new(Arc::clone(&shared), Line::new(socket, timeout), observer);
        Self { shared, _task: Arc::new(Task(tokio::spawn(driver.run()))) }
    }

    /// Returns the response of a call that started after this was called.
    ///
    /// # Errors
    /// The kubelet's error unchanged; `Unavailable` if the kubelet cannot be reached or times out.
    pub async fn ask(&self, ask: Ask, asker: Asker) -> Result<Arc<Flight>, Refusal> {
        if let Some(refusal) = ask.answer() {
            return Err(refusal);
        }
        let method = ask.method();
        let mut place = self.shared.join(ask, asker);
        match (&mut place.answer).await {
            Ok(answer) => answer,
            // The sender is dropped only when the runtime shuts down.
            Err(_) => Err(ClientError::Lost { call: method, detail: "numacast is ending".to_owned() }.into()),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(&self, ask: Ask, asker: Asker) -> Place<'_> {
        let (number, answer) = self.lock().join(&ask, asker, Instant::now());
        self.news.notify_one();
        Place { shared: self, ask, number, answer }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.shared.lock().leave(&self.ask, self.number);
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Flight {
    /// Returns how long ago the kubelet created the socket this came from; see [`super::Client`]. Zero if the
    /// clock was set back since, at most the machine's uptime.
    #[must_use]
    pub fn socket_age(&self) -> Duration {
        age(self.identity)
    }

    /// Returns the creation time of that socket, by the clock at that time.
    #[must_use]
    pub fn socket_made(&self) -> Option<SystemTime> {
        made(self.identity)
    }

    /// Returns a slot for a value derived from this response. It is created on first use and shared by all
    /// holders of the response; `T` may be a cell that is filled once. The slot holds one type; a request for
    /// another type gets a fresh, unshared value.
    #[must_use]
    pub fn slot<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let slot = self.slot.get_or_init(|| Arc::new(T::default()));
        Arc::clone(slot).downcast().unwrap_or_default()
    }
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Flight");
        fields.field("bytes", &self.bytes.len()).field("connection", &self.connection);
        fields.field("started", &self.started).finish_non_exhaustive()
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").finish_non_exhaustive()
    }
}
