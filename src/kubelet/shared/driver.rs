//! The task that calls the kubelet.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use prost::bytes::Bytes;
use tokio::time::{Instant, sleep_until};

use super::queue::{Allowed, CallKind, Lane, NextCall, PendingRequest, PendingRequests, Waiter};
use super::records::Records;
use super::{Caller, Observer, RequestResult, Shared, SharedResponse};
use crate::kubelet::client_error::ClientError;
use crate::kubelet::connector::{Connector, OpenConnection, Outcome};
use crate::kubelet::instance::KubeletInstance;
use crate::kubelet::request::{Request, RequestError, not_found};
use crate::util::backoff::back_off;
use crate::util::token_bucket::TokenBucket;

/// Calls per second on this connection; the agent's count, but only the proxy's wait. With the burst, at most
/// 30 in any second: a third of the kubelet's rate limit for all its clients together (100 per second;
/// upstream: `podresources.DefaultQPS`).
const CALLS_PER_SECOND: f64 = 25.0;
/// Burst after idling; half of what the kubelet allows.
const CALL_BURST: f64 = 5.0;
/// Of these, calls per second for pods missing in a List. Each costs a call of its own, and clients can make
/// up names.
const UNLISTED_PER_SECOND: f64 = 5.0;
const UNLISTED_BURST: f64 = 5.0;

/// First delay after the kubelet's rate limiter rejected a call: it admits a call every 10 ms, and other
/// clients wait too.
const REJECTED_DELAY: Duration = Duration::from_millis(20);
const REJECTED_DELAY_LIMIT: Duration = Duration::from_millis(200);

pub(super) struct Driver {
    shared: Arc<Shared>,
    connector: Connector,
    observer: Observer,
    bucket: TokenBucket,
    unlisted: TokenBucket,
    /// At most one in each lane.
    calls: FuturesUnordered<BoxFuture<'static, Finished>>,
    is_busy: [bool; 2],
    /// The kubelet instance that reported that it does not serve `Get`.
    without_get: Option<KubeletInstance>,
    /// Number of consecutive rejections by the kubelet's rate limiter.
    rejections: u32,
    not_before: Instant,
}

struct Finished {
    call: NextCall,
    open: OpenConnection,
    started: Instant,
    outcome: Outcome,
}

impl Driver {
    pub(super) fn new(shared: Arc<Shared>, connector: Connector, observer: Observer) -> Self {
        let now = Instant::now();
        Self {
            shared,
            connector,
            observer,
            bucket: TokenBucket::new(CALLS_PER_SECOND, CALL_BURST, now),
            unlisted: TokenBucket::new(UNLISTED_PER_SECOND, UNLISTED_BURST, now),
            calls: FuturesUnordered::new(),
            is_busy: [false; 2],
            without_get: None,
            rejections: 0,
            not_before: now,
        }
    }

    /// Makes calls until it is dropped.
    pub(super) async fn run(mut self) {
        loop {
            let wake = self.start_calls().await;
            tokio::select! {
                Some(finished) = self.calls.next() => self.finish(finished),
                () = self.shared.queued.notified() => {}
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {}
            }
        }
    }

    /// Starts every call that may start now. Returns when to check again if nothing happens before.
    async fn start_calls(&mut self) -> Option<Instant> {
        loop {
            let now = Instant::now();
            // Expire first: a finished call may have requeued requests that are past their deadline.
            self.expire(now);
            let Some(call) = self.next_call() else { break };
            let at = match call.priority.is_rate_limited {
                true => self.not_before.max(now + self.bucket.wait(now)),
                false => now,
            };
            if at > now {
                return Some(self.shared.lock().next_deadline().map_or(at, |deadline| deadline.min(at)));
            }
            // An attempt to connect costs as much as a call.
            let _ = self.bucket.take(now);
            let open = self.connector.open().await;
            // While connecting, the kubelet may have been replaced and callers may have left.
            match (self.next_call_in(call.lane), open) {
                (Some(call), Ok(open)) => self.start(call, open),
                (Some(call), Err(error)) => self.fail(&call, error),
                (None, _) => {}
            }
        }
        let (now, deadline) = (Instant::now(), self.shared.lock().next_deadline()?);
        // The remaining requests may be waiting for the rate limit on unlisted pods.
        let wait = self.unlisted.wait(now);
        Some(if wait.is_zero() { deadline } else { deadline.min(now + wait) })
    }

    /// Returns the next call to start in any free lane.
    fn next_call(&self) -> Option<NextCall> {
        let free = [Lane::List, Lane::Other].into_iter().filter(|lane| !self.is_busy[*lane as usize]);
        free.filter_map(|lane| self.next_call_in(lane)).min_by_key(|call| call.priority)
    }

    fn next_call_in(&self, lane: Lane) -> Option<NextCall> {
        let unlisted = self.unlisted.wait(Instant::now()).is_zero();
        self.shared.lock().next_call(lane, Allowed { get: self.serves_get(), unlisted })
    }

    /// Takes the requests for `call` out of the queue: it is about to start, or has failed before starting.
    fn dequeue(&mut self, call: &NextCall) {
        if call.kind == CallKind::GetUnlisted {
            let _ = self.unlisted.take(Instant::now());
        }
        self.shared.lock().start(call, self.serves_get());
    }

