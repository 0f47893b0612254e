//! The queue of requests. It makes no calls itself.

use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Caller, RequestResult};
use crate::kubelet::request::{Request, RequestError};

/// At most one call is in flight per lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// `List` of v1.
    List,
    /// Everything else.
    Other,
}

/// The kind of a call. Kinds are served round-robin: shared calls are not delayed by unshared ones, of which
/// there may be any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    List,
    ListV1alpha1,
    Allocatable,
    Get,
    /// `Get` of a pod that was missing in a List.
    GetUnlisted,
}

const KINDS: usize = CallKind::GetUnlisted as usize + 1;

/// What the kubelet may be called for at the moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowed {
    pub(super) get: bool,
    /// The rate limit allows a `Get` for a pod that was missing in a List.
    pub(super) unlisted: bool,
}

/// All requests by content.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// How long a request waits for its call to start.
    timeout: Duration,
    queued: PendingRequests,
    /// The requests of the call in flight in each lane.
    in_flight: [PendingRequests; 2],
    next_number: u64,
    /// By kind, the value of `calls` when the last call of that kind started.
    last_started: [u64; KINDS],
    calls: u64,
}

pub(super) type PendingRequests = BTreeMap<Request, PendingRequest>;

/// The waiters of identical requests.
#[derive(Debug, Default)]
pub(super) struct PendingRequest {
    /// By order of arrival.
    pub(super) waiters: BTreeMap<u64, Waiter>,
    /// The pod was missing in a List, so `Get` has to be called.
    pub(super) is_unlisted: bool,
}

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) result: oneshot::Sender<RequestResult>,
    pub(super) caller: Caller,
    /// No call starts for this waiter after this deadline.
    pub(super) deadline: Instant,
    /// Whether its call was already lost with the connection once; it is retried once only.
    pub(super) was_lost: bool,
    /// The last rejection by the kubelet's rate limiter.
    pub(super) rate_limited: Option<RequestError>,
}

/// The next call of a lane.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NextCall {
    pub(super) request: Request,
    pub(super) lane: Lane,
    pub(super) kind: CallKind,
    pub(super) priority: Priority,
}

/// Calls start in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Priority {
    /// Whether only the proxy waits for it. The agent's calls come first and are exempt from this rate limit.
    pub(super) is_rate_limited: bool,
    /// When a call of this kind last started.
    last_started: u64,
    first: u64,
}

impl Queue {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, ..Self::default() }
    }

    pub(super) fn push(
        &mut self,
        request: &Request,
        caller: Caller,
        now: Instant,
    ) -> (u64, oneshot::Receiver<RequestResult>) {
        let (result, receiver) = oneshot::channel();
        let number = self.next_number;
        self.next_number += 1;
        let deadline = now + self.timeout;
        let waiter = Waiter { result, caller, deadline, was_lost: false, rate_limited: None };
        self.queued.entry(request.clone()).or_default().waiters.insert(number, waiter);
        (number, receiver)
    }

    /// Removes a waiter, if it is still there.
    pub(super) fn remove(&mut self, request: &Request, number: u64) {
        for requests in self.in_flight.iter_mut().chain([&mut self.queued]) {
            if let Some(pending) = requests.get_mut(request) {
                pending.waiters.remove(&number);
                if pending.waiters.is_empty() {
                    requests.remove(request);
                }
            }
        }
    }

    /// Returns the next call of an idle lane.
    pub(super) fn next_call(&self, lane: Lane, allowed: Allowed) -> Option<NextCall> {
        let is_single = self.is_single_get(allowed.get);
        let candidate = |(request, pending): (&Request, &PendingRequest)| {
            if pending.lane(request, allowed.get, is_single) != lane {
                return None;
            }
            let (first, _) = pending.waiters.first_key_value()?;
            let is_rate_limited = pending.waiters.values().all(|waiter| waiter.caller == Caller::Proxy);
            let kind = pending.kind(request, lane);
            let may_start = !is_rate_limited || kind != CallKind::GetUnlisted || allowed.unlisted;
            let last_started = self.last_started[kind as usize];
            may_start.then_some((Priority { is_rate_limited, last_started, first: *first }, kind))
        };
        // Only the first one is copied: names may be long and the queue large.
        let candidates = self.queued.iter().filter_map(|queued| Some((candidate(queued)?, queued.0)));
        let ((priority, kind), request) = candidates.min_by_key(|((priority, _), _)| *priority)?;
        let request = if lane == Lane::List { Request::List } else { request.clone() };
        Some(NextCall { request, lane, kind, priority })
    }

    /// Returns true if at most one queued pod could be looked up in a List.
    fn is_single_get(&self, get: bool) -> bool {
        let by_list = |(request, pending): &(&Request, &PendingRequest)| {
            matches!(request, Request::Get { .. }) && pending.lane(request, get, false) == Lane::List
        };
        self.queued.iter().filter(by_list).take(2).count() < 2
    }

    /// Marks the requests that `call` is for as in flight.
    pub(super) fn start(&mut self, call: &NextCall, get: bool) {
        self.calls += 1;
        self.last_started[call.kind as usize] = self.calls;
        let is_single = self.is_single_get(get);
        let is_for = |(request, pending): &(Request, PendingRequest)| match call.lane {
            Lane::List => pending.lane(request, get, is_single) == Lane::List,
            Lane::Other => *request == call.request,
        };
        let (in_flight, queued): (PendingRequests, PendingRequests) =
            mem::take(&mut self.queued).into_iter().partition(is_for);
        (self.in_flight[call.lane as usize], self.queued) = (in_flight, queued);
    }

    /// Returns the requests of the finished call in `lane`.
    pub(super) fn finish(&mut self, lane: Lane) -> PendingRequests {
        mem::take(&mut self.in_flight[lane as usize])
    }

    /// Queues requests again for another call.
    pub(super) fn requeue(&mut self, request: Request, mut pending: PendingRequest) {
        if pending.waiters.is_empty() {
            return;
        }
        let queued = self.queued.entry(request).or_default();
        queued.waiters.append(&mut pending.waiters);
        queued.is_unlisted |= pending.is_unlisted;
    }

    /// Removes and returns the waiters past their deadline.
    pub(super) fn expired(&mut self, now: Instant) -> Vec<(Request, Waiter)> {
        let mut expired = Vec::new();
        for (request, pending) in &mut self.queued {
            // Waiters expire in order of arrival.
            while let Some(first) = pending.waiters.first_entry()
                && first.get().deadline <= now
            {
                expired.push((request.clone(), first.remove()));
            }
        }
        self.queued.retain(|_, pending| !pending.waiters.is_empty());
        expired
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let firsts = self.queued.values().filter_map(|pending| pending.waiters.values().next());
        firsts.map(|waiter| waiter.deadline).min()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.queued.is_empty() && self.in_flight.iter().all(BTreeMap::is_empty)
    }
}

