//! Files that are named on the command line.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, ensure};

/// Returns the text of a file (`-` for standard input) of at most `max` bytes.
pub(super) fn read(file: &Path, max: u64) -> anyhow::Result<String> {
    read_whole(file, max).with_context(|| format!("cannot read {}", file.display()))
}

fn read_whole(file: &Path, max: u64) -> anyhow::Result<String> {
    let input: Box<dyn Read> = if file == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(file)?)
    };
    let mut text = String::new();
    input.take(max + 1).read_to_string(&mut text)?;
    ensure!(text.len() as u64 <= max, "it is larger than {max} bytes");
    Ok(text)
}
