//! When the next list or watch may be requested. When an API server restarts, all agents of the cluster lose
//! their watches at the same moment: random timeouts and delays keep them from acting together.

use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use super::{ClusterError, StartupDenials};
use crate::util::backoff::{NextAttempt, random_delay};

/// A watch that lasts less than this counts as failed: resuming at once would mean reconnecting again and
/// again.
const MIN_DURATION: Duration = Duration::from_secs(10);
/// Upper bound of the random delay before the next watch, after one that worked.
const RECONNECT_WINDOW: Duration = Duration::from_secs(1);
/// Minimum delay after a failure.
const MIN_DELAY: Duration = Duration::from_millis(500);
/// Width of the random delay on top of it.
const WINDOW: Duration = Duration::from_secs(10);
/// Maximum width after many failures.
const MAX_WINDOW: Duration = Duration::from_secs(30);

/// Returns a random watch timeout in seconds, from `min` up to twice this, as in Kubernetes' own clients. The
/// API server chooses one only for clients that request none.
pub(super) fn random_watch_seconds(min: u32) -> u32 {
    fastrand::u32(min..=2 * min)
}

/// An open watch, as far as it decides when the next one begins.
pub(super) struct WatchSpan {
    pub(super) since: Instant,
    /// The requested watch timeout.
    pub(super) requested: Duration,
    /// Whether anything was received.
    pub(super) has_frames: bool,
}

impl WatchSpan {
    /// A watch that begins now.
    pub(super) fn new(seconds: u32) -> Self {
        Self { since: Instant::now(), requested: Duration::from_secs(seconds.into()), has_frames: false }
    }
}

/// When the next request may be sent, and whether the failure of the last one is reported.
pub(super) struct WatchTimer {
    next: NextAttempt,
    denials: StartupDenials,
}

impl WatchTimer {
    pub(super) fn new(not_before: Instant) -> Self {
        Self { next: NextAttempt::new(not_before), denials: StartupDenials::default() }
    }

    /// Waits until the next request may be sent.
    pub(super) fn wait(&self) -> Sleep {
        sleep_until(self.next.at())
    }

    pub(super) const fn recover(&mut self) {
        self.next.succeeded();
        self.denials.reset();
    }

    /// Backs off after a failure: other clients likely fail too. The API server may ask for a longer delay.
    pub(super) fn fail(&mut self, error: Option<&ClusterError>) {
        let retry_after = error.and_then(ClusterError::retry_after).unwrap_or_default();
        self.next.failed(retry_after.max(MIN_DELAY), WINDOW, MAX_WINDOW);
    }

    /// Returns true if the failure need not be reported yet.
    pub(super) fn passes(&mut self, error: &ClusterError) -> bool {
        self.denials.include(error)
    }

    /// Handles the end of a watch, or its break. Returns false if it counts as failed: then the caller backs
    /// off.
    #[must_use]
    pub(super) fn ended(&mut self, watch: &WatchSpan, is_broken: bool) -> bool {
        let lasted = watch.since.elapsed();
        let has_worked = lasted >= MIN_DURATION || (watch.has_frames && !is_broken);
        // The watch timeout is random already, so the next one begins at once.
        if has_worked && (is_broken || lasted + RECONNECT_WINDOW < watch.requested) {
            self.reconnect_soon();
        }
        has_worked
    }

    /// Spreads the next watch after one that worked. An agent cannot know whether it alone lost its watch: if
    /// all did, the API server that went away rejects this attempt, and the ones after it are spread.
    pub(super) fn reconnect_soon(&mut self) {
        self.next.set(Instant::now() + random_delay(RECONNECT_WINDOW));
    }
}
