//! The queue of requests. It makes no calls itself.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Answer, Asker};
use crate::kubelet::ask::{Ask, Refusal};

/// At most one call is in flight per lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// `List` of v1.
    List,
    /// Everything else.
    Rest,
}

/// The kind of a call. Kinds take turns: shared calls are not delayed by unshared ones, of which there may be
/// any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    List,
    ListV1alpha1,
    Allocatable,
    Get,
    /// `Get` of a pod that was missing in a List.
    Unlisted,
}

const KINDS: usize = Kind::Unlisted as usize + 1;

/// What the kubelet may be called for at the moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct May {
    /// The kubelet serves `Get`.
    pub(super) gets: bool,
    /// The rate limit allows a `Get` for a pod that was missing in a List.
    pub(super) unlisted: bool,
}

/// All waiting requests by content.
#[derive(Default)]
pub(super) struct Waiting {
    /// How long a request waits for its call to start.
    patience: Duration,
    queued: Questions,
    /// The requests of the call in flight in each lane.
    flying: [Questions; 2],
    next: u64,
    /// By kind, the value of `calls` when the last call of that kind started.
    served: [u64; KINDS],
    calls: u64,
}

pub(super) type Questions = BTreeMap<Ask, Question>;

/// The waiters of identical requests.
#[derive(Default)]
pub(super) struct Question {
    /// By order of arrival.
    pub(super) waiters: BTreeMap<u64, Waiter>,
    /// The pod was missing in a List, so `Get` has to be called.
    pub(super) unlisted: bool,
}

/// A caller waiting for a response.
pub(super) struct Waiter {
    pub(super) answer: oneshot::Sender<Answer>,
    pub(super) asker: Asker,
    /// No call starts for this waiter after this deadline.
    pub(super) until: Instant,
    /// Whether its call was already lost with the connection once; it is retried once only.
    pub(super) lost: bool,
    /// The last rejection by the kubelet's rate limiter.
    pub(super) refused: Option<Refusal>,
}

/// The next call of a lane.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) ask: Ask,
    pub(super) lane: Lane,
    /// Whether the agent waits for it, whose calls are exempt from the proxy's rate limit.
    pub(super) paid: bool,
    pub(super) kind: Kind,
    /// When a call of this kind last started.
    served: u64,
    /// Arrival of the first waiter.
    first: u64,
}

impl Waiting {
    pub(super) fn new(patience: Duration) -> Self {
        Self { patience, ..Self::default() }
    }

    /// Queues a request.
    pub(super) fn join(&mut self, ask: &Ask, asker: Asker, now: Instant) -> (u64, oneshot::Receiver<Answer>) {
        let (answer, receiver) = oneshot::channel();
        let number = self.next;
        self.next += 1;
        let waiter = Waiter { answer, asker, until: now + self.patience, lost: false, refused: None };
        self.queued.entry(ask.clone()).or_default().waiters.insert(number, waiter);
        (number, receiver)
    }

    /// Removes a waiter, answered or not.
    pub(super) fn leave(&mut self, ask: &Ask, number: u64) {
        for questions in self.flying.iter_mut().chain([&mut self.queued]) {
            if let Some(question) = questions.get_mut(ask) {
                question.waiters.remove(&number);
                if question.waiters.is_empty() {
                    questions.remove(ask);
                }
            }
        }
    }

    /// Returns the next call of an idle lane.
    pub(super) fn due(&self, lane: Lane, may: May) -> Option<Due> {
        let alone = self.is_alone(may.gets);
        let turn = |(ask, question): (&Ask, &Question)| {
            if question.lane(ask, may.gets, alone) != lane {
                return None;
            }
            let (first, _) = question.waiters.first_key_value()?;
            let paid = question.waiters.values().any(|waiter| waiter.asker == Asker::Agent);
            let kind = question.kind(ask, lane);
            let may = paid || kind != Kind::Unlisted || may.unlisted;
            may.then_some((!paid, self.served[kind as usize], *first, kind))
        };
        // Only the winner is copied: names may be long and the queue large.
        let next = self.queued.iter().filter_map(|queued| Some((turn(queued)?, queued.0)));
        let ((unpaid, served, first, kind), ask) =
            next.min_by_key(|((unpaid, served, first, _), _)| (*unpaid, *served, *first))?;
        let ask = if lane == Lane::List { Ask::List } else { ask.clone() };
        Some(Due { ask, lane, paid: !unpaid, kind, served, first })
    }

    /// Returns true if at most one queued pod could be looked up in a List.
    fn is_alone(&self, gets: bool) -> bool {
        let get = |(ask, question): &(&Ask, &Question)| {
            matches!(ask, Ask::Get { .. }) && question.lane(ask, gets, false) == Lane::List
        };
        self.queued.iter().filter(get).take(2).count() < 2
    }

