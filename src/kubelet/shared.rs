//! One connection to the kubelet's podresources socket, shared by any number of callers.
//!
//! A response always comes from a call that started after it was requested. A request made while a call is in
//! flight waits for the next call, which all such requests share: at most one `List` runs and one waits. All
//! other calls run concurrently with it, one at a time, so at most two calls are in flight. The rate of calls
//! is limited: the agent's count, but only the proxy's wait. The agent's requests start as soon as their lane
//! is free, and their responses are shared with everyone waiting.

mod driver;
mod queue;
mod records;

use std::any::Any;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use prost::bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::client_error::ClientError;
use super::connector::{Connector, SocketId};
use super::instance::KubeletInstance;
use super::request::{Request, RequestError};
use crate::util::sync::lock;
use crate::util::task::Task;
use driver::Driver;
use queue::Queue;

/// The caller of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// The agent, which has its own rate limit and retries by itself.
    Agent,
    /// The proxy, for one of its clients.
    Proxy,
}

/// The response of one call, shared by all who requested it.
#[derive(Debug)]
pub struct SharedResponse {
    /// The encoded response; for a pod looked up in a List, its record as a response to `Get`.
    pub bytes: Bytes,
    /// The kubelet instance that sent it.
    pub instance: KubeletInstance,
    /// When the call started.
    pub started: Instant,
    pub(crate) socket: SocketId,
    slot: OnceLock<Arc<dyn Any + Send + Sync>>,
}

/// Called with the duration and the error, if any, of every call that ended, or could not start because there
/// was no connection.
pub type Observer = Arc<dyn Fn(&Request, Duration, Option<&ClientError>) + Send + Sync>;

/// A handle. When the last one is dropped, the connection is closed and all state discarded.
#[derive(Clone, Debug)]
pub struct SharedClient {
    shared: Arc<Shared>,
    _task: Arc<Task>,
}

/// The state shared by callers and the driver task. It is never locked across an await.
#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    /// Notified when a request is queued.
    queued: Notify,
}

/// A request in the queue, which is removed when this is dropped.
struct Queued<'a> {
    shared: &'a Shared,
    request: Request,
    number: u64,
    result: oneshot::Receiver<RequestResult>,
}

type RequestResult = Result<Arc<SharedResponse>, RequestError>;

impl SharedClient {
    /// Starts a client for the kubelet whose socket is at `socket`. No call takes longer than `timeout`, nor
    /// does a request wait longer for its call to start. It does not connect yet, and runs on the current
    /// tokio runtime.
    #[must_use]
    pub fn start(socket: PathBuf, timeout: Duration, observer: Observer) -> Self {
        let shared = Arc::new(Shared { queue: Mutex::new(Queue::new(timeout)), queued: Notify::new() });
        let driver = Driver::new(Arc::clone(&shared), Connector::new(socket, timeout), observer);
        Self { shared, _task: Arc::new(Task::spawn(driver.run())) }
    }

    /// Returns the response of a call that started after this was called.
    ///
    /// # Errors
    /// The kubelet's error unchanged; `Unavailable` if the kubelet cannot be reached or times out.
    pub async fn request(
        &self,
        request: Request,
        caller: Caller,
    ) -> Result<Arc<SharedResponse>, RequestError> {
        request.check()?;
        let call = request.method();
        let (number, result) = self.shared.lock().push(&request, caller, Instant::now());
        self.shared.queued.notify_one();
        let mut queued = Queued { shared: &self.shared, request, number, result };
        // The sender is dropped only when the runtime shuts down.
        let lost = |_| Err(ClientError::Lost { call, detail: "numacast is shutting down".to_owned() }.into());
        (&mut queued.result).await.unwrap_or_else(lost)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.shared.lock().remove(&self.request, self.number);
    }
}

impl SharedResponse {
    /// Returns a slot for a value derived from this response. It is created on first use and shared by all
    /// holders of the response; `T` may be a cell that is filled once. The slot holds one type; a request for
    /// another type gets a fresh, unshared value.
    #[must_use]
    pub fn slot<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let slot = self.slot.get_or_init(|| Arc::new(T::default()));
        Arc::clone(slot).downcast().unwrap_or_default()
    }
}
