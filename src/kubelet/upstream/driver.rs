//! The task that calls the kubelet.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use prost::bytes::Bytes;
use tokio::time::{Instant, sleep_until};

use super::records::Records;
use super::waiting::{Due, Kind, Lane, May, Question, Questions, Waiter};
use super::{Asker, Ended, Flight, Observer, Shared};
use crate::backoff::back_off;
use crate::bucket::Bucket;
use crate::kubelet::ask::{Ask, Refusal, not_found};
use crate::kubelet::client::{ClientError, Line, Open, Outcome};
use crate::kubelet::types::Connection;

/// Calls per second for the proxy. With the burst, at most 30 in any second (DESIGN section 10): a third of
/// the kubelet's rate limit for all its clients together.
const CALLS_PER_SECOND: f64 = 25.0;
/// Burst after idling; half of what the kubelet allows.
const CALL_BURST: f64 = 5.0;
/// Of these, calls per second for pods missing in a List. Each costs a call of its own, and clients can make
/// up names.
const UNLISTED_PER_SECOND: f64 = 5.0;
const UNLISTED_BURST: f64 = 5.0;

/// First delay after the kubelet's rate limiter rejected a call: it admits a call every 10 ms, and other
/// clients wait too.
const LIMITED: Duration = Duration::from_millis(20);
/// Maximum of that delay.
const LIMITED_LIMIT: Duration = Duration::from_millis(200);

pub(super) struct Driver {
    shared: Arc<Shared>,
    line: Line,
    observer: Arc<dyn Observer>,
    bucket: Bucket,
    unlisted: Bucket,
    /// At most one in each lane.
    flights: FuturesUnordered<BoxFuture<'static, Landed>>,
    busy: [bool; 2],
    /// The connection on which the kubelet reported that it does not serve `Get`.
    without_get: Option<Connection>,
    /// Number of consecutive rejections by the kubelet's rate limiter.
    limited: u32,
    /// No call for the proxy starts before this.
    not_before: Instant,
}

/// A finished call.
struct Landed {
    due: Due,
    open: Open,
    started: Instant,
    outcome: Outcome,
}

impl Driver {
    pub(super) fn new(shared: Arc<Shared>, line: Line, observer: Arc<dyn Observer>) -> Self {
        let now = Instant::now();
        Self {
            shared,
            line,
            observer,
            bucket: Bucket::new(CALLS_PER_SECOND, CALL_BURST, now),
            unlisted: Bucket::new(UNLISTED_PER_SECOND, UNLISTED_BURST, now),
            flights: FuturesUnordered::new(),
            busy: [false; 2],
            without_get: None,
            limited: 0,
            not_before: now,
        }
    }