    /// Moves the requests that the call for `due` answers out of the queue.
    pub(super) fn take_off(&mut self, due: &Due, gets: bool) {
        self.calls += 1;
        self.served[due.kind as usize] = self.calls;
        let alone = self.is_alone(gets);
        let (mut taken, mut left) = (Questions::new(), Questions::new());
        for (ask, question) in std::mem::take(&mut self.queued) {
            let goes = match due.lane {
                Lane::List => question.lane(&ask, gets, alone) == Lane::List,
                Lane::Rest => ask == due.ask,
            };
            let questions = if goes { &mut taken } else { &mut left };
            questions.insert(ask, question);
        }
        self.queued = left;
        self.flying[due.lane as usize] = taken;
    }

    /// Returns the requests of the finished call in `lane`.
    pub(super) fn land(&mut self, lane: Lane) -> Questions {
        std::mem::take(&mut self.flying[lane as usize])
    }

    /// Queues requests again for another call.
    pub(super) fn put_back(&mut self, ask: Ask, mut question: Question) {
        if question.waiters.is_empty() {
            return;
        }
        let queued = self.queued.entry(ask).or_default();
        queued.waiters.append(&mut question.waiters);
        queued.unlisted |= question.unlisted;
    }

    /// Removes and returns the waiters past their deadline.
    pub(super) fn expired(&mut self, now: Instant) -> Vec<(Ask, Waiter)> {
        let mut expired = Vec::new();
        for (ask, question) in &mut self.queued {
            // Waiters expire in order of arrival.
            while let Some(first) = question.waiters.first_entry()
                && first.get().until <= now
            {
                expired.push((ask.clone(), first.remove()));
            }
        }
        self.queued.retain(|_, question| !question.waiters.is_empty());
        expired
    }

    /// Returns the earliest deadline in the queue.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        let firsts = self.queued.values().filter_map(|question| question.waiters.values().next());
        firsts.map(|waiter| waiter.until).min()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.queued.is_empty() && self.flying.iter().all(BTreeMap::is_empty)
    }
}

impl Question {
    /// Returns the lane that answers `ask`. Pods are looked up in a List if several are requested at once or
    /// the kubelet does not serve `Get`; not if the pod is the only one (`alone`) or was missing in a List.
    fn lane(&self, ask: &Ask, gets: bool, alone: bool) -> Lane {
        match ask {
            Ask::List => Lane::List,
            Ask::Get { .. } if !gets || !(alone || self.unlisted) => Lane::List,
            _ => Lane::Rest,
        }
    }

    /// Returns the kind of call that answers `ask` in `lane`.
    fn kind(&self, ask: &Ask, lane: Lane) -> Kind {
        match ask {
            Ask::List => Kind::List,
            Ask::Get { .. } if lane == Lane::List => Kind::List,
            Ask::ListV1alpha1 => Kind::ListV1alpha1,
            Ask::Allocatable => Kind::Allocatable,
            Ask::Get { .. } if self.unlisted => Kind::Unlisted,
            Ask::Get { .. } => Kind::Get,
        }
    }
}

