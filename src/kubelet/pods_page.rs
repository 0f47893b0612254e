//! The kubelet's HTTPS endpoint `/pods`, polled on kubelets without the Pods API. It returns
//! all pods the kubelet knows, with the status last seen from the API server.

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
use super::https::HttpsClient;
use crate::one_item::{LARGEST, LeftOutLog};
use crate::pod::{Pod, PodEvent, Wanted};
use crate::util::backoff::{back_off, jittered};
use split::Splitter;

/// The path.
const PATH: &str = "/pods";
/// Maximum size of a response: 250 pods of the largest size. Only one of them is in memory at a time.
const MOST: usize = 250 * LARGEST;

/// The interval between reads is at least this many times the work of the last one.
const SHARE: u32 = 1000;
/// Limit of that minimum interval.
const LONGEST_WAIT: Duration = Duration::from_secs(120);

/// Minimum interval of prompted reads, and the multiple of the last read's work that it takes.
const PROMPTED: Duration = Duration::from_millis(100);
const PROMPTED_SHARE: u32 = 20;

/// First delay after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum delay after a failure.
const RETRY_LIMIT: Duration = Duration::from_secs(30);

/// Reads the pods of a kubelet every `period`, less often if that would be too much work. `connect` returns a
/// client and is called again after each failure, since the kubelet's address may have changed. A
/// notification on `prompt` triggers a read at once. An error is one sentence; the stream continues after a
/// backoff. Each read is reported as a whole list, unless it seems to be incomplete.
pub fn poll_pods<C, F>(
    connect: C,
    period: Duration,
    wanted: Wanted,
    prompt: Arc<Notify>,
) -> impl Stream<Item = Result<PodEvent, String>> + Send + 'static
where
    C: Fn() -> F + Send + 'static,
    F: Future<Output = Result<HttpsClient, String>> + Send,
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
        left_out: LeftOutLog::default(),
        next: Instant::now(),
        not_before: Instant::now(),
    };
    unfold(poll, |mut poll| async { Some((poll.next().await, poll)) })
}

/// Parses the pods of a response to `GET /pods`, given in pieces.
///
/// # Errors
/// If the response is invalid. One invalid pod fails the whole response, as the rest cannot be trusted. One
/// that is too large is left out.
pub fn split_pods<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<Pod>, String> {
    let mut splitter = Splitter::default();
    pieces.into_iter().for_each(|piece| splitter.push(piece));
    splitter.finish()
}

struct Poll<C> {
    connect: C,
    period: Duration,
    wanted: Wanted,
    /// Requests an immediate read.
    prompt: Arc<Notify>,
    client: Option<HttpsClient>,
    belief: Belief,
    /// Events of the last read that were not returned yet.
    events: VecDeque<PodEvent>,
    failures: u32,
    left_out: LeftOutLog,
    /// When to read again.
    next: Instant,
    /// No prompted read starts before this.
    not_before: Instant,
}

impl<C, F> Poll<C>
where
    C: Fn() -> F,
    F: Future<Output = Result<HttpsClient, String>>,
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

    /// Waits for the next read: until it is due or prompted. Prompts are ignored after a failure and delayed
    /// right after a read.
    async fn wait_for_next(&mut self) {
        tokio::select! {
            () = sleep_until(self.next) => {}
            () = self.prompt.notified(), if self.failures == 0 => sleep_until(self.next.min(self.not_before)).await,
        }
    }

    /// Reads once. Returns the time spent parsing.
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
        client.stream(PATH, MOST, sink).await.map_err(|error| error.to_string())?;
        let explain = |reason| format!("what the kubelet answers to GET {PATH} is not understood: {reason}");
        let left_out = splitter.left_out();
        let pods = splitter.finish().map_err(explain)?;
        self.left_out.log(&format!("what the kubelet answers to GET {PATH}"), left_out);
        self.events = self.belief.take(pods, Teller::Young, Instant::now()).into();
        Ok(work)
    }

    fn wait(&self, work: Duration) -> Duration {
        let usual = jittered(self.period.max(work.saturating_mul(SHARE).min(LONGEST_WAIT)));
        if self.belief.doubts() { usual.min(SOON) } else { usual }
    }
}
