//! Waiting until something holds. No test asserts how long anything takes: the bound only ends a wait that
//! has become hopeless.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// The longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(90);
/// How often a wait looks.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// What no wait can mend.
#[derive(Debug)]
pub(crate) struct Hopeless(pub(crate) String);

impl std::fmt::Display for Hopeless {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Hopeless {}

/// Looks until `look` succeeds and gives what it found. Its last error, or
/// the first [`Hopeless`] one, says what was missing.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let started = Instant::now();
    loop {
        let seen = look().await;
        let hopeless = seen.as_ref().is_err_and(|error| error.is::<Hopeless>());
        if seen.is_ok() || hopeless || started.elapsed() > PATIENCE {
            return seen.with_context(|| format!("waited in vain until {what}"));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