    /// Makes calls until it is dropped.
    pub(super) async fn run(mut self) {
        loop {
            let wake = self.start_what_is_due().await;
            let wait = async {
                match wake {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(landed) = self.flights.next() => self.land(landed),
                () = self.shared.news.notified() => {}
                () = wait => {}
            }
        }
    }

    /// Starts every call that may start now. Returns when to check again if nothing happens before.
    async fn start_what_is_due(&mut self) -> Option<Instant> {
        loop {
            let now = Instant::now();
            // Expire first: a finished call may have put back requests that are past their deadline.
            self.expire(now);
            let Some(due) = self.next_due() else { break };
            let at = if due.paid { now } else { self.not_before.max(now + self.bucket.wait(now)) };
            if at > now {
                return Some(self.shared.lock().next_expiry().map_or(at, |expiry| expiry.min(at)));
            }
            // An attempt to connect costs as much as a call.
            let _ = self.bucket.take(now);
            let open = self.line.open().await;
            // While connecting, the kubelet may have been replaced and callers may have left.
            match (self.due(due.lane), open) {
                (Some(due), Ok(open)) => self.start(due, open),
                (Some(due), Err(error)) => self.fail(&due, error),
                (None, _) => {}
            }
        }
        let (now, expiry) = (Instant::now(), self.shared.lock().next_expiry()?);
        // The remaining requests may be waiting for the rate limit on unlisted pods.
        let wait = self.unlisted.wait(now);
        Some(if wait.is_zero() { expiry } else { expiry.min(now + wait) })
    }

    /// Returns the next call to start in any free lane.
    fn next_due(&self) -> Option<Due> {
        let free = [Lane::List, Lane::Rest].into_iter().filter(|lane| !self.busy[*lane as usize]);
        free.filter_map(|lane| self.due(lane)).min_by_key(Due::turn)
    }

    fn due(&self, lane: Lane) -> Option<Due> {
        let unlisted = self.unlisted.wait(Instant::now()).is_zero();
        self.shared.lock().due(lane, May { gets: self.serves_get(), unlisted })
    }

    /// Moves the requests for `due` out of the queue: its call is about to start, or has failed before
    /// starting.
    fn take_off(&mut self, due: &Due) {
        if due.kind == Kind::Unlisted {
            let _ = self.unlisted.take(Instant::now());
        }
        self.shared.lock().take_off(due, self.serves_get());
    }

    /// Returns false once the current kubelet has reported that it does not serve `Get`.
    fn serves_get(&self) -> bool {
        self.without_get.is_none() || self.without_get != self.line.connection()
    }

    fn start(&mut self, due: Due, open: Open) {
        self.take_off(&due);
        self.busy[due.lane as usize] = true;
        self.observer.started(&due.ask, self.flights.len() + 1);
        let (started, answer) = (Instant::now(), open.call(&due.ask));
        self.flights.push(Box::pin(async move {
            let outcome = answer.await;
            Landed { due, open, started, outcome }
        }));
    }

    /// Fails the requests for `due`, for which no connection could be opened.
    fn fail(&mut self, due: &Due, error: ClientError) {
        self.take_off(due);
        let waited = self.shared.lock().land(due.lane);
        self.ended(&due.ask, Duration::ZERO, Some(&error), 0);
        let refusal = Refusal::from(error);
        waited.into_values().for_each(|question| tell(question, &refusal));
    }

    fn ended(&self, ask: &Ask, took: Duration, error: Option<&ClientError>, shared_by: usize) {
        self.observer.ended(&Ended { ask, took, error, shared_by });
    }

    /// Handles a finished call: its requests are answered or queued again.
    fn land(&mut self, landed: Landed) {
        let Landed { due, open, started, outcome } = landed;
        self.busy[due.lane as usize] = false;
        let took = started.elapsed();
        let waited = self.shared.lock().land(due.lane);
        match self.line.settle(&open, &due.ask, outcome) {
            Ok(bytes) => {
                self.limited = 0;
                let flight = |bytes| flight(bytes, &open, started);
                let shared_by = match due.lane {
                    Lane::List => self.answer_from_list(waited, &bytes, flight, open.connection),
                    Lane::Rest => {
                        waited.into_values().map(|question| answer(question, flight(bytes.clone()))).sum()
                    }
                };
                self.ended(&due.ask, took, None, shared_by);
            }
            Err(refusal) => {
                self.ended(&due.ask, took, Some(&refusal.error), 0);
                self.refuse(waited, &refusal, open.connection);
            }
        }
    }

    /// Answers requests for the List with the List and requests for a pod with its record. Returns the number
    /// answered.
    fn answer_from_list(
        &self,
        mut waited: Questions,
        list: &Bytes,
        flight: impl Fn(Bytes) -> Arc<Flight>,
        from: Connection,
    ) -> usize {
        let asked = waited.remove(&Ask::List);
        let mut answered = asked.map_or(0, |question| answer(question, flight(list.clone())));
        if waited.is_empty() {
            return answered;
        }
        let records = Records::of(list);
        for (ask, question) in waited {
            let Ask::Get { namespace, name } = &ask else { continue };
            if let Some(record) = records.get(namespace, name) {
                answered += answer(question, flight(record));
            } else if self.without_get == Some(from) {
                tell(question, &not_found(namespace, name));
            } else {
                self.shared.lock().put_back(ask, Question { unlisted: true, ..question });
            }
        }
        answered
    }

    /// Handles a failed call: some requests are queued again, the others get the error.
    fn refuse(&mut self, waited: Questions, refusal: &Refusal, from: Connection) {
        if refusal.error.is_get_disabled() {
            self.without_get = Some(from);
            let mut waiting = self.shared.lock();
            for (ask, question) in waited {
                waiting.put_back(ask, Question { unlisted: false, ..question });
            }
            return;
        }
        let now = Instant::now();
        let is_limited = matches!(refusal.error, ClientError::RateLimited(_));
        if is_limited {
            self.not_before = now + back_off(&mut self.limited, LIMITED, LIMITED_LIMIT);
        }
        let is_lost = refusal.error.is_lost();
        let again = |waiter: &mut Waiter| {
            if is_limited {
                waiter.refused = Some(refusal.clone());
                // The agent has its own rate limit and retries by itself.
                return waiter.asker == Asker::Proxy && self.not_before < waiter.until;
            }
            is_lost && now < waiter.until && !std::mem::replace(&mut waiter.lost, true)
        };
        for (ask, mut question) in waited {
            let mut rest = Question { unlisted: question.unlisted, ..Question::default() };
            for (number, mut waiter) in std::mem::take(&mut question.waiters) {
                let waiters = if again(&mut waiter) { &mut question.waiters } else { &mut rest.waiters };
                waiters.insert(number, waiter);
            }
            self.shared.lock().put_back(ask, question);
            tell(rest, refusal);
        }
    }

    /// Fails requests past their deadline.
    fn expire(&self, now: Instant) {
        let expired = self.shared.lock().expired(now);
        for (ask, waiter) in expired {
            let refusal = waiter.refused.unwrap_or_else(|| self.line.late(ask.method()).into());
            // Fails if the caller has left.
            let _ = waiter.answer.send(Err(refusal));
        }
    }
}

fn flight(bytes: Bytes, open: &Open, started: Instant) -> Arc<Flight> {
    let (connection, identity) = (open.connection, open.identity);
    Arc::new(Flight { bytes, connection, started, identity, slot: OnceLock::new() })
}

/// Sends the response to all waiters of a request. Returns the number that received it.
fn answer(question: Question, flight: Arc<Flight>) -> usize {
    let waiters = question.waiters.into_values();
    waiters.filter_map(|waiter| waiter.answer.send(Ok(Arc::clone(&flight))).ok()).count()
}

fn tell(question: Question, refusal: &Refusal) {
    for waiter in question.waiters.into_values() {
        // Fails if the caller has left.
        let _ = waiter.answer.send(Err(refusal.clone()));
    }
}
