//! What is printed: each step with its time.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Prints steps as they end.
#[derive(Debug)]
pub(crate) struct Table;

impl Table {
    /// Takes a step; prints its time, and in one line what it found out.
    pub(crate) async fn step<T: Note>(
        &mut self,
        name: &str,
        step: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let started = Instant::now();
        let found = step.await.with_context(|| format!("step \"{name}\""));
        let took = started.elapsed();
        let outcome = found.as_ref().map_or_else(|_| "FAILED".to_owned(), Note::note);
        self.row(name, took, &outcome);
        found
    }

    fn row(&mut self, name: &str, took: Duration, outcome: &str) {
        self.note(&format!("{:>6.1} s  {name:<44} {outcome}", took.as_secs_f64()));
    }

    /// Prints a line.
    pub(crate) fn note(&mut self, line: &str) {
        // Whoever reads may have gone; the steps go on.
        let _ = writeln!(std::io::stdout(), "{}", line.trim_end());
    }
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
