//! Reads files of bounded size, and detects that a file has changed.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Identifies a version of a file: device, inode, size, mtime and ctime.
pub type FileVersion = (u64, u64, u64, i64, i64, i64, i64);

/// Returns the version of a file; `None` if it cannot be found.
#[must_use]
pub fn version(path: &Path) -> Option<FileVersion> {
    let m = fs::metadata(path).ok()?;
    Some((m.dev(), m.ino(), m.size(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec()))
}

/// Returns the content of a file of at most `limit` bytes. `limit` must be a multiple of 1 MiB.
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
