//! Reads files of bounded size.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Returns the content of a file of at most `limit` bytes, which are whole MiB.
///
/// # Errors
/// The I/O error; `FileTooLarge` for a larger file.
pub fn read_bounded(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let text = format!("it is larger than {} MiB", limit >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    Ok(bytes)
}
