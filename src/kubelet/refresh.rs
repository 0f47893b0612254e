//! Reads of the kubelet's `/pods` that are requested ahead of their time.

use std::sync::Mutex;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::util::sync::lock;

/// Requests reads of `/pods`.
#[derive(Debug, Default)]
pub struct Refresh {
    requested: Notify,
    read_at: Mutex<Option<Instant>>,
}

impl Refresh {
    /// Requests a read. A read that is under way does not count.
    pub fn request(&self) {
        self.requested.notify_one();
    }

    /// Returns when the last successful read began.
    #[must_use]
    pub fn read_at(&self) -> Option<Instant> {
        *lock(&self.read_at)
    }

    /// Waits until a read is requested.
    pub async fn requested(&self) {
        self.requested.notified().await;
    }

    /// Records a successful read, by when it began.
    pub fn read(&self, began: Instant) {
        *lock(&self.read_at) = Some(began);
    }
}