impl Due {
    /// Sort key: the agent's calls first, then the kind served least recently, then order of arrival.
    pub(super) fn turn(&self) -> (bool, u64, u64) {
        (!self.paid, self.served, self.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(name: &str) -> Ask {
        Ask::Get { namespace: "default".to_owned(), name: name.to_owned() }
    }

    fn all(gets: bool) -> May {
        May { gets, unlisted: true }
    }

    /// Queues these requests in this order. Returns the queue and the receivers.
    fn asked(asks: &[Ask]) -> (Waiting, Vec<oneshot::Receiver<Answer>>) {
        let mut waiting = Waiting::new(Duration::from_secs(4));
        let now = Instant::now();
        let answers = asks.iter().map(|ask| waiting.join(ask, Asker::Proxy, now).1).collect();
        (waiting, answers)
    }

    fn next(waiting: &Waiting, lane: Lane, gets: bool) -> Option<Ask> {
        waiting.due(lane, all(gets)).map(|due| due.ask)
    }

    #[test]
    fn pods_are_looked_up_in_a_list_where_there_are_several_or_nothing_else() {
        let (waiting, _answers) = asked(&[get("a"), get("a")]);
        assert_eq!(next(&waiting, Lane::List, true), None);
        assert_eq!(next(&waiting, Lane::Rest, true), Some(get("a")));
        assert_eq!(next(&waiting, Lane::List, false), Some(Ask::List));
        assert_eq!(next(&waiting, Lane::Rest, false), None);

        let (mut waiting, _answers) = asked(&[get("a"), Ask::Allocatable, get("b")]);
        assert_eq!(next(&waiting, Lane::Rest, true), Some(Ask::Allocatable));
        let due = waiting.due(Lane::List, all(true)).unwrap();
        assert_eq!((due.ask.clone(), due.first), (Ask::List, 0));
        waiting.take_off(&due, true);
        let landed = waiting.land(Lane::List);
        assert_eq!(landed.keys().cloned().collect::<Vec<_>>(), [get("a"), get("b")]);
        // A pod missing in a List is requested by name, unless `Get` is not served.
        for (ask, question) in landed {
            waiting.put_back(ask, Question { unlisted: true, ..question });
        }
        assert_eq!(next(&waiting, Lane::List, true), None);
        assert_eq!(next(&waiting, Lane::Rest, true), Some(get("a")));
        assert_eq!(next(&waiting, Lane::List, false), Some(Ask::List));
    }

    #[test]
    fn the_agent_comes_first_and_then_who_came_first() {
        let (mut waiting, _answers) = asked(&[Ask::ListV1alpha1, Ask::Allocatable]);
        assert_eq!(next(&waiting, Lane::Rest, true), Some(Ask::ListV1alpha1));
        let _answer = waiting.join(&Ask::Allocatable, Asker::Agent, Instant::now());
        let due = waiting.due(Lane::Rest, all(true)).unwrap();
        assert!(due.paid && due.ask == Ask::Allocatable);
        waiting.take_off(&due, true);
        assert_eq!(waiting.land(Lane::Rest)[&Ask::Allocatable].waiters.len(), 2, "the proxy's rides along");
    }

    #[test]
    fn the_kinds_take_turns_however_many_pods_are_asked_for() {
        let pods: Vec<_> = (0..100).map(|number| get(&number.to_string())).collect();
        let (mut waiting, mut answers) = asked(&pods);
        let list = waiting.due(Lane::List, all(true)).unwrap();
        waiting.take_off(&list, true);
        for (ask, question) in waiting.land(Lane::List) {
            waiting.put_back(ask, Question { unlisted: true, ..question });
        }
        let mut order = Vec::new();
        for _ in 0..8 {
            // Clients repeat a request once it is answered.
            let others = [Ask::List, Ask::Allocatable, Ask::ListV1alpha1, get("here")];
            for ask in others {
                if !waiting.queued.contains_key(&ask) {
                    answers.push(waiting.join(&ask, Asker::Proxy, Instant::now()).1);
                }
            }
            let lanes = [Lane::List, Lane::Rest].map(|lane| waiting.due(lane, all(true)));
            let due = lanes.into_iter().flatten().min_by_key(Due::turn).unwrap();
            order.push(due.kind);
            waiting.take_off(&due, true);
            waiting.land(due.lane);
        }
        use Kind::{Allocatable, Get, List, ListV1alpha1, Unlisted};
        // The List was called last.
        assert_eq!(order[..4], [Unlisted, Allocatable, ListV1alpha1, Get]);
        assert_eq!(order[4..], [List, Unlisted, Allocatable, ListV1alpha1]);
        // With the rate limit on unlisted pods exhausted, the other kinds go on.
        let may = May { gets: true, unlisted: false };
        assert_eq!(waiting.due(Lane::Rest, may).unwrap().kind, Get);
    }

    #[test]
    fn whoever_leaves_is_forgotten_wherever_he_waits() {
        let given = std::env::var("NUMACAST_SEED").ok();
        let seed = given.map_or_else(|| fastrand::u64(..), |text| text.parse().unwrap());
        println!("NUMACAST_SEED={seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let asks = [Ask::List, Ask::ListV1alpha1, Ask::Allocatable, get("a"), get("b"), get("c")];
        let (mut waiting, mut here) = (Waiting::new(Duration::from_secs(4)), Vec::new());
        for _ in 0..10_000 {
            let gets = rng.bool();
            match rng.u8(..4) {
                0 | 1 => {
                    let ask = &asks[rng.usize(..asks.len())];
                    let (number, answer) = waiting.join(ask, Asker::Proxy, Instant::now());
                    here.push((ask.clone(), number, answer));
                }
                2 if !here.is_empty() => {
                    let (ask, number, _) = here.swap_remove(rng.usize(..here.len()));
                    waiting.leave(&ask, number);
                }
                _ => {
                    let lane = if rng.bool() { Lane::List } else { Lane::Rest };
                    let back = waiting.land(lane);
                    back.into_iter().for_each(|(ask, question)| waiting.put_back(ask, question));
                    if let Some(due) = waiting.due(lane, all(gets)) {
                        waiting.take_off(&due, gets);
                    }
                }
            }
            let known = waiting.flying.iter().chain([&waiting.queued]).flat_map(BTreeMap::values);
            assert_eq!(known.map(|question| question.waiters.len()).sum::<usize>(), here.len());
        }
        here.into_iter().for_each(|(ask, number, _)| waiting.leave(&ask, number));
        assert!(waiting.is_empty());
    }
}
