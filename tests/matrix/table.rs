//! The table of results.

use std::fmt;

use crate::cell::{Cell, Outcome};

/// Rows, totals, and then the details of each difference.
pub(crate) struct Table<'a>(pub(crate) &'a [(Cell, Outcome)]);

const HEADER: [&str; 8] = ["kind", "machine", "kubelet", "policies", "pods", "steps", "differences", "seed"];

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<[String; 8]> = self.0.iter().map(|(cell, outcome)| row(cell, outcome)).collect();
        let width = |column: usize| {
            let cells = rows.iter().map(|row| row[column].len());
            cells.chain([HEADER[column].len()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..HEADER.len()).map(width).collect();
        line(f, &HEADER.map(str::to_owned), &widths)?;
        line(f, &std::array::from_fn(|column| "-".repeat(widths[column])), &widths)?;
        for (row, (_, outcome)) in rows.iter().zip(self.0) {
            line(f, row, &widths)?;
            if let Some(kubelet_error) = &outcome.kubelet_error {
                writeln!(f, "|   the kubelet does not start: {kubelet_error}")?;
            }
        }
        self.totals(f)?;
        self.details(f)
    }
}

impl Table<'_> {
    fn totals(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum =
            |count: fn(&Outcome) -> usize| self.0.iter().map(|(_, outcome)| count(outcome)).sum::<usize>();
        writeln!(
            f,
            "\n{} cells ({} with a kubelet that does not start, {} aborted), {} pods, {} steps, \
             {} differences",
            self.0.len(),
            sum(|outcome| usize::from(outcome.kubelet_error.is_some())),
            sum(|outcome| usize::from(outcome.aborted.is_some())),
            sum(|outcome| outcome.pods),
            sum(|outcome| outcome.steps),
            sum(|outcome| outcome.differences.len()),
        )
    }

    fn details(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (cell, outcome) in self.0 {
            for text in outcome.differences.iter().chain(&outcome.aborted) {
                writeln!(f, "\n{cell}, seed {}:\n  {}", outcome.seed, text.replace('\n', "\n  "))?;
            }
        }
        Ok(())
    }
}

fn row(cell: &Cell, outcome: &Outcome) -> [String; 8] {
    let Cell { kind, machine, version, policies } = cell;
    let mut differences = outcome.differences.len().to_string();
    if outcome.aborted.is_some() {
        differences.push_str(", aborted");
    }
    [
        kind.to_string(),
        machine.clone(),
        version.clone(),
        policies.map_or_else(|| "as described".to_owned(), |policies| policies.to_string()),
        outcome.pods.to_string(),
        outcome.steps.to_string(),
        differences,
        outcome.seed.to_string(),
    ]
}

fn line(f: &mut fmt::Formatter<'_>, cells: &[String; 8], widths: &[usize]) -> fmt::Result {
    for (cell, width) in cells.iter().zip(widths) {
        write!(f, "| {cell:width$} ")?;
    }
    writeln!(f, "|")
}