    /// Returns false once the current kubelet has reported that it does not serve `Get`.
    fn serves_get(&self) -> bool {
        self.without_get.is_none() || self.without_get != self.connector.instance()
    }

    fn start(&mut self, call: NextCall, open: OpenConnection) {
        self.dequeue(&call);
        self.is_busy[call.lane as usize] = true;
        let (started, outcome) = (Instant::now(), open.call(&call.request));
        self.calls.push(Box::pin(async move {
            let outcome = outcome.await;
            Finished { call, open, started, outcome }
        }));
    }

    /// Fails the requests for `call`, for which no connection could be opened.
    fn fail(&mut self, call: &NextCall, error: ClientError) {
        self.dequeue(call);
        let requests = self.shared.lock().finish(call.lane);
        (self.observer)(&call.request, Duration::ZERO, Some(&error));
        let failed = Err(error.into());
        requests.into_values().for_each(|pending| send(pending, &failed));
    }

    /// Handles a finished call: its requests get the result or are queued again.
    fn finish(&mut self, finished: Finished) {
        let Finished { call, open, started, outcome } = finished;
        self.is_busy[call.lane as usize] = false;
        let took = started.elapsed();
        let requests = self.shared.lock().finish(call.lane);
        match self.connector.finish(&open, &call.request, outcome) {
            Ok(bytes) => {
                self.rejections = 0;
                let (instance, socket) = (open.instance, open.socket);
                let shared = |bytes| {
                    Arc::new(SharedResponse { bytes, instance, started, socket, slot: OnceLock::new() })
                };
                match call.lane {
                    Lane::List => self.send_list(requests, &bytes, shared, instance),
                    Lane::Other => {
                        requests.into_values().for_each(|pending| send(pending, &Ok(shared(bytes.clone()))));
                    }
                }
                (self.observer)(&call.request, took, None);
            }
            Err(failed) => {
                (self.observer)(&call.request, took, Some(&failed.error));
                self.requeue_or_fail(requests, &failed, open.instance);
            }
        }
    }

    /// Sends the List to requests for it, and a pod's record to requests for a pod.
    fn send_list(
        &self,
        mut requests: PendingRequests,
        list: &Bytes,
        shared: impl Fn(Bytes) -> Arc<SharedResponse>,
        from: KubeletInstance,
    ) {
        if let Some(pending) = requests.remove(&Request::List) {
            send(pending, &Ok(shared(list.clone())));
        }
        if requests.is_empty() {
            return;
        }
        let records = Records::of(list);
        for (request, pending) in requests {
            let Request::Get { namespace, name } = &request else { continue };
            if let Some(record) = records.get(namespace, name) {
                send(pending, &Ok(shared(record)));
            } else if self.without_get == Some(from) {
                send(pending, &Err(not_found(namespace, name)));
            } else {
                self.shared.lock().requeue(request, PendingRequest { is_unlisted: true, ..pending });
            }
        }
    }

    /// Handles a failed call: some requests are queued again, the others get the error.
    fn requeue_or_fail(&mut self, requests: PendingRequests, failed: &RequestError, from: KubeletInstance) {
        if failed.error.is_get_disabled() {
            self.without_get = Some(from);
            let mut queue = self.shared.lock();
            for (request, pending) in requests {
                queue.requeue(request, PendingRequest { is_unlisted: false, ..pending });
            }
            return;
        }
        let now = Instant::now();
        let is_rejected = matches!(failed.error, ClientError::RateLimited(_));
        if is_rejected {
            self.not_before = now + back_off(&mut self.rejections, REJECTED_DELAY, REJECTED_DELAY_LIMIT);
        }
        let is_lost = failed.error.is_lost();
        let retries = |waiter: &mut Waiter| {
            if is_rejected {
                waiter.rate_limited = Some(failed.clone());
                // The agent has its own rate limit and retries by itself.
                return waiter.caller == Caller::Proxy && self.not_before < waiter.deadline;
            }
            is_lost && now < waiter.deadline && !std::mem::replace(&mut waiter.was_lost, true)
        };
        for (request, mut pending) in requests {
            let mut rest = PendingRequest { is_unlisted: pending.is_unlisted, ..PendingRequest::default() };
            for (number, mut waiter) in std::mem::take(&mut pending.waiters) {
                let waiters = if retries(&mut waiter) { &mut pending.waiters } else { &mut rest.waiters };
                waiters.insert(number, waiter);
            }
            self.shared.lock().requeue(request, pending);
            send(rest, &Err(failed.clone()));
        }
    }

    /// Fails requests past their deadline.
    fn expire(&self, now: Instant) {
        let expired = self.shared.lock().expired(now);
        for (request, waiter) in expired {
            let timed_out = || self.connector.timed_out(request.method()).into();
            // Fails if the caller has left.
            let _ = waiter.result.send(Err(waiter.rate_limited.unwrap_or_else(timed_out)));
        }
    }
}

/// Sends the result to all waiters of a request.
fn send(pending: PendingRequest, result: &RequestResult) {
    for waiter in pending.waiters.into_values() {
        // Fails if the caller has left.
        let _ = waiter.result.send(result.clone());
    }
}
