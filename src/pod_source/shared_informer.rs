//! Shares one watch of a pod source among all its subscribers in this process.

mod state;

use std::sync::{Arc, Mutex, Weak};

use futures::StreamExt;
use futures::stream::{BoxStream, unfold};
use tokio::sync::watch;
use tokio::task::yield_now;

use super::kind::PodSourceKind;
use super::queue::{Item, Queue, has_raw};
use crate::kubelet::Refresh;
use crate::pod::Wanted;
use crate::util::sync::lock;
use crate::util::task::Task;
use state::State;

pub(super) type Events = BoxStream<'static, Item>;

/// The shared sources. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct SharedInformer {
    /// What any subscriber will want of a pod, except the serialized pod.
    wanted: Wanted,
    /// Notified to read `/pods` ahead of its time.
    pub(super) refresh: Arc<Refresh>,
    sources: Arc<Mutex<Sources>>,
}

type Sources = Vec<(PodSourceKind, Weak<SharedSource>)>;

/// A source that is open as long as it has subscribers.
#[derive(Debug, Default)]
struct SharedSource {
    state: Arc<watch::Sender<State>>,
    task: Mutex<Option<Task>>,
}

impl SharedSource {
    /// Sets the event stream, which starts with a list; aborts the one before.
    fn open(&self, events: Events) {
        let mut task = lock(&self.task);
        *task = None;
        *task = Some(Task::spawn(receive(events, Arc::clone(&self.state))));
    }
}

/// Passes the events of a source to its subscribers.
async fn receive(mut events: Events, state: Arc<watch::Sender<State>>) {
    while let Some(item) = events.next().await {
        let has_raw = has_raw(&item);
        state.send_modify(|state| state.apply(&item));
        if has_raw {
            // Let subscribers take a serialized pod before the next one is read: they are large.
            yield_now().await;
        }
    }
}

impl SharedInformer {
    /// Returns an informer that caches the `wanted` parts of each pod: all that any subscriber will want,
    /// except the serialized pod.
    #[must_use]
    pub fn caching(wanted: Wanted) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// Subscribes to a source. Yields a snapshot of its pods, then its events. The source is opened if it has
    /// no subscribers yet, and reopened for each further one that wants serialized pods.
    pub(super) fn subscribe(
        &self,
        kind: PodSourceKind,
        wanted: Wanted,
        open: impl FnOnce(Wanted) -> Events,
    ) -> Events {
        let wants_raw = wanted.has_raw();
        let source = self.source(kind, wants_raw, open);
        let changes = source.state.subscribe();
        let mut id = 0;
        source.state.send_if_modified(|state| {
            id = state.subscribe(wants_raw);
            false
        });
        let events = Subscription { source, changes, id, wanted };
        unfold(events, |mut events| async { Some((events.next().await, events)) }).boxed()
    }

    fn source(
        &self,
        kind: PodSourceKind,
        wants_raw: bool,
        open: impl FnOnce(Wanted) -> Events,
    ) -> Arc<SharedSource> {
        let mut sources = lock(&self.sources);
        sources.retain(|(_, source)| source.strong_count() > 0);
        let known = sources.iter().find(|(known, _)| *known == kind).and_then(|(_, source)| source.upgrade());
        let is_new = known.is_none();
        let source = known.unwrap_or_default();
        if is_new {
            sources.push((kind, Arc::downgrade(&source)));
        }
        if is_new || wants_raw {
            let wanted = self.wanted.clone();
            source.open(open(if wants_raw { wanted.with_raw() } else { wanted }));
        }
        source
    }
}

/// A subscriber's stream. Unsubscribes when dropped.
struct Subscription {
    source: Arc<SharedSource>,
    changes: watch::Receiver<State>,
    id: u64,
    wanted: Wanted,
}

impl Subscription {
    async fn next(&mut self) -> Item {
        loop {
            let mut item = None;
            self.source.state.send_if_modified(|state| {
                item = state.subscribers.get_mut(&self.id).and_then(Queue::pop);
                false
            });
            if let Some(item) = item {
                return item.map(|event| event.map(|pod| pod.keeping(&self.wanted)));
            }
            // Returns at once if something changed since it last returned. The source holds the sender.
            _ = self.changes.changed().await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.source.state.send_if_modified(|state| {
            state.subscribers.remove(&self.id);
            false
        });
    }
}

#[cfg(test)]
mod tests;
