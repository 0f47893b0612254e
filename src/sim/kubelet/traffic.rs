//! Records calls, when they arrived and how many were concurrent.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::Shared;

/// The calls since the recording started.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    /// The path (`/v1.PodResourcesLister/List`) and the arrival time of each call.
    pub calls: Vec<(String, Instant)>,
    /// Maximum number of concurrent calls by path.
    pub at_once: BTreeMap<String, usize>,
    /// Maximum number of concurrent calls of all paths.
    pub all_at_once: usize,
    running: BTreeMap<String, usize>,
}

impl Traffic {
    fn begin(&mut self, path: &str) {
        self.calls.push((path.to_owned(), Instant::now()));
        let running = self.running.entry(path.to_owned()).or_default();
        *running += 1;
        let most = self.at_once.entry(path.to_owned()).or_default();
        *most = (*most).max(*running);
        self.all_at_once = self.all_at_once.max(self.running.values().sum());
    }

    fn end(&mut self, path: &str) {
        if let Some(running) = self.running.get_mut(path) {
            *running = running.saturating_sub(1);
        }
    }
}

/// A call in progress.
pub(super) struct Passing {
    shared: Arc<Shared>,
    path: String,
}

impl Passing {
    pub(super) fn begin(shared: Arc<Shared>, path: &str) -> Self {
        if let Some(traffic) = &mut shared.lock().traffic {
            traffic.begin(path);
        }
        Self { shared, path: path.to_owned() }
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        if let Some(traffic) = &mut self.shared.lock().traffic {
            traffic.end(&self.path);
        }
    }
}
