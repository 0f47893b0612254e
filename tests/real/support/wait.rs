//! Waiting until something holds. No test asserts how long anything takes: the bound only ends a wait that
//! has become hopeless.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// The longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(90);
/// How often a wait looks.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// Looks until `look` succeeds and gives what it found. Its last error says what was missing when patience ends.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let started = Instant::now();
    loop {
        let seen = look().await;
        if seen.is_ok() || started.elapsed() > PATIENCE {
            return seen.with_context(|| format!("waited in vain until {what}"));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
