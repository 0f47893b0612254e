//! Watches: the events of a stream, and its bookmarks.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::Response;
use futures::stream;
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::Shared;
use super::selector::Selector;
use super::shape::Shape;
use super::status::Failure;
use super::store::{Change, EventType};
use super::target::{Parameters, Target};

/// Duration of a watch without a timeout; on real servers it is half an hour to an hour.
const WATCH_LIMIT: Duration = Duration::from_secs(1800);
/// Interval of bookmarks for watches that request them; they get another one at the end.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);

/// The state of a watch.
struct Watch {
    shared: Arc<Shared>,
    target: Target,
    selector: Selector,
    shape: Shape,
    pending: std::vec::IntoIter<Bytes>,
    changes: broadcast::Receiver<Arc<Change>>,
    /// Changes up to this version were processed or are in `pending`.
    sent: u64,
    /// When the next bookmark is due, if requested.
    bookmark_at: Option<Instant>,
    until: Instant,
    /// Whether the timeout has passed and the last event was sent.
    ended: bool,
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let at = state.watched.iter().position(|kind| *kind == self.target.kind);
        at.map(|at| state.watched.swap_remove(at));
    }
}

/// Starts a watch of the objects of a kind.
pub(super) fn watch(
    shared: &Arc<Shared>,
    target: Target,
    parameters: &Parameters,
    shape: Shape,
) -> Result<Response<Body>, Failure> {
    let selector = target.selector(parameters)?;
    let text = |name: &str| parameters.get(name).map_or("", String::as_str);
    let limit = text("timeoutSeconds").parse().map_or(WATCH_LIMIT, Duration::from_secs);
    let from: u64 = text("resourceVersion").parse().unwrap_or(0);
    let streamed = text("sendInitialEvents") == "true";
    let mut state = shared.lock();
    let version = state.store.version();
    // Changes up to the requested version are skipped, even if that version is in the future.
    let sent = version.max(from);
    let mut lines = Vec::new();
    if from == 0 || streamed {
        for object in state.store.list(target.kind, &target.namespace) {
            if selector.matches(&object) {
                lines.push(shape.event("ADDED", &shape.object(&target, &object)));
            }
        }
        if streamed {
            lines.push(shape.event("BOOKMARK", &shape.bookmark(&target, version, true)));
        }
    } else {
        match state.store.since(from) {
            Ok(changes) => {
                lines.extend(changes.iter().filter_map(|change| event(change, &target, &selector, shape)))
            }
            // Inside the stream, as on a real server.
            Err(failure) => {
                let line = shape.event("ERROR", &failure.to_object());
                return Ok(shape.streaming(Body::from(line)));
            }
        }
    }
    let changes = state.store.subscribe();
    state.watched.push(target.kind);
    drop(state);
    let watch = Watch {
        shared: shared.clone(),
        target,
        selector,
        shape,
        pending: lines.into_iter(),
        changes,
        sent,
        bookmark_at: (text("allowWatchBookmarks") == "true").then(|| Instant::now() + BOOKMARK_INTERVAL),
        until: Instant::now() + limit,
        ended: false,
    };
    let lines = stream::unfold(watch, |mut watch| async {
        let line = watch.next().await?;
        Some((Ok::<Bytes, Infallible>(line), watch))
    });
    Ok(shape.streaming(Body::from_stream(lines)))
}

impl Watch {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(line) = self.pending.next() {
                return Some(line);
            }
            let wait = self.bookmark_at.map_or(self.until, |at| at.min(self.until));
            let Ok(change) = tokio::time::timeout_at(wait, self.changes.recv()).await else {
                return self.bookmark().await;
            };
            // A client that is too far behind must start over.
            let change = change.ok()?;
            self.shared.thawed().await;
            if change.resource_version <= self.sent {
                continue;
            }
            self.sent = change.resource_version;
            if let Some(line) = event(&change, &self.target, &self.selector, self.shape) {
                return Some(line);
            }
        }
    }

    /// Sends a bookmark; ends the stream after the last one.
    async fn bookmark(&mut self) -> Option<Bytes> {
        self.shared.thawed().await;
        if self.ended {
            return None;
        }
        self.ended = Instant::now() >= self.until;
        self.bookmark_at = Some(self.bookmark_at? + BOOKMARK_INTERVAL);
        if self.sent > self.shared.lock().store.version() {
            // The watch started at a version that the store has not reached, so it cannot confirm any.
            return Some(Bytes::new());
        }
        Some(self.shape.event("BOOKMARK", &self.shape.bookmark(&self.target, self.sent, false)))
    }
}

/// The event that a watch sends for a change, if the change concerns it.
fn event(change: &Change, target: &Target, selector: &Selector, shape: Shape) -> Option<Bytes> {
    let namespace = change.object["metadata"]["namespace"].as_str().unwrap_or_default();
    if change.kind != target.kind || !(target.namespace.is_empty() || target.namespace == namespace) {
        return None;
    }
    let matched = change.before.as_ref().is_some_and(|before| selector.matches(before));
    let matches = change.event != EventType::Deleted && selector.matches(&change.object);
    let name = match (matched, matches) {
        (false, true) => "ADDED",
        (true, true) => "MODIFIED",
        (true, false) => "DELETED",
        (false, false) => return None,
    };
    Some(shape.event(name, &shape.object(target, &change.object)))
}
