//! The task that calls.

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

/// Calls for the proxy. In no second are there more than the burst and what one second earns, which makes 30
/// (DESIGN section 10): a third of what the kubelet allows all its clients together.
const CALLS_PER_SECOND: f64 = 25.0;
/// Calls at once after a rest; half of what the kubelet allows.
const CALL_BURST: f64 = 5.0;
/// Of these, for pods that a List did not have, each of which costs a call of its own: anybody can make up names.
const UNLISTED_PER_SECOND: f64 = 5.0;
const UNLISTED_BURST: f64 = 5.0;

/// How soon to try again what the kubelet's limiter refused: it lets a call through every 10 ms, and others wait too.
const LIMITED: Duration = Duration::from_millis(20);
/// The longest wait between two such calls.
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
    /// Where the kubelet said that it does not serve `Get`.
    without_get: Option<Connection>,
    /// How often in a row its limiter refused.
    limited: u32,
    /// For the proxy nothing starts before.
    not_before: Instant,
}

/// A call that has ended.
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

    /// Calls for whoever asks, until it is dropped.
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

    /// Starts every call that may start now, and says when to look again if nothing happens before.
    async fn start_what_is_due(&mut self) -> Option<Instant> {
        loop {
            let now = Instant::now();
            // Before a call starts: some may come back from one that has ended after their time.
            self.expire(now);
            let Some(due) = self.next_due() else { break };
            let at = if due.paid { now } else { self.not_before.max(now + self.bucket.wait(now)) };
            if at > now {
                return Some(self.shared.lock().next_expiry().map_or(at, |expiry| expiry.min(at)));
            }
            // An attempt to connect costs as much as a call.
            let _ = self.bucket.take(now);
            let open = self.line.open().await;
            // Another kubelet may have taken the place, and somebody have gone.
            match (self.due(due.lane), open) {
                (Some(due), Ok(open)) => self.start(due, open),
                (Some(due), Err(error)) => self.fail(&due, error),
                (None, _) => {}
            }
        }
        let (now, expiry) = (Instant::now(), self.shared.lock().next_expiry()?);
        // Those that are left may be waiting for their share of the budget.
        let wait = self.unlisted.wait(now);
        Some(if wait.is_zero() { expiry } else { expiry.min(now + wait) })
    }

    /// What may start, of whatever lane has its turn.
    fn next_due(&self) -> Option<Due> {
        let free = [Lane::List, Lane::Rest].into_iter().filter(|lane| !self.busy[*lane as usize]);
        free.filter_map(|lane| self.due(lane)).min_by_key(Due::turn)
    }

    fn due(&self, lane: Lane) -> Option<Due> {
        let unlisted = self.unlisted.wait(Instant::now()).is_zero();
        self.shared.lock().due(lane, May { gets: self.serves_get(), unlisted })
    }

    /// The call for `due` is made, or fails before.
    fn take_off(&mut self, due: &Due) {
        if due.kind == Kind::Unlisted {
            let _ = self.unlisted.take(Instant::now());
        }
        self.shared.lock().take_off(due, self.serves_get());
    }

    /// Does the kubelet serve `Get`, as far as it has said?
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

    /// There is no connection for a call that was due.
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

    /// A call has ended: everybody who waited for it is answered, or waits for another.
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

    /// Who asked for the List gets it, who asked for a pod its record. How many have their answer?
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

    /// The kubelet refused, or was not there: some try again, the others are told.
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
                // The agent has a budget of its own and tries again by itself.
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

    /// Answers those whose time is up.
    fn expire(&self, now: Instant) {
        let expired = self.shared.lock().expired(now);
        for (ask, waiter) in expired {
            let refusal = waiter.refused.unwrap_or_else(|| self.line.late(ask.method()).into());
            // Whoever has gone does not hear it.
            let _ = waiter.answer.send(Err(refusal));
        }
    }
}

fn flight(bytes: Bytes, open: &Open, started: Instant) -> Arc<Flight> {
    let (connection, identity) = (open.connection, open.identity);
    Arc::new(Flight { bytes, connection, started, identity, slot: OnceLock::new() })
}

/// Gives everybody the same answer. How many are they?
fn answer(question: Question, flight: Arc<Flight>) -> usize {
    let waiters = question.waiters.into_values();
    waiters.filter_map(|waiter| waiter.answer.send(Ok(Arc::clone(&flight))).ok()).count()
}

fn tell(question: Question, refusal: &Refusal) {
    for waiter in question.waiters.into_values() {
        // Whoever has gone does not hear it.
        let _ = waiter.answer.send(Err(refusal.clone()));
    }
}
