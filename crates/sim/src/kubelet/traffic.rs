//! Records calls, when they arrived and how many were concurrent.

use std::collections::BTreeMap;

use tokio::time::Instant;

/// The calls since recording started.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    /// The path (`/v1.PodResourcesLister/List`) and the arrival time of each call.
    pub calls: Vec<(String, Instant)>,
    /// Maximum number of concurrent calls by path.
    pub max_concurrent: BTreeMap<String, usize>,
    /// Maximum number of concurrent calls of all paths.
    pub max_concurrent_total: usize,
    running: BTreeMap<String, usize>,
}

impl Traffic {
    pub(super) fn begin(&mut self, path: &str) {
        self.calls.push((path.to_owned(), Instant::now()));
        let running = self.running.entry(path.to_owned()).or_default();
        *running += 1;
        let max = self.max_concurrent.entry(path.to_owned()).or_default();
        *max = (*max).max(*running);
        self.max_concurrent_total = self.max_concurrent_total.max(self.running.values().sum());
    }

    pub(super) fn end(&mut self, path: &str) {
        if let Some(running) = self.running.get_mut(path) {
            *running = running.saturating_sub(1);
        }
    }
}
