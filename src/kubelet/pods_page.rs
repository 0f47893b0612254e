//! The kubelet's HTTPS endpoint `/pods` (kubelet.md 7): all pods that it knows, each time anew, for kubelets without the
//! Pods API. Their states are those that the API server was last heard to have.

mod outline;
mod split;

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{Stream, unfold};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::belief::{Belief, SOON, Teller};
use super::https::Https;
use crate::backoff::{back_off, jittered};
use crate::pod::{Pod, PodEvent, Wanted};
use split::Splitter;

/// The path.
const PATH: &str = "/pods";
/// More than a node with its thousand pods tells.
const MOST: usize = 256 << 20;

/// Reading takes at most a thousandth of our time.
const SHARE: u32 = 1000;
/// How long that may make the wait.
const LONGEST_WAIT: Duration = Duration::from_secs(120);

/// How soon to read again when somebody asks for it, and what share of our time that may take.
const PROMPTED: Duration = Duration::from_millis(100);
const PROMPTED_SHARE: u32 = 20;

/// How soon to try again after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// The longest wait between two failures.
const RETRY_LIMIT: Duration = Duration::from_secs(30);

/// Reads the pods of a kubelet every `period`, less often where that would be too much work. `connect` gives the client,
/// again after each failure: the kubelet may have another address then. Who rings `prompt` has them
/// read at once. An error is one sentence, and it goes on after a
/// back-off. What is told is the whole list each time, unless it seems to be incomplete.
pub fn poll_pods<C, F>(
    connect: C,
    period: Duration,
    wanted: Wanted,
    prompt: Arc<Notify>,
) -> impl Stream<Item = Result<PodEvent, String>> + Send + 'static
where
    C: Fn() -> F + Send + 'static,
    F: Future<Output = Result<Https, String>> + Send,
{
    let poll = Poll {
        connect,
        period,
        wanted,
        prompt,
        client: None,
        belief: Belief::default(),
        events: VecDeque::new(),
        failures: 0,
        next: Instant::now(),
        not_before: Instant::now(),
    };
    unfold(poll, |mut poll| async { Some((poll.next().await, poll)) })
}

/// The pods in the answer to `GET /pods`, which comes in these pieces.
///
/// # Errors
/// What is wrong with it. One pod that makes no sense spoils all: nobody knows what is true of the rest.
pub fn split_pods<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<Pod>, String> {
    let mut splitter = Splitter::default();
    pieces.into_iter().for_each(|piece| splitter.push(piece));
    splitter.finish()
}

struct Poll<C> {
    connect: C,
    period: Duration,
    wanted: Wanted,
    /// Somebody wants to know now.
    prompt: Arc<Notify>,
    client: Option<Https>,
    belief: Belief,
    /// What is still to be told of the last reading.
    events: VecDeque<PodEvent>,
    failures: u32,
    /// When to look again.
    next: Instant,
    /// Not even who asks for it is told anything before.
    not_before: Instant,
}

impl<C, F> Poll<C>
where
    C: Fn() -> F,
    F: Future<Output = Result<Https, String>>,
{
    async fn next(&mut self) -> Result<PodEvent, String> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            self.wait_for_next().await;
            match self.read().await {
                Ok(work) => {
                    self.failures = 0;
                    self.next = Instant::now() + self.wait(work);
                    self.not_before = Instant::now() + PROMPTED.max(work.saturating_mul(PROMPTED_SHARE));
                }
                Err(sentence) => {
                    self.client = None;
                    self.next = Instant::now() + back_off(&mut self.failures, RETRY, RETRY_LIMIT);
                    return Err(sentence);
                }
            }
        }
    }

    /// Waits until it is time to read, or until somebody asks, if the last reading went well and is not that new.
    async fn wait_for_next(&mut self) {
        tokio::select! {
            () = sleep_until(self.next) => {}
            () = self.prompt.notified(), if self.failures == 0 => sleep_until(self.next.min(self.not_before)).await,
        }
    }

    /// Reads once, and says how much work that was.
    async fn read(&mut self) -> Result<Duration, String> {
        let client = match &self.client {
            Some(client) => client,
            None => self.client.insert((self.connect)().await?),
        };
        let (mut splitter, mut work) = (Splitter::keeping(self.wanted.clone()), Duration::ZERO);
        let sink = |piece: &[u8]| {
            let start = Instant::now();
            splitter.push(piece);
            work += start.elapsed();
        };
        client.feed(PATH, MOST, sink).await.map_err(|error| error.to_string())?;
        let explain = |reason| format!("what the kubelet answers to GET {PATH} is not understood: {reason}");
        let pods = splitter.finish().map_err(explain)?;
        self.events = self.belief.take(pods, Teller::Young, Instant::now()).into();
        Ok(work)
    }

    fn wait(&self, work: Duration) -> Duration {
        let usual = jittered(self.period.max(work.saturating_mul(SHARE).min(LONGEST_WAIT)));
        if self.belief.doubts() { usual.min(SOON) } else { usual }
    }
}
