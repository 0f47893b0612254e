//! Sections of documents that tests generate.

use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Replaces a document's text between two markers.
pub(crate) fn replace(file: &str, [begin, end]: [&str; 2], text: &str) -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let document = std::fs::read_to_string(&path).with_context(|| format!("cannot read {file}"))?;
    let (before, rest) =
        document.split_once(begin).with_context(|| format!("{file} has no {}", begin.trim()))?;
    let (_, after) = rest.split_once(end).with_context(|| format!("{file} has no {}", end.trim()))?;
    let document = [before, begin, text, end, after].concat();
    std::fs::write(&path, document).with_context(|| format!("cannot write {file}"))
}

/// Returns a table with only these columns, and only the rows of which `keep` returns true for the cells. Text
/// after the table stays.
pub(crate) fn excerpt(table: &str, columns: &[&str], keep: impl Fn(&[&str]) -> bool) -> Result<String> {
    let head = table.lines().next().and_then(cells).context("this is no table")?;
    let index = |column: &&str| {
        let found = head.iter().position(|name| name == column);
        found.with_context(|| format!("the table has no column `{column}`"))
    };
    let indices = columns.iter().map(index).collect::<Result<Vec<_>>>()?;
    let mut text = String::new();
    for (number, line) in table.lines().enumerate() {
        let Some(row) = cells(line) else {
            text += &format!("{line}\n");
            continue;
        };
        ensure!(row.len() == head.len(), "not as many cells as columns: {line}");
        let kept: Vec<&str> = indices.iter().map(|index| row[*index]).collect();
        match number {
            1 => text += &format!("{}|\n", "|---".repeat(kept.len())),
            _ if number == 0 || keep(&row) => text += &format!("| {} |\n", kept.join(" | ")),
            _ => {}
        }
    }
    Ok(text)
}

/// Returns the cells of a table's line; `None` for other text.
fn cells(line: &str) -> Option<Vec<&str>> {
    Some(line.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect())
}

/// Checks a document's text between `<!-- name -->` and `<!-- end of name -->`; `NUMACAST_WRITE_DOCS=1`
/// writes it instead. `test` is the argument of `cargo test` to regenerate it: `--test real security`.
pub(crate) fn section(file: &str, name: &str, right: &str, test: &str) -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = std::fs::read_to_string(&path)?;
    let (from, to) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->\n"));
    let (start, rest) = text.split_once(&from).with_context(|| format!("{file} has no {name}"))?;
    let (_, end) = rest.split_once(&to).with_context(|| format!("{file} has no end marker for {name}"))?;
    let right = [start, &from, right, &to, end].concat();
    if std::env::var_os("NUMACAST_WRITE_DOCS").is_some() {
        return Ok(std::fs::write(path, right)?);
    }
    ensure!(right == text, "{file} is out of date: run `NUMACAST_WRITE_DOCS=1 cargo test {test}`");
    Ok(())
}
