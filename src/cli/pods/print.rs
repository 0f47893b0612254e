use jiff::Timestamp;

use super::row::Row;
use super::{Output, OutputArgs};
use crate::util::age::age;

const GAP: usize = 3;

const COLUMNS: [&str; 8] = ["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE", "STATIC", "UID"];
/// The additional columns of a wide table.
const MORE: [&str; 3] = ["IP", "QOS", "CONDITIONS"];

pub(super) fn name(namespace: &str, name: &str) -> String {
    format!("{}/{}\n", printable(namespace), printable(name))
}

pub(super) struct Table {
    wide: bool,
    columns: Vec<&'static str>,
    /// Whether the header is still to be printed.
    header: bool,
    widths: Vec<usize>,
}

impl Table {
    /// Returns an empty table. `first` are additional columns before the others.
    pub(super) fn new(output: &OutputArgs, first: &[&'static str]) -> Self {
        let wide = output.output == Output::Wide;
        let more = if wide { &MORE[..] } else { &[] };
        let columns = [first, &COLUMNS, more].concat();
        let widths = match output.no_headers {
            true => vec![0; columns.len()],
            false => columns.iter().map(|column| column.len()).collect(),
        };
        Self { wide, columns, header: !output.no_headers, widths }
    }

    /// Formats the next rows. Columns grow as needed and never shrink.
    pub(super) fn print<'a>(
        &mut self,
        rows: impl Iterator<Item = (Option<&'a str>, &'a Row)>,
        now: Timestamp,
    ) -> String {
        let mut lines: Vec<Vec<String>> = rows.map(|(first, row)| self.cells(first, row, now)).collect();
        if std::mem::take(&mut self.header) {
            lines.insert(0, self.columns.iter().map(|column| (*column).to_owned()).collect());
        }
        for line in &lines {
            for (width, cell) in self.widths.iter_mut().zip(line) {
                *width = (*width).max(cell.chars().count());
            }
        }
        lines.iter().map(|line| self.line(line)).collect()
    }

    fn cells(&self, first: Option<&str>, row: &Row, now: Timestamp) -> Vec<String> {
        let is_static = if row.is_static { "yes" } else { "no" };
        let (restarts, age) = (row.restarts.print(now), age(row.since, now));
        let mut cells: Vec<&str> = Vec::from_iter(first);
        cells.extend([
            &*row.namespace,
            &row.name,
            &row.ready,
            &row.status,
            &restarts,
            &age,
            is_static,
            &row.uid,
        ]);
        if self.wide {
            cells.extend([&*row.addresses, &row.class, &row.conditions]);
        }
        // `awk` would skip an empty cell.
        cells.iter().map(|cell| if cell.is_empty() { "<none>".to_owned() } else { printable(cell) }).collect()
    }

    fn line(&self, cells: &[String]) -> String {
        let mut line = String::new();
        for (width, cell) in self.widths.iter().zip(cells) {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', width - cell.chars().count() + GAP));
        }
        line.truncate(line.trim_end().len());
        line.push('\n');
        line
    }
}

/// Replaces control characters: untrusted text must not control the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}
