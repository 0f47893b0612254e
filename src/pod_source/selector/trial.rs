//! The trial of a source that is preferred to the selected one.

use std::time::Duration;

use futures::StreamExt;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::pod::PodEvent;
use crate::pod_source::queue::{Item, Queue};
use crate::pod_source::shared_informer::Events;
use crate::util::backoff::jittered;

/// How long a source may take for its first list before the next one is tried: a kubelet's first lists are
/// not accepted for a while.
pub(super) const TRIAL_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the sources before the selected one are tried again.
pub(super) const INTERVAL: Duration = Duration::from_secs(300);

/// A source that is tried, or none until it is time to.
pub(super) struct Trial {
    pub(super) index: usize,
    /// `None` while no source is tried.
    pub(super) events: Option<Events>,
    /// Its events since its last list began.
    pub(super) kept: Queue,
    /// When to try the first source; or the deadline of the one that is tried for listing all pods.
    until: Instant,
}

impl Trial {
    /// Waits before the first source is tried.
    pub(super) fn later() -> Self {
        let until = Instant::now() + jittered(INTERVAL);
        Self { index: 0, events: None, kept: Queue::new([], None, false), until }
    }

    pub(super) fn of(index: usize, events: Events) -> Self {
        let until = Instant::now() + TRIAL_TIMEOUT;
        Self { index, events: Some(events), kept: Queue::new([], None, false), until }
    }

    pub(super) fn keep(&mut self, event: PodEvent) {
        if event == PodEvent::Init {
            self.kept = Queue::new([], None, false);
        }
        self.kept.push(Ok(event));
    }

    /// Returns the next event of the source that is tried; `None` if none is and it is time to. A timeout is
    /// an error.
    pub(super) async fn next(&mut self) -> Option<Item> {
        let Some(events) = &mut self.events else {
            sleep_until(self.until).await;
            return None;
        };
        let item = timeout_at(self.until, events.next()).await.ok().flatten();
        Some(item.unwrap_or_else(|| Err("it did not list the pods".to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::{Annotation, MAX_ANNOTATION_BYTES, Pod};
    use crate::pod_source::queue::pod_of;
    use crate::pod_source::samples::annotated;

    #[tokio::test]
    async fn a_trial_keeps_bounded_annotations_of_its_last_list() {
        let mut trial = Trial::later();
        for _ in 0..2 {
            trial.keep(PodEvent::Init);
            trial.keep(PodEvent::InitApply(annotated("small", 1000)));
            (0..500).for_each(|_| trial.keep(PodEvent::InitApply(annotated("large", Annotation::MAX_BYTES))));
            let sizes: Vec<_> =
                trial.kept.items.iter().filter_map(pod_of).map(Pod::annotation_bytes).collect();
            let bytes: usize = sizes.iter().sum();
            assert!((MAX_ANNOTATION_BYTES / 2..=MAX_ANNOTATION_BYTES).contains(&bytes), "{bytes}");
            assert_eq!(trial.kept.annotation_bytes, bytes);
            assert_eq!((sizes.len(), sizes[0]), (501, 1000), "the longest are dropped, and no pod");
        }
    }
}
