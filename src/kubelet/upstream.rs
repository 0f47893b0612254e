//! One connection to the kubelet's podresources socket for any number of askers.
//!
//! An answer comes only from a call that started after it was asked for. Whoever asks while a call is under way waits for
//! the next one, which all who asked meanwhile share: at most one `List` runs and one waits. Everything else goes one at a
//! time beside it, so that no more than two calls are ever in flight, and what the proxy's clients ask for starts under a
//! budget of its own. The agent asks here too: its questions are answered as soon as nothing else is under way, and
//! everybody has the use of its calls.

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

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// The agent, which has a budget of its own and tries again by itself.
    Agent,
    /// The proxy, for a client of its own.
    Proxy,
}

/// The answer of one call, shared by all who asked for it.
pub struct Flight {
    /// The answer's message as it came; of a pod that was looked up in a List, the record of that.
    pub bytes: Bytes,
    /// The connection it came from.
    pub connection: Connection,
    /// When the call started.
    pub started: Instant,
    /// The socket it came from.
    identity: Identity,
    slot: OnceLock<Arc<dyn Any + Send + Sync>>,
}

/// Is told of every call.
pub trait Observer: Send + Sync + 'static {
    /// A call starts; with it, so many are in flight.
    fn started(&self, ask: &Ask, in_flight: usize) {
        let _ = (ask, in_flight);
    }

    /// A call ended, or could not even start because there was no connection.
    fn ended(&self, ended: &Ended<'_>) {
        let _ = ended;
    }
}

/// Looks at nothing.
impl Observer for () {}

/// What became of one call.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    /// What was called.
    pub ask: &'a Ask,
    /// How long it took.
    pub took: Duration,
    /// Why there was no answer; [`ClientError::RateLimited`] if the kubelet's limiter refused.
    pub error: Option<&'a ClientError>,
    /// How many had its answer. All but one of them cost the kubelet nothing.
    pub shared_by: usize,
}

/// A handle; the connection is closed and everything forgotten when the last one is dropped.
#[derive(Clone)]
pub struct Upstream {
    shared: Arc<Shared>,
    _task: Arc<Task>,
}

/// What those who ask and the task that calls have in common. Nothing is awaited while it is locked.
struct Shared {
    waiting: Mutex<Waiting>,
    /// Somebody asked.
    news: Notify,
}

struct Task(JoinHandle<()>);

/// Somebody's place in the queue, given up when dropped.
struct Place<'a> {
    shared: &'a Shared,
    ask: Ask,
    number: u64,
    answer: oneshot::Receiver<Answer>,
}

type Answer = Result<Arc<Flight>, Refusal>;

impl Upstream {
    /// For the kubelet whose socket is at `socket`. No call takes longer than `timeout`, nor does anything wait for its
    /// call longer than that. Nothing is opened yet; it runs on the tokio runtime it is started on.
    #[must_use]
    pub fn start(socket: PathBuf, timeout: Duration, observer: Arc<dyn Observer>) -> Self {
        let waiting = Mutex::new(Waiting::new(timeout));
        let shared = Arc::new(Shared { waiting, news: Notify::new() });
        let driver = Driver::new(Arc::clone(&shared), Line::new(socket, timeout), observer);
        Self { shared, _task: Arc::new(Task(tokio::spawn(driver.run()))) }
    }

    /// The answer of a call that started after this was called.
    ///
    /// # Errors
    /// The kubelet's refusal as it came. `Unavailable` when it cannot be reached or is late.
    pub async fn ask(&self, ask: Ask, asker: Asker) -> Result<Arc<Flight>, Refusal> {
        if let Some(refusal) = ask.answer() {
            return Err(refusal);
        }
        let method = ask.method();
        let mut place = self.shared.join(ask, asker);
        match (&mut place.answer).await {
            Ok(answer) => answer,
            // Only a runtime that ends drops who would answer.
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
    /// How long ago the kubelet made the socket that this came from; see [`super::Client`]. Zero if the clock was set back
    /// since, never longer than the machine runs.
    #[must_use]
    pub fn socket_age(&self) -> Duration {
        age(self.identity)
    }

    /// When that socket was made, by the clock of then.
    #[must_use]
    pub fn socket_made(&self) -> Option<SystemTime> {
        made(self.identity)
    }

    /// A place for what is computed from this answer, made when it is first asked for and the same for all who share the
    /// answer: `T` may be a cell that is filled once. It holds one type; of another, nothing is shared.
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
