//! Waits until a condition holds. No test asserts durations: the timeout only ends a wait that cannot succeed
//! any more.
//!
//! What each test waits for, and how long, is appended to the file that `NUMACAST_TIMES` names, one line per
//! test.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Timeout of every wait.
const TIMEOUT: Duration = Duration::from_secs(180);
/// The pause between two checks grows with the time waited, in this range: many tests wait at a time, and
/// every check costs a few requests. The tests are limited by CPU time, not by these pauses.
const PAUSES: (Duration, Duration) = (Duration::from_millis(40), Duration::from_millis(500));
/// The part of the time waited that a pause takes: a quarter.
const PART: u32 = 4;

/// An error that waiting cannot fix.
#[derive(Debug)]
pub(crate) struct Fatal(pub(crate) String);

impl std::fmt::Display for Fatal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Fatal {}

/// Polls `check` until it succeeds and returns its result. On timeout, or at the first [`Fatal`] error,
/// returns the last error.
pub(crate) async fn until<T>(what: &str, check: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    poll(what, |waited| (waited / PART).clamp(PAUSES.0, PAUSES.1), check).await
}

/// Like [`until`], with a fixed pause: short if `check` must not miss an intermediate state, long if it is
/// expensive.
pub(crate) async fn until_every<T>(
    what: &str,
    pause: Duration,
    check: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    poll(what, |_| pause, check).await
}

async fn poll<T>(
    what: &str,
    pause: impl Fn(Duration) -> Duration,
    mut check: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    // The test's own time starts here.
    TIMES.with(|_| ());
    let started = Instant::now();
    loop {
        let result = check().await;
        let fatal = result.as_ref().is_err_and(|error| error.is::<Fatal>());
        if result.is_ok() || fatal || started.elapsed() > TIMEOUT {
            record(what, started.elapsed());
            return result.with_context(|| format!("while waiting until {what}"));
        }
        tokio::time::sleep(pause(started.elapsed())).await;
    }
}

/// Sleeps where there is no event to wait for; `why` is for the list of the slowest tests.
#[allow(dead_code, reason = "some test programs have an event for everything")]
pub(crate) async fn pause(why: &str, time: Duration) {
    tokio::time::sleep(time).await;
    record(why, time);
}

/// Adds to the time that the current test has spent on `what`.
pub(crate) fn record(what: &str, time: Duration) {
    // Waits for different pods count together: their names have digits.
    let has_digit = |word: &str| word.contains(|c: char| c.is_ascii_digit());
    let words: Vec<&str> = what.split(' ').map(|word| if has_digit(word) { "_" } else { word }).collect();
    TIMES.with_borrow_mut(|times| *times.waits.entry(words.join(" ")).or_default() += time);
}

thread_local! {
    /// Every test has a thread of its own.
    static TIMES: RefCell<Times> = RefCell::new(Times::new());
}

/// What a test has waited for.
struct Times {
    test: String,
    started: Instant,
    waits: BTreeMap<String, Duration>,
}

impl Times {
    fn new() -> Self {
        let test = std::thread::current().name().unwrap_or_default().to_owned();
        Self { test, started: Instant::now(), waits: BTreeMap::new() }
    }

    /// Seconds, the test, and the three longest waits, separated by tabs.
    fn line(&self) -> String {
        let mut waits: Vec<_> = self.waits.iter().collect();
        waits.sort_by_key(|(_, time)| std::cmp::Reverse(**time));
        let waits = waits.iter().take(3).map(|(what, time)| format!("{what} ({:.0} s)", time.as_secs_f64()));
        let waits = waits.collect::<Vec<_>>().join(", ");
        format!("{:.1}\t{}\t{waits}\n", self.started.elapsed().as_secs_f64(), self.test)
    }
}

impl Drop for Times {
    /// The thread ends; other threads than tests' have no module in their names.
    fn drop(&mut self) {
        let path = std::env::var_os("NUMACAST_TIMES").filter(|_| self.test.contains("::"));
        let Some(path) = path else { return };
        // One write, so that lines of concurrent tests do not mix. The list is not worth failing a test.
        if let Ok(mut file) = std::fs::File::options().create(true).append(true).open(path) {
            let _ = file.write_all(self.line().as_bytes());
        }
    }
}