impl PendingRequest {
    /// Returns the lane that serves the request. Pods are looked up in a List if several are requested at
    /// once or the kubelet does not serve `Get`; not if the pod is the only one or was missing in a List.
    fn lane(&self, request: &Request, get: bool, is_single: bool) -> Lane {
        match request {
            Request::List => Lane::List,
            Request::Get { .. } if !get || !(is_single || self.is_unlisted) => Lane::List,
            _ => Lane::Other,
        }
    }

    /// Returns the kind of call that serves the request in `lane`.
    fn kind(&self, request: &Request, lane: Lane) -> CallKind {
        match request {
            Request::List => CallKind::List,
            Request::Get { .. } if lane == Lane::List => CallKind::List,
            Request::ListV1alpha1 => CallKind::ListV1alpha1,
            Request::Allocatable => CallKind::Allocatable,
            Request::Get { .. } if self.is_unlisted => CallKind::GetUnlisted,
            Request::Get { .. } => CallKind::Get,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(name: &str) -> Request {
        Request::Get { namespace: "default".to_owned(), name: name.to_owned() }
    }

    fn allow_all(get: bool) -> Allowed {
        Allowed { get, unlisted: true }
    }

    /// Queues these requests in this order. Returns the queue and the receivers.
    fn queue_of(requests: &[Request]) -> (Queue, Vec<oneshot::Receiver<RequestResult>>) {
        let mut queue = Queue::new(Duration::from_secs(4));
        let now = Instant::now();
        let results = requests.iter().map(|request| queue.push(request, Caller::Proxy, now).1).collect();
        (queue, results)
    }

    fn next(queue: &Queue, lane: Lane, get: bool) -> Option<Request> {
        queue.next_call(lane, allow_all(get)).map(|call| call.request)
    }

    #[test]
    fn several_pods_are_looked_up_in_a_list_and_a_single_one_is_not() {
        let (queue, _results) = queue_of(&[get("a"), get("a")]);
        assert_eq!(next(&queue, Lane::List, true), None);
        assert_eq!(next(&queue, Lane::Other, true), Some(get("a")));
        assert_eq!(next(&queue, Lane::List, false), Some(Request::List));
        assert_eq!(next(&queue, Lane::Other, false), None);

        let (mut queue, _results) = queue_of(&[get("a"), Request::Allocatable, get("b")]);
        assert_eq!(next(&queue, Lane::Other, true), Some(Request::Allocatable));
        let call = queue.next_call(Lane::List, allow_all(true)).unwrap();
        assert_eq!((call.request.clone(), call.priority.first), (Request::List, 0));
        queue.start(&call, true);
        let finished = queue.finish(Lane::List);
        assert_eq!(finished.keys().cloned().collect::<Vec<_>>(), [get("a"), get("b")]);
        // A pod missing in a List is requested by name, unless `Get` is not served.
        for (request, pending) in finished {
            queue.requeue(request, PendingRequest { is_unlisted: true, ..pending });
        }
        assert_eq!(next(&queue, Lane::List, true), None);
        assert_eq!(next(&queue, Lane::Other, true), Some(get("a")));
        assert_eq!(next(&queue, Lane::List, false), Some(Request::List));
    }

    #[test]
    fn the_agent_is_served_first() {
        let (mut queue, _results) = queue_of(&[Request::ListV1alpha1, Request::Allocatable]);
        assert_eq!(next(&queue, Lane::Other, true), Some(Request::ListV1alpha1));
        let _result = queue.push(&Request::Allocatable, Caller::Agent, Instant::now());
        let call = queue.next_call(Lane::Other, allow_all(true)).unwrap();
        assert!(!call.priority.is_rate_limited && call.request == Request::Allocatable);
        queue.start(&call, true);
        assert_eq!(
            queue.finish(Lane::Other)[&Request::Allocatable].waiters.len(),
            2,
            "the proxy's shares the call"
        );
    }

    #[test]
    fn kinds_of_calls_alternate_however_many_pods_are_requested() {
        let pods: Vec<_> = (0..100).map(|number| get(&number.to_string())).collect();
        let (mut queue, mut results) = queue_of(&pods);
        let list = queue.next_call(Lane::List, allow_all(true)).unwrap();
        queue.start(&list, true);
        for (request, pending) in queue.finish(Lane::List) {
            queue.requeue(request, PendingRequest { is_unlisted: true, ..pending });
        }
        let mut order = Vec::new();
        for _ in 0..8 {
            // Clients repeat a request once they have the response.
            let others = [Request::List, Request::Allocatable, Request::ListV1alpha1, get("here")];
            for request in others {
                if !queue.queued.contains_key(&request) {
                    results.push(queue.push(&request, Caller::Proxy, Instant::now()).1);
                }
            }
            let lanes = [Lane::List, Lane::Other].map(|lane| queue.next_call(lane, allow_all(true)));
            let call = lanes.into_iter().flatten().min_by_key(|call| call.priority).unwrap();
            order.push(call.kind);
            queue.start(&call, true);
            queue.finish(call.lane);
        }
        use CallKind::{Allocatable, Get, GetUnlisted, List, ListV1alpha1};
        // The List was called last.
        assert_eq!(order[..4], [GetUnlisted, Allocatable, ListV1alpha1, Get]);
        assert_eq!(order[4..], [List, GetUnlisted, Allocatable, ListV1alpha1]);
        // With the rate limit on unlisted pods exhausted, the other kinds go on.
        let allowed = Allowed { get: true, unlisted: false };
        assert_eq!(queue.next_call(Lane::Other, allowed).unwrap().kind, Get);
    }

    #[test]
    fn a_waiter_that_leaves_is_removed_in_every_state() {
        let given = std::env::var("NUMACAST_SEED").ok();
        let seed = given.map_or_else(|| fastrand::u64(..), |text| text.parse().unwrap());
        println!("NUMACAST_SEED={seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let requests =
            [Request::List, Request::ListV1alpha1, Request::Allocatable, get("a"), get("b"), get("c")];
        let (mut queue, mut present) = (Queue::new(Duration::from_secs(4)), Vec::new());
        for _ in 0..10_000 {
            let get = rng.bool();
            match rng.u8(..4) {
                0 | 1 => {
                    let request = &requests[rng.usize(..requests.len())];
                    let (number, result) = queue.push(request, Caller::Proxy, Instant::now());
                    present.push((request.clone(), number, result));
                }
                2 if !present.is_empty() => {
                    let (request, number, _) = present.swap_remove(rng.usize(..present.len()));
                    queue.remove(&request, number);
                }
                _ => {
                    let lane = if rng.bool() { Lane::List } else { Lane::Other };
                    let finished = queue.finish(lane);
                    finished.into_iter().for_each(|(request, pending)| queue.requeue(request, pending));
                    if let Some(call) = queue.next_call(lane, allow_all(get)) {
                        queue.start(&call, get);
                    }
                }
            }
            let known = queue.in_flight.iter().chain([&queue.queued]).flat_map(BTreeMap::values);
            assert_eq!(known.map(|pending| pending.waiters.len()).sum::<usize>(), present.len());
        }
        present.into_iter().for_each(|(request, number, _)| queue.remove(&request, number));
        assert!(queue.is_empty());
    }
}
