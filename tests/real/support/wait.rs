//! Waits until a condition holds. No test asserts durations: the timeout only ends a wait that has become
//! hopeless.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Timeout of every wait.
const PATIENCE: Duration = Duration::from_secs(90);
/// Poll interval.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// An error that waiting cannot fix.
#[derive(Debug)]
pub(crate) struct Hopeless(pub(crate) String);

impl std::fmt::Display for Hopeless {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Hopeless {}

/// Polls `look` until it succeeds and returns its result. On timeout, or at the first [`Hopeless`] error,
/// returns the last error.
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
