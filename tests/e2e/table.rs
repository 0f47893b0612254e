//! What is printed: each step with its time.

use std::io::Write;
use std::time::Instant;

use anyhow::{Context, Result};

/// Takes a step; prints its time, and in one line what it found out.
pub(crate) async fn step<T: Note>(name: &str, step: impl Future<Output = Result<T>>) -> Result<T> {
    let started = Instant::now();
    let found = step.await.with_context(|| format!("step \"{name}\""));
    let outcome = found.as_ref().map_or_else(|_| "FAILED".to_owned(), Note::note);
    note(&format!("{:>6.1} s  {name:<44} {outcome}", started.elapsed().as_secs_f64()));
    found
}

/// Prints a line.
pub(crate) fn note(line: &str) {
    // Whoever reads may have gone; the steps go on.
    let _ = writeln!(std::io::stdout(), "{}", line.trim_end());
}

/// What a step found out, in a few words.
pub(crate) trait Note {
    fn note(&self) -> String;
}

impl Note for () {
    fn note(&self) -> String {
        String::new()
    }
}

impl Note for String {
    fn note(&self) -> String {
        self.clone()
    }
}

/// Anything else beside its words.
impl<T> Note for (T, String) {
    fn note(&self) -> String {
        self.1.clone()
    }
}
