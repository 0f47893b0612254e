//! The pods of a shared source, and its subscribers.

use std::collections::BTreeMap;

use crate::pod::{Pod, PodEvent, PodMap, Termination};
use crate::pod_source::queue::{Item, Key, Queue, WaitsFor, has_raw, key, without_raw};
use crate::watch_event::Reflector;

/// The pods as reported by the source, and its subscribers. Serialized pods are not cached: subscribers that
/// want them keep them.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) pods: Reflector<PodMap<Key>>,
    error: Option<String>,
    pub(super) subscribers: BTreeMap<u64, Queue>,
    next_id: u64,
}

impl State {
    /// Applies an event or an error of the source, and queues it for the subscribers.
    pub(super) fn apply(&mut self, item: &Item) {
        let confirms_health = matches!(item, Ok(event) if event.confirms_health());
        match item {
            Ok(event) => {
                self.pods.apply(event.clone().map(|pod| (key(&pod), without_raw(pod))));
                if confirms_health {
                    self.error = None;
                }
            }
            Err(error) => self.error = Some(error.clone()),
        }
        // Subscribers should not buffer bytes that they do not want.
        let without_raw = has_raw(item).then(|| item.clone().map(|event| event.map(without_raw)));
        for queue in self.subscribers.values_mut() {
            if queue.waits_for == Some(WaitsFor::List) && matches!(item, Ok(PodEvent::Init)) {
                queue.waits_for = None;
            }
            if queue.waits_for == Some(WaitsFor::Recovery) && confirms_health {
                *queue = snapshot(&self.pods);
            } else if queue.waits_for.is_none() || item.is_err() {
                let item = without_raw.as_ref().filter(|_| !queue.wants_raw).unwrap_or(item);
                queue.push(item.clone());
            }
        }
    }

    pub(super) fn subscribe(&mut self, wants_raw: bool) -> u64 {
        let queue = match (wants_raw, &self.error) {
            (true, _) => Queue::new([], Some(WaitsFor::List), true),
            (false, Some(error)) => Queue::new([Err(error.clone())], Some(WaitsFor::Recovery), false),
            (false, None) => snapshot(&self.pods),
        };
        let id = self.next_id;
        self.next_id += 1;
        self.subscribers.insert(id, queue);
        id
    }
}

/// Returns the initial snapshot for a new subscriber.
fn snapshot(pods: &Reflector<PodMap<Key>>) -> Queue {
    let complete = pods.is_synced().then(|| PodEvent::list(running_last(pods.objects())));
    // A list that is being received goes on with the next events.
    let incoming = pods.incoming().map(|pods| {
        std::iter::once(PodEvent::Init).chain(running_last(pods).into_iter().map(PodEvent::InitApply))
    });
    Queue::new(complete.into_iter().flatten().chain(incoming.into_iter().flatten()).map(Ok), None, false)
}

/// Returns the pods. If two share a name, the running one comes last, so name-keyed caches keep it.
fn running_last(pods: &BTreeMap<Key, Pod>) -> Vec<Pod> {
    let mut pods: Vec<Pod> = pods.values().cloned().collect();
    pods.sort_by_key(|pod| pod.termination == Termination::Live);
    pods
}
