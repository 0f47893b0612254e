//! The kubelet's HTTPS endpoint `/pods`, polled on kubelets without the Pods API. It returns all pods the
//! kubelet knows, with the status last seen from the API server.

mod list_reader;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{Stream, unfold};
use tokio::time::{Instant, sleep_until};

use super::https::HttpsClient;
use super::list_filter::{KubeletAge, ListFilter, RECHECK_DELAY};
use super::refresh::Refresh;
use crate::json_list::{MAX_ITEM_BYTES, log_omitted};
use crate::pod::{Pod, PodEvent, Wanted};
use crate::util::backoff::{back_off, jittered};
use crate::util::log_throttle::LastLogged;
use list_reader::PodListReader;

const PATH: &str = "/pods";
/// Maximum size of a response: 250 pods of the largest size. Only one of them is in memory at a time.
const MAX_BYTES: usize = 250 * MAX_ITEM_BYTES;

/// The interval between reads is at least this many times the work of the last one, up to a limit.
const WORK_FACTOR: u32 = 1000;
const MAX_WORK_INTERVAL: Duration = Duration::from_secs(120);

/// Minimum interval of requested refreshes, and the multiple of the last read's work that it takes.
const REFRESH_INTERVAL: Duration = Duration::from_millis(100);
const REFRESH_WORK_FACTOR: u32 = 20;

const RETRY: Duration = Duration::from_secs(1);
const RETRY_LIMIT: Duration = Duration::from_secs(30);

/// Reads the pods of a kubelet every `period`, less often if that would be too much work. `connect` returns a
/// client and is called again after each failure, since the kubelet's address may have changed. `refresh` requests
/// a read at once. An error is one sentence; the stream continues after a
/// backoff. Each read is reported as a whole list, unless it seems to be incomplete.
pub fn poll_pods<C, F>(
    connect: C,
    period: Duration,
    wanted: Wanted,
    refresh: Arc<Refresh>,
) -> impl Stream<Item = Result<PodEvent, String>> + Send + 'static
where
    C: Fn() -> F + Send + 'static,
    F: Future<Output = Result<HttpsClient, String>> + Send,
{
    let poll = Poll {
        connect,
        period,
        wanted,
        refresh,
        client: None,
        filter: ListFilter::default(),
        events: VecDeque::new(),
        failures: 0,
        omitted: LastLogged::default(),
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
pub fn parse_pods<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<Pod>, String> {
    let mut reader = PodListReader::default();
    pieces.into_iter().for_each(|piece| reader.push(piece));
    Ok(reader.finish()?.0)
}

struct Poll<C> {
    connect: C,
    period: Duration,
    wanted: Wanted,
    /// Requests an immediate read.
    refresh: Arc<Refresh>,
    client: Option<HttpsClient>,
    filter: ListFilter,
    events: VecDeque<PodEvent>,
    failures: u32,
    /// Whether pods that the last response omitted were logged.
    omitted: LastLogged,
    next: Instant,
    /// No requested refresh starts before this.
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
            let begin = Instant::now();
            match self.read().await {
                Ok(work) => {
                    self.refresh.read(begin);
                    self.failures = 0;
                    self.next = Instant::now() + self.interval(work);
                    let refresh_interval = REFRESH_INTERVAL.max(work.saturating_mul(REFRESH_WORK_FACTOR));
                    self.not_before = Instant::now() + refresh_interval;
                }
                Err(error) => {
                    self.client = None;
                    self.next = Instant::now() + back_off(&mut self.failures, RETRY, RETRY_LIMIT);
                    return Err(error);
                }
            }
        }
    }

    /// Waits for the next read: until it is due or requested. Requests are ignored after a failure and
    /// delayed right after a read.
    async fn wait_for_next(&mut self) {
        tokio::select! {
            () = sleep_until(self.next) => {}
            () = self.refresh.requested(), if self.failures == 0 => {
                sleep_until(self.next.min(self.not_before)).await;
            }
        }
    }

    /// Reads once. Returns the time spent parsing.
    async fn read(&mut self) -> Result<Duration, String> {
        let client = match &self.client {
            Some(client) => client,
            None => self.client.insert((self.connect)().await?),
        };
        let (mut reader, mut work) = (PodListReader::new(self.wanted.clone()), Duration::ZERO);
        let sink = |piece: &[u8]| {
            let start = Instant::now();
            reader.push(piece);
            work += start.elapsed();
        };
        client.stream(PATH, MAX_BYTES, sink).await?;
        let response = format!("the kubelet's response to GET {PATH}");
        let (pods, omitted) = reader.finish().map_err(|reason| format!("{response} is invalid: {reason}"))?;
        log_omitted(&self.omitted, &response, omitted.as_deref());
        self.events = self.filter.filter_list(pods, KubeletAge::Restarted, Instant::now()).into();
        Ok(work)
    }

    fn interval(&self, work: Duration) -> Duration {
        let usual = jittered(self.period.max(work.saturating_mul(WORK_FACTOR).min(MAX_WORK_INTERVAL)));
        if self.filter.is_doubtful() { usual.min(RECHECK_DELAY) } else { usual }
    }
}
