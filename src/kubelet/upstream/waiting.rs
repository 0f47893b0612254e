//! Who waits for what. Nothing is called here.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Answer, Asker};
use crate::kubelet::ask::{Ask, Refusal};

/// In each lane one call may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// `List` of v1.
    List,
    /// Everything else.
    Rest,
}

/// Everybody who waits, by question.
#[derive(Default)]
pub(super) struct Waiting {
    /// How long anybody waits for a call.
    patience: Duration,
    queued: Questions,
    /// Of the call that is under way in each lane.
    flying: [Questions; 2],
    next: u64,
}

pub(super) type Questions = BTreeMap<Ask, Question>;

/// Those who want to know the same.
#[derive(Default)]
pub(super) struct Question {
    /// By when they came.
    pub(super) waiters: BTreeMap<u64, Waiter>,
    /// A List did not have this pod: the kubelet's `Get` has to be asked.
    pub(super) unlisted: bool,
}

/// One who asked.
pub(super) struct Waiter {
    pub(super) answer: oneshot::Sender<Answer>,
    pub(super) asker: Asker,
    /// No call starts for this one after that.
    pub(super) until: Instant,
    /// Its call was lost with the connection, once.
    pub(super) lost: bool,
    /// What the kubelet's limiter said when it was tried.
    pub(super) refused: Option<Refusal>,
}

/// What may be called next.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) ask: Ask,
    pub(super) lane: Lane,
    /// For the agent, who has paid for it already?
    pub(super) paid: bool,
    /// When the first of those came who wait for it.
    first: u64,
}

impl Waiting {
    pub(super) fn new(patience: Duration) -> Self {
        Self { patience, ..Self::default() }
    }

    /// Somebody asks.
    pub(super) fn join(&mut self, ask: &Ask, asker: Asker, now: Instant) -> (u64, oneshot::Receiver<Answer>) {
        let (answer, receiver) = oneshot::channel();
        let number = self.next;
        self.next += 1;
        let waiter = Waiter { answer, asker, until: now + self.patience, lost: false, refused: None };
        self.queued.entry(ask.clone()).or_default().waiters.insert(number, waiter);
        (number, receiver)
    }

    /// Somebody does not wait any more, answered or not.
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

    /// What comes next in a lane in which nothing is under way; `gets` if the kubelet serves `Get`.
    pub(super) fn due(&self, lane: Lane, gets: bool) -> Option<Due> {
        let due = |(ask, question): (&Ask, &Question)| {
            let (first, _) = question.waiters.first_key_value()?;
            let paid = question.waiters.values().any(|waiter| waiter.asker == Asker::Agent);
            Some(Due { ask: ask.clone(), lane, paid, first: *first })
        };
        let alone = self.is_alone(gets);
        let own = |(ask, question): &(&Ask, &Question)| lane == question.lane(ask, gets, alone);
        let next = self.queued.iter().filter(own).filter_map(due).min_by_key(Due::turn)?;
        Some(match lane {
            Lane::List => Due { ask: Ask::List, ..next },
            Lane::Rest => next,
        })
    }

    /// Is there at most one pod that might be looked up in a List?
    fn is_alone(&self, gets: bool) -> bool {
        let get = |(ask, question): &(&Ask, &Question)| {
            matches!(ask, Ask::Get { .. }) && question.lane(ask, gets, false) == Lane::List
        };
        self.queued.iter().filter(get).take(2).count() < 2
    }

    /// The call for `due` starts: those who wait for it do not wait for another.
    pub(super) fn take_off(&mut self, due: &Due, gets: bool) {
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

    /// The call in `lane` has ended: who waited for it.
    pub(super) fn land(&mut self, lane: Lane) -> Questions {
        std::mem::take(&mut self.flying[lane as usize])
    }

    /// They wait for another call.
    pub(super) fn put_back(&mut self, ask: Ask, mut question: Question) {
        if question.waiters.is_empty() {
            return;
        }
        let queued = self.queued.entry(ask).or_default();
        queued.waiters.append(&mut question.waiters);
        queued.unlisted |= question.unlisted;
    }

    /// Those whose time is up.
    pub(super) fn expired(&mut self, now: Instant) -> Vec<(Ask, Waiter)> {
        let mut expired = Vec::new();
        for (ask, question) in &mut self.queued {
            // Who came first is out of time first.
            while let Some(first) = question.waiters.first_entry()
                && first.get().until <= now
            {
                expired.push((ask.clone(), first.remove()));
            }
        }
        self.queued.retain(|_, question| !question.waiters.is_empty());
        expired
    }

    /// When the next one's time is up.
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
    /// How `ask` is answered. Pods are looked up in a List where several are asked for at once, or where the kubelet does
    /// not serve `Get`; a pod that is `alone` need not be, nor is one that a List did not have.
    fn lane(&self, ask: &Ask, gets: bool, alone: bool) -> Lane {
        match ask {
            Ask::List => Lane::List,
            Ask::Get { .. } if !gets || !(alone || self.unlisted) => Lane::List,
            _ => Lane::Rest,
        }
    }
}

impl Due {
    /// What is paid for comes first, then who came first.
    pub(super) fn turn(&self) -> (bool, u64) {
        (!self.paid, self.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(name: &str) -> Ask {
        Ask::Get { namespace: "default".to_owned(), name: name.to_owned() }
    }

    /// Those who asked, in this order, and what they wait for.
    fn asked(asks: &[Ask]) -> (Waiting, Vec<oneshot::Receiver<Answer>>) {
        let mut waiting = Waiting::new(Duration::from_secs(4));
        let now = Instant::now();
        let answers = asks.iter().map(|ask| waiting.join(ask, Asker::Proxy, now).1).collect();
        (waiting, answers)
    }

    fn next(waiting: &Waiting, lane: Lane, gets: bool) -> Option<Ask> {
        waiting.due(lane, gets).map(|due| due.ask)
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
        let due = waiting.due(Lane::List, true).unwrap();
        assert_eq!((due.ask.clone(), due.first), (Ask::List, 0));
        waiting.take_off(&due, true);
        let landed = waiting.land(Lane::List);
        assert_eq!(landed.keys().cloned().collect::<Vec<_>>(), [get("a"), get("b")]);
        // What a List did not have is asked for by its name, unless that is not served.
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
        let due = waiting.due(Lane::Rest, true).unwrap();
        assert!(due.paid && due.ask == Ask::Allocatable);
        waiting.take_off(&due, true);
        assert_eq!(waiting.land(Lane::Rest)[&Ask::Allocatable].waiters.len(), 2, "the proxy's rides along");
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
                    if let Some(due) = waiting.due(lane, gets) {
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
